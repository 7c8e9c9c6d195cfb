//! The one call that user code may make to the agent of its cluster: its checkpoint is written.
//!
//! Owns the small HTTP service that pods find in `MERIDIAN_AGENT_URL`: one path, a body of at
//! most a kilobyte, limits on connections, on what is under way and on how often a pod calls, and
//! errors that say what to do. A caller is believed for the pod whose token it shows, and for
//! nothing else. Whatever can reach the port may call, over plain HTTP: a name that is none of a
//! pod and a token that is none never reach the API server, which would take them for more than
//! names. Never decides anything, and never tells what is in the cluster to one who does not have
//! the token of a pod.
//!
//! ```text
//! POST $MERIDIAN_AGENT_URL/checkpoint        Authorization: Bearer $MERIDIAN_AGENT_TOKEN
//! {"at": "2026-11-30T03:00:00Z"}             the moment is optional: now
//! 204 · 400 what is wrong · 401 no such pod and token · 413 · 429 later · 503 not now
//! ```

mod door;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::serve::IncomingStream;
use meridian_api::units::{BootMillis, Millis, UnixMillis};
use meridian_runtime::Clock;
use meridian_runtime::network::Listener;
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::backend::BackendError;
use crate::kubernetes::{AnswerRefused, KubernetesBackend};

/// Longest body: one instant, with room for what a later version adds.
const MAX_BODY: usize = 1024;
/// Calls under way. Each asks the API server twice, whose share for one client is some tens.
const MAX_CALLS: usize = 16;
/// A pod may call this often: checkpoints of training take seconds to minutes.
const EVERY: Millis = Millis::seconds(1);
/// Pods whose last call is remembered: as many as may call within [`EVERY`] at [`MAX_CALLS`] calls
/// of ten milliseconds each, and as many again.
const MAX_KNOWN: usize = 4096;

/// Times within [`EVERY`] that one address may ask for a pod, whether it is believed or not: eight
/// pods of a host that share its address, with three mistakes each.
const ASKS: u32 = 32;
/// Connections, each of which costs some ten KiB.
const MAX_OPEN: usize = 256;
/// Connections of one address: twice the pods of a host that share it.
const MAX_OF_ONE: usize = 16;
/// A call asks the API server twice, within ten seconds each; with some to send it.
const STAY: Millis = Millis::seconds(30);
/// Letters of a token: 32 bytes in hexadecimal.
const TOKEN: usize = 64;
/// Longest name of a pod, and of anything else in Kubernetes.
const MAX_NAME: usize = 253;

/// Which pod: namespace and name.
type Who = (String, String);

/// The address of a caller, without its port.
#[derive(Clone, Debug)]
struct From(String);

impl Connected<IncomingStream<'_, Listener>> for From {
    fn connect_info(stream: IncomingStream<'_, Listener>) -> Self {
        Self(door::host(stream.remote_addr()).to_owned())
    }
}

/// How often each address has asked, and since when that is counted.
type Asked = Mutex<BTreeMap<String, (BootMillis, u32)>>;

#[derive(Clone)]
struct Answers {
    backend: KubernetesBackend,
    clock: Clock,
    calls: Arc<Semaphore>,
    asked: Arc<Asked>,
    last: Arc<Mutex<BTreeMap<Who, BootMillis>>>,
}

/// What a pod says.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Checkpoint {
    /// When it was written, RFC 3339; absent = now.
    at: Option<String>,
}

/// Serves until cancelled.
pub async fn serve(
    listener: Listener,
    backend: KubernetesBackend,
    clock: Clock,
    cancelled: CancellationToken,
) -> io::Result<()> {
    let limits = door::Limits {
        open: MAX_OPEN,
        of_one: MAX_OF_ONE,
        stay: STAY,
    };
    let listener = door::guarded(listener, clock.clone(), limits);
    let answers = Answers {
        backend,
        clock,
        calls: Arc::new(Semaphore::new(MAX_CALLS)),
        asked: Arc::default(),
        last: Arc::default(),
    };
    let router = Router::new()
        .route("/v1/pods/{namespace}/{pod}/checkpoint", post(checkpoint))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(answers);
    axum::serve(
        listener,
        router.into_make_service_with_connect_info::<From>(),
    )
    .with_graceful_shutdown(cancelled.cancelled_owned())
    .await
}

async fn checkpoint(
    State(answers): State<Answers>,
    ConnectInfo(From(address)): ConnectInfo<From>,
    Path(who): Path<Who>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let Some(token) = token(&headers) else {
        let how = "say who you are: Authorization: Bearer $MERIDIAN_AGENT_TOKEN";
        return told(StatusCode::UNAUTHORIZED, how);
    };
    let now = answers.clock.wall();
    let at = match moment(&body, now) {
        Ok(at) => at,
        Err(why) => return told(StatusCode::BAD_REQUEST, &why),
    };
    if !(is_name(&who.0) && is_name(&who.1) && is_token(token)) {
        return refusal(&AnswerRefused::Unknown);
    }
    // By address, so that nobody can use up what another may ask.
    if !may_ask(&answers.asked, &address, answers.clock.boot()) {
        return later(StatusCode::TOO_MANY_REQUESTS, "too many calls from there");
    }
    let Ok(_call) = answers.calls.try_acquire() else {
        return later(StatusCode::SERVICE_UNAVAILABLE, "many call at once");
    };
    let caller = match answers.backend.believed(&who.0, &who.1, token).await {
        Ok(caller) => caller,
        Err(refused) => return refusal(&refused),
    };
    // Counted for who is believed alone: nobody can use up the calls of another pod.
    if !admit(&answers.last, &who, answers.clock.boot()) {
        return later(StatusCode::TOO_MANY_REQUESTS, "once a second is enough");
    }
    match answers.backend.answered(&caller, at).await {
        Ok(()) => StatusCode::NO_CONTENT.into_response(),
        Err(refused) => refusal(&refused),
    }
}

fn refusal(refused: &AnswerRefused) -> Response {
    match refused {
        AnswerRefused::Unknown => {
            let why = "no pod of a gang has this name and this token";
            told(StatusCode::UNAUTHORIZED, why)
        }
        // What the API server says is for who runs the agent, not for whoever calls.
        AnswerRefused::Failed(BackendError::Unavailable(why)) => {
            tracing::debug!(why, "a checkpoint is not noted");
            later(
                StatusCode::SERVICE_UNAVAILABLE,
                "the cluster does not answer",
            )
        }
        AnswerRefused::Failed(error) => {
            tracing::warn!(%error, "a checkpoint is not noted");
            told(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the cluster does not take it",
            )
        }
    }
}

/// True for what may be the name of a namespace or a pod. Everything else would be a part of a
/// path, or the begin of a query, where the agent asks its API server for it.
fn is_name(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let inside = |byte: u8| letter(byte) || byte == b'-' || byte == b'.';
    let ends = |byte: Option<&u8>| byte.is_some_and(|byte| letter(*byte));
    let bytes = text.as_bytes();
    let whole = bytes.len() <= MAX_NAME && bytes.iter().all(|byte| inside(*byte));
    whole && ends(bytes.first()) && ends(bytes.last()) && !text.contains("..")
}

/// True for what has the form of a token.
fn is_token(text: &str) -> bool {
    text.len() == TOKEN && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn token(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    text.strip_prefix("Bearer ").map(str::trim)
}

/// When the checkpoint was written: what the body says, and never later than now.
fn moment(body: &[u8], now: UnixMillis) -> Result<UnixMillis, String> {
    let said: Checkpoint = if body.trim_ascii().is_empty() {
        Checkpoint::default()
    } else {
        let how = "the body is {\"at\": \"2026-11-30T03:00:00Z\"} or empty";
        serde_json::from_slice(body).map_err(|error| format!("{error}: {how}"))?
    };
    let Some(text) = said.at else {
        return Ok(now);
    };
    let at: jiff::Timestamp = text
        .parse()
        .map_err(|_| format!("at: {text:?} is no instant such as 2026-11-30T03:00:00Z"))?;
    let at = UnixMillis(at.as_millisecond());
    if at > now {
        return Err(format!("at: {text} is later than now"));
    }
    Ok(at)
}

/// True when the address has not asked too often; then this counts.
fn may_ask(asked: &Asked, address: &str, now: BootMillis) -> bool {
    let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
    let counts = |since: BootMillis| now.since(since) < EVERY;
    if asked.len() >= MAX_KNOWN {
        asked.retain(|_, (since, _)| counts(*since));
    }
    if asked.len() >= MAX_KNOWN && !asked.contains_key(address) {
        return false;
    }
    let (since, count) = asked.entry(address.to_owned()).or_insert((now, 0));
    if !counts(*since) {
        (*since, *count) = (now, 0);
    }
    *count = count.saturating_add(1);
    *count <= ASKS
}

/// True when the pod has not called for long enough; then this call counts.
fn admit(last: &Mutex<BTreeMap<Who, BootMillis>>, who: &Who, now: BootMillis) -> bool {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    let rests = |at: &BootMillis| now.since(*at) < EVERY;
    if last.get(who).is_some_and(rests) {
        return false;
    }
    if last.len() >= MAX_KNOWN {
        last.retain(|_, at| rests(at));
    }
    if last.len() >= MAX_KNOWN {
        return false;
    }
    last.insert(who.clone(), now);
    true
}

fn told(status: StatusCode, why: &str) -> Response {
    (status, format!("{why}\n")).into_response()
}

fn later(status: StatusCode, why: &str) -> Response {
    let after = [(header::RETRY_AFTER, "1")];
    (status, after, format!("{why}: call again in a second\n")).into_response()
}

#[cfg(test)]
#[path = "answers/tests.rs"]
mod tests;
