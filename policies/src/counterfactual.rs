//! Counterfactuals: the smallest changes that would admit a gang that waits.
//!
//! Owns the search for them. Each is tried by asking `decide` about a snapshot in which it had been
//! made, so none is offered that would not help. Never changes what is decided.
//!
//! What is asked is the next round: the world after the plan that left the gang waiting. A change
//! is first tried alone, without the others that wait, which is cheap and never says no too soon;
//! what passes is confirmed with all of them there.

mod changes;
mod raises;
mod words;

use std::cell::Cell;

use meridian_api::reasons::Reason;
use meridian_api::units::MilliGpus;

pub use changes::{Change, apply};
pub use raises::{Raise, RaiseOf};
pub use words::{describe, kind};

use crate::decide::decide;
use crate::model::{
    Cause, ClusterIx, Contact, FlavorIx, Held, HeldIx, Plan, PoolIx, RegionIx, Shared, Snapshot,
    Standing, WaitingIx,
};
use crate::rules::HOST;
use crate::shapes;

/// Whole rounds that one question may decide: one for each change that is likely to be offered,
/// and a few halvings. At 50,000 waiting gangs a round takes some tenths of a second.
const MAX_ROUNDS: u32 = 20;
/// Rounds over nobody but the gang that one question may decide, twice where it looks at an empty
/// fleet too: some alternatives of each kind, and halvings. Each costs a walk over what is placed.
const MAX_TRIALS: u32 = 128;
/// Alternatives of one kind that are offered: a person reads them all.
const MAX_ALIKE: usize = 2;

/// A change that would admit the gang.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// What to change.
    pub change: Change,
    /// What it would do.
    pub effect: Effect,
    /// GPUs of the gang after it, in the size in which it would start.
    pub gpus: MilliGpus,
}

/// What a change does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The next round places it there.
    StartsNow(PoolIx),
    /// It waits on, yet no longer for ever: an empty fleet would have a place for it, here.
    CanStart(PoolIx),
}

impl Effect {
    /// Where it would go.
    #[must_use]
    pub const fn pool(self) -> PoolIx {
        match self {
            Self::StartsNow(pool) | Self::CanStart(pool) => pool,
        }
    }
}

/// The world after a plan: what was placed is held, and only what was left waits. `None` when the
/// plan takes what is not there.
#[must_use]
pub fn after(snapshot: &Snapshot, plan: &Plan) -> Option<Snapshot> {
    let mut world = snapshot.clone();
    for placed in &plan.placements {
        let gang = &snapshot.waiting[placed.waiting.index()];
        let pool = &mut world.pools[placed.pool.index()];
        pool.shapes = shapes::subtract(&pool.shapes, &gang.shape, &placed.takes).ok()?;
        world.held.push(Held {
            gang: gang.gang,
            epoch: gang.next_epoch,
            tenant: gang.tenant,
            class: gang.class,
            cluster: pool.cluster,
            flavor: pool.flavor,
            pool: Some(placed.pool),
            ends: gang.max_runtime.map(|most| snapshot.now.after(most)),
            resources: gang.shape.demand(&placed.pods),
            pods: placed
                .pods
                .iter()
                .fold(0, |sum, pods| sum.saturating_add(*pods)),
            rows: placed.rows.clone(),
            since: snapshot.now,
            standing: Standing::default(),
        });
    }
    let mut waits = vec![true; snapshot.waiting.len()];
    for (placement, held) in plan
        .placements
        .iter()
        .zip((snapshot.held.len()..).map(held_ix))
    {
        waits[placement.waiting.index()] = false;
        for selector in &mut world.selectors {
            if selector.waiting.binary_search(&placement.waiting).is_ok() {
                selector.held.push(held);
            }
        }
    }
    world.keep_waiting(&waits);
    Some(world)
}

fn held_ix(at: usize) -> HeldIx {
    HeldIx(u32::try_from(at).unwrap_or(u32::MAX))
}

/// The smallest changes, one by one, that would admit gang `ix` of `world`, for which `reasons` say
/// why it waits; none when the next round admits it as it is. When none would start it at once and
/// it could never start, those that would let it start some day.
#[must_use]
pub fn remedies(world: &Snapshot, ix: WaitingIx, reasons: &[Shared<Cause>]) -> Vec<Remedy> {
    if Bench::placed(world, ix).is_some() {
        // It only missed a round: what a slot kept has come free at its end.
        return Vec::new();
    }
    let mut found = Bench::new(world, ix).all();
    let never = |cause: &Shared<Cause>| {
        matches!(
            cause.reason,
            Reason::NeverPlaceable | Reason::ExceedsQuota | Reason::NoMatchingFlavor
        )
    };
    if found.is_empty() && reasons.iter().any(never) {
        let empty = emptied(world, ix);
        if Bench::placed(&empty, WaitingIx(0)).is_some() {
            return Vec::new();
        }
        let some_day = |remedy: Remedy| Remedy {
            effect: Effect::CanStart(remedy.effect.pool()),
            ..remedy
        };
        let bench = Bench::new(&empty, WaitingIx(0));
        found = bench.all().into_iter().map(some_day).collect();
    }
    found
}

/// The fleet with nothing in it, all of it open, and nobody else waiting.
fn emptied(world: &Snapshot, ix: WaitingIx) -> Snapshot {
    let mut empty = alone(world, ix);
    empty.held.clear();
    empty.holds.clear();
    empty.overflowed.clear();
    empty.movable.clear();
    empty.selectors.iter_mut().for_each(|it| it.held.clear());
    for pool in &mut empty.pools {
        pool.shapes = shapes::emptied(&pool.shapes);
    }
    for cluster in &mut empty.clusters {
        cluster.contact = Contact::Ready;
        cluster.cordoned = false;
    }
    empty
}

/// The world in which nobody else waits.
fn alone(world: &Snapshot, ix: WaitingIx) -> Snapshot {
    let mut alone = world.clone();
    let mut kept = vec![false; world.waiting.len()];
    kept[ix.index()] = true;
    alone.keep_waiting(&kept);
    alone
}

/// One gang, and the worlds in which changes to it are tried.
struct Bench<'a> {
    world: &'a Snapshot,
    ix: WaitingIx,
    alone: Snapshot,
    rounds: u32,
    trials: Cell<u32>,
}

/// Where a gang was placed, and how large.
type Placed = (PoolIx, MilliGpus);

impl<'a> Bench<'a> {
    fn new(world: &'a Snapshot, ix: WaitingIx) -> Self {
        Self {
            world,
            ix,
            alone: alone(world, ix),
            rounds: MAX_ROUNDS,
            trials: Cell::new(MAX_TRIALS),
        }
    }

    /// Everything that would help, the least of each kind.
    fn all(mut self) -> Vec<Remedy> {
        if self.world.waiting[self.ix.index()].suspended {
            return self.remedy(Change::Resume).into_iter().collect();
        }
        let mut found: Vec<Remedy> = self.fewer().into_iter().collect();
        found.extend(self.wider());
        found.extend(self.first_of(self.other_flavors()));
        found.extend(self.first_of(self.other_regions()));
        found.extend(self.first_of(self.other_clusters()));
        let raises = raises::needed(&self.alone);
        found.extend(raises.and_then(|raises| self.remedy(Change::Raise(raises))));
        found
    }

    fn placed(snapshot: &Snapshot, ix: WaitingIx) -> Option<Placed> {
        let plan = decide(snapshot);
        let mut placements = plan.placements.into_iter();
        let own = placements.find(|placed| placed.waiting == ix)?;
        Some((own.pool, own.gpus))
    }

    /// Whether it would be placed if nobody else waited; no more is known once all trials are used.
    fn passes(&self, change: &Change) -> bool {
        let Some(left) = self.trials.get().checked_sub(1) else {
            return false;
        };
        self.trials.set(left);
        let mut alone = self.alone.clone();
        apply(&mut alone, WaitingIx(0), change);
        Self::placed(&alone, WaitingIx(0)).is_some()
    }

    /// Where the next round would place it.
    fn confirm(&mut self, change: &Change) -> Option<Placed> {
        self.rounds = self.rounds.checked_sub(1)?;
        let mut world = self.world.clone();
        apply(&mut world, self.ix, change);
        Self::placed(&world, self.ix)
    }

    fn remedy(&mut self, change: Change) -> Option<Remedy> {
        if self.rounds == 0 || !self.passes(&change) {
            return None;
        }
        let (pool, gpus) = self.confirm(&change)?;
        Some(Remedy {
            change,
            effect: Effect::StartsNow(pool),
            gpus,
        })
    }

    /// The first few of these that help.
    fn first_of(&mut self, changes: Vec<Change>) -> Vec<Remedy> {
        let found = changes.into_iter().filter_map(|change| self.remedy(change));
        found.take(MAX_ALIKE).collect()
    }

    /// The largest size below its least, of the role that gives up the fewest GPUs.
    fn fewer(&mut self) -> Option<Remedy> {
        let roles = &self.alone.waiting[0].shape.roles;
        let mut best: Option<(u64, u32, Change)> = None;
        for (role, number) in roles.iter().zip(0_u32..) {
            let unit = changes::unit(role);
            let most = role.min.saturating_sub(1) / unit;
            let less = |steps: u32| Change::Fewer {
                role: number,
                pods: role.min - steps * unit,
            };
            let steps = least(most, |steps| self.passes(&less(steps)));
            let Some(steps) = steps else { continue };
            let pods = u64::from(steps) * u64::from(unit);
            let given_up = role.per_pod.gpus.0.saturating_mul(pods);
            let candidate = (given_up, number, less(steps));
            if best.as_ref().is_none_or(|best| candidate.0 < best.0) {
                best = Some(candidate);
            }
        }
        let (_, number, change) = best?;
        if let Some((pool, gpus)) = self.confirm(&change) {
            let effect = Effect::StartsNow(pool);
            return Some(Remedy {
                change,
                effect,
                gpus,
            });
        }
        // Others are in the way: smaller still.
        let role = self.alone.waiting[0].shape.roles[number as usize].clone();
        let unit = changes::unit(&role);
        let most = role.min.saturating_sub(1) / unit;
        let less = |steps: u32| Change::Fewer {
            role: number,
            pods: role.min - steps * unit,
        };
        let mut known = None;
        let steps = least(most, |steps| {
            let placed = self.confirm(&less(steps));
            if let Some((pool, gpus)) = placed {
                let effect = Effect::StartsNow(pool);
                known = Some((steps, effect, gpus));
            }
            placed.is_some()
        })?;
        let (_, effect, gpus) = known.filter(|(known, ..)| *known == steps)?;
        Some(Remedy {
            change: less(steps),
            effect,
            gpus,
        })
    }

    /// The next wider level for a role that must keep to one.
    fn wider(&mut self) -> Vec<Remedy> {
        let roles = self.alone.waiting[0].shape.roles.clone();
        let mut found = Vec::new();
        for (role, number) in roles.iter().zip(0_u32..) {
            let Some(required) = &role.required else {
                continue;
            };
            let levels = self.levels_above(required);
            let levels = levels.into_iter().map(Some).chain([None]);
            let changes = levels.map(|level| Change::Level {
                role: number,
                level,
            });
            found.extend(changes.filter_map(|change| self.remedy(change)).take(1));
        }
        found
    }

    /// Levels of any pool that are wider than `level` there, the narrowest first.
    fn levels_above(&self, level: &str) -> Vec<String> {
        let mut above: Vec<(usize, String)> = Vec::new();
        for pool in &self.alone.pools {
            let own = pool.levels.iter().position(|name| name == level);
            let inner = own.or((level == HOST).then_some(pool.levels.len()));
            let wider = pool.levels.iter().take(inner.unwrap_or_default());
            above.extend(wider.rev().cloned().enumerate());
        }
        above.sort_unstable();
        let mut names: Vec<String> = Vec::new();
        for (_, name) in above {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    fn other_flavors(&self) -> Vec<Change> {
        let gang = &self.alone.waiting[0];
        if gang.flavors.is_empty() {
            return Vec::new();
        }
        let all = (0..).map(FlavorIx).take(self.alone.flavors.len());
        let accepted = |flavor: &FlavorIx| gang.flavors.iter().any(|it| it.flavor == *flavor);
        let there = |flavor: &FlavorIx| self.alone.pools.iter().any(|it| it.flavor == *flavor);
        all.filter(|flavor| !accepted(flavor) && there(flavor))
            .map(Change::Flavor)
            .collect()
    }

    fn other_regions(&self) -> Vec<Change> {
        let gang = &self.alone.waiting[0];
        if gang.regions.is_empty() {
            return Vec::new();
        }
        let all = (0..).map(RegionIx).take(self.alone.regions.len());
        all.filter(|region| !gang.regions.contains(region))
            .map(Change::Region)
            .collect()
    }

    fn other_clusters(&self) -> Vec<Change> {
        let gang = &self.alone.waiting[0];
        if gang.clusters.is_empty() {
            return Vec::new();
        }
        let all = (0..).map(ClusterIx).take(self.alone.clusters.len());
        all.filter(|cluster| !gang.clusters.contains(cluster))
            .map(Change::Cluster)
            .collect()
    }
}

/// The smallest of `1..=most` that `helps`, by halving: what helps goes on helping. `None` when
/// even the largest does not.
fn least(most: u32, mut helps: impl FnMut(u32) -> bool) -> Option<u32> {
    if most == 0 || !helps(most) {
        return None;
    }
    let (mut fails, mut works) = (0, most);
    while works - fails > 1 {
        let middle = fails + (works - fails) / 2;
        if helps(middle) {
            works = middle;
        } else {
            fails = middle;
        }
    }
    Some(works)
}
