//! Limits on what tenants submit: most jobs that wait, most GPUs of one job, most GPUs in all.
//!
//! Owns the counts that a new job is held against, on any replica. They are of the replica's newest
//! model, and what it has let in since is added: only what other replicas let in at the same moment
//! can go beyond a limit. Never stops anything: what is let in, decisions hold to quota.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use meridian_api::ids::{Revision, Uid};
use meridian_api::kinds::tenant_quota::QuotaRow;
use meridian_api::quantity::GpuQuantity;
use meridian_api::tree::MAX_TREE_DEPTH;
use meridian_api::units::MilliGpus;

use crate::model::Model;

/// The newest counts, for admission on any task.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limits(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    /// Policy head of all but the counts.
    head: Revision,
    parents: BTreeMap<String, String>,
    tenants: BTreeMap<String, Own>,
}

/// Limits of one tenant, over it and everything below.
#[derive(Clone, Copy, Debug, Default)]
struct Own {
    gpus_per_job: Option<MilliGpus>,
    /// Of all flavors and regions together.
    hard_cap: Option<MilliGpus>,
    /// The same, and what it has with what it may borrow.
    most: Option<MilliGpus>,
    queued_jobs: Option<u32>,
    /// Jobs that wait.
    queued: u32,
}

impl Own {
    const fn limits(&self) -> bool {
        self.gpus_per_job.is_some()
            || self.hard_cap.is_some()
            || self.most.is_some()
            || self.queued_jobs.is_some()
    }
}

/// A job goes beyond a limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Beyond {
    /// It asks for too much.
    #[error(
        "the job asks for {asks} GPUs; tenant {tenant} allows {most} in one job \
         (limits.gpusPerJob): ask for fewer, or have the limit raised"
    )]
    GpusPerJob {
        /// Whose limit.
        tenant: String,
        /// GPUs of the job at its largest.
        asks: GpuQuantity,
        /// The limit.
        most: GpuQuantity,
    },
    /// All of it together is more than may be held.
    #[error(
        "the service asks for {asks} GPUs in all; tenant {tenant} may hold {most} (hardCap): ask \
         for fewer replicas, or have the cap raised"
    )]
    HardCap {
        /// Whose cap.
        tenant: String,
        /// GPUs of all replicas.
        asks: GpuQuantity,
        /// The cap.
        most: GpuQuantity,
    },
    /// One gang of it is more than may ever be held.
    #[error(
        "the job needs {asks} GPUs at one time; tenant {tenant} may never hold more than {most}: ask \
         for fewer, or have its quota raised"
    )]
    AtOnce {
        /// Whose quota.
        tenant: String,
        /// GPUs of the largest gang at its smallest.
        asks: GpuQuantity,
        /// Its hard cap, or all that it has and may borrow.
        most: GpuQuantity,
    },
    /// Too many wait.
    #[error(
        "{queued} jobs of tenant {tenant} wait, and {most} may (limits.queuedJobs): submit again \
         when one has started, delete one, or have the limit raised"
    )]
    QueuedJobs {
        /// Whose limit.
        tenant: String,
        /// Jobs that wait.
        queued: u32,
        /// The limit.
        most: u32,
    },
}

impl Limits {
    /// Counts anew.
    pub(crate) fn look(&self, model: &Model) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if table.head != model.policy_head() {
            table.read(model);
        }
        if table.tenants.values().any(|own| own.queued_jobs.is_some()) {
            table.count(model);
        }
    }

    /// Refuses a job of `tenant` with so many GPUs that goes beyond a limit.
    pub(crate) fn gpus(&self, tenant: &str, asks: MilliGpus) -> Result<(), Beyond> {
        self.smallest(tenant, asks, |own| own.gpus_per_job)
            .map_or(Ok(()), |(tenant, asks, most)| {
                Err(Beyond::GpusPerJob { tenant, asks, most })
            })
    }

    /// Refuses work of `tenant` that could never run at once.
    pub(crate) fn all_gpus(&self, tenant: &str, asks: MilliGpus) -> Result<(), Beyond> {
        self.smallest(tenant, asks, |own| own.hard_cap)
            .map_or(Ok(()), |(tenant, asks, most)| {
                Err(Beyond::HardCap { tenant, asks, most })
            })
    }

    /// Refuses a gang of `tenant` that could never start.
    pub(crate) fn at_once(&self, tenant: &str, asks: MilliGpus) -> Result<(), Beyond> {
        self.smallest(tenant, asks, |own| own.most)
            .map_or(Ok(()), |(tenant, asks, most)| {
                Err(Beyond::AtOnce { tenant, asks, most })
            })
    }

    /// The smallest limit upward if `asks` is beyond it, and whose it is: raising another one would
    /// not help.
    fn smallest(
        &self,
        tenant: &str,
        asks: MilliGpus,
        limit: impl Fn(&Own) -> Option<MilliGpus>,
    ) -> Option<(String, GpuQuantity, GpuQuantity)> {
        let table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let limits = table.upward(tenant).filter_map(|name| {
            let most = table.tenants.get(name).and_then(&limit)?;
            Some((name, most))
        });
        let (tenant, most) = limits.min_by_key(|(_, most)| *most)?;
        (asks > most).then(|| (tenant.to_owned(), GpuQuantity(asks), GpuQuantity(most)))
    }

    /// Refuses one more job of `tenant` where too many wait. One that is let in counts from then
    /// on, until the model shows it; a rehearsal does not.
    pub(crate) fn one_more(&self, tenant: &str, is_rehearsal: bool) -> Result<(), Beyond> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for name in table.upward(tenant) {
            let own = table.tenants.get(name).copied().unwrap_or_default();
            if let Some(most) = own.queued_jobs.filter(|most| own.queued >= *most) {
                return Err(Beyond::QueuedJobs {
                    tenant: name.to_owned(),
                    queued: own.queued,
                    most,
                });
            }
        }
        if !is_rehearsal {
            table.add(tenant);
        }
        Ok(())
    }
}

/// What may ever be held by a row: its cap, or what it has and may borrow.
fn most(row: &QuotaRow) -> Option<MilliGpus> {
    let cap = row.hard_cap.map(|most| most.0);
    let borrows = row.borrowing_limit.map(|most| most.0);
    let own = borrows.map(|more| row.nominal.0.saturating_add(more));
    [cap, own].into_iter().flatten().min()
}

impl Table {
    fn read(&mut self, model: &Model) {
        *self = Self {
            head: model.policy_head(),
            ..Self::default()
        };
        for quota in model.catalog.quotas.values() {
            let spec = &quota.value.spec;
            let of_all = |row: &&QuotaRow| row.flavor.is_none() && row.region.is_none();
            let row = spec.resources.iter().find(of_all);
            let own = Own {
                gpus_per_job: spec.limits.gpus_per_job.map(|most| most.0),
                hard_cap: row.and_then(|row| row.hard_cap).map(|most| most.0),
                most: row.and_then(most),
                queued_jobs: spec.limits.queued_jobs,
                queued: 0,
            };
            self.tenants.insert(spec.tenant.clone(), own);
        }
        self.tenants.retain(|_, own| own.limits());
        // Where nobody limits anything nobody's parents are asked for.
        if self.tenants.is_empty() {
            return;
        }
        for (name, tenant) in &model.catalog.tenants {
            if let Some(parent) = &tenant.value.spec.parent {
                self.parents.insert(name.clone(), parent.clone());
            }
        }
    }

    /// Jobs of which a gang waits and none is placed.
    fn count(&mut self, model: &Model) {
        for own in self.tenants.values_mut() {
            own.queued = 0;
        }
        let placed: BTreeSet<Uid> = model.placements().map(|row| row.record.gang.job).collect();
        let waiting: BTreeSet<Uid> = model.waiting().iter().map(|(_, gang)| gang.job).collect();
        for job in waiting.difference(&placed) {
            if let Some(job) = model.job(*job) {
                self.add(job.tenant());
            }
        }
    }

    /// One job of the tenant waits, which counts for every one above it, too.
    fn add(&mut self, tenant: &str) {
        let names: Vec<String> = self.upward(tenant).map(str::to_owned).collect();
        for name in names {
            if let Some(own) = self.tenants.get_mut(&name) {
                own.queued = own.queued.saturating_add(1);
            }
        }
    }

    /// A tenant, then every one above it.
    fn upward<'a>(&'a self, tenant: &'a str) -> impl Iterator<Item = &'a str> {
        let above = |name: &&'a str| self.parents.get(*name).map(String::as_str);
        std::iter::successors(Some(tenant), above).take(MAX_TREE_DEPTH + 1)
    }
}
