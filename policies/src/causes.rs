//! Causes: every reason why a gang was left waiting, with its numbers.
//!
//! Owns the explanation of a round, made at its end from the room and quota that are left, once
//! for all gangs that are alike. Never changes what was decided.

use std::collections::BTreeMap;

use meridian_api::kinds::reservation::FOREVER;
use meridian_api::kinds::tenant::OnExhausted;
use meridian_api::quantity::{CpuQuantity, MemoryQuantity, Money};
use meridian_api::reasons::Reason;
use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Millis, Resources};

use crate::candidates::{Barred, allows_cluster, lacks, preference};
use crate::choice::words;
use crate::decide::{Round, places};
use crate::diagnosis::{amount, cards, diagnose, fits_when_empty};
use crate::fit::fit;
use crate::model::{
    Amounts, Cause, ClusterIx, Contact, FlavorIx, Measure, Place, PoolIx, Tenant, Unplaced,
    Waiting, WaitingIx,
};
use crate::quota::{Bound, Reach, gpus_per_job};
use crate::slots::{Mask, Slot};
use crate::starts::Starts;

/// Says for each of `left` why it waits; keeps their order.
pub(crate) fn explain(round: &mut Round<'_>, left: &[WaitingIx]) -> Vec<Unplaced> {
    let mut by_kind: BTreeMap<(u32, Mask), Vec<Cause>> = BTreeMap::new();
    let mut starts = Starts::new(round.snapshot);
    let mut rooms = Rooms::new();
    let mut unplaced = Vec::with_capacity(left.len());
    for &ix in left {
        let gang = round.gang(ix);
        if let Some((cause, start)) = round.waits_for(ix).filter(|_| !gang.suspended) {
            unplaced.push(Unplaced {
                waiting: ix,
                reasons: vec![cause],
                start: Some(start),
            });
            continue;
        }
        let mask = round.mask(ix, Reach::Borrowing);
        let shared = by_kind
            .entry((round.kinds[ix.index()], mask))
            .or_insert_with(|| of_kind(round, ix, mask, &mut rooms));
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
        let start = starts.of(round, ix, &reasons);
        unplaced.push(Unplaced {
            waiting: ix,
            reasons,
            start,
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
fn of_kind(round: &mut Round<'_>, ix: WaitingIx, mask: Mask, rooms: &mut Rooms) -> Vec<Cause> {
    let gang = round.gang(ix);
    let mut causes = quota(round, gang);
    if causes.is_empty() {
        causes.extend(kept_quota(round, gang, mask));
    }
    causes.extend(per_job(round, gang));
    causes.extend(round.copies_cause(ix));
    causes.extend(round.others_causes(ix));
    causes.extend(of_places(round, ix, mask, rooms));
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

/// What the ledger and the budget say, wherever the gang may go.
fn quota(round: &Round<'_>, gang: &Waiting) -> Vec<Cause> {
    let need = gang.shape.demand(&gang.shape.least());
    let ledger = &round.ledger;
    let mut causes = Vec::new();
    for place in places(round.snapshot, gang) {
        let ever = ledger.passed(gang.tenant, place, Reach::Ever, need);
        if ever.is_empty() {
            let bounds = ledger.passed(gang.tenant, place, Reach::Borrowing, need);
            let cause = |bound| quota_cause(round, gang, Reason::WaitingForQuota, need, bound);
            causes.extend(bounds.iter().map(cause));
        } else {
            let cause = |bound| quota_cause(round, gang, Reason::ExceedsQuota, need, bound);
            causes.extend(ever.iter().map(cause));
        }
    }
    causes.extend(own_quota(round, gang, need).filter(|_| causes.is_empty()));
    let fits = |place: &Place| {
        let reach = Reach::Borrowing;
        ledger.passed(gang.tenant, *place, reach, need).is_empty()
            && !ledger.room(gang.tenant, *place, reach).covers(need)
    };
    if places(round.snapshot, gang).iter().any(fits)
        || ledger.exhausted(gang.tenant, Reach::Nominal).is_some()
    {
        causes.extend(budget(round, gang));
    }
    causes
}

/// Quota of its own that a gang lacks which may not stand on others'.
fn own_quota(round: &Round<'_>, gang: &Waiting, need: Resources) -> Option<Cause> {
    let rooms = places(round.snapshot, gang).into_iter();
    let rooms = rooms.map(|place| round.ledger.room(gang.tenant, place, Reach::Nominal));
    let rooms: Vec<Resources> = rooms.collect();
    let short = !round.may_borrow(gang) && !rooms.iter().any(|room| room.covers(need));
    let most = rooms.into_iter().max().filter(|_| short)?;
    let message = format!(
        "needs {} of its own quota, which has {} left; it may not borrow: add Borrowed to \
         placement.capacity, or to mayUse of its class",
        cards(need.gpus),
        amount(most.gpus),
    );
    let amounts = Amounts {
        need: need.gpus,
        free: most.gpus,
        limit: most.gpus,
    };
    Some(Cause {
        amounts: Some(amounts),
        ..plain(Reason::WaitingForQuota, message)
    })
}

/// Quota that the gang would have, if it were not kept for those before it.
fn kept_quota(round: &mut Round<'_>, gang: &Waiting, mask: Mask) -> Option<Cause> {
    let need = gang.shape.demand(&gang.shape.least());
    round.keep_quota(mask);
    let places = places(round.snapshot, gang);
    let short = |place: &Place| {
        let passed = round
            .ledger
            .passed(gang.tenant, *place, Reach::Borrowing, need);
        passed.first().copied()
    };
    let bounds: Vec<_> = places.iter().map(short).collect();
    round.give_back_quota(mask);
    let bound = bounds
        .into_iter()
        .collect::<Option<Vec<_>>>()?
        .first()
        .copied()?;
    let slot = round.bound(mask).map(|(_, slot)| slot).next()?;
    let cause = quota_cause(round, gang, Reason::ReservedForOthers, need, &bound);
    let message = format!(
        "{}, with what is kept for {}",
        cause.message,
        slot_words(round, slot)
    );
    Some(Cause { message, ..cause })
}

/// Room that the gang would have in the pool, if slots did not keep it.
fn kept(round: &Round<'_>, ix: WaitingIx, pool: PoolIx, mask: Mask) -> Option<Cause> {
    let gang = &round.gang(ix).shape;
    let source = &round.snapshot.pools[pool.index()];
    let seen = round.seen(pool, mask);
    let (_, slot) = round.kept_in(pool, mask).next()?;
    if fit(&source.levels, &seen, gang, &gang.least()).is_some() {
        return None;
    }
    let amounts = Amounts {
        need: gang.gpus(&gang.least()),
        free: crate::shapes::free(&seen).gpus,
        limit: crate::shapes::free(&round.pools[pool.index()].shapes).gpus,
    };
    let message = format!(
        "pool {}: {} of {} free GPUs are kept for {}; what ends before that may run",
        source.name,
        amount(amounts.limit.saturating_sub(amounts.free)),
        amount(amounts.limit),
        slot_words(round, slot),
    );
    Some(Cause {
        reason: Reason::ReservedForOthers,
        cluster: Some(source.cluster),
        flavor: Some(source.flavor),
        amounts: Some(amounts),
        message,
    })
}

/// Room that the gang would have in the pool, if a reservation did not keep it.
fn reserved(round: &Round<'_>, ix: WaitingIx, pool: PoolIx) -> Option<Cause> {
    let snapshot = round.snapshot;
    let gang = &round.gang(ix).shape;
    let source = &snapshot.pools[pool.index()];
    let rows = &round.pools[pool.index()].shapes;
    let least = gang.least();
    let view = round.blocks.view(ix, pool, (gang, &least), rows);
    let fits = |rows: &[_]| fit(&source.levels, rows, gang, &least).is_some();
    if view.as_deref().is_some_and(fits) {
        return None;
    }
    let row = &snapshot.reserved[round.blocks.keeper(ix, pool, gang)?];
    let amounts = Amounts {
        need: gang.gpus(&least),
        free: view.map_or(MilliGpus::ZERO, |rows| crate::shapes::free(&rows).gpus),
        limit: crate::shapes::free(rows).gpus,
    };
    let tenant = &snapshot.tenants[row.tenant.index()].name;
    let wait = row.from.since(snapshot.now);
    let gone = Millis(wait.0.saturating_sub(row.lead.0));
    let when = if wait == Millis::ZERO {
        let ends = row.until.since(snapshot.now).0.div_ceil(60_000);
        if row.until == FOREVER {
            "has them".to_owned()
        } else {
            format!("has them for {ends} min")
        }
    } else {
        let (begins, gone) = (wait.0.div_ceil(60_000), gone.0 / 60_000);
        format!("gets them in {begins} min; what runs for at most {gone} min may run before that")
    };
    let message = format!(
        "pool {}: {} hosts are reserved ({}) for tenant {tenant}, who {when}",
        source.name, row.hosts, row.name,
    );
    Some(Cause {
        reason: Reason::ReservedForOthers,
        cluster: Some(source.cluster),
        flavor: Some(source.flavor),
        amounts: Some(amounts),
        message,
    })
}

/// Whose slot it is, how large, and when it is due.
fn slot_words(round: &Round<'_>, slot: &Slot) -> String {
    let owner = round.gang(slot.owner);
    let wait = slot.start.earliest.since(round.snapshot.now);
    let minutes = wait.0.div_ceil(60_000);
    format!(
        "{} gang {}, which takes {} on {} hosts in {minutes} min at the earliest",
        owner.job,
        owner.gang.index,
        cards(slot.need.gpus),
        slot.host_count(),
    )
}

fn budget(round: &Round<'_>, gang: &Waiting) -> Option<Cause> {
    let (tenant, budget) = round.ledger.exhausted(gang.tenant, Reach::Borrowing)?;
    let name = &round.snapshot.tenants[tenant.index()].name;
    let left = match budget.on_exhausted {
        OnExhausted::Warn => return None,
        OnExhausted::BlockBorrowing => "only its own quota is left to it",
        OnExhausted::BlockAll => "it starts no work",
    };
    let (spent, limit) = (Money(budget.spent), Money(budget.limit));
    let message = format!("tenant {name} has spent {spent} of {limit}: {left}");
    Some(plain(Reason::BudgetExhausted, message))
}

fn quota_cause(
    round: &Round<'_>,
    gang: &Waiting,
    reason: Reason,
    need: Resources,
    bound: &Bound,
) -> Cause {
    let tenants = &round.snapshot.tenants;
    let Tenant { name, parent, .. } = &tenants[bound.tenant.index()];
    let alone = tenants
        .iter()
        .filter(|other| other.parent == *parent)
        .count()
        == 1;
    let whose = match (bound.siblings && !alone, bound.tenant == gang.tenant) {
        (true, _) => format!("tenant {name} and its siblings"),
        (false, true) => format!("tenant {name}"),
        (false, false) => format!("tenant {name} above it"),
    };
    let need = bound.measure.amount(need);
    let (flavor, region) = match bound.measure {
        Measure::Gpus { flavor, region } => (flavor, region),
        Measure::Cpu | Measure::Memory => (None, None),
    };
    let of = flavor.map(|flavor| format!(" of {}", round.snapshot.flavors[flavor.index()].name));
    let within = region.map(|region| format!(" in {}", round.snapshot.regions[region.index()]));
    let (of, within) = (of.unwrap_or_default(), within.unwrap_or_default());
    let show = |number: u64| match bound.measure {
        Measure::Gpus { .. } => amount(MilliGpus(number)),
        Measure::Cpu => format!("{} CPUs", CpuQuantity(MilliCpus(number))),
        Measure::Memory => format!("{} of memory", MemoryQuantity(Mebibytes(number))),
    };
    let needs = match bound.measure {
        Measure::Gpus { .. } => format!("needs {}{of}", cards(MilliGpus(need))),
        Measure::Cpu | Measure::Memory => format!("needs {}", show(need)),
    };
    let (used, limit) = (show(bound.used), show(bound.limit));
    let message = if reason == Reason::ExceedsQuota {
        format!("{needs}; {whose} may never hold more than {limit}{within}")
    } else {
        format!("{needs}; {whose} may hold {limit}{within}, {used} are held")
    };
    let amounts = Amounts {
        need: MilliGpus(need),
        free: MilliGpus(bound.used),
        limit: MilliGpus(bound.limit),
    };
    let counts_gpus = matches!(bound.measure, Measure::Gpus { .. });
    Cause {
        reason,
        cluster: None,
        flavor,
        amounts: counts_gpus.then_some(amounts),
        message,
    }
}

/// What keeps it out of each cluster that it allows. A pool that could not hold it even when
/// empty is mentioned only when none could.
fn of_places(round: &Round<'_>, ix: WaitingIx, mask: Mask, rooms: &mut Rooms) -> Vec<Cause> {
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
            ..plain(lacking.reason, lacking.message.clone())
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
                Err(barred) => {
                    flavor_matches = true;
                    causes.push(words::barred(snapshot, gang, pool, barred));
                }
                Ok(_) => {
                    flavor_matches = true;
                    candidates.push(pool_ix);
                    let key = (round.shape_of[ix.index()], pool_ix);
                    let room = rooms.entry(key).or_insert_with(|| room(round, ix, pool_ix));
                    if let Room::Could(cause) = room {
                        holding += 1;
                        match cause {
                            Some(cause) => causes.push(cause.clone()),
                            None => causes.extend(
                                kept(round, ix, pool_ix, mask)
                                    .or_else(|| reserved(round, ix, pool_ix)),
                            ),
                        }
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
