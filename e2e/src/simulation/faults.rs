//! Faults: what goes wrong, when, and for how long, drawn from the seed before the run begins.
//!
//! Owns the schedule and its carrying out on hosts, links, stores and clusters. Each fault is taken
//! back, the last ones when the calm begins. Never looks at what comes of it.

use std::collections::BTreeMap;
use std::time::Duration;

use meridian_agent::simulated::{Api, Profile};
use meridian_api::units::{Millis, UnixMillis};
use meridian_runtime::Random;
use turmoil::Sim;

use super::BEGIN;
use super::world::{self, CLUSTERS, HUBS, OPERATOR, POOL, SUBMITTERS, World};

/// Pause between the beginnings of two faults.
const PAUSE: (u64, u64) = (600, 6_000);
/// A fault lasts at least this long.
const SHORTEST: u64 = 300;
/// And at most this: longer than a lease (10 s), than HTTP/2 takes to give a connection up
/// (10 s), and than a cluster takes to count as unreachable (20 s).
const LONGEST: u64 = 24_000;
/// Hosts of one cluster; cards of one host.
const NODES: u64 = 4;
const CARDS: u64 = 8;

/// One thing that goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fault {
    /// The host stops at once, and starts again at the end.
    Crash(String),
    /// Nothing gets through between two hosts.
    Cut(String, String),
    /// Nothing gets through one way.
    CutOneWay(String, String),
    /// The host is cut from all others.
    Isolate(String),
    /// Messages wait, and come all together at the end.
    Hold(String, String),
    /// Each message takes this long.
    Slow(String, String, Millis),
    /// The store does not answer this hub.
    StallStore(usize),
    /// The store turns this hub away.
    RefuseStore(usize),
    /// The store takes no writes of this hub.
    FillStore(usize),
    /// The next writes of this hub are done but not answered.
    LoseAnswers(usize, u32),
    /// A machine dies; it comes back empty.
    FailNode(usize, u64),
    /// A card breaks for good.
    BreakCard(usize, u64, u32),
    /// The member cluster's API is away; what runs goes on.
    ApiDown(usize),
    /// Binds are turned away, starts fail, answers are lost, the API is slow.
    Flaky(usize),
    /// Every process of some gang is killed.
    KillGang(usize, u64),
}

impl Fault {
    fn draw(random: &Random) -> Self {
        let below = |bound: usize| usize::try_from(random.below(bound as u64)).unwrap_or(0);
        let (hub, cluster) = (below(HUBS), below(CLUSTERS.len()));
        let hub_host = world::hub_name(hub);
        let agent_host = world::agent_name(cluster);
        let (from, to) = match below(4) {
            0 => (world::submitter_name(below(SUBMITTERS)), hub_host.clone()),
            1 => (hub_host.clone(), agent_host.clone()),
            _ => (agent_host.clone(), hub_host.clone()),
        };
        match below(22) {
            0..=2 => Self::Crash(hub_host),
            3..=5 => Self::Crash(agent_host),
            6 => Self::Cut(from, to),
            7 => Self::CutOneWay(from, to),
            8 => Self::Isolate(agent_host),
            9 => Self::Isolate(hub_host),
            10 => Self::Hold(from, to),
            11 => Self::Slow(from, to, Millis(50 + random.below(900))),
            12 | 13 => Self::StallStore(hub),
            14 => Self::RefuseStore(hub),
            15 => Self::FillStore(hub),
            16 => Self::LoseAnswers(hub, 1 + u32::try_from(below(4)).unwrap_or(0)),
            17 | 18 => Self::FailNode(cluster, random.below(NODES)),
            19 => match below(4) {
                0 => {
                    let card = u32::try_from(random.below(CARDS)).unwrap_or(0);
                    Self::BreakCard(cluster, random.below(NODES), card)
                }
                _ => Self::KillGang(cluster, random.next_u64()),
            },
            20 => Self::ApiDown(cluster),
            _ => Self::Flaky(cluster),
        }
    }

    /// Things that two faults must not turn at once; a host stands for all its links.
    fn touches(&self) -> Vec<String> {
        match self {
            Self::Crash(host) => vec![format!("life {host}")],
            Self::Cut(a, b) | Self::CutOneWay(a, b) | Self::Hold(a, b) | Self::Slow(a, b, _) => {
                vec![a.clone(), b.clone()]
            }
            Self::Isolate(_) => all_hosts(),
            Self::StallStore(hub)
            | Self::RefuseStore(hub)
            | Self::FillStore(hub)
            | Self::LoseAnswers(hub, _) => vec![format!("store {hub}")],
            Self::FailNode(cluster, node) => vec![format!("node {cluster} {node}")],
            Self::ApiDown(cluster) => vec![format!("api {cluster}")],
            Self::Flaky(cluster) => vec![format!("profile {cluster}")],
            Self::BreakCard(..) | Self::KillGang(..) => Vec::new(),
        }
    }
}

fn all_hosts() -> Vec<String> {
    let hubs = (0..HUBS).map(world::hub_name);
    let agents = (0..CLUSTERS.len()).map(world::agent_name);
    let clients = (0..SUBMITTERS).map(world::submitter_name);
    let hosts = hubs.chain(agents).chain(clients);
    hosts.chain([OPERATOR.to_owned()]).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Begin,
    End,
}

/// Faults by time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    turns: BTreeMap<(UnixMillis, usize), (Turn, Fault)>,
}

impl Schedule {
    /// Faults between `first` and `last` after the beginning; all are over at `last`.
    pub(crate) fn draw(random: &Random, first: Millis, last: Millis) -> Self {
        let mut turns = BTreeMap::new();
        let mut busy: BTreeMap<String, u64> = BTreeMap::new();
        let mut at = first.0;
        while at < last.0 {
            let fault = Fault::draw(random);
            // Most are short: the square of a uniform draw.
            let scale = random.below(1_000);
            let length = SHORTEST + (LONGEST - SHORTEST) * scale * scale / 1_000_000;
            let until = (at + length).min(last.0);
            let touched = fault.touches();
            let free = |thing: &String| busy.get(thing).is_none_or(|until| *until <= at);
            if touched.iter().all(free) {
                busy.extend(touched.into_iter().map(|thing| (thing, until)));
                let number = turns.len();
                let time = |millis| BEGIN.after(Millis(millis));
                turns.insert((time(at), number), (Turn::Begin, fault.clone()));
                turns.insert((time(until), number + 1), (Turn::End, fault));
            }
            at += PAUSE.0 + random.below(PAUSE.1 - PAUSE.0);
        }
        Self { turns }
    }
}

/// The schedule under way.
pub(crate) struct Faults {
    schedule: Schedule,
    begun: usize,
}

impl Faults {
    pub(crate) fn new(schedule: Schedule) -> Self {
        Self { schedule, begun: 0 }
    }

    /// How many have begun.
    pub(crate) fn begun(&self) -> usize {
        self.begun
    }

    /// Begins and ends what is due before the next step.
    pub(crate) fn turn(&mut self, sim: &mut Sim<'_>, world: &World) {
        let now = world.now();
        while let Some(entry) = self.schedule.turns.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let (turn, fault) = entry.remove();
            world.log.line(now, &format!("fault {turn:?} {fault:?}"));
            match turn {
                Turn::Begin => {
                    self.begun += 1;
                    begin(&fault, sim, world, now);
                }
                Turn::End => end(&fault, sim, world, now),
            }
        }
    }
}

fn node(number: u64) -> String {
    format!("{POOL}-{number:04}")
}

fn others(host: &str) -> Vec<String> {
    let mut all = all_hosts();
    all.retain(|other| other != host);
    all
}

fn begin(fault: &Fault, sim: &mut Sim<'_>, world: &World, now: UnixMillis) {
    let cluster = |index: &usize| &world.clusters[*index].cluster;
    match fault {
        Fault::Crash(host) => sim.crash(host.as_str()),
        Fault::Cut(a, b) => sim.partition(a.as_str(), b.as_str()),
        Fault::CutOneWay(a, b) => sim.partition_oneway(a.as_str(), b.as_str()),
        Fault::Isolate(host) => {
            for other in others(host) {
                sim.partition(host.as_str(), other.as_str());
            }
        }
        Fault::Hold(a, b) => sim.hold(a.as_str(), b.as_str()),
        Fault::Slow(a, b, by) => {
            sim.set_link_latency(a.as_str(), b.as_str(), Duration::from_millis(by.0));
        }
        Fault::StallStore(hub) => world.hubs[*hub].store_fault(meridian_store::Faults::stall),
        Fault::RefuseStore(hub) => world.hubs[*hub].store_fault(meridian_store::Faults::refuse),
        Fault::FillStore(hub) => world.hubs[*hub].store_fault(meridian_store::Faults::fill),
        Fault::LoseAnswers(hub, count) => {
            world.hubs[*hub].store_fault(|store| store.lose_answers(*count));
        }
        Fault::FailNode(index, number) => cluster(index).fail_node(now, &node(*number)),
        Fault::BreakCard(index, number, card) => {
            cluster(index).fail_device(now, &node(*number), *card);
        }
        Fault::ApiDown(index) => cluster(index).set_api(now, Api::Down),
        Fault::Flaky(index) => cluster(index).set_profile(now, flaky()),
        Fault::KillGang(index, pick) => {
            let gangs = cluster(index).snapshot(now).gangs;
            let count = u64::try_from(gangs.len()).unwrap_or(u64::MAX);
            let at = usize::try_from(pick % count.max(1)).unwrap_or(0);
            if let Some(gang) = gangs.get(at) {
                cluster(index).kill_gang(now, gang.key);
            }
        }
    }
}

fn end(fault: &Fault, sim: &mut Sim<'_>, world: &World, now: UnixMillis) {
    let cluster = |index: &usize| &world.clusters[*index].cluster;
    match fault {
        Fault::Crash(host) => sim.bounce(host.as_str()),
        Fault::Cut(a, b) => sim.repair(a.as_str(), b.as_str()),
        Fault::CutOneWay(a, b) => sim.repair_oneway(a.as_str(), b.as_str()),
        Fault::Isolate(host) => {
            for other in others(host) {
                sim.repair(host.as_str(), other.as_str());
            }
        }
        Fault::Hold(a, b) => sim.release(a.as_str(), b.as_str()),
        Fault::Slow(a, b, _) => {
            sim.set_link_latency(a.as_str(), b.as_str(), Duration::from_millis(5));
        }
        Fault::StallStore(hub)
        | Fault::RefuseStore(hub)
        | Fault::FillStore(hub)
        | Fault::LoseAnswers(hub, _) => {
            world.hubs[*hub].store_fault(meridian_store::Faults::heal);
        }
        Fault::FailNode(index, number) => cluster(index).recover_node(now, &node(*number)),
        Fault::ApiDown(index) => cluster(index).set_api(now, Api::Up),
        Fault::Flaky(index) => cluster(index).set_profile(now, world::healthy()),
        Fault::BreakCard(..) | Fault::KillGang(..) => {}
    }
}

fn flaky() -> Profile {
    Profile {
        refusals_per_mille: 80,
        start_failures_per_mille: 80,
        lost_answers_per_mille: 150,
        call: meridian_agent::simulated::Between::millis(5, 900),
        ..world::healthy()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_follows_from_its_seed_and_ends_in_time() {
        let draw = |seed| {
            let random = Random::seeded(seed);
            Schedule::draw(&random, Millis::seconds(5), Millis::seconds(90))
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        for seed in 0..50 {
            let schedule = draw(seed);
            let last = BEGIN.after(Millis::seconds(90));
            assert!(schedule.turns.keys().all(|(at, _)| *at <= last));
            let count = |turn| {
                schedule
                    .turns
                    .values()
                    .filter(|(is, _)| *is == turn)
                    .count()
            };
            assert_eq!(count(Turn::Begin), count(Turn::End));
            assert!(count(Turn::Begin) >= 5, "seed {seed}");
        }
    }

    #[test]
    fn no_two_faults_turn_the_same_thing_at_once() {
        let random = Random::seeded(3);
        let schedule = Schedule::draw(&random, Millis::ZERO, Millis::seconds(600));
        let mut held: Vec<String> = Vec::new();
        for (turn, fault) in schedule.turns.values() {
            for thing in fault.touches() {
                match turn {
                    Turn::Begin => {
                        assert!(!held.contains(&thing), "{thing} is held");
                        held.push(thing);
                    }
                    Turn::End => held.retain(|other| *other != thing),
                }
            }
        }
    }
}
