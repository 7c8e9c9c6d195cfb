//! Division of copies over clusters: properties against an exhaustive search, and the cases that
//! a person would check by hand.

use meridian_policies::division::{Division, Missed, Part, Rule, Spread, divide};
use proptest::collection::vec;
use proptest::prelude::*;

fn part(held: u32, room: u32, weight: u32) -> Part {
    Part {
        held,
        room,
        weight,
        domain: 0,
    }
}

fn counts(rule: Rule, total: u32, parts: &[Part]) -> Vec<u32> {
    divide(rule, total, parts, None).counts
}

fn in_domains(rooms: &[(u32, u32)]) -> Vec<Part> {
    let part = |(domain, room): &(u32, u32)| Part {
        room: *room,
        domain: *domain,
        ..Part::default()
    };
    rooms.iter().map(part).collect()
}

fn moved(parts: &[Part], counts: &[u32]) -> u32 {
    let each = parts.iter().zip(counts);
    each.map(|(part, count)| count.saturating_sub(part.held))
        .sum()
}

#[test]
fn weights_divide_by_largest_remainder() {
    let parts = [part(0, 99, 5), part(0, 99, 3), part(0, 99, 1)];
    assert_eq!(counts(Rule::Weighted, 9, &parts), [5, 3, 1]);
    assert_eq!(counts(Rule::Weighted, 10, &parts), [6, 3, 1]);
    assert_eq!(counts(Rule::Weighted, 0, &parts), [0, 0, 0]);
    let none = [part(0, 99, 0)];
    assert_eq!(divide(Rule::Weighted, 2, &none, None).left, 2);
}

#[test]
fn who_holds_the_odd_copy_keeps_it() {
    let fresh = [part(0, 9, 1), part(0, 9, 1)];
    assert_eq!(counts(Rule::Weighted, 3, &fresh), [2, 1]);
    let held = [part(1, 9, 1), part(2, 9, 1)];
    assert_eq!(counts(Rule::Weighted, 3, &held), [1, 2]);
}

#[test]
fn what_is_full_overflows_by_weight() {
    let parts = [part(0, 2, 6), part(0, 99, 2), part(0, 99, 1)];
    assert_eq!(counts(Rule::Weighted, 11, &parts), [2, 6, 3]);
    let parts = [part(0, 2, 1), part(0, 3, 1)];
    let all = divide(Rule::Weighted, 9, &parts, None);
    assert_eq!((all.counts, all.left), (vec![2, 3], 4));
}

#[test]
fn dynamic_follows_free_room_and_leaves_what_stands() {
    let fresh = [part(0, 30, 0), part(0, 10, 0)];
    assert_eq!(counts(Rule::Dynamic, 4, &fresh), [3, 1]);
    let held = [part(3, 0, 0), part(1, 40, 0)];
    assert_eq!(counts(Rule::Dynamic, 6, &held), [3, 3]);
    let fewer = [part(6, 0, 0), part(3, 40, 0)];
    assert_eq!(counts(Rule::Dynamic, 3, &fewer), [2, 1]);
}

#[test]
fn aggregated_takes_the_fewest_and_the_preferred() {
    let parts = [part(0, 3, 0), part(0, 8, 0), part(0, 5, 0)];
    assert_eq!(counts(Rule::Aggregated, 3, &parts), [3, 0, 0]);
    assert_eq!(counts(Rule::Aggregated, 5, &parts), [0, 5, 0]);
    assert_eq!(counts(Rule::Aggregated, 10, &parts), [2, 8, 0]);
    let held = [part(0, 9, 0), part(1, 2, 0), part(4, 0, 0)];
    assert_eq!(counts(Rule::Aggregated, 7, &held), [0, 3, 4]);
    assert_eq!(counts(Rule::Aggregated, 4, &held), [0, 0, 4]);
}

#[test]
fn duplicated_gives_every_part_all() {
    let parts = [part(0, 9, 0), part(1, 0, 0)];
    let all = divide(Rule::Duplicated, 2, &parts, None);
    assert_eq!((all.counts, all.left), (vec![2, 1], 1));
}

#[test]
fn a_spread_holds_or_says_what_it_misses() {
    let spread = |min_domains, min_per_domain, max_skew| Spread {
        min_domains,
        min_per_domain,
        max_skew,
    };
    let parts = in_domains(&[(0, 9), (0, 9), (1, 2)]);
    let two = divide(Rule::Aggregated, 4, &parts, Some(&spread(2, 1, None)));
    assert_eq!((two.counts, two.missed), (vec![3, 0, 1], None));
    let even = divide(Rule::Aggregated, 4, &parts, Some(&spread(1, 1, Some(1))));
    assert_eq!((even.counts, even.missed), (vec![2, 0, 2], None));
    let skewed = divide(Rule::Aggregated, 8, &parts, Some(&spread(1, 1, Some(2))));
    let have = Missed::Skew { most: 2, have: 4 };
    assert_eq!((skewed.counts, skewed.missed), (vec![6, 0, 2], Some(have)));
    let three = divide(Rule::Dynamic, 4, &parts, Some(&spread(3, 1, None)));
    assert_eq!(three.missed, Some(Missed::Domains { need: 3, have: 2 }));
    let large = divide(Rule::Dynamic, 4, &parts, Some(&spread(2, 3, None)));
    assert_eq!(large.missed, Some(Missed::Domains { need: 2, have: 1 }));
}

fn parts() -> impl Strategy<Value = Vec<Part>> {
    let part = (0..6_u32, 0..6_u32, 0..5_u32, 0..3_u32);
    let part = part.prop_map(|(held, room, weight, domain)| Part {
        held,
        room,
        weight,
        domain,
    });
    vec(part, 0..5)
}

fn rule() -> impl Strategy<Value = Rule> {
    prop_oneof![
        Just(Rule::Duplicated),
        Just(Rule::Weighted),
        Just(Rule::Dynamic),
        Just(Rule::Aggregated),
    ]
}

fn spread() -> impl Strategy<Value = Option<Spread>> {
    let spread = (0..4_u32, 0..4_u32, proptest::option::of(0..3_u32));
    let spread = spread.prop_map(|(min_domains, min_per_domain, max_skew)| Spread {
        min_domains,
        min_per_domain,
        max_skew,
    });
    proptest::option::of(spread)
}

/// Every way to put `total` copies on parts with these limits.
fn all_ways(total: u32, most: &[u32]) -> Vec<Vec<u32>> {
    let Some((last, others)) = most.split_last() else {
        return if total == 0 {
            vec![Vec::new()]
        } else {
            Vec::new()
        };
    };
    let mut ways = Vec::new();
    for count in 0..=total.min(*last) {
        for mut way in all_ways(total - count, others) {
            way.push(count);
            ways.push(way);
        }
    }
    ways
}

/// Copies that may stand on each part by the rule.
fn limits(rule: Rule, parts: &[Part]) -> Vec<u32> {
    let limit = |part: &Part| match rule {
        Rule::Weighted if part.weight == 0 => 0,
        Rule::Weighted | Rule::Duplicated | Rule::Dynamic | Rule::Aggregated => {
            part.held + part.room
        }
    };
    parts.iter().map(limit).collect()
}

/// Parts that water of one level over all does not fill: each as wide as its weight, and as high
/// as what it may hold.
fn open_parts(total: u32, parts: &[Part], limits: &[u32]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..parts.len()).filter(|ix| limits[*ix] > 0).collect();
    order.sort_by(|a, b| {
        let (left, right) = (limits[*a] * parts[*b].weight, limits[*b] * parts[*a].weight);
        left.cmp(&right).then(a.cmp(b))
    });
    let mut rest = total;
    while let Some(ix) = order.first().copied() {
        let weights: u32 = order.iter().map(|ix| parts[*ix].weight).sum();
        if rest * parts[ix].weight < limits[ix] * weights {
            break;
        }
        rest -= limits[ix];
        order.remove(0);
    }
    order
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    /// Nothing is lost or made, no part gets more than it may, and only full parts leave copies.
    #[test]
    fn copies_are_conserved(
        rule in rule(), total in 0..20_u32, parts in parts(), spread in spread(),
    ) {
        let Division { counts, left, .. } = divide(rule, total, &parts, spread.as_ref());
        let limits = limits(rule, &parts);
        prop_assert!(counts.iter().zip(&limits).all(|(count, limit)| count <= limit));
        let sum: u32 = counts.iter().sum();
        let wanted = match rule {
            Rule::Duplicated => total * u32::try_from(parts.len()).expect("few"),
            Rule::Weighted | Rule::Dynamic | Rule::Aggregated => total,
        };
        prop_assert_eq!(u64::from(sum) + left, u64::from(wanted));
        if rule != Rule::Duplicated && left > 0 {
            prop_assert_eq!(counts, limits);
        }
    }

    /// Of all ways in which no full part could be swapped for a fairer share, none moves less.
    #[test]
    fn weights_are_kept_with_the_least_movement(total in 0..12_u32, parts in parts()) {
        let found = divide(Rule::Weighted, total, &parts, None);
        let limits = limits(Rule::Weighted, &parts);
        let placed = total - u32::try_from(found.left).expect("few");
        let open = open_parts(placed, &parts, &limits);
        let weights: u32 = open.iter().map(|ix| parts[*ix].weight).sum();
        let rest: u32 = open.iter().map(|ix| found.counts[*ix]).sum();
        let keeps = |way: &[u32]| (0..parts.len()).all(|ix| {
            if !open.contains(&ix) {
                return way[ix] == found.counts[ix];
            }
            let exact = rest * parts[ix].weight;
            exact / weights <= way[ix] && way[ix] <= exact.div_ceil(weights)
        });
        prop_assert!(keeps(&found.counts), "{found:?}");
        for way in all_ways(placed, &limits) {
            prop_assert!(!keeps(&way) || moved(&parts, &way) >= moved(&parts, &found.counts));
        }
    }

    /// Growing moves nothing, shrinking adds nothing anywhere.
    #[test]
    fn what_stands_stays(total in 0..20_u32, parts in parts(), aggregated in any::<bool>()) {
        let rule = if aggregated { Rule::Aggregated } else { Rule::Dynamic };
        let held: u32 = parts.iter().map(|part| part.held).sum();
        let counts = counts(rule, total, &parts);
        for (part, count) in parts.iter().zip(&counts) {
            let stays = if total >= held { *count >= part.held } else { *count <= part.held };
            prop_assert!(stays, "{counts:?}");
        }
    }

    #[test]
    fn aggregated_needs_no_more_clusters_than_any_other_way(
        total in 0..12_u32, mut parts in parts(),
    ) {
        for part in &mut parts {
            part.held = 0;
        }
        let found = divide(Rule::Aggregated, total, &parts, None);
        let used = |way: &[u32]| way.iter().filter(|count| **count > 0).count();
        let placed: u32 = found.counts.iter().sum();
        for way in all_ways(placed, &limits(Rule::Aggregated, &parts)) {
            prop_assert!(used(&way) >= used(&found.counts));
        }
    }

    /// A spread in domains that can be had is had.
    #[test]
    fn a_spread_that_can_hold_holds(
        rule in rule().prop_filter("it divides", |rule| *rule != Rule::Duplicated),
        total in 0..10_u32, parts in parts(),
        min_domains in 0..4_u32, min_per_domain in 1..4_u32,
    ) {
        let spread = Spread { min_domains, min_per_domain, max_skew: None };
        let found = divide(rule, total, &parts, Some(&spread));
        let placed: u32 = found.counts.iter().sum();
        let enough = |way: &[u32]| {
            let sum = |domain| -> u32 {
                let own = parts.iter().zip(way).filter(|(part, _)| part.domain == domain);
                own.map(|(_, count)| *count).sum()
            };
            (0..3).filter(|domain| sum(*domain) >= min_per_domain).count()
        };
        let possible = all_ways(placed, &limits(rule, &parts))
            .iter()
            .any(|way| enough(way) >= min_domains as usize);
        prop_assert_eq!(possible, found.missed.is_none(), "{:?}", found);
        prop_assert!(!possible || enough(&found.counts) >= min_domains as usize);
    }
}
