//! `apply`: makes objects what their documents say, one line each.
//!
//! Owns the words. The difference is computed in the client library.

use meridian_client::apply::{Step, step};
use meridian_client::{Applied, Outcome, Written};
use serde_json::Value;

use crate::args::{ApplyArgs, Dry};
use crate::commands::{Bulk, check_here};
use crate::context::{Context, warn};
use crate::documents::{self, Wanted};
use crate::exit::Exit;
use crate::failure::Failure;

pub(crate) async fn run(context: &mut Context, args: ApplyArgs) -> Result<Exit, Failure> {
    let wanted = documents::load(&args.files)?;
    let single = wanted.len() == 1;
    let (mut bulk, mut objects, mut changed) = (Bulk::default(), Vec::new(), false);
    for each in &wanted {
        match apply(context, each, args.dry_run).await {
            Ok(applied) => {
                warn(&each.what(), &applied.written.warnings);
                changed |= applied.outcome != Outcome::Unchanged;
                if context.print_objects(args.output, &[], single).is_some() {
                    objects.push(applied.written.object);
                } else {
                    let line = format!(
                        "{}/{} {}{}",
                        each.resource.singular(),
                        applied_name(each, &applied.written.object),
                        applied.outcome.as_str(),
                        args.dry_run.suffix()
                    );
                    context.out.line(&line)?;
                }
            }
            Err(failure) => bulk.tell(context, failure)?,
        }
    }
    if let Some(printed) = context.print_objects(args.output, &objects, single) {
        printed?;
    }
    let unchanged = args.error_unchanged && !changed;
    bulk.end(if unchanged {
        Exit::Unchanged
    } else {
        Exit::Done
    })
}

/// The name that the hub gave, when the document leaves it to the hub.
fn applied_name<'a>(wanted: &'a Wanted, object: &'a Value) -> &'a str {
    object["metadata"]["name"]
        .as_str()
        .unwrap_or_else(|| wanted.name())
}

async fn apply(context: &Context, wanted: &Wanted, dry: Dry) -> Result<Applied, Failure> {
    if wanted.name().is_empty() {
        return Err(Failure::usage(
            format!("{}: metadata.name is missing", wanted.origin),
            "give it a name; `meridian submit` takes jobs with generateName",
        ));
    }
    let asked = context.asked_namespace.as_deref();
    let namespace = documents::namespace(wanted, asked, &context.namespace)?;
    let about = |source| Failure::About {
        what: wanted.what(),
        source,
    };
    let client = &context.client;
    match dry {
        Dry::None | Dry::Server => client
            .apply(&wanted.resource, namespace, &wanted.value, dry.on_the_hub())
            .await
            .map_err(about),
        Dry::Client => {
            check_here(wanted)?;
            let name = wanted.name();
            let current = client.find(&wanted.resource, namespace, name).await;
            let outcome = match step(current.map_err(about)?.as_ref(), &wanted.value) {
                Step::Create(_) => Outcome::Created,
                Step::Patch(_) => Outcome::Configured,
                Step::Nothing => Outcome::Unchanged,
            };
            let written = Written {
                object: wanted.value.clone(),
                warnings: Vec::new(),
            };
            Ok(Applied { outcome, written })
        }
    }
}
