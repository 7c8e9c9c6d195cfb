//! What was last written into the status of a job, as far as the next status goes on from it.
//!
//! Owns its form in memory: words that alike jobs share, and the times that each has of its own.
//! Everything else of a status is computed anew. Never read by people: they read what is stored.

use std::sync::Arc;

use meridian_api::kinds::federated_job::FederatedJobStatus;
use meridian_api::meta::{Condition, ConditionStatus};
use meridian_api::quantity::Time;
use meridian_api::units::UnixMillis;

use super::alike::Alike;

/// Stands for no time: before any that can be written.
const NEVER: UnixMillis = UnixMillis(i64::MIN);

/// What a status said.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    words: Arc<Words>,
    /// When each condition's status last changed, or `NEVER`.
    since: Box<[UnixMillis]>,
}

/// What alike statuses say.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Words {
    cluster: Box<str>,
    flavor: Box<str>,
    conditions: Vec<Aspect>,
}

/// A condition without its time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Aspect {
    kind: Box<str>,
    status: ConditionStatus,
    reason: Box<str>,
    message: Box<str>,
    observed_generation: Option<i64>,
}

impl Told {
    /// What this status says.
    pub(super) fn new(status: FederatedJobStatus, words: &mut Alike<Words>) -> Self {
        let since = status.conditions.iter();
        let since = since.map(|condition| condition.last_transition_time);
        let since = since.map(|since| since.map_or(NEVER, |time| time.0));
        let since = since.collect();
        let aspect = |condition: Condition| Aspect {
            kind: condition.kind.into(),
            status: condition.status,
            reason: condition.reason.into(),
            message: condition.message.into(),
            observed_generation: condition.observed_generation,
        };
        let said = Words {
            cluster: status.cluster.into(),
            flavor: status.flavor.into(),
            conditions: status.conditions.into_iter().map(aspect).collect(),
        };
        Self {
            words: words.of(said),
            since,
        }
    }

    /// Where it was.
    #[must_use]
    pub(crate) fn cluster(&self) -> &str {
        &self.words.cluster
    }

    /// Hardware there.
    #[must_use]
    pub(crate) fn flavor(&self) -> &str {
        &self.words.flavor
    }

    /// Its conditions.
    #[must_use]
    pub(crate) fn conditions(&self) -> Vec<Condition> {
        let aspects = self.words.conditions.iter().zip(&self.since);
        let condition = |(aspect, since): (&Aspect, &UnixMillis)| Condition {
            kind: aspect.kind.to_string(),
            status: aspect.status,
            reason: aspect.reason.to_string(),
            message: aspect.message.to_string(),
            observed_generation: aspect.observed_generation,
            last_transition_time: (*since != NEVER).then_some(Time(*since)),
        };
        aspects.map(condition).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_come_back_as_they_were_and_alike_ones_are_shared() {
        let status = |at: Option<i64>| FederatedJobStatus {
            cluster: "eu".into(),
            flavor: "h100".into(),
            conditions: vec![Condition {
                kind: "Placed".into(),
                status: ConditionStatus::True,
                reason: "EveryGangPlaced".into(),
                message: "all".into(),
                observed_generation: Some(3),
                last_transition_time: at.map(|at| Time(UnixMillis(at))),
            }],
            ..FederatedJobStatus::default()
        };
        let mut words = Alike::default();
        let told = [Some(1), Some(2), None].map(|at| Told::new(status(at), &mut words));
        for (told, at) in told.iter().zip([Some(1), Some(2), None]) {
            assert_eq!(told.conditions(), status(at).conditions);
            assert_eq!((told.cluster(), told.flavor()), ("eu", "h100"));
            assert!(Arc::ptr_eq(&told.words, &words.of((*told.words).clone())));
        }
    }
}
