//! Strings that many nodes share, kept once.
//!
//! Owns them. A cluster has thousands of nodes of a few flavors, pools, domains and versions; what
//! no node names any more is let go. Never hands out an order.

use std::collections::HashSet;
use std::sync::Arc;

/// A shared string.
pub(super) type Name = Arc<str>;

/// Strings kept before the first look for those that nobody names: a rack of hosts each.
const FIRST_SWEEP: usize = 1024;

/// Every shared string.
#[derive(Debug)]
pub(super) struct Strings {
    kept: HashSet<Name>,
    sweep_at: usize,
}

impl Default for Strings {
    fn default() -> Self {
        Self {
            kept: HashSet::new(),
            sweep_at: FIRST_SWEEP,
        }
    }
}

impl Strings {
    /// The shared form of a text.
    pub(super) fn get(&mut self, text: &str) -> Name {
        if let Some(known) = self.kept.get(text) {
            return Arc::clone(known);
        }
        if self.kept.len() >= self.sweep_at {
            self.kept.retain(|name| Arc::strong_count(name) > 1);
            // Twice what is in use: a sweep costs as much as the gets before it.
            self.sweep_at = FIRST_SWEEP.max(2 * self.kept.len());
        }
        let name: Name = Arc::from(text);
        self.kept.insert(Arc::clone(&name));
        name
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_text_is_kept_once() {
        let mut strings = Strings::default();
        assert!(Arc::ptr_eq(&strings.get("rack-1"), &strings.get("rack-1")));
        assert_eq!(strings.len(), 1);
    }

    #[test]
    fn what_nobody_names_is_let_go() {
        let mut strings = Strings::default();
        let held: Vec<Name> = (0..10).map(|n| strings.get(&format!("held-{n}"))).collect();
        for n in 0..10 * FIRST_SWEEP {
            drop(strings.get(&format!("passing-{n}")));
        }
        assert!(strings.len() <= FIRST_SWEEP, "{}", strings.len());
        assert!(Arc::ptr_eq(&held[3], &strings.get("held-3")));
    }
}
