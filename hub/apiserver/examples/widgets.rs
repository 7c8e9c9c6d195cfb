//! A server of two invented kinds over the memory store, to be driven with `kubectl` by hand:
//!
//! ```sh
//! cargo run -p meridian-apiserver --example widgets &
//! kubectl --server http://127.0.0.1:8001 api-resources
//! ```
//!
//! Owns nothing; open to whoever reaches its loopback port, and forgets all when it ends.

use std::sync::Arc;

use anyhow::Context as _;
use meridian_apiserver::{
    AllowAll, Column, Kind, NoHooks, Registry, Resources, ResourcesOptions, Scope,
};
use meridian_runtime::{Clock, Network as _, Random, Tasks, network};
use meridian_store::MemoryStore;
use serde_json::{Value, json};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let clock = Clock::real();
    let resources = Resources::new(ResourcesOptions {
        store: Arc::new(MemoryStore::new(clock.clone())),
        registry: Registry::new(vec![widget(), gadget()])?,
        clock,
        random: Random::from_machine(),
        admission: Arc::new(AllowAll),
        events: Arc::new(meridian_apiserver::NoEvents),
        tasks: Tasks::new(),
    });
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:8001".to_owned());
    let listener = network::Tcp
        .listen(&address)
        .await
        .context("cannot listen")?;
    eprintln!("kubectl --server http://{} get widgets", listener.address());
    axum::serve(listener, meridian_apiserver::router(resources)).await?;
    Ok(())
}

fn widget() -> Kind {
    let column = |name: &str, ty: &str, path: &str| Column {
        name: name.to_owned(),
        ty: ty.to_owned(),
        path: path.to_owned(),
        ..Column::default()
    };
    kind(
        ("Widget", "widgets", "widget", "wd"),
        Scope::Namespaced,
        vec![
            column("Size", "integer", ".spec.size"),
            column("Phase", "string", ".status.phase"),
            column("Age", "date", ".metadata.creationTimestamp"),
        ],
    )
}

fn gadget() -> Kind {
    kind(
        ("Gadget", "gadgets", "gadget", "gd"),
        Scope::Cluster,
        Vec::new(),
    )
}

fn kind(names: (&str, &str, &str, &str), scope: Scope, columns: Vec<Column>) -> Kind {
    let (kind, plural, singular, short) = names;
    Kind {
        group: "example.dev".to_owned(),
        version: "v1".to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
        singular: singular.to_owned(),
        short_names: vec![short.to_owned()],
        categories: vec!["all".to_owned()],
        scope,
        schema: Arc::new(schema(kind)),
        columns,
        hooks: Arc::new(NoHooks),
        has_status: true,
        scale: None,
    }
}

fn schema(kind: &str) -> Value {
    json!({
        "type": "object",
        "description": format!("{kind} is an invented thing"),
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "description": "What is wanted",
                "required": ["size"],
                "properties": {
                    "size": {"type": "integer", "minimum": 1, "description": "How large"},
                    "color": {"type": "string", "enum": ["red", "blue"]},
                    "parts": {
                        "type": "array",
                        "description": "What it is made of",
                        "items": {
                            "type": "object",
                            "required": ["name"],
                            "properties": {
                                "name": {"type": "string"},
                                "count": {"type": "integer"},
                            },
                        },
                    },
                    "tags": {"type": "object", "additionalProperties": {"type": "string"}},
                },
            },
            "status": {
                "type": "object",
                "description": "What is seen",
                "properties": {
                    "phase": {"type": "string"},
                    "conditions": {"type": "array", "items": {
                        "type": "object",
                        "properties": {
                            "type": {"type": "string"},
                            "status": {"type": "string"},
                            "reason": {"type": "string"},
                            "message": {"type": "string"},
                            "lastTransitionTime": {"type": "string"},
                            "observedGeneration": {"type": "integer"},
                        },
                    }},
                },
            },
        },
    })
}
