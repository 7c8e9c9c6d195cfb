//! What every store must do, once, for all of them.
//!
//! Each function is one promise of the `Store` trait, run over each implementation by `main.rs`.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::StreamExt as _;
use meridian_api::ids::Revision;
use meridian_api::units::Millis;
use meridian_runtime::{Clock, Tasks};
use meridian_store::{
    Compare, Event, KeyRange, KeyValue, LeaseId, MAX_TXN_BYTES, MAX_TXN_OPERATIONS,
    MAX_VALUE_BYTES, Op, Operation, SharedStore, StoreError, Txn, TxnResponse, WatchBatch,
    WatchStream,
};

/// Longest wait for what must come.
const DEADLINE: Millis = Millis::seconds(60);
const WHY: Operation = Operation::Probe;

/// A store under test and the clock that it runs by.
pub(crate) struct Bench {
    pub(crate) store: SharedStore,
    pub(crate) clock: Clock,
    pub(crate) tasks: Tasks,
}

impl Bench {
    /// Ends the store: after this another one may open its file.
    pub(crate) async fn close(self) {
        drop(self.store);
        self.tasks.cancel();
        self.tasks.finished().await.expect("no task died");
    }

    pub(crate) async fn txn(&self, txn: Txn) -> TxnResponse {
        self.store.txn(WHY, txn).await.expect("done")
    }

    pub(crate) async fn put(&self, key: &str, value: &str) -> Revision {
        self.txn(Txn {
            success: vec![put(key, value)],
            ..Txn::default()
        })
        .await
        .revision
    }

    async fn delete(&self, key: &str) -> Revision {
        self.txn(Txn {
            success: vec![delete(key)],
            ..Txn::default()
        })
        .await
        .revision
    }

    pub(crate) async fn get(&self, key: &str) -> Option<KeyValue> {
        self.store.get(WHY, bytes(key)).await.expect("readable")
    }

    async fn keys(&self, prefix: &str, at: Option<Revision>) -> Vec<String> {
        let range = under(prefix);
        let page = self
            .store
            .range(WHY, range, 1000, at)
            .await
            .expect("readable");
        page.entries.iter().map(|kv| text(&kv.key)).collect()
    }

    pub(crate) async fn watch(&self, prefix: &str, from: Revision) -> WatchStream {
        let range = under(prefix);
        self.store.watch(WHY, range, from).await.expect("watched")
    }

    pub(crate) async fn next(&self, stream: &mut WatchStream) -> Result<WatchBatch, StoreError> {
        let next = self.clock.timeout(DEADLINE, stream.next()).await;
        next.expect("in time").expect("the stream goes on")
    }

    /// The next batch that has events.
    pub(crate) async fn next_events(&self, stream: &mut WatchStream) -> WatchBatch {
        loop {
            let batch = self.next(stream).await.expect("no error");
            if !batch.events.is_empty() {
                return batch;
            }
        }
    }

    async fn refused(&self, txn: Txn) {
        let before = self.store.revision().await.expect("readable");
        let answer = self.store.txn(WHY, txn).await;
        assert!(matches!(answer, Err(StoreError::Refused(_))), "{answer:?}");
        assert_eq!(
            self.store.revision().await.expect("readable"),
            before,
            "nothing was done"
        );
    }
}

/// Keys with the prefix; every key of these tests when it is empty.
pub(crate) fn under(prefix: &str) -> KeyRange {
    if prefix.is_empty() {
        return KeyRange {
            start: Bytes::from_static(b"\0"),
            end: Bytes::from_static(b"\xff"),
        };
    }
    KeyRange::prefix(prefix.to_owned())
}

pub(crate) fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

pub(crate) fn text(bytes: &Bytes) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

pub(crate) fn put(key: &str, value: &str) -> Op {
    Op::Put {
        key: bytes(key),
        value: bytes(value),
        lease: None,
    }
}

fn put_under(key: &str, lease: LeaseId) -> Op {
    Op::Put {
        key: bytes(key),
        value: bytes("leased"),
        lease: Some(lease),
    }
}

fn delete(key: &str) -> Op {
    Op::Delete { key: bytes(key) }
}

fn get(key: &str) -> Op {
    Op::Get { key: bytes(key) }
}

fn only(op: Op) -> Txn {
    Txn {
        success: vec![op],
        ..Txn::default()
    }
}

pub(crate) async fn a_request_that_changes_something_raises_the_revision_by_one(bench: &Bench) {
    let first = bench.store.revision().await.expect("readable");
    assert_eq!(first, Revision(1), "of an empty store");
    let both = Txn {
        success: vec![put("a", "1"), put("b", "1")],
        ..Txn::default()
    };
    let answer = bench.txn(both).await;
    assert_eq!((answer.succeeded, answer.revision), (true, Revision(2)));
    let (a, b) = (
        bench.get("a").await.expect("a"),
        bench.get("b").await.expect("b"),
    );
    assert_eq!(
        (a.mod_revision, b.mod_revision),
        (Revision(2), Revision(2)),
        "one revision"
    );
    let idle = Txn {
        success: vec![get("a"), delete("no such key")],
        ..Txn::default()
    };
    assert_eq!(
        bench.txn(idle).await.revision,
        Revision(2),
        "nothing was changed"
    );
    assert_eq!(
        bench.put("a", "1").await,
        Revision(3),
        "the same value is a change"
    );
    assert_eq!(bench.delete("a").await, Revision(4));
    assert_eq!(bench.store.revision().await, Ok(Revision(4)));
}

pub(crate) async fn a_key_counts_its_changes_since_it_was_made(bench: &Bench) {
    let made = bench.put("a", "1").await;
    let changed = bench.put("a", "2").await;
    let kv = bench.get("a").await.expect("there");
    let expected = KeyValue {
        key: bytes("a"),
        value: bytes("2"),
        create_revision: made,
        mod_revision: changed,
        version: 2,
        lease: None,
    };
    assert_eq!(kv, expected);
    bench.delete("a").await;
    assert_eq!(bench.get("a").await, None);
    let again = bench.put("a", "3").await;
    let kv = bench.get("a").await.expect("there");
    assert_eq!(
        (kv.create_revision, kv.mod_revision, kv.version),
        (again, again, 1)
    );
}

pub(crate) async fn compares_choose_the_branch(bench: &Bench) {
    let create = Txn {
        compares: vec![Compare::ModRevision(bytes("a"), Revision(0))],
        success: vec![put("a", "mine")],
        failure: vec![get("a"), get("b")],
    };
    let made = bench.txn(create.clone()).await;
    assert!(made.succeeded && made.reads.is_empty());
    let lost = bench.txn(create).await;
    assert!(!lost.succeeded);
    assert_eq!(lost.reads.len(), 2, "one answer for each read, in order");
    assert_eq!(
        lost.reads[0].as_ref().map(|kv| text(&kv.value)),
        Some("mine".to_owned())
    );
    assert_eq!(
        (lost.reads[1].as_ref(), lost.revision),
        (None, made.revision)
    );
    let changed = bench.put("a", "changed").await;
    let holds = [
        (Compare::ModRevision(bytes("a"), changed), true),
        (Compare::ModRevision(bytes("a"), made.revision), false),
        (Compare::CreateRevision(bytes("a"), made.revision), true),
        (Compare::CreateRevision(bytes("a"), changed), false),
        (Compare::CreateRevision(bytes("b"), Revision(0)), true),
        (Compare::ModRevision(bytes("b"), changed), false),
    ];
    for (compare, expected) in holds {
        let txn = Txn {
            compares: vec![compare.clone()],
            ..Txn::default()
        };
        assert_eq!(bench.txn(txn).await.succeeded, expected, "{compare:?}");
    }
    let one_fails = Txn {
        compares: vec![
            Compare::ModRevision(bytes("a"), changed),
            Compare::ModRevision(bytes("a"), made.revision),
        ],
        success: vec![put("c", "never")],
        failure: Vec::new(),
    };
    assert!(!bench.txn(one_fails).await.succeeded, "all must hold");
    assert_eq!(bench.get("c").await, None);
}

pub(crate) async fn a_read_sees_the_operations_before_it(bench: &Bench) {
    bench.put("b", "old").await;
    let txn = Txn {
        success: vec![get("a"), put("a", "1"), get("a"), delete("b"), get("b")],
        ..Txn::default()
    };
    let answer = bench.txn(txn).await;
    let seen: Vec<_> = answer
        .reads
        .iter()
        .map(|kv| kv.as_ref().map(|kv| kv.mod_revision))
        .collect();
    assert_eq!(seen, [None, Some(answer.revision), None]);
}

pub(crate) async fn what_crosses_a_limit_is_refused_whole(bench: &Bench) {
    let puts = |count: usize| (0..count).map(|n| put(&format!("k{n:03}"), "v")).collect();
    let most = Txn {
        success: puts(MAX_TXN_OPERATIONS),
        ..Txn::default()
    };
    assert!(
        bench.txn(most).await.succeeded,
        "the limit itself is allowed"
    );
    let compare = Compare::ModRevision(bytes("k"), Revision(0));
    let compared = Txn {
        compares: vec![compare],
        success: puts(MAX_TXN_OPERATIONS),
        ..Txn::default()
    };
    bench.refused(compared).await;
    bench
        .refused(Txn {
            failure: puts(MAX_TXN_OPERATIONS + 1),
            ..Txn::default()
        })
        .await;

    let value = |bytes: usize| Bytes::from(vec![b'v'; bytes]);
    let large = |key: &str, size: usize| Op::Put {
        key: bytes(key),
        value: value(size),
        lease: None,
    };
    assert!(
        bench
            .txn(only(large("large", MAX_VALUE_BYTES)))
            .await
            .succeeded
    );
    bench
        .refused(only(large("large", MAX_VALUE_BYTES + 1)))
        .await;
    let half = MAX_TXN_BYTES / 2;
    bench
        .refused(Txn {
            success: vec![large("a", half), large("b", half)],
            ..Txn::default()
        })
        .await;

    bench
        .refused(Txn {
            success: vec![put("a", "1"), put("a", "2")],
            ..Txn::default()
        })
        .await;
    bench
        .refused(Txn {
            success: vec![put("a", "1"), delete("a")],
            ..Txn::default()
        })
        .await;
    bench
        .refused(Txn {
            failure: vec![delete("a"), delete("a")],
            ..Txn::default()
        })
        .await;
    bench.refused(only(put("", "v"))).await;
}

pub(crate) async fn a_range_is_read_in_pages_in_order(bench: &Bench) {
    for key in ["r/b", "r/c", "r/a", "r/a/x", "q", "s"] {
        bench.put(key, key).await;
    }
    assert_eq!(bench.keys("r/", None).await, ["r/a", "r/a/x", "r/b", "r/c"]);
    let range = KeyRange::prefix("r/");
    let page = bench
        .store
        .range(WHY, range.clone(), 2, None)
        .await
        .expect("readable");
    assert!(page.more);
    assert_eq!(
        page.revision,
        bench.store.revision().await.expect("readable")
    );
    let rest = range.after(&page.entries[1].key);
    let page = bench
        .store
        .range(WHY, rest, 2, None)
        .await
        .expect("readable");
    assert!(!page.more, "exactly two are left");
    assert_eq!(page.entries.len(), 2);
    let one = KeyRange::key("r/a");
    let page = bench
        .store
        .range(WHY, one, 10, None)
        .await
        .expect("readable");
    assert_eq!(page.entries.len(), 1, "a key's range is that key alone");
    let backwards = KeyRange {
        start: bytes("z"),
        end: bytes("a"),
    };
    let page = bench
        .store
        .range(WHY, backwards, 10, None)
        .await
        .expect("readable");
    assert!(page.entries.is_empty() && !page.more);
    let none = bench.store.range(WHY, range, 0, None).await;
    assert!(matches!(none, Err(StoreError::Refused(_))), "{none:?}");
}

pub(crate) async fn pages_at_a_revision_ignore_later_writes(bench: &Bench) {
    for n in 0..20 {
        bench.put(&format!("p/{n:02}"), "old").await;
    }
    let mut range = KeyRange::prefix("p/");
    let first = bench
        .store
        .range(WHY, range.clone(), 7, None)
        .await
        .expect("readable");
    let mut found = first.entries;
    let mut round = 0;
    loop {
        // Between any two pages: a change, a removal and a new key, before and behind the reader.
        bench.put(&format!("p/{:02}", 2 + round), "new").await;
        bench.put(&format!("p/{:02}", 15 - round), "new").await;
        bench.delete(&format!("p/{:02}", 18 + round)).await;
        bench.put(&format!("p/1{round}/late"), "new").await;
        round += 1;
        range = range.after(&found[found.len() - 1].key);
        let at = Some(first.revision);
        let page = bench
            .store
            .range(WHY, range.clone(), 7, at)
            .await
            .expect("readable");
        assert_eq!(page.revision, first.revision);
        found.extend(page.entries);
        if !page.more {
            break;
        }
    }
    let names: Vec<String> = found.iter().map(|kv| text(&kv.key)).collect();
    let expected: Vec<String> = (0..20).map(|n| format!("p/{n:02}")).collect();
    assert_eq!(names, expected);
    assert!(found.iter().all(|kv| kv.value == "old" && kv.version == 1));
}

pub(crate) async fn a_revision_that_is_not_there_is_said_so(bench: &Bench) {
    let newest = bench.put("a", "1").await;
    let later = Revision(newest.0 + 1);
    let future = StoreError::FutureRevision {
        requested: later,
        newest,
    };
    let range = KeyRange::prefix("a");
    assert_eq!(
        bench.store.range(WHY, range.clone(), 1, Some(later)).await,
        Err(future)
    );
    assert!(matches!(
        bench.store.compact(later).await,
        Err(StoreError::FutureRevision { .. })
    ));
    let much_later = Revision(newest.0 + 2);
    let watched = bench.store.watch(WHY, range, much_later).await.map(|_| ());
    assert_eq!(
        watched,
        Err(StoreError::FutureRevision {
            requested: much_later,
            newest
        })
    );
}

pub(crate) async fn compaction_forgets_what_is_older(bench: &Bench) {
    bench.put("a", "1").await;
    bench.put("gone", "1").await;
    let old = bench.put("a", "2").await;
    bench.delete("gone").await;
    let kept = bench.put("a", "3").await;
    let newest = bench.put("b", "1").await;
    bench.store.compact(kept).await.expect("compacted");
    bench.store.compact(kept).await.expect("twice is no error");
    bench.store.compact(old).await.expect("nor is less");
    let compacted = StoreError::Compacted {
        requested: old,
        oldest: kept,
    };
    let range = KeyRange::prefix("a");
    let read = bench.store.range(WHY, range.clone(), 1, Some(old)).await;
    assert_eq!(read, Err(compacted.clone()));
    let at = |at| bench.store.range(WHY, range.clone(), 1, Some(at));
    assert_eq!(at(kept).await.expect("kept").entries[0].value, "3");
    assert_eq!(bench.keys("gone", Some(kept)).await, Vec::<String>::new());
    assert_eq!(
        bench.get("a").await.expect("there").version,
        3,
        "the newest version stays"
    );
    // Refused at once or by the stream's first answer: either way the caller lists again.
    match bench.store.watch(WHY, range.clone(), old).await {
        Err(error) => assert_eq!(error, compacted),
        Ok(mut stream) => assert_eq!(bench.next(&mut stream).await, Err(compacted)),
    }
    let mut stream = bench.watch("", kept).await;
    assert_eq!(bench.next_events(&mut stream).await.revision, kept);
    assert_eq!(bench.next_events(&mut stream).await.revision, newest);
}

pub(crate) async fn a_watch_resumes_where_it_was(bench: &Bench) {
    let first = bench.put("w/a", "1").await;
    let mut stream = bench.watch("w/", first).await;
    let made = bench.next_events(&mut stream).await;
    let Event::Put {
        current,
        previous: None,
    } = &made.events[0]
    else {
        panic!("{made:?}")
    };
    assert_eq!((made.revision, current.version), (first, 1));
    let second = bench.put("w/a", "2").await;
    let changed = bench.next_events(&mut stream).await;
    let Event::Put {
        current,
        previous: Some(previous),
    } = &changed.events[0]
    else {
        panic!("{changed:?}")
    };
    assert_eq!(
        (text(&current.value), text(&previous.value)),
        ("2".into(), "1".into())
    );
    drop(stream);
    bench.put("other", "1").await;
    let third = bench.delete("w/a").await;
    let fourth = bench.put("w/a", "3").await;
    let mut stream = bench.watch("w/", Revision(second.0 + 1)).await;
    let removed = bench.next_events(&mut stream).await;
    let Event::Delete {
        key,
        previous: Some(previous),
        revision,
    } = &removed.events[0]
    else {
        panic!("{removed:?}")
    };
    assert_eq!(
        (text(key), text(&previous.value), *revision),
        ("w/a".into(), "2".into(), third)
    );
    let again = bench.next_events(&mut stream).await;
    let Event::Put {
        current,
        previous: None,
    } = &again.events[0]
    else {
        panic!("{again:?}")
    };
    assert_eq!((again.revision, current.version), (fourth, 1));
}

pub(crate) async fn a_revision_comes_in_one_batch_in_key_order(bench: &Bench) {
    let first = bench.put("w/50", "old").await;
    let mut stream = bench.watch("w/", Revision(first.0 + 1)).await;
    let mut ops: Vec<Op> = (0..100)
        .rev()
        .map(|n| put(&format!("w/{n:02}"), "v"))
        .collect();
    ops.push(put("other", "v"));
    let answer = bench
        .txn(Txn {
            success: ops,
            ..Txn::default()
        })
        .await;
    let batch = bench.next_events(&mut stream).await;
    assert_eq!(batch.revision, answer.revision);
    let keys: Vec<String> = batch.events.iter().map(|event| text(event.key())).collect();
    let expected: Vec<String> = (0..100).map(|n| format!("w/{n:02}")).collect();
    assert_eq!(
        keys, expected,
        "all of them, in order, and nothing of another range"
    );
}

pub(crate) async fn large_revisions_come_whole(bench: &Bench) {
    let mut stream = bench.watch("w/", Revision(2)).await;
    let value = "v".repeat(60_000);
    for round in 0..8 {
        let ops = (0..8).map(|n| put(&format!("w/{n}"), &value)).collect();
        let answer = bench
            .txn(Txn {
                success: ops,
                ..Txn::default()
            })
            .await;
        assert_eq!(answer.revision, Revision(2 + round));
    }
    for round in 0..8 {
        let batch = bench.next_events(&mut stream).await;
        assert_eq!(
            (batch.revision, batch.events.len()),
            (Revision(2 + round), 8)
        );
    }
}

pub(crate) async fn a_watcher_far_behind_catches_up(bench: &Bench) {
    const WRITES: u64 = 60;
    let mut stream = bench.watch("w/", Revision(2)).await;
    let value = "v".repeat(MAX_VALUE_BYTES);
    for n in 0..WRITES {
        // Every second one is in the watched range.
        let key = if n % 2 == 0 {
            format!("w/{}", n % 10)
        } else {
            "other".to_owned()
        };
        bench.put(&key, &value).await;
    }
    for n in (0..WRITES).step_by(2) {
        let batch = bench.next_events(&mut stream).await;
        assert_eq!((batch.revision, batch.events.len()), (Revision(2 + n), 1));
        let Event::Put { current, previous } = &batch.events[0] else {
            panic!("put")
        };
        assert_eq!((current.version, previous.is_some()), (n / 10 + 1, n >= 10));
    }
}

pub(crate) async fn no_event_is_lost_or_doubled_under_load(bench: &Bench) {
    const WRITERS: usize = 8;
    const WRITES: usize = 25;
    let mut stream = bench.watch("w/", Revision(2)).await;
    let writer = |writer: usize| async move {
        let mut done = Vec::new();
        for n in 0..WRITES {
            // Half of the keys are shared by all writers.
            let key = if n % 2 == 0 {
                format!("w/{n}")
            } else {
                format!("w/{writer}-{n}")
            };
            done.push((bench.put(&key, &format!("{writer}-{n}")).await, key));
        }
        done
    };
    let watcher = async {
        let mut seen = Vec::new();
        while seen.len() < WRITERS * WRITES {
            let batch = bench.next_events(&mut stream).await;
            for event in batch.events {
                assert_eq!(event.revision(), batch.revision);
                seen.push((batch.revision, text(event.key())));
            }
        }
        seen
    };
    let writers = futures::future::join_all((0..WRITERS).map(writer));
    let (done, seen) = tokio::join!(writers, watcher);
    let mut done: Vec<_> = done.into_iter().flatten().collect();
    done.sort();
    assert_eq!(seen, done, "in order of revision, each once");
}

pub(crate) async fn a_quiet_watch_gets_bookmarks(bench: &Bench) {
    bench.put("w/a", "1").await;
    let mut stream = bench.watch("w/", Revision(2)).await;
    bench.next_events(&mut stream).await;
    let elsewhere = bench.put("other", "1").await;
    let mut last = Revision(2);
    while last < elsewhere {
        let batch = bench.next(&mut stream).await.expect("no error");
        assert!(batch.events.is_empty(), "nothing happened in the range");
        last = batch.revision;
    }
    assert_eq!(last, elsewhere);
    let next = bench.put("w/a", "2").await;
    assert_eq!(bench.next_events(&mut stream).await.revision, next);
}

pub(crate) async fn a_lease_that_is_not_renewed_takes_its_keys_along(bench: &Bench) {
    let lease = bench
        .store
        .grant_lease(Millis::seconds(2))
        .await
        .expect("granted");
    let ops = vec![
        put_under("l/a", lease),
        put_under("l/b", lease),
        put("l/c", "free"),
    ];
    let made = bench
        .txn(Txn {
            success: ops,
            ..Txn::default()
        })
        .await
        .revision;
    assert_eq!(bench.get("l/a").await.expect("there").lease, Some(lease));
    let mut stream = bench.watch("l/", Revision(made.0 + 1)).await;
    // A key that is put again without the lease lives on.
    let freed = bench.put("l/b", "free").await;
    assert_eq!(bench.next_events(&mut stream).await.revision, freed);
    let ended = bench.next_events(&mut stream).await;
    let keys: Vec<String> = ended.events.iter().map(|event| text(event.key())).collect();
    assert_eq!(keys, ["l/a"]);
    assert!(
        matches!(
            &ended.events[0],
            Event::Delete {
                previous: Some(_),
                ..
            }
        ),
        "{ended:?}"
    );
    assert_eq!(bench.keys("l/", None).await, ["l/b", "l/c"]);
    let gone = Err(StoreError::LeaseNotFound(lease));
    assert_eq!(bench.store.renew_lease(lease).await, gone);
    assert_eq!(bench.store.revoke_lease(lease).await, gone);
    let put = bench.store.txn(WHY, only(put_under("l/d", lease))).await;
    assert_eq!(put.map(|_| ()), gone);
}

pub(crate) async fn a_renewed_lease_goes_on(bench: &Bench) {
    let lease = bench
        .store
        .grant_lease(Millis::seconds(3))
        .await
        .expect("granted");
    bench.txn(only(put_under("l/a", lease))).await;
    for _ in 0..4 {
        bench.clock.sleep(Millis::seconds(1)).await;
        bench.store.renew_lease(lease).await.expect("renewed");
    }
    assert!(
        bench.get("l/a").await.is_some(),
        "four seconds on, the key is there"
    );
    let other = bench
        .store
        .grant_lease(Millis::seconds(60))
        .await
        .expect("granted");
    assert_ne!(other, lease);
    bench.txn(only(put_under("l/b", other))).await;
    let before = bench.store.revision().await.expect("readable");
    let mut stream = bench.watch("l/b", Revision(before.0 + 1)).await;
    bench.store.revoke_lease(other).await.expect("revoked");
    assert!(
        bench.get("l/b").await.is_none(),
        "a revoked lease takes its keys along"
    );
    assert!(matches!(
        bench.next_events(&mut stream).await.events[0],
        Event::Delete { .. }
    ));
}

pub(crate) async fn a_batch_is_independent_transactions_in_one_revision(bench: &Bench) {
    bench.put("taken", "1").await;
    let create = |key: &str| Txn {
        compares: vec![Compare::ModRevision(bytes(key), Revision(0))],
        success: vec![put(key, "mine"), get(key)],
        failure: vec![get(key)],
    };
    let before = bench.store.revision().await.expect("readable");
    let mut stream = bench.watch("", Revision(before.0 + 1)).await;
    let txns = vec![create("a"), create("taken"), create("b"), Txn::default()];
    let answers = bench.store.txn_batch(WHY, txns).await.expect("done");
    let succeeded: Vec<bool> = answers.iter().map(|answer| answer.succeeded).collect();
    assert_eq!(succeeded, [true, false, true, true]);
    let revision = Revision(before.0 + 1);
    assert!(
        answers.iter().all(|answer| answer.revision == revision),
        "{answers:?}"
    );
    assert_eq!(
        answers[1].reads[0].as_ref().map(|kv| text(&kv.value)),
        Some("1".into())
    );
    assert_eq!(
        answers[2].reads[0].as_ref().map(|kv| kv.mod_revision),
        Some(revision)
    );
    let batch = bench.next_events(&mut stream).await;
    let keys: Vec<String> = batch.events.iter().map(|event| text(event.key())).collect();
    assert_eq!(keys, ["a", "b"]);
    assert_eq!(bench.store.txn_batch(WHY, Vec::new()).await, Ok(Vec::new()));
    assert_eq!(bench.store.revision().await, Ok(revision));
}

pub(crate) async fn a_batch_of_dependent_transactions_is_refused(bench: &Bench) {
    bench.put("k", "1").await;
    let before = bench.store.revision().await.expect("readable");
    let writes = only(put("k", "2"));
    let compares = Compare::ModRevision(bytes("k"), before);
    for other in [
        only(put("k", "3")),
        only(get("k")),
        Txn {
            compares: vec![compares],
            ..Txn::default()
        },
        Txn {
            failure: vec![delete("k")],
            ..Txn::default()
        },
    ] {
        let answer = bench
            .store
            .txn_batch(WHY, vec![writes.clone(), other.clone()])
            .await;
        assert!(
            matches!(answer, Err(StoreError::Refused(_))),
            "{other:?}: {answer:?}"
        );
    }
    let many = (0..=MAX_TXN_OPERATIONS)
        .map(|n| only(put(&format!("m/{n}"), "v")))
        .collect();
    let answer = bench.store.txn_batch(WHY, many).await;
    assert!(matches!(answer, Err(StoreError::Refused(_))), "{answer:?}");
    assert_eq!(bench.store.revision().await, Ok(before), "nothing was done");
}

pub(crate) async fn a_count_is_of_the_keys_that_are_there(bench: &Bench) {
    for n in 0..12 {
        bench.put(&format!("c/{n}"), "v").await;
    }
    bench.put("c/1", "again").await;
    let revision = bench.delete("c/2").await;
    let counted = bench.store.count(WHY, KeyRange::prefix("c/")).await;
    assert_eq!(counted, Ok((11, revision)));
    assert_eq!(
        bench.store.count(WHY, KeyRange::prefix("d/")).await,
        Ok((0, revision))
    );
}

/// The state of a range after following a watch from the start.
pub(crate) async fn follow(
    bench: &Bench,
    prefix: &str,
    to: Revision,
) -> BTreeMap<String, KeyValue> {
    let mut stream = bench.watch(prefix, Revision(2)).await;
    let mut state = BTreeMap::new();
    let mut at = Revision(1);
    while at < to {
        let batch = bench.next(&mut stream).await.expect("no error");
        assert!(
            batch.revision > at || batch.events.is_empty(),
            "order of revisions"
        );
        at = batch.revision;
        for event in batch.events {
            match event {
                Event::Put { current, previous } => {
                    let before = state.insert(text(&current.key), current);
                    assert_eq!(before, previous);
                }
                Event::Delete { key, previous, .. } => {
                    assert_eq!(state.remove(&text(&key)), previous);
                }
            }
        }
    }
    state
}
