//! Real member clusters on one machine: a real control plane, real nodes that run containers, and
//! fake nodes for scale.
//!
//! Owns the life of all of it, from a free place on the machine to nothing left. Every process
//! carries the cluster's mark and dies with the thread that started the cluster; each real node
//! lives in namespaces of its own, so that its mounts, links and containers go with it. What a
//! killed run leaves behind (a folder, empty cgroups) the next start removes. Never touches a
//! process that does not carry such a mark, and knows nothing of Meridian.

pub mod answer;
mod certificates;
mod control_plane;
mod devices;
mod fake_nodes;
mod files;
mod image;
mod network;
mod node;
mod node_files;
mod place;
mod pods;
pub mod trainer;
pub mod truth;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use futures::future::try_join_all;
use meridian_api::units::Millis;

pub use self::control_plane::MemoryUse;
pub use self::devices::FakeGpus;
pub use self::fake_nodes::{
    CRASH_LOOP, EXIT_CODE, FAKE_NODE, IGNORE_TERM, PULLING, RUN_FOR, START_AFTER, STAY,
};
pub use self::image::TRAINER_IMAGE;
pub use self::node::RealNode;
pub use self::pods::{TrainerPod, bind, trainer_spec};

use self::control_plane::ControlPlane;
use self::fake_nodes::FakeNodes;
use self::network::Subnet;
use self::place::Place;
use crate::process::{Harness, Process, ProcessError};
use crate::tools::{Binary, MissingTool, Tool};

/// A control plane answers within this of its start on a machine with nothing to spare; it takes
/// four seconds on a quiet one.
const CONTROL_PLANE_LIMIT: Millis = Millis::seconds(120);
/// A node is Ready, its image imported and its GPUs counted, within this; five seconds when quiet.
const NODE_LIMIT: Millis = Millis::seconds(120);
/// A thousand fake nodes are created and Ready within this; fifteen seconds when quiet.
const FAKE_NODES_LIMIT: Millis = Millis::seconds(180);
/// Between two looks: far below what a person notices.
const LOOK_EVERY: Millis = Millis(50);

/// Why there is no member cluster.
#[derive(Debug, thiserror::Error)]
pub enum MemberError {
    /// A tool is not built.
    #[error(transparent)]
    MissingTool(#[from] MissingTool),
    /// This machine does not let us make what a real node needs.
    #[error("a real node cannot be made here: {0}")]
    NoRights(String),
    /// More than one machine has room for.
    #[error("{what}: {wanted} asked for, at most {most}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many were asked for.
        wanted: usize,
        /// The most there can be.
        most: usize,
    },
    /// A process failed.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// A file, a folder or a signal.
    #[error("{what}: {path}")]
    System {
        /// What was tried.
        what: &'static str,
        /// With what.
        path: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A certificate could not be made.
    #[error("cannot make a certificate")]
    Certificate(#[from] rcgen::Error),
    /// The cluster's API refused or did not answer.
    #[error("{what}")]
    Api {
        /// What was asked.
        what: String,
        /// Its answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// A command ended badly.
    #[error("{what} failed: {output}")]
    Command {
        /// Which.
        what: String,
        /// What it printed.
        output: String,
    },
    /// The deadline passed.
    #[error("not within {limit}: {what}")]
    TooLate {
        /// What was waited for.
        what: String,
        /// The deadline.
        limit: Millis,
    },
}

impl MemberError {
    fn system(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.display().to_string();
        move |source| Self::System { what, path, source }
    }

    /// With what the kubelets said last: why a node is not Ready stands only there.
    fn explained_by(self, nodes: &[RealNode]) -> Self {
        match self {
            Self::TooLate { mut what, limit } => {
                for node in nodes {
                    let (name, words) = (node.name(), node.last_words());
                    let _ = write!(what, "\nkubelet of {name}:\n{words}");
                }
                Self::TooLate { what, limit }
            }
            other => other,
        }
    }

    fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        let what = what.into();
        move |source| Self::Api {
            what,
            source: Box::new(source),
        }
    }
}

/// Whether pods that name no node are given one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduling {
    /// By nobody: whoever creates a pod binds it.
    #[default]
    None,
    /// By Kubernetes' own scheduler.
    Kubernetes,
}

/// What a member cluster consists of.
#[derive(Clone, Debug)]
pub struct MemberOptions {
    /// Nodes that run containers; `node-0` and so on. About 150 MB each.
    pub nodes: u8,
    /// Nodes that only say so; `fake-0000` and so on.
    pub fake_nodes: u16,
    /// GPUs of each node, real or fake.
    pub gpus_per_node: u16,
    /// What the GPUs are called: `nvidia.com/gpu`, `amd.com/gpu`.
    pub gpu_resource: String,
    /// Labels of every node, besides its block and rack.
    pub labels: BTreeMap<String, String>,
    /// Consecutive nodes that share a rack; two racks make a block.
    pub nodes_per_rack: u16,
    /// Whether pods without a node are given one.
    pub scheduling: Scheduling,
    /// A node that is silent for so long counts as lost: Kubernetes' own default is 50 s.
    pub node_grace: Millis,
}

impl Default for MemberOptions {
    fn default() -> Self {
        let product = ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3");
        Self {
            nodes: 2,
            fake_nodes: 0,
            gpus_per_node: 8,
            gpu_resource: "nvidia.com/gpu".to_owned(),
            labels: [(product.0.to_owned(), product.1.to_owned())].into(),
            nodes_per_rack: 2,
            scheduling: Scheduling::None,
            node_grace: Millis::seconds(50),
        }
    }
}

/// The label of a node's block, as topograph writes it.
pub const BLOCK_LABEL: &str = "network.topology.nvidia.com/spine";
/// The label of a node's rack.
pub const RACK_LABEL: &str = "network.topology.nvidia.com/leaf";

impl MemberOptions {
    /// Labels of the node at that position, counted over real and fake ones.
    fn labels_of(&self, position: usize) -> BTreeMap<String, String> {
        let rack = position / usize::from(self.nodes_per_rack.max(1));
        let mut labels = self.labels.clone();
        labels.insert(BLOCK_LABEL.to_owned(), format!("b{}", rack / 2));
        labels.insert(
            RACK_LABEL.to_owned(),
            format!("b{}-r{}", rack / 2, rack % 2),
        );
        labels
    }

    fn tools(&self) -> Vec<Tool> {
        let mut tools = vec![Tool::Etcd, Tool::ApiServer, Tool::ControllerManager];
        match self.scheduling {
            Scheduling::None => {}
            Scheduling::Kubernetes => tools.push(Tool::Scheduler),
        }
        if self.fake_nodes > 0 {
            tools.push(Tool::Kwok);
        }
        if self.nodes > 0 {
            tools.extend([Tool::Kubelet, Tool::Containerd, Tool::Shim, Tool::Ctr]);
            tools.extend([Tool::Runc, Tool::Ptp, Tool::HostLocal, Tool::Loopback]);
        }
        tools
    }

    /// Nothing when this machine can start such a cluster, else what it lacks.
    pub fn check(&self) -> Result<(), MemberError> {
        let most = usize::from(network::NODES);
        if usize::from(self.nodes) > most {
            let (what, wanted) = ("real nodes of one cluster", usize::from(self.nodes));
            return Err(MemberError::TooMany { what, wanted, most });
        }
        for tool in self.tools() {
            tool.locate()?;
        }
        if self.nodes > 0 && !rustix::process::geteuid().is_root() {
            let what = "namespaces, mounts and cgroups need root".to_owned();
            return Err(MemberError::NoRights(what));
        }
        Ok(())
    }

    /// These options, or `None` after saying which test is skipped because this machine lacks
    /// something.
    ///
    /// # Panics
    /// When it lacks something and `CI` is set: there, a skipped test would be a lie.
    #[must_use]
    pub fn or_skip(self, test: &str) -> Option<Self> {
        match self.check() {
            Ok(()) => Some(self),
            Err(lacks) => {
                assert!(std::env::var_os("CI").is_none(), "{test}: {lacks}");
                eprintln!("SKIPPED {test}: {lacks}");
                None
            }
        }
    }
}

/// A running member cluster. Dropping it stops it without ceremony; nothing stays but, for a
/// moment, the folder of what the kernel is still ending.
#[derive(Debug)]
pub struct MemberCluster {
    // In this order they go: pods and nodes before what they report to, the place last.
    nodes: Vec<RealNode>,
    fake_nodes: Option<FakeNodes>,
    control_plane: ControlPlane,
    harness: Harness,
    place: Place,
}

impl MemberCluster {
    /// Starts a cluster and waits until all its nodes are Ready with their GPUs. Call from a
    /// thread that lives as long as the cluster shall.
    pub async fn start(options: MemberOptions) -> Result<Self, MemberError> {
        // Boxed: what is held while a dozen processes start does not belong on a test's stack.
        Box::pin(Self::start_all(options)).await
    }

    async fn start_all(options: MemberOptions) -> Result<Self, MemberError> {
        options.check()?;
        let place = Place::take()?;
        let harness = Harness::bonded((place::MARK, place.folder()));
        let control_plane = ControlPlane::start(&harness, &place, &options).await?;
        let archive = match options.nodes {
            0 => None,
            _ => Some(image::pack(&Binary::Trainer.path(), place.folder())?),
        };
        let mut nodes = Vec::new();
        for index in 0..options.nodes {
            let subnet = Subnet::new(place.index(), index);
            let ground = node::Ground {
                harness: &harness,
                place: &place,
                control_plane: &control_plane,
                options: &options,
            };
            nodes.push(RealNode::start(&ground, subnet).await?);
        }
        if let Some(archive) = &archive {
            try_join_all(nodes.iter().map(|node| node.import(&harness, archive))).await?;
        }
        let fake_nodes = match options.fake_nodes {
            0 => None,
            _ => Some(FakeNodes::start(&harness, &place, &control_plane, &options).await?),
        };
        let ready = control_plane.nodes_ready(harness.clock(), &options).await;
        ready.map_err(|error| error.explained_by(&nodes))?;
        tracing::info!(place = %place.folder().display(), "member cluster is ready");
        Ok(Self {
            nodes,
            fake_nodes,
            control_plane,
            harness,
            place,
        })
    }

    /// A client with every right.
    #[must_use]
    pub fn client(&self) -> kube::Client {
        self.control_plane.client().clone()
    }

    /// A file that gives `kubectl` and agents every right.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        self.control_plane.kubeconfig()
    }

    /// The folder, the same on every real node, in which trainers write down that they run. Pods
    /// of [`trainer_spec`] mount it.
    #[must_use]
    pub fn heartbeats(&self) -> PathBuf {
        self.place.heartbeats()
    }

    /// What really ran so far.
    #[must_use]
    pub fn truth(&self) -> truth::Truth {
        truth::Truth::read(&self.heartbeats())
    }

    /// The machine's address as pods of real nodes reach it.
    #[must_use]
    pub fn gateway(&self) -> std::net::Ipv4Addr {
        Subnet::new(self.place.index(), 0).host()
    }

    /// The real nodes.
    #[must_use]
    pub fn nodes(&self) -> &[RealNode] {
        &self.nodes
    }

    /// The real nodes, to stop one or to break its GPUs.
    pub fn nodes_mut(&mut self) -> &mut [RealNode] {
        &mut self.nodes
    }

    /// The API server's process, to pause or kill it.
    pub fn api_server(&mut self) -> &mut Process {
        self.control_plane.api_server()
    }

    /// A folder of the cluster, removed with it.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.place.folder()
    }

    /// The harness that its processes belong to.
    #[must_use]
    pub fn harness(&self) -> &Harness {
        &self.harness
    }

    /// Resident memory of each kind of process.
    #[must_use]
    pub fn memory(&self) -> Vec<MemoryUse> {
        let mut uses = self.control_plane.memory();
        uses.extend(self.fake_nodes.iter().map(FakeNodes::memory));
        uses.extend(self.nodes.iter().flat_map(RealNode::memory));
        uses
    }

    /// Ends every process of the cluster, waits for that, and removes all that it made. An error
    /// names what is left.
    pub async fn stop(self) -> Result<(), MemberError> {
        let Self {
            nodes,
            fake_nodes,
            control_plane,
            harness,
            place,
        } = self;
        for node in nodes {
            node.stop().await?;
        }
        drop((fake_nodes, control_plane, harness));
        place.leave()
    }
}

/// Looks again and again until there is something, and returns it.
async fn until<T>(
    clock: &meridian_runtime::Clock,
    what: impl Into<String>,
    limit: Millis,
    mut look: impl AsyncFnMut() -> Result<Option<T>, MemberError>,
) -> Result<T, MemberError> {
    let looking = async {
        loop {
            if let Some(found) = look().await? {
                return Ok(found);
            }
            clock.sleep(LOOK_EVERY).await;
        }
    };
    let found = clock.timeout(limit, looking).await;
    found.unwrap_or_else(|_| {
        let what = what.into();
        Err(MemberError::TooLate { what, limit })
    })
}
