//! `Tenant`: a node of the tree that owns quota, budget and rules.
//!
//! Owns its shape and its checks on one object. The tree as a whole is checked in `tree`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::errors::FieldReason;
use crate::meta::{Condition, Object, Spec};
use crate::quantity::{GpuQuantity, Money, Time};
use crate::validate::{Checked, Findings};

/// A tenant.
pub type Tenant = Object<TenantSpec, TenantStatus>;

impl Spec for TenantSpec {
    const KIND: &'static str = "Tenant";
    const ABOUT: &'static str = "A node of the tenant tree: it owns quota, budget and rules.";
    const PLURAL: &'static str = "tenants";
    const NAMESPACED: bool = false;
    type Status = TenantStatus;
}

/// What a tenant is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantSpec {
    /// The tenant above; absent for a root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// Who answers for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owners: Vec<Owner>,
    /// Namespaces that belong to it, by label.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<NamespaceSelector>,
    /// What its jobs may name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Allowed>,
    /// Money that it, with everything below it, may spend. What its work holds is counted by the
    /// prices of the PriceBook, whose currency it must be in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
}

/// One owner of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Owner {
    /// What the name names.
    pub kind: OwnerKind,
    /// The name.
    pub name: String,
}

/// Kind of an owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OwnerKind {
    /// One person.
    User,
    /// A group of people.
    Group,
    /// A program.
    ServiceAccount,
}

/// Namespaces by label.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceSelector {
    /// Labels that a namespace must have, all of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
}

/// What a tenant's jobs may name; an empty list allows all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Allowed {
    /// Regions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<String>,
    /// Workload classes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub workload_classes: Vec<String>,
}

/// Money a tenant may spend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Budget {
    /// ISO 4217 code: `EUR`.
    pub currency: String,
    /// Amount for each calendar month, in UTC.
    pub monthly: Money,
    /// Percentages of the amount at which an event tells of what is spent, once a month each. One
    /// always tells of the whole amount.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alert_at_percent: Vec<u32>,
    /// What happens when it is used up.
    #[serde(default)]
    pub on_exhausted: OnExhausted,
}

/// What happens when a budget is used up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnExhausted {
    /// It is said, and nothing else.
    #[default]
    Warn,
    /// Only its own quota is left to it.
    BlockBorrowing,
    /// No new work.
    BlockAll,
}

/// What is so with a tenant, with everything below it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantStatus {
    /// Generation of the spec it speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// GPUs over all flavors.
    pub gpus: TenantGpus,
    /// Jobs that hold GPUs.
    pub running_jobs: u32,
    /// Jobs that wait.
    pub queued_jobs: u32,
    /// Money of this month, if it has a budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<BudgetStatus>,
    /// `Ready`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// What is left of a budget.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BudgetStatus {
    /// When the month began.
    pub month: Time,
    /// Spent in it by the tenant and everything below it.
    pub spent: Money,
    /// To be spent at most.
    pub monthly: Money,
    /// ISO 4217 code of both.
    pub currency: String,
    /// All of it is spent.
    pub exhausted: bool,
    /// The largest part of it, of `alertAtPercent` or the whole, of which an event has told this
    /// month.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alerted_at_percent: Option<u32>,
}

/// GPUs of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantGpus {
    /// Its own.
    pub nominal: GpuQuantity,
    /// Held, borrowed ones included.
    pub used: GpuQuantity,
    /// Held beyond nominal.
    pub borrowed: GpuQuantity,
    /// Asked for by jobs that wait.
    pub pending: GpuQuantity,
}

/// Most owners of one tenant.
pub const MAX_OWNERS: usize = 64;

impl Checked for TenantSpec {
    const SHORT_NAMES: bool = true;

    fn check(&self, found: &mut Findings) {
        if let Some(parent) = &self.parent {
            found.label("spec.parent", parent);
        }
        found.too_many("spec.owners", self.owners.len(), MAX_OWNERS);
        for (index, owner) in self.owners.iter().enumerate() {
            let path = format!("spec.owners[{index}].name");
            if owner.name.is_empty() {
                found.add(&path, FieldReason::Required, "must be given");
            }
            found.text(&path, &owner.name);
        }
        if let Some(allowed) = &self.allowed {
            found.names("spec.allowed.regions", &allowed.regions);
            found.names("spec.allowed.workloadClasses", &allowed.workload_classes);
        }
        if let Some(budget) = &self.budget {
            budget.check(found);
        }
    }

    fn check_update(&self, _new: &Self, _found: &mut Findings) {}
}

impl Budget {
    fn check(&self, found: &mut Findings) {
        found.currency("spec.budget.currency", &self.currency);
        if self.monthly.0.0 <= 0 {
            let message = format!("is {}, must be more than 0: leave budget out", self.monthly);
            found.invalid("spec.budget.monthly", message);
        }
        for (index, percent) in self.alert_at_percent.iter().enumerate() {
            let path = format!("spec.budget.alertAtPercent[{index}]");
            if !(1..=100).contains(percent) {
                found.invalid(&path, format!("is {percent}, must be from 1 to 100"));
            }
            if self.alert_at_percent[..index].contains(percent) {
                found.add(
                    &path,
                    FieldReason::Duplicate,
                    format!("{percent} is there twice"),
                );
            }
        }
    }
}
