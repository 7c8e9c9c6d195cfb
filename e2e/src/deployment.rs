//! A federation as people run it: hubs and agents as real processes, and the commands that drive
//! them.
//!
//! Owns which processes there are, their addresses and their files. What a test asserts is the
//! test's own. Never reaches into a process: everything goes over its listeners.

mod command;
mod evidence;
mod fail_point;
mod installed;
mod jobs;
mod joining;
mod kubernetes;
mod submitter;

use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};

use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::units::Millis;
use meridian_client::{Client, ClientOptions, ListOptions, Resource};
use serde_json::Value;

pub use self::command::{Ran, Row, words};
pub use self::evidence::{Evidence, PodRun};
pub use self::fail_point::{FAIL_POINT, FailPoint, goes_on};
pub use self::installed::{INSTALLED_AS, INSTALLED_IN};
pub use self::jobs::{JobBuilder, NAMESPACE};
pub use self::joining::Invitation;
pub use self::kubernetes::{AgentPlan, Mortality};
pub use self::submitter::Submitter;

use crate::ports::free_address;
use crate::process::{Harness, Process, ProcessSpec};
use crate::tools::Binary;

/// A process of ours is up within this, also when every core has ten others to serve.
pub const START: Millis = Millis::seconds(60);
/// Something that takes milliseconds on a quiet machine, and much longer on a busy one.
pub const SOON: Millis = Millis::seconds(30);
/// A change of leaders, a few seconds of work and a busy machine.
pub const LONG: Millis = Millis::seconds(120);
/// Between two looks: far below what a person notices.
const LOOK_EVERY: Millis = Millis(20);

/// Cards of each host.
pub const GPUS_PER_HOST: u64 = 8;
/// The region that a deployment begins with.
pub const REGION: &str = "eu-west";
/// The cluster that a deployment begins with.
pub const CLUSTER: &str = "eu-a";

/// Delays of the simulated cluster: as a real one has them, a tenth as long.
const PROFILE: &str = "\
call: {least: 1, most: 5}
bind: {least: 10, most: 100}
start: {least: 200, most: 800}
stop: {least: 10, most: 200}
";

/// Where hubs keep the truth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubStore {
    /// In one file of their own.
    Embedded,
    /// In etcd, at these endpoints.
    Etcd(Vec<String>),
}

/// How agents are let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// In the clear, by name alone.
    Insecure,
    /// With certificates, after joining.
    Joined,
}

/// What is started.
#[derive(Clone, Debug)]
pub struct DeploymentPlan {
    /// Where hubs keep the truth.
    pub store: HubStore,
    /// Hubs; more than one needs etcd.
    pub replicas: usize,
    /// Hosts of the cluster.
    pub hosts: u32,
    /// Where spans go.
    pub otlp: Option<String>,
    /// How long hubs keep old revisions; `None` = as they come.
    pub history: Option<Millis>,
    /// How agents are let in; [`Deployment::start`] knows only the way without certificates.
    pub access: Access,
    /// More settings of each hub, as lines of its configuration file.
    pub settings: String,
}

impl Default for DeploymentPlan {
    fn default() -> Self {
        Self {
            store: HubStore::Embedded,
            replicas: 1,
            hosts: 2,
            otlp: None,
            history: None,
            access: Access::Insecure,
            settings: String::new(),
        }
    }
}

/// A hub under test.
#[derive(Debug)]
pub struct Hub {
    /// Its process.
    pub process: Process,
    /// Where users connect.
    pub users: SocketAddrV4,
    /// Where agents connect.
    pub agents: SocketAddrV4,
}

impl Hub {
    /// `http://HOST:PORT` for users.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.users)
    }

    /// A client of this hub.
    #[must_use]
    pub fn client(&self) -> Client {
        Client::new(ClientOptions::new(self.url())).expect("the address is one")
    }

    /// Starts it again after its end, and waits until it listens.
    pub async fn start_again(&mut self) {
        self.process.start().expect("the binary starts");
        self.listening().await;
    }

    /// Waits until it listens.
    pub async fn listening(&mut self) {
        let said = self.process.line(" ready ", START).await;
        said.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// An agent under test, with its simulated cluster.
#[derive(Debug)]
pub struct Agent {
    /// Its process.
    pub process: Process,
    history: PathBuf,
}

impl Agent {
    /// What really ran in its cluster so far.
    #[must_use]
    pub fn evidence(&self) -> Evidence {
        Evidence::read(&self.history)
    }
}

/// Hubs, agents, and the commands of people.
#[derive(Debug)]
pub struct Deployment {
    /// The hubs, started in this order.
    pub hubs: Vec<Hub>,
    /// The agents; the first is that of [`CLUSTER`].
    pub agents: Vec<Agent>,
    harness: Harness,
    otlp: Option<String>,
}

impl Deployment {
    /// Starts hubs and the agent of one cluster, declares region, cluster, the default classes and
    /// tenants, and waits until the agent's hardware is counted.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub async fn start(plan: DeploymentPlan) -> Self {
        let mut deployment = Self::of_hubs(&plan).await;
        deployment.declare().await;
        deployment.start_agent(CLUSTER, plan.hosts);
        let gpus = u64::from(plan.hosts) * GPUS_PER_HOST;
        deployment.gpus_counted(gpus).await;
        deployment
    }

    /// Declares region, cluster, the default classes and tenants.
    ///
    /// # Panics
    /// When the hub refuses.
    pub async fn declare(&self) {
        let fleet = self.file("fleet.yaml", &fleet_document());
        let defaults = Self::defaults();
        let files = [
            fleet.clone(),
            defaults.join("classes.yaml"),
            defaults.join("tenants.yaml"),
        ];
        let mut arguments = vec!["apply".to_owned()];
        for file in &files {
            arguments.extend(["-f".to_owned(), file.display().to_string()]);
        }
        self.meridian(arguments).await.succeeded();
    }

    /// Only the hubs of a plan, with nothing in their store.
    ///
    /// # Panics
    /// When one does not start in time.
    pub async fn of_hubs(plan: &DeploymentPlan) -> Self {
        let mut deployment = Self {
            hubs: Vec::new(),
            agents: Vec::new(),
            harness: Harness::new(),
            otlp: plan.otlp.clone(),
        };
        for index in 0..plan.replicas {
            let hub = deployment.hub(index, plan);
            deployment.hubs.push(hub);
        }
        for hub in &mut deployment.hubs {
            hub.listening().await;
        }
        deployment
    }

    /// The documents that ship.
    #[must_use]
    pub fn defaults() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies/defaults")
    }

    fn hub(&self, index: usize, plan: &DeploymentPlan) -> Hub {
        let (users, agents) = (free_address(), free_address());
        let name = format!("hub-{index}");
        let spec = ProcessSpec::new(&name, Binary::Hub.path()).args([
            "--name",
            &name,
            "--users-listen",
            &users.to_string(),
            "--agents-listen",
            &agents.to_string(),
        ]);
        let spec = match plan.access {
            Access::Insecure => spec.args(["--insecure-agents"]),
            Access::Joined => spec,
        };
        let spec = match &plan.store {
            HubStore::Embedded => {
                let file = self.harness.folder(&name).join("store.db");
                spec.args([Path::new("--store").as_os_str(), file.as_os_str()])
            }
            HubStore::Etcd(endpoints) => spec.args(["--etcd", &endpoints.join(",")]),
        };
        let mut settings = plan.settings.clone();
        let history = plan.history.map(|span| format!("history: {}\n", span.0));
        settings.extend(history);
        let spec = if settings.is_empty() {
            spec
        } else {
            let config = self.file(&format!("{name}.yaml"), &settings);
            spec.args([Path::new("--config").as_os_str(), config.as_os_str()])
        };
        let process = self.harness.start(self.traced(spec));
        Hub {
            process: process.expect("the binary starts"),
            users,
            agents,
        }
    }

    /// Starts an agent of `cluster` with its own folder, and adds it. Does not wait.
    ///
    /// # Panics
    /// When the binary does not start.
    pub fn start_agent(&mut self, cluster: &str, hosts: u32) {
        let agent = self.agent(&format!("agent-{cluster}"), cluster, hosts);
        self.agents.push(agent);
    }

    /// An agent that speaks for `cluster` from a folder called `name`.
    ///
    /// # Panics
    /// When the binary does not start.
    #[must_use]
    pub fn agent(&self, name: &str, cluster: &str, hosts: u32) -> Agent {
        self.agent_with(name, hosts, &["--cluster", cluster, "--insecure-hub"])
    }

    /// An agent with a folder called `name`, told by `arguments` who it is.
    ///
    /// # Panics
    /// When the binary does not start.
    #[must_use]
    pub fn agent_with(&self, name: &str, hosts: u32, arguments: &[&str]) -> Agent {
        let folder = self.harness.folder(name);
        let hubs: Vec<String> = self.hubs.iter().map(|hub| hub.agents.to_string()).collect();
        let inventory = self.file(&format!("{name}/inventory.yaml"), &inventory(hosts));
        let profile = self.file(&format!("{name}/profile.yaml"), PROFILE);
        let history = folder.join("history.jsonl");
        let mut spec = ProcessSpec::new(name, Binary::Agent.path())
            .args(arguments.iter().copied())
            .args(["--hub", &hubs.join(","), "--metrics-listen", "127.0.0.1:0"]);
        for (flag, path) in [
            (
                "--state-dir",
                &self.harness.folder(&format!("{name}/state")),
            ),
            ("--inventory", &inventory),
            ("--simulated-profile", &profile),
            ("--simulated-state", &folder.join("cluster.json")),
            ("--simulated-history", &history),
        ] {
            spec = spec.args([Path::new(flag).as_os_str(), path.as_os_str()]);
        }
        let process = self.harness.start(self.traced(spec));
        Agent {
            process: process.expect("the binary starts"),
            history,
        }
    }

    fn traced(&self, spec: ProcessSpec) -> ProcessSpec {
        match &self.otlp {
            None => spec,
            Some(to) => spec
                .args(["--otlp", to])
                .env("OTEL_BSP_SCHEDULE_DELAY", "100"),
        }
    }

    /// Writes a file into the deployment's folder and says where it is.
    ///
    /// # Panics
    /// When it cannot be written.
    #[must_use]
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.harness.folder("files").join("..").join(name);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).expect("a folder can be made in a folder of ours");
        }
        std::fs::write(&path, text).expect("a file can be written in a folder of ours");
        path
    }

    /// What processes share.
    #[must_use]
    pub fn harness(&self) -> &Harness {
        &self.harness
    }

    /// Who submits through whichever hub answers.
    #[must_use]
    pub fn submitter(&self) -> Submitter {
        let clients = self.hubs.iter().map(Hub::client).collect();
        Submitter::new(clients, self.harness.clock().clone())
    }

    /// A client of the first hub.
    #[must_use]
    pub fn client(&self) -> Client {
        self.hubs[0].client()
    }

    /// Looks again and again until there is something, and returns it.
    ///
    /// # Panics
    /// When there is nothing within `limit`.
    pub async fn until<T>(
        &self,
        what: &str,
        limit: Millis,
        mut look: impl AsyncFnMut() -> Option<T>,
    ) -> T {
        let looking = async {
            loop {
                if let Some(found) = look().await {
                    return found;
                }
                self.harness.clock().sleep(LOOK_EVERY).await;
            }
        };
        let found = self.harness.clock().timeout(limit, looking).await;
        found.unwrap_or_else(|_| panic!("not within {limit}: {what}"))
    }

    /// Waits until so many GPUs are free in the fleet.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub async fn gpus_counted(&self, gpus: u64) {
        let free = async |client: &Client| {
            let pools = client.capacity("", false).await.ok()?.pools;
            let free: u64 = pools.iter().map(|pool| pool.free_milli_gpus).sum();
            (free == gpus * 1000).then_some(())
        };
        let what = format!("{gpus} GPUs are free");
        let look = async || {
            for hub in &self.hubs {
                if free(&hub.client()).await.is_some() {
                    return Some(());
                }
            }
            None
        };
        self.until(&what, LONG, look).await;
    }

    /// All jobs, or `None` while no hub answers.
    pub async fn jobs(&self) -> Option<Vec<Value>> {
        let kind = Resource::of::<FederatedJobSpec>();
        for hub in &self.hubs {
            let all = ListOptions::default();
            if let Ok(listing) = hub.client().list(&kind, None, &all).await {
                return Some(listing.items);
            }
        }
        None
    }

    /// Waits until a job of that phase is there.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub async fn some_job_is(&self, phase: &str) {
        let what = format!("a job is {phase}");
        let is = |job: &Value| job["status"]["phase"] == phase;
        let look = async || self.jobs().await?.iter().any(is).then_some(());
        self.until(&what, LONG, look).await;
    }

    /// Waits until so many jobs have succeeded.
    ///
    /// # Panics
    /// When that does not happen in time, with what the others are.
    pub async fn jobs_succeeded(&self, count: usize) {
        let what = format!("{count} jobs have succeeded");
        let look = async || {
            let jobs = self.jobs().await?;
            let done = jobs
                .iter()
                .filter(|job| job["status"]["phase"] == "Succeeded");
            (done.count() == count).then_some(())
        };
        let (clock, limit) = (self.harness.clock(), LONG);
        let waited = clock.timeout(limit, self.until(&what, Millis::seconds(3600), look));
        if waited.await.is_err() {
            let jobs = self.jobs().await.unwrap_or_default();
            let line = |job: &Value| format!("{} {}\n", job["metadata"]["name"], job["status"]);
            let lines: String = jobs.iter().map(line).collect();
            panic!("not within {limit}: {what}:\n{lines}");
        }
    }

    /// Lines of level ERROR and panics of every process, but those that contain one of `expected`.
    #[must_use]
    pub fn errors(&self, expected: &[&str]) -> Vec<String> {
        let hubs = self.hubs.iter().map(|hub| &hub.process);
        let processes = hubs.chain(self.agents.iter().map(|agent| &agent.process));
        let mut found = Vec::new();
        for process in processes {
            let panics = process.lines().into_iter();
            let panics = panics.filter(|line| line.contains("panicked at"));
            let lines = process.errors().into_iter().chain(panics);
            let unexpected = lines.filter(|line| !expected.iter().any(|word| line.contains(word)));
            found.extend(unexpected.map(|line| format!("{}: {line}", process.name())));
        }
        found
    }
}

/// [`REGION`] with [`CLUSTER`].
#[must_use]
pub fn fleet_document() -> String {
    format!(
        "apiVersion: meridian.dev/v1alpha1\nkind: Region\nmetadata: {{name: {REGION}}}\n\
         spec: {{timeZone: Europe/Dublin}}\n---\n{}",
        cluster_document(CLUSTER)
    )
}

/// A member cluster of [`REGION`].
#[must_use]
pub fn cluster_document(name: &str) -> String {
    format!(
        "apiVersion: meridian.dev/v1alpha1\nkind: MemberCluster\nmetadata: {{name: {name}}}\n\
         spec: {{region: {REGION}}}\n"
    )
}

/// Hosts of one pool in racks of two.
fn inventory(hosts: u32) -> String {
    let host = |host: u32| {
        let rack = host / 2;
        format!(
            "  - {{name: n{host}, domains: [b0, b0-r{rack}], resources: \
             {{gpus: {GPUS_PER_HOST}, cpuMilli: 96000, memoryMib: 786432}}}}\n"
        )
    };
    let hosts: String = (0..hosts).map(host).collect();
    format!("pools:\n- name: h100\n  flavor: h100-80gb\n  levels: [block, rack]\n  nodes:\n{hosts}")
}
