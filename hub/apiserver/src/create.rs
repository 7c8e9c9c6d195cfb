//! Creates: one, or many in one durable write.
//!
//! Owns UIDs, generated names, creation times and idempotency records. Never rewrites an object
//! that exists (see `write`).

use futures::StreamExt as _;
use meridian_runtime::clock::UnixMillis;
use meridian_store::keys::{ObjectKey, Part};
use meridian_store::{Compare, Op, Operation as StoreCall, Revision, StoreError, Txn, TxnResponse};
use serde_json::{Value, json};

use crate::admission::{Change, DryRun, Operation, Request};
use crate::checks;
use crate::draft::{self, Draft};
use crate::kind::{FieldError, FieldReason, Kind, Scope};
use crate::metadata::{self, SERVER_OWNED};
use crate::object;
use crate::resources::{Idempotency, Resources, WriteOptions, Written};
use crate::status::ApiStatus;
use crate::write::{self, MAX_ATTEMPTS};

/// Stable code of a create under a key that was used for another.
const KEY_REUSED: &str = "E3004";
/// Letters of a generated suffix: no vowels, so no words, and nothing that looks like another.
const SUFFIX_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Length of a generated suffix: 27^5 = 14 million names per prefix.
const SUFFIX_LENGTH: usize = 5;

/// Creates of one call that are under way at once: four full transactions of them, which is what
/// the batcher keeps on its way.
const MAX_TOGETHER: usize = 128;

/// An object that has passed every check but admission.
struct Checked {
    object: Value,
    warnings: Vec<String>,
    /// Prefix of a name that is still to be generated.
    prefix: Option<String>,
}

/// A create that is ready to be committed.
struct Ready {
    key: ObjectKey,
    object: Value,
    warnings: Vec<String>,
    txn: Txn,
}

enum Step {
    Done(Written),
    Commit(Box<Ready>),
}

impl Resources {
    /// Makes an object. Durable when it returns.
    pub async fn create(
        &self,
        request: &Request,
        kind: &Kind,
        namespace: Option<&str>,
        object: Value,
        options: &WriteOptions,
    ) -> Result<Written, ApiStatus> {
        let checked = self.checked(kind, namespace, object, options)?;
        for attempt in 0..MAX_ATTEMPTS {
            let step = self.step(request, kind, &checked, options, attempt).await;
            let ready = match self.or_replayed(kind, options, step).await? {
                Step::Done(written) => return Ok(written),
                Step::Commit(ready) => ready,
            };
            let response = self.commit(kind, ready.txn.clone()).await?;
            if response.succeeded {
                return Ok(ready.written(kind, response.revision));
            }
        }
        Err(write::kept_changing(
            kind,
            metadata::text(&checked.object, "name"),
        ))
    }

    /// Makes many objects of a namespace in few durable writes. Each succeeds or fails alone; the
    /// answers are in the order of `items`.
    pub async fn create_many(
        &self,
        request: &Request,
        kind: &Kind,
        namespace: Option<&str>,
        items: Vec<(Value, WriteOptions)>,
    ) -> Vec<Result<Written, ApiStatus>> {
        let creates = items.into_iter().map(|(object, options)| async move {
            self.create(request, kind, namespace, object, &options)
                .await
        });
        // In the order of the items, and each alive until its answer is there: what waits for
        // the store together is written together.
        futures::stream::iter(creates)
            .buffered(MAX_TOGETHER)
            .collect()
            .await
    }

    /// Commits a create. Those of namespaced kinds share durable writes with others that wait;
    /// those of cluster-scoped ones all compare one head, so that company would not help them.
    async fn commit(&self, kind: &Kind, txn: Txn) -> Result<TxnResponse, StoreError> {
        match kind.scope {
            Scope::Namespaced => self.shared().batcher.txn(txn).await,
            Scope::Cluster => self.store().txn(StoreCall::WriteObject, txn).await,
        }
    }

    fn checked(
        &self,
        kind: &Kind,
        namespace: Option<&str>,
        mut object: Value,
        options: &WriteOptions,
    ) -> Result<Checked, ApiStatus> {
        let warnings = checks::check_fields(kind, &mut object, options)?;
        checks::check_identity(kind, namespace, None, &object)?;
        if !["", "0"].contains(&metadata::text(&object, "resourceVersion")) {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(ApiStatus::bad_request(message));
        }
        let Some(metadata) = metadata::of_mut(&mut object) else {
            return Err(ApiStatus::bad_request("metadata must be an object"));
        };
        for field in SERVER_OWNED {
            metadata.shift_remove(field);
        }
        match (kind.scope, namespace) {
            (Scope::Namespaced, Some(namespace)) => {
                metadata.insert("namespace".to_owned(), Value::from(namespace));
            }
            (Scope::Namespaced, None) => {}
            (Scope::Cluster, _) => {
                metadata.shift_remove("namespace");
            }
        }
        let created = object::timestamp(self.clock().wall());
        metadata.insert(
            "uid".to_owned(),
            Value::from(self.shared().random.uid().to_string()),
        );
        metadata.insert("creationTimestamp".to_owned(), Value::from(created));
        metadata.insert("generation".to_owned(), Value::from(1));
        let prefix = Some(metadata::text(&object, "generateName").to_owned())
            .filter(|prefix| !prefix.is_empty() && metadata::text(&object, "name").is_empty());
        if let Some(prefix) = &prefix {
            self.generate_name(&mut object, prefix);
        }
        let namespace = Some(metadata::text(&object, "namespace")).filter(|text| !text.is_empty());
        let key = kind.key(namespace, metadata::text(&object, "name"));
        kind.hooks.complete(&key, &mut object);
        let object = object::into_spec_half(kind, object);
        let found = checks::check_object(kind, &object);
        if !found.is_empty() {
            return Err(ApiStatus::invalid(
                kind,
                metadata::text(&object, "name"),
                found,
            ));
        }
        Ok(Checked {
            object,
            warnings,
            prefix,
        })
    }

    fn generate_name(&self, object: &mut Value, prefix: &str) {
        let mut name: String = prefix
            .chars()
            .take(metadata::MAX_LABEL - SUFFIX_LENGTH)
            .collect();
        for _ in 0..SUFFIX_LENGTH {
            let at = self.shared().random.below(SUFFIX_LETTERS.len() as u64);
            let at = usize::try_from(at).unwrap_or(0);
            name.push(char::from(SUFFIX_LETTERS[at]));
        }
        if let Some(metadata) = metadata::of_mut(object) {
            metadata.insert("name".to_owned(), Value::from(name));
        }
    }

    /// One attempt up to the commit.
    async fn step(
        &self,
        request: &Request,
        kind: &Kind,
        checked: &Checked,
        options: &WriteOptions,
        attempt: usize,
    ) -> Result<Step, ApiStatus> {
        // The transaction finds out whether a name is taken or an idempotency key used; they are
        // asked for only when it said no, or when there will be none.
        let doubtful = attempt > 0 || options.dry_run == DryRun::All;
        if let (true, Some(idempotency)) = (doubtful, &options.idempotency)
            && let Some(written) = self.replayed(kind, idempotency).await?
        {
            return Ok(Step::Done(written));
        }
        let mut object = checked.object.clone();
        let head = self.policy_head(kind).await?;
        let key = self.free_key(kind, checked, &mut object, doubtful).await?;
        let change = Change {
            actor: &request.actor,
            operation: Operation::Create,
            kind,
            key: &key,
            before: None,
            after: Some(&object),
            attempt,
            dry_run: options.dry_run,
        };
        let mut admitted = self.admit(&change).await?;
        let mut warnings = checked.warnings.clone();
        warnings.append(&mut admitted.warnings);
        if let Some(mutated) = admitted.object.take() {
            object = object::into_spec_half(kind, mutated);
            let found = checks::check_object(kind, &object);
            if !found.is_empty() {
                return Err(ApiStatus::invalid(kind, &key.name, found));
            }
        }
        let ops = vec![draft::put(key.part(Part::Spec), &object)?];
        let draft = Draft {
            kind,
            key: &key,
            halves: None,
            head,
            ops,
        };
        let mut txn = draft.txn(admitted, options)?;
        if options.dry_run == DryRun::All {
            kind.hooks.decorate(&key, &mut object);
            return Ok(Step::Done(Written {
                object,
                warnings,
                unchanged: false,
            }));
        }
        if let Some(idempotency) = &options.idempotency {
            let unused = Compare::ModRevision(idempotency.key.clone(), Revision::default());
            txn.compares.push(unused);
            txn.success
                .push(idempotency.record(&key, &object, self.clock().wall()));
        }
        Ok(Step::Commit(Box::new(Ready {
            key,
            object,
            warnings,
            txn,
        })))
    }

    /// A request whose idempotency key has been used is answered as the first time, also when it
    /// would be refused by now.
    async fn or_replayed(
        &self,
        kind: &Kind,
        options: &WriteOptions,
        step: Result<Step, ApiStatus>,
    ) -> Result<Step, ApiStatus> {
        let (Err(refused), Some(idempotency)) = (&step, &options.idempotency) else {
            return step;
        };
        match self.replayed(kind, idempotency).await? {
            Some(written) => Ok(Step::Done(written)),
            None => Err(refused.clone()),
        }
    }

    /// The key of the object; with another name when the generated one is taken.
    async fn free_key(
        &self,
        kind: &Kind,
        checked: &Checked,
        object: &mut Value,
        doubtful: bool,
    ) -> Result<ObjectKey, ApiStatus> {
        let namespace = Some(metadata::text(object, "namespace")).filter(|text| !text.is_empty());
        let mut key = kind.key(namespace, metadata::text(object, "name"));
        if doubtful && self.halves(&key).await?.is_some() {
            let Some(prefix) = &checked.prefix else {
                return Err(ApiStatus::already_exists(kind, &key.name));
            };
            self.generate_name(object, prefix);
            metadata::text(object, "name").clone_into(&mut key.name);
        }
        Ok(key)
    }

    /// The object that an idempotency key has already made.
    async fn replayed(
        &self,
        kind: &Kind,
        idempotency: &Idempotency,
    ) -> Result<Option<Written>, ApiStatus> {
        let Some(record) = self
            .store()
            .get(StoreCall::Submit, idempotency.key.clone())
            .await?
        else {
            return Ok(None);
        };
        let record: Value = serde_json::from_slice(&record.value).unwrap_or_default();
        let text = |field: &str| record.get(field).and_then(Value::as_str).unwrap_or("");
        let name = text("name");
        if text("fingerprint") != idempotency.fingerprint || text("plural") != kind.plural {
            let why = format!(
                "its idempotency key was used for another request, which made \"{name}\": use \
                 another key"
            );
            let mut status = ApiStatus::conflict(kind, name, &why);
            status.causes = vec![FieldError::new("", FieldReason::ErrorCode, KEY_REUSED)];
            return Err(status);
        }
        let namespace = Some(text("namespace")).filter(|namespace| !namespace.is_empty());
        let object = self.get(kind, namespace, name).await.ok();
        let Some(object) = object.filter(|object| metadata::text(object, "uid") == text("uid"))
        else {
            let why = "this request was done before, and what it made has been deleted since";
            return Err(ApiStatus::conflict(kind, name, why));
        };
        Ok(Some(Written {
            object,
            warnings: Vec::new(),
            unchanged: true,
        }))
    }
}

impl Idempotency {
    fn record(&self, key: &ObjectKey, object: &Value, now: UnixMillis) -> Op {
        let record = json!({
            "fingerprint": self.fingerprint,
            "plural": key.plural,
            "namespace": key.namespace.as_deref().unwrap_or(""),
            "name": key.name,
            "uid": metadata::text(object, "uid"),
            "at": now.0,
        });
        Op::Put {
            key: self.key.clone(),
            value: record.to_string().into(),
            lease: None,
        }
    }
}

impl Ready {
    fn written(mut self, kind: &Kind, revision: Revision) -> Written {
        object::set_revision(&mut self.object, revision);
        kind.hooks.decorate(&self.key, &mut self.object);
        Written {
            object: self.object,
            warnings: self.warnings,
            unchanged: false,
        }
    }
}
