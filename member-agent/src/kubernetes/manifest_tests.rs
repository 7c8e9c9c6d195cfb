//! Tests of the objects that an order becomes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use meridian_api::ids::{Epoch, GangId, Uid};
use meridian_api::units::{Mebibytes, MilliCpus};

use super::super::record::is_open;
use super::*;
use crate::backend::{GangKey, MemberOrder, RoleOrder, Workload};

fn template() -> Value {
    json!({
        "metadata": {
            "labels": {"app": "llm", names::EPOCH: "666"},
            "annotations": {"note": "kept"},
        },
        "spec": {
            "nodeName": "chosen-by-hand",
            "schedulerName": "default-scheduler",
            "initContainers": [{"name": "fetch", "image": "fetch:1"}],
            "containers": [
                {"name": "main", "image": "train:1", "env": [
                    {"name": "MASTER_PORT", "value": "1234"},
                    {"name": "MERIDIAN_RANK", "value": "forged"},
                ]},
                {"name": "log", "image": "log:1"},
            ],
        },
    })
}

fn order() -> GangOrder {
    let role = |name: &str, gpus| RoleOrder {
        name: name.to_owned(),
        request: Resources {
            gpus: MilliGpus::cards(gpus),
            cpu: MilliCpus(1500),
            memory: Mebibytes(64),
        },
        template: Arc::new(template()),
    };
    let member = |role, rank, node: &str| MemberOrder {
        role,
        rank,
        node: node.to_owned(),
    };
    GangOrder {
        key: GangKey {
            gang: GangId {
                job: Uid(7),
                index: 2,
            },
            epoch: Epoch(42),
        },
        attempt: 1,
        terms: GangTerms {
            pool: "h100".to_owned(),
            namespace: "ml".to_owned(),
            job: "llm".to_owned(),
            grace: Millis(1500),
            ..GangTerms::default()
        },
        roles: vec![role("chief", 0), role("worker", 8)],
        members: vec![member(1, 1, "b"), member(1, 0, "a"), member(0, 0, "a")],
        labels: IndexMap::from([("cost-center".to_owned(), "42".to_owned())]),
        workload: Workload {
            tenant: "research".to_owned(),
            class: "batch-long".to_owned(),
            priority: 300,
            checkpoint_uri: "s3://ckpt/llm/".to_owned(),
            resume_env: "RESUME_FROM".to_owned(),
            ..Workload::default()
        },
        traceparent: String::new(),
    }
}

fn devices() -> Devices {
    Devices {
        resource: Some("nvidia.com/gpu".to_owned()),
        tolerations: vec![Toleration {
            key: Some("nvidia.com/gpu".to_owned()),
            operator: Some("Exists".to_owned()),
            ..Toleration::default()
        }],
    }
}

fn owner() -> ConfigMap {
    let (order, devices) = (order(), devices());
    let mut owner = Manifests::new(&order, &devices).expect("good").owner();
    owner.metadata.uid = Some("0b".to_owned());
    owner
}

fn pod(at: usize) -> PodManifest {
    let (order, devices) = (order(), devices());
    let manifests = Manifests::new(&order, &devices).expect("good");
    manifests.pod(at, &owner())
}

fn variable(pod: &PodManifest, name: &str) -> Vec<String> {
    let all = pod.body["spec"]["containers"][0]["env"]
        .as_array()
        .expect("a list");
    let named = all.iter().filter(|entry| entry["name"] == name);
    named
        .map(|entry| entry["value"].as_str().expect("text").to_owned())
        .collect()
}

#[test]
fn each_member_knows_who_it_is() {
    let is = |at: usize, name: &str, value: &str| {
        assert_eq!(variable(&pod(at), name), [value], "{name} of {at}");
    };
    for (at, role, rank, local) in [
        (0, "chief", "0", "0"),
        (1, "worker", "0", "1"),
        (2, "worker", "1", "0"),
    ] {
        is(at, "MERIDIAN_RANK", &at.to_string());
        is(at, "RANK", &at.to_string());
        is(at, "MERIDIAN_WORLD_SIZE", "3");
        is(at, "WORLD_SIZE", "3");
        is(at, "MERIDIAN_ROLE", role);
        is(at, "MERIDIAN_ROLE_RANK", rank);
        is(at, "MERIDIAN_LOCAL_RANK", local);
        is(at, "MERIDIAN_GANG", "2");
        is(at, "MERIDIAN_EPOCH", "42");
        is(at, "MERIDIAN_JOB", "llm");
        is(at, "MERIDIAN_MASTER_ADDR", "chief-0.gang-llm-2-e2a.ml.svc");
        is(at, "MASTER_ADDR", "chief-0.gang-llm-2-e2a.ml.svc");
        is(at, "MERIDIAN_MASTER_PORT", "29500");
        is(
            at,
            "MERIDIAN_CHECKPOINT_PATH",
            "s3://ckpt/llm/2/00000000000000000042",
        );
        is(at, "RESUME_FROM", "s3://ckpt/llm/2");
    }
    assert_eq!(
        variable(&pod(0), "MASTER_PORT"),
        ["1234"],
        "the template's own stays"
    );
    assert_eq!(variable(&pod(1), "MERIDIAN_ROLE_SIZE"), ["2"]);
    let chief = pod(0).body;
    assert_eq!(chief["spec"]["hostname"], "chief-0");
    assert_eq!(chief["spec"]["subdomain"], "gang-llm-2-e2a");
}

#[test]
fn no_container_starts_without_the_gate() {
    for at in 0..3 {
        let body = pod(at).body;
        let volumes = body["spec"]["volumes"].as_array().expect("a list");
        let sources = &volumes[0]["projected"]["sources"];
        let gate = json!({"key": "peers-0b.json", "path": "peers.json"});
        let owner = names::owner(order().key.gang);
        assert_eq!(
            sources[1]["configMap"],
            json!({"name": owner, "items": [gate]}),
            "not optional"
        );
        for kind in ["initContainers", "containers"] {
            for container in body["spec"][kind].as_array().expect("a list") {
                assert_eq!(container["volumeMounts"][0]["name"], names::VOLUME);
            }
        }
    }
}

#[test]
fn where_it_runs_and_how_it_ends_is_not_the_templates_to_say() {
    let manifest = pod(1);
    assert_eq!(
        (manifest.node.as_str(), manifest.name.as_str()),
        ("a", "llm-2-worker-0-e2a-1")
    );
    let spec = &manifest.body["spec"];
    assert_eq!(spec.get("nodeName"), None);
    assert_eq!(spec["schedulerName"], names::SCHEDULER);
    assert_eq!(spec["restartPolicy"], "Never");
    assert_eq!(spec["terminationGracePeriodSeconds"], 2);
    assert_eq!(spec["priorityClassName"], "meridian-batch-long-300");
    assert_eq!(spec["tolerations"][0]["key"], "nvidia.com/gpu");
    let labels = &manifest.body["metadata"]["labels"];
    assert_eq!(labels[names::EPOCH], "42", "no template forges an epoch");
    assert_eq!(
        (&labels["app"], &labels["cost-center"]),
        (&json!("llm"), &json!("42"))
    );
    assert_eq!(labels[names::TENANT], "research");
    assert_eq!(manifest.body["metadata"]["annotations"]["note"], "kept");
    let class = {
        let (order, devices) = (order(), devices());
        let manifests = Manifests::new(&order, &devices).expect("good");
        manifests.priority_class().expect("it has a class")
    };
    assert_eq!(
        (class.value, class.preemption_policy.as_deref()),
        (300, Some("Never"))
    );
}

#[test]
fn gpus_are_asked_for_in_the_vendors_words() {
    let worker = pod(1).body;
    let first = &worker["spec"]["containers"][0]["resources"];
    assert_eq!(first["limits"], json!({"nvidia.com/gpu": "8"}));
    let requests = json!({"nvidia.com/gpu": "8", "cpu": "1500m", "memory": "64Mi"});
    assert_eq!(first["requests"], requests);
    assert_eq!(worker["spec"]["containers"][1].get("resources"), None);
    let chief = pod(0).body;
    assert_eq!(
        chief["spec"]["containers"][0]["resources"].get("limits"),
        None
    );
    let mut order = order();
    let whole = devices();
    let unknown = Devices::default();
    assert!(Manifests::new(&order, &unknown).is_err_and(|why| why.contains("worker")));
    order.roles[1].request.gpus = MilliGpus(500);
    assert!(Manifests::new(&order, &whole).is_err_and(|why| why.contains("500m")));
    order.roles[1].request.gpus = MilliGpus::cards(1);
    order.roles[1].template = Arc::new(json!({"spec": {}}));
    assert!(Manifests::new(&order, &whole).is_err_and(|why| why.contains("no container")));
}

#[test]
fn a_container_that_asks_for_itself_is_heard() {
    let mut order = order();
    let mut template = template();
    template["spec"]["containers"][1]["resources"] =
        json!({"limits": {"nvidia.com/gpu": "8"}, "requests": {"cpu": "2"}});
    order.roles[1].template = Arc::new(template);
    let devices = devices();
    let body = Manifests::new(&order, &devices)
        .expect("good")
        .pod(1, &owner())
        .body;
    let containers = &body["spec"]["containers"];
    assert_eq!(containers[0]["resources"].get("limits"), None);
    assert_eq!(containers[0]["resources"]["requests"].get("cpu"), None);
    assert_eq!(containers[1]["resources"]["limits"]["nvidia.com/gpu"], "8");
}

#[test]
fn everything_goes_with_its_owner_and_is_a_real_object() {
    let owner = owner();
    let reference = [reference(&owner)];
    for at in 0..3 {
        let pod: Pod = serde_json::from_value(pod(at).body).expect("a pod");
        assert_eq!(
            pod.metadata.owner_references.as_deref(),
            Some(&reference[..])
        );
        assert_eq!(
            names::key(pod.metadata.labels.as_ref().expect("labelled")),
            Some(order().key)
        );
    }
    let (order, devices) = (order(), devices());
    let manifests = Manifests::new(&order, &devices).expect("good");
    let service = manifests.service(&owner);
    assert_eq!(
        service.metadata.owner_references.as_deref(),
        Some(&reference[..])
    );
    let record = Record::read(&owner).expect("its own");
    assert!(record.has_members_of(&order) && !record.complete);
}

#[test]
fn the_gate_stays_open_and_tells_of_the_peers_that_are() {
    let mut held = owner();
    let peers = |held: &ConfigMap| held.data.as_ref()?.get("peers-0b.json").cloned();
    let mut record = Record::of(&order());
    record.write(&mut held);
    assert!(peers(&held).is_none() && !is_open(&held));
    record.open(&mut held);
    assert!(is_open(&held));
    let all = peers(&held).expect("it is open");
    assert!(all.contains("\"host\":\"worker-1\""), "{all}");
    record.roles.pop();
    record.write(&mut held);
    let fewer = peers(&held).expect("it stays open");
    assert!(!fewer.contains("worker-1"), "{fewer}");
    held.metadata.uid = Some("0c".to_owned());
    assert!(!is_open(&held), "another owner's gate is none");
}

#[test]
fn a_grace_is_never_zero() {
    assert_eq!(grace_seconds(Millis::ZERO), 1);
    assert_eq!(grace_seconds(Millis(30_001)), 31);
}

#[test]
fn a_pod_that_may_call_has_a_token_of_which_the_hash_is_kept() {
    let (order, devices) = (order(), devices());
    let options = AnswersOptions {
        url: "http://agent:7790".to_owned(),
        random: meridian_runtime::Random::seeded(1),
    };
    let manifests = Manifests::new(&order, &devices).expect("good");
    let manifests = manifests.with(Some(&options), None);
    let pods = [0, 1].map(|at| manifests.pod(at, &owner()));
    let tokens = pods
        .each_ref()
        .map(|pod| variable(pod, "MERIDIAN_AGENT_TOKEN"));
    assert_ne!(tokens[0], tokens[1], "each its own");
    for (pod, token) in pods.iter().zip(&tokens) {
        let url = variable(pod, "MERIDIAN_AGENT_URL").concat();
        assert!(url.ends_with(&format!("/{}", pod.name)), "{url}");
        let annotations = &pod.body["metadata"]["annotations"];
        assert_eq!(annotations[names::ANSWER_TOKEN], answers::hash(&token[0]));
        assert!(!annotations.to_string().contains(&token[0]));
    }
}

#[test]
fn a_stop_signal_is_the_containers_unless_it_has_one() {
    let (mut order, devices) = (order(), devices());
    let spec = |order: &GangOrder, signal| {
        let manifests = Manifests::new(order, &devices).expect("good");
        manifests.with(None, signal).pod(0, &owner()).body["spec"].clone()
    };
    let without = spec(&order, None);
    assert!(without.get("os").is_none());
    assert!(without["containers"][0].get("lifecycle").is_none());
    let with = spec(&order, Some("SIGUSR1"));
    assert_eq!(
        with["containers"][0]["lifecycle"],
        json!({"stopSignal": "SIGUSR1"})
    );
    assert_eq!(with["os"], json!({"name": "linux"}));
    let mut template = Value::clone(&order.roles[0].template);
    template["spec"]["containers"][0]["lifecycle"] = json!({"stopSignal": "SIGINT"});
    order.roles[0].template = std::sync::Arc::new(template);
    let own = spec(&order, Some("SIGUSR1"));
    assert_eq!(own["containers"][0]["lifecycle"]["stopSignal"], "SIGINT");
}
