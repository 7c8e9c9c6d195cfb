//! What operators' machines ask an agent: is it alive, is it attached, what does it count.
//!
//! Owns `/healthz`, `/readyz` and `/metrics` on a loopback listener. Never changes anything.

use std::io;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use meridian_runtime::network::Listener;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::uplink::Contact;

/// The text form of OpenMetrics.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone)]
struct Probes {
    registry: Arc<Registry>,
    contact: watch::Receiver<Contact>,
}

/// Serves until cancelled.
pub async fn serve(
    listener: Listener,
    registry: Registry,
    contact: watch::Receiver<Contact>,
    cancelled: CancellationToken,
) -> io::Result<()> {
    let probes = Probes {
        registry: Arc::new(registry),
        contact,
    };
    let router = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(probes);
    axum::serve(listener, router)
        .with_graceful_shutdown(cancelled.cancelled_owned())
        .await
}

/// Ready means attached. An agent that is not goes on with all that it was ordered.
async fn ready(State(probes): State<Probes>) -> impl IntoResponse {
    match &*probes.contact.borrow() {
        Contact::Attached { hub, incarnation } => (
            StatusCode::OK,
            format!("attached to {hub}, incarnation {incarnation}\n"),
        ),
        Contact::Dialling => (
            StatusCode::SERVICE_UNAVAILABLE,
            "dialling the hub\n".to_owned(),
        ),
        Contact::Refused { hub, message } => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("refused by {hub}: {message}\n"),
        ),
    }
}

async fn metrics(State(probes): State<Probes>) -> impl IntoResponse {
    let mut text = String::new();
    let encoded = encode(&mut text, &probes.registry);
    let status = match encoded {
        Ok(()) => StatusCode::OK,
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    (status, [(header::CONTENT_TYPE, OPEN_METRICS)], text)
}
