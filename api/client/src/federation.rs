//! The hub's gRPC service: submit, plan, why, queue, capacity, logs.
//!
//! Owns time limits and error reading for these calls. Never retries a submit by itself: whoever
//! holds the idempotency key does.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use futures::Stream;
use meridian_proto::v1;
use meridian_proto::v1::federation_service_client::FederationServiceClient;
use meridian_proto::v1::submit_stream_response::Result as WireAnswer;
use serde_json::Value;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

use crate::client::Client;
use crate::errors::{self, ClientError, Failure, FailureKind};
use crate::objects::DryRun;

/// Largest message that is read. `why` of a job over a thousand clusters with a few reasons of
/// 300 bytes for each is some 2 MiB.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;

/// One job to be stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    /// A `FederatedJob`.
    pub job: Value,
    /// The same key with the same job is stored once; at most 128 bytes.
    pub idempotency_key: String,
    /// Whether it is stored at all.
    pub dry_run: DryRun,
    /// Of a plan of this job: refused when what it promised no longer holds. Empty = none.
    pub plan_token: String,
}

impl From<Submission> for v1::SubmitRequest {
    fn from(submission: Submission) -> Self {
        Self {
            job: submission.job.to_string().into(),
            idempotency_key: submission.idempotency_key,
            dry_run: submission.dry_run == DryRun::Server,
            traceparent: String::new(),
            plan_token: submission.plan_token,
        }
    }
}

/// What became of one submission of a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Stored, or known already.
    Accepted(v1::SubmitResponse),
    /// Refused; the others of the stream go on.
    Refused(Box<Failure>),
}

/// Answers to a stream of submissions, in order.
pub struct SubmitAnswers {
    client: Client,
    answers: Streaming<v1::SubmitStreamResponse>,
}

impl SubmitAnswers {
    /// The answer to the next submission; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<Answer>, ClientError> {
        let read = self
            .client
            .clock
            .timeout(self.client.timeout, self.answers.message());
        let message = read
            .await
            .map_err(|_| self.client.too_late("SubmitStream"))?
            .map_err(|status| errors::from_grpc(self.client.address(), &status))?;
        match message.map(|message| message.result) {
            None => Ok(None),
            Some(Some(WireAnswer::Accepted(stored))) => Ok(Some(Answer::Accepted(stored))),
            Some(Some(WireAnswer::Refused(detail))) => {
                let failure = errors::from_detail(FailureKind::Invalid, detail);
                Ok(Some(Answer::Refused(Box::new(failure))))
            }
            Some(None) => Err(ClientError::Protocol(
                "an answer to a submission without a result".into(),
            )),
        }
    }
}

/// What a container writes, as it comes.
pub struct LogText {
    client: Client,
    chunks: Streaming<v1::LogsResponse>,
}

impl LogText {
    /// The next part of the text, whole lines or not; `None` at its end. May take for ever: a
    /// container that is followed need not write anything.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        let chunk = self.chunks.message().await;
        let chunk = chunk.map_err(|status| errors::from_grpc(self.client.address(), &status))?;
        Ok(chunk.map(|chunk| chunk.text))
    }
}

pub(crate) type Reply<'a, T> =
    Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send + 'a>>;

impl Client {
    fn federation(&self) -> FederationServiceClient<Channel> {
        FederationServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    fn too_late(&self, what: &str) -> ClientError {
        ClientError::TimedOut {
            what: what.to_owned(),
            limit: self.timeout,
        }
    }

    /// Stores one job. Acknowledged after the commit.
    pub async fn submit(&self, submission: Submission) -> Result<v1::SubmitResponse, ClientError> {
        let request = v1::SubmitRequest::from(submission);
        let mut service = self.federation();
        self.within("Submit", Box::pin(service.submit(request)))
            .await
    }

    /// Stores many jobs; answers come in order, and a refused one does not end the stream.
    pub async fn submit_stream(
        &self,
        submissions: impl Stream<Item = Submission> + Send + 'static,
    ) -> Result<SubmitAnswers, ClientError> {
        let requests = futures::StreamExt::map(submissions, v1::SubmitRequest::from);
        let mut service = self.federation();
        let opened = Box::pin(service.submit_stream(requests));
        let answers = self.within("SubmitStream", opened).await?;
        Ok(SubmitAnswers {
            client: self.clone(),
            answers,
        })
    }

    /// What would happen to this job. Changes nothing.
    pub async fn plan(&self, job: &Value) -> Result<v1::PlanResponse, ClientError> {
        let request = v1::PlanRequest {
            job: job.to_string().into(),
        };
        self.read("Plan", request, |service, request| {
            Box::pin(service.plan(request))
        })
        .await
    }

    /// Why a job waits, or where it runs.
    pub async fn why(&self, namespace: &str, name: &str) -> Result<v1::WhyResponse, ClientError> {
        let request = v1::WhyRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        self.read("Why", request, |service, request| {
            Box::pin(service.why(request))
        })
        .await
    }

    /// The first `limit` gangs of the queue (0 = as many as the hub shows), of one tenant or
    /// (empty) of all.
    pub async fn queue(&self, limit: u32, tenant: &str) -> Result<v1::QueueResponse, ClientError> {
        let request = v1::QueueRequest {
            limit,
            tenant: tenant.to_owned(),
        };
        self.read("Queue", request, |service, request| {
            Box::pin(service.queue(request))
        })
        .await
    }

    /// GPUs of each pool, of one flavor or (empty) of all; with the largest gangs that could start,
    /// if `gangs`.
    pub async fn capacity(
        &self,
        flavor: &str,
        gangs: bool,
    ) -> Result<v1::CapacityResponse, ClientError> {
        let request = v1::CapacityRequest {
            flavor: flavor.to_owned(),
            gangs,
        };
        self.read("Capacity", request, |service, request| {
            Box::pin(service.capacity(request))
        })
        .await
    }

    /// The tenant tree, of one tenant and those below it or (empty) of all.
    pub async fn tenants(&self, tenant: &str) -> Result<v1::TenantsResponse, ClientError> {
        let request = v1::TenantsRequest {
            tenant: tenant.to_owned(),
        };
        self.read("Tenants", request, |service, request| {
            Box::pin(service.tenants(request))
        })
        .await
    }

    /// What these `Tenant` and `TenantQuota` documents would do. Changes nothing.
    pub async fn fit_quota(
        &self,
        documents: &[Value],
    ) -> Result<v1::FitQuotaResponse, ClientError> {
        let documents = Value::Array(documents.to_vec());
        let request = v1::FitQuotaRequest {
            documents: documents.to_string().into(),
        };
        self.read("FitQuota", request, |service, request| {
            Box::pin(service.fit_quota(request))
        })
        .await
    }

    /// One cluster with at most `limit` of its gangs (0 = as many as the hub shows).
    pub async fn cluster(
        &self,
        name: &str,
        limit: u32,
    ) -> Result<v1::ClusterResponse, ClientError> {
        let request = v1::ClusterRequest {
            name: name.to_owned(),
            limit,
        };
        self.read("Cluster", request, |service, request| {
            Box::pin(service.cluster(request))
        })
        .await
    }

    /// What a container of a gang writes. Dropping the text ends the call.
    pub async fn logs(&self, request: v1::LogsRequest) -> Result<LogText, ClientError> {
        let mut service = self.federation();
        let opened = Box::pin(service.logs(request));
        let chunks = self.within("Logs", opened).await?;
        Ok(LogText {
            client: self.clone(),
            chunks,
        })
    }

    /// A call that changes nothing: asked a second time when its connection is lost.
    async fn read<Q: Clone, T>(
        &self,
        what: &str,
        request: Q,
        call: impl for<'a> Fn(&'a mut FederationServiceClient<Channel>, Q) -> Reply<'a, T>,
    ) -> Result<T, ClientError> {
        let mut service = self.federation();
        let first = call(&mut service, request.clone());
        match self.within(what, first).await {
            Err(ClientError::Lost { .. }) => self.within(what, call(&mut service, request)).await,
            done => done,
        }
    }

    /// A call within the client's limit.
    pub(crate) async fn within<T>(&self, what: &str, call: Reply<'_, T>) -> Result<T, ClientError> {
        self.clock
            .timeout(self.timeout, call)
            .await
            .map_err(|_| self.too_late(what))?
            .map(Response::into_inner)
            .map_err(|status| errors::from_grpc(self.address(), &status))
    }
}
