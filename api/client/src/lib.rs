//! Typed client of the hub: objects over its Kubernetes-style API, the rest over gRPC.
//!
//! Owns connections, the meaning of answers and errors, watches that resume, and what `apply`
//! changes. Never decides, never prints, and never reads a clock or opens a socket of its own:
//! both are handed in, so that it runs in simulation too.

mod admission;
pub mod apply;
mod client;
pub mod errors;
mod federation;
mod objects;
mod resource;
mod transport;
mod watch;

pub use apply::{Applied, Outcome};
pub use client::{Client, ClientOptions, DEFAULT_SERVER, DEFAULT_TIMEOUT};
pub use errors::{Cause, ClientError, Failure, FailureKind};
pub use federation::{Answer, LogText, Submission, SubmitAnswers};
pub use meridian_proto::v1;
pub use objects::{Deletion, DryRun, Form, ListOptions, Listing, Written};
pub use resource::Resource;
pub use watch::{Change, WatchTarget, Watcher};
