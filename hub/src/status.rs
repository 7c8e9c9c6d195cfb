//! The status of a job, computed from its placements and its progress.
//!
//! Owns what `status` of a `FederatedJob` says. Pure; the same rows give the same status. Why a
//! job waits is not stored here: reads add it (see `explanations`).

use std::collections::BTreeSet;

use meridian_api::conditions;
use meridian_api::kinds::federated_job::FederatedJobStatus;
use meridian_api::kinds::federated_job::status::{
    ADMITTED, COMPLETE, FAILED, FINISHES_IN_TIME, GangCounts, GangStatus, MAX_GANGS_SHOWN, PLACED,
    Phase, QUOTA_RESERVED,
};
use meridian_api::meta::{Condition, ConditionStatus};
use meridian_api::quantity::{GpuQuantity, Money, Span, Time};
use meridian_api::units::{MilliGpus, Millis, UnixMillis};
use meridian_policies::lifecycle::State;
use meridian_policies::preempt::words::work;

use crate::model::{Job, Told};
use crate::placement::{PlacementRecord, Preempted};

/// What is so with the job at `now`.
#[must_use]
pub(crate) fn job_status(
    job: &Job,
    placements: &[&PlacementRecord],
    now: UnixMillis,
) -> FederatedJobStatus {
    let counts = counts(job, placements);
    let phase = if job.is_recurring() {
        Phase::Scheduled
    } else {
        phase(&counts)
    };
    let held = placements
        .iter()
        .fold(MilliGpus::ZERO, |sum, row| sum.saturating_add(row.gpus));
    let asked = || job.total_gpus().unwrap_or(MilliGpus::ZERO);
    let progress = job.progress();
    let made_room = placements.iter().find_map(|row| row.preempted.as_ref());
    let old = job.status();
    let mut status = FederatedJobStatus {
        observed_generation: job.marks.generation,
        phase,
        reason: reason(job, phase, made_room.is_some()),
        message: match (phase, made_room) {
            (Phase::Failed, _) => progress.last_failure.to_string(),
            (_, Some(made_room)) => preempted(made_room),
            (_, None) => String::new(),
        },
        cluster: text(placements.iter().map(|row| &*row.cluster)),
        flavor: text(placements.iter().map(|row| &*row.flavor)),
        gpus: GpuQuantity(if placements.is_empty() { asked() } else { held }),
        last_scheduled: progress.last_scheduled.map(Time),
        start_time: progress.started.map(Time),
        completion_time: progress.ended.filter(|_| phase.is_final()).map(Time),
        counts,
        gangs: gangs(job, placements),
        conditions: old.map(Told::conditions).unwrap_or_default(),
        ..FederatedJobStatus::default()
    };
    if phase.is_final()
        && let Some(old) = old
    {
        // Where it ran stays readable after it is gone from there.
        old.cluster().clone_into(&mut status.cluster);
        old.flavor().clone_into(&mut status.flavor);
    }
    set_conditions(&mut status, job, now);
    status
}

fn counts(job: &Job, placements: &[&PlacementRecord]) -> GangCounts {
    let mut counts = GangCounts {
        succeeded: job.progress().succeeded.len(),
        failed: job.progress().failed.len(),
        ..GangCounts::default()
    };
    for row in placements {
        match row.state {
            State::Starting => counts.starting += 1,
            State::Running => counts.running += 1,
            State::Draining(_) => counts.stopping += 1,
        }
    }
    let known = [
        counts.succeeded,
        counts.failed,
        counts.starting,
        counts.running,
        counts.stopping,
    ];
    counts.waiting = known
        .iter()
        .fold(job.gang_count(), |left, some| left.saturating_sub(*some));
    counts
}

fn phase(counts: &GangCounts) -> Phase {
    if counts.running > 0 {
        Phase::Running
    } else if counts.starting > 0 {
        Phase::Starting
    } else if counts.stopping > 0 {
        Phase::Stopping
    } else if counts.waiting > 0 {
        Phase::Pending
    } else if counts.failed > 0 {
        Phase::Failed
    } else {
        Phase::Succeeded
    }
}

/// For whom a gang goes, by which rule, and what is lost.
fn preempted(made_room: &Preempted) -> String {
    format!(
        "makes room for {}, because {}: {} lost",
        made_room.job,
        made_room.rule.words(),
        work(made_room.lost),
    )
}

fn reason(job: &Job, phase: Phase, makes_room: bool) -> String {
    let word = match phase {
        Phase::Stopping | Phase::Running | Phase::Starting if makes_room => "Preempted",
        Phase::Pending | Phase::Scheduled if job.spec().suspend => "Suspended",
        Phase::Pending => "WaitingAgain",
        Phase::Stopping if job.is_deleting() => "Deleted",
        Phase::Stopping => "Suspended",
        Phase::Failed => "GangFailed",
        Phase::Scheduled | Phase::Starting | Phase::Running | Phase::Succeeded => "",
    };
    word.to_owned()
}

/// Distinct words, sorted, as one text.
fn text<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect::<Vec<_>>()
        .join(",")
}

fn gangs(job: &Job, placements: &[&PlacementRecord]) -> Vec<GangStatus> {
    let shown = placements.iter().take(MAX_GANGS_SHOWN);
    let status = |row: &&PlacementRecord| GangStatus {
        index: row.gang.index,
        state: match row.state {
            State::Starting => Phase::Starting,
            State::Running => Phase::Running,
            State::Draining(_) => Phase::Stopping,
        },
        cluster: Some(row.cluster.to_string()),
        pool: Some(row.pool.to_string()),
        epoch: Some(row.epoch),
        pods: row
            .roles
            .iter()
            .fold(0, |sum, role| sum.saturating_add(role.pods)),
        gpus: GpuQuantity(row.gpus),
        since: Some(Time(row.started.unwrap_or(row.decided))),
        restarts: job
            .progress()
            .tried
            .get(&row.gang.index)
            .map_or(0, |tried| tried.starts),
        message: String::new(),
        group: row.chosen.as_ref().and_then(|chosen| chosen.group.clone()),
        expected_cost: row.chosen.as_ref().map(|chosen| Money(chosen.bill.total())),
        expected_time: row.chosen.as_ref().map(|chosen| Span(chosen.bill.time)),
    };
    shown.map(status).collect()
}

fn set_conditions(status: &mut FederatedJobStatus, job: &Job, now: UnixMillis) {
    let generation = job.marks.generation;
    let counts = status.counts;
    let placed = counts.waiting == 0;
    let over = status.phase.is_final();
    let (message, ended) = (status.message.clone(), status.completion_time);
    let mut set = |kind: &str, holds: bool, reason: &str, message: &str| {
        let condition = Condition {
            kind: kind.to_owned(),
            status: if holds {
                ConditionStatus::True
            } else {
                ConditionStatus::False
            },
            reason: reason.to_owned(),
            message: message.to_owned(),
            observed_generation: generation,
            last_transition_time: None,
        };
        conditions::set(&mut status.conditions, condition, now);
    };
    set(ADMITTED, true, "Admitted", "");
    set(
        QUOTA_RESERVED,
        placed && !over,
        if over { "Released" } else { "Decided" },
        "",
    );
    let waiting = format!("{} gangs wait for a place", counts.waiting);
    let not_placed = if over { "Ended" } else { "Waiting" };
    if placed && !over {
        set(PLACED, true, "EveryGangPlaced", "");
    } else {
        set(PLACED, false, not_placed, if over { "" } else { &waiting });
    }
    let complete = over && counts.failed == 0;
    set(
        COMPLETE,
        complete,
        if complete {
            "EveryGangSucceeded"
        } else {
            "NotComplete"
        },
        "",
    );
    let failed = over && counts.failed > 0;
    set(
        FAILED,
        failed,
        if failed { "GangFailed" } else { "NotFailed" },
        &message,
    );
    // While it is not over, reads say what is expected (see `deadlines`).
    if let (Some(finish_by), Some(ended)) = (job.spec().finish_by, ended) {
        let late = ended.0.since(finish_by.0);
        let message = format!("ended {} after finishBy ({finish_by})", Span(late));
        match late {
            Millis::ZERO => set(FINISHES_IN_TIME, true, "FinishedInTime", ""),
            _ => set(FINISHES_IN_TIME, false, "FinishedLate", &message),
        }
    }
}
