//! Reservations: a block is whole at its start, what ends before runs on it, and who is kept out
//! is told by whom and until when.

use meridian_api::kinds::reservation::FOREVER;
use meridian_api::reasons::Reason;
use meridian_api::units::{MilliGpus, Millis, UnixMillis};
use meridian_policies::check::check;
use meridian_policies::decide;
use meridian_policies::model::*;
use meridian_policies::reserved::block_states;
use proptest::prelude::*;

use crate::builders::{World, cards, gang_id, hosts, role, tenant};

const MINUTE: i64 = 60_000;

fn minutes(count: i64) -> Millis {
    Millis((count * MINUTE).unsigned_abs())
}

fn at(minute: i64) -> UnixMillis {
    UnixMillis(1_000_000 + minute * MINUTE)
}

/// `hosts` of the first pool for the second tenant, from and until so many minutes from now.
fn block(hosts: u32, from: i64, until: i64) -> Reserved {
    Reserved {
        name: "eval".into(),
        tenant: TenantIx(1),
        classes: Vec::new(),
        pool: PoolIx(0),
        hosts,
        from: at(from),
        until: at(until),
        lead: Millis::ZERO,
        lends: None,
    }
}

/// A pool of `count` empty hosts; tenants `team` and `wing`, which has `crew` below it.
fn fleet(count: u32, blocks: Vec<Reserved>) -> World {
    let mut world = World::new()
        .cluster("c1")
        .pool("main", vec![hosts(count, &[], 8)]);
    world.0.now = at(0);
    world.0.tenants = vec![
        tenant("team", None),
        tenant("wing", None),
        tenant("wren", Some(1)),
    ];
    world.0.reserved = blocks;
    world
}

fn lasts(minute: i64) -> impl Fn(&mut Waiting) {
    move |gang| gang.max_runtime = Some(minutes(minute))
}

fn of(tenant: u32) -> impl Fn(&mut Waiting) {
    move |gang| gang.tenant = TenantIx(tenant)
}

fn names(world: &World) -> Vec<String> {
    let plan = decide(&world.0);
    assert_eq!(check(&world.0, &plan), []);
    let name = |placed: &Placed| world.0.waiting[placed.waiting.index()].job.clone();
    let placed = plan.placements.iter().map(name);
    placed.map(|name| name.replace("research/", "")).collect()
}

#[test]
fn only_what_ends_before_runs_on_a_block_to_come() {
    let world = fleet(4, vec![block(4, 60, 120)])
        .job("endless", role(1, 8))
        .job_with("late", role(1, 8), lasts(61))
        .job_with("short", role(1, 8), lasts(60));
    assert_eq!(names(&world), ["short"]);
    let mut world = world;
    world.0.reserved[0].lead = minutes(1);
    assert_eq!(names(&world), Vec::<String>::new());
}

#[test]
fn what_the_block_does_not_need_is_free_for_all() {
    let world = fleet(4, vec![block(3, 60, 120)])
        .job("one", role(1, 8))
        .job("two", role(1, 8));
    assert_eq!(names(&world), ["one"]);
}

#[test]
fn its_own_tenant_and_those_below_use_it() {
    let world = fleet(2, vec![block(2, -5, 120)])
        .job("stranger", role(1, 8))
        .job_with("owner", role(1, 8), of(1))
        .job_with("below", role(1, 8), of(2));
    assert_eq!(names(&world), ["owner", "below"]);
    let mut world = world;
    world.0.reserved[0].classes = vec![ClassIx(1)];
    assert_eq!(names(&world), Vec::<String>::new());
}

#[test]
fn beyond_its_block_a_tenant_is_like_any_other() {
    let mut other = block(2, -5, 120);
    other.name = "other".into();
    other.tenant = TenantIx(0);
    let world = fleet(4, vec![block(2, -5, 120), other])
        .job_with("block", role(2, 8), of(1))
        .job_with("more", role(1, 8), of(1));
    assert_eq!(names(&world), ["block"]);
}

#[test]
fn blocks_that_follow_each_other_use_the_same_hosts() {
    let mut later = block(3, 60, 120);
    later.name = "later".into();
    let world = fleet(4, vec![block(3, 30, 60), later]).job("endless", role(1, 8));
    assert_eq!(names(&world), ["endless"]);
    let mut beside = block(3, 30, 60);
    beside.tenant = TenantIx(2);
    beside.hosts = 1;
    let world = fleet(4, vec![block(3, 30, 60), beside]).job("endless", role(1, 8));
    assert_eq!(names(&world), Vec::<String>::new());
}

#[test]
fn what_stands_unused_is_lent_for_as_long_as_the_owner_may_wait() {
    let mut lending = block(2, -5, 120);
    lending.lends = Some(Lends {
        classes: vec![ClassIx(0)],
        within: minutes(30),
    });
    let world = fleet(2, vec![lending])
        .job_with("long", role(1, 8), lasts(31))
        .job_with("soon", role(1, 8), lasts(30));
    assert_eq!(names(&world), ["soon"]);
    // Before it begins nobody may reach into it on that ground.
    let mut world = world;
    world.0.reserved[0].from = at(10);
    assert_eq!(names(&world), Vec::<String>::new());
}

#[test]
fn many_small_pods_are_told_apart_from_many_hosts_by_what_is_empty() {
    // Eight pods on one host could be on eight: counting alone would close the pool.
    let mut world = fleet(4, vec![block(2, 60, 120)]);
    world.0.pools[0].shapes = vec![hosts(3, &[], 8), hosts(1, &[], 0)];
    world = world.held(0, 8);
    world.0.held[0].pods = 8;
    let world = world.job("one", role(1, 8)).job("two", role(1, 8));
    assert_eq!(names(&world), ["one"]);
}

#[test]
fn a_host_that_its_tenant_shares_is_not_yet_the_blocks() {
    let mut world = fleet(2, vec![block(1, 60, 120)]);
    world.0.pools[0].shapes = vec![hosts(1, &[], 8), hosts(1, &[], 6)];
    let world = world
        .held(1, 2)
        .job("beside", role(1, 6))
        .job("alone", role(1, 8));
    assert_eq!(names(&world), ["beside"]);
}

#[test]
fn what_has_gone_and_is_still_written_down_fills_no_host() {
    let world = fleet(4, vec![block(3, -5, 120)])
        .held(1, 24)
        .job("endless", role(2, 8));
    let mut world = world;
    world.0.held[0].pods = 3;
    assert_eq!(names(&world), Vec::<String>::new());
}

#[test]
fn a_slot_waits_for_no_host_that_a_block_keeps() {
    let mut world = fleet(4, vec![block(2, 60, 120)])
        .job("big", role(3, 8))
        .job("small", role(2, 8));
    world.0.waiting[0].submitted = at(-20);
    world.0.waiting[1].submitted = at(-1);
    assert_eq!(names(&world), ["small"]);
}

#[test]
fn who_is_kept_out_is_told_by_whom_and_what_would_run() {
    let world = fleet(4, vec![block(4, 60, 120)]).job("endless", role(1, 8));
    let plan = decide(&world.0);
    let cause = &plan.unplaced[0].reasons[0];
    assert_eq!(cause.reason, Reason::ReservedForOthers);
    assert_eq!(
        cause.message.to_string(),
        "pool main: 4 hosts are reserved (eval) for tenant wing, who gets them in 60 min; what \
         runs for at most 60 min may run before that"
    );
    let amounts = cause.amounts.expect("it is about hosts");
    let gpus = [amounts.need, amounts.free, amounts.limit].map(MilliGpus::whole);
    assert_eq!(gpus, [8, 0, 32]);
    let mut world = world;
    world.0.reserved[0].from = at(-10);
    world.0.reserved[0].until = FOREVER;
    let plan = decide(&world.0);
    let message = plan.unplaced[0].reasons[0].message.to_string();
    assert!(
        message.ends_with("for tenant wing, who has them"),
        "{message}"
    );
}

#[test]
fn a_block_says_what_it_uses_and_what_stands_in_its_way() {
    let mut world = fleet(4, vec![block(3, 60, 120)]);
    world.0.pools[0].shapes = vec![hosts(1, &[], 8), hosts(3, &[], 0)];
    world = world.held(0, 16).held(1, 8);
    world.0.held[0].pods = 2;
    let states = block_states(&world.0);
    assert_eq!((states[0].used, states[0].ready), (1, 2));
    assert_eq!(
        (states[0].gpus_used.whole(), states[0].in_the_way.len()),
        (8, 1)
    );
    world.0.held[0].ends = Some(at(60));
    let states = block_states(&world.0);
    assert_eq!((states[0].ready, states[0].in_the_way.len()), (3, 0));
}

#[test]
fn the_checker_finds_what_breaks_a_block() {
    let mut world = fleet(2, Vec::new()).job("endless", role(1, 8));
    let plan = decide(&world.0);
    assert_eq!(plan.placements.len(), 1);
    world.0.reserved = vec![block(2, 60, 120)];
    let found = check(&world.0, &plan);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0]
            .message
            .contains("of 2 hosts 2 are reserved (eval)"),
        "{found:?}"
    );
}

/// Hosts of one pool with who stands on them, so that it is known what was really empty.
struct Ground {
    world: World,
    /// Gangs on each host: tenant, end, GPUs.
    on: Vec<Vec<(TenantIx, UnixMillis, u64)>>,
    submitted: u128,
}

impl Ground {
    fn free(&self, host: usize) -> u64 {
        8 - self.on[host].iter().map(|(.., gpus)| gpus).sum::<u64>()
    }

    fn shapes(&self) -> Vec<Shape> {
        let rows = (0..self.on.len()).map(|host| hosts(1, &[], self.free(host)));
        meridian_policies::shapes::canonical(&rows.collect::<Vec<_>>())
    }

    /// One minute: what has ended goes, then one round.
    fn tick(&mut self) {
        let now = self.world.0.now.after(minutes(1));
        self.world.0.now = now;
        self.on
            .iter_mut()
            .for_each(|host| host.retain(|(_, ends, _)| *ends > now));
        let held = &mut self.world.0.held;
        held.retain(|held| held.ends.is_some_and(|ends| ends > now));
        self.world.0.reserved.retain(|row| row.until > now);
        self.world.0.pools[0].shapes = self.shapes();
        let plan = decide(&self.world.0);
        assert_eq!(check(&self.world.0, &plan), []);
        let waiting = std::mem::take(&mut self.world.0.waiting);
        for placed in &plan.placements {
            self.start(&waiting[placed.waiting.index()], placed);
        }
    }

    fn start(&mut self, gang: &Waiting, placed: &Placed) {
        let ends = self
            .world
            .0
            .now
            .after(gang.max_runtime.expect("all say so here"));
        for take in &placed.takes {
            let gpus = gang.shape.roles[0].per_pod.gpus.whole() * u64::from(take.pods_per_host);
            for _ in 0..take.hosts {
                let fits = |host: &usize| self.free(*host) == take.free.gpus.whole();
                let host = (0..self.on.len()).find(fits).expect("the plan was checked");
                self.on[host].push((gang.tenant, ends, gpus));
            }
        }
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
    }
}

/// Pods, GPUs of each, minutes, tenant.
type Job = (u32, u64, i64, u32);

fn job() -> impl Strategy<Value = Job> {
    let gpus = prop_oneof![Just(1_u64), Just(2), Just(4), Just(8)];
    (1..4_u32, gpus, 1..50_i64, 0..3_u32)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Scenario 23: whatever came before, when a block begins enough hosts are there on which
    /// nobody stands but its own tenant.
    #[test]
    fn a_block_is_whole_at_its_start(
        stream in proptest::collection::vec(proptest::collection::vec(job(), 0..4), 30),
        first in 1..4_u32, second in 1..3_u32, begins in (5..20_i64, 5..25_i64),
    ) {
        let mut other = block(second, begins.1, begins.1 + 8);
        other.name = "other".into();
        other.tenant = TenantIx(0);
        let blocks = vec![block(first, begins.0, begins.0 + 10), other];
        let mut ground = Ground {
            world: fleet(6, blocks.clone()),
            on: vec![Vec::new(); 6],
            submitted: 0,
        };
        for jobs in stream {
            for (pods, gpus, length, tenant) in jobs {
                ground.submitted += 1;
                let id = gang_id(ground.submitted);
                let World(snapshot) = std::mem::replace(&mut ground.world, World::new());
                ground.world = World(snapshot).job_with("j", role(pods, gpus), |gang| {
                    gang.gang = id;
                    gang.max_runtime = Some(minutes(length));
                    gang.tenant = TenantIx(tenant);
                });
            }
            ground.tick();
            for row in blocks.iter().filter(|row| row.from == ground.world.0.now) {
                let below = |tenant: TenantIx| row.tenant.0 == 1 && tenant.0 == 2;
                let own = |tenant: TenantIx| tenant == row.tenant || below(tenant);
                let is_its = |host: &&Vec<_>| {
                    let mut on = host.iter();
                    on.all(|(tenant, ..): &(TenantIx, UnixMillis, u64)| own(*tenant))
                };
                let its = ground.on.iter().filter(is_its);
                prop_assert!(its.count() >= row.hosts as usize, "{:?}", ground.on);
            }
        }
    }
}
