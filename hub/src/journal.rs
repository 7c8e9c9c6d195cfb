//! The journal: what happened to objects lately, as `kubectl describe` and `meridian events` show.
//!
//! Owns a bounded ring of events in memory, as long as this replica lives. The durable truth is in
//! the objects themselves; an event is a convenience that expires.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use meridian_api::quantity::Time;
use meridian_api::units::UnixMillis;
use meridian_apiserver::EventSource;
use serde_json::{Value, json};

/// Events kept. At some 300 bytes each that is about 3 MB: the last hour of a fleet that starts
/// and ends a job each second.
const KEPT: usize = 10_000;

/// Whether somebody should look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gravity {
    /// As it should be.
    Normal,
    /// Not as it should be.
    Warning,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// Counts up.
    pub number: u64,
    /// When.
    pub at: UnixMillis,
    /// Kind of the object.
    pub kind: &'static str,
    /// Its namespace; empty for a cluster-scoped one.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID, or empty.
    pub uid: String,
    /// Whether somebody should look.
    pub gravity: Gravity,
    /// One word.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

/// The ring.
#[derive(Clone, Debug, Default)]
pub struct Journal(Arc<Mutex<Ring>>);

#[derive(Debug, Default)]
struct Ring {
    last: u64,
    entries: VecDeque<JournalEntry>,
}

impl Journal {
    /// Puts an event in; its number is set here.
    pub fn record(&self, mut entry: JournalEntry) {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ring.last += 1;
        entry.number = ring.last;
        if ring.entries.len() == KEPT {
            ring.entries.pop_front();
        }
        ring.entries.push_back(entry);
    }

    /// Events of one namespace (all when `None`), oldest first.
    #[must_use]
    pub fn read(&self, namespace: Option<&str>) -> Vec<JournalEntry> {
        let ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let chosen = ring
            .entries
            .iter()
            .filter(|entry| namespace.is_none_or(|namespace| entry.namespace == namespace));
        chosen.cloned().collect()
    }
}

impl EventSource for Journal {
    fn events(&self, namespace: Option<&str>) -> Vec<Value> {
        let home = |entry: &JournalEntry| match entry.namespace.as_str() {
            "" => "default".to_owned(),
            namespace => namespace.to_owned(),
        };
        // An event about a cluster-scoped object has no namespace and is at home in `default`.
        let among = namespace.filter(|namespace| *namespace != "default");
        let chosen = self.read(among).into_iter();
        let chosen = chosen.filter(|entry| namespace.is_none_or(|wanted| home(entry) == wanted));
        chosen.map(|entry| event(&entry, &home(&entry))).collect()
    }
}

/// An entry as a core/v1 `Event`.
fn event(entry: &JournalEntry, namespace: &str) -> Value {
    let at = json!(Time(entry.at));
    json!({
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": format!("{}.{:x}", entry.name, entry.number),
            "namespace": namespace,
            "creationTimestamp": at,
            "resourceVersion": entry.number.to_string(),
        },
        "involvedObject": {
            "apiVersion": "meridian.dev/v1alpha1",
            "kind": entry.kind,
            "name": entry.name,
            "namespace": entry.namespace,
            "uid": entry.uid,
        },
        "reason": entry.reason,
        "message": entry.message,
        "type": match entry.gravity {
            Gravity::Normal => "Normal",
            Gravity::Warning => "Warning",
        },
        "source": {"component": "meridian-hub"},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(namespace: &str, name: &str) -> JournalEntry {
        JournalEntry {
            number: 0,
            at: UnixMillis(1_000),
            kind: "FederatedJob",
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: String::new(),
            gravity: Gravity::Normal,
            reason: "Placed",
            message: "somewhere".to_owned(),
        }
    }

    #[test]
    fn events_are_read_by_namespace_oldest_first() {
        let journal = Journal::default();
        journal.record(entry("nlp", "a"));
        journal.record(entry("vision", "b"));
        journal.record(entry("nlp", "c"));
        let names = |namespace| -> Vec<String> {
            let events = journal.events(namespace);
            let name = |event: &Value| event["involvedObject"]["name"].as_str().map(str::to_owned);
            events.iter().filter_map(name).collect()
        };
        assert_eq!(names(Some("nlp")), ["a", "c"]);
        assert_eq!(names(None), ["a", "b", "c"]);
    }

    #[test]
    fn the_oldest_go_first() {
        let journal = Journal::default();
        for _ in 0..=KEPT {
            journal.record(entry("nlp", "a"));
        }
        let kept = journal.read(None);
        assert_eq!((kept.len(), kept[0].number), (KEPT, 2));
    }
}
