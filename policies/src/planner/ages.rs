//! Ages: the oldest gang of each look, kept while gangs come and go.
//!
//! Owns the order by age among gangs that look alike, and among looks by their oldest. Never
//! says who has waited for too long.

use std::collections::BTreeSet;

use meridian_api::ids::GangId;
use meridian_api::units::UnixMillis;

use crate::model::{Snapshot, WaitingIx};

/// Orders gangs, the oldest first.
type Age = (UnixMillis, GangId);

fn age(snapshot: &Snapshot, ix: WaitingIx) -> Age {
    let gang = &snapshot.waiting[ix.index()];
    (gang.submitted, gang.gang)
}

/// All that waits, by age.
#[derive(Clone, Debug, Default)]
pub(super) struct Ages {
    by_look: Vec<Vec<WaitingIx>>,
    /// The oldest of each look.
    heads: BTreeSet<(Age, u32)>,
}

impl Ages {
    /// The ages of all that waits, with what each gang looks like.
    pub(super) fn new(snapshot: &Snapshot, looks: &[u32]) -> Self {
        let mut own = Self::default();
        for (ix, look) in (0..).map(WaitingIx).zip(looks) {
            own.of_look(*look).push(ix);
        }
        for (alike, look) in own.by_look.iter_mut().zip(0..) {
            if !alike.is_sorted_by_key(|ix| age(snapshot, *ix)) {
                alike.sort_by_key(|ix| age(snapshot, *ix));
            }
            let head = alike.first().map(|ix| (age(snapshot, *ix), look));
            own.heads.extend(head);
        }
        own
    }

    fn of_look(&mut self, look: u32) -> &mut Vec<WaitingIx> {
        let at = look as usize;
        if self.by_look.len() <= at {
            self.by_look.resize_with(at + 1, Vec::new);
        }
        &mut self.by_look[at]
    }

    /// The oldest gang of each look, the oldest first.
    pub(super) fn oldest(&self) -> impl Iterator<Item = WaitingIx> + Clone {
        let heads = self.heads.iter();
        heads.filter_map(|(_, look)| self.by_look[*look as usize].first().copied())
    }

    /// Puts a gang in.
    pub(super) fn insert(&mut self, snapshot: &Snapshot, ix: WaitingIx, look: u32) {
        self.change(snapshot, look, |alike| {
            let own = age(snapshot, ix);
            let at = alike.partition_point(|it| age(snapshot, *it) <= own);
            alike.insert(at, ix);
        });
    }

    /// Takes a gang out that is in.
    pub(super) fn remove(&mut self, snapshot: &Snapshot, ix: WaitingIx, look: u32) {
        self.change(snapshot, look, |alike| {
            let at = find(snapshot, alike, ix);
            alike.remove(at);
        });
    }

    /// A gang that is in gets another row of the table.
    pub(super) fn rename(&mut self, snapshot: &Snapshot, ix: WaitingIx, look: u32, to: WaitingIx) {
        let alike = self.of_look(look);
        let at = find(snapshot, alike, ix);
        alike[at] = to;
    }

    fn change(&mut self, snapshot: &Snapshot, look: u32, with: impl FnOnce(&mut Vec<WaitingIx>)) {
        let alike = self.of_look(look);
        let before = alike.first().map(|ix| (age(snapshot, *ix), look));
        with(alike);
        let after = alike.first().map(|ix| (age(snapshot, *ix), look));
        if before != after {
            if let Some(before) = &before {
                self.heads.remove(before);
            }
            self.heads.extend(after);
        }
    }
}

fn find(snapshot: &Snapshot, alike: &[WaitingIx], ix: WaitingIx) -> usize {
    let own = age(snapshot, ix);
    let first = alike.partition_point(|it| age(snapshot, *it) < own);
    let same = alike[first..].iter().position(|it| *it == ix);
    first + same.expect("whoever is taken out was put in")
}
