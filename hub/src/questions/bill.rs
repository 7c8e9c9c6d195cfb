//! Money of a planned job: what it costs at most, what it is expected to cost, and the budgets that
//! it is counted against.
//!
//! Owns these answers, in the words of the wire. How a place is priced is decided where places are
//! chosen. Changes nothing.

use meridian_api::ids::Uid;
use meridian_api::kinds::price_book::PriceBookSpec;
use meridian_api::kinds::workload_class::CapacityType;
use meridian_api::tree::MAX_TREE_DEPTH;
use meridian_api::units::{MicroMoney, MilliGpus, Millis};
use meridian_policies::choice::cost::Bill;
use meridian_policies::model::{Placed, Role, Snapshot};
use meridian_proto::v1;

use super::tenancy;

/// Milliseconds of an hour, in which prices are.
const HOUR_MS: i128 = 3_600_000;
/// Thousandths of a GPU in one.
const MILLI: i128 = 1_000;

/// What gangs cost if they run for as long as they may; `None` when one may run for ever, or has
/// no price.
pub(super) fn at_most(
    snapshot: &Snapshot,
    placed: &[&Placed],
    prices: &PriceBookSpec,
) -> Option<v1::Cost> {
    let of = |placed: &&Placed| {
        let runtime = snapshot.waiting[placed.waiting.index()].max_runtime?;
        let pool = &snapshot.pools[placed.pool.index()];
        let flavor = &snapshot.flavors[pool.flavor.index()].name;
        let region = &snapshot.regions[snapshot.region(pool.cluster).index()];
        let price = prices.gpu_hour(flavor, region, CapacityType::Nominal)?;
        let gpu_time = i128::from(placed.gpus.0).checked_mul(i128::from(runtime.0))?;
        gpu_time
            .checked_mul(i128::from(price.0))
            .map(|product| product / (HOUR_MS * MILLI))
    };
    let mut sum = 0_i128;
    for placed in placed {
        sum = sum.checked_add(of(placed)?)?;
    }
    Some(v1::Cost {
        micros: i64::try_from(sum).ok()?,
        currency: prices.currency.clone(),
    })
}

/// What finishing all these gangs is expected to cost; `None` when a card of theirs has no price:
/// then their places were compared by worth.
pub(super) fn expected(
    snapshot: &Snapshot,
    placed: &[&Placed],
    prices: Option<&PriceBookSpec>,
) -> Option<v1::Bill> {
    if !placed.iter().all(|placed| is_priced(snapshot, placed)) {
        return None;
    }
    let bills = || placed.iter().map(|placed| &placed.score.bill);
    let sum = |part: fn(&Bill) -> MicroMoney| {
        let parts = bills().map(part);
        let sum = parts.fold(MicroMoney::default(), MicroMoney::saturating_add);
        sum.0
    };
    let gpus = placed.iter().map(|placed| placed.gpus);
    let time = bills().map(|bill| bill.time).max();
    Some(v1::Bill {
        currency: prices.map(|book| book.currency.clone()).unwrap_or_default(),
        gpus_micros: sum(|bill| bill.gpus),
        egress_micros: sum(|bill| bill.egress),
        loss_micros: sum(|bill| bill.loss),
        fragmentation_micros: sum(|bill| bill.fragmentation),
        spread_micros: sum(|bill| bill.spread),
        total_micros: sum(Bill::total),
        milli_gpus: gpus.fold(MilliGpus::ZERO, MilliGpus::saturating_add).0,
        time_ms: time.unwrap_or(Millis::ZERO).0,
    })
}

/// True when somebody says what the cards cost that the gang stands on.
fn is_priced(snapshot: &Snapshot, placed: &Placed) -> bool {
    let facts = &snapshot.pools[placed.pool.index()].facts;
    let borrows = placed.rows.iter().any(|row| row.role == Role::Borrowed);
    let price = if borrows {
        facts.borrowed_price
    } else {
        facts.price
    };
    price.is_some()
}

/// Budgets of the job's tenant and of those above it, nearest first.
pub(super) fn budgets(
    snapshot: &Snapshot,
    job: Uid,
    prices: Option<&PriceBookSpec>,
) -> Vec<v1::BudgetUse> {
    let Some(gang) = snapshot.waiting.iter().find(|row| row.gang.job == job) else {
        return Vec::new();
    };
    let first = snapshot.tenants.get(gang.tenant.index());
    let above = |tenant: &&meridian_policies::model::Tenant| {
        let parent = tenant.parent?;
        snapshot.tenants.get(parent.index())
    };
    let all = std::iter::successors(first, above).take(MAX_TREE_DEPTH + 1);
    let with_currency = |row: v1::BudgetUse| v1::BudgetUse {
        currency: prices.map(|book| book.currency.clone()).unwrap_or_default(),
        ..row
    };
    all.filter_map(tenancy::budget).map(with_currency).collect()
}
