//! Room that is kept: taken out of what others see, and given back.
//!
//! Owns the way from a hold to the rows of its pool. A host on which somebody still stands is
//! known by its row; of hosts that stand empty any that looks the same is as good. Never decides
//! who gets a hold.

use std::collections::BTreeMap;

use meridian_api::units::Resources;

use super::ground::minus;
use crate::model::{Hold, HoldRoom, HostIx, Shape, Snapshot};
use crate::shapes;

/// Hosts whose free part was taken out of sight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    domains: Vec<String>,
    allocatable: Resources,
    before: Resources,
    after: Resources,
    hosts: u32,
}

/// Takes `room` out of `rows`, as far as it is there yet; says what was taken.
pub(crate) fn keep(snapshot: &Snapshot, rows: &mut Vec<Shape>, room: &[HoldRoom]) -> Vec<Kept> {
    let mut kept = Vec::new();
    let mut known: BTreeMap<(&[String], Resources, Resources), BTreeMap<Resources, u32>> =
        BTreeMap::new();
    for part in room {
        for free in part.known.iter().filter_map(|ix| free_of(snapshot, *ix)) {
            let key = (part.domains.as_slice(), part.allocatable, free);
            *known.entry(key).or_default().entry(part.need).or_default() += 1;
        }
    }
    let mut short: BTreeMap<&HoldRoom, u32> = BTreeMap::new();
    for part in room {
        let known = u32::try_from(part.known.len()).unwrap_or(u32::MAX);
        *short.entry(part).or_default() += part.hosts.saturating_sub(known);
    }
    for ((domains, allocatable, free), needs) in known {
        for (need, hosts) in needs {
            let like = |row: &Shape| row.free == free;
            kept.extend(take(rows, domains, allocatable, need, hosts, like));
        }
    }
    for (part, hosts) in short {
        for _ in 0..hosts {
            let Some(free) = freest(rows, part) else {
                break;
            };
            let like = |row: &Shape| row.free == free;
            let (domains, need) = (part.domains.as_slice(), part.need);
            kept.extend(take(rows, domains, part.allocatable, need, 1, like));
        }
    }
    *rows = shapes::canonical(rows);
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

fn take(
    rows: &mut Vec<Shape>,
    domains: &[String],
    allocatable: Resources,
    need: Resources,
    hosts: u32,
    like: impl Fn(&Shape) -> bool,
) -> Vec<Kept> {
    let (mut kept, mut left) = (Vec::new(), hosts);
    for row in rows.iter_mut() {
        if left == 0 {
            break;
        }
        if row.domains != domains || row.allocatable != allocatable || !like(row) {
            continue;
        }
        let used = row.hosts.min(left);
        if used == 0 {
            continue;
        }
        row.hosts -= used;
        left -= used;
        kept.push(Kept {
            domains: domains.to_vec(),
            allocatable,
            before: row.free,
            after: minus(row.free, need),
            hosts: used,
        });
    }
    rows.extend(kept.iter().map(|it| it.row(it.after)));
    kept
}

impl Kept {
    /// What these hosts look like while part of them is kept, and how many they are.
    pub(crate) fn shown(&self) -> ((Vec<String>, Resources, Resources), u32) {
        let look = (self.domains.clone(), self.allocatable, self.after);
        (look, self.hosts)
    }

    fn row(&self, free: Resources) -> Shape {
        Shape {
            domains: self.domains.clone(),
            allocatable: self.allocatable,
            free,
            hosts: self.hosts,
        }
    }
}

/// Shows again what was kept, as far as nobody has taken the rest of those hosts meanwhile.
pub(crate) fn show(rows: &mut Vec<Shape>, kept: &[Kept]) {
    for it in kept {
        let mut left = it.hosts;
        for row in rows.iter_mut() {
            let same = row.free == it.after
                && row.allocatable == it.allocatable
                && row.domains == it.domains;
            if same {
                let used = row.hosts.min(left);
                row.hosts -= used;
                left -= used;
            }
        }
        let back = Kept {
            hosts: it.hosts - left,
            ..it.clone()
        };
        rows.push(back.row(it.before));
    }
    *rows = shapes::canonical(rows);
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
