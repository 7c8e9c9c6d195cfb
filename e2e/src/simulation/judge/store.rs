//! What was written: every revision of the store, who made it, and on what condition.
//!
//! Owns S3, S5, S7, S8 and S20, and S2 and S14 as seen in the store. Reads the stored form of rows,
//! progress, capacity and objects. Never asks a hub.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use meridian_api::ids::{Epoch, GangId, Revision};
use meridian_api::units::{MilliGpus, Millis, UnixMillis};
use meridian_hub::leadership::Leader;
use meridian_hub::placement::PlacementRecord;
use meridian_hub::progress::JobProgress;
use meridian_policies::check::Violation;
use meridian_policies::check::truth::{self, PoolSum};
use meridian_policies::model::Shape;
use meridian_policies::shapes;
use meridian_store::keys::{self, ObjectKey, Part};
use meridian_store::{Compare, Event, KeyValue, Operation, WatchBatch};
use serde::Deserialize;
use serde_json::Value;

use super::broken;
use super::clusters::{Clusters, grows};
use crate::simulation::jobs::KEY_LABEL;
use crate::simulation::witness::Write;
use crate::simulation::world::GPUS;

/// Plural of jobs.
pub(super) const JOBS: &str = "federatedjobs";

/// A row and when it was last written.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) record: PlacementRecord,
    pub(crate) written: UnixMillis,
}

/// Create and newest revision of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Revisions {
    created: Revision,
    changed: Revision,
}

/// The store so far.
#[derive(Default)]
pub(crate) struct StoreTruth {
    revisions: BTreeMap<Bytes, Revisions>,
    writes: BTreeMap<Revision, Write>,
    /// Who holds the election key, and since which revision.
    leader: Option<(String, Revision)>,
    rows: BTreeMap<GangId, Row>,
    /// Highest epoch ever decided.
    epochs: BTreeMap<GangId, Epoch>,
    /// UID of each stored job, by its spec key.
    jobs: BTreeMap<Bytes, String>,
    progress: BTreeMap<Bytes, JobProgress>,
    incarnations: BTreeMap<Bytes, u64>,
    going: BTreeSet<String>,
    gone: BTreeSet<String>,
    /// Jobs that were acknowledged: UID to key, and the other way round.
    told: BTreeMap<String, String>,
    keys: BTreeMap<String, String>,
    /// Jobs ever stored, by the key that their label names.
    labelled: BTreeMap<String, String>,
    decided: usize,
    terms: usize,
}

/// The stored form of one pool, as far as it adds up.
#[derive(Debug, Deserialize)]
struct StoredPool {
    shapes: Vec<Shape>,
    out: MilliGpus,
}

impl StoreTruth {
    pub(crate) fn wrote(&mut self, write: Write) {
        self.writes.entry(write.revision).or_insert(write);
    }

    pub(crate) fn asked_to_delete(&mut self, uid: &str) {
        self.going.insert(uid.to_owned());
    }

    /// The present row of a gang.
    pub(crate) fn row(&self, gang: GangId) -> Option<&PlacementRecord> {
        self.rows.get(&gang).map(|row| &row.record)
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.rows.values()
    }

    /// UIDs of the jobs that are stored.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = &String> {
        self.jobs.values()
    }

    /// True when a client was told that this job is stored.
    pub(crate) fn was_told(&self, uid: &str) -> bool {
        self.told.contains_key(uid)
    }

    /// Who leads.
    pub(crate) fn leader(&self) -> Option<&str> {
        self.leader.as_ref().map(|(name, _)| name.as_str())
    }

    pub(crate) fn is_going(&self, uid: &str) -> bool {
        self.going.contains(uid)
    }

    pub(crate) fn acknowledged(&self) -> usize {
        self.told.len()
    }

    pub(crate) fn decided(&self) -> usize {
        self.decided
    }

    pub(crate) fn terms(&self) -> usize {
        self.terms
    }

    /// Who made a revision, and why.
    pub(crate) fn writer_of(&self, revision: Revision) -> String {
        match self.writes.get(&revision) {
            Some(write) => format!("{} {:?}", write.hub, write.why),
            None => "the store".to_owned(),
        }
    }

    /// A client was told that `uid` is stored under `key` (S7, S8).
    pub(crate) fn told(&mut self, key: &str, uid: &str) -> Vec<Violation> {
        let mut answers = vec![(key.to_owned(), parsed(uid))];
        if let Some(first) = self.keys.get(key) {
            answers.insert(0, (key.to_owned(), parsed(first)));
        }
        let mut found = truth::one_job_per_key(&answers);
        self.keys.entry(key.to_owned()).or_insert(uid.to_owned());
        self.told.insert(uid.to_owned(), key.to_owned());
        if !self.gone.contains(uid) {
            let stored: Vec<_> = self.jobs.values().map(|uid| parsed(uid)).collect();
            found.extend(truth::acknowledged(&[parsed(uid)], &stored));
        }
        found
    }

    /// One revision. `clusters` is what runs at the end of its step.
    pub(crate) fn take_in(
        &mut self,
        batch: &WatchBatch,
        clusters: &Clusters,
        now: UnixMillis,
    ) -> Vec<Violation> {
        let mut found = self.judge_writer(batch);
        self.writes.remove(&batch.revision);
        for event in &batch.events {
            match event {
                Event::Put { current, .. } => found.extend(self.put(current, now)),
                Event::Delete { key, previous, .. } => {
                    found.extend(self.delete(key, previous.as_ref(), clusters));
                }
            }
            self.remember(event);
        }
        found
    }

    fn remember(&mut self, event: &Event) {
        match event {
            Event::Put { current, .. } => {
                let known = Revisions {
                    created: current.create_revision,
                    changed: current.mod_revision,
                };
                self.revisions.insert(current.key.clone(), known);
            }
            Event::Delete { key, .. } => {
                self.revisions.remove(key);
            }
        }
    }

    /// S3 and S20: who may write this, and what it stood on.
    fn judge_writer(&self, batch: &WatchBatch) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut leaders = batch.events.iter().map(Event::key);
        let leaders_alone = leaders.find(|key| is_leaders(key));
        let Some(write) = self.writes.get(&batch.revision) else {
            // Nobody's write: the end of the leader's lease, and nothing else.
            let strange = batch
                .events
                .iter()
                .find(|event| *event.key() != keys::leader());
            if let Some(event) = strange {
                let key = String::from_utf8_lossy(event.key());
                found.push(broken(
                    "S3",
                    format!("nobody wrote {key} at {}", batch.revision),
                ));
            }
            return found;
        };
        if let Some(key) = leaders_alone {
            found.extend(self.fenced(write, key));
        }
        for compare in &write.compares {
            let known = self
                .revisions
                .get(compare.key())
                .copied()
                .unwrap_or_default();
            let (is, must) = match compare {
                Compare::ModRevision(_, must) => (known.changed, *must),
                Compare::CreateRevision(_, must) => (known.created, *must),
            };
            if is != must {
                let key = String::from_utf8_lossy(compare.key());
                let message = format!(
                    "{} was written though {key} is at {is}, not {must}",
                    batch.revision
                );
                found.push(broken("S20", message));
            }
        }
        if write.why == Operation::CommitDecision {
            found.extend(whole_decision(batch, write));
        }
        found
    }

    fn fenced(&self, write: &Write, key: &Bytes) -> Vec<Violation> {
        let (hub, revision) = (&write.hub, write.revision);
        let key = String::from_utf8_lossy(key);
        let Some((leader, since)) = &self.leader else {
            return vec![broken(
                "S3",
                format!("{hub} wrote {key} at {revision}, nobody leads"),
            )];
        };
        let fence = Compare::CreateRevision(keys::leader(), *since);
        let mut found = Vec::new();
        if leader != hub {
            let message = format!("{hub} wrote {key} at {revision}, {leader} leads");
            found.push(broken("S3", message));
        }
        if !write.compares.contains(&fence) {
            let message = format!("{hub} wrote {key} at {revision} without its fence {since}");
            found.push(broken("S3", message));
        }
        found
    }

    fn put(&mut self, entry: &KeyValue, now: UnixMillis) -> Vec<Violation> {
        let key = std::str::from_utf8(&entry.key).unwrap_or_default();
        match key.split_once('/').unwrap_or_default() {
            ("placements", _) => self.put_row(entry, now),
            ("progress", _) => self.put_progress(entry),
            ("capacity", cluster) => capacity(cluster, &entry.value),
            ("agents", _) => self.put_agent(entry),
            ("objects", _) => self.put_object(entry),
            ("hub", "leader") => {
                if let Ok(leader) = serde_json::from_slice::<Leader>(&entry.value) {
                    self.leader = Some((leader.name, entry.create_revision));
                    self.terms += 1;
                }
                Vec::new()
            }
            _ => Vec::new(),
        }
    }

    fn put_row(&mut self, entry: &KeyValue, now: UnixMillis) -> Vec<Violation> {
        let record: PlacementRecord = match serde_json::from_slice(&entry.value) {
            Ok(record) => record,
            Err(error) => return vec![broken("S9", format!("a row cannot be read: {error}"))],
        };
        let (gang, epoch) = (record.gang, record.epoch);
        let mut found = Vec::new();
        let highest = self.epochs.insert(gang, epoch);
        match (self.rows.get(&gang), highest) {
            (Some(row), _) if row.record.epoch != epoch => {
                let old = row.record.epoch;
                let message = format!("gang {gang}: epoch {epoch} over the row of {old}");
                found.push(broken("S2", message));
            }
            (None, Some(last)) if last >= epoch => {
                let message = format!("gang {gang}: epoch {epoch} decided after {last}");
                found.push(broken("S2", message));
            }
            _ => {}
        }
        if !self.rows.contains_key(&gang) {
            self.decided += 1;
        }
        let row = Row {
            record,
            written: now,
        };
        self.rows.insert(gang, row);
        found
    }

    fn put_progress(&mut self, entry: &KeyValue) -> Vec<Violation> {
        let progress: JobProgress = match serde_json::from_slice(&entry.value) {
            Ok(progress) => progress,
            Err(error) => return vec![broken("S2", format!("progress cannot be read: {error}"))],
        };
        let mut found = Vec::new();
        let key = String::from_utf8_lossy(&entry.key).into_owned();
        if let Some(old) = self.progress.get(&entry.key) {
            for (index, tried) in old.tried.iter() {
                let new = progress.tried.get(index).map_or(0, |tried| tried.epoch.0);
                found.extend(grows(&format!("{key} {index}"), Some(tried.epoch.0), new));
            }
            if progress.succeeded.len() < old.succeeded.len()
                || progress.failed.len() < old.failed.len()
            {
                found.push(broken("S2", format!("{key}: an outcome was taken back")));
            }
        }
        found.extend(hit_too_often(&key, &progress));
        self.progress.insert(entry.key.clone(), progress);
        found
    }

    fn put_agent(&mut self, entry: &KeyValue) -> Vec<Violation> {
        let binding: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
        let incarnation = binding["incarnation"].as_u64().unwrap_or(0);
        let last = self.incarnations.insert(entry.key.clone(), incarnation);
        let key = String::from_utf8_lossy(&entry.key);
        match last {
            Some(last) if last >= incarnation => {
                vec![broken("S2", format!("{key}: {incarnation} after {last}"))]
            }
            _ => Vec::new(),
        }
    }

    fn put_object(&mut self, entry: &KeyValue) -> Vec<Violation> {
        let Some((object, Part::Spec)) = ObjectKey::parse(&entry.key) else {
            return Vec::new();
        };
        if object.plural != JOBS {
            return Vec::new();
        }
        let job: Value = serde_json::from_slice(&entry.value).unwrap_or_default();
        let uid = job["metadata"]["uid"].as_str().unwrap_or_default();
        let label = job["metadata"]["labels"][KEY_LABEL].as_str();
        let mut found = Vec::new();
        if let Some(key) = label {
            let first = self
                .labelled
                .entry(key.to_owned())
                .or_insert(uid.to_owned());
            if first != uid {
                let message = format!("key {key} made jobs {first} and {uid}");
                found.push(broken("S8", message));
            }
        }
        let before = self.jobs.insert(entry.key.clone(), uid.to_owned());
        if let Some(before) = before.filter(|before| before != uid) {
            let message = format!("{} became another job: {before}, then {uid}", object.name);
            found.push(broken("S7", message));
        }
        found
    }

    fn delete(
        &mut self,
        key: &Bytes,
        previous: Option<&KeyValue>,
        clusters: &Clusters,
    ) -> Vec<Violation> {
        if *key == keys::leader() {
            self.leader = None;
            return Vec::new();
        }
        self.progress.remove(key);
        let text = std::str::from_utf8(key).unwrap_or_default();
        if let Some(gang) = text.strip_prefix("placements/") {
            let row = gang.parse().ok().and_then(|gang| self.rows.remove(&gang));
            return row.map_or_else(Vec::new, |row| let_go(&row.record, clusters));
        }
        match ObjectKey::parse(key) {
            Some((object, Part::Spec)) if object.plural == JOBS => {
                self.delete_job(key, &object.name, previous)
            }
            Some(_) | None => Vec::new(),
        }
    }

    /// A job goes only when a client asked, and after it was marked.
    fn delete_job(
        &mut self,
        key: &Bytes,
        name: &str,
        previous: Option<&KeyValue>,
    ) -> Vec<Violation> {
        let Some(uid) = self.jobs.remove(key) else {
            return Vec::new();
        };
        let old = previous.map(|old| serde_json::from_slice::<Value>(&old.value));
        let old = old.and_then(Result::ok).unwrap_or_default();
        let marked = old["metadata"]["deletionTimestamp"].is_string();
        let mut found = Vec::new();
        if !self.going.contains(&uid) || !marked {
            found.push(broken(
                "S7",
                format!("job {name} {uid} went, nobody asked for that"),
            ));
        }
        if let Some(row) = self
            .rows
            .values()
            .find(|row| row.record.gang.job == parsed(&uid))
        {
            let gang = row.record.gang;
            found.push(broken(
                "S7",
                format!("job {name} went before the row of {gang}"),
            ));
        }
        self.gone.insert(uid);
        found
    }
}

/// S14: no gang makes room for others more than three times within an hour.
fn hit_too_often(key: &str, progress: &JobProgress) -> Vec<Violation> {
    const HOUR: Millis = Millis::seconds(3600);
    let too_often = progress.evictions.iter().filter(|(_, hits)| {
        let newest = hits.last();
        let recent = |newest: UnixMillis| hits.iter().filter(move |it| newest.since(it.at) < HOUR);
        newest.is_some_and(|newest| recent(newest.at).count() > 3)
    });
    let told = |(index, hits): (&u32, &Vec<_>)| {
        let message = format!("{key}: gang {index} made room {} times lately", hits.len());
        broken("S14", message)
    };
    too_often.map(told).collect()
}

/// A row is let go only when nothing runs under it.
fn let_go(row: &PlacementRecord, clusters: &Clusters) -> Vec<Violation> {
    let (gang, epoch) = (row.gang, row.epoch);
    match clusters.running(gang, epoch) {
        0 => Vec::new(),
        pods => {
            let message = format!("the row of {gang} epoch {epoch} went while {pods} pods run");
            vec![broken("S2", message)]
        }
    }
}

fn parsed(uid: &str) -> meridian_api::ids::Uid {
    uid.parse().unwrap_or(meridian_api::ids::Uid(0))
}

/// Keys that only a leader may write.
fn is_leaders(key: &Bytes) -> bool {
    let prefixes: [&[u8]; 5] = [
        b"placements/",
        b"progress/",
        b"capacity/",
        b"agents/",
        b"holds/",
    ];
    *key == keys::ledger_head()
        || *key == keys::beat()
        || prefixes.iter().any(|prefix| key.starts_with(prefix))
}

/// S20: a decision compares the heads, and spec, progress and row of its job.
fn whole_decision(batch: &WatchBatch, write: &Write) -> Vec<Violation> {
    let record = batch.events.iter().find_map(|event| match event {
        Event::Put { current, .. } if current.key.starts_with(b"placements/") => {
            serde_json::from_slice::<PlacementRecord>(&current.value).ok()
        }
        Event::Put { .. } | Event::Delete { .. } => None,
    });
    let Some(record) = record else {
        return Vec::new();
    };
    let job = ObjectKey {
        plural: JOBS.to_owned(),
        namespace: Some(record.namespace.to_string()),
        name: record.job.to_string(),
    };
    let read = [
        keys::policy_head(),
        keys::ledger_head(),
        job.part(Part::Spec),
        keys::progress(record.gang.job),
        keys::placement(record.gang),
    ];
    let compared = |key: &Bytes| {
        let mut compares = write.compares.iter();
        compares.any(|compare| matches!(compare, Compare::ModRevision(is, _) if is == key))
    };
    let missing = read.iter().filter(|key| !compared(key));
    missing
        .map(|key| {
            let key = String::from_utf8_lossy(key);
            let message = format!("decision {} does not compare {key}", batch.revision);
            broken("S20", message)
        })
        .collect()
}

/// S5: what a cluster reported adds up to its hardware.
fn capacity(cluster: &str, value: &[u8]) -> Vec<Violation> {
    let pools: BTreeMap<String, StoredPool> = match serde_json::from_slice(value) {
        Ok(pools) => pools,
        Err(error) => return vec![broken("S5", format!("capacity of {cluster}: {error}"))],
    };
    let sum = |(name, pool): (&String, &StoredPool)| {
        let (all, free) = (
            shapes::allocatable(&pool.shapes),
            shapes::free(&pool.shapes),
        );
        let sum = PoolSum {
            free: free.gpus,
            held: all.gpus.saturating_sub(free.gpus),
            lent: MilliGpus::ZERO,
            quarantined: pool.out,
            total: MilliGpus::cards(GPUS),
        };
        (format!("{cluster}/{name}"), sum)
    };
    let sums: Vec<_> = pools.iter().map(sum).collect();
    truth::pool_sums(&sums)
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
