//! Hosts of a pool by their room: what they hold of pods that may stand anywhere.
//!
//! Owns the lists, those with the most free GPUs first, so that of a pool that is nearly full next
//! to nothing is looked at. Never knows where a host is.

use std::cmp::Reverse;

use meridian_api::units::{MilliGpus, Resources};

use crate::diagnosis::{HostsLack, Lack};
use crate::model::Shape;
use crate::pools::PoolState;
use crate::shapes;

/// A pool at the end of a round, at its start, and with every host empty.
pub(super) struct Hosts {
    end: Kinds,
    /// `None` where nothing was taken.
    start: Option<Kinds>,
    pub(super) empty: Kinds,
    /// Sizes of hosts.
    sizes: Vec<Resources>,
    /// Free at the end, and at the start.
    pub(super) free: Resources,
    pub(super) free_at_start: MilliGpus,
    /// What all hosts have.
    pub(super) total: MilliGpus,
}

impl Hosts {
    /// Those of a pool that looked like `rows` when the round began.
    pub(super) fn new(state: &PoolState, rows: &[Shape]) -> Self {
        let end = state.rows().iter();
        let mut sizes: Vec<Resources> = end.map(|row| row.allocatable).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let has_changed = state.version > 0;
        Self {
            end: Kinds::new(state.rows(), |row| row.free),
            start: has_changed.then(|| Kinds::new(rows, |row| row.free)),
            empty: Kinds::new(rows, |row| row.allocatable),
            sizes,
            free: shapes::free(state.rows()),
            free_at_start: shapes::free(rows).gpus,
            total: shapes::allocatable(rows).gpus,
        }
    }

    /// What is missing for so many pods, and whether it was there at the start; `None` when they
    /// have room.
    pub(super) fn lack(&self, each: Resources, pods: u32) -> Option<(Lack, bool)> {
        let most = self.end.pods(each, pods);
        if most == pods {
            return None;
        }
        let sizes = self.sizes.iter().copied();
        let lack = HostsLack::new(each, (pods, most), sizes, |each| self.end.pods(each, pods));
        let start = self.start.as_ref();
        let had_room = start.is_some_and(|start| start.pods(each, pods) == pods);
        Some((Lack::Hosts(lack), had_room))
    }
}

/// Hosts by their room, those with the most GPUs first: how many there are of each kind.
pub(super) struct Kinds(Vec<(Resources, u64)>);

impl Kinds {
    fn new(rows: &[Shape], room: impl Fn(&Shape) -> Resources) -> Self {
        let rows = rows.iter().filter(|row| row.hosts > 0);
        let mut kinds: Vec<_> = rows.map(|row| (room(row), u64::from(row.hosts))).collect();
        kinds.sort_unstable_by_key(|(room, _)| Reverse(*room));
        kinds.dedup_by(|next, first| {
            let same = next.0 == first.0;
            if same {
                first.1 = first.1.saturating_add(next.1);
            }
            same
        });
        Self(kinds)
    }

    /// Pods that ask for `each` which all of them hold, at most `most`.
    pub(super) fn pods(&self, each: Resources, most: u32) -> u32 {
        let mut left = u64::from(most);
        for (room, hosts) in &self.0 {
            if left == 0 || room.gpus < each.gpus {
                break;
            }
            if room.covers(each) {
                let held = room.times(each).min(left);
                left = left.saturating_sub(held.saturating_mul(*hosts));
            }
        }
        most - u32::try_from(left).unwrap_or(most)
    }
}
