//! Explanations: why each gang waits, exactly as the last decision said.
//!
//! Owns what reads add to the status of a waiting job. Kept once per distinct list of reasons and
//! expanded on read, so it cannot be staler than the decision, and a million alike jobs cost one
//! entry. Empty on a follower: it says who leads instead.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use meridian_api::ids::{GangId, Revision, Uid};
use meridian_api::kinds::federated_job::status::{Blocker, EstimatedStart, MAX_BLOCKERS_SHOWN};
use meridian_api::quantity::{GpuQuantity, Time};
use meridian_api::reasons::Reason;
use meridian_api::units::UnixMillis;
use meridian_policies::model::{Cause, ClassIx, Estimate, Plan, Reasons, Snapshot};
use serde_json::{Value, json};

use crate::deadlines::Deadlines;
use crate::model::Trouble;
use crate::sightings::Sightings;

/// What the last decision said of everything that waits.
#[derive(Debug, Default)]
pub(crate) struct Explained {
    /// Revision it was decided on.
    pub(crate) revision: Revision,
    /// When.
    pub(crate) decided: UnixMillis,
    /// Waiting gangs in the order in which they are tried, as columns: the job of each,
    jobs: Vec<Uid>,
    /// which of its gangs it is,
    indices: Vec<u32>,
    /// and why it waits, as a row of `lists`.
    why: Vec<u32>,
    /// The same gangs, as rows of the columns, by identity.
    by_gang: Vec<u32>,
    /// Different lists of reasons.
    lists: Vec<Vec<Blocker>>,
    /// Rows from the first on that the decision looked at, and how many of them wait, by class and
    /// list: a long queue is counted where it is walked anyway.
    looked_at: usize,
    counts: Vec<(String, u32, u64)>,
    /// When each may start, where that can be said: rows of the columns, in order.
    starts: Vec<(u32, Estimate)>,
}

impl Explained {
    /// Nobody waited.
    #[must_use]
    pub(crate) fn of_nothing(revision: Revision, decided: UnixMillis) -> Self {
        Self {
            revision,
            decided,
            ..Self::default()
        }
    }

    /// What a plan said, in words.
    #[must_use]
    pub(crate) fn new(snapshot: &Snapshot, plan: &Plan, troubled: &[(GangId, Trouble)]) -> Self {
        let mut explained = Self::of_nothing(snapshot.revision, snapshot.now);
        let all = plan.unplaced.len() + troubled.len();
        explained.jobs.reserve_exact(all);
        explained.indices.reserve_exact(all);
        explained.why.reserve_exact(all);
        // Lists at one address are one; only of others are the causes compared.
        let mut addresses: BTreeMap<usize, u32> = BTreeMap::new();
        let mut reasons: BTreeMap<&Reasons, u32> = BTreeMap::new();
        let mut counts: BTreeMap<(ClassIx, u32), u64> = BTreeMap::new();
        for left in &plan.unplaced {
            let waits = &snapshot.waiting[left.waiting.index()];
            let address = std::ptr::from_ref(&*left.reasons).addr();
            let list = *addresses.entry(address).or_insert_with(|| {
                *reasons.entry(&left.reasons).or_insert_with(|| {
                    let shown = left.reasons.iter().take(MAX_BLOCKERS_SHOWN);
                    explained.list(shown.map(|cause| blocker(snapshot, cause)).collect())
                })
            });
            let place = row(explained.len());
            explained
                .starts
                .extend(left.start.map(|start| (place, start)));
            explained.push(waits.gang, list);
            *counts.entry((waits.class, list)).or_default() += 1;
        }
        explained.count(snapshot, counts);
        let mut troubles: BTreeMap<(Reason, &str), u32> = BTreeMap::new();
        for (gang, trouble) in troubled {
            let key = (trouble.reason, trouble.message.as_str());
            let list = troubles.entry(key).or_insert_with(|| {
                explained.list(vec![Blocker {
                    reason: trouble.reason,
                    cluster: None,
                    flavor: None,
                    need: None,
                    free: None,
                    limit: None,
                    message: trouble.message.clone(),
                }])
            });
            let list = *list;
            explained.push(*gang, list);
        }
        explained.starts.shrink_to_fit();
        explained.sort();
        explained
    }

    /// All rows so far were looked at, so many of each class and list.
    fn count(&mut self, snapshot: &Snapshot, counts: BTreeMap<(ClassIx, u32), u64>) {
        let name = |class: ClassIx| snapshot.classes.get(class.index());
        let name = |class| name(class).map_or_else(String::new, |class| class.name.clone());
        let counts = counts.into_iter();
        let counts = counts.map(|((class, list), count)| (name(class), list, count));
        (self.looked_at, self.counts) = (self.len(), counts.collect());
    }

    fn sort(&mut self) {
        self.by_gang = (0..row(self.len())).collect();
        let (jobs, indices) = (&self.jobs, &self.indices);
        let gang = |at: &u32| (jobs[*at as usize], indices[*at as usize]);
        self.by_gang.sort_unstable_by_key(gang);
    }

    /// One gang waits, and may start then.
    #[cfg(test)]
    pub(crate) fn of_one(gang: GangId, start: Estimate) -> Self {
        let mut explained = Self::default();
        let list = explained.list(Vec::new());
        explained.push(gang, list);
        explained.starts.push((0, start));
        explained.sort();
        explained
    }

    /// Another list of reasons, as its row.
    fn list(&mut self, list: Vec<Blocker>) -> u32 {
        self.lists.push(list);
        row(self.lists.len() - 1)
    }

    fn push(&mut self, gang: GangId, list: u32) {
        self.jobs.push(gang.job);
        self.indices.push(gang.index);
        self.why.push(list);
    }

    /// How many gangs wait.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Waiting gangs in the order in which they are tried, and why each waits.
    pub(crate) fn queue(&self) -> impl Iterator<Item = (GangId, &[Blocker])> {
        let gangs = self.jobs.iter().zip(&self.indices);
        let gangs = gangs.map(|(job, index)| GangId {
            job: *job,
            index: *index,
        });
        gangs.zip(
            self.why
                .iter()
                .map(|list| self.lists[*list as usize].as_slice()),
        )
    }

    /// How many gangs wait, by class and list of reasons. `class` is asked only of jobs that the
    /// decision could not look at; what it says nothing of has none.
    pub(crate) fn counts<'a>(
        &'a self,
        class: impl Fn(Uid) -> Option<&'a str>,
    ) -> impl Iterator<Item = (&'a str, &'a [Blocker], u64)> {
        let looked_at = self.counts.iter();
        let looked_at = looked_at.map(|(class, list, count)| ((class.as_str(), *list), *count));
        let mut counts: BTreeMap<(&str, u32), u64> = looked_at.collect();
        let others = self.jobs.iter().zip(&self.why).skip(self.looked_at);
        for (job, list) in others {
            let class = class(*job).unwrap_or_default();
            *counts.entry((class, *list)).or_default() += 1;
        }
        let counts = counts.into_iter();
        counts.map(|((class, list), count)| (class, self.lists[list as usize].as_slice(), count))
    }

    /// Rows of a job's gangs, by index.
    fn rows_of(&self, job: Uid) -> &[u32] {
        let first = |at: &u32| self.jobs[*at as usize] < job;
        let rows = &self.by_gang[self.by_gang.partition_point(first)..];
        let own = |at: &u32| self.jobs[*at as usize] == job;
        &rows[..rows.partition_point(own)]
    }

    fn start_at(&self, row: u32) -> Option<Estimate> {
        let at = self.starts.binary_search_by_key(&row, |(row, _)| *row);
        at.ok().map(|at| self.starts[at].1)
    }

    /// When a gang may start.
    #[must_use]
    pub(crate) fn start(&self, gang: GangId) -> Option<Estimate> {
        let rows = self.rows_of(gang.job);
        let at = rows.binary_search_by_key(&gang.index, |row| self.indices[*row as usize]);
        self.start_at(rows[at.ok()?])
    }

    /// When the first of a job's gangs may start.
    #[must_use]
    pub(crate) fn start_of_job(&self, job: Uid) -> Option<EstimatedStart> {
        let starts = self.rows_of(job).iter();
        let starts = starts.filter_map(|row| self.start_at(*row));
        let start = starts.min_by_key(|start| start.earliest)?;
        Some(EstimatedStart {
            earliest: Time(start.earliest),
            latest: start.latest.map(Time),
        })
    }

    /// The first waiting gang of a job: its place, from 1, and why it waits.
    #[must_use]
    pub(crate) fn of_job(&self, job: Uid) -> Option<(u32, &[Blocker])> {
        let first = *self.rows_of(job).iter().min()?;
        let list = self.why[first as usize] as usize;
        Some((first + 1, &self.lists[list]))
    }
}

/// A count of gangs as a row: there are fewer than four thousand million.
fn row(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// A cause with names in place of ordinals.
#[must_use]
pub(crate) fn blocker(snapshot: &Snapshot, cause: &Cause) -> Blocker {
    let cluster = cause
        .cluster
        .and_then(|ix| snapshot.clusters.get(ix.index()));
    let flavor = cause.flavor.and_then(|ix| snapshot.flavors.get(ix.index()));
    Blocker {
        reason: cause.reason,
        cluster: cluster.map(|cluster| cluster.name.clone()),
        flavor: flavor.map(|flavor| flavor.name.clone()),
        need: cause.amounts.map(|amounts| GpuQuantity(amounts.need)),
        free: cause.amounts.map(|amounts| GpuQuantity(amounts.free)),
        limit: cause.amounts.map(|amounts| GpuQuantity(amounts.limit)),
        message: cause.message.to_string(),
    }
}

/// The one blocker that says most. What holds everywhere comes first; else the cluster that is
/// nearest to taking the gang, whose reason is the last in the order: that another has no such
/// hardware matters little.
#[must_use]
pub(crate) fn headline(blockers: &[Blocker]) -> Option<&Blocker> {
    let everywhere = blockers.iter().find(|blocker| blocker.cluster.is_none());
    everywhere.or_else(|| blockers.iter().rev().max_by_key(|blocker| blocker.reason))
}

/// What a recurring job says of its runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunsStatus {
    /// The next instant.
    pub(crate) next: Option<UnixMillis>,
    /// Names of runs that are not over, the oldest first.
    pub(crate) active: Vec<String>,
}

/// The newest explanation, for readers on any task.
#[derive(Clone, Debug, Default)]
pub(crate) struct Explanations {
    newest: Arc<RwLock<Arc<Explained>>>,
    sightings: Sightings,
    deadlines: Deadlines,
    runs: Arc<RwLock<BTreeMap<Uid, RunsStatus>>>,
}

impl Explanations {
    /// Replaces it.
    pub(crate) fn publish(&self, explained: Explained) {
        let mut newest = self.newest.write().unwrap_or_else(PoisonError::into_inner);
        *newest = Arc::new(explained);
    }

    /// This hub leads no more: it says nothing of anybody's work.
    pub(crate) fn clear(&self) {
        self.publish(Explained::default());
        self.sightings.clear();
        self.deadlines.clear();
        let mut runs = self.runs.write().unwrap_or_else(PoisonError::into_inner);
        runs.clear();
    }

    /// Replaces what is known of a recurring job's runs; `None` when it is gone.
    pub(crate) fn publish_runs(&self, job: Uid, status: Option<RunsStatus>) {
        let mut runs = self.runs.write().unwrap_or_else(PoisonError::into_inner);
        match status {
            Some(status) => drop(runs.insert(job, status)),
            None => drop(runs.remove(&job)),
        }
    }

    /// Adds to a recurring job, at reading time, what is known of its runs.
    fn decorate_recurring(&self, uid: Uid, job: &mut Value) {
        let runs = self.runs.read().unwrap_or_else(PoisonError::into_inner);
        let Some(known) = runs.get(&uid) else { return };
        let Some(object) = job.as_object_mut() else {
            return;
        };
        let status = object.entry("status").or_insert_with(|| json!({}));
        if let Some(status) = status.as_object_mut() {
            status.insert("phase".to_owned(), json!("Scheduled"));
            status.insert("nextScheduled".to_owned(), json!(known.next.map(Time)));
            status.insert("active".to_owned(), json!(known.active));
        }
    }

    /// The newest.
    #[must_use]
    pub(crate) fn newest(&self) -> Arc<Explained> {
        let newest = self.newest.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&newest)
    }

    /// What agents say of gangs.
    #[must_use]
    pub(crate) fn sightings(&self) -> &Sightings {
        &self.sightings
    }

    /// What is said of jobs that have a `finishBy`.
    #[must_use]
    pub(crate) fn deadlines(&self) -> &Deadlines {
        &self.deadlines
    }

    /// Adds to a job, at reading time, why it waits, when it saved its work last and whether it
    /// will be done in time.
    pub(crate) fn decorate(&self, job: &mut Value) {
        let uid = job.pointer("/metadata/uid").and_then(Value::as_str);
        let Some(uid) = uid.and_then(|uid| uid.parse::<Uid>().ok()) else {
            return;
        };
        if job.pointer("/spec/schedule").is_some() {
            self.decorate_recurring(uid, job);
            return;
        }
        self.deadlines.decorate(uid, job);
        if let Some(status) = job.get_mut("status").and_then(Value::as_object_mut) {
            self.sightings.decorate(uid, status);
        }
        let status = job.get("status").and_then(Value::as_object);
        let phase = status
            .and_then(|status| status.get("phase"))
            .and_then(Value::as_str);
        if !matches!(phase, None | Some("Pending")) {
            return;
        }
        let explained = self.newest();
        let (reason, message, position, blockers) = match explained.of_job(uid) {
            Some((position, blockers)) => {
                let first = headline(blockers);
                let reason = first.map_or(Reason::PendingEvaluation, |blocker| blocker.reason);
                let message = first
                    .map(|blocker| blocker.message.clone())
                    .unwrap_or_default();
                (reason, message, Some(position), blockers)
            }
            None => (Reason::PendingEvaluation, String::new(), None, &[][..]),
        };
        let Some(object) = job.as_object_mut() else {
            return;
        };
        let status = object.entry("status").or_insert_with(|| json!({}));
        let Some(status) = status.as_object_mut() else {
            return;
        };
        status.insert("phase".to_owned(), json!("Pending"));
        status.insert("reason".to_owned(), json!(reason.as_str()));
        if !message.is_empty() {
            status.insert("message".to_owned(), json!(message));
        }
        if let Some(position) = position {
            status.insert("position".to_owned(), json!(position));
        }
        if let Some(start) = explained.start_of_job(uid) {
            status.insert("estimatedStart".to_owned(), json!(start));
        }
        if !blockers.is_empty() {
            status.insert("blockers".to_owned(), json!(blockers));
        }
    }
}

#[cfg(test)]
mod tests {
    use meridian_policies::decide;

    use super::*;
    use crate::fixture_tests::Fixture;

    fn waiting(uid: Uid, reason: Reason) -> Explanations {
        let trouble = Trouble {
            reason,
            message: "because".to_owned(),
        };
        let gang = GangId { job: uid, index: 0 };
        let explained = Explained::new(&Snapshot::default(), &Plan::default(), &[(gang, trouble)]);
        let explanations = Explanations::default();
        explanations.publish(explained);
        explanations
    }

    #[test]
    fn a_waiting_job_says_why() {
        let explanations = waiting(Uid(7), Reason::Misconfigured);
        let mut job = json!({"metadata": {"uid": Uid(7).to_string()}});
        explanations.decorate(&mut job);
        assert_eq!(job["status"]["phase"], "Pending");
        assert_eq!(job["status"]["reason"], "Misconfigured");
        assert_eq!(job["status"]["position"], 1);
        assert_eq!(job["status"]["blockers"][0]["message"], "because");
    }

    #[test]
    fn a_job_that_runs_is_left_alone() {
        let explanations = waiting(Uid(7), Reason::Misconfigured);
        let running = json!({
            "metadata": {"uid": Uid(7).to_string()}, "status": {"phase": "Running"},
        });
        let mut job = running.clone();
        explanations.decorate(&mut job);
        assert_eq!(job, running);
    }

    #[test]
    fn whoever_waits_is_counted_by_class_and_reasons() {
        let mut fixture = Fixture::new(1);
        let serving = json!({"priority": 7});
        fixture.object("workloadclasses/-/serving", "WorkloadClass", &serving);
        for (at, class) in [(1, "batch"), (2, "serving"), (3, "serving")] {
            let role = json!({"name": "worker", "replicas": 99, "gpus": 8, "template": {}});
            let spec = json!({"workloadClass": class, "roles": [role]});
            let metadata = json!({"uid": Uid(at).to_string()});
            fixture.job_named(&format!("job-{at}"), &spec, &metadata);
        }
        let labelled = fixture.model.snapshot(Fixture::situation());
        let plan = decide(&labelled.snapshot);
        let trouble = |at| {
            let trouble = Trouble {
                reason: Reason::Misconfigured,
                message: "because".to_owned(),
            };
            let job = Uid(at);
            (GangId { job, index: 0 }, trouble)
        };
        let explained = Explained::new(&labelled.snapshot, &plan, &[trouble(4), trouble(5)]);
        let class = |job| (job == Uid(4)).then_some("batch");
        let counts = explained.counts(class);
        let troubled = |blockers: &[Blocker]| blockers[0].reason == Reason::Misconfigured;
        let counts: Vec<_> = counts
            .map(|(class, blockers, count)| (class, troubled(blockers), count))
            .collect();
        let expected = [
            ("", true, 1),
            ("batch", false, 1),
            ("batch", true, 1),
            ("serving", false, 2),
        ];
        assert_eq!(counts, expected);
    }

    #[test]
    fn the_nearest_cluster_makes_the_headline() {
        let blocker = |reason, cluster: Option<&str>| Blocker {
            reason,
            cluster: cluster.map(str::to_owned),
            flavor: None,
            need: None,
            free: None,
            limit: None,
            message: String::new(),
        };
        let mut list = vec![
            blocker(Reason::NoMatchingFlavor, Some("a")),
            blocker(Reason::WaitingForCapacity, Some("b")),
        ];
        let reason = |list: &[Blocker]| headline(list).map(|blocker| blocker.reason);
        assert_eq!(reason(&list), Some(Reason::WaitingForCapacity));
        list.push(blocker(Reason::WaitingForQuota, None));
        assert_eq!(reason(&list), Some(Reason::WaitingForQuota));
        assert_eq!(reason(&[]), None);
    }

    #[test]
    fn a_job_nobody_has_looked_at_says_so() {
        let mut job = json!({"metadata": {"uid": Uid(8).to_string()}});
        waiting(Uid(7), Reason::Misconfigured).decorate(&mut job);
        assert_eq!(job["status"]["reason"], "PendingEvaluation");
    }
}
