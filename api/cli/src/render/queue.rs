//! `queue`: one row per waiting gang, in the order in which they go.
//!
//! Owns its layout and its JSON shape.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use meridian_api::meta::API_VERSION;
use meridian_api::units::{Millis, UnixMillis};
use meridian_client::v1::{Late, QueueEntry, QueueResponse, Start};
use serde_json::{Value, json};

use crate::output::Grid;
use crate::render::why::{gpus_value, instant_value, late_value, reason_value, start_value};
use crate::text;

/// What is shown of each entry beyond the usual.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shown {
    /// Where it is blocked, and how.
    pub(crate) wide: bool,
    /// When it may start.
    pub(crate) eta: bool,
}

/// Rows of the queue.
pub(crate) fn grid(queue: &QueueResponse, now: UnixMillis, shown: Shown) -> Grid {
    let mut titles = vec![
        "POS", "NAME", "TENANT", "CLASS", "GPUS", "NEED", "FREE", "BLOCKER",
    ];
    if shown.eta {
        titles.extend(["ETA", "LATEST", "LATE"]);
    }
    if shown.wide {
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
        if shown.eta {
            row.extend(eta(entry.start.as_ref(), now));
            row.push(late(entry.late.as_ref()));
        }
        if shown.wide {
            row.extend(
                [&blocker.cluster, &blocker.flavor, &blocker.message].map(|t| text::or_dash(t)),
            );
        }
        row.push(text::age(UnixMillis(entry.submitted_ms), now));
        grid.row(row);
    }
    grid
}

/// How long until it may start, and until it has if all goes as said; `?` when that is not known.
fn eta(start: Option<&Start>, now: UnixMillis) -> [String; 2] {
    let until = |millis: i64| match millis {
        0 => "?".to_owned(),
        millis => text::span(UnixMillis(millis).since(now)),
    };
    match start {
        None => ["-", "-"].map(str::to_owned),
        Some(start) => [until(start.earliest_ms), until(start.latest_ms)],
    }
}

/// How long after its finishBy it is expected to be done; `-` when it is not late.
fn late(late: Option<&Late>) -> String {
    late.map_or_else(
        || "-".to_owned(),
        |late| text::span(UnixMillis(late.done_ms).since(UnixMillis(late.finish_by_ms))),
    )
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
            "estimatedStart": start_value(entry.start.as_ref()),
            "late": late_value(entry.late.as_ref()),
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
            ..QueueEntry::default()
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

    const WIDE: Shown = Shown {
        wide: true,
        eta: false,
    };

    #[test]
    fn starts_are_shown_when_asked_for() {
        let now = UnixMillis(301_000);
        let mut queue = queue();
        let start = |earliest_ms, latest_ms| {
            Some(Start {
                earliest_ms,
                latest_ms,
            })
        };
        queue.entries[0].start = start(301_000 + 600_000, 301_000 + 4_200_000);
        queue.entries[1].start = start(301_000 + 45_000, 0);
        queue.entries[0].late = Some(Late {
            finish_by_ms: 5_000_000,
            done_ms: 6_800_000,
            ..Late::default()
        });
        let shown = Shown {
            wide: false,
            eta: true,
        };
        let grid = grid(&queue, now, shown);
        assert_eq!(grid.titles[8..], ["ETA", "LATEST", "LATE", "AGE"]);
        let eta: Vec<&[String]> = grid.rows.iter().map(|row| &row[8..11]).collect();
        let expected = [["10m", "70m", "30m"], ["45s", "?", "-"], ["-", "-", "-"]];
        assert_eq!(eta, expected);
        assert!(value(&queue)["entries"][1]["estimatedStart"]["latest"].is_null());
    }

    #[test]
    fn the_queue_narrow_and_wide() {
        let now = UnixMillis(301_000);
        let narrow = grid(&queue(), now, Shown::default());
        insta::assert_snapshot!(narrow.to_text(Headers::Shown), @r#"
        POS   NAME          TENANT   CLASS         GPUS   NEED   FREE   BLOCKER                AGE
        1     nlp/llm       nlp      batch-short   256    256    34     WaitingForCapacity     5m
        2     cv/sweep[3]   cv       batch-short   0.5    -      -      BehindHigherPriority   5m
        3     nlp/new       nlp      batch-short   8      -      -      -                      5m
        "#);
        let wide = grid(&queue(), now, WIDE);
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
