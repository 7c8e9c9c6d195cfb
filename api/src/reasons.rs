//! The closed list of reasons: why a job waits, in the order in which they are shown.
//!
//! Owns the words and their order (behaviour, section 9). Never decides which one applies.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Why a job waits. Declared most actionable first; the order is the order of display.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
            Serialize, Deserialize, JsonSchema,
        )]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// Every reason, in order.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The word, as in conditions and metrics.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

reasons! {
    /// A rule of the platform, or of a cluster, forbids it.
    Denied,
    /// It names something that does not exist, or contradicts itself.
    Misconfigured,
    /// A ConfigMap, Secret, account or volume that it names is missing there.
    DependencyMissing,
    /// No cluster could hold it even when empty.
    NeverPlaceable,
    /// Suspended by a person.
    Suspended,
    /// It may only start inside a window that is closed.
    OutsideStartWindow,
    /// It asks for more than its tenant may ever hold.
    ExceedsQuota,
    /// Its tenant holds all that it may at the moment.
    WaitingForQuota,
    /// No pool there has a flavor that it accepts.
    NoMatchingFlavor,
    /// Its data may not or cannot be read there.
    DataNotInRegion,
    /// The cluster is closed to new work.
    ClusterCordoned,
    /// The cluster's agent is not heard.
    ClusterUnreachable,
    /// The room there is kept for others.
    ReservedForOthers,
    /// Enough GPUs are free, but not in the shape that it needs.
    Fragmented,
    /// Not enough GPUs are free.
    WaitingForCapacity,
    /// Work that goes first takes what is free.
    BehindHigherPriority,
    /// Victims are draining for it.
    WaitingForPreemption,
    /// Lent capacity is on its way back to it.
    WaitingForReclaim,
    /// It waits for a checkpoint to be written or copied.
    WaitingForCheckpoint,
    /// The tenant's budget is used up.
    BudgetExhausted,
    /// Not looked at yet.
    PendingEvaluation,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Reason {
    type Err = UnknownReason;

    fn from_str(text: &str) -> Result<Self, UnknownReason> {
        let found = Self::ALL
            .iter()
            .copied()
            .find(|reason| reason.as_str() == text);
        found.ok_or_else(|| UnknownReason(text.chars().take(64).collect()))
    }
}

/// A word that is not on the list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a reason")]
pub struct UnknownReason(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_reads_back() {
        for reason in Reason::ALL {
            assert_eq!(reason.as_str().parse(), Ok(*reason));
        }
        assert!("Pending".parse::<Reason>().is_err());
    }
}
