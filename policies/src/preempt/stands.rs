//! What stands in each pool, as far as it tells at a glance whether anybody there may be taken.
//!
//! Owns a bound that follows from the rules (see `rules`) and is never wrong: whom it refuses, no
//! rule lets take anything there. Never says who may be taken.

use meridian_api::ids::{Epoch, GangId};
use meridian_api::kinds::workload_class::Preemption as Manner;

use super::rules::{Aim, Asker};
use crate::books::borrowed_of;
use crate::model::{HeldIx, Snapshot, Stage};

/// What stands in one pool.
pub(super) struct Stands {
    pub(super) held: Vec<HeldIx>,
    /// Least priority of a class that may be stopped.
    lowest: Option<i32>,
    /// Some of it borrows.
    borrows: bool,
    /// Some of it is on its way out.
    leaves: bool,
}

impl Stands {
    fn new() -> Self {
        Self {
            held: Vec::new(),
            lowest: None,
            borrows: false,
            leaves: false,
        }
    }

    fn push(&mut self, snapshot: &Snapshot, ix: HeldIx) {
        let held = &snapshot.held[ix.index()];
        self.held.push(ix);
        self.borrows |= borrowed_of(&held.rows).0 > 0;
        self.leaves |= held.standing.stage == Stage::Draining;
        let class = snapshot.classes.get(held.class.index());
        let class = class.filter(|class| class.rule.how != Manner::Never);
        if let Some(class) = class {
            let lowest = self.lowest.get_or_insert(class.priority);
            *lowest = class.priority.min(*lowest);
        }
    }

    /// False when no rule lets the gang take any of it: most pools are told by this alone.
    pub(super) fn may_yield(&self, asker: &Asker<'_>) -> bool {
        let outranked = self.lowest.is_some_and(|lowest| lowest < asker.priority);
        match asker.aim {
            Aim::Take => self.leaves || outranked || (asker.is_owner && self.borrows),
            Aim::Compact => true,
        }
    }
}

/// What stands in each pool.
pub(super) fn stands_in(snapshot: &Snapshot) -> Vec<Stands> {
    let mut stands: Vec<Stands> = snapshot.pools.iter().map(|_| Stands::new()).collect();
    for (held, ix) in snapshot.held.iter().zip((0..).map(HeldIx)) {
        let pool = held.pool.and_then(|pool| stands.get_mut(pool.index()));
        if let Some(pool) = pool {
            pool.push(snapshot, ix);
        }
    }
    // Ties end with a name, whatever order the table is in.
    for pool in &mut stands {
        pool.held.sort_by_cached_key(|ix| name_of(snapshot, *ix));
    }
    stands
}

/// What orders placements: whose it is, and its epoch.
pub(super) fn name_of(snapshot: &Snapshot, ix: HeldIx) -> (GangId, Epoch) {
    let held = &snapshot.held[ix.index()];
    (held.gang, held.epoch)
}
