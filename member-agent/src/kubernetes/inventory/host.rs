//! One node of the cluster, read: what of it counts for the fleet.
//!
//! Owns the reading of labels, taints and conditions: flavors, pool, health, domains, versions.
//! Amounts are in `cards`. Pure, and blind to all other nodes and to pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, Taint};
use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus};
use meridian_api::validate::MAX_GPUS_PER_HOST;

use super::cards::{Cards, part_of};
use super::config::{InventoryConfig, bad_pool};
use super::findings::Oddity;
use super::flavors::{CPU, FlavorTable, Vendor, product_name};
use super::strings::{Name, Strings};
use super::topology::{self, Levels};
use crate::backend::NodeHealth;
use crate::kubernetes::names::POOL;

/// The vendor of what has no GPUs.
const NO_VENDOR: u8 = u8::MAX;
/// Effects of taints that keep pods away.
const CLOSING_EFFECTS: [&str; 2] = ["NoSchedule", "NoExecute"];

/// The part of a node that one flavor has: all of it, or a share when its cards are of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// The pool that the node's label, a rule or its flavor names.
    pub(super) claim: Name,
    pub(super) flavor: Name,
    /// Position of the vendor in the table.
    pub(super) vendor: u8,
    pub(super) health: NodeHealth,
    /// Cards that its resource counts: the weight by which CPU and memory are divided.
    pub(super) cards: u64,
    pub(super) gpus: MilliGpus,
    pub(super) unhealthy: MilliGpus,
    pub(super) cpu: MilliCpus,
    pub(super) memory: Mebibytes,
    /// Per level that its pool may have.
    pub(super) domains: Box<[Option<Name>]>,
    pub(super) driver: Option<Name>,
    pub(super) toolkit: Option<Name>,
}

/// What is kept of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Host {
    /// By resource.
    pub(super) shares: Box<[Share]>,
    pub(super) oddities: Box<[Oddity]>,
}

/// A node that is being read.
pub(super) struct Reading<'a> {
    pub(super) table: &'a FlavorTable,
    pub(super) config: &'a InventoryConfig,
    pub(super) levels: &'a Levels,
    pub(super) strings: &'a mut Strings,
    pub(super) labels: &'a BTreeMap<String, String>,
    pub(super) annotations: &'a BTreeMap<String, String>,
    pub(super) spec: Option<&'a NodeSpec>,
    pub(super) status: Option<&'a NodeStatus>,
    pub(super) deleted: bool,
    /// What was odd so far.
    pub(super) odd: Vec<Oddity>,
}

/// Reads a node.
pub(super) fn read(
    node: &Node,
    table: &FlavorTable,
    config: &InventoryConfig,
    levels: &Levels,
    strings: &mut Strings,
) -> Host {
    let none = BTreeMap::new();
    let reading = Reading {
        table,
        config,
        levels,
        strings,
        labels: node.metadata.labels.as_ref().unwrap_or(&none),
        annotations: node.metadata.annotations.as_ref().unwrap_or(&none),
        spec: node.spec.as_ref(),
        status: node.status.as_ref(),
        deleted: node.metadata.deletion_timestamp.is_some(),
        odd: Vec::new(),
    };
    reading.host()
}

impl Reading<'_> {
    fn host(mut self) -> Host {
        let mut shares = Vec::new();
        let table = self.table;
        for (index, vendor) in table.vendors.iter().enumerate() {
            let cards = self.cards(vendor);
            if let Some(flavor) = self.flavor(index, cards) {
                let index = u8::try_from(index).expect("the table has less than 256");
                shares.push(self.share(index, flavor, cards));
            }
        }
        if shares.is_empty() && self.claim().is_some() {
            let flavor = self.strings.get(CPU);
            shares.push(self.share(NO_VENDOR, flavor, Cards::default()));
        }
        if shares.is_empty() {
            // The fleet does not use it, so how it is closed and what it lacks is nobody's matter;
            // but cards that lie idle for want of a label are.
            let idle = |odd: &Oddity| matches!(odd, Oddity::UnknownHardware { .. });
            self.odd.retain(idle);
        } else {
            self.divide(&mut shares);
        }
        Host {
            shares: shares.into(),
            oddities: self.odd.into(),
        }
    }

    /// Notes what is odd, once.
    pub(super) fn note(&mut self, odd: Oddity) {
        if !self.odd.contains(&odd) {
            self.odd.push(odd);
        }
    }

    /// The flavor of a vendor's cards; `None` when it has none here, or nothing says what they
    /// are.
    fn flavor(&mut self, index: usize, cards: Cards) -> Option<Name> {
        let table = self.table;
        let vendor = &table.vendors[index];
        let resource = self.strings.get(&vendor.resource);
        if cards.capacity == 0 {
            return self.flavor_of_none(index, cards, resource);
        }
        if let Some(flavor) = table.flavor(index, self.labels) {
            return Some(self.strings.get(flavor));
        }
        let product = vendor.product.iter().find_map(|key| self.labels.get(key));
        let product = product.map(|product| vendor.whole_product(product));
        let named = product.and_then(|product| Some((product, product_name(product)?)));
        let Some((product, flavor)) = named else {
            let cards = cards.capacity;
            self.note(Oddity::UnknownHardware { resource, cards });
            return None;
        };
        let (product, flavor) = (self.strings.get(product), self.strings.get(&flavor));
        self.note(Oddity::UnknownProduct {
            flavor: flavor.clone(),
            product,
        });
        Some(flavor)
    }

    /// The flavor that the labels alone tell: a plugin that is away does not take a node out of
    /// its pool.
    fn flavor_of_none(&mut self, index: usize, cards: Cards, resource: Name) -> Option<Name> {
        let table = self.table;
        if let Some(flavor) = table.labelled_flavor(index, self.labels) {
            let flavor = self.strings.get(flavor);
            if !cards.listed {
                self.note(Oddity::NoPlugin {
                    resource,
                    flavor: flavor.clone(),
                });
            }
            return Some(flavor);
        }
        let is_true = |label| self.labels.get(label).is_some_and(|value| value == "true");
        if table.vendors[index].present.iter().any(is_true) {
            self.note(Oddity::UnknownHardware { resource, cards: 0 });
        }
        None
    }

    /// One flavor's share, without CPU and memory.
    fn share(&mut self, index: u8, flavor: Name, cards: Cards) -> Share {
        let claim = self.claim().unwrap_or_else(|| flavor.clone());
        let table = self.table;
        let vendor = table.vendors.get(usize::from(index));
        let levels = self.levels.of(&claim);
        let domains = topology::domains(levels, self.labels, self.strings);
        Share {
            claim,
            flavor,
            vendor: index,
            health: self.health(vendor),
            cards: cards.capacity.min(MAX_GPUS_PER_HOST),
            gpus: MilliGpus::cards(cards.offered),
            unhealthy: MilliGpus::cards(cards.out),
            cpu: MilliCpus::ZERO,
            memory: Mebibytes::ZERO,
            domains,
            driver: self.version(vendor.map(|vendor| &vendor.driver)),
            toolkit: self.version(vendor.map(|vendor| &vendor.toolkit)),
        }
    }

    /// The pool that the node's label or a rule names.
    fn claim(&mut self) -> Option<Name> {
        if let Some(name) = self.labels.get(POOL) {
            let Some(because) = bad_pool(name) else {
                return Some(self.strings.get(name));
            };
            let because = self.strings.get(&because);
            self.note(Oddity::BadPool { because });
            return None;
        }
        let fits = |(key, value): (&String, &String)| self.labels.get(key) == Some(value);
        let mut rules = self.config.pools.iter();
        let rule = rules.find(|rule| rule.node_selector.iter().all(fits))?;
        Some(self.strings.get(&rule.pool))
    }

    fn health(&mut self, vendor: Option<&Vendor>) -> NodeHealth {
        if !self.is_true("Ready") {
            return NodeHealth::Down;
        }
        if self.deleted || self.spec.and_then(|spec| spec.unschedulable) == Some(true) {
            return NodeHealth::Cordoned;
        }
        let Some(by) = self.closed_by(vendor) else {
            return NodeHealth::Ready;
        };
        let by = self.strings.get(&by);
        self.note(Oddity::Closed { by });
        NodeHealth::Cordoned
    }

    /// The taint or condition that closes the node to gangs on this vendor's cards.
    fn closed_by(&self, vendor: Option<&Vendor>) -> Option<String> {
        let tolerates = |taint: &Taint| {
            let mut configured = self.config.tolerated_taints.iter();
            vendor.is_some_and(|vendor| vendor.tolerates(taint))
                || configured.any(|rule| rule.is_for(taint))
        };
        let taints = self.spec.and_then(|spec| spec.taints.as_ref());
        let closes =
            |taint: &&Taint| CLOSING_EFFECTS.contains(&taint.effect.as_str()) && !tolerates(taint);
        if let Some(taint) = taints.into_iter().flatten().find(closes) {
            let value = taint.value.as_deref().unwrap_or_default();
            return Some(format!("taint {}={value}:{}", taint.key, taint.effect));
        }
        let mut conditions = self.config.closing_conditions.iter();
        let condition = conditions.find(|condition| self.is_true(condition))?;
        Some(format!("condition {condition}"))
    }

    fn is_true(&self, condition: &str) -> bool {
        let conditions = self.status.and_then(|status| status.conditions.as_ref());
        let mut conditions = conditions.into_iter().flatten();
        conditions.any(|seen| seen.type_ == condition && seen.status == "True")
    }

    /// The first list of labels with a value, joined by dots; empty values are left out.
    fn version(&mut self, lists: Option<&Vec<Vec<String>>>) -> Option<Name> {
        let join = |keys: &Vec<String>| {
            let values = keys.iter().filter_map(|key| self.labels.get(key));
            let values: Vec<&str> = values
                .map(String::as_str)
                .filter(|value| !value.is_empty())
                .collect();
            (!values.is_empty()).then(|| values.join("."))
        };
        let version = lists?.iter().find_map(join)?;
        Some(self.strings.get(&version))
    }

    /// Divides CPU and memory among the flavors of a node by their cards. A remainder is nobody's.
    fn divide(&mut self, shares: &mut [Share]) {
        let cpu = self.allocatable("cpu").cpu_floor();
        let memory = self.allocatable("memory").memory_floor();
        let weights: Vec<u64> = shares.iter().map(|share| share.cards).collect();
        for (index, share) in shares.iter_mut().enumerate() {
            share.cpu = MilliCpus(part_of(cpu.0, &weights, index));
            share.memory = Mebibytes(part_of(memory.0, &weights, index));
        }
        if let [_, _, ..] = shares {
            let each = |share: &Share| format!("{} {}", share.cards, share.flavor);
            let flavors: Vec<String> = shares.iter().map(each).collect();
            let flavors = self.strings.get(&flavors.join(" and "));
            self.note(Oddity::SeveralFlavors { flavors });
        }
    }
}
