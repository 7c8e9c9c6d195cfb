//! Refusals: why an agent that could be heard is not let in.
//!
//! Owns the newest reason of each cluster, for its status, and tells each change of it as an event.
//! Only what an agent of that cluster was refused for counts: a stranger cannot write about a
//! cluster by naming it. Never refuses anybody.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use meridian_api::errors::{ApiError, ErrorCode};
use meridian_api::units::{BootMillis, Millis};
use meridian_runtime::Clock;

use crate::journal::{Gravity, Journal, JournalEntry};

/// Clusters remembered: more than a fleet has. Beyond it the log alone says why.
const MAX_CLUSTERS: usize = 4096;
/// Two agents of one cluster that are refused in turn for two reasons make an event at most this
/// often; an agent dials every two seconds.
const EVENT_EVERY: Millis = Millis::seconds(60);

/// Why the agent of a cluster was last refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// One word, as in conditions.
    pub(crate) reason: &'static str,
    /// For a person.
    pub(crate) message: String,
    told: BootMillis,
}

/// The newest refusal of each cluster. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Refusals {
    clock: Clock,
    journal: Journal,
    known: Arc<Mutex<BTreeMap<String, Refusal>>>,
}

impl Refusals {
    /// None yet; changes are told in `journal`.
    #[must_use]
    pub(crate) fn new(clock: Clock, journal: Journal) -> Self {
        Self {
            clock,
            journal,
            known: Arc::default(),
        }
    }

    /// The newest refusal, until an agent of the cluster attaches.
    #[must_use]
    pub(crate) fn of(&self, cluster: &str) -> Option<Refusal> {
        self.lock().get(cluster).cloned()
    }

    /// The cluster's agent was refused.
    pub(crate) fn note(&self, cluster: &str, error: &ApiError) {
        let (reason, now) = (word(error.code), self.clock.boot());
        let message = match error.help.as_str() {
            "" => error.message.clone(),
            help => format!("{}; {help}", error.message),
        };
        let told = {
            let mut known = self.lock();
            let before = known.get(cluster);
            let is_news = before.is_none_or(|before| {
                before.reason != reason && now.since(before.told) >= EVENT_EVERY
            });
            if before.is_none() && known.len() >= MAX_CLUSTERS {
                return;
            }
            let told = match before {
                Some(before) if !is_news => before.told,
                Some(_) | None => now,
            };
            let refusal = Refusal {
                reason,
                message: message.clone(),
                told,
            };
            known.insert(cluster.to_owned(), refusal);
            is_news
        };
        if told {
            self.journal.record(JournalEntry {
                number: 0,
                at: self.clock.wall(),
                kind: "MemberCluster",
                namespace: String::new(),
                name: cluster.to_owned(),
                uid: String::new(),
                gravity: Gravity::Warning,
                reason,
                message,
            });
        }
    }

    /// An agent of the cluster is in.
    pub(crate) fn clear(&self, cluster: &str) {
        self.lock().remove(cluster);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Refusal>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an agent is refused for, as the one word of a condition.
const WORDS: [(ErrorCode, &str); 5] = [
    (ErrorCode::CertificateExpired, "CertificateExpired"),
    (ErrorCode::AgentRevoked, "AgentRevoked"),
    (ErrorCode::AgentNotJoined, "AgentNotJoined"),
    (ErrorCode::ClusterClaimed, "ClusterClaimed"),
    (ErrorCode::AgentVersionMismatch, "AgentVersionMismatch"),
];

/// The word of a code; the message says what has none.
fn word(code: ErrorCode) -> &'static str {
    let known = WORDS.iter().find(|(known, _)| *known == code);
    known.map_or("AgentRefused", |(_, word)| word)
}

#[cfg(test)]
mod tests {
    use meridian_api::units::UnixMillis;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reason_is_told_once_and_kept_until_an_agent_is_in() {
        let clock = Clock::simulated(UnixMillis(0));
        let journal = Journal::default();
        let refusals = Refusals::new(clock.clone(), journal.clone());
        let refuse = |code| refusals.note("euw-a", &ApiError::new(code, "why").help("what to do"));
        for _ in 0..3 {
            refuse(ErrorCode::AgentRevoked);
        }
        assert_eq!(journal.read(None).len(), 1);
        let refusal = refusals.of("euw-a").expect("refused");
        assert_eq!(refusal.reason, "AgentRevoked");
        assert_eq!(refusal.message, "why; what to do");

        refuse(ErrorCode::ClusterClaimed);
        refuse(ErrorCode::AgentRevoked);
        assert_eq!(journal.read(None).len(), 1, "not for each of two in turn");
        clock.sleep(EVENT_EVERY).await;
        refuse(ErrorCode::ClusterClaimed);
        assert_eq!(journal.read(None).len(), 2);

        refusals.clear("euw-a");
        assert_eq!(refusals.of("euw-a"), None);
    }
}
