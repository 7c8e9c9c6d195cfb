//! Housekeeping: what has served its time goes.
//!
//! Owns the compaction of old revisions and the end of idempotency records. Never removes what a
//! person made.

use std::convert::Infallible;

use meridian_api::ids::Revision;
use meridian_api::units::{Millis, UnixMillis};
use meridian_runtime::Clock;
use meridian_store::{Compare, Op, Operation, SharedStore, StoreError, keys};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::fence::Commit;
use crate::leadership::Leadership;

/// A submission may be repeated under its key for a day: longer than any client retries, and than
/// a weekend's outage of a pipeline that runs every few hours.
const IDEMPOTENCY_LASTS: Millis = Millis::seconds(24 * 3600);
/// Time between two walks over the records.
const SWEEP_EVERY: Millis = Millis::seconds(3600);
/// Records in one page and one write: one compare and one operation each, below the limit of a
/// transaction.
const SWEEP_PAGE: usize = 50;

/// Forgets revisions older than `history`. Any replica may: compacting twice is no harm.
pub(crate) async fn compact(
    store: SharedStore,
    clock: Clock,
    history: Millis,
    stop: CancellationToken,
) -> Result<(), Infallible> {
    let mut before = None;
    loop {
        tokio::select! {
            () = clock.sleep(history) => {}
            () = stop.cancelled() => return Ok(()),
        }
        if let Some(below) = before
            && let Err(error) = store.compact(below).await
        {
            tracing::warn!(%error, "old revisions could not be compacted");
        }
        before = match store.revision().await {
            Ok(revision) => Some(revision),
            Err(error) => {
                tracing::warn!(%error, "the store's revision could not be read");
                None
            }
        };
    }
}

/// Ends idempotency records that are a day old, on the leader.
pub(crate) async fn sweep(
    store: SharedStore,
    clock: Clock,
    leadership: Leadership,
    stop: CancellationToken,
) -> Result<(), Infallible> {
    loop {
        tokio::select! {
            () = clock.sleep(SWEEP_EVERY) => {}
            () = stop.cancelled() => return Ok(()),
        }
        match sweep_once(&store, clock.wall(), &leadership).await {
            Ok(0) => {}
            Ok(ended) => tracing::info!(ended, "idempotency records ended"),
            Err(error) => tracing::warn!(%error, "idempotency records could not be swept"),
        }
    }
}

#[derive(Deserialize)]
struct Record {
    at: UnixMillis,
}

/// One walk; returns how many records ended.
async fn sweep_once(
    store: &SharedStore,
    now: UnixMillis,
    leadership: &Leadership,
) -> Result<usize, StoreError> {
    let mut ended = 0;
    let mut range = keys::idempotencies();
    loop {
        let Some(fence) = leadership.fence() else {
            return Ok(ended);
        };
        let page = store
            .range(Operation::Sweep, range.clone(), SWEEP_PAGE, None)
            .await?;
        let (mut compares, mut ops) = (Vec::new(), Vec::new());
        for entry in &page.entries {
            let record = serde_json::from_slice::<Record>(&entry.value);
            if record.is_ok_and(|record| now.since(record.at) >= IDEMPOTENCY_LASTS) {
                compares.push(Compare::ModRevision(entry.key.clone(), entry.mod_revision));
                ops.push(Op::Delete {
                    key: entry.key.clone(),
                });
            }
        }
        let count = ops.len();
        if count > 0 {
            match fence
                .write(store.as_ref(), Operation::Sweep, compares, ops)
                .await?
            {
                Commit::Done(..) => ended += count,
                // Somebody was quicker; the next walk sees what is left.
                Commit::Conflict(Revision(_)) => {}
                Commit::Deposed => return Ok(ended),
            }
        }
        match page.entries.last() {
            Some(last) if page.more => range = range.after(&last.key),
            _ => return Ok(ended),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use meridian_runtime::Random;
    use meridian_store::{MemoryStore, Txn};

    use super::*;
    use crate::leadership::{Election, Leader, LeadershipTerms};

    #[tokio::test(start_paused = true)]
    async fn a_day_old_record_ends_and_a_younger_one_stays() {
        let clock = Clock::simulated(UnixMillis(1_700_000_000_000));
        let store: SharedStore = Arc::new(MemoryStore::new(clock.clone()));
        let day_ago = UnixMillis(clock.wall().0 - 24 * 3_600_000);
        for (hash, at) in [("old", day_ago), ("young", clock.wall())] {
            let op = Op::Put {
                key: keys::idempotency("nlp", hash),
                value: format!("{{\"at\":{}}}", at.0).into(),
                lease: None,
            };
            let txn = Txn {
                success: vec![op],
                ..Txn::default()
            };
            store.txn(Operation::Submit, txn).await.expect("stored");
        }
        let (election, mut leadership) = Election::new(
            Arc::clone(&store),
            clock.clone(),
            Random::seeded(1),
            LeadershipTerms::default(),
            Leader::default(),
        );
        let tasks = meridian_runtime::Tasks::new();
        tasks.spawn("election", election.run(tasks.cancelled()));
        leadership.changed().await;
        let ended = sweep_once(&store, clock.wall(), &leadership).await;
        assert_eq!(ended, Ok(1));
        let left = store
            .range(Operation::Probe, keys::idempotencies(), 10, None)
            .await;
        let left = left.expect("readable").entries;
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].key, keys::idempotency("nlp", "young"));
        tasks.cancel();
        tasks.finished().await.expect("ends well");
    }
}
