//! How fast the inventory of a Kubernetes cluster takes nodes and pods, and what it keeps of them.
//!
//! Owns a synthetic cluster of 10,000 nodes of 8 GPUs with twenty foreign pods each, labelled as
//! the vendor's tools label. Prints one JSON line. Asserts what must hold at any speed: a
//! heartbeat is no event, and each change is one.
//!
//! `cargo bench -p meridian-agent --bench inventory`

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, Node, NodeCondition, NodeSpec, NodeStatus, Pod, PodSpec, PodStatus,
    ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use meridian_agent::kubernetes::inventory::{FlavorTable, Inventory, InventoryConfig};
use meridian_runtime::Clock;

/// Nodes: twice what a Kubernetes cluster is tested with.
const NODES: u32 = 10_000;
/// Foreign pods of a node: the daemons of a GPU cluster are about that many.
const PODS: u32 = 20;
/// Nodes of a rack.
const RACK: u32 = 18;
/// Labels of a GPU node that nobody reads: features of the CPU, the kernel, the cloud.
const OTHER_LABELS: u32 = 60;

fn main() {
    let clock = Clock::real();
    let config = InventoryConfig::default();
    let mut inventory = Inventory::new(FlavorTable::shipped(), config);
    let mut rate = |what: &dyn Fn(&mut Inventory, u32) -> usize, count: u32| {
        let start = clock.boot();
        let events: usize = (0..count).map(|index| what(&mut inventory, index)).sum();
        let took = clock.boot().since(start).0.max(1);
        (u64::from(count) * 1000 / took, events)
    };
    // Making an object costs more than taking it: what is made is told apart by making it alone.
    let (making, _) = rate(
        &|_, index| usize::from(node(index, 8).spec.is_none()),
        NODES,
    );
    let empty = resident_bytes();
    let (nodes, told) = rate(
        &|inventory, index| inventory.apply_node(&node(index, 8)).len(),
        NODES,
    );
    assert_eq!(told, NODES as usize, "each node is told once");
    let with_nodes = resident_bytes();
    let taken = |inventory: &mut Inventory, index| inventory.apply_pod(&pod(index), false).len();
    let (pods, _) = rate(&taken, NODES * PODS);
    let with_pods = resident_bytes();
    let (beats, told) = rate(
        &|inventory, index| inventory.apply_node(&node(index, 8)).len(),
        NODES,
    );
    assert_eq!(told, 0, "a heartbeat is no event");
    let (changes, told) = rate(
        &|inventory, index| inventory.apply_node(&node(index, 7)).len(),
        NODES,
    );
    assert_eq!(told, NODES as usize, "each change is told once");
    let start = clock.boot();
    let (pools, seen) = inventory.snapshot();
    let snapshot_ms = clock.boot().since(start).0;
    assert_eq!((pools.len(), seen.len()), (1, NODES as usize));
    println!(
        "{{\"bench\":\"inventory\",\"nodes\":{NODES},\"pods\":{},\"nodes_per_s\":{},\
         \"heartbeats_per_s\":{},\"changes_per_s\":{},\"pods_per_s_with_making\":{pods},\
         \"bytes_per_node\":{},\"bytes_per_pod\":{},\"snapshot_ms\":{snapshot_ms}}}",
        NODES * PODS,
        alone(nodes, making),
        alone(beats, making),
        alone(changes, making),
        with_nodes.saturating_sub(empty) / u64::from(NODES),
        with_pods.saturating_sub(with_nodes) / u64::from(NODES * PODS),
    );
}

/// The rate of one of two steps, from the rate of both and that of the other.
fn alone(both: u64, other: u64) -> u64 {
    (both * other)
        .checked_div(other.saturating_sub(both))
        .unwrap_or(u64::MAX)
}

/// Memory of this process.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = pages
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * 4096
}

fn amounts(pairs: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), Quantity((*value).to_owned()));
    pairs.iter().map(pair).collect()
}

fn node(index: u32, healthy: u32) -> Node {
    let mut labels: BTreeMap<String, String> = (0..OTHER_LABELS)
        .map(|n| {
            (
                format!("feature.node.kubernetes.io/cpu-{n}"),
                "true".to_owned(),
            )
        })
        .collect();
    let rack = format!("rack-{}", index / RACK);
    for (key, value) in [
        ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),
        ("nvidia.com/gpu.count", "8"),
        ("nvidia.com/gpu.replicas", "1"),
        ("nvidia.com/gpu.sharing-strategy", "none"),
        ("nvidia.com/cuda.driver-version.full", "570.86.10"),
        ("nvidia.com/cuda.runtime-version.full", "12.8"),
        ("topology.kubernetes.io/zone", "eu-west-1a"),
        ("network.topology.nvidia.com/leaf", &rack),
    ] {
        labels.insert(key.to_owned(), value.to_owned());
    }
    let host = [("cpu", "192"), ("memory", "2113000Mi"), ("pods", "110")];
    let gpus = healthy.to_string();
    Node {
        metadata: ObjectMeta {
            name: Some(format!("gpu-{index:05}")),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec::default()),
        status: Some(NodeStatus {
            capacity: Some(amounts(&[&host[..], &[("nvidia.com/gpu", "8")]].concat())),
            allocatable: Some(amounts(&[&host[..], &[("nvidia.com/gpu", &gpus)]].concat())),
            conditions: Some(vec![NodeCondition {
                type_: "Ready".to_owned(),
                status: "True".to_owned(),
                ..NodeCondition::default()
            }]),
            ..NodeStatus::default()
        }),
    }
}

fn pod(index: u32) -> Pod {
    Pod {
        metadata: ObjectMeta {
            name: Some(format!("daemon-{index}")),
            uid: Some(format!("00000000-0000-4000-8000-{index:012x}")),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            node_name: Some(format!("gpu-{:05}", index / PODS)),
            containers: vec![Container {
                resources: Some(ResourceRequirements {
                    requests: Some(amounts(&[("cpu", "100m"), ("memory", "128Mi")])),
                    ..ResourceRequirements::default()
                }),
                ..Container::default()
            }],
            ..PodSpec::default()
        }),
        status: Some(PodStatus {
            phase: Some("Running".to_owned()),
            ..PodStatus::default()
        }),
    }
}
