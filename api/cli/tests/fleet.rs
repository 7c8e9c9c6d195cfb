//! The real command against a small hub: reading what runs, and looking after clusters.
//!
//! Owns the promises of `logs`, `cluster` and `top`: what goes where, and exit codes.

mod fake_hub;

use fake_hub::{CLUSTERS, FakeHub, JOBS};
use serde_json::{Value, json};

fn job(name: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "meridian.dev/v1alpha1", "kind": "FederatedJob",
        "metadata": {"name": name, "namespace": "nlp", "resourceVersion": "1",
                     "uid": "0ee7bc60-0e6e-4d5c-8c7a-000000000001"},
        "spec": {"workloadClass": "batch", "roles": [
            {"name": "worker", "replicas": 2, "gpus": 8, "template": {}},
        ]},
        "status": {"phase": phase},
    })
}

#[tokio::test]
async fn logs_are_handed_on_as_they_are() {
    let hub = FakeHub::start().await;
    let ran = hub
        .run(&[
            "logs", "job/a", "-n", "nlp", "--role", "worker", "--tail", "7",
        ])
        .await;
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""));
    assert_eq!(ran.out, "worker step 0\nstep 7\n");
}

#[tokio::test]
async fn lines_of_all_pods_begin_with_their_pod() {
    let hub = FakeHub::start().await;
    hub.put(&format!("{JOBS}/a"), job("a", "Running"));
    let ran = hub.run(&["logs", "a", "-n", "nlp", "--all"]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let mut lines: Vec<&str> = ran.out.lines().collect();
    lines.sort_unstable();
    let wanted = [
        "worker-0: step 0",
        "worker-0: worker step 0",
        "worker-1: step 0",
        "worker-1: worker step 1",
    ];
    assert_eq!(lines, wanted);
    let wrong = ["logs", "a", "-n", "nlp", "--all", "--role", "ps"];
    let ran = hub.run(&wrong).await;
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("has no role \"ps\""), "{}", ran.err);
}

#[tokio::test]
async fn what_cannot_be_read_is_said_with_what_to_do() {
    let hub = FakeHub::start().await;
    let ran = hub.run(&["logs", "waiting", "-n", "nlp"]).await;
    assert_eq!((ran.code, ran.out.as_str()), (Some(6), ""));
    assert!(ran.err.contains("E5030"), "{}", ran.err);
    assert!(
        ran.err.contains("meridian why waiting -n nlp"),
        "{}",
        ran.err
    );
}

#[tokio::test]
async fn following_to_the_end_ends_as_the_job_does() {
    let hub = FakeHub::start().await;
    let failed = job("a", "Failed");
    hub.put(&format!("{JOBS}/a"), failed);
    let ran = hub
        .run(&["logs", "a", "-n", "nlp", "-f", "--follow-exit"])
        .await;
    assert_eq!(ran.code, Some(30), "{}", ran.err);
    assert_eq!(ran.out, " step 0\nstep 0\n", "data alone");
    assert!(ran.err.contains("job nlp/a: Failed"), "{}", ran.err);
}

async fn with_cluster() -> FakeHub {
    let hub = FakeHub::start().await;
    let cluster = json!({
        "apiVersion": "meridian.dev/v1alpha1", "kind": "MemberCluster",
        "metadata": {"name": "euw-a", "resourceVersion": "1"},
        "spec": {"region": "eu-west", "backend": "Simulated"},
        "status": {"contact": "Ready", "gpus": {"total": 64, "free": 48, "out": 0}},
    });
    hub.put(&format!("{CLUSTERS}/euw-a"), cluster);
    hub
}

fn spec(hub: &FakeHub) -> Value {
    let stored = hub.object(&format!("{CLUSTERS}/euw-a"));
    stored.expect("it is there")["spec"].clone()
}

#[tokio::test]
async fn a_drain_says_what_moves_and_asks_before_it_does() {
    let hub = with_cluster().await;
    let ran = hub.run(&["cluster", "drain", "euw-a"]).await;
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
    assert!(ran.err.contains("nlp/llm"), "{}", ran.err);
    assert!(ran.err.contains("2 gangs with 16 GPUs"), "{}", ran.err);
    assert!(ran.err.contains("repeat with -y"), "{}", ran.err);
    let dry = hub.run(&["cluster", "drain", "euw-a", "--dry-run"]).await;
    assert_eq!(dry.code, Some(0), "{}", dry.err);
    assert_eq!(
        dry.out,
        "membercluster.meridian.dev/euw-a drained (dry run)\n"
    );
    assert_eq!(spec(&hub).get("drained"), None, "nothing was sent");

    let args = [
        "cluster",
        "drain",
        "euw-a",
        "-y",
        "--wait",
        "--timeout",
        "30s",
    ];
    let ran = hub.run(&args).await;
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let label = "membercluster.meridian.dev/euw-a";
    assert_eq!(ran.out, format!("{label} drained\n{label} empty\n"));
    assert_eq!(spec(&hub)["drained"], true);
    assert_eq!(spec(&hub)["cordoned"], true);
    let again = hub.run(&["cluster", "drain", "euw-a"]).await;
    assert_eq!(
        again.out,
        format!("{label} already drained\n"),
        "no question"
    );

    let ran = hub.run(&["cluster", "uncordon", "euw-a"]).await;
    assert_eq!(ran.out, format!("{label} uncordoned\n"));
    assert_eq!(spec(&hub)["drained"], false);
    assert_eq!(spec(&hub)["cordoned"], false);
    let missing = hub.run(&["cluster", "drain", "nowhere", "-y"]).await;
    assert_eq!(missing.code, Some(5), "{}", missing.err);
}

#[tokio::test]
async fn a_drain_that_may_not_end_in_time_says_what_is_left() {
    let hub = with_cluster().await;
    let args = [
        "cluster",
        "drain",
        "euw-a",
        "-y",
        "--grace",
        "1s",
        "--wait",
        "--timeout",
        "1s",
    ];
    let ran = hub.run(&args).await;
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let label = "membercluster.meridian.dev/euw-a";
    let wanted = format!("{label} cordoned\n{label} drained\n{label} empty\n");
    assert_eq!(ran.out, wanted, "closed first, drained after the grace");
}

#[tokio::test]
async fn clusters_are_shown_to_people_and_programs() {
    let hub = with_cluster().await;
    let ran = hub.run(&["cluster", "list"]).await;
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.starts_with("NAME"), "{}", ran.out);
    assert!(ran.out.contains("euw-a   eu-west   Open"), "{}", ran.out);
    let ran = hub.run(&["cluster", "list", "-o", "json"]).await;
    let list: Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!(list["items"][0]["metadata"]["name"], "euw-a");
    let ran = hub.run(&["cluster", "describe", "euw-a"]).await;
    assert!(ran.out.contains("Gangs (2, 16 GPUs):"), "{}", ran.out);
    let ran = hub
        .run(&["cluster", "describe", "euw-a", "-o", "yaml"])
        .await;
    assert!(ran.out.contains("gangsTotal: 2"), "{}", ran.out);
    let ran = hub.run(&["cluster", "describe", "nowhere"]).await;
    assert_eq!(ran.code, Some(5));
    let ran = hub.run(&["top", "-o", "json"]).await;
    let top: Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!((&top["kind"], &top["pools"]), (&json!("Top"), &json!([])));
}
