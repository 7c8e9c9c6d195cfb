//! Topology levels of pools, and the domain of a node on each.
//!
//! Owns the well-known labels and which levels a pool has. A node that lacks the label of a level
//! is a domain of its own there: nothing is ever promised to be near it. Never invents a level.
//!
//! A declared level is always there. A well-known one is there when any node of the pool carries
//! its label, so that one node without labels (it has just joined, its labels come a minute later)
//! does not take the level from the pool and from the gangs that ask for it.

use std::collections::BTreeMap;

use super::config::{ANY_POOL, InventoryConfig};
use super::strings::{Name, Strings};

/// A level and the well-known labels that name its domains; the first that a node has counts.
struct WellKnown {
    name: &'static str,
    labels: &'static [&'static str],
    shown: Shown,
}

/// From the widest inward. A cloud's host level is left out: a node is the host.
///
/// Sources: kubernetes.io, "Well-Known Labels" (zone); cloud.google.com, "Schedule GKE workloads
/// with Topology Aware Scheduling"; docs.aws.amazon.com/eks, "Place distributed AI/ML workloads
/// with network topology labels" (layer 1 is the widest); docs.nvidia.com/topograph, "Node Labels
/// and Annotations" (tier 0 is next to the node; core, spine, leaf and accelerator are the names
/// before 1.0); GPU feature discovery (clique).
const WELL_KNOWN: &[WellKnown] = &[
    WellKnown {
        name: "zone",
        labels: &["topology.kubernetes.io/zone"],
        shown: Shown::WhenSeveral,
    },
    WellKnown {
        name: "fabric",
        labels: &[
            "topology.k8s.aws/network-node-layer-1",
            "fabric.topograph.run/tier-2",
            "network.topology.nvidia.com/core",
            "backend.coreweave.cloud/fabric",
        ],
        shown: Shown::WhenCarried,
    },
    WellKnown {
        name: "block",
        labels: &[
            "cloud.google.com/gce-topology-block",
            "topology.k8s.aws/network-node-layer-2",
            "oci.oraclecloud.com/host.network_block_id",
            "fabric.topograph.run/tier-1",
            "network.topology.nvidia.com/spine",
            "backend.coreweave.cloud/superpod",
        ],
        shown: Shown::WhenCarried,
    },
    WellKnown {
        name: "rack",
        labels: &[
            "cloud.google.com/gce-topology-subblock",
            "topology.k8s.aws/network-node-layer-3",
            "oci.oraclecloud.com/host.rack_id",
            "fabric.topograph.run/tier-0",
            "network.topology.nvidia.com/leaf",
            "backend.coreweave.cloud/leafgroup",
        ],
        shown: Shown::WhenCarried,
    },
    WellKnown {
        name: "nvlink",
        labels: &[
            "nvidia.com/gpu.clique",
            "accelerator.topograph.run/domain",
            "network.topology.nvidia.com/accelerator",
            "ds.coreweave.com/nvlink.domain",
        ],
        shown: Shown::WhenCarried,
    },
];

/// A fabric that has no UUID is written so; hosts that share it share nothing.
const NO_FABRIC: &str = "00000000-0000-0000-0000-000000000000";

/// When a pool has a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// It is declared.
    Always,
    /// When any of its nodes carries a label of it.
    WhenCarried,
    /// When its nodes name two domains or more: one zone for all says nothing.
    WhenSeveral,
}

/// One level of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Level {
    pub(super) name: String,
    /// Keys of labels; the first that a node has counts.
    pub(super) labels: Vec<String>,
    pub(super) shown: Shown,
}

/// The levels of every pool.
#[derive(Debug)]
pub(super) struct Levels {
    declared: BTreeMap<String, Vec<Level>>,
    others: Vec<Level>,
}

impl Levels {
    pub(super) fn new(config: &InventoryConfig) -> Self {
        let mut declared = BTreeMap::new();
        for pool in &config.levels {
            let level = |level: &super::config::LevelLabel| Level {
                name: level.name.clone(),
                labels: vec![level.label.clone()],
                shown: Shown::Always,
            };
            let levels: Vec<Level> = pool.levels.iter().map(level).collect();
            declared.insert(pool.pool.clone(), levels);
        }
        let others = declared.remove(ANY_POOL).unwrap_or_else(well_known);
        Self { declared, others }
    }

    /// Levels that a pool may have.
    pub(super) fn of(&self, pool: &str) -> &[Level] {
        self.declared.get(pool).unwrap_or(&self.others)
    }
}

fn well_known() -> Vec<Level> {
    let level = |level: &WellKnown| Level {
        name: level.name.to_owned(),
        labels: level.labels.iter().map(|&label| label.to_owned()).collect(),
        shown: level.shown,
    };
    WELL_KNOWN.iter().map(level).collect()
}

/// The domain of a node on each level; `None` where it says none.
pub(super) fn domains(
    levels: &[Level],
    labels: &BTreeMap<String, String>,
    strings: &mut Strings,
) -> Box<[Option<Name>]> {
    let value = |label: &String| {
        let value = labels.get(label)?;
        let is_domain = !value.is_empty() && !value.starts_with(NO_FABRIC);
        is_domain.then(|| strings.get(value))
    };
    let mut value = value;
    let mut domain = |level: &Level| level.labels.iter().find_map(&mut value);
    levels.iter().map(&mut domain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::inventory::config::{LevelLabel, PoolLevels};

    fn labels(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
        let label = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        labels.iter().map(label).collect()
    }

    #[test]
    fn clouds_name_the_same_levels_by_other_labels() {
        let levels = Levels::new(&InventoryConfig::default());
        let levels = levels.of("any");
        let mut strings = Strings::default();
        let mut read = |pairs: &[(&str, &str)]| {
            let domains = domains(levels, &labels(pairs), &mut strings);
            let text = |domain: &Option<Name>| domain.as_deref().unwrap_or("-").to_owned();
            domains.iter().map(text).collect::<Vec<_>>().join(" ")
        };
        let google = [
            ("cloud.google.com/gce-topology-block", "b"),
            ("cloud.google.com/gce-topology-subblock", "s"),
            ("cloud.google.com/gce-topology-host", "h"),
            ("topology.kubernetes.io/zone", "z"),
        ];
        assert_eq!(read(&google), "z - b s -");
        let amazon = [
            ("topology.k8s.aws/network-node-layer-1", "nn-1"),
            ("topology.k8s.aws/network-node-layer-2", "nn-2"),
            ("topology.k8s.aws/network-node-layer-3", "nn-3"),
        ];
        assert_eq!(read(&amazon), "- nn-1 nn-2 nn-3 -");
        let nvlink = [(
            "nvidia.com/gpu.clique",
            "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1",
        )];
        assert_eq!(
            read(&nvlink),
            "- - - - 7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1"
        );
        let none = [(
            "nvidia.com/gpu.clique",
            "00000000-0000-0000-0000-000000000000.0",
        )];
        assert_eq!(read(&none), "- - - - -", "no fabric is no domain");
        assert_eq!(read(&[("topology.kubernetes.io/zone", "")]), "- - - - -");
    }

    #[test]
    fn what_is_declared_replaces_what_is_known() {
        let pool = |pool: &str, name: &str| PoolLevels {
            pool: pool.to_owned(),
            levels: vec![LevelLabel {
                name: name.to_owned(),
                label: format!("dc/{name}"),
            }],
        };
        let config = InventoryConfig {
            levels: vec![pool("train", "row")],
            ..InventoryConfig::default()
        };
        let levels = Levels::new(&config);
        assert_eq!(levels.of("train").len(), 1);
        assert_eq!(levels.of("other").len(), WELL_KNOWN.len());
        let config = InventoryConfig {
            levels: vec![pool("train", "row"), pool("*", "hall")],
            ..InventoryConfig::default()
        };
        assert_eq!(Levels::new(&config).of("other")[0].name, "hall");
    }
}
