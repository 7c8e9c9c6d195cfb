//! Unknown fields: found by walking the schema, taken out, and named with what was meant.
//!
//! Owns pruning and the suggestions. Never judges values (see `schema`).

use serde_json::{Map, Value};

use crate::schema::{join, nearest};

/// Most unknown fields that are named for one object.
const MAX_NAMED: usize = 32;

/// Fields of `metadata`, the same for every kind (`k8s.io/apimachinery` `ObjectMeta`).
const METADATA: [&str; 15] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// A field that the schema does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnknownField {
    /// Where it was.
    pub path: String,
    /// The field that was probably meant.
    pub meant: Option<String>,
}

impl UnknownField {
    /// In the words that `kubectl` users know, with the suggestion.
    pub(crate) fn message(&self) -> String {
        match &self.meant {
            Some(meant) => format!(
                "unknown field \"{}\" (did you mean \"{meant}\"?)",
                self.path
            ),
            None => format!("unknown field \"{}\"", self.path),
        }
    }
}

/// Removes from a whole object every field that `schema` does not know, and returns them in
/// order.
pub(crate) fn prune(schema: &Value, object: &mut Value) -> Vec<UnknownField> {
    let mut unknown = Vec::new();
    let Value::Object(fields) = object else {
        return unknown;
    };
    let properties = schema.get("properties").and_then(Value::as_object);
    let known = |name: &str| {
        ["apiVersion", "kind", "metadata"].contains(&name)
            || properties.is_some_and(|properties| properties.contains_key(name))
    };
    let names = || {
        ["apiVersion", "kind", "metadata"].into_iter().chain(
            properties
                .into_iter()
                .flat_map(|known| known.keys().map(String::as_str)),
        )
    };
    keep_known(fields, "", &known, names, &mut unknown);
    if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
        let known = |name: &str| METADATA.contains(&name);
        keep_known(
            metadata,
            "metadata",
            &known,
            || METADATA.into_iter(),
            &mut unknown,
        );
    }
    for (name, schema) in properties.into_iter().flatten() {
        if ["apiVersion", "kind", "metadata"].contains(&name.as_str()) {
            continue;
        }
        if let Some(value) = fields.get_mut(name) {
            walk(&[schema], value, name, &mut unknown);
        }
    }
    unknown.truncate(MAX_NAMED);
    unknown
}

/// Keeps the fields that any of `schemas` (a schema and its branches) knows.
fn walk(schemas: &[&Value], value: &mut Value, path: &str, unknown: &mut Vec<UnknownField>) {
    let schemas = with_branches(schemas);
    match value {
        Value::Object(fields) => {
            if schemas.iter().any(|schema| is_open(schema)) {
                return;
            }
            let properties = |name: &str| -> Vec<&Value> {
                schemas
                    .iter()
                    .filter_map(|schema| schema.get("properties")?.get(name))
                    .collect()
            };
            let additional: Vec<&Value> = schemas
                .iter()
                .filter_map(|schema| schema.get("additionalProperties"))
                .filter(|more| more.is_object())
                .collect();
            let known = |name: &str| !additional.is_empty() || !properties(name).is_empty();
            let names = || {
                schemas
                    .iter()
                    .filter_map(|schema| schema.get("properties")?.as_object())
                    .flat_map(|properties| properties.keys().map(String::as_str))
            };
            keep_known(fields, path, &known, names, unknown);
            for (name, value) in fields.iter_mut() {
                let own = properties(name);
                let schemas = if own.is_empty() { &additional } else { &own };
                walk(schemas, value, &join(path, name), unknown);
            }
        }
        Value::Array(items) => {
            let schemas: Vec<&Value> = schemas
                .iter()
                .filter_map(|schema| schema.get("items"))
                .collect();
            if schemas.is_empty() {
                return;
            }
            for (index, item) in items.iter_mut().enumerate() {
                walk(&schemas, item, &format!("{path}[{index}]"), unknown);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn with_branches<'a>(schemas: &[&'a Value]) -> Vec<&'a Value> {
    let mut all: Vec<&Value> = schemas.to_vec();
    let mut next = 0;
    while next < all.len() {
        let schema = all[next];
        for name in ["allOf", "anyOf", "oneOf"] {
            all.extend(
                schema
                    .get(name)
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten(),
            );
        }
        next += 1;
    }
    all
}

/// True for a schema that says nothing about fields, or that any are welcome.
fn is_open(schema: &Value) -> bool {
    let flag = |name: &str| schema.get(name).and_then(Value::as_bool).unwrap_or(false);
    if flag("x-kubernetes-preserve-unknown-fields") || flag("additionalProperties") {
        return true;
    }
    let silent = [
        "properties",
        "additionalProperties",
        "allOf",
        "anyOf",
        "oneOf",
    ]
    .iter()
    .all(|name| schema.get(*name).is_none());
    let plain = ["required", "enum"]
        .iter()
        .all(|name| schema.get(*name).is_none());
    silent && plain && schema.get("type").is_none_or(|ty| ty == "object")
}

fn keep_known<'a, I: Iterator<Item = &'a str>>(
    fields: &mut Map<String, Value>,
    path: &str,
    known: &dyn Fn(&str) -> bool,
    names: impl Fn() -> I,
    unknown: &mut Vec<UnknownField>,
) {
    fields.retain(|name, _| {
        let keep = known(name);
        if !keep && unknown.len() < MAX_NAMED {
            let meant = nearest(name, names()).map(str::to_owned);
            unknown.push(UnknownField {
                path: join(path, name),
                meant,
            });
        }
        keep
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pruned(mut object: Value) -> (Value, Vec<String>) {
        let unknown = prune(&crate::kind::tests::widget().schema, &mut object);
        (object, unknown.iter().map(UnknownField::message).collect())
    }

    #[test]
    fn unknown_fields_go_and_are_named_with_what_was_meant() {
        let (object, unknown) = pruned(json!({
            "apiVersion": "test.dev/v1", "kind": "Widget", "extra": 1,
            "metadata": {"name": "a", "lables": {}},
            "spec": {"siez": 1, "parts": [{"nam": 1, "name": "x"}], "tags": {"any": "thing"}},
        }));
        assert_eq!(
            object,
            json!({
                "apiVersion": "test.dev/v1", "kind": "Widget",
                "metadata": {"name": "a"},
                "spec": {"parts": [{"name": "x"}], "tags": {"any": "thing"}},
            })
        );
        assert_eq!(
            unknown,
            [
                "unknown field \"extra\"",
                "unknown field \"metadata.lables\" (did you mean \"labels\"?)",
                "unknown field \"spec.siez\" (did you mean \"size\"?)",
                "unknown field \"spec.parts[0].nam\" (did you mean \"name\"?)",
            ]
        );
    }

    #[test]
    fn open_objects_and_branches_keep_their_fields() {
        let schema = json!({"properties": {"spec": {
            "properties": {"a": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            "oneOf": [{"properties": {"b": {"type": "integer"}}}, {"required": ["a"]}],
        }}});
        let mut object = json!({"spec": {"a": {"free": {"x": 1}}, "b": 1, "c": 2}});
        let unknown = prune(&schema, &mut object);
        assert_eq!(unknown.len(), 1);
        assert_eq!(object, json!({"spec": {"a": {"free": {"x": 1}}, "b": 1}}));
    }
}
