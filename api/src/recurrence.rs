//! Recurrence: the instants at which a schedule starts something.
//!
//! Owns the calendar: cron lines and openings of time windows in an IANA zone. Reads no clock, and
//! never says whether a run is to start.
//!
//! Where clocks go forward, a fixed time inside the gap happens at the first minute after it; where
//! they go back, it happens once, the first time. A cron line with `*` or steps in its hours goes
//! by what the clock shows, so it happens in both of the doubled hours. Vixie cron has it so, too.

use croner::Cron;
use jiff::civil::{Date, Time as Clock};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan as _, Zoned};

use crate::kinds::federated_job::Schedule;
use crate::kinds::time_window::{DAY_MINUTES, TimeWindowSpec};
use crate::units::UnixMillis;

/// Days around an instant in which a window has opened and will open: a week, and one more for each
/// end that is cut.
const WINDOW_DAYS: i64 = 9;

/// When something recurs.
#[derive(Clone, Debug)]
pub struct Recurrence {
    zone: TimeZone,
    rule: Rule,
}

#[derive(Clone, Debug)]
enum Rule {
    Cron(Box<Cron>),
    /// Openings, as (days since Monday, clock).
    Openings(Vec<(u16, Clock)>),
}

/// A schedule says no instants.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRecurrence {
    /// Its window is not there.
    #[error("there is no TimeWindow {0:?}: create it or name another")]
    NoWindow(String),
    /// Its zone is unknown here.
    #[error("there is no time zone {0:?}")]
    NoZone(String),
    /// Its cron line cannot be read, or there is neither line nor window.
    #[error("the schedule has no cron line and no window that can be read")]
    NoRule,
}

impl Recurrence {
    /// The instants of a schedule; `window` is the one that it names, if it is there.
    pub fn of(schedule: &Schedule, window: Option<&TimeWindowSpec>) -> Result<Self, NoRecurrence> {
        let zone = |name: &str| {
            let zone = jiff::tz::db().get(name);
            zone.map_err(|_| NoRecurrence::NoZone(name.to_owned()))
        };
        if let Some(name) = &schedule.window {
            let window = window.ok_or_else(|| NoRecurrence::NoWindow(name.clone()))?;
            let openings = window.week().into_iter().map(|(start, _)| {
                let clock = start % DAY_MINUTES;
                let clock = i8::try_from(clock / 60)
                    .ok()
                    .zip(i8::try_from(clock % 60).ok());
                let clock = clock.and_then(|(hour, minute)| Clock::new(hour, minute, 0, 0).ok());
                (start / DAY_MINUTES, clock.unwrap_or_default())
            });
            return Ok(Self {
                zone: zone(&window.time_zone)?,
                rule: Rule::Openings(openings.collect()),
            });
        }
        let line = schedule.cron.as_deref().unwrap_or_default();
        let cron = line.parse().map_err(|_| NoRecurrence::NoRule)?;
        Ok(Self {
            zone: zone(schedule.time_zone.as_deref().unwrap_or("UTC"))?,
            rule: Rule::Cron(Box::new(cron)),
        })
    }

    /// The first instant after `at`; `None` when there is none any more.
    #[must_use]
    pub fn next_after(&self, at: UnixMillis) -> Option<UnixMillis> {
        let here = self.local(at)?;
        match &self.rule {
            Rule::Cron(cron) => {
                let next = cron.find_next_occurrence(&here, false).ok()?;
                Some(instant(&next))
            }
            Rule::Openings(_) => self.openings(&here).find(|opening| *opening > at),
        }
    }

    /// The last instant that is not after `at`; `None` when there was none.
    #[must_use]
    pub fn last_until(&self, at: UnixMillis) -> Option<UnixMillis> {
        let here = self.local(at)?;
        match &self.rule {
            Rule::Cron(cron) => {
                let last = cron.find_previous_occurrence(&here, true).ok()?;
                Some(instant(&last))
            }
            Rule::Openings(_) => self
                .openings(&here)
                .take_while(|opening| *opening <= at)
                .last(),
        }
    }

    fn local(&self, at: UnixMillis) -> Option<Zoned> {
        let at = Timestamp::from_millisecond(at.0).ok()?;
        Some(at.to_zoned(self.zone.clone()))
    }

    /// Openings of the days around `here`, in order.
    fn openings(&self, here: &Zoned) -> impl Iterator<Item = UnixMillis> {
        let openings = match &self.rule {
            Rule::Openings(openings) => openings.as_slice(),
            Rule::Cron(_) => &[],
        };
        let days = (-WINDOW_DAYS..=WINDOW_DAYS).filter_map(|days| {
            let date = here.date().checked_add(days.days());
            date.ok()
        });
        let mut all: Vec<UnixMillis> = days
            .flat_map(|date| {
                let weekday = date.weekday().to_monday_zero_offset();
                let own = openings
                    .iter()
                    .filter(move |(day, _)| i32::from(*day) == i32::from(weekday));
                own.filter_map(move |(_, clock)| self.opening(date, *clock))
            })
            .collect();
        all.sort_unstable();
        all.into_iter()
    }

    /// The instant at which the clock shows that, or, inside a gap, the first after it.
    fn opening(&self, date: Date, clock: Clock) -> Option<UnixMillis> {
        let shown = date.to_datetime(clock);
        let ambiguous = self.zone.to_ambiguous_timestamp(shown);
        let at = match ambiguous.offset() {
            AmbiguousOffset::Gap { before, .. } => {
                let inside = before.to_timestamp(shown).ok()?;
                let mut changes = self.zone.preceding(inside.checked_add(1.second()).ok()?);
                changes.next()?.timestamp()
            }
            AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. } => {
                ambiguous.earlier().ok()?
            }
        };
        Some(UnixMillis(at.as_millisecond()))
    }
}

fn instant(zoned: &Zoned) -> UnixMillis {
    UnixMillis(zoned.timestamp().as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cron(line: &str, zone: &str) -> Recurrence {
        let schedule = Schedule {
            cron: Some(line.into()),
            time_zone: Some(zone.into()),
            ..Schedule::default()
        };
        Recurrence::of(&schedule, None).unwrap()
    }

    fn at(text: &str) -> UnixMillis {
        UnixMillis(text.parse::<Timestamp>().unwrap().as_millisecond())
    }

    /// The next few instants after `from`.
    fn run(recurrence: &Recurrence, from: &str, count: usize) -> Vec<String> {
        let mut now = at(from);
        let mut found = Vec::new();
        for _ in 0..count {
            now = recurrence.next_after(now).unwrap();
            assert_eq!(recurrence.last_until(now), Some(now));
            assert!(recurrence.last_until(UnixMillis(now.0 - 1)).unwrap() < now);
            found.push(Timestamp::from_millisecond(now.0).unwrap().to_string());
        }
        found
    }

    #[test]
    fn a_night_in_the_spring_gap_runs_when_the_gap_is_over() {
        // In Berlin the clock goes from 02:00 to 03:00 on 29 March 2026, at 01:00 UTC.
        let nightly = cron("30 2 * * *", "Europe/Berlin");
        assert_eq!(
            run(&nightly, "2026-03-27T12:00:00Z", 3),
            [
                "2026-03-28T01:30:00Z",
                "2026-03-29T01:00:00Z",
                "2026-03-30T00:30:00Z"
            ]
        );
    }

    #[test]
    fn a_night_in_the_doubled_hour_runs_once() {
        // On 25 October 2026 the hour from 02:00 comes twice there, from 00:00 and 01:00 UTC.
        let nightly = cron("30 2 * * *", "Europe/Berlin");
        assert_eq!(
            run(&nightly, "2026-10-24T12:00:00Z", 2),
            ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
        );
        let hourly = cron("30 * * * *", "Europe/Berlin");
        assert_eq!(run(&hourly, "2026-10-25T00:00:00Z", 3).len(), 3);
        assert_eq!(
            run(&hourly, "2026-10-24T23:45:00Z", 3),
            [
                "2026-10-25T00:30:00Z",
                "2026-10-25T01:30:00Z",
                "2026-10-25T02:30:00Z"
            ]
        );
    }

    #[test]
    fn a_window_starts_at_each_opening_and_after_a_gap_at_once() {
        let window: TimeWindowSpec = serde_json::from_value(serde_json::json!({
            "timeZone": "Europe/Berlin",
            "open": [
                {"days": ["Sat", "Sun"], "start": "02:15", "end": "05:00"},
                {"days": ["Mon"], "start": "22:00", "end": "06:00"},
            ],
        }))
        .unwrap();
        let schedule = Schedule {
            window: Some("nights".into()),
            ..Schedule::default()
        };
        let recurrence = Recurrence::of(&schedule, Some(&window)).unwrap();
        assert_eq!(
            run(&recurrence, "2026-03-27T12:00:00Z", 4),
            [
                "2026-03-28T01:15:00Z",
                "2026-03-29T01:00:00Z",
                "2026-03-30T20:00:00Z",
                "2026-04-04T00:15:00Z"
            ]
        );
        assert_eq!(
            Recurrence::of(&schedule, None).unwrap_err(),
            NoRecurrence::NoWindow("nights".into())
        );
    }

    #[test]
    fn every_second_around_a_gap_knows_what_is_next() {
        let nightly = cron("30 2 * * *", "Europe/Berlin");
        let (gap, next) = (at("2026-03-29T01:00:00Z"), at("2026-03-30T00:30:00Z"));
        // Around the clock in steps that fall on every millisecond, and seconds near it.
        let coarse = (-7_200_000..=7_200_000_i64).step_by(61_013);
        for millis in coarse.chain((-5_000..=5_000).step_by(250)) {
            let now = UnixMillis(gap.0 + millis);
            let (wanted, last) = if millis < 0 {
                (gap, at("2026-03-28T01:30:00Z"))
            } else {
                (next, gap)
            };
            assert_eq!(nightly.next_after(now), Some(wanted), "{millis} ms after");
            assert_eq!(nightly.last_until(now), Some(last), "{millis} ms after");
        }
    }

    #[test]
    fn a_line_that_never_comes_ends() {
        let never = cron("0 0 30 2 *", "UTC");
        assert_eq!(never.next_after(UnixMillis(0)), None);
        assert_eq!(never.last_until(UnixMillis(0)), None);
    }
}
