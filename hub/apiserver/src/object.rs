//! Objects and their two halves in the store.
//!
//! Owns the split of an object into what a person wrote and what the hub decided, the join with
//! its resourceVersion, and times as text. Never reads or writes the store.

use std::sync::Arc;

use bytes::Bytes;
use meridian_runtime::clock::UnixMillis;
use meridian_store::keys::{ObjectKey, Part};
use meridian_store::{KeyRange, KeyValue, Revision};
use serde_json::{Map, Value, json};

use crate::kind::Kind;
use crate::metadata;
use crate::status::{ApiStatus, StatusReason};

/// An object as the store holds it at some revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Halves {
    /// Metadata and spec.
    pub spec: KeyValue,
    /// Status, once there is one.
    pub status: Option<KeyValue>,
}

impl Halves {
    /// The object's resourceVersion: the newer of the two.
    pub(crate) fn revision(&self) -> Revision {
        let status = self
            .status
            .as_ref()
            .map_or(Revision::default(), |kv| kv.mod_revision);
        self.spec.mod_revision.max(status)
    }

    /// Newest change of the status half; zero when there is none.
    pub(crate) fn status_revision(&self) -> Revision {
        self.status
            .as_ref()
            .map_or(Revision::default(), |kv| kv.mod_revision)
    }

    /// The whole object, with its resourceVersion.
    pub(crate) fn object(&self) -> Result<Value, ApiStatus> {
        let status = self.status.as_ref().map(|kv| &kv.value);
        join(&self.spec.value, status, self.revision())
    }
}

/// Both halves in one object that carries `revision`.
pub(crate) fn join(
    spec: &Bytes,
    status: Option<&Bytes>,
    revision: Revision,
) -> Result<Value, ApiStatus> {
    let damaged = |error: serde_json::Error| {
        let message = format!("a stored object cannot be read, the store may be damaged: {error}");
        ApiStatus::new(StatusReason::InternalError, message)
    };
    let mut object: Value = serde_json::from_slice(spec).map_err(damaged)?;
    if let Some(status) = status {
        let status: Value = serde_json::from_slice(status).map_err(damaged)?;
        if let Some(fields) = object.as_object_mut() {
            fields.insert("status".to_owned(), status);
        }
    }
    set_revision(&mut object, revision);
    Ok(object)
}

/// Writes the resourceVersion into the metadata.
pub(crate) fn set_revision(object: &mut Value, revision: Revision) {
    if let Some(metadata) = metadata::of_mut(object) {
        metadata.insert(
            "resourceVersion".to_owned(),
            Value::from(revision.to_string()),
        );
    }
}

/// The value of the spec key: the object without status and resourceVersion, its usual fields
/// first.
pub(crate) fn spec_half(kind: &Kind, object: &Value) -> Value {
    into_spec_half(kind, object.clone())
}

/// The same of an object that is of no other use.
pub(crate) fn into_spec_half(kind: &Kind, object: Value) -> Value {
    let mut fields = match object {
        Value::Object(fields) => fields,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    };
    let mut half = Map::new();
    half.insert("apiVersion".to_owned(), Value::from(kind.api_version()));
    half.insert("kind".to_owned(), Value::from(kind.kind.as_str()));
    let mut meta = match fields.shift_remove("metadata") {
        Some(Value::Object(meta)) => meta,
        Some(_) | None => Map::new(),
    };
    meta.retain(|name, value| {
        !["resourceVersion", "managedFields", "selfLink"].contains(&name.as_str())
            && !value.is_null()
            && value.as_array().is_none_or(|items| !items.is_empty())
            && value.as_object().is_none_or(|entries| !entries.is_empty())
    });
    half.insert("metadata".to_owned(), Value::Object(meta));
    for (name, value) in fields {
        let apart = name == "status" && kind.has_status;
        if !apart && !half.contains_key(&name) {
            half.insert(name, value);
        }
    }
    Value::Object(half)
}

/// Everything of an object that its generation counts: all but metadata and status.
pub(crate) fn same_spec(kind: &Kind, a: &Value, b: &Value) -> bool {
    let counted = |object: &Value| -> Map<String, Value> {
        let fields = object.as_object().into_iter().flatten();
        fields
            .filter(|(name, _)| {
                let apart = *name == "status" && kind.has_status;
                !apart && !["apiVersion", "kind", "metadata"].contains(&name.as_str())
            })
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    };
    counted(a) == counted(b)
}

/// Both keys of an object and nothing else.
pub(crate) fn key_range(key: &ObjectKey) -> KeyRange {
    let mut end = key.part(Part::Status).to_vec();
    end.push(0);
    KeyRange {
        start: key.part(Part::Spec),
        end: end.into(),
    }
}

/// The halves among the entries of a page, object by object. A status without its spec is no
/// object.
pub(crate) fn pair(entries: Vec<KeyValue>) -> Vec<(ObjectKey, Halves)> {
    let mut objects: Vec<(ObjectKey, Halves)> = Vec::new();
    for entry in entries {
        let Some((key, part)) = ObjectKey::parse(&entry.key) else {
            continue;
        };
        match part {
            Part::Spec => objects.push((
                key,
                Halves {
                    spec: entry,
                    status: None,
                },
            )),
            Part::Status => {
                if let Some((_, halves)) = objects.last_mut().filter(|(last, _)| *last == key) {
                    halves.status = Some(entry);
                }
            }
        }
    }
    objects
}

/// `2026-11-26T02:14:07Z`, as Kubernetes writes times: whole seconds.
pub(crate) fn timestamp(at: UnixMillis) -> String {
    jiff::Timestamp::from_second(at.0.div_euclid(1000)).map_or_else(
        |_| "1970-01-01T00:00:00Z".to_owned(),
        |time| time.to_string(),
    )
}

/// What is left to say about an object whose halves are no longer to be had.
pub(crate) fn tombstone(kind: &Arc<Kind>, key: &ObjectKey, revision: Revision) -> Value {
    let mut metadata = json!({"name": key.name, "resourceVersion": revision.to_string()});
    if let Some(namespace) = &key.namespace {
        metadata["namespace"] = Value::from(namespace.as_str());
    }
    json!({"apiVersion": kind.api_version(), "kind": kind.kind, "metadata": metadata})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::tests::widget;

    fn stored(key: &ObjectKey, part: Part, value: &Value, revision: u64) -> KeyValue {
        KeyValue {
            key: key.part(part),
            value: value.to_string().into(),
            create_revision: Revision(1),
            mod_revision: Revision(revision),
            version: 1,
            lease: None,
        }
    }

    #[test]
    fn halves_join_under_the_newer_revision() {
        let key = widget().key(Some("n"), "a");
        let spec = json!({"metadata": {"name": "a"}, "spec": {"size": 1}});
        let entries = vec![
            stored(&key, Part::Spec, &spec, 7),
            stored(&key, Part::Status, &json!({"phase": "x"}), 9),
        ];
        let objects = pair(entries);
        assert_eq!(objects.len(), 1);
        let object = objects[0].1.object().unwrap();
        assert_eq!(object["metadata"]["resourceVersion"], "9");
        assert_eq!(object["status"]["phase"], "x");
    }

    #[test]
    fn a_status_alone_is_no_object() {
        let key = widget().key(Some("n"), "a");
        assert!(pair(vec![stored(&key, Part::Status, &json!({}), 1)]).is_empty());
    }

    #[test]
    fn the_range_of_an_object_is_its_two_keys() {
        let range = key_range(&widget().key(Some("n"), "a"));
        let holds = |key: &str| *range.start <= *key.as_bytes() && *key.as_bytes() < *range.end;
        assert!(holds("objects/widgets/n/a/spec") && holds("objects/widgets/n/a/status"));
        assert!(!holds("objects/widgets/n/a.b/spec") && !holds("objects/widgets/n/ab/spec"));
    }

    #[test]
    fn the_spec_half_has_neither_status_nor_revision() {
        let object = json!({
            "spec": {"size": 1}, "status": {"phase": "x"},
            "metadata": {"name": "a", "resourceVersion": "4", "labels": {}, "finalizers": []},
        });
        let half = spec_half(&widget(), &object);
        assert_eq!(
            half,
            json!({
                "apiVersion": "test.dev/v1", "kind": "Widget",
                "metadata": {"name": "a"}, "spec": {"size": 1},
            })
        );
    }

    #[test]
    fn times_are_whole_seconds() {
        assert_eq!(
            timestamp(UnixMillis(1_795_659_247_999)),
            "2026-11-26T02:14:07Z"
        );
        assert_eq!(timestamp(UnixMillis(i64::MAX)), "1970-01-01T00:00:00Z");
    }
}
