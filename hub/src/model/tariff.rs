//! The tariff: what a placement costs an hour.
//!
//! Owns the way from a placement to the prices of its pool: nominal or borrowed, by region and
//! capacity. What has no price costs nothing. Never adds up a bill.

use std::collections::BTreeMap;

use meridian_api::kinds::GPUPool;
use meridian_api::units::{MicroMoney, MilliGpus};
use meridian_policies::model::Role;

use super::Catalog;
use crate::placement::PlacementRecord;

/// Prices of a catalog, its pools at hand by what agents call them.
pub(super) struct Tariff<'a> {
    catalog: &'a Catalog,
    declared: BTreeMap<(&'a str, &'a str), &'a GPUPool>,
}

impl<'a> Tariff<'a> {
    /// The prices of `catalog`.
    pub(super) fn new(catalog: &'a Catalog) -> Self {
        let pools = catalog.pools.values().map(|pool| &pool.value);
        let declared = pools.map(|pool| {
            let reported = pool.spec.pool.as_ref().unwrap_or(&pool.metadata.name);
            ((pool.spec.cluster.as_str(), reported.as_str()), pool)
        });
        Self {
            catalog,
            declared: declared.collect(),
        }
    }

    /// Price of everything that a placement holds, for an hour.
    pub(super) fn per_hour(&self, record: &PlacementRecord) -> MicroMoney {
        let pool = (&*record.cluster, &*record.pool);
        let declared = self.declared.get(&pool).copied();
        let facts = self
            .catalog
            .pool_facts(declared, &record.cluster, &record.flavor);
        let borrowed = record
            .ledger
            .iter()
            .filter(|row| row.role == Role::Borrowed);
        let borrowed = borrowed.fold(MilliGpus::ZERO, |sum, row| sum.saturating_add(row.gpus));
        let own = MilliGpus(record.gpus.0.saturating_sub(borrowed.0));
        let parts = [(own, facts.price), (borrowed, facts.borrowed_price)];
        let sum = parts.iter().fold(0_i128, |sum, (gpus, price)| {
            let price = price.map_or(0, |price| i128::from(price.0));
            sum.saturating_add(price.saturating_mul(i128::from(gpus.0)))
        });
        MicroMoney(i64::try_from(sum / 1000).unwrap_or(i64::MAX))
    }
}
