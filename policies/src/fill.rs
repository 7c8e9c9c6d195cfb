//! Hosts inside a domain that has room: which kinds of hosts, and then where they are.
//!
//! Owns the order among hosts: typical pods lose least, hosts are filled up, the capable ones are
//! spared. The domain was chosen by `pick`.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use meridian_api::units::{MilliGpus, Resources};

use crate::pick::{Pick, Picker, Scope, Want};
use crate::tree::{DomainIx, KindIx, Row, Tree};

/// Hosts of one kind that were decided on, before it is known where they are.
struct Taken {
    kind: KindIx,
    hosts: u32,
    pods_per_host: u32,
}

/// Hosts of one kind in one domain, the tightest first: its free GPUs, looks and label, where its
/// hosts stand in the list, and how many they are.
type Group = Reverse<(u64, u64, u64, usize, usize, u32)>;

impl Picker<'_> {
    /// Calls `with` for each innermost domain of `domain` that may hold pods, by label.
    fn innermost(&self, domain: DomainIx, with: &mut impl FnMut(DomainIx, &[Row])) {
        if self.bound(domain) == 0 {
            return;
        }
        let entry = self.tree.domain(domain);
        if entry.depth == self.tree.depth() {
            with(domain, &entry.rows);
        }
        for child in &entry.children {
            self.innermost(*child, with);
        }
    }

    /// Kinds of hosts in the domain that hold pods, and how many hosts of each.
    pub(crate) fn kinds_in(&mut self, domain: DomainIx) -> Vec<(KindIx, u32)> {
        let tree = self.tree;
        let mut kinds: Vec<(KindIx, u32)> = Vec::new();
        if domain == DomainIx::POOL {
            let all = (0..).map(KindIx).zip(tree.kinds());
            kinds.extend(all.map(|(ix, kind)| (ix, kind.hosts)));
        } else {
            self.innermost(domain, &mut |_, rows| {
                kinds.extend(rows.iter().map(|row| (row.kind, row.hosts)));
            });
            if tree.domain(domain).depth < tree.depth() {
                kinds.sort_unstable();
                kinds.dedup_by(|next, first| {
                    let same = next.0 == first.0;
                    first.1 += if same { next.1 } else { 0 };
                    same
                });
            }
        }
        kinds.retain(|&(kind, hosts)| hosts > 0 && self.capacity(kind) > 0);
        kinds
    }

    /// Fills hosts of the domain, which hold all `pods`: first those where typical pods lose
    /// least, then those with the fewest GPUs left, then those that hold the most, then the least
    /// capable.
    pub(crate) fn fill(
        &mut self,
        domain: DomainIx,
        pods: u32,
        kinds: Vec<(KindIx, u32)>,
        picks: &mut Vec<Pick>,
    ) {
        let taken = self.choose(pods, kinds);
        if self.tree.domain(domain).depth == self.tree.depth() {
            let pick = |it: Taken| Pick {
                domain,
                kind: it.kind,
                hosts: it.hosts,
                pods_per_host: it.pods_per_host,
            };
            picks.extend(taken.into_iter().map(pick));
        } else {
            self.locate(domain, &taken, picks);
        }
    }

    /// Hosts of these kinds for all `pods`, which they hold, wherever they are.
    fn choose(&mut self, pods: u32, mut kinds: Vec<(KindIx, u32)>) -> Vec<Taken> {
        let mut missing = pods;
        let mut taken = Vec::new();
        // Each turn orders the kinds for what is still missing and uses them until a host would
        // hold more than that. After the first turn `missing` is below what one host holds, so
        // turns are few.
        while missing > 0 {
            let turn = missing;
            kinds.retain(|kind| kind.1 > 0);
            let mut order: Vec<(Worth<'_>, usize)> = Vec::with_capacity(kinds.len());
            for (place, &(kind, _)) in kinds.iter().enumerate() {
                let each = self.capacity(kind).min(turn);
                order.push((Worth::new(self.tree, kind, self.want.per_pod, each), place));
            }
            order.sort_unstable_by(|a, b| a.0.order(&b.0));
            for (worth, place) in order {
                if worth.each > missing || missing == 0 {
                    break;
                }
                let (kind, hosts) = &mut kinds[place];
                let used = (missing / worth.each).min(*hosts);
                *hosts -= used;
                missing -= used * worth.each;
                taken.push(Taken {
                    kind: *kind,
                    hosts: used,
                    pods_per_host: worth.each,
                });
            }
            assert!(missing < turn, "the domain has the room");
        }
        taken
    }

    /// Finds the hosts that were decided on, in the tightest domains that have them.
    fn locate(&self, domain: DomainIx, taken: &[Taken], picks: &mut Vec<Pick>) {
        let mut used: Vec<(KindIx, Vec<(DomainIx, u32)>)> = Vec::new();
        let mut place = vec![u32::MAX; self.tree.kinds().len()];
        for it in taken {
            if place[it.kind.index()] == u32::MAX {
                place[it.kind.index()] = u32::try_from(used.len()).expect("as many as kinds");
                used.push((it.kind, Vec::new()));
            }
        }
        self.innermost(domain, &mut |ix, rows| {
            for row in rows {
                if let Some((_, hosts)) = used.get_mut(place[row.kind.index()] as usize) {
                    hosts.push((ix, row.hosts));
                }
            }
        });
        let depth = self.tree.domain(domain).depth;
        for it in taken {
            let (_, hosts) = &mut used[place[it.kind.index()] as usize];
            let mut cut = Vec::new();
            self.cut(depth, hosts, it.hosts, &mut cut);
            for &(at, count) in &cut {
                picks.push(Pick {
                    domain: hosts[at].0,
                    kind: it.kind,
                    hosts: count,
                    pods_per_host: it.pods_per_host,
                });
                hosts[at].1 -= count;
            }
            hosts.retain(|it| it.1 > 0);
        }
    }

    /// `wanted` of the hosts, which stand by label in domains below one at `depth`: the tightest
    /// domains first, level by level. As places in `hosts` and counts.
    fn cut(
        &self,
        depth: usize,
        hosts: &[(DomainIx, u32)],
        wanted: u32,
        out: &mut Vec<(usize, u32)>,
    ) {
        let (mut from, mut to, mut depth, mut wanted) = (0, hosts.len(), depth, wanted);
        while wanted > 0 && depth < self.tree.depth() && from < to {
            depth += 1;
            // Each group: hosts of one domain at this depth.
            let mut groups: Vec<Group> = Vec::new();
            let mut at = from;
            while at < to {
                let ancestor = self.tree.ancestor(hosts[at].0, depth);
                let (start, mut sum) = (at, 0_u32);
                while at < to && self.tree.ancestor(hosts[at].0, depth) == ancestor {
                    sum += hosts[at].1;
                    at += 1;
                }
                let it = self.tree.domain(ancestor);
                let free = self.tree.free(ancestor);
                groups.push(Reverse((free, it.looks, it.label, start, at, sum)));
            }
            let mut heap = BinaryHeap::from(groups);
            (from, to) = (0, 0);
            while wanted > 0
                && let Some(Reverse((.., start, end, sum))) = heap.pop()
            {
                if sum > wanted {
                    (from, to) = (start, end);
                    break;
                }
                out.extend((start..end).map(|at| (at, hosts[at].1)));
                wanted -= sum;
            }
        }
        if wanted > 0 && from < to {
            out.push((from, wanted));
        }
    }
}

/// GPUs left on the hosts, in thousandths, that `pick` chooses for a role of so many pods that may
/// stand anywhere and likes no place better; `None` when it does not fit. Where they are does not
/// matter to that, so only kinds of hosts are looked at.
pub(crate) fn left_anywhere(
    tree: &Tree,
    levels: usize,
    per_pod: Resources,
    pods: u32,
) -> Option<MilliGpus> {
    if pods == 1 {
        let kinds = (0..).map(KindIx).zip(tree.kinds());
        let kinds = kinds.filter(|(_, kind)| kind.hosts > 0 && kind.free.covers(per_pod));
        let worths = kinds.map(|(ix, _)| Worth::new(tree, ix, per_pod, 1));
        return worths.min_by(Worth::order).map(|best| MilliGpus(best.left));
    }
    let want = Want {
        per_pod,
        pods,
        required: Scope::Pool,
        preferred: Scope::Pool,
        slice: 1,
        slice_in: Scope::Pool,
    };
    let mut picker = Picker::new(tree, levels, &want);
    let kinds = picker.kinds_in(DomainIx::POOL);
    let held = kinds.iter().fold(0_u64, |sum, (kind, hosts)| {
        sum + u64::from(picker.capacity(*kind)) * u64::from(*hosts)
    });
    if held < u64::from(pods) {
        return None;
    }
    let left = picker.choose(pods, kinds).into_iter().map(|it| {
        let left = minus(tree.kind(it.kind).free, per_pod, it.pods_per_host);
        left.gpus.0.saturating_mul(u64::from(it.hosts))
    });
    Some(MilliGpus(left.fold(0, u64::saturating_add)))
}

/// What is left of `free` with so many pods there.
pub(crate) fn minus(free: Resources, per_pod: Resources, pods: u32) -> Resources {
    let used = per_pod.checked_mul(u64::from(pods));
    used.and_then(|used| free.checked_sub(used))
        .expect("a host holds no more than its capacity")
}

/// How good it is to put `each` pods on a host of one kind.
struct Worth<'a> {
    growth: i128,
    left: u64,
    each: u32,
    size: &'a Resources,
    free: &'a Resources,
}

impl<'a> Worth<'a> {
    fn new(tree: &'a Tree, kind: KindIx, per_pod: Resources, each: u32) -> Self {
        let kind = tree.kind(kind);
        let left = minus(kind.free, per_pod, each);
        let growth = i128::from(tree.typical().unusable(left)) - i128::from(kind.unusable);
        Self {
            growth,
            left: left.gpus.0,
            each,
            size: &kind.allocatable,
            free: &kind.free,
        }
    }

    /// The better one is less. Growth counts per pod, without dividing.
    fn order(&self, other: &Self) -> Ordering {
        let mine = self.growth * i128::from(other.each);
        let theirs = other.growth * i128::from(self.each);
        let rest = |it: &Self| (it.left, Reverse(it.each), *it.size, *it.free);
        mine.cmp(&theirs).then_with(|| rest(self).cmp(&rest(other)))
    }
}
