//! A hub and an agent over a real member cluster, and jobs that run on its nodes.
//!
//! Owns how the two are put together. The member cluster is the caller's, and outlives this.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{
    Access, Agent, CLUSTER, Deployment, DeploymentPlan, FAIL_POINT, FailPoint, HubStore, JobBuilder,
};
use crate::member::{MemberCluster, trainer_spec};
use crate::ports::free_address;
use crate::process::ProcessSpec;
use crate::tools::Binary;

/// The agent of a real cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentPlan {
    /// More settings, as lines of its configuration file.
    pub settings: String,
    /// Whether it dies where [`Deployment::fail_point`] says.
    pub mortality: Mortality,
}

/// Whether an agent asks a fail point whether to go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mortality {
    /// It is the agent that ships.
    #[default]
    None,
    /// It asks after each step.
    Asks,
}

impl Deployment {
    /// Starts a hub and the agent of `member`, which speaks for [`CLUSTER`], and waits until the
    /// cluster's `gpus` are counted.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub async fn over(member: &MemberCluster, plan: &AgentPlan, gpus: u64) -> Self {
        Self::through(member, member.kubeconfig(), plan, gpus).await
    }

    /// The same with an agent that reaches its cluster as a kubeconfig says.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub async fn through(
        member: &MemberCluster,
        kubeconfig: &Path,
        plan: &AgentPlan,
        gpus: u64,
    ) -> Self {
        let mut deployment = Self::of_hubs(&DeploymentPlan::default()).await;
        deployment.declare().await;
        let agent = deployment.agent_of(member, kubeconfig, plan);
        deployment.agents.push(agent);
        deployment.gpus_counted(gpus).await;
        deployment
    }

    /// Starts a hub over `store` that asks for certificates and an agent that joins for each of
    /// these clusters under its name, and waits until their `gpus` are counted.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub async fn joined(store: HubStore, members: &[(&MemberCluster, &str)], gpus: u64) -> Self {
        let plan = DeploymentPlan {
            store,
            access: Access::Joined,
            ..DeploymentPlan::default()
        };
        let mut deployment = Self::of_hubs(&plan).await;
        deployment.declare().await;
        for (member, cluster) in members {
            deployment.join_agent_of(member, cluster).await;
        }
        deployment.gpus_counted(gpus).await;
        deployment
    }

    /// Submits a job as a person does.
    ///
    /// # Panics
    /// When it is refused.
    pub async fn submit(&self, job: JobBuilder) {
        let file = self.file("job.yaml", &job.text()).display().to_string();
        self.meridian(["submit", "-f", &file]).await.succeeded();
    }

    /// The status of a job.
    ///
    /// # Panics
    /// When there is no such job.
    pub async fn status_of(&self, job: &str) -> Value {
        let jobs = self.jobs().await.expect("the hub answers");
        let mut named = jobs.into_iter();
        let found = named.find(|known| known["metadata"]["name"] == job);
        found.expect("it is there")["status"].clone()
    }

    /// Invites an agent that speaks for `cluster` and reaches `member`, and starts it: it joins.
    /// Does not wait for it.
    ///
    /// # Panics
    /// When the hub refuses, or the binary does not start.
    pub async fn join_agent_of(&mut self, member: &MemberCluster, cluster: &str) {
        let invitation = self.invite(cluster).await;
        let token = self.token_file(cluster, &invitation);
        let hubs: Vec<String> = self.hubs.iter().map(|hub| hub.agents.to_string()).collect();
        let spec = ProcessSpec::new(format!("agent {cluster}"), Binary::Agent.path())
            .args(["--backend", "kubernetes", "--hub", &hubs.join(",")])
            .args(["--metrics-listen", "127.0.0.1:0"])
            .args(answers(member))
            .args(["--ca-hash", &invitation.ca_hash])
            .args([Path::new("--join-token-file"), &token])
            .args([Path::new("--kubeconfig"), member.kubeconfig()])
            .args([Path::new("--state-dir"), &self.state_of(cluster)]);
        let process = self.harness().start(spec).expect("the binary starts");
        let history = self.harness().folder(cluster).join("no-simulated-history");
        self.agents.push(Agent { process, history });
    }

    /// Where the agent of [`Self::over`] dies, if its plan says that it asks.
    #[must_use]
    pub fn fail_point(&self) -> FailPoint {
        FailPoint::new(self.harness().folder("agent").join("fail-point"))
    }

    /// An agent on the API of a real cluster.
    fn agent_of(&self, member: &MemberCluster, kubeconfig: &Path, plan: &AgentPlan) -> Agent {
        let hubs: Vec<String> = self.hubs.iter().map(|hub| hub.agents.to_string()).collect();
        let folder = self.harness().folder("agent");
        let binary = match plan.mortality {
            Mortality::None => Binary::Agent,
            Mortality::Asks => Binary::MortalAgent,
        };
        let settings: PathBuf = self.file("agent/settings.yaml", &plan.settings);
        let mut spec = ProcessSpec::new("agent", binary.path())
            .args(["--backend", "kubernetes", "--cluster", CLUSTER])
            .args(["--insecure-hub", "--hub", &hubs.join(",")])
            .args(["--metrics-listen", "127.0.0.1:0"])
            .args(answers(member))
            .args([Path::new("--kubeconfig"), kubeconfig])
            .args([Path::new("--state-dir"), &folder.join("state")])
            .env(FAIL_POINT, self.fail_point().file());
        if !plan.settings.is_empty() {
            spec = spec.args([Path::new("--config"), &settings]);
        }
        let process = self.harness().start(spec);
        Agent {
            process: process.expect("the binary starts"),
            history: folder.join("no-simulated-history"),
        }
    }
}

/// Where an agent listens for the answers of pods on real nodes.
fn answers(member: &MemberCluster) -> Vec<String> {
    if member.nodes().is_empty() {
        return Vec::new();
    }
    let at = SocketAddrV4::new(member.gateway(), free_address().port());
    let (listen, url) = (at.to_string(), format!("http://{at}"));
    ["--answers-listen", &listen, "--answers-url", &url]
        .map(str::to_owned)
        .to_vec()
}

impl JobBuilder {
    /// Runs the training stand-in on real nodes. `variables` go to it:
    /// [`crate::member::trainer`] names them.
    #[must_use]
    pub fn trains(self, member: &MemberCluster, variables: &[(&str, &str)]) -> Self {
        let variables = variables.iter();
        let variables: BTreeMap<String, String> = variables
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let spec = trainer_spec(&member.heartbeats(), &variables);
        self.with("/spec/roles/0/template", json!({"spec": spec}))
    }
}
