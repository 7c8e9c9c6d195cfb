//! The journal: what happened to objects lately, as `kubectl describe` and `meridian events` show.
//!
//! Owns a bounded ring of events in memory, as long as this replica lives. The durable truth is in
//! the objects themselves; an event is a convenience that expires.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use meridian_api::units::UnixMillis;

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
