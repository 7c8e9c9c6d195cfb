//! What a job needs around its pods: what must be there, what comes along, who made them.
//!
//! Owns these fields and their checks. Whether a cluster has what is named is the agent's to say.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::errors::FieldReason;
use crate::validate::Findings;

/// Most things of one kind that a job depends on.
pub const MAX_DEPENDENCIES: usize = 64;
/// Most ConfigMaps that a job carries.
pub const MAX_CARRIED: usize = 16;
/// Most bytes of texts that a job carries. A job is one value of the store (384 KiB) with its
/// templates beside these.
pub const MAX_CARRIED_BYTES: usize = 128 * 1024;

/// What comes with each gang of a job to its cluster, only there, and leaves with it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Carried {
    /// ConfigMaps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub config_maps: Vec<CarriedConfigMap>,
}

/// A ConfigMap that a job brings along.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CarriedConfigMap {
    /// Its name in the job's namespace.
    pub name: String,
    /// Its texts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub data: BTreeMap<String, String>,
}

/// The object in a member cluster that owns the pods of work made there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Origin {
    /// The cluster.
    pub cluster: String,
    /// UID of the object.
    pub uid: String,
    /// Its name there; its namespace is the job's.
    pub name: String,
}

/// What must be there for a job to run, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Dependencies {
    /// ConfigMaps.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub config_maps: Vec<String>,
    /// Secrets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Secrets for pulling images.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<String>,
    /// The account its pods run as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// Volumes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub persistent_volume_claims: Vec<String>,
    /// Data sets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub data_sets: Vec<String>,
}

impl Dependencies {
    /// True when nothing is named.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn check(&self, found: &mut Findings) {
        let lists = [
            ("configMaps", &self.config_maps),
            ("secrets", &self.secrets),
            ("imagePullSecrets", &self.image_pull_secrets),
            ("persistentVolumeClaims", &self.persistent_volume_claims),
            ("dataSets", &self.data_sets),
        ];
        for (name, list) in lists {
            let path = format!("spec.dependencies.{name}");
            found.too_many(&path, list.len(), MAX_DEPENDENCIES);
            found.names(&path, list);
        }
        if let Some(account) = &self.service_account {
            found.name("spec.dependencies.serviceAccount", account);
        }
    }
}

impl Carried {
    /// True when nothing comes along.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn check(&self, found: &mut Findings) {
        let path = "spec.carried.configMaps";
        found.too_many(path, self.config_maps.len(), MAX_CARRIED);
        let (mut names, mut bytes) = (BTreeSet::new(), 0_usize);
        for (index, map) in self.config_maps.iter().enumerate() {
            let path = format!("{path}[{index}]");
            found.name(&format!("{path}.name"), &map.name);
            if !names.insert(&map.name) {
                let message = format!("{:?} is there twice", map.name);
                found.add(&format!("{path}.name"), FieldReason::Duplicate, message);
            }
            for (key, text) in &map.data {
                bytes = bytes.saturating_add(key.len()).saturating_add(text.len());
                let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
                if key.is_empty() || key.len() > 253 || !key.chars().all(fits) {
                    let short: String = key.chars().take(64).collect();
                    let message = format!("key {short:?} is no file name of letters, digits, -_.");
                    found.invalid(&format!("{path}.data"), message);
                }
            }
        }
        if bytes > MAX_CARRIED_BYTES {
            let message = format!(
                "holds {bytes} bytes, at most {MAX_CARRIED_BYTES} travel with a job: put larger \
                 files where its data is"
            );
            found.add(path, FieldReason::TooMany, message);
        }
    }
}

impl Origin {
    pub(super) fn check(&self, found: &mut Findings) {
        found.label("spec.origin.cluster", &self.cluster);
        found.name("spec.origin.name", &self.name);
        if self.uid.is_empty() || self.uid.len() > 64 {
            found.invalid("spec.origin.uid", "must be a UID of 1 to 64 characters");
        }
    }
}
