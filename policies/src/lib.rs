//! The decisions: pure functions over snapshots.
//!
//! Owns order, quota, feasibility, placement over regions and on nodes, life cycle of a
//! placement, explanation and invariant checks. Does no I/O, reads no clock, spawns nothing that
//! outlives a round, iterates no hash map: the same input gives the same output on any machine.

pub mod accounts;
mod bits;
pub mod books;
mod candidates;
mod causes;
pub mod check;
pub mod choice;
pub mod counterfactual;
pub mod culprit;
pub mod deadlines;
pub mod decide;
pub mod diagnosis;
pub mod division;
mod ends;
pub mod explain;
mod fill;
pub mod fit;
mod hands;
pub mod history;
mod kinds;
pub mod lifecycle;
pub mod model;
mod names;
pub mod nodes;
pub mod order;
mod packing;
mod pick;
mod place;
pub mod planner;
mod pools;
pub mod preempt;
mod present;
pub mod quota;
pub mod record;
pub mod recurring;
pub mod reserved;
mod rules;
mod search;
pub mod shapes;
mod shares;
pub mod sizes;
mod slots;
pub mod spending;
mod starts;
mod tree;
pub mod typical;

pub use check::check;
pub use culprit::{culprit, decide_soundly};
pub use decide::decide;
pub use planner::Planner;
