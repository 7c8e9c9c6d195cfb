//! Scale: how many replicas an object asks for, in the words that every kind shares.
//!
//! Owns the form (`autoscaling/v1` `Scale`) and the way from it to the object's own field, so that
//! `kubectl scale` and autoscalers work without knowing the kind. Never decides how many there
//! shall be.

use serde_json::{Value, json};

use crate::admission::Request;
use crate::kind::{Kind, ScalePaths};
use crate::metadata;
use crate::resources::{Resources, WriteOptions, Written};
use crate::status::ApiStatus;

/// Group and version of the form.
pub(crate) const GROUP: &str = "autoscaling";
/// Its version.
pub(crate) const VERSION: &str = "v1";
/// Its kind.
pub(crate) const KIND: &str = "Scale";

/// The scale of an object.
pub(crate) fn of(paths: ScalePaths, object: &Value) -> Value {
    let number = |path: &str| object.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    let mut meta = json!({});
    let known = [
        "name",
        "namespace",
        "uid",
        "resourceVersion",
        "creationTimestamp",
    ];
    for field in known {
        if let Some(value) = object.get("metadata").and_then(|meta| meta.get(field)) {
            meta[field] = value.clone();
        }
    }
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": KIND,
        "metadata": meta,
        "spec": {"replicas": number(paths.spec)},
        "status": {"replicas": number(paths.status)},
    })
}

/// `object` with as many replicas as `scale` asks for, under its resourceVersion if it has one.
fn applied(paths: ScalePaths, object: &Value, scale: &Value) -> Result<Value, ApiStatus> {
    for (field, known) in [("kind", KIND), ("apiVersion", "autoscaling/v1")] {
        let given = scale.get(field).and_then(Value::as_str).unwrap_or(known);
        if given != known {
            let message = format!("{field} is {given:?}: send a {KIND} of {GROUP}/{VERSION}");
            return Err(ApiStatus::bad_request(message));
        }
    }
    let replicas = scale.pointer("/spec/replicas");
    let Some(replicas) = replicas.and_then(Value::as_u64) else {
        let message = "spec.replicas must be a whole number from 0";
        return Err(ApiStatus::bad_request(message));
    };
    let mut object = object.clone();
    let Some(field) = object.pointer_mut(paths.spec) else {
        let message = format!("the object has no {}", paths.spec);
        return Err(ApiStatus::bad_request(message));
    };
    *field = json!(replicas);
    let version = scale.pointer("/metadata/resourceVersion");
    if let (Some(version), Some(meta)) = (version, metadata::of_mut(&mut object)) {
        meta.insert("resourceVersion".to_owned(), version.clone());
    }
    Ok(object)
}

impl Resources {
    /// Changes how many replicas an object asks for. `wanted` makes the scale that shall be from
    /// the object that is.
    pub(crate) async fn rescale(
        &self,
        request: &Request,
        kind: &Kind,
        paths: ScalePaths,
        (namespace, name): (Option<&str>, &str),
        wanted: &(dyn Fn(&Value) -> Result<Value, ApiStatus> + Sync),
        options: &WriteOptions,
    ) -> Result<Written, ApiStatus> {
        let incoming = |before: &Value| applied(paths, before, &wanted(before)?);
        self.change(request, kind, (namespace, name), &incoming, options)
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATHS: ScalePaths = ScalePaths {
        spec: "/spec/replicas",
        status: "/status/ready",
    };

    #[test]
    fn a_scale_is_a_view_of_its_object() {
        let object = json!({
            "metadata": {"name": "chat", "namespace": "nlp", "resourceVersion": "7", "labels": {}},
            "spec": {"replicas": 3, "other": true}, "status": {"ready": 2},
        });
        let scale = of(PATHS, &object);
        assert_eq!(scale["spec"]["replicas"], 3);
        assert_eq!(scale["status"]["replicas"], 2);
        let known = json!({"name": "chat", "namespace": "nlp", "resourceVersion": "7"});
        assert_eq!(scale["metadata"], known);

        let wanted = json!({"spec": {"replicas": 5}});
        let after = applied(PATHS, &object, &wanted).expect("a scale");
        assert_eq!(after["spec"], json!({"replicas": 5, "other": true}));
        let stale = json!({"metadata": {"resourceVersion": "6"}, "spec": {"replicas": 5}});
        let after = applied(PATHS, &object, &stale).expect("a scale");
        assert_eq!(
            after["metadata"]["resourceVersion"], "6",
            "the write compares it"
        );
    }

    #[test]
    fn nonsense_is_refused() {
        let object = json!({"metadata": {}, "spec": {"replicas": 3}});
        for nonsense in [
            json!({}),
            json!({"spec": {"replicas": -1}}),
            json!({"spec": {"replicas": "many"}}),
            json!({"kind": "Widget", "spec": {"replicas": 1}}),
            json!({"apiVersion": "apps/v1", "spec": {"replicas": 1}}),
        ] {
            let refused = applied(PATHS, &object, &nonsense).expect_err("nonsense");
            assert_eq!(refused.code(), 400, "{nonsense}");
        }
    }
}
