//! Beside: what pools have left for those who must leave slots there alone.
//!
//! Owns a tree of it for each pool and slots, made when it is asked for. Never chooses.

use std::collections::BTreeMap;

use crate::decide::Round;
use crate::fit::{Fit, Ground};
use crate::model::{PoolIx, WaitingIx};
use crate::slots::Mask;

/// Pools beside their slots.
#[derive(Default)]
pub(super) struct Beside {
    known: BTreeMap<(PoolIx, Mask), Left>,
}

/// What one pool has left.
struct Left {
    /// Of the pool that it was made of.
    version: u32,
    ground: Ground<'static>,
}

impl Beside {
    /// Slots or pools are others.
    pub(super) fn clear(&mut self) {
        self.known.clear();
    }
}

impl Round<'_> {
    /// What is left of the pool beside these of its slots, as a tree.
    pub(super) fn ground(&mut self, pool: PoolIx, bits: Mask) -> &mut Ground<'static> {
        let levels = &self.snapshot.pools[pool.index()].levels;
        if bits == 0 {
            return self.pools[pool.index()].ground(levels);
        }
        let (key, version) = ((pool, bits), self.pools[pool.index()].version);
        let known = self.places.beside.known.remove(&key);
        let known = known.filter(|left| left.version == version);
        let anew = || Ground::new(levels, &self.seen(pool, bits)).into_owned();
        let left = known.unwrap_or_else(|| Left {
            version,
            ground: anew(),
        });
        debug_assert_eq!(
            left.ground.looks(),
            anew().looks(),
            "it follows what the pool has left"
        );
        let kept = self.places.beside.known.entry(key);
        &mut kept.insert_entry(left).into_mut().ground
    }

    /// A gang that must leave these slots alone has just taken that of the pool. What they keep is
    /// the freest of each domain, and stays so when others become less free.
    pub(crate) fn follow(&mut self, ix: WaitingIx, pool: PoolIx, mask: Mask, found: &Fit) {
        let key = (pool, self.bits_in(pool, mask));
        let (shape, version) = (&self.gang(ix).shape, self.pools[pool.index()].version);
        let Some(left) = self.places.beside.known.get_mut(&key) else {
            return;
        };
        let follows = left.version.checked_add(1) == Some(version);
        if follows && left.ground.apply(shape, &found.takes) {
            left.version = version;
        } else {
            self.places.beside.known.remove(&key);
        }
    }
}
