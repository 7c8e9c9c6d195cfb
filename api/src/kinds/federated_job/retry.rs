//! How the gangs of a job end, and when they are started again.
//!
//! Owns these fields and their checks. Which cause an end had is the agent's to say.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Role;
use super::validate::{MAX_RESTARTS, no_such_role};
use crate::errors::FieldReason;
use crate::quantity::Span;
use crate::units::Millis;
use crate::validate::Findings;

/// Longest wait before a start: by then a person has looked, or will not.
pub const MAX_BACK_OFF: Millis = Millis::seconds(24 * 3600);

/// When a gang has ended well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SuccessPolicy {
    /// Whose end counts.
    pub rule: SuccessRule,
    /// With `Leader`: the role whose rank 0 leads; absent = the first role of the gang.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

/// Whose end decides about a gang.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SuccessRule {
    /// Every pod must end well.
    #[default]
    All,
    /// When the leader has ended well, the others are stopped.
    Leader,
}

/// When the gangs of a job are started again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Retry {
    /// Most starts after a gang failed, each gang by itself.
    pub max_restarts: u32,
    /// What exit codes mean; the first rule that names the code counts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exit_codes: Vec<ExitRule>,
    /// What other ends mean; without a rule they start the gang again and do not count.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<CauseRule>,
    /// How long a gang that ended waits before it starts again; absent = from 1 s to 5 min.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub back_off: Option<BackOff>,
}

/// How long a gang waits before it starts again: `initial` after its first failure in a row,
/// twice as long after each further one, at most `limit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BackOff {
    /// After the first failure.
    pub initial: Span,
    /// At most.
    pub limit: Span,
}

impl BackOff {
    /// The wait after so many ends in a row: none after none.
    #[must_use]
    pub fn after(&self, ends: u32) -> Millis {
        let Some(doublings) = ends.checked_sub(1) else {
            return Millis::ZERO;
        };
        let factor = 1_u64.checked_shl(doublings).unwrap_or(u64::MAX);
        Millis(self.initial.0.0.saturating_mul(factor).min(self.limit.0.0))
    }
}

/// What an end that is not the job's own doing means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CauseRule {
    /// Which.
    pub cause: EndCause,
    /// What follows.
    pub action: CauseAction,
}

/// Ends of a gang that are not an exit of its user code.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum EndCause {
    /// Its pods were removed by somebody else, or by a node short of memory or disk.
    Evicted,
    /// A node went away under it.
    NodeLost,
    /// A GPU under it failed.
    DeviceFault,
}

/// What follows an end that is not the job's own doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CauseAction {
    /// The gang has failed for good.
    Fail,
    /// It starts again, and that does not count.
    Restart,
    /// It starts again, and that counts as one of `maxRestarts`.
    Count,
}

/// What some exit codes mean.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExitRule {
    /// Exit codes, not zero.
    pub codes: Vec<i32>,
    /// What follows.
    pub action: ExitAction,
}

/// What follows an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExitAction {
    /// The gang has failed for good.
    Fail,
    /// It starts again, and that does not count.
    Restart,
}

impl Retry {
    pub(super) fn check(&self, found: &mut Findings) {
        if self.max_restarts > MAX_RESTARTS {
            let message = format!("is {}, must be at most {MAX_RESTARTS}", self.max_restarts);
            found.invalid("spec.retry.maxRestarts", message);
        }
        let mut seen = std::collections::BTreeSet::new();
        for (index, rule) in self.exit_codes.iter().enumerate() {
            let path = format!("spec.retry.exitCodes[{index}].codes");
            if rule.codes.is_empty() {
                found.add(&path, FieldReason::Required, "must have at least one code");
            }
            for code in &rule.codes {
                if !(1..=255).contains(code) {
                    found.invalid(&path, format!("{code} is no exit code from 1 to 255"));
                } else if !seen.insert(code) {
                    found.add(
                        &path,
                        FieldReason::Duplicate,
                        format!("{code} is there twice"),
                    );
                }
            }
        }
        let mut causes = std::collections::BTreeSet::new();
        for (index, rule) in self.causes.iter().enumerate() {
            if !causes.insert(rule.cause) {
                let path = format!("spec.retry.causes[{index}].cause");
                let message = format!("{:?} is there twice", rule.cause);
                found.add(&path, FieldReason::Duplicate, message);
            }
        }
        if let Some(wait) = self.back_off {
            let path = "spec.retry.backOff.initial";
            found.span(path, Some(wait.initial), Millis::ZERO, MAX_BACK_OFF);
            let path = "spec.retry.backOff.limit";
            found.span(path, Some(wait.limit), wait.initial.0, MAX_BACK_OFF);
        }
    }

    /// What an end with this cause means.
    #[must_use]
    pub fn on(&self, cause: EndCause) -> CauseAction {
        let rule = self.causes.iter().find(|rule| rule.cause == cause);
        rule.map_or(CauseAction::Restart, |rule| rule.action)
    }
}

impl SuccessPolicy {
    pub(super) fn check(&self, roles: &[Role], found: &mut Findings) {
        let Some(role) = &self.role else { return };
        if self.rule == SuccessRule::All {
            let message = "names a leader and rule All asks for every pod: use rule Leader";
            found.invalid("spec.successPolicy.role", message);
        }
        if !roles.iter().any(|known| known.name == *role) {
            found.push(no_such_role("spec.successPolicy.role", role, roles));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_its_limit() {
        let wait = BackOff {
            initial: Span(Millis::seconds(10)),
            limit: Span(Millis::seconds(60)),
        };
        let waits = [0, 1, 2, 3, 4, 64, u32::MAX].map(|ends| wait.after(ends).0);
        assert_eq!(waits, [0, 10_000, 20_000, 40_000, 60_000, 60_000, 60_000]);
    }
}
