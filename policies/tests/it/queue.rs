//! The order of the queue, rule by rule.

use meridian_api::units::{Millis, UnixMillis};
use meridian_policies::model::{ClassIx, TenantIx, Waiting};
use meridian_policies::order::queue;

use crate::builders::{World, role, tenant};

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
