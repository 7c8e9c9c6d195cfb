//! Present use: what is held, added up once for everything that a round asks of it.
//!
//! Owns the sums by tenant, cluster and flavor, and in which sum each placement is. A table of
//! placements is long and each row is wide, so a round walks it once: quota, shares and the books
//! read these sums. Never limits anything.

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasherDefault;

use meridian_api::units::Resources;

use crate::books::stands_on_own;
use crate::kinds::Fold;
use crate::model::{ClusterIx, FlavorIx, Held, HeldIx, Place, Snapshot, TenantIx, Use};
use crate::preempt::{minus, plus};
use crate::shares::use_of_held;

/// What is counted alike by every quota and every share.
type Key = (TenantIx, ClusterIx, FlavorIx);

/// Placements of one tenant on one flavor of one cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) tenant: TenantIx,
    pub(crate) place: Place,
    /// Their resources; stops at the largest amount of each.
    pub(crate) what: Resources,
    /// The same by worth, rounded placement by placement.
    pub(crate) uses: Use,
}

/// Everything that is held, in groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct Present {
    groups: Vec<Group>,
    known: HashMap<Key, u32, BuildHasherDefault<Fold>>,
    /// By placement.
    of: Vec<u32>,
    /// Placements that do not stand on their tenant's own quota as a whole.
    unlike: BTreeSet<HeldIx>,
}

impl Present {
    /// Adds up what the snapshot holds.
    pub(crate) fn new(snapshot: &Snapshot) -> Self {
        let mut own = Self::default();
        own.of.reserve_exact(snapshot.held.len());
        // Neighbours in the table are often alike.
        let mut last: Option<(Key, u32)> = None;
        for held in &snapshot.held {
            let key = key(held);
            let known = last.filter(|(same, _)| *same == key);
            let group = known.map_or_else(|| own.group(snapshot, held), |(_, group)| group);
            last = Some((key, group));
            own.note(group, snapshot, held);
        }
        own
    }

    /// One placement more, the last of the table.
    pub(crate) fn push(&mut self, snapshot: &Snapshot, held: &Held) {
        let group = self.group(snapshot, held);
        self.note(group, snapshot, held);
    }

    fn note(&mut self, group: u32, snapshot: &Snapshot, held: &Held) {
        let next = u32::try_from(self.of.len()).expect("tables are numbered in 32 bits");
        self.of.push(group);
        self.groups[group as usize].enter(snapshot, held);
        self.note_rows(HeldIx(next), held);
    }

    /// The rows on which a placement stands are what they are.
    pub(crate) fn note_rows(&mut self, ix: HeldIx, held: &Held) {
        if stands_on_own(held) {
            self.unlike.remove(&ix);
        } else {
            self.unlike.insert(ix);
        }
    }

    /// A placement is gone, and the last of the table has its row.
    pub(crate) fn swap_remove(&mut self, snapshot: &Snapshot, ix: HeldIx, gone: &Held) {
        let group = self.of.swap_remove(ix.index());
        self.unlike.remove(&ix);
        let last = u32::try_from(self.of.len()).expect("tables are numbered in 32 bits");
        if self.unlike.remove(&HeldIx(last)) {
            self.unlike.insert(ix);
        }
        self.groups[group as usize].leave(snapshot, gone);
    }

    fn group(&mut self, snapshot: &Snapshot, held: &Held) -> u32 {
        let groups = &mut self.groups;
        *self.known.entry(key(held)).or_insert_with(|| {
            let next = u32::try_from(groups.len()).expect("tables are numbered in 32 bits");
            groups.push(Group {
                tenant: held.tenant,
                place: held.place(snapshot),
                what: Resources::default(),
                uses: Use::default(),
            });
            next
        })
    }

    /// Placements that do not stand on their tenant's own quota as a whole.
    pub(crate) const fn unlike(&self) -> &BTreeSet<HeldIx> {
        &self.unlike
    }

    pub(crate) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The placements, each with its group.
    pub(crate) fn placements(&self) -> impl Iterator<Item = (HeldIx, usize)> {
        let groups = self.of.iter().map(|group| *group as usize);
        (0..).map(HeldIx).zip(groups)
    }
}

fn key(held: &Held) -> Key {
    (held.tenant, held.cluster, held.flavor)
}

impl Group {
    fn enter(&mut self, snapshot: &Snapshot, held: &Held) {
        self.what = plus(self.what, held.resources);
        self.count(snapshot, held, u64::saturating_add);
    }

    fn leave(&mut self, snapshot: &Snapshot, held: &Held) {
        self.what = minus(self.what, held.resources);
        self.count(snapshot, held, u64::saturating_sub);
    }

    fn count(&mut self, snapshot: &Snapshot, held: &Held, by: fn(u64, u64) -> u64) {
        let uses = use_of_held(snapshot, held.flavor, held.resources);
        for (sum, part) in self.uses.0.iter_mut().zip(uses.0) {
            *sum = by(*sum, part);
        }
    }
}
