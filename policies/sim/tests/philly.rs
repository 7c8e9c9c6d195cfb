//! Some days of the Philly table: every plan checked, and every promise of a start.
//!
//! Owns what the slice must keep; the whole table is `make simulate-trace`. Never times anything.

use meridian_api::reasons::Reason;
use meridian_sim::engine::{Checks, Rounds};
use meridian_sim::traces::philly;
use meridian_sim::{Alone, Options, Scenario};

#[test]
fn two_days_are_simulated_within_the_invariants() {
    // Monday and Tuesday of the week that the playground submits.
    let prepared = philly::prepare(49, 2, 90).expect("the table is whole");
    let scenario = |rounds, checks| Scenario {
        rules: &prepared.rules,
        fleet: &prepared.fleet,
        trace: prepared.name,
        jobs: &prepared.jobs,
        hosts: &[],
        options: Options {
            rounds,
            checks,
            ..Options::default()
        },
        alone: Alone::Skipped,
    };
    let checked = scenario(Rounds::WhenNeeded, Checks::EachPlan).run();
    let checked = checked.expect("every plan keeps every invariant");
    assert_eq!(checked.jobs, prepared.jobs.len() as u64);
    assert_eq!(checked.completed, checked.jobs, "{:?}", checked.blocked);
    let asked: u64 = prepared
        .jobs
        .iter()
        .map(|job| job.per_pod.gpus.whole() * u64::from(job.pods) * job.duration.0)
        .sum();
    assert_eq!(checked.losses, 0);
    // Each job's own time and what was run in vain, as hundredths of hours.
    let ran = checked.used_gpu_hours.0 - checked.lost_gpu_hours.0;
    assert!(ran.abs_diff(asked / 36_000) <= 1, "{ran} of {asked}");
    let again = scenario(Rounds::WhenNeeded, Checks::None)
        .run()
        .expect("it ran before");
    assert_eq!(checked, again, "the same input gives the same summary");
}

#[test]
fn gangs_start_within_the_span_that_they_were_told_and_none_waits_unasked() {
    // Two busy days on half the fleet that they would need.
    let prepared = philly::prepare(48, 2, 200).expect("the table is whole");
    let scenario = Scenario {
        rules: &prepared.rules,
        fleet: &prepared.fleet,
        trace: prepared.name,
        jobs: &prepared.jobs,
        hosts: &[],
        options: Options {
            checks: Checks::EachPlan,
            ..Options::default()
        },
        alone: Alone::Skipped,
    };
    let summary = scenario.run().expect("it runs");
    // What comes free in a round after somebody's turn is asked for at once.
    let mut blocked = summary.blocked.iter();
    let unasked = blocked.find(|row| row.reason == Reason::PendingEvaluation);
    assert_eq!(unasked.map_or(0, |row| row.wait_ms), 0, "{unasked:?}");
    let starts = summary.starts;
    let told = starts.sooner + starts.within + starts.later;
    assert!(told > 500, "{starts:?}");
    // What runs says when it ends at the latest, and most of it ends long before.
    assert!(starts.within * 4 >= told * 3, "{starts:?}");
    assert!(starts.later * 100 <= told, "{starts:?}");
}

#[test]
fn no_tenant_waits_longer_than_alone_on_what_it_owns() {
    // Two busy days on less than they ask for: each tenant lends, borrows and gets back.
    let prepared = philly::prepare(48, 2, 120).expect("the table is whole");
    let scenario = Scenario {
        rules: &prepared.rules,
        fleet: &prepared.fleet,
        trace: prepared.name,
        jobs: &prepared.jobs,
        hosts: &[],
        options: Options::default(),
        alone: Alone::Compared,
    };
    let summary = scenario.run().expect("it runs");
    assert!(summary.preemptions > 0, "nobody gave anything back");
    let sharing = summary.sharing.expect("it was asked for");
    for tenant in &sharing {
        // The longest notice of a class that ships: `batch-long` has two minutes to go.
        let most = tenant.private_mean_ms + 120_000;
        assert!(tenant.shared_mean_ms <= most, "{tenant:?}");
    }
    let longer = sharing.iter().filter(|tenant| tenant.private_mean_ms > 0);
    assert!(longer.count() > 3, "{sharing:?}");
}
