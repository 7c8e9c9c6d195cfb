//! Openings: which pools might hold which shapes, told by a few words for each look.
//!
//! Owns bounds that are cheap and never wrong: what they refuse finds no place. Never places.

use crate::decide::Round;
use crate::model::{PoolIx, WaitingIx};
use crate::place::PoolBits;
use crate::pools::PoolState;
use crate::quota::Reach;
use crate::tree::CARDS;

use meridian_api::units::Resources;

/// What the smallest size of a shape needs.
#[derive(Clone, Copy, Debug)]
struct Least {
    all: Resources,
    /// Whole cards, begun ones counted, that one host must have free.
    cards: usize,
}

/// What is known of shapes and pools.
pub(super) struct Openings {
    /// By cards: pools with a host that has as many free.
    roomy: Vec<PoolBits>,
    /// By shape.
    least: Vec<Option<Least>>,
}

impl Openings {
    pub(super) fn new(pools: &[PoolState]) -> Self {
        let mut own = Self {
            roomy: vec![PoolBits::none(pools.len()); CARDS],
            least: Vec::new(),
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

    /// False when no gang of the look finds a place: each pool that it may use is known to have no
    /// room for its smallest size, or quota there does not reach.
    pub(super) fn may_place(
        &mut self,
        round: &mut Round<'_>,
        look: u32,
        one: WaitingIx,
        reach: Reach,
    ) -> bool {
        let gang = round.gang(one);
        if gang.suspended {
            return false;
        }
        let shape = round.kinds.looks()[look as usize].shape;
        let least = self.least_of(shape, || {
            let pods = gang.shape.least();
            let roles = gang.shape.roles.iter().zip(&pods);
            let needed = roles.filter(|(_, pods)| **pods > 0);
            let cards = needed.map(|(role, _)| role.per_pod.gpus.0.div_ceil(1000));
            let cards = usize::try_from(cards.max().unwrap_or(0)).unwrap_or(usize::MAX);
            Least {
                all: gang.shape.demand(&pods),
                cards: cards.min(CARDS - 1),
            }
        });
        let asked = round.asked(one);
        let mut openings = asked.openings.iter();
        openings.any(|(place, pools)| {
            round
                .places
                .may_hold(shape, pools, &self.roomy[least.cards])
                && round
                    .ledger
                    .room(gang.tenant, *place, reach)
                    .covers(least.all)
        })
    }

    fn least_of(&mut self, shape: u32, make: impl FnOnce() -> Least) -> Least {
        let at = shape as usize;
        if self.least.len() <= at {
            self.least.resize(at + 1, None);
        }
        *self.least[at].get_or_insert_with(make)
    }
}
