//! `tenant tree` and `quota fit`: one row per quota, indented by level; what would change.
//!
//! Owns their layout and their JSON shapes. The sums are the hub's.

use std::fmt::Write as _;

use meridian_api::meta::API_VERSION;
use meridian_api::quantity::Money;
use meridian_api::units::MicroMoney;
use meridian_client::v1::{
    BudgetUse, FieldCause, FitQuotaResponse, TenantNode, TenantShift, TenantUse, TenantsResponse,
};
use serde_json::{Value, json};

use crate::output::{Grid, Headers};
use crate::render::why::gpus_value;
use crate::text;

/// One row per quota; a tenant's name stands in its first.
pub(crate) fn tree(tree: &TenantsResponse, wide: bool) -> Grid {
    let mut titles = vec![
        "TENANT", "FLAVOR", "REGION", "NOMINAL", "LIMIT", "USED", "BORROWED", "LENT", "SHARE",
    ];
    if wide {
        titles.extend(["WEIGHT", "JOBS", "WAITING", "SPENT", "BUDGET"]);
    }
    let mut grid = Grid::new(&titles);
    for node in &tree.tenants {
        for (at, row) in node.rows.iter().enumerate() {
            let first = |text: String| if at == 0 { text } else { String::new() };
            let indent = "  ".repeat(usize::try_from(node.depth).unwrap_or_default());
            let all = |name: &str| if name.is_empty() { "*" } else { name }.to_owned();
            let mut cells = vec![
                first(format!("{indent}{}", node.name)),
                all(&row.flavor),
                all(&row.region),
                text::gpus(row.nominal),
                text::counted(row.has_limit, row.limit),
                text::gpus(row.used),
                text::gpus(row.borrowed),
                text::gpus(row.lent),
                first(percent(node.share_thousandths)),
            ];
            if wide {
                cells.extend([
                    first(node.weight.to_string()),
                    first(node.running_jobs.to_string()),
                    first(node.waiting_gangs.to_string()),
                    first(money(node.budget.as_ref(), |budget| budget.spent_micros)),
                    first(money(node.budget.as_ref(), |budget| budget.limit_micros)),
                ]);
            }
            grid.row(cells);
        }
    }
    grid
}

/// `80.00 EUR` of a budget; `-` without one.
fn money(budget: Option<&BudgetUse>, amount: impl Fn(&BudgetUse) -> i64) -> String {
    budget.map_or_else(
        || "-".to_owned(),
        |budget| {
            let amount = Money(MicroMoney(amount(budget)));
            format!("{amount} {}", budget.currency)
                .trim_end()
                .to_owned()
        },
    )
}

/// `12.5%` of thousandths.
fn percent(thousandths: u64) -> String {
    format!("{}.{}%", thousandths / 10, thousandths % 10)
}

fn budget_value(budget: &BudgetUse) -> Value {
    let money = |micros| Money(MicroMoney(micros)).to_string();
    json!({
        "currency": budget.currency,
        "spent": money(budget.spent_micros),
        "monthly": money(budget.limit_micros),
        "exhausted": budget.spent_micros >= budget.limit_micros,
        "onExhausted": budget.on_exhausted,
    })
}

/// The tree for a program.
pub(crate) fn tree_value(tree: &TenantsResponse) -> Value {
    let named = |name: &str| (!name.is_empty()).then(|| name.to_owned());
    let row = |row: &TenantUse| {
        json!({
            "flavor": named(&row.flavor),
            "region": named(&row.region),
            "nominal": gpus_value(row.nominal),
            "limit": row.has_limit.then(|| gpus_value(row.limit)),
            "used": gpus_value(row.used),
            "borrowed": gpus_value(row.borrowed),
            "lent": gpus_value(row.lent),
        })
    };
    let node = |node: &TenantNode| {
        json!({
            "name": node.name,
            "parent": named(&node.parent),
            "depth": node.depth,
            "quotas": node.rows.iter().map(row).collect::<Vec<_>>(),
            "shareThousandths": node.share_thousandths,
            "weight": node.weight,
            "runningJobs": node.running_jobs,
            "waitingGangs": node.waiting_gangs,
            "budget": node.budget.as_ref().map(budget_value),
        })
    };
    json!({
        "apiVersion": API_VERSION,
        "kind": "TenantTree",
        "tenants": tree.tenants.iter().map(node).collect::<Vec<_>>(),
    })
}

/// `quota fit` for a person.
pub(crate) fn fit(fit: &FitQuotaResponse, headers: Headers) -> String {
    let mut page = String::new();
    if !fit.causes.is_empty() {
        let problems = text::plural(fit.causes.len(), "problem");
        let _ = writeln!(page, "would be refused: {problems}\n");
        let width = fit.causes.iter().map(|cause| cause.field.len()).max();
        let width = width.unwrap_or_default();
        for FieldCause { field, message, .. } in &fit.causes {
            let _ = writeln!(page, "  {field:width$}  {message}");
        }
        return page;
    }
    page.push_str("would be let in; nothing was stored\n");
    if fit.shifts.is_empty() {
        page.push_str("\nrunning work keeps the quota that it stands on\n");
    } else {
        page.push('\n');
        page.push_str(&shifts(&fit.shifts).to_text(headers));
        page.push('\n');
    }
    for (names, what) in [
        (&fit.would_start, "would start"),
        (&fit.would_never_start, "could never start any more"),
    ] {
        if !names.is_empty() {
            let count = text::plural(names.len(), "waiting gang");
            let _ = writeln!(page, "\n{count} {what}: {}", names.join(", "));
        }
    }
    page
}

fn shifts(shifts: &[TenantShift]) -> Grid {
    let mut grid = Grid::new(&["TENANT", "OWN", "BORROWED", "OVER"]);
    for shift in shifts {
        let from_to = |before: u64, after: u64| {
            if before == after {
                text::gpus(before)
            } else {
                format!("{} -> {}", text::gpus(before), text::gpus(after))
            }
        };
        grid.row(vec![
            shift.tenant.clone(),
            from_to(shift.own_before, shift.own_after),
            from_to(shift.borrowed_before, shift.borrowed_after),
            text::gpus(shift.over_after),
        ]);
    }
    grid
}

/// `quota fit` for a program.
pub(crate) fn fit_value(fit: &FitQuotaResponse) -> Value {
    let cause = |cause: &FieldCause| json!({"field": cause.field, "message": cause.message});
    let shift = |shift: &TenantShift| {
        json!({
            "tenant": shift.tenant,
            "own": {
                "before": gpus_value(shift.own_before), "after": gpus_value(shift.own_after),
            },
            "borrowed": {
                "before": gpus_value(shift.borrowed_before),
                "after": gpus_value(shift.borrowed_after),
            },
            "over": gpus_value(shift.over_after),
        })
    };
    json!({
        "apiVersion": API_VERSION,
        "kind": "QuotaFit",
        "accepted": fit.causes.is_empty(),
        "causes": fit.causes.iter().map(cause).collect::<Vec<_>>(),
        "shifts": fit.shifts.iter().map(shift).collect::<Vec<_>>(),
        "wouldStart": fit.would_start,
        "wouldNeverStart": fit.would_never_start,
        "revision": fit.revision,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, parent: &str, depth: u32, rows: Vec<TenantUse>) -> TenantNode {
        TenantNode {
            name: name.into(),
            parent: parent.into(),
            depth,
            rows,
            share_thousandths: 125,
            weight: 2,
            running_jobs: 3,
            waiting_gangs: 7,
            budget: (name == "research").then(|| BudgetUse {
                tenant: name.to_owned(),
                currency: "EUR".into(),
                spent_micros: 80_000_000,
                limit_micros: 100_000_000,
                on_exhausted: "BlockBorrowing".into(),
            }),
        }
    }

    fn row(flavor: &str, numbers: [u64; 4], limit: Option<u64>) -> TenantUse {
        let [nominal, used, borrowed, lent] = numbers.map(|gpus| gpus * 1000);
        TenantUse {
            flavor: flavor.into(),
            region: String::new(),
            nominal,
            has_limit: limit.is_some(),
            limit: limit.unwrap_or_default() * 1000,
            used,
            borrowed,
            lent,
        }
    }

    #[test]
    fn the_tree_is_indented_and_names_each_tenant_once() {
        let response = TenantsResponse {
            tenants: vec![
                node(
                    "research",
                    "",
                    0,
                    vec![row("h100", [512, 300, 0, 64], Some(512))],
                ),
                node(
                    "nlp",
                    "research",
                    1,
                    vec![
                        row("h100", [128, 160, 32, 0], Some(256)),
                        row("a100", [64, 0, 0, 0], None),
                    ],
                ),
            ],
        };
        insta::assert_snapshot!(tree(&response, true).to_text(Headers::Shown), @r#"
        TENANT     FLAVOR   REGION   NOMINAL   LIMIT   USED   BORROWED   LENT   SHARE   WEIGHT   JOBS   WAITING   SPENT       BUDGET
        research   h100     *        512       512     300    0          64     12.5%   2        3      7         80.00 EUR   100.00 EUR
          nlp      h100     *        128       256     160    32         0      12.5%   2        3      7         -           -
                   a100     *        64        -       0      0          0
        "#);
        let value = tree_value(&response);
        assert_eq!(value["tenants"][1]["quotas"][0]["borrowed"], 32);
        assert!(value["tenants"][0]["parent"].is_null());
    }

    #[test]
    fn a_cut_says_what_becomes_borrowed() {
        let response = FitQuotaResponse {
            shifts: vec![TenantShift {
                tenant: "nlp".into(),
                own_before: 128_000,
                own_after: 64_000,
                borrowed_before: 0,
                borrowed_after: 64_000,
                over_after: 16_000,
            }],
            would_start: vec!["cv/seg".into()],
            would_never_start: vec!["nlp/huge".into(), "nlp/huge[1]".into()],
            revision: 9,
            ..FitQuotaResponse::default()
        };
        insta::assert_snapshot!(fit(&response, Headers::Shown), @r#"
        would be let in; nothing was stored

        TENANT   OWN         BORROWED   OVER
        nlp      128 -> 64   0 -> 64    16

        1 waiting gang would start: cv/seg

        2 waiting gangs could never start any more: nlp/huge, nlp/huge[1]
        "#);
        assert_eq!(fit_value(&response)["accepted"], true);
    }

    #[test]
    fn a_contradictory_tree_is_refused_with_paths() {
        let response = FitQuotaResponse {
            causes: vec![FieldCause {
                field: "tenantquotas/nlp spec.resources[0].nominal".into(),
                message: "children of research sum to 600, above its 512".into(),
                ..FieldCause::default()
            }],
            ..FitQuotaResponse::default()
        };
        insta::assert_snapshot!(fit(&response, Headers::Shown), @r#"
        would be refused: 1 problem

          tenantquotas/nlp spec.resources[0].nominal  children of research sum to 600, above its 512
        "#);
        assert_eq!(fit_value(&response)["accepted"], false);
    }
}
