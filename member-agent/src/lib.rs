//! The member-agent: one per member cluster, the hub's hands there.
//!
//! Owns the uplink, the execution of gangs and local fencing. It observes its cluster, reports it
//! to the hub that it dials, places the gangs it is ordered to, and obeys. Hub gone: everything
//! that runs goes on. Never decides between clusters, and never stops what it does not know.

pub mod answers;
pub mod backend;
mod calls;
pub mod config;
mod deadlines;
mod digest;
mod executor;
mod fences;
mod gangs;
pub mod identity;
mod intake;
pub mod kubernetes;
mod logs;
mod making_room;
mod mend;
mod metrics;
mod orders;
pub mod probes;
mod report;
pub mod simulated;
mod state;
mod uplink;
mod view;

use std::sync::Arc;

use meridian_runtime::{Clock, Disk, Network, Random, Tasks};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use backend::ClusterBackend;
pub use fences::RefusalReason;
pub use gangs::Failure;
pub use metrics::AgentMetrics;
pub use simulated::{Inventory, SimulatedCluster};
pub use state::StateError;
pub use uplink::{Contact, PROTOCOLS};

use executor::Executor;
use identity::IdentityLink;
use logs::LogSender;
use state::AgentState;
use uplink::Uplink;

/// Messages from the hub that wait for the executor. A burst of intents after a decision round is
/// a few; beyond that the stream's own back-pressure holds the hub.
const INBOX: usize = 64;

/// What an agent is made of.
pub struct AgentOptions {
    /// Name of its cluster.
    pub cluster: String,
    /// Addresses of hub replicas (`host:port`); any one leads to the leader.
    pub hubs: Vec<String>,
    /// Version that it tells the hub.
    pub version: String,
    /// Connections.
    pub network: Arc<dyn Network>,
    /// Time.
    pub clock: Clock,
    /// Jitter, and the credential.
    pub random: Random,
    /// Its state folder.
    pub disk: Arc<dyn Disk>,
    /// Its cluster.
    pub backend: Arc<dyn ClusterBackend>,
    /// The group that its tasks belong to.
    pub tasks: Tasks,
    /// Its metrics.
    pub metrics: AgentMetrics,
    /// What keeps the certificate that `network` connects under; `None` where there is none.
    pub identity: Option<IdentityLink>,
}

/// Starts agents.
pub struct Agent;

impl Agent {
    /// Reads the state folder and starts. An error means that the state cannot be trusted.
    pub async fn start(options: AgentOptions) -> Result<AgentHandle, StateError> {
        let state = AgentState::load(options.disk, &options.random).await?;
        let (to_executor, inbox) = mpsc::channel(INBOX);
        let (contact, contact_seen) = watch::channel(Contact::Dialling);
        let tasks = options.tasks.child();
        let logs = LogSender::new(
            Arc::clone(&options.backend),
            options.clock.clone(),
            tasks.clone(),
        );
        let uplink = Uplink {
            cluster: options.cluster,
            hubs: options.hubs,
            version: options.version,
            network: options.network,
            clock: options.clock.clone(),
            random: options.random,
            metrics: options.metrics.clone(),
            executor: to_executor,
            contact,
            identity: options.identity,
            logs,
        };
        let (tracker, killed) = (TaskTracker::new(), CancellationToken::new());
        let cancelled = tasks.cancelled();
        let executor = Executor::new(
            options.clock,
            options.backend,
            options.metrics,
            state,
            cancelled.clone(),
        );
        let work = executor.run(inbox);
        tasks.spawn(
            "agent-executor",
            tracker.track_future(unless(killed.clone(), work)),
        );
        let work = uplink.run(cancelled);
        tasks.spawn(
            "agent-uplink",
            tracker.track_future(unless(killed.clone(), work)),
        );
        tracker.close();
        Ok(AgentHandle {
            tasks,
            tracker,
            killed,
            contact: contact_seen,
        })
    }
}

/// Work that is dropped where it stands when `killed`.
async fn unless<E>(
    killed: CancellationToken,
    work: impl Future<Output = Result<(), E>>,
) -> Result<(), E> {
    tokio::select! {
        biased;
        () = killed.cancelled() => Ok(()),
        done = work => done,
    }
}

/// A running agent.
#[derive(Debug)]
pub struct AgentHandle {
    tasks: Tasks,
    tracker: TaskTracker,
    killed: CancellationToken,
    contact: watch::Receiver<Contact>,
}

impl AgentHandle {
    /// How it stands with its hub; follow it for readiness.
    #[must_use]
    pub fn contact(&self) -> watch::Receiver<Contact> {
        self.contact.clone()
    }

    /// Ends the session and the agent. What runs in the cluster goes on.
    pub async fn shutdown(self) {
        self.tasks.cancel();
        self.tracker.wait().await;
    }

    /// Ends it as a crash does, at whatever it is waiting for.
    pub async fn kill(self) {
        // The group first: a task of a group that is cancelled may end.
        self.tasks.cancel();
        self.killed.cancel();
        self.tracker.wait().await;
    }
}
