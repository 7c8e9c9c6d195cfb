//! The hands: one task that owns what is wanted and what is seen, and closes the gap.
//!
//! Owns the loop: take what came in → decide per gang (`gangs::step`, pure) → write to disk → ask
//! the cluster → tell the hub. Requests to the cluster run beside the loop, so a slow one delays
//! nobody. Without a hub everything goes on as ordered; without the cluster's API nothing is
//! believed gone. Never decides between clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

use futures::stream::{BoxStream, FuturesUnordered};
use futures::{FutureExt as _, StreamExt as _};
use meridian_api::ids::GangId;
use meridian_api::units::{BootMillis, Millis, UnixMillis};
use meridian_runtime::Clock;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::backend::{ClusterBackend, ClusterEvent, GangKey, GangOrder};
use crate::calls::{Answer, Call};
use crate::digest::Digests;
use crate::gangs::{self, Action, Desired, End, Gang, Phase, Record, Sight};
use crate::metrics::AgentMetrics;
use crate::report::Reports;
use crate::state::AgentState;
use crate::uplink::ToExecutor;
use crate::view::{Touched, View};

/// Rounds of deciding after one event before the loop looks at its inputs again. Each round only
/// follows from what the one before did to the same gang; the longest such chain is judge, undo,
/// proof, forget.
const MAX_ROUNDS: usize = 8;
/// Changes of the cluster taken in before deciding, so that a burst costs one write to disk.
const MAX_CHANGES_AT_ONCE: usize = 256;
/// Longest sleep of the loop: a wall clock that was set is noticed by then.
const LONGEST_SLEEP: Millis = Millis::seconds(60);
/// Pause before a request that failed is made again; an API server that restarts takes seconds.
pub(crate) const RETRY: Millis = Millis::seconds(1);
/// Requests to the cluster under way at once; more wait their turn. An API server's default share
/// for one client is some tens of calls.
const MAX_CALLS: usize = 64;

/// The loop was asked to stop while it waited for its disk.
pub(crate) struct Stopped;

/// Everything the loop owns.
pub(crate) struct Executor {
    pub(crate) clock: Clock,
    pub(crate) backend: Arc<dyn ClusterBackend>,
    pub(crate) metrics: AgentMetrics,
    pub(crate) state: AgentState,
    pub(crate) view: View,
    pub(crate) gangs: BTreeMap<GangId, Gang>,
    pub(crate) digests: Digests,
    pub(crate) reports: Reports,
    /// Gangs to decide about.
    pub(crate) dirty: BTreeSet<GangId>,
    /// Requests under way, and the gangs they are about.
    pub(crate) calls: FuturesUnordered<Call>,
    pub(crate) in_flight: BTreeMap<GangId, GangKey>,
    /// Stops that the cluster took and has not finished.
    pub(crate) asked: BTreeSet<GangKey>,
    /// Stops that the cluster answered with `Gone`, since the newest bind.
    pub(crate) gone: BTreeSet<GangKey>,
    /// Binds that the watch has not shown yet.
    pub(crate) binding: BTreeMap<GangId, GangOrder>,
    /// Gangs whose request waits until fewer are under way, by when they were accepted.
    deferred: BTreeSet<(u64, GangId)>,
    /// Gangs that found no room.
    pub(crate) waiting: BTreeSet<GangId>,
    /// Why the newest try did not bind it, for the timeout's words.
    pub(crate) no_room: BTreeMap<GangId, String>,
    /// Order in which gangs were accepted in this life: they are placed in the hub's order.
    pub(crate) arrivals: BTreeMap<GangId, u64>,
    pub(crate) arrived: u64,
    wakes: BTreeMap<GangId, UnixMillis>,
    pub(crate) retries: BTreeMap<GangId, BootMillis>,
    /// Failures in a row of requests about a gang.
    pub(crate) failures: BTreeMap<GangId, u32>,
    changes: Option<BoxStream<'static, ClusterEvent>>,
    /// The cluster has been seen at least once: there is something true to say.
    pub(crate) seen: bool,
    /// A session that waits for the first sight.
    pub(crate) hello: Option<oneshot::Sender<crate::uplink::HelloParts>>,
    pub(crate) session: Option<crate::report::Session>,
    cancelled: CancellationToken,
}

impl Executor {
    pub(crate) fn new(
        clock: Clock,
        backend: Arc<dyn ClusterBackend>,
        metrics: AgentMetrics,
        state: AgentState,
        cancelled: CancellationToken,
    ) -> Self {
        let now = clock.wall();
        let restored = |record: &Record| Gang {
            record: asked_anew(record, now),
            order: None,
            phase: Phase::Waiting,
            attempt: 0,
            avoid: BTreeMap::new(),
            mended_by: None,
            smaller: None,
        };
        let gangs = state
            .records()
            .map(|record| (record.gang, restored(record)))
            .collect();
        Self {
            clock,
            backend,
            metrics,
            state,
            view: View::default(),
            gangs,
            digests: Digests::default(),
            reports: Reports::default(),
            dirty: BTreeSet::new(),
            calls: FuturesUnordered::new(),
            in_flight: BTreeMap::new(),
            asked: BTreeSet::new(),
            gone: BTreeSet::new(),
            binding: BTreeMap::new(),
            deferred: BTreeSet::new(),
            waiting: BTreeSet::new(),
            no_room: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            arrived: 0,
            wakes: BTreeMap::new(),
            retries: BTreeMap::new(),
            failures: BTreeMap::new(),
            changes: None,
            seen: false,
            hello: None,
            session: None,
            cancelled,
        }
    }

    /// Runs until cancelled.
    pub(crate) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<ToExecutor>,
    ) -> Result<(), Infallible> {
        let cancelled = self.cancelled.clone();
        self.observe(Millis::ZERO);
        loop {
            if self.settle().await.is_err() {
                return Ok(());
            }
            let clock = self.clock.clone();
            let nap = clock.sleep(self.nap());
            let session = self.session.as_ref().filter(|_| self.has_words());
            let permit = session.map(|session| session.outbox.clone().reserve_owned());
            let permit = async move {
                match permit {
                    Some(permit) => permit.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = cancelled.cancelled() => return Ok(()),
                Some(answer) = self.calls.next(), if !self.calls.is_empty() => {
                    self.answered(answer);
                }
                change = next_change(&mut self.changes) => self.changed(change),
                message = inbox.recv() => {
                    let Some(message) = message else { return Ok(()) };
                    if self.hear(message).await.is_err() {
                        return Ok(());
                    }
                }
                permit = permit => self.speak(permit.ok()),
                () = nap => {}
            }
        }
    }

    /// Takes one change of the cluster, and those that are there already.
    fn changed(&mut self, first: Option<ClusterEvent>) {
        let mut next = Some(first);
        for _ in 0..MAX_CHANGES_AT_ONCE {
            let Some(change) = next else { break };
            let Some(event) = change else {
                tracing::warn!("the watch of the cluster broke, observing again");
                self.changes = None;
                self.observe(RETRY);
                return;
            };
            let touched = self.view.apply(event);
            self.touched(touched);
            next = self
                .changes
                .as_mut()
                .and_then(|changes| changes.next().now_or_never());
        }
    }

    /// Takes in a whole observation.
    pub(crate) fn observed(&mut self, observation: crate::backend::Observation) {
        let touched = self.view.reset(observation.snapshot);
        self.changes = Some(observation.changes);
        self.asked.clear();
        self.retry_all();
        let first = !std::mem::replace(&mut self.seen, true);
        self.touched(touched);
        self.dirty.extend(self.gangs.keys().copied());
        if first {
            self.digests.touch(self.view.pools().map(str::to_owned), []);
            tracing::info!(
                backend = self.backend.name(),
                gangs = self.view.gangs().count(),
                "the cluster is seen"
            );
        }
    }

    /// Follows up on what an update of the view touched.
    pub(crate) fn touched(&mut self, touched: Touched) {
        self.digests.follow(&touched);
        let Touched {
            gangs, gone, freed, ..
        } = touched;
        for key in gone {
            self.asked.remove(&key);
        }
        if freed {
            self.dirty.append(&mut self.waiting);
        }
        for gang in gangs {
            self.meet(gang);
            self.dirty.insert(gang);
        }
    }

    /// Makes the acquaintance of a gang of which the cluster shows an epoch that nobody ordered
    /// here: it is listed, and left alone.
    fn meet(&mut self, gang: GangId) {
        let from = GangKey {
            gang,
            epoch: meridian_api::ids::Epoch(u64::MAX),
        };
        let newest = self.view.gang(from).or_else(|| self.view.older(from).pop());
        let known = self.gangs.get(&gang);
        let Some(newest) = newest else {
            // Nothing is left of a found gang that nobody gave an order about.
            let found = |gang: &Gang| {
                gang.record.desired == Desired::Adopted && gang.record.ended.is_none()
            };
            if known.is_some_and(found) {
                self.drop_gang(gang);
            }
            return;
        };
        if known.is_some_and(|known| known.record.epoch >= newest.key.epoch) {
            return;
        }
        // What the hub was shown to be over must not linger.
        let over = self
            .state
            .over(gang)
            .is_some_and(|over| over >= newest.key.epoch);
        let record = Record {
            gang,
            epoch: newest.key.epoch,
            desired: if over {
                Desired::Stop
            } else {
                Desired::Adopted
            },
            accepted: self.clock.wall(),
            place_timeout: Millis::ZERO,
            grace: newest.terms.grace,
            pool: newest.terms.pool.clone(),
            verdict: None,
            ended: None,
            leave: None,
        };
        tracing::info!(key = %record.key(), "found a gang that is not of this agent's orders");
        self.state.put(&record);
        let found = Gang {
            record,
            order: None,
            phase: Phase::Live,
            attempt: newest.attempt,
            avoid: BTreeMap::new(),
            mended_by: None,
            smaller: None,
        };
        self.gangs.insert(gang, found);
    }

    /// Decides about every gang that may need it, until nothing follows.
    async fn settle(&mut self) -> Result<(), Stopped> {
        self.take_due();
        self.take_deferred();
        for _ in 0..MAX_ROUNDS {
            if !self.seen || (self.dirty.is_empty() && !self.state.is_changed()) {
                break;
            }
            let mut actions = Vec::new();
            for id in std::mem::take(&mut self.dirty) {
                self.decide(id, &mut actions);
            }
            // Before acting and before telling.
            self.commit().await?;
            actions.sort_by_key(|(id, _)| self.arrivals.get(id).copied().unwrap_or(0));
            for (id, action) in actions {
                self.act(id, action);
            }
        }
        self.reports.age(self.digests.stale(), self.clock.boot());
        if self.seen
            && let Some(reply) = self.hello.take()
        {
            self.say_hello(reply);
        }
        Ok(())
    }

    /// Writes what changed. A disk that fails holds everything up: nothing is acted on or told
    /// that is not written, beats go on, and the writing is tried again.
    pub(crate) async fn commit(&mut self) -> Result<(), Stopped> {
        while let Err(error) = self.state.commit().await {
            tracing::error!(%error, "nothing is done until it can be written, trying again");
            self.metrics.disk_failures.inc();
            tokio::select! {
                biased;
                () = self.cancelled.cancelled() => return Err(Stopped),
                () = self.clock.sleep(RETRY) => {}
            }
        }
        Ok(())
    }

    fn decide(&mut self, id: GangId, actions: &mut Vec<(GangId, Action)>) {
        let now = self.clock.wall();
        let Some(gang) = self.gangs.get(&id) else {
            return;
        };
        let turn = gangs::step(gang, &self.sight(gang), now);
        let Some(gang) = self.gangs.get_mut(&id) else {
            return;
        };
        if turn.phase == Phase::PlaceAgain
            && let Some(own) = self.view.gang(gang.record.key())
        {
            gang.avoid
                .extend(own.pods.iter().filter_map(gangs::turned_away));
        }
        let news = gang.record.verdict != turn.verdict || gang.record.ended != turn.ended;
        let seen = gang.phase == Phase::Binding && turn.phase == Phase::Live;
        gang.phase = turn.phase;
        gang.attempt = turn.attempt;
        gang.record.verdict = turn.verdict;
        gang.record.ended = turn.ended;
        if news {
            self.add_words(id);
            self.digests.touch([], [id]);
        }
        if seen {
            self.binding.remove(&id);
            self.no_room.remove(&id);
        }
        match turn.wake {
            Some(at) => self.wakes.insert(id, at),
            None => self.wakes.remove(&id),
        };
        if let Some(gang) = self.gangs.get(&id) {
            self.state.put(&gang.record);
            self.reports.look(&self.view, gang);
        }
        actions.extend(turn.actions.into_iter().map(|action| (id, action)));
    }

    /// The words of a placement that timed out say what was in the way.
    fn add_words(&mut self, id: GangId) {
        let Some(gang) = self.gangs.get_mut(&id) else {
            return;
        };
        let (key, ended) = (gang.record.key(), gang.record.ended.is_some());
        let Some(verdict) = gang.record.verdict.as_mut() else {
            return;
        };
        if let Some(why) = self.no_room.remove(&id)
            && matches!(verdict.end, End::Failed(_))
        {
            verdict.message = format!("{}: {why}", verdict.message);
        }
        tracing::info!(%key, end = ?verdict.end, ended, message = verdict.message, "verdict");
    }

    fn sight(&self, gang: &Gang) -> Sight<'_> {
        let key = gang.record.key();
        Sight {
            own: self.view.gang(key),
            older: self.view.older(key),
            in_flight: self.in_flight.contains_key(&key.gang),
            asked: self.asked.contains(&key),
            gone: self.gone.contains(&key),
            told: self.reports.told(key),
        }
    }

    fn act(&mut self, id: GangId, action: Action) {
        if self.in_flight.len() >= MAX_CALLS && action != Action::Forget {
            let arrival = self.arrivals.get(&id).copied().unwrap_or(0);
            self.deferred.insert((arrival, id));
            return;
        }
        match action {
            Action::Place => self.place(id),
            Action::Mend => self.mend(id),
            Action::GetSmaller => self.get_smaller(id),
            Action::Stop(key, grace) => self.stop(key, grace),
            Action::Forget => {
                tracing::debug!(gang = %id, "forgotten");
                self.drop_gang(id);
                // The forgetting itself is written in the next round.
                self.dirty.insert(id);
            }
        }
    }

    /// Drops everything that is kept of a gang.
    fn drop_gang(&mut self, id: GangId) {
        let Some(gang) = self.gangs.remove(&id) else {
            return;
        };
        let key = gang.record.key();
        self.state.forget(id);
        self.gone.retain(|gone| gone.gang != id);
        self.asked.remove(&key);
        self.arrivals.remove(&id);
        self.waiting.remove(&id);
        self.no_room.remove(&id);
        self.wakes.remove(&id);
        self.retries.remove(&id);
        self.failures.remove(&id);
        self.clear_binding(id);
        self.reports.forget(id);
        self.digests.touch([], [id]);
    }

    /// Gives back the room of a bind that is no longer wanted.
    pub(crate) fn clear_binding(&mut self, id: GangId) {
        if let Some(order) = self.binding.remove(&id) {
            let touched = self.view.release(order.key);
            self.digests.touch(touched.pools, touched.gangs);
            self.dirty.append(&mut self.waiting);
        }
    }

    /// Gangs whose turn to ask the cluster has come: as many as may, and no more, since each is
    /// decided about anew.
    fn take_deferred(&mut self) {
        for _ in self.in_flight.len()..MAX_CALLS {
            let Some((_, id)) = self.deferred.pop_first() else {
                break;
            };
            self.dirty.insert(id);
        }
    }

    /// Gangs whose time has come.
    fn take_due(&mut self) {
        let (now, boot) = (self.clock.wall(), self.clock.boot());
        let due = self
            .wakes
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(id, _)| *id);
        let due: Vec<GangId> = due.collect();
        for id in due {
            self.wakes.remove(&id);
            self.dirty.insert(id);
        }
        let again = self
            .retries
            .iter()
            .filter(|(_, at)| **at <= boot)
            .map(|(id, _)| *id);
        let again: Vec<GangId> = again.collect();
        for id in again {
            self.retries.remove(&id);
            self.dirty.insert(id);
            self.rebind(id);
        }
    }

    /// How long nothing will happen by itself.
    fn nap(&self) -> Millis {
        if !self.deferred.is_empty() && self.in_flight.len() < MAX_CALLS {
            return Millis::ZERO;
        }
        let (now, boot) = (self.clock.wall(), self.clock.boot());
        let wakes = self.wakes.values().map(|at| at.since(now));
        let retries = self.retries.values().map(|at| at.since(boot));
        let words = self.next_word().map(|at| at.since(boot));
        let next = wakes
            .chain(retries)
            .chain(words)
            .min()
            .unwrap_or(LONGEST_SLEEP);
        next.min(LONGEST_SLEEP)
    }
}

/// A record as a new life of the agent takes it up. It has not looked yet: a gang that it does not
/// see at first has its whole time again to be found, or to be placed.
fn asked_anew(record: &Record, now: UnixMillis) -> Record {
    Record {
        accepted: now,
        ..record.clone()
    }
}

async fn next_change(
    changes: &mut Option<BoxStream<'static, ClusterEvent>>,
) -> Option<ClusterEvent> {
    match changes {
        Some(changes) => changes.next().await,
        None => std::future::pending().await,
    }
}

impl Answer {
    /// The gang that the answer is about.
    pub(crate) fn gang(&self) -> Option<GangId> {
        match self {
            Self::Bound(key, _) | Self::Mended(key, ..) | Self::Stopped(key, _) => Some(key.gang),
            Self::Observed(_) | Self::Checkpoint(..) => None,
        }
    }
}
