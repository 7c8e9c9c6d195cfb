//! One simulated agent on the wire: hello, beats and digests of a cluster of a hundred nodes.
//!
//! Owns a session and the inventory that it tells of. One node changes between two digests. Never
//! carries anything out: there is nothing to carry out.

use anyhow::{Context as _, bail};
use meridian_proto::v1;
use meridian_proto::v1::agent_message::Body;
use meridian_proto::v1::agent_service_client::AgentServiceClient;
use meridian_proto::v1::hub_message::Body as Told;
use meridian_runtime::Random;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

/// Nodes of a cluster.
pub(crate) const NODES: usize = 100;
/// Nodes of a rack.
const RACK: usize = 4;
/// GPUs of a node.
const GPUS: u64 = 8;
/// Messages waiting for the socket; an agent has at most a digest and a beat on their way.
const OUTBOX: usize = 4;

/// An agent that is attached.
pub(crate) struct Agent {
    cluster: String,
    flavor: &'static str,
    outbox: mpsc::Sender<v1::AgentMessage>,
    told: Streaming<v1::HubMessage>,
    /// Free GPUs of each node.
    free: Vec<u64>,
    /// GPUs said to be out: the mark of a digest.
    out: u64,
    random: Random,
    digests: u64,
    beats: u64,
}

impl Agent {
    /// Attaches, and waits to be welcome.
    pub(crate) async fn attach(
        channel: Channel,
        cluster: String,
        flavor: &'static str,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let random = Random::seeded(seed);
        // Nine nodes of ten are full.
        let free = (0..NODES).map(|_| if random.below(10) == 0 { GPUS } else { 0 });
        let free: Vec<u64> = free.collect();
        let (outbox, sending) = mpsc::channel(OUTBOX);
        let mut agent = AgentServiceClient::new(channel);
        let mut credential = vec![0; 32];
        random.fill(&mut credential);
        let mut hello = v1::Hello {
            cluster: cluster.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol_min: 1,
            protocol_max: 1,
            credential: credential.into(),
            ..v1::Hello::default()
        };
        hello.digest = Some(v1::Digest {
            sequence: 1,
            full: true,
            pools: vec![pool(flavor, &free, 0)],
            ..v1::Digest::default()
        });
        outbox.send(message(Body::Hello(hello))).await?;
        let told = agent.attach(ReceiverStream::new(sending)).await?;
        let mut told = told.into_inner();
        let first = told.message().await?.and_then(|message| message.body);
        if !matches!(first, Some(Told::Welcome(_))) {
            bail!("{cluster} is not welcome: {first:?}");
        }
        Ok(Self {
            cluster,
            flavor,
            outbox,
            told,
            free,
            out: 0,
            random,
            digests: 1,
            beats: 0,
        })
    }

    /// Sends a beat.
    pub(crate) async fn beat(&mut self) -> anyhow::Result<()> {
        self.beats += 1;
        let beat = v1::Heartbeat {
            sequence: self.beats,
            sent_boot_ms: 0,
            digest_sequence: self.digests,
        };
        Ok(self.outbox.send(message(Body::Heartbeat(beat))).await?)
    }

    /// One node is used differently; says so.
    pub(crate) async fn digest(&mut self) -> anyhow::Result<()> {
        let node = usize::try_from(self.random.below(NODES as u64))?;
        self.free[node] = (self.free[node] + 1 + self.random.below(GPUS)) % (GPUS + 1);
        self.report().await
    }

    /// Says that `mark` GPUs are out.
    pub(crate) async fn mark(&mut self, mark: u64) -> anyhow::Result<()> {
        self.out = mark;
        self.report().await
    }

    async fn report(&mut self) -> anyhow::Result<()> {
        self.digests += 1;
        let delta = v1::Digest {
            sequence: self.digests,
            pools: vec![pool(self.flavor, &self.free, self.out)],
            ..v1::Digest::default()
        };
        Ok(self.outbox.send(message(Body::Digest(delta))).await?)
    }

    /// Waits for what the hub says next; true when that acknowledges the newest beat.
    pub(crate) async fn hear(&mut self) -> anyhow::Result<bool> {
        let message = self
            .told
            .message()
            .await?
            .context("the hub ended the session")?;
        match message.body {
            Some(Told::HeartbeatAck(ack)) => Ok(ack.sequence == self.beats),
            Some(Told::DigestRequest(_)) => bail!("{} lost a digest", self.cluster),
            _ => Ok(false),
        }
    }

    /// Its cluster's name, free GPUs and GPUs that are out, in thousandths, as last told.
    pub(crate) fn truth(&self) -> (String, u64, u64) {
        let free: u64 = self.free.iter().sum();
        (self.cluster.clone(), free * 1000, self.out * 1000)
    }
}

fn message(body: Body) -> v1::AgentMessage {
    v1::AgentMessage { body: Some(body) }
}

/// The cluster's one pool: a row for each rack and number of free GPUs.
fn pool(flavor: &str, free: &[u64], out: u64) -> v1::Pool {
    let mut shapes = Vec::new();
    for (rack, nodes) in free.chunks(RACK).enumerate() {
        for gpus in 0..=GPUS {
            let hosts = nodes.iter().filter(|free| **free == gpus).count();
            if let Ok(hosts @ 1..) = u32::try_from(hosts) {
                shapes.push(v1::Shape {
                    domains: vec![format!("rack-{rack:02}")],
                    allocatable: Some(host(GPUS)),
                    free: Some(host(gpus)),
                    hosts,
                });
            }
        }
    }
    v1::Pool {
        name: "main".to_owned(),
        flavor: flavor.to_owned(),
        levels: vec!["rack".to_owned()],
        shapes,
        out_milli_gpus: out * 1000,
        ..v1::Pool::default()
    }
}

fn host(gpus: u64) -> v1::Resources {
    v1::Resources {
        milli_gpus: gpus * 1000,
        milli_cpus: gpus * 12_000,
        memory_mib: gpus * 128 * 1024,
    }
}
