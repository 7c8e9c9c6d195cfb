//! One job on cards of two makes: two member clusters of fake nodes behind real API servers, one of
//! NVIDIA and one of AMD, and a job that accepts both.
//!
//! Owns the promise that its pods are what the job says for the flavor that they stand on, wherever
//! they go. What is claimed is read from the API servers.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use kube::Api;
use kube::api::ListParams;
use meridian_agent::kubernetes::names;
use meridian_e2e::deployment::{Deployment, HubStore, JobBuilder, LONG};
use meridian_e2e::member::{MemberCluster, MemberOptions};
use serde_json::{Value, json};

/// Cards of each node.
const CARDS: u16 = 8;
/// Fake nodes of each cluster.
const NODES: u16 = 2;
/// Pods of the job: all nodes of a cluster.
const PODS: usize = 2;

/// What a cluster is, and what pods of the job are in it.
struct Make {
    cluster: &'static str,
    flavor: &'static str,
    resource: &'static str,
    /// Label that names the product, and its value.
    product: (&'static str, &'static str),
    image: &'static str,
    command: &'static [&'static str],
    /// Its own variable.
    variable: (&'static str, &'static str),
}

const NVIDIA: Make = Make {
    cluster: "eu-cuda",
    flavor: "h100-80gb-sxm",
    resource: "nvidia.com/gpu",
    product: ("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"),
    image: "registry.example/train:cuda",
    command: &["python", "train.py", "--backend=nccl"],
    variable: ("NCCL_DEBUG", "WARN"),
};

const AMD: Make = Make {
    cluster: "eu-rocm",
    flavor: "mi300x",
    resource: "amd.com/gpu",
    product: ("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM"),
    image: "registry.example/train:rocm",
    command: &["python", "train.py", "--backend=rccl"],
    variable: ("HSA_ENABLE_SDMA", "0"),
};

impl Make {
    fn options(&self) -> MemberOptions {
        let (label, value) = self.product;
        MemberOptions {
            nodes: 0,
            fake_nodes: NODES,
            gpus_per_node: CARDS,
            gpu_resource: self.resource.to_owned(),
            labels: [(label.to_owned(), value.to_owned())].into(),
            ..MemberOptions::default()
        }
    }

    /// As a job accepts it.
    fn accepted(&self, speed: &str) -> Value {
        let (name, value) = self.variable;
        json!({
            "name": self.flavor, "speed": speed, "image": self.image, "command": self.command,
            "env": {name: value},
        })
    }

    /// A container is what the job says for this make, and nothing of the other's.
    fn assert_is(&self, container: &Container, other: &Self) {
        assert_eq!(container.image.as_deref(), Some(self.image));
        let command = container.command.as_deref().unwrap_or_default();
        assert_eq!(command, self.command);
        let env = container.env.iter().flatten();
        let env: BTreeMap<&str, &str> = env
            .filter_map(|variable| Some((variable.name.as_str(), variable.value.as_deref()?)))
            .collect();
        let (name, value) = self.variable;
        assert_eq!(env.get(name), Some(&value));
        assert_eq!(env.get("SHARED"), Some(&"yes"), "the template's own stays");
        assert_eq!(env.get(other.variable.0), None);
        let limits = container.resources.clone().and_then(|given| given.limits);
        let limits = limits.unwrap_or_default();
        let cards = limits.get(self.resource).map(|cards| cards.0.clone());
        assert_eq!(cards, Some(CARDS.to_string()));
        assert!(!limits.contains_key(other.resource), "{limits:?}");
    }
}

/// Pods of the job in a cluster that have not been asked to go.
async fn pods(member: &MemberCluster, job: &str) -> Vec<Pod> {
    let selected = ListParams::default().labels(&format!("{}={job}", names::JOB));
    let listed = Api::<Pod>::all(member.client()).list(&selected).await;
    let pods = listed.expect("listed").items.into_iter();
    let stays = |pod: &Pod| pod.metadata.deletion_timestamp.is_none();
    pods.filter(stays).collect()
}

/// Waits until the job runs on cards of this make, and looks at every pod.
async fn runs_on(fleet: &Deployment, make: &Make, member: &MemberCluster, other: &Make) {
    let look = async || {
        let status = fleet.status_of("both").await;
        let is_there = status["cluster"] == make.cluster && status["phase"] == "Running";
        is_there.then_some(status)
    };
    let what = format!("it runs in {}", make.cluster);
    let status = fleet.until(&what, LONG, look).await;
    assert_eq!(status["flavor"], make.flavor);
    let pods = pods(member, "both").await;
    assert_eq!(pods.len(), PODS);
    for pod in &pods {
        let spec = pod.spec.as_ref().expect("a pod has a spec");
        make.assert_is(&spec.containers[0], other);
        let side = spec.containers.iter().find(|it| it.name == "side");
        let image = side.and_then(|side| side.image.as_deref());
        let own = "registry.example/side:1";
        assert_eq!(image, Some(own), "only the first differs");
    }
}

fn both() -> JobBuilder {
    let template = json!({"spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [
            {"name": "main", "image": "registry.example/train:any",
             "env": [{"name": "SHARED", "value": "yes"}]},
            {"name": "side", "image": "registry.example/side:1"},
        ],
    }});
    let flavors = json!([NVIDIA.accepted("1"), AMD.accepted("0.8")]);
    let placement = json!({"flavors": flavors, "objective": "Soonest"});
    JobBuilder::new("both")
        .pods(2, u32::from(CARDS))
        .with("/spec/placement", placement)
        .with("/spec/roles/0/template", template)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_runs_with_the_image_of_the_cards_that_it_is_given() {
    let test = "a_job_runs_with_the_image_of_the_cards_that_it_is_given";
    let Some(options) = NVIDIA.options().or_skip(test) else {
        return;
    };
    let start = async |options| MemberCluster::start(options).await;
    let [cuda, rocm] = [start(options).await, start(AMD.options()).await]
        .map(|member| member.unwrap_or_else(|error| panic!("{error}")));
    let gpus = 2 * u64::from(NODES) * u64::from(CARDS);
    let named = [(&cuda, NVIDIA.cluster), (&rocm, AMD.cluster)];
    let fleet = Deployment::joined(HubStore::Embedded, &named, gpus).await;

    // Both have room: it ends sooner on the faster cards.
    fleet.submit(both()).await;
    runs_on(&fleet, &NVIDIA, &cuda, &AMD).await;
    assert!(pods(&rocm, "both").await.is_empty());

    // Its cluster is emptied: the same job goes on with cards of the other make.
    let drain = ["cluster", "drain", NVIDIA.cluster, "--yes", "--wait"];
    fleet.meridian(drain).await.succeeded();
    runs_on(&fleet, &AMD, &rocm, &NVIDIA).await;
    assert!(pods(&cuda, "both").await.is_empty());

    assert_eq!(fleet.errors(&[]), [] as [String; 0]);
    drop(fleet);
    for member in [cuda, rocm] {
        member.stop().await.expect("nothing stays");
    }
}
