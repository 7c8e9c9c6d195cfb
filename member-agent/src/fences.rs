//! The fences of an order, each compared by itself: which orders this agent will not carry out.
//!
//! Owns the closed list of refusals and the comparisons. An order that is refused here has had no
//! effect of any kind. Never changes what is remembered.

use std::fmt;

use meridian_api::ids::{Epoch, Generation, Incarnation};
use meridian_proto::convert::{Fence, Malformed};
use meridian_proto::v1;

/// Why an order is refused. The words are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RefusalReason {
    /// The order is of an older history of the store.
    StaleStoreGeneration,
    /// The order is of a deposed leader.
    StaleTerm,
    /// The order is for another life of this agent, or of a session that is over.
    StaleIncarnation,
    /// The order was overtaken by one that was processed.
    StaleGeneration,
    /// A higher epoch of the gang is known.
    StaleEpoch,
    /// This very epoch has ended here and will not run again.
    EpochOver,
    /// The order cannot be understood.
    Malformed,
    /// This agent does not speak this part of the protocol.
    Unsupported,
}

impl RefusalReason {
    /// Every reason.
    pub const ALL: &'static [Self] = &[
        Self::StaleStoreGeneration,
        Self::StaleTerm,
        Self::StaleIncarnation,
        Self::StaleGeneration,
        Self::StaleEpoch,
        Self::EpochOver,
        Self::Malformed,
        Self::Unsupported,
    ];
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A refusal with its numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub(crate) struct Refused {
    /// Why.
    pub(crate) reason: RefusalReason,
    /// Words for a person.
    pub(crate) message: String,
}

impl Refused {
    /// Refused for `reason`, told as `message`.
    #[must_use]
    pub(crate) fn new(reason: RefusalReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}

impl From<Malformed> for Refused {
    fn from(error: Malformed) -> Self {
        Self::new(RefusalReason::Malformed, error.to_string())
    }
}

/// Refuses a leader that is older than `highest` in either part.
pub(crate) fn check_fence(order: Option<v1::Fence>, highest: Fence) -> Result<Fence, Refused> {
    let order = meridian_proto::convert::fence(order)?;
    if order.store_generation < highest.store_generation {
        let message = format!(
            "store generation {} is older than {}",
            order.store_generation, highest.store_generation
        );
        return Err(Refused::new(RefusalReason::StaleStoreGeneration, message));
    }
    if !highest.admits(order) {
        let message = format!("term {} is older than {}", order.term, highest.term);
        return Err(Refused::new(RefusalReason::StaleTerm, message));
    }
    Ok(order)
}

/// Refuses an intent that is not for this session, or that a later one has overtaken.
pub(crate) fn check_intent(
    intent: &v1::Intent,
    session: Incarnation,
    processed: Generation,
) -> Result<Generation, Refused> {
    let incarnation = Incarnation(intent.incarnation);
    if incarnation != session {
        let message = format!("incarnation {incarnation} is not this session's {session}");
        return Err(Refused::new(RefusalReason::StaleIncarnation, message));
    }
    let generation = Generation(intent.generation);
    if generation < processed {
        let message = format!("generation {generation} is older than {processed}");
        return Err(Refused::new(RefusalReason::StaleGeneration, message));
    }
    Ok(generation)
}

/// Refuses an epoch below the highest known of the gang.
pub(crate) fn check_epoch(order: Epoch, highest: Epoch) -> Result<(), Refused> {
    if order < highest {
        let message = format!("epoch {order} is older than {highest}");
        return Err(Refused::new(RefusalReason::StaleEpoch, message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use meridian_api::ids::{StoreGeneration, Term};

    use super::*;

    fn fence(generation: u16, term: u64) -> Fence {
        Fence {
            store_generation: StoreGeneration(generation),
            term: Term(term),
        }
    }

    #[test]
    fn each_fence_refuses_by_its_own_name() {
        let reason = |order: Fence| {
            check_fence(Some(order.into()), fence(2, 10)).map_err(|refused| refused.reason)
        };
        assert_eq!(
            reason(fence(1, 99)),
            Err(RefusalReason::StaleStoreGeneration)
        );
        assert_eq!(reason(fence(2, 9)), Err(RefusalReason::StaleTerm));
        assert_eq!(reason(fence(2, 10)), Ok(fence(2, 10)));
        assert_eq!(reason(fence(3, 1)), Ok(fence(3, 1)));
        let missing = check_fence(None, fence(2, 10)).map_err(|refused| refused.reason);
        assert_eq!(missing, Err(RefusalReason::Malformed));
    }

    #[test]
    fn an_intent_is_for_this_session_and_not_overtaken() {
        let reason = |incarnation, generation| {
            let intent = v1::Intent {
                incarnation,
                generation,
                ..v1::Intent::default()
            };
            check_intent(&intent, Incarnation(3), Generation(7)).map_err(|refused| refused.reason)
        };
        assert_eq!(reason(2, 9), Err(RefusalReason::StaleIncarnation));
        assert_eq!(reason(4, 9), Err(RefusalReason::StaleIncarnation));
        assert_eq!(reason(3, 6), Err(RefusalReason::StaleGeneration));
        assert_eq!(reason(3, 7), Ok(Generation(7)));
    }
}
