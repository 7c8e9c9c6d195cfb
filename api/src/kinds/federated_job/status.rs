//! Status of a `FederatedJob`: where each gang is, and why a job waits.
//!
//! Owns its shape. Written by the hub alone.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::Epoch;
use crate::meta::Condition;
use crate::quantity::{GpuQuantity, Money, Span, Time};
use crate::reasons::Reason;

/// Condition: the rules let it in.
pub const ADMITTED: &str = "Admitted";
/// Condition: its tenant's quota holds it.
pub const QUOTA_RESERVED: &str = "QuotaReserved";
/// Condition: every gang has a place.
pub const PLACED: &str = "Placed";
/// Condition: every gang ended well.
pub const COMPLETE: &str = "Complete";
/// Condition: it ended and will not be tried again.
pub const FAILED: &str = "Failed";
/// Condition of a job with a `finishBy`: it is expected to be done by then, or was.
pub const FINISHES_IN_TIME: &str = "FinishesInTime";

/// Most gangs that a status lists; the counters count all. At some 300 bytes each they stay far
/// below the limit of one object.
pub const MAX_GANGS_SHOWN: usize = 100;
/// Most blockers that a status lists: every reason for each cluster of a large fleet is for
/// `why`, not for the object.
pub const MAX_BLOCKERS_SHOWN: usize = 40;

/// What is so with a job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FederatedJobStatus {
    /// Generation of the spec it speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where it stands, in one word.
    pub phase: Phase,
    /// Why it waits or how it ended, in one word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The same for a person.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Clusters that hold it, as one text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cluster: String,
    /// Flavors that it holds, or accepts, as one text.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub flavor: String,
    /// GPUs that it holds, or asks for.
    pub gpus: GpuQuantity,
    /// Place in the queue, from 1, while it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// When it may start, while it waits for room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_start: Option<EstimatedStart>,
    /// Its work that is saved, while it is placed and tells of checkpoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
    /// When its newest run was due, if it recurs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_scheduled: Option<Time>,
    /// When its next run is due, if it recurs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_scheduled: Option<Time>,
    /// Its runs that are not over, if it recurs, the oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub active: Vec<String>,
    /// When its first gang first ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When its last gang ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// All gangs, by phase.
    pub counts: GangCounts,
    /// The first gangs, by index; at most 100.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gangs: Vec<GangStatus>,
    /// Why it waits, most actionable first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<Blocker>,
    /// `Admitted`, `QuotaReserved`, `Placed`, `Complete`, `Failed`; with a `finishBy`,
    /// `FinishesInTime`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Where a job or a gang stands.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum Phase {
    /// It waits for a place.
    #[default]
    Pending,
    /// It recurs: its runs are jobs of their own.
    Scheduled,
    /// It has a place and does not run yet.
    Starting,
    /// It runs.
    Running,
    /// It was told to stop and may still run.
    Stopping,
    /// It ended well.
    Succeeded,
    /// It ended and will not be tried again.
    Failed,
}

impl Phase {
    /// The word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Scheduled => "Scheduled",
            Self::Starting => "Starting",
            Self::Running => "Running",
            Self::Stopping => "Stopping",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }

    /// True when nothing will change any more.
    #[must_use]
    pub const fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// When a waiting job may start: a span, not a promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EstimatedStart {
    /// Not before.
    pub earliest: Time,
    /// By then, if everything before it ends within its `maxRuntime`; absent when something does
    /// not say how long it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest: Option<Time>,
}

/// What of a job's work is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CheckpointStatus {
    /// When each of its gangs that tell of any had saved: the oldest of their newest.
    pub last_time: Time,
}

/// Gangs of a job, by phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GangCounts {
    /// Without a place.
    pub waiting: u32,
    /// With a place, not running yet.
    pub starting: u32,
    /// Running.
    pub running: u32,
    /// Told to stop.
    pub stopping: u32,
    /// Ended well.
    pub succeeded: u32,
    /// Ended for good, not well.
    pub failed: u32,
}

/// One gang of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GangStatus {
    /// Its index.
    pub index: u32,
    /// Where it stands.
    pub state: Phase,
    /// Cluster that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Pool that holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Epoch of its newest placement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
    /// Its pods.
    #[serde(default)]
    pub pods: u32,
    /// Its GPUs.
    #[serde(default)]
    pub gpus: GpuQuantity,
    /// Since when `state` is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// How often it was started again.
    #[serde(default)]
    pub restarts: u32,
    /// How it ended, for a person.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Which of its job's groups of clusters holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// What finishing there was expected to cost when it was placed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_cost: Option<Money>,
    /// How long that was expected to take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_time: Option<Span>,
}

/// One thing that keeps a job waiting.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Blocker {
    /// From the closed list.
    pub reason: Reason,
    /// Where it applies; absent = everywhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// Hardware it applies to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flavor: Option<String>,
    /// GPUs needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub need: Option<GpuQuantity>,
    /// GPUs free there, or held already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free: Option<GpuQuantity>,
    /// The limit or total it is measured against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<GpuQuantity>,
    /// For a person.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}
