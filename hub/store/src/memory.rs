//! The memory store: etcd's behaviour without etcd, for simulation.
//!
//! Owns one store shared by any number of handles, each with its own clock and its own faults, so
//! that hubs on different hosts of a simulated network share one truth. Leases need no task of
//! their own: they are looked at by each call, and by each watcher when the next one ends. Keeps
//! nothing when the process ends.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use meridian_api::ids::Revision;
use meridian_api::units::{BootMillis, Millis};
use meridian_runtime::Clock;

use crate::feed::{self, BOOKMARK_EVERY, Feed, Reading};
use crate::lease::{self, LeaseBook};
use crate::mvcc::{self, Applied, FIRST_REVISION, Space};
use crate::{
    Faults, KeyRange, KeyValue, LeaseId, Operation, Page, Store, StoreError, Txn, TxnResponse,
    WatchBatch, WatchStream,
};

/// A handle to a store in memory.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    state: Arc<Mutex<State>>,
    clock: Clock,
    faults: Faults,
}

#[derive(Debug)]
struct State {
    keys: BTreeMap<Bytes, Vec<Version>>,
    oldest: Revision,
    feed: Feed,
    leases: LeaseBook,
    /// The latest time that any handle has shown: leases never go back.
    now: BootMillis,
}

/// One version of a key; a removed one has no value.
#[derive(Debug)]
struct Version {
    revision: Revision,
    current: Option<KeyValue>,
}

impl MemoryStore {
    /// An empty store. `clock` is the store's own time as this handle reads it: its wall time
    /// must agree between all handles, whatever the clocks of their hubs do.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        let state = State {
            keys: BTreeMap::new(),
            oldest: FIRST_REVISION,
            feed: Feed::new(FIRST_REVISION, FIRST_REVISION, usize::MAX),
            leases: LeaseBook::default(),
            now: BootMillis::ZERO,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            clock,
            faults: Faults::default(),
        }
    }

    /// Another handle to the same store, with its own clock (of the runtime that will use it) and
    /// its own faults. A plain clone shares both.
    #[must_use]
    pub fn handle_for(&self, clock: Clock) -> Self {
        Self {
            state: Arc::clone(&self.state),
            clock,
            faults: Faults::default(),
        }
    }

    /// The switches of this handle's faults.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Ground truth: every revision that is kept, whole and in order. No fault touches it.
    #[must_use]
    pub fn history(&self) -> Vec<WatchBatch> {
        self.lock().feed.recent().cloned().collect()
    }

    /// Ground truth: revisions above `after` of those that are kept, whole and in order.
    #[must_use]
    pub fn history_after(&self, after: Revision) -> Vec<WatchBatch> {
        self.lock().feed.recent_after(after).cloned().collect()
    }

    /// Ground truth: the newest revision.
    #[must_use]
    pub fn newest_revision(&self) -> Revision {
        self.lock().feed.newest()
    }

    /// Ground truth: every key in order, and the revision. No fault touches it.
    #[must_use]
    pub fn snapshot(&self) -> (Vec<KeyValue>, Revision) {
        let state = self.lock();
        let newest = state.keys.values().filter_map(|versions| versions.last());
        (
            newest
                .filter_map(|version| version.current.clone())
                .collect(),
            state.feed.newest(),
        )
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state at this handle's time: what has expired by then is gone.
    fn at_now(&self) -> MutexGuard<'_, State> {
        let wall = u64::try_from(self.clock.wall().0).unwrap_or(0);
        let mut state = self.lock();
        state.advance(BootMillis(wall));
        state
    }

    async fn write(&self, txns: &[Txn]) -> Result<Vec<TxnResponse>, StoreError> {
        mvcc::validate(txns)?;
        if !txns.iter().any(Txn::writes) {
            self.faults.pass_read(&self.clock).await?;
            return self.at_now().commit(txns);
        }
        let passed = self.faults.pass_write(&self.clock).await?;
        passed.answer(self.at_now().commit(txns))
    }
}

impl State {
    /// Moves the store's time on and ends the leases that are over.
    fn advance(&mut self, now: BootMillis) {
        self.now = self.now.max(now);
        for lease in self.leases.expired(self.now) {
            self.end_lease(lease);
        }
    }

    fn end_lease(&mut self, lease: LeaseId) {
        let (keys, newest) = (self.leases.keys(lease), self.feed.newest());
        let applied = mvcc::remove(self, newest, &keys);
        self.leases.remove(lease);
        if let Ok(applied) = applied {
            self.publish(applied);
        }
    }

    fn commit(&mut self, txns: &[Txn]) -> Result<Vec<TxnResponse>, StoreError> {
        let newest = self.feed.newest();
        let applied = mvcc::apply(self, newest, txns)?;
        Ok(self.publish(applied))
    }

    fn publish(&mut self, applied: Applied) -> Vec<TxnResponse> {
        self.leases.observe(&applied.events);
        self.feed.publish(applied.revision, applied.events);
        applied.responses
    }

    fn live(&self, range: &KeyRange, at: Revision) -> impl Iterator<Item = &KeyValue> {
        let within =
            (!range.is_empty()).then(|| self.keys.range(range.start.clone()..range.end.clone()));
        within
            .into_iter()
            .flatten()
            .filter_map(move |(_, versions)| {
                let until = versions.partition_point(|version| version.revision <= at);
                versions[..until].last()?.current.as_ref()
            })
    }

    fn compact(&mut self, below: Revision) -> Result<(), StoreError> {
        let newest = self.feed.newest();
        if below > newest {
            return Err(StoreError::FutureRevision {
                requested: below,
                newest,
            });
        }
        if below <= self.oldest {
            return Ok(());
        }
        self.oldest = below;
        self.feed.forget(below);
        self.keys.retain(|_, versions| {
            let until = versions.partition_point(|version| version.revision <= below);
            let kept = until.saturating_sub(1);
            let removed = versions
                .get(kept)
                .is_some_and(|version| version.current.is_none());
            versions.drain(..if removed && until > 0 { until } else { kept });
            !versions.is_empty()
        });
        Ok(())
    }
}

impl Space for State {
    fn newest(&self, key: &Bytes) -> Result<Option<KeyValue>, StoreError> {
        Ok(self
            .keys
            .get(key)
            .and_then(|versions| versions.last()?.current.clone()))
    }

    fn has_lease(&self, lease: LeaseId) -> bool {
        self.leases.contains(lease)
    }

    fn put(&mut self, current: &KeyValue) -> Result<(), StoreError> {
        let version = Version {
            revision: current.mod_revision,
            current: Some(current.clone()),
        };
        self.keys
            .entry(current.key.clone())
            .or_default()
            .push(version);
        Ok(())
    }

    fn delete(&mut self, key: &Bytes, revision: Revision) -> Result<(), StoreError> {
        self.keys.entry(key.clone()).or_default().push(Version {
            revision,
            current: None,
        });
        Ok(())
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn get(&self, _: Operation, key: Bytes) -> Result<Option<KeyValue>, StoreError> {
        self.faults.pass_read(&self.clock).await?;
        self.at_now().newest(&key)
    }

    async fn range(
        &self,
        _: Operation,
        range: KeyRange,
        limit: usize,
        at: Option<Revision>,
    ) -> Result<Page, StoreError> {
        self.faults.pass_read(&self.clock).await?;
        let state = self.at_now();
        let revision = mvcc::validate_read(limit, at, state.oldest, state.feed.newest())?;
        let mut live = state.live(&range, revision);
        let entries = live.by_ref().take(limit).cloned().collect();
        let more = live.next().is_some();
        Ok(Page {
            entries,
            more,
            revision,
        })
    }

    async fn count(&self, _: Operation, range: KeyRange) -> Result<(u64, Revision), StoreError> {
        self.faults.pass_read(&self.clock).await?;
        let state = self.at_now();
        let newest = state.feed.newest();
        Ok((state.live(&range, newest).map(|_| 1).sum(), newest))
    }

    async fn txn(&self, _: Operation, txn: Txn) -> Result<TxnResponse, StoreError> {
        let mut responses = self.write(&[txn]).await?;
        Ok(responses.pop().expect("one transaction has one answer"))
    }

    async fn txn_batch(
        &self,
        _: Operation,
        txns: Vec<Txn>,
    ) -> Result<Vec<TxnResponse>, StoreError> {
        self.write(&txns).await
    }

    async fn watch(
        &self,
        _: Operation,
        range: KeyRange,
        from: Revision,
    ) -> Result<WatchStream, StoreError> {
        self.faults.pass_read(&self.clock).await?;
        let mut state = self.at_now();
        let from = mvcc::validate_watch(&range, from, state.oldest, state.feed.newest())?;
        let watcher = state.feed.watcher(range);
        drop(state);
        Ok(feed::watch(self.clone(), watcher, from))
    }

    async fn grant_lease(&self, ttl: Millis) -> Result<LeaseId, StoreError> {
        lease::validate_ttl(ttl)?;
        let passed = self.faults.pass_write(&self.clock).await?;
        let mut state = self.at_now();
        let (id, now) = (state.leases.next_id(), state.now);
        state.leases.enter(id, ttl, now);
        state.feed.wake_all();
        passed.answer(Ok(id))
    }

    async fn renew_lease(&self, lease: LeaseId) -> Result<(), StoreError> {
        // A renewal is no write: a full store goes on renewing, as etcd does.
        self.faults.pass_read(&self.clock).await?;
        let mut state = self.at_now();
        let now = state.now;
        state.leases.renew(lease, now)
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), StoreError> {
        let passed = self.faults.pass_write(&self.clock).await?;
        let mut state = self.at_now();
        if !state.leases.contains(lease) {
            return passed.answer(Err(StoreError::LeaseNotFound(lease)));
        }
        state.end_lease(lease);
        passed.answer(Ok(()))
    }

    async fn compact(&self, below: Revision) -> Result<(), StoreError> {
        let passed = self.faults.pass_write(&self.clock).await?;
        passed.answer(self.at_now().compact(below))
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.faults.pass_read(&self.clock).await?;
        Ok(self.at_now().feed.newest())
    }
}

impl feed::Source for MemoryStore {
    async fn read(
        &self,
        range: &KeyRange,
        from: Revision,
    ) -> Result<(VecDeque<WatchBatch>, Revision), StoreError> {
        self.faults.pass().await?;
        let state = self.at_now();
        match state.feed.read(range, from) {
            Reading::UpTo(batches, through) => Ok((batches, through)),
            Reading::Earlier => Err(StoreError::Compacted {
                requested: from,
                oldest: state.oldest,
            }),
        }
    }

    fn quiet_for(&self) -> Millis {
        let state = self.at_now();
        state
            .leases
            .next_deadline()
            .map_or(BOOKMARK_EVERY, |deadline| deadline.since(state.now))
    }

    async fn disturbed(&self) {
        self.faults.turned().await;
    }

    fn clock(&self) -> &Clock {
        &self.clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, Op};
    use futures::StreamExt as _;
    use meridian_api::units::UnixMillis;

    const WHY: Operation = Operation::Probe;

    fn put(key: &'static str, lease: Option<LeaseId>) -> Txn {
        let op = Op::Put {
            key: key.into(),
            value: "v".into(),
            lease,
        };
        Txn {
            success: vec![op],
            ..Txn::default()
        }
    }

    fn two_hubs() -> (MemoryStore, MemoryStore, Clock) {
        let clock = Clock::simulated(UnixMillis(1_000_000));
        let first = MemoryStore::new(clock.clone());
        let second = first.handle_for(clock.clone());
        (first, second, clock)
    }

    #[tokio::test(start_paused = true)]
    async fn hubs_share_the_store_and_not_its_faults() {
        let (first, second, _) = two_hubs();
        let mut stream = second
            .watch(WHY, KeyRange::prefix("k"), Revision(2))
            .await
            .expect("open");
        first.faults().refuse();
        assert!(matches!(
            first.txn(WHY, put("k", None)).await,
            Err(StoreError::Unavailable(_))
        ));
        second
            .txn(WHY, put("k", None))
            .await
            .expect("the other one works");
        assert_eq!(
            stream
                .next()
                .await
                .expect("goes on")
                .expect("well")
                .revision,
            Revision(2)
        );
        first.faults().heal();
        assert!(
            first
                .get(WHY, "k".into())
                .await
                .expect("readable")
                .is_some()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_call_waits_and_then_gives_up_undone() {
        let (store, _, clock) = two_hubs();
        store.faults().stall();
        let heal = async {
            clock.sleep(Millis::seconds(3)).await;
            store.faults().heal();
        };
        let (done, ()) = tokio::join!(store.txn(WHY, put("k", None)), heal);
        assert_eq!(done.expect("healed in time").revision, Revision(2));
        store.faults().stall();
        let began = clock.boot();
        let late = store.txn(WHY, put("k", None)).await;
        assert!(matches!(late, Err(StoreError::Unavailable(_))), "{late:?}");
        assert_eq!(clock.boot().since(began), Millis::seconds(5));
        assert_eq!(store.snapshot().1, Revision(2), "nothing was done");
        store.faults().lose_answers(1);
        let late = store.txn(WHY, put("k", None)).await;
        assert!(matches!(late, Err(StoreError::Unavailable(_))), "{late:?}");
        assert_eq!(store.snapshot().1, Revision(3), "it arrived late");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_stream_ends_at_once() {
        let (store, _, clock) = two_hubs();
        let mut stream = store
            .watch(WHY, KeyRange::prefix("k"), Revision(2))
            .await
            .expect("open");
        let cut = async {
            clock.sleep(Millis(10)).await;
            store.faults().refuse();
        };
        let began = clock.boot();
        let (end, ()) = tokio::join!(stream.next(), cut);
        assert!(
            matches!(end, Some(Err(StoreError::Unavailable(_)))),
            "{end:?}"
        );
        assert_eq!(clock.boot().since(began), Millis(10));
        assert!(
            stream.next().await.is_none(),
            "after an error comes nothing"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_answer_hides_a_write_that_was_done() {
        let (store, second, _) = two_hubs();
        store.faults().lose_answers(1);
        assert!(matches!(
            store.txn(WHY, put("k", None)).await,
            Err(StoreError::Unavailable(_))
        ));
        assert!(
            second
                .get(WHY, "k".into())
                .await
                .expect("readable")
                .is_some()
        );
        store
            .txn(WHY, put("k", None))
            .await
            .expect("only one answer was lost");
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_store_reads_and_renews() {
        let (store, _, _) = two_hubs();
        let lease = store
            .grant_lease(Millis::seconds(10))
            .await
            .expect("granted");
        store.faults().fill();
        assert!(matches!(
            store.txn(WHY, put("k", None)).await,
            Err(StoreError::Full(_))
        ));
        assert_eq!(store.get(WHY, "k".into()).await, Ok(None));
        store.renew_lease(lease).await.expect("renewed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_ends_when_only_a_watcher_waits() {
        let (first, second, clock) = two_hubs();
        let lease = first
            .grant_lease(Millis::seconds(7))
            .await
            .expect("granted");
        first.txn(WHY, put("k", Some(lease))).await.expect("done");
        let began = clock.boot();
        let mut stream = second
            .watch(WHY, KeyRange::prefix("k"), Revision(3))
            .await
            .expect("open");
        let batch = stream.next().await.expect("goes on").expect("well");
        assert!(matches!(batch.events[0], Event::Delete { .. }), "{batch:?}");
        assert_eq!(clock.boot().since(began), Millis::seconds(7), "not later");
        assert_eq!(first.history().len(), 2);
        assert!(first.snapshot().0.is_empty());
    }
}
