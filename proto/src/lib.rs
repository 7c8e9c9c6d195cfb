//! The wire of Meridian: the agent session, the user services, and what they carry.
//!
//! Owns the protobuf messages, their conversions to and from the nouns of `meridian-api`, and the
//! one mapping of error codes to gRPC. Decides nothing.

pub mod convert;
pub mod status;

/// Generated from `proto/meridian/v1`; held fresh by a test.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "generated code, documented in the .proto files"
)]
#[rustfmt::skip]
#[path = "gen/meridian.v1.rs"]
pub mod v1;
