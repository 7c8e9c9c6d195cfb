//! Deadlines of a gang: instants at which time alone changes what is done with it.
//!
//! Owns when the next one is. Never acts on it.

use meridian_api::units::UnixMillis;

use crate::backend::GangSeen;
use crate::gangs::{Desired, Gang, running, started};

/// When time alone changes the decision.
pub(crate) fn next_deadline(gang: &Gang, own: Option<&GangSeen>) -> Option<UnixMillis> {
    if gang.record.desired == Desired::Adopted {
        return None;
    }
    let limit = own.and_then(|own| Some(started(own)?.after(own.terms.max_runtime?)));
    let placed = own.is_some_and(running);
    let placing = (!placed).then(|| placed_by(gang));
    let leave = gang.record.leave.map(|leave| leave.by);
    limit.into_iter().chain(placing).chain(leave).min()
}

/// When every member must run.
pub(crate) fn placed_by(gang: &Gang) -> UnixMillis {
    let first = gang.record.accepted.after(gang.record.place_timeout);
    gang.mended_by.map_or(first, |again| again.max(first))
}
