//! `get`: objects as the hub's own tables, or whole; once, or as they change.
//!
//! Owns which objects are asked for. The columns are the hub's.

use meridian_client::{Change, Form, ListOptions, Listing, Resource, WatchTarget};
use serde_json::Value;

use crate::args::GetArgs;
use crate::commands::Bulk;
use crate::context::{Context, note};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Grid, Headers};
use crate::render::table::{self, Layout};
use crate::targets::{self, Target, Targets};

pub(crate) async fn run(context: &mut Context, args: GetArgs) -> Result<Exit, Failure> {
    let targets = targets::parse(&args.targets)?;
    if args.watch {
        return watch(context, &args, targets).await;
    }
    match targets {
        Targets::Kinds(resources) => kinds(context, &args, &resources).await,
        Targets::Objects(targets) => objects(context, &args, &targets).await,
    }
}

impl GetArgs {
    fn form(&self) -> Form {
        match self.output.output {
            Format::Table | Format::Wide => Form::Table,
            Format::Json | Format::Yaml | Format::Name => Form::Objects,
        }
    }

    fn options(&self) -> ListOptions {
        ListOptions {
            labels: self.selector.selector.clone(),
            fields: self.selector.field_selector.clone(),
            form: self.form(),
        }
    }

    fn layout(&self, prefix: bool) -> Layout {
        Layout {
            wide: self.output.output == Format::Wide,
            namespaces: self.all_namespaces,
            prefix,
        }
    }

    fn namespace<'a>(&self, context: &'a Context) -> Option<&'a str> {
        (!self.all_namespaces).then_some(context.namespace.as_str())
    }
}

async fn kinds(
    context: &mut Context,
    args: &GetArgs,
    resources: &[Resource],
) -> Result<Exit, Failure> {
    let options = args.options();
    let (mut objects, mut printed) = (Vec::new(), 0);
    for resource in resources {
        let namespace = args.namespace(context);
        let listing = context.client.list(resource, namespace, &options).await?;
        if args.form() == Form::Objects {
            objects.extend(listing.items.into_iter().map(|item| whole(item, resource)));
            continue;
        }
        if listing.items.is_empty() {
            continue;
        }
        if printed > 0 {
            context.out.line("")?;
        }
        printed += 1;
        let grid = table::grid(&listing, resource, args.layout(resources.len() > 1));
        print(context, args, grid)?;
    }
    if let Some(printed) = context.print_objects(args.output.output, &objects, false) {
        printed?;
    } else if printed == 0 {
        note(&nothing(args.namespace(context), resources));
    }
    Ok(Exit::Done)
}

/// Items of a list leave out what the list says for all.
fn whole(mut item: Value, resource: &Resource) -> Value {
    if let Value::Object(fields) = &mut item {
        if !fields.contains_key("kind") {
            fields.insert("kind".into(), resource.kind.into());
        }
        if !fields.contains_key("apiVersion") {
            fields.insert("apiVersion".into(), resource.api_version().into());
        }
    }
    item
}

fn nothing(namespace: Option<&str>, resources: &[Resource]) -> String {
    let names: Vec<&str> = resources.iter().map(|resource| resource.plural).collect();
    let names = names.join(", ");
    match namespace {
        Some(namespace) if resources.iter().all(|resource| resource.namespaced) => {
            format!("no {names} in namespace {namespace}")
        }
        _ => format!("no {names}"),
    }
}

async fn objects(
    context: &mut Context,
    args: &GetArgs,
    targets: &[Target],
) -> Result<Exit, Failure> {
    if args.all_namespaces || args.selector.selector.is_some() {
        return Err(Failure::usage(
            "names and a selector, or all namespaces, do not go together",
            "leave out either the names or -A and -l",
        ));
    }
    let mut bulk = Bulk::default();
    let (mut whole, mut tables) = (Vec::new(), Vec::<(Resource, Listing)>::new());
    for target in targets {
        let Target { resource, name } = target;
        let got = context
            .client
            .get(resource, &context.namespace, name, args.form())
            .await;
        match (got, args.form()) {
            (Ok(object), Form::Objects) => whole.push(object),
            (Ok(mut table), Form::Table) => {
                let part = Listing {
                    items: taken(&mut table["rows"]),
                    columns: taken(&mut table["columnDefinitions"]),
                    resource_version: String::new(),
                };
                match tables.iter_mut().find(|(of, _)| of == resource) {
                    Some((_, listing)) => listing.items.extend(part.items),
                    None => tables.push((*resource, part)),
                }
            }
            (Err(error), _) => bulk.tell(context, error.into())?,
        }
    }
    if let Some(printed) = context.print_objects(args.output.output, &whole, targets.len() == 1) {
        if !whole.is_empty() {
            printed?;
        }
    } else {
        let several = tables.len() > 1;
        for (at, (resource, listing)) in tables.iter().enumerate() {
            if at > 0 {
                context.out.line("")?;
            }
            print(
                context,
                args,
                table::grid(listing, resource, args.layout(several)),
            )?;
        }
    }
    bulk.end(Exit::Done)
}

fn taken(list: &mut Value) -> Vec<Value> {
    match list.take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    }
}

fn print(context: &mut Context, args: &GetArgs, mut grid: Grid) -> Result<(), Failure> {
    if let Some(column) = &args.sort_by {
        table::sort(&mut grid, column)?;
    }
    context.out.text(&grid.to_text(args.output.headers()))
}

async fn watch(context: &mut Context, args: &GetArgs, targets: Targets) -> Result<Exit, Failure> {
    let mut options = args.options();
    let resource = match targets {
        Targets::Kinds(resources) if resources.len() == 1 => resources[0],
        Targets::Objects(objects) if objects.len() == 1 => {
            options.fields = ListOptions::named(&objects[0].name).fields;
            objects[0].resource
        }
        Targets::Kinds(_) | Targets::Objects(_) => {
            return Err(Failure::usage(
                "only one kind or one object is watched at a time",
                "name one, with a selector if need be",
            ));
        }
    };
    let target = WatchTarget {
        resource,
        namespace: args.namespace(context).map(str::to_owned),
        options,
    };
    let mut watcher = context.client.watch(target).await?;
    let (mut first, mut headers) = (Some(Listing::default()), args.output.headers());
    let mut widths = Vec::new();
    loop {
        let change = watcher.next().await?;
        let item = match (change, &mut first) {
            (Change::Set(item) | Change::Gone(item), None) => vec![item],
            (Change::Set(item), Some(listing)) => {
                listing.items.push(item);
                continue;
            }
            (Change::Gone(_), Some(_)) => continue,
            (Change::Synced, _) => match first.take() {
                Some(listing) => listing.items,
                None => continue,
            },
        };
        let listing = Listing {
            items: item,
            columns: watcher.columns().to_vec(),
            resource_version: String::new(),
        };
        if args.form() == Form::Table {
            let mut grid = table::grid(&listing, &resource, args.layout(false));
            grid.widen(&mut widths);
            context.out.text(&grid.to_text(headers))?;
        } else {
            show(context, args, &resource, listing)?;
        }
        headers = Headers::Hidden;
    }
}

/// Shows changed objects, each by itself.
fn show(
    context: &mut Context,
    args: &GetArgs,
    resource: &Resource,
    listing: Listing,
) -> Result<(), Failure> {
    for item in listing.items {
        let item = whole(item, resource);
        if let Some(printed) = context.print_objects(args.output.output, &[item], true) {
            printed?;
        }
    }
    Ok(())
}
