//! A server in a box, and clients that read its answers.
//!
//! Owns the invented kinds `Widget` (namespaced, with status) and `Gadget` (cluster-scoped).

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, BodyDataStream};
use futures::StreamExt as _;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt as _;
use meridian_apiserver::{
    Admission, AllowAll, Column, FieldError, FieldReason, Kind, KindHooks, NoHooks, Registry,
    Resources, ResourcesOptions, ScalePaths, Scope, router,
};
use meridian_runtime::clock::{Millis, UnixMillis};
use meridian_runtime::{Clock, Random, Tasks};
use meridian_store::MemoryStore;
use meridian_store::keys::ObjectKey;
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// Widgets of the namespace that most tests use.
pub(crate) const WIDGETS: &str = "/apis/test.dev/v1/namespaces/team/widgets";
pub(crate) const ALL_WIDGETS: &str = "/apis/test.dev/v1/widgets";
pub(crate) const GADGETS: &str = "/apis/test.dev/v1/gadgets";
pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const JSON_PATCH: &str = "application/json-patch+json";
/// 2026-11-26T02:14:07Z
pub(crate) const START: UnixMillis = UnixMillis(1_795_659_247_000);

pub(crate) struct Server {
    pub(crate) store: MemoryStore,
    pub(crate) resources: Resources,
    pub(crate) clock: Clock,
    pub(crate) tasks: Tasks,
    router: Router,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
}

impl Reply {
    /// The body, when the request succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert!(
            (200..300).contains(&self.code),
            "{}: {}",
            self.code,
            self.body
        );
        self.body
    }

    /// The body, when the request failed with `code`.
    #[track_caller]
    pub(crate) fn failed(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", self.body);
        assert_eq!(self.body["kind"], "Status");
        assert_eq!(self.body["status"], "Failure");
        assert_eq!(self.body["code"], code);
        self.body
    }

    pub(crate) fn warnings(&self) -> Vec<&str> {
        self.headers
            .get_all("warning")
            .iter()
            .filter_map(|text| text.to_str().ok())
            .collect()
    }
}

impl Server {
    pub(crate) fn new() -> Self {
        Self::admitting(Arc::new(AllowAll))
    }

    pub(crate) fn admitting(admission: Arc<dyn Admission>) -> Self {
        let clock = Clock::simulated(START);
        Self::over(MemoryStore::new(clock.clone()), clock, admission)
    }

    /// Another server over the same store, begun at this moment.
    pub(crate) fn replica(&self) -> Self {
        let store = self.store.handle_for(self.clock.clone());
        Self::over(store, self.clock.clone(), Arc::new(AllowAll))
    }

    fn over(store: MemoryStore, clock: Clock, admission: Arc<dyn Admission>) -> Self {
        let tasks = Tasks::new();
        let resources = Resources::new(ResourcesOptions {
            store: Arc::new(store.clone()),
            registry: Registry::new(vec![widget(), gadget()]).expect("good kinds"),
            clock: clock.clone(),
            random: Random::seeded(7),
            admission,
            events: Arc::new(meridian_apiserver::NoEvents),
            tasks: tasks.clone(),
        });
        let router = router(resources.clone());
        Self {
            store,
            resources,
            clock,
            tasks,
            router,
        }
    }

    pub(crate) fn widget(&self) -> &Kind {
        self.resources
            .registry()
            .kind("Widget")
            .expect("registered")
    }

    async fn send(&self, request: Request<Body>) -> http::Response<Body> {
        self.router
            .clone()
            .oneshot(request)
            .await
            .expect("the router never fails")
    }

    /// Any request.
    pub(crate) async fn call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Reply {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self
            .send(request.body(body.into()).expect("a request"))
            .await;
        let (code, headers) = (response.status(), response.headers().clone());
        let bytes = response
            .into_body()
            .collect()
            .await
            .expect("a body")
            .to_bytes();
        let body = match code {
            _ if bytes.is_empty() => Value::Null,
            _ => serde_json::from_slice(&bytes).expect("JSON"),
        };
        Reply {
            code: code.as_u16(),
            headers,
            body,
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.call("GET", path, &[], Body::empty()).await
    }

    pub(crate) async fn get_as(&self, path: &str, accept: &str) -> Reply {
        self.call("GET", path, &[("accept", accept)], Body::empty())
            .await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Reply {
        self.call(
            "POST",
            path,
            &[("content-type", "application/json")],
            body.to_string(),
        )
        .await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Reply {
        self.call(
            "PUT",
            path,
            &[("content-type", "application/json")],
            body.to_string(),
        )
        .await
    }

    pub(crate) async fn patch(&self, path: &str, content_type: &str, body: &Value) -> Reply {
        self.call(
            "PATCH",
            path,
            &[("content-type", content_type)],
            body.to_string(),
        )
        .await
    }

    pub(crate) async fn delete(&self, path: &str) -> Reply {
        self.call("DELETE", path, &[], Body::empty()).await
    }

    /// Makes a widget of this name and size.
    pub(crate) async fn make(&self, name: &str, size: u32) -> Value {
        self.post(WIDGETS, &widget_object(name, size)).await.ok()
    }

    /// Opens a watch.
    pub(crate) async fn watch(&self, path_and_query: &str) -> Watch {
        self.watch_as(path_and_query, "application/json").await
    }

    pub(crate) async fn watch_as(&self, path_and_query: &str, accept: &str) -> Watch {
        let request = Request::builder()
            .uri(path_and_query)
            .header("accept", accept);
        let response = self
            .send(request.body(Body::empty()).expect("a request"))
            .await;
        assert_eq!(response.status(), StatusCode::OK);
        Watch {
            lines: response.into_body().into_data_stream(),
            unread: Vec::new(),
            clock: self.clock.clone(),
        }
    }
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    pub(crate) what: String,
    pub(crate) object: Value,
}

impl Event {
    pub(crate) fn name(&self) -> &str {
        self.object["metadata"]["name"].as_str().unwrap_or("")
    }

    pub(crate) fn version(&self) -> u64 {
        version(&self.object)
    }
}

/// An open watch.
pub(crate) struct Watch {
    lines: BodyDataStream,
    unread: Vec<u8>,
    clock: Clock,
}

impl Watch {
    /// The next event, or `None` at the end of the stream. Fails after an hour, which is no time.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                let mut event: Value = serde_json::from_slice(&line).expect("a line of JSON");
                let what = event["type"].as_str().expect("a type").to_owned();
                return Some(Event {
                    what,
                    object: event["object"].take(),
                });
            }
            let more = self
                .clock
                .timeout(Millis::seconds(3_600), self.lines.next());
            match more.await.expect("an event within the hour") {
                Some(chunk) => self.unread.extend_from_slice(&chunk.expect("a chunk")),
                None => return None,
            }
        }
    }

    #[track_caller]
    pub(crate) fn expect(&mut self, what: &str) -> impl Future<Output = Event> + use<'_> {
        let what = what.to_owned();
        async move {
            let event = self.next().await.expect("the watch goes on");
            assert_eq!(event.what, what, "{}", event.object);
            event
        }
    }

    /// Everything until the stream ends.
    pub(crate) async fn rest(mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }
}

pub(crate) fn version(object: &Value) -> u64 {
    let text = object["metadata"]["resourceVersion"]
        .as_str()
        .expect("a resourceVersion");
    text.parse().expect("a number")
}

pub(crate) fn widget_object(name: &str, size: u32) -> Value {
    json!({
        "apiVersion": "test.dev/v1", "kind": "Widget",
        "metadata": {"name": name},
        "spec": {"size": size},
    })
}

pub(crate) fn gadget_object(name: &str) -> Value {
    json!({
        "apiVersion": "test.dev/v1", "kind": "Gadget",
        "metadata": {"name": name},
        "spec": {"size": 1},
    })
}

/// Widgets' own rules: a note is no "forbidden" one and stays; at reading, small ones are said to
/// be so.
struct WidgetHooks;

impl KindHooks for WidgetHooks {
    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let forbidden = object["spec"]["note"] == "forbidden";
        let error = FieldError::new("spec.note", FieldReason::Invalid, "is forbidden");
        forbidden.then_some(error).into_iter().collect()
    }

    fn validate_update(&self, old: &Value, new: &Value) -> Vec<FieldError> {
        let (old, new) = (&old["spec"]["note"], &new["spec"]["note"]);
        let error = FieldError::new("spec.note", FieldReason::Forbidden, "cannot be changed");
        (!old.is_null() && old != new)
            .then_some(error)
            .into_iter()
            .collect()
    }

    fn decorate(&self, key: &ObjectKey, object: &mut Value) {
        if object["spec"]["size"] == 1 && object["spec"]["note"] == "kept" {
            object["status"]["shown"] = json!(format!("{} is small", key.name));
        }
    }
}

fn widget() -> Kind {
    let column = |name: &str, ty: &str, path: &str| Column {
        name: name.to_owned(),
        ty: ty.to_owned(),
        path: path.to_owned(),
        ..Column::default()
    };
    let columns = vec![
        column("Size", "integer", ".spec.size"),
        column("Phase", "string", ".status.phase"),
        column("Age", "date", ".metadata.creationTimestamp"),
    ];
    let mut widget = kind(
        ("Widget", "widgets", "widget", "wd"),
        Scope::Namespaced,
        columns,
    );
    widget.hooks = Arc::new(WidgetHooks);
    widget
}

fn gadget() -> Kind {
    let paths = ScalePaths {
        spec: "/spec/size",
        status: "/spec/size",
    };
    Kind {
        scale: Some(paths),
        ..kind(
            ("Gadget", "gadgets", "gadget", "gd"),
            Scope::Cluster,
            Vec::new(),
        )
    }
}

fn kind(names: (&str, &str, &str, &str), scope: Scope, columns: Vec<Column>) -> Kind {
    let (kind, plural, singular, short) = names;
    Kind {
        group: "test.dev".to_owned(),
        version: "v1".to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
        singular: singular.to_owned(),
        short_names: vec![short.to_owned()],
        categories: vec!["all".to_owned()],
        scope,
        schema: Arc::new(json!({
            "type": "object",
            "description": format!("{kind} is an invented thing"),
            "required": ["spec"],
            "properties": {
                "spec": {
                    "type": "object",
                    "required": ["size"],
                    "properties": {
                        "size": {"type": "integer", "minimum": 1},
                        "color": {"type": "string", "enum": ["red", "blue"]},
                        "note": {"type": "string"},
                        "parts": {"type": "array", "items": {
                            "type": "object",
                            "properties": {"name": {"type": "string"}},
                        }},
                    },
                },
                "status": {
                    "type": "object",
                    "properties": {"phase": {"type": "string"}},
                },
            },
        })),
        columns,
        hooks: Arc::new(NoHooks),
        has_status: true,
        scale: None,
    }
}
