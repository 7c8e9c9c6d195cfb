//! The model: what the store and the agents say, kept warm in memory for deciding.
//!
//! Owns the rows that a snapshot is made of. It changes in two ways only: by events of the store
//! (its own commits included) and by what agents report. One task owns it; a follower keeps it
//! just as warm. Never writes.

mod alike;
mod asked;
mod catalog;
mod choices;
mod digest;
mod entries;
mod fleet;
mod forms;
mod histories;
mod holds;
mod index;
mod jobs;
mod losses;
mod members;
mod offers;
mod placed;
mod reserved;
mod rows;
mod seats;
mod services;
mod snapshot;
mod taints;
mod tariff;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use meridian_api::ids::{Epoch, GangId, Revision, StoreGeneration, Uid};
use meridian_api::units::{Millis, UnixMillis};
use meridian_store::Event;

use alike::Alike;
pub(crate) use catalog::{Catalog, Versioned};
pub(crate) use digest::{Digest, observations};
pub(crate) use entries::{Drafted, Reader};
pub(crate) use fleet::{
    ClusterState, ContactTerms, Fleet, Heard, PoolState, Seen, SeenSeat, Written,
};
pub(crate) use forms::{GangRow, TemplateHash};
pub(crate) use histories::{BudgetAlert, Histories, WHOLE};
pub(crate) use holds::StoredHold;
pub(crate) use jobs::{FINALIZER, Job, PLURAL as JOBS, TRACEPARENT_ANNOTATION, Trouble};
pub(crate) use offers::{Offer, OfferId, OfferedRole};
use rows::RowIx;
pub(crate) use rows::Waiting;
pub(crate) use seats::{HostId, Hosts};
pub(crate) use services::{PLURAL as SERVICES, Service};
pub(crate) use snapshot::{Labelled, Situation};
pub(crate) use told::Told;

use crate::placement::PlacementRecord;

/// A placement as stored.
#[derive(Clone, Debug)]
pub(crate) struct StoredPlacement {
    /// What it says.
    pub(crate) record: Arc<PlacementRecord>,
    /// Revision of its newest change.
    pub(crate) revision: Revision,
}

/// A job with which no sound decision is found.
#[derive(Clone, Debug)]
struct LeftOut {
    why: String,
    until: UnixMillis,
}

/// Everything a decision may look at, as of one revision of the store and the newest reports.
#[derive(Debug, Default)]
pub(crate) struct Model {
    /// Everything up to this revision is in.
    revision: Revision,
    /// Newest change of the policy head.
    policy_head: Revision,
    /// Newest decision.
    ledger_head: Revision,
    /// History of the store.
    store_generation: StoreGeneration,
    /// Named policies.
    pub(crate) catalog: Catalog,
    /// Clusters and what their agents see.
    pub(crate) fleet: Fleet,
    /// What tenants have held.
    pub(crate) histories: Histories,
    /// What jobs and placements share.
    forms: forms::Forms,
    marks: Alike<forms::Marks>,
    words: Alike<told::Words>,
    placed: placed::Common,
    jobs: rows::Rows,
    placements: BTreeMap<GangId, StoredPlacement>,
    /// Room that is kept, by the gang that it is kept for.
    holds: BTreeMap<GangId, StoredHold>,
    /// For whom a gang makes room.
    makes_room_for: BTreeMap<GangId, GangId>,
    losses: losses::Losses,
    /// Jobs of which a gang rests before it is tried again, or for which a cluster lacks something.
    resting: BTreeSet<Uid>,
    /// Gangs without a place that are to get one.
    waiting: rows::Gangs,
    /// Jobs that no decision looks at for now. In memory only: another life may be wiser.
    left_out: BTreeMap<Uid, LeftOut>,
    /// Gangs whose placement and newest observation have not been compared yet.
    unsettled: BTreeSet<GangId>,
    /// Jobs to look at: asked to go.
    unsettled_jobs: BTreeSet<Uid>,
    services: BTreeMap<Uid, Service>,
    service_names: BTreeMap<(String, String), Uid>,
    /// Jobs that are replicas, by service.
    replicas: BTreeMap<Uid, BTreeSet<Uid>>,
    /// Services to look at: changed, or a replica of theirs did.
    unsettled_services: BTreeSet<Uid>,
    /// Jobs of gangs that others made, by offer.
    origins: BTreeMap<OfferId, Uid>,
    /// Offers to look at: told, gone, or without their job.
    offered: BTreeSet<OfferId>,
    /// Jobs that have a `finishBy`.
    deadlines: BTreeSet<Uid>,
    /// Jobs that recur.
    schedules: BTreeSet<Uid>,
    /// Runs of each of them; of one that is gone, too.
    runs: BTreeMap<Uid, BTreeSet<Uid>>,
    /// Recurring jobs to look at.
    recurring: BTreeSet<Uid>,
    /// Clusters whose orders have changed since they were last told.
    untold: BTreeSet<String>,
    /// Jobs as stored that this hub cannot read: what runs of them goes on.
    unreadable: BTreeMap<String, Uid>,
    /// Newest revision that this hub has committed itself.
    committed: Revision,
    /// Clusters that were removed since sessions were last told.
    removed_clusters: BTreeSet<String>,
    /// Removed keys with the revision that removed them, until the watch has passed it: an older
    /// event that is still on its way must not bring a row back.
    tombstones: BTreeMap<Bytes, Revision>,
    /// Something changed that a decision may depend on.
    changed: bool,
}

impl Model {
    /// The revision up to which everything is in.
    #[must_use]
    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    /// Newest decision.
    #[must_use]
    pub(crate) fn ledger_head(&self) -> Revision {
        self.ledger_head
    }

    /// Newest revision that is in, this hub's own commits ahead of the watch included.
    #[must_use]
    pub(crate) fn newest(&self) -> Revision {
        self.revision.max(self.committed)
    }

    /// True for a job that is stored and cannot be read.
    #[must_use]
    pub(crate) fn is_unreadable(&self, job: Uid) -> bool {
        self.unreadable
            .values()
            .any(|unreadable| *unreadable == job)
    }

    /// One job.
    #[must_use]
    pub(crate) fn job(&self, uid: Uid) -> Option<&Job> {
        self.jobs.get(uid)
    }

    /// Revision of the newest change of any policy.
    pub(crate) const fn policy_head(&self) -> Revision {
        self.policy_head
    }

    /// One job by name.
    #[must_use]
    pub(crate) fn job_named(&self, namespace: &str, name: &str) -> Option<&Job> {
        let named = self.jobs.named(namespace, name);
        named.max_by_key(|job| job.spec_revision)
    }

    /// All placements, by gang.
    pub(crate) fn placements(&self) -> impl Iterator<Item = &StoredPlacement> {
        self.placements.values()
    }

    /// One placement.
    #[must_use]
    pub(crate) fn placement(&self, gang: GangId) -> Option<&StoredPlacement> {
        self.placements.get(&gang)
    }

    /// Placements of one job, by index.
    pub(crate) fn placements_of(&self, job: Uid) -> impl Iterator<Item = &StoredPlacement> {
        let of_job = GangId { job, index: 0 }..=GangId {
            job,
            index: u32::MAX,
        };
        self.placements
            .range(of_job)
            .map(|(_, placement)| placement)
    }

    /// Gangs that wait for a place.
    #[must_use]
    pub(crate) fn waiting(&self) -> Waiting<'_> {
        Waiting {
            jobs: &self.jobs,
            gangs: &self.waiting,
        }
    }

    /// Everything is loaded: trees that grew key by key, and are half empty, are made anew, full.
    pub(crate) fn fit(&mut self) {
        self.jobs.fit();
        self.placements = std::mem::take(&mut self.placements).into_iter().collect();
        self.waiting.fit();
    }

    /// Puts in the events of one revision, from the watch. A bookmark has none.
    pub(crate) fn absorb(&mut self, events: &[Event], revision: Revision) {
        self.absorb_own(events);
        self.advance(revision);
    }

    /// Puts in what this hub has just committed at `revision`, ahead of the watch.
    pub(crate) fn absorb_committed(&mut self, events: &[Event], revision: Revision) {
        self.committed = self.committed.max(revision);
        self.absorb_own(events);
    }

    fn absorb_own(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::Put { current, .. } => self.put(current),
                Event::Delete { key, revision, .. } => self.delete(key, *revision),
            }
        }
    }

    fn advance(&mut self, revision: Revision) {
        self.revision = self.revision.max(revision);
        self.tombstones.retain(|_, removed| *removed > revision);
    }

    /// Puts the gang where it belongs: waiting, or not.
    fn refresh_gang(&mut self, gang: GangId) {
        let indices = gang.index..gang.index.saturating_add(1);
        self.refresh_gangs(gang.job, self.jobs.row(gang.job), indices);
    }

    /// All gangs of the job in that row.
    fn refresh_job(&mut self, row: RowIx) {
        if let Some(job) = self.jobs.at(row) {
            self.refresh_gangs(job.uid, Some(row), 0..job.gang_count());
        }
    }

    fn refresh_gangs(&mut self, uid: Uid, row: Option<RowIx>, indices: Range<u32>) {
        let job = row.and_then(|row| self.jobs.at(row));
        for index in indices {
            let gang = GangId { job: uid, index };
            let is_placed = self.placements.contains_key(&gang);
            if let Some((row, job)) = row.zip(job) {
                let waits = !is_placed && job.wants_place(index);
                self.waiting.set(row, index, waits);
            }
            if is_placed {
                self.unsettled.insert(gang);
            }
        }
        if job.is_some_and(Job::is_deleting) {
            self.unsettled_jobs.insert(uid);
        }
        self.unsettled_services
            .extend(job.and_then(|job| job.marks.service));
        self.changed = true;
    }

    /// No decision looks at what waits of this job until then, unless its spec changes: with it,
    /// deciding goes wrong like this.
    pub(crate) fn leave_out(&mut self, job: Uid, why: String, until: UnixMillis) {
        self.left_out.insert(job, LeftOut { why, until });
    }

    /// Why a job is left out, and until when.
    #[must_use]
    pub(crate) fn left_out(&self, job: Uid) -> Option<(&str, UnixMillis)> {
        let left_out = self.left_out.get(&job)?;
        Some((&left_out.why, left_out.until))
    }

    /// True when a decision may come out differently than the last; asked once per round.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    /// Makes the next round decide again, though nothing new came in.
    pub(crate) fn set_changed(&mut self) {
        self.changed = true;
    }

    /// Gangs and jobs to settle, once.
    pub(crate) fn take_unsettled(&mut self) -> (BTreeSet<GangId>, BTreeSet<Uid>) {
        (
            std::mem::take(&mut self.unsettled),
            std::mem::take(&mut self.unsettled_jobs),
        )
    }

    /// Puts back what could not be settled.
    pub(crate) fn unsettle(&mut self, gangs: BTreeSet<GangId>, jobs: BTreeSet<Uid>) {
        self.unsettled.extend(gangs);
        self.unsettled_jobs.extend(jobs);
    }

    /// Clusters that were removed, once.
    pub(crate) fn take_removed_clusters(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.removed_clusters)
    }

    /// A follower settles and tells nothing: what is noted for that is dropped.
    pub(crate) fn follow(&mut self) {
        self.unsettled.clear();
        self.unsettled_jobs.clear();
        self.unsettled_services.clear();
        self.untold.clear();
        self.offered.clear();
    }

    /// Offers to look at, once.
    pub(crate) fn take_offered(&mut self) -> BTreeSet<OfferId> {
        std::mem::take(&mut self.offered)
    }

    /// Puts back offers that were not looked at.
    pub(crate) fn look_again(&mut self, offers: impl IntoIterator<Item = OfferId>) {
        self.offered.extend(offers);
    }

    /// The job that was made from an offer.
    #[must_use]
    pub(crate) fn job_of(&self, offer: &OfferId) -> Option<&Job> {
        self.job(*self.origins.get(offer)?)
    }

    /// Jobs that have a `finishBy`, those that are over among them.
    pub(crate) fn jobs_with_deadline(&self) -> impl Iterator<Item = &Job> {
        self.deadlines.iter().filter_map(|uid| self.job(*uid))
    }

    /// Most that a job may run: what it says, else its class.
    pub(crate) fn max_runtime(&self, job: &Job) -> Option<Millis> {
        let spec = job.spec();
        let class = self.catalog.classes.get(&spec.workload_class);
        let of_class = class.and_then(|class| class.value.spec.max_runtime);
        spec.max_runtime.or(of_class).map(|span| span.0)
    }

    /// What its cluster says of a placement, for a person; empty when that is nothing.
    pub(crate) fn words_of(&self, record: &PlacementRecord) -> &str {
        let cluster = self.fleet.clusters.get(&*record.cluster);
        let seen = cluster.and_then(|cluster| cluster.last_seen(record.gang, record.epoch));
        let seen = seen.filter(|seen| seen.epoch == record.epoch);
        seen.map_or("", |seen| match seen.message.as_str() {
            "" => seen.reason.as_str(),
            message => message,
        })
    }

    /// Runs of a recurring job.
    pub(crate) fn runs(&self, job: Uid) -> impl Iterator<Item = &Uid> {
        self.runs.get(&job).into_iter().flatten()
    }

    /// Recurring jobs to look at, at most so many, once.
    pub(crate) fn take_recurring(&mut self, most: usize) -> Vec<Uid> {
        let taken: Vec<Uid> = self.recurring.iter().take(most).copied().collect();
        for uid in &taken {
            self.recurring.remove(uid);
        }
        taken
    }

    /// Has these recurring jobs looked at.
    pub(crate) fn look_at_runs(&mut self, jobs: impl IntoIterator<Item = Uid>) {
        self.recurring.extend(jobs);
    }

    /// Clusters whose orders changed, once.
    pub(crate) fn take_untold(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.untold)
    }

    /// Everything is to be looked at and told again: a new term.
    pub(crate) fn start_term(&mut self) {
        self.changed = true;
        self.unsettled.extend(self.placements.keys().copied());
        let leaving = self.jobs.iter().filter(|job| job.is_deleting());
        self.unsettled_jobs.extend(leaving.map(|job| job.uid));
        self.unsettle_every_service();
        self.untold.extend(self.fleet.clusters.keys().cloned());
        self.offered.extend(self.origins.keys().cloned());
        self.recurring.extend(self.schedules.iter().copied());
        self.recurring.extend(self.runs.keys().copied());
        for (name, cluster) in &self.fleet.clusters {
            let uids = cluster.offers.uids();
            self.offered
                .extend(uids.map(|uid| (name.clone(), uid.clone())));
        }
    }

    /// Drops refusals and proofs that no placement stands for any more.
    pub(crate) fn forget_refusals(&mut self, cluster: &str) {
        let Some(cluster) = self.fleet.clusters.get_mut(cluster) else {
            return;
        };
        let stands = |gang: &GangId, epoch: Epoch| {
            self.placements
                .get(gang)
                .is_some_and(|row| row.record.epoch == epoch)
        };
        cluster.refused.retain(|gang, epoch| stands(gang, *epoch));
        cluster.proved.retain(|gang, seen| stands(gang, seen.epoch));
    }

    /// Names what an agent's report touched.
    pub(crate) fn touch(&mut self, cluster: &str, gangs: impl IntoIterator<Item = GangId>) {
        self.unsettled.extend(gangs);
        self.untold.insert(cluster.to_owned());
        self.changed = true;
        let known = self.fleet.clusters.get_mut(cluster);
        let Some((uids, renewed)) = known.map(|known| known.offers.take_touched()) else {
            return;
        };
        let id = |uid: String| (cluster.to_owned(), uid);
        self.offered.extend(uids.into_iter().map(id));
        if renewed {
            let first = (cluster.to_owned(), String::new());
            let here = self.origins.range(first..).map(|(origin, _)| origin);
            let here = here.take_while(|(name, _)| name == cluster);
            self.offered.extend(here.cloned());
        }
    }
}
