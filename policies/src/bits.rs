//! Bits: sets of pools as a few words.
//!
//! Owns the layout. Never knows what a bit says.

use crate::model::PoolIx;

/// One bit for each pool, in the order of the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolBits(Vec<u64>);

impl PoolBits {
    /// No pool of `pools`.
    pub(crate) fn none(pools: usize) -> Self {
        Self(vec![0; pools.div_ceil(64)])
    }

    /// Clears all bits.
    pub(crate) fn clear(&mut self) {
        self.0.fill(0);
    }

    /// True when the two have a pool in common.
    pub(crate) fn meets(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).any(|(a, b)| a & b != 0)
    }

    /// Sets or clears the bit of a pool.
    pub(crate) fn set(&mut self, pool: PoolIx, on: bool) {
        if let Some(word) = self.0.get_mut(pool.index() / 64) {
            let bit = 1 << (pool.index() % 64);
            *word = if on { *word | bit } else { *word & !bit };
        }
    }
}

/// A bit for each shape and pool.
pub(crate) struct ShapeBits {
    words: usize,
    bits: Vec<u64>,
}

impl ShapeBits {
    /// Nothing for so many shapes and pools.
    pub(crate) fn none(shapes: usize, pools: usize) -> Self {
        let words = pools.div_ceil(64);
        Self {
            words,
            bits: vec![0; shapes * words],
        }
    }

    /// There are more shapes.
    pub(crate) fn grow(&mut self, shapes: usize) {
        self.bits.resize(shapes * self.words, 0);
    }

    /// Clears all bits.
    pub(crate) fn clear(&mut self) {
        self.bits.fill(0);
    }

    /// Clears the bits of some pools, and those of the shapes that begin `anew`.
    pub(crate) fn renew(&mut self, pools: &PoolBits, anew: &[bool]) {
        for (row, anew) in self.bits.chunks_mut(self.words.max(1)).zip(anew) {
            for (word, pools) in row.iter_mut().zip(&pools.0) {
                *word = if *anew { 0 } else { *word & !pools };
            }
        }
    }

    pub(crate) fn has(&self, shape: u32, pool: PoolIx) -> bool {
        let word = self.bits[shape as usize * self.words + pool.index() / 64];
        word & (1 << (pool.index() % 64)) != 0
    }

    pub(crate) fn set(&mut self, shape: u32, pool: PoolIx) {
        let at = shape as usize * self.words + pool.index() / 64;
        self.bits[at] |= 1 << (pool.index() % 64);
    }

    /// True when a pool is in both sets and not in the shape's row.
    pub(crate) fn spares(&self, shape: u32, pools: &PoolBits, others: &PoolBits) -> bool {
        self.words_of(shape, pools, others).any(|word| word != 0)
    }

    fn words_of(
        &self,
        shape: u32,
        pools: &PoolBits,
        others: &PoolBits,
    ) -> impl Iterator<Item = u64> {
        let at = shape as usize * self.words;
        let row = self.bits.get(at..at + self.words).unwrap_or_default();
        let words = pools.0.iter().zip(&others.0).zip(row);
        words.map(|((pools, others), row)| pools & others & !row)
    }

    /// Those pools.
    pub(crate) fn spared(
        &self,
        shape: u32,
        pools: &PoolBits,
        others: &PoolBits,
    ) -> impl Iterator<Item = PoolIx> {
        let words = self.words_of(shape, pools, others);
        words.zip(0_u32..).flat_map(|(word, at)| {
            let bits = (0..u64::BITS).filter(move |bit| word & (1 << bit) != 0);
            bits.map(move |bit| PoolIx(at * u64::BITS + bit))
        })
    }
}
