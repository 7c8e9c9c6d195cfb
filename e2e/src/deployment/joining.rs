//! Agents that join: invited as a person does it, started as the printed line would.
//!
//! Owns the way from an invitation to an agent's process. What a test asserts is the test's own.

use std::path::PathBuf;

use serde_json::Value;

use super::{Agent, Deployment, REGION};

/// What `meridian cluster join` says.
#[derive(Clone, Debug)]
pub struct Invitation {
    /// The token.
    pub token: String,
    /// Whose hubs are believed.
    pub ca_hash: String,
    /// The line for the member cluster.
    pub line: String,
}

impl Deployment {
    /// Invites an agent of `cluster`, adding it when it is not there.
    ///
    /// # Panics
    /// When the hub refuses.
    pub async fn invite(&self, cluster: &str) -> Invitation {
        self.invite_for(cluster, "15m").await
    }

    /// Invites an agent with a token that is good for `ttl`.
    ///
    /// # Panics
    /// When the hub refuses.
    pub async fn invite_for(&self, cluster: &str, ttl: &str) -> Invitation {
        let arguments = ["cluster", "join", cluster, "--region", REGION, "--ttl", ttl];
        let ran = self
            .meridian(arguments.into_iter().chain(["-o", "json"]))
            .await;
        ran.succeeded();
        let said: Value = serde_json::from_str(&ran.out).expect("JSON, as asked for");
        let text = |field: &str| said[field].as_str().unwrap_or_default().to_owned();
        Invitation {
            token: text("token"),
            ca_hash: text("caHash"),
            line: text("line"),
        }
    }

    /// The folder that an agent called `name` keeps its state in.
    #[must_use]
    pub fn state_of(&self, name: &str) -> PathBuf {
        self.harness.folder(&format!("{name}/state"))
    }

    /// An agent that joins on an invitation, with a folder called `name`. Does not wait.
    ///
    /// # Panics
    /// When the binary does not start.
    #[must_use]
    pub fn joining_agent(&self, name: &str, invitation: &Invitation, hosts: u32) -> Agent {
        let token = self.token_file(name, invitation);
        let token = token.display().to_string();
        let hash = invitation.ca_hash.as_str();
        self.agent_with(
            name,
            hosts,
            &["--join-token-file", &token, "--ca-hash", hash],
        )
    }

    /// Puts the token of an invitation where the agent called `name` reads it.
    #[must_use]
    pub fn token_file(&self, name: &str, invitation: &Invitation) -> PathBuf {
        self.file(&format!("{name}/token"), &format!("{}\n", invitation.token))
    }
}
