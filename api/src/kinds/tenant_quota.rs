//! `TenantQuota`: GPUs that a tenant, with everything below it, may hold.
//!
//! Owns its shape and its checks on one object. Sums over the tree are checked in `tree`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::meta::{Condition, Object, Spec};
use crate::quantity::GpuQuantity;

/// A tenant's quota.
pub type TenantQuota = Object<TenantQuotaSpec, TenantQuotaStatus>;

impl Spec for TenantQuotaSpec {
    const KIND: &'static str = "TenantQuota";
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
