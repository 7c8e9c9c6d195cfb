//! Logs: what a container writes, on its way from its agent to one reader.
//!
//! Owns who waits for which stream, and how much of it the hub holds. Nothing is kept: a reader
//! that is slow holds back its own agent's connection for it, one that goes ends that connection.
//! A ticket is random, told to one session, and good once. Never reads a line.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use meridian_api::errors::{ApiError, ErrorCode};
use meridian_api::ids::{Epoch, GangId, Incarnation};
use meridian_api::units::Millis;
use meridian_proto::{status, v1};
use meridian_runtime::{Clock, Random};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use super::attach::OFFERS_AND_LOGS;

/// An agent that does not send by then will not: it asks its cluster first, which may take seconds.
const TAKEN_WITHIN: Millis = Millis::seconds(10);
/// Chunks between an agent and a slow reader.
const CHUNKS: usize = 8;
/// Largest chunk; agents send half of it at most.
const MAX_CHUNK: usize = 64 * 1024;
/// Streams of one cluster: a team that follows a gang of some tens of pods. Each is a connection
/// of its agent.
const PER_CLUSTER: usize = 64;
/// Streams in all: with full buffers they hold 256 MiB.
const IN_ALL: usize = 512;

type Ticket = [u8; 16];
type Chunk = Result<Bytes, Status>;

/// What is to be read, and where it is.
#[derive(Clone, Debug)]
pub(crate) struct LogTarget {
    /// Cluster that holds the gang.
    pub(crate) cluster: String,
    /// Which gang.
    pub(crate) gang: GangId,
    /// Under which epoch.
    pub(crate) epoch: Epoch,
    /// Which lines of which container.
    pub(crate) query: v1::LogQuery,
}

/// Where readers and agents meet. Cheap to clone.
#[derive(Clone)]
pub(crate) struct LogDesk(Arc<Shared>);

struct Shared {
    clock: Clock,
    random: Random,
    stop: CancellationToken,
    room: Arc<Semaphore>,
    desk: Mutex<Desk>,
}

#[derive(Default)]
struct Desk {
    /// Sessions by cluster.
    lines: BTreeMap<String, Line>,
    /// Room for streams by cluster; it outlives sessions.
    rooms: BTreeMap<String, Arc<Semaphore>>,
    /// Readers whose agent has not come yet.
    waiting: BTreeMap<Ticket, Waiting>,
}

/// The way to the agent of a cluster.
#[derive(Clone)]
pub(super) struct Line {
    /// Which life of it.
    pub(super) incarnation: Incarnation,
    /// What it speaks.
    pub(super) protocol: u32,
    /// Its version, for words to a person.
    pub(super) version: String,
    /// Messages to it.
    pub(super) outbox: mpsc::Sender<Result<v1::HubMessage, Status>>,
}

struct Waiting {
    cluster: String,
    reader: mpsc::Sender<Chunk>,
    taken: oneshot::Sender<()>,
}

/// A ticket that is withdrawn when its reader goes before its agent comes.
struct Issued<'a> {
    desk: &'a LogDesk,
    ticket: Ticket,
}

impl Drop for Issued<'_> {
    fn drop(&mut self) {
        self.desk.lock().waiting.remove(&self.ticket);
    }
}

impl LogDesk {
    /// A desk at which nobody waits. All streams end with `stop`.
    #[must_use]
    pub(crate) fn new(clock: Clock, random: Random, stop: CancellationToken) -> Self {
        Self(Arc::new(Shared {
            clock,
            random,
            stop,
            room: Arc::new(Semaphore::new(IN_ALL)),
            desk: Mutex::default(),
        }))
    }

    /// A session has begun.
    pub(super) fn enter(&self, cluster: &str, line: Line) {
        self.lock().lines.insert(cluster.to_owned(), line);
    }

    /// A session has ended; a younger one of its cluster stays.
    pub(super) fn leave(&self, cluster: &str, incarnation: Incarnation) {
        let mut desk = self.lock();
        let known = desk.lines.get(cluster);
        if known.is_some_and(|line| line.incarnation == incarnation) {
            desk.lines.remove(cluster);
        }
    }

    /// Asks the agent for what `target` names; what it sends is the stream.
    pub(crate) async fn open(
        &self,
        target: LogTarget,
    ) -> Result<impl Stream<Item = Result<v1::LogsResponse, Status>> + use<>, ApiError> {
        let cluster = target.cluster.clone();
        let line = self.line(&cluster)?;
        let room = self.room(&cluster)?;
        let (reader, chunks) = mpsc::channel(CHUNKS);
        let (taken, is_taken) = oneshot::channel();
        let mut ticket = Ticket::default();
        self.0.random.fill(&mut ticket);
        let waiting = Waiting {
            cluster: cluster.clone(),
            reader,
            taken,
        };
        self.lock().waiting.insert(ticket, waiting);
        let issued = Issued { desk: self, ticket };
        let ask = async {
            let sent = line.outbox.send(Ok(request(ticket, target))).await;
            sent.is_ok() && is_taken.await.is_ok()
        };
        let asked = self.0.clock.timeout(TAKEN_WITHIN, ask).await;
        drop(issued);
        match asked {
            Ok(true) => {}
            Ok(false) => return Err(not_heard(&cluster, "its session has just ended")),
            Err(late) => return Err(not_heard(&cluster, &format!("no lines came {late}"))),
        }
        Ok(ReceiverStream::new(chunks).map(move |chunk| {
            // Held as long as the stream lives.
            let _ = &room;
            chunk.map(|text| v1::LogsResponse { text })
        }))
    }

    fn line(&self, cluster: &str) -> Result<Line, ApiError> {
        let line = self.lock().lines.get(cluster).cloned();
        let line = line.ok_or_else(|| not_heard(cluster, "its agent is not attached"))?;
        if line.protocol >= OFFERS_AND_LOGS {
            return Ok(line);
        }
        let message = format!(
            "the agent of cluster {cluster} is of version {}, which does not send logs",
            line.version
        );
        let error = ApiError::new(ErrorCode::AgentVersionMismatch, message);
        Err(error.help("run an agent of the hub's version, or read them in the cluster itself"))
    }

    fn room(&self, cluster: &str) -> Result<[OwnedSemaphorePermit; 2], ApiError> {
        let full = |what: String, limit: usize| {
            let message = format!("{limit} logs {what} are being read");
            let error = ApiError::new(ErrorCode::Overloaded, message);
            error
                .help("close some of them")
                .retry_after(Millis::seconds(10))
        };
        let here = {
            let mut desk = self.lock();
            let rooms = desk.rooms.entry(cluster.to_owned());
            Arc::clone(rooms.or_insert_with(|| Arc::new(Semaphore::new(PER_CLUSTER))))
        };
        let here = here.try_acquire_owned();
        let here = here.map_err(|_| full(format!("of cluster {cluster}"), PER_CLUSTER))?;
        let all = Arc::clone(&self.0.room).try_acquire_owned();
        let all = all.map_err(|_| full("of all clusters".to_owned(), IN_ALL))?;
        Ok([here, all])
    }

    /// The reader behind a ticket. An agent that is identified has only those of its cluster.
    fn redeem(&self, caller: Option<&str>, ticket: Ticket) -> Option<Waiting> {
        let mut desk = self.lock();
        let known = desk.waiting.get(&ticket)?;
        if caller.is_some_and(|caller| caller != known.cluster) {
            return None;
        }
        desk.waiting.remove(&ticket)
    }

    /// Takes in what an agent sends, until it ends or nobody reads it any more. `caller` is the
    /// cluster that its certificate names; `None` where agents have none.
    pub(super) async fn take(
        &self,
        caller: Option<&str>,
        mut incoming: Streaming<v1::LogChunk>,
    ) -> Result<v1::LogsTaken, Status> {
        let first = self.0.clock.timeout(TAKEN_WITHIN, incoming.message()).await;
        let first = first.map_err(|late| Status::deadline_exceeded(format!("ticket {late}")))??;
        let first = first.ok_or_else(|| Status::invalid_argument("no ticket"))?;
        let ticket = Ticket::try_from(first.ticket.as_ref()).ok();
        let waiting = ticket.and_then(|ticket| self.redeem(caller, ticket));
        let unknown = || Status::permission_denied("the ticket is used, late or unknown");
        let Waiting { reader, taken, .. } = waiting.ok_or_else(unknown)?;
        taken.send(()).map_err(|()| unknown())?;
        let mut bytes = 0_u64;
        let mut next = Some(first);
        while let Some(chunk) = next {
            bytes = bytes.saturating_add(chunk.text.len() as u64);
            let (text, last) = match read(chunk) {
                Ok(text) => (Ok(text), false),
                Err(status) => (Err(status), true),
            };
            let is_empty = text.as_ref().is_ok_and(Bytes::is_empty);
            if !is_empty && (!self.hand(&reader, text).await || last) {
                break;
            }
            next = tokio::select! {
                biased;
                () = reader.closed() => None,
                () = self.0.stop.cancelled() => None,
                heard = incoming.message() => match heard {
                    Ok(chunk) => chunk,
                    Err(broken) => {
                        let why = format!("its agent's connection broke: {broken}");
                        let error = ApiError::new(ErrorCode::ClusterUnreachable, why);
                        self.hand(&reader, Err(status::to_status(&error))).await;
                        None
                    }
                },
            };
        }
        Ok(v1::LogsTaken { bytes })
    }

    /// Hands one piece to the reader, at the reader's pace; false when nobody reads any more.
    async fn hand(&self, reader: &mpsc::Sender<Chunk>, chunk: Chunk) -> bool {
        tokio::select! {
            biased;
            () = self.0.stop.cancelled() => false,
            sent = reader.send(chunk) => sent.is_ok(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Desk> {
        self.0.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn request(ticket: Ticket, target: LogTarget) -> v1::HubMessage {
    let request = v1::LogRequest {
        ticket: Bytes::copy_from_slice(&ticket),
        gang: Some(target.gang.into()),
        epoch: target.epoch.0,
        query: Some(target.query),
    };
    v1::HubMessage {
        body: Some(v1::hub_message::Body::LogRequest(request)),
    }
}

/// Text, or why there is none.
fn read(chunk: v1::LogChunk) -> Chunk {
    if let Some(error) = chunk.error {
        return Err(status::to_status(&status::from_wire(error)));
    }
    if chunk.text.len() > MAX_CHUNK {
        let message = format!(
            "the agent sent {} bytes at once, at most {MAX_CHUNK} are taken",
            chunk.text.len()
        );
        return Err(status::to_status(&ApiError::new(
            ErrorCode::TooLarge,
            message,
        )));
    }
    Ok(chunk.text)
}

fn not_heard(cluster: &str, why: &str) -> ApiError {
    let message = format!("cluster {cluster} sends no logs: {why}");
    let help = format!("see how it is heard: meridian cluster describe {cluster}");
    ApiError::new(ErrorCode::ClusterUnreachable, message).help(help)
}
