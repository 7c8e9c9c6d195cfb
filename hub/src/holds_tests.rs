//! A preemption from decision to place, tried on a small model.

use std::sync::Arc;

use meridian_api::ids::Uid;
use meridian_api::units::Millis;
use meridian_policies::lifecycle::{DrainReason, State};
use meridian_policies::model::Plan;
use meridian_policies::{check, decide};
use meridian_proto::v1::{self, GangStep};
use serde_json::json;

use super::*;
use crate::decision::placement_change;
use crate::fixture_tests::{FIRST, Fixture, JOB, NOW, deletes, gang, record as placed};
use crate::model::Labelled;
use crate::settle::settle_gang;

/// The job that makes others go.
const URGENT: Uid = Uid(77);
/// The fixture's one host, as its agent numbers it.
const HOST: u64 = 4711;

fn urgent() -> GangId {
    GangId {
        job: URGENT,
        index: 0,
    }
}

fn cards(gpus: u64) -> v1::Resources {
    v1::Resources {
        milli_gpus: gpus * 1_000,
        milli_cpus: gpus * 1_000,
        memory_mib: gpus * 256,
    }
}

/// All of a host.
const SIZE: v1::Resources = v1::Resources {
    milli_gpus: 8_000,
    milli_cpus: 96_000,
    memory_mib: 1 << 20,
};

/// What the agent says of the running gang and of the one host.
fn digest(fixture: &mut Fixture, step: GangStep, is_there: bool) {
    let used = cards(if is_there { 8 } else { 0 });
    digest_of(fixture, step, used, &[]);
}

/// The same, with what the gang uses of the host and what is free on others.
fn digest_of(fixture: &mut Fixture, step: GangStep, used: v1::Resources, others: &[v1::Resources]) {
    let (size, is_there) = (SIZE, used.milli_gpus > 0);
    let free = v1::Resources {
        milli_gpus: size.milli_gpus - used.milli_gpus,
        milli_cpus: size.milli_cpus - used.milli_cpus,
        memory_mib: size.memory_mib - used.memory_mib,
    };
    let each = v1::HostHold {
        host: HOST,
        domains: vec!["b0".into()],
        held: Some(used),
        allocatable: Some(size),
        foreign: None,
        roles: vec![v1::RoleSize {
            role: "worker".into(),
            pods: 2,
        }],
    };
    let hold = v1::DomainHold {
        domains: vec!["b0".into()],
        hosts: 1,
        held: Some(used),
        each: vec![each],
    };
    let seen = v1::GangObservation {
        gang: Some(gang(0).into()),
        epoch: FIRST.0,
        step: step.into(),
        holds: is_there.then_some(hold).into_iter().collect(),
        ..v1::GangObservation::default()
    };
    let shape = |free: &v1::Resources| v1::Shape {
        domains: vec!["b0".into()],
        allocatable: Some(size),
        free: Some(*free),
        hosts: 1,
    };
    let pool = v1::Pool {
        name: "h100".into(),
        flavor: "h100-80gb".into(),
        levels: vec!["block".into()],
        shapes: std::iter::once(&free).chain(others).map(shape).collect(),
        ..v1::Pool::default()
    };
    fixture.digest(&v1::Digest {
        full: true,
        pools: vec![pool],
        gangs: vec![seen],
        ..v1::Digest::default()
    });
}

/// A full host, and a job of a higher class that wants all of it.
fn full() -> Fixture {
    let mut fixture = Fixture::new(1);
    fixture.job(&json!({}), &json!({}));
    let mut row = placed(0, FIRST, State::Running);
    for role in Arc::make_mut(&mut row.roles) {
        role.per_pod = cards(4).into();
    }
    fixture.put(&format!("placements/{JOB}/0"), &row.to_json());
    digest(&mut fixture, GangStep::Running, true);
    asked_for(&mut fixture);
    fixture
}

/// As [`half_used`], and a job of a higher class wants a whole host.
fn half_full(location: &[&str]) -> Fixture {
    let mut fixture = half_used(location);
    asked_for(&mut fixture);
    fixture
}

/// Half a host is used by a job that saves its work in `location`, half of another by strangers:
/// the job would fit there.
fn half_used(location: &[&str]) -> Fixture {
    let mut fixture = Fixture::new(2);
    let roles = json!([{"name": "worker", "replicas": 2, "gpus": 2,
                        "resources": {"cpu": "2", "memory": "512Mi"}, "template": {"a": 1}}]);
    let save = json!({"uri": "s3://ckpt/train", "every": "10m", "location": location});
    fixture.job(&json!({"roles": roles, "checkpoint": save}), &json!({}));
    let mut row = placed(0, FIRST, State::Running);
    for role in Arc::make_mut(&mut row.roles) {
        role.per_pod = cards(2).into();
    }
    row.gpus = MilliGpus::cards(4);
    fixture.put(&format!("placements/{JOB}/0"), &row.to_json());
    digest_of(&mut fixture, GangStep::Running, cards(4), &[half()]);
    fixture
}

fn half() -> v1::Resources {
    v1::Resources {
        milli_gpus: 4_000,
        ..SIZE
    }
}

/// A job of a higher class asks for a whole host.
fn asked_for(fixture: &mut Fixture) {
    let class = json!({"priority": 50, "preemption": "Never"});
    fixture.object("workloadclasses/-/serve", "WorkloadClass", &class);
    let job = json!({
        "apiVersion": "meridian.dev/v1alpha1", "kind": "FederatedJob",
        "metadata": {"name": "urgent", "namespace": "nlp", "uid": URGENT.to_string(),
                     "generation": 1, "creationTimestamp": "1970-01-01T00:00:20Z"},
        "spec": {"workloadClass": "serve", "tenant": "nlp",
                 "roles": [{"name": "worker", "replicas": 1, "gpus": 8,
                            "resources": {"cpu": "8", "memory": "1Gi"}, "template": {"a": 1}}]},
    });
    let key = "objects/federatedjobs/nlp/urgent/spec";
    fixture.put(key, job.to_string().as_bytes());
}

fn decided(fixture: &Fixture) -> (Labelled, Plan) {
    let labelled = fixture.model.snapshot(Fixture::situation());
    let plan = decide(&labelled.snapshot);
    assert_eq!(check(&labelled.snapshot, &plan), []);
    (labelled, plan)
}

/// Decides, and writes the hold.
fn hold(fixture: &mut Fixture) -> Change {
    let (labelled, plan) = decided(fixture);
    assert_eq!(plan.preemptions.len(), 1, "{plan:?}");
    let made = &plan.preemptions[0];
    let change = hold_change(
        &fixture.model,
        &labelled.snapshot,
        &labelled.hosts,
        made,
        Term(1),
    );
    let change = change.expect("its job is there");
    fixture.carry_out(&change);
    change
}

#[test]
fn one_write_holds_the_room_and_then_its_victim_drains() {
    let mut fixture = full();
    let change = hold(&mut fixture);
    let told = change.told.expect("it is told").1;
    assert!(told.contains("nlp/train (8 GPUs)"), "{told}");
    let state = |fixture: &Fixture| fixture.model.placement(gang(0)).map(|row| row.record.state);
    assert_eq!(
        state(&fixture),
        Some(State::Running),
        "the hold alone is written"
    );
    let drains = settle_gang(&fixture.model, gang(0), NOW).expect("a hold names it");
    fixture.carry_out(&drains);
    let draining = State::Draining(DrainReason::Preempted);
    assert_eq!(state(&fixture), Some(draining));
    let row = &fixture
        .model
        .placement(gang(0))
        .expect("until the proof")
        .record;
    let preempted = row.preempted.as_ref().expect("it says for whom");
    assert_eq!(
        (preempted.by, preempted.job.as_str()),
        (urgent(), "nlp/urgent")
    );
    assert_eq!(settle_gang(&fixture.model, gang(0), NOW), None, "once");
    // Nobody else gets a place or is hit meanwhile.
    let (_, plan) = decided(&fixture);
    assert!(plan.placements.is_empty() && plan.preemptions.is_empty());
}

#[test]
fn what_comes_free_goes_to_the_gang_and_the_victim_waits_again() {
    let mut fixture = full();
    hold(&mut fixture);
    let drains = settle_gang(&fixture.model, gang(0), NOW).expect("a hold names it");
    fixture.carry_out(&drains);
    digest(&mut fixture, GangStep::Stopped, false);
    let gone = settle_gang(&fixture.model, gang(0), NOW).expect("the proof");
    fixture.carry_out(&gone);
    assert!(fixture.model.waiting().contains(gang(0)));
    let progress = &fixture.model.job(JOB).expect("it is there").progress();
    assert_eq!(progress.evicted_by(0)[0].job, URGENT);
    assert!(progress.next_epoch(0, meridian_api::ids::StoreGeneration(1)) > Some(FIRST));
    let (labelled, plan) = decided(&fixture);
    let snapshot = &labelled.snapshot;
    assert_eq!(plan.placements.len(), 1);
    let placed = &plan.placements[0];
    assert_eq!(snapshot.waiting[placed.waiting.index()].gang, urgent());
    let change = placement_change(&fixture.model, snapshot, placed, Term(1));
    let change = change.expect("its job is there");
    assert!(
        deletes(&change, &keys::hold(urgent())),
        "one write ends the hold"
    );
    fixture.carry_out(&change);
    assert!(fixture.model.hold(urgent()).is_none());
}

#[test]
fn a_hold_that_ends_spares_who_was_not_stopped() {
    let mut fixture = full();
    hold(&mut fixture);
    let drains = settle_gang(&fixture.model, gang(0), NOW).expect("a hold names it");
    fixture.carry_out(&drains);
    fixture.object(
        "memberclusters/-/euw-a",
        "MemberCluster",
        &json!({
            "region": "eu", "backend": "Simulated", "cordoned": true,
        }),
    );
    let (labelled, plan) = decided(&fixture);
    let change = lapse_change(&fixture.model, &labelled.snapshot, plan.lapsed[0]);
    fixture.carry_out(&change.expect("it stands"));
    let spared = settle_gang(&fixture.model, gang(0), NOW).expect("no hold names it");
    fixture.carry_out(&spared);
    let row = &fixture.model.placement(gang(0)).expect("it runs").record;
    assert_eq!((row.state, &row.preempted), (State::Running, &None));
}

#[test]
fn what_is_being_stopped_is_not_called_back() {
    let mut fixture = full();
    hold(&mut fixture);
    let drains = settle_gang(&fixture.model, gang(0), NOW).expect("a hold names it");
    fixture.carry_out(&drains);
    digest(&mut fixture, GangStep::Stopping, true);
    let (labelled, _) = decided(&fixture);
    let lapsed = Lapsed {
        hold: meridian_policies::model::HoldIx(0),
        why: Lapse::Expired,
    };
    let change = lapse_change(&fixture.model, &labelled.snapshot, lapsed);
    fixture.carry_out(&change.expect("it stands"));
    assert_eq!(settle_gang(&fixture.model, gang(0), NOW), None);
}

#[test]
fn a_stored_hold_reads_back() {
    let mut fixture = full();
    hold(&mut fixture);
    let stored = &fixture.model.hold(urgent()).expect("stored").record;
    let json = stored.to_json();
    let read: HoldRecord = serde_json::from_slice(&json).expect("as written");
    assert_eq!(read, **stored);
    assert_eq!(read.room[0].known, [HOST]);
    assert_eq!(read.until.since(read.decided), Millis::seconds(60));
}

#[test]
fn who_fits_elsewhere_goes_on_there_under_its_next_epoch() {
    let mut fixture = half_full(&["eu"]);
    let change = hold(&mut fixture);
    let puts = |key: &[u8]| {
        let mut ops = change.ops.iter();
        ops.any(|op| matches!(op, Op::Put { key: it, .. } if it.as_ref() == key))
    };
    assert!(puts(keys::hold(urgent()).as_ref()) && puts(keys::hold(gang(0)).as_ref()));
    let drains = settle_gang(&fixture.model, gang(0), NOW).expect("a hold names it");
    let told = drains.told.clone().expect("it is told").1;
    assert!(told.ends_with("goes on in euw-a/h100"), "{told}");
    fixture.carry_out(&drains);
    // Both places are kept while it saves its work.
    let (_, plan) = decided(&fixture);
    assert!(plan.placements.is_empty() && plan.lapsed.is_empty());
    digest_of(&mut fixture, GangStep::Stopped, cards(0), &[half()]);
    let gone = settle_gang(&fixture.model, gang(0), NOW).expect("the proof");
    fixture.carry_out(&gone);
    let (labelled, plan) = decided(&fixture);
    let snapshot = &labelled.snapshot;
    assert_eq!((plan.placements.len(), &plan.lapsed), (2, &Vec::new()));
    for placed in &plan.placements {
        let change = placement_change(&fixture.model, snapshot, placed, Term(1));
        fixture.carry_out(&change.expect("its job is there"));
    }
    let again = &fixture.model.placement(gang(0)).expect("it goes on").record;
    assert!(again.epoch > FIRST);
    assert!(
        fixture.model.holds().next().is_none(),
        "both have done their work"
    );
}

#[test]
fn nobody_goes_on_where_its_work_cannot_be_read() {
    let mut fixture = half_full(&["us"]);
    fixture.object("regions/-/us", "Region", &json!({"timeZone": "UTC"}));
    let (labelled, plan) = decided(&fixture);
    assert_eq!(labelled.snapshot.movable.len(), 1);
    let does = &plan.preemptions[0].victims[0].does;
    assert_eq!(*does, Yield::Evict);
}

#[test]
fn who_stands_where_a_block_begins_goes_for_it_and_is_spared_without_it() {
    let mut fixture = half_used(&["eu"]);
    fixture.object("tenants/-/wing", "Tenant", &json!({}));
    let reservation = |until: i64| {
        let time = |at: i64| meridian_api::quantity::Time(UnixMillis(at)).to_string();
        let spec = json!({
            "tenant": "wing",
            "schedule": {"from": time(NOW.0 + 60_000), "until": time(until)},
            "capacity": {"flavor": "h100-80gb", "hosts": 2, "cluster": "euw-a", "pool": "h100"},
        });
        let object = json!({
            "apiVersion": "meridian.dev/v1alpha1", "kind": "Reservation", "spec": spec,
            "metadata": {"name": "eval", "uid": Uid(88).to_string(), "generation": 1},
        });
        object.to_string()
    };
    let key = "objects/reservations/-/eval/spec";
    fixture.put(key, reservation(NOW.0 * 1_000).as_bytes());
    let (labelled, plan) = decided(&fixture);
    assert_eq!(plan.vacating.len(), 1, "{plan:?}");
    let leaving = &plan.vacating[0];
    let (snapshot, hosts) = (&labelled.snapshot, &labelled.hosts);
    let change = vacate_change(&fixture.model, snapshot, hosts, leaving, Term(1));
    fixture.carry_out(&change.expect("it is there"));
    let drains = settle_gang(&fixture.model, gang(0), NOW).expect("a hold names it");
    let told = drains.told.clone().expect("it is told").1;
    assert!(told.contains("makes room for reservation eval"), "{told}");
    fixture.carry_out(&drains);
    let (_, plan) = decided(&fixture);
    assert_eq!((&plan.vacating, &plan.lapsed), (&Vec::new(), &Vec::new()));
    // It is over before it begins.
    fixture.put(key, reservation(NOW.0 - 1).as_bytes());
    let (labelled, plan) = decided(&fixture);
    let change = lapse_change(&fixture.model, &labelled.snapshot, plan.lapsed[0]);
    fixture.carry_out(&change.expect("it stands"));
    let spared = settle_gang(&fixture.model, gang(0), NOW).expect("no hold names it");
    fixture.carry_out(&spared);
    let row = &fixture.model.placement(gang(0)).expect("it runs").record;
    assert_eq!(row.state, State::Running);
}
