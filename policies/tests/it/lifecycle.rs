//! The life cycle's full table: every state with every event.

use std::fmt::Write as _;

use meridian_api::ids::Epoch;
use meridian_api::units::UnixMillis;
use meridian_policies::lifecycle::{
    DrainReason, Effect, Event, Failure, Illegal, Next, Outcome, Placement, State, Step,
    Transition, step,
};

const EPOCH: Epoch = Epoch(7);
const NOW: UnixMillis = UnixMillis(42);

const STATES: [State; 7] = [
    State::Starting,
    State::Running,
    State::Draining(DrainReason::Deleted),
    State::Draining(DrainReason::Suspended),
    State::Draining(DrainReason::Evacuated),
    State::Draining(DrainReason::Reclaimed),
    State::Draining(DrainReason::Preempted),
];

const STEPS: [Step; 14] = [
    Step::Accepted,
    Step::Bound,
    Step::Running,
    Step::Stopping,
    Step::Succeeded,
    Step::Failed(Failure::NodeLost),
    Step::Failed(Failure::PlaceTimeout),
    Step::Failed(Failure::NotAdmitted),
    Step::Failed(Failure::DependencyMissing),
    Step::Failed(Failure::Denied),
    Step::Failed(Failure::RuntimeExceeded),
    Step::Failed(Failure::Exit { restarts_left: 1 }),
    Step::Failed(Failure::Exit { restarts_left: 0 }),
    Step::Stopped,
];

fn events(epoch: Epoch) -> Vec<Event> {
    let mut events: Vec<Event> = STEPS.map(|step| Event::Observed { epoch, step }).to_vec();
    events.push(Event::Refused { epoch });
    events
}

fn all_events() -> Vec<Event> {
    let mut events = events(EPOCH);
    events.extend([
        Event::DeleteRequested,
        Event::SuspendRequested,
        Event::EvacuationRequested,
        Event::RoomWanted { comes_back: true },
        Event::RoomWanted { comes_back: false },
        Event::Spared,
    ]);
    events
}

fn after(state: State, event: Event) -> Transition {
    step(
        &Placement {
            epoch: EPOCH,
            state,
        },
        event,
        NOW,
    )
    .expect("of the row's epoch")
}

#[test]
fn the_table() {
    let mut table = String::new();
    for state in STATES {
        writeln!(table, "{state:?}").unwrap();
        for event in all_events() {
            let Transition { next, effects } = after(state, event);
            let event = match event {
                Event::Observed { step, .. } => format!("{step:?}"),
                Event::Refused { .. } => "Refused".to_owned(),
                Event::DeleteRequested
                | Event::SuspendRequested
                | Event::EvacuationRequested
                | Event::RoomWanted { .. }
                | Event::Spared => {
                    format!("{event:?}")
                }
            };
            let next = match next {
                Next::In(same) if same == state => "=".to_owned(),
                Next::In(state) => format!("{state:?}"),
                Next::Ended(outcome) => format!("gone: {outcome:?}"),
            };
            writeln!(table, "  {event:<36} {next:<20} {effects:?}").unwrap();
        }
    }
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.bind(|| insta::assert_snapshot!("lifecycle", table));
}

#[test]
fn another_epoch_changes_nothing() {
    for state in STATES {
        for observed in [Epoch(6), Epoch(8)] {
            for event in events(observed) {
                let result = step(
                    &Placement {
                        epoch: EPOCH,
                        state,
                    },
                    event,
                    NOW,
                );
                assert_eq!(
                    result,
                    Err(Illegal::Stale {
                        row: EPOCH,
                        observed
                    }),
                    "{event:?}"
                );
            }
        }
    }
}

#[test]
fn a_row_is_released_exactly_when_it_goes() {
    for state in STATES {
        for event in all_events() {
            let Transition { next, effects } = after(state, event);
            let released = effects
                .iter()
                .filter(|it| **it == Effect::ReleaseRow)
                .count();
            let gone = matches!(next, Next::Ended(_));
            assert_eq!(released, usize::from(gone), "{state:?} {event:?}");
            assert!(
                !gone || effects.len() == 2,
                "the job is told once: {state:?} {event:?}"
            );
        }
    }
}

#[test]
fn only_proof_that_nothing_runs_ends_a_placement() {
    for state in STATES {
        for event in all_events() {
            let proof = match event {
                Event::Observed { step, .. } => match step {
                    Step::Succeeded | Step::Failed(_) | Step::Stopped => true,
                    Step::Accepted | Step::Bound | Step::Running | Step::Stopping => false,
                },
                Event::Refused { .. } => state == State::Starting,
                Event::DeleteRequested
                | Event::SuspendRequested
                | Event::EvacuationRequested
                | Event::RoomWanted { .. }
                | Event::Spared => false,
            };
            let gone = matches!(after(state, event).next, Next::Ended(_));
            assert_eq!(gone, proof, "{state:?} {event:?}");
        }
    }
}

#[test]
fn what_drains_never_runs_again_under_its_epoch() {
    for reason in [
        DrainReason::Deleted,
        DrainReason::Suspended,
        DrainReason::Evacuated,
    ] {
        for event in all_events() {
            match after(State::Draining(reason), event).next {
                Next::In(State::Draining(_)) | Next::Ended(_) => {}
                Next::In(state) => panic!("{event:?} leads to {state:?}"),
            }
        }
    }
}

#[test]
fn only_who_makes_room_for_another_can_be_spared() {
    for reason in [DrainReason::Reclaimed, DrainReason::Preempted] {
        let state = State::Draining(reason);
        assert_eq!(after(state, Event::Spared).next, Next::In(State::Running));
        for event in all_events() {
            match after(state, event).next {
                Next::In(State::Draining(_)) | Next::Ended(_) => {}
                Next::In(_) => assert_eq!(event, Event::Spared),
            }
        }
    }
}

#[test]
fn a_deleted_gang_is_never_queued_again() {
    for event in all_events() {
        let next = after(State::Draining(DrainReason::Deleted), event).next;
        assert!(
            matches!(next, Next::In(State::Draining(DrainReason::Deleted)))
                || next == Next::Ended(Outcome::Deleted),
            "{event:?} leads to {next:?}"
        );
    }
}
