//! `plan`: what would happen to a job, what that costs, and whose money it is.
//!
//! Owns its layout and its JSON shape. What is expected is the hub's.

use std::fmt::Write as _;

use meridian_api::meta::API_VERSION;
use meridian_api::quantity::{Money, Span};
use meridian_api::units::{MicroMoney, Millis, UnixMillis};
use meridian_client::v1::{Bill, BudgetUse, Cost, PlanResponse, Verdict};
use serde_json::{Value, json};

use super::why::{
    gpus_value, push_lines, push_remedies, push_start, reason_value, reasons, remedy_value,
    start_value,
};
use crate::output::{Grid, Headers};
use crate::text;

/// `plan` for a person.
pub(crate) fn plan(label: &str, plan: &PlanResponse, now: UnixMillis, headers: Headers) -> String {
    let mut page = format!("job {label}: ");
    match plan.verdict() {
        Verdict::StartsNow => {
            let _ = write!(page, "starts now on {}", plan.cluster);
            if !plan.pool.is_empty() {
                let _ = write!(page, ", pool {}", plan.pool);
            }
        }
        Verdict::WillQueue => page.push_str("will queue"),
        Verdict::Never => page.push_str("can never be placed"),
        Verdict::Unspecified => page.push_str("no verdict"),
    }
    if plan.position > 0 {
        let _ = write!(page, ", {} of {} in the queue", plan.position, plan.waiting);
    }
    if let Some(cost) = &plan.cost {
        let _ = write!(page, ", costs at most {}", money(cost));
    }
    page.push('\n');
    if !plan.reasons.is_empty() {
        page.push('\n');
        push_lines(&mut page, &reasons(&plan.reasons).to_text(headers));
    }
    if let Some(bill) = &plan.bill {
        page.push('\n');
        push_lines(&mut page, &parts(bill).to_text(headers));
    }
    if !plan.budgets.is_empty() {
        page.push('\n');
        push_lines(&mut page, &budgets(&plan.budgets).to_text(headers));
    }
    push_start(&mut page, plan.start.as_ref(), now);
    push_remedies(&mut page, &plan.remedies, headers);
    if !plan.token.is_empty() {
        let _ = write!(
            page,
            "\nhold it to this: submit --plan-token {}\n",
            plan.token
        );
    }
    let _ = write!(
        page,
        "\ndecided at revision {}; nothing was stored\n",
        plan.revision
    );
    page
}

/// `12.50 EUR`.
fn money(cost: &Cost) -> String {
    amount(cost.micros, &cost.currency)
}

fn amount(micros: i64, currency: &str) -> String {
    let amount = Money(MicroMoney(micros));
    format!("{amount} {currency}").trim_end().to_owned()
}

/// What the parts of a bill are called, how much they are, and what is said of them.
fn named_parts(bill: &Bill) -> [(&'static str, i64, String); 5] {
    let gpus = text::gpus(bill.milli_gpus);
    let runs = format!("{gpus} GPUs, done in {}", text::span(Millis(bill.time_ms)));
    let words = |words: &str| words.to_owned();
    [
        ("gpus", bill.gpus_micros, runs),
        (
            "egress",
            bill.egress_micros,
            words("data from other regions"),
        ),
        (
            "loss",
            bill.loss_micros,
            words("when borrowed or spot room is taken back"),
        ),
        (
            "fragmentation",
            bill.fragmentation_micros,
            words("room that becomes less useful to others"),
        ),
        (
            "spread",
            bill.spread_micros,
            words("slower over preferred domains"),
        ),
    ]
}

/// A bill as rows; what costs nothing is left out, but for the GPUs.
fn parts(bill: &Bill) -> Grid {
    let mut grid = Grid::new(&["COST", "AMOUNT", "DETAIL"]);
    let shown = named_parts(bill).into_iter();
    let shown = shown.filter(|(name, micros, _)| *micros != 0 || *name == "gpus");
    let total = ("total", bill.total_micros, "expected".to_owned());
    for (name, micros, words) in shown.chain([total]) {
        let amount = amount(micros, &bill.currency);
        grid.row(vec![name.to_owned(), amount, words]);
    }
    grid
}

/// What is left of budgets, nearest first.
fn budgets(budgets: &[BudgetUse]) -> Grid {
    let mut grid = Grid::new(&["BUDGET", "LEFT", "SPENT", "MONTHLY", "WHEN-SPENT"]);
    for budget in budgets {
        let amount = |micros| amount(micros, &budget.currency);
        grid.row(vec![
            budget.tenant.clone(),
            amount(left(budget)),
            amount(budget.spent_micros),
            amount(budget.limit_micros),
            budget.on_exhausted.clone(),
        ]);
    }
    grid
}

/// What of it is left; nothing once all of it is spent.
fn left(budget: &BudgetUse) -> i64 {
    let left = budget.limit_micros.saturating_sub(budget.spent_micros);
    left.max(0)
}

fn bill_value(bill: &Bill) -> Value {
    let money = |micros| json!(Money(MicroMoney(micros)));
    let mut value = json!({
        "total": money(bill.total_micros),
        "currency": (!bill.currency.is_empty()).then_some(&bill.currency),
        "gpuCount": gpus_value(bill.milli_gpus),
        "time": Span(Millis(bill.time_ms)),
    });
    for (name, micros, _) in named_parts(bill) {
        value[name] = money(micros);
    }
    value
}

fn budget_value(budget: &BudgetUse) -> Value {
    let money = |micros| json!(Money(MicroMoney(micros)));
    json!({
        "tenant": budget.tenant,
        "left": money(left(budget)),
        "spent": money(budget.spent_micros),
        "monthly": money(budget.limit_micros),
        "currency": budget.currency,
        "onExhausted": budget.on_exhausted,
    })
}

/// `plan` for a program.
pub(crate) fn plan_value(namespace: &str, name: &str, plan: &PlanResponse) -> Value {
    let verdict = match plan.verdict() {
        Verdict::StartsNow => "StartsNow",
        Verdict::WillQueue => "WillQueue",
        Verdict::Never => "Never",
        Verdict::Unspecified => "Unknown",
    };
    json!({
        "apiVersion": API_VERSION,
        "kind": "JobPlan",
        "namespace": namespace,
        "name": name,
        "verdict": verdict,
        "cluster": plan.cluster,
        "pool": plan.pool,
        "reasons": plan.reasons.iter().map(reason_value).collect::<Vec<_>>(),
        "gpus": gpus_value(plan.milli_gpus),
        "position": (plan.position > 0).then_some(plan.position),
        "waiting": plan.waiting,
        "estimatedStart": start_value(plan.start.as_ref()),
        "remedies": plan.remedies.iter().map(remedy_value).collect::<Vec<_>>(),
        "cost": plan.cost.as_ref().map(|cost| {
            json!({"amount": Money(MicroMoney(cost.micros)), "currency": cost.currency})
        }),
        "bill": plan.bill.as_ref().map(bill_value),
        "budgets": plan.budgets.iter().map(budget_value).collect::<Vec<_>>(),
        "token": (!plan.token.is_empty()).then_some(&plan.token),
        "warnings": plan.warnings,
        "revision": plan.revision,
    })
}

/// What a dry run adds to its answer: what the job is expected to cost, and what is left for it.
pub(crate) fn in_short(plan: &PlanResponse) -> Option<String> {
    let bill = plan.bill.as_ref()?;
    let mut line = format!(
        "expected to cost {}",
        amount(bill.total_micros, &bill.currency)
    );
    if let Some(nearest) = plan.budgets.first() {
        let left = amount(left(nearest), &nearest.currency);
        let _ = write!(line, ", with {left} left to {}", nearest.tenant);
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use meridian_client::v1::{Reason, Remedy, Start};

    use super::*;

    #[test]
    fn a_plan_says_its_verdict() {
        let will_queue = PlanResponse {
            verdict: Verdict::WillQueue.into(),
            reasons: vec![Reason {
                code: "ClusterCordoned".into(),
                message: "closed by a person".into(),
                cluster: "eun-b".into(),
                flavor: "h100-80gb".into(),
                ..Reason::default()
            }],
            remedies: vec![Remedy {
                change: "OtherFlavor".into(),
                message: "accept flavor a100-80gb: starts now".into(),
                starts_now: true,
                milli_gpus: 192_000,
                ..Remedy::default()
            }],
            start: Some(Start {
                earliest_ms: 600_000,
                latest_ms: 4_200_000,
            }),
            position: 3,
            waiting: 18,
            token: "p1.abc.queue.4200000.-".into(),
            revision: 7,
            ..PlanResponse::default()
        };
        insta::assert_snapshot!(plan("nlp/x", &will_queue, UnixMillis(0), Headers::Shown), @r#"
        job nlp/x: will queue, 3 of 18 in the queue

        REASON            CLUSTER   FLAVOR      NEED   FREE   LIMIT   DETAIL
        ClusterCordoned   eun-b     h100-80gb   -      -      -       closed by a person

        may start in 10m at the earliest, in 70m if all before it end as they say

        WOULD-HELP    GPUS   DETAIL
        OtherFlavor   192    accept flavor a100-80gb: starts now

        hold it to this: submit --plan-token p1.abc.queue.4200000.-

        decided at revision 7; nothing was stored
        "#);
        let starts = PlanResponse {
            verdict: Verdict::StartsNow.into(),
            cluster: "euw-a".into(),
            pool: "train".into(),
            cost: Some(Cost {
                micros: 12_500_000,
                currency: "EUR".into(),
            }),
            revision: 7,
            ..PlanResponse::default()
        };
        let text = plan("nlp/x", &starts, UnixMillis(0), Headers::Shown);
        assert!(
            text.starts_with(
                "job nlp/x: starts now on euw-a, pool train, costs at most 12.50 EUR\n"
            ),
            "{text}"
        );
        assert_eq!(plan_value("nlp", "x", &will_queue)["verdict"], "WillQueue");
    }

    #[test]
    fn a_bill_adds_up_and_says_whose_money_it_is() {
        let starts = PlanResponse {
            verdict: Verdict::StartsNow.into(),
            cluster: "euw-a".into(),
            pool: "train".into(),
            bill: Some(Bill {
                currency: "EUR".into(),
                gpus_micros: 41_600_000,
                egress_micros: 50_000_000,
                loss_micros: 520_000,
                total_micros: 92_120_000,
                milli_gpus: 16_000,
                time_ms: 3_600_000,
                ..Bill::default()
            }),
            budgets: vec![BudgetUse {
                tenant: "nlp".into(),
                currency: "EUR".into(),
                spent_micros: 60_000_000,
                limit_micros: 100_000_000,
                on_exhausted: "BlockBorrowing".into(),
            }],
            revision: 7,
            ..PlanResponse::default()
        };
        insta::assert_snapshot!(plan("nlp/x", &starts, UnixMillis(0), Headers::Shown), @r#"
        job nlp/x: starts now on euw-a, pool train

        COST     AMOUNT      DETAIL
        gpus     41.60 EUR   16 GPUs, done in 60m
        egress   50.00 EUR   data from other regions
        loss     0.52 EUR    when borrowed or spot room is taken back
        total    92.12 EUR   expected

        BUDGET   LEFT        SPENT       MONTHLY      WHEN-SPENT
        nlp      40.00 EUR   60.00 EUR   100.00 EUR   BlockBorrowing

        decided at revision 7; nothing was stored
        "#);
        let value = plan_value("nlp", "x", &starts);
        assert_eq!(value["bill"]["total"], "92.12");
        assert_eq!(value["bill"]["egress"], "50.00");
        assert_eq!(value["budgets"][0]["left"], "40.00");
        assert_eq!(
            in_short(&starts).as_deref(),
            Some("expected to cost 92.12 EUR, with 40.00 EUR left to nlp")
        );
    }
}
