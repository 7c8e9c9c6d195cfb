//! The judge of the store finds what is planted.

use meridian_api::ids::{Term, Uid};
use serde_json::json;

use super::*;
use crate::simulation::judge::rows_tests::{GANG, placement};

const NOW: UnixMillis = UnixMillis(0);

fn row(epoch: u64) -> PlacementRecord {
    placement("eu", Epoch(epoch), Term(2))
}

fn put(revision: u64, key: Bytes, value: Vec<u8>) -> WatchBatch {
    let revision = Revision(revision);
    let current = KeyValue {
        key,
        value: value.into(),
        create_revision: revision,
        mod_revision: revision,
        version: 1,
        lease: None,
    };
    WatchBatch {
        revision,
        events: vec![Event::Put {
            current,
            previous: None,
        }],
    }
}

fn gone(revision: u64, key: Bytes, previous: Option<&WatchBatch>) -> WatchBatch {
    let revision = Revision(revision);
    let previous = previous.and_then(|batch| match batch.events.first() {
        Some(Event::Put { current, .. }) => Some(current.clone()),
        Some(Event::Delete { .. }) | None => None,
    });
    WatchBatch {
        revision,
        events: vec![Event::Delete {
            key,
            previous,
            revision,
        }],
    }
}

fn write(hub: &str, why: Operation, revision: u64, compares: Vec<Compare>) -> Write {
    Write {
        hub: hub.into(),
        why,
        revision: Revision(revision),
        compares,
    }
}

fn fence(term: u64) -> Compare {
    Compare::CreateRevision(keys::leader(), Revision(term))
}

/// A store whose revision 2 made `hub-0` leader.
fn led() -> StoreTruth {
    let mut store = StoreTruth::default();
    store.wrote(write("hub-0", Operation::Elect, 2, Vec::new()));
    let leader = json!({"name": "hub-0", "agents": "", "users": ""});
    let batch = put(2, keys::leader(), leader.to_string().into_bytes());
    assert_eq!(invariants(&look(&mut store, &batch)), [""; 0]);
    store
}

fn look(store: &mut StoreTruth, batch: &WatchBatch) -> Vec<Violation> {
    store.take_in(batch, &Clusters::new(1), NOW)
}

/// Puts a row as the leader does after the decision.
fn report(store: &mut StoreTruth, revision: u64, row: &PlacementRecord) -> Vec<Violation> {
    let compares = vec![fence(2)];
    store.wrote(write("hub-0", Operation::CommitReport, revision, compares));
    let key = keys::placement(row.gang);
    look(store, &put(revision, key, row.to_json()))
}

fn invariants(found: &[Violation]) -> Vec<&'static str> {
    found.iter().map(|violation| violation.invariant).collect()
}

#[test]
fn a_write_of_another_than_the_leader_is_found() {
    let mut store = led();
    store.wrote(write("hub-1", Operation::Beat, 3, vec![fence(2)]));
    let found = look(&mut store, &put(3, keys::beat(), b"1".to_vec()));
    assert_eq!(invariants(&found), ["S3"]);
}

#[test]
fn a_write_without_the_present_fence_is_found() {
    let mut store = led();
    store.wrote(write("hub-0", Operation::Beat, 3, Vec::new()));
    let found = look(&mut store, &put(3, keys::beat(), b"1".to_vec()));
    assert_eq!(invariants(&found), ["S3"]);
    store.wrote(write("hub-0", Operation::Beat, 4, vec![fence(2)]));
    assert_eq!(look(&mut store, &put(4, keys::beat(), b"2".to_vec())), []);
}

#[test]
fn a_revision_of_nobody_is_found_unless_a_lease_ended() {
    let mut store = led();
    let found = look(&mut store, &put(3, keys::beat(), b"1".to_vec()));
    assert_eq!(invariants(&found), ["S3"]);
    assert_eq!(look(&mut store, &gone(4, keys::leader(), None)), []);
    assert_eq!(store.leader(), None);
}

#[test]
fn a_compare_that_did_not_hold_is_found() {
    let mut store = led();
    let stale = Compare::ModRevision(keys::leader(), Revision(1));
    store.wrote(write("hub-0", Operation::Beat, 3, vec![fence(2), stale]));
    let found = look(&mut store, &put(3, keys::beat(), b"1".to_vec()));
    assert_eq!(invariants(&found), ["S20"]);
}

#[test]
fn a_decision_that_leaves_out_what_it_read_is_found() {
    let mut store = led();
    let head = Compare::ModRevision(keys::policy_head(), Revision(0));
    let compares = vec![fence(2), head];
    store.wrote(write("hub-0", Operation::CommitDecision, 3, compares));
    let found = look(&mut store, &put(3, keys::placement(GANG), row(1).to_json()));
    // Ledger head, spec, progress and row.
    assert_eq!(invariants(&found), ["S20"; 4]);
}

#[test]
fn an_epoch_that_is_used_twice_is_found() {
    let mut store = led();
    assert_eq!(report(&mut store, 3, &row(5)), []);
    assert_eq!(invariants(&report(&mut store, 4, &row(6))), ["S2"]);
    store.wrote(write("hub-0", Operation::CommitReport, 5, vec![fence(2)]));
    assert_eq!(look(&mut store, &gone(5, keys::placement(GANG), None)), []);
    assert_eq!(invariants(&report(&mut store, 6, &row(6))), ["S2"]);
}

#[test]
fn capacity_that_does_not_add_up_is_found() {
    let pool = |out: u64| {
        let host = json!({"gpus": 8_000, "cpu": 1, "memory": 1});
        let shape = json!({"domains": ["r"], "allocatable": host, "free": host, "hosts": 3});
        json!({"h100": {"flavor": "h100", "levels": ["rack"], "shapes": [shape], "out": out}})
    };
    let found = |out| capacity("eu", pool(out).to_string().as_bytes());
    assert_eq!(found((GPUS - 24) * 1_000), []);
    assert_eq!(invariants(&found(0)), ["S5"]);
    assert_eq!(invariants(&capacity("eu", b"nonsense")), ["S5"]);
}

fn job_key(name: &str) -> Bytes {
    let key = ObjectKey {
        plural: JOBS.to_owned(),
        namespace: Some("lab".to_owned()),
        name: name.to_owned(),
    };
    key.part(Part::Spec)
}

fn store_job(store: &mut StoreTruth, revision: u64, uid: Uid, marked: bool) -> Vec<Violation> {
    let name = format!("job-{}", uid.0);
    let mut job = json!({"metadata": {"uid": uid.to_string(), "labels": {KEY_LABEL: "key"}}});
    if marked {
        job["metadata"]["deletionTimestamp"] = json!("2023-11-14T22:13:20Z");
    }
    store.wrote(write("hub-1", Operation::Submit, revision, Vec::new()));
    let batch = put(revision, job_key(&name), job.to_string().into_bytes());
    let found = look(store, &batch);
    if marked {
        store.asked_to_delete(&uid.to_string());
    }
    found
}

#[test]
fn one_key_that_makes_two_jobs_is_found() {
    let mut store = led();
    assert_eq!(store_job(&mut store, 3, Uid(1), false), []);
    assert_eq!(invariants(&store_job(&mut store, 4, Uid(2), false)), ["S8"]);
    assert_eq!(store.told("key", &Uid(1).to_string()), []);
    assert_eq!(invariants(&store.told("key", &Uid(2).to_string())), ["S8"]);
}

#[test]
fn an_acknowledged_job_that_is_not_stored_is_found() {
    let found = led().told("key", &Uid(9).to_string());
    assert_eq!(invariants(&found), ["S7"]);
}

#[test]
fn a_job_that_goes_unasked_is_found() {
    let mut store = led();
    store_job(&mut store, 3, Uid(1), false);
    store.wrote(write("hub-0", Operation::CommitReport, 4, vec![fence(2)]));
    let found = look(&mut store, &gone(4, job_key("job-1"), None));
    assert_eq!(invariants(&found), ["S7"]);
}
