//! Labels, taints, networks and groups: what a job asks of the clusters it may run in.
//!
//! Owns these fields and their checks. What a cluster's labels are is said by its objects; which
//! cluster fits is the decision's matter.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::errors::FieldReason;
use crate::kinds::gpu_pool::{FabricKind, MAX_GBPS};
use crate::kinds::member_cluster::{Taint, TaintEffect};
use crate::validate::Findings;

/// Most rules, tolerations or groups of one job: each is weighed for every cluster.
pub const MAX_RULES: usize = 32;
/// Most values of one rule.
pub const MAX_VALUES: usize = 64;
/// Longest key or value of a label: a qualified name's.
const MAX_LABEL_TEXT: usize = 317;

/// Labels that clusters must or should have.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(default)]
pub struct Affinity {
    /// All must hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub required: Vec<LabelRule>,
    /// The more hold, the better.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preferred: Vec<LabelRule>,
}

impl Affinity {
    /// True when nothing is asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A rule on one label of a cluster. `cluster`, `region`, `zone`, `provider` and `jurisdiction` are
/// known by themselves; others are labels of the `MemberCluster`, then of its `Region`.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct LabelRule {
    /// The label.
    pub key: String,
    /// What must be so.
    pub operator: LabelOperator,
    /// Values, with `In` and `NotIn`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// What must be so with a label.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum LabelOperator {
    /// It has one of the values.
    #[default]
    In,
    /// It has none of the values, or is not there.
    NotIn,
    /// It is there.
    Exists,
    /// It is not there.
    DoesNotExist,
}

/// A taint that a job bears, as Kubernetes writes it.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase", default)]
pub struct Toleration {
    /// Key of the taint; empty with `Exists` = every taint.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// How the value is compared.
    pub operator: TolerationOperator,
    /// Value of the taint, with `Equal`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// Effect of the taint; absent = every effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// With `NoExecute`: how long work that is there already stays once the taint is added; absent
    /// = for good, and it may come too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<u64>,
}

/// How a toleration compares values.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum TolerationOperator {
    /// The value is the taint's.
    #[default]
    Equal,
    /// Any value.
    Exists,
}

impl Toleration {
    /// True when it is about the taint.
    #[must_use]
    pub fn covers(&self, taint: &Taint) -> bool {
        let value = match self.operator {
            TolerationOperator::Exists => true,
            TolerationOperator::Equal => self.value == taint.value,
        };
        let key = self.key == taint.key
            || (self.key.is_empty() && self.operator == TolerationOperator::Exists);
        key && value && self.effect.is_none_or(|effect| effect == taint.effect)
    }

    pub(super) fn check(&self, path: &str, found: &mut Findings) {
        if self.key.is_empty() && self.operator == TolerationOperator::Equal {
            let message = "must be given: leave it out only with operator Exists, for all taints";
            found.add(&format!("{path}.key"), FieldReason::Required, message);
        }
        if self.operator == TolerationOperator::Exists && !self.value.is_empty() {
            let message = "means nothing with operator Exists: leave it out";
            found.add(&format!("{path}.value"), FieldReason::Forbidden, message);
        }
        if self.toleration_seconds.is_some()
            && self
                .effect
                .is_some_and(|effect| effect != TaintEffect::NoExecute)
        {
            let message = "counts from a taint that ends work: only with effect NoExecute";
            found.add(
                &format!("{path}.tolerationSeconds"),
                FieldReason::Forbidden,
                message,
            );
        }
        label_text(&format!("{path}.key"), &self.key, found);
        label_text(&format!("{path}.value"), &self.value, found);
    }
}

/// Network between hosts that a job needs.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase", default)]
pub struct FabricWish {
    /// Kinds that will do; empty = any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<FabricKind>,
    /// Least rate of each card, in gigabits per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_gbps: Option<u32>,
}

/// A rule on where other jobs of the same namespace stand when a gang gets its place. What comes
/// later is bound by its own rules.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct JobRule {
    /// What must be so.
    pub rule: JobRelation,
    /// The label whose values are the domains: `cluster`, `region`, `zone`, or any other.
    pub topology_key: String,
    /// Labels of the other jobs, all of which they have.
    pub match_labels: BTreeMap<String, String>,
}

/// Where other jobs must stand.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum JobRelation {
    /// A gang of one of them is in the same domain.
    Together,
    /// None of theirs is in the same domain.
    #[default]
    Apart,
}

impl JobRule {
    pub(super) fn check(&self, path: &str, found: &mut Findings) {
        if self.topology_key.is_empty() {
            let message = "must be given: cluster, region, zone, provider, or a label";
            found.add(
                &format!("{path}.topologyKey"),
                FieldReason::Required,
                message,
            );
        }
        label_text(&format!("{path}.topologyKey"), &self.topology_key, found);
        let path = format!("{path}.matchLabels");
        if self.match_labels.is_empty() {
            let message = "must be given, for example {app: indexer}";
            found.add(&path, FieldReason::Required, message);
        }
        found.too_many(&path, self.match_labels.len(), MAX_RULES);
        for (key, value) in &self.match_labels {
            label_text(&path, key, found);
            label_text(&path, value, found);
        }
    }
}

/// Clusters that a job takes as one: the first group with room is used. Each list that is not
/// empty must hold the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PlacementGroup {
    /// Its name, unique in the job.
    pub name: String,
    /// Regions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<String>,
    /// Clusters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<String>,
    /// Rules on labels, all of which hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<LabelRule>,
}

impl LabelRule {
    pub(super) fn check(&self, path: &str, found: &mut Findings) {
        if self.key.is_empty() {
            found.add(
                &format!("{path}.key"),
                FieldReason::Required,
                "must be given",
            );
        }
        label_text(&format!("{path}.key"), &self.key, found);
        let path = format!("{path}.values");
        found.too_many(&path, self.values.len(), MAX_VALUES);
        for value in &self.values {
            label_text(&path, value, found);
        }
        match self.operator {
            LabelOperator::In | LabelOperator::NotIn if self.values.is_empty() => {
                let message = "must be given with In and NotIn, for example [eu-west]";
                found.add(&path, FieldReason::Required, message);
            }
            LabelOperator::Exists | LabelOperator::DoesNotExist if !self.values.is_empty() => {
                let message = "means nothing with Exists and DoesNotExist: leave it out";
                found.add(&path, FieldReason::Forbidden, message);
            }
            LabelOperator::In
            | LabelOperator::NotIn
            | LabelOperator::Exists
            | LabelOperator::DoesNotExist => {}
        }
    }
}

/// Checks every rule of a list.
pub(super) fn check_rules(path: &str, rules: &[LabelRule], found: &mut Findings) {
    found.too_many(path, rules.len(), MAX_RULES);
    for (index, rule) in rules.iter().enumerate() {
        rule.check(&format!("{path}[{index}]"), found);
    }
}

impl FabricWish {
    pub(super) fn check(&self, path: &str, found: &mut Findings) {
        if self.kinds.is_empty() && self.min_gbps.is_none() {
            let message = "says nothing: give kinds, minGbps or both, for example minGbps: 400";
            found.add(path, FieldReason::Required, message);
        }
        if let Some(rate) = self.min_gbps.filter(|rate| !(1..=MAX_GBPS).contains(rate)) {
            let message = format!("is {rate}, must be from 1 to {MAX_GBPS}");
            found.invalid(&format!("{path}.minGbps"), message);
        }
    }
}

/// Checks the groups of a job.
pub(super) fn check_groups(groups: &[PlacementGroup], found: &mut Findings) {
    let path = "spec.placement.groups";
    found.too_many(path, groups.len(), MAX_RULES);
    for (index, group) in groups.iter().enumerate() {
        let path = format!("{path}[{index}]");
        found.label(&format!("{path}.name"), &group.name);
        if groups[..index].iter().any(|other| other.name == group.name) {
            let message = format!("{:?} is there twice", group.name);
            found.add(&format!("{path}.name"), FieldReason::Duplicate, message);
        }
        if group.regions.is_empty() && group.clusters.is_empty() && group.labels.is_empty() {
            let message = "names no cluster: give regions, clusters or labels";
            found.add(&path, FieldReason::Required, message);
        }
        found.names(&format!("{path}.regions"), &group.regions);
        found.names(&format!("{path}.clusters"), &group.clusters);
        check_rules(&format!("{path}.labels"), &group.labels, found);
    }
}

/// Notes a key or value that no label can have.
fn label_text(path: &str, text: &str, found: &mut Findings) {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    if text.len() > MAX_LABEL_TEXT || !text.chars().all(fits) {
        let short: String = text.chars().take(64).collect();
        found.invalid(path, format!("{short:?} is no text of a label"));
    }
}
