//! The hub: the truth and its rounds.
//!
//! Owns the decision loop, agent sessions, leadership and the user services, and puts the store
//! and the API server together. Never talks to a member cluster: agents do.

mod admission;
mod answers;
mod bounds;
mod commit;
pub mod config;
mod deadlines;
mod decider;
mod decision;
mod execution;
mod explanations;
pub mod fence;
#[cfg(test)]
mod fixture_tests;
pub mod holds;
mod housekeeping;
mod hub;
mod identity;
pub mod journal;
mod keepers;
mod kinds;
pub mod leadership;
mod limits;
pub mod metrics;
mod model;
mod offers;
mod own_writes;
pub mod placement;
pub mod progress;
mod promises;
mod questions;
pub mod rare;
mod references;
mod rounds;
mod runs;
mod services;
mod sessions;
mod settle;
mod sightings;
mod status;
mod submissions;
mod templates;
mod users;
mod views;

pub use execution::Execution;
pub use hub::{HubHandle, HubOptions, StartError, start};
pub use identity::AuthorityError;
