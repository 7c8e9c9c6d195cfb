//! History: what a tenant has held, the longer ago the less it counts.
//!
//! Owns the decayed sum in UTC-hour buckets: what was held in an hour counts half after a week.
//! Fixed point throughout. Never reads a clock, never decides what a share is.

use meridian_api::units::{Resources, UnixMillis};
use serde::{Deserialize, Serialize};

use crate::model::Use;

/// Hours after which what was held counts half.
const HALF_LIFE_HOURS: usize = 7 * 24;
/// Milliseconds of an hour.
const HOUR: i64 = 3_600_000;
/// 2^(-1/168) in 64 bits after the point.
const HOURLY: u128 = 18_370_791_886_079_017_691;
/// Sum of the weights of all past hours, in seconds: 3600 / (1 - 2^(-1/168)). What was always
/// held comes out as itself.
const WEIGHT_SECONDS: u64 = 874_343;
/// What was held before that counts less than a millionth: twenty half-lives.
const HORIZON_HOURS: i64 = 20 * 7 * 24;
/// 2^(-k/168) for the hours `k` of a half-life, in 32 bits after the point.
const DECAY: [u64; HALF_LIFE_HOURS] = decay_table();

const fn decay_table() -> [u64; HALF_LIFE_HOURS] {
    let mut table = [0; HALF_LIFE_HOURS];
    let mut power: u128 = 1 << 64;
    let mut hour = 0;
    while hour < table.len() {
        #[expect(clippy::cast_possible_truncation, reason = "at most 2^32")]
        {
            table[hour] = (power >> 32) as u64;
        }
        power = (power * (HOURLY >> 1)) >> 63;
        hour += 1;
    }
    table
}

/// What a tenant has held, in units times seconds. As stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct History {
    /// What runs is entered up to here; what ended is entered whole.
    pub until: UnixMillis,
    /// Hours since the epoch at the start of the newest bucket.
    hour: i64,
    /// Decayed to the start of the newest bucket.
    past: [u64; 3],
    /// The newest bucket.
    newest: [u64; 3],
}

impl History {
    /// Enters what was held from one instant to another.
    pub fn add(&mut self, held: Use, from: UnixMillis, to: UnixMillis) {
        let hour = |at: UnixMillis| at.0.div_euclid(HOUR);
        let mut at = from.0.max((hour(to) - HORIZON_HOURS) * HOUR);
        while at < to.0 {
            let this = at.div_euclid(HOUR);
            let end = (this + 1).saturating_mul(HOUR).min(to.0);
            self.enter(held, this, end.abs_diff(at));
            at = end;
        }
    }

    fn enter(&mut self, held: Use, hour: i64, millis: u64) {
        self.roll(hour);
        let age = self.hour.abs_diff(hour);
        let bucket = if age == 0 {
            &mut self.newest
        } else {
            &mut self.past
        };
        for (sum, rate) in bucket.iter_mut().zip(held.0) {
            let amount = u128::from(rate) * u128::from(millis) / 1000;
            let amount = u64::try_from(amount).unwrap_or(u64::MAX);
            *sum = sum.saturating_add(decayed(amount, age));
        }
    }

    /// Starts the bucket of `hour`, if it is newer than the newest.
    fn roll(&mut self, hour: i64) {
        let passed = hour.saturating_sub(self.hour);
        if passed <= 0 {
            return;
        }
        for (past, newest) in self.past.iter_mut().zip(&mut self.newest) {
            let sum = past.saturating_add(std::mem::take(newest));
            *past = decayed(sum, passed.unsigned_abs());
        }
        self.hour = hour;
    }

    /// What it has held on average, the newest hours weighing most.
    #[must_use]
    pub fn average(&self, now: UnixMillis) -> Use {
        let mut rolled = *self;
        rolled.roll(now.0.div_euclid(HOUR));
        let mut average = Use::default();
        for ((rate, past), newest) in average.0.iter_mut().zip(rolled.past).zip(rolled.newest) {
            *rate = past.saturating_add(newest) / WEIGHT_SECONDS;
        }
        average
    }
}

/// `amount` after so many hours.
fn decayed(amount: u64, hours: u64) -> u64 {
    let hours = usize::try_from(hours).unwrap_or(usize::MAX);
    let halvings = u32::try_from(hours / HALF_LIFE_HOURS).unwrap_or(u32::MAX);
    let part = (u128::from(amount) * u128::from(DECAY[hours % HALF_LIFE_HOURS])) >> 32;
    let part = u64::try_from(part).unwrap_or(u64::MAX);
    part.checked_shr(halvings).unwrap_or(0)
}

/// What counts in shares of `resources` on cards of this worth.
#[must_use]
pub fn use_of(resources: Resources, worth: u64) -> Use {
    let gpus = u128::from(resources.gpus.0) * u128::from(worth) / 1000;
    let gpus = u64::try_from(gpus).unwrap_or(u64::MAX);
    Use([gpus, resources.cpu.0, resources.memory.0])
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 24 * HOUR;

    fn held(gpus: u64) -> Use {
        Use([gpus, 0, 0])
    }

    #[test]
    fn what_was_always_held_comes_out_as_itself() {
        let mut history = History::default();
        history.add(held(8_000), UnixMillis(0), UnixMillis(200 * DAY));
        let average = history.average(UnixMillis(200 * DAY)).0[0];
        assert!((7_950..=8_050).contains(&average), "{average}");
    }

    #[test]
    fn a_week_later_it_counts_half() {
        let mut history = History::default();
        history.add(held(1_000_000), UnixMillis(0), UnixMillis(DAY));
        let then = history.average(UnixMillis(DAY)).0[0];
        let later = history.average(UnixMillis(8 * DAY)).0[0];
        assert!(
            then > 1000 && later.abs_diff(then / 2) <= 1,
            "{then}, {later}"
        );
        assert_eq!(history.average(UnixMillis(400 * DAY)), Use::default());
    }

    #[test]
    fn the_order_of_entries_does_not_matter_much() {
        let spans = [(0, 5 * HOUR), (3 * HOUR, 9 * HOUR + 17), (HOUR / 2, HOUR)];
        let sum = |order: [usize; 3]| {
            let mut history = History::default();
            for index in order {
                let (from, to) = spans[index];
                history.add(held(77_000), UnixMillis(from), UnixMillis(to));
            }
            history.average(UnixMillis(2 * DAY)).0[0]
        };
        assert!(sum([0, 1, 2]).abs_diff(sum([1, 2, 0])) <= 1);
    }

    #[test]
    fn the_table_halves_over_its_length() {
        let (half, last) = (DECAY[84], DECAY[167]);
        assert_eq!(DECAY[0], 1 << 32);
        assert!(((half * half) >> 32).abs_diff(1 << 31) <= 2);
        assert!(last > 1 << 31);
    }
}
