//! Raises: how much more quota would let a gang start.
//!
//! Owns the way from the limits in its way to the numbers that would be enough, and no more. Never
//! asks whether there is anything to give: who lends is in the numbers already.

use meridian_api::units::MilliGpus;

use crate::decide::decide;
use crate::model::{Measure, Place, Quota, Snapshot, Tenant, TenantIx, Waiting};
use crate::quota::{Bound, Ledger, Reach, ancestry, gpus_per_job};

/// Limits that are raised one after the other: a row and the one above it at each level of the
/// deepest tree.
const MAX_RAISES: usize = 32;

/// One number of a tenant, and what it would have to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raise {
    /// Whose.
    pub tenant: TenantIx,
    /// Which.
    pub of: RaiseOf,
    /// What it is, in its own unit.
    pub from: u64,
    /// What it would be.
    pub to: u64,
}

/// Which number of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RaiseOf {
    /// Its own of this measure.
    Nominal(Measure),
    /// Most that it may borrow.
    BorrowingLimit(Measure),
    /// Most that it may hold.
    HardCap(Measure),
    /// Most GPUs of one job, in thousandths.
    GpusPerJob,
    /// Most jobs at once.
    RunningJobs,
}

/// Writes the number.
pub(super) fn apply(tenants: &mut [Tenant], raise: &Raise) {
    let Some(tenant) = tenants.get_mut(raise.tenant.index()) else {
        return;
    };
    let row = |tenant: &mut Tenant, measure: Measure, put: &dyn Fn(&mut Quota)| {
        let mut rows = tenant.quotas.iter_mut();
        if let Some(row) = rows.find(|row| row.measure == measure) {
            put(row);
        }
    };
    match raise.of {
        RaiseOf::Nominal(measure) => row(tenant, measure, &|row| row.nominal = raise.to),
        RaiseOf::BorrowingLimit(measure) => {
            row(tenant, measure, &|row| row.borrowing_limit = Some(raise.to));
        }
        RaiseOf::HardCap(measure) => row(tenant, measure, &|row| row.hard_cap = Some(raise.to)),
        RaiseOf::GpusPerJob => tenant.gpus_per_job = Some(MilliGpus(raise.to)),
        RaiseOf::RunningJobs => {
            tenant.running_jobs = Some(u32::try_from(raise.to).unwrap_or(u32::MAX));
        }
    }
}

/// What would have to be raised for the only gang that waits in `alone`; `None` when quota is not
/// in its way, or not the only thing.
pub(super) fn needed(alone: &Snapshot) -> Option<Vec<Raise>> {
    let gang = alone.waiting.first()?;
    let place = place_without_limits(alone, gang)?;
    let mut raised = alone.clone();
    let mut raises: Vec<Raise> = Vec::new();
    while let Some(raise) = next(&raised, gang, place, &raises) {
        if raises.len() == MAX_RAISES {
            return None;
        }
        apply(&mut raised.tenants, &raise);
        let known = raises
            .iter_mut()
            .find(|known| (known.tenant, known.of) == (raise.tenant, raise.of));
        match known {
            Some(known) => known.to = raise.to,
            None => raises.push(raise),
        }
    }
    without_superfluous(alone, gang, place, &mut raises);
    (!raises.is_empty()).then_some(raises)
}

/// Where it would go if nothing limited its tenants.
fn place_without_limits(alone: &Snapshot, gang: &Waiting) -> Option<Place> {
    let mut free = alone.clone();
    let above: Vec<TenantIx> = ancestry(&alone.tenants, gang.tenant)
        .map(|(ix, _)| ix)
        .collect();
    for ix in above {
        let tenant = &mut free.tenants[ix.index()];
        tenant.quotas.clear();
        tenant.gpus_per_job = None;
        tenant.running_jobs = None;
    }
    let plan = decide(&free);
    let placed = plan.placements.first()?;
    Some(alone.place(&alone.pools[placed.pool.index()]))
}

/// The next number that is too small.
fn next(snapshot: &Snapshot, gang: &Waiting, place: Place, raised: &[Raise]) -> Option<Raise> {
    let tenants = &snapshot.tenants;
    if let Some((tenant, limit)) = gpus_per_job(tenants, gang.tenant)
        && gang.job_gpus > limit
    {
        return Some(Raise {
            tenant,
            of: RaiseOf::GpusPerJob,
            from: limit.0,
            to: gang.job_gpus.0,
        });
    }
    let ledger = Ledger::new(snapshot);
    if let Some((tenant, running, limit)) = ledger.job_limit(gang.tenant, gang.gang.job) {
        return Some(Raise {
            tenant,
            of: RaiseOf::RunningJobs,
            from: limit.into(),
            to: u64::from(running) + 1,
        });
    }
    let need = gang.shape.demand(&gang.shape.least());
    let short = ledger.short(gang.tenant, place, Reach::Borrowing, need);
    let over = short
        .first()
        .and_then(|(bound, missing)| of_bound(tenants, bound, *missing));
    over.or_else(|| above_its_children(tenants, gang.tenant, raised))
}

/// The number behind a bound: what it may borrow, its cap, or, when nobody has more to lend, its
/// own.
fn of_bound(tenants: &[Tenant], bound: &Bound, missing: u64) -> Option<Raise> {
    let tenant = &tenants[bound.tenant.index()];
    let row = row_of(tenant, bound.measure)?;
    let (of, from) = if bound.siblings {
        match row.hard_cap {
            // What is its own counts only within its cap.
            Some(cap) if cap <= row.nominal => (RaiseOf::HardCap(row.measure), cap),
            Some(_) | None => (RaiseOf::Nominal(row.measure), row.nominal),
        }
    } else {
        let borrowing = row.borrowing_limit.unwrap_or(u64::MAX);
        match row.hard_cap {
            Some(cap) if cap <= row.nominal.saturating_add(borrowing) => {
                (RaiseOf::HardCap(row.measure), cap)
            }
            Some(_) | None => (RaiseOf::BorrowingLimit(row.measure), borrowing),
        }
    };
    Some(Raise {
        tenant: bound.tenant,
        of,
        from,
        to: from.checked_add(missing)?,
    })
}

fn row_of(tenant: &Tenant, measure: Measure) -> Option<&Quota> {
    tenant.quotas.iter().find(|row| row.measure == measure)
}

/// A row above what was raised whose children have more of their own than it has: admission
/// refuses such a tree.
fn above_its_children(tenants: &[Tenant], below: TenantIx, raised: &[Raise]) -> Option<Raise> {
    let nominal = |raise: &Raise| match raise.of {
        RaiseOf::Nominal(measure) => Some(measure),
        RaiseOf::BorrowingLimit(_)
        | RaiseOf::HardCap(_)
        | RaiseOf::GpusPerJob
        | RaiseOf::RunningJobs => None,
    };
    let touched = |measure: Measure| raised.iter().any(|raise| nominal(raise) == Some(measure));
    let rows = ancestry(tenants, below).skip(1);
    let rows = rows.flat_map(|(ix, tenant)| tenant.quotas.iter().map(move |row| (ix, row)));
    let mut rows = rows.filter(|(_, row)| touched(row.measure));
    rows.find_map(|(above, row)| {
        let given = given_below(tenants, above, row.measure);
        (given > row.nominal).then_some(Raise {
            tenant: above,
            of: RaiseOf::Nominal(row.measure),
            from: row.nominal,
            to: given,
        })
    })
}

/// Nominal of the nearest rows below a tenant.
fn given_below(tenants: &[Tenant], above: TenantIx, measure: Measure) -> u64 {
    let all = (0..).map(TenantIx).zip(tenants);
    let given = all.filter_map(|(ix, tenant)| {
        let own = row_of(tenant, measure)?;
        let mut higher = ancestry(tenants, ix).skip(1);
        let nearest = higher.find(|(_, node)| row_of(node, measure).is_some());
        nearest.filter(|(at, _)| *at == above).map(|_| own.nominal)
    });
    given.fold(0, u64::saturating_add)
}

/// Leaves out what is not needed any more because of what was raised after it.
fn without_superfluous(alone: &Snapshot, gang: &Waiting, place: Place, raises: &mut Vec<Raise>) {
    let mut at = 0;
    while at < raises.len() {
        let mut fewer = raises.clone();
        fewer.remove(at);
        let mut trial = alone.clone();
        for raise in &fewer {
            apply(&mut trial.tenants, raise);
        }
        if next(&trial, gang, place, &fewer).is_none() {
            *raises = fewer;
        } else {
            at += 1;
        }
    }
}
