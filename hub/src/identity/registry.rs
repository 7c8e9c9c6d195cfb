//! The registry: each cluster's record in the store, changed whole or not at all, and followed.
//!
//! Owns reads and writes of `identities/`, and what sessions hear of it. Any replica may write; a
//! record is compared with what was read, and with the cluster's being declared. Never decides:
//! `record` does.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt as _;
use meridian_api::errors::{ApiError, ErrorCode};
use meridian_api::ids::Revision;
use meridian_api::units::Millis;
use meridian_runtime::Clock;
use meridian_store::{Compare, Event, KeyValue, Op, Operation, SharedStore, StoreError, Txn, keys};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::record::Record;
use crate::answers::store_error;
use crate::fence::put;
use crate::sessions::declared;

/// Changes of one record that may collide before the caller is asked to come again: a person, an
/// agent and its copy, at the same millisecond.
const ATTEMPTS: usize = 5;
/// Records in one page of a read; some 400 bytes each.
const PAGE: usize = 500;
/// Before a broken watch is opened again. Sessions outlive their right by this at most, when the
/// store fails at the wrong moment.
const RETRY: Millis = Millis::seconds(1);

/// A record and the revision that it is of; 0 when it was never written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    pub(crate) revision: Revision,
    pub(crate) record: Record,
}

/// What the watch last saw, by cluster. Holds a cluster as long as it has a record.
type Table = Arc<Mutex<BTreeMap<String, watch::Sender<Known>>>>;

/// Records in the store.
#[derive(Clone)]
pub(crate) struct Registry {
    store: SharedStore,
    clock: Clock,
    table: Table,
}

impl Registry {
    /// The records of `store`.
    pub(crate) fn new(store: SharedStore, clock: Clock) -> Self {
        let table = Table::default();
        Self {
            store,
            clock,
            table,
        }
    }

    /// The record as it is.
    pub(crate) async fn read(&self, cluster: &str) -> Result<Known, ApiError> {
        let key = keys::identity(cluster);
        let stored = self.store.get(Operation::ChangeIdentity, key).await;
        match stored.map_err(store_error)? {
            Some(entry) => parse(cluster, &entry),
            None => Ok(Known::default()),
        }
    }

    /// Changes the record of a declared cluster; true when that made a difference. With `dry_run`
    /// everything is checked and nothing stored.
    pub(crate) async fn change(
        &self,
        cluster: &str,
        dry_run: bool,
        mut change: impl FnMut(&mut Record) -> Result<(), ApiError>,
    ) -> Result<bool, ApiError> {
        for _ in 0..ATTEMPTS {
            let declared = declared(&self.store, cluster).await?;
            let known = self.read(cluster).await?;
            let mut record = known.record.clone();
            change(&mut record)?;
            let changed = record != known.record;
            if dry_run || !changed {
                return Ok(changed);
            }
            let (compare, op) = write(cluster, &known, &record);
            let txn = Txn {
                compares: vec![declared, compare],
                success: vec![op],
                failure: Vec::new(),
            };
            let answer = self.store.txn(Operation::ChangeIdentity, txn).await;
            if answer.map_err(store_error)?.succeeded {
                return Ok(true);
            }
        }
        let message = format!("the identity of cluster {cluster:?} is being changed by others");
        Err(ApiError::new(ErrorCode::Conflict, message).help("try again"))
    }

    /// Hears of the cluster's record from here on.
    pub(crate) fn follow(&self, cluster: &str) -> watch::Receiver<Known> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.entry(cluster.to_owned()).or_default().subscribe()
    }

    /// Keeps followers up to date until `stop`.
    pub(crate) async fn watch(self, stop: CancellationToken) -> Result<(), Infallible> {
        loop {
            tokio::select! {
                broken = self.watch_once() => if let Err(error) = broken {
                    tracing::warn!(%error, "the watch of agents' identities broke");
                },
                () = stop.cancelled() => return Ok(()),
            }
            tokio::select! {
                () = self.clock.sleep(RETRY) => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
    }

    async fn watch_once(&self) -> Result<(), StoreError> {
        let from = self.reload().await?;
        let range = keys::identities();
        let mut batches = self
            .store
            .watch(Operation::WatchIdentities, range, from)
            .await?;
        while let Some(batch) = batches.next().await {
            for event in batch?.events {
                match event {
                    Event::Put { current, .. } => self.saw(&current),
                    Event::Delete { key, revision, .. } => {
                        if let Some(cluster) = keys::identity_of(&key) {
                            self.gone(cluster, revision);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads every record; returns the revision to watch from.
    async fn reload(&self) -> Result<Revision, StoreError> {
        let (mut range, mut at) = (keys::identities(), None);
        let mut present = BTreeSet::new();
        loop {
            let page = self
                .store
                .range(Operation::WatchIdentities, range.clone(), PAGE, at)
                .await?;
            at = Some(page.revision);
            for entry in &page.entries {
                self.saw(entry);
                present.extend(keys::identity_of(&entry.key).map(str::to_owned));
            }
            match page.entries.last() {
                Some(last) if page.more => range = range.after(&last.key),
                _ => {
                    self.keep_only(&present, page.revision);
                    return Ok(Revision(page.revision.0 + 1));
                }
            }
        }
    }

    fn saw(&self, entry: &KeyValue) {
        let Some(cluster) = keys::identity_of(&entry.key) else {
            return;
        };
        // A record that nobody can read lets nobody in.
        let known = parse(cluster, entry).unwrap_or_else(|error| {
            tracing::error!(cluster, %error, "an identity cannot be read");
            Known {
                revision: entry.mod_revision,
                record: Record::default(),
            }
        });
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = table.entry(cluster.to_owned()).or_default();
        sender.send_if_modified(|last| {
            let newer = known.revision > last.revision;
            if newer {
                *last = known;
            }
            newer
        });
    }

    fn gone(&self, cluster: &str, revision: Revision) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = table.remove(cluster) {
            sender.send_replace(Known {
                revision,
                record: Record::default(),
            });
        }
    }

    fn keep_only(&self, present: &BTreeSet<String>, revision: Revision) {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let absent = table.keys().filter(|name| !present.contains(*name));
        let absent: Vec<String> = absent.cloned().collect();
        drop(table);
        for cluster in &absent {
            self.gone(cluster, revision);
        }
    }
}

/// The compare and the write that turn `known` into `record`.
pub(crate) fn write(cluster: &str, known: &Known, record: &Record) -> (Compare, Op) {
    let key = keys::identity(cluster);
    let value = serde_json::to_vec(record).expect("texts and numbers");
    (
        Compare::ModRevision(key.clone(), known.revision),
        put(key, value),
    )
}

fn parse(cluster: &str, entry: &KeyValue) -> Result<Known, ApiError> {
    let record = serde_json::from_slice(&entry.value).map_err(|error| {
        let message = format!("the identity of cluster {cluster:?} cannot be read: {error}");
        ApiError::new(ErrorCode::Internal, message)
    })?;
    Ok(Known {
        revision: entry.mod_revision,
        record,
    })
}
