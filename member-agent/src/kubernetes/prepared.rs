//! What the cluster was just found to have or to accept, so that the next gang need not ask again.
//!
//! Owns what is remembered, for how long and how much. Never stands in for a check that a promise
//! rests on: where the memory is wrong, the API server refuses the objects themselves, that is
//! undone, and all of it is forgotten.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use meridian_api::units::{BootMillis, Millis};

/// What was found so long ago is asked again. A burst of gangs lasts for minutes, and somebody who
/// has changed a policy of the cluster sees it take effect within this.
const FRESH: Millis = Millis::seconds(60);
/// Most facts that are kept: some hundred bytes each, and a burst has rarely more than a thousand
/// kinds of pods. Beyond it all are forgotten, which costs one question each.
const MAX_FACTS: usize = 4096;

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fact {
    /// There is such a namespace.
    Namespace(String),
    /// There is such a priority class.
    PriorityClass(String),
    /// Pods that are like this, by hash, were accepted in a rehearsal.
    Rehearsed([u8; 32]),
}

/// The facts of one cluster.
#[derive(Debug, Default)]
pub(super) struct Prepared(Mutex<BTreeMap<Fact, BootMillis>>);

impl Prepared {
    /// True when it was found a short time ago.
    pub(super) fn has(&self, fact: &Fact, now: BootMillis) -> bool {
        let facts = self.lock();
        facts.get(fact).is_some_and(|at| now < at.after(FRESH))
    }

    /// It was found.
    pub(super) fn note(&self, fact: Fact, now: BootMillis) {
        let mut facts = self.lock();
        if facts.len() >= MAX_FACTS {
            facts.clear();
        }
        facts.insert(fact, now);
    }

    /// Something is not as it was believed to be.
    pub(super) fn forget(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Fact, BootMillis>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fact_is_believed_for_a_minute_and_until_something_fails() {
        let (prepared, now) = (Prepared::default(), BootMillis(5));
        let fact = Fact::Namespace("ml".to_owned());
        assert!(!prepared.has(&fact, now));
        prepared.note(fact.clone(), now);
        assert!(prepared.has(&fact, BootMillis(60_004)));
        assert!(!prepared.has(&fact, BootMillis(60_005)));
        assert!(!prepared.has(&Fact::PriorityClass("ml".to_owned()), now));
        prepared.forget();
        assert!(!prepared.has(&fact, now));
    }

    #[test]
    fn no_more_is_kept_than_the_cap() {
        let prepared = Prepared::default();
        for index in 0..=MAX_FACTS {
            prepared.note(Fact::Namespace(index.to_string()), BootMillis(0));
        }
        assert_eq!(prepared.lock().len(), 1);
    }
}
