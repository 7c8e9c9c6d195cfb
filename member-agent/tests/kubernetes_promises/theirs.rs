//! Pods that others made: offered, bound whole under an order, let go or removed, never made.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use meridian_agent::backend::{
    BackendError, ClusterBackend as _, GangKey, GangOrder, GangSeen, Origin, PodPhase, Stopped,
};
use meridian_agent::kubernetes::Step;
use meridian_agent::kubernetes::names;
use meridian_api::units::Millis;
use serde_json::json;

use super::{dies_after, object, running};
use crate::conformance::{Fixture as _, TWO, key, order, plain, stopped, until, watch};
use crate::kubernetes_fixture::{Cluster, NAMESPACE};

/// Steps after which an agent may die while it binds what others made.
const STEPS: [Step; 5] = [
    Step::Claimed,
    Step::PodMade,
    Step::PodsMade,
    Step::PodBound,
    Step::PodsBound,
];

fn jobs(cluster: &Cluster) -> Api<Job> {
    Api::namespaced(cluster.client.clone(), NAMESPACE)
}

/// A Job of two pods; no controller is here, so its pods are made by [`make_pod`].
async fn make_job(cluster: &Cluster) -> Origin {
    let job = json!({
        "metadata": {"name": "evaluate"},
        "spec": {
            "completionMode": "Indexed", "parallelism": 2, "completions": 2,
            "template": {
                "metadata": {"labels": {names::GANG: "evaluate"}},
                "spec": {"schedulerName": "meridian", "restartPolicy": "Never",
                         "containers": [{"name": "main", "image": "eval:1"}]},
            },
        },
    });
    // It may be there from the check before.
    let gone = DeleteParams::background();
    drop(jobs(cluster).delete("evaluate", &gone).await);
    let made = jobs(cluster)
        .create(&PostParams::default(), &object(job))
        .await;
    Origin {
        uid: made.expect("admin").metadata.uid.expect("it has one"),
        namespace: NAMESPACE.to_owned(),
        name: "evaluate".to_owned(),
    }
}

/// Makes the pod of that index, as the Job's controller does, and says its UID.
async fn make_pod(cluster: &Cluster, origin: &Origin, index: u32, gpus: u32) -> String {
    let pod = json!({
        "metadata": {
            "generateName": format!("evaluate-{index}-"),
            "labels": {
                names::GANG: "evaluate",
                "app.kubernetes.io/managed-by": "helm",
                "batch.kubernetes.io/job-completion-index": index.to_string(),
            },
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": origin.name,
                                 "uid": origin.uid, "controller": true}],
        },
        "spec": {
            "schedulerName": "meridian", "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "eval:1", "resources": {
                "requests": {"cpu": "1m", "memory": "1Mi"},
                "limits": {"nvidia.com/gpu": gpus.to_string()}}}],
        },
    });
    let made = cluster
        .pods()
        .create(&PostParams::default(), &object(pod))
        .await;
    made.expect("admin").metadata.uid.expect("it has one")
}

async fn make_pods(cluster: &Cluster, origin: &Origin) -> Vec<String> {
    let mut pods = Vec::new();
    for index in 0..2 {
        pods.push(make_pod(cluster, origin, index, 4).await);
    }
    pods
}

fn ordered(key: GangKey, origin: &Origin) -> GangOrder {
    let mut order = order(key, 4, &TWO, plain());
    order.workload.origin = Some(origin.clone());
    "nlp".clone_into(&mut order.workload.tenant);
    order
}

async fn all_pods(cluster: &Cluster) -> Vec<Pod> {
    let listed = cluster.pods().list(&ListParams::default()).await;
    listed.expect("admin").items
}

/// Pods without the agent's marks and without a node.
fn are_free(pods: &[Pod]) -> bool {
    pods.iter().all(|pod| {
        let labels = pod.metadata.labels.as_ref().expect("it has some");
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        let annotations = pod.metadata.annotations.iter().flatten();
        let marked = annotations.filter(|(name, _)| *name == names::SLIP).count();
        node.is_none() && names::member_key(labels).is_none() && marked == 0
    })
}

/// A Job's pods are offered when all are there, stay unbound without an order, are bound whole
/// under one, and are what runs: nothing is made beside them.
pub(crate) async fn pods_of_a_job_are_bound_under_an_order(cluster: &Cluster) {
    let origin = make_job(cluster).await;
    let backend = cluster.backend();
    let first = make_pod(cluster, &origin, 0, 4).await;
    let seen = watch(cluster).await;
    assert_eq!(seen.snapshot.offers, [], "one of two pods is no gang");
    let order = ordered(key(0, 1), &origin);
    let early = backend.bind(&order).await.expect_err("one is missing");
    assert!(matches!(early, BackendError::NotOffered(_)), "{early}");
    let second = make_pod(cluster, &origin, 1, 4).await;
    let mut seen = watch(cluster).await;
    let offer = &seen.snapshot.offers[0];
    assert_eq!(
        (offer.uid.as_str(), offer.name.as_str()),
        (origin.uid.as_str(), "evaluate")
    );
    assert_eq!((offer.roles.len(), offer.roles[0].pods), (1, 2));
    cluster.pause().await;
    assert!(are_free(&all_pods(cluster).await), "nobody ordered it");

    backend.bind(&order).await.expect("room");
    until(cluster, &mut seen, order.key, running()).await;
    let mut uids: Vec<String> = all_pods(cluster)
        .await
        .into_iter()
        .filter_map(|pod| pod.metadata.uid)
        .collect();
    uids.sort();
    let mut made = vec![first, second];
    made.sort();
    assert_eq!(uids, made, "the pods that were offered, and no other");
    let looked = watch(cluster).await.snapshot;
    assert_eq!(looked.gangs.len(), 1, "another life finds it");
    assert!(looked.nodes.iter().all(|node| node.foreign.gpus.0 == 0));
    assert_eq!(looked.offers.len(), 1, "its Job is there");
    backend
        .bind(&order)
        .await
        .expect("the same again changes nothing");

    let newer = ordered(key(0, 2), &origin);
    let fenced = backend.bind(&newer).await.expect_err("the older runs");
    assert!(matches!(fenced, BackendError::Conflict { held, .. } if held == order.key));
    stopped(cluster, &mut seen, order.key).await;
    assert_eq!(
        all_pods(cluster).await.len(),
        0,
        "who owns them makes them again"
    );
    make_pods(cluster, &origin).await;
    backend.bind(&newer).await.expect("room");
    until(cluster, &mut seen, newer.key, running()).await;
    stopped(cluster, &mut seen, newer.key).await;
}

/// An agent that dies at any step leaves what another life finishes or undoes. What was not bound
/// is let go and stays; what was bound is removed.
pub(crate) async fn a_bind_of_theirs_cut_short_is_finished_or_undone(cluster: &Cluster) {
    let origin = make_job(cluster).await;
    let mut seen = watch(cluster).await;
    for (index, step) in (0..).zip(STEPS) {
        for finish in [true, false] {
            make_pods(cluster, &origin).await;
            let order = ordered(key(index, 1 + u64::from(finish)), &origin);
            let cut = dies_after(cluster, step).bind(&order).await;
            assert!(cut.is_err(), "{step:?}");
            let life = cluster.backend();
            let found = life.adopt().await.expect("answers");
            assert_eq!(found.len(), 1, "{step:?}");
            assert_eq!(found[0].pods.len(), 2, "{step:?}");
            assert!(found[0].complete || step != Step::PodsBound, "{step:?}");
            assert!(!found[0].complete || step >= Step::PodBound, "{step:?}");
            if finish {
                life.bind(&order).await.expect("the same again");
                until(cluster, &mut seen, order.key, running()).await;
            }
            stopped(cluster, &mut seen, order.key).await;
            let left = all_pods(cluster).await;
            assert!(are_free(&left), "{step:?}");
            if !finish && step < Step::PodBound {
                assert_eq!(left.len(), 2, "{step:?}: nothing was bound");
            }
            let configs = cluster.configs().list(&ListParams::default()).await;
            assert_eq!(configs.expect("admin").items.len(), 0, "{step:?}");
            let now = DeleteParams::default().grace_period(0);
            let all = ListParams::default();
            let cleared = cluster.pods().delete_collection(&now, &all).await;
            cleared.expect("admin");
        }
    }
}

/// What was admitted is what is bound: a pod that asks for more is not, and one that a kubelet
/// turns away undoes the gang.
pub(crate) async fn what_is_not_as_admitted_is_not_bound(cluster: &Cluster) {
    let origin = make_job(cluster).await;
    make_pod(cluster, &origin, 0, 4).await;
    make_pod(cluster, &origin, 1, 8).await;
    let backend = cluster.backend();
    let order = ordered(key(0, 1), &origin);
    let refused = backend.bind(&order).await.expect_err("eight, not four");
    assert!(
        matches!(&refused, BackendError::NotOffered(why) if why.contains("asks for 8000m GPUs")),
        "{refused}"
    );
    assert!(are_free(&all_pods(cluster).await));
    let now = DeleteParams::default().grace_period(0);
    let all = ListParams::default();
    let cleared = cluster.pods().delete_collection(&now, &all).await;
    cleared.expect("admin");

    make_pods(cluster, &origin).await;
    cluster.occupy(TWO[1]);
    let mut seen = watch(cluster).await;
    backend
        .bind(&order)
        .await
        .expect("as far as the agent sees");
    let away = |gang: Option<&GangSeen>| {
        gang.is_some_and(|gang| {
            let mut pods = gang.pods.iter();
            pods.any(|pod| matches!(pod.phase, PodPhase::Rejected { .. }))
        })
    };
    until(cluster, &mut seen, order.key, away).await;
    stopped(cluster, &mut seen, order.key).await;
    let left = all_pods(cluster).await;
    assert_eq!(
        left.len(),
        1,
        "the one that was turned away is its owner's to judge"
    );
    assert_eq!(
        backend.stop(order.key, Millis::ZERO).await,
        Ok(Stopped::Gone)
    );
}
