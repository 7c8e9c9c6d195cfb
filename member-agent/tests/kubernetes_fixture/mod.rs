//! A real kube-apiserver and etcd, with machines that only pretend.
//!
//! Owns the processes, their certificates and a clean cluster for each check. The machines (see
//! `machines`) admit, refuse, run and end pods as kubelets do, and keep what really ran. Never
//! hides a fault.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "shared by test files that each use a part"
)]

pub mod door;
pub mod machines;
pub mod server;

use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, Service};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use meridian_agent::backend::ClusterBackend;
use meridian_agent::kubernetes::inventory::{InventoryConfig, LevelLabel, PoolLevels};
use meridian_agent::kubernetes::{Hook, KubernetesBackend, KubernetesOptions};
use meridian_agent::simulated::Api as ApiState;
use meridian_api::units::Millis;
use meridian_runtime::{Clock, Tasks};
use serde_json::json;

use crate::conformance::{Fixture, Run};
use door::{Door, Way};
use machines::Machines;
use server::ApiServer;

/// Names of the machines.
pub const HOSTS: [&str; 3] = ["h100-0000", "h100-0001", "h100-0002"];
/// Namespace of every job here.
pub const NAMESPACE: &str = "ml";

/// A cluster of three machines behind a real API server.
pub struct Cluster {
    pub client: kube::Client,
    pub machines: Arc<Machines>,
    pub options: KubernetesOptions,
    door: Door,
    tasks: Tasks,
}

impl Cluster {
    /// A clean cluster on a running server.
    pub async fn new(server: &ApiServer) -> Self {
        let (clock, tasks) = (Clock::real(), Tasks::new());
        let client = server.client(server.port());
        clean(&client).await;
        for host in HOSTS {
            make_node(&client, host).await;
        }
        let machines = Arc::new(Machines::new(client.clone(), clock.clone(), &HOSTS));
        machines.start(&tasks);
        let door = Door::open(server.port(), &tasks).await;
        let mut options = KubernetesOptions::new(server.client(door.port()), clock);
        options.inventory = InventoryConfig {
            levels: vec![PoolLevels {
                pool: "*".to_owned(),
                levels: vec![LevelLabel {
                    name: "rack".to_owned(),
                    label: "example.com/rack".to_owned(),
                }],
            }],
            ..InventoryConfig::default()
        };
        options.request_limit = Millis::seconds(3);
        options.node_lost_after = Millis::seconds(1);
        options.machine_gone_after = Millis::seconds(1);
        Self {
            client,
            machines,
            options,
            door,
            tasks,
        }
    }

    /// A life of an agent that is cut short where `hook` says.
    pub fn life(&self, hook: Hook) -> KubernetesBackend {
        KubernetesBackend::new(KubernetesOptions {
            hook,
            ..self.options.clone()
        })
    }

    /// Pods in the namespace of the jobs.
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// ConfigMaps in the namespace of the jobs.
    pub fn configs(&self) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// Ends what pretends.
    pub fn end(self) {
        self.tasks.cancel();
        self.tasks.kill();
    }
}

#[async_trait]
impl Fixture for Cluster {
    fn backend(&self) -> Arc<dyn ClusterBackend> {
        Arc::new(self.life(Hook::default()))
    }

    fn clock(&self) -> Clock {
        Clock::real()
    }

    fn grace(&self) -> Millis {
        Millis::seconds(3)
    }

    async fn pause(&self) {
        Clock::real().sleep(Millis::seconds(2)).await;
    }

    fn api(&self, api: ApiState) {
        self.door.set(match api {
            ApiState::Up => Way::Open,
            ApiState::Down => Way::Shut,
        });
    }

    fn lose_answers(&self, lose: bool) {
        self.door.set(if lose { Way::Requests } else { Way::Open });
    }

    async fn fail_node(&self, node: &str) {
        self.machines.fail(node);
        let nodes: Api<Node> = Api::all(self.client.clone());
        let gone = nodes.delete(node, &DeleteParams::default()).await;
        gone.expect("the node was there");
    }

    fn occupy(&self, node: &str) {
        self.machines.occupy(node);
    }

    fn ran(&self) -> Vec<Run> {
        self.machines.ran()
    }
}

/// Removes everything that a check may have left.
async fn clean(client: &kube::Client) {
    let now = DeleteParams::default().grace_period(0);
    let all = ListParams::default();
    let nodes: Api<Node> = Api::all(client.clone());
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let configs: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    nodes.delete_collection(&now, &all).await.expect("admin");
    pods.delete_collection(&now, &all).await.expect("admin");
    configs.delete_collection(&now, &all).await.expect("admin");
    for service in services.list(&all).await.expect("admin") {
        let name = service.metadata.name.unwrap_or_default();
        services.delete(&name, &now).await.expect("admin");
    }
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace: Namespace =
        serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).expect("a namespace");
    // It may be there from the check before.
    drop(namespaces.create(&PostParams::default(), &namespace).await);
}

/// A machine with eight GPUs, as its kubelet and its vendor's plugins describe it.
pub async fn make_node(client: &kube::Client, name: &str) {
    let nodes: Api<Node> = Api::all(client.clone());
    let size = json!({"cpu": "96", "memory": "1024Gi", "pods": "110", "nvidia.com/gpu": "8"});
    let node = json!({
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name,
            "meridian.dev/pool": "h100",
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
            "nvidia.com/gpu.count": "8",
            "nvidia.com/gpu.present": "true",
            "example.com/rack": "rack-0",
        }},
    });
    let node: Node = serde_json::from_value(node).expect("a node");
    nodes
        .create(&PostParams::default(), &node)
        .await
        .expect("admin");
    let status = json!({"status": {
        "capacity": size, "allocatable": size,
        "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
    }});
    let patch = kube::api::Patch::Merge(&status);
    nodes
        .patch_status(name, &kube::api::PatchParams::default(), &patch)
        .await
        .expect("admin");
}
