//! Logs, traces and their export.
//!
//! Owns the set-up of `tracing` and OpenTelemetry, and W3C trace context as text
//! (<https://www.w3.org/TR/trace-context/>), which is how one trace runs from a submit through
//! the store to a gang. Never decides what is logged.
