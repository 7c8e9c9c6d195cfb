//! Where gangs go, by cost, law, data, taints, labels, networks and groups: golden plans and the
//! rules one by one.

use meridian_api::ids::GangId;
use meridian_api::kinds::federated_job::{
    Affinity, FabricWish, JobRelation, LabelOperator, LabelRule, Objective, Toleration,
    TolerationOperator,
};
use meridian_api::kinds::gpu_pool::{Fabric, FabricKind, PoolCapacity};
use meridian_api::kinds::member_cluster::{Taint, TaintEffect};
use meridian_api::kinds::workload_class::CapacityType;
use meridian_api::units::{MicroMoney, Millis, UnixMillis};
use meridian_policies::check::check;
use meridian_policies::decide;
use meridian_policies::model::*;
use proptest::prelude::*;

use crate::builders::{World, hosts, quota, role};
use crate::golden::golden;
use crate::random;

const HOUR: u64 = 3_600_000;

fn cents(cents: i64) -> MicroMoney {
    MicroMoney(cents * 10_000)
}

/// Regions `east` (EU), `north` (EU) and `west` (US), with a cluster of one pool of 4 x 8 GPUs in
/// each. A card-hour costs 3.00, 2.00 and 1.00, a gigabyte out of any region 0.02.
fn three_regions() -> World {
    let mut world = World::new();
    for name in ["east", "north", "west"] {
        world = world.cluster(name).pool("main", vec![hosts(4, &["r1"], 8)]);
    }
    let snapshot = &mut world.0;
    snapshot.regions = ["east", "north", "west"].map(str::to_owned).to_vec();
    snapshot.region_facts = ["EU", "EU", "US"]
        .map(|law| RegionFacts {
            jurisdiction: Some(law.to_owned()),
            egress: vec![Some(cents(2)); 3],
            ..RegionFacts::default()
        })
        .to_vec();
    let places = snapshot.clusters.iter_mut().zip(&mut snapshot.pools);
    for ((cluster, pool), (region, price)) in places.zip([(0, 300), (1, 200), (2, 100)]) {
        cluster.region = RegionIx(region);
        pool.facts.price = Some(cents(price));
        pool.facts.borrowed_price = Some(cents(price));
    }
    snapshot.choices = vec![Choice::default()];
    world
}

/// A job of two pods of 8 GPUs that asks for something.
fn asking(mut world: World, name: &str, choice: Choice) -> World {
    let ix = ChoiceIx(u32::try_from(world.0.choices.len()).expect("a small table"));
    world.0.choices.push(choice);
    world.job_with(name, role(2, 8), |gang| gang.choice = ix)
}

/// Cluster of each placed job, by name of the job.
fn placed(world: &World) -> Vec<(String, String)> {
    let plan = decide(&world.0);
    assert_eq!(check(&world.0, &plan), []);
    let place = |placed: &Placed| {
        let pool = &world.0.pools[placed.pool.index()];
        let job = &world.0.waiting[placed.waiting.index()].job;
        let cluster = &world.0.clusters[pool.cluster.index()].name;
        (job.replace("research/", ""), cluster.clone())
    };
    plan.placements.iter().map(place).collect()
}

fn cluster_of(world: &World, job: &str) -> Option<String> {
    let all = placed(world);
    all.into_iter()
        .find(|(name, _)| name == job)
        .map(|(_, cluster)| cluster)
}

fn corpus(gigabytes: Option<u64>) -> Vec<DataNeed> {
    vec![DataNeed {
        uri: "s3://corpus".to_owned(),
        regions: vec![RegionIx(0)],
        gigabytes,
    }]
}

#[test]
fn data_law_and_price_decide_and_the_scores_are_shown() {
    // Scenario 20. A run of an hour on 16 cards costs 48, 32 or 16 of money.
    let world = asking(three_regions(), "cheapest-anywhere", Choice::default());
    let law = Choice {
        jurisdiction: Some("EU".to_owned()),
        ..Choice::default()
    };
    let world = asking(world, "under-eu-law", law);
    let large = Choice {
        data: corpus(Some(5_000)),
        ..Choice::default()
    };
    let world = asking(world, "near-large-data", large);
    let small = Choice {
        data: corpus(Some(100)),
        objective: Objective::Cheapest,
        ..Choice::default()
    };
    let world = asking(world, "far-from-small-data", small);
    let both = Choice {
        data: corpus(None),
        jurisdiction: Some("US".to_owned()),
        ..Choice::default()
    };
    golden("choice_price_law_data", &asking(world, "nowhere", both));
}

#[test]
fn taints_keep_away_all_but_those_that_bear_them_for_good() {
    // Scenario 21, for what wants to come; what is there already is the hub's.
    let mut world = three_regions();
    let taint = |effect| Taint {
        key: "maintenance".to_owned(),
        value: String::new(),
        effect,
        time_added: None,
    };
    world.0.clusters[0].facts.taints = vec![taint(TaintEffect::NoExecute)];
    world.0.clusters[1].facts.taints = vec![taint(TaintEffect::PreferNoSchedule)];
    world.0.clusters[2].facts.taints = vec![taint(TaintEffect::NoSchedule)];
    let bears = |seconds| Choice {
        tolerations: vec![Toleration {
            key: "maintenance".to_owned(),
            operator: TolerationOperator::Exists,
            toleration_seconds: seconds,
            ..Toleration::default()
        }],
        ..Choice::default()
    };
    let world = asking(world, "bears-nothing", Choice::default());
    let world = asking(world, "bears-zero-seconds", bears(Some(0)));
    let world = asking(world, "bears-an-hour", bears(Some(3_600)));
    golden(
        "choice_taints",
        &asking(world, "bears-for-good", bears(None)),
    );
}

/// H100 in `east` at 3.00, MI300X in `north` at 2.40.
fn two_makes() -> World {
    let mut world = three_regions();
    world.0.flavors.push(Flavor {
        name: "mi300x".into(),
        worth: 1000,
    });
    world.0.pools[1].flavor = FlavorIx(1);
    world.0.pools[1].facts.price = Some(cents(240));
    world.0.pools[2].shapes.clear();
    world
}

fn on_both(objective: Objective, mi300x: u32) -> (World, String) {
    let choice = Choice {
        objective,
        ..Choice::default()
    };
    let mut world = asking(two_makes(), "job", choice);
    let accept = |flavor, speed| Accepted {
        flavor: FlavorIx(flavor),
        speed,
    };
    world.0.waiting[0].flavors = vec![accept(0, 1000), accept(1, mi300x)].into();
    let cluster = cluster_of(&world, "job").expect("it fits in both");
    (world, cluster)
}

#[test]
fn relative_speeds_decide_where_it_ends_sooner_or_cheaper() {
    // Scenario 22. On MI300X at speed 0.7 an hour of H100 costs 3.43 instead of 3.00, at 0.9 2.67.
    let goes = |objective, speed| on_both(objective, speed).1;
    assert_eq!(goes(Objective::Cheapest, 700), "east");
    assert_eq!(goes(Objective::Cheapest, 900), "north");
    assert_eq!(goes(Objective::Soonest, 900), "east");
    assert_eq!(goes(Objective::Soonest, 1300), "north");
    // Cost times time: 2.67 x 1.11 is less than 3.00, 2.82 x 1.18 is not.
    assert_eq!(goes(Objective::Balanced, 900), "north");
    assert_eq!(goes(Objective::Balanced, 850), "east");
    // Equally fast and nothing said: the order in which they are written.
    assert_eq!(goes(Objective::Balanced, 1000), "east");
    golden("choice_speeds", &on_both(Objective::Cheapest, 900).0);
}

#[test]
fn a_pool_that_is_closed_to_a_class_says_so() {
    // Scenario 74.
    let mut world = three_regions();
    for pool in &mut world.0.pools {
        pool.classes = vec![ClassIx(1)];
    }
    world.0.pools[2].classes.clear();
    let world = asking(world, "batch-goes-west", Choice::default());
    let mut world = asking(world, "batch-only-east", Choice::default());
    world.0.waiting[1].clusters = vec![ClusterIx(0)].into();
    golden("choice_closed_to_class", &world);
}

#[test]
fn the_next_group_is_used_when_the_first_is_full() {
    // Scenario 13: who came second is in the second group, and the score says so.
    let group = |name: &str, region| Group {
        name: name.to_owned(),
        regions: vec![RegionIx(region)],
        ..Group::default()
    };
    let choice = || Choice {
        groups: vec![group("home", 0), group("cloud", 2)],
        ..Choice::default()
    };
    let mut world = three_regions();
    for name in ["one", "two", "three", "four", "five"] {
        world = asking(world, name, choice());
    }
    golden("choice_groups", &world);
}

/// Gangs that run in `west` because `east` was full, placed one after the other, and so many free
/// hosts in `east` now.
fn overflowed(minutes: &[i64], free: u32) -> World {
    let group = |name: &str, region| Group {
        name: name.to_owned(),
        regions: vec![RegionIx(region)],
        ..Group::default()
    };
    let choice = Choice {
        groups: vec![group("home", 0), group("cloud", 2)],
        ..Choice::default()
    };
    let mut world = three_regions();
    world.0.now = UnixMillis(6_000_000);
    world.0.pools[0].shapes = vec![hosts(free, &["r1"], 8)];
    for minute in minutes {
        let name = format!("placed-at-{minute}");
        world = asking(world, &name, choice.clone()).held(0, 16);
        let gang = world.0.waiting.pop().expect("just made");
        let number = u32::try_from(world.0.held.len()).expect("a small table");
        let held = world.0.held.last_mut().expect("just made");
        held.gang = GangId {
            index: number,
            ..gang.gang
        };
        held.since = UnixMillis(minute * 60_000);
        (held.cluster, held.pool) = (ClusterIx(2), Some(PoolIx(2)));
        world.0.overflowed.push(Overflowed {
            held: HeldIx(number - 1),
            gang: Waiting {
                gang: held.gang,
                ..gang
            },
        });
    }
    world
}

#[test]
fn overflow_is_given_back_newest_first_when_the_first_group_frees() {
    // Scenario 13. Now is minute 100; each gang takes two hosts.
    let going = |minutes: &[i64], free| {
        let world = overflowed(minutes, free);
        let plan = decide(&world.0);
        assert_eq!(check(&world.0, &plan), []);
        plan.returning
            .iter()
            .map(|held| minutes[held.index()])
            .collect::<Vec<_>>()
    };
    assert_eq!(going(&[10, 30, 20], 4), [30, 20]);
    assert_eq!(going(&[10, 30, 20], 1), Vec::<i64>::new());
    // Who was placed a minute ago stays; what waits goes first.
    assert_eq!(going(&[10, 99], 2), [10]);
    let mut world = overflowed(&[10, 30, 20], 4);
    world = asking(world, "waits", Choice::default());
    world.0.waiting[0].clusters = vec![ClusterIx(0)].into();
    golden("choice_overflow_returns", &world);
}

#[test]
fn other_jobs_are_kept_away_from_or_near() {
    let wish = |rule, key: &str| Choice {
        jobs: vec![JobWish {
            rule,
            topology_key: key.to_owned(),
            selector: 0,
        }],
        ..Choice::default()
    };
    // One job runs in `west`, another waits first and goes there too.
    let mut world = asking(three_regions(), "indexer", Choice::default()).held(0, 8);
    world.0.held[0].cluster = ClusterIx(2);
    world.0.waiting[0].clusters = vec![ClusterIx(1)].into();
    let world = asking(world, "apart", wish(JobRelation::Apart, "cluster"));
    let world = asking(
        world,
        "apart-by-law",
        wish(JobRelation::Apart, "jurisdiction"),
    );
    let world = asking(world, "together", wish(JobRelation::Together, "region"));
    let mut world = asking(
        world,
        "together-in-east",
        wish(JobRelation::Together, "region"),
    );
    world.0.waiting[4].clusters = vec![ClusterIx(0)].into();
    world.0.selectors = vec![Selector {
        namespace: "research".to_owned(),
        labels: [("app".to_owned(), "indexer".to_owned())].into(),
        held: vec![HeldIx(0)],
        waiting: vec![WaitingIx(0)],
    }];
    golden("choice_other_jobs", &world);
}

#[test]
fn labels_networks_and_capacity_are_asked_for_by_rule() {
    let mut world = three_regions();
    world.0.clusters[0].facts.labels = [("tier".to_owned(), "gold".to_owned())].into();
    world.0.region_facts[1].labels = [("tier".to_owned(), "silver".to_owned())].into();
    let fabric = |kind, gbps| Some(Fabric { kind, gbps });
    world.0.pools[0].facts.fabric = fabric(FabricKind::RoCE, 200);
    world.0.pools[1].facts.fabric = fabric(FabricKind::InfiniBand, 400);
    world.0.pools[2].facts.capacity = PoolCapacity::Spot;
    let rule = |operator, values: &[&str]| LabelRule {
        key: "tier".to_owned(),
        operator,
        values: values.iter().map(|it| (*it).to_owned()).collect(),
    };
    let gold = Choice {
        affinity: Affinity {
            required: vec![rule(LabelOperator::In, &["gold"])],
            preferred: Vec::new(),
        },
        ..Choice::default()
    };
    let wishes_gold = Choice {
        affinity: Affinity {
            required: Vec::new(),
            preferred: gold.affinity.required.clone(),
        },
        ..Choice::default()
    };
    let fast = Choice {
        fabric: Some(FabricWish {
            kinds: vec![FabricKind::InfiniBand],
            min_gbps: Some(400),
        }),
        ..Choice::default()
    };
    let own_only = Choice {
        capacity: vec![CapacityType::Nominal],
        ..Choice::default()
    };
    let faster = Choice {
        fabric: Some(FabricWish {
            kinds: Vec::new(),
            min_gbps: Some(800),
        }),
        ..Choice::default()
    };
    let world = asking(world, "gold", gold);
    let world = asking(world, "wishes-gold", wishes_gold);
    let world = asking(world, "fast", fast);
    let world = asking(world, "own-only", own_only);
    golden("choice_rules", &asking(world, "faster", faster));
}

#[test]
fn who_may_not_borrow_waits_on_its_own_quota() {
    let own_only = Choice {
        capacity: vec![CapacityType::Nominal],
        ..Choice::default()
    };
    let mut world = asking(three_regions(), "own-only", own_only);
    world = asking(world, "borrows", Choice::default());
    world.0.tenants.push(crate::builders::tenant("zeta", None));
    world.0.tenants[0].quotas = vec![quota(8, Some(64))];
    world.0.waiting[1].priority = 1;
    world.0.tenants[1].quotas = vec![quota(64, None)];
    let names: Vec<String> = placed(&world).into_iter().map(|(job, _)| job).collect();
    assert_eq!(names, ["borrows"]);
    let plan = decide(&world.0);
    let reasons = &plan.unplaced[0].reasons;
    let words = reasons
        .iter()
        .map(|cause| format!("{}: {}", cause.reason, cause.message));
    assert_eq!(
        words.collect::<Vec<_>>(),
        [
            "WaitingForQuota: needs 16 GPUs of its own quota, which has 0 left; it may not borrow: add \
           Borrowed to placement.capacity, or to mayUse of its class"
        ]
    );
}

fn bill_of(change: impl FnOnce(&mut World)) -> Bill {
    let choice = Choice {
        objective: Objective::Cheapest,
        ..Choice::default()
    };
    let mut world = asking(three_regions(), "job", choice);
    world.0.waiting[0].expected.runtime = Some(Millis(10 * HOUR));
    world.0.waiting[0].clusters = vec![ClusterIx(2)].into();
    change(&mut world);
    let plan = decide(&world.0);
    plan.placements[0].score.bill
}

#[test]
fn a_bill_adds_up_from_stated_rates() {
    let plain = bill_of(|_| {});
    assert_eq!(
        (plain.total(), plain.time),
        (cents(16_000), Millis(10 * HOUR))
    );
    let spot = bill_of(|world| world.0.pools[2].facts.capacity = PoolCapacity::Spot);
    // Half the time between two losses; each costs two minutes and half of the run: 5.03 h.
    assert_eq!(spot.loss, MicroMoney(16_000_000 * 151 / 60));
    let saved = bill_of(|world| {
        world.0.pools[2].facts.capacity = PoolCapacity::Spot;
        world.0.waiting[0].expected.checkpoint_every = Some(Millis(HOUR / 3));
    });
    // Two minutes and ten minutes.
    assert_eq!(saved.loss, MicroMoney(16_000_000 / 10));
    let loose =
        bill_of(|world| world.0.waiting[0].shape.roles[0].per_pod = crate::builders::cards(6));
    // Two cards are left on each of two hosts, for ten hours, at one percent.
    assert_eq!(loose.fragmentation, MicroMoney(4 * 10 * 10_000));
    let apart = bill_of(|world| world.0.waiting[0].shape.roles[0].preferred = Some("host".into()));
    assert_eq!(
        (apart.spread, apart.time),
        (cents(1_600), Millis(11 * HOUR))
    );
    let half = bill_of(|world| world.0.waiting[0].shape.roles[0].max = 8);
    // Twice the work on half of the cards.
    assert_eq!((half.gpus, half.time), (cents(64_000), Millis(20 * HOUR)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(800))]

    #[test]
    fn of_places_alike_but_for_price_the_cheaper_is_chosen(
        prices in proptest::collection::vec(1..1_000_i64, 3), runtime in 1..1_000_u64,
    ) {
        let mut world = asking(three_regions(), "job", Choice {
            objective: Objective::Cheapest,
            ..Choice::default()
        });
        world.0.waiting[0].expected.runtime = Some(Millis(runtime * HOUR));
        for (pool, price) in world.0.pools.iter_mut().zip(&prices) {
            pool.facts.price = Some(cents(*price));
        }
        let plan = decide(&world.0);
        let chosen = plan.placements[0].pool.index();
        let least = prices.iter().min().copied();
        prop_assert_eq!(Some(prices[chosen]), least);
        prop_assert_eq!(chosen, prices.iter().position(|it| Some(*it) == least).unwrap());
    }

    #[test]
    fn wishes_only_take_places_away(snapshot in random::snapshot()) {
        // Whoever asks for nothing has at least the places of one who asks for something and
        // tolerates no more.
        let mut free = snapshot.clone();
        for choice in &mut free.choices {
            *choice = Choice {
                tolerations: std::mem::take(&mut choice.tolerations),
                ..Choice::default()
            };
        }
        free.waiting.truncate(1);
        let mut bound = snapshot;
        bound.waiting.truncate(1);
        let places = |snapshot: &Snapshot| decide(snapshot).placements.len();
        prop_assert!(places(&free) >= places(&bound));
    }
}
