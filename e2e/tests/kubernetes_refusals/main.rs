//! What a real cluster refuses: pods that are none, resources that nobody has, policies, webhooks
//! that say no or nothing, nodes that lie, labels that contradict, missing Secrets, an API that is
//! away.
//!
//! Owns the promise that the job says why, in the cluster's own words, that nothing is half done,
//! and that what has been mended is tried again by itself. What ran is read from what the
//! containers wrote.

mod gatekeeper;

use gatekeeper::{Gatekeeper, NAME, Says};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use meridian_e2e::deployment::{
    AgentPlan, CLUSTER, JobBuilder, NAMESPACE, START, cluster_document,
};
use meridian_e2e::member::{MemberOptions, TrainerPod};
use meridian_e2e::real_nodes::RealNodes;
use meridian_runtime::Tasks;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Cards of each of the two nodes.
const CARDS: u32 = 8;
/// Where a template of a job names the resources of its container.
const LIMITS: &str = "/spec/roles/0/template/spec/containers/0/resources";
/// The label by which a policy and a webhook of these scenes know whom to deny.
const DENIED: &str = "example.com/denied";

#[tokio::test]
async fn what_a_cluster_refuses_is_said_and_leaves_nothing() {
    let test = "what_a_cluster_refuses_is_said_and_leaves_nothing";
    let (options, agent) = (MemberOptions::default(), AgentPlan::default());
    let Some(mut world) = RealNodes::start(test, options, &agent).await else {
        return;
    };
    world.scene("not a pod", Box::pin(not_a_pod(&world))).await;
    world
        .scene("no such resource", Box::pin(no_such_resource(&world)))
        .await;
    world.scene("policy", Box::pin(policy(&world))).await;
    world
        .scene("nobody there", Box::pin(nobody_there(&world)))
        .await;
    world.scene("webhook", Box::pin(webhook(&world))).await;
    world
        .scene("node that lies", Box::pin(node_that_lies(&world)))
        .await;
    world
        .scene("labels", Box::pin(labels_that_contradict(&world)))
        .await;
    world
        .scene("missing secret", Box::pin(missing_secret(&world)))
        .await;
    api_server_away(&mut world).await;
    missing_here_and_not_there(&mut world).await;
    world.end(&[]).await;
}

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object of this kind")
}

/// What was made for it goes, if anything was; none of it ever ran.
async fn nothing_of(world: &RealNodes, job: &str) {
    // A gang's end is told once nothing of it can run; the objects around it are removed then.
    let nothing_left = async || world.made_for(job).await.is_empty().then_some(());
    let what = format!("nothing of {job} is left");
    world.until(&what, nothing_left).await;
    let truth = world.member.truth();
    assert!(truth.runs().iter().all(|run| run.job != job));
}

/// A job whose pods the API server takes for none has failed: another try would end the same.
async fn not_a_pod(world: &RealNodes) {
    let job = world.job("no-pod", 2, 1);
    let shouting = "/spec/roles/0/template/spec/containers/0/name";
    world.submit(job.with(shouting, json!("NOT-A-NAME"))).await;
    world
        .says(
            "no-pod",
            &["Failed", "NOT-A-NAME", "spec.containers[0].name"],
        )
        .await;
    nothing_of(world, "no-pod").await;
    world.delete("no-pod").await;

    let job = world.job("misspelt", 2, 1);
    let field = "/spec/roles/0/template/spec/tolerationz";
    world.submit(job.with(field, json!([]))).await;
    world.says("misspelt", &["Failed", "tolerationz"]).await;
    nothing_of(world, "misspelt").await;
    world.delete("misspelt").await;
}

/// A kubelet would run a pod without a resource that it never heard of.
async fn no_such_resource(world: &RealNodes) {
    let asks = |name: &str, resource: &str| {
        let limits = json!({"limits": {resource: "1"}});
        world.job(name, 1, 1).with(LIMITS, limits)
    };
    world.submit(asks("npu", "example.com/npu")).await;
    let words = ["DependencyMissing", "example.com/npu", "has 0", CLUSTER];
    world.says("npu", &words).await;
    nothing_of(world, "npu").await;
    world.delete("npu").await;
    world.submit(asks("unnamed", "npu")).await;
    world.says("unnamed", &["Failed", "npu"]).await;
    nothing_of(world, "unnamed").await;
    world.delete("unnamed").await;
}

/// A gang whose pods carry the label that is denied.
fn denied(world: &RealNodes, name: &str) -> JobBuilder {
    let labels = json!({"labels": {DENIED: "yes"}});
    let job = world.job(name, 2, 1);
    job.with("/spec/roles/0/template/metadata", labels)
}

/// A rule takes effect some moments after it was written; until then such pods are admitted.
async fn in_effect(world: &RealNodes) {
    let mut pod = TrainerPod::new("probe", 1, &world.member.heartbeats()).build();
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(DENIED.to_owned(), "yes".to_owned());
    let pods: Api<Pod> = Api::namespaced(world.member.client(), "default");
    let dry = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let denied = async || pods.create(&dry, &pod).await.err().map(drop);
    world.until("such pods are denied", denied).await;
}

/// A policy of the cluster denies the pods; it is named, and when it is gone the job runs.
async fn policy(world: &RealNodes) {
    let client = world.member.client();
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(client);
    let expression = format!("!('{DENIED}' in object.metadata.labels)");
    let policy = json!({"metadata": {"name": "house-rules"}, "spec": {
        "matchConstraints": {"resourceRules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
            "operations": ["CREATE"]}]},
        "validations": [{"expression": expression, "message": "not in this house"}]}});
    let binding = json!({"metadata": {"name": "house-rules"}, "spec": {
        "policyName": "house-rules", "validationActions": ["Deny"]}});
    let write = PostParams::default();
    policies
        .create(&write, &object(policy))
        .await
        .expect("admin");
    bindings
        .create(&write, &object(binding))
        .await
        .expect("admin");
    in_effect(world).await;
    world.submit(denied(world, "unwanted")).await;
    let words = ["Denied", "house-rules", "not in this house", CLUSTER];
    world.says("unwanted", &words).await;
    nothing_of(world, "unwanted").await;

    let now = DeleteParams::default();
    bindings.delete("house-rules", &now).await.expect("admin");
    policies.delete("house-rules", &now).await.expect("admin");
    world.runs("unwanted", 2).await;
    world.delete("unwanted").await;
}

/// A webhook that must be asked and is not there lets nothing in.
async fn nobody_there(world: &RealNodes) {
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(world.member.client());
    let nobody = meridian_e2e::ports::free_address();
    let hook = json!({"metadata": {"name": "gatekeeper"}, "webhooks": [{
        "name": "gatekeeper.example.com",
        "clientConfig": {"url": format!("https://{nobody}/")},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
                   "operations": ["CREATE"]}],
        "objectSelector": {"matchExpressions": [{"key": DENIED, "operator": "Exists"}]},
        "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 2}]});
    let made = webhooks.create(&PostParams::default(), &object(hook)).await;
    made.expect("admin");
    in_effect(world).await;
    world.submit(denied(world, "unasked")).await;
    world
        .says("unasked", &["Denied", "gatekeeper.example.com", CLUSTER])
        .await;
    nothing_of(world, "unasked").await;
    let deleted = webhooks
        .delete("gatekeeper", &DeleteParams::default())
        .await;
    deleted.expect("admin");
    world.runs("unasked", 2).await;
    world.delete("unasked").await;
}

/// A webhook says no, or no to one pod of a gang, or nothing: the job says so in its words, and no
/// part of the gang is left. When it says yes, the job runs by itself.
async fn webhook(world: &RealNodes) {
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(world.member.client());
    let tasks = Tasks::new();
    let keeper = Gatekeeper::open(&tasks, Says::No("not before")).await;
    let hook = object(keeper.configuration(DENIED));
    let made = webhooks.create(&PostParams::default(), &hook).await;
    made.expect("admin");
    in_effect(world).await;
    let team = "no label of a team: ask the platform group";
    for (job, says, why) in [
        ("refused", Says::No(team), team),
        ("refused-in-part", Says::NotTheSecond(team), team),
        ("unanswered", Says::Nothing, "failed calling webhook"),
    ] {
        keeper.set(says);
        world.submit(denied(world, job)).await;
        world.says(job, &["Denied", NAME, why, CLUSTER]).await;
        let left = async || world.made_for(job).await.is_empty().then_some(());
        world.until("what was begun is undone", left).await;
        nothing_of(world, job).await;
        assert!(keeper.asked() > 0, "{job}");
        keeper.set(Says::Yes);
        world.runs(job, 2).await;
        world.delete(job).await;
    }
    let now = DeleteParams::default();
    webhooks.delete("gatekeeper", &now).await.expect("admin");
    tasks.cancel();
}

/// Its plugin offers eight devices and gives none: the kubelet turns the pod away, and no rank of
/// the gang runs until it can have all.
async fn node_that_lies(world: &RealNodes) {
    let liar = &world.member.nodes()[0];
    liar.gpus().set_giving(false);
    world.submit(world.job("fooled", 2, CARDS)).await;
    let words = ["turned away", "UnexpectedAdmissionError", liar.name()];
    world.says("fooled", &words).await;
    let truth = world.member.truth();
    assert!(truth.runs().iter().all(|run| run.job != "fooled"));
    liar.gpus().set_giving(true);
    world.runs("fooled", 2).await;
    world.delete("fooled").await;
}

/// Labels say four cards where the plugin counts eight: none of them is offered, and that is said.
async fn labels_that_contradict(world: &RealNodes) {
    let label = |count: Value| json!({"metadata": {"labels": {"nvidia.com/gpu.count": count}}});
    let clock = world.member.harness().clock();
    let changed = clock.boot();
    world.patch_node("node-1", label(json!("4"))).await;
    world.fleet.gpus_counted(u64::from(CARDS)).await;
    let told = clock.boot().since(changed);
    eprintln!("    from a change of a node to the hub's count: {told}");
    let describe = async || {
        let described = world.fleet.meridian(["cluster", "describe", CLUSTER]).await;
        let says = |word| described.out.contains(word);
        (says("nvidia.com/gpu") && says("node-1")).then_some(())
    };
    world
        .until("the cluster says what is odd about it", describe)
        .await;
    world.patch_node("node-1", label(Value::Null)).await;
    world.fleet.gpus_counted(2 * u64::from(CARDS)).await;
}

fn needs_secret(world: &RealNodes, name: &str) -> JobBuilder {
    let needs = json!({"secrets": ["registry"]});
    world.job(name, 1, 1).with("/spec/dependencies", needs)
}

fn secrets(world: &RealNodes) -> Api<Secret> {
    Api::namespaced(world.member.client(), NAMESPACE)
}

/// What is missing is named; once it is there, the job runs.
async fn missing_secret(world: &RealNodes) {
    world.submit(needs_secret(world, "needy")).await;
    let words = ["DependencyMissing", "Secret registry", CLUSTER];
    world.says("needy", &words).await;
    nothing_of(world, "needy").await;
    let secret = object(json!({"metadata": {"name": "registry"}}));
    let made = secrets(world).create(&PostParams::default(), &secret).await;
    made.expect("admin");
    world.runs("needy", 1).await;
    world.delete("needy").await;
    let deleted = secrets(world)
        .delete("registry", &DeleteParams::default())
        .await;
    deleted.expect("it is not the agent's to remove");
}

/// The cluster that lacks something is skipped, with the reason; the next one takes the job.
async fn missing_here_and_not_there(world: &mut RealNodes) {
    world.submit(needs_secret(world, "moves-on")).await;
    world
        .says(
            "moves-on",
            &["DependencyMissing", "Secret registry", CLUSTER],
        )
        .await;
    let other = world.fleet.file("other.yaml", &cluster_document("eu-b"));
    let apply = ["apply".into(), "-f".into(), other.into_os_string()];
    world.fleet.meridian(apply).await.succeeded();
    world.fleet.start_agent("eu-b", 1);
    world
        .says("moves-on", &["\"cluster\":\"eu-b\"", "Running"])
        .await;
    nothing_of(world, "moves-on").await;
    world.delete("moves-on").await;
    let mut agent = world.fleet.agents.pop().expect("pushed above").process;
    agent.terminate(START).await.expect("it ends");
}

/// The API server stops and dies while the agent talks to the hub: no outage. What runs goes on,
/// what is asked for meanwhile is done afterwards.
async fn api_server_away(world: &mut RealNodes) {
    world.submit(world.job("before", 1, 1)).await;
    let before = world.runs("before", 1).await;
    world.says("before", &["Running"]).await;
    world.member.api_server().pause().await.expect("it runs");
    world.submit(world.job("meanwhile", 2, 1)).await;
    let agent = &mut world.fleet.agents[0].process;
    let noticed = agent.line("did not answer", START).await;
    noticed.expect("a request was not answered");
    let cluster = world
        .fleet
        .meridian(["get", "cluster", CLUSTER, "-o", "json"])
        .await;
    cluster.succeeded().saying(&["HeartbeatFresh"]);
    world.says("before", &["Running"]).await;
    world
        .member
        .api_server()
        .kill()
        .await
        .expect("it was there");
    world.member.api_server().start().expect("starts again");
    world.runs("meanwhile", 2).await;
    let after = world.runs("before", 1).await;
    assert_eq!(after[0].pod, before[0].pod, "nothing moved");
    world.delete("meanwhile").await;
    world.delete("before").await;
}
