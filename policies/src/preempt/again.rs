//! Again: when time alone may change what a round has refused.
//!
//! Owns the earliest of the times that were met while room was looked for: a protection lapses, a
//! hold ends, a gang has waited long enough for a slot. What changes slowly and says no time is
//! looked at again after [`DRIFT`]. Also owns whose turn it is where more look for room than one
//! round looks for. Never searches.
//!
//! Costs grow with time, too, and decide who goes, not whether anybody can. Only where several
//! domains are compared by what they cost may they change that; this is not waited for.

use std::hash::{Hash, Hasher};

use meridian_api::ids::GangId;
use meridian_api::units::{Millis, UnixMillis};

use crate::kinds::Fold;
use crate::model::Snapshot;

/// What changes without saying when is looked at again after this long: budgets of lost work, what
/// compaction would gain, who is gone by the start of a slot. Much less than any least run time,
/// and little beside the notice that a victim has.
pub(crate) const DRIFT: Millis = Millis::seconds(60);

/// The earliest of some times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Again(Option<UnixMillis>);

impl Again {
    /// At that time, if there is one, an answer may be another.
    pub(crate) fn note(&mut self, at: Option<UnixMillis>) {
        self.0 = self.0.into_iter().chain(at).min();
    }

    /// The earliest.
    pub(crate) const fn at(self) -> Option<UnixMillis> {
        self.0
    }
}

/// Searches of one round: in a long queue most that wait are alike, and what is not looked at comes
/// in a later round.
const SEARCHES: u32 = 128;
/// So many of them go to whoever comes first, and the others are drawn, anew in each span of
/// [`DRIFT`]: else as many that never find anything would keep all after them from being looked at.
const FIRST: u32 = 64;
/// After so many that were drawn half as many are. The last are one in 128, so that the draw
/// reaches a thousand that are not alike.
const HALVES_AFTER: u32 = 8;

/// The searches of a round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Searches {
    made: u32,
    /// Somebody was left for another round.
    puts_off: bool,
}

impl Searches {
    /// True while anybody may still be looked for room for.
    pub(crate) const fn are_left(self) -> bool {
        self.made < SEARCHES
    }

    /// True when it is the gang's turn, which then has one of them.
    pub(crate) fn take(&mut self, snapshot: &Snapshot, gang: GangId) -> bool {
        let drawn = self.made.saturating_sub(FIRST) / HALVES_AFTER;
        let is_drawn = || {
            let mut hash = Fold::default();
            (gang, snapshot.seed, span(snapshot.now)).hash(&mut hash);
            hash.finish().trailing_zeros() >= drawn
        };
        let takes = self.are_left() && (drawn == 0 || is_drawn());
        self.made += u32::from(takes);
        self.puts_off |= !takes;
        takes
    }

    /// When others are drawn, if somebody was left for then.
    pub(crate) fn again(self, now: UnixMillis) -> Option<UnixMillis> {
        let left = self.puts_off || !self.are_left();
        let length = i64::try_from(DRIFT.0).unwrap_or(i64::MAX);
        let next = span(now).saturating_add(1).saturating_mul(length);
        left.then_some(UnixMillis(next))
    }
}

/// The span of [`DRIFT`] that it is.
fn span(now: UnixMillis) -> i64 {
    now.0.div_euclid(i64::try_from(DRIFT.0).unwrap_or(i64::MAX))
}
