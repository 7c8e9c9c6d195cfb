//! Identities and the numbers that fence: each its own type, none interchangeable.
//!
//! Owns job and gang identity and the four fencing numbers (epoch, generation, term,
//! incarnation) beside the store's revision. Never makes them up: a seed, a clock or the store
//! does.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash,
            Serialize, Deserialize, JsonSchema,
        )]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// A revision of the store: one counter for all keys. Zero means "no such key".
    Revision(u64)
);
number!(
    /// Generation of an intent: the revision of the commit that made it.
    Generation(u64)
);
number!(
    /// A leader's term: the create revision of its election key.
    Term(u64)
);
number!(
    /// One life of one agent process, issued by the hub, one higher at each attach.
    Incarnation(u64)
);
number!(
    /// One history of the store; a restore from backup raises it.
    StoreGeneration(u16)
);
number!(
    /// Epoch of a gang's placement: store generation in the top 16 bits, a counter below. A new
    /// epoch means every older one must be dead.
    Epoch(u64)
);

impl Epoch {
    const COUNTER_BITS: u32 = 48;

    /// The first epoch of a gang under `generation`.
    #[must_use]
    pub const fn first(generation: StoreGeneration) -> Self {
        Self(((generation.0 as u64) << Self::COUNTER_BITS) | 1)
    }

    /// The epoch after this one under `generation`, or `None` when the counter is used up or
    /// `generation` is older than this epoch's own.
    #[must_use]
    pub const fn next(self, generation: StoreGeneration) -> Option<Self> {
        let own = (self.0 >> Self::COUNTER_BITS) as u16;
        if generation.0 > own {
            return Some(Self::first(generation));
        }
        let counter_full = (self.0 << 16) >> 16 == (1 << Self::COUNTER_BITS) - 1;
        if generation.0 < own || counter_full {
            None
        } else {
            Some(Self(self.0 + 1))
        }
    }
}

/// Identity of one object, for ever: a name that is made again is another object. A 128-bit
/// UUID, written in its usual hyphenated form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uid(pub u128);

/// A text is not a UUID.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a UUID of the form 01234567-89ab-cdef-0123-456789abcdef")]
pub struct NotAUid(String);

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = format!("{:032x}", self.0);
        let parts = [
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..],
        ];
        f.write_str(&parts.join("-"))
    }
}

impl FromStr for Uid {
    type Err = NotAUid;

    fn from_str(text: &str) -> Result<Self, NotAUid> {
        let bad = || NotAUid(text.chars().take(64).collect());
        let groups: Vec<&str> = text.split('-').collect();
        let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
        let hex = text
            .bytes()
            .all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
        if lengths != [8, 4, 4, 4, 12] || !hex {
            return Err(bad());
        }
        u128::from_str_radix(&groups.concat(), 16)
            .map(Uid)
            .map_err(|_| bad())
    }
}

impl Serialize for Uid {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Uid {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// One gang: the job's UID and the gang's index in it. For a job of `copies: N` with `k` gangs,
/// gang `j` of copy `i` has index `i * k + j`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct GangId {
    /// The job's UID.
    pub job: Uid,
    /// Index of the gang in the job.
    pub index: u32,
}

impl fmt::Display for GangId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.job, self.index)
    }
}

impl FromStr for GangId {
    type Err = NotAUid;

    fn from_str(text: &str) -> Result<Self, NotAUid> {
        let bad = || NotAUid(text.chars().take(64).collect());
        let (job, index) = text.rsplit_once('/').ok_or_else(bad)?;
        Ok(Self {
            job: job.parse()?,
            index: index.parse().map_err(|_| bad())?,
        })
    }
}
