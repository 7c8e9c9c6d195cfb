//! `delete`: by name, by document, by selector; asks before it deletes many.
//!
//! Owns what counts as many. Whether a deletion is allowed is the hub's to say.

use meridian_client::{Deletion, Form, ListOptions, Resource};
use serde_json::Value;

use crate::args::{DeleteArgs, Dry};
use crate::commands::wait::{self, Goal};
use crate::commands::{Bulk, agree};
use crate::context::{Context, note};
use crate::documents;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Format;
use crate::targets::{self, Targets};
use crate::text::plural;

/// One object that is to go.
struct Doomed {
    resource: Resource,
    namespace: String,
    name: String,
    /// Known when it was listed: only that very object is deleted then.
    uid: Option<String>,
}

pub(crate) async fn run(context: &mut Context, args: DeleteArgs) -> Result<Exit, Failure> {
    let doomed = choose(context, &args).await?;
    if doomed.is_empty() {
        note("nothing to delete");
        return Ok(Exit::Done);
    }
    if doomed.len() > 1 && !args.yes && args.dry_run == Dry::None {
        confirm(context, &doomed)?;
    }
    let mut bulk = Bulk::default();
    let mut gone = Vec::new();
    for each in doomed {
        match delete(context, &args, &each).await {
            Ok(()) => gone.push(each),
            Err(Failure::About { source, .. })
                if args.ignore_not_found && Exit::of(&source) == Exit::NotFound => {}
            Err(failure) => bulk.tell(context, failure)?,
        }
    }
    if args.wait && args.dry_run == Dry::None {
        for each in gone {
            let target = wait::Waited {
                resource: each.resource,
                namespace: each.namespace,
                name: each.name,
            };
            wait::until(context, &target, &Goal::Deleted, None).await?;
        }
    }
    bulk.end(Exit::Done)
}

async fn choose(context: &Context, args: &DeleteArgs) -> Result<Vec<Doomed>, Failure> {
    if !args.files.is_empty() {
        let asked = context.asked_namespace.as_deref();
        let wanted = documents::load(&args.files)?;
        let doomed = |each: &documents::Wanted| {
            Ok(Doomed {
                resource: each.resource,
                namespace: documents::namespace(each, asked, &context.namespace)?.to_owned(),
                name: each.name().to_owned(),
                uid: None,
            })
        };
        // In reverse, so that what came first, and may hold the rest, goes last.
        return wanted.iter().rev().map(doomed).collect();
    }
    let has_selector = args.selector.selector.is_some() || args.selector.field_selector.is_some();
    match targets::parse(&args.targets)? {
        Targets::Objects(_) if has_selector || args.all => Err(Failure::usage(
            "names do not go together with a selector or --all",
            "leave out one of them",
        )),
        Targets::Objects(targets) => Ok(targets
            .into_iter()
            .map(|target| Doomed {
                resource: target.resource,
                namespace: context.namespace.clone(),
                name: target.name,
                uid: None,
            })
            .collect()),
        Targets::Kinds(_) if !has_selector && !args.all => Err(Failure::usage(
            "a kind alone does not say what to delete",
            "name objects, or use -l SELECTOR or --all",
        )),
        Targets::Kinds(resources) => select(context, args, &resources).await,
    }
}

async fn select(
    context: &Context,
    args: &DeleteArgs,
    resources: &[Resource],
) -> Result<Vec<Doomed>, Failure> {
    let options = ListOptions {
        labels: args.selector.selector.clone(),
        fields: args.selector.field_selector.clone(),
        form: Form::Objects,
    };
    let mut doomed = Vec::new();
    for resource in resources {
        let namespace = Some(context.namespace.as_str());
        let listing = context.client.list(resource, namespace, &options).await?;
        doomed.extend(listing.items.iter().map(|item| {
            let field = |name: &str| item["metadata"][name].as_str().map(str::to_owned);
            Doomed {
                resource: *resource,
                namespace: context.namespace.clone(),
                name: field("name").unwrap_or_default(),
                uid: field("uid"),
            }
        }));
    }
    Ok(doomed)
}

/// Asks the person, or demands `-y` where there is none.
fn confirm(context: &Context, doomed: &[Doomed]) -> Result<(), Failure> {
    let first: Vec<String> = doomed
        .iter()
        .take(SHOWN)
        .map(|each| format!("{}/{}", each.resource.singular(), each.name))
        .collect();
    let more = if doomed.len() > SHOWN { ", ..." } else { "" };
    let what = format!(
        "{}: {}{more}",
        plural(doomed.len(), "object"),
        first.join(", ")
    );
    agree(context, &format!("delete {what}"), "nothing was deleted")
}

/// Names that a question lists: what a person reads.
const SHOWN: usize = 10;

async fn delete(context: &mut Context, args: &DeleteArgs, doomed: &Doomed) -> Result<(), Failure> {
    let Doomed {
        resource,
        namespace,
        name,
        uid,
    } = doomed;
    let label = format!("{}/{name}", resource.singular());
    let about = |source| Failure::About {
        what: format!("delete {label}"),
        source,
    };
    let client = &context.client;
    let deletion = if args.dry_run == Dry::Client {
        let found = client.get(resource, namespace, name, Form::Objects).await;
        found.map(|_: Value| Deletion::Gone).map_err(about)?
    } else {
        let dry_run = args.dry_run.on_the_hub();
        let deleted = client.delete(resource, namespace, name, uid.as_deref(), dry_run);
        deleted.await.map_err(about)?
    };
    let what = match deletion {
        Deletion::Gone => "deleted",
        Deletion::Started(_) => "is being deleted",
    };
    match args.output {
        Format::Name => context.out.line(&label),
        Format::Table | Format::Wide | Format::Json | Format::Yaml => {
            let suffix = args.dry_run.suffix();
            context.out.line(&format!("{label} {what}{suffix}"))
        }
    }
}
