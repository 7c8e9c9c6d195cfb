//! Canonical JSON (RFC 8785) and its hash: one text for one value, whatever the order of keys.
//!
//! Owns what template hashes and idempotency keys are bound to. Never parses.

use std::fmt::Write as _;

use serde_json::Value;
use sha2::{Digest, Sha256};

/// The canonical text of a value: no space, keys sorted by their UTF-16 code units, numbers as
/// ECMAScript writes them.
#[must_use]
pub fn to_string(value: &Value) -> String {
    let mut text = String::new();
    write_value(&mut text, value);
    text
}

/// SHA-256 of the canonical text.
#[must_use]
pub fn sha256(value: &Value) -> [u8; 32] {
    Sha256::digest(to_string(value)).into()
}

/// Lower-case hexadecimal of a hash.
#[must_use]
pub fn hex(hash: &[u8; 32]) -> String {
    hash.iter()
        .fold(String::with_capacity(64), |mut text, byte| {
            // Writing to a String cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

fn write_value(text: &mut String, value: &Value) {
    match value {
        Value::Null => text.push_str("null"),
        Value::Bool(true) => text.push_str("true"),
        Value::Bool(false) => text.push_str("false"),
        Value::Number(number) => write_number(text, number),
        Value::String(string) => write_string(text, string),
        Value::Array(items) => {
            text.push('[');
            for (position, item) in items.iter().enumerate() {
                if position > 0 {
                    text.push(',');
                }
                write_value(text, item);
            }
            text.push(']');
        }
        Value::Object(map) => {
            let mut entries: Vec<(&String, &Value)> = map.iter().collect();
            entries.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            text.push('{');
            for (position, (key, item)) in entries.into_iter().enumerate() {
                if position > 0 {
                    text.push(',');
                }
                write_string(text, key);
                text.push(':');
                write_value(text, item);
            }
            text.push('}');
        }
    }
}

/// Integers are written whole, also beyond 2^53, where RFC 8785 would round: two requests that
/// differ must not share a hash.
fn write_number(text: &mut String, number: &serde_json::Number) {
    if number.is_i64() || number.is_u64() {
        let _ = write!(text, "{number}");
        return;
    }
    let Some(float) = number.as_f64() else {
        let _ = write!(text, "{number}");
        return;
    };
    write_float(text, float);
}

/// ECMAScript's Number::toString from the shortest digits that read back the same.
fn write_float(text: &mut String, float: f64) {
    if float == 0.0 {
        text.push('0');
        return;
    }
    let shortest = format!("{float:e}");
    let (mantissa, exponent) = shortest.split_once('e').unwrap_or((&shortest, "0"));
    let negative = mantissa.starts_with('-');
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    // Position of the decimal point behind the first digit of `digits`.
    let point = exponent.parse::<i32>().unwrap_or(0) + 1;
    if negative {
        text.push('-');
    }
    let at = usize::try_from(point).unwrap_or(0);
    if (count..=21).contains(&point) {
        text.push_str(&digits);
        text.extend(std::iter::repeat_n('0', at - digits.len()));
    } else if (1..=21).contains(&point) {
        text.push_str(&digits[..at]);
        text.push('.');
        text.push_str(&digits[at..]);
    } else if (-5..=0).contains(&point) {
        text.push_str("0.");
        text.extend(std::iter::repeat_n(
            '0',
            usize::try_from(-point).unwrap_or(0),
        ));
        text.push_str(&digits);
    } else {
        text.push_str(&digits[..1]);
        if count > 1 {
            text.push('.');
            text.push_str(&digits[1..]);
        }
        let sign = if point > 0 { '+' } else { '-' };
        let _ = write!(text, "e{sign}{}", (point - 1).abs());
    }
}

fn write_string(text: &mut String, string: &str) {
    text.push('"');
    for character in string.chars() {
        match character {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\u{8}' => text.push_str("\\b"),
            '\t' => text.push_str("\\t"),
            '\n' => text.push_str("\\n"),
            '\u{c}' => text.push_str("\\f"),
            '\r' => text.push_str("\\r"),
            control if control < ' ' => {
                let _ = write!(text, "\\u{:04x}", u32::from(control));
            }
            other => text.push(other),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn numbers_are_written_as_ecmascript_does() {
        let cases = [
            (json!(0.0), "0"),
            (json!(-0.0), "0"),
            (json!(1.0), "1"),
            (json!(-1.5), "-1.5"),
            (json!(1e21), "1e+21"),
            (json!(1e20), "100000000000000000000"),
            (json!(333_333_333.333_333_3), "333333333.3333333"),
            (json!(4.5), "4.5"),
            (json!(2e-3), "0.002"),
            (json!(1e-6), "0.000001"),
            (json!(1e-7), "1e-7"),
            (json!(1.25e-9), "1.25e-9"),
            (json!(1.25e30), "1.25e+30"),
            (json!(u64::MAX), "18446744073709551615"),
        ];
        for (value, want) in cases {
            assert_eq!(to_string(&value), want);
        }
    }

    #[test]
    fn keys_are_sorted_by_utf16_and_strings_escaped() {
        // From RFC 8785, section 3.2.3, shortened.
        let value = json!({
            "\u{20ac}": "Euro Sign", "\r": "Carriage Return", "\u{fb33}": "Hebrew",
            "1": "One", "\u{1f600}": "Emoji", "\u{80}": "Control", "\u{f6}": "o"
        });
        let text = to_string(&value);
        let order = [
            "\\r",
            "1",
            "\u{80}",
            "\u{f6}",
            "\u{20ac}",
            "\u{1f600}",
            "\u{fb33}",
        ];
        let found: Vec<usize> = order
            .iter()
            .map(|key| text.find(&format!("\"{key}\":")).unwrap())
            .collect();
        assert!(found.is_sorted(), "{text}");
        assert_eq!(
            to_string(&json!("a\u{1}\"\\/\u{7f}")),
            "\"a\\u0001\\\"\\\\/\u{7f}\""
        );
    }

    #[test]
    fn the_hash_is_the_one_of_the_text() {
        let hash = sha256(&json!({"b": 1, "a": [true, null]}));
        let want = Sha256::digest(br#"{"a":[true,null],"b":1}"#);
        assert_eq!(hash, <[u8; 32]>::from(want));
        assert_eq!(hex(&hash).len(), 64);
        assert_eq!(hex(&[0xab; 32]), "ab".repeat(32));
    }
}
