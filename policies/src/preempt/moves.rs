//! Moves: who makes room and goes on elsewhere at once, instead of waiting in the queue.
//!
//! Owns the search for the next place of a victim: it must fit there as it is, right now, beside
//! everything that is placed or kept, and its tenant must have the quota there. That place is held
//! for it, as the room that it makes is for the gang. Never makes anybody go who would not have to
//! go anyway.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;

use super::bids::Bid;
use super::ground::Ground;
use super::room::assign;
use super::rules::Aim;
use super::{Quest, cost, give_back, holds};
use crate::candidates::{allows_cluster, choice, lacks, preference};
use crate::decide::Round;
use crate::fit::{Fit, fit, fits_by_hosts};
use crate::kinds::{Fold, addresses};
use crate::model::{
    Accepted, ChoiceIx, ClassIx, ClusterIx, GangShape, HeldIx, Lacking, Movable, NextPlace, PoolIx,
    RegionIx, Rule, Shape, Snapshot, TenantIx, Waiting, Yield,
};
use crate::quota::{Ledger, Reach};
use crate::reserved::asker;
use crate::slots::Mask;

/// Victims of one decision that go on elsewhere, the first by row: each adds a compare and a write
/// to its transaction, which is limited to 120 of them.
const MOVES: usize = 16;
/// Different asks that are tried in one round: what is not tried is priced as if it were stopped.
const TRIED: usize = 256;

/// What a victim is taken to cost while hosts are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Price {
    /// Whoever would find another place goes on there.
    Moved,
    /// Everybody waits in the queue.
    Stopped,
}

/// Who may go on elsewhere.
#[derive(Default)]
pub(super) struct Movers {
    /// By placement: its row of `movable`, if it has one.
    rows: Vec<Option<u32>>,
    /// By row of `movable`: equal for those that ask for the same.
    kinds: Vec<usize>,
    /// By kind: whether there was room for one of it when it was first asked for.
    fits: Vec<Option<bool>>,
    tried: usize,
}

/// What the next place of a gang depends on.
type Ask<'a> = (
    (TenantIx, ClassIx, ChoiceIx),
    &'a GangShape,
    &'a [Accepted],
    (&'a [RegionIx], &'a [ClusterIx], &'a [Lacking]),
);

/// The same by where it is kept: equal for equal asks only, and different for some that are equal.
type Addresses = ((TenantIx, ClassIx, ChoiceIx), [usize; 5]);

/// Answers by ordinals and addresses, never walked.
type Table<K, V> = HashMap<K, V, BuildHasherDefault<Fold>>;

fn ask(gang: &Waiting) -> Ask<'_> {
    (
        (gang.tenant, gang.class, gang.choice),
        &gang.shape,
        &gang.flavors,
        (&gang.regions, &gang.clusters, &gang.lacking),
    )
}

impl Movers {
    fn new(snapshot: &Snapshot) -> Self {
        let mut own = Self {
            rows: vec![None; snapshot.held.len()],
            ..Self::default()
        };
        let mut known: BTreeMap<Ask<'_>, usize> = BTreeMap::new();
        // Gangs of one job share what they ask for, so most are known by its addresses.
        let mut kept: Table<Addresses, usize> = Table::default();
        for (row, at) in snapshot.movable.iter().zip(0..) {
            if let Some(own) = own.rows.get_mut(row.held.index()) {
                *own = Some(at);
            }
            let gang = &row.gang;
            let key = ((gang.tenant, gang.class, gang.choice), addresses(gang));
            let kind = kept.entry(key).or_insert_with(|| {
                let next = known.len();
                *known.entry(ask(gang)).or_insert(next)
            });
            own.kinds.push(*kind);
        }
        own.fits = vec![None; known.len()];
        own
    }

    /// Row of a placement among those that may go on elsewhere.
    fn row(&self, held: HeldIx) -> Option<usize> {
        let row = self.rows.get(held.index()).copied().flatten();
        row.map(|row| row as usize)
    }
}

/// How little a gang likes a pool: taints, place of the region, labels, place of the flavor.
type Likes = (u32, u32, u32, u32);

/// Rows of pools as a decision leaves them.
type Rooms = BTreeMap<PoolIx, Vec<Shape>>;

impl Round<'_> {
    fn movers(&mut self) -> &mut Movers {
        let snapshot = self.snapshot;
        let movers = &mut self.preemptions.movers;
        movers.get_or_insert_with(|| Movers::new(snapshot))
    }

    /// Which of `held` are taken to go on elsewhere: there is room for one of their kind.
    pub(super) fn who_moves(&mut self, held: impl Iterator<Item = HeldIx>) -> Vec<bool> {
        let moves = held.map(|ix| {
            let movers = self.movers();
            let Some(row) = movers.row(ix) else {
                return false;
            };
            let kind = movers.kinds[row];
            let known = movers.fits[kind].or((movers.tried >= TRIED).then_some(false));
            known.unwrap_or_else(|| {
                let fits = self.fits_elsewhere(&self.snapshot.movable[row]);
                let movers = self.movers();
                movers.tried += 1;
                movers.fits[kind] = Some(fits);
                fits
            })
        });
        moves.collect()
    }

    /// Pools that the gang may go on in, those that it likes best first, then by name.
    fn next_pools(&self, row: &Movable) -> Vec<(Likes, PoolIx)> {
        let (snapshot, gang) = (self.snapshot, &row.gang);
        let likes = |pool: &PoolIx| {
            let source = &snapshot.pools[pool.index()];
            let cluster = &snapshot.clusters[source.cluster.index()];
            // Hosts of others' reservations are not counted here, so such a pool is left alone.
            let mut blocks = snapshot.reserved.iter().filter(|row| row.pool == *pool);
            let is_open = blocks.all(|row| row.is_for(snapshot, asker(snapshot, gang)));
            let may = is_open
                && allows_cluster(gang, source.cluster, cluster)
                && lacks(gang, source.cluster).is_none();
            let likes = preference(snapshot, gang, source).ok().filter(|_| may)?;
            let order = (
                likes.shunned,
                likes.region_order,
                likes.wishes_missed,
                likes.flavor_order,
            );
            Some((order, *pool))
        };
        let mut pools: Vec<_> = self.places.open.iter().filter_map(likes).collect();
        // Stable, so pools that are liked alike keep the order of their names.
        pools.sort_by_key(|(likes, _)| *likes);
        pools
    }

    /// True when there is room in some pool, as it is now, for a placement that goes on elsewhere.
    fn fits_elsewhere(&self, row: &Movable) -> bool {
        let (snapshot, gang) = (self.snapshot, &row.gang);
        let pods = gang.shape.most();
        let need = gang.shape.gpus(&pods);
        let fits = |pool: PoolIx| {
            let levels = &snapshot.pools[pool.index()].levels;
            let state = &self.pools[pool.index()];
            let hosts = state.rows().iter().map(|row| (row.free, row.hosts));
            state.free >= need
                && fits_by_hosts(hosts, &gang.shape, &pods)
                    .unwrap_or_else(|| fit(levels, state.rows(), &gang.shape, &pods).is_some())
        };
        let mut pools = self.next_pools(row).into_iter();
        !choice(snapshot, gang).minds_others() && pools.any(|(_, pool)| fits(pool))
    }

    /// The best place for a placement that goes on elsewhere, and what is left of its pool then.
    /// It leaves the slots of `mask` alone. A gang for which it matters where others stand is not
    /// moved.
    fn next_place(
        &self,
        row: &Movable,
        mask: Mask,
        rooms: &Rooms,
        allowed: impl Fn(PoolIx) -> bool,
    ) -> Option<(NextPlace, Vec<Shape>)> {
        let (snapshot, gang) = (self.snapshot, &row.gang);
        if choice(snapshot, gang).minds_others() {
            return None;
        }
        let pods = gang.shape.most();
        let need = gang.shape.gpus(&pods);
        let mut best: Option<(Likes, Fit, PoolIx, Cow<'_, [Shape]>)> = None;
        for (likes, pool) in self.next_pools(row) {
            if best.as_ref().is_some_and(|best| best.0 < likes) {
                break;
            }
            // What is left of a pool is never more than it has.
            if self.pools[pool.index()].free < need || !allowed(pool) {
                continue;
            }
            let rows = match rooms.get(&pool) {
                Some(left) => Cow::Borrowed(left.as_slice()),
                None => self.seen(pool, mask),
            };
            let levels = &snapshot.pools[pool.index()].levels;
            let Some(found) = fit(levels, &rows, &gang.shape, &pods) else {
                continue;
            };
            let score = |fit: &Fit| (fit.preferences_missed, fit.left_on_hosts);
            if best
                .as_ref()
                .is_none_or(|best| score(&found) < score(&best.1))
            {
                best = Some((likes, found, pool, rows));
            }
        }
        let (_, found, pool, rows) = best?;
        let mut rows = rows.into_owned();
        let nobody = Ground::new(snapshot);
        let assigned = assign(&nobody, &[], &rows, &gang.shape, &found.takes)?;
        let room = assigned.room(&nobody, &[]);
        holds::keep(snapshot, &mut rows, &room);
        let next = NextPlace {
            pool,
            pods,
            takes: found.takes,
            room,
            rows: Vec::new(),
        };
        Some((next, rows))
    }
}

impl Quest<'_> {
    /// Lets those who are to go go on elsewhere, as far as there is room and quota beside the
    /// gang. True when everybody does who was priced as if it did.
    pub(super) fn let_move(&self, round: &mut Round<'_>, bid: &mut Bid, price: Price) -> bool {
        let snapshot = round.snapshot;
        if snapshot.movable.is_empty() {
            return true;
        }
        let priced = match price {
            Price::Moved => round.who_moves(bid.victims.iter().map(|victim| victim.held)),
            Price::Stopped => vec![false; bid.victims.len()],
        };
        // The gang's own slot is where room is made: all others are kept.
        let slots = round.bound(Mask::MAX);
        let others = slots.filter(|(_, slot)| slot.owner != self.ix);
        let mask = others.fold(0, |mask, (bit, _)| mask | bit);
        let mut rooms = Rooms::new();
        let mut rows = round.seen(bid.pool, mask).into_owned();
        holds::keep(snapshot, &mut rows, &bid.room);
        rooms.insert(bid.pool, rows);
        let mut ledger = self.beside(round, bid);
        let (mut moved, mut as_priced) = (0, true);
        let own = bid.pool;
        for (victim, priced) in bid.victims.iter_mut().zip(priced) {
            let stays = matches!(victim.does, Yield::Shrink { .. });
            if stays || victim.rule == Rule::Leaving {
                continue;
            }
            let row = round.movers().row(victim.held);
            let row = row.map(|row| &snapshot.movable[row]);
            let row = row.filter(|_| moved < MOVES);
            let found = row.and_then(|row| {
                round.next_place(row, mask, &rooms, |pool| {
                    (self.aim == Aim::Take || pool == own) && may_hold(round, &ledger, row, pool)
                })
            });
            let held = &snapshot.held[victim.held.index()];
            let Some((next, left)) = found else {
                as_priced &= !priced;
                (victim.lost, victim.cost) = cost::of_eviction(snapshot, held);
                continue;
            };
            let place = snapshot.place(&snapshot.pools[next.pool.index()]);
            ledger.keep(held.tenant, place, held.resources);
            rooms.insert(next.pool, left);
            (victim.lost, victim.cost) = cost::of_move(snapshot, held);
            victim.does = Yield::Move(next);
            moved += 1;
        }
        bid.add_up(snapshot);
        as_priced
    }

    /// Quota once the gang stands on the room that the bid makes.
    fn beside<'a>(&'a self, round: &Round<'_>, bid: &Bid) -> Ledger<'a> {
        let snapshot = round.snapshot;
        let mut ledger = self.once_gone.clone();
        for victim in &bid.victims {
            give_back(snapshot, &mut ledger, victim);
        }
        let place = snapshot.place(&snapshot.pools[bid.pool.index()]);
        ledger.keep(round.gang(self.ix).tenant, place, self.need);
        ledger
    }
}

/// Whether the gang's tenant may hold it in the pool, too.
fn may_hold(round: &Round<'_>, ledger: &Ledger<'_>, row: &Movable, pool: PoolIx) -> bool {
    let snapshot = round.snapshot;
    let held = &snapshot.held[row.held.index()];
    let reach = if round.may_borrow(&row.gang) {
        Reach::Borrowing
    } else {
        Reach::Nominal
    };
    let place = snapshot.place(&snapshot.pools[pool.index()]);
    ledger.exhausted(held.tenant, Reach::Nominal).is_none()
        && ledger
            .room(held.tenant, place, reach)
            .covers(held.resources)
}
