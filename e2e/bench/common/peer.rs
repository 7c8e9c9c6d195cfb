//! The peer of every durable bench: the same etcd, asked directly.
//!
//! Owns the etcd of a bench, what its metrics say, and plain puts at a given concurrency. Never
//! goes through the hub.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Context as _;
use meridian_api::units::Millis;
use meridian_e2e::etcd::{Durability, Etcd, Members};
use meridian_e2e::process::Harness;
use meridian_e2e::tools::Tool;
use meridian_runtime::{Clock, Tasks};
use meridian_store::{EtcdOptions, EtcdStore, SharedStore};

use super::measure::Stopwatch;

/// etcd shows its metrics at once; a machine under full load needs longer.
const METRICS_WITHIN: Millis = Millis::seconds(20);

/// How many ask at once, and over how many connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Concurrency {
    /// Clients, each with one request on its way.
    pub(crate) clients: usize,
    /// Connections that they share evenly.
    pub(crate) connections: usize,
}

/// A real etcd that waits for the disk.
pub(crate) struct Peer {
    etcd: Etcd,
    url: String,
}

/// What etcd has counted so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    /// Writes of its log that it waited for.
    pub(crate) fsyncs: f64,
    /// CPU seconds of its process.
    pub(crate) cpu_s: f64,
}

/// One run, of the peer or of ours.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// Milliseconds from the first request to the last answer.
    pub(crate) millis: f64,
    /// Milliseconds of each request.
    pub(crate) latencies: Vec<f64>,
    /// Writes of etcd's log.
    pub(crate) fsyncs: f64,
    /// CPU seconds of this process.
    pub(crate) own_cpu_s: f64,
    /// CPU seconds of etcd.
    pub(crate) etcd_cpu_s: f64,
}

/// Address of an etcd.
pub(crate) struct Endpoint(String);

impl Endpoint {
    /// A store of ours on it, connected from the calling runtime.
    pub(crate) async fn store(&self) -> anyhow::Result<SharedStore> {
        let endpoints = [self.0.clone()];
        let store = EtcdStore::connect(&endpoints, Clock::real(), EtcdOptions::default());
        Ok(Arc::new(store.await?))
    }
}

impl Peer {
    /// Starts one member.
    pub(crate) async fn start(harness: &Harness) -> anyhow::Result<Self> {
        let program = Tool::Etcd.locate()?;
        let etcd = Etcd::start(harness, &program, Members::One, Durability::Fsync).await?;
        let url = etcd
            .endpoints()
            .pop()
            .context("one member has an address")?;
        Ok(Self { etcd, url })
    }

    /// Where it is.
    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint(self.url.clone())
    }

    /// What it has counted so far.
    pub(crate) async fn counted(&mut self) -> anyhow::Result<Counted> {
        let url = format!("{}/metrics", self.url);
        let text = self.etcd.member(0).answers(&url, METRICS_WITHIN).await?;
        let text = String::from_utf8_lossy(&text);
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            let value = line.and_then(|value| value.trim().parse::<f64>().ok());
            value.with_context(|| format!("etcd shows no {name}"))
        };
        Ok(Counted {
            fsyncs: value("etcd_disk_wal_fsync_duration_seconds_count ")?,
            cpu_s: value("process_cpu_seconds_total ")?,
        })
    }

    /// Runs `work`, and says what it cost etcd and this process.
    pub(crate) async fn measured(
        &mut self,
        work: impl Future<Output = anyhow::Result<(f64, Vec<f64>)>>,
    ) -> anyhow::Result<Run> {
        let (before, own) = (self.counted().await?, super::measure::own_cpu());
        let (millis, latencies) = work.await?;
        let own_cpu_s = super::measure::own_cpu() - own;
        let after = self.counted().await?;
        Ok(Run {
            millis,
            latencies,
            fsyncs: after.fsyncs - before.fsyncs,
            own_cpu_s,
            etcd_cpu_s: after.cpu_s - before.cpu_s,
        })
    }

    /// Puts `count` values of `bytes` bytes, each under a key of its own.
    pub(crate) async fn puts(
        &mut self,
        count: usize,
        bytes: usize,
        at_once: Concurrency,
    ) -> anyhow::Result<Run> {
        let mut clients = Vec::with_capacity(at_once.connections);
        for _ in 0..at_once.connections {
            clients.push(etcd_client::Client::connect([&self.url], None).await?);
        }
        let value = vec![b'v'; bytes];
        let put = move |client: usize, share: Share| {
            let (mut kv, value) = (clients[client % clients.len()].kv_client(), value.clone());
            async move {
                let mut latencies = Vec::new();
                for index in share {
                    let watch = Stopwatch::start();
                    let key = format!("/raw/objects/{index:08}");
                    kv.put(key, value.clone(), None).await?;
                    latencies.push(watch.millis());
                }
                Ok(latencies)
            }
        };
        self.measured(together(count, at_once.clients, put)).await
    }
}

/// Requests that all clients share: who is free takes the next.
#[derive(Clone)]
pub(crate) struct Share {
    next: Arc<AtomicUsize>,
    count: usize,
}

impl Iterator for Share {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        (index < self.count).then_some(index)
    }
}

/// Lets `clients` tasks do requests `0..count`. Each returns the milliseconds of its own; the
/// answer is the milliseconds of all together, and all of theirs.
pub(crate) async fn together<Work>(
    count: usize,
    clients: usize,
    work: impl Fn(usize, Share) -> Work,
) -> anyhow::Result<(f64, Vec<f64>)>
where
    Work: Future<Output = anyhow::Result<Vec<f64>>> + Send + 'static,
{
    let tasks = Tasks::new();
    let share = Share {
        next: Arc::default(),
        count,
    };
    let (done, mut ends) = tokio::sync::mpsc::channel(clients);
    let watch = Stopwatch::start();
    for client in 0..clients {
        let (work, done) = (work(client, share.clone()), done.clone());
        tasks.spawn_finite(format!("client-{client}"), async move {
            // The receiver outlives every client.
            let _ = done.send(work.await).await;
        });
    }
    drop(done);
    let mut latencies = Vec::with_capacity(count);
    while let Some(end) = ends.recv().await {
        latencies.append(&mut end?);
    }
    Ok((watch.millis(), latencies))
}
