//! The nouns of Meridian: what people write and read.
//!
//! Owns kinds, units, ids, reasons, error codes, validation and JSON schemas. Knows no hub, no
//! storage and no async runtime.

pub mod ids;
pub mod reasons;
pub mod units;
