//! The queue: who is tried first.
//!
//! Owns the order within a round, apart from "tenants under nominal before borrowers", which
//! `decide` applies because it moves with each placement. Never looks at room.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::model::{ClassIx, Snapshot, TenantIx, Waiting, WaitingIx};

/// All that waits, first to be tried first: class priority, the tenant's share, then `finishBy`
/// with the least slack, age, and id. A tenant's priorities reorder its own gangs of a class
/// among the places that these have, so that no tenant gains on another by them.
#[must_use]
pub fn queue(snapshot: &Snapshot) -> Vec<WaitingIx> {
    let all = 0..u32::try_from(snapshot.waiting.len()).unwrap_or(u32::MAX);
    let mut queue: Vec<WaitingIx> = all.map(WaitingIx).collect();
    let waiting = |ix: &WaitingIx| &snapshot.waiting[ix.index()];
    queue.sort_by_cached_key(|ix| {
        let gang = waiting(ix);
        let class = snapshot
            .classes
            .get(gang.class.index())
            .map_or(i32::MIN, |c| c.priority);
        (
            Reverse(class),
            share(snapshot, gang.tenant),
            urgency(snapshot, gang),
        )
    });
    let mut own: BTreeMap<(ClassIx, TenantIx), Vec<WaitingIx>> = BTreeMap::new();
    for ix in &queue {
        let gang = waiting(ix);
        own.entry((gang.class, gang.tenant)).or_default().push(*ix);
    }
    for gangs in own.values_mut() {
        // Stable: equal priorities keep their order. Reversed, so that `pop` gives the first.
        gangs.sort_by_key(|ix| Reverse(waiting(ix).priority));
        gangs.reverse();
    }
    for place in &mut queue {
        let gang = waiting(place);
        if let Some(first) = own.get_mut(&(gang.class, gang.tenant)).and_then(Vec::pop) {
            *place = first;
        }
    }
    queue
}

/// The tenant's share of what is in use, by worth: the lower goes first. Every tenant has the
/// same share, so this decides nothing until shares are weighed.
fn share(_snapshot: &Snapshot, _tenant: TenantIx) -> u64 {
    0
}

/// Slack to `finishBy`, age, id: the lower goes first.
fn urgency(snapshot: &Snapshot, gang: &Waiting) -> impl Ord + use<> {
    (slack(snapshot, gang), gang.submitted, gang.gang)
}

/// Milliseconds to spare before the gang must have started to be done in time, negative when it
/// is late; the largest value when nothing presses.
fn slack(snapshot: &Snapshot, gang: &Waiting) -> i64 {
    let Some(finish_by) = gang.finish_by else {
        return i64::MAX;
    };
    let runtime = gang.max_runtime.unwrap_or_default().0;
    finish_by
        .0
        .saturating_sub(snapshot.now.0)
        .saturating_sub_unsigned(runtime)
}
