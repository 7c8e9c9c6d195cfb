//! What tenants have held and spent, as stored: one key per tenant.
//!
//! Owns the table, and the writes that keep it up: of what ends, in the same transaction, and of
//! what runs, hourly. Never decides what a share is, nor what a budget forbids.

use std::collections::BTreeMap;

use bytes::Bytes;
use meridian_api::calendar::month_start;
use meridian_api::ids::Revision;
use meridian_api::units::{MicroMoney, UnixMillis};
use meridian_policies::history::{History, use_of};
use meridian_policies::model::Use;
use meridian_policies::spending::{Spending, cost};
use meridian_store::{Compare, KeyValue, Op, keys};
use serde::{Deserialize, Serialize};

use super::Model;
use super::tariff::Tariff;
use crate::fence::put;
use crate::placement::PlacementRecord;

/// All of a budget, in percent.
pub(crate) const WHOLE: u32 = 100;
/// Milliseconds of an hour: what runs is entered once in each.
const HOUR: i64 = 3_600_000;

/// What one tenant itself has held, and what that has cost. As stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Past {
    #[serde(flatten)]
    history: History,
    spending: Spending,
    alerted: Alerted,
}

/// Of which part of a budget its owners were told. As stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Alerted {
    /// When the month began.
    month: UnixMillis,
    /// The largest part in it, in percent.
    percent: u32,
}

/// A part of a budget that is spent, of which nobody has been told.
#[derive(Debug)]
pub(crate) struct BudgetAlert {
    /// Whose budget.
    pub(crate) tenant: String,
    /// The largest of its parts that is reached, in percent; 100 = all of it.
    pub(crate) percent: u32,
    /// Spent in the month by the tenant and everything below it.
    pub(crate) spent: MicroMoney,
    /// To be spent at most.
    pub(crate) limit: MicroMoney,
    /// ISO 4217 code of both.
    pub(crate) currency: String,
    /// Notes that it was told.
    pub(crate) write: (Compare, Op),
}

/// Histories by tenant.
#[derive(Debug, Default)]
pub(crate) struct Histories(BTreeMap<String, (Past, Revision)>);

impl Histories {
    /// Puts one in.
    pub(crate) fn put(&mut self, tenant: &str, entry: &KeyValue) {
        let known = self.0.get(tenant);
        if known.is_some_and(|(_, revision)| *revision >= entry.mod_revision) {
            return;
        }
        match serde_json::from_slice(&entry.value) {
            Ok(past) => {
                self.0.insert(tenant.to_owned(), (past, entry.mod_revision));
            }
            Err(error) => tracing::error!(tenant, %error, "a stored history cannot be read"),
        }
    }

    /// Takes one out.
    pub(crate) fn delete(&mut self, tenant: &str, revision: Revision) {
        if self
            .0
            .get(tenant)
            .is_some_and(|(_, known)| *known < revision)
        {
            self.0.remove(tenant);
        }
    }

    /// What a tenant has held on average, lately most.
    #[must_use]
    pub(crate) fn average(&self, tenant: &str, now: UnixMillis) -> Use {
        let past = self.0.get(tenant).map(|(past, _)| past);
        past.map_or_else(Use::default, |past| past.history.average(now))
    }

    /// The largest part of its budget, in percent, of which a tenant's owners were told in the
    /// month of `now`.
    #[must_use]
    pub(crate) fn alerted(&self, tenant: &str, now: UnixMillis) -> Option<u32> {
        let alerted = self.of(tenant).0.alerted;
        let is_of_month = alerted.percent > 0 && alerted.month == month_start(now);
        is_of_month.then_some(alerted.percent)
    }

    fn of(&self, tenant: &str) -> (Past, Revision) {
        self.0.get(tenant).copied().unwrap_or_default()
    }
}

/// A write of one tenant's history, and the compare that it stands on.
fn write(tenant: &str, past: &Past, revision: Revision) -> (Compare, Op) {
    let key = keys::history(tenant);
    let value = serde_json::to_vec(past).expect("a history holds only numbers");
    (
        Compare::ModRevision(key.clone(), revision),
        put(key, Bytes::from(value)),
    )
}

impl Model {
    /// Enters what a placement has held until it ended; `None` when it held nothing that counts.
    #[must_use]
    pub(crate) fn history_of_end(
        &self,
        record: &PlacementRecord,
        now: UnixMillis,
    ) -> Option<(Compare, Op)> {
        let (mut past, revision) = self.histories.of(&record.tenant);
        let before = past;
        self.enter(&mut past, &Tariff::new(&self.catalog), record, now);
        let is_known = self.catalog.tenants.contains_key(&*record.tenant);
        (is_known && past != before).then(|| write(&record.tenant, &past, revision))
    }

    /// Tenants whose running work has not been entered since the hour began, and the writes that
    /// enter it.
    pub(crate) fn histories_due(&self, now: UnixMillis) -> Vec<(Compare, Op)> {
        let hour = UnixMillis(now.0.div_euclid(HOUR) * HOUR);
        let tariff = Tariff::new(&self.catalog);
        let mut due: BTreeMap<&str, (Past, Revision)> = BTreeMap::new();
        for row in self.placements.values() {
            let tenant = &*row.record.tenant;
            let stored = self.histories.of(tenant);
            if stored.0.history.until >= hour || !self.catalog.tenants.contains_key(tenant) {
                continue;
            }
            let (past, _) = due.entry(tenant).or_insert(stored);
            self.enter(past, &tariff, &row.record, now);
        }
        let written = due.into_iter().map(|(tenant, (mut past, revision))| {
            past.history.until = now;
            write(tenant, &past, revision)
        });
        written.collect()
    }

    /// Enters what a placement holds and costs, from where it was last entered.
    fn enter(
        &self,
        past: &mut Past,
        tariff: &Tariff<'_>,
        record: &PlacementRecord,
        now: UnixMillis,
    ) {
        let prices = self.catalog.prices();
        let worth = prices.map_or(1000, |book| book.worth(&record.flavor).0.into());
        let from = record.decided.max(past.history.until);
        past.history
            .add(use_of(record.resources(), worth), from, now);
        past.spending.add(tariff.per_hour(record), from, now);
    }

    /// Budgets of which a larger part is spent than was told in the month of `now`: of the parts
    /// that they name, and of the whole.
    #[must_use]
    pub(crate) fn budget_alerts(&self, now: UnixMillis) -> Vec<BudgetAlert> {
        let spent = self.spent(now);
        let alert = |tenant: &String| {
            let budget = self.catalog.budget(tenant)?;
            let spent = spent.get(tenant).copied().unwrap_or_default();
            let parts = budget.alert_at_percent.iter().copied().chain([WHOLE]);
            let is_reached = |part: &u32| is_reached(*part, spent, budget.monthly.0);
            let percent = parts.filter(is_reached).max()?;
            if self.histories.alerted(tenant, now) >= Some(percent) {
                return None;
            }
            let (mut past, revision) = self.histories.of(tenant);
            past.alerted = Alerted {
                month: month_start(now),
                percent,
            };
            Some(BudgetAlert {
                tenant: tenant.clone(),
                percent,
                spent,
                limit: budget.monthly.0,
                currency: budget.currency.clone(),
                write: write(tenant, &past, revision),
            })
        };
        self.catalog.tenants.keys().filter_map(alert).collect()
    }

    /// Money that each tenant, with everything below it, has spent in the month of `now`: what is
    /// stored, and what its running work has cost since that was written. Only tenants below one
    /// with a budget are counted.
    #[must_use]
    pub(crate) fn spent(&self, now: UnixMillis) -> BTreeMap<String, MicroMoney> {
        let mut spent: BTreeMap<String, MicroMoney> = BTreeMap::new();
        let tenants = &self.catalog.tenants;
        if tenants
            .values()
            .all(|tenant| tenant.value.spec.budget.is_none())
        {
            return spent;
        }
        let mut add = |tenant: &str, amount: MicroMoney| {
            for name in self.catalog.upward(tenant) {
                let sum = spent.entry(name.to_owned()).or_default();
                sum.0 = sum.0.saturating_add(amount.0);
            }
        };
        for tenant in tenants.keys() {
            add(
                tenant,
                self.histories.of(tenant).0.spending.in_month_of(now),
            );
        }
        let tariff = Tariff::new(&self.catalog);
        for row in self.placements.values() {
            let record = &row.record;
            let from = record
                .decided
                .max(self.histories.of(&record.tenant).0.history.until);
            add(&record.tenant, cost(tariff.per_hour(record), from, now));
        }
        spent
    }
}

/// True when so many percent of a budget are spent.
fn is_reached(percent: u32, spent: MicroMoney, limit: MicroMoney) -> bool {
    i128::from(spent.0) * 100 >= i128::from(limit.0) * i128::from(percent)
}

#[cfg(test)]
#[path = "histories_tests.rs"]
mod tests;
