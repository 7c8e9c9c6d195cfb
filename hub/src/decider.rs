//! The decision loop: model, decide, check, commit, tell.
//!
//! Owns the one task that holds the model. It wakes on events of the store and of the agents, on
//! questions and on time; it takes in everything that is there, and, when it leads, runs a round.
//! Never retries a conflict within a round: it takes in what changed, then decides again.

mod chores;
mod load;
mod sound;

use std::sync::Arc;

use futures::StreamExt as _;
use meridian_api::ids::Revision;
use meridian_api::units::{BootMillis, Millis};
use meridian_policies::model::Plan;
use meridian_runtime::Clock;
use meridian_store::{SharedStore, StoreError, WatchStream};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use crate::bounds::Bounds;
use crate::commit::Committer;
use crate::execution::Execution;
use crate::explanations::{Explained, Explanations};
use crate::fence::{Commit, Fence};
use crate::journal::Journal;
use crate::keepers::Keepers;
use crate::leadership::{Leadership, Role};
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::model::{ContactTerms, Labelled, Model, Situation};
use crate::questions::{Question, answer};
use crate::rounds::Recorder;
use crate::sessions::{Orderbook, Refusals, Said, SessionEvent};
use crate::settle::{settle_gang, settle_job};
use crate::views::Views;
use chores::Chores;

/// After the first event of a round, others of the same cause follow: a few milliseconds of
/// patience save whole rounds.
const COALESCE: Millis = Millis(2);
/// Reasons are never older than a minute: half of that leaves room for a slow round.
const DECIDE_AT_LEAST_EVERY: Millis = Millis::seconds(30);
/// Batches and events taken in between two rounds: those of a busy second. More wait their turn, so
/// that no flood of them keeps a round from being run.
const DRAIN: usize = 4096;
/// After a decision the next one waits this many times as long as it took: deciding over a long
/// queue takes at most a quarter of the loop's time, and the rest is for taking in what is new.
const REST_AFTER_DECISION: u64 = 3;
/// Questions answered between two rounds; each may cost as much as a snapshot.
const ANSWERS: usize = 8;
/// Answers that are worked out at once, each on a snapshot of its own: some hundred megabytes in
/// all for a fleet of the largest size.
const THINKING: usize = 4;
/// Pause between looks when a round could not be run.
const RETRY: Millis = Millis(100);
/// Records of clusters, views and metrics cost the whole fleet: they are not made for each of
/// hundreds of reports a second, but at most this often in the time after which silence becomes
/// suspicion (so twice a second by default, and as rarely as beats are where those are rare).
const CHORES_IN_SUSPECT: u64 = 16;
/// Pause before the store is tried again after it failed.
const STORE_PAUSE: Millis = Millis(500);

/// What the loop works with.
pub(crate) struct DeciderOptions {
    /// Time.
    pub(crate) clock: Clock,
    /// The truth.
    pub(crate) store: SharedStore,
    /// Whether this replica leads.
    pub(crate) leadership: Leadership,
    /// What agents say.
    pub(crate) events: mpsc::Receiver<SessionEvent>,
    /// What people ask.
    pub(crate) questions: mpsc::Receiver<Question>,
    /// What clusters are told.
    pub(crate) orders: Orderbook,
    /// Make and delete jobs because something asks for them.
    pub(crate) keepers: Keepers,
    /// What reads add to waiting jobs.
    pub(crate) explanations: Explanations,
    /// What the fleet could hold.
    pub(crate) bounds: Bounds,
    /// What a new job is held against.
    pub(crate) limits: Limits,
    /// Sums over the fleet for readers.
    pub(crate) views: Views,
    /// What happened lately.
    pub(crate) journal: Journal,
    /// Why agents are not let in.
    pub(crate) refusals: Refusals,
    /// Counts.
    pub(crate) metrics: Metrics,
    /// Where rounds are recorded.
    pub(crate) rounds: Recorder,
    /// When silence becomes suspicion.
    pub(crate) terms: ContactTerms,
    /// Where the decision runs.
    pub(crate) execution: Execution,
}

/// The loop.
pub(crate) struct Decider {
    options: DeciderOptions,
    model: Model,
    committer: Committer,
    /// The fence of the newest round; another one starts a new term.
    term: Option<Fence>,
    /// No round before the model has taken this revision in.
    not_before: Revision,
    /// A write may or may not have been done: find out before the next.
    in_doubt: bool,
    /// Something happened since records, views and metrics were made.
    chores: Chores,
    /// A decision is due then, whatever happens.
    next_look: BootMillis,
    /// No decision before then, unless it is due.
    rested: BootMillis,
    /// Room for answers that are still being worked out.
    thinking: Arc<Semaphore>,
}

impl Decider {
    /// A loop with an empty model.
    #[must_use]
    pub(crate) fn new(options: DeciderOptions) -> Self {
        let committer = Committer::new(
            Arc::clone(&options.store),
            options.clock.clone(),
            options.journal.clone(),
            options.refusals.clone(),
            options.metrics.clone(),
        );
        Self {
            options,
            model: Model::default(),
            committer,
            term: None,
            not_before: Revision::default(),
            in_doubt: false,
            chores: Chores::default(),
            next_look: BootMillis::ZERO,
            rested: BootMillis::ZERO,
            thinking: Arc::new(Semaphore::new(THINKING)),
        }
    }

    /// Runs until `stop`.
    pub(crate) async fn run(mut self, stop: CancellationToken) -> Result<(), StoreError> {
        loop {
            let end = tokio::select! {
                end = self.follow() => end,
                () = stop.cancelled() => return Ok(()),
            };
            // The watch broke or its history is gone: list again and go on.
            if let Err(error) = end {
                tracing::warn!(%error, "lost the store's watch, loading again");
            }
            tokio::select! {
                () = self.options.clock.sleep(STORE_PAUSE) => {}
                () = stop.cancelled() => return Ok(()),
            }
        }
    }

    /// Loads the model and follows the store until its watch ends.
    async fn follow(&mut self) -> Result<(), StoreError> {
        let mut changes = self.load().await?;
        loop {
            self.round_when_leading().await;
            self.wait(&mut changes).await?;
            self.options.clock.sleep(COALESCE).await;
            self.drain(&mut changes)?;
        }
    }

    /// Takes in whatever comes first.
    async fn wait(&mut self, changes: &mut WatchStream) -> Result<(), StoreError> {
        // A leader that could not look yet soon tries again; a follower waits for news.
        let next = self
            .chores
            .due(self.chores_every())
            .map_or(self.next_look, |due| due.min(self.next_look));
        let pause = if self.term.is_some() {
            RETRY
        } else {
            DECIDE_AT_LEAST_EVERY
        };
        let next = next.max(self.options.clock.boot().after(pause));
        let options = &mut self.options;
        tokio::select! {
            batch = changes.next() => {
                let batch = batch.unwrap_or_else(|| Err(watch_ended()))?;
                self.model.absorb(&batch.events, batch.revision);
            }
            Some(event) = options.events.recv() => self.hear(event),
            Some(question) = options.questions.recv() => self.answer(question),
            () = options.leadership.changed() => {}
            () = options.clock.sleep_until(next) => {}
        }
        Ok(())
    }

    /// Takes in everything else that is there already.
    fn drain(&mut self, changes: &mut WatchStream) -> Result<(), StoreError> {
        use futures::FutureExt as _;
        for _ in 0..DRAIN {
            let Some(batch) = changes.next().now_or_never() else {
                break;
            };
            let batch = batch.unwrap_or_else(|| Err(watch_ended()))?;
            self.model.absorb(&batch.events, batch.revision);
        }
        for _ in 0..DRAIN {
            let Ok(event) = self.options.events.try_recv() else {
                break;
            };
            self.hear(event);
        }
        self.answer_some();
        Ok(())
    }

    /// Answers what is asked already.
    fn answer_some(&mut self) {
        for _ in 0..ANSWERS {
            let Ok(question) = self.options.questions.try_recv() else {
                break;
            };
            self.answer(question);
        }
    }

    /// When to decide again though nothing happens: contact gets worse, a gang has rested or must
    /// leave, or reasons get old.
    fn look_again(&self) -> BootMillis {
        let (now, wall) = (self.options.clock.boot(), self.options.clock.wall());
        let clusters = self.model.fleet.clusters.values();
        let contact = clusters
            .filter_map(|cluster| cluster.contact_changes(now, self.options.terms))
            .min();
        let rested = self
            .model
            .next_try(wall)
            .map(|at| now.after(at.since(wall)));
        let due = now.after(DECIDE_AT_LEAST_EVERY);
        let runs = self.options.keepers.next_look();
        let runs = runs.map(|at| now.after(at.since(wall)));
        [contact, rested, runs]
            .into_iter()
            .flatten()
            .fold(due, BootMillis::min)
    }

    fn hear(&mut self, event: SessionEvent) {
        if !self.model.catalog.clusters.contains_key(&event.cluster) {
            // Its MemberCluster is gone, or has not come here yet: its session ends, and the agent
            // attaches anew.
            self.options.orders.remove(&event.cluster);
            return;
        }
        let cluster = self
            .model
            .fleet
            .clusters
            .entry(event.cluster.clone())
            .or_default();
        if event.incarnation < cluster.incarnation {
            tracing::debug!(cluster = %event.cluster, "report of an older life is dropped");
            return;
        }
        cluster.incarnation = event.incarnation;
        cluster.attached_under = Some(event.fence);
        let touched = match event.what {
            Said::Attached {
                version,
                tells_offers,
                heard,
                digest,
            } => {
                cluster.version = version;
                cluster.tells_offers = tells_offers;
                cluster.heard = Some(heard);
                cluster.absorb(digest)
            }
            Said::Digest(digest) => cluster.absorb(digest),
            Said::Report(seen) => cluster.observe(seen),
            Said::Refused { gang, epoch } => {
                cluster.refused.insert(gang, epoch);
                vec![gang]
            }
            Said::HeardAgain | Said::Detached => Vec::new(),
        };
        let sightings = self.options.explanations.sightings();
        sightings.take(&self.model, &event.cluster, &touched);
        self.model.touch(&event.cluster, touched);
        self.model.forget_refusals(&event.cluster);
    }

    fn answer(&mut self, question: Question) {
        let (explained, situation) = (self.options.explanations.newest(), self.situation());
        let Some(work) = answer(&self.model, &explained, situation, question) else {
            return;
        };
        match self.options.execution {
            Execution::Inline => work(),
            Execution::Thread => {
                // Without room the answer's way back is dropped: overload, as the caller hears.
                if let Ok(room) = Arc::clone(&self.thinking).try_acquire_owned() {
                    tokio::task::spawn_blocking(move || {
                        let _room = room;
                        work();
                    });
                }
            }
        }
    }

    fn situation(&self) -> Situation {
        Situation {
            now: self.options.clock.wall(),
            boot: self.options.clock.boot(),
            seed: self.model.revision().0,
            terms: self.options.terms,
        }
    }

    async fn round_when_leading(&mut self) {
        self.options.limits.look(&self.model);
        let Some(fence) = self.options.leadership.fence() else {
            if self.term.take().is_some() {
                self.options.explanations.clear();
                self.options.views.clear();
                self.options.bounds.clear();
                self.options.orders.clear();
                self.options.metrics.leading.set(0);
            }
            self.model.follow();
            return;
        };
        if self.term != Some(fence) {
            self.term = Some(fence);
            self.options.orders.clear();
            let now = self.options.clock.boot();
            self.model.fleet.start_term(fence, now);
            self.model.start_term();
            self.in_doubt = true;
            self.options.metrics.leading.set(1);
        }
        if let Err(error) = self.round(fence).await {
            tracing::warn!(%error, "the round was cut short");
            self.in_doubt = true;
            self.model.set_changed();
        }
        self.tell();
    }

    /// One round under `fence`.
    async fn round(&mut self, fence: Fence) -> Result<(), StoreError> {
        if self.in_doubt {
            self.not_before = self.options.store.revision().await?;
            self.in_doubt = false;
        }
        if self.model.revision() < self.not_before {
            return Ok(());
        }
        // What has ended is written first: work that is done is not dropped with its owner.
        self.settle(fence).await?;
        let situation = self.situation();
        let (keepers, model) = (&mut self.options.keepers, &mut self.model);
        let settled = keepers.settle(model, &self.committer, fence, situation);
        self.not_before = self.not_before.max(settled.await?);
        self.decide(fence).await?;
        // Whoever asked while that took its time does not wait for sums over the fleet, too.
        self.answer_some();
        self.do_chores(fence).await
    }

    fn chores_every(&self) -> Millis {
        Millis(self.options.terms.suspect.0 / CHORES_IN_SUSPECT)
    }

    /// What may follow a little later: clusters' records, sums for readers, metrics.
    async fn do_chores(&mut self, fence: Fence) -> Result<(), StoreError> {
        let situation = self.situation();
        if !self.chores.take(situation.boot, self.chores_every()) {
            return Ok(());
        }
        self.options.views.publish(&self.model, situation);
        self.options.bounds.look(&self.model, situation.boot);
        let explained = self.options.explanations.newest();
        self.committer.show(&self.model, &explained, situation);
        let deadlines = self.options.explanations.deadlines();
        let turns = deadlines.look(&self.model, &explained, situation.now);
        let now = self.options.clock.boot();
        self.chores.rest(now, now.since(situation.boot));
        self.committer
            .record_histories(&mut self.model, fence, situation.now)
            .await?;
        self.committer
            .tell_budgets(&mut self.model, fence, situation.now)
            .await?;
        self.committer
            .tell_deadlines(&mut self.model, fence, turns)
            .await?;
        self.committer
            .record_clusters(&mut self.model, fence, situation)
            .await
    }

    /// Observations and wishes first: they free what the decision may use.
    async fn settle(&mut self, fence: Fence) -> Result<(), StoreError> {
        self.model.unsettle_leaving(self.options.clock.wall());
        let (mut gangs, mut jobs) = self.model.take_unsettled();
        while let Some(gang) = gangs.first().copied() {
            let change = settle_gang(&self.model, gang, self.options.clock.wall());
            if let Some(change) = change {
                let write = self.committer.write(&mut self.model, fence, change);
                match write.await {
                    Ok(Commit::Done(..)) => {}
                    Ok(Commit::Conflict(at)) => self.not_before = self.not_before.max(at),
                    Ok(Commit::Deposed) => break,
                    // Too large, or nonsense: this one can never be written. The others can.
                    Err(error @ StoreError::Refused(_)) => {
                        tracing::error!(%gang, %error, "what became of a gang cannot be written");
                    }
                    Err(error) => {
                        self.model.unsettle(gangs, jobs);
                        return Err(error);
                    }
                }
            }
            gangs.pop_first();
        }
        while let Some(job) = jobs.first().copied() {
            if let Some(change) = settle_job(&self.model, job) {
                match self.committer.write(&mut self.model, fence, change).await {
                    Ok(Commit::Done(..) | Commit::Conflict(_)) => {}
                    Ok(Commit::Deposed) => break,
                    Err(error @ StoreError::Refused(_)) => {
                        tracing::error!(%job, %error, "the end of a job cannot be written");
                    }
                    Err(error) => {
                        self.model.unsettle(gangs, jobs);
                        return Err(error);
                    }
                }
            }
            jobs.pop_first();
        }
        Ok(())
    }

    async fn decide(&mut self, fence: Fence) -> Result<(), StoreError> {
        let started = self.options.clock.boot();
        let is_due = started >= self.next_look;
        if !is_due && started < self.rested {
            // What has changed stays marked until then.
            self.next_look = self.next_look.min(self.rested);
            return Ok(());
        }
        if !self.model.take_changed() && !is_due {
            return Ok(());
        }
        self.chores.noted = true;
        self.next_look = self.look_again();
        let asks = !self.model.waiting().is_empty()
            || self.model.has_reservations()
            || self.model.may_give_back();
        if !asks && self.model.holds().next().is_none() {
            // Nobody asks for anything: nothing to decide, and nothing to explain.
            let (revision, decided) = (self.model.revision(), self.options.clock.wall());
            let explained = Explained::of_nothing(revision, decided);
            self.options.explanations.publish(explained);
            return Ok(());
        }
        let (labelled, plan) = self.plan().await;
        let snapshot = &labelled.snapshot;
        let explained = Explained::new(snapshot, &plan, &labelled.troubled);
        self.options.explanations.publish(explained);
        let now = self.options.clock.boot();
        let took = now.since(started).0;
        self.rested = now.after(Millis(took.saturating_mul(REST_AFTER_DECISION)));
        let carried = self
            .committer
            .carry_out(&mut self.model, fence, &labelled, &plan)
            .await?;
        if let Some(at) = carried {
            // What the rest of the plan stood on has moved: decide again.
            self.not_before = self.not_before.max(at);
            self.model.set_changed();
        }
        Ok(())
    }

    /// A snapshot, and the plan for it; of one that is not sound, nothing but the reasons.
    async fn plan(&mut self) -> (Arc<Labelled>, Plan) {
        let started = self.options.clock.boot();
        let (situation, execution) = (self.situation(), self.options.execution);
        let round = sound::Round {
            decide: meridian_policies::decide_soundly,
            execution,
        };
        let found = round.find(&mut self.model, situation).await;
        for left_out in &found.left_out {
            self.committer.left_out(&self.model, *left_out);
        }
        self.options.metrics.violations.inc_by(found.faults);
        self.options.rounds.note(&found.labelled, &found.plan);
        let took = self.options.clock.boot().since(started);
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of one decision")]
        self.options.metrics.decide.observe(took.0 as f64 / 1000.0);
        (found.labelled, found.plan)
    }

    /// Each agent session sees its new orders; metrics see the fleet.
    fn tell(&mut self) {
        if self.options.leadership.role() != self.term.map_or(Role::Follower(None), Role::Leader) {
            return;
        }
        // An agent refuses orders that are older than what it has seen: say nothing before the
        // model has caught up with what was there when the term began.
        if self.in_doubt || self.model.revision() < self.not_before {
            return;
        }
        for cluster in self.model.take_removed_clusters() {
            self.options.orders.remove(&cluster);
        }
        let untold = self.model.take_untold();
        let attached = |name: &&String| {
            self.model
                .fleet
                .clusters
                .get(*name)
                .is_some_and(|cluster| cluster.heard.is_some())
        };
        let clusters = untold.iter().filter(attached).cloned().collect();
        for (cluster, orders) in crate::sessions::orders_of(&self.model, &clusters) {
            self.options.orders.publish(&cluster, orders);
        }
    }
}

fn watch_ended() -> StoreError {
    StoreError::Unavailable("the watch ended".to_owned())
}
