//! Bench `kube`: gangs on one real API server with a thousand fake GPU nodes, placed by the agent
//! under a hub's decisions, beside single pods that Kubernetes' own scheduler places there.
//!
//! Owns the runs and their figures. Each side makes and binds the same number of pods that ask for
//! the same, one side after the other, on the same cluster, from the first request to the last
//! binding. Ours begins with the submit of jobs to a hub, which writes them down and decides, and
//! makes each four pods whole or not at all, with an owner object, a gate and a Service. The peer
//! begins with the making of the pods, and binds them one by one: once the very pods that ours
//! made, with the same Service for each four (who runs such a gang without us makes these, too),
//! and once pods with nothing but a container.

#[allow(dead_code, reason = "each bench uses its part of what is common")]
#[path = "../common/mod.rs"]
mod common;
mod federation;
mod peer;
mod pods;
mod server;

use meridian_api::units::Millis;
use meridian_e2e::member::{MemberCluster, MemberOptions, Scheduling};
use serde_json::{Map, json};

use crate::common::measure::{Stopwatch, median, own_cpu};
use crate::common::{Arguments, Report, float, round};
use crate::federation::Federation;
use crate::peer::Model;
use crate::pods::Pods;
use crate::server::Server;

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
    reads: f64,
    writes: f64,
    own_cpu_s: f64,
}

/// The sides of all runs.
#[derive(Default)]
struct Sides {
    /// Gangs by the agent.
    ours: Vec<Side>,
    /// Pods like theirs, one by one, by kube-scheduler.
    alike: Vec<Side>,
    /// Slim pods, one by one, by kube-scheduler.
    slim: Vec<Side>,
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
        // As kubelets do when nothing changes, each fake node writes its status every five minutes.
        node_grace: Millis::seconds(900),
        ..MemberOptions::default()
    })
    .await?;
    let federation = Federation::start(&cluster).await?;
    let gpus = u64::from(size.nodes) * u64::from(GPUS_PER_NODE);
    federation.counted(gpus).await?;
    let pods = size.gangs * PODS;
    let mut sides = Sides::default();
    for turn in 0..arguments.runs {
        let submit = federation.submit(turn, size.gangs);
        sides.ours.push(side(&cluster, pods, submit).await?);
        let model = Model::take(&cluster).await?;
        federation.clear(gpus).await?;
        let create = peer::create(&cluster, turn, pods, Some(&model));
        sides.alike.push(side(&cluster, pods, create).await?);
        peer::clear(&cluster).await?;
        let create = peer::create(&cluster, turn, pods, None);
        sides.slim.push(side(&cluster, pods, create).await?);
        peer::clear(&cluster).await?;
        println!(
            "run {}: {} gangs bound in {:.0} ms; by kube-scheduler one by one {pods} such pods in \
             {:.0} ms, {pods} slim pods in {:.0} ms",
            turn + 1,
            size.gangs,
            sides.ours[turn].bound_ms,
            sides.alike[turn].bound_ms,
            sides.slim[turn].bound_ms,
        );
    }
    federation.stop().await?;
    cluster.stop().await?;
    report(size, &sides);
    Ok(())
}

/// Times one side and judges what it did.
async fn side(
    cluster: &MemberCluster,
    pods: usize,
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<Side> {
    let mut watch = Pods::watch(cluster.client()).await?;
    let (before, own) = (Server::ask(cluster).await?, own_cpu());
    let stopwatch = Stopwatch::start();
    // At once: the API server ends the watch of who does not read it.
    tokio::try_join!(work, watch.bound(pods))?;
    let bound_ms = stopwatch.millis();
    let after = Server::ask(cluster).await?;
    let side = Side {
        bound_ms,
        server_cpu_s: after.cpu_s - before.cpu_s,
        reads: after.reads - before.reads,
        writes: after.writes - before.writes,
        own_cpu_s: own_cpu() - own,
    };
    watch.judge(pods, u64::from(GPUS_PER_NODE), GPUS)?;
    Ok(side)
}

fn report(size: Size, sides: &Sides) {
    let of = |side: &[Side], figure: fn(&Side) -> f64| {
        median(&side.iter().map(figure).collect::<Vec<_>>())
    };
    let Sides { ours, alike, slim } = sides;
    let millis = |side: &[Side]| of(side, |side| side.bound_ms);
    let (pods, gangs) = (float(size.gangs * PODS), float(size.gangs));
    let mut figures = Map::new();
    let mut note = |name: &str, figure: f64| figures.insert(name.to_owned(), round(figure));
    note("pods_per_s", pods * 1000.0 / millis(ours));
    note("gangs_per_s", gangs * 1000.0 / millis(ours));
    note("speed_over_kube_scheduler", millis(alike) / millis(ours));
    note("speed_over_slim_pods", millis(slim) / millis(ours));
    for (name, side) in [("", ours), ("_alike", alike), ("_slim", slim)] {
        note(&format!("bound_ms{name}"), millis(side));
        let cpu = of(side, |side| side.server_cpu_s);
        note(&format!("apiserver_cpu_s{name}"), cpu);
        note(&format!("reads{name}"), of(side, |side| side.reads));
        note(&format!("writes{name}"), of(side, |side| side.writes));
        note(&format!("own_cpu_s{name}"), of(side, |side| side.own_cpu_s));
    }
    // What the peer's run cost the server per write is what a write costs on this machine.
    let write_ms = of(alike, |side| side.server_cpu_s / side.writes) * 1000.0;
    let floor = pods * WRITES_PER_POD * write_ms / float(cores());
    Report {
        name: "kube",
        work: json!({
            "nodes": size.nodes, "gangs": size.gangs, "pods": size.gangs * PODS,
            "gpus_per_pod": GPUS, "runs": ours.len(),
        }),
        runs_ms: ours.iter().map(|side| side.bound_ms).collect(),
        cpu_s: of(ours, |side| side.own_cpu_s),
        limit: json!({
            "what": "CPU of the API server for three writes a pod, ms", "figure": round(floor),
            "distance": round(millis(ours) / floor),
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
