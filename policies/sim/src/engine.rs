//! The engine: what happens, instant by instant, when a round is decided whenever it could come to
//! something else than before.
//!
//! Owns simulated time, the queue of events, and the changes that a planner is told, event by
//! event: it hands on from round to round what stays (see `meridian_policies::planner`). Never
//! orders, chooses or places: there is one scheduler, and this is not it.
//!
//! All events of one instant happen before its round. A round is left out when the last one has
//! refused every gang that looks like those that wait and nothing has become free since: a refusal
//! follows from room and quota, and both have only shrunk. [`Rounds::Always`] leaves none out;
//! tests hold the two to the same result. Where work may be made to go for others the answer
//! changes with time alone, as runs get old enough to be stopped: the planner says when.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use meridian_api::ids::{Epoch, GangId};
use meridian_api::kinds::workload_class::Preemption as Manner;
use meridian_api::reasons::Reason;
use meridian_api::units::{Millis, UnixMillis};
use meridian_policies::check::Violation;
use meridian_policies::history::{History, use_of};
use meridian_policies::model::{Estimate, Held, PoolIx, Snapshot, Stage};
use meridian_policies::planner::{Change, Planner};

use crate::meters::{Meters, TypicalPods};
use crate::room::{NotThere, Room, Seat};
use crate::trace::HostsUp;
use crate::world::{Gangs, World};
use crate::yielding::Yielding;

mod refused;
mod rounds;

use refused::Refused;

/// Restarts of one gang: a fleet that loses a gang so often does nothing else.
const MAX_ATTEMPTS: u32 = 10_000;
/// What runs is entered into the histories of tenants by the hour, as the hub does.
const HOUR: i64 = 3_600_000;

/// Which rounds are run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rounds {
    /// Those that could place something.
    #[default]
    WhenNeeded,
    /// One after every instant at which something happened while something waits.
    Always,
}

/// Whether plans are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checks {
    /// They are taken as they are.
    #[default]
    None,
    /// By the independent check, each of them, and against what the round would be alone.
    EachPlan,
}

/// How a simulation is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Least time between two rounds: what happens in between is decided on together. Zero asks
    /// at once.
    pub round_every: Millis,
    /// Which rounds are run.
    pub rounds: Rounds,
    /// Whether plans are checked.
    pub checks: Checks,
}

/// A simulation that cannot go on: a defect of the decision, or a trace beyond its limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The check found fault with a plan.
    #[error("the plan at {at} breaks an invariant: {violation}")]
    Violation {
        /// When.
        at: UnixMillis,
        /// The first of what it found.
        violation: Violation,
    },
    /// A round that was handed something on decided otherwise than it would have alone.
    #[error("the plan at {at} is not what it would be of its snapshot alone")]
    NotAlone {
        /// When.
        at: UnixMillis,
    },
    /// A plan takes hosts that are not there.
    #[error("the plan at {at} cannot be carried out")]
    NotThere {
        /// When.
        at: UnixMillis,
        /// What is missing.
        source: NotThere,
    },
    /// Hosts of a pool that is not in the fleet.
    #[error("there is no pool {pool} in cluster {cluster}")]
    NoPool {
        /// The cluster.
        cluster: String,
        /// The pool.
        pool: String,
    },
    /// A gang was stopped again and again.
    #[error("the gang of line {line} was stopped {MAX_ATTEMPTS} times")]
    LostTooOften {
        /// Position in the trace, from 0.
        line: u32,
    },
}

/// What became of one job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// When it first ran.
    pub started: Option<UnixMillis>,
    /// When it was done.
    pub ended: Option<UnixMillis>,
    /// Time in the queue, all stays together.
    pub waited: Millis,
    /// Time that it ran and had to run again.
    pub lost: Millis,
    /// How often it was lost with a host.
    pub losses: u32,
    /// How often it made room for others.
    pub preemptions: u32,
    /// Why it waits at the end.
    pub reason: Option<Reason>,
    /// When it was first refused: when it may start, if anything was said of that.
    pub told: Option<Estimate>,
}

/// What a simulation came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) runs: Vec<Run>,
    pub(crate) meters: Meters,
    pub(crate) begin: UnixMillis,
    pub(crate) end: UnixMillis,
    pub(crate) rounds: u64,
    pub(crate) instants: u64,
}

/// One instant, after everything that happened at it.
#[derive(Clone, Copy, Debug)]
pub struct Moment<'a> {
    /// When.
    pub at: UnixMillis,
    /// What the next decision would see.
    pub snapshot: &'a Snapshot,
}

struct Running {
    since: UnixMillis,
    attempt: u32,
    seats: Vec<Seat>,
    /// Of its cards, in thousandths.
    speed: u64,
}

/// Why a gang is stopped before its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stopped {
    /// A host went away under it.
    Lost,
    /// It makes room for others.
    Preempted,
}

/// Where a gang is.
enum Place {
    /// Not submitted, or done.
    Nowhere,
    Waiting {
        since: UnixMillis,
    },
    Running(Running),
}

struct Engine<'a> {
    world: &'a World,
    gangs: &'a Gangs,
    options: Options,
    planner: Planner,
    room: Room,
    typical: TypicalPods,
    places: Vec<Place>,
    epochs: Vec<Option<Epoch>>,
    /// Work of each gang that is saved, as time on a card of speed 1.
    saved: Vec<Millis>,
    yielding: Yielding,
    /// Work may be made to go for others.
    preempts: bool,
    /// When the windows of classes have to be looked at again, if they have any.
    shielded_until: Option<UnixMillis>,
    /// When what was refused is asked again, if time alone may change the answer.
    again: Option<UnixMillis>,
    /// Placements of the round that is carried out.
    started: Vec<Held>,
    /// Placements that are on their way out from here on, or are not any more.
    stages: BTreeMap<GangId, Stage>,
    /// By end, then gang; those of an older attempt mean nothing.
    ends: BinaryHeap<Reverse<(UnixMillis, u32, u32)>>,
    arrived: usize,
    steps: &'a [HostsUp],
    stepped: usize,
    /// Looks that the last round refused, and why.
    refused: Refused,
    /// Gangs that were refused before.
    known: Vec<bool>,
    /// One waits that was not.
    is_new: bool,
    /// Something may be placed.
    due: bool,
    /// And only because time has passed.
    only_time: bool,
    /// Rounds that the planner has decided from nothing: looks have other numbers then.
    full_rounds: u64,
    next_round: UnixMillis,
    /// Pools that look otherwise than the meters say.
    touched: Vec<bool>,
    /// Pools that look otherwise than the planner was told.
    untold: Vec<bool>,
    /// What each tenant has held; what runs is entered up to `entered`.
    histories: Vec<History>,
    entered: UnixMillis,
    outcome: Outcome,
}

/// Runs a trace to its end; `watch` sees each moment.
pub(crate) fn run(
    world: &World,
    gangs: &Gangs,
    steps: &[HostsUp],
    options: Options,
    watch: &mut dyn FnMut(Moment<'_>),
) -> Result<Outcome, EngineError> {
    let mut engine = Engine::new(world, gangs, steps, options);
    while let Some(at) = engine.next_instant() {
        engine.outcome.meters.advance(at);
        engine.outcome.end = at;
        engine.outcome.instants += 1;
        engine.enter_histories(at);
        engine.take_ends(at);
        engine.take_steps(at)?;
        engine.take_departures(at)?;
        engine.take_arrivals(at);
        engine.due |= options.rounds == Rounds::Always;
        engine.only_time = !engine.due;
        engine.due |= engine.again.is_some_and(|again| again <= at);
        if engine.due && at >= engine.next_round && engine.waits() {
            engine.round(at)?;
        }
        engine.read_meters();
        engine.tell_room();
        watch(Moment {
            at,
            snapshot: engine.planner.snapshot(),
        });
    }
    engine.close();
    Ok(engine.outcome)
}

impl<'a> Engine<'a> {
    fn new(world: &'a World, gangs: &'a Gangs, steps: &'a [HostsUp], options: Options) -> Self {
        let begin = gangs
            .list
            .first()
            .map_or(UnixMillis::ZERO, |gang| gang.submit);
        let pods = gangs.list.iter().flat_map(|gang| {
            let roles = &gangs.kinds[gang.kind as usize].shape.roles;
            roles.iter().map(|role| (role.per_pod, u64::from(role.min)))
        });
        let count = gangs.list.len();
        let (mut empty, preempts) = (world.empty.clone(), world.preempts());
        let room = Room::new(&world.fleet.pools);
        if preempts {
            empty.hosts = room.hosts();
        }
        Self {
            world,
            gangs,
            options,
            planner: Planner::new(empty),
            room,
            typical: TypicalPods::new(pods),
            places: (0..count).map(|_| Place::Nowhere).collect(),
            epochs: vec![None; count],
            saved: vec![Millis::ZERO; count],
            yielding: Yielding::default(),
            preempts,
            shielded_until: world.has_windows().then_some(begin),
            again: None,
            started: Vec::new(),
            stages: BTreeMap::new(),
            ends: BinaryHeap::new(),
            arrived: 0,
            steps,
            stepped: 0,
            refused: Refused::default(),
            known: vec![false; count],
            is_new: false,
            due: false,
            only_time: false,
            full_rounds: 0,
            next_round: begin,
            touched: vec![true; world.empty.pools.len()],
            untold: vec![false; world.empty.pools.len()],
            histories: vec![History::default(); world.empty.tenants.len()],
            entered: begin,
            outcome: Outcome {
                runs: vec![Run::default(); count],
                meters: Meters::new(&world.empty, begin),
                begin,
                end: begin,
                ..Outcome::default()
            },
        }
    }

    /// Tells the planner what happened.
    fn tell(&mut self, change: Change) {
        let told = self.planner.apply(change);
        told.expect("what the engine does can happen");
    }

    fn waits(&self) -> bool {
        !self.planner.snapshot().waiting.is_empty()
    }

    /// Whoever waits still has waited until now.
    fn close(&mut self) {
        let at = self.outcome.end;
        for (run, place) in self.outcome.runs.iter_mut().zip(&self.places) {
            if let Place::Waiting { since } = place {
                run.waited = run.waited.saturating_add(at.since(*since));
            }
        }
        for row in &self.planner.snapshot().waiting {
            let look = self.planner.look(row.gang);
            let run = &mut self.outcome.runs[Gangs::ordinal(row.gang) as usize];
            run.reason = look.and_then(|look| self.refused.newest(look));
        }
    }

    /// The next instant at which anything happens; `None` when nothing can happen any more.
    fn next_instant(&mut self) -> Option<UnixMillis> {
        while let Some(Reverse((_, gang, attempt))) = self.ends.peek()
            && !self.is_running(*gang, *attempt)
        {
            self.ends.pop();
        }
        let arrival = self.gangs.list.get(self.arrived).map(|gang| gang.submit);
        let end = self.ends.peek().map(|Reverse((at, ..))| *at);
        let (waits, runs) = (self.waits(), !self.planner.snapshot().held.is_empty());
        let round = (self.due && waits).then_some(self.next_round);
        let matters = waits || arrival.is_some() || runs;
        let step = self.steps.get(self.stepped).filter(|_| matters);
        // Nobody can be made to go where nothing runs.
        let again = self.again.filter(|_| waits && runs);
        let step = step.map(|step| step.at);
        let next = [arrival, end, round, again, self.yielding.next(), step];
        let next = next.into_iter().flatten().min()?;
        Some(next.max(self.outcome.end))
    }

    fn take_arrivals(&mut self, at: UnixMillis) {
        while let Some(gang) = self.gangs.list.get(self.arrived) {
            if gang.submit > at {
                break;
            }
            let ordinal = u32::try_from(self.arrived).unwrap_or(u32::MAX);
            self.arrived += 1;
            self.queue(ordinal, at);
        }
    }

    fn take_ends(&mut self, at: UnixMillis) {
        while let Some(Reverse((end, gang, attempt))) = self.ends.peek().copied() {
            if end > at {
                break;
            }
            self.ends.pop();
            if self.is_running(gang, attempt) {
                self.release(gang, at);
                self.outcome.runs[gang as usize].ended = Some(at);
            }
        }
    }

    fn is_running(&self, gang: u32, attempt: u32) -> bool {
        match &self.places[gang as usize] {
            Place::Running(running) => running.attempt == attempt,
            Place::Nowhere | Place::Waiting { .. } => false,
        }
    }

    fn take_steps(&mut self, at: UnixMillis) -> Result<(), EngineError> {
        while let Some(step) = self.steps.get(self.stepped) {
            if step.at > at {
                break;
            }
            self.stepped += 1;
            let pool = self.world.pool(&step.cluster, &step.pool);
            let pool = pool.ok_or_else(|| EngineError::NoPool {
                cluster: step.cluster.clone(),
                pool: step.pool.clone(),
            })?;
            let before = self.room.up(pool);
            let lost = self.room.set_up(pool, step.up);
            self.touch(pool);
            // A smaller fleet refuses for other reasons: ask again, whichever way it went.
            if self.room.up(pool) != before {
                self.freed();
            }
            for gang in lost {
                self.stop(gang, at, Stopped::Lost)?;
            }
        }
        Ok(())
    }

    /// Gangs whose time to leave has come make room.
    fn take_departures(&mut self, at: UnixMillis) -> Result<(), EngineError> {
        while let Some(gang) = self.yielding.take_due(at) {
            self.stop(gang, at, Stopped::Preempted)?;
        }
        Ok(())
    }

    /// A gang stops before its end, and waits again unless its class is not started again.
    fn stop(&mut self, gang: u32, at: UnixMillis, why: Stopped) -> Result<(), EngineError> {
        let Some(running) = self.release(gang, at) else {
            return Ok(());
        };
        let kind = self.gangs.kind(gang);
        let manner = self.world.manner(kind.class);
        let ran = at.since(running.since);
        let saved = match (kind.checkpoint, why) {
            (None, _) => Millis::ZERO,
            // It is asked to save its work, and has its notice for that.
            (Some(_), Stopped::Preempted) if manner == Manner::CheckpointThenRequeue => ran,
            (Some(every), _) => Millis(ran.0 - ran.0 % every.0.max(1)),
        };
        let work = Millis(saved.0.saturating_mul(running.speed) / 1000);
        let all = &mut self.saved[gang as usize];
        *all = all.saturating_add(work);
        let run = &mut self.outcome.runs[gang as usize];
        run.lost = run.lost.saturating_add(ran.saturating_sub(saved));
        match why {
            Stopped::Lost => run.losses += 1,
            Stopped::Preempted => run.preemptions += 1,
        }
        if run.losses.saturating_add(run.preemptions) >= MAX_ATTEMPTS {
            return Err(EngineError::LostTooOften { line: gang });
        }
        if !(why == Stopped::Preempted && manner == Manner::Reclaim) {
            self.queue(gang, at);
        }
        Ok(())
    }

    /// Puts a gang into the queue, with its place in it.
    fn queue(&mut self, gang: u32, at: UnixMillis) {
        let generation = self.world.empty.store_generation;
        let epoch = match self.epochs[gang as usize] {
            None => Epoch::first(generation),
            Some(last) => last.next(generation).unwrap_or(last),
        };
        self.epochs[gang as usize] = Some(epoch);
        let mut row = self.gangs.waiting(gang, epoch);
        row.evicted_by = self.yielding.evicted(gang).to_vec();
        let id = row.gang;
        self.tell(Change::Submitted(Box::new(row)));
        self.places[gang as usize] = Place::Waiting { since: at };
        self.is_new |= !self.known[gang as usize];
        let kind = self.gangs.kind(gang);
        let meters = &mut self.outcome.meters;
        meters.tenants[kind.tenant.index()].waiting += kind.gpus.0;
        meters.demand_changed();
        let look = self.planner.look(id);
        match look.and_then(|look| self.refused.get(look)) {
            Some(reason) if self.options.rounds == Rounds::WhenNeeded => {
                meters.block(reason, kind.tenant, kind.gpus, 1);
            }
            Some(_) | None => self.due = true,
        }
    }

    /// Enters what runs up to the last full hour. The instants do not depend on rounds, so neither
    /// do the sums.
    fn enter_histories(&mut self, at: UnixMillis) {
        let hour = UnixMillis(at.0.div_euclid(HOUR).saturating_mul(HOUR));
        if hour <= self.entered {
            return;
        }
        let snapshot = self.planner.snapshot();
        for held in &snapshot.held {
            enter(&mut self.histories, snapshot, held, (self.entered, hour));
        }
        self.entered = hour;
    }

    /// Something has become free: what was refused may be placed.
    fn freed(&mut self) {
        self.refused.end();
        self.due = true;
    }

    /// Takes a running gang off its hosts.
    fn release(&mut self, gang: u32, at: UnixMillis) -> Option<Running> {
        let place = &mut self.places[gang as usize];
        if !matches!(place, Place::Running(_)) {
            return None;
        }
        let Place::Running(running) = std::mem::replace(place, Place::Nowhere) else {
            return None;
        };
        self.yielding.forget(gang);
        self.room.free(gang, &running.seats);
        for seat in &running.seats {
            self.touch(seat.pool);
        }
        let id = self.gangs.list[gang as usize].id;
        let epoch = self.epochs[gang as usize].unwrap_or_default();
        let snapshot = self.planner.snapshot();
        if let Some(ix) = self.planner.holds(id, epoch) {
            let held = &snapshot.held[ix.index()];
            enter(&mut self.histories, snapshot, held, (self.entered, at));
            let meters = &mut self.outcome.meters;
            meters.tenants[held.tenant.index()].held -= held.resources.gpus.0;
            meters.demand_changed();
            self.tell(Change::Ended(id, epoch));
        }
        self.freed();
        Some(running)
    }

    fn touch(&mut self, pool: usize) {
        self.touched[pool] = true;
        self.untold[pool] = true;
    }

    /// Tells the planner which pools look otherwise by now.
    fn tell_room(&mut self) {
        for pool in 0..self.untold.len() {
            if std::mem::take(&mut self.untold[pool]) {
                let hosts = self.preempts.then(|| self.room.hosts_of(pool));
                let rows = self.room.rows(pool).to_vec();
                let ix = PoolIx(u32::try_from(pool).unwrap_or(u32::MAX));
                self.tell(Change::Pool(ix, rows, hosts.unwrap_or_default()));
            }
        }
    }

    fn read_meters(&mut self) {
        let meters = &mut self.outcome.meters;
        let mut any = false;
        for (index, touched) in self.touched.iter_mut().enumerate() {
            if std::mem::take(touched) {
                meters.look(index, self.room.rows(index), &self.typical);
                any = true;
            }
        }
        if any {
            meters.add_up();
        }
        meters.waiting = self.planner.snapshot().waiting.len() as u64;
        meters.most_waiting = meters.most_waiting.max(meters.waiting);
    }
}

/// Enters what a placement has held since it was last entered.
fn enter(
    histories: &mut [History],
    snapshot: &Snapshot,
    held: &Held,
    (entered, to): (UnixMillis, UnixMillis),
) {
    let worth = snapshot.flavors[held.flavor.index()].worth;
    let from = held.since.max(entered);
    histories[held.tenant.index()].add(use_of(held.resources, worth), from, to);
}
