//! Bench `gang-topo`: nodes for a gang in one pool, over an index that is kept as nodes change.
//!
//! Owns the phases and their figures. Each placement is judged before it is timed; what is timed
//! is the search for nodes and the list of members, not the index's making.

#[allow(dead_code, reason = "each bench uses its part of what is common")]
#[path = "../common/mod.rs"]
mod common;
mod fleet;

use std::hint::black_box;

use meridian_policies::nodes::{Index, Member};
use serde_json::{Map, Value, json};

use crate::common::measure::{self, Stopwatch, median, min};
use crate::common::{Arguments, Report, float, round};
use crate::fleet::{Case, InUse};

/// Placements in one timed run: enough for the clock, and for a median that one interrupt does
/// not move.
const ROUNDS: usize = 200;
/// Placements that find the caches cold.
const COLD: usize = 20;
/// Bytes that are read to make them so: more than any cache of this machine holds.
const FLUSH: usize = 64 << 20;
/// Of the fleets; any will do.
const SEED: u64 = 7;

/// What one case came to.
struct Outcome {
    /// Median milliseconds of one placement, per run.
    runs_ms: Vec<f64>,
    cpu_s: f64,
    figures: Value,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::read()?;
    let (balanced, subgroups, nodes, pods) = if arguments.quick {
        (500, 20, 10_000, 128)
    } else {
        (2_500, 100, 100_000, 1_024)
    };
    let mut figures = Map::new();
    let cases = [
        fleet::balanced(balanced),
        fleet::subgroups(subgroups),
        fleet::fragmented(InUse::Hosts, nodes, pods, SEED),
    ];
    for case in cases {
        let outcome = measure_case(&case, arguments.runs)?;
        figures.insert(case.name.to_owned(), outcome.figures);
    }
    let case = fleet::fragmented(InUse::Racks, nodes, pods, SEED);
    let outcome = measure_case(&case, arguments.runs)?;
    figures.insert(case.name.to_owned(), outcome.figures);
    let limit = floor_ms(&case, arguments.runs);
    Report {
        name: "gang-topo",
        work: json!({
            "nodes": nodes, "gpus_per_node": 4, "racks": nodes.div_ceil(18), "pods": pods,
            "slice": 16, "racks_in_use_percent": 85, "runs": arguments.runs, "rounds": ROUNDS,
        }),
        cpu_s: outcome.cpu_s,
        limit: json!({
            "what": "read 2 bytes per node and write the members, ms", "figure": round(limit),
            "distance": round(median(&outcome.runs_ms) / limit),
        }),
        runs_ms: outcome.runs_ms,
        // A placement that was not right has ended the bench.
        valid: true,
        figures,
    }
    .print();
    Ok(())
}

fn measure_case(case: &Case, runs: usize) -> anyhow::Result<Outcome> {
    let watch = Stopwatch::start();
    let mut index = Index::of(&case.levels, &case.nodes);
    let build_ms = watch.millis();
    let pods = case.pods();
    let members = index
        .find(&case.gang, &pods)
        .ok_or_else(|| anyhow::anyhow!("{}: the gang fits, and was not placed", case.name))?;
    case.judge(&members)?;
    let mut runs_ms = Vec::new();
    let cpu = measure::own_cpu();
    for _ in 0..runs {
        let mut samples = Vec::with_capacity(ROUNDS);
        for _ in 0..ROUNDS {
            let watch = Stopwatch::start();
            black_box(index.find(black_box(&case.gang), &pods));
            samples.push(watch.millis());
        }
        runs_ms.push(median(&samples));
    }
    let cpu_s = (measure::own_cpu() - cpu) / float(runs);
    let cold_ms = cold(case, &mut index);
    let commit_us = commit(case, &mut index, &members)?;
    let spans = case.levels.iter().zip(case.spans(&members));
    let figures = json!({
        "pods": pods.iter().sum::<u32>(),
        "place_us": round(median(&runs_ms) * 1000.0),
        "place_min_us": round(min(&runs_ms) * 1000.0),
        "place_cold_us": round(cold_ms * 1000.0),
        "node_change_us": round(commit_us / float(members.len())),
        "build_ms": round(build_ms),
        "domains": spans.map(|(level, spans)| (level.clone(), json!(spans))).collect::<Map<_, _>>(),
    });
    println!("{}: {figures}", case.name);
    Ok(Outcome {
        runs_ms,
        cpu_s,
        figures,
    })
}

/// Median milliseconds of a placement after other work has had the caches.
fn cold(case: &Case, index: &mut Index) -> f64 {
    let flush = vec![1_u8; FLUSH];
    let pods = case.pods();
    let mut samples = Vec::with_capacity(COLD);
    for _ in 0..COLD {
        black_box(
            black_box(&flush)
                .iter()
                .map(|it| u64::from(*it))
                .sum::<u64>(),
        );
        let watch = Stopwatch::start();
        black_box(index.find(black_box(&case.gang), &pods));
        samples.push(watch.millis());
    }
    median(&samples)
}

/// Microseconds to take the members' room, node by node; the next gang must then be placed beside
/// them, or not at all.
fn commit(case: &Case, index: &mut Index, members: &[Member]) -> anyhow::Result<f64> {
    let mut nodes = case.nodes.clone();
    let mut changed = Vec::with_capacity(members.len());
    for member in members {
        let request = case.gang.roles[member.role as usize].per_pod;
        let node = &mut nodes[member.node];
        let left = node.free.checked_sub(request);
        node.free = left.ok_or_else(|| anyhow::anyhow!("{}: over-committed", case.name))?;
        changed.push(node.clone());
    }
    let watch = Stopwatch::start();
    for node in &changed {
        index.set(node);
    }
    let micros = watch.millis() * 1000.0;
    if let Some(next) = index.find(&case.gang, &case.pods()) {
        let beside = Case {
            nodes,
            levels: case.levels.clone(),
            gang: case.gang.clone(),
            name: case.name,
        };
        beside.judge(&next)?;
    }
    Ok(micros)
}

/// What no placement can do without: to read a counter of each node, and to write the members.
fn floor_ms(case: &Case, runs: usize) -> f64 {
    let counters: Vec<u16> = case
        .nodes
        .iter()
        .map(|node| u16::try_from(node.free.gpus.whole()).unwrap_or(u16::MAX))
        .collect();
    let pods = case.pods().iter().sum::<u32>();
    let mut samples = Vec::new();
    for _ in 0..runs * ROUNDS {
        let watch = Stopwatch::start();
        let free: u64 = black_box(&counters).iter().map(|it| u64::from(*it)).sum();
        let member = |rank: u32| Member {
            role: 0,
            rank,
            node: rank as usize,
        };
        let members: Vec<Member> = (0..pods).map(member).collect();
        samples.push(watch.millis());
        black_box((free, members));
    }
    median(&samples)
}
