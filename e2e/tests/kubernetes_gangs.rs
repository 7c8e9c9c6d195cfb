//! Gangs on real nodes: bound whole, told their ranks, never twice, and gone when their job is.
//!
//! Owns the promise that the agent makes on Kubernetes, with the real hub, a real API server and
//! kubelets that run containers. What is claimed is read from what the containers wrote.

use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::Api;
use kube::api::{DeleteParams, ListParams, LogParams, PostParams};
use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::units::Millis;
use meridian_client::{DryRun, Resource};
use meridian_e2e::deployment::{Deployment, JobBuilder, LONG, NAMESPACE};
use meridian_e2e::member::truth::Run;
use meridian_e2e::member::{MemberCluster, MemberOptions, TrainerPod, bind};

/// Between the first container of a gang and its last: a kubelet looks for the gate at doubling
/// distances from half a second, as long again as its slowest admission took.
const PATIENCE: Millis = Millis::seconds(20);
/// Cards of each node.
const CARDS: u16 = 8;

/// A hub, an agent, and two real nodes.
struct World {
    fleet: Deployment,
    member: MemberCluster,
}

impl World {
    async fn start(test: &str) -> Option<Self> {
        let options = MemberOptions::default().or_skip(test)?;
        let gpus = u64::from(options.nodes) * u64::from(options.gpus_per_node);
        let member = MemberCluster::start(options).await;
        let member = member.unwrap_or_else(|error| panic!("{error}"));
        let fleet = Box::pin(Deployment::over(&member, gpus)).await;
        Some(Self { fleet, member })
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.member.client(), NAMESPACE)
    }

    /// Submits a gang of two pods that take a node each.
    async fn submit(&self, name: &str) {
        let job = JobBuilder::new(name).pods(2, 8).trains(&self.member, &[]);
        let file = self.fleet.file(&format!("{name}.yaml"), &job.text());
        let file = file.display().to_string();
        self.fleet
            .meridian(["submit", "-f", &file])
            .await
            .succeeded();
    }

    /// Waits until that many ranks of a job are seen to run at once.
    async fn runs(&self, job: &str, ranks: usize) -> Vec<Run> {
        let what = format!("{ranks} ranks of {job} run");
        let look = async || {
            let now = self.member.harness().clock().boot();
            let truth = self.member.truth();
            let runs = truth.runs().iter().filter(|run| run.job == job);
            let alive = runs.filter(|run| now.since(run.to) < Millis::seconds(2));
            let alive: Vec<Run> = alive.cloned().collect();
            (alive.len() == ranks).then_some(alive)
        };
        self.fleet.until(&what, LONG, look).await
    }

    /// Pods, Services and ConfigMaps that the agent made and that are still there.
    async fn made(&self) -> Vec<String> {
        let client = self.member.client();
        let of_agent = ListParams::default().labels("app.kubernetes.io/managed-by=meridian-agent");
        let pods = Api::<Pod>::all(client.clone()).list(&of_agent).await;
        let services = Api::<Service>::all(client.clone()).list(&of_agent).await;
        let maps = Api::<ConfigMap>::all(client).list(&of_agent).await;
        let pods = pods.expect("listed").items.into_iter();
        let services = services.expect("listed").items.into_iter();
        let maps = maps.expect("listed").items.into_iter();
        let metadata = pods.map(|pod| pod.metadata);
        let metadata = metadata.chain(services.map(|service| service.metadata));
        let metadata = metadata.chain(maps.map(|map| map.metadata));
        metadata.filter_map(|metadata| metadata.name).collect()
    }

    async fn delete(&self, job: &str) {
        let kind = Resource::of::<FederatedJobSpec>();
        let deleted = self
            .fleet
            .client()
            .delete(&kind, NAMESPACE, job, None, DryRun::No)
            .await;
        deleted.expect("deleted");
        let what = format!("nothing of {job} is left in the member cluster");
        let look = async || self.made().await.is_empty().then_some(());
        self.fleet.until(&what, LONG, look).await;
    }

    /// What must hold of everything that ever ran.
    fn judge(&self) {
        let truth = self.member.truth();
        assert_eq!(truth.double_runs(), []);
        assert_eq!(truth.partial_starts(PATIENCE), []);
        assert_eq!(self.fleet.errors(&[]), [] as [String; 0]);
    }
}

#[tokio::test]
async fn a_gang_is_bound_whole_and_leaves_nothing() {
    let Some(world) = World::start("a_gang_is_bound_whole_and_leaves_nothing").await else {
        return;
    };
    world.submit("whole").await;
    let mut runs = world.runs("whole", 2).await;
    runs.sort_by_key(|run| run.rank);
    assert_eq!((runs[0].rank, runs[1].rank), (0, 1));
    assert!(
        runs.iter()
            .all(|run| run.world == 2 && run.epoch == runs[0].epoch)
    );

    // Ranks and rendezvous are in each container's environment, and the same for both.
    let mut leaders = Vec::new();
    for run in &runs {
        // A container runs a moment before its kubelet has heard of it.
        let logs = async || {
            world
                .pods()
                .logs(&run.name, &LogParams::default())
                .await
                .ok()
        };
        let said = world
            .fleet
            .until("the kubelet gives logs", LONG, logs)
            .await;
        let value = |name: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("no {name} in {said}"))
                .to_owned()
        };
        assert_eq!(value("MERIDIAN_RANK="), run.rank.to_string());
        assert_eq!(value("MERIDIAN_WORLD_SIZE="), "2");
        assert_eq!(
            value("NVIDIA_VISIBLE_DEVICES=").split(',').count(),
            usize::from(CARDS)
        );
        leaders.push((
            value("MERIDIAN_MASTER_ADDR="),
            value("MERIDIAN_MASTER_PORT="),
        ));
    }
    assert_eq!(leaders[0], leaders[1]);

    world.delete("whole").await;
    world.judge();
    world.member.stop().await.expect("nothing is left");
}

#[tokio::test]
async fn a_node_that_is_taken_while_a_gang_binds_stops_all_of_it() {
    let test = "a_node_that_is_taken_while_a_gang_binds_stops_all_of_it";
    let Some(world) = World::start(test).await else {
        return;
    };
    let client = world.member.client();
    let others = Api::<Pod>::namespaced(client.clone(), "default");
    let taker = TrainerPod::new("taker", 5, &world.member.heartbeats()).build();
    others
        .create(&PostParams::default(), &taker)
        .await
        .expect("created");
    world.submit("raced").await;
    // As soon as a pod of the gang is there, somebody else binds to one of its nodes.
    let made = async || {
        let pods = world.pods().list(&ListParams::default()).await.ok()?;
        (!pods.items.is_empty()).then_some(())
    };
    world
        .fleet
        .until("a pod of the gang is there", LONG, made)
        .await;
    bind(&client, "default", "taker", "node-1")
        .await
        .expect("bound");

    // Whoever of the two comes first, the gang runs whole once it has the room.
    let decided = async || {
        let phase = others.get("taker").await.ok()?.status?.phase?;
        (phase == "Running" || phase == "Failed").then_some(())
    };
    world
        .fleet
        .until("the other pod runs or is refused", LONG, decided)
        .await;
    let deleted = others.delete("taker", &DeleteParams::default()).await;
    deleted.expect("deleted");
    world.runs("raced", 2).await;
    world.judge();
    world.member.stop().await.expect("nothing is left");
}

#[tokio::test]
async fn an_agent_that_dies_while_a_gang_starts_never_starts_it_twice() {
    let test = "an_agent_that_dies_while_a_gang_starts_never_starts_it_twice";
    let Some(mut world) = World::start(test).await else {
        return;
    };
    for round in 0..3 {
        let job = format!("killed-{round}");
        world.submit(&job).await;
        // Each round the agent gets further: one pod, both pods, a container that runs.
        let far_enough = async || {
            let pods = world.pods().list(&ListParams::default()).await.ok()?;
            let truth = world.member.truth();
            let trains = truth.runs().iter().any(|run| run.job == job);
            let is = pods.items.len() > round.min(1) && (round < 2 || trains);
            is.then_some(())
        };
        world
            .fleet
            .until("the gang has begun to start", LONG, far_enough)
            .await;
        let agent = &mut world.fleet.agents[0].process;
        agent.kill().await.expect("killed");
        agent.start().expect("starts again");
        let runs = world.runs(&job, 2).await;
        assert_eq!(runs[0].epoch, runs[1].epoch);
        world.delete(&job).await;
    }
    world.judge();
    world.member.stop().await.expect("nothing is left");
}
