//! `TenantQuota`: GPUs that a tenant, with everything below it, may hold.
//!
//! Owns its shape and its checks on one object. Sums over the tree are checked in `tree`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::errors::FieldReason;
use crate::meta::{Condition, Object, Spec};
use crate::quantity::GpuQuantity;
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
    /// One row per flavor. A flavor without a row is not limited at this tenant.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<QuotaRow>,
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

/// GPUs of one flavor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuotaRow {
    /// Flavor counted; absent counts all flavors together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flavor: Option<String>,
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
    /// Of nominal, at most this much per region.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub by_region: BTreeMap<String, GpuQuantity>,
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
            if self.resources[..index]
                .iter()
                .any(|other| other.flavor == row.flavor)
            {
                let flavor = row.flavor.as_deref().unwrap_or("all flavors together");
                let message = format!("{flavor:?} has two rows: put them into one");
                found.add(&format!("{path}.flavor"), FieldReason::Duplicate, message);
            }
            row.check(&path, found);
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
        let nominal = self.nominal;
        if let Some(lent) = self.lending_limit.filter(|lent| *lent > nominal) {
            let message = format!("is {lent}, more than nominal {nominal}: only that can be lent");
            found.invalid(&format!("{path}.lendingLimit"), message);
        }
        if let Some(cap) = self.hard_cap.filter(|cap| *cap < nominal) {
            let message =
                format!("is {cap}, less than nominal {nominal}: raise it, or lower nominal");
            found.invalid(&format!("{path}.hardCap"), message);
        }
        if nominal
            .0
            .checked_add(self.borrowing_limit.unwrap_or_default().0)
            .is_none()
        {
            found.invalid(
                &format!("{path}.borrowingLimit"),
                "nominal and this are too large a sum",
            );
        }
        if !self.by_region.is_empty() {
            let message = "quotas per region are not held by this release: leave it out";
            found.unsupported(&format!("{path}.byRegion"), message);
        }
    }
}
