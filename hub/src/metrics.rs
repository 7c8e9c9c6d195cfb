//! Metrics of the hub, in the Prometheus text format.
//!
//! Owns their names and labels: prefix `meridian_`, base units, no unbounded label (job names stay
//! in events and traces). Never computes what it shows.

use std::sync::{Arc, Mutex, PoisonError};

use meridian_policies::model::Contact;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// Labels of a waiting workload.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PendingLabels {
    /// Workload class.
    pub class: String,
    /// The most actionable reason.
    pub reason: String,
}

/// Labels of a pool's GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct PoolLabels {
    /// Cluster.
    pub cluster: String,
    /// Pool.
    pub pool: String,
    /// `total`, `free` or `out`.
    pub state: &'static str,
}

/// Labels of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ClusterLabels {
    /// Cluster.
    pub cluster: String,
}

/// Labels of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct TenantLabels {
    /// Tenant.
    pub tenant: String,
}

/// Labels of a fenced write.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct CommitLabels {
    /// `done`, `conflict`, `deposed` or `error`.
    pub outcome: &'static str,
}

/// Labels of a recorded round.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RecordLabels {
    /// `written`, `dropped` (earlier ones were still being written) or `failed`.
    pub outcome: &'static str,
}

/// Labels that say which build runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
}

/// The hub's own metrics. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    /// Where they are registered, with those of the store.
    pub registry: Arc<Mutex<Registry>>,
    /// Gangs that wait.
    pub pending: Family<PendingLabels, Gauge>,
    /// Seconds from submission to the decision.
    pub wait: Histogram,
    /// GPUs of each pool, whole cards.
    pub pool_gpus: Family<PoolLabels, Gauge>,
    /// Seconds since each agent was heard.
    pub heartbeat_age: Family<ClusterLabels, Gauge>,
    /// How well each agent is heard: 0 ready, 1 suspect, 2 unreachable, 3 lost.
    pub contact: Family<ClusterLabels, Gauge>,
    /// Fenced writes.
    pub commits: Family<CommitLabels, Counter>,
    /// Placements that were told to make room for others.
    pub preemptions: Counter,
    /// Parts of budgets that were told to be spent.
    pub budget_alerts: Counter,
    /// How much of its budget each tenant has spent this month, in percent.
    pub budget_spent_percent: Family<TenantLabels, Gauge>,
    /// Seconds that one decision took.
    pub decide: Histogram,
    /// Plans that the independent check threw away: a defect.
    pub violations: Counter,
    /// Rounds that were to be recorded.
    pub rounds_recorded: Family<RecordLabels, Counter>,
    /// 1 while this replica leads.
    pub leading: Gauge,
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            registry: Arc::new(Mutex::new(Registry::with_prefix("meridian"))),
            pending: Family::default(),
            // From a second to about nine days, doubling.
            wait: Histogram::new(exponential_buckets(1.0, 2.0, 20)),
            pool_gpus: Family::default(),
            heartbeat_age: Family::default(),
            contact: Family::default(),
            commits: Family::default(),
            preemptions: Counter::default(),
            budget_alerts: Counter::default(),
            budget_spent_percent: Family::default(),
            // From 10 microseconds to about 10 seconds, doubling.
            decide: Histogram::new(exponential_buckets(0.000_01, 2.0, 20)),
            violations: Counter::default(),
            rounds_recorded: Family::default(),
            leading: Gauge::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&self) {
        let mut all = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let build = Family::<BuildLabels, Gauge>::default();
        build
            .get_or_create(&BuildLabels {
                version: env!("CARGO_PKG_VERSION"),
            })
            .set(1);
        all.register("build_info", "Which build runs", build);
        all.register(
            "pending_workloads",
            "Gangs that wait, by class and reason",
            self.pending.clone(),
        );
        all.register(
            "wait_seconds",
            "From submission to the decision",
            self.wait.clone(),
        );
        all.register(
            "pool_gpus",
            "GPUs of each pool, by state",
            self.pool_gpus.clone(),
        );
        all.register(
            "agent_heartbeat_age_seconds",
            "Since each agent was heard",
            self.heartbeat_age.clone(),
        );
        all.register(
            "agent_contact",
            "How each agent is heard: 0 ready, 1 suspect, 2 unreachable, 3 lost",
            self.contact.clone(),
        );
        all.register(
            "commits",
            "Writes under the leader's fence",
            self.commits.clone(),
        );
        all.register(
            "preemptions",
            "Placements that were told to make room for others",
            self.preemptions.clone(),
        );
        self.register_budgets(&mut all);
        all.register(
            "decide_seconds",
            "Time of one decision",
            self.decide.clone(),
        );
        all.register(
            "plan_violations",
            "Decisions that panicked, and plans that the check threw away",
            self.violations.clone(),
        );
        all.register(
            "rounds_recorded",
            "Rounds that were to be recorded: look when many are dropped or any failed",
            self.rounds_recorded.clone(),
        );
        all.register(
            "leading",
            "1 while this replica leads",
            self.leading.clone(),
        );
    }

    fn register_budgets(&self, all: &mut Registry) {
        all.register(
            "budget_alerts",
            "Parts of budgets that were told to be spent",
            self.budget_alerts.clone(),
        );
        all.register(
            "budget_spent_percent",
            "How much of its budget each tenant has spent this month",
            self.budget_spent_percent.clone(),
        );
    }

    /// Everything, as text.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        let all = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        prometheus_client::encoding::text::encode(&mut text, &all)?;
        Ok(text)
    }
}

/// Contact as a number that grows as it gets worse.
#[must_use]
pub const fn contact_number(contact: Contact) -> i64 {
    match contact {
        Contact::Ready => 0,
        Contact::Suspect => 1,
        Contact::Unreachable => 2,
        Contact::Lost => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_encode_with_the_prefix() {
        let metrics = Metrics::default();
        metrics
            .commits
            .get_or_create(&CommitLabels { outcome: "done" })
            .inc();
        let text = metrics.encode().expect("writes to a string");
        assert!(
            text.contains("meridian_commits_total{outcome=\"done\"} 1"),
            "{text}"
        );
        assert!(text.contains("meridian_build_info{version="));
    }
}
