//! Bench `kube`: gangs on one real API server with a thousand fake GPU nodes, placed by the agent
//! under a hub's decisions, beside single pods that Kubernetes' own scheduler places there.
//!
//! Owns the runs and their figures. Both sides make and bind the same number of equal pods, one
//! side after the other, on the same cluster; ours makes each four of them whole or not at all.

#[allow(dead_code, reason = "each bench uses its part of what is common")]
#[path = "../common/mod.rs"]
mod common;
mod federation;
mod peer;
mod pods;

use anyhow::Context as _;
use meridian_e2e::member::{MemberCluster, MemberOptions, Scheduling};
use serde_json::{Map, json};

use crate::common::measure::{Stopwatch, median, own_cpu};
use crate::common::{Arguments, Report, float, round};
use crate::federation::Federation;
use crate::pods::Pods;

/// Pods of each gang.
const PODS: usize = 4;
/// Cards of each pod.
const GPUS: u64 = 2;
/// Cards of each node.
const GPUS_PER_NODE: u16 = 8;
/// Writes that one pod costs the API server at least, whoever places it: its own, its binding, and
/// its node's word that it runs.
const WRITES_PER_POD: f64 = 3.0;

/// How much is done.
#[derive(Clone, Copy)]
struct Size {
    nodes: u16,
    gangs: usize,
}

/// What one side of one run took.
struct Side {
    bound_ms: f64,
    server_cpu_s: f64,
    own_cpu_s: f64,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::read()?;
    let size = if arguments.quick {
        Size {
            nodes: 50,
            gangs: 20,
        }
    } else {
        Size {
            nodes: 1_000,
            gangs: 750,
        }
    };
    // The cluster's processes die with the thread that starts them, which is this one.
    tokio::runtime::Runtime::new()?.block_on(run(arguments, size))
}

async fn run(arguments: Arguments, size: Size) -> anyhow::Result<()> {
    let cluster = MemberCluster::start(MemberOptions {
        nodes: 0,
        fake_nodes: size.nodes,
        gpus_per_node: GPUS_PER_NODE,
        scheduling: Scheduling::Kubernetes,
        ..MemberOptions::default()
    })
    .await?;
    let federation = Federation::start(&cluster).await?;
    let gpus = u64::from(size.nodes) * u64::from(GPUS_PER_NODE);
    federation.counted(gpus).await?;
    let pods = size.gangs * PODS;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for turn in 0..arguments.runs {
        let submit = federation.submit(turn, size.gangs);
        ours.push(side(&cluster, pods, submit).await?);
        federation.clear(gpus).await?;
        let create = peer::create(&cluster, turn, pods);
        theirs.push(side(&cluster, pods, create).await?);
        peer::clear(&cluster).await?;
        println!(
            "run {}: {} gangs bound in {:.0} ms, {pods} single pods by kube-scheduler in {:.0} ms",
            turn + 1,
            size.gangs,
            ours[turn].bound_ms,
            theirs[turn].bound_ms,
        );
    }
    federation.stop().await?;
    cluster.stop().await?;
    report(size, &ours, &theirs);
    Ok(())
}

/// Times one side and judges what it did.
async fn side(
    cluster: &MemberCluster,
    pods: usize,
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<Side> {
    let mut watch = Pods::watch(cluster.client()).await?;
    let (server, own) = (server_cpu(cluster).await?, own_cpu());
    let stopwatch = Stopwatch::start();
    // At once: the API server ends the watch of who does not read it.
    tokio::try_join!(work, watch.bound(pods))?;
    let bound_ms = stopwatch.millis();
    let side = Side {
        bound_ms,
        server_cpu_s: server_cpu(cluster).await? - server,
        own_cpu_s: own_cpu() - own,
    };
    watch.judge(pods, u64::from(GPUS_PER_NODE), GPUS)?;
    Ok(side)
}

/// CPU seconds of the API server, as it counts them itself.
async fn server_cpu(cluster: &MemberCluster) -> anyhow::Result<f64> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    let metrics = cluster.client().request_text(request).await?;
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix("process_cpu_seconds_total "));
    Ok(line.context("the API server counts its CPU")?.parse()?)
}

fn report(size: Size, ours: &[Side], theirs: &[Side]) {
    let millis = |sides: &[Side]| sides.iter().map(|side| side.bound_ms).collect::<Vec<_>>();
    let (our_ms, their_ms) = (median(&millis(ours)), median(&millis(theirs)));
    let pods = float(size.gangs * PODS);
    let server = |sides: &[Side]| {
        median(
            &sides
                .iter()
                .map(|side| side.server_cpu_s)
                .collect::<Vec<_>>(),
        )
    };
    let own = median(&ours.iter().map(|side| side.own_cpu_s).collect::<Vec<_>>());
    let mut figures = Map::new();
    figures.insert("pods_per_s".to_owned(), round(pods * 1000.0 / our_ms));
    figures.insert(
        "gangs_per_s".to_owned(),
        round(float(size.gangs) * 1000.0 / our_ms),
    );
    figures.insert("kube_scheduler_ms".to_owned(), round(their_ms));
    figures.insert(
        "kube_scheduler_pods_per_s".to_owned(),
        round(pods * 1000.0 / their_ms),
    );
    figures.insert(
        "speed_over_kube_scheduler".to_owned(),
        round(their_ms / our_ms),
    );
    figures.insert("apiserver_cpu_s".to_owned(), round(server(ours)));
    figures.insert(
        "apiserver_cpu_s_kube_scheduler".to_owned(),
        round(server(theirs)),
    );
    // What the peer's run cost the server per write is what a write costs on this machine.
    let write_ms = server(theirs) * 1000.0 / (pods * WRITES_PER_POD);
    let floor = pods * WRITES_PER_POD * write_ms / float(cores());
    Report {
        name: "kube",
        work: json!({
            "nodes": size.nodes, "gangs": size.gangs, "pods": size.gangs * PODS,
            "gpus_per_pod": GPUS, "runs": ours.len(),
        }),
        runs_ms: millis(ours),
        cpu_s: own,
        limit: json!({
            "what": "CPU of the API server for three writes a pod, ms", "figure": round(floor),
            "distance": round(our_ms / floor),
        }),
        // A side whose work was not right has ended the bench.
        valid: true,
        figures,
    }
    .print();
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}
