//! All roles of a gang on one tree: all of them or none.
//!
//! Owns the order in which roles are packed, and what a role leaves for the next. The tree is
//! changed while roles are tried, and is as before at the end. Never chooses hosts itself.

use std::cmp::Reverse;

use meridian_api::units::Resources;

use crate::model::GangShape;
use crate::pick::{Pick, Scope, Want, most, pick};
use crate::rules::{Wishes, wants};
use crate::search::search;
use crate::tree::{DomainIx, Tree};

/// Orders that are tried with one of the largest roles first, beyond that by size: more roles than
/// nearly all gangs have, and each costs as much as a placement.
const FIRSTS: usize = 8;

/// Pods of one role on hosts of one kind in one innermost domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// Role, by position in the gang.
    pub(crate) role: u32,
    pub(crate) domain: DomainIx,
    /// Size of each host.
    pub(crate) allocatable: Resources,
    /// Room on each host before the step.
    pub(crate) free: Resources,
    pub(crate) hosts: u32,
    pub(crate) pods_per_host: u32,
}

/// Steps for `pods` pods per role, in the order in which they take room; `None` when the gang
/// does not fit as a whole. Preferred levels are kept where the whole gang fits that way.
pub(crate) fn pack(
    tree: &mut Tree,
    levels: &[String],
    gang: &GangShape,
    pods: &[u32],
) -> Option<Vec<Step>> {
    if pods.len() != gang.roles.len() {
        return None;
    }
    let kept = wants(levels, gang, pods, Wishes::Kept).ok()?;
    let mut order: Vec<usize> = (0..kept.len()).collect();
    order.sort_by_key(|&role| {
        let want = &kept[role];
        (
            Reverse(want.required),
            Reverse(want.slice_in),
            Reverse(want.per_pod),
            role,
        )
    });
    let found = greedy(tree, levels.len(), &kept, &order);
    if found.is_some() || kept.len() < 2 {
        // One role gives its wish up by itself.
        return found;
    }
    let dropped = wants(levels, gang, pods, Wishes::Dropped).ok()?;
    if kept.iter().any(|want| want.preferred > Scope::Pool)
        && let Some(steps) = greedy(tree, levels.len(), &dropped, &order)
    {
        return Some(steps);
    }
    any(tree, levels.len(), &dropped, &order)
}

/// Any fit, where packing by size has found none: with another role first, or by search.
fn any(tree: &mut Tree, levels: usize, wants: &[Want], order: &[usize]) -> Option<Vec<Step>> {
    if wants
        .iter()
        .any(|want| most(tree, levels, want) < want.pods)
    {
        return None;
    }
    for first in 1..order.len().min(FIRSTS) {
        let mut other = order.to_vec();
        other[..=first].rotate_right(1);
        if let Some(steps) = greedy(tree, levels, wants, &other) {
            return Some(steps);
        }
    }
    search(tree, wants, order)
}

/// Roles one after the other.
fn greedy(tree: &mut Tree, levels: usize, wants: &[Want], order: &[usize]) -> Option<Vec<Step>> {
    let (mut steps, mut moves) = (Vec::new(), Vec::new());
    let last = order.last().copied();
    let mut all = true;
    for &role in order {
        let Some(picks) = pick(tree, levels, &wants[role]) else {
            all = false;
            break;
        };
        for it in &picks {
            let step = step(tree, role, it);
            if last != Some(role) {
                let left = step.left(wants[role].per_pod);
                moves.push(tree.shift(step.domain, it.kind, left, step.hosts));
            }
            steps.push(step);
        }
    }
    tree.undo(&mut moves, 0);
    all.then_some(steps)
}

/// A pick of that role.
pub(crate) fn step(tree: &Tree, role: usize, pick: &Pick) -> Step {
    let kind = tree.kind(pick.kind);
    Step {
        role: u32::try_from(role).expect("a gang has fewer roles than 2^32"),
        domain: pick.domain,
        allocatable: kind.allocatable,
        free: kind.free,
        hosts: pick.hosts,
        pods_per_host: pick.pods_per_host,
    }
}

impl Step {
    /// Room on each of its hosts afterwards.
    pub(crate) fn left(&self, per_pod: Resources) -> Resources {
        let used = per_pod.checked_mul(u64::from(self.pods_per_host));
        used.and_then(|used| self.free.checked_sub(used))
            .expect("a host holds no more than its capacity")
    }
}
