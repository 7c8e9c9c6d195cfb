//! Shares: how much each tenant has of the fleet, by worth.
//!
//! Owns the dominant-resource share at every level of the tenant tree: of GPUs by worth, CPU and
//! memory, the largest counts, divided by the tenant's weight. Present use and history count
//! alike. What is placed counts at once, so a burst is charged as it is let in. Never orders.

use meridian_api::units::Resources;

use crate::history::use_of;
use crate::model::{FlavorIx, Snapshot, Tenant, TenantIx, Use};
use crate::present::Present;
use crate::quota::ancestry;
use crate::shapes;

/// A share in units of 2^-32 of the fleet for a tenant of weight 1.
pub(crate) type Share = u64;

/// Use of every tenant, alone and with everything below it.
pub(crate) struct Shares<'a> {
    tenants: &'a [Tenant],
    /// What the fleet has, twice: use is present and history together.
    totals: [u128; 3],
    alone: Vec<[u64; 3]>,
    with_below: Vec<[u64; 3]>,
    /// Shares of both, which are asked for far more often than they change.
    share_alone: Vec<Share>,
    share_of: Vec<Share>,
}

/// Shares apart from the tenants that they are about.
#[derive(Clone)]
pub(crate) struct Sums {
    totals: [u128; 3],
    alone: Vec<[u64; 3]>,
    with_below: Vec<[u64; 3]>,
    share_alone: Vec<Share>,
    share_of: Vec<Share>,
}

impl Sums {
    /// The shares again, of the tenants they were made for.
    pub(crate) fn of(self, tenants: &[Tenant]) -> Shares<'_> {
        Shares {
            tenants,
            totals: self.totals,
            alone: self.alone,
            with_below: self.with_below,
            share_alone: self.share_alone,
            share_of: self.share_of,
        }
    }
}

/// What the fleet has, twice: use is present and history together.
fn totals(snapshot: &Snapshot) -> [u128; 3] {
    let mut totals = [0_u128; 3];
    for pool in &snapshot.pools {
        let worth = snapshot.flavors[pool.flavor.index()].worth;
        let all = use_of(shapes::allocatable(&pool.shapes), worth);
        for (total, part) in totals.iter_mut().zip(all.0) {
            *total += 2 * u128::from(part);
        }
    }
    totals
}

/// What a placement adds to its tenant's share.
pub(crate) fn use_of_held(snapshot: &Snapshot, flavor: FlavorIx, what: Resources) -> Use {
    let worth = snapshot.flavors.get(flavor.index());
    use_of(what, worth.map_or(1000, |flavor| flavor.worth))
}

impl<'a> Shares<'a> {
    /// The same without the tenants.
    pub(crate) fn into_sums(self) -> Sums {
        Sums {
            totals: self.totals,
            alone: self.alone,
            with_below: self.with_below,
            share_alone: self.share_alone,
            share_of: self.share_of,
        }
    }

    /// Shares of a fleet that has another size, or of tenants that weigh something else.
    pub(crate) fn weigh_again(&mut self, snapshot: &Snapshot) {
        self.totals = totals(snapshot);
        for ix in (0..).map(TenantIx).take(self.tenants.len()) {
            self.refresh(ix);
        }
    }

    /// Shares of what is held, and was.
    pub(crate) fn new(snapshot: &'a Snapshot) -> Self {
        Self::of_present(snapshot, &Present::new(snapshot))
    }

    /// The same, when what is held is added up already.
    pub(crate) fn of_present(snapshot: &'a Snapshot, present: &Present) -> Self {
        let tenants = snapshot.tenants.as_slice();
        let mut shares = Self {
            tenants,
            totals: totals(snapshot),
            alone: vec![[0; 3]; tenants.len()],
            with_below: vec![[0; 3]; tenants.len()],
            share_alone: vec![0; tenants.len()],
            share_of: vec![0; tenants.len()],
        };
        for (tenant, ix) in tenants.iter().zip((0..).map(TenantIx)) {
            shares.add(ix, tenant.history, u64::saturating_add);
        }
        for group in present.groups() {
            shares.add(group.tenant, group.uses, u64::saturating_add);
        }
        for hold in &snapshot.holds {
            let uses = use_of_held(snapshot, hold.flavor, hold.resources);
            shares.add(hold.tenant, uses, u64::saturating_add);
        }
        for ix in (0..).map(TenantIx).take(tenants.len()) {
            shares.refresh(ix);
        }
        shares
    }

    /// Counts what a tenant has.
    pub(crate) fn charge(&mut self, tenant: TenantIx, has: Use) {
        self.change(tenant, has, u64::saturating_add);
    }

    /// Counts no more what a tenant had.
    pub(crate) fn discharge(&mut self, tenant: TenantIx, had: Use) {
        self.change(tenant, had, u64::saturating_sub);
    }

    fn change(&mut self, tenant: TenantIx, what: Use, by: fn(u64, u64) -> u64) {
        self.add(tenant, what, by);
        for (ix, _) in ancestry(self.tenants, tenant) {
            self.refresh(ix);
        }
    }

    fn refresh(&mut self, ix: TenantIx) {
        let at = ix.index();
        self.share_alone[at] = self.weigh(&self.alone[at], 1);
        let weight = self.tenants[at].weight;
        self.share_of[at] = self.weigh(&self.with_below[at], weight);
    }

    fn add(&mut self, tenant: TenantIx, what: Use, by: fn(u64, u64) -> u64) {
        let add = |sums: &mut [u64; 3]| {
            for (sum, part) in sums.iter_mut().zip(what.0) {
                *sum = by(*sum, part);
            }
        };
        if let Some(alone) = self.alone.get_mut(tenant.index()) {
            add(alone);
        }
        for (ix, _) in ancestry(self.tenants, tenant) {
            add(&mut self.with_below[ix.index()]);
        }
    }

    /// Share of a tenant with everything below it, among its siblings.
    pub(crate) fn of(&self, tenant: TenantIx) -> Share {
        self.share_of[tenant.index()]
    }

    /// Share of what stands at a tenant itself, among what is directly below it.
    pub(crate) fn alone(&self, tenant: TenantIx) -> Share {
        self.share_alone[tenant.index()]
    }

    fn weigh(&self, sums: &[u64; 3], weight: u32) -> Share {
        let parts = sums.iter().zip(self.totals);
        let parts = parts.filter(|(_, total)| *total > 0);
        let parts = parts.map(|(sum, total)| (u128::from(*sum) << 32) / total);
        let dominant = parts.max().unwrap_or(0) / u128::from(weight.max(1));
        Share::try_from(dominant).unwrap_or(Share::MAX)
    }
}
