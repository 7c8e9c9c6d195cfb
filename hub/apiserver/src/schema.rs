//! Schemas: made structural once, then asked whether an object fits.
//!
//! Owns the resolution of references and the checks of type, presence, range and choice, as a
//! CRD's structural schema has them. Never removes anything (see `fields`).

use serde_json::{Map, Value};

use crate::kind::{FieldError, FieldReason};

/// Deepest schema; as deep as a body may be, twice, for wrappers like `allOf`.
const MAX_SCHEMA_DEPTH: usize = 128;
/// Most findings for one object: more than a person reads, and a bound on work.
const MAX_FINDINGS: usize = 256;

/// The schema with every `$ref` into its own `$defs` or `definitions` put in its place, and
/// `type: [x, "null"]` written as `nullable`.
pub(crate) fn structural(schema: &Value) -> Result<Value, String> {
    let mut copy = schema.clone();
    let definitions = ["$defs", "definitions"]
        .iter()
        .filter_map(|name| copy.as_object_mut()?.shift_remove(*name))
        .filter_map(|found| match found {
            Value::Object(map) => Some(map),
            _ => None,
        })
        .flatten()
        .collect::<Map<_, _>>();
    resolve(&mut copy, &definitions, 0)?;
    Ok(copy)
}

fn resolve(
    schema: &mut Value,
    definitions: &Map<String, Value>,
    depth: usize,
) -> Result<(), String> {
    if depth > MAX_SCHEMA_DEPTH {
        return Err("it refers to itself or is too deep".to_owned());
    }
    match schema {
        Value::Object(fields) => {
            if let Some(Value::String(target)) = fields.get("$ref") {
                let name = target.rsplit('/').next().unwrap_or_default();
                let found = definitions
                    .get(name)
                    .ok_or_else(|| format!("{target} is missing"))?;
                let mut merged = found.clone();
                if let Value::Object(merged) = &mut merged {
                    // What stands beside a reference (a description) wins over its target.
                    for (key, value) in fields.iter().filter(|(key, _)| *key != "$ref") {
                        merged.insert(key.clone(), value.clone());
                    }
                }
                *schema = merged;
                return resolve(schema, definitions, depth + 1);
            }
            plain_type(fields);
            for value in fields.values_mut() {
                resolve(value, definitions, depth + 1)?;
            }
        }
        Value::Array(items) => {
            for item in items {
                resolve(item, definitions, depth + 1)?;
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
    Ok(())
}

fn plain_type(fields: &mut Map<String, Value>) {
    let Some(Value::Array(types)) = fields.get("type") else {
        return;
    };
    let nullable = types.iter().any(|ty| ty == "null");
    let Some(plain) = types.iter().find(|ty| *ty != "null").cloned() else {
        return;
    };
    fields.insert("type".to_owned(), plain);
    if nullable {
        fields.insert("nullable".to_owned(), Value::Bool(true));
    }
}

/// Everything in which `value` does not fit `schema`, with paths that begin at `path`.
pub(crate) fn validate(schema: &Value, value: &Value, path: &str) -> Vec<FieldError> {
    let mut check = Check {
        found: Vec::new(),
        apart: &[],
    };
    check.value(schema, value, path);
    check.found
}

/// The same for a whole object, of whose fields those named in `apart` are judged elsewhere.
pub(crate) fn validate_but(schema: &Value, object: &Value, apart: &[&str]) -> Vec<FieldError> {
    let found = Vec::new();
    let mut check = Check { found, apart };
    check.value(schema, object, "");
    check.found
}

struct Check<'a> {
    found: Vec<FieldError>,
    /// Fields of the outermost object that are passed over.
    apart: &'a [&'a str],
}

impl Check<'_> {
    fn is_apart(&self, path: &str, name: &str) -> bool {
        path.is_empty() && self.apart.contains(&name)
    }

    fn add(&mut self, path: &str, reason: FieldReason, message: String) {
        if self.found.len() < MAX_FINDINGS {
            self.found.push(FieldError::new(path, reason, message));
        }
    }

    fn value(&mut self, schema: &Value, value: &Value, path: &str) {
        let flag = |name: &str| schema.get(name).and_then(Value::as_bool).unwrap_or(false);
        if value.is_null() && flag("nullable") {
            return;
        }
        let either = flag("x-kubernetes-int-or-string");
        if let Some(ty) = schema.get("type").and_then(Value::as_str)
            && !either
            && !fits_type(ty, value)
        {
            let message = format!("must be of type {ty}, is {}", shown(value));
            return self.add(path, FieldReason::TypeInvalid, message);
        }
        if either && !(value.is_string() || value.is_i64() || value.is_u64()) {
            let message = format!("must be an integer or a string, is {}", shown(value));
            return self.add(path, FieldReason::TypeInvalid, message);
        }
        self.choice(schema, value, path);
        match value {
            Value::String(text) => self.text(schema, text, path),
            Value::Number(number) => self.number(schema, number, path),
            Value::Array(items) => self.list(schema, items, path),
            Value::Object(fields) => self.object(schema, fields, path),
            Value::Null | Value::Bool(_) => {}
        }
        self.branches(schema, value, path);
    }

    fn choice(&mut self, schema: &Value, value: &Value, path: &str) {
        let Some(allowed) = schema.get("enum").and_then(Value::as_array) else {
            return;
        };
        if allowed.contains(value) {
            return;
        }
        let names: Vec<String> = allowed.iter().map(shown).collect();
        let near = value.as_str().and_then(|text| {
            nearest(text, allowed.iter().filter_map(Value::as_str))
                .map(|near| format!(" (did you mean \"{near}\"?)"))
        });
        let message = format!(
            "Unsupported value: {}: supported values: {}{}",
            shown(value),
            names.join(", "),
            near.unwrap_or_default()
        );
        self.add(path, FieldReason::NotSupported, message);
    }

    fn text(&mut self, schema: &Value, text: &str, path: &str) {
        let length = text.chars().count() as u64;
        if let Some(most) = limit(schema, "maxLength").filter(|most| length > *most) {
            let message = format!("may not be longer than {most} characters, has {length}");
            self.add(path, FieldReason::TooMany, message);
        }
        if let Some(least) = limit(schema, "minLength").filter(|least| length < *least) {
            let message = format!("must have at least {least} characters, has {length}");
            self.add(path, FieldReason::Invalid, message);
        }
    }

    fn number(&mut self, schema: &Value, number: &serde_json::Number, path: &str) {
        let exclusive = |name: &str| schema.get(name).and_then(Value::as_bool).unwrap_or(false);
        for (name, strict, is_low, words) in [
            ("minimum", exclusive("exclusiveMinimum"), true, "at least"),
            ("maximum", exclusive("exclusiveMaximum"), false, "at most"),
            ("exclusiveMinimum", true, true, "at least"),
            ("exclusiveMaximum", true, false, "at most"),
        ] {
            let Some(bound) = schema.get(name).and_then(Value::as_number) else {
                continue;
            };
            let order = compare(number, bound);
            let wrong = if is_low { order.is_lt() } else { order.is_gt() };
            if wrong || (strict && order.is_eq()) {
                let words = match (strict, is_low) {
                    (false, _) => words,
                    (true, true) => "more than",
                    (true, false) => "less than",
                };
                let message = format!("must be {words} {bound}, is {number}");
                self.add(path, FieldReason::Invalid, message);
            }
        }
    }

    fn list(&mut self, schema: &Value, items: &[Value], path: &str) {
        let count = items.len() as u64;
        if let Some(most) = limit(schema, "maxItems").filter(|most| count > *most) {
            let message = format!("must have at most {most} items, has {count}");
            self.add(path, FieldReason::TooMany, message);
        }
        if let Some(least) = limit(schema, "minItems").filter(|least| count < *least) {
            let message = format!("must have at least {least} items, has {count}");
            self.add(path, FieldReason::Invalid, message);
        }
        let Some(schema) = schema.get("items") else {
            return;
        };
        for (index, item) in items.iter().enumerate() {
            if self.found.len() >= MAX_FINDINGS {
                return;
            }
            self.value(schema, item, &format!("{path}[{index}]"));
        }
    }

    fn object(&mut self, schema: &Value, fields: &Map<String, Value>, path: &str) {
        let required = schema.get("required").and_then(Value::as_array);
        for name in required.into_iter().flatten().filter_map(Value::as_str) {
            if !fields.contains_key(name) && !self.is_apart(path, name) {
                let message = "Required value".to_owned();
                self.add(&join(path, name), FieldReason::Required, message);
            }
        }
        let count = fields.len() as u64;
        if let Some(most) = limit(schema, "maxProperties").filter(|most| count > *most) {
            let message = format!("must have at most {most} entries, has {count}");
            self.add(path, FieldReason::TooMany, message);
        }
        let properties = schema.get("properties").and_then(Value::as_object);
        let additional = schema
            .get("additionalProperties")
            .filter(|more| more.is_object());
        for (name, value) in fields {
            if self.found.len() >= MAX_FINDINGS {
                return;
            }
            if self.is_apart(path, name) {
                continue;
            }
            let schema = properties.and_then(|known| known.get(name)).or(additional);
            if let Some(schema) = schema {
                self.value(schema, value, &join(path, name));
            }
        }
    }

    fn branches(&mut self, schema: &Value, value: &Value, path: &str) {
        for branch in schema
            .get("allOf")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            self.value(branch, value, path);
        }
        for (name, exactly_one) in [("anyOf", false), ("oneOf", true)] {
            let Some(branches) = schema.get(name).and_then(Value::as_array) else {
                continue;
            };
            let mut fitting = 0;
            let mut best: Option<Vec<FieldError>> = None;
            for branch in branches {
                let found = validate(branch, value, path);
                if found.is_empty() {
                    fitting += 1;
                } else if best.as_ref().is_none_or(|best| found.len() < best.len()) {
                    best = Some(found);
                }
            }
            if fitting == 0 {
                // The alternative that is nearest says most about what is wrong.
                self.found.extend(best.unwrap_or_default());
                self.found.truncate(MAX_FINDINGS);
            } else if exactly_one && fitting > 1 {
                let message = format!("fits {fitting} alternatives, must fit exactly one");
                self.add(path, FieldReason::Invalid, message);
            }
        }
    }
}

fn fits_type(ty: &str, value: &Value) -> bool {
    match ty {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        _ => true,
    }
}

fn limit(schema: &Value, name: &str) -> Option<u64> {
    schema.get(name).and_then(Value::as_u64)
}

/// Exact for integers; floats only where one side is one.
fn compare(a: &serde_json::Number, b: &serde_json::Number) -> std::cmp::Ordering {
    let whole = |number: &serde_json::Number| {
        number
            .as_i64()
            .map(i128::from)
            .or_else(|| number.as_u64().map(i128::from))
    };
    match (whole(a), whole(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        _ => a
            .as_f64()
            .unwrap_or(0.0)
            .total_cmp(&b.as_f64().unwrap_or(0.0)),
    }
}

/// A value in a message: its JSON, cut short.
fn shown(value: &Value) -> String {
    const MOST: usize = 64;
    match value {
        Value::Object(_) => "an object".to_owned(),
        Value::Array(_) => "an array".to_owned(),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {
            let text = value.to_string();
            if text.chars().count() <= MOST {
                text
            } else {
                format!("{}...", text.chars().take(MOST).collect::<String>())
            }
        }
    }
}

/// `path.name`, or `name` at the top.
pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// The candidate that a person most likely meant: at most a third of its letters wrong; of equals
/// the first.
pub(crate) fn nearest<'a>(
    text: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    const LONGEST: usize = 128;
    if text.len() > LONGEST {
        return None;
    }
    let lower = text.to_ascii_lowercase();
    candidates
        .map(|name| {
            (
                strsim::osa_distance(&lower, &name.to_ascii_lowercase()),
                name,
            )
        })
        .filter(|(distance, name)| *distance <= name.len().max(3) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn findings(value: &Value) -> Vec<String> {
        let schema = structural(&crate::kind::tests::widget().schema).unwrap();
        validate(&schema, value, "")
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn every_kind_of_misfit_is_found_with_its_path() {
        assert_eq!(findings(&json!({"spec": {"size": 3}})), [""; 0]);
        assert_eq!(findings(&json!({})), ["spec: Required value"]);
        assert_eq!(
            findings(&json!({"spec": {}})),
            ["spec.size: Required value"]
        );
        assert_eq!(
            findings(&json!({"spec": {"size": "3", "parts": [{"name": 1}], "tags": {"a": 2}}})),
            [
                "spec.size: must be of type integer, is \"3\"",
                "spec.parts[0].name: must be of type string, is 1",
                "spec.tags.a: must be of type string, is 2",
            ]
        );
        assert_eq!(
            findings(&json!({"spec": {"size": 0}})),
            ["spec.size: must be at least 1, is 0"]
        );
        assert_eq!(
            findings(&json!({"spec": {"size": 1, "color": "rde"}})),
            [
                "spec.color: Unsupported value: \"rde\": supported values: \"red\", \"blue\" \
                 (did you mean \"red\"?)"
            ]
        );
    }

    #[test]
    fn references_are_put_in_place() {
        let schema = json!({
            "$defs": {"A": {"type": ["integer", "null"]}},
            "properties": {"a": {"$ref": "#/$defs/A", "description": "words"}},
        });
        assert_eq!(
            structural(&schema).unwrap(),
            json!({"properties": {"a": {
                "type": "integer", "nullable": true, "description": "words",
            }}})
        );
        let loops = json!({
            "$defs": {"A": {"items": {"$ref": "#/$defs/A"}}},
            "properties": {"a": {"$ref": "#/$defs/A"}},
        });
        assert!(structural(&loops).is_err());
        assert!(structural(&json!({"$ref": "#/$defs/B"})).is_err());
    }

    #[test]
    fn alternatives_and_bounds() {
        let one = json!({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]});
        assert!(validate(&one, &json!({"a": 1}), "").is_empty());
        assert_eq!(validate(&one, &json!({"a": 1, "b": 1}), "").len(), 1);
        assert_eq!(validate(&one, &json!({}), "").len(), 1);
        let strict = json!({"exclusiveMinimum": 0, "maximum": 5, "exclusiveMaximum": true});
        let messages = |value: Value| -> Vec<String> {
            validate(&strict, &value, "x")
                .into_iter()
                .map(|found| found.message)
                .collect()
        };
        assert_eq!(messages(json!(0)), ["must be more than 0, is 0"]);
        assert_eq!(messages(json!(5)), ["must be less than 5, is 5"]);
        assert!(messages(json!(4)).is_empty());
        let either = json!({"x-kubernetes-int-or-string": true, "type": "string"});
        assert!(validate(&either, &json!(4), "").is_empty());
        assert_eq!(validate(&either, &json!(true), "").len(), 1);
    }
}
