//! Room that is kept: taken out of what others see, and given back.
//!
//! Owns the way from a hold to the rows of its pool. A host on which somebody still stands is
//! known by its row; of hosts that stand empty any that looks the same is as good. A host of which
//! anything is kept is out of sight as a whole, for the minutes that a hold lasts: so no two holds
//! lie on one host, and none has to be found again by what others left of it. Never decides who
//! gets a hold.

use std::collections::BTreeMap;

use meridian_api::ids::GangId;
use meridian_api::units::Resources;

use crate::model::{ClusterIx, Hold, HoldRoom, HostIx, PoolIx, Shape, Snapshot};
use crate::shapes;

/// A host that was taken out of sight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    domains: Vec<String>,
    allocatable: Resources,
    free: Resources,
}

impl Kept {
    /// True for a host on which the part has room as it is.
    pub(crate) fn suits(&self, part: &HoldRoom) -> bool {
        self.domains == part.domains
            && self.allocatable == part.allocatable
            && self.free.covers(part.need)
    }
}

/// Takes `room` out of `rows`, as far as it is there yet; says what was taken.
pub(crate) fn keep(snapshot: &Snapshot, rows: &mut Vec<Shape>, room: &[HoldRoom]) -> Vec<Kept> {
    let mut kept = keep_known(snapshot, rows, room);
    kept.extend(keep_alike(rows, room));
    kept
}

/// Takes the room of all holds out of their pools; says what was taken for each. `keep` has the
/// rows of a pool changed. Hosts that are known come first: one that is known to one hold may look
/// like those of which another takes any.
pub(crate) fn keep_all(
    snapshot: &Snapshot,
    mut keep: impl FnMut(PoolIx, &dyn Fn(&mut Vec<Shape>) -> Vec<Kept>) -> Vec<Kept>,
) -> Vec<Vec<Kept>> {
    let mut all = vec![Vec::new(); snapshot.holds.len()];
    for is_known in [true, false] {
        for (hold, kept) in snapshot.holds.iter().zip(&mut all) {
            let Some(pool) = hold.pool else { continue };
            kept.extend(keep(pool, &|rows| {
                if is_known {
                    keep_known(snapshot, rows, &hold.room)
                } else {
                    keep_alike(rows, &hold.room)
                }
            }));
        }
    }
    all
}

fn keep_known(snapshot: &Snapshot, rows: &mut Vec<Shape>, room: &[HoldRoom]) -> Vec<Kept> {
    let mut kept = Vec::new();
    for part in room {
        for free in part.known.iter().filter_map(|ix| free_of(snapshot, *ix)) {
            kept.extend(take(rows, part, free));
        }
    }
    tidied(rows, kept)
}

fn keep_alike(rows: &mut Vec<Shape>, room: &[HoldRoom]) -> Vec<Kept> {
    let mut kept = Vec::new();
    for part in room {
        let known = u32::try_from(part.known.len()).unwrap_or(u32::MAX);
        for _ in known..part.hosts {
            let Some(free) = freest(rows, part) else {
                break;
            };
            kept.extend(take(rows, part, free));
        }
    }
    tidied(rows, kept)
}

/// What was kept; rows of which hosts were taken are in order again.
fn tidied(rows: &mut Vec<Shape>, kept: Vec<Kept>) -> Vec<Kept> {
    if !kept.is_empty() {
        *rows = shapes::canonical(rows);
    }
    kept
}

/// Room on a host as the newest digest shows it.
fn free_of(snapshot: &Snapshot, ix: HostIx) -> Option<Resources> {
    let host = snapshot.hosts.get(ix.index())?;
    let pool = snapshot.pools.get(host.pool.index())?;
    Some(pool.shapes.get(host.shape as usize)?.free)
}

/// Room of the host that comes closest: the tightest that has all, else the freest.
fn freest(rows: &[Shape], part: &HoldRoom) -> Option<Resources> {
    let same = |row: &&Shape| {
        row.hosts > 0 && row.domains == part.domains && row.allocatable == part.allocatable
    };
    let covering = rows
        .iter()
        .filter(same)
        .filter(|row| row.free.covers(part.need));
    let covering = covering.map(|row| row.free).min();
    covering.or_else(|| rows.iter().filter(same).map(|row| row.free).max())
}

/// Takes one host that looks like this out of sight.
fn take(rows: &mut [Shape], part: &HoldRoom, free: Resources) -> Option<Kept> {
    let row = rows.iter_mut().find(|row| {
        row.hosts > 0
            && row.free == free
            && row.allocatable == part.allocatable
            && row.domains == part.domains
    })?;
    row.hosts -= 1;
    Some(Kept {
        domains: part.domains.clone(),
        allocatable: part.allocatable,
        free,
    })
}

/// Shows again what was kept.
pub(crate) fn show(rows: &mut Vec<Shape>, kept: &[Kept]) {
    rows.extend(kept.iter().map(|it| Shape {
        domains: it.domains.clone(),
        allocatable: it.allocatable,
        free: it.free,
        hosts: 1,
    }));
    *rows = shapes::canonical(rows);
}

/// Where room is held for each gang.
pub(crate) fn promised(snapshot: &Snapshot) -> BTreeMap<GangId, ClusterIx> {
    let holds = snapshot.holds.iter().filter(|hold| hold.block.is_none());
    holds.map(|hold| (hold.gang, hold.cluster)).collect()
}

/// Placements that leave for a hold.
pub(crate) fn spoken_for(snapshot: &Snapshot) -> Vec<bool> {
    let mut spoken_for = vec![false; snapshot.held.len()];
    let victims = snapshot.holds.iter().flat_map(|hold: &Hold| &hold.victims);
    for leaving in victims {
        if let Some(mark) = spoken_for.get_mut(leaving.held.index()) {
            *mark = true;
        }
    }
    spoken_for
}
