//! State: what one round hands on to the next, and how changes reach it.
//!
//! Owns the order in which that happens: what was decided and not started is taken back first,
//! then pools change, then the round begins. Never says what is kept (see `planner`).

use std::collections::{BTreeMap, BTreeSet};

use meridian_api::ids::GangId;
use meridian_api::units::Resources;

use super::ages::Ages;
use super::change::{Change, Refused, Tables};
use super::lines::{Apart, Lines, Walk};
use super::openings::Openings;
use crate::bits::PoolBits;
use crate::causes;
use crate::choice::overflow;
use crate::choice::standing::Standings;
use crate::decide::{Failed, Kept, Prepared, Round, write_rows};
use crate::kinds::Kinds;
use crate::model::{
    Held, Measure, Place, Placed, Plan, PoolIx, Shape, Snapshot, Tenant, TenantIx, Unplaced, Use,
    WaitingIx,
};
use crate::place::Places;
use crate::pools::PoolState;
use crate::quota::{Entries, Ledger, Reach};
use crate::reserved::Blocks;
use crate::shapes::{self, RoomChange};
use crate::shares::{Shares, Sums, use_of_held};
use crate::slots::Searched;

/// What a placement that was decided has taken.
struct Taken {
    /// Place among the placements of its round.
    order: usize,
    tenant: TenantIx,
    place: Place,
    pool: PoolIx,
    demand: Resources,
    uses: Use,
    rooms: Vec<RoomChange>,
    /// Its gang is in no line: it was placed in the first turn.
    is_out: bool,
    /// Its gang waits no more.
    is_gone: bool,
}

/// What a round hands on.
pub(super) struct State {
    kept: Option<Kept>,
    shares: Option<Sums>,
    /// Shares at the start of the second turn.
    second: Option<Sums>,
    /// What each tenant holds itself, by measure.
    sums: Vec<u64>,
    lines: Lines,
    ages: Ages,
    openings: Openings,
    searched: Searched,
    /// What was decided and has not started.
    pending: BTreeMap<GangId, Taken>,
    /// Changes of pools that their states have not seen.
    rooms: Vec<(PoolIx, RoomChange)>,
    /// Quota or weights have changed.
    tenants_changed: bool,
    /// Hosts have come or gone.
    fleet_changed: bool,
}

impl State {
    /// Everything from nothing. Pools' rows are put in canonical form.
    pub(super) fn new(snapshot: &mut Snapshot) -> Self {
        for pool in &mut snapshot.pools {
            pool.shapes = shapes::canonical(&pool.shapes);
        }
        let snapshot = &*snapshot;
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
        Self {
            lines: Lines::new(snapshot, prepared.kinds.all()),
            ages: Ages::new(snapshot, prepared.kinds.all()),
            openings: Openings::new(&prepared.pools),
            searched: Searched::default(),
            shares: Some(Shares::new(snapshot).into_sums()),
            second: None,
            kept: Some(Round::with(snapshot, blocks, ledger, prepared).into_kept()),
            sums,
            pending: BTreeMap::new(),
            rooms: Vec::new(),
            tenants_changed: false,
            fleet_changed: false,
        }
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
        let mut round = Round::with(snapshot, Blocks::default(), ledger, prepared);
        round.keep_slots(self.ages.oldest(), &mut self.searched);
        let mut apart = Apart::new();
        for slot in round.slots.iter().flatten() {
            let line = self.lines.line_of(&snapshot.waiting[slot.owner.index()]);
            apart.entry(line).or_default().push(slot.owner);
        }
        let mut placements = self.turn(&mut round, &mut shares, Reach::Nominal, &apart);
        for placed in &placements {
            let look = round.kinds.all()[placed.waiting.index()];
            self.lines.remove(snapshot, placed.waiting, look);
            let line = self.lines.line_of(round.gang(placed.waiting));
            if let Some(apart) = apart.get_mut(&line) {
                apart.retain(|it| *it != placed.waiting);
            }
        }
        let first = placements.len();
        let second = shares.into_sums();
        self.second = Some(second.clone());
        let mut shares = second.of(&snapshot.tenants);
        let more = self.turn(&mut round, &mut shares, Reach::Borrowing, &apart);
        placements.extend(more);
        self.note(&round, &placements, first);
        let returning = overflow::returns(&round);
        self.kept = Some(round.into_kept());
        self.shares = Some(shares.into_sums());
        let (mut preemptions, lapsed) = (Vec::new(), Vec::new());
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
            }
            openings.note(placed.pool, &round.pools[placed.pool.index()]);
            openings.forget_slots();
            walk.charge(round.gang(ix).tenant, round.worth(&placed));
            placements.push(placed);
        }
        placements
    }

    /// Writes down what the placements have taken.
    fn note(&mut self, round: &Round<'_>, placements: &[Placed], first: usize) {
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
                is_out: order < first,
                is_gone: false,
            };
            self.pending.insert(gang.gang, taken);
        }
    }

    /// Brings everything to where a round begins.
    fn settle<'a>(
        &mut self,
        tables: &'a Tables,
        ledger: &mut Ledger<'a>,
        shares: &mut Shares<'a>,
        prepared: &mut Prepared,
    ) {
        let snapshot = &tables.snapshot;
        let mut changes = Vec::new();
        let mut undone: Vec<(GangId, Taken)> =
            std::mem::take(&mut self.pending).into_iter().collect();
        undone.sort_by_key(|(_, taken)| std::cmp::Reverse(taken.order));
        for (gang, taken) in undone {
            ledger.give_back(taken.tenant, taken.place, taken.demand);
            shares.discharge(taken.tenant, taken.uses);
            let rooms = taken.rooms.into_iter().rev();
            changes.extend(rooms.map(|change| (taken.pool, change.reversed())));
            if let Some(ix) = tables
                .waits(gang)
                .filter(|_| taken.is_out && !taken.is_gone)
            {
                self.lines
                    .insert(snapshot, ix, prepared.kinds.all()[ix.index()]);
            }
        }
        changes.append(&mut self.rooms);
        let freed = self.change_pools(snapshot, &mut prepared.pools, changes);
        if std::mem::take(&mut self.tenants_changed) {
            *ledger = Ledger::empty(&snapshot.tenants);
            ledger.enter(&self.sums);
            self.fleet_changed = true;
        }
        if std::mem::take(&mut self.fleet_changed) {
            shares.weigh_again(snapshot);
        }
        let (asks, shapes) = prepared.kinds.counts();
        prepared.places.grow(asks, shapes);
        let packed = prepared.kinds.packed();
        prepared.places.renew(&freed, packed);
    }

    /// Brings pools to what the snapshot says of them; those that may have room again.
    fn change_pools(
        &mut self,
        snapshot: &Snapshot,
        pools: &mut [PoolState],
        changes: Vec<(PoolIx, RoomChange)>,
    ) -> PoolBits {
        let mut freed = PoolBits::none(snapshot.pools.len());
        let (mut touched, mut anew) = (BTreeSet::new(), BTreeSet::new());
        for (pool, change) in changes {
            touched.insert(pool);
            if change.frees() {
                freed.set(pool, true);
            }
            // Hosts that were given and went at once are not there to be taken back from.
            if !anew.contains(&pool) && !pools[pool.index()].shift(&change) {
                anew.insert(pool);
            }
        }
        for pool in anew {
            let state = &mut pools[pool.index()];
            // Never a version that it had before.
            let version = state.version + 1;
            *state = PoolState::new(&snapshot.pools[pool.index()]);
            state.version = version;
            freed.set(pool, true);
        }
        for pool in touched {
            self.openings.note(pool, &pools[pool.index()]);
        }
        freed
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

    fn entries(&self) -> &Entries {
        let kept = self.kept.as_ref();
        &kept.expect("a round gives back what it takes").ledger
    }

    /// Runs `with` on ledger and shares.
    fn count(
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

    fn kinds(&mut self) -> &mut Kinds {
        let kept = self.kept.as_mut();
        &mut kept
            .expect("a round gives back what it takes")
            .prepared
            .kinds
    }

    /// A gang leaves the queue, and the last of the table takes its row; the tables are as before.
    fn leaves(&mut self, tables: &Tables, ix: WaitingIx) {
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
        if ix != last {
            if !is_out(self, last) {
                self.lines.rename(snapshot, last, moved, ix);
            }
            self.ages.rename(snapshot, last, moved, ix);
        }
        self.kinds().swap_remove(ix);
    }
}

/// Brings a change into the tables, and to what is kept.
pub(super) fn apply(
    tables: &mut Tables,
    state: &mut Option<State>,
    change: Change,
) -> Result<(), Refused> {
    match change {
        Change::Submitted(gang) => {
            if tables.waits(gang.gang).is_some() {
                return Err(Refused::There(gang.gang));
            }
            let ix = tables.push_waiting(*gang);
            if let Some(state) = state {
                let snapshot = &tables.snapshot;
                let look = state.kinds().push(snapshot, &snapshot.waiting[ix.index()]);
                state.lines.insert(snapshot, ix, look);
                state.ages.insert(snapshot, ix, look);
            }
        }
        Change::Left(gang) => {
            let ix = tables.waits(gang).ok_or(Refused::NotWaiting(gang))?;
            if let Some(state) = state {
                state.leaves(tables, ix);
                if let Some(taken) = state.pending.get_mut(&gang) {
                    taken.is_gone = true;
                }
            }
            tables.remove_waiting(ix);
        }
        Change::Started(held) => started(tables, state, *held)?,
        Change::Appeared(held) => appeared(tables, state, *held)?,
        Change::Ended(gang, epoch) => {
            let ix = tables.holds(gang, epoch);
            let ix = ix.ok_or(Refused::NotHeld(gang, epoch))?;
            let held = tables.remove_held(ix);
            if let Some(state) = state {
                let snapshot = &tables.snapshot;
                state.searched.ends.remove(snapshot, &held);
                let (place, what) = (held.place(snapshot), held.resources);
                let uses = use_of_held(snapshot, held.flavor, what);
                state.count(snapshot, |ledger, shares, sums| {
                    ledger.give_back(held.tenant, place, what);
                    ledger.count(sums, held.tenant, place, what, u64::saturating_sub);
                    shares.discharge(held.tenant, uses);
                });
            }
        }
        Change::Regraded(gang, epoch, rows) => {
            let ix = tables.holds(gang, epoch);
            let ix = ix.ok_or(Refused::NotHeld(gang, epoch))?;
            tables.regrade(ix, rows);
        }
        Change::Room(pool, changes) => room(tables, state, pool, changes)?,
        Change::Tenant(ix, row) => tenant(tables, state, ix, *row)?,
        Change::Clock(now) => tables.snapshot.now = now,
    }
    Ok(())
}

/// A gang holds the place that the last round gave it.
fn started(tables: &mut Tables, state: &mut Option<State>, held: Held) -> Result<(), Refused> {
    let gang = held.gang;
    if tables.holds(gang, held.epoch).is_some() {
        return Err(Refused::There(gang));
    }
    let ix = tables.waits(gang).ok_or(Refused::NotWaiting(gang))?;
    let not_decided = Refused::NotDecided(gang);
    let own = state.as_mut().ok_or(not_decided.clone())?;
    let taken = own.pending.get(&gang).ok_or(not_decided.clone())?;
    let is_same = held.pool == Some(taken.pool)
        && held.place(&tables.snapshot) == taken.place
        && (held.tenant, held.resources) == (taken.tenant, taken.demand);
    if !is_same {
        return Err(not_decided);
    }
    let rows = &mut tables.snapshot.pools[taken.pool.index()].shapes;
    shift_all(rows, &taken.rooms).ok_or(Refused::NoSuchHosts(taken.pool))?;
    own.leaves(tables, ix);
    let taken = own.pending.remove(&gang);
    let place = held.place(&tables.snapshot);
    own.count(&tables.snapshot, |ledger, _, sums| {
        let by = u64::saturating_add;
        ledger.count(sums, held.tenant, place, held.resources, by);
    });
    own.searched.ends.push(&tables.snapshot, &held);
    debug_assert!(taken.is_some(), "looked at above");
    tables.remove_waiting(ix);
    tables.push_held(held);
    Ok(())
}

/// All of the changes, or none when one of them names hosts that are not there.
fn shift_all(rows: &mut Vec<Shape>, changes: &[RoomChange]) -> Option<()> {
    for (at, change) in changes.iter().enumerate() {
        if !shapes::shift(rows, change) {
            for change in changes[..at].iter().rev() {
                let back = shapes::shift(rows, &change.clone().reversed());
                debug_assert!(back, "what was changed is there");
            }
            return None;
        }
    }
    Some(())
}

/// Something holds GPUs that was not placed by a round.
fn appeared(tables: &mut Tables, state: &mut Option<State>, held: Held) -> Result<(), Refused> {
    if tables.holds(held.gang, held.epoch).is_some() {
        return Err(Refused::There(held.gang));
    }
    if let Some(state) = state {
        let snapshot = &tables.snapshot;
        let (place, what) = (held.place(snapshot), held.resources);
        let uses = use_of_held(snapshot, held.flavor, what);
        state.count(snapshot, |ledger, shares, sums| {
            ledger.keep(held.tenant, place, what);
            ledger.count(sums, held.tenant, place, what, u64::saturating_add);
            shares.charge(held.tenant, uses);
        });
        state.searched.ends.push(snapshot, &held);
    }
    tables.push_held(held);
    Ok(())
}

/// Hosts of a pool change.
fn room(
    tables: &mut Tables,
    state: &mut Option<State>,
    pool: PoolIx,
    changes: Vec<RoomChange>,
) -> Result<(), Refused> {
    let snapshot = &mut tables.snapshot;
    if snapshot.hosts.iter().any(|host| host.pool == pool) {
        return Err(Refused::Named(pool));
    }
    let unknown = Refused::NoSuchHosts(pool);
    let source = snapshot
        .pools
        .get_mut(pool.index())
        .ok_or(unknown.clone())?;
    if state.is_none() {
        source.shapes = shapes::canonical(&source.shapes);
    }
    shift_all(&mut source.shapes, &changes).ok_or(unknown)?;
    if let Some(state) = state {
        let comes_or_goes = |it: &RoomChange| it.before.is_none() || it.after.is_none();
        state.fleet_changed |= changes.iter().any(comes_or_goes);
        state.rooms.extend(changes.into_iter().map(|it| (pool, it)));
    }
    Ok(())
}

/// A tenant has another row.
fn tenant(
    tables: &mut Tables,
    state: &mut Option<State>,
    ix: TenantIx,
    row: Tenant,
) -> Result<(), Refused> {
    let known = tables.snapshot.tenants.get_mut(ix.index());
    let known = known.ok_or(Refused::NoSuchTenant(ix))?;
    let before = std::mem::replace(known, row);
    let after = &tables.snapshot.tenants[ix.index()];
    let Some(own) = state else { return Ok(()) };
    if before.parent != after.parent || own.entries().measures() != measures(&tables.snapshot) {
        *state = None;
        return Ok(());
    }
    let (had, has) = (before.history, after.history);
    own.count(&tables.snapshot, |_, shares, _| {
        shares.discharge(ix, had);
        shares.charge(ix, has);
    });
    own.tenants_changed = true;
    Ok(())
}

/// What quota rows count, in order.
fn measures(snapshot: &Snapshot) -> Vec<Measure> {
    let rows = snapshot.tenants.iter().flat_map(|tenant| &tenant.quotas);
    let mut measures: Vec<Measure> = rows.map(|quota| quota.measure).collect();
    measures.sort_unstable();
    measures.dedup();
    measures
}
