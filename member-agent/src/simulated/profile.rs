//! How a simulated cluster behaves: its delays and its faults, drawn from a seed.
//!
//! Owns the draws. Each is a hash of the seed and of what it is drawn for, not the next number of
//! a stream: so it does not depend on the order of events, and a restarted cluster draws the same.

use meridian_api::units::Millis;
use serde::{Deserialize, Serialize};

use super::state::PodId;

/// A span of time with a shortest and a longest value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Between {
    /// Shortest.
    pub least: Millis,
    /// Longest.
    pub most: Millis,
}

impl Between {
    /// From `least` to `most` milliseconds.
    #[must_use]
    pub const fn millis(least: u64, most: u64) -> Self {
        Self {
            least: Millis(least),
            most: Millis(most),
        }
    }
}

/// Delays and faults of a simulated cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Profile {
    /// One call of the cluster's API.
    pub call: Between,
    /// From the order to the node's admission.
    pub bind: Between,
    /// From the open gate to user code: image pull, mounts, device set-up.
    pub start: Between,
    /// From SIGTERM to the exit of a process that heeds it.
    pub stop: Between,
    /// From a checkpoint request to the checkpoint.
    pub checkpoint: Between,
    /// From a node's death to the cluster's notice of it.
    pub node_notice: Between,
    /// Of 1000 pods, how many a node turns away though it seemed to have room.
    pub refusals_per_mille: u16,
    /// Of 1000 pods, how many fail before user code starts.
    pub start_failures_per_mille: u16,
    /// Of 1000 calls, how many are carried out but never answered.
    pub lost_answers_per_mille: u16,
}

impl Default for Profile {
    /// A healthy cluster: an API answers in milliseconds, an image that is on the node starts in
    /// seconds, and the node monitor's default grace is 40 s after missed 10 s beats.
    fn default() -> Self {
        Self {
            call: Between::millis(2, 10),
            bind: Between::millis(20, 200),
            start: Between::millis(1_000, 8_000),
            stop: Between::millis(100, 5_000),
            checkpoint: Between::millis(1_000, 10_000),
            node_notice: Between::millis(30_000, 50_000),
            refusals_per_mille: 0,
            start_failures_per_mille: 0,
            lost_answers_per_mille: 0,
        }
    }
}

/// What something is drawn for. The numbers are part of the seed's meaning: never reuse one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    Bind = 1,
    Start = 2,
    Stop = 3,
    Checkpoint = 4,
    Refusal = 5,
    StartFailure = 6,
    Notice = 7,
    Call = 8,
    LostAnswer = 9,
}

/// Draws for one cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Draw(pub(super) u64);

impl Draw {
    /// 64 bits for `purpose` about `about`.
    fn bits(self, purpose: For, about: &[u64]) -> u64 {
        let seeded = mix(self.0 ^ mix(purpose as u64));
        about.iter().fold(seeded, |hash, part| mix(hash ^ part))
    }

    /// A span within `between`.
    pub(super) fn span(self, purpose: For, about: &[u64], between: Between) -> Millis {
        let width = u128::from(between.most.saturating_sub(between.least).0) + 1;
        let offset = (u128::from(self.bits(purpose, about)) * width) >> 64;
        between
            .least
            .saturating_add(Millis(u64::try_from(offset).unwrap_or(0)))
    }

    /// True in `per_mille` of 1000 cases.
    pub(super) fn chance(self, purpose: For, about: &[u64], per_mille: u16) -> bool {
        self.bits(purpose, about) % 1000 < u64::from(per_mille)
    }
}

/// The parts of a pod's identity that a draw is about.
pub(super) fn about(pod: &PodId) -> [u64; 6] {
    let job = pod.key.gang.job.0;
    [
        u64::try_from(job >> 64).unwrap_or(0),
        u64::try_from(job & u128::from(u64::MAX)).unwrap_or(0),
        u64::from(pod.key.gang.index),
        pod.key.epoch.0,
        text(&pod.name),
        pod.name.len() as u64,
    ]
}

/// A text as bits to draw from: FNV-1a.
pub(super) fn text(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_stay_in_bounds_and_differ() {
        let between = Between::millis(10, 20);
        let draws: Vec<u64> = (0..100)
            .map(|n| Draw(1).span(For::Bind, &[n], between).0)
            .collect();
        assert!(draws.iter().all(|draw| (10..=20).contains(draw)));
        assert!(draws.contains(&10) && draws.contains(&20));
        assert_eq!(Draw(1).span(For::Bind, &[5], between), Millis(draws[5]));
        assert!(!Draw(1).chance(For::Refusal, &[1], 0) && Draw(1).chance(For::Refusal, &[1], 1000));
    }
}
