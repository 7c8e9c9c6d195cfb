//! Names in certificates: `spiffe://<trust domain>/cluster/<name>` for an agent.
//!
//! Owns how such a name is written, and the only way to read one. Never believes a certificate
//! that says more than one name.

use meridian_api::canonical::hex;
use meridian_api::errors::{ApiError, ErrorCode};
use meridian_api::quantity::Span;
use meridian_api::units::{Millis, UnixMillis};
use meridian_runtime::network::Peer;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate};

/// SHA-256 of a public key with its algorithm (SubjectPublicKeyInfo), in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct KeyHash(String);

impl KeyHash {
    /// Of a SubjectPublicKeyInfo (DER).
    pub(crate) fn of(spki: &[u8]) -> Self {
        Self(hex(&Sha256::digest(spki).into()))
    }

    /// The first digits: enough for a person to tell two apart.
    pub(crate) fn short(&self) -> &str {
        self.0.get(..12).unwrap_or(&self.0)
    }
}

/// The name of a cluster's agent.
pub(crate) fn agent(trust_domain: &str, cluster: &str) -> String {
    format!("spiffe://{trust_domain}/cluster/{cluster}")
}

/// The name of a hub.
pub(crate) fn hub(trust_domain: &str) -> String {
    format!("spiffe://{trust_domain}/hub")
}

/// The agent at the other end of a connection, as its certificate names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The only cluster that it may speak for.
    pub(crate) cluster: String,
    /// Which key it has proved to hold.
    pub(crate) key: KeyHash,
    /// End of its certificate.
    pub(crate) until: UnixMillis,
}

impl Caller {
    /// Reads the certificate of a peer that the handshake has let in.
    pub(crate) fn of(peer: Option<&Peer>, trust_domain: &str) -> Result<Self, ApiError> {
        let certificate = peer.and_then(|peer| peer.certificate.as_deref());
        let certificate = certificate.ok_or_else(|| {
            let message = "this call needs a certificate of an agent, and there is none";
            ApiError::new(ErrorCode::AgentNotJoined, message).help(JOIN)
        })?;
        let foreign = |why: &str| {
            let message = format!("the certificate is not one of an agent: {why}");
            ApiError::new(ErrorCode::AgentNotJoined, message).help(JOIN)
        };
        let (_, read) =
            X509Certificate::from_der(certificate).map_err(|_| foreign("it cannot be read"))?;
        let names = read
            .subject_alternative_name()
            .map_err(|_| foreign("it has its names twice"))?;
        let names = names.map_or(&[][..], |names| names.value.general_names.as_slice());
        let [GeneralName::URI(uri)] = names else {
            return Err(foreign(&format!("it has {} names", names.len())));
        };
        let prefix = agent(trust_domain, "");
        let cluster = uri.strip_prefix(&prefix).unwrap_or_default();
        if cluster.is_empty() || cluster.contains('/') {
            return Err(foreign(&format!("it names {uri}, not {prefix}CLUSTER")));
        }
        Ok(Self {
            cluster: cluster.to_owned(),
            key: KeyHash::of(read.public_key().raw),
            until: UnixMillis(read.validity().not_after.timestamp().saturating_mul(1000)),
        })
    }

    /// Refuses a certificate that ended more than `grace` before `now`.
    ///
    /// Its beginning is not looked at: this hub's own authority has issued it, so that it can only
    /// lie ahead when this hub's clock has been set back.
    pub(crate) fn in_time(&self, now: UnixMillis, grace: Millis) -> Result<(), ApiError> {
        if now <= self.until.after(grace) {
            return Ok(());
        }
        let (ago, grace_span) = (Span(now.since(self.until)), Span(grace));
        let cluster = &self.cluster;
        let message = format!("the certificate of cluster {cluster:?} ended {ago} ago");
        let help = if grace == Millis::ZERO {
            "the agent renews it by itself".to_owned()
        } else {
            format!(
                "it could be renewed for {grace_span} after its end; let an agent join again: \
                 meridian cluster revoke {cluster}, then meridian cluster join {cluster}"
            )
        };
        Err(ApiError::new(ErrorCode::CertificateExpired, message).help(help))
    }
}

/// What to do without a certificate.
const JOIN: &str = "let the agent join: meridian cluster join NAME prints how";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_without_a_certificate_is_nobody() {
        let peer = Peer {
            address: "10.0.0.1:4711".to_owned(),
            certificate: None,
        };
        for peer in [None, Some(&peer)] {
            let refused = Caller::of(peer, "meridian").expect_err("nobody");
            assert_eq!(refused.code, ErrorCode::AgentNotJoined);
        }
    }

    #[test]
    fn a_certificate_ends_when_it_says_and_may_be_renewed_for_a_while() {
        let caller = Caller {
            cluster: "euw-a".to_owned(),
            key: KeyHash::of(b"key"),
            until: UnixMillis(10_000),
        };
        assert!(caller.in_time(UnixMillis(10_000), Millis::ZERO).is_ok());
        let late = caller.in_time(UnixMillis(12_000), Millis::ZERO);
        let late = late.expect_err("ended");
        assert_eq!(late.code, ErrorCode::CertificateExpired);
        assert!(late.message.contains("2s ago"), "{late}");
        assert!(caller.in_time(UnixMillis(12_000), Millis(2_000)).is_ok());
        assert!(caller.in_time(UnixMillis(12_001), Millis(2_000)).is_err());
    }
}
