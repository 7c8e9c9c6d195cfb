//! Next places of those who make room, checked plainly: each may be there, and is held whole.
//!
//! Owns what must be so of one move by itself. Whether the room is there beside everything else is
//! counted where holds are. No code of `preempt::moves` is used.

use crate::check::{Found, allowed, choice, sliced, together, whole};
use crate::model::{HeldIx, NextPlace, Placed, Score, Snapshot, WaitingIx};

/// What is wrong with the next place of a placement; `None` when nothing is.
pub(super) fn unfit(snapshot: &Snapshot, ix: HeldIx, next: &NextPlace) -> Option<String> {
    let held = snapshot.held.get(ix.index())?;
    let Some(row) = snapshot.movable.iter().find(|row| row.held == ix) else {
        return Some("may not go on elsewhere".to_owned());
    };
    if row.gang.gang != held.gang {
        return Some("goes on as another".to_owned());
    }
    if next.pool.index() >= snapshot.pools.len() {
        return Some(format!("goes on in no pool {}", next.pool.0));
    }
    let as_placed = Placed {
        waiting: WaitingIx(u32::MAX),
        pool: next.pool,
        pods: next.pods.clone(),
        gpus: held.resources.gpus,
        takes: next.takes.clone(),
        rows: Vec::new(),
        score: Score::default(),
    };
    let mut found = Found::new();
    allowed(snapshot, &row.gang, &as_placed, &mut found);
    choice::kept(snapshot, &row.gang, &as_placed, &mut found);
    whole(&row.gang, &as_placed, &mut found);
    together(snapshot, &row.gang, &as_placed, &mut found);
    sliced(snapshot, &row.gang, &as_placed, &mut found);
    if let Some(wrong) = found.first() {
        return Some(format!("cannot go on there: {wrong}"));
    }
    let blocks = snapshot.reserved.iter().filter(|row| row.pool == next.pool);
    if blocks
        .clone()
        .any(|block| !is_for(snapshot, block, held.tenant))
    {
        return Some("goes on where hosts are reserved for others".to_owned());
    }
    held_whole(row.gang.shape.demand(&next.pods), next)
}

/// True when the tenant stands at or below the one whose block it is.
fn is_for(
    snapshot: &Snapshot,
    block: &crate::model::Reserved,
    tenant: crate::model::TenantIx,
) -> bool {
    let mut at = Some(tenant);
    for _ in 0..=snapshot.tenants.len() {
        if at == Some(block.tenant) {
            return true;
        }
        let node = at.and_then(|ix| snapshot.tenants.get(ix.index()));
        at = node.and_then(|node| node.parent);
    }
    false
}

/// What is kept comes to what it takes with it.
fn held_whole(need: meridian_api::units::Resources, next: &NextPlace) -> Option<String> {
    let need = [need.gpus.0, need.cpu.0, need.memory.0].map(u128::from);
    let mut kept = [0_u128; 3];
    for part in &next.room {
        let each = [part.need.gpus.0, part.need.cpu.0, part.need.memory.0];
        for (sum, each) in kept.iter_mut().zip(each) {
            *sum += u128::from(each) * u128::from(part.hosts);
        }
        if !part.known.is_empty() {
            return Some("goes on where others still stand".to_owned());
        }
    }
    (kept != need).then(|| format!("is kept {kept:?} of {need:?}"))
}
