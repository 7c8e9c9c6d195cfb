//! The look over the whole inventory: what a person should know of pools and nodes.
//!
//! Owns what only all nodes of a pool together show at a cost: which of them lack a level, which
//! domains lie in two places. Never changes what is offered.

use std::collections::{BTreeMap, BTreeSet};

use super::Inventory;
use super::findings::{Finding, Subject, Word, counted, named};
use super::host::Share;
use super::pools::{self, UNLABELLED};
use super::strings::Name;
use super::topology::Level;
use crate::backend::PoolSeen;

/// A share with the name of its host.
type Member<'a> = (&'a Name, &'a Share);

/// Every finding: of pools, then of nodes, by name.
pub(super) fn findings(inventory: &Inventory) -> Vec<Finding> {
    let mut members: BTreeMap<String, Vec<Member<'_>>> = BTreeMap::new();
    let mut findings = BTreeSet::new();
    for (name, kept) in &inventory.hosts {
        let Some(host) = &kept.host else { continue };
        for share in &host.shares {
            let pool = inventory.pools.name(share);
            members.entry(pool).or_default().push((name, share));
        }
        findings.extend(host.oddities.iter().map(|oddity| Finding {
            subject: Subject::Node(name.to_string()),
            reason: oddity.reason(),
            message: oddity.message(),
        }));
        let claims = usize::try_from(kept.foreign.claims()).unwrap_or(usize::MAX);
        if claims > 0 && !host.shares.is_empty() {
            let pods = counted(claims, "pod");
            findings.insert(Finding {
                subject: Subject::Node(name.to_string()),
                reason: "DevicesClaimed",
                message: format!(
                    "{pods} with resource claims, whose devices nobody counts here: none of its \
                     GPUs are offered"
                ),
            });
        }
    }
    for pool in inventory.snapshot().0 {
        let members = members.get(&pool.name).map_or(&[][..], Vec::as_slice);
        let words = of_pool(inventory, &pool, members);
        findings.extend(words.into_iter().map(|(reason, message)| Finding {
            subject: Subject::Pool(pool.name.clone()),
            reason,
            message,
        }));
    }
    findings.into_iter().collect()
}

/// What the pool's counts say, with names where all its nodes must be looked at.
fn of_pool(inventory: &Inventory, pool: &PoolSeen, members: &[Member<'_>]) -> Vec<Word> {
    let Some((_, first)) = members.first() else {
        return Vec::new();
    };
    let levels = inventory.levels.of(&first.claim);
    let mut words = inventory.pools.words(first, levels);
    words.retain(|(reason, _)| *reason != UNLABELLED);
    words.extend(unlabelled(pool, levels, members));
    words.extend(split_domains(levels, members));
    words
}

/// Nodes that lack the label of a level that their pool has.
fn unlabelled(pool: &PoolSeen, levels: &[Level], members: &[Member<'_>]) -> Vec<Word> {
    let lacking = |(at, level): (usize, &Level)| {
        let lacks = |(_, share): &&Member<'_>| share.domains[at].is_none();
        let lacking: Vec<&Name> = members
            .iter()
            .filter(lacks)
            .map(|(name, _)| *name)
            .collect();
        let text = pools::unlabelled(lacking.len(), members.len(), level);
        let text = format!("{text}: {}", named(lacking.iter().copied()));
        (!lacking.is_empty()).then_some((UNLABELLED, text))
    };
    let there = levels.iter().enumerate();
    let there = there.filter(|(_, level)| pool.levels.contains(&level.name));
    there.filter_map(lacking).collect()
}

/// Domains of an inner level that lie in several domains of the level around it.
fn split_domains(levels: &[Level], members: &[Member<'_>]) -> Vec<Word> {
    let mut parents: BTreeMap<(usize, &Name), BTreeMap<usize, BTreeSet<&Name>>> = BTreeMap::new();
    for (_, share) in members {
        let mut around: Option<(usize, &Name)> = None;
        for (at, domain) in share.domains.iter().enumerate() {
            let Some(domain) = domain else { continue };
            if let Some((outer, parent)) = around.replace((at, domain)) {
                let outer = parents.entry((at, domain)).or_default().entry(outer);
                outer.or_default().insert(parent);
            }
        }
    }
    let split = parents.into_iter().flat_map(|((at, domain), around)| {
        let several = around.into_iter().filter(|(_, parents)| parents.len() > 1);
        several.map(move |(outer, parents)| {
            let text = format!(
                "domain {domain:?} of level {:?} lies in {} of level {:?}, and counts as one in \
                 each: {}",
                levels[at].name,
                counted(parents.len(), "domain"),
                levels[outer].name,
                named(parents.iter().copied())
            );
            ("SplitDomain", text)
        })
    });
    split.collect()
}
