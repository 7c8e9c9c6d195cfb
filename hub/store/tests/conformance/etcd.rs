//! What only a real etcd can show: it is killed, frozen, loses its leader, runs full.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::StreamExt as _;
use meridian_api::ids::Revision;
use meridian_api::units::Millis;
use meridian_runtime::{Clock, Tasks};
use meridian_store::{Compare, EtcdOptions, EtcdStore, Op, Operation, Store as _, StoreError, Txn};

use crate::etcd_harness::Etcd;
use crate::suite::{Bench, bytes, follow, put, text, under};

const WHY: Operation = Operation::Probe;

/// Bookmarks come fast, so that the suite does not wait for them.
fn options() -> EtcdOptions {
    EtcdOptions {
        bookmark_every: Millis(500),
        ..EtcdOptions::default()
    }
}

async fn store_on(etcd: &Etcd) -> Bench {
    let clock = Clock::real();
    let store = EtcdStore::connect(&etcd.urls(), clock.clone(), options()).await;
    Bench {
        store: Arc::new(store.expect("connected")),
        clock,
        tasks: Tasks::new(),
    }
}

/// A new etcd of one member, and a store on it.
pub(crate) async fn bench() -> Option<(Etcd, Bench)> {
    let etcd = Etcd::start(1, &[]).await?;
    let bench = store_on(&etcd).await;
    Some((etcd, bench))
}

/// What writers found out: acknowledged keys, and those whose outcome is unknown.
#[derive(Default)]
struct Written {
    acknowledged: BTreeMap<String, Revision>,
    unknown: usize,
}

/// Writes keys of its own until told to stop; a write whose outcome is unknown is given up.
async fn write_until(bench: &Bench, writer: usize, stop: &AtomicBool) -> Written {
    let mut written = Written::default();
    for n in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let key = format!("w/{writer}-{n}");
        let create = Txn {
            compares: vec![Compare::ModRevision(bytes(&key), Revision(0))],
            success: vec![put(&key, "v")],
            failure: Vec::new(),
        };
        match bench.store.txn(WHY, create).await {
            Ok(done) => {
                assert!(done.succeeded, "{key} was sent twice");
                written.acknowledged.insert(key, done.revision);
            }
            Err(StoreError::Unavailable(_)) => {
                written.unknown += 1;
                bench.clock.sleep(Millis(20)).await;
            }
            Err(other) => panic!("{other}"),
        }
    }
    written
}

/// The last key of a run.
const END: &str = "w/end";

/// Follows `w/` through every break, resuming after the last batch, until it has seen the end.
async fn follow_through(bench: &Bench) -> Vec<(Revision, String)> {
    let mut seen: Vec<(Revision, String)> = Vec::new();
    let mut at = Revision(1);
    loop {
        let watched = bench
            .store
            .watch(WHY, under("w/"), Revision(at.0 + 1))
            .await;
        let Ok(mut stream) = watched else {
            bench.clock.sleep(Millis(20)).await;
            continue;
        };
        loop {
            match bench
                .clock
                .timeout(Millis::seconds(60), stream.next())
                .await
            {
                Ok(Some(Ok(batch))) => {
                    assert!(batch.revision > at, "no revision twice");
                    at = batch.revision;
                    let events = batch.events.iter();
                    seen.extend(events.map(|event| (batch.revision, text(event.key()))));
                    if seen.last().is_some_and(|(_, key)| key == END) {
                        return seen;
                    }
                }
                Ok(Some(Err(StoreError::Unavailable(_))) | None) => break,
                Ok(Some(Err(other))) => panic!("{other}"),
                Err(late) => panic!("the watch hangs at {at}: {late}"),
            }
        }
    }
}

/// Puts a key, as often as it takes: a put that is done twice is still a put.
async fn put_surely(bench: &Bench, key: &str) -> Revision {
    loop {
        let txn = Txn {
            success: vec![put(key, "v")],
            ..Txn::default()
        };
        match bench.store.txn(WHY, txn).await {
            Ok(done) => return done.revision,
            Err(StoreError::Unavailable(_)) => bench.clock.sleep(Millis(20)).await,
            Err(other) => panic!("{other}"),
        }
    }
}

/// Writes and watches while `fault` does its work; nothing acknowledged may be missing in the
/// end, and the watch must have seen exactly what is there.
async fn survives(bench: &Bench, fault: impl Future<Output = ()>) {
    let stop = AtomicBool::new(false);
    let work = async {
        let writers = futures::future::join_all((0..8).map(|n| write_until(bench, n, &stop)));
        let enough = async {
            while bench
                .store
                .count(WHY, under("w/"))
                .await
                .map_or(0, |found| found.0)
                < 100
            {
                bench.clock.sleep(Millis(20)).await;
            }
            fault.await;
            let before = bench
                .store
                .count(WHY, under("w/"))
                .await
                .map_or(0, |found| found.0);
            while bench
                .store
                .count(WHY, under("w/"))
                .await
                .map_or(0, |found| found.0)
                < before + 100
            {
                bench.clock.sleep(Millis(20)).await;
            }
            stop.store(true, Ordering::Relaxed);
        };
        let (written, ()) = tokio::join!(writers, enough);
        put_surely(bench, END).await;
        written
    };
    let (written, seen) = tokio::join!(work, follow_through(bench));
    let there: Vec<(Revision, String)> = {
        let page = bench
            .store
            .range(WHY, under("w/"), 100_000, None)
            .await
            .expect("readable");
        assert!(!page.more);
        let mut entries: Vec<_> = page
            .entries
            .iter()
            .map(|kv| (kv.mod_revision, text(&kv.key)))
            .collect();
        entries.sort();
        entries
    };
    assert_eq!(seen, there, "the watch saw all that is there, once");
    let unknown: usize = written.iter().map(|written| written.unknown).sum();
    let acknowledged: Vec<_> = written
        .iter()
        .flat_map(|written| &written.acknowledged)
        .collect();
    for (key, revision) in &acknowledged {
        assert!(
            there.contains(&(**revision, (*key).clone())),
            "{key} was acknowledged"
        );
    }
    assert!(
        there.len() <= acknowledged.len() + unknown + 1,
        "nothing nobody wrote"
    );
    assert!(acknowledged.len() >= 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_etcd_loses_nothing_acknowledged() {
    let Some((mut etcd, bench)) = bench().await else {
        return;
    };
    let member = &mut etcd.members[0];
    Box::pin(survives(&bench, async {
        for _ in 0..2 {
            member.kill();
            let down = bench.store.get(WHY, bytes("w/0-0")).await;
            assert!(matches!(down, Err(StoreError::Unavailable(_))), "{down:?}");
            member.start();
            member.is_ready().await;
        }
    }))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_lose_their_leader_and_nothing_else() {
    let Some(mut etcd) = Etcd::start(3, &[]).await else {
        return;
    };
    let bench = store_on(&etcd).await;
    let leader = etcd.leader().await;
    let lost = &mut etcd.members[leader];
    Box::pin(survives(&bench, async { lost.kill() })).await;
    // The member comes back and catches up; the store goes on with all three.
    etcd.members[leader].start();
    etcd.members[leader].is_ready().await;
    let newest = put_surely(&bench, "w/after").await;
    assert!(follow(&bench, "w/", newest).await.contains_key("w/after"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_etcd_is_given_up_in_time() {
    let Some((etcd, bench)) = bench().await else {
        return;
    };
    let made = bench.put("a", "1").await;
    let lease = bench
        .store
        .grant_lease(Millis::seconds(60))
        .await
        .expect("granted");
    let mut stream = bench.watch("a", Revision(made.0 + 1)).await;
    etcd.members[0].freeze().await;
    let began = bench.clock.boot();
    let write = Txn {
        success: vec![put("a", "2")],
        ..Txn::default()
    };
    let (read, written, renewed, watched) = tokio::join!(
        bench.store.get(WHY, bytes("a")),
        bench.store.txn(WHY, write),
        bench.store.renew_lease(lease),
        bench.next(&mut stream),
    );
    let took = bench.clock.boot().since(began);
    etcd.members[0].thaw();
    assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
    assert!(
        matches!(written, Err(StoreError::Unavailable(_))),
        "{written:?}"
    );
    assert!(
        matches!(renewed, Err(StoreError::Unavailable(_))),
        "{renewed:?}"
    );
    assert!(
        matches!(watched, Err(StoreError::Unavailable(_))),
        "{watched:?}"
    );
    assert!(took < Millis::seconds(20), "{took}");
    etcd.members[0].is_ready().await;
    assert!(
        bench.get("a").await.is_some(),
        "the same handle works again"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_etcd_stops_writes_but_not_reads() {
    let quota = "--quota-backend-bytes=16777216";
    let Some(etcd) = Etcd::start(1, &[quota]).await else {
        return;
    };
    let bench = store_on(&etcd).await;
    let lease = bench
        .store
        .grant_lease(Millis::seconds(60))
        .await
        .expect("granted");
    let value = "v".repeat(300_000);
    let mut acknowledged = Vec::new();
    let full = loop {
        let key = format!("f/{:03}", acknowledged.len());
        let write = Txn {
            success: vec![put(&key, &value)],
            ..Txn::default()
        };
        match bench.store.txn(WHY, write).await {
            Ok(_) => acknowledged.push(key),
            Err(error) => break error,
        }
        assert!(acknowledged.len() < 200, "the quota has an end");
    };
    assert!(matches!(full, StoreError::Full(_)), "{full:?}");
    let page = bench
        .store
        .range(WHY, under("f/"), 1000, None)
        .await
        .expect("readable");
    let there: Vec<String> = page.entries.iter().map(|kv| text(&kv.key)).collect();
    assert_eq!(there, acknowledged);
    bench
        .store
        .renew_lease(lease)
        .await
        .expect("renewals go on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_prefixes_share_one_etcd_unseen() {
    let Some((etcd, bench)) = bench().await else {
        return;
    };
    let other = EtcdOptions {
        prefix: "/other/".to_owned(),
        ..options()
    };
    let other = EtcdStore::connect(&etcd.urls(), Clock::real(), other)
        .await
        .expect("connected");
    bench.put("a", "ours").await;
    let theirs = Op::Put {
        key: bytes("a"),
        value: bytes("theirs"),
        lease: None,
    };
    other
        .txn(
            WHY,
            Txn {
                success: vec![theirs],
                ..Txn::default()
            },
        )
        .await
        .expect("written");
    assert_eq!(bench.get("a").await.expect("there").value, "ours");
    let page = other
        .range(WHY, under(""), 10, None)
        .await
        .expect("readable");
    assert_eq!(
        page.entries
            .iter()
            .map(|kv| text(&kv.value))
            .collect::<Vec<_>>(),
        ["theirs"]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_list_is_gathered_at_one_revision() {
    let Some((_etcd, bench)) = bench().await else {
        return;
    };
    for chunk in 0..50 {
        let ops = (0..100)
            .map(|n| put(&format!("p/{chunk:02}-{n:02}"), "v"))
            .collect();
        bench
            .txn(Txn {
                success: ops,
                ..Txn::default()
            })
            .await;
    }
    let page = bench
        .store
        .range(WHY, under("p/"), 4_500, None)
        .await
        .expect("readable");
    assert_eq!(
        (page.entries.len(), page.more),
        (4_500, true),
        "more than one request's worth"
    );
    assert!(page.entries.is_sorted_by(|a, b| a.key < b.key));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_etcd_that_is_not_there_is_said_so() {
    let nowhere = ["http://127.0.0.1:1".to_owned()];
    let silent = EtcdStore::connect(&nowhere, Clock::real(), options())
        .await
        .map(|_| ());
    assert!(
        matches!(silent, Err(StoreError::Unavailable(_))),
        "{silent:?}"
    );
    let none = EtcdStore::connect(&[], Clock::real(), options())
        .await
        .map(|_| ());
    assert!(matches!(none, Err(StoreError::Refused(_))), "{none:?}");
    let bad = ["not a url".to_owned()];
    let bad = EtcdStore::connect(&bad, Clock::real(), options())
        .await
        .map(|_| ());
    assert!(matches!(bad, Err(StoreError::Refused(_))), "{bad:?}");
}
