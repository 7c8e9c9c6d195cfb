//! What a process under test prints, kept in memory with a count that tells of more.
//!
//! Owns the lines of all lives of one process. Never interprets them.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, PoisonError};

use meridian_api::units::Millis;
use meridian_runtime::Clock;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader};
use tokio::sync::watch;

/// Lines kept of one process: a few minutes of a hub at debug level.
const KEPT_LINES: usize = 20_000;
/// Lines of its log that a failure shows: what a person reads before opening a debugger.
const SHOWN_LINES: usize = 40;
/// After its end, for its last lines to be read from the pipe; longer only when a child of its
/// own still holds the pipe.
const DRAIN: Millis = Millis::seconds(1);

/// Lines of a process, with a count that tells when there are more.
#[derive(Clone, Debug)]
pub(super) struct Log {
    kept: Arc<Mutex<Kept>>,
    count: watch::Sender<u64>,
    /// Pipes that may still bring lines.
    open: watch::Sender<u32>,
}

#[derive(Debug, Default)]
struct Kept {
    lines: VecDeque<String>,
    /// Lines dropped before the first kept one.
    dropped: u64,
}

impl Log {
    /// An empty log.
    pub(super) fn new() -> Self {
        Self {
            kept: Arc::default(),
            count: watch::Sender::new(0),
            open: watch::Sender::new(0),
        }
    }

    /// Keeps every line of `from`, to its end. Counts as open from the call on, not from the first
    /// poll.
    pub(super) fn keep(
        self,
        from: impl AsyncRead + Send + Unpin + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        self.open.send_modify(|open| *open += 1);
        async move {
            let mut from = BufReader::new(from);
            let mut line = Vec::new();
            // An error ends a log as the end of the pipe does: the process is gone.
            while matches!(from.read_until(b'\n', &mut line).await, Ok(length) if length > 0) {
                self.push(String::from_utf8_lossy(&line).trim_end().to_owned());
                line.clear();
            }
            self.open.send_modify(|open| *open -= 1);
        }
    }

    /// What is kept, oldest first.
    pub(super) fn lines(&self) -> Vec<String> {
        self.kept().lines.iter().cloned().collect()
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, line: String) {
        let mut kept = self.kept();
        if kept.lines.len() == KEPT_LINES {
            kept.lines.pop_front();
            kept.dropped += 1;
        }
        kept.lines.push_back(line);
        drop(kept);
        self.count.send_modify(|count| *count += 1);
    }

    /// Lines so far.
    pub(super) fn count(&self) -> u64 {
        *self.count.borrow()
    }

    /// The first line with `wanted` among those after the first `from`, when there is one.
    pub(super) async fn line(&self, from: u64, wanted: &str) -> String {
        let mut count = self.count.subscribe();
        loop {
            count.borrow_and_update();
            let found = {
                let kept = self.kept();
                let skip = usize::try_from(from.saturating_sub(kept.dropped)).unwrap_or(usize::MAX);
                kept.lines
                    .iter()
                    .skip(skip)
                    .find(|line| line.contains(wanted))
                    .cloned()
            };
            if let Some(line) = found {
                return line;
            }
            // The sender lives in `self`, so a change is all that can come.
            count.changed().await.expect("the log holds its own sender");
        }
    }

    /// Waits until every line printed so far is kept.
    pub(super) async fn drained(&self, clock: &Clock) {
        let mut open = self.open.subscribe();
        // Too late is no error: a grandchild may hold a pipe for as long as it likes.
        let _ = clock.timeout(DRAIN, open.wait_for(|open| *open == 0)).await;
    }

    /// The last lines, for a failure.
    pub(super) fn tail(&self) -> String {
        let kept = self.kept();
        let skip = kept.lines.len().saturating_sub(SHOWN_LINES);
        let mut text = String::new();
        for line in kept.lines.iter().skip(skip) {
            let _ = writeln!(text, "  {line}");
        }
        text
    }
}
