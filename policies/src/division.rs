//! Division: how many copies of a service or of an array job go to which cluster.
//!
//! Owns the four rules, the repair of a spread over domains, and the promise that what serves stays
//! where it is as far as the rule allows. Never looks at shapes or quota: how many copies fit
//! where is an argument.
//!
//! Parts come in order of preference, and between equals the first wins, so callers sort by cost
//! and end with a name.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How copies are divided (Karmada's words for replica scheduling).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Rule {
    /// Every part gets all of them.
    Duplicated,
    /// By fixed weights: each part gets its exact share, rounded down or up.
    Weighted,
    /// What stands stays, further ones go by free room; fewer leave every part in proportion.
    Dynamic,
    /// In as few parts as can be, those first that hold some already.
    Aggregated,
}

/// A place that may get copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Copies that stand there.
    pub held: u32,
    /// Copies for which there is room beside them.
    pub room: u32,
    /// For `Weighted`; a part without weight gets none.
    pub weight: u32,
    /// Domain of the spread: region, zone, provider; parts of one number share one.
    pub domain: u32,
}

/// How evenly copies must stand over domains (the words of `topologySpreadConstraints`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Domains that hold at least `min_per_domain` each.
    pub min_domains: u32,
    /// Copies that make a domain count; zero is taken as one.
    pub min_per_domain: u32,
    /// Most by which two domains may differ that can hold copies; zero is taken as one.
    pub max_skew: Option<u32>,
}

/// What a spread asks for and the parts cannot give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// Fewer domains hold enough copies.
    Domains {
        /// Asked for.
        need: u32,
        /// Reached.
        have: u32,
    },
    /// Two domains differ by more.
    Skew {
        /// Allowed.
        most: u32,
        /// Reached.
        have: u32,
    },
}

/// Who gets how many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Division {
    /// Copies of each part, what stands there included.
    pub counts: Vec<u32>,
    /// Copies for which there is no room.
    pub left: u64,
    /// The first thing that the spread misses.
    pub missed: Option<Missed>,
}

/// Divides `total` copies. A part never gets more than it holds and has room for; what one
/// cannot take goes to the others by the same rule.
#[must_use]
pub fn divide(rule: Rule, total: u32, parts: &[Part], spread: Option<&Spread>) -> Division {
    let mut counts = match rule {
        Rule::Duplicated => parts.iter().map(|part| most(part).min(total)).collect(),
        Rule::Weighted => weighted(total, parts),
        Rule::Dynamic => dynamic(total, parts),
        Rule::Aggregated => aggregated(total, parts),
    };
    let missed = match rule {
        // Each part holds all: there is nothing to shift.
        Rule::Duplicated => {
            spread.and_then(|spread| Domains::new(rule, parts, &counts).missed(spread))
        }
        Rule::Weighted | Rule::Dynamic | Rule::Aggregated => {
            spread.and_then(|spread| repair(rule, parts, spread, &mut counts))
        }
    };
    let placed: u64 = counts.iter().map(|count| u64::from(*count)).sum();
    let wanted = match rule {
        Rule::Duplicated => u64::from(total) * parts.len() as u64,
        Rule::Weighted | Rule::Dynamic | Rule::Aggregated => u64::from(total),
    };
    Division {
        counts,
        left: wanted.saturating_sub(placed),
        missed,
    }
}

const fn most(part: &Part) -> u32 {
    part.held.saturating_add(part.room)
}

/// What the rule lets a part hold.
const fn allowed(rule: Rule, part: &Part) -> u32 {
    match rule {
        Rule::Weighted if part.weight == 0 => 0,
        Rule::Weighted | Rule::Duplicated | Rule::Dynamic | Rule::Aggregated => most(part),
    }
}

/// One claim in an apportionment.
#[derive(Clone, Copy, Debug)]
struct Claim {
    weight: u32,
    most: u32,
    held: u32,
}

fn weighted(total: u32, parts: &[Part]) -> Vec<u32> {
    let claim = |part: &Part| Claim {
        weight: part.weight,
        most: most(part),
        held: part.held,
    };
    apportion(total, &parts.iter().map(claim).collect::<Vec<_>>())
}

fn dynamic(total: u32, parts: &[Part]) -> Vec<u32> {
    let held: u64 = parts.iter().map(|part| u64::from(part.held)).sum();
    let Some(more) = u64::from(total).checked_sub(held) else {
        let claim = |part: &Part| Claim {
            weight: part.held,
            most: part.held,
            held: part.held,
        };
        return apportion(total, &parts.iter().map(claim).collect::<Vec<_>>());
    };
    let claim = |part: &Part| Claim {
        weight: part.room,
        most: part.room,
        held: 0,
    };
    let more = u32::try_from(more).unwrap_or(u32::MAX);
    let added = apportion(more, &parts.iter().map(claim).collect::<Vec<_>>());
    let sum = |(part, added): (&Part, u32)| part.held.saturating_add(added);
    parts.iter().zip(added).map(sum).collect()
}

/// Shares of `total` by weight: each is its exact share, rounded down or up, and none is above its
/// `most`. Of all that keep to this the one that moves the fewest copies is taken, then the one
/// with the largest remainders (Hamilton), then by position.
fn apportion(total: u32, claims: &[Claim]) -> Vec<u32> {
    let mut counts = vec![0_u32; claims.len()];
    let mut open: Vec<usize> = (0..claims.len())
        .filter(|ix| claims[*ix].weight > 0 && claims[*ix].most > 0)
        .collect();
    let mut rest = u128::from(total);
    let sum = |open: &[usize]| -> u128 {
        let weights = open.iter().map(|ix| u128::from(claims[*ix].weight));
        weights.sum()
    };
    loop {
        // What is full leaves the others more, so that one of these may be full next.
        let weights = sum(&open);
        let is_full = |ix: &usize| {
            let claim = &claims[*ix];
            rest * u128::from(claim.weight) >= u128::from(claim.most) * weights
        };
        let (full, others): (Vec<usize>, Vec<usize>) = open.iter().partition(|ix| is_full(ix));
        if full.is_empty() {
            break;
        }
        for ix in full {
            counts[ix] = claims[ix].most;
            rest = rest.saturating_sub(u128::from(claims[ix].most));
        }
        open = others;
    }
    let weights = sum(&open);
    if weights == 0 {
        return counts;
    }
    let mut over = rest;
    let mut rounded: Vec<(bool, Reverse<u128>, usize)> = Vec::with_capacity(open.len());
    for ix in open {
        let exact = rest * u128::from(claims[ix].weight);
        let floor = exact / weights;
        over -= floor;
        counts[ix] = u32::try_from(floor).unwrap_or(u32::MAX);
        if exact % weights > 0 {
            let moves = claims[ix].held <= counts[ix];
            rounded.push((moves, Reverse(exact % weights), ix));
        }
    }
    rounded.sort_unstable();
    let over = usize::try_from(over).unwrap_or(usize::MAX);
    for (.., ix) in rounded.into_iter().take(over) {
        counts[ix] = counts[ix].saturating_add(1);
    }
    counts
}

fn aggregated(total: u32, parts: &[Part]) -> Vec<u32> {
    let mut counts: Vec<u32> = parts.iter().map(|part| part.held).collect();
    let held: u64 = counts.iter().map(|held| u64::from(*held)).sum();
    if let Some(mut fewer) = held.checked_sub(u64::from(total)) {
        // The smallest are emptied first: fewer clusters are left.
        let mut order: Vec<usize> = (0..parts.len()).collect();
        order.sort_by_key(|ix| (parts[*ix].held, Reverse(*ix)));
        for ix in order {
            let gone = u64::from(counts[ix]).min(fewer);
            fewer -= gone;
            counts[ix] -= u32::try_from(gone).unwrap_or(counts[ix]);
        }
        return counts;
    }
    let mut more = u64::from(total) - held;
    let mut give = |ix: usize, more: u64| {
        let given = u64::from(parts[ix].room).min(more);
        let given = u32::try_from(given).unwrap_or(u32::MAX);
        counts[ix] = counts[ix].saturating_add(given);
        more - u64::from(given)
    };
    let mut used: Vec<usize> = (0..parts.len()).filter(|ix| parts[*ix].held > 0).collect();
    used.sort_by_key(|ix| (Reverse(parts[*ix].held), *ix));
    for ix in used {
        more = give(ix, more);
    }
    // Largest first needs the fewest; the last may be any that holds the rest.
    let mut others: Vec<usize> = (0..parts.len()).filter(|ix| parts[*ix].held == 0).collect();
    others.sort_by_key(|ix| (Reverse(parts[*ix].room), *ix));
    while more > 0 && !others.is_empty() {
        let holding = others
            .iter()
            .filter(|ix| u64::from(parts[**ix].room) >= more);
        let next = holding.min().copied().unwrap_or(others[0]);
        others.retain(|ix| *ix != next);
        more = give(next, more);
    }
    counts
}

/// Sums by domain.
struct Domains {
    /// Copies, and the most that the rule lets the domain hold.
    sums: BTreeMap<u32, (u64, u64)>,
}

impl Domains {
    fn new(rule: Rule, parts: &[Part], counts: &[u32]) -> Self {
        let mut sums: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        for (part, count) in parts.iter().zip(counts) {
            let (held, most) = sums.entry(part.domain).or_default();
            *held += u64::from(*count);
            *most += u64::from(allowed(rule, part).max(*count));
        }
        sums.retain(|_, (_, most)| *most > 0);
        Self { sums }
    }

    fn shift(&mut self, from: u32, to: u32) {
        if let Some((held, _)) = self.sums.get_mut(&from) {
            *held = held.saturating_sub(1);
        }
        if let Some((held, _)) = self.sums.get_mut(&to) {
            *held += 1;
        }
    }

    fn enough(&self, each: u64) -> u32 {
        let enough = self.sums.values().filter(|(held, _)| *held >= each).count();
        u32::try_from(enough).unwrap_or(u32::MAX)
    }

    /// The domain that comes nearest to counting, and could.
    fn nearest(&self, each: u64) -> Option<u32> {
        let below = self.sums.iter();
        let below = below.filter(|(_, (held, most))| *held < each && *most >= each);
        let nearest =
            below.min_by_key(|(domain, (held, most))| (Reverse(*held), Reverse(*most), **domain));
        nearest.map(|(domain, _)| *domain)
    }

    /// The domain that can best spare a copy: the one with the most beyond what makes it count,
    /// else the least of those that do not count.
    fn donor(&self, each: u64, to: u32) -> Option<u32> {
        let others = || self.sums.iter().filter(|(domain, _)| **domain != to);
        let rich = others().filter(|(_, (held, _))| *held > each);
        let rich = rich.max_by_key(|(domain, (held, _))| (*held, **domain));
        let poor = others().filter(|(_, (held, _))| *held > 0 && *held < each);
        let poor = || poor.min_by_key(|(domain, (held, _))| (*held, Reverse(**domain)));
        rich.or_else(poor).map(|(domain, _)| *domain)
    }

    /// The fullest domain, and the emptiest that can take more.
    fn extremes(&self) -> Option<((u32, u64), (u32, u64))> {
        let all = self.sums.iter();
        let high = all.max_by_key(|(domain, (held, _))| (*held, **domain))?;
        let open = self.sums.iter().filter(|(_, (held, most))| held < most);
        let low = open.min_by_key(|(domain, (held, _))| (*held, **domain))?;
        Some(((*high.0, high.1.0), (*low.0, low.1.0)))
    }

    fn skew(&self) -> u32 {
        let held = || self.sums.values().map(|(held, _)| *held);
        let skew = held().max().unwrap_or(0) - held().min().unwrap_or(0);
        u32::try_from(skew).unwrap_or(u32::MAX)
    }

    fn missed(&self, spread: &Spread) -> Option<Missed> {
        let have = self.enough(each(spread));
        if have < spread.min_domains {
            let need = spread.min_domains;
            return Some(Missed::Domains { need, have });
        }
        let most = spread.max_skew?.max(1);
        let have = self.skew();
        (have > most).then_some(Missed::Skew { most, have })
    }
}

fn each(spread: &Spread) -> u64 {
    u64::from(spread.min_per_domain.max(1))
}

/// Shifts copies, one by one, until the spread holds or cannot be brought nearer. Every shift
/// fills a domain that is short or brings two domains nearer, so there are at most as many as
/// copies.
fn repair(rule: Rule, parts: &[Part], spread: &Spread, counts: &mut [u32]) -> Option<Missed> {
    let each = each(spread);
    let mut domains = Domains::new(rule, parts, counts);
    while domains.enough(each) < spread.min_domains {
        let Some(to) = domains.nearest(each) else {
            break;
        };
        let Some(from) = domains.donor(each, to) else {
            break;
        };
        if !shift(rule, parts, counts, from, to) {
            break;
        }
        domains.shift(from, to);
    }
    while let Some(most) = spread.max_skew
        && let Some(((from, high), (to, low))) = domains.extremes()
        && high.saturating_sub(low) > u64::from(most.max(1))
    {
        let counts_less = high == each && low + 1 < each;
        if counts_less && domains.enough(each) <= spread.min_domains {
            break;
        }
        if !shift(rule, parts, counts, from, to) {
            break;
        }
        domains.shift(from, to);
    }
    domains.missed(spread)
}

/// Takes one copy of the first domain to the second: rather one that does not stand yet, and
/// rather to where one stood.
fn shift(rule: Rule, parts: &[Part], counts: &mut [u32], from: u32, to: u32) -> bool {
    let giving = (0..parts.len()).filter(|ix| parts[*ix].domain == from && counts[*ix] > 0);
    let giver = giving.max_by_key(|ix| (counts[*ix] > parts[*ix].held, counts[*ix], *ix));
    let taking = (0..parts.len())
        .filter(|ix| parts[*ix].domain == to && counts[*ix] < allowed(rule, &parts[*ix]));
    let taker = taking.min_by_key(|ix| {
        let left = allowed(rule, &parts[*ix]) - counts[*ix];
        (counts[*ix] >= parts[*ix].held, Reverse(left), *ix)
    });
    let (Some(giver), Some(taker)) = (giver, taker) else {
        return false;
    };
    counts[giver] -= 1;
    counts[taker] += 1;
    true
}
