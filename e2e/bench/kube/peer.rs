//! The peer: single pods for Kubernetes' own scheduler.
//!
//! Owns their making and removal. They ask for what a pod of a gang asks for, and are either as
//! slim as a pod can be, or the very pods of a gang under other names, with its Service.

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use meridian_api::units::Millis;
use meridian_e2e::member::MemberCluster;
use meridian_runtime::Clock;
use serde_json::{Value, json};

use crate::pods::{GANG, NAMESPACE};
use crate::{GPUS, PODS};

/// Requests in flight: as many as the agent has.
const IN_FLIGHT: usize = 64;
/// Pods of a run are gone by then.
const GONE_WITHIN: Millis = Millis::seconds(300);
const LOOK_EVERY: Millis = Millis(200);
/// Stands for the agent's names in copies of what it made, which it must not take for its own.
const OTHER: [(&str, &str); 2] = [
    ("meridian.dev/", "example.com/"),
    ("meridian-agent", "example-agent"),
];

fn pods(cluster: &MemberCluster) -> Api<Pod> {
    Api::namespaced(cluster.client(), NAMESPACE)
}

fn services(cluster: &MemberCluster) -> Api<Service> {
    Api::namespaced(cluster.client(), NAMESPACE)
}

/// What a gang consists of besides its owner object: its first pod and its Service.
pub(crate) struct Model {
    pod: Value,
    service: Value,
}

impl Model {
    /// Takes it from the cluster, where there is a gang.
    pub(crate) async fn take(cluster: &MemberCluster) -> anyhow::Result<Self> {
        let of_gang = ListParams::default().labels(GANG).limit(1);
        let pods = pods(cluster).list(&of_gang).await?.items;
        let services = services(cluster).list(&of_gang).await?.items;
        let mut pod = other(&serde_json::to_value(pods)?[0])?;
        let mut service = other(&serde_json::to_value(services)?[0])?;
        for theirs in ["nodeName", "schedulerName", "priority", "preemptionPolicy"] {
            remove(&mut pod["spec"], theirs);
        }
        // The API server adds its own again.
        let token = |entry: &Value| {
            let name = entry["name"].as_str().unwrap_or_default();
            name.starts_with("kube-api-access")
        };
        let lists = ["/spec/volumes", "/spec/containers/0/volumeMounts"];
        for list in lists {
            if let Some(list) = pod.pointer_mut(list).and_then(Value::as_array_mut) {
                list.retain(|entry| !token(entry));
            }
        }
        for address in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            remove(&mut service["spec"], address);
        }
        service["spec"]["clusterIP"] = json!("None");
        Ok(Self { pod, service })
    }

    fn pod(&self, turn: usize, index: usize) -> serde_json::Result<Pod> {
        let mut pod = self.pod.clone();
        pod["metadata"]["name"] = json!(format!("alike-{turn}-{index:05}"));
        pod["metadata"]["labels"][other_gang()] = json!(gang(turn, index));
        serde_json::from_value(pod)
    }

    fn service(&self, turn: usize, index: usize) -> serde_json::Result<Service> {
        let (gang, mut service) = (gang(turn, index), self.service.clone());
        service["metadata"]["name"] = json!(gang);
        service["metadata"]["labels"][other_gang()] = json!(gang);
        service["spec"]["selector"] = json!({other_gang(): gang});
        serde_json::from_value(service)
    }
}

fn gang(turn: usize, index: usize) -> String {
    format!("alike-{turn}-{:05}", index / PODS)
}

fn other_gang() -> String {
    GANG.replace(OTHER[0].0, OTHER[0].1)
}

/// An object of the agent as another's, without what the API server wrote.
fn other(object: &Value) -> serde_json::Result<Value> {
    let mut text = object.to_string();
    for (ours, others) in OTHER {
        text = text.replace(ours, others);
    }
    let mut object: Value = serde_json::from_str(&text)?;
    remove(&mut object, "status");
    let meta = &mut object["metadata"];
    for field in [
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "managedFields",
        "ownerReferences",
        "generation",
    ] {
        remove(meta, field);
    }
    Ok(object)
}

fn remove(object: &mut Value, field: &str) {
    if let Some(object) = object.as_object_mut() {
        object.remove(field);
    }
}

/// Makes the pods of one run: like those of a gang, with a Service for each, or slim.
pub(crate) async fn create(
    cluster: &MemberCluster,
    turn: usize,
    count: usize,
    model: Option<&Model>,
) -> anyhow::Result<()> {
    let (pods, services) = (pods(cluster), services(cluster));
    let made = stream::iter(0..count).map(|index| {
        let (pods, services) = (&pods, &services);
        async move {
            let write = PostParams::default();
            if let Some(model) = model.filter(|_| index % PODS == 0) {
                services
                    .create(&write, &model.service(turn, index)?)
                    .await?;
            }
            let pod = match model {
                Some(model) => model.pod(turn, index)?,
                None => slim(turn, index)?,
            };
            pods.create(&write, &pod).await?;
            anyhow::Ok(())
        }
    });
    made.buffer_unordered(IN_FLIGHT).try_collect::<()>().await
}

fn slim(turn: usize, index: usize) -> serde_json::Result<Pod> {
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
    let (pods, services) = (pods(cluster), services(cluster));
    for service in services.list_metadata(&ListParams::default()).await?.items {
        let name = service.metadata.name.unwrap_or_default();
        let deleted = services.delete(&name, &DeleteParams::default()).await;
        unless_gone(deleted)?;
    }
    let there = pods.list_metadata(&ListParams::default()).await?.items;
    let deleted = stream::iter(there).map(|pod| {
        let pods = &pods;
        async move {
            let name = pod.metadata.name.unwrap_or_default();
            unless_gone(pods.delete(&name, &DeleteParams::default()).await)?;
            anyhow::Ok(())
        }
    });
    deleted
        .buffer_unordered(IN_FLIGHT)
        .try_collect::<()>()
        .await?;
    gone(&pods, &Clock::real()).await
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

/// What went meanwhile, as its owner did, is as good as deleted.
fn unless_gone<T>(deleted: kube::Result<T>) -> kube::Result<()> {
    match deleted {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        other => other.map(drop),
    }
}
