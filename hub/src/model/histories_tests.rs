//! What tenants spend: by whose prices, of whose budget, in which month.

use meridian_api::units::{MicroMoney, Millis, UnixMillis};
use meridian_policies::lifecycle::State;
use serde_json::json;

use crate::fixture_tests::{FIRST, Fixture, NOW, gang};
use crate::settle::settle_gang;

/// 8 cards at 2.50 an hour, of which half as much again is taken when they are borrowed.
fn fixture() -> Fixture {
    let mut fixture = Fixture::new(4);
    let budget = json!({"currency": "EUR", "monthly": "100.00", "onExhausted": "BlockBorrowing"});
    fixture.object("tenants/-/org", "Tenant", &json!({"budget": budget}));
    fixture.object("tenants/-/nlp", "Tenant", &json!({"parent": "org"}));
    let prices = json!([{"capacity": "Borrowed", "gpuHour": "3.75"}]);
    let flavor = json!({"flavor": "h100-80gb", "gpuHour": "2.50", "prices": prices});
    let book = json!({"currency": "EUR", "flavors": [flavor]});
    fixture.object("pricebooks/-/list", "PriceBook", &book);
    fixture.job(&json!({}), &json!({}));
    fixture.place(0, FIRST, State::Running);
    fixture
}

fn hours(hours: u64) -> UnixMillis {
    NOW.after(Millis(hours * 3_600_000))
}

fn euros(euros: i64) -> MicroMoney {
    MicroMoney(euros * 1_000_000)
}

#[test]
fn what_runs_costs_its_tenant_and_those_above_as_it_runs() {
    let mut fixture = fixture();
    let org = |fixture: &Fixture, at| {
        fixture
            .model
            .spent(at)
            .get("org")
            .copied()
            .unwrap_or_default()
    };
    assert_eq!(org(&fixture, hours(3)), euros(60));
    // Entered or not, it is the same.
    let due = fixture.model.histories_due(hours(2));
    let [(_, meridian_store::Op::Put { value, .. })] = due.as_slice() else {
        panic!("one write: {due:?}");
    };
    fixture.put("history/nlp", value);
    assert_eq!(org(&fixture, hours(2)), euros(40));
    assert_eq!(org(&fixture, hours(3)), euros(60));
    // It ends: nothing more is spent, and what was stays spent.
    fixture.saw(0, FIRST, meridian_proto::v1::GangStep::Succeeded, "");
    let change = settle_gang(&fixture.model, gang(0), hours(4)).expect("news");
    fixture.carry_out(&change);
    assert_eq!(org(&fixture, hours(9)), euros(80));
    let budget = fixture
        .model
        .snapshot(Fixture::situation())
        .snapshot
        .tenants;
    let budget = budget
        .iter()
        .find_map(|tenant| tenant.budget)
        .expect("org has one");
    assert_eq!((budget.spent, budget.limit), (euros(80), euros(100)));
    // The fixture lives in January 1970; February is another month.
    assert_eq!(org(&fixture, hours(40 * 24)), euros(0));
}

#[test]
fn a_budget_in_another_currency_than_the_prices_is_not_counted() {
    let mut fixture = fixture();
    fixture.object(
        "pricebooks/-/list",
        "PriceBook",
        &json!({"currency": "USD"}),
    );
    let tenants = fixture
        .model
        .snapshot(Fixture::situation())
        .snapshot
        .tenants;
    assert!(tenants.iter().all(|tenant| tenant.budget.is_none()));
}
