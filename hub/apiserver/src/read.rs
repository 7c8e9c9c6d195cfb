//! Reads: one object, and lists in pages at one revision.
//!
//! Owns the meaning of `resourceVersion`, `limit` and `continue` on reads, and the joining of
//! halves across the store's pages. Reads come from the store, never from a cache, so that each
//! is as new as the call.

use std::collections::VecDeque;
use std::sync::Arc;

use meridian_store::keys::{self, ObjectKey, Part};
use meridian_store::{KeyRange, Operation as StoreCall, Revision, SharedStore};
use serde_json::{Value, json};

use crate::continuation::Continuation;
use crate::kind::Kind;
use crate::metadata;
use crate::object::{self, Halves};
use crate::resources::Resources;
use crate::selectors::{FieldSelector, LabelSelector, Selectors};
use crate::status::ApiStatus;

/// Most objects in one answer, asked for or not; the rest is behind a continue token. Ten times
/// the page of any client that pages.
pub(crate) const MAX_LIST_OBJECTS: usize = 10_000;
/// Stored bytes after which a page ends: what one answer may hold in memory, a few times over.
const MAX_LIST_BYTES: usize = 32 * 1024 * 1024;
/// Keys per read of the store: small pages are slow on etcd, which counts what remains each time.
const SCAN_KEYS: usize = 2_000;

/// How a list's `resourceVersion` is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VersionMatch {
    /// At least as new.
    #[default]
    NotOlderThan,
    /// Exactly that one.
    Exact,
}

/// What to list.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    /// In one namespace, or in all.
    pub namespace: Option<String>,
    /// Most objects of the answer.
    pub limit: Option<usize>,
    /// Token of the page before.
    pub continue_token: Option<String>,
    /// At which revision; `None` and zero mean now.
    pub resource_version: Option<Revision>,
    /// How that is meant.
    pub version_match: VersionMatch,
    /// Labels that must fit.
    pub labels: LabelSelector,
    /// Fields that must fit.
    pub fields: FieldSelector,
}

/// One page of objects.
#[derive(Clone, Debug, PartialEq)]
pub struct List {
    /// In order of namespace and name.
    pub items: Vec<Value>,
    /// The revision of all of them: watch from here.
    pub revision: Revision,
    /// Token of the next page.
    pub next: Option<String>,
}

impl List {
    /// The list object of `kind`.
    #[must_use]
    pub fn into_json(self, kind: &Kind) -> Value {
        let mut metadata = json!({"resourceVersion": self.revision.to_string()});
        if let Some(next) = self.next {
            metadata["continue"] = Value::from(next);
        }
        json!({
            "apiVersion": kind.api_version(),
            "kind": format!("{}List", kind.kind),
            "metadata": metadata,
            "items": self.items,
        })
    }
}

impl Resources {
    /// The object as it is now.
    pub async fn get(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Value, ApiStatus> {
        let key = kind.key(namespace, name);
        let halves = self
            .halves(&key)
            .await?
            .ok_or_else(|| ApiStatus::not_found(kind, name))?;
        let mut object = halves.object()?;
        kind.hooks.decorate(&key, &mut object);
        Ok(object)
    }

    /// Objects of a kind.
    pub async fn list(&self, kind: &Kind, options: &ListOptions) -> Result<List, ApiStatus> {
        // A namespace is part of a key's prefix: nothing else may get in there.
        let namespace = options.namespace.as_deref();
        if namespace.is_some_and(|namespace| !metadata::is_label(namespace)) {
            return Err(ApiStatus::bad_request("this is no name of a namespace"));
        }
        let selectors = Selectors {
            labels: options.labels.clone(),
            fields: options.fields.clone(),
        };
        let wanted = options.resource_version.filter(|revision| revision.0 > 0);
        let mut range = range_of(kind, options.namespace.as_deref(), &selectors);
        let mut at = wanted.filter(|_| options.version_match == VersionMatch::Exact);
        if let Some(token) = &options.continue_token {
            let place = Continuation::parse(token)?;
            if place.after < range.start || place.after >= range.end {
                let message = "the continue token belongs to another list";
                return Err(ApiStatus::bad_request(message));
            }
            range = range.after(&place.after);
            at = Some(place.revision);
        }
        let limit = options
            .limit
            .filter(|limit| *limit > 0)
            .unwrap_or(MAX_LIST_OBJECTS);
        let mut page = Filling {
            limit: limit.min(MAX_LIST_OBJECTS),
            bytes: 0,
            items: Vec::new(),
            last: None,
        };
        let mut scan = Scan::new(self.store().clone(), range, at, page.limit);
        let more = page.fill(kind, &selectors, &mut scan).await?;
        let revision = scan.revision().unwrap_or_default();
        if let Some(wanted) = wanted.filter(|wanted| *wanted > revision) {
            return Err(ApiStatus::too_large_version(wanted.0, revision.0));
        }
        let next = page.last.filter(|_| more).map(|last| {
            let after = last.part(Part::Status);
            Continuation { revision, after }.token()
        });
        Ok(List {
            items: page.items,
            revision,
            next,
        })
    }

    /// Both halves of an object, read together.
    pub(crate) async fn halves(&self, key: &ObjectKey) -> Result<Option<Halves>, ApiStatus> {
        let range = object::key_range(key);
        let page = self
            .store()
            .range(StoreCall::GetObject, range, 2, None)
            .await?;
        Ok(object::pair(page.entries).pop().map(|(_, halves)| halves))
    }
}

/// The keys among which the selected objects are.
pub(crate) fn range_of(kind: &Kind, namespace: Option<&str>, selectors: &Selectors) -> KeyRange {
    let one = selectors
        .fields
        .name()
        .filter(|name| metadata::is_subdomain(name));
    let placed = namespace.is_some() || kind.scope == crate::kind::Scope::Cluster;
    match one {
        Some(name) if placed => object::key_range(&kind.key(namespace, name)),
        _ => keys::objects(&kind.plural, namespace),
    }
}

/// A page being filled.
struct Filling {
    limit: usize,
    bytes: usize,
    items: Vec<Value>,
    last: Option<ObjectKey>,
}

impl Filling {
    /// True when the range holds more after the last object that was looked at.
    async fn fill(
        &mut self,
        kind: &Kind,
        selectors: &Selectors,
        scan: &mut Scan,
    ) -> Result<bool, ApiStatus> {
        while let Some((key, halves)) = scan.next().await? {
            let mut object = halves.object()?;
            if !selectors.matches(&object) {
                self.last = Some(key);
                continue;
            }
            self.bytes += halves.spec.value.len();
            self.bytes += halves
                .status
                .as_ref()
                .map_or(0, |status| status.value.len());
            kind.hooks.decorate(&key, &mut object);
            self.items.push(object);
            self.last = Some(key);
            if self.items.len() >= self.limit || self.bytes >= MAX_LIST_BYTES {
                return scan.has_more().await;
            }
        }
        Ok(false)
    }
}

/// Objects of a range, one after the other, all at the revision of the first read.
pub(crate) struct Scan {
    store: SharedStore,
    rest: Option<KeyRange>,
    at: Option<Revision>,
    revision: Option<Revision>,
    keys: usize,
    ready: VecDeque<(ObjectKey, Halves)>,
}

impl Scan {
    /// Over `range` at revision `at`, or now. `expected` is how many objects the caller is likely
    /// to want.
    pub(crate) fn new(
        store: SharedStore,
        range: KeyRange,
        at: Option<Revision>,
        expected: usize,
    ) -> Self {
        // Two keys per object, and one object more to know whether there is one.
        let keys = expected
            .saturating_add(1)
            .saturating_mul(2)
            .clamp(4, SCAN_KEYS);
        Self {
            store,
            rest: Some(range),
            at,
            revision: None,
            keys,
            ready: VecDeque::new(),
        }
    }

    /// The revision that is read; known after the first read.
    pub(crate) fn revision(&self) -> Option<Revision> {
        self.revision
    }

    /// The next object.
    pub(crate) async fn next(&mut self) -> Result<Option<(ObjectKey, Halves)>, ApiStatus> {
        self.read_ahead().await?;
        Ok(self.ready.pop_front())
    }

    /// Objects that are already in memory, at least one unless the scan is over.
    pub(crate) async fn batch(&mut self) -> Result<Vec<(ObjectKey, Halves)>, ApiStatus> {
        self.read_ahead().await?;
        Ok(self.ready.drain(..).collect())
    }

    async fn has_more(&mut self) -> Result<bool, ApiStatus> {
        self.read_ahead().await?;
        Ok(!self.ready.is_empty())
    }

    async fn read_ahead(&mut self) -> Result<(), ApiStatus> {
        while self.ready.is_empty() {
            let Some(range) = self.rest.take() else {
                return Ok(());
            };
            let read = self.store.range(
                StoreCall::ListObjects,
                range.clone(),
                self.keys,
                self.revision.or(self.at),
            );
            let mut page = read.await?;
            self.revision.get_or_insert(page.revision);
            if page.more {
                let last_is_spec = page.entries.last().and_then(|entry| {
                    ObjectKey::parse(&entry.key).map(|(_, part)| part == Part::Spec)
                });
                // Its status may be on the next page: it is read again, with it.
                let put_back = page.entries.pop_if(|_| last_is_spec == Some(true));
                let next = match (put_back, page.entries.last()) {
                    (Some(entry), _) => KeyRange {
                        start: entry.key,
                        end: range.end,
                    },
                    (None, Some(last)) => range.after(&last.key),
                    (None, None) => range,
                };
                self.rest = Some(next);
            }
            self.ready = object::pair(page.entries).into();
        }
        Ok(())
    }
}

/// An object as the watch and the list show it.
pub(crate) fn shown(
    kind: &Arc<Kind>,
    key: &ObjectKey,
    halves: &Halves,
) -> Result<Value, ApiStatus> {
    let mut object = halves.object()?;
    kind.hooks.decorate(key, &mut object);
    Ok(object)
}
