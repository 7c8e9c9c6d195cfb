//! `MemberCluster`: one cluster of the fleet, with its agent.
//!
//! Owns its shape, its checks and the described inventory of simulated clusters. Spec is the
//! platform's; status is what the hub hears.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::errors::FieldReason;
use crate::ids::Incarnation;
use crate::kinds::region::GpuCounts;
use crate::meta::{Condition, Object, Spec};
use crate::quantity::{CpuQuantity, GpuQuantity, MemoryQuantity, Span, Time};
use crate::units::{Millis, Resources};
use crate::validate::{Checked, Findings, MAX_GPUS_PER_HOST, MAX_SPAN};

/// A member cluster.
pub type MemberCluster = Object<MemberClusterSpec, MemberClusterStatus>;

impl Spec for MemberClusterSpec {
    const KIND: &'static str = "MemberCluster";
    const ABOUT: &'static str = "One cluster of the fleet, with its agent.";
    const PLURAL: &'static str = "memberclusters";
    const NAMESPACED: bool = false;
    type Status = MemberClusterStatus;
}

/// Condition: the agent's beats arrive.
pub const CONNECTED: &str = "Connected";

/// What a member cluster is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemberClusterSpec {
    /// Region that it is in.
    pub region: String,
    /// Closed to new work by a person.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cordoned: bool,
    /// Emptied by a person: closed to new work, and what runs there is stopped and goes elsewhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub drained: bool,
    /// What its agent places gangs on.
    #[serde(default)]
    pub backend: Backend,
    /// Hosts of a simulated cluster; only with `backend: Simulated`. Rows of the same pool and
    /// flavor describe hosts of different sizes in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub simulated: Vec<SimulatedHosts>,
    /// What work must tolerate to come here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
    /// Zone of the region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Who runs it; absent = who runs its region.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Data sets of which it holds a copy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub data_sets: Vec<String>,
    /// Silence after which it counts as unreachable; absent = the hub's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreachable_after: Option<Span>,
    /// Silence after which it counts as lost; absent = the hub's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_after: Option<Span>,
}

/// What an agent places gangs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Backend {
    /// A Kubernetes cluster.
    #[default]
    Kubernetes,
    /// A described inventory.
    Simulated,
}

/// Hosts of a simulated cluster that are alike. They are numbered in order and spread evenly
/// over racks, and racks over blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SimulatedHosts {
    /// Pool they belong to.
    pub pool: String,
    /// Their hardware.
    pub flavor: String,
    /// How many.
    pub hosts: u32,
    /// GPUs of each; whole cards.
    pub gpus_per_host: GpuQuantity,
    /// CPU of each.
    pub cpu: CpuQuantity,
    /// Memory of each.
    pub memory: MemoryQuantity,
    /// Blocks they are in; absent = 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub blocks: u32,
    /// Racks in each block; absent = 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub racks_per_block: u32,
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_one(count: &u32) -> bool {
    *count == 1
}

/// Levels of a simulated pool from the widest inward, without the host.
pub const SIMULATED_LEVELS: [&str; 2] = ["block", "rack"];

impl SimulatedHosts {
    /// Size of one host.
    #[must_use]
    pub fn per_host(&self) -> Resources {
        Resources {
            gpus: self.gpus_per_host.0,
            cpu: self.cpu.0,
            memory: self.memory.0,
        }
    }

    /// Names of the domains of host number `host` of this row, one per [`SIMULATED_LEVELS`].
    #[must_use]
    pub fn domains(&self, host: u32) -> [String; 2] {
        let racks_per_block = u64::from(self.racks_per_block.max(1));
        let racks = u64::from(self.blocks.max(1)) * racks_per_block;
        let rack = u64::from(host) * racks / u64::from(self.hosts.max(1));
        let (block, rack) = (rack / racks_per_block, rack % racks_per_block);
        [format!("b{block}"), format!("b{block}-r{rack}")]
    }
}

/// What work must tolerate to come to a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// What it does.
    pub effect: TaintEffect,
    /// When it was added: the time that work bears it counts from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_added: Option<Time>,
}

/// What a taint does.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum TaintEffect {
    /// New work that does not tolerate it does not come.
    NoSchedule,
    /// Work that does not tolerate it comes only if nowhere else fits.
    PreferNoSchedule,
    /// The same as `NoSchedule`, and work that is there is stopped and goes elsewhere: at once, or
    /// when the time is over for which it tolerates the taint.
    NoExecute,
}

/// What the hub hears of a member cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MemberClusterStatus {
    /// Generation of the spec it speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How well its agent is heard.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contact: Option<ContactState>,
    /// Its agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<AgentStatus>,
    /// Its GPUs, as last reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<GpuCounts>,
    /// What a person should know of its nodes, pool by pool.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<String>,
    /// `Connected`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// How well the hub hears an agent.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum ContactState {
    /// Beats arrive.
    Ready,
    /// Late: no new work, nothing else.
    Suspect,
    /// Gone quiet.
    Unreachable,
    /// Never attached, or its leases are over.
    Lost,
}

/// The agent that speaks for a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AgentStatus {
    /// Its version.
    pub version: String,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// Its newest beat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_heartbeat: Option<Time>,
}

/// Most rows of a simulated inventory.
pub const MAX_SIMULATED_ROWS: usize = 1000;
/// Most hosts of one row: the largest fleet that the project is measured on has 100,000.
pub const MAX_SIMULATED_HOSTS: u32 = 100_000;

impl Checked for MemberClusterSpec {
    const SHORT_NAMES: bool = true;

    fn check(&self, found: &mut Findings) {
        found.label("spec.region", &self.region);
        if self.backend == Backend::Kubernetes && !self.simulated.is_empty() {
            let message = "describes hosts of a Kubernetes cluster: leave it out, or set backend \
                           to Simulated";
            found.add("spec.simulated", FieldReason::Forbidden, message);
        }
        found.too_many("spec.simulated", self.simulated.len(), MAX_SIMULATED_ROWS);
        for (index, row) in self.simulated.iter().enumerate() {
            let path = format!("spec.simulated[{index}]");
            row.check(&path, found);
            let other = self.simulated[..index]
                .iter()
                .find(|other| other.pool == row.pool);
            if let Some(other) = other.filter(|other| other.flavor != row.flavor) {
                let message = format!(
                    "pool {} has hosts of {} and of {}: one pool has one flavor",
                    row.pool, other.flavor, row.flavor
                );
                found.invalid(&format!("{path}.flavor"), message);
            }
        }
        for (index, taint) in self.taints.iter().enumerate() {
            if taint.key.is_empty() {
                let path = format!("spec.taints[{index}].key");
                found.add(&path, FieldReason::Required, "must be given");
            }
        }
        let texts = [("zone", &self.zone), ("provider", &self.provider)];
        for (name, text) in texts {
            if let Some(text) = text {
                found.name(&format!("spec.{name}"), text);
            }
        }
        found.names("spec.dataSets", &self.data_sets);
        self.check_silence(found);
    }

    fn check_update(&self, new: &Self, found: &mut Findings) {
        let instead = "join it again under another name";
        found.unchanged("spec.region", &self.region, &new.region, instead);
        found.unchanged("spec.backend", &self.backend, &new.backend, instead);
    }
}

impl MemberClusterSpec {
    /// True when a person lets new work in.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        !self.cordoned && !self.drained
    }

    fn check_silence(&self, found: &mut Findings) {
        // Below two beats every cluster would flap.
        let least = Millis::seconds(5);
        found.span(
            "spec.unreachableAfter",
            self.unreachable_after,
            least,
            MAX_SPAN,
        );
        found.span("spec.lostAfter", self.lost_after, least, MAX_SPAN);
        if let (Some(unreachable), Some(lost)) = (self.unreachable_after, self.lost_after)
            && unreachable >= lost
        {
            let message = format!("is {unreachable}, must be shorter than lostAfter {lost}");
            found.invalid("spec.unreachableAfter", message);
        }
    }
}

impl SimulatedHosts {
    fn check(&self, path: &str, found: &mut Findings) {
        found.label(&format!("{path}.pool"), &self.pool);
        found.name(&format!("{path}.flavor"), &self.flavor);
        if !(1..=MAX_SIMULATED_HOSTS).contains(&self.hosts) {
            let message = format!("is {}, must be from 1 to {MAX_SIMULATED_HOSTS}", self.hosts);
            found.invalid(&format!("{path}.hosts"), message);
        }
        let gpus = self.gpus_per_host.0;
        if !gpus.is_whole() || gpus.whole() > MAX_GPUS_PER_HOST {
            let message = format!(
                "is {}, must be whole cards from 0 to {MAX_GPUS_PER_HOST}",
                self.gpus_per_host
            );
            found.invalid(&format!("{path}.gpusPerHost"), message);
        }
        let racks = u64::from(self.blocks) * u64::from(self.racks_per_block);
        if racks == 0 || racks > u64::from(self.hosts) {
            let message = format!(
                "{} blocks of {} racks are {racks} racks for {} hosts: each rack needs a host",
                self.blocks, self.racks_per_block, self.hosts
            );
            found.invalid(&format!("{path}.racksPerBlock"), message);
        }
    }
}
