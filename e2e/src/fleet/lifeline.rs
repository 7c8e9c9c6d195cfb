//! A store that can be cut off from one life of a hub.
//!
//! Owns the cut: after it every call of that life fails and its watches end, so that a hub whose
//! tasks are still winding down can no more write than a dead process. Never touches the store.

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use meridian_api::ids::Revision;
use meridian_api::units::Millis;
use meridian_store::{
    KeyRange, KeyValue, LeaseId, Operation, Page, SharedStore, Store, StoreError, Txn, TxnResponse,
    WatchStream,
};
use tokio_util::sync::CancellationToken;

/// One life's way to the store.
#[derive(Clone)]
pub(super) struct Lifeline {
    store: SharedStore,
    cut: CancellationToken,
}

impl Lifeline {
    /// A way that is open.
    pub(super) fn new(store: SharedStore) -> Self {
        let cut = CancellationToken::new();
        Self { store, cut }
    }

    /// Cuts it for good.
    pub(super) fn cut(&self) {
        self.cut.cancel();
    }

    fn open(&self) -> Result<&SharedStore, StoreError> {
        if self.cut.is_cancelled() {
            return Err(StoreError::Unavailable("this hub has crashed".to_owned()));
        }
        Ok(&self.store)
    }
}

#[async_trait]
impl Store for Lifeline {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    async fn get(&self, why: Operation, key: Bytes) -> Result<Option<KeyValue>, StoreError> {
        self.open()?.get(why, key).await
    }

    async fn range(
        &self,
        why: Operation,
        range: KeyRange,
        limit: usize,
        at: Option<Revision>,
    ) -> Result<Page, StoreError> {
        self.open()?.range(why, range, limit, at).await
    }

    async fn count(&self, why: Operation, range: KeyRange) -> Result<(u64, Revision), StoreError> {
        self.open()?.count(why, range).await
    }

    async fn txn(&self, why: Operation, txn: Txn) -> Result<TxnResponse, StoreError> {
        self.open()?.txn(why, txn).await
    }

    async fn txn_batch(
        &self,
        why: Operation,
        txns: Vec<Txn>,
    ) -> Result<Vec<TxnResponse>, StoreError> {
        self.open()?.txn_batch(why, txns).await
    }

    async fn watch(
        &self,
        why: Operation,
        range: KeyRange,
        from: Revision,
    ) -> Result<WatchStream, StoreError> {
        let changes = self.open()?.watch(why, range, from).await?;
        let cut = self.cut.clone().cancelled_owned();
        Ok(changes.take_until(cut).boxed())
    }

    async fn grant_lease(&self, ttl: Millis) -> Result<LeaseId, StoreError> {
        self.open()?.grant_lease(ttl).await
    }

    async fn renew_lease(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.open()?.renew_lease(lease).await
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.open()?.revoke_lease(lease).await
    }

    async fn compact(&self, below: Revision) -> Result<(), StoreError> {
        self.open()?.compact(below).await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.open()?.revision().await
    }
}
