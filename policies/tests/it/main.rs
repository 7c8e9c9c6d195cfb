//! Tests of the decisions, in one binary.
//!
//! Owns properties over random snapshots, golden plans, and the life cycle's full table. Never
//! looks inside: everything goes through the public functions.

mod arrays;
mod books;
mod builders;
mod checker;
mod choosing;
mod counterfactual;
mod culprit;
mod division;
mod fitting;
mod golden;
mod ground;
mod lifecycle;
mod minding;
mod moves;
mod nodes;
mod planner;
mod preemption;
mod preemption_rounds;
mod queue;
mod quota;
mod random;
mod random_choice;
mod record;
mod replace;
mod reserved;
mod rounds;
mod several_roles;
mod slots;
mod vacating;
