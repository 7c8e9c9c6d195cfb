//! Changes reach what is kept.
//!
//! Owns what each change does to the tables and to what the next round begins with. A change that
//! cannot have happened is refused before anything is touched. Never decides.

use meridian_api::ids::{Epoch, GangId};

use super::change::{Change, Refused, Tables};
use super::state::State;
use crate::model::{Held, Hold, HostIx, Measure, PoolIx, Shape, Snapshot, Tenant, TenantIx};
use crate::shapes::{self, RoomChange};
use crate::shares::use_of_held;

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
                let gang = &snapshot.waiting[ix.index()];
                let look = state.kinds().push(snapshot, gang);
                state.lines.insert(snapshot, ix, look);
                state.ages.insert(snapshot, ix, look);
                if !gang.evicted_by.is_empty() {
                    state.cooling.insert(gang.gang);
                }
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
        Change::Ended(gang, epoch) => ended(tables, state, gang, epoch)?,
        Change::Regraded(gang, epoch, rows) => {
            let ix = tables.holds(gang, epoch);
            let ix = ix.ok_or(Refused::NotHeld(gang, epoch))?;
            tables.regrade(ix, rows);
        }
        Change::Room(pool, changes) => room(tables, state, pool, changes)?,
        Change::Pool(pool, rows, hosts) => show(tables, state, pool, &rows, hosts)?,
        Change::Holds(holds) => hold(tables, state, holds),
        Change::Movable(gang, epoch, row) => {
            let ix = tables.holds(gang, epoch);
            let ix = ix.ok_or(Refused::NotHeld(gang, epoch))?;
            tables.push_movable(ix, *row);
        }
        Change::Rule(class, rule) => {
            let row = tables.snapshot.classes.get_mut(class.index());
            row.ok_or(Refused::NoSuchClass(class))?.rule = rule;
        }
        Change::Tenant(ix, row) => tenant(tables, state, ix, *row)?,
        Change::Clock(now) => tables.snapshot.now = now,
    }
    Ok(())
}

/// A placement is gone.
fn ended(
    tables: &mut Tables,
    state: &mut Option<State>,
    gang: GangId,
    epoch: Epoch,
) -> Result<(), Refused> {
    let ix = tables.holds(gang, epoch);
    let ix = ix.ok_or(Refused::NotHeld(gang, epoch))?;
    let held = tables.remove_held(ix);
    let Some(state) = state else { return Ok(()) };
    let snapshot = &tables.snapshot;
    state.searched.ends.remove(snapshot, &held);
    let (place, what) = (held.place(snapshot), held.resources);
    let uses = use_of_held(snapshot, held.flavor, what);
    state.count(snapshot, |ledger, shares, sums| {
        ledger.give_back(held.tenant, place, what);
        ledger.count(sums, held.tenant, place, what, u64::saturating_sub);
        shares.discharge(held.tenant, uses);
    });
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
    if tables.is_named(taken.pool) {
        return Err(Refused::Named(taken.pool));
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
    if tables.is_named(pool) {
        return Err(Refused::Named(pool));
    }
    let unknown = Refused::NoSuchHosts(pool);
    let source = tables
        .snapshot
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

/// A pool looks otherwise, as a whole.
fn show(
    tables: &mut Tables,
    state: &mut Option<State>,
    pool: PoolIx,
    rows: &[Shape],
    hosts: Vec<(HostIx, u32)>,
) -> Result<(), Refused> {
    let size = |tables: &Tables| {
        let source = tables.snapshot.pools.get(pool.index());
        source.map(|source| shapes::allocatable(&source.shapes))
    };
    let before = size(tables);
    tables.show(pool, rows, hosts)?;
    if let Some(state) = state {
        state.fleet_changed |= size(tables) != before;
        state.stale.insert(pool);
    }
    Ok(())
}

/// Other room is held than before.
fn hold(tables: &mut Tables, state: &mut Option<State>, holds: Vec<Hold>) {
    if let Some(state) = state {
        state
            .stale
            .extend(holds.iter().filter_map(|hold| hold.pool));
    }
    tables.snapshot.holds = holds;
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
    let same_quota = before.quotas == after.quotas;
    let same_measures = || own.entries().measures() == measures(&tables.snapshot);
    if before.parent != after.parent || !(same_quota || same_measures()) {
        *state = None;
        return Ok(());
    }
    let (had, has) = (before.history, after.history);
    let only_use = Tenant {
        history: had,
        lost: before.lost,
        ..after.clone()
    };
    own.tenants_changed |= only_use != before;
    own.count(&tables.snapshot, |_, shares, _| {
        shares.discharge(ix, had);
        shares.charge(ix, has);
    });
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
