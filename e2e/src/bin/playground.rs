//! Playground.
fn main() {}
