//! Quantities as people read them: ages, GPUs, reasons.
//!
//! Owns the wording that several commands share. Never measures time.

use meridian_api::quantity::{GpuQuantity, Time};
use meridian_api::units::{MilliGpus, Millis, UnixMillis};
use serde_json::Value;

/// Beats arrive every two seconds; what is older than two of them is marked as old.
pub(crate) const STALE: Millis = Millis::seconds(4);

/// A span in at most two units, coarser as it grows, as `kubectl` writes it.
pub(crate) fn span(span: Millis) -> String {
    let seconds = span.0 / 1000;
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let (days, years) = (hours / 24, hours / 24 / 365);
    let two = |large: u64, unit: char, small: u64, sub: char| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{sub}"),
    };
    match (seconds, minutes, hours, days, years) {
        (0..120, ..) => format!("{seconds}s"),
        (_, 0..10, ..) => two(minutes, 'm', seconds % 60, 's'),
        (_, 0..180, ..) => format!("{minutes}m"),
        (_, _, 0..8, ..) => two(hours, 'h', minutes % 60, 'm'),
        (_, _, 0..48, ..) => format!("{hours}h"),
        (_, _, _, 0..8, _) => two(days, 'd', hours % 24, 'h'),
        (_, _, _, 0..730, _) => format!("{days}d"),
        (.., 0..8) => two(years, 'y', days % 365, 'd'),
        _ => format!("{years}y"),
    }
}

/// Time from `then` to `now`; `-` for an instant that is not set.
pub(crate) fn age(then: UnixMillis, now: UnixMillis) -> String {
    if then == UnixMillis::ZERO {
        "-".to_owned()
    } else {
        span(now.since(then))
    }
}

/// Time since an instant of a document; `-` when there is none.
pub(crate) fn age_of(value: &Value, now: UnixMillis) -> String {
    match value.as_str().and_then(|at| at.parse::<Time>().ok()) {
        Some(at) => age(at.0, now),
        None => "-".to_owned(),
    }
}

/// Cards, with a fraction only where there is one.
pub(crate) fn gpus(milli: u64) -> String {
    GpuQuantity(MilliGpus(milli)).to_string()
}

/// A number of GPUs of a reason; `-` when it was not counted.
pub(crate) fn counted(has_numbers: bool, milli: u64) -> String {
    if has_numbers {
        gpus(milli)
    } else {
        "-".to_owned()
    }
}

/// The text, or `-` for none.
pub(crate) fn or_dash(text: &str) -> String {
    if text.is_empty() { "-" } else { text }.to_owned()
}

/// A scalar of a document as one word; `-` for none.
pub(crate) fn scalar(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => or_dash(text),
        other => other.to_string(),
    }
}

/// `1 job`, `2 jobs`.
pub(crate) fn plural(count: usize, noun: &str) -> String {
    if count == 1 {
        format!("{count} {noun}")
    } else {
        format!("{count} {noun}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_grow_coarser() {
        let cases = [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_100, "3h5m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (315_360_000, "10y"),
        ];
        for (seconds, want) in cases {
            assert_eq!(span(Millis::seconds(seconds)), want, "{seconds}");
        }
    }

    #[test]
    fn what_is_not_known_is_a_dash() {
        assert_eq!(age(UnixMillis(0), UnixMillis(5)), "-");
        assert_eq!(age_of(&Value::Null, UnixMillis(5)), "-");
        assert_eq!(counted(false, 0), "-");
        assert_eq!(counted(true, 500), "0.5");
        assert_eq!(scalar(&Value::Null), "-");
        assert_eq!(plural(1, "job"), "1 job");
    }
}
