//! Refused: looks of gangs that the last round left, and the first reason of each.
//!
//! Owns the answers as long as nothing has become free since. Never asks.

use meridian_api::reasons::Reason;

/// Reasons by look, as the planner numbers looks since the last round.
#[derive(Default)]
pub(super) struct Refused {
    by_look: Vec<Option<Reason>>,
    /// Something has become free since.
    is_over: bool,
}

impl Refused {
    /// Why the gangs of a look need not be looked at again.
    pub(super) fn get(&self, look: u32) -> Option<Reason> {
        self.newest(look).filter(|_| !self.is_over)
    }

    /// Why the gangs of a look were left, whatever became free since.
    pub(super) fn newest(&self, look: u32) -> Option<Reason> {
        self.by_look.get(look as usize).copied().flatten()
    }

    /// Notes a reason, unless the look has one.
    pub(super) fn insert(&mut self, look: u32, reason: Reason) {
        let at = look as usize;
        if self.by_look.len() <= at {
            self.by_look.resize(at + 1, None);
        }
        self.by_look[at].get_or_insert(reason);
    }

    /// Something has become free.
    pub(super) fn end(&mut self) {
        self.is_over = true;
    }

    /// A round begins to say what it has left.
    pub(super) fn clear(&mut self) {
        self.by_look.clear();
        self.is_over = false;
    }
}
