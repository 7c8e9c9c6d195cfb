//! Kinds: everything the server knows about a type of object.
//!
//! Owns `Kind`, its columns and hooks, field errors, and the ordered registry that is built once
//! at start. Never holds an object.

use std::fmt;
use std::sync::Arc;

use indexmap::IndexMap;
use meridian_store::keys::ObjectKey;
use serde_json::{Value, json};

use crate::schema;

/// Whether objects of a kind live in a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In a namespace.
    Namespaced,
    /// In the whole fleet.
    Cluster,
}

/// One column of `kubectl get`, as `additionalPrinterColumns` of a CRD.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Column {
    /// Heading.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean` or `date` (shown as an age).
    pub ty: String,
    /// OpenAPI format, or empty.
    pub format: String,
    /// Help text.
    pub description: String,
    /// 0 is always shown, more only with `-o wide`.
    pub priority: i32,
    /// JSON path into the object: `.status.phase`,
    /// `.status.conditions[?(@.type=="Ready")].status`.
    pub path: String,
}

/// What is wrong with a field; the closed list behind `causes[].reason`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FieldReason {
    /// Must be given.
    Required,
    /// Given, and wrong.
    Invalid,
    /// Not of the type that the schema says.
    TypeInvalid,
    /// Not one of the values that exist.
    NotSupported,
    /// May not be given, or not here.
    Forbidden,
    /// Too long or too many.
    TooMany,
    /// Appears twice.
    Duplicate,
    /// Names something that is not there.
    NotFound,
    /// No such field.
    Unknown,
    /// The revision asked for is not there yet.
    ResourceVersionTooLarge,
    /// Not a field: the stable code of the refusal, for programs.
    ErrorCode,
    /// Not a field: what to do about the refusal.
    Help,
}

impl FieldReason {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooMany => "FieldValueTooMany",
            Self::Duplicate => "FieldValueDuplicate",
            Self::NotFound => "FieldValueNotFound",
            Self::Unknown => "FieldUnknown",
            Self::ResourceVersionTooLarge => "ResourceVersionTooLarge",
            Self::ErrorCode => "ErrorCode",
            Self::Help => "Help",
        }
    }
}

/// One thing that is wrong with an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// Where: `spec.roles[1].replicas`; empty for the whole object.
    pub path: String,
    /// What kind of wrong.
    pub reason: FieldReason,
    /// The words for a person: what it must be, what it is.
    pub message: String,
}

impl FieldError {
    /// An error at `path`.
    pub fn new(path: impl Into<String>, reason: FieldReason, message: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            reason,
            message: message.into(),
        }
    }

    /// As an entry of `details.causes`.
    pub(crate) fn to_cause(&self) -> Value {
        json!({"reason": self.reason.as_str(), "message": self.message, "field": self.path})
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.path, self.message)
        }
    }
}

/// What a kind adds to its schema. Pure and quick: called on every write and read.
pub trait KindHooks: Send + Sync {
    /// Everything wrong with an object that already fits the schema.
    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let _ = object;
        Vec::new()
    }

    /// Everything wrong with the change itself (fields that may not change).
    fn validate_update(&self, old: &Value, new: &Value) -> Vec<FieldError> {
        let _ = (old, new);
        Vec::new()
    }

    /// Writes down what a document may leave out, at its creation and again when an update leaves
    /// it out: so a document may be put as it was made. What is wrong is left to the checks, which
    /// follow.
    fn complete(&self, key: &ObjectKey, object: &mut Value) {
        let _ = (key, object);
    }

    /// Adds to the status at reading time what is not stored per object.
    fn decorate(&self, key: &ObjectKey, object: &mut Value) {
        let _ = (key, object);
    }
}

/// Hooks of a kind whose schema says everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHooks;

impl KindHooks for NoHooks {}

/// A type of object.
#[derive(Clone)]
pub struct Kind {
    /// `meridian.dev`.
    pub group: String,
    /// `v1alpha1`.
    pub version: String,
    /// `FederatedJob`.
    pub kind: String,
    /// `federatedjobs`; also the name under which objects are stored.
    pub plural: String,
    /// `federatedjob`.
    pub singular: String,
    /// `fj`.
    pub short_names: Vec<String>,
    /// `all`.
    pub categories: Vec<String>,
    /// Namespaced or not.
    pub scope: Scope,
    /// OpenAPI v3 schema of the whole object.
    pub schema: Arc<Value>,
    /// Columns of `kubectl get` after the name; none means the age alone.
    pub columns: Vec<Column>,
    /// What the schema cannot say.
    pub hooks: Arc<dyn KindHooks>,
    /// True when status is written apart from the spec, at `/status`.
    pub has_status: bool,
    /// Where it says how many replicas there are; `None` = it has no `/scale`.
    pub scale: Option<ScalePaths>,
}

/// Where an object says how many replicas it asks for and has, as JSON pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScalePaths {
    /// Asked for: `/spec/replicas`. Objects have the field.
    pub spec: &'static str,
    /// There are: `/status/ready`.
    pub status: &'static str,
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kind").field(&self.resource()).finish()
    }
}

impl Kind {
    /// `group/version`, as in an object's `apiVersion`.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `plural.group`, as in messages.
    #[must_use]
    pub fn resource(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// Where an object of this kind lives. The namespace of a cluster-scoped kind is dropped.
    #[must_use]
    pub fn key(&self, namespace: Option<&str>, name: &str) -> ObjectKey {
        let namespace = match self.scope {
            Scope::Namespaced => namespace.map(str::to_owned),
            Scope::Cluster => None,
        };
        ObjectKey {
            plural: self.plural.clone(),
            namespace,
            name: name.to_owned(),
        }
    }
}

/// Why a set of kinds cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// Two kinds share a plural, under which objects are stored.
    #[error("two kinds are called {0}")]
    DuplicatePlural(String),
    /// A schema that cannot be used.
    #[error("the schema of {kind} cannot be used: {why}")]
    Schema {
        /// The kind.
        kind: String,
        /// What is wrong with it.
        why: String,
    },
}

/// The kinds of a server, in the order in which discovery names them.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    kinds: IndexMap<String, Arc<Kind>>,
}

impl Registry {
    /// Checks the kinds and makes their schemas structural (references resolved).
    pub fn new(kinds: Vec<Kind>) -> Result<Self, RegistryError> {
        let mut registry = Self::default();
        for mut kind in kinds {
            let structural =
                schema::structural(&kind.schema).map_err(|why| RegistryError::Schema {
                    kind: kind.kind.clone(),
                    why,
                })?;
            kind.schema = Arc::new(structural);
            let plural = kind.plural.clone();
            if registry
                .kinds
                .insert(plural.clone(), Arc::new(kind))
                .is_some()
            {
                return Err(RegistryError::DuplicatePlural(plural));
            }
        }
        Ok(registry)
    }

    /// All kinds, in order.
    pub fn kinds(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.kinds.values()
    }

    /// By plural: `federatedjobs`.
    #[must_use]
    pub fn plural(&self, plural: &str) -> Option<&Arc<Kind>> {
        self.kinds.get(plural)
    }

    /// By kind: `FederatedJob`.
    #[must_use]
    pub fn kind(&self, kind: &str) -> Option<&Arc<Kind>> {
        self.kinds.values().find(|known| known.kind == kind)
    }

    /// Groups with their versions, both in order of first appearance.
    pub(crate) fn groups(&self) -> IndexMap<&str, Vec<&str>> {
        let mut groups: IndexMap<&str, Vec<&str>> = IndexMap::new();
        for kind in self.kinds() {
            let versions = groups.entry(&kind.group).or_default();
            if !versions.contains(&kind.version.as_str()) {
                versions.push(&kind.version);
            }
        }
        groups
    }

    /// Kinds of one group and version, in order.
    pub(crate) fn of<'a>(
        &'a self,
        group: &'a str,
        version: &'a str,
    ) -> impl Iterator<Item = &'a Arc<Kind>> {
        self.kinds()
            .filter(move |kind| kind.group == group && kind.version == version)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn widget() -> Kind {
        Kind {
            group: "test.dev".into(),
            version: "v1".into(),
            kind: "Widget".into(),
            plural: "widgets".into(),
            singular: "widget".into(),
            short_names: vec!["wd".into()],
            categories: vec!["all".into()],
            scope: Scope::Namespaced,
            schema: Arc::new(json!({
                "type": "object",
                "required": ["spec"],
                "properties": {
                    "spec": {
                        "type": "object",
                        "required": ["size"],
                        "properties": {
                            "size": {"type": "integer", "minimum": 1},
                            "color": {"type": "string", "enum": ["red", "blue"]},
                            "parts": {"type": "array", "items": {
                                "type": "object",
                                "properties": {"name": {"type": "string"}},
                            }},
                            "tags": {
                                "type": "object",
                                "additionalProperties": {"type": "string"},
                            },
                        },
                    },
                    "status": {
                        "type": "object",
                        "properties": {"phase": {"type": "string"}},
                    },
                },
            })),
            columns: Vec::new(),
            hooks: Arc::new(NoHooks),
            has_status: true,
            scale: None,
        }
    }

    #[test]
    fn a_plural_belongs_to_one_kind() {
        let twice = Registry::new(vec![widget(), widget()]);
        assert_eq!(
            twice.err(),
            Some(RegistryError::DuplicatePlural("widgets".into()))
        );
    }

    #[test]
    fn kinds_are_found_by_plural_and_by_kind() {
        let registry = Registry::new(vec![widget()]).unwrap();
        assert!(registry.plural("widgets").is_some());
        assert!(registry.kind("Widget").is_some());
        assert!(registry.plural("Widget").is_none());
        assert_eq!(registry.groups().get("test.dev"), Some(&vec!["v1"]));
    }
}
