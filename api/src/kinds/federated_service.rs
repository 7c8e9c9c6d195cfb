//! `FederatedService`: replicas that serve for ever, divided over the clusters of the fleet.
//!
//! Owns its shape, its checks, and the job that one replica is: a replica is queued, counted,
//! placed and explained as every gang. Which cluster gets how many is the decision's.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::FederatedJob;
use super::federated_job::validate::MAX_RESTARTS;
use super::federated_job::{
    Carried, CostAttribution, Dependencies, FederatedJobSpec, PartitionRule, Placement, Retry,
    Role, TopologyRule,
};
use super::spread::DivisionRule;
use crate::canonical;
use crate::errors::FieldReason;
use crate::meta::{API_VERSION, Condition, Object, Spec};
use crate::quantity::GpuQuantity;
use crate::validate::{Checked, Findings};

/// A federated service.
pub type FederatedService = Object<FederatedServiceSpec, FederatedServiceStatus>;

impl Spec for FederatedServiceSpec {
    const KIND: &'static str = "FederatedService";
    const ABOUT: &'static str = "Replicas that serve for ever, divided over the fleet's clusters.";
    const PLURAL: &'static str = "federatedservices";
    const NAMESPACED: bool = true;
    type Status = FederatedServiceStatus;
}

/// Condition: every replica serves.
pub const READY: &str = "Ready";
/// Condition: replicas stand in as many regions as they must.
pub const SPREAD_SATISFIED: &str = "SpreadSatisfied";
/// Condition: every replica is as the spec says.
pub const UP_TO_DATE: &str = "UpToDate";
/// Label of a replica's job: its service.
pub const SERVICE_LABEL: &str = "meridian.dev/service";
/// Label of a replica's job: what it was made from.
pub const REVISION_LABEL: &str = "meridian.dev/revision";

/// What a service wants.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FederatedServiceSpec {
    /// Who pays; absent = the tenant named like the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Its workload class.
    pub workload_class: String,
    /// Higher goes first among the work of its tenant and class.
    #[serde(default)]
    pub priority: i32,
    /// Whose cost it is.
    #[serde(default)]
    pub cost_attribution: CostAttribution,
    /// How many replicas serve.
    pub replicas: u32,
    /// Where they may run, how they are divided over clusters (absent = `Dynamic`: by free room,
    /// and what serves stays) and over how many regions or clusters they are spread at least.
    #[serde(default)]
    pub placement: Placement,
    /// Pods of one replica, which start together.
    pub roles: Vec<Role>,
    /// How near to each other these must be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology: Vec<TopologyRule>,
    /// What must be there for it to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependencies: Option<Dependencies>,
    /// What comes with each replica and goes with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried: Option<Carried>,
    /// How replicas are replaced when what they are made from changes.
    #[serde(default)]
    pub rollout: Rollout,
    /// What happens to a replica when its cluster is cut off. No replacement is started for that
    /// yet, whatever it says.
    #[serde(default = "duplicable")]
    pub partition_rule: PartitionRule,
}

const fn duplicable() -> PartitionRule {
    PartitionRule::Duplicable
}

/// How replicas are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Rollout {
    /// Most replicas that may be missing meanwhile.
    pub max_unavailable: u32,
}

impl Default for Rollout {
    fn default() -> Self {
        Self { max_unavailable: 1 }
    }
}

/// What is so with a service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FederatedServiceStatus {
    /// Generation of the spec it speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Replicas that it should have.
    pub desired: u32,
    /// Replicas that serve.
    pub ready: u32,
    /// Of these, as many as are as the spec says.
    pub updated: u32,
    /// Replicas that have no place yet.
    pub waiting: u32,
    /// GPUs that its replicas hold.
    pub gpus: GpuQuantity,
    /// Replicas that serve, by region.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub by_region: BTreeMap<String, u32>,
    /// Replicas that serve, by cluster.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub by_cluster: BTreeMap<String, u32>,
    /// `Ready`, `SpreadSatisfied`, `UpToDate`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Most replicas of one service, in all clusters: each is an object of its own.
pub const MAX_REPLICAS: u32 = 1_000;
/// Longest name of a service: with the number of a replica it is a label.
pub const MAX_NAME_CHARS: usize = 58;
/// Hexadecimal digits of the hash that names what a replica was made from.
const REVISION_DIGITS: usize = 16;

impl Checked for FederatedServiceSpec {
    const SHORT_NAMES: bool = true;

    fn check(&self, found: &mut Findings) {
        // Fields that a replica's job has are called the same here, and checked there.
        self.job(None).check(found);
        if self.replicas > MAX_REPLICAS {
            let message = format!("is {}, at most {MAX_REPLICAS} fit", self.replicas);
            found.add("spec.replicas", FieldReason::TooMany, message);
        }
        self.check_places(found);
        if self.rollout.max_unavailable == 0 {
            let message = "is 0, so no replica could be replaced: give at least 1";
            found.invalid("spec.rollout.maxUnavailable", message);
        }
    }

    fn check_update(&self, _new: &Self, _found: &mut Findings) {}
}

impl FederatedServiceSpec {
    fn check_places(&self, found: &mut Findings) {
        if let Some(division) = &self.placement.division {
            division.check("spec.placement.division", found);
        }
        found.too_many("spec.placement.spread", self.placement.spread.len(), 1);
        for (index, rule) in self.placement.spread.iter().enumerate() {
            let path = format!("spec.placement.spread[{index}]");
            // None of them have to stand anywhere.
            if self.replicas > 0 {
                rule.check(&path, u64::from(self.replicas), "replicas", found);
            }
            if !["region", "cluster"].contains(&rule.topology_key.as_str()) {
                let message = "replicas are spread over region or cluster by this release";
                found.unsupported(&format!("{path}.topologyKey"), message);
            }
        }
        if !self.placement.groups.is_empty() {
            let message = "replicas are not placed in ordered groups by this release: use regions";
            found.unsupported("spec.placement.groups", message);
        }
    }

    /// By which rule replicas are divided.
    #[must_use]
    pub fn division(&self) -> DivisionRule {
        let division = self.placement.division.as_ref();
        division.map_or(DivisionRule::Dynamic, |division| division.rule)
    }

    /// Weight of a cluster: the first row that holds it.
    #[must_use]
    pub fn weight(&self, cluster: &str, region: &str) -> u32 {
        let rows = self.placement.division.iter().flat_map(|it| &it.weights);
        let holds =
            |list: &[String], name: &str| list.is_empty() || list.iter().any(|known| known == name);
        let mut rows = rows.filter(|row| holds(&row.regions, region));
        let row = rows.find(|row| holds(&row.clusters, cluster));
        row.map_or(0, |row| row.weight)
    }
}

impl FederatedServiceSpec {
    /// What the job of a replica says, in `cluster` alone if one is given.
    #[must_use]
    pub fn job(&self, cluster: Option<&str>) -> FederatedJobSpec {
        let mut placement = Placement {
            // Said of all replicas together, not of one.
            division: None,
            spread: Vec::new(),
            ..self.placement.clone()
        };
        if let Some(cluster) = cluster {
            placement.clusters = vec![cluster.to_owned()];
        }
        FederatedJobSpec {
            tenant: self.tenant.clone(),
            workload_class: self.workload_class.clone(),
            priority: self.priority,
            cost_attribution: self.cost_attribution.clone(),
            placement,
            roles: self.roles.clone(),
            topology: self.topology.clone(),
            dependencies: self.dependencies.clone(),
            carried: self.carried.clone(),
            copies: 1,
            // It serves for ever: each start after a failure waits longer, none is the last.
            retry: Retry {
                max_restarts: MAX_RESTARTS,
                ..Retry::default()
            },
            ..FederatedJobSpec::default()
        }
    }

    /// Names everything that replicas are made from: a replica of another revision is outdated.
    #[must_use]
    pub fn revision(&self) -> String {
        let job =
            serde_json::to_value(self.job(None)).expect("a spec holds only texts and numbers");
        let mut hash = canonical::hex(&canonical::sha256(&job));
        hash.truncate(REVISION_DIGITS);
        hash
    }
}

impl FederatedService {
    /// The job of replica number `ordinal`.
    #[must_use]
    pub fn replica(&self, ordinal: u32, cluster: Option<&str>) -> FederatedJob {
        let name = format!("{}-{ordinal}", self.metadata.name);
        let mut job = FederatedJob::new(&name, self.spec.job(cluster));
        let labels = [
            (SERVICE_LABEL, self.metadata.name.clone()),
            (REVISION_LABEL, self.spec.revision()),
        ];
        let labels = labels.map(|(label, text)| (label.to_owned(), text));
        job.metadata.labels = BTreeMap::from(labels);
        job.metadata.namespace.clone_from(&self.metadata.namespace);
        job.metadata.owner_references = vec![json!({
            "apiVersion": API_VERSION,
            "kind": FederatedServiceSpec::KIND,
            "name": self.metadata.name,
            "uid": self.metadata.uid.map(|uid| uid.to_string()),
            "controller": true,
        })];
        job
    }

    /// Number of the replica whose job has this name.
    #[must_use]
    pub fn ordinal(&self, job: &str) -> Option<u32> {
        let rest = job.strip_prefix(&self.metadata.name)?.strip_prefix('-')?;
        rest.parse().ok()
    }
}
