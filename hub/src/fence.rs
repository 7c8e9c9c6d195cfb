//! The fence: what makes a write of a deposed leader fail in the store itself.
//!
//! Owns the compares of the leader's term and the transaction under it. Never decides what is
//! written.

use bytes::Bytes;
use meridian_api::ids::{Revision, StoreGeneration, Term};
use meridian_proto::convert;
use meridian_store::{Compare, Event, KeyValue, Op, Operation, Store, StoreError, Txn, keys};

/// The right to decide, for one term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// History of the store.
    pub store_generation: StoreGeneration,
    /// Create revision of the election key.
    pub term: Term,
}

impl From<Fence> for convert::Fence {
    fn from(fence: Fence) -> Self {
        Self {
            store_generation: fence.store_generation,
            term: fence.term,
        }
    }
}

/// What came of a fenced write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Commit {
    /// Done, at this revision; these are its events.
    Done(Revision, Vec<Event>),
    /// Something it compares has changed by this revision; nothing was done.
    Conflict(Revision),
    /// Another leads; nothing was done.
    Deposed,
}

impl Fence {
    /// The compare that every write of a decision carries.
    #[must_use]
    pub fn compare(self) -> Compare {
        Compare::CreateRevision(keys::leader(), Revision(self.term.0))
    }

    /// Writes `ops` if this fence and `compares` hold.
    pub async fn write(
        self,
        store: &dyn Store,
        why: Operation,
        compares: Vec<Compare>,
        ops: Vec<Op>,
    ) -> Result<Commit, StoreError> {
        let mut all = vec![self.compare()];
        all.extend(compares);
        // On a conflict the leader key tells whether it was the fence that failed.
        let failure = vec![Op::Get {
            key: keys::leader(),
        }];
        let txn = Txn {
            compares: all,
            success: ops.clone(),
            failure,
        };
        let answer = store.txn(why, txn).await?;
        if answer.succeeded {
            return Ok(Commit::Done(answer.revision, events(ops, answer.revision)));
        }
        let leader = answer.reads.into_iter().next().flatten();
        let leads = leader.is_some_and(|key| key.create_revision.0 == self.term.0);
        Ok(if leads {
            Commit::Conflict(answer.revision)
        } else {
            Commit::Deposed
        })
    }
}

/// The events that a transaction makes, as a watch would deliver them (but for what a writer does
/// not know: create revisions, versions and earlier values).
pub(crate) fn events(ops: Vec<Op>, revision: Revision) -> Vec<Event> {
    let event = |op| match op {
        Op::Put { key, value, lease } => Some(Event::Put {
            current: KeyValue {
                key,
                value,
                create_revision: Revision::default(),
                mod_revision: revision,
                version: 0,
                lease,
            },
            previous: None,
        }),
        Op::Delete { key } => Some(Event::Delete {
            key,
            previous: None,
            revision,
        }),
        Op::Get { .. } => None,
    };
    ops.into_iter().filter_map(event).collect()
}

/// A put without a lease.
pub fn put(key: Bytes, value: impl Into<Bytes>) -> Op {
    Op::Put {
        key,
        value: value.into(),
        lease: None,
    }
}
