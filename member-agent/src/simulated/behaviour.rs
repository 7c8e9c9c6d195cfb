//! What a simulated pod does, told by annotations of its template.
//!
//! Owns the annotation names. A template without them runs until it is stopped, and heeds SIGTERM.

use meridian_api::units::Millis;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How long user code runs before it exits by itself, such as `3600s`, `90m` or `250ms`.
pub const RUNTIME: &str = "meridian.dev/simulated-runtime";
/// Its exit code then; 0 when absent.
pub const EXIT_CODE: &str = "meridian.dev/simulated-exit-code";
/// `"true"`: only SIGKILL ends it.
pub const IGNORES_SIGTERM: &str = "meridian.dev/simulated-ignores-sigterm";

/// Saves its work each time that it has run so long, such as `10m`; absent = only when asked. Rank
/// 0 of a role saves for its gang.
pub const SAVES_EVERY: &str = "meridian.dev/simulated-saves-every";

/// The life of one pod's user code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Behaviour {
    pub(super) runtime: Option<Millis>,
    pub(super) exit_code: i32,
    pub(super) ignores_sigterm: bool,
    pub(super) saves_every: Option<Millis>,
}

impl Behaviour {
    /// Reads it from a pod template; the error names the annotation and its text.
    pub(super) fn of(template: &Value) -> Result<Self, String> {
        let annotation = |name: &str| {
            let value = template.pointer("/metadata/annotations")?.get(name)?;
            Some(
                value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned),
            )
        };
        let bad = |name: &str, text: &str, form: &str| {
            format!("annotation {name} is {text:?}, not {form}")
        };
        let span = |name: &str| {
            let text = annotation(name);
            let span = text.map(|text| {
                duration(&text).ok_or_else(|| bad(name, &text, "a duration such as 90s"))
            });
            span.transpose()
        };
        let runtime = span(RUNTIME)?;
        let saves_every = span(SAVES_EVERY)?;
        if saves_every == Some(Millis::ZERO) {
            return Err(format!(
                "annotation {SAVES_EVERY} is 0, so it would do nothing else"
            ));
        }
        let exit_code = annotation(EXIT_CODE)
            .map(|text| {
                text.parse()
                    .map_err(|_| bad(EXIT_CODE, &text, "an exit code"))
            })
            .transpose()?
            .unwrap_or(0);
        let ignores_sigterm = match annotation(IGNORES_SIGTERM).as_deref() {
            None | Some("false") => false,
            Some("true") => true,
            Some(text) => return Err(bad(IGNORES_SIGTERM, text, "true or false")),
        };
        Ok(Self {
            runtime,
            exit_code,
            ignores_sigterm,
            saves_every,
        })
    }
}

/// A whole number with one of `ms`, `s`, `m`, `h`.
fn duration(text: &str) -> Option<Millis> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    Some(Millis(number.parse::<u64>().ok()?.checked_mul(factor)?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn annotations_are_read_or_named() {
        let of = |annotations| Behaviour::of(&json!({"metadata": {"annotations": annotations}}));
        let all = of(json!({
            RUNTIME: "90s", EXIT_CODE: "3", IGNORES_SIGTERM: "true", SAVES_EVERY: "10m",
        }));
        let expected = Behaviour {
            runtime: Some(Millis(90_000)),
            exit_code: 3,
            ignores_sigterm: true,
            saves_every: Some(Millis(600_000)),
        };
        assert_eq!(all, Ok(expected));
        assert_eq!(Behaviour::of(&json!({})), Ok(Behaviour::default()));
        for bad in [
            json!({RUNTIME: "90"}),
            json!({RUNTIME: "s"}),
            json!({EXIT_CODE: "x"}),
            json!({SAVES_EVERY: "0s"}),
        ] {
            assert!(of(bad).is_err());
        }
    }
}
