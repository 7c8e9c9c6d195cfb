//! The one configuration of an agent: from a file, the environment and flags, in rising order.
//!
//! Owns every setting with its default and its documentation; `meridian-agent --print-schema`
//! shows it. Never reads anything by itself but the file it is told to.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

use meridian_api::join::JoinToken;
use meridian_runtime::tls::CaPin;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kubernetes::inventory::{BadInventoryConfig, InventoryConfig};
use crate::kubernetes::{MACHINE_GONE_AFTER, NODE_LOST_AFTER};

/// Everything that can be set. Unknown fields are errors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AgentConfig {
    /// Name of the member cluster that this agent speaks for; empty = the one it joins as.
    pub cluster: String,
    /// Agents' addresses of hub replicas, `host:port`; any one leads to the leader.
    pub hubs: Vec<String>,
    /// How it comes by its certificate.
    pub join: JoinConfig,
    /// Dial hubs in the clear and without a certificate, as hubs with `insecureAgents` let it.
    pub insecure_hub: bool,
    /// Folder of what must survive a crash. One agent at a time.
    pub state_dir: PathBuf,
    /// Where `/healthz`, `/readyz` and `/metrics` are served; loopback only, since nobody is
    /// identified there. Port 0 picks a free one, which the log tells.
    pub metrics_listen: String,
    /// What the member cluster is.
    pub backend: BackendKind,
    /// The simulated cluster.
    pub simulated: SimulatedConfig,
    /// The cluster behind a Kubernetes API.
    pub kubernetes: KubernetesConfig,
    /// Logs and traces.
    pub telemetry: TelemetryConfig,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            cluster: String::new(),
            hubs: vec!["127.0.0.1:7443".to_owned()],
            join: JoinConfig::default(),
            insecure_hub: false,
            state_dir: PathBuf::from("meridian-agent"),
            metrics_listen: "127.0.0.1:0".to_owned(),
            backend: BackendKind::default(),
            simulated: SimulatedConfig::default(),
            kubernetes: KubernetesConfig::default(),
            telemetry: TelemetryConfig::default(),
        }
    }
}

/// What a member cluster is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum BackendKind {
    /// Simulated beside the agent.
    #[default]
    Simulated,
    /// Behind a Kubernetes API.
    Kubernetes,
}

/// A cluster behind a Kubernetes API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct KubernetesConfig {
    /// Kubeconfig with the credentials; absent = the service account of this pod.
    pub kubeconfig: Option<PathBuf>,
    /// Context of it; absent = its current one.
    pub context: Option<String>,
    /// Whether the namespace of a job is made when it is not there.
    pub create_namespaces: bool,
    /// Where pods of gangs may call, `host:port`: each is believed for itself alone, by a token.
    /// Absent = nowhere; they answer by annotations.
    pub answers_listen: Option<String>,
    /// What that address is to pods: `http://meridian-agent.meridian-system.svc:7790`.
    pub answers_url: Option<String>,
    /// Table of flavors (YAML) that goes before the one that ships.
    pub flavors: Option<PathBuf>,
    /// Pools, levels and taints.
    pub inventory: InventoryConfig,
    /// A node that is not ready for so long has lost its pods: their gangs are ended and started
    /// again. Their old pods still count until their kubelet or the operator says that they ended.
    pub node_lost_after_seconds: u64,
    /// A node object that is gone, or has the taint `node.kubernetes.io/out-of-service`, for so
    /// long takes the pods that were asked to end with it.
    pub machine_gone_after_seconds: u64,
}

impl Default for KubernetesConfig {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            context: None,
            create_namespaces: true,
            answers_listen: None,
            answers_url: None,
            flavors: None,
            inventory: InventoryConfig::default(),
            node_lost_after_seconds: NODE_LOST_AFTER.0 / 1000,
            machine_gone_after_seconds: MACHINE_GONE_AFTER.0 / 1000,
        }
    }
}

/// What `meridian cluster join NAME` prints. Needed once: then the certificate in the state folder
/// counts, until another token is given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct JoinConfig {
    /// The token.
    pub token: Option<SecretText>,
    /// A file that holds the token.
    pub token_file: Option<PathBuf>,
    /// Hash of the public key of the hub's authority, `sha256:HEX`.
    pub ca_hash: Option<String>,
}

/// A text that is not shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct SecretText(String);

impl SecretText {
    /// A text that is not to be shown.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl JoinConfig {
    /// The token, from where it is.
    pub fn token(&self) -> Result<Option<JoinToken>, ConfigError> {
        let (field, text) = match (&self.token, &self.token_file) {
            (Some(SecretText(text)), _) => ("join.token", text.clone()),
            (None, Some(file)) => ("join.tokenFile", read(file)?),
            (None, None) => return Ok(None),
        };
        let token = text.trim().parse().map_err(|_| ConfigError::Setting {
            field,
            value: "***".to_owned(),
            must: "a join token as `meridian cluster join NAME` prints it",
        });
        token.map(Some)
    }

    /// The hash.
    pub fn ca_hash(&self) -> Result<Option<CaPin>, ConfigError> {
        let Some(text) = &self.ca_hash else {
            return Ok(None);
        };
        let pin = text.trim().parse().map_err(|_| ConfigError::Setting {
            field: "join.caHash",
            value: text.clone(),
            must: "sha256: and 64 hexadecimal digits, as `meridian cluster join NAME` prints it",
        });
        pin.map(Some)
    }
}

/// A cluster that is simulated beside the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SimulatedConfig {
    /// Its pools and nodes (YAML).
    pub inventory: Option<PathBuf>,
    /// Its delays and faults (YAML); absent = a healthy cluster.
    pub profile: Option<PathBuf>,
    /// All its delays and faults follow from this.
    pub seed: u64,
    /// File that keeps it; absent = it dies with this process.
    pub state: Option<PathBuf>,
    /// File that gets what really ran, as JSON lines; asks for `state`.
    pub history: Option<PathBuf>,
}

/// Logs and traces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TelemetryConfig {
    /// Filter of log lines.
    pub filter: String,
    /// One JSON object a line instead of text.
    pub json: bool,
    /// OTLP over gRPC: `http://host:4317`; absent exports nothing.
    pub otlp_endpoint: Option<String>,
}

/// The client of Kubernetes calls each answer that is no success an error, though the agent decides
/// what it means and says so itself: an API that is away is nothing for a person to look at.
const DEFAULT_FILTER: &str = "info,kube_client::client::builder=off";

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            filter: DEFAULT_FILTER.to_owned(),
            json: false,
            otlp_endpoint: None,
        }
    }
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("cannot read {path}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file has a mistake.
    #[error("{path} is wrong: {message}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where and what.
        message: String,
    },
    /// A setting that cannot be.
    #[error("{field} is {value:?}: {must}")]
    Setting {
        /// Which.
        field: &'static str,
        /// What it is.
        value: String,
        /// What it must be, and how to set it.
        must: &'static str,
    },
    /// How a Kubernetes cluster's nodes are read cannot be.
    #[error("kubernetes.inventory.{0}")]
    Inventory(#[from] BadInventoryConfig),
}

/// Reads a YAML file.
pub fn read_yaml<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    let text = read(path)?;
    serde_saphyr::from_str(&text).map_err(|error| ConfigError::Malformed {
        path: path.to_owned(),
        message: error.to_string(),
    })
}

/// Reads a text file.
pub fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
        path: path.to_owned(),
        source,
    })
}

impl AgentConfig {
    /// What can be known to be wrong before anything is opened.
    pub fn check(&self) -> Result<(), ConfigError> {
        let wrong = |field, value: &str, must| {
            Err(ConfigError::Setting {
                field,
                value: value.to_owned(),
                must,
            })
        };
        if self.insecure_hub && self.cluster.is_empty() {
            let must = "name the member cluster, --cluster NAME, where no certificate does";
            return wrong("cluster", "", must);
        }
        if self.insecure_hub && self.join != JoinConfig::default() {
            let must = "joining and --insecure-hub exclude each other";
            return wrong("insecureHub", "true", must);
        }
        self.join.ca_hash()?;
        if self.hubs.is_empty() || self.hubs.iter().any(|hub| !hub.contains(':')) {
            let must = "one or more of host:port, --hub HOST:PORT";
            return wrong("hubs", &self.hubs.join(","), must);
        }
        let simulated = self.backend == BackendKind::Simulated;
        if simulated && self.simulated.inventory.is_none() {
            let must = "describe the simulated cluster, --inventory FILE, \
                        or use a real one, --backend kubernetes";
            return wrong("simulated.inventory", "", must);
        }
        if self.simulated.history.is_some() && self.simulated.state.is_none() {
            let must = "truth outlives the process only with its cluster, --simulated-state FILE";
            return wrong("simulated.state", "", must);
        }
        self.kubernetes.inventory.check()?;
        self.kubernetes.check_answers()?;
        if !is_loopback(&self.metrics_listen) {
            let must = "a loopback address such as 127.0.0.1:9100, nobody is identified there";
            return wrong("metricsListen", &self.metrics_listen, must);
        }
        Ok(())
    }
}

impl KubernetesConfig {
    fn check_answers(&self) -> Result<(), ConfigError> {
        let (listen, url) = (&self.answers_listen, &self.answers_url);
        let wrong = |field, value: &Option<String>, must| {
            let value = value.clone().unwrap_or_default();
            Err(ConfigError::Setting { field, value, must })
        };
        if listen.is_some() != url.is_some() {
            let must = "give both --answers-listen HOST:PORT and --answers-url URL, or neither";
            return wrong("kubernetes.answersUrl", url, must);
        }
        let is_url = |url: &String| url.starts_with("http://") || url.starts_with("https://");
        if !url.as_ref().is_none_or(is_url) {
            let must = "what pods call, such as http://meridian-agent.meridian-system.svc:7790";
            return wrong("kubernetes.answersUrl", url, must);
        }
        Ok(())
    }
}

fn is_loopback(address: &str) -> bool {
    let Ok(addresses) = address.to_socket_addrs() else {
        return false;
    };
    let addresses: Vec<SocketAddr> = addresses.collect();
    !addresses.is_empty() && addresses.iter().all(|address| address.ip().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> AgentConfig {
        AgentConfig {
            cluster: "eu-west".to_owned(),
            simulated: SimulatedConfig {
                inventory: Some(PathBuf::from("inventory.yaml")),
                ..SimulatedConfig::default()
            },
            ..AgentConfig::default()
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_what_to_do() {
        assert!(good().check().is_ok());
        let fault = |change: fn(&mut AgentConfig)| {
            let mut config = good();
            change(&mut config);
            config.check().expect_err("wrong").to_string()
        };
        let unnamed = |config: &mut AgentConfig| {
            config.cluster.clear();
            config.insecure_hub = true;
        };
        assert!(fault(unnamed).contains("--cluster NAME"));
        let both = |config: &mut AgentConfig| {
            config.insecure_hub = true;
            config.join.token_file = Some("token".into());
        };
        assert!(fault(both).contains("exclude each other"));
        let pin = |config: &mut AgentConfig| config.join.ca_hash = Some("sha1:00".to_owned());
        assert!(fault(pin).contains("64 hexadecimal digits"));
        assert!(fault(|config| config.hubs.clear()).contains("--hub HOST:PORT"));
        assert!(
            fault(|config| config.metrics_listen = "0.0.0.0:1".to_owned()).contains("loopback")
        );
        assert!(fault(|config| config.simulated.inventory = None).contains("--inventory FILE"));
        let real = |config: &mut AgentConfig| {
            config.simulated.inventory = None;
            config.backend = BackendKind::Kubernetes;
        };
        let mut kubernetes = good();
        real(&mut kubernetes);
        assert!(
            kubernetes.check().is_ok(),
            "a real cluster needs no inventory"
        );
        let level = |config: &mut AgentConfig| {
            let yaml = "{levels: [{pool: train, levels: [{name: host, label: x}]}]}";
            config.kubernetes.inventory = serde_saphyr::from_str(yaml).expect("reads");
        };
        assert!(fault(level).starts_with("kubernetes.inventory.levels[0].levels[0].name: "));
        let half = |config: &mut AgentConfig| {
            config.kubernetes.answers_listen = Some("127.0.0.1:0".to_owned());
        };
        assert!(fault(half).contains("--answers-url URL"));
        let lone = |config: &mut AgentConfig| config.simulated.history = Some("h".into());
        assert!(fault(lone).contains("--simulated-state FILE"));
    }

    #[test]
    fn a_token_is_read_from_where_it_is_and_never_shown() {
        let secret = "c3".repeat(32);
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        std::fs::write(&file, format!("mj1.euw-a.{secret}\n")).expect("writable");
        let config = JoinConfig {
            token_file: Some(file),
            ..JoinConfig::default()
        };
        let token = config.token().expect("readable").expect("there");
        assert_eq!(token.cluster(), "euw-a");
        let config = JoinConfig {
            token: Some(SecretText::new(format!("mj2.{secret}"))),
            ..JoinConfig::default()
        };
        let shown = format!("{config:?} {}", config.token().expect_err("wrong"));
        assert!(!shown.contains(&secret), "{shown}");
    }
}
