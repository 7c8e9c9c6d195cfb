//! Slots: what keeps a stream of small gangs from starving a large one.
//!
//! Owns the choice of hosts that are kept for the oldest gangs that wait too long, when those can
//! start at the earliest, and whom they bind. Never places: a slot only takes hosts and quota out
//! of what others see.
//!
//! The oldest gang of each class and flavor that has waited for more than ten minutes gets one.
//! Its hosts are those of one pool from which the least must go, so what has come free stays free
//! until it starts. Which hosts these are may change as others empty. A stream could use that to
//! keep every host a little in use, so after two hours a slot is firm: it keeps every host of the
//! domains in which the gang fits best when they are empty, which are the same in every round, and
//! all that does not end before it drains from them.

mod time;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meridian_api::units::{Millis, Resources, UnixMillis};

use crate::candidates::{allows_cluster, is_open, lacks, preference};
use crate::ends::{Ends, SHORTEST_GUESS};
use crate::fit::{Ground, fit_on, fits_by_hosts, fits_on};
use crate::kinds::Kinds;
use crate::model::{
    ClassIx, Estimate, FlavorIx, GangShape, Place, Pool, PoolIx, Shape, Snapshot, TenantIx,
    Waiting, WaitingIx,
};
use crate::quota::{Ledger, Reach, gpus_per_job};
use crate::reserved::Blocks;
use crate::shapes;

pub(crate) use time::next_change;

/// A gang that has waited for longer is blocked, and no longer merely next.
const PATIENCE: Millis = Millis::seconds(600);
/// A gang that has waited for longer gets whole domains drained. By then most of what ran when its
/// slot began has ended (`batch-short` runs for two hours at most), so little is left to idle.
const FIRM: Millis = Millis::seconds(2 * 3600);
/// Most slots: as many as there are bits in a mask, and more than any fleet has pairs of class and
/// flavor in use.
const MAX_SLOTS: usize = 64;
/// Different gangs that are looked at: beyond that a queue is full of what can never be placed.
const MAX_TRIES: usize = 256;
/// Ends that are followed until quota suffices: beyond that the guess is of no use.
const MAX_ENDS: usize = 1_000;

/// Bits of slots.
pub(crate) type Mask = u64;

/// Hosts that are kept: the freest of one domain and size.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct KeptHosts {
    domains: Vec<String>,
    allocatable: Resources,
    hosts: u32,
}

/// Hosts and quota that are kept for one gang.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) owner: WaitingIx,
    pub(crate) pool: PoolIx,
    pub(crate) start: Estimate,
    pub(crate) tenant: TenantIx,
    pub(crate) place: Place,
    pub(crate) need: Resources,
    /// Its tenant has nominal quota left for it: it need not yield to those under nominal.
    within_nominal: bool,
    /// When it may have its room, and its quota.
    room_from: UnixMillis,
    quota_from: UnixMillis,
    hosts: Arc<Vec<KeptHosts>>,
}

/// Hosts that a slot would keep, and what must go from them.
type Hosts = Option<(Arc<Vec<KeptHosts>>, Resources)>;

/// What earlier rounds have worked out: the hosts that a slot would keep in a pool, for as long as
/// the pool stays as it is, and when what is held ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Searched {
    pub(crate) ends: Ends,
    /// Of each pool; another one for other rows.
    versions: Vec<u32>,
    /// By shape, whether the slot is firm, and pool; with the version that was searched.
    known: BTreeMap<(u32, bool, PoolIx), (u32, Hosts)>,
}

impl Searched {
    /// Most answers that are kept: those of all tries of a round, in four hundred pools.
    const MOST: usize = 400 * MAX_TRIES;

    /// Pools as they are.
    pub(crate) fn renew(&mut self, versions: impl Iterator<Item = u32>) {
        self.versions.clear();
        self.versions.extend(versions);
        if self.known.len() > Self::MOST {
            self.known.clear();
        }
    }
}

impl Slot {
    /// Hosts it keeps.
    pub(crate) fn host_count(&self) -> u64 {
        self.hosts.iter().map(|row| u64::from(row.hosts)).sum()
    }

    /// Whose quota it keeps, where, and how much.
    pub(crate) const fn quota(&self) -> (TenantIx, Place, Resources) {
        (self.tenant, self.place, self.need)
    }

    /// True when the gang must leave the slot's hosts and quota alone.
    pub(crate) fn binds(&self, snapshot: &Snapshot, ix: WaitingIx, reach: Reach) -> bool {
        let gang = &snapshot.waiting[ix.index()];
        let owner = &snapshot.waiting[self.owner.index()];
        let class = |ix: ClassIx| snapshot.classes.get(ix.index());
        let outranks = class(gang.class).is_some_and(|own| {
            own.ignores_slots && class(owner.class).is_some_and(|its| own.priority > its.priority)
        });
        let ends = gang.max_runtime.map(|most| snapshot.now.after(most));
        let is_gone = ends.is_some_and(|ends| ends <= self.start.earliest);
        let is_owed = reach == Reach::Nominal && !self.within_nominal && gang.tenant != self.tenant;
        ix != self.owner && !outranks && !is_gone && !is_owed
    }
}

/// The gangs for which slots are looked for, the oldest first: those that wait for too long, one of
/// those that are alike, which gets a slot or none of them can. `oldest` is all that waits by age,
/// or of each look the oldest alone.
pub(crate) fn blocked(
    snapshot: &Snapshot,
    kinds: &Kinds,
    oldest: impl Iterator<Item = WaitingIx>,
) -> Vec<WaitingIx> {
    // There are no more kinds than looks.
    let mut tried = vec![false; kinds.looks().len()];
    let waits = |ix: &WaitingIx| {
        let submitted = snapshot.waiting[ix.index()].submitted;
        snapshot.now.since(submitted) > PATIENCE
    };
    let is_first = |ix: &WaitingIx| {
        let kind = kinds.of(*ix).kind as usize;
        !snapshot.waiting[ix.index()].suspended && !std::mem::replace(&mut tried[kind], true)
    };
    let blocked = oldest.take_while(waits).filter(is_first);
    blocked.take(MAX_TRIES).collect()
}

/// Clusters to which gangs may go by where others stand, for those that mind.
pub(crate) type Near = BTreeMap<WaitingIx, Vec<bool>>;

/// The slots of a round, before anything is placed in it, that of the oldest gang first. A slot is
/// in one pool: of a gang that minds others in a cluster to which these let it go.
pub(crate) fn slots(
    snapshot: &Snapshot,
    ledger: &Ledger<'_>,
    blocks: &Blocks,
    kinds: &Kinds,
    (blocked, near): (&[WaitingIx], &Near),
    searched: &mut Searched,
) -> Vec<Slot> {
    let mut known = Known::new(snapshot, ledger, searched);
    let mut chosen: Vec<Slot> = Vec::new();
    let mut taken: BTreeSet<(ClassIx, FlavorIx)> = BTreeSet::new();
    for ix in blocked.iter().copied() {
        if chosen.len() == MAX_SLOTS {
            break;
        }
        let gang = &snapshot.waiting[ix.index()];
        let near = near.get(&ix);
        let per_job = gpus_per_job(&snapshot.tenants, gang.tenant);
        if per_job.is_some_and(|(_, limit)| gang.job_gpus > limit)
            || ledger.exhausted(gang.tenant, Reach::Nominal).is_some()
            || ledger.job_limit(gang.tenant, gang.gang.job).is_some()
        {
            continue;
        }
        let pools = (0..).map(PoolIx).zip(&snapshot.pools);
        // Hosts that a reservation keeps from it are not kept for it.
        let least = gang.shape.least();
        let is_open = |at: PoolIx| blocks.must_leave(ix, at, &gang.shape, &least) == 0;
        let is_near = |pool: &Pool| near.is_none_or(|near| near[pool.cluster.index()]);
        let pools = pools.filter(|(at, pool)| {
            !taken.contains(&(gang.class, pool.flavor)) && is_near(pool) && is_open(*at)
        });
        known.allowed.clear();
        let own = (ix, kinds.of(ix).shape);
        let found = pools.filter_map(|(at, pool)| slot(&mut known, own, at, pool, &chosen));
        if let Some((_, slot)) = found.min_by(|(a, _), (b, _)| a.cmp(b)) {
            taken.insert((gang.class, slot.place.flavor));
            chosen.push(slot);
        }
    }
    chosen
}

/// All that waits, the oldest first; `is_aged` says that the table is in that order.
pub(crate) fn aged(snapshot: &Snapshot, is_aged: bool) -> impl Iterator<Item = WaitingIx> + Clone {
    let age = |gang: &Waiting| (gang.submitted, gang.gang);
    let mut order: Vec<WaitingIx> = Vec::new();
    if !is_aged {
        order.extend((0..).map(WaitingIx).take(snapshot.waiting.len()));
        order.sort_by_key(|ix| age(&snapshot.waiting[ix.index()]));
    }
    let all = (0..).map(WaitingIx).take(snapshot.waiting.len());
    all.map(move |ix| order.get(ix.index()).copied().unwrap_or(ix))
}

/// What the search for slots has worked out so far.
struct Known<'a, 'b> {
    searched: &'b mut Searched,
    snapshot: &'a Snapshot,
    ledger: &'a Ledger<'a>,
    /// Canonical rows of pools.
    rows: Vec<Option<Cow<'a, [Shape]>>>,
    /// Of the gang at hand: when its quota suffices, by the rows that count it.
    allowed: Vec<(Vec<usize>, Estimate)>,
}

impl<'a, 'b> Known<'a, 'b> {
    fn new(snapshot: &'a Snapshot, ledger: &'a Ledger<'a>, searched: &'b mut Searched) -> Self {
        Self {
            searched,
            snapshot,
            ledger,
            rows: vec![None; snapshot.pools.len()],
            allowed: Vec::new(),
        }
    }

    /// Hosts for the gang in the pool, from memory where no other slot keeps any there.
    fn hosts(
        &mut self,
        (at, pool): (PoolIx, &Pool),
        others: &[Slot],
        (gang, shape): (&GangShape, u32),
        is_firm: bool,
    ) -> Hosts {
        let is_alone = others.iter().all(|slot| slot.pool != at);
        let version = self.searched.versions.get(at.index()).copied();
        let version = version.filter(|_| is_alone);
        let key = (shape, is_firm, at);
        if let Some((of, known)) = self.searched.known.get(&key)
            && Some(*of) == version
        {
            return known.clone();
        }
        let found = hosts(pool, &self.rows(at, others), gang, is_firm);
        let found = found.map(|(hosts, missing)| (Arc::new(hosts), missing));
        if let Some(version) = version {
            self.searched.known.insert(key, (version, found.clone()));
        }
        found
    }

    /// The pool's rows without what other slots keep.
    fn rows(&mut self, at: PoolIx, others: &[Slot]) -> Cow<'_, [Shape]> {
        let source = &self.snapshot.pools[at.index()].shapes;
        let rows = self.rows[at.index()].get_or_insert_with(|| shapes::canonical_of(source));
        let here = others.iter().filter(|slot| slot.pool == at);
        let all = Cow::Borrowed(&**rows);
        here.fold(all, |rows, slot| Cow::Owned(without(&rows, slot)))
    }
}

/// Order of the pools that could hold a slot: soonest, then as the job prefers, then by name.
type Rank<'a> = (UnixMillis, u32, u32, &'a str, &'a str);

fn slot<'a>(
    known: &mut Known<'a, '_>,
    (ix, shape): (WaitingIx, u32),
    at: PoolIx,
    pool: &'a Pool,
    others: &[Slot],
) -> Option<(Rank<'a>, Slot)> {
    let (snapshot, ledger) = (known.snapshot, known.ledger);
    let gang = &snapshot.waiting[ix.index()];
    let cluster = &snapshot.clusters[pool.cluster.index()];
    let open = is_open(cluster)
        && allows_cluster(gang, pool.cluster, cluster)
        && lacks(gang, pool.cluster).is_none();
    let preference = preference(snapshot, gang, pool).ok().filter(|_| open)?;
    let place = snapshot.place(pool);
    let need = gang.shape.demand(&gang.shape.least());
    if !ledger
        .passed(gang.tenant, place, Reach::Ever, need)
        .is_empty()
    {
        return None;
    }
    let is_firm = snapshot.now.since(gang.submitted) > FIRM;
    let (hosts, missing) = known.hosts((at, pool), others, (&gang.shape, shape), is_firm)?;
    let mut start = when_free(known, at, missing);
    let quota = when_allowed(known, gang, place, need);
    let room_from = start.earliest;
    start.earliest = start.earliest.max(quota.earliest);
    start.latest = start
        .latest
        .zip(quota.latest)
        .map(|(room, quota)| room.max(quota));
    let slot = Slot {
        owner: ix,
        pool: at,
        start,
        tenant: gang.tenant,
        place,
        need,
        room_from,
        quota_from: quota.earliest,
        within_nominal: ledger.room(gang.tenant, place, Reach::Nominal).covers(need),
        hosts,
    };
    let rank = (
        start.earliest,
        preference.region_order,
        preference.flavor_order,
        cluster.name.as_str(),
        pool.name.as_str(),
    );
    Some((rank, slot))
}

fn used(row: &Shape) -> Resources {
    Resources {
        gpus: row.allocatable.gpus.saturating_sub(row.free.gpus),
        cpu: row.allocatable.cpu.saturating_sub(row.free.cpu),
        memory: row.allocatable.memory.saturating_sub(row.free.memory),
    }
}

/// Hosts for the smallest size of the gang, and how much must go from them: those from which the
/// least must, or, to be firm, all of the domains that are best when empty.
fn hosts(
    pool: &Pool,
    rows: &[Shape],
    gang: &GangShape,
    is_firm: bool,
) -> Option<(Vec<KeptHosts>, Resources)> {
    let least = gang.least();
    let mut limits: Vec<Resources> = rows.iter().map(used).collect();
    limits.sort_unstable();
    limits.dedup();
    let then = |row: &Shape, limit: Resources| {
        if used(row) <= limit {
            row.allocatable
        } else {
            row.free
        }
    };
    let ground = |limit: Resources| Ground::with(&pool.levels, rows, |row| then(row, limit));
    let fits = |limit: Resources| {
        let free = rows.iter().map(|row| (then(row, limit), row.hosts));
        fits_by_hosts(free, gang, &least)
            .unwrap_or_else(|| fits_on(&mut ground(limit), &pool.levels, gang, &least))
    };
    if !fits(*limits.last()?) {
        return None;
    }
    // The more hosts are emptied, the more fits: the smallest limit by halving.
    let (mut low, mut high) = (0, limits.len() - 1);
    if is_firm && !fits(limits[0]) {
        low = high;
    }
    while low < high {
        let middle = usize::midpoint(low, high);
        if fits(limits[middle]) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    let limit = limits[high];
    let found = fit_on(&mut ground(limit), &pool.levels, gang, &least)?;
    let emptied = |row: &Shape| Shape {
        free: then(row, limit),
        ..row.clone()
    };
    let rows_then = shapes::canonical(&rows.iter().map(emptied).collect::<Vec<_>>());
    let mut after = rows_then.clone();
    if !shapes::take_out(&mut after, gang, &found.takes) {
        return None;
    }
    let mut hosts = touched(&rows_then, &after);
    let kept = hosts.iter().flat_map(|kept| freest(rows, kept));
    let missing = kept.fold(Resources::default(), |sum, (row, hosts)| {
        let used = used(&rows[row]).checked_mul(u64::from(hosts));
        used.and_then(|used| sum.checked_add(used)).unwrap_or(sum)
    });
    if is_firm {
        for kept in &mut hosts {
            let same =
                |row: &&Shape| row.domains == kept.domains && row.allocatable == kept.allocatable;
            kept.hosts = rows.iter().filter(same).map(|row| row.hosts).sum();
        }
    }
    Some((hosts, missing))
}

/// Hosts that differ between the two, which are canonical, by domain and size.
fn touched(before: &[Shape], after: &[Shape]) -> Vec<KeptHosts> {
    let mut kept: Vec<KeptHosts> = Vec::new();
    for row in before {
        let key = |row: &Shape| (row.allocatable, row.free);
        let same = after.binary_search_by(|other| {
            let by_name = other.domains.cmp(&row.domains);
            by_name.then_with(|| key(other).cmp(&key(row)))
        });
        let left = same.map_or(0, |at| after[at].hosts);
        let gone = row.hosts.saturating_sub(left);
        if gone == 0 {
            continue;
        }
        let known = kept
            .iter_mut()
            .find(|kept| kept.domains == row.domains && kept.allocatable == row.allocatable);
        match known {
            Some(kept) => kept.hosts += gone,
            None => kept.push(KeptHosts {
                domains: row.domains.clone(),
                allocatable: row.allocatable,
                hosts: gone,
            }),
        }
    }
    kept
}

/// The freest hosts of that domain and size: positions of rows, which are sorted, and how many of
/// each.
fn freest(rows: &[Shape], kept: &KeptHosts) -> Vec<(usize, u32)> {
    let order = |row: &Shape| {
        let by_name = row.domains.cmp(&kept.domains);
        by_name.then(row.allocatable.cmp(&kept.allocatable))
    };
    let first = rows.partition_point(|row| order(row).is_lt());
    let same = rows[first..].iter().take_while(|row| order(row).is_eq());
    let mut positions: Vec<usize> = (first..).zip(same).map(|(ix, _)| ix).collect();
    positions.sort_by_key(|ix| (used(&rows[*ix]), *ix));
    let mut left = kept.hosts;
    let mut chosen = Vec::new();
    for ix in positions {
        let hosts = rows[ix].hosts.min(left);
        if hosts > 0 {
            left -= hosts;
            chosen.push((ix, hosts));
        }
    }
    chosen
}

/// The rows without the hosts that are kept.
pub(crate) fn without(rows: &[Shape], slot: &Slot) -> Vec<Shape> {
    let mut rest = rows.to_vec();
    for kept in slot.hosts.iter() {
        for (ix, hosts) in freest(rows, kept) {
            rest[ix].hosts -= hosts;
        }
    }
    rest.retain(|row| row.hosts > 0);
    rest
}

/// When that much has gone from the pool: at the earliest if those that end first stand there, at
/// the latest when all have ended that say when.
fn when_free(known: &mut Known<'_, '_>, pool: PoolIx, missing: Resources) -> Estimate {
    let snapshot = known.snapshot;
    let now = Estimate {
        earliest: snapshot.now,
        latest: Some(snapshot.now),
    };
    if missing == Resources::default() {
        return now;
    }
    let ends = known.searched.ends.of(snapshot, pool);
    let mut gone = Resources::default();
    let mut expected = ends.expected(snapshot.now);
    let earliest = expected.find(|(_, _, end)| {
        gone = gone.checked_add(end.what).unwrap_or(gone);
        gone.covers(missing)
    });
    // What others than the hub have put there says nothing of its end.
    let guess = snapshot.now.after(SHORTEST_GUESS);
    let latest = ends.last_told(snapshot.now);
    Estimate {
        earliest: earliest.map_or(guess, |(at, _, _)| at),
        latest: latest.filter(|_| earliest.is_some()),
    }
}

/// When the tenant's quota suffices, if others end as they say.
fn when_allowed(
    known: &mut Known<'_, '_>,
    gang: &Waiting,
    place: Place,
    need: Resources,
) -> Estimate {
    let counting = known.ledger.counting(place);
    let same = known.allowed.iter().find(|(rows, _)| *rows == counting);
    if let Some((_, allowed)) = same {
        return *allowed;
    }
    let allowed = quota_suffices(known, gang, place, need);
    known.allowed.push((counting, allowed));
    allowed
}

fn quota_suffices(
    all: &mut Known<'_, '_>,
    gang: &Waiting,
    place: Place,
    need: Resources,
) -> Estimate {
    let (snapshot, ledger) = (all.snapshot, all.ledger);
    let mut known = true;
    let mut at = snapshot.now;
    if !ledger
        .room(gang.tenant, place, Reach::Borrowing)
        .covers(need)
    {
        let mut later = ledger.clone();
        for (ends, is_told, end) in all.searched.ends.all(snapshot).take(MAX_ENDS) {
            later.give_back(end.tenant, end.place, end.what);
            (at, known) = (ends, known && is_told);
            if later
                .room(gang.tenant, place, Reach::Borrowing)
                .covers(need)
            {
                break;
            }
        }
    }
    Estimate {
        earliest: at,
        latest: known.then_some(at),
    }
}
