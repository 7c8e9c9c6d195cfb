//! Tests of gangs put together from what the cluster shows.

use meridian_api::ids::{Epoch, Uid};
use meridian_api::units::Resources;
use meridian_runtime::Clock;
use serde_json::{Value, json};

use super::super::hosts::OUT_OF_SERVICE;
use super::super::record::Slip;
use super::super::record::{RoleRecord, Run, is_open};
use super::*;
use crate::backend::{GangTerms, NODE_OFF};
use meridian_api::units::Millis;

const NOW: BootMillis = BootMillis(1_000_000);

fn key() -> GangKey {
    let gang = GangId {
        job: Uid(5),
        index: 1,
    };
    GangKey {
        gang,
        epoch: Epoch(3),
    }
}

fn labels(part: Part) -> Value {
    json!({
        names::MANAGED_BY: names::MANAGER,
        names::PART: part.label(),
        names::GANG: names::gang_label(key().gang),
        names::EPOCH: "3",
    })
}

fn record() -> Record {
    let run = |from, node: &str| Run {
        from,
        count: 1,
        node: node.to_owned(),
    };
    Record {
        key: key(),
        attempt: 0,
        complete: true,
        resizing: false,
        stopping: false,
        theirs: false,
        terms: GangTerms::default(),
        roles: vec![RoleRecord {
            name: "worker".to_owned(),
            request: Resources::default(),
            runs: vec![run(0, "a"), run(1, "b")],
        }],
    }
}

fn owner(record: &Record) -> ConfigMap {
    let owner = json!({
        "metadata": {"name": names::owner(key().gang), "namespace": "ml", "uid": "owner-1",
                     "labels": labels(Part::Owner)},
        "data": record.data(),
    });
    serde_json::from_value(owner).expect("a ConfigMap")
}

fn open() -> ConfigMap {
    let mut open = owner(&record());
    record().open(&mut open);
    open
}

fn pod(rank: u32, node: &str, status: Value) -> Pod {
    let slip = Slip {
        role: "worker".to_owned(),
        order: 0,
        rank,
        node: node.to_owned(),
        request: Resources::default(),
        attempt: 0,
        terms: GangTerms::default(),
    };
    let slip = serde_json::to_string(&slip).expect("plain");
    let mut pod = json!({
        "metadata": {"name": format!("p{rank}"), "namespace": "ml", "uid": format!("u{rank}"),
                     "labels": labels(Part::Member), "annotations": {names::SLIP: slip}},
        "spec": {"nodeName": node, "containers": []},
    });
    pod["status"] = status;
    serde_json::from_value(pod).expect("a pod")
}

fn admitted() -> Value {
    json!({"phase": "Pending", "startTime": "2026-11-29T10:00:00Z"})
}

fn node(name: &str, ready: &str) -> Node {
    let node = json!({
        "metadata": {"name": name},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    });
    serde_json::from_value(node).expect("a node")
}

fn options() -> KubernetesOptions {
    let uri = "http://127.0.0.1:9".parse().expect("a URI");
    let client = kube::Client::try_from(kube::Config::new(uri)).expect("plain");
    KubernetesOptions::new(client, Clock::real())
}

/// A gang of two on nodes `a` and `b`, and one node more.
fn loaded(pods: &[Pod], configs: &[ConfigMap]) -> Index {
    let nodes = ["a", "b", "c"].map(|name| node(name, "True"));
    let mut index = Index::new(&options());
    index.load(&nodes, pods, configs, NOW);
    index
}

fn phases(index: &Index) -> Vec<PodPhase> {
    let gang = index.gang(key()).expect("it is there");
    gang.pods.into_iter().map(|pod| pod.phase).collect()
}

fn removed() -> PodPhase {
    PodPhase::Failed {
        exit_code: 0,
        reason: "Removed".to_owned(),
    }
}

fn lost() -> PodPhase {
    PodPhase::Broken {
        reason: "NodeLost".to_owned(),
    }
}

fn off() -> PodPhase {
    PodPhase::Broken {
        reason: NODE_OFF.to_owned(),
    }
}

fn opens(index: &Index) -> bool {
    let open = Chore::Open {
        key: key(),
        namespace: "ml".to_owned(),
    };
    index.chores().any(|chore| *chore == open)
}

#[tokio::test]
async fn the_gate_waits_for_every_kubelet() {
    let (a, b) = (pod(0, "a", admitted()), pod(1, "b", admitted()));
    assert!(opens(&loaded(&[a.clone(), b.clone()], &[owner(&record())])));
    let pending = pod(1, "b", json!({"phase": "Pending"}));
    assert!(!opens(&loaded(&[a.clone(), pending], &[owner(&record())])));
    let away = json!({"phase": "Failed", "reason": "OutOfcpu"});
    let away = pod(1, "b", away);
    assert!(!opens(&loaded(&[a.clone(), away], &[owner(&record())])));
    assert!(!opens(&loaded(
        std::slice::from_ref(&a),
        &[owner(&record())]
    )));
    let mut elsewhere = pod(1, "b", admitted());
    elsewhere.metadata.deletion_timestamp = Some(
        k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH),
    );
    assert!(!opens(&loaded(
        &[a.clone(), elsewhere],
        &[owner(&record())]
    )));
    let mut young = record();
    young.complete = false;
    assert!(opens(&loaded(&[a.clone(), b.clone()], &[owner(&young)])));
    let changes: [fn(&mut Record); 2] = [|r| r.resizing = true, |r| r.stopping = true];
    for change in changes {
        let mut record = record();
        change(&mut record);
        assert!(!opens(&loaded(&[a.clone(), b.clone()], &[owner(&record)])));
    }
    assert!(!opens(&loaded(&[a, b], &[open()])), "it is open");
}

#[tokio::test]
async fn the_gate_is_opened_only_as_it_was_shown() {
    let mut young = record();
    young.complete = false;
    let mut shown = owner(&young);
    shown.metadata.resource_version = Some("41".to_owned());
    let pods = [pod(0, "a", admitted()), pod(1, "b", admitted())];
    let opening = loaded(&pods, &[shown.clone()]).opening(key());
    let opening = opening.expect("it has an owner object");
    let named = json!({"uid": "owner-1", "resourceVersion": "41"});
    assert_eq!(opening["metadata"], named, "another version is refused");
    // What the API server makes of it.
    let opened = serde_json::from_value(opening["data"].clone());
    shown
        .data
        .get_or_insert_default()
        .extend::<BTreeMap<_, _>>(opened.expect("texts"));
    assert!(is_open(&shown));
    assert_eq!(Record::read(&shown), Some(record()), "and that it was done");
}

#[tokio::test]
async fn a_bind_is_complete_when_every_member_is_bound() {
    let mut young = record();
    young.complete = false;
    let complete = |pods: &[Pod], record: &Record| {
        let index = loaded(pods, &[owner(record)]);
        index.gang(key()).expect("it is there").complete
    };
    let (a, b) = (pod(0, "a", json!({})), pod(1, "b", json!({})));
    let mut unbound = b.clone();
    unbound.spec.as_mut().expect("it has one").node_name = None;
    assert!(!complete(std::slice::from_ref(&a), &young));
    assert!(!complete(&[a.clone(), unbound], &young));
    assert!(complete(&[a.clone(), b.clone()], &young));
    young.resizing = true;
    assert!(!complete(&[a, b], &young), "others are still asked to go");
}

#[tokio::test]
async fn a_member_without_a_pod_is_pending_until_it_was_there() {
    let mut young = record();
    young.complete = false;
    let a = pod(0, "a", admitted());
    let mut index = loaded(std::slice::from_ref(&a), &[owner(&young)]);
    assert_eq!(phases(&index), [PodPhase::Bound, PodPhase::Pending]);
    // The watch of the owner may be ahead of that of the pods.
    index.apply_config(&owner(&record()));
    assert_eq!(phases(&index), [PodPhase::Bound, PodPhase::Pending]);
    let b = pod(1, "b", admitted());
    index.apply_pod(&b);
    index.remove_pod(&b);
    assert_eq!(phases(&index), [PodPhase::Bound, removed()]);
    // In a whole listing, pods come after the owner that says that all were bound.
    let index = loaded(&[a], &[owner(&record())]);
    assert_eq!(phases(&index), [PodPhase::Bound, removed()]);
}

#[tokio::test]
async fn who_is_missing_after_a_resize_is_asked_for_by_the_name_it_has() {
    let mut resized = record();
    resized.attempt = 1;
    let came = pod(1, "b", admitted());
    let index = loaded(&[came], &[owner(&resized)]);
    let made_at_first = names::pod("", key(), "worker", 0, 0);
    let is_asked_for =
        |missing: &Missing| matches!(missing, Missing::Pod { name, .. } if *name == made_at_first);
    assert!(
        index.missing().iter().any(is_asked_for),
        "{:?}",
        index.missing()
    );
}

#[tokio::test]
async fn what_a_resize_leaves_out_ends_as_expected() {
    let (a, b) = (pod(0, "a", admitted()), pod(1, "b", admitted()));
    let mut index = loaded(&[a, b.clone()], &[owner(&record())]);
    let mut smaller = record();
    smaller.attempt = 1;
    smaller.roles[0].runs.pop();
    index.apply_config(&owner(&smaller));
    index.remove_pod(&b);
    assert_eq!(phases(&index), [PodPhase::Bound]);
}

#[tokio::test]
async fn a_gang_is_gone_when_nothing_of_it_is_left() {
    let a = pod(0, "a", admitted());
    let mut index = loaded(std::slice::from_ref(&a), &[owner(&record())]);
    index.remove_config(&owner(&record()));
    assert_eq!(
        phases(&index),
        [PodPhase::Bound],
        "pods without an owner are seen"
    );
    index.news(NOW);
    index.remove_pod(&a);
    assert_eq!(index.news(NOW), [ClusterEvent::GangGone(key())]);
    assert_eq!(index.news(NOW), []);
    let mut over = record();
    over.stopping = true;
    let index = loaded(&[], &[owner(&over)]);
    let gang = index.gang(key()).expect("its owner is there");
    assert!(gang.stopping && gang.pods.is_empty());
    let chores: Vec<&Chore> = index.chores().collect();
    assert_eq!(chores, [&Chore::Collect { key: key() }]);
}

#[tokio::test]
async fn a_silent_node_loses_its_pods_in_time_unless_most_are_silent() {
    let pods = [pod(0, "a", admitted()), pod(1, "b", admitted())];
    let mut index = loaded(&pods, &[owner(&record())]);
    index.apply_node(&node("b", "Unknown"), NOW);
    assert_eq!(phases(&index), [PodPhase::Bound, PodPhase::Bound]);
    let late = index.next_tick(NOW).expect("it is counted");
    index.tick(late);
    assert_eq!(phases(&index), [PodPhase::Bound, lost()]);
    assert_eq!(index.news(NOW).len(), 1);
    index.apply_node(&node("a", "Unknown"), late);
    assert_eq!(
        phases(&index),
        [PodPhase::Bound, PodPhase::Bound],
        "two of three: the control plane is in trouble"
    );
    index.apply_node(&node("a", "True"), late);
    index.apply_node(&node("b", "True"), late);
    assert_eq!(phases(&index), [PodPhase::Bound, PodPhase::Bound]);
}

#[tokio::test]
async fn only_a_machine_that_was_given_up_takes_its_pods_along() {
    let mut asked = pod(1, "b", admitted());
    asked.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        jiff::Timestamp::UNIX_EPOCH,
    ));
    let pods = [pod(0, "a", admitted()), asked];
    let buried = |index: &mut Index, at| {
        index.tick(at);
        index.news(at);
        let mut chores = index.chores();
        chores.any(|chore| matches!(chore, Chore::Bury { .. }))
    };
    let much_later = NOW.after(Millis::seconds(100_000));
    let mut index = loaded(&pods, &[owner(&record())]);
    index.apply_node(&node("b", "Unknown"), NOW);
    assert!(!buried(&mut index, much_later), "silence is no proof");
    index.remove_node(&node("b", "Unknown"), NOW);
    assert_eq!(phases(&index), [PodPhase::Bound, off()]);
    assert!(!buried(&mut index, NOW), "a node may come back");
    let due = index.next_tick(NOW).expect("it is counted");
    assert!(buried(&mut index, due));
    index.apply_node(&node("b", "True"), due);
    assert!(!buried(&mut index, much_later), "it came back");
    let mut switched_off = node("b", "Unknown");
    let taint = json!({"taints": [{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]});
    switched_off.spec = serde_json::from_value(taint).expect("a spec");
    index.apply_node(&switched_off, NOW);
    assert_eq!(phases(&index), [PodPhase::Bound, off()]);
    assert!(buried(&mut index, due));
}

#[tokio::test]
async fn what_goes_with_its_machine_is_lost_and_not_removed_by_somebody() {
    let pods = [pod(0, "a", admitted()), pod(1, "b", admitted())];
    let mut index = loaded(&pods, &[open()]);
    index.remove_node(&node("b", "Unknown"), NOW);
    let due = index.next_tick(NOW).expect("it is counted");
    index.tick(due);
    index.news(due);
    let chores: Vec<&Chore> = index.chores().collect();
    // Nobody had asked it to end.
    assert!(
        matches!(chores.as_slice(), [Chore::Bury { pod, .. }] if pod == "p1"),
        "{chores:?}"
    );
    index.remove_pod(&pods[1]);
    let gone = PodPhase::Failed {
        exit_code: 0,
        reason: "NodeLost".to_owned(),
    };
    assert_eq!(phases(&index), [PodPhase::Bound, gone]);
    index.remove_pod(&pods[0]);
    assert_eq!(phases(&index)[0], removed(), "its machine is there");
}

#[tokio::test]
async fn pods_of_others_are_no_gangs() {
    let mut foreign = pod(0, "a", admitted());
    foreign.metadata.annotations = None;
    let mut index = loaded(&[foreign.clone()], &[]);
    assert!(index.snapshot().gangs.is_empty());
    index.apply_pod(&foreign);
    index.remove_pod(&foreign);
    assert_eq!(index.news(NOW), []);
}
