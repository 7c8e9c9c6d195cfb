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

use super::config::pool_beside;
use super::findings::{Word, counted, named, per_node_counts};
use super::flavors::{BETWEEN, FlavorTable};
use super::host::{Host, Share};
use super::strings::Name;
use super::topology::{Level, Levels, Shown};
use crate::backend::PoolSeen;

/// Reason of nodes that lack the label of a level.
pub(super) const UNLABELLED: &str = "UnlabelledNodes";

/// Nodes of one flavor that claim one name.
#[derive(Debug, Default)]
struct Group {
    nodes: usize,
    /// Position of the vendor in the table.
    vendor: u8,
    /// Per level that the pool may have.
    levels: Vec<Carried>,
    /// Nodes per version of the driver.
    drivers: BTreeMap<Name, usize>,
    /// Nodes per version of the toolkit.
    toolkits: BTreeMap<Name, usize>,
    /// Hosts with something odd and what it is, by the reason.
    odd: BTreeMap<&'static str, BTreeMap<Name, String>>,
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
    pub(super) fn add(&mut self, name: &Name, host: &Host, levels: &Levels) {
        for share in &host.shares {
            let flavors = self.claims.entry(share.claim.clone()).or_default();
            let group = flavors.entry(share.flavor.clone()).or_default();
            group.vendor = share.vendor;
            group.add(share, levels.of(&share.claim));
            for oddity in &host.oddities {
                let hosts = group.odd.entry(oddity.reason()).or_default();
                let said = hosts.entry(name.clone()).or_default();
                if !said.is_empty() {
                    said.push_str("; ");
                }
                said.push_str(&oddity.message());
            }
        }
    }

    /// Counts a node out that was counted in.
    pub(super) fn remove(&mut self, name: &Name, host: &Host) {
        for share in &host.shares {
            let Some(flavors) = self.claims.get_mut(&share.claim) else {
                continue;
            };
            let Some(group) = flavors.get_mut(&share.flavor) else {
                continue;
            };
            group.remove(share);
            for oddity in &host.oddities {
                if let Some(hosts) = group.odd.get_mut(oddity.reason()) {
                    hosts.remove(name);
                }
            }
            group.odd.retain(|_, hosts| !hosts.is_empty());
            if group.nodes == 0 {
                flavors.remove(&share.flavor);
            }
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
        let (owner, levels) = (owner(flavors), levels.of(claim));
        let several = several_flavors(claim, flavors);
        let seen = |(flavor, group): (&Name, &Group)| {
            let all = several.iter().cloned();
            let all = all.chain(group.words(levels)).chain(group.odd_words());
            PoolSeen {
                name: if Some(flavor) == owner {
                    claim.to_owned()
                } else {
                    pool_beside(claim, flavor)
                },
                flavor: flavor.to_string(),
                levels: group.shown(levels),
                findings: all
                    .map(|(reason, text)| format!("{text} ({reason})"))
                    .collect(),
            }
        };
        flavors.iter().map(seen).collect()
    }

    /// What the nodes of the pool that a share is in show together.
    pub(super) fn words(&self, share: &Share, levels: &[Level]) -> Vec<Word> {
        let Some(flavors) = self.claims.get(&share.claim) else {
            return Vec::new();
        };
        let own = flavors.get(&share.flavor).map(|group| group.words(levels));
        let several = several_flavors(&share.claim, flavors).into_iter();
        several.chain(own.into_iter().flatten()).collect()
    }

    /// Every claim.
    pub(super) fn claims(&self) -> impl Iterator<Item = &Name> {
        self.claims.keys()
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
    fn add(&mut self, share: &Share, levels: &[Level]) {
        self.nodes += 1;
        self.levels.resize_with(levels.len(), Carried::default);
        for ((carried, level), domain) in self.levels.iter_mut().zip(levels).zip(&share.domains) {
            let Some(domain) = domain else { continue };
            carried.nodes += 1;
            if level.shown == Shown::WhenSeveral {
                count_in(&mut carried.domains, domain);
            }
        }
        share
            .driver
            .iter()
            .for_each(|driver| count_in(&mut self.drivers, driver));
        share
            .toolkit
            .iter()
            .for_each(|toolkit| count_in(&mut self.toolkits, toolkit));
    }

    fn remove(&mut self, share: &Share) {
        self.nodes -= 1;
        for (carried, domain) in self.levels.iter_mut().zip(&share.domains) {
            let Some(domain) = domain else { continue };
            carried.nodes -= 1;
            count_out(&mut carried.domains, domain);
        }
        share
            .driver
            .iter()
            .for_each(|driver| count_out(&mut self.drivers, driver));
        share
            .toolkit
            .iter()
            .for_each(|toolkit| count_out(&mut self.toolkits, toolkit));
    }

    /// What its nodes show together: at most one line for each kind of version and each level.
    fn words(&self, levels: &[Level]) -> Vec<Word> {
        let mut words = Vec::new();
        for (what, versions) in [("drivers", &self.drivers), ("toolkits", &self.toolkits)] {
            if versions.len() > 1 {
                let text = format!("{what} differ: {}", per_node_counts(versions));
                words.push(("VersionSkew", text));
            }
        }
        let there = levels.iter().enumerate();
        for (at, level) in there.filter(|(at, level)| self.has(*at, level.shown)) {
            let lacking = self.nodes - self.levels.get(at).map_or(0, |carried| carried.nodes);
            if lacking > 0 {
                words.push((UNLABELLED, unlabelled(lacking, self.nodes, level)));
            }
        }
        words
    }

    /// The oddities of its nodes, one line for each reason: how many have it, and of the first one
    /// what it is.
    fn odd_words(&self) -> impl Iterator<Item = Word> {
        self.odd.iter().filter_map(|(reason, hosts)| {
            let (first, said) = hosts.first_key_value()?;
            let all = format!("{} ({})", counted(hosts.len(), "node"), named(hosts.keys()));
            Some((*reason, format!("{all}; {first}: {said}")))
        })
    }

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

/// The text about nodes that lack the label of a level.
pub(super) fn unlabelled(lacking: usize, nodes: usize, level: &Level) -> String {
    format!(
        "{} of {nodes} without level {:?} (label {}), each a domain of its own",
        counted(lacking, "node"),
        level.name,
        level.labels.join(" or ")
    )
}

fn count_in(counts: &mut BTreeMap<Name, usize>, name: &Name) {
    *counts.entry(name.clone()).or_default() += 1;
}

fn count_out(counts: &mut BTreeMap<Name, usize>, name: &Name) {
    if let Some(count) = counts.get_mut(name) {
        *count -= 1;
        if *count == 0 {
            counts.remove(name);
        }
    }
}

/// A name that nodes of several flavors claim.
fn several_flavors(claim: &str, flavors: &BTreeMap<Name, Group>) -> Option<Word> {
    if flavors.len() < 2 {
        return None;
    }
    let counts = flavors
        .iter()
        .map(|(flavor, group)| (flavor.clone(), group.nodes));
    let text = format!(
        "nodes of several flavors claim {claim:?}, a pool has one: {}; the fewer are in pools \
         {claim}{BETWEEN}<flavor>",
        per_node_counts(&counts.collect())
    );
    Some(("SeveralFlavors", text))
}

/// The flavor that has the claim's plain name.
fn owner(flavors: &BTreeMap<Name, Group>) -> Option<&Name> {
    // Of equals `max_by_key` takes the last, so the last in reverse order.
    let most = flavors.iter().rev().max_by_key(|(_, group)| group.nodes)?;
    Some(most.0)
}
