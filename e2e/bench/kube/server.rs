//! What the API server says of itself: its CPU, and the requests that it has answered.
//!
//! Owns the reading of its metrics. Fake nodes' own beats are left out of the requests.

use anyhow::Context as _;
use meridian_e2e::member::MemberCluster;

/// Totals since the API server started.
#[derive(Clone, Copy)]
pub(crate) struct Server {
    /// CPU seconds.
    pub(crate) cpu_s: f64,
    /// Requests that read.
    pub(crate) reads: f64,
    /// Requests that write.
    pub(crate) writes: f64,
}

impl Server {
    /// Asks for them.
    pub(crate) async fn ask(cluster: &MemberCluster) -> anyhow::Result<Self> {
        let request = http::Request::get("/metrics").body(Vec::new())?;
        let metrics = cluster.client().request_text(request).await?;
        let mut all = Self {
            cpu_s: f64::NAN,
            reads: 0.0,
            writes: 0.0,
        };
        for line in metrics.lines() {
            if let Some(cpu) = line.strip_prefix("process_cpu_seconds_total ") {
                all.cpu_s = cpu.parse()?;
            }
            let Some(labels) = line.strip_prefix("apiserver_request_total{") else {
                continue;
            };
            let (labels, count) = labels.rsplit_once("} ").context("a metric has a value")?;
            let has = |label: &str| labels.contains(label);
            if has("verb=\"WATCH\"") || has("resource=\"nodes\"") && has("verb=\"PATCH\"") {
                continue;
            }
            let count: f64 = count.parse()?;
            if has("verb=\"GET\"") || has("verb=\"LIST\"") {
                all.reads += count;
            } else {
                all.writes += count;
            }
        }
        Ok(all)
    }
}
