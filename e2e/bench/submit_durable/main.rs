//! Bench `submit-durable`: jobs acknowledged after their commit, beside raw puts into the same
//! etcd.
//!
//! Owns the order of the runs: ours and the peer's in turn, each pair on a fresh etcd that waits
//! for the disk. Everything shares this machine: clients, hub and etcd.

#[allow(dead_code, reason = "each bench uses its part of what is common")]
#[path = "../common/mod.rs"]
mod common;
mod jobs;
mod load;

use std::sync::Arc;

use meridian_e2e::process::Harness;
use meridian_runtime::{Clock, Tasks};
use meridian_store::{EmbeddedOptions, EmbeddedStore, SharedStore};
use serde_json::{Map, Value, json};

use crate::common::measure::{self, median, quantile};
use crate::common::peer::{Concurrency, Peer, Run};
use crate::common::{Arguments, Report, float, round};
use crate::load::Way;

/// Requests of one client alone, where latency is what counts.
const ALONE: usize = 500;
const ONE: Concurrency = Concurrency {
    clients: 1,
    connections: 1,
};

/// How much is done, and how many at once.
#[derive(Clone, Copy)]
struct Size {
    jobs: usize,
    at_once: Concurrency,
    alone: usize,
}

/// Runs by what was run.
#[derive(Default)]
struct Results {
    stream: Vec<Run>,
    keyed: Vec<Run>,
    one_by_one: Vec<Run>,
    unary: Vec<Run>,
    embedded: Vec<Run>,
    put: Vec<Run>,
    alone: Vec<Run>,
    put_alone: Vec<Run>,
    fdatasync_ms: Vec<f64>,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::read()?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(run(arguments))
}

async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let size = if arguments.quick {
        Size {
            jobs: 1_000,
            at_once: Concurrency {
                clients: 100,
                connections: 10,
            },
            alone: 20,
        }
    } else {
        Size {
            jobs: 100_000,
            at_once: Concurrency {
                clients: 1_000,
                connections: 100,
            },
            alone: ALONE,
        }
    };
    let mut results = Results::default();
    for turn in 0..arguments.runs {
        results.turn(turn, size).await?;
        let last = |runs: &[Run]| runs.last().map_or(0.0, |run| per_second(run, size.jobs));
        println!(
            "run {}, jobs/s: stream {:.0}, keyed {:.0}, one by one {:.0}, unary {:.0}, \
             embedded {:.0}; raw put {:.0}",
            turn + 1,
            last(&results.stream),
            last(&results.keyed),
            last(&results.one_by_one),
            last(&results.unary),
            last(&results.embedded),
            last(&results.put),
        );
    }
    results.report(size).print();
    Ok(())
}

impl Results {
    /// One run of each. Who goes first changes from turn to turn.
    async fn turn(&mut self, turn: usize, size: Size) -> anyhow::Result<()> {
        let bytes = jobs::job(0).to_string().len();
        let harness = Harness::new();
        self.fdatasync_ms
            .push(measure::fdatasync_p50_ms(&harness.folder("disk"))?);
        if turn % 2 == 1 {
            self.put.push(raw(size.jobs, bytes, size.at_once).await?);
        }
        self.stream
            .push(ours(Way::Stream, size.jobs, size.at_once).await?);
        if turn.is_multiple_of(2) {
            self.put.push(raw(size.jobs, bytes, size.at_once).await?);
        }
        self.keyed
            .push(ours(Way::KeyedStream, size.jobs, size.at_once).await?);
        self.one_by_one
            .push(ours(Way::OneByOne, size.jobs, size.at_once).await?);
        self.unary
            .push(ours(Way::Unary, size.jobs, size.at_once).await?);
        self.embedded.push(embedded(size.jobs, size.at_once).await?);
        self.alone.push(ours(Way::OneByOne, size.alone, ONE).await?);
        self.put_alone.push(raw(size.alone, bytes, ONE).await?);
        Ok(())
    }

    fn report(self, size: Size) -> Report {
        let stream = middle(&self.stream);
        let rate = |runs: &[Run]| per_second(middle(runs), size.jobs);
        let (ours, put) = (rate(&self.stream), rate(&self.put));
        let disk = median(&self.fdatasync_ms);
        let figures = json!({
            "jobs_per_s": round(ours),
            "p50_ms": round(median(&stream.latencies)),
            "p99_ms": round(quantile(&stream.latencies, 0.99)),
            "fsyncs_per_job": round(stream.fsyncs / float(size.jobs)),
            "hub_and_clients_us_per_job": round(stream.own_cpu_s * 1e6 / float(size.jobs)),
            "etcd_us_per_job": round(stream.etcd_cpu_s * 1e6 / float(size.jobs)),
            "raw_put_per_s": round(put),
            "raw_put_p50_ms": round(median(&middle(&self.put).latencies)),
            "raw_put_p99_ms": round(quantile(&middle(&self.put).latencies, 0.99)),
            "raw_put_etcd_us": round(middle(&self.put).etcd_cpu_s * 1e6 / float(size.jobs)),
            "ratio_to_raw_put": round(ours / put),
            "keyed_per_s": round(rate(&self.keyed)),
            "one_by_one_per_s": round(rate(&self.one_by_one)),
            "unary_per_s": round(rate(&self.unary)),
            "embedded_per_s": round(rate(&self.embedded)),
            "alone_p50_ms": round(median(&middle(&self.alone).latencies)),
            "raw_put_alone_p50_ms": round(median(&middle(&self.put_alone).latencies)),
            "fdatasync_p50_ms": round(disk),
        });
        let figures = match figures {
            Value::Object(figures) => figures,
            _ => Map::new(),
        };
        // One fdatasync per batch is what the disk asks for; everything else is CPU.
        let per_fsync = float(size.jobs) / stream.fsyncs.max(1.0);
        let disk_bound = per_fsync * 1000.0 / disk;
        Report {
            name: "submit-durable",
            work: json!({
                "jobs": size.jobs, "job_bytes": jobs::job(0).to_string().len(),
                "clients": size.at_once.clients, "connections": size.at_once.connections,
                "runs": self.stream.len(), "clusters": 0,
            }),
            runs_ms: self.stream.iter().map(|run| run.millis).collect(),
            cpu_s: stream.own_cpu_s + stream.etcd_cpu_s,
            limit: json!({
                "what": "fdatasync, at the jobs per write of this run, jobs/s",
                "figure": round(disk_bound), "distance": round(disk_bound / ours),
            }),
            // A run whose work was not right has ended the bench.
            valid: true,
            figures,
        }
    }
}

fn per_second(run: &Run, jobs: usize) -> f64 {
    float(jobs) * 1000.0 / run.millis
}

/// The run of median time.
fn middle(runs: &[Run]) -> &Run {
    let mut sorted: Vec<&Run> = runs.iter().collect();
    sorted.sort_by(|one, other| one.millis.total_cmp(&other.millis));
    sorted[(sorted.len() - 1) / 2]
}

async fn raw(count: usize, bytes: usize, at_once: Concurrency) -> anyhow::Result<Run> {
    let harness = Harness::new();
    let mut peer = Peer::start(&harness).await?;
    peer.puts(count, bytes, at_once).await
}

/// A fresh hub on a fresh etcd; judged before its time counts.
async fn ours(way: Way, jobs: usize, at_once: Concurrency) -> anyhow::Result<Run> {
    let harness = Harness::new();
    let mut peer = Peer::start(&harness).await?;
    let hub = jobs::hub(peer.endpoint().store().await?).await?;
    let mut loaded = None;
    let work = async {
        let done = load::submit(&hub, jobs, at_once, way).await?;
        let times = done.times.clone();
        loaded = Some(done);
        Ok(times)
    };
    let run = peer.measured(work).await?;
    if let Some(loaded) = loaded {
        loaded.judge(&hub.store, jobs).await?;
    }
    hub.stop().await?;
    Ok(run)
}

/// The same without etcd: the hub's own store, which waits for the disk too.
async fn embedded(jobs: usize, at_once: Concurrency) -> anyhow::Result<Run> {
    let (harness, tasks) = (Harness::new(), Tasks::new());
    let file = harness.folder("hub").join("meridian.db");
    let options = EmbeddedOptions::default();
    let store = EmbeddedStore::open(&file, Clock::real(), &tasks, options)?;
    let store: SharedStore = Arc::new(store);
    let hub = jobs::hub(Arc::clone(&store)).await?;
    let cpu = measure::own_cpu();
    let loaded = load::submit(&hub, jobs, at_once, Way::Stream).await?;
    let own_cpu_s = measure::own_cpu() - cpu;
    loaded.judge(&store, jobs).await?;
    hub.stop().await?;
    tasks.cancel();
    tasks.finished().await?;
    let (millis, latencies) = loaded.times;
    Ok(Run {
        millis,
        latencies,
        own_cpu_s,
        ..Run::default()
    })
}
