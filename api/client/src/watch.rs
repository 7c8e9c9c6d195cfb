//! Watches that go on: listed once, resumed from the last revision, listed again when it is gone.
//!
//! Owns the promise that no change is missed and that an object which vanished unseen is told as
//! gone. Never caches objects: it remembers names and UIDs alone.

use std::collections::{BTreeMap, VecDeque};

use meridian_api::units::BootMillis;
use meridian_runtime::clock::Millis;
use serde_json::{Value, json};

use crate::client::Client;
use crate::errors::{self, ClientError, FailureKind};
use crate::objects::{ListOptions, text};
use crate::resource::{Resource, query};
use crate::transport::{Ask, Lines};

/// A watch that is silent longer than this is opened again: a hub sends a bookmark each minute.
const SILENCE: Millis = Millis::seconds(90);
/// First pause between attempts to open a watch again; it doubles each time.
const FIRST_PAUSE: Millis = Millis(100);
/// Longest pause, so that a watcher is back within seconds of the hub.
const LONGEST_PAUSE: Millis = Millis::seconds(5);
/// How long a hub may be away before the watch gives up: several times a restart of the process
/// or a change of leaders.
const PATIENCE: Millis = Millis::seconds(60);

/// What is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchTarget {
    /// The kind.
    pub resource: Resource,
    /// One namespace, or all.
    pub namespace: Option<String>,
    /// Which objects, and in which form.
    pub options: ListOptions,
}

/// One thing that a watcher tells. In the form of a table the value is a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The object is there and looks like this: found, made or changed.
    Set(Value),
    /// The object is no more. Only its metadata is sure to be there.
    Gone(Value),
    /// All that is there has been told. Comes after the first list and after each later one.
    Synced,
}

/// A watch that survives lost connections, hub restarts and forgotten revisions.
pub struct Watcher {
    client: Client,
    target: WatchTarget,
    /// Where to go on; `None` = list first.
    version: Option<String>,
    columns: Vec<Value>,
    /// (namespace, name) to UID of what was told as there.
    known: BTreeMap<(String, String), String>,
    pending: VecDeque<Change>,
    lines: Option<Lines>,
    pause: Millis,
    heard: BootMillis,
}

impl Client {
    /// Lists what is there and watches it from then on. The first answers are one
    /// [`Change::Set`] for each, then [`Change::Synced`].
    pub async fn watch(&self, target: WatchTarget) -> Result<Watcher, ClientError> {
        let mut watcher = Watcher {
            client: self.clone(),
            target,
            version: None,
            columns: Vec::new(),
            known: BTreeMap::new(),
            pending: VecDeque::new(),
            lines: None,
            pause: FIRST_PAUSE,
            heard: self.clock.boot(),
        };
        watcher.relist().await?;
        Ok(watcher)
    }
}

impl Watcher {
    /// Columns of the table, in the form of tables.
    #[must_use]
    pub fn columns(&self) -> &[Value] {
        &self.columns
    }

    /// The next change. Waits for ever when there is none; an error ends the watch.
    ///
    /// [`ClientError::Unreachable`] after a minute without any hub. Safe to drop and call again.
    pub async fn next(&mut self) -> Result<Change, ClientError> {
        loop {
            if let Some(change) = self.pending.pop_front() {
                return Ok(change);
            }
            match self.step().await {
                Ok(()) => {}
                Err(error) if passes(&error) => self.rest(error).await?,
                Err(error) => return Err(error),
            }
        }
    }

    /// One step nearer to the next change: list, open, or read a line.
    async fn step(&mut self) -> Result<(), ClientError> {
        let Some(version) = self.version.clone() else {
            return self.relist().await;
        };
        let Some(lines) = &mut self.lines else {
            self.lines = self.open(&version).await?;
            return Ok(());
        };
        let read = self.client.clock.timeout(SILENCE, lines.next()).await;
        match read {
            Ok(Ok(Some(line))) => {
                self.hears();
                self.take(&line)
            }
            Ok(Ok(None)) => self.lost("the stream ended"),
            Ok(Err(ClientError::Lost { cause, .. })) => self.lost(&cause),
            Ok(Err(error)) => Err(error),
            Err(_) => self.lost("no word, not even a bookmark"),
        }
    }

    fn lost(&mut self, cause: &str) -> Result<(), ClientError> {
        self.lines = None;
        Err(ClientError::Lost {
            server: self.client.address().to_owned(),
            cause: cause.to_owned(),
        })
    }

    fn hears(&mut self) {
        self.heard = self.client.clock.boot();
        self.pause = FIRST_PAUSE;
    }

    /// Pauses before the next attempt, or gives up with `error` when the hub was away too long.
    async fn rest(&mut self, error: ClientError) -> Result<(), ClientError> {
        let clock = &self.client.clock;
        if clock.boot().since(self.heard) > PATIENCE {
            return Err(error);
        }
        let jitter = Millis(self.client.random.below(self.pause.0 / 2 + 1));
        clock.sleep(self.pause.saturating_add(jitter)).await;
        self.pause = self.pause.saturating_add(self.pause).min(LONGEST_PAUSE);
        Ok(())
    }

    /// Opens the stream after `version`; `None` when that revision is gone.
    async fn open(&mut self, version: &str) -> Result<Option<Lines>, ClientError> {
        let options = &self.target.options;
        let query = query(&[
            ("watch", Some("1")),
            ("allowWatchBookmarks", Some("true")),
            ("resourceVersion", Some(version)),
            ("labelSelector", options.labels.as_deref()),
            ("fieldSelector", options.fields.as_deref()),
        ]);
        let namespace = self.target.namespace.as_deref();
        let mut ask = Ask::get(self.target.resource.path(namespace, None) + &query);
        ask.accept = options.form.accept();
        let (status, mut lines) = self.client.transport.stream(&ask).await?;
        if status.is_success() {
            return Ok(Some(lines));
        }
        let body = self.client.clock.timeout(SILENCE, lines.next()).await;
        let body = body.ok().transpose()?.flatten().unwrap_or_default();
        let error = errors::from_http(status, &body);
        if error.is(FailureKind::Expired) {
            self.version = None;
            return Ok(None);
        }
        Err(error)
    }

    /// Reads one event.
    fn take(&mut self, line: &[u8]) -> Result<(), ClientError> {
        let mut event: Value = serde_json::from_slice(line)
            .map_err(|error| ClientError::Protocol(format!("event is not JSON: {error}")))?;
        let object = event["object"].take();
        match text(&event["type"]) {
            "ERROR" => {
                let error = errors::from_status(500, &object);
                if !error.is(FailureKind::Expired) {
                    return Err(error);
                }
                (self.version, self.lines) = (None, None);
            }
            "BOOKMARK" => self.advance(metadata(&object)),
            "ADDED" | "MODIFIED" => {
                for item in self.items(object) {
                    self.advance(metadata(&item));
                    self.known.insert(key(&item), uid(&item));
                    self.pending.push_back(Change::Set(item));
                }
            }
            "DELETED" => {
                for item in self.items(object) {
                    self.advance(metadata(&item));
                    self.known.remove(&key(&item));
                    self.pending.push_back(Change::Gone(item));
                }
            }
            other => {
                return Err(ClientError::Protocol(format!(
                    "event of unknown type {other:?}"
                )));
            }
        }
        Ok(())
    }

    /// What an event is about: the object, or the rows of its table.
    fn items(&mut self, mut object: Value) -> Vec<Value> {
        if object["kind"] != "Table" {
            return vec![object];
        }
        if let Some(columns) = object["columnDefinitions"].as_array()
            && !columns.is_empty()
        {
            self.columns.clone_from(columns);
        }
        match object["rows"].take() {
            Value::Array(rows) => rows,
            _ => Vec::new(),
        }
    }

    fn advance(&mut self, metadata: &Value) {
        if let Some(version) = metadata["resourceVersion"].as_str() {
            self.version = Some(version.to_owned());
        }
    }

    /// Tells everything that is there, and as gone whatever was known and is not.
    async fn relist(&mut self) -> Result<(), ClientError> {
        let target = &self.target;
        let namespace = target.namespace.as_deref();
        let listing = self
            .client
            .list(&target.resource, namespace, &target.options)
            .await?;
        self.hears();
        self.lines = None;
        self.version = Some(listing.resource_version);
        if !listing.columns.is_empty() {
            self.columns = listing.columns;
        }
        let there: BTreeMap<_, _> = listing
            .items
            .iter()
            .map(|item| (key(item), uid(item)))
            .collect();
        for (key, uid) in &self.known {
            if there.get(key) != Some(uid) {
                let gone = tombstone(&key.0, &key.1, uid);
                self.pending.push_back(Change::Gone(gone));
            }
        }
        self.known = there;
        self.pending
            .extend(listing.items.into_iter().map(Change::Set));
        self.pending.push_back(Change::Synced);
        Ok(())
    }
}

/// True for what may be over by itself: the hub restarts, fails over or is short of time.
fn passes(error: &ClientError) -> bool {
    match error {
        ClientError::Unreachable { .. }
        | ClientError::Lost { .. }
        | ClientError::TimedOut { .. } => true,
        ClientError::Api(failure) => match failure.kind {
            FailureKind::Unavailable
            | FailureKind::Busy
            | FailureKind::TimedOut
            | FailureKind::Expired => true,
            FailureKind::Invalid
            | FailureKind::Denied
            | FailureKind::NotFound
            | FailureKind::AlreadyExists
            | FailureKind::Conflict
            | FailureKind::NotAllowed
            | FailureKind::Internal => false,
        },
        ClientError::Protocol(_) | ClientError::BadServer { .. } => false,
    }
}

/// Metadata of an object, of a row, or of a table in a bookmark.
fn metadata(item: &Value) -> &Value {
    if item["object"].is_object() {
        return &item["object"]["metadata"];
    }
    let row = &item["rows"][0];
    if row.is_object() {
        return &row["object"]["metadata"];
    }
    &item["metadata"]
}

fn key(item: &Value) -> (String, String) {
    let metadata = metadata(item);
    let field = |name: &str| text(&metadata[name]).to_owned();
    (field("namespace"), field("name"))
}

fn uid(item: &Value) -> String {
    text(&metadata(item)["uid"]).to_owned()
}

fn tombstone(namespace: &str, name: &str, uid: &str) -> Value {
    json!({"metadata": {"namespace": namespace, "name": name, "uid": uid}})
}
