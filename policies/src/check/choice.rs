//! What a job asked of its place is kept: law, labels, taints, data, network, capacity.
//!
//! Owns the reading of a job's wishes anew, rule by rule, from the rows of the snapshot. Uses no
//! code of `choice`.

use meridian_api::kinds::federated_job::{LabelOperator, LabelRule, TolerationOperator};
use meridian_api::kinds::gpu_pool::PoolCapacity;
use meridian_api::kinds::member_cluster::TaintEffect;
use meridian_api::kinds::workload_class::CapacityType;

use super::{Found, report};
use crate::model::{Choice, Cluster, Placed, Pool, Role, Snapshot, Waiting};

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
