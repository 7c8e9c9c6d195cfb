//! Gangs that other tools make in a member cluster: a Job by its real controller, a JobSet and a
//! PyTorchJob by the shapes of their pods.
//!
//! Owns the promise that such pods go no way round quota: they are queued by the hub under the
//! tenant of their namespace, pinned to their cluster, and bound whole only when it is their turn.
//! What ran is read from what the containers wrote.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_client::{ListOptions, Resource};
use meridian_e2e::deployment::{AgentPlan, CLUSTER, Deployment, LONG};
use meridian_e2e::member::{MemberCluster, MemberOptions, trainer, trainer_spec};
use serde_json::{Value, json};

/// A tenant, and the namespace that is named like it.
const TENANT: &str = "visitors";
/// Its quota: half of the cluster's GPUs, which is one gang of this file.
const QUOTA: u64 = 8;
/// GPUs of each pod; two of them are a gang.
const CARDS: u64 = 4;
/// How long each pod trains, in milliseconds.
const TRAINS: &str = "3000";

/// A hub, an agent, two real nodes, and the kinds of two other tools.
struct World {
    fleet: Deployment,
    member: MemberCluster,
}

impl World {
    async fn start(test: &str) -> Option<Self> {
        let options = MemberOptions::default().or_skip(test)?;
        let gpus = u64::from(options.nodes) * u64::from(options.gpus_per_node);
        let member = MemberCluster::start(options).await;
        let member = member.unwrap_or_else(|error| panic!("{error}"));
        let client = member.client();
        for (group, version, kind, plural) in KINDS {
            install(&client, group, version, kind, plural).await;
        }
        let namespace = object(json!({"metadata": {"name": TENANT}}));
        let namespaces: Api<Namespace> = Api::all(client);
        let made = namespaces.create(&PostParams::default(), &namespace).await;
        made.expect("made");
        let fleet = Box::pin(Deployment::over(&member, &AgentPlan::default(), gpus)).await;
        let tenant = format!(
            "apiVersion: meridian.dev/v1alpha1\nkind: Tenant\nmetadata: {{name: {TENANT}}}\n\
             spec: {{}}\n---\n\
             apiVersion: meridian.dev/v1alpha1\nkind: TenantQuota\nmetadata: {{name: {TENANT}}}\n\
             spec: {{tenant: {TENANT}, resources: [{{nominal: {QUOTA}, hardCap: {QUOTA}}}]}}\n"
        );
        let file = fleet.file("tenant.yaml", &tenant).display().to_string();
        fleet.meridian(["apply", "-f", &file]).await.succeeded();
        Some(Self { fleet, member })
    }

    fn within<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.member.client(), TENANT)
    }

    fn custom(&self, index: usize) -> Api<DynamicObject> {
        let (group, version, kind, plural) = KINDS[index];
        let kind = GroupVersionKind::gvk(group, version, kind);
        let kind = ApiResource::from_gvk_with_plural(&kind, plural);
        Api::namespaced_with(self.member.client(), TENANT, &kind)
    }

    /// Makes an object of one of [`KINDS`], which no controller looks at, and says its UID.
    async fn make_custom(&self, index: usize, name: &str) -> String {
        let (group, version, kind, _) = KINDS[index];
        let custom = object(json!({
            "apiVersion": format!("{group}/{version}"), "kind": kind,
            "metadata": {"name": name}, "spec": {},
        }));
        // The API server takes a moment to serve a kind that was just declared.
        let make = async || {
            let made = self
                .custom(index)
                .create(&PostParams::default(), &custom)
                .await;
            made.ok()?.metadata.uid
        };
        self.fleet.until("the kind is served", LONG, make).await
    }

    /// Makes it as soon as the namespace's service account is there.
    async fn make_pod(&self, pod: Value) {
        let pod: Pod = object(pod);
        let make = async || {
            self.within()
                .create(&PostParams::default(), &pod)
                .await
                .ok()
        };
        self.fleet.until("the pod is made", LONG, make).await;
    }

    /// The spec of a pod of `job` with that rank.
    fn pod_spec(&self, job: &str, rank: &Value) -> Value {
        let variables = [
            ("MERIDIAN_JOB", job),
            ("MERIDIAN_WORLD_SIZE", "2"),
            (trainer::RUN_FOR, TRAINS),
        ];
        let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mut spec = trainer_spec(&self.member.heartbeats(), &variables.into());
        spec["schedulerName"] = json!("meridian");
        let container = &mut spec["containers"][0];
        container["resources"] = json!({"limits": {"nvidia.com/gpu": CARDS.to_string()}});
        let mut seat = rank.clone();
        seat["name"] = json!("MERIDIAN_RANK");
        let env = container["env"].as_array_mut().expect("it has some");
        env.push(seat);
        spec
    }

    /// An Indexed Job of two pods, whose own controller makes them.
    fn job(&self, name: &str) -> Value {
        let index = "metadata.annotations['batch.kubernetes.io/job-completion-index']";
        let rank = json!({"valueFrom": {"fieldRef": {"fieldPath": index}}});
        json!({
            "metadata": {"name": name},
            "spec": {
                "completionMode": "Indexed", "completions": 2, "parallelism": 2,
                "template": {
                    "metadata": {"labels": {
                        "meridian.dev/gang": name, "meridian.dev/class": "batch-short",
                    }},
                    "spec": self.pod_spec(name, &rank),
                },
            },
        })
    }

    async fn make_job(&self, job: Value) {
        let jobs = self.within::<Job>();
        let made = jobs.create(&PostParams::default(), &object(job)).await;
        made.expect("made");
    }

    /// The hub's job for the work that is called `name` in the cluster, once it is in that phase.
    async fn queued(&self, name: &str, phase: &str) -> Value {
        let kind = Resource::of::<FederatedJobSpec>();
        let what = format!("{name} is {phase} in the hub");
        let look = async || {
            let options = ListOptions::default();
            let listed = self
                .fleet
                .client()
                .list(&kind, Some(TENANT), &options)
                .await;
            let mut jobs = listed.ok()?.items.into_iter();
            jobs.find(|job| {
                job["spec"]["origin"]["name"] == name && job["status"]["phase"] == phase
            })
        };
        self.fleet.until(&what, LONG, look).await
    }

    /// Pods of a gang, by its label or the name that its tool gives it.
    async fn pods(&self, selector: &str) -> Vec<Pod> {
        let of_gang = ListParams::default().labels(selector);
        let listed = self.within::<Pod>().list(&of_gang).await;
        listed.expect("listed").items
    }

    async fn nodes(&self, selector: &str) -> Vec<Option<String>> {
        let pods = self.pods(selector).await.into_iter();
        pods.map(|pod| pod.spec.and_then(|spec| spec.node_name))
            .collect()
    }

    /// Two ranks of it ran, and at one time.
    fn ran_whole(&self, job: &str) {
        let truth = self.member.truth();
        let mut runs: Vec<_> = truth.runs().iter().filter(|run| run.job == job).collect();
        runs.sort_by_key(|run| run.rank);
        let ranks: Vec<u32> = runs.iter().map(|run| run.rank).collect();
        assert_eq!(ranks, [0, 1], "{job}: {runs:?}");
        let (one, other) = (runs[0], runs[1]);
        assert!(
            one.from < other.to && other.from < one.to,
            "{job}: {runs:?}"
        );
    }

    async fn job_is_complete(&self, name: &str) {
        let what = format!("Job {name} is complete");
        let look = async || {
            let status = self.within::<Job>().get(name).await.ok()?.status?;
            let mut conditions = status.conditions?.into_iter();
            conditions.find(|condition| condition.type_ == "Complete" && condition.status == "True")
        };
        self.fleet.until(&what, LONG, look).await;
    }
}

/// Group, version, kind and plural of what other tools bring.
const KINDS: [(&str, &str, &str, &str); 2] = [
    ("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"),
    ("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs"),
];
const JOBSET: usize = 0;
const PYTORCHJOB: usize = 1;

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object of this kind")
}

async fn install(client: &kube::Client, group: &str, version: &str, kind: &str, plural: &str) {
    let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = object(json!({
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
            "versions": [{"name": version, "served": true, "storage": true,
                          "subresources": {"status": {}}, "schema": {"openAPIV3Schema": anything}}],
        },
    }));
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let made = definitions
        .create(&PostParams::default(), &definition)
        .await;
    made.expect("declared");
}

fn owner(index: usize, name: &str, uid: &str) -> Value {
    let (group, version, kind, _) = KINDS[index];
    json!([{"apiVersion": format!("{group}/{version}"), "kind": kind, "name": name, "uid": uid,
            "controller": true}])
}

#[tokio::test]
async fn a_job_waits_for_quota_is_bound_whole_and_completes() {
    let test = "a_job_waits_for_quota_is_bound_whole_and_completes";
    let Some(world) = World::start(test).await else {
        return;
    };
    let mut first = world.job("first");
    let env = &mut first["spec"]["template"]["spec"]["containers"][0]["env"];
    let env = env.as_array_mut().expect("it has some");
    env.retain(|variable| variable["name"] != trainer::RUN_FOR);
    world.make_job(first).await;
    let job = world.queued("first", "Running").await;
    assert_eq!(job["spec"]["tenant"], TENANT);
    assert_eq!(job["spec"]["placement"]["clusters"], json!([CLUSTER]));

    // As many GPUs are free, and no quota: it is queued, and nothing of it is bound.
    world.make_job(world.job("second")).await;
    world.queued("second", "Pending").await;
    let of_second = "meridian.dev/gang=second";
    let why = async || {
        let queue = world.fleet.client().queue(0, TENANT).await.ok()?;
        let blocker = queue.entries.first()?.blocker.clone()?;
        (blocker.code == "WaitingForQuota").then_some(())
    };
    world.fleet.until("it waits for quota", LONG, why).await;
    assert_eq!(world.nodes(of_second).await, [None, None]);
    let truth = world.member.truth();
    assert!(truth.runs().iter().all(|run| run.job == "first"));

    // Quota comes free: the hub decides, and the pods that were there are what runs.
    let of_job = world.pods(of_second).await.into_iter();
    let mut waited: Vec<Option<String>> = of_job.map(|pod| pod.metadata.uid).collect();
    let jobs = world.within::<Job>();
    let gone = jobs.delete("first", &DeleteParams::background()).await;
    gone.expect("deleted");
    world.job_is_complete("second").await;
    world.queued("second", "Succeeded").await;
    world.ran_whole("second");
    let mut ran: Vec<Option<String>> = world
        .pods(of_second)
        .await
        .into_iter()
        .map(|pod| pod.metadata.uid)
        .collect();
    waited.sort();
    ran.sort();
    assert_eq!(waited, ran, "no pod was made beside them");

    // Nothing of the agent's is left, on pods or beside them.
    let look = async || {
        let pods = world.pods("meridian.dev/bound-for").await;
        let of_agent = ListParams::default().labels("app.kubernetes.io/managed-by=meridian-agent");
        let maps: Api<ConfigMap> = world.within();
        let maps = maps.list(&of_agent).await.ok()?.items;
        (pods.is_empty() && maps.is_empty()).then_some(())
    };
    world.fleet.until("nothing is left", LONG, look).await;
    assert_eq!(world.fleet.errors(&[]), [] as [String; 0]);
    world.member.stop().await.expect("nothing is left");
}

#[tokio::test]
async fn gangs_of_other_tools_are_known_by_the_shapes_of_their_pods() {
    let test = "gangs_of_other_tools_are_known_by_the_shapes_of_their_pods";
    let Some(world) = World::start(test).await else {
        return;
    };
    // A JobSet with a driver and a worker: its controller makes a Job of each, and Kubernetes' own
    // makes their pods.
    let uid = world.make_custom(JOBSET, "pretrain").await;
    for (role, rank) in [("driver", "0"), ("worker", "1")] {
        let labels = json!({
            "jobset.sigs.k8s.io/jobset-name": "pretrain",
            "jobset.sigs.k8s.io/jobset-uid": uid,
            "jobset.sigs.k8s.io/replicatedjob-name": role,
            "jobset.sigs.k8s.io/replicatedjob-replicas": "1",
            "jobset.sigs.k8s.io/global-replicas": "2",
            "jobset.sigs.k8s.io/job-index": "0",
            "meridian.dev/class": "batch-short",
        });
        let name = format!("pretrain-{role}-0");
        let job = json!({
            "metadata": {"name": name, "labels": labels,
                         "ownerReferences": owner(JOBSET, "pretrain", &uid)},
            "spec": {
                "completionMode": "Indexed", "completions": 1, "parallelism": 1,
                "template": {
                    "metadata": {"labels": labels},
                    "spec": world.pod_spec("pretrain", &json!({"value": rank})),
                },
            },
        });
        world.make_job(job).await;
    }
    world.queued("pretrain", "Succeeded").await;
    world.ran_whole("pretrain");

    a_pytorchjob_is_one_gang(&world).await;
    assert_eq!(world.fleet.errors(&[]), [] as [String; 0]);
    world.member.stop().await.expect("nothing is left");
}

/// A PyTorchJob's controller makes the pods itself.
async fn a_pytorchjob_is_one_gang(world: &World) {
    let uid = world.make_custom(PYTORCHJOB, "tune").await;
    for (role, rank) in [("master", "0"), ("worker", "1")] {
        let mut spec = world.pod_spec("tune", &json!({"value": rank}));
        let env = spec["containers"][0]["env"].as_array_mut();
        let size = json!({"name": "PET_NNODES", "value": "2"});
        env.expect("it has some").push(size);
        let pod = json!({
            "metadata": {
                "name": format!("tune-{role}-0"),
                "ownerReferences": owner(PYTORCHJOB, "tune", &uid),
                "labels": {
                    "training.kubeflow.org/job-name": "tune",
                    "training.kubeflow.org/replica-type": role,
                    "training.kubeflow.org/replica-index": "0",
                    "meridian.dev/class": "batch-short",
                },
            },
            "spec": spec,
        });
        world.make_pod(pod).await;
    }
    let job = world.queued("tune", "Succeeded").await;
    let roles: Vec<&str> = job["spec"]["roles"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|role| role["name"].as_str())
        .collect();
    assert_eq!(roles, ["master", "worker"]);
    world.ran_whole("tune");
    let over = json!({"status": {"conditions": [{"type": "Succeeded", "status": "True"}]}});
    let custom = world.custom(PYTORCHJOB);
    let (params, over) = (PatchParams::default(), Patch::Merge(&over));
    let told = custom.patch_status("tune", &params, &over).await;
    told.expect("written");
}
