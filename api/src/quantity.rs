//! Quantities as people write them: `16Gi`, `500m`, `1h30m`, `"2.60"`, `0.5` of a GPU.
//!
//! Owns the text forms of the units and their serde types. A wrong unit is an error that names
//! the right one. Never does arithmetic (see `units`).

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::units::{Mebibytes, MicroMoney, MilliCpus, MilliGpus, Millis, UnixMillis};

/// A text that is not the quantity it should be; says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadQuantity(String);

/// Longest part of a wrong text that an error repeats.
const QUOTED_CHARS: usize = 40;

fn bad(text: &str, noun: &str, hint: &str) -> BadQuantity {
    let short: String = text.chars().take(QUOTED_CHARS).collect();
    BadQuantity(format!("{short:?} is not {noun}: {hint}"))
}

/// Number or string in a document, always as text.
struct TextVisitor(&'static str);

impl serde::de::Visitor<'_> for TextVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_u64<E>(self, number: u64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_i64<E>(self, number: i64) -> Result<String, E> {
        Ok(number.to_string())
    }

    fn visit_f64<E>(self, number: f64) -> Result<String, E> {
        Ok(number.to_string())
    }
}

macro_rules! written {
    (
        $(#[$doc:meta])*
        $name:ident($inner:ty), $noun:literal, $schema:tt, numeric: $numeric:literal
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl From<$inner> for $name {
            fn from(inner: $inner) -> Self {
                Self(inner)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let text = self.to_string();
                match text.parse::<u64>() {
                    Ok(number) if $numeric => serializer.serialize_u64(number),
                    Ok(_) | Err(_) => serializer.serialize_str(&text),
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = deserializer.deserialize_any(TextVisitor($noun))?;
                text.parse().map_err(serde::de::Error::custom)
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
                json_schema!($schema)
            }
        }
    };
}

written!(
    /// GPUs in a document: `8`, or up to three decimals, `0.5`.
    GpuQuantity(MilliGpus), "a number of GPUs such as 8",
    { "x-kubernetes-int-or-string": true }, numeric: true
);
written!(
    /// Host CPU in a document: cores `4`, `2.5`, or thousandths `500m`.
    CpuQuantity(MilliCpus), "a number of CPUs such as 4 or 500m",
    { "x-kubernetes-int-or-string": true }, numeric: false
);
written!(
    /// Host memory in a document: `16Gi`, `512Mi`, `1G`, or bytes. Rounded up to whole MiB.
    MemoryQuantity(Mebibytes), "a quantity of memory such as 16Gi",
    { "x-kubernetes-int-or-string": true }, numeric: false
);
written!(
    /// A span of time in a document: `20m`, `1h30m`, `90s`, `2d`, `500ms`.
    Span(Millis), "a span of time such as 20m",
    { "type": "string" }, numeric: false
);
written!(
    /// Money in a document: a decimal string with up to six decimals, `"2.60"`.
    Money(MicroMoney), "an amount of money such as \"2.60\"",
    { "x-kubernetes-int-or-string": true }, numeric: false
);
written!(
    /// A relative speed in thousandths: `"1.0"` is as fast as the reference, `"0.45"` slower.
    Speed(u32), "a speed such as \"0.45\"",
    { "x-kubernetes-int-or-string": true }, numeric: false
);
written!(
    /// What a card is worth beside the reference card, in thousandths: `"1"` is as much.
    Worth(u32), "a worth such as \"2.4\"",
    { "x-kubernetes-int-or-string": true }, numeric: false
);
written!(
    /// An instant in a document, RFC 3339: `2026-11-26T22:04:00Z`.
    Time(UnixMillis), "an instant such as 2026-11-26T22:04:00Z",
    { "type": "string", "format": "date-time" }, numeric: false
);

/// [`Worth`] of the reference card, and of one that nobody has priced.
pub const REFERENCE_WORTH: Worth = Worth(1000);

/// [`Speed`] of the reference flavor.
pub const SPEED_UNIT: u32 = 1000;

/// Why a decimal number could not be read.
enum BadDecimal {
    NotANumber,
    TooFine,
    TooLarge,
}

/// Reads an unsigned decimal as a count of 10^-`places`. More places than that are an error
/// unless they are zeros.
fn decimal(text: &str, places: usize) -> Result<u64, BadDecimal> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return Err(BadDecimal::NotANumber);
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > places {
        return Err(BadDecimal::TooFine);
    }
    format!("{whole}{fraction:0<places$}")
        .parse()
        .map_err(|_| BadDecimal::TooLarge)
}

/// Writes a count of thousandths as the shortest decimal.
fn write_thousandths(f: &mut fmt::Formatter<'_>, count: u64) -> fmt::Result {
    let text = format!("{}.{:03}", count / 1000, count % 1000);
    f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
}

impl FromStr for GpuQuantity {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        let noun = "a number of GPUs";
        decimal(text, 3)
            .map(|count| Self(MilliGpus(count)))
            .map_err(|error| match error {
                BadDecimal::NotANumber => bad(text, noun, "write cards, for example 8"),
                BadDecimal::TooFine => bad(text, noun, "at most three decimals, for example 0.125"),
                BadDecimal::TooLarge => bad(text, noun, "it is too large"),
            })
    }
}

impl fmt::Display for GpuQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_thousandths(f, self.0.0)
    }
}

impl FromStr for CpuQuantity {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        let (number, places) = match text.strip_suffix('m') {
            Some(thousandths) => (thousandths, 0),
            None => (text, 3),
        };
        let noun = "a number of CPUs";
        decimal(number, places)
            .map(|count| Self(MilliCpus(count)))
            .map_err(|error| match error {
                BadDecimal::NotANumber => bad(
                    text,
                    noun,
                    "use cores or thousandths, for example 4 or 500m",
                ),
                BadDecimal::TooFine => bad(text, noun, "a thousandth of a core (1m) is the least"),
                BadDecimal::TooLarge => bad(text, noun, "it is too large"),
            })
    }
}

impl fmt::Display for CpuQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.0 {
            whole if whole.is_multiple_of(1000) => write!(f, "{}", whole / 1000),
            thousandths => write!(f, "{thousandths}m"),
        }
    }
}

/// Suffixes of memory and their size in bytes, as Kubernetes has them.
const MEMORY_SUFFIXES: [(&str, u64); 11] = [
    ("", 1),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
];
/// Decimals of a memory quantity that are read: enough for `0.5Gi` and its like.
const MEMORY_PLACES: usize = 6;

impl FromStr for MemoryQuantity {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        let noun = "a quantity of memory";
        let end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let Some((_, unit)) = MEMORY_SUFFIXES.iter().find(|(known, _)| *known == suffix) else {
            return Err(bad(text, noun, &memory_hint(number, suffix)));
        };
        let millionths = decimal(number, MEMORY_PLACES).map_err(|error| match error {
            BadDecimal::NotANumber => bad(text, noun, "use Mi or Gi, for example 16Gi"),
            BadDecimal::TooFine => bad(text, noun, "at most six decimals; or use a smaller unit"),
            BadDecimal::TooLarge => bad(text, noun, "it is too large"),
        })?;
        let per_mebibyte = (1_000_000_u128) << 20;
        let mebibytes = (u128::from(millionths) * u128::from(*unit)).div_ceil(per_mebibyte);
        let mebibytes = u64::try_from(mebibytes).map_err(|_| bad(text, noun, "it is too large"))?;
        Ok(Self(Mebibytes(mebibytes)))
    }
}

/// What someone who wrote `16GB` or `512m` most likely meant.
fn memory_hint(number: &str, suffix: &str) -> String {
    let letter = suffix.chars().next().map(|c| c.to_ascii_uppercase());
    match letter {
        Some(c @ ('K' | 'M' | 'G' | 'T' | 'P')) if !number.is_empty() => {
            format!("use Mi or Gi, for example {number}{c}i")
        }
        Some(_) | None => "use Mi or Gi, for example 16Gi".to_owned(),
    }
}

impl fmt::Display for MemoryQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.0 {
            whole if whole > 0 && whole.is_multiple_of(1024) => write!(f, "{}Gi", whole / 1024),
            mebibytes => write!(f, "{mebibytes}Mi"),
        }
    }
}

/// Units of a span, longest first, in milliseconds.
const SPAN_UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

impl FromStr for Span {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        let noun = "a span of time";
        let wrong = || {
            bad(
                text,
                noun,
                "use ms, s, m, h or d, longest first, for example 1h30m",
            )
        };
        let (mut rest, mut total, mut longest) = (text, 0_u64, u64::MAX);
        while !rest.is_empty() {
            let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
            let (number, after) = rest.split_at(digits);
            let letters = after
                .find(|c: char| c.is_ascii_digit())
                .unwrap_or(after.len());
            let (unit, after) = after.split_at(letters);
            let (_, size) = SPAN_UNITS
                .iter()
                .find(|(name, _)| *name == unit)
                .ok_or_else(wrong)?;
            let count: u64 = number.parse().map_err(|_| wrong())?;
            if *size >= longest {
                return Err(wrong());
            }
            let part = count
                .checked_mul(*size)
                .and_then(|part| total.checked_add(part));
            total = part.ok_or_else(|| bad(text, noun, "it is too long"))?;
            (rest, longest) = (after, *size);
        }
        if longest == u64::MAX {
            Err(wrong())
        } else {
            Ok(Self(Millis(total)))
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.0 == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.0.0;
        for (name, size) in SPAN_UNITS {
            if rest >= size {
                write!(f, "{}{name}", rest / size)?;
                rest %= size;
            }
        }
        Ok(())
    }
}

impl FromStr for Money {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        let noun = "an amount of money";
        let (sign, number) = match text.strip_prefix('-') {
            Some(number) => (-1, number),
            None => (1, text),
        };
        let millionths = decimal(number, 6).map_err(|error| match error {
            BadDecimal::NotANumber => bad(
                text,
                noun,
                "write a plain decimal without currency, for example \"2.60\"",
            ),
            BadDecimal::TooFine => {
                bad(text, noun, "at most six decimals, for example \"0.000001\"")
            }
            BadDecimal::TooLarge => bad(text, noun, "it is too large"),
        })?;
        let millionths =
            i64::try_from(millionths).map_err(|_| bad(text, noun, "it is too large"))?;
        Ok(Self(MicroMoney(sign * millionths)))
    }
}

impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0.0 < 0 { "-" } else { "" };
        let (whole, fraction) = {
            let all = self.0.0.unsigned_abs();
            (all / 1_000_000, format!("{:06}", all % 1_000_000))
        };
        let shown = fraction.trim_end_matches('0');
        write!(f, "{sign}{whole}.{shown:0<2}")
    }
}

/// Reads thousandths that fit 32 bits.
fn thousandths(text: &str, noun: &str, example: &str) -> Result<u32, BadQuantity> {
    let wrong = || {
        let hint = format!("up to three decimals, for example \"{example}\"");
        bad(text, noun, &hint)
    };
    let thousandths = decimal(text, 3).map_err(|_| wrong())?;
    u32::try_from(thousandths).map_err(|_| wrong())
}

impl FromStr for Speed {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        thousandths(text, "a speed", "0.45").map(Self)
    }
}

impl FromStr for Worth {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        thousandths(text, "a worth", "2.4").map(Self)
    }
}

impl fmt::Display for Worth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_thousandths(f, self.0.into())
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_thousandths(f, self.0.into())
    }
}

impl FromStr for Time {
    type Err = BadQuantity;

    fn from_str(text: &str) -> Result<Self, BadQuantity> {
        let hint = "use RFC 3339 with a zone, for example 2026-11-26T22:04:00Z";
        let parsed: Result<jiff::Timestamp, _> = text.parse();
        let instant = parsed.map_err(|_| bad(text, "an instant", hint))?;
        Ok(Self(UnixMillis(instant.as_millisecond())))
    }
}

impl fmt::Display for Time {
    /// An instant that no calendar can show is written as the nearest one that it can.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let edge = if self.0.0 < 0 {
            jiff::Timestamp::MIN
        } else {
            jiff::Timestamp::MAX
        };
        write!(
            f,
            "{}",
            jiff::Timestamp::from_millisecond(self.0.0).unwrap_or(edge)
        )
    }
}
