//! Bench `victims`: room for large gangs in a full fleet, and the certain "no" where there is none.
//!
//! Owns the cases and their figures. Timed is one whole decision over one waiting queue, ledger,
//! ordering, rows and explanation included; each plan passes the independent check before.

#[allow(dead_code, reason = "each bench uses its part of what is common")]
#[path = "../common/mod.rs"]
mod common;
mod fleet;

use std::hint::black_box;

use meridian_api::reasons::Reason;
use meridian_policies::check::check;
use meridian_policies::decide;
use meridian_policies::model::{Plan, Snapshot};
use serde_json::{Map, Value, json};

use crate::common::measure::{self, Stopwatch, median, min};
use crate::common::{Arguments, Report, float, round};
use crate::fleet::{Fleet, Right, newest_first};

/// Decisions in one timed run.
const ROUNDS: usize = 3;

struct Outcome {
    runs_ms: Vec<f64>,
    cpu_s: f64,
    plan: Plan,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::read()?;
    let (sizes, never, reclaim) = if arguments.quick {
        (vec![100], vec![100, 1_000], 64)
    } else {
        (
            vec![100, 500, 1_000],
            vec![100, 1_000, 10_000, 100_000],
            1_024,
        )
    };
    let mut figures = Map::new();
    let mut last = None;
    for hosts in sizes {
        let (outcome, snapshot) = large(hosts, arguments.runs)?;
        figures.insert(
            format!("hosts_{hosts}"),
            told(&outcome, &snapshot, hosts / 2),
        );
        last = Some((outcome, snapshot));
    }
    for hosts in never {
        let outcome = refused(hosts, arguments.runs)?;
        let figure = json!({
            "decide_ms": round(median(&outcome.runs_ms)), "min_ms": round(min(&outcome.runs_ms)),
        });
        println!("never_{hosts}: {figure}");
        figures.insert(format!("never_{hosts}"), figure);
    }
    let (outcome, snapshot) = regions(reclaim, arguments.runs)?;
    let hosts = outcome
        .plan
        .preemptions
        .iter()
        .map(|made| made.pods[0])
        .sum();
    figures.insert(
        "reclaim_8_regions".to_owned(),
        told(&outcome, &snapshot, hosts),
    );
    let (outcome, snapshot) = last.ok_or_else(|| anyhow::anyhow!("no case was run"))?;
    let limit = floor_ms(&snapshot, arguments.runs);
    Report {
        name: "victims",
        work: json!({
            "hosts": snapshot.hosts.len(), "running": snapshot.held.len(),
            "asks": "half of the hosts, whole", "runs": arguments.runs, "rounds": ROUNDS,
        }),
        cpu_s: outcome.cpu_s,
        limit: json!({
            "what": "read age and size of every running job, ms", "figure": round(limit),
            "distance": round(median(&outcome.runs_ms) / limit),
        }),
        runs_ms: outcome.runs_ms,
        // A plan that was not right has ended the bench.
        valid: true,
        figures,
    }
    .print();
    Ok(())
}

/// One gang of half of the hosts, which are full of jobs of one GPU (KAI's `ReclaimLargeJobs`).
fn large(hosts: u32, runs: usize) -> anyhow::Result<(Outcome, Snapshot)> {
    let fleet = Fleet {
        regions: 1,
        hosts,
        jobs: 8,
        right: Right::LowerClass,
    };
    let snapshot = fleet.snapshot(1, hosts / 2);
    let outcome = timed(&snapshot, runs)?;
    let made = outcome.plan.preemptions.first();
    let made = made.ok_or_else(|| anyhow::anyhow!("{hosts} hosts: no room is made"))?;
    anyhow::ensure!(
        made.victims.len() == hosts as usize * 4,
        "nobody goes in vain"
    );
    Ok((outcome, snapshot))
}

/// Room for one host more than there is.
fn refused(hosts: u32, runs: usize) -> anyhow::Result<Outcome> {
    let jobs = if hosts > 10_000 { 1 } else { 8 };
    let fleet = Fleet {
        regions: 1,
        hosts,
        jobs,
        right: Right::LowerClass,
    };
    let snapshot = fleet.snapshot(1, hosts + 1);
    let outcome = timed(&snapshot, runs)?;
    let reason = outcome.plan.unplaced[0].reasons[0].reason;
    anyhow::ensure!(outcome.plan.preemptions.is_empty(), "nobody goes in vain");
    anyhow::ensure!(
        matches!(reason, Reason::NeverPlaceable | Reason::ExceedsQuota),
        "{reason} is not a certain no"
    );
    Ok(outcome)
}

/// 4,096 GPUs taken back by their lender: one gang for each of eight regions.
fn regions(hosts: u32, runs: usize) -> anyhow::Result<(Outcome, Snapshot)> {
    let fleet = Fleet {
        regions: 8,
        hosts,
        jobs: 4,
        right: Right::Lender,
    };
    let snapshot = fleet.snapshot(8, hosts / 16);
    let outcome = timed(&snapshot, runs)?;
    anyhow::ensure!(
        outcome.plan.preemptions.len() == 8,
        "not every gang gets its room"
    );
    Ok((outcome, snapshot))
}

fn timed(snapshot: &Snapshot, runs: usize) -> anyhow::Result<Outcome> {
    let plan = decide(snapshot);
    let wrong = check(snapshot, &plan);
    anyhow::ensure!(wrong.is_empty(), "the plan is wrong: {}", wrong[0]);
    let mut runs_ms = Vec::new();
    let cpu = measure::own_cpu();
    for _ in 0..runs {
        let mut samples = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let watch = Stopwatch::start();
            black_box(decide(black_box(snapshot)));
            samples.push(watch.millis());
        }
        runs_ms.push(median(&samples));
    }
    let cpu_s = (measure::own_cpu() - cpu) / float(runs * ROUNDS);
    Ok(Outcome {
        runs_ms,
        cpu_s,
        plan,
    })
}

fn told(outcome: &Outcome, snapshot: &Snapshot, hosts: u32) -> Value {
    let victims = outcome
        .plan
        .preemptions
        .iter()
        .flat_map(|made| &made.victims);
    let lost: u64 = victims.clone().map(|victim| victim.lost).sum();
    let newest = newest_first(snapshot, hosts as usize);
    // Thousandths of a card's second to whole hours.
    let hours = |work: u64| work / 3_600_000;
    let figure = json!({
        "decide_ms": round(median(&outcome.runs_ms)), "min_ms": round(min(&outcome.runs_ms)),
        "victims": victims.count(), "lost_gpu_hours": hours(lost),
        "newest_first_gpu_hours": hours(newest),
    });
    println!(
        "{} hosts, {} running: {figure}",
        snapshot.hosts.len(),
        snapshot.held.len()
    );
    figure
}

/// What no choice can do without: to read age and size of everything that runs.
fn floor_ms(snapshot: &Snapshot, runs: usize) -> f64 {
    let rows: Vec<(i64, u64)> = snapshot
        .held
        .iter()
        .map(|held| (held.since.0, held.resources.gpus.0))
        .collect();
    let mut samples = Vec::new();
    for _ in 0..runs * ROUNDS {
        let watch = Stopwatch::start();
        let sum = black_box(&rows).iter().fold(0_u64, |sum, (since, gpus)| {
            sum.wrapping_add(since.unsigned_abs() * gpus)
        });
        samples.push(watch.millis());
        black_box(sum);
    }
    median(&samples)
}
