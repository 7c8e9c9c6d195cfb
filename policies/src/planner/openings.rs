//! Openings: which pools might hold which looks, told by a few words for each.
//!
//! Owns bounds that are cheap and never wrong: what they refuse finds no place. Never places.

use std::collections::BTreeMap;

use meridian_api::units::Resources;

use crate::bits::PoolBits;
use crate::candidates::choice;
use crate::decide::Round;
use crate::kinds::Look;
use crate::model::{PoolIx, Shape, TenantIx, WaitingIx};
use crate::pools::PoolState;
use crate::preempt::Beneficiaries;
use crate::quota::Reach;
use crate::slots::Mask;
use crate::tree::CARDS;

/// What all gangs of a look have in common, as far as it matters here.
#[derive(Clone, Copy, Debug)]
struct Facts {
    tenant: TenantIx,
    is_suspended: bool,
    /// Where others of its job, or of other jobs, stand decides too.
    minds_others: bool,
    ask: u32,
    shape: u32,
    /// What the smallest size needs in all.
    least: Resources,
    /// Whole cards, begun ones counted, that one host must have free.
    cards: usize,
}

/// What is known of looks and pools.
pub(super) struct Openings {
    /// By cards: pools with a host that has as many free.
    roomy: Vec<PoolBits>,
    /// By look.
    facts: Vec<Option<Facts>>,
    /// Room is held for somebody that waits. Should it get a place elsewhere, room and quota come
    /// back in the middle of a round, so nobody is refused before its turn.
    is_held: bool,
    /// Pools in which slots keep hosts.
    slots: PoolBits,
    /// Most cards free on a host of such a pool, beside the slots that are left alone.
    beside: BTreeMap<(PoolIx, Mask), usize>,
}

fn most_cards(rows: &[Shape]) -> usize {
    let cards = rows.iter().map(|row| row.free.gpus.0.div_ceil(1000));
    usize::try_from(cards.max().unwrap_or(0)).unwrap_or(usize::MAX)
}

impl Openings {
    pub(super) fn new(pools: &[PoolState]) -> Self {
        let mut own = Self {
            roomy: vec![PoolBits::none(pools.len()); CARDS],
            facts: Vec::new(),
            is_held: false,
            slots: PoolBits::none(pools.len()),
            beside: BTreeMap::new(),
        };
        for (pool, state) in (0..).map(PoolIx).zip(pools) {
            own.note(pool, state);
        }
        own
    }

    /// A pool has other room.
    pub(super) fn note(&mut self, pool: PoolIx, state: &PoolState) {
        let most = usize::try_from(state.most_cards()).unwrap_or(usize::MAX);
        for (cards, roomy) in self.roomy.iter_mut().enumerate() {
            roomy.set(pool, most >= cards);
        }
    }

    /// A round begins, in which room is held for these.
    pub(super) fn renew(&mut self, whose: &Beneficiaries) {
        self.is_held = whose.waiting().next().is_some();
    }

    /// False when no gang of the look finds a place, nor would room be looked for: each pool that
    /// it may use is known to have no room for its smallest size, or quota there does not reach.
    /// `one` gives one of them.
    pub(super) fn may_place(
        &mut self,
        round: &mut Round<'_>,
        look: u32,
        one: impl Fn() -> Option<WaitingIx>,
        reach: Reach,
    ) -> bool {
        let at = look as usize;
        if self.is_held || may_search(round) {
            return true;
        }
        if self.facts.len() <= at {
            self.facts.resize(at + 1, None);
        }
        if self.facts[at].is_none() {
            let Some(one) = one() else { return false };
            // From here on what it asks for is worked out.
            round.asked(one);
            let own = round.kinds.looks()[at];
            self.facts[at] = Some(facts(round, one, own));
        }
        let Some(facts) = self.facts[at].filter(|facts| !facts.is_suspended) else {
            return false;
        };
        if facts.minds_others {
            return true;
        }
        let openings = round.places.openings_of(facts.ask).unwrap_or_default();
        let roomy = &self.roomy[facts.cards];
        let mut beside_slots = false;
        for (place, pools) in openings {
            if !round.places.may_hold(facts.shape, pools, roomy) {
                continue;
            }
            let room = round.ledger.room(facts.tenant, *place, reach);
            if !room.covers(facts.least) {
                continue;
            }
            if !pools.meets(&self.slots) {
                return true;
            }
            beside_slots = true;
        }
        beside_slots && one().is_some_and(|one| self.sees_room(round, facts, one, reach))
    }

    /// A turn begins: slots may have moved.
    pub(super) fn begin(&mut self, round: &Round<'_>) {
        self.slots.clear();
        for pool in round.pools_with_slots() {
            self.slots.set(pool, true);
        }
        self.beside.clear();
    }

    /// Somebody was placed: beside slots there is other room.
    pub(super) fn forget_slots(&mut self) {
        self.beside.clear();
    }

    /// True when a pool may hold the gang beside the slots that it must leave alone.
    fn sees_room(
        &mut self,
        round: &mut Round<'_>,
        facts: Facts,
        one: WaitingIx,
        reach: Reach,
    ) -> bool {
        let mask = round.mask_of(one, reach);
        let openings = round.places.openings_of(facts.ask).unwrap_or_default();
        for (place, pools) in openings {
            let room = round.ledger.room(facts.tenant, *place, reach);
            if !room.covers(facts.least) {
                continue;
            }
            let roomy = &self.roomy[facts.cards];
            for pool in round.places.holding(facts.shape, pools, roomy) {
                let bits = round.bits_in(pool, mask);
                let beside = self.beside.entry((pool, bits));
                let cards = beside.or_insert_with(|| most_cards(&round.seen(pool, mask)));
                if bits == 0 || *cards >= facts.cards {
                    return true;
                }
            }
        }
        false
    }
}

/// True while others may be made to go for a gang that finds no place.
fn may_search(round: &Round<'_>) -> bool {
    !round.snapshot.hosts.is_empty() && round.preemptions.may_search()
}

fn facts(round: &Round<'_>, ix: WaitingIx, look: Look) -> Facts {
    let gang = round.gang(ix);
    let pods = gang.shape.least();
    let roles = gang.shape.roles.iter().zip(&pods);
    let needed = roles.filter(|(_, pods)| **pods > 0);
    let cards = needed.map(|(role, _)| role.per_pod.gpus.0.div_ceil(1000));
    let cards = usize::try_from(cards.max().unwrap_or(0)).unwrap_or(usize::MAX);
    Facts {
        tenant: gang.tenant,
        is_suspended: gang.suspended,
        minds_others: choice(round.snapshot, gang).minds_others(),
        ask: look.ask,
        shape: look.shape,
        least: gang.shape.demand(&pods),
        cards: cards.min(CARDS - 1),
    }
}
