//! Hub and agent killed without warning, again and again, while gangs start: nothing is lost and
//! nothing is doubled.
//!
//! Owns that promise for the embedded store, judged by what ran.

use futures::join;
use meridian_api::units::Millis;
use meridian_e2e::deployment::{Deployment, DeploymentPlan, JobBuilder, START};
use serde_json::Value;

/// Jobs of one test: the room is full many times over.
const JOBS: usize = 24;
/// Pods of each job.
const PODS: u32 = 2;
/// How long each pod runs.
const RUNTIME: Millis = Millis::seconds(1);
/// Kills in one test.
const KILLS: usize = 3;

/// Jobs of two pods, one on each of two hosts or both on one.
fn jobs() -> Vec<Value> {
    let job = |index| {
        JobBuilder::new(&format!("job-{index}"))
            .pods(PODS, 4)
            .runs("1s")
            .build()
    };
    (0..JOBS).map(job).collect()
}

async fn three_hosts() -> Deployment {
    let plan = DeploymentPlan {
        hosts: 3,
        ..DeploymentPlan::default()
    };
    Deployment::start(plan).await
}

async fn nothing_is_lost_or_doubled(fleet: &Deployment, jobs: &[meridian_api::ids::Uid]) {
    assert_eq!(jobs.len(), JOBS);
    fleet.jobs_succeeded(JOBS).await;
    fleet.gpus_counted(24).await;
    fleet.agents[0]
        .evidence()
        .each_ran_once(jobs, PODS, RUNTIME);
    assert_eq!(fleet.errors(&[]), [] as [String; 0]);
}

#[tokio::test]
async fn a_hub_killed_while_gangs_start_loses_and_doubles_nothing() {
    let mut fleet = three_hosts().await;
    let submitter = fleet.submitter();
    let kills = async {
        for _ in 0..KILLS {
            fleet.some_job_is("Starting").await;
            fleet.hubs[0].process.kill().await.expect("killed");
            fleet.hubs[0].start_again().await;
        }
    };
    let (jobs, ()) = join!(submitter.acknowledged(jobs()), kills);
    nothing_is_lost_or_doubled(&fleet, &jobs).await;
}

#[tokio::test]
async fn an_agent_killed_while_gangs_start_loses_and_doubles_nothing() {
    let mut fleet = three_hosts().await;
    let submitter = fleet.submitter();
    let kills = async {
        for _ in 0..KILLS {
            fleet.some_job_is("Starting").await;
            let agent = &mut fleet.agents[0].process;
            agent.kill().await.expect("killed");
            agent.start().expect("the binary starts");
            agent.line("attached", START).await.expect("it comes back");
        }
    };
    let (jobs, ()) = join!(submitter.acknowledged(jobs()), kills);
    nothing_is_lost_or_doubled(&fleet, &jobs).await;
}

#[tokio::test]
async fn hub_and_agent_killed_together_lose_and_double_nothing() {
    let mut fleet = three_hosts().await;
    let submitter = fleet.submitter();
    let kills = async {
        for _ in 0..KILLS {
            fleet.some_job_is("Starting").await;
            fleet.agents[0].process.kill().await.expect("killed");
            fleet.hubs[0].process.kill().await.expect("killed");
            fleet.agents[0].process.start().expect("the binary starts");
            fleet.hubs[0].start_again().await;
        }
    };
    let (jobs, ()) = join!(submitter.acknowledged(jobs()), kills);
    nothing_is_lost_or_doubled(&fleet, &jobs).await;
}
