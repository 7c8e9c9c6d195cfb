//! Watches: a stream of events, one JSON document a line.
//!
//! Owns the phases of a watch: what is there (when asked for), then what happened since, from the
//! store's history when the cache no longer has it, then live from the cache; bookmarks, the
//! timeout, and the ERROR event that tells a watcher to list again. Never blocks a writer.

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use meridian_runtime::clock::{BootMillis, Millis};
use meridian_store::keys::{self, ObjectKey};
use meridian_store::{Operation as StoreCall, Revision, StoreError, WatchStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;

use crate::cache::{Attach, KindCache, Place, Read};
use crate::kind::{FieldError, FieldReason, Kind};
use crate::merge::{Happened, Merger, ObjectEvent};
use crate::read::{Scan, range_of, shown};
use crate::render::Rendering;
use crate::resources::Resources;
use crate::selectors::Selectors;
use crate::status::{ApiStatus, StatusReason};

/// Watches of one server, all kinds together: a thousand users with a dashboard of eight. Each
/// holds its place, a buffer of one chunk and a connection.
pub(crate) const MAX_WATCHES: usize = 8_192;
/// Watches that read the store's history at the same time: each is a watch of the store.
pub(crate) const MAX_CATCH_UPS: usize = 32;
/// Events in one chunk of the answer: what a TCP window of 64 KiB takes of usual objects.
const CHUNK_EVENTS: usize = 64;
/// Bookmarks come at least this often, as from Kubernetes.
const BOOKMARK_EVERY: Millis = Millis::seconds(60);
/// A watch without a timeout ends between one and two of these, so that not all end at once.
const DEFAULT_TIMEOUT: Millis = Millis::seconds(1_800);
/// The longest timeout that is kept.
const MAX_TIMEOUT: Millis = Millis::seconds(86_400);
/// Seconds after which a refused watch may be tried again.
const RETRY_AFTER: u64 = 5;
/// How long a watch waits for a cache that has just been started.
const CACHE_START: Millis = Millis::seconds(10);

/// Whether what is there is sent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Initial {
    /// No.
    Skip,
    /// As ADDED events.
    Send,
    /// As ADDED events, then a bookmark that says so (`sendInitialEvents=true`).
    SendAndMark,
}

/// What to watch.
#[derive(Clone, Debug)]
pub(crate) struct WatchOptions {
    pub namespace: Option<String>,
    pub selectors: Selectors,
    pub after: Revision,
    pub initial: Initial,
    pub bookmarks: bool,
    pub timeout: Option<Millis>,
    pub rendering: Rendering,
}

impl Resources {
    /// Opens a watch: lines of JSON until the timeout, an error event, or the end of the server.
    pub(crate) async fn watch(
        &self,
        kind: &Arc<Kind>,
        options: WatchOptions,
    ) -> Result<impl Stream<Item = Bytes> + Send + use<>, ApiStatus> {
        check(kind, &options)?;
        let Some(cache) = self.cache(kind).cloned() else {
            return Err(ApiStatus::not_found(kind, ""));
        };
        self.wait_for(&cache).await?;
        let newest = match cache.revision() {
            Some(seen) if seen >= options.after => seen,
            _ => self.store().revision().await?,
        };
        if options.after > newest {
            return Err(ApiStatus::too_large_version(options.after.0, newest.0));
        }
        let timeout = options.timeout.unwrap_or_else(|| {
            let spread = self.shared().random.below(DEFAULT_TIMEOUT.0);
            DEFAULT_TIMEOUT.saturating_add(Millis(spread))
        });
        let now = self.clock().boot();
        let phase = match options.initial {
            Initial::Skip => Phase::Resume,
            Initial::Send | Initial::SendAndMark => {
                let range = range_of(kind, options.namespace.as_deref(), &options.selectors);
                Phase::List(Scan::new(self.store().clone(), range, None, usize::MAX))
            }
        };
        let Ok(permit) = Arc::clone(&self.shared().watches).try_acquire_owned() else {
            let message = format!("{MAX_WATCHES} watches are open, no more are served: try later");
            let mut status = ApiStatus::new(StatusReason::TooManyRequests, message);
            status.retry_after = Some(RETRY_AFTER);
            return Err(status);
        };
        let watch = Watch {
            _permit: permit,
            resources: self.clone(),
            kind: Arc::clone(kind),
            moved: cache.moved(),
            cancelled: self.shared().tasks.cancelled(),
            cache,
            known: options.after,
            seen: options.after,
            deadline: now.after(timeout.min(MAX_TIMEOUT)),
            next_bookmark: now.after(BOOKMARK_EVERY),
            options,
            phase,
        };
        Ok(futures::stream::unfold(watch, |mut watch| async move {
            watch.chunk().await.map(|chunk| (chunk, watch))
        }))
    }

    /// A watch in which nothing ever happens, for kinds of which nothing is stored.
    pub(crate) fn quiet_watch(
        &self,
        kind: &Kind,
        options: &WatchOptions,
    ) -> impl Stream<Item = Bytes> + Send + use<> {
        let timeout = options.timeout.unwrap_or(DEFAULT_TIMEOUT).min(MAX_TIMEOUT);
        let (clock, cancelled) = (self.clock().clone(), self.shared().tasks.cancelled());
        let mark = (options.initial == Initial::SendAndMark).then(|| {
            let revision = options.after.0.max(1).to_string();
            let object = options.rendering.bookmark(kind, &revision, true);
            Bytes::from(line("BOOKMARK", &object.to_string()))
        });
        let silence = async move {
            tokio::select! {
                () = clock.sleep(timeout) => {}
                () = cancelled.cancelled() => {}
            }
            None
        };
        futures::stream::iter(mark)
            .chain(futures::stream::once(silence).filter_map(futures::future::ready))
    }

    async fn wait_for(&self, cache: &KindCache) -> Result<(), ApiStatus> {
        let mut moved = cache.moved();
        let started = moved.wait_for(|_| cache.revision().is_some());
        if let Ok(Ok(_)) = self.clock().timeout(CACHE_START, started).await {
            return Ok(());
        }
        let message = "the watch cache does not follow the store yet: try again";
        let mut status = ApiStatus::new(StatusReason::TooManyRequests, message);
        status.retry_after = Some(RETRY_AFTER);
        Err(status)
    }
}

fn check(kind: &Kind, options: &WatchOptions) -> Result<(), ApiStatus> {
    if options.initial == Initial::SendAndMark && !options.bookmarks {
        let message = "sendInitialEvents needs allowWatchBookmarks=true: its end is a bookmark";
        let cause = FieldError::new("allowWatchBookmarks", FieldReason::Required, message);
        return Err(ApiStatus::invalid(kind, "", vec![cause]));
    }
    Ok(())
}

/// A watch under way.
struct Watch {
    _permit: OwnedSemaphorePermit,
    resources: Resources,
    kind: Arc<Kind>,
    cache: Arc<KindCache>,
    moved: watch::Receiver<u64>,
    cancelled: CancellationToken,
    options: WatchOptions,
    phase: Phase,
    /// The client's list, or the one sent first, is at this revision.
    known: Revision,
    /// Everything up to this revision has been sent, or need not be.
    seen: Revision,
    deadline: BootMillis,
    next_bookmark: BootMillis,
}

enum Phase {
    /// Sending what is there.
    List(Scan),
    /// Finding the place after `seen`.
    Resume,
    /// Reading the store's history until the cache has the rest.
    CatchUp(Box<CatchUp>),
    /// Reading the cache.
    Live(Place),
    /// The last line has been sent.
    Over,
}

struct CatchUp {
    batches: WatchStream,
    merger: Merger,
    _permit: OwnedSemaphorePermit,
}

/// What ends a wait.
enum Woken {
    Moved,
    Bookmark,
    Deadline,
    Shutdown,
}

impl Watch {
    /// The next lines; `None` at the end.
    async fn chunk(&mut self) -> Option<Bytes> {
        loop {
            let step = match &mut self.phase {
                Phase::Over => return None,
                Phase::List(_) => self.list().await,
                Phase::Resume => self.resume().await,
                Phase::CatchUp(_) => self.catch_up().await,
                Phase::Live(_) => self.live().await,
            };
            match step {
                Ok(lines) if lines.is_empty() => {}
                Ok(lines) => return Some(lines.into()),
                Err(status) => {
                    self.phase = Phase::Over;
                    return Some(line("ERROR", &status.to_json().to_string()).into());
                }
            }
        }
    }

    async fn list(&mut self) -> Result<String, ApiStatus> {
        let Phase::List(scan) = &mut self.phase else {
            return Ok(String::new());
        };
        let objects = scan.batch().await?;
        let mut lines = String::new();
        for (key, halves) in &objects {
            let object = shown(&self.kind, key, halves)?;
            if self.options.selectors.matches(&object) {
                let now = self.resources.clock().wall();
                let object = self.options.rendering.one(&self.kind, object, now);
                lines.push_str(&line("ADDED", &object.to_string()));
            }
        }
        if objects.is_empty() {
            let revision = scan.revision().unwrap_or_default();
            if revision < self.options.after {
                return Err(ApiStatus::too_large_version(
                    self.options.after.0,
                    revision.0,
                ));
            }
            self.known = revision;
            self.seen = revision;
            self.phase = Phase::Resume;
            if self.options.initial == Initial::SendAndMark {
                lines.push_str(&self.bookmark(true));
            }
        }
        Ok(lines)
    }

    async fn resume(&mut self) -> Result<String, ApiStatus> {
        match self.cache.attach(self.seen) {
            Attach::At(place) => self.phase = Phase::Live(place),
            Attach::TooOld | Attach::NotYet => {
                let catch_ups = Arc::clone(&self.resources.shared().catch_ups);
                let Ok(permit) = catch_ups.try_acquire_owned() else {
                    return Err(too_old(self.seen));
                };
                let store = self.resources.store();
                let range = keys::objects(&self.kind.plural, self.options.namespace.as_deref());
                let from = Revision(self.seen.0 + 1);
                let batches = store
                    .watch(StoreCall::WatchKind, range, from)
                    .await
                    .map_err(|error| self.broken(error))?;
                let merger = Merger::new(Arc::clone(&self.kind), Arc::clone(store));
                self.phase = Phase::CatchUp(Box::new(CatchUp {
                    batches,
                    merger,
                    _permit: permit,
                }));
            }
        }
        Ok(String::new())
    }

    async fn catch_up(&mut self) -> Result<String, ApiStatus> {
        if let Attach::At(place) = self.cache.attach(self.seen) {
            // The store's own watch may be ahead of the ring: what it has told is not told again.
            self.known = self.known.max(self.seen);
            self.phase = Phase::Live(place);
            return Ok(String::new());
        }
        let deadline = self.resources.clock().sleep_until(self.deadline);
        let Phase::CatchUp(past) = &mut self.phase else {
            return Ok(String::new());
        };
        let batch = tokio::select! {
            batch = past.batches.next() => batch,
            () = deadline => None,
            () = self.cancelled.cancelled() => None,
        };
        let Some(batch) = batch else {
            self.phase = Phase::Over;
            return Ok(String::new());
        };
        let merged = match batch {
            Ok(batch) => {
                let revision = batch.revision;
                past.merger
                    .merge(batch)
                    .await
                    .map(|events| (revision, events))
            }
            Err(error) => Err(error),
        };
        let (revision, events) = merged.map_err(|error| self.broken(error))?;
        let lines = self.lines(&events);
        self.seen = self.seen.max(revision);
        Ok(lines)
    }

    async fn live(&mut self) -> Result<String, ApiStatus> {
        // Marked before the read, so that what comes after the read wakes.
        self.moved.mark_unchanged();
        let Phase::Live(place) = &mut self.phase else {
            return Ok(String::new());
        };
        let (events, complete) = match self.cache.read(place, CHUNK_EVENTS) {
            Read::Events(events, complete) => (events, complete),
            Read::Lagged => return Err(too_old(self.seen)),
        };
        let lines = self.lines(&events);
        if let Some(last) = events.last() {
            // Others of its revision may follow; a bookmark waits for `complete`.
            self.seen = self.seen.max(Revision(last.revision.0 - 1));
        }
        if let Some(complete) = complete {
            self.seen = self.seen.max(complete);
        }
        if !events.is_empty() {
            return Ok(lines);
        }
        Ok(match self.wait().await {
            Woken::Moved => String::new(),
            Woken::Bookmark => {
                self.next_bookmark = self.resources.clock().boot().after(BOOKMARK_EVERY);
                self.bookmark(false)
            }
            Woken::Deadline => {
                self.phase = Phase::Over;
                self.bookmark(false)
            }
            Woken::Shutdown => {
                self.phase = Phase::Over;
                String::new()
            }
        })
    }

    async fn wait(&mut self) -> Woken {
        let clock = self.resources.clock();
        let next = self.deadline.min(self.next_bookmark);
        tokio::select! {
            biased;
            () = self.cancelled.cancelled() => Woken::Shutdown,
            changed = self.moved.changed() => match changed {
                Ok(()) => Woken::Moved,
                Err(_) => Woken::Shutdown,
            },
            () = clock.sleep_until(next) => {
                if next == self.deadline { Woken::Deadline } else { Woken::Bookmark }
            }
        }
    }

    fn lines(&self, events: &[Arc<ObjectEvent>]) -> String {
        let now = self.resources.clock().wall();
        let mut lines = String::new();
        for event in events
            .iter()
            .filter(|event| self.concerns(event.revision, &event.key))
        {
            let Some(happened) = event.seen_by(&self.options.selectors) else {
                continue;
            };
            let word = match happened {
                Happened::Added => "ADDED",
                Happened::Modified => "MODIFIED",
                Happened::Deleted => "DELETED",
            };
            let object = self.options.rendering.event(event, now);
            lines.push_str(&line(word, &String::from_utf8_lossy(object)));
        }
        lines
    }

    fn concerns(&self, revision: Revision, key: &ObjectKey) -> bool {
        let namespace = self.options.namespace.as_ref();
        revision > self.known && namespace.is_none_or(|own| Some(own) == key.namespace.as_ref())
    }

    /// A bookmark line, when the client takes them.
    fn bookmark(&self, initial_end: bool) -> String {
        if !self.options.bookmarks {
            return String::new();
        }
        let revision = self.seen.to_string();
        let object = self
            .options
            .rendering
            .bookmark(&self.kind, &revision, initial_end);
        line("BOOKMARK", &object.to_string())
    }

    fn broken(&self, error: StoreError) -> ApiStatus {
        match error {
            StoreError::Compacted { .. } => too_old(self.seen),
            other => other.into(),
        }
    }
}

fn too_old(seen: Revision) -> ApiStatus {
    ApiStatus::expired(format!(
        "too old resource version: {seen}: list again and watch from the list's resourceVersion"
    ))
}

fn line(word: &str, object: &str) -> String {
    let mut line = String::with_capacity(object.len() + 32);
    // Writing to a String cannot fail.
    let _ = writeln!(line, r#"{{"type":"{word}","object":{object}}}"#);
    line
}
