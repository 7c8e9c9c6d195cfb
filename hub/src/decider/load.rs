//! The load: everything that the store holds, page by page, into the model.
//!
//! Owns the hands that it goes through at once: one page is fetched while the one before is read,
//! in two halves, and the one before that is put in. Pages are put in in their order, whoever is
//! ahead; what can be worked out of an entry alone is worked out by the two that read.

use std::sync::Arc;

use meridian_api::ids::Revision;
use meridian_store::{
    KeyRange, KeyValue, Operation, Page, SharedStore, StoreError, WatchStream, keys,
};
use tokio::task::JoinError;

use super::Decider;
use crate::model::{Drafted, Model, Reader};

/// Keys in one page of a load: tonic's message limit divided by the usual size of an object.
const LOAD_PAGE: usize = 2_000;

impl Decider {
    /// Loads the model anew; what agents have said is kept. Returns the watch that goes on from
    /// there.
    pub(super) async fn load(&mut self) -> Result<WatchStream, StoreError> {
        let fleet = std::mem::take(&mut self.model.fleet);
        self.model = Model::default();
        self.model.fleet = fleet;
        let store = Arc::clone(&self.options.store);
        let execution = self.options.execution;
        let first = page(&store, Some(keys::everything()), None).await?;
        let mut readers = [Reader::default(), Reader::default()];
        let (mut next, mut ready) = (first, Vec::new());
        while let Some(Page {
            entries,
            more,
            revision,
        }) = next
        {
            let rest = entries.last().filter(|_| more);
            let rest = rest.map(|last| keys::everything().after(&last.key));
            let mut model = std::mem::take(&mut self.model);
            let before = std::mem::take(&mut ready);
            let put = execution.run(move || {
                model.load(before.into_iter().flatten(), revision);
                model
            });
            let mut entries = entries;
            let second = entries.split_off(entries.len() / 2);
            let read = |reader, half| execution.run(move || read(reader, half));
            let [one, other] = readers;
            let page = page(&store, rest, Some(revision));
            let (put, first, second, page) =
                tokio::join!(put, read(one, entries), read(other, second), page);
            self.model = put.map_err(|ended| without_thread(&ended))?;
            let (one, first) = first.map_err(|ended| without_thread(&ended))?;
            let (other, second) = second.map_err(|ended| without_thread(&ended))?;
            (readers, ready, next) = ([one, other], vec![first, second], page?);
            if next.is_none() {
                self.model
                    .load(std::mem::take(&mut ready).into_iter().flatten(), revision);
            }
        }
        self.model.fit();
        self.model.start_term();
        let from = Revision(self.model.revision().0 + 1);
        tracing::info!(revision = %self.model.revision(), "model loaded");
        store
            .watch(Operation::WatchModel, keys::everything(), from)
            .await
    }
}

/// Half a page as its reader reads it, and the reader for the next.
fn read(mut reader: Reader, half: Vec<KeyValue>) -> (Reader, Vec<Drafted>) {
    let read = half.into_iter().map(|entry| reader.read(entry)).collect();
    (reader, read)
}

/// The first keys of `range`, if there is one, as of the revision that is being loaded.
async fn page(
    store: &SharedStore,
    range: Option<KeyRange>,
    at: Option<Revision>,
) -> Result<Option<Page>, StoreError> {
    let Some(range) = range else { return Ok(None) };
    let page = store.range(Operation::LoadModel, range, LOAD_PAGE, at);
    page.await.map(Some)
}

/// Reading panics on nothing: without its thread the hub is ending.
fn without_thread(ended: &JoinError) -> StoreError {
    StoreError::Unavailable(ended.to_string())
}
