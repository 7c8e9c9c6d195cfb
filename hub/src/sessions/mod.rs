//! Agent sessions: one task, queue and deadline each, so that a slow or hung cluster never delays
//! another.
//!
//! Owns who is attached and what each cluster is to be told. What to tell comes from the model as
//! the latest state (`Orders`); each session sends the difference to what it sent before. Never
//! decides.

mod attach;
mod logs;
mod orders;
mod refusals;
mod service;
mod session;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use meridian_api::ids::{Epoch, GangId, Incarnation};
use tokio::sync::{mpsc, watch};

pub(crate) use attach::declared;
pub(crate) use logs::{LogDesk, LogTarget};
pub(crate) use orders::{Order, Orders, orders_of};
pub(crate) use refusals::{Refusal, Refusals};
pub(crate) use service::{AgentSessions, SessionOptions};

use crate::fence::Fence;
use crate::model::{Digest, Heard, Seen};

/// Events of agents waiting to be taken into the model. A thousand clusters that all send a
/// digest within one round fit; beyond that the streams' own back-pressure holds.
pub(crate) const SESSION_EVENTS: usize = 1024;

/// What an agent says, as the model takes it in.
#[derive(Debug)]
pub(crate) struct SessionEvent {
    /// Whose agent.
    pub(crate) cluster: String,
    /// Term in which it attached.
    pub(crate) fence: Fence,
    /// Which life of it: older ones are ignored.
    pub(crate) incarnation: Incarnation,
    /// What.
    pub(crate) what: Said,
}

/// What an agent can say.
#[derive(Debug)]
pub(crate) enum Said {
    /// It attached; its digest is full.
    Attached {
        /// Its version.
        version: String,
        /// Its digests say which gangs others made: that one is not named means that it is gone.
        tells_offers: bool,
        /// When it was last heard; the session keeps it up to date.
        heard: Heard,
        /// What runs.
        digest: Digest,
    },
    /// What it sees changed.
    Digest(Digest),
    /// Steps of gangs.
    Report(Vec<(GangId, Seen)>),
    /// It will not carry out an order.
    Refused {
        /// Which gang's.
        gang: GangId,
        /// Under which epoch.
        epoch: Epoch,
    },
    /// It is heard after a silence that had made it suspect.
    HeardAgain,
    /// Its stream ended.
    Detached,
}

/// What each cluster is to be told, by cluster. Survives sessions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orderbook(Arc<Mutex<BTreeMap<String, watch::Sender<Arc<Orders>>>>>);

impl Orderbook {
    /// Sets what the cluster is to be told.
    pub(crate) fn publish(&self, cluster: &str, orders: Orders) {
        let mut book = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = book
            .entry(cluster.to_owned())
            .or_insert_with(|| watch::Sender::new(Arc::default()));
        entry.send_replace(Arc::new(orders));
    }

    /// Follows what the cluster is to be told.
    #[must_use]
    pub(crate) fn follow(&self, cluster: &str) -> watch::Receiver<Arc<Orders>> {
        let mut book = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = book
            .entry(cluster.to_owned())
            .or_insert_with(|| watch::Sender::new(Arc::default()));
        entry.subscribe()
    }

    /// Forgets a cluster whose `MemberCluster` is gone; its session ends.
    pub(crate) fn remove(&self, cluster: &str) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(cluster);
    }

    /// Forgets everything: this replica leads no more, or anew.
    pub(crate) fn clear(&self) {
        let book = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for entry in book.values() {
            entry.send_replace(Arc::default());
        }
    }
}

/// Where sessions put what agents say.
pub(crate) type SessionEvents = mpsc::Sender<SessionEvent>;
