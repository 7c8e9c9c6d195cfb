//! Placement on nodes: which node each pod of a gang goes to, inside one pool.
//!
//! Owns nodes, their index, and what becomes of a gang that loses one. The choice itself is that
//! of `packing`, as for the hub, so both agree on what fits. What is chosen depends on what nodes
//! look like; their names only tell apart those that look the same. Never binds.

mod index;
mod replace;

use meridian_api::reasons::Reason;
use meridian_api::units::Resources;

use crate::model::{Amounts, GangShape};
pub use crate::nodes::index::Index;
pub use crate::nodes::replace::{Replacement, replace};

/// One node of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// One name per level of the pool, from the widest inward.
    pub domains: Vec<String>,
    /// Its size.
    pub allocatable: Resources,
    /// Room left on it.
    pub free: Resources,
    /// False when it takes no new pods: it then counts as not there.
    pub ready: bool,
}

/// One pod of a gang and its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Role, by position in the gang.
    pub role: u32,
    /// Rank in the role, from zero. Ranks of one domain are contiguous, at every level.
    pub rank: u32,
    /// Node, by position in the list that was given.
    pub node: usize,
}

/// A gang does not fit on the nodes. Nothing was placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PlaceFailure {
    /// `NeverPlaceable`, `Fragmented` or `WaitingForCapacity`.
    pub reason: Reason,
    /// Words for a person.
    pub message: String,
    /// GPUs needed, free, and in all.
    pub amounts: Amounts,
}

/// Places `pods` pods per role of `gang` on `nodes`: all of them or none. Members come by role
/// and rank.
///
/// # Errors
///
/// The gang does not fit.
pub fn place(
    levels: &[String],
    nodes: &[Node],
    gang: &GangShape,
    pods: &[u32],
) -> Result<Vec<Member>, PlaceFailure> {
    Index::of(levels, nodes).place(gang, pods)
}
