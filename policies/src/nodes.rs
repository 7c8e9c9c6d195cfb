//! Placement on nodes: which node each pod of a gang goes to, inside one pool.
//!
//! Owns the step from the agent's nodes to shapes and back. The choice itself is that of `fit`,
//! so hub and agent agree on what fits. What is chosen depends on what nodes look like; their
//! names only tell apart those that look the same. Never binds.

use std::collections::BTreeMap;

use meridian_api::reasons::Reason;
use meridian_api::units::Resources;

use crate::diagnosis::{Diagnosis, diagnose};
use crate::fit::fit;
use crate::model::{Amounts, GangShape, Shape, Take};
use crate::shapes::canonical;

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

/// Alike nodes, by domains, size and room; each group by name.
type Groups<'a> = BTreeMap<(&'a [String], Resources, Resources), Vec<usize>>;

/// Places `pods` pods per role of `gang` on `nodes`: all of them or none. Members come by role
/// and rank.
pub fn place(
    levels: &[String],
    nodes: &[Node],
    gang: &GangShape,
    pods: &[u32],
) -> Result<Vec<Member>, PlaceFailure> {
    let shapes = shapes_of(nodes);
    let placed =
        fit(levels, &shapes, gang, pods).and_then(|found| expand(nodes, gang, &found.takes));
    placed.ok_or_else(|| {
        let Diagnosis {
            reason,
            amounts,
            message,
        } = diagnose(levels, &shapes, gang, pods);
        PlaceFailure {
            reason,
            message,
            amounts,
        }
    })
}

/// The ready nodes as shapes, in canonical form.
#[must_use]
pub fn shapes_of(nodes: &[Node]) -> Vec<Shape> {
    let shape = |node: &Node| Shape {
        domains: node.domains.clone(),
        allocatable: node.allocatable,
        free: node.free,
        hosts: 1,
    };
    canonical(
        &nodes
            .iter()
            .filter(|node| node.ready)
            .map(shape)
            .collect::<Vec<_>>(),
    )
}

fn groups(nodes: &[Node]) -> Groups<'_> {
    let mut groups: Groups<'_> = BTreeMap::new();
    for (index, node) in nodes.iter().enumerate() {
        if node.ready {
            let key = (node.domains.as_slice(), node.allocatable, node.free);
            groups.entry(key).or_default().push(index);
        }
    }
    for members in groups.values_mut() {
        // Reversed: hosts are taken off the end, the first name first.
        members.sort_by(|a, b| (&nodes[*b].name, b).cmp(&(&nodes[*a].name, a)));
    }
    groups
}

/// Nodes for the hosts that the takes name; `None` when they name hosts that are not there.
fn expand(nodes: &[Node], gang: &GangShape, takes: &[Take]) -> Option<Vec<Member>> {
    let mut groups = groups(nodes);
    let mut seats: Vec<(u32, usize, u32)> = Vec::new();
    for take in takes {
        let role = gang.roles.get(take.role as usize)?;
        let used = role.per_pod.checked_mul(u64::from(take.pods_per_host))?;
        let left = take.free.checked_sub(used)?;
        for _ in 0..take.hosts {
            let key = (take.domains.as_slice(), take.allocatable, take.free);
            let node = groups.get_mut(&key)?.pop()?;
            seats.push((take.role, node, take.pods_per_host));
            let key = (nodes[node].domains.as_slice(), take.allocatable, left);
            groups.entry(key).or_default().push(node);
        }
    }
    seats.sort_by(|a, b| {
        let place = |node: usize| (&nodes[node].domains, &nodes[node].name, node);
        (a.0, place(a.1)).cmp(&(b.0, place(b.1)))
    });
    let mut members: Vec<Member> = Vec::new();
    for (role, node, pods) in seats {
        for _ in 0..pods {
            let rank = match members.last() {
                Some(last) if last.role == role => last.rank + 1,
                Some(_) | None => 0,
            };
            members.push(Member { role, rank, node });
        }
    }
    Some(members)
}
