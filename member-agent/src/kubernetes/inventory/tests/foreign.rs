//! What pods that are none of ours hold.

use k8s_openapi::api::core::v1::ContainerStatus;

use super::*;
use crate::backend::ClusterEvent;

const GPU: &str = "nvidia.com/gpu";

fn held(pod: &Pod) -> Resources {
    let mut inventory = inventory();
    inventory.apply_node(&h100("n", &[]));
    inventory.apply_pod(pod, false);
    inventory.snapshot().1[0].foreign
}

fn pod_spec(pod: &mut Pod) -> &mut PodSpec {
    pod.spec.as_mut().expect("it has one")
}

fn pod_status(pod: &mut Pod) -> &mut PodStatus {
    pod.status.as_mut().expect("it has one")
}

#[test]
fn containers_are_summed() {
    let two = pod(
        1,
        "n",
        &[
            &[("cpu", "500m"), ("memory", "1Gi"), (GPU, "2")],
            &[("cpu", "1")],
        ],
    );
    assert_eq!(held(&two), resources(2, 1500, 1024));
    let odd = pod(1, "n", &[&[("cpu", "0.0001"), ("memory", "1")]]);
    assert_eq!(held(&odd), resources(0, 1, 1), "rounded up");
    assert_eq!(
        held(&pod(1, "n", &[&[("cpu", "-4"), ("memory", "much")]])),
        Resources::default()
    );
}

#[test]
fn init_containers_count_by_their_largest_step() {
    let mut with = pod(1, "n", &[&[("cpu", "2"), ("memory", "1Gi")]]);
    let mut sidecar = container(11, &[("cpu", "1")]);
    sidecar.restart_policy = Some("Always".to_owned());
    let first = container(10, &[("cpu", "4"), ("memory", "512Mi")]);
    let last = container(12, &[("cpu", "3"), ("memory", "2Gi")]);
    pod_spec(&mut with).init_containers = Some(vec![first, sidecar, last]);
    // Containers and sidecar: 3 cores; first step: 4; last step beside the sidecar: 4.
    assert_eq!(held(&with), resources(0, 4000, 2048));
    pod_spec(&mut with).overhead = Some(amounts(&[("cpu", "250m"), ("memory", "64Mi")]));
    assert_eq!(held(&with), resources(0, 4250, 2112));
}

#[test]
fn a_limit_alone_is_a_request() {
    let mut limited = pod(1, "n", &[&[]]);
    pod_spec(&mut limited).containers[0].resources = Some(ResourceRequirements {
        limits: Some(amounts(&[(GPU, "4"), ("cpu", "8"), ("memory", "8Gi")])),
        requests: Some(amounts(&[("cpu", "1")])),
        ..ResourceRequirements::default()
    });
    assert_eq!(held(&limited), resources(4, 1000, 8192));
}

#[test]
fn resources_of_the_pod_stand_for_its_containers() {
    let mut with = pod(1, "n", &[&[("cpu", "1"), (GPU, "2")], &[("cpu", "1")]]);
    pod_spec(&mut with).resources = Some(ResourceRequirements {
        requests: Some(amounts(&[("cpu", "6")])),
        ..ResourceRequirements::default()
    });
    assert_eq!(held(&with), resources(2, 6000, 0));
}

#[test]
fn a_resize_under_way_counts_by_the_larger() {
    let mut resized = pod(1, "n", &[&[("cpu", "1"), ("memory", "4Gi")]]);
    pod_status(&mut resized).container_statuses = Some(vec![ContainerStatus {
        name: "c0".to_owned(),
        allocated_resources: Some(amounts(&[("cpu", "2"), ("memory", "1Gi")])),
        ..ContainerStatus::default()
    }]);
    assert_eq!(held(&resized), resources(0, 2000, 4096));
}

#[test]
fn what_is_not_bound_or_over_holds_nothing() {
    let mut pod = pod(1, "n", &[&[(GPU, "8")]]);
    for (phase, holds) in [
        ("Pending", 8),
        ("Running", 8),
        ("Unknown", 8),
        ("Succeeded", 0),
        ("Failed", 0),
    ] {
        pod_status(&mut pod).phase = Some(phase.to_owned());
        assert_eq!(held(&pod).gpus.whole(), holds, "{phase}");
    }
    pod.status = None;
    assert_eq!(held(&pod).gpus.whole(), 8, "bound a moment ago");
    pod_spec(&mut pod).node_name = None;
    assert_eq!(held(&pod), Resources::default());
    pod.spec = None;
    assert_eq!(held(&pod), Resources::default());
}

#[test]
fn ours_are_told_with_their_gangs() {
    let mut inventory = inventory();
    inventory.apply_node(&h100("n", &[]));
    let pod = pod(1, "n", &[&[(GPU, "8")]]);
    assert!(inventory.apply_pod(&pod, true).is_empty());
    assert_eq!(inventory.apply_pod(&pod, false).len(), 1, "it is let go");
    assert_eq!(inventory.apply_pod(&pod, true).len(), 1, "and adopted");
    assert_eq!(inventory.snapshot().1[0].foreign, Resources::default());
}

#[test]
fn each_change_is_told_once_and_in_any_order() {
    let mut inventory = inventory();
    let mut bound = pod(1, "n", &[&[("cpu", "1"), (GPU, "3")]]);
    assert!(
        inventory.apply_pod(&bound, false).is_empty(),
        "its node is not known yet"
    );
    let events = inventory.apply_node(&h100("n", &[]));
    let ClusterEvent::Pool(_, nodes) = &events[0] else {
        panic!("{events:?}");
    };
    assert_eq!(nodes[0].foreign, resources(3, 1000, 0));
    pod_status(&mut bound).pod_ip = Some("10.0.0.1".to_owned());
    assert!(inventory.apply_pod(&bound, false).is_empty());
    pod_status(&mut bound).phase = Some("Succeeded".to_owned());
    let events = inventory.apply_pod(&bound, false);
    assert!(
        matches!(&events[..], [ClusterEvent::Node(node)] if node.foreign == Resources::default())
    );
    assert!(inventory.remove_pod(&bound).is_empty());
    assert!(inventory.remove_pod(&bound).is_empty());
}

#[test]
fn a_node_that_comes_back_finds_what_is_held() {
    let mut inventory = inventory();
    inventory.apply_node(&h100("n", &[]));
    inventory.apply_pod(&pod(1, "n", &[&[(GPU, "3")]]), false);
    inventory.remove_node("n");
    inventory.apply_node(&h100("n", &[]));
    assert_eq!(inventory.snapshot().1[0].foreign, resources(3, 0, 0));
}

#[test]
fn a_pod_made_again_under_its_name_is_another_one() {
    let mut inventory = inventory();
    inventory.apply_node(&h100("n", &[]));
    let (old, mut new) = (pod(1, "n", &[&[(GPU, "3")]]), pod(2, "n", &[&[(GPU, "5")]]));
    new.metadata.name = old.metadata.name.clone();
    inventory.apply_pod(&old, false);
    inventory.apply_pod(&new, false);
    inventory.remove_pod(&old);
    assert_eq!(inventory.snapshot().1[0].foreign, resources(5, 0, 0));
    let mut odd = pod(3, "n", &[&[(GPU, "1")]]);
    odd.metadata.uid = Some("not-a-uuid".to_owned());
    inventory.apply_pod(&odd, false);
    inventory.apply_pod(&odd, false);
    assert_eq!(inventory.snapshot().1[0].foreign, resources(6, 0, 0));
    odd.metadata.uid = None;
    assert!(
        inventory.apply_pod(&odd, false).is_empty(),
        "it was never in an API server"
    );
}

#[test]
fn a_host_of_two_models_divides_what_is_held() {
    let labels = [
        ("nvidia.com/gpu.product", "NVIDIA-L4"),
        ("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM"),
    ];
    let mut inventory = inventory();
    inventory.apply_node(&node("n", &labels, &[(GPU, "2"), ("amd.com/gpu", "6")]));
    inventory.apply_pod(&pod(1, "n", &[&[(GPU, "1"), ("cpu", "3")]]), false);
    inventory.apply_pod(&pod(2, "n", &[&[("cpu", "8"), ("memory", "3")]]), false);
    let foreign: Vec<Resources> = inventory
        .snapshot()
        .1
        .iter()
        .map(|node| node.foreign)
        .collect();
    assert_eq!(foreign, [resources(0, 6000, 1), resources(1, 5000, 1)]);
}

#[test]
fn a_pod_with_resource_claims_may_hold_any_card_of_its_node() {
    let mut inventory = inventory();
    inventory.apply_node(&h100("n", &[]));
    let mut claims = pod(1, "n", &[&[("cpu", "1")]]);
    pod_spec(&mut claims).resource_claims =
        serde_json::from_value(serde_json::json!([{"name": "gpu"}])).expect("a claim");
    inventory.apply_pod(&claims, false);
    let node = inventory.snapshot().1.remove(0);
    assert_eq!(node.foreign.gpus, node.allocatable.gpus);
    let words: Vec<&str> = inventory.findings().iter().map(|f| f.reason).collect();
    assert!(words.contains(&"DevicesClaimed"), "{words:?}");
    inventory.remove_pod(&claims);
    assert_eq!(inventory.snapshot().1[0].foreign, Resources::default());
}
