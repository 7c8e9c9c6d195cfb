//! The placements of a pool that a gang may take, with what they cost.
//!
//! Owns the list, made once per kind of asker and pool in a round, and the bound that refuses a
//! pool before anybody is looked at. Never chooses among them.

use std::collections::{BTreeMap, BTreeSet};

use meridian_api::kinds::workload_class::Preemption as Manner;
use meridian_api::units::{MilliGpus, Resources};

use super::cost;
use super::ground::{Candidate, Ground, GroundHost, Seated};
use super::rules::{Asker, rule};
use crate::model::{ClassRule, Held, HeldIx, HostIx, PoolIx, Rule, Shape, Snapshot, Take};

/// Hosts of a pool that look alike: their domains, size and free room.
type Look = (Vec<String>, Resources, Resources);

/// What does not look any more as the snapshot says.
#[derive(Clone, Debug, Default)]
pub(crate) struct Moved {
    /// Hosts of a row that are spoken for, in this round or by a hold.
    rows: BTreeMap<(PoolIx, u32), u32>,
    /// Which these are.
    hosts: BTreeSet<HostIx>,
    /// Looks of hosts that were taken in this round: nobody knows which hosts these are.
    taken: BTreeSet<(PoolIx, Look)>,
}

impl Moved {
    /// Notes a known host that is spoken for.
    pub(crate) fn keep(&mut self, snapshot: &Snapshot, ix: HostIx) {
        if let Some(host) = snapshot.hosts.get(ix.index()) {
            *self.rows.entry((host.pool, host.shape)).or_default() += 1;
            self.hosts.insert(ix);
        }
    }

    /// Notes that a gang was placed on hosts that looked like this.
    pub(crate) fn take(&mut self, pool: PoolIx, takes: &[Take]) {
        let looks = takes
            .iter()
            .map(|it| (it.domains.clone(), it.allocatable, it.free));
        self.taken.extend(looks.map(|look| (pool, look)));
    }
}

/// Placements that may be taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Candidates {
    list: Vec<Candidate>,
    /// GPUs of all of them that may come free.
    gpus: u64,
    /// Least cost of a GPU of any of them, in fixed point.
    density: u128,
}

impl Candidates {
    /// Those of `held` that the gang may take; `moves` says of each whether it is taken to go on
    /// elsewhere.
    pub(crate) fn new(
        snapshot: &Snapshot,
        asker: &Asker<'_>,
        held: &[HeldIx],
        budgets: &[u64],
        moves: &[bool],
    ) -> Self {
        let list = held.iter().zip(moves).filter_map(|(ix, moves)| {
            let it = candidate(snapshot, asker, *ix, budgets)?;
            if it.rule == Rule::Leaving || !moves {
                // Nobody is stopped for what is free already.
                return Some(it).filter(|it| it.rule != Rule::Compaction);
            }
            let (lost, cost) = cost::of_move(snapshot, &snapshot.held[ix.index()]);
            Some(Candidate { lost, cost, ..it })
        });
        let list: Vec<Candidate> = list.collect();
        let mut all = Self {
            list,
            gpus: 0,
            density: u128::MAX,
        };
        for it in &all.list {
            let row = &snapshot.held[it.held.index()];
            let shrinks = shrinkable(row, &it.slack);
            let (most, least_cost) = if it.may_go {
                let unit = shrink_density(it, row);
                let whole = (u128::from(it.cost) << 16) / u128::from(it.gpus.0.max(1));
                (it.gpus.0, unit.map_or(whole, |unit| unit.min(whole)))
            } else {
                (shrinks.0, shrink_density(it, row).unwrap_or(u128::MAX))
            };
            all.gpus = all.gpus.saturating_add(most);
            all.density = all.density.min(least_cost);
        }
        all
    }

    /// The least that it can cost to free what is missing; `None` when all of them together do
    /// not free enough.
    pub(crate) fn bound(&self, need: MilliGpus, free: MilliGpus) -> Option<u64> {
        if self.list.is_empty() || free.0.saturating_add(self.gpus) < need.0 {
            return None;
        }
        let missing = u128::from(need.0.saturating_sub(free.0));
        let bound = self.density.saturating_mul(missing) >> 16;
        Some(u64::try_from(bound).unwrap_or(u64::MAX))
    }

    /// Each with its least cost per GPU, whole: for quota.
    pub(crate) fn whole(&self) -> impl Iterator<Item = &Candidate> {
        self.list.iter().filter(|it| it.may_go)
    }

    /// Where they stand. Hosts that do not look any more as they did, because others were put
    /// there in this round, are left out: nobody knows which of them.
    pub(crate) fn ground<'a>(
        &self,
        snapshot: &'a Snapshot,
        pool: PoolIx,
        seen: &[Shape],
        moved: &Moved,
    ) -> Ground<'a> {
        let source = &snapshot.pools[pool.index()];
        let mut ground = Ground::new(snapshot);
        ground.candidates.clone_from(&self.list);
        ground.where_is = vec![Vec::new(); self.list.len()];
        let counts = counts(seen);
        let is_clear = |row: u32| {
            let Some(shape) = source.shapes.get(row as usize) else {
                return false;
            };
            let key = (shape.domains.as_slice(), shape.allocatable, shape.free);
            let look = (pool, (shape.domains.clone(), shape.allocatable, shape.free));
            let gone = moved.rows.get(&(pool, row)).copied().unwrap_or(0);
            counts.get(&key).copied().unwrap_or(0) == shape.hosts.saturating_sub(gone)
                && !moved.taken.contains(&look)
        };
        let mut clear: BTreeMap<u32, bool> = BTreeMap::new();
        let mut places: BTreeMap<u32, usize> = BTreeMap::new();
        for (candidate, it) in self.list.iter().enumerate() {
            for seat in &snapshot.held[it.held.index()].standing.seats {
                let Some(host) = snapshot.hosts.get(seat.host.index()) else {
                    continue;
                };
                let may = host.pool == pool
                    && !moved.hosts.contains(&seat.host)
                    && *clear
                        .entry(host.shape)
                        .or_insert_with(|| is_clear(host.shape));
                if !may {
                    continue;
                }
                let next = ground.hosts.len();
                let at = *places.entry(seat.host.0).or_insert(next);
                if at == next {
                    ground.hosts.push(GroundHost {
                        ix: seat.host.0,
                        row: host.shape,
                        free: source.shapes[host.shape as usize].free,
                        seats: Vec::new(),
                        version: 0,
                    });
                }
                let seats = &mut ground.hosts[at].seats;
                ground.where_is[candidate].push((at, seats.len()));
                seats.push(Seated {
                    candidate,
                    held: seat.held,
                    pods: seat.pods.clone(),
                });
            }
        }
        ground
    }
}

/// Hosts of each look.
fn counts(seen: &[Shape]) -> BTreeMap<(&[String], Resources, Resources), u32> {
    let mut counts: BTreeMap<(&[String], Resources, Resources), u32> = BTreeMap::new();
    for row in seen {
        let key = (row.domains.as_slice(), row.allocatable, row.free);
        let sum = counts.entry(key).or_default();
        *sum = sum.saturating_add(row.hosts);
    }
    counts
}

fn candidate(
    snapshot: &Snapshot,
    asker: &Asker<'_>,
    ix: HeldIx,
    budgets: &[u64],
) -> Option<Candidate> {
    let held = &snapshot.held[ix.index()];
    let rule = rule(snapshot, asker, held)?;
    let class = &snapshot.classes.get(held.class.index())?.rule;
    let heeds = !asker.is_protected && rule != Rule::Reclaim && rule != Rule::Leaving;
    let spent = budgets.get(held.tenant.index()) == Some(&0);
    if heeds && spent {
        return None;
    }
    let (lost, cost) = cost::of_eviction(snapshot, held);
    let leaving = rule == Rule::Leaving;
    let slack = if leaving || rule == Rule::Compaction {
        vec![0; held.standing.shape.roles.len()]
    } else {
        slack(held, class)
    };
    let may_go = leaving || class.how != Manner::ShrinkToFloor;
    if !may_go && slack.iter().all(|pods| *pods == 0) {
        return None;
    }
    let roles = held.standing.shape.roles.iter();
    let unit = roles.map(|role| cost::of_shrinking(snapshot, held, role.per_pod.gpus));
    Some(Candidate {
        held: ix,
        rule,
        lost,
        cost,
        may_go,
        full_slack: slack.clone(),
        slack,
        unit: unit.collect(),
        gpus: held.resources.gpus,
        goes: false,
    })
}

/// Pods of each role that may leave: down to its least size, and to its class's floor.
fn slack(held: &Held, class: &ClassRule) -> Vec<u32> {
    let roles = held.standing.shape.roles.iter().enumerate();
    let slack = roles.map(|(at, role)| {
        let floor = match class.how {
            Manner::ShrinkToFloor => {
                let full = held.standing.full.get(at).copied().unwrap_or(role.max);
                let floor = (u64::from(full) * u64::from(class.floor_percent)).div_ceil(100);
                u32::try_from(floor).unwrap_or(u32::MAX)
            }
            Manner::Never
            | Manner::Reclaim
            | Manner::Requeue
            | Manner::ShrinkThenRequeue
            | Manner::CheckpointThenRequeue => 0,
        };
        let least = role.min.max(floor).max(1);
        let spare = role.max.saturating_sub(least);
        spare - spare % role.step.max(1)
    });
    slack.collect()
}

fn shrinkable(held: &Held, slack: &[u32]) -> MilliGpus {
    let roles = held.standing.shape.roles.iter().zip(slack);
    let gpus = roles.map(|(role, pods)| role.per_pod.gpus.0.saturating_mul((*pods).into()));
    MilliGpus(gpus.fold(0, u64::saturating_add))
}

/// Least cost per GPU of letting pods leave.
fn shrink_density(it: &Candidate, held: &Held) -> Option<u128> {
    let roles = held.standing.shape.roles.iter();
    let each = roles.zip(&it.slack).zip(&it.unit);
    let densities = each.filter(|((role, slack), _)| **slack > 0 && role.per_pod.gpus.0 > 0);
    densities
        .map(|((role, _), unit)| (u128::from(*unit) << 16) / u128::from(role.per_pod.gpus.0))
        .min()
}
