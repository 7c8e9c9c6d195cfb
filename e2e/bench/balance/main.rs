//! Bench `balance`: how evenly a public trace whose regions are loaded unevenly uses all of them.
//!
//! Owns the figures. The eleven largest virtual clusters of the Philly table are home regions of
//! equal size, at 90 % load in all; a job may run in any, its own first, and its region's tenant
//! owns that region's quota. Jobs that are wider than a region are left out and counted. What is
//! timed is the simulation by the very decisions of the hub. The demand of a region is the GPU time
//! that was run in it, what was run in vain with it, over what its cards could give in the time in
//! which the jobs came.

#[allow(dead_code, reason = "each bench uses its part of what is common")]
#[path = "../common/mod.rs"]
mod common;

use std::collections::BTreeMap;

use meridian_api::units::UnixMillis;
use meridian_policies::model::Snapshot;
use meridian_sim::traces::Prepared;
use meridian_sim::traces::philly::{self, DAY, PhillyJob};
use meridian_sim::{Alone, Options, Scenario, Summary};
use serde_json::{Map, Value, json};

use crate::common::measure::{self, Stopwatch, median};
use crate::common::{Arguments, Report, float, round};

/// Home regions: the virtual clusters with the most work.
const REGIONS: usize = 11;
/// Percent of all cards that all jobs ask for on average.
const LOAD: u64 = 90;
/// Days of a quick run.
const QUICK_DAYS: u64 = 2;
/// First day of a quick run: a busy Monday.
const QUICK_FROM: u64 = 49;

/// Where and for whom cards were held, in thousandths of GPUs times milliseconds.
#[derive(Default)]
struct Held {
    last: Option<UnixMillis>,
    by_region: Vec<u128>,
    away: u128,
    /// Now, until the next instant.
    rates: Vec<u64>,
    rate_away: u64,
}

impl Held {
    /// Counts what was held until `now`, and takes in what is held from then on.
    fn see(&mut self, now: UnixMillis, snapshot: &Snapshot, home: &[Option<usize>]) {
        let span = u128::from(self.last.map_or(0, |last| now.since(last).0));
        self.by_region.resize(snapshot.regions.len(), 0);
        for (sum, rate) in self.by_region.iter_mut().zip(&self.rates) {
            *sum += u128::from(*rate) * span;
        }
        self.away += u128::from(self.rate_away) * span;
        self.last = Some(now);
        self.rates = vec![0; snapshot.regions.len()];
        self.rate_away = 0;
        for held in &snapshot.held {
            let region = snapshot.region(held.cluster).index();
            self.rates[region] += held.resources.gpus.0;
            if home[held.tenant.index()] != Some(region) {
                self.rate_away += held.resources.gpus.0;
            }
        }
    }
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::read()?;
    let (first, days) = if arguments.quick {
        (QUICK_FROM, QUICK_DAYS)
    } else {
        (0, philly::DAYS)
    };
    let prepared = philly::homes(first, days, REGIONS, LOAD)?;
    let mut runs_ms = Vec::new();
    let mut is_same = true;
    let cpu = measure::own_cpu();
    let (summary, held) = simulated(&prepared, &mut runs_ms)?;
    for _ in 1..arguments.runs {
        let (again, _) = simulated(&prepared, &mut runs_ms)?;
        is_same &= again == summary;
    }
    let cpu_s = (measure::own_cpu() - cpu) / float(arguments.runs);
    let each = prepared.fleet.pools[0].gpus().0;
    let supply = f64::from(u32::try_from(each)?) * f64::from(u32::try_from(days * DAY.0 / 1000)?);
    let at_home = at_home(&prepared);
    let worst_at_home = worst(at_home.values().copied(), supply);
    let worst_shared = worst(held.by_region.iter().copied(), supply);
    let all: u128 = held.by_region.iter().sum();
    let mut figures = wider_than_a_region(&prepared, first, days)?;
    figures.insert("worst_at_home".to_owned(), round(worst_at_home));
    figures.insert("worst_shared".to_owned(), round(worst_shared));
    let away = percent(held.away, all);
    figures.insert("gpu_time_away_percent".to_owned(), json!(away));
    figures.insert("preemptions".to_owned(), json!(summary.preemptions));
    figures.insert("wait".to_owned(), json!(summary.wait));
    figures.insert("utilisation".to_owned(), json!(summary.utilisation));
    figures.insert("speed_of_real_time".to_owned(), speed(days, &runs_ms));
    Report {
        name: "balance",
        work: json!({
            "trace": prepared.name, "first_day": first, "days": days, "regions": REGIONS,
            "gpus_per_region": each / 1000, "load_percent": LOAD, "jobs": prepared.jobs.len(),
            "runs": arguments.runs,
        }),
        cpu_s,
        limit: json!({
            "what": "mean demand over supply: nobody can do better than evenly",
            "figure": round(worst(std::iter::once(all), supply * float(REGIONS))),
            "distance": round(worst_shared * 1000.0 * float(REGIONS) * supply / wide(all)),
        }),
        runs_ms,
        valid: is_same && summary.completed == summary.jobs,
        figures,
    }
    .print();
    Ok(())
}

/// What of the table's regions is left out.
fn wider_than_a_region(
    prepared: &Prepared,
    first: u64,
    days: u64,
) -> anyhow::Result<Map<String, Value>> {
    let pools = &prepared.fleet.pools;
    let table = philly::days(first, days)?;
    let is_there = |row: &&PhillyJob| {
        let region = philly::tenant(&row.vc);
        pools.iter().any(|pool| pool.region == region)
    };
    let all = table.iter().filter(is_there);
    let time = all.clone().map(|row| row.gpus * row.duration.0);
    let time: u128 = time.map(|time| u128::from(time) * 1000).sum();
    let kept: u128 = at_home(prepared).values().sum();
    let mut figures = Map::new();
    let jobs = all.count() - prepared.jobs.len();
    figures.insert("wider_than_a_region_jobs".to_owned(), json!(jobs));
    let percent = percent(time - kept, time);
    let name = "wider_than_a_region_gpu_time_percent";
    figures.insert(name.to_owned(), json!(percent));
    Ok(figures)
}

/// Runs it once.
fn simulated(prepared: &Prepared, runs_ms: &mut Vec<f64>) -> anyhow::Result<(Summary, Held)> {
    let scenario = Scenario {
        rules: &prepared.rules,
        fleet: &prepared.fleet,
        trace: prepared.name,
        jobs: &prepared.jobs,
        hosts: &[],
        options: Options::default(),
        alone: Alone::Skipped,
    };
    let mut held = Held::default();
    let mut home = Vec::new();
    let watch = Stopwatch::start();
    let summary = scenario.run_watched(|moment| {
        if home.is_empty() {
            home = homes(moment.snapshot);
        }
        held.see(moment.at, moment.snapshot, &home);
    })?;
    runs_ms.push(watch.millis());
    Ok((summary, held))
}

/// The region of each tenant: it is called like it.
fn homes(snapshot: &Snapshot) -> Vec<Option<usize>> {
    let home = |name: &String| snapshot.regions.iter().position(|region| region == name);
    let tenants = snapshot.tenants.iter();
    tenants.map(|tenant| home(&tenant.name)).collect()
}

/// GPU time that is asked for in each region when nobody leaves his own.
fn at_home(prepared: &Prepared) -> BTreeMap<&str, u128> {
    let mut asked: BTreeMap<&str, u128> = BTreeMap::new();
    for job in &prepared.jobs {
        let gpus = u128::from(job.per_pod.gpus.0) * u128::from(job.pods);
        *asked.entry(&job.tenant).or_default() += gpus * u128::from(job.duration.0);
    }
    asked
}

/// The largest of them over what a region has in the time in which jobs come, in thousandths of
/// GPUs times seconds.
fn worst(times: impl Iterator<Item = u128>, supply: f64) -> f64 {
    wide(times.max().unwrap_or_default()) / 1000.0 / supply
}

fn speed(days: u64, runs_ms: &[f64]) -> Value {
    round(wide(u128::from(days * DAY.0)) / median(runs_ms))
}

fn percent(part: u128, whole: u128) -> u64 {
    u64::try_from(part * 100 / whole.max(1)).unwrap_or(u64::MAX)
}

/// As a figure to divide.
#[expect(clippy::cast_precision_loss, reason = "sums of a bench")]
fn wide(sum: u128) -> f64 {
    sum as f64
}
