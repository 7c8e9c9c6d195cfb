//! Spread and division: how alike copies stand over domains and clusters.
//!
//! Owns these fields, which kinds share, and their checks. How many copies go where is the
//! decision's matter.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::errors::FieldReason;
use crate::validate::{Findings, MAX_LIST};

/// Largest weight: shares of that many clusters of it stay far below 2^64.
pub const MAX_WEIGHT: u32 = 1_000_000;

/// How evenly copies stand over domains (the words of `topologySpreadConstraints`). A domain is one
/// value of a label of clusters: `region`, `zone`, `provider`, `cluster`, or any other.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct SpreadRule {
    /// The label.
    pub topology_key: String,
    /// Fewest domains that hold copies; absent = 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_domains: Option<u32>,
    /// Fewest copies in each of these; absent = 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_per_domain: Option<u32>,
    /// Most by which two domains may differ that can hold copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_skew: Option<u32>,
}

impl SpreadRule {
    /// Domains that must hold copies, and how many each: both at least 1.
    #[must_use]
    pub fn least(&self) -> (u32, u32) {
        let at_least_one = |count: Option<u32>| count.unwrap_or(1).max(1);
        (
            at_least_one(self.min_domains),
            at_least_one(self.min_per_domain),
        )
    }

    /// Notes what is wrong with a rule for `copies` copies, which `unit` names.
    pub fn check(&self, path: &str, copies: u64, unit: &str, found: &mut Findings) {
        if self.topology_key.is_empty() {
            let message = "must be given: region, zone, provider, cluster, or a label";
            found.add(
                &format!("{path}.topologyKey"),
                FieldReason::Required,
                message,
            );
        }
        found.text(&format!("{path}.topologyKey"), &self.topology_key);
        let fields = [
            ("minDomains", self.min_domains),
            ("minPerDomain", self.min_per_domain),
            ("maxSkew", self.max_skew),
        ];
        if fields.iter().all(|(_, value)| value.is_none()) {
            let message = "says nothing: give minDomains, minPerDomain or maxSkew";
            found.add(path, FieldReason::Required, message);
        }
        for (name, value) in fields {
            if value == Some(0) {
                found.invalid(&format!("{path}.{name}"), "is 0, must be at least 1");
            }
        }
        let (domains, each) = self.least();
        let need = u64::from(domains) * u64::from(each);
        if need > copies {
            let message = format!(
                "needs {domains} domains with {each} {unit} each, {need} in all, and there are \
                 {copies}: raise {unit} to {need}, or lower minDomains or minPerDomain"
            );
            found.impossible(path, message);
        }
    }
}

/// How copies are divided over clusters (Karmada's words for replica scheduling).
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct Division {
    /// By which rule.
    pub rule: DivisionRule,
    /// Weights of clusters, with `Weighted`: the first row that holds a cluster is its own, and a
    /// cluster in no row gets no copies.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<DivisionWeight>,
}

/// By which rule copies are divided.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum DivisionRule {
    /// One in each cluster; what is left waits for clusters that join.
    Duplicated,
    /// By fixed weights.
    Weighted,
    /// By the room that each cluster has.
    Dynamic,
    /// In as few clusters as can be.
    #[default]
    Aggregated,
}

/// Weight of some clusters. Each list that is not empty must hold the cluster.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct DivisionWeight {
    /// Regions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<String>,
    /// Clusters.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<String>,
    /// Twice the weight, twice the copies.
    pub weight: u32,
}

impl Division {
    /// Notes what is wrong with it.
    pub fn check(&self, path: &str, found: &mut Findings) {
        let path = format!("{path}.weights");
        match (self.rule, self.weights.is_empty()) {
            (DivisionRule::Weighted, true) => {
                let message = "must be given with rule Weighted, for example \
                               [{regions: [eu-west], weight: 2}]";
                found.add(&path, FieldReason::Required, message);
            }
            (
                DivisionRule::Duplicated | DivisionRule::Dynamic | DivisionRule::Aggregated,
                false,
            ) => {
                let message = format!("mean nothing with rule {:?}: leave them out", self.rule);
                found.add(&path, FieldReason::Forbidden, message);
            }
            (DivisionRule::Weighted, false)
            | (DivisionRule::Duplicated | DivisionRule::Dynamic | DivisionRule::Aggregated, true) =>
                {}
        }
        found.too_many(&path, self.weights.len(), MAX_LIST);
        for (index, row) in self.weights.iter().enumerate() {
            let path = format!("{path}[{index}]");
            found.names(&format!("{path}.regions"), &row.regions);
            found.names(&format!("{path}.clusters"), &row.clusters);
            if row.weight > MAX_WEIGHT {
                let message = format!("is {}, at most {MAX_WEIGHT}", row.weight);
                found.invalid(&format!("{path}.weight"), message);
            }
        }
        if !self.weights.is_empty() && self.weights.iter().all(|row| row.weight == 0) {
            found.impossible(&path, "are all 0, so no cluster would get a copy");
        }
    }
}
