//! Starts: when a waiting gang may expect to start.
//!
//! Owns the estimate over a queue: room comes free as what holds it ends, and goes to those before
//! a gang first. Never decides anything, and promises nothing: a slot does.

use std::collections::BTreeMap;

use meridian_api::reasons::Reason;
use meridian_api::units::{MilliGpus, Millis, UnixMillis};

use crate::decide::Round;
use crate::model::{Cause, Estimate, FlavorIx, Held, Shared, Snapshot, WaitingIx};
use crate::shapes;

/// Work that has run for so long is taken to run for this part of it again, at the soonest: of run
/// times that are spread over magnitudes (tail index 1), one in seventeen ends within it.
const AGAIN: u64 = 16;
/// And never less: a start takes about as long.
const LEAST_AGAIN: Millis = Millis::seconds(60);

/// One flavor: what comes free when, and what is asked for by those before.
struct Stream {
    free: MilliGpus,
    /// Ends at the soonest, with everything that is free by then.
    freed: Vec<(UnixMillis, MilliGpus)>,
    /// When all that runs has ended, if all of it says when.
    last: Option<UnixMillis>,
    /// Asked for by those before, by the magnitude of what each asks.
    ahead: [MilliGpus; MAGNITUDES],
}

impl Stream {
    /// What has to come free for a gang: what it needs, and what those before it need that are no
    /// larger than it. Larger ones are passed by whoever fits beside them.
    fn wanted(&self, need: MilliGpus) -> MilliGpus {
        let no_larger = self.ahead[..=magnitude(need)].iter();
        no_larger.fold(need, |sum, ahead| sum.saturating_add(*ahead))
    }

    /// When so much has come free at the soonest. Most of a long queue asks for more than ever
    /// comes.
    fn when(&self, wanted: MilliGpus) -> Option<UnixMillis> {
        let (_, most) = self.freed.last()?;
        if *most < wanted {
            return None;
        }
        let after = self.freed.partition_point(|(_, sum)| *sum < wanted);
        self.freed.get(after).map(|(at, _)| *at)
    }
}

/// Magnitudes of what a gang asks for: powers of two of thousandths of a GPU.
const MAGNITUDES: usize = u64::BITS as usize + 1;

fn magnitude(need: MilliGpus) -> usize {
    (u64::BITS - need.0.leading_zeros()) as usize
}

/// When it ends at the soonest that is worth telling, and at the latest if it says so.
fn end(snapshot: &Snapshot, held: &Held) -> (UnixMillis, Option<UnixMillis>) {
    let again = Millis(snapshot.now.since(held.since).0 / AGAIN).max(LEAST_AGAIN);
    let soonest = snapshot.now.after(again);
    let last = held.ends.map(|ends| ends.max(snapshot.now));
    (last.map_or(soonest, |last| last.min(soonest)), last)
}

/// Estimates for a queue, asked for in its order.
pub(crate) struct Starts {
    streams: BTreeMap<FlavorIx, Stream>,
    /// By look: whether room is what is waited for, and for which reasons that was looked at.
    waits: Vec<Option<(usize, bool)>>,
}

impl Starts {
    pub(crate) fn new(round: &Round<'_>) -> Self {
        let snapshot = round.snapshot;
        let mut streams: BTreeMap<FlavorIx, Stream> = BTreeMap::new();
        for pool in &snapshot.pools {
            let free = shapes::free(&pool.shapes).gpus;
            let stream = streams.entry(pool.flavor).or_insert(Stream {
                free: MilliGpus::ZERO,
                freed: Vec::new(),
                last: Some(snapshot.now),
                ahead: [MilliGpus::ZERO; MAGNITUDES],
            });
            stream.free = stream.free.saturating_add(free);
        }
        let mut ends: Vec<_> = snapshot
            .held
            .iter()
            .map(|held| (end(snapshot, held), held.flavor, held.resources.gpus))
            .collect();
        ends.sort_unstable();
        for ((soonest, last), flavor, gpus) in ends {
            let Some(stream) = streams.get_mut(&flavor) else {
                continue;
            };
            let sum = stream.freed.last().map_or(stream.free, |(_, sum)| *sum);
            stream.freed.push((soonest, sum.saturating_add(gpus)));
            stream.last = stream.last.zip(last).map(|(one, other)| one.max(other));
        }
        Self {
            streams,
            waits: vec![None; round.kinds.looks().len()],
        }
    }

    /// When the next of the queue may start; `None` when it waits for something else than room.
    pub(crate) fn of(
        &mut self,
        round: &mut Round<'_>,
        ix: WaitingIx,
        reasons: &Shared<Vec<Cause>>,
    ) -> Option<Estimate> {
        // A slot is a promise of the latest start, and not of the soonest.
        let slot = round.slot_of(ix).map(|slot| slot.start);
        if !self.is_for_room(round.kinds.look(ix), reasons) {
            return slot;
        }
        let gang = round.gang(ix);
        let need = gang.shape.gpus(&gang.shape.least());
        let asked = round.asked(ix);
        let soonest = asked.flavors.iter().filter_map(|flavor| {
            let stream = self.streams.get(flavor)?;
            let earliest = stream.when(stream.wanted(need))?;
            // Whoever ends last has left room for all, if it is enough for this many.
            Some((earliest, *flavor, stream.last))
        });
        let Some((earliest, flavor, latest)) = soonest.min() else {
            return slot;
        };
        if let Some(stream) = self.streams.get_mut(&flavor) {
            let ahead = &mut stream.ahead[magnitude(need)];
            *ahead = ahead.saturating_add(need);
        }
        Some(Estimate {
            earliest: slot.map_or(earliest, |slot| slot.earliest.min(earliest)),
            latest: slot.map_or(latest, |slot| slot.latest),
        })
    }
    /// True when room is what is waited for, and will come: looked at once for gangs that look
    /// alike and share their reasons.
    fn is_for_room(&mut self, look: usize, reasons: &Shared<Vec<Cause>>) -> bool {
        let address = reasons.address();
        if let Some((of, known)) = self.waits[look]
            && of == address
        {
            return known;
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
        let waits = reasons.iter().any(for_room) && !reasons.iter().any(never);
        self.waits[look] = Some((address, waits));
        waits
    }
}
