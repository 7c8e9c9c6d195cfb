//! Bench `memory`: what a hub holds for a long queue and a full fleet, and how soon it is ready
//! after a restart.
//!
//! Owns the figures. The store is in this process and is filled before anything is measured: what
//! is counted is what the process grows by when a hub loads it, decides and says why everything
//! waits. No agent attaches, so the capacity is the one last written down. The size is the full
//! one, or as much of it as half of the machine's free memory holds.

#[allow(dead_code, reason = "each bench uses its part of what is common")]
#[path = "../common/mod.rs"]
mod common;
mod world;

use std::sync::Arc;

use anyhow::Context as _;
use meridian_api::units::Millis;
use meridian_proto::v1;
use meridian_proto::v1::federation_service_client::FederationServiceClient;
use meridian_runtime::Clock;
use meridian_store::{MemoryStore, SharedStore};
use serde_json::{Map, json};

use crate::common::hub::Hub;
use crate::common::measure::{self, Stopwatch, median};
use crate::common::{Arguments, Report, float, round};
use crate::world::Size;

/// What one job may take of store and hub together while the size is chosen: a little more than it
/// does, with the snapshot of a decision.
const BYTES_PER_JOB: u64 = 5_000;
/// A hub has decided on the largest queue within this, also on a busy machine.
const READY_WITHIN: Millis = Millis::seconds(600);
/// Between two looks: far below what a restart takes, and no burden to a hub that is busy with one.
const LOOK_EVERY: Millis = Millis(100);
/// After the first decision, views, metrics and perhaps another decision follow: the least that the
/// hub takes in this time is what it keeps, the most of its life what it needs.
const SETTLES_IN: Millis = Millis::seconds(30);

/// What one restart came to.
struct Restart {
    ready_ms: f64,
    /// Bytes between two decisions.
    kept: u64,
    /// Bytes at most.
    most: u64,
    loaded: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::read()?;
    let size = if arguments.quick {
        Size::QUICK
    } else {
        Size::FULL.within(measure::available_bytes() / 2 / BYTES_PER_JOB)
    };
    let store: SharedStore = Arc::new(MemoryStore::new(Clock::real()));
    world::fill(&store, size, Clock::real().wall()).await?;
    let filled = measure::rss_bytes();
    let mut restarts = Vec::new();
    let cpu = measure::own_cpu();
    for _ in 0..arguments.runs {
        restarts.push(restart(&store, size, filled).await?);
    }
    let cpu_s = (measure::own_cpu() - cpu) / float(arguments.runs);
    let runs_ms: Vec<f64> = restarts.iter().map(|run| run.ready_ms).collect();
    // Memory that a hub leaves behind may serve the next: only the first one grows from nothing.
    let first = &restarts[0];
    let per_job = megabytes(first.kept) * 1e6 / float(size.jobs());
    let mut figures = Map::new();
    figures.insert("bytes_per_job".to_owned(), round(per_job));
    figures.insert("hub_mb".to_owned(), round(megabytes(first.kept)));
    figures.insert("hub_most_mb".to_owned(), round(megabytes(first.most)));
    figures.insert("store_mb".to_owned(), round(megabytes(filled)));
    let limit = f64::from(world::LEAST_BYTES);
    Report {
        name: "memory",
        work: json!({
            "queued": size.queued, "running": size.running, "clusters": size.clusters,
            "shapes": world::SHAPES, "tenants": world::TENANTS, "runs": arguments.runs,
        }),
        cpu_s,
        limit: json!({
            "what": "identity, tenant, class, priority and age of a job, bytes", "figure": limit,
            "distance": round(per_job / limit),
        }),
        valid: restarts.iter().all(|run| run.loaded) && median(&runs_ms) > 0.0,
        runs_ms,
        figures,
    }
    .print();
    Ok(())
}

/// Starts a hub over the store, waits until it has decided on everything, and ends it.
async fn restart(store: &SharedStore, size: Size, filled: u64) -> anyhow::Result<Restart> {
    let clock = Clock::real();
    let watch = Stopwatch::start();
    let hub = Hub::over(Arc::clone(store)).await?;
    let mut client = FederationServiceClient::new(hub.for_users());
    let ready = async {
        loop {
            let request = v1::QueueRequest {
                limit: 1,
                ..v1::QueueRequest::default()
            };
            // Busy, or it has not caught up with its own store.
            let total = client.queue(request).await.map(|it| it.into_inner().total);
            if total.is_ok_and(|total| total as usize == size.queued) {
                break;
            }
            clock.sleep(LOOK_EVERY).await;
        }
    };
    let ready = clock.timeout(READY_WITHIN, ready).await;
    ready.context("the hub never told of the whole queue")?;
    let ready_ms = watch.millis();
    let settled = clock.boot().after(SETTLES_IN);
    let mut kept = u64::MAX;
    while clock.boot() < settled {
        clock.sleep(LOOK_EVERY).await;
        kept = kept.min(measure::rss_bytes());
    }
    let kept = kept.saturating_sub(filled);
    let most = (measure::peak_rss_mib() << 20).saturating_sub(filled);
    // The next decision may be under way.
    let clusters = async {
        loop {
            let asked = client.capacity(v1::CapacityRequest::default()).await;
            if let Ok(capacity) = asked {
                break capacity.into_inner().pools.len();
            }
            clock.sleep(LOOK_EVERY).await;
        }
    };
    let clusters = clock.timeout(READY_WITHIN, clusters).await?;
    hub.stop().await?;
    Ok(Restart {
        ready_ms,
        kept,
        most,
        loaded: clusters == size.clusters,
    })
}

fn megabytes(bytes: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "memory of one machine")]
    let bytes = bytes as f64;
    bytes / 1e6
}
