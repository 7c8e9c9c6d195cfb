//! Scores: the order among the places that a gang may have.
//!
//! Owns the fields and, by their order, the rule. What they are computed from is elsewhere.

use serde::{Deserialize, Serialize};

use super::PoolIx;
use crate::choice::cost::Bill;

/// Why this pool and not another: compared field by field, lowest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Score {
    /// Taints of the cluster that should keep it away if it can go elsewhere.
    pub shunned: u32,
    /// Place of its group, or of its region, in the job's order of preference.
    pub region_order: u32,
    /// Labels that it would like and the cluster has not.
    pub wishes_missed: u32,
    /// Place of its flavor in the job's order of preference, where that goes before cost.
    pub flavor_first: u32,
    /// What the objective makes least (see [`Bill::measured_by`]).
    pub measure: u64,
    /// Place of its flavor in the job's order of preference.
    pub flavor_order: u32,
    /// GPUs the gang does not get of what it could use, in thousandths.
    pub short_of_max: u64,
    /// Preferred levels that it does not keep.
    pub preferences_missed: u32,
    /// GPUs left free on the hosts it touches: tightest fit first, in thousandths.
    pub left_on_hosts: u64,
    /// GPUs left free in the pool, in thousandths.
    pub left_in_pool: u64,
    /// Ends the tie.
    pub pool: PoolIx,
    /// What finishing there is expected to take; it is in `measure` already.
    pub bill: Bill,
}
