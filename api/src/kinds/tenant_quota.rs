//! `TenantQuota`: GPUs, CPU and memory that a tenant, with everything below it, may hold.
//!
//! Owns its shape and its checks on one object. Sums over the tree are checked in `tree`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::errors::FieldReason;
use crate::meta::{Condition, Object, Spec};
use crate::quantity::{CpuQuantity, GpuQuantity, MemoryQuantity};
use crate::units::{Mebibytes, MilliCpus, MilliGpus};
use crate::validate::{Checked, Findings};

/// A tenant's quota.
pub type TenantQuota = Object<TenantQuotaSpec, TenantQuotaStatus>;

impl Spec for TenantQuotaSpec {
    const KIND: &'static str = "TenantQuota";
    const ABOUT: &'static str = "GPUs that a tenant, with everything below it, may hold.";
    const PLURAL: &'static str = "tenantquotas";
    const NAMESPACED: bool = false;
    type Status = TenantQuotaStatus;
}

/// What a tenant may hold.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantQuotaSpec {
    /// Whose quota it is. A tenant has at most one.
    pub tenant: String,
    /// Its weight among its siblings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair_sharing: Option<FairSharing>,
    /// One row per flavor and region counted. What no row counts is not limited at this tenant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<QuotaRow>,
    /// Host CPU of all its pods; absent = not limited at this tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<HostRow<CpuQuantity>>,
    /// Host memory of all its pods; absent = not limited at this tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<HostRow<MemoryQuantity>>,
    /// Limits on jobs.
    #[serde(default)]
    pub limits: JobLimits,
}

/// Weight in fair sharing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FairSharing {
    /// Twice the weight, twice the share. At least 1.
    pub weight: u32,
}

/// GPUs of one flavor, in one region or in all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuotaRow {
    /// Flavor counted; absent counts all flavors together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flavor: Option<String>,
    /// Region counted; absent counts all regions together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Its own.
    pub nominal: GpuQuantity,
    /// Most it may hold beyond nominal while others leave theirs unused; absent = no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub borrowing_limit: Option<GpuQuantity>,
    /// Most of its unused nominal that others may hold; absent = all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lending_limit: Option<GpuQuantity>,
    /// Never more than this, borrowed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hard_cap: Option<GpuQuantity>,
}

/// Host CPU or memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostRow<Q> {
    /// Its own.
    pub nominal: Q,
    /// Most it may hold beyond nominal while others leave theirs unused; absent = no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub borrowing_limit: Option<Q>,
    /// Most of its unused nominal that others may hold; absent = all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lending_limit: Option<Q>,
    /// Never more than this, borrowed or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hard_cap: Option<Q>,
}

/// One row in the smallest units of what it counts: thousandths of a GPU or of a core, mebibytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Its own.
    pub nominal: u64,
    /// Most beyond nominal.
    pub borrowing_limit: Option<u64>,
    /// Most of its unused nominal that others may hold.
    pub lending_limit: Option<u64>,
    /// Never more than this.
    pub hard_cap: Option<u64>,
}

/// Limits on the jobs of a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobLimits {
    /// Most jobs that hold GPUs at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running_jobs: Option<u32>,
    /// Most jobs that wait; one more is refused at submission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_jobs: Option<u32>,
    /// Most GPUs one job may ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_per_job: Option<GpuQuantity>,
}

/// What is so with a quota.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantQuotaStatus {
    /// Generation of the spec it speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// GPUs held over all flavors.
    pub used: GpuQuantity,
    /// GPUs held, by flavor.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub used_by_flavor: BTreeMap<String, GpuQuantity>,
    /// `Ready`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Most rows of one quota: more flavors than any fleet has.
pub const MAX_ROWS: usize = 128;

impl Checked for TenantQuotaSpec {
    const SHORT_NAMES: bool = false;

    fn check(&self, found: &mut Findings) {
        found.label("spec.tenant", &self.tenant);
        if self.fair_sharing.is_some_and(|sharing| sharing.weight == 0) {
            found.invalid("spec.fairSharing.weight", "is 0, must be at least 1");
        }
        found.too_many("spec.resources", self.resources.len(), MAX_ROWS);
        for (index, row) in self.resources.iter().enumerate() {
            let path = format!("spec.resources[{index}]");
            let same =
                |other: &QuotaRow| (&other.flavor, &other.region) == (&row.flavor, &row.region);
            if self.resources[..index].iter().any(same) {
                let flavor = row.flavor.as_deref().unwrap_or("all flavors together");
                let message = format!("{flavor:?} has two rows: put them into one");
                found.add(&format!("{path}.flavor"), FieldReason::Duplicate, message);
            }
            row.check(&path, found);
        }
        if let Some(row) = &self.cpu {
            let show = |amount| CpuQuantity(MilliCpus(amount)).to_string();
            row.amounts().check("spec.cpu", show, found);
        }
        if let Some(row) = &self.memory {
            let show = |amount| MemoryQuantity(Mebibytes(amount)).to_string();
            row.amounts().check("spec.memory", show, found);
        }
        found.some_gpus("spec.limits.gpusPerJob", self.limits.gpus_per_job);
    }

    fn check_update(&self, new: &Self, found: &mut Findings) {
        let instead = "delete this quota and make one for the other tenant";
        found.unchanged("spec.tenant", &self.tenant, &new.tenant, instead);
    }
}

impl QuotaRow {
    fn check(&self, path: &str, found: &mut Findings) {
        if let Some(flavor) = &self.flavor {
            found.name(&format!("{path}.flavor"), flavor);
        }
        if let Some(region) = &self.region {
            found.name(&format!("{path}.region"), region);
        }
        let show = |amount| GpuQuantity(MilliGpus(amount)).to_string();
        self.amounts().check(path, show, found);
    }

    /// The row's numbers.
    #[must_use]
    pub fn amounts(&self) -> Amounts {
        let number = |limit: Option<GpuQuantity>| limit.map(|limit| limit.0.0);
        Amounts {
            nominal: self.nominal.0.0,
            borrowing_limit: number(self.borrowing_limit),
            lending_limit: number(self.lending_limit),
            hard_cap: number(self.hard_cap),
        }
    }
}

impl HostRow<CpuQuantity> {
    /// The row's numbers.
    #[must_use]
    pub fn amounts(&self) -> Amounts {
        self.numbers(|quantity| quantity.0.0)
    }
}

impl HostRow<MemoryQuantity> {
    /// The row's numbers.
    #[must_use]
    pub fn amounts(&self) -> Amounts {
        self.numbers(|quantity| quantity.0.0)
    }
}

impl<Q: Copy> HostRow<Q> {
    fn numbers(&self, number: fn(Q) -> u64) -> Amounts {
        Amounts {
            nominal: number(self.nominal),
            borrowing_limit: self.borrowing_limit.map(number),
            lending_limit: self.lending_limit.map(number),
            hard_cap: self.hard_cap.map(number),
        }
    }
}

impl Amounts {
    fn check(self, path: &str, show: impl Fn(u64) -> String, found: &mut Findings) {
        let nominal = self.nominal;
        if let Some(lent) = self.lending_limit.filter(|lent| *lent > nominal) {
            let (lent, nominal) = (show(lent), show(nominal));
            let message = format!("is {lent}, more than nominal {nominal}: only that can be lent");
            found.invalid(&format!("{path}.lendingLimit"), message);
        }
        if let Some(cap) = self.hard_cap.filter(|cap| *cap < nominal) {
            let (cap, nominal) = (show(cap), show(nominal));
            let message =
                format!("is {cap}, less than nominal {nominal}: raise it, or lower nominal");
            found.invalid(&format!("{path}.hardCap"), message);
        }
        let borrowed = self.borrowing_limit.unwrap_or_default();
        if nominal.checked_add(borrowed).is_none() {
            let message = "nominal and this are too large a sum";
            found.invalid(&format!("{path}.borrowingLimit"), message);
        }
    }
}
