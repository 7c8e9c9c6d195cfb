//! Places: the best of those that a gang may have.
//!
//! Owns the candidates of each different ask, the order in which they are looked at, and what is
//! remembered of pools that were searched. A pool is searched only when it could still be better
//! than the best so far: what its score cannot fall below is known from integers alone.

mod beside;
mod bids;

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use meridian_api::units::{MilliGpus, Resources};

use crate::bits::{PoolBits, ShapeBits};
use crate::candidates::{
    Preference, Rate, allows_cluster, choice, is_open, lacks, preference_with,
};
use crate::choice::cost::{Bill, Fitted, bill};
use crate::decide::Round;
use crate::fill::left_anywhere;
use crate::fit::{Fit, fit, fit_on, fits_by_kinds};
use crate::kinds::Fold;
use crate::model::{FlavorIx, Place, Pool, PoolIx, Score, Snapshot, Waiting, WaitingIx};
use crate::quota::{Ledger, Reach};
use crate::sizes::largest;
use crate::slots::Mask;

use beside::Beside;
use bids::{Bid, Bids, Few, Size, bound_of};

/// Answer of the last search for one shape of gang in one pool.
struct Remembered {
    version: u32,
    budget: Resources,
    found: Option<(Vec<u32>, Fit)>,
}

/// A pool that the gangs of one ask may use.
#[derive(Clone, Copy)]
struct Candidate {
    pool: PoolIx,
    preference: Preference,
}

/// What those that wait with one ask have in common.
pub(crate) struct Asked {
    /// Open pools that they may use, by name.
    candidates: Vec<Candidate>,
    /// Where their quota may be counted, in closed pools too: of places that all quota rows count
    /// alike the first.
    pub(crate) places: Vec<Place>,
    /// Hardware of all those pools.
    pub(crate) flavors: Vec<FlavorIx>,
    /// The candidates once more, those together that all quota rows count alike: a place there,
    /// and one bit for each pool.
    pub(crate) openings: Vec<(Place, PoolBits)>,
}

/// A place: the pool, why this one, pods per role, and the hosts.
pub(crate) type Found = (PoolIx, Score, Vec<u32>, Fit);

/// What a round knows of pools and asks.
pub(crate) struct Places {
    /// Pools that take new work, by the names of cluster and pool.
    pub(crate) open: Vec<PoolIx>,
    /// Place of each pool in that list; the last for closed ones.
    order: Vec<usize>,
    /// Of each pool, which quota rows count it: equal for those that all rows count alike.
    counted: Vec<u32>,
    /// Of each pool, what hours there cost: equal for those with the same prices.
    rates: Vec<u32>,
    /// By ask.
    asked: Vec<Option<Arc<Asked>>>,
    remembered: HashMap<(u32, PoolIx, Mask), Remembered, BuildHasherDefault<Fold>>,
    /// By pool and slots, where slots keep hosts.
    beside: Beside,
    /// By shape and pool: the smallest size does not fit there whoever asks, as room only shrinks.
    never: ShapeBits,
}

impl Places {
    pub(crate) fn new(
        snapshot: &Snapshot,
        ledger: &Ledger<'_>,
        asks: usize,
        shapes: usize,
    ) -> Self {
        let mut by_rows: BTreeMap<Vec<usize>, u32> = BTreeMap::new();
        let mut by_rate = BTreeMap::new();
        let (mut counted, mut rates) = (Vec::new(), Vec::new());
        for pool in &snapshot.pools {
            let next = u32::try_from(by_rows.len()).unwrap_or(u32::MAX);
            let rows = ledger.counting(snapshot.place(pool));
            counted.push(*by_rows.entry(rows).or_insert(next));
            let facts = &pool.facts;
            let is_spot = facts.capacity == meridian_api::kinds::gpu_pool::PoolCapacity::Spot;
            let rate = (pool.flavor, facts.price, facts.borrowed_price, is_spot);
            let next = u32::try_from(by_rate.len()).unwrap_or(u32::MAX);
            rates.push(*by_rate.entry(rate).or_insert(next));
        }
        let open = open_pools(snapshot);
        let mut order = vec![usize::MAX; snapshot.pools.len()];
        for (place, pool) in open.iter().enumerate() {
            order[pool.index()] = place;
        }
        Self {
            open,
            order,
            counted,
            rates,
            asked: (0..asks).map(|_| None).collect(),
            remembered: HashMap::default(),
            beside: Beside::default(),
            never: ShapeBits::none(shapes, snapshot.pools.len()),
        }
    }

    /// There are more asks and shapes than before.
    pub(crate) fn grow(&mut self, asks: usize, shapes: usize) {
        self.asked.resize_with(asks, || None);
        self.never.grow(shapes);
    }

    /// Another round begins: in the pools of `freed` there may be room again, and shapes for which
    /// that is more than a matter of room are looked at `anew`.
    pub(crate) fn renew(&mut self, freed: &PoolBits, anew: &[bool]) {
        self.remembered.clear();
        self.beside.clear();
        self.never.renew(freed, anew);
    }

    /// What was worked out for an ask: its pools by the quota rows that count them.
    pub(crate) fn openings_of(&self, ask: u32) -> Option<&[(Place, PoolBits)]> {
        let asked = self.asked.get(ask as usize)?.as_ref()?;
        Some(asked.openings.as_slice())
    }

    /// True when one of the pools may hold the shape, as far as is known.
    pub(crate) fn may_hold(&self, shape: u32, pools: &PoolBits, roomy: &PoolBits) -> bool {
        self.never.spares(shape, pools, roomy)
    }

    /// Those of the pools that may hold the shape, as far as is known.
    pub(crate) fn holding(
        &self,
        shape: u32,
        pools: &PoolBits,
        roomy: &PoolBits,
    ) -> impl Iterator<Item = PoolIx> {
        self.never.spared(shape, pools, roomy)
    }

    /// A slot keeps nothing any more: what was searched beside it may look different. What does not
    /// fit even beside no slot still does not.
    pub(crate) fn forget_slots(&mut self) {
        self.remembered.clear();
        self.beside.clear();
    }

    /// Room has come back: what was searched may look different.
    pub(crate) fn forget(&mut self) {
        self.remembered.clear();
        self.beside.clear();
        self.never.clear();
    }
}

impl Round<'_> {
    /// The best place for the gang within `reach`.
    pub(crate) fn best(&mut self, ix: WaitingIx, reach: Reach, mask: Mask) -> Option<Found> {
        self.count_copies(ix, reach);
        let asked = self.asked(ix);
        let size = Size::new(&self.gang(ix).shape);
        let mut bids = self.bids(ix, reach, &asked, &size);
        let mut bills: Few<((u32, Rate), Fitted), Bill> = Few::new();
        let mut best: Option<(Score, u32)> = None;
        // Pools come by what they are at best: the first that is found to be as good is the best.
        while let Some(bid) = bids.next() {
            if let Some((score, _)) = &best
                && bid.bound > bound_of(score)
            {
                break;
            }
            let Candidate { pool, preference } = &asked.candidates[bid.order as usize];
            let budget = bids.budget(&bid);
            let Some(fitted) = self.fitting((ix, reach, mask), &size, *pool, budget) else {
                continue;
            };
            let rate = (self.places.rates[pool.index()], preference.rate());
            let bill = bills.get((rate, fitted), || {
                let source = &self.snapshot.pools[pool.index()];
                self.bill(self.gang(ix), source, preference, fitted)
            });
            let score = self.score(ix, *pool, preference, fitted, bill);
            // Pools come by name, so between equals the first name wins.
            let better = |(least, order): &(Score, u32)| {
                let same = Score {
                    pool: score.pool,
                    ..least.clone()
                };
                (&score, bid.order) < (&same, *order)
            };
            if best.as_ref().is_none_or(better) {
                best = Some((score, bid.order));
            }
        }
        let (score, _) = best?;
        let pool = score.pool;
        let bits = self.bits_in(pool, mask);
        if size.is_plain && !self.blocks.mind(pool) {
            let shape = &self.gang(ix).shape;
            let pods = shape.least();
            let levels = &self.snapshot.pools[pool.index()].levels;
            let found = fit_on(self.ground(pool, bits), levels, shape, &pods)?;
            return Some((pool, score, pods, found));
        }
        let key = (self.kinds.of(ix).shape, pool, bits);
        let remembered = self.places.remembered.get(&key)?;
        let (pods, found) = remembered.found.clone()?;
        Some((pool, score, pods, found))
    }

    /// False when quota and room say of all its pools that the gang finds no place, and nobody
    /// need be asked to go: it then does not matter what is kept for others.
    pub(crate) fn may_find(&mut self, ix: WaitingIx, reach: Reach) -> bool {
        let gang = self.gang(ix);
        if !self.snapshot.hosts.is_empty() || choice(self.snapshot, gang).minds_others() {
            return true;
        }
        let (asked, shape) = (self.asked(ix), self.kinds.of(ix).shape);
        let least = gang.shape.demand(&gang.shape.least());
        let may = |(place, pools): &(Place, PoolBits)| {
            self.places.may_hold(shape, pools, pools)
                && self.ledger.room(gang.tenant, *place, reach).covers(least)
        };
        asked.openings.iter().any(may)
    }

    /// Pools that the gang may use and that could hold it, with what they are at best.
    fn bids(&mut self, ix: WaitingIx, reach: Reach, asked: &Asked, size: &Size) -> Bids {
        let (snapshot, gang) = (self.snapshot, self.gang(ix));
        let shape = self.kinds.of(ix).shape;
        let minds_others = choice(snapshot, gang).minds_others();
        let mut rates: Few<(u32, Rate), u64> = Few::new();
        let mut bids = Bids::new(asked.candidates.len());
        for (order, Candidate { pool, preference }) in (0..).zip(&asked.candidates) {
            let free = self.pools[pool.index()].free;
            if free < size.least.gpus || self.places.never.has(shape, *pool) {
                continue;
            }
            let source = &snapshot.pools[pool.index()];
            if minds_others
                && (!self.copies.allows(gang.gang.job, source.cluster)
                    || !self.others.allow(snapshot, gang, source.cluster))
            {
                continue;
            }
            let (at, budget) = bids.budgets.find(self.places.counted[pool.index()], || {
                let place = snapshot.place(source);
                least_of(self.ledger.room(gang.tenant, place, reach), size.most)
            });
            if !budget.covers(size.least) {
                continue;
            }
            // What an elastic gang costs in the size that it would get is known when that is.
            let (measure, flavor_order, left_in_pool) = if size.is_rigid {
                let rate = (self.places.rates[pool.index()], preference.rate());
                let measure =
                    rates.get(rate, || self.least_measure(gang, source, preference, reach));
                let left = free.saturating_sub(size.most.gpus).0;
                (measure, preference.flavor_order, left)
            } else {
                (0, 0, 0)
            };
            bids.left.push(Bid {
                bound: (
                    preference.shunned,
                    preference.region_order,
                    preference.wishes_missed,
                    preference.flavor_first,
                    measure,
                    flavor_order,
                    0,
                    0,
                    0,
                    left_in_pool,
                ),
                order,
                budget: at,
            });
        }
        bids
    }

    /// What the objective comes to if the gang keeps all its wishes and fills its hosts.
    fn least_measure(
        &self,
        gang: &Waiting,
        source: &Pool,
        preference: &Preference,
        reach: Reach,
    ) -> u64 {
        let gpus = gang.shape.gpus(&gang.shape.most());
        let fitted = Fitted {
            most: gpus,
            gpus,
            preferences_missed: 0,
            left_on_hosts: MilliGpus::ZERO,
            reach,
        };
        self.bill(gang, source, preference, fitted)
            .measured_by(choice(self.snapshot, gang).objective)
    }

    fn bill(&self, gang: &Waiting, source: &Pool, likes: &Preference, fitted: Fitted) -> Bill {
        let worth = self.snapshot.flavors[source.flavor.index()].worth;
        bill(gang, &source.facts, worth, likes, fitted)
    }

    /// What gangs with this ask have in common; worked out the first time.
    pub(crate) fn asked(&mut self, ix: WaitingIx) -> Arc<Asked> {
        let ask = self.kinds.of(ix).ask as usize;
        if let Some(known) = &self.places.asked[ask] {
            return Arc::clone(known);
        }
        let (snapshot, gang) = (self.snapshot, self.gang(ix));
        let mut candidates = Vec::new();
        let mut places: Vec<(Place, u32)> = Vec::new();
        for (pool, source) in (0..).map(PoolIx).zip(&snapshot.pools) {
            let cluster = &snapshot.clusters[source.cluster.index()];
            if !allows_cluster(gang, source.cluster, cluster) {
                continue;
            }
            let standing = || self.standings.of(snapshot, gang.choice, source.cluster);
            let Ok(preference) = preference_with(snapshot, gang, source, standing) else {
                continue;
            };
            places.push((snapshot.place(source), self.places.counted[pool.index()]));
            if is_open(cluster) && lacks(gang, source.cluster).is_none() {
                candidates.push(Candidate { pool, preference });
            }
        }
        let order = &self.places.order;
        candidates.sort_by_key(|it| order[it.pool.index()]);
        places.sort_unstable();
        places.dedup();
        let mut flavors: Vec<FlavorIx> = places.iter().map(|(place, _)| place.flavor).collect();
        flavors.dedup();
        let mut seen: Vec<u32> = Vec::new();
        let mut is_first = |group: u32| {
            let first = !seen.contains(&group);
            seen.extend(first.then_some(group));
            first
        };
        let places = places.into_iter().filter(|(_, group)| is_first(*group));
        let asked = Arc::new(Asked {
            openings: self.openings(&candidates),
            candidates,
            places: places.map(|(place, _)| place).collect(),
            flavors,
        });
        self.places.asked[ask] = Some(Arc::clone(&asked));
        asked
    }

    fn openings(&self, candidates: &[Candidate]) -> Vec<(Place, PoolBits)> {
        let snapshot = self.snapshot;
        let mut by_rows: BTreeMap<u32, (Place, PoolBits)> = BTreeMap::new();
        for it in candidates {
            let rows = self.places.counted[it.pool.index()];
            let place = snapshot.place(&snapshot.pools[it.pool.index()]);
            let none = || (place, PoolBits::none(snapshot.pools.len()));
            by_rows
                .entry(rows)
                .or_insert_with(none)
                .1
                .set(it.pool, true);
        }
        by_rows.into_values().collect()
    }

    fn score(
        &self,
        ix: WaitingIx,
        pool: PoolIx,
        preference: &Preference,
        fitted: Fitted,
        bill: Bill,
    ) -> Score {
        let free = self.pools[pool.index()].free;
        let objective = choice(self.snapshot, self.gang(ix)).objective;
        Score {
            shunned: preference.shunned,
            region_order: preference.region_order,
            wishes_missed: preference.wishes_missed,
            flavor_first: preference.flavor_first,
            measure: bill.measured_by(objective),
            flavor_order: preference.flavor_order,
            short_of_max: fitted.most.saturating_sub(fitted.gpus).0,
            preferences_missed: fitted.preferences_missed,
            left_on_hosts: fitted.left_on_hosts.0,
            left_in_pool: free.saturating_sub(fitted.gpus).0,
            pool,
            bill,
        }
    }

    /// How the gang would fit in the pool; `None` when it does not.
    fn fitting(
        &mut self,
        (ix, reach, mask): (WaitingIx, Reach, Mask),
        size: &Size,
        pool: PoolIx,
        budget: Resources,
    ) -> Option<Fitted> {
        let bits = self.bits_in(pool, mask);
        let shape = &self.gang(ix).shape;
        if size.is_plain
            && !self.blocks.mind(pool)
            && let [role] = shape.roles.as_slice()
        {
            // What its score depends on is known before its hosts are.
            let levels = self.snapshot.pools[pool.index()].levels.len();
            let tree = &self.ground(pool, bits).tree;
            let left = left_anywhere(tree, levels, role.per_pod, role.min);
            if left.is_none() && bits == 0 {
                self.places.never.set(self.kinds.of(ix).shape, pool);
            }
            return Some(Fitted {
                most: size.most.gpus,
                gpus: size.most.gpus,
                preferences_missed: 0,
                left_on_hosts: left?,
                reach,
            });
        }
        let (pods, found) = self.find(ix, pool, bits, mask, budget)?;
        Some(Fitted {
            most: size.most.gpus,
            gpus: shape.gpus(pods),
            preferences_missed: found.preferences_missed,
            left_on_hosts: found.left_on_hosts,
            reach,
        })
    }

    /// The largest size of the gang within `budget` that fits in the pool, from memory where
    /// nothing has changed there.
    fn find(
        &mut self,
        ix: WaitingIx,
        pool: PoolIx,
        bits: Mask,
        mask: Mask,
        budget: Resources,
    ) -> Option<&(Vec<u32>, Fit)> {
        let state = &self.pools[pool.index()];
        let key = (self.kinds.of(ix).shape, pool, bits);
        let remembered = self.places.remembered.get(&key);
        let known = remembered.is_some_and(|last| match last.found {
            // The smallest size did not fit, whatever the budget, and room only shrinks.
            None => true,
            Some(_) => last.version == state.version && last.budget == budget,
        });
        if !known {
            let version = state.version;
            let found = self.search(ix, pool, mask, budget);
            if found.is_none() && bits == 0 {
                self.places.never.set(key.0, pool);
            }
            let entry = Remembered {
                version,
                budget,
                found,
            };
            self.places.remembered.insert(key, entry);
        }
        self.places.remembered.get(&key)?.found.as_ref()
    }

    fn search(
        &mut self,
        ix: WaitingIx,
        pool: PoolIx,
        mask: Mask,
        budget: Resources,
    ) -> Option<(Vec<u32>, Fit)> {
        let snapshot = self.snapshot;
        let levels = &snapshot.pools[pool.index()].levels;
        let gang = &self.gang(ix).shape;
        let free = self.pools[pool.index()].free;
        let affords = |pods: &[u32]| {
            let demand = gang.demand(pods);
            budget.covers(demand) && demand.gpus <= free
        };
        if !self.blocks.mind(pool) {
            let ground = self.ground(pool, self.bits_in(pool, mask));
            if fits_by_kinds(&ground.tree, gang, &gang.least()) == Some(false) {
                return None;
            }
            return largest(gang, |pods| {
                let found = affords(pods).then(|| fit_on(ground, levels, gang, pods));
                found.flatten()
            });
        }
        let seen = self.seen(pool, mask);
        largest(gang, |pods| {
            if !affords(pods) {
                return None;
            }
            let rows = self.blocks.view(ix, pool, (gang, pods), &seen)?;
            fit(levels, &rows, gang, pods)
        })
    }

    /// True when the gang, in its smallest size, goes beyond its tenant's nominal quota wherever it
    /// could go.
    pub(crate) fn borrows(&mut self, ix: WaitingIx) -> bool {
        let gang = self.gang(ix);
        let least = gang.shape.demand(&gang.shape.least());
        let asked = self.asked(ix);
        let within = |place: &Place| {
            let room = self.ledger.room(gang.tenant, *place, Reach::Nominal);
            room.covers(least)
        };
        !asked.places.iter().any(within)
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

/// The smaller of each component.
fn least_of(a: Resources, b: Resources) -> Resources {
    Resources {
        gpus: a.gpus.min(b.gpus),
        cpu: a.cpu.min(b.cpu),
        memory: a.memory.min(b.memory),
    }
}
