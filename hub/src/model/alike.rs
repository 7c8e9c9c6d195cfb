//! Equal values, kept once.
//!
//! Owns the table in which a value that others have, too, is found again. What nobody has any more
//! is forgotten now and then. Never compares by address: equal is what is equal.

use std::collections::BTreeSet;
use std::sync::Arc;

/// Entries that a table may hold before it is looked through for what nobody has any more; then
/// twice as many as were left. So looking costs a small part of putting in.
const SWEEP_FIRST: usize = 1_024;

/// One of each.
#[derive(Debug)]
pub(super) struct Alike<T: ?Sized> {
    all: BTreeSet<Arc<T>>,
    /// Found last: alike values often come one after another.
    last: Option<Arc<T>>,
    sweep_at: usize,
}

impl<T: ?Sized> Default for Alike<T> {
    fn default() -> Self {
        Self {
            all: BTreeSet::new(),
            last: None,
            sweep_at: SWEEP_FIRST,
        }
    }
}

impl<T: Ord> Alike<T> {
    /// The one that is equal to this.
    pub(super) fn of(&mut self, value: T) -> Arc<T> {
        let found = self.find(&value);
        found.unwrap_or_else(|| self.keep(Arc::new(value)))
    }
}

impl<T: Ord + ?Sized> Alike<T> {
    /// Puts the one that is equal in its place.
    pub(super) fn share(&mut self, value: &mut Arc<T>) {
        let found = self.find(value);
        *value = found.unwrap_or_else(|| self.keep(Arc::clone(value)));
    }

    fn find(&mut self, value: &T) -> Option<Arc<T>> {
        let last = self.last.as_ref().filter(|last| ***last == *value);
        if let Some(last) = last {
            return Some(Arc::clone(last));
        }
        let known = Arc::clone(self.all.get(value)?);
        self.last = Some(Arc::clone(&known));
        Some(known)
    }

    fn keep(&mut self, value: Arc<T>) -> Arc<T> {
        if self.all.len() >= self.sweep_at {
            self.all.retain(|known| Arc::strong_count(known) > 1);
            self.sweep_at = next_sweep(self.all.len());
        }
        self.all.insert(Arc::clone(&value));
        value
    }
}

/// With so many left a table is looked through when it holds this many.
pub(super) fn next_sweep(left: usize) -> usize {
    SWEEP_FIRST.max(left.saturating_mul(2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_are_one_as_long_as_somebody_has_them() {
        let mut alike = Alike::default();
        let first = alike.of("a".to_owned());
        let mut second = Arc::new("a".to_owned());
        alike.share(&mut second);
        assert!(Arc::ptr_eq(&first, &second));
        for other in 0..SWEEP_FIRST * 3 {
            alike.of(other.to_string());
        }
        assert!(
            alike.all.len() <= SWEEP_FIRST,
            "what nobody has is forgotten"
        );
        assert!(Arc::ptr_eq(&first, &alike.of("a".to_owned())));
    }
}
