//! A gang that loses a node: few members move, levels and slices are kept, nothing is given twice.

use std::collections::BTreeMap;

use meridian_api::units::Resources;
use meridian_policies::model::{GangShape, RoleShape, SliceShape};
use meridian_policies::nodes::{Member, Node, Replacement, place, replace};
use proptest::prelude::*;

use crate::builders::{cards, gang, role};
use crate::nodes::{nodes, slices_are_whole};
use crate::random;

fn levels() -> Vec<String> {
    vec!["rack".into()]
}

/// Empty nodes of 8 GPUs: so many in each rack.
fn racks(counts: &[(&str, usize)]) -> Vec<Node> {
    let of_rack = |(rack, count): &(&str, usize)| {
        let node = |number: usize| Node {
            name: format!("{rack}-{number}"),
            domains: vec![(*rack).to_owned()],
            allocatable: cards(8),
            free: cards(8),
            ready: true,
        };
        (0..*count).map(node).collect::<Vec<_>>()
    };
    counts.iter().flat_map(of_rack).collect()
}

fn take(nodes: &mut [Node], gang: &GangShape, members: &[Member]) {
    for member in members {
        let free = &mut nodes[member.node].free;
        let request = gang.roles[member.role as usize].per_pod;
        *free = free.checked_sub(request).expect("it was placed there");
    }
}

/// Places the gang, takes its room, and loses the node of its first member.
fn lose_first(mut nodes: Vec<Node>, gang: &GangShape, pods: u32) -> (Vec<String>, Replacement) {
    let members = place(&levels(), &nodes, gang, &[pods]).expect("it fits");
    take(&mut nodes, gang, &members);
    let found = replace(&levels(), &nodes, gang, &members, members[0].node);
    let names = |members: &[Member]| {
        let name = |it: &Member| format!("{} on {}", it.rank, nodes[it.node].name);
        members.iter().map(name).collect()
    };
    let words = match &found {
        Replacement::Swap(moved) => names(moved),
        Replacement::Shrink { members, .. } | Replacement::Restart(Ok(members)) => names(members),
        Replacement::Restart(Err(failure)) => vec![failure.to_string()],
    };
    (words, found)
}

#[test]
fn only_the_lost_member_moves_and_stays_in_its_rack() {
    let rack = RoleShape {
        required: Some("rack".into()),
        ..role(3, 8)
    };
    let (moved, found) = lose_first(racks(&[("r1", 4), ("r2", 8)]), &gang(rack), 3);
    assert!(matches!(found, Replacement::Swap(_)));
    assert_eq!(moved, ["0 on r1-3"]);
}

#[test]
fn without_a_level_the_nearest_rack_with_room_is_taken() {
    let (moved, _) = lose_first(racks(&[("r1", 3), ("r2", 9)]), &gang(role(2, 8)), 2);
    assert_eq!(moved, ["0 on r1-2"]);
}

#[test]
fn a_slice_without_room_in_its_rack_moves_whole() {
    let sliced = RoleShape {
        slice: Some(SliceShape {
            pods: 2,
            level: "rack".into(),
        }),
        ..role(4, 8)
    };
    let (moved, found) = lose_first(racks(&[("r1", 2), ("r2", 2), ("r3", 3)]), &gang(sliced), 4);
    assert!(matches!(found, Replacement::Swap(_)));
    assert_eq!(moved, ["0 on r3-0", "1 on r3-1"]);
}

#[test]
fn an_elastic_gang_goes_on_smaller() {
    let elastic = RoleShape {
        min: 1,
        max: 3,
        ..role(3, 8)
    };
    let (members, found) = lose_first(racks(&[("r1", 3)]), &gang(elastic), 3);
    assert!(matches!(found, Replacement::Shrink { pods, .. } if pods == [2]));
    assert_eq!(members, ["1 on r1-1", "2 on r1-2"]);
}

#[test]
fn a_rigid_gang_starts_again_where_all_fit() {
    let rack = RoleShape {
        required: Some("rack".into()),
        ..role(3, 8)
    };
    let (members, found) = lose_first(racks(&[("r1", 3), ("r2", 4)]), &gang(rack.clone()), 3);
    assert!(matches!(found, Replacement::Restart(Ok(_))));
    assert_eq!(members, ["0 on r2-0", "1 on r2-1", "2 on r2-2"]);
    let (why, _) = lose_first(racks(&[("r1", 3), ("r2", 2)]), &gang(rack), 3);
    assert_eq!(
        why,
        ["needs 3 hosts with 8 free GPUs in one rack; at most 2 fit in one, even when empty"]
    );
}

/// Whether all the members can be where they are: room, readiness, levels and slices.
fn holds(nodes: &[Node], gang: &GangShape, before: &[Member], after: &[Member]) -> bool {
    let mut left: Vec<Resources> = nodes.iter().map(|node| node.free).collect();
    let room = after.iter().all(|member| {
        let request = gang.roles[member.role as usize].per_pod;
        let stays = before
            .iter()
            .any(|it| it.role == member.role && it.node == member.node);
        match left[member.node].checked_sub(request) {
            Some(rest) => {
                left[member.node] = rest;
                nodes[member.node].ready || stays
            }
            None => false,
        }
    });
    let kept = (0_u32..).zip(&gang.roles).all(|(index, role)| {
        let own: Vec<&Member> = after.iter().filter(|it| it.role == index).collect();
        let depth = match role.required.as_deref() {
            None => 0,
            Some("host") => return own.iter().all(|it| it.node == own[0].node),
            Some("block") => 1,
            Some(_) => 2,
        };
        let domain = |it: &Member| nodes[it.node].domains[..depth].to_vec();
        own.iter().all(|it| domain(it) == domain(own[0]))
            && slices_are_whole(nodes, after, index, gang)
    });
    room && kept
}

fn ranks(members: &[Member], role: u32) -> Vec<u32> {
    let own = members.iter().filter(|it| it.role == role);
    own.map(|it| it.rank).collect()
}

/// Pods that fit next to the survivors of a gang with one role and no slices, in the level it
/// requires.
fn room_beside(nodes: &[Node], role: &RoleShape, members: &[Member], lost: usize) -> u64 {
    let place = |number: usize| match role.required.as_deref() {
        None => Vec::new(),
        Some("block") => nodes[number].domains[..1].to_vec(),
        Some("rack") => nodes[number].domains.clone(),
        Some(_) => vec![number.to_string()],
    };
    let mut rooms: BTreeMap<Vec<String>, u64> = BTreeMap::new();
    for (number, node) in nodes.iter().enumerate() {
        if node.ready && number != lost {
            *rooms.entry(place(number)).or_default() += node.free.times(role.per_pod);
        }
    }
    match members.iter().find(|it| it.node != lost) {
        Some(stays) => rooms.get(&place(stays.node)).copied().unwrap_or(0),
        None => rooms.into_values().max().unwrap_or(0),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn a_replacement_is_whole_and_moves_few(
        nodes in nodes(), gang in random::gang(), which in any::<prop::sample::Index>(),
        cordoned in any::<prop::sample::Index>(),
    ) {
        let (levels, pods) = (random::levels(), gang.most());
        let Ok(members) = place(&levels, &nodes, &gang, &pods) else { return Ok(()) };
        let lost = which.get(&members).node;
        let mut used = nodes.clone();
        take(&mut used, &gang, &members);
        // A node that takes no new pods may go on with those that it has.
        used[cordoned.get(&members).node].ready = false;
        let mut open = nodes.clone();
        for (open, used) in open.iter_mut().zip(&used) {
            open.ready = used.ready;
        }
        let hit = |it: &&Member| it.node == lost;
        match replace(&levels, &used, &gang, &members, lost) {
            Replacement::Swap(moved) => {
                let mut after = members.clone();
                for it in &mut after {
                    let new = moved.iter().find(|new| (new.role, new.rank) == (it.role, it.rank));
                    it.node = new.map_or(it.node, |new| new.node);
                }
                prop_assert!(after.iter().all(|it| it.node != lost));
                prop_assert!(holds(&open, &gang, &members, &after));
                for (index, role) in (0..).zip(&gang.roles) {
                    let few = moved.iter().filter(|it| it.role == index).count();
                    let gone = members.iter().filter(hit).filter(|it| it.role == index).count();
                    prop_assert!(few == gone || role.slice.is_some());
                }
            }
            Replacement::Shrink { pods: smaller, members: after } => {
                prop_assert!(after.iter().all(|it| it.node != lost));
                prop_assert!(holds(&open, &gang, &members, &after));
                for (index, role) in (0..).zip(&gang.roles) {
                    let size = smaller[index as usize];
                    prop_assert!(role.allows(size) && size <= pods[index as usize]);
                    let left = ranks(&after, index);
                    prop_assert_eq!(left.len(), size as usize);
                    prop_assert!(left.iter().all(|rank| *rank < pods[index as usize]));
                }
                prop_assert!(smaller != pods);
            }
            Replacement::Restart(Ok(after)) => {
                prop_assert!(after.iter().all(|it| it.node != lost));
                prop_assert!(holds(&open, &gang, &[], &after));
            }
            Replacement::Restart(Err(failure)) => {
                let mut rest = open.clone();
                rest[lost].ready = false;
                let again = place(&levels, &rest, &gang, &gang.least());
                let again = again.map_err(|it| it.to_string());
                prop_assert_eq!(again, Err(failure.to_string()));
            }
        }
    }

    #[test]
    fn a_swap_is_found_when_there_is_one(
        nodes in nodes(), role in random::role(), which in any::<prop::sample::Index>(),
    ) {
        let role = RoleShape { slice: None, ..role };
        let (levels, gang, pods) = (random::levels(), gang(role.clone()), role.min);
        let Ok(members) = place(&levels, &nodes, &gang, &[pods]) else { return Ok(()) };
        let lost = which.get(&members).node;
        let mut used = nodes;
        take(&mut used, &gang, &members);
        let count = members.iter().filter(|it| it.node == lost).count() as u64;
        let fits = room_beside(&used, &role, &members, lost) >= count;
        let found = replace(&levels, &used, &gang, &members, lost);
        prop_assert_eq!(matches!(found, Replacement::Swap(_)), fits, "{:?}", found);
    }
}
