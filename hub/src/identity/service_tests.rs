//! Identities over a real handshake: who may open what, and what no request can bring about.
//!
//! Owns a hub's agents' listener on pipes, and agents that ask of it what they should not get.

use std::sync::Arc;

use meridian_api::errors::ErrorCode;
use meridian_api::units::UnixMillis;
use meridian_proto::v1::join_service_client::JoinServiceClient;
use meridian_proto::v1::join_service_server::JoinServiceServer;
use meridian_proto::{status, v1};
use meridian_runtime::network::{self, Pipes};
use meridian_runtime::tls::{self, CaPin, Identity, ServerCertificate, TlsDialer, Trust};
use meridian_runtime::{Network, Tasks};
use meridian_store::keys::{ObjectKey, Part};
use meridian_store::{MemoryStore, Operation, Txn};
use proptest::prelude::*;
use rcgen::{CertificateParams, KeyPair};
use tokio::sync::watch;
use tonic::Status;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::*;
use crate::fence::put;

const HUB: &str = "hub:1";
/// A Tuesday.
const START: UnixMillis = UnixMillis(1_700_000_000_000);

/// A hub's listener for agents that join.
pub(super) struct Door {
    pub(super) identities: Identities,
    pub(super) clock: Clock,
    network: Arc<Pipes>,
    pub(super) tasks: Tasks,
}

impl Door {
    async fn open() -> Self {
        Self::open_with(HubConfig::default()).await
    }

    pub(super) async fn open_with(config: HubConfig) -> Self {
        let clock = Clock::simulated(START);
        let store: SharedStore = Arc::new(MemoryStore::new(clock.clone()));
        for name in ["euw-a", "euw-b"] {
            declare(&store, name).await;
        }
        let opened = Identities::open(&config, &store, &clock, &Random::seeded(1)).await;
        let identities = opened.expect("an authority can be made");
        let (network, tasks) = (Arc::new(Pipes::default()), Tasks::new());
        let listener = network.listen(HUB).await.expect("free");
        let listener = secure(&identities, listener, &config, &tasks).expect("secured");
        let serving = network::grpc_server(network.as_ref())
            .add_service(JoinServiceServer::new(Joins(identities.clone())))
            .serve_with_incoming(listener.into_stream());
        tasks.spawn("listener", serving);
        Self {
            identities,
            clock,
            network,
            tasks,
        }
    }

    fn client(&self, trust: Trust, identity: Option<&Identity>) -> Client {
        let config = tls::client_config(&self.clock, trust, identity).expect("usable");
        let (_, config) = watch::channel(config);
        let network = Arc::clone(&self.network) as Arc<dyn Network>;
        let dialer = TlsDialer::new(network, self.clock.clone(), config);
        JoinServiceClient::new(network::channel(Arc::new(dialer), HUB))
    }

    fn pin(&self) -> CaPin {
        self.identities.ca_hash().parse().expect("a pin")
    }

    fn stranger(&self) -> Client {
        self.client(Trust::Pin(self.pin()), None)
    }

    pub(super) fn agent(&self, key: &KeyPair, chain: &str) -> Client {
        let identity = Identity::from_pem(chain, &key.serialize_pem()).expect("usable");
        self.client(Trust::Pin(self.pin()), Some(&identity))
    }

    async fn token(&self, cluster: &str) -> String {
        let invited = self.identities.invite(cluster, None, false).await;
        invited.expect("invited").0.reveal()
    }

    async fn joined(&self, cluster: &str) -> (KeyPair, String) {
        let (key, token) = (new_key(), self.token(cluster).await);
        let answer = join(&mut self.stranger(), &token, &plain(&key)).await;
        (key, answer.expect("the token is good").chain)
    }
}

pub(super) type Client = JoinServiceClient<tonic::transport::Channel>;

async fn declare(store: &SharedStore, name: &str) {
    let key = ObjectKey {
        plural: "memberclusters".to_owned(),
        namespace: None,
        name: name.to_owned(),
    };
    let txn = Txn {
        success: vec![put(key.part(Part::Spec), "{}")],
        ..Txn::default()
    };
    store.txn(Operation::Probe, txn).await.expect("stored");
}

pub(super) fn new_key() -> KeyPair {
    KeyPair::generate().expect("the machine has random bits")
}

pub(super) fn plain(key: &KeyPair) -> Vec<u8> {
    request(&CertificateParams::default(), key)
}

fn request(params: &CertificateParams, key: &KeyPair) -> Vec<u8> {
    let request = params.serialize_request(key).expect("a request");
    request.der().to_vec()
}

async fn join(client: &mut Client, token: &str, csr: &[u8]) -> Result<v1::JoinResponse, Status> {
    let request = v1::JoinRequest {
        token: token.to_owned(),
        csr: csr.to_vec().into(),
    };
    client.join(request).await.map(tonic::Response::into_inner)
}

pub(super) async fn renew(client: &mut Client, csr: &[u8]) -> Result<v1::JoinResponse, Status> {
    let csr = csr.to_vec().into();
    let answer = client.renew(v1::RenewRequest { csr }).await;
    answer.map(tonic::Response::into_inner)
}

fn code<T>(answer: Result<T, Status>) -> Option<ErrorCode> {
    answer.err().map(|status| status::from_status(&status).code)
}

/// The peer that a hub sees behind a chain.
fn peer(chain: &str) -> Peer {
    let certificate = tls::certificates(chain).expect("PEM").swap_remove(0);
    Peer {
        address: "test".to_owned(),
        certificate: Some(Arc::from(certificate.as_ref())),
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_gets_one_agent_a_certificate_for_its_cluster() {
    let door = Door::open().await;
    let token = door.token("euw-a").await;
    let (key, mut stranger) = (new_key(), door.stranger());
    let answer = join(&mut stranger, &token, &plain(&key))
        .await
        .expect("good");
    assert_eq!(answer.cluster, "euw-a");
    assert_eq!(answer.valid_ms, 24 * 3_600_000);
    let caller = door.identities.caller(Some(&peer(&answer.chain)));
    assert_eq!(caller.expect("an agent").cluster, "euw-a");
    let again = join(&mut stranger, &token, &plain(&key)).await;
    assert_eq!(code(again), None, "a lost answer is asked for again");
    let other = join(&mut stranger, &token, &plain(&new_key())).await;
    assert_eq!(code(other), Some(ErrorCode::JoinTokenUsed));
    door.tasks.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_token_ends_with_its_time() {
    let door = Door::open().await;
    let token = door.token("euw-a").await;
    door.clock.sleep(DEFAULT_TTL).await;
    door.clock.sleep(Millis(1)).await;
    let late = join(&mut door.stranger(), &token, &plain(&new_key())).await;
    assert_eq!(code(late), Some(ErrorCode::JoinTokenExpired));
    let nobody = door.token("euw-a").await.replace("euw-a", "nowhere");
    let unknown = join(&mut door.stranger(), &nobody, &plain(&new_key())).await;
    assert_eq!(code(unknown), Some(ErrorCode::JoinTokenUnknown));
    door.tasks.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_renewal_is_for_whoever_holds_the_key_and_no_other() {
    let door = Door::open().await;
    let (key, chain) = door.joined("euw-a").await;
    let nobody = renew(&mut door.stranger(), &plain(&new_key())).await;
    assert_eq!(code(nobody), Some(ErrorCode::AgentNotJoined));
    let next = new_key();
    let renewed = renew(&mut door.agent(&key, &chain), &plain(&next)).await;
    let renewed = renewed.expect("its own").chain;
    // Used once, the next key is the only one.
    let third = renew(&mut door.agent(&next, &renewed), &plain(&new_key())).await;
    assert_eq!(code(third), None);
    let old = renew(&mut door.agent(&key, &chain), &plain(&new_key())).await;
    assert_eq!(code(old), Some(ErrorCode::ClusterClaimed));
    door.tasks.cancel();
}

#[tokio::test(start_paused = true)]
async fn an_ended_certificate_opens_no_session_and_can_be_renewed_for_a_while() {
    let door = Door::open().await;
    let (key, chain) = door.joined("euw-a").await;
    let admit = async || {
        let peer = peer(&chain);
        let admitted = door.identities.admit(Some(&peer), "euw-a").await;
        admitted.err().map(|error| error.code)
    };
    assert_eq!(admit().await, None);
    door.clock.sleep(Millis::seconds(72 * 3600)).await;
    assert_eq!(admit().await, Some(ErrorCode::CertificateExpired));
    let renewed = renew(&mut door.agent(&key, &chain), &plain(&new_key())).await;
    assert_eq!(
        code(renewed),
        None,
        "a hub that was gone for days finds its agents"
    );
    door.clock.sleep(Millis::seconds(31 * 24 * 3600)).await;
    let late = renew(&mut door.agent(&key, &chain), &plain(&new_key())).await;
    assert_eq!(code(late), Some(ErrorCode::CertificateExpired));
    door.tasks.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_certificate_of_one_cluster_opens_no_other() {
    let door = Door::open().await;
    let (_, chain) = door.joined("euw-a").await;
    door.joined("euw-b").await;
    let admitted = door.identities.admit(Some(&peer(&chain)), "euw-b").await;
    let refused = admitted.err().expect("not its own");
    assert_eq!(refused.code, ErrorCode::ClusterClaimed);
    assert!(refused.message.contains("euw-a") && refused.message.contains("euw-b"));
    assert!(
        door.identities
            .revoke("euw-a", false)
            .await
            .expect("revoked")
    );
    let admitted = door.identities.admit(Some(&peer(&chain)), "euw-a").await;
    let refused = admitted.err().expect("revoked");
    assert_eq!(refused.code, ErrorCode::AgentRevoked);
    door.tasks.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_hub_of_another_authority_is_not_believed() {
    let (door, other) = (Door::open().await, Door::open().await);
    let mut fooled = door.client(Trust::Pin(other.pin()), None);
    let answer = join(&mut fooled, &door.token("euw-a").await, &plain(&new_key())).await;
    let error = answer.expect_err("another key");
    let words = tls::failure(&error).expect("TLS says why");
    assert!(words.contains("UnknownIssuer"), "{words}");
    door.tasks.cancel();
    other.tasks.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_certificate_of_another_authority_is_nobodys() {
    let (door, other) = (Door::open().await, Door::open().await);
    let (key, chain) = other.joined("euw-a").await;
    let answer = renew(&mut door.agent(&key, &chain), &plain(&new_key())).await;
    let error = answer.expect_err("a forger");
    let words = tls::failure(&error).expect("TLS says why");
    assert!(
        words.contains("UnknownCA") || words.contains("DecryptError"),
        "{words}"
    );
    door.tasks.cancel();
    other.tasks.cancel();
}

#[tokio::test(start_paused = true)]
async fn an_agent_cannot_stand_in_for_a_hub() {
    let door = Door::open().await;
    let (key, chain) = door.joined("euw-a").await;
    // The agent listens with what it was given; another agent dials it by mistake.
    let identity = Identity::from_pem(&chain, &key.serialize_pem()).expect("usable");
    let shown = ServerCertificate::new(&identity).expect("usable");
    let authorities = tls::certificates(door.identities.authorities()).expect("PEM");
    let config = tls::server_config(&door.clock, shown, &authorities).expect("usable");
    let plain_listener = door.network.listen("impostor:1").await.expect("free");
    let mut listener = tls::over_tls(plain_listener, door.clock.clone(), config);
    let tasks = door.tasks.clone();
    tasks.spawn("impostor", async move {
        listener.accept().await?;
        std::future::pending::<std::io::Result<()>>().await
    });
    let config = tls::client_config(&door.clock, Trust::Pin(door.pin()), None).expect("usable");
    let (_, config) = watch::channel(config);
    let network = Arc::clone(&door.network) as Arc<dyn Network>;
    let dialer = TlsDialer::new(network, door.clock.clone(), config);
    let error = dialer.connect("impostor:1").await.err().expect("refused");
    let words = tls::failure(&error).expect("TLS says why");
    assert!(words.contains("server authentication"), "{words}");
    door.tasks.cancel();
}

/// Everything that a request might ask for to become somebody else.
fn greedy(wishes: &Wishes) -> CertificateParams {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, wishes.text.as_str());
    params
        .distinguished_name
        .push(rcgen::DnType::OrganizationName, wishes.text.as_str());
    let ascii = wishes
        .text
        .chars()
        .filter(char::is_ascii)
        .collect::<String>();
    let names = [
        names::agent("meridian", "euw-b"),
        names::hub("meridian"),
        format!("spiffe://meridian/cluster/euw-a{ascii}"),
    ];
    let names = names.into_iter().filter_map(|name| name.try_into().ok());
    params.subject_alt_names = names.map(rcgen::SanType::URI).collect();
    let dns = ascii.as_str().try_into().map(rcgen::SanType::DnsName);
    params.subject_alt_names.extend(dns);
    let hub = tls::HUB_NAME.try_into().expect("a name");
    params.subject_alt_names.push(rcgen::SanType::DnsName(hub));
    if wishes.ca {
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign];
    }
    params.extended_key_usages = vec![
        rcgen::ExtendedKeyUsagePurpose::ServerAuth,
        rcgen::ExtendedKeyUsagePurpose::Any,
    ];
    params
}

#[derive(Clone, Debug)]
struct Wishes {
    text: String,
    ca: bool,
    algorithm: usize,
    flips: Vec<(usize, u8)>,
}

fn wishes() -> impl Strategy<Value = Wishes> {
    let flips = prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 0..3);
    (".{0,24}", any::<bool>(), 0_usize..4, flips).prop_map(|(text, ca, algorithm, flips)| {
        let flips = flips
            .into_iter()
            .map(|(at, bits)| (at.index(1 << 20), bits));
        Wishes {
            text,
            ca,
            algorithm,
            flips: flips.collect(),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// S31: whatever a request asks for, and however it is mangled, the certificate names the
    /// cluster of the right and can do nothing else, or there is none.
    #[test]
    fn no_request_yields_another_identity(wishes in wishes()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(async {
            let authority = authority().await;
            let algorithms = [
                &rcgen::PKCS_ECDSA_P256_SHA256,
                &rcgen::PKCS_ECDSA_P384_SHA384,
                &rcgen::PKCS_ED25519,
                &rcgen::PKCS_ECDSA_P521_SHA512,
            ];
            let key = KeyPair::generate_for(algorithms[wishes.algorithm]).expect("a key");
            let mut csr = request(&greedy(&wishes), &key);
            for (at, bits) in &wishes.flips {
                let at = at % csr.len();
                csr[at] ^= bits;
            }
            let read = RequestedKey::read(&csr);
            if wishes.flips.is_empty() {
                // The last of the algorithms is not on the list.
                prop_assert_eq!(read.is_ok(), wishes.algorithm < 3);
            }
            let Ok(read) = read else { return Ok(()) };
            let chain = authority.issue_agent("euw-a", &read).expect("issued");
            let caller = Caller::of(Some(&peer(&chain)), "meridian").expect("an agent's");
            prop_assert_eq!(caller.cluster.as_str(), "euw-a");
            prop_assert_eq!(&caller.key, read.hash());
            check_powerless(&chain);
            Ok(())
        })?;
    }
}

async fn authority() -> Authority {
    let clock = Clock::simulated(START);
    let store: SharedStore = Arc::new(MemoryStore::new(clock.clone()));
    let terms = HubConfig::default().agent_certificates;
    let opened = Authority::open(None, terms, &store, clock, Random::seeded(1)).await;
    opened.expect("it can be made")
}

/// An agent's certificate: no authority, for signing handshakes as a client, under one name.
fn check_powerless(chain: &str) {
    let certificate = tls::certificates(chain).expect("PEM").swap_remove(0);
    let (_, read) = X509Certificate::from_der(&certificate).expect("DER");
    assert!(!read.is_ca());
    let usage = read.key_usage().expect("once").expect("there");
    assert_eq!(usage.value.flags, 1, "digitalSignature alone");
    let purpose = read
        .extended_key_usage()
        .expect("once")
        .expect("there")
        .value;
    assert!(purpose.client_auth && !purpose.server_auth && !purpose.any);
    let names = read
        .subject_alternative_name()
        .expect("once")
        .expect("there");
    assert_eq!(names.value.general_names.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn replicas_and_later_lives_share_one_authority() {
    let clock = Clock::simulated(START);
    let store: SharedStore = Arc::new(MemoryStore::new(clock.clone()));
    let open = |seed| {
        let terms = HubConfig::default().agent_certificates;
        let (clock, random) = (clock.clone(), Random::seeded(seed));
        let store = SharedStore::clone(&store);
        async move { Authority::open(None, terms, &store, clock, random).await }
    };
    let (first, second) = tokio::join!(open(1), open(2));
    let first = first.expect("made").pin();
    assert_eq!(second.expect("taken over").pin(), first);
    assert_eq!(open(3).await.expect("read").pin(), first);
}

#[tokio::test(start_paused = true)]
async fn an_authority_of_files_must_fit_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let made = authority().await;
    let files = crate::config::AgentCaFiles {
        cert: folder.path().join("ca.pem"),
        key: folder.path().join("ca.key"),
    };
    let clock = Clock::simulated(START);
    let store: SharedStore = Arc::new(MemoryStore::new(clock.clone()));
    let open = async || {
        let terms = HubConfig::default().agent_certificates;
        let random = Random::seeded(1);
        Authority::open(Some(&files), terms, &store, clock.clone(), random).await
    };
    std::fs::write(&files.cert, made.pem()).expect("writable");
    let error = open().await.err().expect("no key").to_string();
    assert!(error.contains("ca.key"), "{error}");
    std::fs::write(&files.key, new_key().serialize_pem()).expect("writable");
    let error = open().await.err().expect("another key").to_string();
    assert!(error.contains("not the one of its certificate"), "{error}");
}
