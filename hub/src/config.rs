//! The one configuration of a hub: from a file, the environment and flags, in rising order.
//!
//! Owns every setting with its default and its documentation; `meridian-hub --print-schema` shows
//! it. Never reads anything by itself but the file it is told to.

use std::path::{Path, PathBuf};

use meridian_api::units::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::leadership::LeadershipTerms;
use crate::model::ContactTerms;

/// Everything that can be set. Unknown fields are errors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HubConfig {
    /// Name of this replica, unique among the hub's replicas.
    pub name: String,
    /// Where users and their tools connect: Kubernetes API and gRPC on one port.
    pub users_listen: String,
    /// Where agents connect.
    pub agents_listen: String,
    /// The users' address as other replicas tell it; absent = `usersListen`.
    pub users_advertise: Option<String>,
    /// The agents' address as other replicas tell it; absent = `agentsListen`.
    pub agents_advertise: Option<String>,
    /// Nobody is identified yet: listeners bind to loopback only, unless this says in so many
    /// words that everybody who can reach them may do everything.
    pub allow_anonymous_from_anywhere: bool,
    /// Workload class of gangs that others make in a member cluster and that name none; absent =
    /// such gangs are not queued.
    pub offered_class: Option<String>,
    /// Whoever reaches the agents' listener may speak for any cluster, in the clear: for the
    /// playground, tests and first steps on one machine.
    pub insecure_agents: bool,
    /// The authority that issues agents' certificates, as files that every replica is given. Absent
    /// = made at the first start and kept in the store: then whoever can read the store or a backup
    /// of it can make itself any cluster's agent.
    pub agent_ca: Option<AgentCaFiles>,
    /// Certificates of agents and of their listener.
    pub agent_certificates: AgentCertificatesConfig,
    /// Where the truth is.
    pub store: StoreConfig,
    /// Terms of leadership, milliseconds.
    pub leadership: LeadershipConfig,
    /// Terms of contact with agents, milliseconds.
    pub contact: ContactConfig,
    /// Old revisions are kept this long for watches and paging, milliseconds.
    pub history: Millis,
    /// Folder in which each decision round is recorded, for `meridian replay`; absent records
    /// none. The newest 1,000 are kept, and at most 1 GiB.
    pub record_rounds: Option<PathBuf>,
    /// Logs and traces.
    pub telemetry: TelemetryConfig,
}

impl Default for HubConfig {
    fn default() -> Self {
        Self {
            name: "hub".to_owned(),
            users_listen: "127.0.0.1:7080".to_owned(),
            agents_listen: "127.0.0.1:7443".to_owned(),
            users_advertise: None,
            agents_advertise: None,
            allow_anonymous_from_anywhere: false,
            offered_class: None,
            insecure_agents: false,
            agent_ca: None,
            agent_certificates: AgentCertificatesConfig::default(),
            store: StoreConfig::default(),
            leadership: LeadershipConfig::default(),
            contact: ContactConfig::default(),
            history: Millis::seconds(600),
            record_rounds: None,
            telemetry: TelemetryConfig::default(),
        }
    }
}

/// An authority as PEM files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AgentCaFiles {
    /// Its certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// What certificates say and how long they last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AgentCertificatesConfig {
    /// Whose names they are: `spiffe://<trustDomain>/cluster/<name>`.
    pub trust_domain: String,
    /// Life of an agent's certificate, milliseconds. It is renewed after two thirds.
    pub validity: Millis,
    /// How long after its end an agent may still renew it, milliseconds: an agent that was cut off
    /// for longer must join again.
    pub renewable_for: Millis,
    /// Life of the listener's own certificate, milliseconds. It is renewed after two thirds.
    pub hub_validity: Millis,
    /// More names and addresses of this hub, for clients that check what they dial. Agents ask for
    /// the role `meridian-hub`, wherever they dial.
    pub hub_names: Vec<String>,
}

impl Default for AgentCertificatesConfig {
    fn default() -> Self {
        Self {
            trust_domain: "meridian".to_owned(),
            validity: Millis::seconds(24 * 3600),
            // A hub that is lost on Friday evening and rebuilt two weeks later finds its agents.
            renewable_for: Millis::seconds(30 * 24 * 3600),
            hub_validity: Millis::seconds(7 * 24 * 3600),
            hub_names: Vec::new(),
        }
    }
}

/// Where the truth is: in etcd, or in one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct StoreConfig {
    /// Endpoints of etcd, `http://host:2379`; when given, etcd is used.
    pub etcd: Vec<String>,
    /// Prefix of every key in etcd.
    pub etcd_prefix: String,
    /// The file of the embedded store; used when no endpoint is given.
    pub file: PathBuf,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            etcd: Vec::new(),
            etcd_prefix: "/meridian/".to_owned(),
            file: PathBuf::from("meridian.db"),
        }
    }
}

/// See `LeadershipTerms`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LeadershipConfig {
    /// Life of the lease after its last renewal.
    pub ttl: Millis,
    /// Time between renewals.
    pub renew_every: Millis,
    /// Age of the last renewal at which a leader falls silent.
    pub silent_after: Millis,
    /// Time between fenced beats.
    pub beat_every: Millis,
}

impl Default for LeadershipConfig {
    fn default() -> Self {
        let terms = LeadershipTerms::default();
        Self {
            ttl: terms.ttl,
            renew_every: terms.renew_every,
            silent_after: terms.silent_after,
            beat_every: terms.beat_every,
        }
    }
}

/// When silence becomes suspicion, and more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ContactConfig {
    /// Time between an agent's beats.
    pub beat: Millis,
    /// Silence after which a cluster gets no new work.
    pub suspect: Millis,
    /// Silence after which it counts as unreachable.
    pub unreachable: Millis,
    /// Silence after which it counts as lost.
    pub lost: Millis,
}

impl Default for ContactConfig {
    fn default() -> Self {
        Self {
            beat: Millis::seconds(2),
            suspect: Millis::seconds(8),
            unreachable: Millis::seconds(20),
            lost: Millis::seconds(190),
        }
    }
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
    /// The file cannot be read.
    #[error("cannot read the configuration {path}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file has a mistake.
    #[error("the configuration {path} is wrong: {message}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where and what.
        message: String,
    },
    /// Settings that contradict each other.
    #[error("{field} is {value}: {must}")]
    Contradiction {
        /// Which.
        field: &'static str,
        /// What it is.
        value: String,
        /// What it must be.
        must: String,
    },
}

impl HubConfig {
    /// Reads a YAML file.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        serde_saphyr::from_str(&text).map_err(|error| ConfigError::Malformed {
            path: path.to_owned(),
            message: error.to_string(),
        })
    }

    /// Refuses settings that contradict each other or are not safe.
    pub fn check(&self) -> Result<(), ConfigError> {
        let lead = &self.leadership;
        later(
            "leadership.silentAfter",
            lead.silent_after,
            "leadership.renewEvery",
            lead.renew_every,
        )?;
        later(
            "leadership.ttl",
            lead.ttl,
            "leadership.silentAfter",
            lead.silent_after,
        )?;
        later(
            "leadership.ttl",
            lead.ttl,
            "leadership.beatEvery",
            lead.beat_every,
        )?;
        let contact = &self.contact;
        later(
            "contact.suspect",
            contact.suspect,
            "contact.beat",
            contact.beat,
        )?;
        later(
            "contact.unreachable",
            contact.unreachable,
            "contact.suspect",
            contact.suspect,
        )?;
        later(
            "contact.lost",
            contact.lost,
            "contact.unreachable",
            contact.unreachable,
        )?;
        self.check_certificates()?;
        self.check_listeners()
    }

    fn check_certificates(&self) -> Result<(), ConfigError> {
        let certificates = &self.agent_certificates;
        // Shorter ones would end between two tries to renew them.
        let least = Millis::seconds(10);
        for (field, life) in [
            ("agentCertificates.validity", certificates.validity),
            ("agentCertificates.hubValidity", certificates.hub_validity),
        ] {
            if life < least {
                return Err(ConfigError::Contradiction {
                    field,
                    value: life.to_string(),
                    must: format!("must be at least {least}"),
                });
            }
        }
        let domain = &certificates.trust_domain;
        let is_good =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
        if domain.is_empty() || domain.len() > 255 || !domain.bytes().all(is_good) {
            return Err(ConfigError::Contradiction {
                field: "agentCertificates.trustDomain",
                value: format!("{domain:?}"),
                must: "must be 1 to 255 of a-z, 0-9, dot, hyphen and underscore".to_owned(),
            });
        }
        Ok(())
    }

    fn check_listeners(&self) -> Result<(), ConfigError> {
        if self.allow_anonymous_from_anywhere {
            return Ok(());
        }
        let agents = self.insecure_agents.then_some(&self.agents_listen);
        let open = [
            ("usersListen", Some(&self.users_listen)),
            ("agentsListen", agents),
        ];
        for (field, address) in open {
            let Some(address) = address.filter(|address| !is_loopback(address)) else {
                continue;
            };
            return Err(ConfigError::Contradiction {
                field,
                value: address.clone(),
                must: "a loopback address while nobody is identified there, or set \
                       allowAnonymousFromAnywhere: true to open it to everybody who can reach it"
                    .to_owned(),
            });
        }
        Ok(())
    }

    /// Terms of leadership.
    #[must_use]
    pub fn leadership_terms(&self) -> LeadershipTerms {
        LeadershipTerms {
            ttl: self.leadership.ttl,
            renew_every: self.leadership.renew_every,
            silent_after: self.leadership.silent_after,
            beat_every: self.leadership.beat_every,
        }
    }

    /// Terms of contact.
    pub(crate) fn contact_terms(&self) -> ContactTerms {
        ContactTerms {
            suspect: self.contact.suspect,
            unreachable: self.contact.unreachable,
            lost: self.contact.lost,
        }
    }
}

fn later(
    field: &'static str,
    value: Millis,
    than: &'static str,
    other: Millis,
) -> Result<(), ConfigError> {
    if value > other {
        return Ok(());
    }
    let must = format!("must be longer than {than}, which is {other}");
    Err(ConfigError::Contradiction {
        field,
        value: value.to_string(),
        must,
    })
}

fn is_loopback(address: &str) -> bool {
    match address.parse::<std::net::SocketAddr>() {
        Ok(address) => address.ip().is_loopback(),
        Err(_) => address
            .rsplit_once(':')
            .is_some_and(|(host, _)| host == "localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_hold_together() {
        HubConfig::default()
            .check()
            .expect("defaults are consistent");
    }

    #[test]
    fn an_open_listener_is_refused_unless_said_in_so_many_words() {
        let open = HubConfig {
            users_listen: "0.0.0.0:7080".into(),
            ..HubConfig::default()
        };
        let error = open.check().expect_err("refused").to_string();
        assert!(error.contains("usersListen") && error.contains("allowAnonymousFromAnywhere"));
        HubConfig {
            allow_anonymous_from_anywhere: true,
            ..open
        }
        .check()
        .expect("told so");
    }

    #[test]
    fn agents_may_come_from_anywhere_only_with_certificates() {
        let open = HubConfig {
            agents_listen: "0.0.0.0:7443".into(),
            ..HubConfig::default()
        };
        open.check().expect("they prove who they are");
        let insecure = HubConfig {
            insecure_agents: true,
            ..open
        };
        let error = insecure.check().expect_err("refused").to_string();
        assert!(error.contains("agentsListen"), "{error}");
    }

    #[test]
    fn certificates_that_cannot_be_renewed_in_time_are_refused() {
        let mut config = HubConfig::default();
        config.agent_certificates.validity = Millis(9_999);
        assert!(config.check().is_err());
        config.agent_certificates = AgentCertificatesConfig {
            trust_domain: "a/b".to_owned(),
            ..AgentCertificatesConfig::default()
        };
        assert!(config.check().is_err());
    }

    #[test]
    fn terms_that_contradict_are_refused_with_both_numbers() {
        let mut config = HubConfig::default();
        config.leadership.silent_after = Millis::seconds(12);
        let error = config.check().expect_err("refused").to_string();
        assert!(
            error.contains("10000ms") && error.contains("12000ms"),
            "{error}"
        );
    }

    #[test]
    fn an_unknown_setting_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("hub.yaml");
        std::fs::write(&path, "userListen: 127.0.0.1:1\n").expect("writable");
        let error = HubConfig::read(&path).expect_err("refused").to_string();
        assert!(error.contains("userListen"), "{error}");
    }
}
