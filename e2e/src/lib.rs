//! The proof: what stands between a promise and its test.
//!
//! Owns the harness: real processes, the real etcd and the tools that drive a hub. Is depended on
//! by nothing.

pub mod deployment;
pub mod etcd;
pub mod fleet;
pub mod member;
pub mod playground;
pub mod ports;
pub mod process;
pub mod real_nodes;
pub mod simulation;
pub mod tools;
