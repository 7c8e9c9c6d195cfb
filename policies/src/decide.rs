//! The decision round: a snapshot in, a plan out.
//!
//! Owns the walk through the queue: quota, candidates, fit, score, and what a placement leaves for
//! those after it. Never writes, waits or asks: what is not in the snapshot is not known.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use meridian_api::kinds::workload_class::CapacityType;
use meridian_api::units::{MilliGpus, Resources};

use crate::books;
use crate::candidates::{
    Preference, allows_cluster, choice, is_open, lacks, preference, preference_with,
};
use crate::causes;
use crate::choice::copies::Copies;
use crate::choice::cost::{Fitted, bill};
use crate::choice::others::Others;
use crate::choice::overflow;
use crate::choice::standing::Standings;
use crate::fit::{Fit, fit};
use crate::history::use_of;
use crate::kinds::{Kind, kinds};
use crate::model::{
    HeldIx, HoldRoom, Lapsed, Place, Placed, Plan, Pool, PoolIx, Preemption, Regraded, Score,
    Shape, Snapshot, Use, Waiting, WaitingIx,
};
use crate::order::Queue;
use crate::preempt::Preemptions;
use crate::preempt::holds::{self, Kept};
use crate::quota::{Ledger, Reach, gpus_per_job};
use crate::reserved::Blocks;
use crate::shapes;
use crate::shares::Shares;
use crate::sizes::largest;
use crate::slots::{Mask, Slot, slots, without};

/// Decides one round.
///
/// Gangs are tried in the order of the queue, first those whose tenant stays within its nominal
/// quota, then those that borrow. A gang gets the best of the places it may have, an elastic one
/// in the largest size that fits there. In the first turn that size is within nominal too: what
/// others have not used yet may still be asked for in the same turn, so growing into it is left
/// to resizing.
///
/// A gang that fits nowhere is passed over, and later ones may use the room (backfill), apart from
/// what slots keep for the oldest that wait too long (see `slots`). First it is looked whether
/// others must make room for it (see `preempt`): from then on that room is its own.
///
/// Room and quota only shrink during a round, so a gang that failed once would fail again, and
/// so would every gang like it: the cost is that of the different gangs, not of all.
#[must_use]
pub fn decide(snapshot: &Snapshot) -> Plan {
    let mut round = Round::new(snapshot);
    let mut shares = Shares::new(snapshot);
    let mut placements = round.settle_holds();
    let has_place: BTreeSet<WaitingIx> = placements.iter().map(|placed| placed.waiting).collect();
    let mut left: Vec<WaitingIx> = (0..).map(WaitingIx).take(snapshot.waiting.len()).collect();
    left.retain(|ix| !has_place.contains(ix));
    for reach in [Reach::Nominal, Reach::Borrowing] {
        let mut failed = BTreeSet::new();
        let mut passed_over = Vec::new();
        let mut queue = Queue::new(snapshot, &mut shares, &left);
        while let Some(ix) = queue.next() {
            let Some(placed) = round.try_place(ix, reach, &mut failed) else {
                passed_over.push(ix);
                continue;
            };
            if round.close_slot(ix) {
                // What it kept and did not take is there for others again.
                failed.clear();
            }
            queue.charge(round.gang(ix).tenant, round.worth(&placed));
            placements.push(placed);
        }
        left = passed_over;
    }
    // Stable, so each part keeps the order of the queue.
    left.sort_by_key(|ix| round.borrows(*ix));
    let unplaced = causes::explain(&mut round, &left);
    let returning = overflow::returns(&round);
    let Preemptions { made, lapsed, .. } = round.preemptions;
    let mut preemptions = made;
    let regraded = write_rows(snapshot, &mut placements, &mut preemptions, &lapsed);
    Plan {
        placements,
        unplaced,
        regraded,
        returning,
        preemptions,
        lapsed,
    }
}

/// Writes the ledger's rows into the placements; what else stands on other quota than before is
/// returned.
fn write_rows(
    snapshot: &Snapshot,
    placements: &mut [Placed],
    preemptions: &mut [Preemption],
    lapsed: &[Lapsed],
) -> Vec<Regraded> {
    let mut rows = books::rows(snapshot, placements, preemptions, lapsed);
    let mut planned = rows.split_off(snapshot.held.len());
    let held_for = planned.split_off(placements.len());
    for (made, rows) in preemptions.iter_mut().zip(held_for) {
        made.rows = rows;
    }
    for (placed, rows) in placements.iter_mut().zip(planned) {
        placed.rows = rows;
    }
    let held = (0..).map(HeldIx).zip(&snapshot.held).zip(rows);
    let moved = held.filter(|((_, held), rows)| held.rows != *rows);
    moved
        .map(|((held, _), rows)| Regraded { held, rows })
        .collect()
}

/// What a decision knows of one pool.
pub(crate) struct PoolState {
    pub(crate) shapes: Vec<Shape>,
    pub(crate) free: MilliGpus,
    /// Grows with each placement there.
    version: u32,
}

impl PoolState {
    /// Takes room out of what anybody sees; says what was taken.
    pub(crate) fn keep(&mut self, snapshot: &Snapshot, room: &[HoldRoom]) -> Vec<Kept> {
        let kept = holds::keep(snapshot, &mut self.shapes, room);
        self.free = shapes::free(&self.shapes).gpus;
        self.version += 1;
        kept
    }
}

/// Answer of the last search for one shape of gang in one pool.
struct Remembered {
    version: u32,
    budget: Resources,
    found: Option<(Vec<u32>, Fit)>,
}

/// State of one round.
pub(crate) struct Round<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) ledger: Ledger<'a>,
    pub(crate) pools: Vec<PoolState>,
    pub(crate) open: Vec<PoolIx>,
    pub(crate) preemptions: Preemptions,
    /// Placements so far.
    pub(crate) placed: u32,
    pub(crate) kinds: Vec<Kind>,
    /// Ordinal of the gang's shape, equal shapes to which reservations mean the same being one.
    pub(crate) shape_of: Vec<u32>,
    remembered: BTreeMap<(u32, PoolIx, Mask), Remembered>,
    /// What is kept for the oldest; `None` where the owner has its place.
    slots: Vec<Option<Slot>>,
    pub(crate) standings: Standings,
    pub(crate) copies: Copies,
    pub(crate) others: Others,
    pub(crate) blocks: Blocks,
}

impl<'a> Round<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        let state = |pool: &Pool| {
            let shapes = shapes::canonical(&pool.shapes);
            PoolState {
                free: shapes::free(&shapes).gpus,
                shapes,
                version: 0,
            }
        };
        let blocks = Blocks::new(snapshot);
        let (kinds, shape_of) = kinds(snapshot, &blocks);
        let ledger = Ledger::new(snapshot);
        let slots = slots(snapshot, &ledger, &blocks, &kinds);
        let mut pools: Vec<PoolState> = snapshot.pools.iter().map(state).collect();
        Self {
            snapshot,
            ledger,
            slots: slots.into_iter().map(Some).collect(),
            preemptions: Preemptions::new(snapshot, &mut pools),
            placed: 0,
            pools,
            open: open_pools(snapshot),
            standings: Standings::new(snapshot),
            copies: Copies::new(snapshot),
            others: Others::new(snapshot),
            kinds,
            shape_of,
            remembered: BTreeMap::new(),
            blocks,
        }
    }

    pub(crate) fn gang(&self, ix: WaitingIx) -> &'a Waiting {
        &self.snapshot.waiting[ix.index()]
    }

    /// What a placement adds to its tenant's share.
    fn worth(&self, placed: &Placed) -> Use {
        let gang = self.gang(placed.waiting);
        let flavor = self.snapshot.pools[placed.pool.index()].flavor;
        let worth = self.snapshot.flavors[flavor.index()].worth;
        use_of(gang.shape.demand(&placed.pods), worth)
    }

    /// Places the gang if it can be placed within `reach`. `failed` holds the kinds of gangs that
    /// could not, for the same reach.
    fn try_place(
        &mut self,
        ix: WaitingIx,
        reach: Reach,
        failed: &mut BTreeSet<(Kind, Mask)>,
    ) -> Option<Placed> {
        let gang = self.gang(ix);
        let per_job = gpus_per_job(&self.snapshot.tenants, gang.tenant);
        let barred = gang.suspended
            || (reach == Reach::Borrowing && !self.may_borrow(gang))
            || self.ledger.exhausted(gang.tenant, Reach::Nominal).is_some()
            || per_job.is_some_and(|(_, limit)| gang.job_gpus > limit)
            || self.ledger.job_limit(gang.tenant, gang.gang.job).is_some();
        let kind = self.kinds[ix.index()];
        let mask = self.mask(ix, reach);
        let has_room_made = self.preemptions.is_made(ix);
        if barred || has_room_made || failed.contains(&(kind, mask)) {
            return None;
        }
        let hold = self.preemptions.hold_of(ix);
        let snapshot = self.snapshot;
        let own = hold.map(|hold| &snapshot.holds[hold.index()]);
        if let Some(hold) = own {
            self.uncharge(hold);
        }
        self.keep_quota(mask);
        let best = self.best(ix, reach, mask);
        // It must not get room where the places of others do not let it go.
        if best.is_none() && hold.is_none() && !choice(snapshot, gang).minds_others() {
            self.make_room(ix, reach, mask);
        }
        self.give_back_quota(mask);
        let Some((pool, score, pods, found)) = best else {
            if let Some(hold) = own {
                self.charge_again(hold);
            } else if !self.preemptions.waits_for_room(ix) {
                failed.insert((kind, mask));
            }
            return None;
        };
        self.commit(ix, pool, &pods, &found);
        if let Some(hold) = hold {
            self.leave_hold(hold);
            self.remembered.clear();
        }
        let cluster = snapshot.pools[pool.index()].cluster;
        self.copies.placed(gang.gang.job, cluster);
        self.others.placed(snapshot, ix, cluster);
        let gpus = gang.shape.gpus(&pods);
        Some(Placed {
            waiting: ix,
            pool,
            pods,
            gpus,
            takes: found.takes,
            rows: Vec::new(),
            score,
        })
    }

    /// True when the gang, which finds no place within nominal quota, would find one that it
    /// borrows: nobody need go for it. `mask` is what it leaves alone within nominal.
    pub(crate) fn finds_a_place_on_loan(&mut self, ix: WaitingIx, mask: Mask) -> bool {
        if !self.may_borrow(self.gang(ix)) {
            return false;
        }
        let (own, lent) = (mask, self.mask(ix, Reach::Borrowing));
        self.give_back_quota(own);
        self.keep_quota(lent);
        let found = self.best(ix, Reach::Borrowing, lent).is_some();
        self.give_back_quota(lent);
        self.keep_quota(own);
        self.count_copies(ix, Reach::Nominal);
        found
    }

    /// True when the gang may stand on others' quota.
    pub(crate) fn may_borrow(&self, gang: &Waiting) -> bool {
        choice(self.snapshot, gang).may_use(CapacityType::Borrowed)
    }

    /// Slots that the gang must leave alone, one bit each.
    pub(crate) fn mask(&self, ix: WaitingIx, reach: Reach) -> Mask {
        let slots = self.slots.iter().enumerate();
        let binding = slots.filter(|(_, slot)| {
            slot.as_ref()
                .is_some_and(|slot| slot.binds(self.snapshot, ix, reach))
        });
        binding.fold(0, |mask, (bit, _)| mask | (1 << bit))
    }

    /// The slots of a mask.
    pub(crate) fn bound(&self, mask: Mask) -> impl Iterator<Item = (Mask, &Slot)> {
        let slots = self.slots.iter().enumerate();
        let slots = slots.filter_map(|(bit, slot)| Some((1 << bit, slot.as_ref()?)));
        slots.filter(move |(bit, _)| mask & bit != 0)
    }

    /// The slot of a gang, if it has one.
    pub(crate) fn slot_of(&self, ix: WaitingIx) -> Option<&Slot> {
        self.slots.iter().flatten().find(|slot| slot.owner == ix)
    }

    /// The slots of a mask that keep hosts of a pool.
    pub(crate) fn kept_in(&self, pool: PoolIx, mask: Mask) -> impl Iterator<Item = (Mask, &Slot)> {
        self.bound(mask).filter(move |(_, slot)| slot.pool == pool)
    }

    /// The bits of a mask that matter in a pool.
    fn bits_in(&self, pool: PoolIx, mask: Mask) -> Mask {
        self.kept_in(pool, mask)
            .fold(0, |bits, (bit, _)| bits | bit)
    }

    pub(crate) fn keep_quota(&mut self, mask: Mask) {
        for slot in (0..self.slots.len()).filter(|bit| mask & (1 << bit) != 0) {
            if let Some(slot) = &self.slots[slot] {
                self.ledger.keep(slot.tenant, slot.place, slot.need);
            }
        }
    }

    pub(crate) fn give_back_quota(&mut self, mask: Mask) {
        for slot in (0..self.slots.len()).filter(|bit| mask & (1 << bit) != 0) {
            if let Some(slot) = &self.slots[slot] {
                self.ledger.give_back(slot.tenant, slot.place, slot.need);
            }
        }
    }

    /// The gang has its place: its slot, if it had one, keeps nothing any more.
    fn close_slot(&mut self, ix: WaitingIx) -> bool {
        let mut slots = self.slots.iter_mut();
        let own = slots.find(|slot| slot.as_ref().is_some_and(|slot| slot.owner == ix));
        let closed = own.and_then(Option::take).is_some();
        if closed {
            self.remembered.clear();
        }
        closed
    }

    /// Room of a pool as those see it who must leave these slots alone.
    pub(crate) fn seen(&self, pool: PoolIx, mask: Mask) -> Cow<'_, [Shape]> {
        let all = Cow::Borrowed(self.pools[pool.index()].shapes.as_slice());
        self.kept_in(pool, mask)
            .fold(all, |rows, (_, slot)| Cow::Owned(without(&rows, slot)))
    }

    /// The best place for the gang within `reach`.
    fn best(
        &mut self,
        ix: WaitingIx,
        reach: Reach,
        mask: Mask,
    ) -> Option<(PoolIx, Score, Vec<u32>, Fit)> {
        let gang = self.gang(ix);
        let least = gang.shape.demand(&gang.shape.least());
        let most = gang.shape.demand(&gang.shape.most());
        let mut budgets: BTreeMap<Place, Resources> = BTreeMap::new();
        let mut best: Option<(PoolIx, Score)> = None;
        self.count_copies(ix, reach);
        for place in 0..self.open.len() {
            let pool = self.open[place];
            let source = &self.snapshot.pools[pool.index()];
            let cluster = &self.snapshot.clusters[source.cluster.index()];
            if !allows_cluster(gang, source.cluster, cluster)
                || lacks(gang, source.cluster).is_some()
                || !self.copies.allows(gang.gang.job, source.cluster)
                || !self.others.allow(self.snapshot, gang, source.cluster)
            {
                continue;
            }
            let standing = self
                .standings
                .of(self.snapshot, gang.choice, source.cluster);
            let Ok(preference) = preference_with(self.snapshot, gang, source, || standing) else {
                continue;
            };
            let place = self.snapshot.place(source);
            let budget = *budgets.entry(place).or_insert_with(|| {
                let room = self.ledger.room(gang.tenant, place, reach);
                least_of(room, most)
            });
            if !budget.covers(least) {
                continue;
            }
            let Some(score) = self.score((ix, reach, mask), pool, budget, &preference) else {
                continue;
            };
            // Pools come by name, so between equals the first name wins.
            let better = |least: &Score| {
                score
                    < Score {
                        pool,
                        ..least.clone()
                    }
            };
            if best.as_ref().is_none_or(|(_, least)| better(least)) {
                best = Some((pool, score));
            }
        }
        let (pool, score) = best?;
        let key = (self.shape_of[ix.index()], pool, self.bits_in(pool, mask));
        let remembered = self.remembered.get(&key)?;
        let (pods, found) = remembered.found.clone()?;
        Some((pool, score, pods, found))
    }

    fn score(
        &mut self,
        (ix, reach, mask): (WaitingIx, Reach, Mask),
        pool: PoolIx,
        budget: Resources,
        preference: &Preference,
    ) -> Option<Score> {
        let free = self.pools[pool.index()].free;
        let (snapshot, gang) = (self.snapshot, self.gang(ix));
        let most = gang.shape.gpus(&gang.shape.most());
        let (pods, found) = self.find(ix, pool, mask, budget)?;
        let gpus = gang.shape.gpus(pods);
        let fitted = Fitted {
            most,
            gpus,
            preferences_missed: found.preferences_missed,
            left_on_hosts: found.left_on_hosts,
            reach,
        };
        let source = &snapshot.pools[pool.index()];
        let worth = snapshot.flavors[source.flavor.index()].worth;
        let bill = bill(gang, &source.facts, worth, preference, fitted);
        Some(Score {
            shunned: preference.shunned,
            region_order: preference.region_order,
            wishes_missed: preference.wishes_missed,
            flavor_first: preference.flavor_first,
            measure: bill.measured_by(choice(snapshot, gang).objective),
            flavor_order: preference.flavor_order,
            short_of_max: most.saturating_sub(gpus).0,
            preferences_missed: found.preferences_missed,
            left_on_hosts: found.left_on_hosts.0,
            left_in_pool: free.saturating_sub(gpus).0,
            pool,
            bill,
        })
    }

    /// The largest size of the gang within `budget` that fits in the pool, from memory where
    /// nothing has changed there.
    fn find(
        &mut self,
        ix: WaitingIx,
        pool: PoolIx,
        mask: Mask,
        budget: Resources,
    ) -> Option<&(Vec<u32>, Fit)> {
        let state = &self.pools[pool.index()];
        let gang = &self.gang(ix).shape;
        let key = (self.shape_of[ix.index()], pool, self.bits_in(pool, mask));
        let known = self
            .remembered
            .get(&key)
            .is_some_and(|last| match last.found {
                // The smallest size did not fit, whatever the budget, and room only shrinks.
                None => true,
                Some(_) => last.version == state.version && last.budget == budget,
            });
        if !known {
            let levels = &self.snapshot.pools[pool.index()].levels;
            let seen = self.seen(pool, mask);
            let fits = |pods: &[u32]| {
                let demand = gang.demand(pods);
                if !budget.covers(demand) || demand.gpus > state.free {
                    return None;
                }
                let rows = self.blocks.view(ix, pool, (gang, pods), &seen)?;
                fit(levels, &rows, gang, pods)
            };
            let found = largest(gang, fits);
            let entry = Remembered {
                version: state.version,
                budget,
                found,
            };
            self.remembered.insert(key, entry);
        }
        self.remembered.get(&key)?.found.as_ref()
    }

    pub(crate) fn commit(&mut self, ix: WaitingIx, pool: PoolIx, pods: &[u32], found: &Fit) {
        let gang = self.gang(ix);
        let place = self.snapshot.place(&self.snapshot.pools[pool.index()]);
        let demand = gang.shape.demand(pods);
        let state = &mut self.pools[pool.index()];
        state.shapes = shapes::subtract(&state.shapes, &gang.shape, &found.takes)
            .expect("a fit takes from the shapes it was made for");
        state.free = state.free.saturating_sub(demand.gpus);
        state.version += 1;
        self.placed += 1;
        self.ledger.add(gang.tenant, place, demand, gang.gang.job);
        self.blocks.add(ix, pool, &gang.shape, pods);
        self.preemptions.moved.take(pool, &found.takes);
    }

    /// True when the gang, in its smallest size, goes beyond its tenant's nominal quota wherever it
    /// could go.
    fn borrows(&self, ix: WaitingIx) -> bool {
        let gang = self.gang(ix);
        let least = gang.shape.demand(&gang.shape.least());
        let within = |place: Place| {
            let room = self.ledger.room(gang.tenant, place, Reach::Nominal);
            room.covers(least)
        };
        !places(self.snapshot, gang).into_iter().any(within)
    }

    /// True when the gang, in its smallest size, would have fitted in the pool at the round's
    /// start.
    pub(crate) fn fitted_at_start(&self, ix: WaitingIx, pool: PoolIx) -> bool {
        let source = &self.snapshot.pools[pool.index()];
        let gang = &self.gang(ix).shape;
        self.pools[pool.index()].version > 0
            && fit(&source.levels, &source.shapes, gang, &gang.least()).is_some()
    }
}

/// Pools of clusters that take new work, by the names of cluster and pool.
fn open_pools(snapshot: &Snapshot) -> Vec<PoolIx> {
    let open = |ix: &PoolIx| {
        let pool = &snapshot.pools[ix.index()];
        is_open(&snapshot.clusters[pool.cluster.index()])
    };
    let mut pools: Vec<PoolIx> = (0..)
        .map(PoolIx)
        .take(snapshot.pools.len())
        .filter(open)
        .collect();
    pools.sort_by_key(|ix| {
        let pool = &snapshot.pools[ix.index()];
        (
            snapshot.clusters[pool.cluster.index()].name.as_str(),
            pool.name.as_str(),
        )
    });
    pools
}

/// Where the gang's quota may be counted: the hardware and regions of all pools that it may use,
/// closed ones too.
pub(crate) fn places(snapshot: &Snapshot, gang: &Waiting) -> BTreeSet<Place> {
    let may_use = |pool: &&Pool| {
        let cluster = &snapshot.clusters[pool.cluster.index()];
        allows_cluster(gang, pool.cluster, cluster) && preference(snapshot, gang, pool).is_ok()
    };
    let pools = snapshot.pools.iter().filter(may_use);
    pools.map(|pool| snapshot.place(pool)).collect()
}

/// The smaller of each component.
fn least_of(a: Resources, b: Resources) -> Resources {
    Resources {
        gpus: a.gpus.min(b.gpus),
        cpu: a.cpu.min(b.cpu),
        memory: a.memory.min(b.memory),
    }
}
