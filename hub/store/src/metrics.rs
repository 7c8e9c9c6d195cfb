//! What the store costs: count, errors and time of every call, by its reason.
//!
//! Owns the metrics `meridian_store_*` and the tracing span around each call. Never changes an
//! answer.

use std::future::Future;

use async_trait::async_trait;
use bytes::Bytes;
use meridian_api::ids::Revision;
use meridian_api::units::Millis;
use meridian_runtime::Clock;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use tracing::Instrument as _;

use crate::{
    KeyRange, KeyValue, LeaseId, Operation, Page, SharedStore, Store, StoreError, Txn, TxnResponse,
    WatchStream,
};

/// Seconds, from the clock's resolution to the limit of a call.
const BUCKETS: [f64; 12] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
];

/// A store whose calls are counted and timed.
pub struct Metered {
    store: SharedStore,
    clock: Clock,
    calls: Family<CallLabels, Counter>,
    seconds: Family<OperationLabels, Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    operation: Operation,
    outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabels {
    operation: Operation,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Outcome(&'static str);

impl EncodeLabelValue for Operation {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(&self.label(), encoder)
    }
}

impl EncodeLabelValue for Outcome {
    fn encode(&self, encoder: &mut LabelValueEncoder) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(&self.0, encoder)
    }
}

impl Operation {
    /// Its name in metrics and traces.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::GetObject => "get_object",
            Self::ListObjects => "list_objects",
            Self::WriteObject => "write_object",
            Self::Submit => "submit",
            Self::WatchKind => "watch_kind",
            Self::LoadModel => "load_model",
            Self::WatchModel => "watch_model",
            Self::CommitDecision => "commit_decision",
            Self::CommitLedger => "commit_ledger",
            Self::CommitReport => "commit_report",
            Self::Elect => "elect",
            Self::RenewLease => "renew_lease",
            Self::Beat => "beat",
            Self::AttachAgent => "attach_agent",
            Self::KeepAuthority => "keep_authority",
            Self::ChangeIdentity => "change_identity",
            Self::WatchIdentities => "watch_identities",
            Self::WriteCapacity => "write_capacity",
            Self::Compact => "compact",
            Self::Sweep => "sweep",
            Self::Probe => "probe",
        }
    }
}

impl StoreError {
    /// Its kind in metrics.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Compacted { .. } => "compacted",
            Self::FutureRevision { .. } => "future_revision",
            Self::LeaseNotFound(_) => "lease_not_found",
            Self::Refused(_) => "refused",
            Self::Full(_) => "full",
            Self::Unavailable(_) => "unavailable",
            Self::Corrupt(_) => "corrupt",
            Self::Unsupported { .. } => "unsupported",
        }
    }
}

impl Metered {
    /// Wraps `store` and registers its metrics in a registry whose prefix is `meridian`.
    #[must_use]
    pub fn new(store: SharedStore, clock: Clock, registry: &mut Registry) -> Self {
        let calls = Family::default();
        let seconds: Family<_, _> =
            Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram);
        let registry = registry.sub_registry_with_prefix("store");
        registry.register(
            "calls",
            "Calls to the store by reason and outcome",
            calls.clone(),
        );
        registry.register(
            "call_seconds",
            "Time until the store answered, by reason, to the millisecond",
            seconds.clone(),
        );
        Self {
            store,
            clock,
            calls,
            seconds,
        }
    }

    async fn measure<T>(
        &self,
        operation: Operation,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let span = tracing::info_span!(
            "store",
            store = self.store.name(),
            operation = operation.label(),
            outcome = tracing::field::Empty,
        );
        let began = self.clock.boot();
        let answer = call.instrument(span.clone()).await;
        let outcome = answer.as_ref().map_or_else(StoreError::label, |_| "ok");
        span.record("outcome", outcome);
        let took = u32::try_from(self.clock.boot().since(began).0).unwrap_or(u32::MAX);
        self.calls
            .get_or_create(&CallLabels {
                operation,
                outcome: Outcome(outcome),
            })
            .inc();
        let seconds = f64::from(took) / 1000.0;
        self.seconds
            .get_or_create(&OperationLabels { operation })
            .observe(seconds);
        answer
    }
}

#[async_trait]
impl Store for Metered {
    fn name(&self) -> &'static str {
        self.store.name()
    }

    async fn get(&self, why: Operation, key: Bytes) -> Result<Option<KeyValue>, StoreError> {
        self.measure(why, self.store.get(why, key)).await
    }

    async fn range(
        &self,
        why: Operation,
        range: KeyRange,
        limit: usize,
        at: Option<Revision>,
    ) -> Result<Page, StoreError> {
        self.measure(why, self.store.range(why, range, limit, at))
            .await
    }

    async fn count(&self, why: Operation, range: KeyRange) -> Result<(u64, Revision), StoreError> {
        self.measure(why, self.store.count(why, range)).await
    }

    async fn txn(&self, why: Operation, txn: Txn) -> Result<TxnResponse, StoreError> {
        self.measure(why, self.store.txn(why, txn)).await
    }

    async fn txn_batch(
        &self,
        why: Operation,
        txns: Vec<Txn>,
    ) -> Result<Vec<TxnResponse>, StoreError> {
        self.measure(why, self.store.txn_batch(why, txns)).await
    }

    async fn watch(
        &self,
        why: Operation,
        range: KeyRange,
        from: Revision,
    ) -> Result<WatchStream, StoreError> {
        self.measure(why, self.store.watch(why, range, from)).await
    }

    async fn grant_lease(&self, ttl: Millis) -> Result<LeaseId, StoreError> {
        self.measure(Operation::Elect, self.store.grant_lease(ttl))
            .await
    }

    async fn renew_lease(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.measure(Operation::RenewLease, self.store.renew_lease(lease))
            .await
    }

    async fn revoke_lease(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.measure(Operation::Elect, self.store.revoke_lease(lease))
            .await
    }

    async fn compact(&self, below: Revision) -> Result<(), StoreError> {
        self.measure(Operation::Compact, self.store.compact(below))
            .await
    }

    async fn revision(&self) -> Result<Revision, StoreError> {
        self.measure(Operation::Probe, self.store.revision()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;
    use meridian_api::units::UnixMillis;
    use std::sync::Arc;

    #[tokio::test(start_paused = true)]
    async fn calls_are_counted_by_reason_and_outcome() {
        let clock = Clock::simulated(UnixMillis(0));
        let memory = MemoryStore::new(clock.clone());
        let mut registry = Registry::with_prefix("meridian");
        let store = Metered::new(Arc::new(memory.clone()), clock, &mut registry);
        store
            .get(Operation::GetObject, "k".into())
            .await
            .expect("readable");
        memory.faults().stall();
        store
            .txn(Operation::Submit, Txn::default())
            .await
            .expect_err("stalled");
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encodable");
        for line in [
            "meridian_store_calls_total{operation=\"get_object\",outcome=\"ok\"} 1",
            "meridian_store_calls_total{operation=\"submit\",outcome=\"unavailable\"} 1",
            "meridian_store_call_seconds_sum{operation=\"submit\"} 5.0",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} in:\n{text}"
            );
        }
    }
}
