//! `meridian-test-cluster`: one real member cluster, until Ctrl-C.
//!
//! Owns the command line and what it prints. The cluster is `meridian_e2e::member`'s.

use anyhow::Context as _;
use clap::Parser;
use meridian_api::units::Millis;
use meridian_e2e::deployment::{AgentPlan, CLUSTER, Deployment, JobBuilder, NAMESPACE};
use meridian_e2e::member::{MemberCluster, MemberOptions, Scheduling, TrainerPod};
use meridian_e2e::tools::Tool;
use meridian_runtime::Clock;
use serde_json::json;

/// Starts a member cluster on this machine and keeps it until Ctrl-C.
#[derive(Debug, Parser)]
#[command(name = "meridian-test-cluster", version)]
struct Arguments {
    /// Nodes that run containers; each costs about 150 MB.
    #[arg(long, default_value_t = 2)]
    nodes: u8,
    /// Nodes that only say so.
    #[arg(long, default_value_t = 0)]
    fake_nodes: u16,
    /// GPUs of each node.
    #[arg(long, default_value_t = 8)]
    gpus: u16,
    /// What they are called.
    #[arg(long, default_value = "nvidia.com/gpu")]
    gpu_resource: String,
    /// Starts no scheduler: pods wait for somebody who binds them.
    #[arg(long)]
    no_scheduler: bool,
    /// Starts a hub and the cluster's agent too, and a gang of one pod for each real node.
    #[arg(long)]
    hub: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let clock = Clock::real();
    let begun = clock.boot();
    let options = MemberOptions {
        nodes: arguments.nodes,
        fake_nodes: arguments.fake_nodes,
        gpus_per_node: arguments.gpus,
        gpu_resource: arguments.gpu_resource.clone(),
        // The gang of all real nodes asks for one rack.
        nodes_per_rack: u16::from(arguments.nodes.max(2)),
        scheduling: if arguments.no_scheduler {
            Scheduling::None
        } else {
            Scheduling::Kubernetes
        },
        ..MemberOptions::default()
    };
    let started = tokio::select! {
        started = MemberCluster::start(options) => started,
        _ = tokio::signal::ctrl_c() => anyhow::bail!("stopped while it was starting"),
    };
    let cluster = started.context("the cluster does not start")?;
    describe(&cluster, &arguments, clock.boot().since(begun))?;
    let fleet = if arguments.hub {
        Some(Box::pin(gang(&cluster, &arguments)).await)
    } else {
        None
    };
    println!("Ctrl-C stops it and removes everything");
    tokio::signal::ctrl_c()
        .await
        .context("cannot wait for Ctrl-C")?;
    println!("stopping");
    drop(fleet);
    cluster.stop().await.context("something is left")
}

fn describe(cluster: &MemberCluster, arguments: &Arguments, took: Millis) -> anyhow::Result<()> {
    let real = arguments.nodes;
    println!(
        "ready in {took}: {real} real nodes, {} fake ones",
        arguments.fake_nodes
    );
    for used in cluster.memory() {
        println!("  {:>6} MiB  {}", used.kib / 1024, used.process);
    }
    let pod = TrainerPod::new("try-me", 1, &cluster.heartbeats()).of(&arguments.gpu_resource);
    let file = cluster.folder().join("try-me.json");
    let text = serde_json::to_string_pretty(&pod.build()).context("a pod is JSON")?;
    std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    let kubectl = Tool::Kubectl
        .locate()
        .map_or_else(|_| "kubectl".to_owned(), |path| path.display().to_string());
    println!("\nexport KUBECONFIG={}", cluster.kubeconfig().display());
    for command in [
        "get nodes".to_owned(),
        format!("apply -f {}", file.display()),
        "logs -f try-me".to_owned(),
        "delete pod try-me".to_owned(),
    ] {
        println!("{kubectl} {command}");
    }
    println!(
        "\nwhat really ran is written to {}",
        cluster.heartbeats().display()
    );
    Ok(())
}

/// A hub, the cluster's agent, and the job of the README on real containers.
async fn gang(cluster: &MemberCluster, arguments: &Arguments) -> Deployment {
    let nodes = u64::from(arguments.nodes) + u64::from(arguments.fake_nodes);
    let fleet = Deployment::over(
        cluster,
        &AgentPlan::default(),
        nodes * u64::from(arguments.gpus),
    )
    .await;
    let job = JobBuilder::new("first")
        .pods(u32::from(arguments.nodes), u32::from(arguments.gpus))
        .trains(cluster, &[])
        .with(
            "/spec/topology",
            json!([{"role": "worker", "required": "rack"}]),
        );
    let file = fleet.file("first.yaml", &job.text()).display().to_string();
    let submitted = fleet.meridian(["submit", "-f", &file]).await;
    submitted.succeeded();
    fleet.some_job_is("Running").await;
    let truth = cluster.truth();
    println!("\njob {NAMESPACE}/first runs in {CLUSTER}, from what its containers wrote:");
    for run in truth.runs() {
        println!(
            "  rank {} of {}, epoch {}: {}",
            run.rank, run.world, run.epoch, run.name
        );
    }
    println!("\nexport HUB={}", fleet.hubs[0].url());
    for command in [
        format!("kubectl --server $HUB -n {NAMESPACE} describe federatedjob first"),
        format!("kubectl --kubeconfig $KUBECONFIG -n {NAMESPACE} get pods -o wide"),
        format!("kubectl --server $HUB -n {NAMESPACE} delete federatedjob first"),
    ] {
        println!("{command}");
    }
    fleet
}
