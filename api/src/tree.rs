//! The tenant tree as a whole: parents that exist, no cycles, children within their parent.
//!
//! Owns the checks that no single object can make. Pure: the caller hands in every tenant and
//! quota as they would be after the change.

use std::collections::{BTreeMap, BTreeSet};

use crate::errors::{FieldError, FieldReason};
use crate::kinds::{Tenant, TenantQuota};
use crate::quantity::GpuQuantity;
use crate::units::MilliGpus;

/// Deepest tree: more levels than any organisation, and a bound on every walk up.
pub const MAX_TREE_DEPTH: usize = 16;

/// Everything wrong with a tree. Paths begin with the object: `tenants/nlp spec.parent`.
#[must_use]
pub fn check(tenants: &[Tenant], quotas: &[TenantQuota]) -> Vec<FieldError> {
    let parents: BTreeMap<&str, Option<&str>> = tenants
        .iter()
        .map(|tenant| (tenant.metadata.name.as_str(), tenant.spec.parent.as_deref()))
        .collect();
    let mut found = check_parents(&parents);
    found.extend(check_owners(&parents, quotas));
    if found.is_empty() {
        found.extend(check_sums(&parents, quotas));
    }
    found
}

fn check_parents(parents: &BTreeMap<&str, Option<&str>>) -> Vec<FieldError> {
    let mut found = Vec::new();
    let mut add = |name: &str, reason, message: String| {
        found.push(FieldError::new(
            format!("tenants/{name} spec.parent"),
            reason,
            message,
        ));
    };
    for (name, parent) in parents {
        let Some(parent) = parent else { continue };
        if parent == name {
            add(
                name,
                FieldReason::Invalid,
                "is the tenant itself: leave it out for a root".into(),
            );
            continue;
        }
        if !parents.contains_key(parent) {
            let message = format!("there is no tenant {parent:?}: make it first");
            add(name, FieldReason::NotFound, message);
            continue;
        }
        let mut chain = vec![*name];
        let mut next = Some(*parent);
        while let Some(above) = next.filter(|above| !chain.contains(above)) {
            // A circle that is longer than the deepest tree is reported as too deep.
            if chain.len() > MAX_TREE_DEPTH {
                break;
            }
            chain.push(above);
            next = parents.get(above).copied().flatten();
        }
        if next == Some(name) {
            chain.push(name);
            let message = format!("goes round in a circle: {}", chain.join(" -> "));
            add(name, FieldReason::Invalid, message);
        } else if chain.len() > MAX_TREE_DEPTH {
            let message = format!("puts it below level {MAX_TREE_DEPTH}, the deepest");
            add(name, FieldReason::TooMany, message);
        }
    }
    found
}

fn check_owners(parents: &BTreeMap<&str, Option<&str>>, quotas: &[TenantQuota]) -> Vec<FieldError> {
    let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
    let mut found = Vec::new();
    for quota in quotas {
        let (name, tenant) = (quota.metadata.name.as_str(), quota.spec.tenant.as_str());
        let path = format!("tenantquotas/{name} spec.tenant");
        if !parents.contains_key(tenant) {
            let message = format!("there is no tenant {tenant:?}: make it first");
            found.push(FieldError::new(
                path.clone(),
                FieldReason::NotFound,
                message,
            ));
        }
        if let Some(other) = seen.insert(tenant, name) {
            let message = format!("{tenant:?} has the quota {other:?} too: put them into one");
            found.push(FieldError::new(path, FieldReason::Duplicate, message));
        }
    }
    found
}

/// One tenant's rows: by flavor, and `None` for all flavors together.
type Rows<'a> = BTreeMap<Option<&'a str>, MilliGpus>;

struct Tree<'a> {
    rows: BTreeMap<&'a str, Rows<'a>>,
    children: BTreeMap<&'a str, Vec<&'a str>>,
}

fn check_sums<'a>(
    parents: &BTreeMap<&'a str, Option<&'a str>>,
    quotas: &'a [TenantQuota],
) -> Vec<FieldError> {
    let mut tree = Tree {
        rows: BTreeMap::new(),
        children: BTreeMap::new(),
    };
    for (name, parent) in parents {
        if let Some(parent) = parent {
            tree.children.entry(parent).or_default().push(name);
        }
    }
    let mut names = BTreeMap::new();
    for quota in quotas {
        let rows = quota.spec.resources.iter();
        let rows = rows
            .map(|row| (row.flavor.as_deref(), row.nominal.0))
            .collect();
        tree.rows.insert(quota.spec.tenant.as_str(), rows);
        names.insert(quota.spec.tenant.as_str(), quota.metadata.name.as_str());
    }
    let mut found = Vec::new();
    for (tenant, rows) in &tree.rows {
        for (flavor, nominal) in rows {
            let wanted = tree.below(tenant, *flavor);
            if wanted > *nominal {
                let quota = names.get(tenant).copied().unwrap_or(tenant);
                let message = format!(
                    "its children have {} of {}, more than its own {}: raise it, or lower theirs \
                     ({})",
                    GpuQuantity(wanted),
                    flavor.unwrap_or("all flavors together"),
                    GpuQuantity(*nominal),
                    tree.children_of(tenant).join(", "),
                );
                let path = format!("tenantquotas/{quota} spec.resources");
                found.push(FieldError::new(path, FieldReason::Invalid, message));
            }
        }
    }
    found
}

impl<'a> Tree<'a> {
    fn children_of(&self, tenant: &str) -> &[&'a str] {
        self.children.get(tenant).map_or(&[], Vec::as_slice)
    }

    /// Nominal of everything directly below a tenant. The tree has no circle: it was checked.
    fn below(&self, tenant: &str, flavor: Option<&str>) -> MilliGpus {
        let children = self.children_of(tenant).iter();
        children.fold(MilliGpus::ZERO, |sum, child| {
            sum.saturating_add(self.claim(child, flavor))
        })
    }

    /// Nominal that a tenant claims of its parent: its own row's, or what is below it. Of all
    /// flavors together it claims the larger of its rows' sum and what is below.
    fn claim(&self, tenant: &str, flavor: Option<&str>) -> MilliGpus {
        let rows = self.rows.get(tenant);
        if let Some(own) = rows.and_then(|rows| rows.get(&flavor)) {
            return *own;
        }
        let below = self.below(tenant, flavor);
        match (flavor, rows) {
            (None, Some(rows)) => {
                let sum = rows
                    .values()
                    .fold(MilliGpus::ZERO, |sum, own| sum.saturating_add(*own));
                sum.max(below)
            }
            (Some(_), _) | (None, None) => below,
        }
    }
}

/// Names of a tenant's ancestors, nearest first; stops at a circle.
#[must_use]
pub fn ancestors<'a>(tenants: &'a [Tenant], name: &'a str) -> Vec<&'a str> {
    let (mut seen, mut chain, mut next) = (BTreeSet::from([name]), Vec::new(), name);
    let parent = |name: &str| {
        let found = tenants.iter().find(|tenant| tenant.metadata.name == name);
        found.and_then(|tenant| tenant.spec.parent.as_deref())
    };
    while let Some(above) = parent(next).filter(|above| seen.insert(above)) {
        chain.push(above);
        next = above;
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::tenant::TenantSpec;
    use crate::kinds::tenant_quota::{QuotaRow, TenantQuotaSpec};

    fn tenant(name: &str, parent: Option<&str>) -> Tenant {
        let spec = TenantSpec {
            parent: parent.map(str::to_owned),
            ..TenantSpec::default()
        };
        Tenant::new(name, spec)
    }

    fn quota(tenant: &str, rows: &[(Option<&str>, u64)]) -> TenantQuota {
        let row = |(flavor, cards): &(Option<&str>, u64)| QuotaRow {
            flavor: flavor.map(str::to_owned),
            nominal: GpuQuantity(MilliGpus::cards(*cards)),
            ..QuotaRow::default()
        };
        let resources = rows.iter().map(row).collect();
        let spec = TenantQuotaSpec {
            tenant: tenant.to_owned(),
            resources,
            ..TenantQuotaSpec::default()
        };
        TenantQuota::new(tenant, spec)
    }

    fn shown(tenants: &[Tenant], quotas: &[TenantQuota]) -> String {
        let found = check(tenants, quotas);
        found
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("\n")
    }

    #[test]
    fn a_sound_tree_has_no_findings() {
        let tenants = [
            tenant("org", None),
            tenant("research", Some("org")),
            tenant("nlp", Some("research")),
            tenant("vision", Some("research")),
        ];
        let quotas = [
            quota("org", &[(Some("h100"), 100), (None, 120)]),
            quota("nlp", &[(Some("h100"), 60)]),
            quota("vision", &[(Some("h100"), 40), (Some("l4"), 20)]),
        ];
        assert_eq!(shown(&tenants, &quotas), "");
        assert_eq!(ancestors(&tenants, "nlp"), ["research", "org"]);
    }

    #[test]
    fn children_may_not_sum_above_the_nearest_ancestor_with_a_row() {
        let tenants = [
            tenant("org", None),
            tenant("research", Some("org")),
            tenant("nlp", Some("research")),
        ];
        let quotas = [
            quota("org", &[(Some("h100"), 8)]),
            quota("nlp", &[(Some("h100"), 9)]),
        ];
        let text = shown(&tenants, &quotas);
        assert!(text.starts_with("tenantquotas/org spec.resources: its children have 9 of h100"));
        let quotas = [
            quota("org", &[(None, 8)]),
            quota("nlp", &[(Some("a"), 5), (Some("b"), 5)]),
        ];
        assert!(shown(&tenants, &quotas).contains("have 10 of all flavors together"));
    }

    #[test]
    fn circles_orphans_and_strangers_are_named() {
        let tenants = [
            tenant("a", Some("b")),
            tenant("b", Some("c")),
            tenant("c", Some("a")),
            tenant("tail", Some("a")),
            tenant("self", Some("self")),
            tenant("orphan", Some("gone")),
        ];
        let text = shown(&tenants, &[quota("nobody", &[]), quota("nobody", &[])]);
        assert!(text.contains("tenants/a spec.parent: goes round in a circle: a -> b -> c -> a"));
        assert!(!text.contains("tenants/tail"), "{text}");
        assert!(text.contains("tenants/self spec.parent: is the tenant itself"));
        assert!(text.contains("tenants/orphan spec.parent: there is no tenant \"gone\""));
        assert!(text.contains("tenantquotas/nobody spec.tenant: there is no tenant"));
        assert!(text.contains("has the quota \"nobody\" too"));
        assert_eq!(ancestors(&tenants, "tail"), ["a", "b", "c"]);
    }

    #[test]
    fn a_tower_is_refused() {
        let mut tenants = vec![tenant("t0", None)];
        for level in 1..=MAX_TREE_DEPTH {
            tenants.push(tenant(
                &format!("t{level}"),
                Some(&format!("t{}", level - 1)),
            ));
        }
        let text = shown(&tenants, &[]);
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(
            text.contains("tenants/t16 spec.parent: puts it below level 16"),
            "{text}"
        );
    }
}
