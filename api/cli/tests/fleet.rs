//! The real command against a small hub: reading what runs, and looking after clusters.
//!
//! Owns the promises of `logs`, `cluster` and `top`: what goes where, and exit codes.

mod fake_hub;

use fake_hub::{FakeHub, JOBS};
use serde_json::{Value, json};

fn job(name: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "meridian.dev/v1alpha1", "kind": "FederatedJob",
        "metadata": {"name": name, "namespace": "nlp", "uid": "0ee7bc60-0e6e-4d5c-8c7a-000000000001",
                     "resourceVersion": "1"},
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
