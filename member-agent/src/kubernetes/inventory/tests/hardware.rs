//! What is read of one node: cards, health, contradictions.

use k8s_openapi::api::core::v1::Node;
use meridian_api::units::MilliGpus;

use super::*;
use crate::backend::NodeHealth;

#[test]
fn a_plain_node_is_offered_whole() {
    let seen = one(&h100("n", &[]));
    assert_eq!(
        (seen.name.as_str(), seen.pool.as_str()),
        ("n", "h100-80gb-sxm")
    );
    assert_eq!(seen.allocatable, resources(8, 96_000, 1 << 20));
    assert_eq!(
        (seen.unhealthy, seen.health),
        (MilliGpus::ZERO, NodeHealth::Ready)
    );
    assert_eq!(
        (seen.domains.len(), seen.foreign),
        (0, Resources::default())
    );
    assert!(odd(&h100("n", &[])).is_empty());
}

#[test]
fn unhealthy_devices_are_out_and_counted() {
    let mut node = h100("n", &[]);
    allocatable(&mut node, "nvidia.com/gpu", "6");
    let seen = one(&node);
    assert_eq!(seen.allocatable.gpus, MilliGpus::cards(6));
    assert_eq!(seen.unhealthy, MilliGpus::cards(2));
    // The plugin is away: the kubelet keeps the capacity and offers nothing.
    allocatable(&mut node, "nvidia.com/gpu", "0");
    assert_eq!(one(&node).unhealthy, MilliGpus::cards(8));
}

#[test]
fn health_is_the_worst_that_is_said() {
    let health = |change: &dyn Fn(&mut Node)| {
        let mut node = h100("n", &[]);
        change(&mut node);
        (one(&node).health, odd(&node))
    };
    let ready = |status_: &'static str| {
        health(&move |node: &mut Node| {
            status(node).conditions = Some(vec![condition("Ready", status_)]);
        })
    };
    assert_eq!(ready("True").0, NodeHealth::Ready);
    assert_eq!(ready("False").0, NodeHealth::Down);
    assert_eq!(ready("Unknown").0, NodeHealth::Down);
    let never_heard = health(&|node| status(node).conditions = None);
    assert_eq!(never_heard.0, NodeHealth::Down);
    let cordoned = health(&|node| spec(node).unschedulable = Some(true));
    assert_eq!(cordoned, (NodeHealth::Cordoned, vec![]));
    let tainted = |key: &'static str, effect: &'static str| {
        health(&move |node: &mut Node| {
            spec(node).taints = Some(vec![taint(key, "present", effect)]);
        })
    };
    let closed = (NodeHealth::Cordoned, vec!["Closed"]);
    assert_eq!(tainted("team", "NoSchedule"), closed);
    assert_eq!(tainted("team", "NoExecute"), closed);
    assert_eq!(tainted("team", "PreferNoSchedule").0, NodeHealth::Ready);
    assert_eq!(tainted("nvidia.com/gpu", "NoSchedule").0, NodeHealth::Ready);
    assert_eq!(
        tainted("amd.com/gpu", "NoSchedule"),
        closed,
        "of another vendor"
    );
    let grace = health(&|node| {
        spec(node).taints = Some(vec![taint("kubernetes.io/arch", "arm64", "NoSchedule")]);
    });
    assert_eq!(grace.0, NodeHealth::Ready);
    let down = health(&|node| {
        spec(node).unschedulable = Some(true);
        status(node).conditions = Some(vec![condition("Ready", "Unknown")]);
    });
    assert_eq!(down.0, NodeHealth::Down, "down is worse than cordoned");
}

#[test]
fn an_operator_says_which_taints_and_conditions_count() {
    let config = InventoryConfig {
        tolerated_taints: vec![super::super::TaintRule {
            key: "sku".to_owned(),
            value: Some("gpu".to_owned()),
            effect: None,
        }],
        closing_conditions: vec!["GpuUnhealthy".to_owned()],
        ..InventoryConfig::default()
    };
    let mut inventory = configured(config);
    let mut tolerated = h100("a", &[]);
    spec(&mut tolerated).taints = Some(vec![taint("sku", "gpu", "NoSchedule")]);
    let mut sick = h100("b", &[]);
    let conditions = vec![
        condition("Ready", "True"),
        condition("GpuUnhealthy", "True"),
    ];
    status(&mut sick).conditions = Some(conditions);
    let mut well = h100("c", &[]);
    let conditions = vec![
        condition("Ready", "True"),
        condition("GpuUnhealthy", "False"),
    ];
    status(&mut well).conditions = Some(conditions);
    for node in [&tolerated, &sick, &well] {
        inventory.apply_node(node);
    }
    let nodes = inventory.snapshot().1;
    let health: Vec<NodeHealth> = nodes.iter().map(|node| node.health).collect();
    assert_eq!(
        health,
        [NodeHealth::Ready, NodeHealth::Cordoned, NodeHealth::Ready]
    );
    let tolerations = inventory.tolerations_of("h100-80gb-sxm");
    let keys: Vec<&str> = tolerations
        .iter()
        .filter_map(|t| t.key.as_deref())
        .collect();
    assert_eq!(keys, ["nvidia.com/gpu", "kubernetes.io/arch", "sku"]);
}

#[test]
fn what_is_shared_or_divided_is_not_offered() {
    let with = |labels: &[(&str, &str)], gpus: &str| {
        let mut node = h100("n", labels);
        for of in [capacity, allocatable] {
            of(&mut node, "nvidia.com/gpu", gpus);
        }
        let seen = one(&node);
        assert_eq!(
            seen.pool, "h100-80gb-sxm",
            "it stays where it is: {labels:?}"
        );
        (
            seen.allocatable.gpus.whole(),
            seen.unhealthy.whole(),
            odd(&node),
        )
    };
    let withheld = |out| (0, out, vec!["GpusWithheld"]);
    let product = "nvidia.com/gpu.product";
    let shared = "NVIDIA-H100-80GB-HBM3-SHARED";
    assert_eq!(
        with(&[("nvidia.com/gpu.replicas", "4"), (product, shared)], "32"),
        withheld(8)
    );
    assert_eq!(
        with(&[("nvidia.com/gpu.sharing-strategy", "mps")], "80"),
        withheld(8)
    );
    assert_eq!(
        with(&[("nvidia.com/gpu.sharing-strategy", "none")], "8"),
        (8, 0, vec![])
    );
    let mig = "NVIDIA-H100-80GB-HBM3-MIG-1g.10gb";
    assert_eq!(
        with(&[(product, mig), ("nvidia.com/gpu.count", "56")], "56"),
        withheld(0)
    );
    for state in ["pending", "rebooting", "failed"] {
        assert_eq!(
            with(&[("nvidia.com/mig.config.state", state)], "8"),
            withheld(8)
        );
    }
    assert_eq!(
        with(&[("nvidia.com/mig.config.state", "success")], "8"),
        (8, 0, vec![])
    );
}

#[test]
fn what_gke_divides_is_not_offered_either() {
    let gke = |label: (&str, &str)| {
        let labels = [("cloud.google.com/gke-accelerator", "nvidia-l4"), label];
        let node = node("n", &labels, &[("nvidia.com/gpu", "4")]);
        let seen = one(&node);
        assert_eq!(seen.pool, "l4");
        (seen.allocatable.gpus.whole(), odd(&node))
    };
    for label in [
        ("cloud.google.com/gke-gpu-sharing-strategy", "time-sharing"),
        ("cloud.google.com/gke-max-shared-clients-per-gpu", "4"),
        ("cloud.google.com/gke-gpu-partition-size", "1g.5gb"),
    ] {
        assert_eq!(gke(label), (0, vec!["GpusWithheld"]), "{label:?}");
    }
    assert_eq!(gke(("cloud.google.com/gke-nodepool", "p")), (4, vec![]));
}

#[test]
fn whole_cards_beside_mig_slices_are_offered() {
    let labels = [
        ("nvidia.com/mig.strategy", "mixed"),
        ("nvidia.com/gpu.count", "8"),
    ];
    let mut node = h100("n", &labels);
    for of in [capacity, allocatable] {
        of(&mut node, "nvidia.com/gpu", "6");
        of(&mut node, "nvidia.com/mig-3g.40gb", "4");
        of(&mut node, "nvidia.com/mig-1g.10gb", "0");
    }
    assert_eq!(one(&node).allocatable.gpus, MilliGpus::cards(6));
    assert_eq!(odd(&node), ["SlicesNotOffered"]);
}

#[test]
fn slots_of_hami_are_not_cards() {
    let mut node = h100("n", &[]);
    let register = (
        "hami.io/node-nvidia-register",
        "[{\"id\":\"GPU-1\",\"count\":10}]",
    );
    node.metadata.annotations = Some(map(&[register]));
    for of in [capacity, allocatable] {
        of(&mut node, "nvidia.com/gpu", "80");
    }
    let seen = one(&node);
    assert_eq!(
        (seen.allocatable.gpus.whole(), seen.unhealthy.whole()),
        (0, 8)
    );
}

#[test]
fn a_node_that_contradicts_itself_offers_the_less() {
    let lying = |change: &dyn Fn(&mut Node)| {
        let mut node = h100("n", &[]);
        change(&mut node);
        let seen = one(&node);
        (
            seen.allocatable.gpus.whole(),
            seen.unhealthy.whole(),
            odd(&node),
        )
    };
    let set = |allocated: &'static str, of: &'static str| {
        lying(&move |node: &mut Node| {
            allocatable(node, "nvidia.com/gpu", allocated);
            capacity(node, "nvidia.com/gpu", of);
        })
    };
    assert_eq!(
        set("8", "4"),
        (
            4,
            0,
            vec!["AllocatableAboveCapacity", "FewerGpusThanLabelled"]
        )
    );
    assert_eq!(set("4", "4"), (4, 0, vec!["FewerGpusThanLabelled"]));
    assert_eq!(set("16", "16"), (0, 8, vec!["NotWholeGpus"]));
    assert_eq!(set("-8", "8"), (0, 8, vec!["AbsurdQuantity"]));
    assert_eq!(set("8", "-8").0, 0);
    assert_eq!(set("eight", "8"), (0, 8, vec!["AbsurdQuantity"]));
    assert_eq!(set("7.9", "8"), (7, 1, vec![]));
    assert_eq!(set("65", "65"), (0, 0, vec!["TooManyGpus"]));
    let huge = "999999999999999999999999999999999999999";
    assert_eq!(set(huge, huge).0, 0);
    assert_eq!(set("9Ei", "9Ei"), (0, 0, vec!["TooManyGpus"]));
    let unlabelled = |label_: &'static str| {
        lying(&move |node: &mut Node| label(node, "nvidia.com/gpu.count", label_))
    };
    for label in ["", "many", "-8", "0", "99999999999999999999999"] {
        assert_eq!(
            unlabelled(label),
            (8, 0, vec![]),
            "a count of {label:?} says nothing"
        );
    }
    let cpu = lying(&|node: &mut Node| {
        allocatable(node, "cpu", "1e9");
        allocatable(node, "memory", "-1");
    });
    assert_eq!(cpu.2, ["AbsurdQuantity", "AllocatableAboveCapacity"]);
}

#[test]
fn cpu_and_memory_are_at_most_what_there_is() {
    let mut node = h100("n", &[]);
    allocatable(&mut node, "cpu", "1000");
    assert_eq!(one(&node).allocatable.cpu, MilliCpus(96_000));
    allocatable(&mut node, "cpu", "95690m");
    allocatable(&mut node, "memory", "1056272536Ki");
    assert_eq!(one(&node).allocatable, resources(8, 95_690, 1_031_516));
}

#[test]
fn a_label_of_another_vendor_gives_no_gpus() {
    let labels = [("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM")];
    let node = node("n", &labels, &[("nvidia.com/gpu", "8")]);
    let seen = one(&node);
    assert_eq!(
        (seen.pool.as_str(), seen.allocatable.gpus.whole()),
        ("mi300x", 0)
    );
    assert_eq!(odd(&node), ["NoDevicePlugin", "UnknownHardware"]);
}

#[test]
fn hardware_that_the_table_does_not_know_keeps_its_own_name() {
    let with = |product: &str| {
        let labels = [("nvidia.com/gpu.product", product)];
        node("n", &labels, &[("nvidia.com/gpu", "2")])
    };
    let known = with("NVIDIA-GeForce-RTX-5090");
    assert_eq!(one(&known).pool, "nvidia-geforce-rtx-5090");
    assert_eq!(odd(&known), ["UnknownProduct"]);
    let mut inventory = inventory();
    inventory.apply_node(&known);
    assert_eq!(
        inventory.resource_of("nvidia-geforce-rtx-5090"),
        Some("nvidia.com/gpu")
    );
    assert_eq!(inventory.resource_of("gb200-nvl72"), Some("nvidia.com/gpu"));
    assert_eq!(inventory.resource_of("warp-drive"), None);
    let too_long = with("NVIDIA-Something-With-A-Very-Long-Marketing-Name");
    assert!(seen(&too_long).is_empty());
    assert_eq!(odd(&too_long), ["UnknownHardware"]);
    let silent = node("n", &[], &[("nvidia.com/gpu", "2")]);
    assert!(seen(&silent).is_empty());
    assert_eq!(odd(&silent), ["UnknownHardware"]);
}

#[test]
fn a_node_waits_in_its_pool_for_its_plugin() {
    let labels = [("nvidia.com/gpu.product", "NVIDIA-L4")];
    let fresh = node("n", &labels, &[]);
    let seen_ = one(&fresh);
    assert_eq!(
        (seen_.pool.as_str(), seen_.allocatable.gpus.whole()),
        ("l4", 0)
    );
    assert_eq!(odd(&fresh), ["NoDevicePlugin"]);
    let unlabelled = node("n", &[("nvidia.com/gpu.present", "true")], &[]);
    assert!(seen(&unlabelled).is_empty());
    assert_eq!(odd(&unlabelled), ["UnknownHardware"]);
}

#[test]
fn a_node_without_gpus_counts_where_a_pool_is_named() {
    assert!(seen(&node("n", &[], &[])).is_empty());
    assert!(odd(&node("n", &[], &[])).is_empty());
    let claimed = node("n", &[("meridian.dev/pool", "prepare")], &[]);
    let seen = one(&claimed);
    assert_eq!(
        (seen.pool.as_str(), seen.allocatable),
        ("prepare", resources(0, 96_000, 1 << 20))
    );
}

#[test]
fn cards_of_several_models_are_several_nodes_of_one_host() {
    let labels = [
        ("nvidia.com/gpu.product", "NVIDIA-L4"),
        ("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM"),
    ];
    let mut host = node(
        "n",
        &labels,
        &[("nvidia.com/gpu", "2"), ("amd.com/gpu", "6")],
    );
    allocatable(&mut host, "amd.com/gpu", "5");
    let nodes = seen(&host);
    let text = |node: &NodeSeen| (node.name.clone(), node.pool.clone(), node.allocatable);
    let each: Vec<_> = nodes.iter().map(text).collect();
    let amd = (
        "n/mi300x".to_owned(),
        "mi300x".to_owned(),
        resources(5, 72_000, 786_432),
    );
    let l4 = (
        "n/l4".to_owned(),
        "l4".to_owned(),
        resources(2, 24_000, 262_144),
    );
    assert_eq!(each, [amd, l4]);
    assert_eq!(nodes[0].unhealthy, MilliGpus::cards(1));
    assert_eq!(odd(&host), ["SeveralFlavors"]);
    let mut inventory = inventory();
    inventory.apply_node(&host);
    assert_eq!(inventory.node_of("n", "l4"), "n/l4");
    assert_eq!(inventory.node_of("n", "mi300x"), "n/mi300x");
    assert_eq!(inventory.node_of("n", "gone"), "n/mi300x");
    assert_eq!(inventory.node_of("other", "l4"), "other");
    assert_eq!(Inventory::host_of("n/l4"), "n");
    assert_eq!(Inventory::host_of("n"), "n");
}

#[test]
fn nodes_of_each_vendor_are_read() {
    let flavor =
        |labels: &[(&str, &str)], gpus: &[(&str, &str)]| one(&node("n", labels, gpus)).pool;
    let product = "amd.com/gpu.product-name";
    let amd = [("amd.com/gpu", "8")];
    assert_eq!(
        flavor(&[(product, "AMD_Instinct_MI325X_OAM")], &amd),
        "mi325x"
    );
    let gaudi = [("habana.ai/gaudi", "8")];
    assert_eq!(flavor(&[("habana.ai/device.id", "1060")], &gaudi), "gaudi3");
    let chip = "node.kubernetes.io/npu.chip.name";
    let ascend = [("huawei.com/Ascend910", "8")];
    assert_eq!(
        flavor(
            &[(chip, "910B3"), ("accelerator", "huawei-Ascend910")],
            &ascend
        ),
        "ascend-910b"
    );
    let old = [
        ("accelerator", "huawei-Ascend910"),
        ("accelerator-type", "module"),
    ];
    assert_eq!(flavor(&old, &ascend), "ascend-910");
    assert_eq!(
        flavor(&[("Model", "MLU590-M9")], &[("cambricon.com/mlu", "8")]),
        "mlu590"
    );
    let google = [("cloud.google.com/gke-accelerator", "nvidia-h100-mega-80gb")];
    assert_eq!(flavor(&google, &[("nvidia.com/gpu", "8")]), "h100-80gb-sxm");
    let gb200 = [("nvidia.com/gpu.product", "NVIDIA-GB200")];
    assert_eq!(flavor(&gb200, &[("nvidia.com/gpu", "4")]), "gb200-nvl72");
    let partitioned = [
        (product, "AMD_Instinct_MI300X_OAM"),
        ("amd.com/compute-memory-partition", "cpx_nps4"),
    ];
    let seen = one(&node("n", &partitioned, &[("amd.com/gpu", "64")]));
    assert_eq!(
        (seen.pool.as_str(), seen.allocatable.gpus.whole()),
        ("mi300x", 0)
    );
}
