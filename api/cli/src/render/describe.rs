//! `describe`: an object in sections, with tables where there are lists.
//!
//! Owns its layout. Shows every kind; knows more of jobs.

use std::fmt::Write as _;

use meridian_api::units::UnixMillis;
use meridian_client::apply::LAST_APPLIED;
use serde_json::{Map, Value};

use crate::output::{Grid, Headers, yaml};
use crate::render::events;
use crate::text;

/// Width of the names of a head's lines.
const NAMES: usize = 14;
/// Parts of a status that have sections of their own.
const OWN_SECTIONS: [&str; 3] = ["conditions", "gangs", "blockers"];

/// The whole description, `events` oldest first.
pub(crate) fn describe(object: &Value, events: &[Value], now: UnixMillis) -> String {
    let mut page = head(object, now);
    section(&mut page, "Spec", &block(&object["spec"]));
    let status = &object["status"];
    section(&mut page, "Status", &block(&without(status, &OWN_SECTIONS)));
    table(&mut page, "Conditions", &status["conditions"], |list| {
        conditions(list, now)
    });
    table(&mut page, "Gangs", &status["gangs"], |list| {
        gangs(list, now)
    });
    table(&mut page, "Blockers", &status["blockers"], blockers);
    let happened = if events.is_empty() {
        "none".to_owned()
    } else {
        events::of_one(events, now).to_text(Headers::Shown)
    };
    section(&mut page, "Events", &happened);
    page
}

fn head(object: &Value, now: UnixMillis) -> String {
    let metadata = &object["metadata"];
    let mut page = String::new();
    let mut line = |name: &str, value: &str| {
        let name = format!("{name}:");
        let _ = writeln!(page, "{name:NAMES$}{value}");
    };
    line("Name", &text::scalar(&metadata["name"]));
    if metadata["namespace"].is_string() {
        line("Namespace", &text::scalar(&metadata["namespace"]));
    }
    line("Kind", &text::scalar(&object["kind"]));
    line("Labels", &pairs(&metadata["labels"]));
    line("Annotations", &pairs(&metadata["annotations"]));
    let created = &metadata["creationTimestamp"];
    if created.is_string() {
        let age = text::age_of(created, now);
        line("Created", &format!("{} ({age} ago)", text::scalar(created)));
    }
    let deleted = &metadata["deletionTimestamp"];
    if deleted.is_string() {
        let age = text::age_of(deleted, now);
        line(
            "Deleting",
            &format!("since {} ({age} ago)", text::scalar(deleted)),
        );
    }
    line("UID", &text::scalar(&metadata["uid"]));
    let observed = &object["status"]["observedGeneration"];
    let generation = text::scalar(&metadata["generation"]);
    if observed.is_null() {
        line("Generation", &generation);
    } else {
        line("Generation", &format!("{generation} (observed {observed})"));
    }
    page
}

/// `a=b, c=d`; the last applied document is no news to whoever wrote it.
fn pairs(value: &Value) -> String {
    let nothing = Map::new();
    let fields = value.as_object().unwrap_or(&nothing);
    let shown: Vec<String> = fields
        .iter()
        .filter(|(key, _)| *key != LAST_APPLIED)
        .map(|(key, value)| format!("{key}={}", text::scalar(value)))
        .collect();
    text::or_dash(&shown.join(", "))
}

fn without(status: &Value, names: &[&str]) -> Value {
    let mut status = status.clone();
    if let Value::Object(fields) = &mut status {
        fields.retain(|name, _| !names.contains(&name.as_str()) && name != "observedGeneration");
    }
    status
}

/// A value as YAML; nothing for one that says nothing.
fn block(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Object(fields) if fields.is_empty() => String::new(),
        value => yaml(value),
    }
}

/// A heading with indented lines; left out when there are none.
fn section(page: &mut String, title: &str, text: &str) {
    if text.trim().is_empty() {
        return;
    }
    let _ = writeln!(page, "\n{title}:");
    for line in text.trim_end().lines() {
        let _ = writeln!(page, "{}", format!("  {line}").trim_end());
    }
}

fn table(page: &mut String, title: &str, list: &Value, layout: impl Fn(&[Value]) -> Grid) {
    if let Some(list) = list.as_array().filter(|list| !list.is_empty()) {
        section(page, title, &layout(list).to_text(Headers::Shown));
    }
}

fn conditions(list: &[Value], now: UnixMillis) -> Grid {
    let mut grid = Grid::new(&["TYPE", "STATUS", "REASON", "AGE", "MESSAGE"]);
    for condition in list {
        grid.row(vec![
            text::scalar(&condition["type"]),
            text::scalar(&condition["status"]),
            text::scalar(&condition["reason"]),
            text::age_of(&condition["lastTransitionTime"], now),
            text::scalar(&condition["message"]),
        ]);
    }
    grid
}

fn gangs(list: &[Value], now: UnixMillis) -> Grid {
    let mut grid = Grid::new(&[
        "GANG", "STATE", "CLUSTER", "POOL", "PODS", "GPUS", "EPOCH", "RESTARTS", "SINCE", "MESSAGE",
    ]);
    for gang in list {
        let mut row: Vec<String> = [
            "index", "state", "cluster", "pool", "pods", "gpus", "epoch", "restarts",
        ]
        .iter()
        .map(|name| text::scalar(&gang[*name]))
        .collect();
        row.push(text::age_of(&gang["since"], now));
        row.push(text::scalar(&gang["message"]));
        grid.row(row);
    }
    grid
}

fn blockers(list: &[Value]) -> Grid {
    let mut grid = Grid::new(&[
        "REASON", "CLUSTER", "FLAVOR", "NEED", "FREE", "LIMIT", "DETAIL",
    ]);
    for blocker in list {
        let names = [
            "reason", "cluster", "flavor", "need", "free", "limit", "message",
        ];
        grid.row(
            names
                .iter()
                .map(|name| text::scalar(&blocker[*name]))
                .collect(),
        );
    }
    grid
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job() -> Value {
        json!({
            "apiVersion": "meridian.dev/v1alpha1", "kind": "FederatedJob",
            "metadata": {
                "name": "llm-70b", "namespace": "nlp", "uid": "0123", "generation": 3,
                "labels": {"team": "nlp", "tier": "a"},
                "annotations": {LAST_APPLIED: "{}"},
                "creationTimestamp": "1970-01-01T00:00:10Z"
            },
            "spec": {
                "workloadClass": "batch-long",
                "roles": [{"name": "worker", "replicas": 32, "resources": {"gpus": 8}}]
            },
            "status": {
                "observedGeneration": 3, "phase": "Pending", "reason": "WaitingForCapacity",
                "gpus": 256, "position": 3,
                "gangs": [{"index": 0, "state": "Pending", "pods": 32, "gpus": 256, "restarts": 0}],
                "blockers": [
                    {"reason": "WaitingForCapacity", "cluster": "euw-a", "flavor": "h100-80gb",
                     "need": 256, "free": 34, "limit": 504, "message": "222 short"},
                    {"reason": "NoMatchingFlavor", "cluster": "eun-b"}
                ],
                "conditions": [
                    {"type": "Admitted", "status": "True", "reason": "PolicyPassed",
                     "lastTransitionTime": "1970-01-01T00:00:11Z"},
                    {"type": "Placed", "status": "False", "reason": "WaitingForCapacity",
                     "lastTransitionTime": "1970-01-01T00:00:11Z", "message": "222 GPUs short"}
                ]
            }
        })
    }

    #[test]
    fn a_job_is_described_in_sections() {
        let event = json!({
            "type": "Normal", "reason": "Admitted", "message": "let in by 8 rules",
            "lastTimestamp": "1970-01-01T00:00:11Z", "source": {"component": "hub"}
        });
        insta::assert_snapshot!(describe(&job(), &[event], UnixMillis(310_000)), @r#"
        Name:         llm-70b
        Namespace:    nlp
        Kind:         FederatedJob
        Labels:       team=nlp, tier=a
        Annotations:  -
        Created:      1970-01-01T00:00:10Z (5m ago)
        UID:          0123
        Generation:   3 (observed 3)

        Spec:
          workloadClass: batch-long
          roles:
          - name: worker
            replicas: 32
            resources:
              gpus: 8

        Status:
          phase: Pending
          reason: WaitingForCapacity
          gpus: 256
          position: 3

        Conditions:
          TYPE       STATUS   REASON               AGE     MESSAGE
          Admitted   True     PolicyPassed         4m59s   -
          Placed     False    WaitingForCapacity   4m59s   222 GPUs short

        Gangs:
          GANG   STATE     CLUSTER   POOL   PODS   GPUS   EPOCH   RESTARTS   SINCE   MESSAGE
          0      Pending   -         -      32     256    -       0          -       -

        Blockers:
          REASON               CLUSTER   FLAVOR      NEED   FREE   LIMIT   DETAIL
          WaitingForCapacity   euw-a     h100-80gb   256    34     504     222 short
          NoMatchingFlavor     eun-b     -           -      -      -       -

        Events:
          TYPE     REASON     AGE     FROM   MESSAGE
          Normal   Admitted   4m59s   hub    let in by 8 rules
        "#);
    }

    #[test]
    fn an_object_that_says_little_is_described_shortly() {
        let region = json!({"kind": "Region", "metadata": {"name": "eu-west"}, "spec": {}});
        insta::assert_snapshot!(describe(&region, &[], UnixMillis(0)), @r#"
        Name:         eu-west
        Kind:         Region
        Labels:       -
        Annotations:  -
        UID:          -
        Generation:   -

        Events:
          none
        "#);
    }
}
