//! A hub, an agent and a real member cluster, for tests that judge from what its nodes ran.
//!
//! Owns how gangs are submitted there, waited for and removed, and what must hold of everything
//! that ever ran: no gang started in part, no epoch beside another, nothing left. A test is one
//! world and some scenes in it, since a world costs some ten seconds of a core. Never knows what a
//! scene is about.

use std::fmt::Write as _;
use std::path::Path;

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod, Service};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use meridian_agent::kubernetes::names;
use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::units::Millis;
use meridian_client::{DryRun, Resource};
use serde_json::{Value, json};

use crate::deployment::{AgentPlan, Deployment, JobBuilder, LONG, NAMESPACE, START};
use crate::member::truth::Run;
use crate::member::{MemberCluster, MemberOptions, trainer};

/// Between the first container of a gang and its last: a kubelet looks for the gate at doubling
/// distances from half a second, as long again as its slowest admission took.
const PATIENCE: Millis = Millis::seconds(20);
/// A trainer that has not written for so long does not run: it writes five times a second.
const SILENCE: Millis = Millis::seconds(2);
/// Milliseconds between two checkpoints of [`RealNodes::saving`].
const SAVE_EVERY: &str = "400";

/// The world.
pub struct RealNodes {
    /// The hub and the agent.
    pub fleet: Deployment,
    /// The member cluster.
    pub member: MemberCluster,
}

impl RealNodes {
    /// Starts all of it; `None` after saying that `test` is skipped because this machine lacks
    /// something.
    ///
    /// # Panics
    /// When it does not start in time.
    pub async fn start(test: &str, options: MemberOptions, agent: &AgentPlan) -> Option<Self> {
        let options = options.or_skip(test)?;
        let nodes = u64::from(options.nodes) + u64::from(options.fake_nodes);
        let gpus = nodes * u64::from(options.gpus_per_node);
        let member = MemberCluster::start(options).await;
        let member = member.unwrap_or_else(|error| panic!("{error}"));
        let fleet = Box::pin(Deployment::over(&member, agent, gpus)).await;
        Some(Self { fleet, member })
    }

    /// Plays one scene, and says how long it took.
    pub async fn scene(&self, name: &str, scene: impl Future<Output = ()>) {
        let clock = self.member.harness().clock();
        let begun = clock.boot();
        scene.await;
        eprintln!("  {name}: {}", clock.boot().since(begun));
    }

    /// Pods of the jobs.
    #[must_use]
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.member.client(), NAMESPACE)
    }

    /// The cluster's nodes.
    #[must_use]
    pub fn nodes(&self) -> Api<Node> {
        Api::all(self.member.client())
    }

    /// Merges into a node's object.
    ///
    /// # Panics
    /// When the API refuses.
    pub async fn patch_node(&self, node: &str, change: Value) {
        let (nodes, params) = (self.nodes(), PatchParams::default());
        let patched = nodes.patch(node, &params, &Patch::Merge(change)).await;
        patched.expect("the node is there");
    }

    /// A gang that trains until it is stopped.
    #[must_use]
    pub fn job(&self, name: &str, pods: u32, gpus: u32) -> JobBuilder {
        JobBuilder::new(name)
            .pods(pods, gpus)
            .trains(&self.member, &[])
    }

    /// The same with a checkpoint some times a second, which its next placement reads.
    #[must_use]
    pub fn saving(&self, name: &str, pods: u32, gpus: u32) -> JobBuilder {
        let every = [(trainer::CHECKPOINT_EVERY, SAVE_EVERY)];
        // The one folder that pods of every node share.
        let uri = format!("file:///heartbeats/checkpoints-{name}");
        JobBuilder::new(name)
            .pods(pods, gpus)
            .trains(&self.member, &every)
            .with("/spec/checkpoint", json!({"uri": uri}))
    }

    /// Submits a job as a person does.
    ///
    /// # Panics
    /// When it is refused.
    pub async fn submit(&self, job: JobBuilder) {
        let job = job.build();
        let name = job["metadata"]["name"].as_str().unwrap_or_default();
        let file = self.fleet.file(&format!("{name}.yaml"), &job.to_string());
        let file = file.display().to_string();
        let submitted = self.fleet.meridian(["submit", "-f", &file]).await;
        submitted.succeeded();
    }

    /// Ranks of a job that run at this moment, by rank.
    #[must_use]
    pub fn alive(&self, job: &str) -> Vec<Run> {
        let now = self.member.harness().clock().boot();
        let truth = self.member.truth();
        let runs = truth.runs().iter().filter(|run| run.job == job);
        let alive = runs.filter(|run| !run.has_ended && now.since(run.to) < SILENCE);
        let mut alive: Vec<Run> = alive.cloned().collect();
        alive.sort_by_key(|run| run.rank);
        alive
    }

    /// Waits until exactly that many ranks of a job are seen to run at once, by rank.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub async fn runs(&self, job: &str, ranks: usize) -> Vec<Run> {
        self.runs_above(job, ranks, 0).await
    }

    /// The same of a placement after `epoch`.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub async fn runs_above(&self, job: &str, ranks: usize, epoch: u64) -> Vec<Run> {
        let what = format!("{ranks} ranks of {job} run above epoch {epoch}");
        let look = async || {
            let alive = self.alive(job);
            let above = alive.iter().all(|run| run.epoch > epoch);
            (alive.len() == ranks && above).then_some(alive)
        };
        self.until(&what, look).await
    }

    /// Looks again and again until there is something, and returns it.
    ///
    /// # Panics
    /// When there is nothing in time; what the jobs and pods are is printed.
    pub async fn until<T>(&self, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        let clock = self.member.harness().clock();
        let found = self.fleet.until(what, Millis(u64::MAX / 4), &mut look);
        if let Ok(found) = clock.timeout(LONG, found).await {
            return found;
        }
        panic!("not within {LONG}: {what}\n{}", self.as_text().await)
    }

    /// Jobs and pods as they are, for a failure.
    async fn as_text(&self) -> String {
        let mut text = String::new();
        for job in self.fleet.jobs().await.unwrap_or_default() {
            let (name, status) = (&job["metadata"]["name"], &job["status"]);
            let _ = writeln!(text, "job {name}: {status}");
        }
        let pods = self.pods().list(&ListParams::default()).await;
        for pod in pods.map(|list| list.items).unwrap_or_default() {
            let status = serde_json::to_string(&pod.status).unwrap_or_default();
            let deleted = pod.metadata.deletion_timestamp.map(|time| time.0);
            let name = pod.metadata.name.unwrap_or_default();
            let _ = writeln!(text, "pod {name} (deleted {deleted:?}): {status}");
        }
        text
    }

    /// Names of everything that the agent made for a job and that is still there: pods, Services,
    /// owner objects, gates, and ConfigMaps that the job brought.
    ///
    /// # Panics
    /// When the API does not answer.
    pub async fn made_for(&self, job: &str) -> Vec<String> {
        let label = format!("{}={}", names::JOB, names::label_value(job));
        self.made(&label).await
    }

    async fn made(&self, labels: &str) -> Vec<String> {
        let client = self.member.client();
        let ours = format!("{}={},{labels}", names::MANAGED_BY, names::MANAGER);
        let of_agent = ListParams::default().labels(ours.trim_end_matches(','));
        let pods = Api::<Pod>::all(client.clone()).list(&of_agent).await;
        let services = Api::<Service>::all(client.clone()).list(&of_agent).await;
        let maps = Api::<ConfigMap>::all(client).list(&of_agent).await;
        let pods = pods.expect("listed").items.into_iter();
        let services = services.expect("listed").items.into_iter();
        let maps = maps.expect("listed").items.into_iter();
        let metadata = pods.map(|pod| pod.metadata);
        let metadata = metadata.chain(services.map(|service| service.metadata));
        let metadata = metadata.chain(maps.map(|map| map.metadata));
        metadata.filter_map(|metadata| metadata.name).collect()
    }

    /// Asks for a job's end, and does not wait for it.
    ///
    /// # Panics
    /// When it is refused.
    pub async fn ask_delete(&self, job: &str) {
        let kind = Resource::of::<FederatedJobSpec>();
        let client = self.fleet.client();
        let deleted = client.delete(&kind, NAMESPACE, job, None, DryRun::No).await;
        deleted.expect("deleted");
    }

    /// Waits until nothing of a job is left, at the hub and in the member cluster.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub async fn gone(&self, job: &str) {
        let what = format!("nothing of {job} is left");
        let look = async || {
            let jobs = self.fleet.jobs().await?;
            let known = jobs.iter().any(|known| known["metadata"]["name"] == job);
            let left = known || !self.made_for(job).await.is_empty();
            (!left && self.alive(job).is_empty()).then_some(())
        };
        self.until(&what, look).await;
    }

    /// Removes a job and waits until nothing of it is left.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub async fn delete(&self, job: &str) {
        self.ask_delete(job).await;
        self.gone(job).await;
    }

    /// Waits until a job's status holds all of these words, wherever, and returns it.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub async fn says(&self, job: &str, words: &[&str]) -> Value {
        let what = format!("the status of {job} says {words:?}");
        let look = async || {
            let jobs = self.fleet.jobs().await?;
            let job = jobs.iter().find(|known| known["metadata"]["name"] == job)?;
            let text = job["status"].to_string();
            let all = words.iter().all(|word| text.contains(word));
            all.then(|| job["status"].clone())
        };
        self.until(&what, look).await
    }

    /// Waits until the agent has died by itself, and starts it again.
    ///
    /// # Panics
    /// When it does not die in time.
    pub async fn revive_agent(&mut self) {
        let agent = &mut self.fleet.agents[0].process;
        let ended = agent.ended(LONG).await;
        ended.unwrap_or_else(|error| panic!("{error}"));
        agent.start().expect("starts again");
    }

    /// Kills the agent and starts it again.
    ///
    /// # Panics
    /// When it does not run.
    pub async fn kill_agent(&mut self) {
        let agent = &mut self.fleet.agents[0].process;
        agent.kill().await.expect("it ran");
        agent.start().expect("starts again");
    }

    /// Runs the real `kubectl`, a file, against the member cluster, to a good end.
    ///
    /// # Panics
    /// When it ends otherwise.
    pub async fn kubectl(&self, program: &Path, arguments: &[&str]) {
        let harness = self.member.harness();
        let spec = crate::process::ProcessSpec::new("kubectl", program)
            .env("HOME", harness.folder("kubectl"))
            .args([Path::new("--kubeconfig"), self.member.kubeconfig()])
            .args(arguments.iter().copied());
        let output = harness.output(&spec, START).await.expect("it ends");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(output.status.success(), "kubectl {arguments:?}\n{text}");
    }

    /// Judges everything that ever ran, and ends the world. Lines of level ERROR that hold one of
    /// `expected` are a scene's doing.
    ///
    /// # Panics
    /// When a gang was started in part, two epochs of one ran at once, or something is left.
    pub async fn end(self, expected: &[&str]) {
        let truth = self.member.truth();
        assert_eq!(truth.double_runs(), []);
        assert_eq!(truth.partial_starts(PATIENCE), []);
        assert_eq!(self.made("").await, [] as [String; 0]);
        assert_eq!(self.fleet.errors(expected), [] as [String; 0]);
        let Self { fleet, member } = self;
        drop(fleet);
        member.stop().await.expect("nothing is left");
    }
}
