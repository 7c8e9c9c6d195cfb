//! Causes: every reason why a gang was left waiting, with its numbers.
//!
//! Owns the explanation of a round, made at its end from the room and quota that are left, once
//! for all gangs that are alike. Never changes what was decided.

mod hosts;
mod quota;
mod rooms;

use std::collections::BTreeMap;
use std::sync::Arc;

use meridian_api::reasons::Reason;

use crate::decide::Round;
use crate::kinds::Kind;
use crate::model::{Cause, Estimate, Reasons, Shared, Unplaced, WaitingIx, Words};
use crate::names::Names;
use crate::quota::Reach;
use crate::slots::Mask;
use crate::starts::Starts;

pub(crate) use quota::OverQuota;
use quota::{Families, job_limit, kept_quota, per_job};
use rooms::Rooms;

/// Says for each of `left` why it waits; keeps their order.
pub(crate) fn explain(round: &mut Round<'_>, left: &[WaitingIx]) -> Vec<Unplaced> {
    let mut known = Known::new(round);
    let mut starts = Starts::new(round);
    let apart = Apart::new(&round.apart());
    let mut unplaced = Vec::with_capacity(left.len());
    for &ix in left {
        let look = round.kinds.look(ix);
        if let Some(said) = known.said[look].as_mut().filter(|_| !apart.has(ix)) {
            let mut start = None;
            if said.for_room {
                start = starts.again(look);
                // Once nothing comes free for it, nothing does for those after it.
                said.for_room = start.is_some();
            }
            unplaced.push(Unplaced {
                waiting: ix,
                reasons: Shared::clone(&said.reasons),
                start,
            });
            continue;
        }
        let (said, is_for_all) = say(round, &mut known, &mut starts, ix);
        if is_for_all && !apart.has(ix) {
            known.said[look] = Some(Said {
                reasons: Shared::clone(&said.reasons),
                for_room: starts.is_for_room(look, &said.reasons),
            });
        }
        unplaced.push(said);
    }
    unplaced
}

/// Says why one gang waits, and whether the same is true of all that look alike.
fn say(
    round: &mut Round<'_>,
    known: &mut Known,
    starts: &mut Starts,
    ix: WaitingIx,
) -> (Unplaced, bool) {
    let (reasons, promised) = why(round, known, ix);
    let is_promised = promised.is_some();
    let told = Unplaced {
        waiting: ix,
        start: promised.or_else(|| starts.of(round, ix, &reasons)),
        reasons,
    };
    let limits_jobs = round.ledger.limits_jobs(round.gang(ix).tenant);
    (told, !is_promised && !limits_jobs)
}

/// Why one gang waits; when it starts, if room is made for it.
fn why(round: &mut Round<'_>, known: &mut Known, ix: WaitingIx) -> (Reasons, Option<Estimate>) {
    let (look, gang) = (round.kinds.look(ix), round.gang(ix));
    if gang.suspended {
        return (Shared::clone(&known.suspended), None);
    }
    if let Some((cause, start)) = round.waits_for(ix) {
        return (vec![cause.into()].into(), Some(start));
    }
    let own = known.reasons(round, ix, look);
    let reasons = match job_limit(round, gang) {
        Some(limit) => sorted(own.iter().cloned().chain([limit.into()])),
        None => own,
    };
    (reasons, None)
}

/// Says for each of these why it waits, and not when it may start.
pub(crate) fn reasons(round: &mut Round<'_>, of: &[WaitingIx]) -> Vec<Reasons> {
    let mut known = Known::new(round);
    let all = of.iter().map(|ix| why(round, &mut known, *ix).0);
    all.collect()
}

fn sorted(causes: impl Iterator<Item = Shared<Cause>>) -> Reasons {
    let mut causes: Vec<Shared<Cause>> = causes
        .filter(|cause| cause.reason != Reason::PendingEvaluation)
        .collect();
    causes.sort();
    causes.into()
}

/// The causes sorted. Most differ in reason or place, which are compared beside the causes: these
/// are all over memory.
fn in_order(causes: Vec<Shared<Cause>>) -> Vec<Shared<Cause>> {
    let place = |it: Option<u32>| it.map_or(0, |it| u64::from(it) + 1);
    let key = |it: &Cause| {
        let cluster = place(it.cluster.map(|ix| ix.0));
        (it.reason, cluster, place(it.flavor.map(|ix| ix.0)))
    };
    let mut keyed: Vec<_> = causes.into_iter().map(|it| (key(&it), it)).collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, cause)| cause).collect()
}

/// Gangs of which more is to be said than of those that look like them, one bit each: it is asked
/// of every gang.
struct Apart(Vec<u64>);

impl Apart {
    fn new(apart: &[bool]) -> Self {
        let word = |gangs: &[bool]| {
            let bits = gangs.iter().zip(0_u32..);
            bits.fold(0, |word, (apart, at)| word | (u64::from(*apart) << at))
        };
        Self(apart.chunks(64).map(word).collect())
    }

    fn has(&self, ix: WaitingIx) -> bool {
        let word = self.0.get(ix.index() / 64).copied().unwrap_or(0);
        word >> (ix.index() % 64) & 1 == 1
    }
}

/// What is said of all gangs that look alike.
struct Said {
    reasons: Reasons,
    /// They wait for room, and some comes free for them.
    for_room: bool,
}

/// Reasons as far as they were worked out: once for all gangs that are alike.
struct Known {
    /// By look, for gangs with nothing of their own.
    said: Vec<Option<Said>>,
    suspended: Reasons,
    /// By look, for gangs without a slot.
    by_look: Vec<Option<Reasons>>,
    by_kind: BTreeMap<(Kind, Mask), Reasons>,
    /// Without what only some of those who ask so are told; sorted.
    by_ask: BTreeMap<(u32, Mask), Reasons>,
    rooms: Rooms,
    families: Families,
}

impl Known {
    fn new(round: &Round<'_>) -> Self {
        let suspended = plain(Reason::Suspended, "suspended by a person".to_owned());
        let looks = round.kinds.looks().len();
        let names = Arc::new(Names::new(round.snapshot));
        Self {
            said: (0..looks).map(|_| None).collect(),
            suspended: vec![suspended.into()].into(),
            by_look: vec![None; looks],
            by_kind: BTreeMap::new(),
            by_ask: BTreeMap::new(),
            rooms: Rooms::new(round.snapshot, Arc::clone(&names)),
            families: Families::new(&round.snapshot.tenants, names),
        }
    }

    /// All that keeps gangs like this one, sorted; without what depends on the one job.
    fn reasons(&mut self, round: &mut Round<'_>, ix: WaitingIx, look: usize) -> Reasons {
        let owns_slot = round.slot_of(ix).is_some();
        if let Some(known) = self.by_look[look].as_ref().filter(|_| !owns_slot) {
            return Shared::clone(known);
        }
        let mask = round.mask_of(ix, Reach::Borrowing);
        if owns_slot {
            return self.of_kind(round, ix, mask);
        }
        let kind = (round.kinds.of(ix).kind, mask);
        let known = self.by_kind.get(&kind).cloned();
        let reasons = known.unwrap_or_else(|| self.of_kind(round, ix, mask));
        self.by_kind
            .entry(kind)
            .or_insert_with(|| Shared::clone(&reasons));
        self.by_look[look] = Some(Shared::clone(&reasons));
        reasons
    }

    fn of_kind(&mut self, round: &mut Round<'_>, ix: WaitingIx, mask: Mask) -> Reasons {
        let gang = round.gang(ix);
        let mut causes = quota::quota(round, ix, &self.families);
        if causes.is_empty() {
            causes.extend(kept_quota(round, ix, mask, &self.families));
        }
        causes.extend(per_job(round, gang));
        causes.extend(round.copies_cause(ix));
        causes.extend(round.others_causes(ix));
        let ask = (round.kinds.of(ix).ask, mask);
        let rooms = &mut self.rooms;
        let places = self.by_ask.entry(ask);
        let places = places.or_insert_with(|| {
            let mut places = in_order(rooms.of_places(round, ix, mask));
            places.dedup();
            places.into()
        });
        if causes.is_empty() && !places.is_empty() {
            return Shared::clone(places);
        }
        if causes.is_empty() {
            // Nothing keeps it, yet it was not placed: the next round looks again.
            let message = "not looked at yet".to_owned();
            causes.push(plain(Reason::PendingEvaluation, message));
        }
        causes.sort();
        causes.dedup();
        let mut all = Vec::with_capacity(causes.len() + places.len());
        let mut rest = places.as_slice();
        for cause in causes.into_iter().map(Shared::from) {
            let (before, after) = rest.split_at(rest.partition_point(|it| *it < cause));
            all.extend_from_slice(before);
            if after.first() != Some(&cause) {
                all.push(cause);
            }
            rest = after;
        }
        all.extend_from_slice(rest);
        all.into()
    }
}

fn plain(reason: Reason, message: impl Into<Words>) -> Cause {
    Cause {
        reason,
        cluster: None,
        flavor: None,
        amounts: None,
        message: message.into(),
    }
}
