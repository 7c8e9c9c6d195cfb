//! The nodes of one pool, kept ready for placement while they change.
//!
//! Owns names: of nodes, and of domains. What placement runs on has none (see `tree`). A change of
//! one node costs a few map lookups and, per level, a few additions; to find a place costs what
//! the domains cost that are looked at, not the nodes. Answers as if it were built anew each time.

use std::collections::BTreeMap;

use crate::diagnosis::{Diagnosis, diagnose};
use crate::model::{GangShape, Shape};
use crate::nodes::{Member, Node, PlaceFailure};
use crate::packing::{Step, pack};
use crate::shapes::canonical;
use crate::tree::{DomainIx, KindIx, Tree};
use crate::typical::Typical;

/// Distance between the labels of domains that come one after the other: 32 more fit between two
/// before all are labelled anew.
const GAP: u64 = 1 << 32;

/// One node, and where it counts.
#[derive(Clone, Debug, Default)]
struct Entry {
    name: String,
    /// `None` when it takes no new pods, or is gone.
    seat: Option<(DomainIx, KindIx)>,
    /// Its domains while it has no seat.
    away: Vec<String>,
}

/// The nodes of one pool.
#[derive(Clone, Debug)]
pub struct Index {
    levels: Vec<String>,
    tree: Tree,
    nodes: Vec<Entry>,
    spare: Vec<usize>,
    by_name: BTreeMap<String, usize>,
    /// Per level, its domains by their names from the widest inward.
    paths: Vec<BTreeMap<Vec<String>, DomainIx>>,
    /// Names of each domain of the tree.
    path_of: Vec<Vec<String>>,
    /// Alike nodes of one domain, by name.
    groups: BTreeMap<(DomainIx, KindIx), Vec<usize>>,
}

impl Index {
    /// A pool with these levels, from the widest inward, and no nodes.
    #[must_use]
    pub fn new(levels: &[String]) -> Self {
        Self {
            levels: levels.to_vec(),
            tree: Tree::new(levels.len(), Typical::default()),
            nodes: Vec::new(),
            spare: Vec::new(),
            by_name: BTreeMap::new(),
            paths: vec![BTreeMap::new(); levels.len()],
            path_of: vec![Vec::new()],
            groups: BTreeMap::new(),
        }
    }

    /// A pool with these nodes, which members name by their positions here until one is removed.
    /// Names are taken as unique.
    #[must_use]
    pub fn of(levels: &[String], nodes: &[Node]) -> Self {
        let mut index = Self::new(levels);
        for node in nodes {
            index.set(node);
        }
        index
    }

    /// Measures fragmentation by these shapes from here on.
    pub fn set_typical(&mut self, typical: Typical) {
        self.tree.set_typical(typical);
    }

    /// Name of a node, by its position.
    #[must_use]
    pub fn name(&self, node: usize) -> Option<&str> {
        self.nodes.get(node).map(|entry| entry.name.as_str())
    }

    /// Takes a node as it is. Names of domains beyond the levels are ignored; a node that has
    /// fewer is in no domain of the others.
    pub fn set(&mut self, node: &Node) {
        let at = match self.by_name.get(&node.name) {
            Some(at) => *at,
            None => self.add_name(&node.name),
        };
        let seat = node.ready.then(|| {
            let domain = self.domain(at, &node.domains);
            (domain, self.tree.kind_of(node.allocatable, node.free))
        });
        self.nodes[at].away.clear();
        if seat.is_none() {
            self.nodes[at].away.extend_from_slice(&node.domains);
        }
        if seat == self.nodes[at].seat {
            return;
        }
        let before = self.nodes[at].seat;
        if let Some((domain, kind)) = seat {
            self.tree.add_hosts(domain, kind, 1);
            let place = self.place_in_group(domain, kind, &node.name);
            self.groups
                .entry((domain, kind))
                .or_default()
                .insert(place, at);
        }
        self.leave(at, before);
        self.nodes[at].seat = seat;
    }

    /// Forgets a node.
    pub fn remove(&mut self, name: &str) {
        if let Some(at) = self.by_name.remove(name) {
            let seat = self.nodes[at].seat.take();
            self.leave(at, seat);
            self.nodes[at] = Entry::default();
            self.spare.push(at);
        }
    }

    fn add_name(&mut self, name: &str) -> usize {
        let entry = Entry {
            name: name.to_owned(),
            ..Entry::default()
        };
        let at = if let Some(at) = self.spare.pop() {
            self.nodes[at] = entry;
            at
        } else {
            self.nodes.push(entry);
            self.nodes.len() - 1
        };
        self.by_name.insert(name.to_owned(), at);
        at
    }

    fn place_in_group(&self, domain: DomainIx, kind: KindIx, name: &str) -> usize {
        self.groups.get(&(domain, kind)).map_or(0, |group| {
            group.partition_point(|it| self.nodes[*it].name.as_str() < name)
        })
    }

    /// Takes a node out of where it counted.
    fn leave(&mut self, at: usize, seat: Option<(DomainIx, KindIx)>) {
        let Some((domain, kind)) = seat else {
            return;
        };
        let place = self.place_in_group(domain, kind, &self.nodes[at].name);
        if let Some(group) = self.groups.get_mut(&(domain, kind)) {
            group.remove(place);
            if group.is_empty() {
                self.groups.remove(&(domain, kind));
            }
        }
        self.tree.remove_hosts(domain, kind, 1);
        self.prune(domain);
    }

    /// Takes away what has become empty.
    fn prune(&mut self, domain: DomainIx) {
        let mut at = Some(domain);
        while let Some(ix) = at {
            let (parent, depth) = (self.tree.domain(ix).parent, self.tree.domain(ix).depth);
            if !self.tree.remove_domain(ix) {
                return;
            }
            self.paths[depth - 1].remove(&self.path_of[ix.index()]);
            at = parent;
        }
    }

    /// The innermost domain of a node, made if it is not there.
    fn domain(&mut self, node: usize, names: &[String]) -> DomainIx {
        let names = &names[..names.len().min(self.levels.len())];
        if let Some((domain, _)) = self.nodes[node].seat
            && self.path_of[domain.index()] == names
        {
            return domain;
        }
        let mut at = DomainIx::POOL;
        for depth in 1..=self.levels.len() {
            let path = &names[..depth.min(names.len())];
            at = match self.paths[depth - 1].get(path) {
                Some(ix) => *ix,
                None => self.add_domain(at, depth, path, depth <= names.len()),
            };
        }
        at
    }

    fn add_domain(
        &mut self,
        parent: DomainIx,
        depth: usize,
        path: &[String],
        named: bool,
    ) -> DomainIx {
        let label = self.free_label(depth, path).unwrap_or_else(|| {
            for (ix, label) in self.paths[depth - 1].values().zip(1..) {
                self.tree.relabel(*ix, label * GAP);
            }
            self.free_label(depth, path)
                .expect("there is a gap between fresh labels")
        });
        let ix = self.tree.add_domain(parent, label, named);
        if ix.index() == self.path_of.len() {
            self.path_of.push(path.to_vec());
        } else {
            self.path_of[ix.index()] = path.to_vec();
        }
        self.paths[depth - 1].insert(path.to_vec(), ix);
        ix
    }

    /// A label between those of the neighbours by name; `None` when there is none.
    fn free_label(&self, depth: usize, path: &[String]) -> Option<u64> {
        let domains = &self.paths[depth - 1];
        let label = |it: (&Vec<String>, &DomainIx)| self.tree.domain(*it.1).label;
        let before = domains.range(..path.to_vec()).next_back().map_or(0, label);
        let after = domains.range(path.to_vec()..).next().map(label);
        match after {
            None => before.checked_add(GAP),
            Some(after) => {
                let middle = before.midpoint(after);
                (middle > before && middle < after).then_some(middle)
            }
        }
    }

    /// Nodes for `pods` pods per role of `gang`: all of them or none. Members come by role and
    /// rank; their nodes are positions, good until the next change.
    pub fn find(&mut self, gang: &GangShape, pods: &[u32]) -> Option<Vec<Member>> {
        let steps = pack(&mut self.tree, &self.levels, gang, pods)?;
        Some(self.expand(gang, steps))
    }

    /// As `find`, with the reason where it finds nothing.
    ///
    /// # Errors
    ///
    /// The gang does not fit.
    pub fn place(&mut self, gang: &GangShape, pods: &[u32]) -> Result<Vec<Member>, PlaceFailure> {
        self.find(gang, pods).ok_or_else(|| {
            let Diagnosis {
                reason,
                amounts,
                message,
            } = diagnose(&self.levels, &self.shapes(), gang, pods);
            PlaceFailure {
                reason,
                message,
                amounts,
            }
        })
    }

    /// The nodes that take pods as shapes, in canonical form.
    #[must_use]
    pub fn shapes(&self) -> Vec<Shape> {
        let shape = |(&(domain, kind), group): (&(DomainIx, KindIx), &Vec<usize>)| {
            let kind = self.tree.kind(kind);
            Shape {
                domains: self.path_of[domain.index()].clone(),
                allocatable: kind.allocatable,
                free: kind.free,
                hosts: u32::try_from(group.len()).unwrap_or(u32::MAX),
            }
        };
        canonical(&self.groups.iter().map(shape).collect::<Vec<_>>())
    }

    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// A node as it counts; `None` when it takes no new pods, or is gone.
    pub(super) fn node(&self, at: usize) -> Option<Node> {
        let entry = self.nodes.get(at)?;
        let (domain, kind) = entry.seat?;
        let kind = self.tree.kind(kind);
        Some(Node {
            name: entry.name.clone(),
            domains: self.path_of[domain.index()].clone(),
            allocatable: kind.allocatable,
            free: kind.free,
            ready: true,
        })
    }

    /// Names of a node's domains.
    pub(super) fn domains(&self, at: usize) -> &[String] {
        let entry = self.nodes.get(at);
        let seat = entry.and_then(|entry| entry.seat);
        match (seat, entry) {
            (Some((domain, _)), _) => &self.path_of[domain.index()],
            (None, Some(entry)) => &entry.away,
            (None, None) => &[],
        }
    }

    /// The domain of these names, the innermost if all are given; the pool for none.
    pub(super) fn domain_of(&self, names: &[String]) -> Option<DomainIx> {
        if names.is_empty() {
            return Some(DomainIx::POOL);
        }
        self.paths.get(names.len() - 1)?.get(names).copied()
    }

    pub(super) const fn tree(&self) -> &Tree {
        &self.tree
    }

    pub(super) fn levels(&self) -> &[String] {
        &self.levels
    }

    /// A node for each host of the steps. A node that was used before is used again before one
    /// that looks like it.
    pub(super) fn expand(&self, gang: &GangShape, steps: Vec<Step>) -> Vec<Member> {
        let mut used: BTreeMap<(DomainIx, KindIx), usize> = BTreeMap::new();
        let mut again: BTreeMap<(DomainIx, _, _), Vec<usize>> = BTreeMap::new();
        let least = gang.roles.iter().map(|role| role.per_pod.gpus).min();
        let mut chosen: Vec<(u32, u64, u32, Vec<usize>)> = Vec::with_capacity(steps.len());
        for step in steps {
            let mut hosts = Vec::with_capacity(step.hosts as usize);
            if let Some(nodes) = again.get_mut(&(step.domain, step.allocatable, step.free)) {
                let rest = nodes.len().saturating_sub(step.hosts as usize);
                hosts = nodes.split_off(rest);
            }
            let kind = self.tree.find_kind(step.allocatable, step.free);
            if let Some(kind) = kind
                && let Some(group) = self.groups.get(&(step.domain, kind))
            {
                let from = used.entry((step.domain, kind)).or_default();
                let fresh = step.hosts as usize - hosts.len();
                hosts.extend(group.iter().skip(*from).take(fresh));
                *from += fresh;
            }
            let left = step.left(gang.roles[step.role as usize].per_pod);
            if gang.roles.len() > 1 && Some(left.gpus) >= least {
                let touched = again.entry((step.domain, step.allocatable, left));
                touched.or_default().extend(&hosts);
            }
            let label = self.tree.domain(step.domain).label;
            chosen.push((step.role, label, step.pods_per_host, hosts));
        }
        chosen.sort_by_key(|it| (it.0, it.1));
        self.rank(&chosen)
    }

    /// Ranks in the order of domains, and inside a domain of nodes by name.
    fn rank(&self, chosen: &[(u32, u64, u32, Vec<usize>)]) -> Vec<Member> {
        let mut members: Vec<Member> = Vec::new();
        let mut seats: Vec<(usize, u32)> = Vec::new();
        for same in chosen.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            seats.clear();
            for (_, _, pods, hosts) in same {
                seats.extend(hosts.iter().map(|host| (*host, *pods)));
            }
            if same.len() > 1 {
                seats.sort_by(|a, b| self.nodes[a.0].name.cmp(&self.nodes[b.0].name));
            }
            let role = same[0].0;
            let last = members.last().filter(|last| last.role == role);
            let mut rank = last.map_or(0, |last| last.rank + 1);
            for &(node, pods) in &seats {
                for _ in 0..pods {
                    members.push(Member { role, rank, node });
                    rank += 1;
                }
            }
        }
        members
    }
}
