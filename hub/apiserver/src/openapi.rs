//! OpenAPI v3: one document per group and version, for `kubectl explain` and for clients that
//! ask whether the server validates fields.
//!
//! Owns the documents and their hashes, made once from the kinds' schemas. Never validates.

use std::fmt::Write as _;

use bytes::Bytes;
use indexmap::IndexMap;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::core_group;
use crate::kind::{Kind, Registry, Scope};
use crate::scale;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
/// The schema of a scale, whatever it is of.
const SCALE: &str = "io.k8s.api.autoscaling.v1.Scale";

/// Every document by its name: `apis/meridian.dev/v1alpha1`.
pub(crate) struct Documents(IndexMap<String, Document>);

struct Document {
    hash: String,
    body: Bytes,
}

impl Documents {
    pub(crate) fn new(registry: &Registry) -> Self {
        let mut documents = IndexMap::new();
        let core = core_group::kinds();
        documents.insert(
            "api/v1".to_owned(),
            Document::new("/api/v1", &core.each_ref()),
        );
        for (group, versions) in registry.groups() {
            for version in versions {
                let kinds: Vec<&Kind> = registry.of(group, version).map(AsRef::as_ref).collect();
                let name = format!("apis/{group}/{version}");
                let document = Document::new(&format!("/{name}"), &kinds);
                documents.insert(name, document);
            }
        }
        Self(documents)
    }

    /// `/openapi/v3`: where each document is; its hash makes it cacheable.
    pub(crate) fn index(&self) -> Value {
        let paths: Map<String, Value> = self
            .0
            .iter()
            .map(|(name, document)| {
                let url = format!("/openapi/v3/{name}?hash={}", document.hash);
                (name.clone(), json!({"serverRelativeURL": url}))
            })
            .collect();
        json!({"paths": paths})
    }

    /// One document, as JSON.
    pub(crate) fn get(&self, name: &str) -> Option<Bytes> {
        self.0.get(name).map(|document| document.body.clone())
    }
}

impl Document {
    fn new(prefix: &str, kinds: &[&Kind]) -> Self {
        let mut paths = Map::new();
        let mut schemas = meta_schemas();
        for kind in kinds {
            kind_paths(prefix, kind, &mut paths);
            kind_schemas(kind, &mut schemas);
        }
        if kinds.iter().any(|kind| kind.scale.is_some()) {
            schemas.insert(SCALE.to_owned(), scale_schema());
        }
        let document = json!({
            "openapi": "3.0.0",
            "info": {"title": "Meridian", "version": env!("CARGO_PKG_VERSION")},
            "paths": paths,
            "components": {"schemas": schemas},
        });
        let body = Bytes::from(document.to_string());
        let mut hash = String::new();
        for byte in Sha256::digest(&body).iter().take(16) {
            // Writing to a String cannot fail.
            let _ = write!(hash, "{byte:02X}");
        }
        Self { hash, body }
    }
}

/// `dev.meridian.v1alpha1.FederatedJob`: the group's labels reversed.
fn schema_name(kind: &Kind, suffix: &str) -> String {
    let mut labels: Vec<&str> = kind.group.split('.').rev().collect();
    if kind.group.is_empty() {
        labels = vec!["io", "k8s", "api", "core"];
    }
    format!(
        "{}.{}.{}{suffix}",
        labels.join("."),
        kind.version,
        kind.kind
    )
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn group_version_kind(kind: &Kind, suffix: &str) -> Value {
    json!({
        "group": kind.group, "version": kind.version, "kind": format!("{}{suffix}", kind.kind),
    })
}

fn kind_schemas(kind: &Kind, schemas: &mut Map<String, Value>) {
    let mut schema = kind.schema.as_ref().clone();
    if !schema.is_object() {
        schema = json!({"type": "object"});
    }
    let mut properties = Map::new();
    let api_version = "APIVersion defines the versioned schema of this representation of an object";
    properties.insert(
        "apiVersion".into(),
        json!({"type": "string", "description": api_version}),
    );
    let kind_text = "Kind is the REST resource this object represents";
    properties.insert(
        "kind".into(),
        json!({"type": "string", "description": kind_text}),
    );
    let metadata = reference(&format!("{META}.ObjectMeta"));
    properties.insert(
        "metadata".into(),
        json!({"description": "Standard object's metadata", "allOf": [metadata], "default": {}}),
    );
    for (name, value) in schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        if !properties.contains_key(name) {
            properties.insert(name.clone(), value.clone());
        }
    }
    schema["type"] = Value::from("object");
    schema["properties"] = Value::Object(properties);
    schema["x-kubernetes-group-version-kind"] = json!([group_version_kind(kind, "")]);
    let name = schema_name(kind, "");
    let list = json!({
        "type": "object",
        "description": format!("{}List is a list of {}", kind.kind, kind.plural),
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": reference(&format!("{META}.ListMeta")),
            "items": {"type": "array", "items": reference(&name)},
        },
        "x-kubernetes-group-version-kind": [group_version_kind(kind, "List")],
    });
    schemas.insert(name, schema);
    schemas.insert(schema_name(kind, "List"), list);
}

fn kind_paths(prefix: &str, kind: &Kind, paths: &mut Map<String, Value>) {
    let (base, scope) = match kind.scope {
        Scope::Cluster => (format!("{prefix}/{}", kind.plural), vec![]),
        Scope::Namespaced => {
            let namespace = path_parameter("namespace", "object name and auth scope");
            (
                format!("{prefix}/namespaces/{{namespace}}/{}", kind.plural),
                vec![namespace],
            )
        }
    };
    let one = |extra: &[Value]| [scope.as_slice(), extra].concat();
    let collection = json!({
        "get": operation(kind, "list", Verb::Read),
        "post": operation(kind, "post", Verb::Write),
        "delete": operation(kind, "deletecollection", Verb::Delete),
        "parameters": one(&[]),
    });
    let name = path_parameter("name", &format!("name of the {}", kind.kind));
    let item = |delete: bool| {
        let mut item = json!({
            "get": operation(kind, "get", Verb::Read),
            "put": operation(kind, "put", Verb::Write),
            "patch": operation(kind, "patch", Verb::Patch),
            "parameters": one(std::slice::from_ref(&name)),
        });
        if delete {
            item["delete"] = operation(kind, "delete", Verb::Delete);
        }
        item
    };
    if kind.scope == Scope::Namespaced {
        let all = json!({"get": operation(kind, "list", Verb::Read)});
        paths.insert(format!("{prefix}/{}", kind.plural), all);
    }
    paths.insert(format!("{base}/{{name}}"), item(true));
    if kind.has_status {
        paths.insert(format!("{base}/{{name}}/status"), item(false));
    }
    if kind.scale.is_some() {
        let scale = json!({
            "get": scale_operation(kind, "get", Verb::Read),
            "put": scale_operation(kind, "put", Verb::Write),
            "patch": scale_operation(kind, "patch", Verb::Patch),
            "parameters": one(std::slice::from_ref(&name)),
        });
        paths.insert(format!("{base}/{{name}}/scale"), scale);
    }
    paths.insert(base, collection);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Read,
    Write,
    Patch,
    Delete,
}

fn path_parameter(name: &str, description: &str) -> Value {
    json!({
        "name": name, "in": "path", "required": true, "description": description,
        "schema": {"type": "string", "uniqueItems": true},
    })
}

fn operation(kind: &Kind, action: &str, verb: Verb) -> Value {
    let list = ["list", "deletecollection"].contains(&action);
    let about = About {
        id: format!("{action}{}", kind.kind),
        answer: schema_name(kind, if list { "List" } else { "" }),
        body: schema_name(kind, ""),
        group_version_kind: group_version_kind(kind, ""),
    };
    described(&about, action, verb)
}

fn scale_operation(kind: &Kind, action: &str, verb: Verb) -> Value {
    let about = About {
        id: format!("{action}{}Scale", kind.kind),
        answer: SCALE.to_owned(),
        body: SCALE.to_owned(),
        group_version_kind: json!({
            "group": scale::GROUP, "version": scale::VERSION, "kind": scale::KIND,
        }),
    };
    described(&about, action, verb)
}

/// What an operation is about.
struct About {
    id: String,
    /// Schemas of what it answers, and of what it is sent.
    answer: String,
    body: String,
    group_version_kind: Value,
}

fn described(about: &About, action: &str, verb: Verb) -> Value {
    let parameter = |name: &str, description: &str| {
        json!({
            "name": name, "in": "query", "description": description,
            "schema": {"type": "string", "uniqueItems": true},
        })
    };
    let parameters = match verb {
        Verb::Read => vec![],
        Verb::Delete => vec![parameter("dryRun", "All: nothing is stored")],
        Verb::Write | Verb::Patch => vec![
            parameter("dryRun", "All: nothing is stored"),
            parameter("fieldManager", "who writes"),
            parameter(
                "fieldValidation",
                "what becomes of unknown and duplicate fields: Ignore, Warn (default) or Strict",
            ),
        ],
    };
    let answer = reference(&about.answer);
    let mut operation = json!({
        "operationId": about.id.as_str(),
        "parameters": parameters,
        "responses": {
            "200": {
                "description": "OK",
                "content": {"application/json": {"schema": answer}},
            },
        },
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": about.group_version_kind.clone(),
    });
    let body = reference(&about.body);
    let content = match verb {
        Verb::Read | Verb::Delete => return operation,
        Verb::Write => json!({"application/json": {"schema": body}}),
        Verb::Patch => json!({
            "application/merge-patch+json": {"schema": reference(&format!("{META}.Patch"))},
            "application/json-patch+json": {"schema": reference(&format!("{META}.Patch"))},
        }),
    };
    operation["requestBody"] = json!({"required": true, "content": content});
    operation
}

fn scale_schema() -> Value {
    let replicas = |description: &str| {
        let number = json!({"type": "integer", "format": "int32", "description": description});
        json!({"type": "object", "properties": {"replicas": number}})
    };
    json!({
        "type": "object",
        "description": "Scale represents a scaling request for a resource",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": reference(&format!("{META}.ObjectMeta")),
            "spec": replicas("How many there shall be"),
            "status": replicas("How many there are"),
        },
        "x-kubernetes-group-version-kind": [{
            "group": scale::GROUP, "version": scale::VERSION, "kind": scale::KIND,
        }],
    })
}

/// What every document needs of `k8s.io/apimachinery`.
fn meta_schemas() -> Map<String, Value> {
    let text = |description: &str| json!({"type": "string", "description": description});
    let time = |description: &str| {
        let mut time = text(description);
        time["format"] = Value::from("date-time");
        time
    };
    let texts = |description: &str| {
        json!({
            "type": "object", "description": description,
            "additionalProperties": {"type": "string", "default": ""},
        })
    };
    let object = json!({
        "type": "object",
        "description": "ObjectMeta is metadata that all persisted objects have",
        "properties": {
            "name": text("Name, unique in its namespace; cannot be changed"),
            "generateName": text("Prefix of a name that the server completes"),
            "namespace": text("Namespace; cannot be changed"),
            "labels": texts("Keys and values to select by"),
            "annotations": texts("Keys and values that tools keep with the object"),
            "finalizers": {
                "type": "array", "items": {"type": "string", "default": ""},
                "description": "What must be done before the object can go",
            },
            "ownerReferences": {
                "type": "array", "description": "Objects that this one belongs to",
                "items": {"allOf": [reference(&format!("{META}.OwnerReference"))], "default": {}},
            },
            "uid": text("Identity in time and space; set by the server"),
            "resourceVersion": text("Version of the object; changes with every write"),
            "generation": {
                "type": "integer", "format": "int64",
                "description": "Counts the changes of the desired state",
            },
            "creationTimestamp": time("When it was made"),
            "deletionTimestamp": time("When it was asked to go"),
            "deletionGracePeriodSeconds": {"type": "integer", "format": "int64"},
        },
    });
    let list = json!({
        "type": "object",
        "description": "ListMeta is metadata of lists",
        "properties": {
            "resourceVersion": text("Version of the list: watch from here"),
            "continue": text("Token of the next page"),
            "remainingItemCount": {"type": "integer", "format": "int64"},
        },
    });
    let patch = json!({"type": "object", "description": "Patch is a change to an object"});
    [
        ("OwnerReference", owner_reference()),
        ("ObjectMeta", object),
        ("ListMeta", list),
        ("Patch", patch),
    ]
    .into_iter()
    .map(|(name, schema)| (format!("{META}.{name}"), schema))
    .collect()
}

fn owner_reference() -> Value {
    let text = |description: &str| json!({"type": "string", "description": description});
    json!({
        "type": "object",
        "description": "OwnerReference names an owning object",
        "required": ["apiVersion", "kind", "name", "uid"],
        "properties": {
            "apiVersion": text("API version of the owner"),
            "kind": text("Kind of the owner"),
            "name": text("Name of the owner"),
            "uid": text("UID of the owner"),
            "controller": {"type": "boolean"},
            "blockOwnerDeletion": {"type": "boolean"},
        },
    })
}
