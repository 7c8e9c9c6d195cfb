//! Work that makes room for others, with outcomes computed by hand.
//!
//! Owns the hand-computed figures of preemption. Never looks inside: everything goes through
//! `Scenario`.

use meridian_api::document;
use meridian_sim::engine::Checks;
use meridian_sim::rules::object;
use meridian_sim::trace::{Job, read_jobs};
use meridian_sim::{Alone, Fleet, Options, Rules, Scenario, Summary};

/// Two tenants that own 8 cards each; `kind` says how the lower class makes room.
fn rules(kind: &str) -> Rules {
    let tenant = |name: &str| {
        format!(
            "---\napiVersion: meridian.dev/v1alpha1\nkind: Tenant\nmetadata: {{name: {name}}}\n\
             spec: {{}}\n---\napiVersion: meridian.dev/v1alpha1\nkind: TenantQuota\n\
             metadata: {{name: {name}}}\n\
             spec: {{tenant: {name}, resources: [{{nominal: 8}}]}}\n"
        )
    };
    let text = format!(
        "apiVersion: meridian.dev/v1alpha1\nkind: WorkloadClass\nmetadata: {{name: high}}\n\
         spec: {{priority: 10, preemption: Never}}\n---\n\
         apiVersion: meridian.dev/v1alpha1\nkind: WorkloadClass\nmetadata: {{name: low}}\n\
         spec: {{priority: 1, {kind}}}\n{}{}",
        tenant("a"),
        tenant("b"),
    );
    let documents = document::parse(text.as_bytes()).expect("YAML");
    Rules::read(documents.iter().map(|each| ("rules.yaml", &each.value))).expect("they are valid")
}

fn jobs(rows: &str) -> Vec<Job> {
    let text = format!("name,submit,tenant,class,pods,gpus,duration,checkpoint\n{rows}");
    read_jobs("trace.csv", text.as_bytes()).expect("a trace")
}

fn run(kind: &str, hosts: u32, rows: &str, alone: Alone) -> Summary {
    run_on(&format!("c,p,x,{hosts},8,1000\n"), kind, rows, alone)
}

fn run_on(pools: &str, kind: &str, rows: &str, alone: Alone) -> Summary {
    run_under(&rules(kind), pools, rows, alone)
}

fn run_under(rules: &Rules, pools: &str, rows: &str, alone: Alone) -> Summary {
    let fleet = format!("cluster,pool,flavor,hosts,gpus,worth\n{pools}");
    let fleet = Fleet::read("fleet.csv", fleet.as_bytes()).expect("a fleet");
    let scenario = Scenario {
        rules,
        fleet: &fleet,
        trace: "trace.csv",
        jobs: &jobs(rows),
        hosts: &[],
        options: Options {
            checks: Checks::EachPlan,
            ..Options::default()
        },
        alone,
    };
    scenario.run().expect("it runs, and every plan is sound")
}

fn waits(summary: &Summary) -> Vec<(&str, u64)> {
    let groups = summary.by_class.iter();
    groups
        .map(|group| (group.name.as_str(), group.wait.max_ms / 1000))
        .collect()
}

#[test]
fn who_lent_gets_it_back_within_the_notice() {
    // `b` borrows all of the fleet at 0. `a` wants what it owns at 10: the gang of `b` has 30 s to
    // go, and begins anew when `a` is done, at 50.
    let rows = "big,0,b,low,2,8,100,\nown,10,a,low,1,8,10,\n";
    let summary = run("preemption: Requeue, notice: 30s", 2, rows, Alone::Compared);
    assert_eq!((summary.preemptions, summary.completed), (1, 2));
    assert_eq!(summary.makespan_ms, 150_000);
    assert_eq!(waits(&summary), [("low", 30)]);
    // 40 s on 16 cards were for nothing: 640 s of a card, in hundredths of hours.
    assert_eq!(summary.lost_gpu_hours.0, 640 * 100 / 3600);
    let sharing = summary.sharing.expect("it was asked for");
    assert_eq!(
        (sharing[0].tenant.as_str(), sharing[0].worst_extra_ms),
        ("a", 30_000)
    );
}

#[test]
fn what_was_saved_is_not_run_again() {
    // Stopped at 130 with what it had saved at 120; the other one runs to 140. 80 s are left.
    let rows = "long,0,a,low,1,8,200,60\nurgent,100,a,high,1,8,10,\n";
    let summary = run("preemption: Requeue, notice: 30s", 1, rows, Alone::Skipped);
    assert_eq!((summary.preemptions, summary.makespan_ms), (1, 220_000));
    assert_eq!(waits(&summary), [("high", 30), ("low", 10)]);
    assert_eq!(summary.lost_gpu_hours.0, 80 * 100 / 3600);
}

#[test]
fn who_is_asked_for_a_checkpoint_loses_nothing() {
    let rows = "long,0,a,low,1,8,200,60\nurgent,100,a,high,1,8,10,\n";
    let kind = "preemption: CheckpointThenRequeue, notice: 30s";
    let summary = run(kind, 1, rows, Alone::Skipped);
    assert_eq!((summary.preemptions, summary.makespan_ms), (1, 210_000));
    assert_eq!(summary.lost_gpu_hours.0, 0);
}

#[test]
fn nobody_goes_before_its_least_run_time() {
    // It is old enough at 90: then the request of 20 is looked at again, and its notice is 10 s.
    let rows = "long,0,a,low,1,8,200,\nurgent,20,a,high,1,8,10,\n";
    let kind = "preemption: Requeue, notice: 10s, minRuntime: 90s";
    let summary = run(kind, 1, rows, Alone::Skipped);
    assert_eq!(waits(&summary), [("high", 80), ("low", 10)]);
}

#[test]
fn a_session_that_is_taken_back_does_not_come_back() {
    let rows = "session,0,a,low,1,8,200,\nurgent,20,a,high,1,8,10,\n";
    let summary = run("preemption: Reclaim, notice: 10s", 1, rows, Alone::Skipped);
    assert_eq!((summary.preemptions, summary.completed), (1, 1));
    assert_eq!(summary.makespan_ms, 40_000);
}

#[test]
fn the_one_that_loses_least_goes() {
    // Both may go. The second has run for less, and has less to do again.
    let rows = "old,0,a,low,1,8,500,\nyoung,90,b,low,1,8,500,\nurgent,100,a,high,1,8,10,\n";
    let summary = run("preemption: Requeue, notice: 0s", 2, rows, Alone::Skipped);
    assert_eq!(summary.preemptions, 1);
    // `a` may not take from `b`, which holds only what it owns: its own older one goes.
    assert_eq!(summary.lost_gpu_hours.0, 800 * 100 / 3600);
}

#[test]
fn what_comes_free_is_for_the_one_it_was_freed_for() {
    // The big gang of `a` makes two others go at 50. One ends by itself at 60; the small gang that
    // comes at 61 does not get that host, which is held.
    let rows = "one,0,a,low,1,8,60,\ntwo,0,a,low,1,8,500,\nbig,50,a,high,2,8,10,\n\
                small,61,a,low,1,8,10,\n";
    let summary = run("preemption: Requeue, notice: 60s", 2, rows, Alone::Skipped);
    assert_eq!(summary.preemptions, 1);
    let waited = waits(&summary);
    assert_eq!(waited[0], ("high", 60));
}

#[test]
fn who_saves_its_work_goes_on_where_there_is_room_and_nobody_else_gets_that() {
    // `long` stands on the large host, as `first` has the small one until 50. `urgent` needs the
    // large one at 100: `long` is told, and the small one is held for it. It goes on there at 130
    // with 70 s left. `late`, which would fit on the small one at 105, starts when `urgent` ends.
    let rows = "first,0,a,low,1,4,50,\nlong,1,a,low,1,4,199,60\nurgent,100,a,high,1,8,10,\n\
                late,105,a,low,1,4,100,\n";
    let kind = "preemption: CheckpointThenRequeue, notice: 30s";
    let pools = "c,p,x,1,8,1000\nd,p,x,1,4,1000\n";
    let summary = run_on(pools, kind, rows, Alone::Skipped);
    assert_eq!((summary.preemptions, summary.completed), (1, 4));
    assert_eq!(waits(&summary), [("high", 30), ("low", 35)]);
    assert_eq!(summary.makespan_ms, 240_000);
    assert_eq!(summary.lost_gpu_hours.0, 0);
}

#[test]
fn a_window_opens_and_what_was_protected_may_be_stopped() {
    // The trace begins at midnight of a Thursday in Dublin, an hour ahead of UTC in 1970: its
    // window opens at 00:10 UTC.
    let mut rules = rules("preemption: Requeue, notice: 30s, preemptionWindows: [early]");
    let open = serde_json::json!([{"days": ["Thu"], "start": "01:10", "end": "02:00"}]);
    let spec = serde_json::json!({"timeZone": "Europe/Dublin", "open": open});
    rules.windows = vec![object("early", &spec)];
    let rows = "long,0,a,low,1,8,5000,\nurgent,100,a,high,1,8,10,\n";
    let pools = "c,p,x,1,8,1000\n";
    let summary = run_under(&rules, pools, rows, Alone::Skipped);
    // It opens at 600, and the notice is 30 s.
    assert_eq!(waits(&summary), [("high", 530), ("low", 10)]);
    rules.windows.clear();
    let summary = run_under(&rules, pools, rows, Alone::Skipped);
    assert_eq!(
        (summary.preemptions, waits(&summary)[0]),
        (0, ("high", 4_900))
    );
}

#[test]
fn small_ones_move_together_so_that_a_host_comes_free_for_a_large_one() {
    // `a` and `b` end on one half-empty host each. `large` waits for a whole one, of the same
    // class: nobody may be stopped for it. Right after 700 it has waited for more than ten minutes,
    // and one of them is told to go on beside the other.
    let rows = "a,0,a,low,1,2,9000,60\nf,0,b,low,1,6,50,\nb,1,a,low,1,2,9000,60\n\
                large,100,a,low,1,8,10,\n";
    let kind = "preemption: CheckpointThenRequeue, notice: 30s";
    let summary = run(kind, 2, rows, Alone::Skipped);
    assert_eq!((summary.preemptions, summary.completed), (1, 4));
    assert_eq!(waits(&summary), [("low", 630)]);
    assert_eq!(summary.lost_gpu_hours.0, 0);
}
