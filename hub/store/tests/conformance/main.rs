//! One conformance suite over the three stores, and what each of them must survive.
//!
//! The memory and embedded stores run on simulated time; the embedded one once more as it runs in
//! a hub, on threads; etcd is a real one, a new one for each test.

mod crash;
mod etcd;
#[path = "../etcd_harness/mod.rs"]
mod etcd_harness;
mod random;
mod suite;

use std::sync::Arc;

use meridian_api::units::UnixMillis;
use meridian_runtime::{Clock, Tasks};
use meridian_store::{Durability, EmbeddedOptions, EmbeddedStore, Execution, MemoryStore};
use suite::Bench;
use tempfile::TempDir;

fn simulated_clock() -> Clock {
    Clock::simulated(UnixMillis(1_500_000_000_000))
}

fn memory() -> Bench {
    let clock = simulated_clock();
    let store = Arc::new(MemoryStore::new(clock.clone()));
    Bench {
        store,
        clock,
        tasks: Tasks::new(),
    }
}

fn embedded(folder: &TempDir, clock: Clock, options: EmbeddedOptions) -> Bench {
    let (path, tasks) = (folder.path().join("store"), Tasks::new());
    let store = EmbeddedStore::open(&path, clock.clone(), &tasks, options);
    Bench {
        store: Arc::new(store.expect("opened")),
        clock,
        tasks,
    }
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

const SIMULATED: EmbeddedOptions = EmbeddedOptions {
    durability: Durability::None,
    execution: Execution::Inline,
};

macro_rules! conformance {
    ($($promise:ident,)*) => {
        mod memory_store {
            $(#[tokio::test(start_paused = true)]
            async fn $promise() {
                crate::suite::$promise(&crate::memory()).await;
            })*
        }
        mod embedded_inline {
            $(#[tokio::test(start_paused = true)]
            async fn $promise() {
                let folder = crate::folder();
                let clock = crate::simulated_clock();
                let bench = crate::embedded(&folder, clock, crate::SIMULATED);
                crate::suite::$promise(&bench).await;
            })*
        }
        mod embedded_on_threads {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                let folder = crate::folder();
                let clock = meridian_runtime::Clock::real();
                let bench = crate::embedded(&folder, clock, Default::default());
                crate::suite::$promise(&bench).await;
            })*
        }
        mod etcd_server {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $promise() {
                let Some((_server, bench)) = crate::etcd::bench().await else { return };
                crate::suite::$promise(&bench).await;
            })*
        }
    };
}

conformance! {
    a_request_that_changes_something_raises_the_revision_by_one,
    a_key_counts_its_changes_since_it_was_made,
    compares_choose_the_branch,
    a_read_sees_the_operations_before_it,
    what_crosses_a_limit_is_refused_whole,
    a_range_is_read_in_pages_in_order,
    pages_at_a_revision_ignore_later_writes,
    a_revision_that_is_not_there_is_said_so,
    compaction_forgets_what_is_older,
    a_watch_resumes_where_it_was,
    a_revision_comes_in_one_batch_in_key_order,
    large_revisions_come_whole,
    a_watcher_far_behind_catches_up,
    no_event_is_lost_or_doubled_under_load,
    a_quiet_watch_gets_bookmarks,
    a_lease_that_is_not_renewed_takes_its_keys_along,
    a_renewed_lease_goes_on,
    a_batch_is_independent_transactions_in_one_revision,
    a_batch_of_dependent_transactions_is_refused,
    a_count_is_of_the_keys_that_are_there,
}
