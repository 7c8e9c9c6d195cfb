//! The packed record of one gang's placement: what a decision writes and an agent is told.
//!
//! Owns the stored form (`placements/<job uid>/<index>`, JSON of some hundred bytes). Its states
//! and what follows from them are `meridian_policies::lifecycle`'s. Never holds a pod template:
//! those are named by their hash.

use std::collections::BTreeMap;
use std::sync::Arc;

use meridian_api::ids::{Epoch, GangId, Term};
use meridian_api::kinds::federated_job::{Dependencies, Origin};
use meridian_api::units::{MilliGpus, Millis, Resources, UnixMillis};
use meridian_policies::lifecycle::{self, State};
use meridian_policies::model::{
    Bill, GangShape, LedgerRow, Role, RoleShape, Rule, SliceShape, Snapshot, TenantIx,
};
use serde::{Deserialize, Serialize};

/// One gang in one cluster under one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementRecord {
    /// Which gang.
    pub gang: GangId,
    /// Namespace of its job.
    pub namespace: Arc<str>,
    /// Name of its job.
    pub job: Box<str>,
    /// Who pays.
    pub tenant: Arc<str>,
    /// Its workload class.
    pub class: Arc<str>,
    /// Priority of the class, for the member cluster's own order.
    pub priority: i32,
    /// Where.
    pub cluster: Arc<str>,
    /// Pool there.
    pub pool: Arc<str>,
    /// Hardware there.
    pub flavor: Arc<str>,
    /// Under which epoch.
    pub epoch: Epoch,
    /// Term of the leader that decided it.
    pub term: Term,
    /// Where it stands.
    pub state: State,
    /// Its pods, by role.
    pub roles: Arc<Vec<PlacedRole>>,
    /// GPUs in all.
    pub gpus: MilliGpus,
    /// Its entries in the ledger; empty until they are first written down.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub ledger: Arc<Vec<StoredRow>>,
    /// From SIGTERM to SIGKILL.
    pub grace: Millis,
    /// Most it may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_runtime: Option<Millis>,
    /// From accepted to running, else undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place_timeout: Option<Millis>,
    /// When it was decided.
    pub decided: UnixMillis,
    /// For whom it goes, while it drains for another gang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preempted: Option<Box<Preempted>>,
    /// When it was first seen to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<UnixMillis>,
    /// Trace that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<Box<str>>,
    /// Labels of every pod: cost attribution.
    #[serde(default, skip_serializing_if = "has_none")]
    pub labels: Arc<BTreeMap<String, String>>,
    /// How it saves its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Arc<PlacedCheckpoint>>,
    /// The role whose rank 0 decides how it ended; absent = every pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<Box<str>>,
    /// What must be in the namespace before anything is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dependencies: Option<Box<Dependencies>>,
    /// SHA-256 of the document of what it carries, in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried: Option<Arc<str>>,
    /// The object there that owns its pods, when others made them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Box<Origin>>,
    /// Why it is there and not elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<Box<Chosen>>,
}

/// What a place was chosen for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Chosen {
    /// Which of the job's groups it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// What finishing there was expected to take.
    pub bill: Bill,
}

/// For whom a placement goes, and what that costs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Preempted {
    /// Gang that gets the room.
    pub by: GangId,
    /// `namespace/name` of its job.
    pub job: String,
    /// Why it may be taken.
    pub rule: Rule,
    /// Work that it loses: seconds of a reference card, in thousandths.
    pub lost: u64,
    /// From the order to its deadline.
    pub notice: Millis,
}

/// A part of a placement, and whose quota it stands on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredRow {
    /// What it is.
    pub role: Role,
    /// Tenant that lends it; absent for what is its own, and for what nobody lends any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lender: Option<String>,
    /// How much.
    pub gpus: MilliGpus,
}

/// Ledger rows with names in place of ordinals.
#[must_use]
pub(crate) fn stored_rows(snapshot: &Snapshot, rows: &[LedgerRow]) -> Vec<StoredRow> {
    let name = |ix: TenantIx| Some(snapshot.tenants.get(ix.index())?.name.clone());
    let row = |row: &LedgerRow| StoredRow {
        role: row.role,
        lender: row.lender.and_then(name),
        gpus: row.gpus,
    };
    rows.iter().map(row).collect()
}

/// How a gang saves its work, as its agent needs to know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacedCheckpoint {
    /// Where checkpoints are.
    pub uri: String,
    /// Environment variable that names the one to go on from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_env: Option<String>,
    /// Signal that asks it to save and go.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
}

/// Pods of one role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacedRole {
    /// Its name.
    pub name: String,
    /// How many pods.
    pub pods: u32,
    /// What each asks of a host.
    pub per_pod: Resources,
    /// SHA-256 of the template's canonical JSON, in hexadecimal.
    pub template: String,
    /// Fewest pods that it goes on with; 0 = it keeps all.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub min: u32,
    /// Step between its sizes; 0 = it keeps all.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub step: u32,
    /// Pods that it was placed with, when it has fewer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full: Option<u32>,
    /// Level that holds the whole role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub required: Option<String>,
    /// Level that should.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred: Option<String>,
    /// Pods that stay together, and the level that holds them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice: Option<SliceShape>,
}

fn is_empty(rows: &Arc<Vec<StoredRow>>) -> bool {
    rows.as_ref().is_empty()
}

fn has_none(labels: &Arc<BTreeMap<String, String>>) -> bool {
    labels.as_ref().is_empty()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl PlacementRecord {
    /// The record after the agent made roles smaller, or `None` when `sizes` asks for anything but
    /// sizes that the order allows below the present ones.
    #[must_use]
    pub fn shrunk(&self, sizes: &[(String, u32)]) -> Option<Self> {
        let mut next = self.clone();
        for (name, pods) in sizes {
            let role = Arc::make_mut(&mut next.roles)
                .iter_mut()
                .find(|role| role.name == *name)?;
            let fits = role.step > 0
                && (role.min..=role.pods).contains(pods)
                && (role.pods - pods).is_multiple_of(role.step);
            if !fits {
                return None;
            }
            if *pods < role.pods {
                role.full.get_or_insert(role.pods);
            }
            role.pods = *pods;
        }
        let gpus = next.roles.iter().try_fold(MilliGpus::ZERO, |sum, role| {
            sum.checked_add(role.per_pod.gpus.checked_mul(u64::from(role.pods))?)
        });
        next.gpus = gpus?;
        (next.roles != self.roles).then_some(next)
    }

    /// As the life cycle's table sees it.
    #[must_use]
    pub fn row(&self) -> lifecycle::Placement {
        lifecycle::Placement {
            epoch: self.epoch,
            state: self.state,
        }
    }

    /// The gang at the size that was decided.
    #[must_use]
    pub fn shape(&self) -> GangShape {
        let role = |role: &PlacedRole| RoleShape {
            name: role.name.clone(),
            per_pod: role.per_pod,
            min: role.pods,
            max: role.pods,
            step: 1,
            required: role.required.clone(),
            preferred: role.preferred.clone(),
            slice: role.slice.clone(),
        };
        GangShape {
            roles: self.roles.iter().map(role).collect(),
        }
    }

    /// Everything that its pods ask for; GPUs as they are counted.
    #[must_use]
    pub fn resources(&self) -> Resources {
        Resources {
            gpus: self.gpus,
            ..self.shape().demand(&self.pods())
        }
    }

    /// When it has ended at the latest: its agent stops what runs longer than it may.
    #[must_use]
    pub fn ends(&self) -> Option<UnixMillis> {
        let from = self.started.unwrap_or(self.decided);
        self.max_runtime.map(|most| from.after(most))
    }

    /// Pods per role.
    #[must_use]
    pub fn pods(&self) -> Vec<u32> {
        self.roles.iter().map(|role| role.pods).collect()
    }

    /// Pods per role when it was placed, for a class's floor.
    #[must_use]
    pub fn full_pods(&self) -> Vec<u32> {
        let full = |role: &PlacedRole| role.full.unwrap_or(role.pods);
        self.roles.iter().map(full).collect()
    }

    /// As stored.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record holds only text, numbers and lists")
    }
}
