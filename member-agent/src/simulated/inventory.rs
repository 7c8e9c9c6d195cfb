//! The described inventory: pools and nodes as a document.
//!
//! Owns its YAML form and its checks. Never knows what runs on the nodes.

use std::collections::BTreeSet;

use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Resources};
use serde::{Deserialize, Serialize};

/// Most cards in one node: twice the largest host sold, a DGX-2 with 16.
const MAX_GPUS_PER_NODE: u64 = 32;

/// All hardware of one simulated cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Inventory {
    /// Its pools.
    pub pools: Vec<InventoryPool>,
}

/// Nodes of one flavor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InventoryPool {
    /// Its name.
    pub name: String,
    /// Its hardware.
    pub flavor: String,
    /// Topology levels from the widest inward, without the host.
    #[serde(default)]
    pub levels: Vec<String>,
    /// Its nodes.
    pub nodes: Vec<InventoryNode>,
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct InventoryNode {
    /// Its name, once in the cluster.
    pub name: String,
    /// One domain per level of the pool.
    #[serde(default)]
    pub domains: Vec<String>,
    /// What pods may ask for.
    pub resources: NodeResources,
}

/// What a node has, in whole cards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NodeResources {
    /// Cards.
    #[serde(default)]
    pub gpus: u64,
    /// CPU, in thousandths of a core.
    pub cpu_milli: u64,
    /// Memory, in mebibytes.
    pub memory_mib: u64,
}

impl From<NodeResources> for Resources {
    fn from(node: NodeResources) -> Self {
        Self {
            gpus: MilliGpus::cards(node.gpus),
            cpu: MilliCpus(node.cpu_milli),
            memory: Mebibytes(node.memory_mib),
        }
    }
}

/// What is wrong with an inventory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InventoryError {
    /// Not YAML of this form.
    #[error("not an inventory: {0}")]
    Malformed(String),
    /// A name is used twice, or is empty.
    #[error("{what} {name:?} must be named once, and not be empty")]
    Name {
        /// `pool` or `node`.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A node does not say where it is on each level.
    #[error("node {node:?} has {found} domains, its pool has {expected} levels")]
    Domains {
        /// The node.
        node: String,
        /// What it says.
        found: usize,
        /// What it should say.
        expected: usize,
    },
    /// More cards than a host can have.
    #[error("node {node:?} has {found} GPUs, a host has at most {MAX_GPUS_PER_NODE}")]
    Gpus {
        /// The node.
        node: String,
        /// What it says.
        found: u64,
    },
}

impl Inventory {
    /// Reads and checks the YAML form.
    pub fn from_yaml(text: &str) -> Result<Self, InventoryError> {
        let inventory: Self = serde_saphyr::from_str(text)
            .map_err(|error| InventoryError::Malformed(error.to_string()))?;
        inventory.check()?;
        Ok(inventory)
    }

    /// The same document as YAML.
    pub fn to_yaml(&self) -> Result<String, InventoryError> {
        serde_saphyr::to_string(self).map_err(|error| InventoryError::Malformed(error.to_string()))
    }

    /// One pool of like hosts: `levels` gives each level's name and how many domains of it are
    /// in one of the level above; `hosts` are in each innermost domain.
    #[must_use]
    pub fn uniform(
        pool: &str,
        flavor: &str,
        levels: &[(&str, u32)],
        hosts: u32,
        resources: NodeResources,
    ) -> Self {
        let mut domains: Vec<Vec<String>> = vec![Vec::new()];
        for (level, fan_out) in levels {
            let widen = |path: &Vec<String>| {
                let path = path.clone();
                let parent = path
                    .last()
                    .map_or(String::new(), |parent| format!("{parent}-"));
                let level = (*level).to_owned();
                (0..*fan_out).map(move |index| {
                    let mut path = path.clone();
                    path.push(format!("{parent}{level}{index}"));
                    path
                })
            };
            domains = domains.iter().flat_map(widen).collect();
        }
        let place = |path: Vec<String>| (0..hosts).map(move |_| path.clone());
        let nodes = domains.into_iter().flat_map(place).enumerate();
        let nodes = nodes.map(|(index, domains)| InventoryNode {
            name: format!("{pool}-{index:04}"),
            domains,
            resources,
        });
        let pool = InventoryPool {
            name: pool.to_owned(),
            flavor: flavor.to_owned(),
            levels: levels
                .iter()
                .map(|(level, _)| (*level).to_owned())
                .collect(),
            nodes: nodes.collect(),
        };
        Self { pools: vec![pool] }
    }

    /// Names are unique, every node is placed on every level, no host is impossible.
    pub fn check(&self) -> Result<(), InventoryError> {
        let (mut pools, mut nodes) = (BTreeSet::new(), BTreeSet::new());
        for pool in &self.pools {
            if pool.name.is_empty() || !pools.insert(&pool.name) {
                return Err(InventoryError::Name {
                    what: "pool",
                    name: pool.name.clone(),
                });
            }
            for node in &pool.nodes {
                if node.name.is_empty() || !nodes.insert(&node.name) {
                    return Err(InventoryError::Name {
                        what: "node",
                        name: node.name.clone(),
                    });
                }
                let (found, expected) = (node.domains.len(), pool.levels.len());
                if found != expected {
                    let node = node.name.clone();
                    return Err(InventoryError::Domains {
                        node,
                        found,
                        expected,
                    });
                }
                if node.resources.gpus > MAX_GPUS_PER_NODE {
                    let (node, found) = (node.name.clone(), node.resources.gpus);
                    return Err(InventoryError::Gpus { node, found });
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: NodeResources = NodeResources {
        gpus: 8,
        cpu_milli: 96_000,
        memory_mib: 1 << 20,
    };

    #[test]
    fn a_uniform_inventory_reads_back() {
        let inventory = Inventory::uniform(
            "h100",
            "h100-80gb-sxm",
            &[("block", 2), ("rack", 3)],
            4,
            HOST,
        );
        assert_eq!(inventory.pools[0].nodes.len(), 24);
        assert_eq!(
            inventory.pools[0].nodes[23].domains,
            ["block1", "block1-rack2"]
        );
        let text = inventory.to_yaml().expect("writes");
        assert_eq!(Inventory::from_yaml(&text), Ok(inventory));
    }

    #[test]
    fn mistakes_are_named() {
        let twice = "{pools: [{name: a, flavor: x, nodes: [\
            {name: n, resources: {cpuMilli: 1, memoryMib: 1}}, \
            {name: n, resources: {cpuMilli: 1, memoryMib: 1}}]}]}";
        assert!(matches!(
            Inventory::from_yaml(twice),
            Err(InventoryError::Name { .. })
        ));
        let unplaced = "{pools: [{name: a, flavor: x, levels: [rack], nodes: [\
            {name: n, resources: {cpuMilli: 1, memoryMib: 1}}]}]}";
        assert!(matches!(
            Inventory::from_yaml(unplaced),
            Err(InventoryError::Domains { .. })
        ));
        let unknown = "{pools: [], colour: red}";
        assert!(matches!(
            Inventory::from_yaml(unknown),
            Err(InventoryError::Malformed(_))
        ));
    }
}
