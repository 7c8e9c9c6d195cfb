//! Named policies: classes, tenants, quotas, prices, regions, clusters and pools, as last written.
//!
//! Owns the cluster-scoped objects that decisions read. Never checks them: admission did.

use std::collections::BTreeMap;

use meridian_api::ids::Revision;
use meridian_api::kinds::price_book::PriceBookSpec;
use meridian_api::kinds::tenant::Budget;
use meridian_api::kinds::{
    GPUPool, MemberCluster, PriceBook, Region, Reservation, Tenant, TenantQuota, TimeWindow,
    WorkloadClass,
};
use meridian_api::tree::MAX_TREE_DEPTH;
use meridian_store::KeyValue;
use meridian_store::keys::ObjectKey;
use serde::de::DeserializeOwned;

/// An object and the revision of its spec.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Versioned<T> {
    /// What it says.
    pub(crate) value: T,
    /// Revision of its newest change.
    pub(crate) revision: Revision,
}

/// Objects of one kind by name.
pub(crate) type Table<T> = BTreeMap<String, Versioned<T>>;

/// Everything that is declared.
#[derive(Clone, Debug, Default)]
pub(crate) struct Catalog {
    /// Workload classes.
    pub(crate) classes: Table<WorkloadClass>,
    /// The tenant tree.
    pub(crate) tenants: Table<Tenant>,
    /// Quotas.
    pub(crate) quotas: Table<TenantQuota>,
    /// Regions.
    pub(crate) regions: Table<Region>,
    /// Member clusters.
    pub(crate) clusters: Table<MemberCluster>,
    /// GPU pools.
    pub(crate) pools: Table<GPUPool>,
    /// Price books: admission lets in one.
    pub(crate) price_books: Table<PriceBook>,
    /// Spans of days and clock times.
    pub(crate) windows: Table<TimeWindow>,
    /// Hosts that are a tenant's at set times.
    pub(crate) reservations: Table<Reservation>,
}

/// What kind of thing changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Changed {
    /// A member cluster was declared, edited or removed.
    Cluster(String),
    /// Something that decisions read.
    Policy,
}

impl Catalog {
    /// The price book in force.
    pub(crate) fn prices(&self) -> Option<&PriceBookSpec> {
        self.price_books
            .values()
            .next()
            .map(|book| &book.value.spec)
    }

    /// Puts an object in; `None` when it is of no kind that is kept here, or not newer.
    pub(crate) fn put(&mut self, object: &ObjectKey, entry: &KeyValue) -> Option<Changed> {
        let name = &object.name;
        match object.plural.as_str() {
            "workloadclasses" => put(&mut self.classes, name, entry).then_some(Changed::Policy),
            "tenants" => put(&mut self.tenants, name, entry).then_some(Changed::Policy),
            "tenantquotas" => put(&mut self.quotas, name, entry).then_some(Changed::Policy),
            "regions" => put(&mut self.regions, name, entry).then_some(Changed::Policy),
            "gpupools" => put(&mut self.pools, name, entry).then_some(Changed::Policy),
            "pricebooks" => put(&mut self.price_books, name, entry).then_some(Changed::Policy),
            "timewindows" => put(&mut self.windows, name, entry).then_some(Changed::Policy),
            "reservations" => put(&mut self.reservations, name, entry).then_some(Changed::Policy),
            "memberclusters" => {
                put(&mut self.clusters, name, entry).then(|| Changed::Cluster(name.clone()))
            }
            _ => None,
        }
    }

    /// Takes an object out.
    pub(crate) fn delete(&mut self, object: &ObjectKey, revision: Revision) -> Option<Changed> {
        let name = &object.name;
        match object.plural.as_str() {
            "workloadclasses" => delete(&mut self.classes, name, revision),
            "tenants" => delete(&mut self.tenants, name, revision),
            "tenantquotas" => delete(&mut self.quotas, name, revision),
            "regions" => delete(&mut self.regions, name, revision),
            "gpupools" => delete(&mut self.pools, name, revision),
            "pricebooks" => delete(&mut self.price_books, name, revision),
            "timewindows" => delete(&mut self.windows, name, revision),
            "reservations" => delete(&mut self.reservations, name, revision),
            "memberclusters" => {
                delete(&mut self.clusters, name, revision).map(|_| Changed::Cluster(name.clone()))
            }
            _ => None,
        }
    }
}

impl Catalog {
    /// A tenant, then every one above it.
    pub(crate) fn upward<'a>(&'a self, tenant: &'a str) -> impl Iterator<Item = &'a str> {
        let above = |name: &&'a str| {
            let tenant = self.tenants.get(*name)?;
            tenant.value.spec.parent.as_deref()
        };
        std::iter::successors(Some(tenant), above).take(MAX_TREE_DEPTH + 1)
    }

    /// A tenant's budget, if what is spent can be counted against it: prices are in its currency.
    pub(crate) fn budget(&self, tenant: &str) -> Option<&Budget> {
        let budget = self.tenants.get(tenant)?.value.spec.budget.as_ref()?;
        let currency = self.prices().map(|book| book.currency.as_str());
        currency
            .is_none_or(|currency| currency == budget.currency)
            .then_some(budget)
    }
}

fn put<T: DeserializeOwned>(table: &mut Table<T>, name: &str, entry: &KeyValue) -> bool {
    if table
        .get(name)
        .is_some_and(|known| known.revision >= entry.mod_revision)
    {
        return false;
    }
    match serde_json::from_slice(&entry.value) {
        Ok(value) => {
            table.insert(
                name.to_owned(),
                Versioned {
                    value,
                    revision: entry.mod_revision,
                },
            );
            true
        }
        Err(error) => {
            let key = String::from_utf8_lossy(&entry.key);
            tracing::error!(%key, %error, "a stored object cannot be read");
            false
        }
    }
}

fn delete<T>(table: &mut Table<T>, name: &str, revision: Revision) -> Option<Changed> {
    if table
        .get(name)
        .is_none_or(|known| known.revision >= revision)
    {
        return None;
    }
    table.remove(name).map(|_| Changed::Policy)
}
