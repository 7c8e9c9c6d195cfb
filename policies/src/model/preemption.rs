//! Rows of preemption: what a class allows, what a victim would lose, what is held for whom.
//!
//! Owns the facts that the choice of victims reads and the decision that it makes. Never says who
//! may take what from whom (see `preempt::rules`).

use meridian_api::ids::{GangId, Uid};
use meridian_api::kinds::workload_class::{Preemption as Manner, WorkloadClassSpec};
use meridian_api::quantity::Span;
use meridian_api::units::{MilliGpus, Millis, Resources, UnixMillis};
use serde::{Deserialize, Serialize};

use crate::preempt::given_up;

use super::{
    ClusterIx, FlavorIx, GangShape, HeldIx, HoldIx, HostIx, LedgerRow, Place, PoolIx, Snapshot,
    Take, TenantIx, Waiting, WaitingIx,
};

/// How work of a class makes room for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassRule {
    /// Whether and how.
    pub how: Manner,
    /// Least share of its pods that it keeps, in percent; for `ShrinkToFloor`.
    pub floor_percent: u32,
    /// From the order to go to its deadline.
    pub notice: Millis,
    /// A run is left alone until it is this old.
    pub min_runtime: Millis,
    /// Its windows are shut: what it holds of its own quota is left alone.
    pub is_shielded: bool,
}

impl ClassRule {
    /// True when work of the class that was stopped starts again: it may go on elsewhere.
    #[must_use]
    pub const fn comes_back(&self) -> bool {
        match self.how {
            Manner::Requeue | Manner::ShrinkThenRequeue | Manner::CheckpointThenRequeue => true,
            Manner::Never | Manner::Reclaim | Manner::ShrinkToFloor => false,
        }
    }
}

impl ClassRule {
    /// The rule of a class while `is_open` says which windows are: one that names windows keeps
    /// what is its own while none of them is open. A window that nobody declares never is.
    #[must_use]
    pub fn new(spec: &WorkloadClassSpec, is_open: impl Fn(&str) -> bool) -> Self {
        let span = |span: Option<Span>| span.map_or(Millis::ZERO, |span| span.0);
        let windows = &spec.preemption_windows;
        Self {
            how: spec.preemption,
            floor_percent: spec.floor_percent.unwrap_or(0),
            notice: span(spec.notice),
            min_runtime: span(spec.min_runtime),
            is_shielded: !windows.is_empty() && !windows.iter().any(|name| is_open(name)),
        }
    }
}

/// How far a placement is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// Decided; not every pod runs.
    Starting,
    /// Every pod has run.
    #[default]
    Running,
    /// On its way out, whatever is decided.
    Draining,
}

/// What preemption needs to know of a placement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// `namespace/name` of its job, for words.
    pub job: String,
    /// How far it is.
    pub stage: Stage,
    /// When user code first ran under this epoch.
    pub started: Option<UnixMillis>,
    /// Its newest checkpoint under this epoch.
    pub saved: Option<UnixMillis>,
    /// Its pods, by role: `max` is what it has, `min` what it can go on with.
    pub shape: GangShape,
    /// Pods of each role when it was placed in full, for a class's floor.
    pub full: Vec<u32>,
    /// Hosts that it stands on, as far as its agent says; by host.
    pub seats: Vec<Seat>,
    /// When this gang made room for others in the last hour.
    pub evictions: Vec<UnixMillis>,
}

/// Pods of a placement on one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// The host.
    pub host: HostIx,
    /// What they hold of it.
    pub held: Resources,
    /// Pods of each role there.
    pub pods: Vec<u32>,
}

/// A host with pods of placements on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HostRow {
    /// Its pool.
    pub pool: PoolIx,
    /// Row of the pool's shapes that it looks like.
    pub shape: u32,
}

/// Somebody made a gang go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EvictedBy {
    /// Job that got the room.
    pub job: Uid,
    /// When.
    pub at: UnixMillis,
}

/// Room and quota that are kept for a gang while victims leave.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Whose.
    pub gang: GangId,
    /// Who pays: charged from the moment of the decision.
    pub tenant: TenantIx,
    /// Where.
    pub cluster: ClusterIx,
    /// Hardware there.
    pub flavor: FlavorIx,
    /// Pool there, while it is reported.
    pub pool: Option<PoolIx>,
    /// Pods per role.
    pub pods: Vec<u32>,
    /// All of them together.
    pub resources: Resources,
    /// Hosts that are kept.
    pub room: Vec<HoldRoom>,
    /// Its entries in the ledger, as they were last written down.
    pub rows: Vec<LedgerRow>,
    /// What is still there of those that leave for it.
    pub victims: Vec<Leaving>,
    /// When it was decided.
    pub since: UnixMillis,
    /// It ends then, met or not.
    pub until: UnixMillis,
    /// The reservation for whose block others leave, if it is for one: then it has no gang, and
    /// keeps nothing itself.
    #[serde(default)]
    pub block: Option<String>,
    /// All who make room hold what its tenant lent.
    #[serde(default)]
    pub is_reclaim: bool,
}

impl Hold {
    /// Where its quota is counted.
    #[must_use]
    pub fn place(&self, snapshot: &Snapshot) -> Place {
        Place {
            flavor: self.flavor,
            region: snapshot.region(self.cluster),
        }
    }
}

/// Alike hosts of which the same amount is kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct HoldRoom {
    /// Their domains.
    pub domains: Vec<String>,
    /// Size of each.
    pub allocatable: Resources,
    /// Kept on each.
    pub need: Resources,
    /// How many.
    pub hosts: u32,
    /// Those of them on which somebody still stands.
    pub known: Vec<HostIx>,
}

/// A placement that makes room, with the part that it gives up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    /// Which of `held`.
    pub held: HeldIx,
    /// How much of it.
    pub resources: Resources,
}

/// Why a victim may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Rule {
    /// It is on its way out anyway.
    Leaving,
    /// It holds what the beneficiary's tenant lent it.
    Reclaim,
    /// It borrows, and the beneficiary's tenant is within its nominal quota.
    OverShare,
    /// Its class is lower.
    LowerClass,
    /// It moves within its pool, so that whole hosts come free for the gang that waits longest.
    Compaction,
    /// It stands where hosts are reserved for others.
    Reserved,
}

impl Rule {
    /// For a person: why it may be taken.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Leaving => "it is leaving anyway",
            Self::Reclaim => "it holds what the other's tenant lent",
            Self::OverShare => "it borrows, and the other's tenant does not",
            Self::LowerClass => "its class is lower",
            Self::Reserved => "its hosts are reserved for others",
            Self::Compaction => "it fits beside others, and leaves whole hosts free",
        }
    }
}

/// What a victim does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Yield {
    /// It goes, and waits for its next place.
    Evict,
    /// It goes, and starts again at once where room is held for it.
    Move(NextPlace),
    /// It goes on with fewer pods.
    Shrink {
        /// Pods per role that stay.
        pods: Vec<u32>,
        /// Where pods must leave; what is missing beyond leaves from anywhere.
        leaves: Vec<Leaves>,
    },
}

/// Where a placement that makes room goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NextPlace {
    /// Which pool.
    pub pool: PoolIx,
    /// Pods per role: as many as it has.
    pub pods: Vec<u32>,
    /// Where it fits there as it is.
    pub takes: Vec<Take>,
    /// What is kept for it.
    pub room: Vec<HoldRoom>,
    /// Its entries in the ledger.
    pub rows: Vec<LedgerRow>,
}

/// A placement that saves its work and may go on elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Movable {
    /// Which of `held`.
    pub held: HeldIx,
    /// What it asks of its next place, in the size that it has: only of places that can read what
    /// it saved.
    pub gang: Waiting,
}

/// Pods of one role that leave one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaves {
    /// The host.
    pub host: HostIx,
    /// The role, by position.
    pub role: u32,
    /// How many.
    pub pods: u32,
}

/// One placement that makes room for a gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Victim {
    /// Which of `held`.
    pub held: HeldIx,
    /// Why it may be taken.
    pub rule: Rule,
    /// What it does.
    pub does: Yield,
    /// Work that is lost: seconds of a reference card, in thousandths.
    pub lost: u64,
    /// That, and what starting it again costs, in the same unit.
    pub cost: u64,
    /// It is gone by then.
    pub deadline: UnixMillis,
}

/// Room is made for one gang.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preemption {
    /// Which of `waiting`.
    pub waiting: WaitingIx,
    /// Where.
    pub pool: PoolIx,
    /// Pods per role.
    pub pods: Vec<u32>,
    /// GPUs in all.
    pub gpus: MilliGpus,
    /// Where it fits once the victims are gone.
    pub takes: Vec<Take>,
    /// What is kept for it.
    pub room: Vec<HoldRoom>,
    /// Its entries in the ledger.
    pub rows: Vec<LedgerRow>,
    /// Who makes room, by row.
    pub victims: Vec<Victim>,
    /// Cost of all victims.
    pub cost: u64,
    /// The hold ends then.
    pub until: UnixMillis,
    /// Placements of the plan that were decided before it.
    pub after: u32,
}

/// Those in the way of a block of a reservation go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vacating {
    /// Row of `reserved`.
    pub reserved: u32,
    /// Who goes, by row.
    pub victims: Vec<Victim>,
    /// They have gone by then.
    pub until: UnixMillis,
}

impl Preemption {
    /// The holds that the decision makes: the gang's own, with those who make room, then one for
    /// each of them that goes on elsewhere, in their order.
    #[must_use]
    pub fn holds(&self, snapshot: &Snapshot) -> Vec<Hold> {
        let gang = &snapshot.waiting[self.waiting.index()];
        let base = |pool: PoolIx| {
            let source = &snapshot.pools[pool.index()];
            Hold {
                gang: gang.gang,
                tenant: gang.tenant,
                cluster: source.cluster,
                flavor: source.flavor,
                pool: Some(pool),
                pods: self.pods.clone(),
                resources: gang.shape.demand(&self.pods),
                room: self.room.clone(),
                rows: self.rows.clone(),
                victims: Vec::new(),
                since: snapshot.now,
                until: self.until,
                block: None,
                is_reclaim: false,
            }
        };
        let leaving = self.victims.iter().map(|victim| Leaving {
            held: victim.held,
            resources: given_up(&snapshot.held[victim.held.index()], &victim.does),
        });
        let own = Hold {
            victims: leaving.collect(),
            is_reclaim: self.is_reclaim(),
            ..base(self.pool)
        };
        let moves = self.moves().map(|(victim, next)| {
            let held = &snapshot.held[victim.held.index()];
            Hold {
                gang: held.gang,
                tenant: held.tenant,
                pods: next.pods.clone(),
                resources: held.resources,
                room: next.room.clone(),
                rows: next.rows.clone(),
                ..base(next.pool)
            }
        });
        std::iter::once(own).chain(moves).collect()
    }

    /// True when all who make room hold what the gang's tenant lent.
    #[must_use]
    pub fn is_reclaim(&self) -> bool {
        self.victims.iter().all(|it| it.rule == Rule::Reclaim)
    }

    /// Those who make room and go on elsewhere, in their order.
    pub fn moves(&self) -> impl Iterator<Item = (&Victim, &NextPlace)> {
        self.victims.iter().filter_map(|victim| match &victim.does {
            Yield::Move(next) => Some((victim, next)),
            Yield::Evict | Yield::Shrink { .. } => None,
        })
    }
}

/// Why a hold ends without its gang placed on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Lapse {
    /// Its time is over.
    Expired,
    /// Its gang does not wait any more.
    NotWanted,
    /// Its pool takes no new work.
    Closed,
    /// Its gang got another place.
    PlacedElsewhere,
    /// Everybody has gone who was to go for a block.
    Done,
}

/// A hold that ends without its gang placed on it: victims that were not yet stopped stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lapsed {
    /// Which of `holds`.
    pub hold: HoldIx,
    /// Why.
    pub why: Lapse,
}
