//! The calendar: the months that budgets are for.
//!
//! Owns where a month begins, in UTC. Reads no clock.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::units::UnixMillis;

/// When the calendar month of `at` began, in UTC; `at` itself when it is no date.
#[must_use]
pub fn month_start(at: UnixMillis) -> UnixMillis {
    let start = || {
        let here = Timestamp::from_millisecond(at.0)
            .ok()?
            .to_zoned(TimeZone::UTC);
        here.first_of_month().ok()?.start_of_day().ok()
    };
    start().map_or(at, |start| UnixMillis(start.timestamp().as_millisecond()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> UnixMillis {
        UnixMillis(text.parse::<Timestamp>().unwrap().as_millisecond())
    }

    #[test]
    fn a_month_begins_at_its_first_midnight() {
        for (text, start) in [
            ("2026-11-30T23:59:59.999Z", "2026-11-01T00:00:00Z"),
            ("2026-12-01T00:00:00Z", "2026-12-01T00:00:00Z"),
            ("2028-02-29T12:00:00Z", "2028-02-01T00:00:00Z"),
        ] {
            assert_eq!(month_start(at(text)), at(start), "{text}");
        }
    }
}
