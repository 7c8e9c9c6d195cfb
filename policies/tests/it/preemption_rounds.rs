//! Preemption over random histories: nobody takes turns, nobody is hit again and again, and whoever
//! makes others go gets what came free.
//!
//! Owns a small world that carries plans out host by host.

use std::collections::BTreeMap;

use meridian_api::ids::{Epoch, GangId, StoreGeneration, Uid};
use meridian_api::units::{Millis, Resources, UnixMillis};
use meridian_policies::check::check;
use meridian_policies::decide;
use meridian_policies::explain::render;
use meridian_policies::model::*;
use meridian_policies::planner::Planner;
use meridian_policies::preempt::given_up;
use proptest::prelude::*;

use crate::builders::{cards, quota, role, tenant};
use crate::ground::*;

/// Rounds of one long history.
const ROUNDS: usize = 1_000;
const HOSTS: usize = 6;

/// Somebody made room.
#[derive(Clone, Copy, Debug)]
struct Hit {
    victim: Uid,
    by: Uid,
    at: UnixMillis,
}

/// A gang that stands somewhere.
#[derive(Clone, Debug)]
struct Standing {
    held: Held,
    /// Host and GPUs of each pod.
    pods: Vec<(usize, u64)>,
    ends: UnixMillis,
    /// It goes then, for that job.
    leaves: Option<(UnixMillis, Uid)>,
}

/// The world, host by host.
struct World {
    base: Snapshot,
    /// Follows it from round to round.
    planner: Planner,
    now: UnixMillis,
    free: Vec<u64>,
    standing: BTreeMap<GangId, Standing>,
    waiting: BTreeMap<GangId, Waiting>,
    holds: BTreeMap<GangId, (Hold, Vec<(usize, u64)>)>,
    hits: Vec<Hit>,
    /// The highest class and a few others ask for whole hosts, and all others for a part of one.
    is_fragmented: bool,
    /// Decisions in which others moved aside.
    compactions: u32,
    /// How many of those hits were moves.
    moved: u32,
    random: u64,
    next: u128,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut base = Ground::new().cluster("c1").pool("main", &[]).build();
        base.tenants = vec![tenant("left", None), tenant("right", None)];
        base.tenants[0].quotas = vec![quota(24, None)];
        base.tenants[1].quotas = vec![quota(24, None)];
        base.classes[BATCH.index()].rule.min_runtime = Millis::seconds(300);
        Self {
            planner: Planner::new(base.clone()),
            base,
            now: NOW,
            free: vec![8; HOSTS],
            standing: BTreeMap::new(),
            waiting: BTreeMap::new(),
            holds: BTreeMap::new(),
            hits: Vec::new(),
            is_fragmented: false,
            compactions: 0,
            moved: 0,
            random: seed | 1,
            next: 1,
        }
    }

    fn below(&mut self, most: u64) -> u64 {
        let next = self.random.wrapping_mul(6_364_136_223_846_793_005);
        self.random = next.wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % most
    }

    fn arrive(&mut self) {
        let id = GangId {
            job: Uid(self.next),
            index: 0,
        };
        self.next += 1;
        let mut size = [1, 2, 4, 8][usize::try_from(self.below(4)).expect("small")];
        let pods = if size == 8 { 1 + self.below(2) } else { 1 };
        let class = [BATCH, ELASTIC, LONG, PROD][usize::try_from(self.below(4)).expect("small")];
        if self.is_fragmented {
            let is_large = class == PROD || class == BATCH && self.below(4) == 0;
            size = if is_large { 8 } else { size.min(2) };
        }
        let tenant = u32::try_from(self.below(2)).expect("small");
        let shape = GangShape {
            roles: vec![role(u32::try_from(pods).expect("small"), size)],
        };
        let waiting = Waiting {
            gang: id,
            job: format!("research/{}", id.job.0),
            tenant: TenantIx(tenant),
            class,
            submitted: self.now,
            job_gpus: shape.gpus(&shape.most()),
            shape: shape.into(),
            next_epoch: Epoch::first(StoreGeneration(1)),
            ..Self::template()
        };
        self.waiting.insert(id, waiting);
    }

    /// Somebody who waits does not want to any more.
    fn withdraw(&mut self) {
        let all = u64::try_from(self.waiting.len()).expect("small");
        let nth = usize::try_from(self.below(all.max(1))).expect("small");
        if let Some(gang) = self.waiting.keys().nth(nth).copied() {
            self.waiting.remove(&gang);
        }
    }

    /// A waiting gang with nothing out of the ordinary.
    fn template() -> Waiting {
        let snapshot = Ground::new()
            .cluster("c1")
            .pool("main", &[])
            .asks("any", role(1, 1), |_| {})
            .build();
        snapshot.waiting[0].clone()
    }

    fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.base.clone();
        snapshot.now = self.now;
        let row = |free: u64| Shape {
            domains: vec!["r1".into()],
            allocatable: cards(8),
            free: cards(free),
            hosts: 1,
        };
        let rows: Vec<Shape> = self.free.iter().map(|free| row(*free)).collect();
        snapshot.pools[0].shapes = meridian_policies::shapes::canonical(&rows);
        let shape = |free: u64| {
            let rows = &snapshot.pools[0].shapes;
            let at = rows.iter().position(|row| row.free == cards(free));
            u32::try_from(at.expect("its row")).expect("small")
        };
        let hosts = self.free.iter().map(|free| HostRow {
            pool: PoolIx(0),
            shape: shape(*free),
        });
        snapshot.hosts = hosts.collect();
        snapshot.held = self.standing.values().map(|it| it.held.clone()).collect();
        snapshot.waiting = self.waiting.values().cloned().collect();
        snapshot
            .waiting
            .sort_by_key(|gang| (gang.submitted, gang.gang));
        let ix = |gang: GangId| {
            let at = self.standing.keys().position(|own| *own == gang)?;
            Some(HeldIx(u32::try_from(at).expect("small")))
        };
        for held in snapshot.held.iter_mut().filter(|it| it.class == LONG) {
            held.standing.saved = Some(self.now);
        }
        let movers = self.standing.values();
        let movers = movers.filter(|it| it.held.class != PROD);
        let movers = movers.map(|it| Movable {
            held: ix(it.held.gang).expect("it stands"),
            gang: Self::again(it),
        });
        snapshot.movable = movers.collect();
        for (hold, _) in self.holds.values() {
            let mut hold = hold.clone();
            let by = hold.gang.job;
            let victims = self.standing.values();
            let victims = victims.filter(|it| it.leaves.is_some_and(|(_, to)| to == by));
            hold.victims = victims
                .map(|it| Leaving {
                    held: ix(it.held.gang).expect("it stands"),
                    resources: it.held.resources,
                })
                .collect();
            snapshot.holds.push(hold);
        }
        snapshot
    }

    /// Whatever ends or has to be gone by now.
    fn pass(&mut self, span: Millis) {
        self.now = self.now.after(span);
        let over: Vec<GangId> = self
            .standing
            .iter()
            .filter(|(_, it)| it.ends <= self.now)
            .map(|(gang, _)| *gang)
            .collect();
        for gang in over {
            self.take_off(gang);
        }
        let gone: Vec<(GangId, Uid)> = self
            .standing
            .iter()
            .filter_map(|(gang, it)| it.leaves.map(|(at, by)| (*gang, at, by)))
            .filter(|(_, at, _)| *at <= self.now)
            .map(|(gang, _, by)| (gang, by))
            .collect();
        for (gang, by) in gone {
            let it = self.take_off(gang);
            let mut waiting = Self::again(&it);
            self.moved += u32::from(self.holds.contains_key(&gang));
            self.hits.push(Hit {
                victim: gang.job,
                by,
                at: self.now,
            });
            let mine = self.hits.iter().filter(|hit| hit.victim == gang.job);
            waiting.evicted_by = mine
                .map(|hit| EvictedBy {
                    job: hit.by,
                    at: hit.at,
                })
                .collect();
            self.waiting.insert(gang, waiting);
        }
    }

    /// What stands there, when it waits again.
    fn again(it: &Standing) -> Waiting {
        Waiting {
            gang: it.held.gang,
            job: it.held.standing.job.clone(),
            tenant: it.held.tenant,
            class: it.held.class,
            submitted: it.held.since,
            shape: it.held.standing.shape.clone().into(),
            job_gpus: it.held.resources.gpus,
            next_epoch: Epoch(it.held.epoch.0 + 1),
            ..Self::template()
        }
    }

    fn take_off(&mut self, gang: GangId) -> Standing {
        let it = self.standing.remove(&gang).expect("it stands");
        for (host, gpus) in &it.pods {
            self.free[*host] += gpus;
        }
        it
    }

    fn carry_out(&mut self, snapshot: &Snapshot, plan: &Plan) {
        for lapsed in &plan.lapsed {
            let gang = snapshot.holds[lapsed.hold.index()].gang;
            assert!(lapsed.why != Lapse::Expired, "victims went in time: {gang}");
            self.spare(gang);
        }
        // In the order of the decisions: who is placed after room was kept keeps off it.
        let mut made = plan.preemptions.iter().peekable();
        for (placed, at) in plan.placements.iter().zip(0_u32..) {
            while let Some(made) = made.next_if(|made| made.after <= at) {
                self.hold(snapshot, made);
            }
            let gang = snapshot.waiting[placed.waiting.index()].clone();
            self.spare(gang.gang);
            self.place(&gang, placed);
        }
        made.for_each(|made| self.hold(snapshot, made));
        for regraded in &plan.regraded {
            let gang = snapshot.held[regraded.held.index()].gang;
            if let Some(it) = self.standing.get_mut(&gang) {
                it.held.rows.clone_from(&regraded.rows);
            }
        }
    }

    /// The hold is gone; whoever has not left stays.
    fn spare(&mut self, gang: GangId) {
        self.holds.remove(&gang);
        for it in self.standing.values_mut() {
            it.leaves = it.leaves.filter(|(_, by)| *by != gang.job);
        }
    }

    fn hold(&mut self, snapshot: &Snapshot, made: &Preemption) {
        let is_aside = made.victims[0].rule == Rule::Compaction;
        self.compactions += u32::from(is_aside);
        let mut holds = made.holds(snapshot);
        // Who goes on elsewhere has its place held, on hosts that nobody has to leave.
        for next in holds.drain(1..) {
            self.holds.insert(next.gang, (next, Vec::new()));
        }
        let hold = holds.remove(0);
        for victim in &made.victims {
            let held = &snapshot.held[victim.held.index()];
            assert_eq!(
                given_up(held, &victim.does),
                held.resources,
                "all are rigid"
            );
            let it = self.standing.get_mut(&held.gang).expect("it stands");
            it.leaves = Some((victim.deadline, hold.gang.job));
        }
        let known = hold.room.iter().flat_map(|room| {
            let need = room.need.gpus.whole();
            room.known.iter().map(move |host| (host.index(), need))
        });
        let known = known.collect();
        self.holds.insert(hold.gang, (hold, known));
    }

    /// A host that looks to others as if it had so many GPUs free; one that is kept for somebody
    /// comes last.
    fn host_like(&self, looks: u64) -> usize {
        // As its row looks to others: without what is kept there.
        let kept = |host: usize| -> u64 {
            let all = self.holds.values().flat_map(|(_, known)| known);
            all.filter(|(at, _)| *at == host)
                .map(|(_, need)| need)
                .sum()
        };
        let seen = |host: usize| self.free[host].saturating_sub(kept(host));
        let hosts = (0..HOSTS).filter(|host| self.free[*host] >= looks);
        let host = hosts.min_by_key(|host| {
            let other = seen(*host) != looks;
            (other, kept(*host) > 0, self.free[*host], *host)
        });
        host.expect("the room is there")
    }

    /// Puts a gang on hosts that look as its takes say.
    fn place(&mut self, gang: &Waiting, placed: &Placed) {
        let mut pods = Vec::new();
        for take in &placed.takes {
            for _ in 0..take.hosts {
                let host = self.host_like(take.free.gpus.whole());
                for _ in 0..take.pods_per_host {
                    let gpus = gang.shape.roles[0].per_pod.gpus.whole();
                    self.free[host] -= gpus;
                    pods.push((host, gpus));
                }
            }
        }
        let mut seats: BTreeMap<usize, (Resources, u32)> = BTreeMap::new();
        for (host, gpus) in &pods {
            let seat = seats.entry(*host).or_default();
            seat.0 = seat.0.checked_add(cards(*gpus)).expect("small");
            seat.1 += 1;
        }
        let seat = |(host, (held, pods)): (usize, (Resources, u32))| Seat {
            host: HostIx(u32::try_from(host).expect("small")),
            held,
            pods: vec![pods],
        };
        let runs = Millis::seconds(600 + self.below(7_200));
        let evictions = self.hits.iter().filter(|hit| hit.victim == gang.gang.job);
        let held = Held {
            gang: gang.gang,
            epoch: gang.next_epoch,
            tenant: gang.tenant,
            class: gang.class,
            cluster: ClusterIx(0),
            pool: Some(PoolIx(0)),
            resources: gang.shape.demand(&placed.pods),
            rows: placed.rows.clone(),
            since: self.now,
            standing: meridian_policies::model::Standing {
                job: gang.job.clone(),
                stage: Stage::Running,
                started: Some(self.now),
                saved: None,
                full: placed.pods.clone(),
                shape: (*gang.shape).clone(),
                seats: seats.into_iter().map(seat).collect(),
                evictions: evictions.map(|hit| hit.at).collect(),
            },
            ..some_held()
        };
        self.waiting.remove(&gang.gang);
        let standing = Standing {
            held,
            pods,
            ends: self.now.after(runs),
            leaves: None,
        };
        self.standing.insert(gang.gang, standing);
    }

    fn round(&mut self) {
        let snapshot = self.snapshot();
        let plan = decide(&snapshot);
        let wrong = check(&snapshot, &plan);
        assert_eq!(wrong, [], "{}", render(&snapshot, &plan));
        self.planner.follow(snapshot.clone());
        let alone = decide(self.planner.snapshot());
        assert_eq!(self.planner.plan(), alone, "round after round (S27)");
        let in_order = lines(&render(&snapshot, &plan));
        let as_told = lines(&render(self.planner.snapshot(), &alone));
        assert_eq!(as_told, in_order, "whatever order the tables are in");
        if plan.leaves_all() {
            self.time_alone(&snapshot);
        }
        self.carry_out(&snapshot, &plan);
    }

    /// Until the planner says, whatever was refused stays so, however much time passes.
    fn time_alone(&self, snapshot: &Snapshot) {
        let again = self.planner.again();
        let until = again.unwrap_or(self.now.after(Millis::seconds(14_400)));
        let most = until.since(self.now).0;
        assert!(most > 0, "something is due at {until}, and was not decided");
        let passes = self.random % most;
        let later = Snapshot {
            now: self.now.after(Millis(passes)),
            ..snapshot.clone()
        };
        let plan = decide(&later);
        assert!(plan.leaves_all(), "{again:?}: {}", render(&later, &plan));
    }
}

/// The lines of a text, in no order.
fn lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// A placement with nothing out of the ordinary.
fn some_held() -> Held {
    let snapshot = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("any", 1)]])
        .build();
    snapshot.held[0].clone()
}

/// What must be so of any history.
fn judge(hits: &[Hit]) {
    for (at, hit) in hits.iter().enumerate() {
        let hour = hits[..=at]
            .iter()
            .filter(|other| other.victim == hit.victim && hit.at.since(other.at).0 < 3_600_000);
        assert!(hour.count() <= 3, "{} is hit again and again", hit.victim);
        let turned = hits[..at].iter().find(|other| {
            // Decided a notice before it happened.
            other.victim == hit.by && other.by == hit.victim && hit.at.since(other.at).0 < 1_680_000
        });
        assert!(turned.is_none(), "they take turns: {turned:?} {hit:?}");
    }
}

/// A long history in which somebody comes in every `one_in`th round.
fn long_history(mut world: World, one_in: u64) -> World {
    for _ in 0..ROUNDS {
        world.pass(Millis::seconds(60));
        if world.below(one_in) == 0 && world.waiting.len() < 12 {
            world.arrive();
        }
        world.round();
    }
    judge(&world.hits);
    assert_eq!(world.planner.full_rounds(), 1);
    world
}

#[test]
fn nobody_takes_turns_in_a_thousand_rounds() {
    let world = long_history(World::new(7), 2);
    assert!(world.hits.len() > 20, "{} hits", world.hits.len());
}

#[test]
fn with_room_to_spare_those_who_make_room_go_on_elsewhere() {
    let fragmented = World {
        is_fragmented: true,
        ..World::new(7)
    };
    let world = long_history(fragmented, 5);
    assert!(world.moved > 3, "{} of {}", world.moved, world.hits.len());
    assert!(world.compactions > 0, "{} moves", world.moved);
}

fn history(seed: u64, steps: usize) {
    let mut world = World::new(seed);
    for _ in 0..steps {
        let span = 10 + world.below(300);
        world.pass(Millis::seconds(span));
        for _ in 0..world.below(3) {
            world.arrive();
        }
        if world.below(8) == 0 {
            world.withdraw();
        }
        world.round();
    }
    judge(&world.hits);
}

#[test]
fn a_hold_does_not_wait_for_those_who_leave_for_another() {
    history(10_824_540_268_319_384_784, 20);
}

#[test]
fn a_host_that_one_hold_knows_is_not_any_host_to_another() {
    history(8_772_518_795_381_403_840, 22);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Every plan is just, every hold is met in time, and nobody takes turns.
    #[test]
    fn random_histories_are_just(seed in any::<u64>(), steps in 20_usize..80) {
        history(seed, steps);
    }
}
