//! `plan`: what would happen to jobs, decided by the hub on what it knows at the moment.
//!
//! Owns the exit codes of verdicts. Changes nothing.

use meridian_client::v1::{PlanResponse, Verdict};

use crate::args::PlanArgs;
use crate::commands::Bulk;
use crate::context::{Context, warn};
use crate::documents;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, list_of};
use crate::render;

pub(crate) async fn run(context: &mut Context, args: PlanArgs) -> Result<Exit, Failure> {
    let wanted = documents::load(&args.files)?;
    documents::only_jobs(&wanted)?;
    let single = wanted.len() == 1;
    let (mut bulk, mut values, mut worst) = (Bulk::default(), Vec::new(), Exit::Done);
    for (at, each) in wanted.iter().enumerate() {
        let asked = context.asked_namespace.as_deref();
        let namespace = documents::namespace(each, asked, &context.namespace)?;
        let mut job = each.value.clone();
        job["metadata"]["namespace"] = namespace.into();
        let label = format!("{namespace}/{}", each.name());
        match context.client.plan(&job).await {
            Ok(plan) => {
                warn(&each.what(), &plan.warnings);
                worst = worse(worst, exit(&plan));
                match args.output.output {
                    Format::Table | Format::Wide => {
                        if at > 0 {
                            context.out.line("")?;
                        }
                        let text = render::plan::plan(
                            &label,
                            &plan,
                            context.clock.wall(),
                            args.output.headers(),
                        );
                        context.out.text(&text)?;
                    }
                    Format::Json | Format::Yaml | Format::Name => {
                        values.push(render::plan::plan_value(namespace, each.name(), &plan));
                    }
                }
            }
            Err(source) => {
                let what = each.what();
                bulk.tell(context, Failure::About { what, source })?;
            }
        }
    }
    let whole = list_of(values, single);
    context
        .print_value(args.output.output, &whole)
        .transpose()?;
    bulk.end(if args.detailed_exitcode {
        worst
    } else {
        Exit::Done
    })
}

fn exit(plan: &PlanResponse) -> Exit {
    match plan.verdict() {
        Verdict::StartsNow => Exit::Done,
        Verdict::WillQueue => Exit::WillQueue,
        Verdict::Never => Exit::NeverPlaced,
        Verdict::Unspecified => Exit::Error,
    }
}

fn worse(a: Exit, b: Exit) -> Exit {
    if b.code() > a.code() { b } else { a }
}
