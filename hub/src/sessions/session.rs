//! One agent's session: what it says goes to the model, what changed in its orders goes to it.
//!
//! Owns the stream of one cluster: heartbeats answered at once, digests in sequence, intents as
//! the difference to what was sent. Ends when the lead is lost. Never waits for another session.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use futures::{Stream, StreamExt as _};
use meridian_api::errors::{ApiError, ErrorCode};
use meridian_api::ids::{GangId, Incarnation};
use meridian_api::units::Millis;
use meridian_proto::convert::{self, Malformed};
use meridian_proto::v1::agent_service_server::AgentService;
use meridian_proto::{status, v1};
use meridian_runtime::{Clock, Tasks};
use meridian_store::SharedStore;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::attach::{attach, protocol};
use super::orders::{Order, Orders, intent};
use super::{Orderbook, Said, SessionEvent, SessionEvents};
use crate::fence::Fence;
use crate::leadership::{Leadership, Role};
use crate::model::{ContactTerms, Heard};
use crate::templates::Templates;

/// Messages waiting for one agent's socket. Intents are cut to `MAX_PLACEMENTS`, so this bounds
/// what a hung agent can hold of the hub's memory.
const OUTBOX: usize = 16;
/// Placements in one message: at some 2 KiB each, and templates sent once, a message stays far
/// below tonic's 4 MiB.
const MAX_PLACEMENTS: usize = 256;
/// An agent that has not said hello by then is sent away.
const HELLO_WITHIN: Millis = Millis::seconds(10);
/// A socket that takes no message for this long belongs to a hung agent: the session ends, the
/// agent dials again.
const SEND_WITHIN: Millis = Millis::seconds(10);

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
    /// Pod templates by hash.
    pub(crate) templates: Arc<Templates>,
    /// Terms of contact, told to agents.
    pub(crate) terms: ContactTerms,
    /// Time between beats, told to agents.
    pub(crate) beat: Millis,
    /// Where session tasks run.
    pub(crate) tasks: Tasks,
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
        let mut incoming = request.into_inner();
        let hello = self.hello(&mut incoming).await?;
        let refuse = |error: ApiError| {
            tracing::warn!(cluster = %hello.cluster, %error, "agent refused");
            status::to_status(&error)
        };
        let spoken = protocol(&hello).map_err(refuse)?;
        let incarnation = attach(&self.options.store, fence, &hello)
            .await
            .map_err(refuse)?;
        let (outbox, messages) = mpsc::channel(OUTBOX);
        let session = Session {
            options: Arc::clone(&self.options),
            cluster: hello.cluster.clone(),
            fence,
            incarnation,
            superseded: self.newest.enter(&hello.cluster, incarnation),
            heard: Heard::default(),
            outbox,
            last_digest: 0,
        };
        let name = format!("session {}", session.cluster);
        self.options
            .tasks
            .spawn_finite(name, session.run(hello, spoken, incoming));
        Ok(Response::new(Box::pin(ReceiverStream::new(messages))))
    }
}

impl AgentSessions {
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

/// Why a session ends.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("the agent closed it")]
    Closed,
    #[error("the stream broke: {0}")]
    Broken(Status),
    #[error("the agent sent nonsense: {0}")]
    Malformed(#[from] Malformed),
    #[error("the agent takes no messages")]
    Hung,
    #[error("a younger life of the agent has attached")]
    Superseded,
    #[error("the lead is lost")]
    Deposed,
    #[error("the hub is stopping")]
    Stopping,
}

struct Session {
    options: Arc<SessionOptions>,
    cluster: String,
    fence: Fence,
    incarnation: Incarnation,
    superseded: CancellationToken,
    heard: Heard,
    outbox: mpsc::Sender<Result<v1::HubMessage, Status>>,
    last_digest: u64,
}

impl Session {
    async fn run(
        mut self,
        hello: v1::Hello,
        protocol: u32,
        mut incoming: Streaming<v1::AgentMessage>,
    ) {
        let end = match self.open(hello, protocol).await {
            Err(end) => end,
            Ok(orders) => self.serve(&mut incoming, orders).await,
        };
        let (cluster, incarnation) = (&self.cluster, self.incarnation);
        tracing::info!(%cluster, %incarnation, %end, "session ended");
        self.say_why(&end).await;
        // The model takes in nothing more of this life; it goes on counting silence.
        let _ = self.tell_model(Said::Detached).await;
    }

    /// Welcomes the agent and hands its digest to the model.
    async fn open(
        &mut self,
        hello: v1::Hello,
        protocol: u32,
    ) -> Result<watch::Receiver<Arc<Orders>>, End> {
        let terms = self.options.terms;
        let welcome = v1::Welcome {
            fence: Some(convert::Fence::from(self.fence).into()),
            incarnation: self.incarnation.0,
            protocol,
            beat_ms: self.options.beat.0,
            suspect_ms: terms.suspect.0,
            unreachable_ms: terms.unreachable.0,
        };
        self.send(v1::hub_message::Body::Welcome(welcome)).await?;
        self.heard.at(self.options.clock.boot());
        let digest = hello.digest.ok_or(Malformed::Missing("hello.digest"))?;
        if !digest.full {
            return Err(Malformed::Wrong {
                what: "hello.digest",
                found: "a delta".to_owned(),
                expected: "a full digest",
            }
            .into());
        }
        self.last_digest = digest.sequence;
        let (version, heard) = (hello.version, self.heard.clone());
        tracing::info!(
            cluster = %self.cluster, incarnation = %self.incarnation, %version, "agent attached"
        );
        // Subscribed before the model hears of it: what it then publishes is seen.
        let mut orders = self.options.orders.follow(&self.cluster);
        orders.mark_changed();
        self.tell_model(Said::Attached {
            version,
            heard,
            digest,
        })
        .await?;
        Ok(orders)
    }

    async fn serve(
        &mut self,
        incoming: &mut Streaming<v1::AgentMessage>,
        mut orders: watch::Receiver<Arc<Orders>>,
    ) -> End {
        let mut leadership = self.options.leadership.clone();
        let stop = self.options.tasks.cancelled();
        let superseded = self.superseded.clone();
        // `None`: nothing sent yet, so the first intent is full.
        let mut sent: Option<Arc<Orders>> = None;
        loop {
            let step = tokio::select! {
                message = incoming.next() => match message {
                    None => Err(End::Closed),
                    Some(Err(status)) => Err(End::Broken(status)),
                    Some(Ok(message)) => self.hear(message).await,
                },
                changed = orders.changed() => {
                    if changed.is_err() {
                        return End::Stopping;
                    }
                    let new = Arc::clone(&orders.borrow_and_update());
                    self.order(&mut sent, new).await
                }
                () = leadership.changed() => Ok(()),
                () = superseded.cancelled() => Err(End::Superseded),
                () = stop.cancelled() => Err(End::Stopping),
            };
            if let Err(end) = step {
                return end;
            }
            if leadership.role() != Role::Leader(self.fence) {
                return End::Deposed;
            }
        }
    }

    async fn hear(&mut self, message: v1::AgentMessage) -> Result<(), End> {
        use v1::agent_message::Body;
        let now = self.options.clock.boot();
        let silence = now.since(self.heard.last());
        self.heard.at(now);
        if silence >= self.options.terms.suspect {
            self.tell_model(Said::HeardAgain).await?;
        }
        match message.body {
            Some(Body::Heartbeat(beat)) => {
                let ack = v1::HeartbeatAck {
                    sequence: beat.sequence,
                    fence: Some(convert::Fence::from(self.fence).into()),
                };
                self.send(v1::hub_message::Body::HeartbeatAck(ack)).await
            }
            Some(Body::Digest(digest)) => self.digest(digest).await,
            Some(Body::Report(report)) => self.tell_model(Said::Report(report.gangs)).await,
            Some(Body::Refusal(refusal)) => {
                let Some(gang) = refusal.gang.as_ref() else {
                    // About a part of an intent, not about one gang: the gangs that needed the
                    // part are refused by name.
                    let (reason, message) = (&refusal.reason, &refusal.message);
                    tracing::warn!(cluster = %self.cluster, %reason, %message, "refused");
                    return Ok(());
                };
                let gang = GangId::try_from(gang)?;
                self.tell_model(Said::Refused { gang, refusal }).await
            }
            Some(Body::Hello(_)) => Err(Malformed::Wrong {
                what: "message",
                found: "a second hello".to_owned(),
                expected: "one per session",
            }
            .into()),
            // Nothing in this hub reads service load or usage; an agent may send it all the same.
            Some(Body::Demand(_) | Body::Usage(_)) | None => Ok(()),
        }
    }

    /// A gap in the sequence means that something was lost: ask for everything.
    async fn digest(&mut self, digest: v1::Digest) -> Result<(), End> {
        let follows = digest.sequence == self.last_digest.wrapping_add(1);
        if !digest.full && !follows {
            let request = v1::DigestRequest {};
            return self
                .send(v1::hub_message::Body::DigestRequest(request))
                .await;
        }
        self.last_digest = digest.sequence;
        self.tell_model(Said::Digest(digest)).await
    }

    /// Sends what differs from what was sent before.
    async fn order(&mut self, sent: &mut Option<Arc<Orders>>, new: Arc<Orders>) -> Result<(), End> {
        // Before the model has taken the digest in there is nothing to say.
        if new.generation.0 == 0 {
            return Ok(());
        }
        // Silent as soon as the lead is in doubt; the role change that follows ends the session.
        if self.options.leadership.fence() != Some(self.fence) {
            return Ok(());
        }
        let first = sent.is_none();
        let before = sent.take().unwrap_or_default();
        let news = new.since(&before);
        let pages: Vec<_> = news.chunks(MAX_PLACEMENTS).collect();
        let count = pages.len().max(usize::from(first));
        for page in 0..count {
            let placements = pages.get(page).copied().unwrap_or_default();
            let templates = self.options.templates.of(placements).await;
            let intent = v1::Intent {
                fence: Some(convert::Fence::from(self.fence).into()),
                incarnation: self.incarnation.0,
                generation: new.generation.0,
                // Only a first message that holds everything may say that it does.
                full: first && count == 1,
                placements: placements
                    .iter()
                    .map(|(gang, epoch, order): &(_, _, &Order)| intent(*gang, *epoch, order))
                    .collect(),
                templates,
            };
            self.send(v1::hub_message::Body::Intent(intent)).await?;
        }
        *sent = Some(new);
        Ok(())
    }

    async fn send(&self, body: v1::hub_message::Body) -> Result<(), End> {
        let message = v1::HubMessage { body: Some(body) };
        let send = self.outbox.send(Ok(message));
        match self.options.clock.timeout(SEND_WITHIN, send).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(End::Closed),
            Err(_) => Err(End::Hung),
        }
    }

    /// The agent reads why its session ended, where that is of use to it.
    async fn say_why(&self, end: &End) {
        let status = match end {
            End::Malformed(malformed) => status::to_status(&ApiError::new(
                ErrorCode::MalformedDocument,
                malformed.to_string(),
            )),
            End::Superseded => status::to_status(
                &ApiError::new(ErrorCode::AgentSuperseded, end.to_string())
                    .help("run one agent per cluster; it alone may use its state folder"),
            ),
            End::Deposed => status::not_leader(None),
            End::Stopping => Status::unavailable("the hub is stopping"),
            End::Closed | End::Broken(_) | End::Hung => return,
        };
        let _ = self
            .options
            .clock
            .timeout(SEND_WITHIN, self.outbox.send(Err(status)))
            .await;
    }

    async fn tell_model(&self, what: Said) -> Result<(), End> {
        let event = SessionEvent {
            cluster: self.cluster.clone(),
            fence: self.fence,
            incarnation: self.incarnation,
            what,
        };
        self.options
            .events
            .send(event)
            .await
            .map_err(|_| End::Stopping)
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
    }
}
