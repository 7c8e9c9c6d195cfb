//! Preemptions of a plan, checked plainly: just, and worth it.
//!
//! Owns the checks of S14 on one plan: every victim may be taken, and the beneficiary fits once
//! they are gone; and S5 where room is held. Rules are written down anew: no code of
//! `preempt::rules` or `preempt::search` is used. What of alike hosts is held is a convention, so
//! that is taken from `preempt::holds`.

mod compaction;
mod moves;

use std::collections::{BTreeMap, BTreeSet};

use meridian_api::kinds::workload_class::Preemption as Manner;
use meridian_api::units::Resources;

use super::{Found, ledger, report};
use crate::model::{
    GangShape, Held, HoldIx, HoldRoom, HostIx, Lapse, Plan, PoolIx, Preemption, Role, Rule, Shape,
    Snapshot, Stage, Take, TenantIx, Victim, WaitingIx, Yield,
};
use crate::preempt::holds::{keep, keep_all, show};
use crate::shapes;

/// Everything that preemptions of a plan must keep.
pub(super) fn just(snapshot: &Snapshot, plan: &Plan, found: &mut Found) {
    let before = snapshot.holds.iter().flat_map(|hold| &hold.victims);
    let mut hit: BTreeSet<_> = before.map(|leaving| leaving.held).collect();
    let placed: BTreeSet<WaitingIx> = plan.placements.iter().map(|it| it.waiting).collect();
    let mut made_for: BTreeSet<WaitingIx> = placed;
    let mut budgets = lost_work_left(snapshot);
    for (at, made) in plan.preemptions.iter().enumerate() {
        let gang = snapshot.waiting[made.waiting.index()].gang;
        let is_owner = ledger::is_within_nominal(snapshot, plan, at);
        let before = budgets.clone();
        let mut wrong = |what: String| {
            report(found, "S14", format!("room for gang {gang}: {what}"));
        };
        if !made_for.insert(made.waiting) {
            wrong("it has a place or a hold already".to_owned());
        }
        if made.victims.is_empty() {
            wrong("nobody gives it".to_owned());
        }
        for victim in &made.victims {
            let Some(held) = snapshot.held.get(victim.held.index()) else {
                wrong(format!("no placement {}", victim.held.0));
                continue;
            };
            if !hit.insert(victim.held) {
                wrong(format!("gang {} makes room twice", held.gang));
            }
            if let Some(what) = unlawful(snapshot, made, victim, held, is_owner) {
                wrong(format!("gang {} {what}", held.gang));
            }
            if let Yield::Move(next) = &victim.does
                && let Some(what) = moves::unfit(snapshot, victim.held, next)
            {
                wrong(format!("gang {} {what}", held.gang));
            }
            let (left, budget) = (before.get(held.tenant.index()), held.tenant.index());
            if heeds_budgets(snapshot, made, victim, held) && left == Some(&0) {
                wrong(format!("gang {}'s tenant has lost enough work", held.gang));
            }
            if let Some(budget) = budgets
                .get_mut(budget)
                .filter(|_| victim.rule != Rule::Reclaim)
            {
                *budget = budget.saturating_sub(victim.lost.into());
            }
        }
        let worth: u64 = made
            .victims
            .iter()
            .fold(0, |sum, it| sum.saturating_add(it.cost));
        if worth != made.cost {
            wrong(format!("costs {worth}, says {}", made.cost));
        }
        if let Some(what) = too_little(snapshot, made) {
            wrong(what);
        }
        if let Some(what) = compaction::unfit(snapshot, made) {
            wrong(what);
        }
    }
    compaction::within_budget(snapshot, plan, found);
    kept_twice(snapshot, plan, found);
}

/// A host that somebody leaves for one gang is named for no other, in whatever order they get it
/// (S5).
fn kept_twice(snapshot: &Snapshot, plan: &Plan, found: &mut Found) {
    let known = |room: &'_ [HoldRoom]| -> Vec<HostIx> {
        room.iter().flat_map(|part| &part.known).copied().collect()
    };
    let before = snapshot.holds.iter().flat_map(|hold| known(&hold.room));
    let mut named: BTreeSet<HostIx> = before.collect();
    for made in &plan.preemptions {
        for host in known(&made.room) {
            if !named.insert(host) {
                let gang = snapshot.waiting[made.waiting.index()].gang;
                let message = format!("room for gang {gang}: host {} is another's", host.0);
                report(found, "S5", message);
            }
        }
    }
}

fn borrowed(held: &Held) -> u64 {
    let rows = held.rows.iter().filter(|row| row.role == Role::Borrowed);
    rows.map(|row| row.gpus.0).sum()
}

/// Work that each tenant may still lose in this hour: what everything it holds does in a quarter of
/// an hour, and without a limit while it has lost nothing.
fn lost_work_left(snapshot: &Snapshot) -> Vec<u128> {
    let mut left = vec![0_u128; snapshot.tenants.len()];
    for held in &snapshot.held {
        let worth = u128::from(snapshot.flavors[held.flavor.index()].worth);
        if let Some(sum) = left.get_mut(held.tenant.index()) {
            *sum += u128::from(held.resources.gpus.0) * worth / 1000 * 900;
        }
    }
    for (left, tenant) in left.iter_mut().zip(&snapshot.tenants) {
        *left = match tenant.lost {
            0 => u128::MAX,
            lost => left.saturating_sub(lost.into()),
        };
    }
    left
}

/// True when a tenant that has lost enough work is left alone. Those who are never stopped
/// themselves do not wait for that, and neither does who takes back what it lent.
fn heeds_budgets(snapshot: &Snapshot, made: &Preemption, victim: &Victim, held: &Held) -> bool {
    let gang = &snapshot.waiting[made.waiting.index()];
    let is_protected = snapshot.classes[gang.class.index()].rule.how.is_protected();
    let leaves = held.standing.stage == Stage::Draining;
    !is_protected && !leaves && victim.rule != Rule::Reclaim
}

/// Why the victim may not be taken; `None` when it may.
fn unlawful(
    snapshot: &Snapshot,
    made: &Preemption,
    victim: &Victim,
    held: &Held,
    is_owner: bool,
) -> Option<String> {
    let gang = &snapshot.waiting[made.waiting.index()];
    let (own, its) = (
        &snapshot.classes[gang.class.index()],
        &snapshot.classes[held.class.index()],
    );
    if held.standing.seats.is_empty() {
        return Some("is not known to stand anywhere".to_owned());
    }
    if held.standing.stage == Stage::Draining {
        return None;
    }
    if its.rule.how == Manner::Never {
        return Some(format!("is of class {}, which is never touched", its.name));
    }
    let borrows = borrowed(held) > 0;
    if its.rule.is_shielded && !borrows {
        return Some("is protected by the windows of its class".to_owned());
    }
    let lender = |row: &crate::model::LedgerRow| {
        let lender = row.lender.filter(|_| row.role == Role::Borrowed);
        lender.is_some_and(|lender| is_above(snapshot, lender, gang.tenant))
    };
    let reclaimed = is_owner && held.rows.iter().any(lender);
    // From a lower class, unless only what is another's own would do; else from borrowers, and
    // only for one who does not borrow itself.
    let is_higher = own.priority > its.priority;
    let reaches = is_owner || borrows || held.tenant == gang.tenant;
    let is_taken = victim.rule != Rule::Compaction;
    if is_taken && !(is_higher && reaches || is_owner && borrows) {
        return Some(format!("may not be taken: it is of class {}", its.name));
    }
    if victim.rule == Rule::Reclaim && !reclaimed {
        return Some("holds nothing that was lent by the other's tenant".to_owned());
    }
    let since = held.standing.started.unwrap_or(held.since);
    if snapshot.now.since(since) < its.rule.min_runtime && !reclaimed {
        return Some("has not run for its least time".to_owned());
    }
    let an_hour = |at: &&meridian_api::units::UnixMillis| snapshot.now.since(**at).0 < 3_600_000;
    if held.standing.evictions.iter().filter(an_hour).count() >= 3 {
        return Some("was hit three times in this hour".to_owned());
    }
    let mut by = gang.evicted_by.iter();
    if by.any(|by| by.job == held.gang.job && snapshot.now.since(by.at).0 < 1_800_000) {
        return Some("made way for it a moment ago the other way round".to_owned());
    }
    match &victim.does {
        Yield::Evict | Yield::Move(_) if its.rule.how == Manner::ShrinkToFloor => {
            Some("may not be stopped".to_owned())
        }
        Yield::Move(_) if its.rule.how == Manner::Reclaim => {
            Some("does not come back, so it goes on nowhere".to_owned())
        }
        Yield::Evict | Yield::Move(_) => None,
        Yield::Shrink { pods, .. } => too_small(held, pods, its.rule.how, its.rule.floor_percent),
    }
}

fn is_above(snapshot: &Snapshot, upper: TenantIx, lower: TenantIx) -> bool {
    let mut at = Some(lower);
    for _ in 0..=snapshot.tenants.len() {
        if at == Some(upper) {
            return true;
        }
        at = at
            .and_then(|ix| snapshot.tenants.get(ix.index()))
            .and_then(|node| node.parent);
    }
    false
}

fn too_small(held: &Held, pods: &[u32], how: Manner, percent: u32) -> Option<String> {
    let roles = &held.standing.shape.roles;
    if roles.len() != pods.len() {
        return Some(format!("has {} roles, {} sized", roles.len(), pods.len()));
    }
    for (at, (role, stays)) in roles.iter().zip(pods).enumerate() {
        let full = held.standing.full.get(at).copied().unwrap_or(role.max);
        let floor = if how == Manner::ShrinkToFloor {
            u64::from(full) * u64::from(percent)
        } else {
            0
        };
        let off_step = (role.max.saturating_sub(*stays)) % role.step.max(1) != 0;
        let below = *stays < role.min || u64::from(*stays) * 100 < floor;
        if off_step || below || *stays > role.max {
            return Some(format!("may not go on with {stays} pods of {}", role.name));
        }
    }
    None
}

/// Whether the gang fits once its victims have gone, and what is held is what it needs.
fn too_little(snapshot: &Snapshot, made: &Preemption) -> Option<String> {
    let gang = &snapshot.waiting[made.waiting.index()].shape;
    let mut need = [0_u128; 3];
    for (role, pods) in gang.roles.iter().zip(&made.pods) {
        let each = [
            role.per_pod.gpus.0,
            role.per_pod.cpu.0,
            role.per_pod.memory.0,
        ];
        for (sum, each) in need.iter_mut().zip(each) {
            *sum += u128::from(each) * u128::from(*pods);
        }
    }
    let mut kept = [0_u128; 3];
    for part in &made.room {
        let each = [part.need.gpus.0, part.need.cpu.0, part.need.memory.0];
        for (sum, each) in kept.iter_mut().zip(each) {
            *sum += u128::from(each) * u128::from(part.hosts);
        }
        let known = u32::try_from(part.known.len()).unwrap_or(u32::MAX);
        if known > part.hosts {
            return Some(format!("{known} hosts named of {}", part.hosts));
        }
    }
    if kept != need {
        return Some(format!("{kept:?} held of {need:?}"));
    }
    let freed = freed(snapshot, made);
    for part in &made.room {
        for host in &part.known {
            let row = looks(snapshot, *host)?;
            let after = row
                .free
                .checked_add(freed.get(host).copied().unwrap_or_default());
            if !after.is_some_and(|after| after.covers(part.need)) {
                return Some(format!("host {} does not come free", host.0));
            }
        }
    }
    None
}

fn looks(snapshot: &Snapshot, host: HostIx) -> Option<&Shape> {
    let row = snapshot.hosts.get(host.index())?;
    let pool = snapshot.pools.get(row.pool.index())?;
    pool.shapes.get(row.shape as usize)
}

/// What comes free on each host.
fn freed(snapshot: &Snapshot, made: &Preemption) -> BTreeMap<HostIx, Resources> {
    let mut freed: BTreeMap<HostIx, Resources> = BTreeMap::new();
    let mut add = |host, what: Resources| {
        let sum = freed.entry(host).or_default();
        *sum = sum.checked_add(what).unwrap_or(*sum);
    };
    for victim in &made.victims {
        let Some(held) = snapshot.held.get(victim.held.index()) else {
            continue;
        };
        match &victim.does {
            Yield::Evict | Yield::Move(_) => {
                for seat in &held.standing.seats {
                    add(seat.host, seat.held);
                }
            }
            Yield::Shrink { leaves, .. } => {
                for it in leaves {
                    let role = held.standing.shape.roles.get(it.role as usize);
                    let what = role.and_then(|role| role.per_pod.checked_mul(it.pods.into()));
                    add(it.host, what.unwrap_or_default());
                }
            }
        }
    }
    freed
}

/// Takes use hosts that are there and that nobody else is kept, in the order of the decisions
/// (S5).
pub(super) fn rooms_with_holds(snapshot: &Snapshot, plan: &Plan, found: &mut Found) {
    let mut rooms: Vec<Vec<Shape>> = snapshot
        .pools
        .iter()
        .map(|pool| shapes::canonical(&pool.shapes))
        .collect();
    let mut kept = keep_all(snapshot, |pool, with| {
        rooms.get_mut(pool.index()).map_or_else(Vec::new, with)
    });
    let lapsed: BTreeMap<HoldIx, Lapse> = plan.lapsed.iter().map(|it| (it.hold, it.why)).collect();
    let mut first = 0;
    for (hold, ix) in snapshot.holds.iter().zip((0..).map(HoldIx)) {
        let next = plan.placements.get(first);
        let own = next.filter(|it| snapshot.waiting[it.waiting.index()].gang == hold.gang);
        let why = lapsed.get(&ix);
        // One whose gang is placed elsewhere keeps its room until then, also from that gang.
        let ends = why.map_or(own.is_some(), |why| *why != Lapse::PlacedElsewhere);
        if let Some(rows) = hold.pool.and_then(|pool| rooms.get_mut(pool.index())) {
            show(rows, &kept[ix.index()]);
            if !ends {
                // What others have left behind meanwhile may suit it better.
                kept[ix.index()] = keep(snapshot, rows, &hold.room);
            }
        }
        if let Some(placed) = own.filter(|_| why.is_none()) {
            first += 1;
            seat(
                snapshot,
                &mut rooms,
                placed.waiting,
                placed.pool,
                &placed.takes,
                found,
            );
        }
    }
    let mut made = plan.preemptions.iter().peekable();
    for (placed, at) in plan.placements.iter().zip(0_usize..) {
        while let Some(next) = made.next_if(|made| made.after as usize <= at) {
            keep_made(snapshot, &mut rooms, next, found);
        }
        if at < first {
            continue;
        }
        seat(
            snapshot,
            &mut rooms,
            placed.waiting,
            placed.pool,
            &placed.takes,
            found,
        );
        let gang = snapshot.waiting[placed.waiting.index()].gang;
        let left = plan.lapsed.iter().find(|it| {
            let hold = &snapshot.holds[it.hold.index()];
            it.why == Lapse::PlacedElsewhere && hold.gang == gang
        });
        if let Some(it) = left
            && let Some(pool) = snapshot.holds[it.hold.index()].pool
        {
            show(&mut rooms[pool.index()], &kept[it.hold.index()]);
        }
    }
    for made in made {
        keep_made(snapshot, &mut rooms, made, found);
    }
}

/// Keeps what a decision holds: for the gang, and for those who go on elsewhere, whose places must
/// be there as they are.
fn keep_made(snapshot: &Snapshot, rooms: &mut [Vec<Shape>], made: &Preemption, found: &mut Found) {
    keep(snapshot, &mut rooms[made.pool.index()], &made.room);
    for victim in &made.victims {
        let Yield::Move(next) = &victim.does else {
            continue;
        };
        for part in &next.room {
            let rows = &mut rooms[next.pool.index()];
            let kept = keep(snapshot, rows, std::slice::from_ref(part));
            let suits = kept.iter().filter(|it| it.suits(part)).count();
            if suits < part.hosts as usize {
                let gang = snapshot.held[victim.held.index()].gang;
                let message = format!(
                    "next place of gang {gang} in pool {}: {suits} hosts of {}",
                    next.pool.0, part.hosts
                );
                report(found, "S5", message);
            }
        }
    }
}

fn seat(
    snapshot: &Snapshot,
    rooms: &mut [Vec<Shape>],
    waiting: WaitingIx,
    pool: PoolIx,
    takes: &[Take],
    found: &mut Found,
) {
    let gang = &snapshot.waiting[waiting.index()];
    let shape: &GangShape = &gang.shape;
    match shapes::subtract(&rooms[pool.index()], shape, takes) {
        Ok(left) => rooms[pool.index()] = left,
        Err(error) => {
            let message = format!("gang {} in pool {}: {error}", gang.gang, pool.0);
            report(found, "S5", message);
        }
    }
}
