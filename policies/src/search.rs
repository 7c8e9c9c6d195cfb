//! A bounded search for gangs of several roles that packing one role after the other misses.
//!
//! Owns the enumeration of which host gets how many pods of which role, and its limits. Exact as
//! long as it ends within them: always for at most 5 pods on at most 5 hosts. Preferred levels
//! and fragmentation do not count here: any fit will do. Leaves the tree as it was.

use std::collections::BTreeSet;

use meridian_api::units::Resources;

use crate::packing::Step;
use crate::pick::{Scope, Want};
use crate::tree::{DomainIx, KindIx, Moved, Tree};

/// Choices that are tried, and hosts that are listed for it. Five different roles of one pod on
/// five different hosts take at most 9 choices and 5 hosts for each of 1 + 5 + 25 + 125 + 625
/// places in the tree of choices, 10,934 in all; other gangs of 5 pods on 5 hosts take fewer. At
/// a few hundred nanoseconds each, giving up costs single milliseconds.
const STEPS: u32 = 16_384;

/// Hosts with room that may take part, for all roles together: the depth of the recursion.
const DEPTH: u32 = 512;

/// Hosts alike in one innermost domain, when a role's turn comes.
struct Seats {
    domain: DomainIx,
    /// The domain that must hold whole slices.
    slice: DomainIx,
    kind: KindIx,
    hosts: u32,
    /// Pods that one host holds.
    each: u32,
    /// Pods that all hosts after these hold.
    beyond: u64,
}

/// Where the search stands inside one role.
#[derive(Clone, Copy)]
struct At {
    role: usize,
    row: usize,
    /// Hosts of the row that were decided.
    host: u32,
    /// Hosts of a row are alike, so each gets at most what the one before got.
    most_each: u32,
    missing: u32,
    /// Pods in the present slice's domain.
    in_slice: u32,
}

struct Search<'a> {
    tree: &'a mut Tree,
    wants: &'a [Want],
    order: &'a [usize],
    steps_left: u32,
    moves: Vec<Moved>,
    found: Vec<Step>,
    /// What a pool looks like from which the roles from a position on do not fit.
    hopeless: BTreeSet<(usize, u64)>,
}

/// Steps for all roles in some order, or `None` when there are none or the limits were reached.
pub(crate) fn search(tree: &mut Tree, wants: &[Want], order: &[usize]) -> Option<Vec<Step>> {
    if !may_fit(tree, wants) {
        return None;
    }
    let mut search = Search {
        tree,
        wants,
        order,
        steps_left: STEPS,
        moves: Vec::new(),
        found: Vec::new(),
        hopeless: BTreeSet::new(),
    };
    let all = search.role(0);
    search.tree.undo(&mut search.moves, 0);
    all.then_some(search.found)
}

/// All together ask for no more than there is, and the pool is small enough.
fn may_fit(tree: &Tree, wants: &[Want]) -> bool {
    let times = |each: Resources, count: u32| {
        [each.gpus.0, each.cpu.0, each.memory.0].map(|it| u128::from(it) * u128::from(count))
    };
    let add = |sum: [u128; 3], more: [u128; 3]| [0, 1, 2].map(|at| sum[at] + more[at]);
    let asked = wants
        .iter()
        .fold([0; 3], |sum, it| add(sum, times(it.per_pod, it.pods)));
    let usable = tree
        .kinds()
        .iter()
        .filter(|kind| kind.hosts > 0 && wants.iter().any(|want| kind.free.covers(want.per_pod)));
    let (mut there, mut hosts) = ([0; 3], 0_u32);
    for kind in usable {
        there = add(there, times(kind.free, kind.hosts));
        hosts = hosts.saturating_add(kind.hosts);
    }
    let roles = u32::try_from(wants.len()).unwrap_or(u32::MAX);
    asked
        .iter()
        .zip(there)
        .all(|(asked, there)| *asked <= there)
        && hosts.saturating_mul(roles) <= DEPTH
}

impl Search<'_> {
    fn spend(&mut self, steps: u32) -> bool {
        let left = self.steps_left.checked_sub(steps);
        self.steps_left = left.unwrap_or(0);
        left.is_some()
    }

    /// Places the roles from position `role` on.
    fn role(&mut self, role: usize) -> bool {
        let Some(&index) = self.order.get(role) else {
            return true;
        };
        let want = self.wants[index];
        let state = (role, self.tree.domain(DomainIx::POOL).looks);
        if self.hopeless.contains(&state) {
            return false;
        }
        let start = At {
            role,
            row: 0,
            host: 0,
            most_each: want.pods,
            missing: want.pods,
            in_slice: 0,
        };
        let mut places = match want.required {
            Scope::Pool | Scope::Host => vec![DomainIx::POOL],
            Scope::Domain(depth) => self.domains_at(depth),
        };
        places.sort_by_cached_key(|ix| self.key(*ix));
        for place in places {
            let rows = self.seats(place, &want);
            let hosts = rows
                .iter()
                .fold(0_u32, |sum, row| sum.saturating_add(row.hosts));
            if !self.spend(hosts) {
                return false;
            }
            let fits = match want.required {
                Scope::Host => self.one_host(start, &rows),
                Scope::Pool | Scope::Domain(_) => self.share(start, &rows),
            };
            if fits {
                return true;
            }
        }
        if self.steps_left > 0 {
            self.hopeless.insert(state);
        }
        false
    }

    fn domains_at(&self, depth: usize) -> Vec<DomainIx> {
        let all = (0..).map(DomainIx).zip(self.tree.domains());
        let chosen = all.filter(|(_, it)| it.depth == depth && it.named && it.looks != 0);
        chosen.map(|(ix, _)| ix).collect()
    }

    /// Orders domains by what they and those around them look like, the widest first.
    fn key(&self, ix: DomainIx) -> Vec<(u64, u64, u64)> {
        let depth = self.tree.domain(ix).depth;
        let look = |depth: usize| {
            let ix = self.tree.ancestor(ix, depth);
            let domain = self.tree.domain(ix);
            (self.tree.free(ix), domain.looks, domain.label)
        };
        (1..=depth).map(look).collect()
    }

    /// Hosts in the domain that hold pods of the role, those of one slice's domain together.
    fn seats(&self, inside: DomainIx, want: &Want) -> Vec<Seats> {
        let (slice_depth, on_host) = match want.slice_in {
            Scope::Domain(depth) => (depth, 1),
            Scope::Host => (0, want.slice),
            Scope::Pool => (0, 1),
        };
        let depth = self.tree.domain(inside).depth;
        let mut rows = Vec::new();
        let innermost = (0..).map(DomainIx).zip(self.tree.domains());
        for (domain, entry) in innermost.filter(|(_, it)| it.depth == self.tree.depth()) {
            let slice = self.tree.ancestor(domain, slice_depth);
            let sliced = slice_depth == 0 || self.tree.domain(slice).named;
            if self.tree.ancestor(domain, depth) != inside || !sliced {
                continue;
            }
            for row in &entry.rows {
                let kind = self.tree.kind(row.kind);
                let times = u32::try_from(kind.free.times(want.per_pod)).unwrap_or(u32::MAX);
                let each = times.min(want.pods);
                let each = each - each % on_host;
                if each > 0 {
                    let seats = Seats {
                        domain,
                        slice,
                        kind: row.kind,
                        hosts: row.hosts,
                        each,
                        beyond: 0,
                    };
                    rows.push(((self.key(domain), kind.allocatable, kind.free), seats));
                }
            }
        }
        rows.sort_by(|a, b| a.0.cmp(&b.0));
        let mut beyond = 0;
        for (_, row) in rows.iter_mut().rev() {
            row.beyond = beyond;
            beyond += u64::from(row.hosts) * u64::from(row.each);
        }
        rows.into_iter().map(|(_, row)| row).collect()
    }

    fn one_host(&mut self, at: At, rows: &[Seats]) -> bool {
        let holding = rows.iter().filter(|row| row.each >= at.missing);
        for row in holding {
            if !self.spend(1) {
                return false;
            }
            if self.put(at, row, at.missing, |search| search.role(at.role + 1)) {
                return true;
            }
        }
        false
    }

    /// Shares the missing pods out over the hosts from where the search stands.
    fn share(&mut self, at: At, rows: &[Seats]) -> bool {
        let want = &self.wants[self.order[at.role]];
        let (unit, on_host) = match want.slice_in {
            Scope::Domain(_) => (want.slice, 1),
            Scope::Host => (1, want.slice),
            Scope::Pool => (1, 1),
        };
        if at.missing == 0 {
            return at.in_slice.is_multiple_of(unit) && self.role(at.role + 1);
        }
        let Some(row) = rows.get(at.row) else {
            return false;
        };
        let here = u64::from(row.hosts - at.host) * u64::from(row.each);
        if here + row.beyond < u64::from(at.missing) {
            return false;
        }
        let mut count = row.each.min(at.most_each).min(at.missing);
        if at.host == row.hosts {
            count = 0;
        }
        count -= count % on_host;
        loop {
            if !self.spend(1) {
                return false;
            }
            if count == 0 {
                return self.next_row(at, rows, unit);
            }
            let next = At {
                host: at.host + 1,
                most_each: count,
                missing: at.missing - count,
                in_slice: at.in_slice + count,
                ..at
            };
            if self.put(at, row, count, |search| search.share(next, rows)) {
                return true;
            }
            count -= on_host;
        }
    }

    fn next_row(&mut self, at: At, rows: &[Seats], unit: u32) -> bool {
        let same_slice = rows
            .get(at.row + 1)
            .is_some_and(|it| it.slice == rows[at.row].slice);
        if !same_slice && !at.in_slice.is_multiple_of(unit) {
            return false;
        }
        let next = At {
            row: at.row + 1,
            host: 0,
            most_each: at.missing,
            in_slice: if same_slice { at.in_slice } else { 0 },
            ..at
        };
        self.share(next, rows)
    }

    /// Puts pods on one host and goes on; takes them back when that leads nowhere.
    fn put(
        &mut self,
        at: At,
        row: &Seats,
        pods: u32,
        go_on: impl FnOnce(&mut Self) -> bool,
    ) -> bool {
        let role = self.order[at.role];
        let kind = self.tree.kind(row.kind);
        let step = Step {
            role: u32::try_from(role).expect("a gang has fewer roles than 2^32"),
            domain: row.domain,
            allocatable: kind.allocatable,
            free: kind.free,
            hosts: 1,
            pods_per_host: pods,
        };
        let left = step.left(self.wants[role].per_pod);
        let mark = self.moves.len();
        self.moves
            .push(self.tree.shift(row.domain, row.kind, left, 1));
        self.found.push(step);
        if go_on(self) {
            return true;
        }
        self.found.truncate(mark);
        self.tree.undo(&mut self.moves, mark);
        false
    }
}
