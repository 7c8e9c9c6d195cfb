//! Placement on nodes: whole, on ready nodes only, blind to names and order.

use std::collections::BTreeMap;

use meridian_api::reasons::Reason;
use meridian_api::units::Resources;
use meridian_policies::model::{GangShape, RoleShape, Shape, SliceShape};
use meridian_policies::nodes::{Index, Member, Node, place};
use meridian_policies::shapes::canonical;
use proptest::prelude::*;

use crate::builders::{cards, gang, role};
use crate::random;

fn node(name: &str, rack: &str, free: u64) -> Node {
    Node {
        name: name.into(),
        domains: vec![rack.into()],
        allocatable: cards(8),
        free: cards(free),
        ready: true,
    }
}

#[test]
fn a_node_that_is_not_ready_is_not_there() {
    let mut nodes = [node("n1", "r1", 8), node("n2", "r1", 8)];
    let gang = gang(role(2, 8));
    let levels = ["rack".to_owned()];
    assert!(place(&levels, &nodes, &gang, &[2]).is_ok());
    nodes[1].ready = false;
    let failure = place(&levels, &nodes, &gang, &[2]).unwrap_err();
    assert_eq!(failure.reason, Reason::NeverPlaceable);
    assert_eq!(
        failure.message,
        "needs 2 hosts with 8 free GPUs; 1 has them, even when empty"
    );
}

#[test]
fn a_failure_says_what_is_short() {
    let nodes = [
        node("n1", "r1", 8),
        node("n2", "r1", 7),
        node("n3", "r2", 8),
    ];
    let levels = ["rack".to_owned()];
    let failure = place(&levels, &nodes, &gang(role(3, 8)), &[3]).unwrap_err();
    assert_eq!(failure.reason, Reason::WaitingForCapacity);
    assert_eq!(
        failure.message,
        "needs 3 hosts with 8 free GPUs; 2 have them, 23 GPUs free in all"
    );
    let rack = RoleShape {
        required: Some("rack".into()),
        ..role(2, 8)
    };
    let failure = place(&levels, &nodes, &gang(rack), &[2]).unwrap_err();
    assert_eq!(failure.reason, Reason::Fragmented);
    assert_eq!(
        failure.message,
        "needs 2 hosts with 8 free GPUs in one rack; at most 1 fits in one, 23 GPUs free in all"
    );
}

#[test]
fn a_rule_that_nothing_can_keep_says_why() {
    let nodes = [node("n1", "r1", 8), node("n2", "r2", 8)];
    let levels = ["rack".to_owned()];
    let failure = |pods: u32, required: Option<&str>, slice: (u32, &str)| {
        let role = RoleShape {
            required: required.map(str::to_owned),
            slice: Some(SliceShape {
                pods: slice.0,
                level: slice.1.into(),
            }),
            ..role(pods, 8)
        };
        let failure = place(&levels, &nodes, &gang(role), &[pods]).unwrap_err();
        (failure.reason, failure.message)
    };
    let cases = [
        failure(3, None, (2, "rack")),
        failure(2, Some("host"), (2, "rack")),
        failure(2, None, (2, "spine")),
        failure(2, None, (2, "rack")),
    ];
    let words = [
        "needs slices of 2 pods, which 3 pods do not make, even when empty",
        "needs slices within one rack, which is wider than the one host for all, even when empty",
        "needs one spine, a level that the pool does not have, even when empty",
        "needs 2 hosts with 8 free GPUs, each 2 in one rack; none has them, even when empty",
    ];
    for ((reason, message), words) in cases.into_iter().zip(words) {
        assert_eq!((reason, message.as_str()), (Reason::NeverPlaceable, words));
    }
}

#[test]
fn slices_stay_whole_while_the_role_spreads() {
    let racks = [("r1", 3), ("r2", 2), ("r3", 5)];
    let hosts = racks
        .iter()
        .flat_map(|(rack, count)| (0..*count).map(move |it| (rack, it)));
    let nodes: Vec<Node> = hosts
        .map(|(rack, it)| node(&format!("{rack}{it}"), rack, 8))
        .collect();
    let role = RoleShape {
        slice: Some(SliceShape {
            pods: 2,
            level: "rack".into(),
        }),
        ..role(8, 8)
    };
    let placed = |pods: u32| place(&["rack".to_owned()], &nodes, &gang(role.clone()), &[pods]);
    let members = placed(8).unwrap();
    let racks: Vec<&str> = members
        .iter()
        .map(|it| nodes[it.node].domains[0].as_str())
        .collect();
    assert_eq!(racks, ["r1", "r1", "r2", "r2", "r3", "r3", "r3", "r3"]);
    assert_eq!(placed(10).unwrap_err().reason, Reason::NeverPlaceable);
}

pub(crate) fn nodes() -> impl Strategy<Value = Vec<Node>> {
    let ready = prop::bool::weighted(0.9);
    prop::collection::vec((random::shape(), ready), 0..14).prop_map(|list| {
        let node =
            |(index, (shape, ready)): (usize, (meridian_policies::model::Shape, bool))| Node {
                name: format!("n{index:02}"),
                domains: shape.domains,
                allocatable: shape.allocatable,
                free: shape.free,
                ready,
            };
        list.into_iter().enumerate().map(node).collect()
    })
}

/// One node comes, changes or goes.
fn change() -> impl Strategy<Value = (u8, Option<(Shape, bool)>)> {
    let node = (random::shape(), prop::bool::weighted(0.9));
    (0..12_u8, prop::option::weighted(0.8, node))
}

fn node_of(number: u8, shape: Shape, ready: bool) -> Node {
    Node {
        name: format!("n{number:02}"),
        domains: shape.domains,
        allocatable: shape.allocatable,
        free: shape.free,
        ready,
    }
}

/// What a placement looks like without names: members per role and kind of node.
fn looks<'a>(
    nodes: &'a [Node],
    members: &[Member],
) -> BTreeMap<(u32, &'a [String], Resources, Resources), u32> {
    let mut looks = BTreeMap::new();
    for member in members {
        let node = &nodes[member.node];
        let key = (
            member.role,
            node.domains.as_slice(),
            node.allocatable,
            node.free,
        );
        *looks.entry(key).or_default() += 1;
    }
    looks
}

fn fits_on_nodes(nodes: &[Node], gang: &GangShape, members: &[Member]) -> bool {
    let mut left: Vec<Resources> = nodes.iter().map(|node| node.free).collect();
    members.iter().all(|member| {
        let request = gang.roles[member.role as usize].per_pod;
        match left[member.node].checked_sub(request) {
            Some(rest) => {
                left[member.node] = rest;
                nodes[member.node].ready
            }
            None => false,
        }
    })
}

/// Ranks run from zero, and no domain comes back once it was left.
fn ranks_are_contiguous(nodes: &[Node], members: &[Member], role: u32, pods: u32) -> bool {
    let own: Vec<&Member> = members
        .iter()
        .filter(|member| member.role == role)
        .collect();
    let ranks: Vec<u32> = own.iter().map(|member| member.rank).collect();
    let numbered = ranks == (0..pods).collect::<Vec<_>>();
    let unbroken = (1..=2).all(|depth| {
        let mut domains: Vec<_> = own
            .iter()
            .map(|it| &nodes[it.node].domains[..depth])
            .collect();
        domains.dedup();
        let runs = domains.len();
        domains.sort_unstable();
        domains.dedup();
        runs == domains.len()
    });
    numbered && unbroken
}

/// The ranks `0..k`, `k..2k` and so on are each in one domain of the slice's level.
pub(crate) fn slices_are_whole(
    nodes: &[Node],
    members: &[Member],
    role: u32,
    gang: &GangShape,
) -> bool {
    let Some(slice) = &gang.roles[role as usize].slice else {
        return true;
    };
    let mut own = members.iter().filter(|member| member.role == role);
    let mut parts: BTreeMap<u32, Vec<&Member>> = BTreeMap::new();
    own.by_ref().for_each(|member| {
        parts
            .entry(member.rank / slice.pods)
            .or_default()
            .push(member);
    });
    let one_place = |part: &Vec<&Member>| {
        let first = part[0].node;
        part.iter().all(|member| match slice.level.as_str() {
            "host" => member.node == first,
            "rack" => nodes[member.node].domains == nodes[first].domains,
            _ => nodes[member.node].domains[0] == nodes[first].domains[0],
        })
    };
    parts.values().all(one_place)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_gang_is_placed_whole_with_contiguous_ranks(nodes in nodes(), gang in random::gang()) {
        let pods = gang.least();
        let Ok(members) = place(&random::levels(), &nodes, &gang, &pods) else { return Ok(()) };
        prop_assert!(fits_on_nodes(&nodes, &gang, &members));
        prop_assert!(members.is_sorted());
        for (role, count) in (0..).zip(&pods) {
            prop_assert!(ranks_are_contiguous(&nodes, &members, role, *count));
            prop_assert!(slices_are_whole(&nodes, &members, role, &gang));
        }
    }

    #[test]
    fn names_and_order_of_nodes_do_not_matter(
        nodes in nodes(), gang in random::gang(), turn in 0..14_usize,
    ) {
        let mut other = nodes.clone();
        for (index, node) in other.iter_mut().enumerate() {
            node.name = format!("x{:02}", 50 - index);
        }
        other.rotate_left(turn.min(nodes.len()));
        let pods = gang.least();
        let levels = random::levels();
        let one = place(&levels, &nodes, &gang, &pods);
        let two = place(&levels, &other, &gang, &pods);
        match (one, two) {
            (Ok(one), Ok(two)) => prop_assert_eq!(looks(&nodes, &one), looks(&other, &two)),
            (one, two) => prop_assert_eq!(one, two),
        }
    }

    #[test]
    fn the_same_names_in_another_order_get_the_same_pods(
        nodes in nodes(), gang in random::gang(), turn in 0..14_usize,
    ) {
        let mut other = nodes.clone();
        other.rotate_left(turn.min(nodes.len()));
        let pods = gang.least();
        let named = |nodes: &[Node]| {
            place(&random::levels(), nodes, &gang, &pods).map(|members| {
                let name = |it: Member| (it.role, it.rank, nodes[it.node].name.clone());
                members.into_iter().map(name).collect::<Vec<_>>()
            })
        };
        prop_assert_eq!(named(&nodes), named(&other));
    }

    #[test]
    fn an_index_answers_as_if_built_anew(
        changes in prop::collection::vec((change(), prop::bool::weighted(0.2)), 0..60),
        gang in random::gang(),
    ) {
        let levels = random::levels();
        let (mut index, mut nodes) = (Index::new(&levels), BTreeMap::new());
        let (count, pods) = (changes.len(), gang.least());
        for (turn, ((number, node), ask)) in changes.into_iter().enumerate() {
            if let Some((shape, ready)) = node {
                let node = node_of(number, shape, ready);
                index.set(&node);
                nodes.insert(node.name.clone(), node);
            } else {
                let name = format!("n{number:02}");
                index.remove(&name);
                nodes.remove(&name);
            }
            if !ask && turn + 1 < count {
                continue;
            }
            let list: Vec<Node> = nodes.values().cloned().collect();
            let found = index.place(&gang, &pods).map(|members| {
                let name = |it: Member| index.name(it.node).expect("a node").to_owned();
                members.into_iter().map(|it| (it.role, it.rank, name(it))).collect::<Vec<_>>()
            });
            let anew = place(&levels, &list, &gang, &pods).map(|members| {
                let name = |it: Member| list[it.node].name.clone();
                members.into_iter().map(|it| (it.role, it.rank, name(it))).collect::<Vec<_>>()
            });
            prop_assert_eq!(found, anew);
            let ready = list.iter().filter(|node| node.ready).map(|node| Shape {
                domains: node.domains.clone(),
                allocatable: node.allocatable,
                free: node.free,
                hosts: 1,
            });
            prop_assert_eq!(index.shapes(), canonical(&ready.collect::<Vec<_>>()));
        }
    }
}
