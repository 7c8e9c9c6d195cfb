//! The simulator: a trace in, what the decisions make of it out.
//!
//! Owns an event-driven run of `meridian_policies::decide` over recorded jobs, and the summary of
//! what came of it: waiting, use of the fleet, fairness, lost work. Pure as the decisions are: no
//! file, clock, task or random bit, and the same input gives the same bytes. Never a second
//! scheduler: it decides nothing.

pub mod engine;
pub mod fleet;
mod meters;
pub mod private;
mod room;
pub mod rules;
pub mod scenario;
pub mod summary;
pub mod table;
mod text;
pub mod trace;
pub mod traces;
mod world;
mod yielding;

/// Recorded rounds, for whoever replays them without knowing the decisions.
pub use meridian_policies::record;

pub use engine::Options;
pub use fleet::Fleet;
pub use rules::Rules;
pub use scenario::{Alone, Scenario, SimulationError};
pub use summary::{StartsTold, Summary};
pub use trace::{HostsUp, Job};
pub use world::{Stranger, World};
