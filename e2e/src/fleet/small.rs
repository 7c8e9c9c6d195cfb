//! Small federations in one process on simulated time, for tests of one promise.
//!
//! Owns what such tests share: one hub over pipes, a store in memory, and regions of one cluster
//! with one pool. What is declared in it is the test's own.

use std::sync::Arc;

use meridian_agent::Inventory;
use meridian_agent::simulated::{NodeResources, Profile};
use meridian_hub::Execution;
use meridian_runtime::Clock;
use meridian_runtime::network::Pipes;
use meridian_store::MemoryStore;
use serde_json::Value;

use super::{FleetCluster, FleetOptions, FleetRegion, piped_hub};

impl FleetRegion {
    /// A region of one cluster, called like it without `-a`, with a pool `pool` of `hosts` hosts of
    /// `gpus` h100 each in one rack.
    #[must_use]
    pub fn of_one(cluster: &str, hosts: u32, gpus: u64) -> Self {
        let host = NodeResources {
            gpus,
            cpu_milli: 96_000,
            memory_mib: 393_216,
        };
        Self {
            name: cluster.trim_end_matches("-a").to_owned(),
            time_zone: "Europe/Berlin".to_owned(),
            clusters: vec![FleetCluster {
                name: cluster.to_owned(),
                inventory: Inventory::uniform("pool", "h100", &[("rack", 1)], hosts, host),
                profile: Profile::default(),
            }],
        }
    }
}

impl FleetOptions {
    /// One hub over `regions`, with `objects` made after them.
    #[must_use]
    pub fn small(clock: &Clock, regions: Vec<FleetRegion>, objects: Vec<Value>) -> Self {
        Self {
            seed: 1,
            clock: clock.clone(),
            network: Arc::new(Pipes::default()),
            store: Arc::new(MemoryStore::new(clock.clone())),
            hubs: vec![piped_hub(0)],
            execution: Execution::Inline,
            regions,
            objects,
        }
    }
}
