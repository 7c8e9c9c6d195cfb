//! The nouns of Meridian: what people write and read.
//!
//! Owns kinds, units, ids, reasons, error codes, validation and JSON schemas. Knows no hub, no
//! storage and no async runtime.

pub mod calendar;
pub mod canonical;
pub mod conditions;
pub mod document;
pub mod errors;
pub mod fields;
pub mod ids;
pub mod join;
pub mod kinds;
pub mod meta;
pub mod quantity;
pub mod reasons;
pub mod recurrence;
pub mod schema;
pub mod tree;
pub mod units;
pub mod validate;
