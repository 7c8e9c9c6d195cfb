//! Chores: what may follow a round a little later.
//!
//! Owns when they are due. Never does them.

use meridian_api::units::{BootMillis, Millis};

/// After chores the next ones wait this many times as long as they took: nobody waits for them, so
/// they take at most a twentieth of the loop's time.
const REST_AFTER_CHORES: u64 = 19;

/// When records, views and metrics are made again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chores {
    /// When they were done last, and rested from.
    pub(super) done: BootMillis,
    /// Something happened since.
    pub(super) noted: bool,
}

impl Chores {
    /// When they are due; `None` = nothing happened.
    pub(super) fn due(self, every: Millis) -> Option<BootMillis> {
        self.noted.then(|| self.done.after(every))
    }

    /// They took this long, until `now`.
    pub(super) fn rest(&mut self, now: BootMillis, took: Millis) {
        self.done = now.after(Millis(took.0.saturating_mul(REST_AFTER_CHORES)));
    }

    /// True when it is time; they then count as done.
    pub(super) fn take(&mut self, now: BootMillis, every: Millis) -> bool {
        let due = self.due(every).is_some_and(|due| now >= due);
        if due {
            *self = Self {
                done: now,
                noted: false,
            };
        }
        due
    }
}
