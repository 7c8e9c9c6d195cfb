//! Gangs on real nodes: bound whole, told their ranks, and raced for their nodes by others.
//!
//! Owns the promise that the agent makes on Kubernetes, with the real hub, a real API server and
//! kubelets that run containers. What is claimed is read from what the containers wrote.

use std::collections::BTreeSet;
use std::path::Path;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams, LogParams, PostParams, WatchEvent, WatchParams};
use meridian_api::units::BootMillis;
use meridian_e2e::deployment::{AgentPlan, CLUSTER, Deployment, JobBuilder, Row};
use meridian_e2e::member::truth::Run;
use meridian_e2e::member::{MemberOptions, TrainerPod, bind, trainer};
use meridian_e2e::real_nodes::RealNodes;
use meridian_e2e::tools::Tool;
use serde_json::json;

/// Cards of each node.
const CARDS: u16 = 8;

#[tokio::test]
async fn gangs_are_bound_whole_or_not_at_all() {
    let test = "gangs_are_bound_whole_or_not_at_all";
    let Some(kubectl) = Tool::Kubectl.or_skip(test) else {
        return;
    };
    let options = MemberOptions {
        gpus_per_node: CARDS,
        ..MemberOptions::default()
    };
    let Some(world) = RealNodes::start(test, options, &AgentPlan::default()).await else {
        return;
    };
    world
        .scene("by kubectl", Box::pin(by_kubectl(&world, &kubectl)))
        .await;
    world.scene("told", Box::pin(told(&world))).await;
    world.scene("whole", Box::pin(whole(&world))).await;
    world.scene("raced", Box::pin(raced(&world))).await;
    world.end(&[]).await;
}

/// The default policies and one job, as with any API server; it runs in containers to its end.
async fn by_kubectl(world: &RealNodes, kubectl: &Path) {
    let fleet = &world.fleet;
    let defaults = Deployment::defaults();
    for policies in ["classes.yaml", "tenants.yaml", "prices.yaml"] {
        fleet.kubectl_apply(kubectl, &defaults.join(policies)).await;
    }
    let short = [(trainer::RUN_FOR, "1000")];
    let job = JobBuilder::new("typed").pods(2, CARDS.into());
    let job = job.trains(&world.member, &short);
    let file = fleet.file("typed.yaml", &job.text());
    fleet.kubectl_apply(kubectl, &file).await;
    let rows: [Row<'_>; 4] = [
        (
            "wait --for=condition=Complete fj/typed --timeout=100s",
            0,
            &["condition met"],
        ),
        ("get fj typed", 0, &["typed", "Succeeded", CLUSTER]),
        ("describe fj typed", 0, &["Complete", CLUSTER, "Events"]),
        ("delete fj typed", 0, &["deleted"]),
    ];
    fleet.kubectl_does(kubectl, &rows).await;
    let truth = world.member.truth();
    let runs = truth.runs().iter().filter(|run| run.job == "typed");
    let ends: Vec<(u32, bool)> = runs.map(|run| (run.rank, run.has_ended)).collect();
    assert_eq!(ends.len(), 2, "{ends:?}");
    assert!(ends.iter().all(|(_, has_ended)| *has_ended), "{ends:?}");
    world.gone("typed").await;
}

/// A change of a node is counted at the hub.
async fn told(world: &RealNodes) {
    let clock = world.member.harness().clock();
    let all = 2 * u64::from(CARDS);
    for (closed, free) in [(true, all / 2), (false, all)] {
        let change = json!({"spec": {"unschedulable": closed}});
        world.patch_node("node-1", change).await;
        let changed = clock.boot();
        world.fleet.gpus_counted(free).await;
        let delay = clock.boot().since(changed);
        eprintln!("    from a node's change to the hub's count: {delay}");
    }
}

/// When the last of so many pods was bound, as a watch shows it.
async fn all_bound(world: &RealNodes, pods: usize) -> BootMillis {
    let api = world.pods();
    let before = api.list(&ListParams::default()).await.expect("listed");
    let version = before.metadata.resource_version.expect("a listing has one");
    let events = api.watch(&WatchParams::default(), &version).await;
    let mut events = events.expect("watched").boxed();
    let mut bound = BTreeSet::new();
    while bound.len() < pods {
        let event = events.next().await.expect("it goes on for minutes");
        if let WatchEvent::Modified(pod) = event.expect("an event")
            && pod.spec.is_some_and(|spec| spec.node_name.is_some())
        {
            bound.insert(pod.metadata.name);
        }
    }
    world.member.harness().clock().boot()
}

/// Ranks and rendezvous are in each container's environment, and the same for both.
async fn whole(world: &RealNodes) {
    let submit = world.submit(world.job("whole", 2, CARDS.into()));
    let (bound, ()) = tokio::join!(all_bound(world, 2), submit);
    let runs = world.runs("whole", 2).await;
    let began = runs.iter().map(|run| run.from).max().expect("two ranks");
    let gate = began.since(bound);
    eprintln!("    from the last binding to user code of all ranks: {gate}");
    assert_eq!((runs[0].rank, runs[1].rank), (0, 1));
    let alike = |run: &Run| run.world == 2 && run.epoch == runs[0].epoch;
    assert!(runs.iter().all(alike));
    let mut leaders = Vec::new();
    for run in &runs {
        // A container runs a moment before its kubelet has heard of it.
        let logs = async || {
            let logs = world.pods().logs(&run.name, &LogParams::default()).await;
            logs.ok()
        };
        let said = world.until("the kubelet gives logs", logs).await;
        let value = |name: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("no {name} in {said}"))
                .to_owned()
        };
        assert_eq!(value("MERIDIAN_RANK="), run.rank.to_string());
        assert_eq!(value("MERIDIAN_WORLD_SIZE="), "2");
        let devices = value("NVIDIA_VISIBLE_DEVICES=");
        assert_eq!(devices.split(',').count(), usize::from(CARDS));
        let (address, port) = (
            value("MERIDIAN_MASTER_ADDR="),
            value("MERIDIAN_MASTER_PORT="),
        );
        leaders.push((address, port));
    }
    assert_eq!(leaders[0], leaders[1]);
    world.delete("whole").await;
}

/// Somebody else binds to one of its nodes as soon as a pod of the gang is there.
async fn raced(world: &RealNodes) {
    let client = world.member.client();
    let others = Api::<Pod>::namespaced(client.clone(), "default");
    let taker = TrainerPod::new("taker", 5, &world.member.heartbeats()).build();
    let created = others.create(&PostParams::default(), &taker).await;
    created.expect("created");
    world.submit(world.job("raced", 2, CARDS.into())).await;
    let made = async || {
        let pods = world.pods().list(&ListParams::default()).await.ok()?;
        (!pods.items.is_empty()).then_some(())
    };
    world.until("a pod of the gang is there", made).await;
    let bound = bind(&client, "default", "taker", "node-1").await;
    bound.expect("bound");

    // Whoever of the two comes first, the gang runs whole once it has the room.
    let decided = async || {
        let phase = others.get("taker").await.ok()?.status?.phase?;
        (phase == "Running" || phase == "Failed").then_some(())
    };
    world
        .until("the other pod runs or is refused", decided)
        .await;
    let deleted = others.delete("taker", &DeleteParams::default()).await;
    deleted.expect("deleted");
    world.runs("raced", 2).await;
    world.delete("raced").await;
}
