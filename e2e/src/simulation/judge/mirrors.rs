//! What hubs show: their lists and watches of jobs against the store's own history.
//!
//! Owns S21. What a read adds to a job (why it waits, what its agents say of it) is the leader's
//! word of the moment and in no revision, so it is left out of the comparison. Never asks a hub.

use std::collections::BTreeMap;

use meridian_api::ids::Revision;
use meridian_policies::check::Violation;
use meridian_store::keys::{ObjectKey, Part};
use meridian_store::{Event, WatchBatch};
use serde_json::Value;

use super::broken;
use super::store::JOBS;
use crate::simulation::mirror::revision;

/// What a read adds to the status of any job: it changes too often to be stored.
const NEWEST: &str = "checkpoint";
/// What it adds to each of its gangs.
const WORDS: &str = "message";
/// What it adds to that of a job that waits.
const ADDED: [&str; 6] = [
    "phase",
    "reason",
    "message",
    "position",
    "blockers",
    "estimatedStart",
];

/// A job as the store held it from some revision on; `None` = not there.
type Versions = BTreeMap<Revision, Option<(Value, Value)>>;

/// What each hub has shown so far.
#[derive(Default)]
pub(crate) struct Mirrors {
    /// By name.
    jobs: BTreeMap<String, Versions>,
    hubs: BTreeMap<usize, Mirror>,
}

/// One hub's jobs as it last showed them: name to revision.
#[derive(Default)]
struct Mirror {
    shown: BTreeMap<String, Revision>,
    /// Everything up to here has been compared.
    through: Revision,
}

impl Mirrors {
    /// Takes in what the store holds from a revision on.
    pub(crate) fn store_moved(&mut self, batch: &WatchBatch) {
        for event in &batch.events {
            let Some((object, part)) = ObjectKey::parse(event.key()) else {
                continue;
            };
            if object.plural != JOBS {
                continue;
            }
            let versions = self.jobs.entry(object.name).or_default();
            let newest = versions.last_key_value();
            let newest = newest.and_then(|(_, version)| version.clone());
            let (mut spec, mut status) = newest.unwrap_or_default();
            let half = match part {
                Part::Spec => &mut spec,
                Part::Status => &mut status,
            };
            *half = match event {
                Event::Put { current, .. } => {
                    serde_json::from_slice(&current.value).unwrap_or_default()
                }
                Event::Delete { .. } => Value::Null,
            };
            let version = (!spec.is_null()).then_some((spec, status));
            versions.insert(batch.revision, version);
        }
    }

    /// A list: exactly what the store held at its revision.
    pub(crate) fn listed(&mut self, hub: usize, at: Revision, items: &[Value]) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut shown = BTreeMap::new();
        for item in items {
            found.extend(self.compare(hub, item, at));
            shown.insert(name(item), revision(item).unwrap_or_default());
        }
        let mirror = Mirror { shown, through: at };
        found.extend(self.complete(hub, &mirror, at));
        self.hubs.insert(hub, mirror);
        found
    }

    /// An event: the object at its revision, and nothing missed before it.
    pub(crate) fn watched(&mut self, hub: usize, kind: &str, object: &Value) -> Vec<Violation> {
        let Some(at) = revision(object) else {
            return vec![broken(
                "S21",
                format!("hub-{hub}: {kind} without a revision"),
            )];
        };
        let Some(mut mirror) = self.hubs.remove(&hub) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        if at < mirror.through {
            let message = format!("hub-{hub}: {kind} at {at} after {}", mirror.through);
            found.push(broken("S21", message));
        }
        // Other events of the same revision may follow; those of earlier ones may not.
        let settled = match kind {
            "BOOKMARK" => at,
            _ => Revision(at.0.saturating_sub(1)),
        };
        found.extend(self.complete(hub, &mirror, settled.max(mirror.through)));
        match kind {
            "ADDED" | "MODIFIED" => {
                found.extend(self.compare(hub, object, at));
                mirror.shown.insert(name(object), at);
            }
            "DELETED" => {
                mirror.shown.remove(&name(object));
                if self.at(&name(object), at).is_some() {
                    let message = format!("hub-{hub}: {} is not deleted at {at}", name(object));
                    found.push(broken("S21", message));
                }
            }
            _ => {}
        }
        mirror.through = mirror.through.max(settled);
        self.hubs.insert(hub, mirror);
        found
    }

    /// A job in the store at a revision, and since when it has been so.
    fn at(&self, name: &str, at: Revision) -> Option<(Revision, &(Value, Value))> {
        let versions = self.jobs.get(name)?.range(..=at);
        let (since, version) = versions.last()?;
        version.as_ref().map(|version| (*since, version))
    }

    fn compare(&self, hub: usize, object: &Value, at: Revision) -> Option<Violation> {
        let name = name(object);
        let Some((since, (spec, status))) = self.at(&name, at) else {
            let message = format!("hub-{hub} shows {name} at {at}, the store has none");
            return Some(broken("S21", message));
        };
        let mut metadata = object["metadata"].clone();
        if let Some(fields) = metadata.as_object_mut() {
            fields.remove("resourceVersion");
        }
        let same = revision(object) == Some(since)
            && metadata == spec["metadata"]
            && object["spec"] == spec["spec"]
            && stored(&object["status"]) == stored(status);
        (!same).then(|| {
            let message = format!(
                "hub-{hub} shows {name} at {at} as {object}, the store since {since} {spec} {status}"
            );
            broken("S21", message)
        })
    }

    /// Every job that the store held at `at` is shown at its revision, and no other.
    fn complete(&self, hub: usize, mirror: &Mirror, at: Revision) -> Vec<Violation> {
        let mut found = Vec::new();
        for name in self.jobs.keys() {
            let held = self.at(name, at).map(|(since, _)| since);
            let shown = mirror.shown.get(name).copied();
            // What is shown may be ahead by events of the revision that is under way.
            if shown != held && shown.is_none_or(|shown| shown <= at) {
                let message = format!("hub-{hub} at {at}: {name} is {shown:?}, must be {held:?}");
                found.push(broken("S21", message));
            }
        }
        found
    }
}

fn name(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str();
    name.unwrap_or_default().to_owned()
}

/// A status without what a read adds to it.
fn stored(status: &Value) -> Value {
    let mut status = status.clone();
    if let Some(fields) = status.as_object_mut() {
        fields.remove(NEWEST);
    }
    let gangs = status.get_mut("gangs").and_then(Value::as_array_mut);
    for gang in gangs.into_iter().flatten().filter_map(Value::as_object_mut) {
        gang.remove(WORDS);
    }
    let waits = matches!(status["phase"].as_str(), None | Some("Pending"));
    if let Some(fields) = status.as_object_mut().filter(|_| waits) {
        for name in ADDED {
            fields.remove(name);
        }
    }
    match &status {
        Value::Object(fields) if fields.is_empty() => Value::Null,
        _ => status,
    }
}

#[cfg(test)]
#[path = "mirrors_tests.rs"]
mod tests;
