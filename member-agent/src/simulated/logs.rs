//! What simulated pods write: that they started, how far they are, and how they ended.
//!
//! Owns the lines. They follow from what the pod really did, so nothing is stored for them and a
//! restarted cluster shows the same. Never makes up work that was not done.

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use meridian_api::quantity::Time;
use meridian_api::units::{Millis, UnixMillis};

use super::state::{Pod, State};
use super::{Inside, SimulatedBackend};
use crate::backend::{BackendError, GangKey, LogQuery, PodPhase};

/// A running pod says so each time this has passed.
const STEP: Millis = Millis::seconds(10);
/// Lines that a node keeps of a container: at some 50 bytes about as many as fit a kubelet's 10 MiB
/// would be of any use to a person.
const KEPT: u64 = 10_000;
/// Lines in one piece.
const PIECE: u64 = 256;

/// Where a reader is in a pod's lines.
#[derive(Clone, Debug)]
struct Cursor {
    key: GangKey,
    pod: String,
    /// Number of the next line: 0 = the start, n = step n.
    next: u64,
    /// Lines that are older are left out.
    from: Option<UnixMillis>,
    query: LogQuery,
}

/// What there is to read from a cursor on.
struct Page {
    lines: Vec<(UnixMillis, String)>,
    next: u64,
    /// Nothing will follow.
    ended: bool,
    /// When something follows, if nothing else happens.
    due: Option<UnixMillis>,
}

/// Steps that a pod has done by `now`.
fn steps(pod: &Pod, now: UnixMillis) -> u64 {
    let until = pod.ended.unwrap_or(now);
    pod.started
        .map_or(0, |started| until.since(started).0 / STEP.0)
}

impl State {
    /// The pod whose logs are asked for, and where its reader begins.
    fn log_cursor(&self, key: GangKey, query: LogQuery) -> Result<Cursor, BackendError> {
        let gang = self.gangs.get(&key).ok_or(BackendError::NotFound(key))?;
        let is = |pod: &&Pod| {
            (query.role.is_empty() || pod.role == query.role) && pod.rank == query.rank
        };
        let invalid = |text: String| Err(BackendError::Invalid(text));
        let Some(pod) = gang.pods.iter().find(is) else {
            return invalid(format!(
                "it has no pod {} of role {:?}",
                query.rank, query.role
            ));
        };
        let name = &pod.id.name;
        if query.previous {
            return invalid(format!("pod {name} had no life before this one"));
        }
        if pod.started.is_none() {
            return invalid(format!("pod {name} has not started yet"));
        }
        let lines = 1 + steps(pod, self.now) + u64::from(pod.ended.is_some());
        let first = lines.saturating_sub(query.tail.unwrap_or(KEPT).min(KEPT));
        let from = query
            .since
            .map(|since| UnixMillis(self.now.0.saturating_sub_unsigned(since.0)));
        Ok(Cursor {
            key,
            pod: name.clone(),
            next: first,
            from,
            query,
        })
    }

    /// What is there from `cursor` on; `None` when the pod is gone.
    fn log_page(&self, cursor: &Cursor) -> Option<Page> {
        let gang = self.gangs.get(&cursor.key)?;
        let pod = gang.pods.iter().find(|pod| pod.id.name == cursor.pod)?;
        let started = pod.started?;
        let done = steps(pod, self.now);
        let mut page = Page {
            lines: Vec::new(),
            next: cursor.next,
            ended: false,
            due: None,
        };
        while page.next <= done && (page.lines.len() as u64) < PIECE {
            let at = started.after(Millis(page.next.saturating_mul(STEP.0)));
            let text = if page.next == 0 {
                format!("started on {} as {} {}", pod.node, pod.role, pod.rank)
            } else {
                format!("step {}", page.next)
            };
            page.lines.push((at, text));
            page.next += 1;
        }
        if page.next <= done {
            page.due = Some(self.now);
        } else if let Some(ended) = pod.ended {
            page.ended = true;
            // The last line of all: read already when the reader began behind it.
            if page.next == done + 1 {
                page.lines.push((ended, last_words(pod, done)));
                page.next += 1;
            }
        } else {
            page.due = Some(started.after(Millis((done + 1).saturating_mul(STEP.0))));
        }
        if let Some(from) = cursor.from {
            page.lines.retain(|(at, _)| *at >= from);
        }
        Some(page)
    }
}

fn last_words(pod: &Pod, steps: u64) -> String {
    match &pod.phase {
        PodPhase::Failed { exit_code, reason } => {
            format!("ended after {steps} steps: exit code {exit_code}, {reason}")
        }
        PodPhase::Broken { reason } => format!("not heard after {steps} steps: {reason}"),
        PodPhase::Pending
        | PodPhase::Rejected { .. }
        | PodPhase::Bound
        | PodPhase::Running
        | PodPhase::Succeeded => format!("done after {steps} steps"),
    }
}

/// Lines as text.
fn text(lines: &[(UnixMillis, String)], timestamps: bool) -> Bytes {
    let line = |(at, text): &(UnixMillis, String)| {
        if timestamps {
            format!("{} {text}\n", Time(*at))
        } else {
            format!("{text}\n")
        }
    };
    lines.iter().map(line).collect::<String>().into()
}

impl SimulatedBackend {
    /// See [`crate::ClusterBackend::logs`].
    pub(super) async fn read_logs(
        &self,
        key: GangKey,
        query: LogQuery,
    ) -> Result<BoxStream<'static, Result<Bytes, BackendError>>, BackendError> {
        let cursor = self
            .call(|inside| inside.state.log_cursor(key, query))
            .await?;
        let reader = (self.clone(), Some(cursor));
        Ok(stream::unfold(reader, read).boxed())
    }
}

type Reader = (SimulatedBackend, Option<Cursor>);

/// The next lines, as soon as there are some.
async fn read(reader: Reader) -> Option<(Result<Bytes, BackendError>, Reader)> {
    let (backend, cursor) = reader;
    let mut cursor = cursor?;
    loop {
        let cluster = backend.cluster.clone();
        let mut turned = std::pin::pin!(cluster.0.changed.notified());
        turned.as_mut().enable();
        let now = backend.clock.wall();
        let look = |inside: &mut Inside| inside.state.log_page(&cursor);
        let page = cluster.turn(now, look)?;
        cursor.next = page.next;
        let over = page.ended || (!cursor.query.follow && page.due != Some(now));
        if !page.lines.is_empty() {
            let text = text(&page.lines, cursor.query.timestamps);
            let next = (!over).then_some(cursor);
            return Some((Ok(text), (backend, next)));
        }
        if over {
            return None;
        }
        let due = async {
            match page.due {
                Some(at) => backend.clock.sleep(at.since(now)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = turned => {}
            () = due => {}
        }
    }
}
