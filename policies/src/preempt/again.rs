//! Again: when time alone may change what a round has refused.
//!
//! Owns the earliest of the times that were met while room was looked for: a protection lapses, a
//! hold ends, a gang has waited long enough for a slot. What changes slowly and says no time is
//! looked at again after [`DRIFT`]. Never changes an answer.
//!
//! Costs grow with time, too, and decide who goes, not whether anybody can. Only where several
//! domains are compared by what they cost may they change that; this is not waited for.

use meridian_api::units::{Millis, UnixMillis};

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

    /// An answer changes slowly.
    pub(crate) fn drift(&mut self, now: UnixMillis) {
        self.note(Some(now.after(DRIFT)));
    }

    /// The earliest.
    pub(crate) const fn at(self) -> Option<UnixMillis> {
        self.0
    }
}
