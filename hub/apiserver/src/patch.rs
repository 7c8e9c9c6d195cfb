//! Patches: JSON merge patch (RFC 7386) and JSON patch (RFC 6902).
//!
//! Owns their reading, bounds and application to one value. Never decides whether the result is
//! a good object.

use json_patch::{Patch, PatchErrorKind, PatchOperation};
use serde_json::Value;

use crate::body;
use crate::status::{ApiStatus, StatusReason};

/// Most operations of one JSON patch; each walks the object once.
const MAX_OPERATIONS: usize = 1_000;
/// Most values that the copies of one JSON patch may add: copies can double an object each time.
const MAX_COPIED: usize = 100_000;

/// The patch types that are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// `application/merge-patch+json`.
    Merge,
    /// `application/json-patch+json`.
    Json,
}

impl PatchType {
    /// From a `Content-Type`; an error names what is understood.
    pub(crate) fn of(content_type: Option<&str>) -> Result<Self, ApiStatus> {
        let essence = content_type
            .unwrap_or_default()
            .split(';')
            .next()
            .unwrap_or_default()
            .trim();
        match essence {
            "application/merge-patch+json" => Ok(Self::Merge),
            "application/json-patch+json" => Ok(Self::Json),
            other => Err(ApiStatus::new(
                StatusReason::UnsupportedMediaType,
                format!(
                    "the body of the request was in an unknown format ({other:?}): accepted media \
                     types are application/merge-patch+json and application/json-patch+json"
                ),
            )),
        }
    }
}

/// `before` with `patch` applied.
pub(crate) fn apply(
    patch_type: PatchType,
    before: &Value,
    patch: &Value,
) -> Result<Value, ApiStatus> {
    let mut after = before.clone();
    match patch_type {
        PatchType::Merge => {
            if !patch.is_object() {
                let message = "a merge patch must be an object";
                return Err(ApiStatus::bad_request(message));
            }
            json_patch::merge(&mut after, patch);
        }
        PatchType::Json => apply_json(&mut after, patch)?,
    }
    Ok(after)
}

fn apply_json(after: &mut Value, patch: &Value) -> Result<(), ApiStatus> {
    let count = patch.as_array().map_or(0, Vec::len);
    if count > MAX_OPERATIONS {
        let message =
            format!("a JSON patch may have at most {MAX_OPERATIONS} operations, has {count}");
        return Err(ApiStatus::new(StatusReason::RequestEntityTooLarge, message));
    }
    let patch: Patch = serde_json::from_value(patch.clone())
        .map_err(|error| ApiStatus::bad_request(format!("this is no JSON patch: {error}")))?;
    let mut copied = 0;
    for (index, operation) in patch.iter().enumerate() {
        copied += bounded(after, operation)?;
        if copied > MAX_COPIED {
            let message = format!("the copies of a JSON patch add more than {MAX_COPIED} values");
            return Err(ApiStatus::new(StatusReason::RequestEntityTooLarge, message));
        }
        json_patch::patch(after, std::slice::from_ref(operation)).map_err(|error| {
            let what = match error.kind {
                PatchErrorKind::TestFailed => "the value is another",
                PatchErrorKind::InvalidFromPointer => "\"from\" names nothing",
                PatchErrorKind::InvalidPointer => "the path names nothing",
                PatchErrorKind::CannotMoveInsideItself => "a value cannot move into itself",
                _ => "it cannot be applied",
            };
            let path = operation.path();
            let message = format!("operation {index} of the JSON patch failed at {path}: {what}");
            ApiStatus::new(StatusReason::Invalid, message)
        })?;
    }
    Ok(())
}

/// Values that `operation` copies, when its result stays within the depth of a body.
fn bounded(before: &Value, operation: &PatchOperation) -> Result<usize, ApiStatus> {
    let (placed, copied) = match operation {
        PatchOperation::Add(add) => (Some(&add.value), 0),
        PatchOperation::Replace(replace) => (Some(&replace.value), 0),
        PatchOperation::Move(moved) => (before.pointer(moved.from.as_str()), 0),
        PatchOperation::Copy(copy) => {
            let source = before.pointer(copy.from.as_str());
            (source, source.map_or(0, values))
        }
        PatchOperation::Remove(_) | PatchOperation::Test(_) => (None, 0),
    };
    let levels = operation.path().tokens().count() + placed.map_or(0, body::depth);
    if levels > body::MAX_DEPTH {
        let message = format!(
            "the patched object would be nested {levels} levels deep, at most {} \
                               are allowed",
            body::MAX_DEPTH
        );
        return Err(ApiStatus::bad_request(message));
    }
    Ok(copied)
}

/// Number of values in a value.
fn values(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(values).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(values).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_merge_patch_sets_and_removes() {
        let before = json!({"a": 1, "b": {"c": 2, "d": 3}});
        let patch = json!({"a": null, "b": {"c": 9}});
        let after = apply(PatchType::Merge, &before, &patch).unwrap();
        assert_eq!(after, json!({"b": {"c": 9, "d": 3}}));
        assert_eq!(
            apply(PatchType::Merge, &before, &json!([1]))
                .unwrap_err()
                .code(),
            400
        );
    }

    #[test]
    fn a_json_patch_is_applied_whole_or_says_which_step_failed() {
        let before = json!({"a": [1, 2]});
        let good = json!([
            {"op": "test", "path": "/a/0", "value": 1},
            {"op": "add", "path": "/a/-", "value": 3},
            {"op": "replace", "path": "/a/0", "value": 9},
        ]);
        assert_eq!(
            apply(PatchType::Json, &before, &good).unwrap(),
            json!({"a": [9, 2, 3]})
        );
        let bad = json!([{"op": "test", "path": "/a/0", "value": 5}]);
        let error = apply(PatchType::Json, &before, &bad).unwrap_err();
        assert_eq!(error.code(), 422);
        assert!(error.message.contains("operation 0"), "{}", error.message);
        for nonsense in [json!({}), json!([{"op": "x"}]), json!([1])] {
            assert_eq!(
                apply(PatchType::Json, &before, &nonsense)
                    .unwrap_err()
                    .code(),
                400
            );
        }
    }

    #[test]
    fn a_patch_cannot_blow_an_object_up() {
        let mut operations = vec![json!({"op": "add", "path": "/a", "value": [1, 2, 3, 4]})];
        for _ in 0..40 {
            operations.push(json!({"op": "copy", "from": "/a", "path": "/a/-"}));
        }
        let error = apply(PatchType::Json, &json!({}), &Value::Array(operations)).unwrap_err();
        assert_eq!(error.code(), 413);
        let many = vec![json!({"op": "remove", "path": "/a"}); MAX_OPERATIONS + 1];
        let error = apply(PatchType::Json, &json!({}), &Value::Array(many)).unwrap_err();
        assert_eq!(error.code(), 413);
    }
}
