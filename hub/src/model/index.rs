//! Rows by a hash: which of a million may be meant.
//!
//! Owns a table of buckets, each a short sorted list: a look-up touches one of them, and one that
//! has grown too long for that is halved with all the others. Takes nine bytes a row when it is
//! fitted. Never compares what is hashed, and tells nothing in the order of hashes.

use super::rows::RowIx;

/// Rows of a bucket on average before there are twice as many buckets: half a kilobyte, which is
/// moved about as fast as it is found.
const MOST: usize = 64;

/// Rows by 32 bits of a hash: of a million jobs one in some thousand shares them with another.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// By the first bits of the hash, as many buckets as those bits can tell apart: sorted.
    buckets: Vec<Vec<(u32, RowIx)>>,
    rows: usize,
}

impl Index {
    /// Rows that have this hash, in order.
    pub(super) fn rows(&self, hash: u32) -> impl Iterator<Item = RowIx> {
        let bucket = self.buckets.get(self.place(hash));
        let bucket = bucket.map_or(&[][..], Vec::as_slice);
        let first = bucket.partition_point(|(other, _)| *other < hash);
        let rest = bucket[first..].iter();
        let alike = rest.take_while(move |(other, _)| *other == hash);
        alike.map(|(_, row)| *row)
    }

    /// Puts a row in, if it is not there.
    pub(super) fn insert(&mut self, hash: u32, row: RowIx) {
        if self.rows >= self.buckets.len() * MOST {
            self.grow();
        }
        let place = self.place(hash);
        let bucket = &mut self.buckets[place];
        if let Err(at) = bucket.binary_search(&(hash, row)) {
            if bucket.len() == bucket.capacity() {
                // By a quarter: twice as much would mostly lie idle.
                bucket.reserve_exact(4.max(bucket.len() / 4));
            }
            bucket.insert(at, (hash, row));
            self.rows += 1;
        }
    }

    /// Takes a row out, if it is there.
    pub(super) fn remove(&mut self, hash: u32, row: RowIx) {
        let place = self.place(hash);
        let Some(bucket) = self.buckets.get_mut(place) else {
            return;
        };
        if let Ok(at) = bucket.binary_search(&(hash, row)) {
            bucket.remove(at);
            self.rows -= 1;
        }
    }

    /// Takes no more memory than it needs.
    pub(super) fn fit(&mut self) {
        for bucket in &mut self.buckets {
            // One that is only made shorter may stay where it is, in twice the room.
            *bucket = bucket.as_slice().to_vec();
        }
    }

    fn place(&self, hash: u32) -> usize {
        let bits = self.buckets.len().checked_ilog2().unwrap_or(0);
        hash.checked_shr(u32::BITS - bits).unwrap_or(0) as usize
    }

    /// Twice as many buckets, each half of one before.
    fn grow(&mut self) {
        let count = (self.buckets.len() * 2).max(1);
        let before = std::mem::replace(&mut self.buckets, Vec::with_capacity(count));
        if before.is_empty() {
            self.buckets.push(Vec::new());
            return;
        }
        // The bit that tells the halves apart.
        let bit = 1_u32 << (u32::BITS - count.ilog2());
        for mut bucket in before {
            let upper = bucket.split_off(bucket.partition_point(|(hash, _)| hash & bit == 0));
            bucket.shrink_to(upper.len());
            self.buckets.extend([bucket, upper]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn alike(all: &BTreeSet<(u32, RowIx)>, hash: u32) -> Vec<RowIx> {
        let alike = all.range((hash, 0)..=(hash, RowIx::MAX));
        alike.map(|(_, row)| *row).collect()
    }

    proptest! {
        #[test]
        fn rows_are_found_by_their_hash_until_they_are_taken_out(
            steps in prop::collection::vec(
                (0..40_u32, 0..64_u32, prop::bool::weighted(0.8)),
                0..4_000,
            ),
        ) {
            let (mut index, mut all) = (Index::default(), BTreeSet::new());
            // Some hashes lie close together, some far apart, and some are the same.
            let hash = |at: u32| match at % 4 {
                0 => u32::MAX - at,
                1 => at,
                _ => at.wrapping_mul(0x9e37_79b9),
            };
            for (at, row, comes) in steps {
                if comes {
                    index.insert(hash(at), row);
                    all.insert((hash(at), row));
                } else {
                    index.remove(hash(at), row);
                    all.remove(&(hash(at), row));
                }
                prop_assert_eq!(index.rows(hash(at)).collect::<Vec<_>>(), alike(&all, hash(at)));
            }
            index.fit();
            for at in 0..40 {
                prop_assert_eq!(index.rows(hash(at)).collect::<Vec<_>>(), alike(&all, hash(at)));
            }
        }
    }

    #[test]
    fn a_long_table_has_short_buckets() {
        let mut index = Index::default();
        assert_eq!(index.rows(7).count(), 0);
        let hash = |row: u32| row.wrapping_mul(0x9e37_79b9);
        for row in 0..10_000 {
            index.insert(hash(row), row);
        }
        assert!(index.buckets.iter().all(|bucket| bucket.len() < 2 * MOST));
        assert!((0..10_000).all(|row| index.rows(hash(row)).eq([row])));
    }
}
