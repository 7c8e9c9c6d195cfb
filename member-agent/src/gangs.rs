//! One gang at the agent: what is wanted, what is seen, and therefore what to do.
//!
//! Owns the durable record of a gang and the pure decision `step`. The same wish and the same
//! sight give the same turn, so anything may be repeated. Never calls the cluster, the disk or
//! the hub, and never reads a clock.
//!
//! ```text
//!   RUN ─▶ Waiting ─bind─▶ Binding ─seen─▶ Live ──all ended──────────────┐
//!             ▲  turned away by a node        │ verdict (failed, late,   ▼
//!             └────────── PlaceAgain ◀────────┤ too long, STOP)        ended ─told─▶ forgotten
//!                                             └─▶ undo: stop, proof ─────┘
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use meridian_api::ids::{Epoch, GangId};
use meridian_api::units::{Millis, UnixMillis};
use meridian_proto::v1::GangStep;
use serde::{Deserialize, Serialize};

use crate::backend::{GangKey, GangSeen, PodPhase, PodSeen, Success};
use crate::deadlines::{next_deadline, placed_by};
use crate::making_room::{Leaving, may_get_smaller, must_leave};
use crate::orders::RunOrder;

/// Times that a gang is placed under one epoch before it is given back to the hub: a node that
/// turned it away once may have lost a race, twice says that the agent's view is wrong.
pub(crate) const MAX_ATTEMPTS: u32 = 2;

/// What the hub wants of a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Desired {
    /// It runs.
    Run,
    /// It is stopped, proved, and then forgotten.
    Stop,
    /// Nobody said: it was found in the cluster. It is listed and never stopped.
    Adopted,
}

/// Why a gang failed; the words are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Failure {
    /// A node or a device went away under it.
    NodeLost,
    /// Not running in time after it was accepted.
    PlaceTimeout,
    /// Nodes turned it away, or its user code could not be started.
    PlacementRefused,
    /// It ran longer than it may.
    RuntimeExceeded,
    /// Its user code ended with an exit code other than zero.
    ExitCode,
    /// Somebody else removed its pods, or the agent was cut short while it undid them.
    Interrupted,
    /// The cluster refuses its pods as they are written.
    Misconfigured,
    /// A rule of the cluster does not admit its pods.
    AdmissionDenied,
    /// The cluster lacks something that the job names.
    DependencyMissing,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// How a gang ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// By itself, well.
    Succeeded,
    /// By itself or undone.
    Failed(Failure),
    /// On order.
    Stopped,
}

/// The end that a gang is led to, and what to tell of it. Durable before anything is stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Verdict {
    /// How it ends.
    pub(crate) end: End,
    /// Exit code of the first pod that failed.
    #[serde(default)]
    pub(crate) exit_code: i32,
    /// Words for a person.
    #[serde(default)]
    pub(crate) message: String,
    /// When user code first started.
    #[serde(default)]
    pub(crate) started: Option<UnixMillis>,
}

/// What must survive a crash, per gang. Everything else is in the cluster or comes from the hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    /// Which gang.
    pub(crate) gang: GangId,
    /// The highest epoch ever seen of it.
    pub(crate) epoch: Epoch,
    /// What is wanted.
    pub(crate) desired: Desired,
    /// When the epoch was accepted, by this machine's wall clock.
    pub(crate) accepted: UnixMillis,
    /// From then to running.
    pub(crate) place_timeout: Millis,
    /// From SIGTERM to SIGKILL.
    pub(crate) grace: Millis,
    /// Its pool.
    pub(crate) pool: String,
    /// The end it is led to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) verdict: Option<Verdict>,
    /// When that end was proved: nothing of it runs, and nothing of this epoch ever will.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ended: Option<UnixMillis>,
    /// It makes room for others, as soon as it has saved its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) leave: Option<Leaving>,
}

impl Record {
    /// The gang and epoch of this record.
    #[must_use]
    pub(crate) fn key(&self) -> GangKey {
        GangKey {
            gang: self.gang,
            epoch: self.epoch,
        }
    }
}

/// Where a gang without a verdict is. In memory only: after a restart it follows from what the
/// cluster shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// It needs a place.
    Waiting,
    /// A bind was sent; the gang has not been seen yet.
    Binding,
    /// It has been seen.
    Live,
    /// It is being undone, to be placed on other nodes.
    PlaceAgain,
    /// It lost members with a node: others take their places, or it gets smaller.
    Mending,
}

/// One gang in the agent's memory.
#[derive(Clone, Debug)]
pub(crate) struct Gang {
    /// The durable part.
    pub(crate) record: Record,
    /// The order; `None` after a restart until the hub repeats it.
    pub(crate) order: Option<Arc<RunOrder>>,
    /// Where it is.
    pub(crate) phase: Phase,
    /// The step under its epoch.
    pub(crate) attempt: u32,
    /// Nodes that turned it away under its epoch, and their kubelets' words.
    pub(crate) avoid: BTreeMap<String, String>,
    /// Members in the place of lost ones must run by then. In memory only: after a restart the
    /// time to place counts from the acceptance again.
    pub(crate) mended_by: Option<UnixMillis>,
    /// The order to go on with fewer pods than it has.
    pub(crate) smaller: Option<Arc<RunOrder>>,
}

/// What is known of a gang at the moment of a decision.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sight<'a> {
    /// The gang under its epoch, in the cluster.
    pub(crate) own: Option<&'a GangSeen>,
    /// The same gang under older epochs.
    pub(crate) older: Vec<&'a GangSeen>,
    /// A request about it is under way; its answer comes first.
    pub(crate) in_flight: bool,
    /// The cluster took a stop of it and has not answered `Gone` since.
    pub(crate) asked: bool,
    /// The cluster said `Gone` after the newest bind.
    pub(crate) gone: bool,
    /// The hub has been shown how it ended.
    pub(crate) told: bool,
}

/// What to do for a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Find nodes for it and bind it there.
    Place,
    /// Let it go on with others for the members that it lost, or without them.
    Mend,
    /// Let it go on with fewer members, as ordered.
    GetSmaller,
    /// Stop this epoch of it.
    Stop(GangKey, Millis),
    /// Drop its record.
    Forget,
}

/// The decision for one gang. A changed verdict or end is made durable before the actions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Where it is next.
    pub(crate) phase: Phase,
    /// The step that its next bind has.
    pub(crate) attempt: u32,
    /// The end it is led to.
    pub(crate) verdict: Option<Verdict>,
    /// When that was proved.
    pub(crate) ended: Option<UnixMillis>,
    /// What to do.
    pub(crate) actions: Vec<Action>,
    /// When to look again though nothing happens.
    pub(crate) wake: Option<UnixMillis>,
}

/// What to do about `gang`, seen like this, at `now`.
#[must_use]
pub(crate) fn step(gang: &Gang, sight: &Sight<'_>, now: UnixMillis) -> Turn {
    let mut turn = Turn {
        phase: gang.phase,
        attempt: gang.attempt,
        verdict: gang.record.verdict.clone(),
        ended: gang.record.ended,
        actions: Vec::new(),
        wake: None,
    };
    stop_older(gang, sight, &mut turn);
    if turn.ended.is_some() {
        forget(gang, sight, &mut turn);
        return turn;
    }
    if let Some(own) = sight.own {
        meet(gang.record.desired, own, &mut turn);
    }
    if turn.verdict.is_none() && may_mend(gang, turn.phase, sight) {
        turn.phase = Phase::Mending;
        turn.attempt = turn.attempt.saturating_add(1);
        turn.actions.push(Action::Mend);
    } else if turn.verdict.is_none() && may_get_smaller(gang, turn.phase, sight) {
        turn.phase = Phase::Mending;
        turn.attempt = turn.attempt.saturating_add(1);
        turn.actions.push(Action::GetSmaller);
    }
    if turn.verdict.is_none() {
        turn.verdict = judge(gang, turn.phase, sight, now);
    }
    if turn.verdict.is_some() {
        undo(gang, sight, now, &mut turn);
        return turn;
    }
    if gang.record.desired == Desired::Run {
        pursue(gang, sight, &mut turn);
    }
    turn.wake = next_deadline(gang, sight.own);
    turn
}

/// Takes in that the gang is there. A bind that another life of the agent left half done is
/// undone and made again; one of this life goes on.
fn meet(desired: Desired, own: &GangSeen, turn: &mut Turn) {
    turn.phase = match turn.phase {
        Phase::Waiting if desired == Desired::Run && !own.complete => Phase::PlaceAgain,
        Phase::Binding if !own.complete => return,
        Phase::Mending if own.attempt < turn.attempt || !own.complete => return,
        Phase::Waiting | Phase::Binding | Phase::Mending => Phase::Live,
        Phase::Live | Phase::PlaceAgain => return,
    };
    turn.attempt = own.attempt;
}

/// Brings a wanted gang one step closer to running.
fn pursue(gang: &Gang, sight: &Sight<'_>, turn: &mut Turn) {
    match turn.phase {
        Phase::Waiting => {
            if sight.older.is_empty() && !sight.in_flight && gang.order.is_some() {
                turn.actions.push(Action::Place);
            }
        }
        Phase::Binding | Phase::Mending => {}
        Phase::Live => {
            if sight.own.is_some_and(|own| rejection(own).is_some()) {
                turn.phase = Phase::PlaceAgain;
                place_again(gang, sight, turn);
            }
        }
        Phase::PlaceAgain => place_again(gang, sight, turn),
    }
}

/// True when a node took members with it and the order lets the gang go on without them. Whether
/// those still run somewhere does not matter: nothing takes their ranks under this epoch before the
/// cluster has said that they ended (see `mend`).
fn may_mend(gang: &Gang, phase: Phase, sight: &Sight<'_>) -> bool {
    let (Some(own), Some(order)) = (sight.own, &gang.order) else {
        return false;
    };
    let elastic = |pod: &PodSeen| {
        let mut roles = order.shape.roles.iter();
        roles.any(|role| role.name == pod.role && role.min < role.max)
    };
    let mut lost = own.members().filter(|pod| is_lost(pod)).peekable();
    phase == Phase::Live
        && gang.record.desired == Desired::Run
        && !sight.in_flight
        && own.complete
        && !own.stopping
        && lost.peek().is_some()
        && lost.all(elastic)
        && own.members().all(|pod| is_lost(pod) || !is_failed(pod))
}

/// True when its node, or a device there, went away under it.
#[must_use]
pub(crate) fn is_lost(pod: &PodSeen) -> bool {
    match &pod.phase {
        PodPhase::Broken { .. } => true,
        PodPhase::Failed { reason, .. } => is_machine(reason),
        PodPhase::Pending
        | PodPhase::Rejected { .. }
        | PodPhase::Bound
        | PodPhase::Running
        | PodPhase::Succeeded => false,
    }
}

pub(crate) fn is_failed(pod: &PodSeen) -> bool {
    matches!(
        pod.phase,
        PodPhase::Failed { .. } | PodPhase::Rejected { .. }
    )
}

/// True for the words of a machine's end.
fn is_machine(reason: &str) -> bool {
    matches!(reason, "NodeLost" | "NodeShutdown" | "DeviceFailed")
}

/// An older epoch must be dead before anything of this one starts, and before this one is said
/// to have ended.
fn stop_older(gang: &Gang, sight: &Sight<'_>, turn: &mut Turn) {
    // A found gang that nobody gave an order about is left as it is, whatever its epochs.
    if gang.record.desired == Desired::Adopted {
        return;
    }
    // That its end was marked does not say that its pods were asked: whoever marked it may have
    // died in between. Who asks twice changes nothing.
    for older in &sight.older {
        turn.actions
            .push(Action::Stop(older.key, older.terms.grace));
    }
}

fn forget(gang: &Gang, sight: &Sight<'_>, turn: &mut Turn) {
    if gang.record.desired != Desired::Stop || !sight.told || sight.in_flight {
        return;
    }
    match sight.own {
        Some(_) if sight.asked => {}
        Some(_) => turn
            .actions
            .push(Action::Stop(gang.record.key(), gang.record.grace)),
        None if sight.older.is_empty() => turn.actions.push(Action::Forget),
        None => {}
    }
}

/// Leads to the end: nothing of this epoch, or an older one, may be left that can run.
fn undo(gang: &Gang, sight: &Sight<'_>, now: UnixMillis, turn: &mut Turn) {
    if sight.in_flight {
        return;
    }
    let adopted = gang.record.desired == Desired::Adopted;
    let over = match sight.own {
        Some(own) => over(own),
        None => sight.gone,
    };
    if over && (adopted || sight.older.is_empty()) {
        let last = sight
            .own
            .and_then(|own| own.pods.iter().filter_map(|pod| pod.ended).max());
        turn.ended = Some(last.unwrap_or(now));
        // The proof may be what a told hub waited for to let it go.
        return;
    }
    if !over && !sight.asked {
        turn.actions
            .push(Action::Stop(gang.record.key(), gang.record.grace));
    }
}

fn place_again(gang: &Gang, sight: &Sight<'_>, turn: &mut Turn) {
    if sight.in_flight {
        return;
    }
    if sight.own.is_none() && sight.gone {
        turn.phase = Phase::Waiting;
        turn.attempt = gang.attempt.saturating_add(1);
        if sight.older.is_empty() {
            turn.actions.push(Action::Place);
        }
    } else if !sight.asked {
        turn.actions
            .push(Action::Stop(gang.record.key(), gang.record.grace));
    }
}

/// True when no pod can run any more.
fn over(own: &GangSeen) -> bool {
    own.pods.iter().all(|pod| pod.phase.ended())
}

fn rejection(own: &GangSeen) -> Option<&PodSeen> {
    own.pods.iter().find(|pod| rejected(pod))
}

/// True when its node turned it away.
fn rejected(pod: &PodSeen) -> bool {
    matches!(pod.phase, PodPhase::Rejected { .. })
}

/// The node that turned a pod away, and its kubelet's word.
pub(crate) fn turned_away(pod: &PodSeen) -> Option<(String, String)> {
    match &pod.phase {
        PodPhase::Rejected { reason } => Some((pod.node.clone(), reason.clone())),
        PodPhase::Pending
        | PodPhase::Bound
        | PodPhase::Running
        | PodPhase::Broken { .. }
        | PodPhase::Succeeded
        | PodPhase::Failed { .. } => None,
    }
}

/// When user code first started.
#[must_use]
pub(crate) fn started(own: &GangSeen) -> Option<UnixMillis> {
    own.pods.iter().filter_map(|pod| pod.started).min()
}

/// True when it has done what it is for.
fn succeeded(own: &GangSeen) -> bool {
    let well = |pod: &PodSeen| pod.phase == PodPhase::Succeeded;
    match &own.terms.success {
        Success::All => own.members().next().is_some() && own.members().all(well),
        Success::Leader { role } => {
            let mut leaders = own
                .pods
                .iter()
                .filter(|pod| pod.role == *role && pod.rank == 0);
            leaders.any(well)
        }
    }
}

/// True when every member runs, or has run and ended well.
pub(crate) fn running(own: &GangSeen) -> bool {
    let runs = |pod: &PodSeen| matches!(pod.phase, PodPhase::Running | PodPhase::Succeeded);
    own.members().next().is_some() && own.members().all(runs)
}

/// Whether the gang must end, and how.
fn judge(gang: &Gang, phase: Phase, sight: &Sight<'_>, now: UnixMillis) -> Option<Verdict> {
    let record = &gang.record;
    let started = sight.own.and_then(started);
    let verdict = |end, exit_code, message: String| Verdict {
        end,
        exit_code,
        message,
        started,
    };
    let failed = |failure, message| Some(verdict(End::Failed(failure), 0, message));
    if sight.own.is_some_and(succeeded) {
        return Some(verdict(End::Succeeded, 0, String::new()));
    }
    if must_leave(record, sight, now) {
        return Some(verdict(End::Stopped, 0, String::new()));
    }
    match record.desired {
        Desired::Stop => return Some(verdict(End::Stopped, 0, String::new())),
        Desired::Adopted if !sight.own.is_some_and(over) => return None,
        Desired::Adopted | Desired::Run => {}
    }
    // How pods end that are being undone says nothing of the gang.
    let undone = phase == Phase::PlaceAgain && sight.own.is_some_and(|own| own.stopping);
    if let Some(own) = sight.own.filter(|_| phase != Phase::Mending && !undone) {
        if let Some(verdict) = failed_pod(own, gang.attempt.max(own.attempt)) {
            return Some(Verdict { started, ..verdict });
        }
        if own.stopping && phase != Phase::PlaceAgain && rejection(own).is_none() {
            return failed(
                Failure::Interrupted,
                "its pods are being removed".to_owned(),
            );
        }
        if let (Some(limit), Some(started)) = (own.terms.max_runtime, started)
            && now >= started.after(limit)
        {
            return failed(
                Failure::RuntimeExceeded,
                format!("still running after {limit}"),
            );
        }
    } else if phase == Phase::Live && sight.own.is_none() && !sight.in_flight {
        return failed(Failure::Interrupted, "its pods were removed".to_owned());
    }
    let placing = phase != Phase::Mending && !sight.own.is_some_and(running);
    if placing && now >= placed_by(gang) {
        let limit = record.place_timeout;
        return failed(
            Failure::PlaceTimeout,
            format!("not every member ran within {limit}"),
        );
    }
    None
}

/// The verdict that a pod's end calls for.
fn failed_pod(own: &GangSeen, attempt: u32) -> Option<Verdict> {
    let verdict = |failure, exit_code, pod: &PodSeen, reason: &str| {
        let code = match exit_code {
            0 => String::new(),
            code => format!(", exit code {code}"),
        };
        Verdict {
            end: End::Failed(failure),
            exit_code,
            message: format!("pod {} on node {}: {reason}{code}", pod.name, pod.node),
            started: None,
        }
    };
    // The earliest failure is the cause; what fell after it is the consequence.
    let failed = own
        .members()
        .filter(|pod| matches!(pod.phase, PodPhase::Failed { .. }));
    if let Some(pod) = failed.min_by_key(|pod| pod.ended)
        && let PodPhase::Failed { exit_code, reason } = &pod.phase
        && !(own.stopping && rejection(own).is_some())
    {
        let failure = match (reason.as_str(), pod.started) {
            (machine, _) if is_machine(machine) => Failure::NodeLost,
            ("Removed" | "Evicted", _) => Failure::Interrupted,
            (_, None) => Failure::PlacementRefused,
            (_, Some(_)) => Failure::ExitCode,
        };
        return Some(verdict(failure, *exit_code, pod, reason));
    }
    let broken = own.members().find_map(|pod| match &pod.phase {
        PodPhase::Broken { reason } => Some((pod, reason)),
        PodPhase::Pending
        | PodPhase::Rejected { .. }
        | PodPhase::Bound
        | PodPhase::Running
        | PodPhase::Succeeded
        | PodPhase::Failed { .. } => None,
    });
    if let Some((pod, reason)) = broken {
        return Some(verdict(Failure::NodeLost, 0, pod, reason));
    }
    let pod = rejection(own).filter(|_| attempt + 1 >= MAX_ATTEMPTS)?;
    let PodPhase::Rejected { reason } = &pod.phase else {
        return None;
    };
    Some(verdict(Failure::PlacementRefused, 0, pod, reason))
}

/// The step that the hub is told.
#[must_use]
pub(crate) fn wire_step(gang: &Gang, own: Option<&GangSeen>) -> GangStep {
    if let (Some(_), Some(verdict)) = (gang.record.ended, &gang.record.verdict) {
        return match verdict.end {
            End::Succeeded => GangStep::Succeeded,
            End::Failed(_) => GangStep::Failed,
            End::Stopped => GangStep::Stopped,
        };
    }
    if gang.record.verdict.is_some() {
        return GangStep::Stopping;
    }
    match own {
        Some(_) if gang.phase == Phase::PlaceAgain => GangStep::Accepted,
        Some(own) if running(own) => GangStep::Running,
        // A found gang runs until all of it has ended, whatever became of some members.
        Some(own) if gang.record.desired == Desired::Adopted && started(own).is_some() => {
            GangStep::Running
        }
        Some(own) if own.pods.iter().all(|pod| pod.phase.admitted()) => GangStep::Bound,
        Some(_) | None => GangStep::Accepted,
    }
}

#[cfg(test)]
#[path = "gangs_tests.rs"]
mod tests;
