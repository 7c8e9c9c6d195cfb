//! Settling: what the agents' observations and people's wishes do to placements.
//!
//! Owns the way from the life cycle's table to writes. Pure: reads the model, returns what is to
//! be written; `round` writes it. Never frees anything without proof.

use bytes::Bytes;
use meridian_api::ids::{Epoch, GangId, Uid};
use meridian_api::kinds::federated_job::{CauseAction, EndCause, ExitAction, Retry};
use meridian_api::kinds::workload_class::Preemption;
use meridian_api::reasons::Reason;
use meridian_api::units::UnixMillis;
use meridian_policies::lifecycle::{
    self, DrainReason, Effect, Event, Failure, Illegal, Next, Outcome, Step,
};
use meridian_policies::preempt::words::work;
use meridian_proto::v1::GangStep;
use meridian_store::keys::{self, Part};
use meridian_store::{Compare, Op, Operation};

use crate::fence::put;
use crate::holds::{HoldRecord, StoredVictim};
use crate::model::{FINALIZER, Job, Model, Seen};
use crate::placement::{PlacementRecord, Preempted};
use crate::progress::{Eviction, JobProgress, PAUSE};
use crate::status::job_status;

/// One write, whole: its compares, its operations, and what to tell about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// What it is about.
    pub(crate) subject: Subject,
    /// For what the store is called.
    pub(crate) why: Operation,
    /// What must still be so.
    pub(crate) compares: Vec<Compare>,
    /// What is written.
    pub(crate) ops: Vec<Op>,
    /// What happened, for events: a word and a sentence.
    pub(crate) told: Option<(&'static str, String)>,
}

/// What a change is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// A gang of a job.
    Gang(GangId),
    /// A job.
    Job(Uid),
}

/// What the newest observation of `gang`, or a wish for its job, does to its placement.
#[must_use]
pub(crate) fn settle_gang(model: &Model, gang: GangId, now: UnixMillis) -> Option<Change> {
    let record = model.placement(gang)?.record.as_ref();
    let job = model.job(gang.job);
    if job.is_none() && model.is_unreadable(gang.job) {
        // A record that this hub cannot read says nothing: what runs goes on.
        return None;
    }
    let cluster = model.fleet.clusters.get(&*record.cluster);
    let seen = cluster.and_then(|cluster| cluster.last_seen(gang, record.epoch));
    if let Some(seen) = seen {
        let event = observation(job, gang.index, seen);
        if let Some(change) = try_event(model, job, record, event, now, Some(seen)) {
            return Some(change);
        }
    }
    if let Some(seen) = seen.filter(|seen| seen.epoch == record.epoch)
        && let Some(change) = smaller(model, job, record, seen, now)
    {
        return Some(change);
    }
    // A refusal of what the agent then shows to be there is of an order that it got twice.
    let is_there = seen.is_some_and(|seen| seen.epoch == record.epoch && !seen.is_over());
    let refused = cluster.and_then(|cluster| cluster.refused.get(&gang));
    if !is_there && refused == Some(&record.epoch) {
        let event = Event::Refused {
            epoch: record.epoch,
        };
        if let Some(change) = try_event(model, job, record, event, now, None) {
            return Some(change);
        }
    }
    let wish = match job {
        // Its job went without it, which takes a hand in the store: it is stopped as usual.
        None => Event::DeleteRequested,
        Some(job) if job.is_deleting() => Event::DeleteRequested,
        Some(job) if job.spec().suspend => Event::SuspendRequested,
        Some(_) if is_drained(model, &record.cluster) => Event::EvacuationRequested,
        Some(_) if model.must_leave(record).is_some_and(|at| at <= now) => {
            Event::EvacuationRequested
        }
        Some(_) => room_wanted(model, record, seen)?,
    };
    try_event(model, job, record, wish, now, None)
}

/// The change after an agent made an elastic gang smaller: what it no longer holds is free, and
/// no longer its tenant's to answer for.
fn smaller(
    model: &Model,
    job: Option<&Job>,
    record: &PlacementRecord,
    seen: &Seen,
    now: UnixMillis,
) -> Option<Change> {
    let row = record.shrunk(&seen.sizes)?;
    let told = format!(
        "gang {} in {}/{} goes on with {} of {} GPUs",
        record.gang.index,
        record.cluster,
        record.pool,
        row.gpus.whole(),
        record.gpus.whole()
    );
    write_row(model, job, record, Some(&row), now, Some(("Shrunk", told)))
}

/// The change that sends a running gang back to the queue, so that it goes to an earlier group of
/// its job; `None` when it is gone or another meanwhile.
#[must_use]
pub(crate) fn give_back(
    model: &Model,
    gang: GangId,
    epoch: Epoch,
    now: UnixMillis,
) -> Option<Change> {
    let row = model
        .placement(gang)
        .filter(|row| row.record.epoch == epoch)?;
    let event = Event::EvacuationRequested;
    let change = try_event(model, model.job(gang.job), &row.record, event, now, None)?;
    let record = &row.record;
    let place = format!("{}/{}", record.cluster, record.pool);
    let told = format!(
        "gang {} leaves {place}: an earlier group of its job has room",
        gang.index
    );
    Some(Change {
        told: Some(("Stopping", told)),
        ..change
    })
}

/// Whether the placement is to make room for another gang, or not any more.
fn room_wanted(model: &Model, record: &PlacementRecord, seen: Option<&Seen>) -> Option<Event> {
    let victim = model.makes_room(record.gang, record.epoch);
    if let Some((_, victim)) = victim {
        let goes = victim.shrinks.is_none();
        return goes.then(|| Event::RoomWanted {
            comes_back: comes_back(model, &record.class),
        });
    }
    let lifecycle::State::Draining(reason) = record.state else {
        return None;
    };
    // What its agent has begun to stop is not called back.
    let stops = seen.is_some_and(|seen| seen.step == GangStep::Stopping || seen.is_over());
    (reason.is_for_another() && !stops).then_some(Event::Spared)
}

/// False for a class whose work is not started again once its room was taken back.
fn comes_back(model: &Model, class: &str) -> bool {
    let class = model.catalog.classes.get(class);
    class.is_none_or(|class| class.value.spec.preemption != Preemption::Reclaim)
}

/// For whom it goes, as its record says from then on.
fn preempted(model: &Model, record: &PlacementRecord) -> Option<Preempted> {
    let (hold, victim) = model.makes_room(record.gang, record.epoch)?;
    Some(Preempted {
        by: hold.gang,
        job: hold.job.clone(),
        rule: victim.rule,
        lost: victim.lost,
        notice: victim.deadline.since(hold.decided),
    })
}

/// True when a person drains the cluster.
fn is_drained(model: &Model, cluster: &str) -> bool {
    let declared = model.catalog.clusters.get(cluster);
    declared.is_some_and(|cluster| cluster.value.spec.drained)
}

/// The change that `event` makes, if it is news.
fn try_event(
    model: &Model,
    job: Option<&Job>,
    record: &PlacementRecord,
    event: Event,
    now: UnixMillis,
    seen: Option<&Seen>,
) -> Option<Change> {
    match lifecycle::step(&record.row(), event, now) {
        Ok(transition) if is_news(&transition, record) => {
            change(model, job, record, &transition, now, seen)
        }
        Ok(_) => None,
        Err(Illegal::Stale { row, observed }) => {
            tracing::debug!(gang = %record.gang, %row, %observed, "observation of another epoch");
            None
        }
    }
}

fn is_news(transition: &lifecycle::Transition, record: &PlacementRecord) -> bool {
    transition.next != Next::In(record.state)
}

/// An agent's observation in the words of the life cycle.
fn observation(job: Option<&Job>, index: u32, seen: &Seen) -> Event {
    let step = match seen.step {
        GangStep::Unspecified | GangStep::Accepted => Step::Accepted,
        GangStep::Bound => Step::Bound,
        GangStep::Running => Step::Running,
        GangStep::Stopping => Step::Stopping,
        GangStep::Succeeded => Step::Succeeded,
        GangStep::Stopped => Step::Stopped,
        GangStep::Failed => Step::Failed(failure(job, index, seen)),
    };
    Event::Observed {
        epoch: seen.epoch,
        step,
    }
}

fn failure(job: Option<&Job>, index: u32, seen: &Seen) -> Failure {
    match seen.reason.as_str() {
        "NodeLost" => cause(job, index, EndCause::NodeLost),
        // Taken away by somebody else, or by a node that was short of something.
        "Interrupted" | "Evicted" => cause(job, index, EndCause::Evicted),
        "DeviceFault" => cause(job, index, EndCause::DeviceFault),
        "DependencyMissing" => Failure::DependencyMissing,
        "AdmissionDenied" => Failure::Denied,
        "PlaceTimeout" => Failure::PlaceTimeout,
        "PlacementRefused" => Failure::NotAdmitted,
        "RuntimeExceeded" => Failure::RuntimeExceeded,
        // Its template cannot be run as it is: another try would end the same.
        "Misconfigured" => Failure::Exit { restarts_left: 0 },
        _ => job.map_or(Failure::Exit { restarts_left: 0 }, |job| {
            exit(job, index, seen.exit_code)
        }),
    }
}

/// What an end means that is not the job's own doing: its rules, else it costs nothing.
fn cause(job: Option<&Job>, index: u32, cause: EndCause) -> Failure {
    let Some(job) = job else {
        return Failure::NodeLost;
    };
    match job.spec().retry.on(cause) {
        CauseAction::Restart => Failure::NodeLost,
        CauseAction::Fail => Failure::Exit { restarts_left: 0 },
        CauseAction::Count => Failure::Exit {
            restarts_left: restarts_left(job, index),
        },
    }
}

/// Why a cluster is closed to the job for a while after such an end.
fn closed_by(reason: &str) -> Option<Reason> {
    match reason {
        "DependencyMissing" => Some(Reason::DependencyMissing),
        "AdmissionDenied" => Some(Reason::Denied),
        _ => None,
    }
}

fn restarts_left(job: &Job, index: u32) -> u32 {
    let tried = job.progress().tried.get(&index);
    let used = tried.map_or(0, |tried| tried.restarts);
    job.spec().retry.max_restarts.saturating_sub(used)
}

/// What an exit code means for the job: its rules first, then its budget of restarts.
fn exit(job: &Job, index: u32, code: i32) -> Failure {
    let retry = &job.spec().retry;
    let rule = retry
        .exit_codes
        .iter()
        .find(|rule| rule.codes.contains(&code));
    match rule.map(|rule| rule.action) {
        Some(ExitAction::Fail) => Failure::Exit { restarts_left: 0 },
        // It starts again without using a restart: as after a lost node.
        Some(ExitAction::Restart) => Failure::NodeLost,
        None => Failure::Exit {
            restarts_left: restarts_left(job, index),
        },
    }
}

fn change(
    model: &Model,
    job: Option<&Job>,
    record: &PlacementRecord,
    transition: &lifecycle::Transition,
    now: UnixMillis,
    seen: Option<&Seen>,
) -> Option<Change> {
    let kept = match transition.next {
        Next::In(state) => {
            let mut row = PlacementRecord {
                state,
                ..record.clone()
            };
            row.preempted = match state {
                lifecycle::State::Draining(reason) if reason.is_for_another() => record
                    .preempted
                    .clone()
                    .or_else(|| preempted(model, record).map(Box::new)),
                lifecycle::State::Starting
                | lifecycle::State::Running
                | lifecycle::State::Draining(_) => None,
            };
            if state == lifecycle::State::Running && row.started.is_none() {
                row.started = Some(seen.and_then(|seen| seen.started).unwrap_or(now));
            }
            Some(row)
        }
        Next::Ended(_) => None,
    };
    let job = job.map(|job| {
        let mut job = job.clone();
        let retry = job.spec().retry.clone();
        apply_effects(job.progress_mut(), &retry, record, transition, now, seen);
        job
    });
    let room = model.makes_room(record.gang, record.epoch);
    let told = told(record, transition, seen, room);
    write_row(model, job.as_ref(), record, kept.as_ref(), now, told)
}

/// The write of a placement's next row (`None` removes it) with its job's progress and status.
fn write_row(
    model: &Model,
    job: Option<&Job>,
    record: &PlacementRecord,
    next: Option<&PlacementRecord>,
    now: UnixMillis,
    told: Option<(&'static str, String)>,
) -> Option<Change> {
    let gang = record.gang;
    let key = keys::placement(gang);
    let revision = model.placement(gang)?.revision;
    let mut compares = vec![Compare::ModRevision(key.clone(), revision)];
    let mut ops = vec![match next {
        Some(row) => put(key, row.to_json()),
        None => Op::Delete { key },
    }];
    if next.is_none()
        && let Some((compare, op)) = model.history_of_end(record, now)
    {
        compares.push(compare);
        ops.push(op);
    }
    if let Some(job) = job {
        if job.progress() != model.job(gang.job)?.progress() {
            let key = keys::progress(job.uid);
            compares.push(Compare::ModRevision(key.clone(), job.progress_revision()));
            ops.push(put(key, job.progress().to_json()));
        }
        let rows = model.placements_of(gang.job).map(|row| row.record.as_ref());
        let mut rows: Vec<&PlacementRecord> = rows.filter(|row| row.gang != gang).collect();
        rows.extend(next);
        rows.sort_by_key(|row| row.gang);
        // A job that is leaving is not written to: its keys may already be gone.
        compares.push(Compare::ModRevision(job.key(Part::Spec), job.spec_revision));
        ops.push(put(
            job.key(Part::Status),
            to_json(&job_status(job, &rows, now)),
        ));
    }
    Some(Change {
        subject: Subject::Gang(gang),
        why: Operation::CommitReport,
        compares,
        ops,
        told,
    })
}

/// A status as stored.
#[must_use]
pub(crate) fn to_json(status: &impl serde::Serialize) -> Bytes {
    serde_json::to_vec(status)
        .expect("a status holds only text, numbers and lists")
        .into()
}

fn apply_effects(
    progress: &mut JobProgress,
    retry: &Retry,
    record: &PlacementRecord,
    transition: &lifecycle::Transition,
    now: UnixMillis,
    seen: Option<&Seen>,
) {
    let index = record.gang.index;
    let message = seen.map(|seen| seen.message.clone()).unwrap_or_default();
    for effect in &transition.effects {
        match effect {
            Effect::JobGangRunning { at } => {
                let started = seen.and_then(|seen| seen.started).unwrap_or(*at);
                progress.started.get_or_insert(started);
                progress.lacking.remove(&*record.cluster);
            }
            Effect::RequeueGang {
                after,
                spends_restart,
            } => {
                let closed = seen.and_then(|seen| closed_by(&seen.reason));
                if let Some(reason) = closed {
                    progress.lacks(&record.cluster, reason, message.clone(), now);
                }
                // What a person asked for waits for nobody, and what is missing or denied in one
                // cluster may be there, or allowed, in the next.
                let asked =
                    closed.is_some() || matches!(record.state, lifecycle::State::Draining(_));
                if let Some(made_room) = &record.preempted {
                    let eviction = Eviction {
                        at: now,
                        by: made_room.by.job,
                        lost: made_room.lost,
                    };
                    progress.made_room(index, eviction);
                }
                let at = if asked { UnixMillis::ZERO } else { now };
                let pause = retry.back_off.unwrap_or(PAUSE);
                let tried = progress.tried.entry(index).or_default();
                tried.again(*after, *spends_restart, at, pause);
                progress.last_failure = message.clone().into();
            }
            Effect::JobGangSucceeded { .. } => {
                progress.succeeded.insert(index);
                progress.ended = Some(seen.and_then(|seen| seen.ended).unwrap_or(now));
            }
            Effect::JobGangFailed { failure, .. } => {
                progress.failed.insert(index);
                progress.ended = Some(seen.and_then(|seen| seen.ended).unwrap_or(now));
                let why = match (&record.preempted, failure) {
                    (Some(made_room), Failure::Reclaimed) => {
                        format!("its room was taken back for {}", made_room.job)
                    }
                    (Some(_) | None, _) => message.clone(),
                };
                progress.last_failure = why.into();
            }
            // The row's next state and its removal say these.
            Effect::SendStop(_) | Effect::ReleaseRow | Effect::JobGangGone => {}
        }
    }
}

fn told(
    record: &PlacementRecord,
    transition: &lifecycle::Transition,
    seen: Option<&Seen>,
    room: Option<(&HoldRecord, &StoredVictim)>,
) -> Option<(&'static str, String)> {
    let place = format!(
        "gang {} in {}/{}",
        record.gang.index, record.cluster, record.pool
    );
    let why = seen
        .map(|seen| seen.message.as_str())
        .filter(|message| !message.is_empty());
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    if let Next::In(lifecycle::State::Draining(reason)) = transition.next
        && reason.is_for_another()
        && let Some((hold, victim)) = room
    {
        let next = victim.moves_to.as_ref();
        let next = next.map_or_else(String::new, |to| format!(", goes on in {to}"));
        let sentence = format!(
            "{place} makes room for {}, because {}: {} lost, gone within {}{next}",
            hold.job,
            victim.rule.words(),
            work(victim.lost),
            victim.deadline.since(hold.decided),
        );
        return Some(("Preempted", sentence));
    }
    match transition.next {
        Next::In(lifecycle::State::Running)
            if matches!(record.state, lifecycle::State::Draining(_)) =>
        {
            Some((
                "Spared",
                format!("{place} goes on: its room is not wanted any more"),
            ))
        }
        Next::In(lifecycle::State::Running) => Some(("Running", format!("{place} runs"))),
        Next::In(lifecycle::State::Draining(DrainReason::Deleted)) => Some((
            "Stopping",
            format!("{place} is being stopped: its job is deleted"),
        )),
        Next::In(lifecycle::State::Draining(DrainReason::Suspended)) => Some((
            "Stopping",
            format!("{place} is being stopped: its job is suspended"),
        )),
        Next::In(lifecycle::State::Draining(DrainReason::Evacuated)) => Some((
            "Stopping",
            format!("{place} is being stopped: its cluster is drained or tainted"),
        )),
        Next::In(
            lifecycle::State::Starting
            | lifecycle::State::Draining(DrainReason::Preempted | DrainReason::Reclaimed),
        ) => None,
        Next::Ended(Outcome::Succeeded) => Some(("Succeeded", format!("{place} is done"))),
        Next::Ended(Outcome::Failed) => Some(("Failed", format!("{place} failed{why}"))),
        Next::Ended(Outcome::Requeued) => Some(("Requeued", format!("{place} waits again{why}"))),
        Next::Ended(Outcome::Deleted) => Some(("Stopped", format!("{place} is gone"))),
    }
}

/// Lets a deleted job go once nothing of it is placed.
#[must_use]
pub(crate) fn settle_job(model: &Model, uid: Uid) -> Option<Change> {
    let job = model.job(uid)?;
    if !job.is_deleting() || model.placements_of(uid).next().is_some() {
        return None;
    }
    let spec = job.key(Part::Spec);
    let compares = vec![Compare::ModRevision(spec.clone(), job.spec_revision)];
    let others: Vec<String> = job
        .marks
        .finalizers
        .iter()
        .filter(|name| *name != FINALIZER)
        .cloned()
        .collect();
    if !others.is_empty() {
        // Others still hold it: taking our finalizer off is a write of the object as stored,
        // which only the API's own path does.
        return None;
    }
    let ops = vec![
        Op::Delete { key: spec },
        Op::Delete {
            key: job.key(Part::Status),
        },
        Op::Delete {
            key: keys::progress(uid),
        },
    ];
    Some(Change {
        subject: Subject::Job(uid),
        why: Operation::CommitReport,
        compares,
        ops,
        told: None,
    })
}

#[cfg(test)]
#[path = "settle_tests.rs"]
mod tests;
