//! The agents' service: who may open a session.
//!
//! Owns the way from a call to a session: the lead, the hello, the protocol, the binding, and that
//! the youngest life of an agent has the only session. Never decides.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use futures::Stream;
use meridian_api::errors::{ApiError, ErrorCode};
use meridian_api::ids::Incarnation;
use meridian_api::units::Millis;
use meridian_proto::v1::agent_service_server::AgentService;
use meridian_proto::{status, v1};
use meridian_runtime::network::Peer;
use meridian_runtime::{Clock, Tasks};
use meridian_store::SharedStore;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::attach::{Attached, Presented, attach, protocol};
use super::logs::LogDesk;
use super::session::{OUTBOX, Session};
use super::{Orderbook, Refusals, SessionEvents};
use crate::fence::Fence;
use crate::identity::Identities;
use crate::leadership::{Leadership, Role};
use crate::model::{ContactTerms, Heard};
use crate::templates::Templates;

/// An agent that has not said hello by then is sent away.
const HELLO_WITHIN: Millis = Millis::seconds(10);

/// What sessions work with.
#[derive(Clone)]
pub(crate) struct SessionOptions {
    /// Time.
    pub(crate) clock: Clock,
    /// Where attaches are recorded.
    pub(crate) store: SharedStore,
    /// Whether this replica leads.
    pub(crate) leadership: Leadership,
    /// What each cluster is to be told.
    pub(crate) orders: Orderbook,
    /// Where what agents say goes.
    pub(crate) events: SessionEvents,
    /// Where logs are asked for.
    pub(crate) logs: LogDesk,
    /// Pod templates by hash.
    pub(crate) templates: Arc<Templates>,
    /// Terms of contact, told to agents.
    pub(crate) terms: ContactTerms,
    /// Time between beats, told to agents.
    pub(crate) beat: Millis,
    /// Where session tasks run.
    pub(crate) tasks: Tasks,
    /// Who may speak for which cluster; `None` where agents are not identified.
    pub(crate) identities: Option<Identities>,
    /// Why agents are not let in.
    pub(crate) refusals: Refusals,
}

/// The agents' service.
#[derive(Clone)]
pub(crate) struct AgentSessions {
    options: Arc<SessionOptions>,
    newest: Newest,
}

/// The newest session of each cluster: a younger life of an agent ends the older one's.
#[derive(Clone, Debug, Default)]
struct Newest(Arc<Mutex<BTreeMap<String, (Incarnation, CancellationToken)>>>);

impl Newest {
    /// Enters a session and ends older ones of its cluster. The token ends it in turn.
    fn enter(&self, cluster: &str, incarnation: Incarnation) -> CancellationToken {
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let token = CancellationToken::new();
        match newest.get(cluster) {
            // Attached first, entered second: it is the older one.
            Some((known, _)) if *known > incarnation => token.cancel(),
            Some(_) | None => {
                let entry = (incarnation, token.clone());
                if let Some((_, older)) = newest.insert(cluster.to_owned(), entry) {
                    older.cancel();
                }
            }
        }
        token
    }

    /// A session has ended.
    fn leave(&self, cluster: &str, incarnation: Incarnation) {
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if newest
            .get(cluster)
            .is_some_and(|(known, _)| *known == incarnation)
        {
            newest.remove(cluster);
        }
    }
}

type Outgoing = Pin<Box<dyn Stream<Item = Result<v1::HubMessage, Status>> + Send>>;

#[tonic::async_trait]
impl AgentService for AgentSessions {
    type AttachStream = Outgoing;

    async fn attach(
        &self,
        request: Request<Streaming<v1::AgentMessage>>,
    ) -> Result<Response<Outgoing>, Status> {
        let fence = self.fence()?;
        let peer = request.extensions().get::<Peer>().cloned();
        let mut incoming = request.into_inner();
        let hello = self.hello(&mut incoming).await?;
        let refuse = |error: ApiError| {
            tracing::warn!(
                cluster = %hello.cluster, code = %error.code, %error, "agent refused"
            );
            if self.is_of(peer.as_ref(), &hello.cluster, error.code) {
                self.options.refusals.note(&hello.cluster, &error);
            }
            status::to_status(&error)
        };
        let spoken = protocol(&hello).map_err(refuse)?;
        let (store, identities) = (&self.options.store, self.options.identities.as_ref());
        let presented = Presented {
            hello: &hello,
            peer: peer.as_ref(),
        };
        let attached = attach(store, identities, fence, presented).await;
        let Attached { incarnation, right } = attached.map_err(refuse)?;
        self.options.refusals.clear(&hello.cluster);
        let (outbox, messages) = mpsc::channel(OUTBOX);
        let cluster = hello.cluster.clone();
        let session = Session {
            options: Arc::clone(&self.options),
            cluster: cluster.clone(),
            fence,
            incarnation,
            superseded: self.newest.enter(&cluster, incarnation),
            right,
            heard: Heard::default(),
            outbox,
        };
        let newest = self.newest.clone();
        self.options
            .tasks
            .spawn_finite(format!("session {cluster}"), async move {
                session.run(hello, spoken, incoming).await;
                newest.leave(&cluster, incarnation);
            });
        Ok(Response::new(Box::pin(ReceiverStream::new(messages))))
    }

    async fn send_logs(
        &self,
        request: Request<Streaming<v1::LogChunk>>,
    ) -> Result<Response<v1::LogsTaken>, Status> {
        let peer = request.extensions().get::<Peer>().cloned();
        let caller = match &self.options.identities {
            None => None,
            Some(identities) => {
                let speaker = identities.speaker(peer.as_ref()).await;
                Some(speaker.map_err(|error| status::to_status(&error))?)
            }
        };
        let incoming = request.into_inner();
        let taken = self.options.logs.take(caller.as_deref(), incoming).await;
        taken.map(Response::new)
    }
}

impl AgentSessions {
    /// A service over these.
    #[must_use]
    pub(crate) fn new(options: SessionOptions) -> Self {
        Self {
            options: Arc::new(options),
            newest: Newest::default(),
        }
    }

    /// True when a refusal says something about the cluster: whoever was refused is its agent, or
    /// was, or says so where names are all there is. Anybody can name any cluster.
    fn is_of(&self, peer: Option<&Peer>, cluster: &str, code: ErrorCode) -> bool {
        match &self.options.identities {
            Some(identities) => identities
                .caller(peer)
                .is_ok_and(|caller| caller.cluster == cluster),
            // Found out only of a declared cluster.
            None => code == ErrorCode::ClusterClaimed,
        }
    }

    fn fence(&self) -> Result<Fence, Status> {
        if let Some(fence) = self.options.leadership.fence() {
            return Ok(fence);
        }
        Err(match self.options.leadership.role() {
            Role::Follower(leader) => {
                status::not_leader(leader.as_ref().map(|leader| leader.agents.as_str()))
            }
            Role::Leader(_) => status::not_leader(None),
        })
    }

    async fn hello(&self, incoming: &mut Streaming<v1::AgentMessage>) -> Result<v1::Hello, Status> {
        let first = self
            .options
            .clock
            .timeout(HELLO_WITHIN, incoming.message())
            .await;
        let first = first.map_err(|late| Status::deadline_exceeded(format!("hello {late}")))??;
        match first.and_then(|message| message.body) {
            Some(v1::agent_message::Body::Hello(hello)) => Ok(hello),
            _ => Err(Status::invalid_argument(
                "the first message of a session is Hello",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_younger_life_ends_the_older_ones_session() {
        let newest = Newest::default();
        let first = newest.enter("euw-a", Incarnation(1));
        let other = newest.enter("euw-b", Incarnation(1));
        let third = newest.enter("euw-a", Incarnation(3));
        assert!(first.is_cancelled() && !other.is_cancelled());
        let late = newest.enter("euw-a", Incarnation(2));
        assert!(late.is_cancelled() && !third.is_cancelled());
        newest.leave("euw-a", Incarnation(3));
        let anew = newest.enter("euw-a", Incarnation(1));
        assert!(
            !anew.is_cancelled(),
            "a cluster that was added again begins again"
        );
    }
}
