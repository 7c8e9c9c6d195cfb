//! Who may speak for clusters: invitations of agents, and their end.
//!
//! Owns these calls. Never repeats one by itself: a second invitation would end the first.

use meridian_api::units::Millis;
use meridian_proto::v1;
use meridian_proto::v1::agent_admission_service_client::AgentAdmissionServiceClient;
use tonic::transport::Channel;

use crate::client::Client;
use crate::errors::ClientError;
use crate::objects::DryRun;

impl Client {
    fn admission(&self) -> AgentAdmissionServiceClient<Channel> {
        AgentAdmissionServiceClient::new(self.channel.clone())
    }

    /// Makes the token that lets one agent join as `cluster`, good for `ttl` or the hub's default.
    pub async fn invite_agent(
        &self,
        cluster: &str,
        ttl: Option<Millis>,
        dry_run: DryRun,
    ) -> Result<v1::InviteResponse, ClientError> {
        let request = v1::InviteRequest {
            cluster: cluster.to_owned(),
            ttl_ms: ttl.map_or(0, |ttl| ttl.0),
            dry_run: dry_run == DryRun::Server,
        };
        let mut service = self.admission();
        self.within("Invite", Box::pin(service.invite(request)))
            .await
    }

    /// Ends the right of a cluster's agent; true when it had one.
    pub async fn revoke_agent(&self, cluster: &str, dry_run: DryRun) -> Result<bool, ClientError> {
        let request = v1::RevokeRequest {
            cluster: cluster.to_owned(),
            dry_run: dry_run == DryRun::Server,
        };
        let mut service = self.admission();
        let answer = self.within("Revoke", Box::pin(service.revoke(request)));
        Ok(answer.await?.changed)
    }
}
