//! `PriceBook`: what a card is worth beside the others, and what an hour of it costs.
//!
//! Owns its shape, its checks, and which of its prices holds for a place. Never adds up a bill.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::workload_class::CapacityType;
use crate::errors::FieldReason;
use crate::meta::{Condition, Object, Spec};
use crate::quantity::{Money, REFERENCE_WORTH, Worth};
use crate::units::MicroMoney;
use crate::validate::{Checked, Findings};

/// A price book. An installation has at most one.
pub type PriceBook = Object<PriceBookSpec, PriceBookStatus>;

impl Spec for PriceBookSpec {
    const KIND: &'static str = "PriceBook";
    const ABOUT: &'static str =
        "What a card of each flavor is worth, and what an hour of it costs.";
    const PLURAL: &'static str = "pricebooks";
    const NAMESPACED: bool = false;
    type Status = PriceBookStatus;
}

/// Worth and prices of all flavors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PriceBookSpec {
    /// ISO 4217 code of every price: `EUR`.
    pub currency: String,
    /// One row per flavor. A flavor without a row is worth the reference card, and has no price.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flavors: Vec<FlavorPrice>,
    /// Prices of data on its way from region to region. The row that names both ends holds, then
    /// the one that names where it comes from; what no row names costs what its region says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub egress: Vec<EgressPrice>,
}

/// Price of data on one way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EgressPrice {
    /// Region it comes from.
    pub from: String,
    /// Region it goes to; absent = to any other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Price of a gigabyte.
    #[serde(rename = "perGB")]
    pub per_gb: Money,
}

/// One flavor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FlavorPrice {
    /// Which.
    pub flavor: String,
    /// Worth of one card beside the reference card's, which is `1`: shares are weighed by it.
    #[serde(default = "reference")]
    pub worth: Worth,
    /// Price of one card for an hour, where no row of `prices` holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_hour: Option<Money>,
    /// Prices of some regions or capacity types. The row that names more holds; of two that name
    /// one each, the region's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prices: Vec<PriceRow>,
}

const fn reference() -> Worth {
    REFERENCE_WORTH
}

/// A price that holds in some places only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PriceRow {
    /// Region it holds in; absent = in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Capacity it holds for; absent = for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<CapacityType>,
    /// Price of one card for an hour.
    pub gpu_hour: Money,
}

/// What is so with a price book.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PriceBookStatus {
    /// Generation of the spec it speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Most flavors of a book: more than any fleet has.
pub const MAX_FLAVORS: usize = 128;
/// Most prices of one flavor: every capacity type in a few dozen regions.
pub const MAX_PRICES: usize = 256;
/// Most ways that have a price: each pair of a hundred regions.
pub const MAX_WAYS: usize = 10_000;
/// Largest worth, a thousand reference cards: worth times all milli-GPUs of a fleet of a billion
/// cards stays below 2^64.
pub const MAX_WORTH: Worth = Worth(1_000_000);

impl PriceBookSpec {
    /// Worth of a card of `flavor`; the reference card's for a flavor that is not in the book.
    #[must_use]
    pub fn worth(&self, flavor: &str) -> Worth {
        self.row(flavor).map_or(REFERENCE_WORTH, |row| row.worth)
    }

    /// Price of one card of `flavor` for an hour; `None` when the book does not say.
    #[must_use]
    pub fn gpu_hour(
        &self,
        flavor: &str,
        region: &str,
        capacity: CapacityType,
    ) -> Option<MicroMoney> {
        let row = self.row(flavor)?;
        let holds = |price: &&PriceRow| {
            price.region.as_deref().is_none_or(|name| name == region)
                && price.capacity.is_none_or(|named| named == capacity)
        };
        let most_specific = |price: &&PriceRow| (price.region.is_some(), price.capacity.is_some());
        let named = row.prices.iter().filter(holds).max_by_key(most_specific);
        named
            .map(|price| price.gpu_hour)
            .or(row.gpu_hour)
            .map(|price| price.0)
    }

    /// True when a price of the flavor is for this region by name.
    #[must_use]
    pub fn names_region(&self, flavor: &str, region: &str) -> bool {
        let rows = self.row(flavor).into_iter().flat_map(|row| &row.prices);
        let mut regions = rows.filter_map(|price| price.region.as_deref());
        regions.any(|name| name == region)
    }

    /// Price of a gigabyte from one region to another; `None` when the book does not say.
    #[must_use]
    pub fn egress(&self, from: &str, to: &str) -> Option<MicroMoney> {
        let holds = |row: &&EgressPrice| {
            row.from == from && row.to.as_deref().is_none_or(|name| name == to)
        };
        let rows = self.egress.iter().filter(holds);
        rows.max_by_key(|row| row.to.is_some())
            .map(|row| row.per_gb.0)
    }

    fn row(&self, flavor: &str) -> Option<&FlavorPrice> {
        self.flavors.iter().find(|row| row.flavor == flavor)
    }
}

impl Checked for PriceBookSpec {
    const SHORT_NAMES: bool = true;

    fn check(&self, found: &mut Findings) {
        found.currency("spec.currency", &self.currency);
        found.too_many("spec.flavors", self.flavors.len(), MAX_FLAVORS);
        for (index, row) in self.flavors.iter().enumerate() {
            let path = format!("spec.flavors[{index}]");
            found.name(&format!("{path}.flavor"), &row.flavor);
            let before = &self.flavors[..index];
            if before.iter().any(|other| other.flavor == row.flavor) {
                let message = format!("{:?} has two rows: put them into one", row.flavor);
                found.add(&format!("{path}.flavor"), FieldReason::Duplicate, message);
            }
            row.check(&path, found);
        }
        self.check_egress(found);
    }

    fn check_update(&self, _new: &Self, _found: &mut Findings) {}
}

impl PriceBookSpec {
    fn check_egress(&self, found: &mut Findings) {
        found.too_many("spec.egress", self.egress.len(), MAX_WAYS);
        let mut ways = std::collections::BTreeSet::new();
        for (index, row) in self.egress.iter().enumerate() {
            let path = format!("spec.egress[{index}]");
            found.name(&format!("{path}.from"), &row.from);
            if let Some(to) = &row.to {
                found.name(&format!("{path}.to"), to);
            }
            if !ways.insert((&row.from, &row.to)) {
                let message = "the same way has two prices: leave one";
                found.add(&path, FieldReason::Duplicate, message);
            }
            found.price(&format!("{path}.perGB"), row.per_gb);
        }
    }
}

impl FlavorPrice {
    fn check(&self, path: &str, found: &mut Findings) {
        if self.worth.0 == 0 || self.worth > MAX_WORTH {
            let message = format!("is {}, must be from 0.001 to {MAX_WORTH}", self.worth);
            found.invalid(&format!("{path}.worth"), message);
        }
        if let Some(price) = self.gpu_hour {
            found.price(&format!("{path}.gpuHour"), price);
        }
        found.too_many(&format!("{path}.prices"), self.prices.len(), MAX_PRICES);
        for (index, price) in self.prices.iter().enumerate() {
            let path = format!("{path}.prices[{index}]");
            if let Some(region) = &price.region {
                found.name(&format!("{path}.region"), region);
            }
            if price.region.is_none() && price.capacity.is_none() {
                let message = "names no region and no capacity: write it as the flavor's gpuHour";
                found.add(&path, FieldReason::Required, message);
            }
            let same = |other: &PriceRow| {
                (&other.region, other.capacity) == (&price.region, price.capacity)
            };
            if self.prices[..index].iter().any(same) {
                let message = "the same region and capacity have two prices: leave one";
                found.add(&path, FieldReason::Duplicate, message);
            }
            found.price(&format!("{path}.gpuHour"), price.gpu_hour);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(region: Option<&str>, capacity: Option<CapacityType>, cents: i64) -> PriceRow {
        PriceRow {
            region: region.map(str::to_owned),
            capacity,
            gpu_hour: Money(MicroMoney(cents * 10_000)),
        }
    }

    #[test]
    fn the_row_that_names_more_holds() {
        let book = PriceBookSpec {
            currency: "EUR".into(),
            flavors: vec![FlavorPrice {
                flavor: "h100".into(),
                worth: Worth(1000),
                gpu_hour: Some(Money(MicroMoney(2_600_000))),
                prices: vec![
                    price(None, Some(CapacityType::Spot), 110),
                    price(Some("eu-west"), None, 280),
                    price(Some("eu-west"), Some(CapacityType::Spot), 90),
                ],
            }],
            egress: Vec::new(),
        };
        let cents = |region, capacity| {
            let price = book.gpu_hour("h100", region, capacity);
            price.map(|price| price.0 / 10_000)
        };
        assert_eq!(cents("us-east", CapacityType::Nominal), Some(260));
        assert_eq!(cents("us-east", CapacityType::Spot), Some(110));
        assert_eq!(cents("eu-west", CapacityType::Loan), Some(280));
        assert_eq!(cents("eu-west", CapacityType::Spot), Some(90));
        assert_eq!(book.gpu_hour("l4", "eu-west", CapacityType::Spot), None);
        assert_eq!(
            (book.worth("l4"), book.worth("h100")),
            (Worth(1000), Worth(1000))
        );
    }
}
