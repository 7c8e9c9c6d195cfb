//! Runs of recurring jobs: each instant of a schedule becomes a job of its own, once.
//!
//! Owns the way from a schedule to its runs. What is to be done is decided by
//! `policies::recurring`; here it is carried out: a run is made through the API server, as
//! everybody's jobs are, under a name that follows from its instant and under the leader's fence,
//! so that neither two leaders nor a repeated try make two. What has been dealt with is then
//! written into the job's progress. Never decides where or when a run is placed.

use std::collections::BTreeMap;

use meridian_api::canonical::hex;
use meridian_api::ids::{Revision, Uid};
use meridian_api::kinds::FederatedJob;
use meridian_api::meta::{API_VERSION, Spec as _};
use meridian_api::quantity::Time;
use meridian_api::recurrence::Recurrence;
use meridian_api::units::{Millis, UnixMillis};
use meridian_policies::recurring::{Due, LeftOut, Recurring, Run, RunState, WhyLeftOut, due};
use meridian_store::keys::{self, Part};
use meridian_store::{Compare, Operation, StoreError};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::commit::Committer;
use crate::explanations::{Explanations, RunsStatus};
use crate::fence::{Commit, Fence, put};
use crate::model::{Job, Model};
use crate::own_writes::{About, Doomed, Outcome, OwnWrites, Troubles};
use crate::settle::{Change, Subject, to_json};
use crate::status::job_status;

/// Recurring jobs dealt with in one round: the decision of everybody else's work waits for them.
const JOBS_A_ROUND: usize = 64;
/// Finished runs of one job that are deleted in one look; the next look deletes more.
const FORGET_AT_ONCE: usize = 16;
/// A job whose runs cannot be made is looked at again after this long.
const RETRY: Millis = Millis::seconds(30);
/// Longest name of a job that its runs are named after: with the instant it is a label.
const MAX_STEM: usize = 52;
/// Hexadecimal digits that tell longer names apart.
const HASH_DIGITS: usize = 10;

/// Name of the run for an instant, in minutes as Kubernetes names the jobs of a CronJob.
#[must_use]
pub(crate) fn run_name(job: &str, scheduled: UnixMillis) -> String {
    let minutes = scheduled.0.div_euclid(60_000);
    if job.len() <= MAX_STEM {
        return format!("{job}-{minutes}");
    }
    let hash = hex(&Sha256::digest(job).into());
    let stem = &job[..job.floor_char_boundary(MAX_STEM - HASH_DIGITS - 1)];
    let stem = stem.trim_end_matches(['-', '.']);
    format!("{stem}-{}-{minutes}", &hash[..HASH_DIGITS])
}

/// The instant that a run is for, by its name.
pub(crate) fn scheduled(job: &str, run: &str) -> Option<UnixMillis> {
    let (_, minutes) = run.rsplit_once('-')?;
    let at = UnixMillis(minutes.parse::<i64>().ok()?.checked_mul(60_000)?);
    (run_name(job, at) == run).then_some(at)
}

/// Runs of `job` that are there.
#[must_use]
pub(crate) fn runs_of(model: &Model, job: &Job) -> Vec<Run> {
    let run = |uid: &Uid| {
        let run = model.job(*uid)?;
        let state = if !run.is_over() {
            RunState::Active
        } else if run.progress().failed.is_empty() {
            RunState::Succeeded
        } else {
            RunState::Failed
        };
        Some(Run {
            scheduled: scheduled(job.name(), run.name())?,
            name: run.name().to_owned(),
            state,
        })
    };
    model.runs(job.uid).filter_map(run).collect()
}

/// What is to be done about a recurring job at `now`; an error says what its schedule lacks.
pub(crate) fn look(model: &Model, job: &Job, now: UnixMillis) -> Result<Due, String> {
    let Some(schedule) = &job.spec().schedule else {
        return Ok(Due::default());
    };
    if job.is_deleting() {
        return Ok(Due::default());
    }
    let window = schedule.window.as_ref();
    let window = window.and_then(|name| model.catalog.windows.get(name));
    let window = window.map(|window| &window.value.spec);
    let recurrence = Recurrence::of(schedule, window).map_err(|error| error.to_string())?;
    let runs = runs_of(model, job);
    let recurring = Recurring {
        schedule,
        recurrence: &recurrence,
        suspended: job.spec().suspend,
        seen: job.progress().runs_seen.unwrap_or(job.submitted()),
        runs: &runs,
    };
    Ok(due(recurring, now))
}

/// The run for an instant: the job as stored, without its schedule, belonging to it.
fn run(stored: &Value, scheduled: UnixMillis) -> Option<FederatedJob> {
    let job: FederatedJob = serde_json::from_value(stored.clone()).ok()?;
    let (uid, name) = (job.metadata.uid?, job.metadata.name);
    let mut spec = job.spec;
    let schedule = spec.schedule.take()?;
    spec.suspend = false;
    let within = schedule.finish_within.map(|span| span.0);
    spec.finish_by = within.map(|span| Time(scheduled.after(span)));
    let mut run = FederatedJob::new(&run_name(&name, scheduled), spec);
    run.metadata.namespace = job.metadata.namespace;
    run.metadata.labels = job.metadata.labels;
    run.metadata.annotations = job.metadata.annotations;
    let trace = crate::model::TRACEPARENT_ANNOTATION;
    run.metadata.annotations.remove(trace);
    let last_applied = "kubectl.kubernetes.io/last-applied-configuration";
    run.metadata.annotations.remove(last_applied);
    run.metadata.owner_references = vec![json!({
        "apiVersion": API_VERSION,
        "kind": meridian_api::kinds::federated_job::FederatedJobSpec::KIND,
        "name": name,
        "uid": uid.to_string(),
        "controller": true,
        "blockOwnerDeletion": false,
    })];
    Some(run)
}

/// Makes and forgets runs.
pub(crate) struct RunKeeper {
    writes: OwnWrites,
    explanations: Explanations,
    /// When each recurring job is looked at next, though nothing happens to it.
    next: BTreeMap<Uid, UnixMillis>,
    troubles: Troubles,
}

/// What carrying out came to.
enum Carried {
    /// All of it was done, at this revision.
    Done(Revision),
    /// Something changed meanwhile: the model is about to show what.
    Soon,
    /// Not now, and a person should know why.
    Not(&'static str, String),
}

impl RunKeeper {
    /// A keeper that makes runs with `writes`.
    #[must_use]
    pub(crate) fn new(writes: OwnWrites, explanations: Explanations) -> Self {
        Self {
            writes,
            explanations,
            next: BTreeMap::new(),
            troubles: Troubles::default(),
        }
    }

    /// When a recurring job is to be looked at though nothing happens.
    pub(crate) fn next_look(&self) -> Option<UnixMillis> {
        self.next.values().min().copied()
    }

    /// Looks at the recurring jobs that changed or are due. The model has what this wrote when it
    /// has taken in the returned revision.
    pub(crate) async fn settle(
        &mut self,
        model: &mut Model,
        committer: &Committer,
        fence: Fence,
    ) -> Result<Revision, StoreError> {
        let now = self.writes.clock().wall();
        let mut newest = Revision::default();
        let due = self.next.iter().filter(|(_, at)| **at <= now);
        let due: Vec<Uid> = due.map(|(uid, _)| *uid).collect();
        model.look_at_runs(due);
        let uids = model.take_recurring(JOBS_A_ROUND);
        for (at, uid) in uids.iter().enumerate() {
            match self.settle_one(model, committer, fence, (*uid, now)).await {
                Ok(revision) => newest = newest.max(revision),
                Err(error) => {
                    model.look_at_runs(uids[at..].iter().copied());
                    return Err(error);
                }
            }
        }
        Ok(newest)
    }

    async fn settle_one(
        &mut self,
        model: &mut Model,
        committer: &Committer,
        fence: Fence,
        (uid, now): (Uid, UnixMillis),
    ) -> Result<Revision, StoreError> {
        let Some(job) = model.job(uid).cloned() else {
            self.next.remove(&uid);
            self.troubles.note(uid, None);
            self.explanations.publish_runs(uid, None);
            return Ok(self.end_orphans(model, uid, fence).await);
        };
        let (carried, due) = match look(model, &job, now) {
            Ok(due) => (self.carry_out(model, &job, &due, fence).await?, due),
            Err(why) => (Carried::Not("ScheduleNotReady", why), Due::default()),
        };
        match carried {
            Carried::Done(made) => {
                self.note(&job, "", None);
                let written = self.write(model, committer, fence, (&job, &due, now));
                Ok(made.max(written.await?))
            }
            Carried::Soon => {
                model.look_at_runs([uid]);
                Ok(Revision::default())
            }
            Carried::Not(reason, why) => {
                self.next.insert(uid, now.after(RETRY));
                self.note(&job, reason, Some(why));
                Ok(Revision::default())
            }
        }
    }

    /// Writes down what has been dealt with, and when the job is looked at next.
    async fn write(
        &mut self,
        model: &mut Model,
        committer: &Committer,
        fence: Fence,
        (job, due, now): (&Job, &Due, UnixMillis),
    ) -> Result<Revision, StoreError> {
        let uid = job.uid;
        let status = runs_status(model, job, due.next);
        self.explanations.publish_runs(uid, Some(status));
        match due.next {
            Some(next) => self.next.insert(uid, next),
            None => self.next.remove(&uid),
        };
        let Some(change) = seen(model, job, due, now) else {
            return Ok(Revision::default());
        };
        match committer.write(model, fence, change).await? {
            Commit::Done(at, _) => Ok(at),
            Commit::Conflict(at) => {
                model.look_at_runs([uid]);
                Ok(at)
            }
            Commit::Deposed => Ok(Revision::default()),
        }
    }

    /// Runs whose job is gone go, too.
    async fn end_orphans(&self, model: &Model, job: Uid, fence: Fence) -> Revision {
        let mut newest = Revision::default();
        let runs = model.runs(job).filter_map(|uid| model.job(*uid));
        for run in runs.filter(|run| !run.is_deleting()) {
            if let Outcome::Done(at) = self.writes.delete(&Doomed::of(run), fence).await {
                newest = newest.max(at);
            }
        }
        newest
    }

    /// Deletes what is to go, then makes the run that is to start.
    async fn carry_out(
        &self,
        model: &Model,
        job: &Job,
        due: &Due,
        fence: Fence,
    ) -> Result<Carried, StoreError> {
        let namespace = job.namespace();
        let mut newest = Revision::default();
        let forgotten = due.forget.iter().take(FORGET_AT_ONCE);
        for name in due.replace.iter().chain(forgotten) {
            let run = model.job_named(namespace, name);
            let Some(run) = run.filter(|run| !run.is_deleting()) else {
                continue;
            };
            match self.writes.delete(&Doomed::of(run), fence).await {
                Outcome::Done(at) => newest = newest.max(at),
                // Gone already.
                Outcome::Soon => {}
                Outcome::Taken(why) | Outcome::Refused(why) => {
                    return Ok(Carried::Not("RunNotDeleted", why));
                }
                Outcome::Failed(error) => return Err(error),
            }
        }
        let Some(scheduled) = due.start else {
            return Ok(Carried::Done(newest));
        };
        let outcome = match self.writes.stored(Some(namespace), job.name()).await {
            Ok(stored) => match run(&stored, scheduled) {
                Some(run) => self.writes.make(&run, fence).await,
                None => Outcome::Soon,
            },
            Err(outcome) => outcome,
        };
        Ok(match outcome {
            Outcome::Done(at) => Carried::Done(newest.max(at)),
            Outcome::Soon => Carried::Soon,
            Outcome::Taken(_) => {
                let name = run_name(job.name(), scheduled);
                match model.job_named(namespace, &name) {
                    // An earlier try made it, and did not write that down.
                    Some(there) if there.run_of() == Some(job.uid) => Carried::Done(newest),
                    Some(_) => {
                        let why = format!("another job is named {name}: delete that one");
                        Carried::Not("RunNotMade", why)
                    }
                    None => Carried::Soon,
                }
            }
            Outcome::Refused(why) => Carried::Not("RunNotMade", why),
            Outcome::Failed(error) => return Err(error),
        })
    }

    /// Tells, once for each reason, why a run is not made.
    fn note(&mut self, job: &Job, reason: &'static str, trouble: Option<String>) {
        let Some(why) = self.troubles.note(job.uid, trouble) else {
            return;
        };
        let about = About {
            kind: "FederatedJob",
            namespace: job.namespace(),
            name: job.name(),
            uid: Some(job.uid),
        };
        self.writes.tell(about, reason, why);
    }
}

/// Writes down that everything up to an instant has been dealt with.
fn seen(model: &Model, job: &Job, due: &Due, now: UnixMillis) -> Option<Change> {
    let seen = due.seen?;
    let mut job = job.clone();
    job.progress_mut().runs_seen = Some(seen);
    if due.start.is_some() {
        job.progress_mut().last_scheduled = due.start;
    }
    let told = match (due.start, due.left_out) {
        (Some(start), None) => Some(("RunStarted", run_name(job.name(), start))),
        (Some(start), Some(left_out)) => {
            let run = run_name(job.name(), start);
            Some(("RunStarted", format!("{run}; {}", left_out_words(left_out))))
        }
        (None, Some(left_out)) => Some(("RunLeftOut", left_out_words(left_out))),
        (None, None) => None,
    };
    let key = keys::progress(job.uid);
    let compares = vec![
        Compare::ModRevision(job.key(Part::Spec), job.spec_revision),
        Compare::ModRevision(key.clone(), job.progress_revision()),
    ];
    let rows: Vec<_> = model
        .placements_of(job.uid)
        .map(|row| row.record.as_ref())
        .collect();
    let status = job_status(&job, &rows, now);
    let ops = vec![
        put(key, job.progress().to_json()),
        put(job.key(Part::Status), to_json(&status)),
    ];
    Some(Change {
        subject: Subject::Job(job.uid),
        why: Operation::CommitReport,
        compares,
        ops,
        told,
    })
}

fn left_out_words(left_out: LeftOut) -> String {
    let LeftOut { count, last, why } = left_out;
    let runs = if count == 1 { "run" } else { "runs" };
    let why = match why {
        WhyLeftOut::Missed => "its time passed while nobody could start it",
        WhyLeftOut::Overlap => "the run before it is not over",
        WhyLeftOut::Suspended => "the job is suspended",
    };
    format!("{count} {runs} left out, the last of {}: {why}", Time(last))
}

/// What is so with the runs of a recurring job.
fn runs_status(model: &Model, job: &Job, next: Option<UnixMillis>) -> RunsStatus {
    let mut active: Vec<Run> = runs_of(model, job);
    active.retain(|run| run.state == RunState::Active);
    active.sort_by_key(|run| run.scheduled);
    RunsStatus {
        next,
        active: active.into_iter().map(|run| run.name).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_named_after_its_job_and_its_minute() {
        let at = UnixMillis(29_400_000 * 60_000);
        assert_eq!(run_name("nightly", at), "nightly-29400000");
        let long = "n".repeat(63);
        let name = run_name(&long, at);
        assert!(name.len() <= 63, "{name}");
        assert_ne!(name, run_name(&"n".repeat(62), at));
        for job in ["nightly", &long] {
            assert_eq!(scheduled(job, &run_name(job, at)), Some(at));
        }
        assert_eq!(scheduled("nightly", "weekly-29400000"), None);
        assert_eq!(scheduled("nightly", "nightly-x"), None);
    }

    #[test]
    fn a_run_is_the_job_without_its_schedule() {
        let stored = json!({
            "apiVersion": "meridian.dev/v1alpha1", "kind": "FederatedJob",
            "metadata": {
                "name": "nightly", "namespace": "nlp",
                "uid": "00000001-4000-8000-0000-000000000001",
                "labels": {"team": "nlp"}, "resourceVersion": "7",
                "finalizers": ["meridian.dev/drain"],
            },
            "spec": {
                "workloadClass": "batch", "suspend": true,
                "schedule": {
                    "cron": "30 2 * * *", "timeZone": "UTC", "finishWithin": "4h",
                },
                "roles": [{"name": "worker", "replicas": 1, "gpus": 1, "template": {"a": 1}}],
            },
            "status": {"phase": "Scheduled"},
        });
        let at = UnixMillis(60_000);
        let made = run(&stored, at).expect("a recurring job");
        assert_eq!(made.metadata.name, "nightly-1");
        assert_eq!(made.metadata.labels["team"], "nlp");
        assert!(made.metadata.uid.is_none() && made.metadata.finalizers.is_empty());
        assert!(made.spec.schedule.is_none() && !made.spec.suspend && made.status.is_none());
        assert_eq!(
            made.spec.finish_by,
            Some(Time(at.after(Millis::seconds(4 * 3600))))
        );
        assert_eq!(made.spec.roles[0].template, json!({"a": 1}));
        let (uid, name) = made.owner().expect("it belongs to its job");
        assert_eq!(
            json!([uid.to_string(), name]),
            json!([stored["metadata"]["uid"], "nightly"])
        );
    }

    #[test]
    fn a_recurring_job_waits_for_no_place_and_its_run_stands_in_its_own_way() {
        use crate::fixture_tests::{Fixture, JOB};
        use meridian_api::kinds::federated_job::status::Phase;
        let mut fixture = Fixture::new(1);
        let schedule = json!({"schedule": {"cron": "* * * * *", "timeZone": "UTC"}});
        fixture.job(&schedule, &json!({}));
        assert!(fixture.model.waiting().is_empty());
        let job = fixture.model.job(JOB).expect("stored").clone();
        // Made ten seconds into 1970.
        let now = UnixMillis(61_000);
        assert_eq!(job_status(&job, &[], now).phase, Phase::Scheduled);
        let due = look(&fixture.model, &job, now).expect("a schedule");
        assert_eq!(
            (due.start, due.next),
            (Some(UnixMillis(60_000)), Some(UnixMillis(120_000)))
        );
        let change = seen(&fixture.model, &job, &due, now).expect("news");
        fixture.carry_out(&change);
        let job = fixture.model.job(JOB).expect("stored").clone();
        assert_eq!(
            look(&fixture.model, &job, now).expect("a schedule").start,
            None
        );
        let status = fixture.status.as_ref().expect("written");
        assert_eq!(status.last_scheduled, Some(Time(UnixMillis(60_000))));

        let run = json!({
            "apiVersion": "meridian.dev/v1alpha1", "kind": "FederatedJob",
            "metadata": {
                "name": "train-1", "namespace": "nlp", "generation": 1,
                "uid": "00000001-4000-8000-0000-0000000000ff",
                "ownerReferences": [{
                    "apiVersion": "meridian.dev/v1alpha1", "kind": "FederatedJob",
                    "name": "train", "uid": JOB.to_string(),
                }],
            },
            "spec": {
                "workloadClass": "batch", "tenant": "nlp",
                "roles": [{"name": "worker", "replicas": 1, "gpus": 1, "template": {"a": 1}}],
            },
        });
        let key = "objects/federatedjobs/nlp/train-1/spec";
        fixture.put(key, run.to_string().as_bytes());
        assert_eq!(
            fixture.model.waiting().len(),
            1,
            "the run waits for a place"
        );
        let due = look(&fixture.model, &job, UnixMillis(121_000)).expect("a schedule");
        assert_eq!((due.start, due.seen), (None, Some(UnixMillis(120_000))));
        let left_out = due.left_out.map(|left_out| left_out.why);
        assert_eq!(left_out, Some(WhyLeftOut::Overlap));
    }
}
