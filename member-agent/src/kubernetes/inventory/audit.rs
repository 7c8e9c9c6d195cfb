//! The look over the whole inventory: what a person should know of pools and nodes.
//!
//! Owns what only several nodes together show: versions out of step, levels that some lack,
//! domains in two places. Never changes what is offered.

use std::collections::{BTreeMap, BTreeSet};

use super::Inventory;
use super::findings::{Finding, Subject};
use super::host::Share;
use super::strings::Name;

/// Names of nodes that a message gives; the number says how many there are.
const NAMED: usize = 3;

/// A share with the name of its host.
type Member<'a> = (&'a Name, &'a Share);

/// Every finding: pools first, by name.
pub(super) fn findings(inventory: &Inventory) -> Vec<Finding> {
    let mut members: BTreeMap<String, Vec<Member<'_>>> = BTreeMap::new();
    let mut findings = Vec::new();
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
    }
    for (pool, members) in &members {
        let mut found = |reason, message| {
            let subject = Subject::Pool(pool.clone());
            findings.push(Finding {
                subject,
                reason,
                message,
            });
        };
        for (what, of) in [
            ("drivers", driver as fn(&Share) -> Option<&Name>),
            ("toolkits", toolkit),
        ] {
            if let Some(message) = skew(what, members, of) {
                found("VersionSkew", message);
            }
        }
        unlabelled(inventory, pool, members, &mut found);
        split_domains(inventory, members, &mut found);
    }
    for claim in inventory.pools.claims() {
        findings.extend(shared_claim(inventory, claim));
    }
    findings.sort();
    findings
}

fn driver(share: &Share) -> Option<&Name> {
    share.driver.as_ref()
}

fn toolkit(share: &Share) -> Option<&Name> {
    share.toolkit.as_ref()
}

/// Versions that differ inside a pool, with their numbers of nodes.
fn skew(what: &str, members: &[Member<'_>], of: fn(&Share) -> Option<&Name>) -> Option<String> {
    let mut nodes: BTreeMap<&Name, usize> = BTreeMap::new();
    for version in members.iter().filter_map(|(_, share)| of(share)) {
        *nodes.entry(version).or_default() += 1;
    }
    if nodes.len() < 2 {
        return None;
    }
    let each = nodes.iter();
    let each = each.map(|(version, nodes)| format!("{version} on {}", counted(*nodes, "node")));
    Some(format!(
        "{what} differ: {}",
        each.collect::<Vec<_>>().join(", ")
    ))
}

/// Nodes that lack the label of a level that their pool has.
fn unlabelled(
    inventory: &Inventory,
    pool: &str,
    members: &[Member<'_>],
    found: &mut impl FnMut(&'static str, String),
) {
    let Some((_, first)) = members.first() else {
        return;
    };
    let levels = inventory.levels.of(&first.claim);
    let seen = inventory.pools.of_claim(&first.claim, &inventory.levels);
    let Some(seen) = seen.iter().find(|seen| seen.name == pool) else {
        return;
    };
    let there = levels.iter().enumerate();
    for (at, level) in there.filter(|(_, level)| seen.levels.contains(&level.name)) {
        let lacks = |(_, share): &&Member<'_>| share.domains[at].is_none();
        let lacking: Vec<&Name> = members
            .iter()
            .filter(lacks)
            .map(|(name, _)| *name)
            .collect();
        if !lacking.is_empty() {
            let labels = level.labels.join(" or ");
            let message = format!(
                "{} of {} without level {:?} (label {labels}), each a domain of its own: {}",
                counted(lacking.len(), "node"),
                members.len(),
                level.name,
                named(&lacking)
            );
            found("UnlabelledNodes", message);
        }
    }
}

/// Domains of an inner level that lie in several domains of the level around it.
fn split_domains(
    inventory: &Inventory,
    members: &[Member<'_>],
    found: &mut impl FnMut(&'static str, String),
) {
    let Some((_, first)) = members.first() else {
        return;
    };
    let levels = inventory.levels.of(&first.claim);
    let mut parents: BTreeMap<(usize, &Name), (usize, BTreeSet<&Name>)> = BTreeMap::new();
    for (_, share) in members {
        let mut around = None;
        for (at, domain) in share.domains.iter().enumerate() {
            let Some(domain) = domain else { continue };
            if let Some((outer, parent)) = around.replace((at, domain)) {
                let entry = parents
                    .entry((at, domain))
                    .or_insert((outer, BTreeSet::new()));
                if entry.0 == outer {
                    entry.1.insert(parent);
                }
            }
        }
    }
    for ((at, domain), (outer, parents)) in parents {
        if parents.len() > 1 {
            let parents: Vec<&Name> = parents.into_iter().collect();
            let message = format!(
                "domain {domain:?} of level {:?} lies in {} domains of level {:?}, and counts as \
                 one in each: {}",
                levels[at].name,
                parents.len(),
                levels[outer].name,
                named(&parents)
            );
            found("SplitDomain", message);
        }
    }
}

/// A name that nodes of several flavors claim.
fn shared_claim(inventory: &Inventory, claim: &Name) -> Option<Finding> {
    let flavors: Vec<(&Name, usize)> = inventory.pools.flavors(claim).collect();
    if flavors.len() < 2 {
        return None;
    }
    let each = flavors.iter();
    let each = each.map(|(flavor, nodes)| format!("{flavor} on {}", counted(*nodes, "node")));
    let each = each.collect::<Vec<_>>().join(", ");
    Some(Finding {
        subject: Subject::Pool(claim.to_string()),
        reason: "SeveralFlavors",
        message: format!(
            "nodes of several flavors claim it, a pool has one: {each}; the fewer are in pools \
             {claim}--<flavor>"
        ),
    })
}

fn counted(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// The first few names, and how many more there are.
fn named(names: &[&Name]) -> String {
    let first = names.iter().take(NAMED).map(|name| &***name);
    let mut text = first.collect::<Vec<_>>().join(", ");
    if let Some(more) = names.len().checked_sub(NAMED).filter(|more| *more > 0) {
        text = format!("{text} and {more} more");
    }
    text
}
