//! `FederatedJob`: work that runs to completion in gangs, somewhere in the fleet.
//!
//! Owns the shape of its spec. Status, gang arithmetic and checks are in the files below it.

pub mod admission;
pub mod affinity;
pub mod needs;
pub mod overrides;
pub mod placement;
pub mod retry;
pub mod shape;
pub mod status;
pub mod unsupported;
pub mod validate;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::meta::{Object, Spec};
use crate::quantity::{CpuQuantity, GpuQuantity, MemoryQuantity, Span, Time};
pub use affinity::{
    Affinity, FabricWish, JobRelation, JobRule, LabelOperator, LabelRule, PlacementGroup,
    Toleration, TolerationOperator,
};
pub use needs::{Carried, CarriedConfigMap, Dependencies, Origin};
pub use overrides::PlaceOverride;
pub use placement::{
    ClusterSpan, DataSource, Flavor, Objective, Overflow, Placement, RegionChoice, Split,
};
pub use retry::{
    BackOff, CauseAction, CauseRule, EndCause, ExitAction, ExitRule, Retry, SuccessPolicy,
    SuccessRule,
};
pub use shape::{GangTemplate, RoleTemplate};
pub use status::FederatedJobStatus;
pub use unsupported::unsupported;

/// A federated job.
pub type FederatedJob = Object<FederatedJobSpec, FederatedJobStatus>;

impl Spec for FederatedJobSpec {
    const KIND: &'static str = "FederatedJob";
    const ABOUT: &'static str = "Work that runs to completion in gangs, somewhere in the fleet.";
    const PLURAL: &'static str = "federatedjobs";
    const NAMESPACED: bool = true;
    type Status = FederatedJobStatus;
}

/// What a job wants.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FederatedJobSpec {
    /// Who pays; absent = the tenant named like the namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Its workload class.
    pub workload_class: String,
    /// Higher goes first among the jobs of its tenant and class.
    #[serde(default)]
    pub priority: i32,
    /// Held back, or taken back, by a person.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspend: bool,
    /// Whose cost it is.
    #[serde(default, skip_serializing_if = "CostAttribution::is_empty")]
    pub cost_attribution: CostAttribution,
    /// How long it should run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_runtime: Option<Span>,
    /// A gang that runs longer is ended; absent = its class's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_runtime: Option<Span>,
    /// When it should be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_by: Option<Time>,
    /// When it recurs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Schedule>,
    /// Where it may run.
    #[serde(default)]
    pub placement: Placement,
    /// What of its pods differs by cluster or region.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<PlaceOverride>,
    /// Its kinds of pods.
    pub roles: Vec<Role>,
    /// What starts together; absent = one gang of all roles.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gangs: Vec<Gang>,
    /// How near to each other pods must be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topology: Vec<TopologyRule>,
    /// The role whose number of pods may change, and how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elasticity: Option<Elasticity>,
    /// How it saves its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// When a gang of it has ended well; absent = when every pod has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success_policy: Option<SuccessPolicy>,
    /// What must be there for it to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependencies: Option<Dependencies>,
    /// What comes with each gang and goes with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried: Option<Carried>,
    /// Set by the hub on work that others made in a member cluster: its pods are there already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// What happens to it when its cluster is cut off.
    #[serde(default)]
    pub partition_rule: PartitionRule,
    /// It stops by itself when the hub has not renewed this long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_lease: Option<Span>,
    /// How many copies of its gangs run, each by itself; absent = 1.
    #[serde(default = "one_copy")]
    pub copies: u32,
    /// When its gangs are started again.
    #[serde(default)]
    pub retry: Retry,
}

fn one_copy() -> u32 {
    1
}

/// Whose cost a job is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CostAttribution {
    /// Team.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub team: String,
    /// Project.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub project: String,
    /// Model.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Cost centre.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cost_center: String,
}

impl CostAttribution {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// When a job recurs: by `cron` or at each opening of `window`. Each time it becomes a job of its
/// own, named after it and the minute, which belongs to it and goes with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Schedule {
    /// Five fields: minute, hour, day of month, month, day of week.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<String>,
    /// Name of a `TimeWindow`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    /// IANA time zone of `cron`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_zone: Option<String>,
    /// What happens when the last run is not over.
    #[serde(default)]
    pub overlap_policy: OverlapPolicy,
    /// What happens to runs whose time passed unseen.
    #[serde(default)]
    pub missed_run_policy: MissedRunPolicy,
    /// A run that could not be started so long after its time is missed; absent = 5m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_deadline: Option<Span>,
    /// Each run should be done so long after its time: its `finishBy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish_within: Option<Span>,
    /// How many runs that ended well are kept.
    #[serde(default = "three")]
    pub successful_runs_kept: u32,
    /// How many runs that failed are kept.
    #[serde(default = "one_copy")]
    pub failed_runs_kept: u32,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            cron: None,
            window: None,
            time_zone: None,
            overlap_policy: OverlapPolicy::default(),
            missed_run_policy: MissedRunPolicy::default(),
            start_deadline: None,
            finish_within: None,
            successful_runs_kept: three(),
            failed_runs_kept: one_copy(),
        }
    }
}

fn three() -> u32 {
    3
}

/// What happens when the last run is not over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OverlapPolicy {
    /// Both run.
    Allow,
    /// The next one does not start.
    #[default]
    Forbid,
    /// The last one is stopped.
    Replace,
}

/// What happens to runs whose time passed unseen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MissedRunPolicy {
    /// Nothing.
    #[default]
    Skip,
    /// One run makes up for all of them.
    RunOnce,
}

/// Pods of a job that are alike.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Role {
    /// Its name, unique in the job.
    pub name: String,
    /// Pods in each gang.
    pub replicas: u32,
    /// GPUs of each pod.
    #[serde(default)]
    pub gpus: GpuQuantity,
    /// CPU and memory of each pod.
    #[serde(default)]
    pub resources: RoleResources,
    /// Pod template: `metadata` and `spec` as Kubernetes has them. GPUs are not asked for here.
    #[serde(default = "empty_object")]
    #[schemars(schema_with = "crate::schema::free_form")]
    pub template: Value,
}

fn empty_object() -> Value {
    Value::Object(serde_json::Map::new())
}

/// CPU and memory of one pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RoleResources {
    /// CPU: `4`, `500m`.
    #[serde(default)]
    pub cpu: CpuQuantity,
    /// Memory: `16Gi`, `512Mi`.
    #[serde(default)]
    pub memory: MemoryQuantity,
}

/// Roles that start together or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Gang {
    /// Its name, unique in the job.
    pub name: String,
    /// Its roles. A role is in exactly one gang.
    pub roles: Vec<String>,
    /// Fewest pods it starts with; absent = all, or what elasticity allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_member: Option<u32>,
    /// A gang that does not run this long after it was bound is undone and queued again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place_timeout: Option<Span>,
}

/// How near to each other the pods of a role must be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyRule {
    /// The role.
    pub role: String,
    /// Level of the pool that must hold the whole role: `block`, `rack`, `host`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required: Option<String>,
    /// Level that should hold it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred: Option<String>,
    /// Pods that stay together inside one domain of `sliceRequired`, rank by rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice_size: Option<u32>,
    /// Level that must hold each slice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice_required: Option<String>,
}

/// How the number of pods of a role may change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Elasticity {
    /// The role.
    pub role: String,
    /// Fewest pods.
    pub min: u32,
    /// Most pods.
    pub max: u32,
    /// Sizes differ from `min` by a multiple of this; absent = 1.
    #[serde(default = "one_copy")]
    pub step: u32,
    /// Work lost by one change of size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize_cost: Option<Span>,
}

/// How a job saves its work: signal, time, place, resume, bound on loss.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Checkpoint {
    /// Where checkpoints are: `s3://ckpt/llm-70b`.
    pub uri: String,
    /// Where they can be read from: regions that hold them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub location: Vec<String>,
    /// Time between two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Span>,
    /// Regions that get a copy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicate_to: Vec<String>,
    /// How it is told that it must go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_preempt: Option<OnPreempt>,
    /// Environment variable that names the checkpoint to go on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_env: Option<String>,
    /// Most work that an end may cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_lost_work: Option<Span>,
}

/// How a job is told that it must go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OnPreempt {
    /// Signal it gets; absent = `SIGTERM`.
    #[serde(default = "sigterm")]
    pub signal: String,
    /// Time from the signal to the kill.
    pub grace: Span,
}

fn sigterm() -> String {
    "SIGTERM".to_owned()
}

/// What happens to a job when its cluster is cut off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PartitionRule {
    /// A replacement starts at once, the old one goes on.
    Duplicable,
    /// It goes on; a replacement starts only with proof that it has stopped.
    #[default]
    Exclusive,
    /// Only a person moves it.
    Pinned,
}
