//! From clock times to instants: when a window opens and closes.
//!
//! Owns the way through the time zone database. Never asks what time it is.

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp};

use super::TimeWindowSpec;
use crate::units::UnixMillis;

/// From an opening until it closes, `until` no longer in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Opening {
    /// Opens.
    pub from: UnixMillis,
    /// Closes.
    pub until: UnixMillis,
}

/// Most weeks that are looked through: two years and a little, more than any caller asks about.
const MAX_WEEKS: i64 = 110;
const WEEK: SignedDuration = SignedDuration::from_hours(7 * 24);

impl TimeWindowSpec {
    /// True when it is open at that instant.
    #[must_use]
    pub fn is_open(&self, at: UnixMillis) -> bool {
        let openings = self.openings(at, UnixMillis(at.0.saturating_add(1)));
        openings.first().is_some_and(|opening| opening.from <= at)
    }

    /// When it opens or closes next after `at`, if that is before `until`.
    #[must_use]
    pub fn next_edge(&self, at: UnixMillis, until: UnixMillis) -> Option<UnixMillis> {
        let openings = self.openings(at, until);
        let edges = openings.iter().flat_map(|it| [it.from, it.until]);
        edges.filter(|edge| *edge > at && *edge < until).min()
    }

    /// Openings that touch `from..until`, in order; those that touch each other merged, none cut.
    /// A clock time in the gap of spring is the first minute after it, one that autumn brings twice
    /// the first of the two. None for a zone that is not in the database.
    #[must_use]
    pub fn openings(&self, from: UnixMillis, until: UnixMillis) -> Vec<Opening> {
        let Ok(zone) = TimeZone::get(&self.time_zone) else {
            return Vec::new();
        };
        let (Ok(first), week) = (Timestamp::from_millisecond(from.0), self.week()) else {
            return Vec::new();
        };
        let today = zone.to_datetime(first).date();
        let monday = i64::from(today.weekday().to_monday_zero_offset());
        // One week earlier: its last opening may reach into this one.
        let before = SignedDuration::from_hours(24 * (monday + 7));
        let Ok(mut monday) = today
            .to_datetime(jiff::civil::Time::midnight())
            .checked_sub(before)
        else {
            return Vec::new();
        };
        let mut openings: Vec<Opening> = Vec::new();
        for _ in 0..MAX_WEEKS {
            let at = |minute: u32| {
                let minutes = SignedDuration::from_mins(i64::from(minute));
                instant(&zone, monday.checked_add(minutes).ok()?)
            };
            for (start, length) in &week {
                let (start, end) = (u32::from(*start), u32::from(*start) + u32::from(*length));
                let (Some(opens), Some(closes)) = (at(start), at(end)) else {
                    return open_after(openings, from);
                };
                if opens >= until {
                    return open_after(openings, from);
                }
                add(
                    &mut openings,
                    Opening {
                        from: opens,
                        until: closes,
                    },
                );
            }
            let Ok(next) = monday.checked_add(WEEK) else {
                break;
            };
            monday = next;
        }
        open_after(openings, from)
    }
}

/// Those that have not closed by `from`.
fn open_after(mut openings: Vec<Opening>, from: UnixMillis) -> Vec<Opening> {
    openings.retain(|opening| opening.until > from);
    openings
}

fn add(openings: &mut Vec<Opening>, next: Opening) {
    // A span that lies in the gap of spring is none.
    if next.until <= next.from {
        return;
    }
    match openings.last_mut() {
        Some(last) if last.until >= next.from => last.until = last.until.max(next.until),
        Some(_) | None => openings.push(next),
    }
}

fn instant(zone: &TimeZone, clock: DateTime) -> Option<UnixMillis> {
    let ambiguous = zone.to_ambiguous_timestamp(clock);
    let at = match ambiguous.offset() {
        AmbiguousOffset::Unambiguous { .. } | AmbiguousOffset::Fold { .. } => ambiguous.earlier(),
        AmbiguousOffset::Gap { .. } => {
            let before = ambiguous.earlier().ok()?;
            Ok(zone.following(before).next()?.timestamp())
        }
    };
    Some(UnixMillis(at.ok()?.as_millisecond()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> UnixMillis {
        let at: Timestamp = text.parse().expect("an instant");
        UnixMillis(at.as_millisecond())
    }

    fn openings(open: serde_json::Value, from: &str, until: &str) -> Vec<(String, String)> {
        let window = TimeWindowSpec {
            time_zone: "Europe/Dublin".into(),
            open: serde_json::from_value(open).expect("spans"),
        };
        let text = |at: UnixMillis| crate::quantity::Time(at).to_string();
        let all = window.openings(at(from), at(until));
        all.iter()
            .map(|opening| (text(opening.from), text(opening.until)))
            .collect()
    }

    fn texts(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let owned = |(a, b): &(&str, &str)| ((*a).to_owned(), (*b).to_owned());
        pairs.iter().map(owned).collect()
    }

    const NIGHTS: &str = r#"[{"days": ["Fri", "Sat", "Sun"], "start": "22:00", "end": "06:00"}]"#;

    #[test]
    fn a_night_is_an_hour_shorter_in_spring_and_longer_in_autumn() {
        let nights: serde_json::Value = serde_json::from_str(NIGHTS).expect("spans");
        // Dublin's clocks go forward at 01:00 on 2026-03-29 and back at 02:00 on 2026-10-25.
        let spring = openings(
            nights.clone(),
            "2026-03-28T12:00:00Z",
            "2026-03-29T12:00:00Z",
        );
        assert_eq!(
            spring,
            texts(&[("2026-03-28T22:00:00Z", "2026-03-29T05:00:00Z")])
        );
        let autumn = openings(nights, "2026-10-24T12:00:00Z", "2026-10-25T12:00:00Z");
        assert_eq!(
            autumn,
            texts(&[("2026-10-24T21:00:00Z", "2026-10-25T06:00:00Z")])
        );
    }

    #[test]
    fn it_is_open_from_its_opening_until_it_closes() {
        let window = TimeWindowSpec {
            time_zone: "Europe/Dublin".into(),
            open: serde_json::from_str(NIGHTS).expect("spans"),
        };
        let edges = ["2026-03-28T22:00:00Z", "2026-03-29T05:00:00Z"].map(at);
        let around = |edge: UnixMillis| [-1, 0].map(|by| window.is_open(UnixMillis(edge.0 + by)));
        assert_eq!(edges.map(around), [[false, true], [true, false]]);
        let noon = at("2026-03-28T12:00:00Z");
        let until = at("2026-03-30T12:00:00Z");
        assert_eq!(window.next_edge(noon, until), Some(edges[0]));
        assert_eq!(window.next_edge(edges[0], until), Some(edges[1]));
        assert_eq!(window.next_edge(noon, edges[0]), None);
    }

    #[test]
    fn times_that_a_clock_shows_never_or_twice() {
        let open = serde_json::json!([{"days": ["Sun"], "start": "01:30", "end": "03:00"}]);
        let spring = openings(open.clone(), "2026-03-29T00:00:00Z", "2026-03-30T00:00:00Z");
        assert_eq!(
            spring,
            texts(&[("2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z")])
        );
        let autumn = openings(open, "2026-10-25T00:00:00Z", "2026-10-26T00:00:00Z");
        assert_eq!(
            autumn,
            texts(&[("2026-10-25T00:30:00Z", "2026-10-25T03:00:00Z")])
        );
        let gap = serde_json::json!([{"days": ["Sun"], "start": "01:10", "end": "01:50"}]);
        assert_eq!(
            openings(gap, "2026-03-29T00:00:00Z", "2026-03-30T00:00:00Z"),
            []
        );
    }

    #[test]
    fn an_opening_that_has_begun_is_not_cut() {
        let nights: serde_json::Value = serde_json::from_str(NIGHTS).expect("spans");
        let now = openings(nights, "2026-11-30T02:00:00Z", "2026-12-04T23:00:00Z");
        let want = [
            ("2026-11-29T22:00:00Z", "2026-11-30T06:00:00Z"),
            ("2026-12-04T22:00:00Z", "2026-12-05T06:00:00Z"),
        ];
        assert_eq!(now, texts(&want));
    }

    #[test]
    fn a_window_that_never_closes_is_one_opening() {
        let always = serde_json::json!([
            {"from": "Mon 00:00", "to": "Thu 00:00"}, {"from": "Wed 12:00", "to": "Mon 00:00"},
        ]);
        let all = openings(always, "2026-11-30T02:00:00Z", "2026-12-30T00:00:00Z");
        assert_eq!(all.len(), 1);
        let (opens, closes) = (all[0].0.as_str(), all[0].1.as_str());
        assert!(opens < "2026-11-30" && closes > "2026-12-30");
    }
}
