//! The envelope of every object: metadata, conditions, and `Object` around spec and status.
//!
//! Owns the shape that Kubernetes clients expect. Never looks inside a spec.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::Uid;
use crate::quantity::Time;

/// API group of every kind.
pub const GROUP: &str = "meridian.dev";
/// Version of every kind.
pub const VERSION: &str = "v1alpha1";
/// Group and version as documents write them.
pub const API_VERSION: &str = "meridian.dev/v1alpha1";

/// What is the same in every object. Written by clients where it says so, else by the hub.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// Name, unique among the live objects of its kind and namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Prefix of a name that the hub makes up; used when `name` is absent.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub generate_name: String,
    /// Namespace; absent in cluster-scoped kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Identity for ever; a name that is made again gets another. Set by the hub.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub uid: Option<Uid>,
    /// Labels to select by.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Notes that nobody selects by.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// When it was made. Set by the hub.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Time>,
    /// When its deletion was asked for. Set by the hub.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<Time>,
    /// Seconds that a deletion may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_grace_period_seconds: Option<i64>,
    /// Who must agree before it vanishes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
    /// Objects that this one belongs to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::free_form_list")]
    pub owner_references: Vec<Value>,
    /// Who manages which field. Set by the hub.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::free_form_list")]
    pub managed_fields: Vec<Value>,
    /// Version of the stored object, opaque to clients. Set by the hub.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Counts changes of the spec. Set by the hub.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
}

/// Truth of a condition.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// Nobody can tell.
    #[default]
    Unknown,
}

/// One aspect of an object's state, as Kubernetes conditions are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which aspect.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why, as one word.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why, for a person.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Generation of the spec it speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When `status` last changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

/// One object: what a person wants (`spec`) and what is so (`status`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Object<S, T> {
    /// Always `meridian.dev/v1alpha1`.
    pub api_version: String,
    /// Name of the kind.
    pub kind: String,
    /// What is the same in every object.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is wanted.
    pub spec: S,
    /// What is so. Written by the hub alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<T>,
}

/// What a spec says about its kind.
pub trait Spec: Sized {
    /// Name of the kind: `FederatedJob`.
    const KIND: &'static str;
    /// What it is, in one sentence.
    const ABOUT: &'static str;
    /// Lower-case plural, as in paths: `federatedjobs`.
    const PLURAL: &'static str;
    /// Whether its objects live in a namespace.
    const NAMESPACED: bool;
    /// Its status.
    type Status;
}

impl<S: Spec> Object<S, S::Status> {
    /// An object of this kind with a name, and nothing else set.
    #[must_use]
    pub fn new(name: &str, spec: S) -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: S::KIND.to_owned(),
            metadata: ObjectMeta {
                name: name.to_owned(),
                ..ObjectMeta::default()
            },
            spec,
            status: None,
        }
    }
}
