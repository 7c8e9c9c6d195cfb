//! Choice: which of the places that have room a gang gets.
//!
//! Owns what jobs ask of a place and what is known of places (`terms`), whether a cluster stands
//! open to a job and how well (`standing`), where the next of an array's gangs may go (`copies`),
//! and where other jobs must stand (`others`),
//! what goes back to an earlier group (`overflow`), what finishing there costs (`cost`), and the
//! words for all of it (`words`). Rules are read once per different wish and cluster; the walk over
//! pools sees ordinals and integers only.

pub(crate) mod copies;
pub mod cost;
pub(crate) mod others;
pub mod overflow;
pub(crate) mod standing;
pub mod terms;
pub(crate) mod words;

pub use terms::label;
