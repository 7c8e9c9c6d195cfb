//! Small traces whose outcome was computed by hand, and the form of the summary.
//!
//! Owns the hand-computed figures. Never looks inside: everything goes through `Scenario`.

use meridian_api::document;
use meridian_sim::engine::{Checks, Rounds};
use meridian_sim::trace::{HostsUp, Job, read_hosts, read_jobs};
use meridian_sim::{Alone, Fleet, Options, Rules, Scenario, StartsTold, Summary};

const CLASSES: &str = "
apiVersion: meridian.dev/v1alpha1
kind: WorkloadClass
metadata: {name: high}
spec: {priority: 10, preemption: Never}
---
apiVersion: meridian.dev/v1alpha1
kind: WorkloadClass
metadata: {name: low}
spec: {priority: 1, preemption: Never}
";

fn tenant(name: &str, nominal: u64) -> String {
    format!(
        "---\napiVersion: meridian.dev/v1alpha1\nkind: Tenant\nmetadata: {{name: {name}}}\n\
         spec: {{}}\n---\napiVersion: meridian.dev/v1alpha1\nkind: TenantQuota\n\
         metadata: {{name: {name}}}\nspec: {{tenant: {name}, resources: [{{nominal: {nominal}}}]}}\n"
    )
}

fn rules(tenants: &[(&str, u64)]) -> Rules {
    let mut text = CLASSES.to_owned();
    for (name, nominal) in tenants {
        text.push_str(&tenant(name, *nominal));
    }
    let documents = document::parse(text.as_bytes()).expect("YAML");
    Rules::read(documents.iter().map(|each| ("rules.yaml", &each.value))).expect("they are valid")
}

fn fleet(rows: &str) -> Fleet {
    let text = format!("cluster,pool,flavor,hosts,gpus,worth\n{rows}");
    Fleet::read("fleet.csv", text.as_bytes()).expect("a fleet")
}

fn jobs(rows: &str) -> Vec<Job> {
    let text = format!("submit,tenant,class,pods,gpus,duration,flavor\n{rows}");
    read_jobs("trace.csv", text.as_bytes()).expect("a trace")
}

fn run(rules: &Rules, fleet: &Fleet, jobs: &[Job], hosts: &[HostsUp], alone: Alone) -> Summary {
    let scenario = |rounds| Scenario {
        rules,
        fleet,
        trace: "trace.csv",
        jobs,
        hosts,
        options: Options {
            rounds,
            checks: Checks::EachPlan,
            ..Options::default()
        },
        alone,
    };
    let summary = scenario(Rounds::WhenNeeded).run().expect("it runs");
    let always = scenario(Rounds::Always).run().expect("it runs");
    let bare = |summary: &Summary| Summary {
        rounds: 0,
        // Whoever arrives between two rounds is told nothing.
        starts: StartsTold::default(),
        blocked: Vec::new(),
        ..summary.clone()
    };
    assert_eq!(
        bare(&always),
        bare(&summary),
        "rounds that are left out change nothing"
    );
    summary
}

#[test]
fn one_host_one_after_the_other() {
    // One host of 8. a: 0..100 s on 8. b (4) and c (4) wait from 10 and 20 to 100 and run side by
    // side, b to 200 and c to 150.
    let summary = run(
        &rules(&[("t", 64)]),
        &fleet("c,p,x,1,8,1000\n"),
        &jobs("0,t,low,1,8,100,\n10,t,low,1,4,100,\n20,t,low,1,4,50,\n"),
        &[],
        Alone::Skipped,
    );
    assert_eq!((summary.completed, summary.makespan_ms), (3, 200_000));
    assert_eq!(summary.wait.mean_ms, (90_000 + 80_000) / 3);
    assert_eq!((summary.wait.p50_ms, summary.wait.max_ms), (80_000, 90_000));
    assert_eq!(
        summary.completion.mean_ms,
        (100_000 + 190_000 + 130_000) / 3
    );
    // 8 x 100 + 4 x 100 + 4 x 50 = 1,400 of 8 x 200 GPU seconds.
    assert_eq!(summary.utilisation.0, 8_750);
    // Something waits from 10 to 100, when everything is in use.
    assert_eq!(summary.utilisation_while_waiting.0, 10_000);
    assert_eq!(summary.longest_queue, 2);
    let [blocked] = summary.blocked.as_slice() else {
        panic!("{:?}", summary.blocked);
    };
    assert_eq!(
        (blocked.reason.as_str(), blocked.wait_ms),
        ("WaitingForCapacity", 170_000)
    );
}

#[test]
fn the_class_goes_first() {
    // Both wait for the same host from 1 s on; the later one is of the higher class.
    let summary = run(
        &rules(&[("t", 8)]),
        &fleet("c,p,x,1,8,1000\n"),
        &jobs("0,t,low,1,8,10,\n1,t,low,1,8,10,\n2,t,high,1,8,10,\n"),
        &[],
        Alone::Skipped,
    );
    let waits: Vec<(&str, u64)> = summary
        .by_class
        .iter()
        .map(|group| (group.name.as_str(), group.wait.max_ms))
        .collect();
    assert_eq!(waits, [("high", 8_000), ("low", 19_000)]);
}

#[test]
fn worth_and_speed_count() {
    // A card of flavor `fast` is worth three of `slow` and twice as fast: 100 s there, 200 s here.
    let summary = run(
        &rules(&[("t", 16)]),
        &fleet("c,fast,fast,1,8,3000\nc,slow,slow,1,8,1000\n"),
        &jobs("0,t,low,1,8,200,fast=2|slow=1\n0,t,low,1,8,200,fast=2|slow=1\n"),
        &[],
        Alone::Skipped,
    );
    assert_eq!(summary.makespan_ms, 200_000);
    // Cards: 8 x 100 + 8 x 200 of 16 x 200. Worth: 24 x 100 + 8 x 200 of 32 x 200.
    assert_eq!(summary.utilisation.0, 7_500);
    assert_eq!(summary.utilisation_by_worth.0, 6_250);
}

#[test]
fn the_price_book_says_what_cards_are_worth() {
    let book = "apiVersion: meridian.dev/v1alpha1\nkind: PriceBook\nmetadata: {name: p}\n\
                spec: {currency: EUR, flavors: [{flavor: fast, worth: 3}]}\n";
    let text = format!("{CLASSES}{}---\n{book}", tenant("t", 16));
    let documents = document::parse(text.as_bytes()).expect("YAML");
    let rules = Rules::read(documents.iter().map(|each| ("rules.yaml", &each.value)));
    let summary = run(
        &rules.expect("they are valid"),
        &fleet("c,fast,fast,1,8,1000\nc,slow,slow,1,8,1000\n"),
        &jobs("0,t,low,1,8,100,fast\n"),
        &[],
        Alone::Skipped,
    );
    // 8 of 16 cards, 24 of 32 in worth.
    assert_eq!(
        (summary.utilisation.0, summary.utilisation_by_worth.0),
        (5_000, 7_500)
    );
}

#[test]
fn a_lost_host_costs_its_gangs_what_they_ran() {
    // Two hosts; a gang of 2 x 8 runs from 0. One host is gone from 60 to 100 s: the gang is lost
    // after 60 s with 16 GPUs, waits 40 s and runs its whole 100 s again.
    let hosts =
        read_hosts("h.csv", b"at,cluster,pool,hosts\n60,c,p,1\n100,c,p,2\n").expect("steps");
    let summary = run(
        &rules(&[("t", 16)]),
        &fleet("c,p,x,2,8,1000\n"),
        &jobs("0,t,low,2,8,100,\n"),
        &hosts,
        Alone::Skipped,
    );
    assert_eq!((summary.losses, summary.completed), (1, 1));
    assert_eq!(summary.makespan_ms, 200_000);
    assert_eq!(summary.wait.max_ms, 40_000);
    // 16 x 60 GPU seconds are 0.2666 GPU hours.
    assert_eq!(summary.lost_gpu_hours.0, 26);
    // Held 16 x 160 of 16 x 160 + 8 x 40 that were up.
    assert_eq!(summary.utilisation.0, 2_560 * 10_000 / 2_880);
}

#[test]
fn what_fits_nowhere_is_said() {
    let summary = run(
        &rules(&[("t", 64), ("u", 4)]),
        &fleet("c,p,x,1,8,1000\n"),
        &jobs("0,t,low,1,16,100,\n0,t,low,1,8,10,\n"),
        &[],
        Alone::Skipped,
    );
    assert_eq!((summary.never_started, summary.completed), (1, 1));
    let never = summary.blocked.iter().find(|row| row.never_started == 1);
    assert_eq!(never.expect("a reason").reason.as_str(), "NeverPlaceable");
}

#[test]
fn shares_are_measured_against_what_is_owed() {
    // Tenants of equal weight on 8 GPUs. `a` takes all from 0 to 100; `b` asks for all from 50 on:
    // it is owed 4 for 50 s and has none, `a` holds 4 too many for 50 s. From 100 `b` runs alone.
    let summary = run(
        &rules(&[("a", 4), ("b", 4)]),
        &fleet("c,p,x,1,8,1000\n"),
        &jobs("0,a,low,1,8,100,\n50,b,low,1,8,100,\n"),
        &[],
        Alone::Skipped,
    );
    let [a, b] = summary.tenants.as_slice() else {
        panic!("{:?}", summary.tenants);
    };
    // 4 x 50 of 8 x 200.
    assert_eq!((a.fairness_gap.0, b.fairness_gap.0), (1_250, 1_250));
    assert_eq!((a.short_gpu_hours.0, b.over_gpu_hours.0), (0, 0));
    assert_eq!(summary.fairness_gap.0, 1_250);
}

#[test]
fn free_gpus_in_the_wrong_shape_are_fragmentation() {
    // Pods of 8 and of 4 are equally usual. While 4 GPUs are free (0 to 10 s), half of them are of
    // no use: those that ask for 8.
    let summary = run(
        &rules(&[("t", 8)]),
        &fleet("c,p,x,1,8,1000\n"),
        &jobs("0,t,low,1,4,10,\n0,t,low,1,8,10,\n"),
        &[],
        Alone::Skipped,
    );
    assert_eq!(summary.makespan_ms, 20_000);
    assert_eq!(summary.fragmentation.0, 5_000);
}

#[test]
fn nobody_waits_longer_than_alone_unless_it_is_said() {
    // `b` borrows all of the fleet at 0. `a` comes at 10 and waits to 100, though alone, on its own
    // host, it would not wait.
    let summary = run(
        &rules(&[("a", 8), ("b", 8)]),
        &fleet("c,p,x,2,8,1000\n"),
        &jobs("0,b,low,2,8,100,\n10,a,low,1,8,10,\n"),
        &[],
        Alone::Compared,
    );
    let sharing = summary.sharing.expect("it was asked for");
    let [a, b] = sharing.as_slice() else {
        panic!("{sharing:?}");
    };
    assert_eq!(
        (a.worst_extra_ms, a.waited_longer, a.private_gpus),
        (90_000, 1, 8)
    );
    assert_eq!((a.shared_mean_ms, a.private_mean_ms), (90_000, 0));
    // Its own host could never hold 16.
    assert_eq!((b.compared, b.only_shared), (0, 1));
}

#[test]
fn rounds_may_be_rare() {
    let (rules, fleet) = (rules(&[("t", 8)]), fleet("c,p,x,1,8,1000\n"));
    let jobs = jobs("0,t,low,1,4,100,\n7,t,low,1,4,100,\n");
    let scenario = Scenario {
        rules: &rules,
        fleet: &fleet,
        trace: "trace.csv",
        jobs: &jobs,
        hosts: &[],
        options: Options {
            round_every: meridian_api::units::Millis::seconds(30),
            ..Options::default()
        },
        alone: Alone::Skipped,
    };
    let summary = scenario.run().expect("it runs");
    assert_eq!((summary.rounds, summary.wait.max_ms), (2, 23_000));
}

#[test]
fn strangers_are_named_with_their_line() {
    let (rules, fleet) = (rules(&[("team", 8)]), fleet("c,p,x,1,8,1000\n"));
    let error = |rows: &str| {
        let jobs = jobs(rows);
        let scenario = Scenario {
            rules: &rules,
            fleet: &fleet,
            trace: "trace.csv",
            jobs: &jobs,
            hosts: &[],
            options: Options::default(),
            alone: Alone::Skipped,
        };
        scenario
            .run()
            .expect_err("it names what is not there")
            .to_string()
    };
    assert_eq!(
        error("0,team,low,1,8,1,\n0,taem,low,1,8,1,\n"),
        "trace.csv line 3, column tenant: there is no Tenant \"taem\" (did you mean \"team\"?)"
    );
    assert_eq!(
        error("0,team,lwo,1,8,1,\n"),
        "trace.csv line 2, column class: there is no WorkloadClass \"lwo\" (did you mean \"low\"?)"
    );
    assert_eq!(
        error("0,team,low,1,8,1,y\n"),
        "trace.csv line 2, column flavor: there is no flavor \"y\" (did you mean \"x\"?)"
    );
}

#[test]
fn the_summary_is_text_for_people() {
    let hosts =
        read_hosts("h.csv", b"at,cluster,pool,hosts\n60,c,p,1\n100,c,p,2\n").expect("steps");
    let summary = run(
        &rules(&[("a", 8), ("b", 8)]),
        &fleet("c,p,x,2,8,1000\n"),
        &jobs("0,b,low,2,8,100,\n10,a,high,1,8,10,\n15,a,high,1,2,5400,\n20,a,low,1,16,1,\n"),
        &hosts,
        Alone::Compared,
    );
    insta::assert_snapshot!(summary.to_text());
    let json = serde_json::to_value(&summary).expect("JSON");
    insta::assert_json_snapshot!(json);
}
