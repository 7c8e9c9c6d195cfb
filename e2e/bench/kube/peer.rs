//! The peer: single pods for Kubernetes' own scheduler.
//!
//! Owns their making and removal. They ask for what a pod of a gang asks for.

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use meridian_api::units::Millis;
use meridian_e2e::member::MemberCluster;
use meridian_runtime::Clock;
use serde_json::json;

use crate::GPUS;
use crate::pods::NAMESPACE;

/// Requests in flight: as many as the agent has.
const IN_FLIGHT: usize = 64;
/// Pods of a run are gone by then.
const GONE_WITHIN: Millis = Millis::seconds(300);
const LOOK_EVERY: Millis = Millis(200);

fn pods(cluster: &MemberCluster) -> Api<Pod> {
    Api::namespaced(cluster.client(), NAMESPACE)
}

/// Makes the pods of one run.
pub(crate) async fn create(
    cluster: &MemberCluster,
    turn: usize,
    count: usize,
) -> anyhow::Result<()> {
    let api = pods(cluster);
    let made = stream::iter(0..count).map(|index| {
        let api = &api;
        async move {
            let pod = pod(turn, index)?;
            api.create(&PostParams::default(), &pod).await?;
            anyhow::Ok(())
        }
    });
    made.buffer_unordered(IN_FLIGHT).try_collect::<()>().await
}

fn pod(turn: usize, index: usize) -> serde_json::Result<Pod> {
    serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": format!("single-{turn}-{index:05}")},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main", "image": "meridian.dev/trainer:1",
                "resources": {
                    "limits": {"nvidia.com/gpu": GPUS.to_string()},
                    "requests": {"cpu": "4", "memory": "16Gi"},
                },
            }],
        },
    }))
}

/// Removes them all and waits until they are gone.
pub(crate) async fn clear(cluster: &MemberCluster) -> anyhow::Result<()> {
    let (api, clock) = (pods(cluster), Clock::real());
    api.delete_collection(&DeleteParams::default(), &ListParams::default())
        .await?;
    gone(&api, &clock).await
}

/// Waits until no pod is left in the namespace.
pub(crate) async fn gone(api: &Api<Pod>, clock: &Clock) -> anyhow::Result<()> {
    let empty = async {
        while !api
            .list_metadata(&ListParams::default().limit(1))
            .await?
            .items
            .is_empty()
        {
            clock.sleep(LOOK_EVERY).await;
        }
        anyhow::Ok(())
    };
    clock.timeout(GONE_WITHIN, empty).await?
}
