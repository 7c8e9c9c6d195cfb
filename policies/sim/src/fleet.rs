//! The fleet of a simulation: pools of hosts.
//!
//! Owns its shape, its form as a table, and what stored `GPUPool` objects say of it. Never holds
//! what runs there.

use std::collections::BTreeMap;

use meridian_api::kinds::GPUPool;
use meridian_api::quantity::{CpuQuantity, GpuQuantity, MemoryQuantity};
use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Resources};

use crate::table::{self, Columns, Row, TableError};

/// Worth of a card of which nothing else is said, in thousandths of the reference card's.
pub const DEFAULT_WORTH: u64 = 1000;
/// CPU and memory of a host of which nothing is said: a thousand times the largest machine there
/// is, so that GPUs alone decide, and far from the end of the numbers when hosts are summed up.
const PLENTY: Resources = Resources {
    gpus: MilliGpus::ZERO,
    cpu: MilliCpus(1_000_000_000),
    memory: Mebibytes(1 << 35),
};
/// Hosts of one row: ten times the largest fleet that decisions are measured on.
const MAX_HOSTS: u32 = 1_000_000;
/// GPUs of a host when a stored pool does not say: what nearly all training hosts have.
const USUAL_GPUS_PER_HOST: u64 = 8;

/// Pools, by cluster and name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    /// All of them.
    pub pools: Vec<FleetPool>,
}

/// One pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FleetPool {
    /// Region of its cluster.
    pub region: String,
    /// Its cluster.
    pub cluster: String,
    /// Its name.
    pub name: String,
    /// Its hardware.
    pub flavor: String,
    /// Worth of one card for an hour, in thousandths of the reference card's.
    pub worth: u64,
    /// Classes it admits; empty admits all.
    pub classes: Vec<String>,
    /// Topology levels from the widest inward, without the host.
    pub levels: Vec<String>,
    /// Its hosts.
    pub hosts: Vec<Hosts>,
}

/// Hosts that are alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hosts {
    /// One name per level of the pool.
    pub domains: Vec<String>,
    /// Size of one host.
    pub allocatable: Resources,
    /// How many.
    pub count: u32,
}

impl FleetPool {
    /// A pool of `count` equal hosts in no topology, in a region and cluster of one name.
    #[must_use]
    pub fn uniform(cluster: &str, name: &str, flavor: &str, count: u32, gpus: u64) -> Self {
        let allocatable = Resources {
            gpus: MilliGpus::cards(gpus),
            ..PLENTY
        };
        Self {
            region: cluster.to_owned(),
            cluster: cluster.to_owned(),
            name: name.to_owned(),
            flavor: flavor.to_owned(),
            worth: DEFAULT_WORTH,
            classes: Vec::new(),
            levels: Vec::new(),
            hosts: vec![Hosts {
                domains: Vec::new(),
                allocatable,
                count,
            }],
        }
    }

    /// GPUs of all its hosts.
    #[must_use]
    pub fn gpus(&self) -> MilliGpus {
        let each = self
            .hosts
            .iter()
            .map(|row| row.allocatable.gpus.0.saturating_mul(row.count.into()));
        MilliGpus(each.fold(0, u64::saturating_add))
    }

    /// All its hosts.
    #[must_use]
    pub fn count(&self) -> u32 {
        let counts = self.hosts.iter().map(|row| row.count);
        counts.fold(0, u32::saturating_add)
    }
}

const COLUMNS: Columns = Columns {
    required: &["cluster", "pool", "flavor", "hosts", "gpus"],
    optional: &[
        "region", "cpu", "memory", "worth", "classes", "block", "rack",
    ],
};
/// Columns that name a level, from the widest inward.
const LEVELS: [&str; 2] = ["block", "rack"];

/// Stored pools that say too little to be simulated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoFleet {
    /// There is no pool at all.
    #[error("there is no GPUPool among the documents")]
    Empty,
    /// A pool's size is not known.
    #[error("GPUPool {0} does not say how many GPUs it has: its status.gpus.total is 0")]
    Unsized(String),
}

impl Fleet {
    /// GPUs of all pools.
    #[must_use]
    pub fn gpus(&self) -> MilliGpus {
        let each = self.pools.iter().map(FleetPool::gpus);
        each.fold(MilliGpus::ZERO, MilliGpus::saturating_add)
    }

    /// Reads a table of hosts: `cluster`, `pool`, `flavor`, `hosts` (how many alike) and `gpus`
    /// (of each), and, when given, `region` (else named like the cluster), `cpu`, `memory` (else
    /// plenty), `worth` (of a card, thousandths of the reference card's; else 1000), `classes`
    /// that the pool admits (joined by `|`; else all), `block` and `rack`.
    pub fn read(file: &str, text: &[u8]) -> Result<Self, TableError> {
        let mut pools: BTreeMap<(String, String), FleetPool> = BTreeMap::new();
        let mut regions: BTreeMap<String, String> = BTreeMap::new();
        table::read(file, text, COLUMNS, |row| {
            let (pool, hosts) = pool_and_hosts(row)?;
            let region = regions.entry(pool.cluster.clone());
            let region = region.or_insert_with(|| pool.region.clone());
            if *region != pool.region {
                let message = format!("cluster {} is in {region} in a row above", pool.cluster);
                return Err(row.wrong("region", message));
            }
            let key = (pool.cluster.clone(), pool.name.clone());
            let known = pools.entry(key).or_insert_with(|| pool.clone());
            let head = |pool: &FleetPool| FleetPool {
                hosts: Vec::new(),
                ..pool.clone()
            };
            if head(known) != pool {
                let message = format!(
                    "region, flavor, worth, classes and levels of {}/{} differ from those in a \
                     row above",
                    pool.cluster, pool.name
                );
                return Err(row.wrong("pool", message));
            }
            known.hosts.push(hosts);
            Ok(())
        })?;
        Ok(Self {
            pools: pools.into_values().collect(),
        })
    }

    /// The fleet that stored pools describe: hosts as `status.gpus.total` and `gpusPerNode` say,
    /// without topology, since the objects do not hold it. `region_of` tells where a cluster is.
    pub fn from_objects(
        objects: &[GPUPool],
        region_of: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, NoFleet> {
        if objects.is_empty() {
            return Err(NoFleet::Empty);
        }
        let mut pools = Vec::with_capacity(objects.len());
        for object in objects {
            let spec = &object.spec;
            let per_host = spec.gpus_per_node.map_or(USUAL_GPUS_PER_HOST, u64::from);
            let total = object.status.as_ref().map(|status| status.gpus.total.0);
            let hosts = total.unwrap_or_default().whole() / per_host.max(1);
            if hosts == 0 {
                return Err(NoFleet::Unsized(object.metadata.name.clone()));
            }
            let hosts = u32::try_from(hosts).unwrap_or(MAX_HOSTS).min(MAX_HOSTS);
            let name = spec.pool.as_ref().unwrap_or(&object.metadata.name);
            let mut pool = FleetPool::uniform(&spec.cluster, name, &spec.flavor, hosts, per_host);
            pool.region = region_of(&spec.cluster).unwrap_or_else(|| spec.cluster.clone());
            pool.classes.clone_from(&spec.classes);
            pools.push(pool);
        }
        pools.sort_by(|a, b| (&a.cluster, &a.name).cmp(&(&b.cluster, &b.name)));
        Ok(Self { pools })
    }
}

/// The pool that a row names, without hosts, and the hosts of that row.
fn pool_and_hosts(row: &Row<'_>) -> Result<(FleetPool, Hosts), TableError> {
    let cluster: String = row.need("cluster")?;
    let count: u32 = row.need("hosts")?;
    if !(1..=MAX_HOSTS).contains(&count) {
        let message = format!("is {count}, must be from 1 to {MAX_HOSTS}");
        return Err(row.wrong("hosts", message));
    }
    let gpus: GpuQuantity = row.need("gpus")?;
    let cpu: Option<CpuQuantity> = row.get("cpu")?;
    let memory: Option<MemoryQuantity> = row.get("memory")?;
    let present = LEVELS.iter().filter(|level| row.text(level).is_some());
    let levels: Vec<String> = present.map(|level| (*level).to_owned()).collect();
    let names = levels.iter().filter_map(|level| row.text(level));
    let hosts = Hosts {
        domains: names.map(str::to_owned).collect(),
        allocatable: Resources {
            gpus: gpus.0,
            cpu: cpu.map_or(PLENTY.cpu, |cpu| cpu.0),
            memory: memory.map_or(PLENTY.memory, |memory| memory.0),
        },
        count,
    };
    let pool = FleetPool {
        region: row.get("region")?.unwrap_or_else(|| cluster.clone()),
        cluster,
        name: row.need("pool")?,
        flavor: row.need("flavor")?,
        worth: row.get("worth")?.unwrap_or(DEFAULT_WORTH),
        classes: row.list("classes").map(str::to_owned).collect(),
        levels,
        hosts: Vec::new(),
    };
    Ok((pool, hosts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_pool_are_joined() {
        let text = "cluster,pool,flavor,hosts,gpus,rack,worth\n\
                    b,p,h100,2,8,r1,3000\nb,p,h100,1,4,r2,3000\na,q,t4,3,2,,\n";
        let fleet = Fleet::read("fleet.csv", text.as_bytes()).expect("a fleet");
        assert_eq!(fleet.gpus(), MilliGpus::cards(2 * 8 + 4 + 3 * 2));
        let [a, b] = fleet.pools.as_slice() else {
            panic!("{fleet:?}");
        };
        assert_eq!((a.name.as_str(), a.worth, a.levels.len()), ("q", 1000, 0));
        assert_eq!((b.count(), b.worth, b.region.as_str()), (3, 3000, "b"));
        assert_eq!(b.hosts[1].domains, ["r2"]);
    }

    #[test]
    fn a_pool_is_of_one_piece() {
        let text = "cluster,pool,flavor,hosts,gpus\na,p,h100,2,8\na,p,a100,2,8\n";
        let error = Fleet::read("fleet.csv", text.as_bytes()).expect_err("two flavors");
        let error = error.to_string();
        assert!(
            error.starts_with("fleet.csv line 3, column pool: "),
            "{error}"
        );
        let text = "cluster,pool,flavor,hosts,gpus\na,p,h100,0,8\n";
        let error = Fleet::read("fleet.csv", text.as_bytes()).expect_err("no hosts");
        assert_eq!(
            error.to_string(),
            "fleet.csv line 2, column hosts: is 0, must be from 1 to 1000000"
        );
    }
}
