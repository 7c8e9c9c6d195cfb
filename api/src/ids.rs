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

impl Uid {
    /// Characters of one as text.
    const LENGTH: usize = 36;

    /// Places of the hyphens in it.
    const fn is_hyphen(at: usize) -> bool {
        matches!(at, 8 | 13 | 18 | 23)
    }

    /// The one that a text stands for, if it does.
    fn read(text: &[u8]) -> Option<Self> {
        let text: &[u8; Self::LENGTH] = text.try_into().ok()?;
        let mut bits = 0_u128;
        for (at, byte) in text.iter().enumerate() {
            if Self::is_hyphen(at) {
                if *byte != b'-' {
                    return None;
                }
                continue;
            }
            let digit = char::from(*byte).to_digit(16)?;
            bits = (bits << 4) | u128::from(digit);
        }
        Some(Self(bits))
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = [b'-'; Self::LENGTH];
        let places = (0..Self::LENGTH).filter(|at| !Self::is_hyphen(*at));
        let bytes = self.0.to_be_bytes().into_iter();
        let digits = bytes.flat_map(|byte| [byte >> 4, byte & 0xf]);
        for (at, digit) in places.zip(digits) {
            text[at] = b"0123456789abcdef"[usize::from(digit)];
        }
        f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for Uid {
    type Err = NotAUid;

    fn from_str(text: &str) -> Result<Self, NotAUid> {
        Self::read(text.as_bytes()).ok_or_else(|| NotAUid(text.chars().take(64).collect()))
    }
}

impl Serialize for Uid {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Uid {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Written)
    }
}

/// Reads one where it lies.
struct Written;

impl serde::de::Visitor<'_> for Written {
    type Value = Uid;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Uid, E> {
        text.parse().map_err(E::custom)
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The rule in words: five groups of hexadecimal digits, as many in each as usual.
    fn by_the_rule(text: &str) -> Option<Uid> {
        let groups: Vec<&str> = text.split('-').collect();
        let lengths: Vec<usize> = groups.iter().map(|group| group.len()).collect();
        let digits = groups.concat();
        let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if lengths != [8, 4, 4, 4, 12] || !is_hex {
            return None;
        }
        u128::from_str_radix(&digits, 16).ok().map(Uid)
    }

    proptest! {
        #[test]
        fn a_uid_is_read_as_it_is_written(bits: u128) {
            let text = Uid(bits).to_string();
            prop_assert_eq!(by_the_rule(&text), Some(Uid(bits)));
            prop_assert_eq!(text.parse(), Ok(Uid(bits)));
            prop_assert_eq!(text.to_uppercase().parse(), Ok(Uid(bits)));
            let quoted = serde_json::from_str::<Uid>(&format!("{text:?}"));
            prop_assert_eq!(quoted.ok(), Some(Uid(bits)));
        }

        #[test]
        fn a_text_is_a_uid_by_the_rule_alone(
            bits: u128,
            at in 0..Uid::LENGTH,
            with in "[-+0-9a-gA-G é]{0,2}",
            taken in 0..3_usize,
        ) {
            let mut text = Uid(bits).to_string();
            let end = (at + taken).min(text.len());
            text.replace_range(at..end, &with);
            prop_assert_eq!(text.parse::<Uid>().ok(), by_the_rule(&text), "{}", text);
        }
    }

    #[test]
    fn what_is_no_uid_is_told_as_far_as_it_matters() {
        let long = "é".repeat(99);
        let refused = long.parse::<Uid>().expect_err("no digit");
        assert_eq!(refused, NotAUid("é".repeat(64)));
        for other in ["", "7", "+1234567-89ab-cdef-0123-456789abcdef"] {
            assert_eq!(other.parse::<Uid>(), Err(NotAUid(other.to_owned())));
        }
        assert!(serde_json::from_str::<Uid>("7").is_err());
    }
}
