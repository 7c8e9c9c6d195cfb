//! Settling, tried on a small model: what each observation and wish writes, and what it does not.

use meridian_api::ids::StoreGeneration;
use meridian_api::kinds::federated_job::status::Phase;
use meridian_api::reasons::Reason;
use meridian_api::units::Millis;
use meridian_policies::lifecycle::{DrainReason, State};
use meridian_policies::model::ClusterIx;
use meridian_proto::v1::{self, GangStep};
use meridian_store::keys;
use serde_json::json;

use super::*;
use crate::fixture_tests::{
    FIRST, Fixture, JOB, NOW, compares, deletes, gang, placement_key, puts, record,
};
use crate::progress::JobProgress;

fn placed(state: State) -> Fixture {
    let mut fixture = Fixture::new(4);
    fixture.job(&json!({"retry": {"maxRestarts": 1}}), &json!({}));
    fixture.place(0, FIRST, state);
    fixture
}

fn settle(fixture: &Fixture) -> Option<Change> {
    settle_gang(&fixture.model, gang(0), NOW)
}

fn progress(fixture: &Fixture) -> &JobProgress {
    fixture.model.job(JOB).expect("it is there").progress()
}

fn phase(fixture: &Fixture) -> Phase {
    let status = fixture.status.as_ref();
    status.expect("a status was written").phase
}

#[test]
fn a_gang_that_runs_is_written_once() {
    let mut fixture = placed(State::Starting);
    fixture.saw(0, FIRST, GangStep::Running, "");
    let change = settle(&fixture).expect("news");
    assert!(puts(&change, &placement_key(0)) && compares(&change, &placement_key(0)));
    fixture.carry_out(&change);
    assert_eq!(phase(&fixture), Phase::Running);
    assert_eq!(
        settle(&fixture),
        None,
        "the same observation again is no news"
    );
}

#[test]
fn success_frees_the_row_and_ends_the_job_in_one_write() {
    let mut fixture = placed(State::Running);
    fixture.saw(0, FIRST, GangStep::Succeeded, "");
    let change = settle(&fixture).expect("news");
    assert!(deletes(&change, &placement_key(0)) && puts(&change, &keys::progress(JOB)));
    fixture.carry_out(&change);
    assert_eq!(phase(&fixture), Phase::Succeeded);
    assert!(fixture.model.waiting().is_empty());
}

#[test]
fn what_a_gang_held_is_remembered_in_the_write_that_ends_it() {
    let mut fixture = placed(State::Running);
    fixture.saw(0, FIRST, GangStep::Succeeded, "");
    let later = NOW.after(Millis(7 * 24 * 3_600_000));
    let change = settle_gang(&fixture.model, gang(0), later).expect("news");
    assert!(puts(&change, &keys::history("nlp")) && compares(&change, &keys::history("nlp")));
    let before = fixture.model.histories.average("nlp", later);
    fixture.carry_out(&change);
    let held = fixture.model.histories.average("nlp", later);
    // A week of 8 cards, which is the half-life: half of what they would come to in the end.
    assert_eq!(before.0[0], 0);
    assert!((3_900..=4_100).contains(&held.0[0]), "{held:?}");
    assert_eq!(fixture.model.histories_due(later), [], "nothing runs");
}

#[test]
fn what_runs_is_entered_once_an_hour() {
    let mut fixture = placed(State::Running);
    let now = NOW.after(Millis(3_600_000));
    let due = fixture.model.histories_due(now);
    let [(_, meridian_store::Op::Put { value, .. })] = due.as_slice() else {
        panic!("one write: {due:?}");
    };
    fixture.put("history/nlp", value);
    assert_eq!(fixture.model.histories_due(now), []);
    let next = now.after(Millis(3_600_000));
    assert_eq!(fixture.model.histories_due(next).len(), 1);
}

#[test]
fn an_observation_of_another_epoch_changes_nothing() {
    let mut fixture = placed(State::Running);
    let older = meridian_api::ids::Epoch(FIRST.0 - 1);
    fixture.saw(0, older, GangStep::Succeeded, "");
    assert_eq!(settle(&fixture), None);
}

#[test]
fn a_bad_exit_uses_up_restarts_then_fails_for_good() {
    let mut fixture = placed(State::Running);
    fixture.saw(0, FIRST, GangStep::Failed, "ExitCode");
    fixture.carry_out(&settle(&fixture).expect("news"));
    assert_eq!(phase(&fixture), Phase::Pending);
    let progress = progress(&fixture).clone();
    assert_eq!(progress.tried[&0].restarts, 1);
    let second = progress
        .next_epoch(0, StoreGeneration(1))
        .expect("there is one");
    assert!(second > FIRST);
    fixture.place(0, second, State::Running);
    fixture.saw(0, second, GangStep::Failed, "ExitCode");
    fixture.carry_out(&settle(&fixture).expect("news"));
    assert_eq!(phase(&fixture), Phase::Failed);
}

#[test]
fn a_lost_node_costs_no_restart() {
    let mut fixture = placed(State::Running);
    fixture.saw(0, FIRST, GangStep::Failed, "NodeLost");
    fixture.carry_out(&settle(&fixture).expect("news"));
    let tried = progress(&fixture).tried[&0];
    assert_eq!((tried.restarts, tried.starts), (0, 1));
    assert!(fixture.model.waiting().contains(gang(0)));
}

#[test]
fn a_deleted_job_drains_then_goes_whole() {
    let mut fixture = placed(State::Running);
    fixture.job(
        &json!({}),
        &json!({"deletionTimestamp": "1970-01-01T00:00:11Z"}),
    );
    fixture.carry_out(&settle(&fixture).expect("a wish"));
    let row = fixture
        .model
        .placement(gang(0))
        .expect("kept until the proof");
    assert_eq!(row.record.state, State::Draining(DrainReason::Deleted));
    assert_eq!(
        settle_job(&fixture.model, JOB),
        None,
        "something may still run"
    );
    fixture.saw(0, FIRST, GangStep::Stopped, "");
    fixture.carry_out(&settle(&fixture).expect("the proof"));
    let change = settle_job(&fixture.model, JOB).expect("nothing is left");
    let job = fixture.model.job(JOB).expect("until it is carried out");
    assert!(deletes(&change, &job.key(Part::Spec)) && deletes(&change, &job.key(Part::Status)));
    fixture.carry_out(&change);
    assert!(fixture.model.job(JOB).is_none());
}

#[test]
fn a_gang_looks_elsewhere_at_once_for_what_one_cluster_lacks() {
    let mut fixture = placed(State::Starting);
    fixture.saw(0, FIRST, GangStep::Failed, "DependencyMissing");
    fixture.carry_out(&settle(&fixture).expect("news"));
    let progress = &fixture.model.job(JOB).expect("it is there").progress();
    assert!(progress.tried[&0].not_before <= NOW);
    assert!(progress.lacking["euw-a"].until > NOW);
    let labelled = fixture.model.snapshot(Fixture::situation());
    let waiting = labelled.snapshot.waiting.first().expect("it waits");
    assert_eq!(waiting.lacking[0].cluster, ClusterIx(0));
    assert_eq!(
        fixture.model.next_try(NOW),
        Some(progress.lacking["euw-a"].until)
    );
}

#[test]
fn a_cluster_whose_rules_deny_a_job_is_asked_again_ever_more_rarely() {
    let mut fixture = placed(State::Starting);
    fixture.saw(0, FIRST, GangStep::Failed, "AdmissionDenied");
    fixture.carry_out(&settle(&fixture).expect("news"));
    let mut progress = progress(&fixture).clone();
    let first = progress.lacking["euw-a"].until;
    progress.lacks("euw-a", Reason::Denied, "no root".to_owned(), NOW);
    assert!(progress.lacking["euw-a"].until > first);
    let labelled = fixture.model.snapshot(Fixture::situation());
    let waiting = labelled.snapshot.waiting.first().expect("it waits");
    assert_eq!(waiting.lacking[0].reason, Reason::Denied);
}

#[test]
fn a_rule_decides_what_an_eviction_costs() {
    let evicted = |retry: serde_json::Value| {
        let mut fixture = placed(State::Running);
        fixture.job(&json!({"retry": retry}), &json!({}));
        fixture.saw(0, FIRST, GangStep::Failed, "Evicted");
        fixture.carry_out(&settle(&fixture).expect("news"));
        let progress = &fixture.model.job(JOB).expect("it is there").progress();
        let tried = progress.tried.get(&0).copied().unwrap_or_default();
        (progress.failed.contains(0), tried.restarts)
    };
    let rule = |action: &str| json!([{"cause": "Evicted", "action": action}]);
    assert_eq!(evicted(json!({})), (false, 0));
    assert_eq!(evicted(json!({"causes": rule("Fail")})), (true, 0));
    let counted = json!({"maxRestarts": 1, "causes": rule("Count")});
    assert_eq!(evicted(counted), (false, 1));
    assert_eq!(evicted(json!({"causes": rule("Count")})), (true, 0));
}

#[test]
fn a_drained_cluster_sends_its_gangs_back_to_the_queue() {
    let mut fixture = placed(State::Running);
    fixture.cluster(&json!({"drained": true}));
    assert!(fixture.model.take_unsettled().0.contains(&gang(0)));
    fixture.carry_out(&settle(&fixture).expect("a wish"));
    let row = fixture.model.placement(gang(0)).expect("until the proof");
    assert_eq!(row.record.state, State::Draining(DrainReason::Evacuated));
    fixture.saw(0, FIRST, GangStep::Stopped, "");
    fixture.carry_out(&settle(&fixture).expect("the proof"));
    assert!(fixture.model.waiting().contains(gang(0)));
    let labelled = fixture.model.snapshot(Fixture::situation());
    assert!(labelled.snapshot.clusters[0].cordoned);
}

/// When a gang that runs is told to stop, in a cluster tainted at second 1000.
fn stopped_at(tolerations: &serde_json::Value) -> Option<UnixMillis> {
    let mut fixture = Fixture::new(4);
    fixture.job(
        &json!({"placement": {"tolerations": tolerations}}),
        &json!({}),
    );
    fixture.place(0, FIRST, State::Running);
    fixture.model.take_unsettled();
    let taint = json!({
        "key": "maintenance", "effect": "NoExecute", "timeAdded": "1970-01-01T00:16:40Z",
    });
    fixture.cluster(&json!({"taints": [taint]}));
    assert!(fixture.model.take_unsettled().0.contains(&gang(0)));
    let due = fixture
        .model
        .must_leave(&record(0, FIRST, State::Running))?;
    let before = UnixMillis(due.0 - 1);
    assert_eq!(settle_gang(&fixture.model, gang(0), before), None);
    assert_eq!(fixture.model.next_leave(before), Some(due));
    fixture.model.unsettle_leaving(due);
    assert!(fixture.model.take_unsettled().0.contains(&gang(0)));
    fixture.carry_out(&settle_gang(&fixture.model, gang(0), due).expect("its time is over"));
    let row = fixture.model.placement(gang(0)).expect("until the proof");
    assert_eq!(row.record.state, State::Draining(DrainReason::Evacuated));
    assert_eq!(fixture.model.next_leave(before), None, "it is told once");
    Some(due)
}

#[test]
fn a_taint_ends_work_when_its_toleration_does() {
    // Scenario 21: zero, some and infinite seconds.
    let added = 1_000_000;
    let bears = |seconds: serde_json::Value| {
        let mut row = json!({"key": "maintenance", "operator": "Exists"});
        if !seconds.is_null() {
            row["tolerationSeconds"] = seconds;
        }
        json!([row])
    };
    assert_eq!(stopped_at(&json!([])), Some(UnixMillis(added)));
    assert_eq!(stopped_at(&bears(json!(0))), Some(UnixMillis(added)));
    assert_eq!(
        stopped_at(&bears(json!(300))),
        Some(UnixMillis(added + 300_000))
    );
    assert_eq!(stopped_at(&bears(json!(null))), None);
    let other = json!([{"key": "other", "operator": "Exists"}]);
    assert_eq!(stopped_at(&other), Some(UnixMillis(added)));
}

#[test]
fn an_elastic_gang_that_an_agent_made_smaller_holds_less() {
    let mut fixture = placed(State::Running);
    let mut row = record(0, FIRST, State::Running);
    let role = &mut std::sync::Arc::make_mut(&mut row.roles)[0];
    (role.min, role.step) = (1, 1);
    fixture.put(&format!("placements/{JOB}/0"), &row.to_json());
    let said = |pods: u32| v1::GangObservation {
        gang: Some(gang(0).into()),
        epoch: FIRST.0,
        step: GangStep::Running.into(),
        sizes: vec![v1::RoleSize {
            role: "worker".into(),
            pods,
        }],
        ..v1::GangObservation::default()
    };
    fixture.observed(&said(0));
    assert_eq!(settle(&fixture), None, "below its least");
    fixture.observed(&said(1));
    fixture.carry_out(&settle(&fixture).expect("it shrank"));
    let row = &fixture.model.placement(gang(0)).expect("it runs").record;
    assert_eq!((row.roles[0].pods, row.gpus.whole()), (1, 4));
    assert_eq!(settle(&fixture), None, "told once");
    fixture.observed(&said(2));
    assert_eq!(settle(&fixture), None, "it does not grow by itself");
}

#[test]
fn a_proof_outlives_the_agents_memory_of_the_gang() {
    let mut fixture = placed(State::Draining(DrainReason::Suspended));
    fixture.saw(0, FIRST, GangStep::Stopped, "");
    // The store took no write meanwhile, and the agent has shown what it was asked for.
    fixture.digest(&v1::Digest {
        removed_gangs: vec![gang(0).into()],
        ..v1::Digest::default()
    });
    let change = settle(&fixture).expect("the proof is still there");
    assert!(deletes(&change, &placement_key(0)));
    fixture.carry_out(&change);
    fixture.model.forget_refusals("euw-a");
    let cluster = &fixture.model.fleet.clusters["euw-a"];
    assert!(cluster.proved.is_empty(), "kept for nobody");
}

#[test]
fn absence_is_no_proof() {
    let mut fixture = placed(State::Running);
    fixture.saw(0, FIRST, GangStep::Running, "");
    fixture.digest(&v1::Digest {
        full: true,
        ..v1::Digest::default()
    });
    assert_eq!(settle(&fixture), None);
}

#[test]
fn a_job_that_others_hold_stays() {
    let mut fixture = Fixture::new(4);
    let metadata = json!({
        "deletionTimestamp": "1970-01-01T00:00:11Z",
        "finalizers": ["meridian.dev/drain", "example.com/export"],
    });
    fixture.job(&json!({}), &metadata);
    assert_eq!(settle_job(&fixture.model, JOB), None);
}

#[test]
fn a_suspended_job_gives_its_place_back_and_waits() {
    let mut fixture = placed(State::Running);
    fixture.job(&json!({"suspend": true}), &json!({}));
    fixture.carry_out(&settle(&fixture).expect("a wish"));
    fixture.saw(0, FIRST, GangStep::Stopped, "");
    fixture.carry_out(&settle(&fixture).expect("the proof"));
    assert!(fixture.model.waiting().contains(gang(0)));
    let snapshot = fixture.model.snapshot(Fixture::situation()).snapshot;
    assert!(
        snapshot.waiting[0].suspended,
        "it rests for nobody: only its person holds it"
    );
}

#[test]
fn a_refused_order_is_tried_again_under_the_next_epoch() {
    let mut fixture = placed(State::Starting);
    let cluster = fixture
        .model
        .fleet
        .clusters
        .get_mut("euw-a")
        .expect("there");
    cluster.refused.insert(gang(0), FIRST);
    let change = settle(&fixture).expect("news");
    assert!(deletes(&change, &placement_key(0)));
    fixture.carry_out(&change);
    let tried = progress(&fixture).tried[&0];
    assert_eq!(tried.epoch, FIRST);
    assert!(
        tried.not_before > NOW,
        "a cluster that refuses does not spin the hub"
    );
}

#[test]
fn overflow_goes_back_once_and_only_under_the_epoch_that_was_decided_on() {
    let mut fixture = placed(State::Running);
    let again = |fixture: &Fixture, epoch| give_back(&fixture.model, gang(0), epoch, NOW);
    assert_eq!(again(&fixture, Epoch(FIRST.0 + 1)), None);
    let change = again(&fixture, FIRST).expect("it runs");
    let (word, told) = change.told.clone().expect("people hear of it");
    assert_eq!(word, "Stopping");
    assert!(
        told.contains("an earlier group of its job has room"),
        "{told}"
    );
    fixture.carry_out(&change);
    assert_eq!(again(&fixture, FIRST), None);
}
