//! Randomness from one seed, or from the machine.
//!
//! Owns the only source of random bits. In simulation everything that looks random (UIDs,
//! jitter, credentials) follows from the seed.

use std::sync::{Arc, Mutex, PoisonError};

use meridian_api::ids::Uid;
use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore, SeedableRng};

/// A shared stream of random bits.
#[derive(Clone, Debug)]
pub struct Random(Arc<Mutex<ChaCha8Rng>>);

impl Random {
    /// The same stream for the same seed, on every machine.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(ChaCha8Rng::seed_from_u64(seed))))
    }

    /// A stream nobody can guess.
    #[must_use]
    pub fn from_machine() -> Self {
        Self(Arc::new(Mutex::new(ChaCha8Rng::from_os_rng())))
    }

    /// 64 random bits.
    #[must_use]
    pub fn next_u64(&self) -> u64 {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .next_u64()
    }

    /// Fills `bytes`.
    pub fn fill(&self, bytes: &mut [u8]) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .fill_bytes(bytes);
    }

    /// A number in `0..bound`; 0 when `bound` is 0. By multiplication, so that its bias is below
    /// `bound / 2^64`.
    #[must_use]
    pub fn below(&self, bound: u64) -> u64 {
        let wide = u128::from(self.next_u64()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or(0)
    }

    /// A version 4 UUID (RFC 9562).
    #[must_use]
    pub fn uid(&self) -> Uid {
        let random = (u128::from(self.next_u64()) << 64) | u128::from(self.next_u64());
        let version = 0x4_u128 << 76;
        let variant = 0b10_u128 << 62;
        let keep = !((0xf_u128 << 76) | (0b11_u128 << 62));
        Uid((random & keep) | version | variant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_one_stream() {
        let (a, b) = (Random::seeded(7), Random::seeded(7));
        assert!((0..100).all(|_| a.next_u64() == b.next_u64()));
        assert_ne!(Random::seeded(8).next_u64(), Random::seeded(7).next_u64());
    }

    #[test]
    fn a_uid_is_a_version_4_uuid() {
        let text = Random::seeded(1).uid().to_string();
        assert_eq!(&text[14..15], "4");
        assert!(matches!(&text[19..20], "8" | "9" | "a" | "b"));
    }

    #[test]
    fn below_stays_below() {
        let random = Random::seeded(3);
        assert!((0..1000).all(|_| random.below(10) < 10));
        assert_eq!(random.below(0), 0);
    }
}
