//! Settling: what is kept is brought to where a round begins.
//!
//! Owns the order in which that happens: what was decided and not started is taken back, then pools
//! change, then quota, then what gangs look like. Never decides.

use meridian_api::ids::GangId;

use super::change::Tables;
use super::state::{State, Taken};
use crate::bits::PoolBits;
use crate::decide::Prepared;
use crate::kinds::Kinds;
use crate::model::{PoolIx, Snapshot};
use crate::pools::PoolState;
use crate::quota::Ledger;
use crate::shapes::RoomChange;
use crate::shares::Shares;

impl State {
    /// Brings everything to where a round begins.
    pub(super) fn settle<'a>(
        &mut self,
        tables: &'a Tables,
        ledger: &mut Ledger<'a>,
        shares: &mut Shares<'a>,
        prepared: &mut Prepared,
    ) {
        let snapshot = &tables.snapshot;
        let promises = promises(snapshot);
        // Then ledger and shares are made anew, and nothing need be taken back.
        let is_anew = std::mem::take(&mut self.has_promised) || promises;
        let mut changes = Vec::new();
        let mut undone: Vec<(GangId, Taken)> =
            std::mem::take(&mut self.pending).into_iter().collect();
        undone.sort_by_key(|(_, taken)| std::cmp::Reverse(taken.order));
        for (gang, taken) in undone {
            if !is_anew {
                ledger.give_back(taken.tenant, taken.place, taken.demand);
                shares.discharge(taken.tenant, taken.uses);
            }
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
        let tenants_changed = std::mem::take(&mut self.tenants_changed);
        let fleet_changed = std::mem::take(&mut self.fleet_changed);
        if is_anew {
            *ledger = Ledger::of_present(snapshot, &tables.present);
            *shares = Shares::of_present(snapshot, &tables.present);
        } else if tenants_changed {
            *ledger = Ledger::empty(&snapshot.tenants);
            ledger.enter(&self.sums);
        }
        if !is_anew && (tenants_changed || fleet_changed) {
            shares.weigh_again(snapshot);
        }
        self.look_again(tables, &mut prepared.kinds);
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
        let mut anew = std::mem::take(&mut self.stale);
        let mut touched = anew.clone();
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

    /// Whom a gang may not make go is a matter of time.
    fn look_again(&mut self, tables: &Tables, kinds: &mut Kinds) {
        let snapshot = &tables.snapshot;
        for ix in self.cooling.iter().filter_map(|gang| tables.waits(*gang)) {
            let before = kinds.all()[ix.index()];
            let after = kinds.look_again(snapshot, ix);
            if before != after {
                self.lines.remove(snapshot, ix, before);
                self.lines.insert(snapshot, ix, after);
                self.ages.remove(snapshot, ix, before);
                self.ages.insert(snapshot, ix, after);
            }
        }
    }
}

/// True when a round of the snapshot counts more than what is held and what it places.
fn promises(snapshot: &Snapshot) -> bool {
    // Running jobs are counted by their names.
    !snapshot.holds.is_empty() || snapshot.tenants.iter().any(|it| it.running_jobs.is_some())
}
