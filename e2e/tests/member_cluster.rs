//! The harness of real member clusters keeps its own promises: nodes run what they are given,
//! refuse what does not fit, lose broken GPUs, and leave nothing behind.
//!
//! Owns what every test on real nodes leans on. Never tests Meridian.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams, LogParams, PostParams};
use meridian_api::units::Millis;
use meridian_e2e::member::{
    EXIT_CODE, MemberCluster, MemberOptions, PULLING, RUN_FOR, STAY, TrainerPod, bind, trainer,
};
use meridian_e2e::process::{Harness, ProcessSpec};
use meridian_e2e::tools::Binary;

/// What takes a second or two on a quiet machine.
const SOON: Millis = Millis::seconds(90);
/// Between two looks.
const LOOK_EVERY: Millis = Millis(50);

/// A cluster with its pods at hand.
struct World {
    cluster: MemberCluster,
    pods: Api<Pod>,
    nodes: Api<Node>,
}

impl World {
    async fn start(options: MemberOptions) -> Self {
        let cluster = MemberCluster::start(options).await;
        let cluster = cluster.unwrap_or_else(|error| panic!("{}", chain(&error)));
        let client = cluster.client();
        Self {
            cluster,
            pods: Api::namespaced(client.clone(), "default"),
            nodes: Api::all(client),
        }
    }

    fn pod(&self, name: &str, gpus: u16) -> TrainerPod {
        TrainerPod::new(name, gpus, &self.cluster.heartbeats())
    }

    /// Creates a pod and binds it to a node, as a scheduler that never asks would.
    async fn run(&self, pod: &TrainerPod, node: &str) -> String {
        let created = self.pods.create(&PostParams::default(), &pod.build()).await;
        let name = created.expect("created").metadata.name.expect("it has one");
        let bound = bind(&self.cluster.client(), "default", &name, node).await;
        bound.unwrap_or_else(|error| panic!("{}", chain(&error)));
        name
    }

    async fn until<T>(&self, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        let clock = self.cluster.harness().clock();
        let looking = async {
            loop {
                if let Some(found) = look().await {
                    return found;
                }
                clock.sleep(LOOK_EVERY).await;
            }
        };
        match clock.timeout(SOON, looking).await {
            Ok(found) => found,
            Err(late) => panic!("{late}: {what}\n{}", self.pods_as_text().await),
        }
    }

    async fn pods_as_text(&self) -> String {
        let pods = self.pods.list(&ListParams::default()).await;
        let pods = pods.map(|list| list.items).unwrap_or_default();
        let line = |pod: &Pod| {
            let name = pod.metadata.name.clone().unwrap_or_default();
            let status = serde_json::to_string(&pod.status).unwrap_or_default();
            format!("{name}: {status}\n")
        };
        pods.iter().map(line).collect()
    }

    async fn until_phase(&self, pod: &str, phase: &str) -> Pod {
        self.until(&format!("{pod} is {phase}"), async || {
            let pod = self.pods.get(pod).await.ok()?;
            let is = pod.status.as_ref()?.phase.as_deref()? == phase;
            is.then_some(pod)
        })
        .await
    }

    async fn allocatable(&self, node: &str, resource: &str) -> Option<String> {
        let status = self.nodes.get(node).await.ok()?.status?;
        Some(status.allocatable?.get(resource)?.0.clone())
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

#[tokio::test]
async fn real_nodes_run_what_fits_and_refuse_what_does_not() {
    let options = MemberOptions {
        nodes: 2,
        fake_nodes: 5,
        ..MemberOptions::default()
    };
    let Some(options) = options.or_skip("real_nodes_run_what_fits_and_refuse_what_does_not") else {
        return;
    };
    let world = World::start(options).await;
    let nodes = world.nodes.list(&ListParams::default()).await;
    assert_eq!(nodes.expect("listed").items.len(), 7);

    a_pod_runs_and_is_told_its_gpus(&world).await;
    a_pod_that_does_not_fit_is_refused(&world).await;
    codes_and_signals_are_real(&world).await;
    fake_pods_behave(&world).await;
    nothing_stays(world.cluster).await;
}

async fn a_pod_runs_and_is_told_its_gpus(world: &World) {
    let trains = world.pod("trains", 3).env("MERIDIAN_RANK", "4");
    world.run(&trains, "node-0").await;
    world.until_phase("trains", "Running").await;
    let beats = async || {
        let truth = world.cluster.truth();
        let runs = truth.runs_of("trains");
        let run = runs.first()?;
        (run.to.since(run.from) > Millis::seconds(1)).then(|| (*run).clone())
    };
    let run = world.until("its heartbeats appear", beats).await;
    assert_eq!(run.rank, 4);
    let said = world.pods.logs("trains", &LogParams::default()).await;
    let said = said.expect("the kubelet gives logs");
    assert!(said.contains("MERIDIAN_RANK=4"), "{said}");
    let devices = said
        .lines()
        .find(|line| line.starts_with("NVIDIA_VISIBLE_DEVICES="));
    assert_eq!(devices.expect("it is told").split(',').count(), 3, "{said}");
}

/// Six of the five GPUs that are left: bound all the same, it never starts.
async fn a_pod_that_does_not_fit_is_refused(world: &World) {
    let too_many = world.pod("too-many", 6);
    world.run(&too_many, "node-0").await;
    let refused = world.until_phase("too-many", "Failed").await;
    let reason = refused.status.expect("a status").reason.expect("a reason");
    assert!(
        ["UnexpectedAdmissionError", "OutOfnvidia.com/gpu"].contains(&reason.as_str()),
        "{reason}"
    );
    assert!(world.cluster.truth().runs_of("too-many").is_empty());
}

async fn codes_and_signals_are_real(world: &World) {
    let fails = world
        .pod("fails", 1)
        .env(trainer::RUN_FOR, "300")
        .env(trainer::EXIT_CODE, "7");
    world.run(&fails, "node-1").await;
    let failed = world.until_phase("fails", "Failed").await;
    let statuses = failed.status.and_then(|status| status.container_statuses);
    let state = statuses.expect("a container")[0]
        .state
        .clone()
        .expect("a state");
    assert_eq!(state.terminated.expect("it ended").exit_code, 7);

    let deleted = world.pods.delete("trains", &DeleteParams::default()).await;
    deleted.expect("deleted");
    let gone = async || {
        world
            .pods
            .get_opt("trains")
            .await
            .ok()?
            .is_none()
            .then_some(())
    };
    world.until("it is gone", gone).await;
    let truth = world.cluster.truth();
    assert!(truth.runs_of("trains")[0].has_ended, "it obeyed");
}

async fn fake_pods_behave(world: &World) {
    let done = world.pod("fake-done", 8).annotated(RUN_FOR, "100ms");
    let failed = world.pod("fake-failed", 8);
    let failed = failed.annotated(RUN_FOR, "100ms").annotated(EXIT_CODE, "3");
    let pulling = world.pod("fake-pulling", 8).annotated(STAY, PULLING);
    world.run(&done, "fake-0000").await;
    world.run(&failed, "fake-0001").await;
    world.run(&pulling, "fake-0002").await;
    world.run(&world.pod("fake-runs", 8), "fake-0003").await;
    world.until_phase("fake-done", "Succeeded").await;
    world.until_phase("fake-runs", "Running").await;
    let failed = world.until_phase("fake-failed", "Failed").await;
    let text = serde_json::to_string(&failed.status).expect("JSON");
    assert!(text.contains("\"exitCode\":3"), "{text}");
    let waits = async || {
        let pod = world.pods.get("fake-pulling").await.ok()?;
        let text = serde_json::to_string(&pod.status).ok()?;
        text.contains("ImagePullBackOff").then_some(())
    };
    world.until("it waits for its image", waits).await;
    let deleted = world
        .pods
        .delete("fake-runs", &DeleteParams::default())
        .await;
    deleted.expect("deleted");
    let gone = async || {
        world
            .pods
            .get_opt("fake-runs")
            .await
            .ok()?
            .is_none()
            .then_some(())
    };
    world.until("it is gone", gone).await;
}

/// Stops the cluster while containers run, and looks for what it made.
async fn nothing_stays(cluster: MemberCluster) {
    let folder = cluster.folder().display().to_string();
    assert!(lines_with("/proc/self/mountinfo", &folder).is_empty());
    assert!(!processes_with(&folder).is_empty(), "the look itself works");
    cluster
        .stop()
        .await
        .unwrap_or_else(|error| panic!("{}", chain(&error)));
    assert!(!Path::new(&folder).exists());
    assert_eq!(processes_with(&folder), Vec::<String>::new());
    assert!(lines_with("/proc/self/mountinfo", &folder).is_empty());
    let place = folder.rsplit('/').next().expect("a number");
    let links = Command::new("ip")
        .args(["-o", "link"])
        .output()
        .expect("ip runs");
    let links = String::from_utf8_lossy(&links.stdout).into_owned();
    assert!(!links.contains(&format!(" mm{place}n")), "{links}");
}

fn lines_with(path: &str, word: &str) -> Vec<String> {
    let text = std::fs::read_to_string(path).expect("the kernel tells");
    text.lines()
        .filter(|line| line.contains(word))
        .map(str::to_owned)
        .collect()
}

/// Command lines that name `word`, but our own.
fn processes_with(word: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc")
        .expect("the kernel tells")
        .flatten();
    let line = |entry: std::fs::DirEntry| {
        let text = std::fs::read(entry.path().join("cmdline")).ok()?;
        let text = String::from_utf8_lossy(&text).replace('\0', " ");
        text.contains(word).then_some(text)
    };
    entries.filter_map(line).collect()
}

#[tokio::test]
async fn a_broken_gpu_lowers_what_a_node_can_give() {
    let options = MemberOptions {
        nodes: 1,
        gpus_per_node: 4,
        gpu_resource: "amd.com/gpu".to_owned(),
        ..MemberOptions::default()
    };
    let Some(options) = options.or_skip("a_broken_gpu_lowers_what_a_node_can_give") else {
        return;
    };
    let world = World::start(options).await;
    let is = async |wanted: &str| {
        let what = format!("{wanted} GPUs can be given");
        let look = async || {
            let given = world.allocatable("node-0", "amd.com/gpu").await?;
            (given == wanted).then_some(())
        };
        world.until(&what, look).await;
    };
    is("4").await;
    let gpus = world.cluster.nodes()[0].gpus();
    gpus.set_healthy(1, false);
    is("3").await;
    let all = world.pod("all", 4).of("amd.com/gpu");
    world.run(&all, "node-0").await;
    world.until_phase("all", "Failed").await;
    gpus.set_healthy(1, true);
    is("4").await;
    world.cluster.stop().await.expect("nothing is left");
}

#[tokio::test]
async fn a_killed_run_leaves_no_process_and_the_next_removes_its_files() {
    let test = "a_killed_run_leaves_no_process_and_the_next_removes_its_files";
    let options = MemberOptions {
        nodes: 1,
        ..MemberOptions::default()
    };
    if options.or_skip(test).is_none() {
        return;
    }
    let harness = Harness::new();
    let spec = ProcessSpec::new("test cluster", Binary::TestCluster.path());
    let spec = spec.args(["--nodes", "1", "--no-scheduler"]);
    let mut run = harness.start(spec).expect("starts");
    let line = run.line("export KUBECONFIG=", SOON).await;
    let line = line.unwrap_or_else(|error| panic!("{}", chain(&error)));
    let kubeconfig = line.split('=').nth(1).expect("a path");
    let folder = Path::new(kubeconfig)
        .ancestors()
        .nth(2)
        .expect("the cluster's");
    let node = folder.join("node-0");
    assert!(node.is_dir());
    run.kill().await.expect("killed");

    let ended = async {
        while !processes_with(&folder.display().to_string()).is_empty() {
            harness.clock().sleep(LOOK_EVERY).await;
        }
    };
    harness
        .clock()
        .timeout(SOON, ended)
        .await
        .expect("all end with it");
    assert!(node.is_dir(), "nobody has looked yet");
    let small = MemberOptions {
        nodes: 0,
        ..MemberOptions::default()
    };
    let next = MemberCluster::start(small).await.expect("starts");
    assert!(!node.exists());
    next.stop().await.expect("nothing is left");
}
