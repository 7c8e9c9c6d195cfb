//! Entries of the store as they come into the model, and as they go.
//!
//! Owns the way from a key to the table that it belongs to. An entry that is older than what is
//! known changes nothing, whichever way it came. Never decides.

use std::sync::Arc;

use bytes::Bytes;
use meridian_api::ids::{GangId, Revision, StoreGeneration, Uid};
use meridian_api::kinds::federated_job::FederatedJobStatus;
use meridian_api::kinds::member_cluster::{Taint, TaintEffect};
use meridian_store::KeyValue;
use meridian_store::keys::{self, ObjectKey, Part};
use serde::de::DeserializeOwned;

use super::{Model, StoredPlacement, catalog, forms, jobs, services};
use crate::placement::PlacementRecord;
use crate::progress::JobProgress;

/// An entry of the store, and what can be read of it beforehand.
#[derive(Debug)]
pub(crate) struct Drafted {
    entry: KeyValue,
    /// Whose it is, and which half.
    object: Option<(ObjectKey, Part)>,
    draft: Draft,
}

/// Reads entries beforehand, and remembers what helps with the next.
#[derive(Debug, Default)]
pub(crate) struct Reader(forms::Met);

/// What has been read of an entry.
#[derive(Debug)]
enum Draft {
    /// Nothing: it is read when it is put in.
    Nothing,
    Job(forms::Draft),
    Status(Box<FederatedJobStatus>),
    Placement(Box<PlacementRecord>),
    Progress(JobProgress),
}

impl Reader {
    /// Reads of an entry what needs no other; what cannot be read is told when it is put in.
    #[must_use]
    pub(crate) fn read(&mut self, entry: KeyValue) -> Drafted {
        Drafted {
            object: ObjectKey::parse(&entry.key),
            draft: self.draft(&entry).unwrap_or(Draft::Nothing),
            entry,
        }
    }

    fn draft(&mut self, entry: &KeyValue) -> Option<Draft> {
        let key = std::str::from_utf8(&entry.key).ok()?;
        match key.split_once('/')? {
            ("objects", key) => {
                let key = key.strip_prefix(jobs::PLURAL)?.strip_prefix('/')?;
                if key.ends_with("/spec") {
                    let job = forms::Draft::of(&entry.value, &mut self.0);
                    return Some(Draft::Job(job.ok()??));
                }
                read(entry).ok().map(Draft::Status)
            }
            ("placements", _) => read(entry).ok().map(Draft::Placement),
            ("progress", _) => read(entry).ok().map(Draft::Progress),
            _ => None,
        }
    }
}

impl Draft {
    fn job(self) -> Option<forms::Draft> {
        if let Self::Job(job) = self {
            return Some(job);
        }
        None
    }

    fn status(self) -> Option<Box<FederatedJobStatus>> {
        if let Self::Status(status) = self {
            return Some(status);
        }
        None
    }

    fn placement(self) -> Option<Box<PlacementRecord>> {
        if let Self::Placement(record) = self {
            return Some(record);
        }
        None
    }

    fn progress(self) -> Option<JobProgress> {
        if let Self::Progress(progress) = self {
            return Some(progress);
        }
        None
    }
}

fn read<T: DeserializeOwned>(entry: &KeyValue) -> serde_json::Result<T> {
    serde_json::from_slice(&entry.value)
}

impl Model {
    /// Puts in what a list at `revision` returned. Start of a model's life.
    pub(crate) fn load(&mut self, entries: impl IntoIterator<Item = Drafted>, revision: Revision) {
        for drafted in entries {
            self.put_drafted(drafted.object, &drafted.entry, drafted.draft);
        }
        self.advance(revision);
    }

    pub(super) fn put(&mut self, entry: &KeyValue) {
        self.put_drafted(ObjectKey::parse(&entry.key), entry, Draft::Nothing);
    }

    fn put_drafted(&mut self, object: Option<(ObjectKey, Part)>, entry: &KeyValue, draft: Draft) {
        if self
            .tombstones
            .get(&entry.key)
            .is_some_and(|removed| *removed >= entry.mod_revision)
        {
            return;
        }
        let key = std::str::from_utf8(&entry.key).unwrap_or_default();
        match key.split_once('/').unwrap_or_default() {
            ("objects", _) => {
                if let Some((object, part)) = object {
                    self.put_object(&object, part, entry, draft);
                }
            }
            ("placements", gang) => self.put_placement(gang, entry, draft.placement()),
            ("holds", gang) => self.put_hold(gang, entry),
            ("progress", job) => self.put_progress(job, entry, draft.progress()),
            ("history", tenant) => self.histories.put(tenant, entry),
            ("capacity", cluster) => self.fleet.put_capacity(cluster, &entry.value),
            ("hub", _) => self.put_head(entry),
            // Agents, idempotency records and templates are read where they are needed.
            _ => {}
        }
    }

    fn put_head(&mut self, entry: &KeyValue) {
        if entry.key == keys::policy_head() {
            self.policy_head = self.policy_head.max(entry.mod_revision);
            self.changed = true;
        } else if entry.key == keys::ledger_head() {
            self.ledger_head = self.ledger_head.max(entry.mod_revision);
        } else if entry.key == keys::store_generation() {
            let text = String::from_utf8_lossy(&entry.value);
            self.store_generation = StoreGeneration(text.trim().parse().unwrap_or_default());
        }
    }

    fn put_object(&mut self, object: &ObjectKey, part: Part, entry: &KeyValue, draft: Draft) {
        if object.plural == jobs::PLURAL {
            match part {
                Part::Spec => self.put_job(object, entry, draft.job()),
                Part::Status => self.put_job_status(object, entry, draft.status()),
            }
        } else if object.plural == services::PLURAL {
            match part {
                Part::Spec => self.put_service(object, entry),
                Part::Status => self.put_service_status(object, entry),
            }
        } else if part == Part::Spec {
            let Some(change) = self.catalog.put(object, entry) else {
                return;
            };
            self.after_catalog(&change);
        } else {
            self.fleet.put_status(object, entry);
        }
    }

    fn after_catalog(&mut self, change: &catalog::Changed) {
        self.changed = true;
        match change {
            catalog::Changed::Cluster(name) => {
                let Some(cluster) = self.catalog.clusters.get(name) else {
                    // A cluster of that name which is added later is another.
                    self.fleet.clusters.remove(name);
                    self.removed_clusters.insert(name.clone());
                    return;
                };
                let ends = |taint: &Taint| taint.effect == TaintEffect::NoExecute;
                let spec = &cluster.value.spec;
                if spec.drained || spec.taints.iter().any(ends) {
                    let there = self.placements.iter();
                    let there = there.filter(|(_, row)| *row.record.cluster == **name);
                    self.unsettled.extend(there.map(|(gang, _)| *gang));
                }
            }
            catalog::Changed::Policy => self.recurring.extend(self.schedules.iter().copied()),
        }
        // What an offer lacked may be there by this change.
        for (name, cluster) in &self.fleet.clusters {
            let troubled = cluster.offers.troubled();
            self.offered
                .extend(troubled.map(|uid| (name.clone(), uid.clone())));
        }
    }

    fn put_placement(&mut self, gang: &str, entry: &KeyValue, draft: Option<Box<PlacementRecord>>) {
        let Ok(gang) = gang.parse::<GangId>() else {
            return;
        };
        if self
            .placements
            .get(&gang)
            .is_some_and(|row| row.revision >= entry.mod_revision)
        {
            return;
        }
        match draft.map_or_else(|| read(entry), Ok) {
            Ok(mut record) => {
                self.placed.share(&mut record);
                self.untold.insert(record.cluster.to_string());
                let row = StoredPlacement {
                    record: Arc::new(*record),
                    revision: entry.mod_revision,
                };
                self.placements.insert(gang, row);
                self.refresh_gang(gang);
            }
            Err(error) => tracing::error!(%gang, %error, "a stored placement cannot be read"),
        }
    }

    fn put_progress(&mut self, job: &str, entry: &KeyValue, draft: Option<JobProgress>) {
        let Ok(uid) = job.parse::<Uid>() else { return };
        let row = self.jobs.row(uid);
        let Some((row, job)) = row.and_then(|row| Some((row, self.jobs.at_mut(row)?))) else {
            // Keys sort so that a job is read before its progress: this one's job is gone.
            return;
        };
        match draft.map_or_else(|| read(entry), Ok) {
            Ok(progress) => {
                if !job.note_progress(progress, entry.mod_revision) {
                    return;
                }
                let progress = job.progress();
                self.losses.note(uid, progress);
                if progress.tried.is_empty() && progress.lacking.is_empty() {
                    self.resting.remove(&uid);
                } else {
                    self.resting.insert(uid);
                }
                let owner = job.run_of();
                self.recurring.extend(owner);
                self.refresh_job(row);
            }
            Err(error) => tracing::error!(%uid, %error, "a job's progress cannot be read"),
        }
    }

    pub(super) fn delete(&mut self, key: &Bytes, revision: Revision) {
        self.tombstones.insert(key.clone(), revision);
        let text = std::str::from_utf8(key).unwrap_or_default();
        match text.split_once('/').unwrap_or_default() {
            ("objects", _) => {
                let Some((object, Part::Spec)) = ObjectKey::parse(key) else {
                    return;
                };
                if object.plural == jobs::PLURAL {
                    self.delete_job(&object, revision);
                } else if object.plural == services::PLURAL {
                    self.delete_service(&object, revision);
                } else if let Some(change) = self.catalog.delete(&object, revision) {
                    self.after_catalog(&change);
                }
            }
            ("placements", gang) => {
                let Ok(gang) = gang.parse::<GangId>() else {
                    return;
                };
                let is_older = |row: &StoredPlacement| row.revision < revision;
                if self.placements.get(&gang).is_some_and(is_older)
                    && let Some(row) = self.placements.remove(&gang)
                {
                    self.untold.insert(row.record.cluster.to_string());
                    self.refresh_gang(gang);
                }
            }
            ("holds", gang) => self.delete_hold(gang, revision),
            ("history", tenant) => self.histories.delete(tenant, revision),
            _ => {}
        }
    }
}
