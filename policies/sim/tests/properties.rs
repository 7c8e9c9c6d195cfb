//! Properties of any simulation, over random fleets, traces and losses of hosts.
//!
//! Owns the strategies. Never looks inside: what happens is seen through the watcher.

use std::collections::{BTreeMap, BTreeSet};

use meridian_api::kinds::tenant::TenantSpec;
use meridian_api::kinds::tenant_quota::TenantQuotaSpec;
use meridian_api::kinds::workload_class::{Preemption as Manner, WorkloadClassSpec};
use meridian_api::units::{MilliGpus, Millis, Resources, UnixMillis};
use meridian_policies::model::{Snapshot, Stage};
use meridian_sim::engine::{Checks, Rounds};
use meridian_sim::fleet::FleetPool;
use meridian_sim::rules::object;
use meridian_sim::trace::{HostsUp, Job};
use meridian_sim::{Alone, Fleet, Options, Rules, Scenario, StartsTold, Summary};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

/// A whole scenario's input.
#[derive(Clone, Debug)]
struct Input {
    rules: Rules,
    fleet: Fleet,
    jobs: Vec<Job>,
    hosts: Vec<HostsUp>,
}

impl Input {
    fn scenario(&self, rounds: Rounds) -> Scenario<'_> {
        Scenario {
            rules: &self.rules,
            fleet: &self.fleet,
            trace: "random",
            jobs: &self.jobs,
            hosts: &self.hosts,
            options: Options {
                rounds,
                checks: Checks::EachPlan,
                ..Options::default()
            },
            alone: Alone::Skipped,
        }
    }
}

fn job() -> impl Strategy<Value = Job> {
    let size =
        prop_oneof![4 => Just((1, 1)), 2 => Just((1, 4)), 1 => Just((2, 8)), 1 => Just((3, 2))];
    (0..200_i64, 0..3_u8, 0..2_u8, size, 1..80_u64, 0..2_i32).prop_map(
        |(submit, tenant, class, (pods, gpus), duration, priority)| Job {
            submit: UnixMillis(submit * 1000),
            tenant: format!("t{tenant}"),
            class: format!("c{class}"),
            pods,
            per_pod: Resources {
                gpus: MilliGpus::cards(gpus),
                ..Resources::default()
            },
            duration: Millis::seconds(duration),
            priority,
            ..Job::default()
        },
    )
}

fn rules(nominal: [u64; 3], cap: Option<u64>, manner: &Value) -> Rules {
    let mut rules = Rules::default();
    for (index, nominal) in nominal.into_iter().enumerate() {
        let name = format!("t{index}");
        rules.tenants.push(object::<TenantSpec>(&name, &json!({})));
        let mut row = json!({"nominal": nominal});
        if let (0, Some(cap)) = (index, cap) {
            row["hardCap"] = cap.max(nominal).into();
        }
        let quota = json!({"tenant": name, "resources": [row]});
        rules.quotas.push(object::<TenantQuotaSpec>(&name, &quota));
    }
    for (name, priority) in [("c0", 1), ("c1", 5)] {
        let mut spec = if name == "c1" && manner["sparesHigh"] == true {
            json!({"preemption": "Never"})
        } else {
            manner["manner"].clone()
        };
        spec["priority"] = json!(priority);
        let class = object::<WorkloadClassSpec>(name, &spec);
        rules.classes.push(class);
    }
    rules
}

/// How work makes room for others.
fn manner() -> impl Strategy<Value = Value> {
    let notice = prop_oneof![Just("0s"), Just("20s"), Just("90s")];
    let kind = prop_oneof![Just("Requeue"), Just("CheckpointThenRequeue")];
    (kind, notice, any::<bool>()).prop_map(|(kind, notice, spares_high)| {
        json!({"manner": {"preemption": kind, "notice": notice}, "sparesHigh": spares_high})
    })
}

/// Any scenario, with work that makes room for others or without.
fn input() -> impl Strategy<Value = Input> {
    prop_oneof![still(), manner().prop_flat_map(with_manner)]
}

/// A scenario in which nobody makes room: what is decided depends on room and quota alone.
fn still() -> impl Strategy<Value = Input> {
    with_manner(json!({"manner": {"preemption": "Never"}}))
}

fn with_manner(manner: Value) -> impl Strategy<Value = Input> {
    let steps = vec((0..300_i64, 0..4_u32), 0..4);
    let quotas = (
        [0..20_u64, 0..20_u64, 0..20_u64],
        proptest::option::of(0..20_u64),
    );
    (vec(job(), 1..40), 1..5_u32, 0..3_u32, quotas, steps).prop_map(
        move |(mut jobs, wide, narrow, (nominal, cap), steps)| {
            for (job, line) in jobs.iter_mut().zip(1..) {
                job.line = line;
            }
            jobs.sort_by_key(|job| job.submit);
            let mut pools = vec![FleetPool::uniform("a", "wide", "x", wide, 8)];
            if narrow > 0 {
                pools.push(FleetPool::uniform("a", "narrow", "y", narrow, 4));
            }
            let step = |(at, up): (i64, u32)| HostsUp {
                at: UnixMillis(at * 1000),
                cluster: "a".to_owned(),
                pool: "wide".to_owned(),
                up,
            };
            let mut hosts: Vec<HostsUp> = steps.into_iter().map(step).collect();
            // In the end everything is up.
            hosts.push(step((300, wide)));
            hosts.sort_by_key(|step| step.at);
            Input {
                rules: rules(nominal, cap, &manner),
                fleet: Fleet { pools },
                jobs,
                hosts,
            }
        },
    )
}

/// No host gives more than it has, what is not free is exactly what is held, and whose class never
/// makes room is not told to go.
fn nothing_is_given_twice(snapshot: &Snapshot) {
    let (mut all, mut free) = (0, 0);
    for pool in &snapshot.pools {
        for row in &pool.shapes {
            assert!(row.allocatable.covers(row.free), "{row:?}");
            all += row.allocatable.gpus.0 * u64::from(row.hosts);
            free += row.free.gpus.0 * u64::from(row.hosts);
        }
    }
    let held: u64 = snapshot.held.iter().map(|held| held.resources.gpus.0).sum();
    assert_eq!(all - free, held);
    let gangs = snapshot.held.iter().map(|held| held.gang);
    let gangs = gangs.chain(snapshot.waiting.iter().map(|row| row.gang));
    let each: BTreeSet<_> = gangs.clone().collect();
    assert_eq!(each.len(), gangs.count(), "a gang holds or waits, once");
    for held in &snapshot.held {
        let stays = snapshot.classes[held.class.index()].rule.how == Manner::Never;
        assert!(!stays || held.standing.stage == Stage::Running, "{held:?}");
    }
}

fn outcome(input: &Input, rounds: Rounds) -> Summary {
    input.scenario(rounds).run().expect("it runs")
}

/// The summary without how often was asked, and without the words for it: a round that places
/// nothing may still say of a gang that it waits for room, and no longer that others took it.
fn without_words(summary: Summary) -> (Summary, u64) {
    let waited = summary.blocked.iter().map(|row| row.wait_ms).sum();
    let summary = Summary {
        rounds: 0,
        // Whoever arrives between two rounds is told nothing.
        starts: StartsTold::default(),
        blocked: Vec::new(),
        ..summary
    };
    (summary, waited)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 100,
        max_shrink_iters: 400,
        ..ProptestConfig::default()
    })]

    #[test]
    fn gpus_are_conserved(input in input()) {
        let mut before: Option<(UnixMillis, u64)> = None;
        let mut area: u128 = 0;
        let mut held_by_gang: BTreeMap<_, UnixMillis> = BTreeMap::new();
        let summary = input.scenario(Rounds::WhenNeeded).run_watched(|moment| {
            nothing_is_given_twice(moment.snapshot);
            let held = moment.snapshot.held.iter().map(|held| held.resources.gpus.0).sum();
            if let Some((at, held)) = before {
                assert!(moment.at >= at, "time goes on");
                area += u128::from(held) * u128::from(moment.at.since(at).0);
            }
            before = Some((moment.at, held));
            for held in &moment.snapshot.held {
                held_by_gang.entry(held.gang).or_insert(held.since);
            }
        });
        let summary = summary.expect("it runs");
        // What the fleet gave is what jobs ran, to completion or in vain.
        let hours = |area: u128| u64::try_from(area * 100 / 3_600_000_000).expect("small");
        prop_assert_eq!(summary.used_gpu_hours.0, hours(area));
        prop_assert_eq!(held_by_gang.len() as u64, summary.jobs - summary.never_started);
        let ran = work_done(&input, &summary);
        prop_assert!(ran <= area);
        prop_assert_eq!(summary.lost_gpu_hours.0, hours(area - ran));
        prop_assert!(summary.losses + summary.preemptions > 0 || ran == area);
    }

    #[test]
    fn what_fits_and_is_allowed_runs_in_the_end(input in input()) {
        let summary = outcome(&input, Rounds::WhenNeeded);
        prop_assert_eq!(summary.completed, summary.jobs - summary.never_started);
        for row in &summary.blocked {
            let good = ["NeverPlaceable", "ExceedsQuota"];
            let is_good = row.never_started == 0 || good.contains(&row.reason.as_str());
            prop_assert!(is_good, "{:?}", row);
        }
    }

    #[test]
    fn rounds_that_are_left_out_change_nothing(input in still()) {
        let needed = outcome(&input, Rounds::WhenNeeded);
        let always = outcome(&input, Rounds::Always);
        prop_assert!(needed.rounds <= always.rounds);
        prop_assert_eq!(without_words(always), without_words(needed));
    }

    #[test]
    fn the_same_input_gives_the_same_bytes(input in input()) {
        let bytes = || {
            let summary = outcome(&input, Rounds::WhenNeeded);
            (summary.to_text(), serde_json::to_string(&summary).expect("JSON"))
        };
        prop_assert_eq!(bytes(), bytes());
    }
}

/// GPU milliseconds of the jobs that completed: all durations here are of cards of speed 1.
fn work_done(input: &Input, summary: &Summary) -> u128 {
    assert_eq!(summary.completed, summary.jobs - summary.never_started);
    let completes = |job: &&Job| {
        // The only jobs that never start are told apart by their own scenario: run it alone.
        let one = Input {
            jobs: vec![Job {
                submit: UnixMillis(300_000),
                ..(*job).clone()
            }],
            ..input.clone()
        };
        outcome(&one, Rounds::WhenNeeded).completed == 1
    };
    let work = |job: &Job| {
        u128::from(job.per_pod.gpus.0) * u128::from(job.pods) * u128::from(job.duration.0)
    };
    input.jobs.iter().filter(completes).map(work).sum()
}
