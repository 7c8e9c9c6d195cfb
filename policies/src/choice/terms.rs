//! Terms: what jobs ask of a place, and what is known of regions, clusters and pools.
//!
//! Owns the rows of a snapshot that choices are made from, and how a label is looked up. Texts are
//! read when a wish is weighed, never in the walk over pools.

use std::collections::BTreeMap;

use meridian_api::kinds::federated_job::{
    Affinity, FabricWish, JobRelation, LabelRule, Objective, Toleration,
};
use meridian_api::kinds::gpu_pool::{Fabric, PoolCapacity};
use meridian_api::kinds::member_cluster::Taint;
use meridian_api::kinds::spread::{DivisionRule, SpreadRule};
use meridian_api::kinds::workload_class::CapacityType;
use meridian_api::units::{MicroMoney, Millis};
use serde::{Deserialize, Serialize};

use crate::model::{ClusterIx, HeldIx, RegionIx, Snapshot, Waiting, WaitingIx};

/// What a job asks of its place, beyond the lists of regions, clusters and flavors.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Choice {
    /// What is best.
    pub objective: Objective,
    /// Capacity that it may stand on; empty = any.
    pub capacity: Vec<CapacityType>,
    /// Law under which it must run.
    pub jurisdiction: Option<String>,
    /// Data that it reads.
    pub data: Vec<DataNeed>,
    /// Data sets of which it needs a copy at hand.
    pub data_sets: Vec<String>,
    /// Taints that it bears.
    pub tolerations: Vec<Toleration>,
    /// Labels that it needs and likes.
    pub affinity: Affinity,
    /// Network between hosts that it needs.
    pub fabric: Option<FabricWish>,
    /// Groups of clusters, the first with room is used; empty = the order of its regions.
    pub groups: Vec<Group>,
    /// How evenly its gangs stand over domains.
    pub spread: Option<SpreadRule>,
    /// How its gangs are divided over clusters.
    pub division: Option<Shares>,
    /// Where other jobs must stand.
    pub jobs: Vec<JobWish>,
}

/// Where the jobs that a selector names must stand.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct JobWish {
    /// What must be so.
    pub rule: JobRelation,
    /// The label whose values are the domains.
    pub topology_key: String,
    /// Which of [`Snapshot::selectors`].
    pub selector: u32,
}

/// Jobs of one namespace that have some labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Selector {
    /// The namespace.
    pub namespace: String,
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// Their placements.
    pub held: Vec<HeldIx>,
    /// Their gangs that wait, ascending.
    pub waiting: Vec<WaitingIx>,
}

/// How the gangs of a job are divided over clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Shares {
    /// By which rule.
    pub rule: DivisionRule,
    /// Weights, with `Weighted`: the first row that holds a cluster is its own.
    pub weights: Vec<(Group, u32)>,
}

/// What no job asks for.
pub(crate) static PLAIN: Choice = Choice {
    objective: Objective::Balanced,
    capacity: Vec::new(),
    jurisdiction: None,
    data: Vec::new(),
    data_sets: Vec::new(),
    tolerations: Vec::new(),
    affinity: Affinity {
        required: Vec::new(),
        preferred: Vec::new(),
    },
    fabric: None,
    groups: Vec::new(),
    spread: None,
    division: None,
    jobs: Vec::new(),
};

impl Choice {
    /// True when where its other gangs stand matters to each.
    #[must_use]
    pub const fn is_divided(&self) -> bool {
        self.spread.is_some() || self.division.is_some()
    }

    /// True when it matters where other gangs stand, of its own job or of others.
    #[must_use]
    pub const fn minds_others(&self) -> bool {
        self.is_divided() || !self.jobs.is_empty()
    }

    /// True when it may stand on this kind of capacity.
    #[must_use]
    pub fn may_use(&self, capacity: CapacityType) -> bool {
        self.capacity.is_empty() || self.capacity.contains(&capacity)
    }
}

/// Data that a job reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct DataNeed {
    /// Where it is.
    pub uri: String,
    /// Regions that hold a copy; empty = it can be read from anywhere alike.
    pub regions: Vec<RegionIx>,
    /// Its size in gigabytes, if that is known.
    pub gigabytes: Option<u64>,
}

/// Clusters that a job takes as one. Each list that is not empty must hold the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Regions.
    pub regions: Vec<RegionIx>,
    /// Clusters.
    pub clusters: Vec<ClusterIx>,
    /// Rules on labels, all of which hold.
    pub labels: Vec<LabelRule>,
}

/// A placement that would rather be where there was no room for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overflowed {
    /// Which.
    pub held: HeldIx,
    /// The gang as it would wait, in its present size.
    pub gang: Waiting,
}

/// What a gang's run is expected to be like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Expected {
    /// How long it runs in its largest size at speed 1.
    pub runtime: Option<Millis>,
    /// Time between two checkpoints.
    pub checkpoint_every: Option<Millis>,
}

/// What is known of a region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RegionFacts {
    /// Whose law holds there.
    pub jurisdiction: Option<String>,
    /// Who runs it.
    pub provider: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Data sets of which it holds a copy.
    pub data_sets: Vec<String>,
    /// Price of a gigabyte from here to each region, by region; what is missing is not known.
    pub egress: Vec<Option<MicroMoney>>,
}

/// What is known of a cluster, beyond its region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterFacts {
    /// Its zone.
    pub zone: Option<String>,
    /// Who runs it, if not who runs its region.
    pub provider: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// What work must tolerate to come.
    pub taints: Vec<Taint>,
    /// Data sets of which it holds a copy.
    pub data_sets: Vec<String>,
}

/// What is known of a pool, beyond its shapes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PoolFacts {
    /// How its machines are had.
    pub capacity: PoolCapacity,
    /// Network between its hosts.
    pub fabric: Option<Fabric>,
    /// Price of one card for an hour, on the tenant's own quota.
    pub price: Option<MicroMoney>,
    /// The same on borrowed quota.
    pub borrowed_price: Option<MicroMoney>,
}

impl Snapshot {
    /// What is known of a region; nothing for one that is not there.
    #[must_use]
    pub fn region_facts(&self, region: RegionIx) -> Option<&RegionFacts> {
        self.region_facts.get(region.index())
    }
}

/// Value of a label of a cluster. `cluster`, `region`, `zone`, `provider` and `jurisdiction` are
/// known by themselves; others are the cluster's own labels, then those of its region.
#[must_use]
pub fn label<'a>(snapshot: &'a Snapshot, cluster: ClusterIx, key: &str) -> Option<&'a str> {
    let row = snapshot.clusters.get(cluster.index())?;
    let facts = snapshot.region_facts(row.region);
    let text = |text: &'a Option<String>| text.as_deref();
    match key {
        "cluster" => Some(&row.name),
        "region" => snapshot.regions.get(row.region.index()).map(String::as_str),
        "zone" => text(&row.facts.zone),
        "provider" => {
            let region = || facts.and_then(|facts| text(&facts.provider));
            text(&row.facts.provider).or_else(region)
        }
        "jurisdiction" => facts.and_then(|facts| text(&facts.jurisdiction)),
        _ => {
            let region = || facts.and_then(|facts| facts.labels.get(key));
            let own = row.facts.labels.get(key);
            own.or_else(region).map(String::as_str)
        }
    }
}
