//! Placement on nodes: whole, on ready nodes only, blind to names and order.

use std::collections::BTreeMap;

use meridian_api::reasons::Reason;
use meridian_api::units::Resources;
use meridian_policies::model::{GangShape, RoleShape};
use meridian_policies::nodes::{Member, Node, place};
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

fn nodes() -> impl Strategy<Value = Vec<Node>> {
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn a_gang_is_placed_whole_with_contiguous_ranks(nodes in nodes(), gang in random::gang()) {
        let pods = gang.least();
        let Ok(members) = place(&random::levels(), &nodes, &gang, &pods) else { return Ok(()) };
        prop_assert!(fits_on_nodes(&nodes, &gang, &members));
        prop_assert!(members.is_sorted());
        for (role, count) in (0..).zip(&pods) {
            prop_assert!(ranks_are_contiguous(&nodes, &members, role, *count));
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
}
