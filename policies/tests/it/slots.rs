//! Slots: a big gang is not starved by a stream of small ones, and what can run beside it does.

use std::collections::BTreeMap;

use meridian_api::reasons::Reason;
use meridian_api::units::{Millis, UnixMillis};
use meridian_policies::check::check;
use meridian_policies::decide;
use meridian_policies::model::*;
use proptest::prelude::*;

use crate::builders::{World, cards, gang_id, hosts, quota, role, tenant};

const MINUTE: i64 = 60_000;

fn minutes(count: i64) -> Millis {
    Millis((count * MINUTE).unsigned_abs())
}

/// A day after the epoch.
fn day() -> UnixMillis {
    UnixMillis(1440 * MINUTE)
}

/// A pool with `free` empty hosts and `busy` full ones, whose gangs end in an hour.
fn fleet(free: u32, busy: u32) -> World {
    let rows = vec![hosts(free, &[], 8), hosts(busy, &[], 0)];
    let mut world = World::new().cluster("c1").pool("main", rows);
    world.0.now = day();
    for _ in 0..busy {
        world = world.held(0, 8);
    }
    for held in &mut world.0.held {
        held.since = UnixMillis(day().0 - 60 * MINUTE);
        held.ends = Some(day().after(minutes(60)));
    }
    world
}

/// Submitted before `minutes`.
fn aged(ago: i64) -> impl Fn(&mut Waiting) {
    move |gang| gang.submitted = UnixMillis(day().0 - ago * MINUTE)
}

fn names(world: &World) -> Vec<String> {
    let plan = decide(&world.0);
    assert_eq!(check(&world.0, &plan), []);
    let name = |placed: &Placed| world.0.waiting[placed.waiting.index()].job.clone();
    let placed = plan.placements.iter().map(name);
    placed.map(|name| name.replace("research/", "")).collect()
}

#[test]
fn what_came_free_is_kept_for_the_oldest() {
    // Scenario 25: three of four hosts are free, the big one needs all four.
    let world = fleet(3, 1)
        .job_with("big", role(4, 8), aged(11))
        .job_with("long", role(1, 8), aged(1))
        .job_with("short", role(1, 8), |gang| {
            aged(1)(gang);
            gang.max_runtime = Some(minutes(60));
        });
    assert_eq!(names(&world), ["short"]);
}

#[test]
fn whoever_waits_for_less_than_ten_minutes_keeps_nothing() {
    let world =
        fleet(3, 1)
            .job_with("big", role(4, 8), aged(9))
            .job_with("long", role(3, 8), aged(1));
    assert_eq!(names(&world), ["long"]);
}

#[test]
fn hosts_that_a_slot_does_not_need_are_free_for_all() {
    let world =
        fleet(5, 1)
            .job_with("big", role(6, 8), aged(20))
            .job_with("long", role(1, 8), aged(1));
    assert_eq!(names(&world), Vec::<String>::new());
    let world =
        fleet(5, 3)
            .job_with("big", role(8, 8), aged(20))
            .job_with("long", role(1, 8), aged(1));
    assert_eq!(names(&world), Vec::<String>::new());
    let mut world =
        fleet(5, 3)
            .job_with("big", role(6, 8), aged(20))
            .job_with("long", role(2, 4), aged(1));
    // Two of the full hosts are half free: they are not the freest.
    world.0.pools[0].shapes = vec![hosts(5, &[], 8), hosts(1, &[], 4), hosts(2, &[], 0)];
    assert_eq!(names(&world), Vec::<String>::new());
    world.0.waiting[0].shape.roles[0].min = 5;
    world.0.waiting[0].shape.roles[0].max = 5;
    assert_eq!(names(&world), ["big"]);
}

#[test]
fn owners_of_slots_do_not_wait_for_each_other() {
    // Hosts for both, quota for one: the older goes first, and the younger keeps nothing from it.
    let mut world = fleet(4, 0)
        .job_with("younger", role(2, 8), aged(20))
        .job_with("older", role(2, 8), |gang| {
            aged(21)(gang);
            gang.class = ClassIx(1);
        });
    world.0.tenants[0].quotas = vec![quota(16, None)];
    assert_eq!(names(&world), ["older"]);
}

#[test]
fn a_service_stands_behind_no_batch() {
    let mut world =
        fleet(3, 1)
            .job_with("big", role(4, 8), aged(60))
            .job_with("service", role(1, 8), |gang| {
                aged(1)(gang);
                gang.class = ClassIx(1);
            });
    assert_eq!(names(&world), Vec::<String>::new());
    world.0.classes[1].ignores_slots = true;
    assert_eq!(names(&world), ["service"]);
}

#[test]
fn a_borrower_keeps_nothing_from_those_under_nominal() {
    let mut world = fleet(3, 1);
    let mut owner = tenant("white", None);
    owner.quotas = vec![quota(32, None)];
    world.0.tenants[0].quotas = vec![quota(8, None)];
    world.0.tenants.push(owner);
    let world = world
        .job_with("borrows", role(4, 8), aged(60))
        .job_with("borrows-too", role(1, 8), aged(5))
        .job_with("owns", role(1, 8), |gang| {
            aged(1)(gang);
            gang.tenant = TenantIx(1);
        });
    assert_eq!(names(&world), ["owns"]);
}

#[test]
fn quota_is_kept_too() {
    let mut world = fleet(4, 1);
    world.0.tenants[0].quotas = vec![quota(32, None)];
    // 8 of 32 are held: the big one needs 32, and each small one would keep it waiting.
    let world = world
        .job_with("big", role(4, 8), aged(30))
        .job_with("small", role(1, 8), aged(1));
    let plan = decide(&world.0);
    assert_eq!(plan.placements, []);
    let small = plan.unplaced.iter().find(|it| it.waiting == WaitingIx(1));
    let first = &small.expect("it waits").reasons[0];
    assert_eq!(first.reason, Reason::ReservedForOthers, "{first:?}");
}

#[test]
fn a_waiting_gang_is_told_when_it_may_start() {
    let world =
        fleet(3, 1)
            .job_with("big", role(4, 8), aged(30))
            .job_with("next", role(2, 8), aged(1));
    let plan = decide(&world.0);
    let start = |ix| {
        let left = plan.unplaced.iter().find(|it| it.waiting == WaitingIx(ix));
        left.expect("it waits").start
    };
    // What runs has run for an hour and says that it ends in another, which it seldom needs.
    let (soonest, end) = (
        day().after(Millis(minutes(60).0 / 16)),
        day().after(minutes(60)),
    );
    let told = Estimate {
        earliest: soonest,
        latest: Some(end),
    };
    assert_eq!(start(0), Some(told));
    let mut endless = world.0.clone();
    endless.held[0].ends = None;
    let plan = decide(&endless);
    let big = plan.unplaced.iter().find(|it| it.waiting == WaitingIx(0));
    let start = big.and_then(|it| it.start).expect("it has a slot");
    assert_eq!((start.earliest, start.latest), (soonest, None));
}

/// What runs in the small simulation: on which hosts with how many GPUs, until when.
struct Running {
    id: meridian_api::ids::GangId,
    hosts: Vec<(usize, u64)>,
    ends: UnixMillis,
}

/// A pool of single hosts with a clock.
struct Pool1 {
    world: World,
    free: Vec<u64>,
    running: Vec<Running>,
    submitted: u128,
}

impl Pool1 {
    fn new(count: usize) -> Self {
        let mut world = World::new().cluster("c1").pool("main", Vec::new());
        world.0.now = day();
        world.0.tenants.push(tenant("zeta", None));
        Self {
            world,
            free: vec![8; count],
            running: Vec::new(),
            submitted: 0,
        }
    }

    fn submit(&mut self, role: RoleShape, change: impl FnOnce(&mut Waiting)) {
        self.submitted += 1;
        let (id, now) = (gang_id(self.submitted), self.world.0.now);
        let world = std::mem::replace(&mut self.world, World(Snapshot::default()));
        self.world = world.job_with("job", role, |gang| {
            (gang.gang, gang.submitted) = (id, now);
            change(gang);
        });
    }

    /// One minute: what is over goes, then a round is decided. Returns who started.
    fn tick(&mut self) -> Vec<meridian_api::ids::GangId> {
        let now = self.world.0.now.after(minutes(1));
        self.world.0.now = now;
        for over in self.running.extract_if(.., |it| it.ends <= now) {
            for (host, gpus) in over.hosts {
                self.free[host] += gpus;
            }
            self.world.0.held.retain(|held| held.gang != over.id);
        }
        let mut rows: BTreeMap<u64, u32> = BTreeMap::new();
        for free in &self.free {
            *rows.entry(*free).or_default() += 1;
        }
        let rows = rows
            .into_iter()
            .map(|(free, count)| hosts(count, &[], free));
        self.world.0.pools[0].shapes = rows.collect();
        let plan = decide(&self.world.0);
        assert_eq!(check(&self.world.0, &plan), []);
        let mut started = Vec::new();
        for placed in &plan.placements {
            started.push(self.start(placed));
        }
        self.world
            .0
            .waiting
            .retain(|gang| !started.contains(&gang.gang));
        started
    }

    fn start(&mut self, placed: &Placed) -> meridian_api::ids::GangId {
        let gang = self.world.0.waiting[placed.waiting.index()].clone();
        let mut on = Vec::new();
        for take in &placed.takes {
            let gpus = gang.shape.roles[0].per_pod.gpus.whole() * u64::from(take.pods_per_host);
            for _ in 0..take.hosts {
                let fits = |host: &usize| self.free[*host] == take.free.gpus.whole();
                let host = (0..self.free.len())
                    .find(fits)
                    .expect("the plan was checked");
                self.free[host] -= gpus;
                on.push((host, gpus));
            }
        }
        let ends = self
            .world
            .0
            .now
            .after(gang.max_runtime.expect("all say so here"));
        self.world.0.held.push(Held {
            gang: gang.gang,
            epoch: gang.next_epoch,
            tenant: gang.tenant,
            class: gang.class,
            cluster: ClusterIx(0),
            flavor: FlavorIx(0),
            pool: Some(PoolIx(0)),
            ends: Some(ends),
            resources: cards(placed.gpus.whole()),
            pods: placed.pods.iter().sum(),
            rows: placed.rows.clone(),
            since: self.world.0.now,
            standing: Standing::default(),
        });
        self.running.push(Running {
            id: gang.gang,
            hosts: on,
            ends,
        });
        gang.gang
    }
}

/// One small gang of the stream: pods, GPUs of each, minutes, tenant, priority, in a hurry.
type Small = (u32, u64, i64, u32, i32, bool);

fn small() -> impl Strategy<Value = Small> {
    (
        1..4_u32,
        1..9_u64,
        1..40_i64,
        0..2_u32,
        0..9_i32,
        any::<bool>(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// L9: however the stream is made, the big gang starts.
    #[test]
    fn a_big_gang_is_never_starved(
        stream in proptest::collection::vec(small(), 8..40), big in 4..7_u32,
    ) {
        let mut fleet = Pool1::new(6);
        let mut next = stream.iter().cycle();
        let longest = stream.iter().map(|it| it.2).max().expect("never empty");
        let mut feed = |fleet: &mut Pool1, count: usize| {
            for (pods, gpus, length, tenant, priority, hurry) in next.by_ref().take(count) {
                fleet.submit(role(*pods, *gpus), |gang| {
                    gang.max_runtime = Some(minutes(*length));
                    gang.tenant = TenantIx(*tenant);
                    gang.priority = *priority;
                    gang.finish_by = hurry.then_some(day());
                });
            }
        };
        feed(&mut fleet, 12);
        fleet.tick();
        fleet.world.0.waiting.clear();
        fleet.submit(role(big, 8), |gang| gang.max_runtime = Some(minutes(30)));
        let wanted = gang_id(fleet.submitted);
        let mut waited = 0;
        while !fleet.tick().contains(&wanted) {
            waited += 1;
            // Its slot is firm after two hours; what runs then has ended when the longest has.
            prop_assert!(waited <= 121 + longest, "waits for {waited} min of {longest}");
            let gone = 10_usize.saturating_sub(fleet.world.0.waiting.len());
            feed(&mut fleet, gone);
        }
    }
}
