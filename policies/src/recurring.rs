//! Recurring jobs: which run starts, which is left out, and which are forgotten.
//!
//! Owns the rules about runs that are late, missed, in each other's way, or old. Pure: the caller
//! says what is there and what time it is. Never makes a run.

use meridian_api::kinds::federated_job::{MissedRunPolicy, OverlapPolicy, Schedule};
use meridian_api::recurrence::Recurrence;
use meridian_api::units::{Millis, UnixMillis};

/// A run that could not be started so long after its time is missed, when the schedule does not
/// say: longer than a change of leaders or a restart of the hub, shorter than anybody's patience.
pub const START_DEADLINE: Millis = Millis::seconds(300);
/// Missed instants that are counted: a line of every minute that was not looked at for a day.
const MAX_COUNTED: u32 = 1_440;

/// One run that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its name.
    pub name: String,
    /// The instant that it is for.
    pub scheduled: UnixMillis,
    /// How it stands.
    pub state: RunState,
}

/// How a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunState {
    /// It waits, runs, or is being stopped.
    Active,
    /// It ended well.
    Succeeded,
    /// It ended otherwise.
    Failed,
}

/// What is to be done about a recurring job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// The instant whose run starts now.
    pub start: Option<UnixMillis>,
    /// Runs that are stopped for it.
    pub replace: Vec<String>,
    /// Finished runs that are forgotten.
    pub forget: Vec<String>,
    /// Everything up to this instant has been dealt with; `None` = nothing new.
    pub seen: Option<UnixMillis>,
    /// What was left out, and why.
    pub left_out: Option<LeftOut>,
    /// The next instant.
    pub next: Option<UnixMillis>,
}

/// Instants without a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// How many, as far as they were counted.
    pub count: u32,
    /// The last of them.
    pub last: UnixMillis,
    /// Why.
    pub why: WhyLeftOut,
}

/// Why an instant has no run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyLeftOut {
    /// Its time passed while nobody looked.
    Missed,
    /// The run before it is not over.
    Overlap,
    /// The job is suspended.
    Suspended,
}

/// What is known of a recurring job.
#[derive(Clone, Copy, Debug)]
pub struct Recurring<'a> {
    /// What it says.
    pub schedule: &'a Schedule,
    /// Its instants.
    pub recurrence: &'a Recurrence,
    /// Suspended by a person.
    pub suspended: bool,
    /// Everything up to here has been dealt with: when it was made, at first.
    pub seen: UnixMillis,
    /// Runs that are there, in any order.
    pub runs: &'a [Run],
}

/// What is to be done at `now`.
#[must_use]
pub fn due(job: Recurring<'_>, now: UnixMillis) -> Due {
    let mut due = Due {
        next: job.recurrence.next_after(now),
        forget: forget(job),
        ..Due::default()
    };
    let last = job.recurrence.last_until(now);
    let Some(last) = last.filter(|last| *last > job.seen) else {
        return due;
    };
    due.seen = Some(last);
    let left_out = |count: u32, last, why| Some(LeftOut { count, last, why });
    let passed = passed(job, last);
    if job.suspended {
        due.left_out = left_out(passed, last, WhyLeftOut::Suspended);
        return due;
    }
    let deadline = job
        .schedule
        .start_deadline
        .map_or(START_DEADLINE, |span| span.0);
    let late = now.since(last) > deadline;
    let made_up = job.schedule.missed_run_policy == MissedRunPolicy::RunOnce;
    if late && !made_up {
        due.left_out = left_out(passed, last, WhyLeftOut::Missed);
        return due;
    }
    let active = job.runs.iter().filter(|run| run.state == RunState::Active);
    let active: Vec<String> = active.map(|run| run.name.clone()).collect();
    match job.schedule.overlap_policy {
        OverlapPolicy::Forbid if !active.is_empty() => {
            due.left_out = left_out(passed, last, WhyLeftOut::Overlap);
            return due;
        }
        OverlapPolicy::Replace => due.replace = active,
        OverlapPolicy::Forbid | OverlapPolicy::Allow => {}
    }
    due.start = Some(last);
    if passed > 1 {
        let before = UnixMillis(last.0 - 1);
        let missed = job.recurrence.last_until(before).unwrap_or(job.seen);
        due.left_out = left_out(passed - 1, missed, WhyLeftOut::Missed);
    }
    due
}

/// How many instants have passed since the last that was dealt with, up to `last`.
fn passed(job: Recurring<'_>, last: UnixMillis) -> u32 {
    let mut count = 0;
    let mut at = job.seen;
    while count < MAX_COUNTED {
        match job.recurrence.next_after(at) {
            Some(next) if next <= last => {
                at = next;
                count += 1;
            }
            Some(_) | None => break,
        }
    }
    count
}

/// Finished runs beyond those that are kept, the oldest first.
fn forget(job: Recurring<'_>) -> Vec<String> {
    let mut forgotten = Vec::new();
    for (state, kept) in [
        (RunState::Succeeded, job.schedule.successful_runs_kept),
        (RunState::Failed, job.schedule.failed_runs_kept),
    ] {
        let runs = job.runs.iter().filter(|run| run.state == state);
        let mut runs: Vec<(UnixMillis, &str)> =
            runs.map(|run| (run.scheduled, run.name.as_str())).collect();
        runs.sort_unstable();
        let over = runs.len().saturating_sub(kept as usize);
        forgotten.extend(runs.iter().take(over).map(|(_, name)| (*name).to_owned()));
    }
    forgotten
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000;

    /// Every ten minutes.
    fn schedule() -> Schedule {
        Schedule {
            cron: Some("*/10 * * * *".into()),
            time_zone: Some("UTC".into()),
            ..Schedule::default()
        }
    }

    fn at(minute: i64) -> UnixMillis {
        UnixMillis(minute * MINUTE)
    }

    fn run(minute: i64, state: RunState) -> Run {
        Run {
            name: format!("r{minute}"),
            scheduled: at(minute),
            state,
        }
    }

    fn ask(schedule: &Schedule, suspended: bool, seen: i64, runs: &[Run], now: i64) -> Due {
        let recurrence = Recurrence::of(schedule, None).expect("a valid line");
        let job = Recurring {
            schedule,
            recurrence: &recurrence,
            suspended,
            seen: at(seen),
            runs,
        };
        due(job, at(now))
    }

    fn left_out(count: u32, last: i64, why: WhyLeftOut) -> LeftOut {
        let last = at(last);
        LeftOut { count, last, why }
    }

    #[test]
    fn each_instant_has_one_run() {
        let schedule = schedule();
        let before = ask(&schedule, false, 0, &[], 9);
        assert_eq!(
            (before.start, before.seen, before.next),
            (None, None, Some(at(10)))
        );
        let on_time = ask(&schedule, false, 0, &[], 11);
        assert_eq!((on_time.start, on_time.seen), (Some(at(10)), Some(at(10))));
        assert_eq!(on_time.left_out, None);
        assert_eq!(ask(&schedule, false, 10, &[], 11).start, None, "dealt with");
    }

    #[test]
    fn what_was_missed_is_left_out_or_made_up_for_once() {
        let skip = schedule();
        let late = ask(&skip, false, 10, &[], 58);
        assert_eq!(late.start, None);
        assert_eq!(late.left_out, Some(left_out(4, 50, WhyLeftOut::Missed)));
        let just_in_time = ask(&skip, false, 10, &[], 53);
        assert_eq!(just_in_time.start, Some(at(50)));
        assert_eq!(
            just_in_time.left_out,
            Some(left_out(3, 40, WhyLeftOut::Missed))
        );
        let once = Schedule {
            missed_run_policy: MissedRunPolicy::RunOnce,
            ..schedule()
        };
        let made_up = ask(&once, false, 10, &[], 58);
        assert_eq!((made_up.start, made_up.seen), (Some(at(50)), Some(at(50))));
        assert_eq!(made_up.left_out, Some(left_out(3, 40, WhyLeftOut::Missed)));
    }

    #[test]
    fn a_run_that_is_not_over_stands_in_the_way_as_the_policy_says() {
        let running = [run(10, RunState::Active)];
        let of = |overlap_policy| Schedule {
            overlap_policy,
            ..schedule()
        };
        let forbid = ask(&of(OverlapPolicy::Forbid), false, 10, &running, 21);
        assert_eq!((forbid.start, forbid.seen), (None, Some(at(20))));
        assert_eq!(forbid.left_out, Some(left_out(1, 20, WhyLeftOut::Overlap)));
        let allow = ask(&of(OverlapPolicy::Allow), false, 10, &running, 21);
        assert_eq!((allow.start, allow.replace.len()), (Some(at(20)), 0));
        let replace = ask(&of(OverlapPolicy::Replace), false, 10, &running, 21);
        assert_eq!(
            (replace.start, replace.replace),
            (Some(at(20)), vec!["r10".into()])
        );
    }

    #[test]
    fn what_passes_while_suspended_is_not_made_up_for() {
        let once = Schedule {
            missed_run_policy: MissedRunPolicy::RunOnce,
            ..schedule()
        };
        let suspended = ask(&once, true, 10, &[], 58);
        assert_eq!((suspended.start, suspended.seen), (None, Some(at(50))));
        assert_eq!(
            suspended.left_out,
            Some(left_out(4, 50, WhyLeftOut::Suspended))
        );
        assert_eq!(ask(&once, false, 50, &[], 58).start, None, "resumed");
    }

    #[test]
    fn the_newest_finished_runs_are_kept() {
        let keep = Schedule {
            successful_runs_kept: 2,
            failed_runs_kept: 0,
            ..schedule()
        };
        let runs = [
            run(30, RunState::Succeeded),
            run(10, RunState::Succeeded),
            run(20, RunState::Succeeded),
            run(40, RunState::Failed),
            run(50, RunState::Active),
        ];
        assert_eq!(ask(&keep, false, 50, &runs, 51).forget, ["r10", "r40"]);
    }
}
