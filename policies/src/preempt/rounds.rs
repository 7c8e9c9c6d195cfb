//! Preemption within a round: holds of earlier rounds first, then room for who finds none.
//!
//! Owns what a round has promised and taken so far: a placement makes room once, and what is held
//! is seen by nobody else. Never searches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meridian_api::ids::{GangId, Uid};
use meridian_api::units::{Millis, UnixMillis};

use super::again::{Again, Searches};
use super::candidates::{Candidates, Moved};
use super::holds::{self, Kept};
use super::moves::{Movers, Price};
use super::rules::{Aim, Asker, budgets};
use super::stands::{Stands, name_of, stands_in};
use super::{QUOTA_STEPS, given_up, plan};
use crate::candidates::{is_open, preference};
use crate::decide::Round;
use crate::ends::Ends;
use crate::fit::{Fit, fit};
use crate::model::{
    ClassIx, HeldIx, Hold, HoldIx, Lapse, Lapsed, Place, Placed, PoolIx, Preemption, Rule, Score,
    Snapshot, Stage, TenantIx, Victim, WaitingIx, Yield,
};
use crate::quota::{Ledger, Reach};
use crate::shapes;
use crate::slots::Mask;

/// Askers that may take the same.
type Kind = (TenantIx, ClassIx, bool, Vec<Uid>, Price, Aim);

fn kind(asker: &Asker<'_>, price: Price) -> Kind {
    let (gang, cooling) = (asker.gang, asker.cooling.clone());
    (
        gang.tenant,
        gang.class,
        asker.is_owner,
        cooling,
        price,
        asker.aim,
    )
}

/// Gangs for which room is held, by where they are.
#[derive(Default)]
pub(crate) struct Beneficiaries {
    waiting: BTreeMap<GangId, WaitingIx>,
    held: BTreeMap<GangId, HeldIx>,
}

impl Beneficiaries {
    /// Those of a snapshot, in one walk over its tables.
    pub(crate) fn new(snapshot: &Snapshot) -> Self {
        let all: BTreeSet<GangId> = snapshot.holds.iter().map(|hold| hold.gang).collect();
        let waiting = (!all.is_empty()).then_some(&snapshot.waiting);
        let waiting = waiting.into_iter().flatten().map(|row| row.gang);
        let waiting = waiting.zip((0..).map(WaitingIx));
        let waiting: BTreeMap<GangId, WaitingIx> =
            waiting.filter(|(gang, _)| all.contains(gang)).collect();
        Self::known(snapshot, |gang| waiting.get(&gang).copied())
    }

    /// Those that wait.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = WaitingIx> {
        self.waiting.values().copied()
    }

    /// The same, when it is known where each gang waits.
    pub(crate) fn known(snapshot: &Snapshot, waits: impl Fn(GangId) -> Option<WaitingIx>) -> Self {
        let mut own = Self::default();
        let mut others = BTreeSet::new();
        for hold in &snapshot.holds {
            match waits(hold.gang) {
                Some(ix) => drop(own.waiting.insert(hold.gang, ix)),
                None => drop(others.insert(hold.gang)),
            }
        }
        if !others.is_empty() {
            let held = snapshot.held.iter().zip((0..).map(HeldIx));
            let held = held.filter(|(row, _)| others.contains(&row.gang));
            own.held.extend(held.map(|(row, ix)| (row.gang, ix)));
        }
        own
    }
}

/// What a round knows of preemption.
#[derive(Default)]
pub(crate) struct Preemptions {
    /// Those decided in this round.
    pub(crate) made: Vec<Preemption>,
    pub(crate) lapsed: Vec<Lapsed>,
    pub(crate) moved: Moved,
    /// What each hold keeps out of sight; `None` once it has ended.
    kept: Vec<Option<Vec<Kept>>>,
    /// Gangs with a hold of an earlier round.
    owners: BTreeMap<WaitingIx, HoldIx>,
    /// Placements with a hold of an earlier round: they go on there.
    movers_to: BTreeMap<HoldIx, HeldIx>,
    /// Placements that make room already.
    taken: Vec<bool>,
    stands: Option<Vec<Stands>>,
    /// Who may go on elsewhere; made when it is asked for.
    pub(super) movers: Option<Movers>,
    candidates: BTreeMap<(Kind, PoolIx), Arc<Candidates>>,
    budgets: Vec<u64>,
    searches: Searches,
    /// When time alone may change what was refused.
    pub(crate) again: Again,
    /// Slots that were left alone by those who found no place beside them, and for how long these
    /// run at most.
    pub(crate) beside: BTreeSet<(Mask, Millis)>,
}

impl Preemptions {
    /// Takes what is held out of the pools' rows.
    pub(crate) fn new(
        snapshot: &Snapshot,
        whose: &Beneficiaries,
        pools: &mut [crate::pools::PoolState],
    ) -> Self {
        let kept = holds::keep_all(snapshot, |pool, with| {
            let state = pools.get_mut(pool.index());
            state.map_or_else(Vec::new, |state| state.keep_with(with))
        });
        let mut own = Self {
            kept: kept.into_iter().map(Some).collect(),
            taken: holds::spoken_for(snapshot),
            budgets: budgets(snapshot),
            ..Self::default()
        };
        for (hold, ix) in snapshot.holds.iter().zip((0..).map(HoldIx)) {
            if let Some(owner) = whose.waiting.get(&hold.gang) {
                own.owners.insert(*owner, ix);
            } else if let Some(held) = whose.held.get(&hold.gang) {
                own.movers_to.insert(ix, *held);
            }
            own.note(snapshot, &hold.room);
        }
        own
    }

    /// Known hosts that do not look as their row says any more.
    fn note(&mut self, snapshot: &Snapshot, room: &[crate::model::HoldRoom]) {
        for ix in room.iter().flat_map(|part| &part.known) {
            self.moved.keep(snapshot, *ix);
        }
    }

    /// The hold of a gang, or what was decided for it in this round.
    pub(crate) fn waits_for_room(&self, ix: WaitingIx) -> bool {
        self.owners.contains_key(&ix) || self.is_made(ix)
    }

    /// All gangs with a hold, or with one that was decided in this round.
    pub(crate) fn waiting_for_room(&self) -> impl Iterator<Item = WaitingIx> {
        let made = self.made.iter().map(|made| made.waiting);
        self.owners.keys().copied().chain(made)
    }

    /// True for a placement that makes room already.
    pub(super) fn is_taken(&self, ix: HeldIx) -> bool {
        self.taken.get(ix.index()).copied().unwrap_or(false)
    }

    /// True when room was made for the gang in this round.
    pub(crate) fn is_made(&self, ix: WaitingIx) -> bool {
        self.made.iter().any(|made| made.waiting == ix)
    }

    /// The hold of a gang from an earlier round.
    pub(crate) fn hold_of(&self, ix: WaitingIx) -> Option<HoldIx> {
        self.owners.get(&ix).copied()
    }

    /// True while a gang that finds no place may still be looked for room for.
    pub(crate) const fn may_search(&self) -> bool {
        self.searches.are_left()
    }

    /// Ends a hold; what it kept is seen again.
    fn end(&mut self, ix: HoldIx) -> Vec<Kept> {
        self.owners.retain(|_, hold| *hold != ix);
        self.kept[ix.index()].take().unwrap_or_default()
    }
}

/// True when some quota counts what stands in both places.
fn is_counted_with(snapshot: &Snapshot, a: Place, b: Place) -> bool {
    let rows = snapshot.tenants.iter().flat_map(|tenant| &tenant.quotas);
    let mut measures = rows.map(|row| row.measure);
    measures.any(|measure| measure.counts(a) && measure.counts(b))
}

impl<'a> Round<'a> {
    /// Quota once everybody has gone who leaves for a gang. Only who makes others go may count on
    /// it: what is placed must fit beside them, for they are spared when the gang does not want
    /// its room any more.
    pub(super) fn once_gone(&self) -> Ledger<'a> {
        let snapshot = self.snapshot;
        let mut ledger = self.ledger.clone();
        let mut goes = |held: HeldIx, what| {
            let held = &snapshot.held[held.index()];
            ledger.give_back(held.tenant, held.place(snapshot), what);
        };
        for leaving in self.standing_holds().flat_map(|hold| &hold.victims) {
            goes(leaving.held, leaving.resources);
        }
        for victim in self.preemptions.made.iter().flat_map(|made| &made.victims) {
            let held = &snapshot.held[victim.held.index()];
            goes(victim.held, given_up(held, &victim.does));
        }
        ledger
    }

    /// Quota that is held by placements, without what is kept.
    fn only_held(&self) -> Ledger<'a> {
        let mut ledger = self.ledger.clone();
        for hold in self.standing_holds() {
            ledger.give_back(hold.tenant, hold.place(self.snapshot), hold.resources);
        }
        ledger
    }

    /// When time alone may let room be made for somebody whom the round has refused, or ends what
    /// is held; `None` while nothing else happens.
    pub(crate) fn again(&self, ends: &mut Ends) -> Option<UnixMillis> {
        let own = &self.preemptions;
        let mut again = own.again;
        for (mask, most) in &own.beside {
            for (_, slot) in self.bound(*mask) {
                again.note(slot.put_off(self.snapshot, ends, *most));
            }
        }
        for hold in self.standing_holds() {
            again.note(Some(hold.until));
        }
        for made in &own.made {
            again.note(Some(made.until));
        }
        again.note(own.searches.again(self.snapshot.now));
        again.at()
    }

    /// Holds of earlier rounds that have not ended in this one.
    fn standing_holds(&self) -> impl Iterator<Item = &'a Hold> {
        let holds = self.preemptions.kept.iter().zip(&self.snapshot.holds);
        holds.filter_map(|(kept, hold)| kept.as_ref().map(|_| hold))
    }
}

impl Round<'_> {
    /// False when no rule lets the gang take anything in the pool.
    pub(super) fn may_yield(&mut self, asker: &Asker<'_>, pool: PoolIx) -> bool {
        let snapshot = self.snapshot;
        let stands = &mut self.preemptions.stands;
        let stands = stands.get_or_insert_with(|| stands_in(snapshot));
        stands[pool.index()].may_yield(asker)
    }

    /// Placements of a pool that the gang may take.
    pub(super) fn candidates(
        &mut self,
        asker: &Asker<'_>,
        pool: PoolIx,
        price: Price,
    ) -> Arc<Candidates> {
        let key = (kind(asker, price), pool);
        if let Some(known) = self.preemptions.candidates.get(&key) {
            return Arc::clone(known);
        }
        let snapshot = self.snapshot;
        let made = match price {
            Price::Stopped => {
                let own = &mut self.preemptions;
                let stands = own.stands.get_or_insert_with(|| stands_in(snapshot));
                let held = stands[pool.index()].held.iter().copied();
                let free = held.filter(|ix| !own.taken[ix.index()]);
                let made = Candidates::new(snapshot, asker, free, &own.budgets);
                own.again.note(made.again.at());
                made
            }
            Price::Moved => {
                let stopped = self.candidates(asker, pool, Price::Stopped);
                let moves = self.who_moves(stopped.held());
                stopped.moved(snapshot, &moves)
            }
        };
        let made = Arc::new(made);
        let own = &mut self.preemptions.candidates;
        own.insert(key, Arc::clone(&made));
        made
    }

    /// Placements anywhere that could free quota in `place` for the gang, which may take them: of
    /// each tenant its cheapest, and of all the cheapest first.
    pub(super) fn for_quota(&mut self, asker: &Asker<'_>, place: Place) -> Vec<Victim> {
        let snapshot = self.snapshot;
        let pools: Vec<PoolIx> = (0..).map(PoolIx).take(snapshot.pools.len()).collect();
        let mut all: Vec<(u128, Victim)> = Vec::new();
        for pool in pools {
            let stands = snapshot.place(&snapshot.pools[pool.index()]);
            if !is_counted_with(snapshot, place, stands) || !self.may_yield(asker, pool) {
                continue;
            }
            for it in self.candidates(asker, pool, Price::Stopped).whole() {
                let held = &snapshot.held[it.held.index()];
                let class = &snapshot.classes[held.class.index()];
                let density = (u128::from(it.cost) << 16) / u128::from(it.gpus.0.max(1));
                let victim = Victim {
                    held: it.held,
                    rule: it.rule,
                    does: Yield::Evict,
                    lost: it.lost,
                    cost: it.cost,
                    deadline: snapshot.now.after(class.rule.notice),
                };
                all.push((density, victim));
            }
        }
        all.sort_by_key(|(density, victim)| (*density, name_of(snapshot, victim.held)));
        let mut of_tenant = vec![0_usize; snapshot.tenants.len()];
        let mut is_among_its_cheapest = |victim: &Victim| {
            let tenant = snapshot.held[victim.held.index()].tenant;
            let seen = of_tenant.get_mut(tenant.index());
            seen.is_some_and(|seen| {
                *seen += 1;
                *seen <= QUOTA_STEPS
            })
        };
        let victims = all.into_iter().map(|(_, victim)| victim);
        victims
            .filter(|victim| is_among_its_cheapest(victim))
            .collect()
    }

    /// Places gangs whose room has come free, and ends holds that nothing will come of.
    pub(crate) fn settle_holds(&mut self) -> Vec<Placed> {
        let mut placed = Vec::new();
        let owners: BTreeMap<HoldIx, WaitingIx> = self
            .preemptions
            .owners
            .iter()
            .map(|(owner, hold)| (*hold, *owner))
            .collect();
        for (hold, ix) in self.snapshot.holds.iter().zip((0..).map(HoldIx)) {
            match self.settle(hold, ix, owners.get(&ix).copied()) {
                Ok(Some(it)) => placed.push(it),
                Ok(None) => {}
                Err(why) => {
                    self.release(ix);
                    self.preemptions.lapsed.push(Lapsed { hold: ix, why });
                }
            }
        }
        placed
    }

    fn settle(
        &mut self,
        hold: &Hold,
        ix: HoldIx,
        owner: Option<WaitingIx>,
    ) -> Result<Option<Placed>, Lapse> {
        if let Some(block) = &hold.block {
            return self.still_clears(hold, block).map(|()| None);
        }
        let Some(owner) = owner else {
            return self.still_moves(hold, ix).map(|()| None);
        };
        let gang = self.gang(owner);
        if gang.suspended {
            return Err(Lapse::NotWanted);
        }
        let pool = hold.pool.ok_or(Lapse::Closed)?;
        let source = &self.snapshot.pools[pool.index()];
        let preference = preference(self.snapshot, gang, source).map_err(|_| Lapse::Closed)?;
        if !is_open(&self.snapshot.clusters[source.cluster.index()]) {
            return Err(Lapse::Closed);
        }
        if !self.may_still_go(owner, source.cluster) {
            return Err(Lapse::Closed);
        }
        let kept = self.preemptions.kept[ix.index()]
            .clone()
            .unwrap_or_default();
        let state = &mut self.pools[pool.index()];
        holds::show(state.rows_mut(), &kept);
        let Some(found) = fit(&source.levels, state.rows(), &gang.shape, &hold.pods) else {
            return self.keep_on(hold, ix, pool);
        };
        // Who has not gone yet counts, whoever it leaves for: there must be quota for both.
        let place = self.snapshot.place(source);
        let room = self.only_held().room(gang.tenant, place, Reach::Borrowing);
        let broke = self.ledger.exhausted(gang.tenant, Reach::Nominal).is_some();
        if broke || !room.covers(gang.shape.demand(&hold.pods)) {
            return self.keep_on(hold, ix, pool);
        }
        self.uncharge(hold);
        let state = &mut self.pools[pool.index()];
        state.free = shapes::free(state.rows()).gpus;
        self.preemptions.end(ix);
        let gpus = gang.shape.gpus(&hold.pods);
        let score = Score {
            region_order: preference.region_order,
            flavor_order: preference.flavor_order,
            preferences_missed: found.preferences_missed,
            left_on_hosts: found.left_on_hosts.0,
            left_in_pool: self.pools[pool.index()].free.saturating_sub(gpus).0,
            pool,
            ..Score::default()
        };
        Ok(Some(self.take_place(
            owner,
            pool,
            hold.pods.clone(),
            found,
            score,
        )))
    }

    /// Those in the way of a block go as long as it is to begin, or holds.
    fn still_clears(&self, hold: &Hold, block: &str) -> Result<(), Lapse> {
        let mut rows = self.snapshot.reserved.iter();
        if !rows.any(|row| row.name == block && Some(row.pool) == hold.pool) {
            return Err(Lapse::NotWanted);
        }
        if hold.victims.is_empty() {
            return Err(Lapse::Done);
        }
        if self.snapshot.now >= hold.until {
            return Err(Lapse::Expired);
        }
        Ok(())
    }

    /// Room of a placement that goes on there is kept until it has left, and as long as anybody
    /// wants it to leave.
    fn still_moves(&self, hold: &Hold, ix: HoldIx) -> Result<(), Lapse> {
        let held = self.preemptions.movers_to.get(&ix);
        let held = held.ok_or(Lapse::NotWanted)?;
        let mut leaving = self.standing_holds().flat_map(|other| &other.victims);
        let stage = self.snapshot.held[held.index()].standing.stage;
        if stage != Stage::Draining && !leaving.any(|it| it.held == *held) {
            return Err(Lapse::NotWanted);
        }
        let pool = hold.pool.map(|pool| &self.snapshot.pools[pool.index()]);
        let cluster = pool.map(|pool| &self.snapshot.clusters[pool.cluster.index()]);
        if !cluster.is_some_and(is_open) {
            return Err(Lapse::Closed);
        }
        if self.snapshot.now >= hold.until {
            return Err(Lapse::Expired);
        }
        Ok(())
    }

    /// Its room is kept once more, unless its time is over.
    fn keep_on(&mut self, hold: &Hold, ix: HoldIx, pool: PoolIx) -> Result<Option<Placed>, Lapse> {
        let kept = self.pools[pool.index()].keep(self.snapshot, &hold.room);
        self.preemptions.kept[ix.index()] = Some(kept);
        if self.snapshot.now >= hold.until {
            return Err(Lapse::Expired);
        }
        Ok(None)
    }

    fn take_place(
        &mut self,
        owner: WaitingIx,
        pool: PoolIx,
        pods: Vec<u32>,
        found: Fit,
        score: Score,
    ) -> Placed {
        self.commit(owner, pool, &pods, &found);
        let (snapshot, job) = (self.snapshot, self.gang(owner).gang.job);
        let cluster = snapshot.pools[pool.index()].cluster;
        self.copies.placed(job, cluster);
        self.others.placed(snapshot, owner, cluster);
        Placed {
            waiting: owner,
            pool,
            gpus: self.gang(owner).shape.gpus(&pods),
            pods,
            takes: found.takes,
            rows: Vec::new(),
            score,
        }
    }

    /// Quota without what is kept by the hold, and its gang without it: who leaves for it counts.
    pub(crate) fn uncharge(&mut self, hold: &Hold) {
        self.copies.take_back(hold.gang.job, hold.cluster);
        self.ledger
            .give_back(hold.tenant, hold.place(self.snapshot), hold.resources);
    }

    /// Charges a hold again.
    pub(crate) fn charge_again(&mut self, hold: &Hold) {
        self.copies.promise(hold.gang.job, hold.cluster);
        self.ledger
            .keep(hold.tenant, hold.place(self.snapshot), hold.resources);
    }

    /// Ends a hold: its quota and its room are there for others.
    fn release(&mut self, ix: HoldIx) {
        let snapshot = self.snapshot;
        let hold = &snapshot.holds[ix.index()];
        let kept = self.preemptions.end(ix);
        if let Some(pool) = hold.pool {
            let state = &mut self.pools[pool.index()];
            holds::show(state.rows_mut(), &kept);
            state.free = shapes::free(state.rows()).gpus;
        }
        self.uncharge(hold);
    }

    /// A gang with a hold got a place elsewhere: the hold ends, and its room is seen again.
    pub(crate) fn leave_hold(&mut self, ix: HoldIx) {
        let hold = &self.snapshot.holds[ix.index()];
        // The caller has given its quota back already.
        self.charge_again(hold);
        self.release(ix);
        self.preemptions.lapsed.push(Lapsed {
            hold: ix,
            why: Lapse::PlacedElsewhere,
        });
    }

    /// Makes room for a gang that found none, if it may and can. Never where nobody has said on
    /// which hosts work stands: who does not show that stops it nowhere, so what it would give
    /// back, room or quota, would be given twice.
    pub(crate) fn make_room(&mut self, ix: WaitingIx, reach: Reach, mask: Mask) {
        let (snapshot, gang) = (self.snapshot, self.gang(ix));
        if self.preemptions.waits_for_room(ix)
            || snapshot.hosts.is_empty()
            || !self.preemptions.searches.take(snapshot, gang.gang)
        {
            return;
        }
        if reach == Reach::Nominal && self.finds_a_place_on_loan(ix, mask) {
            return;
        }
        let Some(made) = plan(self, ix, reach, mask) else {
            return;
        };
        for victim in &made.victims {
            let held = &snapshot.held[victim.held.index()];
            self.preemptions.taken[victim.held.index()] = true;
            let budget = self.preemptions.budgets.get_mut(held.tenant.index());
            if let Some(budget) = budget.filter(|_| victim.lost > 0 && victim.rule != Rule::Reclaim)
            {
                *budget = budget.saturating_sub(victim.lost);
            }
        }
        let place = snapshot.place(&snapshot.pools[made.pool.index()]);
        let demand = gang.shape.demand(&made.pods);
        let cluster = snapshot.pools[made.pool.index()].cluster;
        self.copies.promise(gang.gang.job, cluster);
        self.others.placed(snapshot, ix, cluster);
        self.ledger.add(gang.tenant, place, demand, gang.gang.job);
        self.pools[made.pool.index()].keep(snapshot, &made.room);
        self.preemptions.note(snapshot, &made.room);
        for (victim, next) in made.moves() {
            let held = &snapshot.held[victim.held.index()];
            let place = snapshot.place(&snapshot.pools[next.pool.index()]);
            self.ledger.keep(held.tenant, place, held.resources);
            self.pools[next.pool.index()].keep(snapshot, &next.room);
        }
        // Who was taken is no candidate for the next.
        self.preemptions.candidates.clear();
        self.preemptions.made.push(made);
    }
}
