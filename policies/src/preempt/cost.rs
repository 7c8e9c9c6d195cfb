//! What a victim costs: the work that is lost, and what starting it again takes.
//!
//! Owns the formula: GPU-seconds since the last checkpoint x worth + restart cost, in integers.
//! Never says who may be a victim.

use meridian_api::kinds::workload_class::Preemption as Manner;
use meridian_api::units::{MilliGpus, Millis, UnixMillis};

use crate::choice::cost::RESTART;
use crate::model::{Held, Snapshot, Stage};

/// An elastic job that goes on smaller re-forms its ring: the pods that go are charged this.
const RESIZE: Millis = Millis::seconds(30);

/// Work of so many GPUs of that worth (in thousandths of the reference card) in that time:
/// thousandths of a second of the reference card.
pub(crate) fn work(gpus: MilliGpus, worth: u64, time: Millis) -> u64 {
    let work = u128::from(gpus.0) * u128::from(worth) / 1000 * u128::from(time.0) / 1000;
    u64::try_from(work).unwrap_or(u64::MAX)
}

/// What a placement loses when it is stopped now, and what that costs in all.
pub(crate) fn of_eviction(snapshot: &Snapshot, held: &Held) -> (u64, u64) {
    let worth = worth(snapshot, held);
    let standing = &held.standing;
    let since = |at: UnixMillis| {
        snapshot
            .now
            .since(standing.saved.map_or(at, |it| it.max(at)))
    };
    let (lost, restart) = match standing.stage {
        Stage::Draining => (Millis::ZERO, Millis::ZERO),
        // It has not begun: only its start is lost.
        Stage::Starting => (Millis::ZERO, RESTART),
        Stage::Running => (since(standing.started.unwrap_or(held.since)), RESTART),
    };
    let lost = work(held.resources.gpus, worth, lost);
    let restart = work(held.resources.gpus, worth, restart);
    (lost, lost.saturating_add(restart))
}

/// What a placement loses that goes on elsewhere at once, and what that costs in all. One that is
/// asked to save its work before it goes, and has saved some, loses no more than what it does
/// within its notice.
pub(crate) fn of_move(snapshot: &Snapshot, held: &Held) -> (u64, u64) {
    let (lost, cost) = of_eviction(snapshot, held);
    let rule = snapshot.classes.get(held.class.index());
    let rule = rule.map(|class| class.rule);
    let asked = rule.filter(|rule| rule.how == Manner::CheckpointThenRequeue);
    let Some(asked) = asked.filter(|_| held.standing.saved.is_some()) else {
        return (lost, cost);
    };
    let within_notice = work(held.resources.gpus, worth(snapshot, held), asked.notice);
    let restart = cost.saturating_sub(lost);
    let lost = lost.min(within_notice);
    (lost, lost.saturating_add(restart))
}

/// What it costs that `gpus` of a placement go, and the rest goes on.
pub(crate) fn of_shrinking(snapshot: &Snapshot, held: &Held, gpus: MilliGpus) -> u64 {
    work(gpus, worth(snapshot, held), RESIZE)
}

fn worth(snapshot: &Snapshot, held: &Held) -> u64 {
    let flavor = snapshot.flavors.get(held.flavor.index());
    flavor.map_or(1000, |flavor| flavor.worth)
}
