//! A scripted hub and builders for the agent's tests.
//!
//! Owns the fake hub: it speaks the session's protocol over in-memory pipes, keeps what the agent
//! said, and says what a test tells it to. Never decides anything by itself.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "shared by test files that each use a part"
)]

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;

use futures::FutureExt as _;
use meridian_agent::simulated::{NodeResources, Profile, SimulatedCluster};
use meridian_agent::{Agent, AgentHandle, AgentMetrics, AgentOptions, Inventory};
use meridian_api::ids::{GangId, Uid};
use meridian_api::units::{Millis, UnixMillis};
use meridian_proto::v1::agent_service_server::{AgentService, AgentServiceServer};
use meridian_proto::v1::{self, agent_message, hub_message};
use meridian_runtime::disk::MemoryDisk;
use meridian_runtime::network::Pipes;
use meridian_runtime::{Clock, Disk, Network, Random, Tasks, network};
use sha2::{Digest as _, Sha256};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

/// Where the fake hub listens.
pub const HUB: &str = "hub:7700";
/// Simulated time that every test begins at.
pub const BEGIN: UnixMillis = UnixMillis(1_700_000_000_000);
/// Longest that a test waits for anything, in simulated time.
pub const DEADLINE: Millis = Millis::seconds(300);
/// The beat that the fake hub asks for.
pub const BEAT: Millis = Millis(2_000);

/// One attached agent, seen from the hub.
pub struct Line {
    pub hello: v1::Hello,
    from_agent: mpsc::Receiver<agent_message::Body>,
    to_agent: mpsc::Sender<Result<v1::HubMessage, Status>>,
    clock: Clock,
    /// Newest word on each gang, from reports and digests alike.
    pub gangs: BTreeMap<GangId, v1::GangObservation>,
    pub refusals: Vec<v1::Refusal>,
    pub digests: Vec<v1::Digest>,
    pub incarnation: u64,
    pub fence: v1::Fence,
    pub generation: u64,
}

type Attached = (
    v1::Hello,
    Streaming<v1::AgentMessage>,
    mpsc::Sender<Result<v1::HubMessage, Status>>,
);

/// A call of `SendLogs`: what the agent sends, and how to end it.
pub struct LogCall {
    pub incoming: Streaming<v1::LogChunk>,
    end: oneshot::Sender<()>,
}

impl LogCall {
    /// Ends the call as a hub does whose reader has gone.
    pub fn end(self) {
        let _ = self.end.send(());
    }
}

struct FakeService(mpsc::Sender<Attached>, mpsc::Sender<LogCall>);

#[tonic::async_trait]
impl AgentService for FakeService {
    type AttachStream = ReceiverStream<Result<v1::HubMessage, Status>>;

    async fn attach(
        &self,
        request: Request<Streaming<v1::AgentMessage>>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        let mut inbound = request.into_inner();
        let first = inbound.message().await?.and_then(|message| message.body);
        let Some(agent_message::Body::Hello(hello)) = first else {
            return Err(Status::invalid_argument("not a Hello"));
        };
        let (to_agent, outbound) = mpsc::channel(1024);
        let attached = (hello, inbound, to_agent);
        self.0
            .send(attached)
            .await
            .map_err(|_| Status::unavailable("no test"))?;
        Ok(Response::new(ReceiverStream::new(outbound)))
    }

    async fn send_logs(
        &self,
        request: Request<Streaming<v1::LogChunk>>,
    ) -> Result<Response<v1::LogsTaken>, Status> {
        let (end, ended) = oneshot::channel();
        let incoming = request.into_inner();
        let call = LogCall { incoming, end };
        let sent = self.1.send(call).await;
        sent.map_err(|_| Status::unavailable("no test"))?;
        // A test that drops the call ends it, too.
        drop(ended.await);
        Ok(Response::new(v1::LogsTaken::default()))
    }
}

/// A disk that can be full, and outlives the agent.
#[derive(Clone, Default)]
pub struct TestDisk {
    records: MemoryDisk,
    full: Arc<AtomicBool>,
}

impl TestDisk {
    pub fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::SeqCst);
    }
}

#[async_trait]
impl Disk for TestDisk {
    async fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        self.records.read(name).await
    }

    async fn write(&self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        if self.full.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.records.write(name, bytes).await
    }
}

/// Where agents that dial one fake hub come in.
pub struct Door(mpsc::Receiver<Attached>, mpsc::Receiver<LogCall>);

async fn serve(pipes: &Pipes, tasks: &Tasks, address: &str) -> Door {
    let (sender, attached) = mpsc::channel(8);
    let (log_sender, log_calls) = mpsc::channel(8);
    let listener = pipes.listen(address).await.expect("free");
    let server = network::grpc_server(pipes)
        .add_service(AgentServiceServer::new(FakeService(sender, log_sender)))
        .serve_with_incoming(listener.into_stream());
    // Boxed: its type is so deep that the compiler gives up on it inside another.
    tasks.spawn(format!("fake-hub {address}"), server.boxed());
    Door(attached, log_calls)
}

/// Whether beats are answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beats {
    Answered,
    Ignored,
}

/// The test's world: one cluster, one disk, a fake hub.
pub struct World {
    pub clock: Clock,
    pub pipes: Pipes,
    pub cluster: SimulatedCluster,
    pub disk: TestDisk,
    pub tasks: Tasks,
    attached: Option<Door>,
    lives: u64,
    /// Counts over all sessions: what a hub keeps in its store.
    pub incarnation: u64,
}

/// An eight-card host.
pub const HOST: NodeResources = NodeResources {
    gpus: 8,
    cpu_milli: 96_000,
    memory_mib: 1_000_000,
};

/// Two racks of two hosts, quick and healthy.
pub fn four_hosts() -> Inventory {
    Inventory::uniform("h100", "h100-80gb-sxm", &[("rack", 2)], 2, HOST)
}

impl World {
    pub async fn new(inventory: &Inventory, profile: Profile) -> Self {
        let clock = Clock::simulated(BEGIN);
        let pipes = Pipes::default();
        let cluster = SimulatedCluster::new(inventory, profile, 7, BEGIN).expect("an inventory");
        let tasks = Tasks::new();
        let attached = serve(&pipes, &tasks, HUB).await;
        let disk = TestDisk::default();
        Self {
            clock,
            pipes,
            cluster,
            disk,
            tasks,
            attached: Some(attached),
            lives: 0,
            incarnation: 0,
        }
    }

    /// Starts an agent on the world's disk and cluster.
    pub async fn agent(&mut self) -> AgentHandle {
        self.lives += 1;
        let options = AgentOptions {
            cluster: "eu-west".to_owned(),
            hubs: vec![HUB.to_owned()],
            version: "0.1.0".to_owned(),
            network: Arc::new(self.pipes.clone()),
            clock: self.clock.clone(),
            random: Random::seeded(self.lives),
            disk: Arc::new(self.disk.clone()),
            backend: Arc::new(self.cluster.backend(self.clock.clone())),
            tasks: self.tasks.clone(),
            metrics: AgentMetrics::default(),
            identity: None,
        };
        Agent::start(options).await.expect("state is readable")
    }

    /// Another hub, at its own address.
    pub async fn second_hub(&mut self, address: &str) -> Door {
        serve(&self.pipes, &self.tasks, address).await
    }

    /// The next agent that dials, not welcomed yet.
    pub async fn dialled(&mut self) -> Line {
        let mut door = self.attached.take().expect("one caller at a time");
        let line = self.dials(&mut door, Beats::Answered).await;
        self.attached = Some(door);
        line
    }

    /// The next agent that dials; its beats are never answered.
    pub async fn dialled_but_silent(&mut self) -> Line {
        let mut door = self.attached.take().expect("one caller at a time");
        let line = self.dials(&mut door, Beats::Ignored).await;
        self.attached = Some(door);
        line
    }

    /// The next agent that dials another hub.
    pub async fn dialled_at(&mut self, mut door: Door) -> Line {
        self.dials(&mut door, Beats::Answered).await
    }

    /// The next agent that dials within `span`, welcomed.
    pub async fn attached_within(&mut self, span: Millis) -> Option<Line> {
        let mut door = self.attached.take().expect("one caller at a time");
        let next = self.clock.timeout(span, door.0.recv()).await;
        self.attached = Some(door);
        let line = self.line(next.ok()?.expect("the hub lives"), Beats::Answered);
        line.welcome().await;
        Some(line)
    }

    /// The next call in which the agent sends logs.
    pub async fn log_call(&mut self) -> LogCall {
        let mut door = self.attached.take().expect("one caller at a time");
        let call = self.clock.timeout(DEADLINE, door.1.recv()).await;
        self.attached = Some(door);
        call.expect("the agent answers").expect("the hub lives")
    }

    async fn dials(&mut self, door: &mut Door, beats: Beats) -> Line {
        let next = self.clock.timeout(DEADLINE, door.0.recv()).await;
        self.line(next.expect("an agent dials").expect("the hub lives"), beats)
    }

    fn line(&mut self, (hello, inbound, to_agent): Attached, beats: Beats) -> Line {
        let (sender, from_agent) = mpsc::channel(1024);
        let acks = (beats == Beats::Answered).then(|| to_agent.clone());
        let fence = v1::Fence {
            store_generation: 1,
            term: 10,
        };
        self.tasks
            .spawn_finite("fake-line", listen(inbound, sender, acks, fence));
        self.incarnation += 1;
        let mut line = Line {
            hello,
            from_agent,
            to_agent,
            clock: self.clock.clone(),
            gangs: BTreeMap::new(),
            refusals: Vec::new(),
            digests: Vec::new(),
            incarnation: self.incarnation,
            fence,
            generation: 100,
        };
        let digest = line.hello.digest.clone().expect("a Hello has a digest");
        line.take_digest(digest);
        line
    }

    /// The next agent that dials, welcomed.
    pub async fn attached(&mut self) -> Line {
        let line = self.dialled().await;
        line.welcome().await;
        line
    }

    pub fn now(&self) -> UnixMillis {
        self.clock.wall()
    }
}

async fn listen(
    mut inbound: Streaming<v1::AgentMessage>,
    sender: mpsc::Sender<agent_message::Body>,
    acks: Option<mpsc::Sender<Result<v1::HubMessage, Status>>>,
    fence: v1::Fence,
) {
    while let Ok(Some(message)) = inbound.message().await {
        let Some(body) = message.body else { continue };
        if let (agent_message::Body::Heartbeat(beat), Some(acks)) = (&body, &acks) {
            let ack = v1::HeartbeatAck {
                sequence: beat.sequence,
                fence: Some(fence),
            };
            let body = Some(hub_message::Body::HeartbeatAck(ack));
            if acks.send(Ok(v1::HubMessage { body })).await.is_err() {
                return;
            }
        }
        if sender.send(body).await.is_err() {
            return;
        }
    }
}

impl Line {
    pub async fn say(&self, body: hub_message::Body) {
        assert!(self.try_say(body).await, "the agent listens");
    }

    /// False when the agent has gone.
    pub async fn try_say(&self, body: hub_message::Body) -> bool {
        let message = v1::HubMessage { body: Some(body) };
        self.to_agent.send(Ok(message)).await.is_ok()
    }

    pub fn welcome_message(&self) -> v1::Welcome {
        v1::Welcome {
            fence: Some(self.fence),
            incarnation: self.incarnation,
            protocol: 1,
            beat_ms: BEAT.0,
            suspect_ms: 8_000,
            unreachable_ms: 20_000,
        }
    }

    pub async fn welcome(&self) {
        self.say(hub_message::Body::Welcome(self.welcome_message()))
            .await;
    }

    /// Ends the stream with `status`.
    pub async fn hang_up(self, status: Status) {
        self.to_agent
            .send(Err(status))
            .await
            .expect("the agent listens");
    }

    pub fn intent(&mut self, placements: Vec<v1::PlacementIntent>) -> v1::Intent {
        self.generation += 1;
        v1::Intent {
            fence: Some(self.fence),
            incarnation: self.incarnation,
            generation: self.generation,
            full: false,
            placements,
            templates: templates(),
        }
    }

    pub async fn order(&mut self, placements: Vec<v1::PlacementIntent>) {
        let intent = self.intent(placements);
        self.say(hub_message::Body::Intent(intent)).await;
    }

    fn take_digest(&mut self, digest: v1::Digest) {
        for gang in &digest.gangs {
            self.take_gang(gang);
        }
        for gang in &digest.removed_gangs {
            let id = meridian_proto::convert::gang(Some(gang)).expect("well formed");
            self.gangs.remove(&id);
        }
        self.digests.push(digest);
    }

    fn take_gang(&mut self, gang: &v1::GangObservation) {
        let id = meridian_proto::convert::gang(gang.gang.as_ref()).expect("well formed");
        self.gangs.insert(id, gang.clone());
    }

    /// Takes in what the agent says until `done`; panics with what was seen when it takes too
    /// long.
    pub async fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        let end = self.clock.boot().after(DEADLINE);
        while !done(self) {
            let left = end.since(self.clock.boot());
            let heard = self.clock.timeout(left, self.from_agent.recv()).await;
            let heard = heard.unwrap_or_else(|_| {
                panic!(
                    "never {what}; gangs {:#?} refusals {:#?}",
                    self.gangs, self.refusals
                )
            });
            let Some(heard) = heard else {
                panic!("the agent hung up, never {what}")
            };
            self.take(heard);
        }
    }

    /// Waits until the agent says this step of this epoch.
    pub async fn until_step(&mut self, gang: GangId, epoch: u64, step: v1::GangStep) {
        let what = format!("{gang} epoch {epoch} {step:?}");
        self.until(&what, |line| line.is_at(gang, epoch, step))
            .await;
    }

    pub fn is_at(&self, gang: GangId, epoch: u64, step: v1::GangStep) -> bool {
        self.gangs
            .get(&gang)
            .is_some_and(|seen| seen.epoch == epoch && seen.step() == step)
    }

    /// Takes in what the agent says for `span`; false when it has gone.
    pub async fn listen_for(&mut self, span: Millis) -> bool {
        let end = self.clock.boot().after(span);
        let clock = self.clock.clone();
        while clock.boot() < end {
            let left = end.since(clock.boot());
            let heard = match clock.timeout(left, self.from_agent.recv()).await {
                Ok(Some(heard)) => heard,
                Ok(None) => return false,
                Err(_) => break,
            };
            self.take(heard);
        }
        true
    }

    fn take(&mut self, heard: agent_message::Body) {
        match heard {
            agent_message::Body::Digest(digest) => self.take_digest(digest),
            agent_message::Body::Report(report) => {
                report.gangs.iter().for_each(|gang| self.take_gang(gang));
            }
            agent_message::Body::Refusal(refusal) => self.refusals.push(refusal),
            agent_message::Body::Hello(_)
            | agent_message::Body::Heartbeat(_)
            | agent_message::Body::Demand(_)
            | agent_message::Body::Usage(_) => {}
        }
    }

    /// The refusals heard, by their reasons.
    pub fn refused(&self) -> Vec<&str> {
        self.refusals
            .iter()
            .map(|refusal| refusal.reason.as_str())
            .collect()
    }
}

pub fn gang(index: u32) -> GangId {
    GangId {
        job: Uid(0xa11ce),
        index,
    }
}

const PLAIN: &str = r#"{"metadata":{},"spec":{}}"#;
const SHORT: &str = r#"{"metadata":{"annotations":{"meridian.dev/simulated-runtime":"60s"}}}"#;
const DEAF: &str =
    r#"{"metadata":{"annotations":{"meridian.dev/simulated-ignores-sigterm":"true"}}}"#;
const FAILS: &str = r#"{"metadata":{"annotations":{
    "meridian.dev/simulated-runtime":"5s","meridian.dev/simulated-exit-code":"3"}}}"#;

/// What a gang's pods do.
#[derive(Clone, Copy)]
pub enum Does {
    RunForever,
    RunAMinute,
    IgnoreSigterm,
    ExitWithThree,
}

fn json(does: Does) -> &'static str {
    match does {
        Does::RunForever => PLAIN,
        Does::RunAMinute => SHORT,
        Does::IgnoreSigterm => DEAF,
        Does::ExitWithThree => FAILS,
    }
}

fn templates() -> Vec<v1::Template> {
    let template = |json: &str| v1::Template {
        sha256: Sha256::digest(json).to_vec().into(),
        json: json.as_bytes().to_vec().into(),
    };
    [PLAIN, SHORT, DEAF, FAILS]
        .into_iter()
        .map(template)
        .collect()
}

/// Run `pods` pods of eight GPUs.
pub fn run(gang: GangId, epoch: u64, pods: u32, does: Does) -> v1::PlacementIntent {
    let per_pod = v1::Resources {
        milli_gpus: 8000,
        milli_cpus: 1000,
        memory_mib: 1000,
    };
    v1::PlacementIntent {
        gang: Some(gang.into()),
        epoch,
        desired: v1::Desired::Run.into(),
        namespace: "ml".to_owned(),
        job: format!("job-{}", gang.index),
        pool: "h100".to_owned(),
        roles: vec![v1::RoleIntent {
            name: "worker".to_owned(),
            pods,
            per_pod: Some(per_pod),
            template_sha256: Sha256::digest(json(does)).to_vec().into(),
            ..v1::RoleIntent::default()
        }],
        grace_ms: 10_000,
        place_timeout_ms: 120_000,
        ..v1::PlacementIntent::default()
    }
}

pub fn stop(gang: GangId, epoch: u64) -> v1::PlacementIntent {
    v1::PlacementIntent {
        gang: Some(gang.into()),
        epoch,
        desired: v1::Desired::Stop.into(),
        stop_reason: "Deleted".to_owned(),
        ..v1::PlacementIntent::default()
    }
}
