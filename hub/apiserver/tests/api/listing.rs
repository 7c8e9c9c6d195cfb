//! Promise: lists are pages of one moment, selected, in the form that the client wants.

use meridian_store::{Revision, Store as _};
use serde_json::{Value, json};

use crate::fixture::{ALL_WIDGETS, GADGETS, MERGE, Server, WIDGETS, gadget_object, widget_object};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const METADATA: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";

fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().expect("items");
    items
        .iter()
        .filter_map(|item| item["metadata"]["name"].as_str())
        .collect()
}

fn token(list: &Value) -> Option<&str> {
    list["metadata"]["continue"].as_str()
}

#[tokio::test(start_paused = true)]
async fn pages_show_one_moment_however_long_they_take() {
    let server = Server::new();
    for name in ["a", "a.b", "a-b", "b", "c"] {
        server.make(name, 1).await;
        let status = json!({"status": {"phase": "x"}});
        server
            .patch(&format!("{WIDGETS}/{name}/status"), MERGE, &status)
            .await
            .ok();
    }
    let whole = server.get(WIDGETS).await.ok();
    assert_eq!(names(&whole), ["a-b", "a.b", "a", "b", "c"]);
    let mut page = server.get(&format!("{WIDGETS}?limit=2")).await.ok();
    let mut found: Vec<Value> = Vec::new();
    loop {
        found.extend(page["items"].as_array().unwrap().iter().cloned());
        assert_eq!(
            page["metadata"]["resourceVersion"],
            whole["metadata"]["resourceVersion"]
        );
        let Some(next) = token(&page) else { break };
        let next = format!("{WIDGETS}?limit=2&continue={next}");
        // Changes between the pages are not seen by them.
        server.make(&format!("new{}", found.len()), 1).await;
        page = server.get(&next).await.ok();
    }
    assert_eq!(Value::from(found), whole["items"]);
}

#[tokio::test(start_paused = true)]
async fn a_page_of_a_compacted_moment_is_expired() {
    let server = Server::new();
    for name in ["a", "b", "c"] {
        server.make(name, 1).await;
    }
    let page = server.get(&format!("{WIDGETS}?limit=1")).await.ok();
    server.make("d", 1).await;
    let newest = server.store.revision().await.unwrap();
    server.store.compact(newest).await.unwrap();
    let next = format!("{WIDGETS}?limit=1&continue={}", token(&page).unwrap());
    let expired = server.get(&next).await.failed(410);
    assert_eq!(expired["reason"], "Expired");
}

#[tokio::test(start_paused = true)]
async fn resource_versions_mean_what_they_say() {
    let server = Server::new();
    let first = server.make("a", 1).await;
    let at = first["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    server.make("b", 1).await;
    let list = async |query: &str| server.get(&format!("{WIDGETS}?{query}")).await;
    let exact = list(&format!("resourceVersion={at}&resourceVersionMatch=Exact"))
        .await
        .ok();
    assert_eq!(names(&exact), ["a"]);
    assert_eq!(exact["metadata"]["resourceVersion"], at);
    let newer = format!("resourceVersion={at}&resourceVersionMatch=NotOlderThan");
    assert_eq!(names(&list(&newer).await.ok()), ["a", "b"]);
    assert_eq!(names(&list("resourceVersion=0").await.ok()), ["a", "b"]);
    for query in [
        "resourceVersion=9999",
        "resourceVersion=9999&resourceVersionMatch=Exact",
    ] {
        let future = list(query).await.failed(504);
        assert_eq!(
            future["details"]["causes"][0]["reason"],
            "ResourceVersionTooLarge"
        );
    }
    server
        .get(&format!("{WIDGETS}/a?resourceVersion=9999"))
        .await
        .failed(504);
}

#[tokio::test(start_paused = true)]
async fn selectors_select_across_pages() {
    let server = Server::new();
    for n in 0..9 {
        let mut object = widget_object(&format!("w{n}"), 1);
        object["metadata"]["labels"] = json!({"third": (n % 3 == 0).to_string()});
        server.post(WIDGETS, &object).await.ok();
    }
    let page = server
        .get(&format!("{WIDGETS}?labelSelector=third%3Dtrue&limit=2"))
        .await
        .ok();
    assert_eq!(names(&page), ["w0", "w3"]);
    let rest = format!(
        "{WIDGETS}?labelSelector=third%3Dtrue&limit=2&continue={}",
        token(&page).unwrap()
    );
    let rest = server.get(&rest).await.ok();
    assert_eq!((names(&rest), token(&rest)), (vec!["w6"], None));
    for place in [WIDGETS, ALL_WIDGETS] {
        let one = server
            .get(&format!("{place}?fieldSelector=metadata.name%3Dw4"))
            .await
            .ok();
        assert_eq!(names(&one), ["w4"]);
    }
    let elsewhere = "/apis/test.dev/v1/namespaces/other/widgets";
    assert!(names(&server.get(elsewhere).await.ok()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_table_has_the_kind_s_columns_and_metadata_comes_alone() {
    let server = Server::new();
    server.make("a", 3).await;
    server
        .clock
        .sleep(meridian_runtime::clock::Millis::seconds(90))
        .await;
    let table = server.get_as(WIDGETS, TABLE).await.ok();
    assert_eq!(table["kind"], "Table");
    let headings: Vec<_> = table["columnDefinitions"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|column| column["name"].as_str())
        .collect();
    assert_eq!(headings, ["Name", "Size", "Phase", "Age"]);
    assert_eq!(table["rows"][0]["cells"], json!(["a", 3, null, "90s"]));
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    assert!(table["metadata"]["resourceVersion"].is_string());
    let whole = server
        .get_as(&format!("{WIDGETS}/a?includeObject=Object"), TABLE)
        .await
        .ok();
    assert_eq!(whole["rows"][0]["object"]["spec"]["size"], 3);
    let none = server
        .get_as(&format!("{WIDGETS}?includeObject=None"), TABLE)
        .await
        .ok();
    assert_eq!(none["rows"][0].get("object"), None);
    let list = server.get_as(WIDGETS, METADATA).await.ok();
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"][0]["metadata"]["name"], "a");
    assert_eq!(list["items"][0].get("spec"), None);
    server.post(GADGETS, &gadget_object("g")).await.ok();
    let table = server.get_as(GADGETS, TABLE).await.ok();
    assert_eq!(table["rows"][0]["cells"], json!(["g", "0s"]));
}

#[tokio::test(start_paused = true)]
async fn namespaces_are_where_there_is_something_and_events_are_none() {
    let server = Server::new();
    server.make("a", 1).await;
    let namespaces = server.get("/api/v1/namespaces").await.ok();
    assert_eq!(names(&namespaces), ["default", "team"]);
    let one = server.get("/api/v1/namespaces/anything").await.ok();
    assert_eq!(one["status"]["phase"], "Active");
    server.get("/api/v1/namespaces/NOT").await.failed(404);
    let made = server
        .post("/api/v1/namespaces", &json!({"metadata": {"name": "new"}}))
        .await;
    assert_eq!((made.code, made.warnings().len()), (201, 1));
    let events = server
        .get("/api/v1/namespaces/team/events?fieldSelector=involvedObject.name%3Da")
        .await
        .ok();
    assert_eq!(events["items"], json!([]));
    assert_eq!(events["kind"], "EventList");
    let before = server.store.revision().await.unwrap();
    assert!(before > Revision(0));
}

#[tokio::test(start_paused = true)]
async fn nothing_but_a_namespace_gets_into_a_list_s_range() {
    let server = Server::new();
    server.make("a", 1).await;
    for crooked in ["team/a", "team/a/spec", "", "-", ".."] {
        let options = meridian_apiserver::ListOptions {
            namespace: Some(crooked.to_owned()),
            ..Default::default()
        };
        let refused = server.resources.list(server.widget(), &options).await;
        assert_eq!(
            refused.map_err(|status| status.code()),
            Err(400),
            "{crooked}"
        );
        for name in [crooked, "a"] {
            let found = server
                .resources
                .get(server.widget(), Some(crooked), name)
                .await;
            assert_eq!(
                found.map_err(|status| status.code()),
                Err(404),
                "{crooked}/{name}"
            );
        }
    }
}
