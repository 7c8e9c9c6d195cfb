//! The objects that a federation begins with.
//!
//! Owns the documents of its regions and clusters, and their way into a hub. Never knows tenants.

use meridian_api::kinds::member_cluster::{Backend, MemberClusterSpec};
use meridian_api::kinds::region::RegionSpec;
use meridian_api::meta::{GROUP, Spec, VERSION};
use meridian_apiserver::{FieldValidation, Request, Resources, StatusReason, WriteOptions};
use serde_json::{Value, json};

use super::{FleetError, FleetRegion};

/// Regions, then their clusters.
pub(super) fn of_regions(regions: &[FleetRegion]) -> Vec<Value> {
    let places = regions.iter().map(|region| {
        let spec = RegionSpec {
            time_zone: region.time_zone.clone(),
            ..RegionSpec::default()
        };
        document(&region.name, &spec)
    });
    let clusters = regions.iter().flat_map(|region| {
        region.clusters.iter().map(|cluster| {
            let spec = MemberClusterSpec {
                region: region.name.clone(),
                backend: Backend::Simulated,
                ..MemberClusterSpec::default()
            };
            document(&cluster.name, &spec)
        })
    });
    places.chain(clusters).collect()
}

fn document<S: Spec + serde::Serialize>(name: &str, spec: &S) -> Value {
    object(S::KIND, name, json!(spec))
}

/// The document of an object without a namespace.
#[must_use]
pub fn object(kind: &str, name: &str, spec: impl Into<Value>) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": kind,
        "metadata": {"name": name},
        "spec": spec.into(),
    })
}

/// Makes a cluster-scoped object the way every user does; a store that outlived an earlier
/// federation has it already.
pub(super) async fn make(resources: &Resources, object: Value) -> Result<(), FleetError> {
    let text = |path: &str| {
        let text = object.pointer(path).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let (kind, name) = (text("/kind"), text("/metadata/name"));
    let refused = |message: String| FleetError::Refused {
        kind: kind.clone(),
        name: name.clone(),
        message,
    };
    let known = resources.registry().kind(&kind).cloned();
    let known = known.ok_or_else(|| refused("there is no such kind".to_owned()))?;
    let options = WriteOptions {
        field_validation: FieldValidation::Strict,
        ..WriteOptions::default()
    };
    let request = Request::default();
    let made = resources.create(&request, &known, None, object.clone(), &options);
    match made.await {
        Ok(_) => Ok(()),
        Err(status) if status.reason == StatusReason::AlreadyExists => Ok(()),
        Err(status) => Err(refused(status.message)),
    }
}
