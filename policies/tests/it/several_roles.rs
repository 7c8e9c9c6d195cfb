//! Gangs of several roles: on a few hosts, a fit is found exactly when there is one.

use std::collections::BTreeMap;

use meridian_api::units::Resources;
use meridian_policies::model::{GangShape, RoleShape, Shape};
use meridian_policies::shapes::fit;
use proptest::prelude::*;

use crate::builders::{cards, hosts, role};
use crate::random;

/// Pods and hosts up to which the search is exact.
const SMALL: usize = 5;

/// Roles of so many pods with so many GPUs each.
fn plain(sizes: &[(u32, u64)]) -> (GangShape, Vec<u32>) {
    let role = |&(pods, gpus): &(u32, u64)| RoleShape {
        name: format!("{pods}x{gpus}"),
        ..role(pods, gpus)
    };
    let gang = GangShape {
        roles: sizes.iter().map(role).collect(),
    };
    (gang, sizes.iter().map(|it| it.0).collect())
}

#[test]
fn a_packing_that_one_role_after_the_other_misses_is_found() {
    // Both orders fill a host with one role: 4 + 4 leaves 2, and 3 + 3 + 3 leaves 1.
    let (gang, pods) = plain(&[(2, 4), (4, 3)]);
    let two = |free| hosts(2, &["b0", "r0"], free);
    let mut found = fit(&random::levels(), &[two(10)], &gang, &pods).expect("4 + 3 + 3 twice");
    found.takes.sort();
    let seats: Vec<_> = found
        .takes
        .iter()
        .map(|it| (it.role, it.hosts * it.pods_per_host))
        .collect();
    assert_eq!(seats, [(0, 1), (0, 1), (1, 2), (1, 2)]);
    assert_eq!(fit(&random::levels(), &[two(9)], &gang, &pods), None);
}

#[test]
fn roles_share_the_one_rack_that_takes_both() {
    let bound = |name: &str, pods, gpus| RoleShape {
        name: name.into(),
        required: Some("rack".into()),
        ..role(pods, gpus)
    };
    let gang = GangShape {
        roles: vec![bound("a", 2, 4), bound("b", 1, 8)],
    };
    // The tightest rack for the pair is the only one that has a whole host for the other role.
    let shapes = [hosts(1, &["b0", "r0"], 8), hosts(2, &["b0", "r1"], 7)];
    let found = fit(&random::levels(), &shapes, &gang, &[2, 1]).expect("a in r1, b in r0");
    assert_eq!(found.takes.iter().map(|take| take.hosts).sum::<u32>(), 3);
}

/// Up to five hosts, each by itself.
fn few_hosts() -> impl Strategy<Value = Vec<Shape>> {
    let alone = |shape: Shape| Shape { hosts: 1, ..shape };
    prop::collection::vec(random::shape().prop_map(alone), 1..=SMALL)
}

/// Up to five roles with up to five pods in all.
fn small_gang() -> impl Strategy<Value = (GangShape, Vec<u32>)> {
    let sized = (random::role(), 1..3_u32);
    prop::collection::vec(sized, 2..=SMALL).prop_filter_map("too many pods", |sized| {
        let unit = |role: &RoleShape| role.slice.as_ref().map_or(1, |slice| slice.pods);
        let pods: Vec<u32> = sized
            .iter()
            .map(|(role, count)| unit(role) * count)
            .collect();
        let roles = sized.into_iter().map(|(role, _)| role).collect();
        (pods.iter().sum::<u32>() as usize <= SMALL).then_some((GangShape { roles }, pods))
    })
}

fn domain(hosts: &[Shape], host: usize, level: &str) -> Vec<String> {
    match level {
        "block" => hosts[host].domains[..1].to_vec(),
        "rack" => hosts[host].domains.clone(),
        _ => vec![host.to_string()],
    }
}

fn width(level: Option<&str>) -> usize {
    let levels = [None, Some("block"), Some("rack"), Some("host")];
    levels
        .iter()
        .position(|it| *it == level)
        .expect("a known level")
}

/// Whether a role may have its pods on these hosts.
fn keeps_levels(hosts: &[Shape], role: &RoleShape, seats: &[usize]) -> bool {
    if let Some(level) = role.required.as_deref() {
        let first = domain(hosts, seats[0], level);
        if seats
            .iter()
            .any(|seat| domain(hosts, *seat, level) != first)
        {
            return false;
        }
    }
    let Some(slice) = &role.slice else {
        return true;
    };
    let mut counts: BTreeMap<Vec<String>, u32> = BTreeMap::new();
    for seat in seats {
        *counts
            .entry(domain(hosts, *seat, &slice.level))
            .or_default() += 1;
    }
    width(Some(&slice.level)) >= width(role.required.as_deref())
        && counts
            .values()
            .all(|count| count.is_multiple_of(slice.pods))
}

/// Tries each host for each pod.
fn fits_somehow(hosts: &[Shape], gang: &GangShape, pods: &[u32]) -> bool {
    let requests: Vec<(usize, Resources)> = (0..)
        .zip(&gang.roles)
        .zip(pods)
        .flat_map(|((index, role), count)| vec![(index, role.per_pod); *count as usize])
        .collect();
    let mut left: Vec<Resources> = hosts.iter().map(|host| host.free).collect();
    seat(hosts, gang, &requests, &mut left, &mut Vec::new())
}

fn seat(
    hosts: &[Shape],
    gang: &GangShape,
    requests: &[(usize, Resources)],
    left: &mut [Resources],
    seats: &mut Vec<usize>,
) -> bool {
    let Some((_, request)) = requests.get(seats.len()) else {
        return (0..).zip(&gang.roles).all(|(index, role)| {
            let own = requests.iter().zip(&*seats).filter(|(it, _)| it.0 == index);
            let own: Vec<usize> = own.map(|(_, seat)| *seat).collect();
            keeps_levels(hosts, role, &own)
        });
    };
    for host in 0..hosts.len() {
        let before = left[host];
        if let Some(rest) = before.checked_sub(*request) {
            left[host] = rest;
            seats.push(host);
            if seat(hosts, gang, requests, left, seats) {
                return true;
            }
            seats.pop();
            left[host] = before;
        }
    }
    false
}

/// Hosts whose room is exactly what the pods take that were thrown on them.
fn cut_to_fit() -> impl Strategy<Value = (Vec<Shape>, GangShape, Vec<u32>)> {
    let roles = prop::collection::vec((1..4_u32, 1..6_u64), 2..4);
    (roles, prop::collection::vec(0..3_usize, 12)).prop_map(|(sizes, throws)| {
        let (gang, pods) = plain(&sizes);
        let mut free = [0_u64; 3];
        let each = sizes
            .iter()
            .flat_map(|(pods, gpus)| vec![*gpus; *pods as usize]);
        for (gpus, host) in each.zip(throws) {
            free[host] += gpus;
        }
        let host = |gpus| Shape {
            allocatable: cards(64),
            ..hosts(1, &["b0", "r0"], gpus)
        };
        (free.map(host).to_vec(), gang, pods)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

    #[test]
    fn few_pods_on_few_hosts_fit_exactly_when_they_can(
        shapes in few_hosts(), (gang, pods) in small_gang(),
    ) {
        let found = fit(&random::levels(), &shapes, &gang, &pods);
        prop_assert_eq!(found.is_some(), fits_somehow(&shapes, &gang, &pods));
    }

    #[test]
    fn what_was_cut_to_fit_fits((shapes, gang, pods) in cut_to_fit()) {
        prop_assert!(fit(&random::levels(), &shapes, &gang, &pods).is_some());
    }
}
