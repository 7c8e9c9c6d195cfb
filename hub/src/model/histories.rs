//! What tenants have held, as stored: one key per tenant.
//!
//! Owns the table, and the writes that keep it up: of what ends, in the same transaction, and of
//! what runs, hourly. Never decides what a share is.

use std::collections::BTreeMap;

use bytes::Bytes;
use meridian_api::ids::Revision;
use meridian_api::units::UnixMillis;
use meridian_policies::history::{History, use_of};
use meridian_policies::model::Use;
use meridian_store::{Compare, KeyValue, Op, keys};

use super::Model;
use crate::fence::put;
use crate::placement::PlacementRecord;

/// Milliseconds of an hour: what runs is entered once in each.
const HOUR: i64 = 3_600_000;

/// Histories by tenant.
#[derive(Debug, Default)]
pub(crate) struct Histories(BTreeMap<String, (History, Revision)>);

impl Histories {
    /// Puts one in.
    pub(crate) fn put(&mut self, tenant: &str, entry: &KeyValue) {
        let known = self.0.get(tenant);
        if known.is_some_and(|(_, revision)| *revision >= entry.mod_revision) {
            return;
        }
        match serde_json::from_slice(&entry.value) {
            Ok(history) => {
                self.0
                    .insert(tenant.to_owned(), (history, entry.mod_revision));
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
        let history = self.0.get(tenant).map(|(history, _)| history);
        history.map_or_else(Use::default, |history| history.average(now))
    }

    fn of(&self, tenant: &str) -> (History, Revision) {
        self.0.get(tenant).copied().unwrap_or_default()
    }
}

/// A write of one tenant's history, and the compare that it stands on.
fn write(tenant: &str, history: &History, revision: Revision) -> (Compare, Op) {
    let key = keys::history(tenant);
    let value = serde_json::to_vec(history).expect("a history holds only numbers");
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
        let (mut history, revision) = self.histories.of(&record.tenant);
        let before = history;
        self.enter(&mut history, record, now);
        let is_known = self.catalog.tenants.contains_key(&record.tenant);
        (is_known && history != before).then(|| write(&record.tenant, &history, revision))
    }

    /// Tenants whose running work has not been entered since the hour began, and the writes that
    /// enter it.
    pub(crate) fn histories_due(&self, now: UnixMillis) -> Vec<(Compare, Op)> {
        let hour = UnixMillis(now.0.div_euclid(HOUR) * HOUR);
        let mut due: BTreeMap<&str, (History, Revision)> = BTreeMap::new();
        for row in self.placements.values() {
            let tenant = row.record.tenant.as_str();
            let stored = self.histories.of(tenant);
            if stored.0.until >= hour || !self.catalog.tenants.contains_key(tenant) {
                continue;
            }
            let (history, _) = due.entry(tenant).or_insert(stored);
            self.enter(history, &row.record, now);
        }
        let written = due.into_iter().map(|(tenant, (mut history, revision))| {
            history.until = now;
            write(tenant, &history, revision)
        });
        written.collect()
    }

    /// Enters what a placement holds, from where it was last entered.
    fn enter(&self, history: &mut History, record: &PlacementRecord, now: UnixMillis) {
        let prices = self.catalog.prices();
        let worth = prices.map_or(1000, |book| book.worth(&record.flavor).0.into());
        let from = record.decided.max(history.until);
        history.add(use_of(record.resources(), worth), from, now);
    }
}
