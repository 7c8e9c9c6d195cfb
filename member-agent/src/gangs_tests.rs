//! Tests of the decision for one gang, over the full product of what can be.

use meridian_api::ids::Uid;
use meridian_api::units::Resources;
use meridian_policies::model::{GangShape, RoleShape};

use super::*;
use crate::backend::GangTerms;

const ACCEPTED: UnixMillis = UnixMillis(1_000_000);
const PLACE_TIMEOUT: Millis = Millis(600_000);
const MAX_RUNTIME: Millis = Millis(3_600_000);
/// Early, after the time to place, after the time to run.
const TIMES: [UnixMillis; 3] = [
    UnixMillis(1_000_001),
    UnixMillis(1_700_000),
    UnixMillis(9_000_000),
];

fn key(epoch: u64) -> GangKey {
    GangKey {
        gang: GangId {
            job: Uid(1),
            index: 0,
        },
        epoch: Epoch(epoch),
    }
}

fn terms() -> GangTerms {
    GangTerms {
        pool: "h100".to_owned(),
        max_runtime: Some(MAX_RUNTIME),
        ..GangTerms::default()
    }
}

fn pod(rank: u32, phase: PodPhase) -> PodSeen {
    let started = match phase {
        PodPhase::Pending | PodPhase::Bound | PodPhase::Rejected { .. } => None,
        PodPhase::Running
        | PodPhase::Broken { .. }
        | PodPhase::Succeeded
        | PodPhase::Failed { .. } => Some(ACCEPTED),
    };
    PodSeen {
        name: format!("p{rank}"),
        role: "worker".to_owned(),
        rank,
        node: format!("n{rank}"),
        request: Resources::default(),
        ended: phase.ended().then_some(UnixMillis(1_000_000)),
        started,
        waits_for: String::new(),
        leaving: false,
        phase,
    }
}

fn seen(epoch: u64, stopping: bool, phases: &[PodPhase]) -> GangSeen {
    let pods = phases
        .iter()
        .zip(0..)
        .map(|(phase, rank)| pod(rank, phase.clone()));
    GangSeen {
        key: key(epoch),
        attempt: 0,
        complete: true,
        terms: terms(),
        stopping,
        pods: pods.collect(),
        checkpoint: None,
    }
}

fn failed(exit_code: i32) -> PodPhase {
    PodPhase::Failed {
        exit_code,
        reason: "Error".to_owned(),
    }
}

fn rejected_pod() -> PodPhase {
    PodPhase::Rejected {
        reason: "OutOfGpu".to_owned(),
    }
}

fn broken_pod() -> PodPhase {
    PodPhase::Broken {
        reason: "NodeLost".to_owned(),
    }
}

fn order() -> Arc<RunOrder> {
    Arc::new(RunOrder {
        key: key(2),
        terms: terms(),
        shape: GangShape::default(),
        pods: Vec::new(),
        roles: Vec::new(),
        place_timeout: PLACE_TIMEOUT,
        labels: indexmap::IndexMap::new(),
        workload: crate::backend::Workload::default(),
        traceparent: String::new(),
        leaves: Vec::new(),
        kept_hosts: std::collections::BTreeSet::new(),
    })
}

fn gang(desired: Desired, phase: Phase) -> Gang {
    Gang {
        record: Record {
            gang: key(2).gang,
            epoch: Epoch(2),
            desired,
            accepted: ACCEPTED,
            place_timeout: PLACE_TIMEOUT,
            grace: Millis(30_000),
            pool: "h100".to_owned(),
            verdict: None,
            ended: None,
            leave: None,
        },
        order: (desired == Desired::Run).then(order),
        phase,
        attempt: 0,
        avoid: BTreeMap::new(),
        mended_by: None,
        smaller: None,
    }
}

fn apply(gang: &mut Gang, turn: &Turn) {
    gang.phase = turn.phase;
    gang.attempt = turn.attempt;
    gang.record.verdict.clone_from(&turn.verdict);
    gang.record.ended = turn.ended;
}

/// Every shape that two pods can be in, with and without a stop.
fn sightings() -> Vec<Option<GangSeen>> {
    let phases = [
        PodPhase::Pending,
        rejected_pod(),
        PodPhase::Bound,
        PodPhase::Running,
        broken_pod(),
        PodPhase::Succeeded,
        failed(1),
    ];
    let mut all = vec![None];
    for first in &phases {
        for second in &phases {
            for (stopping, complete) in [(false, false), (false, true), (true, false), (true, true)]
            {
                let whole = seen(2, stopping, &[first.clone(), second.clone()]);
                all.push(Some(GangSeen { complete, ..whole }));
            }
        }
    }
    all
}

fn gangs() -> Vec<Gang> {
    let mut all = Vec::new();
    let ends = [End::Succeeded, End::Failed(Failure::ExitCode), End::Stopped];
    for desired in [Desired::Run, Desired::Stop, Desired::Adopted] {
        for phase in [
            Phase::Waiting,
            Phase::Binding,
            Phase::Live,
            Phase::PlaceAgain,
            Phase::Mending,
        ] {
            let plain = gang(desired, phase);
            for end in ends {
                let verdict = Verdict {
                    end,
                    exit_code: 0,
                    message: String::new(),
                    started: None,
                };
                for ended in [None, Some(ACCEPTED)] {
                    let mut judged = plain.clone();
                    judged.record.verdict = Some(verdict.clone());
                    judged.record.ended = ended;
                    all.push(judged);
                }
            }
            all.push(plain);
        }
    }
    all
}

/// Runs `check` over the full product of gangs, sights and times.
fn for_all(check: impl Fn(&Gang, &Sight<'_>, UnixMillis, &Turn)) {
    let old = seen(1, false, &[PodPhase::Running]);
    for gang in gangs() {
        for own in &sightings() {
            for older in [Vec::new(), vec![&old]] {
                for bits in 0..16_u8 {
                    let bit = |n: u8| bits & (1 << n) != 0;
                    let sight = Sight {
                        own: own.as_ref(),
                        older: older.clone(),
                        in_flight: bit(0),
                        asked: bit(1),
                        gone: bit(2),
                        told: bit(3),
                    };
                    for now in TIMES {
                        check(&gang, &sight, now, &step(&gang, &sight, now));
                    }
                }
            }
        }
    }
}

#[test]
fn nothing_is_said_to_have_ended_that_may_run() {
    for_all(|gang, sight, _, turn| {
        if gang.record.ended.is_some() || turn.ended.is_none() {
            return;
        }
        assert!(!sight.in_flight);
        assert!(sight.own.map_or(sight.gone, over));
        assert!(sight.older.is_empty() || gang.record.desired == Desired::Adopted);
        assert!(turn.verdict.is_some());
    });
}

#[test]
fn an_end_and_a_verdict_are_final() {
    for_all(|gang, _, _, turn| {
        if let Some(verdict) = &gang.record.verdict {
            assert_eq!(turn.verdict.as_ref(), Some(verdict));
        }
        if gang.record.ended.is_some() {
            assert_eq!(turn.ended, gang.record.ended);
        }
    });
}

#[test]
fn a_place_is_looked_for_only_when_nothing_of_the_gang_is_left() {
    for_all(|gang, sight, _, turn| {
        if turn.actions.contains(&Action::Place) {
            assert!(sight.own.is_none() && sight.older.is_empty() && !sight.in_flight);
            assert!(turn.verdict.is_none() && gang.record.desired == Desired::Run);
            assert_eq!(turn.phase, Phase::Waiting);
        }
    });
}

#[test]
fn a_found_gang_is_never_stopped() {
    for_all(|gang, _, _, turn| {
        if gang.record.desired == Desired::Adopted && gang.record.verdict.is_none() {
            let stops = turn
                .actions
                .iter()
                .filter(|a| matches!(a, Action::Stop(..)));
            assert_eq!(stops.count(), 0);
        }
    });
}

#[test]
fn only_what_was_told_and_ordered_gone_is_forgotten() {
    for_all(|gang, sight, _, turn| {
        if turn.actions.contains(&Action::Forget) {
            assert!(sight.told && sight.own.is_none() && sight.older.is_empty());
            assert!(gang.record.ended.is_some() && gang.record.desired == Desired::Stop);
        }
    });
}

#[test]
fn deciding_twice_changes_nothing_more() {
    for_all(|gang, sight, now, turn| {
        let mut next = gang.clone();
        apply(&mut next, turn);
        let again = step(&next, sight, now);
        assert_eq!((&again.verdict, again.ended), (&turn.verdict, turn.ended));
        assert_eq!(again.phase, turn.phase);
    });
}

#[test]
fn an_ended_gang_stays_listed_until_it_is_ordered_gone() {
    let mut gang = gang(Desired::Run, Phase::Live);
    let own = seen(2, false, &[PodPhase::Succeeded, PodPhase::Succeeded]);
    let sight = Sight {
        own: Some(&own),
        told: true,
        ..Sight::default()
    };
    let turn = step(&gang, &sight, TIMES[0]);
    assert_eq!(turn.ended, Some(ACCEPTED));
    apply(&mut gang, &turn);
    assert_eq!(wire_step(&gang, Some(&own)), GangStep::Succeeded);
    assert!(step(&gang, &sight, TIMES[0]).actions.is_empty());
    gang.record.desired = Desired::Stop;
    let stop = Action::Stop(key(2), Millis(30_000));
    assert_eq!(step(&gang, &sight, TIMES[0]).actions, [stop]);
    let sight = Sight {
        told: true,
        ..Sight::default()
    };
    assert_eq!(step(&gang, &sight, TIMES[0]).actions, [Action::Forget]);
}

#[test]
fn a_refused_gang_is_placed_once_more_and_then_given_back() {
    let mut gang = gang(Desired::Run, Phase::Binding);
    let own = seen(2, false, &[PodPhase::Bound, rejected_pod()]);
    let turn = step(
        &gang,
        &Sight {
            own: Some(&own),
            ..Sight::default()
        },
        TIMES[0],
    );
    assert_eq!(
        (turn.phase, turn.verdict.is_some()),
        (Phase::PlaceAgain, false)
    );
    assert!(matches!(turn.actions[..], [Action::Stop(..)]));
    apply(&mut gang, &turn);
    let turn = step(
        &gang,
        &Sight {
            gone: true,
            ..Sight::default()
        },
        TIMES[0],
    );
    assert_eq!((turn.phase, turn.attempt), (Phase::Waiting, 1));
    assert_eq!(turn.actions, [Action::Place]);
    apply(&mut gang, &turn);
    let own = GangSeen { attempt: 1, ..own };
    let turn = step(
        &gang,
        &Sight {
            own: Some(&own),
            ..Sight::default()
        },
        TIMES[0],
    );
    let end = turn.verdict.map(|verdict| verdict.end);
    assert_eq!(end, Some(End::Failed(Failure::PlacementRefused)));
}

#[test]
fn time_ends_what_is_late_and_what_is_long() {
    let end = |own: Option<&GangSeen>, phase, now| {
        let turn = step(
            &gang(Desired::Run, phase),
            &Sight {
                own,
                ..Sight::default()
            },
            now,
        );
        turn.verdict.map(|verdict| verdict.end)
    };
    let late = Some(End::Failed(Failure::PlaceTimeout));
    let long = Some(End::Failed(Failure::RuntimeExceeded));
    let bound = seen(2, false, &[PodPhase::Bound, PodPhase::Running]);
    let running = seen(2, false, &[PodPhase::Running, PodPhase::Running]);
    assert_eq!(end(None, Phase::Waiting, TIMES[0]), None);
    assert_eq!(end(None, Phase::Waiting, TIMES[1]), late);
    assert_eq!(end(Some(&bound), Phase::Live, TIMES[0]), None);
    assert_eq!(end(Some(&bound), Phase::Live, TIMES[1]), late);
    assert_eq!(end(Some(&running), Phase::Live, TIMES[1]), None);
    assert_eq!(end(Some(&running), Phase::Live, TIMES[2]), long);
}

#[test]
fn the_first_failure_is_the_cause() {
    let mut own = seen(2, false, &[failed(3), failed(143)]);
    own.pods[0].ended = Some(UnixMillis(1_500_000));
    own.pods[1].ended = Some(UnixMillis(1_600_000));
    own.pods.reverse();
    let sight = Sight {
        own: Some(&own),
        ..Sight::default()
    };
    let turn = step(&gang(Desired::Run, Phase::Live), &sight, TIMES[1]);
    let verdict = turn.verdict.expect("a failure");
    assert_eq!(
        (verdict.end, verdict.exit_code),
        (End::Failed(Failure::ExitCode), 3)
    );
    assert!(verdict.message.ends_with(", exit code 3"), "{verdict:?}");
}

#[test]
fn only_what_may_lose_members_shrinks() {
    let role = |min| RoleShape {
        name: "worker".to_owned(),
        per_pod: Resources::default(),
        min,
        max: 2,
        step: 1,
        required: None,
        preferred: None,
        slice: None,
    };
    let of_least = |min| {
        let mut gang = gang(Desired::Run, Phase::Live);
        let order = RunOrder {
            shape: GangShape {
                roles: vec![role(min)],
            },
            ..RunOrder::clone(&order())
        };
        gang.order = Some(Arc::new(order));
        gang
    };
    let decide = |gang: &Gang, phases: &[PodPhase]| {
        let own = seen(2, false, phases);
        let sight = Sight {
            own: Some(&own),
            ..Sight::default()
        };
        step(gang, &sight, ACCEPTED)
    };
    let lost = [PodPhase::Running, broken_pod()];
    let turn = decide(&of_least(1), &lost);
    assert_eq!(turn.actions, [Action::Mend]);
    assert_eq!(
        (turn.phase, turn.attempt, turn.verdict),
        (Phase::Mending, 1, None)
    );
    let rigid = decide(&of_least(2), &lost);
    let end = rigid.verdict.map(|verdict| verdict.end);
    assert_eq!(end, Some(End::Failed(Failure::NodeLost)));
    let crashed = decide(&of_least(1), &[failed(3), broken_pod()]);
    let end = crashed.verdict.map(|verdict| verdict.end);
    assert_eq!(end, Some(End::Failed(Failure::ExitCode)));
}

#[test]
fn a_bind_that_another_life_left_half_done_is_undone_and_made_again() {
    let half = GangSeen {
        complete: false,
        ..seen(2, false, &[PodPhase::Pending, PodPhase::Pending])
    };
    let sight = Sight {
        own: Some(&half),
        ..Sight::default()
    };
    let mut gang = gang(Desired::Run, Phase::Waiting);
    let turn = step(&gang, &sight, TIMES[0]);
    assert_eq!(turn.phase, Phase::PlaceAgain);
    let grace = gang.record.grace;
    assert_eq!(turn.actions, [Action::Stop(key(2), grace)]);
    apply(&mut gang, &turn);
    let gone = Sight {
        gone: true,
        ..Sight::default()
    };
    let turn = step(&gang, &gone, TIMES[0]);
    assert_eq!(
        (turn.phase, turn.actions),
        (Phase::Waiting, vec![Action::Place])
    );
    gang.phase = Phase::Binding;
    let turn = step(&gang, &sight, TIMES[0]);
    assert_eq!(turn.phase, Phase::Binding, "this life's own goes on");
}

#[test]
fn a_leader_that_ends_well_ends_the_gang() {
    let mut own = seen(2, false, &[PodPhase::Succeeded, PodPhase::Running]);
    let gang = gang(Desired::Run, Phase::Live);
    let verdict = |own: &GangSeen| {
        let own = Some(own);
        let sight = Sight {
            own,
            ..Sight::default()
        };
        step(&gang, &sight, TIMES[0])
    };
    assert_eq!(verdict(&own).verdict, None, "every pod must");
    own.terms.success = Success::Leader {
        role: "worker".to_owned(),
    };
    let turn = verdict(&own);
    assert_eq!(turn.verdict.expect("over").end, End::Succeeded);
    assert_eq!(turn.ended, None, "the other one runs");
    assert_eq!(turn.actions, [Action::Stop(key(2), gang.record.grace)]);
}

#[test]
fn a_lost_node_ends_a_gang_that_is_not_proved_over() {
    let own = seen(2, false, &[PodPhase::Running, broken_pod()]);
    let gang = gang(Desired::Run, Phase::Live);
    let sight = Sight {
        own: Some(&own),
        ..Sight::default()
    };
    let turn = step(&gang, &sight, TIMES[0]);
    let verdict = turn.verdict.expect("it cannot go on");
    assert_eq!(verdict.end, End::Failed(Failure::NodeLost));
    assert_eq!(turn.ended, None);
}
