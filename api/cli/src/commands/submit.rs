//! `submit`: jobs over one stream, acknowledged one by one, safe to repeat.
//!
//! Owns the idempotency keys and the copies of `--count`. An answer is printed when the hub has
//! stored the job, never before.

use meridian_api::canonical;
use meridian_api::errors::{ApiError, ErrorCode};
use meridian_api::meta::API_VERSION;
use meridian_client::v1::SubmitResponse;
use meridian_client::{Answer, ClientError, Submission};
use serde_json::{Value, json};

use crate::args::{Dry, SubmitArgs};
use crate::commands::wait::{self, Goal, Waited};
use crate::commands::{Bulk, check_here};
use crate::context::{Context, note, warn};
use crate::documents::{self, Wanted};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Format;
use crate::render;
use crate::targets;

pub(crate) async fn run(context: &mut Context, args: SubmitArgs) -> Result<Exit, Failure> {
    let wanted = documents::load(&args.files)?;
    documents::only_jobs(&wanted)?;
    let jobs = jobs(context, &wanted, args.count)?;
    if args.plan_token.is_some() && jobs.len() > 1 {
        let message = format!("--plan-token is of one job, and there are {}", jobs.len());
        return Err(Failure::usage(
            message,
            "submit each with the token of its own plan",
        ));
    }
    if args.dry_run == Dry::Client {
        wanted.iter().try_for_each(check_here)?;
        for job in &jobs {
            let name = name_of(job);
            context
                .out
                .line(&format!("{} submitted (dry run)", label(name)))?;
        }
        return Ok(Exit::Done);
    }
    let nonce = args.idempotency_key.clone();
    let nonce = nonce.unwrap_or_else(|| context.random.uid().to_string());
    let mut bulk = Bulk::default();
    let stored = send(context, &args, jobs, &nonce, &mut bulk)
        .await
        .inspect_err(|_| {
            note(&format!(
                "no answer for some jobs: the same command with --idempotency-key {nonce} stores \
                 what is missing and nothing twice"
            ));
        })?;
    if !args.wait || args.dry_run != Dry::None {
        return bulk.end(Exit::Done);
    }
    let mut worst = Exit::Done;
    for target in &stored {
        let exit = wait::until(context, target, &Goal::Finished, None).await?;
        if worst == Exit::Done {
            worst = exit;
        }
    }
    bulk.end(worst)
}

/// The jobs to send: each document with its namespace, `--count` times.
fn jobs(context: &Context, wanted: &[Wanted], count: Option<u32>) -> Result<Vec<Value>, Failure> {
    let mut jobs = Vec::new();
    for each in wanted {
        let asked = context.asked_namespace.as_deref();
        let namespace = documents::namespace(each, asked, &context.namespace)?;
        let mut job = each.value.clone();
        if !job["metadata"].is_object() {
            return Err(Failure::Document {
                origin: each.origin.clone(),
                source: Box::new(ApiError::new(
                    ErrorCode::InvalidObject,
                    "metadata is missing: a job has at least a name or a generateName",
                )),
            });
        }
        job["metadata"]["namespace"] = json!(namespace);
        match count {
            None => jobs.push(job),
            Some(count) => jobs.extend((0..count).map(|index| numbered(&job, index))),
        }
    }
    Ok(jobs)
}

/// A copy whose name ends with its number; a name that the hub makes up stays as it is.
fn numbered(job: &Value, index: u32) -> Value {
    let mut copy = job.clone();
    if let Some(name) = job["metadata"]["name"].as_str() {
        copy["metadata"]["name"] = json!(format!("{name}-{index}"));
    }
    copy
}

/// Key of one job: of its document, its place in the command, and what the command adds. The same
/// command with the same addition makes the same keys.
fn key(job: &Value, index: usize, nonce: &str) -> String {
    canonical::hex(&canonical::sha256(&json!([nonce, index, job])))
}

/// Sends all, prints each answer, and returns what was stored.
async fn send(
    context: &mut Context,
    args: &SubmitArgs,
    jobs: Vec<Value>,
    nonce: &str,
    bulk: &mut Bulk,
) -> Result<Vec<Waited>, Failure> {
    let single = (jobs.len() == 1).then(|| jobs[0].clone());
    let names: Vec<String> = jobs.iter().map(|job| name_of(job).to_owned()).collect();
    let (total, dry_run, nonce) = (jobs.len(), args.dry_run.on_the_hub(), nonce.to_owned());
    let token = args.plan_token.clone().unwrap_or_default();
    let submissions = jobs.into_iter().enumerate().map(move |(index, job)| {
        let idempotency_key = key(&job, index, &nonce);
        Submission {
            job,
            idempotency_key,
            dry_run,
            plan_token: token.clone(),
        }
    });
    let stream = futures::stream::iter(submissions);
    let mut answers = context.client.submit_stream(stream).await?;
    let mut progress = (total > 1).then(|| context.progress());
    let mut stored = Vec::new();
    for (index, name) in names.iter().enumerate() {
        match answers.next().await? {
            None => {
                return Err(Failure::Client(ClientError::Protocol(format!(
                    "the stream ended after {index} of {total} answers"
                ))));
            }
            Some(Answer::Accepted(accepted)) => {
                warn(&label(&accepted.name), &accepted.warnings);
                say(context, args, &accepted)?;
                if let (Dry::Server, Some(job)) = (args.dry_run, &single) {
                    tell_cost(context, job).await;
                }
                stored.push(accepted);
            }
            Some(Answer::Refused(failure)) => {
                let source = ClientError::Api(failure);
                let what = format!("job {name}");
                bulk.tell(context, Failure::About { what, source })?;
            }
        }
        if let Some(progress) = progress.as_mut().filter(|_| is_milestone(index + 1, total)) {
            progress.say(&format!("{} of {total} jobs submitted", index + 1));
        }
    }
    drop(progress);
    if matches!(args.output, Format::Json | Format::Yaml) {
        context
            .print_value(args.output, &result(&stored))
            .transpose()?;
    }
    let waited = |accepted: SubmitResponse| Waited {
        resource: targets::jobs(),
        namespace: accepted.namespace,
        name: accepted.name,
    };
    Ok(stored.into_iter().map(waited).collect())
}

/// What a job of a dry run is expected to cost. A hub that cannot say so has checked it all the
/// same.
async fn tell_cost(context: &Context, job: &Value) {
    let plan = context.client.plan(job).await;
    if let Some(line) = plan.ok().as_ref().and_then(render::plan::in_short) {
        note(&line);
    }
}

fn name_of(job: &Value) -> &str {
    job["metadata"]["name"].as_str().unwrap_or("(generated)")
}

/// What was stored, for a program.
fn result(stored: &[SubmitResponse]) -> Value {
    let item = |accepted: &SubmitResponse| {
        json!({
            "namespace": accepted.namespace, "name": accepted.name, "uid": accepted.uid,
            "revision": accepted.revision, "replayed": accepted.replayed,
        })
    };
    json!({
        "apiVersion": API_VERSION,
        "kind": "SubmitResult",
        "items": stored.iter().map(item).collect::<Vec<_>>(),
    })
}

/// Progress is told each tenth of the way.
fn is_milestone(done: usize, total: usize) -> bool {
    done == total || done.is_multiple_of(total.div_ceil(10))
}

fn say(context: &mut Context, args: &SubmitArgs, accepted: &SubmitResponse) -> Result<(), Failure> {
    let label = label(&accepted.name);
    let known = if accepted.replayed {
        " (known already)"
    } else {
        ""
    };
    match args.output {
        Format::Json | Format::Yaml => Ok(()),
        Format::Name => context.out.line(&label),
        Format::Table | Format::Wide => {
            let suffix = args.dry_run.suffix();
            context
                .out
                .line(&format!("{label} submitted{known}{suffix}"))
        }
    }
}

fn label(name: &str) -> String {
    format!("{}/{name}", targets::jobs().singular())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_command_makes_the_same_keys_and_no_two_jobs_share_one() {
        let job = json!({"metadata": {"name": "a"}, "spec": {"roles": []}});
        let reordered = json!({"spec": {"roles": []}, "metadata": {"name": "a"}});
        assert_eq!(key(&job, 0, "k"), key(&reordered, 0, "k"));
        assert_ne!(key(&job, 0, "k"), key(&job, 1, "k"));
        assert_ne!(key(&job, 0, "k"), key(&job, 0, "l"));
        assert!(key(&job, 0, "k").len() <= 128);
    }

    #[test]
    fn copies_are_numbered_unless_the_hub_names_them() {
        let job = json!({"metadata": {"name": "a"}});
        assert_eq!(numbered(&job, 2)["metadata"]["name"], "a-2");
        let unnamed = json!({"metadata": {"generateName": "a-"}});
        assert_eq!(numbered(&unnamed, 2), unnamed);
    }

    #[test]
    fn progress_is_told_ten_times_at_most() {
        let told = (1..=1000).filter(|done| is_milestone(*done, 1000)).count();
        assert_eq!(told, 10);
        assert!(is_milestone(3, 3));
    }
}
