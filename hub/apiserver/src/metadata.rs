//! Object metadata: what a person may write in it, and what only the server does.
//!
//! Owns the checks of names, labels, annotations and finalizers, and the fields that the server
//! keeps. Never stores anything.

use serde_json::{Map, Value, json};

use crate::kind::{FieldError, FieldReason, Kind, Scope};

/// Longest name: a DNS subdomain (RFC 1123).
pub(crate) const MAX_NAME: usize = 253;
/// Longest namespace, label value and name part of a label key: a DNS label.
pub(crate) const MAX_LABEL: usize = 63;
/// Most bytes of annotations together, as Kubernetes has it.
const MAX_ANNOTATIONS: usize = 256 * 1024;
/// Most labels, finalizers or owners of one object: far above use, and a bound on indexing.
const MAX_ENTRIES: usize = 128;

/// Fields that only the server writes.
pub(crate) const SERVER_OWNED: [&str; 8] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
];

/// A text of an object's metadata; empty when it is not there.
pub(crate) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object
        .get("metadata")
        .and_then(|meta| meta.get(field))
        .and_then(Value::as_str)
        .unwrap_or("")
}

/// The metadata, made when it is not there. `None` when the object is no JSON object or its
/// metadata is something else.
pub(crate) fn of_mut(object: &mut Value) -> Option<&mut Map<String, Value>> {
    object
        .as_object_mut()?
        .entry("metadata")
        .or_insert_with(|| json!({}))
        .as_object_mut()
}

/// The finalizers, in order.
pub(crate) fn finalizers(object: &Value) -> Vec<&str> {
    let list = object
        .get("metadata")
        .and_then(|meta| meta.get("finalizers"));
    list.and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

/// True when the object has been asked to go.
pub(crate) fn is_deleting(object: &Value) -> bool {
    !text(object, "deletionTimestamp").is_empty()
}

/// True for a DNS label.
pub(crate) fn is_label(text: &str) -> bool {
    let alphanumeric = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=MAX_LABEL).contains(&text.len())
        && text.bytes().all(|c| alphanumeric(c) || c == b'-')
        && text.bytes().next().is_some_and(alphanumeric)
        && text.bytes().last().is_some_and(alphanumeric)
}

/// True for a DNS subdomain: labels with dots between. Parts may be longer than a label, as in
/// Kubernetes.
pub(crate) fn is_subdomain(text: &str) -> bool {
    let alphanumeric = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.len() <= MAX_NAME
        && text.split('.').all(|part| {
            part.bytes().all(|c| alphanumeric(c) || c == b'-')
                && part.bytes().next().is_some_and(alphanumeric)
                && part.bytes().last().is_some_and(alphanumeric)
        })
}

/// True for the name part of a label key and for a label value that is not empty.
pub(crate) fn is_label_value(text: &str) -> bool {
    let edge = |c: u8| c.is_ascii_alphanumeric();
    text.len() <= MAX_LABEL
        && text.bytes().all(|c| edge(c) || b"-_.".contains(&c))
        && text.bytes().next().is_some_and(edge)
        && text.bytes().last().is_some_and(edge)
}

/// True for `name` or `prefix.dns/name`.
pub(crate) fn is_qualified(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_label_value(name),
        None => is_label_value(text),
    }
}

/// Everything wrong with the metadata of `object`, whose name is known by now.
pub(crate) fn validate(kind: &Kind, object: &Value) -> Vec<FieldError> {
    let mut found = Vec::new();
    let Some(metadata) = object.get("metadata").and_then(Value::as_object) else {
        found.push(FieldError::new(
            "metadata",
            FieldReason::Required,
            "Required value",
        ));
        return found;
    };
    let name = text(object, "name");
    let other = metadata
        .get("name")
        .filter(|name| !name.is_string() && !name.is_null());
    if let Some(other) = other {
        let other = shorten(&other.to_string());
        let message = format!("must be of type string, is {other}: put it in quotes");
        found.push(FieldError::new(
            "metadata.name",
            FieldReason::TypeInvalid,
            message,
        ));
    } else if name.is_empty() {
        let message = "Required value: name or generateName is required";
        found.push(FieldError::new(
            "metadata.name",
            FieldReason::Required,
            message,
        ));
    } else if !is_subdomain(name) {
        let message = format!(
            "Invalid value: must be at most {MAX_NAME} lower-case letters, digits, '-' or '.', \
             and begin and end with a letter or digit"
        );
        found.push(FieldError::new(
            "metadata.name",
            FieldReason::Invalid,
            message,
        ));
    }
    let namespace = text(object, "namespace");
    if kind.scope == Scope::Namespaced && !is_label(namespace) {
        let message = format!(
            "Invalid value: must be at most {MAX_LABEL} lower-case letters, digits or '-', and \
             begin and end with a letter or digit"
        );
        found.push(FieldError::new(
            "metadata.namespace",
            FieldReason::Invalid,
            message,
        ));
    }
    maps(metadata, &mut found);
    lists(metadata, &mut found);
    found
}

fn maps(metadata: &Map<String, Value>, found: &mut Vec<FieldError>) {
    for field in ["labels", "annotations"] {
        let path = format!("metadata.{field}");
        let entries = match metadata.get(field) {
            None | Some(Value::Null) => continue,
            Some(Value::Object(entries)) => entries,
            Some(_) => {
                let message = "must be a map of strings";
                found.push(FieldError::new(path, FieldReason::TypeInvalid, message));
                continue;
            }
        };
        if entries.len() > MAX_ENTRIES {
            let message = format!(
                "must have at most {MAX_ENTRIES} entries, has {}",
                entries.len()
            );
            found.push(FieldError::new(path.clone(), FieldReason::TooMany, message));
            continue;
        }
        let mut bytes = 0;
        for (key, value) in entries {
            let Some(value) = value.as_str() else {
                let message = format!("the value of {key:?} must be a string");
                found.push(FieldError::new(
                    path.clone(),
                    FieldReason::TypeInvalid,
                    message,
                ));
                continue;
            };
            bytes += key.len() + value.len();
            let fits = field == "annotations" || value.is_empty() || is_label_value(value);
            if !is_qualified(&key.to_ascii_lowercase()) || !fits {
                let message = format!("Invalid value: {:?}", shorten(&format!("{key}={value}")));
                found.push(FieldError::new(path.clone(), FieldReason::Invalid, message));
            }
        }
        if bytes > MAX_ANNOTATIONS {
            let message = format!("must have at most {MAX_ANNOTATIONS} bytes, has {bytes}");
            found.push(FieldError::new(path, FieldReason::TooMany, message));
        }
    }
}

fn lists(metadata: &Map<String, Value>, found: &mut Vec<FieldError>) {
    for field in ["finalizers", "ownerReferences"] {
        let path = format!("metadata.{field}");
        let items = match metadata.get(field) {
            None | Some(Value::Null) => continue,
            Some(Value::Array(items)) => items,
            Some(_) => {
                let message = "must be a list";
                found.push(FieldError::new(path, FieldReason::TypeInvalid, message));
                continue;
            }
        };
        if items.len() > MAX_ENTRIES {
            let message = format!("must have at most {MAX_ENTRIES} items, has {}", items.len());
            found.push(FieldError::new(path.clone(), FieldReason::TooMany, message));
        }
        for (index, item) in items.iter().take(MAX_ENTRIES).enumerate() {
            let fits = match field {
                "finalizers" => item.as_str().is_some_and(is_qualified),
                _ => ["apiVersion", "kind", "name", "uid"]
                    .iter()
                    .all(|part| item.get(*part).is_some_and(Value::is_string)),
            };
            if !fits {
                let message = format!("Invalid value: {}", shorten(&item.to_string()));
                let path = format!("{path}[{index}]");
                found.push(FieldError::new(path, FieldReason::Invalid, message));
            }
        }
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(metadata: &Value) -> Vec<String> {
        let object = json!({"metadata": metadata});
        let found = validate(&crate::kind::tests::widget(), &object);
        found.into_iter().map(|error| error.path).collect()
    }

    #[test]
    fn good_metadata_passes() {
        let metadata = json!({
            "name": "a.b-c", "namespace": "team-a",
            "labels": {"app": "x", "example.com/Tier": "Front_1", "empty": ""},
            "annotations": {"example.com/note": "any text\nat all"},
            "finalizers": ["example.com/drain"],
        });
        assert_eq!(findings(&metadata), [""; 0]);
    }

    #[test]
    fn bad_metadata_is_named_field_by_field() {
        let metadata = json!({
            "name": "A", "namespace": "a.b",
            "labels": {"app": "no spaces", "n": 1},
            "annotations": ["x"],
            "finalizers": ["white space"],
            "ownerReferences": [{"name": "x"}],
        });
        assert_eq!(
            findings(&metadata),
            [
                "metadata.name",
                "metadata.namespace",
                "metadata.labels",
                "metadata.labels",
                "metadata.annotations",
                "metadata.finalizers[0]",
                "metadata.ownerReferences[0]",
            ]
        );
        for name in ["", "-a", "a-", "a..b", "a/b", "ä", &"a".repeat(254)] {
            assert_eq!(
                findings(&json!({"name": name, "namespace": "n"})),
                ["metadata.name"]
            );
        }
    }
}
