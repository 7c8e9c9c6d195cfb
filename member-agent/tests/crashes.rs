//! Random orders and random trouble, judged by what really ran.
//!
//! Owns the safety properties of the agent under crashes of itself, its cluster's API, nodes and
//! devices: no two epochs of a gang at once, no device twice, user code only in whole gangs, and
//! nothing of an epoch after its end was told. When the trouble ends, everything can be stopped.

mod common;

use std::collections::BTreeMap;

use common::{Does, Line, World, four_hosts, gang, run, stop};
use meridian_agent::AgentHandle;
use meridian_agent::backend::GangKey;
use meridian_agent::simulated::{Api, Profile, Truth, TruthEvent};
use meridian_api::ids::{Epoch, GangId};
use meridian_api::units::{Millis, UnixMillis};
use meridian_proto::v1::{self, GangStep, hub_message};
use proptest::prelude::*;

/// Longest that healing takes: a lost node is noticed within a minute, a deaf gang is killed
/// after ten seconds, sessions come back within ten.
const HEALED: Millis = Millis::seconds(600);

/// One thing that happens.
#[derive(Clone, Debug)]
enum Event {
    Run {
        gang: u32,
        pods: u32,
        does: usize,
    },
    Stop {
        gang: u32,
    },
    CrashAgent {
        down: u64,
    },
    HangUp,
    Api {
        up: bool,
    },
    FailNode {
        node: u8,
    },
    RecoverNode {
        node: u8,
    },
    FailDevice {
        node: u8,
        device: u32,
    },
    KillGang {
        gang: u32,
    },
    Faults {
        refusals: u16,
        start_failures: u16,
        lost_answers: u16,
    },
    Wait {
        millis: u64,
    },
}

const DOES: [Does; 4] = [
    Does::RunForever,
    Does::RunAMinute,
    Does::IgnoreSigterm,
    Does::ExitWithThree,
];

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..4_u32, 1..4_u32, 0..4_usize)
            .prop_map(|(gang, pods, does)| Event::Run { gang, pods, does }),
        3 => (0..4_u32).prop_map(|gang| Event::Stop { gang }),
        3 => (0..20_000_u64).prop_map(|down| Event::CrashAgent { down }),
        1 => Just(Event::HangUp),
        2 => any::<bool>().prop_map(|up| Event::Api { up }),
        1 => (0..4_u8).prop_map(|node| Event::FailNode { node }),
        2 => (0..4_u8).prop_map(|node| Event::RecoverNode { node }),
        1 => (0..4_u8, 0..8_u32).prop_map(|(node, device)| Event::FailDevice { node, device }),
        1 => (0..4_u32).prop_map(|gang| Event::KillGang { gang }),
        1 => (0..300_u16, 0..200_u16, 0..400_u16).prop_map(|(refusals, start_failures, lost)| {
            Event::Faults { refusals, start_failures, lost_answers: lost }
        }),
        6 => (0..15_000_u64).prop_map(|millis| Event::Wait { millis }),
    ]
}

/// The scripted hub's mind: what it wants, and what it was told.
#[derive(Default)]
struct Mind {
    wanted: BTreeMap<GangId, v1::PlacementIntent>,
    epochs: BTreeMap<GangId, u64>,
    /// When the hub first heard that an epoch has ended.
    ended: BTreeMap<GangKey, UnixMillis>,
}

struct Trial {
    world: World,
    agent: Option<AgentHandle>,
    line: Option<Line>,
    mind: Mind,
    generation: u64,
}

fn node(index: u8) -> String {
    format!("h100-{index:04}")
}

impl Trial {
    async fn new() -> Self {
        let mut world = World::new(&four_hosts(), Profile::default()).await;
        let agent = Some(world.agent().await);
        Self {
            world,
            agent,
            line: None,
            mind: Mind::default(),
            generation: 100,
        }
    }

    async fn happens(&mut self, event: &Event) {
        let now = self.world.now();
        let cluster = self.world.cluster.clone();
        match *event {
            Event::Run {
                gang: index,
                pods,
                does,
            } => {
                let epoch = self.mind.epochs.entry(gang(index)).or_insert(0);
                *epoch += 1;
                let intent = run(gang(index), *epoch, pods, DOES[does]);
                self.order(intent).await;
            }
            Event::Stop { gang: index } => {
                let epoch = *self.mind.epochs.entry(gang(index)).or_insert(1);
                self.order(stop(gang(index), epoch)).await;
            }
            Event::CrashAgent { down } => {
                if let Some(agent) = self.agent.take() {
                    agent.kill().await;
                }
                self.line = None;
                self.world.clock.sleep(Millis(down)).await;
                self.agent = Some(self.world.agent().await);
            }
            Event::HangUp => {
                if let Some(line) = self.line.take() {
                    line.hang_up(tonic::Status::unavailable("going away")).await;
                }
            }
            Event::Api { up } => cluster.set_api(now, if up { Api::Up } else { Api::Down }),
            Event::FailNode { node: index } => cluster.fail_node(now, &node(index)),
            Event::RecoverNode { node: index } => cluster.recover_node(now, &node(index)),
            Event::FailDevice {
                node: index,
                device,
            } => {
                cluster.fail_device(now, &node(index), device);
            }
            Event::KillGang { gang: index } => {
                let epoch = self.mind.epochs.get(&gang(index)).copied().unwrap_or(1);
                cluster.kill_gang(
                    now,
                    GangKey {
                        gang: gang(index),
                        epoch: Epoch(epoch),
                    },
                );
            }
            Event::Faults {
                refusals,
                start_failures,
                lost_answers,
            } => {
                let profile = Profile {
                    refusals_per_mille: refusals,
                    start_failures_per_mille: start_failures,
                    lost_answers_per_mille: lost_answers,
                    ..Profile::default()
                };
                cluster.set_profile(now, profile);
            }
            Event::Wait { millis } => self.wait(Millis(millis)).await,
        }
        self.wait(Millis(50)).await;
    }

    async fn order(&mut self, intent: v1::PlacementIntent) {
        let id = meridian_proto::convert::gang(intent.gang.as_ref()).expect("well formed");
        self.mind.wanted.insert(id, intent.clone());
        self.generation += 1;
        if let Some(line) = &mut self.line {
            line.generation = self.generation - 1;
            let intent = line.intent(vec![intent]);
            if !line.try_say(hub_message::Body::Intent(intent)).await {
                self.line = None;
            }
        }
    }

    /// Lets time pass: the hub listens, welcomes whoever dials, and tells it everything.
    async fn wait(&mut self, span: Millis) {
        let end = self.world.clock.boot().after(span);
        loop {
            let left = end.since(self.world.clock.boot());
            if left == Millis::ZERO {
                return;
            }
            if let Some(line) = &mut self.line {
                let short = Millis(left.0.min(1_000));
                let lives = line.listen_for(short).await;
                self.learn().await;
                if !lives {
                    self.line = None;
                }
            } else if let Some(mut line) = self.world.attached_within(left).await {
                line.generation = self.generation;
                let everything = self.mind.wanted.values().cloned().collect();
                let full = v1::Intent {
                    full: true,
                    ..line.intent(everything)
                };
                self.generation += 1;
                let told = line.try_say(hub_message::Body::Intent(full)).await;
                self.line = told.then_some(line);
                self.learn().await;
            }
        }
    }

    /// Takes in what ended, and lets go of it.
    async fn learn(&mut self) {
        let Some(line) = &self.line else { return };
        let now = self.world.now();
        let mut over = Vec::new();
        for (id, seen) in &line.gangs {
            let done = [GangStep::Succeeded, GangStep::Failed, GangStep::Stopped];
            if done.contains(&seen.step()) {
                let key = GangKey {
                    gang: *id,
                    epoch: Epoch(seen.epoch),
                };
                self.mind.ended.entry(key).or_insert(now);
                let running = |intent: &v1::PlacementIntent| {
                    intent.epoch == seen.epoch && intent.desired() == v1::Desired::Run
                };
                if self.mind.wanted.get(id).is_some_and(running) {
                    over.push(stop(*id, seen.epoch));
                }
            }
        }
        for intent in over {
            self.order(intent).await;
        }
    }

    /// All trouble ends; everything is ordered to stop, and does.
    async fn heal(&mut self) {
        let now = self.world.now();
        self.world.cluster.set_api(now, Api::Up);
        self.world.cluster.set_profile(now, Profile::default());
        for index in 0..4 {
            self.world.cluster.recover_node(now, &node(index));
        }
        let epochs: Vec<(GangId, u64)> = self
            .mind
            .epochs
            .iter()
            .map(|(id, epoch)| (*id, *epoch))
            .collect();
        for (id, epoch) in epochs {
            self.order(stop(id, epoch)).await;
        }
        self.wait(HEALED).await;
        let left = self.world.cluster.snapshot(self.world.now()).gangs;
        assert!(
            left.is_empty(),
            "still there after everything was stopped: {left:#?}"
        );
        let listed = self.line.as_ref().map(|line| line.gangs.clone());
        assert_eq!(
            listed,
            Some(BTreeMap::new()),
            "still listed after everything was stopped"
        );
        self.agent.take().expect("one lives").shutdown().await;
    }
}

/// One run of one pod's user code.
struct Interval<'a> {
    start: &'a TruthEvent,
    end: UnixMillis,
}

fn intervals(history: &[TruthEvent]) -> Vec<Interval<'_>> {
    let starts = history.iter().filter(|event| event.what == Truth::Started);
    let interval = |start| {
        let start: &TruthEvent = start;
        let ended = |event: &&TruthEvent| event.what == Truth::Ended && event.pod == start.pod;
        let end = history.iter().find(ended).map(|event| event.at);
        Interval {
            start,
            end: end.unwrap_or(UnixMillis(i64::MAX)),
        }
    };
    starts.map(interval).collect()
}

fn judge(history: &[TruthEvent], ended: &BTreeMap<GangKey, UnixMillis>) {
    let runs = intervals(history);
    for (index, a) in runs.iter().enumerate() {
        assert_eq!(
            a.start.bound, a.start.members,
            "S9: {:?} in a gang that is not whole",
            a.start
        );
        if let Some(told) = ended.get(&a.start.key) {
            assert!(
                a.end <= *told,
                "{:?} ran until {} after its end was told",
                a.start,
                a.end
            );
        }
        for b in &runs[index + 1..] {
            let overlap = a.start.at < b.end && b.start.at < a.end;
            if !overlap {
                continue;
            }
            let same_gang = a.start.key.gang == b.start.key.gang;
            let epochs = (a.start.key.epoch, b.start.key.epoch);
            assert!(
                !same_gang || epochs.0 == epochs.1,
                "S1: {:?} and {:?}",
                a.start,
                b.start
            );
            assert!(
                !same_gang || a.start.pod != b.start.pod,
                "{:?} runs twice",
                a.start
            );
            let shared = a
                .start
                .devices
                .iter()
                .any(|device| b.start.devices.contains(device));
            let same_node = a.start.node == b.start.node;
            assert!(
                !(same_node && shared),
                "S6: {:?} and {:?}",
                a.start,
                b.start
            );
        }
    }
}

async fn trial(events: &[Event]) -> Vec<TruthEvent> {
    let mut trial = Trial::new().await;
    for event in events {
        trial.happens(event).await;
        judge(
            &trial.world.cluster.history(trial.world.now()),
            &trial.mind.ended,
        );
    }
    trial.heal().await;
    let history = trial.world.cluster.history(trial.world.now());
    judge(&history, &trial.mind.ended);
    history
}

fn simulate(events: &[Event]) -> Vec<TruthEvent> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(trial(events))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn safe_whatever_breaks(events in prop::collection::vec(event(), 1..40)) {
        simulate(&events);
    }
}

#[test]
fn the_same_trouble_twice_is_the_same_history() {
    let events = [
        Event::Faults {
            refusals: 200,
            start_failures: 100,
            lost_answers: 300,
        },
        Event::Run {
            gang: 0,
            pods: 2,
            does: 1,
        },
        Event::Run {
            gang: 1,
            pods: 2,
            does: 2,
        },
        Event::Wait { millis: 9_000 },
        Event::CrashAgent { down: 4_000 },
        Event::Run {
            gang: 1,
            pods: 3,
            does: 0,
        },
        Event::FailNode { node: 1 },
        Event::HangUp,
        Event::Run {
            gang: 2,
            pods: 1,
            does: 3,
        },
        Event::Wait { millis: 60_000 },
    ];
    let first = simulate(&events);
    assert!(first.len() > 4, "nothing much ran: {first:#?}");
    assert_eq!(first, simulate(&events));
}
