//! The one call that user code may make to the agent of its cluster: its checkpoint is written.
//!
//! Owns the small HTTP service that pods find in `MERIDIAN_AGENT_URL`: one path, a body of at
//! most a kilobyte, limits on what is under way and on how often a pod calls, and errors that say
//! what to do. A caller is believed for the pod whose token it shows, and for nothing else. Never
//! decides anything, and never tells whether a pod exists to one who does not have its token.
//!
//! ```text
//! POST $MERIDIAN_AGENT_URL/checkpoint        Authorization: Bearer $MERIDIAN_AGENT_TOKEN
//! {"at": "2026-11-30T03:00:00Z"}             the moment is optional: now
//! 204 · 400 what is wrong · 401 no such pod and token · 413 · 429 later · 503 not now
//! ```

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
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

/// Which pod: namespace and name.
type Who = (String, String);

#[derive(Clone)]
struct Answers {
    backend: KubernetesBackend,
    clock: Clock,
    calls: Arc<Semaphore>,
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
    let answers = Answers {
        backend,
        clock,
        calls: Arc::new(Semaphore::new(MAX_CALLS)),
        last: Arc::default(),
    };
    let router = Router::new()
        .route("/v1/pods/{namespace}/{pod}/checkpoint", post(checkpoint))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(answers);
    axum::serve(listener, router)
        .with_graceful_shutdown(cancelled.cancelled_owned())
        .await
}

async fn checkpoint(
    State(answers): State<Answers>,
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
        AnswerRefused::Failed(BackendError::Unavailable(why)) => {
            later(StatusCode::SERVICE_UNAVAILABLE, why)
        }
        AnswerRefused::Failed(error) => told(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
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
mod tests {
    use super::*;

    const NOW: UnixMillis = UnixMillis(1_700_000_000_000);

    #[test]
    fn a_moment_is_read_or_refused_with_what_is_wrong() {
        assert_eq!(moment(b"", NOW), Ok(NOW));
        assert_eq!(moment(b"{}", NOW), Ok(NOW));
        let said = br#"{"at": "2023-11-14T22:13:19Z"}"#;
        assert_eq!(moment(said, NOW), Ok(UnixMillis(NOW.0 - 1000)));
        for (body, why) in [
            (&br#"{"at": "2023-11-14T22:13:21Z"}"#[..], "later than now"),
            (br#"{"at": "yesterday"}"#, "no instant"),
            (br#"{"step": 3}"#, "unknown field `step`"),
            (b"saved", "the body is"),
        ] {
            let refused = moment(body, NOW).expect_err("refused");
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn a_pod_calls_once_a_second_and_others_do_not_wait_for_it() {
        let last = Mutex::default();
        let who = |pod: usize| ("ml".to_owned(), format!("pod-{pod}"));
        let at = |millis: u64| BootMillis(1_000_000 + millis);
        assert!(admit(&last, &who(0), at(0)));
        assert!(!admit(&last, &who(0), at(999)));
        assert!(admit(&last, &who(1), at(999)));
        assert!(admit(&last, &who(0), at(1000)));
        for pod in 2..MAX_KNOWN {
            assert!(admit(&last, &who(pod), at(1000)));
        }
        assert!(
            !admit(&last, &who(MAX_KNOWN), at(1500)),
            "nobody can be forgotten"
        );
        assert!(admit(&last, &who(MAX_KNOWN), at(2000)));
    }
}
