//! Logs from a simulated pod to a reader, through an agent and a hub, on simulated time.
//!
//! Owns the promise that what a pod did is what a person reads, as it happens, and that what
//! cannot be read is said at once. Never looks inside a hub.

use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::kinds::federated_job::status::Phase;
use meridian_api::units::{Millis, UnixMillis};
use meridian_client::{Client, DryRun, Submission, v1};
use meridian_e2e::fleet::{Fleet, FleetOptions, FleetRegion, object};
use meridian_runtime::Clock;
use serde_json::json;

const WITHIN: Millis = Millis::seconds(600);
/// Streams of one cluster that a hub allows.
const PER_CLUSTER: usize = 64;

async fn fleet(clock: &Clock) -> Fleet {
    let objects = vec![
        object("WorkloadClass", "batch", json!({"priority": 1})),
        object("Tenant", "team", json!({})),
    ];
    let regions = vec![FleetRegion::of_one("here-a", 2, 8)];
    let options = FleetOptions::small(clock, regions, objects);
    Fleet::start(options).await.expect("it starts")
}

/// Submits a job of `pods` hosts that runs for `runtime`.
async fn submit(client: &Client, name: &str, pods: u32, runtime: &str) {
    let mut job = object(
        "FederatedJob",
        name,
        json!({
            "workloadClass": "batch",
            "roles": [{
                "name": "worker", "replicas": pods, "gpus": 8,
                "resources": {"cpu": "8", "memory": "64Gi"},
                "template": {"metadata": {"annotations": {
                    "meridian.dev/simulated-runtime": runtime,
                }}},
            }],
        }),
    );
    job["metadata"]["namespace"] = json!("team");
    let submission = Submission {
        job,
        idempotency_key: name.to_owned(),
        dry_run: DryRun::No,
        plan_token: String::new(),
    };
    client.submit(submission).await.expect("it is stored");
}

async fn until(clock: &Clock, client: &Client, name: &str, wanted: Phase) {
    let reached = async {
        loop {
            let job = client.get_as::<FederatedJobSpec>("team", name).await;
            let phase = job.expect("it is there").status.unwrap_or_default().phase;
            if phase == wanted {
                return;
            }
            clock.sleep(Millis::seconds(1)).await;
        }
    };
    let reached = clock.timeout(WITHIN, reached).await;
    reached.unwrap_or_else(|late| panic!("{late}: {wanted}"));
}

fn request(name: &str, follow: bool) -> v1::LogsRequest {
    v1::LogsRequest {
        namespace: "team".to_owned(),
        name: name.to_owned(),
        gang: 0,
        query: Some(v1::LogQuery {
            follow,
            ..v1::LogQuery::default()
        }),
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_read_as_it_runs_to_its_end() {
    let clock = Clock::simulated(UnixMillis(1_700_000_000_000));
    let mut fleet = fleet(&clock).await;
    let client = fleet.client(0).expect("a client");
    submit(&client, "job", 2, "45s").await;
    until(&clock, &client, "job", Phase::Running).await;
    let mut text = client.logs(request("job", true)).await.expect("it runs");
    let mut read = Vec::new();
    let all = async {
        while let Some(part) = text.next().await.expect("the stream holds") {
            read.extend_from_slice(&part);
        }
    };
    clock.timeout(WITHIN, all).await.expect("it ends");
    let read = String::from_utf8(read).expect("text");
    let lines: Vec<&str> = read.lines().collect();
    assert!(lines[0].starts_with("started on "), "{read}");
    assert_eq!(lines[1..5], ["step 1", "step 2", "step 3", "step 4"]);
    until(&clock, &client, "job", Phase::Succeeded).await;
    let gone = client.logs(request("job", false)).await.err();
    let gone = gone.expect("its pods are gone").to_string();
    assert!(gone.contains("has ended"), "{gone}");
    fleet.stop().await.expect("everybody stops");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_is_said_at_once() {
    let clock = Clock::simulated(UnixMillis(1_700_000_000_000));
    let mut fleet = fleet(&clock).await;
    let client = fleet.client(0).expect("a client");
    submit(&client, "runs", 2, "30m").await;
    until(&clock, &client, "runs", Phase::Running).await;
    submit(&client, "waits", 1, "30m").await;
    until(&clock, &client, "waits", Phase::Pending).await;
    let refused = async |request| {
        let failed = client.logs(request).await.err();
        failed.expect("refused").to_string()
    };
    assert!(
        refused(request("no", false))
            .await
            .contains("there is no job")
    );
    let waits = refused(request("waits", false)).await;
    assert!(waits.contains("waits for a place"), "{waits}");
    let mut other = request("runs", false);
    other.gang = 1;
    let no_gang = refused(other).await;
    assert!(no_gang.contains("its gangs are 0 to 0"), "{no_gang}");
    let mut other = request("runs", false);
    other.query.get_or_insert_default().rank = 2;
    let no_rank = refused(other).await;
    assert!(no_rank.contains("no rank 2"), "{no_rank}");

    // So many readers at once, and each that goes makes room for another.
    let mut readers = Vec::new();
    for _ in 0..PER_CLUSTER {
        readers.push(client.logs(request("runs", true)).await.expect("room"));
    }
    let full = refused(request("runs", true)).await;
    assert!(full.contains("64 logs of cluster here-a"), "{full}");
    readers.clear();
    let again = async {
        while client.logs(request("runs", true)).await.is_err() {
            clock.sleep(Millis::seconds(1)).await;
        }
    };
    clock
        .timeout(WITHIN, again)
        .await
        .expect("there is room again");

    fleet.crash_agent("here-a").await.expect("it ran");
    let silent = async {
        loop {
            let failed = refused(request("runs", false)).await;
            if failed.contains("here-a") {
                return failed;
            }
            clock.sleep(Millis::seconds(1)).await;
        }
    };
    let silent = clock.timeout(WITHIN, silent).await.expect("it is said");
    assert!(
        silent.contains("not attached") || silent.contains("not heard"),
        "{silent}"
    );
    fleet.stop().await.expect("everybody stops");
}
