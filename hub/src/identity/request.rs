//! Certificate requests: what is taken from one is its key.
//!
//! Owns the limits and the allow-list of keys. Whatever else a request asks for (subject, names,
//! uses, a life) is not even read, so that none of it can reach a certificate.

use meridian_api::errors::{ApiError, ErrorCode};
use rcgen::{PublicKeyData as _, SubjectPublicKeyInfo};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;

use super::names::KeyHash;

/// A request of ours has some 250 bytes; one with a page of names is no agent's.
pub(crate) const MAX_REQUEST_BYTES: usize = 4 * 1024;

/// A key whose holder has signed the request.
#[derive(Clone, Debug)]
pub(crate) struct RequestedKey {
    key: SubjectPublicKeyInfo,
    hash: KeyHash,
}

impl RequestedKey {
    /// Reads a PKCS #10 request (DER) and checks its signature.
    pub(crate) fn read(request: &[u8]) -> Result<Self, ApiError> {
        if request.len() > MAX_REQUEST_BYTES {
            let message = format!(
                "the certificate request has {} bytes, at most {MAX_REQUEST_BYTES} are read",
                request.len()
            );
            return Err(ApiError::new(ErrorCode::BadCertificateRequest, message));
        }
        let (rest, read) = X509CertificationRequest::from_der(request)
            .map_err(|error| refused(&format!("cannot be read: {error}")))?;
        if !rest.is_empty() {
            return Err(refused(&format!("is followed by {} bytes", rest.len())));
        }
        let spki = read.certification_request_info.subject_pki.raw;
        let key = SubjectPublicKeyInfo::from_der(spki)
            .map_err(|_| refused("has a key of an unknown kind"))?;
        let allowed = [
            &rcgen::PKCS_ECDSA_P256_SHA256,
            &rcgen::PKCS_ECDSA_P384_SHA384,
            &rcgen::PKCS_ED25519,
        ];
        if !allowed.contains(&key.algorithm()) {
            return Err(refused("has a key of a kind that is not let in"));
        }
        read.verify_signature()
            .map_err(|_| refused("is not signed by the key that it is for"))?;
        // Of what goes into the certificate, not of what came: they must be the same key.
        let hash = KeyHash::of(&key.subject_public_key_info());
        Ok(Self { key, hash })
    }

    /// The key, for a certificate.
    pub(crate) fn key(&self) -> &SubjectPublicKeyInfo {
        &self.key
    }

    /// Its hash.
    pub(crate) fn hash(&self) -> &KeyHash {
        &self.hash
    }
}

fn refused(why: &str) -> ApiError {
    let message = format!("the certificate request {why}");
    ApiError::new(ErrorCode::BadCertificateRequest, message).help(
        "it must be PKCS #10 (DER) for an ECDSA P-256, ECDSA P-384 or Ed25519 key, signed by it",
    )
}
