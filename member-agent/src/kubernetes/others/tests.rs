//! Pods as Job, JobSet and PyTorchJob controllers make them, and what is offered.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Resources};

use super::Others;
use crate::backend::{ClusterEvent, OfferSeen};
use crate::kubernetes::inventory::FlavorTable;

fn others() -> Others {
    Others::new(FlavorTable::shipped())
}

fn pod(yaml: &str) -> Pod {
    serde_saphyr::from_str(yaml).expect("a pod")
}

/// Tells the phase of a pod.
fn in_phase(pod: &Pod, phase: &str) -> Pod {
    let mut pod = pod.clone();
    pod.status.get_or_insert_default().phase = Some(phase.to_owned());
    pod
}

fn told(events: &[ClusterEvent]) -> Vec<String> {
    let text = |event: &ClusterEvent| match event {
        ClusterEvent::Offer(offer) => summary(offer),
        ClusterEvent::OfferGone(uid) => format!("{uid} gone"),
        ClusterEvent::Node(_)
        | ClusterEvent::NodeGone(_)
        | ClusterEvent::Pool(..)
        | ClusterEvent::PoolGone(_)
        | ClusterEvent::Gang(_)
        | ClusterEvent::GangGone(_)
        | ClusterEvent::HeldBack(_) => panic!("{event:?} is no offer"),
    };
    events.iter().map(text).collect()
}

fn summary(offer: &OfferSeen) -> String {
    let roles = offer.roles.iter();
    let roles = roles.map(|role| {
        format!(
            "{} of {} GPUs x {}",
            role.name,
            role.request.gpus.whole(),
            role.pods
        )
    });
    let roles = roles.collect::<Vec<_>>().join(", ");
    format!("{} {}/{}: {roles}", offer.uid, offer.namespace, offer.name)
}

/// A pod of an indexed Job.
fn job_pod(index: u32) -> Pod {
    pod(&format!(
        "
apiVersion: v1
kind: Pod
metadata:
  name: evaluate-{index}-x7k2p
  namespace: nlp
  uid: job-pod-{index}
  annotations: {{batch.kubernetes.io/job-completion-index: '{index}'}}
  labels:
    batch.kubernetes.io/controller-uid: job-uid
    batch.kubernetes.io/job-completion-index: '{index}'
    batch.kubernetes.io/job-name: evaluate
    controller-uid: job-uid
    job-name: evaluate
    meridian.dev/class: batch-short
  ownerReferences:
  - {{apiVersion: batch/v1, kind: Job, name: evaluate, uid: job-uid, controller: true, blockOwnerDeletion: true}}
spec:
  schedulerName: meridian
  priority: 100
  nodeSelector: {{nvidia.com/gpu.product: NVIDIA-L4}}
  restartPolicy: Never
  containers:
  - name: main
    image: registry.example/eval:1
    resources: {{limits: {{nvidia.com/gpu: '1'}}, requests: {{cpu: '4', memory: 16Gi, nvidia.com/gpu: '1'}}}}
status: {{phase: Pending}}
"
    ))
}

fn job(parallelism: u32, completions: u32, conditions: &str) -> Job {
    serde_saphyr::from_str(&format!(
        "
metadata: {{name: evaluate, namespace: nlp, uid: job-uid}}
spec:
  completionMode: Indexed
  parallelism: {parallelism}
  completions: {completions}
  template:
    metadata: {{labels: {{meridian.dev/class: batch-short}}}}
    spec: {{schedulerName: meridian, containers: [{{name: main}}]}}
status: {{conditions: [{conditions}]}}
"
    ))
    .expect("a Job")
}

#[test]
fn a_job_is_offered_when_all_its_pods_are_there() {
    let mut others = others();
    assert!(others.apply_pod(&job_pod(0), false).is_empty());
    assert_eq!(others.held_back(), ["nlp/evaluate: its Job was not seen"]);
    assert!(others.apply_job(&job(2, 2, "")).is_empty());
    assert_eq!(others.held_back(), ["nlp/evaluate: 1 of 2 pods are there"]);
    let events = others.apply_pod(&job_pod(1), false);
    assert_eq!(
        told(&events),
        ["job-uid nlp/evaluate: worker of 1 GPUs x 2"]
    );
    let offer = &others.snapshot()[0];
    assert_eq!((offer.class.as_str(), offer.priority), ("batch-short", 100));
    assert_eq!(offer.flavors, ["l4"], "its node selector names the product");
    let request = Resources {
        gpus: MilliGpus::cards(1),
        cpu: MilliCpus(4000),
        memory: Mebibytes(16_384),
    };
    assert_eq!(offer.roles[0].request, request);
    assert!(others.held_back().is_empty());
    // Heard again, bound and running: nothing differs.
    assert!(others.apply_job(&job(2, 2, "")).is_empty());
    let mut bound = in_phase(&job_pod(0), "Running");
    bound.spec.as_mut().expect("it has one").node_name = Some("n".to_owned());
    assert!(others.apply_pod(&bound, false).is_empty());
    let pods = others.pods("job-uid");
    let seats: Vec<_> = pods
        .iter()
        .map(|pod| (pod.rank, pod.name.as_str(), pod.node.as_deref()))
        .collect();
    assert_eq!(
        seats,
        [
            (0, "evaluate-0-x7k2p", Some("n")),
            (1, "evaluate-1-x7k2p", None)
        ]
    );
}

#[test]
fn a_job_that_makes_more_pods_later_is_no_gang() {
    let mut others = others();
    others.apply_job(&job(2, 8, ""));
    for index in 0..2 {
        assert!(others.apply_pod(&job_pod(index), false).is_empty());
    }
    let why = "its Job wants 8 completions, 2 at a time: a gang has all its pods at once";
    assert_eq!(others.held_back(), [format!("nlp/evaluate: {why}")]);
}

#[test]
fn an_offer_stays_until_its_job_is_over() {
    let mut others = others();
    others.apply_job(&job(2, 2, ""));
    for index in 0..2 {
        others.apply_pod(&job_pod(index), false);
    }
    // A pod fails and is made again: the Job is still there.
    assert!(
        others
            .apply_pod(&in_phase(&job_pod(0), "Failed"), false)
            .is_empty()
    );
    assert!(others.remove_pod(&job_pod(0)).is_empty());
    assert!(others.remove_pod(&job_pod(1)).is_empty());
    assert_eq!(others.snapshot().len(), 1);
    assert!(others.pods("job-uid").is_empty());
    let over = job(2, 2, "{type: Complete, status: 'True'}");
    assert_eq!(told(&others.apply_job(&over)), ["job-uid gone"]);
    assert!(others.remove_job(&over).is_empty());
    assert!(others.groups.is_empty() && others.group_of.is_empty());
}

#[test]
fn a_job_that_is_removed_takes_its_offer_away_with_its_last_pod() {
    let mut others = others();
    others.apply_job(&job(1, 1, ""));
    others.apply_pod(&job_pod(0), false);
    let mut removed = job_pod(0);
    removed.metadata.deletion_timestamp =
        Some(serde_saphyr::from_str("2026-01-01T00:00:00Z").expect("a time"));
    assert!(
        others.remove_job(&job(1, 1, "")).is_empty(),
        "its pod still runs"
    );
    assert_eq!(told(&others.apply_pod(&removed, false)), ["job-uid gone"]);
    others.remove_pod(&removed);
    assert!(others.groups.is_empty());
}

/// A pod of a JobSet with one driver and two Jobs of two workers.
fn jobset_pod(role: &str, replicas: u32, job: u32, index: u32, gpus: u32) -> Pod {
    pod(&format!(
        "
metadata:
  name: pretrain-{role}-{job}-{index}-abcde
  namespace: llm
  uid: jobset-pod-{role}-{job}-{index}
  labels:
    jobset.sigs.k8s.io/jobset-name: pretrain
    jobset.sigs.k8s.io/jobset-uid: jobset-uid
    jobset.sigs.k8s.io/replicatedjob-name: {role}
    jobset.sigs.k8s.io/replicatedjob-replicas: '{replicas}'
    jobset.sigs.k8s.io/global-replicas: '3'
    jobset.sigs.k8s.io/job-index: '{job}'
    jobset.sigs.k8s.io/restart-attempt: '0'
    batch.kubernetes.io/job-completion-index: '{index}'
    batch.kubernetes.io/job-name: pretrain-{role}-{job}
    meridian.dev/gang: pretrain
  annotations: {{meridian.dev/required-level: rack}}
  ownerReferences:
  - {{apiVersion: batch/v1, kind: Job, name: pretrain-{role}-{job}, uid: job-{role}-{job}, controller: true}}
spec:
  schedulerName: meridian
  containers:
  - name: main
    resources: {{limits: {{nvidia.com/gpu: '{gpus}'}}}}
status: {{phase: Pending}}
"
    ))
}

fn child_job(role: &str, index: u32, parallelism: u32) -> Job {
    serde_saphyr::from_str(&format!(
        "
metadata:
  name: pretrain-{role}-{index}
  namespace: llm
  uid: job-{role}-{index}
spec:
  parallelism: {parallelism}
  completions: {parallelism}
  template:
    metadata:
      labels:
        jobset.sigs.k8s.io/jobset-name: pretrain
        jobset.sigs.k8s.io/jobset-uid: jobset-uid
        jobset.sigs.k8s.io/replicatedjob-name: {role}
    spec: {{schedulerName: meridian, containers: [{{name: main}}]}}
"
    ))
    .expect("a Job")
}

#[test]
fn a_jobset_is_one_gang_of_several_roles() {
    let mut others = others();
    let driver = jobset_pod("driver", 1, 0, 0, 0);
    let workers = [(0, 0), (0, 1), (1, 0), (1, 1)];
    let workers = workers.map(|(job, index)| jobset_pod("worker", 2, job, index, 8));
    others.apply_job(&child_job("worker", 0, 2));
    others.apply_job(&child_job("worker", 1, 2));
    for worker in &workers {
        assert!(others.apply_pod(worker, false).is_empty());
    }
    // All workers are there; of the third Job, nothing is known.
    assert_eq!(others.held_back(), ["llm/pretrain: 4 of 5 pods are there"]);
    assert!(others.apply_pod(&driver, false).is_empty());
    assert_eq!(others.held_back(), ["llm/pretrain: its Job was not seen"]);
    let events = others.apply_job(&child_job("driver", 0, 1));
    assert_eq!(
        told(&events),
        ["jobset-uid llm/pretrain: driver of 0 GPUs x 1, worker of 8 GPUs x 4"]
    );
    let offer = &others.snapshot()[0];
    assert_eq!(offer.roles[1].required.as_deref(), Some("rack"));
    assert!(offer.flavors.contains(&"h100-80gb-sxm".to_owned()));
    assert!(
        !offer.flavors.contains(&"mi300x".to_owned()),
        "{:?}",
        offer.flavors
    );
    let pods = others.pods("jobset-uid");
    let ranks: Vec<_> = pods
        .iter()
        .map(|pod| (pod.role.as_str(), pod.rank, pod.name.as_str()))
        .collect();
    assert_eq!(ranks[0], ("driver", 0, "pretrain-driver-0-0-abcde"));
    assert_eq!(ranks[3], ("worker", 2, "pretrain-worker-1-0-abcde"));
    // It restarts: its Jobs and pods go and come. Whoever watches the JobSet keeps it alive.
    others.apply_owner("jobset-uid", false);
    for worker in &workers {
        assert!(others.remove_pod(worker).is_empty());
    }
    assert!(others.remove_pod(&driver).is_empty());
    for (role, index) in [("worker", 0), ("worker", 1), ("driver", 0)] {
        assert!(others.remove_job(&child_job(role, index, 2)).is_empty());
    }
    assert_eq!(
        told(&others.remove_owner("jobset-uid")),
        ["jobset-uid gone"]
    );
    assert!(others.groups.is_empty());
}

/// A pod of a PyTorchJob with a master and two workers.
fn pytorch_pod(role: &str, index: u32, variables: &str) -> Pod {
    pod(&format!(
        "
metadata:
  name: tune-{role}-{index}
  namespace: nlp
  uid: pytorch-pod-{role}-{index}
  labels:
    training.kubeflow.org/job-name: tune
    training.kubeflow.org/operator-name: pytorchjob-controller
    training.kubeflow.org/replica-index: '{index}'
    training.kubeflow.org/replica-type: {role}
  ownerReferences:
  - {{apiVersion: kubeflow.org/v1, kind: PyTorchJob, name: tune, uid: pytorch-uid, controller: true}}
spec:
  schedulerName: meridian
  containers:
  - name: pytorch
    env: [{{name: PYTHONUNBUFFERED, value: '0'}}, {variables}]
    resources: {{limits: {{amd.com/gpu: '4', cpu: '8'}}}}
status: {{phase: Pending}}
"
    ))
}

#[test]
fn a_pytorch_job_says_its_size_in_its_variables() {
    let nodes = "{name: WORLD_SIZE, value: '12'}, {name: PET_NNODES, value: '3'}";
    let world = "{name: WORLD_SIZE, value: '3'}, {name: RANK, value: '1'}";
    for variables in [nodes, world] {
        let mut others = others();
        others.apply_pod(&pytorch_pod("master", 0, variables), false);
        others.apply_pod(&pytorch_pod("worker", 0, variables), false);
        let events = others.apply_pod(&pytorch_pod("worker", 1, variables), false);
        assert_eq!(
            told(&events),
            ["pytorch-uid nlp/tune: master of 4 GPUs x 1, worker of 4 GPUs x 2"]
        );
        let offer = &others.snapshot()[0];
        assert!(
            offer.flavors.iter().all(|flavor| flavor.starts_with("mi")),
            "{:?}",
            offer.flavors
        );
        assert_eq!(
            offer.roles[0].request.cpu,
            MilliCpus(8000),
            "a limit alone is a request"
        );
    }
    let mut silent = others();
    silent.apply_pod(&pytorch_pod("worker", 0, ""), false);
    assert!(
        silent.held_back()[0].contains("meridian.dev/gang-size"),
        "{:?}",
        silent.held_back()
    );
}

/// A pod that somebody labelled by hand.
fn labelled_pod(gang: &str, index: u32, size: u32) -> Pod {
    pod(&format!(
        "
metadata:
  name: ray-{index}
  namespace: nlp
  uid: ray-pod-{index}
  labels: {{meridian.dev/gang: {gang}, meridian.dev/role: head}}
  annotations: {{meridian.dev/gang-size: '{size}'}}
  ownerReferences:
  - {{apiVersion: ray.io/v1, kind: RayCluster, name: ray, uid: ray-uid, controller: true}}
spec:
  schedulerName: meridian
  containers: [{{name: ray, resources: {{limits: {{nvidia.com/gpu: '8'}}}}}}]
"
    ))
}

#[test]
fn a_label_with_a_size_makes_a_gang_of_anything() {
    let mut others = others();
    assert!(
        others
            .apply_pod(&labelled_pod("ray", 0, 2), false)
            .is_empty()
    );
    let events = others.apply_pod(&labelled_pod("ray", 1, 2), false);
    let uid = others.snapshot()[0].uid.clone();
    assert_eq!(
        told(&events),
        [format!("{uid} nlp/ray: head of 8 GPUs x 2")]
    );
    assert_eq!(uid.len(), 32);
    assert!(others.remove_pod(&labelled_pod("ray", 0, 2)).is_empty());
    // One goes over to another gang, and takes the last pod of the first with it.
    let events = others.apply_pod(&labelled_pod("ray-2", 1, 1), false);
    assert_eq!(told(&events)[0], format!("{uid} gone"));
    assert_eq!(events.len(), 2);
}

#[test]
fn a_pod_of_nothing_known_is_a_gang_of_its_own() {
    let mut alone = labelled_pod("ray", 0, 2);
    alone.metadata.annotations = None;
    alone.metadata.labels = None;
    let mut others = others();
    let events = others.apply_pod(&alone, false);
    assert_eq!(told(&events), ["ray-pod-0 nlp/ray-0: worker of 8 GPUs x 1"]);
    assert_eq!(
        told(&others.apply_pod(&in_phase(&alone, "Succeeded"), false)),
        ["ray-pod-0 gone"]
    );
    others.remove_pod(&alone);
    assert!(others.groups.is_empty());
}

#[test]
fn pods_of_others_and_our_own_are_none_of_it() {
    let mut others = others();
    let mut pod = labelled_pod("ray", 0, 1);
    assert!(others.apply_pod(&pod, true).is_empty(), "ours");
    pod.spec.as_mut().expect("it has one").scheduler_name = Some("default-scheduler".to_owned());
    assert!(others.apply_pod(&pod, false).is_empty());
    pod.spec = None;
    assert!(others.apply_pod(&pod, false).is_empty());
    assert!(others.groups.is_empty());
    let mut job = job(1, 1, "");
    let template = &mut job.spec.as_mut().expect("it has one").template;
    template.spec.as_mut().expect("it has one").scheduler_name = None;
    assert!(others.apply_job(&job).is_empty());
    assert!(others.groups.is_empty());
}

#[test]
fn what_cannot_be_placed_is_held_back_with_the_reason() {
    let reason = |change: &dyn Fn(&mut Pod)| {
        let mut pod = labelled_pod("ray", 0, 1);
        change(&mut pod);
        let mut others = others();
        assert!(others.apply_pod(&pod, false).is_empty());
        others.held_back().remove(0)
    };
    let gated = reason(&|pod| {
        let gates = serde_saphyr::from_str("[{name: example.com/quota}]").expect("gates");
        pod.spec.as_mut().expect("it has one").scheduling_gates = gates;
    });
    assert_eq!(gated, "nlp/ray: scheduling gates hold 1 of its pods back");
    let both = reason(&|pod| {
        let limits = "{limits: {nvidia.com/gpu: '1', amd.com/gpu: '1'}}";
        let container = &mut pod.spec.as_mut().expect("it has one").containers[0];
        container.resources = serde_saphyr::from_str(limits).expect("resources");
    });
    assert_eq!(
        both,
        "nlp/ray: no flavor has the GPUs that its pods ask for together"
    );
}

#[test]
fn the_order_in_which_pods_are_seen_does_not_matter() {
    let pods: Vec<Pod> = (0..4)
        .map(|index| {
            let mut pod = labelled_pod("ray", index, 4);
            let labels = pod.metadata.labels.as_mut().expect("it has some");
            let class = if index % 2 == 0 {
                "batch-long"
            } else {
                "fine-tuning"
            };
            labels.insert("meridian.dev/class".to_owned(), class.to_owned());
            labels.insert("meridian.dev/role".to_owned(), format!("r{}", index / 2));
            pod.spec.as_mut().expect("it has one").priority = i32::try_from(index).ok();
            pod
        })
        .collect();
    let offered = |order: &[usize]| {
        let mut others = others();
        for at in order {
            others.apply_pod(&pods[*at], false);
        }
        (others.snapshot(), others.pods(&others.snapshot()[0].uid))
    };
    let first = offered(&[0, 1, 2, 3]);
    for order in [[3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
        assert_eq!(offered(&order), first);
    }
    assert_eq!(first.0[0].priority, 3);
    assert_eq!(first.0[0].class, "batch-long");
}
