//! The ledger: limits at every level, borrowing only what is unused.

use meridian_api::units::MilliGpus;
use meridian_policies::decide;
use meridian_policies::model::{FlavorIx, Measure, Place, Quota, RegionIx, Tenant, TenantIx};
use meridian_policies::quota::{Ledger, Reach};

use crate::builders::{World, cards, gang_id, hosts, quota, role, tenant};

fn with_quota(name: &str, parent: Option<u32>, row: Quota) -> Tenant {
    Tenant {
        quotas: vec![row],
        ..tenant(name, parent)
    }
}

/// An organisation of 100 with two teams of 50.
fn organisation() -> World {
    let mut world = World::new().cluster("c1");
    world.0.tenants = vec![
        with_quota("org", None, quota(100, Some(0))),
        with_quota("red", Some(0), quota(50, None)),
        with_quota("white", Some(0), quota(50, Some(20))),
    ];
    world
}

fn left(world: &World, tenant: u32, reach: Reach) -> u64 {
    let ledger = Ledger::new(&world.0);
    let place = Place {
        flavor: FlavorIx(0),
        region: RegionIx(0),
    };
    ledger.room(TenantIx(tenant), place, reach).gpus.whole()
}

#[test]
fn a_team_borrows_what_its_siblings_leave() {
    let world = organisation().held(2, 30);
    assert_eq!(left(&world, 1, Reach::Nominal), 50);
    assert_eq!(left(&world, 1, Reach::Borrowing), 70);
    assert_eq!(left(&world, 1, Reach::Ever), 100);
}

#[test]
fn a_team_borrows_no_more_than_its_limit() {
    let world = organisation();
    assert_eq!(left(&world, 2, Reach::Borrowing), 70);
}

#[test]
fn a_hard_cap_outdoes_nominal_and_borrowing() {
    let mut world = organisation();
    world.0.tenants[2].quotas[0].hard_cap = Some(40_000);
    let reaches = [Reach::Nominal, Reach::Borrowing, Reach::Ever];
    assert_eq!(reaches.map(|reach| left(&world, 2, reach)), [40, 40, 40]);
}

#[test]
fn roots_borrow_only_from_each_other() {
    let mut world = World::new().cluster("c1");
    world.0.tenants = vec![
        with_quota("red", None, quota(50, None)),
        with_quota("white", None, quota(30, None)),
    ];
    assert_eq!(left(&world, 0, Reach::Borrowing), 80);
    assert_eq!(left(&world.held(1, 30), 0, Reach::Borrowing), 50);
    let mut alone = World::new().cluster("c1");
    alone.0.tenants = vec![with_quota("red", None, quota(50, None))];
    assert_eq!(left(&alone, 0, Reach::Borrowing), 50);
}

#[test]
fn what_is_held_over_a_cut_quota_leaves_nothing() {
    let world = organisation().held(1, 120);
    assert_eq!(left(&world, 1, Reach::Borrowing), 0);
    assert_eq!(left(&world, 2, Reach::Borrowing), 0);
}

#[test]
fn a_flavor_without_a_row_is_not_limited() {
    let mut world = organisation();
    world.0.flavors.push(meridian_policies::model::Flavor {
        name: "t4".into(),
        worth: 100,
    });
    let ledger = Ledger::new(&world.0);
    let place = Place {
        flavor: FlavorIx(1),
        region: RegionIx(0),
    };
    let room = ledger.room(TenantIx(1), place, Reach::Borrowing);
    assert_eq!(room.gpus, MilliGpus(u64::MAX));
    let need = cards(1_000);
    assert_eq!(ledger.passed(TenantIx(1), place, Reach::Ever, need), []);
}

#[test]
fn a_row_for_all_flavors_counts_each() {
    let mut world = organisation();
    world.0.tenants[0].quotas[0].measure = Measure::Gpus {
        flavor: None,
        region: None,
    };
    let world = world.held(1, 90);
    assert_eq!(left(&world, 2, Reach::Borrowing), 10);
}

#[test]
fn gangs_of_a_running_job_do_not_count_again() {
    let mut world = World::new().held(0, 1).held(0, 1);
    world.0.tenants[0].running_jobs = Some(2);
    let ledger = Ledger::new(&world.0);
    let known = world.0.held[0].gang.job;
    assert_eq!(ledger.job_limit(TenantIx(0), known), None);
    let other = ledger.job_limit(TenantIx(0), gang_id(5).job);
    assert_eq!(other, Some((TenantIx(0), 2, 2)));
}

#[test]
fn a_tenant_under_nominal_goes_before_an_older_borrower() {
    let world = organisation().held(1, 50).pool("p", vec![hosts(1, &[], 8)]);
    let world = world
        .job_with("borrows", role(1, 8), |gang| gang.tenant = TenantIx(1))
        .job_with("owns", role(1, 8), |gang| gang.tenant = TenantIx(2));
    let plan = decide(&world.0);
    let placed: Vec<&str> = plan
        .placements
        .iter()
        .map(|it| world.0.waiting[it.waiting.index()].job.as_str())
        .collect();
    assert_eq!(placed, ["research/owns"]);
}

#[test]
fn an_elastic_gang_takes_what_its_quota_leaves() {
    let mut world = organisation().held(2, 70).held(1, 10);
    world = world.pool("p", vec![hosts(10, &[], 8)]);
    let mut elastic = role(1, 8);
    elastic.max = 8;
    world = world.job_with("grows", elastic, |gang| gang.tenant = TenantIx(1));
    // 100 - 80 = 20 are left above, so two of 8 GPUs.
    assert_eq!(decide(&world.0).placements[0].pods, [2]);
}
