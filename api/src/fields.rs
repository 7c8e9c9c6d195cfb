//! Fields against a schema: which ones do not exist, and what was most likely meant.
//!
//! Owns the walk and the guess. Types and ranges are read by the typed kinds (`validate`).

use serde_json::Value;

use crate::errors::{FieldError, FieldReason};

/// Most findings for one object: more than a person reads, and a bound on work.
pub const MAX_FINDINGS: usize = 256;

/// Every field of `value` that `schema` does not have, in the order of the document.
#[must_use]
pub fn unknown_fields(schema: &Value, value: &Value) -> Vec<FieldError> {
    let mut found = Vec::new();
    walk(schema, value, "", &mut found);
    found
}

fn walk(schema: &Value, value: &Value, path: &str, found: &mut Vec<FieldError>) {
    if found.len() >= MAX_FINDINGS || schema.get("x-kubernetes-preserve-unknown-fields").is_some() {
        return;
    }
    match value {
        Value::Object(fields) => {
            let known = schema.get("properties").and_then(Value::as_object);
            let more = schema.get("additionalProperties");
            for (name, inner) in fields {
                if found.len() >= MAX_FINDINGS {
                    return;
                }
                let inner_path = join(path, name);
                match known.and_then(|known| known.get(name)).or(more) {
                    Some(schema) => walk(schema, inner, &inner_path, found),
                    // Of a value that should be no object at all the type is what is wrong.
                    None if known.is_none() => {}
                    None => {
                        let names = known.into_iter().flat_map(|known| known.keys());
                        let meant = nearest(name, names.map(String::as_str));
                        found.push(unknown(&inner_path, meant));
                    }
                }
            }
        }
        Value::Array(items) => {
            let Some(schema) = schema.get("items") else {
                return;
            };
            for (index, item) in items.iter().enumerate() {
                walk(schema, item, &format!("{path}[{index}]"), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn unknown(path: &str, meant: Option<&str>) -> FieldError {
    let message = "there is no such field";
    FieldError::new(path, FieldReason::Unknown, message).suggest(meant.map(str::to_owned))
}

/// `path.name`, or `name` at the top.
pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// The candidate that a person most likely meant; of equals the first. At most a third of its
/// letters, and at least one, may be wrong; upper and lower case count as the same.
pub fn nearest<'a>(text: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // A longer text is no slip of the finger, and the distance costs the product of lengths.
    const LONGEST: usize = 64;
    if text.len() > LONGEST {
        return None;
    }
    let lower = text.to_lowercase();
    let distance = |candidate: &str| strsim::osa_distance(&lower, &candidate.to_lowercase());
    candidates
        .map(|candidate| (distance(candidate), candidate))
        .filter(|(wrong, candidate)| *wrong <= (candidate.len() / 3).max(1))
        .min_by_key(|(wrong, _)| *wrong)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "roles": {"type": "array", "items": {"type": "object", "properties": {
                    "replicas": {"type": "integer"},
                    "template": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                }}},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            }},
        }})
    }

    #[test]
    fn unknown_fields_are_named_with_path_and_suggestion() {
        let value = json!({"spec": {
            "roles": [{"replica": 1, "template": {"anything": {"goes": 1}}}, {"replicas": 2}],
            "labels": {"any": "thing"},
            "zzzz": 1,
        }});
        let found = unknown_fields(&schema(), &value);
        let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "spec.roles[0].replica: there is no such field (did you mean \"replicas\"?)",
                "spec.zzzz: there is no such field",
            ]
        );
    }

    #[test]
    fn a_flood_of_unknown_fields_is_cut() {
        let fields: serde_json::Map<String, Value> = (0..10_000)
            .map(|number| (format!("f{number}"), Value::Null))
            .collect();
        let found = unknown_fields(&schema(), &json!({ "spec": fields }));
        assert_eq!(found.len(), MAX_FINDINGS);
    }

    #[test]
    fn guesses_are_near() {
        let words = ["replicas", "resources", "name"];
        assert_eq!(nearest("replica", words.into_iter()), Some("replicas"));
        assert_eq!(nearest("Name", words.into_iter()), Some("name"));
        assert_eq!(nearest("frobnicate", words.into_iter()), None);
    }
}
