//! Refused: kinds of gangs that the last round left, and the first reason of each.
//!
//! Owns the answers as long as nothing has become free since. Never asks.

use meridian_api::reasons::Reason;

/// Reasons by kind of gang.
pub(super) struct Refused {
    by_kind: Vec<Option<Reason>>,
    /// Kinds that have one.
    kinds: Vec<u32>,
}

impl Refused {
    pub(super) fn new(kinds: usize) -> Self {
        Self {
            by_kind: vec![None; kinds],
            kinds: Vec::new(),
        }
    }

    pub(super) fn get(&self, kind: u32) -> Option<Reason> {
        self.by_kind[kind as usize]
    }

    pub(super) fn insert(&mut self, kind: u32, reason: Reason) {
        if self.by_kind[kind as usize].replace(reason).is_none() {
            self.kinds.push(kind);
        }
    }

    pub(super) fn clear(&mut self) {
        for kind in self.kinds.drain(..) {
            self.by_kind[kind as usize] = None;
        }
    }
}
