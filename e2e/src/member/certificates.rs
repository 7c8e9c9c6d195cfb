//! Certificates of one member cluster: an authority of its own, and what it signs.
//!
//! Owns who is who there. Its keys live as long as the cluster's folder and guard nothing else,
//! so they are never rotated.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};

use super::MemberError;
use super::files::write;

/// Who signs every certificate of the cluster.
pub(super) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Authority({})", self.folder.display())
    }
}

/// A certificate and its key, as files.
#[derive(Clone, Debug)]
pub(super) struct Pair {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

impl Authority {
    /// A new one, with its certificate in `folder`.
    pub(super) fn new(folder: &Path) -> Result<Self, MemberError> {
        let mut params = CertificateParams::default();
        named(&mut params, "member-cluster", None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let authority = Self {
            issuer,
            folder: folder.to_owned(),
        };
        write(&authority.certificate(), &authority.issuer.pem())?;
        Ok(authority)
    }

    /// The file of its certificate.
    pub(super) fn certificate(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// For a server that is reached at `addresses`.
    pub(super) fn server(&self, name: &str, addresses: &[Ipv4Addr]) -> Result<Pair, MemberError> {
        let mut params = CertificateParams::default();
        named(&mut params, name, None);
        let addresses = addresses.iter().map(|address| IpAddr::V4(*address));
        params.subject_alt_names = addresses.map(SanType::IpAddress).collect();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(name, &params)
    }

    /// For a client that is `user` of `group`; `name` is its files'.
    pub(super) fn client(&self, name: &str, user: &str, group: &str) -> Result<Pair, MemberError> {
        let mut params = CertificateParams::default();
        named(&mut params, user, Some(group));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(name, &params)
    }

    /// A key and its public half, for tokens of service accounts.
    pub(super) fn token_key(&self) -> Result<Pair, MemberError> {
        let key = KeyPair::generate()?;
        let pair = Pair {
            certificate: self.folder.join("tokens.pub"),
            key: self.folder.join("tokens.key"),
        };
        write(&pair.certificate, &key.public_key_pem())?;
        write(&pair.key, &key.serialize_pem())?;
        Ok(pair)
    }

    fn sign(&self, name: &str, params: &CertificateParams) -> Result<Pair, MemberError> {
        let key = KeyPair::generate()?;
        let pair = Pair {
            certificate: self.folder.join(format!("{name}.crt")),
            key: self.folder.join(format!("{name}.key")),
        };
        let certificate = params.signed_by(&key, &self.issuer)?;
        write(&pair.certificate, &certificate.pem())?;
        write(&pair.key, &key.serialize_pem())?;
        Ok(pair)
    }
}

fn named(params: &mut CertificateParams, user: &str, group: Option<&str>) {
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, user);
    if let Some(group) = group {
        let kind = DnType::OrganizationName;
        params.distinguished_name.push(kind, group);
    }
}
