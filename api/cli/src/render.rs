//! Layout of what the hub says, as pure functions from values to text.
//!
//! Owns columns, sections and the JSON shapes of answers that are no objects. Asks nobody.

pub(crate) mod capacity;
pub(crate) mod cluster;
pub(crate) mod describe;
pub(crate) mod events;
pub(crate) mod plan;
pub(crate) mod queue;
pub(crate) mod table;
pub(crate) mod tenancy;
pub(crate) mod top;
pub(crate) mod why;
