//! What user code tells the agent of its cluster: its checkpoints, for itself alone.
//!
//! Owns the promise that a checkpoint reported by one local call is in the status of the job, and
//! that nobody can report for another pod. The calls come from containers on real nodes.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_client::{Form, Resource};
use meridian_e2e::deployment::{AgentPlan, Deployment, JobBuilder, LONG, NAMESPACE};
use meridian_e2e::member::answer::saved;
use meridian_e2e::member::{MemberCluster, MemberOptions, trainer};
use serde_json::json;

/// The value of a variable of a pod's first container.
fn variable(pod: &Pod, name: &str) -> String {
    let spec = pod.spec.as_ref().expect("it has a spec");
    let mut env = spec.containers[0].env.iter().flatten();
    let found = env.find(|variable| variable.name == name);
    let value = found.and_then(|variable| variable.value.clone());
    value.unwrap_or_else(|| panic!("no {name}"))
}

#[tokio::test]
async fn a_checkpoint_told_by_call_is_in_the_jobs_status() {
    let test = "a_checkpoint_told_by_call_is_in_the_jobs_status";
    let Some(options) = MemberOptions::default().or_skip(test) else {
        return;
    };
    let gpus = u64::from(options.nodes) * u64::from(options.gpus_per_node);
    let member = MemberCluster::start(options).await;
    let member = member.unwrap_or_else(|error| panic!("{error}"));
    let fleet = Box::pin(Deployment::over(&member, &AgentPlan::default(), gpus)).await;
    let job = JobBuilder::new("saves")
        .pods(2, 8)
        .trains(&member, &[(trainer::CHECKPOINT_EVERY, "1500")])
        .with(
            "/spec/checkpoint",
            json!({"uri": "file:///heartbeats/saves"}),
        );
    let file = fleet.file("saves.yaml", &job.text()).display().to_string();
    fleet.meridian(["submit", "-f", &file]).await.succeeded();

    // The job runs, so its last words are not read: what is known came by the call.
    let kind = Resource::of::<FederatedJobSpec>();
    let client = fleet.client();
    let last = async || {
        let job = client
            .get(&kind, NAMESPACE, "saves", Form::Objects)
            .await
            .ok()?;
        let last = job.pointer("/status/checkpoint/lastTime")?.as_str()?;
        (job["status"]["phase"] == "Running").then(|| last.to_owned())
    };
    let first = fleet
        .until("a checkpoint is in the status", LONG, last)
        .await;
    let later = async || last().await.filter(|last| *last > first);
    fleet.until("a later one is", LONG, later).await;

    // Each pod is believed for itself, by its own token.
    let pods: Api<Pod> = Api::namespaced(member.client(), NAMESPACE);
    let pods = pods
        .list(&ListParams::default())
        .await
        .expect("listed")
        .items;
    let url = |pod: usize| variable(&pods[pod], "MERIDIAN_AGENT_URL");
    let token = |pod: usize| variable(&pods[pod], "MERIDIAN_AGENT_TOKEN");
    let at = "2026-01-01T00:00:00Z";
    let refused = ["HTTP/1.1 401 Unauthorized"; 3];
    let other = saved(&url(0), &token(1), at).expect("answered");
    let guessed = saved(&url(0), &"0".repeat(64), at).expect("answered");
    let nobody = url(0).replace(&format!("/{NAMESPACE}/"), "/default/");
    let nobody = saved(&nobody, &token(0), at).expect("answered");
    assert_eq!([other, guessed, nobody], refused);
    let annotations = pods[0].metadata.annotations.as_ref().expect("it has some");
    assert!(
        !annotations.values().any(|value| *value == token(0)),
        "kept as a hash"
    );

    assert_eq!(fleet.errors(&[]), [] as [String; 0]);
    member.stop().await.expect("nothing is left");
}
