//! The books: whose quota each placement stands on.
//!
//! Owns the roles and lenders of ledger rows, worked out over everything that is held. Never
//! limits anything (see `quota`): what is over is written down as borrowed, whoever lends it.
//!
//! Every tenant's placements stand on its own nominal first, those that did so before, then the
//! oldest. What is beyond is borrowed from the nearest level that has something unused: there
//! from the child (or the node's own rest) with the largest unused amount, then by id, keeping a
//! lender that was written down before. Levels are walked from the leaves up, so that nobody takes
//! from afar what a neighbour can only get near by.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use meridian_api::ids::GangId;
use meridian_api::units::{MilliGpus, UnixMillis};

use crate::model::{
    Held, HeldIx, HoldIx, Lapsed, LedgerRow, Measure, Place, Placed, Preemption, Quota, Regraded,
    Role, Snapshot, TenantIx, Yield,
};
use crate::present::Present;
use crate::quota::{ancestry, from_the_leaves};

/// Rows of everything that is held, then of everything that the plan places, then of everything
/// that it makes room for, then of the next places of those who make it. What was held for a gang
/// in earlier rounds counts, too, unless the hold ends in this plan; its rows are written when it
/// is placed.
#[must_use]
pub fn rows(
    snapshot: &Snapshot,
    placed: &[Placed],
    preemptions: &[Preemption],
    lapsed: &[Lapsed],
) -> Vec<Vec<LedgerRow>> {
    let present = Present::new(snapshot);
    let books = Books::new(snapshot, &present, placed, preemptions, lapsed);
    let held = snapshot.held.iter().map(|held| held.resources.gpus);
    let planned = placed.iter().map(|placed| placed.gpus);
    let made = preemptions.iter().map(|made| made.gpus);
    let moves = preemptions.iter().flat_map(Preemption::moves);
    let moves = moves.map(|(victim, _)| snapshot.held[victim.held.index()].resources.gpus);
    let all = held.chain(planned).chain(made).chain(moves).enumerate();
    all.map(|(entry, gpus)| books.rows(entry, gpus)).collect()
}

/// Writes the ledger's rows into the placements; what else stands on other quota than before is
/// returned.
pub(crate) fn write_rows(
    snapshot: &Snapshot,
    present: &Present,
    placements: &mut [Placed],
    preemptions: &mut [Preemption],
    lapsed: &[Lapsed],
) -> Vec<Regraded> {
    let books = Books::new(snapshot, present, placements, preemptions, lapsed);
    let planned = snapshot.held.len();
    let held_for = planned + placements.len();
    for (placed, entry) in placements.iter_mut().zip(planned..) {
        placed.rows = books.rows(entry, placed.gpus);
    }
    for (made, entry) in preemptions.iter_mut().zip(held_for..) {
        made.rows = books.rows(entry, made.gpus);
    }
    let gpus = |held: HeldIx| snapshot.held[held.index()].resources.gpus;
    let next_places = held_for + preemptions.len();
    let victims = preemptions.iter_mut().flat_map(|made| &mut made.victims);
    let moves = victims.filter_map(|victim| match &mut victim.does {
        Yield::Move(next) => Some((next, victim.held)),
        Yield::Evict | Yield::Shrink { .. } => None,
    });
    for ((next, held), entry) in moves.zip(next_places..) {
        next.rows = books.rows(entry, gpus(held));
    }
    let regraded = books.moved(snapshot, present).into_iter();
    let regraded = regraded.map(|held| Regraded {
        held,
        rows: books.rows(held.index(), gpus(held)),
    });
    regraded.collect()
}

/// The rows of all placements, in the order of [`rows`].
pub(crate) struct Books {
    /// Rows of those that borrow; all others stand on their own.
    lent: BTreeMap<usize, Vec<LedgerRow>>,
}

impl Books {
    pub(crate) fn new(
        snapshot: &Snapshot,
        present: &Present,
        placed: &[Placed],
        preemptions: &[Preemption],
        lapsed: &[Lapsed],
    ) -> Self {
        let planned = planned(snapshot, placed, preemptions, lapsed);
        let mut lent: BTreeMap<usize, Vec<LedgerRow>> = BTreeMap::new();
        let quotas = snapshot.tenants.iter().flat_map(|tenant| &tenant.quotas);
        // Rows count GPUs: CPU and memory have limits, and no lenders.
        let measures = quotas.map(|quota| quota.measure);
        let measures = measures.filter(|it| matches!(it, Measure::Gpus { .. }));
        let measures: BTreeSet<Measure> = measures.collect();
        let order = from_the_leaves(&snapshot.tenants);
        // The narrowest come last in the table; between equals they are kept.
        for measure in measures.into_iter().rev() {
            let tree = Tree::new(snapshot, measure);
            let mut rests = tree.rests();
            let aged = tree.short(present, &planned, &mut rests);
            if aged.is_empty() {
                continue;
            }
            let mut loans = tree.lend(&order, &aged, &mut rests);
            loans.sort_unstable_by_key(|loan| (loan.entry, loan.lender));
            for loans in loans.chunk_by(|one, other| one.entry == other.entry) {
                let entry = &aged[loans[0].entry];
                let next = with_loans(entry.gpus, loans);
                let before = lent
                    .get(&entry.at)
                    .map_or(MilliGpus::ZERO, |it| borrowed_of(it));
                if borrowed_of(&next) > before {
                    lent.insert(entry.at, next);
                }
            }
        }
        Self { lent }
    }

    /// The rows of one placement of so many GPUs.
    pub(crate) fn rows(&self, entry: usize, gpus: MilliGpus) -> Vec<LedgerRow> {
        let own = || own_row(gpus).into_iter().collect();
        self.lent.get(&entry).cloned().unwrap_or_else(own)
    }

    /// Placements that stand on other rows than before: of those that did, or do, not stand on
    /// their own as a whole.
    pub(crate) fn moved(&self, snapshot: &Snapshot, present: &Present) -> Vec<HeldIx> {
        let lent = self.lent.keys().map(|entry| u32::try_from(*entry));
        let lent = lent.map_while(|entry| entry.ok().map(HeldIx));
        let mut all: BTreeSet<HeldIx> = lent.collect();
        all.extend(present.unlike());
        let moved = all.into_iter().filter(|ix| {
            let row = snapshot.held.get(ix.index());
            row.is_some_and(|row| match self.lent.get(&ix.index()) {
                Some(lent) => row.rows != *lent,
                None => !stands_on_own(row),
            })
        });
        moved.collect()
    }
}

/// True when a placement stands on its tenant's own quota as a whole.
pub(crate) fn stands_on_own(held: &Held) -> bool {
    held.rows == own_row(held.resources.gpus).as_slice()
}

/// The rows of a placement that borrows; loans by lender.
fn with_loans(gpus: MilliGpus, loans: &[Loan]) -> Vec<LedgerRow> {
    let sum = |loans: &[Loan]| {
        let amounts = loans.iter().map(|loan| loan.amount);
        MilliGpus(amounts.fold(0_u64, u64::saturating_add))
    };
    let own = own_row(gpus.saturating_sub(sum(loans)));
    let lenders = loans.chunk_by(|one, other| one.lender == other.lender);
    let lent = lenders.map(|loans| LedgerRow {
        role: Role::Borrowed,
        lender: loans[0].lender,
        gpus: sum(loans),
    });
    own.into_iter().chain(lent).collect()
}

/// The row of what stands on its tenant's own quota.
fn own_row(gpus: MilliGpus) -> Option<LedgerRow> {
    let row = LedgerRow {
        role: Role::Own,
        lender: None,
        gpus,
    };
    (gpus > MilliGpus::ZERO).then_some(row)
}

/// GPUs of a placement that are not its tenant's own.
#[must_use]
pub fn borrowed_of(rows: &[LedgerRow]) -> MilliGpus {
    let borrowed = rows.iter().filter(|row| row.role == Role::Borrowed);
    borrowed.fold(MilliGpus::ZERO, |sum, row| sum.saturating_add(row.gpus))
}

/// One placement, held or planned.
#[derive(Clone, Copy)]
struct Entry<'a> {
    /// Place in the list of all.
    at: usize,
    tenant: TenantIx,
    place: Place,
    gpus: MilliGpus,
    /// As last written down.
    before: &'a [LedgerRow],
    since: UnixMillis,
    gang: GangId,
}

impl<'a> Entry<'a> {
    fn of_held(snapshot: &'a Snapshot, ix: HeldIx, place: Place) -> Self {
        let held = &snapshot.held[ix.index()];
        Self {
            at: ix.index(),
            tenant: held.tenant,
            place,
            gpus: held.resources.gpus,
            before: &held.rows,
            since: held.since,
            gang: held.gang,
        }
    }
}

/// Entries of everything that is not held yet, in the order of [`rows`]; those of holds last.
fn planned<'a>(
    snapshot: &'a Snapshot,
    placed: &'a [Placed],
    preemptions: &'a [Preemption],
    lapsed: &[Lapsed],
) -> Vec<Entry<'a>> {
    let planned = placed.iter().map(|placed| {
        let gang = &snapshot.waiting[placed.waiting.index()];
        Entry {
            at: 0,
            tenant: gang.tenant,
            place: snapshot.place(&snapshot.pools[placed.pool.index()]),
            gpus: placed.gpus,
            before: &[],
            since: snapshot.now,
            gang: gang.gang,
        }
    });
    let made = preemptions.iter().map(|made| {
        let gang = &snapshot.waiting[made.waiting.index()];
        Entry {
            at: 0,
            tenant: gang.tenant,
            place: snapshot.place(&snapshot.pools[made.pool.index()]),
            gpus: made.gpus,
            before: &[],
            since: snapshot.now,
            gang: gang.gang,
        }
    });
    let placed: BTreeSet<GangId> = placed
        .iter()
        .map(|placed| snapshot.waiting[placed.waiting.index()].gang)
        .collect();
    let ended: BTreeSet<HoldIx> = lapsed.iter().map(|it| it.hold).collect();
    let holds = (0..).map(HoldIx).zip(&snapshot.holds);
    let holds = holds.filter(|(ix, hold)| !ended.contains(ix) && !placed.contains(&hold.gang));
    let holds: Vec<Entry<'a>> = holds
        .map(|(_, hold)| Entry {
            at: 0,
            tenant: hold.tenant,
            place: hold.place(snapshot),
            gpus: hold.resources.gpus,
            before: &hold.rows,
            since: hold.since,
            gang: hold.gang,
        })
        .collect();
    let all = planned.chain(made);
    let all = all
        .chain(next_places(snapshot, preemptions))
        .chain(holds)
        .zip(snapshot.held.len()..);
    all.map(|(entry, at)| Entry { at, ..entry }).collect()
}

/// Next places of those who make room and go on elsewhere.
fn next_places<'a>(
    snapshot: &'a Snapshot,
    preemptions: &'a [Preemption],
) -> impl Iterator<Item = Entry<'a>> {
    let moves = preemptions.iter().flat_map(Preemption::moves);
    moves.map(|(victim, next)| {
        let held = &snapshot.held[victim.held.index()];
        Entry {
            at: 0,
            tenant: held.tenant,
            place: snapshot.place(&snapshot.pools[next.pool.index()]),
            gpus: held.resources.gpus,
            before: &[],
            since: snapshot.now,
            gang: held.gang,
        }
    })
}

/// What a placement still has to borrow.
#[derive(Clone, Copy, Debug)]
struct Demand {
    entry: usize,
    amount: u64,
    /// Child of the level through which it comes; the level itself for what stands there.
    branch: TenantIx,
}

/// What one lender gives one placement.
struct Loan {
    entry: usize,
    lender: Option<TenantIx>,
    amount: u64,
}

/// One level of the tree while it lends.
#[derive(Clone, Default)]
struct Level {
    /// What each child may lend, and what the node's own rest may.
    supplies: Vec<(TenantIx, u64)>,
    demands: Vec<Demand>,
}

/// The tree, as one measure sees it.
struct Tree<'a> {
    snapshot: &'a Snapshot,
    measure: Measure,
    /// By tenant.
    rows: Vec<Option<&'a Quota>>,
    /// By tenant: the nearest upward with a row.
    homes: Vec<Option<TenantIx>>,
}

impl<'a> Tree<'a> {
    fn new(snapshot: &'a Snapshot, measure: Measure) -> Self {
        let tenants = snapshot.tenants.iter();
        let row = |quotas: &'a [Quota]| quotas.iter().find(|quota| quota.measure == measure);
        let rows: Vec<_> = tenants.map(|tenant| row(&tenant.quotas)).collect();
        let all = (0..).map(TenantIx).take(rows.len());
        let home = |ix| {
            let mut path = ancestry(&snapshot.tenants, ix).map(|(ix, _)| ix);
            path.find(|ix| rows[ix.index()].is_some())
        };
        Self {
            snapshot,
            measure,
            homes: all.map(home).collect(),
            rows,
        }
    }

    fn row(&self, ix: TenantIx) -> Option<&'a Quota> {
        self.rows[ix.index()]
    }

    /// The nearest tenant above with a row.
    fn above(&self, ix: TenantIx) -> Option<TenantIx> {
        let parent = self.snapshot.tenants[ix.index()].parent?;
        *self.homes.get(parent.index())?
    }

    /// Nominal of each tenant that no row below has been given.
    fn rests(&self) -> Vec<u64> {
        let all = || (0..).map(TenantIx).take(self.rows.len());
        let mut given = vec![0_u64; self.rows.len()];
        for ix in all() {
            if let (Some(quota), Some(above)) = (self.row(ix), self.above(ix)) {
                let sum = &mut given[above.index()];
                *sum = sum.saturating_add(nominal(quota));
            }
        }
        let rest = |ix: TenantIx| {
            let own = self.row(ix).map_or(0, nominal);
            own.saturating_sub(given[ix.index()])
        };
        all().map(rest).collect()
    }

    /// Those for which the nominal at their home may not suffice, oldest first. All others stand
    /// on theirs, which is taken out of `rests`.
    fn short(&self, present: &Present, planned: &[Entry<'a>], rests: &mut [u64]) -> Vec<Entry<'a>> {
        let home = |tenant: TenantIx, place: Place| {
            let home = *self.homes.get(tenant.index())?;
            home.filter(|_| self.measure.counts(place))
        };
        let held = present.groups().iter();
        let held = held.map(|group| (group.tenant, group.place, group.what.gpus));
        let more = planned.iter();
        let more = more.map(|entry| (entry.tenant, entry.place, entry.gpus));
        let mut sums = vec![0_u64; rests.len()];
        for (tenant, place, gpus) in held.chain(more) {
            if let Some(home) = home(tenant, place) {
                sums[home.index()] = sums[home.index()].saturating_add(gpus.0);
            }
        }
        let mut is_short = vec![false; rests.len()];
        for ((rest, sum), is_short) in rests.iter_mut().zip(sums).zip(&mut is_short) {
            match rest.checked_sub(sum) {
                Some(left) => *rest = left,
                None => *is_short = true,
            }
        }
        if !is_short.contains(&true) {
            return Vec::new();
        }
        let short = |tenant: TenantIx, place: Place| {
            home(tenant, place).is_some_and(|home| is_short[home.index()])
        };
        let groups = present.groups().iter();
        let groups: Vec<_> = groups
            .map(|group| short(group.tenant, group.place).then_some(group.place))
            .collect();
        let held = present.placements();
        let held = held.filter_map(|(ix, group)| {
            let place = groups[group]?;
            Some(Entry::of_held(self.snapshot, ix, place))
        });
        let more = planned.iter().copied();
        let more = more.filter(|entry| short(entry.tenant, entry.place));
        let mut aged: Vec<Entry<'a>> = held.chain(more).collect();
        // Equal names for a gang's two epochs keep the order of the table.
        aged.sort_by_key(|entry| (entry.since, entry.gang));
        aged
    }

    /// Lets placements stand on their own nominal, which is taken out of `rests`: first those that
    /// did so before. What is left over is asked for at each tenant's level.
    fn stand_on_own(&self, aged: &[Entry<'_>], rests: &mut [u64]) -> Vec<Level> {
        let mut levels = vec![Level::default(); self.rows.len()];
        let mut missing: Vec<u64> = aged.iter().map(|entry| entry.gpus.0).collect();
        for before in [true, false] {
            for (entry, missing) in aged.iter().zip(&mut missing) {
                let Some(home) = self.homes[entry.tenant.index()] else {
                    continue;
                };
                let wanted = if before {
                    own_of(entry.before).0.min(*missing)
                } else {
                    *missing
                };
                let taken = wanted.min(rests[home.index()]);
                rests[home.index()] -= taken;
                *missing -= taken;
            }
        }
        let missing = aged.iter().zip(missing).enumerate();
        for (entry, (it, amount)) in missing.filter(|(_, (_, amount))| *amount > 0) {
            let branch = it.tenant;
            levels[branch.index()].demands.push(Demand {
                entry,
                amount,
                branch,
            });
        }
        levels
    }

    /// All loans.
    fn lend(&self, order: &[TenantIx], aged: &[Entry<'_>], rests: &mut [u64]) -> Vec<Loan> {
        let mut levels = self.stand_on_own(aged, rests);
        let mut roots = Level::default();
        let mut loans = Vec::new();
        for ix in order {
            let mut level = std::mem::take(&mut levels[ix.index()]);
            let quota = self.row(*ix);
            if quota.is_some() {
                level.supplies.push((*ix, rests[ix.index()]));
            }
            level.settle(aged, &mut loans);
            if quota.is_none() && self.above(*ix).is_none() {
                // Nothing here or above counts it: its children have only each other.
                level.give_up(&mut loans);
                continue;
            }
            let unused = level.supplies.iter().map(|(_, amount)| *amount);
            let unused = unused.fold(0_u64, u64::saturating_add);
            let lent = quota.and_then(|quota| quota.lending_limit);
            let parent = self.snapshot.tenants[ix.index()].parent;
            let above = parent.and_then(|parent| levels.get_mut(parent.index()));
            let above = above.unwrap_or(&mut roots);
            above
                .supplies
                .push((*ix, unused.min(lent.unwrap_or(u64::MAX))));
            let demands = level.demands.into_iter();
            above.demands.extend(demands.map(|demand| Demand {
                branch: *ix,
                ..demand
            }));
        }
        roots.settle(aged, &mut loans);
        roots.give_up(&mut loans);
        loans
    }
}

fn nominal(quota: &Quota) -> u64 {
    quota.nominal.min(quota.hard_cap.unwrap_or(u64::MAX))
}

fn own_of(rows: &[LedgerRow]) -> MilliGpus {
    let own = rows.iter().filter(|row| row.role == Role::Own);
    own.fold(MilliGpus::ZERO, |sum, row| sum.saturating_add(row.gpus))
}

impl Level {
    /// Lends what is there to those who ask: first as it was written down, then from the lender
    /// with the largest unused amount, then by id.
    fn settle(&mut self, aged: &[Entry<'_>], loans: &mut Vec<Loan>) {
        self.demands.sort_by_key(|demand| demand.entry);
        for demand in &mut self.demands {
            for row in aged[demand.entry].before {
                let known = self
                    .supplies
                    .iter_mut()
                    .find(|(lender, _)| row.lender == Some(*lender) && *lender != demand.branch);
                if let Some(supply) = known {
                    lend(demand, supply, row.gpus.0, loans);
                }
            }
        }
        for demand in &mut self.demands {
            while demand.amount > 0 {
                let others = self.supplies.iter_mut();
                let others = others.filter(|(lender, _)| *lender != demand.branch);
                let most = others.max_by_key(|(lender, amount)| (*amount, Reverse(*lender)));
                let Some(supply) = most.filter(|(_, amount)| *amount > 0) else {
                    break;
                };
                lend(demand, supply, u64::MAX, loans);
            }
        }
        self.demands.retain(|demand| demand.amount > 0);
    }

    /// Writes down what nobody lends.
    fn give_up(&self, loans: &mut Vec<Loan>) {
        loans.extend(self.demands.iter().map(|demand| Loan {
            entry: demand.entry,
            lender: None,
            amount: demand.amount,
        }));
    }
}

fn lend(demand: &mut Demand, supply: &mut (TenantIx, u64), most: u64, loans: &mut Vec<Loan>) {
    let amount = demand.amount.min(supply.1).min(most);
    if amount > 0 {
        demand.amount -= amount;
        supply.1 -= amount;
        loans.push(Loan {
            entry: demand.entry,
            lender: Some(supply.0),
            amount,
        });
    }
}
