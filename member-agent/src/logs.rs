//! Sending logs: what a container writes, to the hub that asked.
//!
//! Owns one task and one connection per request, so that a reader who is slow, or a cluster that
//! is, holds back nothing else. Every request is answered, if only with why there is nothing.
//! Never keeps a line.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _, stream};
use meridian_api::errors::{ApiError, ErrorCode};
use meridian_api::units::Millis;
use meridian_proto::v1::agent_service_client::AgentServiceClient;
use meridian_proto::{convert, status, v1};
use meridian_runtime::{Clock, Tasks};
use tokio::sync::Semaphore;
use tonic::transport::Channel;

use crate::backend::{BackendError, ClusterBackend, GangKey, LogQuery};

/// Logs sent at once. The hub asks for at most as many; beyond it this agent protects itself.
const AT_ONCE: usize = 64;
/// Bytes in one message: two or three pages of a terminal, far below a message's limit.
const CHUNK: usize = 32 * 1024;
/// The cluster must begin to answer by then: the hub waits ten seconds.
const OPEN_WITHIN: Millis = Millis::seconds(8);

/// Answers requests for logs. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LogSender {
    backend: Arc<dyn ClusterBackend>,
    clock: Clock,
    tasks: Tasks,
    room: Arc<Semaphore>,
}

impl LogSender {
    /// A sender that reads from `backend`, in tasks of `tasks`.
    #[must_use]
    pub(crate) fn new(backend: Arc<dyn ClusterBackend>, clock: Clock, tasks: Tasks) -> Self {
        Self {
            backend,
            clock,
            tasks,
            room: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Answers one request over a connection of its own.
    pub(crate) fn serve(&self, channel: Channel, request: v1::LogRequest) {
        let sender = self.clone();
        let cancelled = self.tasks.cancelled().cancelled_owned();
        self.tasks.spawn_finite("logs", async move {
            let work = sender.answer(channel, request);
            tokio::select! {
                biased;
                () = cancelled => {}
                () = work => {}
            }
        });
    }

    async fn answer(&self, channel: Channel, request: v1::LogRequest) {
        let ticket = request.ticket.clone();
        let room = Arc::clone(&self.room).try_acquire_owned();
        let lines = if room.is_ok() {
            self.open(request).await
        } else {
            let message = format!("the agent sends {AT_ONCE} logs already");
            Err(ApiError::new(ErrorCode::Overloaded, message).help("close some of them"))
        };
        let first = v1::LogChunk {
            ticket,
            ..v1::LogChunk::default()
        };
        let rest = match lines {
            Ok(lines) => lines.flat_map(|text| stream::iter(chunks(text))).boxed(),
            Err(error) => stream::iter([sorry(&error)]).boxed(),
        };
        let all = stream::iter([first]).chain(rest);
        // Boxed: its type is so deep that the compiler gives up on it inside another.
        let mut hub = AgentServiceClient::new(channel);
        match hub.send_logs(all.boxed()).boxed().await {
            Ok(taken) => {
                let bytes = taken.into_inner().bytes;
                tracing::debug!(bytes, "logs sent");
            }
            Err(error) => tracing::debug!(%error, "logs were cut off"),
        }
    }

    async fn open(
        &self,
        request: v1::LogRequest,
    ) -> Result<BoxStream<'static, Result<Bytes, BackendError>>, ApiError> {
        let malformed =
            |error: convert::Malformed| ApiError::new(ErrorCode::Internal, error.to_string());
        let key = GangKey {
            gang: convert::gang(request.gang.as_ref()).map_err(malformed)?,
            epoch: convert::epoch(request.epoch).map_err(malformed)?,
        };
        let query = log_query(request.query.unwrap_or_default());
        let lines = self.backend.logs(key, query);
        match self.clock.timeout(OPEN_WITHIN, lines).await {
            Ok(lines) => lines.map_err(|error| told(&error)),
            Err(late) => Err(told(&BackendError::Unavailable(late.to_string()))),
        }
    }
}

fn log_query(query: v1::LogQuery) -> LogQuery {
    LogQuery {
        role: query.role,
        rank: query.rank,
        container: query.container,
        follow: query.follow,
        tail: query.has_tail.then_some(query.tail_lines),
        previous: query.previous,
        since: (query.since_ms > 0).then_some(Millis(query.since_ms)),
        timestamps: query.timestamps,
    }
}

/// Text in messages of bounded size.
fn chunks(text: Result<Bytes, BackendError>) -> Vec<v1::LogChunk> {
    let mut text = match text {
        Ok(text) => text,
        Err(error) => return vec![sorry(&told(&error))],
    };
    let mut chunks = Vec::new();
    while !text.is_empty() {
        let part = text.split_to(text.len().min(CHUNK));
        chunks.push(v1::LogChunk {
            text: part,
            ..v1::LogChunk::default()
        });
    }
    chunks
}

fn sorry(error: &ApiError) -> v1::LogChunk {
    v1::LogChunk {
        error: Some(status::to_detail(error)),
        ..v1::LogChunk::default()
    }
}

/// A backend's failure for whoever wanted to read.
fn told(error: &BackendError) -> ApiError {
    let code = match error {
        BackendError::Unavailable(_) => ErrorCode::ClusterUnreachable,
        BackendError::NotFound(_) | BackendError::Conflict { .. } => ErrorCode::NoLogs,
        BackendError::Invalid(_)
        | BackendError::Denied(_)
        | BackendError::Missing(_)
        | BackendError::NoRoom(_)
        | BackendError::NotOffered(_) => ErrorCode::InvalidObject,
        BackendError::Unsupported { .. } => ErrorCode::Unsupported,
    };
    ApiError::new(code, error.to_string())
}
