//! The batcher: many callers' transactions in one write.
//!
//! Owns which independent transactions travel together, which is how many submissions share one
//! fsync. Nobody waits for company: what arrives while earlier batches are on their way forms the
//! next one. Never retries a write whose outcome is unknown.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use meridian_runtime::Tasks;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::{
    Compare, MAX_TXN_BYTES, MAX_TXN_OPERATIONS, Op, Operation, SharedStore, StoreError, Txn,
    TxnResponse, mvcc,
};

/// Transactions that wait for a batch: about 50 full batches of the usual six operations, a
/// second of a busy etcd. Who finds the queue full waits to get in.
const QUEUE_TXNS: usize = 1024;
/// Batches on their way at once: enough to fill a round trip, few enough that they grow under load.
const IN_FLIGHT: usize = 4;

/// A handle to a batcher; clones share it.
#[derive(Clone, Debug)]
pub struct Batcher {
    queue: mpsc::Sender<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    txn: Txn,
    reply: oneshot::Sender<Result<TxnResponse, StoreError>>,
}

impl Batcher {
    /// Starts a batcher in front of `store`, whose calls are all made for `why`.
    #[must_use]
    pub fn start(store: SharedStore, why: Operation, tasks: &Tasks) -> Self {
        let (queue, arriving) = mpsc::channel(QUEUE_TXNS);
        let loop_ = Loop {
            store,
            why,
            arriving,
            waiting: VecDeque::new(),
        };
        tasks.spawn_finite("store-batcher", loop_.run(tasks.cancelled()));
        Self { queue }
    }

    /// One transaction, done together with others. Errors are those of [`crate::Store::txn`]; an
    /// `Unavailable` leaves its outcome unknown, as there.
    pub async fn txn(&self, txn: Txn) -> Result<TxnResponse, StoreError> {
        mvcc::validate(std::slice::from_ref(&txn))?;
        let closed = || StoreError::Unavailable("the batcher is closing".to_owned());
        let (reply, answer) = oneshot::channel();
        self.queue
            .send(Waiting { txn, reply })
            .await
            .map_err(|_| closed())?;
        answer.await.unwrap_or_else(|_| Err(closed()))
    }
}

struct Loop {
    store: SharedStore,
    why: Operation,
    arriving: mpsc::Receiver<Waiting>,
    waiting: VecDeque<Waiting>,
}

impl Loop {
    async fn run(mut self, cancel: CancellationToken) {
        let mut in_flight: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
        let mut open = true;
        while open || !in_flight.is_empty() {
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                Some(()) = in_flight.next(), if !in_flight.is_empty() => {}
                arrived = self.arriving.recv(), if open && self.waiting.len() < QUEUE_TXNS => {
                    match arrived {
                        Some(first) => self.waiting.push_back(first),
                        None => open = false,
                    }
                    while let Ok(next) = self.arriving.try_recv() {
                        self.waiting.push_back(next);
                    }
                }
            }
            while in_flight.len() < IN_FLIGHT && !self.waiting.is_empty() {
                let batch = next_batch(&mut self.waiting);
                in_flight.push(send(self.store.clone(), self.why, batch).boxed());
            }
        }
    }
}

/// Takes the first waiting transaction and all that can travel with it, in order of arrival, until
/// one finds no room: looking further would cost more than a fuller batch is worth.
fn next_batch(waiting: &mut VecDeque<Waiting>) -> Vec<Waiting> {
    let mut load = Load::default();
    let mut batch = Vec::new();
    let mut left = VecDeque::new();
    while let Some(next) = waiting.pop_front() {
        if !load.has_room(&next.txn) {
            left.push_back(next);
            break;
        }
        if load.take(&next.txn) {
            batch.push(next);
        } else {
            left.push_back(next);
        }
    }
    left.append(waiting);
    *waiting = left;
    batch
}

/// What a batch holds so far.
#[derive(Default)]
struct Load {
    operations: usize,
    bytes: usize,
    /// Every key it touches, and whether it writes it.
    keys: BTreeMap<Bytes, bool>,
}

impl Load {
    /// True when the transaction keeps the load within the limits, or is alone in it.
    fn has_room(&self, txn: &Txn) -> bool {
        let is_empty = self.keys.is_empty() && self.operations == 0;
        let operations = self.operations + txn.operations();
        let bytes = self.bytes + txn.bytes();
        is_empty || (operations <= MAX_TXN_OPERATIONS && bytes <= MAX_TXN_BYTES)
    }

    /// Takes the transaction in, or leaves the load as it was: a key that one of them writes may
    /// be touched by no other.
    fn take(&mut self, txn: &Txn) -> bool {
        if touches(txn)
            .any(|(key, writes)| self.keys.get(key).is_some_and(|written| writes || *written))
        {
            return false;
        }
        for (key, writes) in touches(txn) {
            *self.keys.entry(key.clone()).or_default() |= writes;
        }
        self.operations += txn.operations();
        self.bytes += txn.bytes();
        true
    }
}

/// Every key of the transaction, and whether it may be written.
fn touches(txn: &Txn) -> impl Iterator<Item = (&Bytes, bool)> {
    let compared = txn
        .compares
        .iter()
        .map(Compare::key)
        .map(|key| (key, false));
    compared.chain(
        txn.success
            .iter()
            .chain(&txn.failure)
            .map(|op| (op.key(), Op::writes(op))),
    )
}

/// Does a batch and answers each of its callers.
async fn send(store: SharedStore, why: Operation, batch: Vec<Waiting>) {
    let (txns, replies): (Vec<Txn>, Vec<_>) = batch
        .into_iter()
        .map(|waiting| (waiting.txn, waiting.reply))
        .unzip();
    let alone = txns.len() == 1;
    match store.txn_batch(why, txns.clone()).await {
        Ok(answers) => {
            for (reply, answer) in replies.into_iter().zip(answers) {
                // A caller that has gone away needs no answer; so below too.
                let _ = reply.send(Ok(answer));
            }
        }
        // Nothing was done, and one of them is why: each must hear its own answer.
        Err(StoreError::Refused(_) | StoreError::LeaseNotFound(_)) if !alone => {
            for (txn, reply) in txns.into_iter().zip(replies) {
                let _ = reply.send(store.txn(why, txn).await);
            }
        }
        Err(error) => {
            for reply in replies {
                let _ = reply.send(Err(error.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, LeaseId, MemoryStore, Store as _};
    use meridian_api::ids::Revision;
    use meridian_api::units::UnixMillis;
    use meridian_runtime::Clock;
    use std::sync::Arc;

    fn put(key: &str, lease: Option<LeaseId>) -> Txn {
        let op = Op::Put {
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: "v".into(),
            lease,
        };
        Txn {
            success: vec![op],
            ..Txn::default()
        }
    }

    fn batcher() -> (MemoryStore, Batcher) {
        let store = MemoryStore::new(Clock::simulated(UnixMillis(0)));
        let batcher = Batcher::start(Arc::new(store.clone()), Operation::Submit, &Tasks::new());
        (store, batcher)
    }

    #[tokio::test(start_paused = true)]
    async fn many_callers_share_few_writes() {
        let (store, batcher) = batcher();
        let writes = (0..1000).map(|n| {
            let batcher = batcher.clone();
            async move { batcher.txn(put(&format!("k{n}"), None)).await }
        });
        for answer in futures::future::join_all(writes).await {
            answer.expect("done");
        }
        let history = store.history();
        let events: usize = history.iter().map(|batch| batch.events.len()).sum();
        assert_eq!(events, 1000, "each once");
        assert!(history.len() < 30, "in {} writes", history.len());
    }

    #[tokio::test(start_paused = true)]
    async fn one_key_is_written_once_a_batch() {
        let (store, batcher) = batcher();
        let bump = |n: usize| {
            let batcher = batcher.clone();
            async move {
                batcher
                    .txn(put(&format!("k{}", n % 3), None))
                    .await
                    .expect("done")
            }
        };
        futures::future::join_all((0..30).map(bump)).await;
        let changes = |key: &str| {
            let history = store.history();
            let events = history.iter().flat_map(|batch| &batch.events);
            events
                .filter(|event| event.key() == key)
                .map(Event::revision)
                .collect::<Vec<_>>()
        };
        for key in ["k0", "k1", "k2"] {
            let mut revisions = changes(key);
            assert_eq!(revisions.len(), 10);
            revisions.dedup();
            assert_eq!(revisions.len(), 10, "each change has its own revision");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_bad_transaction_spoils_no_other() {
        let (_, batcher) = batcher();
        let lease = LeaseId(7);
        let mut writes = Vec::new();
        for n in 0..20 {
            let txn = put(&format!("k{n}"), (n == 11).then_some(lease));
            writes.push(batcher.txn(txn));
        }
        let answers = futures::future::join_all(writes).await;
        for (n, answer) in answers.into_iter().enumerate() {
            if n == 11 {
                assert_eq!(answer, Err(StoreError::LeaseNotFound(lease)));
            } else {
                assert!(answer.is_ok_and(|answer| answer.succeeded));
            }
        }
        let twice = Txn {
            success: [put("a", None).success, put("a", None).success].concat(),
            ..Txn::default()
        };
        assert!(matches!(
            batcher.txn(twice).await,
            Err(StoreError::Refused(_))
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_answer_is_told_to_all_and_not_repeated() {
        let (store, batcher) = batcher();
        store.faults().lose_answers(1);
        let answer = batcher.txn(put("k", None)).await;
        assert!(
            matches!(answer, Err(StoreError::Unavailable(_))),
            "{answer:?}"
        );
        let kv = store
            .get(Operation::Probe, "k".into())
            .await
            .expect("readable")
            .expect("done");
        assert_eq!((kv.version, kv.mod_revision), (1, Revision(2)));
    }

    #[test]
    fn a_reader_travels_with_readers_only() {
        let compare = Txn {
            compares: vec![Compare::ModRevision("head".into(), Revision(0))],
            ..put("a", None)
        };
        let mut load = Load::default();
        assert!(load.take(&compare));
        assert!(load.take(&Txn {
            success: put("b", None).success,
            ..compare.clone()
        }));
        assert!(
            !load.take(&put("head", None)),
            "it writes what others compare"
        );
        assert!(!load.take(&put("a", None)), "it writes what another writes");
    }
}
