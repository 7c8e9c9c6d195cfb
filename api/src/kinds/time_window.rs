//! `TimeWindow`: spans of days and clock times in one IANA zone.
//!
//! Owns its shape and its checks. Never asks what time it is.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::meta::{Condition, Object, Spec};
use crate::quantity::Time;

/// A time window.
pub type TimeWindow = Object<TimeWindowSpec, TimeWindowStatus>;

impl Spec for TimeWindowSpec {
    const KIND: &'static str = "TimeWindow";
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
        let two = |part: &str| match part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit()) {
            true => part.parse::<u16>().ok(),
            false => None,
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
