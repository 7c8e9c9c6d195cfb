//! The summary of a simulation: what a person or a bench compares.
//!
//! Owns what is reported, in which unit, and how it is computed from runs and meters. All of it is
//! integers until it is written. Never lays out text (see `text`).

use std::collections::BTreeMap;

use meridian_api::reasons::Reason;
use meridian_api::units::{MilliGpus, Millis, UnixMillis};
use serde::{Serialize, Serializer};

use crate::engine::{Outcome, Run};
use crate::meters::Area;
use crate::private::Sharing;
use crate::trace::Job;
use crate::world::{Gangs, World};

/// Ten-thousandths, written as a number with four decimals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ratio(pub u64);

impl Ratio {
    pub(crate) fn of(part: Area, whole: Area) -> Self {
        let ratio = part.saturating_mul(10_000).checked_div(whole);
        Self(u64::try_from(ratio.unwrap_or_default()).unwrap_or(u64::MAX))
    }
}

impl Serialize for Ratio {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[expect(clippy::cast_precision_loss, reason = "written only; below 2^53")]
        serializer.serialize_f64(self.0 as f64 / 10_000.0)
    }
}

/// Hundredths of a GPU hour, written as a number with two decimals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GpuHours(pub u64);

impl GpuHours {
    /// From thousandths of GPUs times milliseconds, rounded down.
    pub(crate) fn of(area: Area) -> Self {
        const MILLI_GPU_MILLIS: Area = 1000 * 3_600_000;
        let hundredths = area.saturating_mul(100) / MILLI_GPU_MILLIS;
        Self(u64::try_from(hundredths).unwrap_or(u64::MAX))
    }
}

impl Serialize for GpuHours {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[expect(clippy::cast_precision_loss, reason = "written only; below 2^53")]
        serializer.serialize_f64(self.0 as f64 / 100.0)
    }
}

/// How a length of time is spread over jobs, in milliseconds. Percentiles are nearest-rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spread {
    /// Mean, rounded down.
    pub mean_ms: u64,
    /// Median.
    pub p50_ms: u64,
    /// 90th percentile.
    pub p90_ms: u64,
    /// 99th percentile.
    pub p99_ms: u64,
    /// Longest.
    pub max_ms: u64,
}

impl Spread {
    pub(crate) fn of(mut values: Vec<u64>) -> Self {
        values.sort_unstable();
        let sum: u128 = values.iter().map(|value| u128::from(*value)).sum();
        let mean = sum.checked_div(values.len() as u128).unwrap_or_default();
        let rank = |percent: usize| {
            let rank = (values.len() * percent).div_ceil(100).max(1);
            values.get(rank - 1).copied().unwrap_or_default()
        };
        Self {
            mean_ms: u64::try_from(mean).unwrap_or(u64::MAX),
            p50_ms: rank(50),
            p90_ms: rank(90),
            p99_ms: rank(99),
            max_ms: values.last().copied().unwrap_or_default(),
        }
    }
}

/// Jobs that have something in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// What they have in common.
    pub name: String,
    /// How many.
    pub jobs: u64,
    /// Those that started.
    pub started: u64,
    /// Time in the queue of those that started.
    pub wait: Spread,
    /// From submission to the end, of those that ended.
    pub completion: Spread,
}

/// One tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TenantSummary {
    /// Its jobs.
    #[serde(flatten)]
    pub group: Group,
    /// What it held.
    pub held_gpu_hours: GpuHours,
    /// What it was short of its fair share while it asked for more.
    pub short_gpu_hours: GpuHours,
    /// What it held beyond its fair share.
    pub over_gpu_hours: GpuHours,
    /// Area between what it held and its fair share, as a part of all that the fleet had.
    pub fairness_gap: Ratio,
}

/// What waited for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockedSummary {
    /// The most actionable reason that the round gave.
    pub reason: Reason,
    /// Time in the queue for it, over all gangs.
    pub wait_ms: u64,
    /// GPUs asked for, times that time.
    pub gpu_hours: GpuHours,
    /// Jobs that never started, and were left with it.
    pub never_started: u64,
}

/// How gangs started against what they were first told, of those that were told and did start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StartsTold {
    /// Before the earliest instant that they were told.
    pub sooner: u64,
    /// Within the span that they were told; a span may be open to the end.
    pub within: u64,
    /// After the latest instant that they were told.
    pub later: u64,
    /// By how much, of the sooner ones.
    pub sooner_by: Spread,
    /// By how much, of the later ones.
    pub later_by: Spread,
}

impl StartsTold {
    fn of(runs: &[Run]) -> Self {
        let (mut sooner, mut later, mut within) = (Vec::new(), Vec::new(), 0);
        let both = runs.iter().filter_map(|run| run.started.zip(run.told));
        for (started, told) in both {
            if started < told.earliest {
                sooner.push(told.earliest.since(started).0);
            } else if let Some(latest) = told.latest.filter(|latest| started > *latest) {
                later.push(started.since(latest).0);
            } else {
                within += 1;
            }
        }
        Self {
            sooner: sooner.len() as u64,
            within,
            later: later.len() as u64,
            sooner_by: Spread::of(sooner),
            later_by: Spread::of(later),
        }
    }
}

/// What a simulation came to. The same input gives the same bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// Jobs of the trace.
    pub jobs: u64,
    /// Those that ran to their end.
    pub completed: u64,
    /// Those that never started.
    pub never_started: u64,
    /// Times that a gang was lost with a host.
    pub losses: u64,
    /// Times that a gang made room for others.
    pub preemptions: u64,
    /// GPUs of the fleet.
    pub gpus: u64,
    /// First submission, Unix milliseconds.
    pub begin_unix_ms: i64,
    /// From the first submission to the last event.
    pub makespan_ms: u64,
    /// Time in the queue.
    pub wait: Spread,
    /// From submission to the end.
    pub completion: Spread,
    /// By workload class.
    pub by_class: Vec<Group>,
    /// By GPUs of the job, in powers of two.
    pub by_gpus: Vec<Group>,
    /// GPUs held, of those that were up.
    pub utilisation: Ratio,
    /// The same with each card weighed by its worth.
    pub utilisation_by_worth: Ratio,
    /// GPUs held, of those that were up, while something waited.
    pub utilisation_while_waiting: Ratio,
    /// GPU hours that were held.
    pub used_gpu_hours: GpuHours,
    /// GPU hours that were run and lost.
    pub lost_gpu_hours: GpuHours,
    /// Free GPUs that the usual pods of the trace cannot use, of all free ones.
    pub fragmentation: Ratio,
    /// The largest gap of a tenant.
    pub fairness_gap: Ratio,
    /// Tenants with jobs.
    pub tenants: Vec<TenantSummary>,
    /// Why gangs waited.
    pub blocked: Vec<BlockedSummary>,
    /// Gangs that waited at once, at most.
    pub longest_queue: u64,
    /// Instants at which something happened.
    pub instants: u64,
    /// Decisions that were asked for.
    pub rounds: u64,
    /// Starts against what was said of them.
    pub starts: StartsTold,
    /// Each tenant against a private cluster of its own quota, when that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Vec<Sharing>>,
}

/// Name of the group of jobs with so many GPUs, and its place: `1`, `2`, `3-4`, `5-8`, ...
fn size_group(gpus: MilliGpus) -> (u64, String) {
    let cards = gpus.0.div_ceil(MilliGpus::PER_CARD);
    let top = cards.max(1).next_power_of_two();
    let name = if top <= 2 {
        top.to_string()
    } else {
        format!("{}-{top}", top / 2 + 1)
    };
    (top, name)
}

/// Runs of one group, gathered.
#[derive(Default)]
struct Gathered {
    jobs: u64,
    waits: Vec<u64>,
    completions: Vec<u64>,
}

impl Gathered {
    fn add(&mut self, submit: UnixMillis, run: &Run) {
        self.jobs += 1;
        if run.started.is_some() {
            self.waits.push(run.waited.0);
        }
        if let Some(ended) = run.ended {
            self.completions.push(ended.since(submit).0);
        }
    }

    fn group(self, name: String) -> Group {
        Group {
            name,
            jobs: self.jobs,
            started: self.waits.len() as u64,
            wait: Spread::of(self.waits),
            completion: Spread::of(self.completions),
        }
    }
}

pub(crate) fn summarise(world: &World, gangs: &Gangs, jobs: &[Job], outcome: &Outcome) -> Summary {
    let mut all = Gathered::default();
    let mut by_class: BTreeMap<&str, Gathered> = BTreeMap::new();
    let mut by_gpus: BTreeMap<(u64, String), Gathered> = BTreeMap::new();
    let mut by_tenant: BTreeMap<usize, Gathered> = BTreeMap::new();
    let mut lost: Area = 0;
    for ((job, gang), run) in jobs.iter().zip(&gangs.list).zip(&outcome.runs) {
        let kind = &gangs.kinds[gang.kind as usize];
        let groups = [
            &mut all,
            by_class.entry(&job.class).or_default(),
            by_gpus.entry(size_group(kind.gpus)).or_default(),
            by_tenant.entry(kind.tenant.index()).or_default(),
        ];
        for group in groups {
            group.add(job.submit, run);
        }
        lost += Area::from(kind.gpus.0) * Area::from(run.lost.0);
    }
    let meters = &outcome.meters;
    let tenants: Vec<TenantSummary> = by_tenant
        .into_iter()
        .map(|(tenant, gathered)| tenant_summary(world, outcome, tenant, gathered))
        .collect();
    let gaps = tenants.iter().map(|tenant| tenant.fairness_gap);
    let (completed, jobs_in_all) = (all.completions.len() as u64, all.jobs);
    let never_started = all.jobs - all.waits.len() as u64;
    let all = all.group(String::new());
    Summary {
        jobs: jobs_in_all,
        completed,
        never_started,
        losses: outcome.runs.iter().map(|run| u64::from(run.losses)).sum(),
        preemptions: outcome
            .runs
            .iter()
            .map(|run| u64::from(run.preemptions))
            .sum(),
        gpus: world.fleet.gpus().whole(),
        begin_unix_ms: outcome.begin.0,
        makespan_ms: outcome.end.since(outcome.begin).0,
        wait: all.wait,
        completion: all.completion,
        by_class: by_class
            .into_iter()
            .map(|(name, gathered)| gathered.group(name.to_owned()))
            .collect(),
        by_gpus: by_gpus
            .into_iter()
            .map(|((_, name), gathered)| gathered.group(name))
            .collect(),
        utilisation: Ratio::of(meters.used.area, meters.capacity.area),
        utilisation_by_worth: Ratio::of(meters.used_worth.area, meters.capacity_worth.area),
        utilisation_while_waiting: Ratio::of(meters.pressed_used, meters.pressed_capacity),
        used_gpu_hours: GpuHours::of(meters.used.area),
        lost_gpu_hours: GpuHours::of(lost),
        fragmentation: Ratio::of(meters.unusable.area, meters.free.area),
        fairness_gap: gaps.max().unwrap_or_default(),
        tenants,
        blocked: blocked(outcome),
        longest_queue: meters.most_waiting,
        instants: outcome.instants,
        rounds: outcome.rounds,
        starts: StartsTold::of(&outcome.runs),
        sharing: None,
    }
}

fn tenant_summary(
    world: &World,
    outcome: &Outcome,
    tenant: usize,
    gathered: Gathered,
) -> TenantSummary {
    let (meters, meter) = (&outcome.meters, &outcome.meters.tenants[tenant]);
    let gap = meter.short_area + meter.over_area;
    TenantSummary {
        group: gathered.group(world.empty.tenants[tenant].name.clone()),
        held_gpu_hours: GpuHours::of(meter.held_area),
        short_gpu_hours: GpuHours::of(meter.short_area),
        over_gpu_hours: GpuHours::of(meter.over_area),
        fairness_gap: Ratio::of(gap, meters.capacity.area),
    }
}

fn blocked(outcome: &Outcome) -> Vec<BlockedSummary> {
    let mut never: BTreeMap<Reason, u64> = BTreeMap::new();
    for run in outcome.runs.iter().filter(|run| run.started.is_none()) {
        let reason = run.reason.unwrap_or(Reason::PendingEvaluation);
        *never.entry(reason).or_default() += 1;
    }
    let mut reasons: BTreeMap<Reason, BlockedSummary> = BTreeMap::new();
    let mut entry = |reason| {
        let empty = BlockedSummary {
            reason,
            wait_ms: 0,
            gpu_hours: GpuHours(0),
            never_started: never.get(&reason).copied().unwrap_or_default(),
        };
        reasons.entry(reason).or_insert(empty).reason
    };
    let waited_for = outcome.meters.blocked().map(|(reason, _)| reason);
    for reason in never.keys().copied().chain(waited_for) {
        entry(reason);
    }
    for (reason, meter) in outcome.meters.blocked() {
        if let Some(row) = reasons.get_mut(&reason) {
            row.wait_ms = u64::try_from(meter.time).unwrap_or(u64::MAX);
            row.gpu_hours = GpuHours::of(meter.area);
        }
    }
    reasons.into_values().collect()
}

/// Waits of the jobs of one tenant, by position in the trace; `None` for those that never started.
pub(crate) fn waits(runs: &[Run]) -> Vec<Option<Millis>> {
    let wait = |run: &Run| run.started.map(|_| run.waited);
    runs.iter().map(wait).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let spread = Spread::of((1..=200).rev().collect());
        let expected = Spread {
            mean_ms: 100,
            p50_ms: 100,
            p90_ms: 180,
            p99_ms: 198,
            max_ms: 200,
        };
        assert_eq!(spread, expected);
        assert_eq!(Spread::of(vec![7]).p50_ms, 7);
        assert_eq!(Spread::of(Vec::new()), Spread::default());
    }

    #[test]
    fn sizes_are_grouped_in_powers_of_two() {
        let name = |cards| size_group(MilliGpus::cards(cards)).1;
        let names = [1, 2, 3, 4, 8, 9, 64].map(name);
        assert_eq!(names, ["1", "2", "3-4", "3-4", "5-8", "9-16", "33-64"]);
        assert_eq!(size_group(MilliGpus(500)).1, "1");
    }

    #[test]
    fn ratios_are_written_as_decimals() {
        let text = serde_json::to_string(&(Ratio::of(2, 3), GpuHours::of(5_400_000_000)));
        assert_eq!(text.expect("JSON"), "[0.6666,1.5]");
        assert_eq!(Ratio::of(1, 0), Ratio(0));
    }
}
