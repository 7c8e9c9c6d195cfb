//! Where a job may run: regions, clusters, hardware, data, law.
//!
//! Owns these fields and their checks. What this release cannot do of them is in `unsupported`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::affinity::{
    Affinity, FabricWish, JobRule, MAX_RULES, PlacementGroup, Toleration, check_groups, check_rules,
};
use super::validate::check_uri;
use crate::errors::FieldReason;
use crate::kinds::spread::{Division, SpreadRule};
use crate::kinds::workload_class::CapacityType;
use crate::quantity::{SPEED_UNIT, Speed};
use crate::validate::Findings;

/// Where a job may run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Placement {
    /// Regions; absent allows all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub regions: Option<RegionChoice>,
    /// Clusters; empty allows all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<String>,
    /// Groups of clusters, best first: the next is used only where those before it have no room.
    /// In place of `regions`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<PlacementGroup>,
    /// What becomes of what runs in a later group, or a later one of `regions.ordered`, when an
    /// earlier one has room again.
    #[serde(default)]
    pub overflow: Overflow,
    /// Labels that clusters must or should have.
    #[serde(default, skip_serializing_if = "Affinity::is_empty")]
    pub affinity: Affinity,
    /// Where other jobs of its namespace must stand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub job_affinity: Vec<JobRule>,
    /// Taints of clusters that it bears.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
    /// Network between hosts that it needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<FabricWish>,
    /// Hardware that it accepts; empty accepts all. Best first, unless speeds differ or another
    /// objective than `Balanced` is named: then cost and time decide, and the order only between
    /// equals.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flavors: Vec<Flavor>,
    /// Capacity that it may stand on; empty = what its class may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub capacity: Vec<CapacityType>,
    /// Whether a gang may be spread over clusters.
    #[serde(default)]
    pub cluster_span: ClusterSpan,
    /// How it is spread; only with `clusterSpan: Split`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<Split>,
    /// How evenly its gangs stand over domains; at most one rule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spread: Vec<SpreadRule>,
    /// How its gangs are divided over clusters; absent = each goes where it is best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub division: Option<Division>,
    /// What is best.
    #[serde(default)]
    pub objective: Objective,
    /// Data that it reads, and where that is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<DataSource>,
    /// Law under which it must run: `EU`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jurisdiction: Option<String>,
}

/// What becomes of what runs elsewhere because the first choice was full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Overflow {
    /// It stays to its end.
    #[default]
    Stay,
    /// It is stopped, as for a drain, and queued again: of all that may go back the newest first.
    Return,
}

/// Regions that a job accepts: exactly one of the two lists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RegionChoice {
    /// Best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ordered: Vec<String>,
    /// All alike.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub any_of: Vec<String>,
}

impl RegionChoice {
    /// The names, in the order in which they were written.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.ordered.iter().chain(&self.any_of).map(String::as_str)
    }
}

/// Hardware that a job accepts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Flavor {
    /// Name of the flavor.
    pub name: String,
    /// How fast the job is on it, as a decimal; absent = `"1"`.
    #[serde(default = "full_speed")]
    pub speed: Speed,
    /// Image of the first container on this flavor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Command of the first container on this flavor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Environment of the first container on this flavor, over what the template says.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

impl Flavor {
    /// True when pods differ on this flavor from what their template says.
    #[must_use]
    pub fn has_overrides(&self) -> bool {
        self.image.is_some() || !self.command.is_empty() || !self.env.is_empty()
    }
}

fn full_speed() -> Speed {
    Speed(SPEED_UNIT)
}

/// Whether a gang may be spread over clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClusterSpan {
    /// One cluster holds it whole.
    #[default]
    Single,
    /// Several clusters hold a part each; all parts start or none.
    Split,
}

/// How a gang is spread over clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Split {
    /// Most clusters it is spread over.
    pub max_clusters: u32,
    /// Fewest pods in each.
    pub min_per_cluster: u32,
}

/// What is best.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum Objective {
    /// Least cost to finish.
    Cheapest,
    /// Earliest end.
    Soonest,
    /// Least cost times time.
    #[default]
    Balanced,
}

/// Data that a job reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DataSource {
    /// Where it is: `s3://corpus-v3`.
    pub uri: String,
    /// Regions that hold a copy; empty = it is read from anywhere alike. Elsewhere it costs what
    /// egress costs; where nobody says what, the region is no candidate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<String>,
    /// Its size in gigabytes.
    #[serde(default, rename = "sizeGB", skip_serializing_if = "Option::is_none")]
    pub size_gb: Option<u64>,
}

impl Placement {
    pub(super) fn check(&self, found: &mut Findings) {
        self.check_places(found);
        self.check_rules(found);
        self.check_flavors(found);
        if self.split.is_some() != (self.cluster_span == ClusterSpan::Split) {
            let message = "clusterSpan: Split and split belong together: give both or none";
            found.invalid("spec.placement.split", message);
        }
        if self
            .split
            .is_some_and(|split| split.max_clusters < 2 || split.min_per_cluster == 0)
        {
            let message = "needs maxClusters of at least 2 and minPerCluster of at least 1";
            found.invalid("spec.placement.split", message);
        }
        for (index, source) in self.data.iter().enumerate() {
            let path = format!("spec.placement.data[{index}]");
            check_uri(&format!("{path}.uri"), &source.uri, found);
            found.names(&format!("{path}.regions"), &source.regions);
            if source.size_gb.is_some_and(|size| size > MAX_DATA_GB) {
                let message = format!("is more than {MAX_DATA_GB} GB, an exabyte: check the unit");
                found.invalid(&format!("{path}.sizeGB"), message);
            }
        }
        found.text(
            "spec.placement.jurisdiction",
            self.jurisdiction.as_deref().unwrap_or_default(),
        );
    }

    /// Regions, clusters and groups by name.
    fn check_places(&self, found: &mut Findings) {
        if let Some(regions) = &self.regions {
            if regions.ordered.is_empty() == regions.any_of.is_empty() {
                let message = "give either ordered (best first) or anyOf, with at least one region";
                found.invalid("spec.placement.regions", message);
            }
            found.names("spec.placement.regions.ordered", &regions.ordered);
            found.names("spec.placement.regions.anyOf", &regions.any_of);
        }
        found.names("spec.placement.clusters", &self.clusters);
        if self.regions.is_some() && !self.groups.is_empty() {
            let message = "regions and groups both order clusters: put the regions into the groups";
            found.add("spec.placement.groups", FieldReason::Forbidden, message);
        }
        check_groups(&self.groups, found);
        let regions = self.regions.as_ref();
        let ordered = regions.map_or(0, |regions| regions.ordered.len());
        if self.overflow == Overflow::Return && self.groups.len().max(ordered) < 2 {
            let message = "Return goes back to an earlier group: give at least two groups, or two \
                           regions in order";
            found.invalid("spec.placement.overflow", message);
        }
    }

    /// Rules on labels, taints, networks and shares.
    fn check_rules(&self, found: &mut Findings) {
        let Affinity {
            required,
            preferred,
        } = &self.affinity;
        check_rules("spec.placement.affinity.required", required, found);
        check_rules("spec.placement.affinity.preferred", preferred, found);
        let path = "spec.placement.tolerations";
        found.too_many(path, self.tolerations.len(), MAX_RULES);
        for (index, toleration) in self.tolerations.iter().enumerate() {
            toleration.check(&format!("{path}[{index}]"), found);
        }
        let path = "spec.placement.jobAffinity";
        found.too_many(path, self.job_affinity.len(), MAX_RULES);
        for (index, rule) in self.job_affinity.iter().enumerate() {
            rule.check(&format!("{path}[{index}]"), found);
        }
        if let Some(division) = &self.division {
            division.check("spec.placement.division", found);
        }
        if let Some(fabric) = &self.fabric {
            fabric.check("spec.placement.fabric", found);
        }
    }

    fn check_flavors(&self, found: &mut Findings) {
        let names = self.flavors.iter().map(|flavor| flavor.name.clone());
        found.names("spec.placement.flavors", &names.collect::<Vec<_>>());
        for (index, flavor) in self.flavors.iter().enumerate() {
            let path = format!("spec.placement.flavors[{index}]");
            if flavor.speed.0 == 0 {
                let message = "is 0, so the job would never end: leave the flavor out";
                found.invalid(&format!("{path}.speed"), message);
            }
            check_env(&format!("{path}.env"), &flavor.env, found);
        }
    }
}

/// Most data of one source: an exabyte, so that its price at any rate is far below 2^127.
const MAX_DATA_GB: u64 = 1_000_000_000;

/// Most variables of one flavor or override.
const MAX_ENV: usize = 64;

/// Notes variables that no container can have.
pub(super) fn check_env(path: &str, env: &BTreeMap<String, String>, found: &mut Findings) {
    found.too_many(path, env.len(), MAX_ENV);
    for (name, value) in env {
        let fits = |c: char| c.is_ascii_graphic() && c != '=';
        if name.is_empty() || !name.chars().all(fits) {
            let short: String = name.chars().take(64).collect();
            found.invalid(path, format!("{short:?} is no name of a variable"));
        }
        if value.len() > 4096 {
            let message = format!("{name} has {} bytes, at most 4096", value.len());
            found.invalid(path, message);
        }
    }
}
