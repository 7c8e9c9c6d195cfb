//! The users' gRPC service: submit, plan, why, queue, capacity, clusters, watch, logs.
//!
//! Owns the translation between the wire and the hub's parts. Writes go the API server's one path;
//! questions go to the task that owns the model, on the leader. Never decides.

use std::pin::Pin;
use std::sync::Arc;

use futures::{Stream, StreamExt as _};
use meridian_api::canonical;
use meridian_api::document;
use meridian_api::errors::{ApiError, ErrorCode};
use meridian_api::ids::Revision;
use meridian_api::kinds::FederatedJob;
use meridian_api::units::Millis;
use meridian_apiserver::{DryRun, Kind, Request as Circumstances, Resources, Written};
use meridian_proto::v1::federation_service_server::FederationService;
use meridian_proto::{status, v1};
use meridian_runtime::{Clock, telemetry};
use meridian_store::keys::{self, ObjectKey, Part};
use meridian_store::{Event, Operation, SharedStore, WatchBatch};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument as _;

use crate::answers::{from_api_status, store_status};
use crate::leadership::{Leadership, Role};
use crate::promises::Promise;
use crate::questions::{Question, Reply};
use crate::sessions::LogDesk;
use crate::submissions::{Submission, SubmitError, Submitter, check_key};

/// Jobs of one stream that are on their way at once; their answers keep their order.
const STREAM_IN_FLIGHT: usize = 64;
/// Watches open at once over gRPC: each is one watch of the store; over HTTP thousands share one.
pub(crate) const MAX_WATCHES: usize = 1024;
/// A question that the model has not answered by then is told as overload.
const ANSWER_WITHIN: Millis = Millis::seconds(10);

/// What the service works with.
#[derive(Clone)]
pub(crate) struct Users {
    /// Time.
    pub(crate) clock: Clock,
    /// Where objects are.
    pub(crate) store: SharedStore,
    /// The one write path.
    pub(crate) resources: Resources,
    /// The way in for jobs.
    pub(crate) submitter: Submitter,
    /// The way to the model.
    pub(crate) questions: mpsc::Sender<Question>,
    /// Whether this replica leads.
    pub(crate) leadership: Leadership,
    /// Where logs are asked for.
    pub(crate) logs: LogDesk,
    /// Watches that may still be opened.
    pub(crate) watches: Arc<Semaphore>,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl FederationService for Users {
    type SubmitStreamStream = Answers<v1::SubmitStreamResponse>;
    type WatchStream = Answers<v1::WatchResponse>;
    type LogsStream = Answers<v1::LogsResponse>;

    async fn submit(
        &self,
        request: Request<v1::SubmitRequest>,
    ) -> Result<Response<v1::SubmitResponse>, Status> {
        let accepted = self.accept(request.into_inner()).await;
        accepted
            .map(Response::new)
            .map_err(|error| status::to_status(&error))
    }

    async fn submit_stream(
        &self,
        request: Request<Streaming<v1::SubmitRequest>>,
    ) -> Result<Response<Self::SubmitStreamStream>, Status> {
        let users = self.clone();
        let answers = request.into_inner().map(move |request| {
            let users = users.clone();
            async move {
                use v1::submit_stream_response::Result as Outcome;
                let outcome = match users.accept(request?).await {
                    Ok(accepted) => Outcome::Accepted(accepted),
                    Err(error) => Outcome::Refused(status::to_detail(&error)),
                };
                Ok(v1::SubmitStreamResponse {
                    result: Some(outcome),
                })
            }
        });
        Ok(Response::new(Box::pin(answers.buffered(STREAM_IN_FLIGHT))))
    }

    async fn plan(
        &self,
        request: Request<v1::PlanRequest>,
    ) -> Result<Response<v1::PlanResponse>, Status> {
        let job = parse(&request.into_inner().job).map_err(|error| status::to_status(&error))?;
        let fingerprint = fingerprint(&job);
        let mut plan = self.plan_of(job).await?;
        plan.token = Promise::of(fingerprint, &plan)
            .map(|promise| promise.to_string())
            .unwrap_or_default();
        Ok(Response::new(plan))
    }

    async fn why(
        &self,
        request: Request<v1::WhyRequest>,
    ) -> Result<Response<v1::WhyResponse>, Status> {
        let request = request.into_inner();
        self.ask(|reply| Question::Why(request, reply))
            .await
            .map(Response::new)
    }

    async fn queue(
        &self,
        request: Request<v1::QueueRequest>,
    ) -> Result<Response<v1::QueueResponse>, Status> {
        let request = request.into_inner();
        self.ask(|reply| Question::Queue(request, reply))
            .await
            .map(Response::new)
    }

    async fn capacity(
        &self,
        request: Request<v1::CapacityRequest>,
    ) -> Result<Response<v1::CapacityResponse>, Status> {
        let request = request.into_inner();
        self.ask(|reply| Question::Capacity(request, reply))
            .await
            .map(Response::new)
    }

    async fn cluster(
        &self,
        request: Request<v1::ClusterRequest>,
    ) -> Result<Response<v1::ClusterResponse>, Status> {
        let request = request.into_inner();
        self.ask(|reply| Question::Cluster(request, reply))
            .await
            .map(Response::new)
    }

    async fn tenants(
        &self,
        request: Request<v1::TenantsRequest>,
    ) -> Result<Response<v1::TenantsResponse>, Status> {
        let request = request.into_inner();
        self.ask(|reply| Question::Tenants(request, reply))
            .await
            .map(Response::new)
    }

    async fn fit_quota(
        &self,
        request: Request<v1::FitQuotaRequest>,
    ) -> Result<Response<v1::FitQuotaResponse>, Status> {
        let request = request.into_inner();
        self.ask(|reply| Question::FitQuota(request, reply))
            .await
            .map(Response::new)
    }

    async fn logs(
        &self,
        request: Request<v1::LogsRequest>,
    ) -> Result<Response<Self::LogsStream>, Status> {
        let request = request.into_inner();
        let target = self.ask(|reply| Question::Logs(request, reply)).await?;
        let lines = self.logs.open(target).await;
        let lines = lines.map_err(|error| status::to_status(&error))?;
        Ok(Response::new(Box::pin(lines)))
    }

    async fn watch(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let request = request.into_inner();
        let Some(kind) = self.resources.registry().kind(&request.kind).cloned() else {
            let error = ApiError::new(
                ErrorCode::UnknownKind,
                format!("there is no kind {:?}", request.kind),
            );
            return Err(status::to_status(
                &error.help("kinds: meridian api-resources"),
            ));
        };
        let Ok(open) = Arc::clone(&self.watches).try_acquire_owned() else {
            let error = ApiError::new(ErrorCode::Overloaded, "too many watches are open");
            return Err(status::to_status(
                &error.help("watch over HTTP, or close some"),
            ));
        };
        let from = match request.from_revision {
            0 => Revision(self.store.revision().await.map_err(store_status)?.0 + 1),
            from => Revision(from),
        };
        let namespace = Some(request.namespace.as_str()).filter(|name| !name.is_empty());
        let range = keys::objects(&kind.plural, namespace);
        let batches = self.store.watch(Operation::WatchKind, range, from).await;
        let batches = batches.map_err(store_status)?;
        let users = self.clone();
        let events = batches.then(move |batch| {
            // Held as long as the stream lives.
            let _ = &open;
            let (users, kind) = (users.clone(), Arc::clone(&kind));
            async move {
                match batch {
                    Ok(batch) => users.changes(&kind, batch).await,
                    Err(error) => vec![Err(store_status(error))],
                }
            }
        });
        Ok(Response::new(Box::pin(
            events.flat_map(futures::stream::iter),
        )))
    }
}

impl Users {
    /// What would happen to a job.
    async fn plan_of(&self, job: Value) -> Result<v1::PlanResponse, Status> {
        // The same checks as a submit, without the storing.
        let submission = Submission {
            request: Circumstances::default(),
            job,
            idempotency_key: String::new(),
            fingerprint: String::new(),
            dry_run: DryRun::All,
        };
        let dry = self.submitter.submit(submission).await.map_err(refused)?;
        let job: FederatedJob = serde_json::from_value(dry.object).map_err(|error| {
            status::to_status(&ApiError::new(ErrorCode::Internal, error.to_string()))
        })?;
        let mut plan = self
            .ask(|reply| Question::Plan(Box::new(job), reply))
            .await?;
        plan.warnings = dry.warnings;
        Ok(plan)
    }

    /// Refuses a job when what its plan promised no longer holds.
    async fn keeps(&self, token: &str, job: &Value) -> Result<(), ApiError> {
        let promise: Promise = token.parse()?;
        promise.is_of(&fingerprint(job))?;
        let now = self.plan_of(job.clone()).await;
        let now = now.map_err(|status| status::from_status(&status))?;
        promise.holds(&now)
    }

    async fn accept(&self, request: v1::SubmitRequest) -> Result<v1::SubmitResponse, ApiError> {
        check_key(&request.idempotency_key)?;
        let span = tracing::info_span!("submit job");
        if !request.traceparent.is_empty() {
            telemetry::set_parent(&span, &request.traceparent);
        }
        let mut job = parse(&request.job)?;
        if !request.plan_token.is_empty() {
            self.keeps(&request.plan_token, &job).await?;
        }
        // Before the trace is written into it: a repeated call is of another span.
        let fingerprint = if request.idempotency_key.is_empty() {
            String::new()
        } else {
            fingerprint(&job)
        };
        if let Some(traceparent) = telemetry::traceparent(&span) {
            carry(&mut job, &traceparent);
        }
        let submission = Submission {
            request: Circumstances::default(),
            job,
            idempotency_key: request.idempotency_key,
            fingerprint,
            dry_run: if request.dry_run {
                DryRun::All
            } else {
                DryRun::No
            },
        };
        let written = self.submitter.submit(submission).instrument(span).await;
        Ok(accepted(written.map_err(api_error)?))
    }

    async fn ask<T>(&self, question: impl FnOnce(Reply<T>) -> Question) -> Result<T, Status> {
        if self.leadership.fence().is_none() {
            return Err(match self.leadership.role() {
                Role::Follower(leader) => {
                    status::not_leader(leader.as_ref().map(|leader| leader.users.as_str()))
                }
                Role::Leader(_) => status::not_leader(None),
            });
        }
        let (reply, answer) = oneshot::channel();
        let overloaded = || {
            let error = ApiError::new(ErrorCode::Overloaded, "the hub has too many questions");
            status::to_status(&error.help("ask again").retry_after(Millis::seconds(1)))
        };
        self.questions
            .try_send(question(reply))
            .map_err(|_| overloaded())?;
        match self.clock.timeout(ANSWER_WITHIN, answer).await {
            Ok(Ok(answer)) => answer.map_err(|error| status::to_status(&error)),
            // Nobody had room to work it out, or the hub is stopping.
            Ok(Err(_)) | Err(_) => Err(overloaded()),
        }
    }

    /// One message per object of the batch, as it is now.
    async fn changes(
        &self,
        kind: &Kind,
        batch: WatchBatch,
    ) -> Vec<Result<v1::WatchResponse, Status>> {
        let mut objects: Vec<(ObjectKey, &'static str, Value)> = Vec::new();
        for event in &batch.events {
            let key = match event {
                Event::Put { current, .. } => &current.key,
                Event::Delete { key, .. } => key,
            };
            let Some((object, part)) = ObjectKey::parse(key) else {
                continue;
            };
            let (word, old) = match (event, part) {
                (Event::Delete { previous, .. }, Part::Spec) => {
                    let old = previous
                        .as_ref()
                        .map(|old| old.value.clone())
                        .unwrap_or_default();
                    (
                        "DELETED",
                        serde_json::from_slice(&old).unwrap_or(Value::Null),
                    )
                }
                (Event::Put { previous: None, .. }, Part::Spec) => ("ADDED", Value::Null),
                _ => ("MODIFIED", Value::Null),
            };
            match objects.iter_mut().find(|(known, ..)| *known == object) {
                Some(known) if word != "MODIFIED" => (known.1, known.2) = (word, old),
                Some(_) => {}
                None => objects.push((object, word, old)),
            }
        }
        let mut messages = Vec::new();
        for (key, word, old) in objects {
            let object = if word == "DELETED" {
                old
            } else {
                match self
                    .resources
                    .get(kind, key.namespace.as_deref(), &key.name)
                    .await
                {
                    Ok(object) => object,
                    // Gone meanwhile: its own event follows.
                    Err(_) => continue,
                }
            };
            messages.push(Ok(v1::WatchResponse {
                r#type: word.to_owned(),
                revision: batch.revision.0,
                object: object.to_string().into(),
            }));
        }
        messages
    }
}

fn fingerprint(job: &Value) -> String {
    canonical::hex(&canonical::sha256(job))
}

fn parse(job: &[u8]) -> Result<Value, ApiError> {
    let mut job = document::parse_one(job)?;
    let kind = job.get("kind").and_then(Value::as_str).unwrap_or_default();
    if kind != "FederatedJob" {
        let message = format!("kind: {kind:?} cannot be submitted, only a FederatedJob");
        let help = "other kinds: meridian apply -f FILE";
        return Err(ApiError::new(ErrorCode::UnknownKind, message).help(help));
    }
    if job.pointer("/metadata/namespace").is_none()
        && let Some(metadata) = job.get_mut("metadata").and_then(Value::as_object_mut)
    {
        metadata.insert("namespace".to_owned(), json!("default"));
    }
    Ok(job)
}

/// Writes the trace into the job, so that decision and agent go on with it.
fn carry(job: &mut Value, traceparent: &str) {
    let Some(metadata) = job.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
    if let Some(annotations) = annotations.as_object_mut() {
        let key = crate::model::TRACEPARENT_ANNOTATION;
        annotations.entry(key).or_insert_with(|| json!(traceparent));
    }
}

fn accepted(written: Written) -> v1::SubmitResponse {
    let text = |path: &str| {
        written
            .object
            .pointer(path)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    v1::SubmitResponse {
        namespace: text("/metadata/namespace"),
        name: text("/metadata/name"),
        uid: text("/metadata/uid"),
        revision: text("/metadata/resourceVersion")
            .parse()
            .unwrap_or_default(),
        replayed: written.unchanged,
        warnings: written.warnings,
    }
}

fn refused(error: SubmitError) -> Status {
    status::to_status(&api_error(error))
}

fn api_error(error: SubmitError) -> ApiError {
    match error {
        SubmitError::Stopping => ApiError::new(ErrorCode::StoreUnavailable, "the hub is stopping"),
        SubmitError::Refused(status) => from_api_status(status),
    }
}
