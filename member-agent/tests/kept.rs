//! A simulated cluster that is kept on disk lives on without a process.
//!
//! Owns two promises: what was due while nobody lived happened on time, and each event of the
//! truth is in the history file exactly once, wherever a crash fell.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{BEGIN, HOST};
use futures::StreamExt as _;
use meridian_agent::Inventory;
use meridian_agent::backend::{
    ClusterBackend as _, ClusterEvent, GangKey, GangOrder, GangTerms, MemberOrder, PodPhase,
    RoleOrder, Workload,
};
use meridian_agent::simulated::{
    Keeper, Profile, RUNTIME, SimulatedBackend, SimulatedCluster, Truth, TruthEvent,
};
use meridian_api::ids::{Epoch, GangId};
use meridian_api::units::{MilliGpus, Millis, Resources};
use meridian_runtime::Clock;
use meridian_runtime::disk::MemoryDisk;
use serde_json::json;

const KEY: GangKey = GangKey {
    gang: GangId {
        job: meridian_api::ids::Uid(5),
        index: 0,
    },
    epoch: Epoch(1),
};

fn order() -> GangOrder {
    let template = json!({"metadata": {"annotations": {RUNTIME: "60s"}}});
    let request = Resources {
        gpus: MilliGpus::cards(8),
        ..Resources::default()
    };
    let member = |rank: u32| MemberOrder {
        role: 0,
        rank,
        node: format!("h100-{rank:04}"),
    };
    GangOrder {
        key: KEY,
        attempt: 0,
        terms: GangTerms::default(),
        roles: vec![RoleOrder {
            name: "worker".to_owned(),
            request,
            template: Arc::new(template),
        }],
        members: (0..2).map(member).collect(),
        labels: indexmap::IndexMap::new(),
        workload: Workload::default(),
        traceparent: String::new(),
    }
}

/// The cluster as a new process finds it.
async fn process(disk: &MemoryDisk, history: &Path, clock: &Clock) -> SimulatedBackend {
    let keeper = Keeper::open(Arc::new(disk.clone()), "cluster", Some(history)).expect("opens");
    let kept = keeper.load().await.expect("readable");
    let fresh = || {
        let inventory = Inventory::uniform("h100", "h100-80gb-sxm", &[], 2, HOST);
        SimulatedCluster::new(&inventory, Profile::default(), 3, BEGIN).expect("an inventory")
    };
    kept.unwrap_or_else(fresh)
        .backend(clock.clone())
        .kept_by(Arc::new(keeper))
}

fn read(history: &Path) -> Vec<TruthEvent> {
    let text = std::fs::read_to_string(history).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a whole line"))
        .collect()
}

async fn until_running(backend: &SimulatedBackend) {
    let mut watch = backend.observe().await.expect("answers");
    while let Some(event) = watch.changes.next().await {
        if let ClusterEvent::Gang(gang) = event
            && gang.pods.iter().all(|pod| pod.phase == PodPhase::Running)
        {
            return;
        }
    }
    panic!("the watch broke");
}

#[tokio::test(start_paused = true)]
async fn it_lives_on_and_its_truth_is_written_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let history = folder.path().join("history.jsonl");
    let (disk, clock) = (MemoryDisk::default(), Clock::simulated(BEGIN));
    let first = process(&disk, &history, &clock).await;
    first.bind(&order()).await.expect("room");
    until_running(&first).await;
    drop(first);
    assert_eq!(read(&history).len(), 2);
    clock.sleep(Millis::seconds(3600)).await;
    let second = process(&disk, &history, &clock).await;
    let found = second.adopt().await.expect("answers");
    assert!(found[0].pods.iter().all(|pod| {
        let ran = pod
            .ended
            .zip(pod.started)
            .map(|(ended, started)| ended.since(started));
        pod.phase == PodPhase::Succeeded && ran == Some(Millis::seconds(60))
    }));
    let truth = read(&history);
    let sequences: Vec<u64> = truth.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, [1, 2, 3, 4]);
    assert_eq!(
        truth
            .iter()
            .filter(|event| event.what == Truth::Ended)
            .count(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn a_line_that_a_crash_tore_is_written_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let history = folder.path().join("history.jsonl");
    let (disk, clock) = (MemoryDisk::default(), Clock::simulated(BEGIN));
    let first = process(&disk, &history, &clock).await;
    first.bind(&order()).await.expect("room");
    until_running(&first).await;
    drop(first);
    let whole = read(&history);
    let text = std::fs::read_to_string(&history).expect("readable");
    std::fs::write(&history, &text[..text.len() - 10]).expect("writable");
    let second = process(&disk, &history, &clock).await;
    second.adopt().await.expect("answers");
    assert_eq!(read(&history), whole);
}
