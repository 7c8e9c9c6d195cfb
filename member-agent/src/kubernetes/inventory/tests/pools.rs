//! Pools, their levels, and what is found about them.

use super::super::{LevelLabel, PoolLevels, PoolRule};
use super::*;

const POOL: &str = "meridian.dev/pool";
const BLOCK: &str = "cloud.google.com/gce-topology-block";
const RACK: &str = "cloud.google.com/gce-topology-subblock";

fn of(nodes: &[Node]) -> Inventory {
    let mut inventory = inventory();
    for node in nodes {
        inventory.apply_node(node);
    }
    inventory
}

fn pools(inventory: &Inventory) -> Vec<String> {
    let pools = inventory.snapshot().0;
    let text = |pool: &crate::backend::PoolSeen| {
        format!("{} {} [{}]", pool.name, pool.flavor, pool.levels.join(" "))
    };
    pools.iter().map(text).collect()
}

fn places(inventory: &Inventory) -> Vec<String> {
    let nodes = inventory.snapshot().1;
    let text =
        |node: &NodeSeen| format!("{} {} [{}]", node.name, node.pool, node.domains.join(" "));
    nodes.iter().map(text).collect()
}

#[test]
fn a_label_goes_before_a_rule_and_a_rule_before_the_flavor() {
    let rule = PoolRule {
        pool: "vision".to_owned(),
        node_selector: map(&[("team", "vision")]),
    };
    let mut inventory = configured(InventoryConfig {
        pools: vec![rule],
        ..InventoryConfig::default()
    });
    inventory.apply_node(&h100("a", &[("team", "vision"), (POOL, "train")]));
    inventory.apply_node(&h100("b", &[("team", "vision")]));
    inventory.apply_node(&h100("c", &[("team", "speech")]));
    assert_eq!(
        places(&inventory),
        ["a train []", "b vision []", "c h100-80gb-sxm []"]
    );
}

#[test]
fn a_name_that_is_none_leaves_the_node_in_its_flavors_pool() {
    for name in ["Train", "a--b", &"a".repeat(32)] {
        let node = h100("n", &[(POOL, name)]);
        assert_eq!(one(&node).pool, "h100-80gb-sxm");
        assert_eq!(odd(&node), ["BadPoolName"]);
    }
}

#[test]
fn a_pool_has_one_flavor_the_one_of_most_nodes() {
    let (a, b, c) = (
        h100("a", &[(POOL, "p")]),
        h100("b", &[(POOL, "p")]),
        l4("c", &[(POOL, "p")]),
    );
    let mut inventory = of(&[a, b, c]);
    assert_eq!(pools(&inventory), ["p h100-80gb-sxm []", "p--l4 l4 []"]);
    assert_eq!(places(&inventory), ["a p []", "b p []", "c p--l4 []"]);
    assert_eq!(reasons(&inventory), ["SeveralFlavors"; 2], "of both");
    inventory.apply_node(&l4("d", &[(POOL, "p")]));
    assert_eq!(
        pools(&inventory)[0],
        "p h100-80gb-sxm []",
        "of equals the first by name"
    );
    inventory.apply_node(&l4("e", &[(POOL, "p")]));
    assert_eq!(
        pools(&inventory),
        ["p l4 []", "p--h100-80gb-sxm h100-80gb-sxm []"]
    );
}

#[test]
fn levels_are_those_that_any_node_carries() {
    let zone = |zone| ("topology.kubernetes.io/zone", zone);
    let a = h100("a", &[(BLOCK, "b1"), (RACK, "r1"), zone("z1")]);
    let b = h100("b", &[(BLOCK, "b1"), (RACK, "r2"), zone("z1")]);
    let c = h100("c", &[(BLOCK, "b1"), zone("z1")]);
    let mut inventory = of(&[a, b, c]);
    assert_eq!(
        pools(&inventory),
        ["h100-80gb-sxm h100-80gb-sxm [block rack]"]
    );
    let pool = "h100-80gb-sxm";
    let expected = [
        format!("a {pool} [b1 r1]"),
        format!("b {pool} [b1 r2]"),
        format!("c {pool} [b1 unlabelled:c]"),
    ];
    assert_eq!(places(&inventory), expected);
    assert_eq!(reasons(&inventory), ["UnlabelledNodes"]);
    inventory.apply_node(&h100("d", &[(BLOCK, "b2"), (RACK, "r3"), zone("z2")]));
    assert_eq!(
        pools(&inventory),
        ["h100-80gb-sxm h100-80gb-sxm [zone block rack]"]
    );
    inventory.remove_node("d");
    assert_eq!(
        pools(&inventory),
        ["h100-80gb-sxm h100-80gb-sxm [block rack]"]
    );
}

#[test]
fn declared_levels_are_there_and_in_their_order() {
    let level = |name: &str| LevelLabel {
        name: name.to_owned(),
        label: format!("dc/{name}"),
    };
    let mut inventory = configured(InventoryConfig {
        levels: vec![PoolLevels {
            pool: "train".to_owned(),
            levels: vec![level("row"), level("rack")],
        }],
        ..InventoryConfig::default()
    });
    inventory.apply_node(&h100(
        "a",
        &[(POOL, "train"), ("dc/rack", "7"), (BLOCK, "b")],
    ));
    inventory.apply_node(&h100("b", &[(BLOCK, "b")]));
    assert_eq!(
        pools(&inventory),
        [
            "h100-80gb-sxm h100-80gb-sxm [block]",
            "train h100-80gb-sxm [row rack]"
        ]
    );
    assert_eq!(
        places(&inventory),
        ["a train [unlabelled:a 7]", "b h100-80gb-sxm [b]"]
    );
    let findings = inventory.findings();
    let text: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert_eq!(
        text,
        [
            "pool train: 1 node of 1 without level \"row\" (label dc/row), each a domain of its own: \
          a (UnlabelledNodes)"
        ]
    );
}

#[test]
fn versions_out_of_step_and_split_domains_are_found() {
    let driver = "nvidia.com/cuda.driver-version.full";
    let old = [
        "nvidia.com/cuda.driver.major",
        "nvidia.com/cuda.driver.minor",
        "nvidia.com/cuda.driver.rev",
    ];
    let node = |n: usize, block: &str, labels: &[(&str, &str)]| {
        h100(
            &format!("n{n}"),
            &[&[(BLOCK, block), (RACK, "r1")], labels].concat(),
        )
    };
    let inventory = of(&[
        node(1, "b1", &[(driver, "570.86.10")]),
        node(2, "b1", &[(driver, "570.86.10")]),
        node(3, "b2", &[(old[0], "550"), (old[1], "54"), (old[2], "")]),
        node(4, "b2", &[]),
    ]);
    let text: Vec<String> = inventory
        .findings()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(
        text,
        [
            "pool h100-80gb-sxm: domain \"r1\" of level \"rack\" lies in 2 domains of level \
             \"block\", and counts as one in each: b1, b2 (SplitDomain)",
            "pool h100-80gb-sxm: drivers differ: 550.54 on 1 node, 570.86.10 on 2 nodes \
             (VersionSkew)",
        ]
    );
}

#[test]
fn a_pool_says_what_is_odd_about_its_first_node() {
    let mut nodes: Vec<Node> = (0..5).map(|n| h100(&format!("n{n}"), &[])).collect();
    for node in &mut nodes {
        capacity(node, "nvidia.com/gpu", "16");
    }
    let mut inventory = of(&nodes);
    let findings = |inventory: &Inventory| inventory.snapshot().0[0].findings.clone();
    assert_eq!(
        findings(&inventory),
        [
            "5 nodes (n0, n1, n2 and 2 more); n0: nvidia.com/gpu is 16, the labels say 8 GPUs of one \
          product: they are shared or of several products; none are offered (NotWholeGpus)"
        ]
    );
    for n in 1..5 {
        inventory.apply_node(&h100(&format!("n{n}"), &[]));
    }
    assert!(findings(&inventory)[0].starts_with("1 node (n0); n0: "));
    inventory.apply_node(&h100("n0", &[]));
    assert!(findings(&inventory).is_empty());
}
