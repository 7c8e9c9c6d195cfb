//! Counterfactuals: what is said to help does help, and no less would.

use std::cell::Cell;
use std::fmt::Write as _;

use meridian_api::units::MilliGpus;
use meridian_policies::counterfactual::{Change, Effect, Remedy, after, apply, describe, remedies};
use meridian_policies::model::{
    Accepted, Choice, ChoiceIx, ClusterIx, Flavor, FlavorIx, Group, PoolIx, RegionIx, RoleShape,
    Snapshot, WaitingIx,
};
use meridian_policies::{check, decide, shapes};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::builders::{World, hosts, quota, role, tenant};
use crate::random;

/// Everything that would help the first few gangs that are left, in the world after the round.
fn helped(snapshot: &Snapshot, most: usize) -> (Snapshot, Vec<(WaitingIx, Vec<Remedy>)>) {
    let plan = decide(snapshot);
    let world = after(snapshot, &plan).expect("a plan takes what is there");
    let left = (0..).map(WaitingIx).zip(&world.waiting).map(|(ix, gang)| {
        let unplaced = plan.unplaced.iter();
        let mut own = unplaced
            .filter(|left| snapshot.waiting[left.waiting.index()].gang == gang.gang)
            .map(|left| left.reasons.as_slice());
        let reasons = own.next().expect("it was left with its reasons");
        (ix, remedies(&world, ix, reasons))
    });
    let left = left.take(most).collect();
    (world, left)
}

fn is_placed(world: &Snapshot, ix: WaitingIx, change: &Change) -> bool {
    let mut changed = world.clone();
    apply(&mut changed, ix, change);
    let plan = decide(&changed);
    assert_eq!(check(&changed, &plan), []);
    plan.placements.iter().any(|placed| placed.waiting == ix)
}

fn emptied(world: &Snapshot, ix: WaitingIx) -> Snapshot {
    let mut empty = world.clone();
    empty.waiting = vec![world.waiting[ix.index()].clone()];
    empty.held.clear();
    for pool in &mut empty.pools {
        pool.shapes = shapes::emptied(&pool.shapes);
    }
    for cluster in &mut empty.clusters {
        cluster.contact = meridian_policies::model::Contact::Ready;
        cluster.cordoned = false;
    }
    empty
}

fn page(world: &World) -> String {
    let (after, left) = helped(&world.0, usize::MAX);
    let mut page = String::new();
    for (ix, remedies) in left {
        let _ = writeln!(page, "{}", after.waiting[ix.index()].job);
        for remedy in &remedies {
            let _ = writeln!(page, "  {}", describe(&after, ix, remedy));
        }
    }
    page
}

#[test]
fn a_remedy_does_help() {
    let offered = Cell::new([0_u32; 2]);
    // The same worlds each time: how many remedies they offer is known, too.
    let mut runner = TestRunner::new_with_rng(
        Config::with_cases(256),
        TestRng::deterministic_rng(RngAlgorithm::ChaCha),
    );
    let result = runner.run(&random::snapshot(), |snapshot| {
        let (world, left) = helped(&snapshot, 2);
        for (ix, remedies) in left {
            for remedy in remedies {
                let mut counts = offered.get();
                let (world, ix) = match remedy.effect {
                    Effect::StartsNow(_) => (world.clone(), ix),
                    Effect::CanStart(_) => (emptied(&world, ix), WaitingIx(0)),
                };
                counts[usize::from(matches!(remedy.effect, Effect::CanStart(_)))] += 1;
                offered.set(counts);
                prop_assert!(
                    is_placed(&world, ix, &remedy.change),
                    "{} would not help",
                    describe(&world, ix, &remedy)
                );
                prop_assert!(!is_placed_as_it_is(&world, ix), "it needs no change");
            }
        }
        Ok(())
    });
    result.expect("every remedy helps");
    let [now, some_day] = offered.get();
    assert!(
        now > 10 && some_day > 3,
        "{now} and {some_day} were offered"
    );
}

fn is_placed_as_it_is(world: &Snapshot, ix: WaitingIx) -> bool {
    let plan = decide(world);
    plan.placements.iter().any(|placed| placed.waiting == ix)
}

#[test]
fn no_smaller_sacrifice_would_do() {
    let mut runner = TestRunner::new(Config::with_cases(128));
    let result = runner.run(&random::snapshot(), |snapshot| {
        let (world, left) = helped(&snapshot, 2);
        for (ix, remedies) in left {
            for remedy in remedies {
                let world = match remedy.effect {
                    Effect::StartsNow(_) => world.clone(),
                    Effect::CanStart(_) => continue,
                };
                let Change::Raise(raises) = &remedy.change else {
                    continue;
                };
                // One unit less of the last number, and it waits on.
                let mut less = raises.clone();
                let last = less.last_mut().expect("a raise raises something");
                last.to = (last.to - 1).max(last.from);
                prop_assert!(!is_placed(&world, ix, &Change::Raise(less)));
            }
        }
        Ok(())
    });
    result.expect("no raise is larger than it must be");
}

fn two_regions() -> World {
    let mut world = World::new()
        .cluster("euw-a")
        .pool(
            "train",
            vec![hosts(3, &["b1", "r1"], 8), hosts(3, &["b1", "r2"], 8)],
        )
        .cluster("use-a")
        .pool("train", vec![hosts(8, &["b1", "r1"], 8)])
        .cluster("use-b")
        .pool("old", vec![hosts(8, &["b1", "r1"], 8)]);
    world.0.regions.push("west".into());
    world.0.flavors.push(Flavor {
        name: "v100".into(),
        worth: 300,
    });
    world.0.clusters[1].region = RegionIx(1);
    world.0.pools[2].flavor = FlavorIx(1);
    world
}

fn h100() -> Vec<Accepted> {
    vec![Accepted {
        flavor: FlavorIx(0),
        speed: 1000,
    }]
}

#[test]
fn a_gang_hears_what_it_could_change() {
    let rack = RoleShape {
        required: Some("rack".into()),
        ..role(5, 8)
    };
    let world = two_regions()
        .job_with("in-one-rack", rack, |gang| {
            gang.flavors = h100().into();
            gang.regions = vec![RegionIx(0)].into();
        })
        .job_with("too-many-hosts", role(7, 8), |gang| {
            gang.flavors = h100().into();
            gang.clusters = vec![ClusterIx(0)].into();
        })
        .job_with("asleep", role(1, 8), |gang| gang.suspended = true)
        .job_with("of-no-use", role(40, 8), |_| {});
    insta::assert_snapshot!(page(&world), @r#"
    research/in-one-rack
      run with 3 pods of worker instead of 5: starts now on euw-a/train
      let worker be in one block instead of one rack: starts now on euw-a/train
      accept flavor v100: starts now on use-b/old
      allow region west: starts now on use-a/train
    research/too-many-hosts
      run with 6 pods of worker instead of 7: starts now on euw-a/train
      allow cluster use-a: starts now on use-a/train
    research/asleep
      resume it: starts now on use-b/old
    research/of-no-use
      run with 8 pods of worker instead of 40: starts now on use-b/old
    "#);
}

#[test]
fn regions_that_are_all_alike_are_joined_by_another() {
    let mut world = two_regions().job_with("alike", role(7, 8), |gang| {
        gang.flavors = h100().into();
        gang.regions = vec![RegionIx(0)].into();
        gang.choice = ChoiceIx(1);
    });
    let alike = Group {
        regions: vec![RegionIx(0)],
        ..Group::default()
    };
    let choice = Choice {
        groups: vec![alike],
        ..Choice::default()
    };
    world.0.choices = vec![Choice::default(), choice];
    insta::assert_snapshot!(page(&world), @r#"
    research/alike
      run with 6 pods of worker instead of 7: starts now on euw-a/train
      accept flavor v100: starts now on use-b/old
      allow region west: starts now on use-a/train
    "#);
}

#[test]
fn quota_is_raised_where_it_is_short_and_no_further() {
    let mut world = World::new()
        .cluster("c1")
        .pool("main", vec![hosts(16, &["r1"], 8)])
        .held(1, 32)
        .held(2, 16);
    world.0.tenants = vec![
        tenant("org", None),
        tenant("team", Some(0)),
        tenant("visitors", Some(0)),
    ];
    world.0.tenants[0].quotas = vec![quota(64, None)];
    world.0.tenants[1].quotas = vec![quota(32, Some(8))];
    world.0.tenants[2].quotas = vec![quota(16, Some(0))];
    world.0.tenants[2].gpus_per_job = Some(MilliGpus::cards(32));
    let of = |tenant| {
        move |gang: &mut meridian_policies::model::Waiting| {
            gang.tenant = meridian_policies::model::TenantIx(tenant);
        }
    };
    let world = world
        .job_with("borrows-more", role(2, 8), of(1))
        .job_with("needs-its-own", role(3, 8), of(1))
        .job_with("too-large", role(5, 8), of(2));
    insta::assert_snapshot!(page(&world), @r#"
    research/borrows-more
      run with 1 pod of worker instead of 2: starts now on c1/main
      raise borrowingLimit of tenant team for h100 from 8 to 16 GPUs: starts now on c1/main
    research/needs-its-own
      run with 1 pod of worker instead of 3: starts now on c1/main
    research/too-large
      raise limits.gpusPerJob of tenant visitors from 32 to 40 GPUs and raise borrowingLimit of tenant visitors for h100 from 0 to 40 GPUs and raise nominal of tenant org for h100 from 64 to 88 GPUs: starts now on c1/main
    "#);
}

#[test]
fn what_can_never_be_placed_hears_what_would_be_possible() {
    let mut world = World::new()
        .cluster("c1")
        .pool("main", vec![hosts(4, &["r1"], 0)])
        .held(0, 32);
    world.0.held[0].pool = Some(PoolIx(0));
    let world = world.job("six-hosts", role(6, 8));
    insta::assert_snapshot!(page(&world), @r#"
    research/six-hosts
      run with 4 pods of worker instead of 6: can start once c1/main has room
    "#);
}
