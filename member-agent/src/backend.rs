//! The seam to a member cluster: what the agent sees there and asks of it.
//!
//! Owns the `ClusterBackend` trait and its words. Each request is idempotent by (gang, epoch,
//! step), each may fail half done, and what came of it is learned from events, as with a real
//! Kubernetes API. Never decides what runs.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use indexmap::IndexMap;
use meridian_api::ids::{Epoch, GangId};
use meridian_api::units::{MilliGpus, Millis, Resources, UnixMillis};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One gang under one epoch: what fences in the member cluster are keyed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GangKey {
    /// Which gang.
    pub gang: GangId,
    /// Under which epoch.
    pub epoch: Epoch,
}

impl std::fmt::Display for GangKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} epoch {}", self.gang, self.epoch)
    }
}

/// What the cluster keeps beside a gang's pods, so that an agent that lost its memory can still
/// stop it in the right way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangTerms {
    /// Pool that holds it.
    pub pool: String,
    /// Namespace of its job.
    pub namespace: String,
    /// Name of its job.
    pub job: String,
    /// From SIGTERM to SIGKILL.
    pub grace: Millis,
    /// It is ended after this, counted from its first running pod.
    pub max_runtime: Option<Millis>,
    /// What makes it a success.
    #[serde(default)]
    pub success: Success,
}

/// When a gang has succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Success {
    /// Every pod did.
    #[default]
    All,
    /// Rank 0 of this role did; what still runs of the others is stopped.
    Leader {
        /// Name of the role.
        role: String,
    },
}

/// What a job says beside its pods, for whoever makes them in the member cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// Tenant that pays; empty = not said.
    pub tenant: String,
    /// Name of its workload class; empty = not said.
    pub class: String,
    /// Priority of that class.
    pub priority: i32,
    /// Hardware of its pool; empty = the cluster looks it up.
    pub flavor: String,
    /// Where its checkpoints lie; empty = it writes none.
    pub checkpoint_uri: String,
    /// Environment variable that names what to go on from; empty = none.
    pub resume_env: String,
    /// Signal that asks user code to save and go; empty = SIGTERM.
    pub stop_signal: String,
    /// What must be in the cluster before anything of it is made.
    pub dependencies: Vec<Dependency>,
    /// ConfigMaps that it brings along, and takes away with it.
    pub carried: Vec<Carried>,
    /// The object of the member cluster that its pods belong to, when others make them.
    pub origin: Option<Origin>,
}

/// Something that a job needs to find in its namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dependency {
    /// What kind of thing.
    pub kind: DependencyKind,
    /// Its name.
    pub name: String,
}

/// Kinds of things that a job may depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DependencyKind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret, one for pulling images included.
    Secret,
    /// A service account.
    ServiceAccount,
    /// A claim to a persistent volume.
    PersistentVolumeClaim,
    /// A resource that a node must offer, such as a network card.
    Resource,
}

impl std::fmt::Display for Dependency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {}", self.kind, self.name)
    }
}

/// A ConfigMap that travels with a placement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carried {
    /// Its name.
    pub name: String,
    /// What it holds.
    #[serde(default)]
    pub data: IndexMap<String, String>,
}

/// An object of the member cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its UID.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// One pod to be bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberOrder {
    /// Its role, by position in [`GangOrder::roles`].
    pub role: usize,
    /// Its rank in the role.
    pub rank: u32,
    /// Where it goes.
    pub node: String,
}

/// What the pods of one role are made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleOrder {
    /// Its name.
    pub name: String,
    /// What each pod asks of its host.
    pub request: Resources,
    /// The pod template, a JSON object.
    pub template: Arc<Value>,
}

/// A whole gang on named nodes. Idempotent by (`key`, `attempt`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangOrder {
    /// Which.
    pub key: GangKey,
    /// The step under this epoch: one higher for each other set of members.
    pub attempt: u32,
    /// Kept beside the pods.
    pub terms: GangTerms,
    /// Roles in the job's order.
    pub roles: Vec<RoleOrder>,
    /// Every pod; none starts user code before all are bound.
    pub members: Vec<MemberOrder>,
    /// Labels for the pods.
    pub labels: IndexMap<String, String>,
    /// What the job says beside them.
    pub workload: Workload,
    /// W3C trace context of the submit; empty = none.
    pub traceparent: String,
}

/// Whether a node takes pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeHealth {
    /// It does.
    Ready,
    /// Closed to new pods by a person.
    Cordoned,
    /// Not heard by the cluster.
    Down,
}

/// One node as the cluster shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSeen {
    /// Its name. A host whose cards are of several flavors is one node per flavor, each
    /// `<host>/<flavor>`; pods are shown on, and ordered to, a node under the same name.
    pub name: String,
    /// Pool it belongs to.
    pub pool: String,
    /// One domain per level of the pool, from the widest inward.
    pub domains: Vec<String>,
    /// What pods may ask for in all; unhealthy devices are already out.
    pub allocatable: Resources,
    /// GPUs of its unhealthy devices.
    pub unhealthy: MilliGpus,
    /// Held by pods that are in none of the gangs seen.
    pub foreign: Resources,
    /// Whether it takes pods.
    pub health: NodeHealth,
}

/// A pool: nodes of one flavor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSeen {
    /// Its name.
    pub name: String,
    /// Its hardware.
    pub flavor: String,
    /// Topology levels from the widest inward, without the host.
    pub levels: Vec<String>,
    /// What a person should know of its nodes: skew of drivers, labels that contradict.
    #[serde(default)]
    pub findings: Vec<String>,
}

/// The reason of a pod that is broken because its machine was taken away: that it ended will be
/// proved in a while, or the machine comes back.
pub const NODE_OFF: &str = "NodeOff";

/// Where a pod is in its life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PodPhase {
    /// Assigned to its node, not yet admitted there.
    Pending,
    /// The node turned it away: the race for room was lost there.
    Rejected {
        /// The cluster's word, such as `OutOfGpu`.
        reason: String,
    },
    /// Admitted and holding its devices; user code has not started.
    Bound,
    /// User code runs.
    Running,
    /// User code was started, but its node is not heard any more or a device of it has failed.
    /// Whether it still runs is not known: this is not an end.
    Broken {
        /// `NodeLost`, [`NODE_OFF`] or `DeviceFailed`.
        reason: String,
    },
    /// User code ended well.
    Succeeded,
    /// It ended otherwise, or its node did.
    Failed {
        /// Exit code of the user's process; 0 when there was none.
        exit_code: i32,
        /// The cluster's word, such as `Error`, `NodeLost`, `StartError`.
        reason: String,
    },
}

impl PodPhase {
    /// True when nothing of it can run any more.
    #[must_use]
    pub const fn ended(&self) -> bool {
        match self {
            Self::Pending | Self::Bound | Self::Running | Self::Broken { .. } => false,
            Self::Rejected { .. } | Self::Succeeded | Self::Failed { .. } => true,
        }
    }

    /// True when its node has admitted it, or had.
    #[must_use]
    pub const fn admitted(&self) -> bool {
        match self {
            Self::Pending | Self::Rejected { .. } => false,
            Self::Bound
            | Self::Running
            | Self::Broken { .. }
            | Self::Succeeded
            | Self::Failed { .. } => true,
        }
    }
}

/// One pod of a gang as the cluster shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodSeen {
    /// Its name in the cluster.
    pub name: String,
    /// Name of its role.
    pub role: String,
    /// Its rank in the role.
    pub rank: u32,
    /// Node it is assigned to.
    pub node: String,
    /// What it asks of the node; held until it has ended.
    pub request: Resources,
    /// Where it is.
    pub phase: PodPhase,
    /// When user code started, by the cluster's clock.
    pub started: Option<UnixMillis>,
    /// When it ended, by the cluster's clock.
    pub ended: Option<UnixMillis>,
    /// What it waits for, in the cluster's words, such as `ImagePullBackOff`; empty = nothing
    /// out of the ordinary.
    #[serde(default)]
    pub waits_for: String,
    /// A resize left it out: it holds what it asks for until it has ended, and is no member.
    #[serde(default)]
    pub leaving: bool,
}

impl GangSeen {
    /// Pods that are members: all but those that a resize left out.
    pub fn members(&self) -> impl Iterator<Item = &PodSeen> {
        self.pods.iter().filter(|pod| !pod.leaving)
    }
}

/// One gang as the cluster shows it, whoever made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangSeen {
    /// Which.
    pub key: GangKey,
    /// The newest attempt that was begun.
    pub attempt: u32,
    /// Every step of that attempt was done; false while it is under way or was cut short.
    pub complete: bool,
    /// Its terms.
    pub terms: GangTerms,
    /// Asked to stop; it vanishes when nothing of it runs.
    pub stopping: bool,
    /// Its pods, in the order of the roles and ranks.
    pub pods: Vec<PodSeen>,
    /// Its newest checkpoint, by the cluster's clock.
    pub checkpoint: Option<UnixMillis>,
}

/// Pods that somebody else made in the cluster and left to this scheduler. Seen for as long as
/// what owns them is there and not over, also when an order has bound them: when it is no longer
/// seen, its owner is gone, and with it the hub's job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferSeen {
    /// UID of the object that owns the pods: the same work made again has another.
    pub uid: String,
    /// Namespace of that object.
    pub namespace: String,
    /// Name of that object.
    pub name: String,
    /// Workload class that it asks for; empty = it does not say.
    pub class: String,
    /// Its pods, by role.
    pub roles: Vec<OfferedRole>,
    /// Flavors that its pods can stand on; empty = any.
    pub flavors: Vec<String>,
    /// Higher goes first among the work of its tenant and class.
    pub priority: i32,
}

/// Pods of an offer that are alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfferedRole {
    /// Its name, unique in the offer.
    pub name: String,
    /// How many pods, all of which start together.
    pub pods: u32,
    /// What each asks of its host.
    pub request: Resources,
    /// Level of the pool that must hold the whole role.
    pub required: Option<String>,
    /// Level that should.
    pub preferred: Option<String>,
}

/// Which lines of which container are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Name of the role; empty = the gang's first.
    pub role: String,
    /// Rank in the role.
    pub rank: u32,
    /// Name of the container; empty = the pod's first.
    pub container: String,
    /// Goes on with lines as they are written, until the container has ended.
    pub follow: bool,
    /// Only this many of the newest lines; `None` = all that are kept.
    pub tail: Option<u64>,
    /// Of the container's life before the present one.
    pub previous: bool,
    /// Only lines that are not older than this.
    pub since: Option<Millis>,
    /// Each line begins with the time at which it was written, RFC 3339.
    pub timestamps: bool,
}

/// Everything, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Pools.
    pub pools: Vec<PoolSeen>,
    /// Nodes.
    pub nodes: Vec<NodeSeen>,
    /// Gangs.
    pub gangs: Vec<GangSeen>,
    /// Gangs that others made.
    pub offers: Vec<OfferSeen>,
    /// Gangs that others made and that lack something, each with what it lacks.
    pub held_back: Vec<String>,
}

/// A change since the snapshot. States between two changes may be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterEvent {
    /// This node is like this.
    Node(NodeSeen),
    /// This node left the cluster.
    NodeGone(String),
    /// This pool is like this, and so are these of its nodes: all of them when its levels are
    /// others than they were, or a node would be seen with domains of other levels than its pool
    /// has.
    Pool(PoolSeen, Vec<NodeSeen>),
    /// This pool is gone; each of its nodes left or moved before.
    PoolGone(String),
    /// This gang is like this.
    Gang(Box<GangSeen>),
    /// Nothing is left of this gang.
    GangGone(GangKey),
    /// Somebody made this gang, or changed it.
    Offer(Box<OfferSeen>),
    /// What owned the gang with this UID is gone, or over.
    OfferGone(String),
    /// These gangs that others made lack something, each with what it lacks.
    HeldBack(Vec<String>),
}

/// A snapshot and every change after it. The stream ends when the watch breaks or falls too far
/// behind: observe again.
pub struct Observation {
    /// Where it starts.
    pub snapshot: Snapshot,
    /// What follows.
    pub changes: BoxStream<'static, ClusterEvent>,
}

/// What a stop came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Something may still run; its end comes as an event.
    Asked,
    /// The cluster itself says that nothing of this gang and epoch is there: the proof.
    Gone,
}

/// Why the cluster did not do it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// Not reached in time. The request may or may not have been carried out.
    #[error("the cluster's API did not answer: {0}")]
    Unavailable(String),
    /// An older or newer epoch, or another attempt, is still there; nothing was done.
    #[error("{held} (attempt {attempt}) is in the way")]
    Conflict {
        /// What is there.
        held: GangKey,
        /// Its attempt.
        attempt: u32,
    },
    /// The cluster refuses this order as it is; nothing was done.
    #[error("the cluster refused it: {0}")]
    Invalid(String),
    /// A rule of this cluster does not admit it: another cluster, or this one later, may.
    #[error("a rule of the cluster denies it: {0}")]
    Denied(String),
    /// What the job depends on is not in the cluster; nothing was done.
    #[error("not in the cluster: {}", list(.0))]
    Missing(Vec<Dependency>),
    /// A node has less room than the caller believed; nothing was done.
    #[error("no room: {0}")]
    NoRoom(String),
    /// The pods that others made and that it would bind are not all there, or are others than the
    /// order is for; nothing was done.
    #[error("what it binds is not there: {0}")]
    NotOffered(String),
    /// There is no such gang and epoch.
    #[error("{0} is not in the cluster")]
    NotFound(GangKey),
    /// This backend cannot do it at all.
    #[error("a {backend} cluster cannot {what}")]
    Unsupported {
        /// Name of the implementation.
        backend: &'static str,
        /// What was asked, as in "cannot show logs".
        what: &'static str,
    },
}

fn list(missing: &[Dependency]) -> String {
    let names: Vec<String> = missing.iter().map(Dependency::to_string).collect();
    names.join(", ")
}

/// A member cluster. Implementations bound every call in time and answer
/// [`BackendError::Unavailable`] when the bound is reached.
#[async_trait]
pub trait ClusterBackend: Send + Sync + 'static {
    /// Name of the implementation, such as `simulated`.
    fn name(&self) -> &'static str;

    /// Takes over what runs there: after this, changes to it are this agent's alone.
    async fn adopt(&self) -> Result<Vec<GangSeen>, BackendError>;

    /// What is there, and what changes from then on.
    async fn observe(&self) -> Result<Observation, BackendError>;

    /// Binds every member, or none: what was begun of a failed bind ends by a `stop`. Success
    /// means that the cluster took the order; admission on the nodes shows in events. The same
    /// attempt again changes nothing.
    async fn bind(&self, order: &GangOrder) -> Result<(), BackendError>;

    /// Makes the members of a bound gang those of `order`: pods that it does not name are
    /// stopped, pods that are not there yet are bound. The same attempt again changes nothing.
    async fn resize(&self, order: &GangOrder) -> Result<(), BackendError>;

    /// Asks user code for a checkpoint within `limit`; the gang's `checkpoint` shows it.
    async fn request_checkpoint(&self, key: GangKey, limit: Millis) -> Result<(), BackendError>;

    /// SIGTERM to every pod, SIGKILL after `grace`, then removal. Asked again until it answers
    /// [`Stopped::Gone`], which is read from the cluster and not from a cache. A bind of the same
    /// gang and epoch that was sent before and not answered must not take effect after that
    /// answer.
    async fn stop(&self, key: GangKey, grace: Millis) -> Result<Stopped, BackendError>;

    /// What one container of a gang wrote, in pieces of any size that need not end with a line.
    /// An error in the stream is its last item. Dropping the stream ends the request.
    async fn logs(
        &self,
        key: GangKey,
        query: LogQuery,
    ) -> Result<BoxStream<'static, Result<Bytes, BackendError>>, BackendError> {
        let _ = (key, query);
        Err(BackendError::Unsupported {
            backend: self.name(),
            what: "show logs",
        })
    }
}
