//! Kinds: gangs that differ in nothing a decision looks at, their age and priority apart.
//!
//! Owns what makes two gangs alike: what one of them cannot have in a round, none of them can. All
//! that follows works on the ordinals that are made here, in one walk over the queue.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use meridian_api::ids::Uid;
use meridian_api::units::{MilliGpus, Millis};

use crate::model::{
    Accepted, Choice, ChoiceIx, ClassIx, ClusterIx, GangShape, Lacking, RegionIx, Shared, Snapshot,
    TenantIx, Waiting, WaitingIx,
};
use crate::preempt::cooling;
use crate::reserved::Blocks;

/// Ordinal of a kind in one round.
pub(crate) type Kind = u32;

/// What a gang asks of its place, whoever it belongs to.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Ask {
    class: ClassIx,
    shape: u32,
    flavors: Shared<Vec<Accepted>>,
    regions: Shared<Vec<RegionIx>>,
    clusters: Shared<Vec<ClusterIx>>,
    lacking: Shared<Vec<Lacking>>,
    choice: ChoiceIx,
}

/// A gang by where is kept what it asks for: those of one job, and mostly those like it, share
/// their lists.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kept {
    class: ClassIx,
    standing: u32,
    lists: [usize; 5],
    choice: ChoiceIx,
    rest: Rest,
}

impl std::hash::Hash for Kept {
    /// Few words: of a million gangs this is most of what telling them apart costs.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let (tenant, gpus, job, cooling, max_runtime, is_suspended) = self.rest;
        let lists = self.lists.iter();
        state.write_usize(lists.fold(0_usize, |all, list| all.rotate_left(13) ^ list));
        let (class, suspended) = (u64::from(self.class.0), u64::from(is_suspended));
        state.write_u64((u64::from(tenant.0) << 32) | (class << 1) | suspended);
        let runtime = max_runtime.map_or(u64::MAX, |most| most.0);
        state.write_u64(gpus.0.rotate_left(32) ^ runtime);
        if let Some(job) = job {
            job.hash(state);
        }
        let rare = (self.standing, self.choice.0, cooling);
        if rare != (0, 0, 0) {
            rare.hash(state);
        }
    }
}

/// What makes a kind: tenant, what it asks for, GPUs of its job, its job where others matter, and
/// whom it may not make go.
type KindKey = (TenantIx, u32, MilliGpus, Option<Uid>, u32);

/// What makes a look beside what it asks for: the rest of the kind, how long it runs at most, and
/// whether it is suspended.
type Rest = (TenantIx, MilliGpus, Option<Uid>, u32, Option<Millis>, bool);

/// Gangs that look the same: of one kind, as long at most, and suspended all or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    /// Their kind.
    pub(crate) kind: Kind,
    /// Ordinal of what they ask for, their tenant and the size of their job apart.
    pub(crate) ask: u32,
    /// Ordinal of their shape; equal shapes to which reservations mean the same are one.
    pub(crate) shape: u32,
}

/// The kinds of a queue.
#[derive(Debug, Default)]
pub(crate) struct Kinds {
    of: Vec<u32>,
    looks: Vec<Look>,
    known: Known,
    /// By shape: it has several roles.
    packed: Vec<bool>,
}

/// What was told apart so far, by value.
#[derive(Debug, Default)]
struct Known {
    shapes: BTreeMap<(Shared<GangShape>, u32), u32>,
    asks: Table<Ask>,
    kinds: Table<KindKey>,
    looks: Table<(u32, Rest)>,
    /// Whom a gang may not make go; zero is nobody.
    spared: BTreeMap<Vec<Uid>, u32>,
}

impl Kinds {
    /// The kinds of all that waits.
    pub(crate) fn new(snapshot: &Snapshot, blocks: &Blocks) -> Self {
        let mut all = Self::default();
        let mut shapes: Table<(usize, u32)> = Table::default();
        let mut kept: Table<Kept> = Table::default();
        all.of.reserve_exact(snapshot.waiting.len());
        // Many were submitted together, and are alike.
        let mut last: Option<(Kept, u32)> = None;
        for (ix, gang) in (0..).map(WaitingIx).zip(&snapshot.waiting) {
            let rest = all.known.rest(snapshot, gang);
            let key = kept_at(gang, blocks.standing(ix), rest);
            if let Some((_, look)) = last.as_ref().filter(|(same, _)| *same == key) {
                all.of.push(*look);
                continue;
            }
            if let Some(look) = kept.get(&key) {
                all.of.push(*look);
                last = Some((key, *look));
                continue;
            }
            let standing = blocks.standing(ix);
            // Gangs of one job share their shape, so most are known by its address.
            let shape = shapes.entry((gang.shape.address(), standing));
            let shape = *shape.or_insert_with(|| all.shape_of(gang, standing));
            let look = all.look_of(gang, shape, rest);
            kept.insert(key, look);
            last = Some((key, look));
            all.of.push(look);
        }
        all
    }

    /// One more gang waits, the last of the table, where no reservation matters; what it looks
    /// like.
    pub(crate) fn push(&mut self, snapshot: &Snapshot, gang: &Waiting) -> u32 {
        let look = self.look_now(snapshot, gang);
        self.of.push(look);
        look
    }

    /// What a gang of the table looks like by now.
    pub(crate) fn look_again(&mut self, snapshot: &Snapshot, ix: WaitingIx) -> u32 {
        let look = self.look_now(snapshot, &snapshot.waiting[ix.index()]);
        self.of[ix.index()] = look;
        look
    }

    fn look_now(&mut self, snapshot: &Snapshot, gang: &Waiting) -> u32 {
        let rest = self.known.rest(snapshot, gang);
        let shape = self.shape_of(gang, 0);
        self.look_of(gang, shape, rest)
    }

    /// A gang leaves the queue, and the last of the table takes its row.
    pub(crate) fn swap_remove(&mut self, ix: WaitingIx) {
        self.of.swap_remove(ix.index());
    }

    /// Ordinal of a gang's shape.
    fn shape_of(&mut self, gang: &Waiting, standing: u32) -> u32 {
        let shape = self.known.shape(gang, standing);
        if shape as usize == self.packed.len() {
            self.packed.push(gang.shape.roles.len() > 1);
        }
        shape
    }

    /// Of each shape, whether it has several roles, so that rules that are not exact pack it.
    pub(crate) fn packed(&self) -> &[bool] {
        &self.packed
    }

    fn look_of(&mut self, gang: &Waiting, shape: u32, rest: Rest) -> u32 {
        let ask = Ask {
            class: gang.class,
            shape,
            flavors: gang.flavors.clone(),
            regions: gang.regions.clone(),
            clusters: gang.clusters.clone(),
            lacking: gang.lacking.clone(),
            choice: gang.choice,
        };
        let ask = number(&mut self.known.asks, ask);
        let look = number(&mut self.known.looks, (ask, rest));
        if look as usize == self.looks.len() {
            let kind = (rest.0, ask, rest.1, rest.2, rest.3);
            self.looks.push(Look {
                kind: number(&mut self.known.kinds, kind),
                ask,
                shape,
            });
        }
        look
    }

    /// Ordinals of what all gangs look like.
    pub(crate) fn all(&self) -> &[u32] {
        &self.of
    }

    /// Ordinal of what a gang looks like.
    pub(crate) fn look(&self, ix: WaitingIx) -> usize {
        self.of[ix.index()] as usize
    }

    /// What a gang looks like.
    pub(crate) fn of(&self, ix: WaitingIx) -> &Look {
        &self.looks[self.look(ix)]
    }

    /// All looks, by ordinal.
    pub(crate) fn looks(&self) -> &[Look] {
        &self.looks
    }

    /// How many asks and shapes there are.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.known.asks.len(), self.known.shapes.len())
    }
}

impl Known {
    fn rest(&mut self, snapshot: &Snapshot, gang: &Waiting) -> Rest {
        let cooling = if gang.evicted_by.is_empty() {
            0
        } else {
            let next = u32::try_from(self.spared.len() + 1).unwrap_or(u32::MAX);
            let cooling = cooling(gang, snapshot.now);
            // Whom it may not make go is nobody else's matter.
            if cooling.is_empty() {
                0
            } else {
                *self.spared.entry(cooling).or_insert(next)
            }
        };
        let choice = snapshot.choices.get(gang.choice.index());
        (
            gang.tenant,
            gang.job_gpus,
            // Where others stand decides too, and which are others.
            choice
                .is_some_and(Choice::minds_others)
                .then_some(gang.gang.job),
            cooling,
            gang.max_runtime,
            gang.suspended,
        )
    }

    /// Ordinal of a shape.
    fn shape(&mut self, gang: &Waiting, standing: u32) -> u32 {
        let next = u32::try_from(self.shapes.len()).unwrap_or(u32::MAX);
        let key = (gang.shape.clone(), standing);
        *self.shapes.entry(key).or_insert(next)
    }
}

/// Addresses of what a gang asks for: its shape and its lists. Equal ones are equal asks.
pub(crate) fn addresses(gang: &Waiting) -> [usize; 5] {
    [
        gang.shape.address(),
        gang.flavors.address(),
        gang.regions.address(),
        gang.clusters.address(),
        gang.lacking.address(),
    ]
}

/// Where what a gang asks for is kept.
fn kept_at(gang: &Waiting, standing: u32, rest: Rest) -> Kept {
    Kept {
        class: gang.class,
        standing,
        lists: addresses(gang),
        choice: gang.choice,
        rest,
    }
}

/// Ordinals by key, never walked.
type Table<K> = HashMap<K, u32, BuildHasherDefault<Fold>>;

fn number<K: Eq + std::hash::Hash>(table: &mut Table<K>, key: K) -> u32 {
    let next = u32::try_from(table.len()).unwrap_or(u32::MAX);
    *table.entry(key).or_insert(next)
}

/// Hashes ordinals: a multiplication for each word, and a scramble at the end.
#[derive(Default)]
pub(crate) struct Fold(u64);

impl Fold {
    const fn fold(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hasher for Fold {
    fn write(&mut self, bytes: &[u8]) {
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.fold(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.fold(word.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.fold(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.fold(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.fold(word as u64);
    }

    fn finish(&self) -> u64 {
        crate::tree::scramble(self.0)
    }
}
