//! Views: status of regions, tenants, quotas and pools, computed from the model.
//!
//! Owns sums that would cost a write for every gang that starts: they are made once per round and
//! added when an object is read. Empty on a follower. Never stored, so they cannot disagree with
//! what they sum.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use meridian_api::calendar::month_start;
use meridian_api::kinds::gpu_pool::{GPUPoolStatus, PoolGpus};
use meridian_api::kinds::region::{ClusterCounts, GpuCounts, RegionStatus};
use meridian_api::kinds::tenant::{Budget, BudgetStatus, TenantGpus, TenantStatus};
use meridian_api::kinds::tenant_quota::TenantQuotaStatus;
use meridian_api::quantity::{GpuQuantity, Money, Time};
use meridian_api::units::{MicroMoney, MilliGpus, UnixMillis};
use meridian_policies::model::Contact;
use meridian_policies::shapes;
use serde::Serialize;
use serde_json::Value;

use crate::model::{Model, PoolState, Situation};

/// The newest views, for readers on any task.
#[derive(Clone, Debug, Default)]
pub(crate) struct Views(Arc<RwLock<Arc<Tables>>>);

/// Status of each object, by plural and name.
type Tables = BTreeMap<&'static str, BTreeMap<String, Value>>;

impl Views {
    /// Makes them anew.
    pub(crate) fn publish(&self, model: &Model, situation: Situation) {
        let tables: Tables = BTreeMap::from([
            ("regions", values(regions(model, situation))),
            ("tenants", values(tenants(model, situation.now))),
            ("tenantquotas", values(quotas(model))),
            ("gpupools", values(pools(model))),
            (
                "reservations",
                values(model.reservation_statuses(situation)),
            ),
            ("timewindows", values(model.window_statuses(situation.now))),
        ]);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(tables);
    }

    /// Forgets them: this replica does not lead.
    pub(crate) fn clear(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::default();
    }

    /// Adds the status of an object that is being read. What is stored (conditions, by whoever
    /// wrote them) stays.
    pub(crate) fn decorate(&self, plural: &str, name: &str, object: &mut Value) {
        let tables = Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner));
        let Some(view) = tables.get(plural).and_then(|table| table.get(name)) else {
            return;
        };
        let (Some(object), Some(view)) = (object.as_object_mut(), view.as_object()) else {
            return;
        };
        let status = object
            .entry("status")
            .or_insert_with(|| Value::Object(serde_json::Map::new()));
        if let Some(status) = status.as_object_mut() {
            status.extend(
                view.iter()
                    .map(|(field, value)| (field.clone(), value.clone())),
            );
        }
    }
}

fn values<T: Serialize>(statuses: BTreeMap<String, T>) -> BTreeMap<String, Value> {
    let value = |(name, status)| (name, serde_json::to_value(status).unwrap_or_default());
    statuses.into_iter().map(value).collect()
}

fn add(sum: &mut GpuQuantity, amount: MilliGpus) {
    sum.0 = sum.0.saturating_add(amount);
}

fn regions(model: &Model, situation: Situation) -> BTreeMap<String, RegionStatus> {
    let mut regions: BTreeMap<String, RegionStatus> = model
        .catalog
        .regions
        .keys()
        .map(|name| (name.clone(), RegionStatus::default()))
        .collect();
    for (name, cluster) in &model.catalog.clusters {
        let Some(region) = regions.get_mut(&cluster.value.spec.region) else {
            continue;
        };
        let ClusterCounts { ready, total } = &mut region.clusters;
        *total += 1;
        let Some(state) = model.fleet.clusters.get(name) else {
            continue;
        };
        let heard = state.contact(situation.boot, situation.terms) == Contact::Ready;
        *ready += u32::from(heard && cluster.value.spec.is_open());
        let (all, free, out) = state.gpus();
        let GpuCounts {
            total: sum,
            free: sum_free,
            out: sum_out,
        } = &mut region.gpus;
        add(sum, all);
        add(sum_free, free);
        add(sum_out, out);
    }
    regions
}

/// A tenant counts everything below it.
fn tenants(model: &Model, now: UnixMillis) -> BTreeMap<String, TenantStatus> {
    let spent = model.spent(now);
    let names = model.catalog.tenants.keys();
    let mut tenants: BTreeMap<String, TenantStatus> = names
        .map(|name| {
            let spent = spent.get(name).copied().unwrap_or_default();
            let budget = model.catalog.budget(name);
            let status = TenantStatus {
                budget: budget.map(|budget| BudgetStatus {
                    alerted_at_percent: model.histories.alerted(name, now),
                    ..budget_status(budget, spent, now)
                }),
                ..TenantStatus::default()
            };
            (name.clone(), status)
        })
        .collect();
    for quota in model.catalog.quotas.values() {
        let spec = &quota.value.spec;
        let Some(tenant) = tenants.get_mut(&spec.tenant) else {
            continue;
        };
        spec.resources
            .iter()
            .for_each(|row| add(&mut tenant.gpus.nominal, row.nominal.0));
    }
    for (own, load) in loads(model) {
        for name in model.catalog.upward(own) {
            if let Some(tenant) = tenants.get_mut(name) {
                add(&mut tenant.gpus.used, load.used);
                add(&mut tenant.gpus.pending, load.pending);
                tenant.running_jobs += load.running;
                tenant.queued_jobs += load.queued;
            }
        }
    }
    for tenant in tenants.values_mut() {
        let TenantGpus {
            nominal,
            used,
            borrowed,
            ..
        } = &mut tenant.gpus;
        borrowed.0 = used.0.saturating_sub(nominal.0);
    }
    tenants
}

fn budget_status(budget: &Budget, spent: MicroMoney, now: UnixMillis) -> BudgetStatus {
    BudgetStatus {
        month: Time(month_start(now)),
        spent: Money(spent),
        monthly: budget.monthly,
        currency: budget.currency.clone(),
        exhausted: spent >= budget.monthly.0,
        alerted_at_percent: None,
    }
}

/// What a tenant's own jobs that are not over do.
#[derive(Default)]
struct Load {
    used: MilliGpus,
    pending: MilliGpus,
    running: u32,
    queued: u32,
}

/// Jobs that hold or wait for GPUs, by tenant. Those that are over, the most by far, are not
/// walked.
fn loads(model: &Model) -> BTreeMap<&str, Load> {
    let mut loads: BTreeMap<&str, Load> = BTreeMap::new();
    // Gangs of a job come one after another.
    let mut last = None;
    for row in model.placements() {
        let record = &row.record;
        let load = loads.entry(&record.tenant).or_default();
        load.used = load.used.saturating_add(record.gpus);
        let is_next = last.replace(record.gang.job) != Some(record.gang.job);
        if let Some(job) = model.job(record.gang.job).filter(|_| is_next) {
            loads.entry(job.tenant()).or_default().running += 1;
        }
    }
    let mut last = None;
    for (job, gang) in model.waiting().iter() {
        let row = job.gang(gang.index);
        let gpus = row.map_or(MilliGpus::ZERO, |row| row.shape.gpus(&row.shape.most()));
        let load = loads.entry(job.tenant()).or_default();
        load.pending = load.pending.saturating_add(gpus);
        let is_next = last.replace(job.uid) != Some(job.uid);
        let runs = || model.placements_of(job.uid).next().is_some();
        load.queued += u32::from(is_next && !runs());
    }
    loads
}

fn quotas(model: &Model) -> BTreeMap<String, TenantQuotaStatus> {
    let mut used: BTreeMap<String, BTreeMap<String, GpuQuantity>> = BTreeMap::new();
    for row in model.placements() {
        for name in model.catalog.upward(&row.record.tenant) {
            let flavors = used.entry(name.to_owned()).or_default();
            add(
                flavors.entry(row.record.flavor.to_string()).or_default(),
                row.record.gpus,
            );
        }
    }
    let status = |(name, quota): (&String, &crate::model::Versioned<_>)| {
        let quota: &meridian_api::kinds::TenantQuota = &quota.value;
        let by_flavor = used.get(&quota.spec.tenant).cloned().unwrap_or_default();
        let mut sum = GpuQuantity::default();
        for amount in by_flavor.values() {
            add(&mut sum, amount.0);
        }
        let status = TenantQuotaStatus {
            used: sum,
            used_by_flavor: by_flavor,
            ..Default::default()
        };
        (name.clone(), status)
    };
    model.catalog.quotas.iter().map(status).collect()
}

fn pools(model: &Model) -> BTreeMap<String, GPUPoolStatus> {
    let status = |(name, pool): (&String, &crate::model::Versioned<_>)| {
        let pool: &meridian_api::kinds::GPUPool = &pool.value;
        let reported = pool.spec.pool.as_ref().unwrap_or(name);
        let cluster = model.fleet.clusters.get(&pool.spec.cluster);
        let state = cluster.and_then(|cluster| cluster.pools.get(reported));
        (name.clone(), state.map(pool_status).unwrap_or_default())
    };
    model.catalog.pools.iter().map(status).collect()
}

fn pool_status(pool: &PoolState) -> GPUPoolStatus {
    let all = shapes::allocatable(&pool.shapes).gpus;
    let free = shapes::free(&pool.shapes).gpus;
    let gpus = PoolGpus {
        total: GpuQuantity(all.saturating_add(pool.out)),
        allocated: GpuQuantity(all.saturating_sub(free)),
        free: GpuQuantity(free),
        unhealthy: GpuQuantity(pool.out),
    };
    let host = pool
        .shapes
        .iter()
        .filter(|row| row.hosts > 0)
        .map(|row| row.free.gpus)
        .max();
    let mut largest = BTreeMap::from([("host".to_owned(), GpuQuantity(host.unwrap_or_default()))]);
    for (depth, level) in pool.levels.iter().enumerate() {
        largest.insert(level.clone(), GpuQuantity(largest_domain(pool, depth)));
    }
    GPUPoolStatus {
        gpus,
        largest_free_block: largest,
        findings: pool.findings.clone(),
        ..Default::default()
    }
}

fn largest_domain(pool: &PoolState, depth: usize) -> MilliGpus {
    let mut free: BTreeMap<&[String], MilliGpus> = BTreeMap::new();
    for row in &pool.shapes {
        let domain = row.domains.get(..=depth).unwrap_or_default();
        let gpus = row
            .free
            .gpus
            .checked_mul(u64::from(row.hosts))
            .unwrap_or(MilliGpus(u64::MAX));
        let sum = free.entry(domain).or_default();
        *sum = sum.saturating_add(gpus);
    }
    free.into_values().max().unwrap_or_default()
}
