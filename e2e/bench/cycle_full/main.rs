//! Bench `cycle-full`: one whole decision round over a long queue, with nothing known from before.
//!
//! Owns the figures. The plan is judged before it is timed, by the checker that the hub asks before
//! it commits, and every run must give it again. What is timed is `decide`, from a frozen snapshot
//! to the plan with the reasons of everything that waits on.

#[allow(dead_code, reason = "each bench uses its part of what is common")]
#[path = "../common/mod.rs"]
mod common;
mod world;

use std::hint::black_box;

use meridian_policies::model::Snapshot;
use meridian_policies::{check, decide};
use serde_json::{Map, json};

use crate::common::measure::{self, Stopwatch, median};
use crate::common::{Arguments, Report, float, round};
use crate::world::{Sizes, World};

/// Of the federation; any will do.
const SEED: u64 = 7;
/// Bytes of a gang that a round cannot do without: its identity, tenant, class, priority and age,
/// and the ordinal of what it asks for.
const BYTES_PER_GANG: usize = 64;

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::read()?;
    let sizes = if arguments.quick {
        Sizes::QUICK
    } else {
        Sizes::FULL
    };
    let snapshot = World::new(sizes, SEED).snapshot;
    let plan = decide(&snapshot);
    let violations = check(&snapshot, &plan);
    anyhow::ensure!(
        violations.is_empty(),
        "not a plan: {:?}",
        violations.first()
    );
    let mut runs_ms = Vec::new();
    let mut is_same = true;
    let cpu = measure::own_cpu();
    for _ in 0..arguments.runs {
        let watch = Stopwatch::start();
        let again = black_box(decide(black_box(&snapshot)));
        runs_ms.push(watch.millis());
        is_same &= again == plan;
    }
    let cpu_s = (measure::own_cpu() - cpu) / float(arguments.runs);
    let gpus: u64 = plan
        .placements
        .iter()
        .map(|placed| placed.gpus.whole())
        .sum();
    let mut figures = Map::new();
    figures.insert("placed".to_owned(), json!(plan.placements.len()));
    figures.insert("placed_gpus".to_owned(), json!(gpus));
    figures.insert("left_waiting".to_owned(), json!(plan.unplaced.len()));
    figures.insert("regraded".to_owned(), json!(plan.regraded.len()));
    let limit = floor_ms(&snapshot, arguments.runs);
    Report {
        name: "cycle-full",
        work: json!({
            "jobs": sizes.jobs, "shapes": sizes.shapes, "tenants": sizes.tenants,
            "tenant_levels": 3, "gang_percent": 20, "regions": sizes.regions,
            "nodes": sizes.nodes, "gpus_per_node": 8, "full_percent": 90,
            "running": snapshot.held.len(), "preemption": "nobody may be taken",
            "runs": arguments.runs,
        }),
        cpu_s,
        limit: json!({
            "what": "stream 64 bytes per gang, ms", "figure": round(limit),
            "distance": round(median(&runs_ms) / limit),
        }),
        runs_ms,
        valid: is_same,
        figures,
    }
    .print();
    Ok(())
}

/// What no round can do without: to read what makes each gang different.
fn floor_ms(snapshot: &Snapshot, runs: usize) -> f64 {
    let rows = vec![1_u64; snapshot.waiting.len() * BYTES_PER_GANG / size_of::<u64>()];
    let mut samples = Vec::new();
    for _ in 0..runs {
        let watch = Stopwatch::start();
        black_box(black_box(&rows).iter().fold(0_u64, |sum, it| sum ^ it));
        samples.push(watch.millis());
    }
    median(&samples)
}
