//! Accounts: what each tenant has, uses, borrows and lends, and how large its share is.
//!
//! Owns these sums over the ledger's rows, for people who look at the tree. Never limits, orders or
//! decides.

use meridian_api::units::MilliGpus;

use crate::model::{Held, LedgerRow, Measure, Place, Quota, Role, Snapshot, TenantIx};
use crate::quota::ancestry;
use crate::shares::{Share, Shares};

/// One tenant with everything below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Which.
    pub tenant: TenantIx,
    /// One row for each of its GPU quotas, in their order; one over all GPUs when it has none.
    pub rows: Vec<AccountRow>,
    /// Dominant share of the fleet by worth, present use and history together, in thousandths, for
    /// a tenant of weight 1: the lowest goes first among siblings.
    pub share: u64,
    /// Jobs that hold something.
    pub running_jobs: u32,
    /// Gangs that wait.
    pub waiting: u32,
}

/// What one quota counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountRow {
    /// What is counted.
    pub measure: Measure,
    /// Its own; zero without a quota.
    pub nominal: MilliGpus,
    /// Most that it may hold; `None` = no limit at this node.
    pub limit: Option<MilliGpus>,
    /// Held.
    pub used: MilliGpus,
    /// Of that, lent by tenants outside, or over what anybody lends.
    pub borrowed: MilliGpus,
    /// Held by others outside.
    pub lent: MilliGpus,
}

const ALL_GPUS: Measure = Measure::Gpus {
    flavor: None,
    region: None,
};

/// Every tenant, in the order of the table.
#[must_use]
pub fn accounts(snapshot: &Snapshot) -> Vec<Account> {
    let shares = Shares::new(snapshot);
    let all = (0..).map(TenantIx).zip(&snapshot.tenants);
    let mut accounts: Vec<Account> = all
        .map(|(ix, tenant)| Account {
            tenant: ix,
            rows: rows(&tenant.quotas),
            share: in_thousandths(shares.of(ix)),
            running_jobs: 0,
            waiting: 0,
        })
        .collect();
    let mut jobs = std::collections::BTreeSet::new();
    for held in &snapshot.held {
        enter(snapshot, &mut accounts, held);
        for (ix, _) in ancestry(&snapshot.tenants, held.tenant) {
            if jobs.insert((ix, held.gang.job)) {
                accounts[ix.index()].running_jobs += 1;
            }
        }
    }
    for gang in &snapshot.waiting {
        for (ix, _) in ancestry(&snapshot.tenants, gang.tenant) {
            accounts[ix.index()].waiting += 1;
        }
    }
    accounts
}

/// Shares are of the fleet twice over: present and history count alike.
fn in_thousandths(share: Share) -> u64 {
    let thousandths = (u128::from(share) * 2000) >> 32;
    u64::try_from(thousandths).unwrap_or(u64::MAX)
}

fn rows(quotas: &[Quota]) -> Vec<AccountRow> {
    let gpus = quotas
        .iter()
        .filter(|quota| matches!(quota.measure, Measure::Gpus { .. }));
    let row = |quota: &Quota| {
        let limit = quota
            .borrowing_limit
            .map(|more| quota.nominal.saturating_add(more));
        let limit = [limit, quota.hard_cap].into_iter().flatten().min();
        AccountRow {
            nominal: MilliGpus(quota.nominal),
            limit: limit.map(MilliGpus),
            ..nothing(quota.measure)
        }
    };
    let rows: Vec<AccountRow> = gpus.map(row).collect();
    if rows.is_empty() {
        return vec![nothing(ALL_GPUS)];
    }
    rows
}

const fn nothing(measure: Measure) -> AccountRow {
    AccountRow {
        measure,
        nominal: MilliGpus::ZERO,
        limit: None,
        used: MilliGpus::ZERO,
        borrowed: MilliGpus::ZERO,
        lent: MilliGpus::ZERO,
    }
}

/// Adds a placement to everything above its tenant, and its loans to both sides.
fn enter(snapshot: &Snapshot, accounts: &mut [Account], held: &Held) {
    let place = held.place(snapshot);
    let above = |tenant| -> Vec<TenantIx> {
        let above = ancestry(&snapshot.tenants, tenant);
        above.map(|(ix, _)| ix).collect()
    };
    let own = above(held.tenant);
    for ix in &own {
        for row in counted(&mut accounts[ix.index()], place) {
            row.used = row.used.saturating_add(held.resources.gpus);
        }
    }
    let loans = held.rows.iter().filter(|row| row.role == Role::Borrowed);
    for LedgerRow { lender, gpus, .. } in loans {
        let lenders = lender.map(above).unwrap_or_default();
        for ix in own.iter().filter(|ix| !lenders.contains(ix)) {
            for row in counted(&mut accounts[ix.index()], place) {
                row.borrowed = row.borrowed.saturating_add(*gpus);
            }
        }
        for ix in lenders.iter().filter(|ix| !own.contains(ix)) {
            for row in counted(&mut accounts[ix.index()], place) {
                row.lent = row.lent.saturating_add(*gpus);
            }
        }
    }
}

fn counted(account: &mut Account, place: Place) -> impl Iterator<Item = &mut AccountRow> {
    let rows = account.rows.iter_mut();
    rows.filter(move |row| row.measure.counts(place))
}
