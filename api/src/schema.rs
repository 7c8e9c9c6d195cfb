//! Schemas as Kubernetes wants them: OpenAPI v3, structural, inlined.
//!
//! Owns the way from a Rust type to the schema that discovery serves. Never validates.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value};

/// Schema of an object of any shape, kept as it is.
pub fn free_form(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// Schema of a list of objects of any shape.
pub fn free_form_list(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": free_form(generator) })
}

/// The structural schema of a type: no references, no titles, enums as one list.
#[must_use]
pub fn structural<T: JsonSchema>() -> Value {
    let settings = schemars::generate::SchemaSettings::openapi3().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings
        .into_generator()
        .into_root_schema_for::<T>()
        .to_value();
    tidy(&mut schema);
    schema
}

/// Keywords that say nothing to Kubernetes or are not structural.
const DROPPED: [&str; 3] = ["title", "components", "default"];

fn tidy(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    for keyword in DROPPED {
        map.remove(keyword);
    }
    unwrap_single(map);
    merge_words(map);
    for nested in ["items", "additionalProperties"] {
        if let Some(inner) = map.get_mut(nested) {
            tidy(inner);
        }
    }
    if let Some(Value::Object(properties)) = map.get_mut("properties") {
        for property in properties.values_mut() {
            tidy(property);
        }
    }
}

/// Turns `allOf` / `anyOf` of one real schema into that schema; an `anyOf` with null is optional.
fn unwrap_single(map: &mut Map<String, Value>) {
    for keyword in ["allOf", "anyOf"] {
        let Some(Value::Array(parts)) = map.get(keyword) else {
            continue;
        };
        let real = |part: &&Value| part.get("enum") != Some(&Value::Array(vec![Value::Null]));
        let mut real = parts
            .iter()
            .filter(real)
            .filter_map(Value::as_object)
            .cloned();
        if let (Some(only), None) = (real.next(), real.next()) {
            map.remove(keyword);
            for (key, value) in only {
                map.entry(key).or_insert(value);
            }
        }
    }
}

/// Turns a `oneOf` of documented words into one list of words, their meanings in the description.
fn merge_words(map: &mut Map<String, Value>) {
    let Some(Value::Array(parts)) = map.get("oneOf") else {
        return;
    };
    let (mut words, mut meanings) = (Vec::new(), Vec::new());
    for part in parts {
        let listed = part
            .get("enum")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let listed = part
            .get("const")
            .cloned()
            .into_iter()
            .chain(listed)
            .collect::<Vec<_>>();
        if listed.is_empty() {
            return;
        }
        let meaning = part.get("description").and_then(Value::as_str);
        if let (Some(meaning), [Value::String(word)]) = (meaning, listed.as_slice()) {
            meanings.push(format!("{word}: {meaning}"));
        }
        words.extend(listed);
    }
    map.remove("oneOf");
    map.insert("type".to_owned(), Value::from("string"));
    map.insert("enum".to_owned(), Value::Array(words));
    let own = map
        .get("description")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let text = format!("{own}\n{}", meanings.join("\n"));
    map.insert("description".to_owned(), Value::from(text.trim()));
}
