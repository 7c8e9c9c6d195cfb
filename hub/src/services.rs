//! Services: how many replicas there are, and in which clusters.
//!
//! Owns the comparison of a service with its replicas, each of which is a job: what is missing is
//! made, what is too many or outdated is taken away within its budget, what ended is replaced.
//! Pure. Where in a cluster a replica stands, and when, is decided as for every job.

mod keeper;

use std::collections::{BTreeMap, BTreeSet};

use meridian_api::conditions;
use meridian_api::ids::Revision;
use meridian_api::kinds::federated_job::RegionChoice;
use meridian_api::kinds::federated_service::{
    FederatedServiceStatus, READY, REVISION_LABEL, SPREAD_SATISFIED, UP_TO_DATE,
};
use meridian_api::kinds::spread::{DivisionRule, SpreadRule};
use meridian_api::kinds::workload_class::Preemption;
use meridian_api::kinds::{FederatedJob, WorkloadClass};
use meridian_api::meta::{Condition, ConditionStatus};
use meridian_api::quantity::GpuQuantity;
use meridian_api::units::{MilliGpus, Millis, UnixMillis};
use meridian_policies::division::{Division, Part, Rule, Spread, divide};
use meridian_policies::lifecycle::State;
use meridian_policies::model::{Contact, GangShape, Snapshot};
use meridian_policies::shapes::copies;

use crate::model::{Job, Model, Service, Situation};
use crate::own_writes::Doomed;
pub(crate) use keeper::ServiceKeeper;

/// A replica that ended is replaced this long after its end: one that ends at once must not keep
/// the store busy.
const REPLACE_AFTER: Millis = Millis::seconds(10);
/// A replica that has waited for room in its cluster for so long goes where there is room.
const MOVE_AFTER: Millis = Millis::seconds(60);

/// What is to be done about one service.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wishes {
    /// Replicas to make.
    pub(crate) make: Vec<FederatedJob>,
    /// Replicas to take away.
    pub(crate) drop: Vec<Doomed>,
    /// What is so with it.
    pub(crate) status: FederatedServiceStatus,
    /// It is being deleted, and nothing of it is left.
    pub(crate) is_gone: bool,
}

/// One replica as it is at present.
struct Replica<'a> {
    job: &'a Job,
    ordinal: Option<u32>,
    /// Cluster that holds it, or in which alone it may run.
    cluster: Option<String>,
    is_placed: bool,
    is_running: bool,
    is_outdated: bool,
    gpus: MilliGpus,
}

impl<'a> Replica<'a> {
    fn new(model: &Model, service: &Service, revision: &str, job: &'a Job) -> Self {
        let rows = || model.placements_of(job.uid).map(|row| &row.record);
        let placed = rows().next().map(|record| record.cluster.to_string());
        let pinned = || match job.spec().placement.clusters.as_slice() {
            [only] => Some(only.clone()),
            _ => None,
        };
        let made_from = job.marks.labels.get(REVISION_LABEL);
        Self {
            job,
            ordinal: service.object.ordinal(job.name()),
            is_placed: placed.is_some(),
            cluster: placed.or_else(pinned),
            is_running: rows().any(|record| record.state == State::Running),
            is_outdated: made_from.is_none_or(|made_from| made_from != revision),
            gpus: rows().fold(MilliGpus::ZERO, |sum, row| sum.saturating_add(row.gpus)),
        }
    }

    fn is_live(&self) -> bool {
        !self.job.is_deleting() && !self.job.is_over()
    }

    /// It waits for longer than a decision takes when there is room.
    fn is_stuck(&self, now: UnixMillis) -> bool {
        !self.is_placed && now.since(self.job.submitted()) > MOVE_AFTER
    }

    fn doomed(&self) -> Doomed {
        Doomed::of(self.job)
    }
}

/// What is to be done about a service, by what the model says.
#[must_use]
pub(crate) fn wishes(model: &Model, service: &Service, situation: Situation) -> Wishes {
    let revision = service.object.spec.revision();
    let replicas = model.replicas_of(service.uid);
    let replicas: Vec<Replica<'_>> = replicas
        .map(|job| Replica::new(model, service, &revision, job))
        .collect();
    let clusters = Clusters::new(model, service, &replicas, situation);
    let desired = clusters.desired(service);
    let mut wishes = Wishes {
        status: status(model, service, &replicas, desired, situation.now),
        ..Wishes::default()
    };
    if service.is_deleting() {
        let there = replicas.iter().filter(|replica| !replica.job.is_deleting());
        wishes.drop = there.map(Replica::doomed).collect();
        wishes.is_gone = replicas.is_empty();
        return wishes;
    }
    let ended = replicas.iter().filter(|replica| {
        let ended = replica.job.progress().ended;
        let rested = ended.is_none_or(|at| situation.now.since(at) >= REPLACE_AFTER);
        replica.job.is_over() && !replica.job.is_deleting() && rested
    });
    wishes.drop = ended.map(Replica::doomed).collect();
    let live: Vec<&Replica<'_>> = replicas.iter().filter(|it| it.is_live()).collect();
    let count = u32::try_from(live.len()).unwrap_or(u32::MAX);
    let is_observed = service
        .status
        .as_ref()
        .is_some_and(|status| status.observed_generation == service.object.metadata.generation);
    let is_stuck = live.iter().any(|replica| replica.is_stuck(situation.now));
    let is_outdated = live.iter().any(|replica| replica.is_outdated);
    // Only weights ask for moves though nothing else is amiss.
    let is_weighted = service.object.spec.division() == DivisionRule::Weighted;
    let is_settled = count == desired && is_observed && !is_weighted;
    if is_settled && !is_stuck && !is_outdated && clusters.is_spread() {
        return wishes;
    }
    let division = clusters.divide(model, service, situation);
    let dropped = surplus(service, &clusters, &division, &live, desired, situation.now);
    wishes
        .drop
        .extend(dropped.iter().map(|ix| live[*ix].doomed()));
    let kept = live.iter().enumerate();
    let kept = kept.filter(|(ix, _)| !dropped.contains(ix));
    let kept: Vec<&Replica<'_>> = kept.map(|(_, replica)| *replica).collect();
    wishes.make = missing(
        (model, service),
        &clusters,
        &division,
        (&kept, &replicas),
        desired,
    );
    wishes
}

/// Clusters that may hold replicas, in order of preference.
struct Clusters {
    names: Vec<String>,
    parts: Vec<Part>,
    /// They take new work.
    open: Vec<bool>,
    spread: Option<Spread>,
}

impl Clusters {
    fn new(
        model: &Model,
        service: &Service,
        replicas: &[Replica<'_>],
        situation: Situation,
    ) -> Self {
        let placement = &service.object.spec.placement;
        let regions: Vec<&str> = placement
            .regions
            .iter()
            .flat_map(RegionChoice::names)
            .collect();
        let mut allowed: Vec<(usize, &String, &String)> = Vec::new();
        for (name, cluster) in &model.catalog.clusters {
            let region = &cluster.value.spec.region;
            let order = regions.iter().position(|known| known == region);
            let by_region = order.or_else(|| regions.is_empty().then_some(0));
            let by_name = placement.clusters.is_empty() || placement.clusters.contains(name);
            if let Some(order) = by_region.filter(|_| by_name) {
                allowed.push((order, name, region));
            }
        }
        allowed.sort_unstable();
        let (by_cluster, spread) = spread(model, service);
        let domains: BTreeSet<&String> = allowed.iter().map(|(_, _, region)| *region).collect();
        let held = |name: &String| {
            let here = replicas.iter().filter(|replica| {
                let waits_elsewhere = replica.is_stuck(situation.now);
                replica.is_live() && replica.cluster.as_ref() == Some(name) && !waits_elsewhere
            });
            u32::try_from(here.count()).unwrap_or(u32::MAX)
        };
        let part = |(at, (_, name, region)): (usize, &(usize, &String, &String))| Part {
            held: held(name),
            room: 0,
            weight: service.object.spec.weight(name, region),
            domain: u32::try_from(if by_cluster {
                at
            } else {
                domains
                    .iter()
                    .position(|known| known == region)
                    .unwrap_or(at)
            })
            .unwrap_or(u32::MAX),
        };
        let is_open = |name: &String| {
            let declared = model.catalog.clusters.get(name);
            let state = model.fleet.clusters.get(name);
            declared.is_some_and(|cluster| cluster.value.spec.is_open())
                && state.is_some_and(|state| {
                    state.contact(situation.boot, situation.terms) == Contact::Ready
                })
        };
        Self {
            parts: allowed.iter().enumerate().map(part).collect(),
            open: allowed.iter().map(|(_, name, _)| is_open(name)).collect(),
            names: allowed
                .into_iter()
                .map(|(_, name, _)| name.clone())
                .collect(),
            spread,
        }
    }

    /// Replicas in all clusters together.
    fn desired(&self, service: &Service) -> u32 {
        let each = service.object.spec.replicas;
        match service.object.spec.division() {
            DivisionRule::Duplicated => {
                // One in each; the others wait for clusters that join.
                let clusters = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
                each.min(clusters)
            }
            DivisionRule::Weighted | DivisionRule::Dynamic | DivisionRule::Aggregated => each,
        }
    }

    /// True when replicas stand in as many domains as they must.
    fn is_spread(&self) -> bool {
        let held = self.parts.iter().filter(|part| part.held > 0);
        let domains: BTreeSet<u32> = held.map(|part| part.domain).collect();
        self.spread
            .is_none_or(|spread| domains.len() >= spread.min_domains as usize)
    }

    fn divide(&self, model: &Model, service: &Service, situation: Situation) -> Division {
        let total = service.object.spec.replicas;
        let mut parts = self.parts.clone();
        let rule = match service.object.spec.division() {
            DivisionRule::Duplicated => {
                // What has no room in its cluster waits for it there.
                for part in &mut parts {
                    part.room = 1_u32.saturating_sub(part.held);
                    part.held = part.held.min(1);
                }
                Rule::Aggregated
            }
            DivisionRule::Weighted => Rule::Weighted,
            DivisionRule::Dynamic => Rule::Dynamic,
            DivisionRule::Aggregated => Rule::Aggregated,
        };
        if service.object.spec.division() != DivisionRule::Duplicated {
            let replica = Job::new(service.object.replica(0, None), Revision::default());
            let shape = replica
                .gang(0)
                .map(|row| row.shape.clone())
                .unwrap_or_default();
            let snapshot = model.snapshot(situation).snapshot;
            for (at, name) in self
                .names
                .iter()
                .enumerate()
                .filter(|(at, _)| self.open[*at])
            {
                parts[at].room = room_in(&snapshot, name, &replica, &shape, total);
            }
        }
        divide(rule, total, &parts, self.spread.as_ref())
    }

    fn target(&self, division: &Division, cluster: Option<&String>) -> u32 {
        let at = cluster.and_then(|cluster| self.names.iter().position(|name| name == cluster));
        at.and_then(|at| division.counts.get(at).copied())
            .unwrap_or(0)
    }
}

/// Replicas for which there is room in a cluster.
fn room_in(snapshot: &Snapshot, name: &str, replica: &Job, shape: &GangShape, most: u32) -> u32 {
    let spec = replica.spec();
    let flavors = &spec.placement.flavors;
    let pools = snapshot.pools.iter().filter(|pool| {
        let flavor = &snapshot.flavors[pool.flavor.index()].name;
        let admits = |class: &meridian_policies::model::ClassIx| {
            snapshot.classes[class.index()].name == spec.workload_class
        };
        snapshot.clusters[pool.cluster.index()].name == name
            && (flavors.is_empty() || flavors.iter().any(|accepted| accepted.name == *flavor))
            && (pool.classes.is_empty() || pool.classes.iter().any(admits))
    });
    let rooms = pools.map(|pool| copies(&pool.levels, &pool.shapes, shape, most));
    rooms.fold(0, u32::saturating_add)
}

fn class<'a>(model: &'a Model, service: &Service) -> Option<&'a WorkloadClass> {
    let class = model
        .catalog
        .classes
        .get(&service.object.spec.workload_class);
    class.map(|class| &class.value)
}

fn least_regions(model: &Model, service: &Service) -> u32 {
    let rule = service.object.spec.placement.spread.first();
    let own = rule.filter(|rule| rule.topology_key == "region");
    let own = own.map(|rule| rule.least().0);
    let of_class = class(model, service).and_then(|class| class.spec.min_regions);
    own.unwrap_or(1).max(of_class.unwrap_or(1))
}

/// Whether domains are clusters (else regions), and how replicas are spread over them.
fn spread(model: &Model, service: &Service) -> (bool, Option<Spread>) {
    let rule = service.object.spec.placement.spread.first();
    let least = least_regions(model, service);
    let by_cluster = least <= 1 && rule.is_none_or(|rule| rule.topology_key == "cluster");
    let (domains, each) = rule.map_or((1, 1), SpreadRule::least);
    // With one region to stand in, what must not fall together stands in two clusters of it.
    let at_least = if by_cluster && must_not_fall_together(model, service) {
        2
    } else {
        least
    };
    let spread = Spread {
        min_domains: domains.max(at_least),
        min_per_domain: each,
        max_skew: rule.and_then(|rule| rule.max_skew),
    };
    let asks = spread.min_domains > 1 || spread.min_per_domain > 1 || spread.max_skew.is_some();
    (by_cluster, asks.then_some(spread))
}

/// True for work that is never stopped for others: one host that dies must not end all of it.
fn must_not_fall_together(model: &Model, service: &Service) -> bool {
    let class = class(model, service);
    class.is_some_and(|class| class.spec.preemption == Preemption::Never)
        && service.object.spec.replicas > 1
}

/// Replicas to take away: too many of all, too many in one cluster, stuck, outdated. What serves
/// goes only as far as so many others serve.
fn surplus(
    service: &Service,
    clusters: &Clusters,
    division: &Division,
    live: &[&Replica<'_>],
    desired: u32,
    now: UnixMillis,
) -> BTreeSet<usize> {
    let mut held: BTreeMap<Option<&String>, u32> = BTreeMap::new();
    for replica in live {
        *held.entry(replica.cluster.as_ref()).or_default() += 1;
    }
    let mut order: Vec<usize> = (0..live.len()).collect();
    // What serves last, and of that the first replicas last.
    order.sort_by_key(|ix| {
        let it = live[*ix];
        let ordinal = it.ordinal.unwrap_or(u32::MAX);
        (
            it.is_running,
            it.is_placed,
            !it.is_outdated,
            std::cmp::Reverse(ordinal),
        )
    });
    let count = u32::try_from(live.len()).unwrap_or(u32::MAX);
    let mut excess = count.saturating_sub(desired);
    let mut dropped = BTreeSet::new();
    let over = |held: &BTreeMap<Option<&String>, u32>, cluster: Option<&String>| {
        let there = held.get(&cluster).copied().unwrap_or(0);
        there > clusters.target(division, cluster)
    };
    for ix in &order {
        let cluster = live[*ix].cluster.as_ref();
        if excess > 0 && over(&held, cluster) {
            excess -= 1;
            dropped.insert(*ix);
            *held.entry(cluster).or_default() -= 1;
        }
    }
    let serving = live.iter().enumerate();
    let serving = serving.filter(|(ix, it)| it.is_running && !dropped.contains(ix));
    let missing = desired.saturating_sub(u32::try_from(serving.count()).unwrap_or(u32::MAX));
    let mut budget = service
        .object
        .spec
        .rollout
        .max_unavailable
        .saturating_sub(missing);
    let has_room_elsewhere = division.left == 0;
    for ix in order {
        let it = live[ix];
        let cluster = it.cluster.as_ref();
        let moves = cluster.is_some() && over(&held, cluster);
        let is_stuck = it.is_stuck(now) && moves && has_room_elsewhere;
        if dropped.contains(&ix) || !(it.is_outdated || is_stuck || (moves && it.is_placed)) {
            continue;
        }
        if it.is_running {
            if budget == 0 {
                continue;
            }
            budget -= 1;
        }
        dropped.insert(ix);
        *held.entry(cluster).or_default() -= 1;
    }
    dropped
}

/// Replicas to make, each in the cluster that division gives it; where none has room, wherever
/// room comes first.
fn missing(
    (model, service): (&Model, &Service),
    clusters: &Clusters,
    division: &Division,
    (kept, all): (&[&Replica<'_>], &[Replica<'_>]),
    desired: u32,
) -> Vec<FederatedJob> {
    let mut count = desired.saturating_sub(u32::try_from(kept.len()).unwrap_or(u32::MAX));
    let used: BTreeSet<u32> = all.iter().filter_map(|replica| replica.ordinal).collect();
    let namespace = service.key.namespace.as_deref().unwrap_or_default();
    let is_taken = |ordinal: u32| {
        // Somebody else's job may have the name.
        let name = format!("{}-{ordinal}", service.key.name);
        used.contains(&ordinal) || model.job_named(namespace, &name).is_some()
    };
    let mut free = (0..).filter(|ordinal| !is_taken(*ordinal));
    let mut made = Vec::new();
    for name in &clusters.names {
        let here = kept.iter().filter(|it| it.cluster.as_ref() == Some(name));
        let here = u32::try_from(here.count()).unwrap_or(u32::MAX);
        let short = clusters.target(division, Some(name)).saturating_sub(here);
        for ordinal in free.by_ref().take(short.min(count) as usize) {
            made.push(service.object.replica(ordinal, Some(name)));
        }
        count -= short.min(count);
    }
    for ordinal in free.take(count as usize) {
        made.push(service.object.replica(ordinal, None));
    }
    made
}

fn status(
    model: &Model,
    service: &Service,
    replicas: &[Replica<'_>],
    desired: u32,
    now: UnixMillis,
) -> FederatedServiceStatus {
    let serves = |it: &&Replica<'_>| it.is_running && it.is_live();
    let mut status = FederatedServiceStatus {
        observed_generation: service.object.metadata.generation,
        desired,
        ..FederatedServiceStatus::default()
    };
    for replica in replicas.iter().filter(serves) {
        status.ready += 1;
        status.updated += u32::from(!replica.is_outdated);
        let Some(cluster) = &replica.cluster else {
            continue;
        };
        *status.by_cluster.entry(cluster.clone()).or_default() += 1;
        if let Some(cluster) = model.catalog.clusters.get(cluster) {
            let region = cluster.value.spec.region.clone();
            *status.by_region.entry(region).or_default() += 1;
        }
    }
    let waiting = replicas.iter().filter(|it| it.is_live() && !it.is_placed);
    status.waiting = u32::try_from(waiting.count()).unwrap_or(u32::MAX);
    let gpus = replicas.iter().map(|replica| replica.gpus);
    status.gpus = GpuQuantity(gpus.fold(MilliGpus::ZERO, MilliGpus::saturating_add));
    let old = service.status.as_deref();
    status.conditions = old.map(|old| old.conditions.clone()).unwrap_or_default();
    set_conditions(&mut status, least_regions(model, service), now);
    status
}

fn set_conditions(status: &mut FederatedServiceStatus, least: u32, now: UnixMillis) {
    let FederatedServiceStatus {
        ready,
        updated,
        desired,
        observed_generation,
        ..
    } = *status;
    let regions = u32::try_from(status.by_region.len()).unwrap_or(u32::MAX);
    let conditions = [
        (
            READY,
            ready >= desired,
            ["EveryReplicaServes", "ReplicasMissing"],
            format!("{ready} of {desired} replicas serve"),
        ),
        (
            SPREAD_SATISFIED,
            regions >= least,
            ["EnoughRegions", "TooFewRegions"],
            format!("replicas serve in {regions} of at least {least} regions"),
        ),
        (
            UP_TO_DATE,
            updated >= desired,
            ["EveryReplicaUpdated", "Replacing"],
            format!("{updated} of {desired} replicas are as the spec says and serve"),
        ),
    ];
    for (kind, holds, reasons, message) in conditions {
        let condition = Condition {
            kind: kind.to_owned(),
            status: if holds {
                ConditionStatus::True
            } else {
                ConditionStatus::False
            },
            reason: reasons[usize::from(!holds)].to_owned(),
            message: if holds { String::new() } else { message },
            observed_generation,
            last_transition_time: None,
        };
        conditions::set(&mut status.conditions, condition, now);
    }
}
