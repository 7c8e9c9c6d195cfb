//! Which changes are told, and in which order.

use super::*;
use crate::backend::ClusterEvent;

const POOL: &str = "meridian.dev/pool";
const RACK: &str = "cloud.google.com/gce-topology-subblock";

fn told(events: &[ClusterEvent]) -> Vec<String> {
    let text = |event: &ClusterEvent| match event {
        ClusterEvent::Node(node) => format!("node {}", node.name),
        ClusterEvent::NodeGone(name) => format!("node {name} gone"),
        ClusterEvent::Pool(pool, nodes) => {
            let nodes: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
            format!("pool {} of {}: {}", pool.name, pool.flavor, nodes.join(" "))
        }
        ClusterEvent::PoolGone(name) => format!("pool {name} gone"),
        ClusterEvent::Gang(_)
        | ClusterEvent::GangGone(_)
        | ClusterEvent::Offer(_)
        | ClusterEvent::OfferGone(_)
        | ClusterEvent::HeldBack(_) => panic!("no gang is in an inventory"),
    };
    events.iter().map(text).collect()
}

#[test]
fn a_heartbeat_is_no_change() {
    let mut inventory = inventory();
    let mut node = h100("n", &[]);
    assert_eq!(
        told(&inventory.apply_node(&node)),
        ["pool h100-80gb-sxm of h100-80gb-sxm: n"]
    );
    let mut ready = condition("Ready", "True");
    ready.message = Some("kubelet is posting ready status".to_owned());
    status(&mut node).conditions = Some(vec![condition("DiskPressure", "False"), ready]);
    node.metadata.resource_version = Some("12345".to_owned());
    label(&mut node, "nvidia.com/gfd.timestamp", "1594644571");
    status(&mut node).images = Some(Vec::new());
    assert!(inventory.apply_node(&node).is_empty());
    // What is kept but not seen by the fleet is no event either.
    label(
        &mut node,
        "nvidia.com/cuda.driver-version.full",
        "570.86.10",
    );
    assert!(inventory.apply_node(&node).is_empty());
    allocatable(&mut node, "nvidia.com/gpu", "7");
    assert_eq!(told(&inventory.apply_node(&node)), ["node n"]);
    assert!(inventory.apply_node(&node).is_empty());
    // A finding is told with its pool alone.
    let mut other = node.clone();
    other.metadata.name = Some("m".to_owned());
    label(
        &mut other,
        "nvidia.com/cuda.driver-version.full",
        "550.54.15",
    );
    let events = inventory.apply_node(&other);
    assert_eq!(
        told(&events),
        ["node m", "pool h100-80gb-sxm of h100-80gb-sxm: "]
    );
    let ClusterEvent::Pool(pool, _) = &events[1] else {
        panic!("{events:?}");
    };
    assert_eq!(
        pool.findings,
        ["drivers differ: 550.54.15 on 1 node, 570.86.10 on 1 node (VersionSkew)"]
    );
    inventory.remove_node("m");
    let gone = ["node n gone", "pool h100-80gb-sxm gone"];
    assert_eq!(told(&inventory.remove_node("n")), gone);
    assert!(inventory.remove_node("n").is_empty());
}

#[test]
fn a_pool_that_gains_a_level_comes_with_all_its_nodes() {
    let mut inventory = inventory();
    inventory.apply_node(&h100("a", &[]));
    assert_eq!(told(&inventory.apply_node(&h100("b", &[]))), ["node b"]);
    let events = inventory.apply_node(&h100("c", &[(RACK, "r1")]));
    assert_eq!(
        told(&events),
        ["pool h100-80gb-sxm of h100-80gb-sxm: a b c"]
    );
    let ClusterEvent::Pool(pool, nodes) = &events[0] else {
        panic!("{events:?}");
    };
    assert_eq!(pool.levels, ["rack"]);
    assert_eq!(nodes[0].domains, ["unlabelled:a"]);
    assert_eq!(
        pool.findings,
        [
            "2 nodes of 3 without level \"rack\" (label cloud.google.com/gce-topology-subblock or \
          topology.k8s.aws/network-node-layer-3 or oci.oraclecloud.com/host.rack_id or \
          fabric.topograph.run/tier-0 or network.topology.nvidia.com/leaf or \
          backend.coreweave.cloud/leafgroup), each a domain of its own (UnlabelledNodes)"
        ]
    );
    let events = inventory.remove_node("c");
    assert_eq!(
        told(&events),
        ["node c gone", "pool h100-80gb-sxm of h100-80gb-sxm: a b"]
    );
}

#[test]
fn a_node_leaves_before_its_pool_changes() {
    let mut inventory = inventory();
    inventory.apply_node(&h100("a", &[(POOL, "p")]));
    inventory.apply_node(&h100("b", &[(POOL, "p"), (RACK, "r")]));
    inventory.apply_node(&h100("c", &[(POOL, "q")]));
    let events = inventory.apply_node(&h100("b", &[(POOL, "q"), (RACK, "r")]));
    let (q, p) = ("pool q of h100-80gb-sxm: b c", "pool p of h100-80gb-sxm: a");
    assert_eq!(told(&events), [q, p]);
}

#[test]
fn a_pool_that_another_flavor_takes_over_lets_its_nodes_go_first() {
    let mut inventory = inventory();
    inventory.apply_node(&h100("a", &[(POOL, "p")]));
    inventory.apply_node(&l4("b", &[(POOL, "p")]));
    let events = inventory.apply_node(&l4("c", &[(POOL, "p")]));
    assert_eq!(
        told(&events),
        [
            "pool p--h100-80gb-sxm of h100-80gb-sxm: a",
            "pool p of l4: b c",
            "pool p--l4 gone"
        ]
    );
}

#[test]
fn a_host_that_gets_cards_of_another_model_is_told_as_two_nodes() {
    let mut inventory = inventory();
    let mut host = h100("n", &[]);
    inventory.apply_node(&host);
    label(
        &mut host,
        "amd.com/gpu.product-name",
        "AMD_Instinct_MI300X_OAM",
    );
    for of in [capacity, allocatable] {
        of(&mut host, "amd.com/gpu", "8");
    }
    let events = inventory.apply_node(&host);
    let expected = [
        "node n gone",
        "node n/h100-80gb-sxm",
        "pool mi300x of mi300x: n/mi300x",
        // Only to say that it has a host of several flavors.
        "pool h100-80gb-sxm of h100-80gb-sxm: ",
    ];
    assert_eq!(told(&events), expected);
}
