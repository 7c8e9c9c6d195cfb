//! The shipped table, and users' documents before it.

use super::super::FlavorError;
use super::*;

#[test]
fn the_shipped_table_is_good() {
    let table = FlavorTable::shipped();
    for (flavor, resource) in [
        ("h100-80gb-sxm", "nvidia.com/gpu"),
        ("gb200-nvl72", "nvidia.com/gpu"),
        ("a100-80gb", "nvidia.com/gpu"),
        ("l4", "nvidia.com/gpu"),
        ("mi300x", "amd.com/gpu"),
        ("gaudi3", "habana.ai/gaudi"),
        ("ascend-910b", "huawei.com/Ascend910"),
        ("mlu590", "cambricon.com/mlu"),
    ] {
        assert_eq!(table.resource_of(flavor), Some(resource));
    }
    assert!(table.resource("mthreads.com/gpu").is_some());
    assert!(table.resource("birentech.com/gpu").is_some());
    assert!(table.resource("cpu").is_none());
}

#[test]
fn a_users_flavors_are_tried_first() {
    let own = "
flavors:
  - name: h100-quiet
    resource: nvidia.com/gpu
    nodes:
      - nvidia.com/gpu.product: [NVIDIA-H100-80GB-HBM3]
        site: [basement, 'attic-*']
  - name: biren-106
    resource: birentech.com/gpu
";
    let table = FlavorTable::shipped().extended_by(own).expect("reads");
    let mut inventory = Inventory::new(table, InventoryConfig::default());
    inventory.apply_node(&h100("a", &[("site", "basement")]));
    inventory.apply_node(&h100("b", &[("site", "attic-3")]));
    inventory.apply_node(&h100("c", &[("site", "hall")]));
    inventory.apply_node(&node("d", &[], &[("birentech.com/gpu", "8")]));
    let nodes = inventory.snapshot().1;
    let pools: Vec<&str> = nodes.iter().map(|node| node.pool.as_str()).collect();
    assert_eq!(
        pools,
        ["h100-quiet", "h100-quiet", "h100-80gb-sxm", "biren-106"]
    );
}

#[test]
fn a_users_vendor_replaces_the_one_of_its_resource() {
    let own = "
vendors:
  - resource: nvidia.com/gpu
    product: [nvidia.com/gpu.product]
  - resource: kubevirt.example.com/GA102GL_A10
flavors:
  - name: a10-passthrough
    resource: kubevirt.example.com/GA102GL_A10
";
    let table = FlavorTable::shipped().extended_by(own).expect("reads");
    let mut inventory = Inventory::new(table, InventoryConfig::default());
    inventory.apply_node(&h100("a", &[("nvidia.com/gpu.sharing-strategy", "mps")]));
    inventory.apply_node(&node(
        "b",
        &[],
        &[("kubevirt.example.com/GA102GL_A10", "2")],
    ));
    let nodes = inventory.snapshot().1;
    assert_eq!(
        nodes[0].allocatable.gpus.whole(),
        8,
        "his vendor names no sign of sharing"
    );
    assert_eq!(nodes[1].pool, "a10-passthrough");
}

#[test]
fn a_mistake_is_named_with_its_place() {
    let fault = |yaml: &str| {
        let error = FlavorTable::shipped().extended_by(yaml).expect_err("wrong");
        error.to_string()
    };
    let text = fault("flavors: [{name: x, resource: nvidia.com/gpus}]");
    assert_eq!(
        text,
        "flavors[0].resource: no vendor has \"nvidia.com/gpus\", did you mean \
         \"nvidia.com/gpu\"? Add it under vendors"
    );
    let text = fault("flavors: [{name: x, resource: other.com/thing-of-its-own}]");
    assert!(
        text.ends_with("no vendor has \"other.com/thing-of-its-own\". Add it under vendors"),
        "{text}"
    );
    let text = fault("flavors: [{name: H100, resource: nvidia.com/gpu}]");
    assert!(
        text.starts_with("flavors[0].name: \"H100\" is not a name"),
        "{text}"
    );
    let text = fault("flavors: [{name: a--b, resource: nvidia.com/gpu}]");
    assert!(text.contains("separates"), "{text}");
    let text = fault("flavors: [{name: cpu, resource: nvidia.com/gpu}]");
    assert!(text.contains("without GPUs"), "{text}");
    let text = fault("flavors: [{name: x, resource: nvidia.com/gpu, nodes: [{}]}]");
    assert!(text.starts_with("flavors[0].nodes"), "{text}");
    let text = fault("vendors: [{resource: gpu}]");
    assert!(text.contains("write domain/name"), "{text}");
    let text = fault("vendors: [{resource: a.b/c}, {resource: a.b/c}]");
    assert!(
        text.starts_with("vendors[1].resource") && text.contains("twice"),
        "{text}"
    );
    let text = fault("vendors: [{resource: a.b/c, withheld: [{because: x}]}]");
    assert!(text.starts_with("vendors[0].withheld[0]"), "{text}");
    let text = fault("vendors: [{resource: a.b/c, colour: red}]");
    assert!(text.contains("colour"), "{text}");
    let unread = FlavorTable::shipped().extended_by("flavors: 3");
    assert!(matches!(unread, Err(FlavorError::Malformed(_))));
}
