//! `GPUPool`: nodes of one flavor in one cluster, for one purpose.
//!
//! Owns its shape and its checks. What the hosts look like is the agent's report, not this.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::meta::{Condition, Object, Spec};
use crate::quantity::GpuQuantity;
use crate::validate::{Checked, Findings, MAX_GPUS_PER_HOST};

/// A GPU pool.
pub type GPUPool = Object<GPUPoolSpec, GPUPoolStatus>;

impl Spec for GPUPoolSpec {
    const KIND: &'static str = "GPUPool";
    const ABOUT: &'static str = "Nodes of one flavor in one cluster, for one purpose.";
    const PLURAL: &'static str = "gpupools";
    const NAMESPACED: bool = false;
    type Status = GPUPoolStatus;
}

/// What a pool is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GPUPoolSpec {
    /// Cluster that it is in.
    pub cluster: String,
    /// Name under which the cluster's agent reports it; absent = `metadata.name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Its hardware.
    pub flavor: String,
    /// Classes whose work may stand on it; empty admits all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
    /// Labels that its nodes have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Cards in each node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_per_node: Option<u32>,
    /// Levels from the widest inward; the last is `host`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology_levels: Vec<String>,
    /// How its machines are had.
    #[serde(default)]
    pub capacity: PoolCapacity,
    /// Network between its nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<Fabric>,
    /// Tenant that it was bought for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// How the machines of a pool are had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PoolCapacity {
    /// Bought, or on demand for good.
    #[default]
    Owned,
    /// Reserved for a time.
    Reserved,
    /// The provider may take them back.
    Spot,
}

/// Network between nodes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct Fabric {
    /// What it is.
    pub kind: FabricKind,
    /// Rate of each card, in gigabits per second.
    pub gbps: u32,
}

/// What a network between nodes is.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum FabricKind {
    /// InfiniBand.
    InfiniBand,
    /// RDMA over Ethernet.
    RoCE,
    /// Ethernet without RDMA.
    #[default]
    Ethernet,
}

/// Largest rate of a card's network, in gigabits per second: ten times the fastest of today.
pub const MAX_GBPS: u32 = 16_000;

/// What is so with a pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GPUPoolStatus {
    /// Generation of the spec it speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Its GPUs, as last reported.
    pub gpus: PoolGpus,
    /// Most GPUs free together, by level.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub largest_free_block: BTreeMap<String, GpuQuantity>,
    /// What a person should know of its nodes: skew of drivers, labels that contradict.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<String>,
    /// `Ready`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// GPUs of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolGpus {
    /// All that are there, unhealthy ones included.
    pub total: GpuQuantity,
    /// Held by gangs.
    pub allocated: GpuQuantity,
    /// Held by nobody.
    pub free: GpuQuantity,
    /// Out of use.
    pub unhealthy: GpuQuantity,
}

/// Innermost level of every pool.
pub const HOST_LEVEL: &str = "host";

impl Checked for GPUPoolSpec {
    const SHORT_NAMES: bool = false;

    fn check(&self, found: &mut Findings) {
        found.label("spec.cluster", &self.cluster);
        if let Some(pool) = &self.pool {
            found.label("spec.pool", pool);
        }
        found.name("spec.flavor", &self.flavor);
        found.names("spec.classes", &self.classes);
        if let Some(gpus) = self.gpus_per_node
            && !(1..=MAX_GPUS_PER_HOST).contains(&u64::from(gpus))
        {
            let message = format!("is {gpus}, must be from 1 to {MAX_GPUS_PER_HOST}");
            found.invalid("spec.gpusPerNode", message);
        }
        found.names("spec.topologyLevels", &self.topology_levels);
        if let Some(last) = self
            .topology_levels
            .last()
            .filter(|last| *last != HOST_LEVEL)
        {
            let message = format!("ends with {last:?}, must end with {HOST_LEVEL:?}: add it");
            found.invalid("spec.topologyLevels", message);
        }
        if let Some(fabric) = self.fabric.filter(|it| !(1..=MAX_GBPS).contains(&it.gbps)) {
            let message = format!("is {}, must be from 1 to {MAX_GBPS}", fabric.gbps);
            found.invalid("spec.fabric.gbps", message);
        }
        if let Some(owner) = &self.owner {
            found.label("spec.owner", owner);
        }
    }

    fn check_update(&self, new: &Self, found: &mut Findings) {
        let instead = "make another pool object";
        found.unchanged("spec.cluster", &self.cluster, &new.cluster, instead);
        found.unchanged("spec.pool", &self.pool, &new.pool, instead);
        found.unchanged("spec.flavor", &self.flavor, &new.flavor, instead);
    }
}
