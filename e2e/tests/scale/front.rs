//! What stands in front of an API server, and may tell the agent less than there is.
//!
//! Owns a plain HTTP server that passes every request on with all rights. While it lies, listings
//! lack things and watches are too old to go on, so that its caller lists again and again; what is
//! asked for by name is answered truly. Never changes what is there.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse as _, Response};
use futures::StreamExt as _;
use http::{Method, StatusCode, header};
use http_body_util::BodyExt as _;
use meridian_runtime::Tasks;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// What the agent is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The truth.
    Truth,
    /// Listings are empty.
    Nothing,
    /// Listings have every second thing.
    Half,
    /// The server is not available.
    Away,
}

/// The front of one API server.
#[derive(Clone)]
pub(crate) struct Front {
    client: kube::Client,
    inside: Arc<Mutex<(Way, CancellationToken)>>,
    told: Arc<AtomicUsize>,
    followed: Arc<AtomicUsize>,
    port: u16,
}

impl Front {
    /// Serves on a port of this machine until `tasks` end.
    pub(crate) async fn open(client: kube::Client, tasks: &Tasks) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let front = Self {
            client,
            inside: Arc::new(Mutex::new((Way::Truth, CancellationToken::new()))),
            told: Arc::default(),
            followed: Arc::default(),
            port: listener.local_addr().expect("bound").port(),
        };
        let router = Router::new().fallback(answer).with_state(front.clone());
        tasks.spawn_finite("front", async move {
            axum::serve(listener, router).await.expect("it goes on");
        });
        front
    }

    /// What an agent reads to come through here.
    pub(crate) fn kubeconfig(&self) -> String {
        let cluster = json!({"server": format!("http://127.0.0.1:{}", self.port)});
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "front",
            "clusters": [{"name": "front", "cluster": cluster}],
            "users": [{"name": "front", "user": {}}],
            "contexts": [{"name": "front", "context": {"cluster": "front", "user": "front"}}],
        });
        config.to_string()
    }

    /// What the agent is told from here on. Every watch ends.
    pub(crate) fn set(&self, way: Way) {
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        inside.1.cancel();
        *inside = (way, CancellationToken::new());
        self.told.store(0, Ordering::SeqCst);
        self.followed.store(0, Ordering::SeqCst);
    }

    /// Watches that tell the truth, since the last change.
    pub(crate) fn followed(&self) -> usize {
        self.followed.load(Ordering::SeqCst)
    }

    /// Answers that were not the truth, since the last change.
    pub(crate) fn told(&self) -> usize {
        self.told.load(Ordering::SeqCst)
    }

    fn now(&self) -> (Way, CancellationToken) {
        let inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        inside.clone()
    }

    fn untrue(&self, code: StatusCode, reason: &str) -> Response {
        self.told.fetch_add(1, Ordering::SeqCst);
        let status = json!({
            "apiVersion": "v1", "kind": "Status", "status": "Failure", "message": reason,
            "reason": reason, "code": code.as_u16(),
        });
        (code, status.to_string()).into_response()
    }

    /// Passes a request on.
    async fn pass(&self, request: Request) -> Response {
        let (mut parts, body) = request.into_parts();
        parts.headers.remove(header::HOST);
        let body = body.collect().await.expect("a whole request").to_bytes();
        let body = kube::client::Body::from(body.to_vec());
        let answer = self.client.send(Request::from_parts(parts, body)).await;
        let (mut parts, body) = answer.expect("the server answers").into_parts();
        // How the body comes is between the two of each connection.
        parts.headers.remove(header::TRANSFER_ENCODING);
        Response::from_parts(parts, Body::from_stream(body.into_data_stream()))
    }

    /// A listing with less than there is; what is no listing is passed on as it is.
    async fn shorten(&self, answer: Response, way: Way) -> Response {
        let (mut parts, body) = answer.into_parts();
        let body = body.collect().await.expect("a whole answer").to_bytes();
        let Ok(mut listing) = serde_json::from_slice::<Value>(&body) else {
            return Response::from_parts(parts, Body::from(body));
        };
        let Some(items) = listing.get_mut("items").and_then(Value::as_array_mut) else {
            return Response::from_parts(parts, Body::from(body));
        };
        let mut position = 0;
        items.retain(|_| {
            position += 1;
            way == Way::Half && position % 2 == 0
        });
        self.told.fetch_add(1, Ordering::SeqCst);
        parts.headers.remove(header::CONTENT_LENGTH);
        Response::from_parts(parts, Body::from(listing.to_string()))
    }
}

async fn answer(State(front): State<Front>, request: Request) -> Response {
    let (way, ends) = front.now();
    let query = request.uri().query().unwrap_or_default();
    let watches = query.split('&').any(|word| word == "watch=true");
    let reads = request.method() == Method::GET;
    match way {
        Way::Away => front.untrue(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
        Way::Nothing | Way::Half if watches => front.untrue(StatusCode::GONE, "Expired"),
        Way::Nothing | Way::Half if reads => {
            let answer = front.pass(request).await;
            front.shorten(answer, way).await
        }
        Way::Truth | Way::Nothing | Way::Half => {
            let watch = usize::from(watches);
            front.followed.fetch_add(watch, Ordering::SeqCst);
            let answer = front.pass(request).await;
            let (parts, body) = answer.into_parts();
            let body = body.into_data_stream().take_until(ends.cancelled_owned());
            Response::from_parts(parts, Body::from_stream(body))
        }
    }
}
