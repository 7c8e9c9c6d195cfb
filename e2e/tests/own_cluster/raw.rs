//! An agent as bare messages, under a certificate that it has joined for.
//!
//! Owns the session of one cluster: it beats, keeps what the hub sends, and does nothing else by
//! itself unless it is asked to run what it is ordered. Never checks what it sends.

use std::sync::{Arc, Mutex, PoisonError};

use meridian_agent::identity::{JoinOptions, Membership, Seams};
use meridian_api::units::Millis;
use meridian_e2e::deployment::Deployment;
use meridian_proto::v1;
use meridian_proto::v1::agent_message::Body as Says;
use meridian_proto::v1::agent_service_client::AgentServiceClient;
use meridian_proto::v1::hub_message::Body as Hears;
use meridian_runtime::disk::MemoryDisk;
use meridian_runtime::network::{self, Tcp};
use meridian_runtime::{Clock, Network, Random, Tasks};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

/// Name of the one pool of each cluster.
pub(crate) const POOL: &str = "h100";
/// The job that an agent which obeys is slow to run: it does not say so while a test lasts.
pub(crate) const SLOW: &str = "slow";
/// Cards of its one host, in thousandths.
const MILLI_GPUS: u64 = 12_000;
/// Between two beats: well below what a hub takes for silence.
const BEAT: Millis = Millis::seconds(1);

/// What a raw agent does with its orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// It says of what it is to run that it runs.
    Obeys,
    /// It does nothing about them.
    Listens,
}

/// An agent that has joined, with or without a session.
pub(crate) struct Raw {
    pub(crate) cluster: String,
    network: Arc<dyn Network>,
    hub: String,
    heard: Arc<Mutex<Vec<Hears>>>,
    outbox: Option<mpsc::Sender<v1::AgentMessage>>,
    sequence: u64,
    tasks: Tasks,
}

impl Raw {
    /// Joins.
    pub(crate) async fn join(fleet: &Deployment, cluster: &str, tasks: &Tasks) -> Self {
        let invitation = fleet.invite(cluster).await;
        let hub = fleet.hubs[0].agents.to_string();
        let seams = Seams {
            disk: Arc::new(MemoryDisk::default()),
            network: Arc::new(Tcp),
            clock: Clock::real(),
            random: Random::from_machine(),
        };
        let options = JoinOptions {
            cluster: None,
            hubs: vec![hub.clone()],
            token: Some(invitation.token.parse().expect("a token")),
            ca_hash: Some(invitation.ca_hash.parse().expect("a hash")),
        };
        let membership = Membership::open(options, seams).await.expect("joined");
        let network = membership.network();
        // Its certificate's sender lives as long as the test.
        membership.keep(tasks);
        Self {
            cluster: cluster.to_owned(),
            network,
            hub,
            heard: Arc::default(),
            outbox: None,
            sequence: 0,
            tasks: tasks.clone(),
        }
    }

    fn service(&self) -> AgentServiceClient<tonic::transport::Channel> {
        AgentServiceClient::new(network::channel(Arc::clone(&self.network), &self.hub))
    }

    /// Says Hello as `cluster` with an empty digest and returns what the hub sends.
    pub(crate) async fn hello_as(
        &self,
        cluster: &str,
    ) -> Result<(mpsc::Sender<v1::AgentMessage>, Streaming<v1::HubMessage>), Status> {
        let (outbox, messages) = mpsc::channel(16);
        let hello = v1::Hello {
            cluster: cluster.to_owned(),
            version: "0.1.0".to_owned(),
            protocol_min: 1,
            protocol_max: 2,
            credential: vec![7; 32].into(),
            digest: Some(v1::Digest {
                sequence: self.sequence,
                full: true,
                pools: vec![pool("")],
                ..v1::Digest::default()
            }),
            ..v1::Hello::default()
        };
        let hello = message(Says::Hello(hello));
        outbox.send(hello).await.expect("the channel is new");
        let answer = self.service().attach(ReceiverStream::new(messages)).await?;
        Ok((outbox, answer.into_inner()))
    }

    /// Opens a session, which beats and keeps what it hears.
    pub(crate) async fn attach(&mut self, manner: Manner) {
        let attached = self.hello_as(&self.cluster).await;
        let (outbox, mut incoming) = attached.expect("it has joined");
        self.outbox = Some(outbox.clone());
        let heard = Arc::clone(&self.heard);
        let answers = outbox.clone();
        self.tasks.spawn_finite("raw agent", async move {
            while let Ok(Some(message)) = incoming.message().await {
                let Some(body) = message.body else { continue };
                if let (Hears::Intent(intent), Manner::Obeys) = (&body, manner) {
                    let report = Says::Report(runs(intent));
                    if answers.send(self::message(report)).await.is_err() {
                        return;
                    }
                }
                heard
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(body);
            }
        });
        let clock = Clock::real();
        self.tasks.spawn_finite("raw beats", async move {
            let beat = || message(Says::Heartbeat(v1::Heartbeat::default()));
            while outbox.send(beat()).await.is_ok() {
                clock.sleep(BEAT).await;
            }
        });
    }

    /// Sends a message; digests get the next sequence.
    pub(crate) async fn says(&mut self, body: Says) {
        let body = match body {
            Says::Digest(digest) => {
                self.sequence += 1;
                Says::Digest(v1::Digest {
                    sequence: self.sequence,
                    ..digest
                })
            }
            other @ (Says::Hello(_)
            | Says::Report(_)
            | Says::Heartbeat(_)
            | Says::Demand(_)
            | Says::Usage(_)
            | Says::Refusal(_)) => other,
        };
        let outbox = self.outbox.as_ref().expect("it is attached");
        outbox.send(message(body)).await.expect("the session lives");
    }

    /// Everything that the hub has said and that is not about beats.
    pub(crate) fn heard(&self) -> Vec<Hears> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let told = heard.iter();
        let told = told.filter(|body| !matches!(body, Hears::HeartbeatAck(_)));
        told.cloned().collect()
    }

    /// Answers a request for logs.
    pub(crate) async fn sends_logs(&self, ticket: &[u8]) -> Result<(), Status> {
        let chunk = v1::LogChunk {
            ticket: ticket.to_vec().into(),
            text: format!("of {}\n", self.cluster).into(),
            error: None,
        };
        let sent = self.service().send_logs(tokio_stream::iter([chunk])).await;
        sent.map(drop)
    }
}

fn message(body: Says) -> v1::AgentMessage {
    v1::AgentMessage { body: Some(body) }
}

/// What an agent says that runs everything it is ordered to.
fn runs(intent: &v1::Intent) -> v1::PlacementReport {
    let runs = intent.placements.iter();
    let runs = runs.filter(|placement| placement.desired() == v1::Desired::Run);
    let runs = runs.filter(|placement| placement.job != SLOW);
    let seen = |placement: &v1::PlacementIntent| {
        let gang = placement.gang.clone();
        observation(gang, placement.epoch, v1::GangStep::Running)
    };
    v1::PlacementReport {
        gangs: runs.map(seen).collect(),
    }
}

/// A gang as an agent sees it.
pub(crate) fn observation(
    gang: Option<v1::Gang>,
    epoch: u64,
    step: v1::GangStep,
) -> v1::GangObservation {
    v1::GangObservation {
        gang,
        epoch,
        step: step.into(),
        pool: POOL.to_owned(),
        ..v1::GangObservation::default()
    }
}

/// The pool of a cluster, with a finding that tells one digest from another.
pub(crate) fn pool(finding: &str) -> v1::Pool {
    let size = Some(v1::Resources {
        milli_gpus: MILLI_GPUS,
        milli_cpus: 96_000,
        memory_mib: 1 << 20,
    });
    v1::Pool {
        name: POOL.to_owned(),
        flavor: "h100-80gb".to_owned(),
        shapes: vec![v1::Shape {
            domains: Vec::new(),
            allocatable: size,
            free: size,
            hosts: 1,
        }],
        findings: vec![finding.to_owned()],
        ..v1::Pool::default()
    }
}
