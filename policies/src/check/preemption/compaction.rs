//! Compaction of a plan, checked plainly: who moves aside stays in its pool, little is lost, and
//! no pool is stirred without end.
//!
//! Owns what must be so of decisions that only bring together what is free. No code of
//! `preempt::compaction` is used.

use std::collections::{BTreeMap, BTreeSet};

use crate::check::{Found, report};
use crate::model::{HeldIx, Plan, PoolIx, Preemption, Rule, Snapshot, Yield};

/// What is wrong with one decision as a compaction; `None` when nothing is, or it is none.
pub(super) fn unfit(snapshot: &Snapshot, made: &Preemption) -> Option<String> {
    let mut rules = made.victims.iter().map(|victim| victim.rule);
    if !rules.any(|rule| rule == Rule::Compaction) {
        return None;
    }
    let stays = |does: &Yield| matches!(does, Yield::Move(next) if next.pool == made.pool);
    let mut all = made.victims.iter();
    if !all.all(|it| it.rule == Rule::Compaction && stays(&it.does)) {
        return Some("some go though others only move aside".to_owned());
    }
    let gang = &snapshot.waiting[made.waiting.index()];
    if snapshot.now.since(gang.submitted).0 <= 600_000 {
        return Some("others move aside before it has waited for ten minutes".to_owned());
    }
    let held = made.victims.iter();
    let held = held.filter_map(|it| snapshot.held.get(it.held.index()));
    let moved: u128 = held.map(|held| u128::from(held.resources.gpus.0)).sum();
    if moved >= u128::from(made.gpus.0) {
        let need = made.gpus.0;
        return Some(format!("{moved} milli-GPUs move aside for {need}"));
    }
    let pool = &snapshot.pools[made.pool.index()];
    let worth = u128::from(snapshot.flavors[pool.flavor.index()].worth);
    let all = pool.shapes.iter();
    let all = all.map(|row| u128::from(row.allocatable.gpus.0) * u128::from(row.hosts));
    // A hundredth of an hour of the pool.
    let most = all.sum::<u128>() * worth / 1000 * 36;
    (u128::from(made.cost) > most).then(|| format!("costs {} of {most}", made.cost))
}

/// In each pool no more than eight gangs are moved or stopped in an hour where some only move
/// aside.
pub(super) fn within_budget(snapshot: &Snapshot, plan: &Plan, found: &mut Found) {
    let mut moves: BTreeMap<PoolIx, usize> = BTreeMap::new();
    for made in &plan.preemptions {
        let aside = made.victims.iter().filter(|it| it.rule == Rule::Compaction);
        *moves.entry(made.pool).or_default() += aside.count();
    }
    let leaving = snapshot.holds.iter().flat_map(|hold| &hold.victims);
    let leaving: BTreeSet<HeldIx> = leaving.map(|it| it.held).collect();
    for (pool, moves) in moves.into_iter().filter(|(_, moves)| *moves > 0) {
        let mut before = 0;
        for (held, ix) in snapshot.held.iter().zip((0..).map(HeldIx)) {
            if held.pool == Some(pool) {
                let hits = held.standing.evictions.iter();
                let lately = hits.filter(|at| snapshot.now.since(**at).0 < 3_600_000);
                before += lately.count() + usize::from(leaving.contains(&ix));
            }
        }
        if before + moves > 8 {
            let message = format!(
                "pool {}: {moves} move aside after {before} this hour",
                pool.0
            );
            report(found, "L6", message);
        }
    }
}
