//! Request bodies: bytes to one JSON value, within limits.
//!
//! Owns the reading of JSON (duplicate fields noticed) and YAML, and the limits on depth. Never
//! knows what the value means.

use std::fmt;

use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt as _;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::http::MAX_BODY_BYTES;
use crate::status::{ApiStatus, StatusReason};

/// Deepest nesting of a body. A pod template with affinity terms is about 20 deep; the JSON
/// parser's own guard against stack overflow is at 128.
pub(crate) const MAX_DEPTH: usize = 64;
/// Most duplicate fields that are named in one answer.
const MAX_DUPLICATES: usize = 16;

/// Bytes of a body that is too large which are read all the same and dropped: who still sends
/// would else see a broken connection instead of the answer. Beyond it that is what they see.
const MAX_DROPPED_BYTES: usize = 32 * MAX_BODY_BYTES;

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Yaml,
}

impl Format {
    /// From a `Content-Type`; JSON when there is none. An error names what can be read.
    pub(crate) fn of(content_type: Option<&str>) -> Result<Self, ApiStatus> {
        let Some(content_type) = content_type else {
            return Ok(Self::Json);
        };
        let essence = content_type.split(';').next().unwrap_or_default().trim();
        match essence.to_ascii_lowercase().as_str() {
            "" | "application/json" => Ok(Self::Json),
            "application/yaml" | "application/x-yaml" | "text/yaml" => Ok(Self::Yaml),
            other => Err(ApiStatus::new(
                StatusReason::UnsupportedMediaType,
                format!(
                    "the body of the request was in an unknown format ({other}): send \
                     application/json or application/yaml"
                ),
            )),
        }
    }
}

/// A body, read.
#[derive(Debug)]
pub(crate) struct Decoded {
    /// What it says; of duplicate fields the last.
    pub value: Value,
    /// Paths of fields that appear twice.
    pub duplicates: Vec<String>,
}

/// The body, or what is wrong with it once its sender is done.
pub(crate) async fn whole(body: Body) -> Result<Bytes, ApiStatus> {
    let mut chunks = body.into_data_stream();
    let (mut kept, mut length) = (Vec::new(), 0_usize);
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| {
            let message = format!("the body of the request ended early: {error}");
            ApiStatus::new(StatusReason::BadRequest, message)
        })?;
        length = length.saturating_add(chunk.len());
        if length <= MAX_BODY_BYTES {
            kept.extend_from_slice(&chunk);
        } else if length > MAX_DROPPED_BYTES {
            break;
        }
    }
    if length <= MAX_BODY_BYTES {
        return Ok(kept.into());
    }
    let message = format!("the body of a request may have at most {MAX_BODY_BYTES} bytes");
    Err(ApiStatus::new(StatusReason::RequestEntityTooLarge, message))
}

/// Reads a body.
pub(crate) fn decode(bytes: &[u8], format: Format) -> Result<Decoded, ApiStatus> {
    match format {
        Format::Json => decode_json(bytes),
        Format::Yaml => decode_yaml(bytes),
    }
}

fn decode_json(bytes: &[u8]) -> Result<Decoded, ApiStatus> {
    let mut notes = Notes {
        path: String::new(),
        depth: 0,
        duplicates: Vec::new(),
    };
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = AnyValue(&mut notes)
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| ApiStatus::bad_request(format!("the body is not valid JSON: {error}")))?;
    Ok(Decoded {
        value,
        duplicates: notes.duplicates,
    })
}

fn decode_yaml(bytes: &[u8]) -> Result<Decoded, ApiStatus> {
    let invalid =
        |why: String| ApiStatus::bad_request(format!("the body is not valid YAML: {why}"));
    let text = std::str::from_utf8(bytes).map_err(|error| invalid(error.to_string()))?;
    // Its own budgets stop alias bombs; a duplicate field is an error of its own.
    let value: Value = serde_saphyr::from_str(text).map_err(|error| invalid(error.to_string()))?;
    if depth(&value) > MAX_DEPTH {
        return Err(invalid(too_deep()));
    }
    Ok(Decoded {
        value,
        duplicates: Vec::new(),
    })
}

fn too_deep() -> String {
    format!("nested more than {MAX_DEPTH} levels deep")
}

/// Levels of nesting. The value has been read by a parser with a limit of its own, so that the
/// recursion is bounded.
pub(crate) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// What is noticed on the way.
struct Notes {
    path: String,
    depth: usize,
    duplicates: Vec<String>,
}

impl Notes {
    /// Runs `work` one level down, at `segment` of the path.
    fn within<T>(&mut self, segment: &str, work: impl FnOnce(&mut Self) -> T) -> T {
        let length = self.path.len();
        if !segment.starts_with('[') && !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(segment);
        let result = work(self);
        self.path.truncate(length);
        result
    }
}

struct AnyValue<'a>(&'a mut Notes);

impl<'de> DeserializeSeed<'de> for AnyValue<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AnyValue<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let notes = self.0;
        notes.deeper()?;
        let mut list = Vec::new();
        loop {
            let segment = format!("[{}]", list.len());
            let item = notes.within(&segment, |notes| items.next_element_seed(AnyValue(notes)))?;
            let Some(item) = item else { break };
            list.push(item);
        }
        notes.depth -= 1;
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let notes = self.0;
        notes.deeper()?;
        let mut map = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let value = notes.within(&name, |notes| {
                if map.contains_key(&name) && notes.duplicates.len() < MAX_DUPLICATES {
                    let path = notes.path.clone();
                    notes.duplicates.push(path);
                }
                fields.next_value_seed(AnyValue(notes))
            })?;
            map.insert(name, value);
        }
        notes.depth -= 1;
        Ok(Value::Object(map))
    }
}

impl Notes {
    fn deeper<E: serde::de::Error>(&mut self) -> Result<(), E> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            Err(E::custom(too_deep()))
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn json_body(text: &str) -> Result<Decoded, ApiStatus> {
        decode(text.as_bytes(), Format::Json)
    }

    #[test]
    fn duplicate_fields_are_noticed_with_their_path() {
        let body = json_body(r#"{"spec":{"a":1,"l":[{"b":1,"b":2}],"a":3}}"#).unwrap();
        assert_eq!(body.duplicates, ["spec.l[0].b", "spec.a"]);
        assert_eq!(body.value, json!({"spec": {"a": 3, "l": [{"b": 2}]}}));
    }

    #[test]
    fn depth_is_limited_in_both_formats() {
        let deep = |n: usize| format!("{}1{}", "[".repeat(n), "]".repeat(n));
        assert!(json_body(&deep(MAX_DEPTH)).is_ok());
        for format in [Format::Json, Format::Yaml] {
            for levels in [MAX_DEPTH + 1, 10_000] {
                let error = decode(deep(levels).as_bytes(), format).unwrap_err();
                assert_eq!(error.code(), 400);
            }
        }
    }

    #[test]
    fn what_is_no_json_is_refused_in_words() {
        for text in ["", "{", "{\"a\":1}x", "nope", "\u{0}"] {
            let error = json_body(text).unwrap_err();
            assert!(
                error.message.starts_with("the body is not valid JSON"),
                "{}",
                error.message
            );
        }
        assert!(decode(b"a: [", Format::Yaml).is_err());
        assert!(decode(&[0xff, 0xfe], Format::Yaml).is_err());
    }

    #[test]
    fn yaml_reads_as_json() {
        let body = decode(b"spec:\n  a: 1\n  b: [x, true]\n", Format::Yaml).unwrap();
        assert_eq!(body.value, json!({"spec": {"a": 1, "b": ["x", true]}}));
    }

    #[test]
    fn other_formats_are_named() {
        let error = Format::of(Some("application/vnd.kubernetes.protobuf")).unwrap_err();
        assert_eq!(error.code(), 415);
        assert_eq!(
            Format::of(Some("application/json; charset=utf-8")),
            Ok(Format::Json)
        );
        assert_eq!(Format::of(None), Ok(Format::Json));
    }
}
