//! Overflow: what stands in a later group because those before were full, and goes back.
//!
//! Owns the choice of what is given back: the newest first, one after the other, into room that is
//! left when all that waits has been tried. Going back means to be stopped and queued again, so it
//! is only for jobs that ask for it, and not within minutes. Never decides where it goes then.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use meridian_api::units::Millis;

use crate::candidates::{allows_cluster, choice, lacks, preference};
use crate::decide::Round;
use crate::fit::fit;
use crate::model::{Held, HeldIx, Overflowed, Place, PoolIx, Shape};
use crate::quota::Reach;
use crate::reserved::asker;
use crate::shapes;
use crate::slots::Mask;

/// A placement stays at least this long: room that comes and goes moves nothing.
pub const RESTED: Millis = Millis::seconds(600);
/// Most that go back in one round. Each frees room in its later group and takes some in the first,
/// so the next round sees what is left; a fleet's worth of work is never moved at one blow.
const MOST: usize = 16;
/// Most that are tried in one round: an earlier group that stays full costs no more than this, and
/// the newest of them are those that go back first.
const TRIED: usize = 256;

/// Which of `overflowed` go back, newest first.
///
/// A gang for which it matters where others stand stays: whether its place in the earlier group
/// will suit is known only when those are placed, and it would be stopped in vain.
pub(crate) fn returns(round: &Round<'_>) -> Vec<HeldIx> {
    let snapshot = round.snapshot;
    if snapshot.overflowed.is_empty() {
        return Vec::new();
    }
    let rows = snapshot.overflowed.iter();
    let rows = rows.filter(|row| !choice(snapshot, &row.gang).minds_others());
    let rows = rows.filter_map(|row| Some((row, snapshot.held.get(row.held.index())?)));
    let rested = |held: &Held| snapshot.now.since(held.since) >= RESTED;
    let mut rows: Vec<(&Overflowed, &Held)> = rows.filter(|(_, held)| rested(held)).collect();
    rows.sort_by_key(|(_, held)| Reverse((held.since, held.gang)));
    rows.truncate(TRIED);
    let mut rooms: BTreeMap<PoolIx, Vec<Shape>> = BTreeMap::new();
    let mut ledger = round.ledger.clone();
    let mut going = Vec::new();
    for (row, held) in rows {
        if going.len() == MOST {
            break;
        }
        let stands = held.place(snapshot);
        let reach = if round.may_borrow(&row.gang) {
            Reach::Borrowing
        } else {
            Reach::Nominal
        };
        ledger.give_back(held.tenant, stands, held.resources);
        let found = better(round, row, held, &rooms, |place| {
            let room = ledger.room(held.tenant, place, reach);
            room.covers(held.resources)
        });
        if let Some((pool, left)) = found {
            rooms.insert(pool, left);
            let place = snapshot.place(&snapshot.pools[pool.index()]);
            ledger.keep(held.tenant, place, held.resources);
            going.push(row.held);
        } else {
            ledger.keep(held.tenant, stands, held.resources);
        }
    }
    going
}

/// A pool of an earlier group with room, and what is left there then.
fn better(
    round: &Round<'_>,
    row: &Overflowed,
    held: &Held,
    rooms: &BTreeMap<PoolIx, Vec<Shape>>,
    allowed: impl Fn(Place) -> bool,
) -> Option<(PoolIx, Vec<Shape>)> {
    let (snapshot, gang) = (round.snapshot, &row.gang);
    let order = |pool: PoolIx| {
        let source = &snapshot.pools[pool.index()];
        let likes = preference(snapshot, gang, source).ok()?;
        Some((likes.shunned, likes.region_order))
    };
    let present = held.pool.and_then(order)?;
    let mut earlier: Vec<((u32, u32), PoolIx)> = Vec::new();
    for pool in round.places.open.iter().copied() {
        let source = &snapshot.pools[pool.index()];
        let cluster = &snapshot.clusters[source.cluster.index()];
        // Hosts of others' reservations are not counted here, so such a pool is left alone.
        let mut blocks = snapshot.reserved.iter().filter(|row| row.pool == pool);
        let is_open = blocks.all(|row| row.is_for(snapshot, asker(snapshot, gang)));
        if is_open
            && allows_cluster(gang, source.cluster, cluster)
            && lacks(gang, source.cluster).is_none()
        {
            let order = order(pool).filter(|order| *order < present);
            earlier.extend(order.map(|order| (order, pool)));
        }
    }
    // Stable, so pools of one group keep the order of their names.
    earlier.sort_by_key(|(order, _)| *order);
    let pods = gang.shape.least();
    earlier.into_iter().find_map(|(_, pool)| {
        let source = &snapshot.pools[pool.index()];
        if !allowed(snapshot.place(source)) {
            return None;
        }
        let shapes = match rooms.get(&pool) {
            Some(left) => left.clone(),
            None => round.seen(pool, Mask::MAX).into_owned(),
        };
        let found = fit(&source.levels, &shapes, &gang.shape, &pods)?;
        let left = shapes::subtract(&shapes, &gang.shape, &found.takes).ok()?;
        Some((pool, left))
    })
}
