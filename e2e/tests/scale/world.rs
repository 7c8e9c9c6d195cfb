//! A hub, an agent and many fake nodes, with a front between the agent and its API server.
//!
//! Owns the gangs of a run, the faults, and the judgement of what is in the cluster. What is judged
//! is read past the front.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::api::{Api, ListParams};
use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::units::Millis;
use meridian_client::{DryRun, Resource, Submission};
use meridian_e2e::deployment::{AgentPlan, Deployment, JobBuilder, LONG};
use meridian_e2e::member::{MemberCluster, MemberOptions};
use meridian_runtime::Tasks;
use serde_json::Value;

use crate::front::{Front, Way};

/// The namespace, and the tenant without a quota, of every gang here.
const NAMESPACE: &str = "scale";
/// The label by which the agent names the gang of a pod.
const GANG: &str = "meridian.dev/gang";
/// Cards of each node.
const CARDS: u16 = 8;
/// Pods of a small gang, with a card each.
const SMALL: u32 = 4;
/// Requests in flight.
const IN_FLIGHT: usize = 16;
/// All gangs run, or all are gone, within this: a machine of two cores binds some tens of pods in a
/// second.
const ALL_WITHIN: Millis = Millis::seconds(900);
/// Between two looks at everything, which costs the hub something.
const LOOK_EVERY: Millis = Millis(500);

/// How much there is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// Fake nodes.
    pub(crate) nodes: u16,
    /// Gangs of four pods with one card each.
    pub(crate) gangs: usize,
    /// Members of the large gang; each takes all cards of a node.
    pub(crate) members: u32,
    /// The hub is away for so long.
    pub(crate) without_hub: Millis,
}

impl Size {
    fn chosen() -> Self {
        match std::env::var("MERIDIAN_SCALE").as_deref() {
            Ok("full") => Self {
                nodes: 1_000,
                gangs: 750,
                members: 512,
                without_hub: Millis::seconds(60),
            },
            Ok(other) => panic!("MERIDIAN_SCALE is {other:?}; known: full"),
            Err(_) => Self {
                nodes: 100,
                gangs: 24,
                members: 64,
                without_hub: Millis::seconds(10),
            },
        }
    }

    fn gpus(self) -> u64 {
        u64::from(self.nodes) * u64::from(CARDS)
    }

    fn used(self) -> u64 {
        let small = self.gangs * usize::try_from(SMALL).expect("four");
        u64::try_from(small).expect("a count") + u64::from(self.members) * u64::from(CARDS)
    }
}

/// Every pod of a gang: its UID and its node.
pub(crate) type Bound = BTreeMap<String, (String, String)>;

/// Everything of a run.
pub(crate) struct World {
    pub(crate) size: Size,
    pub(crate) fleet: Deployment,
    pub(crate) front: Front,
    member: MemberCluster,
    tasks: Tasks,
}

impl World {
    pub(crate) async fn start(test: &str) -> Option<Self> {
        let size = Size::chosen();
        let options = MemberOptions {
            nodes: 0,
            fake_nodes: size.nodes,
            gpus_per_node: CARDS,
            ..MemberOptions::default()
        };
        let options = options.or_skip(test)?;
        let member = MemberCluster::start(options).await;
        let member = member.unwrap_or_else(|error| panic!("{error}"));
        let tasks = Tasks::new();
        let front = Front::open(member.client(), &tasks).await;
        let kubeconfig = member.folder().join("front.json");
        std::fs::write(&kubeconfig, front.kubeconfig()).expect("a file in a folder of ours");
        let fleet = Box::pin(Deployment::through(
            &member,
            &kubeconfig,
            &AgentPlan::default(),
            size.gpus(),
        ))
        .await;
        let tenant = format!(
            "apiVersion: meridian.dev/v1alpha1\nkind: Tenant\nmetadata: {{name: {NAMESPACE}}}\n\
             spec: {{}}\n"
        );
        let file = fleet.file("tenant.yaml", &tenant).display().to_string();
        fleet.meridian(["apply", "-f", &file]).await.succeeded();
        Some(Self {
            size,
            fleet,
            front,
            member,
            tasks,
        })
    }

    /// The large gang first, then the small ones.
    pub(crate) async fn submit_all(&self) {
        let large = job("large").pods(self.size.members, u32::from(CARDS));
        let small = (0..self.size.gangs).map(|index| job(&format!("small-{index:04}")));
        let small = small.map(|job| job.pods(SMALL, 1));
        let jobs = std::iter::once(large).chain(small).map(JobBuilder::build);
        let submitted = stream::iter(jobs).map(|job| {
            let client = self.fleet.client();
            async move {
                let idempotency_key = job["metadata"]["name"].to_string();
                let submission = Submission {
                    job,
                    idempotency_key,
                    dry_run: DryRun::No,
                    plan_token: String::new(),
                };
                client.submit(submission).await.expect("a good job");
            }
        });
        let submitted = submitted.buffer_unordered(IN_FLIGHT);
        submitted.collect::<()>().await;
    }

    /// Waits until every job runs, and says how long that took.
    pub(crate) async fn all_run(&self) -> Millis {
        let clock = self.member.harness().clock();
        let begun = clock.boot();
        let mut last = String::new();
        let wait = async {
            loop {
                let jobs = self.fleet.jobs().await.unwrap_or_default();
                let runs = |job: &&Value| job["status"]["phase"] == "Running";
                if jobs.iter().filter(runs).count() == self.size.gangs + 1 {
                    return;
                }
                let other = jobs.iter().find(|job| !runs(job));
                last = other.map_or_else(String::new, |job| job["status"].to_string());
                clock.sleep(LOOK_EVERY).await;
            }
        };
        let waited = clock.timeout(ALL_WITHIN, wait).await;
        assert!(waited.is_ok(), "not all run, one of them: {last}");
        clock.boot().since(begun)
    }

    /// What is in the cluster. Every gang is there whole, bound, and nobody was asked to end; no
    /// node has more cards taken than it has.
    pub(crate) async fn judge(&self) -> Bound {
        let mut bound = Bound::new();
        let mut gangs: BTreeMap<String, u32> = BTreeMap::new();
        let mut taken: BTreeMap<String, u64> = BTreeMap::new();
        for pod in self.pods().await {
            let name = pod.metadata.name.clone().unwrap_or_default();
            assert!(pod.metadata.deletion_timestamp.is_none(), "{name} ends");
            let labels = pod.metadata.labels.clone().unwrap_or_default();
            *gangs.entry(labels[GANG].clone()).or_default() += 1;
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
            let node = node.unwrap_or_else(|| panic!("{name} is not bound"));
            *taken.entry(node.clone()).or_default() += cards(&pod);
            bound.insert(name, (pod.metadata.uid.unwrap_or_default(), node));
        }
        let sizes: Vec<u32> = gangs.into_values().collect();
        let of = |size: u32| sizes.iter().filter(|found| **found == size).count();
        assert_eq!((of(SMALL), of(self.size.members)), (self.size.gangs, 1));
        assert_eq!(sizes.len(), self.size.gangs + 1, "nothing in parts");
        let most = taken.values().max().copied().unwrap_or_default();
        assert!(most <= u64::from(CARDS), "{most} cards of one node");
        bound
    }

    async fn pods(&self) -> Vec<Pod> {
        let pods = Api::<Pod>::namespaced(self.member.client(), NAMESPACE);
        let all = pods.list(&ListParams::default()).await;
        all.expect("an administrator may").items
    }

    /// Waits until the agent was told so often what is not so.
    pub(crate) async fn untruths(&self, count: usize) {
        let what = format!("{count} answers that are not the truth");
        let look = async || (self.front.told() >= count).then_some(());
        self.fleet.until(&what, LONG, look).await;
    }

    /// Waits until the agent follows its cluster, and the hub has counted what is free.
    pub(crate) async fn agent_sees_all(&self) {
        let look = async || (self.front.followed() >= 3).then_some(());
        let what = "nodes, pods and owner objects are watched";
        self.fleet.until(what, LONG, look).await;
        let free = self.size.gpus() - self.size.used();
        self.fleet.gpus_counted(free).await;
    }

    /// SIGKILL, and another life.
    pub(crate) async fn restart_agent(&mut self) {
        let agent = &mut self.fleet.agents[0].process;
        agent.kill().await.expect("it ran");
        agent.start().expect("the binary starts");
    }

    /// SIGKILL to the hub; it is started again after `span`, in which the agent must live on.
    pub(crate) async fn hub_is_gone_for(&mut self, span: Millis) {
        let hub = &mut self.fleet.hubs[0];
        hub.process.kill().await.expect("it ran");
        let agent = &mut self.fleet.agents[0].process;
        let said = agent.line("what runs goes on", LONG).await;
        said.unwrap_or_else(|error| panic!("{error}"));
        let ended = agent.ended(span).await;
        assert!(ended.is_err(), "the agent ended without a hub: {ended:?}");
        self.fleet.hubs[0].start_again().await;
        let free = self.size.gpus() - self.size.used();
        self.fleet.gpus_counted(free).await;
    }

    /// Deletes all jobs and waits until nothing is left of them.
    pub(crate) async fn delete_all(&self) {
        let kind = Resource::of::<FederatedJobSpec>();
        let jobs = self.fleet.jobs().await.expect("the hub answers");
        let names = jobs.into_iter();
        let names: BTreeSet<String> = names
            .filter_map(|job| Some(job["metadata"]["name"].as_str()?.to_owned()))
            .collect();
        let deleted = stream::iter(names).map(|name| {
            let (client, kind) = (self.fleet.client(), &kind);
            async move {
                let deleted = client.delete(kind, NAMESPACE, &name, None, DryRun::No);
                deleted.await.expect("it is there");
            }
        });
        deleted.buffer_unordered(IN_FLIGHT).collect::<()>().await;
        let clock = self.member.harness().clock();
        let gone = async {
            while !self.made().await.is_empty() {
                clock.sleep(LOOK_EVERY).await;
            }
        };
        let gone = clock.timeout(ALL_WITHIN, gone).await;
        assert!(gone.is_ok(), "left: {:?}", self.made().await);
    }

    /// Some of what the agent made and that is still there.
    async fn made(&self) -> Vec<String> {
        let client = self.member.client();
        let of_agent = ListParams::default()
            .labels("app.kubernetes.io/managed-by=meridian-agent")
            .limit(10);
        let pods = Api::<Pod>::all(client.clone())
            .list_metadata(&of_agent)
            .await;
        let services = Api::<Service>::all(client.clone())
            .list_metadata(&of_agent)
            .await;
        let maps = Api::<ConfigMap>::all(client).list_metadata(&of_agent).await;
        let pods = pods.expect("listed").items.into_iter();
        let services = services.expect("listed").items.into_iter();
        let maps = maps.expect("listed").items.into_iter();
        let metadata = pods.map(|object| object.metadata);
        let metadata = metadata.chain(services.map(|object| object.metadata));
        let metadata = metadata.chain(maps.map(|object| object.metadata));
        metadata.filter_map(|metadata| metadata.name).collect()
    }

    pub(crate) async fn stop(self) {
        self.front.set(Way::Truth);
        self.tasks.cancel();
        drop(self.fleet);
        self.member.stop().await.expect("nothing stays");
    }
}

/// A job that runs until it is deleted.
fn job(name: &str) -> JobBuilder {
    let template = serde_json::json!({"spec": {
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "meridian.dev/trainer:1"}],
    }});
    JobBuilder::new(name)
        .with("/metadata/namespace", NAMESPACE.into())
        .with("/spec/roles/0/template", template)
}

/// Cards that a pod asks for.
fn cards(pod: &Pod) -> u64 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let limits = containers.filter_map(|container| container.resources.as_ref()?.limits.as_ref());
    let cards = limits.filter_map(|limits| limits.get("nvidia.com/gpu")?.0.parse::<u64>().ok());
    cards.sum()
}
