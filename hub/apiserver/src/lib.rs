//! A Kubernetes-style API server, generic over kinds, on the hub's store.
//!
//! Owns the conventions that `kubectl`, `kube` and GitOps tools rely on: discovery, OpenAPI,
//! object metadata, optimistic concurrency, patches, watches, tables, error bodies; and the one
//! write path, [`Resources`], through which every change of a user object goes, from HTTP and
//! from the hub's gRPC alike. Everything about a kind comes from its [`Kind`].
//!
//! Never knows what a kind means: no GPU, no quota, no policy. Those enter as [`KindHooks`] and
//! [`Admission`].

mod body;
mod cache;
mod checks;
mod continuation;
mod core_group;
mod create;
mod discovery;
mod draft;
mod fields;
mod http;
mod jsonpath;
mod kind;
mod merge;
mod metadata;
mod negotiate;
mod object;
mod openapi;
mod patch;
mod query;
mod read;
mod render;
mod resources;
mod route;
mod scale;
mod schema;
mod selectors;
mod status;
mod table;
mod watch;
mod write;

pub mod admission;

pub use admission::{
    Actor, Admission, Admitted, AllowAll, Change, Denial, DryRun, Operation, Request,
};
pub use http::{MAX_BODY_BYTES, router};
pub use kind::{
    Column, FieldError, FieldReason, Kind, KindHooks, NoHooks, Registry, RegistryError, ScalePaths,
    Scope,
};
pub use patch::PatchType;
pub use read::{List, ListOptions, VersionMatch};
pub use resources::{
    DeleteOptions, Deleted, EventSource, FieldValidation, Idempotency, NoEvents, Preconditions,
    Propagation, Resources, ResourcesOptions, WriteOptions, Written,
};
pub use selectors::{FieldSelector, LabelSelector};
pub use status::{ApiStatus, StatusReason};
