//! `why`: reasons with numbers, the place in the queue, placements.
//!
//! Owns their layout and their JSON shapes. The order of reasons is the hub's.

use std::fmt::Write as _;

use meridian_api::meta::API_VERSION;
use meridian_api::quantity::Time;
use meridian_api::units::{Millis, UnixMillis};
use meridian_client::v1::{GangPlacement, Late, Reason, Remedy, Start, WhyResponse};
use serde_json::{Value, json};

use crate::output::{Grid, Headers};
use crate::text;

/// `why` for a person.
pub(crate) fn why(label: &str, why: &WhyResponse, now: UnixMillis, headers: Headers) -> String {
    let mut page = format!("job {label}: {}", text::or_dash(&why.phase));
    if why.position > 0 {
        let _ = write!(page, ", {} of {} in the queue", why.position, why.waiting);
    }
    page.push('\n');
    if !why.reasons.is_empty() {
        page.push('\n');
        push_lines(&mut page, &reasons(&why.reasons).to_text(headers));
    }
    push_start(&mut page, why.start.as_ref(), now);
    if let Some(late) = &why.late {
        let _ = writeln!(page, "\nlate: {}", late.message);
    }
    push_remedies(&mut page, &why.remedies, headers);
    if !why.placements.is_empty() {
        page.push('\n');
        push_lines(
            &mut page,
            &placements(&why.placements, now).to_text(headers),
        );
    }
    if why.revision > 0 {
        let old = text::span(Millis(why.age_ms));
        let _ = write!(page, "\ndecided {old} ago, at revision {}\n", why.revision);
    }
    page
}

pub(super) fn push_lines(page: &mut String, text: &str) {
    page.push_str(text);
    page.push('\n');
}

/// When it may start, in words.
pub(super) fn push_start(page: &mut String, start: Option<&Start>, now: UnixMillis) {
    let Some(start) = start else { return };
    let until = |millis: i64| text::span(UnixMillis(millis).since(now));
    let earliest = until(start.earliest_ms);
    let _ = match start.latest_ms {
        0 => writeln!(
            page,
            "\nmay start in {earliest}, or later: not all before it say how long they run"
        ),
        latest => writeln!(
            page,
            "\nmay start in {earliest} at the earliest, in {} if all before it end as they say",
            until(latest)
        ),
    };
}

pub(super) fn push_remedies(page: &mut String, remedies: &[Remedy], headers: Headers) {
    if remedies.is_empty() {
        return;
    }
    let mut grid = Grid::new(&["WOULD-HELP", "GPUS", "DETAIL"]);
    for remedy in remedies {
        grid.row(vec![
            remedy.change.clone(),
            text::gpus(remedy.milli_gpus),
            remedy.message.clone(),
        ]);
    }
    page.push('\n');
    push_lines(page, &grid.to_text(headers));
}

pub(super) fn reasons(reasons: &[Reason]) -> Grid {
    let mut grid = Grid::new(&[
        "REASON", "CLUSTER", "FLAVOR", "NEED", "FREE", "LIMIT", "DETAIL",
    ]);
    for reason in reasons {
        let number = |milli| text::counted(reason.has_numbers, milli);
        grid.row(vec![
            reason.code.clone(),
            text::or_dash(&reason.cluster),
            text::or_dash(&reason.flavor),
            number(reason.need),
            number(reason.free),
            number(reason.limit),
            text::or_dash(&reason.message),
        ]);
    }
    grid
}

fn placements(placements: &[GangPlacement], now: UnixMillis) -> Grid {
    let mut grid = Grid::new(&[
        "GANG", "STATE", "CLUSTER", "POOL", "GPUS", "EPOCH", "SINCE", "DETAIL",
    ]);
    for placement in placements {
        grid.row(vec![
            placement.index.to_string(),
            text::or_dash(&placement.state),
            text::or_dash(&placement.cluster),
            text::or_dash(&placement.pool),
            text::gpus(placement.milli_gpus),
            placement.epoch.to_string(),
            text::age(UnixMillis(placement.since_ms), now),
            text::or_dash(&placement.message),
        ]);
    }
    grid
}

/// `why` for a program.
pub(crate) fn value(namespace: &str, name: &str, why: &WhyResponse) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": "Why",
        "namespace": namespace,
        "name": name,
        "phase": why.phase,
        "position": (why.position > 0).then_some(why.position),
        "waiting": why.waiting,
        "reasons": why.reasons.iter().map(reason_value).collect::<Vec<_>>(),
        "estimatedStart": start_value(why.start.as_ref()),
        "late": late_value(why.late.as_ref()),
        "remedies": why.remedies.iter().map(remedy_value).collect::<Vec<_>>(),
        "placements": why.placements.iter().map(placement_value).collect::<Vec<_>>(),
        "revision": why.revision,
        "ageMilliseconds": why.age_ms,
    })
}

/// How late it is expected to be, for a program.
pub(crate) fn late_value(late: Option<&Late>) -> Value {
    late.map_or(Value::Null, |late| {
        json!({
            "finishBy": instant_value(late.finish_by_ms),
            "done": instant_value(late.done_ms),
            "certain": late.is_certain,
            "message": late.message,
        })
    })
}

/// A reason for a program; GPUs as documents write them.
pub(crate) fn reason_value(reason: &Reason) -> Value {
    let mut value = json!({"reason": reason.code, "message": reason.message});
    for (name, text) in [("cluster", &reason.cluster), ("flavor", &reason.flavor)] {
        if !text.is_empty() {
            value[name] = json!(text);
        }
    }
    if reason.has_numbers {
        for (name, milli) in [
            ("need", reason.need),
            ("free", reason.free),
            ("limit", reason.limit),
        ] {
            value[name] = gpus_value(milli);
        }
    }
    value
}

/// An estimate as documents write it; null when there is none.
pub(crate) fn start_value(start: Option<&Start>) -> Value {
    start.map_or(Value::Null, |start| {
        json!({
            "earliest": instant_value(start.earliest_ms),
            "latest": instant_value(start.latest_ms),
        })
    })
}

pub(super) fn remedy_value(remedy: &Remedy) -> Value {
    json!({
        "change": remedy.change,
        "message": remedy.message,
        "startsNow": remedy.starts_now,
        "cluster": remedy.cluster,
        "pool": remedy.pool,
        "gpus": gpus_value(remedy.milli_gpus),
    })
}

/// GPUs as documents write them: a number when whole, else a text.
pub(crate) fn gpus_value(milli: u64) -> Value {
    json!(meridian_api::quantity::GpuQuantity(
        meridian_api::units::MilliGpus(milli)
    ))
}

fn placement_value(placement: &GangPlacement) -> Value {
    json!({
        "index": placement.index,
        "state": placement.state,
        "cluster": placement.cluster,
        "pool": placement.pool,
        "epoch": placement.epoch,
        "gpus": gpus_value(placement.milli_gpus),
        "since": instant_value(placement.since_ms),
        "message": (!placement.message.is_empty()).then_some(&placement.message),
    })
}

/// An instant as documents write it; null when it is not set.
pub(crate) fn instant_value(millis: i64) -> Value {
    match millis {
        0 => Value::Null,
        millis => json!(Time(UnixMillis(millis))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting() -> WhyResponse {
        let reason =
            |code: &str, cluster: &str, numbers: Option<(u64, u64, u64)>, message: &str| {
                let (need, free, limit) = numbers.unwrap_or_default();
                Reason {
                    code: code.into(),
                    message: message.into(),
                    cluster: cluster.into(),
                    flavor: if cluster.is_empty() { "" } else { "h100-80gb" }.into(),
                    has_numbers: numbers.is_some(),
                    need,
                    free,
                    limit,
                }
            };
        WhyResponse {
            phase: "Pending".into(),
            reasons: vec![
                reason(
                    "ExceedsQuota",
                    "",
                    Some((256_000, 512_000, 600_000)),
                    "tenant nlp",
                ),
                reason("ClusterCordoned", "eun-b", None, "closed by a person"),
                reason(
                    "Fragmented",
                    "euw-a",
                    Some((256_000, 300_000, 504_000)),
                    "8 GPUs a host",
                ),
            ],
            position: 3,
            waiting: 17,
            placements: Vec::new(),
            revision: 812,
            age_ms: 2_300,
            late: Some(Late {
                finish_by_ms: 3_600_000,
                done_ms: 4_200_000,
                is_certain: false,
                message: "may start in 10m at the earliest and take 1h: done 10m after finishBy"
                    .into(),
            }),
            remedies: vec![
                remedy(
                    "FewerPods",
                    true,
                    "run with 24 pods of worker instead of 32: starts now",
                ),
                remedy("OtherFlavor", true, "accept flavor a100-80gb: starts now"),
            ],
            start: Some(Start {
                earliest_ms: 600_000,
                latest_ms: 4_200_000,
            }),
        }
    }

    fn remedy(change: &str, starts_now: bool, message: &str) -> Remedy {
        Remedy {
            change: change.into(),
            message: message.into(),
            starts_now,
            milli_gpus: 192_000,
            ..Remedy::default()
        }
    }

    fn running() -> WhyResponse {
        WhyResponse {
            phase: "Running".into(),
            placements: vec![GangPlacement {
                index: 0,
                cluster: "euw-a".into(),
                pool: "train".into(),
                epoch: 4,
                state: "Running".into(),
                milli_gpus: 128_000,
                since_ms: 1_000_000,
                message: "1 of 2 pods run".into(),
            }],
            revision: 900,
            ..WhyResponse::default()
        }
    }

    #[test]
    fn a_waiting_job_shows_every_reason_with_numbers() {
        insta::assert_snapshot!(why("nlp/llm-70b", &waiting(), UnixMillis(0), Headers::Shown), @r#"
        job nlp/llm-70b: Pending, 3 of 17 in the queue

        REASON            CLUSTER   FLAVOR      NEED   FREE   LIMIT   DETAIL
        ExceedsQuota      -         -           256    512    600     tenant nlp
        ClusterCordoned   eun-b     h100-80gb   -      -      -       closed by a person
        Fragmented        euw-a     h100-80gb   256    300    504     8 GPUs a host

        may start in 10m at the earliest, in 70m if all before it end as they say

        late: may start in 10m at the earliest and take 1h: done 10m after finishBy

        WOULD-HELP    GPUS   DETAIL
        FewerPods     192    run with 24 pods of worker instead of 32: starts now
        OtherFlavor   192    accept flavor a100-80gb: starts now

        decided 2s ago, at revision 812
        "#);
    }

    #[test]
    fn a_running_job_shows_where() {
        let now = UnixMillis(1_000_000 + 3_600_000);
        insta::assert_snapshot!(why("nlp/bert", &running(), now, Headers::Shown), @r#"
        job nlp/bert: Running

        GANG   STATE     CLUSTER   POOL    GPUS   EPOCH   SINCE   DETAIL
        0      Running   euw-a     train   128    4       60m     1 of 2 pods run

        decided 0s ago, at revision 900
        "#);
    }

    #[test]
    fn programs_get_numbers_as_documents_write_them() {
        let value = value("nlp", "llm-70b", &waiting());
        assert_eq!(value["kind"], "Why");
        assert_eq!(value["position"], 3);
        assert_eq!(value["reasons"][0]["need"], 256);
        assert!(value["reasons"][1].get("need").is_none());
        assert!(self::value("n", "x", &running())["position"].is_null());
    }
}
