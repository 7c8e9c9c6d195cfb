//! The decision's input and output: flat rows and ordinals, no specs, no strings in the loop.
//!
//! Owns `Snapshot`, which the hub's model fills, and `Plan`, which the hub commits. Names are
//! kept in side tables for explanation and for ties. Never knows where a row came from.

use meridian_api::ids::{Epoch, GangId, Revision, StoreGeneration};
use meridian_api::kinds::tenant::OnExhausted;
use meridian_api::units::{MicroMoney, MilliGpus, Millis, Resources, UnixMillis};
use serde::{Deserialize, Serialize};

mod gang;
mod preemption;
mod quota;
mod score;
mod shared;
mod words;

pub use crate::choice::cost::Bill;
pub use crate::choice::terms::{
    Choice, ClusterFacts, DataNeed, Expected, Group, JobWish, Overflowed, PoolFacts, RegionFacts,
    Selector, Shares,
};
pub use gang::{GangShape, RoleShape, SliceShape};
pub use preemption::{
    ClassRule, EvictedBy, Hold, HoldRoom, HostRow, Lapse, Lapsed, Leaves, Leaving, Movable,
    NextPlace, Preemption, Rule, Seat, Stage, Standing, Vacating, Victim, Yield,
};
pub use score::Score;
pub use shared::Shared;
pub use words::Words;

pub use crate::reserved::{Lends, Reserved};
pub use quota::{Measure, Place, Quota};

macro_rules! ordinal {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
            Serialize, Deserialize,
        )]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// Position in its table.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}

ordinal!(
    /// Row of [`Snapshot::flavors`].
    FlavorIx
);
ordinal!(
    /// Row of [`Snapshot::classes`].
    ClassIx
);
ordinal!(
    /// Row of [`Snapshot::tenants`].
    TenantIx
);
ordinal!(
    /// Row of [`Snapshot::regions`].
    RegionIx
);
ordinal!(
    /// Row of [`Snapshot::clusters`].
    ClusterIx
);
ordinal!(
    /// Row of [`Snapshot::pools`].
    PoolIx
);
ordinal!(
    /// Row of [`Snapshot::held`].
    HeldIx
);
ordinal!(
    /// Row of [`Snapshot::waiting`].
    WaitingIx
);
ordinal!(
    /// Row of [`Snapshot::hosts`].
    HostIx
);
ordinal!(
    /// Row of [`Snapshot::holds`].
    HoldIx
);

ordinal!(
    /// Row of [`Snapshot::choices`].
    ChoiceIx
);

/// Everything one decision may look at, frozen. Tables are sorted by name (or id), so ordinals
/// are stable for the same fleet and ties that end with an ordinal end with a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Newest revision in it.
    pub revision: Revision,
    /// Wall clock of the decision.
    pub now: UnixMillis,
    /// For choices that are free.
    pub seed: u64,
    /// Goes into the epochs that are made.
    pub store_generation: StoreGeneration,
    /// Revision of the policy head: no decision stands when it has moved.
    pub policy_head: Revision,
    /// Hardware classes, by name.
    pub flavors: Vec<Flavor>,
    /// Workload classes, by name.
    pub classes: Vec<Class>,
    /// The tenant tree, by name.
    pub tenants: Vec<Tenant>,
    /// Regions, by name.
    pub regions: Vec<String>,
    /// What is known of them, in the same order; none = nothing.
    #[serde(default)]
    pub region_facts: Vec<RegionFacts>,
    /// What jobs ask of their place, each different wish once; none = nothing is asked for.
    #[serde(default)]
    pub choices: Vec<Choice>,
    /// Jobs that the wishes of others name by their labels.
    #[serde(default)]
    pub selectors: Vec<Selector>,
    /// Clusters, by name.
    pub clusters: Vec<Cluster>,
    /// Pools, by cluster and name.
    pub pools: Vec<Pool>,
    /// Reservations, by name and start: one row for each span that may matter, and none that is
    /// over.
    #[serde(default)]
    pub reserved: Vec<Reserved>,
    /// What is placed: everything that holds GPUs or may still hold some.
    pub held: Vec<Held>,
    /// Gangs that wait for a place, by submission time, then id.
    pub waiting: Vec<Waiting>,
    /// Placements in a later group of their job than the first, which want to go back.
    #[serde(default)]
    pub overflowed: Vec<Overflowed>,
    /// Placements that may go on elsewhere, by row.
    #[serde(default)]
    pub movable: Vec<Movable>,
    /// Hosts on which placements stand, as far as agents say, by pool.
    #[serde(default)]
    pub hosts: Vec<HostRow>,
    /// Room that is kept for gangs while others leave, by gang.
    #[serde(default)]
    pub holds: Vec<Hold>,
}

impl Snapshot {
    /// Region of a cluster; the first for a cluster that is not there.
    #[must_use]
    pub fn region(&self, cluster: ClusterIx) -> RegionIx {
        let cluster = self.clusters.get(cluster.index());
        cluster.map_or(RegionIx(0), |cluster| cluster.region)
    }

    /// Where a pool's quota is counted.
    #[must_use]
    pub fn place(&self, pool: &Pool) -> Place {
        Place {
            flavor: pool.flavor,
            region: self.region(pool.cluster),
        }
    }

    /// Drops the gangs of `waiting` that are not marked in `kept`, row by row, and numbers the
    /// others anew wherever they are named.
    pub(crate) fn keep_waiting(&mut self, kept: &[bool]) {
        let mut next = (0..).map(WaitingIx);
        let renumbered: Vec<Option<WaitingIx>> = kept
            .iter()
            .map(|kept| kept.then(|| next.next()).flatten())
            .collect();
        for selector in &mut self.selectors {
            let rows = selector.waiting.iter();
            selector.waiting = rows.filter_map(|ix| renumbered[ix.index()]).collect();
        }
        let mut kept = kept.iter();
        self.waiting
            .retain(|_| kept.next().copied().unwrap_or_default());
    }
}

/// A hardware class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flavor {
    /// Its name.
    pub name: String,
    /// Worth of one card for an hour, in thousandths of the reference card's.
    pub worth: u64,
}

/// A workload class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Class {
    /// Its name.
    pub name: String,
    /// Higher goes first.
    pub priority: i32,
    /// Its work does not wait for slots of lower classes: a service never stands behind batch.
    pub ignores_slots: bool,
    /// How its work makes room for others.
    #[serde(default)]
    pub rule: ClassRule,
}

/// One node of the tenant tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// The node above; `None` for a root.
    pub parent: Option<TenantIx>,
    /// What it may hold. What no row counts is not limited at this node.
    pub quotas: Vec<Quota>,
    /// Most GPUs one job may ask for.
    pub gpus_per_job: Option<MilliGpus>,
    /// Most jobs that may run at once.
    pub running_jobs: Option<u32>,
    /// Its money, if it is counted.
    pub budget: Option<Budget>,
    /// Twice the weight, twice the share; at least 1.
    pub weight: u32,
    /// What it itself has held on average, lately most.
    pub history: Use,
    /// Work that it lost to preemption in the last hour: seconds of a reference card, in
    /// thousandths.
    #[serde(default)]
    pub lost: u64,
}

/// What counts in shares: thousandths of the reference card by worth, thousandths of a core,
/// mebibytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Use(pub [u64; 3]);

/// Money of a tenant, with everything below it, in this period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    /// Spent so far.
    pub spent: MicroMoney,
    /// To be spent at most.
    pub limit: MicroMoney,
    /// What happens then.
    pub on_exhausted: OnExhausted,
}

/// How well the hub hears a cluster's agent (behaviour, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Contact {
    /// Beats arrive.
    Ready,
    /// Late: no new work, nothing else.
    Suspect,
    /// Gone quiet.
    Unreachable,
    /// Never attached, or its leases are over.
    Lost,
}

/// One member cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub region: RegionIx,
    /// Whether its agent is heard.
    pub contact: Contact,
    /// Closed to new work by a person.
    pub cordoned: bool,
    /// What else is known of it.
    #[serde(default)]
    pub facts: ClusterFacts,
}

/// One GPU pool as shapes, with everything in `held` already taken out of `free`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pool {
    /// Whose it is.
    pub cluster: ClusterIx,
    /// Its name.
    pub name: String,
    /// Its hardware.
    pub flavor: FlavorIx,
    /// Classes it admits; empty admits all.
    pub classes: Vec<ClassIx>,
    /// Topology levels from the widest inward, without the host.
    pub levels: Vec<String>,
    /// Hosts, alike ones as one row, in canonical order.
    pub shapes: Vec<Shape>,
    /// What else is known of it.
    #[serde(default)]
    pub facts: PoolFacts,
}

/// Hosts that look alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// One name per level of the pool.
    pub domains: Vec<String>,
    /// Size of one host.
    pub allocatable: Resources,
    /// Room left on one host.
    pub free: Resources,
    /// How many such hosts.
    pub hosts: u32,
}

/// One placement that holds, or may hold, GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Whose.
    pub gang: GangId,
    /// Its epoch.
    pub epoch: Epoch,
    /// Who pays.
    pub tenant: TenantIx,
    /// Its class.
    pub class: ClassIx,
    /// Where.
    pub cluster: ClusterIx,
    /// Its flavor.
    pub flavor: FlavorIx,
    /// Pool there, while it is reported.
    pub pool: Option<PoolIx>,
    /// When it has ended at the latest; `None` = it may run for ever.
    pub ends: Option<UnixMillis>,
    /// All its pods together.
    pub resources: Resources,
    /// How many pods these are: it stands on no more hosts.
    #[serde(default)]
    pub pods: u32,
    /// Its entries in the ledger, as they were last written down.
    pub rows: Vec<LedgerRow>,
    /// When it was decided.
    pub since: UnixMillis,
    /// What preemption needs to know of it.
    #[serde(default)]
    pub standing: Standing,
}

impl Held {
    /// Where its quota is counted.
    #[must_use]
    pub fn place(&self, snapshot: &Snapshot) -> Place {
        Place {
            flavor: self.flavor,
            region: snapshot.region(self.cluster),
        }
    }
}

/// What held GPUs are to the tenant that holds them (behaviour, section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Role {
    /// Within its nominal quota.
    Own,
    /// Of another tenant's nominal quota, which may take it back.
    Borrowed,
}

/// One entry of the ledger: a part of a placement, and whose quota it stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LedgerRow {
    /// What it is.
    pub role: Role,
    /// Who lends it. `None` for what is its own, and for what nobody lends any more, because quota
    /// was cut.
    pub lender: Option<TenantIx>,
    /// How much.
    pub gpus: MilliGpus,
}

/// One gang that waits for a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Which.
    pub gang: GangId,
    /// `namespace/name` of its job, for ties and words.
    pub job: String,
    /// Who pays.
    pub tenant: TenantIx,
    /// Its class.
    pub class: ClassIx,
    /// Priority inside its tenant.
    pub priority: i32,
    /// When it was submitted.
    pub submitted: UnixMillis,
    /// When it should be done.
    pub finish_by: Option<UnixMillis>,
    /// Most it may run, for backfill and estimates.
    pub max_runtime: Option<Millis>,
    /// Suspended by a person.
    pub suspended: bool,
    /// Flavors it accepts, best first; empty accepts all.
    pub flavors: Shared<Vec<Accepted>>,
    /// Regions it may run in, in order of preference; empty allows all.
    pub regions: Shared<Vec<RegionIx>>,
    /// Clusters it may run in; empty allows all.
    pub clusters: Shared<Vec<ClusterIx>>,
    /// Clusters that lack what its job depends on or deny it, as their agents said.
    pub lacking: Shared<Vec<Lacking>>,
    /// What must start together.
    pub shape: Shared<GangShape>,
    /// GPUs of the whole job, for `gpus_per_job`.
    pub job_gpus: MilliGpus,
    /// The epoch that its next placement gets.
    pub next_epoch: Epoch,
    /// Revision of the spec it was read from.
    pub spec_revision: Revision,
    /// For whom it had to go lately.
    #[serde(default)]
    pub evicted_by: Vec<EvictedBy>,
    /// What else it asks of its place.
    #[serde(default)]
    pub choice: ChoiceIx,
    /// What its run is expected to be like.
    #[serde(default)]
    pub expected: Expected,
}

/// A cluster that lacks what a job depends on, or whose rules deny it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lacking {
    /// Which.
    pub cluster: ClusterIx,
    /// `DependencyMissing` or `Denied`.
    pub reason: meridian_api::reasons::Reason,
    /// What is missing there, or which rule, for a person.
    pub message: String,
}

/// A flavor that a job accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Accepted {
    /// Which.
    pub flavor: FlavorIx,
    /// Relative speed in thousandths.
    pub speed: u32,
}

/// What one round decided, and why the rest was left.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Places, in the order in which they were decided: a later one counts on the earlier.
    pub placements: Vec<Placed>,
    /// Everything else that waits, in queue order, with all its reasons.
    pub unplaced: Vec<Unplaced>,
    /// Placements whose ledger rows are no longer what was written down.
    pub regraded: Vec<Regraded>,
    /// Placements that are stopped to go back to an earlier group, the newest first.
    #[serde(default)]
    pub returning: Vec<HeldIx>,
    /// Gangs for which room is made, in the order in which they were decided. They wait on.
    #[serde(default)]
    pub preemptions: Vec<Preemption>,
    /// Holds that end without their gang placed on them.
    #[serde(default)]
    pub lapsed: Vec<Lapsed>,
    /// Blocks that are about to begin, with those who go for them.
    #[serde(default)]
    pub vacating: Vec<Vacating>,
}

impl Plan {
    /// True when nothing starts, stops, is held or given up: whatever waits goes on waiting.
    #[must_use]
    pub const fn leaves_all(&self) -> bool {
        self.placements.is_empty()
            && self.returning.is_empty()
            && self.preemptions.is_empty()
            && self.lapsed.is_empty()
            && self.vacating.is_empty()
    }
}

/// A placement that stands on other quota than before: others use theirs again, or quota changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Regraded {
    /// Which of `held`.
    pub held: HeldIx,
    /// Its rows.
    pub rows: Vec<LedgerRow>,
}

/// One gang gets one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placed {
    /// Which of `waiting`.
    pub waiting: WaitingIx,
    /// Where.
    pub pool: PoolIx,
    /// Pods per role, in the gang's order.
    pub pods: Vec<u32>,
    /// GPUs in all.
    pub gpus: MilliGpus,
    /// What it takes, on which shapes.
    pub takes: Vec<Take>,
    /// Its entries in the ledger.
    pub rows: Vec<LedgerRow>,
    /// The parts of its score, for explanation.
    pub score: Score,
}

/// Pods on hosts of one shape.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Take {
    /// Role, by position in the gang.
    pub role: u32,
    /// Domains of the hosts.
    pub domains: Vec<String>,
    /// Size of each host.
    pub allocatable: Resources,
    /// Room on each host before the take.
    pub free: Resources,
    /// Hosts used.
    pub hosts: u32,
    /// Pods of the role on each of them.
    pub pods_per_host: u32,
}

/// One gang that stays in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unplaced {
    /// Which of `waiting`.
    pub waiting: WaitingIx,
    /// All that apply, most actionable first; alike gangs share them.
    pub reasons: Reasons,
    /// When it may start, if what holds its room or quota says when it ends.
    pub start: Option<Estimate>,
}

/// Causes of which many gangs share some, and alike gangs all.
pub type Reasons = Shared<Vec<Shared<Cause>>>;

/// A span of instants in which something is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Estimate {
    /// Hardly before: what runs is taken to run on for a sixteenth of the time that it has run, if
    /// it does not say that it ends sooner.
    pub earliest: UnixMillis,
    /// By then, if everything before it ends as it says; `None` when something does not say.
    pub latest: Option<UnixMillis>,
}

/// One reason with its numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cause {
    /// From the closed list.
    pub reason: meridian_api::reasons::Reason,
    /// Where it applies; `None` = everywhere.
    pub cluster: Option<ClusterIx>,
    /// Hardware it applies to.
    pub flavor: Option<FlavorIx>,
    /// Numbers, when it is about an amount.
    pub amounts: Option<Amounts>,
    /// Words for a person.
    pub message: Words,
}

/// GPUs asked for, there, and allowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Amounts {
    /// Needed.
    pub need: MilliGpus,
    /// Free, or held already.
    pub free: MilliGpus,
    /// The limit or total it is measured against.
    pub limit: MilliGpus,
}
