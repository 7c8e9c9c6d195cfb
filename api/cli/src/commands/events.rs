//! `events`: what happened, newest last; once, or as it happens.
//!
//! Owns which events are asked for. Kept are those that the hub keeps.

use meridian_client::{Change, FailureKind, Form, ListOptions, Resource, WatchTarget};
use serde_json::Value;

use crate::args::EventsArgs;
use crate::context::{Context, note};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Headers};
use crate::render::events as layout;
use crate::targets::{self, Target};

pub(crate) async fn run(context: &mut Context, args: EventsArgs) -> Result<Exit, Failure> {
    let target = args
        .target
        .as_deref()
        .map(|word| targets::one_or(word, targets::jobs()))
        .transpose()?;
    let namespace = namespace(context, &args, target.as_ref()).map(str::to_owned);
    if args.watch {
        return watch(context, &args, target.as_ref(), namespace).await;
    }
    let options = ListOptions::default();
    let listing = context
        .client
        .list(&Resource::EVENTS, namespace.as_deref(), &options)
        .await?;
    let mut events: Vec<Value> = listing.items;
    events.retain(|event| target.as_ref().is_none_or(|target| is_about(event, target)));
    layout::sort(&mut events);
    if events.is_empty() && args.output.output == Format::Table {
        note("no events");
        return Ok(Exit::Done);
    }
    print(context, &args, &events, args.output.headers())?;
    Ok(Exit::Done)
}

/// Events about cluster-scoped objects lie in the namespace `default`, as Kubernetes has it.
fn namespace<'a>(
    context: &'a Context,
    args: &EventsArgs,
    target: Option<&Target>,
) -> Option<&'a str> {
    match target {
        _ if args.all_namespaces => None,
        Some(target) if !target.resource.namespaced => None,
        _ => Some(context.namespace.as_str()),
    }
}

fn is_about(event: &Value, target: &Target) -> bool {
    let about = &event["involvedObject"];
    about["kind"] == target.resource.kind && about["name"] == *target.name
}

fn print(
    context: &mut Context,
    args: &EventsArgs,
    events: &[Value],
    headers: Headers,
) -> Result<(), Failure> {
    if let Some(printed) = context.print_objects(args.output.output, events, false) {
        return printed;
    }
    let grid = layout::grid(events, context.clock.wall(), args.all_namespaces);
    context.out.text(&grid.to_text(headers))
}

async fn watch(
    context: &mut Context,
    args: &EventsArgs,
    target: Option<&Target>,
    namespace: Option<String>,
) -> Result<Exit, Failure> {
    let watched = WatchTarget {
        resource: Resource::EVENTS,
        namespace,
        options: ListOptions {
            form: Form::Objects,
            ..ListOptions::default()
        },
    };
    let mut watcher = context.client.watch(watched).await?;
    let (mut first, mut headers) = (Some(Vec::new()), args.output.headers());
    loop {
        let events = match (watcher.next().await?, &mut first) {
            (Change::Set(event), _) if target.is_some_and(|target| !is_about(&event, target)) => {
                continue;
            }
            (Change::Set(event), None) => vec![event],
            (Change::Set(event), Some(events)) => {
                events.push(event);
                continue;
            }
            (Change::Gone(_), _) => continue,
            (Change::Synced, _) => match first.take() {
                Some(mut events) => {
                    layout::sort(&mut events);
                    events
                }
                None => continue,
            },
        };
        if !events.is_empty() {
            print(context, args, &events, headers)?;
            headers = Headers::Hidden;
        }
    }
}

/// Events about one object, oldest first; none when the hub keeps none.
pub(crate) async fn about(context: &Context, object: &Value) -> Result<Vec<Value>, Failure> {
    let namespace = object["metadata"]["namespace"].as_str();
    let options = ListOptions::default();
    let listed = context
        .client
        .list(&Resource::EVENTS, namespace, &options)
        .await;
    let mut events = match listed {
        Ok(listing) => listing.items,
        Err(error) if error.is(FailureKind::NotFound) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let (kind, metadata) = (&object["kind"], &object["metadata"]);
    events.retain(|event| {
        let involved = &event["involvedObject"];
        let same_life = involved["uid"].is_null() || involved["uid"] == metadata["uid"];
        involved["kind"] == *kind && involved["name"] == metadata["name"] && same_life
    });
    layout::sort(&mut events);
    Ok(events)
}
