//! Promise: a watch misses nothing and repeats nothing; who cannot follow is told to list again,
//! and no writer ever waits for a watcher.

use meridian_runtime::clock::Millis;
use meridian_store::{Revision, Store as _};
use serde_json::json;

use crate::fixture::{
    ALL_WIDGETS, GADGETS, MERGE, Server, WIDGETS, gadget_object, version, widget_object,
};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

#[tokio::test(start_paused = true)]
async fn changes_arrive_in_order_with_their_objects() {
    let server = Server::new();
    let first = server.make("old", 1).await;
    let from = version(&first);
    let mut watch = server
        .watch(&format!("{WIDGETS}?watch=1&resourceVersion={from}"))
        .await;
    let made = server.make("a", 1).await;
    assert_eq!(watch.expect("ADDED").await.object, made);
    let one = format!("{WIDGETS}/a");
    let patched = server
        .patch(&one, MERGE, &json!({"spec": {"size": 2}}))
        .await
        .ok();
    assert_eq!(watch.expect("MODIFIED").await.object, patched);
    let status = json!({"status": {"phase": "Ready"}});
    let patched = server
        .patch(&format!("{one}/status"), MERGE, &status)
        .await
        .ok();
    assert_eq!(watch.expect("MODIFIED").await.object, patched);
    server
        .post(GADGETS, &gadget_object("other-kind"))
        .await
        .ok();
    let elsewhere = "/apis/test.dev/v1/namespaces/other/widgets";
    server
        .post(elsewhere, &widget_object("other-namespace", 1))
        .await
        .ok();
    server.delete(&one).await.ok();
    let gone = watch.expect("DELETED").await;
    assert_eq!(gone.object["status"]["phase"], "Ready");
    assert!(gone.version() > version(&patched));
}

#[tokio::test(start_paused = true)]
async fn a_watch_resumes_where_it_broke_off() {
    let server = Server::new();
    let start = version(&server.make("a", 1).await);
    for name in ["b", "c", "d"] {
        server.make(name, 1).await;
    }
    let path = format!("{WIDGETS}?watch=1&timeoutSeconds=5&resourceVersion=");
    let all = server.watch(&format!("{path}{start}")).await.rest().await;
    assert_eq!(
        all.iter()
            .map(crate::fixture::Event::name)
            .collect::<Vec<_>>(),
        ["b", "c", "d"]
    );
    for (index, event) in all.iter().enumerate() {
        let rest = server
            .watch(&format!("{path}{}", event.version()))
            .await
            .rest()
            .await;
        assert_eq!(rest, all[index + 1..]);
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_version_a_watch_begins_with_what_is_there() {
    let server = Server::new();
    let made = server.make("a", 1).await;
    let mut watch = server.watch(&format!("{ALL_WIDGETS}?watch=1")).await;
    assert_eq!(watch.expect("ADDED").await.object, made);
    let next = server.make("b", 1).await;
    assert_eq!(watch.expect("ADDED").await.object, next);
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_each_minute_and_at_the_timeout() {
    let server = Server::new();
    server.make("a", 1).await;
    let path = format!("{WIDGETS}?watch=1&resourceVersion=2&timeoutSeconds=130");
    let begun = server.clock.boot();
    let events = server
        .watch(&format!("{path}&allowWatchBookmarks=true"))
        .await
        .rest()
        .await;
    assert_eq!(server.clock.boot().since(begun), Millis::seconds(130));
    let kinds: Vec<&str> = events.iter().map(|event| event.what.as_str()).collect();
    assert_eq!(kinds, ["BOOKMARK"; 3]);
    assert_eq!(events[2].object["kind"], "Widget");
    assert!(events[2].version() >= 2);
    assert!(server.watch(&path).await.rest().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_is_as_new_as_the_store_even_when_others_write() {
    let server = Server::new();
    let from = version(&server.make("a", 1).await);
    let query = "watch=1&allowWatchBookmarks=true&timeoutSeconds=30";
    let watch = server
        .watch(&format!("{WIDGETS}?{query}&resourceVersion={from}"))
        .await;
    let elsewhere = "/apis/test.dev/v1/namespaces/other/widgets";
    let other = server.post(elsewhere, &widget_object("b", 1)).await.ok();
    let events = watch.rest().await;
    assert_eq!(events.len(), 1);
    assert!(events[0].version() >= version(&other));
}

#[tokio::test(start_paused = true)]
async fn an_object_that_leaves_the_selector_is_deleted_and_comes_back_added() {
    let server = Server::new();
    let from = version(&server.make("a", 1).await);
    let query = format!("watch=1&resourceVersion={from}&labelSelector=app%3Dx");
    let mut watch = server.watch(&format!("{WIDGETS}?{query}")).await;
    let label = async |value: serde_json::Value| {
        let patch = json!({"metadata": {"labels": {"app": value}}});
        server
            .patch(&format!("{WIDGETS}/a"), MERGE, &patch)
            .await
            .ok()
    };
    label(json!("y")).await;
    label(json!("x")).await;
    watch.expect("ADDED").await;
    server
        .patch(
            &format!("{WIDGETS}/a"),
            MERGE,
            &json!({"spec": {"size": 2}}),
        )
        .await
        .ok();
    watch.expect("MODIFIED").await;
    let left = label(json!(null)).await;
    assert_eq!(watch.expect("DELETED").await.version(), version(&left));
    label(json!("x")).await;
    watch.expect("ADDED").await;
    server.delete(&format!("{WIDGETS}/a")).await.ok();
    watch.expect("DELETED").await;
    let query = format!("watch=1&timeoutSeconds=1&resourceVersion={from}");
    let path = format!("{ALL_WIDGETS}?{query}&fieldSelector=metadata.name%3Dnone");
    assert!(server.watch(&path).await.rest().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_watch_list_ends_its_beginning_with_a_marked_bookmark() {
    let server = Server::new();
    server.make("a", 1).await;
    let b = server.make("b", 1).await;
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                 &allowWatchBookmarks=true";
    let mut watch = server.watch(&format!("{WIDGETS}?{query}")).await;
    assert_eq!(watch.expect("ADDED").await.name(), "a");
    assert_eq!(watch.expect("ADDED").await.object, b);
    let mark = watch.expect("BOOKMARK").await;
    assert_eq!(
        mark.object["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    assert!(mark.version() >= version(&b));
    server.delete(&format!("{WIDGETS}/a")).await.ok();
    watch.expect("DELETED").await;
    let events = "/api/v1/events?watch=1&timeoutSeconds=1&sendInitialEvents=true\
                  &resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    assert_eq!(server.watch(events).await.rest().await.len(), 1);
    for bad in [
        "watch=1&sendInitialEvents=true",
        "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
    ] {
        server.get(&format!("{WIDGETS}?{bad}")).await.failed(422);
    }
}

#[tokio::test(start_paused = true)]
async fn a_table_watch_sends_tables() {
    let server = Server::new();
    server.make("a", 1).await;
    let mut watch = server.watch_as(&format!("{WIDGETS}?watch=1"), TABLE).await;
    let row = watch.expect("ADDED").await.object;
    assert_eq!(row["kind"], "Table");
    assert_eq!(row["rows"][0]["cells"], json!(["a", 1, null, "0s"]));
    server
        .patch(
            &format!("{WIDGETS}/a"),
            MERGE,
            &json!({"spec": {"size": 2}}),
        )
        .await
        .ok();
    let row = watch.expect("MODIFIED").await.object;
    assert_eq!(row["rows"][0]["cells"][1], 2);
    assert_eq!(row["columnDefinitions"][0]["name"], "Name");
}

#[tokio::test(start_paused = true)]
async fn a_compacted_version_is_expired_in_an_error_event_and_a_future_one_is_refused() {
    let server = Server::new();
    let old = version(&server.make("a", 1).await);
    server.make("b", 1).await;
    let newest = server.store.revision().await.unwrap();
    // Another replica: its cache begins at its own start, the rest must come from the store.
    let late = server.replica();
    let query = format!("watch=1&timeoutSeconds=9&resourceVersion={old}");
    let events = late.watch(&format!("{WIDGETS}?{query}")).await.rest().await;
    assert_eq!(
        events
            .iter()
            .map(crate::fixture::Event::name)
            .collect::<Vec<_>>(),
        ["b"]
    );
    server.store.compact(newest).await.unwrap();
    let mut watch = late
        .watch(&format!("{WIDGETS}?watch=1&resourceVersion=1"))
        .await;
    let error = watch.expect("ERROR").await.object;
    assert_eq!(
        (&error["code"], &error["reason"]),
        (&json!(410), &json!("Expired"))
    );
    assert!(watch.next().await.is_none());
    let future = late
        .get(&format!("{WIDGETS}?watch=1&resourceVersion=99999"))
        .await
        .failed(504);
    assert!(
        future["message"]
            .as_str()
            .unwrap()
            .starts_with("Too large resource version")
    );
}

#[tokio::test(start_paused = true)]
async fn a_watcher_that_falls_too_far_behind_is_told_to_list_again() {
    let server = Server::new();
    let from = version(&server.make("a", 1).await);
    let path = format!("{WIDGETS}?watch=1&resourceVersion={from}");
    let mut slow = server.watch(&path).await;
    server.make("b", 1).await;
    assert_eq!(slow.expect("ADDED").await.name(), "b");
    // More events than the ring holds, none of which is read.
    let mut changed = Revision(0);
    for n in 0..4_200 {
        let status = json!({"phase": n.to_string()});
        changed = crate::equality::write_status(&server.store, "b", &status).await;
    }
    let mut last = None;
    while let Some(event) = slow.next().await {
        last = Some(event);
    }
    let last = last.expect("an event");
    assert_eq!(
        (last.what.as_str(), &last.object["code"]),
        ("ERROR", &json!(410))
    );
    // One who comes now with an old version reads the store's own history.
    let query = format!("{WIDGETS}?watch=1&timeoutSeconds=60&resourceVersion={from}");
    let all = server.watch(&query).await.rest().await;
    assert_eq!(all.len(), 4_201);
    assert_eq!(
        all.last().map(crate::fixture::Event::version),
        Some(changed.0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_broken_watch_of_the_store_loses_nothing() {
    let server = Server::new();
    let from = version(&server.make("a", 1).await);
    let mut watch = server
        .watch(&format!("{WIDGETS}?watch=1&resourceVersion={from}"))
        .await;
    server.make("b", 1).await;
    assert_eq!(watch.expect("ADDED").await.name(), "b");
    server.store.faults().refuse();
    server.clock.sleep(Millis::seconds(2)).await;
    server.store.faults().heal();
    server.make("c", 1).await;
    assert_eq!(watch.expect("ADDED").await.name(), "c");
}

#[tokio::test(start_paused = true)]
async fn the_server_s_end_ends_its_watches() {
    let server = Server::new();
    server.make("a", 1).await;
    let mut watch = server.watch(&format!("{WIDGETS}?watch=1")).await;
    watch.expect("ADDED").await;
    server.tasks.cancel();
    assert_eq!(watch.next().await, None);
    assert_eq!(server.tasks.finished().await, Ok(()));
}
