//! When time alone changes slots: who has none gets one, one becomes firm, or is put off.
//!
//! Owns the earliest of these times. Never chooses a slot.

use meridian_api::units::{Millis, UnixMillis};

use super::{FIRM, MAX_TRIES, PATIENCE, Slot};
use crate::ends::{Ends, SHORTEST_GUESS};
use crate::model::{FlavorIx, Snapshot, WaitingIx};

impl Slot {
    /// When time alone may put its start off so far that what runs for so long at most is gone by
    /// then: whatever says nothing of its end is expected to run for as long again as it has.
    pub(crate) fn put_off(
        &self,
        snapshot: &Snapshot,
        ends: &mut Ends,
        most: Millis,
    ) -> Option<UnixMillis> {
        let now = snapshot.now;
        let gone = now.after(most);
        if most <= SHORTEST_GUESS || gone <= self.start.earliest {
            return None;
        }
        let room = ends.of(snapshot, self.pool).next_open(most, now);
        let quota = (self.quota_from < gone).then(|| ends.next_open(snapshot, most));
        match quota {
            // Both have to be put off.
            Some(quota) if self.room_from < gone => room.zip(quota).map(|(a, b)| a.max(b)),
            Some(quota) => quota,
            None => room,
        }
    }
}

/// When time alone gives somebody a slot who has none, or makes one firm. `oldest` as for
/// [`blocked`].
pub(crate) fn next_change(
    snapshot: &Snapshot,
    slots: &[Slot],
    oldest: impl Iterator<Item = WaitingIx>,
) -> Option<UnixMillis> {
    let now = snapshot.now;
    let waits = |ix: WaitingIx| now.since(snapshot.waiting[ix.index()].submitted);
    let since = |ix: WaitingIx, longer: Millis| {
        let submitted = snapshot.waiting[ix.index()].submitted;
        submitted.after(longer).after(Millis(1))
    };
    let firm = slots.iter().map(|slot| slot.owner);
    let firm = firm.filter(|ix| waits(*ix) <= FIRM);
    let firm = firm.map(|ix| since(ix, FIRM)).min();
    // Others before them have the slot of their class and flavor.
    let is_served = |ix: &WaitingIx| {
        let gang = &snapshot.waiting[ix.index()];
        let has_slot = |flavor: FlavorIx| {
            let mut slots = slots.iter();
            slots.any(|slot| {
                let owner = &snapshot.waiting[slot.owner.index()];
                (owner.class, slot.place.flavor) == (gang.class, flavor)
            })
        };
        let mut all = (0..).map(FlavorIx).take(snapshot.flavors.len());
        let mut accepted = gang.flavors.iter().map(|accepted| accepted.flavor);
        if gang.flavors.is_empty() {
            all.all(has_slot)
        } else {
            accepted.all(has_slot)
        }
    };
    let patient = oldest
        .skip_while(|ix| waits(*ix) > PATIENCE)
        .take(MAX_TRIES);
    let mut blocked = patient.filter(|ix| !is_served(ix));
    let blocked = blocked.next().map(|ix| since(ix, PATIENCE));
    firm.into_iter().chain(blocked).min()
}
