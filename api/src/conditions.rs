//! Conditions: setting and reading them in a list.
//!
//! Owns the rule that `lastTransitionTime` moves only with `status`. Never decides what holds.

use crate::meta::{Condition, ConditionStatus};
use crate::quantity::Time;
use crate::units::UnixMillis;

/// Puts `condition` into the list, in place of the one of its type. Its time becomes `now`, or
/// stays what it was when `status` is unchanged. Returns whether anything changed.
pub fn set(conditions: &mut Vec<Condition>, mut condition: Condition, now: UnixMillis) -> bool {
    condition.last_transition_time = Some(Time(now));
    let Some(old) = conditions.iter_mut().find(|old| old.kind == condition.kind) else {
        conditions.push(condition);
        return true;
    };
    if old.status == condition.status && old.last_transition_time.is_some() {
        condition.last_transition_time = old.last_transition_time;
    }
    let changed = *old != condition;
    *old = condition;
    changed
}

/// The condition of this type.
pub fn get<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.kind == kind)
}

/// True when there is such a condition and it holds.
pub fn holds(conditions: &[Condition], kind: &str) -> bool {
    get(conditions, kind).is_some_and(|found| found.status == ConditionStatus::True)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(status: ConditionStatus, reason: &str) -> Condition {
        Condition {
            kind: "Placed".into(),
            status,
            reason: reason.into(),
            ..Condition::default()
        }
    }

    #[test]
    fn time_moves_only_with_status() {
        let mut list = Vec::new();
        assert!(set(
            &mut list,
            placed(ConditionStatus::False, "Waiting"),
            UnixMillis(1)
        ));
        assert!(set(
            &mut list,
            placed(ConditionStatus::False, "Fragmented"),
            UnixMillis(2)
        ));
        assert_eq!(list[0].last_transition_time, Some(Time(UnixMillis(1))));
        assert!(!set(
            &mut list,
            placed(ConditionStatus::False, "Fragmented"),
            UnixMillis(3)
        ));
        assert!(!holds(&list, "Placed"));

        assert!(set(
            &mut list,
            placed(ConditionStatus::True, "Fits"),
            UnixMillis(4)
        ));
        assert_eq!(list[0].last_transition_time, Some(Time(UnixMillis(4))));
        assert_eq!(list.len(), 1);
        assert!(holds(&list, "Placed"));
        assert!(!holds(&list, "Complete"));
    }
}
