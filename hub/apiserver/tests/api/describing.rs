//! Promise: the server describes itself as clients expect: discovery in both forms, OpenAPI v3
//! with what `explain` and field validation look for, its version.

use serde_json::{Value, json};

use crate::fixture::Server;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
                          application/json;g=apidiscovery.k8s.io;v=v2beta1;\
                          as=APIGroupDiscoveryList,application/json";

#[tokio::test(start_paused = true)]
async fn legacy_discovery_names_groups_versions_and_resources() {
    let server = Server::new();
    assert_eq!(server.get("/api").await.ok()["versions"], json!(["v1"]));
    let groups = server.get("/apis").await.ok();
    assert_eq!(groups["groups"][0]["name"], "test.dev");
    assert_eq!(
        groups["groups"][0]["preferredVersion"]["groupVersion"],
        "test.dev/v1"
    );
    let group = server.get("/apis/test.dev").await.ok();
    assert_eq!(
        (&group["kind"], &group["name"]),
        (&json!("APIGroup"), &json!("test.dev"))
    );
    let list = server.get("/apis/test.dev/v1").await.ok();
    assert_eq!(list["groupVersion"], "test.dev/v1");
    let names: Vec<_> = list["resources"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| &entry["name"])
        .collect();
    assert_eq!(
        names,
        [
            "widgets",
            "widgets/status",
            "gadgets",
            "gadgets/status",
            "gadgets/scale"
        ]
    );
    let widgets = &list["resources"][0];
    assert_eq!(widgets["namespaced"], true);
    assert_eq!(widgets["shortNames"], json!(["wd"]));
    assert_eq!(widgets["categories"], json!(["all"]));
    assert!(
        widgets["verbs"]
            .as_array()
            .unwrap()
            .contains(&json!("watch"))
    );
    assert_eq!(list["resources"][2]["namespaced"], false);
    let core = server.get("/api/v1").await.ok();
    assert_eq!(core["resources"][0]["kind"], "Namespace");
}

#[tokio::test(start_paused = true)]
async fn aggregated_discovery_says_all_at_once_and_names_its_form() {
    let server = Server::new();
    let reply = server.get_as("/apis", AGGREGATED).await;
    assert_eq!(
        reply.headers["content-type"],
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    );
    let document = reply.ok();
    assert_eq!(document["apiVersion"], "apidiscovery.k8s.io/v2");
    let version = &document["items"][0]["versions"][0];
    assert_eq!(version["freshness"], "Current");
    let widgets = &version["resources"][0];
    assert_eq!(widgets["resource"], "widgets");
    assert_eq!(widgets["scope"], "Namespaced");
    assert_eq!(widgets["responseKind"]["kind"], "Widget");
    assert_eq!(widgets["subresources"][0]["subresource"], "status");
    let core = server.get_as("/api", AGGREGATED).await.ok();
    assert_eq!(core["items"][0]["versions"][0]["version"], "v1");
    let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
    let beta = server.get_as("/apis", beta).await.ok();
    assert_eq!(beta["apiVersion"], "apidiscovery.k8s.io/v2beta1");
}

#[tokio::test(start_paused = true)]
async fn openapi_has_what_explain_and_field_validation_look_for() {
    let server = Server::new();
    let index = server.get("/openapi/v3").await.ok();
    let url = index["paths"]["apis/test.dev/v1"]["serverRelativeURL"]
        .as_str()
        .unwrap();
    assert!(url.contains("?hash="), "{url}");
    let document = server.get(url).await.ok();
    let schemas = &document["components"]["schemas"];
    let widget = &schemas["dev.test.v1.Widget"];
    assert_eq!(
        widget["x-kubernetes-group-version-kind"],
        json!([{"group": "test.dev", "version": "v1", "kind": "Widget"}])
    );
    assert_eq!(
        widget["properties"]["spec"]["properties"]["size"]["type"],
        "integer"
    );
    let path = "/apis/test.dev/v1/namespaces/{namespace}/widgets/{name}";
    let patch = &document["paths"][path]["patch"];
    assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Widget");
    let parameters = patch["parameters"].as_array().unwrap();
    assert!(
        parameters
            .iter()
            .any(|known| known["name"] == "fieldValidation")
    );
    let scale = &document["paths"]["/apis/test.dev/v1/gadgets/{name}/scale"];
    for verb in ["get", "put", "patch"] {
        let about = &scale[verb]["x-kubernetes-group-version-kind"];
        assert_eq!(about["kind"], "Scale", "{verb}");
    }
    assert!(
        document["paths"][format!("{path}/scale")].is_null(),
        "it has none"
    );
    let mut references = Vec::new();
    collect_references(&document, &mut references);
    assert!(!references.is_empty());
    for reference in references {
        let name = reference
            .strip_prefix("#/components/schemas/")
            .expect("a local reference");
        assert!(schemas.get(name).is_some(), "{name} is not defined");
    }
    server.get("/openapi/v3/api/v1").await.ok();
    server.get("/openapi/v3/apis/test.dev/v9").await.failed(404);
}

fn collect_references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("$ref").and_then(Value::as_str));
            fields
                .values()
                .for_each(|value| collect_references(value, found));
        }
        Value::Array(items) => items
            .iter()
            .for_each(|value| collect_references(value, found)),
        _ => {}
    }
}

#[tokio::test(start_paused = true)]
async fn the_version_is_one_that_clients_can_read() {
    let server = Server::new();
    let version = server.get("/version").await.ok();
    assert_eq!(version["major"], "1");
    assert!(version["gitVersion"].as_str().unwrap().starts_with("v1."));
}
