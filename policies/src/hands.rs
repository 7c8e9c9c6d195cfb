//! Hands: two parts of a round that know nothing of each other, done at once.
//!
//! Owns when that pays. What is decided does not depend on it: each part is a function of what it
//! is given, and both answers are waited for.

use std::panic::resume_unwind;
use std::thread;

/// Rows from which a second thread is worth its start: that takes some 50 µs, and a row some 50 ns.
const PAYS: usize = 20_000;

/// Both answers; at once where `rows` are many.
pub(crate) fn both<A: Send, B>(
    rows: usize,
    one: impl FnOnce() -> A + Send,
    other: impl FnOnce() -> B,
) -> (A, B) {
    if rows < PAYS {
        return (one(), other());
    }
    thread::scope(|scope| {
        let one = scope.spawn(one);
        let other = other();
        (
            one.join().unwrap_or_else(|panic| resume_unwind(panic)),
            other,
        )
    })
}
