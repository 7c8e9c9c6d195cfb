//! Spending: what placements cost a tenant in a calendar month.
//!
//! Owns the sum of one tenant and one month, and its integers. What ended is entered whole, what
//! runs now and then; what has not been entered yet the caller adds. Never reads a clock, never
//! decides what happens when a budget is used up (see `quota`).

use meridian_api::calendar::month_start;
use meridian_api::units::{MicroMoney, UnixMillis};
use serde::{Deserialize, Serialize};

/// Milliseconds of an hour, in which prices are.
const HOUR: i128 = 3_600_000;

/// Money spent in one month. As stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spending {
    /// When the month began.
    month: UnixMillis,
    /// Spent in it.
    spent: MicroMoney,
}

impl Spending {
    /// Enters what cost `per_hour` from one instant to another. Only what is in the month of `to`
    /// counts, and nothing of a month that is older than what was entered last.
    pub fn add(&mut self, per_hour: MicroMoney, from: UnixMillis, to: UnixMillis) {
        let month = month_start(to);
        if month < self.month {
            return;
        }
        let before = self.in_month_of(to);
        let spent = cost(per_hour, from, to);
        *self = Self {
            month,
            spent: MicroMoney(before.0.saturating_add(spent.0)),
        };
    }

    /// What was entered for the month of `now`.
    #[must_use]
    pub fn in_month_of(&self, now: UnixMillis) -> MicroMoney {
        if month_start(now) == self.month {
            self.spent
        } else {
            MicroMoney::default()
        }
    }
}

/// The part of a cost per hour, from one instant to another, that falls into the month of `to`.
#[must_use]
pub fn cost(per_hour: MicroMoney, from: UnixMillis, to: UnixMillis) -> MicroMoney {
    let from = from.max(month_start(to));
    let millis = i128::from(to.since(from).0);
    let cost = i128::from(per_hour.0).saturating_mul(millis) / HOUR;
    MicroMoney(i64::try_from(cost).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-01T00:00:00Z.
    const NOVEMBER: i64 = 1_793_491_200_000;
    const DAY: i64 = 24 * 3_600_000;

    fn day(day: i64) -> UnixMillis {
        UnixMillis(NOVEMBER + day * DAY)
    }

    #[test]
    fn a_month_counts_what_is_in_it() {
        let (mut spending, per_hour) = (Spending::default(), MicroMoney(2_000_000));
        spending.add(per_hour, day(-3), day(1));
        assert_eq!(spending.in_month_of(day(1)), MicroMoney(48_000_000));
        spending.add(per_hour, day(2), day(3));
        assert_eq!(spending.in_month_of(day(29)), MicroMoney(96_000_000));
        assert_eq!(
            spending.in_month_of(day(30)),
            MicroMoney(0),
            "December is another"
        );
        spending.add(per_hour, day(29), day(31));
        assert_eq!(spending.in_month_of(day(31)), MicroMoney(48_000_000));
        let before = spending;
        spending.add(per_hour, day(5), day(6));
        assert_eq!(spending, before, "November is over");
    }

    #[test]
    fn absurd_amounts_stop_at_the_largest() {
        let mut spending = Spending::default();
        for _ in 0..2 {
            spending.add(MicroMoney(i64::MAX), day(0), day(29));
        }
        assert_eq!(spending.in_month_of(day(1)), MicroMoney(i64::MAX));
        assert_eq!(cost(MicroMoney(7), day(2), day(1)), MicroMoney(0));
    }
}
