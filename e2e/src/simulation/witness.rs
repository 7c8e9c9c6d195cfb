//! The witness: which hub wrote which revision, and on what condition.
//!
//! Owns a store handle that notes every write which took effect, whether or not its answer was
//! heard. What it notes is the judge's evidence for S3 and S20. Never changes a call.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use meridian_api::ids::Revision;
use meridian_api::units::Millis;
use meridian_store::{
    Compare, Event, KeyRange, KeyValue, LeaseId, MemoryStore, Op, Operation, Page, Store,
    StoreError, Txn, TxnResponse, WatchStream,
};

use super::world::{Note, Notes};

/// A write that took effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    /// The hub.
    pub(crate) hub: String,
    /// What for.
    pub(crate) why: Operation,
    /// Which revision it made.
    pub(crate) revision: Revision,
    /// What it stood on; only of a write of one transaction.
    pub(crate) compares: Vec<Compare>,
}

/// One hub's handle of the shared store, observed.
pub(crate) struct Witness {
    pub(crate) hub: String,
    pub(crate) inner: MemoryStore,
    pub(crate) notes: Notes,
}

impl Witness {
    /// A handle that the hub can use.
    pub(crate) fn shared(hub: &str, inner: MemoryStore, notes: Notes) -> Arc<Self> {
        Arc::new(Self {
            hub: hub.to_owned(),
            inner,
            notes,
        })
    }

    /// Notes the newest revision when it is what `txns` would write. The store applies a write
    /// and answers without a pause between, so no other write can have come after it.
    fn note(&self, why: Operation, txns: &[Txn]) {
        let revision = self.inner.newest_revision();
        let before = Revision(revision.0.saturating_sub(1));
        let Some(batch) = self.inner.history_after(before).pop() else {
            return;
        };
        if !batch.events.iter().all(|event| is_of(txns, event)) {
            return;
        }
        let compares = match txns {
            [one] => one.compares.clone(),
            _ => Vec::new(),
        };
        self.notes.push(Note::Wrote(Write {
            hub: self.hub.clone(),
            why,
            revision,
            compares,
        }));
    }
}

/// True when an operation of `txns` makes this event.
fn is_of(txns: &[Txn], event: &Event) -> bool {
    let mut ops = txns
        .iter()
        .flat_map(|txn| txn.success.iter().chain(&txn.failure));
    ops.any(|op| match (op, event) {
        (Op::Put { key, value, .. }, Event::Put { current, .. }) => {
            *key == current.key && *value == current.value
        }
        (Op::Delete { key }, Event::Delete { key: gone, .. }) => key == gone,
        (Op::Put { .. } | Op::Delete { .. } | Op::Get { .. }, _) => false,
    })
}

#[async_trait]
impl Store for Witness {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn get(&self, why: Operation, key: Bytes) -> Result<Option<KeyValue>, StoreError> {
        self.inner.get(why, key).await
    }

    async fn range(
        &self,
        why: Operation,
        range: KeyRange,
        limit: usize,
        at: Option<Revision>,
    ) -> Result<Page, StoreError> {
        self.inner.range(why, range, limit, at).await
    }

    async fn count(&self, why: Operation, range: KeyRange) -> Result<(u64, Revision), StoreError> {
        self.inner.count(why, range).await
    }

    async fn txn(&self, why: Operation, txn: Txn) -> Result<TxnResponse, StoreError> {
        let answer = self.inner.txn(why, txn.clone()).await;
        self.note(why, &[txn]);
        answer
    }

    async fn txn_batch(
        &self,
        why: Operation,
        txns: Vec<Txn>,
    ) -> Result<Vec<TxnResponse>, StoreError> {
        let answers = self.inner.txn_batch(why, txns.clone()).await;
        self.note(why, &txns);
        answers
    }

    async fn watch(
        &self,
        why: Operation,
        range: KeyRange,
        from: Revision,
    ) -> Result<WatchStream, StoreError> {
        self.inner.watch(why, range, from).await
    }

    async fn grant_lease(&self, ttl: Millis) -> Result<LeaseId, StoreError> {
        self.inner.grant_lease(ttl).await
    }

    async fn renew_lease(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.inner.renew_lease(lease).await
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.inner.revoke_lease(lease).await
    }

    async fn compact(&self, below: Revision) -> Result<(), StoreError> {
        self.inner.compact(below).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.inner.revision().await
    }
}
