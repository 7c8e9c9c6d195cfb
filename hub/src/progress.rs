//! How far a job is: which of its gangs are done, and what the next try of the others gets.
//!
//! Owns the stored form (`progress/<job uid>`), compact for arrays of thousands of copies. Written
//! with the placement that it speaks of, in the same transaction. Never says what runs: that is
//! the placements' to say.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use meridian_api::ids::{Epoch, StoreGeneration, Uid};
use meridian_api::kinds::federated_job::BackOff;
use meridian_api::quantity::Span;
use meridian_api::reasons::Reason;
use meridian_api::units::{Millis, UnixMillis};
use meridian_policies::model::EvictedBy;
use serde::{Deserialize, Serialize};

use crate::rare::Rare;

/// Progress of one job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct JobProgress {
    /// Gangs that ended well.
    #[serde(skip_serializing_if = "IndexSet::is_empty")]
    pub succeeded: IndexSet,
    /// Gangs that failed for good.
    #[serde(skip_serializing_if = "IndexSet::is_empty")]
    pub failed: IndexSet,
    /// Gangs that were placed before and wait again.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub tried: Rare<BTreeMap<u32, Tried>>,
    /// When gangs made room for others lately.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub evictions: Rare<BTreeMap<u32, Vec<Eviction>>>,
    /// Clusters that lack what the job depends on, or whose rules deny it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub lacking: Rare<BTreeMap<String, Lack>>,
    /// When the first gang first ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<UnixMillis>,
    /// When the newest gang ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<UnixMillis>,
    /// Everything that the schedule says up to this instant has been dealt with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs_seen: Option<UnixMillis>,
    /// The instant of the newest run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_scheduled: Option<UnixMillis>,
    /// It was told that its `finishBy` will be missed, and that was not taken back since.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub miss_told: bool,
    /// Why the newest failure happened.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_failure: Rare<String>,
}

/// A gang made room for another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Eviction {
    /// When it had gone.
    pub at: UnixMillis,
    /// Job that got the room.
    pub by: Uid,
    /// Work that was lost: seconds of a reference card, in thousandths.
    pub lost: u64,
}

/// Evictions of one gang that are remembered: more than it can have in the hour in which they
/// count.
const MAX_EVICTIONS: usize = 4;

/// What a cluster lacks of what a job depends on, or why it denies the job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lack {
    /// `DependencyMissing` or `Denied`.
    #[serde(default = "missing")]
    pub reason: Reason,
    /// What is missing, or which rule, for a person.
    pub message: String,
    /// How often in a row it was.
    pub times: u32,
    /// Looked for again from then on.
    pub until: UnixMillis,
}

fn missing() -> Reason {
    Reason::DependencyMissing
}

/// Clusters of which a job keeps what they lack; beyond that the oldest news goes. A job is tried
/// in a few clusters a minute, and the record must stay small.
const MAX_LACKING: usize = 64;

/// What earlier placements of a gang leave behind. Stored as a list of four numbers: a job of
/// thousands of gangs that all wait again must fit one value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    from = "(Epoch, u32, u32, UnixMillis)",
    into = "(Epoch, u32, u32, UnixMillis)"
)]
pub struct Tried {
    /// Epoch of the newest.
    pub epoch: Epoch,
    /// Restarts used of those that the job allows.
    pub restarts: u32,
    /// Starts after the first, whatever the cause.
    pub starts: u32,
    /// Not placed again before this.
    pub not_before: UnixMillis,
}

impl From<(Epoch, u32, u32, UnixMillis)> for Tried {
    fn from((epoch, restarts, starts, not_before): (Epoch, u32, u32, UnixMillis)) -> Self {
        Self {
            epoch,
            restarts,
            starts,
            not_before,
        }
    }
}

impl From<Tried> for (Epoch, u32, u32, UnixMillis) {
    fn from(tried: Tried) -> Self {
        (tried.epoch, tried.restarts, tried.starts, tried.not_before)
    }
}

/// Pause between tries of a job that does not say: a cluster which refuses does not spin the hub, a
/// short fault costs a second, and a healed cause is unseen for five minutes at most.
pub const PAUSE: BackOff = BackOff {
    initial: Span(Millis::seconds(1)),
    limit: Span(Millis::seconds(300)),
};

/// Pause before a cluster that lacked a dependency is asked again: somebody creates what is
/// missing within seconds of reading about it, or next week.
const LOOK_AGAIN: BackOff = BackOff {
    initial: Span(Millis::seconds(10)),
    limit: Span(Millis::seconds(300)),
};

impl Tried {
    /// Counts an ended placement of `epoch`; the next waits the longer, the more there were.
    pub fn again(&mut self, epoch: Epoch, spends_restart: bool, now: UnixMillis, pause: BackOff) {
        self.epoch = self.epoch.max(epoch);
        self.restarts = self.restarts.saturating_add(u32::from(spends_restart));
        self.starts = self.starts.saturating_add(1);
        self.not_before = now.after(pause.after(self.starts));
    }
}

impl JobProgress {
    /// Nothing has come of the job.
    pub(crate) const fn none() -> Self {
        Self {
            succeeded: IndexSet(Rare::none()),
            failed: IndexSet(Rare::none()),
            tried: Rare::none(),
            evictions: Rare::none(),
            lacking: Rare::none(),
            started: None,
            ended: None,
            runs_seen: None,
            last_scheduled: None,
            miss_told: false,
            last_failure: Rare::none(),
        }
    }

    /// Notes what `cluster` lacks or denies; it is asked again the later, the more often it was so.
    pub fn lacks(&mut self, cluster: &str, reason: Reason, message: String, now: UnixMillis) {
        let lack = self.lacking.entry(cluster.to_owned());
        let lack = lack.or_insert_with(|| Lack {
            reason,
            message: String::new(),
            times: 0,
            until: now,
        });
        lack.reason = reason;
        lack.times = lack.times.saturating_add(1);
        lack.until = now.after(LOOK_AGAIN.after(lack.times));
        lack.message = message;
        while self.lacking.len() > MAX_LACKING {
            let oldest = self.lacking.iter().min_by_key(|(_, lack)| lack.until);
            let Some(name) = oldest.map(|(name, _)| name.clone()) else {
                return;
            };
            self.lacking.remove(&name);
        }
    }

    /// Notes that a gang made room for a job.
    pub fn made_room(&mut self, index: u32, eviction: Eviction) {
        let evictions = self.evictions.entry(index).or_default();
        evictions.push(eviction);
        let over = evictions.len().saturating_sub(MAX_EVICTIONS);
        evictions.drain(..over);
    }

    /// For whom a gang made room lately.
    #[must_use]
    pub fn evicted_by(&self, index: u32) -> Vec<EvictedBy> {
        let evictions = self.evictions.get(&index).into_iter().flatten();
        let by = |it: &Eviction| EvictedBy {
            job: it.by,
            at: it.at,
        };
        evictions.map(by).collect()
    }

    /// The epoch of the gang's next placement; `None` when the counter is used up.
    #[must_use]
    pub fn next_epoch(&self, index: u32, generation: StoreGeneration) -> Option<Epoch> {
        match self.tried.get(&index) {
            Some(tried) => tried.epoch.next(generation),
            None => Some(Epoch::first(generation)),
        }
    }

    /// True when the gang will not be placed again.
    #[must_use]
    pub fn is_over(&self, index: u32) -> bool {
        self.succeeded.contains(index) || self.failed.contains(index)
    }

    /// As stored.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("progress holds only text, numbers and maps")
    }
}

/// A set of indices as ranges; written `0-17,20`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexSet(Rare<Vec<(u32, u32)>>);

impl IndexSet {
    /// True when nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many are in it.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.0
            .iter()
            .fold(0, |sum, (first, last)| sum.saturating_add(last - first + 1))
    }

    /// True when `index` is in it.
    #[must_use]
    pub fn contains(&self, index: u32) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= index);
        after > 0 && self.0[after - 1].1 >= index
    }

    /// Puts `index` in.
    pub fn insert(&mut self, index: u32) {
        if self.contains(index) {
            return;
        }
        let at = self.0.partition_point(|(first, _)| *first <= index);
        let joins_left = at > 0 && self.0[at - 1].1.checked_add(1) == Some(index);
        let joins_right = self
            .0
            .get(at)
            .is_some_and(|next| index.checked_add(1) == Some(next.0));
        match (joins_left, joins_right) {
            (true, true) => {
                self.0[at - 1].1 = self.0[at].1;
                self.0.remove(at);
            }
            (true, false) => self.0[at - 1].1 = index,
            (false, true) => self.0[at].0 = index,
            (false, false) => self.0.insert(at, (index, index)),
        }
    }
}

impl fmt::Display for IndexSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (first, last)) in self.0.iter().enumerate() {
            let comma = if position == 0 { "" } else { "," };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

/// A text is not a set of indices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a set of indices such as 0-17,20")]
pub struct NotIndices(String);

impl FromStr for IndexSet {
    type Err = NotIndices;

    fn from_str(text: &str) -> Result<Self, NotIndices> {
        let bad = || NotIndices(text.chars().take(64).collect());
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let range: (u32, u32) = (
                first.parse().map_err(|_| bad())?,
                last.parse().map_err(|_| bad())?,
            );
            if range.0 > range.1 || ranges.last().is_some_and(|before| before.1 >= range.0) {
                return Err(bad());
            }
            ranges.push(range);
        }
        Ok(Self(ranges.into()))
    }
}

impl Serialize for IndexSet {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for IndexSet {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn indices_merge_into_ranges_whatever_their_order() {
        let mut set = IndexSet::default();
        let mut model = BTreeSet::new();
        // 37 and 101 share no factor: every index below 101 comes once, in a scattered order.
        for step in 0..80_u32 {
            let index = step * 37 % 101;
            set.insert(index);
            set.insert(index);
            model.insert(index);
            assert_eq!(set.len() as usize, model.len());
            assert!((0..=101).all(|index| set.contains(index) == model.contains(&index)));
            assert_eq!(set.to_string().parse(), Ok(set.clone()));
        }
    }

    #[test]
    fn nonsense_is_no_set() {
        for text in ["a", "3-1", "1-2,2-3", "4294967296"] {
            assert!(text.parse::<IndexSet>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_next_epoch_is_above_every_older_one() {
        let mut progress = JobProgress::default();
        let first = progress
            .next_epoch(3, StoreGeneration(1))
            .expect("there is one");
        progress.tried.insert(
            3,
            Tried {
                epoch: first,
                ..Tried::default()
            },
        );
        assert!(
            progress
                .next_epoch(3, StoreGeneration(1))
                .expect("there is one")
                > first
        );
        assert!(
            progress
                .next_epoch(3, StoreGeneration(2))
                .expect("there is one")
                > first
        );
    }

    #[test]
    fn tries_get_rarer_up_to_a_limit() {
        let mut tried = Tried::default();
        let pauses: Vec<u64> = (1..=12)
            .map(|epoch| {
                tried.again(Epoch(epoch), false, UnixMillis(0), PAUSE);
                tried.not_before.since(UnixMillis(0)).0
            })
            .collect();
        assert_eq!(pauses[..4], [1_000, 2_000, 4_000, 8_000]);
        assert_eq!(pauses[11], PAUSE.limit.0.0);
        assert_eq!(
            (tried.starts, tried.restarts, tried.epoch),
            (12, 0, Epoch(12))
        );
    }
}
