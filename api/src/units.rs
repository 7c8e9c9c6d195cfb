//! Units: newtypes for everything that is counted, so that a mebibyte is never added to a GPU.
//!
//! Owns the arithmetic on quantities. All of it is checked: an overflow is an error with both
//! numbers, never a wrap. Never parses user documents (see `quantity`).

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident($inner:ty), $suffix:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
            Serialize, Deserialize, JsonSchema,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl $name {
            /// Zero of this unit.
            pub const ZERO: Self = Self(0);

            /// Sum, or `None` when it does not fit.
            #[inline]
            #[must_use]
            pub const fn checked_add(self, other: Self) -> Option<Self> {
                match self.0.checked_add(other.0) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// Difference, or `None` when it does not fit (for an unsigned unit: below zero).
            #[inline]
            #[must_use]
            pub const fn checked_sub(self, other: Self) -> Option<Self> {
                match self.0.checked_sub(other.0) {
                    Some(difference) => Some(Self(difference)),
                    None => None,
                }
            }

            /// Product with a plain factor, or `None` when it does not fit.
            #[inline]
            #[must_use]
            pub const fn checked_mul(self, factor: $inner) -> Option<Self> {
                match self.0.checked_mul(factor) {
                    Some(product) => Some(Self(product)),
                    None => None,
                }
            }

            /// Difference that stops at the unit's smallest value.
            #[inline]
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }

            /// Sum that stops at the unit's largest value.
            #[inline]
            #[must_use]
            pub const fn saturating_add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{}", $suffix), self.0)
            }
        }
    };
}

unit!(
    /// GPUs in thousandths: a whole card is 1000, a slice is less.
    MilliGpus(u64), "m"
);
unit!(
    /// Host CPU in thousandths of a core, as Kubernetes counts it.
    MilliCpus(u64), "m"
);
unit!(
    /// Host memory in mebibytes.
    Mebibytes(u64), "Mi"
);
unit!(
    /// A span of time in milliseconds.
    Millis(u64), "ms"
);
unit!(
    /// An instant of the wall clock, in milliseconds since the Unix epoch. Wall clocks of two
    /// machines are never compared for safety.
    UnixMillis(i64), "ms"
);
unit!(
    /// An instant of the boot clock: monotonic, counts suspend, meaningful on one machine only.
    BootMillis(u64), "ms"
);
unit!(
    /// Money in millionths of the price book's currency.
    MicroMoney(i64), "u"
);

impl MilliGpus {
    /// Thousandths in one card.
    pub const PER_CARD: u64 = 1000;

    /// `cards` whole cards; stops at the largest value.
    #[must_use]
    pub const fn cards(cards: u64) -> Self {
        Self(cards.saturating_mul(Self::PER_CARD))
    }

    /// Whole cards in this amount, rounded down.
    #[must_use]
    pub const fn whole(self) -> u64 {
        self.0 / Self::PER_CARD
    }

    /// True when it is a whole number of cards.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        self.0.is_multiple_of(Self::PER_CARD)
    }
}

impl Millis {
    /// `seconds` in milliseconds; stops at the largest value.
    #[must_use]
    pub const fn seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1000))
    }
}

impl UnixMillis {
    /// This instant plus a span; stops at the largest instant.
    #[must_use]
    pub const fn after(self, span: Millis) -> Self {
        Self(self.0.saturating_add_unsigned(span.0))
    }

    /// Time from `earlier` to this instant; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Millis {
        let span = self.0.saturating_sub(earlier.0);
        Millis(if span < 0 { 0 } else { span.unsigned_abs() })
    }
}

impl BootMillis {
    /// This instant plus a span; stops at the largest instant.
    #[must_use]
    pub const fn after(self, span: Millis) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// Time from `earlier` to this instant; zero when `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

/// What one pod asks of a host, or what one host has: GPUs, CPU and memory as a vector.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// GPUs, in thousandths.
    pub gpus: MilliGpus,
    /// CPU, in thousandths of a core.
    pub cpu: MilliCpus,
    /// Memory, in mebibytes.
    pub memory: Mebibytes,
}

impl Resources {
    /// Sum of each component, or `None` when one does not fit.
    #[inline]
    #[must_use]
    pub fn checked_add(self, other: Self) -> Option<Self> {
        Some(Self {
            gpus: self.gpus.checked_add(other.gpus)?,
            cpu: self.cpu.checked_add(other.cpu)?,
            memory: self.memory.checked_add(other.memory)?,
        })
    }

    /// Difference of each component, or `None` when one would go below zero.
    #[inline]
    #[must_use]
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        Some(Self {
            gpus: self.gpus.checked_sub(other.gpus)?,
            cpu: self.cpu.checked_sub(other.cpu)?,
            memory: self.memory.checked_sub(other.memory)?,
        })
    }

    /// Each component times `factor`, or `None` when one does not fit.
    #[inline]
    #[must_use]
    pub fn checked_mul(self, factor: u64) -> Option<Self> {
        Some(Self {
            gpus: self.gpus.checked_mul(factor)?,
            cpu: self.cpu.checked_mul(factor)?,
            memory: self.memory.checked_mul(factor)?,
        })
    }

    /// True when `request` fits in this much.
    #[inline]
    #[must_use]
    pub fn covers(self, request: Self) -> bool {
        self.gpus >= request.gpus && self.cpu >= request.cpu && self.memory >= request.memory
    }

    /// How many times `request` fits in this much; `u64::MAX` for an empty request.
    #[inline]
    #[must_use]
    pub fn times(self, request: Self) -> u64 {
        if !self.covers(request) {
            return 0;
        }
        let times = |have: u64, want: u64| have.checked_div(want).unwrap_or(u64::MAX);
        times(self.gpus.0, request.gpus.0)
            .min(times(self.cpu.0, request.cpu.0))
            .min(times(self.memory.0, request.memory.0))
    }
}
