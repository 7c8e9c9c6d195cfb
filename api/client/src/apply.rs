//! `apply`: makes an object what its document says, and removes what the last one said and this
//! one does not.
//!
//! Owns the three-way difference as a pure function, and the annotation that remembers the last
//! document. Fields that nobody's document names are left to whoever set them.

use meridian_api::canonical;
use serde_json::{Map, Value, json};

use crate::client::Client;
use crate::errors::{ClientError, FailureKind};
use crate::objects::{DryRun, Form, Written, text};
use crate::resource::Resource;

/// Annotation that holds the last applied document, as canonical JSON.
pub const LAST_APPLIED: &str = "meridian.dev/last-applied";

/// Metadata that only the hub writes; a document that carries it was read from a hub.
const HUB_METADATA: [&str; 6] = [
    "creationTimestamp",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "uid",
];

/// What `apply` did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There was none.
    Created,
    /// There was one, and it changed.
    Configured,
    /// It was so already.
    Unchanged,
}

impl Outcome {
    /// The word that commands print.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Configured => "configured",
            Self::Unchanged => "unchanged",
        }
    }
}

/// The result of `apply`.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// What was done, or would be.
    pub outcome: Outcome,
    /// The object and the hub's warnings.
    pub written: Written,
}

/// What `apply` would send.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Store this new object.
    Create(Value),
    /// Merge this patch into the object that is there.
    Patch(Value),
    /// Nothing.
    Nothing,
}

/// The step from what is there (`None` = nothing) to what `document` says.
#[must_use]
pub fn step(current: Option<&Value>, document: &Value) -> Step {
    let wanted = owned(document);
    let mut annotated = wanted.clone();
    annotated["metadata"]["annotations"][LAST_APPLIED] = json!(canonical::to_string(&wanted));
    let Some(current) = current else {
        return Step::Create(annotated);
    };
    let last = last_applied(current);
    let Some(mut patch) = merge_patch(last.as_ref(), current, &annotated) else {
        return Step::Nothing;
    };
    let precondition = &document["metadata"]["resourceVersion"];
    if precondition.is_string() {
        patch["metadata"]["resourceVersion"] = precondition.clone();
    }
    Step::Patch(patch)
}

/// A document without what only the hub writes, and without nulls, which in a document mean
/// "not set".
fn owned(document: &Value) -> Value {
    let mut owned = document.clone();
    drop_nulls(&mut owned);
    if let Value::Object(fields) = &mut owned {
        fields.remove("status");
    }
    if let Some(metadata) = owned["metadata"].as_object_mut() {
        for field in HUB_METADATA {
            metadata.remove(field);
        }
        if let Some(annotations) = metadata
            .get_mut("annotations")
            .and_then(Value::as_object_mut)
        {
            annotations.remove(LAST_APPLIED);
        }
    }
    owned
}

fn drop_nulls(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.retain(|_, field| !field.is_null());
        fields.values_mut().for_each(drop_nulls);
    }
}

fn last_applied(current: &Value) -> Option<Value> {
    let text = text(&current["metadata"]["annotations"][LAST_APPLIED]);
    serde_json::from_str(text).ok()
}

/// The merge patch (RFC 7396) that gives every field of `wanted` its value in `current` and
/// removes the fields of `last` that `wanted` lacks; `None` when nothing differs. Lists are
/// replaced whole, as a merge patch does.
#[must_use]
pub fn merge_patch(last: Option<&Value>, current: &Value, wanted: &Value) -> Option<Value> {
    let (Value::Object(current), Value::Object(wanted)) = (current, wanted) else {
        return (current != wanted).then(|| wanted.clone());
    };
    let nothing = Map::new();
    let last = last.and_then(Value::as_object).unwrap_or(&nothing);
    let mut patch = Map::new();
    for (key, value) in wanted {
        let change = match current.get(key) {
            None => Some(value.clone()),
            Some(there) => merge_patch(last.get(key), there, value),
        };
        if let Some(change) = change {
            patch.insert(key.clone(), change);
        }
    }
    for key in last.keys() {
        if !wanted.contains_key(key) && current.contains_key(key) {
            patch.insert(key.clone(), Value::Null);
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

impl Client {
    /// Makes the object what `document` says.
    ///
    /// [`FailureKind::Conflict`] when the document names a `resourceVersion` that is not the
    /// stored one.
    pub async fn apply(
        &self,
        resource: &Resource,
        namespace: &str,
        document: &Value,
        dry_run: DryRun,
    ) -> Result<Applied, ClientError> {
        let name = text(&document["metadata"]["name"]);
        let mut current = self.find(resource, namespace, name).await?;
        if current.is_none()
            && let Step::Create(object) = step(None, document)
        {
            match self.create(resource, namespace, &object, dry_run).await {
                Ok(written) => {
                    return Ok(Applied {
                        outcome: Outcome::Created,
                        written,
                    });
                }
                // Somebody made it between the two requests: go on as if it had been there.
                Err(error) if error.is(FailureKind::AlreadyExists) => {
                    current = self.find(resource, namespace, name).await?;
                }
                Err(error) => return Err(error),
            }
        }
        let current = current.unwrap_or_default();
        let Step::Patch(patch) = step(Some(&current), document) else {
            return Ok(Applied {
                outcome: Outcome::Unchanged,
                written: Written {
                    object: current,
                    warnings: Vec::new(),
                },
            });
        };
        let written = self
            .merge_patch(resource, namespace, name, &patch, dry_run)
            .await?;
        // What is written otherwise than it is stored (`1024Mi`, `1Gi`) is sent and changes
        // nothing: then the revision stays.
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        let same = dry_run == DryRun::No && version(&written.object) == version(&current);
        let outcome = if same {
            Outcome::Unchanged
        } else {
            Outcome::Configured
        };
        Ok(Applied { outcome, written })
    }

    /// The object, or `None` when there is none.
    pub async fn find(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, ClientError> {
        match self.get(resource, namespace, name, Form::Objects).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is(FailureKind::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn document() -> Value {
        json!({
            "apiVersion": "meridian.dev/v1alpha1", "kind": "FederatedJob",
            "metadata": {"name": "x", "labels": {"team": "nlp"}},
            "spec": {"workloadClass": "batch-short", "roles": [{"name": "worker"}]}
        })
    }

    /// The object as a hub stores it: with defaults and metadata of its own.
    fn stored(document: &Value) -> Value {
        let Step::Create(mut object) = step(None, document) else {
            panic!("nothing is there");
        };
        object["metadata"]["resourceVersion"] = json!("7");
        object["metadata"]["uid"] = json!("u");
        object["spec"]["priority"] = json!(0);
        object["status"] = json!({"phase": "Running"});
        object
    }

    #[test]
    fn the_same_document_again_changes_nothing() {
        assert_eq!(step(Some(&stored(&document())), &document()), Step::Nothing);
        let mut read_back = stored(&document());
        read_back["metadata"]["resourceVersion"] = json!("6");
        let reapplied = stored(&read_back);
        assert_eq!(step(Some(&reapplied), &read_back), Step::Nothing);
    }

    #[test]
    fn a_field_that_leaves_the_document_leaves_the_object() {
        let current = stored(&document());
        let mut changed = document();
        changed["metadata"]["labels"] = json!({"tier": "a"});
        changed["spec"]["workloadClass"] = json!("batch-long");
        let Step::Patch(patch) = step(Some(&current), &changed) else {
            panic!("it differs");
        };
        assert_eq!(
            patch["metadata"]["labels"],
            json!({"tier": "a", "team": null})
        );
        assert_eq!(patch["spec"], json!({"workloadClass": "batch-long"}));
        let mut after = current;
        json_patch::merge(&mut after, &patch);
        assert_eq!(after["spec"]["priority"], 0, "a default stays");
        assert_eq!(step(Some(&after), &changed), Step::Nothing);
    }

    #[test]
    fn what_others_set_is_left_alone() {
        let mut current = stored(&document());
        current["metadata"]["labels"]["added-by"] = json!("somebody");
        assert_eq!(step(Some(&current), &document()), Step::Nothing);
    }

    #[test]
    fn a_revision_in_the_document_is_a_precondition() {
        let mut changed = document();
        changed["spec"]["priority"] = json!(5);
        changed["metadata"]["resourceVersion"] = json!("6");
        let Step::Patch(patch) = step(Some(&stored(&document())), &changed) else {
            panic!("it differs");
        };
        assert_eq!(patch["metadata"]["resourceVersion"], "6");
    }

    /// Small documents that often share keys; no nulls, which a document cannot say.
    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            (0..3_i64).prop_map(Value::from),
            "[ab]".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-d]", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    fn fields() -> impl Strategy<Value = Value> {
        prop::collection::btree_map("[a-d]", value(), 0..4)
            .prop_map(|fields| Value::Object(fields.into_iter().collect()))
    }

    /// Every field of `wanted` has its value in `have`.
    fn gives(have: &Value, wanted: &Value) -> bool {
        match (have, wanted) {
            (Value::Object(have), Value::Object(wanted)) => wanted
                .iter()
                .all(|(key, value)| have.get(key).is_some_and(|have| gives(have, value))),
            (have, wanted) => have == wanted,
        }
    }

    /// Every field of `last` that `wanted` lacks is not in `have`.
    fn removed(have: &Value, last: &Value, wanted: &Value) -> bool {
        let (Value::Object(have), Value::Object(last), Value::Object(wanted)) =
            (have, last, wanted)
        else {
            return true;
        };
        last.iter().all(|(key, value)| match wanted.get(key) {
            None => !have.contains_key(key),
            Some(wanted) => have
                .get(key)
                .is_none_or(|have| removed(have, value, wanted)),
        })
    }

    /// Every field of `before` that neither document names is still what it was.
    fn kept(before: &Value, after: &Value, last: &Value, wanted: &Value) -> bool {
        let (Value::Object(before), Value::Object(after)) = (before, after) else {
            return true;
        };
        let nothing = Value::Null;
        before
            .iter()
            .all(|(key, value)| match (last.get(key), wanted.get(key)) {
                (None, None) => after.get(key) == Some(value),
                (last, Some(wanted)) if wanted.is_object() => after
                    .get(key)
                    .is_some_and(|after| kept(value, after, last.unwrap_or(&nothing), wanted)),
                // Removed, or replaced whole.
                (Some(_), None) | (_, Some(_)) => true,
            })
    }

    proptest! {
        #[test]
        fn the_patch_gives_what_the_document_says(
            last in prop::option::of(fields()), current in fields(), wanted in fields(),
        ) {
            let mut after = current.clone();
            if let Some(patch) = merge_patch(last.as_ref(), &current, &wanted) {
                json_patch::merge(&mut after, &patch);
                prop_assert_ne!(&after, &current, "a patch changes something");
            }
            let last = last.unwrap_or(json!({}));
            prop_assert!(gives(&after, &wanted));
            prop_assert!(removed(&after, &last, &wanted));
            prop_assert!(kept(&current, &after, &last, &wanted));
            prop_assert_eq!(merge_patch(Some(&last), &after, &wanted), None);
        }
    }
}
