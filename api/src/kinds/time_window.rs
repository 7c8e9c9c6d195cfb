//! `TimeWindow`: spans of days and clock times in one IANA zone.
//!
//! Owns its shape and its checks. Never asks what time it is.

mod openings;

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::errors::FieldReason;
use crate::meta::{Condition, Object, Spec};
use crate::quantity::Time;
use crate::validate::{Checked, Findings};
pub use openings::Opening;

/// A time window.
pub type TimeWindow = Object<TimeWindowSpec, TimeWindowStatus>;

impl Spec for TimeWindowSpec {
    const KIND: &'static str = "TimeWindow";
    const ABOUT: &'static str = "Spans of days and clock times in one IANA time zone.";
    const PLURAL: &'static str = "timewindows";
    const NAMESPACED: bool = false;
    type Status = TimeWindowStatus;
}

/// When a window is open. Spans that touch or overlap merge.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TimeWindowSpec {
    /// IANA time zone of all clock times: `Europe/Dublin`.
    pub time_zone: String,
    /// When it is open. A start inside the spring gap opens at the first valid minute.
    pub open: Vec<OpenSpan>,
}

/// One span: either `days` with `start` and `end`, or `from` and `to`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OpenSpan {
    /// Days on which the span starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub days: Vec<Day>,
    /// Clock time at which it opens: `22:00`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<ClockTime>,
    /// Clock time at which it closes; at or before the start it is the next day's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<ClockTime>,
    /// Day and clock time at which it opens: `Fri 20:00`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<WeekTime>,
    /// Day and clock time at which it closes: `Mon 06:00`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<WeekTime>,
}

/// A day of the week.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum Day {
    /// Monday.
    Mon,
    /// Tuesday.
    Tue,
    /// Wednesday.
    Wed,
    /// Thursday.
    Thu,
    /// Friday.
    Fri,
    /// Saturday.
    Sat,
    /// Sunday.
    Sun,
}

impl Day {
    /// The week, from Monday.
    pub const ALL: [Self; 7] = [
        Self::Mon,
        Self::Tue,
        Self::Wed,
        Self::Thu,
        Self::Fri,
        Self::Sat,
        Self::Sun,
    ];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mon => "Mon",
            Self::Tue => "Tue",
            Self::Wed => "Wed",
            Self::Thu => "Thu",
            Self::Fri => "Fri",
            Self::Sat => "Sat",
            Self::Sun => "Sun",
        }
    }
}

/// Minutes since midnight on the clock, below 1440.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClockTime(pub u16);

/// Minutes since Monday midnight on the clock, below 10080.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WeekTime(pub u16);

/// Minutes of a day.
pub const DAY_MINUTES: u16 = 24 * 60;
/// Minutes of a week.
pub const WEEK_MINUTES: u16 = 7 * DAY_MINUTES;

/// A text is not a clock time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a {noun}: {hint}")]
pub struct NotATime {
    text: String,
    noun: &'static str,
    hint: &'static str,
}

impl FromStr for ClockTime {
    type Err = NotATime;

    fn from_str(text: &str) -> Result<Self, NotATime> {
        let wrong = || NotATime {
            text: text.chars().take(40).collect(),
            noun: "clock time",
            hint: "use 24-hour HH:MM in quotes, for example \"22:00\"",
        };
        let (hour, minute) = text.split_once(':').ok_or_else(wrong)?;
        let two = |part: &str| {
            let digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
            if digits {
                part.parse::<u16>().ok()
            } else {
                None
            }
        };
        match (two(hour), two(minute)) {
            (Some(hour @ 0..=23), Some(minute @ 0..=59)) => Ok(Self(hour * 60 + minute)),
            (Some(_) | None, Some(_) | None) => Err(wrong()),
        }
    }
}

impl fmt::Display for ClockTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.0 / 60, self.0 % 60)
    }
}

impl FromStr for WeekTime {
    type Err = NotATime;

    fn from_str(text: &str) -> Result<Self, NotATime> {
        let wrong = || NotATime {
            text: text.chars().take(40).collect(),
            noun: "time of the week",
            hint: "use a day and 24-hour HH:MM, for example \"Fri 20:00\"",
        };
        let (day, clock) = text.split_once(' ').ok_or_else(wrong)?;
        let day = (0..).zip(Day::ALL).find(|(_, known)| known.as_str() == day);
        let (number, _) = day.ok_or_else(wrong)?;
        let clock: ClockTime = clock.parse().map_err(|_| wrong())?;
        Ok(Self(number * DAY_MINUTES + clock.0))
    }
}

impl fmt::Display for WeekTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let day = Day::ALL[usize::from(self.0 / DAY_MINUTES % 7)];
        write!(f, "{} {}", day.as_str(), ClockTime(self.0 % DAY_MINUTES))
    }
}

macro_rules! text_form {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }

        impl JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string" })
            }
        }
    };
}

text_form!(ClockTime);
text_form!(WeekTime);

/// What is so with a window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TimeWindowStatus {
    /// Generation of the spec it speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Whether it is open.
    pub open: bool,
    /// When it closes, if it is open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub closes_at: Option<Time>,
    /// When it opens next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_open: Option<Time>,
    /// `Ready`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Most spans of one window: every hour of a week would be 168.
pub const MAX_SPANS: usize = 168;

impl Checked for TimeWindowSpec {
    const SHORT_NAMES: bool = false;

    fn check(&self, found: &mut Findings) {
        found.zone("spec.timeZone", &self.time_zone);
        found.too_many("spec.open", self.open.len(), MAX_SPANS);
        if self.open.is_empty() {
            let message = "is empty, so the window never opens: give at least one span";
            found.add("spec.open", FieldReason::Required, message);
        }
        for (index, span) in self.open.iter().enumerate() {
            span.check(&format!("spec.open[{index}]"), found);
        }
    }

    fn check_update(&self, _new: &Self, _found: &mut Findings) {}
}

impl TimeWindowSpec {
    /// The spans of one week as (first minute, length) since Monday midnight on the clock, sorted;
    /// touching and overlapping ones merged. A window that never closes is one span of a week.
    #[must_use]
    pub fn week(&self) -> Vec<(u16, u16)> {
        let mut open = vec![false; usize::from(WEEK_MINUTES)];
        for (start, length) in self.open.iter().flat_map(OpenSpan::minutes) {
            for minute in start..start + length {
                open[usize::from(minute % WEEK_MINUTES)] = true;
            }
        }
        // Begin behind a closed minute, so that no span is cut at Monday midnight.
        let Some(closed) = (0..WEEK_MINUTES).find(|minute| !open[usize::from(*minute)]) else {
            return vec![(0, WEEK_MINUTES)];
        };
        let mut spans: Vec<(u16, u16)> = Vec::new();
        let mut running = false;
        for step in 1..=WEEK_MINUTES {
            let minute = (closed + step) % WEEK_MINUTES;
            let is_open = open[usize::from(minute)];
            match spans.last_mut() {
                Some((_, length)) if is_open && running => *length += 1,
                Some(_) | None if is_open => spans.push((minute, 1)),
                Some(_) | None => {}
            }
            running = is_open;
        }
        spans.sort_unstable();
        spans
    }
}

impl OpenSpan {
    /// Its spans as (first minute of the week, length); none when it is incomplete.
    fn minutes(&self) -> Vec<(u16, u16)> {
        if let (Some(from), Some(to)) = (self.from, self.to) {
            return vec![(from.0, (to.0 + WEEK_MINUTES - from.0) % WEEK_MINUTES)];
        }
        let (Some(start), Some(end)) = (self.start, self.end) else {
            return Vec::new();
        };
        let length = (end.0 + DAY_MINUTES - start.0) % DAY_MINUTES;
        self.days
            .iter()
            .map(|day| (*day as u16 * DAY_MINUTES + start.0, length))
            .collect()
    }

    fn check(&self, path: &str, found: &mut Findings) {
        let daily = !self.days.is_empty() || self.start.is_some() || self.end.is_some();
        let weekly = self.from.is_some() || self.to.is_some();
        if daily == weekly {
            let message = "give either days, start and end, or from and to";
            return found.invalid(path, message);
        }
        if weekly {
            match (self.from, self.to) {
                (Some(from), Some(to)) if from == to => {
                    let message = format!("from and to are both {from}: an empty span, or a week?");
                    found.invalid(path, message);
                }
                (Some(_), Some(_)) => {}
                (_, None) => found.add(
                    &format!("{path}.to"),
                    FieldReason::Required,
                    "must be given",
                ),
                (None, _) => {
                    found.add(
                        &format!("{path}.from"),
                        FieldReason::Required,
                        "must be given",
                    );
                }
            }
            return;
        }
        if self.days.is_empty() {
            let message = "must be given, for example [Mon, Tue]";
            found.add(&format!("{path}.days"), FieldReason::Required, message);
        }
        for (index, day) in self.days.iter().enumerate() {
            if self.days[..index].contains(day) {
                let path = format!("{path}.days[{index}]");
                found.add(
                    &path,
                    FieldReason::Duplicate,
                    format!("{} is there twice", day.as_str()),
                );
            }
        }
        for (name, time) in [("start", self.start), ("end", self.end)] {
            if time.is_none() {
                let message = "must be given, for example \"22:00\"";
                found.add(&format!("{path}.{name}"), FieldReason::Required, message);
            }
        }
        if let (Some(start), Some(end)) = (self.start, self.end)
            && start == end
        {
            let message = format!(
                "start and end are both {start}: for whole days use from and to, for example from \
                 \"Sat 00:00\" to \"Mon 00:00\""
            );
            found.invalid(path, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(open: serde_json::Value) -> TimeWindowSpec {
        let open = serde_json::from_value(open).unwrap();
        TimeWindowSpec {
            time_zone: "Europe/Dublin".into(),
            open,
        }
    }

    #[test]
    fn spans_merge_over_midnight_and_over_the_week() {
        let nights = window(serde_json::json!([
            {"days": ["Mon", "Tue", "Wed", "Thu"], "start": "22:00", "end": "06:00"},
            {"from": "Fri 20:00", "to": "Mon 06:00"},
        ]));
        let day = DAY_MINUTES;
        let mut want: Vec<(u16, u16)> = (0..4).map(|n| (n * day + 22 * 60, 8 * 60)).collect();
        want.push((4 * day + 20 * 60, 58 * 60));
        assert_eq!(nights.week(), want);

        let touching = window(serde_json::json!([
            {"days": ["Mon"], "start": "08:00", "end": "10:00"},
            {"days": ["Mon"], "start": "10:00", "end": "12:00"},
        ]));
        assert_eq!(touching.week(), [(8 * 60, 4 * 60)]);
    }

    #[test]
    fn a_window_may_be_always_open() {
        let always = window(serde_json::json!([
            {"from": "Mon 00:00", "to": "Thu 00:00"}, {"from": "Wed 12:00", "to": "Mon 00:00"},
        ]));
        assert_eq!(always.week(), [(0, WEEK_MINUTES)]);
        assert_eq!(window(serde_json::json!([])).week(), []);
    }

    #[test]
    fn clock_times_read_back_and_wrong_ones_do_not() {
        for minute in 0..WEEK_MINUTES {
            let time = WeekTime(minute);
            assert_eq!(time.to_string().parse(), Ok(time));
        }
        for wrong in ["24:00", "7:30", "12:60", "12", "12:5", "-1:00", "1٢:00"] {
            assert!(wrong.parse::<ClockTime>().is_err(), "{wrong}");
        }
        for wrong in ["22:00", "Xyz 22:00", "Mon  22:00", "Mon 25:00", "mon 22:00"] {
            assert!(wrong.parse::<WeekTime>().is_err(), "{wrong}");
        }
    }
}
