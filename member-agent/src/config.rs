//! The one configuration of an agent: from a file, the environment and flags, in rising order.
//!
//! Owns every setting with its default and its documentation; `meridian-agent --print-schema`
//! shows it. Never reads anything by itself but the file it is told to.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Everything that can be set. Unknown fields are errors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AgentConfig {
    /// Name of the member cluster that this agent speaks for.
    pub cluster: String,
    /// Agents' addresses of hub replicas, `host:port`; any one leads to the leader.
    pub hubs: Vec<String>,
    /// Folder of what must survive a crash. One agent at a time.
    pub state_dir: PathBuf,
    /// Where `/healthz`, `/readyz` and `/metrics` are served; loopback only, since nobody is
    /// identified there. Port 0 picks a free one, which the log tells.
    pub metrics_listen: String,
    /// The simulated cluster.
    pub simulated: SimulatedConfig,
    /// Logs and traces.
    pub telemetry: TelemetryConfig,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            cluster: String::new(),
            hubs: vec!["127.0.0.1:7443".to_owned()],
            state_dir: PathBuf::from("meridian-agent"),
            metrics_listen: "127.0.0.1:0".to_owned(),
            simulated: SimulatedConfig::default(),
            telemetry: TelemetryConfig::default(),
        }
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

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            filter: "info".to_owned(),
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
        if self.cluster.is_empty() {
            let must = "name the member cluster, --cluster NAME";
            return wrong("cluster", "", must);
        }
        if self.hubs.is_empty() || self.hubs.iter().any(|hub| !hub.contains(':')) {
            let must = "one or more of host:port, --hub HOST:PORT";
            return wrong("hubs", &self.hubs.join(","), must);
        }
        if self.simulated.inventory.is_none() {
            let must = "this build knows simulated clusters only, --inventory FILE";
            return wrong("simulated.inventory", "", must);
        }
        if self.simulated.history.is_some() && self.simulated.state.is_none() {
            let must = "truth outlives the process only with its cluster, --simulated-state FILE";
            return wrong("simulated.state", "", must);
        }
        if !is_loopback(&self.metrics_listen) {
            let must = "a loopback address such as 127.0.0.1:9100, nobody is identified there";
            return wrong("metricsListen", &self.metrics_listen, must);
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
        assert!(fault(|config| config.cluster.clear()).contains("--cluster NAME"));
        assert!(fault(|config| config.hubs.clear()).contains("--hub HOST:PORT"));
        assert!(
            fault(|config| config.metrics_listen = "0.0.0.0:1".to_owned()).contains("loopback")
        );
        assert!(fault(|config| config.simulated.inventory = None).contains("--inventory FILE"));
        let lone = |config: &mut AgentConfig| config.simulated.history = Some("h".into());
        assert!(fault(lone).contains("--simulated-state FILE"));
    }
}
