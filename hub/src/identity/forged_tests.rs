//! Certificates of the right authority that are no agent's: whatever it may have signed for another
//! purpose opens nothing.
//!
//! Owns an authority whose key the test holds, and one leaf for each way of being wrong.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData as _, SanType,
};

use super::names::{Caller, KeyHash};
use super::service_tests::{Door, new_key, plain, renew};
use super::*;
use crate::config::AgentCaFiles;

/// What is wrong with a leaf, and how to make it so.
type Flaw = (&'static str, fn(&mut CertificateParams));

fn uri(name: &str) -> SanType {
    SanType::URI(name.try_into().expect("ASCII"))
}

const FLAWS: [Flaw; 12] = [
    ("no name", |leaf| leaf.subject_alt_names.clear()),
    ("two names", |leaf| {
        let other = uri("spiffe://meridian/cluster/euw-b");
        leaf.subject_alt_names.push(other);
    }),
    ("a name beside it", |leaf| {
        let dns = "euw-a".try_into().expect("ASCII");
        leaf.subject_alt_names.push(SanType::DnsName(dns));
    }),
    ("a name in its subject alone", |leaf| {
        leaf.distinguished_name.push(DnType::CommonName, "euw-a");
        leaf.subject_alt_names.clear();
    }),
    ("another trust domain", |leaf| {
        leaf.subject_alt_names = vec![uri("spiffe://meridian.evil/cluster/euw-a")];
    }),
    ("a trust domain that only begins so", |leaf| {
        leaf.subject_alt_names = vec![uri("spiffe://meridian2/cluster/euw-a")];
    }),
    ("a longer path", |leaf| {
        leaf.subject_alt_names = vec![uri("spiffe://meridian/cluster/euw-a/admin")];
    }),
    ("an empty path", |leaf| {
        leaf.subject_alt_names = vec![uri("spiffe://meridian/cluster/")];
    }),
    ("a hub's name", |leaf| {
        leaf.subject_alt_names = vec![uri("spiffe://meridian/hub")];
    }),
    ("for servers", |leaf| {
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    }),
    ("an authority itself", |leaf| {
        leaf.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        leaf.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    }),
    ("another cluster whose name begins so", |leaf| {
        leaf.subject_alt_names = vec![uri("spiffe://meridian/cluster/euw-a1")];
    }),
];

/// A leaf as the authority makes it, until a flaw is put in.
fn leaf() -> CertificateParams {
    let mut leaf = CertificateParams::default();
    leaf.subject_alt_names = vec![uri("spiffe://meridian/cluster/euw-a")];
    leaf.is_ca = IsCa::ExplicitNoCa;
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    leaf
}

/// An authority as files, and the issuer that the test signs with.
fn authority(folder: &std::path::Path) -> (AgentCaFiles, Issuer<'static, KeyPair>) {
    let key = new_key();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let files = AgentCaFiles {
        cert: folder.join("ca.pem"),
        key: folder.join("ca.key"),
    };
    let certificate = params.self_signed(&key).expect("signed");
    std::fs::write(&files.cert, certificate.pem()).expect("writable");
    std::fs::write(&files.key, key.serialize_pem()).expect("writable");
    (files, Issuer::new(params, key))
}

#[tokio::test(start_paused = true)]
async fn what_is_not_exactly_an_agents_certificate_is_nobodys() {
    let folder = tempfile::tempdir().expect("a folder");
    let (files, issuer) = authority(folder.path());
    let door = Door::open_with(HubConfig {
        agent_ca: Some(files),
        ..HubConfig::default()
    });
    let door = door.await;
    // The key of each is the one that the record lists: nothing but the certificate is wrong.
    let key = new_key();
    let hash = KeyHash::of(&key.subject_public_key_info());
    let registry = door.identities.registry();
    let listed = registry.change("euw-a", false, |record| {
        let now = door.clock.wall();
        record.invite("euw-a", "secret".to_owned(), now)?;
        record.join("euw-a", "secret", &hash, now)
    });
    assert!(listed.await.expect("listed"));
    let present = async |leaf: &CertificateParams| {
        let chain = leaf.signed_by(&key, &issuer).expect("signed").pem();
        let chain = chain + door.identities.authorities();
        let answer = renew(&mut door.agent(&key, &chain), &plain(&new_key())).await;
        answer.map(|answer| answer.cluster)
    };
    let good = present(&leaf()).await;
    assert_eq!(good.expect("an agent's"), "euw-a");
    for (what, spoil) in FLAWS {
        let mut leaf = leaf();
        spoil(&mut leaf);
        let answer = present(&leaf).await;
        assert!(answer.is_err(), "{what}: renewed as {answer:?}");
    }
    door.tasks.cancel();
}

#[test]
fn damaged_certificates_are_read_as_nobody_and_panic_nowhere() {
    let (key, ca) = (new_key(), new_key());
    let issuer = Issuer::new(CertificateParams::default(), ca);
    let good = leaf().signed_by(&key, &issuer).expect("signed");
    let random = Random::seeded(7);
    let mut other = 0;
    for _ in 0..2_000 {
        let mut der = good.der().to_vec();
        let at = usize::try_from(random.below(der.len() as u64)).expect("small");
        der[at] ^= u8::try_from(1 + random.below(255)).expect("a byte");
        let peer = Peer {
            address: "test".to_owned(),
            certificate: Some(Arc::from(der)),
        };
        // A change of the name itself is caught by the signature, which the handshake checks.
        other += usize::from(Caller::of(Some(&peer), "meridian").is_err());
    }
    assert!(
        other > 200,
        "most of a certificate matters, {other} of 2000 were refused"
    );
}
