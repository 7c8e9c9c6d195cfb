//! Starts: when a waiting gang may expect to start.
//!
//! Owns the estimate over a queue: room comes free as what holds it ends, and goes to those before
//! a gang first. Never decides anything, and promises nothing: a slot does.

use std::collections::BTreeMap;

use meridian_api::reasons::Reason;
use meridian_api::units::{MilliGpus, UnixMillis};

use crate::decide::{Round, places};
use crate::model::{Cause, Estimate, FlavorIx, Snapshot, WaitingIx};
use crate::shapes;
use crate::slots::ends;

/// One flavor: what comes free when, and what is asked for by those before.
struct Stream {
    free: MilliGpus,
    /// Ends with everything that is free by then, and whether all of them are known.
    freed: Vec<(UnixMillis, MilliGpus, bool)>,
    ahead: MilliGpus,
}

/// Estimates for a queue, asked for in its order.
pub(crate) struct Starts {
    streams: BTreeMap<FlavorIx, Stream>,
}

impl Starts {
    pub(crate) fn new(snapshot: &Snapshot) -> Self {
        let mut streams: BTreeMap<FlavorIx, Stream> = BTreeMap::new();
        for pool in &snapshot.pools {
            let free = shapes::free(&pool.shapes).gpus;
            let stream = streams.entry(pool.flavor).or_insert(Stream {
                free: MilliGpus::ZERO,
                freed: Vec::new(),
                ahead: MilliGpus::ZERO,
            });
            stream.free = stream.free.saturating_add(free);
        }
        for (end, known, ix) in ends(snapshot, |_| true) {
            let held = &snapshot.held[ix];
            if let Some(stream) = streams.get_mut(&held.flavor) {
                let (sum, all_known) = stream
                    .freed
                    .last()
                    .map_or((stream.free, true), |(_, sum, known)| (*sum, *known));
                let sum = sum.saturating_add(held.resources.gpus);
                stream.freed.push((end, sum, all_known && known));
            }
        }
        Self { streams }
    }

    /// When the next of the queue may start; `None` when it waits for something else than room.
    pub(crate) fn of(
        &mut self,
        round: &Round<'_>,
        ix: WaitingIx,
        reasons: &[Cause],
    ) -> Option<Estimate> {
        if let Some(slot) = round.slot_of(ix) {
            return Some(slot.start);
        }
        let for_room = |cause: &Cause| {
            matches!(
                cause.reason,
                Reason::ReservedForOthers
                    | Reason::Fragmented
                    | Reason::WaitingForCapacity
                    | Reason::BehindHigherPriority
            )
        };
        let never = |cause: &Cause| {
            cause.cluster.is_none()
                && matches!(cause.reason, Reason::NeverPlaceable | Reason::ExceedsQuota)
        };
        if !reasons.iter().any(for_room) || reasons.iter().any(never) {
            return None;
        }
        let gang = round.gang(ix);
        let need = gang.shape.gpus(&gang.shape.least());
        let flavors = places(round.snapshot, gang);
        let mut flavors: Vec<FlavorIx> = flavors.into_iter().map(|place| place.flavor).collect();
        flavors.dedup();
        let soonest = flavors.into_iter().filter_map(|flavor| {
            let stream = self.streams.get(&flavor)?;
            let wanted = stream.ahead.saturating_add(need);
            let after = stream.freed.partition_point(|(_, sum, _)| *sum < wanted);
            let (earliest, _, known) = *stream.freed.get(after)?;
            // Whoever ends last has left room for all, if it is enough for this many.
            let last = stream.freed.last().filter(|(_, _, known)| *known);
            let latest = last.filter(|_| known).map(|(at, _, _)| *at);
            Some((earliest, flavor, latest))
        });
        let (earliest, flavor, latest) = soonest.min()?;
        if let Some(stream) = self.streams.get_mut(&flavor) {
            stream.ahead = stream.ahead.saturating_add(need);
        }
        Some(Estimate { earliest, latest })
    }
}
