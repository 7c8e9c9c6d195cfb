//! The feed: recent revisions in memory, and the watchers that wait for the next.
//!
//! Owns which watcher is woken by which revision, and the stream that a watcher reads. A watcher
//! pulls at its own pace and holds nothing up; one that falls behind the feed reads the store's
//! own history. Never decides what is kept there.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Weak};

use futures::stream;
use meridian_api::ids::Revision;
use meridian_api::units::{BootMillis, Millis};
use meridian_runtime::Clock;
use tokio::sync::Notify;

use crate::{Event, KeyRange, StoreError, WatchBatch, WatchStream};

/// A watcher whose range is quiet hears this often how far it is. Often enough that what resumes
/// from a bookmark is inside any sensible history, seldom enough to cost nothing.
pub(crate) const BOOKMARK_EVERY: Millis = Millis::seconds(10);

/// Most revisions that one read of a watcher looks through, so that no reader holds the lock for
/// more than about a millisecond.
pub(crate) const READ_REVISIONS: usize = 512;

/// What the feed itself costs for each revision and event, beside keys and values.
const OVERHEAD_BYTES: usize = 128;

/// The events of the last revisions, in order, without a gap.
#[derive(Debug)]
pub(crate) struct Feed {
    newest: Revision,
    /// `recent` holds every revision from this one on.
    floor: Revision,
    recent: VecDeque<Arc<WatchBatch>>,
    bytes: usize,
    most_bytes: usize,
    watchers: Vec<Weak<Watcher>>,
}

/// One watcher's place in the feed: woken when its range changes.
#[derive(Debug)]
pub(crate) struct Watcher {
    range: KeyRange,
    wake: Notify,
}

/// What a watcher finds in the feed.
#[derive(Debug)]
pub(crate) enum Reading {
    /// Everything in its range up to and with this revision.
    UpTo(VecDeque<WatchBatch>, Revision),
    /// The feed begins later; the store's history has the rest.
    Earlier,
}

impl Feed {
    /// A feed that goes on after `newest`, with no event from `floor` to there, and keeps about
    /// `most_bytes`.
    pub(crate) fn new(floor: Revision, newest: Revision, most_bytes: usize) -> Self {
        Self {
            newest,
            floor,
            recent: VecDeque::new(),
            bytes: 0,
            most_bytes,
            watchers: Vec::new(),
        }
    }

    /// The newest revision published.
    pub(crate) fn newest(&self) -> Revision {
        self.newest
    }

    /// Every revision that the feed still holds.
    pub(crate) fn recent(&self) -> impl Iterator<Item = &WatchBatch> {
        self.recent.iter().map(Arc::as_ref)
    }

    /// Revisions above `after`, of those that the feed still holds.
    pub(crate) fn recent_after(&self, after: Revision) -> impl Iterator<Item = &WatchBatch> {
        let first = self.recent.partition_point(|batch| batch.revision <= after);
        self.recent.range(first..).map(Arc::as_ref)
    }

    /// Publishes one revision, and wakes those who watch what it changed.
    pub(crate) fn publish(&mut self, revision: Revision, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        self.newest = revision;
        self.watchers.retain(|watcher| {
            let Some(watcher) = watcher.upgrade() else {
                return false;
            };
            if events
                .iter()
                .any(|event| watcher.range.contains(event.key()))
            {
                watcher.wake.notify_one();
            }
            true
        });
        self.bytes += weight(&events);
        self.recent
            .push_back(Arc::new(WatchBatch { revision, events }));
        while self.bytes > self.most_bytes {
            self.forget_first();
        }
    }

    /// Forgets revisions below `below`.
    pub(crate) fn forget(&mut self, below: Revision) {
        while self
            .recent
            .front()
            .is_some_and(|first| first.revision < below)
        {
            self.forget_first();
        }
        self.floor = self.floor.max(below);
    }

    fn forget_first(&mut self) {
        if let Some(first) = self.recent.pop_front() {
            self.bytes -= weight(&first.events);
            self.floor = Revision(first.revision.0 + 1);
        }
    }

    /// Lets every watcher look again: a deadline has moved, or the store is closing.
    pub(crate) fn wake_all(&mut self) {
        self.watchers.retain(|watcher| match watcher.upgrade() {
            Some(watcher) => {
                watcher.wake.notify_one();
                true
            }
            None => false,
        });
    }

    /// A new watcher, forgotten when it is dropped.
    pub(crate) fn watcher(&mut self, range: KeyRange) -> Arc<Watcher> {
        let watcher = Arc::new(Watcher {
            range,
            wake: Notify::new(),
        });
        self.watchers.push(Arc::downgrade(&watcher));
        watcher
    }

    /// Events of `range` from revision `from` on, of at most [`READ_REVISIONS`] revisions.
    pub(crate) fn read(&self, range: &KeyRange, from: Revision) -> Reading {
        if from < self.floor {
            return Reading::Earlier;
        }
        let first = self.recent.partition_point(|batch| batch.revision < from);
        let window = self.recent.iter().skip(first).take(READ_REVISIONS);
        let through = match self.recent.get(first + READ_REVISIONS) {
            Some(beyond) => Revision(beyond.revision.0 - 1),
            None => self.newest,
        };
        let batches = window.filter_map(|batch| in_range(batch, range)).collect();
        Reading::UpTo(batches, through)
    }
}

fn weight(events: &[Event]) -> usize {
    let size = |kv: &crate::KeyValue| kv.key.len() + kv.value.len();
    let event = |event: &Event| match event {
        Event::Put { current, previous } => size(current) + previous.as_ref().map_or(0, size),
        Event::Delete { key, previous, .. } => key.len() + previous.as_ref().map_or(0, size),
    };
    events
        .iter()
        .map(|e| event(e) + OVERHEAD_BYTES)
        .sum::<usize>()
        + OVERHEAD_BYTES
}

/// The part of a batch that lies in `range`; `None` when nothing does.
pub(crate) fn in_range(batch: &WatchBatch, range: &KeyRange) -> Option<WatchBatch> {
    let inside = batch
        .events
        .iter()
        .filter(|event| range.contains(event.key()));
    let events: Vec<Event> = inside.cloned().collect();
    (!events.is_empty()).then_some(WatchBatch {
        revision: batch.revision,
        events,
    })
}

/// Where a watcher's stream reads.
pub(crate) trait Source: Send + Sync + 'static {
    /// Events of `range` from revision `from` on, as far as one read goes, and the revision up
    /// to which (inclusive) they are all.
    fn read(
        &self,
        range: &KeyRange,
        from: Revision,
    ) -> impl Future<Output = Result<(VecDeque<WatchBatch>, Revision), StoreError>> + Send;

    /// How long a quiet watcher may sleep before the store needs it to look again.
    fn quiet_for(&self) -> Millis;

    /// Done when a waiting watcher must look again for another reason than a new revision.
    fn disturbed(&self) -> impl Future<Output = ()> + Send;

    /// The clock by which it sleeps.
    fn clock(&self) -> &Clock;
}

/// The stream of one watcher over `source`.
pub(crate) fn watch(source: impl Source, watcher: Arc<Watcher>, from: Revision) -> WatchStream {
    let bookmark_at = source.clock().boot().after(BOOKMARK_EVERY);
    let said = Revision(from.0.saturating_sub(1));
    let state = Watching {
        source,
        watcher,
        said,
        read: said,
        queue: VecDeque::new(),
        bookmark_at,
    };
    Box::pin(stream::unfold(Some(state), |state| async {
        let mut state = state?;
        match state.next().await {
            Ok(batch) => Some((Ok(batch), Some(state))),
            Err(error) => Some((Err(error), None)),
        }
    }))
}

struct Watching<S> {
    source: S,
    watcher: Arc<Watcher>,
    /// Last revision that the reader was told about.
    said: Revision,
    /// Last revision that was looked at.
    read: Revision,
    queue: VecDeque<WatchBatch>,
    bookmark_at: BootMillis,
}

impl<S: Source> Watching<S> {
    async fn next(&mut self) -> Result<WatchBatch, StoreError> {
        loop {
            if let Some(batch) = self.queue.pop_front() {
                return Ok(self.say(batch));
            }
            let from = Revision(self.read.0 + 1);
            let (batches, through) = self.source.read(&self.watcher.range, from).await?;
            let caught_up = batches.is_empty() && through <= self.read;
            self.queue = batches;
            self.read = self.read.max(through);
            if !caught_up {
                continue;
            }
            let now = self.source.clock().boot();
            if now >= self.bookmark_at {
                if self.read > self.said {
                    return Ok(self.say(WatchBatch {
                        revision: self.read,
                        events: Vec::new(),
                    }));
                }
                self.bookmark_at = now.after(BOOKMARK_EVERY);
            }
            let quiet = self.source.quiet_for().min(self.bookmark_at.since(now));
            tokio::select! {
                biased;
                () = self.watcher.wake.notified() => {}
                () = self.source.disturbed() => {}
                () = self.source.clock().sleep(quiet) => {}
            }
        }
    }

    fn say(&mut self, batch: WatchBatch) -> WatchBatch {
        self.said = batch.revision;
        self.bookmark_at = self.source.clock().boot().after(BOOKMARK_EVERY);
        batch
    }
}
