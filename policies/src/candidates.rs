//! Candidates: which pools a gang may use at all, before anyone looks at room.
//!
//! Owns the rules on regions, clusters, classes, flavors and what pools are, and the order of
//! preference among them. What clusters are is `choice`'s. Never looks at shapes or quota.

use meridian_api::kinds::federated_job::Objective;
use meridian_api::kinds::gpu_pool::PoolCapacity;
use meridian_api::kinds::workload_class::CapacityType;
use meridian_api::quantity::SPEED_UNIT;
use meridian_api::units::{MicroMoney, Millis};

use crate::choice::standing::{Standing, standing};
use crate::choice::terms::{Choice, PLAIN};
use crate::model::{Cluster, ClusterIx, Contact, Lacking, Pool, PoolFacts, Snapshot, Waiting};

/// Why a pool of an allowed cluster is none for a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Barred {
    /// The job does not accept its flavor.
    Flavor,
    /// It does not admit the job's class.
    Class,
    /// Another law holds there.
    Jurisdiction,
    /// None of the job's groups holds the cluster.
    Group,
    /// The cluster's labels break this rule.
    Affinity(u32),
    /// This taint of the cluster is not tolerated.
    Taint(u32),
    /// This data set has no copy there.
    DataSet(u32),
    /// Nobody says what bringing this data there costs.
    Data(u32),
    /// The pool's capacity is of a kind that the job may not stand on.
    Capacity,
    /// The pool's network is another or slower.
    Fabric,
}

/// How much a job likes a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preference {
    /// Place of its group or region in the job's order.
    pub(crate) region_order: u32,
    /// Place of its flavor in the job's order.
    pub(crate) flavor_order: u32,
    /// The same where that order goes before cost, else zero.
    pub(crate) flavor_first: u32,
    /// How fast the job is on its flavor, in thousandths.
    pub(crate) speed: u32,
    /// Taints that should keep the job away.
    pub(crate) shunned: u32,
    /// Labels that the job would like and the cluster has not.
    pub(crate) wishes_missed: u32,
    /// Price of the data that comes from elsewhere.
    pub(crate) egress: MicroMoney,
    /// Time that this takes.
    pub(crate) transfer: Millis,
}

/// What of a preference the cost of a place depends on: speed, and data that comes from elsewhere.
pub(crate) type Rate = (u32, MicroMoney, Millis);

impl Preference {
    /// Equal where the same hardware costs the same.
    pub(crate) const fn rate(&self) -> Rate {
        (self.speed, self.egress, self.transfer)
    }
}

/// True when the job may run in the cluster by its own rules.
pub(crate) fn allows_cluster(gang: &Waiting, ix: ClusterIx, cluster: &Cluster) -> bool {
    (gang.regions.is_empty() || gang.regions.contains(&cluster.region))
        && (gang.clusters.is_empty() || gang.clusters.contains(&ix))
}

/// What of the job's dependencies the cluster lacks, or which of its rules denies the job, as far
/// as is known.
pub(crate) fn lacks(gang: &Waiting, ix: ClusterIx) -> Option<&Lacking> {
    gang.lacking.iter().find(|lacking| lacking.cluster == ix)
}

/// True when the cluster takes new work.
pub(crate) fn is_open(cluster: &Cluster) -> bool {
    !cluster.cordoned && cluster.contact == Contact::Ready
}

/// How much the job likes the pool, or why it may not use it. The cluster is taken as allowed.
pub(crate) fn preference(
    snapshot: &Snapshot,
    gang: &Waiting,
    pool: &Pool,
) -> Result<Preference, Barred> {
    let standing = || standing(snapshot, gang.choice, pool.cluster);
    preference_with(snapshot, gang, pool, standing)
}

/// The same, with the standing of the pool's cluster from elsewhere.
pub(crate) fn preference_with(
    snapshot: &Snapshot,
    gang: &Waiting,
    pool: &Pool,
    standing: impl FnOnce() -> Result<Standing, Barred>,
) -> Result<Preference, Barred> {
    let flavor_order = place_of(
        gang.flavors.iter().map(|accepted| accepted.flavor),
        &pool.flavor,
    )
    .ok_or(Barred::Flavor)?;
    if !pool.classes.is_empty() && !pool.classes.contains(&gang.class) {
        return Err(Barred::Class);
    }
    let choice = choice(snapshot, gang);
    let standing = standing()?;
    suits(choice, &pool.facts)?;
    let region = snapshot.clusters[pool.cluster.index()].region;
    let by_region = || place_of(gang.regions.iter().copied(), &region).unwrap_or(u32::MAX);
    let accepted = gang.flavors.get(flavor_order as usize);
    Ok(Preference {
        region_order: standing.group.unwrap_or_else(by_region),
        flavor_order,
        flavor_first: if numbers_decide(choice, gang) {
            0
        } else {
            flavor_order
        },
        speed: accepted.map_or(SPEED_UNIT, |accepted| accepted.speed),
        shunned: standing.shunned,
        wishes_missed: standing.wishes_missed,
        egress: standing.egress,
        transfer: standing.transfer,
    })
}

/// What the gang asks of its place.
pub(crate) fn choice<'a>(snapshot: &'a Snapshot, gang: &Waiting) -> &'a Choice {
    snapshot.choices.get(gang.choice.index()).unwrap_or(&PLAIN)
}

/// True when cost and time choose between flavors: the job says that it is not equally fast on
/// them, or what it is after.
fn numbers_decide(choice: &Choice, gang: &Waiting) -> bool {
    let first = gang.flavors.first().map(|accepted| accepted.speed);
    choice.objective != Objective::Balanced
        || gang
            .flavors
            .iter()
            .any(|accepted| Some(accepted.speed) != first)
}

/// Whether the job may stand on what the pool is.
fn suits(choice: &Choice, pool: &PoolFacts) -> Result<(), Barred> {
    let may_use = match pool.capacity {
        PoolCapacity::Owned => {
            choice.may_use(CapacityType::Nominal) || choice.may_use(CapacityType::Borrowed)
        }
        PoolCapacity::Reserved => {
            choice.may_use(CapacityType::Reserved) || choice.may_use(CapacityType::Nominal)
        }
        PoolCapacity::Spot => choice.may_use(CapacityType::Spot),
    };
    if !may_use {
        return Err(Barred::Capacity);
    }
    let Some(wish) = &choice.fabric else {
        return Ok(());
    };
    let fits = pool.fabric.is_some_and(|has| {
        (wish.kinds.is_empty() || wish.kinds.contains(&has.kind))
            && wish.min_gbps.is_none_or(|least| has.gbps >= least)
    });
    if fits { Ok(()) } else { Err(Barred::Fabric) }
}

/// Position of `wanted`; the first for an empty list, which allows all.
fn place_of<T: PartialEq>(list: impl ExactSizeIterator<Item = T>, wanted: &T) -> Option<u32> {
    if list.len() == 0 {
        return Some(0);
    }
    let mut list = list;
    list.position(|item| item == *wanted)
        .and_then(|position| u32::try_from(position).ok())
}
