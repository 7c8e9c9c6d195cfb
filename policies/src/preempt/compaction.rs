//! Compaction: small gangs move together, so that whole hosts come free for the one that waits
//! longest.
//!
//! Owns when that is worth it. Only for the owner of a slot for which nobody need be stopped: the
//! pool has enough free, and not in one place. All who make room go on in the same pool at once,
//! whoever they are; nobody waits in the queue for it. Never searches itself.
//!
//! No cycle comes of it: each decision ends with its large gang placed, a gang is hit no more than
//! three times in an hour, and a pool has its budget.

use meridian_api::units::{MilliGpus, Millis};

use super::again::DRIFT;
use super::bids::Bid;
use super::cost::work;
use super::rules::{Barred, recent};
use crate::decide::Round;
use crate::model::{HeldIx, PoolIx, Rule, Snapshot, WaitingIx, Yield};

/// Gangs of one pool that are moved within an hour: each restart idles its cards for two minutes,
/// and their owners see it; eight let a few large gangs in.
const MOVES_PER_HOUR: usize = 8;
/// What one decision may cost: a hundredth of what its pool does in an hour.
const WORK: Millis = Millis::seconds(36);
/// Time that a large gang is taken to gain at most: nobody knows what would come free later.
const MOST_GAINED: Millis = Millis::seconds(3600);

impl Round<'_> {
    /// True when the gang owns a slot, and the pool has as much free as it needs in all.
    pub(super) fn is_fragmented(&self, ix: WaitingIx, pool: PoolIx, need: MilliGpus) -> bool {
        self.slot_of(ix).is_some() && self.pools[pool.index()].free >= need
    }

    /// Nothing when all who make room go on in the pool, within its budget, and less is lost than
    /// the gang would lose by waiting.
    ///
    /// # Errors
    /// It is not worth it; what is lost, and when the gang would start, change with time.
    pub(super) fn is_worth_it(
        &self,
        ix: WaitingIx,
        need: MilliGpus,
        bid: &Bid,
    ) -> Result<(), Barred> {
        let snapshot = self.snapshot;
        let mut moved = MilliGpus::ZERO;
        for victim in &bid.victims {
            match &victim.does {
                Yield::Move(next) if next.pool == bid.pool => {}
                Yield::Move(_) | Yield::Evict | Yield::Shrink { .. } => return Err(Barred::Stays),
            }
            moved = moved.saturating_add(snapshot.held[victim.held.index()].resources.gpus);
        }
        if moved >= need {
            return Err(Barred::Stays);
        }
        let pool = &snapshot.pools[bid.pool.index()];
        let worth = snapshot.flavors[pool.flavor.index()].worth;
        let all = pool.shapes.iter();
        let all = all.map(|row| row.allocatable.gpus.0.saturating_mul(row.hosts.into()));
        let all = MilliGpus(all.fold(0, u64::saturating_add));
        let begins = self.slot_of(ix).map(|slot| slot.start.earliest);
        let notice = bid.victims.iter().map(|victim| victim.deadline).max();
        let gained = begins.zip(notice).map(|(begins, gone)| begins.since(gone));
        let gained = gained.unwrap_or(Millis::ZERO).min(MOST_GAINED);
        let made = self.preemptions.made.iter();
        let made = made.filter(|made| made.pool == bid.pool);
        let made = made.flat_map(|made| &made.victims);
        let made = made.filter(|victim| victim.rule == Rule::Compaction);
        let before = moved_lately(snapshot, bid.pool) + made.count();
        let is_worth_it = bid.cost <= work(all, worth, WORK)
            && bid.cost < work(need, worth, gained)
            && before + bid.victims.len() <= MOVES_PER_HOUR;
        let not_yet = Barred::Until(snapshot.now.after(DRIFT));
        is_worth_it.then_some(()).ok_or(not_yet)
    }
}

/// Moves and stops within the last hour of what stands in the pool, with those that are under way.
fn moved_lately(snapshot: &Snapshot, pool: PoolIx) -> usize {
    let leaving = snapshot.holds.iter().flat_map(|hold| &hold.victims);
    let leaving: std::collections::BTreeSet<HeldIx> = leaving.map(|it| it.held).collect();
    let here = snapshot.held.iter().zip((0..).map(HeldIx));
    let here = here.filter(|(held, _)| held.pool == Some(pool));
    let each = here.map(|(held, ix)| {
        recent(&held.standing.evictions, snapshot.now) + usize::from(leaving.contains(&ix))
    });
    each.sum()
}
