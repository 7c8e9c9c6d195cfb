//! The two services of identities: agents join and renew, people invite and revoke.
//!
//! Owns the way from a call to a right. Who may call what: `Join` whoever holds a token; `Renew`
//! whoever holds an agent's key; `Invite` and `Revoke` whoever reaches the users' listener. Never
//! logs a token.

use meridian_api::errors::{ApiError, ErrorCode};
use meridian_api::units::Millis;
use meridian_proto::v1::agent_admission_service_server::AgentAdmissionService;
use meridian_proto::v1::join_service_server::JoinService;
use meridian_proto::{status, v1};
use meridian_runtime::network::Peer;
use tonic::{Request, Response, Status};

use super::{Identities, Issued};

/// On the agents' listener.
#[derive(Clone)]
pub(crate) struct Joins(pub(crate) Identities);

#[tonic::async_trait]
impl JoinService for Joins {
    async fn join(
        &self,
        request: Request<v1::JoinRequest>,
    ) -> Result<Response<v1::JoinResponse>, Status> {
        let from = peer(&request);
        let v1::JoinRequest { token, csr } = request.into_inner();
        let issued = self.0.join(&token, &csr).await;
        self.answer("join", from.as_ref(), issued)
    }

    async fn renew(
        &self,
        request: Request<v1::RenewRequest>,
    ) -> Result<Response<v1::JoinResponse>, Status> {
        let from = peer(&request);
        let issued = self.0.renew(from.as_ref(), &request.into_inner().csr).await;
        self.answer("renew", from.as_ref(), issued)
    }
}

impl Joins {
    fn answer(
        &self,
        call: &'static str,
        from: Option<&Peer>,
        issued: Result<Issued, ApiError>,
    ) -> Result<Response<v1::JoinResponse>, Status> {
        match issued {
            Ok(issued) => Ok(Response::new(v1::JoinResponse {
                cluster: issued.cluster,
                chain: issued.chain,
                authorities: self.0.authorities().to_owned(),
                valid_ms: issued.valid.0,
            })),
            Err(error) => {
                let peer = from.map(|peer| peer.address.as_str()).unwrap_or_default();
                tracing::warn!(call, peer, code = %error.code, %error, "refused");
                Err(status::to_status(&error))
            }
        }
    }
}

fn peer<T>(request: &Request<T>) -> Option<Peer> {
    request.extensions().get::<Peer>().cloned()
}

/// On the users' listener.
#[derive(Clone)]
pub(crate) struct Admission {
    /// `None` when agents need no certificate.
    pub(crate) identities: Option<Identities>,
    /// Agents' address of this hub, as it advertises it.
    pub(crate) hub: String,
}

#[tonic::async_trait]
impl AgentAdmissionService for Admission {
    async fn invite(
        &self,
        request: Request<v1::InviteRequest>,
    ) -> Result<Response<v1::InviteResponse>, Status> {
        let request = request.into_inner();
        let ttl = (request.ttl_ms > 0).then_some(Millis(request.ttl_ms));
        let identities = self.identities()?;
        let invited = identities.invite(&request.cluster, ttl, request.dry_run);
        let (token, ttl) = invited.await.map_err(|error| status::to_status(&error))?;
        let token = if request.dry_run {
            String::new()
        } else {
            token.reveal()
        };
        Ok(Response::new(v1::InviteResponse {
            cluster: request.cluster,
            token,
            ttl_ms: ttl.0,
            hub: self.hub.clone(),
            ca_hash: identities.ca_hash(),
        }))
    }

    async fn revoke(
        &self,
        request: Request<v1::RevokeRequest>,
    ) -> Result<Response<v1::RevokeResponse>, Status> {
        let v1::RevokeRequest { cluster, dry_run } = request.into_inner();
        let revoked = self.identities()?.revoke(&cluster, dry_run).await;
        let changed = revoked.map_err(|error| status::to_status(&error))?;
        Ok(Response::new(v1::RevokeResponse { changed }))
    }
}

impl Admission {
    fn identities(&self) -> Result<&Identities, Status> {
        self.identities.as_ref().ok_or_else(|| {
            let message = "this hub asks its agents for no certificate, so there is none to give \
                           or to take";
            let error = ApiError::new(ErrorCode::Denied, message)
                .help("start the hub without --insecure-agents");
            status::to_status(&error)
        })
    }
}
