//! Starts: when a waiting gang may expect to start.
//!
//! Owns the estimate over a queue: room comes free as what holds it ends, and goes to those before
//! a gang first. Never decides anything, and promises nothing: a slot does.

use std::sync::Arc;

use meridian_api::reasons::Reason;
use meridian_api::units::{MilliGpus, Millis, UnixMillis};

use crate::decide::Round;
use crate::model::{Cause, Estimate, Held, Reasons, Shared, Snapshot, WaitingIx};
use crate::place::Asked;
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
        MilliGpus(no_larger.fold(need.0, |sum, ahead| sum.saturating_add(ahead.0)))
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

/// What gangs wait for that look alike.
#[derive(Clone)]
struct Wait {
    need: MilliGpus,
    asked: Arc<Asked>,
    /// More is asked for before them than ever comes, and that only grows.
    is_beyond: bool,
}

/// Estimates for a queue, asked for in its order.
pub(crate) struct Starts {
    /// By flavor; none where no pool has it, and before anybody waits for room.
    streams: Vec<Option<Stream>>,
    /// By look: whether room is what is waited for, and for which reasons that was looked at.
    for_room: Vec<Option<(usize, bool)>>,
    /// By look.
    waits: Vec<Option<Wait>>,
}

impl Starts {
    pub(crate) fn new(round: &Round<'_>) -> Self {
        let looks = round.kinds.looks().len();
        Self {
            streams: Vec::new(),
            for_room: vec![None; looks],
            waits: vec![None; looks],
        }
    }

    /// When the next of the queue may start; `None` when it waits for something else than room.
    pub(crate) fn of(
        &mut self,
        round: &mut Round<'_>,
        ix: WaitingIx,
        reasons: &Reasons,
    ) -> Option<Estimate> {
        // A slot is a promise of the latest start, and not of the soonest.
        let slot = round.slot_of(ix).map(|slot| slot.start);
        let look = round.kinds.look(ix);
        if !self.is_for_room(look, reasons) {
            return slot;
        }
        if self.streams.is_empty() {
            self.streams = streams(round.snapshot);
        }
        if self.waits[look].is_none() {
            let gang = round.gang(ix);
            self.waits[look] = Some(Wait {
                need: gang.shape.gpus(&gang.shape.least()),
                asked: round.asked(ix),
                is_beyond: false,
            });
        }
        let Some(own) = self.again(look) else {
            return slot;
        };
        Some(Estimate {
            earliest: slot.map_or(own.earliest, |slot| slot.earliest.min(own.earliest)),
            latest: slot.map_or(own.latest, |slot| slot.latest),
        })
    }

    /// The same for one that looks like an earlier one, waits for the same and has no slot.
    pub(crate) fn again(&mut self, look: usize) -> Option<Estimate> {
        let wait = self.waits[look].as_mut().filter(|it| !it.is_beyond)?;
        let (need, flavors) = (wait.need, &wait.asked.flavors);
        let soonest = flavors.iter().filter_map(|flavor| {
            let stream = self.streams.get(flavor.index())?.as_ref()?;
            let earliest = stream.when(stream.wanted(need))?;
            // Whoever ends last has left room for all, if it is enough for this many.
            Some((earliest, *flavor, stream.last))
        });
        let Some((earliest, flavor, latest)) = soonest.min() else {
            wait.is_beyond = true;
            return None;
        };
        if let Some(stream) = &mut self.streams[flavor.index()] {
            let ahead = &mut stream.ahead[magnitude(need)];
            *ahead = ahead.saturating_add(need);
        }
        Some(Estimate { earliest, latest })
    }

    /// True when room is what is waited for, and will come: looked at once for gangs that look
    /// alike and share their reasons.
    pub(crate) fn is_for_room(&mut self, look: usize, reasons: &Reasons) -> bool {
        let address = reasons.address();
        if let Some((of, known)) = self.for_room[look]
            && of == address
        {
            return known;
        }
        let for_room = |cause: &Shared<Cause>| {
            matches!(
                cause.reason,
                Reason::ReservedForOthers
                    | Reason::Fragmented
                    | Reason::WaitingForCapacity
                    | Reason::BehindHigherPriority
            )
        };
        let never = |cause: &Shared<Cause>| {
            cause.cluster.is_none()
                && matches!(cause.reason, Reason::NeverPlaceable | Reason::ExceedsQuota)
        };
        let waits = reasons.iter().any(for_room) && !reasons.iter().any(never);
        self.for_room[look] = Some((address, waits));
        waits
    }
}

/// What comes free of each flavor, and when.
fn streams(snapshot: &Snapshot) -> Vec<Option<Stream>> {
    let mut streams: Vec<Option<Stream>> = snapshot.flavors.iter().map(|_| None).collect();
    for pool in &snapshot.pools {
        let free = shapes::free(&pool.shapes).gpus;
        let stream = streams[pool.flavor.index()].get_or_insert_with(|| Stream {
            free: MilliGpus::ZERO,
            freed: Vec::new(),
            last: Some(snapshot.now),
            ahead: [MilliGpus::ZERO; MAGNITUDES],
        });
        stream.free = stream.free.saturating_add(free);
    }
    for held in &snapshot.held {
        if let Some(Some(stream)) = streams.get_mut(held.flavor.index()) {
            let (soonest, last) = end(snapshot, held);
            stream.freed.push((soonest, held.resources.gpus));
            stream.last = stream.last.zip(last).map(|(one, other)| one.max(other));
        }
    }
    for stream in streams.iter_mut().flatten() {
        stream.freed.sort_unstable_by_key(|(at, _)| *at);
        let mut sum = stream.free;
        for (_, freed) in &mut stream.freed {
            sum = sum.saturating_add(*freed);
            *freed = sum;
        }
    }
    streams
}
