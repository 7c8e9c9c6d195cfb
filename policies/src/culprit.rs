//! A round that goes wrong: what about it, and which job it is about, so that the others go on.
//!
//! Owns the search for the one job without which a round is sound. It knows nothing of what is
//! wrong: it decides again, over fewer jobs. Never repairs a plan.

use std::collections::BTreeSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use meridian_api::ids::Uid;

use crate::check::{Violation, check};
use crate::decide::decide;
use crate::model::{Plan, Snapshot};

/// Why a round is not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Deciding, or checking, came to no end: our own mistake, and its words.
    Panicked(String),
    /// The plan breaks invariants.
    Broken {
        /// The plan, of which nothing may be carried out.
        plan: Box<Plan>,
        /// What is wrong with it; not empty.
        violations: Vec<Violation>,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panicked(words) => write!(f, "the decision panicked: {words}"),
            Self::Broken { violations, .. } => {
                if let Some(first) = violations.first() {
                    write!(f, "{first}")?;
                }
                match violations.len() {
                    0 | 1 => Ok(()),
                    count => write!(f, " (and {} more)", count - 1),
                }
            }
        }
    }
}

/// Decides `snapshot`, and hands out the plan only when nothing is wrong with it.
///
/// # Errors
/// What is wrong.
pub fn decide_soundly(snapshot: &Snapshot) -> Result<Plan, Fault> {
    // Nothing that a panic leaves half done outlives the closure.
    let round = AssertUnwindSafe(|| {
        let plan = decide(snapshot);
        let violations = check(snapshot, &plan);
        (plan, violations)
    });
    let (plan, violations) = catch_unwind(round).map_err(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
        Fault::Panicked(words.unwrap_or("no words").to_owned())
    })?;
    if violations.is_empty() {
        return Ok(plan);
    }
    Err(Fault::Broken {
        plan: Box::new(plan),
        violations,
    })
}

/// A waiting job of `snapshot` with which `round` fails and without which, over the jobs before
/// it in the order of their ids, it does not; and how it fails. None when the fault lies in what
/// is there already, so that leaving out whoever waits would not help.
///
/// Decides once for each halving: 17 rounds for 100,000 jobs.
pub fn culprit(
    snapshot: &Snapshot,
    round: impl Fn(&Snapshot) -> Result<Plan, Fault>,
) -> Option<(Uid, Fault)> {
    let jobs: BTreeSet<Uid> = snapshot.waiting.iter().map(|row| row.gang.job).collect();
    let jobs: Vec<Uid> = jobs.into_iter().collect();
    let of_first = |count: usize| {
        let first = &jobs[..count];
        let mut world = snapshot.clone();
        let kept = world.waiting.iter();
        let kept = kept.map(|row| first.binary_search(&row.gang.job).is_ok());
        let kept: Vec<bool> = kept.collect();
        world.keep_waiting(&kept);
        round(&world)
    };
    of_first(0).ok()?;
    // Sound over the first `good` jobs, and not over the first `bad`.
    let (mut good, mut bad) = (0, jobs.len());
    let mut fault = of_first(bad).err()?;
    while bad - good > 1 {
        let middle = good.midpoint(bad);
        match of_first(middle) {
            Ok(_) => good = middle,
            Err(found) => (bad, fault) = (middle, found),
        }
    }
    Some((jobs[good], fault))
}
