//! What happens between two rounds: gangs come, work ends, a node is lost, quota is edited.
//!
//! Owns the generator, which is seeded, and where placements stand. Never measures.

use std::collections::BTreeMap;

use meridian_api::ids::{Epoch, GangId, StoreGeneration};
use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Millis, Resources};
use meridian_policies::Planner;
use meridian_policies::model::{
    Held, Placed, PoolIx, Shape, Snapshot, Standing, TenantIx, Waiting,
};
use meridian_policies::planner::{Change, RoomChange};

use crate::world::{Random, World};

/// Gangs that come with each step.
pub(crate) const SUBMITS: usize = 100;
/// Placements that end with each step.
pub(crate) const ENDS: usize = 50;
/// Time between two steps.
const STEP: Millis = Millis(1_000);
/// Of the steps; any will do.
const SEED: u64 = 11;

/// Makes the changes of each step.
pub(crate) struct Steps {
    world: World,
    random: Random,
    /// Room that placements of the planner took.
    took: BTreeMap<GangId, (PoolIx, Vec<RoomChange>)>,
}

impl Steps {
    pub(crate) fn new(mut world: World, planner: &Planner) -> Self {
        // Who submits is drawn from the tenants.
        world
            .snapshot
            .tenants
            .clone_from(&planner.snapshot().tenants);
        Self {
            world,
            random: Random(SEED),
            took: BTreeMap::new(),
        }
    }

    /// What the last round decided is done.
    pub(crate) fn started(&mut self, planner: &Planner) -> Vec<Change> {
        let (snapshot, plan) = (planner.snapshot(), planner.decided());
        let mut changes = Vec::new();
        for it in &plan.regraded {
            let held = &snapshot.held[it.held.index()];
            changes.push(Change::Regraded(held.gang, held.epoch, it.rows.clone()));
        }
        for placed in &plan.placements {
            let gang = &snapshot.waiting[placed.waiting.index()];
            self.took
                .insert(gang.gang, (placed.pool, rooms(gang, placed)));
            changes.push(Change::Started(Box::new(held(snapshot, placed))));
        }
        changes
    }

    /// The changes of one step.
    pub(crate) fn next(&mut self, planner: &Planner) -> Vec<Change> {
        let snapshot = planner.snapshot();
        let now = snapshot.now.after(STEP);
        let mut changes = vec![Change::Clock(now)];
        for _ in 0..SUBMITS {
            changes.push(Change::Submitted(Box::new(self.world.submitted(now))));
        }
        // Rows as the changes before left them, so that no host is freed twice.
        let mut rows: BTreeMap<PoolIx, Vec<Shape>> = BTreeMap::new();
        let mut ended = std::collections::BTreeSet::new();
        while ended.len() < ENDS {
            let all = u64::try_from(snapshot.held.len()).unwrap_or(1);
            let at = usize::try_from(self.random.below(all)).unwrap_or(0);
            let held = &snapshot.held[at];
            let Some(pool) = held.pool.filter(|_| ended.insert(at)) else {
                continue;
            };
            changes.push(Change::Ended(held.gang, held.epoch));
            let known = self.took.remove(&held.gang).map(|(_, rooms)| rooms);
            let rows = rows.entry(pool);
            let rows = rows.or_insert_with(|| snapshot.pools[pool.index()].shapes.clone());
            let freed = match known {
                Some(rooms) => rooms.into_iter().rev().map(reversed).collect(),
                None => freed(rows, held.resources),
            };
            let there: Vec<RoomChange> = freed.into_iter().filter(|it| shift(rows, it)).collect();
            changes.push(Change::Room(pool, there));
        }
        changes.extend(self.lost(snapshot, &mut rows));
        changes.push(self.quota(snapshot));
        changes
    }

    /// A node goes.
    fn lost(
        &mut self,
        snapshot: &Snapshot,
        rows: &mut BTreeMap<PoolIx, Vec<Shape>>,
    ) -> Option<Change> {
        let pools = u32::try_from(snapshot.pools.len()).unwrap_or(1);
        let pool = PoolIx(self.random.below_u32(pools));
        let rows = rows.entry(pool);
        let rows = rows.or_insert_with(|| snapshot.pools[pool.index()].shapes.clone());
        let at = self.random.below(u64::try_from(rows.len()).unwrap_or(1));
        let row = rows.get(usize::try_from(at).unwrap_or(0))?;
        let gone = RoomChange {
            domains: row.domains.clone(),
            allocatable: row.allocatable,
            before: Some(row.free),
            after: None,
            hosts: 1,
        };
        Some(Change::Room(pool, vec![gone]))
    }

    /// One of those who submit gets up to a tenth more or less.
    fn quota(&mut self, snapshot: &Snapshot) -> Change {
        let count = u32::try_from(snapshot.tenants.len()).unwrap_or(1);
        let last = count - count / 10;
        let ix = TenantIx(count / 10 + self.random.below_u32(last));
        let mut row = snapshot.tenants[ix.index()].clone();
        for quota in &mut row.quotas {
            quota.nominal = quota.nominal * (900 + self.random.below(200)) / 1_000;
        }
        Change::Tenant(ix, Box::new(row))
    }
}

fn reversed(change: RoomChange) -> RoomChange {
    RoomChange {
        before: change.after,
        after: change.before,
        ..change
    }
}

fn plus(a: Resources, b: Resources) -> Resources {
    a.checked_add(b).unwrap_or(a)
}

/// Hosts on which so much may stand become free, as far as there are any.
fn freed(rows: &[Shape], what: Resources) -> Vec<RoomChange> {
    let mut changes = Vec::new();
    let mut left = what.gpus.0;
    for row in rows {
        let used = row.allocatable.gpus.saturating_sub(row.free.gpus).0;
        let part = left.min(8_000);
        let cards = part / 1_000;
        let back = Resources {
            gpus: MilliGpus(part),
            cpu: MilliCpus(cards * 16_000),
            memory: Mebibytes(cards * 128 * 1024),
        };
        let after = plus(row.free, back);
        if part == 0 || used < part || !row.allocatable.covers(after) {
            continue;
        }
        changes.push(RoomChange {
            domains: row.domains.clone(),
            allocatable: row.allocatable,
            before: Some(row.free),
            after: Some(after),
            hosts: 1,
        });
        left -= part;
    }
    changes
}

/// Keeps the rows up to date; false when the hosts are not there.
fn shift(rows: &mut Vec<Shape>, change: &RoomChange) -> bool {
    let same = |row: &&mut Shape| {
        row.domains == change.domains
            && row.allocatable == change.allocatable
            && Some(row.free) == change.before
            && row.hosts >= change.hosts
    };
    let Some(row) = rows.iter_mut().find(same) else {
        return false;
    };
    row.hosts -= change.hosts;
    if let Some(free) = change.after {
        rows.push(Shape {
            domains: change.domains.clone(),
            allocatable: change.allocatable,
            free,
            hosts: change.hosts,
        });
    }
    rows.retain(|row| row.hosts > 0);
    true
}

/// What a take does to its hosts.
fn rooms(gang: &Waiting, placed: &Placed) -> Vec<RoomChange> {
    let takes = placed.takes.iter();
    let changes = takes.map(|take| RoomChange::of(&gang.shape, take));
    changes.map(|change| change.expect("it fits")).collect()
}

fn held(snapshot: &Snapshot, placed: &Placed) -> Held {
    let gang = &snapshot.waiting[placed.waiting.index()];
    let pool = &snapshot.pools[placed.pool.index()];
    Held {
        gang: gang.gang,
        epoch: Epoch::first(StoreGeneration(1)),
        tenant: gang.tenant,
        class: gang.class,
        cluster: pool.cluster,
        flavor: pool.flavor,
        pool: Some(placed.pool),
        ends: gang.max_runtime.map(|most| snapshot.now.after(most)),
        resources: gang.shape.demand(&placed.pods),
        pods: placed.pods.iter().sum(),
        rows: placed.rows.clone(),
        since: snapshot.now,
        standing: Standing::default(),
    }
}
