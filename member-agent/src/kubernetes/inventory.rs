//! The inventory of a real cluster: nodes and pods in, pools and nodes of the fleet out.
//!
//! Owns what is kept of every node and pod, and which change of them is one that the hub must
//! hear of: a heartbeat of a kubelet is none. Pure: never asks the cluster, never reads a file or
//! a clock.

mod config;
mod findings;
mod flavors;

use k8s_openapi::api::core::v1::{Node, Pod, Toleration};

use crate::backend::{ClusterEvent, NodeSeen, PoolSeen};

pub use config::{InventoryConfig, LevelLabel, PoolLevels, PoolRule, TaintRule};
pub use findings::{Finding, Subject};
pub use flavors::{FlavorError, FlavorTable};

/// What is kept of a cluster's nodes and pods.
#[derive(Debug)]
pub struct Inventory {
    table: FlavorTable,
}

impl Inventory {
    /// An empty cluster.
    #[must_use]
    pub fn new(table: FlavorTable, config: InventoryConfig) -> Self {
        drop(config);
        Self { table }
    }

    /// Takes a node as the API shows it. What follows from it for the fleet, in the order to tell
    /// it; nothing when only what is not kept differs.
    pub fn apply_node(&mut self, node: &Node) -> Vec<ClusterEvent> {
        let _ = node;
        Vec::new()
    }

    /// A node is gone.
    pub fn remove_node(&mut self, name: &str) -> Vec<ClusterEvent> {
        let _ = name;
        Vec::new()
    }

    /// Takes a pod as the API shows it. What one of our gangs holds is told with its gang, so a
    /// pod that `is_ours` adds nothing here.
    pub fn apply_pod(&mut self, pod: &Pod, is_ours: bool) -> Vec<ClusterEvent> {
        let _ = (pod, is_ours);
        Vec::new()
    }

    /// A pod is gone.
    pub fn remove_pod(&mut self, pod: &Pod) -> Vec<ClusterEvent> {
        let _ = pod;
        Vec::new()
    }

    /// Takes a whole listing in place of all that was known, without the events. The flag of a
    /// pod says that it is ours.
    pub fn load<'a>(
        &mut self,
        nodes: impl IntoIterator<Item = &'a Node>,
        pods: impl IntoIterator<Item = (&'a Pod, bool)>,
    ) {
        let _ = (nodes.into_iter().count(), pods.into_iter().count());
    }

    /// Pools and nodes as they are, by name.
    #[must_use]
    pub fn snapshot(&self) -> (Vec<PoolSeen>, Vec<NodeSeen>) {
        (Vec::new(), Vec::new())
    }

    /// The name in our words of the node that a pod of `pool` is on: the host, or
    /// `<host>/<flavor>` when its cards are of several flavors.
    #[must_use]
    pub fn node_of(&self, host: &str, pool: &str) -> String {
        let _ = pool;
        host.to_owned()
    }

    /// The Kubernetes node behind a name of [`NodeSeen`].
    #[must_use]
    pub fn host_of(node: &str) -> &str {
        node.split_once('/').map_or(node, |(host, _)| host)
    }

    /// The extended resource to write into pods that ask for GPUs of a flavor. `None`: no vendor
    /// of the table has it.
    #[must_use]
    pub fn resource_of(&self, flavor: &str) -> Option<&str> {
        self.table.resource_of(flavor)
    }

    /// What the pods of a gang on this flavor must tolerate.
    #[must_use]
    pub fn tolerations_of(&self, flavor: &str) -> Vec<Toleration> {
        let _ = flavor;
        Vec::new()
    }

    /// Everything that a person should know of this cluster's nodes, by pool and node.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        Vec::new()
    }
}
