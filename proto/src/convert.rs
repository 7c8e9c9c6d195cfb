//! Between wire messages and the nouns: checked on the way in, free on the way out.
//!
//! Owns every conversion that both sides of a session need. What comes in is never trusted: a
//! missing or malformed part is an error that names it.

use meridian_api::ids::{Epoch, GangId, StoreGeneration, Term, Uid};
use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Resources};

use crate::v1;

/// Most gangs made by others that one cluster tells of: twice as many as the largest Kubernetes
/// clusters have nodes, each of which such a gang needs a GPU of. Agents hold back what is beyond.
pub const MAX_OFFERS: usize = 10_000;

/// A message that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A part that must be there is not.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A part is there and wrong.
    #[error("{what} is {found}, expected {expected}")]
    Wrong {
        /// Which part.
        what: &'static str,
        /// What it is.
        found: String,
        /// What it should be.
        expected: &'static str,
    },
}

/// The order in which leaders supersede each other: a later store generation, then a later term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fence {
    /// History of the store.
    pub store_generation: StoreGeneration,
    /// Term of the leader.
    pub term: Term,
}

impl Fence {
    /// True when an order under `self` is not older, in either part, than what `seen` says.
    #[must_use]
    pub fn admits(self, order: Self) -> bool {
        order.store_generation > self.store_generation
            || (order.store_generation == self.store_generation && order.term >= self.term)
    }
}

impl From<Fence> for v1::Fence {
    fn from(fence: Fence) -> Self {
        Self {
            store_generation: u32::from(fence.store_generation.0),
            term: fence.term.0,
        }
    }
}

impl TryFrom<v1::Fence> for Fence {
    type Error = Malformed;

    fn try_from(fence: v1::Fence) -> Result<Self, Malformed> {
        let store_generation =
            u16::try_from(fence.store_generation).map_err(|_| Malformed::Wrong {
                what: "fence.store_generation",
                found: fence.store_generation.to_string(),
                expected: "at most 65535",
            })?;
        Ok(Self {
            store_generation: StoreGeneration(store_generation),
            term: Term(fence.term),
        })
    }
}

/// The fence of an order, which every order carries.
pub fn fence(fence: Option<v1::Fence>) -> Result<Fence, Malformed> {
    fence.ok_or(Malformed::Missing("fence"))?.try_into()
}

impl From<GangId> for v1::Gang {
    fn from(gang: GangId) -> Self {
        Self {
            job: gang.job.0.to_be_bytes().to_vec().into(),
            index: gang.index,
        }
    }
}

impl TryFrom<&v1::Gang> for GangId {
    type Error = Malformed;

    fn try_from(gang: &v1::Gang) -> Result<Self, Malformed> {
        let job: [u8; 16] = gang.job.as_ref().try_into().map_err(|_| Malformed::Wrong {
            what: "gang.job",
            found: format!("{} bytes long", gang.job.len()),
            expected: "16 bytes",
        })?;
        Ok(Self {
            job: Uid(u128::from_be_bytes(job)),
            index: gang.index,
        })
    }
}

/// The gang that a message is about.
pub fn gang(gang: Option<&v1::Gang>) -> Result<GangId, Malformed> {
    gang.ok_or(Malformed::Missing("gang"))?.try_into()
}

/// An epoch, which is never zero.
pub fn epoch(epoch: u64) -> Result<Epoch, Malformed> {
    if epoch == 0 {
        Err(Malformed::Missing("epoch"))
    } else {
        Ok(Epoch(epoch))
    }
}

impl From<Resources> for v1::Resources {
    fn from(resources: Resources) -> Self {
        Self {
            milli_gpus: resources.gpus.0,
            milli_cpus: resources.cpu.0,
            memory_mib: resources.memory.0,
        }
    }
}

impl From<v1::Resources> for Resources {
    fn from(resources: v1::Resources) -> Self {
        Self {
            gpus: MilliGpus(resources.milli_gpus),
            cpu: MilliCpus(resources.milli_cpus),
            memory: Mebibytes(resources.memory_mib),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gang_survives_the_wire() {
        let id = GangId {
            job: Uid(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef),
            index: 7,
        };
        assert_eq!(gang(Some(&id.into())), Ok(id));
    }

    #[test]
    fn malformed_parts_are_named() {
        let short = v1::Gang {
            job: vec![1, 2].into(),
            index: 0,
        };
        let error = gang(Some(&short)).expect_err("too short");
        assert_eq!(
            error.to_string(),
            "gang.job is 2 bytes long, expected 16 bytes"
        );
        assert_eq!(gang(None), Err(Malformed::Missing("gang")));
        assert_eq!(fence(None), Err(Malformed::Missing("fence")));
        assert!(
            fence(Some(v1::Fence {
                store_generation: 70_000,
                term: 1
            }))
            .is_err()
        );
        assert!(epoch(0).is_err());
    }

    #[test]
    fn a_fence_admits_only_what_is_not_older() {
        let at = |generation, term| Fence {
            store_generation: StoreGeneration(generation),
            term: Term(term),
        };
        let seen = at(2, 10);
        assert!(seen.admits(at(2, 10)) && seen.admits(at(2, 11)) && seen.admits(at(3, 1)));
        assert!(!seen.admits(at(2, 9)) && !seen.admits(at(1, 99)));
    }
}
