//! `Region`: a place that holds member clusters, with its zone, law and prices.
//!
//! Owns its shape and its checks.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::meta::{Condition, Object, Spec};
use crate::quantity::{GpuQuantity, Money};
use crate::validate::{Checked, Findings};

/// A region.
pub type Region = Object<RegionSpec, RegionStatus>;

impl Spec for RegionSpec {
    const KIND: &'static str = "Region";
    const ABOUT: &'static str =
        "A place that holds member clusters, with its zone, law and prices.";
    const PLURAL: &'static str = "regions";
    const NAMESPACED: bool = false;
    type Status = RegionStatus;
}

/// What a region is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RegionSpec {
    /// IANA time zone: `Europe/Dublin`.
    pub time_zone: String,
    /// Whose law holds there: `EU`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jurisdiction: Option<String>,
    /// Who runs it: `on-premises`, or a cloud.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Data sets of which it holds a copy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_sets: Vec<String>,
    /// Regions that take its work when it is lost, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failover_peers: Vec<String>,
    /// Price of one card for an hour, by flavor, where the price book names none for this region.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gpu_hour_price: BTreeMap<String, Money>,
    /// Price of a gigabyte that leaves the region, where the price book names none for its way.
    #[serde(
        default,
        rename = "egressPricePerGB",
        skip_serializing_if = "Option::is_none"
    )]
    pub egress_price_per_gb: Option<Money>,
}

/// What is so in a region.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RegionStatus {
    /// Generation of the spec it speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Its clusters.
    pub clusters: ClusterCounts,
    /// GPUs of its clusters, as last reported.
    pub gpus: GpuCounts,
    /// `Available`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Clusters of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterCounts {
    /// Heard and open.
    pub ready: u32,
    /// All.
    pub total: u32,
}

/// GPUs of a cluster or a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GpuCounts {
    /// All that are there, the ones that are out included.
    pub total: GpuQuantity,
    /// Held by nobody.
    pub free: GpuQuantity,
    /// On hosts that are unhealthy or closed.
    pub out: GpuQuantity,
}

impl Checked for RegionSpec {
    const SHORT_NAMES: bool = true;

    fn check(&self, found: &mut Findings) {
        found.zone("spec.timeZone", &self.time_zone);
        found.text(
            "spec.jurisdiction",
            self.jurisdiction.as_deref().unwrap_or_default(),
        );
        if let Some(provider) = &self.provider {
            found.name("spec.provider", provider);
        }
        found.names("spec.dataSets", &self.data_sets);
        found.names("spec.failoverPeers", &self.failover_peers);
        for (flavor, price) in &self.gpu_hour_price {
            let path = format!("spec.gpuHourPrice.{flavor}");
            found.name(&path, flavor);
            found.price(&path, *price);
        }
        if let Some(price) = self.egress_price_per_gb {
            found.price("spec.egressPricePerGB", price);
        }
    }

    fn check_update(&self, _new: &Self, _found: &mut Findings) {}
}
