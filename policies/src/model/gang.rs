//! Gangs as shapes: pods that start together, by role, and how near to each other they must be.
//!
//! Owns the rows. Sizes between the least and the most are in `sizes`.

use meridian_api::units::Resources;
use serde::{Deserialize, Serialize};

/// Pods that start together or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GangShape {
    /// Roles in the order of the job.
    pub roles: Vec<RoleShape>,
}

/// The pods of one role: `min..=max` of them, in steps.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RoleShape {
    /// Its name.
    pub name: String,
    /// What each pod asks of a host.
    pub per_pod: Resources,
    /// Fewest pods it runs with.
    pub min: u32,
    /// Most pods it makes use of; equal to `min` when it is not elastic.
    pub max: u32,
    /// Sizes between differ by a multiple of this; at least 1.
    pub step: u32,
    /// Level that must hold the whole role, by name; `host` is the innermost.
    pub required: Option<String>,
    /// Level that should hold it.
    pub preferred: Option<String>,
    /// Parts that are kept closer together than the whole.
    #[serde(default)]
    pub slice: Option<SliceShape>,
}

/// Parts of a role: each `pods` pods, by rank, share one domain of an inner level, while the role
/// as a whole keeps to its own level (Kueue's two-level topology, KEP-2724).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SliceShape {
    /// Pods of one slice; divides every size the role may have.
    pub pods: u32,
    /// Level that holds a slice, by name; as narrow as the role's own level or narrower.
    pub level: String,
}
