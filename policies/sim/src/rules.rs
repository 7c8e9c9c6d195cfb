//! The policies of a simulation: tenants, quotas and classes, as the hub takes them.
//!
//! Owns reading them from documents with the hub's own checks, and the pools among them. Never
//! reads a file.

use std::collections::BTreeMap;

use meridian_api::errors::{ApiError, ErrorCode, FieldError, FieldReason};
use meridian_api::kinds::{
    self, GPUPool, MemberCluster, PriceBook, Tenant, TenantQuota, TimeWindow, WorkloadClass,
};
use meridian_api::meta::{Object, Spec};
use meridian_api::tree;
use meridian_api::validate::{self, Checked};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::fleet::{Fleet, NoFleet};

/// Policies, each list by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rules {
    /// The tenant tree.
    pub tenants: Vec<Tenant>,
    /// What tenants may hold.
    pub quotas: Vec<TenantQuota>,
    /// Workload classes.
    pub classes: Vec<WorkloadClass>,
    /// Windows, in which classes may be preempted.
    pub windows: Vec<TimeWindow>,
    /// The price book, at most one: what cards are worth. Without one a fleet's own word holds.
    pub prices: Vec<PriceBook>,
    /// Pools as stored, for [`Rules::fleet`].
    pub pools: Vec<GPUPool>,
    clusters: Vec<MemberCluster>,
}

/// A document that the hub would refuse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}")]
pub struct Refused {
    /// Where it stands: `policies/tenants.yaml:12`.
    pub origin: String,
    /// Why.
    pub source: Box<ApiError>,
}

impl Rules {
    /// Reads documents, each with its origin. Other kinds of ours are checked and left aside.
    ///
    /// # Errors
    /// What the hub says to a document that it does not take, and what it says to a tenant tree
    /// that does not fit together.
    pub fn read<'a>(
        documents: impl IntoIterator<Item = (&'a str, &'a Value)>,
    ) -> Result<Self, Refused> {
        let mut rules = Self::default();
        let mut origins: BTreeMap<(&str, String), String> = BTreeMap::new();
        for (origin, value) in documents {
            let refuse = |error: ApiError| Refused {
                origin: origin.to_owned(),
                source: Box::new(error),
            };
            let info = kinds::of(value).map_err(refuse)?;
            let name = value["metadata"]["name"].as_str().unwrap_or_default();
            let found = info.check(value);
            if !found.is_empty() {
                let what = format!("{} {name}", info.singular);
                return Err(refuse(ApiError::from_fields(&what, found)));
            }
            rules.keep(info.plural, value).map_err(|error| {
                let what = format!("{} {name}", info.singular);
                refuse(ApiError::from_fields(&what, vec![error]))
            })?;
            if rules.prices.len() > 1 {
                let other = &rules.prices[0].metadata.name;
                let message =
                    format!("there is PriceBook {other:?} already; put the prices into it");
                let cause = FieldError::new("metadata.name", FieldReason::Duplicate, message);
                let what = format!("{} {name}", info.singular);
                return Err(refuse(ApiError::from_fields(&what, vec![cause])));
            }
            let key = (info.plural, name.to_owned());
            if let Some(other) = origins.insert(key, origin.to_owned()) {
                let message = format!("{} {name} is in {other} too", info.singular);
                let error = ApiError::new(ErrorCode::InvalidObject, message);
                return Err(refuse(error.help("leave one of the two out")));
            }
        }
        rules.sort();
        rules.check_tree(&origins)?;
        Ok(rules)
    }

    fn keep(&mut self, plural: &str, value: &Value) -> Result<(), FieldError> {
        match plural {
            "tenants" => self.tenants.push(validate::from_value(value)?),
            "tenantquotas" => self.quotas.push(validate::from_value(value)?),
            "workloadclasses" => self.classes.push(validate::from_value(value)?),
            "timewindows" => self.windows.push(validate::from_value(value)?),
            "pricebooks" => self.prices.push(validate::from_value(value)?),
            "gpupools" => self.pools.push(validate::from_value(value)?),
            "memberclusters" => self.clusters.push(validate::from_value(value)?),
            // A plural is a text: kinds that a decision does not read are only checked.
            _ => {}
        }
        Ok(())
    }

    fn sort(&mut self) {
        fn by_name<S: Spec>(objects: &mut [Object<S, S::Status>]) {
            objects.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        }
        by_name(&mut self.tenants);
        by_name(&mut self.quotas);
        by_name(&mut self.classes);
        by_name(&mut self.windows);
        by_name(&mut self.pools);
        by_name(&mut self.clusters);
    }

    fn check_tree(&self, origins: &BTreeMap<(&str, String), String>) -> Result<(), Refused> {
        let found = tree::check(&self.tenants, &self.quotas);
        let Some(first) = found.first() else {
            return Ok(());
        };
        // Paths begin with the object: `tenants/nlp spec.parent`.
        let object = first.path.split(' ').next().unwrap_or_default();
        let (plural, name) = object.split_once('/').unwrap_or_default();
        let origin = origins
            .iter()
            .find(|((kind, own), _)| *kind == plural && own == name);
        let origin = origin.map_or("the tenant tree", |(_, origin)| origin);
        Err(Refused {
            origin: origin.to_owned(),
            source: Box::new(ApiError::from_fields("the tenant tree", found)),
        })
    }

    /// The fleet that the stored pools describe.
    pub fn fleet(&self) -> Result<Fleet, NoFleet> {
        let region_of = |cluster: &str| {
            let found = self
                .clusters
                .iter()
                .find(|own| own.metadata.name == cluster);
            found.map(|cluster| cluster.spec.region.clone())
        };
        Fleet::from_objects(&self.pools, region_of)
    }
}

/// An object from its spec, as if it had been applied.
///
/// # Panics
/// When the spec is one that the hub would refuse: callers pass their own.
#[must_use]
pub fn object<S>(name: &str, spec: &Value) -> Object<S, S::Status>
where
    S: Checked + DeserializeOwned,
    S::Status: DeserializeOwned,
{
    let value = serde_json::json!({
        "apiVersion": meridian_api::meta::API_VERSION,
        "kind": S::KIND,
        "metadata": {"name": name},
        "spec": spec,
    });
    validate::from_value(&value).expect("the caller's own spec is valid")
}

#[cfg(test)]
mod tests {
    use meridian_api::document;

    use super::*;

    fn read(text: &str) -> Result<Rules, Refused> {
        let documents = document::parse(text.as_bytes()).expect("YAML");
        let named: Vec<(String, Value)> = documents
            .into_iter()
            .map(|document| (format!("p.yaml:{}", document.line), document.value))
            .collect();
        Rules::read(named.iter().map(|(origin, value)| (origin.as_str(), value)))
    }

    #[test]
    fn the_defaults_are_read() {
        let classes = include_str!("../../defaults/classes.yaml");
        let tenants = include_str!("../../defaults/tenants.yaml");
        let rules = read(&format!("{classes}\n---\n{tenants}")).expect("they ship");
        assert_eq!((rules.classes.len(), rules.tenants.len()), (6, 6));
        assert!(
            rules
                .tenants
                .is_sorted_by_key(|tenant| &tenant.metadata.name)
        );
        assert_eq!(rules.fleet(), Err(NoFleet::Empty));
    }

    #[test]
    fn what_the_hub_refuses_is_refused_with_its_words() {
        let head = "apiVersion: meridian.dev/v1alpha1\nkind: ";
        let error = read(&format!(
            "{head}Tenant\nmetadata: {{name: a}}\nspec: {{parnt: b}}\n"
        ));
        let error = error.expect_err("no such field");
        assert_eq!(error.origin, "p.yaml:1");
        assert_eq!(error.source.code, ErrorCode::UnknownField);
        let orphan = format!("{head}Tenant\nmetadata: {{name: a}}\nspec: {{parent: b}}\n");
        let error = read(&orphan).expect_err("no such tenant");
        assert_eq!(error.origin, "p.yaml:1");
        assert!(error.source.message.contains("there is no tenant \"b\""));
        let twice = format!("{head}Tenant\nmetadata: {{name: a}}\nspec: {{}}\n");
        let book = |name| {
            format!("{head}PriceBook\nmetadata: {{name: {name}}}\nspec: {{currency: EUR}}\n")
        };
        let error = read(&format!("{}---\n{}", book("a"), book("b"))).expect_err("two books");
        assert!(error.source.message.contains("PriceBook \"a\" already"));
        let error = read(&format!("{twice}---\n{twice}")).expect_err("one name");
        assert_eq!(error.source.message, "tenant a is in p.yaml:1 too");
    }
}
