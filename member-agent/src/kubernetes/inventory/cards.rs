//! The amounts of one node: cards, CPU, memory, each on the safe side.
//!
//! Owns what is believed when capacity, allocatable and labels contradict one another. A node that
//! says too much offers the least that any of them says; one whose resource does not count whole
//! free cards offers none, and says why.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use meridian_api::validate::MAX_GPUS_PER_HOST;

use super::findings::Oddity;
use super::flavors::{CardsFrom, Sign, Vendor};
use super::host::Reading;
use super::quantity::Amount;

/// Cards of one vendor on one node.
#[derive(Clone, Copy, Default)]
pub(super) struct Cards {
    /// The resource is there, with any number.
    pub(super) listed: bool,
    pub(super) capacity: u64,
    pub(super) offered: u64,
    /// Cards that are there and cannot be used.
    pub(super) out: u64,
}

impl<'a> Reading<'a> {
    /// How many cards of a vendor there are, and how many of them are offered.
    pub(super) fn cards(&mut self, vendor: &Vendor) -> Cards {
        let capacity = self.amount(self.capacities(), &vendor.resource);
        let allocatable = self.amount(self.allocatables(), &vendor.resource);
        let has_parts = self.parts(vendor);
        let both = capacity.or(allocatable).zip(allocatable.or(capacity));
        let Some((capacity, allocatable)) = both else {
            return Cards::default();
        };
        let (capacity, allocatable) = (capacity.floor(), allocatable.floor());
        let what = self.strings.get(&vendor.resource);
        if allocatable > capacity {
            self.note(Oddity::AboveCapacity {
                what: what.clone(),
                allocatable,
                capacity,
            });
        }
        let whole = Cards {
            listed: true,
            capacity,
            offered: allocatable.min(capacity),
            out: capacity.saturating_sub(allocatable),
        };
        let labelled = self.labelled(vendor);
        let none = |out: u64| Cards {
            offered: 0,
            out: out.min(MAX_GPUS_PER_HOST),
            ..whole
        };
        if let Some(sign) = vendor.withheld.iter().find(|sign| self.shows(sign)) {
            let because = self.strings.get(&sign.because);
            let resource = what;
            self.note(Oddity::Withheld { resource, because });
            return none(match sign.cards {
                CardsFrom::Nothing => 0,
                CardsFrom::Count => labelled.unwrap_or(0),
                CardsFrom::Capacity => capacity,
            });
        }
        if capacity > MAX_GPUS_PER_HOST {
            let (resource, cards) = (what, capacity);
            self.note(Oddity::TooMany { resource, cards });
            return none(0);
        }
        let Some(labelled) = labelled else {
            return whole;
        };
        if labelled < capacity {
            self.note(Oddity::NotWhole {
                resource: what,
                labelled,
                capacity,
            });
            return none(labelled);
        }
        // Beside divided cards, the whole ones are fewer than all.
        if labelled > capacity && !has_parts {
            self.note(Oddity::FewerCards {
                resource: what,
                labelled,
                capacity,
            });
        }
        whole
    }

    /// Notes the vendor's resources that are parts of cards; true when there are any.
    fn parts(&mut self, vendor: &Vendor) -> bool {
        let mut any = false;
        for (name, quantity) in self.capacities().into_iter().flatten() {
            if vendor.parts.iter().any(|part| name.starts_with(part)) {
                let parts = Amount::read(quantity).map_or(0, Amount::floor);
                if parts > 0 {
                    let resource = self.strings.get(name);
                    self.note(Oddity::Parts { resource, parts });
                    any = true;
                }
            }
        }
        any
    }

    /// True when a sign is on the node.
    fn shows(&self, sign: &Sign) -> bool {
        let label = sign.label.as_ref().and_then(|key| self.labels.get(key));
        let annotation = sign.annotation.as_ref();
        let annotation = annotation.and_then(|key| self.annotations.get(key));
        label.or(annotation).is_some_and(|value| {
            let held = sign.contains.as_ref();
            !sign.unless.contains(value) && held.is_none_or(|held| value.contains(held.as_str()))
        })
    }

    /// The number of cards that the vendor's label says; one that no host can have says nothing.
    fn labelled(&self, vendor: &Vendor) -> Option<u64> {
        let label = self.labels.get(vendor.count.as_ref()?)?;
        let cards = label.parse().ok()?;
        (1..=MAX_GPUS_PER_HOST).contains(&cards).then_some(cards)
    }

    /// What pods may ask for of a resource, at most what there is.
    pub(super) fn allocatable(&mut self, what: &str) -> Amount {
        let capacity = self.amount(self.capacities(), what);
        let allocatable = self.amount(self.allocatables(), what);
        let both = capacity.or(allocatable).zip(allocatable.or(capacity));
        let Some((capacity, allocatable)) = both else {
            return Amount::ZERO;
        };
        if allocatable > capacity {
            let what = self.strings.get(what);
            self.note(Oddity::AboveCapacity {
                what,
                allocatable: allocatable.floor(),
                capacity: capacity.floor(),
            });
        }
        allocatable.min(capacity)
    }

    /// An amount of a resource; what is absurd counts as nothing.
    fn amount(
        &mut self,
        amounts: Option<&BTreeMap<String, Quantity>>,
        what: &str,
    ) -> Option<Amount> {
        let read = Amount::read(amounts?.get(what)?);
        Some(read.unwrap_or_else(|absurd| {
            let what = self.strings.get(what);
            let text = absurd.0;
            self.note(Oddity::Absurd { what, text });
            Amount::ZERO
        }))
    }

    fn capacities(&self) -> Option<&'a BTreeMap<String, Quantity>> {
        self.status?.capacity.as_ref()
    }

    fn allocatables(&self) -> Option<&'a BTreeMap<String, Quantity>> {
        self.status?.allocatable.as_ref()
    }
}

/// The part of `amount` that falls to one of several weights, rounded down; all of it to the first
/// when none weighs anything.
pub(super) fn part_of(amount: u64, weights: &[u64], index: usize) -> u64 {
    let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    if sum == 0 {
        return if index == 0 { amount } else { 0 };
    }
    let part = u128::from(amount) * u128::from(weights[index]) / sum;
    u64::try_from(part).expect("a part is at most the whole")
}
