//! Carrying out: one change, one fenced transaction, then into the model and the journal.
//!
//! Owns the writes of the leader, what is told about them, and the coalesced record of region
//! capacity. Never decides what is written.

mod budgets;
mod deadlines;

use meridian_api::conditions;
use meridian_api::ids::{Revision, Uid};
use meridian_api::kinds::member_cluster::{
    AgentStatus, CONNECTED, ContactState, MemberClusterStatus,
};
use meridian_api::kinds::region::GpuCounts;
use meridian_api::meta::{Condition, ConditionStatus};
use meridian_api::quantity::{GpuQuantity, Time};
use meridian_api::units::{Millis, UnixMillis};
use meridian_policies::model::{
    Contact, HeldIx, Lapse, Lapsed, Placed, Plan, Preemption, Regraded, Snapshot, Vacating,
};
use meridian_runtime::Clock;
use meridian_store::keys::{self, ObjectKey, Part};
use meridian_store::{Compare, Operation, SharedStore, StoreError};

use crate::decision::{placement_change, regrade_change};
use crate::explanations::{Explained, headline};
use crate::fence::{Commit, Fence, put};
use crate::holds::{hold_change, lapse_change, vacate_change};
use crate::journal::{Gravity, Journal, JournalEntry};
use crate::metrics::{
    ClusterLabels, CommitLabels, Metrics, PendingLabels, PoolLabels, contact_number,
};
use crate::model::{ClusterState, Labelled, Model, Situation, Written};
use crate::sessions::{Refusal, Refusals};
use crate::settle::{Change, Subject, give_back, to_json};

/// Findings in the status of a cluster: more than a person reads at once.
const MAX_FINDINGS: usize = 64;
/// Capacity of one cluster is written at most this often, contact as soon as it changes.
const WRITE_CAPACITY_EVERY: Millis = Millis::seconds(10);

/// Ledger rows written again after one decision: a cut quota may turn a whole tenant's, which must
/// not hold up the next placements for longer than some hundred writes take.
const REGRADES: usize = 256;

/// One decision of a plan.
#[derive(Clone, Copy)]
enum Step<'a> {
    End(&'a Lapsed),
    Place(&'a Placed),
    Hold(&'a Preemption),
    Vacate(&'a Vacating),
}

/// The decisions of a plan in their order. A hold whose gang is placed elsewhere ends in the write
/// of that place.
fn steps(plan: &Plan) -> Vec<Step<'_>> {
    let alone = plan.lapsed.iter();
    let alone = alone.filter(|lapsed| lapsed.why != Lapse::PlacedElsewhere);
    let mut steps: Vec<Step<'_>> = alone.map(Step::End).collect();
    let mut made = plan.preemptions.iter().peekable();
    for (placed, at) in plan.placements.iter().zip(0_u32..) {
        while let Some(made) = made.next_if(|made| made.after <= at) {
            steps.push(Step::Hold(made));
        }
        steps.push(Step::Place(placed));
    }
    steps.extend(made.map(Step::Hold));
    steps.extend(plan.vacating.iter().map(Step::Vacate));
    steps
}

/// What came of one decision.
enum Decided {
    Written,
    /// There was nothing to write, or it cannot be.
    Dropped,
    Conflict(Revision),
    Deposed,
}

/// The leader's pen.
pub(crate) struct Committer {
    store: SharedStore,
    clock: Clock,
    journal: Journal,
    refusals: Refusals,
    metrics: Metrics,
}

impl Committer {
    /// A pen over these.
    #[must_use]
    pub(crate) fn new(
        store: SharedStore,
        clock: Clock,
        journal: Journal,
        refusals: Refusals,
        metrics: Metrics,
    ) -> Self {
        Self {
            store,
            clock,
            journal,
            refusals,
            metrics,
        }
    }

    /// Writes one change whole, or nothing of it.
    pub(crate) async fn write(
        &self,
        model: &mut Model,
        fence: Fence,
        change: Change,
    ) -> Result<Commit, StoreError> {
        let about = self.about(model, change.subject);
        let write = fence
            .write(self.store.as_ref(), change.why, change.compares, change.ops)
            .await;
        let outcome = match &write {
            Ok(Commit::Done(..)) => "done",
            Ok(Commit::Conflict(_)) => "conflict",
            Ok(Commit::Deposed) => "deposed",
            Err(_) => "error",
        };
        self.metrics
            .commits
            .get_or_create(&CommitLabels { outcome })
            .inc();
        let commit = write?;
        if let Commit::Done(revision, events) = &commit {
            model.absorb_committed(events, *revision);
            if let (Some((reason, message)), Some(entry)) = (change.told, about) {
                let (job, namespace) = (&entry.name, &entry.namespace);
                tracing::info!(%job, %namespace, reason, "{message}");
                self.journal.record(JournalEntry {
                    reason,
                    message,
                    ..entry
                });
            }
        }
        Ok(commit)
    }

    /// Carries a plan out, decision by decision: holds that end, then places and holds that begin
    /// in the order in which they were decided, so that who is placed after room was kept hears
    /// where; then what else follows. The revision of a conflict is returned: what that decision
    /// and the rest of the plan stood on has moved.
    pub(crate) async fn carry_out(
        &self,
        model: &mut Model,
        fence: Fence,
        labelled: &Labelled,
        plan: &Plan,
    ) -> Result<Option<Revision>, StoreError> {
        let snapshot = &labelled.snapshot;
        for step in steps(plan) {
            let change = match step {
                Step::End(lapsed) => lapse_change(model, snapshot, *lapsed),
                Step::Place(placed) => placement_change(model, snapshot, placed, fence.term),
                Step::Hold(made) => hold_change(model, snapshot, &labelled.hosts, made, fence.term),
                Step::Vacate(leaving) => {
                    vacate_change(model, snapshot, &labelled.hosts, leaving, fence.term)
                }
            };
            match (self.decision(model, fence, change).await?, step) {
                (Decided::Written, Step::Place(placed)) => self.placed(snapshot, placed),
                (Decided::Written, Step::Hold(made)) => {
                    self.metrics.preemptions.inc_by(made.victims.len() as u64);
                }
                (Decided::Written, Step::Vacate(leaving)) => {
                    let victims = leaving.victims.len() as u64;
                    self.metrics.preemptions.inc_by(victims);
                }
                (Decided::Written | Decided::Dropped, _) => {}
                (Decided::Conflict(at), _) => return Ok(Some(at)),
                (Decided::Deposed, _) => return Ok(None),
            }
        }
        self.follow(model, fence, snapshot, plan).await
    }

    /// Writes one decision. One that is too large, or nonsense, can never be written: the others
    /// can.
    async fn decision(
        &self,
        model: &mut Model,
        fence: Fence,
        change: Option<Change>,
    ) -> Result<Decided, StoreError> {
        let Some(change) = change else {
            return Ok(Decided::Dropped);
        };
        match self.write(model, fence, change).await {
            Ok(Commit::Done(..)) => Ok(Decided::Written),
            Ok(Commit::Conflict(at)) => Ok(Decided::Conflict(at)),
            Ok(Commit::Deposed) => Ok(Decided::Deposed),
            Err(error @ StoreError::Refused(_)) => {
                tracing::error!(%error, "a decision cannot be written");
                Ok(Decided::Dropped)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes down whose quota placements stand on, where that has changed. The revision of a
    /// conflict is returned: what the decision stood on has moved.
    async fn regrade(
        &self,
        model: &mut Model,
        fence: Fence,
        snapshot: &Snapshot,
        regraded: &[Regraded],
    ) -> Result<Option<Revision>, StoreError> {
        for regraded in regraded.iter().take(REGRADES) {
            let Some(change) = regrade_change(model, snapshot, regraded) else {
                continue;
            };
            match self.write(model, fence, change).await? {
                Commit::Done(..) => {}
                Commit::Conflict(at) => return Ok(Some(at)),
                Commit::Deposed => break,
            }
        }
        Ok(None)
    }

    /// Writes down what a decision means for what is placed already. The revision of a conflict is
    /// returned: what the decision stood on has moved.
    async fn follow(
        &self,
        model: &mut Model,
        fence: Fence,
        snapshot: &Snapshot,
        plan: &Plan,
    ) -> Result<Option<Revision>, StoreError> {
        let moved = self.give_back(model, fence, snapshot, &plan.returning);
        if let Some(at) = moved.await? {
            return Ok(Some(at));
        }
        self.regrade(model, fence, snapshot, &plan.regraded).await
    }

    /// Sends back to the queue what goes to an earlier group of its job.
    async fn give_back(
        &self,
        model: &mut Model,
        fence: Fence,
        snapshot: &Snapshot,
        returning: &[HeldIx],
    ) -> Result<Option<Revision>, StoreError> {
        for held in returning {
            let held = &snapshot.held[held.index()];
            let Some(change) = give_back(model, held.gang, held.epoch, snapshot.now) else {
                continue;
            };
            match self.write(model, fence, change).await? {
                Commit::Done(..) => {}
                Commit::Conflict(at) => return Ok(Some(at)),
                Commit::Deposed => break,
            }
        }
        Ok(None)
    }

    /// Enters into tenants' histories what their running work has held, once an hour.
    pub(crate) async fn record_histories(
        &self,
        model: &mut Model,
        fence: Fence,
        now: UnixMillis,
    ) -> Result<(), StoreError> {
        for (compare, op) in model.histories_due(now) {
            let why = Operation::WriteCapacity;
            let write = fence.write(self.store.as_ref(), why, vec![compare], vec![op]);
            match write.await? {
                Commit::Done(revision, events) => model.absorb_committed(&events, revision),
                // The model has yet to see who wrote it: the next time does.
                Commit::Conflict(_) => {}
                Commit::Deposed => break,
            }
        }
        Ok(())
    }

    /// An entry about the change's job, taken before it may go.
    fn about(&self, model: &Model, subject: Subject) -> Option<JournalEntry> {
        let uid = match subject {
            Subject::Gang(gang) => gang.job,
            Subject::Job(uid) => uid,
        };
        let job = model.job(uid)?;
        Some(JournalEntry {
            number: 0,
            at: self.clock.wall(),
            kind: "FederatedJob",
            namespace: job.namespace().to_owned(),
            name: job.name().to_owned(),
            uid: uid.to_string(),
            gravity: Gravity::Normal,
            reason: "",
            message: String::new(),
        })
    }

    /// Tells of a job with which no sound decision is found.
    pub(crate) fn left_out(&self, model: &Model, job: Uid) {
        let about = self.about(model, Subject::Job(job));
        let (Some(entry), Some((why, until))) = (about, model.left_out(job)) else {
            return;
        };
        let (name, namespace, reason) = (&entry.name, &entry.namespace, "LeftOut");
        tracing::error!(job = %name, %namespace, reason, "no sound decision with it: {why}");
        self.journal.record(JournalEntry {
            gravity: Gravity::Warning,
            reason,
            message: format!(
                "no sound decision is found with it until {}: {why}",
                Time(until)
            ),
            ..entry
        });
    }

    /// Counts a placement that was committed.
    fn placed(&self, snapshot: &Snapshot, placed: &Placed) {
        let submitted = snapshot.waiting[placed.waiting.index()].submitted;
        #[expect(clippy::cast_precision_loss, reason = "a wait in milliseconds")]
        self.metrics
            .wait
            .observe(snapshot.now.since(submitted).0 as f64 / 1000.0);
    }

    /// Writes what is news about clusters: contact at once, capacity now and then.
    pub(crate) async fn record_clusters(
        &self,
        model: &mut Model,
        fence: Fence,
        situation: Situation,
    ) -> Result<(), StoreError> {
        let names: Vec<String> = model.catalog.clusters.keys().cloned().collect();
        for name in names {
            let Some(cluster) = model.fleet.clusters.get(&name) else {
                continue;
            };
            let contact = cluster.contact(situation.boot, situation.terms);
            let refusal = self.refusals.of(&name);
            // Another agent that is refused does not disturb the one that is heard.
            let refusal = refusal.filter(|_| contact != Contact::Ready);
            let Some(written) = news(cluster, contact, refusal.as_ref(), situation) else {
                continue;
            };
            let generation = model
                .catalog
                .clusters
                .get(&name)
                .and_then(|known| known.value.metadata.generation);
            let status = status(cluster, contact, refusal, generation, situation);
            let key = ObjectKey {
                plural: "memberclusters".to_owned(),
                namespace: None,
                name: name.clone(),
            };
            let Some(declared) = model.catalog.clusters.get(&name) else {
                continue;
            };
            let compares = vec![Compare::ModRevision(
                key.part(Part::Spec),
                declared.revision,
            )];
            let ops = vec![
                put(key.part(Part::Status), to_json(&status)),
                put(keys::capacity(&name), to_json(&cluster.pools)),
            ];
            let write = fence.write(self.store.as_ref(), Operation::WriteCapacity, compares, ops);
            if let Commit::Done(revision, events) = write.await? {
                model.absorb_committed(&events, revision);
                self.tell_contact(model, &name, contact);
                if let Some(cluster) = model.fleet.clusters.get_mut(&name) {
                    cluster.written = written;
                }
            }
        }
        Ok(())
    }

    fn tell_contact(&self, model: &Model, name: &str, contact: Contact) {
        let before = model
            .fleet
            .clusters
            .get(name)
            .and_then(|cluster| cluster.written.contact);
        if before == Some(contact) {
            return;
        }
        let (gravity, reason, message) = match contact {
            Contact::Ready => (Gravity::Normal, "Connected", "its agent is heard"),
            Contact::Suspect => (
                Gravity::Warning,
                "Suspect",
                "its agent is late: no new work",
            ),
            Contact::Unreachable => (Gravity::Warning, "Unreachable", "its agent has gone quiet"),
            Contact::Lost => (Gravity::Warning, "Lost", "its agent is lost"),
        };
        self.journal.record(JournalEntry {
            number: 0,
            at: self.clock.wall(),
            kind: "MemberCluster",
            namespace: String::new(),
            name: name.to_owned(),
            uid: String::new(),
            gravity,
            reason,
            message: message.to_owned(),
        });
    }

    /// Shows the fleet and the queue as metrics.
    pub(crate) fn show(&self, model: &Model, explained: &Explained, situation: Situation) {
        for (name, cluster) in &model.fleet.clusters {
            let labels = ClusterLabels {
                cluster: name.clone(),
            };
            let contact = contact_number(cluster.contact(situation.boot, situation.terms));
            self.metrics.contact.get_or_create(&labels).set(contact);
            if let Some(heard) = &cluster.heard {
                let age = situation.boot.since(heard.last()).0 / 1000;
                let age = i64::try_from(age).unwrap_or(i64::MAX);
                self.metrics.heartbeat_age.get_or_create(&labels).set(age);
            }
            for (pool, state) in &cluster.pools {
                let label = |word| PoolLabels {
                    cluster: name.clone(),
                    pool: pool.clone(),
                    state: word,
                };
                let cards = |amount: meridian_api::units::MilliGpus| {
                    i64::try_from(amount.whole()).unwrap_or(i64::MAX)
                };
                let all = meridian_policies::shapes::allocatable(&state.shapes).gpus;
                let free = meridian_policies::shapes::free(&state.shapes).gpus;
                let gauges = &self.metrics.pool_gpus;
                gauges
                    .get_or_create(&label("total"))
                    .set(cards(all.saturating_add(state.out)));
                gauges.get_or_create(&label("free")).set(cards(free));
                gauges.get_or_create(&label("out")).set(cards(state.out));
            }
        }
        self.show_budgets(model, situation.now);
        self.metrics.pending.clear();
        let class = |job: Uid| model.job(job).map(|job| job.spec().workload_class.as_str());
        for (class, blockers, count) in explained.counts(class) {
            let reason =
                headline(blockers).map_or("PendingEvaluation", |first| first.reason.as_str());
            let labels = PendingLabels {
                class: class.to_owned(),
                reason: reason.to_owned(),
            };
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            self.metrics.pending.get_or_create(&labels).inc_by(count);
        }
    }
}

/// What would be written of a cluster, when it is worth a write.
fn news(
    cluster: &ClusterState,
    contact: Contact,
    refusal: Option<&Refusal>,
    situation: Situation,
) -> Option<Written> {
    // At the start of a term agents are given the time to attach before anything is said.
    if cluster.heard.is_none() && contact == Contact::Suspect {
        return None;
    }
    let (old, refused) = (&cluster.written, refusal.map(|refusal| refusal.reason));
    let urgent = old.contact != Some(contact)
        || old.incarnation != cluster.incarnation
        || old.refused != refused;
    let due = situation.boot.since(old.at) >= WRITE_CAPACITY_EVERY;
    let moved =
        || old.capacity.as_ref() != Some(&cluster.pools) || old.held_back != cluster.held_back;
    (urgent || (due && moved())).then(|| Written {
        contact: Some(contact),
        incarnation: cluster.incarnation,
        refused,
        capacity: Some(cluster.pools.clone()),
        held_back: cluster.held_back.clone(),
        at: situation.boot,
    })
}

fn status(
    cluster: &ClusterState,
    contact: Contact,
    refusal: Option<Refusal>,
    generation: Option<i64>,
    situation: Situation,
) -> MemberClusterStatus {
    let (total, free, out) = cluster.gpus();
    let (state, connected, reason) = match contact {
        Contact::Ready => (ContactState::Ready, ConditionStatus::True, "HeartbeatFresh"),
        Contact::Suspect => (
            ContactState::Suspect,
            ConditionStatus::Unknown,
            "HeartbeatLate",
        ),
        Contact::Unreachable => (
            ContactState::Unreachable,
            ConditionStatus::False,
            "HeartbeatMissing",
        ),
        Contact::Lost => (
            ContactState::Lost,
            ConditionStatus::False,
            "NeverAttachedOrLost",
        ),
    };
    let mut conditions = cluster
        .status
        .as_ref()
        .map(|old| old.conditions.clone())
        .unwrap_or_default();
    let (reason, message) = match refusal {
        Some(refusal) => (refusal.reason, refusal.message),
        None => (reason, String::new()),
    };
    let connected = Condition {
        kind: CONNECTED.to_owned(),
        status: connected,
        reason: reason.to_owned(),
        message,
        observed_generation: generation,
        ..Condition::default()
    };
    conditions::set(&mut conditions, connected, situation.now);
    let silence = cluster
        .heard
        .as_ref()
        .map(|heard| situation.boot.since(heard.last()));
    let heard = silence.map(|silence| {
        Time(meridian_api::units::UnixMillis(
            situation.now.0.saturating_sub_unsigned(silence.0),
        ))
    });
    MemberClusterStatus {
        observed_generation: generation,
        contact: Some(state),
        agent: cluster.heard.is_some().then(|| AgentStatus {
            version: cluster.version.clone(),
            incarnation: cluster.incarnation,
            last_heartbeat: heard,
        }),
        gpus: Some(GpuCounts {
            total: GpuQuantity(total),
            free: GpuQuantity(free),
            out: GpuQuantity(out),
        }),
        findings: findings(cluster),
        conditions,
    }
}

/// What a person should know of a cluster's nodes, pool by pool, and of gangs that others made.
fn findings(cluster: &ClusterState) -> Vec<String> {
    let pools = cluster.pools.iter();
    let all = pools.flat_map(|(name, pool)| {
        let findings = pool.findings.iter();
        findings.map(move |finding| format!("{name}: {finding}"))
    });
    let held_back = cluster.held_back.iter();
    let held_back = held_back.map(|gang| format!("not queued: {gang}"));
    held_back.chain(all).take(MAX_FINDINGS).collect()
}
