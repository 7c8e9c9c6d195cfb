//! The placements of a pool that a gang may take, with what they cost.
//!
//! Owns the list, made once per kind of asker and pool in a round, and the bound that refuses a
//! pool before anybody is looked at. Never chooses among them.

use std::collections::{BTreeMap, BTreeSet};

use meridian_api::kinds::workload_class::Preemption as Manner;
use meridian_api::units::{MilliGpus, Resources};

use super::again::{Again, DRIFT};
use super::cost;
use super::ground::{Candidate, Ground, GroundHost, Seated};
use super::rules::{Asker, Barred, rule};
use crate::model::{Held, HeldIx, HostIx, PoolIx, Rule, Shape, Snapshot, Take};

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

/// A placement that may be taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Takeable {
    pub(crate) held: HeldIx,
    pub(crate) rule: Rule,
    /// Work that is lost, and what that costs in all.
    pub(crate) lost: u64,
    pub(crate) cost: u64,
    /// It may be stopped as a whole.
    pub(crate) may_go: bool,
    pub(crate) gpus: MilliGpus,
}

/// Placements that may be taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Candidates {
    list: Vec<Takeable>,
    /// GPUs of all of them that may come free.
    gpus: u64,
    /// Least cost of a GPU of any of them, in fixed point.
    density: u128,
    /// When there may be others.
    pub(super) again: Again,
}

impl Candidates {
    /// Those of `held` that the gang may take, as if each were stopped.
    pub(crate) fn new(
        snapshot: &Snapshot,
        asker: &Asker<'_>,
        held: impl Iterator<Item = HeldIx>,
        budgets: &[u64],
    ) -> Self {
        let mut again = Again::default();
        let mut list = Vec::new();
        for ix in held {
            match takeable(snapshot, asker, ix, budgets) {
                Ok(it) => list.extend(it),
                Err(barred) => again.note(barred.until()),
            }
        }
        Self::of(snapshot, list, again)
    }

    /// The same when those of whom that is taken go on elsewhere; nobody is moved for what is free
    /// already, and for compaction nobody is stopped.
    pub(crate) fn moved(&self, snapshot: &Snapshot, moves: &[bool]) -> Self {
        let priced = self.list.iter().zip(moves).filter_map(|(it, moves)| {
            if it.rule == Rule::Leaving || !moves {
                return (it.rule != Rule::Compaction).then_some(*it);
            }
            let (lost, cost) = cost::of_move(snapshot, &snapshot.held[it.held.index()]);
            Some(Takeable { lost, cost, ..*it })
        });
        Self::of(snapshot, priced.collect(), self.again)
    }

    fn of(snapshot: &Snapshot, list: Vec<Takeable>, again: Again) -> Self {
        let mut all = Self {
            list,
            gpus: 0,
            density: u128::MAX,
            again,
        };
        for it in &all.list {
            let row = &snapshot.held[it.held.index()];
            let slack = slack(snapshot, row, it.rule);
            let unit = slack.as_ref();
            let unit = unit.and_then(|slack| shrink_density(snapshot, row, slack));
            let (most, least_cost) = if it.may_go {
                let whole = (u128::from(it.cost) << 16) / u128::from(it.gpus.0.max(1));
                (it.gpus.0, unit.map_or(whole, |unit| unit.min(whole)))
            } else {
                let shrinks = slack.map_or(0, |slack| shrinkable(row, &slack).0);
                (shrinks, unit.unwrap_or(u128::MAX))
            };
            all.gpus = all.gpus.saturating_add(most);
            all.density = all.density.min(least_cost);
        }
        all
    }

    /// Whose they are.
    pub(crate) fn held(&self) -> impl Iterator<Item = HeldIx> {
        self.list.iter().map(|it| it.held)
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
    pub(crate) fn whole(&self) -> impl Iterator<Item = &Takeable> {
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
        let asked = self.list.iter().map(|it| candidate(snapshot, it));
        ground.candidates = asked.collect();
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

/// The placement, as the gang may take it; `None` when nothing of it is of use.
fn takeable(
    snapshot: &Snapshot,
    asker: &Asker<'_>,
    ix: HeldIx,
    budgets: &[u64],
) -> Result<Option<Takeable>, Barred> {
    let held = &snapshot.held[ix.index()];
    let rule = rule(snapshot, asker, held)?;
    let class = &snapshot.classes[held.class.index()].rule;
    let heeds = !asker.is_protected && rule != Rule::Reclaim && rule != Rule::Leaving;
    let spent = budgets.get(held.tenant.index()) == Some(&0);
    if heeds && spent {
        return Err(Barred::Until(snapshot.now.after(DRIFT)));
    }
    let may_go = rule == Rule::Leaving || class.how != Manner::ShrinkToFloor;
    let shrinks = || slack(snapshot, held, rule).is_some();
    if !may_go && !shrinks() {
        return Ok(None);
    }
    let (lost, cost) = cost::of_eviction(snapshot, held);
    Ok(Some(Takeable {
        held: ix,
        rule,
        lost,
        cost,
        may_go,
        gpus: held.resources.gpus,
    }))
}

/// The placement before anything is asked of it.
fn candidate(snapshot: &Snapshot, it: &Takeable) -> Candidate {
    let held = &snapshot.held[it.held.index()];
    let roles = held.standing.shape.roles.iter();
    let slack = slack(snapshot, held, it.rule).unwrap_or_default();
    let roles = roles.take(slack.len());
    let unit = roles.map(|role| cost::of_shrinking(snapshot, held, role.per_pod.gpus));
    Candidate {
        held: it.held,
        rule: it.rule,
        lost: it.lost,
        cost: it.cost,
        may_go: it.may_go,
        full_slack: slack.clone(),
        slack,
        unit: unit.collect(),
        gpus: it.gpus,
        goes: false,
    }
}

/// Pods of each role that may leave: down to its least size, and to its class's floor. `None` when
/// none may, or it goes or moves as a whole.
fn slack(snapshot: &Snapshot, held: &Held, rule: Rule) -> Option<Vec<u32>> {
    let roles = &held.standing.shape.roles;
    let is_whole = matches!(rule, Rule::Leaving | Rule::Compaction);
    if is_whole || roles.iter().all(|role| role.min >= role.max) {
        return None;
    }
    let class = &snapshot.classes[held.class.index()].rule;
    let slack = roles.iter().enumerate().map(|(at, role)| {
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
    let slack: Vec<u32> = slack.collect();
    slack.iter().any(|pods| *pods > 0).then_some(slack)
}

fn shrinkable(held: &Held, slack: &[u32]) -> MilliGpus {
    let roles = held.standing.shape.roles.iter().zip(slack);
    let gpus = roles.map(|(role, pods)| role.per_pod.gpus.0.saturating_mul((*pods).into()));
    MilliGpus(gpus.fold(0, u64::saturating_add))
}

/// Least cost per GPU of letting pods leave.
fn shrink_density(snapshot: &Snapshot, held: &Held, slack: &[u32]) -> Option<u128> {
    let roles = held.standing.shape.roles.iter().zip(slack);
    let leaves = roles.filter(|(role, slack)| **slack > 0 && role.per_pod.gpus.0 > 0);
    let densities = leaves.map(|(role, _)| {
        let unit = cost::of_shrinking(snapshot, held, role.per_pod.gpus);
        (u128::from(unit) << 16) / u128::from(role.per_pod.gpus.0)
    });
    densities.min()
}
