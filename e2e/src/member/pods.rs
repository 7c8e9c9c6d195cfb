//! Pods for tests: the training stand-in with the behaviour that a test asks for, and the binding
//! that a scheduler would write.
//!
//! Owns the form of such a pod. Never waits for one.

use std::collections::BTreeMap;
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use serde_json::{Value, json};

use super::image::TRAINER_IMAGE;
use super::{MemberError, trainer};

/// Where a trainer's folder of heartbeats is mounted.
const HEARTBEATS: &str = "/heartbeats";

/// A pod that runs the training stand-in.
#[derive(Clone, Debug)]
pub struct TrainerPod {
    name: String,
    gpus: u16,
    resource: String,
    heartbeats: String,
    variables: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

impl TrainerPod {
    /// A pod that asks for so many of `nvidia.com/gpu`. `heartbeats`: the cluster's folder of them.
    #[must_use]
    pub fn new(name: &str, gpus: u16, heartbeats: &Path) -> Self {
        Self {
            name: name.to_owned(),
            gpus,
            resource: "nvidia.com/gpu".to_owned(),
            heartbeats: heartbeats.display().to_string(),
            variables: BTreeMap::new(),
            annotations: BTreeMap::new(),
        }
    }

    /// Asks for GPUs of another name.
    #[must_use]
    pub fn of(mut self, resource: &str) -> Self {
        resource.clone_into(&mut self.resource);
        self
    }

    /// Sets a variable of the trainer: [`trainer`] names them.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Sets an annotation, such as a behaviour of fake nodes.
    #[must_use]
    pub fn annotated(mut self, name: &str, value: &str) -> Self {
        self.annotations.insert(name.to_owned(), value.to_owned());
        self
    }

    /// The pod, bound to no node.
    ///
    /// # Panics
    /// Never: what is written here is a pod.
    #[must_use]
    pub fn build(&self) -> Pod {
        let asked = json!({&self.resource: self.gpus.to_string()});
        let mut spec = trainer_spec(Path::new(&self.heartbeats), &self.variables);
        spec["containers"][0]["resources"] = json!({"limits": asked});
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": self.name, "annotations": self.annotations},
            "spec": spec,
        });
        serde_json::from_value(pod).expect("it is written as a pod above")
    }
}

/// The spec of a pod that runs the training stand-in, without GPUs. `heartbeats`: the cluster's
/// folder of them. `variables` go to the trainer: [`trainer`] names them.
#[must_use]
pub fn trainer_spec(heartbeats: &Path, variables: &BTreeMap<String, String>) -> Value {
    let field = |name: &str, path: &str| {
        let from = json!({"fieldRef": {"fieldPath": path}});
        json!({"name": name, "valueFrom": from})
    };
    let mut env: Vec<Value> = vec![
        field(trainer::POD_UID, "metadata.uid"),
        field(trainer::POD_NAME, "metadata.name"),
        json!({"name": trainer::HEARTBEAT_DIR, "value": HEARTBEATS}),
    ];
    let variables = variables.iter();
    env.extend(variables.map(|(name, value)| json!({"name": name, "value": value})));
    json!({
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "containers": [{
            "name": "main",
            "image": TRAINER_IMAGE,
            "imagePullPolicy": "Never",
            "env": env,
            "volumeMounts": [{"name": "heartbeats", "mountPath": HEARTBEATS}],
        }],
        "volumes": [{
            "name": "heartbeats",
            "hostPath": {"path": heartbeats, "type": "Directory"},
        }],
    })
}

/// Binds a pod to a node as a scheduler does, whether it fits or not.
pub async fn bind(
    client: &Client,
    namespace: &str,
    pod: &str,
    node: &str,
) -> Result<(), MemberError> {
    let binding = json!({
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod, "namespace": namespace},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    let uri = format!("/api/v1/namespaces/{namespace}/pods/{pod}/binding");
    let request = http::Request::post(uri)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(binding.to_string().into_bytes())
        .expect("names of Kubernetes are parts of a path");
    let bound = client.request::<Value>(request).await;
    bound
        .map(|_| ())
        .map_err(MemberError::api(format!("bind {pod} to {node}")))
}
