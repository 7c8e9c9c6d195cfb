//! The public data: what people submitted in a week, and the nodes it runs on.
//!
//! Owns the choice of the week and the reading of the nodes. Both are part of the program, so that
//! it runs anywhere. Never changes what they say; where they come from is told in
//! `policies/sim/data/README.md` and `e2e/data/README.md`.

use std::collections::BTreeMap;

use meridian_agent::Inventory;
use meridian_agent::simulated::{InventoryNode, InventoryPool, NodeResources, Profile};
use meridian_api::units::{Millis, UnixMillis};
use meridian_sim::table::TableError;
use meridian_sim::traces::philly;
pub use meridian_sim::traces::philly::DAY;
pub use meridian_sim::traces::philly::PhillyJob as TraceJob;

use crate::fleet::{FleetCluster, FleetRegion};

const NODES: &str = include_str!("../../data/openb-nodes.csv");

/// 2017-10-23T00:00:00Z, a Monday: the first instant of the week.
pub const BEGIN: UnixMillis = philly::BEGIN.after(Millis(FIRST * DAY.0));
/// The day of the table on which it begins, from 0.
const FIRST: u64 = 49;
/// It has this many days.
pub const DAYS: u64 = 7;

/// Regions of the inventory and the zones that the data's README gives them.
const ZONES: [(&str, &str); 3] = [
    ("us-west", "America/Los_Angeles"),
    ("eu-central", "Europe/Berlin"),
    ("ap-east", "Asia/Tokyo"),
];
/// Topology levels of every pool, from the widest inward.
const LEVELS: [&str; 2] = ["block", "rack"];

/// A file that is not as its README says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file} line {line}: {what}")]
pub struct DataError {
    file: &'static str,
    line: usize,
    what: String,
}

/// All jobs of the week, by submission.
pub fn week() -> Result<Vec<TraceJob>, TableError> {
    philly::days(FIRST, DAYS)
}

/// The three regions, each with its one cluster, west to east.
pub fn regions() -> Result<Vec<FleetRegion>, DataError> {
    const FILE: &str = "openb-nodes.csv";
    let mut pools: BTreeMap<(String, String, String), InventoryPool> = BTreeMap::new();
    for (index, line) in NODES.lines().enumerate().skip(1) {
        let wrong = |what: String| DataError {
            file: FILE,
            line: index + 1,
            what,
        };
        let fields: Vec<&str> = line.split(',').collect();
        let [
            name,
            cpu,
            memory,
            gpus,
            model,
            region,
            cluster,
            pool,
            block,
            rack,
        ] = fields[..]
        else {
            return Err(wrong(format!("{} fields, not 10", fields.len())));
        };
        let number = |text: &str| {
            let parsed = text.parse::<u64>();
            parsed.map_err(|error| wrong(format!("{text:?}: {error}")))
        };
        let resources = NodeResources {
            gpus: number(gpus)?,
            cpu_milli: number(cpu)?,
            memory_mib: number(memory)?,
        };
        let key = (region.to_owned(), cluster.to_owned(), pool.to_owned());
        let entry = pools.entry(key).or_insert_with(|| InventoryPool {
            name: pool.to_owned(),
            flavor: model.to_lowercase(),
            levels: LEVELS.map(str::to_owned).to_vec(),
            nodes: Vec::new(),
        });
        entry.nodes.push(InventoryNode {
            name: name.to_owned(),
            domains: vec![block.to_owned(), rack.to_owned()],
            resources,
        });
    }
    let region = |(name, time_zone): (&str, &str)| {
        let mut clusters: BTreeMap<String, Inventory> = BTreeMap::new();
        for ((_, cluster, _), pool) in pools.iter().filter(|((region, ..), _)| region == name) {
            let inventory = clusters.entry(cluster.clone()).or_default();
            inventory.pools.push(pool.clone());
        }
        let cluster = |(name, inventory)| FleetCluster {
            name,
            inventory,
            profile: Profile::default(),
        };
        FleetRegion {
            name: name.to_owned(),
            time_zone: time_zone.to_owned(),
            clusters: clusters.into_iter().map(cluster).collect(),
        }
    };
    Ok(ZONES.into_iter().map(region).collect())
}

/// GPUs of one cluster.
#[must_use]
pub fn gpus(inventory: &Inventory) -> u64 {
    let nodes = inventory.pools.iter().flat_map(|pool| &pool.nodes);
    nodes.map(|node| node.resources.gpus).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_files_are_as_their_readme_says() {
        let jobs = week().expect("the table is whole");
        assert_eq!(jobs.len(), 7_748);
        assert!(jobs.is_sorted_by_key(|job| job.submit));
        assert!(jobs.iter().all(|job| job.submit.0 < DAYS * DAY.0));
        let regions = regions().expect("the inventory is whole");
        let sizes = regions.iter().map(|region| {
            region.clusters[0].inventory.check().expect("no mistake");
            (region.name.as_str(), gpus(&region.clusters[0].inventory))
        });
        let expected = [("us-west", 340), ("eu-central", 272), ("ap-east", 208)];
        assert_eq!(sizes.collect::<Vec<_>>(), expected);
    }
}
