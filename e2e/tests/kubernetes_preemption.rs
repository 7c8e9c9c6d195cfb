//! Room that gangs of a higher class get on real nodes: victims save their work, leave, and go on
//! from there; who will not leave is ended.
//!
//! Owns the promise with the real hub, a real API server and kubelets that run containers. What is
//! claimed is read from what the containers wrote.

use meridian_e2e::deployment::{AgentPlan, JobBuilder};
use meridian_e2e::member::truth::Run;
use meridian_e2e::member::{MemberOptions, trainer};
use meridian_e2e::real_nodes::RealNodes;
use serde_json::{Value, json};

/// Cards of each of the two nodes.
const CARDS: u32 = 8;

#[tokio::test]
async fn a_higher_class_gets_its_room_and_nobody_runs_twice() {
    let test = "a_higher_class_gets_its_room_and_nobody_runs_twice";
    let options = MemberOptions {
        gpus_per_node: 8,
        ..MemberOptions::default()
    };
    let Some(world) = RealNodes::start(test, options, &AgentPlan::default()).await else {
        return;
    };
    declare(&world).await;
    world
        .scene("saves", Box::pin(saves_and_resumes(&world)))
        .await;
    world.scene("stays", Box::pin(is_ended(&world))).await;
    world.end(&[]).await;
}

/// A class of which work goes with a notice of ten seconds, and one above it.
async fn declare(world: &RealNodes) {
    let class = |name: &str, spec: Value| {
        json!({
            "apiVersion": "meridian.dev/v1alpha1", "kind": "WorkloadClass",
            "metadata": {"name": name}, "spec": spec,
        })
    };
    let lower = json!({
        "priority": 10, "preemption": "CheckpointThenRequeue", "notice": "10s",
        "mayUse": ["Nominal", "Borrowed"],
    });
    let upper = json!({
        "priority": 20, "preemption": "Never", "mayUse": ["Nominal", "Borrowed"],
    });
    for (name, spec) in [("lower", lower), ("upper", upper)] {
        let text = class(name, spec).to_string();
        let file = world.fleet.file(&format!("class-{name}.yaml"), &text);
        let file = file.display().to_string();
        world
            .fleet
            .meridian(["apply", "-f", &file])
            .await
            .succeeded();
    }
}

fn of_class(job: JobBuilder, class: &str) -> JobBuilder {
    job.with("/spec/workloadClass", json!(class))
}

/// The victim goes with its checkpoint, waits while its room is used, and goes on from there.
async fn saves_and_resumes(world: &RealNodes) {
    world
        .submit(of_class(world.saving("train", 2, CARDS), "lower"))
        .await;
    let runs = world.runs("train", 2).await;
    saved(world, &runs[0]).await;
    world
        .submit(of_class(world.job("serve", 1, CARDS), "upper"))
        .await;
    world.runs("serve", 1).await;
    // All of it has gone, and it does not come back by halves.
    assert_eq!(world.alive("train"), []);
    world.says("train", &[r#""phase":"Pending""#]).await;
    world.delete("serve").await;
    let again = world.runs_above("train", 2, runs[0].epoch).await;
    assert!(again.iter().all(|run| run.first_step > 0), "{again:?}");
    world.delete("train").await;
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

/// One that ignores SIGTERM is ended at the deadline, and its room goes to whom it was freed for.
async fn is_ended(world: &RealNodes) {
    let deaf = [(trainer::IGNORE_TERM, "true")];
    let stubborn = JobBuilder::new("stubborn").pods(2, CARDS);
    let stubborn = stubborn.trains(&world.member, &deaf);
    world.submit(of_class(stubborn, "lower")).await;
    let runs = world.runs("stubborn", 2).await;
    // Of the same class, it waited first.
    world
        .submit(of_class(world.job("other", 2, CARDS), "lower"))
        .await;
    world.says("other", &["WaitingForCapacity"]).await;
    world
        .submit(of_class(world.job("urgent", 2, CARDS), "upper"))
        .await;
    world.runs("urgent", 2).await;
    let truth = world.member.truth();
    let stubborn = truth.runs().iter().filter(|run| run.job == "stubborn");
    let stubborn: Vec<&Run> = stubborn.collect();
    assert_eq!(stubborn.len(), runs.len(), "it did not start again");
    assert!(
        stubborn.iter().all(|run| !run.has_ended),
        "killed: {stubborn:?}"
    );
    assert!(truth.runs().iter().all(|run| run.job != "other"));
    for job in ["stubborn", "other", "urgent"] {
        world.delete(job).await;
    }
}
