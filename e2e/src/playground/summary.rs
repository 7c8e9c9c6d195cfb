//! The summary of a fast run: what became of every job, and what the machines did meanwhile.
//!
//! Owns its numbers and their meaning. Holds nothing of the real clock, so that one seed gives the
//! same bytes. How it looks as a table is in `text`.

mod text;

use std::collections::{BTreeMap, BTreeSet};

use meridian_api::ids::{Epoch, Uid};
use meridian_api::kinds::FederatedJob;
use meridian_api::kinds::federated_job::status::Phase;
use meridian_api::reasons::Reason;
use meridian_api::units::{Millis, UnixMillis};
use meridian_policies::check::Violation;
use meridian_policies::check::truth as invariants;
use serde::Serialize;

use super::data::{self, TraceJob};
use super::fast::FastOptions;
use super::faults::Outage;
use super::jobs;
use super::truth::{Account, GpuTime};
use crate::fleet::FleetRegion;

/// Everything that a summary is made from.
pub(super) struct Observed<'a> {
    pub(super) options: &'a FastOptions,
    pub(super) now: UnixMillis,
    /// Submissions were made, and utilisation is measured, within this.
    pub(super) span: (UnixMillis, UnixMillis),
    pub(super) regions: &'a [FleetRegion],
    pub(super) nominal: &'a BTreeMap<String, u64>,
    pub(super) jobs: &'a [TraceJob],
    pub(super) outages: &'a [Outage],
    /// One for each of `jobs`.
    pub(super) accepted: &'a [(Uid, UnixMillis)],
    pub(super) stored: &'a [FederatedJob],
    pub(super) account: &'a Account,
    /// The hub's metrics, as it shows them.
    pub(super) metrics: &'a str,
}

/// The result of a run. Field order is part of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// What everything followed from.
    pub seed: u64,
    /// Pace of the submissions in percent of the table's.
    pub load_percent: u64,
    /// First simulated instant.
    pub from: String,
    /// End of the submissions.
    pub submissions_until: String,
    /// Last simulated instant.
    pub until: String,
    /// Jobs by what became of them; `submitted` is the sum of the last four.
    pub jobs: Counts,
    /// Why the waiting ones wait, most frequent first.
    pub waiting_reasons: Vec<ReasonCount>,
    /// From acknowledged to the first pod's start.
    pub wait: Waits,
    /// What machines did, from their own records.
    pub regions: Vec<RegionUse>,
    /// Work that was done and thrown away.
    pub lost_work: LostWork,
    /// What the hub did.
    pub hub: HubWork,
    /// By workload class.
    pub classes: Vec<Group>,
    /// By tenant.
    pub tenants: Vec<Group>,
    /// What was checked on the clusters' own records.
    pub invariants: Invariants,
}

/// Jobs by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Acknowledged.
    pub submitted: u64,
    /// Of them: had a place at least once.
    pub placed: u64,
    /// Ended well.
    pub succeeded: u64,
    /// Ended for good, not well.
    pub failed: u64,
    /// Have a place.
    pub running: u64,
    /// Have none.
    pub waiting: u64,
}

/// How many wait for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReasonCount {
    /// The most actionable reason, from the closed list.
    pub reason: String,
    /// Jobs.
    pub jobs: u64,
}

/// Waits in seconds, by nearest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Waits {
    /// Jobs that started.
    pub jobs: u64,
    /// Half of them started sooner.
    pub p50_seconds: f64,
    /// Nine of ten started sooner.
    pub p90_seconds: f64,
    /// The last one.
    pub max_seconds: f64,
}

/// One region's machines within the span of submissions.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RegionUse {
    /// Its name.
    pub name: String,
    /// Its zone.
    pub time_zone: String,
    /// Its GPUs.
    pub gpus: u64,
    /// GPU-hours in which user code ran.
    pub busy_gpu_hours: f64,
    /// GPU-hours of machines that were alive.
    pub available_gpu_hours: f64,
    /// Their quotient.
    pub utilisation_percent: f64,
}

/// Work that was done and thrown away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LostWork {
    /// GPU-hours of attempts that did not finish.
    pub gpu_hours: f64,
    /// Such attempts.
    pub attempts: u64,
    /// Machines that died.
    pub node_failures: u64,
}

/// What the hub did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HubWork {
    /// Decisions.
    pub decisions: u64,
    /// Gangs that were given a place, again after a requeue.
    pub placements: u64,
    /// Writes under the leader's fence.
    pub commits: u64,
    /// Gangs that were told to make room for others.
    pub preemptions: u64,
}

/// Jobs of one class or tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// Its name.
    pub name: String,
    /// GPUs of its own; absent for a class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nominal_gpus: Option<u64>,
    /// What became of its jobs.
    pub jobs: Counts,
    /// Their waits.
    pub wait: Waits,
    /// GPU-hours in which their user code ran.
    pub gpu_hours: f64,
}

/// What was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Invariants {
    /// Starts of gangs that were looked at.
    pub placements_checked: u64,
    /// What must never be, and was.
    pub violations: Vec<String>,
}

/// One job with everything that is known of it.
struct Fate<'a> {
    trace: &'a TraceJob,
    phase: Phase,
    placed: bool,
    wait: Option<Millis>,
    used: GpuTime,
}

impl Summary {
    /// Sums up.
    #[must_use]
    pub(super) fn new(seen: &Observed<'_>) -> Self {
        let stored: BTreeMap<Uid, &FederatedJob> = seen
            .stored
            .iter()
            .filter_map(|job| Some((job.metadata.uid?, job)))
            .collect();
        let accepted = seen.accepted.iter().zip(seen.jobs);
        let fates: Vec<Fate<'_>> = accepted
            .map(|((uid, at), trace)| fate(seen, trace, *uid, *at, stored.get(uid).copied()))
            .collect();
        let all: Vec<&Fate<'_>> = fates.iter().collect();
        Self {
            seed: seen.options.seed,
            load_percent: seen.options.load_percent,
            from: instant(seen.span.0),
            submissions_until: instant(seen.span.1),
            until: instant(seen.now),
            jobs: counts(&all),
            waiting_reasons: reasons(seen.stored),
            wait: waits(&all),
            regions: seen
                .regions
                .iter()
                .map(|region| use_of(seen, region))
                .collect(),
            lost_work: lost(seen, &stored),
            hub: hub_work(seen.metrics),
            classes: classes(&fates),
            tenants: tenants(seen, &fates),
            invariants: check(seen),
        }
    }

    /// True when nothing was found that must never be.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.invariants.violations.is_empty()
    }
}

fn instant(at: UnixMillis) -> String {
    let at = jiff::Timestamp::from_millisecond(at.0).unwrap_or_default();
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn fate<'a>(
    seen: &Observed<'_>,
    trace: &'a TraceJob,
    uid: Uid,
    accepted: UnixMillis,
    stored: Option<&FederatedJob>,
) -> Fate<'a> {
    let status = stored.and_then(|job| job.status.as_ref());
    let started = seen.account.first_start(uid);
    let phase = status.map(|status| status.phase).unwrap_or_default();
    let mut used = GpuTime::default();
    for (_, attempt) in seen.account.of_job(uid) {
        used.0 += attempt.used.0;
    }
    Fate {
        trace,
        phase,
        placed: started.is_some() || phase != Phase::Pending,
        wait: started.map(|at| at.since(accepted)),
        used,
    }
}

fn counts(fates: &[&Fate<'_>]) -> Counts {
    let mut counts = Counts::default();
    for fate in fates {
        counts.submitted += 1;
        counts.placed += u64::from(fate.placed);
        match fate.phase {
            Phase::Pending | Phase::Scheduled => counts.waiting += 1,
            Phase::Starting | Phase::Running | Phase::Stopping => counts.running += 1,
            Phase::Succeeded => counts.succeeded += 1,
            Phase::Failed => counts.failed += 1,
        }
    }
    counts
}

/// A number of tenths as a number; exact to the last bit on every machine.
fn tenths(tenths: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53 tenths")]
    let number = tenths as f64;
    number / 10.0
}

fn waits(fates: &[&Fate<'_>]) -> Waits {
    let mut waits: Vec<u64> = fates.iter().filter_map(|fate| Some(fate.wait?.0)).collect();
    waits.sort_unstable();
    let rank = |percent: usize| {
        let rank = (waits.len() * percent).div_ceil(100).max(1);
        tenths(waits.get(rank - 1).copied().unwrap_or_default() / 100)
    };
    Waits {
        jobs: waits.len() as u64,
        p50_seconds: rank(50),
        p90_seconds: rank(90),
        max_seconds: rank(100),
    }
}

fn gpu_hours(fates: &[&Fate<'_>]) -> f64 {
    let all: u128 = fates.iter().map(|fate| fate.used.0).sum();
    tenths(GpuTime(all).tenths())
}

/// The first reason of each job that waits, as the hub tells it.
fn reasons(stored: &[FederatedJob]) -> Vec<ReasonCount> {
    let mut jobs: BTreeMap<&str, u64> = BTreeMap::new();
    for status in stored.iter().filter_map(|job| job.status.as_ref()) {
        if status.phase == Phase::Pending {
            *jobs.entry(status.reason.as_str()).or_default() += 1;
        }
    }
    let mut counted: Vec<ReasonCount> = jobs
        .into_iter()
        .map(|(reason, jobs)| ReasonCount {
            reason: reason.to_owned(),
            jobs,
        })
        .collect();
    counted.sort_by(|a, b| b.jobs.cmp(&a.jobs).then_with(|| a.reason.cmp(&b.reason)));
    counted
}

fn use_of(seen: &Observed<'_>, region: &FleetRegion) -> RegionUse {
    let gpus: u64 = region
        .clusters
        .iter()
        .map(|cluster| data::gpus(&cluster.inventory))
        .sum();
    let span = seen.span.1.since(seen.span.0);
    let mut available = u128::from(gpus) * u128::from(span.0);
    let here = |outage: &&Outage| {
        region
            .clusters
            .iter()
            .any(|cluster| cluster.name == outage.cluster)
    };
    for outage in seen.outages.iter().filter(here) {
        let dead = outage.until.min(span).saturating_sub(outage.from);
        available -= u128::from(outage.gpus) * u128::from(dead.0);
    }
    let busy = seen
        .account
        .by_region
        .get(&region.name)
        .copied()
        .unwrap_or_default();
    let percent = u64::try_from(busy.0 * 1000 / available.max(1)).unwrap_or(u64::MAX);
    RegionUse {
        name: region.name.clone(),
        time_zone: region.time_zone.clone(),
        gpus,
        busy_gpu_hours: tenths(busy.tenths()),
        available_gpu_hours: tenths(GpuTime(available).tenths()),
        utilisation_percent: tenths(percent),
    }
}

/// Attempts that are over and were not the one with which their gang succeeded.
fn lost(seen: &Observed<'_>, stored: &BTreeMap<Uid, &FederatedJob>) -> LostWork {
    let mut newest: BTreeMap<Uid, Epoch> = BTreeMap::new();
    for key in seen.account.attempts.keys() {
        let epoch = newest.entry(key.gang.job).or_default();
        *epoch = key.epoch.max(*epoch);
    }
    let (mut time, mut attempts) = (GpuTime::default(), 0);
    for (key, attempt) in &seen.account.attempts {
        let job = stored
            .get(&key.gang.job)
            .and_then(|job| job.status.as_ref());
        let phase = job.map(|status| status.phase).unwrap_or_default();
        let is_newest = newest.get(&key.gang.job) == Some(&key.epoch);
        let counts = match phase {
            Phase::Pending | Phase::Scheduled | Phase::Failed => true,
            // A place was given again and nothing has started there yet, or it goes on.
            Phase::Starting => attempt.open == 0,
            Phase::Running | Phase::Stopping | Phase::Succeeded => !is_newest,
        };
        if counts {
            time.0 += attempt.used.0;
            attempts += 1;
        }
    }
    let begun = |outage: &&Outage| seen.span.0.after(outage.from) <= seen.now;
    LostWork {
        gpu_hours: tenths(time.tenths()),
        attempts,
        node_failures: seen.outages.iter().filter(begun).count() as u64,
    }
}

/// Counters of the hub, by the names under which it shows them.
fn hub_work(metrics: &str) -> HubWork {
    let value = |name: &str| {
        let lines = metrics.lines().filter_map(|line| line.strip_prefix(name));
        let number = |rest: &str| rest.split_whitespace().next_back()?.parse::<u64>().ok();
        lines.filter_map(number).sum()
    };
    HubWork {
        decisions: value("meridian_decide_seconds_count "),
        placements: value("meridian_wait_seconds_count "),
        commits: value("meridian_commits_total{outcome=\"done\"} "),
        preemptions: value("meridian_preemptions_total "),
    }
}

fn group(name: String, nominal_gpus: Option<u64>, fates: &[&Fate<'_>]) -> Group {
    Group {
        name,
        nominal_gpus,
        jobs: counts(fates),
        wait: waits(fates),
        gpu_hours: gpu_hours(fates),
    }
}

fn classes(fates: &[Fate<'_>]) -> Vec<Group> {
    let names: BTreeSet<&str> = fates.iter().map(|fate| jobs::class(fate.trace)).collect();
    // Higher priority first, which is the other way round.
    let of = |name: &str| -> Vec<&Fate<'_>> {
        fates
            .iter()
            .filter(|fate| jobs::class(fate.trace) == name)
            .collect()
    };
    names
        .iter()
        .rev()
        .map(|name| group((*name).to_owned(), None, &of(name)))
        .collect()
}

fn tenants(seen: &Observed<'_>, fates: &[Fate<'_>]) -> Vec<Group> {
    let of =
        |vc: &str| -> Vec<&Fate<'_>> { fates.iter().filter(|fate| fate.trace.vc == vc).collect() };
    let mut groups: Vec<Group> = seen
        .nominal
        .iter()
        .map(|(vc, nominal)| group(jobs::tenant(vc), Some(*nominal), &of(vc)))
        .collect();
    groups.sort_by(|a, b| {
        b.nominal_gpus
            .cmp(&a.nominal_gpus)
            .then_with(|| a.name.cmp(&b.name))
    });
    groups
}

/// Everything that is checked on the ground, and that nothing accepted is lost or doubled.
fn check(seen: &Observed<'_>) -> Invariants {
    let mut found: Vec<Violation> = seen.account.violations.clone();
    let acknowledged: Vec<Uid> = seen.accepted.iter().map(|(uid, _)| *uid).collect();
    let kept: Vec<Uid> = seen
        .stored
        .iter()
        .filter_map(|job| job.metadata.uid)
        .collect();
    found.extend(invariants::acknowledged(&acknowledged, &kept));
    let keys: Vec<(String, Uid)> = seen
        .jobs
        .iter()
        .zip(&acknowledged)
        .map(|(job, uid)| (jobs::name(job, 0), *uid))
        .collect();
    found.extend(invariants::one_job_per_key(&keys));
    if kept.len() != acknowledged.len() {
        found.push(Violation {
            invariant: "S8",
            message: format!(
                "{} jobs accepted, {} stored",
                acknowledged.len(),
                kept.len()
            ),
        });
    }
    for job in seen.stored {
        let status = job.status.as_ref();
        let reason = status
            .map(|status| status.reason.as_str())
            .unwrap_or_default();
        let waits = status.is_none_or(|status| status.phase == Phase::Pending);
        if waits && !Reason::ALL.iter().any(|known| known.as_str() == reason) {
            found.push(Violation {
                invariant: "L1",
                message: format!("job {} waits for {reason:?}", job.metadata.name),
            });
        }
    }
    let thrown = seen
        .metrics
        .lines()
        .find_map(|line| line.strip_prefix("meridian_plan_violations_total "));
    if let Some(count) = thrown.filter(|count| *count != "0") {
        found.push(Violation {
            invariant: "plan",
            message: format!("the hub threw away {count} plans"),
        });
    }
    Invariants {
        placements_checked: seen.account.attempts.len() as u64,
        violations: found.iter().map(Violation::to_string).collect(),
    }
}
