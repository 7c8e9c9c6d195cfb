//! The embedded store: one durable file, no server.
//!
//! Owns revisions, watches and leases on top of redb, whose transactions are the only durable
//! thing here. The file is locked, so there is one hub; it survives kill -9, and a full disk
//! stops writes but not reads. Never serves another process.

mod engine;
mod file;
mod tables;
mod writer;

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use meridian_api::ids::Revision;
use meridian_api::units::{BootMillis, Millis};
use meridian_runtime::{Clock, Tasks};
use redb::{CommitError, DatabaseError, StorageError, TableError, TransactionError};
use tokio::sync::{mpsc, oneshot};

use self::engine::{Engine, Snapshot};
use self::file::FileMedium;
pub use self::file::Medium;
use self::writer::{Job, QUEUE_REQUESTS, Writer};
use crate::feed::{self, BOOKMARK_EVERY};
use crate::{
    KeyRange, KeyValue, LeaseId, Operation, Page, Store, StoreError, Txn, TxnResponse, WatchBatch,
    WatchStream, lease, mvcc,
};

/// When a write counts as done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// When it has reached the disk: it survives power loss.
    #[default]
    Immediate,
    /// When it has reached the operating system: for simulation and demonstration, where it
    /// survives the process but not the machine.
    None,
}

/// Where the store's blocking work is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Execution {
    /// On the runtime's blocking threads.
    #[default]
    Thread,
    /// In the task itself: deterministic, for simulation.
    Inline,
}

/// How an embedded store works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EmbeddedOptions {
    /// When a write counts as done.
    pub durability: Durability,
    /// Where its blocking work is done.
    pub execution: Execution,
}

/// A handle to the store in a file; clones share it.
#[derive(Clone)]
pub struct EmbeddedStore {
    engine: Arc<Engine>,
    jobs: mpsc::Sender<Job>,
    clock: Clock,
    execution: Execution,
}

impl EmbeddedStore {
    /// Opens the file at `path`, or makes it; repairs it after a crash, checks all of it and
    /// shrinks it when it is mostly empty, so it may block for seconds. Call within a runtime.
    ///
    /// # Errors
    /// `Refused` when another process has it open or it has another layout, `Corrupt` when it is
    /// damaged, `Full` and `Unavailable` as the disk says.
    pub fn open(
        path: &Path,
        clock: Clock,
        tasks: &Tasks,
        options: EmbeddedOptions,
    ) -> Result<Self, StoreError> {
        let medium = FileMedium {
            path: path.to_owned(),
            durability: options.durability,
        };
        let named = |what: String| format!("{}: {what}", path.display());
        match Self::open_on(Box::new(medium), clock, tasks, options.execution) {
            Err(StoreError::Refused(what)) => Err(StoreError::Refused(named(what))),
            Err(StoreError::Corrupt(what)) => Err(StoreError::Corrupt(named(what))),
            Err(StoreError::Full(what)) => Err(StoreError::Full(named(what))),
            Err(StoreError::Unavailable(what)) => Err(StoreError::Unavailable(named(what))),
            opened => opened,
        }
    }

    /// Opens a store on another medium than a file: one that fails, in a test.
    pub fn open_on(
        medium: Box<dyn Medium>,
        clock: Clock,
        tasks: &Tasks,
        execution: Execution,
    ) -> Result<Self, StoreError> {
        let engine = Arc::new(Engine::open(medium, clock.boot())?);
        let (jobs, queue) = mpsc::channel(QUEUE_REQUESTS);
        let writer = Writer {
            engine: Arc::clone(&engine),
            jobs: queue,
            clock: clock.clone(),
            execution,
            full_until: BootMillis::ZERO,
            leases_again_at: BootMillis::ZERO,
        };
        tasks.spawn_finite("store-writer", writer.run(tasks.cancelled()));
        Ok(Self {
            engine,
            jobs,
            clock,
            execution,
        })
    }

    /// Hands a job to the writer and waits for its answer.
    async fn ask<T>(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Job,
    ) -> Result<T, StoreError> {
        let closed = || StoreError::Unavailable("the store is closing".to_owned());
        let (reply, answer) = oneshot::channel();
        self.jobs.send(job(reply)).await.map_err(|_| closed())?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }

    async fn read<T: Send + 'static>(
        &self,
        look: impl Fn(&Snapshot) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, StoreError> {
        let engine = Arc::clone(&self.engine);
        run(self.execution, move || engine.read(look)).await
    }
}

/// Does blocking work where it belongs.
async fn run<T: Send + 'static>(
    execution: Execution,
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    match execution {
        Execution::Inline => work(),
        Execution::Thread => match tokio::task::spawn_blocking(work).await {
            Ok(done) => done,
            Err(error) => Err(StoreError::Unavailable(error.to_string())),
        },
    }
}

#[async_trait]
impl Store for EmbeddedStore {
    fn name(&self) -> &'static str {
        "embedded"
    }

    async fn get(&self, _: Operation, key: Bytes) -> Result<Option<KeyValue>, StoreError> {
        self.read(move |snapshot| tables::get(&snapshot.txn, &key))
            .await
    }

    async fn range(
        &self,
        _: Operation,
        range: KeyRange,
        limit: usize,
        at: Option<Revision>,
    ) -> Result<Page, StoreError> {
        self.read(move |snapshot| {
            let (oldest, newest) = (snapshot.oldest, snapshot.revision);
            let revision =
                mvcc::validate_read(limit, at, oldest, newest).map_err(Failure::Store)?;
            let most = limit.saturating_add(1);
            let mut entries = if range.is_empty() {
                Vec::new()
            } else if revision == newest {
                tables::range_newest(&snapshot.txn, &range, most)?
            } else {
                tables::range_at(&snapshot.txn, &range, most, revision)?
            };
            let more = entries.len() > limit;
            entries.truncate(limit);
            Ok(Page {
                entries,
                more,
                revision,
            })
        })
        .await
    }

    async fn count(&self, _: Operation, range: KeyRange) -> Result<(u64, Revision), StoreError> {
        self.read(move |snapshot| {
            let empty = range.is_empty();
            let count = if empty {
                0
            } else {
                tables::count(&snapshot.txn, &range)?
            };
            Ok((count, snapshot.revision))
        })
        .await
    }

    async fn txn(&self, why: Operation, txn: Txn) -> Result<TxnResponse, StoreError> {
        let mut responses = self.txn_batch(why, vec![txn]).await?;
        Ok(responses.pop().expect("one transaction has one answer"))
    }

    async fn txn_batch(
        &self,
        _: Operation,
        txns: Vec<Txn>,
    ) -> Result<Vec<TxnResponse>, StoreError> {
        mvcc::validate(&txns)?;
        self.ask(|reply| Job::Txns(txns, reply)).await
    }

    async fn watch(
        &self,
        _: Operation,
        range: KeyRange,
        from: Revision,
    ) -> Result<WatchStream, StoreError> {
        let (watcher, from) = self.engine.watcher(range, from)?;
        Ok(feed::watch(self.clone(), watcher, from))
    }

    async fn grant_lease(&self, ttl: Millis) -> Result<LeaseId, StoreError> {
        lease::validate_ttl(ttl)?;
        self.ask(|reply| Job::Grant(ttl, reply)).await
    }

    /// Kept in memory alone: after a restart every lease begins anew, which is later still.
    async fn renew_lease(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.engine.leases().renew(lease, self.clock.boot())
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.ask(|reply| Job::Revoke(lease, reply)).await
    }

    async fn compact(&self, below: Revision) -> Result<(), StoreError> {
        while self.ask(|reply| Job::Compact(below, reply)).await? < below {}
        Ok(())
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        Ok(self.engine.revision())
    }
}

impl feed::Source for EmbeddedStore {
    async fn read(
        &self,
        range: &KeyRange,
        from: Revision,
    ) -> Result<(VecDeque<WatchBatch>, Revision), StoreError> {
        if let Some(recent) = self.engine.recent(range, from)? {
            return Ok(recent);
        }
        let range = range.clone();
        Self::read(self, move |snapshot| {
            if from < snapshot.oldest {
                let oldest = snapshot.oldest;
                return Err(Failure::Store(StoreError::Compacted {
                    requested: from,
                    oldest,
                }));
            }
            tables::history(&snapshot.txn, Some(&range), from)
        })
        .await
    }

    fn quiet_for(&self) -> Millis {
        BOOKMARK_EVERY
    }

    async fn disturbed(&self) {
        std::future::pending::<()>().await;
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }
}

/// What can go wrong underneath.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Store(error) => error,
            Failure::Storage(StorageError::Io(error)) if is_full(&error) => {
                Self::Full(error.to_string())
            }
            Failure::Storage(StorageError::Corrupted(what)) => Self::Corrupt(what),
            Failure::Storage(error) => Self::Unavailable(error.to_string()),
        }
    }
}

fn is_full(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    )
}

impl From<TableError> for Failure {
    fn from(error: TableError) -> Self {
        match error {
            TableError::Storage(error) => Self::Storage(error),
            other => Self::Store(StoreError::Corrupt(other.to_string())),
        }
    }
}

impl From<TransactionError> for Failure {
    fn from(error: TransactionError) -> Self {
        match error {
            TransactionError::Storage(error) => Self::Storage(error),
            other => Self::Store(StoreError::Unavailable(other.to_string())),
        }
    }
}

impl From<CommitError> for Failure {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Storage(error) => Self::Storage(error),
            other => Self::Store(StoreError::Unavailable(other.to_string())),
        }
    }
}

impl From<DatabaseError> for Failure {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::Storage(error) => Self::Storage(error),
            DatabaseError::DatabaseAlreadyOpen => Self::Store(StoreError::Refused(
                "the file is open in another process, and one hub has it alone".to_owned(),
            )),
            other => Self::Store(StoreError::Refused(other.to_string())),
        }
    }
}
