//! The decisions: pure functions over snapshots.
//!
//! Owns order, quota, feasibility, placement over regions and on nodes, life cycle of a
//! placement, explanation and invariant checks. Does no I/O, reads no clock, spawns nothing,
//! iterates no hash map: the same input gives the same output on any machine.

pub mod model;
