//! The watch cache of one kind: a ring of recent object events that every watcher reads.
//!
//! Owns one watch of the store per kind and the ring it fills. A watcher holds a place in the
//! ring, nothing more: the ring is the only buffer, it never waits for anyone, and who falls out
//! of it is told to list again. Holds events, never a copy of all objects.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::StreamExt as _;
use meridian_runtime::Clock;
use meridian_runtime::clock::Millis;
use meridian_store::{Operation as StoreCall, Revision, SharedStore, StoreError, WatchBatch, keys};
use tokio::sync::watch;

use crate::kind::Kind;
use crate::merge::{Merger, ObjectEvent};

/// Events that a watcher may lie behind, and that a lost connection may take to resume: with a
/// hundred changes a second, forty seconds.
pub(crate) const RING_EVENTS: usize = 4_096;
/// Bytes of them, together; large objects shorten the ring, not the memory.
const RING_BYTES: usize = 32 * 1024 * 1024;
/// Pause before the store's watch is opened again after it broke: a fail-over of its leader takes
/// about a second.
const REOPEN_AFTER: Millis = Millis(250);

/// Recent events of one kind.
pub(crate) struct KindCache {
    kind: Arc<Kind>,
    state: Mutex<State>,
    /// Tells that the ring has moved; the value counts, it means nothing.
    moved: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    ring: VecDeque<Arc<ObjectEvent>>,
    bytes: usize,
    /// Number of the first event of the ring, counted from the start.
    first: u64,
    /// Every event after this revision is in the ring.
    floor: Revision,
    /// Every event up to this revision has been seen. `None` until the store has been asked.
    revision: Option<Revision>,
}

/// A watcher's place: the number of the next event it will read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(u64);

/// Answer to an attempt to begin at a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attach {
    /// Here.
    At(Place),
    /// The events from there on are no longer all in the ring.
    TooOld,
    /// The cache does not follow the store yet.
    NotYet,
}

/// Answer to a read.
pub(crate) enum Read {
    /// Events, and the revision up to which they are complete when there are no more.
    Events(Vec<Arc<ObjectEvent>>, Option<Revision>),
    /// The place has fallen out of the ring.
    Lagged,
}

impl KindCache {
    pub(crate) fn new(kind: Arc<Kind>) -> Self {
        Self {
            kind,
            state: Mutex::default(),
            moved: watch::Sender::new(0),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Woken whenever the ring moves.
    pub(crate) fn moved(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }

    /// The revision up to which every event has been seen.
    pub(crate) fn revision(&self) -> Option<Revision> {
        self.state().revision
    }

    /// The place of the first event after `revision`. When that lies ahead of the cache, events
    /// up to it are still to come and are the caller's to drop.
    pub(crate) fn attach(&self, revision: Revision) -> Attach {
        let state = self.state();
        if state.revision.is_none() {
            return Attach::NotYet;
        }
        if revision < state.floor {
            return Attach::TooOld;
        }
        let before = state
            .ring
            .partition_point(|event| event.revision <= revision);
        Attach::At(Place(state.first + before as u64))
    }

    /// Up to `most` events from `place` on, which moves past them.
    pub(crate) fn read(&self, place: &mut Place, most: usize) -> Read {
        let state = self.state();
        let Some(start) = place.0.checked_sub(state.first) else {
            return Read::Lagged;
        };
        let start = usize::try_from(start)
            .unwrap_or(usize::MAX)
            .min(state.ring.len());
        let events: Vec<_> = state.ring.range(start..).take(most).cloned().collect();
        place.0 += events.len() as u64;
        let at_end = start + events.len() >= state.ring.len();
        Read::Events(events, state.revision.filter(|_| at_end))
    }

    /// Takes in the events of one revision.
    fn push(&self, revision: Revision, events: Vec<Arc<ObjectEvent>>) {
        let mut state = self.state();
        for event in events {
            state.bytes += event.size();
            state.ring.push_back(event);
        }
        while state.ring.len() > RING_EVENTS || state.bytes > RING_BYTES {
            let Some(oldest) = state.ring.pop_front() else {
                break;
            };
            state.bytes -= oldest.size();
            state.first += 1;
            // The rest of its revision is of no use without it.
            state.floor = oldest.revision;
        }
        state.revision = Some(revision);
        drop(state);
        self.moved.send_modify(|count| *count += 1);
    }

    /// Begins anew after `revision`: every place becomes too old.
    fn restart(&self, revision: Revision) {
        let mut state = self.state();
        state.first += state.ring.len() as u64 + 1;
        state.ring.clear();
        state.bytes = 0;
        state.floor = revision;
        state.revision = Some(revision);
        drop(state);
        self.moved.send_modify(|count| *count += 1);
    }
}

/// Follows the store for as long as the group of tasks lives.
pub(crate) async fn follow(
    cache: Arc<KindCache>,
    store: SharedStore,
    clock: Clock,
    cancelled: tokio_util::sync::CancellationToken,
) -> Result<(), Infallible> {
    let mut merger = Merger::new(Arc::clone(&cache.kind), Arc::clone(&store));
    let mut next: Option<Revision> = None;
    loop {
        let broke = tokio::select! {
            () = cancelled.cancelled() => return Ok(()),
            broke = follow_once(&cache, &store, &mut merger, &mut next) => broke,
        };
        match broke {
            // Too far behind: what was missed is gone, watchers list again.
            Some(StoreError::Compacted { .. }) => {
                tracing::warn!(kind = %cache.kind.plural, "events were compacted unseen");
                next = None;
            }
            Some(error) => {
                tracing::warn!(kind = %cache.kind.plural, %error, "watch of the store broke");
            }
            None => tracing::debug!(kind = %cache.kind.plural, "watch of the store ended"),
        }
        tokio::select! {
            () = cancelled.cancelled() => return Ok(()),
            () = clock.sleep(REOPEN_AFTER) => {}
        }
    }
}

/// Follows until the store's watch breaks, and says why. `next` is where to go on.
async fn follow_once(
    cache: &KindCache,
    store: &SharedStore,
    merger: &mut Merger,
    next: &mut Option<Revision>,
) -> Option<StoreError> {
    let from = match *next {
        Some(from) => from,
        None => match store.revision().await {
            Ok(revision) => {
                merger.reset();
                cache.restart(revision);
                *next.insert(Revision(revision.0 + 1))
            }
            Err(error) => return Some(error),
        },
    };
    let range = keys::objects(&cache.kind.plural, None);
    let mut batches = match store.watch(StoreCall::WatchKind, range, from).await {
        Ok(batches) => batches,
        Err(error) => return Some(error),
    };
    while let Some(batch) = batches.next().await {
        let merged = match batch {
            Ok(batch) => take_in(cache, merger, batch).await,
            Err(error) => Err(error),
        };
        match merged {
            Ok(revision) => *next = Some(Revision(revision.0 + 1)),
            Err(error) => return Some(error),
        }
    }
    None
}

async fn take_in(
    cache: &KindCache,
    merger: &mut Merger,
    batch: WatchBatch,
) -> Result<Revision, StoreError> {
    let revision = batch.revision;
    let events = merger.merge(batch).await?;
    // A bookmark may repeat a revision that has been seen.
    if cache.revision().is_none_or(|seen| seen <= revision) {
        cache.push(revision, events);
    }
    Ok(revision)
}
