//! Gangs that mind where others stand: room is kept and made for them where they may go.

use meridian_api::ids::Uid;
use meridian_api::kinds::federated_job::JobRelation;
use meridian_api::kinds::spread::{DivisionRule, SpreadRule};
use meridian_api::units::UnixMillis;
use meridian_policies::check::check;
use meridian_policies::decide;
use meridian_policies::explain::render;
use meridian_policies::model::*;

use crate::builders::role;
use crate::ground::*;

/// The job whose gangs mind each other.
const ARRAY: Uid = Uid(77);

fn sound(snapshot: &Snapshot) -> Plan {
    let plan = decide(snapshot);
    assert_eq!(check(snapshot, &plan), [], "{}", render(snapshot, &plan));
    plan
}

/// Who is placed, and in which cluster.
fn placed(snapshot: &Snapshot) -> Vec<String> {
    let plan = sound(snapshot);
    let words = plan.placements.iter().map(|placed| {
        let job = &snapshot.waiting[placed.waiting.index()].job;
        let cluster = snapshot.pools[placed.pool.index()].cluster;
        let cluster = &snapshot.clusters[cluster.index()].name;
        format!("{} {cluster}", job.trim_start_matches("research/"))
    });
    words.collect()
}

fn apart_by_cluster() -> Choice {
    Choice {
        spread: Some(SpreadRule {
            topology_key: "cluster".to_owned(),
            min_domains: Some(2),
            min_per_domain: Some(1),
            max_skew: Some(1),
        }),
        ..Choice::default()
    }
}

fn divided(rule: DivisionRule) -> Choice {
    let one = |cluster| Group {
        clusters: vec![ClusterIx(cluster)],
        ..Group::default()
    };
    Choice {
        division: Some(Shares {
            rule,
            weights: vec![(one(0), 1), (one(1), 1)],
        }),
        ..Choice::default()
    }
}

/// Two clusters: in `c1` a gang of the array stands beside hosts that are free, in `c2` one host of
/// three is taken.
fn half_free(free_in_c1: usize, choice: Choice) -> Ground {
    let mut c1: Vec<&[(&str, u64)]> = vec![&[("first", 8)]];
    c1.resize(1 + free_in_c1, &[]);
    let mut ground = Ground::new()
        .cluster("c1")
        .pool("main", &c1)
        .cluster("c2")
        .pool("main", &[&[("other", 8)], &[], &[]])
        .gang("other", |gang| gang.class = PROD);
    ground.world.0.choices = vec![Choice::default(), choice];
    ground
        .asks("second", role(3, 8), |gang| {
            gang.gang.job = ARRAY;
            gang.gang.index = 1;
            gang.choice = ChoiceIx(1);
            gang.class = BATCH;
            gang.submitted = UnixMillis(NOW.0 - 20 * MINUTE);
        })
        .asks("small", role(1, 8), |gang| {
            gang.class = BATCH;
            gang.submitted = UnixMillis(NOW.0 - MINUTE);
        })
}

fn built(ground: Ground) -> Snapshot {
    let mut snapshot = ground.build();
    let first = find(&snapshot, "first");
    snapshot.held[first.index()].gang.job = ARRAY;
    snapshot.held[first.index()].gang.index = 0;
    snapshot.held[first.index()].class = PROD;
    snapshot
}

#[test]
fn a_slot_is_kept_where_the_others_let_the_gang_go() {
    // There would be room in `c1`, and it may not go there: it waits for `c2`, which is kept.
    assert_eq!(
        placed(&built(half_free(3, apart_by_cluster()))),
        ["small c1"]
    );
    let nobody: [&str; 0] = [];
    assert_eq!(placed(&built(half_free(0, apart_by_cluster()))), nobody);
}

#[test]
fn a_gang_of_a_divided_job_gets_a_slot_too() {
    let nobody: [&str; 0] = [];
    for rule in [
        DivisionRule::Weighted,
        DivisionRule::Dynamic,
        DivisionRule::Aggregated,
    ] {
        assert_eq!(placed(&built(half_free(0, divided(rule)))), nobody);
    }
}

/// Makes who waits first another job, which wants to be in another cluster than `first`.
fn apart_from_first(snapshot: &mut Snapshot) {
    snapshot.waiting[0].gang.job = Uid(78);
    snapshot.choices[1].jobs = vec![JobWish {
        rule: JobRelation::Apart,
        topology_key: "cluster".to_owned(),
        selector: 0,
    }];
    snapshot.selectors = vec![Selector {
        namespace: "research".to_owned(),
        labels: [("app".to_owned(), "first".to_owned())].into(),
        held: vec![find(snapshot, "first")],
        waiting: Vec::new(),
    }];
}

#[test]
fn a_slot_is_kept_apart_from_other_jobs() {
    let mut snapshot = built(half_free(3, Choice::default()));
    apart_from_first(&mut snapshot);
    assert_eq!(placed(&snapshot), ["small c1"]);
}

/// Both clusters are full; who stands in `c1` costs least.
fn full(choice: Choice) -> Snapshot {
    let mut ground = Ground::new()
        .cluster("c1")
        .pool("main", &[&[("first", 8)], &[("cheap", 8)]])
        .cluster("c2")
        .pool("main", &[&[("dear", 8)], &[("dearest", 8)]]);
    for (name, saved) in [("cheap", 1), ("dear", 30), ("dearest", 60)] {
        ground = ground.gang(name, |gang| {
            gang.standing.saved = Some(UnixMillis(NOW.0 - saved * MINUTE));
        });
    }
    ground.world.0.choices = vec![Choice::default(), choice];
    for index in 1..3 {
        ground = ground.asks(&format!("next{index}"), role(1, 8), |gang| {
            gang.gang.job = ARRAY;
            gang.gang.index = index;
            gang.choice = ChoiceIx(1);
        });
    }
    built(ground)
}

/// Who makes room for whom.
fn made(snapshot: &Snapshot) -> Vec<(String, Vec<String>)> {
    let made = sound(snapshot).preemptions;
    let words = made.iter().map(|made| {
        let job = &snapshot.waiting[made.waiting.index()].job;
        let job = job.trim_start_matches("research/").to_owned();
        (job, names(snapshot, made))
    });
    words.collect()
}

fn goes(job: &str, victim: &str) -> (String, Vec<String>) {
    (job.to_owned(), vec![victim.to_owned()])
}

#[test]
fn room_is_made_where_the_spread_lets_a_gang_go() {
    let snapshot = full(apart_by_cluster());
    // What is only promised in `c2` does not let a second one into `c1`.
    assert_eq!(made(&snapshot), [goes("next1", "dear")]);
    let plan = sound(&snapshot);
    let next = committed(&snapshot, &plan.preemptions[0]);
    // The hold is not met yet: nothing changes.
    assert_eq!(made(&next), []);
    let plan = sound(&next);
    assert_eq!((plan.placements.len(), plan.lapsed.len()), (0, 0));
}

#[test]
fn a_share_that_is_promised_is_taken() {
    // Two for each cluster when four gangs are divided evenly: one more in `c1`, one in `c2`.
    let mut snapshot = full(divided(DivisionRule::Weighted));
    let mut third = snapshot.waiting[1].clone();
    third.gang.index = 3;
    third.job = "research/next3".to_owned();
    snapshot.waiting.push(third);
    let all = [
        goes("next1", "cheap"),
        goes("next2", "dear"),
        goes("next3", "dearest"),
    ];
    assert_eq!(made(&snapshot), all);
}

#[test]
fn room_that_is_made_beside_those_who_came_since_is_given_up() {
    let mut snapshot = full(Choice::default());
    snapshot.waiting.truncate(1);
    apart_from_first(&mut snapshot);
    assert_eq!(made(&snapshot), [goes("next1", "dear")]);
    let plan = sound(&snapshot);
    let mut next = committed(&snapshot, &plan.preemptions[0]);
    let other = find(&next, "dearest");
    next.selectors[0].held.push(other);
    next.selectors[0].held.sort_unstable();
    let lapsed = sound(&next).lapsed;
    assert_eq!(lapsed.len(), 1);
    assert_eq!(lapsed[0].why, Lapse::Closed);
}
