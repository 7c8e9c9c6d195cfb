//! What jobs ask of their place and what is known of places, as rows of a snapshot.
//!
//! Owns the way from the specs of jobs, regions, clusters, pools and prices to these rows. Each
//! different wish is one row, and most jobs share the first, which asks for nothing. Reads only.

use std::collections::BTreeMap;

use meridian_api::ids::GangId;
use meridian_api::kinds::federated_job::{DataSource, FederatedJobSpec, Overflow, PlacementGroup};
use meridian_api::kinds::gpu_pool::PoolCapacity;
use meridian_api::kinds::spread::Division;
use meridian_api::kinds::workload_class::CapacityType;
use meridian_api::kinds::{GPUPool, MemberCluster};
use meridian_api::reasons::Reason;
use meridian_api::units::{MicroMoney, UnixMillis};
use meridian_policies::lifecycle::State;
use meridian_policies::model::{
    Choice, ChoiceIx, ClusterFacts, DataNeed, Expected, Group, HeldIx, JobWish, Overflowed,
    PoolFacts, RegionFacts, Selector, Shares, Snapshot, Waiting, WaitingIx,
};

use super::asked::Asked;
use super::snapshot::Ordinals;
use super::{Catalog, Job, Model, Trouble};

/// The different wishes of a snapshot.
pub(super) struct Choices {
    rows: Vec<Choice>,
    known: BTreeMap<Choice, ChoiceIx>,
    selectors: Vec<Selector>,
    /// What alike jobs ask for.
    pub(super) asked: Asked,
}

impl Choices {
    /// Those that are known, at least the one that asks for nothing.
    pub(super) fn new(mut rows: Vec<Choice>, selectors: Vec<Selector>) -> Self {
        if rows.is_empty() {
            rows.push(Choice::default());
        }
        let known = rows.iter().cloned().zip((0..).map(ChoiceIx)).collect();
        Self {
            rows,
            known,
            selectors,
            asked: Asked::default(),
        }
    }

    /// All of them, by ordinal, and the jobs that they name.
    pub(super) fn into_rows(self) -> (Vec<Choice>, Vec<Selector>) {
        (self.rows, self.selectors)
    }

    /// What a job asks of other jobs in its namespace.
    fn jobs(&mut self, job: &Job) -> Vec<JobWish> {
        let namespace = job.namespace().to_owned();
        let mut wishes = Vec::new();
        for rule in &job.spec().placement.job_affinity {
            let same = |known: &Selector| {
                known.namespace == namespace && known.labels == rule.match_labels
            };
            let at = self.selectors.iter().position(same).unwrap_or_else(|| {
                self.selectors.push(Selector {
                    namespace: namespace.clone(),
                    labels: rule.match_labels.clone(),
                    ..Selector::default()
                });
                self.selectors.len() - 1
            });
            wishes.push(JobWish {
                rule: rule.rule,
                topology_key: rule.topology_key.clone(),
                selector: u32::try_from(at).unwrap_or(u32::MAX),
            });
        }
        wishes
    }

    /// What a job asks for, of a class that may use some kinds of capacity.
    pub(super) fn of(
        &mut self,
        ordinals: &Ordinals,
        job: &Job,
        may_use: &[CapacityType],
    ) -> Result<ChoiceIx, Trouble> {
        let choice = Choice {
            jobs: self.jobs(job),
            ..choice(ordinals, job.spec(), may_use)?
        };
        if let Some(known) = self.known.get(&choice) {
            return Ok(*known);
        }
        let ix = ChoiceIx(u32::try_from(self.rows.len()).unwrap_or(u32::MAX));
        self.rows.push(choice.clone());
        self.known.insert(choice, ix);
        Ok(ix)
    }
}

fn choice(
    ordinals: &Ordinals,
    spec: &FederatedJobSpec,
    may_use: &[CapacityType],
) -> Result<Choice, Trouble> {
    let asked = &spec.placement;
    let capacity = if asked.capacity.is_empty() {
        may_use
    } else {
        &asked.capacity
    };
    let mut capacity = capacity.to_vec();
    capacity.sort_unstable();
    let data = asked.data.iter().map(|source| data(ordinals, source));
    let mut groups = Vec::with_capacity(asked.groups.len());
    for group in &asked.groups {
        groups.push(group_row(ordinals, group)?);
    }
    if let Some(alike) = asked.regions.as_ref().filter(|it| !it.any_of.is_empty()) {
        let regions = alike
            .any_of
            .iter()
            .map(|name| ordinals.region(name, "regions"));
        groups.push(Group {
            regions: regions.collect::<Result<_, _>>()?,
            ..Group::default()
        });
    }
    let needs = spec.dependencies.as_ref();
    Ok(Choice {
        objective: asked.objective,
        capacity,
        jurisdiction: asked.jurisdiction.clone(),
        data: data.collect::<Result<_, _>>()?,
        data_sets: needs.map_or_else(Vec::new, |needs| needs.data_sets.clone()),
        tolerations: asked.tolerations.clone(),
        affinity: asked.affinity.clone(),
        fabric: asked.fabric.clone(),
        groups,
        spread: asked.spread.first().cloned(),
        division: asked
            .division
            .as_ref()
            .map(|it| shares(ordinals, it))
            .transpose()?,
        jobs: Vec::new(),
    })
}

fn data(ordinals: &Ordinals, source: &DataSource) -> Result<DataNeed, Trouble> {
    let regions = source
        .regions
        .iter()
        .map(|name| ordinals.region(name, "data"));
    Ok(DataNeed {
        uri: source.uri.clone(),
        regions: regions.collect::<Result<_, _>>()?,
        gigabytes: source.size_gb,
    })
}

fn group_row(ordinals: &Ordinals, group: &PlacementGroup) -> Result<Group, Trouble> {
    let regions = group
        .regions
        .iter()
        .map(|name| ordinals.region(name, "groups"));
    let clusters = group
        .clusters
        .iter()
        .map(|name| ordinals.cluster(name, "groups"));
    Ok(Group {
        name: group.name.clone(),
        regions: regions.collect::<Result<_, _>>()?,
        clusters: clusters.collect::<Result<_, _>>()?,
        labels: group.labels.clone(),
    })
}

fn shares(ordinals: &Ordinals, division: &Division) -> Result<Shares, Trouble> {
    let mut weights = Vec::with_capacity(division.weights.len());
    for row in &division.weights {
        let regions = row
            .regions
            .iter()
            .map(|name| ordinals.region(name, "division"));
        let clusters = row
            .clusters
            .iter()
            .map(|name| ordinals.cluster(name, "division"));
        let group = Group {
            regions: regions.collect::<Result<_, _>>()?,
            clusters: clusters.collect::<Result<_, _>>()?,
            ..Group::default()
        };
        weights.push((group, row.weight));
    }
    Ok(Shares {
        rule: division.rule,
        weights,
    })
}

/// What a job's run is expected to be like.
pub(super) fn expected(spec: &FederatedJobSpec) -> Expected {
    let save = spec.checkpoint.as_ref();
    Expected {
        runtime: spec.expected_runtime.map(|span| span.0),
        checkpoint_every: save.and_then(|save| save.every).map(|span| span.0),
    }
}

/// Something that a job names and that is not there.
pub(super) fn missing(kind: &str, name: &str, field: &str) -> Trouble {
    let message = format!("{field}: there is no {kind} {name:?}; create it or name another");
    Trouble {
        reason: Reason::Misconfigured,
        message,
    }
}

pub(super) fn cluster_facts(cluster: &MemberCluster) -> ClusterFacts {
    let spec = &cluster.spec;
    ClusterFacts {
        zone: spec.zone.clone(),
        provider: spec.provider.clone(),
        labels: cluster.metadata.labels.clone(),
        taints: spec.taints.clone(),
        data_sets: spec.data_sets.clone(),
    }
}

impl Model {
    /// Notes which gangs are of the jobs that the wishes of others name.
    pub(super) fn select(&self, snapshot: &mut Snapshot) {
        for selector in &mut snapshot.selectors {
            let is_meant = |gang: &GangId| {
                self.jobs.get(gang.job).is_some_and(|job| {
                    let labels = &job.marks.labels;
                    let mut wanted = selector.labels.iter();
                    job.namespace() == selector.namespace
                        && wanted.all(|(key, value)| labels.get(key) == Some(value))
                })
            };
            let held = (0..).map(HeldIx).zip(&snapshot.held);
            let held = held.filter(|(_, row)| is_meant(&row.gang));
            let held = held.map(|(ix, _)| ix).collect();
            let waiting = (0..).map(WaitingIx).zip(&snapshot.waiting);
            let waiting = waiting.filter(|(_, row)| is_meant(&row.gang));
            let waiting = waiting.map(|(ix, _)| ix).collect();
            (selector.held, selector.waiting) = (held, waiting);
        }
    }

    /// True when something is placed that goes back to an earlier group of its job as soon as that
    /// has room.
    pub(crate) fn may_give_back(&self) -> bool {
        let jobs = self.placements.keys().map(|gang| gang.job);
        jobs.filter_map(|job| self.jobs.get(job))
            .any(|job| job.spec().placement.overflow == Overflow::Return)
    }

    /// Placements that run in a later group of their job and want to go back to an earlier one.
    pub(super) fn overflowed(
        &self,
        ordinals: &Ordinals,
        choices: &mut Choices,
        snapshot: &Snapshot,
        now: UnixMillis,
    ) -> Vec<Overflowed> {
        let mut rows = Vec::new();
        for (held, ix) in snapshot.held.iter().zip((0..).map(HeldIx)) {
            let job = self.job(held.gang.job);
            let wishes = |job: &&Job| job.spec().placement.overflow == Overflow::Return;
            let Some((job, row)) = job.filter(wishes).zip(self.placements.get(&held.gang)) else {
                continue;
            };
            if row.record.state != State::Running || row.record.origin.is_some() {
                continue;
            }
            // A job in trouble stays where it is.
            if let Ok(gang) = self.waiting_row(ordinals, choices, job, held.gang, now) {
                let shape = row.record.shape();
                rows.push(Overflowed {
                    held: ix,
                    gang: Waiting {
                        shape: shape.into(),
                        ..gang
                    },
                });
            }
        }
        rows
    }
}

impl Catalog {
    /// What is known of each region, by name.
    pub(super) fn region_facts(&self) -> Vec<RegionFacts> {
        let egress = |from: &str| {
            let own = self.regions.get(from);
            let own = own.and_then(|region| region.value.spec.egress_price_per_gb);
            let book = self.prices();
            let price = |to: &String| {
                let named = book.and_then(|book| book.egress(from, to));
                named.or(own.map(|price| price.0))
            };
            self.regions.keys().map(price).collect()
        };
        let facts = self.regions.iter().map(|(name, region)| RegionFacts {
            jurisdiction: region.value.spec.jurisdiction.clone(),
            provider: region.value.spec.provider.clone(),
            labels: region.value.metadata.labels.clone(),
            data_sets: region.value.spec.data_sets.clone(),
            egress: egress(name),
        });
        facts.collect()
    }

    /// What is known of a pool of `flavor` in `cluster`, declared or not.
    pub(super) fn pool_facts(
        &self,
        declared: Option<&GPUPool>,
        cluster: &str,
        flavor: &str,
    ) -> PoolFacts {
        let capacity = declared.map(|pool| pool.spec.capacity).unwrap_or_default();
        let region = self
            .clusters
            .get(cluster)
            .map(|row| row.value.spec.region.as_str());
        let price = |capacity| self.gpu_hour(flavor, region.unwrap_or_default(), capacity);
        let (own, borrowed) = match capacity {
            PoolCapacity::Owned => (CapacityType::Nominal, CapacityType::Borrowed),
            PoolCapacity::Reserved => (CapacityType::Reserved, CapacityType::Reserved),
            PoolCapacity::Spot => (CapacityType::Spot, CapacityType::Spot),
        };
        PoolFacts {
            capacity,
            fabric: declared.and_then(|pool| pool.spec.fabric),
            price: price(own),
            borrowed_price: price(borrowed),
        }
    }

    /// Price of a card-hour: the book's for this region, else the region's own, else the book's.
    fn gpu_hour(&self, flavor: &str, region: &str, capacity: CapacityType) -> Option<MicroMoney> {
        let book = self.prices();
        let by_book = book.and_then(|book| book.gpu_hour(flavor, region, capacity));
        if book.is_some_and(|book| book.names_region(flavor, region)) {
            return by_book;
        }
        let own = self.regions.get(region);
        let own = own.and_then(|region| region.value.spec.gpu_hour_price.get(flavor));
        own.map(|price| price.0).or(by_book)
    }
}
