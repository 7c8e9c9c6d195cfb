//! TLS as a layer over any network: who is at the other end is proved before a byte is read.
//!
//! Owns what is common to all of Meridian's TLS (version 1.3 alone, one cryptography library, the
//! hub's role name, time from the process's clock), certificates with their keys, and the pin of an
//! authority. Over pipes and simulated networks it works as over TCP. Never decides what a peer may
//! do.

mod connect;
mod verify;

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer as _, X509Certificate};

pub use self::connect::{TlsDialer, over_tls};

use crate::Clock;

/// The name that every hub's certificate carries and that every agent asks for. It stands for the
/// role: behind whatever address a hub is reached, and whatever else the authority has issued,
/// only a hub can answer to it.
pub const HUB_NAME: &str = "meridian-hub";
/// What is spoken inside.
const ALPN: &[u8] = b"h2";

/// Certificates, keys or their use went wrong.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A text is not what it should be.
    #[error("{what} cannot be read: {why}")]
    Unreadable {
        /// What was read.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// The pieces do not fit each other.
    #[error("TLS cannot be set up: {0}")]
    Unusable(#[from] rustls::Error),
}

impl TlsError {
    fn unreadable(what: &'static str, why: impl fmt::Display) -> Self {
        Self::Unreadable {
            what,
            why: why.to_string(),
        }
    }
}

/// A certificate with its chain and the key that it is of.
#[derive(Debug)]
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// From PEM: the certificate first, then those that lead to its authority.
    pub fn from_pem(chain: &str, key: &str) -> Result<Self, TlsError> {
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
        Ok(Self {
            chain: certificates(chain)?,
            key: key.map_err(|error| TlsError::unreadable("a private key", error))?,
        })
    }

    fn certified(&self) -> Result<CertifiedKey, TlsError> {
        let (chain, key) = (self.chain.clone(), self.key.clone_key());
        Ok(CertifiedKey::from_der(chain, key, &provider())?)
    }
}

/// Certificates of a PEM text, at least one.
pub fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let unreadable = |error: &dyn fmt::Display| TlsError::unreadable("a certificate", error);
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let chain = chain.map_err(|error| unreadable(&error))?;
    if chain.is_empty() {
        return Err(unreadable(&"there is none in the text"));
    }
    Ok(chain)
}

/// SHA-256 of an authority's public key: enough to know it by before anything else is trusted. It
/// stays when the authority's certificate is made anew for the same key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CaPin([u8; 32]);

impl CaPin {
    /// The pin of an authority's certificate (DER).
    pub fn of(certificate: &[u8]) -> Result<Self, TlsError> {
        let (_, read) = X509Certificate::from_der(certificate)
            .map_err(|error| TlsError::unreadable("a certificate", error))?;
        Ok(Self(Sha256::digest(read.public_key().raw).into()))
    }
}

impl fmt::Display for CaPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("sha256:")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CaPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is not a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be sha256: and 64 hexadecimal digits, as in the line that adds the cluster")]
pub struct NotAPin;

impl std::str::FromStr for CaPin {
    type Err = NotAPin;

    fn from_str(text: &str) -> Result<Self, NotAPin> {
        let digits = text.strip_prefix("sha256:").ok_or(NotAPin)?.as_bytes();
        let mut pin = [0; 32];
        if digits.len() != 2 * pin.len() || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(NotAPin);
        }
        for (byte, pair) in pin.iter_mut().zip(digits.chunks(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| NotAPin)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| NotAPin)?;
        }
        Ok(Self(pin))
    }
}

/// Whose word counts.
#[derive(Clone, Debug)]
pub enum Trust {
    /// The authority with this key, whose certificate the other end sends along.
    Pin(CaPin),
    /// These authorities.
    Authorities(Vec<CertificateDer<'static>>),
}

/// How an agent connects: to a hub by its role, with a certificate of its own if it has one.
pub fn client_config(
    clock: &Clock,
    trust: Trust,
    identity: Option<&Identity>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let verifier = verify::hub_verifier(trust)?;
    let builder = ClientConfig::builder_with_details(provider(), Arc::new(Wall(clock.clone())))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous() // the word for any verifier that is not the default one
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity {
        Some(identity) => {
            builder.with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())?
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    // A resumed session would go on under the certificate that began it.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(Arc::new(config))
}

/// How a hub is connected to: with the certificate it has at that moment. Whoever presents a
/// certificate must have it from one of `authorities` and hold its key, whatever its dates say;
/// whoever presents none is let in as nobody.
pub fn server_config(
    clock: &Clock,
    own: ServerCertificate,
    authorities: &[CertificateDer<'static>],
) -> Result<Arc<ServerConfig>, TlsError> {
    let verifier = verify::agent_verifier(authorities)?;
    let mut config = ServerConfig::builder_with_details(provider(), Arc::new(Wall(clock.clone())))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(own));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// The certificate that a server shows; replaced while it serves.
#[derive(Clone, Debug)]
pub struct ServerCertificate(Arc<RwLock<Arc<CertifiedKey>>>);

impl ServerCertificate {
    /// Shows `identity`.
    pub fn new(identity: &Identity) -> Result<Self, TlsError> {
        let certified = Arc::new(identity.certified()?);
        Ok(Self(Arc::new(RwLock::new(certified))))
    }

    /// Shows `identity` to whoever connects from here on.
    pub fn replace(&self, identity: &Identity) -> Result<(), TlsError> {
        let certified = Arc::new(identity.certified()?);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = certified;
        Ok(())
    }
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let certified = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(&certified))
    }
}

/// What TLS itself says in a chain of errors: why a handshake failed.
#[must_use]
pub fn failure(error: &(dyn StdError + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<rustls::Error>() {
            return Some(found.to_string());
        }
        // An `io::Error` shows the source of what it wraps, not what it wraps.
        next = match error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
        {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    None
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn roots(authorities: &[CertificateDer<'static>]) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in authorities {
        roots.add(authority.clone())?;
    }
    Ok(Arc::new(roots))
}

/// The process's clock, as TLS asks for it.
#[derive(Debug)]
struct Wall(Clock);

impl rustls::time_provider::TimeProvider for Wall {
    fn current_time(&self) -> Option<UnixTime> {
        let millis = u64::try_from(self.0.wall().0).ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_millis(millis)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_reads_back_and_nothing_else_is_one() {
        let pin = CaPin([0xa5; 32]);
        assert_eq!(pin.to_string().parse(), Ok(pin));
        let digits = "a5".repeat(32);
        for text in [
            digits.clone(),
            format!("sha256:{}", &digits[1..]),
            format!("sha256:{digits}0"),
            format!("sha256:{}", "+5".repeat(32)),
            String::new(),
        ] {
            assert_eq!(text.parse::<CaPin>(), Err(NotAPin), "{text:?}");
        }
    }

    #[test]
    fn the_words_of_tls_are_found_below_others() {
        let alert = rustls::Error::AlertReceived(rustls::AlertDescription::UnknownCA);
        let error = io::Error::other(io::Error::other(alert));
        assert!(failure(&error).is_some_and(|words| words.contains("UnknownCA")));
        assert_eq!(failure(&io::Error::other("reset")), None);
    }
}
