//! Bids: pools that could hold a gang, by what they are at best.
//!
//! Owns the order in which they are looked into. Never searches a pool.

use std::cmp::Reverse;

use meridian_api::units::Resources;

use crate::model::{GangShape, RoleShape, Score};

/// What a score cannot fall below, field by field as in [`Score`], then what ends the tie.
pub(super) type Bound = (u32, u32, u32, u32, u64, u32, u64, u32, u64, u64);

/// What a gang asks for in its smallest and its largest size.
pub(super) struct Size {
    pub(super) least: Resources,
    pub(super) most: Resources,
    pub(super) is_rigid: bool,
    /// It is rigid, and its one role may stand anywhere.
    pub(super) is_plain: bool,
}

impl Size {
    pub(super) fn new(shape: &GangShape) -> Self {
        let (least, most) = (shape.least(), shape.most());
        let is_rigid = least == most;
        let anywhere = |role: &RoleShape| {
            role.required.is_none() && role.preferred.is_none() && role.slice.is_none()
        };
        Self {
            least: shape.demand(&least),
            most: shape.demand(&most),
            is_rigid,
            is_plain: is_rigid && shape.roles.len() == 1 && shape.roles.iter().all(anywhere),
        }
    }
}

/// A pool that could hold the gang.
pub(super) struct Bid {
    pub(super) bound: Bound,
    /// Place among the candidates.
    pub(super) order: u32,
    /// Place among the budgets.
    pub(super) budget: usize,
}

/// Pools that could hold the gang, the one that is best at best first.
pub(super) struct Bids {
    pub(super) left: Vec<Bid>,
    /// How many were taken; two for more.
    taken: u8,
    /// By what quota counts alike.
    pub(super) budgets: Few<u32, Resources>,
}

impl Bids {
    /// None of `most` at most.
    pub(super) fn new(most: usize) -> Self {
        Self {
            left: Vec::with_capacity(most),
            taken: 0,
            budgets: Few::new(),
        }
    }

    /// What quota leaves for the gang there, at most what it asks for.
    pub(super) fn budget(&self, bid: &Bid) -> Resources {
        self.budgets.0[bid.budget].1
    }

    /// Takes the one that is best at best.
    pub(super) fn next(&mut self) -> Option<Bid> {
        let key = |bid: &Bid| (bid.bound, bid.order);
        match self.taken {
            // Mostly the first is all that is looked at, so order is made for a second.
            0 => {
                let all = self.left.iter().enumerate();
                let (at, _) = all.min_by_key(|(_, bid)| key(bid))?;
                self.taken = 1;
                return Some(self.left.swap_remove(at));
            }
            1 => {
                self.left.sort_unstable_by_key(|bid| Reverse(key(bid)));
                self.taken = 2;
            }
            _ => {}
        }
        self.left.pop()
    }
}

/// A few answers by key.
pub(super) struct Few<K, V>(Vec<(K, V)>);

impl<K: PartialEq, V: Copy> Few<K, V> {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// The answer; made the first time.
    pub(super) fn get(&mut self, key: K, make: impl FnOnce() -> V) -> V {
        self.find(key, make).1
    }

    /// The same, with its place among the answers.
    pub(super) fn find(&mut self, key: K, make: impl FnOnce() -> V) -> (usize, V) {
        if let Some(at) = self.0.iter().position(|(known, _)| *known == key) {
            return (at, self.0[at].1);
        }
        let value = make();
        self.0.push((key, value));
        (self.0.len() - 1, value)
    }
}

/// What the score is at least, of a score that is known.
pub(super) const fn bound_of(score: &Score) -> Bound {
    (
        score.shunned,
        score.region_order,
        score.wishes_missed,
        score.flavor_first,
        score.measure,
        score.flavor_order,
        score.short_of_max,
        score.preferences_missed,
        score.left_on_hosts,
        score.left_in_pool,
    )
}
