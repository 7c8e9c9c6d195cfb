//! State: what one round hands on to the next, and the round that is made of it.
//!
//! Owns the order of a round: what is as it was is settled first (see `settle`), then it goes the
//! way of [`crate::decide`]. Never says what is kept (see `planner`).

use std::collections::{BTreeMap, BTreeSet};

use meridian_api::ids::GangId;
use meridian_api::units::{Resources, UnixMillis};

use super::Reasoned;
use super::ages::Ages;
use super::change::Tables;
use super::lines::{Apart, Lines, Walk};
use super::openings::Openings;
use crate::books::write_rows;
use crate::causes;
use crate::choice::overflow;
use crate::choice::standing::Standings;
use crate::decide::{Failed, Kept, Prepared, Round};
use crate::kinds::Kinds;
use crate::model::{
    Place, Placed, Plan, PoolIx, Preemption, Snapshot, TenantIx, Unplaced, Use, Waiting, WaitingIx,
};
use crate::place::Places;
use crate::pools::PoolState;
use crate::preempt::Beneficiaries;
use crate::quota::{Entries, Ledger, Reach};
use crate::reserved::Blocks;
use crate::shapes::RoomChange;
use crate::shares::{Shares, Sums};
use crate::slots::Searched;

/// Looks that a queue may have come to beyond twice those that it had when everything was made: a
/// look that nobody has any more is kept, so now and then everything is made anew.
const LOOKS: usize = 4096;

/// What a placement that was decided has taken.
pub(super) struct Taken {
    /// Place among the placements of its round.
    pub(super) order: usize,
    pub(super) tenant: TenantIx,
    pub(super) place: Place,
    pub(super) pool: PoolIx,
    pub(super) demand: Resources,
    pub(super) uses: Use,
    pub(super) rooms: Vec<RoomChange>,
    /// Its gang is in no line: it was placed before the second turn.
    pub(super) is_out: bool,
    /// Its gang waits no more.
    pub(super) is_gone: bool,
}

/// What a round hands on.
pub(super) struct State {
    pub(super) kept: Option<Kept>,
    pub(super) shares: Option<Sums>,
    /// Shares at the start of the second turn.
    second: Option<Sums>,
    /// What each tenant holds itself, by measure.
    pub(super) sums: Vec<u64>,
    pub(super) lines: Lines,
    pub(super) ages: Ages,
    pub(super) openings: Openings,
    pub(super) searched: Searched,
    /// Gangs that had to go for others lately: what they look like is a matter of time.
    pub(super) cooling: BTreeSet<GangId>,
    /// What was decided and has not started.
    pub(super) pending: BTreeMap<GangId, Taken>,
    /// Changes of pools that their states have not seen.
    pub(super) rooms: Vec<(PoolIx, RoomChange)>,
    /// Pools whose states are not what the snapshot says, in more than what is pending.
    pub(super) stale: BTreeSet<PoolIx>,
    /// Ledger and shares of the last round held more than what is held and what is pending.
    pub(super) has_promised: bool,
    /// Quota or weights have changed.
    pub(super) tenants_changed: bool,
    /// Hosts have come or gone.
    pub(super) fleet_changed: bool,
    /// With more looks than these everything is made anew.
    most_looks: usize,
    /// When time alone may change what the last round has refused.
    pub(super) again: Option<UnixMillis>,
}

impl State {
    /// Everything from nothing. Pools' rows are put in canonical form.
    pub(super) fn new(tables: &mut Tables) -> Self {
        tables.tidy();
        let snapshot = &tables.snapshot;
        let blocks = Blocks::default();
        let kinds = Kinds::new(snapshot, &blocks);
        let mut ledger = Ledger::empty(&snapshot.tenants);
        let mut sums = vec![0; ledger.size()];
        for held in &snapshot.held {
            let (place, by) = (held.place(snapshot), u64::saturating_add);
            ledger.count(&mut sums, held.tenant, place, held.resources, by);
        }
        ledger.enter(&sums);
        let (asks, shapes) = kinds.counts();
        let pools: Vec<PoolState> = snapshot.pools.iter().map(PoolState::new).collect();
        let prepared = Prepared {
            places: Places::new(snapshot, &ledger, asks, shapes),
            standings: Standings::new(snapshot),
            pools,
            kinds,
        };
        // What is held is taken out of these.
        let stale = snapshot.holds.iter().filter_map(|hold| hold.pool);
        let whose = Beneficiaries::default();
        let cools = |row: &&Waiting| !row.evicted_by.is_empty();
        let cooling = snapshot.waiting.iter().filter(cools).map(|row| row.gang);
        Self {
            lines: Lines::new(snapshot, prepared.kinds.all()),
            ages: Ages::new(snapshot, prepared.kinds.all()),
            openings: Openings::new(&prepared.pools),
            searched: Searched::default(),
            cooling: cooling.collect(),
            shares: Some(Shares::new(snapshot).into_sums()),
            second: None,
            most_looks: 2 * prepared.kinds.looks().len() + LOOKS,
            kept: Some(Round::with(snapshot, blocks, ledger, &whose, prepared).into_kept()),
            sums,
            pending: BTreeMap::new(),
            rooms: Vec::new(),
            stale: stale.collect(),
            has_promised: false,
            tenants_changed: false,
            fleet_changed: false,
            again: None,
        }
    }

    /// Jobs wish for more than before.
    pub(super) fn grow_choices(&mut self, snapshot: &Snapshot) {
        if let Some(kept) = &mut self.kept {
            kept.prepared.standings.grow(snapshot);
        }
    }

    /// True when so much of what is kept is of no use any more that it is better made anew.
    pub(super) fn is_worn_out(&self) -> bool {
        let kept = self.kept.as_ref();
        kept.is_none_or(|kept| kept.prepared.kinds.looks().len() > self.most_looks)
    }

    /// Decides a round.
    pub(super) fn round(&mut self, tables: &Tables) -> Plan {
        let snapshot = &tables.snapshot;
        let kept = self.kept.take().expect("a round gives back what it takes");
        let shares = self
            .shares
            .take()
            .expect("a round gives back what it takes");
        let mut ledger = kept.ledger.of(&snapshot.tenants);
        let mut shares = shares.of(&snapshot.tenants);
        let mut prepared = kept.prepared;
        self.settle(tables, &mut ledger, &mut shares, &mut prepared);
        let versions = prepared.pools.iter().map(|pool| pool.version);
        self.searched.renew(versions);
        let whose = Beneficiaries::known(snapshot, |gang| tables.waits(gang));
        let mut round = Round::with(snapshot, Blocks::default(), ledger, &whose, prepared);
        self.openings.renew(&whose);
        round.keep_slots(self.ages.oldest(), &mut self.searched);
        let mut apart = Apart::new();
        for slot in round.slots.iter().flatten() {
            let line = self.lines.line_of(&snapshot.waiting[slot.owner.index()]);
            apart.entry(line).or_default().push(slot.owner);
        }
        let mut placements = round.settle_holds();
        self.leave_lines(&round, &placements, &mut apart);
        let first = self.turn(&mut round, &mut shares, Reach::Nominal, &apart);
        self.leave_lines(&round, &first, &mut apart);
        placements.extend(first);
        let out = placements.len();
        let second = shares.into_sums();
        self.second = Some(second.clone());
        let mut shares = second.of(&snapshot.tenants);
        let more = self.turn(&mut round, &mut shares, Reach::Borrowing, &apart);
        placements.extend(more);
        self.note(&round, &placements, out);
        let returning = overflow::returns(&round);
        self.again = round.again(&mut self.searched.ends);
        let mut preemptions = round.preemptions.made.clone();
        let lapsed = round.preemptions.lapsed.clone();
        self.kept = Some(round.into_kept());
        self.shares = Some(shares.into_sums());
        let regraded = write_rows(
            snapshot,
            &tables.present,
            &mut placements,
            &mut preemptions,
            &lapsed,
        );
        Plan {
            placements,
            regraded,
            returning,
            preemptions,
            lapsed,
            // Rounds with reservations are decided in full.
            vacating: Vec::new(),
            unplaced: Vec::new(),
        }
    }

    /// Who has a place is in no line any more.
    fn leave_lines(&mut self, round: &Round<'_>, placements: &[Placed], apart: &mut Apart) {
        for placed in placements {
            let look = round.kinds.all()[placed.waiting.index()];
            self.lines.remove(round.snapshot, placed.waiting, look);
            let line = self.lines.line_of(round.gang(placed.waiting));
            if let Some(apart) = apart.get_mut(&line) {
                apart.retain(|it| *it != placed.waiting);
            }
        }
    }

    /// One turn of a round: everybody who may find a place within `reach` is tried, in order.
    fn turn<'a>(
        &mut self,
        round: &mut Round<'a>,
        shares: &mut Shares<'a>,
        reach: Reach,
        apart: &Apart,
    ) -> Vec<Placed> {
        let mut failed = Failed::new(round.kinds.looks().len());
        let mut placements = Vec::new();
        let (lines, openings) = (&self.lines, &mut self.openings);
        openings.begin(round);
        let mut walk = Walk::new(round.snapshot, shares, lines);
        loop {
            let wanted = |look: u32| {
                let one = || lines.any_of(look);
                let may = !failed.refuses(look) && openings.may_place(round, look, one, reach);
                // Room and quota only shrink: it need not be asked again in this turn.
                if !may {
                    failed.refuse(look);
                }
                may
            };
            let Some(ix) = walk.next(wanted, apart, None) else {
                break;
            };
            let Some(placed) = round.try_place(ix, reach, &mut failed) else {
                continue;
            };
            if round.close_slot(ix) {
                failed.clear();
                walk.ask_again();
            }
            openings.note(placed.pool, &round.pools[placed.pool.index()]);
            openings.forget_slots();
            walk.charge(round.gang(ix).tenant, round.worth(&placed));
            placements.push(placed);
        }
        placements
    }

    /// Writes down what the round has taken: `out` of the placements were made before the second
    /// turn.
    fn note(&mut self, round: &Round<'_>, placements: &[Placed], out: usize) {
        let holds = &round.snapshot.holds;
        let made = &round.preemptions.made;
        self.stale.extend(holds.iter().filter_map(|hold| hold.pool));
        self.stale.extend(made.iter().map(|made| made.pool));
        let moves = made.iter().flat_map(Preemption::moves);
        self.stale.extend(moves.map(|(_, next)| next.pool));
        self.has_promised = !holds.is_empty() || !made.is_empty();
        for (order, placed) in placements.iter().enumerate() {
            let gang = round.gang(placed.waiting);
            let pool = &round.snapshot.pools[placed.pool.index()];
            let rooms = placed.takes.iter();
            let rooms = rooms.filter_map(|take| RoomChange::of(&gang.shape, take));
            let taken = Taken {
                order,
                tenant: gang.tenant,
                place: round.snapshot.place(pool),
                pool: placed.pool,
                demand: gang.shape.demand(&placed.pods),
                uses: round.worth(placed),
                rooms: rooms.collect(),
                is_out: order < out,
                is_gone: false,
            };
            self.pending.insert(gang.gang, taken);
        }
    }

    /// Says of everything that the last round left waiting why, in the order of the queue.
    pub(super) fn explain(&mut self, snapshot: &Snapshot, decided: &Plan) -> Vec<Unplaced> {
        let (Some(kept), Some(second)) = (self.kept.take(), self.second.clone()) else {
            return Vec::new();
        };
        let mut round = kept.into_round(snapshot);
        let mut shares = second.of(&snapshot.tenants);
        let mut placed: BTreeMap<WaitingIx, &Placed> = BTreeMap::new();
        let mut looks = vec![false; self.lines.looks()];
        for it in &decided.placements {
            let gang = snapshot.waiting[it.waiting.index()].gang;
            if self.pending.get(&gang).is_some_and(|taken| !taken.is_out) {
                looks[round.kinds.all()[it.waiting.index()] as usize] = true;
                placed.insert(it.waiting, it);
            }
        }
        let mut left = Vec::with_capacity(snapshot.waiting.len());
        let mut walk = Walk::new(snapshot, &mut shares, &self.lines);
        let apart = Apart::new();
        let has_placed = |look: u32| looks[look as usize];
        while let Some(ix) = walk.next(has_placed, &apart, Some(&mut left)) {
            match placed.get(&ix) {
                Some(it) => walk.charge(round.gang(ix).tenant, round.worth(it)),
                None => left.push(ix),
            }
        }
        let left = round.borrowers_last(left);
        let unplaced = causes::explain(&mut round, &left);
        self.kept = Some(round.into_kept());
        unplaced
    }

    /// Says why gangs wait on that the last round left: once for all that look alike, apart from
    /// those of whom more is to be said.
    pub(super) fn reasons(&mut self, tables: &Tables) -> Vec<Reasoned> {
        let snapshot = &tables.snapshot;
        let Some(kept) = self.kept.take() else {
            return Vec::new();
        };
        let mut round = kept.into_round(snapshot);
        // Who was placed in the second turn is in its line still.
        let placed = self.pending.iter().filter(|(_, taken)| !taken.is_out);
        let placed = placed.filter_map(|(gang, _)| tables.waits(*gang));
        let placed: BTreeSet<WaitingIx> = placed.collect();
        let owners = round.slots.iter().flatten().map(|slot| slot.owner);
        let mut apart: BTreeSet<WaitingIx> = owners.collect();
        apart.extend(round.preemptions.waiting_for_room());
        let looks = || (0..).take(self.lines.looks());
        for alike in looks().map(|look| self.lines.alike(look)) {
            let tenant = alike.first().map(|ix| round.gang(*ix).tenant);
            if tenant.is_some_and(|tenant| round.ledger.limits_jobs(tenant)) {
                apart.extend(alike);
            }
        }
        apart.retain(|ix| !placed.contains(ix));
        let mut others = vec![0_usize; self.lines.looks()];
        for ix in apart.iter().chain(&placed) {
            others[round.kinds.look(*ix)] += 1;
        }
        let mut rows: Vec<(u32, WaitingIx, usize)> = Vec::new();
        for (look, others) in looks().zip(others) {
            let alike = self.lines.alike(look);
            let mut left = alike.iter().filter(|ix| !placed.contains(ix));
            let one = left.find(|ix| !apart.contains(ix));
            rows.extend(one.map(|ix| (look, *ix, alike.len() - others)));
        }
        let own = apart.iter();
        rows.extend(own.map(|ix| (round.kinds.all()[ix.index()], *ix, 1)));
        let ones: Vec<WaitingIx> = rows.iter().map(|(_, ix, _)| *ix).collect();
        let reasons = causes::reasons(&mut round, &ones);
        self.kept = Some(round.into_kept());
        let rows = rows.into_iter().zip(reasons);
        let rows = rows.map(|((look, waiting, gangs), reasons)| Reasoned {
            look,
            waiting,
            gangs,
            reasons,
        });
        rows.collect()
    }

    /// What a gang of the table looks like.
    pub(super) fn look(&self, ix: WaitingIx) -> Option<u32> {
        let kinds = &self.kept.as_ref()?.prepared.kinds;
        kinds.all().get(ix.index()).copied()
    }

    pub(super) fn entries(&self) -> &Entries {
        let kept = self.kept.as_ref();
        &kept.expect("a round gives back what it takes").ledger
    }

    /// Runs `with` on ledger and shares.
    pub(super) fn count(
        &mut self,
        snapshot: &Snapshot,
        with: impl FnOnce(&mut Ledger<'_>, &mut Shares<'_>, &mut [u64]),
    ) {
        if let (Some(mut kept), Some(shares)) = (self.kept.take(), self.shares.take()) {
            let mut ledger = kept.ledger.of(&snapshot.tenants);
            let mut shares = shares.of(&snapshot.tenants);
            with(&mut ledger, &mut shares, &mut self.sums);
            kept.ledger = ledger.into_entries();
            self.kept = Some(kept);
            self.shares = Some(shares.into_sums());
        }
    }

    pub(super) fn kinds(&mut self) -> &mut Kinds {
        let kept = self.kept.as_mut();
        &mut kept
            .expect("a round gives back what it takes")
            .prepared
            .kinds
    }

    /// A gang leaves the queue, and the last of the table takes its row; the tables are as before.
    pub(super) fn leaves(&mut self, tables: &Tables, ix: WaitingIx) {
        let snapshot = &tables.snapshot;
        let is_out = |own: &Self, ix: WaitingIx| {
            let gang = snapshot.waiting[ix.index()].gang;
            own.pending.get(&gang).is_some_and(|taken| taken.is_out)
        };
        let last = WaitingIx(u32::try_from(snapshot.waiting.len() - 1).unwrap_or(u32::MAX));
        let looks = self.kinds().all();
        let (look, moved) = (looks[ix.index()], looks[last.index()]);
        if !is_out(self, ix) {
            self.lines.remove(snapshot, ix, look);
        }
        self.ages.remove(snapshot, ix, look);
        self.cooling.remove(&snapshot.waiting[ix.index()].gang);
        if ix != last {
            if !is_out(self, last) {
                self.lines.rename(snapshot, last, moved, ix);
            }
            self.ages.rename(snapshot, last, moved, ix);
        }
        self.kinds().swap_remove(ix);
    }
}
