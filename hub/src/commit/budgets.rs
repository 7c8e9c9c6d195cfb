//! Budgets: telling that a part of one is spent, once in its month.
//!
//! Owns the words and the order: it is written down that something was told before it is, so that a
//! leader that comes next does not tell it again. Never forbids anything (see `quota` of policies).

use meridian_api::calendar::month_start;
use meridian_api::quantity::{Money, Time};
use meridian_api::units::UnixMillis;
use meridian_store::{Operation, StoreError};

use super::Committer;
use crate::fence::{Commit, Fence};
use crate::journal::{Gravity, JournalEntry};
use crate::metrics::TenantLabels;
use crate::model::{BudgetAlert, Model, WHOLE};

impl Committer {
    /// Tells of every budget of which a further part is spent.
    pub(crate) async fn tell_budgets(
        &self,
        model: &mut Model,
        fence: Fence,
        now: UnixMillis,
    ) -> Result<(), StoreError> {
        for alert in model.budget_alerts(now) {
            let (compare, op) = alert.write.clone();
            let why = Operation::WriteCapacity;
            let write = fence.write(self.store.as_ref(), why, vec![compare], vec![op]);
            match write.await? {
                Commit::Done(revision, events) => {
                    model.absorb_committed(&events, revision);
                    self.metrics.budget_alerts.inc();
                    self.journal.record(entry(model, &alert, now));
                }
                // The model has yet to see who wrote it: the next time does.
                Commit::Conflict(_) => {}
                Commit::Deposed => break,
            }
        }
        Ok(())
    }

    /// Shows how much of each budget is spent.
    pub(super) fn show_budgets(&self, model: &Model, now: UnixMillis) {
        let spent = model.spent(now);
        let gauges = &self.metrics.budget_spent_percent;
        gauges.clear();
        for tenant in model.catalog.tenants.keys() {
            let Some(budget) = model.catalog.budget(tenant) else {
                continue;
            };
            let spent = spent.get(tenant).map_or(0, |spent| i128::from(spent.0));
            let percent = spent * 100 / i128::from(budget.monthly.0.0.max(1));
            let labels = TenantLabels {
                tenant: tenant.clone(),
            };
            let percent = i64::try_from(percent).unwrap_or(i64::MAX);
            gauges.get_or_create(&labels).set(percent);
        }
    }
}

fn entry(model: &Model, alert: &BudgetAlert, now: UnixMillis) -> JournalEntry {
    let tenant = model.catalog.tenants.get(&alert.tenant);
    let uid = tenant.and_then(|tenant| tenant.value.metadata.uid);
    let (spent, limit) = (Money(alert.spent), Money(alert.limit));
    JournalEntry {
        number: 0,
        at: now,
        kind: "Tenant",
        namespace: String::new(),
        name: alert.tenant.clone(),
        uid: uid.map(|uid| uid.to_string()).unwrap_or_default(),
        gravity: Gravity::Warning,
        reason: if alert.percent == WHOLE {
            "BudgetExhausted"
        } else {
            "BudgetAlert"
        },
        message: format!(
            "{} % of the budget is spent: {spent} of {limit} {} since {}",
            alert.percent,
            alert.currency,
            Time(month_start(now))
        ),
    }
}
