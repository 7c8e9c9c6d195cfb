//! The order of the queue, rule by rule.

use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Millis, UnixMillis};
use meridian_policies::decide;
use meridian_policies::model::{
    Accepted, ClassIx, Flavor, FlavorIx, Placed, Tenant, TenantIx, Use, Waiting, WaitingIx,
};
use meridian_policies::order::queue;
use proptest::prelude::*;

use crate::builders::{World, hosts, role, tenant};

/// Jobs `a`, `b`, ... submitted in this order, each changed by its function; their order in the
/// queue.
fn order(changes: &[fn(&mut Waiting)]) -> String {
    let mut world = World::new();
    world.0.tenants.push(tenant("zeta", None));
    for (change, name) in changes.iter().zip('a'..) {
        world = world.job_with(&name.to_string(), role(1, 1), change);
    }
    let name = |ix: meridian_policies::model::WaitingIx| {
        world.0.waiting[ix.index()].job.replace("research/", "")
    };
    queue(&world.0).into_iter().map(name).collect()
}

const fn due(gang: &mut Waiting, at: i64, runtime: u64) {
    gang.finish_by = Some(UnixMillis(at));
    gang.max_runtime = Some(Millis(runtime));
}

#[test]
fn age_decides_between_equals() {
    assert_eq!(order(&[|_| {}, |_| {}, |_| {}]), "abc");
}

#[test]
fn class_outdoes_everything_below_it() {
    assert_eq!(
        order(&[|gang| gang.priority = 9, |gang| gang.class = ClassIx(1)]),
        "ba"
    );
}

#[test]
fn priority_outdoes_age_inside_a_tenant() {
    assert_eq!(
        order(&[|_| {}, |gang| gang.priority = 1, |gang| gang.priority = 2]),
        "cba"
    );
}

#[test]
fn priority_wins_nothing_from_another_tenant() {
    let zeta: fn(&mut Waiting) = |gang| gang.tenant = TenantIx(1);
    assert_eq!(order(&[|_| {}, zeta, |gang| gang.priority = 9]), "cba");
    assert_eq!(order(&[zeta, |_| {}, |gang| gang.priority = 9]), "acb");
}

#[test]
fn the_least_slack_goes_first_and_none_last() {
    let by_runtime = order(&[
        |_| {},
        |gang| due(gang, 5000, 100),
        |gang| due(gang, 6000, 2000),
    ]);
    assert_eq!(by_runtime, "cba");
}

/// Jobs are placed in this order when everything fits: which tenant each is of.
fn placed(world: &World) -> String {
    let plan = decide(&world.0);
    assert_eq!(plan.unplaced, []);
    let tenant = |placed: &Placed| {
        let tenant = world.0.waiting[placed.waiting.index()].tenant;
        world.0.tenants[tenant.index()].name.as_str()
    };
    plan.placements.iter().map(tenant).collect()
}

/// Room for everything, and so many jobs of one GPU of each tenant, those of the first before
/// those of the second.
fn burst(tenants: Vec<Tenant>, jobs: &[(u32, usize)]) -> World {
    let mut world = World::new()
        .cluster("c1")
        .pool("p", vec![hosts(10, &[], 8)]);
    world.0.tenants = tenants;
    for (tenant, count) in jobs {
        for index in 0..*count {
            let name = format!("{tenant}-{index}");
            world = world.job_with(&name, role(1, 1), |gang| gang.tenant = TenantIx(*tenant));
        }
    }
    world
}

#[test]
fn a_burst_is_charged_as_it_is_let_in() {
    let world = burst(
        vec![tenant("a", None), tenant("b", None)],
        &[(0, 4), (1, 2)],
    );
    assert_eq!(placed(&world), "ababaa");
}

#[test]
fn twice_the_weight_is_twice_the_share() {
    let mut heavy = tenant("a", None);
    heavy.weight = 2;
    let world = burst(vec![heavy, tenant("b", None)], &[(0, 4), (1, 2)]);
    assert_eq!(placed(&world), "abaaba");
}

#[test]
fn departments_share_before_their_teams_do() {
    let tenants = vec![
        tenant("x", None),
        tenant("y", None),
        tenant("a", Some(0)),
        tenant("b", Some(0)),
        tenant("c", Some(1)),
    ];
    let world = burst(tenants, &[(2, 2), (3, 2), (4, 4)]);
    assert_eq!(placed(&world), "acbcacbc");
}

#[test]
fn whoever_held_much_lately_waits_behind_those_who_did_not() {
    let mut before = tenant("a", None);
    before.history = Use([2_000, 0, 0]);
    let world = burst(vec![before, tenant("b", None)], &[(0, 2), (1, 4)]);
    assert_eq!(placed(&world), "bbabab");
}

#[test]
fn a_card_that_is_worth_more_weighs_more() {
    let mut world = burst(
        vec![tenant("a", None), tenant("b", None)],
        &[(0, 3), (1, 3)],
    );
    world.0.flavors.push(Flavor {
        name: "t4".into(),
        worth: 250,
    });
    let mut cheap = world.0.pools[0].clone();
    (cheap.name, cheap.flavor) = ("q".into(), FlavorIx(1));
    world.0.pools.push(cheap);
    for gang in &mut world.0.waiting {
        // a takes what is worth four times as much.
        let flavor = FlavorIx(gang.tenant.0);
        let accepted = Accepted {
            flavor,
            speed: 1000,
        };
        gang.flavors = vec![accepted].into();
        gang.shape.roles[0].per_pod.cpu = MilliCpus(0);
        gang.shape.roles[0].per_pod.memory = Mebibytes(0);
    }
    assert_eq!(placed(&world), "abbbaa");
}

#[test]
fn the_dominant_resource_decides() {
    // Scenario 73: a takes cards, b takes CPU: eight cores are a part in 64 of a host's cores, as
    // a card is a part in 8 of its cards.
    let mut world = burst(
        vec![tenant("a", None), tenant("b", None)],
        &[(0, 2), (1, 8)],
    );
    for gang in &mut world.0.waiting {
        let per_pod = &mut gang.shape.roles[0].per_pod;
        if gang.tenant == TenantIx(1) {
            per_pod.gpus = MilliGpus(0);
            per_pod.cpu = MilliCpus(2_000);
        }
        per_pod.memory = Mebibytes(0);
    }
    assert_eq!(placed(&world), "abbbbabbbb");
}

/// The oldest gang of the player that wins below `node`, by adding everything up again.
fn winner(world: &World, left: &[u32], got: &[u64], node: Option<u32>) -> Option<u32> {
    let tenants = &world.0.tenants;
    let waiting = |ix: u32| &world.0.waiting[ix as usize];
    let own = left.iter().copied();
    let own = own.filter(|ix| Some(waiting(*ix).tenant.0) == node).min();
    let children = (0..)
        .zip(tenants)
        .filter(|(_, it)| it.parent.map(|it| it.0) == node);
    let player = |(child, tenant): (u32, &Tenant)| {
        let best = winner(world, left, got, Some(child))?;
        // Cross-multiplied by 6, which every weight divides.
        let share = below(world, got, child) * 6 / u64::from(tenant.weight);
        Some((share, best))
    };
    // Only leaves have jobs of their own.
    own.or_else(|| children.filter_map(player).min().map(|(_, gang)| gang))
}

/// What a tenant was given, with everything below it.
fn below(world: &World, got: &[u64], node: u32) -> u64 {
    let tenants = (0..).zip(&world.0.tenants);
    let children = tenants.filter(|(_, tenant)| tenant.parent == Some(TenantIx(node)));
    let sum: u64 = children.map(|(child, _)| below(world, got, child)).sum();
    got[node as usize] + sum
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_tournament_is_the_plain_walk(
        weights in proptest::collection::vec(1..4_u32, 6),
        jobs in proptest::collection::vec((2..6_u32, 1..4_u64), 1..16),
    ) {
        let parents = [None, None, Some(0), Some(0), Some(1), Some(1)];
        let tenants = weights.iter().zip(parents).enumerate().map(|(ix, (weight, parent))| Tenant {
            weight: *weight,
            ..tenant(&format!("t{ix}"), parent)
        });
        let mut world = burst(tenants.collect(), &[]);
        for (index, (tenant, gpus)) in jobs.iter().enumerate() {
            let name = format!("j{index}");
            world = world.job_with(&name, role(1, *gpus), |gang| gang.tenant = TenantIx(*tenant));
        }
        let plan = decide(&world.0);
        let mut left: Vec<u32> = (0..).take(jobs.len()).collect();
        let mut got = vec![0; world.0.tenants.len()];
        for placed in &plan.placements {
            let next = winner(&world, &left, &got, None).expect("someone is left");
            prop_assert_eq!(placed.waiting, WaitingIx(next));
            left.retain(|ix| *ix != next);
            got[world.0.waiting[next as usize].tenant.index()] += placed.gpus.whole();
        }
        prop_assert_eq!(left, Vec::<u32>::new());
    }
}
