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
    HoldIx, Lapsed, LedgerRow, Measure, Place, Placed, Preemption, Quota, Role, Snapshot, TenantIx,
};
use crate::quota::{ancestry, from_the_leaves};

/// Rows of everything that is held, then of everything that the plan places, then of everything
/// that it makes room for. What was held for a gang in earlier rounds counts, too, unless the hold
/// ends in this plan; its rows are written when it is placed.
#[must_use]
pub fn rows(
    snapshot: &Snapshot,
    placed: &[Placed],
    preemptions: &[Preemption],
    lapsed: &[Lapsed],
) -> Vec<Vec<LedgerRow>> {
    let entries = entries(snapshot, placed, preemptions, lapsed);
    let mut rows: Vec<Vec<LedgerRow>> = entries.iter().map(|it| all_own(it.gpus)).collect();
    // Oldest first; equal names for a gang's two epochs keep the order of the table.
    let mut by_age: Vec<usize> = (0..entries.len()).collect();
    by_age.sort_by_key(|ix| (entries[*ix].since, entries[*ix].gang));
    let aged: Vec<Entry<'_>> = by_age.iter().map(|ix| entries[*ix].clone()).collect();
    let quotas = snapshot.tenants.iter().flat_map(|tenant| &tenant.quotas);
    let measures: BTreeSet<Measure> = quotas.map(|quota| quota.measure).collect();
    let order = from_the_leaves(&snapshot.tenants);
    // Rows count GPUs: CPU and memory have limits, and no lenders.
    let measures = measures
        .into_iter()
        .filter(|it| matches!(it, Measure::Gpus { .. }));
    // The narrowest come last in the table; between equals they are kept.
    for measure in measures.rev() {
        let mut loans: BTreeMap<usize, BTreeMap<Option<TenantIx>, u64>> = BTreeMap::new();
        for loan in (Tree { snapshot, measure }).lend(&order, &aged) {
            let of_entry = loans.entry(by_age[loan.entry]).or_default();
            *of_entry.entry(loan.lender).or_default() += loan.amount;
        }
        for (entry, loans) in loans {
            let next = with_loans(entries[entry].gpus, &loans);
            if borrowed_of(&next) > borrowed_of(&rows[entry]) {
                rows[entry] = next;
            }
        }
    }
    rows.truncate(snapshot.held.len() + placed.len() + preemptions.len());
    rows
}

fn with_loans(gpus: MilliGpus, loans: &BTreeMap<Option<TenantIx>, u64>) -> Vec<LedgerRow> {
    let row = |(lender, amount): (&Option<TenantIx>, &u64)| LedgerRow {
        role: Role::Borrowed,
        lender: *lender,
        gpus: MilliGpus(*amount),
    };
    let borrowed = loans
        .values()
        .fold(0_u64, |sum, amount| sum.saturating_add(*amount));
    let mut rows = all_own(gpus.saturating_sub(MilliGpus(borrowed)));
    rows.extend(loans.iter().map(row));
    rows
}

/// Rows of a placement that stands on its tenant's own quota.
fn all_own(gpus: MilliGpus) -> Vec<LedgerRow> {
    let row = LedgerRow {
        role: Role::Own,
        lender: None,
        gpus,
    };
    (gpus > MilliGpus::ZERO)
        .then_some(row)
        .into_iter()
        .collect()
}

/// GPUs of a placement that are not its tenant's own.
#[must_use]
pub fn borrowed_of(rows: &[LedgerRow]) -> MilliGpus {
    let borrowed = rows.iter().filter(|row| row.role == Role::Borrowed);
    borrowed.fold(MilliGpus::ZERO, |sum, row| sum.saturating_add(row.gpus))
}

/// One placement, held or planned.
#[derive(Clone)]
struct Entry<'a> {
    tenant: TenantIx,
    place: Place,
    gpus: MilliGpus,
    /// As last written down.
    before: &'a [LedgerRow],
    since: UnixMillis,
    gang: GangId,
}

fn entries<'a>(
    snapshot: &'a Snapshot,
    placed: &'a [Placed],
    preemptions: &'a [Preemption],
    lapsed: &[Lapsed],
) -> Vec<Entry<'a>> {
    let held = snapshot.held.iter().map(|held| Entry {
        tenant: held.tenant,
        place: held.place(snapshot),
        gpus: held.resources.gpus,
        before: &held.rows,
        since: held.since,
        gang: held.gang,
    });
    let planned = placed.iter().map(|placed| {
        let gang = &snapshot.waiting[placed.waiting.index()];
        Entry {
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
            tenant: hold.tenant,
            place: hold.place(snapshot),
            gpus: hold.resources.gpus,
            before: &hold.rows,
            since: hold.since,
            gang: hold.gang,
        })
        .collect();
    held.chain(planned).chain(made).chain(holds).collect()
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
}

impl<'a> Tree<'a> {
    fn row(&self, ix: TenantIx) -> Option<&'a Quota> {
        let quotas = &self.snapshot.tenants[ix.index()].quotas;
        quotas.iter().find(|quota| quota.measure == self.measure)
    }

    /// The nearest tenant with a row, `skip` nodes upward or more.
    fn home(&self, ix: TenantIx, skip: usize) -> Option<TenantIx> {
        let path = ancestry(&self.snapshot.tenants, ix).skip(skip);
        let mut path = path.map(|(ix, _)| ix);
        path.find(|ix| self.row(*ix).is_some())
    }

    /// Nominal of each tenant that no row below has been given.
    fn rests(&self) -> Vec<u64> {
        let all = || (0..).map(TenantIx).take(self.snapshot.tenants.len());
        let mut given = vec![0_u64; self.snapshot.tenants.len()];
        for ix in all() {
            if let (Some(quota), Some(above)) = (self.row(ix), self.home(ix, 1)) {
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

    /// Lets placements stand on their own nominal, which is taken out of `rests`. What is left
    /// over is asked for at each tenant's level.
    fn stand_on_own(&self, entries: &[Entry<'_>], rests: &mut [u64]) -> Vec<Level> {
        let mut levels = vec![Level::default(); self.snapshot.tenants.len()];
        let counted = entries.iter().enumerate();
        let counted = counted.filter(|(_, entry)| self.measure.counts(entry.place));
        let homes = counted.filter_map(|(ix, entry)| Some((ix, self.home(entry.tenant, 0)?)));
        let homes: Vec<(usize, TenantIx)> = homes.collect();
        let mut missing: Vec<u64> = entries.iter().map(|entry| entry.gpus.0).collect();
        for before in [true, false] {
            for (ix, home) in &homes {
                let wanted = if before {
                    own_of(entries[*ix].before).0.min(missing[*ix])
                } else {
                    missing[*ix]
                };
                let taken = wanted.min(rests[home.index()]);
                rests[home.index()] -= taken;
                missing[*ix] -= taken;
            }
        }
        for (entry, _) in homes {
            let branch = entries[entry].tenant;
            if missing[entry] > 0 {
                let amount = missing[entry];
                levels[branch.index()].demands.push(Demand {
                    entry,
                    amount,
                    branch,
                });
            }
        }
        levels
    }

    /// All loans.
    fn lend(&self, order: &[TenantIx], entries: &[Entry<'_>]) -> Vec<Loan> {
        let mut rests = self.rests();
        let mut levels = self.stand_on_own(entries, &mut rests);
        let mut roots = Level::default();
        let mut loans = Vec::new();
        for ix in order {
            let mut level = std::mem::take(&mut levels[ix.index()]);
            let quota = self.row(*ix);
            if quota.is_some() {
                level.supplies.push((*ix, rests[ix.index()]));
            }
            level.settle(entries, &mut loans);
            if quota.is_none() && self.home(*ix, 1).is_none() {
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
        roots.settle(entries, &mut loans);
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
    fn settle(&mut self, entries: &[Entry<'_>], loans: &mut Vec<Loan>) {
        self.demands.sort_by_key(|demand| demand.entry);
        for demand in &mut self.demands {
            for row in entries[demand.entry].before {
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
