//! A hub and an agent over a real member cluster, and jobs that run on its nodes.
//!
//! Owns how the two are put together. The member cluster is the caller's, and outlives this.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use super::{Agent, CLUSTER, Deployment, DeploymentPlan, JobBuilder};
use crate::member::{MemberCluster, trainer_spec};
use crate::process::ProcessSpec;
use crate::tools::Binary;

impl Deployment {
    /// Starts a hub and the agent of `member`, which speaks for [`CLUSTER`], and waits until the
    /// cluster's `gpus` are counted.
    ///
    /// # Panics
    /// When that does not happen in time.
    pub async fn over(member: &MemberCluster, gpus: u64) -> Self {
        let mut deployment = Self::of_hubs(&DeploymentPlan::default()).await;
        deployment.declare().await;
        let agent = deployment.agent_of(member);
        deployment.agents.push(agent);
        deployment.gpus_counted(gpus).await;
        deployment
    }

    /// An agent on the API of a real cluster.
    fn agent_of(&self, member: &MemberCluster) -> Agent {
        let hubs: Vec<String> = self.hubs.iter().map(|hub| hub.agents.to_string()).collect();
        let folder = self.harness().folder("agent");
        let spec = ProcessSpec::new("agent", Binary::Agent.path())
            .args(["--backend", "kubernetes", "--cluster", CLUSTER])
            .args(["--insecure-hub", "--hub", &hubs.join(",")])
            .args(["--metrics-listen", "127.0.0.1:0"])
            .args([Path::new("--kubeconfig"), member.kubeconfig()])
            .args([Path::new("--state-dir"), &folder.join("state")]);
        let process = self.harness().start(spec);
        Agent {
            process: process.expect("the binary starts"),
            history: folder.join("no-simulated-history"),
        }
    }
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
