//! The job that a round fails with is found, whatever the round fails at.

use std::cell::Cell;
use std::collections::BTreeSet;

use meridian_api::ids::Uid;
use meridian_policies::culprit::Fault;
use meridian_policies::model::{Plan, Snapshot};
use meridian_policies::{culprit, decide_soundly};
use proptest::prelude::*;

use crate::random;

fn waiting(snapshot: &Snapshot) -> BTreeSet<Uid> {
    snapshot.waiting.iter().map(|row| row.gang.job).collect()
}

/// A round that fails while any of these waits.
fn fails_with(poison: &BTreeSet<Uid>, snapshot: &Snapshot) -> Result<Plan, Fault> {
    if waiting(snapshot).is_disjoint(poison) {
        return decide_soundly(snapshot);
    }
    Err(Fault::Panicked("poison".to_owned()))
}

proptest! {
    #[test]
    fn one_of_the_jobs_that_are_to_blame_is_found(
        snapshot in random::snapshot(),
        chosen in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
    ) {
        let jobs: Vec<Uid> = waiting(&snapshot).into_iter().collect();
        prop_assume!(!jobs.is_empty());
        let poison: BTreeSet<Uid> = chosen.iter().map(|at| jobs[at.index(jobs.len())]).collect();
        let rounds = Cell::new(0);
        let found = culprit(&snapshot, |world| {
            rounds.set(rounds.get() + 1);
            fails_with(&poison, world)
        });
        let first = poison.first().map(|job| (*job, Fault::Panicked("poison".to_owned())));
        prop_assert_eq!(found, first);
        prop_assert!(rounds.get() <= 2 + jobs.len().ilog2() + 1, "{} rounds", rounds.get());
    }
}

#[test]
fn nobody_is_to_blame_for_what_fails_without_them() {
    let fault = || Err(Fault::Panicked("always".to_owned()));
    assert_eq!(culprit(&Snapshot::default(), |_| fault()), None);
}
