//! Round after round gives what each round gives alone (S27).

use std::collections::BTreeMap;

use meridian_api::ids::{Epoch, GangId, StoreGeneration, Uid};
use meridian_api::units::{MilliGpus, Resources, UnixMillis};
use meridian_policies::decide;
use meridian_policies::model::*;
use meridian_policies::planner::{Change, Planner, Refused, RoomChange};
use meridian_policies::shapes;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::builders::{World, cards, gang_id, hosts, quota, role, tenant};
use crate::random;

/// What happens between two rounds; numbers pick rows, whatever the tables' sizes are.
#[derive(Clone, Debug)]
enum Event {
    Submit(Box<Waiting>),
    Leave(usize),
    /// Placements of the last round start, one bit for each.
    Start(u32),
    End(usize),
    /// One host of a row gets other room, or goes.
    Host(usize, usize, Option<u64>),
    /// One more host of a row's size comes, empty.
    Come(usize, usize),
    Quota(usize, Box<Tenant>),
    Regrade,
    Clock(i64),
    Cordon(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let number = || 0..100_usize;
    let clock = prop_oneof![Just(1), Just(1_000), Just(650_000), Just(8_000_000)];
    prop_oneof![
        8 => random::waiting(5, 3, 2).prop_map(|gang| Event::Submit(Box::new(gang))),
        2 => number().prop_map(Event::Leave),
        6 => any::<u32>().prop_map(Event::Start),
        4 => number().prop_map(Event::End),
        4 => (number(), number(), prop::option::weighted(0.8, 0..9_u64))
            .prop_map(|(pool, row, free)| Event::Host(pool, row, free)),
        1 => (number(), number()).prop_map(|(pool, row)| Event::Come(pool, row)),
        2 => (number(), random::tenants(2))
            .prop_map(|(at, rows)| Event::Quota(at, Box::new(rows[0].clone()))),
        2 => Just(Event::Regrade),
        3 => clock.prop_map(Event::Clock),
        1 => number().prop_map(Event::Cordon),
    ]
}

/// The planner, and what only those know who run the work.
struct Fleet {
    planner: Planner,
    /// Room that each placement took.
    took: BTreeMap<GangId, (PoolIx, Vec<RoomChange>)>,
    next: u128,
}

impl Fleet {
    fn new(mut snapshot: Snapshot) -> Self {
        snapshot.held.dedup_by_key(|held| held.gang);
        Self {
            planner: Planner::new(snapshot),
            took: BTreeMap::new(),
            next: 1_000,
        }
    }

    fn apply(&mut self, change: Change) -> Result<(), Refused> {
        self.planner.apply(change)
    }

    fn happens(&mut self, event: Event) -> Result<(), Refused> {
        let snapshot = self.planner.snapshot();
        let pick = |at: usize, len: usize| (len > 0).then(|| at % len.max(1));
        match event {
            Event::Submit(gang) => {
                let gang = self.fitted(*gang);
                self.apply(Change::Submitted(Box::new(gang)))?;
            }
            Event::Leave(at) => {
                if let Some(at) = pick(at, snapshot.waiting.len()) {
                    self.apply(Change::Left(snapshot.waiting[at].gang))?;
                }
            }
            Event::Start(which) => self.start(which)?,
            Event::End(at) => self.end(at)?,
            Event::Host(pool, row, cards) => {
                if let Some((pool, row)) = self.row(pool, row) {
                    let free = cards.map(|cards| Resources {
                        gpus: MilliGpus::cards(cards).min(row.allocatable.gpus),
                        ..row.free
                    });
                    self.apply(Change::Room(pool, vec![changed(row, Some(row.free), free)]))?;
                }
            }
            Event::Come(pool, row) => {
                if let Some((pool, row)) = self.row(pool, row) {
                    let comes = changed(row, None, Some(row.allocatable));
                    self.apply(Change::Room(pool, vec![comes]))?;
                }
            }
            Event::Quota(at, row) => self.quota(at, *row)?,
            Event::Regrade => {
                let regraded = self.planner.round().regraded.clone();
                for it in regraded {
                    let held = &self.planner.snapshot().held[it.held.index()];
                    let (gang, epoch) = (held.gang, held.epoch);
                    self.apply(Change::Regraded(gang, epoch, it.rows))?;
                }
            }
            Event::Clock(more) => {
                let now = UnixMillis(snapshot.now.0 + more);
                self.apply(Change::Clock(now))?;
            }
            Event::Cordon(at) => self.planner.edit(|snapshot| {
                let at = at % snapshot.clusters.len();
                snapshot.clusters[at].cordoned ^= true;
            }),
        }
        Ok(())
    }

    /// A placement ends, and gives back the room that it took.
    fn end(&mut self, at: usize) -> Result<(), Refused> {
        let held = &self.planner.snapshot().held;
        let Some(at) = at.checked_rem(held.len()) else {
            return Ok(());
        };
        let (gang, epoch) = (held[at].gang, held[at].epoch);
        self.apply(Change::Ended(gang, epoch))?;
        // What was lost in between gives nothing back.
        if let Some((pool, rooms)) = self.took.remove(&gang) {
            let back = rooms.into_iter().rev().map(RoomChange::reversed);
            let _ = self.apply(Change::Room(pool, back.collect()));
        }
        Ok(())
    }

    /// A tenant gets the numbers of another row, and keeps its name and place.
    fn quota(&mut self, at: usize, row: Tenant) -> Result<(), Refused> {
        let tenants = &self.planner.snapshot().tenants;
        let at = at % tenants.len();
        let before = tenants[at].clone();
        let row = Tenant {
            name: before.name,
            parent: before.parent,
            running_jobs: before.running_jobs,
            ..row
        };
        let ix = TenantIx(u32::try_from(at).expect("a small table"));
        self.apply(Change::Tenant(ix, Box::new(row)))
    }

    fn row(&self, pool: usize, row: usize) -> Option<(PoolIx, &Shape)> {
        let pools = &self.planner.snapshot().pools;
        let at = pool.checked_rem(pools.len())?;
        let rows = &pools[at].shapes;
        let row = rows.get(row.checked_rem(rows.len())?)?;
        Some((PoolIx(u32::try_from(at).expect("a small table")), row))
    }

    /// The gang with names and ordinals of this fleet.
    fn fitted(&mut self, gang: Waiting) -> Waiting {
        let snapshot = self.planner.snapshot();
        let tenants = u32::try_from(snapshot.tenants.len()).expect("a small table");
        let clusters = snapshot.clusters.len();
        self.next += 1;
        Waiting {
            gang: GangId {
                job: Uid(self.next / 2),
                index: u32::try_from(self.next % 2).expect("a bit"),
            },
            tenant: TenantIx(gang.tenant.0 % tenants),
            clusters: gang
                .clusters
                .iter()
                .copied()
                .filter(|it| it.index() < clusters)
                .collect(),
            lacking: gang
                .lacking
                .iter()
                .filter(|it| it.cluster.index() < clusters)
                .cloned()
                .collect(),
            submitted: UnixMillis(snapshot.now.0 - gang.submitted.0 * 500),
            ..gang
        }
    }

    fn has_limits(&self) -> bool {
        let tenants = &self.planner.snapshot().tenants;
        tenants.iter().any(|tenant| tenant.running_jobs.is_some())
    }

    fn start(&mut self, which: u32) -> Result<(), Refused> {
        let plan = self.planner.round().clone();
        let mut all = Vec::new();
        let snapshot = self.planner.snapshot();
        for placed in &plan.placements {
            let gang = &snapshot.waiting[placed.waiting.index()];
            all.push((held(snapshot, placed), rooms(gang, placed)));
        }
        for (bit, (held, rooms)) in all.into_iter().enumerate() {
            if which & (1 << (bit % 32)) == 0 {
                continue;
            }
            let (gang, pool) = (held.gang, held.pool.expect("it was placed in a pool"));
            let again = held.clone();
            // Who was placed on hosts that another left free needs those first.
            match self.apply(Change::Started(Box::new(held))) {
                Ok(()) => {
                    self.took.insert(gang, (pool, rooms));
                }
                Err(Refused::NoSuchHosts(_)) => {}
                // More than room and quota is at stake: it is told in two steps.
                Err(Refused::NotDecided(_)) if self.has_limits() => {
                    self.apply(Change::Left(gang))?;
                    self.apply(Change::Appeared(Box::new(again)))?;
                }
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }
}

fn changed(row: &Shape, before: Option<Resources>, after: Option<Resources>) -> RoomChange {
    RoomChange {
        domains: row.domains.clone(),
        allocatable: row.allocatable,
        before,
        after,
        hosts: 1,
    }
}

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

/// A fleet in which mostly nothing but room and quota is at stake.
fn snapshot() -> impl Strategy<Value = Snapshot> {
    (random::snapshot(), prop::bool::weighted(0.1)).prop_map(|(mut snapshot, limits)| {
        if !limits {
            for tenant in &mut snapshot.tenants {
                tenant.running_jobs = None;
            }
        }
        snapshot
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        max_shrink_iters: 2_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn each_round_is_what_it_would_be_alone(
        snapshot in snapshot(), history in vec(vec(event(), 1..4), 1..8),
    ) {
        let mut fleet = Fleet::new(snapshot);
        prop_assert_eq!(fleet.planner.plan(), decide(fleet.planner.snapshot()));
        for events in history {
            for event in events {
                fleet.happens(event).map_err(|error| TestCaseError::fail(error.to_string()))?;
            }
            let expected = decide(fleet.planner.snapshot());
            prop_assert_eq!(fleet.planner.plan(), expected);
        }
    }

    /// A planner comes to wherever a fleet is, from wherever it was.
    #[test]
    fn whoever_follows_is_where_the_fleet_is(
        snapshots in vec(random::snapshot(), 2..4), seeds in vec(any::<u64>(), 6),
    ) {
        let mut planner = Planner::new(mixed(&snapshots, 0));
        for seed in seeds {
            let next = mixed(&snapshots, seed);
            planner.follow(next.clone());
            prop_assert_eq!(in_order(planner.snapshot()), in_order(&next));
            prop_assert_eq!(planner.plan(), decide(planner.snapshot()));
        }
    }
}

/// The fleet of the first with some of the gangs, placements, tenants and rows of all.
fn mixed(snapshots: &[Snapshot], seed: u64) -> Snapshot {
    let mut bits = (0..).map(|at| seed.rotate_right(at) & 1 == 1);
    let mut picks = || bits.next().unwrap_or(true);
    let mut mixed = snapshots[0].clone();
    for other in &snapshots[1..] {
        for (own, other) in mixed.tenants.iter_mut().zip(&other.tenants) {
            if picks() {
                *own = Tenant {
                    name: own.name.clone(),
                    parent: own.parent,
                    ..other.clone()
                };
            }
        }
        for (own, other) in mixed.pools.iter_mut().zip(&other.pools) {
            if own.levels == other.levels && picks() {
                own.shapes.clone_from(&other.shapes);
            }
        }
    }
    // What names rows of these is followed in `preemption_rounds`.
    mixed.selectors.clear();
    mixed.overflowed.clear();
    mixed.movable.clear();
    mixed.holds.clear();
    mixed.waiting.retain(|_| picks());
    mixed.held.retain(|_| picks());
    mixed.held.sort_by_key(|row| (row.gang, row.epoch));
    mixed.held.dedup_by_key(|row| (row.gang, row.epoch));
    mixed.waiting.sort_by_key(|row| row.gang);
    mixed.waiting.dedup_by_key(|row| row.gang);
    mixed.now = UnixMillis(mixed.now.0 + i64::try_from(seed % 4).expect("small") * 700_000);
    mixed
}

/// The same, placements and gangs by their names.
fn in_order(snapshot: &Snapshot) -> Snapshot {
    let mut sorted = snapshot.clone();
    sorted.waiting.sort_by_key(|row| row.gang);
    sorted.held.sort_by_key(|row| (row.gang, row.epoch));
    for pool in &mut sorted.pools {
        pool.shapes = shapes::canonical(&pool.shapes);
    }
    sorted
}

/// 4 hosts of 8 GPUs, a tenant with quota for all of them, and three jobs that take 3 of them.
fn world() -> Planner {
    let world = World::new()
        .cluster("c")
        .pool("p", vec![hosts(4, &["b", "r"], 8)])
        .job("one", role(1, 8))
        .job("two", role(1, 8))
        .job("three", role(1, 8));
    let mut snapshot = world.0;
    snapshot.tenants = vec![Tenant {
        quotas: vec![quota(32, None)],
        ..tenant("team", None)
    }];
    Planner::new(snapshot)
}

fn start_all(planner: &mut Planner) {
    let plan = planner.round().clone();
    let snapshot = planner.snapshot();
    let all: Vec<Held> = plan
        .placements
        .iter()
        .map(|placed| held(snapshot, placed))
        .collect();
    for held in all {
        planner
            .apply(Change::Started(Box::new(held)))
            .expect("it was decided");
    }
}

#[test]
fn a_round_after_a_few_changes_is_not_a_full_one() {
    let mut planner = world();
    assert_eq!(planner.round().placements.len(), 3);
    start_all(&mut planner);
    assert!(planner.round().placements.is_empty(), "nobody waits");
    let waits = World::new().job("four", role(2, 8)).0.waiting.remove(0);
    let four = Waiting {
        gang: gang_id(4),
        ..waits
    };
    planner
        .apply(Change::Submitted(Box::new(four)))
        .expect("it is new");
    assert!(planner.round().placements.is_empty(), "one host is free");
    let (position, why) = planner.explain(gang_id(4)).expect("it waits");
    assert_eq!((position, why.waiting), (1, WaitingIx(0)));
    assert!(!why.reasons.is_empty(), "it is told why");
    let freed = RoomChange {
        domains: vec!["b".into(), "r".into()],
        allocatable: cards(8),
        before: Some(cards(0)),
        after: Some(cards(8)),
        hosts: 1,
    };
    let epoch = Epoch::first(StoreGeneration(1));
    planner
        .apply(Change::Ended(gang_id(1), epoch))
        .expect("it runs");
    planner
        .apply(Change::Room(PoolIx(0), vec![freed]))
        .expect("it was there");
    assert_eq!(planner.round().placements.len(), 1);
    assert_eq!((planner.rounds(), planner.full_rounds()), (4, 1));
    planner.edit(|snapshot| snapshot.clusters[0].cordoned = true);
    assert!(
        planner.round().placements.is_empty(),
        "the only cluster is closed"
    );
    assert_eq!(planner.full_rounds(), 2);
}

#[test]
fn what_can_not_have_happened_is_refused() {
    let mut planner = world();
    let one = planner.snapshot().waiting[0].clone();
    let again = planner.apply(Change::Submitted(Box::new(one)));
    assert_eq!(again, Err(Refused::There(gang_id(1))));
    assert_eq!(
        planner.apply(Change::Left(gang_id(9))),
        Err(Refused::NotWaiting(gang_id(9)))
    );
    let plan = planner.round().clone();
    let mut elsewhere = held(planner.snapshot(), &plan.placements[0]);
    elsewhere.resources = cards(4);
    let refused = planner.apply(Change::Started(Box::new(elsewhere)));
    assert_eq!(refused, Err(Refused::NotDecided(gang_id(1))));
    let gone = RoomChange {
        domains: vec!["b".into(), "r".into()],
        allocatable: cards(8),
        before: Some(cards(3)),
        after: None,
        hosts: 1,
    };
    let refused = planner.apply(Change::Room(PoolIx(0), vec![gone]));
    assert_eq!(refused, Err(Refused::NoSuchHosts(PoolIx(0))));
    assert_eq!(
        planner.plan(),
        decide(planner.snapshot()),
        "nothing has changed"
    );
}
