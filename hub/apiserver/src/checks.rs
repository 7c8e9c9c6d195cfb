//! Checks of a write, before anyone is asked whether it is wise.
//!
//! Owns the order of judgement: fields known, identity right, preconditions met, then everything
//! wrong with the object at once. Pure. Never reads the store.

use serde_json::Value;

use crate::kind::{FieldError, FieldReason, Kind, Scope};
use crate::resources::{DeleteOptions, FieldValidation, WriteOptions};
use crate::status::{ApiStatus, StatusReason};
use crate::{fields, metadata, schema};

/// Takes out what the schema does not know; says so as the options want it.
pub(crate) fn check_fields(
    kind: &Kind,
    object: &mut Value,
    options: &WriteOptions,
) -> Result<Vec<String>, ApiStatus> {
    if !object.is_object() {
        let message = format!(
            "a {} must be an object with apiVersion, kind and spec",
            kind.kind
        );
        return Err(ApiStatus::bad_request(message));
    }
    let unknown = fields::prune(&kind.schema, object);
    let duplicates = options
        .duplicates
        .iter()
        .map(|path| format!("duplicate field \"{path}\""));
    let messages: Vec<String> = duplicates
        .chain(unknown.iter().map(fields::UnknownField::message))
        .collect();
    match options.field_validation {
        FieldValidation::Ignore => Ok(Vec::new()),
        FieldValidation::Warn => Ok(messages),
        FieldValidation::Strict if messages.is_empty() => Ok(messages),
        FieldValidation::Strict => {
            let list = messages.join(", ");
            let (kind_name, version) = (&kind.kind, &kind.version);
            let mut status = ApiStatus::bad_request(format!(
                "{kind_name} in version \"{version}\" cannot be handled as a {kind_name}: strict \
                 decoding error: {list}"
            ));
            status.causes = unknown
                .iter()
                .map(|field| {
                    FieldError::new(field.path.as_str(), FieldReason::Unknown, field.message())
                })
                .collect();
            Err(status)
        }
    }
}

/// The body must be about what the URL names.
pub(crate) fn check_identity(
    kind: &Kind,
    namespace: Option<&str>,
    name: Option<&str>,
    object: &Value,
) -> Result<(), ApiStatus> {
    let given = |field: &str| {
        object
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or("")
            .to_owned()
    };
    let meta = |field: &str| metadata::text(object, field).to_owned();
    let namespace = namespace.filter(|_| kind.scope == Scope::Namespaced);
    for (what, given, expected) in [
        ("apiVersion", given("apiVersion"), Some(kind.api_version())),
        ("kind", given("kind"), Some(kind.kind.clone())),
        ("metadata.name", meta("name"), name.map(str::to_owned)),
        (
            "metadata.namespace",
            meta("namespace"),
            namespace.map(str::to_owned),
        ),
    ] {
        let Some(expected) = expected else { continue };
        if !given.is_empty() && given != expected {
            let given: String = given.chars().take(metadata::MAX_NAME).collect();
            return Err(ApiStatus::bad_request(format!(
                "the {what} of the object ({given}) does not match the {what} of the request \
                 ({expected})"
            )));
        }
    }
    Ok(())
}

/// A resourceVersion or UID in the body must be the stored one.
pub(crate) fn check_preconditions(
    kind: &Kind,
    name: &str,
    before: &Value,
    incoming: &Value,
) -> Result<(), ApiStatus> {
    let version = metadata::text(incoming, "resourceVersion");
    if !version.is_empty() && version.parse::<u64>().is_err() {
        let message = format!("metadata.resourceVersion {version:?} is not one of ours");
        return Err(ApiStatus::bad_request(message));
    }
    if !["", "0", metadata::text(before, "resourceVersion")].contains(&version) {
        return Err(ApiStatus::changed(kind, name));
    }
    let (uid, stored) = (
        metadata::text(incoming, "uid"),
        metadata::text(before, "uid"),
    );
    if !uid.is_empty() && uid != stored {
        let why = format!("the UID in the object is {uid:.64}, but the stored one is {stored}");
        return Err(ApiStatus::conflict(kind, name, &why));
    }
    Ok(())
}

/// The same for a delete.
pub(crate) fn check_delete_preconditions(
    kind: &Kind,
    name: &str,
    before: &Value,
    options: &DeleteOptions,
) -> Result<(), ApiStatus> {
    let wanted = &options.preconditions;
    for (what, wanted, field) in [
        ("UID", &wanted.uid, "uid"),
        (
            "resourceVersion",
            &wanted.resource_version,
            "resourceVersion",
        ),
    ] {
        let stored = metadata::text(before, field);
        if let Some(wanted) = wanted.as_ref().filter(|wanted| *wanted != stored) {
            let why = format!("the {what} in the precondition is {wanted:.64}, but it is {stored}");
            return Err(ApiStatus::conflict(kind, name, &why));
        }
    }
    Ok(())
}

/// Everything wrong with an object's metadata and spec.
pub(crate) fn check_object(kind: &Kind, object: &Value) -> Vec<FieldError> {
    let mut found = metadata::validate(kind, object);
    // Metadata is judged above, by rules of its own; a status when it is written.
    let apart: &[&str] = if kind.has_status {
        &["metadata", "status"]
    } else {
        &["metadata"]
    };
    found.extend(schema::validate_but(&kind.schema, object, apart));
    if found.is_empty() {
        found = kind.hooks.validate(object);
    }
    found
}

/// Everything wrong with an object's status.
pub(crate) fn check_status(kind: &Kind, object: &Value) -> Vec<FieldError> {
    let schema = kind
        .schema
        .get("properties")
        .and_then(|known| known.get("status"));
    match (schema, object.get("status")) {
        (Some(schema), Some(status)) => schema::validate(schema, status, "status"),
        _ => Vec::new(),
    }
}

/// Nothing may begin to hold an object that is on its way out.
pub(crate) fn added_finalizers(before: &Value, after: &Value) -> Option<FieldError> {
    if !metadata::is_deleting(before) {
        return None;
    }
    let old = metadata::finalizers(before);
    let added = metadata::finalizers(after)
        .into_iter()
        .find(|name| !old.contains(name))?;
    let message = format!("no finalizer can be added while the object is being deleted: {added}");
    Some(FieldError::new(
        "metadata.finalizers",
        FieldReason::Forbidden,
        message,
    ))
}

/// A namespaced object needs its namespace.
pub(crate) fn check_namespace(kind: &Kind, namespace: Option<&str>) -> Result<(), ApiStatus> {
    if kind.scope == Scope::Namespaced && namespace.is_none() {
        let message = format!("{} live in a namespace: name it in the URL", kind.plural);
        return Err(ApiStatus::new(StatusReason::MethodNotAllowed, message));
    }
    Ok(())
}
