//! What people and failures do to the nodes under running gangs: evictions, drains, a namespace
//! that goes, kubelets that stop, machines that die.
//!
//! Owns the promise that a gang runs whole or not at all through all of it, goes on from its
//! checkpoint, and never runs twice. What is claimed is read from what the containers wrote.

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{DeleteParams, EvictParams};
use meridian_api::units::Millis;
use meridian_e2e::deployment::{AgentPlan, NAMESPACE};
use meridian_e2e::member::MemberOptions;
use meridian_e2e::member::truth::Run;
use meridian_e2e::real_nodes::RealNodes;
use meridian_e2e::tools::Tool;
use serde_json::json;

/// Cards of each node.
const CARDS: u32 = 8;
/// Of a gang of two pods: these, its owner object and its Service.
const OBJECTS_OF_TWO: usize = 4;

#[tokio::test]
async fn gangs_outlive_what_befalls_their_nodes() {
    let test = "gangs_outlive_what_befalls_their_nodes";
    let Some(kubectl) = Tool::Kubectl.or_skip(test) else {
        return;
    };
    let options = MemberOptions {
        nodes: 3,
        node_grace: Millis::seconds(10),
        ..MemberOptions::default()
    };
    let agent = AgentPlan {
        settings: "kubernetes: {nodeLostAfterSeconds: 1, machineGoneAfterSeconds: 1}\n".to_owned(),
        ..AgentPlan::default()
    };
    let Some(mut world) = RealNodes::start(test, options, &agent).await else {
        return;
    };
    world.scene("evicted", Box::pin(evicted(&world))).await;
    let drained = Box::pin(node_drained(&world, &kubectl));
    world.scene("node drained", drained).await;
    world
        .scene("namespace deleted", Box::pin(namespace_gone(&world)))
        .await;
    world
        .scene("cluster drained", Box::pin(cluster_drained(&world)))
        .await;
    kubelet_killed(&mut world).await;
    kubelet_paused(&world).await;
    let lost = Box::pin(elastic_node_lost(&mut world)).await;
    rigid_node_lost(&mut world, &lost).await;
    world.end(&[]).await;
}

#[tokio::test]
async fn a_member_whose_machine_was_taken_away_is_replaced_near_by() {
    let test = "a_member_whose_machine_was_taken_away_is_replaced_near_by";
    let options = MemberOptions {
        nodes: 4,
        nodes_per_rack: 3,
        ..MemberOptions::default()
    };
    let agent = AgentPlan {
        settings: "kubernetes: {machineGoneAfterSeconds: 5}\n".to_owned(),
        ..AgentPlan::default()
    };
    let Some(mut world) = RealNodes::start(test, options, &agent).await else {
        return;
    };
    let elasticity = json!({"role": "worker", "min": 1, "max": 2});
    let in_one_rack = json!([{"role": "worker", "required": "rack"}]);
    let job = world.saving("swapped", 2, CARDS);
    let job = job.with("/spec/elasticity", elasticity);
    world.submit(job.with("/spec/topology", in_one_rack)).await;
    let runs = world.runs("swapped", 2).await;
    let whole = Box::pin(member_replaced(&mut world, &runs)).await;
    Box::pin(no_room_in_the_rack(&mut world, &whole)).await;
    world.delete("swapped").await;
    world.end(&[]).await;
}

/// Its rank goes on from its checkpoint on the one node of the rack that is left, under the same
/// epoch, after the lost one has ended; nobody else is touched. Returns who runs then.
async fn member_replaced(world: &mut RealNodes, before: &[Run]) -> Vec<Run> {
    saved(world, &before[1]).await;
    let stays = node_of(world, &before[0]).await;
    let lost = node_of(world, &before[1]).await;
    // The cluster has not even noticed: the word of who switched it off is what counts.
    lose(world, &lost).await;
    machine_is_off(world, &lost).await;
    let replaced = async || {
        let alive = world.alive("swapped");
        let other = alive.get(1)?.pod != before[1].pod;
        (alive.len() == 2 && other).then_some(alive)
    };
    let after = world.until("another has its rank", replaced).await;
    assert_eq!(after[0].pod, before[0].pod, "who is left is not touched");
    let ranks = |runs: &[Run]| runs.iter().map(|run| run.rank).collect::<Vec<_>>();
    assert_eq!(ranks(&after), ranks(before));
    let of = |run: &Run| (run.epoch, run.world);
    assert!(
        after.iter().all(|run| of(run) == of(&before[0])),
        "{after:?}"
    );
    assert!(resumes(&after[1..]), "{after:?}");
    let truth = world.member.truth();
    let old = truth.runs().iter().find(|run| run.pod == before[1].pod);
    assert!(old.expect("it ran").to < after[1].from, "{old:?} {after:?}");
    let rack = ["node-0", "node-1", "node-2"].into_iter();
    let mut spare = rack.filter(|name| *name != stays && *name != lost);
    let new = node_of(world, &after[1]).await;
    assert_eq!(
        Some(new.as_str()),
        spare.next(),
        "the other rack is as free"
    );
    let pods = async || (world.made_for("swapped").await.len() == OBJECTS_OF_TWO).then_some(());
    world.until("nothing of the lost one is left", pods).await;
    after
}

/// With no node of the rack left for another, the gang goes on smaller and does not wait.
async fn no_room_in_the_rack(world: &mut RealNodes, before: &[Run]) {
    let lost = node_of(world, &before[1]).await;
    lose(world, &lost).await;
    machine_is_off(world, &lost).await;
    Box::pin(holds(world, "swapped", CARDS)).await;
    let left = world.runs("swapped", 1).await;
    assert_eq!(left[0].pod, before[0].pod);
}

/// True when a placement goes on from what an older one saved.
fn resumes(runs: &[Run]) -> bool {
    runs.iter().all(|run| run.first_step > 0)
}

/// User code obeys SIGTERM and ends with 0, which is not that its work is done.
async fn evicted(world: &RealNodes) {
    world.submit(world.saving("alone", 1, 1)).await;
    world.submit(world.saving("pair", 2, 1)).await;
    let alone = world.runs("alone", 1).await;
    let pair = world.runs("pair", 2).await;
    for run in [&alone[0], &pair[1]] {
        saved(world, run).await;
        let evicted = world.pods().evict(&run.name, &EvictParams::default()).await;
        evicted.expect("evicted");
    }
    let again = world.runs_above("alone", 1, alone[0].epoch).await;
    assert!(resumes(&again), "{again:?}");
    let again = world.runs_above("pair", 2, pair[0].epoch).await;
    assert!(resumes(&again), "{again:?}");
    world.delete("alone").await;
    world.delete("pair").await;
}

/// Waits until a run has written a checkpoint.
async fn saved(world: &RealNodes, run: &Run) {
    let checkpoint = async || {
        let truth = world.member.truth();
        let steps = truth.runs().iter().find(|known| known.pod == run.pod)?;
        // Five steps a second, and a checkpoint after each second or third.
        (steps.last_step > 5).then_some(())
    };
    world.until("it has saved", checkpoint).await;
}

/// The node of a run, as the API has it.
async fn node_of(world: &RealNodes, run: &Run) -> String {
    let pod = world.pods().get(&run.name).await.expect("it is there");
    pod.spec.and_then(|spec| spec.node_name).expect("bound")
}

async fn node_drained(world: &RealNodes, kubectl: &std::path::Path) {
    world.submit(world.saving("moved", 2, CARDS)).await;
    let runs = world.runs("moved", 2).await;
    let node = node_of(world, &runs[0]).await;
    let other = node_of(world, &runs[1]).await;
    let nodes = ["node-0", "node-1", "node-2"].into_iter();
    let mut free = nodes.filter(|name| *name != node && *name != other);
    let free = free.next().expect("one of three");
    // Closed to new pods, the third node is none for a gang; what runs elsewhere does not care.
    world
        .patch_node(free, json!({"spec": {"unschedulable": true}}))
        .await;
    world.fleet.gpus_counted(0).await;
    world.submit(world.job("waits", 1, CARDS)).await;
    world.says("waits", &["WaitingForCapacity"]).await;
    still(world, &runs).await;
    world.delete("waits").await;
    world
        .patch_node(free, json!({"spec": {"unschedulable": null}}))
        .await;

    saved(world, &runs[0]).await;
    let drain = [
        "drain",
        &node,
        "--force",
        "--ignore-daemonsets",
        "--delete-emptydir-data",
    ];
    world.kubectl(kubectl, &drain).await;
    let again = world.runs_above("moved", 2, runs[0].epoch).await;
    assert!(resumes(&again), "{again:?}");
    for run in &again {
        assert_ne!(node_of(world, run).await, node);
    }
    world.kubectl(kubectl, &["uncordon", &node]).await;
    world.delete("moved").await;
}

/// The same runs must still run.
async fn still(world: &RealNodes, runs: &[Run]) {
    let job = &runs[0].job;
    let now = world.runs(job, runs.len()).await;
    let pods = |runs: &[Run]| runs.iter().map(|run| run.pod.clone()).collect::<Vec<_>>();
    assert_eq!(pods(&now), pods(runs), "nobody touched {job}");
}

async fn namespace_gone(world: &RealNodes) {
    world.submit(world.saving("homeless", 2, CARDS)).await;
    let runs = world.runs("homeless", 2).await;
    saved(world, &runs[0]).await;
    let namespaces: Api<Namespace> = Api::all(world.member.client());
    let deleted = namespaces.delete(NAMESPACE, &DeleteParams::default()).await;
    deleted.expect("deleted");
    let again = world.runs_above("homeless", 2, runs[0].epoch).await;
    assert!(resumes(&again), "{again:?}");
    world.delete("homeless").await;
}

async fn cluster_drained(world: &RealNodes) {
    world.submit(world.saving("rests", 2, CARDS)).await;
    let runs = world.runs("rests", 2).await;
    saved(world, &runs[0]).await;
    let drain = ["cluster", "drain", "eu-a", "--yes", "--wait"];
    world.fleet.meridian(drain).await.succeeded();
    assert_eq!(world.alive("rests"), [], "what is drained does not run");
    // Empty is said once nothing runs; what is left of it goes after that.
    let nothing_left = async || world.made_for("rests").await.is_empty().then_some(());
    world.until("nothing of it is left", nothing_left).await;
    world.says("rests", &["ClusterCordoned"]).await;
    let uncordon = ["cluster", "uncordon", "eu-a"];
    world.fleet.meridian(uncordon).await.succeeded();
    let again = world.runs_above("rests", 2, runs[0].epoch).await;
    assert!(resumes(&again), "{again:?}");
    world.delete("rests").await;
}

/// A kubelet that dies and comes back finds its containers as they were.
async fn kubelet_killed(world: &mut RealNodes) {
    world.submit(world.job("steady", 3, CARDS)).await;
    let runs = world.runs("steady", 3).await;
    let RealNodes { member, .. } = world;
    let clock = member.harness().clock().clone();
    let begun = clock.boot();
    let harness = meridian_e2e::process::Harness::new();
    let node = &mut member.nodes_mut()[0];
    node.kill_kubelet().await.expect("it ran");
    node.start_kubelet(&harness).await.expect("it starts");
    still(world, &runs).await;
    world.delete("steady").await;
    eprintln!("  kubelet killed: {}", clock.boot().since(begun));
}

/// A node that is silent is no proof of anything: its rank may run, so no other placement starts.
async fn kubelet_paused(world: &RealNodes) {
    world.submit(world.saving("silent", 3, CARDS)).await;
    let runs = world.runs("silent", 3).await;
    saved(world, &runs[0]).await;
    let node = node_of(world, &runs[2]).await;
    let nodes = world.member.nodes();
    let silent = nodes.iter().find(|known| known.name() == node);
    let silent = silent.expect("one of them");
    silent.pause_kubelet().expect("it runs");
    let one_left = async || {
        let alive = world.alive("silent");
        let [last] = alive.as_slice() else {
            return None;
        };
        (last.pod == runs[2].pod).then_some(())
    };
    world
        .until("only the rank on the silent node is left", one_left)
        .await;
    silent.resume_kubelet().expect("it is there");
    let again = world.runs_above("silent", 3, runs[0].epoch).await;
    assert!(resumes(&again), "{again:?}");
    world.delete("silent").await;
}

/// An elastic gang goes on with those that are left, under its epoch. Returns the node that died.
async fn elastic_node_lost(world: &mut RealNodes) -> String {
    let elasticity = json!({"role": "worker", "min": 1, "max": 3});
    let job = world.saving("elastic", 3, CARDS);
    world.submit(job.with("/spec/elasticity", elasticity)).await;
    let runs = world.runs("elastic", 3).await;
    let lost = node_of(world, &runs[2]).await;
    lose(world, &lost).await;
    Box::pin(holds(world, "elastic", 2 * CARDS)).await;
    let left = world.alive("elastic");
    let pods: Vec<&str> = left.iter().map(|run| run.pod.as_str()).collect();
    assert_eq!(pods, [runs[0].pod.as_str(), runs[1].pod.as_str()]);
    world.ask_delete("elastic").await;
    machine_is_off(world, &lost).await;
    world.gone("elastic").await;
    lost
}

/// Waits until the hub says that a job holds so many cards.
async fn holds(world: &RealNodes, job: &str, cards: u32) {
    let held = async || {
        let status = world.says(job, &["gpus"]).await;
        let gpus = &status["gpus"];
        let gpus = gpus
            .as_str()
            .map_or_else(|| gpus.to_string(), str::to_owned);
        (gpus == cards.to_string()).then_some(())
    };
    Box::pin(world.until("it holds what is left", held)).await;
}

/// An operator removes the node's object: nothing runs on that machine, and nothing will.
async fn machine_is_off(world: &RealNodes, node: &str) {
    let deleted = world.nodes().delete(node, &DeleteParams::default()).await;
    deleted.expect("it is there");
}

async fn lose(world: &mut RealNodes, name: &str) {
    let mut nodes = world.member.nodes_mut().iter_mut();
    let node = nodes.find(|known| known.name() == name);
    node.expect("one of them").lose().await.expect("it ran");
}

/// A rigid gang ends with its node, and once its operator says that the machine is off, goes on
/// from its checkpoint elsewhere.
async fn rigid_node_lost(world: &mut RealNodes, before: &str) {
    world.submit(world.saving("rigid", 2, CARDS / 2)).await;
    let runs = world.runs("rigid", 2).await;
    saved(world, &runs[0]).await;
    let lost = node_of(world, &runs[0]).await;
    assert_ne!(lost, before);
    lose(world, &lost).await;
    machine_is_off(world, &lost).await;
    let again = world.runs_above("rigid", 2, runs[0].epoch).await;
    assert!(resumes(&again), "{again:?}");
    world.delete("rigid").await;
}
