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
    ClassIx, Held, Hold, HoldIx, Lapse, Placed, Plan, Preemption, Stage, Standing, Tenant,
    TenantIx, Waiting,
};
use meridian_policies::planner::Change;

use super::{Checks, Engine, EngineError, Place, Running};
use crate::room::Seat;
use crate::world::Gangs;

impl Engine<'_> {
    pub(super) fn round(&mut self, at: UnixMillis) -> Result<(), EngineError> {
        self.tell(Change::Clock(at));
        self.tell_tenants(at);
        self.tell_rules(at);
        self.tell_room();
        if self.preempts {
            self.show_standing(at);
        }
        let plan = self.planner.round().clone();
        if self.options.checks == Checks::EachPlan {
            self.check(at)?;
        }
        self.outcome.rounds += 1;
        self.next_round = at.after(self.options.round_every);
        self.due = false;
        self.note_refusals(&plan);
        self.carry_out(&plan, at)?;
        self.tell_outcome(&plan);
        Ok(())
    }

    fn check(&mut self, at: UnixMillis) -> Result<(), EngineError> {
        let plan = self.planner.plan();
        let snapshot = self.planner.snapshot();
        let found = meridian_policies::check(snapshot, &plan);
        if let Some(violation) = found.into_iter().next() {
            return Err(EngineError::Violation { at, violation });
        }
        if plan != meridian_policies::decide(snapshot) {
            return Err(EngineError::NotAlone { at });
        }
        Ok(())
    }

    /// What tenants have held, and what they lost to others lately.
    fn tell_tenants(&mut self, at: UnixMillis) {
        let tenants = self.histories.len();
        let lost = self.yielding.lost(tenants, at);
        for (ix, lost) in (0..).map(TenantIx).zip(lost) {
            let row = &self.planner.snapshot().tenants[ix.index()];
            let history = self.histories[ix.index()].average(at);
            if (row.history, row.lost) != (history, lost) {
                let row = Tenant {
                    history,
                    lost,
                    ..row.clone()
                };
                self.tell(Change::Tenant(ix, Box::new(row)));
            }
        }
    }

    /// Classes whose windows have opened or shut.
    fn tell_rules(&mut self, at: UnixMillis) {
        if self.shielded_until.is_none_or(|until| at < until) {
            return;
        }
        let mut classes = self.planner.snapshot().classes.clone();
        self.shielded_until = Some(self.world.shield(&mut classes, at));
        for (class, ix) in classes.into_iter().zip((0..).map(ClassIx)) {
            self.tell(Change::Rule(ix, class.rule));
        }
    }

    /// Shows what work has saved, what is held and for whom.
    fn show_standing(&mut self, at: UnixMillis) {
        let (places, gangs) = (&self.places, self.gangs);
        self.planner.stand(|gang, standing| {
            let gang = Gangs::ordinal(gang);
            let Place::Running(running) = &places[gang as usize] else {
                return;
            };
            let whole = |every: Millis| {
                let ran = at.since(running.since).0;
                running.since.after(Millis(ran - ran % every.0.max(1)))
            };
            standing.saved = gangs.kind(gang).checkpoint.map(whole);
        });
        let (planner, epochs) = (&self.planner, &self.epochs);
        let find = |gang: u32| planner.holds(Gangs::id(gang), epochs[gang as usize]?);
        if let Some(holds) = self.yielding.show(find) {
            self.tell(Change::Holds(holds));
        }
    }

    /// Holds are settled first, in their order; then whoever is placed and whoever makes room.
    fn carry_out(&mut self, plan: &Plan, at: UnixMillis) -> Result<(), EngineError> {
        let lapsed: BTreeMap<HoldIx, Lapse> =
            plan.lapsed.iter().map(|it| (it.hold, it.why)).collect();
        let mut placements = plan.placements.iter().zip(0_u32..).peekable();
        let holds = &self.planner.snapshot().holds;
        let holds: Vec<_> = holds.iter().map(|hold| hold.gang).collect();
        for (gang, ix) in holds.into_iter().zip((0..).map(HoldIx)) {
            match lapsed.get(&ix) {
                Some(Lapse::PlacedElsewhere) => {}
                Some(Lapse::Expired | Lapse::NotWanted | Lapse::Closed | Lapse::Done) => {
                    self.end_hold(gang);
                }
                None => {
                    let waiting = &self.planner.snapshot().waiting;
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
        Ok(())
    }

    /// Tells the planner what the plan has come to. Only now: the plan names rows as they were.
    fn tell_outcome(&mut self, plan: &Plan) {
        let held = &self.planner.snapshot().held;
        let regraded = plan.regraded.iter().map(|it| {
            let row = &held[it.held.index()];
            Change::Regraded(row.gang, row.epoch, it.rows.clone())
        });
        let mut changes: Vec<Change> = regraded.collect();
        for held in std::mem::take(&mut self.started) {
            let (id, epoch) = (held.gang, held.epoch);
            let movable = self.movable(&held);
            changes.push(Change::Left(id));
            changes.push(Change::Appeared(Box::new(held)));
            changes.extend(movable.map(|row| Change::Movable(id, epoch, Box::new(row))));
        }
        for change in changes {
            self.tell(change);
        }
        let stages = std::mem::take(&mut self.stages);
        if !stages.is_empty() {
            self.planner.stand(|gang, standing| {
                standing.stage = stages.get(&gang).copied().unwrap_or(standing.stage);
            });
        }
    }

    /// What a placement asks for that saves its work and comes back: it may go on elsewhere.
    fn movable(&self, held: &Held) -> Option<Waiting> {
        let gang = Gangs::ordinal(held.gang);
        let saves = self.gangs.kind(gang).checkpoint.is_some();
        let class = &self.world.empty.classes[held.class.index()];
        (self.preempts && saves && class.rule.comes_back()).then(|| {
            let epoch = held.epoch.next(self.world.empty.store_generation);
            self.gangs.waiting(gang, epoch.unwrap_or(held.epoch))
        })
    }

    fn make_room(&mut self, made: &Preemption) {
        let snapshot = self.planner.snapshot();
        self.yielding.leave(snapshot, made);
        for hold in made.holds(snapshot) {
            let pool = hold.pool.unwrap_or(made.pool);
            let room = self.room.keep(pool, &hold.room, Gangs::ordinal(hold.gang));
            self.yielding.hold(Hold { room, ..hold });
        }
        for victim in &made.victims {
            let gang = snapshot.held[victim.held.index()].gang;
            self.stages.insert(gang, Stage::Draining);
        }
    }

    /// What was held for a gang is there for others; who has not left for it goes on.
    fn end_hold(&mut self, gang: GangId) {
        for spared in self.yielding.end(gang) {
            self.stages.insert(Gangs::id(spared), Stage::Running);
        }
        self.room.give_up(Gangs::ordinal(gang));
        self.freed();
    }

    /// Notes what was refused: once for all gangs that look alike.
    fn note_refusals(&mut self, plan: &Plan) {
        let again = self.planner.again().filter(|_| self.preempts);
        self.again = again.into_iter().chain(self.shielded_until).min();
        let full_rounds = self.planner.full_rounds();
        let same_looks = std::mem::replace(&mut self.full_rounds, full_rounds) == full_rounds;
        if !(self.only_time && same_looks && plan.leaves_all()) {
            self.note_reasons(plan);
        }
    }

    fn note_reasons(&mut self, plan: &Plan) {
        self.outcome.meters.clear_blocked();
        self.refused.clear();
        for row in self.planner.reasons() {
            let gang = &self.planner.snapshot().waiting[row.waiting.index()];
            let first = row.reasons.first().map(|cause| cause.reason);
            let reason = first.unwrap_or(Reason::PendingEvaluation);
            if reason == Reason::PendingEvaluation && !plan.placements.is_empty() {
                // What was kept for others came free in this very round, after its turn.
                self.due = true;
            } else if reason != Reason::WaitingForPreemption {
                // Where room is made for one, another of its kind may be as lucky.
                self.refused.insert(row.look, reason);
            }
            let meters = &mut self.outcome.meters;
            meters.block(reason, gang.tenant, gang.job_gpus, row.gangs as u64);
        }
        if std::mem::take(&mut self.is_new) {
            self.note_estimates();
        }
    }

    /// Notes what those are told who are refused for the first time.
    fn note_estimates(&mut self) {
        let told = self.planner.unplaced().iter();
        let told: Vec<_> = told.map(|it| (it.waiting, it.start)).collect();
        for (waiting, start) in told {
            let gang = Gangs::ordinal(self.planner.snapshot().waiting[waiting.index()].gang);
            if !std::mem::replace(&mut self.known[gang as usize], true) {
                self.outcome.runs[gang as usize].told = start;
            }
        }
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
        let row = &self.planner.snapshot().waiting[placed.waiting.index()];
        let (id, epoch) = (row.gang, row.next_epoch);
        let gang = Gangs::ordinal(id);
        let pool = placed.pool.index();
        let kind = self.gangs.kind(gang);
        let seats = self
            .room
            .place(pool, gang, &kind.shape, &placed.takes)
            .map_err(|source| EngineError::NotThere { at, source })?;
        self.touch(pool);
        if self.yielding.is_held_for(id) {
            self.end_hold(id);
        }
        let standing = self.standing(gang, placed, &seats, at);
        let source = &self.world.empty.pools[pool];
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
