//! From the store's events to object events: the halves of a revision joined.
//!
//! Owns the rule that the object of an event at revision r is the object that the store holds at
//! r (invariant S21), also when only one half changed: the other one comes from a small memory of
//! recent objects, which sees every event, or else from the store at that very revision. Rests on
//! one rule of writers: a status is written only in a transaction that compares its spec, and
//! both go together.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use meridian_store::keys::{ObjectKey, Part};
use meridian_store::{
    Event, Operation as StoreCall, Revision, SharedStore, StoreError, WatchBatch,
};
use serde_json::Value;

use crate::kind::Kind;
use crate::object;
use crate::render::Rendering;
use crate::selectors::Selectors;

/// Objects whose halves are remembered: those that are being decided on, whose status changes
/// again within seconds. Not a copy of all objects.
const MAX_RECENT: usize = 1_024;
/// Bytes of them, together.
const MAX_RECENT_BYTES: usize = 8 * 1024 * 1024;

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    Added,
    Modified,
    Deleted,
}

/// The spec half before an event.
#[derive(Debug)]
enum Before {
    /// As it is: the event is about the status, or the object was not there, or is no more.
    Same,
    /// Another one.
    Other(Bytes),
    /// Another one that has been compacted away.
    Unknown,
}

/// One change of one object.
#[derive(Debug)]
pub(crate) struct ObjectEvent {
    pub kind: Arc<Kind>,
    pub key: ObjectKey,
    pub revision: Revision,
    pub happened: Happened,
    /// As it is at `revision`, or was just before it was deleted. `None` when that has been
    /// compacted away.
    spec: Option<Bytes>,
    status: Option<Bytes>,
    previous: Before,
    selected: OnceLock<Value>,
    selected_before: OnceLock<Value>,
    renderings: [OnceLock<Bytes>; Rendering::COUNT],
}

impl ObjectEvent {
    /// The object, with the event's revision.
    pub(crate) fn object(&self) -> Value {
        let joined = self.spec.as_ref().map(|spec| {
            let mut object = object::join(spec, self.status.as_ref(), self.revision)?;
            self.kind.hooks.decorate(&self.key, &mut object);
            Ok::<_, crate::ApiStatus>(object)
        });
        match joined {
            Some(Ok(object)) => object,
            None | Some(Err(_)) => object::tombstone(&self.kind, &self.key, self.revision),
        }
    }

    /// The object in one form, made once however many watchers want it.
    pub(crate) fn rendered(&self, rendering: Rendering, make: impl FnOnce() -> Bytes) -> &Bytes {
        self.renderings[rendering.index()].get_or_init(make)
    }

    /// What this event is to a watcher with `selectors`: an object that comes to fit is added, one
    /// that no longer fits is deleted.
    pub(crate) fn seen_by(&self, selectors: &Selectors) -> Option<Happened> {
        if selectors.is_empty() {
            return Some(self.happened);
        }
        let now = selectors.matches(self.selected.get_or_init(|| parse(self.spec.as_ref())));
        let before = match &self.previous {
            Before::Same => now,
            Before::Other(previous) => {
                let before = self.selected_before.get_or_init(|| parse(Some(previous)));
                selectors.matches(before)
            }
            // Nobody is hurt by news of an object that they have not seen.
            Before::Unknown => true,
        };
        match self.happened {
            Happened::Added => now.then_some(Happened::Added),
            Happened::Deleted => (now || self.spec.is_none()).then_some(Happened::Deleted),
            Happened::Modified => match (before, now) {
                (true, true) => Some(Happened::Modified),
                (false, true) => Some(Happened::Added),
                (true, false) => Some(Happened::Deleted),
                (false, false) => None,
            },
        }
    }

    /// Bytes that are held for this event alone; renderings of them are about as large again.
    pub(crate) fn size(&self) -> usize {
        let previous = match &self.previous {
            Before::Other(previous) => previous.len(),
            Before::Same | Before::Unknown => 0,
        };
        let halves = [&self.spec, &self.status].into_iter().flatten();
        previous + halves.map(Bytes::len).sum::<usize>()
    }
}

fn parse(spec: Option<&Bytes>) -> Value {
    spec.and_then(|spec| serde_json::from_slice(spec).ok())
        .unwrap_or_default()
}

/// Joins the events of one kind.
pub(crate) struct Merger {
    kind: Arc<Kind>,
    store: SharedStore,
    recent: Recent,
}

/// What one revision did to the keys of one object.
#[derive(Default)]
struct Changed {
    spec: Option<Event>,
    status: Option<Event>,
}

impl Merger {
    pub(crate) fn new(kind: Arc<Kind>, store: SharedStore) -> Self {
        Self {
            kind,
            store,
            recent: Recent::default(),
        }
    }

    /// Forgets everything: the next events do not follow on the last.
    pub(crate) fn reset(&mut self) {
        self.recent = Recent::default();
    }

    /// The object events of one revision, in key order.
    pub(crate) async fn merge(
        &mut self,
        batch: WatchBatch,
    ) -> Result<Vec<Arc<ObjectEvent>>, StoreError> {
        let mut changed: BTreeMap<ObjectKey, Changed> = BTreeMap::new();
        for event in batch.events {
            let Some((key, part)) = ObjectKey::parse(event.key()) else {
                continue;
            };
            let entry = changed.entry(key).or_default();
            match part {
                Part::Spec => entry.spec = Some(event),
                Part::Status => entry.status = Some(event),
            }
        }
        let mut events = Vec::new();
        for (key, change) in changed {
            events.extend(self.join(key, change, batch.revision).await?.map(Arc::new));
        }
        Ok(events)
    }

    async fn join(
        &mut self,
        key: ObjectKey,
        changed: Changed,
        revision: Revision,
    ) -> Result<Option<ObjectEvent>, StoreError> {
        let joined = match changed.spec {
            Some(Event::Put { current, previous }) => {
                let made = current.create_revision == current.mod_revision;
                let status = match changed.status {
                    Some(event) => current_value(event),
                    None if made => None,
                    None => self
                        .halves(&key, revision)
                        .await?
                        .and_then(|halves| halves.1),
                };
                let (happened, before) = match previous {
                    None if made => (Happened::Added, Before::Same),
                    None => (Happened::Modified, Before::Unknown),
                    Some(previous) => (Happened::Modified, Before::Other(previous.value)),
                };
                (happened, Some(current.value), status, before)
            }
            Some(Event::Delete { previous, .. }) => {
                let status = changed.status.and_then(previous_value);
                (
                    Happened::Deleted,
                    previous.map(|kv| kv.value),
                    status,
                    Before::Same,
                )
            }
            None => {
                let Some((spec, _)) = self.halves(&key, revision).await? else {
                    return Ok(None);
                };
                let status = changed.status.and_then(current_value);
                (Happened::Modified, Some(spec), status, Before::Same)
            }
        };
        let (happened, spec, status, previous) = joined;
        match (happened, &spec) {
            (Happened::Added | Happened::Modified, Some(spec)) => {
                self.recent.put(key.clone(), spec.clone(), status.clone());
            }
            _ => self.recent.remove(&key),
        }
        Ok(Some(ObjectEvent {
            kind: Arc::clone(&self.kind),
            key,
            revision,
            happened,
            spec,
            status,
            previous,
            selected: OnceLock::new(),
            selected_before: OnceLock::new(),
            renderings: Default::default(),
        }))
    }

    /// Both halves as they are at `revision`; what this revision changed itself may be older.
    async fn halves(
        &mut self,
        key: &ObjectKey,
        revision: Revision,
    ) -> Result<Option<(Bytes, Option<Bytes>)>, StoreError> {
        if let Some(known) = self.recent.get(key) {
            return Ok(Some(known));
        }
        let range = object::key_range(key);
        let page = self
            .store
            .range(StoreCall::WatchKind, range, 2, Some(revision))
            .await?;
        Ok(object::pair(page.entries)
            .pop()
            .map(|(_, halves)| (halves.spec.value, halves.status.map(|status| status.value))))
    }
}

fn current_value(event: Event) -> Option<Bytes> {
    match event {
        Event::Put { current, .. } => Some(current.value),
        Event::Delete { .. } => None,
    }
}

fn previous_value(event: Event) -> Option<Bytes> {
    match event {
        Event::Put { previous, .. } | Event::Delete { previous, .. } => {
            previous.map(|previous| previous.value)
        }
    }
}

/// Halves of the objects that changed last; the least recent goes first.
#[derive(Default)]
struct Recent {
    entries: BTreeMap<ObjectKey, Remembered>,
    order: BTreeMap<u64, ObjectKey>,
    next: u64,
    bytes: usize,
}

struct Remembered {
    spec: Bytes,
    status: Option<Bytes>,
    stamp: u64,
}

impl Remembered {
    fn bytes(&self) -> usize {
        self.spec.len() + self.status.as_ref().map_or(0, Bytes::len)
    }
}

impl Recent {
    fn get(&self, key: &ObjectKey) -> Option<(Bytes, Option<Bytes>)> {
        self.entries
            .get(key)
            .map(|known| (known.spec.clone(), known.status.clone()))
    }

    fn put(&mut self, key: ObjectKey, spec: Bytes, status: Option<Bytes>) {
        self.remove(&key);
        let known = Remembered {
            spec,
            status,
            stamp: self.next,
        };
        self.bytes += known.bytes();
        self.order.insert(self.next, key.clone());
        self.entries.insert(key, known);
        self.next += 1;
        while self.entries.len() > MAX_RECENT || self.bytes > MAX_RECENT_BYTES {
            let Some((_, oldest)) = self.order.pop_first() else {
                break;
            };
            if let Some(known) = self.entries.remove(&oldest) {
                self.bytes -= known.bytes();
            }
        }
    }

    fn remove(&mut self, key: &ObjectKey) {
        if let Some(known) = self.entries.remove(key) {
            self.bytes -= known.bytes();
            self.order.remove(&known.stamp);
        }
    }
}

#[cfg(test)]
mod tests {
    use meridian_store::KeyValue;
    use serde_json::json;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        crate::kind::tests::widget().key(Some("n"), name)
    }

    #[test]
    fn the_memory_of_recent_objects_is_bounded_and_forgets_the_oldest() {
        let mut recent = Recent::default();
        for n in 0..2 * MAX_RECENT {
            recent.put(key(&n.to_string()), Bytes::from_static(b"x"), None);
        }
        assert_eq!(recent.entries.len(), MAX_RECENT);
        assert_eq!(recent.order.len(), MAX_RECENT);
        assert!(recent.get(&key("0")).is_none());
        assert!(
            recent
                .get(&key(&(2 * MAX_RECENT - 1).to_string()))
                .is_some()
        );
        recent.put(key("large"), vec![0; MAX_RECENT_BYTES].into(), None);
        assert_eq!((recent.entries.len(), recent.bytes), (1, MAX_RECENT_BYTES));
        recent.remove(&key("large"));
        assert_eq!(
            (recent.entries.len(), recent.order.len(), recent.bytes),
            (0, 0, 0)
        );
    }

    fn stored(name: &str, part: Part, value: &Value, made: u64, changed: u64) -> KeyValue {
        KeyValue {
            key: key(name).part(part),
            value: value.to_string().into(),
            create_revision: Revision(made),
            mod_revision: Revision(changed),
            version: 1,
            lease: None,
        }
    }

    fn labelled(app: &str) -> Value {
        json!({"metadata": {"name": "a", "labels": {"app": app}}})
    }

    async fn merged(events: Vec<Event>, revision: u64) -> Vec<Arc<ObjectEvent>> {
        let clock = meridian_runtime::Clock::real();
        let store = Arc::new(meridian_store::MemoryStore::new(clock));
        let mut merger = Merger::new(Arc::new(crate::kind::tests::widget()), store);
        merger
            .merge(WatchBatch {
                revision: Revision(revision),
                events,
            })
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn both_halves_of_one_revision_are_one_event() {
        let spec = stored("a", Part::Spec, &labelled("x"), 7, 7);
        let status = stored("a", Part::Status, &json!({"phase": "p"}), 7, 7);
        let put = |current| Event::Put {
            current,
            previous: None,
        };
        let events = merged(vec![put(spec), put(status)], 7).await;
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].happened, Happened::Added);
        assert_eq!(events[0].object()["status"]["phase"], "p");
        assert_eq!(events[0].object()["metadata"]["resourceVersion"], "7");
    }

    #[tokio::test]
    async fn what_has_been_compacted_away_is_never_taken_for_nothing() {
        let labels = crate::LabelSelector::parse("app=x").unwrap();
        let x = Selectors {
            labels,
            ..Selectors::default()
        };
        let status = stored("a", Part::Status, &json!({}), 4, 9);
        let status = Event::Put {
            current: status.clone(),
            previous: Some(status),
        };
        let spec = stored("a", Part::Spec, &labelled("y"), 4, 9);
        let changed = Event::Put {
            current: spec,
            previous: None,
        };
        let events = merged(vec![changed, status], 9).await;
        assert_eq!(events[0].happened, Happened::Modified);
        assert_eq!(events[0].seen_by(&x), Some(Happened::Deleted));
        let gone = Event::Delete {
            key: key("a").part(Part::Spec),
            previous: None,
            revision: Revision(9),
        };
        let events = merged(vec![gone], 9).await;
        assert_eq!(events[0].seen_by(&x), Some(Happened::Deleted));
        assert_eq!(events[0].object()["metadata"]["name"], "a");
    }
}
