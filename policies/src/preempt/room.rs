//! From a fit to hosts: which of them the gang goes to, and how much it needs of each.
//!
//! Owns the assignment of takes to hosts. Where hosts look alike those come first of which nobody
//! has to go, then those that are cheapest to clear. Never changes what was asked of whom.

use std::collections::BTreeMap;

use meridian_api::units::Resources;

use super::ground::{Ground, plus};
use crate::model::{GangShape, HoldRoom, HostIx, Shape, Take};

/// What hosts look like, and an amount on each: what is free there, or what is needed.
type Looks = (Vec<String>, Resources, Resources);

/// Hosts that look alike and have the same history.
#[derive(Clone, Debug)]
struct Spot {
    /// A host of the ground; `None` = any other.
    known: Option<usize>,
    hosts: u32,
    /// Taken of each so far.
    used: Resources,
}

/// What the gang needs of which hosts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Assigned {
    known: BTreeMap<usize, Resources>,
    /// Of hosts that nobody has to leave.
    others: BTreeMap<Looks, u32>,
}

impl Assigned {
    /// What the gang needs of a host of the ground; `None` when it does not go there.
    pub(crate) fn need_of(&self, host: usize) -> Option<Resources> {
        self.known.get(&host).copied()
    }

    /// What is to be kept: alike hosts with the same need together.
    pub(crate) fn room(&self, ground: &Ground<'_>, shapes: &[Shape]) -> Vec<HoldRoom> {
        let mut room: BTreeMap<Looks, (u32, Vec<HostIx>)> = BTreeMap::new();
        for (host, need) in &self.known {
            let own = &ground.hosts[*host];
            let row = &shapes[own.row as usize];
            let key = (row.domains.clone(), row.allocatable, *need);
            let (hosts, known) = room.entry(key).or_default();
            *hosts += 1;
            known.push(HostIx(own.ix));
        }
        for (key, count) in &self.others {
            room.entry(key.clone()).or_default().0 += count;
        }
        let part = |((domains, allocatable, need), (hosts, mut known)): (_, (_, Vec<HostIx>))| {
            known.sort_unstable();
            HoldRoom {
                domains,
                allocatable,
                need,
                hosts,
                known,
            }
        };
        room.into_iter().map(part).collect()
    }
}

/// Hosts for the takes of a fit on `rows`; `None` when they are not there, which would be a
/// defect of the fit.
pub(crate) fn assign(
    ground: &Ground<'_>,
    shapes: &[Shape],
    rows: &[Shape],
    gang: &GangShape,
    takes: &[Take],
) -> Option<Assigned> {
    let mut spots = spots(ground, shapes, rows, takes);
    for take in takes {
        let role = gang.roles.get(take.role as usize)?;
        let used = role.per_pod.checked_mul(take.pods_per_host.into())?;
        let left = take.free.checked_sub(used)?;
        let key = (take.domains.clone(), take.allocatable, take.free);
        let mut wanted = take.hosts;
        while wanted > 0 {
            let list = spots.get_mut(&key)?;
            let spot = list.last_mut()?;
            let hosts = spot.hosts.min(wanted);
            let moved = Spot {
                hosts,
                used: plus(spot.used, used),
                ..spot.clone()
            };
            spot.hosts -= hosts;
            wanted -= hosts;
            if spot.hosts == 0 {
                list.pop();
            }
            let after = (take.domains.clone(), take.allocatable, left);
            spots.entry(after).or_default().push(moved);
        }
    }
    let mut assigned = Assigned::default();
    for ((domains, allocatable, _), list) in spots {
        for spot in list
            .into_iter()
            .filter(|it| it.used != Resources::default())
        {
            if let Some(host) = spot.known {
                assigned.known.insert(host, spot.used);
            } else {
                let key = (domains.clone(), allocatable, spot.used);
                *assigned.others.entry(key).or_default() += spot.hosts;
            }
        }
    }
    Some(assigned)
}

/// Hosts of the looks that the takes name, the best last.
fn spots(
    ground: &Ground<'_>,
    shapes: &[Shape],
    rows: &[Shape],
    takes: &[Take],
) -> BTreeMap<Looks, Vec<Spot>> {
    let looks = takes
        .iter()
        .map(|take| (take.domains.clone(), take.allocatable, take.free));
    let mut spots: BTreeMap<Looks, Vec<Spot>> = looks.map(|key| (key, Vec::new())).collect();
    let mut known: Vec<(bool, u64, usize)> = Vec::new();
    for (at, host) in ground.hosts.iter().enumerate() {
        let row = &shapes[host.row as usize];
        let cleared = host.free != row.free;
        known.push((cleared, price(ground, at), at));
    }
    known.sort_unstable_by(|a, b| b.cmp(a));
    for (_, _, at) in known {
        let host = &ground.hosts[at];
        let row = &shapes[host.row as usize];
        let key = (row.domains.clone(), row.allocatable, host.free);
        if let Some(list) = spots.get_mut(&key) {
            list.push(Spot {
                known: Some(at),
                hosts: 1,
                used: Resources::default(),
            });
        }
    }
    for row in rows {
        let key = (row.domains.clone(), row.allocatable, row.free);
        if let Some(list) = spots.get_mut(&key) {
            let known = u32::try_from(list.len()).unwrap_or(u32::MAX);
            let hosts = row.hosts.saturating_sub(known);
            if hosts > 0 {
                list.push(Spot {
                    known: None,
                    hosts,
                    used: Resources::default(),
                });
            }
        }
    }
    spots
}

/// What those cost who make room on a host.
fn price(ground: &Ground<'_>, host: usize) -> u64 {
    let seats = ground.hosts[host].seats.iter().enumerate();
    let given =
        seats.filter(|(seat, it)| ground.given(it.candidate, host, *seat) != Resources::default());
    given.fold(0, |sum, (_, it)| {
        sum.saturating_add(ground.cost(it.candidate))
    })
}
