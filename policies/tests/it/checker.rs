//! The checkers find what is planted: a check that cannot fail proves nothing.

use meridian_api::ids::Epoch;
use meridian_api::kinds::tenant::OnExhausted;
use meridian_api::units::{MicroMoney, MilliGpus, UnixMillis};
use meridian_policies::check::truth::{
    Accepted, DeviceHold, GangAtRest, PoolSum, Run, acknowledged, devices, exclusive_runs,
    gangs_at_rest, one_job_per_key, only_grows, pool_sums,
};
use meridian_policies::check::{Violation, check};
use meridian_policies::model::{
    Budget, Contact, Plan, PoolIx, Reasons, Role, SliceShape, Snapshot, TenantIx, Unplaced,
    WaitingIx,
};
use meridian_policies::{decide, shapes};

use crate::builders::{World, gang, gang_id, hosts, quota, role};

/// Two gangs of 2 x 8 GPUs in one rack, placed on 4 hosts.
fn good() -> (Snapshot, Plan) {
    let mut workers = role(2, 8);
    workers.required = Some("rack".into());
    let mut world = World::new()
        .cluster("c1")
        .pool("p", vec![hosts(2, &["r1"], 8), hosts(2, &["r2"], 8)]);
    world.0.tenants[0].quotas = vec![quota(32, None)];
    let world = world.job("one", workers.clone()).job("two", workers);
    let plan = decide(&world.0);
    assert_eq!(plan.placements.len(), 2);
    assert_eq!(check(&world.0, &plan), []);
    (world.0, plan)
}

fn invariants(found: &[Violation]) -> Vec<&'static str> {
    let mut names: Vec<_> = found.iter().map(|violation| violation.invariant).collect();
    names.dedup();
    names
}

/// What the checker finds after a change to a good plan.
fn after(change: impl FnOnce(&mut Snapshot, &mut Plan)) -> Vec<&'static str> {
    let (mut snapshot, mut plan) = good();
    change(&mut snapshot, &mut plan);
    invariants(&check(&snapshot, &plan))
}

#[test]
fn a_gang_that_is_forgotten_or_named_twice_is_found() {
    assert_eq!(
        after(|_, plan| {
            plan.placements.pop();
        }),
        ["L1"]
    );
    assert_eq!(
        after(|_, plan| plan.placements.push(plan.placements[0].clone())),
        ["L1"]
    );
    let silent = Unplaced {
        waiting: WaitingIx(1),
        reasons: Reasons::default(),
        start: None,
    };
    let found = after(|_, plan| {
        plan.placements.pop();
        plan.unplaced.push(silent);
    });
    assert_eq!(found, ["L1"]);
    assert_eq!(after(|_, plan| plan.placements[0].pool = PoolIx(9)), ["S5"]);
}

#[test]
fn each_gang_whose_reasons_are_out_of_order_is_found() {
    let world = World::new()
        .cluster("c1")
        .pool("p", vec![hosts(2, &["r1"], 8)])
        .cluster("c2")
        .pool("p", vec![hosts(2, &["r1"], 8)]);
    // Two are placed, and three wait alike.
    let jobs = ["one", "two", "three", "four", "five"].into_iter();
    let world = jobs.fold(world, |world, job| world.job(job, role(2, 8)));
    let mut plan = decide(&world.0);
    assert!(plan.unplaced.len() == 3 && plan.unplaced[0].reasons.len() > 1);
    assert_eq!(check(&world.0, &plan), []);
    // Two of three share the list, as alike gangs do.
    let mut turned = plan.unplaced[1].reasons.clone();
    turned.reverse();
    for left in &mut plan.unplaced[1..] {
        left.reasons = turned.clone();
    }
    let found = check(&world.0, &plan);
    assert_eq!((found.len(), invariants(&found)), (2, vec!["S27"]));
}

#[test]
fn a_slice_that_is_torn_is_found() {
    let sliced = |pods: u32, level: &'static str| {
        move |snapshot: &mut Snapshot, _: &mut Plan| {
            let slice = SliceShape {
                pods,
                level: level.into(),
            };
            snapshot.waiting[0].shape.roles[0].slice = Some(slice);
        }
    };
    // Two pods on two hosts of one rack.
    assert_eq!(after(sliced(2, "rack")), Vec::<&str>::new());
    assert_eq!(after(sliced(2, "host")), ["S9"]);
    assert_eq!(after(sliced(3, "rack")), ["S9"]);
}

#[test]
fn room_that_is_given_twice_is_found() {
    assert_eq!(
        after(|_, plan| plan.placements[1].takes = plan.placements[0].takes.clone()),
        ["S5"]
    );
    assert_eq!(
        after(|snapshot, _| snapshot.pools[0].shapes[0].hosts = 1),
        ["S5"]
    );
}

#[test]
fn a_gang_that_is_not_whole_is_found() {
    let fewer = after(|_, plan| plan.placements[0].takes[0].hosts = 1);
    assert_eq!(fewer, ["S9"]);
    let smaller = after(|_, plan| plan.placements[0].pods[0] = 1);
    assert_eq!(smaller, ["S9", "S33"]);
    let apart = after(|snapshot, plan| {
        for row in &mut snapshot.pools[0].shapes {
            row.hosts = 1;
        }
        snapshot.pools[0].shapes.push(hosts(2, &["r3"], 8));
        let other = plan.placements[1].takes[0].clone();
        let takes = &mut plan.placements[0].takes;
        takes[0].hosts = 1;
        takes.push(meridian_policies::model::Take { hosts: 1, ..other });
        plan.placements[1].takes[0].domains = vec!["r3".into()];
    });
    assert_eq!(apart, ["S9"]);
}

#[test]
fn rows_that_do_not_add_up_are_found() {
    let short = after(|_, plan| plan.placements[0].rows[0].gpus = MilliGpus::cards(15));
    assert_eq!(short, ["S33"]);
    let borrows = after(|_, plan| {
        plan.placements[0].rows[0].role = Role::Borrowed;
    });
    assert_eq!(borrows, ["S33"]);
    let blocked = after(|snapshot, _| {
        snapshot.tenants[0].budget = Some(Budget {
            spent: MicroMoney(1),
            limit: MicroMoney(1),
            on_exhausted: OnExhausted::BlockAll,
        });
    });
    assert_eq!(blocked, ["S4"]);
}

#[test]
fn a_passed_limit_is_found_at_every_level() {
    assert_eq!(
        after(|snapshot, _| snapshot.tenants[0].quotas = vec![quota(31, None)]),
        ["S4", "S33"]
    );
    let above = after(|snapshot, _| {
        snapshot.tenants[0].quotas.clear();
        let mut top = crate::builders::tenant("top", None);
        top.quotas = vec![quota(31, Some(0))];
        snapshot.tenants.push(top);
        snapshot.tenants[0].parent = Some(TenantIx(1));
    });
    assert_eq!(above, ["S4", "S33"]);
    assert_eq!(
        after(|snapshot, _| snapshot.tenants[0].running_jobs = Some(1)),
        ["S4"]
    );
    let per_job = Some(MilliGpus::cards(15));
    assert_eq!(
        after(|snapshot, _| snapshot.tenants[0].gpus_per_job = per_job),
        ["S4"]
    );
}

#[test]
fn a_closed_cluster_that_gets_work_is_found() {
    assert_eq!(
        after(|snapshot, _| snapshot.clusters[0].cordoned = true),
        ["S20"]
    );
    let contact = Contact::Suspect;
    assert_eq!(
        after(|snapshot, _| snapshot.clusters[0].contact = contact),
        ["S20"]
    );
    assert_eq!(
        after(|snapshot, _| snapshot.waiting[0].suspended = true),
        ["S20"]
    );
}

#[test]
fn a_second_place_for_a_gang_is_found() {
    let held = after(|snapshot, _| {
        let mut row = World::new().held(0, 0).0.held.remove(0);
        row.gang = snapshot.waiting[0].gang;
        snapshot.held.push(row);
    });
    assert_eq!(held, ["S1", "S2"]);
    assert_eq!(
        after(|snapshot, _| snapshot.waiting[1].gang = snapshot.waiting[0].gang),
        ["S1"]
    );
}

fn hold(device: &str, job: u128, epoch: u64) -> DeviceHold {
    DeviceHold {
        device: ("c1".into(), "n1".into(), device.into()),
        gang: gang_id(job),
        epoch: Epoch(epoch),
    }
}

#[test]
fn a_device_has_one_owner() {
    assert_eq!(
        devices(&[hold("0", 1, 1), hold("1", 1, 1), hold("2", 2, 1)]),
        []
    );
    assert_eq!(
        invariants(&devices(&[hold("0", 1, 1), hold("0", 2, 1)])),
        ["S6"]
    );
    assert_eq!(
        invariants(&devices(&[hold("0", 1, 1), hold("0", 1, 2)])),
        ["S6"]
    );
}

#[test]
fn at_rest_all_of_a_gang_runs_or_nothing() {
    let shape = gang(role(4, 1));
    let found = |running: Vec<u32>| {
        invariants(&gangs_at_rest(&[GangAtRest {
            gang: gang_id(1),
            shape: &shape,
            running,
        }]))
    };
    assert!(found(vec![0]).is_empty() && found(vec![4]).is_empty());
    for wrong in [vec![3], vec![5], vec![4, 4]] {
        assert_eq!(found(wrong), ["S9"]);
    }
}

#[test]
fn epochs_of_a_gang_never_run_at_once() {
    let run = |epoch, from, until: Option<i64>| Run {
        gang: gang_id(1),
        epoch: Epoch(epoch),
        from: UnixMillis(from),
        until: until.map(UnixMillis),
    };
    let found = |runs: &[Run]| invariants(&exclusive_runs(runs));
    assert!(found(&[run(1, 0, Some(5)), run(2, 5, None)]).is_empty());
    assert!(found(&[run(1, 0, Some(5)), run(1, 3, Some(4)), run(2, 5, None)]).is_empty());
    assert_eq!(found(&[run(1, 0, Some(6)), run(2, 5, None)]), ["S1"]);
    assert_eq!(
        found(&[run(1, 0, Some(9)), run(1, 3, Some(4)), run(2, 5, None)]),
        ["S1"]
    );
    assert_eq!(found(&[run(1, 0, None), run(2, 5, None)]), ["S1"]);
    assert_eq!(found(&[run(2, 0, Some(5)), run(1, 5, None)]), ["S2"]);
}

#[test]
fn accepted_numbers_only_grow() {
    let log = |numbers: &[u64]| -> Vec<Accepted> {
        let accepted = |number: &u64| Accepted {
            subject: "c1".into(),
            number: *number,
        };
        numbers.iter().map(accepted).collect()
    };
    assert_eq!(only_grows(&log(&[1, 2, 9])), []);
    assert_eq!(invariants(&only_grows(&log(&[1, 2, 2]))), ["S2"]);
    assert_eq!(invariants(&only_grows(&log(&[3, 1]))), ["S2"]);
}

#[test]
fn acknowledged_jobs_are_stored_once() {
    let (one, two) = (gang_id(1).job, gang_id(2).job);
    assert_eq!(acknowledged(&[one], &[two, one]), []);
    assert_eq!(invariants(&acknowledged(&[one, two], &[two])), ["S7"]);
    let answers = |second| [("k".to_owned(), one), ("k".to_owned(), second)];
    assert_eq!(one_job_per_key(&answers(one)), []);
    assert_eq!(invariants(&one_job_per_key(&answers(two))), ["S8"]);
}

#[test]
fn parts_of_a_pool_add_up() {
    let shapes = [hosts(3, &[], 5)];
    let (free, total) = (
        shapes::free(&shapes).gpus,
        shapes::allocatable(&shapes).gpus,
    );
    let held = MilliGpus::cards(9);
    let sum = PoolSum {
        free,
        held,
        lent: MilliGpus(0),
        quarantined: MilliGpus(0),
        total,
    };
    assert_eq!(pool_sums(&[("p".into(), sum)]), []);
    let wrong = PoolSum {
        held: MilliGpus::cards(8),
        ..sum
    };
    assert_eq!(invariants(&pool_sums(&[("p".into(), wrong)])), ["S5"]);
}
