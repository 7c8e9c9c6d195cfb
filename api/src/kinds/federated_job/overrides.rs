//! Overrides: what of a job's pods differs by cluster or region.
//!
//! Owns these fields, their checks, and how they are written over a pod template. What differs by
//! flavor is the flavor's (see `placement`).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::placement::check_env;
use crate::errors::FieldReason;
use crate::validate::Findings;

/// Most overrides of one job: each makes one more form of every role's template, on every flavor.
pub const MAX_OVERRIDES: usize = 16;

/// What differs in some clusters. Each list that is not empty must hold the cluster, and of several
/// overrides that hold it the first counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlaceOverride {
    /// Regions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<String>,
    /// Clusters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<String>,
    /// Registry that every image comes from there, in place of the one it names:
    /// `eu.mirror.example`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_registry: Option<String>,
    /// Environment of every container there, over what the template says.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Storage class of every ephemeral volume there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class: Option<String>,
}

impl PlaceOverride {
    /// True when it holds the cluster.
    #[must_use]
    pub fn holds(&self, cluster: &str, region: &str) -> bool {
        let has =
            |list: &[String], name: &str| list.is_empty() || list.iter().any(|known| known == name);
        has(&self.clusters, cluster) && has(&self.regions, region)
    }

    /// Writes it over a pod template.
    pub(super) fn apply(&self, template: &mut Value) {
        for list in ["/spec/initContainers", "/spec/containers"] {
            let containers = template.pointer_mut(list).and_then(Value::as_array_mut);
            for container in containers.into_iter().flatten() {
                let image = container.get("image").and_then(Value::as_str);
                if let (Some(registry), Some(image)) = (&self.image_registry, image) {
                    container["image"] = Value::from(in_registry(registry, image));
                }
                set_env(container, &self.env);
            }
        }
        let volumes = template
            .pointer_mut("/spec/volumes")
            .and_then(Value::as_array_mut);
        for volume in volumes.into_iter().flatten() {
            let claim = volume.pointer_mut("/ephemeral/volumeClaimTemplate/spec");
            if let (Some(class), Some(Value::Object(claim))) = (&self.storage_class, claim) {
                claim.insert("storageClassName".to_owned(), json!(class));
            }
        }
    }

    fn check(&self, path: &str, found: &mut Findings) {
        if self.regions.is_empty() && self.clusters.is_empty() {
            let message = "names no cluster: give regions or clusters, or change the template";
            found.add(path, FieldReason::Required, message);
        }
        found.names(&format!("{path}.regions"), &self.regions);
        found.names(&format!("{path}.clusters"), &self.clusters);
        if self.image_registry.is_none() && self.env.is_empty() && self.storage_class.is_none() {
            let message = "changes nothing: give imageRegistry, env or storageClass";
            found.add(path, FieldReason::Required, message);
        }
        if let Some(registry) = &self.image_registry {
            let fits = |c: char| c.is_ascii_alphanumeric() || ".-_:/".contains(c);
            if registry.is_empty() || registry.len() > 255 || !registry.chars().all(fits) {
                let short: String = registry.chars().take(64).collect();
                let message =
                    format!("{short:?} is no registry such as registry.example:5000/team");
                found.invalid(&format!("{path}.imageRegistry"), message);
            }
        }
        check_env(&format!("{path}.env"), &self.env, found);
        if let Some(class) = &self.storage_class {
            found.name(&format!("{path}.storageClass"), class);
        }
    }
}

/// Checks all overrides of a job.
pub(super) fn check_overrides(overrides: &[PlaceOverride], found: &mut Findings) {
    let path = "spec.overrides";
    found.too_many(path, overrides.len(), MAX_OVERRIDES);
    for (index, place) in overrides.iter().enumerate() {
        place.check(&format!("{path}[{index}]"), found);
    }
}

/// The image as the registry has it: the part before the first slash is another registry's name
/// when it looks like a host (the rule of container runtimes).
fn in_registry(registry: &str, image: &str) -> String {
    let registry = registry.trim_end_matches('/');
    let path = match image.split_once('/') {
        Some((host, path)) if host == "localhost" || host.contains(['.', ':']) => path,
        Some(_) | None => image,
    };
    format!("{registry}/{path}")
}

/// Writes variables over a container's. Those that are named replace those of the same name,
/// whatever they were taken from.
pub(super) fn set_env(container: &mut Value, variables: &BTreeMap<String, String>) {
    let Some(container) = container.as_object_mut().filter(|_| !variables.is_empty()) else {
        return;
    };
    let env = container.entry("env").or_insert_with(|| json!([]));
    if let Some(list) = env.as_array_mut() {
        let named = |entry: &Value| entry.get("name").and_then(Value::as_str).map(str::to_owned);
        list.retain(|entry| named(entry).is_none_or(|name| !variables.contains_key(&name)));
        let ours = variables.iter();
        list.extend(ours.map(|(name, value)| json!({"name": name, "value": value})));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_come_from_the_registry_that_is_named() {
        let moved = |image| in_registry("eu.mirror.example:5000/team/", image);
        assert_eq!(
            moved("registry.example/a/train:1.4"),
            "eu.mirror.example:5000/team/a/train:1.4"
        );
        assert_eq!(moved("train"), "eu.mirror.example:5000/team/train");
        assert_eq!(
            moved("library/train@sha256:1"),
            "eu.mirror.example:5000/team/library/train@sha256:1"
        );
        assert_eq!(
            moved("localhost/train"),
            "eu.mirror.example:5000/team/train"
        );
    }

    #[test]
    fn every_container_and_ephemeral_volume_is_written_over() {
        let mut template = json!({"spec": {
            "initContainers": [{"name": "init", "image": "r.example/init"}],
            "containers": [
                {"name": "main", "image": "r.example/main", "env": [{"name": "A", "value": "1"}]},
                {"name": "side"},
            ],
            "volumes": [
                {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
                {"name": "config", "configMap": {"name": "c"}},
            ],
        }});
        let place = PlaceOverride {
            image_registry: Some("eu.example".into()),
            env: [("A".to_owned(), "2".to_owned())].into(),
            storage_class: Some("fast".into()),
            ..PlaceOverride::default()
        };
        place.apply(&mut template);
        let set = json!([{"name": "A", "value": "2"}]);
        assert_eq!(
            template,
            json!({"spec": {
                "initContainers": [{"name": "init", "image": "eu.example/init", "env": set}],
                "containers": [
                    {"name": "main", "image": "eu.example/main", "env": set},
                    {"name": "side", "env": set},
                ],
                "volumes": [
                    {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {
                        "spec": {"storageClassName": "fast"},
                    }}},
                    {"name": "config", "configMap": {"name": "c"}},
                ],
            }})
        );
    }

    #[test]
    fn each_list_that_is_given_must_hold_the_cluster() {
        let place = PlaceOverride {
            regions: vec!["eu".into()],
            clusters: vec!["a".into(), "b".into()],
            ..PlaceOverride::default()
        };
        assert!(place.holds("a", "eu"));
        assert!(!place.holds("a", "us") && !place.holds("c", "eu"));
    }
}
