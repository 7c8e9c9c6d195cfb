//! What the agent tells the hub, and when.
//!
//! Owns the words that wait to be sent: refusals and steps at once, digests coalesced. Nothing
//! needs an acknowledgement of its own: steps are stated again in the full digest of the next
//! session, and an ended gang stays listed until the hub orders its stop. What the hub has been
//! shown is known from beats it answered after it was sent. Never decides what a gang does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use meridian_api::ids::{GangId, Incarnation};
use meridian_api::units::{BootMillis, Millis};
use meridian_proto::v1::{self, agent_message::Body};
use tokio::sync::mpsc::{OwnedPermit, Sender};
use tokio::sync::oneshot;

use crate::backend::GangKey;
use crate::digest::observation;
use crate::executor::Executor;
use crate::fences::Refused;
use crate::gangs::{Gang, wire_step};
use crate::uplink::HelloParts;
use crate::view::View;

/// A change waits this long for others, so that a gang's pods make one digest and not one each;
/// well within the second in which the hub must know.
const COALESCE: Millis = Millis(200);
/// Gangs in one report: a message of some 100 KiB.
const MAX_GANGS_PER_REPORT: usize = 256;
/// Refusals that wait to be sent. A hub that is refused more than this in one burst learns what
/// it needs from the ones it gets.
const MAX_REFUSALS: usize = 1024;

/// The session with the hub as the executor sees it.
#[derive(Debug)]
pub(crate) struct Session {
    /// To the hub.
    pub(crate) outbox: Sender<v1::AgentMessage>,
    /// Sequence of the newest beat. Raised before the beat is put in the outbox.
    pub(crate) beats: Arc<AtomicU64>,
    /// Sequence of the newest digest that was put in the outbox.
    pub(crate) digest_sequence: Arc<AtomicU64>,
    /// Life of this agent that the hub issued for the session.
    pub(crate) incarnation: Incarnation,
}

/// Words that wait, and what the hub knows.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    refusals: VecDeque<v1::Refusal>,
    pending: BTreeSet<GangId>,
    /// The newest step that was told or waits to be.
    steps: BTreeMap<GangId, (GangKey, v1::GangStep)>,
    /// Ends that were sent, with the newest beat before: an answer to a later one is the proof.
    shown: BTreeMap<GangKey, u64>,
    /// Ends that the hub has.
    told: BTreeSet<GangKey>,
    /// Ends in the Hello of a session that is not attached yet.
    in_hello: BTreeSet<GangKey>,
    full_wanted: bool,
    stale_since: Option<BootMillis>,
}

impl Reports {
    /// Notes a step that the hub has not been told.
    pub(crate) fn look(&mut self, view: &View, gang: &Gang) {
        let key = gang.record.key();
        let step = (key, wire_step(gang, view.gang(key)));
        if self.steps.insert(key.gang, step) != Some(step) {
            self.pending.insert(key.gang);
        }
    }

    /// Tells the step again: the hub asked as if it did not know.
    pub(crate) fn repeat(&mut self, gang: GangId) {
        self.pending.insert(gang);
    }

    pub(crate) fn refuse(&mut self, refusal: v1::Refusal) {
        self.refusals.push_back(refusal);
        if self.refusals.len() > MAX_REFUSALS {
            self.refusals.pop_front();
        }
    }

    /// True when the hub has been shown how this epoch ended.
    pub(crate) fn told(&self, key: GangKey) -> bool {
        self.told.contains(&key)
    }

    pub(crate) fn forget(&mut self, gang: GangId) {
        self.pending.remove(&gang);
        self.steps.remove(&gang);
        self.told.retain(|key| key.gang != gang);
        self.shown.retain(|key, _| key.gang != gang);
    }

    /// Starts the wait for others when there is something to digest.
    pub(crate) fn age(&mut self, stale: bool, now: BootMillis) {
        self.stale_since = if stale {
            self.stale_since.or(Some(now))
        } else {
            None
        };
    }

    fn digest_due(&self) -> Option<BootMillis> {
        if self.full_wanted {
            return Some(BootMillis(0));
        }
        self.stale_since.map(|since| since.after(COALESCE))
    }
}

impl Executor {
    /// True when there is something to send now.
    pub(crate) fn has_words(&self) -> bool {
        let reports = &self.reports;
        let digest = reports
            .digest_due()
            .is_some_and(|due| due <= self.clock.boot());
        self.seen && (!reports.refusals.is_empty() || !reports.pending.is_empty() || digest)
    }

    /// When there will be something to send, if nothing else happens.
    pub(crate) fn next_word(&self) -> Option<BootMillis> {
        let due = self
            .session
            .as_ref()
            .and_then(|_| self.reports.digest_due())?;
        (due > self.clock.boot()).then_some(due)
    }

    /// Answers a session that begins with everything the hub must know.
    pub(crate) fn say_hello(&mut self, reply: oneshot::Sender<HelloParts>) {
        let digest = self.digests.full(&self.view, &self.gangs);
        self.reports.stale_since = None;
        let ended = self
            .gangs
            .values()
            .filter(|gang| gang.record.ended.is_some());
        self.reports.in_hello = ended.map(|gang| gang.record.key()).collect();
        let listed = digest
            .gangs
            .iter()
            .filter_map(|listed| meridian_proto::convert::gang(listed.gang.as_ref()).ok());
        for gang in listed {
            self.reports.pending.remove(&gang);
        }
        let parts = HelloParts {
            credential: self.state.credential(),
            fence: self.state.fence(),
            incarnation: self.state.incarnation(),
            generation: self.state.generation(),
            digest,
        };
        // A session that gave up meanwhile asks again.
        drop(reply.send(parts));
    }

    /// The hub took the Hello.
    pub(crate) fn attached(&mut self, session: Session) {
        let known = std::mem::take(&mut self.reports.in_hello);
        self.dirty.extend(known.iter().map(|key| key.gang));
        self.reports.told.extend(known);
        self.session = Some(session);
    }

    pub(crate) fn detached(&mut self) {
        self.session = None;
        self.reports.shown.clear();
        self.reports.full_wanted = false;
        // Refusals are about orders of that session.
        self.reports.refusals.clear();
    }

    /// The hub answered a beat: what was sent before that beat has arrived.
    pub(crate) fn acknowledged(&mut self, beat: u64) {
        let arrived = self
            .reports
            .shown
            .iter()
            .filter(|(_, before)| beat > **before);
        let arrived: Vec<GangKey> = arrived.map(|(key, _)| *key).collect();
        for key in arrived {
            self.reports.shown.remove(&key);
            self.reports.told.insert(key);
            self.dirty.insert(key.gang);
        }
    }

    /// The hub wants everything again.
    pub(crate) fn full_digest_wanted(&mut self) {
        self.reports.full_wanted = true;
    }

    pub(crate) fn refuse(&mut self, key: Option<GangKey>, refused: &Refused) {
        tracing::warn!(
            gang = key.map(|key| key.gang.to_string()),
            epoch = key.map(|key| key.epoch.0),
            reason = %refused.reason,
            message = refused.message,
            "order refused"
        );
        self.metrics.refused(refused.reason);
        let record = key.and_then(|key| self.state.record(key.gang));
        let over = key.and_then(|key| self.state.over(key.gang));
        let highest = record.map(|record| record.epoch).max(over);
        self.reports.refuse(v1::Refusal {
            gang: key.map(|key| key.gang.into()),
            epoch: key.map_or(0, |key| key.epoch.0),
            reason: refused.reason.to_string(),
            message: refused.message.clone(),
            highest_fence: Some(self.state.fence().into()),
            highest_epoch: highest.map_or(0, |epoch| epoch.0),
        });
    }

    /// Sends one message; without a permit the session is over.
    pub(crate) fn speak(&mut self, permit: Option<OwnedPermit<v1::AgentMessage>>) {
        let Some(permit) = permit else {
            return self.detached();
        };
        if let Some(body) = self.next_message() {
            permit.send(v1::AgentMessage { body: Some(body) });
        }
    }

    fn next_message(&mut self) -> Option<Body> {
        if let Some(refusal) = self.reports.refusals.pop_front() {
            return Some(Body::Refusal(refusal));
        }
        if !self.reports.pending.is_empty() {
            return Some(Body::Report(self.next_report()));
        }
        self.reports.stale_since = None;
        let digest = if std::mem::take(&mut self.reports.full_wanted) {
            self.digests.full(&self.view, &self.gangs)
        } else {
            self.digests.delta(&self.view, &self.gangs)?
        };
        if let Some(session) = &self.session {
            session
                .digest_sequence
                .store(digest.sequence, Ordering::Release);
        }
        Some(Body::Digest(digest))
    }

    fn next_report(&mut self) -> v1::PlacementReport {
        let beats = self
            .session
            .as_ref()
            .map_or(0, |s| s.beats.load(Ordering::Acquire));
        let mut gangs = Vec::new();
        while gangs.len() < MAX_GANGS_PER_REPORT {
            let Some(id) = self.reports.pending.pop_first() else {
                break;
            };
            let Some(gang) = self.gangs.get(&id) else {
                continue;
            };
            if gang.record.ended.is_some() {
                self.reports.shown.insert(gang.record.key(), beats);
                self.digests.end_was_told(id);
            }
            gangs.push(observation(&self.view, gang));
        }
        v1::PlacementReport { gangs }
    }
}
