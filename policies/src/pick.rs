//! Hosts for one role: the least fragmenting ones in the tightest domain that keeps its levels.
//!
//! Owns the choice, and with it what "fits" means for one role: it is exact. Knows no names: what
//! looks the same is told apart by labels only. Never changes the tree.
//!
//! A domain is looked into only when a bound says that it may hold what is asked; the bound counts
//! its hosts by free GPUs, so it is a dot product of seventeen numbers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use meridian_api::units::Resources;

use crate::fill::minus;
use crate::tree::{CARDS, DomainIx, KindIx, Tree};

/// Domains that hold a role are compared in full up to this many, the tightest first. Beyond,
/// hosts are left over in domains that are emptier anyway; and so a choice among the thousands of
/// racks of a large pool stays within its tens of microseconds.
const COMPARED: usize = 32;

/// How close together the pods of a role must be, from the loosest inward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// Anywhere in the pool.
    Pool,
    /// In one domain, which is named by this many domain names from the widest inward.
    Domain(usize),
    /// On one host.
    Host,
}

impl Scope {
    /// The scope right around this one, in a pool with `levels` levels.
    const fn wider(self, levels: usize) -> Self {
        match self {
            Self::Host if levels > 0 => Self::Domain(levels),
            Self::Domain(depth) if depth > 1 => Self::Domain(depth - 1),
            Self::Host | Self::Domain(_) | Self::Pool => Self::Pool,
        }
    }
}

/// What one role asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub(crate) per_pod: Resources,
    pub(crate) pods: u32,
    /// Must hold all pods.
    pub(crate) required: Scope,
    /// Should hold all pods; else as few of these as can be do.
    pub(crate) preferred: Scope,
    /// Pods that go together, at least 1; divides `pods`.
    pub(crate) slice: u32,
    /// Must hold each slice; not wider than `required`.
    pub(crate) slice_in: Scope,
}

/// Hosts of one kind in one domain, and how many pods go on each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    pub(crate) domain: DomainIx,
    pub(crate) kind: KindIx,
    pub(crate) hosts: u32,
    pub(crate) pods_per_host: u32,
}

/// How good a choice is: compared field by field, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// Domains of the preferred level that it is spread over, when it is not kept.
    spans: usize,
    /// Growth of what typical pods cannot use.
    unusable: i128,
    /// GPUs left free on the hosts, in thousandths.
    left: u64,
}

/// Hosts for the role, or `None` when it does not fit.
pub(crate) fn pick(tree: &Tree, levels: usize, want: &Want) -> Option<Vec<Pick>> {
    if want.pods == 0 {
        return Some(Vec::new());
    }
    let mut picker = Picker::new(tree, levels, want);
    let mut scope = want.preferred.max(want.required);
    loop {
        if let Some(picks) = picker.within(scope) {
            return Some(picks);
        }
        if scope <= want.required {
            return None;
        }
        scope = scope.wider(levels).max(want.required);
    }
}

/// Hosts inside `domain`, whatever level is required unless it is the host; `None` when they do
/// not hold the role.
pub(crate) fn pick_in(
    tree: &Tree,
    levels: usize,
    want: &Want,
    domain: DomainIx,
) -> Option<Vec<Pick>> {
    let mut picker = Picker::new(tree, levels, want);
    if want.required == Scope::Host {
        return picker.on_one_host(domain);
    }
    if picker.room(domain) < u64::from(want.pods) {
        return None;
    }
    let mut picks = Vec::new();
    picker.assign(domain, &mut picks);
    Some(picks)
}

/// Pods of the role that the one place of its required level holds that holds the most; at most
/// as many as it asks for.
pub(crate) fn most(tree: &Tree, levels: usize, want: &Want) -> u32 {
    let mut picker = Picker::new(tree, levels, want);
    let rooms: u64 = match want.required {
        Scope::Pool => picker.room(DomainIx::POOL),
        Scope::Host => {
            let kinds = (0..).map(KindIx).take(tree.kinds().len());
            let there = kinds.filter(|ix| tree.kind(*ix).hosts > 0);
            there
                .map(|ix| u64::from(picker.capacity(ix)))
                .max()
                .unwrap_or(0)
        }
        Scope::Domain(depth) => {
            let all = picker.at_depth(depth);
            all.into_iter().map(|ix| picker.room(ix)).max().unwrap_or(0)
        }
    };
    u32::try_from(rooms).unwrap_or(u32::MAX).min(want.pods)
}

/// A domain that may hold a role, the tightest first: free GPUs, looks, what is around it, label.
type Candidate = Reverse<(u64, u64, (u64, u64), u64, DomainIx)>;

/// Not known yet, in the tables of a picker.
const UNKNOWN: u64 = u64::MAX;

/// The search for hosts for one role.
pub(crate) struct Picker<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) want: &'a Want,
    /// Levels that the pool names.
    levels: usize,
    /// Depth of the domains that hold a slice; zero when there are none.
    slice_depth: usize,
    /// Pods that go on a host together.
    on_host: u32,
    /// GPUs of a slice, in thousandths.
    slice_gpus: u64,
    /// Pods per host by free GPUs, as far as GPUs go.
    by_cards: [u64; CARDS - 1],
    /// Pods that a host of each kind holds.
    capacities: Vec<u32>,
    /// Pods that each domain holds.
    rooms: Vec<u64>,
}

impl<'a> Picker<'a> {
    pub(crate) fn new(tree: &'a Tree, levels: usize, want: &'a Want) -> Self {
        let (slice_depth, on_host) = match want.slice_in {
            Scope::Domain(depth) if want.slice > 1 => (depth, 1),
            Scope::Host => (0, want.slice),
            Scope::Pool | Scope::Domain(_) => (0, 1),
        };
        let gpus = want.per_pod.gpus.0;
        let mut by_cards = [0; CARDS - 1];
        for (cards, pods) in (0_u64..).zip(&mut by_cards) {
            *pods = (cards * 1000)
                .checked_div(gpus)
                .unwrap_or(u64::from(want.pods));
        }
        Self {
            tree,
            want,
            levels,
            slice_depth,
            on_host,
            slice_gpus: gpus.saturating_mul(u64::from(want.slice)),
            by_cards,
            capacities: vec![u32::MAX; tree.kinds().len()],
            rooms: vec![UNKNOWN; tree.domains().len()],
        }
    }

    /// Pods that one host of the kind holds, at most all.
    pub(crate) fn capacity(&mut self, kind: KindIx) -> u32 {
        let known = self.capacities[kind.index()];
        if known != u32::MAX {
            return known;
        }
        let times = self.tree.kind(kind).free.times(self.want.per_pod);
        let pods = u32::try_from(times).unwrap_or(u32::MAX).min(self.want.pods);
        let whole = pods - pods % self.on_host;
        self.capacities[kind.index()] = whole;
        whole
    }

    /// Never less than the pods that the domain holds.
    pub(crate) fn bound(&self, domain: DomainIx) -> u64 {
        let free = self.tree.free(domain);
        let domain = self.tree.domain(domain);
        let counted = domain.cards.iter().zip(&self.by_cards);
        let sum = counted.fold(0_u64, |sum, (hosts, pods)| sum + u64::from(*hosts) * pods);
        let larger = domain.cards[CARDS - 1];
        if larger == 0 {
            return sum;
        }
        let gpus = self.want.per_pod.gpus.0;
        let by_sum = free.checked_div(gpus);
        by_sum
            .unwrap_or(u64::from(larger) * u64::from(self.want.pods))
            .saturating_add(sum)
    }

    /// Free GPUs without which a domain at `depth` holds nothing.
    const fn least_free(&self, depth: usize) -> u64 {
        if depth > 0 && depth <= self.slice_depth {
            self.slice_gpus
        } else {
            self.want.per_pod.gpus.0
        }
    }

    /// Pods that the domain holds, in whole slices.
    fn room(&mut self, ix: DomainIx) -> u64 {
        self.room_at(ix, self.tree.domain(ix).depth)
    }

    /// As `room`, with the domain's depth: most domains have too few free GPUs, and of these
    /// nothing else is read.
    fn room_at(&mut self, ix: DomainIx, depth: usize) -> u64 {
        let known = self.rooms[ix.index()];
        if known != UNKNOWN {
            return known;
        }
        let mut room = 0_u64;
        let tree = self.tree;
        if ix == DomainIx::POOL && self.slice_depth == 0 {
            // Wherever hosts are, so their kinds are enough.
            for (kind, at) in tree.kinds().iter().zip((0..).map(KindIx)) {
                if kind.hosts > 0 {
                    room += u64::from(kind.hosts) * u64::from(self.capacity(at));
                }
            }
            self.rooms[ix.index()] = room;
            return room;
        }
        // Looking at the hosts of an innermost domain costs no more than the bound.
        let innermost = depth == tree.depth();
        if tree.free(ix) >= self.least_free(depth) && (innermost || self.bound(ix) > 0) {
            let domain = tree.domain(ix);
            for row in &domain.rows {
                room += u64::from(row.hosts) * u64::from(self.capacity(row.kind));
            }
            for child in &domain.children {
                room += self.room_at(*child, depth + 1);
            }
            if depth == self.slice_depth && depth > 0 {
                room -= room % u64::from(self.want.slice);
                if !domain.named {
                    room = 0;
                }
            }
        }
        self.rooms[ix.index()] = room;
        room
    }

    fn at_depth(&self, depth: usize) -> Vec<DomainIx> {
        let all = (0..).map(DomainIx).zip(self.tree.domains());
        let chosen = all.filter(|(_, it)| it.depth == depth && it.named && it.looks != 0);
        chosen.map(|(ix, _)| ix).collect()
    }

    fn within(&mut self, scope: Scope) -> Option<Vec<Pick>> {
        match scope {
            Scope::Pool => {
                if self.room(DomainIx::POOL) < u64::from(self.want.pods) {
                    return None;
                }
                let mut picks = Vec::new();
                self.assign(DomainIx::POOL, &mut picks);
                Some(picks)
            }
            Scope::Domain(depth) => self.tightest_domain(depth),
            Scope::Host => self.on_one_host(DomainIx::POOL),
        }
    }

    fn on_one_host(&mut self, domain: DomainIx) -> Option<Vec<Pick>> {
        let mut kinds = self.kinds_in(domain);
        kinds.retain(|(kind, _)| self.capacities[kind.index()] >= self.want.pods);
        if kinds.is_empty() {
            return None;
        }
        let mut picks = Vec::new();
        self.fill(domain, self.want.pods, kinds, &mut picks);
        Some(picks)
    }

    /// The best of the tightest domains at `depth` that hold all.
    fn tightest_domain(&mut self, depth: usize) -> Option<Vec<Pick>> {
        let pods = u64::from(self.want.pods);
        let gpus = self.want.per_pod.gpus.0.saturating_mul(pods);
        let mut candidates: Vec<Candidate> = Vec::new();
        for (ix, domain) in (0..).map(DomainIx).zip(self.tree.domains()) {
            let free = self.tree.free(ix);
            if free < gpus || domain.depth != depth || !domain.named || domain.looks == 0 {
                continue;
            }
            let key = (free, domain.looks, self.around(ix), domain.label, ix);
            match candidates.last_mut() {
                // Neighbours are often alike; of those one is enough.
                Some(Reverse(last)) if (last.0, last.1) == (key.0, key.1) => *last = key.min(*last),
                Some(_) | None if self.bound(ix) < pods => {}
                Some(_) | None => candidates.push(Reverse(key)),
            }
        }
        let mut heap = BinaryHeap::from(candidates);
        let mut best: Option<(Cost, Vec<Pick>)> = None;
        let (mut compared, mut last_looks) = (0, 0);
        while compared < COMPARED
            && let Some(Reverse((_, looks, .., ix))) = heap.pop()
        {
            if looks == last_looks || self.room(ix) < pods {
                continue;
            }
            (compared, last_looks) = (compared + 1, looks);
            let mut picks = Vec::new();
            self.assign(ix, &mut picks);
            let cost = self.cost(&picks);
            if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                best = Some((cost, picks));
            }
        }
        best.map(|(_, picks)| picks)
    }

    /// What the domains around one look like: of two that look the same, the one in the fuller
    /// surroundings is taken, and never by name unless these look the same too.
    fn around(&self, ix: DomainIx) -> (u64, u64) {
        let (mut free, mut looks, mut at) = (None, 0_u64, ix);
        while let Some(parent) = self.tree.domain(at).parent {
            free = free.or(Some(self.tree.free(parent)));
            looks = looks
                .rotate_left(1)
                .wrapping_add(self.tree.domain(parent).looks);
            at = parent;
        }
        (free.unwrap_or(0), looks)
    }

    fn cost(&self, picks: &[Pick]) -> Cost {
        let (mut unusable, mut left) = (0_i128, 0_u64);
        for pick in picks {
            let kind = self.tree.kind(pick.kind);
            let after = minus(kind.free, self.want.per_pod, pick.pods_per_host);
            let growth =
                i128::from(self.tree.typical().unusable(after)) - i128::from(kind.unusable);
            unusable += growth * i128::from(pick.hosts);
            left = left.saturating_add(after.gpus.0.saturating_mul(u64::from(pick.hosts)));
        }
        let spans = match self.want.preferred {
            Scope::Pool => 0,
            Scope::Domain(depth) => self.spans(picks, depth),
            Scope::Host => self.spans(picks, self.levels),
        };
        Cost {
            spans,
            unusable,
            left,
        }
    }

    fn spans(&self, picks: &[Pick], depth: usize) -> usize {
        let ancestor = |pick: &Pick| self.tree.ancestor(pick.domain, depth);
        let mut domains: Vec<DomainIx> = picks.iter().map(ancestor).collect();
        domains.sort_unstable();
        domains.dedup();
        domains.len()
    }

    /// Places all pods in `domain`, which has the room.
    fn assign(&mut self, domain: DomainIx, picks: &mut Vec<Pick>) {
        let mut parts = vec![(domain, self.want.pods)];
        let target = self.slice_depth.max(self.preferred_depth());
        for depth in self.tree.domain(domain).depth..target {
            let mut inner = Vec::new();
            for (ix, pods) in parts {
                self.share(ix, pods, depth < self.preferred_depth(), &mut inner);
            }
            parts = inner;
        }
        for (ix, pods) in parts {
            let kinds = self.kinds_in(ix);
            self.fill(ix, pods, kinds, picks);
        }
    }

    const fn preferred_depth(&self) -> usize {
        match self.want.preferred {
            Scope::Pool => 0,
            Scope::Domain(depth) => depth,
            Scope::Host => self.levels,
        }
    }

    /// Shares pods out to the domains right below `ix`: to as few as can be, or to the tightest.
    fn share(&mut self, ix: DomainIx, pods: u32, few: bool, out: &mut Vec<(DomainIx, u32)>) {
        let tree = self.tree;
        let mut missing = u64::from(pods);
        let mut rooms = Vec::new();
        let depth = tree.domain(ix).depth;
        for child in &tree.domain(ix).children {
            let room = self.room_at(*child, depth + 1);
            if room > 0 {
                let domain = tree.domain(*child);
                let free = tree.free(*child);
                rooms.push((room, free, domain.looks, domain.label, *child));
            }
        }
        let mut give = |child: DomainIx, room: u64| {
            let given = room.min(missing);
            missing -= given;
            out.push((
                child,
                u32::try_from(given).expect("not more than is asked for"),
            ));
            missing
        };
        if few {
            // The largest, until one holds the rest: of those the smallest (Kueue's best fit).
            rooms.sort_unstable_by_key(|it| (Reverse(it.0), it.1, it.2, it.3));
            let mut left = u64::from(pods);
            let mut at = 0;
            while left > 0 && at < rooms.len() {
                let holding = rooms[at..].partition_point(|it| it.0 >= left);
                if holding > 0 {
                    let smallest = rooms[at + holding - 1].0;
                    at += rooms[at..].partition_point(|it| it.0 > smallest);
                }
                left = give(rooms[at].4, rooms[at].0);
                at += 1;
            }
            return;
        }
        let keyed = rooms
            .into_iter()
            .map(|it| Reverse((it.1, it.2, it.3, it.4, it.0)));
        let mut heap: BinaryHeap<_> = keyed.collect();
        let mut left = u64::from(pods);
        while left > 0
            && let Some(Reverse((.., child, room))) = heap.pop()
        {
            left = give(child, room);
        }
    }
}
