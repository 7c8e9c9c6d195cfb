//! `describe`: everything about an object, for a person.
//!
//! Owns what is asked for. The layout is in `render::describe`.

use meridian_client::{Form, ListOptions};
use serde_json::Value;

use crate::args::DescribeArgs;
use crate::commands::{Bulk, events};
use crate::context::{Context, note};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::render;
use crate::targets::{self, Target, Targets};

pub(crate) async fn run(context: &mut Context, args: DescribeArgs) -> Result<Exit, Failure> {
    let mut bulk = Bulk::default();
    let mut objects = Vec::new();
    match targets::parse(&args.targets)? {
        Targets::Objects(targets) => {
            for target in &targets {
                match get(context, target).await {
                    Ok(object) => objects.push(object),
                    Err(failure) => bulk.tell(context, failure)?,
                }
            }
        }
        Targets::Kinds(resources) => {
            let options = ListOptions {
                labels: args.selector.selector.clone(),
                fields: args.selector.field_selector.clone(),
                form: Form::Objects,
            };
            for resource in &resources {
                let namespace = Some(context.namespace.as_str());
                let listing = context.client.list(resource, namespace, &options).await?;
                objects.extend(listing.items);
            }
        }
    }
    if objects.is_empty() {
        if bulk.first.is_none() {
            note("nothing to describe");
        }
        return bulk.end(Exit::Done);
    }
    for (at, object) in objects.iter().enumerate() {
        if at > 0 {
            context.out.line("\n")?;
        }
        let events = events::about(context, object).await?;
        let text = render::describe::describe(object, &events, context.clock.wall());
        context.out.text(&text)?;
    }
    bulk.end(Exit::Done)
}

async fn get(context: &Context, target: &Target) -> Result<Value, Failure> {
    let Target { resource, name } = target;
    let got = context
        .client
        .get(resource, &context.namespace, name, Form::Objects);
    got.await.map_err(Failure::from)
}
