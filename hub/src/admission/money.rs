//! Admission of money: prices, and the budgets that are counted by them.
//!
//! Owns the rules that prices stand in one place, and that what is spent can be compared with what
//! may be.

use meridian_api::kinds::{PriceBook, Tenant};
use meridian_apiserver::{Admitted, Change, Denial, FieldError, FieldReason, StatusReason};
use serde_json::Value;

use super::HubAdmission;

impl HubAdmission {
    /// Prices stand in one place: which of two books holds would be anybody's guess. They are in
    /// the currency of every budget.
    pub(super) async fn price_book(&self, change: &Change<'_>) -> Result<Admitted, Denial> {
        let others = self.table::<PriceBook>("pricebooks").await?;
        if let Some(other) = others.keys().find(|name| **name != change.key.name) {
            let message = format!("there is PriceBook {other:?} already; put the prices into it");
            return Err(refused("metadata.name", FieldReason::Duplicate, message));
        }
        let currency = change
            .after
            .and_then(|after| after.pointer("/spec/currency"));
        let currency = currency.and_then(Value::as_str).unwrap_or_default();
        let tenants = self.table::<Tenant>("tenants").await?;
        let budget = |tenant: &Tenant| tenant.spec.budget.clone();
        let mut budgets = tenants
            .iter()
            .filter_map(|(name, tenant)| Some((name, budget(tenant)?)));
        let Some((name, budget)) = budgets.find(|(_, budget)| budget.currency != currency) else {
            return Ok(Admitted::default());
        };
        let message = format!(
            "is {currency:?}, and the budget of tenant {name} is in {}: what is spent could not be \
             counted against it",
            budget.currency
        );
        Err(refused("spec.currency", FieldReason::Invalid, message))
    }

    /// A budget is in the currency of the prices, where there are any.
    pub(super) async fn budget_can_be_counted(
        &self,
        tenant: Option<&Tenant>,
    ) -> Result<(), Denial> {
        let Some(budget) = tenant.and_then(|tenant| tenant.spec.budget.as_ref()) else {
            return Ok(());
        };
        let books = self.table::<PriceBook>("pricebooks").await?;
        let Some((name, book)) = books.first_key_value() else {
            return Ok(());
        };
        if book.spec.currency == budget.currency {
            return Ok(());
        }
        let message = format!(
            "is {:?}, and PriceBook {name:?} has prices in {}: what is spent could not be counted \
             against it",
            budget.currency, book.spec.currency
        );
        Err(refused(
            "spec.budget.currency",
            FieldReason::Invalid,
            message,
        ))
    }
}

fn refused(path: &str, reason: FieldReason, message: String) -> Denial {
    Denial {
        reason: StatusReason::Invalid,
        message: String::new(),
        causes: vec![FieldError::new(path, reason, message)],
    }
}
