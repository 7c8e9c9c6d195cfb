//! Fault simulation: hubs, agents, store and clusters in one process, on a simulated clock and
//! network, while a seeded schedule crashes, cuts and delays them.
//!
//! Owns one run of one seed: the hosts, the schedule of faults, the clients, and the judge that
//! checks invariants from ground truth after each step. The same seed gives the same log, byte
//! for byte; that needs a process of its own for each run (see `meridian-simulate`). The hubs
//! and agents are the real ones: only clock, network, disk, store and randomness are handed in.
//!
//! What is checked, after each step of 10 ms, from the store's own history, from what really ran
//! in the clusters, and from what clients were told:
//!
//! - S1, S2: two epochs of a gang never run at once; epochs, incarnations, fences and generations
//!   only grow; nothing starts that is not ordered, and no row is let go while it runs.
//! - S3: whatever only a leader may write was written by the holder of the election key, under a
//!   compare of that key.
//! - S5, S6: reported capacity adds up to the hardware; no device has two owners.
//! - S7, S8: what was acknowledged stays until a client asks for its deletion; one key, one job.
//! - S9: user code starts only when every member is bound; at rest none or all run.
//! - S20: a decision compares policy head, ledger head, spec, progress and row, and each was at
//!   that revision.
//! - S21: lists and watch events of each hub equal the store at their revision, and none is
//!   missing.
//! - S27: two runs of a seed give the same bytes.
//! - L1, L2: at the end, after 30 s without faults: placed or explained; orders and clusters agree.

mod clients;
mod faults;
mod hosts;
mod jobs;
mod judge;
mod log;
mod mirror;
mod network;
mod witness;
mod world;

use std::sync::Arc;
use std::time::Duration;

use meridian_api::units::{Millis, UnixMillis};
use meridian_runtime::Random;

pub use log::Echo;
pub use network::Turmoil;

use faults::{Faults, Schedule};
use judge::Judge;
use world::World;

/// The wall clock at the start of every run.
pub(crate) const BEGIN: UnixMillis = UnixMillis(1_700_000_000_000);
/// Simulated time of one step. Messages are delivered between steps, so it is also the grain of
/// the network; a tenth of the shortest time that anything here waits for.
const STEP: Millis = Millis(10);
/// No fault begins this late before the end: more than the 10 s of a leader's lease plus the 10 s
/// in which HTTP/2 notices a dead connection, with time left to place and to stop.
const CALM: Millis = Millis::seconds(30);
/// The fleet is set up, and the first gangs start, before the first fault.
const FIRST_FAULT: Millis = Millis::seconds(6);

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Everything random follows from it.
    pub seed: u64,
    /// Simulated time; at least a minute.
    pub length: Millis,
    /// Whether the log is printed as it comes.
    pub echo: Echo,
}

/// How it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Steps done.
    pub steps: u64,
    /// Jobs that were acknowledged.
    pub jobs: usize,
    /// Placements that were decided.
    pub placements: usize,
    /// Runs of user code that began.
    pub starts: usize,
    /// Faults that were put in.
    pub faults: usize,
    /// Revisions of the store.
    pub revisions: u64,
    /// Times that a hub took the lead.
    pub terms: usize,
    /// Lines of the log.
    pub lines: u64,
    /// SHA-256 of the log.
    pub digest: String,
    /// Invariants that were broken; the run ends at the first step that finds one.
    pub violations: Vec<String>,
    /// The last lines of the log, when something was broken.
    pub tail: Vec<String>,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let verdict = if self.violations.is_empty() {
            "ok"
        } else {
            "VIOLATION"
        };
        write!(
            f,
            "seed {} {verdict}: {} steps, {} jobs, {} placements, {} starts, {} faults, {} terms, \
             {} revisions, log {} lines {}",
            self.seed,
            self.steps,
            self.jobs,
            self.placements,
            self.starts,
            self.faults,
            self.terms,
            self.revisions,
            self.lines,
            self.digest,
        )?;
        for violation in &self.violations {
            write!(f, "\n  {violation}")?;
        }
        for line in &self.tail {
            write!(f, "\n    {line}")?;
        }
        Ok(())
    }
}

/// Runs one seed on the calling thread. Call once per process: what an earlier run leaves in
/// thread-locals would make the second differ.
#[must_use]
pub fn run(options: Options) -> Report {
    let world = Arc::new(World::new(options.seed, options.length, options.echo));
    let mut sim = build(&world, options);
    let schedule = Schedule::draw(
        &Random::seeded(options.seed ^ 0xfa01_75ee),
        FIRST_FAULT,
        options.length.saturating_sub(CALM),
    );
    let mut faults = Faults::new(schedule);
    let mut judge = Judge::new(Arc::clone(&world));
    let steps = options.length.0 / STEP.0;
    let mut done = 0;
    while done < steps && judge.violations().is_empty() {
        faults.turn(&mut sim, &world);
        if let Err(error) = sim.step() {
            judge.note_broken(&format!("a host ended: {error}"));
        }
        done += 1;
        world.set_now(UnixMillis(BEGIN.0.saturating_add_unsigned(done * STEP.0)));
        judge.look();
    }
    if judge.violations().is_empty() {
        judge.look_at_the_end();
    }
    let (lines, digest) = world.log.sum();
    let violations = judge.violations().to_vec();
    let tail = if violations.is_empty() {
        Vec::new()
    } else {
        world.log.tail()
    };
    let counts = judge.counts();
    Report {
        seed: options.seed,
        steps: done,
        jobs: counts.jobs,
        placements: counts.placements,
        starts: counts.starts,
        faults: faults.begun(),
        revisions: world.store.newest_revision().0,
        terms: counts.terms,
        lines,
        digest,
        violations,
        tail,
    }
}

fn build(world: &Arc<World>, options: Options) -> turmoil::Sim<'static> {
    let mut sim = turmoil::Builder::new()
        .rng_seed(options.seed)
        .tick_duration(Duration::from_millis(STEP.0))
        .simulation_duration(Duration::from_millis(options.length.0 * 2))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(20))
        // Messages that fit in flight on one connection; HTTP/2's own windows are far smaller.
        .tcp_capacity(4096)
        .build();
    for index in 0..world.hubs.len() {
        let world = Arc::clone(world);
        sim.host(world::hub_name(index), move || {
            hosts::hub(Arc::clone(&world), index)
        });
    }
    for index in 0..world.clusters.len() {
        let world = Arc::clone(world);
        sim.host(world::agent_name(index), move || {
            hosts::agent(Arc::clone(&world), index)
        });
    }
    for index in 0..world::SUBMITTERS {
        let world = Arc::clone(world);
        sim.host(world::submitter_name(index), move || {
            clients::submitter(Arc::clone(&world), index)
        });
    }
    let operator = Arc::clone(world);
    sim.host(world::OPERATOR, move || {
        clients::operator(Arc::clone(&operator))
    });
    sim
}
