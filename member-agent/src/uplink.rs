//! The uplink: the agent dials the hub, and stays in touch.
//!
//! Owns the session: Hello and Welcome, beats and their answers, reconnecting with full jitter,
//! finding the leader. It carries messages between hub and executor and never decides what they
//! mean. Without a hub it goes on trying; nothing that runs depends on it.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use meridian_api::errors::ErrorCode;
use meridian_api::ids::{Generation, Incarnation};
use meridian_api::units::{BootMillis, Millis};
use meridian_proto::convert::Fence;
use meridian_proto::status::from_status;
use meridian_proto::v1::agent_service_client::AgentServiceClient;
use meridian_proto::v1::{self, agent_message, hub_message};
use meridian_runtime::{Clock, Network, Random, network, tls};
use prost::Message as _;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::fences::Refused;
use crate::identity::IdentityLink;
use crate::logs::LogSender;
use crate::metrics::AgentMetrics;
use crate::report::Session;

/// Session protocols that this agent speaks.
pub const PROTOCOLS: std::ops::RangeInclusive<u32> = 1..=2;
/// From dialling to Welcome. A hub writes the agent's incarnation to its store in between.
const WELCOME_LIMIT: Millis = Millis::seconds(10);
/// Bounds of the pause before dialling again: drawn from zero to a limit that doubles from the
/// first to the second. A thousand agents spread over two seconds are five hundred Hellos a second,
/// and after a change of leaders, which takes some eleven seconds, the new one has them in two.
const BACKOFF_FIRST: Millis = Millis(500);
const BACKOFF_MOST: Millis = Millis::seconds(2);
/// Beats without an answer after which the session counts as lost: one may be late, two may be.
const MISSED_BEATS: u64 = 3;
/// Beats that a Welcome may ask for: faster would be noise, slower could not tell a lost hub.
const BEAT_LEAST: Millis = Millis(50);
const BEAT_MOST: Millis = Millis::seconds(600);
/// Redirects to a leader followed without a pause; hubs that send each other's are waited out.
const MAX_REDIRECTS: u32 = 3;
/// Messages to the hub that wait for the connection: some seconds of a busy cluster. Beyond it
/// reports and digests coalesce in the executor.
const OUTBOX: usize = 64;
/// Largest message from the hub: a full intent of some ten thousand gangs with their templates.
const MAX_MESSAGE_BYTES: usize = 64 * 1024 * 1024;
/// Name of the metadata in which a hub that does not lead says who does.
const LEADER: &str = "meridian-leader";

/// What a Hello says of the agent.
#[derive(Debug)]
pub(crate) struct HelloParts {
    pub(crate) credential: [u8; 32],
    pub(crate) fence: Fence,
    pub(crate) incarnation: Incarnation,
    pub(crate) generation: Generation,
    pub(crate) digest: v1::Digest,
}

/// From the uplink to the executor, in the order of the sessions.
#[derive(Debug)]
pub(crate) enum ToExecutor {
    /// A session begins: what must the hub know? Answered when the cluster has been seen.
    Hello(oneshot::Sender<HelloParts>),
    /// The hub took it.
    Attached {
        welcome: v1::Welcome,
        session: Box<Session>,
        reply: oneshot::Sender<Result<(), Refused>>,
    },
    /// The hub says.
    Order(Box<hub_message::Body>),
    /// The session is over.
    Detached,
}

/// How the agent stands with its hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contact {
    /// Not attached; what was ordered goes on.
    Dialling,
    /// A hub answers.
    Attached {
        /// Its address.
        hub: String,
        /// Life of this agent that it issued.
        incarnation: Incarnation,
    },
    /// A hub answered, and will not have this agent.
    Refused {
        /// Its address.
        hub: String,
        /// Its code and words, and what to do.
        message: String,
    },
}

/// What the uplink is made of.
pub(crate) struct Uplink {
    pub(crate) cluster: String,
    pub(crate) hubs: Vec<String>,
    pub(crate) version: String,
    pub(crate) network: Arc<dyn Network>,
    pub(crate) clock: Clock,
    pub(crate) random: Random,
    pub(crate) metrics: AgentMetrics,
    pub(crate) executor: mpsc::Sender<ToExecutor>,
    pub(crate) contact: watch::Sender<Contact>,
    pub(crate) identity: Option<IdentityLink>,
    pub(crate) logs: LogSender,
}

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
enum SessionEnd {
    #[error("{0}")]
    Status(Box<Status>),
    #[error("{0}")]
    Protocol(String),
    #[error("no answer to {MISSED_BEATS} beats")]
    Silent,
    #[error("no Welcome within {WELCOME_LIMIT}")]
    NoWelcome,
    #[error("refused the hub: {0}")]
    Refused(#[from] Refused),
    #[error("the agent has its next certificate")]
    Renewed,
    #[error("the executor ended")]
    ExecutorGone,
}

impl From<Status> for SessionEnd {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

/// A session that was welcomed.
struct Open {
    inbound: Streaming<v1::HubMessage>,
    outbox: mpsc::Sender<v1::AgentMessage>,
    beats: Arc<AtomicU64>,
    digest_sequence: Arc<AtomicU64>,
    beat: Millis,
}

impl Uplink {
    /// Dials, keeps the session, and dials again, until cancelled.
    pub(crate) async fn run(self, cancelled: CancellationToken) -> Result<(), Infallible> {
        let (mut next, mut failures, mut redirects) = (0_usize, 0_u32, 0_u32);
        let mut renewals = self.identity.as_ref().map(|link| link.renewals.clone());
        let mut leader: Option<String> = None;
        while !cancelled.is_cancelled() {
            let hub = match leader.take() {
                Some(hub) => hub,
                None => self
                    .hubs
                    .get(next % self.hubs.len().max(1))
                    .cloned()
                    .unwrap_or_default(),
            };
            let session = self.session(&hub);
            let ended = tokio::select! {
                biased;
                () = cancelled.cancelled() => break,
                ended = session => ended,
                () = renewed(&mut renewals) => SessionEnd::Renewed,
            };
            // Sent, not tried: the executor must know before it hears of the next session.
            let told = self.executor.send(ToExecutor::Detached).await;
            let was_attached = matches!(*self.contact.borrow(), Contact::Attached { .. });
            if was_attached {
                (failures, redirects) = (0, 0);
            }
            self.part(&hub, &ended);
            if told.is_err() || matches!(ended, SessionEnd::ExecutorGone) {
                cancelled.cancelled().await;
                break;
            }
            if matches!(ended, SessionEnd::Renewed) {
                // The same hub, at once, under the next certificate.
                leader = Some(hub);
                continue;
            }
            leader = leader_of(&ended).filter(|_| redirects < MAX_REDIRECTS);
            if leader.is_some() {
                redirects += 1;
                continue;
            }
            (next, redirects) = (next.wrapping_add(1), 0);
            let pause = self.backoff(failures);
            failures = failures.saturating_add(1);
            tokio::select! {
                biased;
                () = cancelled.cancelled() => break,
                () = self.clock.sleep(pause) => {}
            }
        }
        Ok(())
    }

    /// Full jitter (Brooker, "Exponential Backoff And Jitter", 2015).
    fn backoff(&self, failures: u32) -> Millis {
        let limit = BACKOFF_FIRST
            .0
            .saturating_mul(1 << failures.min(16))
            .min(BACKOFF_MOST.0);
        Millis(self.random.below(limit))
    }

    fn part(&self, hub: &str, ended: &SessionEnd) {
        self.metrics.attached.set(0);
        if matches!(ended, SessionEnd::Renewed) {
            tracing::info!(hub, "dialling under the next certificate");
            self.contact.send_replace(Contact::Dialling);
            return;
        }
        let refused = match ended {
            SessionEnd::Status(status) => self.refusal_of(status),
            SessionEnd::Protocol(message) => Some(message.clone()),
            SessionEnd::Refused(refused) => Some(refused.to_string()),
            SessionEnd::Silent
            | SessionEnd::NoWelcome
            | SessionEnd::Renewed
            | SessionEnd::ExecutorGone => None,
        };
        if let Some(message) = refused {
            tracing::warn!(hub, message, "the hub and this agent do not agree");
            self.contact.send_replace(Contact::Refused {
                hub: hub.to_owned(),
                message,
            });
        } else {
            tracing::warn!(hub, error = %ended, "session ended, what runs goes on");
            self.contact.send_replace(Contact::Dialling);
        }
    }

    /// Words for a person; a certificate that has ended is renewed meanwhile.
    fn refusal_of(&self, status: &Status) -> Option<String> {
        if let Some(link) = &self.identity
            && from_status(status).code == ErrorCode::CertificateExpired
        {
            link.wanted.notify_one();
        }
        refusal_of(status)
    }

    /// One session, from dialling to its end.
    async fn session(&self, hub: &str) -> SessionEnd {
        let (reply, parts) = oneshot::channel();
        if self.executor.send(ToExecutor::Hello(reply)).await.is_err() {
            return SessionEnd::ExecutorGone;
        }
        let Ok(parts) = parts.await else {
            return SessionEnd::ExecutorGone;
        };
        let opened = self
            .clock
            .timeout(WELCOME_LIMIT, self.open(hub, parts))
            .await;
        match opened {
            Ok(Ok(open)) => self.converse(hub, open).await,
            Ok(Err(ended)) => ended,
            Err(_) => SessionEnd::NoWelcome,
        }
    }

    /// A connection to a hub, dialled when it is first used.
    fn channel(&self, hub: &str) -> Channel {
        network::channel(Arc::clone(&self.network), hub)
    }

    async fn open(&self, hub: &str, parts: HelloParts) -> Result<Open, SessionEnd> {
        let mut client =
            AgentServiceClient::new(self.channel(hub)).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let (outbox, outbound) = mpsc::channel(OUTBOX);
        let digest_sequence = Arc::new(AtomicU64::new(parts.digest.sequence));
        let hello = agent_message::Body::Hello(self.hello(parts));
        // The channel is empty and has room.
        drop(outbox.try_send(v1::AgentMessage { body: Some(hello) }));
        let mut inbound = client
            .attach(ReceiverStream::new(outbound))
            .await?
            .into_inner();
        let first = inbound.message().await?.and_then(|message| message.body);
        let Some(hub_message::Body::Welcome(welcome)) = first else {
            return Err(SessionEnd::Protocol(
                "the hub's first word was not Welcome".to_owned(),
            ));
        };
        let beat = check_welcome(&welcome)?;
        let incarnation = Incarnation(welcome.incarnation);
        let beats = Arc::new(AtomicU64::new(0));
        let session = Box::new(Session {
            outbox: outbox.clone(),
            beats: Arc::clone(&beats),
            digest_sequence: Arc::clone(&digest_sequence),
            incarnation,
        });
        let (reply, taken) = oneshot::channel();
        let attached = ToExecutor::Attached {
            welcome,
            session,
            reply,
        };
        self.executor
            .send(attached)
            .await
            .map_err(|_| SessionEnd::ExecutorGone)?;
        taken.await.map_err(|_| SessionEnd::ExecutorGone)??;
        tracing::info!(hub, %incarnation, "attached");
        self.metrics.sessions.inc();
        self.metrics.attached.set(1);
        self.contact.send_replace(Contact::Attached {
            hub: hub.to_owned(),
            incarnation,
        });
        Ok(Open {
            inbound,
            outbox,
            beats,
            digest_sequence,
            beat,
        })
    }

    fn hello(&self, parts: HelloParts) -> v1::Hello {
        v1::Hello {
            cluster: self.cluster.clone(),
            version: self.version.clone(),
            protocol_min: *PROTOCOLS.start(),
            protocol_max: *PROTOCOLS.end(),
            credential: parts.credential.to_vec().into(),
            highest_fence: Some(parts.fence.into()),
            last_incarnation: parts.incarnation.0,
            last_intent_generation: parts.generation.0,
            digest: Some(parts.digest),
        }
    }

    /// Beats and listens until the session is lost.
    async fn converse(&self, hub: &str, mut open: Open) -> SessionEnd {
        let mut answered = self.clock.boot();
        let mut next_beat = answered;
        loop {
            let heard = tokio::select! {
                biased;
                heard = open.inbound.message() => heard,
                () = self.clock.sleep_until(next_beat) => {
                    let now = self.clock.boot();
                    if now.since(answered).0 > open.beat.0.saturating_mul(MISSED_BEATS) {
                        return SessionEnd::Silent;
                    }
                    beat(&open, now);
                    next_beat = now.after(open.beat);
                    continue;
                }
            };
            let body = match heard {
                Ok(Some(message)) => message.body,
                Ok(None) => return Status::unavailable("the hub closed the stream").into(),
                Err(status) => return status.into(),
            };
            if let Some(hub_message::Body::HeartbeatAck(_)) = &body {
                answered = self.clock.boot();
            }
            let Some(body) = body else { continue };
            if let hub_message::Body::LogRequest(request) = body {
                self.logs.serve(self.channel(hub), request);
                continue;
            }
            if self
                .executor
                .send(ToExecutor::Order(Box::new(body)))
                .await
                .is_err()
            {
                return SessionEnd::ExecutorGone;
            }
        }
    }
}

/// Sends one beat; a full outbox is as silent as a broken line, and ends the session the same way.
fn beat(open: &Open, now: BootMillis) {
    let sequence = open.beats.fetch_add(1, Ordering::AcqRel) + 1;
    let heartbeat = v1::Heartbeat {
        sequence,
        sent_boot_ms: now.0,
        digest_sequence: open.digest_sequence.load(Ordering::Acquire),
    };
    let body = Some(agent_message::Body::Heartbeat(heartbeat));
    if open.outbox.try_send(v1::AgentMessage { body }).is_err() {
        tracing::debug!(sequence, "beat not sent, the connection is behind");
    }
}

fn check_welcome(welcome: &v1::Welcome) -> Result<Millis, SessionEnd> {
    if !PROTOCOLS.contains(&welcome.protocol) {
        return Err(SessionEnd::Protocol(format!(
            "the hub picked session protocol {}, this agent speaks {} to {}; run an agent and a \
             hub that are at most one minor version apart",
            welcome.protocol,
            PROTOCOLS.start(),
            PROTOCOLS.end()
        )));
    }
    let beat = Millis(welcome.beat_ms);
    if beat < BEAT_LEAST || beat > BEAT_MOST {
        return Err(SessionEnd::Protocol(format!(
            "the hub wants a beat every {beat}, this agent can beat every {BEAT_LEAST} to \
             {BEAT_MOST}"
        )));
    }
    Ok(beat)
}

/// Returns when there is another certificate; never where there are none.
async fn renewed(renewals: &mut Option<watch::Receiver<u64>>) {
    if let Some(renewals) = renewals
        && renewals.changed().await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

/// Words for a person when the hub answered, but refused this agent.
fn refusal_of(status: &Status) -> Option<String> {
    use tonic::Code;
    if let Some(reason) = tls::failure(status) {
        return Some(format!("TLS: {reason}"));
    }
    let refused = matches!(
        status.code(),
        Code::FailedPrecondition
            | Code::PermissionDenied
            | Code::Unauthenticated
            | Code::NotFound
            | Code::AlreadyExists
            | Code::InvalidArgument
            | Code::Unimplemented
    );
    if !refused || status.metadata().contains_key(LEADER) {
        return None;
    }
    let detail = v1::ErrorDetail::decode(status.details()).unwrap_or_default();
    let help = if detail.help.is_empty() {
        String::new()
    } else {
        format!("; {}", detail.help)
    };
    let code = if detail.code.is_empty() {
        format!("{:?}", status.code())
    } else {
        detail.code
    };
    Some(format!("{code}: {}{help}", status.message()))
}

fn leader_of(ended: &SessionEnd) -> Option<String> {
    let SessionEnd::Status(status) = ended else {
        return None;
    };
    let leader = status.metadata().get(LEADER)?.to_str().ok()?;
    (!leader.is_empty()).then(|| leader.to_owned())
}
