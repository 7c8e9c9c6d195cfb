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
fn of_racks_that_look_alike_the_one_in_the_fuller_block_is_taken() {
    let levels = ["block".to_owned(), "rack".to_owned()];
    let shapes = [
        hosts(1, &["b0", "r0"], 8),
        hosts(1, &["b0", "r1"], 8),
        hosts(1, &["b1", "r0"], 8),
    ];
    let role = RoleShape {
        required: Some("rack".into()),
        ..role(1, 8)
    };
    let found = fit(&levels, &shapes, &gang(role), &[1]).unwrap();
    assert_eq!(found.takes[0].domains, ["b1", "r0"]);
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

/// The domain of a level that host `number` is in.
fn place(level: Option<&str>, number: usize, host: &Shape) -> Vec<String> {
    match level {
        None => Vec::new(),
        Some("block") => host.domains[..1].to_vec(),
        Some("rack") => host.domains[..2].to_vec(),
        Some("host") => vec![host.domains.join("/"), number.to_string()],
        Some(level) => panic!("no level {level}"),
    }
}

/// Whether `pods` pods of one role fit, found host by host and domain by domain.
fn fits_plainly(shapes: &[Shape], role: &RoleShape, pods: u32) -> bool {
    let depth = |level: Option<&str>| {
        let names = [None, Some("block"), Some("rack"), Some("host")];
        names
            .iter()
            .position(|name| *name == level)
            .expect("a known level")
    };
    let slice_level = role.slice.as_ref().map(|slice| slice.level.as_str());
    let unit = u64::from(role.slice.as_ref().map_or(1, |slice| slice.pods));
    if role.slice.is_some() && depth(slice_level) < depth(role.required.as_deref()) {
        return false;
    }
    // Room of each domain that holds slices (or of each host), in the domain that holds all.
    let inner = slice_level.unwrap_or("host");
    let mut rooms: BTreeMap<Vec<String>, BTreeMap<Vec<String>, u64>> = BTreeMap::new();
    for (number, host) in each_host(shapes).into_iter().enumerate() {
        let outer = place(role.required.as_deref(), number, host);
        let part = rooms.entry(outer).or_default();
        *part.entry(place(Some(inner), number, host)).or_default() += pods_on(host, role.per_pod);
    }
    let whole = |parts: &BTreeMap<_, u64>| parts.values().map(|room| room / unit * unit).sum();
    let most: u64 = rooms.values().map(whole).max().unwrap_or(0);
    most >= u64::from(pods)
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

/// Hosts of one look, and what was put on them: per role, hosts and pods on each.
type RowPicture = (Resources, Resources, u32, Vec<(u32, u32, u32)>);

/// A pool and what was taken there, without names: racks in blocks, hosts in racks.
fn picture(shapes: &[Shape], takes: &[Take]) -> Vec<Vec<Vec<RowPicture>>> {
    let mut blocks: BTreeMap<&str, BTreeMap<&str, Vec<RowPicture>>> = BTreeMap::new();
    let mut rows = canonical(shapes);
    // Rows that only a take names: hosts that an earlier role had used.
    for take in takes {
        rows.push(Shape {
            domains: take.domains.clone(),
            allocatable: take.allocatable,
            free: take.free,
            hosts: 0,
        });
    }
    rows.sort();
    rows.dedup_by(|next, first| {
        next.hosts == first.hosts && {
            next.domains == first.domains
                && next.allocatable == first.allocatable
                && next.free == first.free
        }
    });
    for row in &rows {
        let same = |take: &&Take| {
            row.hosts == 0
                && take.domains == row.domains
                && take.allocatable == row.allocatable
                && take.free == row.free
        };
        let own = takes.iter().filter(same);
        let mut taken: Vec<_> = own
            .map(|it| (it.role, it.hosts, it.pods_per_host))
            .collect();
        taken.sort_unstable();
        let racks = blocks.entry(&row.domains[0]).or_default();
        let rack = racks.entry(&row.domains[1]).or_default();
        rack.push((row.allocatable, row.free, row.hosts, taken));
    }
    let sorted = |mut rows: Vec<RowPicture>| {
        rows.sort();
        rows
    };
    let block = |racks: BTreeMap<&str, Vec<RowPicture>>| {
        let mut racks: Vec<_> = racks.into_values().map(sorted).collect();
        racks.sort();
        racks
    };
    let mut blocks: Vec<_> = blocks.into_values().map(block).collect();
    blocks.sort();
    blocks
}

/// Whether the takes are in one domain of the level.
fn within(takes: &[&Take], level: Option<&str>) -> bool {
    let depth = match level {
        None => return true,
        Some("host") => return takes.iter().map(|take| take.hosts).sum::<u32>() <= 1,
        Some("block") => 1,
        Some(_) => 2,
    };
    let first = takes.first().map(|take| &take.domains[..depth]);
    takes
        .iter()
        .all(|take| Some(&take.domains[..depth]) == first)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(5000))]

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
    fn names_of_domains_do_not_matter(shapes in random::shapes(), gang in random::gang()) {
        let (levels, other) = (random::levels(), renamed(&shapes));
        let pods = gang.least();
        let one = fit(&levels, &shapes, &gang, &pods);
        let two = fit(&levels, &other, &gang, &pods);
        let facts = |shapes: &[Shape], found: Option<meridian_policies::shapes::Fit>| {
            let seen = |it: meridian_policies::shapes::Fit| {
                (picture(shapes, &it.takes), it.preferences_missed, it.left_on_hosts)
            };
            found.map(seen)
        };
        prop_assert_eq!(facts(&shapes, one), facts(&other, two));
    }

    #[test]
    fn levels_and_slices_are_kept(shapes in random::shapes(), gang in random::gang()) {
        let pods = gang.most();
        let Some(found) = fit(&random::levels(), &shapes, &gang, &pods) else { return Ok(()) };
        for (role, index) in gang.roles.iter().zip(0_u32..) {
            let own: Vec<&Take> = found.takes.iter().filter(|take| take.role == index).collect();
            prop_assert!(within(&own, role.required.as_deref()));
            let Some(slice) = &role.slice else { continue };
            let mut parts: BTreeMap<Vec<String>, u32> = BTreeMap::new();
            for take in own {
                match slice.level.as_str() {
                    "host" => prop_assert!(take.pods_per_host.is_multiple_of(slice.pods)),
                    "rack" => *parts.entry(take.domains.clone()).or_default() +=
                        take.hosts * take.pods_per_host,
                    _ => *parts.entry(take.domains[..1].to_vec()).or_default() +=
                        take.hosts * take.pods_per_host,
                }
            }
            prop_assert!(parts.values().all(|pods| pods.is_multiple_of(slice.pods)));
        }
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
