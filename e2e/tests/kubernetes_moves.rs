//! A gang of a higher class takes its room in whichever of two real clusters has it: the victim
//! saves its work, goes on in the other where that has room, and else when room comes free.
//!
//! Owns the promise with a hub on a real etcd and two real API servers, each with a kubelet that
//! runs containers. Judged from what these wrote: those of both clusters write into one folder, so
//! that two placements of a gang that ran at once would be seen wherever they were.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use meridian_agent::kubernetes::names;
use meridian_e2e::deployment::{Deployment, HubStore, JobBuilder, LONG, NAMESPACE};
use meridian_e2e::etcd::{Durability, Etcd, Members};
use meridian_e2e::member::truth::Run;
use meridian_e2e::member::{MemberCluster, MemberOptions};
use meridian_e2e::process::Harness;
use meridian_e2e::real_nodes::RealNodes;
use meridian_e2e::tools::Tool;
use serde_json::{Value, json};

/// The clusters, of one node each.
const CLUSTERS: [&str; 2] = ["eu-a", "eu-b"];
/// Cards of a node.
const CARDS: u32 = 8;

/// Both clusters under one hub.
struct World {
    /// The first cluster, and the folder that containers of both write into.
    here: RealNodes,
    there: MemberCluster,
    etcd: Etcd,
    /// The hub's etcd keeps its data in its folder.
    harness: Harness,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_victim_moves_to_another_cluster_and_goes_on_from_its_checkpoint() {
    let test = "a_victim_moves_to_another_cluster_and_goes_on_from_its_checkpoint";
    let Some(world) = World::start(test).await else {
        return;
    };
    let (first, second) = Box::pin(moves(&world)).await;
    Box::pin(waits_where_nothing_is_free(&world, first, second)).await;
    Box::pin(world.end()).await;
}

/// Its class is lower, and the other cluster is empty: it is not queued, and its place is named.
async fn moves(world: &World) -> (&'static str, &'static str) {
    let here = &world.here;
    let train = here.saving("train", 2, CARDS / 2);
    here.submit(of_class(train, "lower")).await;
    let runs = here.runs("train", 2).await;
    let first = world.placed("train").await;
    let second = other_than(first);
    saved(here, &runs[0]).await;

    let serve = here.job("serve", 1, CARDS);
    let serve = serve.with("/spec/placement", json!({"clusters": [first]}));
    here.submit(of_class(serve, "upper")).await;
    here.runs("serve", 1).await;
    let after = here.runs_above("train", 2, runs[0].epoch).await;
    assert!(after.iter().all(|run| run.first_step > 0), "{after:?}");
    assert_eq!(world.placed("serve").await, first);
    assert_eq!(world.placed("train").await, second);
    assert_eq!(world.pods_of("train").await, [(second, 2)]);
    let told = here
        .fleet
        .meridian(["events", "job/train", "-n", NAMESPACE])
        .await;
    let next = format!("goes on in {second}/");
    told.succeeded()
        .saying(&["makes room for nlp/serve", &next]);
    (first, second)
}

/// It makes room once more, in the cluster it went to; now there is nowhere to go on, so it waits
/// and comes back to where it began.
async fn waits_where_nothing_is_free(world: &World, first: &'static str, second: &'static str) {
    let here = &world.here;
    let before = here.alive("train");
    saved(here, &before[0]).await;
    here.submit(of_class(here.job("other", 1, CARDS), "upper"))
        .await;
    here.runs("other", 1).await;
    assert_eq!(world.placed("other").await, second);
    assert_eq!(here.alive("train"), []);
    here.says("train", &[r#""phase":"Pending""#]).await;
    here.delete("serve").await;
    let after = here.runs_above("train", 2, before[0].epoch).await;
    let (saved, resumed) = (before[0].last_step, after[0].first_step);
    assert!(resumed > 0 && resumed >= saved, "{before:?} {after:?}");
    assert_eq!(world.placed("train").await, first);
    for job in ["train", "other"] {
        here.delete(job).await;
    }
}

fn of_class(job: JobBuilder, class: &str) -> JobBuilder {
    job.with("/spec/workloadClass", json!(class))
}

fn other_than(cluster: &str) -> &'static str {
    let [here, there] = CLUSTERS;
    if cluster == here { there } else { here }
}

/// Waits until a run has written a checkpoint.
async fn saved(here: &RealNodes, run: &Run) {
    let look = async || {
        let truth = here.member.truth();
        let known = truth.runs().iter().find(|known| known.pod == run.pod)?;
        // Five steps a second, and a checkpoint after each second or third.
        (known.last_step > run.first_step + 5).then_some(())
    };
    here.until("it has saved", look).await;
}

impl World {
    async fn start(test: &str) -> Option<Self> {
        let program = Tool::Etcd.or_skip(test)?;
        let options = MemberOptions {
            nodes: 1,
            ..MemberOptions::default()
        };
        let options = options.or_skip(test)?;
        let harness = Harness::new();
        let etcd = Etcd::start(&harness, &program, Members::One, Durability::Fsync).await;
        let etcd = etcd.expect("etcd starts");
        let member = MemberCluster::start(options.clone()).await;
        let member = member.unwrap_or_else(|error| panic!("{error}"));
        let there = MemberCluster::start(options).await;
        let there = there.unwrap_or_else(|error| panic!("{error}"));
        let named = [(&member, CLUSTERS[0]), (&there, CLUSTERS[1])];
        let store = HubStore::Etcd(etcd.endpoints());
        let fleet = Deployment::joined(store, &named, 2 * u64::from(CARDS)).await;
        declare(&fleet).await;
        let here = RealNodes { fleet, member };
        Some(Self {
            here,
            there,
            etcd,
            harness,
        })
    }

    /// The cluster that a job runs in, as the hub says.
    async fn placed(&self, job: &str) -> &'static str {
        let look = async || {
            let status = self.here.fleet.status_of(job).await;
            let placed = CLUSTERS.into_iter().find(|name| status["cluster"] == *name);
            placed.filter(|_| status["phase"] == "Running")
        };
        self.here.fleet.until("it runs somewhere", LONG, look).await
    }

    /// Where an API server has pods of a job, and how many.
    async fn pods_of(&self, job: &str) -> Vec<(&'static str, usize)> {
        let label = format!("{}={job}", names::JOB);
        let of_job = ListParams::default().labels(&label);
        let mut found = Vec::new();
        for (member, name) in [&self.here.member, &self.there].into_iter().zip(CLUSTERS) {
            let pods = Api::<Pod>::namespaced(member.client(), NAMESPACE);
            let pods = pods.list(&of_job).await.expect("listed").items.len();
            found.extend((pods > 0).then_some((name, pods)));
        }
        found
    }

    /// Judges what ran in both, and ends them.
    async fn end(self) {
        let Self {
            here,
            there,
            etcd,
            harness,
        } = self;
        here.end(&[]).await;
        there.stop().await.expect("nothing is left");
        drop((etcd, harness));
    }
}

/// A class of which work goes with a notice of ten seconds, and one above it.
async fn declare(fleet: &Deployment) {
    let may_use = json!(["Nominal", "Borrowed"]);
    let lower = json!({
        "priority": 10, "preemption": "CheckpointThenRequeue", "notice": "10s", "mayUse": may_use,
    });
    let upper = json!({"priority": 20, "preemption": "Never", "mayUse": may_use});
    let class = |(name, spec): (&str, Value)| {
        let class = json!({
            "apiVersion": "meridian.dev/v1alpha1", "kind": "WorkloadClass",
            "metadata": {"name": name}, "spec": spec,
        });
        format!("---\n{class}\n")
    };
    let classes: String = [("lower", lower), ("upper", upper)].map(class).concat();
    let file = fleet.file("classes.yaml", &classes).display().to_string();
    fleet.meridian(["apply", "-f", &file]).await.succeeded();
}
