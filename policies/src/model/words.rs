//! Words: what a cause says to a person, made when somebody reads it.
//!
//! Owns a text that is kept as what it says until then: a round over a long queue has hundreds of
//! thousands of causes, of which a person reads a few. Compares, prints and travels as the text.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::causes::OverQuota;
use crate::diagnosis::NoRoom;

/// The text of a cause.
#[derive(Clone)]
pub struct Words(Kept);

#[derive(Clone)]
enum Kept {
    Text(Box<str>),
    NoRoom(NoRoom),
    OverQuota(OverQuota),
}

impl Words {
    /// True when the two say the same by what they are kept as, without making a text.
    fn same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kept::Text(one), Kept::Text(other)) => one == other,
            (Kept::NoRoom(one), Kept::NoRoom(other)) => one == other,
            (Kept::OverQuota(one), Kept::OverQuota(other)) => one == other,
            (Kept::Text(_) | Kept::NoRoom(_) | Kept::OverQuota(_), _) => false,
        }
    }
}

impl From<String> for Words {
    fn from(text: String) -> Self {
        Self(Kept::Text(text.into()))
    }
}

impl From<NoRoom> for Words {
    fn from(what: NoRoom) -> Self {
        Self(Kept::NoRoom(what))
    }
}

impl From<OverQuota> for Words {
    fn from(what: OverQuota) -> Self {
        Self(Kept::OverQuota(what))
    }
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kept::Text(text) => f.write_str(text),
            Kept::NoRoom(what) => what.fmt(f),
            Kept::OverQuota(what) => what.fmt(f),
        }
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string(), f)
    }
}

impl PartialEq for Words {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Words {}

impl PartialOrd for Words {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Words {
    fn cmp(&self, other: &Self) -> Ordering {
        if self.same(other) {
            return Ordering::Equal;
        }
        if let (Kept::Text(one), Kept::Text(other)) = (&self.0, &other.0) {
            return one.cmp(other);
        }
        self.to_string().cmp(&other.to_string())
    }
}

impl Serialize for Words {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}
