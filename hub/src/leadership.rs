//! Leadership: an election key under a lease, and silence before the lease can end.
//!
//! Owns campaigning, renewing, the fenced beat, and what a follower knows of the leader. A leader
//! falls silent well before another can follow it, counted from when its last successful renewal
//! was *sent*; should it write all the same, the fence in the store refuses. Never decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::StreamExt as _;
use meridian_api::ids::{Revision, StoreGeneration, Term};
use meridian_api::units::{BootMillis, Millis};
use meridian_runtime::{Clock, Random};
use meridian_store::{
    Compare, KeyRange, LeaseId, Op, Operation, SharedStore, Store, StoreError, Txn, keys,
};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::fence::{Commit, Fence, put};

/// Terms of leadership. The margins: a leader is silent `ttl - silent_after` (4 s) before its
/// lease can end, which is more than any one call to the store may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeadershipTerms {
    /// Life of the lease after its last renewal.
    pub ttl: Millis,
    /// Time between renewals.
    pub renew_every: Millis,
    /// Age of the last renewal, from its sending, at which a leader falls silent.
    pub silent_after: Millis,
    /// Time between beats: a keepalive is not a write, and only a write proves the store works.
    pub beat_every: Millis,
}

impl Default for LeadershipTerms {
    fn default() -> Self {
        Self {
            ttl: Millis::seconds(10),
            renew_every: Millis::seconds(2),
            silent_after: Millis::seconds(6),
            beat_every: Millis::seconds(5),
        }
    }
}

/// Who leads, as the election key says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Leader {
    /// Name of the replica.
    pub name: String,
    /// Address of its listener for agents.
    pub agents: String,
    /// Address of its listener for users.
    pub users: String,
}

/// What this replica is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Another leads, or nobody yet.
    Follower(Option<Leader>),
    /// This one leads.
    Leader(Fence),
}

/// What the rest of the hub sees of the election.
#[derive(Clone, Debug)]
pub struct Leadership {
    role: watch::Receiver<Role>,
    proof: Arc<Proof>,
    clock: Clock,
    terms: LeadershipTerms,
}

/// When the store last proved that this replica leads; boot clock of the sending.
#[derive(Debug, Default)]
struct Proof {
    renewed: AtomicU64,
    wrote: AtomicU64,
}

impl Leadership {
    /// The fence to act under, or `None` when this replica does not lead or cannot be sure of it.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        let Role::Leader(fence) = *self.role.borrow() else {
            return None;
        };
        let now = self.clock.boot();
        let age = |at: &AtomicU64| now.since(BootMillis(at.load(Ordering::Acquire)));
        let renewed = age(&self.proof.renewed) < self.terms.silent_after;
        // Without a committed write in the last lease period nobody is commanded.
        let wrote = age(&self.proof.wrote) < self.terms.ttl;
        (renewed && wrote).then_some(fence)
    }

    /// What this replica is.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role.borrow().clone()
    }

    /// Waits until the role changes. Pending for ever once the election has ended.
    pub async fn changed(&mut self) {
        if self.role.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// One replica's part in the election.
pub struct Election {
    store: SharedStore,
    clock: Clock,
    random: Random,
    terms: LeadershipTerms,
    me: Leader,
    role: watch::Sender<Role>,
    proof: Arc<Proof>,
}

impl Election {
    /// A candidate, and the view of the election for the rest of the hub.
    #[must_use]
    pub fn new(
        store: SharedStore,
        clock: Clock,
        random: Random,
        terms: LeadershipTerms,
        me: Leader,
    ) -> (Self, Leadership) {
        let (role, watched) = watch::channel(Role::Follower(None));
        let proof = Arc::new(Proof::default());
        let view = Leadership {
            role: watched,
            proof: Arc::clone(&proof),
            clock: clock.clone(),
            terms,
        };
        (
            Self {
                store,
                clock,
                random,
                terms,
                me,
                role,
                proof,
            },
            view,
        )
    }

    /// Campaigns and leads in turn until `stop`; then gives the lead away at once.
    pub async fn run(self, stop: CancellationToken) -> Result<(), StoreError> {
        while !stop.is_cancelled() {
            let campaign = async {
                match self.campaign().await {
                    Ok(won) => won,
                    Err(error) => {
                        tracing::warn!(%error, "cannot campaign");
                        self.pause().await;
                        None
                    }
                }
            };
            let won = tokio::select! {
                won = campaign => won,
                () = stop.cancelled() => return Ok(()),
            };
            let Some((fence, lease)) = won else { continue };
            tracing::info!(term = %fence.term, name = %self.me.name, "leading");
            self.role.send_replace(Role::Leader(fence));
            let why = tokio::select! {
                why = self.lead(fence, lease) => why,
                () = stop.cancelled() => "asked to stop",
            };
            self.role.send_replace(Role::Follower(None));
            tracing::info!(term = %fence.term, why, "no longer leading");
            // Ends the term at once for those who follow; the lease would do it by itself.
            let revoke = self.store.revoke_lease(lease);
            let _ = self.clock.timeout(self.terms.renew_every, revoke).await;
        }
        Ok(())
    }

    /// Up to a second, drawn: replicas that lost their leader together do not all ask at once.
    async fn pause(&self) {
        self.clock.sleep(Millis(200 + self.random.below(800))).await;
    }

    /// Tries to take the key; when another has it, waits until it is gone.
    async fn campaign(&self) -> Result<Option<(Fence, LeaseId)>, StoreError> {
        let held = self.store.get(Operation::Elect, keys::leader()).await?;
        if let Some(held) = held {
            let leader: Option<Leader> = serde_json::from_slice(&held.value).ok();
            // This replica's own earlier life: its lease runs out, and nobody leads until then.
            let leader = leader.filter(|leader| *leader != self.me);
            self.role.send_if_modified(|role| {
                let new = Role::Follower(leader);
                let differs = *role != new;
                *role = new;
                differs
            });
            self.wait_for_end(held.mod_revision).await?;
            return Ok(None);
        }
        let store_generation = self.store_generation().await?;
        let sent = self.clock.boot();
        let lease = self.store.grant_lease(self.terms.ttl).await?;
        let value = serde_json::to_vec(&self.me).expect("three texts");
        let txn = Txn {
            compares: vec![Compare::CreateRevision(keys::leader(), Revision(0))],
            success: vec![Op::Put {
                key: keys::leader(),
                value: value.into(),
                lease: Some(lease),
            }],
            failure: Vec::new(),
        };
        let answer = self.store.txn(Operation::Elect, txn).await?;
        if !answer.succeeded {
            self.store.revoke_lease(lease).await?;
            return Ok(None);
        }
        self.proof.renewed.store(sent.0, Ordering::Release);
        self.proof.wrote.store(sent.0, Ordering::Release);
        Ok(Some((
            Fence {
                store_generation,
                term: Term(answer.revision.0),
            },
            lease,
        )))
    }

    /// The store's generation; the first leader of a new store makes it 1.
    async fn store_generation(&self) -> Result<StoreGeneration, StoreError> {
        let key = keys::store_generation();
        let first = Txn {
            compares: vec![Compare::CreateRevision(key.clone(), Revision(0))],
            success: vec![put(key.clone(), "1")],
            failure: vec![Op::Get { key }],
        };
        let answer = self.store.txn(Operation::Elect, first).await?;
        let Some(known) = answer.reads.into_iter().next().flatten() else {
            return Ok(StoreGeneration(1));
        };
        let text = String::from_utf8_lossy(&known.value).into_owned();
        text.trim().parse().map(StoreGeneration).map_err(|_| {
            StoreError::Corrupt(format!("store generation is {text:?}, expected a number"))
        })
    }

    /// Returns when the election key is gone or changed hands.
    async fn wait_for_end(&self, known: Revision) -> Result<(), StoreError> {
        let range = KeyRange {
            start: keys::leader(),
            end: KeyRange::prefix(keys::leader()).end,
        };
        let from = Revision(known.0 + 1);
        let mut changes = match self.store.watch(Operation::Elect, range, from).await {
            // So old that its history is gone: look again.
            Err(StoreError::Compacted { .. }) => {
                self.pause().await;
                return Ok(());
            }
            changes => changes?,
        };
        while let Some(batch) = changes.next().await {
            if !batch?.events.is_empty() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Renews and beats until the lead is lost; returns why.
    async fn lead(&self, fence: Fence, lease: LeaseId) -> &'static str {
        let mut next_beat = self.clock.boot();
        loop {
            if self.clock.boot() >= next_beat {
                let sent = self.clock.boot();
                match self.beat(fence).await {
                    Ok(Commit::Done(..)) => {
                        self.proof.wrote.store(sent.0, Ordering::Release);
                        next_beat = sent.after(self.terms.beat_every);
                    }
                    Ok(Commit::Deposed) => return "another leads",
                    // A beat compares nothing but the fence.
                    Ok(Commit::Conflict(_)) => {}
                    Err(error) => tracing::warn!(%error, "the beat was not written"),
                }
            }
            let sent = self.clock.boot();
            let renewal = self.store.renew_lease(lease);
            match self.clock.timeout(self.terms.renew_every, renewal).await {
                Ok(Ok(())) => self.proof.renewed.store(sent.0, Ordering::Release),
                Ok(Err(StoreError::LeaseNotFound(_))) => return "the lease has ended",
                Ok(Err(error)) => tracing::warn!(%error, "the lease was not renewed"),
                Err(late) => tracing::warn!(%late, "the lease was not renewed"),
            }
            let renewed = BootMillis(self.proof.renewed.load(Ordering::Acquire));
            if self.clock.boot().since(renewed) >= self.terms.silent_after {
                return "the lease could not be renewed in time";
            }
            self.clock
                .sleep_until(sent.after(self.terms.renew_every))
                .await;
        }
    }

    async fn beat(&self, fence: Fence) -> Result<Commit, StoreError> {
        let ops = vec![put(keys::beat(), self.clock.wall().0.to_string())];
        let write = fence.write(self.store.as_ref(), Operation::Beat, Vec::new(), ops);
        let limit = self.terms.renew_every;
        let late = |late| StoreError::Unavailable(format!("{late}"));
        self.clock.timeout(limit, write).await.map_err(late)?
    }
}

/// Ends the term of a leader that is known to be dead, so that nobody waits for its lease. Known
/// only of a store that this process alone has open: its file is locked, so whoever led from it
/// before has ended.
pub async fn end_dead_term(store: &dyn Store) -> Result<(), StoreError> {
    let txn = Txn {
        success: vec![Op::Delete {
            key: keys::leader(),
        }],
        ..Txn::default()
    };
    store.txn(Operation::Elect, txn).await.map(|_| ())
}
