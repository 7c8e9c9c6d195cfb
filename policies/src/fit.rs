//! Fitting a gang on shapes: all of it or nothing, with the least fragmentation.
//!
//! Owns the step from a pool's shapes to the tree that placement runs on, and back to takes: for
//! the hub, which sees shapes, as `nodes` does it for the agent. Never chooses hosts itself (see
//! `pick` and `packing`).

use std::borrow::Cow;
use std::collections::BTreeMap;

use meridian_api::units::{MilliGpus, Resources};

use crate::model::{GangShape, RoleShape, Shape, Take};
use crate::packing::{Step, pack};
use crate::pick::{Scope, Want, most};
pub use crate::rules::HOST;
use crate::rules::{Wishes, want};
use crate::shapes::RoomChange;
use crate::tree::{DomainIx, Tree};
use crate::typical::Typical;

/// Where a gang would go, and how well it fits there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Hosts used, in the order in which they were taken.
    pub takes: Vec<Take>,
    /// Preferred levels that it does not keep.
    pub preferences_missed: u32,
    /// GPUs left free on the hosts that it touches.
    pub left_on_hosts: MilliGpus,
}

/// Shapes as a tree.
#[derive(Clone)]
pub(crate) struct Ground<'a> {
    pub(crate) tree: Tree,
    /// Domain names of each innermost domain of the tree.
    names: Vec<Cow<'a, [String]>>,
    /// The innermost domains, by name.
    inner: Vec<DomainIx>,
}

impl<'a> Ground<'a> {
    /// Rows may come in any order. One that names fewer domains than there are levels is in no
    /// domain of the others.
    pub(crate) fn new(levels: &[String], shapes: &'a [Shape]) -> Self {
        Self::with(levels, shapes, |row| row.free)
    }

    /// The same, as if each host had as much room as `free` says.
    pub(crate) fn with(
        levels: &[String],
        shapes: &'a [Shape],
        free: impl Fn(&Shape) -> Resources,
    ) -> Self {
        let mut rows: Vec<&Shape> = shapes.iter().filter(|row| row.hosts > 0).collect();
        rows.sort_unstable();
        let named = rows.iter().map(|row| row.domains.len()).max();
        let depth = named.unwrap_or(0).max(levels.len());
        let mut tree = Tree::new(depth, Typical::default());
        let mut names: Vec<Cow<'a, [String]>> = vec![Cow::Borrowed(&[])];
        let mut path = vec![DomainIx::POOL];
        let mut inner = Vec::new();
        let mut last: Option<&[String]> = None;
        for (row, label) in rows.into_iter().zip(1_u64..) {
            let domains = row.domains.as_slice();
            let shared = last.map_or(0, |last| shared(last, domains, depth));
            path.truncate(shared + 1);
            for at in shared..depth {
                let ix = tree.add_domain(path[at], label, at < domains.len());
                path.push(ix);
                names.push(Cow::Borrowed(domains));
            }
            if last != Some(domains) {
                inner.push(path[depth]);
            }
            last = Some(domains);
            let kind = tree.kind_of(row.allocatable, free(row));
            tree.add_hosts(path[depth], kind, row.hosts);
        }
        Self { tree, names, inner }
    }

    /// Equal for grounds that look the same, names apart.
    pub(crate) fn looks(&self) -> u64 {
        self.tree.domain(DomainIx::POOL).looks
    }

    /// The same, for longer than the rows live.
    pub(crate) fn into_owned(self) -> Ground<'static> {
        let names = self.names.into_iter();
        Ground {
            names: names.map(|it| Cow::Owned(it.into_owned())).collect(),
            tree: self.tree,
            inner: self.inner,
        }
    }

    /// Takes the room of `takes`, which were found on it; `gang` tells what a pod of each role
    /// uses. False, with the ground in no order, when they were not.
    #[must_use]
    pub(crate) fn apply(&mut self, gang: &GangShape, takes: &[Take]) -> bool {
        takes
            .iter()
            .all(|take| self.apply_one(gang, take).is_some())
    }

    fn apply_one(&mut self, gang: &GangShape, take: &Take) -> Option<()> {
        self.shift(&RoomChange::of(gang, take)?)
    }

    /// Gives hosts other room; `None`, with the ground in no order, when they are not there. Hosts
    /// that come or go may change how deep the tree is: then it is made anew.
    pub(crate) fn shift(&mut self, change: &RoomChange) -> Option<()> {
        let (before, after) = (change.before?, change.after?);
        let domain = self.innermost(&change.domains)?;
        let from = self.tree.find_kind(change.allocatable, before)?;
        let there = self.tree.domain(domain).rows.iter();
        let mut there = there.filter(|row| row.kind == from && row.hosts >= change.hosts);
        there.next()?;
        let to = self.tree.kind_of(change.allocatable, after);
        if to != from {
            self.tree.add_hosts(domain, to, change.hosts);
            self.tree.remove_hosts(domain, from, change.hosts);
        }
        Some(())
    }

    /// The innermost domain of that name.
    fn innermost(&self, domains: &[String]) -> Option<DomainIx> {
        let name = |ix: &DomainIx| &*self.names[ix.index()];
        let found = self.inner.binary_search_by(|ix| name(ix).cmp(domains));
        found.ok().map(|at| self.inner[at])
    }

    fn take(&self, step: &Step) -> Take {
        Take {
            role: step.role,
            domains: self.names[step.domain.index()].to_vec(),
            allocatable: step.allocatable,
            free: step.free,
            hosts: step.hosts,
            pods_per_host: step.pods_per_host,
        }
    }
}

/// How many levels two hosts have in common; `depth` for the same names.
fn shared(one: &[String], other: &[String], depth: usize) -> usize {
    if one == other {
        return depth;
    }
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}

/// The best place for `pods` pods per role of `gang` on `shapes`, or `None` when it does not fit
/// as a whole. Does not depend on the order of `shapes`, nor on names but between what looks the
/// same. A preferred level is kept if the whole gang fits that way; else it is spread over as few
/// of its domains as can be.
#[must_use]
pub fn fit(levels: &[String], shapes: &[Shape], gang: &GangShape, pods: &[u32]) -> Option<Fit> {
    fit_on(&mut Ground::new(levels, shapes), levels, gang, pods)
}

/// The same on a ground that is there; it is as before at the end.
pub(crate) fn fit_on(
    ground: &mut Ground<'_>,
    levels: &[String],
    gang: &GangShape,
    pods: &[u32],
) -> Option<Fit> {
    let steps = pack(&mut ground.tree, levels, gang, pods)?;
    let missed = gang.roles.iter().zip(0_u32..);
    let missed = missed.filter(|(role, index)| {
        let own = steps.iter().filter(|step| step.role == *index);
        misses_preference(&ground.tree, levels, role, &own.collect::<Vec<_>>())
    });
    Some(Fit {
        preferences_missed: u32::try_from(missed.count()).unwrap_or(u32::MAX),
        left_on_hosts: left_on_hosts(gang, &steps),
        takes: steps.iter().map(|step| ground.take(step)).collect(),
    })
}

/// GPUs left on the hosts of all steps. A host that was touched before is used again before one
/// that looks like it.
fn left_on_hosts(gang: &GangShape, steps: &[Step]) -> MilliGpus {
    let mut touched: BTreeMap<(DomainIx, Resources, Resources), u32> = BTreeMap::new();
    for step in steps {
        let again = touched
            .entry((step.domain, step.allocatable, step.free))
            .or_default();
        *again = again.saturating_sub(step.hosts);
        let left = step.left(gang.roles[step.role as usize].per_pod);
        *touched
            .entry((step.domain, step.allocatable, left))
            .or_default() += step.hosts;
    }
    let all = touched
        .into_iter()
        .map(|((_, _, free), hosts)| free.gpus.0.saturating_mul(u64::from(hosts)));
    MilliGpus(all.fold(0, u64::saturating_add))
}

fn misses_preference(tree: &Tree, levels: &[String], role: &RoleShape, own: &[&Step]) -> bool {
    let (Some(level), Some(first)) = (role.preferred.as_deref(), own.first()) else {
        return false;
    };
    match Scope::of(levels, Some(level)) {
        None => true,
        Some(Scope::Pool) => false,
        Some(Scope::Domain(depth)) => {
            let domain = |step: &Step| tree.ancestor(step.domain, depth);
            let at = domain(first);
            !tree.domain(at).named || own.iter().any(|step| domain(step) != at)
        }
        Some(Scope::Host) => own.iter().map(|step| u64::from(step.hosts)).sum::<u64>() > 1,
    }
}

/// The most pods of `per_pod` that fit on `shapes` in one domain of `level`, or, without one,
/// anywhere: the largest gang that could start there.
#[must_use]
pub fn largest_gang(
    levels: &[String],
    shapes: &[Shape],
    per_pod: Resources,
    level: Option<&str>,
) -> u32 {
    let role = RoleShape {
        name: String::new(),
        per_pod,
        min: 1,
        max: u32::MAX,
        step: 1,
        required: level.map(ToOwned::to_owned),
        preferred: None,
        slice: None,
    };
    most_pods(levels, shapes, &role, u32::MAX)
}

/// Pods of `role` that fit on `shapes` alone, in the one place of its required level that holds
/// the most; at most `pods`, and only whole slices. For explanations.
pub(crate) fn most_pods(levels: &[String], shapes: &[Shape], role: &RoleShape, pods: u32) -> u32 {
    most_pods_on(&Ground::new(levels, shapes).tree, levels, role, pods)
}

/// The same on a tree that is there.
pub(crate) fn most_pods_on(tree: &Tree, levels: &[String], role: &RoleShape, pods: u32) -> u32 {
    most_pods_of(tree, levels, (role, role.per_pod), pods)
}

/// The same if its pods asked for `per_pod` each.
pub(crate) fn most_pods_of(
    tree: &Tree,
    levels: &[String],
    (role, per_pod): (&RoleShape, Resources),
    pods: u32,
) -> u32 {
    let Ok(want) = want(levels, role, pods, Wishes::Dropped) else {
        return 0;
    };
    let want = Want { per_pod, ..want };
    if want.required > Scope::Pool || want.slice > 1 {
        return most(tree, levels.len(), &want);
    }
    let kinds = tree.kinds().iter().filter(|kind| kind.hosts > 0);
    let all = kinds.fold(0_u64, |sum, kind| {
        let each = kind.free.times(per_pod).min(u64::from(pods));
        sum.saturating_add(each.saturating_mul(u64::from(kind.hosts)))
    });
    u32::try_from(all).unwrap_or(u32::MAX).min(pods)
}

/// True when `pods` pods per role of `gang` fit on the ground.
pub(crate) fn fits_on(
    ground: &mut Ground<'_>,
    levels: &[String],
    gang: &GangShape,
    pods: &[u32],
) -> bool {
    fits_by_kinds(&ground.tree, gang, pods)
        .unwrap_or_else(|| pack(&mut ground.tree, levels, gang, pods).is_some())
}

/// Whether `pods` pods per role of `gang` fit, where the kinds of hosts alone tell: one role that
/// may stand anywhere fits if and only if the hosts hold its pods. `None` where more must be
/// looked at.
pub(crate) fn fits_by_kinds(tree: &Tree, gang: &GangShape, pods: &[u32]) -> Option<bool> {
    let kinds = tree.kinds().iter().map(|kind| (kind.free, kind.hosts));
    fits_by_hosts(kinds, gang, pods)
}

/// The same of hosts by their room.
pub(crate) fn fits_by_hosts(
    mut hosts: impl Iterator<Item = (Resources, u32)>,
    gang: &GangShape,
    pods: &[u32],
) -> Option<bool> {
    let ([role], [pods]) = (gang.roles.as_slice(), pods) else {
        return None;
    };
    if role.required.is_some() || role.slice.is_some() {
        return None;
    }
    let mut left = u64::from(*pods);
    let holds_all = hosts.any(|(free, hosts)| {
        let each = if hosts > 0 {
            free.times(role.per_pod)
        } else {
            0
        };
        left = left.saturating_sub(each.saturating_mul(u64::from(hosts)));
        left == 0
    });
    Some(holds_all || left == 0)
}
