//! The writer of the embedded store: a bounded queue in, one durable write for many requests.
//!
//! Owns the group commit and the end of leases. Whatever waits while one write is being made
//! durable shares the next one, so throughput rises with load and a lone request waits for
//! nobody. Never evaluates anything itself.

use std::sync::Arc;

use meridian_api::ids::Revision;
use meridian_api::units::{BootMillis, Millis};
use meridian_runtime::Clock;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::engine::Engine;
use super::{Execution, run};
use crate::{LeaseId, StoreError, Txn, TxnResponse};

/// Requests that wait for the writer: two full groups. Who finds it full waits to get in.
pub(super) const QUEUE_REQUESTS: usize = 512;
/// Most requests of one durable write: at about 20 µs each, 5 ms in front of the fsync.
const GROUP_REQUESTS: usize = 256;
/// Most bytes of one durable write: sixteen of the largest transactions.
const GROUP_BYTES: usize = 16 * crate::MAX_TXN_BYTES;
/// Pause after the disk was found full. Each attempt ends in opening the file again.
const FULL_PAUSE: Millis = Millis::seconds(1);
/// Pause before a lease is ended again whose end could not be written.
const LEASE_RETRY: Millis = Millis::seconds(1);
/// A sleep without a reason to wake.
const LONG: Millis = Millis::seconds(3600);

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// What the writer is asked to do.
pub(super) enum Job {
    /// Transactions that share a revision, validated.
    Txns(Vec<Txn>, Reply<Vec<TxnResponse>>),
    Grant(Millis, Reply<LeaseId>),
    Revoke(LeaseId, Reply<()>),
    /// One stretch of a compaction.
    Compact(Revision, Reply<Revision>),
}

/// Requests of one group, and who waits for each.
#[derive(Default)]
struct Group {
    requests: Vec<Vec<Txn>>,
    replies: Vec<Reply<Vec<TxnResponse>>>,
    bytes: usize,
}

impl Group {
    fn add(&mut self, txns: Vec<Txn>, reply: Reply<Vec<TxnResponse>>) {
        self.bytes += txns.iter().map(Txn::bytes).sum::<usize>();
        self.requests.push(txns);
        self.replies.push(reply);
    }

    fn has_room(&self) -> bool {
        self.requests.len() < GROUP_REQUESTS && self.bytes < GROUP_BYTES
    }
}

/// The one task that writes.
pub(super) struct Writer {
    pub(super) engine: Arc<Engine>,
    pub(super) jobs: mpsc::Receiver<Job>,
    pub(super) clock: Clock,
    pub(super) execution: Execution,
    pub(super) full_until: BootMillis,
    pub(super) leases_again_at: BootMillis,
}

impl Writer {
    /// Works until `cancel`, or until the last handle is gone.
    pub(super) async fn run(mut self, cancel: CancellationToken) {
        loop {
            let sleep = self.until_lease_work();
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                job = self.jobs.recv() => match job {
                    Some(job) => self.work(job).await,
                    None => return,
                },
                () = self.clock.sleep(sleep) => {}
            }
            self.end_leases().await;
        }
    }

    fn until_lease_work(&self) -> Millis {
        let now = self.clock.boot();
        match self.engine.leases().next_deadline() {
            Some(deadline) => deadline.max(self.leases_again_at).since(now),
            None => LONG,
        }
    }

    /// Does `job`, and with it every transaction that waits behind it.
    async fn work(&mut self, job: Job) {
        let mut next = Some(job);
        while let Some(job) = next.take() {
            match job {
                Job::Txns(txns, reply) => {
                    let mut group = Group::default();
                    group.add(txns, reply);
                    while group.has_room() {
                        match self.jobs.try_recv() {
                            Ok(Job::Txns(txns, reply)) => group.add(txns, reply),
                            Ok(other) => {
                                next = Some(other);
                                break;
                            }
                            Err(_) => break,
                        }
                    }
                    self.commit(group).await;
                }
                Job::Grant(ttl, reply) => {
                    let (engine, now) = (Arc::clone(&self.engine), self.clock.boot());
                    // A caller that has gone away needs no answer; so below too.
                    let _ = reply.send(run(self.execution, move || engine.grant(ttl, now)).await);
                }
                Job::Revoke(lease, reply) => {
                    let engine = Arc::clone(&self.engine);
                    let _ = reply.send(run(self.execution, move || engine.end_lease(lease)).await);
                }
                Job::Compact(below, reply) => {
                    let engine = Arc::clone(&self.engine);
                    let _ = reply.send(run(self.execution, move || engine.compact(below)).await);
                }
            }
        }
    }

    async fn commit(&mut self, group: Group) {
        let Group {
            requests, replies, ..
        } = group;
        let writes = requests.iter().flatten().any(Txn::writes);
        if writes && self.clock.boot() < self.full_until {
            for reply in replies {
                let _ = reply.send(Err(StoreError::Full("no room a moment ago".to_owned())));
            }
            return;
        }
        let engine = Arc::clone(&self.engine);
        let done = run(self.execution, move || engine.commit(&requests)).await;
        match done {
            Ok(answers) => {
                for (reply, answer) in replies.into_iter().zip(answers) {
                    let _ = reply.send(answer);
                }
            }
            Err(error) => {
                if matches!(error, StoreError::Full(_)) {
                    self.full_until = self.clock.boot().after(FULL_PAUSE);
                }
                for reply in replies {
                    let _ = reply.send(Err(error.clone()));
                }
            }
        }
    }

    async fn end_leases(&mut self) {
        let now = self.clock.boot();
        if now < self.leases_again_at {
            return;
        }
        let expired = self.engine.leases().expired(now);
        for lease in expired {
            let engine = Arc::clone(&self.engine);
            if let Err(error) = run(self.execution, move || engine.end_lease(lease)).await {
                tracing::warn!(lease = lease.0, %error, "the end of a lease could not be written");
                self.leases_again_at = self.clock.boot().after(LEASE_RETRY);
                return;
            }
        }
    }
}
