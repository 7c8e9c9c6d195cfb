//! Bench `heartbeat`: a thousand agents' sessions with one hub, at the pace of life, with jobs
//! that wait, and as fast as the hub takes it.
//!
//! Owns the phases and their figures. Hub and agents run in one process on two runtimes, told
//! apart by their threads' names, so that the hub's CPU is counted alone.

mod agent;
#[allow(dead_code, reason = "each bench uses its part of what is common")]
#[path = "../common/mod.rs"]
mod common;
mod fleet;

use meridian_api::units::Millis;
use meridian_e2e::process::Harness;
use meridian_proto::v1;
use meridian_proto::v1::federation_service_client::FederationServiceClient;
use serde_json::{Map, Value, json};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

use crate::common::hub::Hub;
use crate::common::measure::{self, median, quantile};
use crate::common::peer::{Concurrency, Peer};
use crate::common::{Arguments, Report, float, round};
use crate::fleet::{Fleet, Pace, Sent};

/// Name of the hub's threads, by which its CPU is counted.
const HUB: &str = "hub";
/// Threads for blocking work live as long as the bench: with one goes what it has used.
const KEEP_THREADS: Duration = Duration::from_hours(1);
/// Jobs in the phase with a queue, none of which fits anywhere.
const WAITING: usize = 100;

/// How much is done.
#[derive(Clone, Copy)]
struct Size {
    clusters: usize,
    span: Millis,
    puts: usize,
    at_once: Concurrency,
}

/// What one phase cost the hub.
struct Phase {
    sent: Sent,
    hub_cpu_s: f64,
    writes: u64,
}

impl Phase {
    fn per_second(&self) -> f64 {
        float(self.sent.digests + self.sent.beats) / self.sent.seconds
    }

    fn cpu_us(&self) -> f64 {
        self.hub_cpu_s * 1e6 / float(self.sent.digests + self.sent.beats)
    }

    fn figures(&self) -> Value {
        #[expect(clippy::cast_precision_loss, reason = "writes of one phase")]
        let writes = self.writes as f64;
        json!({
            "messages_per_s": round(self.per_second()),
            "digests_per_s": round(float(self.sent.digests) / self.sent.seconds),
            "hub_cores": round(self.hub_cpu_s / self.sent.seconds),
            "hub_us_per_message": round(self.cpu_us()),
            "messages_per_s_per_core": round(1e6 / self.cpu_us()),
            "seen_p50_ms": round(median(&self.sent.seen_ms)),
            "seen_p99_ms": round(quantile(&self.sent.seen_ms, 0.99)),
            "durable_writes_per_s": round(writes / self.sent.seconds),
        })
    }
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::read()?;
    let size = if arguments.quick {
        Size {
            clusters: 20,
            span: Millis::seconds(3),
            puts: 1_000,
            at_once: Concurrency {
                clients: 50,
                connections: 5,
            },
        }
    } else {
        Size {
            clusters: 1_000,
            span: Millis::seconds(30),
            puts: 50_000,
            at_once: Concurrency {
                clients: 1_000,
                connections: 100,
            },
        }
    };
    let (hubs, agents) = (threads(HUB)?, threads("agents")?);
    agents.block_on(run(arguments, size, &hubs))
}

fn threads(name: &str) -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .thread_name(name)
        .thread_keep_alive(KEEP_THREADS)
        .enable_all()
        .build()
}

/// Runs `work` on the hub's threads.
async fn on<T: Send + 'static>(
    runtime: &Runtime,
    work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
) -> anyhow::Result<T> {
    runtime.spawn(work).await?
}

async fn run(arguments: Arguments, size: Size, hubs: &Runtime) -> anyhow::Result<()> {
    let harness = Harness::new();
    let disk = measure::fdatasync_p50_ms(&harness.folder("disk"))?;
    let mut peer = Peer::start(&harness).await?;
    let endpoint = peer.endpoint();
    let hub = on(
        hubs,
        async move { Hub::start(endpoint.store().await?).await },
    )
    .await?;
    let mut fleet = Fleet::attach(&hub, size.clusters).await?;
    let mut life = Vec::new();
    for turn in 0..arguments.runs {
        life.push(phase(&hub, &mut fleet, Pace::Life, size.span).await?);
        println!("run {}: {}", turn + 1, life[turn].figures());
    }
    let saturated = phase(&hub, &mut fleet, Pace::Saturation, size.span).await?;
    println!("saturation: {}", saturated.figures());
    queue(&hub).await?;
    let queued = phase(&hub, &mut fleet, Pace::Life, size.span).await?;
    println!("{WAITING} jobs wait: {}", queued.figures());
    let put = peer.puts(size.puts, 300, size.at_once).await?;
    on(hubs, hub.stop()).await?;

    life.sort_by(|one, other| one.hub_cpu_s.total_cmp(&other.hub_cpu_s));
    let middle = &life[(life.len() - 1) / 2];
    let mut figures = Map::new();
    figures.insert("life".to_owned(), middle.figures());
    figures.insert("saturation".to_owned(), saturated.figures());
    figures.insert("queued".to_owned(), queued.figures());
    let put = float(size.puts) * 1000.0 / put.millis;
    figures.insert("raw_put_per_s".to_owned(), round(put));
    figures.insert("fdatasync_p50_ms".to_owned(), round(disk));
    let limit = 100_000.0;
    Report {
        name: "heartbeat",
        work: json!({
            "clusters": size.clusters, "nodes": agent::NODES, "seconds": size.span.0 / 1000,
            "runs": life.len(), "waiting": WAITING,
        }),
        // What is to be small here is the hub's CPU for a span of life.
        runs_ms: life.iter().map(|phase| phase.hub_cpu_s * 1000.0).collect(),
        cpu_s: middle.hub_cpu_s,
        limit: json!({
            "what": "10 us of CPU for an HTTP/2 message, messages/s/core", "figure": limit,
            "distance": round(limit * saturated.cpu_us() / 1e6),
        }),
        // A phase whose work was not right has ended the bench.
        valid: true,
        figures,
    }
    .print();
    Ok(())
}

/// One span of work, judged before it counts.
async fn phase(hub: &Hub, fleet: &mut Fleet, pace: Pace, span: Millis) -> anyhow::Result<Phase> {
    let (cpu, revision) = (measure::threads_cpu(HUB), hub.store.revision().await?);
    let sent = fleet.work(pace, span).await?;
    let hub_cpu_s = measure::threads_cpu(HUB) - cpu;
    let writes = hub.store.revision().await?.0 - revision.0;
    fleet.judge().await?;
    Ok(Phase {
        sent,
        hub_cpu_s,
        writes,
    })
}

/// Jobs that want more than any cluster has.
async fn queue(hub: &Hub) -> anyhow::Result<()> {
    hub.object("Tenant", "research", json!({})).await?;
    let mut users = FederationServiceClient::new(hub.for_users());
    for index in 0..WAITING {
        let job = json!({
            "apiVersion": "meridian.dev/v1alpha1", "kind": "FederatedJob",
            "metadata": {"name": format!("large-{index}"), "namespace": "research"},
            "spec": {
                "workloadClass": "batch-long",
                "roles": [{
                    "name": "worker", "replicas": 2 * agent::NODES, "gpus": 8,
                    "template": {"spec": {"containers": [{"name": "main", "image": "train:1"}]}},
                }],
            },
        });
        let request = v1::SubmitRequest {
            job: job.to_string().into(),
            ..v1::SubmitRequest::default()
        };
        users.submit(request).await?;
    }
    Ok(())
}
