//! What one pool offers: hosts cleared, the whole gang fitted, who need not go reprieved.
//!
//! Owns the way from candidates to a bid, as if everybody who is asked to go were stopped. Never
//! compares pools, and knows nothing of quota.

use std::cmp::Reverse;

use meridian_api::units::{Resources, UnixMillis};

use super::candidates::Candidates;
use super::ground::{self, Ground};
use super::room::{Assigned, assign};
use super::search::{Area, Search};
use super::stands::name_of;
use crate::candidates::Preference;
use crate::decide::Round;
use crate::fit::fit;
use crate::model::{
    GangShape, HoldRoom, HostIx, Leaves, Pool, PoolIx, Shape, Snapshot, Take, Victim, WaitingIx,
    Yield,
};
use crate::pick::Scope;
use crate::slots::Mask;

/// Areas of one pool that are searched in full, the cheapest by estimate first.
const AREAS: usize = 8;
/// Times that a search is widened when the whole gang does not fit on what one role needs.
const WIDENINGS: u32 = 6;

/// What a pool offers.
#[derive(Clone)]
pub(super) struct Bid {
    pub(super) cost: u64,
    pub(super) preference: Preference,
    pub(super) pool: PoolIx,
    pub(super) takes: Vec<Take>,
    pub(super) room: Vec<HoldRoom>,
    pub(super) victims: Vec<Victim>,
}

impl Bid {
    /// Least first: the cheapest, then the fewest victims, then as the gang likes.
    pub(super) fn key(&self) -> (u64, usize, u32, u32, PoolIx) {
        (
            self.cost,
            self.victims.len(),
            self.preference.region_order,
            self.preference.flavor_order,
            self.pool,
        )
    }

    /// Its victims have changed, or what they cost.
    pub(super) fn add_up(&mut self, snapshot: &Snapshot) {
        let name = |victim: &Victim| name_of(snapshot, victim.held);
        self.victims.sort_by_key(name);
        let costs = self.victims.iter().map(|victim| victim.cost);
        self.cost = costs.fold(0, u64::saturating_add);
    }
}

/// What one pool offers: hosts cleared, the whole gang fitted, who need not go reprieved.
pub(super) fn bid(
    round: &Round<'_>,
    ix: WaitingIx,
    pool: PoolIx,
    mask: Mask,
    candidates: &Candidates,
    main: usize,
    preference: Preference,
) -> Option<Bid> {
    let snapshot = round.snapshot;
    let source = &snapshot.pools[pool.index()];
    let gang = &round.gang(ix).shape;
    let least = gang.least();
    let seen = round.seen(pool, mask);
    let mut start = candidates.ground(snapshot, pool, &seen, &round.preemptions.moved);
    let (per_pod, wanted) = (gang.roles[main].per_pod, least[main]);
    let scope = Scope::of(&source.levels, gang.roles[main].required.as_deref())?;
    let areas = areas(&start, source.shapes.as_slice(), &seen, per_pod, scope);
    let areas = cheapest(&mut start, areas, per_pod, wanted);
    let mut best: Option<Bid> = None;
    let last = areas.len().saturating_sub(1);
    for (at, area) in areas.into_iter().enumerate() {
        // The last search may have the ground itself.
        let mut ground = if at == last {
            std::mem::replace(&mut start, Ground::new(snapshot))
        } else {
            start.clone()
        };
        let Some((takes, rows)) = cleared(&mut ground, &area, &seen, source, gang, main) else {
            continue;
        };
        let assigned = assign(&ground, &source.shapes, &rows, gang, &takes)?;
        reprieve(&mut ground, &assigned);
        let victims = victims(&ground, &assigned);
        let mut bid = Bid {
            cost: 0,
            preference,
            pool,
            room: assigned.room(&ground, &source.shapes),
            takes,
            victims,
        };
        bid.add_up(snapshot);
        if best.as_ref().is_none_or(|best| bid.key() < best.key()) {
            best = Some(bid);
        }
    }
    best
}

/// Areas that may hold so many pods, those that are cheapest to clear by estimate.
fn cheapest(
    ground: &mut Ground<'_>,
    areas: Vec<Area>,
    per_pod: Resources,
    wanted: u32,
) -> Vec<Area> {
    if areas.len() < 2 {
        return areas;
    }
    let mut search = Search::new(ground, per_pod);
    let estimates = areas.into_iter().filter_map(|area| {
        let cost = search.estimate(&area, u64::from(wanted))?;
        Some((cost, area))
    });
    let mut estimates: Vec<(u64, Area)> = estimates.collect();
    estimates.sort_by(|a, b| (a.0, &a.1.hosts).cmp(&(b.0, &b.1.hosts)));
    let cheapest = estimates.into_iter().map(|(_, area)| area);
    cheapest.take(AREAS).collect()
}

/// Clears hosts of the area until the whole gang fits; the fit and the rows it was made for.
fn cleared(
    ground: &mut Ground<'_>,
    area: &Area,
    seen: &[Shape],
    source: &Pool,
    gang: &GangShape,
    main: usize,
) -> Option<(Vec<Take>, Vec<Shape>)> {
    let least = gang.least();
    let per_pod = gang.roles[main].per_pod;
    let most = Search::new(ground, per_pod).most(area);
    let mut wanted = u64::from(least[main]);
    if most < wanted {
        return None;
    }
    for widening in 0..=WIDENINGS {
        if widening == WIDENINGS {
            wanted = most;
        }
        if !Search::new(ground, per_pod).clear(area, wanted) {
            return None;
        }
        let rows = ground.rows(seen, &source.shapes);
        if let Some(found) = fit(&source.levels, &rows, gang, &least) {
            return Some((found.takes, rows));
        }
        if wanted >= most {
            return None;
        }
        wanted = wanted.saturating_add(wanted.div_ceil(2)).min(most);
    }
    None
}

/// Hosts that must hold the pods together, and what the others there hold as they are.
fn areas(
    ground: &Ground<'_>,
    shapes: &[Shape],
    seen: &[Shape],
    per_pod: Resources,
    scope: Scope,
) -> Vec<Area> {
    use std::collections::BTreeMap;
    let depth = match scope {
        Scope::Pool => 0,
        Scope::Domain(depth) => depth,
        Scope::Host => {
            let hosts = 0..ground.hosts.len();
            return hosts
                .map(|host| Area {
                    hosts: vec![host],
                    natural: 0,
                })
                .collect();
        }
    };
    let mut areas: BTreeMap<&[String], Area> = BTreeMap::new();
    for row in seen {
        let Some(domain) = row.domains.get(..depth) else {
            continue;
        };
        let all = row.free.times(per_pod).saturating_mul(row.hosts.into());
        let area = areas.entry(domain).or_default();
        area.natural = area.natural.saturating_add(all);
    }
    for (at, host) in ground.hosts.iter().enumerate() {
        let row = &shapes[host.row as usize];
        let area = row
            .domains
            .get(..depth)
            .and_then(|domain| areas.get_mut(domain));
        if let Some(area) = area {
            area.natural = area.natural.saturating_sub(row.free.times(per_pod));
            area.hosts.push(at);
        }
    }
    areas.into_values().collect()
}

/// Reprieves everybody whom the hosts that the gang goes to do without, the dearest first.
fn reprieve(ground: &mut Ground<'_>, assigned: &Assigned) {
    let mut asked: Vec<usize> = (0..ground.candidates.len())
        .filter(|ix| ground.is_asked(*ix))
        .collect();
    asked.sort_by_key(|ix| (Reverse(ground.cost(*ix)), *ix));
    for candidate in asked {
        let does_without = ground.where_is[candidate].iter().all(|(host, seat)| {
            let given = ground.given(candidate, *host, *seat);
            let without = ground::minus(ground.hosts[*host].free, given);
            assigned
                .need_of(*host)
                .is_none_or(|need| without.covers(need))
        });
        if does_without {
            ground.reprieve(candidate);
        }
    }
}

/// Everybody who was asked something, by name, as candidates are.
fn victims(ground: &Ground<'_>, assigned: &Assigned) -> Vec<Victim> {
    let asked = (0..ground.candidates.len()).filter(|ix| ground.is_asked(*ix));
    asked.map(|ix| victim(ground, ix, assigned)).collect()
}

fn victim(ground: &Ground<'_>, candidate: usize, assigned: &Assigned) -> Victim {
    let it = &ground.candidates[candidate];
    let held = ground.held(candidate);
    let class = &ground.snapshot.classes[held.class.index()];
    let deadline: UnixMillis = ground.snapshot.now.after(class.rule.notice);
    let base = Victim {
        held: it.held,
        rule: it.rule,
        does: Yield::Evict,
        lost: it.lost,
        cost: it.cost,
        deadline,
    };
    if it.goes {
        return base;
    }
    let roles = &held.standing.shape.roles;
    let pods = roles.iter().zip(&it.full_slack).zip(&it.slack);
    let pods = pods.map(|((role, full), slack)| {
        let step = role.step.max(1);
        let left = (full - slack).div_ceil(step).saturating_mul(step);
        role.max.saturating_sub(left)
    });
    Victim {
        does: Yield::Shrink {
            pods: pods.collect(),
            leaves: leaves(ground, candidate, assigned),
        },
        lost: 0,
        cost: ground.cost(candidate),
        ..base
    }
}

/// Where pods of a candidate must leave, because the gang goes there.
fn leaves(ground: &Ground<'_>, candidate: usize, assigned: &Assigned) -> Vec<Leaves> {
    let mut leaves = Vec::new();
    for (host, seat) in &ground.where_is[candidate] {
        if assigned.need_of(*host).is_none() {
            continue;
        }
        let gone = ground.pods_gone(candidate, *host, *seat);
        let gone = gone.into_iter().zip(0_u32..).filter(|(pods, _)| *pods > 0);
        leaves.extend(gone.map(|(pods, role)| Leaves {
            host: HostIx(ground.hosts[*host].ix),
            role,
            pods,
        }));
    }
    leaves
}
