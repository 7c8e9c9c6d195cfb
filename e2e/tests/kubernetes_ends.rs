//! How gangs end on real nodes by what is in their containers, or under them.
//!
//! Owns the promise that an exit code, an image that cannot be had and a broken GPU are told as the
//! kubelets tell them, and that what follows is what the job says. What ran is read from what the
//! containers wrote.

use std::collections::BTreeSet;

use meridian_e2e::deployment::AgentPlan;
use meridian_e2e::member::{MemberOptions, trainer};
use meridian_e2e::real_nodes::RealNodes;
use serde_json::json;

/// Cards of each node.
const CARDS: u32 = 8;
/// A container of the job's template.
const CONTAINER: &str = "/spec/roles/0/template/spec/containers/0";

#[tokio::test]
async fn gangs_end_as_their_containers_do() {
    let test = "gangs_end_as_their_containers_do";
    let (options, agent) = (MemberOptions::default(), AgentPlan::default());
    let Some(world) = RealNodes::start(test, options, &agent).await else {
        return;
    };
    world.scene("crashes", Box::pin(crashes(&world))).await;
    world
        .scene("no such image", Box::pin(no_such_image(&world)))
        .await;
    world
        .scene("broken GPU", Box::pin(gpu_breaks(&world)))
        .await;
    world.end(&[]).await;
}

/// It starts again as often as it may, and then has failed with its exit code.
async fn crashes(world: &RealNodes) {
    let ends = [(trainer::RUN_FOR, "600"), (trainer::EXIT_CODE, "7")];
    let job = world.job("crashes", 2, 1).trains(&world.member, &ends);
    let retry = json!({"maxRestarts": 1, "backOff": {"initial": "100ms", "limit": "1s"}});
    world.submit(job.with("/spec/retry", retry)).await;
    let failed = r#""phase":"Failed""#;
    world.says("crashes", &[failed, "exit code 7"]).await;
    let truth = world.member.truth();
    let runs = truth.runs().iter().filter(|run| run.job == "crashes");
    let epochs: BTreeSet<u64> = runs.map(|run| run.epoch).collect();
    assert_eq!(epochs.len(), 2, "once, and once more: {epochs:?}");
    world.delete("crashes").await;
}

/// While it waits for the image, the job says what the kubelet says.
async fn no_such_image(world: &RealNodes) {
    let image = format!("{CONTAINER}/image");
    let job = world.job("no-image", 2, 1);
    world
        .submit(job.with(&image, json!("registry.invalid/none:1")))
        .await;
    world.says("no-image", &["ErrImageNeverPull"]).await;
    assert_eq!(world.alive("no-image"), []);
    world.delete("no-image").await;
    let truth = world.member.truth();
    assert!(truth.runs().iter().all(|run| run.job != "no-image"));
}

/// A GPU breaks under a container that runs on: the gang goes on from its checkpoint elsewhere.
async fn gpu_breaks(world: &RealNodes) {
    world.submit(world.saving("faulty", 1, CARDS)).await;
    let runs = world.runs("faulty", 1).await;
    let saved = async || {
        let alive = world.alive("faulty");
        alive.first().filter(|run| run.last_step > 5).map(drop)
    };
    world.until("it has saved", saved).await;
    let pod = world.pods().get(&runs[0].name).await.expect("it is there");
    let node = pod.spec.and_then(|spec| spec.node_name).expect("bound");
    let mut nodes = world.member.nodes().iter();
    let broken = nodes.find(|known| known.name() == node).expect("a node");
    broken.gpus().set_healthy(3, false);
    let again = world.runs_above("faulty", 1, runs[0].epoch).await;
    assert!(again[0].first_step > 0, "{again:?}");
    let pod = world.pods().get(&again[0].name).await;
    let other = pod
        .expect("it is there")
        .spec
        .and_then(|spec| spec.node_name);
    assert!(other.is_some_and(|other| other != node));
    world.delete("faulty").await;
    broken.gpus().set_healthy(3, true);
    world.fleet.gpus_counted(2 * u64::from(CARDS)).await;
}
