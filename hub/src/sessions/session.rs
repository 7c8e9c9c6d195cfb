//! One agent's session: what it says goes to the model, what changed in its orders goes to it.
//!
//! Owns the stream of one cluster: heartbeats answered at once, digests in sequence, intents as
//! the difference to what was sent. Listening and speaking go on beside each other, so that a long
//! intent delays no heartbeat. Ends when the lead is lost. Never waits for another session.

use std::sync::Arc;

use futures::StreamExt as _;
use meridian_api::errors::{ApiError, ErrorCode};
use meridian_api::ids::{Epoch, GangId, Incarnation};
use meridian_api::units::Millis;
use meridian_proto::convert::{self, Malformed};
use meridian_proto::{status, v1};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::attach::OFFERS_AND_LOGS;
use super::logs::Line;
use super::orders::{Order, Orders, intent};
use super::service::SessionOptions;
use super::{Said, SessionEvent};
use crate::fence::Fence;
use crate::identity::{Lapse, Right};
use crate::leadership::Role;
use crate::model::{Digest, Heard, observations};
use crate::templates::Page;

/// Messages waiting for one agent's socket. Intents are cut into pages, so this bounds what a hung
/// agent can hold of the hub's memory.
pub(super) const OUTBOX: usize = 16;
/// A socket that takes no message for this long belongs to a hung agent: the session ends, the
/// agent dials again.
const SEND_WITHIN: Millis = Millis::seconds(10);

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
    #[error("its right to speak for the cluster was taken away")]
    Revoked,
    #[error("its certificate has ended")]
    Expired,
    #[error("its MemberCluster is gone")]
    Undeclared,
    #[error("the lead is lost")]
    Deposed,
    #[error("the hub is stopping")]
    Stopping,
}

/// One session.
pub(super) struct Session {
    pub(super) options: Arc<SessionOptions>,
    pub(super) cluster: String,
    pub(super) fence: Fence,
    pub(super) incarnation: Incarnation,
    pub(super) superseded: CancellationToken,
    pub(super) right: Option<Right>,
    pub(super) heard: Heard,
    pub(super) outbox: mpsc::Sender<Result<v1::HubMessage, Status>>,
}

impl Session {
    /// Serves the agent until the session ends.
    pub(super) async fn run(
        self,
        hello: v1::Hello,
        protocol: u32,
        incoming: Streaming<v1::AgentMessage>,
    ) {
        let sequence = hello.digest.as_ref().map_or(0, |digest| digest.sequence);
        let end = match self.open(hello, protocol).await {
            Err(end) => end,
            Ok(orders) => tokio::select! {
                end = self.listen(incoming, sequence) => end,
                end = self.speak(orders) => end,
                end = self.outlast() => end,
            },
        };
        let (cluster, incarnation) = (&self.cluster, self.incarnation);
        tracing::info!(%cluster, %incarnation, %end, "session ended");
        self.options.logs.leave(&self.cluster, self.incarnation);
        self.say_why(&end).await;
        // The model takes in nothing more of this life; it goes on counting silence.
        let _ = self.tell_model(Said::Detached).await;
    }

    /// Welcomes the agent and hands its digest to the model.
    async fn open(
        &self,
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
        let digest = Digest::read(&hello.digest.ok_or(Malformed::Missing("hello.digest"))?)?;
        if !digest.full {
            return Err(Malformed::Wrong {
                what: "hello.digest",
                found: "a delta".to_owned(),
                expected: "a full digest",
            }
            .into());
        }
        let (version, heard) = (hello.version, self.heard.clone());
        let (cluster, incarnation) = (&self.cluster, self.incarnation);
        tracing::info!(%cluster, %incarnation, %version, "agent attached");
        let line = Line {
            incarnation: self.incarnation,
            protocol,
            version: version.clone(),
            outbox: self.outbox.clone(),
        };
        self.options.logs.enter(&self.cluster, line);
        // Subscribed before the model hears of it: what it then publishes is seen.
        let mut orders = self.options.orders.follow(&self.cluster);
        orders.mark_changed();
        self.tell_model(Said::Attached {
            version,
            tells_offers: protocol >= OFFERS_AND_LOGS,
            heard,
            digest,
        })
        .await?;
        Ok(orders)
    }

    /// Returns when something other than the agent ends the session.
    async fn outlast(&self) -> End {
        let mut leadership = self.options.leadership.clone();
        let stop = self.options.tasks.cancelled();
        loop {
            if leadership.role() != Role::Leader(self.fence) {
                return End::Deposed;
            }
            tokio::select! {
                () = leadership.changed() => {}
                () = self.superseded.cancelled() => return End::Superseded,
                lapse = self.lapsed() => return match lapse {
                    Lapse::Revoked => End::Revoked,
                    Lapse::Expired => End::Expired,
                },
                () = stop.cancelled() => return End::Stopping,
            }
        }
    }

    /// Returns when the agent may not speak for the cluster any more.
    async fn lapsed(&self) -> Lapse {
        match &self.right {
            Some(right) => right.lapsed(&self.options.clock).await,
            None => std::future::pending().await,
        }
    }

    /// Takes in what the agent says.
    async fn listen(&self, mut incoming: Streaming<v1::AgentMessage>, sequence: u64) -> End {
        let mut last_digest = sequence;
        loop {
            let heard = match incoming.next().await {
                None => return End::Closed,
                Some(Err(status)) => return End::Broken(status),
                Some(Ok(message)) => self.hear(message, &mut last_digest).await,
            };
            if let Err(end) = heard {
                return end;
            }
        }
    }

    async fn hear(&self, message: v1::AgentMessage, last_digest: &mut u64) -> Result<(), End> {
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
            Some(Body::Digest(digest)) => self.digest(&digest, last_digest).await,
            Some(Body::Report(report)) => {
                self.tell_model(Said::Report(observations(&report.gangs)?))
                    .await
            }
            Some(Body::Refusal(refusal)) => self.refusal(&refusal).await,
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
    async fn digest(&self, digest: &v1::Digest, last: &mut u64) -> Result<(), End> {
        let follows = digest.sequence == last.wrapping_add(1);
        if !digest.full && !follows {
            let request = v1::DigestRequest {};
            return self
                .send(v1::hub_message::Body::DigestRequest(request))
                .await;
        }
        *last = digest.sequence;
        self.tell_model(Said::Digest(Digest::read(digest)?)).await
    }

    async fn refusal(&self, refusal: &v1::Refusal) -> Result<(), End> {
        let (reason, message) = (&refusal.reason, &refusal.message);
        tracing::warn!(cluster = %self.cluster, %reason, %message, "order refused");
        let Some(gang) = refusal.gang.as_ref() else {
            // About a part of an intent, not about one gang: the gangs that needed the part are
            // refused by name.
            return Ok(());
        };
        let (gang, epoch) = (GangId::try_from(gang)?, convert::epoch(refusal.epoch)?);
        self.tell_model(Said::Refused { gang, epoch }).await
    }

    /// Sends what differs from what was sent before, whenever that changes.
    async fn speak(&self, mut orders: watch::Receiver<Arc<Orders>>) -> End {
        // `None`: nothing sent yet, so the first intent is full.
        let mut sent: Option<Orders> = None;
        loop {
            if orders.changed().await.is_err() {
                return End::Undeclared;
            }
            let new = Arc::clone(&orders.borrow_and_update());
            if let Err(end) = self.order(&mut sent, &new).await {
                return end;
            }
        }
    }

    async fn order(&self, sent: &mut Option<Orders>, new: &Orders) -> Result<(), End> {
        // Before the model has taken the digest in there is nothing to say.
        if new.generation.0 == 0 {
            return Ok(());
        }
        let first = sent.is_none();
        let before = sent.take().unwrap_or_default();
        let mut news = new.since(&before);
        let mut now_sent = new.clone();
        let mut pages = 0;
        while !news.is_empty() || (first && pages == 0) {
            // Silent as soon as the lead is in doubt; the agent dials again.
            if self.options.leadership.fence() != Some(self.fence) {
                return Err(End::Deposed);
            }
            let page = self.options.templates.page(&news).await;
            for key in &page.withheld {
                // Not sent: the next change of orders tries again.
                now_sent.orders.remove(key);
            }
            news.drain(..page.taken);
            // Only a first message that holds everything may say that it does.
            let full = first && pages == 0 && news.is_empty() && page.withheld.is_empty();
            self.send_page(new, full, page).await?;
            pages += 1;
        }
        *sent = Some(now_sent);
        Ok(())
    }

    async fn send_page(&self, new: &Orders, full: bool, page: Page<'_>) -> Result<(), End> {
        let placement =
            |(gang, epoch, order): &(GangId, Epoch, &Order)| intent(*gang, *epoch, order);
        let intent = v1::Intent {
            fence: Some(convert::Fence::from(self.fence).into()),
            incarnation: self.incarnation.0,
            generation: new.generation.0,
            full,
            placements: page.orders.iter().map(placement).collect(),
            templates: page.templates,
        };
        self.send(v1::hub_message::Body::Intent(intent)).await
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
            End::Revoked => self.lapse(
                ErrorCode::AgentRevoked,
                end,
                &format!("let it join: meridian cluster join {}", self.cluster),
            ),
            End::Expired => self.lapse(
                ErrorCode::CertificateExpired,
                end,
                "the agent renews it by itself",
            ),
            End::Undeclared => {
                status::to_status(&ApiError::new(ErrorCode::NotFound, end.to_string()))
            }
            End::Deposed => status::not_leader(None),
            End::Stopping => Status::unavailable("the hub is stopping"),
            End::Closed | End::Broken(_) | End::Hung => return,
        };
        let send = self.outbox.send(Err(status));
        let _ = self.options.clock.timeout(SEND_WITHIN, send).await;
    }

    /// The right to this session has ended: for the agent, and for whoever looks at the cluster.
    fn lapse(&self, code: ErrorCode, end: &End, help: &str) -> Status {
        let error = ApiError::new(code, end.to_string()).help(help);
        self.options.refusals.note(&self.cluster, &error);
        status::to_status(&error)
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
