//! Pools: nodes of one flavor under one name, and the levels that they have together.
//!
//! Owns the name of each pool and its levels, kept up to date by counts, so that a change of one
//! node costs what that node has. What comes out depends on the nodes that are there and on
//! nothing else, neither on their order nor on what was there before.
//!
//! A pool has one flavor. Where nodes of several flavors claim one name, it belongs to the flavor
//! with the most nodes (of two, to the first by name), and each other one is the pool
//! `<name>--<flavor>`. One node with a wrong label so moves itself and nobody else.

use std::collections::BTreeMap;

use super::flavors::FlavorTable;
use super::host::Share;
use super::strings::Name;
use super::topology::{Level, Levels, Shown};
use crate::backend::PoolSeen;
use crate::kubernetes::inventory::config::pool_beside;

/// Nodes of one flavor that claim one name.
#[derive(Debug, Default)]
struct Group {
    nodes: usize,
    /// Position of the vendor in the table.
    vendor: u8,
    /// Per level that the pool may have.
    levels: Vec<Carried>,
}

/// Who carries the labels of a level.
#[derive(Debug, Default)]
struct Carried {
    nodes: usize,
    /// Nodes per domain; kept only where their number decides.
    domains: BTreeMap<Name, usize>,
}

/// Every pool.
#[derive(Debug, Default)]
pub(super) struct Pools {
    claims: BTreeMap<Name, BTreeMap<Name, Group>>,
}

impl Pools {
    /// Counts a node in.
    pub(super) fn add(&mut self, share: &Share, levels: &[Level]) {
        let flavors = self.claims.entry(share.claim.clone()).or_default();
        let group = flavors.entry(share.flavor.clone()).or_default();
        group.nodes += 1;
        group.vendor = share.vendor;
        group.levels.resize_with(levels.len(), Carried::default);
        for ((carried, level), domain) in group.levels.iter_mut().zip(levels).zip(&share.domains) {
            let Some(domain) = domain else { continue };
            carried.nodes += 1;
            if level.shown == Shown::WhenSeveral {
                *carried.domains.entry(domain.clone()).or_default() += 1;
            }
        }
    }

    /// Counts a node out that was counted in.
    pub(super) fn remove(&mut self, share: &Share) {
        let flavors = self.claims.get_mut(&share.claim);
        let Some(group) = flavors.and_then(|flavors| flavors.get_mut(&share.flavor)) else {
            return;
        };
        group.nodes -= 1;
        for (carried, domain) in group.levels.iter_mut().zip(&share.domains) {
            let Some(domain) = domain else { continue };
            carried.nodes -= 1;
            if let Some(count) = carried.domains.get_mut(domain) {
                *count -= 1;
                if *count == 0 {
                    carried.domains.remove(domain);
                }
            }
        }
        if group.nodes == 0
            && let Some(flavors) = self.claims.get_mut(&share.claim)
        {
            flavors.remove(&share.flavor);
            if flavors.is_empty() {
                self.claims.remove(&share.claim);
            }
        }
    }

    /// The name of the pool that a share is in.
    pub(super) fn name(&self, share: &Share) -> String {
        let owner = self.claims.get(&share.claim).and_then(owner);
        if owner.is_none_or(|owner| *owner == share.flavor) {
            share.claim.to_string()
        } else {
            pool_beside(&share.claim, &share.flavor)
        }
    }

    /// Domains of a share on the levels that its pool has.
    pub(super) fn domains(&self, host: &str, share: &Share, levels: &[Level]) -> Vec<String> {
        let group = self.group(&share.claim, &share.flavor);
        let all = levels.iter().enumerate().zip(&share.domains);
        let there =
            all.filter(|((at, level), _)| group.is_some_and(|group| group.has(*at, level.shown)));
        // A name that no label can hold: `:` is none of its characters.
        let own = |domain: &Option<Name>| match domain {
            Some(domain) => domain.to_string(),
            None => format!("unlabelled:{host}"),
        };
        there.map(|(_, domain)| own(domain)).collect()
    }

    /// The pools under one claim.
    pub(super) fn of_claim(&self, claim: &str, levels: &Levels) -> Vec<PoolSeen> {
        let Some(flavors) = self.claims.get(claim) else {
            return Vec::new();
        };
        let owner = owner(flavors);
        let levels = levels.of(claim);
        let seen = |(flavor, group): (&Name, &Group)| PoolSeen {
            name: if Some(flavor) == owner {
                claim.to_owned()
            } else {
                pool_beside(claim, flavor)
            },
            flavor: flavor.to_string(),
            levels: group.shown(levels),
            findings: Vec::new(),
        };
        flavors.iter().map(seen).collect()
    }

    /// Every claim.
    pub(super) fn claims(&self) -> impl Iterator<Item = &Name> {
        self.claims.keys()
    }

    /// Flavors under a claim with their numbers of nodes.
    pub(super) fn flavors(&self, claim: &str) -> impl Iterator<Item = (&Name, usize)> {
        let flavors = self.claims.get(claim).into_iter().flatten();
        flavors.map(|(flavor, group)| (flavor, group.nodes))
    }

    /// The extended resource of a flavor that the table does not name, but nodes have.
    pub(super) fn resource_of<'a>(&self, flavor: &str, table: &'a FlavorTable) -> Option<&'a str> {
        let mut groups = self
            .claims
            .values()
            .filter_map(|flavors| flavors.get(flavor));
        let vendor = groups.find_map(|group| table.vendors.get(usize::from(group.vendor)))?;
        Some(&vendor.resource)
    }

    fn group(&self, claim: &str, flavor: &str) -> Option<&Group> {
        self.claims.get(claim)?.get(flavor)
    }
}

impl Group {
    /// Whether the pool has the level at a position.
    fn has(&self, at: usize, shown: Shown) -> bool {
        let Some(carried) = self.levels.get(at) else {
            return false;
        };
        match shown {
            Shown::Always => true,
            Shown::WhenCarried => carried.nodes > 0,
            Shown::WhenSeveral => carried.domains.len() > 1,
        }
    }

    fn shown(&self, levels: &[Level]) -> Vec<String> {
        let all = levels.iter().enumerate();
        let there = all.filter(|(at, level)| self.has(*at, level.shown));
        there.map(|(_, level)| level.name.clone()).collect()
    }
}

/// The flavor that has the claim's plain name.
fn owner(flavors: &BTreeMap<Name, Group>) -> Option<&Name> {
    // Of equals `max_by_key` takes the last, so the last in reverse order.
    let most = flavors.iter().rev().max_by_key(|(_, group)| group.nodes)?;
    Some(most.0)
}
