//! The judge: after each step, what the ground truth says of the invariants.
//!
//! Owns the order in which evidence is looked at (what ran, then what was written, then what was
//! told) and the list of what was found. Each look costs what has happened since the last. Never
//! asks a hub or an agent what it believes.

mod clusters;
mod mirrors;
mod rest;
#[cfg(test)]
mod rows_tests;
mod store;

use std::collections::BTreeMap;
use std::sync::Arc;

use meridian_api::ids::Revision;
use meridian_policies::check::Violation;

use super::log::fingerprint;
use super::world::{Note, World};
use clusters::Clusters;
use meridian_store::{Event, WatchBatch};
use mirrors::Mirrors;
use store::StoreTruth;

/// Looks at what agents have on disk are this many steps apart.
const DISK_EVERY: u64 = 25;
/// Violations that one run reports; more of them say nothing new.
const MOST_REPORTED: usize = 10;

/// What happened, for the summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) jobs: usize,
    pub(crate) placements: usize,
    pub(crate) starts: usize,
    pub(crate) terms: usize,
}

/// Judges one run.
pub(crate) struct Judge {
    world: Arc<World>,
    seen: Revision,
    looks: u64,
    store: StoreTruth,
    clusters: Clusters,
    mirrors: Mirrors,
    /// The leader's last word on each job that waits: phase and reasons, by UID.
    explained: BTreeMap<String, (String, Vec<String>)>,
    found: Vec<String>,
}

impl Judge {
    pub(crate) fn new(world: Arc<World>) -> Self {
        Self {
            seen: Revision(world.store.newest_revision().0),
            looks: 0,
            store: StoreTruth::default(),
            clusters: Clusters::new(world.clusters.len()),
            mirrors: Mirrors::default(),
            explained: BTreeMap::new(),
            found: Vec::new(),
            world,
        }
    }

    pub(crate) fn violations(&self) -> &[String] {
        &self.found
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            jobs: self.store.acknowledged(),
            placements: self.store.decided(),
            starts: self.clusters.starts(),
            terms: self.store.terms(),
        }
    }

    /// Something was seen broken from outside.
    pub(crate) fn note_broken(&mut self, message: &str) {
        self.report(vec![Violation {
            invariant: "alive",
            message: message.to_owned(),
        }]);
    }

    /// Takes in everything that has happened since the last look.
    pub(crate) fn look(&mut self) {
        self.looks += 1;
        let notes = self.world.notes.take();
        let mut found = Vec::new();
        // Who wrote what, and what clients were about to ask for, come before the writes.
        for note in &notes {
            match note {
                Note::Wrote(write) => self.store.wrote(write.clone()),
                Note::AskedToDelete { uid } => self.store.asked_to_delete(uid),
                Note::Broken(violation) => found.push(violation.clone()),
                Note::Acknowledged { .. }
                | Note::Listed { .. }
                | Note::Watched { .. }
                | Note::Explained { .. } => {}
            }
        }
        self.look_at_plans(&mut found);
        self.look_at_clusters(&mut found);
        self.look_at_the_store(&mut found);
        for note in notes {
            self.hear(note, &mut found);
        }
        if self.looks.is_multiple_of(DISK_EVERY) {
            for (index, slot) in self.world.clusters.iter().enumerate() {
                found.extend(self.clusters.look_at_disk(index, &slot.disk));
            }
        }
        self.report(found);
    }

    /// A hub throws away what is not sound and goes on: here nothing ever may be.
    fn look_at_plans(&self, found: &mut Vec<Violation>) {
        for (index, slot) in self.world.hubs.iter().enumerate() {
            let thrown_away = slot.metrics.violations.get();
            if thrown_away > 0 {
                let name = super::world::hub_name(index);
                found.push(Violation {
                    invariant: "sound",
                    message: format!("{name} threw away {thrown_away} plans that were not sound"),
                });
            }
        }
    }

    fn look_at_clusters(&mut self, found: &mut Vec<Violation>) {
        let now = self.world.now();
        for (index, slot) in self.world.clusters.iter().enumerate() {
            let after = self.clusters.seen(index);
            for event in slot.cluster.history_after(now, after) {
                let text = format!(
                    "{} {:?} {} {} on {} {:?} ({} of {} bound)",
                    slot.name,
                    event.what,
                    event.key,
                    event.pod,
                    event.node,
                    event.devices,
                    event.bound,
                    event.members
                );
                self.world.log.line(event.at, &text);
                let row = self.store.row(event.key.gang);
                found.extend(self.clusters.take_in(index, slot.name, &event, row));
            }
        }
    }

    fn look_at_the_store(&mut self, found: &mut Vec<Violation>) {
        for batch in self.world.store.history_after(self.seen) {
            self.seen = batch.revision;
            self.log(&batch);
            found.extend(self.store.take_in(&batch, &self.clusters, self.world.now()));
            self.mirrors.store_moved(&batch);
        }
    }

    fn log(&self, batch: &WatchBatch) {
        let writer = self.store.writer_of(batch.revision);
        for event in &batch.events {
            let key = String::from_utf8_lossy(event.key());
            let what = match event {
                Event::Put { current, .. } => fingerprint(&current.value),
                Event::Delete { .. } => "gone".to_owned(),
            };
            let text = format!("r{} {key} {what} by {writer}", batch.revision);
            self.world.log.line(self.world.now(), &text);
        }
    }

    fn hear(&mut self, note: Note, found: &mut Vec<Violation>) {
        match note {
            Note::Acknowledged { key, uid } => found.extend(self.store.told(&key, &uid)),
            Note::Listed {
                hub,
                revision,
                items,
            } => found.extend(self.mirrors.listed(hub, revision, &items)),
            Note::Watched { hub, kind, object } => {
                found.extend(self.mirrors.watched(hub, &kind, &object));
            }
            Note::Explained {
                uid,
                phase,
                reasons,
            } => {
                self.explained.insert(uid, (phase, reasons));
            }
            Note::Wrote(_) | Note::AskedToDelete { .. } | Note::Broken(_) => {}
        }
    }

    /// After the calm: what must have come to rest.
    pub(crate) fn look_at_the_end(&mut self) {
        let found = rest::check(&self.world, &self.store, &self.clusters, &self.explained);
        self.report(found);
    }

    fn report(&mut self, found: Vec<Violation>) {
        for violation in found {
            let text = violation.to_string();
            self.world
                .log
                .line(self.world.now(), &format!("VIOLATION {text}"));
            if self.found.len() < MOST_REPORTED {
                self.found.push(text);
            }
        }
    }
}

/// One violation.
fn broken(invariant: &'static str, message: String) -> Violation {
    Violation { invariant, message }
}
