//! The one way in: every read and write of user objects, from HTTP and from gRPC alike.
//!
//! Owns the public operations and their options. The work is done in `read`, `write` and
//! `cache`.

use std::sync::Arc;

use bytes::Bytes;
use indexmap::IndexMap;
use meridian_runtime::{Clock, Random, Tasks};
use meridian_store::{Batcher, Compare, Op, Operation as StoreCall, SharedStore};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::admission::{Admission, DryRun};
use crate::cache::{self, KindCache};
use crate::kind::{Kind, Registry};
use crate::watch::{MAX_CATCH_UPS, MAX_WATCHES};

/// What a server is made of.
pub struct ResourcesOptions {
    /// Where objects are.
    pub store: SharedStore,
    /// The kinds.
    pub registry: Registry,
    /// Time.
    pub clock: Clock,
    /// UIDs and generated names.
    pub random: Random,
    /// Who says yes or no.
    pub admission: Arc<dyn Admission>,
    /// What happened lately.
    pub events: Arc<dyn EventSource>,
    /// Where the watch caches run.
    pub tasks: Tasks,
}

/// What happened to objects lately, for `kubectl describe` and `kubectl get events`.
pub trait EventSource: Send + Sync + 'static {
    /// core/v1 `Event` objects of one namespace (of all when `None`), oldest first. An event
    /// about a cluster-scoped object is in `default`, as everywhere.
    fn events(&self, namespace: Option<&str>) -> Vec<Value>;
}

/// Nothing ever happens.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoEvents;

impl EventSource for NoEvents {
    fn events(&self, _namespace: Option<&str>) -> Vec<Value> {
        Vec::new()
    }
}

/// A handle to everything. Cheap to clone.
#[derive(Clone)]
pub struct Resources(Arc<Shared>);

pub(crate) struct Shared {
    pub store: SharedStore,
    pub registry: Registry,
    pub clock: Clock,
    pub random: Random,
    pub admission: Arc<dyn Admission>,
    pub events: Arc<dyn EventSource>,
    pub tasks: Tasks,
    pub batcher: Batcher,
    pub caches: IndexMap<String, Arc<KindCache>>,
    pub watches: Arc<Semaphore>,
    pub catch_ups: Arc<Semaphore>,
}

impl Resources {
    /// Starts one watch cache per kind in `options.tasks`.
    #[must_use]
    pub fn new(options: ResourcesOptions) -> Self {
        let ResourcesOptions {
            store,
            registry,
            clock,
            random,
            admission,
            events,
            tasks,
        } = options;
        let caches: IndexMap<String, Arc<KindCache>> = registry
            .kinds()
            .map(|kind| {
                (
                    kind.plural.clone(),
                    Arc::new(KindCache::new(Arc::clone(kind))),
                )
            })
            .collect();
        for (plural, cache) in &caches {
            let following = cache::follow(
                Arc::clone(cache),
                Arc::clone(&store),
                clock.clone(),
                tasks.cancelled(),
            );
            tasks.spawn(format!("watch-cache-{plural}"), following);
        }
        let batcher = Batcher::start(Arc::clone(&store), StoreCall::Submit, &tasks);
        let shared = Shared {
            store,
            registry,
            clock,
            random,
            admission,
            events,
            tasks,
            batcher,
            caches,
            watches: Arc::new(Semaphore::new(MAX_WATCHES)),
            catch_ups: Arc::new(Semaphore::new(MAX_CATCH_UPS)),
        };
        Self(Arc::new(shared))
    }

    /// The kinds.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.0.registry
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.0
    }

    pub(crate) fn store(&self) -> &SharedStore {
        &self.0.store
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    pub(crate) fn cache(&self, kind: &Kind) -> Option<&Arc<KindCache>> {
        self.0.caches.get(&kind.plural)
    }
}

/// What becomes of unknown and duplicate fields. They are never stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// The write is refused.
    Strict,
    /// The write is done, with a warning for each.
    #[default]
    Warn,
    /// Nothing is said.
    Ignore,
}

/// A key under which a create is done once, however often it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Idempotency {
    /// Where the record lives (see `meridian_store::keys::idempotency`).
    pub key: Bytes,
    /// Hash of the request's canonical form: another one under the same key is an error.
    pub fingerprint: String,
}

/// How to write.
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// Whether it is for real.
    pub dry_run: DryRun,
    /// What becomes of unknown fields.
    pub field_validation: FieldValidation,
    /// Who is said to own the fields; kept for server-side apply, which reads it.
    pub field_manager: String,
    /// For creates.
    pub idempotency: Option<Idempotency>,
    /// Fields that were found twice when the body was read.
    pub duplicates: Vec<String>,
    /// Compared in the same transaction.
    pub compares: Vec<Compare>,
    /// Done in the same transaction.
    pub puts: Vec<Op>,
}

/// An object that was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    /// As it is stored now (as it would be, in a dry run).
    pub object: Value,
    /// For the person.
    pub warnings: Vec<String>,
    /// True when nothing was written: it was so already, or the idempotency key had been used
    /// for this very request.
    pub unchanged: bool,
}

/// What must hold for a delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Preconditions {
    /// The object's UID.
    pub uid: Option<String>,
    /// Its resourceVersion.
    pub resource_version: Option<String>,
}

/// What becomes of dependants. Owner references are kept but nothing is collected by them here,
/// so that all three do the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagation {
    /// They go later.
    #[default]
    Background,
    /// They go first.
    Foreground,
    /// They stay.
    Orphan,
}

/// How to delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// What must hold.
    pub preconditions: Preconditions,
    /// Whether it is for real.
    pub dry_run: DryRun,
    /// What becomes of dependants.
    pub propagation: Propagation,
    /// Compared in the same transaction.
    pub compares: Vec<Compare>,
}

/// What a delete came to.
#[derive(Clone, Debug, PartialEq)]
pub enum Deleted {
    /// It is gone; as it was.
    Gone(Value),
    /// It waits for its finalizers; as it is.
    Marked(Value),
}

impl Deleted {
    /// The object, either way.
    #[must_use]
    pub fn object(&self) -> &Value {
        match self {
            Self::Gone(object) | Self::Marked(object) => object,
        }
    }
}
