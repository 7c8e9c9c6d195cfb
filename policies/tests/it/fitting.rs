//! Fitting on shapes: never too much, never a miss for one role, blind to order and names.

use std::collections::BTreeMap;

use meridian_api::units::{MilliGpus, Resources};
use meridian_policies::model::{GangShape, RoleShape, Shape, Take};
use meridian_policies::shapes::{allocatable, canonical, fit, free, subtract, subtract_unlisted};
use proptest::prelude::*;

use crate::builders::{cards, gang, hosts, role};
use crate::random;

fn racks() -> Vec<String> {
    vec!["rack".into()]
}

fn place_of(take: &Take) -> (String, u64, u32, u32) {
    (
        take.domains.join("/"),
        take.free.gpus.whole(),
        take.hosts,
        take.pods_per_host,
    )
}

#[test]
fn hosts_left_with_the_least_are_taken_first() {
    let shapes = [
        hosts(4, &["r1"], 8),
        hosts(1, &["r1"], 3),
        hosts(2, &["r1"], 2),
    ];
    let found = fit(&racks(), &shapes, &gang(role(1, 2)), &[1]).unwrap();
    assert_eq!(
        found.takes.iter().map(place_of).collect::<Vec<_>>(),
        [("r1".into(), 2, 1, 1)]
    );
    assert_eq!(found.left_on_hosts, MilliGpus::ZERO);
}

#[test]
fn a_host_is_filled_before_the_next_is_touched() {
    let shapes = [hosts(4, &["r1"], 8)];
    let found = fit(&racks(), &shapes, &gang(role(6, 2)), &[6]).unwrap();
    let takes: Vec<_> = found.takes.iter().map(place_of).collect();
    assert_eq!(takes, [("r1".into(), 8, 1, 4), ("r1".into(), 8, 1, 2)]);
    assert_eq!(found.left_on_hosts, MilliGpus::cards(4));
}

#[test]
fn a_required_rack_is_the_tightest_that_holds_all() {
    let shapes = [
        hosts(4, &["r1"], 8),
        hosts(2, &["r2"], 8),
        hosts(1, &["r3"], 8),
    ];
    let role = RoleShape {
        required: Some("rack".into()),
        ..role(2, 8)
    };
    let found = fit(&racks(), &shapes, &gang(role), &[2]).unwrap();
    assert_eq!(
        found.takes.iter().map(place_of).collect::<Vec<_>>(),
        [("r2".into(), 8, 2, 1)]
    );
}

#[test]
fn a_preferred_level_is_given_up_only_when_it_must_be() {
    let role = RoleShape {
        preferred: Some("rack".into()),
        ..role(3, 8)
    };
    let apart = [hosts(2, &["r1"], 8), hosts(1, &["r2"], 8)];
    let missed = fit(&racks(), &apart, &gang(role.clone()), &[3]).unwrap();
    assert_eq!(missed.preferences_missed, 1);
    let together = [hosts(2, &["r1"], 8), hosts(3, &["r2"], 8)];
    let kept = fit(&racks(), &together, &gang(role), &[3]).unwrap();
    assert_eq!(
        (kept.preferences_missed, kept.takes[0].domains.as_slice()),
        (0, &["r2".into()][..])
    );
}

#[test]
fn a_level_that_the_pool_lacks_cannot_be_required() {
    let role = RoleShape {
        required: Some("spine".into()),
        ..role(1, 1)
    };
    assert_eq!(
        fit(&racks(), &[hosts(1, &["r1"], 8)], &gang(role), &[1]),
        None
    );
}

#[test]
fn host_is_a_level_of_every_pool() {
    let role = RoleShape {
        required: Some("host".into()),
        ..role(4, 2)
    };
    let split = [hosts(4, &["r1"], 6)];
    assert_eq!(fit(&racks(), &split, &gang(role.clone()), &[4]), None);
    let one = [hosts(4, &["r1"], 6), hosts(1, &["r1"], 8)];
    let found = fit(&racks(), &one, &gang(role), &[4]).unwrap();
    assert_eq!(
        found.takes.iter().map(place_of).collect::<Vec<_>>(),
        [("r1".into(), 8, 1, 4)]
    );
}

#[test]
fn a_later_role_uses_what_an_earlier_one_left_on_a_host() {
    let mut leader = role(1, 2);
    leader.name = "leader".into();
    let gang = GangShape {
        roles: vec![leader, role(1, 6)],
    };
    let found = fit(&racks(), &[hosts(1, &["r1"], 8)], &gang, &[1, 1]).unwrap();
    let takes: Vec<_> = found
        .takes
        .iter()
        .map(|take| (take.role, take.free))
        .collect();
    assert_eq!(takes, [(1, cards(8)), (0, cards(2))]);
}

#[test]
fn a_take_of_hosts_that_are_not_there_is_refused() {
    let shapes = [hosts(2, &["r1"], 8)];
    let gang = gang(role(2, 8));
    let takes = fit(&racks(), &shapes, &gang, &[2]).unwrap().takes;
    let left = subtract(&shapes, &gang, &takes).unwrap();
    let again = subtract(&left, &gang, &takes).unwrap_err();
    assert_eq!((again.index, again.wanted, again.there), (0, 2, 0));
}

#[test]
fn a_gang_that_no_longer_fits_takes_what_there_is() {
    let shapes = [hosts(1, &["r1"], 8), hosts(1, &["r1"], 5)];
    let after = subtract_unlisted(&racks(), &shapes, &gang(role(2, 8)), &[2]);
    assert_eq!(free(&after.shapes).gpus, MilliGpus::ZERO);
    assert_eq!(after.short, MilliGpus::cards(3));
}

/// One entry per host, whatever the rows are.
fn each_host(shapes: &[Shape]) -> Vec<&Shape> {
    let alike = |row| std::iter::repeat_n(row, (row as &Shape).hosts as usize);
    shapes.iter().flat_map(alike).collect()
}

fn pods_on(host: &Shape, request: Resources) -> u64 {
    let mut left = host.free;
    let mut pods = 0;
    while let Some(rest) = left.checked_sub(request) {
        left = rest;
        pods += 1;
    }
    pods
}

/// Whether `pods` pods of one role fit, found host by host and domain by domain.
fn fits_plainly(shapes: &[Shape], role: &RoleShape, pods: u32) -> bool {
    let mut rooms: BTreeMap<Vec<String>, u64> = BTreeMap::new();
    for (number, host) in each_host(shapes).into_iter().enumerate() {
        let place = match role.required.as_deref() {
            None => Vec::new(),
            Some("block") => host.domains[..1].to_vec(),
            Some("rack") => host.domains[..2].to_vec(),
            Some("host") => vec![number.to_string()],
            Some(level) => panic!("no level {level}"),
        };
        *rooms.entry(place).or_default() += pods_on(host, role.per_pod);
    }
    rooms.values().any(|room| *room >= u64::from(pods))
}

/// Names that sort the other way round.
fn renamed(shapes: &[Shape]) -> Vec<Shape> {
    let flip = |name: &String| {
        let (kind, number) = name.split_at(1);
        format!(
            "{kind}{}",
            9 - number
                .parse::<u8>()
                .expect("names are a letter and a digit")
        )
    };
    let rename = |row: &Shape| Shape {
        domains: row.domains.iter().map(flip).collect(),
        ..row.clone()
    };
    shapes.iter().map(rename).collect()
}

fn looks(takes: &[Take]) -> BTreeMap<(u32, Resources, Resources, u32), u32> {
    let mut looks = BTreeMap::new();
    for take in takes {
        let key = (take.role, take.allocatable, take.free, take.pods_per_host);
        *looks.entry(key).or_default() += take.hosts;
    }
    looks
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn one_role_is_fitted_exactly_when_it_can_be(
        shapes in random::shapes(), role in random::role(),
    ) {
        let pods = role.min;
        let found = fit(&random::levels(), &shapes, &gang(role.clone()), &[pods]);
        prop_assert_eq!(found.is_some(), fits_plainly(&shapes, &role, pods));
    }

    #[test]
    fn a_fit_is_whole_and_takes_only_what_is_there(
        shapes in random::shapes(), gang in random::gang(),
    ) {
        let pods = gang.most();
        let Some(found) = fit(&random::levels(), &shapes, &gang, &pods) else { return Ok(()) };
        for (index, wanted) in pods.iter().enumerate() {
            let own = found.takes.iter().filter(|take| take.role as usize == index);
            prop_assert_eq!(own.map(|take| take.hosts * take.pods_per_host).sum::<u32>(), *wanted);
        }
        let left = subtract(&shapes, &gang, &found.takes).expect("takes are there");
        let sum = free(&left).checked_add(gang.demand(&pods));
        prop_assert_eq!(sum, Some(free(&shapes)));
        prop_assert_eq!(allocatable(&left), allocatable(&shapes));
        prop_assert_eq!(each_host(&left).len(), each_host(&shapes).len());
        prop_assert!(left.iter().all(|row| row.allocatable.covers(row.free)));
    }

    #[test]
    fn the_order_of_rows_does_not_matter(
        shapes in random::shapes(), gang in random::gang(), turn in 0..7_usize,
    ) {
        let mut turned = shapes.clone();
        turned.rotate_left(turn.min(shapes.len()));
        let pods = gang.least();
        let levels = random::levels();
        prop_assert_eq!(fit(&levels, &shapes, &gang, &pods), fit(&levels, &turned, &gang, &pods));
        prop_assert_eq!(canonical(&shapes), canonical(&turned));
    }

    #[test]
    fn names_of_domains_do_not_matter(shapes in random::shapes(), role in random::role()) {
        let (levels, shapes) = (random::levels(), canonical(&shapes));
        let gang = gang(role);
        let pods = gang.least();
        let one = fit(&levels, &shapes, &gang, &pods);
        let other = fit(&levels, &renamed(&shapes), &gang, &pods);
        let facts = |found: Option<meridian_policies::shapes::Fit>| {
            found.map(|it| (looks(&it.takes), it.preferences_missed, it.left_on_hosts))
        };
        prop_assert_eq!(facts(one), facts(other));
    }

    #[test]
    fn what_no_digest_lists_is_subtracted_once(
        shapes in random::shapes(), gang in random::gang(),
    ) {
        let pods = gang.most();
        let after = subtract_unlisted(&random::levels(), &shapes, &gang, &pods);
        let taken = free(&shapes).gpus.checked_sub(free(&after.shapes).gpus).unwrap();
        let whole = taken.checked_add(after.short);
        prop_assert_eq!(whole, Some(gang.gpus(&pods)));
        prop_assert_eq!(allocatable(&after.shapes), allocatable(&shapes));
        if fit(&random::levels(), &shapes, &gang, &pods).is_some() {
            prop_assert_eq!(after.short, MilliGpus::ZERO);
        }
    }

    #[test]
    fn canonical_twice_is_canonical(shapes in random::shapes()) {
        let once = canonical(&shapes);
        prop_assert_eq!(&canonical(&once), &once);
        prop_assert_eq!(free(&once), free(&shapes));
    }
}
