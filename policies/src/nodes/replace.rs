//! A gang that loses a node: what moves, and where to, so that it can go on.
//!
//! Owns the choice between a swap of few members, a smaller gang and a new start. Keeps required
//! levels and slices as placement does. Never stops or binds anything.

use std::collections::BTreeMap;

use meridian_api::units::Resources;

use crate::model::{GangShape, RoleShape};
use crate::nodes::{Index, Member, Node, PlaceFailure};
use crate::packing::step;
use crate::pick::{Pick, Scope, Want, pick, pick_in};
use crate::rules::{Wishes, want};
use crate::sizes::largest;
use crate::tree::DomainIx;

/// How a gang goes on after it has lost a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// These members go to other nodes; the rest stays, and all keep their ranks.
    Swap(Vec<Member>),
    /// The gang is smaller, down to its least size.
    Shrink {
        /// Pods per role.
        pods: Vec<u32>,
        /// All members that are left, under the ranks that they have: their pods run on. Whole
        /// slices are left, so that a slice is told by its ranks as before.
        members: Vec<Member>,
    },
    /// The whole gang starts again, here, or nowhere for the reason given. An elastic gang may
    /// come out smaller.
    Restart(Result<Vec<Member>, PlaceFailure>),
}

/// How `members` of `gang` go on without the node at position `lost`, whether or not it is still
/// ready. The room of the members counts as used on `nodes`.
///
/// Members of the lost node move to the nearest domain that keeps required levels and slices. A
/// slice that finds no room in its domain moves as a whole. A role that finds none shrinks, in
/// whole slices, if it is elastic. Else all start again.
#[must_use]
pub fn replace(
    levels: &[String],
    nodes: &[Node],
    gang: &GangShape,
    members: &[Member],
    lost: usize,
) -> Replacement {
    Index::of(levels, nodes).replace(gang, members, lost)
}

/// Pods that must go somewhere together, by rank.
struct Part {
    ranks: Vec<u32>,
    /// Members that hold it to their domain.
    held_by: HeldBy,
    /// Depth of that domain.
    depth: usize,
    want: Want,
}

/// Members that stay close to a part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HeldBy {
    /// The rest of its slice.
    Slice,
    /// The rest of its role.
    Role,
}

impl Index {
    /// As the function of that name. A node that was removed is near to nothing.
    pub fn replace(&mut self, gang: &GangShape, members: &[Member], lost: usize) -> Replacement {
        let mut search = Search {
            gang,
            members,
            lost,
            near: self.domains(lost).to_vec(),
            before: Vec::new(),
            index: self,
        };
        let found = search.run();
        search.restore(0);
        found
    }
}

struct Search<'a> {
    index: &'a mut Index,
    gang: &'a GangShape,
    members: &'a [Member],
    lost: usize,
    /// Domains of the lost node.
    near: Vec<String>,
    /// Nodes as they were before each change, in order.
    before: Vec<Node>,
}

/// Nodes of members that have moved.
type Moved = BTreeMap<(u32, u32), usize>;

impl Search<'_> {
    fn run(&mut self) -> Replacement {
        if let Some(node) = self.index.node(self.lost) {
            self.set(&Node {
                ready: false,
                ..node
            });
        }
        let start = self.before.len();
        let mut moved = Moved::new();
        let mut smaller = None;
        for role in self.roles_by_size() {
            let mark = self.before.len();
            if let Some(own) = self.swap(role) {
                moved.extend(own);
                continue;
            }
            self.restore(mark);
            let Some(kept) = self.shrink(role) else {
                self.restore(start);
                return self.restart();
            };
            smaller.get_or_insert_with(BTreeMap::new).insert(role, kept);
        }
        let Some(smaller) = smaller else {
            let member = |((role, rank), node)| Member { role, rank, node };
            return Replacement::Swap(moved.into_iter().map(member).collect());
        };
        let mut members = Vec::new();
        let mut pods = vec![0_u32; self.gang.roles.len()];
        for member in self.members {
            let kept = smaller.get(&(member.role as usize));
            if kept.is_some_and(|kept: &Vec<u32>| kept.binary_search(&member.rank).is_err()) {
                continue;
            }
            let node = moved
                .get(&(member.role, member.rank))
                .unwrap_or(&member.node);
            members.push(Member {
                node: *node,
                ..*member
            });
            pods[member.role as usize] += 1;
        }
        Replacement::Shrink { pods, members }
    }

    /// Roles that lost members, the most bound and largest first.
    fn roles_by_size(&self) -> Vec<usize> {
        let hit = |role: &usize| self.own(*role).any(|member| member.node == self.lost);
        let mut roles: Vec<usize> = (0..self.gang.roles.len()).filter(hit).collect();
        roles.sort_by_key(|&role| {
            let shape = &self.gang.roles[role];
            let scope = Scope::of(self.index.levels(), shape.required.as_deref());
            std::cmp::Reverse((scope, shape.per_pod))
        });
        roles
    }

    fn own(&self, role: usize) -> impl Iterator<Item = &Member> {
        self.members
            .iter()
            .filter(move |it| it.role as usize == role)
    }

    fn set(&mut self, node: &Node) {
        let at = self.index.position(&node.name);
        if let Some(before) = at.and_then(|at| self.index.node(at)) {
            self.before.push(before);
        }
        self.index.set(node);
    }

    fn restore(&mut self, down_to: usize) {
        while self.before.len() > down_to
            && let Some(node) = self.before.pop()
        {
            self.index.set(&node);
        }
    }

    /// Changes the room of a node that counts.
    fn change(&mut self, node: usize, free: impl FnOnce(Resources) -> Option<Resources>) {
        if let Some(node) = self.index.node(node)
            && let Some(free) = free(node.free)
        {
            self.set(&Node { free, ..node });
        }
    }

    /// New nodes for the role's members on the lost one, and for as few others as can be.
    fn swap(&mut self, role: usize) -> Option<Moved> {
        let mut moved = Moved::new();
        for part in self.parts(role)? {
            if self.place(role, &part, &mut moved) {
                continue;
            }
            if part.held_by == HeldBy::Role {
                return None;
            }
            // The whole slice goes elsewhere.
            let slice = self.gang.roles[role].slice.as_ref()?.pods;
            let first = part.ranks[0] / slice * slice;
            let ranks: Vec<u32> = (first..first + slice).collect();
            let inside = |it: &&Member| ranks.contains(&it.rank) && it.node != self.lost;
            let staying: Vec<Member> = self.own(role).filter(inside).copied().collect();
            for member in &staying {
                self.change(member.node, |free| free.checked_add(part.want.per_pod));
            }
            let want = self.want(role, slice)?;
            let whole = Part {
                ranks,
                held_by: HeldBy::Role,
                depth: depth_of(want.required),
                want,
            };
            if !self.place(role, &whole, &mut moved) {
                return None;
            }
            for member in &staying {
                let key = (member.role, member.rank);
                if moved.get(&key) == Some(&member.node) {
                    moved.remove(&key);
                }
            }
        }
        Some(moved)
    }

    fn want(&self, role: usize, pods: u32) -> Option<Want> {
        want(
            self.index.levels(),
            &self.gang.roles[role],
            pods,
            Wishes::Dropped,
        )
        .ok()
    }

    /// Nodes of the members that hold the part, those that have moved where they are now.
    fn holders(&self, role: usize, part: &Part, moved: &Moved) -> Vec<usize> {
        let unit = self.gang.roles[role]
            .slice
            .as_ref()
            .map_or(1, |slice| slice.pods.max(1));
        let others = self.own(role).filter(|it| match part.held_by {
            HeldBy::Slice => it.rank / unit == part.ranks[0] / unit,
            HeldBy::Role => true,
        });
        let apart = others.filter(|it| !part.ranks.contains(&it.rank));
        let place = |it: &Member| *moved.get(&(it.role, it.rank)).unwrap_or(&it.node);
        apart.map(place).filter(|node| *node != self.lost).collect()
    }

    /// What the lost members of the role must be replaced by: each torn slice by itself, and the
    /// rest together.
    fn parts(&self, role: usize) -> Option<Vec<Part>> {
        let lost = self.own(role).filter(|it| it.node == self.lost);
        let mut lost: Vec<u32> = lost.map(|it| it.rank).collect();
        lost.sort_unstable();
        let mut parts = Vec::new();
        let count = |ranks: &[u32]| u32::try_from(ranks.len()).ok();
        let rule = self.want(role, 0)?;
        if rule.slice > 1 {
            let mut whole = Vec::new();
            for ranks in lost.chunk_by(|a, b| a / rule.slice == b / rule.slice) {
                if count(ranks)? == rule.slice {
                    whole.extend_from_slice(ranks);
                    continue;
                }
                parts.push(Part {
                    ranks: ranks.to_vec(),
                    held_by: HeldBy::Slice,
                    depth: depth_of(rule.slice_in),
                    want: Want {
                        pods: count(ranks)?,
                        required: Scope::Pool,
                        slice: 1,
                        slice_in: Scope::Pool,
                        ..rule
                    },
                });
            }
            lost = whole;
        }
        if !lost.is_empty() {
            parts.push(Part {
                held_by: HeldBy::Role,
                depth: depth_of(rule.required),
                want: Want {
                    pods: count(&lost)?,
                    ..rule
                },
                ranks: lost,
            });
        }
        Some(parts)
    }

    /// Finds nodes for a part as near as can be, and takes their room.
    fn place(&mut self, role: usize, part: &Part, moved: &mut Moved) -> bool {
        let Some(picks) = self.nearest(part, &self.holders(role, part, moved)) else {
            return false;
        };
        let tree = self.index.tree();
        let steps = picks.iter().map(|it| step(tree, role, it)).collect();
        let placed = self.index.expand(self.gang, steps);
        for (rank, member) in part.ranks.iter().zip(placed) {
            self.change(member.node, |free| free.checked_sub(part.want.per_pod));
            moved.insert((member.role, *rank), member.node);
        }
        true
    }

    /// Hosts for a part in the domain of its holders, the nearest to the lost node first.
    fn nearest(&self, part: &Part, holders: &[usize]) -> Option<Vec<Pick>> {
        let (tree, levels) = (self.index.tree(), self.index.levels().len());
        let domain = |node: &usize| {
            let names = self.index.domains(*node).get(..part.depth)?;
            self.index.domain_of(names)
        };
        let mut held = holders.iter().map(domain);
        let around = match held.next() {
            Some(first) => {
                let first = first?;
                if held.any(|other| other != Some(first)) {
                    return None;
                }
                Some(first)
            }
            None => None,
        };
        let inside = |ix: DomainIx| pick_in(tree, levels, &part.want, ix);
        for depth in (part.depth..=self.near.len()).rev() {
            let Some(ix) = self.index.domain_of(&self.near[..depth]) else {
                continue;
            };
            let within = around.is_none_or(|around| tree.ancestor(ix, part.depth) == around);
            if within && let Some(picks) = inside(ix) {
                return Some(picks);
            }
        }
        match around {
            Some(around) => inside(around),
            None => pick(tree, levels, &part.want),
        }
    }

    /// Ranks that go on in a smaller role, in order; `None` when it may not be that small.
    fn shrink(&self, role: usize) -> Option<Vec<u32>> {
        let shape: &RoleShape = &self.gang.roles[role];
        let unit = shape.slice.as_ref().map_or(1, |slice| slice.pods.max(1));
        let mut ranks: Vec<u32> = self.own(role).map(|it| it.rank).collect();
        let lost = self.own(role).filter(|it| it.node == self.lost);
        let torn: Vec<u32> = lost.map(|it| it.rank / unit).collect();
        ranks.sort_unstable();
        ranks.retain(|rank| !torn.contains(&(rank / unit)));
        let left = u32::try_from(ranks.len()).ok()?;
        let sizes = (0..=shape.steps()).rev().map(|step| shape.at_step(step));
        let fitting = |size: &u32| *size <= left && size.is_multiple_of(unit);
        let size = sizes.into_iter().find(fitting)?;
        ranks.truncate(size as usize);
        Some(ranks)
    }

    /// A place for all, with what the members hold given back.
    fn restart(&mut self) -> Replacement {
        for member in self.members {
            if member.node != self.lost {
                let per_pod = self.gang.roles[member.role as usize].per_pod;
                self.change(member.node, |free| free.checked_add(per_pod));
            }
        }
        let mut bounded = self.gang.clone();
        for (index, role) in bounded.roles.iter_mut().enumerate() {
            let pods = self.own(index).count();
            role.max = u32::try_from(pods).unwrap_or(u32::MAX);
            role.min = role.min.min(role.max);
        }
        let found = largest(&bounded, |pods| self.index.find(self.gang, pods));
        Replacement::Restart(match found {
            Some((_, members)) => Ok(members),
            None => self.index.place(self.gang, &bounded.least()),
        })
    }
}

/// How many domain names a scope takes. One host is never held to by others.
const fn depth_of(scope: Scope) -> usize {
    match scope {
        Scope::Pool | Scope::Host => 0,
        Scope::Domain(depth) => depth,
    }
}
