//! A hub that asks for certificates, two member clusters of fake nodes with their agents, and a
//! stranger.
//!
//! Owns their start, what is asked of the hub as an agent would, and what the API servers hold.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::Api;
use kube::api::ListParams;
use meridian_agent::kubernetes::names;
use meridian_api::errors::ErrorCode;
use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_client::{DryRun, Resource};
use meridian_e2e::deployment::{Deployment, HubStore, Invitation, JobBuilder, LONG, NAMESPACE};
use meridian_e2e::member::{MemberCluster, MemberOptions};
use meridian_proto::v1::agent_message::Body as Says;
use meridian_proto::v1::agent_service_client::AgentServiceClient;
use meridian_proto::v1::join_service_client::JoinServiceClient;
use meridian_proto::{status, v1};
use meridian_runtime::network::{self, Tcp};
use meridian_runtime::tls::{self, Identity, TlsDialer, Trust};
use meridian_runtime::{Clock, Network, Tasks};
use rcgen::{CertificateParams, DnType, KeyPair, SanType};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::raw::{Manner, Raw, pool};

/// The two clusters.
pub(crate) const CLUSTERS: [&str; 2] = ["eu-a", "eu-b"];
/// A third, of which there is only an agent.
pub(crate) const STRANGER: &str = "eu-c";
/// A fourth, which somebody joins for.
pub(crate) const LATECOMER: &str = "eu-d";
/// A cluster that is only invited: the answer says whose hubs are believed.
const NOBODY: &str = "eu-e";
/// Fake nodes of each.
const NODES: u16 = 4;
/// Cards of each node.
const CARDS: u16 = 8;

/// All of it.
pub(crate) struct World {
    pub(crate) fleet: Deployment,
    pub(crate) stranger: Raw,
    members: [MemberCluster; 2],
    digests: u32,
    tasks: Tasks,
}

/// A certificate, and the key that it is of.
pub(crate) struct Certified {
    /// The cluster that it is said to speak for.
    pub(crate) cluster: String,
    chain: String,
    key: String,
}

impl Certified {
    /// To speak under it.
    pub(crate) fn identity(&self) -> Identity {
        Identity::from_pem(&self.chain, &self.key).expect("usable")
    }
}

/// The other one of the two.
pub(crate) fn other_than(cluster: &str) -> &'static str {
    let [here, there] = CLUSTERS;
    if cluster == here { there } else { here }
}

impl World {
    pub(crate) async fn start(test: &str) -> Option<Self> {
        let options = MemberOptions {
            nodes: 0,
            fake_nodes: NODES,
            gpus_per_node: CARDS,
            ..MemberOptions::default()
        };
        let options = options.or_skip(test)?;
        let start = || MemberCluster::start(options.clone());
        let members = [start().await, start().await];
        let members = members.map(|member| member.unwrap_or_else(|error| panic!("{error}")));
        let named = [(&members[0], CLUSTERS[0]), (&members[1], CLUSTERS[1])];
        let gpus = u64::from(NODES) * u64::from(CARDS);
        let fleet = Deployment::joined(HubStore::Embedded, &named, 2 * gpus).await;
        let tasks = Tasks::new();
        let mut stranger = Raw::join(&fleet, STRANGER, &tasks).await;
        stranger.attach(Manner::Listens).await;
        Some(Self {
            fleet,
            stranger,
            members,
            digests: 0,
            tasks,
        })
    }

    fn member(&self, cluster: &str) -> &MemberCluster {
        let mut all = self.members.iter().zip(CLUSTERS);
        let found = all.find(|(_, name)| *name == cluster);
        found.expect("one of the two").0
    }

    pub(crate) async fn submit(&self, job: JobBuilder) {
        self.fleet.submit(job).await;
    }

    pub(crate) async fn delete(&self, job: &str) {
        let (kind, client) = (Resource::of::<FederatedJobSpec>(), self.fleet.client());
        let deleted = client.delete(&kind, NAMESPACE, job, None, DryRun::No);
        deleted.await.expect("deleted");
    }

    /// The status of a job.
    pub(crate) async fn status(&self, job: &str) -> Value {
        self.fleet.status_of(job).await
    }

    /// The cluster in which a job comes to run.
    pub(crate) async fn placed(&self, job: &str) -> &'static str {
        let look = async || {
            let status = self.status(job).await;
            let placed = CLUSTERS.into_iter().find(|name| status["cluster"] == *name);
            placed.filter(|_| status["phase"] == "Running")
        };
        self.fleet.until("it runs somewhere", LONG, look).await
    }

    /// Waits until a job runs in a cluster with so many pods.
    pub(crate) async fn runs(&self, job: &str, pods: usize, cluster: &str) {
        let what = format!("{job} runs in {cluster}");
        let look = async || {
            let label = format!("{}={job}", names::JOB);
            let there = self.list::<Pod>(cluster, &label).await;
            let run = |pod: &&Pod| {
                let phase = pod
                    .status
                    .as_ref()
                    .and_then(|status| status.phase.as_deref());
                phase == Some("Running")
            };
            let is_told = self.status(job).await["phase"] == "Running";
            (is_told && there.iter().filter(run).count() == pods).then_some(())
        };
        self.fleet.until(&what, LONG, look).await;
    }

    async fn list<K>(&self, cluster: &str, labels: &str) -> Vec<K>
    where
        K: kube::Resource<DynamicType = ()> + Clone + serde::de::DeserializeOwned,
        K: std::fmt::Debug,
    {
        let objects = Api::<K>::all(self.member(cluster).client());
        let selected = ListParams::default().labels(labels);
        objects.list(&selected).await.expect("listed").items
    }

    /// What the agent has made in a cluster, each with what tells whether it is the same.
    pub(crate) async fn everything(&self, cluster: &str) -> Vec<String> {
        let ours = format!("{}={}", names::MANAGED_BY, names::MANAGER);
        let pods = self.list::<Pod>(cluster, &ours).await.into_iter();
        let services = self.list::<Service>(cluster, &ours).await.into_iter();
        let maps = self.list::<ConfigMap>(cluster, &ours).await.into_iter();
        let metadata = pods.map(|object| object.metadata);
        let metadata = metadata.chain(services.map(|object| object.metadata));
        let metadata = metadata.chain(maps.map(|object| object.metadata));
        let identity = metadata.map(|meta| {
            let labels = meta.labels.unwrap_or_default();
            let job = labels.get(names::JOB).cloned().unwrap_or_default();
            let is_asked = meta.deletion_timestamp.is_some();
            format!("{job} {:?} {:?} {is_asked}", meta.name, meta.uid)
        });
        identity.collect()
    }

    /// The gang of the one job that is named after the cluster, and its epoch.
    pub(crate) async fn gang_in(&self, cluster: &str) -> (v1::Gang, u64) {
        let pods = self
            .list::<Pod>(cluster, &format!("{}={cluster}", names::JOB))
            .await;
        let labels = pods[0].metadata.labels.as_ref().expect("the agent's");
        let key = names::key(labels).expect("of a gang");
        (key.gang.into(), key.epoch.0)
    }

    /// Waits until the hub has taken in what the stranger said, and has decided since.
    pub(crate) async fn stranger_is_heard(&mut self) {
        // What is said before a digest is taken in before it, and a round lies between two.
        for _ in 0..2 {
            self.digests += 1;
            let mark = format!("mark {}", self.digests);
            let digest = v1::Digest {
                full: true,
                pools: vec![pool(&mark)],
                ..v1::Digest::default()
            };
            self.stranger.says(Says::Digest(digest)).await;
            let client = self.fleet.client();
            let shown = async || {
                let pools = client.capacity("", false).await.ok()?.pools;
                let own = pools.iter().find(|pool| pool.cluster == STRANGER)?;
                (own.findings == [mark.clone()]).then_some(())
            };
            let what = "the stranger's digest is shown";
            self.fleet.until(what, LONG, shown).await;
        }
    }

    /// A network on which the hub of this fleet is believed, under a certificate or none.
    async fn network(&self, identity: Option<&Identity>) -> Arc<dyn Network> {
        let hash = self.fleet.invite(NOBODY).await.ca_hash;
        let hash = hash.parse().expect("a hash");
        let config = tls::client_config(&Clock::real(), Trust::Pin(hash), identity);
        let (_, config) = watch::channel(config.expect("usable"));
        Arc::new(TlsDialer::new(Arc::new(Tcp), Clock::real(), config))
    }

    /// What an agent of this fleet has joined with.
    pub(crate) fn identity_of(&self, cluster: &str) -> Identity {
        let state = self.fleet.state_of(cluster).join("identity.json");
        let record = std::fs::read(state).expect("it has joined");
        let record: Value = serde_json::from_slice(&record).expect("JSON");
        let text = |field: &str| record["certified"][field].as_str().expect("a text");
        Identity::from_pem(text("chain"), text("key")).expect("usable")
    }

    /// What the hub gives to who holds that certificate and asks to be called another.
    pub(crate) async fn renews_asking_for(&self, holder: &Identity, name: &str) -> Certified {
        let network = self.network(Some(holder)).await;
        let (key, csr) = greedy(name);
        let request = v1::RenewRequest { csr: csr.into() };
        let answer = self.admission(network).renew(request).await;
        certified(answer.expect("it may renew").into_inner(), &key)
    }

    /// What the hub gives for a token to who asks to be called another.
    pub(crate) async fn joins_asking_for(
        &self,
        invitation: &Invitation,
        name: &str,
    ) -> Result<Certified, tonic::Status> {
        let network = self.network(None).await;
        let (key, csr) = greedy(name);
        let request = v1::JoinRequest {
            token: invitation.token.clone(),
            csr: csr.into(),
        };
        let answer = self.admission(network).join(request).await?;
        Ok(certified(answer.into_inner(), &key))
    }

    fn admission(&self, network: Arc<dyn Network>) -> JoinServiceClient<tonic::transport::Channel> {
        let hub = self.fleet.hubs[0].agents.to_string();
        JoinServiceClient::new(network::channel(network, &hub))
    }

    /// Under that certificate a Hello as `other` is refused, in words that tell of both.
    pub(crate) async fn speaks_only_for(&self, certified: &Certified, other: &str) {
        let network = self.network(Some(&certified.identity())).await;
        let hello = v1::Hello {
            cluster: other.to_owned(),
            version: "0.1.0".to_owned(),
            protocol_min: 1,
            protocol_max: 1,
            credential: vec![7; 32].into(),
            digest: Some(v1::Digest {
                full: true,
                ..v1::Digest::default()
            }),
            ..v1::Hello::default()
        };
        let hello = v1::AgentMessage {
            body: Some(Says::Hello(hello)),
        };
        let hub = self.fleet.hubs[0].agents.to_string();
        let mut client = AgentServiceClient::new(network::channel(network, &hub));
        let answer = client.attach(tokio_stream::iter([hello])).await;
        let refused = status::from_status(&answer.expect_err("refused"));
        assert_eq!(refused.code, ErrorCode::ClusterClaimed);
        let (words, own) = (&refused.message, certified.cluster.as_str());
        assert!(words.contains(own) && words.contains(other), "{words}");
    }

    pub(crate) async fn end(self) {
        assert_eq!(self.fleet.errors(&[]), [] as [String; 0]);
        self.tasks.cancel();
        drop(self.fleet);
        for member in self.members {
            member.stop().await.expect("nothing stays");
        }
    }
}

/// What jobs have carried into a cluster, with its data.
pub(crate) async fn carried(world: &World, cluster: &str) -> Vec<String> {
    let ours = format!("{}={}", names::MANAGED_BY, names::MANAGER);
    let maps = world.list::<ConfigMap>(cluster, &ours).await.into_iter();
    let of_part = maps.filter(|map| {
        let labels = map.metadata.labels.as_ref();
        labels
            .and_then(|labels| labels.get(names::PART))
            .map(String::as_str)
            == Some("carried")
    });
    let text = of_part.map(|map| {
        let data = map.data.unwrap_or_default().into_iter();
        let data: Vec<String> = data
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let meta = map.metadata;
        let (space, name) = (
            meta.namespace.unwrap_or_default(),
            meta.name.unwrap_or_default(),
        );
        format!("{space}/{name} {}", data.join(" "))
    });
    text.collect()
}

/// A job of so many whole nodes in one of these clusters, until it is deleted.
pub(crate) fn job(name: &str, pods: u32, clusters: &[&str]) -> JobBuilder {
    let template = json!({"spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "meridian.dev/trainer:1"}],
    }});
    JobBuilder::new(name)
        .pods(pods, u32::from(CARDS))
        .with("/spec/placement", json!({"clusters": clusters}))
        .with("/spec/roles/0/template", template)
}

/// A request for a certificate that asks to be called `cluster`, by every name there is.
fn greedy(cluster: &str) -> (KeyPair, Vec<u8>) {
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec![cluster.to_owned()]).expect("a name");
    let uri = format!("spiffe://meridian/cluster/{cluster}");
    let uri = uri.try_into().expect("ASCII");
    params.subject_alt_names.push(SanType::URI(uri));
    params.distinguished_name.push(DnType::CommonName, cluster);
    let csr = params.serialize_request(&key).expect("signed");
    (key, csr.der().to_vec())
}

fn certified(answer: v1::JoinResponse, key: &KeyPair) -> Certified {
    Certified {
        cluster: answer.cluster,
        chain: answer.chain,
        key: key.serialize_pem(),
    }
}
