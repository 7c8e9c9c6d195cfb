//! What only a real API server can be asked: cut short, raced, refused, and left alone.
//!
//! Owns the checks of `KubernetesBackend` beside the conformance suite. Each finds a clean
//! cluster of three machines with eight GPUs each.

pub(crate) mod theirs;

use indexmap::IndexMap;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Node, Pod, Secret, Service};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use meridian_agent::backend::{
    BackendError, Carried, ClusterBackend, Dependency, DependencyKind, GangKey, GangOrder,
    GangSeen, PodPhase, Stopped, Workload,
};
use meridian_agent::kubernetes::{Hook, KubernetesBackend, KubernetesOptions, Step};
use meridian_api::units::{MilliGpus, Millis};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::conformance::{
    DEADLINE, Fixture as _, TWO, all, key, order, plain, stopped, until, watch,
};
use crate::kubernetes_fixture::{Cluster, HOSTS, NAMESPACE};

/// Steps after which an agent may die while it binds.
const STEPS_OF_A_BIND: [Step; 6] = [
    Step::Claimed,
    Step::Furnished,
    Step::PodMade,
    Step::PodsMade,
    Step::PodBound,
    Step::PodsBound,
];

fn object<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object of this kind")
}

fn running() -> impl Fn(Option<&GangSeen>) -> bool {
    all(|phase| *phase == PodPhase::Running)
}

/// A life that dies after the first `step`.
fn dies_after(cluster: &Cluster, step: Step) -> KubernetesBackend {
    cluster.life(Hook::new(move |passed| passed != step))
}

/// Nothing of any gang is in the namespace of the jobs.
async fn nothing_is_left(cluster: &Cluster) {
    let all = ListParams::default();
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let pods = cluster.pods().list(&all).await.expect("admin").items;
    let configs = cluster.configs().list(&all).await.expect("admin").items;
    let services = services.list(&all).await.expect("admin").items;
    let name = |pod: &Pod| pod.metadata.name.clone();
    assert_eq!(pods.iter().map(name).collect::<Vec<_>>(), []);
    let name = |config: &ConfigMap| config.metadata.name.clone();
    assert_eq!(configs.iter().map(name).collect::<Vec<_>>(), []);
    assert_eq!(services.len(), 0);
}

/// An agent that dies at any step of a bind leaves what another life finishes or undoes; user
/// code starts only in a gang that is whole.
pub(crate) async fn a_bind_cut_short_anywhere_is_finished_or_undone(cluster: &Cluster) {
    let mut seen = watch(cluster).await;
    let mut ran = 0;
    for (index, step) in (0..).zip(STEPS_OF_A_BIND) {
        for finish in [true, false] {
            let order = order(key(index, 1 + u64::from(finish)), 4, &TWO, plain());
            let cut = dies_after(cluster, step).bind(&order).await;
            let cut = cut.expect_err("it died");
            assert!(
                matches!(cut, BackendError::Unavailable(_)),
                "{step:?}: {cut}"
            );
            let life = cluster.backend();
            let found = life.adopt().await.expect("answers");
            assert_eq!(found.len(), 1, "{step:?}");
            assert_eq!(found[0].terms, order.terms, "{step:?}");
            assert_eq!(
                found[0].pods.len(),
                2,
                "{step:?}: members without pods are shown"
            );
            // Its bindings are on their way together: of two, both may have arrived.
            let whole = matches!(step, Step::PodBound | Step::PodsBound);
            assert!(found[0].complete <= whole, "{step:?}");
            assert!(found[0].complete || step != Step::PodsBound);
            if !whole {
                assert_eq!(cluster.ran().len(), ran, "{step:?}: not whole");
            }
            if finish {
                life.bind(&order).await.expect("the same again");
                until(cluster, &mut seen, order.key, running()).await;
            }
            stopped(cluster, &mut seen, order.key).await;
            nothing_is_left(cluster).await;
            let started = cluster.ran().len() - ran;
            // A gang that is whole may be asked to end while it starts.
            let least = if finish { 2 } else { 0 };
            let most = if finish || whole { 2 } else { 0 };
            assert!((least..=most).contains(&started), "{step:?}: {started}");
            ran += started;
        }
    }
}

/// A life that died before the gate: whoever looks next opens it.
pub(crate) async fn a_gate_left_shut_is_opened_by_another_life(cluster: &Cluster) {
    let order = order(key(0, 1), 8, &TWO, plain());
    cluster.backend().bind(&order).await.expect("room");
    cluster.pause().await;
    assert_eq!(cluster.ran(), [], "nobody has opened the gate");
    let mut seen = watch(cluster).await;
    until(cluster, &mut seen, order.key, running()).await;
    stopped(cluster, &mut seen, order.key).await;
    nothing_is_left(cluster).await;
}

/// A stop that was marked keeps the gate shut, also when its agent died right after.
pub(crate) async fn a_stop_comes_before_the_gate(cluster: &Cluster) {
    let order = order(key(0, 1), 8, &TWO, plain());
    cluster.backend().bind(&order).await.expect("room");
    let cut = dies_after(cluster, Step::StopMarked);
    assert!(cut.stop(order.key, Millis::ZERO).await.is_err());
    let mut seen = watch(cluster).await;
    assert!(seen.snapshot.gangs[0].stopping);
    cluster.pause().await;
    assert_eq!(cluster.ran(), [], "no user code after a stop");
    let again = cluster.backend().bind(&order).await.expect_err("it stops");
    assert!(matches!(again, BackendError::Conflict { .. }), "{again}");
    stopped(cluster, &mut seen, order.key).await;
    nothing_is_left(cluster).await;
}

/// Two lives that bind two epochs at once: one has the gang, the other learns who.
pub(crate) async fn two_lives_cannot_both_have_a_gang(cluster: &Cluster) {
    let mut seen = watch(cluster).await;
    for round in 0..4 {
        let older = order(key(round, 1), 2, &TWO, plain());
        let newer = order(key(round, 2), 2, &TWO, plain());
        let (one, two) = (cluster.backend(), cluster.backend());
        let (one, two) = futures::join!(one.bind(&older), two.bind(&newer));
        let (has, refused) = match (&one, &two) {
            (Ok(()), Err(refused)) => (older.key, refused),
            (Err(refused), Ok(())) => (newer.key, refused),
            both => panic!("one of them has it: {both:?}"),
        };
        let (held, attempt) = (has, 0);
        assert_eq!(refused, &BackendError::Conflict { held, attempt });
        until(cluster, &mut seen, has, running()).await;
        stopped(cluster, &mut seen, has).await;
    }
    assert_eq!(cluster.ran().len(), 8);
}

/// What the API server does not take as it is written leaves nothing behind.
pub(crate) async fn a_template_that_is_refused_leaves_nothing(cluster: &Cluster) {
    let backend = cluster.backend();
    let bad = |template: Value, word: &'static str| {
        let backend = backend.clone();
        async move {
            let order = order(key(0, 1), 8, &TWO, template);
            let refused = backend.bind(&order).await.expect_err("it is wrong");
            let BackendError::Invalid(words) = refused else {
                panic!("refused: {refused}");
            };
            assert!(words.contains(word), "{words}");
        }
    };
    bad(json!({"spec": {"containers": [{"name": "main"}]}}), "image").await;
    let mut misspelt = plain();
    misspelt["spec"]["tolerationz"] = json!([]);
    bad(misspelt, "tolerationz").await;
    let mut twice = plain();
    twice["spec"]["volumes"] = json!([{"name": "meridian-gang", "emptyDir": {}}]);
    bad(twice, "meridian-gang").await;
    bad(json!({"spec": {}}), "no container").await;
    nothing_is_left(cluster).await;
}

/// A policy of the cluster that says no is named, and nothing is half done.
pub(crate) async fn a_policy_that_denies_is_named(cluster: &Cluster) {
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(cluster.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(cluster.client.clone());
    let policy = json!({"metadata": {"name": "no-root"}, "spec": {
        "matchConstraints": {"resourceRules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
            "operations": ["CREATE"]}]},
        "validations": [{"expression": "!('root' in object.metadata.labels)",
                         "message": "root is not for jobs"}]}});
    let binding = json!({"metadata": {"name": "no-root"}, "spec": {
        "policyName": "no-root", "validationActions": ["Deny"]}});
    let write = PostParams::default();
    policies
        .create(&write, &object(policy))
        .await
        .expect("admin");
    bindings
        .create(&write, &object(binding))
        .await
        .expect("admin");
    let mut template = plain();
    template["metadata"] = json!({"labels": {"root": "yes"}});
    let backend = cluster.backend();
    // A policy takes effect some moments after it was written.
    let denied = async {
        for round in 0.. {
            let order = order(key(round, 1), 1, &TWO, template.clone());
            let bound = backend.bind(&order).await;
            drop(backend.stop(order.key, Millis::ZERO).await);
            if let Err(refused) = bound {
                return refused;
            }
        }
        unreachable!("it was asked for ever")
    };
    let denied = cluster.clock().timeout(DEADLINE, denied).await;
    let BackendError::Denied(words) = denied.expect("it takes effect") else {
        panic!("denied by a policy");
    };
    assert!(
        words.contains("no-root") && words.contains("not for jobs"),
        "{words}"
    );
    let now = DeleteParams::default();
    bindings.delete("no-root", &now).await.expect("admin");
    policies.delete("no-root", &now).await.expect("admin");
}

fn needs(kind: DependencyKind, name: &str) -> Dependency {
    Dependency {
        kind,
        name: name.to_owned(),
    }
}

/// What a job names and the cluster lacks is said by name, before anything is made.
pub(crate) async fn what_is_missing_is_named(cluster: &Cluster) {
    let (backend, mut seen) = (cluster.backend(), watch(cluster).await);
    let secret = needs(DependencyKind::Secret, "registry");
    let account = needs(DependencyKind::ServiceAccount, "trainer");
    let brought = needs(DependencyKind::ConfigMap, "settings");
    let mut order = order(key(0, 1), 8, &TWO, plain());
    order.workload = Workload {
        dependencies: vec![secret.clone(), brought, account.clone()],
        carried: vec![carried("1")],
        ..Workload::default()
    };
    let refused = backend.bind(&order).await.expect_err("two are missing");
    assert_eq!(refused, BackendError::Missing(vec![secret, account]));
    nothing_is_left(cluster).await;
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), NAMESPACE);
    let registry = object(json!({"metadata": {"name": "registry"}}));
    let made = secrets.create(&PostParams::default(), &registry).await;
    made.expect("admin");
    order.workload.dependencies.pop();
    backend.bind(&order).await.expect("all is there");
    until(cluster, &mut seen, order.key, running()).await;
    stopped(cluster, &mut seen, order.key).await;
    secrets
        .delete("registry", &DeleteParams::default())
        .await
        .expect("it is not the agent's to remove");
}

fn carried(value: &str) -> Carried {
    Carried {
        name: "settings".to_owned(),
        data: IndexMap::from([("epochs".to_owned(), value.to_owned())]),
    }
}

/// What a job carries is there while any gang of it is, and gone after the last.
pub(crate) async fn what_a_job_carries_goes_with_its_last_gang(cluster: &Cluster) {
    let (backend, mut seen) = (cluster.backend(), watch(cluster).await);
    let carries = |index: u32, value: &str| GangOrder {
        workload: Workload {
            carried: vec![carried(value)],
            ..Workload::default()
        },
        ..order(key(index, 1), 2, &TWO, plain())
    };
    let (first, second) = (carries(0, "1"), carries(1, "1"));
    for order in [&first, &second] {
        backend.bind(order).await.expect("room");
        until(cluster, &mut seen, order.key, running()).await;
    }
    let other = backend.bind(&carries(2, "2")).await.expect_err("another");
    assert!(matches!(&other, BackendError::Invalid(why) if why.contains("settings")));
    stopped(cluster, &mut seen, carries(2, "2").key).await;
    stopped(cluster, &mut seen, first.key).await;
    let there = cluster.configs().get_opt("settings").await.expect("admin");
    let data = there
        .and_then(|there| there.data)
        .expect("the second needs it");
    assert_eq!(data["epochs"], "1");
    stopped(cluster, &mut seen, second.key).await;
    nothing_is_left(cluster).await;
}

/// Pods of others are counted, found at the last moment, and never touched.
pub(crate) async fn pods_of_others_are_counted_and_left_alone(cluster: &Cluster) {
    let backend = cluster.backend();
    let theirs = json!({"metadata": {"name": "theirs"}, "spec": {
        "nodeName": HOSTS[1],
        "containers": [{"name": "main", "image": "serve:1", "resources": {
            "limits": {"nvidia.com/gpu": "3"}}}]}});
    let (pods, theirs) = (cluster.pods(), object(theirs));
    let made = pods.create(&PostParams::default(), &theirs).await;
    made.expect("admin");
    let nodes = backend.observe().await.expect("answers").snapshot.nodes;
    let taken: Vec<MilliGpus> = nodes.iter().map(|node| node.foreign.gpus).collect();
    assert_eq!(taken, [0, 3, 0].map(MilliGpus::cards));
    let order = order(key(0, 1), 8, &TWO, plain());
    let refused = backend.bind(&order).await.expect_err("five are free");
    let BackendError::NoRoom(words) = refused else {
        panic!("no room: {refused}");
    };
    assert!(
        words.contains(HOSTS[1]) && words.contains("5000m"),
        "{words}"
    );
    assert_eq!(
        backend.stop(order.key, Millis::ZERO).await,
        Ok(Stopped::Gone)
    );
    let left = cluster.pods().get_opt("theirs").await.expect("admin");
    let left = left.expect("it is there");
    assert_eq!(left.metadata.deletion_timestamp, None);
}

async fn change_node(cluster: &Cluster, name: &str, change: Value, status: bool) {
    let nodes: Api<Node> = Api::all(cluster.client.clone());
    let (params, patch) = (PatchParams::default(), Patch::Merge(&change));
    let changed = if status {
        nodes.patch_status(name, &params, &patch).await
    } else {
        nodes.patch(name, &params, &patch).await
    };
    changed.expect("admin");
}

/// A machine that is not heard loses its pods, and proves nothing; its operator's word does.
pub(crate) async fn a_silent_machine_is_no_proof(cluster: &Cluster) {
    let (backend, mut seen) = (cluster.backend(), watch(cluster).await);
    let order = order(key(0, 1), 8, &TWO, plain());
    backend.bind(&order).await.expect("room");
    until(cluster, &mut seen, order.key, running()).await;
    cluster.machines.silence(HOSTS[1]);
    let unknown = json!({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}});
    change_node(cluster, HOSTS[1], unknown, true).await;
    let lost = |gang: Option<&GangSeen>| {
        let lost = PodPhase::Broken {
            reason: "NodeLost".to_owned(),
        };
        gang.is_some_and(|gang| gang.pods[1].phase == lost)
    };
    until(cluster, &mut seen, order.key, lost).await;
    assert_eq!(
        backend.stop(order.key, Millis::ZERO).await,
        Ok(Stopped::Asked)
    );
    let one_left = |gang: Option<&GangSeen>| gang.is_some_and(|gang| gang.pods.len() == 1);
    until(cluster, &mut seen, order.key, one_left).await;
    cluster.pause().await;
    assert_eq!(
        backend.stop(order.key, Millis::ZERO).await,
        Ok(Stopped::Asked)
    );
    let still: Vec<_> = cluster
        .ran()
        .into_iter()
        .filter(|run| run.3.is_none())
        .collect();
    assert_eq!(still.len(), 1, "it runs on behind the silence");
    let off = json!({"spec": {"taints": [{
        "key": "node.kubernetes.io/out-of-service", "value": "off", "effect": "NoExecute"}]}});
    change_node(cluster, HOSTS[1], off, false).await;
    until(cluster, &mut seen, order.key, |gang| gang.is_none()).await;
    assert_eq!(
        backend.stop(order.key, Millis::ZERO).await,
        Ok(Stopped::Gone)
    );
}

/// A pod that somebody removes is missed; what is left of the gang is not touched by that.
pub(crate) async fn a_pod_removed_by_hand_is_missed(cluster: &Cluster) {
    let (backend, mut seen) = (cluster.backend(), watch(cluster).await);
    let order = order(key(0, 1), 8, &TWO, plain());
    backend.bind(&order).await.expect("room");
    until(cluster, &mut seen, order.key, running()).await;
    let found = backend.adopt().await.expect("answers");
    let victim = found[0].pods[1].name.clone();
    let removed = cluster
        .pods()
        .delete(&victim, &DeleteParams::default())
        .await;
    removed.expect("admin");
    let missed = |gang: Option<&GangSeen>| {
        let removed = PodPhase::Failed {
            exit_code: 0,
            reason: "Removed".to_owned(),
        };
        gang.is_some_and(|gang| {
            gang.pods[0].phase == PodPhase::Running && gang.pods[1].phase == removed
        })
    };
    until(cluster, &mut seen, order.key, missed).await;
    let found: Vec<GangKey> = backend
        .adopt()
        .await
        .expect("answers")
        .iter()
        .map(|g| g.key)
        .collect();
    assert_eq!(found, [order.key]);
    stopped(cluster, &mut seen, order.key).await;
}

/// A job's namespace is made when the agent may.
pub(crate) async fn a_namespace_is_made_when_it_may_be(cluster: &Cluster) {
    let mut order = order(key(0, 1), 8, &TWO, plain());
    "fresh".clone_into(&mut order.terms.namespace);
    let strict = KubernetesBackend::new(KubernetesOptions {
        create_namespaces: false,
        ..cluster.options.clone()
    });
    let refused = strict.bind(&order).await.expect_err("there is none");
    assert!(matches!(&refused, BackendError::Invalid(why) if why.contains("fresh")));
    let mut seen = watch(cluster).await;
    cluster.backend().bind(&order).await.expect("room");
    until(cluster, &mut seen, order.key, running()).await;
    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    assert!(namespaces.get_opt("fresh").await.expect("admin").is_some());
    // A life that knows nothing finds it wherever it is.
    assert_eq!(cluster.backend().adopt().await.expect("answers").len(), 1);
    stopped(cluster, &mut seen, order.key).await;
}
