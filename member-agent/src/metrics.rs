//! The agent's metrics.
//!
//! Owns their names. Every one is registered before the first is counted, so a dashboard never
//! misses a line. Never measures by itself.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::fences::RefusalReason;

/// Why an order was refused, as a label.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: String,
}

/// Handles of all metrics; cheap to clone.
#[derive(Clone, Debug)]
pub struct AgentMetrics {
    /// Placements accepted.
    pub accepted: Counter,
    /// Sessions that were welcomed.
    pub sessions: Counter,
    /// 1 while a hub answers.
    pub attached: Gauge,
    /// Requests to the cluster that failed or were not answered.
    pub api_failures: Counter,
    /// Writes to the state folder that failed.
    pub disk_failures: Counter,
    refusals: Family<Reason, Counter>,
}

impl AgentMetrics {
    /// Registers everything under `meridian_agent_`.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            accepted: Counter::default(),
            sessions: Counter::default(),
            attached: Gauge::default(),
            api_failures: Counter::default(),
            disk_failures: Counter::default(),
            refusals: Family::default(),
        };
        for reason in RefusalReason::ALL {
            drop(metrics.refusals.get_or_create(&Reason {
                reason: reason.to_string(),
            }));
        }
        let registry = registry.sub_registry_with_prefix("meridian_agent");
        let help = "Placements accepted from the hub";
        registry.register("placements_accepted", help, metrics.accepted.clone());
        let help = "Sessions with a hub that were welcomed";
        registry.register("sessions", help, metrics.sessions.clone());
        registry.register(
            "attached",
            "1 while a hub answers",
            metrics.attached.clone(),
        );
        let help = "Requests to the cluster that failed or were not answered";
        registry.register("cluster_api_failures", help, metrics.api_failures.clone());
        let help = "Writes to the state folder that failed and were tried again";
        registry.register("disk_failures", help, metrics.disk_failures.clone());
        let help = "Orders refused, by reason";
        registry.register("orders_refused", help, metrics.refusals.clone());
        metrics
    }

    /// Counts a refusal.
    pub fn refused(&self, reason: RefusalReason) {
        self.refusals
            .get_or_create(&Reason {
                reason: reason.to_string(),
            })
            .inc();
    }
}

impl Default for AgentMetrics {
    /// Metrics that nobody reads.
    fn default() -> Self {
        Self::register(&mut Registry::default())
    }
}
