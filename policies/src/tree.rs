//! The tree of one pool: domains by level, and in the innermost ones hosts that look alike.
//!
//! Owns the flat arrays that placement runs on, and their sums up the levels: a change of one host
//! costs a few additions per level. Knows no names; labels stand for their order. Never chooses.

use std::collections::BTreeMap;

use meridian_api::units::Resources;

use crate::typical::Typical;

/// Hosts are told apart by free GPUs up to one less than this, for bounds. The largest hosts in
/// use have 16.
pub(crate) const CARDS: usize = 17;

/// A domain, by its place in the tree's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DomainIx(pub(crate) u32);

/// A kind of host, by its place in the tree's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KindIx(pub(crate) u32);

impl DomainIx {
    /// The whole pool.
    pub(crate) const POOL: Self = Self(0);

    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

impl KindIx {
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Hosts of one size with the same room.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) allocatable: Resources,
    pub(crate) free: Resources,
    /// Hosts of this kind in the pool.
    pub(crate) hosts: u32,
    /// What of `free` a typical pod could not use.
    pub(crate) unusable: u64,
    /// Stands for its values.
    looks: u64,
}

/// Hosts of one kind in one innermost domain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) kind: KindIx,
    pub(crate) hosts: u32,
}

/// One domain, and what is in it with everything below.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    /// The domain around it; `None` for the pool.
    pub(crate) parent: Option<DomainIx>,
    /// Levels above it, the pool's included.
    pub(crate) depth: usize,
    /// Orders the domains of one level by their names.
    pub(crate) label: u64,
    /// False when its hosts do not say in which domain they are: then they are in none.
    pub(crate) named: bool,
    /// Equal for domains that look the same, names apart; differs otherwise, but for one chance
    /// in 2^64.
    pub(crate) looks: u64,
    /// Hosts by free GPUs, rounded up; the last counts all that have more.
    pub(crate) cards: [u32; CARDS],
    /// Hosts, in an innermost domain, by kind.
    pub(crate) rows: Vec<Row>,
    /// Domains right below, by label.
    pub(crate) children: Vec<DomainIx>,
}

/// One move of hosts from one kind to another, so that it can be taken back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    domain: DomainIx,
    from: KindIx,
    to: KindIx,
    hosts: u32,
}

/// All of a pool.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    depth: usize,
    typical: Typical,
    domains: Vec<Domain>,
    /// Free GPUs of each domain, in thousandths: apart, as most domains are passed over by it.
    free: Vec<u64>,
    spare_domains: Vec<DomainIx>,
    kinds: Vec<Kind>,
    spare_kinds: Vec<KindIx>,
    /// Kinds that moves have made, until all moves are taken back.
    tried_kinds: Vec<KindIx>,
    by_value: BTreeMap<(Resources, Resources), KindIx>,
}

/// A one-to-one scramble that leaves zero alone (the finisher of MurmurHash3).
pub(crate) const fn scramble(mut bits: u64) -> u64 {
    bits ^= bits >> 33;
    bits = bits.wrapping_mul(0xff51_afd7_ed55_8ccd);
    bits ^= bits >> 33;
    bits = bits.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    bits ^ (bits >> 33)
}

fn looks_of(allocatable: Resources, free: Resources) -> u64 {
    let parts = [allocatable, free].map(|it| [it.gpus.0, it.cpu.0, it.memory.0]);
    let mix = |sum: u64, part: &u64| scramble(sum.wrapping_add(*part).wrapping_add(0x9e37_79b9));
    parts.as_flattened().iter().fold(1, mix)
}

/// Place of a host in `Domain::cards`.
fn cards_of(free: Resources) -> usize {
    let whole = free.gpus.0.div_ceil(1000);
    usize::try_from(whole).map_or(CARDS - 1, |cards| cards.min(CARDS - 1))
}

impl Tree {
    /// An empty pool with `depth` levels.
    pub(crate) fn new(depth: usize, typical: Typical) -> Self {
        let mut tree = Self {
            depth,
            typical,
            domains: Vec::new(),
            free: Vec::new(),
            spare_domains: Vec::new(),
            kinds: Vec::new(),
            spare_kinds: Vec::new(),
            tried_kinds: Vec::new(),
            by_value: BTreeMap::new(),
        };
        tree.put_domain(None, 0, 0, true);
        tree
    }

    /// How many levels there are.
    pub(crate) const fn depth(&self) -> usize {
        self.depth
    }

    pub(crate) fn domain(&self, ix: DomainIx) -> &Domain {
        &self.domains[ix.index()]
    }

    /// Free GPUs in the domain, in thousandths.
    pub(crate) fn free(&self, ix: DomainIx) -> u64 {
        self.free[ix.index()]
    }

    pub(crate) fn kind(&self, ix: KindIx) -> &Kind {
        &self.kinds[ix.index()]
    }

    /// Entries of the table of domains, spare ones included.
    pub(crate) fn domains(&self) -> &[Domain] {
        &self.domains
    }

    /// Entries of the table of kinds; those without hosts are spare.
    pub(crate) fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    pub(crate) const fn typical(&self) -> &Typical {
        &self.typical
    }

    /// Measures fragmentation by other shapes from here on.
    pub(crate) fn set_typical(&mut self, typical: Typical) {
        for kind in &mut self.kinds {
            kind.unusable = typical.unusable(kind.free);
        }
        self.typical = typical;
    }

    /// The domain around `ix` at `depth`, which is not deeper.
    pub(crate) fn ancestor(&self, ix: DomainIx, depth: usize) -> DomainIx {
        let mut at = ix;
        while self.domain(at).depth > depth {
            let Some(parent) = self.domain(at).parent else {
                break;
            };
            at = parent;
        }
        at
    }

    /// A new domain right below `parent`.
    pub(crate) fn add_domain(&mut self, parent: DomainIx, label: u64, named: bool) -> DomainIx {
        let depth = self.domain(parent).depth + 1;
        let ix = self.put_domain(Some(parent), depth, label, named);
        let siblings = &self.domain(parent).children;
        let place = siblings.partition_point(|it| self.domain(*it).label < label);
        self.domains[parent.index()].children.insert(place, ix);
        ix
    }

    fn put_domain(
        &mut self,
        parent: Option<DomainIx>,
        depth: usize,
        label: u64,
        named: bool,
    ) -> DomainIx {
        let domain = Domain {
            parent,
            depth,
            label,
            named,
            looks: 0,
            cards: [0; CARDS],
            rows: Vec::new(),
            children: Vec::new(),
        };
        if let Some(ix) = self.spare_domains.pop() {
            (self.domains[ix.index()], self.free[ix.index()]) = (domain, 0);
            return ix;
        }
        let next = u32::try_from(self.domains.len()).expect("a pool has fewer domains than 2^32");
        self.domains.push(domain);
        self.free.push(0);
        DomainIx(next)
    }

    /// Takes away a domain with nothing in it; `false` when there is something, or it is the pool.
    pub(crate) fn remove_domain(&mut self, ix: DomainIx) -> bool {
        let domain = self.domain(ix);
        let Some(parent) = domain.parent else {
            return false;
        };
        if !domain.rows.is_empty() || !domain.children.is_empty() {
            return false;
        }
        self.domains[parent.index()].children.retain(|it| *it != ix);
        self.spare_domains.push(ix);
        true
    }

    /// Other labels in the same order.
    pub(crate) fn relabel(&mut self, ix: DomainIx, label: u64) {
        self.domains[ix.index()].label = label;
    }

    /// The kind of hosts of that size and room, if there are any.
    pub(crate) fn find_kind(&self, allocatable: Resources, free: Resources) -> Option<KindIx> {
        self.by_value.get(&(allocatable, free)).copied()
    }

    /// The kind of hosts of that size and room, made if it is not there.
    pub(crate) fn kind_of(&mut self, allocatable: Resources, free: Resources) -> KindIx {
        if let Some(ix) = self.by_value.get(&(allocatable, free)) {
            return *ix;
        }
        let kind = Kind {
            allocatable,
            free,
            hosts: 0,
            unusable: self.typical.unusable(free),
            looks: looks_of(allocatable, free),
        };
        let ix = if let Some(ix) = self.spare_kinds.pop() {
            self.kinds[ix.index()] = kind;
            ix
        } else {
            let next = u32::try_from(self.kinds.len()).expect("a pool has fewer kinds than 2^32");
            self.kinds.push(kind);
            KindIx(next)
        };
        self.by_value.insert((allocatable, free), ix);
        ix
    }

    /// Puts hosts into an innermost domain.
    pub(crate) fn add_hosts(&mut self, domain: DomainIx, kind: KindIx, hosts: u32) {
        self.change(domain, kind, i64::from(hosts));
    }

    /// Takes hosts that are there out of an innermost domain.
    pub(crate) fn remove_hosts(&mut self, domain: DomainIx, kind: KindIx, hosts: u32) {
        self.change(domain, kind, -i64::from(hosts));
        self.drop_if_unused(kind);
    }

    fn drop_if_unused(&mut self, ix: KindIx) {
        let kind = &self.kinds[ix.index()];
        let value = (kind.allocatable, kind.free);
        if kind.hosts == 0 && self.by_value.get(&value) == Some(&ix) {
            self.by_value.remove(&value);
            self.spare_kinds.push(ix);
        }
    }

    /// Hosts of `from` in the domain have room `left` from here on.
    pub(crate) fn shift(
        &mut self,
        domain: DomainIx,
        from: KindIx,
        left: Resources,
        hosts: u32,
    ) -> Moved {
        let to = self.kind_of(self.kind(from).allocatable, left);
        if self.kind(to).hosts == 0 {
            self.tried_kinds.push(to);
        }
        self.change(domain, from, -i64::from(hosts));
        self.change(domain, to, i64::from(hosts));
        Moved {
            domain,
            from,
            to,
            hosts,
        }
    }

    /// Takes moves back, the last one first.
    pub(crate) fn undo(&mut self, moves: &mut Vec<Moved>, down_to: usize) {
        while moves.len() > down_to
            && let Some(moved) = moves.pop()
        {
            self.change(moved.domain, moved.to, -i64::from(moved.hosts));
            self.change(moved.domain, moved.from, i64::from(moved.hosts));
        }
        // A kind that is empty in between may be one that an earlier move came from.
        if moves.is_empty() {
            for kind in std::mem::take(&mut self.tried_kinds) {
                self.drop_if_unused(kind);
            }
        }
    }

    fn change(&mut self, domain: DomainIx, kind: KindIx, delta: i64) {
        let shifted = |count: u32| {
            let count = i64::from(count) + delta;
            u32::try_from(count).expect("hosts are counted in 32 bits, and only those there go")
        };
        let entry = &mut self.kinds[kind.index()];
        entry.hosts = shifted(entry.hosts);
        let (gpus, cards) = (entry.free.gpus.0, cards_of(entry.free));
        let looks = entry.looks.wrapping_mul(delta.cast_unsigned());
        let free = gpus.saturating_mul(delta.unsigned_abs());
        let rows = &mut self.domains[domain.index()].rows;
        let place = rows.partition_point(|row| row.kind < kind);
        match rows.get_mut(place) {
            Some(row) if row.kind == kind => {
                row.hosts = shifted(row.hosts);
                if row.hosts == 0 {
                    rows.remove(place);
                }
            }
            Some(_) | None => {
                let hosts = shifted(0);
                rows.insert(place, Row { kind, hosts });
            }
        }
        let mut difference = looks;
        let mut at = Some(domain);
        while let Some(ix) = at {
            let sum = &mut self.free[ix.index()];
            *sum = if delta < 0 {
                sum.saturating_sub(free)
            } else {
                sum.saturating_add(free)
            };
            let domain = &mut self.domains[ix.index()];
            domain.cards[cards] = shifted(domain.cards[cards]);
            let before = scramble(domain.looks);
            domain.looks = domain.looks.wrapping_add(difference);
            difference = scramble(domain.looks).wrapping_sub(before);
            at = domain.parent;
        }
    }
}
