//! Events (`v1` `Event`): when, how bad, why, about what.
//!
//! Owns their order and layout.

use meridian_api::quantity::Time;
use meridian_api::units::UnixMillis;
use serde_json::Value;

use crate::output::Grid;
use crate::text;

/// When an event was last seen: whichever of its times is set, as clients of all ages write them.
fn seen(event: &Value) -> &Value {
    let times = [
        &event["series"]["lastObservedTime"],
        &event["lastTimestamp"],
        &event["eventTime"],
        &event["firstTimestamp"],
    ];
    let set = times.into_iter().find(|time| time.is_string());
    set.unwrap_or(&event["metadata"]["creationTimestamp"])
}

/// Oldest first; of the same time by name.
pub(crate) fn sort(events: &mut [Value]) {
    events.sort_by_cached_key(|event| {
        let at = seen(event).as_str().and_then(|at| at.parse::<Time>().ok());
        let name = event["metadata"]["name"].as_str().unwrap_or_default();
        (at.map(|at| at.0), name.to_owned())
    });
}

/// How often it was seen, when more than once.
fn times(event: &Value) -> String {
    let count = event["series"]["count"]
        .as_u64()
        .or_else(|| event["count"].as_u64());
    match count {
        Some(count) if count > 1 => format!(" (x{count})"),
        _ => String::new(),
    }
}

/// `job/llm-70b` for people: the kind in small letters.
fn about(event: &Value) -> String {
    let object = &event["involvedObject"];
    let kind = text::scalar(&object["kind"]).to_lowercase();
    format!("{kind}/{}", text::scalar(&object["name"]))
}

/// Events of a namespace, or of all.
pub(crate) fn grid(events: &[Value], now: UnixMillis, namespaces: bool) -> Grid {
    let mut grid = Grid::default();
    if namespaces {
        grid.titles.push("NAMESPACE".into());
    }
    let titles = ["LAST-SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"];
    grid.titles.extend(titles.map(str::to_owned));
    for event in events {
        let mut row = Vec::new();
        if namespaces {
            row.push(text::scalar(&event["metadata"]["namespace"]));
        }
        row.extend([
            format!("{}{}", text::age_of(seen(event), now), times(event)),
            text::scalar(&event["type"]),
            text::scalar(&event["reason"]),
            about(event),
            text::scalar(&event["message"]),
        ]);
        grid.row(row);
    }
    grid
}

/// Events of one object, as the last part of its description.
pub(crate) fn of_one(events: &[Value], now: UnixMillis) -> Grid {
    let mut grid = Grid::new(&["TYPE", "REASON", "AGE", "FROM", "MESSAGE"]);
    for event in events {
        let reporter = match event["source"]["component"].as_str() {
            Some(component) => component.to_owned(),
            None => text::scalar(&event["reportingComponent"]),
        };
        grid.row(vec![
            text::scalar(&event["type"]),
            text::scalar(&event["reason"]),
            format!("{}{}", text::age_of(seen(event), now), times(event)),
            reporter,
            text::scalar(&event["message"]),
        ]);
    }
    grid
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::output::Headers;

    pub(crate) fn sample() -> Vec<Value> {
        let event = |name: &str, at: &str, kind: &str, reason: &str, count: u64| {
            json!({
                "metadata": {"name": name, "namespace": "nlp"},
                "type": kind, "reason": reason, "message": format!("because of {name}"),
                "count": count, "lastTimestamp": at, "source": {"component": "hub"},
                "involvedObject": {"kind": "FederatedJob", "name": "llm-70b"}
            })
        };
        vec![
            event("b", "1970-01-01T00:01:40Z", "Normal", "Placed", 1),
            event("c", "1970-01-01T00:00:10Z", "Warning", "GangFailed", 4),
            event("a", "1970-01-01T00:01:40Z", "Normal", "Admitted", 1),
        ]
    }

    #[test]
    fn events_are_told_oldest_first() {
        let mut events = sample();
        sort(&mut events);
        let now = UnixMillis(700_000);
        insta::assert_snapshot!(grid(&events, now, true).to_text(Headers::Shown), @r#"
        NAMESPACE   LAST-SEEN   TYPE      REASON       OBJECT                 MESSAGE
        nlp         11m (x4)    Warning   GangFailed   federatedjob/llm-70b   because of c
        nlp         10m         Normal    Admitted     federatedjob/llm-70b   because of a
        nlp         10m         Normal    Placed       federatedjob/llm-70b   because of b
        "#);
        insta::assert_snapshot!(of_one(&events, now).to_text(Headers::Shown), @r#"
        TYPE      REASON       AGE        FROM   MESSAGE
        Warning   GangFailed   11m (x4)   hub    because of c
        Normal    Admitted     10m        hub    because of a
        Normal    Placed       10m        hub    because of b
        "#);
    }

    #[test]
    fn an_event_of_any_age_has_a_time() {
        let event = json!({"metadata": {"creationTimestamp": "1970-01-01T00:00:01Z"},
            "lastTimestamp": null, "eventTime": "1970-01-01T00:00:05Z"});
        assert_eq!(seen(&event), "1970-01-01T00:00:05Z");
        assert_eq!(seen(&json!({"metadata": {"creationTimestamp": "x"}})), "x");
    }
}
