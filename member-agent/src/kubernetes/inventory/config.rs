//! What an operator says of his cluster: pools, topology levels, taints and conditions.
//!
//! Owns the form and its checks. Everything has a default that suits a cluster whose nodes carry
//! the labels of their vendor and their cloud. Never says what a GPU is: that is the table's.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How nodes become pools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct InventoryConfig {
    /// Which nodes form which pool; the first rule that a node fits decides. A node's own label
    /// `meridian.dev/pool` goes before them, its flavor's name after.
    pub pools: Vec<PoolRule>,
    /// Topology levels of pools; a pool that is not named has the levels of the well-known labels.
    pub levels: Vec<PoolLevels>,
    /// Taints that do not close a node, beside those of the vendors. Pods of gangs tolerate them.
    pub tolerated_taints: Vec<TaintRule>,
    /// Conditions of a node that close it to gangs while they are `True`, such as one that a
    /// health check of GPUs sets. `Ready` needs no mention.
    pub closing_conditions: Vec<String>,
}

/// Nodes with all these labels form this pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PoolRule {
    /// Name of the pool.
    pub pool: String,
    /// Labels that a node must have; at least one.
    pub node_selector: BTreeMap<String, String>,
}

/// The levels of one pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PoolLevels {
    /// Name of the pool; `*` is every pool that is not named.
    pub pool: String,
    /// From the widest inward, without the host; empty = the pool has none.
    pub levels: Vec<LevelLabel>,
}

/// A level and where nodes say their domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LevelLabel {
    /// Name of the level, such as `rack`.
    pub name: String,
    /// Key of the label whose value is the domain.
    pub label: String,
}

/// A taint, as a toleration names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TaintRule {
    /// Its key.
    pub key: String,
    /// Its value; absent = any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`; absent = any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
}
