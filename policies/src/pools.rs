//! Pools within a round: what each has left, as rows and as the tree that placement runs on.
//!
//! Owns the two forms, which say the same. Never chooses.

use meridian_api::units::{MilliGpus, Resources};

use crate::fit::{Fit, Ground};
use crate::model::{GangShape, HoldRoom, Pool, Shape, Snapshot};
use crate::preempt::holds::{self, Kept};
use crate::shapes::{self, RoomChange};

/// What a decision knows of one pool.
pub(crate) struct PoolState {
    /// Canonical.
    rows: Vec<Shape>,
    pub(crate) free: MilliGpus,
    /// Grows with each placement there.
    pub(crate) version: u32,
    /// The rows as a tree; made when it is asked for, and again when others changed the rows.
    ground: Option<Ground<'static>>,
}

impl PoolState {
    pub(crate) fn new(pool: &Pool) -> Self {
        let rows = shapes::canonical(&pool.shapes);
        Self {
            free: shapes::free(&rows).gpus,
            rows,
            version: 0,
            ground: None,
        }
    }

    /// Hosts, as they are left.
    pub(crate) fn rows(&self) -> &[Shape] {
        &self.rows
    }

    /// The rows, to be changed and left in canonical form.
    pub(crate) fn rows_mut(&mut self) -> &mut Vec<Shape> {
        self.ground = None;
        &mut self.rows
    }

    /// The rows as a tree.
    pub(crate) fn ground(&mut self, levels: &[String]) -> &mut Ground<'static> {
        let rows = &self.rows;
        self.ground
            .get_or_insert_with(|| Ground::new(levels, rows).into_owned())
    }

    /// Takes room out of what anybody sees; says what was taken.
    pub(crate) fn keep(&mut self, snapshot: &Snapshot, room: &[HoldRoom]) -> Vec<Kept> {
        self.keep_with(|rows| holds::keep(snapshot, rows, room))
    }

    /// The same, whatever `with` takes.
    pub(crate) fn keep_with(
        &mut self,
        with: impl FnOnce(&mut Vec<Shape>) -> Vec<Kept>,
    ) -> Vec<Kept> {
        let kept = with(self.rows_mut());
        self.free = shapes::free(&self.rows).gpus;
        self.version += 1;
        kept
    }

    /// Hosts change, or what is free on them; false, with the pool in no order, when they are not
    /// there.
    #[must_use]
    pub(crate) fn shift(&mut self, change: &RoomChange) -> bool {
        if !shapes::shift(&mut self.rows, change) {
            return false;
        }
        let kept = self.ground.take();
        self.ground = kept.and_then(|mut ground| ground.shift(change).map(|()| ground));
        debug_assert!(self.forms_agree(), "rows and tree say the same");
        let all = |free: Option<Resources>| {
            let each = free.unwrap_or_default().gpus.0;
            MilliGpus(each.saturating_mul(u64::from(change.hosts)))
        };
        let free = self.free.saturating_add(all(change.after));
        self.free = free.saturating_sub(all(change.before));
        self.version += 1;
        true
    }

    /// Most whole cards free on one host, begun ones counted.
    pub(crate) fn most_cards(&self) -> u64 {
        let cards = self.rows.iter().map(|row| row.free.gpus.0.div_ceil(1000));
        cards.max().unwrap_or(0)
    }

    /// A gang takes what was found for it.
    pub(crate) fn take(&mut self, gang: &GangShape, found: &Fit, gpus: MilliGpus) {
        let taken = shapes::take_out(&mut self.rows, gang, &found.takes);
        assert!(taken, "a fit takes from the shapes it was made for");
        if let Some(ground) = &mut self.ground
            && !ground.apply(gang, &found.takes)
        {
            self.ground = None;
        }
        debug_assert!(self.forms_agree(), "rows and tree say the same");
        self.free = self.free.saturating_sub(gpus);
        self.version += 1;
    }

    fn forms_agree(&self) -> bool {
        let rows = shapes::canonical(&self.rows);
        let depth = self.ground.as_ref().map(|ground| ground.tree.depth());
        let anew = Ground::new(&vec![String::new(); depth.unwrap_or(0)], &rows);
        let looks = self.ground.as_ref().map(Ground::looks);
        rows == self.rows && looks.is_none_or(|looks| looks == anew.looks())
    }
}
