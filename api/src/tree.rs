//! The tenant tree as a whole: parents that exist, no cycles, children within their parent.
//!
//! Owns the checks that no single object can make. Pure: the caller hands in every tenant and
//! quota as they would be after the change.

use std::collections::{BTreeMap, BTreeSet};

use crate::errors::{FieldError, FieldReason};
use crate::kinds::{Tenant, TenantQuota};
use crate::quantity::{CpuQuantity, GpuQuantity, MemoryQuantity};
use crate::units::{Mebibytes, MilliCpus, MilliGpus};

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

/// What a row counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Counted<'a> {
    /// GPUs of a flavor, in a region; `None` = of all.
    Gpus(Option<&'a str>, Option<&'a str>),
    /// Host CPU.
    Cpu,
    /// Host memory.
    Memory,
}

impl Counted<'_> {
    fn show(self, amount: u64) -> String {
        match self {
            Self::Gpus(..) => GpuQuantity(MilliGpus(amount)).to_string(),
            Self::Cpu => CpuQuantity(MilliCpus(amount)).to_string(),
            Self::Memory => MemoryQuantity(Mebibytes(amount)).to_string(),
        }
    }

    fn noun(self) -> String {
        match self {
            Self::Gpus(flavor, region) => {
                let place = region.map(|name| format!(" in {name}")).unwrap_or_default();
                format!("{}{place}", flavor.unwrap_or("all flavors together"))
            }
            Self::Cpu => "CPU".to_owned(),
            Self::Memory => "memory".to_owned(),
        }
    }
}

/// One tenant's nominal amounts, each with the path of its row.
type Rows<'a> = BTreeMap<Counted<'a>, (u64, String)>;

struct Tree<'a> {
    rows: BTreeMap<&'a str, Rows<'a>>,
    children: BTreeMap<&'a str, Vec<&'a str>>,
}

fn check_sums<'a>(
    parents: &BTreeMap<&'a str, Option<&'a str>>,
    quotas: &'a [TenantQuota],
) -> Vec<FieldError> {
    let mut tree = Tree {
        rows: quotas
            .iter()
            .map(|quota| (quota.spec.tenant.as_str(), rows(quota)))
            .collect(),
        children: BTreeMap::new(),
    };
    for (name, parent) in parents {
        if let Some(parent) = parent {
            tree.children.entry(parent).or_default().push(name);
        }
    }
    let mut found = Vec::new();
    for (tenant, rows) in &tree.rows {
        for (counted, (nominal, path)) in rows {
            let wanted = tree.below(tenant, *counted);
            if wanted > *nominal {
                let message = format!(
                    "its children have {} of {}, more than its own {}: raise it, or lower theirs \
                     ({})",
                    counted.show(wanted),
                    counted.noun(),
                    counted.show(*nominal),
                    tree.children_of(tenant).join(", "),
                );
                found.push(FieldError::new(path.clone(), FieldReason::Invalid, message));
            }
        }
    }
    found
}

fn rows(quota: &TenantQuota) -> Rows<'_> {
    let (name, spec) = (&quota.metadata.name, &quota.spec);
    let mut rows = Rows::new();
    for (index, row) in spec.resources.iter().enumerate() {
        let counted = Counted::Gpus(row.flavor.as_deref(), row.region.as_deref());
        let path = format!("tenantquotas/{name} spec.resources[{index}].nominal");
        rows.insert(counted, (row.nominal.0.0, path));
    }
    if let Some(row) = &spec.cpu {
        let path = format!("tenantquotas/{name} spec.cpu.nominal");
        rows.insert(Counted::Cpu, (row.nominal.0.0, path));
    }
    if let Some(row) = &spec.memory {
        let path = format!("tenantquotas/{name} spec.memory.nominal");
        rows.insert(Counted::Memory, (row.nominal.0.0, path));
    }
    rows
}

impl<'a> Tree<'a> {
    fn children_of(&self, tenant: &str) -> &[&'a str] {
        self.children.get(tenant).map_or(&[], Vec::as_slice)
    }

    /// Nominal of everything directly below a tenant. The tree has no circle: it was checked.
    fn below(&self, tenant: &str, counted: Counted<'_>) -> u64 {
        let children = self.children_of(tenant).iter();
        children.fold(0_u64, |sum, child| {
            sum.saturating_add(self.claim(child, counted))
        })
    }

    /// Nominal that a tenant claims of its parent: its own row's; without one, the larger of what
    /// its narrower rows sum to and what is below it.
    fn claim(&self, tenant: &str, counted: Counted<'_>) -> u64 {
        let rows = self.rows.get(tenant);
        if let Some((own, _)) = rows.and_then(|rows| rows.get(&counted)) {
            return *own;
        }
        let narrower = rows.map_or(0, |rows| narrower(rows, counted));
        narrower.max(self.below(tenant, counted))
    }
}

/// Sum of the rows that count a part of `counted`: by flavor or by region, the larger, so that
/// no GPU is counted twice.
fn narrower(rows: &Rows<'_>, counted: Counted<'_>) -> u64 {
    let Counted::Gpus(flavor, region) = counted else {
        return 0;
    };
    let inside = |row: &Counted<'_>| match row {
        Counted::Gpus(own, place) => {
            (flavor.is_none() || *own == flavor) && (region.is_none() || *place == region)
        }
        Counted::Cpu | Counted::Memory => false,
    };
    let sum = |part: fn(&Counted<'_>) -> bool| {
        let rows = rows.iter().filter(|(row, _)| inside(row) && part(row));
        rows.fold(0_u64, |sum, (_, (nominal, _))| sum.saturating_add(*nominal))
    };
    let by_flavor = sum(|row| matches!(row, Counted::Gpus(Some(_), None)));
    let by_region = sum(|row| matches!(row, Counted::Gpus(None, Some(_))));
    let by_both = sum(|row| matches!(row, Counted::Gpus(Some(_), Some(_))));
    by_flavor.max(by_region).max(by_both)
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
    use crate::kinds::tenant_quota::{HostRow, QuotaRow, TenantQuotaSpec};

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
        assert!(text.starts_with(
            "tenantquotas/org spec.resources[0].nominal: its children have 9 of h100"
        ));
        let quotas = [
            quota("org", &[(None, 8)]),
            quota("nlp", &[(Some("a"), 5), (Some("b"), 5)]),
        ];
        assert!(shown(&tenants, &quotas).contains("have 10 of all flavors together"));
    }

    #[test]
    fn regions_cpu_and_memory_are_summed_too() {
        let tenants = [tenant("org", None), tenant("nlp", Some("org"))];
        let mut above = quota("org", &[(Some("h100"), 8)]);
        above.spec.cpu = Some(HostRow {
            nominal: CpuQuantity(MilliCpus(64_000)),
            ..HostRow::default()
        });
        let mut below = quota("nlp", &[(Some("h100"), 5), (Some("h100"), 4)]);
        for (row, region) in below.spec.resources.iter_mut().zip(["eu", "us"]) {
            row.region = Some(region.to_owned());
        }
        below.spec.cpu = Some(HostRow {
            nominal: CpuQuantity(MilliCpus(64_500)),
            ..HostRow::default()
        });
        let text = shown(&tenants, &[above, below]);
        assert!(
            text.contains("its children have 9 of h100, more than its own 8"),
            "{text}"
        );
        assert!(
            text.contains("tenantquotas/org spec.cpu.nominal: its children have 64500m of CPU"),
            "{text}"
        );
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
