//! Standing: whether a cluster is open to what a job asks for, and how well it suits.
//!
//! Owns the weighing of labels, law, taints, data and groups. Each different wish is weighed once
//! per cluster and round; the answer is integers. Never looks at pools.

use meridian_api::kinds::federated_job::{LabelOperator, LabelRule, Toleration};
use meridian_api::kinds::member_cluster::{Taint, TaintEffect};
use meridian_api::units::{MicroMoney, Millis};

use super::cost::PER_GIGABYTE;
use super::terms::{Choice, DataNeed, Group, label};
use crate::candidates::Barred;
use crate::model::{ChoiceIx, ClusterIx, RegionIx, Snapshot};

/// How a cluster suits what a job asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The first of the job's groups that holds it; `None` when the job has no groups.
    pub(crate) group: Option<u32>,
    /// Taints that should keep the job away if it can go elsewhere.
    pub(crate) shunned: u32,
    /// Labels that the job would like and the cluster has not.
    pub(crate) wishes_missed: u32,
    /// Price of the data that comes from other regions.
    pub(crate) egress: MicroMoney,
    /// Time that this takes.
    pub(crate) transfer: Millis,
}

/// The standing of each cluster for each different wish, as far as it was asked for.
pub(crate) struct Standings {
    clusters: usize,
    known: Vec<Option<Result<Standing, Barred>>>,
}

impl Standings {
    pub(crate) fn new(snapshot: &Snapshot) -> Self {
        let clusters = snapshot.clusters.len();
        Self {
            clusters,
            known: vec![None; clusters * snapshot.choices.len()],
        }
    }

    /// There are more wishes than before.
    pub(crate) fn grow(&mut self, snapshot: &Snapshot) {
        let all = self.clusters * snapshot.choices.len();
        self.known.resize(all, None);
    }

    /// How the cluster stands; weighed the first time.
    pub(crate) fn of(
        &mut self,
        snapshot: &Snapshot,
        choice: ChoiceIx,
        cluster: ClusterIx,
    ) -> Result<Standing, Barred> {
        let at = choice.index() * self.clusters + cluster.index();
        match self.known.get_mut(at) {
            Some(known) => *known.get_or_insert_with(|| standing(snapshot, choice, cluster)),
            // A snapshot without choices: nothing is asked for.
            None => Ok(Standing::default()),
        }
    }
}

/// How the cluster stands to a wish, or the first thing that bars it.
pub(crate) fn standing(
    snapshot: &Snapshot,
    choice: ChoiceIx,
    cluster: ClusterIx,
) -> Result<Standing, Barred> {
    let Some(choice) = snapshot.choices.get(choice.index()) else {
        return Ok(Standing::default());
    };
    let mut standing = Standing::default();
    let Some(row) = snapshot.clusters.get(cluster.index()) else {
        return Ok(standing);
    };
    if choice.jurisdiction.is_some()
        && label(snapshot, cluster, "jurisdiction") != choice.jurisdiction.as_deref()
    {
        return Err(Barred::Jurisdiction);
    }
    if !choice.groups.is_empty() {
        let groups = (0..).zip(&choice.groups);
        let mut holding = groups.filter(|(_, group)| holds(snapshot, group, cluster));
        standing.group = Some(holding.next().ok_or(Barred::Group)?.0);
    }
    let mut required = (0..).zip(&choice.affinity.required);
    if let Some((at, _)) = required.find(|(_, rule)| !matches(snapshot, cluster, rule)) {
        return Err(Barred::Affinity(at));
    }
    for (taint, at) in row.facts.taints.iter().zip(0..) {
        if choice.tolerations.iter().any(|it| bears(it, taint)) {
            continue;
        }
        match taint.effect {
            TaintEffect::NoSchedule | TaintEffect::NoExecute => return Err(Barred::Taint(at)),
            TaintEffect::PreferNoSchedule => standing.shunned += 1,
        }
    }
    let missed = choice.affinity.preferred.iter();
    let missed = missed.filter(|rule| !matches(snapshot, cluster, rule));
    standing.wishes_missed = u32::try_from(missed.count()).unwrap_or(u32::MAX);
    data(snapshot, choice, cluster, row.region, standing)
}

/// Adds what bringing the data here takes.
fn data(
    snapshot: &Snapshot,
    choice: &Choice,
    cluster: ClusterIx,
    region: RegionIx,
    mut standing: Standing,
) -> Result<Standing, Barred> {
    for (name, at) in choice.data_sets.iter().zip(0..) {
        let own = &snapshot.clusters[cluster.index()].facts.data_sets;
        let shared = snapshot.region_facts(region).map(|facts| &facts.data_sets);
        if !own.contains(name) && !shared.is_some_and(|shared| shared.contains(name)) {
            return Err(Barred::DataSet(at));
        }
    }
    for (need, at) in choice.data.iter().zip(0..) {
        if need.regions.is_empty() || need.regions.contains(&region) {
            continue;
        }
        let (price, gigabytes) = cheapest_copy(snapshot, need, region).ok_or(Barred::Data(at))?;
        let price = i128::from(price.0).saturating_mul(i128::from(gigabytes));
        let price = MicroMoney(i64::try_from(price).unwrap_or(i64::MAX));
        standing.egress = standing.egress.saturating_add(price);
        let transfer = PER_GIGABYTE.0.saturating_mul(gigabytes);
        standing.transfer = standing.transfer.saturating_add(Millis(transfer));
    }
    Ok(standing)
}

/// Price of a gigabyte from the region that gives it cheapest, and how many there are; `None` when
/// nobody says what it would cost.
fn cheapest_copy(snapshot: &Snapshot, need: &DataNeed, to: RegionIx) -> Option<(MicroMoney, u64)> {
    let price = |from: &RegionIx| {
        let facts = snapshot.region_facts(*from)?;
        facts.egress.get(to.index()).copied().flatten()
    };
    Some((
        need.regions.iter().filter_map(price).min()?,
        need.gigabytes?,
    ))
}

/// True when the group holds the cluster.
pub(crate) fn holds(snapshot: &Snapshot, group: &Group, cluster: ClusterIx) -> bool {
    let region = snapshot.region(cluster);
    (group.regions.is_empty() || group.regions.contains(&region))
        && (group.clusters.is_empty() || group.clusters.contains(&cluster))
        && group
            .labels
            .iter()
            .all(|rule| matches(snapshot, cluster, rule))
}

/// True when the cluster's label is as the rule says.
pub(crate) fn matches(snapshot: &Snapshot, cluster: ClusterIx, rule: &LabelRule) -> bool {
    let value = label(snapshot, cluster, &rule.key);
    let listed = value.is_some_and(|value| rule.values.iter().any(|known| known == value));
    match rule.operator {
        LabelOperator::In => listed,
        LabelOperator::NotIn => !listed,
        LabelOperator::Exists => value.is_some(),
        LabelOperator::DoesNotExist => value.is_none(),
    }
}

/// True when work with this toleration may come in spite of the taint. A toleration that ends is
/// for work that is there already.
pub(crate) fn bears(toleration: &Toleration, taint: &Taint) -> bool {
    toleration.toleration_seconds.is_none() && toleration.covers(taint)
}
