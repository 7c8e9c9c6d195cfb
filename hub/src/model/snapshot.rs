//! From the model to a snapshot: rows and ordinals for one decision.
//!
//! Owns the translation of names to ordinals and back, and the subtraction of what is decided but
//! not yet shown by a digest: nothing twice, nothing forgotten. Reads only.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meridian_api::ids::{GangId, Uid};
use meridian_api::kinds::FederatedJob;
use meridian_api::kinds::tenant_quota::TenantQuotaSpec;
use meridian_api::quantity::{REFERENCE_WORTH, Time};
use meridian_api::reasons::Reason;
use meridian_api::units::{BootMillis, UnixMillis};
use meridian_policies::model::{
    Budget, Class, ClassIx, ClassRule, Cluster, ClusterIx, Contact, Flavor, FlavorIx, Held,
    LedgerRow, Pool, PoolIx, RegionIx, Shape, Snapshot, Tenant, TenantIx,
};
use meridian_policies::quota::rows_of;
use meridian_policies::shapes;

use super::choices::{Choices, cluster_facts, missing};
use super::fleet::ContactTerms;
use super::{Catalog, ClusterState, HostId, Hosts, Job, Model, Trouble, Versioned};
use crate::placement::StoredRow;
use crate::progress::Tried;

/// A UID that no stored job has: theirs are of version 4, this one is of none.
const HYPOTHETICAL: Uid = Uid(1);

/// The circumstances of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Situation {
    /// Wall clock.
    pub(crate) now: UnixMillis,
    /// Boot clock, for contact.
    pub(crate) boot: BootMillis,
    /// For choices that are free.
    pub(crate) seed: u64,
    /// When silence becomes suspicion.
    pub(crate) terms: ContactTerms,
}

/// A snapshot and what could not be put into it.
#[derive(Debug, Default)]
pub(crate) struct Labelled {
    /// For the decision.
    pub(crate) snapshot: Snapshot,
    /// Waiting gangs of jobs that name what is not there.
    pub(crate) troubled: Vec<(GangId, Trouble)>,
    /// The snapshot's hosts, as their agents number them.
    pub(crate) hosts: Vec<HostId>,
}

/// Names to ordinals.
#[derive(Default)]
pub(super) struct Ordinals {
    pub(super) flavors: BTreeMap<String, FlavorIx>,
    pub(super) classes: BTreeMap<String, ClassIx>,
    pub(super) tenants: BTreeMap<String, TenantIx>,
    pub(super) regions: BTreeMap<String, RegionIx>,
    pub(super) clusters: BTreeMap<String, ClusterIx>,
}

impl Ordinals {
    /// A region that a field of `spec.placement` names.
    pub(super) fn region(&self, name: &str, field: &str) -> Result<RegionIx, Trouble> {
        let known = self.regions.get(name).copied();
        known.ok_or_else(|| missing("Region", name, &format!("spec.placement.{field}")))
    }

    /// A cluster that a field of `spec.placement` names.
    pub(super) fn cluster(&self, name: &str, field: &str) -> Result<ClusterIx, Trouble> {
        let known = self.clusters.get(name).copied();
        known.ok_or_else(|| missing("MemberCluster", name, &format!("spec.placement.{field}")))
    }
}

fn number<'a, I>(
    names: impl Iterator<Item = &'a String>,
    ordinal: fn(u32) -> I,
) -> BTreeMap<String, I> {
    names
        .zip(0_u32..)
        .map(|(name, position)| (name.clone(), ordinal(position)))
        .collect()
}

impl Model {
    /// Everything a decision may look at, frozen.
    #[must_use]
    pub(crate) fn snapshot(&self, situation: Situation) -> Labelled {
        self.snapshot_under(&self.catalog, situation)
    }

    /// The same, as if `catalog` had the tenants and quotas.
    #[must_use]
    pub(crate) fn snapshot_under(&self, catalog: &Catalog, situation: Situation) -> Labelled {
        let ordinals = self.ordinals(catalog);
        let mut snapshot = Snapshot {
            revision: self.revision,
            now: situation.now,
            seed: situation.seed,
            store_generation: self.store_generation,
            policy_head: self.policy_head,
            flavors: self.flavor_rows(&ordinals),
            regions: ordinals.regions.keys().cloned().collect(),
            region_facts: self.catalog.region_facts(),
            classes: self.class_rows(situation.now),
            tenants: self.tenant_rows(catalog, &ordinals, situation.now),
            clusters: self.cluster_rows(&ordinals, situation),
            ..Snapshot::default()
        };
        snapshot.pools = self.pool_rows(&ordinals);
        let hosts = self.hosts(&ordinals.clusters, &snapshot.pools);
        snapshot.held = self.held_rows(&ordinals, &snapshot.pools, &hosts);
        snapshot.holds = self.hold_rows(&ordinals, &snapshot, &hosts);
        self.lost_work(&ordinals, &mut snapshot.tenants, situation.now);
        snapshot.reserved = self.reserved_rows(&ordinals, &snapshot.pools, situation.now);
        let mut troubled = Vec::new();
        snapshot.waiting.reserve_exact(self.waiting().len());
        let mut choices = Choices::new(Vec::new(), Vec::new());
        for (job, gang) in self.queue() {
            if let Some(tried) = job.progress().tried.get(&gang.index)
                && tried.not_before > situation.now
            {
                troubled.push((gang, pausing(job, tried, situation.now)));
                continue;
            }
            let left_out = self.left_out(gang.job);
            if let Some((why, until)) = left_out.filter(|(_, until)| *until > situation.now) {
                troubled.push((gang, undecided(why, until)));
                continue;
            }
            match self.waiting_row(&ordinals, &mut choices, job, gang, situation.now) {
                Ok(row) => snapshot.waiting.push(row),
                Err(trouble) => troubled.push((gang, trouble)),
            }
        }
        snapshot.overflowed = self.overflowed(&ordinals, &mut choices, &snapshot, situation.now);
        snapshot.movable = self.movable(&ordinals, &mut choices, &snapshot, situation.now);
        (snapshot.choices, snapshot.selectors) = choices.into_rows();
        self.select(&mut snapshot);
        snapshot.hosts = hosts.rows;
        Labelled {
            snapshot,
            troubled,
            hosts: hosts.ids,
        }
    }

    /// Gangs that wait, the oldest first. Sorted before their rows are made, which are larger.
    fn queue(&self) -> impl Iterator<Item = (&Job, GangId)> {
        let waiting = self.waiting();
        let keyed = waiting
            .iter()
            .map(|(job, gang)| (job.submitted(), gang, job));
        let mut queue: Vec<(UnixMillis, GangId, &Job)> = Vec::with_capacity(waiting.len());
        queue.extend(keyed);
        queue.sort_unstable_by_key(|(submitted, gang, _)| (*submitted, *gang));
        queue.into_iter().map(|(_, gang, job)| (job, gang))
    }

    /// When the first gang that rests may be tried again or must leave a tainted cluster, a
    /// reservation begins or ends, or a class's windows open or close.
    pub(crate) fn next_try(&self, now: UnixMillis) -> Option<UnixMillis> {
        let resting = self.resting.iter().filter_map(|uid| self.job(*uid));
        let rests = resting.flat_map(|job| {
            let progress = job.progress();
            let tried = progress.tried.iter().filter_map(|(index, tried)| {
                let gang = GangId {
                    job: job.uid,
                    index: *index,
                };
                self.waiting().contains(gang).then_some(tried.not_before)
            });
            let waits = self.waiting().has_job(job.uid);
            let looks = progress.lacking.values().filter(move |_| waits);
            tried.chain(looks.map(|lack| lack.until))
        });
        let left_out = self.left_out.iter();
        let left_out = left_out.filter(|(uid, _)| self.waiting().has_job(**uid));
        let next = rests.chain(left_out.map(|(_, it)| it.until));
        let next = next.filter(|at| *at > now);
        let edges = self.next_reservation_edge(now);
        let edges = edges.into_iter().chain(self.next_window_edge(now));
        next.chain(self.next_leave(now)).chain(edges).min()
    }

    /// The snapshot in which `job` had been submitted just now, and the UID it has there.
    pub(crate) fn hypothetical(
        &self,
        situation: Situation,
        job: &FederatedJob,
    ) -> Result<(Labelled, Uid), Trouble> {
        let mut job = job.clone();
        job.metadata.uid = Some(HYPOTHETICAL);
        job.metadata.creation_timestamp = Some(Time(situation.now));
        let job = Job::new(job, self.revision);
        let mut labelled = self.snapshot(situation);
        let ordinals = self.ordinals(&self.catalog);
        let snapshot = &mut labelled.snapshot;
        let selectors = std::mem::take(&mut snapshot.selectors);
        let mut choices = Choices::new(std::mem::take(&mut snapshot.choices), selectors);
        for index in 0..job.gang_count() {
            let gang = GangId {
                job: HYPOTHETICAL,
                index,
            };
            labelled.snapshot.waiting.push(self.waiting_row(
                &ordinals,
                &mut choices,
                &job,
                gang,
                situation.now,
            )?);
        }
        let snapshot = &mut labelled.snapshot;
        (snapshot.choices, snapshot.selectors) = choices.into_rows();
        self.select(snapshot);
        Ok((labelled, HYPOTHETICAL))
    }

    fn ordinals(&self, catalog: &Catalog) -> Ordinals {
        let mut flavors: BTreeMap<String, FlavorIx> = BTreeMap::new();
        let of_pools = self
            .fleet
            .clusters
            .values()
            .flat_map(|cluster| cluster.pools.values());
        let of_rows = self.placements.values().map(|row| &*row.record.flavor);
        let quotas = catalog.quotas.values();
        let of_quotas = quotas.flat_map(|quota| &quota.value.spec.resources);
        for name in of_pools
            .map(|pool| pool.flavor.as_str())
            .chain(of_rows)
            .chain(of_quotas.filter_map(|row| row.flavor.as_deref()))
        {
            if !flavors.contains_key(name) {
                flavors.insert(name.to_owned(), FlavorIx(0));
            }
        }
        Ordinals {
            flavors: number(flavors.keys(), FlavorIx),
            classes: number(self.catalog.classes.keys(), ClassIx),
            tenants: number(catalog.tenants.keys(), TenantIx),
            regions: number(self.catalog.regions.keys(), RegionIx),
            clusters: number(self.catalog.clusters.keys(), ClusterIx),
        }
    }

    fn flavor_rows(&self, ordinals: &Ordinals) -> Vec<Flavor> {
        let prices = self.catalog.prices();
        let row = |name: &String| Flavor {
            name: name.clone(),
            worth: prices
                .map_or(REFERENCE_WORTH, |book| book.worth(name))
                .0
                .into(),
        };
        ordinals.flavors.keys().map(row).collect()
    }

    fn class_rows(&self, now: UnixMillis) -> Vec<Class> {
        let is_open = |name: &str| {
            let window = self.catalog.windows.get(name);
            window.is_some_and(|window| window.value.spec.is_open(now))
        };
        let row = |(name, class): (&String, &super::catalog::Versioned<_>)| {
            let class: &meridian_api::kinds::WorkloadClass = &class.value;
            Class {
                name: name.clone(),
                priority: class.spec.priority,
                ignores_slots: class.spec.preemption.is_protected(),
                rule: ClassRule::new(&class.spec, is_open),
            }
        };
        self.catalog.classes.iter().map(row).collect()
    }

    fn tenant_rows(&self, catalog: &Catalog, ordinals: &Ordinals, now: UnixMillis) -> Vec<Tenant> {
        let spent = self.spent(now);
        let quotas = catalog.quotas.values().map(|quota| &quota.value.spec);
        let quotas: BTreeMap<&str, &TenantQuotaSpec> =
            quotas.map(|spec| (spec.tenant.as_str(), spec)).collect();
        let row = |(name, tenant): (&String, &Versioned<_>)| {
            let tenant: &meridian_api::kinds::Tenant = &tenant.value;
            let parent = tenant.spec.parent.as_ref();
            let quota = quotas.get(name.as_str()).copied();
            let limits = quota.map(|quota| quota.limits).unwrap_or_default();
            Tenant {
                name: name.clone(),
                parent: parent.and_then(|parent| ordinals.tenants.get(parent).copied()),
                quotas: quota.map_or_else(Vec::new, |quota| {
                    let flavor = |name: &str| ordinals.flavors.get(name).copied();
                    rows_of(quota, flavor, |name| ordinals.regions.get(name).copied())
                }),
                gpus_per_job: limits.gpus_per_job.map(|limit| limit.0),
                running_jobs: limits.running_jobs,
                budget: catalog.budget(name).map(|budget| Budget {
                    spent: spent.get(name).copied().unwrap_or_default(),
                    limit: budget.monthly.0,
                    on_exhausted: budget.on_exhausted,
                }),
                weight: quota
                    .and_then(|quota| quota.fair_sharing)
                    .map_or(1, |it| it.weight),
                history: self.histories.average(name, now),
                lost: 0,
            }
        };
        catalog.tenants.iter().map(row).collect()
    }

    fn cluster_rows(&self, ordinals: &Ordinals, situation: Situation) -> Vec<Cluster> {
        let mut rows = Vec::with_capacity(self.catalog.clusters.len());
        for (name, cluster) in &self.catalog.clusters {
            let state = self.fleet.clusters.get(name);
            let contact = |state: &ClusterState| state.contact(situation.boot, situation.terms);
            let region = ordinals.regions.get(&cluster.value.spec.region).copied();
            rows.push(Cluster {
                name: name.clone(),
                // Admission lets no cluster in without its region, nor a region go before it.
                region: region.unwrap_or_default(),
                contact: state.map_or(Contact::Lost, contact),
                cordoned: !cluster.value.spec.is_open() || region.is_none(),
                facts: cluster_facts(&cluster.value),
            });
        }
        rows
    }

    fn pool_rows(&self, ordinals: &Ordinals) -> Vec<Pool> {
        let mut rows = Vec::new();
        let mut unlisted = self.unlisted();
        for (cluster, ordinal) in &ordinals.clusters {
            let Some(state) = self.fleet.clusters.get(cluster) else {
                continue;
            };
            for (name, pool) in &state.pools {
                let declared = self
                    .catalog
                    .pools
                    .values()
                    .map(|pool| &pool.value)
                    .find(|object| {
                        let reported = object.spec.pool.as_ref().unwrap_or(&object.metadata.name);
                        object.spec.cluster == *cluster && reported == name
                    });
                let classes = declared.map_or(&[][..], |pool| &pool.spec.classes);
                let classes = classes.iter().filter_map(|name| ordinals.classes.get(name));
                rows.push(Pool {
                    cluster: *ordinal,
                    name: name.clone(),
                    flavor: ordinals
                        .flavors
                        .get(&pool.flavor)
                        .copied()
                        .unwrap_or_default(),
                    classes: classes.copied().collect(),
                    levels: pool.levels.clone(),
                    facts: self.catalog.pool_facts(declared, cluster, &pool.flavor),
                    shapes: self.room(
                        pool,
                        unlisted
                            .remove(&(cluster.as_str(), name.as_str()))
                            .unwrap_or_default(),
                    ),
                });
            }
        }
        rows
    }

    /// Placements whose devices their cluster's newest digest does not include yet, by cluster
    /// and pool.
    fn unlisted(&self) -> BTreeMap<(&str, &str), Vec<GangId>> {
        let mut unlisted: BTreeMap<(&str, &str), Vec<GangId>> = BTreeMap::new();
        for (gang, row) in &self.placements {
            let record = &row.record;
            let cluster = self.fleet.clusters.get(&*record.cluster);
            let shown = cluster
                .and_then(|cluster| cluster.last_seen(*gang, record.epoch))
                .is_some_and(|seen| seen.epoch == record.epoch && (seen.holds || seen.is_over()));
            if !shown {
                unlisted
                    .entry((&record.cluster, &record.pool))
                    .or_default()
                    .push(*gang);
            }
        }
        unlisted
    }

    fn room(&self, pool: &super::fleet::PoolState, unlisted: Vec<GangId>) -> Vec<Shape> {
        let mut rows = pool.shapes.clone();
        // Roles, by address, that take nothing off these rows, so nothing the next time, either:
        // after a restart a full pool has a thousand alike gangs of which no agent has told yet.
        let mut idle: BTreeSet<usize> = BTreeSet::new();
        for gang in unlisted {
            let Some(row) = self.placements.get(&gang) else {
                continue;
            };
            let address = Arc::as_ptr(&row.record.roles).addr();
            if idle.contains(&address) {
                continue;
            }
            let (shape, pods) = (row.record.shape(), row.record.pods());
            let left = shapes::subtract_unlisted(&pool.levels, &rows, &shape, &pods).shapes;
            if left == rows {
                idle.insert(address);
            } else {
                (rows, idle) = (left, BTreeSet::new());
            }
        }
        rows
    }

    fn held_rows(&self, ordinals: &Ordinals, pools: &[Pool], hosts: &Hosts) -> Vec<Held> {
        let of = pools.iter().map(|pool| (pool.cluster, pool.name.as_str()));
        let pools: BTreeMap<(ClusterIx, &str), PoolIx> = of.zip((0..).map(PoolIx)).collect();
        let mut rows = Vec::with_capacity(self.placements.len());
        rows.extend(self.placements.values().filter_map(|row| {
            let record = &row.record;
            // A tenant or class cannot go while it holds work: admission sees to it.
            let cluster = *ordinals.clusters.get(&*record.cluster)?;
            Some(Held {
                gang: record.gang,
                epoch: record.epoch,
                tenant: *ordinals.tenants.get(&*record.tenant)?,
                class: *ordinals.classes.get(&*record.class)?,
                cluster,
                flavor: *ordinals.flavors.get(&*record.flavor)?,
                pool: pools.get(&(cluster, &*record.pool)).copied(),
                ends: record.ends(),
                resources: record.resources(),
                pods: record
                    .pods()
                    .iter()
                    .fold(0, |sum, pods| sum.saturating_add(*pods)),
                rows: ledger_rows(ordinals, &record.ledger),
                since: record.decided,
                standing: self.standing(hosts, cluster, record),
            })
        }));
        rows
    }
}

/// Ledger rows as written down, in ordinals.
pub(super) fn ledger_rows(ordinals: &Ordinals, rows: &[StoredRow]) -> Vec<LedgerRow> {
    let lender = |name: &String| ordinals.tenants.get(name).copied();
    let row = |row: &StoredRow| LedgerRow {
        role: row.role,
        lender: row.lender.as_ref().and_then(lender),
        gpus: row.gpus,
    };
    rows.iter().map(row).collect()
}

/// A gang that failed to start, or ran and failed, rests before its next try.
fn undecided(why: &str, until: UnixMillis) -> Trouble {
    let until = Time(until);
    Trouble {
        reason: Reason::PendingEvaluation,
        message: format!(
            "a fault of the hub, to be reported: no sound decision is found with this job ({why}); \
             the others go on without it, and it is tried again at {until}, or when its spec changes"
        ),
    }
}

fn pausing(job: &Job, tried: &Tried, now: UnixMillis) -> Trouble {
    let seconds = tried.not_before.since(now).0.div_ceil(1000);
    let why = match job.progress().last_failure.as_str() {
        "" => String::new(),
        why => format!(" and ended, lately because: {why}"),
    };
    let message = format!(
        "placed {} times before{why}; tried again in {seconds} s",
        tried.starts
    );
    Trouble {
        reason: Reason::PendingEvaluation,
        message,
    }
}

#[cfg(test)]
#[path = "snapshot_tests.rs"]
mod tests;
