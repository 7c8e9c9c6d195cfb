//! Validation: from a value to a typed object, and the checks that kinds share.
//!
//! Owns `Findings`, which collects everything that is wrong with one object, and the rules for
//! names, zones and spans. What a kind demands is beside its type; trees are in `tree`.

use serde::Deserialize as _;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::errors::{FieldError, FieldReason};
use crate::fields::{MAX_FINDINGS, join, nearest};
use crate::meta::{API_VERSION, Object, ObjectMeta, Spec};
use crate::quantity::{GpuQuantity, Money, Span};
use crate::units::Millis;

/// Longest name of an object: a DNS subdomain's.
pub const MAX_NAME_CHARS: usize = 253;
/// Longest name that becomes a label or part of a host name: a DNS label's.
pub const MAX_LABEL_CHARS: usize = 63;
/// Longest free text that a spec carries for people: fits one line of a report.
pub const MAX_TEXT_CHARS: usize = 256;
/// Most entries of one list of names in a spec: more than the largest fleet has clusters.
pub const MAX_LIST: usize = 1000;
/// Longest span that a spec may name: a job of more than a year is a service.
pub const MAX_SPAN: Millis = Millis(366 * 24 * 3_600_000);
/// Most GPUs of one host or pod. The largest host with one operating system has 16; four times
/// that is left for those to come.
pub const MAX_GPUS_PER_HOST: u64 = 64;

/// What a kind checks beyond its types.
pub trait Checked: Spec + DeserializeOwned {
    /// Everything wrong with the spec of an object.
    fn check(&self, found: &mut Findings);

    /// Everything that an update may not change.
    fn check_update(&self, new: &Self, found: &mut Findings);

    /// True when names become labels and host names, so must be DNS labels.
    const SHORT_NAMES: bool;
}

/// Everything wrong with a complete object.
#[must_use]
pub fn validate<S>(value: &Value) -> Vec<FieldError>
where
    S: Checked,
    S::Status: DeserializeOwned,
{
    let object: Object<S, S::Status> = match from_value(value) {
        Ok(object) => object,
        Err(error) => return vec![error],
    };
    let mut found = Findings::default();
    check_envelope(&object, S::SHORT_NAMES, &mut found);
    object.spec.check(&mut found);
    found.list
}

/// Everything wrong with a change. An object that cannot be read is `validate`'s matter.
#[must_use]
pub fn validate_update<S>(old: &Value, new: &Value) -> Vec<FieldError>
where
    S: Checked,
    S::Status: DeserializeOwned,
{
    let mut found = Findings::default();
    let (old, new) = (
        from_value::<S, S::Status>(old),
        from_value::<S, S::Status>(new),
    );
    if let (Ok(old), Ok(new)) = (old, new) {
        old.spec.check_update(&new.spec, &mut found);
    }
    found.list
}

/// Reads a typed object. Fields that the type does not have are ignored, nulls count as absent.
///
/// # Errors
/// The first field that has the wrong type, with its path.
pub fn from_value<S, T>(value: &Value) -> Result<Object<S, T>, FieldError>
where
    S: DeserializeOwned,
    T: DeserializeOwned,
{
    // What is right is read at once; only what is not is read again, to say where.
    if !has_nulls(value)
        && let Ok(object) = Object::deserialize(value)
    {
        return Ok(object);
    }
    let mut value = value.clone();
    drop_nulls(&mut value);
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let path = if path == "." { String::new() } else { path };
        type_error(path, &error.into_inner().to_string())
    })
}

/// True when [`drop_nulls`] might have something to do.
fn has_nulls(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.values().any(has_nulls),
        Value::Array(items) => items.iter().any(has_nulls),
        Value::Null => true,
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Removes nulls, as Kubernetes does; what is inside a pod template stays as it is.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, inner| !inner.is_null());
            let kept = |(name, _): &(&String, &mut Value)| *name != "template";
            fields
                .iter_mut()
                .filter(kept)
                .for_each(|(_, inner)| drop_nulls(inner));
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Turns the words of serde into ours.
fn type_error(path: String, words: &str) -> FieldError {
    let ticked: Vec<&str> = words.split('`').skip(1).step_by(2).collect();
    match ticked.as_slice() {
        [name] if words.starts_with("missing field") => {
            FieldError::new(join(&path, name), FieldReason::Required, "must be given")
        }
        [given, known @ ..] if words.starts_with("unknown variant") && !known.is_empty() => {
            let message = format!("{given:?} is not one of {}", known.join(", "));
            let meant = nearest(given, known.iter().copied()).map(str::to_owned);
            FieldError::new(path, FieldReason::NotSupported, message).suggest(meant)
        }
        _ if words.starts_with("invalid type") || words.starts_with("invalid value") => {
            FieldError::new(path, FieldReason::TypeInvalid, words)
        }
        _ => FieldError::new(path, FieldReason::Invalid, words),
    }
}

fn check_envelope<S: Spec, T>(object: &Object<S, T>, short: bool, found: &mut Findings) {
    if object.api_version != API_VERSION {
        let message = format!("is {:?}, must be {API_VERSION:?}", object.api_version);
        let meant = Some(API_VERSION.to_owned());
        found
            .push(FieldError::new("apiVersion", FieldReason::NotSupported, message).suggest(meant));
    }
    if object.kind != S::KIND {
        found.invalid(
            "kind",
            format!("is {:?}, must be {:?}", object.kind, S::KIND),
        );
    }
    check_metadata(&object.metadata, S::NAMESPACED, short, found);
}

fn check_metadata(meta: &ObjectMeta, namespaced: bool, short: bool, found: &mut Findings) {
    if meta.name.is_empty() && meta.generate_name.is_empty() {
        found.add("metadata.name", FieldReason::Required, "must be given");
    } else if meta.name.is_empty() {
        found.name(
            "metadata.generateName",
            meta.generate_name.trim_end_matches(['-', '.']),
        );
    } else if short {
        found.label("metadata.name", &meta.name);
    } else {
        found.name("metadata.name", &meta.name);
    }
    match &meta.namespace {
        Some(namespace) if namespaced => found.label("metadata.namespace", namespace),
        Some(namespace) if !namespace.is_empty() => {
            let message = "this kind is in no namespace: leave it out";
            found.add("metadata.namespace", FieldReason::Forbidden, message);
        }
        Some(_) | None => {}
    }
}

/// Collects everything that is wrong with one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// In the order in which it was found.
    pub list: Vec<FieldError>,
}

impl Findings {
    /// Notes an error, up to [`MAX_FINDINGS`].
    pub fn push(&mut self, error: FieldError) {
        if self.list.len() < MAX_FINDINGS {
            self.list.push(error);
        }
    }

    /// Notes an error of this kind.
    pub fn add(&mut self, path: &str, reason: FieldReason, message: impl Into<String>) {
        self.push(FieldError::new(path, reason, message));
    }

    /// Notes a wrong value.
    pub fn invalid(&mut self, path: &str, message: impl Into<String>) {
        self.add(path, FieldReason::Invalid, message);
    }

    /// Notes a gang that can never start.
    pub fn impossible(&mut self, path: &str, message: impl Into<String>) {
        self.add(path, FieldReason::Impossible, message);
    }

    /// Notes something right that this release does not do.
    pub fn unsupported(&mut self, path: &str, message: impl Into<String>) {
        self.add(path, FieldReason::Unsupported, message);
    }

    /// Notes a name that is not a DNS label.
    pub fn label(&mut self, path: &str, name: &str) {
        if name.len() > MAX_LABEL_CHARS {
            let message = format!(
                "has {} characters, at most {MAX_LABEL_CHARS} fit",
                name.len()
            );
            self.add(path, FieldReason::TooMany, message);
        } else if !is_label(name) {
            let message = format!(
                "{name:?} is not a name: use a-z, 0-9 and '-', with a letter or digit at both ends"
            );
            self.invalid(path, message);
        }
    }

    /// Notes a name that is not a DNS subdomain.
    pub fn name(&mut self, path: &str, name: &str) {
        if name.len() > MAX_NAME_CHARS {
            let message = format!(
                "has {} characters, at most {MAX_NAME_CHARS} fit",
                name.len()
            );
            self.add(path, FieldReason::TooMany, message);
        } else if !name.split('.').all(is_label) {
            let message = format!(
                "{name:?} is not a name: use a-z, 0-9, '-' and '.', with a letter or digit at both \
                 ends"
            );
            self.invalid(path, message);
        }
    }

    /// Notes names that are wrong, too many or there twice.
    pub fn names(&mut self, path: &str, names: &[String]) {
        self.too_many(path, names.len(), MAX_LIST);
        for (index, name) in names.iter().enumerate() {
            let path = format!("{path}[{index}]");
            self.name(&path, name);
            if names[..index].contains(name) {
                self.add(
                    &path,
                    FieldReason::Duplicate,
                    format!("{name:?} is there twice"),
                );
            }
        }
    }

    /// Notes a list that is too long.
    pub fn too_many(&mut self, path: &str, count: usize, most: usize) {
        if count > most {
            let message = format!("has {count} entries, at most {most} fit");
            self.add(path, FieldReason::TooMany, message);
        }
    }

    /// Notes free text that is too long or has control characters.
    pub fn text(&mut self, path: &str, text: &str) {
        let count = text.chars().count();
        if count > MAX_TEXT_CHARS {
            let message = format!("has {count} characters, at most {MAX_TEXT_CHARS} fit");
            self.add(path, FieldReason::TooMany, message);
        } else if text.chars().any(char::is_control) {
            self.invalid(path, "must be one line without control characters");
        }
    }

    /// Notes a zone that the IANA time zone database does not have.
    pub fn zone(&mut self, path: &str, zone: &str) {
        if jiff::tz::db().get(zone).is_err() {
            let known: Vec<String> = jiff::tz::db().available().map(|n| n.to_string()).collect();
            let meant = nearest(zone, known.iter().map(String::as_str)).map(str::to_owned);
            let short: String = zone.chars().take(MAX_LABEL_CHARS).collect();
            let message =
                format!("{short:?} is no IANA time zone: use one such as \"Europe/Dublin\"");
            self.push(FieldError::new(path, FieldReason::NotSupported, message).suggest(meant));
        }
    }

    /// Notes a span outside `least..=most`.
    pub fn span(&mut self, path: &str, span: Option<Span>, least: Millis, most: Millis) {
        if let Some(span) = span.filter(|span| span.0 < least || span.0 > most) {
            let (least, most) = (Span(least), Span(most));
            self.invalid(path, format!("is {span}, must be from {least} to {most}"));
        }
    }

    /// Notes an amount of GPUs that is zero.
    pub fn some_gpus(&mut self, path: &str, gpus: Option<GpuQuantity>) {
        if gpus.is_some_and(|gpus| gpus.0.0 == 0) {
            self.invalid(
                path,
                "is 0: give at least one GPU, or leave it out for no limit",
            );
        }
    }

    /// Notes a code that is not of three capital letters.
    pub fn currency(&mut self, path: &str, code: &str) {
        let letters = code.as_bytes();
        if letters.len() != 3 || !letters.iter().all(u8::is_ascii_uppercase) {
            let short: String = code.chars().take(MAX_LABEL_CHARS).collect();
            self.invalid(path, format!("{short:?} is no ISO 4217 code such as EUR"));
        }
    }

    /// Notes a price below zero.
    pub fn price(&mut self, path: &str, price: Money) {
        if price.0.0 < 0 {
            self.invalid(path, format!("is {price}, must be 0 or more"));
        }
    }

    /// Notes a field that an update may not change.
    pub fn unchanged<T: PartialEq>(&mut self, path: &str, old: &T, new: &T, instead: &str) {
        if old != new {
            let message = format!("may not change once the object exists: {instead}");
            self.add(path, FieldReason::Immutable, message);
        }
    }
}

fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty()
        && text.len() <= MAX_LABEL_CHARS
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}
