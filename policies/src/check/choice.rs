//! What a job asked of its place is kept: law, labels, taints, data, network, capacity.
//!
//! Owns the reading of a job's wishes anew, rule by rule, from the rows of the snapshot, and the
//! counting of its gangs by domain and cluster. Uses no code of `choice`.

use std::collections::BTreeMap;

use meridian_api::kinds::federated_job::{
    JobRelation, LabelOperator, LabelRule, TolerationOperator,
};
use meridian_api::kinds::gpu_pool::PoolCapacity;
use meridian_api::kinds::member_cluster::TaintEffect;
use meridian_api::kinds::spread::DivisionRule;
use meridian_api::kinds::workload_class::CapacityType;

use super::{Found, report};
use crate::model::{Choice, Cluster, ClusterIx, Placed, Plan, Pool, Role, Snapshot, Waiting};

/// Everything that the place of a gang breaks of what its job asks for.
pub(super) fn kept(snapshot: &Snapshot, gang: &Waiting, placed: &Placed, found: &mut Found) {
    let Some(choice) = snapshot.choices.get(gang.choice.index()) else {
        return;
    };
    let pool = &snapshot.pools[placed.pool.index()];
    let place = Place {
        snapshot,
        cluster: &snapshot.clusters[pool.cluster.index()],
        pool,
    };
    let mut broken: Vec<&str> = Vec::new();
    let law = place.value("jurisdiction");
    if choice.jurisdiction.is_some() && law != choice.jurisdiction {
        broken.push("under another law");
    }
    if !choice
        .affinity
        .required
        .iter()
        .all(|rule| place.keeps(rule))
    {
        broken.push("whose labels it does not accept");
    }
    if place.repels(choice) {
        broken.push("whose taints it does not tolerate");
    }
    if place.lacks_data(choice) {
        broken.push("where its data is not and nobody prices the way");
    }
    if place.is_other_capacity(choice) {
        broken.push("on capacity that it may not use");
    }
    if place.is_other_network(choice) {
        broken.push("on another network");
    }
    let borrows = placed.rows.iter().any(|row| row.role == Role::Borrowed);
    if borrows && !choice.capacity.is_empty() && !choice.capacity.contains(&CapacityType::Borrowed)
    {
        broken.push("on others' quota, which it may not use");
    }
    if !choice.groups.is_empty() && !place.is_in_a_group(choice) {
        broken.push("outside its groups");
    }
    for what in broken {
        let (cluster, pool) = (&place.cluster.name, &pool.name);
        let message = format!("gang {} placed in {cluster}/{pool}, {what}", gang.gang);
        report(found, "S20", message);
    }
}

/// Wishes on other jobs hold at the moment at which each gang is placed.
pub(super) fn near_others(snapshot: &Snapshot, plan: &Plan, found: &mut Found) {
    if snapshot.selectors.is_empty() {
        return;
    }
    let value = |cluster: ClusterIx, key: &str| {
        let place = Place {
            snapshot,
            cluster: snapshot.clusters.get(cluster.index())?,
            pool: snapshot.pools.first()?,
        };
        place.value(key)
    };
    for (position, placed) in plan.placements.iter().enumerate() {
        let gang = &snapshot.waiting[placed.waiting.index()];
        let own = snapshot.pools[placed.pool.index()].cluster;
        let wishes = snapshot.choices.get(gang.choice.index());
        for wish in wishes.map_or(&[][..], |wish| &wish.jobs) {
            let selector = &snapshot.selectors[wish.selector as usize];
            let held = selector.held.iter().map(|ix| &snapshot.held[ix.index()]);
            let mut others: Vec<_> = held.map(|row| (row.gang.job, row.cluster)).collect();
            let before = plan.placements[..position].iter();
            let before = before.filter(|row| selector.waiting.binary_search(&row.waiting).is_ok());
            others.extend(before.map(|row| {
                let job = snapshot.waiting[row.waiting.index()].gang.job;
                (job, snapshot.pools[row.pool.index()].cluster)
            }));
            let domain = value(own, &wish.topology_key);
            let near = others.iter().any(|(job, cluster)| {
                *job != gang.gang.job && value(*cluster, &wish.topology_key) == domain
            });
            if domain.is_none() || near != (wish.rule == JobRelation::Together) {
                let message = format!("gang {} breaks {:?} with other jobs", gang.gang, wish.rule);
                report(found, "S20", message);
            }
        }
    }
}

/// Only what asks for it goes back, each once, and of gangs alike the newest first.
pub(super) fn returning(snapshot: &Snapshot, plan: &Plan, found: &mut Found) {
    let mut wishes: BTreeMap<_, _> = BTreeMap::new();
    for row in &snapshot.overflowed {
        wishes.insert(row.held, row);
    }
    let mut last = None;
    for ix in &plan.returning {
        let (Some(row), Some(held)) = (wishes.remove(ix), snapshot.held.get(ix.index())) else {
            report(
                found,
                "S20",
                format!("placement {} goes back unasked", ix.0),
            );
            continue;
        };
        if row.gang.gang != held.gang {
            report(
                found,
                "S20",
                format!("gang {} goes back as another", held.gang),
            );
        }
        let age = (held.since, held.gang);
        if last.is_some_and(|last| last < age) {
            report(
                found,
                "S20",
                format!("gang {} goes back after older ones", held.gang),
            );
        }
        last = Some(age);
    }
}

/// Every spread and division that a plan breaks where it places something.
pub(super) fn copies(snapshot: &Snapshot, plan: &Plan, found: &mut Found) {
    let mut placed: BTreeMap<_, Vec<&Placed>> = BTreeMap::new();
    for row in &plan.placements {
        let gang = &snapshot.waiting[row.waiting.index()];
        let wish = snapshot.choices.get(gang.choice.index());
        if wish.is_some_and(|wish| wish.spread.is_some() || wish.division.is_some()) {
            placed
                .entry((gang.gang.job, gang.choice))
                .or_default()
                .push(row);
        }
    }
    for ((job, wish), rows) in placed {
        let wish = &snapshot.choices[wish.index()];
        let cluster = |row: &&Placed| snapshot.pools[row.pool.index()].cluster;
        let fresh: Vec<ClusterIx> = rows.iter().map(cluster).collect();
        let held = snapshot.held.iter().filter(|held| held.gang.job == job);
        let all: Vec<ClusterIx> = held.map(|held| held.cluster).chain(fresh.clone()).collect();
        let broken = spread_broken(snapshot, wish, &fresh, &all);
        if let Some(what) = broken.or_else(|| division_broken(snapshot, wish, &fresh, &all)) {
            report(found, "S20", format!("job {job}: {what}"));
        }
    }
}

fn spread_broken(
    snapshot: &Snapshot,
    wish: &Choice,
    fresh: &[ClusterIx],
    all: &[ClusterIx],
) -> Option<String> {
    let rule = wish.spread.as_ref()?;
    let value = |cluster: &ClusterIx| {
        let cluster = snapshot.clusters.get(cluster.index())?;
        let pool = snapshot.pools.first()?;
        let place = Place {
            snapshot,
            cluster,
            pool,
        };
        place.value(&rule.topology_key)
    };
    if fresh.iter().any(|cluster| value(cluster).is_none()) {
        return Some("a gang is in no domain of its spread".to_owned());
    }
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    for domain in all.iter().filter_map(value) {
        *counts.entry(domain).or_default() += 1;
    }
    let least = counts.values().min().copied()?;
    let grown = fresh
        .iter()
        .filter_map(value)
        .filter_map(|domain| counts.get(&domain));
    let most = grown.max().copied()?;
    let skew = rule.max_skew.filter(|skew| most - least > *skew)?;
    Some(format!(
        "domains differ by {}, maxSkew is {skew}",
        most - least
    ))
}

fn division_broken(
    snapshot: &Snapshot,
    wish: &Choice,
    fresh: &[ClusterIx],
    all: &[ClusterIx],
) -> Option<String> {
    let division = wish.division.as_ref()?;
    let name = |cluster: &ClusterIx| &snapshot.clusters[cluster.index()].name;
    match division.rule {
        DivisionRule::Duplicated => {
            let twice = |it: &&ClusterIx| all.iter().filter(|other| other == it).count() > 1;
            let twice = fresh.iter().find(twice)?;
            Some(format!("a second copy goes to cluster {}", name(twice)))
        }
        DivisionRule::Weighted => {
            let weight = |cluster: &ClusterIx| {
                let region = snapshot.clusters[cluster.index()].region;
                let mut rows = division.weights.iter();
                let own = rows.find(|(group, _)| {
                    (group.regions.is_empty() || group.regions.contains(&region))
                        && (group.clusters.is_empty() || group.clusters.contains(cluster))
                });
                own.map_or(0, |(_, weight)| *weight)
            };
            let without = fresh.iter().find(|cluster| weight(cluster) == 0)?;
            Some(format!(
                "a gang goes to cluster {}, which has no weight",
                name(without)
            ))
        }
        DivisionRule::Dynamic | DivisionRule::Aggregated => None,
    }
}

struct Place<'a> {
    snapshot: &'a Snapshot,
    cluster: &'a Cluster,
    pool: &'a Pool,
}

impl Place<'_> {
    fn value(&self, key: &str) -> Option<String> {
        let region = self.cluster.region.index();
        let facts = self.snapshot.region_facts.get(region);
        let own = &self.cluster.facts;
        match key {
            "cluster" => Some(self.cluster.name.clone()),
            "region" => self.snapshot.regions.get(region).cloned(),
            "zone" => own.zone.clone(),
            "provider" => own.provider.clone().or(facts?.provider.clone()),
            "jurisdiction" => facts?.jurisdiction.clone(),
            _ => match own.labels.get(key) {
                Some(value) => Some(value.clone()),
                None => facts?.labels.get(key).cloned(),
            },
        }
    }

    fn keeps(&self, rule: &LabelRule) -> bool {
        match (self.value(&rule.key), rule.operator) {
            (Some(value), LabelOperator::In) => rule.values.contains(&value),
            (Some(value), LabelOperator::NotIn) => !rule.values.contains(&value),
            (Some(_), LabelOperator::Exists)
            | (None, LabelOperator::DoesNotExist | LabelOperator::NotIn) => true,
            (Some(_), LabelOperator::DoesNotExist)
            | (None, LabelOperator::In | LabelOperator::Exists) => false,
        }
    }

    fn repels(&self, choice: &Choice) -> bool {
        let repelling = self.cluster.facts.taints.iter();
        let mut repelling = repelling.filter(|it| it.effect != TaintEffect::PreferNoSchedule);
        repelling.any(|taint| {
            !choice.tolerations.iter().any(|bears| {
                let any_value = bears.operator == TolerationOperator::Exists;
                let any_key = any_value && bears.key.is_empty();
                (any_key || bears.key == taint.key)
                    && (any_value || bears.value == taint.value)
                    && bears.effect.is_none_or(|effect| effect == taint.effect)
                    && bears.toleration_seconds.is_none()
            })
        })
    }

    fn lacks_data(&self, choice: &Choice) -> bool {
        let to = self.cluster.region;
        let facts = &self.snapshot.region_facts;
        let far = choice.data.iter().any(|need| {
            let priced = need.regions.iter().any(|from| {
                let prices = facts.get(from.index()).map(|facts| &facts.egress);
                prices.is_some_and(|prices| matches!(prices.get(to.index()), Some(Some(_))))
            });
            !need.regions.is_empty()
                && !need.regions.contains(&to)
                && (need.gigabytes.is_none() || !priced)
        });
        let mut here = self.cluster.facts.data_sets.clone();
        here.extend(
            facts
                .get(to.index())
                .into_iter()
                .flat_map(|it| it.data_sets.clone()),
        );
        far || choice.data_sets.iter().any(|set| !here.contains(set))
    }

    fn is_other_capacity(&self, choice: &Choice) -> bool {
        let good = match self.pool.facts.capacity {
            PoolCapacity::Owned => [CapacityType::Nominal, CapacityType::Borrowed],
            PoolCapacity::Reserved => [CapacityType::Nominal, CapacityType::Reserved],
            PoolCapacity::Spot => [CapacityType::Spot; 2],
        };
        !choice.capacity.is_empty() && !choice.capacity.iter().any(|it| good.contains(it))
    }

    fn is_other_network(&self, choice: &Choice) -> bool {
        let Some(wish) = &choice.fabric else {
            return false;
        };
        let Some(has) = self.pool.facts.fabric else {
            return true;
        };
        wish.min_gbps.unwrap_or(0) > has.gbps
            || !(wish.kinds.is_empty() || wish.kinds.contains(&has.kind))
    }

    fn is_in_a_group(&self, choice: &Choice) -> bool {
        choice.groups.iter().any(|group| {
            let (regions, clusters) = (&group.regions, &group.clusters);
            (regions.is_empty() || regions.contains(&self.cluster.region))
                && (clusters.is_empty() || clusters.contains(&self.pool.cluster))
                && group.labels.iter().all(|rule| self.keeps(rule))
        })
    }
}
