//! The judge of the clusters finds what is planted.

use meridian_agent::backend::GangKey;
use meridian_api::ids::Term;

use super::*;
use crate::simulation::judge::rows_tests::{GANG, placement};

fn key(epoch: u64) -> GangKey {
    GangKey {
        gang: GANG,
        epoch: Epoch(epoch),
    }
}

fn row(cluster: &str, epoch: u64) -> PlacementRecord {
    placement(cluster, Epoch(epoch), Term(1))
}

fn event(sequence: u64, what: Truth, epoch: u64, pod: &str) -> TruthEvent {
    TruthEvent {
        sequence,
        at: UnixMillis(i64::try_from(sequence).expect("small") * 1_000),
        key: key(epoch),
        pod: pod.into(),
        node: "node".into(),
        devices: vec![3],
        bound: 2,
        members: 2,
        what,
    }
}

fn invariants(found: &[Violation]) -> Vec<&'static str> {
    found.iter().map(|violation| violation.invariant).collect()
}

#[test]
fn an_ordered_whole_gang_is_fine() {
    let mut clusters = Clusters::new(1);
    let start = event(1, Truth::Started, 1, "a");
    assert_eq!(clusters.take_in(0, "eu", &start, Some(&row("eu", 1))), []);
    let end = event(2, Truth::Ended, 1, "a");
    assert_eq!(clusters.take_in(0, "eu", &end, None), []);
    let again = event(3, Truth::Started, 2, "b");
    assert_eq!(clusters.take_in(0, "eu", &again, Some(&row("eu", 2))), []);
}

#[test]
fn a_start_without_an_order_is_found() {
    for row in [None, Some(row("us", 1)), Some(row("eu", 2))] {
        let start = event(1, Truth::Started, 1, "a");
        let found = Clusters::new(1).take_in(0, "eu", &start, row.as_ref());
        assert_eq!(invariants(&found), ["S2"]);
    }
}

#[test]
fn a_start_of_half_a_gang_is_found() {
    let start = TruthEvent {
        bound: 1,
        ..event(1, Truth::Started, 1, "a")
    };
    let found = Clusters::new(1).take_in(0, "eu", &start, Some(&row("eu", 1)));
    assert_eq!(invariants(&found), ["S9"]);
}

#[test]
fn two_epochs_at_once_on_one_device_are_found() {
    let mut clusters = Clusters::new(1);
    let first = event(1, Truth::Started, 1, "a");
    clusters.take_in(0, "eu", &first, Some(&row("eu", 1)));
    let second = event(2, Truth::Started, 2, "b");
    let found = clusters.take_in(0, "eu", &second, Some(&row("eu", 2)));
    assert_eq!(invariants(&found), ["S1", "S6"]);
}

#[test]
fn a_gang_in_two_clusters_is_found() {
    let mut clusters = Clusters::new(2);
    let first = event(1, Truth::Started, 1, "a");
    clusters.take_in(0, "eu", &first, Some(&row("eu", 1)));
    let second = event(1, Truth::Started, 1, "b");
    let found = clusters.take_in(1, "us", &second, Some(&row("us", 1)));
    assert_eq!(invariants(&found), ["S1"]);
}

#[test]
fn an_epoch_that_goes_back_is_found() {
    let mut clusters = Clusters::new(1);
    clusters.take_in(
        0,
        "eu",
        &event(1, Truth::Started, 2, "a"),
        Some(&row("eu", 2)),
    );
    clusters.take_in(0, "eu", &event(2, Truth::Ended, 2, "a"), None);
    let old = event(3, Truth::Started, 1, "b");
    let found = clusters.take_in(0, "eu", &old, Some(&row("eu", 1)));
    assert_eq!(invariants(&found), ["S2"]);
}

#[tokio::test]
async fn a_fence_that_goes_back_on_disk_is_found() {
    let (mut clusters, disk) = (Clusters::new(1), MemoryDisk::default());
    let write = |term: u64| {
        let record = serde_json::json!({"term": term, "incarnation": 4});
        disk.write(RECORD, record.to_string().into_bytes())
    };
    write(7).await.expect("a disk in memory takes it");
    assert_eq!(clusters.look_at_disk(0, &disk), []);
    write(6).await.expect("a disk in memory takes it");
    assert_eq!(invariants(&clusters.look_at_disk(0, &disk)), ["S2"]);
}
