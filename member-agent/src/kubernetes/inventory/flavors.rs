//! The table of flavors: which extended resource and labels are which hardware of the fleet.
//!
//! Owns the form of the table, its checks and its look-ups. The shipped table is `flavors.yaml`;
//! a user's document of the same form goes before it. Never knows a node's state.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Taint;
use meridian_api::fields::nearest;
use meridian_api::validate::Findings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::config::TaintRule;

/// The shipped table.
const SHIPPED: &str = include_str!("flavors.yaml");
/// Longest name of a flavor. A pool may be called `<claim>--<flavor>`, which is a label of at most
/// 63 characters; half of what the two hyphens leave is for each.
pub(super) const MAX_FLAVOR_CHARS: usize = 30;
/// Between the claim and the flavor in the name of such a pool; neither may hold it.
pub(super) const BETWEEN: &str = "--";
/// Flavor of nodes without GPUs. They form a pool only when a label or a rule names one.
pub(super) const CPU: &str = "cpu";
/// Most vendors of a table: a resource is known by one byte, and the last value means none.
const MAX_VENDORS: usize = 255;
/// Most flavors of a table: each is tried on each node. All cards sold so far are a few hundred.
const MAX_FLAVORS: usize = 1000;

/// A table as a document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Document {
    /// Vendors, one per extended resource.
    vendors: Vec<Vendor>,
    /// Flavors; the first that a node fits is its own.
    flavors: Vec<Flavor>,
}

/// How one extended resource and the labels beside it are read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Vendor {
    /// The extended resource of whole cards.
    pub(super) resource: String,
    /// Labels that name the product; the first that a node has counts.
    #[serde(default)]
    pub(super) product: Vec<String>,
    /// What follows the product's name when cards are divided; cut off before flavors are matched.
    #[serde(default)]
    pub(super) suffixes: Vec<String>,
    /// Label with the number of cards.
    #[serde(default)]
    pub(super) count: Option<String>,
    /// Labels that say, with the value `true`, that such cards are there, whether or not their
    /// plugin offers any.
    #[serde(default)]
    pub(super) present: Vec<String>,
    /// Labels that make up the driver's version, joined by dots; the first list with a value
    /// counts.
    #[serde(default)]
    pub(super) driver: Vec<Vec<String>>,
    /// The same for the version of the toolkit or the runtime.
    #[serde(default)]
    pub(super) toolkit: Vec<Vec<String>>,
    /// Taints that the vendor's tools and clouds put on such nodes. They do not close a node, and
    /// pods of gangs tolerate them.
    #[serde(default)]
    pub(super) taints: Vec<TaintRule>,
    /// Beginnings of the names of resources that are parts of cards; they are not offered.
    #[serde(default)]
    pub(super) parts: Vec<String>,
    /// Signs that the resource does not count whole free cards; nothing is offered then.
    #[serde(default)]
    pub(super) withheld: Vec<Sign>,
}

/// A sign on a node, and what it means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Sign {
    /// Label to look at; either this or `annotation`.
    #[serde(default)]
    pub(super) label: Option<String>,
    /// Annotation to look at.
    #[serde(default)]
    pub(super) annotation: Option<String>,
    /// Values that are no sign; absent = any value is one.
    #[serde(default)]
    pub(super) unless: Vec<String>,
    /// The value is a sign only when it holds this.
    #[serde(default)]
    pub(super) contains: Option<String>,
    /// What it means, for a person.
    pub(super) because: String,
    /// What still says how many cards are out of use meanwhile.
    #[serde(default)]
    pub(super) cards: CardsFrom,
}

/// Where the number of withheld cards is known from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) enum CardsFrom {
    /// From nothing: none are counted.
    #[default]
    Nothing,
    /// From the label `count`.
    Count,
    /// From the capacity of the resource.
    Capacity,
}

/// One hardware class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Flavor {
    /// Its name in the fleet.
    pub(super) name: String,
    /// Its extended resource.
    pub(super) resource: String,
    /// A node is of it when it fits one of these: every label has one of the values; a value that
    /// ends with `*` is a beginning. Empty = the resource alone says so.
    #[serde(default)]
    pub(super) nodes: Vec<BTreeMap<String, Vec<String>>>,
}

/// What is wrong with a table of flavors.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlavorError {
    /// Not YAML of this form.
    #[error("not a table of flavors: {0}")]
    Malformed(String),
    /// An entry that cannot be.
    #[error("{path}: {message}")]
    Wrong {
        /// Where, such as `flavors[3].resource`.
        path: String,
        /// What, and what to do.
        message: String,
    },
}

/// Vendors and flavors.
#[derive(Clone, Debug)]
pub struct FlavorTable {
    pub(super) vendors: Vec<Vendor>,
    /// Per vendor, by position, its flavors in the order to try.
    flavors: Vec<Vec<Flavor>>,
}

impl FlavorTable {
    /// The table that ships.
    #[must_use]
    pub fn shipped() -> Self {
        let document = read(SHIPPED).expect("a test reads the shipped table");
        Self::new(document).expect("a test checks the shipped table")
    }

    /// This table with a user's document before it: his flavors are looked at first, and a vendor
    /// that he names replaces the one of that resource.
    pub fn extended_by(&self, yaml: &str) -> Result<Self, FlavorError> {
        let mut document = read(yaml)?;
        // Checked before they are joined, so that an error names the place in his document.
        let known = self.vendors.iter().map(|vendor| vendor.resource.as_str());
        check(&document, &known.collect())?;
        let theirs = |vendor: &&Vendor| {
            document
                .vendors
                .iter()
                .all(|own| own.resource != vendor.resource)
        };
        let kept: Vec<Vendor> = self.vendors.iter().filter(theirs).cloned().collect();
        document.vendors.extend(kept);
        document
            .flavors
            .extend(self.flavors.iter().flatten().cloned());
        Self::new(document)
    }

    fn new(document: Document) -> Result<Self, FlavorError> {
        check(&document, &BTreeSet::new())?;
        let mut vendors = document.vendors;
        vendors.sort_by(|a, b| a.resource.cmp(&b.resource));
        let mut flavors = vec![Vec::new(); vendors.len()];
        for flavor in document.flavors {
            let at = vendors.partition_point(|vendor| vendor.resource < flavor.resource);
            flavors[at].push(flavor);
        }
        Ok(Self { vendors, flavors })
    }

    /// The extended resource of a flavor.
    #[must_use]
    pub fn resource_of(&self, flavor: &str) -> Option<&str> {
        let vendor = self.vendor_of(flavor)?;
        Some(&self.vendors[vendor].resource)
    }

    /// Position of the vendor of a flavor.
    pub(super) fn vendor_of(&self, flavor: &str) -> Option<usize> {
        self.flavors
            .iter()
            .position(|flavors| flavors.iter().any(|known| known.name == flavor))
    }

    /// Position of the vendor with this resource.
    pub(super) fn resource(&self, name: &str) -> Option<u8> {
        let found = self
            .vendors
            .binary_search_by(|vendor| vendor.resource.as_str().cmp(name));
        found.ok().and_then(|at| u8::try_from(at).ok())
    }

    /// The flavor of a vendor's cards on a node with these labels.
    pub(super) fn flavor(&self, vendor: usize, labels: &BTreeMap<String, String>) -> Option<&str> {
        let suffixes = &self.vendors[vendor].suffixes;
        let fits = |flavor: &&Flavor| {
            let mut nodes = flavor.nodes.iter();
            flavor.nodes.is_empty() || nodes.any(|node| has_all(node, labels, suffixes))
        };
        let found = self.flavors[vendor].iter().find(fits)?;
        Some(&found.name)
    }

    /// The same from the labels alone: a flavor that the resource alone tells is none.
    pub(super) fn labelled_flavor(
        &self,
        vendor: usize,
        labels: &BTreeMap<String, String>,
    ) -> Option<&str> {
        let suffixes = &self.vendors[vendor].suffixes;
        let fits = |flavor: &&Flavor| {
            let mut nodes = flavor.nodes.iter();
            nodes.any(|node| has_all(node, labels, suffixes))
        };
        let found = self.flavors[vendor].iter().find(fits)?;
        Some(&found.name)
    }
}

impl FlavorTable {
    /// Flavors of a vendor that a node selector admits, by name: the one that its labels tell, or,
    /// when they tell none, all.
    pub(super) fn flavors_with(
        &self,
        vendor: usize,
        selector: Option<&BTreeMap<String, String>>,
    ) -> Vec<String> {
        let none = BTreeMap::new();
        let selector = selector.unwrap_or(&none);
        if let Some(flavor) = self.labelled_flavor(vendor, selector) {
            return vec![flavor.to_owned()];
        }
        let products = &self.vendors[vendor].product;
        if let Some(product) = products.iter().find_map(|key| selector.get(key)) {
            return product_name(product).into_iter().collect();
        }
        let names = self.flavors[vendor]
            .iter()
            .map(|flavor| flavor.name.clone());
        names.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// A product's own name as the name of a flavor; `None` when it cannot be one.
pub(super) fn product_name(product: &str) -> Option<String> {
    let letter = |c: char| match c.to_ascii_lowercase() {
        c @ ('a'..='z' | '0'..='9') => c,
        _ => ' ',
    };
    let words: String = product.chars().map(letter).collect();
    let name = words.split_whitespace().collect::<Vec<_>>().join("-");
    let fits = bad_name(&name, MAX_FLAVOR_CHARS).is_none() && name != CPU;
    fits.then_some(name)
}

impl Vendor {
    /// True when gangs on its cards tolerate a taint. Kubernetes' own convention counts
    /// (kubernetes.io, "ExtendedResourceToleration"): a taint named after the resource.
    pub(super) fn tolerates(&self, taint: &Taint) -> bool {
        self.tolerated().any(|rule| rule.is_for(taint))
    }

    /// The taints that gangs on its cards tolerate.
    pub(super) fn tolerated(&self) -> impl Iterator<Item = TaintRule> {
        let own = TaintRule {
            key: self.resource.clone(),
            value: None,
            effect: None,
        };
        std::iter::once(own).chain(self.taints.iter().cloned())
    }

    /// A product's name without what says that its cards are divided.
    pub(super) fn whole_product<'a>(&self, product: &'a str) -> &'a str {
        without(product, &self.suffixes)
    }
}

fn without<'a>(value: &'a str, suffixes: &[String]) -> &'a str {
    let cut = suffixes.iter().filter_map(|suffix| value.find(suffix));
    cut.min().map_or(value, |at| &value[..at])
}

fn has_all(
    wanted: &BTreeMap<String, Vec<String>>,
    labels: &BTreeMap<String, String>,
    suffixes: &[String],
) -> bool {
    wanted.iter().all(|(key, values)| {
        labels.get(key).is_some_and(|value| {
            let value = without(value, suffixes);
            values.iter().any(|wanted| matches(wanted, value))
        })
    })
}

fn matches(wanted: &str, value: &str) -> bool {
    match wanted.strip_suffix('*') {
        Some(beginning) => value.starts_with(beginning),
        None => value == wanted,
    }
}

fn read(yaml: &str) -> Result<Document, FlavorError> {
    serde_saphyr::from_str(yaml).map_err(|error| FlavorError::Malformed(error.to_string()))
}

/// Every entry stands for itself, and each flavor's resource has a vendor, here or in `known`.
fn check(document: &Document, known: &BTreeSet<&str>) -> Result<(), FlavorError> {
    let wrong = |path: String, message: String| Err(FlavorError::Wrong { path, message });
    for (what, found, most) in [
        ("vendors", document.vendors.len(), MAX_VENDORS),
        ("flavors", document.flavors.len(), MAX_FLAVORS),
    ] {
        if found > most {
            return wrong(
                what.to_owned(),
                format!("has {found} entries, at most {most}"),
            );
        }
    }
    let mut resources = known.clone();
    for (index, vendor) in document.vendors.iter().enumerate() {
        let path = format!("vendors[{index}]");
        check_vendor(&path, vendor)?;
        let own = document.vendors[..index].iter();
        if own
            .map(|own| &own.resource)
            .any(|own| *own == vendor.resource)
        {
            let message = format!("{:?} is there twice", vendor.resource);
            return wrong(format!("{path}.resource"), message);
        }
        resources.insert(&vendor.resource);
    }
    for (index, flavor) in document.flavors.iter().enumerate() {
        check_flavor(&format!("flavors[{index}]"), flavor, &resources)?;
    }
    Ok(())
}

fn check_vendor(path: &str, vendor: &Vendor) -> Result<(), FlavorError> {
    let wrong = |field: String, message: String| {
        let path = format!("{path}.{field}");
        Err(FlavorError::Wrong { path, message })
    };
    if !is_extended(&vendor.resource) {
        let message = format!(
            "{:?} is no extended resource: write domain/name, such as nvidia.com/gpu",
            vendor.resource
        );
        return wrong("resource".to_owned(), message);
    }
    for (index, sign) in vendor.withheld.iter().enumerate() {
        if sign.label.is_some() == sign.annotation.is_some() {
            let message = "name either a label or an annotation".to_owned();
            return wrong(format!("withheld[{index}]"), message);
        }
    }
    let empty = |keys: &[String]| keys.iter().any(String::is_empty);
    for (field, is_empty) in [
        ("product", empty(&vendor.product)),
        ("present", empty(&vendor.present)),
        ("suffixes", empty(&vendor.suffixes)),
        ("parts", empty(&vendor.parts)),
        (
            "taints",
            vendor.taints.iter().any(|taint| taint.key.is_empty()),
        ),
    ] {
        if is_empty {
            return wrong(field.to_owned(), "has an empty entry".to_owned());
        }
    }
    Ok(())
}

fn check_flavor(
    path: &str,
    flavor: &Flavor,
    resources: &BTreeSet<&str>,
) -> Result<(), FlavorError> {
    let wrong = |field: &str, message: String| {
        let path = format!("{path}.{field}");
        Err(FlavorError::Wrong { path, message })
    };
    if let Some(message) = bad_name(&flavor.name, MAX_FLAVOR_CHARS) {
        return wrong("name", message);
    }
    if flavor.name == CPU {
        let message = format!("{CPU:?} is the flavor of nodes without GPUs: choose another name");
        return wrong("name", message);
    }
    if !resources.contains(flavor.resource.as_str()) {
        let near = nearest(&flavor.resource, resources.iter().copied());
        let hint = near.map_or(String::new(), |near| format!(", did you mean {near:?}?"));
        let message = format!(
            "no vendor has {:?}{hint} Add it under vendors",
            flavor.resource
        );
        return wrong("resource", message.replace("\" Add", "\". Add"));
    }
    for node in &flavor.nodes {
        let bad = node
            .iter()
            .find(|(key, values)| key.is_empty() || values.is_empty());
        if node.is_empty() || bad.is_some() {
            let message = "an entry must name labels, and each label values".to_owned();
            return wrong("nodes", message);
        }
    }
    Ok(())
}

/// What keeps a text from being part of a pool's name; `None` = nothing.
pub(super) fn bad_name(name: &str, most: usize) -> Option<String> {
    let mut found = Findings::default();
    found.label("name", name);
    if let Some(found) = found.list.first() {
        return Some(found.message.clone());
    }
    if name.len() > most {
        return Some(format!(
            "{name:?} has {} characters, at most {most} fit",
            name.len()
        ));
    }
    name.contains(BETWEEN)
        .then(|| format!("{name:?} holds {BETWEEN:?}, which separates a pool's name from a flavor"))
}

fn is_extended(resource: &str) -> bool {
    resource.split_once('/').is_some_and(|(domain, name)| {
        domain.contains('.') && !name.is_empty() && !resource.contains(char::is_whitespace)
    })
}
