//! The judge of lists and watches finds what is planted.

use meridian_store::KeyValue;
use serde_json::json;

use super::*;

fn batch(revision: u64, name: &str, value: Option<&Value>) -> WatchBatch {
    let key = ObjectKey {
        plural: JOBS.to_owned(),
        namespace: Some("lab".to_owned()),
        name: name.to_owned(),
    };
    let (key, revision) = (key.part(Part::Spec), Revision(revision));
    let event = match value {
        Some(value) => Event::Put {
            current: KeyValue {
                key,
                value: value.to_string().into(),
                create_revision: revision,
                mod_revision: revision,
                version: 1,
                lease: None,
            },
            previous: None,
        },
        None => Event::Delete {
            key,
            previous: None,
            revision,
        },
    };
    WatchBatch {
        revision,
        events: vec![event],
    }
}

fn job(name: &str, priority: u32) -> Value {
    json!({"metadata": {"name": name}, "spec": {"priority": priority}})
}

fn shown(job: &Value, revision: u64) -> Value {
    let mut shown = job.clone();
    shown["metadata"]["resourceVersion"] = json!(revision.to_string());
    shown
}

/// Jobs `a` since 2 and `b` since 3; hub 0 has shown both.
fn two_jobs() -> Mirrors {
    let mut mirrors = Mirrors::default();
    let (a, b) = (job("a", 1), job("b", 1));
    mirrors.store_moved(&batch(2, "a", Some(&a)));
    mirrors.store_moved(&batch(3, "b", Some(&b)));
    let found = mirrors.listed(0, Revision(3), &[shown(&a, 2), shown(&b, 3)]);
    assert_eq!(found, []);
    mirrors
}

#[test]
fn a_list_that_leaves_a_job_out_is_found() {
    let mut mirrors = two_jobs();
    let found = mirrors.listed(0, Revision(3), &[shown(&job("a", 1), 2)]);
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn a_list_of_the_future_is_found() {
    let mut mirrors = two_jobs();
    mirrors.store_moved(&batch(4, "c", Some(&job("c", 1))));
    let all = [
        shown(&job("a", 1), 2),
        shown(&job("b", 1), 3),
        shown(&job("c", 1), 4),
    ];
    assert!(!mirrors.listed(0, Revision(3), &all).is_empty());
}

#[test]
fn events_in_order_are_fine() {
    let mut mirrors = two_jobs();
    mirrors.store_moved(&batch(4, "a", Some(&job("a", 2))));
    mirrors.store_moved(&batch(5, "b", None));
    assert_eq!(mirrors.watched(0, "MODIFIED", &shown(&job("a", 2), 4)), []);
    assert_eq!(mirrors.watched(0, "DELETED", &shown(&job("b", 1), 5)), []);
    let bookmark = json!({"metadata": {"resourceVersion": "5"}});
    assert_eq!(mirrors.watched(0, "BOOKMARK", &bookmark), []);
}

#[test]
fn a_missed_event_is_found_at_the_next() {
    let mut mirrors = two_jobs();
    mirrors.store_moved(&batch(4, "a", Some(&job("a", 2))));
    mirrors.store_moved(&batch(5, "b", Some(&job("b", 2))));
    let found = mirrors.watched(0, "MODIFIED", &shown(&job("b", 2), 5));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].message.contains("a is"), "{found:?}");
}

#[test]
fn another_object_than_the_stored_one_is_found() {
    let mut mirrors = two_jobs();
    mirrors.store_moved(&batch(4, "a", Some(&job("a", 2))));
    let found = mirrors.watched(0, "MODIFIED", &shown(&job("a", 9), 4));
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn an_event_twice_is_found() {
    let mut mirrors = two_jobs();
    mirrors.store_moved(&batch(4, "a", Some(&job("a", 2))));
    mirrors.store_moved(&batch(5, "a", Some(&job("a", 3))));
    assert_eq!(mirrors.watched(0, "MODIFIED", &shown(&job("a", 2), 4)), []);
    assert_eq!(mirrors.watched(0, "MODIFIED", &shown(&job("a", 3), 5)), []);
    assert!(
        !mirrors
            .watched(0, "MODIFIED", &shown(&job("a", 2), 3))
            .is_empty()
    );
}
