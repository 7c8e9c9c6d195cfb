//! Watches on etcd: whole revisions out of whatever pieces arrive.
//!
//! Owns the joining of fragments, the bookmarks (etcd's progress responses, asked for in quiet
//! times) and the end of a watch whose member has fallen silent. Never resumes by itself: after
//! the error its caller does, from the revision after the last batch.

use std::collections::VecDeque;

use etcd_client::{EventType, WatchOptions, WatchResponse, WatchStream as EtcdStream};
use futures::stream;
use meridian_api::ids::Revision;
use meridian_api::units::{BootMillis, Millis};
use meridian_runtime::Clock;

use super::convert::{self, Prefix, to_store_error};
use super::{EtcdStore, TRY_LIMIT, within};
use crate::{Event, KeyRange, StoreError, WatchBatch, WatchStream};

/// Largest message of a watch. The server cuts at its request limit, 1.5 MiB by default; one
/// event with its previous value is never cut.
const MAX_MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// Time to answer a request for progress; then the member is given up.
const PROGRESS_LIMIT: Millis = Millis::seconds(10);

/// How a watch behaves in quiet times.
#[derive(Clone, Copy, Debug)]
pub(super) struct WatchLimits {
    pub(super) bookmark_every: Millis,
}

/// Opens a watch of a range that is not empty.
pub(super) async fn open(
    store: &EtcdStore,
    range: &KeyRange,
    from: Revision,
    limits: WatchLimits,
) -> Result<WatchStream, StoreError> {
    let (start, end) = store.prefix.range(range);
    let options = WatchOptions::new()
        .with_range(end)
        .with_start_revision(convert::signed(from))
        .with_prev_key()
        .with_fragment();
    let client = store
        .client
        .watch_client()
        .max_decoding_message_size(MAX_MESSAGE_BYTES);
    let stream = store
        .again(|| {
            let (mut client, start, options) = (client.clone(), start.clone(), options.clone());
            async move { client.watch(start, Some(options)).await }
        })
        .await?;
    let now = store.clock.boot();
    let watching = Watching {
        stream,
        clock: store.clock.clone(),
        limits,
        ask_at: now.after(limits.bookmark_every),
        give_up_at: None,
        inbox: Inbox {
            prefix: store.prefix.clone(),
            said: Revision(from.0.saturating_sub(1)),
            pieces: Vec::new(),
            ready: VecDeque::new(),
        },
    };
    Ok(Box::pin(stream::unfold(Some(watching), |watching| async {
        let mut watching = watching?;
        match watching.next().await {
            Ok(batch) => Some((Ok(batch), Some(watching))),
            Err(error) => Some((Err(error), None)),
        }
    })))
}

/// The oldest revision that etcd keeps, given one that it does not. The answer to a read does
/// not say; a watch does.
pub(super) async fn oldest_after(store: &EtcdStore, requested: Revision) -> Revision {
    let ask = async {
        let mut client = store.client.watch_client();
        let options = WatchOptions::new().with_start_revision(convert::signed(requested));
        let mut stream = client
            .watch(store.prefix.range(&KeyRange::key("-")).0, Some(options))
            .await?;
        while let Some(answer) = stream.message().await? {
            if answer.compact_revision() > 0 {
                return Ok(Some(convert::unsigned(answer.compact_revision())));
            }
        }
        Ok(None)
    };
    let oldest = within(&store.clock, TRY_LIMIT, ask).await.ok().flatten();
    oldest.unwrap_or(Revision(requested.0 + 1))
}

struct Watching {
    stream: EtcdStream,
    clock: Clock,
    limits: WatchLimits,
    /// When to ask for progress.
    ask_at: BootMillis,
    /// When to stop waiting for it.
    give_up_at: Option<BootMillis>,
    inbox: Inbox,
}

impl Watching {
    async fn next(&mut self) -> Result<WatchBatch, StoreError> {
        loop {
            if let Some(batch) = self.inbox.ready.pop_front() {
                return Ok(batch);
            }
            let wake_at = self.give_up_at.unwrap_or(self.ask_at);
            let message = tokio::select! {
                biased;
                message = self.stream.message() => Some(message),
                () = self.clock.sleep_until(wake_at) => None,
            };
            match message {
                Some(Ok(Some(response))) => {
                    self.ask_at = self.clock.boot().after(self.limits.bookmark_every);
                    self.give_up_at = None;
                    self.inbox.take(&response)?;
                }
                Some(Ok(None)) => {
                    return Err(StoreError::Unavailable("etcd ended the watch".to_owned()));
                }
                Some(Err(error)) => return Err(to_store_error(&error)),
                None if self.give_up_at.is_some() => {
                    return Err(StoreError::Unavailable("the watch fell silent".to_owned()));
                }
                None => {
                    self.give_up_at = Some(self.clock.boot().after(PROGRESS_LIMIT));
                    let asked = self.stream.request_progress().await;
                    asked.map_err(|error| to_store_error(&error))?;
                }
            }
        }
    }
}

/// Puts revisions together from responses.
struct Inbox {
    prefix: Prefix,
    /// Everything up to here has been put out.
    said: Revision,
    /// Events of a revision whose end has not come.
    pieces: Vec<Event>,
    ready: VecDeque<WatchBatch>,
}

impl Inbox {
    fn take(&mut self, response: &WatchResponse) -> Result<(), StoreError> {
        if response.compact_revision() > 0 {
            let requested = Revision(self.said.0 + 1);
            let oldest = convert::unsigned(response.compact_revision());
            return Err(StoreError::Compacted { requested, oldest });
        }
        if response.canceled() {
            let why = response.cancel_reason().to_owned();
            return Err(StoreError::Unavailable(format!(
                "etcd cancelled the watch: {why}"
            )));
        }
        let is_bookmark = response.events().is_empty() && !response.created();
        for event in response.events() {
            let event = self.event(event)?;
            if self
                .pieces
                .first()
                .is_some_and(|first| first.revision() != event.revision())
            {
                self.finish();
            }
            self.pieces.push(event);
        }
        // Only the last response of a cut one ends its last revision.
        if !response.0.fragment && !response.events().is_empty() {
            self.finish();
        }
        let header = convert::header_revision(response.header())?;
        if is_bookmark && self.pieces.is_empty() && header > self.said {
            self.said = header;
            self.ready.push_back(WatchBatch {
                revision: header,
                events: Vec::new(),
            });
        }
        Ok(())
    }

    fn finish(&mut self) {
        let Some(first) = self.pieces.first() else {
            return;
        };
        let revision = first.revision();
        let mut events = std::mem::take(&mut self.pieces);
        events.sort_by(|a, b| a.key().cmp(b.key()));
        self.said = revision;
        self.ready.push_back(WatchBatch { revision, events });
    }

    fn event(&self, event: &etcd_client::Event) -> Result<Event, StoreError> {
        let missing = || StoreError::Corrupt("etcd sent an event without a key".to_owned());
        let kv = event.kv().cloned().ok_or_else(missing)?;
        let previous = event.prev_kv().cloned();
        let previous = previous.map(|kv| self.prefix.key_value(kv)).transpose()?;
        let current = self.prefix.key_value(kv)?;
        Ok(match event.event_type() {
            EventType::Put => Event::Put { current, previous },
            EventType::Delete => {
                let (key, revision) = (current.key, current.mod_revision);
                Event::Delete {
                    key,
                    previous,
                    revision,
                }
            }
        })
    }
}
