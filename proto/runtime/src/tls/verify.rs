//! Whose certificates count: a hub's for an agent, an agent's for a hub.
//!
//! Owns the two verifiers. Chains, signatures, uses and names are checked by webpki. Never says
//! what a peer may do.

use std::sync::Arc;
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{CaPin, TlsError, Trust, provider, roots};

/// Certificates that an end sends along: its own, its authority's, and room for one between.
const MAX_CHAIN: usize = 4;

/// What an agent believes of a hub.
pub(super) fn hub_verifier(trust: Trust) -> Result<Arc<dyn ServerCertVerifier>, TlsError> {
    match trust {
        Trust::Pin(pin) => Ok(Arc::new(Pinned(pin))),
        Trust::Authorities(authorities) => {
            let verifier = server_verifier(&authorities)?;
            Ok(verifier)
        }
    }
}

fn server_verifier(
    authorities: &[CertificateDer<'static>],
) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    WebPkiServerVerifier::builder_with_provider(roots(authorities)?, provider())
        .build()
        .map_err(|error| TlsError::unreadable("the authorities", error))
}

/// Trusts the authority with the pinned key, if it is in the chain: then the chain must lead to it
/// as to any other.
#[derive(Debug)]
struct Pinned(CaPin);

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let is_pinned = |known: &&CertificateDer<'_>| CaPin::of(known).is_ok_and(|it| it == self.0);
        let authority = intermediates.iter().take(MAX_CHAIN).find(is_pinned);
        let authority = authority.ok_or(CertificateError::UnknownIssuer)?;
        let verifier = server_verifier(&[authority.clone().into_owned()])
            .map_err(|error| Error::General(error.to_string()))?;
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// What a hub believes of an agent.
pub(super) fn agent_verifier(
    authorities: &[CertificateDer<'static>],
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let inner = WebPkiClientVerifier::builder_with_provider(roots(authorities)?, provider())
        .allow_unauthenticated()
        .build()
        .map_err(|error| TlsError::unreadable("the authorities", error))?;
    Ok(Arc::new(WhateverTheDate(inner)))
}

/// Checks everything but dates. A handshake could only say "expired" to a machine; whoever serves
/// the call can tell a person since when and what to do, and can let an agent that was cut off for
/// days renew what it has. So each call must look at the dates.
#[derive(Debug)]
struct WhateverTheDate(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for WhateverTheDate {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if intermediates.len() > MAX_CHAIN {
            return Err(CertificateError::UnknownIssuer.into());
        }
        let at = within(end_entity, now).ok_or(CertificateError::BadEncoding)?;
        self.0.verify_client_cert(end_entity, intermediates, at)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// The moment of the certificate's life that is nearest to `now`.
fn within(certificate: &CertificateDer<'_>, now: UnixTime) -> Option<UnixTime> {
    let (_, read) = X509Certificate::from_der(certificate).ok()?;
    let seconds = |time: x509_parser::time::ASN1Time| u64::try_from(time.timestamp()).ok();
    let first = seconds(read.validity().not_before)?;
    let last = seconds(read.validity().not_after)?;
    let at = (first <= last).then(|| now.as_secs().clamp(first, last))?;
    Some(UnixTime::since_unix_epoch(Duration::from_secs(at)))
}
