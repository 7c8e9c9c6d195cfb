//! The quota ledger: what each tenant holds, and what it may still take.
//!
//! Owns the limits on GPUs and running jobs over the tenant tree, kept up to date while a round
//! places gangs. Never decides order, never knows what a GPU is worth.
//!
//! A quota row limits what its tenant holds with everything below it: at most
//! `min(nominal + borrowing limit, hard cap)`. What is borrowed is what siblings leave unused: the
//! row of the node above limits their sum; where it has no such row, the sum of the siblings'
//! own nominal does. Roots are siblings of each other.

use std::collections::BTreeSet;

use meridian_api::ids::Uid;
use meridian_api::units::MilliGpus;

use crate::model::{FlavorIx, Held, Quota, Snapshot, Tenant, TenantIx};

/// How far a tenant may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Only its own: nothing that others leave unused.
    Nominal,
    /// Its own and what it may borrow.
    Borrowing,
    /// As if nobody held anything: what it can ever get.
    Ever,
}

/// GPUs that a tenant may still take of a flavor, and which limit says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// How many.
    pub gpus: MilliGpus,
    /// The tightest limit; `None` when nothing limits it.
    pub bound: Option<Bound>,
}

/// A limit with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Whose row it is.
    pub tenant: TenantIx,
    /// Flavor of the row; `None` counts all.
    pub flavor: Option<FlavorIx>,
    /// True when it is the sum of the tenant and its siblings that is limited.
    pub siblings: bool,
    /// Held already.
    pub used: MilliGpus,
    /// The limit.
    pub limit: MilliGpus,
}

/// Use and limits of every tenant. Rows are flat: one per tenant and counted thing, which is
/// "all flavors" first and then each flavor.
#[derive(Clone, Debug)]
pub struct Ledger<'a> {
    tenants: &'a [Tenant],
    counted: usize,
    used: Vec<MilliGpus>,
    /// Sums over siblings that have a row: one line for the roots, then one per parent.
    siblings_used: Vec<MilliGpus>,
    siblings_nominal: Vec<MilliGpus>,
    running: Vec<u32>,
    /// Jobs that run, at each node that they count for.
    jobs: BTreeSet<(TenantIx, Uid)>,
}

impl<'a> Ledger<'a> {
    /// The ledger of what is held.
    #[must_use]
    pub fn new(snapshot: &'a Snapshot) -> Self {
        let tenants = snapshot.tenants.as_slice();
        let counted = snapshot.flavors.len() + 1;
        let mut ledger = Self {
            tenants,
            counted,
            used: vec![MilliGpus::ZERO; tenants.len() * counted],
            siblings_used: vec![MilliGpus::ZERO; (tenants.len() + 1) * counted],
            siblings_nominal: vec![MilliGpus::ZERO; (tenants.len() + 1) * counted],
            running: vec![0; tenants.len()],
            jobs: BTreeSet::new(),
        };
        for tenant in tenants {
            for quota in &tenant.quotas {
                let slot = ledger.siblings_slot(tenant, quota.flavor);
                let sum = &mut ledger.siblings_nominal[slot];
                *sum = sum.saturating_add(quota.nominal);
            }
        }
        for Held {
            tenant,
            flavor,
            gpus,
            gang,
            ..
        } in &snapshot.held
        {
            ledger.add(*tenant, *flavor, *gpus, gang.job);
        }
        ledger
    }

    /// Enters GPUs of `flavor` that `tenant` holds for a gang of `job`.
    pub fn add(&mut self, tenant: TenantIx, flavor: FlavorIx, gpus: MilliGpus, job: Uid) {
        let tenants = self.tenants;
        for (ix, node) in ancestry(tenants, tenant) {
            for counted in [None, Some(flavor)] {
                let slot = self.slot(ix, counted);
                self.used[slot] = self.used[slot].saturating_add(gpus);
                if row(node, counted).is_some() {
                    let slot = self.siblings_slot(node, counted);
                    self.siblings_used[slot] = self.siblings_used[slot].saturating_add(gpus);
                }
            }
            if self.jobs.insert((ix, job)) {
                self.running[ix.index()] = self.running[ix.index()].saturating_add(1);
            }
        }
    }

    /// What `tenant` may still take of `flavor` within `reach`.
    #[must_use]
    pub fn headroom(&self, tenant: TenantIx, flavor: FlavorIx, reach: Reach) -> Headroom {
        let mut tightest = Headroom {
            gpus: MilliGpus(u64::MAX),
            bound: None,
        };
        for (ix, node) in ancestry(self.tenants, tenant) {
            for quota in &node.quotas {
                if quota.flavor.is_some_and(|limited| limited != flavor) {
                    continue;
                }
                let own = self.own_bound(ix, quota, reach);
                let bounds = [Some(own), self.siblings_bound(ix, node, quota, reach)];
                for bound in bounds.into_iter().flatten() {
                    let gpus = bound.limit.saturating_sub(bound.used);
                    if tightest.bound.is_none() || gpus < tightest.gpus {
                        tightest = Headroom {
                            gpus,
                            bound: Some(bound),
                        };
                    }
                }
            }
        }
        tightest
    }

    fn own_bound(&self, ix: TenantIx, quota: &Quota, reach: Reach) -> Bound {
        let limit = match reach {
            Reach::Nominal => quota
                .nominal
                .min(quota.hard_cap.unwrap_or(MilliGpus(u64::MAX))),
            Reach::Borrowing | Reach::Ever => own_limit(quota),
        };
        let used = match reach {
            Reach::Ever => MilliGpus::ZERO,
            Reach::Nominal | Reach::Borrowing => self.used[self.slot(ix, quota.flavor)],
        };
        Bound {
            tenant: ix,
            flavor: quota.flavor,
            siblings: false,
            used,
            limit,
        }
    }

    /// The limit on the sum of siblings, where the node above sets none.
    fn siblings_bound(
        &self,
        ix: TenantIx,
        node: &Tenant,
        quota: &Quota,
        reach: Reach,
    ) -> Option<Bound> {
        let above = node
            .parent
            .and_then(|parent| self.tenants.get(parent.index()));
        if above.is_some_and(|parent| row(parent, quota.flavor).is_some()) {
            return None;
        }
        let slot = self.siblings_slot(node, quota.flavor);
        let used = match reach {
            Reach::Ever => MilliGpus::ZERO,
            Reach::Nominal | Reach::Borrowing => self.siblings_used[slot],
        };
        let limit = self.siblings_nominal[slot];
        Some(Bound {
            tenant: ix,
            flavor: quota.flavor,
            siblings: true,
            used,
            limit,
        })
    }

    /// The first tenant upward whose limit on running jobs keeps `job` from starting, with how
    /// many run and the limit. Further gangs of a job that runs already are not counted again.
    #[must_use]
    pub fn job_limit(&self, tenant: TenantIx, job: Uid) -> Option<(TenantIx, u32, u32)> {
        ancestry(self.tenants, tenant).find_map(|(ix, node)| {
            let (limit, running) = (node.running_jobs?, self.running[ix.index()]);
            let counted = self.jobs.contains(&(ix, job));
            (!counted && running >= limit).then_some((ix, running, limit))
        })
    }

    /// GPUs of `flavor` (all flavors for `None`) that `tenant` holds with everything below it.
    #[must_use]
    pub fn used(&self, tenant: TenantIx, flavor: Option<FlavorIx>) -> MilliGpus {
        self.used[self.slot(tenant, flavor)]
    }

    fn slot(&self, tenant: TenantIx, flavor: Option<FlavorIx>) -> usize {
        tenant.index() * self.counted + column(flavor)
    }

    fn siblings_slot(&self, node: &Tenant, flavor: Option<FlavorIx>) -> usize {
        let line = node.parent.map_or(0, |parent| parent.index() + 1);
        line * self.counted + column(flavor)
    }
}

const fn column(flavor: Option<FlavorIx>) -> usize {
    match flavor {
        None => 0,
        Some(flavor) => flavor.index() + 1,
    }
}

fn row(node: &Tenant, flavor: Option<FlavorIx>) -> Option<&Quota> {
    node.quotas.iter().find(|quota| quota.flavor == flavor)
}

/// Most that a row lets its tenant hold.
fn own_limit(quota: &Quota) -> MilliGpus {
    let borrowed = match quota.borrowing_limit {
        None => MilliGpus(u64::MAX),
        Some(limit) => quota.nominal.saturating_add(limit),
    };
    borrowed.min(quota.hard_cap.unwrap_or(MilliGpus(u64::MAX)))
}

/// The tenant and every node above it. Ends after as many nodes as there are, should the tree
/// bite its tail.
pub(crate) fn ancestry(
    tenants: &[Tenant],
    tenant: TenantIx,
) -> impl Iterator<Item = (TenantIx, &Tenant)> {
    let mut next = Some(tenant);
    let step = move || {
        let ix = next?;
        let node = tenants.get(ix.index())?;
        next = node.parent;
        Some((ix, node))
    };
    std::iter::from_fn(step).take(tenants.len())
}

/// The smallest limit upward on GPUs of one job.
pub(crate) fn gpus_per_job(tenants: &[Tenant], tenant: TenantIx) -> Option<(TenantIx, MilliGpus)> {
    ancestry(tenants, tenant)
        .filter_map(|(ix, node)| node.gpus_per_job.map(|limit| (ix, limit)))
        .min_by_key(|(_, limit)| *limit)
}
