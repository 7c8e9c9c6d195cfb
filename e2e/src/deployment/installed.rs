//! An agent installed in a real member cluster by the line that `meridian cluster join` prints.
//!
//! Owns the way from that line to an agent with the rights it gives, and no others. The agent runs
//! beside the cluster rather than in a pod of it, with everything else as its Deployment says.

use std::path::{Path, PathBuf};

use k8s_openapi::api::apps::v1::Deployment as Workload;
use k8s_openapi::api::core::v1::{EnvVar, Secret};
use kube::Api;
use kube::config::Kubeconfig;
use serde_json::{Value, json};

use super::{Access, Agent, CLUSTER, Deployment, DeploymentPlan, LONG};
use crate::member::MemberCluster;
use crate::process::ProcessSpec;
use crate::tools::Binary;

/// The namespace that the line makes.
pub const INSTALLED_IN: &str = "meridian-system";
/// What the agent, its rights and its token are called there.
pub const INSTALLED_AS: &str = "meridian-agent";

impl Deployment {
    /// Starts a hub that asks for certificates, runs the line that invites the agent of `member`
    /// with `kubectl`, a file, starts the agent as its Deployment says with the token of its
    /// service account, and waits until the cluster's `gpus` are counted.
    ///
    /// # Panics
    /// When the line fails, or something does not happen in time.
    pub async fn installed(member: &MemberCluster, kubectl: &Path, gpus: u64) -> Self {
        let mut deployment = Self::of_hubs(&DeploymentPlan {
            access: Access::Joined,
            ..DeploymentPlan::default()
        })
        .await;
        deployment.declare().await;
        deployment.run_line(member, kubectl).await;
        let token = deployment.account_token(member, kubectl).await;
        let agent = deployment.installed_agent(member, &token).await;
        deployment.agents.push(agent);
        deployment.gpus_counted(gpus).await;
        deployment
    }

    /// Pastes the line into a shell.
    async fn run_line(&self, member: &MemberCluster, kubectl: &Path) {
        let bin = self.harness().folder("bin");
        for (name, file) in [("meridian", &*Binary::Cli.path()), ("kubectl", kubectl)] {
            std::os::unix::fs::symlink(file, bin.join(name)).expect("a link can be made");
        }
        let line = self.invite(CLUSTER).await.line;
        let shell = ProcessSpec::new("sh", "/bin/sh")
            .env("PATH", &bin)
            .env("HOME", self.harness().folder("installer"))
            .env("KUBECONFIG", member.kubeconfig())
            .args(["-c", &line]);
        let output = self.harness().output(&shell, LONG).await;
        let output = output.unwrap_or_else(|error| panic!("{error}"));
        assert!(output.status.success(), "{line}\n{output:?}");
    }

    /// What the kubelet would give to the agent's pod.
    async fn account_token(&self, member: &MemberCluster, kubectl: &Path) -> String {
        let spec = ProcessSpec::new("kubectl", kubectl)
            .env("HOME", self.harness().folder("installer"))
            .env("KUBECONFIG", member.kubeconfig())
            .args(["-n", INSTALLED_IN, "create", "token", INSTALLED_AS]);
        let output = self.harness().output(&spec, LONG).await;
        let output = output.unwrap_or_else(|error| panic!("{error}"));
        assert!(output.status.success(), "{output:?}");
        let token = String::from_utf8(output.stdout).expect("a token is ASCII");
        token.trim().to_owned()
    }

    /// The process that the Deployment describes; what a pod would mount is in files instead.
    async fn installed_agent(&self, member: &MemberCluster, token: &str) -> Agent {
        let folder = self.harness().folder("agent");
        let workloads = Api::<Workload>::namespaced(member.client(), INSTALLED_IN);
        let workload = workloads.get(INSTALLED_AS).await.expect("the line made it");
        let template = workload.spec.expect("it has a spec").template;
        let container = &template.spec.expect("it has a pod").containers[0];
        let mut spec = ProcessSpec::new("agent", Binary::Agent.path());
        for EnvVar { name, value, .. } in container.env.iter().flatten() {
            let mounted = match name.as_str() {
                "MERIDIAN_AGENT_STATE_DIR" => Some(folder.join("state")),
                "MERIDIAN_AGENT_JOIN_TOKEN_FILE" => Some(self.join_token(member).await),
                // A pod has an address of its own, this process has the machine's.
                "MERIDIAN_AGENT_ANSWERS_LISTEN" => Some("127.0.0.1:0".into()),
                _ => None,
            };
            let value = value.clone().unwrap_or_default();
            spec = spec.env(
                name,
                mounted.map_or(value, |path| path.display().to_string()),
            );
        }
        let kubeconfig = self.file("agent/kubeconfig", &kubeconfig_of(member, token));
        let spec = spec
            .args(["--metrics-listen", "127.0.0.1:0"])
            .args([Path::new("--kubeconfig"), &kubeconfig]);
        let process = self.harness().start(spec).expect("the binary starts");
        let history = folder.join("no-simulated-history");
        Agent { process, history }
    }

    async fn join_token(&self, member: &MemberCluster) -> PathBuf {
        let secrets = Api::<Secret>::namespaced(member.client(), INSTALLED_IN);
        let name = format!("{INSTALLED_AS}-join");
        let secret = secrets.get(&name).await.expect("the line made it");
        let token = secret.data.unwrap_or_default()["token"].0.clone();
        let token = String::from_utf8(token).expect("a token is ASCII");
        self.file("agent/token", &token)
    }
}

/// The member's address and authority, and a token in place of every right.
fn kubeconfig_of(member: &MemberCluster, token: &str) -> String {
    let every_right = Kubeconfig::read_from(member.kubeconfig()).expect("it is ours");
    let mut config = serde_json::to_value(every_right).expect("it is plain data");
    config["users"][0]["user"] = json!({"token": token});
    Value::to_string(&config)
}
