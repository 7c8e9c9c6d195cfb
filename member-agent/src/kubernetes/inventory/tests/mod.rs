//! Tests of the inventory: nodes and pods as clusters write them, and what comes out.
//!
//! Owns the builders. Each file is about one promise.

mod churn;
mod events;
mod foreign;
mod hardware;
mod pools;
mod shipped;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, Node, NodeCondition, NodeSpec, NodeStatus, Pod, PodSpec, PodStatus,
    ResourceRequirements, Taint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Resources};

use super::{FlavorTable, Inventory, InventoryConfig};
use crate::backend::NodeSeen;

pub(super) fn inventory() -> Inventory {
    configured(InventoryConfig::default())
}

pub(super) fn configured(config: InventoryConfig) -> Inventory {
    config.check().expect("a good configuration");
    Inventory::new(FlavorTable::shipped(), config)
}

pub(super) fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    pairs.iter().map(pair).collect()
}

pub(super) fn amounts(pairs: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), Quantity((*value).to_owned()));
    pairs.iter().map(pair).collect()
}

/// A node of 96 cores and a tebibyte that is ready.
pub(super) fn node(name: &str, labels: &[(&str, &str)], gpus: &[(&str, &str)]) -> Node {
    let mut capacity = amounts(&[("cpu", "96"), ("memory", "1Ti"), ("pods", "110")]);
    capacity.extend(amounts(gpus));
    Node {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(map(labels)),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec::default()),
        status: Some(NodeStatus {
            allocatable: Some(capacity.clone()),
            capacity: Some(capacity),
            conditions: Some(vec![condition("Ready", "True")]),
            ..NodeStatus::default()
        }),
    }
}

/// Eight H100 as GPU feature discovery labels them.
pub(super) fn h100(name: &str, labels: &[(&str, &str)]) -> Node {
    let own = [
        ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),
        ("nvidia.com/gpu.count", "8"),
        ("nvidia.com/gpu.replicas", "1"),
        ("nvidia.com/gpu.present", "true"),
    ];
    node(name, &[&own, labels].concat(), &[("nvidia.com/gpu", "8")])
}

/// Eight L4.
pub(super) fn l4(name: &str, labels: &[(&str, &str)]) -> Node {
    let own = [("nvidia.com/gpu.product", "NVIDIA-L4")];
    node(name, &[&own, labels].concat(), &[("nvidia.com/gpu", "8")])
}

pub(super) fn condition(kind: &str, status: &str) -> NodeCondition {
    NodeCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        ..NodeCondition::default()
    }
}

pub(super) fn taint(key: &str, value: &str, effect: &str) -> Taint {
    Taint {
        key: key.to_owned(),
        value: Some(value.to_owned()),
        effect: effect.to_owned(),
        time_added: None,
    }
}

pub(super) fn spec(node: &mut Node) -> &mut NodeSpec {
    node.spec.as_mut().expect("it has one")
}

pub(super) fn status(node: &mut Node) -> &mut NodeStatus {
    node.status.as_mut().expect("it has one")
}

pub(super) fn label(node: &mut Node, key: &str, value: &str) {
    let labels = node.metadata.labels.as_mut().expect("it has some");
    labels.insert(key.to_owned(), value.to_owned());
}

pub(super) fn allocatable(node: &mut Node, what: &str, amount: &str) {
    let amounts = status(node).allocatable.as_mut().expect("it has some");
    amounts.insert(what.to_owned(), Quantity(amount.to_owned()));
}

pub(super) fn capacity(node: &mut Node, what: &str, amount: &str) {
    let amounts = status(node).capacity.as_mut().expect("it has some");
    amounts.insert(what.to_owned(), Quantity(amount.to_owned()));
}

/// A running pod on a node, with one container per entry.
pub(super) fn pod(uid: u32, node: &str, containers: &[&[(&str, &str)]]) -> Pod {
    let container = |(index, requests): (usize, &&[(&str, &str)])| container(index, requests);
    Pod {
        metadata: ObjectMeta {
            name: Some(format!("pod-{uid}")),
            uid: Some(format!("00000000-0000-4000-8000-{uid:012x}")),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            node_name: Some(node.to_owned()),
            containers: containers.iter().enumerate().map(container).collect(),
            ..PodSpec::default()
        }),
        status: Some(PodStatus {
            phase: Some("Running".to_owned()),
            ..PodStatus::default()
        }),
    }
}

pub(super) fn container(index: usize, requests: &[(&str, &str)]) -> Container {
    Container {
        name: format!("c{index}"),
        resources: Some(ResourceRequirements {
            requests: Some(amounts(requests)),
            ..ResourceRequirements::default()
        }),
        ..Container::default()
    }
}

pub(super) fn resources(gpus: u64, cpu: u64, memory: u64) -> Resources {
    Resources {
        gpus: MilliGpus::cards(gpus),
        cpu: MilliCpus(cpu),
        memory: Mebibytes(memory),
    }
}

/// The nodes of an inventory that holds only this one.
pub(super) fn seen(node: &Node) -> Vec<NodeSeen> {
    let mut inventory = inventory();
    inventory.apply_node(node);
    inventory.snapshot().1
}

/// The one node that it is.
pub(super) fn one(node: &Node) -> NodeSeen {
    let mut seen = seen(node);
    assert_eq!(seen.len(), 1, "{seen:?}");
    seen.remove(0)
}

/// Reasons of the findings, in order.
pub(super) fn reasons(inventory: &Inventory) -> Vec<&'static str> {
    inventory
        .findings()
        .iter()
        .map(|found| found.reason)
        .collect()
}

/// Reasons of what is found about one node alone.
pub(super) fn odd(node: &Node) -> Vec<&'static str> {
    let mut inventory = inventory();
    inventory.apply_node(node);
    reasons(&inventory)
}
