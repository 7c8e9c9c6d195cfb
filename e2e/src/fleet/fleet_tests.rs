//! A federation survives the crash of its hub and of an agent.

use std::path::Path;

use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::kinds::federated_job::status::Phase;
use meridian_api::units::UnixMillis;
use meridian_client::{DryRun, Submission};
use meridian_policies::record;
use serde_json::json;

use super::*;

fn options(clock: &Clock) -> FleetOptions {
    let class = json!({"priority": 1, "mayUse": ["Nominal"]});
    let objects = vec![
        object("WorkloadClass", "batch", class),
        object("Tenant", "team", json!({})),
    ];
    FleetOptions::small(clock, vec![FleetRegion::of_one("here-a", 2, 8)], objects)
}

async fn phase(client: &Client) -> Phase {
    let job = client.get_as::<FederatedJobSpec>("team", "job").await;
    job.expect("it is there").status.unwrap_or_default().phase
}

async fn until(clock: &Clock, client: &Client, wanted: Phase) {
    let reached = async {
        while phase(client).await != wanted {
            clock.sleep(Millis::seconds(1)).await;
        }
    };
    let reached = clock.timeout(Millis::seconds(600), reached).await;
    reached.unwrap_or_else(|late| panic!("{late}: {wanted}"));
}

fn submission() -> Submission {
    let job = json!({
        "apiVersion": "meridian.dev/v1alpha1", "kind": "FederatedJob",
        "metadata": {"name": "job", "namespace": "team"},
        "spec": {
            "workloadClass": "batch",
            "roles": [{
                "name": "worker", "replicas": 2, "gpus": 8,
                "resources": {"cpu": "8", "memory": "64Gi"},
                "template": {"metadata": {"annotations": {
                    "meridian.dev/simulated-runtime": "300s",
                }}},
            }],
        },
    });
    Submission {
        job,
        idempotency_key: "job".to_owned(),
        dry_run: DryRun::No,
        plan_token: String::new(),
    }
}

/// Files of a folder of recorded rounds, oldest first.
fn rounds(folder: &Path) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(folder).expect("a readable folder");
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.sort();
    let read = |path: std::path::PathBuf| std::fs::read(path).expect("a readable round");
    paths.into_iter().map(read).collect()
}

#[tokio::test(start_paused = true)]
async fn a_recorded_round_replays_equal() {
    let folder = tempfile::tempdir().expect("a folder");
    let clock = Clock::simulated(UnixMillis(1_700_000_000_000));
    let mut options = options(&clock);
    options.hubs[0].record_rounds = Some(folder.path().to_owned());
    let mut fleet = Fleet::start(options).await.expect("it starts");
    let client = fleet.client(0).expect("a client");
    client.submit(submission()).await.expect("it is stored");
    until(&clock, &client, Phase::Running).await;
    fleet.stop().await.expect("everybody stops");

    let files = rounds(folder.path());
    let read = |bytes: &Vec<u8>| record::read(bytes).expect("as it was written");
    let recorded: Vec<_> = files.iter().map(read).collect();
    let placed = |round: &record::Recorded| round.plan.placements.len();
    assert_eq!(recorded.iter().map(placed).sum::<usize>(), 1);
    for round in &recorded {
        assert_eq!(round.replay(), [], "the same code decides the same");
    }
    let at = recorded.iter().position(|round| placed(round) == 1);
    let text = String::from_utf8(files[at.expect("one placed it")].clone()).expect("JSON");
    // The host of the placement, in a file that somebody has changed.
    let changed = text.replacen("\"rack", "\"sack", 1);
    assert_ne!(changed, text);
    let refused = record::read(changed.as_bytes()).expect_err("it was changed");
    assert!(
        matches!(refused, record::RecordError::Changed { .. }),
        "{refused}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_outlives_the_crash_of_hub_and_agent() {
    let clock = Clock::simulated(UnixMillis(1_700_000_000_000));
    let mut fleet = Fleet::start(options(&clock)).await.expect("it starts");
    let client = fleet.client(0).expect("a client");
    client.submit(submission()).await.expect("it is stored");
    until(&clock, &client, Phase::Running).await;

    fleet.crash_hub(0).await.expect("it ran");
    fleet.crash_agent("here-a").await.expect("it ran");
    assert!(fleet.hub(0).is_err());
    fleet.start_hub(0).await.expect("it starts again");
    fleet.start_agent("here-a").await.expect("it starts again");
    fleet
        .led()
        .await
        .expect("the lease of its former life ends");
    fleet.attached().await.expect("the agent finds it");

    let client = fleet.client(0).expect("a client");
    until(&clock, &client, Phase::Succeeded).await;
    let cluster = fleet.cluster("here-a").expect("it is there");
    let truth = cluster.history(clock.wall());
    // Two pods started once and ended once: nothing was started again.
    assert_eq!(truth.len(), 4, "{truth:?}");
    fleet.stop().await.expect("everybody stops");
}
