//! Kubernetes quantities as exact integers.
//!
//! Owns the text form (`8`, `500m`, `1056272536Ki`, `1.5Gi`, `1e3`) and the two ways of rounding:
//! what is offered goes down, what is held goes up. Never a float: an amount that does not fit is
//! an error with its text.

use std::fmt;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use meridian_api::units::{Mebibytes, MilliCpus};

/// Longest text that is read: twenty digits of a number of bytes, nine decimals and a suffix.
const LONGEST: usize = 40;
/// Largest power of ten or of two that a suffix or an exponent may name; `Ei` is 2^60, `E` 10^18.
const LARGEST_EXPONENT: u32 = 18;
/// Nano-units in a unit: the finest that Kubernetes writes is `n`.
const NANOS: i128 = 1_000_000_000;
/// Bytes in a mebibyte.
const MEBIBYTE: i128 = 1 << 20;

/// An amount in billionths of its unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Amount(i128);

/// A text that is no quantity, or one that no machine has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Absurd(pub(super) Box<str>);

impl fmt::Display for Absurd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no amount", self.0)
    }
}

impl Amount {
    pub(super) const ZERO: Self = Self(0);

    /// Reads a quantity; below zero is absurd, since nothing has or holds less than nothing.
    pub(super) fn read(quantity: &Quantity) -> Result<Self, Absurd> {
        let text = quantity.0.trim();
        parse(text)
            .filter(|nanos| *nanos >= 0)
            .map(Self)
            .ok_or_else(|| Absurd(text.chars().take(LONGEST).collect()))
    }

    /// Sum; stops at the largest amount.
    pub(super) const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Whole units, the rest dropped.
    pub(super) fn floor(self) -> u64 {
        clamp(self.0 / NANOS)
    }

    /// Whole units, the rest counted as one.
    pub(super) fn ceil(self) -> u64 {
        clamp(up(self.0, NANOS))
    }

    /// As CPU, rounded down.
    pub(super) fn cpu_floor(self) -> MilliCpus {
        MilliCpus(clamp(self.0 / (NANOS / 1000)))
    }

    /// As thousandths of a core, rounded up.
    pub(super) fn milli_ceil(self) -> u64 {
        clamp(up(self.0, NANOS / 1000))
    }

    /// As memory, rounded down.
    pub(super) fn memory_floor(self) -> Mebibytes {
        Mebibytes(clamp(self.0 / (NANOS * MEBIBYTE)))
    }
}

/// Bytes as memory, rounded up.
pub(super) fn memory_ceil(bytes: u128) -> Mebibytes {
    let mebibytes = bytes.div_ceil(MEBIBYTE.unsigned_abs());
    Mebibytes(u64::try_from(mebibytes).unwrap_or(u64::MAX))
}

/// `value` over `unit`, rounded up; both are at least zero.
const fn up(value: i128, unit: i128) -> i128 {
    value / unit + (value % unit != 0) as i128
}

fn clamp(value: i128) -> u64 {
    u64::try_from(value.max(0)).unwrap_or(u64::MAX)
}

/// The amount in billionths; `None` when the text is no quantity or does not fit. A part finer
/// than a billionth is rounded up, as Kubernetes does.
fn parse(text: &str) -> Option<i128> {
    if text.len() > LONGEST {
        return None;
    }
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, suffix) = rest.split_at(end.unwrap_or(rest.len()));
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && decimals.is_empty()) || decimals.contains('.') {
        return None;
    }
    let digits: i128 = format!("{whole}{decimals}").parse().ok()?;
    let (numerator, denominator) = scale(suffix)?;
    let denominator = 10_i128
        .checked_pow(u32::try_from(decimals.len()).ok()?)?
        .checked_mul(denominator)?;
    let nanos = digits.checked_mul(numerator)?.checked_mul(NANOS)?;
    let nanos = up(nanos, denominator);
    Some(if negative { -nanos } else { nanos })
}

/// A suffix as a fraction: `Ki` is 1024/1, `m` 1/1000, `e-3` 1/1000.
fn scale(suffix: &str) -> Option<(i128, i128)> {
    let ten = |exponent: u32| 10_i128.checked_pow(exponent);
    Some(match suffix {
        "" => (1, 1),
        "n" => (1, ten(9)?),
        "u" => (1, ten(6)?),
        "m" => (1, ten(3)?),
        "k" => (ten(3)?, 1),
        "M" => (ten(6)?, 1),
        "G" => (ten(9)?, 1),
        "T" => (ten(12)?, 1),
        "P" => (ten(15)?, 1),
        "E" => (ten(18)?, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        exponent => {
            let exponent: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            if exponent.unsigned_abs() > LARGEST_EXPONENT {
                return None;
            }
            let power = ten(exponent.unsigned_abs())?;
            if exponent < 0 { (1, power) } else { (power, 1) }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Amount> {
        Amount::read(&Quantity(text.to_owned())).ok()
    }

    #[test]
    fn kubelets_write_amounts_like_these() {
        let cpu = |text| read(text).map(Amount::cpu_floor);
        assert_eq!(cpu("96"), Some(MilliCpus(96_000)));
        assert_eq!(cpu("95690m"), Some(MilliCpus(95_690)));
        assert_eq!(cpu("1.5"), Some(MilliCpus(1500)));
        assert_eq!(cpu(".5"), Some(MilliCpus(500)));
        let memory = |text| read(text).map(Amount::memory_floor);
        assert_eq!(memory("1056272536Ki"), Some(Mebibytes(1_031_516)));
        assert_eq!(memory("1.5Gi"), Some(Mebibytes(1536)));
        assert_eq!(memory("2e9"), Some(Mebibytes(1907)));
        assert_eq!(memory("1048576000m"), Some(Mebibytes(1)));
        assert_eq!(memory("129M"), Some(Mebibytes(123)));
        assert_eq!(read("8").map(Amount::floor), Some(8));
    }

    #[test]
    fn what_is_offered_goes_down_and_what_is_held_goes_up() {
        let amount = read("1.0001").expect("reads");
        assert_eq!((amount.floor(), amount.ceil()), (1, 2));
        assert_eq!(amount.milli_ceil(), 1001);
        assert_eq!(amount.cpu_floor(), MilliCpus(1000));
        assert_eq!(memory_ceil(1), Mebibytes(1));
        assert_eq!(memory_ceil(1 << 20), Mebibytes(1));
        assert_eq!(memory_ceil(0), Mebibytes(0));
        let finest = read("0.0000000001").expect("reads");
        assert_eq!(finest, Amount(1), "finer than a billionth counts as one");
    }

    #[test]
    fn what_no_machine_has_is_absurd() {
        let absurd = [
            "",
            "-1",
            "-0.5Gi",
            "eight",
            "8 GPUs",
            "1..2",
            "1.2.3",
            ".",
            "Ki",
            "1e99",
            "1e",
            "1KiB",
            "0x10",
            "9999999999999999999999999999999999999999999",
            "99999999999999999999999999999999999999Ei",
        ];
        for text in absurd {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(read("-0"), Some(Amount::ZERO));
        let largest = read("9999999999Ei").expect("fits");
        assert_eq!(largest.ceil(), u64::MAX, "stops at the largest");
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "[-+]?[0-9.]{0,40}[a-zA-Z]{0,3}[-0-9]{0,3}") {
            let _ = read(&text);
        }

        #[test]
        fn whole_amounts_read_back(bytes in 0_u64..u64::MAX) {
            let amount = read(&bytes.to_string()).expect("reads");
            proptest::prop_assert_eq!((amount.floor(), amount.ceil()), (bytes, bytes));
        }
    }
}
