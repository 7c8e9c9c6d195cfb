//! Calls for a certificate, to whichever hub answers.
//!
//! Owns the certificate request and the reading of refusals. Never keeps anything.

use std::sync::Arc;

use meridian_api::errors::ApiError;
use meridian_api::join::JoinToken;
use meridian_api::units::Millis;
use meridian_proto::v1::join_service_client::JoinServiceClient;
use meridian_proto::{status, v1};
use meridian_runtime::{Clock, Network, network, tls};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use tonic::transport::Channel;
use tonic::{Response, Status};

/// A hub writes one record and signs once.
const ANSWER_WITHIN: Millis = Millis::seconds(10);

/// No certificate came.
#[derive(Debug)]
pub(super) enum CallError {
    /// A hub said no, and will say so again.
    Refused { hub: String, source: ApiError },
    /// Whoever answers is not a hub of ours.
    NotBelieved { hub: String, reason: String },
    /// No hub answers, or none can at the moment.
    Unanswered(&'static str),
}

/// Asks for a certificate of `key`. What the certificate says is the hub's alone.
pub(super) fn request(key: &KeyPair) -> Result<Vec<u8>, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    Ok(params.serialize_request(key)?.der().to_vec())
}

/// What is asked of a hub.
#[derive(Clone)]
pub(super) enum Ask {
    /// A first certificate, on a token.
    Join(v1::JoinRequest),
    /// The next one, under the present one.
    Renew(v1::RenewRequest),
}

impl Ask {
    /// To join on `token`.
    pub(super) fn join(token: &JoinToken, csr: &[u8]) -> Self {
        Self::Join(v1::JoinRequest {
            token: token.reveal(),
            csr: csr.to_vec().into(),
        })
    }

    /// To renew.
    pub(super) fn renew(csr: &[u8]) -> Self {
        Self::Renew(v1::RenewRequest {
            csr: csr.to_vec().into(),
        })
    }

    async fn of(self, hub: Channel) -> Result<v1::JoinResponse, Status> {
        let mut client = JoinServiceClient::new(hub);
        let answer = match self {
            Self::Join(request) => client.join(request).await,
            Self::Renew(request) => client.renew(request).await,
        };
        answer.map(Response::into_inner)
    }
}

/// The first answer of a hub, in order. What one cannot do at the moment another may.
pub(super) async fn ask(
    network: &Arc<dyn Network>,
    clock: &Clock,
    hubs: &[String],
    ask: &Ask,
) -> Result<v1::JoinResponse, CallError> {
    let mut last = CallError::Unanswered("no hub answers");
    for hub in hubs {
        let answer = ask.clone().of(network::channel(Arc::clone(network), hub));
        match clock.timeout(ANSWER_WITHIN, answer).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(status)) => last = read(hub, &status),
            Err(_) => last = CallError::Unanswered("a hub takes too long"),
        }
    }
    Err(last)
}

fn read(hub: &str, refusal: &Status) -> CallError {
    let hub = hub.to_owned();
    if let Some(reason) = tls::failure(refusal) {
        return CallError::NotBelieved { hub, reason };
    }
    let source = status::from_status(refusal);
    if source.code.is_transient() || refusal.details().is_empty() {
        tracing::debug!(hub, error = %refusal, "no answer");
        return CallError::Unanswered("a hub cannot answer at the moment");
    }
    CallError::Refused { hub, source }
}
