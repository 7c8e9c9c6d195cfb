//! Reservations in a round: who must leave how many hosts empty, so that each block is whole at
//! its start.
//!
//! Owns the counting of hosts that are certain to be there for a block. Never chooses a place.
//!
//! A decision knows how long placements run, and not on which hosts they stand. Two bounds are
//! certain all the same: work that is in the way stands on at most as many hosts as it has pods,
//! and on a host that is empty nobody stands. A gang that would be in the way of a block is let
//! in if after it either count still leaves the block its hosts. Work that has gone before the
//! start, and work of the block's own tenant, is in nobody's way.

mod rows;

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use meridian_api::units::{MilliGpus, Millis, UnixMillis};

use crate::model::{GangShape, Held, HeldIx, PoolIx, Shape, Snapshot, Waiting, WaitingIx};
pub(crate) use rows::Who;
pub use rows::{Lends, Reserved};

/// What a gang is to the blocks of one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stance {
    /// Not in their way.
    Clear,
    /// It may use the one at this place in the moment's list.
    Own(usize),
    /// It would stand on hosts that are theirs.
    InTheWay,
}

/// A pool at the time at which one of its blocks begins, or at present for those that hold.
#[derive(Clone, Debug)]
struct Moment {
    pool: PoolIx,
    at: UnixMillis,
    lead: Millis,
    /// Rows of the snapshot that hold then.
    blocks: Vec<Block>,
    /// Most hosts on which stands who is in the way.
    in_the_way: u64,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    /// Row of the snapshot.
    row: usize,
    /// Its hosts.
    wanted: u64,
    /// Most hosts on which its own work stands, and hosts that it fills for certain.
    used: (u64, u64),
}

/// Hosts of a pool with GPUs, and GPUs of the largest of them.
#[derive(Clone, Copy, Debug, Default)]
struct Hosts {
    count: u64,
    gpus: MilliGpus,
}

impl Hosts {
    /// Hosts on which nobody stands beside a gang of that size: those of pods that fill one.
    fn filled(self, size: Size) -> u64 {
        let all = size.pods.checked_mul(self.gpus.0);
        if all.is_some_and(|all| size.gpus.0 >= all) {
            size.pods
        } else {
            0
        }
    }
}

/// Pods and GPUs of a gang in one size.
#[derive(Clone, Copy, Debug)]
struct Size {
    pods: u64,
    gpus: MilliGpus,
}

fn size(gang: &GangShape, pods: &[u32]) -> Size {
    Size {
        pods: pods.iter().map(|pods| u64::from(*pods)).sum(),
        gpus: gang.gpus(pods),
    }
}

/// The reservations of a round.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blocks {
    moments: Vec<Moment>,
    hosts: BTreeMap<PoolIx, Hosts>,
    /// What each waiting gang is to each moment: rows of `stances`.
    standing: Vec<u32>,
    stances: Vec<Vec<Stance>>,
}

impl Blocks {
    pub(crate) fn new(snapshot: &Snapshot) -> Self {
        let mut blocks = Self {
            moments: moments(snapshot),
            ..Self::default()
        };
        if blocks.moments.is_empty() {
            return blocks;
        }
        for moment in &blocks.moments {
            let rows = &snapshot.pools[moment.pool.index()].shapes;
            blocks
                .hosts
                .entry(moment.pool)
                .or_insert_with(|| hosts(rows));
        }
        for held in &snapshot.held {
            let Some(pool) = held.pool else { continue };
            let size = Size {
                pods: u64::from(held.pods),
                gpus: held.resources.gpus,
            };
            for moment in &mut blocks.moments {
                if moment.pool == pool {
                    let stance = moment.stance(snapshot, holder(held));
                    moment.add(stance, size, blocks.hosts[&pool]);
                }
            }
        }
        // A row may outlive what it holds for a moment: of an empty host nobody fills any.
        for moment in &mut blocks.moments {
            let rows = &snapshot.pools[moment.pool.index()].shapes;
            let mut left = blocks.hosts[&moment.pool].count.saturating_sub(empty(rows));
            for block in &mut moment.blocks {
                block.used.1 = block.used.1.min(left);
                left -= block.used.1;
            }
        }
        let mut known: BTreeMap<Vec<Stance>, u32> = BTreeMap::new();
        for gang in &snapshot.waiting {
            let who = asker(snapshot, gang);
            let stances = blocks.moments.iter();
            let stances: Vec<Stance> = stances.map(|it| it.stance(snapshot, who)).collect();
            let next = u32::try_from(known.len()).unwrap_or(u32::MAX);
            blocks.standing.push(*known.entry(stances).or_insert(next));
        }
        let mut stances: Vec<(u32, Vec<Stance>)> = known
            .into_iter()
            .map(|(stances, ix)| (ix, stances))
            .collect();
        stances.sort_unstable();
        blocks.stances = stances.into_iter().map(|(_, stances)| stances).collect();
        blocks
    }

    /// True when what a gang may use of the pool depends on who it is.
    pub(crate) fn mind(&self, pool: PoolIx) -> bool {
        self.hosts.contains_key(&pool)
    }

    /// Equal for gangs to which all blocks mean the same.
    pub(crate) fn standing(&self, ix: WaitingIx) -> u32 {
        self.standing.get(ix.index()).copied().unwrap_or(0)
    }

    /// Moments of a pool, with what they mean for the gang.
    fn of(&self, ix: WaitingIx, pool: PoolIx) -> impl Iterator<Item = (&Moment, Stance)> {
        let stances = self.stances.get(self.standing(ix) as usize);
        let stances = stances.into_iter().flatten().copied();
        let moments = self.moments.iter().zip(stances);
        moments.filter(move |(moment, _)| moment.pool == pool)
    }

    /// Hosts that the gang must leave empty in the pool, should it start there.
    pub(crate) fn must_leave(
        &self,
        ix: WaitingIx,
        pool: PoolIx,
        gang: &GangShape,
        pods: &[u32],
    ) -> u64 {
        let Some(hosts) = self.hosts.get(&pool) else {
            return 0;
        };
        let size = size(gang, pods);
        let moments = self.of(ix, pool);
        let each = moments.map(|(moment, stance)| moment.must_leave(stance, size, *hosts));
        each.max().unwrap_or(0)
    }

    /// The rows as the gang may use them; `None` when it may use none of them.
    pub(crate) fn view<'a>(
        &self,
        ix: WaitingIx,
        pool: PoolIx,
        (gang, pods): (&GangShape, &[u32]),
        rows: &'a [Shape],
    ) -> Option<Cow<'a, [Shape]>> {
        match self.must_leave(ix, pool, gang, pods) {
            0 => Some(Cow::Borrowed(rows)),
            hosts => without_empty(rows, hosts).map(Cow::Owned),
        }
    }

    /// The gang starts in the pool.
    pub(crate) fn add(&mut self, ix: WaitingIx, pool: PoolIx, gang: &GangShape, pods: &[u32]) {
        let Some(hosts) = self.hosts.get(&pool).copied() else {
            return;
        };
        let size = size(gang, pods);
        let row = self.standing(ix) as usize;
        let stances = self.stances.get(row).into_iter().flatten();
        for (moment, stance) in self.moments.iter_mut().zip(stances) {
            if moment.pool == pool {
                moment.add(*stance, size, hosts);
            }
        }
    }

    /// The block that keeps the gang out of the pool in its smallest size, by its row: of several
    /// the one that begins first.
    pub(crate) fn keeper(&self, ix: WaitingIx, pool: PoolIx, gang: &GangShape) -> Option<usize> {
        let hosts = *self.hosts.get(&pool)?;
        let size = size(gang, &gang.least());
        let mut moments = self.of(ix, pool);
        let (moment, stance) =
            moments.find(|(moment, stance)| moment.must_leave(*stance, size, hosts) > 0)?;
        let others = moment.blocks.iter().enumerate();
        let mut others = others.filter(|(place, _)| Stance::Own(*place) != stance);
        others.next().map(|(_, block)| block.row)
    }
}

/// What the blocks of one pool need at one time.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    /// Row of the first block that begins then.
    pub(crate) row: u32,
    /// When; at present for those that hold.
    pub(crate) at: UnixMillis,
    pub(crate) lead: Millis,
    /// Most hosts on which those in the way may stand.
    pub(crate) spare: u64,
    pub(crate) in_the_way: Vec<HeldIx>,
}

impl Blocks {
    /// What all blocks need, by pool, then in the order of time.
    pub(crate) fn claims(&self, snapshot: &Snapshot) -> Vec<Claim> {
        let claim = |moment: &Moment| {
            let begins = |block: &&Block| {
                let from = snapshot.reserved[block.row].from;
                from.max(snapshot.now) == moment.at
            };
            let first = moment.blocks.iter().find(begins)?;
            let hosts = self.hosts.get(&moment.pool)?;
            let needed = moment.blocks.iter().map(|block| {
                let (most, _) = block.used;
                block.wanted.max(most)
            });
            let needed = needed.fold(0, u64::saturating_add);
            let held = (0..).map(HeldIx).zip(&snapshot.held);
            let here = held.filter(|(_, held)| held.pool == Some(moment.pool));
            let in_the_way =
                here.filter(|(_, held)| moment.stance(snapshot, holder(held)) == Stance::InTheWay);
            Some(Claim {
                row: u32::try_from(first.row).ok()?,
                at: moment.at,
                lead: moment.lead,
                spare: hosts.count.saturating_sub(needed),
                in_the_way: in_the_way.map(|(ix, _)| ix).collect(),
            })
        };
        self.moments.iter().filter_map(claim).collect()
    }
}

impl Moment {
    fn stance(&self, snapshot: &Snapshot, who: Who) -> Stance {
        let rows = || {
            self.blocks
                .iter()
                .map(|block| &snapshot.reserved[block.row])
        };
        if let Some(own) = rows().position(|row| row.is_for(snapshot, who)) {
            return Stance::Own(own);
        }
        let by = UnixMillis(self.at.0.saturating_sub_unsigned(self.lead.0));
        let is_gone = self.at > snapshot.now && who.ends.is_some_and(|ends| ends <= by);
        if is_gone || rows().all(|row| row.lends_to(who)) {
            Stance::Clear
        } else {
            Stance::InTheWay
        }
    }

    fn add(&mut self, stance: Stance, size: Size, hosts: Hosts) {
        match stance {
            Stance::Clear => {}
            Stance::InTheWay => self.in_the_way = self.in_the_way.saturating_add(size.pods),
            Stance::Own(place) => {
                let (most, filled) = &mut self.blocks[place].used;
                *most = most.saturating_add(size.pods);
                *filled = filled.saturating_add(hosts.filled(size));
            }
        }
    }

    /// Hosts that must be left empty by a gang of that stance and size.
    fn must_leave(&self, stance: Stance, size: Size, hosts: Hosts) -> u64 {
        let mut taken = match stance {
            Stance::Clear => return 0,
            Stance::Own(_) => self.in_the_way,
            Stance::InTheWay => self.in_the_way.saturating_add(size.pods),
        };
        let (mut claimed, mut empty) = (0_u64, 0_u64);
        for (place, block) in self.blocks.iter().enumerate() {
            let (most, filled) = block.used;
            if stance == Stance::Own(place) {
                taken = taken.saturating_add(most).saturating_add(size.pods);
                continue;
            }
            // What a block's own work has beyond the block, it has of the others' hosts.
            taken = taken.saturating_add(most.saturating_sub(block.wanted));
            claimed = claimed.saturating_add(block.wanted);
            empty = empty.saturating_add(block.wanted.saturating_sub(filled));
        }
        if hosts.count >= claimed.saturating_add(taken) {
            0
        } else {
            empty
        }
    }
}

fn holder(held: &Held) -> Who {
    Who {
        tenant: held.tenant,
        class: held.class,
        since: held.since,
        ends: held.ends,
    }
}

pub(crate) fn asker(snapshot: &Snapshot, gang: &Waiting) -> Who {
    Who {
        tenant: gang.tenant,
        class: gang.class,
        since: snapshot.now,
        ends: gang.max_runtime.map(|most| snapshot.now.after(most)),
    }
}

/// By pool, then in the order of time.
fn moments(snapshot: &Snapshot) -> Vec<Moment> {
    let reserved = &snapshot.reserved;
    let holds = |row: &Reserved, at: UnixMillis| row.from <= at && at < row.until;
    let mut moments: BTreeMap<(PoolIx, UnixMillis), Moment> = BTreeMap::new();
    for row in reserved.iter().filter(|row| row.until > snapshot.now) {
        let at = row.from.max(snapshot.now);
        let moment = moments.entry((row.pool, at)).or_insert_with(|| {
            let here = reserved.iter().enumerate();
            let here = here.filter(|(_, other)| other.pool == row.pool && holds(other, at));
            Moment {
                pool: row.pool,
                at,
                lead: Millis::ZERO,
                blocks: here.map(block).collect(),
                in_the_way: 0,
            }
        });
        moment.lead = moment.lead.max(row.lead);
    }
    moments.into_values().collect()
}

fn block((row, reserved): (usize, &Reserved)) -> Block {
    Block {
        row,
        wanted: u64::from(reserved.hosts),
        used: (0, 0),
    }
}

fn hosts(rows: &[Shape]) -> Hosts {
    let with_gpus = rows.iter().filter(|row| row.allocatable.gpus.0 > 0);
    with_gpus.fold(Hosts::default(), |sum, row| Hosts {
        count: sum.count.saturating_add(u64::from(row.hosts)),
        gpus: sum.gpus.max(row.allocatable.gpus),
    })
}

fn is_empty(row: &Shape) -> bool {
    row.free == row.allocatable && row.free.gpus.0 > 0
}

fn empty(rows: &[Shape]) -> u64 {
    let empty = rows.iter().filter(|row| is_empty(row));
    empty.map(|row| u64::from(row.hosts)).sum()
}

/// The rows without so many empty hosts, from where most of them are: the block stays together.
/// `None` when there are not as many.
fn without_empty(rows: &[Shape], hosts: u64) -> Option<Vec<Shape>> {
    if empty(rows) < hosts {
        return None;
    }
    let mut rest = rows.to_vec();
    let mut order: Vec<usize> = (0..rows.len()).filter(|ix| is_empty(&rows[*ix])).collect();
    order.sort_by_key(|ix| (Reverse(rows[*ix].hosts), *ix));
    let mut missing = hosts;
    for ix in order {
        let kept = u64::from(rest[ix].hosts).min(missing);
        missing -= kept;
        rest[ix].hosts -= u32::try_from(kept).unwrap_or(u32::MAX);
    }
    rest.retain(|row| row.hosts > 0);
    Some(rest)
}

/// How it stands with one row of reservations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockState {
    /// Fewest hosts on which its own work stands.
    pub used: u32,
    /// GPUs of that work in the pool.
    pub gpus_used: MilliGpus,
    /// Hosts that are its own by its start for certain.
    pub ready: u32,
    /// Placements in its way.
    pub in_the_way: Vec<HeldIx>,
}

/// How it stands with each row of reservations, in their order.
#[must_use]
pub fn block_states(snapshot: &Snapshot) -> Vec<BlockState> {
    let blocks = Blocks::new(snapshot);
    let state = |(row, reserved): (usize, &Reserved)| {
        let at = reserved.from.max(snapshot.now);
        let mut moments = blocks.moments.iter();
        let moment = moments.find(|moment| moment.pool == reserved.pool && moment.at == at);
        moment.map_or_else(BlockState::default, |moment| {
            state_of(snapshot, &blocks, moment, row)
        })
    };
    snapshot.reserved.iter().enumerate().map(state).collect()
}

fn state_of(snapshot: &Snapshot, blocks: &Blocks, moment: &Moment, row: usize) -> BlockState {
    let hosts = blocks.hosts[&moment.pool];
    let mut state = BlockState::default();
    for (ix, held) in (0..).map(HeldIx).zip(&snapshot.held) {
        if held.pool != Some(moment.pool) {
            continue;
        }
        match moment.stance(snapshot, holder(held)) {
            Stance::InTheWay => state.in_the_way.push(ix),
            Stance::Own(place) if moment.blocks[place].row == row => {
                let gpus = state.gpus_used.saturating_add(held.resources.gpus);
                state.gpus_used = gpus;
            }
            Stance::Own(_) | Stance::Clear => {}
        }
    }
    let (mut over, mut others, mut filled_by_all) = (0_u64, 0_u64, 0_u64);
    let mut wanted = 0_u64;
    for block in &moment.blocks {
        let (most, filled) = block.used;
        over = over.saturating_add(most.saturating_sub(block.wanted));
        filled_by_all = filled_by_all.saturating_add(filled);
        if block.row == row {
            wanted = block.wanted;
        } else {
            others = others.saturating_add(block.wanted);
        }
    }
    let empty = empty(&snapshot.pools[moment.pool.index()].shapes);
    let counted = hosts.count.saturating_sub(moment.in_the_way);
    let certain = counted.saturating_sub(over).max(empty + filled_by_all);
    let ready = certain.saturating_sub(others).min(wanted);
    let used = state.gpus_used.0.div_ceil(hosts.gpus.0.max(1)).min(wanted);
    state.used = u32::try_from(used).unwrap_or(u32::MAX);
    state.ready = u32::try_from(ready).unwrap_or(u32::MAX);
    state
}
