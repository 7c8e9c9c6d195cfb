//! `queue`: one row per waiting gang, in the order in which they go.
//!
//! Owns its layout and its JSON shape.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use meridian_api::meta::API_VERSION;
use meridian_api::units::{Millis, UnixMillis};
use meridian_client::v1::{QueueEntry, QueueResponse};
use serde_json::{Value, json};

use crate::output::Grid;
use crate::render::why::{gpus_value, instant_value, reason_value};
use crate::text;

/// Rows of the queue.
pub(crate) fn grid(queue: &QueueResponse, now: UnixMillis, wide: bool) -> Grid {
    let mut titles = vec![
        "POS", "NAME", "TENANT", "CLASS", "GPUS", "NEED", "FREE", "BLOCKER",
    ];
    if wide {
        titles.extend(["CLUSTER", "FLAVOR", "DETAIL"]);
    }
    titles.push("AGE");
    let mut grid = Grid::new(&titles);
    for entry in &queue.entries {
        let blocker = entry.blocker.clone().unwrap_or_default();
        let mut row = vec![
            entry.position.to_string(),
            name(entry),
            text::or_dash(&entry.tenant),
            text::or_dash(&entry.workload_class),
            text::gpus(entry.milli_gpus),
            text::counted(blocker.has_numbers, blocker.need),
            text::counted(blocker.has_numbers, blocker.free),
            text::or_dash(&blocker.code),
        ];
        if wide {
            row.extend(
                [&blocker.cluster, &blocker.flavor, &blocker.message].map(|t| text::or_dash(t)),
            );
        }
        row.push(text::age(UnixMillis(entry.submitted_ms), now));
        grid.row(row);
    }
    grid
}

/// `nlp/llm`, and the number of the gang when it is not the job's first.
fn name(entry: &QueueEntry) -> String {
    match entry.index {
        0 => format!("{}/{}", entry.namespace, entry.name),
        index => format!("{}/{}[{index}]", entry.namespace, entry.name),
    }
}

/// How much waits, by tenant, and how old that is.
pub(crate) fn footer(queue: &QueueResponse) -> String {
    let mut by_tenant: BTreeMap<&str, u64> = BTreeMap::new();
    for entry in &queue.entries {
        let sum = by_tenant.entry(&entry.tenant).or_default();
        *sum = sum.saturating_add(entry.milli_gpus);
    }
    let total: u64 = by_tenant
        .values()
        .fold(0, |sum, each| sum.saturating_add(*each));
    let shares: Vec<String> = by_tenant
        .iter()
        .map(|(tenant, milli)| format!("{} {}", text::or_dash(tenant), text::gpus(*milli)))
        .collect();
    let waiting = text::plural(usize::try_from(queue.total).unwrap_or(usize::MAX), "gang");
    let verb = if queue.total == 1 { "waits" } else { "wait" };
    let mut line = match shares.as_slice() {
        [] => format!("{waiting} {verb}"),
        shares => format!(
            "{waiting} {verb}; {} shown for {} GPUs: {}",
            queue.entries.len(),
            text::gpus(total),
            shares.join(", ")
        ),
    };
    if Millis(queue.age_ms) > text::STALE {
        let _ = write!(line, "; decided {} ago", text::span(Millis(queue.age_ms)));
    }
    line
}

/// The queue for a program.
pub(crate) fn value(queue: &QueueResponse) -> Value {
    let entry = |entry: &QueueEntry| {
        json!({
            "position": entry.position,
            "namespace": entry.namespace,
            "name": entry.name,
            "gang": entry.index,
            "tenant": entry.tenant,
            "workloadClass": entry.workload_class,
            "gpus": gpus_value(entry.milli_gpus),
            "blocker": entry.blocker.as_ref().map(reason_value),
            "submitted": instant_value(entry.submitted_ms),
        })
    };
    json!({
        "apiVersion": API_VERSION,
        "kind": "Queue",
        "entries": queue.entries.iter().map(entry).collect::<Vec<_>>(),
        "total": queue.total,
        "ageMilliseconds": queue.age_ms,
    })
}

#[cfg(test)]
mod tests {
    use meridian_client::v1::Reason;

    use super::*;
    use crate::output::Headers;

    fn queue() -> QueueResponse {
        let entry = |position, name: &str, index, tenant: &str, milli_gpus, blocker| QueueEntry {
            position,
            namespace: tenant.into(),
            name: name.into(),
            index,
            tenant: tenant.into(),
            workload_class: "batch-short".into(),
            milli_gpus,
            blocker,
            submitted_ms: 1_000,
        };
        let short = Reason {
            code: "WaitingForCapacity".into(),
            message: "34 of 256 free".into(),
            cluster: "euw-a".into(),
            flavor: "h100-80gb".into(),
            has_numbers: true,
            need: 256_000,
            free: 34_000,
            limit: 504_000,
        };
        let behind = Reason {
            code: "BehindHigherPriority".into(),
            ..Reason::default()
        };
        QueueResponse {
            entries: vec![
                entry(1, "llm", 0, "nlp", 256_000, Some(short)),
                entry(2, "sweep", 3, "cv", 500, Some(behind)),
                entry(3, "new", 0, "nlp", 8_000, None),
            ],
            total: 40,
            age_ms: 9_000,
        }
    }

    #[test]
    fn the_queue_narrow_and_wide() {
        let now = UnixMillis(301_000);
        let narrow = grid(&queue(), now, false);
        insta::assert_snapshot!(narrow.to_text(Headers::Shown), @r#"
        POS   NAME          TENANT   CLASS         GPUS   NEED   FREE   BLOCKER                AGE
        1     nlp/llm       nlp      batch-short   256    256    34     WaitingForCapacity     5m
        2     cv/sweep[3]   cv       batch-short   0.5    -      -      BehindHigherPriority   5m
        3     nlp/new       nlp      batch-short   8      -      -      -                      5m
        "#);
        let wide = grid(&queue(), now, true);
        assert_eq!(wide.titles[8..], ["CLUSTER", "FLAVOR", "DETAIL", "AGE"]);
        assert_eq!(
            wide.rows[0][8..],
            ["euw-a", "h100-80gb", "34 of 256 free", "5m"]
        );
        assert_eq!(wide.rows[2][8..], ["-", "-", "-", "5m"]);
    }

    #[test]
    fn the_footer_counts_by_tenant_and_says_how_old_it_is() {
        assert_eq!(
            footer(&queue()),
            "40 gangs wait; 3 shown for 264.5 GPUs: cv 0.5, nlp 264; decided 9s ago"
        );
        assert_eq!(footer(&QueueResponse::default()), "0 gangs wait");
        assert_eq!(value(&queue())["entries"][1]["gpus"], json!("0.5"));
    }
}
