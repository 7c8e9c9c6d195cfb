//! A part that hardly anything has: it takes the room of a pointer, and more only where it is.
//!
//! Owns that form in memory. To its readers it is the part itself, which may be empty; stored it
//! is the same as the part.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A part that is empty but for a few.
#[derive(Clone, Debug, Default)]
pub struct Rare<T>(Option<Box<T>>);

/// Can be empty, as what is not there.
pub trait Empty: Default + 'static {
    /// Nothing.
    const NOTHING: &'static Self;

    /// True when it is as `NOTHING`.
    fn is_nothing(&self) -> bool;
}

impl<K: 'static, V: 'static> Empty for BTreeMap<K, V> {
    const NOTHING: &'static Self = &Self::new();

    fn is_nothing(&self) -> bool {
        self.is_empty()
    }
}

impl<T: 'static> Empty for Vec<T> {
    const NOTHING: &'static Self = &Self::new();

    fn is_nothing(&self) -> bool {
        self.is_empty()
    }
}

impl Empty for String {
    const NOTHING: &'static Self = &Self::new();

    fn is_nothing(&self) -> bool {
        self.is_empty()
    }
}

impl<T> Rare<T> {
    /// It is not there.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }
}

impl<T: Empty> From<T> for Rare<T> {
    fn from(part: T) -> Self {
        Self((!part.is_nothing()).then(|| Box::new(part)))
    }
}

impl<T: Empty> Deref for Rare<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::NOTHING)
    }
}

impl<T: Empty> DerefMut for Rare<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T: Empty + PartialEq> PartialEq for Rare<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Empty + Eq> Eq for Rare<T> {}

impl<T: Empty + Serialize> Serialize for Rare<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de, T: Empty + Deserialize<'de>> Deserialize<'de> for Rare<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_is_not_there_is_an_empty_one() {
        let mut part: Rare<BTreeMap<u32, u32>> = Rare::none();
        assert!(part.is_empty() && part == Rare::default());
        part.insert(1, 2);
        assert_eq!(part.get(&1), Some(&2));
        part.clear();
        assert_eq!(part, Rare::none());
        let stored = serde_json::to_string(&part).expect("a map");
        let read: Rare<BTreeMap<u32, u32>> = serde_json::from_str(&stored).expect("a map");
        assert!(stored == "{}" && read.0.is_none());
    }
}
