//! The write path: check, admit, and commit in one transaction that compares all that was read.
//!
//! Owns create, update, status update, patch and delete, their retries, and the policy head that
//! every write of a cluster-scoped kind bumps. A write that would change nothing writes nothing.
//! Never decides whether a change is wise (see `admission`).

use meridian_store::keys::{self, ObjectKey, Part};
use meridian_store::{Op, Operation as StoreCall, Revision};
use serde_json::Value;

use crate::admission::{Admitted, Change, DryRun, Operation, Request};
use crate::checks::{
    added_finalizers, check_delete_preconditions, check_fields, check_identity, check_object,
    check_preconditions, check_status,
};
use crate::draft::{Draft, put};
use crate::kind::{Kind, Scope};
use crate::metadata::{self, SERVER_OWNED};
use crate::object::{self, Halves};
use crate::patch::{self, PatchType};
use crate::read::{List, ListOptions};
use crate::resources::{DeleteOptions, Deleted, Resources, WriteOptions, Written};
use crate::status::{ApiStatus, StatusReason};

/// How often a write is tried again when something it read has changed meanwhile. Each loss
/// means that another write won, so that eight in a row need eight rivals within one object.
pub(crate) const MAX_ATTEMPTS: usize = 8;

/// Which half a write is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Half {
    Spec,
    Status,
}

impl Resources {
    /// Replaces metadata and spec; the status stays. With a resourceVersion in `object` it must
    /// be the present one.
    pub async fn update(
        &self,
        request: &Request,
        kind: &Kind,
        namespace: Option<&str>,
        name: &str,
        object: &Value,
        options: &WriteOptions,
    ) -> Result<Written, ApiStatus> {
        let replaced = |_: &Value| Ok(object.clone());
        self.change(request, kind, (namespace, name), &replaced, options)
            .await
    }

    /// Replaces the status; everything else stays.
    pub async fn update_status(
        &self,
        request: &Request,
        kind: &Kind,
        namespace: Option<&str>,
        name: &str,
        object: &Value,
        options: &WriteOptions,
    ) -> Result<Written, ApiStatus> {
        let target = Target {
            kind,
            key: kind.key(namespace, name),
            half: Half::Status,
        };
        self.rewrite(request, &target, options, &|_| Ok(object.clone()))
            .await
    }

    /// Changes the object (or, with `status`, its status) by a patch of what is stored.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is one part of the request's line"
    )]
    pub async fn patch(
        &self,
        request: &Request,
        kind: &Kind,
        namespace: Option<&str>,
        name: &str,
        subresource: Option<&str>,
        patch_type: PatchType,
        patch: &Value,
        options: &WriteOptions,
    ) -> Result<Written, ApiStatus> {
        let half = if subresource == Some("status") {
            Half::Status
        } else {
            Half::Spec
        };
        let target = Target {
            kind,
            key: kind.key(namespace, name),
            half,
        };
        let patched = |before: &Value| patch::apply(patch_type, before, patch);
        self.rewrite(request, &target, options, &patched).await
    }

    /// Changes the object from what is stored to what `incoming` makes of it.
    pub(crate) async fn change(
        &self,
        request: &Request,
        kind: &Kind,
        (namespace, name): (Option<&str>, &str),
        incoming: &(dyn Fn(&Value) -> Result<Value, ApiStatus> + Sync),
        options: &WriteOptions,
    ) -> Result<Written, ApiStatus> {
        let target = Target {
            kind,
            key: kind.key(namespace, name),
            half: Half::Spec,
        };
        self.rewrite(request, &target, options, incoming).await
    }

    async fn rewrite(
        &self,
        request: &Request,
        target: &Target<'_>,
        options: &WriteOptions,
        incoming: &(dyn Fn(&Value) -> Result<Value, ApiStatus> + Sync),
    ) -> Result<Written, ApiStatus> {
        for attempt in 0..MAX_ATTEMPTS {
            let tried = self.try_rewrite(request, target, options, incoming, attempt);
            if let Some(written) = tried.await? {
                return Ok(written);
            }
        }
        Err(kept_changing(target.kind, &target.key.name))
    }

    /// One attempt; `None` when something that was read has changed.
    async fn try_rewrite(
        &self,
        request: &Request,
        target: &Target<'_>,
        options: &WriteOptions,
        incoming: &(dyn Fn(&Value) -> Result<Value, ApiStatus> + Sync),
        attempt: usize,
    ) -> Result<Option<Written>, ApiStatus> {
        let Target { kind, key, half } = target;
        let head = self.policy_head(kind).await?;
        let Some(halves) = self.halves(key).await? else {
            return Err(ApiStatus::not_found(kind, &key.name));
        };
        let before = halves.object()?;
        let mut incoming = incoming(&before)?;
        let mut warnings = check_fields(kind, &mut incoming, options)?;
        check_identity(kind, key.namespace.as_deref(), Some(&key.name), &incoming)?;
        check_preconditions(kind, &key.name, &before, &incoming)?;
        let mut after = target.merged(&before, incoming);
        target.check(&before, &after)?;
        if target.is_same(&before, &after) {
            let mut object = before;
            kind.hooks.decorate(key, &mut object);
            return Ok(Some(Written {
                object,
                warnings,
                unchanged: true,
            }));
        }
        let operation = match half {
            Half::Spec => Operation::Update,
            Half::Status => Operation::UpdateStatus,
        };
        let change = Change {
            actor: &request.actor,
            operation,
            kind,
            key,
            before: Some(&before),
            after: Some(&after),
            attempt,
            dry_run: options.dry_run,
        };
        let mut admitted = self.admit(&change).await?;
        warnings.append(&mut admitted.warnings);
        if let Some(mutated) = admitted.object.take() {
            after = target.merged(&before, mutated);
            target.check(&before, &after)?;
        }
        let read = Read {
            head,
            halves: &halves,
        };
        let Some(revision) = self
            .commit_rewrite(target, &after, read, admitted, options)
            .await?
        else {
            return Ok(None);
        };
        object::set_revision(&mut after, revision);
        kind.hooks.decorate(key, &mut after);
        Ok(Some(Written {
            object: after,
            warnings,
            unchanged: false,
        }))
    }

    /// The revision of what was written; in a dry run that of what there is.
    async fn commit_rewrite(
        &self,
        target: &Target<'_>,
        after: &Value,
        read: Read<'_>,
        admitted: Admitted,
        options: &WriteOptions,
    ) -> Result<Option<Revision>, ApiStatus> {
        let draft = Draft {
            kind: target.kind,
            key: &target.key,
            halves: Some(read.halves),
            head: read.head,
            ops: target.ops(after)?,
        };
        let txn = draft.txn(admitted, options)?;
        if options.dry_run == DryRun::All {
            return Ok(Some(read.halves.revision()));
        }
        let response = self.store().txn(StoreCall::WriteObject, txn).await?;
        Ok(response.succeeded.then_some(response.revision))
    }

    /// Removes an object, or marks it when it has finalizers.
    pub async fn delete(
        &self,
        request: &Request,
        kind: &Kind,
        namespace: Option<&str>,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<Deleted, ApiStatus> {
        let key = kind.key(namespace, name);
        for attempt in 0..MAX_ATTEMPTS {
            let tried = self.try_delete(request, kind, &key, options, attempt);
            if let Some(deleted) = tried.await? {
                return Ok(deleted);
            }
        }
        Err(kept_changing(kind, name))
    }

    async fn try_delete(
        &self,
        request: &Request,
        kind: &Kind,
        key: &ObjectKey,
        options: &DeleteOptions,
        attempt: usize,
    ) -> Result<Option<Deleted>, ApiStatus> {
        let head = self.policy_head(kind).await?;
        let Some(halves) = self.halves(key).await? else {
            return Err(ApiStatus::not_found(kind, &key.name));
        };
        let before = halves.object()?;
        check_delete_preconditions(kind, &key.name, &before, options)?;
        let waits = !metadata::finalizers(&before).is_empty();
        if waits && metadata::is_deleting(&before) {
            return Ok(Some(Deleted::Marked(before)));
        }
        let change = Change {
            actor: &request.actor,
            operation: Operation::Delete,
            kind,
            key,
            before: Some(&before),
            after: None,
            attempt,
            dry_run: options.dry_run,
        };
        let admitted = self.admit(&change).await?;
        let mut after = before;
        let ops = if waits {
            self.mark_deleted(&mut after);
            vec![put(key.part(Part::Spec), &object::spec_half(kind, &after))?]
        } else {
            delete_both(key)
        };
        let draft = Draft {
            kind,
            key,
            halves: Some(&halves),
            head,
            ops,
        };
        let with = WriteOptions {
            compares: options.compares.clone(),
            ..WriteOptions::default()
        };
        let txn = draft.txn(admitted, &with)?;
        if options.dry_run == DryRun::No {
            let response = self.store().txn(StoreCall::WriteObject, txn).await?;
            if !response.succeeded {
                return Ok(None);
            }
            object::set_revision(&mut after, response.revision);
        }
        Ok(Some(if waits {
            Deleted::Marked(after)
        } else {
            Deleted::Gone(after)
        }))
    }

    /// Deletes every object that `list` selects, one after the other, and returns them. One that
    /// is gone by then is passed over.
    pub async fn delete_collection(
        &self,
        request: &Request,
        kind: &Kind,
        list: ListOptions,
        options: &DeleteOptions,
    ) -> Result<List, ApiStatus> {
        let found = self.list(kind, &list).await?;
        let mut gone = List {
            items: Vec::new(),
            ..found
        };
        for object in found.items {
            let namespace = Some(metadata::text(&object, "namespace"));
            let namespace = namespace.filter(|namespace| !namespace.is_empty());
            let name = metadata::text(&object, "name");
            match self.delete(request, kind, namespace, name, options).await {
                Ok(deleted) => gone.items.push(deleted.object().clone()),
                Err(status) if status.reason == StatusReason::NotFound => {}
                Err(status) => return Err(status),
            }
        }
        Ok(gone)
    }

    fn mark_deleted(&self, object: &mut Value) {
        let now = object::timestamp(self.clock().wall());
        let generation = generation(object) + 1;
        if let Some(metadata) = metadata::of_mut(object) {
            metadata.insert("deletionTimestamp".to_owned(), Value::from(now));
            metadata.insert("deletionGracePeriodSeconds".to_owned(), Value::from(0));
            metadata.insert("generation".to_owned(), Value::from(generation));
        }
    }

    /// Revision of the policy head, for the kinds that bump it. Read before anything that
    /// admission reads, so that whatever it misses changes the head.
    pub(crate) async fn policy_head(&self, kind: &Kind) -> Result<Option<Revision>, ApiStatus> {
        match kind.scope {
            Scope::Namespaced => Ok(None),
            Scope::Cluster => {
                let head = self
                    .store()
                    .get(StoreCall::WriteObject, keys::policy_head())
                    .await?;
                Ok(Some(
                    head.map_or(Revision::default(), |head| head.mod_revision),
                ))
            }
        }
    }

    pub(crate) async fn admit(&self, change: &Change<'_>) -> Result<Admitted, ApiStatus> {
        let admitted = self.shared().admission.admit(change).await;
        admitted.map_err(|denial| denial.into_status(change.kind, &change.key.name))
    }
}

/// What a rewrite rests on.
#[derive(Clone, Copy)]
struct Read<'a> {
    head: Option<Revision>,
    halves: &'a Halves,
}

/// The object and half that a rewrite is about.
struct Target<'a> {
    kind: &'a Kind,
    key: ObjectKey,
    half: Half,
}

impl Target<'_> {
    /// What would be stored: the incoming half, the other one as it is, and the server's own
    /// metadata.
    fn merged(&self, before: &Value, incoming: Value) -> Value {
        let mut after = match self.half {
            Half::Status => {
                let mut after = before.clone();
                replace_status(&mut after, incoming.get("status"));
                return after;
            }
            Half::Spec => incoming,
        };
        if self.kind.has_status {
            replace_status(&mut after, before.get("status"));
        }
        keep_server_owned(before, &mut after);
        self.kind.hooks.complete(&self.key, &mut after);
        if let Some(fields) = after.as_object_mut() {
            fields.insert(
                "apiVersion".to_owned(),
                Value::from(self.kind.api_version()),
            );
            fields.insert("kind".to_owned(), Value::from(self.kind.kind.as_str()));
        }
        if let Some(metadata) = metadata::of_mut(&mut after) {
            metadata.insert("name".to_owned(), Value::from(self.key.name.as_str()));
            if let Some(namespace) = &self.key.namespace {
                metadata.insert("namespace".to_owned(), Value::from(namespace.as_str()));
            }
        }
        if !object::same_spec(self.kind, before, &after) {
            let next = generation(before) + 1;
            if let Some(metadata) = metadata::of_mut(&mut after) {
                metadata.insert("generation".to_owned(), Value::from(next));
            }
        }
        // One order of fields for whoever wrote it last.
        let status = after
            .get("status")
            .cloned()
            .filter(|_| self.kind.has_status);
        let revision = metadata::text(before, "resourceVersion").to_owned();
        let mut after = object::spec_half(self.kind, &after);
        replace_status(&mut after, status.as_ref());
        if let Some(metadata) = metadata::of_mut(&mut after) {
            metadata.insert("resourceVersion".to_owned(), Value::from(revision));
        }
        after
    }

    fn check(&self, before: &Value, after: &Value) -> Result<(), ApiStatus> {
        let found = match self.half {
            Half::Status => check_status(self.kind, after),
            Half::Spec => {
                let mut found = check_object(self.kind, after);
                if found.is_empty() {
                    found = self.kind.hooks.validate_update(before, after);
                }
                found.extend(added_finalizers(before, after));
                found
            }
        };
        if found.is_empty() {
            return Ok(());
        }
        Err(ApiStatus::invalid(self.kind, &self.key.name, found))
    }

    fn is_same(&self, before: &Value, after: &Value) -> bool {
        match self.half {
            Half::Status => before.get("status") == after.get("status"),
            Half::Spec => {
                object::spec_half(self.kind, before) == object::spec_half(self.kind, after)
            }
        }
    }

    fn ops(&self, after: &Value) -> Result<Vec<Op>, ApiStatus> {
        match self.half {
            Half::Status => {
                let key = self.key.part(Part::Status);
                let status = after.get("status");
                Ok(vec![
                    status.map_or(Ok(Op::Delete { key: key.clone() }), |s| put(key, s))?,
                ])
            }
            Half::Spec => {
                let done = metadata::is_deleting(after) && metadata::finalizers(after).is_empty();
                if done {
                    return Ok(delete_both(&self.key));
                }
                let half = object::spec_half(self.kind, after);
                Ok(vec![put(self.key.part(Part::Spec), &half)?])
            }
        }
    }
}

fn delete_both(key: &ObjectKey) -> Vec<Op> {
    vec![
        Op::Delete {
            key: key.part(Part::Spec),
        },
        Op::Delete {
            key: key.part(Part::Status),
        },
    ]
}

pub(crate) fn kept_changing(kind: &Kind, name: &str) -> ApiStatus {
    let why = "what it depends on kept changing while it was written; please try again";
    ApiStatus::conflict(kind, name, why)
}

fn replace_status(object: &mut Value, status: Option<&Value>) {
    let Some(fields) = object.as_object_mut() else {
        return;
    };
    match status.filter(|status| !status.is_null()) {
        Some(status) => {
            fields.insert("status".to_owned(), status.clone());
        }
        None => {
            fields.shift_remove("status");
        }
    }
}

fn keep_server_owned(before: &Value, after: &mut Value) {
    let Some(metadata) = metadata::of_mut(after) else {
        return;
    };
    for field in SERVER_OWNED {
        metadata.shift_remove(field);
        if let Some(value) = before.get("metadata").and_then(|old| old.get(field)) {
            metadata.insert(field.to_owned(), value.clone());
        }
    }
}

fn generation(object: &Value) -> u64 {
    let metadata = object
        .get("metadata")
        .and_then(|metadata| metadata.get("generation"));
    metadata.and_then(Value::as_u64).unwrap_or(0)
}
