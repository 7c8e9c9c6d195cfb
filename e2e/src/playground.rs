//! The playground: a week of public jobs on a public inventory, on a simulated clock.
//!
//! Owns the world of `make demo`: which fleet, which jobs, which faults, and what is told about
//! them. Everything that decides or acts is the product's own: hub, embedded store, agents.

pub mod data;
mod fast;
mod faults;
mod jobs;
mod progress;
mod serve;
mod summary;
mod truth;
mod world;

pub use fast::{FastOptions, run};
pub use faults::FAILURES_A_WEEK;
pub use progress::{Progress, ShowProgress};
pub use serve::{MAX_SCALE, ServeOptions, serve};
pub use summary::Summary;

use meridian_client::ClientError;
use meridian_store::StoreError;

use crate::fleet::FleetError;

/// Why the playground cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum PlaygroundError {
    /// A data file of the repository has a mistake.
    #[error("the data is damaged: {0}")]
    Data(#[from] data::DataError),
    /// The table of jobs has a mistake.
    #[error("the data is damaged: {0}")]
    Table(#[from] meridian_sim::table::TableError),
    /// The federation does not start, or broke.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// The store cannot be opened.
    #[error("the embedded store cannot be opened")]
    Store(#[from] StoreError),
    /// The hub does not answer, or refuses a job.
    #[error("{what}")]
    Client {
        /// What was asked.
        what: String,
        /// Why it failed.
        source: ClientError,
    },
    /// A temporary folder or a runtime cannot be made.
    #[error("the system refuses {what}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// The hub's answer cannot be read.
    #[error("the hub's answer cannot be read: {0}")]
    Answer(String),
}
