//! Causes: every reason why a gang was left waiting, with its numbers.
//!
//! Owns the explanation of a round, made at its end from the room and quota that are left, once
//! for all gangs that are alike. Never changes what was decided.

use std::collections::BTreeMap;

use meridian_api::reasons::Reason;
use meridian_api::units::MilliGpus;

use crate::candidates::{Barred, allows_cluster, lacks, preference};
use crate::decide::{Round, accepted};
use crate::diagnosis::{amount, cards, diagnose, fits_when_empty};
use crate::fit::fit;
use crate::model::{
    Amounts, Cause, ClusterIx, Contact, FlavorIx, PoolIx, Unplaced, Waiting, WaitingIx,
};
use crate::quota::{Bound, Reach, gpus_per_job};

/// Says for each of `left` why it waits; keeps their order.
pub(crate) fn explain(round: &Round<'_>, left: &[WaitingIx]) -> Vec<Unplaced> {
    let mut by_kind: BTreeMap<u32, Vec<Cause>> = BTreeMap::new();
    let mut rooms = Rooms::new();
    let mut unplaced = Vec::with_capacity(left.len());
    for &ix in left {
        let gang = round.gang(ix);
        let kind = round.kinds[ix.index()];
        let shared = by_kind
            .entry(kind)
            .or_insert_with(|| of_kind(round, ix, &mut rooms));
        let mut reasons = Vec::with_capacity(shared.len() + 1);
        if gang.suspended {
            reasons.push(plain(Reason::Suspended, "suspended by a person".to_owned()));
        } else {
            reasons.extend(shared.iter().cloned());
            reasons.extend(job_limit(round, gang));
            reasons.sort();
        }
        if reasons.is_empty() {
            // Nothing keeps it, yet it was not placed: the next round looks again.
            reasons.push(plain(
                Reason::PendingEvaluation,
                "not looked at yet".to_owned(),
            ));
        }
        unplaced.push(Unplaced {
            waiting: ix,
            reasons,
        });
    }
    unplaced
}

fn plain(reason: Reason, message: String) -> Cause {
    Cause {
        reason,
        cluster: None,
        flavor: None,
        amounts: None,
        message,
    }
}

/// All that keeps gangs like this one, sorted; without what depends on the one job.
fn of_kind(round: &Round<'_>, ix: WaitingIx, rooms: &mut Rooms) -> Vec<Cause> {
    let gang = round.gang(ix);
    let mut causes = quota(round, gang);
    causes.extend(per_job(round, gang));
    causes.extend(places(round, ix, rooms));
    causes.sort();
    causes.dedup();
    causes
}

fn per_job(round: &Round<'_>, gang: &Waiting) -> Option<Cause> {
    let tenants = &round.snapshot.tenants;
    let (tenant, limit) = gpus_per_job(tenants, gang.tenant)?;
    (gang.job_gpus > limit).then(|| Cause {
        reason: Reason::ExceedsQuota,
        cluster: None,
        flavor: None,
        amounts: Some(Amounts {
            need: gang.job_gpus,
            free: MilliGpus::ZERO,
            limit,
        }),
        message: format!(
            "the job asks for {}; tenant {} allows {} per job",
            cards(gang.job_gpus),
            tenants[tenant.index()].name,
            amount(limit),
        ),
    })
}

fn job_limit(round: &Round<'_>, gang: &Waiting) -> Option<Cause> {
    let (tenant, running, limit) = round.ledger.job_limit(gang.tenant, gang.gang.job)?;
    let name = &round.snapshot.tenants[tenant.index()].name;
    let reason = if limit == 0 {
        Reason::ExceedsQuota
    } else {
        Reason::WaitingForQuota
    };
    Some(plain(
        reason,
        format!("tenant {name} runs {running} jobs of the {limit} that it may"),
    ))
}

/// What the ledger says for each flavor that the gang accepts.
fn quota(round: &Round<'_>, gang: &Waiting) -> Vec<Cause> {
    let need = gang.shape.gpus(&gang.shape.least());
    let mut causes = Vec::new();
    for flavor in accepted(round.snapshot, gang) {
        let in_fleet = |pool: &crate::model::Pool| pool.flavor == flavor;
        if gang.flavors.is_empty() && !round.snapshot.pools.iter().any(in_fleet) {
            continue;
        }
        let ever = round.ledger.headroom(gang.tenant, flavor, Reach::Ever);
        let present = round.ledger.headroom(gang.tenant, flavor, Reach::Borrowing);
        if let Some(bound) = ever.bound.filter(|_| ever.gpus < need) {
            causes.push(quota_cause(round, gang, Reason::ExceedsQuota, need, &bound));
        } else if let Some(bound) = present.bound.filter(|_| present.gpus < need) {
            causes.push(quota_cause(
                round,
                gang,
                Reason::WaitingForQuota,
                need,
                &bound,
            ));
        }
    }
    causes
}

fn quota_cause(
    round: &Round<'_>,
    gang: &Waiting,
    reason: Reason,
    need: MilliGpus,
    bound: &Bound,
) -> Cause {
    let tenant = &round.snapshot.tenants[bound.tenant.index()].name;
    let parent = round.snapshot.tenants[bound.tenant.index()].parent;
    let family = round
        .snapshot
        .tenants
        .iter()
        .filter(|other| other.parent == parent)
        .count();
    let whose = match (bound.siblings && family > 1, bound.tenant == gang.tenant) {
        (true, _) => format!("tenant {tenant} and its siblings"),
        (false, true) => format!("tenant {tenant}"),
        (false, false) => format!("tenant {tenant} above it"),
    };
    let of = bound.flavor.map_or(String::new(), |flavor| {
        format!(" of {}", round.snapshot.flavors[flavor.index()].name)
    });
    let (used, limit) = (amount(bound.used), amount(bound.limit));
    let needs = format!("needs {}{of}", cards(need));
    let message = if reason == Reason::ExceedsQuota {
        format!("{needs}; {whose} may never hold more than {limit}")
    } else {
        format!("{needs}; {whose} may hold {limit}, {used} are held")
    };
    let amounts = Some(Amounts {
        need,
        free: bound.used,
        limit: bound.limit,
    });
    Cause {
        reason,
        cluster: None,
        flavor: bound.flavor,
        amounts,
        message,
    }
}

/// What keeps it out of each cluster that it allows. A pool that could not hold it even when
/// empty is mentioned only when none could.
fn places(round: &Round<'_>, ix: WaitingIx, rooms: &mut Rooms) -> Vec<Cause> {
    let (snapshot, gang) = (round.snapshot, round.gang(ix));
    let mut causes = Vec::new();
    let (mut allowed, mut candidates, mut holding) = (0_usize, Vec::new(), 0_usize);
    for (cluster, cluster_ix) in snapshot.clusters.iter().zip((0..).map(ClusterIx)) {
        if !allows_cluster(gang, cluster_ix, cluster) {
            continue;
        }
        allowed += 1;
        causes.extend(closed(cluster, cluster_ix));
        causes.extend(lacks(gang, cluster_ix).map(|lacking| Cause {
            cluster: Some(cluster_ix),
            ..plain(Reason::DependencyMissing, lacking.message.clone())
        }));
        let mut flavor_matches = false;
        for (pool, pool_ix) in snapshot.pools.iter().zip((0..).map(PoolIx)) {
            if pool.cluster != cluster_ix {
                continue;
            }
            match preference(snapshot, gang, pool) {
                Err(Barred::Flavor) => {}
                Err(Barred::Class) => {
                    flavor_matches = true;
                    causes.push(other_class(round, gang, pool_ix));
                }
                Ok(_) => {
                    flavor_matches = true;
                    candidates.push(pool_ix);
                    let key = (round.shape_of[ix.index()], pool_ix);
                    let room = rooms.entry(key).or_insert_with(|| room(round, ix, pool_ix));
                    if let Room::Could(cause) = room {
                        holding += 1;
                        causes.extend(cause.clone());
                    }
                }
            }
        }
        if !flavor_matches {
            causes.push(no_flavor(round, gang, cluster_ix));
        }
    }
    if allowed == 0 {
        let all = snapshot.clusters.len();
        let message = format!("none of the {all} clusters is in a region and list that it allows");
        causes.push(plain(Reason::NoMatchingFlavor, message));
    }
    if holding == 0 {
        causes.extend(never(round, gang, &candidates));
    }
    causes
}

fn closed(cluster: &crate::model::Cluster, ix: ClusterIx) -> Vec<Cause> {
    let here = |reason, message| Cause {
        cluster: Some(ix),
        ..plain(reason, message)
    };
    let mut causes = Vec::new();
    if cluster.cordoned {
        let message = format!("cluster {} is cordoned", cluster.name);
        causes.push(here(Reason::ClusterCordoned, message));
    }
    let heard = match cluster.contact {
        Contact::Ready => return causes,
        Contact::Suspect => "is late",
        Contact::Unreachable => "is not heard",
        Contact::Lost => "is lost or never attached",
    };
    let message = format!("the agent of cluster {} {heard}", cluster.name);
    causes.push(here(Reason::ClusterUnreachable, message));
    causes
}

fn other_class(round: &Round<'_>, gang: &Waiting, pool: PoolIx) -> Cause {
    let snapshot = round.snapshot;
    let source = &snapshot.pools[pool.index()];
    let class = snapshot
        .classes
        .get(gang.class.index())
        .map_or("?", |class| &class.name);
    Cause {
        cluster: Some(source.cluster),
        flavor: Some(source.flavor),
        ..plain(
            Reason::ReservedForOthers,
            format!("pool {} does not admit class {class}", source.name),
        )
    }
}

fn no_flavor(round: &Round<'_>, gang: &Waiting, cluster: ClusterIx) -> Cause {
    let snapshot = round.snapshot;
    let names = |flavors: Vec<FlavorIx>| {
        let names = flavors
            .iter()
            .map(|flavor| snapshot.flavors[flavor.index()].name.as_str());
        let mut names: Vec<&str> = names.collect();
        names.dedup();
        if names.is_empty() {
            "none".to_owned()
        } else {
            names.join(", ")
        }
    };
    let own = snapshot.pools.iter().filter(|pool| pool.cluster == cluster);
    let mut own: Vec<FlavorIx> = own.map(|pool| pool.flavor).collect();
    own.sort_unstable();
    own.dedup();
    let wanted = if gang.flavors.is_empty() {
        "any".to_owned()
    } else {
        names(
            gang.flavors
                .iter()
                .map(|accepted| accepted.flavor)
                .collect(),
        )
    };
    let name = &snapshot.clusters[cluster.index()].name;
    let message = format!("accepts {wanted}; cluster {name} has {}", names(own));
    Cause {
        cluster: Some(cluster),
        ..plain(Reason::NoMatchingFlavor, message)
    }
}

/// What each pool says to each shape of gang, at the end of the round.
type Rooms = BTreeMap<(u32, PoolIx), Room>;

/// What a pool says to a gang.
enum Room {
    /// It could not hold it even when empty.
    Never,
    /// It could, and why it does not; `None` when it has room (then quota keeps the gang out).
    Could(Option<Cause>),
}

fn room(round: &Round<'_>, ix: WaitingIx, pool: PoolIx) -> Room {
    let source = &round.snapshot.pools[pool.index()];
    let gang = &round.gang(ix).shape;
    if fits_when_empty(&source.levels, &source.shapes, gang, &gang.least()) {
        Room::Could(no_room(round, ix, pool))
    } else {
        Room::Never
    }
}

fn no_room(round: &Round<'_>, ix: WaitingIx, pool: PoolIx) -> Option<Cause> {
    let snapshot = round.snapshot;
    let gang = &round.gang(ix).shape;
    let (source, state) = (&snapshot.pools[pool.index()], &round.pools[pool.index()]);
    let least = gang.least();
    if fit(&source.levels, &state.shapes, gang, &least).is_some() {
        return None;
    }
    let found = diagnose(&source.levels, &state.shapes, gang, &least);
    let (reason, amounts, message) = if round.fitted_at_start(ix, pool) {
        let start = crate::shapes::free(&source.shapes).gpus;
        let message = format!(
            "{}; it had room with {} free, which gangs before it took",
            found.message,
            amount(start),
        );
        (
            Reason::BehindHigherPriority,
            Amounts {
                limit: start,
                ..found.amounts
            },
            message,
        )
    } else {
        (found.reason, found.amounts, found.message)
    };
    Some(Cause {
        reason,
        cluster: Some(source.cluster),
        flavor: Some(source.flavor),
        amounts: Some(amounts),
        message: format!("pool {}: {message}", source.name),
    })
}

/// The pool that comes closest, when none could hold the gang.
fn never(round: &Round<'_>, gang: &Waiting, candidates: &[PoolIx]) -> Option<Cause> {
    let largest = candidates.iter().max_by_key(|pool| {
        let source = &round.snapshot.pools[pool.index()];
        let cluster = &round.snapshot.clusters[source.cluster.index()].name;
        let total = crate::shapes::allocatable(&source.shapes);
        (total.gpus, std::cmp::Reverse((cluster, &source.name)))
    })?;
    let source = &round.snapshot.pools[largest.index()];
    let least = gang.shape.least();
    let found = diagnose(&source.levels, &source.shapes, &gang.shape, &least);
    let cluster = &round.snapshot.clusters[source.cluster.index()].name;
    Some(Cause {
        amounts: Some(found.amounts),
        ..plain(
            Reason::NeverPlaceable,
            format!(
                "none of {} pools could hold it; the largest, {cluster}/{}: {}",
                candidates.len(),
                source.name,
                found.message,
            ),
        )
    })
}
