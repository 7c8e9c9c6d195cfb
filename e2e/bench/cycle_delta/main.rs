//! Bench `cycle-delta`: a round after little has changed, over the queue of `cycle-full`.
//!
//! Owns the figures. What is timed is everything from the first change to the new decisions: what
//! was decided in the round before starts, and what the step brings. Some rounds are compared with
//! a full one over the same snapshot, reasons of everything that waits on included.

#[allow(dead_code, reason = "each bench uses its part of what is common")]
#[path = "../common/mod.rs"]
mod common;
mod steps;
#[allow(dead_code, reason = "each bench uses its part of the federation")]
#[path = "../cycle_full/world.rs"]
mod world;

use std::hint::black_box;

use meridian_policies::{Planner, decide};
use serde_json::{Map, json};

use crate::common::measure::{self, Stopwatch, median, quantile};
use crate::common::{Arguments, Report, float, round};
use crate::steps::{ENDS, SUBMITS, Steps};
use crate::world::{Sizes, World};

/// Of the federation; any will do.
const SEED: u64 = 7;
/// Steps for each run that is asked for: a p99 takes some hundred samples.
const STEPS_PER_RUN: usize = 40;
/// Rounds before the first step: what was decided has started, and its quota is written down.
const WARM_UP: usize = 3;
/// Rounds that are compared with a full one, spread over the steps.
const COMPARED: usize = 4;
/// Places in memory that a change cannot do without: its own row, its look, its line, its tenant,
/// its pool, and the same of what takes its room.
const READS_PER_CHANGE: usize = 10;

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::read()?;
    let sizes = if arguments.quick {
        Sizes::QUICK
    } else {
        Sizes::FULL
    };
    let (mut planner, mut steps) = warmed_up(sizes)?;
    let count = arguments.runs * STEPS_PER_RUN;
    let (mut runs_ms, mut placed, mut is_same) = (Vec::new(), 0, true);
    let (mut apply_ms, mut cpu) = (Vec::new(), 0.0);
    for step in 0..count {
        // What happens is made up from what has started, and making it up is not timed.
        let mut changes_ms = 0.0;
        for happens in [Steps::started, Steps::next] {
            let changes = happens(&mut steps, &planner);
            let (began, watch) = (measure::own_cpu(), Stopwatch::start());
            for change in changes {
                planner.apply(change)?;
            }
            changes_ms += watch.millis();
            cpu += measure::own_cpu() - began;
        }
        apply_ms.push(changes_ms);
        let (began, watch) = (measure::own_cpu(), Stopwatch::start());
        placed += black_box(planner.round()).placements.len();
        runs_ms.push(changes_ms + watch.millis());
        cpu += measure::own_cpu() - began;
        if step % (count / COMPARED).max(1) == 0 {
            is_same &= planner.plan() == decide(planner.snapshot());
        }
    }
    let changes = SUBMITS + ENDS + 2;
    let limit = misses_ms(changes * READS_PER_CHANGE, arguments.runs);
    let mut figures = Map::new();
    figures.insert("p50_ms".to_owned(), round(median(&runs_ms)));
    figures.insert("p99_ms".to_owned(), round(quantile(&runs_ms, 0.99)));
    figures.insert("changes_p50_ms".to_owned(), round(median(&apply_ms)));
    figures.insert(
        "placed_per_step".to_owned(),
        round(float(placed) / float(count)),
    );
    figures.insert("full_rounds".to_owned(), json!(planner.full_rounds()));
    figures.insert("compared_with_full".to_owned(), json!(COMPARED));
    Report {
        name: "cycle-delta",
        work: json!({
            "jobs": sizes.jobs, "shapes": sizes.shapes, "tenants": sizes.tenants,
            "regions": sizes.regions, "nodes": sizes.nodes, "steps": count,
            "submits": SUBMITS, "ends": ENDS, "nodes_lost": 1, "quota_edits": 1,
            "started": "what the round before decided", "preemption": "nobody may be taken",
        }),
        cpu_s: cpu / float(count),
        limit: json!({
            "what": format!("{READS_PER_CHANGE} places in memory per change, ms"),
            "figure": round(limit), "distance": round(median(&runs_ms) / limit),
        }),
        runs_ms,
        valid: is_same,
        figures,
    }
    .print();
    Ok(())
}

/// A planner whose decisions so far have started.
fn warmed_up(sizes: Sizes) -> anyhow::Result<(Planner, Steps)> {
    let mut world = World::new(sizes, SEED);
    let mut planner = Planner::new(std::mem::take(&mut world.snapshot));
    let mut steps = Steps::new(world, &planner);
    for _ in 0..WARM_UP {
        planner.round();
        for change in steps.started(&planner) {
            planner.apply(change)?;
        }
    }
    planner.round();
    Ok((planner, steps))
}

/// What so many reads take that each wait for the one before, in a table larger than the caches.
fn misses_ms(reads: usize, runs: usize) -> f64 {
    const ROWS: usize = 1 << 24;
    // An odd multiplier and an odd step visit every row once before the first comes again.
    let next: Vec<u32> = (0..ROWS)
        .map(|at| u32::try_from((at * 1_664_525 + 1_013_904_223) % ROWS).unwrap_or(0))
        .collect();
    let mut samples = Vec::new();
    let mut at = 0_u32;
    for _ in 0..runs {
        let watch = Stopwatch::start();
        for _ in 0..reads {
            at = next[at as usize];
        }
        samples.push(watch.millis());
    }
    black_box(at);
    median(&samples)
}
