//! The store: ordered keys under one revision counter, with transactions, watches and leases.
//!
//! Owns the `Store` trait, its words, the key layout and three implementations: `etcd`
//! (production, highly available), `embedded` (one durable file, no server) and `memory`
//! (simulation). Never knows what a value means.

mod batch;
pub mod embedded;
pub mod etcd;
mod faults;
mod feed;
pub mod keys;
mod lease;
pub mod memory;
mod metrics;
mod mvcc;

pub use batch::Batcher;
pub use embedded::{Durability, EmbeddedOptions, EmbeddedStore, Execution};
pub use etcd::{EtcdOptions, EtcdStore};
pub use faults::Faults;
pub use memory::MemoryStore;
pub use metrics::Metered;

use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::Stream;
pub use meridian_api::ids::Revision;
use meridian_api::units::Millis;

/// Most compares plus operations in one transaction. etcd's default is 128 of each; the margin
/// is for the fence that every decision adds.
pub const MAX_TXN_OPERATIONS: usize = 120;
/// Most bytes of keys and values in one transaction: a third of etcd's 1.5 MiB request limit.
pub const MAX_TXN_BYTES: usize = 512 * 1024;
/// Most bytes of one value. An object that is larger is refused before it gets here.
pub const MAX_VALUE_BYTES: usize = 384 * 1024;

/// A handle shared by everything in a hub.
pub type SharedStore = Arc<dyn Store>;

/// A lease: keys put under it vanish when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

/// One key and its value as of some revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// The value.
    pub value: Bytes,
    /// Revision that made the key.
    pub create_revision: Revision,
    /// Revision of its newest change.
    pub mod_revision: Revision,
    /// Changes since it was made, from 1.
    pub version: u64,
    /// The lease it lives under.
    pub lease: Option<LeaseId>,
}

/// A condition of a transaction. A key that does not exist has revision 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The key's newest change is exactly this revision (0: no such key).
    ModRevision(Bytes, Revision),
    /// The key was made at exactly this revision (0: no such key).
    CreateRevision(Bytes, Revision),
}

impl Compare {
    /// The key it looks at.
    #[must_use]
    pub fn key(&self) -> &Bytes {
        match self {
            Self::ModRevision(key, _) | Self::CreateRevision(key, _) => key,
        }
    }
}

/// One operation of a transaction. No key is put or deleted twice in one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Sets the key.
    Put {
        /// The key.
        key: Bytes,
        /// Its value.
        value: Bytes,
        /// Lease to live under.
        lease: Option<LeaseId>,
    },
    /// Removes the key; removing what is not there is no error.
    Delete {
        /// The key.
        key: Bytes,
    },
    /// Reads the key after the operations before it.
    Get {
        /// The key.
        key: Bytes,
    },
}

impl Op {
    /// The key it is about.
    #[must_use]
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put { key, .. } | Self::Delete { key } | Self::Get { key } => key,
        }
    }

    /// True when it changes the key.
    #[must_use]
    pub fn writes(&self) -> bool {
        match self {
            Self::Put { .. } | Self::Delete { .. } => true,
            Self::Get { .. } => false,
        }
    }
}

/// All of `success` when every compare holds, else all of `failure`; one revision, one fsync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// All must hold.
    pub compares: Vec<Compare>,
    /// Done when they do.
    pub success: Vec<Op>,
    /// Done when they do not.
    pub failure: Vec<Op>,
}

impl Txn {
    /// What it counts against [`MAX_TXN_OPERATIONS`]: its compares and its larger branch.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.compares.len() + self.success.len().max(self.failure.len())
    }

    /// What it counts against [`MAX_TXN_BYTES`]: all its keys and values, of both branches.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let compares = self.compares.iter().map(|compare| compare.key().len());
        let operations = self.success.iter().chain(&self.failure).map(|op| match op {
            Op::Put { key, value, .. } => key.len() + value.len(),
            Op::Delete { key } | Op::Get { key } => key.len(),
        });
        compares.chain(operations).sum()
    }

    /// True when one of its branches changes a key.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.success.iter().chain(&self.failure).any(Op::writes)
    }
}

/// Answer to a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxnResponse {
    /// True when `success` was done.
    pub succeeded: bool,
    /// The store's revision after it.
    pub revision: Revision,
    /// One entry per `Get` of the branch that was done, in order.
    pub reads: Vec<Option<KeyValue>>,
}

/// Keys in `[start, end)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// First key.
    pub start: Bytes,
    /// One past the last.
    pub end: Bytes,
}

impl KeyRange {
    /// Every key that begins with `prefix`, which must not be empty or all 0xff.
    #[must_use]
    pub fn prefix(prefix: impl Into<Bytes>) -> Self {
        let start: Bytes = prefix.into();
        let mut end = start.to_vec();
        while let Some(last) = end.pop() {
            if last < 0xff {
                end.push(last + 1);
                break;
            }
        }
        Self {
            start,
            end: end.into(),
        }
    }

    /// One key alone.
    #[must_use]
    pub fn key(key: impl Into<Bytes>) -> Self {
        let start: Bytes = key.into();
        let end = [&start[..], &[0]].concat();
        Self {
            start,
            end: end.into(),
        }
    }

    /// True when `key` lies in the range.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.start <= key && key < &self.end[..]
    }

    /// True when no key can lie in the range.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// What is left of the range after `key`: the next page.
    #[must_use]
    pub fn after(&self, key: &[u8]) -> Self {
        let mut start = key.to_vec();
        start.push(0);
        Self {
            start: start.into(),
            end: self.end.clone(),
        }
    }
}

/// One page of a range read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Keys in order.
    pub entries: Vec<KeyValue>,
    /// True when the range holds more.
    pub more: bool,
    /// Revision that was read.
    pub revision: Revision,
}

/// What happened to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Set; `previous` is what it was, if it was.
    Put {
        /// As it is.
        current: KeyValue,
        /// As it was.
        previous: Option<KeyValue>,
    },
    /// Removed, by an order or by its lease's end.
    Delete {
        /// The key.
        key: Bytes,
        /// As it was; `None` only when that revision has been compacted away.
        previous: Option<KeyValue>,
        /// Revision that removed it.
        revision: Revision,
    },
}

impl Event {
    /// The key it happened to.
    #[must_use]
    pub fn key(&self) -> &Bytes {
        match self {
            Self::Put { current, .. } => &current.key,
            Self::Delete { key, .. } => key,
        }
    }

    /// The revision that did it.
    #[must_use]
    pub fn revision(&self) -> Revision {
        match self {
            Self::Put { current, .. } => current.mod_revision,
            Self::Delete { revision, .. } => *revision,
        }
    }
}

/// All events of one revision in the watched range, in key order. No events: a bookmark, which
/// says that everything up to `revision` has been delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchBatch {
    /// The revision.
    pub revision: Revision,
    /// What happened.
    pub events: Vec<Event>,
}

/// Batches in order of revision. After an error the stream ends; the caller resumes from the
/// revision after the last batch, or lists again after [`StoreError::Compacted`].
pub type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchBatch, StoreError>> + Send>>;

/// Why a call to the store failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The revision asked for has been compacted.
    #[error("revision {requested} is compacted, the oldest kept is {oldest}")]
    Compacted {
        /// What was asked for.
        requested: Revision,
        /// What there is.
        oldest: Revision,
    },
    /// The revision asked for is not there yet.
    #[error("revision {requested} is in the future, the newest is {newest}")]
    FutureRevision {
        /// What was asked for.
        requested: Revision,
        /// What there is.
        newest: Revision,
    },
    /// The lease has ended or never was.
    #[error("lease {} has ended", .0.0)]
    LeaseNotFound(LeaseId),
    /// A limit of this module or of the server was crossed; nothing was done.
    #[error("request refused by the store: {0}")]
    Refused(String),
    /// No room left to write; reads go on.
    #[error("the store is full: {0}")]
    Full(String),
    /// Not reached in time. A write may or may not have been done: read its guard key.
    #[error("the store did not answer: {0}")]
    Unavailable(String),
    /// The file or the server's data is damaged.
    #[error("the store is damaged: {0}")]
    Corrupt(String),
    /// What this implementation cannot do, named.
    #[error("{store} cannot {what}")]
    Unsupported {
        /// The implementation.
        store: &'static str,
        /// The operation.
        what: &'static str,
    },
}

/// Every reason for which the store is called: metrics and traces are complete by construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// Read of one user object.
    GetObject,
    /// List of user objects.
    ListObjects,
    /// Create, update or delete of a user object.
    WriteObject,
    /// Job submissions, many in one write.
    Submit,
    /// Watch of one kind.
    WatchKind,
    /// Warm-up of the model.
    LoadModel,
    /// Watch that keeps the model warm.
    WatchModel,
    /// One decision under the leader's fence.
    CommitDecision,
    /// Writes down whose quota a placement stands on.
    CommitLedger,
    /// Change of a placement that an agent reported, under the leader's fence.
    CommitReport,
    /// Campaign for and observation of leadership.
    Elect,
    /// Renewal of the leader's lease.
    RenewLease,
    /// The leader's fenced beat.
    Beat,
    /// Binding of an agent to its cluster and its incarnation.
    AttachAgent,
    /// The authority that issues agents' certificates.
    KeepAuthority,
    /// Who may speak for a cluster: invitations, joins, renewals, revocations.
    ChangeIdentity,
    /// Watch of who may speak for clusters.
    WatchIdentities,
    /// Region capacity, coalesced.
    WriteCapacity,
    /// Compaction of old revisions.
    Compact,
    /// End of idempotency records.
    Sweep,
    /// Health and conformance probes.
    Probe,
}

/// Ordered, revisioned, watchable, transactional storage.
///
/// Every call is durable when it returns `Ok`, linearizable, and bounded in time by the
/// implementation (`StoreError::Unavailable` when the bound is reached).
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Name of the implementation: `etcd`, `embedded` or `memory`.
    fn name(&self) -> &'static str;

    /// The key as it is now.
    async fn get(&self, why: Operation, key: Bytes) -> Result<Option<KeyValue>, StoreError>;

    /// Up to `limit` keys of `range` in order, as of `at` (now when `None`).
    async fn range(
        &self,
        why: Operation,
        range: KeyRange,
        limit: usize,
        at: Option<Revision>,
    ) -> Result<Page, StoreError>;

    /// Number of keys in `range` now, and the revision counted at.
    async fn count(&self, why: Operation, range: KeyRange) -> Result<(u64, Revision), StoreError>;

    /// One transaction.
    async fn txn(&self, why: Operation, txn: Txn) -> Result<TxnResponse, StoreError>;

    /// Independent transactions in one durable write and one revision: each succeeds or fails by
    /// its own compares. A key that one of them writes appears in no other; all together stay
    /// within the limits above.
    async fn txn_batch(
        &self,
        why: Operation,
        txns: Vec<Txn>,
    ) -> Result<Vec<TxnResponse>, StoreError>;

    /// Events of `range` from revision `from` on (inclusive), then live; bookmarks in quiet times.
    async fn watch(
        &self,
        why: Operation,
        range: KeyRange,
        from: Revision,
    ) -> Result<WatchStream, StoreError>;

    /// A lease that ends `ttl` after its last renewal.
    async fn grant_lease(&self, ttl: Millis) -> Result<LeaseId, StoreError>;

    /// Renews a lease.
    async fn renew_lease(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Ends a lease and removes its keys.
    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), StoreError>;

    /// Forgets revisions below `below`; the newest version of each key stays.
    async fn compact(&self, below: Revision) -> Result<(), StoreError>;

    /// The newest revision.
    async fn revision(&self) -> Result<Revision, StoreError>;
}
