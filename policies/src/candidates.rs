//! Candidates: which pools a gang may use at all, before anyone looks at room.
//!
//! Owns the rules on regions, clusters, classes and flavors, and the order of preference among
//! them. Never looks at shapes or quota.

use crate::model::{Cluster, ClusterIx, Contact, Lacking, Pool, Snapshot, Waiting};

/// Why a pool of an allowed cluster is none for a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Barred {
    /// The job does not accept its flavor.
    Flavor,
    /// It does not admit the job's class.
    Class,
}

/// Places of a pool's region and flavor in the job's orders of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preference {
    pub(crate) region_order: u32,
    pub(crate) flavor_order: u32,
}

/// True when the job may run in the cluster by its own rules.
pub(crate) fn allows_cluster(gang: &Waiting, ix: ClusterIx, cluster: &Cluster) -> bool {
    (gang.regions.is_empty() || gang.regions.contains(&cluster.region))
        && (gang.clusters.is_empty() || gang.clusters.contains(&ix))
}

/// What of the job's dependencies the cluster lacks, as far as is known.
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
    let flavor_order = place_of(
        gang.flavors.iter().map(|accepted| accepted.flavor),
        &pool.flavor,
    )
    .ok_or(Barred::Flavor)?;
    if !pool.classes.is_empty() && !pool.classes.contains(&gang.class) {
        return Err(Barred::Class);
    }
    let region = snapshot.clusters[pool.cluster.index()].region;
    let region_order = place_of(gang.regions.iter().copied(), &region).unwrap_or(u32::MAX);
    Ok(Preference {
        region_order,
        flavor_order,
    })
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
