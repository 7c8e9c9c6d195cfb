//! Rounds: what the next decision sees, and how a plan is carried out.
//!
//! Owns the order in which a plan's parts take effect: as they were decided, one after the other.
//! Never decides.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use meridian_api::ids::GangId;
use meridian_api::reasons::Reason;
use meridian_api::units::{MilliGpus, Millis, UnixMillis};
use meridian_policies::model::{
    Held, HeldIx, Hold, HoldIx, Lapse, Movable, Placed, Plan, Preemption, Stage, Standing,
};

use super::{AGAIN, Checks, Engine, EngineError, Place, Running};
use crate::room::Seat;
use crate::world::Gangs;

impl Engine<'_> {
    pub(super) fn round(&mut self, at: UnixMillis) -> Result<(), EngineError> {
        self.snapshot.now = at;
        self.snapshot.revision.0 += 1;
        self.snapshot.seed = self.snapshot.revision.0;
        for (tenant, history) in self.snapshot.tenants.iter_mut().zip(&self.histories) {
            tenant.history = history.average(at);
        }
        if self.shielded_until.is_some_and(|until| until <= at) {
            let next = self.world.shield(&mut self.snapshot.classes, at);
            self.shielded_until = Some(next);
        }
        if self.preempts {
            self.show_standing(at);
        }
        let plan = meridian_policies::decide(&self.snapshot);
        if self.options.checks == Checks::EachPlan {
            let found = meridian_policies::check(&self.snapshot, &plan);
            if let Some(violation) = found.into_iter().next() {
                return Err(EngineError::Violation { at, violation });
            }
        }
        self.outcome.rounds += 1;
        self.next_round = at.after(self.options.round_every);
        self.due = false;
        self.note_refusals(&plan);
        for regraded in &plan.regraded {
            self.snapshot.held[regraded.held.index()]
                .rows
                .clone_from(&regraded.rows);
        }
        self.carry_out(&plan, at)?;
        if !plan.placements.is_empty() {
            let mut stays = vec![true; self.snapshot.waiting.len()];
            for placed in &plan.placements {
                stays[placed.waiting.index()] = false;
            }
            let mut stays = stays.into_iter();
            self.snapshot
                .waiting
                .retain(|_| stays.next().unwrap_or(true));
        }
        Ok(())
    }

    /// Shows on which hosts work stands, what it has saved, and what is held for whom.
    fn show_standing(&mut self, at: UnixMillis) {
        self.room.show_hosts(&mut self.snapshot.hosts);
        self.yielding.show(&mut self.snapshot);
        for held in &mut self.snapshot.held {
            let kind = self.gangs.kind(Gangs::ordinal(held.gang));
            let whole = |every: Millis| {
                let ran = at.since(held.since).0;
                held.since.after(Millis(ran - ran % every.0.max(1)))
            };
            held.standing.saved = kind.checkpoint.map(whole);
        }
        self.show_movable();
    }

    /// Shows what else those ask for who save their work and come back: they may go on elsewhere.
    fn show_movable(&mut self) {
        self.snapshot.movable.clear();
        for (held, ix) in self.snapshot.held.iter().zip((0..).map(HeldIx)) {
            let gang = Gangs::ordinal(held.gang);
            let kind = self.gangs.kind(gang);
            let class = &self.snapshot.classes[held.class.index()];
            if kind.checkpoint.is_some() && class.rule.comes_back() {
                let epoch = held.epoch.next(self.snapshot.store_generation);
                let gang = self.gangs.waiting(gang, epoch.unwrap_or(held.epoch));
                self.snapshot.movable.push(Movable { held: ix, gang });
            }
        }
    }

    /// Holds are settled first, in their order; then whoever is placed and whoever makes room.
    fn carry_out(&mut self, plan: &Plan, at: UnixMillis) -> Result<(), EngineError> {
        let lapsed: BTreeMap<HoldIx, Lapse> =
            plan.lapsed.iter().map(|it| (it.hold, it.why)).collect();
        let mut placements = plan.placements.iter().zip(0_u32..).peekable();
        let holds: Vec<_> = self.snapshot.holds.iter().map(|hold| hold.gang).collect();
        for (gang, ix) in holds.into_iter().zip((0..).map(HoldIx)) {
            match lapsed.get(&ix) {
                Some(Lapse::PlacedElsewhere) => {}
                Some(Lapse::Expired | Lapse::NotWanted | Lapse::Closed | Lapse::Done) => {
                    self.end_hold(gang);
                }
                None => {
                    let waiting = &self.snapshot.waiting;
                    let is_its = |placed: &Placed| waiting[placed.waiting.index()].gang == gang;
                    if let Some((placed, _)) = placements.next_if(|(placed, _)| is_its(placed)) {
                        self.start(placed, at)?;
                    }
                }
            }
        }
        let mut made = plan.preemptions.iter().peekable();
        for (placed, position) in placements {
            while let Some(made) = made.next_if(|made| made.after <= position) {
                self.make_room(made);
            }
            self.start(placed, at)?;
        }
        for made in made {
            self.make_room(made);
        }
        // Only now: the plan names placements by their row before it.
        for started in std::mem::take(&mut self.started) {
            let held = &mut self.snapshot.held;
            let place = held.partition_point(|held| held.gang < started.gang);
            held.insert(place, started);
        }
        Ok(())
    }

    fn make_room(&mut self, made: &Preemption) {
        self.yielding.leave(&self.snapshot, made);
        for hold in made.holds(&self.snapshot) {
            let pool = hold.pool.unwrap_or(made.pool);
            let room = self.room.keep(pool, &hold.room, Gangs::ordinal(hold.gang));
            self.yielding.hold(Hold { room, ..hold });
        }
        for victim in &made.victims {
            self.snapshot.held[victim.held.index()].standing.stage = Stage::Draining;
        }
    }

    /// What was held for a gang is there for others; who has not left for it goes on.
    fn end_hold(&mut self, gang: GangId) {
        for spared in self.yielding.end(gang) {
            let id = Gangs::id(spared);
            let held = &mut self.snapshot.held;
            if let Ok(row) = held.binary_search_by_key(&id, |held| held.gang) {
                held[row].standing.stage = Stage::Running;
            }
        }
        self.room.give_up(Gangs::ordinal(gang));
        self.freed();
    }

    fn note_refusals(&mut self, plan: &Plan) {
        self.outcome.meters.clear_blocked();
        self.refused.clear();
        let mut may_change = false;
        for unplaced in &plan.unplaced {
            let row = &self.snapshot.waiting[unplaced.waiting.index()];
            let gang = Gangs::ordinal(row.gang);
            let first = unplaced.reasons.first().map(|cause| cause.reason);
            let reason = first.unwrap_or(Reason::PendingEvaluation);
            may_change |= reason != Reason::NeverPlaceable;
            let kind = self.gangs.list[gang as usize].kind;
            if reason == Reason::PendingEvaluation && !plan.placements.is_empty() {
                // What was kept for others came free in this very round, after its turn.
                self.due = true;
            } else if reason != Reason::WaitingForPreemption {
                // Where room is made for one, another of its kind may be as lucky.
                self.refused.insert(kind, reason);
            }
            let run = &mut self.outcome.runs[gang as usize];
            run.reason = Some(reason);
            if run.started.is_none() {
                run.told = run.told.or(unplaced.start);
            }
            let meters = &mut self.outcome.meters;
            meters.block(reason, row.tenant, row.job_gpus);
        }
        self.again = (self.preempts && may_change).then(|| self.snapshot.now.after(AGAIN));
    }

    /// What preemption needs to know of a gang that starts on `seats`.
    fn standing(&self, gang: u32, placed: &Placed, seats: &[Seat], at: UnixMillis) -> Standing {
        if !self.preempts {
            return Standing::default();
        }
        let shape = &self.gangs.kind(gang).shape;
        let evictions = self.yielding.evicted(gang);
        Standing {
            job: Gangs::id(gang).to_string(),
            stage: Stage::Running,
            started: Some(at),
            saved: None,
            shape: (**shape).clone(),
            full: placed.pods.clone(),
            seats: self.room.seats(shape, seats),
            evictions: evictions.iter().map(|it| it.at).collect(),
        }
    }

    fn start(&mut self, placed: &Placed, at: UnixMillis) -> Result<(), EngineError> {
        let row = &self.snapshot.waiting[placed.waiting.index()];
        let (id, epoch) = (row.gang, row.next_epoch);
        let gang = Gangs::ordinal(id);
        let pool = placed.pool.index();
        let kind = self.gangs.kind(gang);
        let rows = &mut self.snapshot.pools[pool].shapes;
        let seats = self
            .room
            .place(pool, rows, gang, &kind.shape, &placed.takes)
            .map_err(|source| EngineError::NotThere { at, source })?;
        self.touched[pool] = true;
        if self.yielding.is_held_for(id) {
            self.end_hold(id);
        }
        let standing = self.standing(gang, placed, &seats, at);
        let source = &self.snapshot.pools[pool];
        let (cluster, flavor) = (source.cluster, source.flavor);
        let held = Held {
            gang: id,
            epoch,
            tenant: kind.tenant,
            class: kind.class,
            cluster,
            flavor,
            pool: Some(placed.pool),
            ends: kind.max_runtime.map(|most| at.after(most)),
            resources: kind.shape.demand(&placed.pods),
            pods: placed
                .pods
                .iter()
                .fold(0, |sum, pods| sum.saturating_add(*pods)),
            rows: placed.rows.clone(),
            since: at,
            standing,
        };
        self.started.push(held);
        let speed = kind.accepted.iter().find(|own| own.flavor == flavor);
        let speed = speed.map_or(1000, |own| u64::from(own.speed)).max(1);
        let all = self.gangs.list[gang as usize].duration;
        let left = all.saturating_sub(self.saved[gang as usize]).0;
        let took = Millis(left.saturating_mul(1000) / speed);
        let run = &mut self.outcome.runs[gang as usize];
        if let Place::Waiting { since } = self.places[gang as usize] {
            run.waited = run.waited.saturating_add(at.since(since));
        }
        run.started = run.started.or(Some(at));
        let attempt = run.losses.saturating_add(run.preemptions);
        self.ends.push(Reverse((at.after(took), gang, attempt)));
        self.places[gang as usize] = Place::Running(Running {
            since: at,
            attempt,
            seats,
            speed,
        });
        let meter = &mut self.outcome.meters.tenants[kind.tenant.index()];
        let gpus: MilliGpus = kind.gpus;
        meter.waiting -= gpus.0;
        meter.held += placed.gpus.0;
        Ok(())
    }
}
