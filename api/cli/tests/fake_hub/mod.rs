//! A small hub for the command to talk to: canned objects, one port for HTTP and gRPC.
//!
//! Owns just enough behaviour to see what the command makes of answers. Not a model of the hub:
//! what the hub does is proven elsewhere.

#![allow(dead_code, reason = "each file of tests uses a part of it")]

use std::collections::BTreeMap;
use std::process::{Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use meridian_proto::v1;
use meridian_proto::v1::federation_service_server::{FederationService, FederationServiceServer};
use meridian_proto::v1::submit_stream_response::Result as Answer;
use meridian_runtime::Tasks;
use meridian_runtime::network::{Network as _, Tcp};
use prost::Message as _;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tonic::{Request, Status, Streaming};

/// Where jobs of the namespace `nlp` are.
pub(crate) const JOBS: &str = "/apis/meridian.dev/v1alpha1/namespaces/nlp/federatedjobs";
/// Where clusters are.
pub(crate) const CLUSTERS: &str = "/apis/meridian.dev/v1alpha1/memberclusters";

#[derive(Default)]
struct Stored {
    objects: BTreeMap<String, Value>,
    /// Events that each watch of a collection is told, one line each.
    events: BTreeMap<String, String>,
    keys: Vec<String>,
    revision: u64,
}

type Shared = Arc<Mutex<Stored>>;

fn locked(shared: &Shared) -> std::sync::MutexGuard<'_, Stored> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running hub.
pub(crate) struct FakeHub {
    address: String,
    shared: Shared,
    _tasks: Tasks,
}

impl FakeHub {
    pub(crate) async fn start() -> Self {
        let shared = Shared::default();
        let service = FederationServiceServer::new(Service(Arc::clone(&shared)));
        let held = Arc::clone(&shared);
        let router = tonic::service::Routes::new(service)
            .into_axum_router()
            .fallback(
                move |method: Method, uri: Uri, headers: HeaderMap, body: Bytes| {
                    let response = answer(&held, &method, &uri, &headers, &body);
                    std::future::ready(response)
                },
            );
        let listener = Tcp.listen("127.0.0.1:0").await.expect("a free port");
        let address = listener.address().to_owned();
        let tasks = Tasks::new();
        tasks.spawn_finite("fake hub", async move {
            axum::serve(listener, router).await.expect("serving");
        });
        Self {
            address,
            shared,
            _tasks: tasks,
        }
    }

    /// Its address as the command takes it.
    pub(crate) fn server(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stores an object as if somebody had.
    pub(crate) fn put(&self, path: &str, object: Value) {
        locked(&self.shared).objects.insert(path.to_owned(), object);
    }

    pub(crate) fn object(&self, path: &str) -> Option<Value> {
        locked(&self.shared).objects.get(path).cloned()
    }

    /// What a watch of `collection` is told.
    pub(crate) fn will_tell(&self, collection: &str, events: &[Value]) {
        let lines: Vec<String> = events.iter().map(Value::to_string).collect();
        let text = lines.join("\n") + "\n";
        locked(&self.shared)
            .events
            .insert(collection.to_owned(), text);
    }

    /// Idempotency keys of submissions, in order.
    pub(crate) fn keys(&self) -> Vec<String> {
        locked(&self.shared).keys.clone()
    }

    /// Runs the command against this hub.
    pub(crate) async fn run(&self, args: &[&str]) -> Ran {
        run(&self.address, args, "").await
    }

    /// The same with something on its standard input.
    pub(crate) async fn run_with(&self, args: &[&str], stdin: &str) -> Ran {
        run(&self.address, args, stdin).await
    }
}

/// What a run of the command left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs the command with `stdin` against a hub at `address`.
pub(crate) async fn run(address: &str, args: &[&str], stdin: &str) -> Ran {
    let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_meridian"))
        .args(args)
        .env("MERIDIAN_SERVER", format!("http://{address}"))
        .env_remove("MERIDIAN_NAMESPACE")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the command");
    let mut input = child.stdin.take().expect("piped");
    input.write_all(stdin.as_bytes()).await.expect("written");
    drop(input);
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().await.expect("ended");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Ran {
        code: status.code(),
        out: text(stdout),
        err: text(stderr),
    }
}

fn answer(
    shared: &Shared,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
    body: &Bytes,
) -> Response {
    let path = uri.path();
    let query = uri.query().unwrap_or_default();
    let table = headers.get(header::ACCEPT).is_some_and(|accept| {
        accept
            .to_str()
            .is_ok_and(|accept| accept.contains("as=Table"))
    });
    let mut stored = locked(shared);
    let sent: Value = serde_json::from_slice(body).unwrap_or_default();
    match method.as_str() {
        "GET" if path == "/version" => ok(&json!({"gitVersion": "v9.9.9"})),
        "GET" if query.contains("watch=1") => stored
            .events
            .get(path)
            .cloned()
            .unwrap_or_default()
            .into_response(),
        "GET" => match stored.objects.get(path) {
            Some(object) if table => ok(&as_table(&[object])),
            Some(object) => ok(object),
            None if path.ends_with('s') => listed(&stored, path, table),
            None => failed(404, "NotFound", &format!("{path} not found")),
        },
        "POST" => {
            let name = sent["metadata"]["name"].as_str().unwrap_or("made-up");
            let place = format!("{path}/{name}");
            if name == "forbidden" {
                return failed(403, "Forbidden", "forbidden: you may not");
            }
            if stored.objects.contains_key(&place) {
                return failed(409, "AlreadyExists", &format!("{name} already exists"));
            }
            ok(&store(&mut stored, place, sent, query))
        }
        "PATCH" => match stored.objects.get(path).cloned() {
            None => failed(404, "NotFound", "not found"),
            Some(mut object) => {
                json_patch::merge(&mut object, &sent);
                ok(&store(&mut stored, path.to_owned(), object, query))
            }
        },
        "DELETE" => match stored.objects.remove(path) {
            None => failed(404, "NotFound", &format!("{path} not found")),
            Some(_) => ok(&json!({"kind": "Status", "status": "Success"})),
        },
        _ => failed(405, "MethodNotAllowed", "no"),
    }
}

fn store(stored: &mut Stored, place: String, mut object: Value, query: &str) -> Value {
    stored.revision += 1;
    object["metadata"]["resourceVersion"] = json!(stored.revision.to_string());
    if !query.contains("dryRun=All") {
        stored.objects.insert(place, object.clone());
    }
    object
}

fn listed(stored: &Stored, path: &str, table: bool) -> Response {
    let within = format!("{path}/");
    let items: Vec<&Value> = stored
        .objects
        .iter()
        .filter(|(place, _)| place.starts_with(&within))
        .map(|(_, object)| object)
        .collect();
    if table {
        return ok(&as_table(&items));
    }
    ok(&json!({"kind": "List", "items": items, "metadata": {"resourceVersion": "1"}}))
}

fn as_table(objects: &[&Value]) -> Value {
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            json!({
                "cells": [object["metadata"]["name"], object["status"]["phase"]],
                "object": {"metadata": object["metadata"]}
            })
        })
        .collect();
    json!({
        "kind": "Table", "rows": rows, "metadata": {"resourceVersion": "1"},
        "columnDefinitions": [{"name": "Name", "priority": 0}, {"name": "State", "priority": 0}]
    })
}

fn ok(value: &Value) -> Response {
    (
        [(header::CONTENT_TYPE, "application/json")],
        value.to_string(),
    )
        .into_response()
}

fn failed(code: u16, reason: &str, message: &str) -> Response {
    let status = StatusCode::from_u16(code).expect("a status");
    let body = json!({"kind": "Status", "code": code, "reason": reason, "message": message});
    (status, body.to_string()).into_response()
}

struct Service(Shared);

fn denied(name: &str) -> v1::ErrorDetail {
    v1::ErrorDetail {
        code: "E4012".into(),
        message: format!("job nlp/{name} denied by house-rules (2 of 8 rules)"),
        causes: vec![
            v1::FieldCause {
                field: "spec.checkpoint".into(),
                reason: "FieldValueRequired".into(),
                message: "missing: class batch-long can be preempted".into(),
            },
            v1::FieldCause {
                field: "spec.costAttribution".into(),
                reason: "FieldValueInvalid".into(),
                message: "model is empty".into(),
            },
        ],
        help: "add both fields, or use class batch-short".into(),
        retry_after_ms: 0,
    }
}

/// Name of the job in a request.
fn name_of(job: &[u8]) -> Result<String, Status> {
    let job: Value =
        serde_json::from_slice(job).map_err(|error| Status::invalid_argument(error.to_string()))?;
    Ok(job["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned())
}

#[tonic::async_trait]
impl FederationService for Service {
    type SubmitStreamStream =
        tokio_stream::Iter<std::vec::IntoIter<Result<v1::SubmitStreamResponse, Status>>>;
    type WatchStream = tokio_stream::Empty<Result<v1::WatchResponse, Status>>;
    type LogsStream = tokio_stream::Iter<std::vec::IntoIter<Result<v1::LogsResponse, Status>>>;

    async fn submit(
        &self,
        _: Request<v1::SubmitRequest>,
    ) -> Result<tonic::Response<v1::SubmitResponse>, Status> {
        Err(Status::unimplemented("the command uses the stream"))
    }

    async fn submit_stream(
        &self,
        request: Request<Streaming<v1::SubmitRequest>>,
    ) -> Result<tonic::Response<Self::SubmitStreamStream>, Status> {
        let mut requests = request.into_inner();
        let mut answers = Vec::new();
        while let Some(request) = requests.message().await? {
            let name = name_of(&request.job)?;
            let key = request.idempotency_key;
            let mut stored = locked(&self.0);
            let replayed = stored.keys.contains(&key);
            stored.keys.push(key);
            let result = if request.plan_token == "broken" {
                Answer::Refused(v1::ErrorDetail {
                    code: "E3003".into(),
                    message: "the fleet has moved since the plan".into(),
                    ..v1::ErrorDetail::default()
                })
            } else if name == "denied" {
                Answer::Refused(denied(&name))
            } else {
                Answer::Accepted(v1::SubmitResponse {
                    namespace: "nlp".into(),
                    name,
                    replayed,
                    ..v1::SubmitResponse::default()
                })
            };
            answers.push(Ok(v1::SubmitStreamResponse {
                result: Some(result),
            }));
        }
        Ok(tonic::Response::new(tokio_stream::iter(answers)))
    }

    async fn plan(
        &self,
        request: Request<v1::PlanRequest>,
    ) -> Result<tonic::Response<v1::PlanResponse>, Status> {
        let verdict = match name_of(&request.into_inner().job)?.as_str() {
            "never" => v1::Verdict::Never,
            "later" => v1::Verdict::WillQueue,
            _ => v1::Verdict::StartsNow,
        };
        Ok(tonic::Response::new(v1::PlanResponse {
            verdict: verdict.into(),
            cluster: "euw-a".into(),
            ..v1::PlanResponse::default()
        }))
    }

    async fn why(
        &self,
        request: Request<v1::WhyRequest>,
    ) -> Result<tonic::Response<v1::WhyResponse>, Status> {
        let request = request.into_inner();
        if request.name == "missing" {
            let detail = v1::ErrorDetail {
                code: "E3001".into(),
                message: format!("there is no job {}/missing", request.namespace),
                ..v1::ErrorDetail::default()
            };
            let details = detail.encode_to_vec().into();
            return Err(Status::with_details(
                tonic::Code::NotFound,
                "not found",
                details,
            ));
        }
        Ok(tonic::Response::new(v1::WhyResponse {
            phase: "Pending".into(),
            reasons: vec![v1::Reason {
                code: "WaitingForCapacity".into(),
                message: "222 short".into(),
                has_numbers: true,
                need: 256_000,
                free: 34_000,
                limit: 504_000,
                ..v1::Reason::default()
            }],
            position: 1,
            waiting: 2,
            ..v1::WhyResponse::default()
        }))
    }

    async fn tenants(
        &self,
        request: Request<v1::TenantsRequest>,
    ) -> Result<tonic::Response<v1::TenantsResponse>, Status> {
        let asked = request.into_inner().tenant;
        let node = |name: &str, depth| v1::TenantNode {
            name: name.into(),
            depth,
            rows: vec![v1::TenantUse {
                nominal: 64_000,
                used: 8_000,
                ..v1::TenantUse::default()
            }],
            ..v1::TenantNode::default()
        };
        let all = [node("research", 0), node("nlp", 1)].into_iter();
        let wanted = all.filter(|node| asked.is_empty() || node.name == asked);
        Ok(tonic::Response::new(v1::TenantsResponse {
            tenants: wanted.collect(),
        }))
    }

    /// Refuses a tree with a quota named `contradictory`.
    async fn fit_quota(
        &self,
        request: Request<v1::FitQuotaRequest>,
    ) -> Result<tonic::Response<v1::FitQuotaResponse>, Status> {
        let documents: Vec<Value> = serde_json::from_slice(&request.into_inner().documents)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let wrong = documents
            .iter()
            .filter(|document| document["metadata"]["name"] == "contradictory");
        let causes = wrong.map(|_| v1::FieldCause {
            field: "tenantquotas/contradictory spec.resources[0].nominal".into(),
            message: "is above what its parent has".into(),
            ..v1::FieldCause::default()
        });
        Ok(tonic::Response::new(v1::FitQuotaResponse {
            causes: causes.collect(),
            ..v1::FitQuotaResponse::default()
        }))
    }

    /// A cluster that holds two gangs until it is drained.
    async fn cluster(
        &self,
        request: Request<v1::ClusterRequest>,
    ) -> Result<tonic::Response<v1::ClusterResponse>, Status> {
        let name = request.into_inner().name;
        let stored = locked(&self.0)
            .objects
            .get(&format!("{CLUSTERS}/{name}"))
            .cloned();
        let Some(object) = stored else {
            let detail = v1::ErrorDetail {
                code: "E3001".into(),
                message: format!("there is no MemberCluster {name:?}"),
                ..v1::ErrorDetail::default()
            };
            let details = detail.encode_to_vec().into();
            let code = tonic::Code::NotFound;
            return Err(Status::with_details(code, "not found", details));
        };
        let is = |field: &str| object["spec"][field].as_bool().unwrap_or(false);
        let gang = |index| v1::StandingGang {
            namespace: "nlp".into(),
            name: "llm".into(),
            index,
            state: "Running".into(),
            milli_gpus: 8_000,
            ..v1::StandingGang::default()
        };
        let gangs: Vec<_> = (0..2).filter(|_| !is("drained")).map(gang).collect();
        Ok(tonic::Response::new(v1::ClusterResponse {
            name,
            region: "eu-west".into(),
            contact: "Ready".into(),
            cordoned: is("cordoned"),
            drained: is("drained"),
            gangs_total: u32::try_from(gangs.len()).unwrap_or(0),
            milli_gpus_total: gangs.iter().map(|gang| gang.milli_gpus).sum(),
            gangs,
            ..v1::ClusterResponse::default()
        }))
    }

    async fn logs(
        &self,
        request: Request<v1::LogsRequest>,
    ) -> Result<tonic::Response<Self::LogsStream>, Status> {
        let request = request.into_inner();
        let query = request.query.unwrap_or_default();
        if request.name == "waiting" {
            let detail = v1::ErrorDetail {
                code: "E5030".into(),
                message: "gang 0 of nlp/waiting waits for a place: it has no pods".into(),
                help: "see why: meridian why waiting -n nlp".into(),
                ..v1::ErrorDetail::default()
            };
            let details = detail.encode_to_vec().into();
            let code = tonic::Code::FailedPrecondition;
            return Err(Status::with_details(code, "no logs", details));
        }
        let chunk = |text: String| Ok(v1::LogsResponse { text: text.into() });
        let rank = query.rank;
        let chunks = vec![
            chunk(format!("{} step {rank}\nst", query.role)),
            chunk(format!("ep {}\n", query.tail_lines)),
        ];
        Ok(tonic::Response::new(tokio_stream::iter(chunks)))
    }

    async fn watch(
        &self,
        _: Request<v1::WatchRequest>,
    ) -> Result<tonic::Response<Self::WatchStream>, Status> {
        Ok(tonic::Response::new(tokio_stream::empty()))
    }

    async fn queue(
        &self,
        _: Request<v1::QueueRequest>,
    ) -> Result<tonic::Response<v1::QueueResponse>, Status> {
        Ok(tonic::Response::new(v1::QueueResponse::default()))
    }

    async fn capacity(
        &self,
        _: Request<v1::CapacityRequest>,
    ) -> Result<tonic::Response<v1::CapacityResponse>, Status> {
        Ok(tonic::Response::new(v1::CapacityResponse::default()))
    }
}
