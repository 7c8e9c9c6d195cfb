//! Promise: whatever is sent, the answer is a Status that says what is wrong and where; nothing
//! wrong is stored and nothing falls over.

use meridian_apiserver::MAX_BODY_BYTES;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::fixture::{ALL_WIDGETS, MERGE, Server, WIDGETS, widget_object};

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

#[tokio::test(start_paused = true)]
async fn unknown_and_duplicate_fields_are_refused_warned_of_or_passed_over() {
    let server = Server::new();
    let text = r#"{"apiVersion":"test.dev/v1","kind":"Widget","metadata":{"name":"a"},
                   "spec":{"size":1,"size":2,"colour":"red"}}"#;
    let post = async |query: &str| {
        server
            .call("POST", &format!("{WIDGETS}{query}"), &JSON, text)
            .await
    };
    let strict = post("?fieldValidation=Strict").await.failed(400);
    let message = strict["message"].as_str().unwrap();
    assert!(
        message.contains("duplicate field \"spec.size\""),
        "{message}"
    );
    assert!(message.contains("unknown field \"spec.colour\" (did you mean \"color\"?)"));
    let warned = post("?fieldValidation=Warn&dryRun=All").await;
    assert_eq!(
        warned.warnings(),
        [
            "299 - \"duplicate field \\\"spec.size\\\"\"",
            "299 - \"unknown field \\\"spec.colour\\\" (did you mean \\\"color\\\"?)\"",
        ]
    );
    let ignored = post("?fieldValidation=Ignore").await;
    assert!(ignored.warnings().is_empty());
    assert_eq!(ignored.ok()["spec"], json!({"size": 2}));
    let patch = json!({"spec": {"siz": 3}});
    let path = format!("{WIDGETS}/a?fieldValidation=Strict");
    server.patch(&path, MERGE, &patch).await.failed(400);
    let path = format!("{WIDGETS}/a");
    assert_eq!(server.patch(&path, MERGE, &patch).await.warnings().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn wrong_values_are_named_field_by_field() {
    let server = Server::new();
    let mut object = widget_object("a", 0);
    object["spec"]["color"] = json!("green");
    object["spec"]["parts"] = json!([{"name": 1}]);
    object["metadata"]["labels"] = json!({"a b": "c"});
    let status = server.post(WIDGETS, &object).await.failed(422);
    let causes = status["details"]["causes"].as_array().unwrap();
    let fields: Vec<&str> = causes
        .iter()
        .filter_map(|cause| cause["field"].as_str())
        .collect();
    assert_eq!(
        fields,
        [
            "metadata.labels",
            "spec.size",
            "spec.color",
            "spec.parts[0].name"
        ]
    );
    for metadata in [
        json!({}),
        json!({"name": "A"}),
        json!({"name": "a/b"}),
        json!({"name": "."}),
    ] {
        let mut object = widget_object("a", 1);
        object["metadata"] = metadata;
        server.post(WIDGETS, &object).await.failed(422);
    }
    for wrong in [json!([]), json!("x"), json!(null), json!(1)] {
        server.post(WIDGETS, &wrong).await.failed(400);
        let mut object = widget_object("a", 1);
        object["spec"] = wrong.clone();
        server.post(WIDGETS, &object).await.failed(422);
        object["metadata"] = wrong;
        assert!([400, 422].contains(&server.post(WIDGETS, &object).await.code));
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_must_be_about_what_the_url_names() {
    let server = Server::new();
    server.make("a", 1).await;
    for (field, value) in [("kind", "Gadget"), ("apiVersion", "test.dev/v2")] {
        let mut object = widget_object("b", 1);
        object[field] = json!(value);
        server.post(WIDGETS, &object).await.failed(400);
    }
    let mut object = widget_object("b", 1);
    server
        .put(&format!("{WIDGETS}/a"), &object)
        .await
        .failed(400);
    object["metadata"]["namespace"] = json!("other");
    server.post(WIDGETS, &object).await.failed(400);
    object["metadata"] = json!({"name": "b", "resourceVersion": "7"});
    server.post(WIDGETS, &object).await.failed(400);
}

#[tokio::test(start_paused = true)]
async fn oversized_deep_and_malformed_bodies_are_refused() {
    let server = Server::new();
    let large = " ".repeat(MAX_BODY_BYTES + 1);
    server.call("POST", WIDGETS, &JSON, large).await.failed(413);
    let mut object = widget_object("a", 1);
    object["spec"]["note"] = json!("x".repeat(meridian_store::MAX_VALUE_BYTES));
    server.post(WIDGETS, &object).await.failed(413);
    let deep = format!("{}{}", "{\"a\":".repeat(5_000), "}".repeat(5_000));
    server.call("POST", WIDGETS, &JSON, deep).await.failed(400);
    let yaml = [("content-type", "application/yaml")];
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n\
                c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n\
                e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n\
                g: [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n";
    assert!([400, 413, 422].contains(&server.call("POST", WIDGETS, &yaml, bomb).await.code));
    for text in ["", "{", "nope", "{\"a\":1}}"] {
        server.call("POST", WIDGETS, &JSON, text).await.failed(400);
    }
    let protobuf = [("content-type", "application/vnd.kubernetes.protobuf")];
    server
        .call("POST", WIDGETS, &protobuf, "k8s")
        .await
        .failed(415);
    server
        .get_as(WIDGETS, "application/vnd.kubernetes.protobuf")
        .await
        .failed(406);
    let good = "apiVersion: test.dev/v1\nkind: Widget\nmetadata: {name: why}\nspec: {size: 1}\n";
    server.call("POST", WIDGETS, &yaml, good).await.ok();
    // YAML's old trap: a bare `y` is true.
    let trap = good.replace("why", "y");
    let status = server.call("POST", WIDGETS, &yaml, trap).await.failed(422);
    let cause = &status["details"]["causes"][0];
    assert_eq!(
        cause["message"],
        "must be of type string, is true: put it in quotes"
    );
}

#[tokio::test(start_paused = true)]
async fn wrong_urls_methods_and_parameters_have_their_own_codes() {
    let server = Server::new();
    server.get("/apis/test.dev/v1/nonsense").await.failed(404);
    server.get("/apis/other.dev/v1").await.failed(404);
    server.get("/openapi/v1").await.failed(404);
    server.get("/openapi/v2").await.ok();
    server.get(&format!("{WIDGETS}/a/scale")).await.failed(404);
    server
        .call("POST", &format!("{WIDGETS}/a"), &JSON, "{}")
        .await
        .failed(405);
    server.call("PUT", WIDGETS, &JSON, "{}").await.failed(405);
    server
        .post(ALL_WIDGETS, &widget_object("a", 1))
        .await
        .failed(405);
    server.call("DELETE", "/apis", &[], "").await.failed(405);
    for query in [
        "labelSelector=a%20b",
        "fieldSelector=spec.size%3D1",
        "limit=many",
        "continue=zz",
        "continue=1.ff",
        "resourceVersion=x",
        "watch=perhaps",
        "watch=1&timeoutSeconds=-1",
    ] {
        server.get(&format!("{WIDGETS}?{query}")).await.failed(400);
    }
    let head = server.call("HEAD", WIDGETS, &[], "").await;
    assert_eq!((head.code, head.body), (200, Value::Null));
}

/// Documents that are nearly right: the shapes that a hand-written parser trips over.
fn nearly() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z/.~*\\[\\]\"\\\\\u{0}-\u{20}]{0,12}".prop_map(Value::from),
    ];
    let name = prop_oneof![
        Just("metadata"),
        Just("spec"),
        Just("status"),
        Just("name"),
        Just("labels"),
        Just("size"),
        Just("finalizers"),
        Just("parts"),
        Just("resourceVersion"),
        Just("op"),
        Just("path"),
        Just("from"),
        Just("value"),
        Just("preconditions"),
        Just(""),
    ];
    leaf.prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            prop::collection::vec((name.clone(), inner), 0..6).prop_map(|fields| {
                fields
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .collect()
            }),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn nothing_sent_makes_the_server_fail(
        body in nearly(),
        raw in prop::collection::vec(any::<u8>(), 0..64),
        query in "[a-zA-Z=&%0-9]{0,40}",
        path in "[a-z/.%0-9-]{0,40}",
    ) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let server = Server::new();
            server.make("a", 1).await;
            let one = format!("{WIDGETS}/a?{query}");
            let mut codes = vec![
                server.post(WIDGETS, &body).await.code,
                server.put(&one, &body).await.code,
                server.patch(&one, MERGE, &body).await.code,
                server.patch(&one, crate::fixture::JSON_PATCH, &body).await.code,
                server.patch(&format!("{WIDGETS}/a/status"), MERGE, &body).await.code,
                server.call("POST", WIDGETS, &JSON, raw.clone()).await.code,
                server.call("POST", "/api/v1/namespaces", &[], raw).await.code,
                server.call("DELETE", &one, &JSON, body.to_string()).await.code,
            ];
            if let Ok(uri) = format!("/apis/{path}").parse::<http::Uri>() {
                codes.push(server.call("GET", uri.path(), &[], "").await.code);
            }
            prop_assert!(codes.iter().all(|code| *code < 500), "{codes:?}");
            Ok(())
        })?;
    }
}
