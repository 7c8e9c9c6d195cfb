//! The API as clients meet it: the router driven in-process over the memory store, with two
//! invented kinds.
//!
//! One module per promise. Time is simulated: a wait costs nothing and a deadline is exact.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod admitting;
mod bad_input;
mod describing;
mod equality;
mod fixture;
mod listing;
mod watching;
mod writing;
