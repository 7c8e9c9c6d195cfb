//! Where the gangs of array jobs go: spread over domains and divided over clusters.

use std::collections::BTreeMap;

use meridian_api::ids::Uid;
use meridian_api::kinds::spread::{DivisionRule, SpreadRule};
use meridian_api::reasons::Reason;
use meridian_api::units::MicroMoney;
use meridian_policies::check::check;
use meridian_policies::decide;
use meridian_policies::model::*;
use proptest::prelude::*;

use crate::builders::{World, hosts, role};
use crate::golden::golden;

/// Clusters `a`, `b`, ... with so many hosts of 8 GPUs, in regions `r0`, `r1`, ... as told. The
/// price of a card-hour grows with the name.
fn fleet(clusters: &[(u32, u32)]) -> World {
    let mut world = World::new();
    for (name, (_, count)) in ('a'..).zip(clusters) {
        world = world
            .cluster(&name.to_string())
            .pool("main", vec![hosts(*count, &["r1"], 8)]);
    }
    let snapshot = &mut world.0;
    let regions = clusters
        .iter()
        .map(|(region, _)| region + 1)
        .max()
        .unwrap_or(0);
    snapshot.regions = (0..regions).map(|region| format!("r{region}")).collect();
    snapshot.region_facts = vec![RegionFacts::default(); regions as usize];
    let rows = snapshot.clusters.iter_mut().zip(&mut snapshot.pools);
    for (((cluster, pool), (region, _)), price) in rows.zip(clusters).zip(1..) {
        cluster.region = RegionIx(*region);
        pool.facts.price = Some(MicroMoney(price * 1_000_000));
    }
    snapshot.choices = vec![Choice::default()];
    world
}

/// A job of gangs of one pod with 8 GPUs each.
fn array(mut world: World, copies: u32, choice: Choice) -> World {
    let ix = ChoiceIx(u32::try_from(world.0.choices.len()).expect("a small table"));
    world.0.choices.push(choice);
    for index in 0..copies {
        world = world.job_with("array", role(1, 8), |gang| {
            gang.choice = ix;
            gang.gang.job = Uid(77);
            gang.gang.index = index;
        });
    }
    world
}

/// Gangs of the array that stand in a cluster already, and are taken out of its room.
fn standing(mut world: World, cluster: u32, count: u32) -> World {
    for _ in 0..count {
        let number = u32::try_from(world.0.held.len()).expect("a small table");
        world = world.held(0, 8);
        let held = world.0.held.last_mut().expect("just added");
        held.gang.job = Uid(77);
        held.gang.index = 1_000 + number;
        held.cluster = ClusterIx(cluster);
    }
    world
}

fn spread(key: &str, domains: u32, each: u32, skew: Option<u32>) -> Choice {
    Choice {
        spread: Some(SpreadRule {
            topology_key: key.to_owned(),
            min_domains: Some(domains),
            min_per_domain: Some(each),
            max_skew: skew,
        }),
        ..Choice::default()
    }
}

fn divided(rule: DivisionRule, weights: &[(u32, u32)]) -> Choice {
    let row = |(cluster, weight): &(u32, u32)| {
        let group = Group {
            clusters: vec![ClusterIx(*cluster)],
            ..Group::default()
        };
        (group, *weight)
    };
    Choice {
        division: Some(Shares {
            rule,
            weights: weights.iter().map(row).collect(),
        }),
        ..Choice::default()
    }
}

/// Gangs by cluster that the round places, and what the first that waits is told.
fn counts(world: &World) -> (BTreeMap<String, u32>, Option<String>) {
    let plan = decide(&world.0);
    assert_eq!(check(&world.0, &plan), []);
    let mut counts = BTreeMap::new();
    for placed in &plan.placements {
        let cluster = world.0.pools[placed.pool.index()].cluster;
        let name = world.0.clusters[cluster.index()].name.clone();
        *counts.entry(name).or_default() += 1;
    }
    let first = plan.unplaced.first().map(|left| {
        let everywhere = left.reasons.iter().find(|cause| cause.cluster.is_none());
        let cause = everywhere.unwrap_or(&left.reasons[0]);
        format!("{}: {}", cause.reason, cause.message)
    });
    (counts, first)
}

fn shown(counts: &BTreeMap<String, u32>) -> String {
    let words = counts.iter().map(|(name, count)| format!("{name}{count}"));
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_spread_is_kept_over_regions_and_the_rest_goes_where_it_is_cheapest() {
    // Scenario 18. `a` and `b` are in one region.
    let world = fleet(&[(0, 9), (0, 9), (1, 9), (2, 9)]);
    let least = array(world, 7, spread("region", 3, 2, None));
    assert_eq!(shown(&counts(&least).0), "a3 c2 d2");
    let world = fleet(&[(0, 9), (0, 9), (1, 9), (2, 9)]);
    let even = array(world, 7, spread("region", 3, 1, Some(1)));
    assert_eq!(shown(&counts(&even).0), "a3 c2 d2");
    golden("spread_regions", &even);
}

#[test]
fn a_spread_is_over_zones_providers_clusters_and_any_label() {
    let facts = |zone: &str, provider: &str, rack: &str| ClusterFacts {
        zone: Some(zone.to_owned()),
        provider: Some(provider.to_owned()),
        labels: [("power".to_owned(), rack.to_owned())].into(),
        ..ClusterFacts::default()
    };
    let placed = |key: &str| {
        let mut world = fleet(&[(0, 9), (0, 9), (0, 9)]);
        let rows = [
            facts("z1", "p1", "x"),
            facts("z1", "p2", "y"),
            facts("z2", "p2", "x"),
        ];
        for (cluster, facts) in world.0.clusters.iter_mut().zip(rows) {
            cluster.facts = facts;
        }
        shown(&counts(&array(world, 6, spread(key, 2, 1, Some(1)))).0)
    };
    assert_eq!(placed("zone"), "a3 c3");
    assert_eq!(placed("provider"), "a3 b3");
    assert_eq!(placed("power"), "a3 b3");
    assert_eq!(placed("cluster"), "a2 b2 c2");
}

#[test]
fn an_impossible_spread_is_told_with_the_numbers() {
    let world = array(fleet(&[(0, 9), (1, 9)]), 6, spread("region", 3, 1, None));
    let (placed, words) = counts(&world);
    assert!(placed.is_empty());
    let words = words.expect("it waits");
    assert_eq!(
        words,
        "NeverPlaceable: its spread over region needs 3 domains that could hold a gang, there are \
         2: r0, r1; lower minDomains, or let it use more clusters"
    );
    // A cluster without the label is in no domain.
    let world = array(fleet(&[(0, 9), (1, 9)]), 6, spread("power", 1, 1, None));
    assert!(
        counts(&world)
            .1
            .expect("it waits")
            .contains("there are 0: none")
    );
}

#[test]
fn a_full_domain_holds_the_others_up_only_beyond_the_skew() {
    let world = array(fleet(&[(0, 9), (1, 2)]), 8, spread("region", 2, 1, Some(1)));
    let (placed, words) = counts(&world);
    assert_eq!(shown(&placed), "a3 b2");
    let words = words.expect("it waits");
    assert_eq!(
        words,
        "WaitingForCapacity: its gangs stand 3 in r0, 2 in r1; by its spread over region (2 domains \
         of 1, maxSkew 1) the next goes to r1"
    );
}

#[test]
fn the_last_gangs_of_an_array_are_not_held_up_for_those_that_ended() {
    // Of six copies five are done: the one that comes back needs no second domain.
    let world = array(fleet(&[(0, 9), (1, 9)]), 1, spread("region", 2, 3, None));
    assert_eq!(shown(&counts(&world).0), "a1");
}

#[test]
fn weights_give_exact_shares_and_move_least() {
    // Scenario 14.
    let weights = |list: &[(u32, u32)]| divided(DivisionRule::Weighted, list);
    let world = array(
        fleet(&[(0, 9), (0, 9), (0, 9)]),
        8,
        weights(&[(0, 1), (1, 2), (2, 1)]),
    );
    assert_eq!(shown(&counts(&world).0), "a2 b4 c2");
    golden("division_weighted", &world);
    // The weights change: what stands stays, what is missing comes.
    let world = array(fleet(&[(0, 9), (0, 9)]), 3, weights(&[(0, 1), (1, 3)]));
    let world = standing(world, 0, 4);
    assert_eq!(shown(&counts(&world).0), "b3");
    // A cluster without weight gets nothing.
    let world = array(fleet(&[(0, 9), (0, 9)]), 3, weights(&[(1, 3)]));
    assert_eq!(shown(&counts(&world).0), "b3");
}

#[test]
fn dynamic_follows_the_free_shapes() {
    // Scenario 15: 16 GPUs free on hosts of which none has 8 are no room.
    let mut world = fleet(&[(0, 6), (0, 3), (0, 3)]);
    world.0.pools[2].shapes = vec![hosts(3, &["r1"], 8), hosts(20, &["r1"], 4)];
    let world = array(world, 8, divided(DivisionRule::Dynamic, &[]));
    assert_eq!(shown(&counts(&world).0), "a4 b2 c2");
    golden("division_dynamic", &world);
}

#[test]
fn aggregated_uses_the_fewest_clusters() {
    // Scenario 16: `c` holds all; of two that are needed the largest come first.
    let aggregated = || divided(DivisionRule::Aggregated, &[]);
    let world = array(fleet(&[(0, 2), (0, 2), (0, 6)]), 5, aggregated());
    assert_eq!(shown(&counts(&world).0), "c5");
    let world = array(fleet(&[(0, 2), (0, 3), (0, 6)]), 8, aggregated());
    assert_eq!(shown(&counts(&world).0), "a2 c6");
    golden("division_aggregated", &world);
    // Where some stand already, the others join them.
    let world = array(fleet(&[(0, 2), (0, 2), (0, 6)]), 1, aggregated());
    assert_eq!(shown(&counts(&standing(world, 1, 1)).0), "b1");
}

#[test]
fn duplicated_reaches_a_cluster_that_joins_later() {
    // Scenario 17.
    let world =
        |clusters: &[(u32, u32)]| array(fleet(clusters), 3, divided(DivisionRule::Duplicated, &[]));
    let two = world(&[(0, 9), (0, 9)]);
    let (placed, words) = counts(&two);
    assert_eq!(shown(&placed), "a1 b1");
    assert_eq!(
        words.expect("it waits"),
        "WaitingForCapacity: one copy goes to each cluster (a 1 of 1, b 1 of 1); this one waits for \
         a cluster that joins or has room"
    );
    let mut three = world(&[(0, 9), (0, 9), (0, 9)]);
    three.0.waiting.truncate(1);
    assert_eq!(
        shown(&counts(&standing(standing(three, 0, 1), 1, 1)).0),
        "c1"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_spread_that_can_be_kept_is_kept_and_nobody_waits(
        clusters in proptest::collection::vec((0..3_u32, 12..14_u32), 1..6),
        copies in 1..12_u32, domains in 1..4_u32, each in 1..3_u32, skew in 1..3_u32,
    ) {
        let there: std::collections::BTreeSet<u32> = clusters.iter().map(|it| it.0).collect();
        prop_assume!(domains * each <= copies && domains as usize <= there.len());
        // A skew can contradict nothing here: even shares fill `domains` of all domains.
        let world = array(fleet(&clusters), copies, spread("region", domains, each, Some(skew)));
        let plan = decide(&world.0);
        prop_assert_eq!(check(&world.0, &plan), vec![]);
        let mut by_region: BTreeMap<u32, u32> = there.iter().map(|it| (*it, 0)).collect();
        for placed in &plan.placements {
            let cluster = world.0.pools[placed.pool.index()].cluster;
            *by_region.entry(world.0.region(cluster).0).or_default() += 1;
        }
        let most = by_region.values().max().copied().unwrap_or(0);
        let least = by_region.values().min().copied().unwrap_or(0);
        prop_assert!(most - least <= skew, "{by_region:?}");
        let enough = by_region.values().filter(|count| **count >= each).count();
        if plan.unplaced.is_empty() {
            prop_assert!(enough >= domains as usize, "{by_region:?}");
        } else {
            // Even shares are smaller than `each`: then the two rules contradict each other.
            prop_assert!(copies < each * u32::try_from(there.len()).unwrap(), "{by_region:?}");
        }
    }

    #[test]
    fn every_division_keeps_its_rule_in_any_room(
        rooms in proptest::collection::vec(0..5_u32, 1..6),
        weights in proptest::collection::vec(0..4_u32, 6),
        copies in 1..14_u32, rule in 0..4_usize,
    ) {
        let rule = [
            DivisionRule::Duplicated, DivisionRule::Weighted,
            DivisionRule::Dynamic, DivisionRule::Aggregated,
        ][rule];
        let clusters: Vec<(u32, u32)> = rooms.iter().map(|room| (0, *room)).collect();
        let rows: Vec<(u32, u32)> = (0..).zip(weights.iter().copied()).take(rooms.len()).collect();
        let world = array(fleet(&clusters), copies, divided(rule, &rows));
        let plan = decide(&world.0);
        prop_assert_eq!(check(&world.0, &plan), vec![]);
        let weighed = |at: &usize| rule != DivisionRule::Weighted || weights[*at] > 0;
        let all: u32 = (0..rooms.len()).filter(weighed).map(|at| match rule {
            DivisionRule::Duplicated => rooms[at].min(1),
            DivisionRule::Weighted | DivisionRule::Dynamic | DivisionRule::Aggregated => rooms[at],
        }).sum();
        let placed = u32::try_from(plan.placements.len()).unwrap();
        prop_assert_eq!(placed, all.min(copies));
        for left in &plan.unplaced {
            let reasons: Vec<Reason> = left.reasons.iter().map(|cause| cause.reason).collect();
            prop_assert!(!reasons.contains(&Reason::PendingEvaluation), "{:?}", left.reasons);
        }
    }
}
