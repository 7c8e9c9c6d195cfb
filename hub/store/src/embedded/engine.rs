//! The engine of the embedded store: one database, one writer, and what readers see of it.
//!
//! Owns the order "evaluate, make durable, publish, answer" and the recovery from an I/O error,
//! after which redb refuses everything until the file is opened again. Every call here may block
//! on the disk; the caller sees to it that no async worker does. Never waits for a clock.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meridian_api::ids::Revision;
use meridian_api::units::{BootMillis, Millis};
use redb::{Builder, Database, ReadTransaction, ReadableDatabase, StorageError};

use super::tables::{self, Writing};
use super::{Failure, Medium};
use crate::feed::{Feed, Reading};
use crate::lease::LeaseBook;
use crate::mvcc::{self, Applied};
use crate::{Event, KeyRange, LeaseId, StoreError, Txn, TxnResponse, WatchBatch};

/// Pages of the file kept in memory: a working set of some hundred thousand objects' records.
const CACHE_BYTES: usize = 128 * 1024 * 1024;
/// Recent events kept in memory for watchers; who is further behind reads the file.
const FEED_BYTES: usize = 16 * 1024 * 1024;
/// A file below this is never worth shrinking.
const SHRINK_ABOVE_BYTES: u64 = 64 * 1024 * 1024;
/// A file is shrunk when it is this many times what is used: it grows by doubling, so a factor
/// of two is no waste.
const SHRINK_FACTOR: u64 = 4;
/// Revisions that one write forgets: some tens of milliseconds, so that compaction delays nobody.
const COMPACT_REVISIONS: usize = 2_000;

/// One database and everything that goes with it.
pub(super) struct Engine {
    medium: Box<dyn Medium>,
    /// Held by the writer during a write; `None` while the file cannot be opened.
    database: Mutex<Option<Database>>,
    visible: Mutex<Visible>,
    leases: Mutex<LeaseBook>,
}

/// What has been made durable and published: all that readers and watchers see.
struct Visible {
    snapshot: Option<Arc<Snapshot>>,
    oldest: Revision,
    feed: Feed,
}

/// The database as of one revision.
pub(super) struct Snapshot {
    pub(super) txn: ReadTransaction,
    pub(super) revision: Revision,
    pub(super) oldest: Revision,
}

/// What a write wants to be made durable.
struct Staged<T> {
    changes: Vec<(Revision, Vec<Event>)>,
    /// True when something else than keys was changed.
    has_rows: bool,
    answer: T,
}

impl Engine {
    /// Opens the database, and starts every lease's time anew at `now`.
    pub(super) fn open(medium: Box<dyn Medium>, now: BootMillis) -> Result<Self, StoreError> {
        let mut database = open_database(&*medium)?;
        shrink(&*medium, &mut database)?;
        let snapshot = take_snapshot(&database)?;
        let mut leases = LeaseBook::default();
        leases.resume_after(tables::counters(&snapshot.txn)?.last_lease);
        for (id, ttl) in tables::leases(&snapshot.txn)? {
            leases.enter(id, ttl, now);
        }
        for kv in tables::leased(&snapshot.txn)? {
            leases.attach(&kv);
        }
        let newest = snapshot.revision;
        let feed = Feed::new(Revision(newest.0 + 1), newest, FEED_BYTES);
        let oldest = snapshot.oldest;
        Ok(Self {
            medium,
            database: Mutex::new(Some(database)),
            visible: Mutex::new(Visible {
                snapshot: Some(Arc::new(snapshot)),
                oldest,
                feed,
            }),
            leases: Mutex::new(leases),
        })
    }

    pub(super) fn leases(&self) -> MutexGuard<'_, LeaseBook> {
        lock(&self.leases)
    }

    /// The newest published revision.
    pub(super) fn revision(&self) -> Revision {
        lock(&self.visible).feed.newest()
    }

    /// Registers a watcher, after checking what it asks for.
    pub(super) fn watcher(
        &self,
        range: KeyRange,
        from: Revision,
    ) -> Result<(Arc<crate::feed::Watcher>, Revision), StoreError> {
        let mut visible = lock(&self.visible);
        let from = mvcc::validate_watch(&range, from, visible.oldest, visible.feed.newest())?;
        Ok((visible.feed.watcher(range), from))
    }

    /// What a watcher finds in memory; `None` when it has to read the file.
    pub(super) fn recent(
        &self,
        range: &KeyRange,
        from: Revision,
    ) -> Result<Option<(VecDeque<WatchBatch>, Revision)>, StoreError> {
        let visible = lock(&self.visible);
        if from < visible.oldest {
            return Err(StoreError::Compacted {
                requested: from,
                oldest: visible.oldest,
            });
        }
        match visible.feed.read(range, from) {
            Reading::UpTo(batches, through) => Ok(Some((batches, through))),
            Reading::Earlier => Ok(None),
        }
    }

    /// Reads the published snapshot. A read that meets an I/O error waits until the writer has
    /// opened the file again.
    pub(super) fn read<T>(
        &self,
        look: impl Fn(&Snapshot) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        let snapshot = lock(&self.visible).snapshot.clone();
        if let Some(snapshot) = snapshot {
            match look(&snapshot) {
                Err(Failure::Storage(error)) if needs_reopening(&error) => {}
                looked => return looked.map_err(StoreError::from),
            }
        }
        let _repaired = lock(&self.database);
        let snapshot = lock(&self.visible).snapshot.clone();
        match snapshot {
            Some(snapshot) => Ok(look(&snapshot)?),
            None => Err(StoreError::Unavailable(
                "the file cannot be opened again".to_owned(),
            )),
        }
    }

    /// Does the requests in order, each in its own revision, in one durable write.
    pub(super) fn commit(
        &self,
        requests: &[Vec<Txn>],
    ) -> Result<Vec<Result<Vec<TxnResponse>, StoreError>>, StoreError> {
        self.write(|writing, mut newest| {
            let (mut changes, mut answer) = (Vec::new(), Vec::with_capacity(requests.len()));
            for request in requests {
                match mvcc::apply(writing, newest, request) {
                    Ok(Applied {
                        revision,
                        events,
                        responses,
                    }) => {
                        writing.log(revision, &events)?;
                        newest = revision;
                        changes.push((revision, events));
                        answer.push(Ok(responses));
                    }
                    Err(error @ StoreError::LeaseNotFound(_)) => answer.push(Err(error)),
                    Err(error) => return Err(Failure::Store(error)),
                }
            }
            Ok(Staged {
                changes,
                has_rows: false,
                answer,
            })
        })
    }

    /// Writes a lease down; its time begins at `now`.
    pub(super) fn grant(&self, ttl: Millis, now: BootMillis) -> Result<LeaseId, StoreError> {
        let id = self.leases().next_id();
        self.write(|writing, _| {
            writing.add_lease(id, ttl)?;
            Ok(Staged {
                changes: Vec::new(),
                has_rows: true,
                answer: (),
            })
        })?;
        self.leases().enter(id, ttl, now);
        Ok(id)
    }

    /// Ends a lease and removes its keys. From here on nobody can renew it, unless this fails.
    pub(super) fn end_lease(&self, lease: LeaseId) -> Result<(), StoreError> {
        let keys = self.leases().begin_to_end(lease)?;
        let ended = self.write(|writing, newest| {
            let Applied {
                revision, events, ..
            } = mvcc::remove(writing, newest, &keys)?;
            writing.log(revision, &events)?;
            writing.remove_lease(lease)?;
            Ok(Staged {
                changes: vec![(revision, events)],
                has_rows: true,
                answer: (),
            })
        });
        match &ended {
            Ok(()) => self.leases().remove(lease),
            Err(_) => self.leases().go_on(lease),
        }
        ended
    }

    /// Forgets a stretch of revisions below `below`; says from which one on all are kept.
    pub(super) fn compact(&self, below: Revision) -> Result<Revision, StoreError> {
        let newest = self.revision();
        if below > newest {
            return Err(StoreError::FutureRevision {
                requested: below,
                newest,
            });
        }
        let oldest = lock(&self.visible).oldest;
        if below <= oldest {
            return Ok(oldest);
        }
        let reached = self.write(|writing, _| {
            let reached = writing.compact(below, COMPACT_REVISIONS)?;
            Ok(Staged {
                changes: Vec::new(),
                has_rows: true,
                answer: reached,
            })
        })?;
        lock(&self.visible).feed.forget(reached);
        Ok(reached)
    }

    /// One durable write: evaluate, commit, publish.
    fn write<T>(
        &self,
        evaluate: impl FnOnce(&mut Writing<'_>, Revision) -> Result<Staged<T>, Failure>,
    ) -> Result<T, StoreError> {
        let mut slot = lock(&self.database);
        if slot.is_none() {
            self.reopen(&mut slot)?;
        }
        let database = slot.as_ref().expect("opened above");
        match self.write_to(database, evaluate) {
            Ok(answer) => Ok(answer),
            Err(failure) => {
                tracing::warn!(error = %failure, "write failed, opening the file again");
                if let Err(error) = self.reopen(&mut slot) {
                    tracing::warn!(%error, "the file cannot be opened again");
                }
                Err(failure.into())
            }
        }
    }

    fn write_to<T>(
        &self,
        database: &Database,
        evaluate: impl FnOnce(&mut Writing<'_>, Revision) -> Result<Staged<T>, Failure>,
    ) -> Result<T, Failure> {
        let txn = database.begin_write()?;
        let staged = {
            let mut writing = Writing::open(&txn, &self.leases)?;
            evaluate(&mut writing, self.revision())?
        };
        if !staged.has_rows && staged.changes.iter().all(|(_, events)| events.is_empty()) {
            txn.abort()?;
            return Ok(staged.answer);
        }
        txn.commit()?;
        let snapshot = take_snapshot(database)?;
        self.publish(snapshot, staged.changes);
        Ok(staged.answer)
    }

    fn publish(&self, snapshot: Snapshot, changes: Vec<(Revision, Vec<Event>)>) {
        let mut leases = self.leases();
        let mut visible = lock(&self.visible);
        visible.oldest = snapshot.oldest;
        visible.snapshot = Some(Arc::new(snapshot));
        for (revision, events) in changes {
            leases.observe(&events);
            visible.feed.publish(revision, events);
        }
    }

    /// Opens the file again after an error, and publishes what the failed write may have made
    /// durable after all.
    fn reopen(&self, slot: &mut Option<Database>) -> Result<(), StoreError> {
        lock(&self.visible).snapshot = None;
        // Dropped first: the file's lock goes with it.
        *slot = None;
        let database = open_database(&*self.medium)?;
        let snapshot = take_snapshot(&database)?;
        let mut changes = Vec::new();
        let mut from = Revision(self.revision().0 + 1);
        while from <= snapshot.revision {
            let (batches, through) = tables::history(&snapshot.txn, None, from)?;
            changes.extend(
                batches
                    .into_iter()
                    .map(|batch| (batch.revision, batch.events)),
            );
            from = Revision(through.0 + 1);
        }
        self.leases()
            .resume_after(tables::counters(&snapshot.txn)?.last_lease);
        self.publish(snapshot, changes);
        *slot = Some(database);
        Ok(())
    }
}

fn open_database(medium: &dyn Medium) -> Result<Database, StoreError> {
    let mut builder = Builder::new();
    // A damaged file is refused at the door, not met in the middle of a decision.
    builder
        .set_cache_size(CACHE_BYTES)
        .set_check_integrity_on_open(true);
    let database = medium.open(&builder).map_err(Failure::from)?;
    let txn = database.begin_write().map_err(Failure::from)?;
    if tables::prepare(&txn)? {
        txn.commit().map_err(Failure::from)?;
    } else {
        txn.abort().map_err(Failure::from)?;
    }
    Ok(database)
}

/// Gives room back that compaction has freed. Only at the start: it needs the file alone.
fn shrink(medium: &dyn Medium, database: &mut Database) -> Result<(), StoreError> {
    let size = medium.size().unwrap_or(0);
    if size < SHRINK_ABOVE_BYTES {
        return Ok(());
    }
    let txn = database.begin_write().map_err(Failure::from)?;
    let stats = txn.stats().map_err(Failure::from)?;
    txn.abort().map_err(Failure::from)?;
    let used = stats.stored_bytes() + stats.metadata_bytes() + stats.fragmented_bytes();
    if used.saturating_mul(SHRINK_FACTOR) < size {
        let shrunk = database
            .compact()
            .map_err(|error| StoreError::Unavailable(error.to_string()));
        tracing::info!(size, used, shrunk = ?shrunk, "gave room back");
    }
    Ok(())
}

fn take_snapshot(database: &Database) -> Result<Snapshot, Failure> {
    let txn = database.begin_read()?;
    let counters = tables::counters(&txn)?;
    Ok(Snapshot {
        txn,
        revision: counters.revision,
        oldest: counters.oldest,
    })
}

/// True when redb refuses everything until the file is opened again.
fn needs_reopening(error: &StorageError) -> bool {
    matches!(
        error,
        StorageError::PreviousIo | StorageError::DatabaseClosed | StorageError::Io(_)
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
