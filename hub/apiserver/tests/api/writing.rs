//! Promise: objects are made, changed and removed under optimistic concurrency; what changes
//! nothing writes nothing; spec and status do not touch each other.

use meridian_apiserver::{Idempotency, Request, WriteOptions};
use meridian_store::{Store as _, keys};
use serde_json::{Value, json};

use crate::fixture::{
    ALL_WIDGETS, GADGETS, JSON_PATCH, MERGE, Server, WIDGETS, gadget_object, version, widget_object,
};

fn path(name: &str) -> String {
    format!("{WIDGETS}/{name}")
}

#[tokio::test(start_paused = true)]
async fn an_object_lives_from_create_to_delete() {
    let server = Server::new();
    let made = server.post(WIDGETS, &widget_object("a", 3)).await;
    assert_eq!(made.code, 201);
    let metadata = &made.body["metadata"];
    assert_eq!(metadata["namespace"], "team");
    assert_eq!(metadata["creationTimestamp"], "2026-11-26T02:14:07Z");
    assert_eq!(metadata["generation"], 1);
    assert_eq!(metadata["uid"].as_str().map(str::len), Some(36));
    assert_eq!(server.get(&path("a")).await.ok(), made.body);

    let mut wanted = made.body.clone();
    wanted["spec"]["size"] = json!(4);
    let changed = server.put(&path("a"), &wanted).await.ok();
    assert_eq!(changed["metadata"]["generation"], 2);
    assert!(version(&changed) > version(&made.body));
    assert_eq!(server.get(WIDGETS).await.ok()["items"], json!([changed]));

    let gone = server.delete(&path("a")).await.ok();
    assert_eq!(gone["status"], "Success");
    assert_eq!(gone["details"]["uid"], changed["metadata"]["uid"]);
    server.get(&path("a")).await.failed(404);
    server.delete(&path("a")).await.failed(404);
    let again = server.make("a", 3).await;
    assert_ne!(again["metadata"]["uid"], changed["metadata"]["uid"]);
}

#[tokio::test(start_paused = true)]
async fn the_server_alone_writes_its_own_metadata() {
    let server = Server::new();
    let mut object = widget_object("a", 3);
    object["metadata"]["uid"] = json!("mine");
    object["metadata"]["creationTimestamp"] = json!("1999-01-01T00:00:00Z");
    object["metadata"]["generation"] = json!(9);
    object["metadata"]["managedFields"] = json!([{"manager": "x"}]);
    object["status"] = json!({"phase": "Forged"});
    let made = server.post(WIDGETS, &object).await.ok();
    assert_ne!(made["metadata"]["uid"], "mine");
    assert_eq!(made["metadata"]["generation"], 1);
    assert_eq!(
        made["metadata"]["creationTimestamp"],
        "2026-11-26T02:14:07Z"
    );
    assert_eq!(made["metadata"].get("managedFields"), None);
    assert_eq!(made.get("status"), None);
    let patch = json!({"metadata": {"generation": 7, "deletionTimestamp": "2000-01-01T00:00:00Z"}});
    let same = server.patch(&path("a"), MERGE, &patch).await.ok();
    assert_eq!(same, made);
}

#[tokio::test(start_paused = true)]
async fn a_name_is_taken_once_and_can_be_generated() {
    let server = Server::new();
    server.make("a", 1).await;
    let taken = server
        .post(WIDGETS, &widget_object("a", 2))
        .await
        .failed(409);
    assert_eq!(taken["reason"], "AlreadyExists");
    assert_eq!(taken["details"]["name"], "a");
    let mut object = widget_object("", 1);
    object["metadata"] = json!({"generateName": "run-"});
    let (one, two) = (
        server.post(WIDGETS, &object).await.ok(),
        server.post(WIDGETS, &object).await.ok(),
    );
    let name = one["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("run-") && name.len() == 9, "{name}");
    assert_ne!(two["metadata"]["name"], one["metadata"]["name"]);
}

#[tokio::test(start_paused = true)]
async fn a_stale_write_is_a_conflict_and_an_unconditional_one_is_not() {
    let server = Server::new();
    let first = server.make("a", 1).await;
    let mut second = first.clone();
    second["spec"]["size"] = json!(2);
    server.put(&path("a"), &second).await.ok();
    let stale = server.put(&path("a"), &second).await.failed(409);
    assert_eq!(stale["reason"], "Conflict");
    let patch = json!({"metadata": {"resourceVersion": "1"}, "spec": {"size": 5}});
    server.patch(&path("a"), MERGE, &patch).await.failed(409);
    server.put(&path("a"), &widget_object("a", 6)).await.ok();
    let mut other = widget_object("a", 7);
    other["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    server.put(&path("a"), &other).await.failed(409);
    let body = json!({"preconditions": {"uid": "another"}}).to_string();
    let json = [("content-type", "application/json")];
    server
        .call("DELETE", &path("a"), &json, body)
        .await
        .failed(409);
    let body = json!({"preconditions": {"uid": first["metadata"]["uid"]}}).to_string();
    server.call("DELETE", &path("a"), &json, body).await.ok();
    server.put(&path("a"), &second).await.failed(404);
}

#[tokio::test(start_paused = true)]
async fn what_changes_nothing_writes_nothing() {
    let server = Server::new();
    let made = server.make("a", 1).await;
    let before = server.store.revision().await.unwrap();
    assert_eq!(
        server.put(&path("a"), &widget_object("a", 1)).await.ok(),
        made
    );
    let patch = json!({"spec": {"size": 1}, "metadata": {"labels": null}});
    assert_eq!(server.patch(&path("a"), MERGE, &patch).await.ok(), made);
    let patch = json!([{"op": "replace", "path": "/spec/size", "value": 1}]);
    assert_eq!(
        server.patch(&path("a"), JSON_PATCH, &patch).await.ok(),
        made
    );
    let nothing = json!({"status": null});
    server
        .patch(&format!("{}/status", path("a")), MERGE, &nothing)
        .await
        .ok();
    assert_eq!(server.store.revision().await.unwrap(), before);
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_says_what_would_be_and_stores_nothing() {
    let server = Server::new();
    let would = server
        .post(&format!("{WIDGETS}?dryRun=All"), &widget_object("a", 1))
        .await;
    assert_eq!(would.code, 201);
    server.get(&path("a")).await.failed(404);
    let made = server.make("a", 1).await;
    let before = server.store.revision().await.unwrap();
    server
        .post(&format!("{WIDGETS}?dryRun=All"), &widget_object("a", 1))
        .await
        .failed(409);
    let patch = json!({"spec": {"size": 9}});
    let would = server
        .patch(&format!("{}?dryRun=All", path("a")), MERGE, &patch)
        .await
        .ok();
    assert_eq!(would["spec"]["size"], 9);
    assert_eq!(
        would["metadata"]["resourceVersion"],
        made["metadata"]["resourceVersion"]
    );
    server
        .delete(&format!("{}?dryRun=All", path("a")))
        .await
        .ok();
    assert_eq!(server.get(&path("a")).await.ok(), made);
    assert_eq!(server.store.revision().await.unwrap(), before);
}

#[tokio::test(start_paused = true)]
async fn spec_and_status_are_written_apart() {
    let server = Server::new();
    let made = server.make("a", 1).await;
    let status_path = format!("{}/status", path("a"));
    let mut both = made.clone();
    both["status"] = json!({"phase": "Ready"});
    both["spec"]["size"] = json!(5);
    let seen = server.put(&status_path, &both).await.ok();
    assert_eq!(
        (&seen["spec"]["size"], &seen["status"]["phase"]),
        (&json!(1), &json!("Ready"))
    );
    assert_eq!(seen["metadata"]["generation"], 1);
    both["metadata"] = seen["metadata"].clone();
    both["status"]["phase"] = json!("Forged");
    let seen = server.put(&path("a"), &both).await.ok();
    assert_eq!(
        (&seen["spec"]["size"], &seen["status"]["phase"]),
        (&json!(5), &json!("Ready"))
    );
    assert_eq!(seen["metadata"]["generation"], 2);
    let patch = json!([{"op": "replace", "path": "/status/phase", "value": "Done"}]);
    let seen = server.patch(&status_path, JSON_PATCH, &patch).await.ok();
    assert_eq!(seen["status"]["phase"], "Done");
    assert_eq!(server.get(&status_path).await.ok(), seen);
    let bad = json!({"status": {"phase": 3}});
    server.patch(&status_path, MERGE, &bad).await.failed(422);
    server.put(&status_path, &made).await.failed(409);
    server.delete(&status_path).await.failed(405);
}

#[tokio::test(start_paused = true)]
async fn patches_are_understood_or_refused_by_type() {
    let server = Server::new();
    server.make("a", 1).await;
    let patch = json!({"spec": {"color": "red"}, "metadata": {"labels": {"app": "x"}}});
    let object = server.patch(&path("a"), MERGE, &patch).await.ok();
    assert_eq!(object["spec"], json!({"size": 1, "color": "red"}));
    assert_eq!(object["metadata"]["labels"]["app"], "x");
    assert_eq!(object["metadata"]["generation"], 2);
    for refused in [
        "application/strategic-merge-patch+json",
        "application/apply-patch+yaml",
        "x",
    ] {
        let status = server.patch(&path("a"), refused, &patch).await.failed(415);
        assert_eq!(status["reason"], "UnsupportedMediaType");
    }
    let renamed = json!({"metadata": {"name": "b"}});
    server.patch(&path("a"), MERGE, &renamed).await.failed(400);
    let gone = json!([{"op": "remove", "path": "/spec"}]);
    server
        .patch(&path("a"), JSON_PATCH, &gone)
        .await
        .failed(422);
    server.patch(&path("none"), MERGE, &patch).await.failed(404);
}

#[tokio::test(start_paused = true)]
async fn finalizers_hold_an_object_until_they_are_done() {
    let server = Server::new();
    let mut object = widget_object("a", 1);
    object["metadata"]["finalizers"] = json!(["test.dev/hold", "test.dev/other"]);
    server.post(WIDGETS, &object).await.ok();
    let marked = server.delete(&path("a")).await.ok();
    assert_eq!(
        marked["metadata"]["deletionTimestamp"],
        "2026-11-26T02:14:07Z"
    );
    assert_eq!(server.delete(&path("a")).await.ok(), marked);
    let more = json!({"metadata": {"finalizers": ["test.dev/hold", "test.dev/new"]}});
    let refused = server.patch(&path("a"), MERGE, &more).await.failed(422);
    assert_eq!(
        refused["details"]["causes"][0]["field"],
        "metadata.finalizers"
    );
    let fewer = json!({"metadata": {"finalizers": ["test.dev/hold"]}});
    server.patch(&path("a"), MERGE, &fewer).await.ok();
    server.get(&path("a")).await.ok();
    let none = json!({"metadata": {"finalizers": null}});
    server.patch(&path("a"), MERGE, &none).await.ok();
    server.get(&path("a")).await.failed(404);
}

#[tokio::test(start_paused = true)]
async fn a_collection_is_deleted_by_selector() {
    let server = Server::new();
    for (name, app) in [("a", "x"), ("b", "y"), ("c", "x")] {
        let mut object = widget_object(name, 1);
        object["metadata"]["labels"] = json!({"app": app});
        server.post(WIDGETS, &object).await.ok();
    }
    let gone = server
        .delete(&format!("{WIDGETS}?labelSelector=app%3Dx"))
        .await
        .ok();
    assert_eq!(gone["items"].as_array().map(Vec::len), Some(2));
    let left = server.get(ALL_WIDGETS).await.ok();
    assert_eq!(left["items"][0]["metadata"]["name"], "b");
    assert_eq!(left["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test(start_paused = true)]
async fn every_write_of_a_cluster_scoped_kind_bumps_the_policy_head() {
    let server = Server::new();
    let head = async || {
        let read = server
            .store
            .get(meridian_store::Operation::Probe, keys::policy_head())
            .await;
        read.unwrap().map(|head| head.mod_revision)
    };
    server.make("a", 1).await;
    assert_eq!(head().await, None);
    server.post(GADGETS, &gadget_object("g")).await.ok();
    let first = head().await;
    assert!(first.is_some());
    let patch = json!({"spec": {"size": 2}});
    server
        .patch(&format!("{GADGETS}/g"), MERGE, &patch)
        .await
        .ok();
    let second = head().await;
    assert!(second > first);
    server.delete(&format!("{GADGETS}/g")).await.ok();
    assert!(head().await > second);
}

#[tokio::test(start_paused = true)]
async fn an_idempotency_key_makes_one_object() {
    let server = Server::new();
    let (request, kind) = (Request::default(), server.widget());
    let options = |fingerprint: &str| WriteOptions {
        idempotency: Some(Idempotency {
            key: keys::idempotency("team", "5eed"),
            fingerprint: fingerprint.to_owned(),
        }),
        ..WriteOptions::default()
    };
    let mut object = widget_object("", 1);
    object["metadata"] = json!({"generateName": "run-"});
    let create = async |fingerprint: &str| {
        let options = options(fingerprint);
        server
            .resources
            .create(&request, kind, Some("team"), object.clone(), &options)
            .await
    };
    // Two at once, as a client that timed out and tried again.
    let (one, two) = tokio::join!(create("h1"), create("h1"));
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one.object, two.object);
    assert_ne!(one.unchanged, two.unchanged);
    assert_eq!(create("h2").await.unwrap_err().code(), 409);
    let name = one.object["metadata"]["name"].as_str().unwrap();
    server.delete(&path(name)).await.ok();
    assert_eq!(create("h1").await.unwrap_err().code(), 409);
    let left = server.get(WIDGETS).await.ok();
    assert_eq!(left["items"], json!([]));
}

#[tokio::test(start_paused = true)]
async fn many_are_made_together_and_each_hears_its_own_answer() {
    let server = Server::new();
    server.make("taken", 1).await;
    let mut items: Vec<(Value, WriteOptions)> = (0..100)
        .map(|n| (widget_object(&format!("w{n}"), 1), WriteOptions::default()))
        .collect();
    items.push((widget_object("taken", 1), WriteOptions::default()));
    items.push((widget_object("bad", 0), WriteOptions::default()));
    items.push((widget_object("w0", 1), WriteOptions::default()));
    let (request, kind) = (Request::default(), server.widget());
    let answers = server
        .resources
        .create_many(&request, kind, Some("team"), items)
        .await;
    for (n, answer) in answers[..100].iter().enumerate() {
        let object = &answer.as_ref().unwrap().object;
        assert_eq!(object["metadata"]["name"], format!("w{n}"));
    }
    let codes: Vec<u16> = answers[100..]
        .iter()
        .map(|a| a.as_ref().unwrap_err().code())
        .collect();
    assert_eq!(codes, [409, 422, 409]);
    let list = server.get(WIDGETS).await.ok();
    assert_eq!(list["items"].as_array().map(Vec::len), Some(101));
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_is_named_and_nothing_is_claimed() {
    let server = Server::new();
    server.make("a", 1).await;
    server.store.faults().refuse();
    let failed = server.post(WIDGETS, &widget_object("b", 1)).await;
    assert!(failed.headers.contains_key("retry-after"));
    assert_eq!(failed.failed(503)["reason"], "ServiceUnavailable");
    server.get(&path("a")).await.failed(503);
    server.store.faults().heal();
    server.store.faults().fill();
    server
        .post(WIDGETS, &widget_object("b", 1))
        .await
        .failed(429);
    server.get(&path("a")).await.ok();
    server.store.faults().heal();
    server.make("b", 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_kind_s_own_rules_hold_and_its_overlay_is_shown_but_not_stored() {
    let server = Server::new();
    let mut object = widget_object("a", 1);
    object["spec"]["note"] = json!("forbidden");
    let status = server.post(WIDGETS, &object).await.failed(422);
    assert_eq!(status["details"]["causes"][0]["field"], "spec.note");
    object["spec"]["note"] = json!("kept");
    let made = server.post(WIDGETS, &object).await.ok();
    assert_eq!(made["status"]["shown"], "a is small");
    let change = json!({"spec": {"note": "changed"}});
    let status = server.patch(&path("a"), MERGE, &change).await.failed(422);
    assert_eq!(
        status["details"]["causes"][0]["message"],
        "cannot be changed"
    );
    let listed = server.get(WIDGETS).await.ok();
    assert_eq!(listed["items"][0], made);
    let mut watch = server.watch(&format!("{WIDGETS}?watch=1")).await;
    assert_eq!(watch.expect("ADDED").await.object, made);
    let (stored, _) = server.store.snapshot();
    assert!(stored.iter().all(|entry| !entry.key.ends_with(b"/status")));
}
