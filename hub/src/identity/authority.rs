//! The authority for agents: it issues the certificates of agents and of the hub's own listener.
//!
//! Owns its key, and what is in a certificate. It is made at the hub's first start and kept in the
//! store, for all replicas, so that a hub needs nothing but its store; whoever can read the store
//! or a backup of it can then issue certificates in any cluster's name. Where that is not
//! acceptable, files are given to each replica instead (`agentCa`). Never decides who gets a
//! certificate.

use std::path::PathBuf;

use bytes::Bytes;
use meridian_api::ids::Revision;
use meridian_api::units::{Millis, UnixMillis};
use meridian_runtime::tls::{self, CaPin, Identity, TlsError};
use meridian_runtime::{Clock, Random};
use meridian_store::{Compare, Operation, SharedStore, StoreError, Txn, keys};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData as _, SanType, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::names;
use super::request::RequestedKey;
use crate::config::{AgentCaFiles, AgentCertificatesConfig};
use crate::fence::put;

/// Certificates begin this long before they are issued, and a hub's ends this long after its life,
/// so that a peer whose clock is an hour off accepts it. Five minutes more for what passes between
/// issue and use.
const SKEW: Millis = Millis::seconds(65 * 60);
/// Life of a made authority. It is not replaced by itself: its key does not leave the store, and a
/// new one would ask every agent to join again.
const AUTHORITY_LIFE: Millis = Millis::seconds(10 * 365 * 24 * 3600);

/// The authority cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The store does not give or take it.
    #[error("the agents' authority cannot be kept in the store")]
    Store(#[from] StoreError),
    /// A file cannot be read.
    #[error("cannot read {path} of agentCa")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What is there is not an authority.
    #[error("the agents' authority cannot be used: {0}")]
    Unusable(String),
    /// TLS cannot use it.
    #[error("the agents' authority cannot be used")]
    Tls(#[from] TlsError),
}

impl From<rcgen::Error> for AuthorityError {
    fn from(error: rcgen::Error) -> Self {
        Self::Unusable(error.to_string())
    }
}

/// As stored.
#[derive(Serialize, Deserialize)]
struct Kept {
    certificate: String,
    key: String,
}

/// The authority of one hub, the same on all its replicas.
pub(crate) struct Authority {
    clock: Clock,
    random: Random,
    terms: AgentCertificatesConfig,
    certificate: CertificateDer<'static>,
    pem: String,
    pin: CaPin,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// From files, or from the store, where it is made when it is not there.
    pub(crate) async fn open(
        files: Option<&AgentCaFiles>,
        terms: AgentCertificatesConfig,
        store: &SharedStore,
        clock: Clock,
        random: Random,
    ) -> Result<Self, AuthorityError> {
        let kept = match files {
            Some(files) => read(files)?,
            None => stored(store, &terms, &clock, &random).await?,
        };
        let key = KeyPair::from_pem(&kept.key)?;
        let certificate = tls::certificates(&kept.certificate)?.swap_remove(0);
        check(&certificate, &key).map_err(AuthorityError::Unusable)?;
        Ok(Self {
            clock,
            random,
            terms,
            pin: CaPin::of(&certificate)?,
            certificate,
            issuer: Issuer::from_ca_cert_pem(&kept.certificate, key)?,
            pem: kept.certificate,
        })
    }

    /// How agents know it before they trust it.
    pub(crate) fn pin(&self) -> CaPin {
        self.pin
    }

    /// Its certificate.
    pub(crate) fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Its certificate as PEM.
    pub(crate) fn pem(&self) -> &str {
        &self.pem
    }

    /// The settings that it issues under.
    pub(crate) fn terms(&self) -> &AgentCertificatesConfig {
        &self.terms
    }

    /// A certificate (PEM) that names one cluster and nothing else, for a key whose holder asked.
    pub(crate) fn issue_agent(
        &self,
        cluster: &str,
        key: &RequestedKey,
    ) -> Result<String, AuthorityError> {
        let now = self.clock.wall();
        let mut params = self.leaf(now, now.after(self.terms.validity));
        params.distinguished_name.push(DnType::CommonName, cluster);
        let name = names::agent(&self.terms.trust_domain, cluster);
        params.subject_alt_names = vec![SanType::URI(name.try_into()?)];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        Ok(params.signed_by(key.key(), &self.issuer)?.pem())
    }

    /// A certificate with a key of its own for a hub's listener, under its role name and `hosts`.
    pub(crate) fn issue_hub(&self, hosts: &[String]) -> Result<Identity, AuthorityError> {
        let key = KeyPair::generate()?;
        let now = self.clock.wall();
        let mut params = self.leaf(now, now.after(self.terms.hub_validity).after(SKEW));
        params
            .distinguished_name
            .push(DnType::CommonName, tls::HUB_NAME);
        let hosts = [&[tls::HUB_NAME.to_owned()], hosts].concat();
        params.subject_alt_names = CertificateParams::new(hosts)?.subject_alt_names;
        let name = names::hub(&self.terms.trust_domain);
        params
            .subject_alt_names
            .push(SanType::URI(name.try_into()?));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let chain = [
            params.signed_by(&key, &self.issuer)?.pem().as_str(),
            &self.pem,
        ]
        .concat();
        Ok(Identity::from_pem(&chain, &key.serialize_pem())?)
    }

    /// What both kinds of certificate have in common: an end, not an authority, for signing only.
    fn leaf(&self, now: UnixMillis, until: UnixMillis) -> CertificateParams {
        let mut params = CertificateParams::default();
        (params.not_before, params.not_after) = (instant(before(now)), instant(until));
        params.serial_number = Some(serial(&self.random));
        params.distinguished_name = DistinguishedName::new();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        params
    }
}

fn before(now: UnixMillis) -> UnixMillis {
    let skew = i64::try_from(SKEW.0).unwrap_or(i64::MAX);
    UnixMillis(now.0.saturating_sub(skew))
}

fn instant(at: UnixMillis) -> OffsetDateTime {
    // Seconds, as certificates have them; a hub's clock beyond the year 9999 is no clock.
    OffsetDateTime::from_unix_timestamp(at.0.div_euclid(1000)).unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

/// 127 random bits: positive, and at most 20 bytes (RFC 5280, 4.1.2.2).
fn serial(random: &Random) -> SerialNumber {
    let mut serial = [0; 16];
    random.fill(&mut serial);
    serial[0] &= 0x7f;
    SerialNumber::from_slice(&serial)
}

/// The pieces fit, and may issue.
fn check(certificate: &CertificateDer<'_>, key: &KeyPair) -> Result<(), String> {
    let (_, read) = X509Certificate::from_der(certificate).map_err(|error| error.to_string())?;
    if !read.is_ca() {
        return Err("its certificate is not one of an authority (CA:FALSE)".to_owned());
    }
    if read.public_key().raw != key.subject_public_key_info() {
        return Err("its key is not the one of its certificate".to_owned());
    }
    Ok(())
}

fn read(files: &AgentCaFiles) -> Result<Kept, AuthorityError> {
    let text = |path: &PathBuf| {
        std::fs::read_to_string(path).map_err(|source| AuthorityError::File {
            path: path.clone(),
            source,
        })
    };
    Ok(Kept {
        certificate: text(&files.cert)?,
        key: text(&files.key)?,
    })
}

/// Of replicas that start together one makes it; the others take what it made.
async fn stored(
    store: &SharedStore,
    terms: &AgentCertificatesConfig,
    clock: &Clock,
    random: &Random,
) -> Result<Kept, AuthorityError> {
    let key = keys::agent_authority();
    let known = store.get(Operation::KeepAuthority, key.clone()).await?;
    if let Some(known) = known {
        return parse(&known.value);
    }
    let made = make(terms, clock, random)?;
    let value = serde_json::to_vec(&made).expect("two texts");
    let txn = Txn {
        compares: vec![Compare::ModRevision(key.clone(), Revision(0))],
        success: vec![put(key.clone(), value)],
        failure: Vec::new(),
    };
    if store.txn(Operation::KeepAuthority, txn).await?.succeeded {
        tracing::info!("an authority for agents was made; its key is in the store");
        return Ok(made);
    }
    match store.get(Operation::KeepAuthority, key).await? {
        Some(known) => parse(&known.value),
        None => Err(AuthorityError::Unusable(
            "it was removed just now".to_owned(),
        )),
    }
}

fn parse(value: &Bytes) -> Result<Kept, AuthorityError> {
    serde_json::from_slice(value).map_err(|error| AuthorityError::Unusable(error.to_string()))
}

fn make(
    terms: &AgentCertificatesConfig,
    clock: &Clock,
    random: &Random,
) -> Result<Kept, AuthorityError> {
    let key = KeyPair::generate()?;
    let now = clock.wall();
    let mut params = CertificateParams::default();
    (params.not_before, params.not_after) =
        (instant(before(now)), instant(now.after(AUTHORITY_LIFE)));
    params.serial_number = Some(serial(random));
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::OrganizationName, terms.trust_domain.as_str());
    params
        .distinguished_name
        .push(DnType::CommonName, "Meridian authority for agents");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(Kept {
        certificate: params.self_signed(&key)?.pem(),
        key: key.serialize_pem(),
    })
}
