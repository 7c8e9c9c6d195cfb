//! Life cycle of a placement, as a table: what an observation or a wish does to its row.
//!
//! Owns the states of a placement and what follows from each event. Never stores, sends or waits:
//! the caller carries out the effects in the txn that writes the next state.
//!
//! ```text
//!            Running            delete, suspend, evacuate
//! Starting ───────────▶ Running ───────────┐
//!    │ delete, suspend, …  │               ▼
//!    ├─────────────────────┼───────────▶ Draining(why)
//!    │ ended by itself     │ likewise      │ ended, or stopped (the proof)
//!    ▼                     ▼               ▼
//!                          Draining(Preempted) ── spared ──▶ Running
//!   row gone: Succeeded · Failed · Requeued · Deleted
//! ```
//!
//! The row, hence its GPUs, is released only by proof that nothing runs: a gang that is draining
//! still counts. An observation under another epoch than the row's changes nothing.

use meridian_api::ids::Epoch;
use meridian_api::units::UnixMillis;
use serde::{Deserialize, Serialize};

/// Why a placement is being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DrainReason {
    /// Its job is being deleted.
    Deleted,
    /// A person suspended its job; it comes back when the job is resumed.
    Suspended,
    /// A person drains its cluster; it comes back elsewhere.
    Evacuated,
    /// It makes room for another gang, and does not come back: its class is taken back so.
    Reclaimed,
    /// It makes room for another gang, and waits for its next place.
    Preempted,
}

impl DrainReason {
    /// True when it makes room for another gang, which may still be called off.
    #[must_use]
    pub const fn is_for_another(self) -> bool {
        match self {
            Self::Reclaimed | Self::Preempted => true,
            Self::Deleted | Self::Suspended | Self::Evacuated => false,
        }
    }
}

/// Where a placement stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum State {
    /// Decided; not every member runs.
    Starting,
    /// Every member has run.
    Running,
    /// Told to stop; something may still run.
    Draining(DrainReason),
}

/// What the table knows of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Its epoch.
    pub epoch: Epoch,
    /// Its state.
    pub state: State,
}

/// Why a gang ended without success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Failure {
    /// A node went away under it.
    NodeLost,
    /// It was not running in time after it was accepted, and was undone.
    PlaceTimeout,
    /// The cluster did not admit it.
    NotAdmitted,
    /// What its job depends on is not in the cluster; nothing was held.
    DependencyMissing,
    /// A rule of the cluster does not admit it; nothing is left of it there.
    Denied,
    /// It ran longer than it may.
    RuntimeExceeded,
    /// It ended with an exit code other than zero.
    Exit {
        /// Restarts that its job still allows, this one not yet counted.
        restarts_left: u32,
    },
    /// Its room was taken back, and its class does not start again by itself.
    Reclaimed,
}

/// What an agent saw of a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Step {
    /// Durable at the agent; nothing bound.
    Accepted,
    /// Every member bound.
    Bound,
    /// Every member runs.
    Running,
    /// Asked to stop; something may still run.
    Stopping,
    /// Ended by itself, well.
    Succeeded,
    /// Ended otherwise; nothing of it runs.
    Failed(Failure),
    /// Stopped; nothing of it runs.
    Stopped,
}

/// What happens to a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Event {
    /// The agent tells how far the gang is.
    Observed {
        /// Epoch it speaks of.
        epoch: Epoch,
        /// How far.
        step: Step,
    },
    /// The agent will not carry out an order, which had no side effect.
    Refused {
        /// Epoch of the order.
        epoch: Epoch,
    },
    /// A person deletes the job.
    DeleteRequested,
    /// A person suspends the job.
    SuspendRequested,
    /// A person drains the cluster.
    EvacuationRequested,
    /// It is to make room for another gang.
    RoomWanted {
        /// It waits for its next place then.
        comes_back: bool,
    },
    /// Its room is not wanted any more.
    Spared,
}

/// How a placement ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// The gang is done.
    Succeeded,
    /// The gang failed for good.
    Failed,
    /// The gang waits for its next place.
    Requeued,
    /// The gang is gone with its job.
    Deleted,
}

/// What the row becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Next {
    /// It stays, in this state.
    In(State),
    /// It goes.
    Ended(Outcome),
}

/// What the caller does, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Effect {
    /// Tell the job that the gang runs.
    JobGangRunning {
        /// When this was seen.
        at: UnixMillis,
    },
    /// Order the stop; the order stays until its proof.
    SendStop(DrainReason),
    /// Free what the row holds.
    ReleaseRow,
    /// Put the gang back in the queue with its place in it. Its next epoch is above `after`.
    RequeueGang {
        /// Epoch that has ended.
        after: Epoch,
        /// True when this uses one of the job's restarts.
        spends_restart: bool,
    },
    /// Tell the job that the gang is done.
    JobGangSucceeded {
        /// When this was seen.
        at: UnixMillis,
    },
    /// Tell the job that the gang failed for good.
    JobGangFailed {
        /// Why.
        failure: Failure,
        /// When this was seen.
        at: UnixMillis,
    },
    /// Tell the job, which is being deleted, that nothing of the gang is left.
    JobGangGone,
}

/// The next state and what follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transition {
    /// What the row becomes.
    pub next: Next,
    /// What to do; empty when nothing follows.
    pub effects: Vec<Effect>,
}

/// An event that must change nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Illegal {
    /// It speaks of another epoch than the row's.
    #[error("observation of epoch {observed} for a placement of epoch {row}")]
    Stale {
        /// Epoch of the row.
        row: Epoch,
        /// Epoch it speaks of.
        observed: Epoch,
    },
}

/// What `event` does to `placement` at `now`.
///
/// Infrastructure that failed (a node, the admission, the time to place) costs the job nothing:
/// the gang goes back to the queue. A bad exit code uses one of the job's restarts, and without
/// one left the gang has failed, as it has when it ran longer than it may. A stop ends a gang with
/// any exit code, so one that ends while it is being stopped goes by why it was stopped, unless
/// it was suspended and succeeded first.
pub fn step(placement: &Placement, event: Event, now: UnixMillis) -> Result<Transition, Illegal> {
    let (epoch, state) = (placement.epoch, placement.state);
    match event {
        Event::DeleteRequested => Ok(wish(state, DrainReason::Deleted)),
        Event::SuspendRequested => Ok(wish(state, DrainReason::Suspended)),
        Event::EvacuationRequested => Ok(wish(state, DrainReason::Evacuated)),
        Event::RoomWanted { comes_back: true } => Ok(wish(state, DrainReason::Preempted)),
        Event::RoomWanted { comes_back: false } => Ok(wish(state, DrainReason::Reclaimed)),
        Event::Spared => Ok(spared(state)),
        Event::Observed {
            epoch: observed, ..
        }
        | Event::Refused { epoch: observed }
            if observed != epoch =>
        {
            Err(Illegal::Stale {
                row: epoch,
                observed,
            })
        }
        Event::Refused { .. } => Ok(refused(state, epoch)),
        Event::Observed { step, .. } => Ok(observed(state, step, epoch, now)),
    }
}

/// The order to go is called off, where it was for another gang's sake. Its agent lets it run on,
/// or has stopped it already and says so.
fn spared(state: State) -> Transition {
    match state {
        State::Draining(reason) if reason.is_for_another() => moves(State::Running, Vec::new()),
        State::Starting | State::Running | State::Draining(_) => stays(state),
    }
}

/// Somebody wants it gone, aside or elsewhere. Each outdoes those after it, never the other way
/// round: the order of the reasons' declaration.
fn wish(state: State, reason: DrainReason) -> Transition {
    match (state, reason) {
        (State::Starting | State::Running, _) => {
            moves(State::Draining(reason), vec![Effect::SendStop(reason)])
        }
        (State::Draining(present), _) if reason < present => {
            moves(State::Draining(reason), Vec::new())
        }
        (State::Draining(_), _) => stays(state),
    }
}

/// Only a gang that has not run is undone by a refusal; a running one has proved that its order
/// was carried out, and a stop stays ordered until its proof.
fn refused(state: State, epoch: Epoch) -> Transition {
    match state {
        State::Starting => requeued(epoch, false),
        State::Running | State::Draining(_) => stays(state),
    }
}

fn observed(state: State, step: Step, epoch: Epoch, now: UnixMillis) -> Transition {
    match (state, step) {
        (State::Starting, Step::Running) => {
            moves(State::Running, vec![Effect::JobGangRunning { at: now }])
        }
        // A report that arrives late says less than the row knows.
        (_, Step::Accepted | Step::Bound | Step::Running | Step::Stopping) => stays(state),
        (
            State::Draining(DrainReason::Deleted),
            Step::Succeeded | Step::Failed(_) | Step::Stopped,
        ) => ended(Outcome::Deleted, Effect::JobGangGone),
        (_, Step::Succeeded) => ended(Outcome::Succeeded, Effect::JobGangSucceeded { at: now }),
        (State::Draining(DrainReason::Reclaimed), Step::Failed(_) | Step::Stopped) => {
            let failure = Failure::Reclaimed;
            ended(Outcome::Failed, Effect::JobGangFailed { failure, at: now })
        }
        (
            State::Draining(
                DrainReason::Suspended | DrainReason::Evacuated | DrainReason::Preempted,
            ),
            Step::Failed(_),
        )
        | (_, Step::Stopped) => requeued(epoch, false),
        (State::Starting | State::Running, Step::Failed(failure)) => failed(failure, epoch, now),
    }
}

fn failed(failure: Failure, epoch: Epoch, now: UnixMillis) -> Transition {
    match failure {
        Failure::NodeLost
        | Failure::PlaceTimeout
        | Failure::NotAdmitted
        | Failure::DependencyMissing
        | Failure::Denied => requeued(epoch, false),
        Failure::Exit { restarts_left: 1.. } => requeued(epoch, true),
        Failure::Exit { restarts_left: 0 } | Failure::RuntimeExceeded | Failure::Reclaimed => {
            ended(Outcome::Failed, Effect::JobGangFailed { failure, at: now })
        }
    }
}

fn stays(state: State) -> Transition {
    moves(state, Vec::new())
}

fn moves(state: State, effects: Vec<Effect>) -> Transition {
    Transition {
        next: Next::In(state),
        effects,
    }
}

fn requeued(after: Epoch, spends_restart: bool) -> Transition {
    ended(
        Outcome::Requeued,
        Effect::RequeueGang {
            after,
            spends_restart,
        },
    )
}

fn ended(outcome: Outcome, tell: Effect) -> Transition {
    Transition {
        next: Next::Ended(outcome),
        effects: vec![Effect::ReleaseRow, tell],
    }
}
