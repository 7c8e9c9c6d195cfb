//! Preemption: room is made for a gang that finds none, at the least lost work anywhere.
//!
//! Owns the plan for one gang: which pool, which hosts, who goes or gets smaller, what is held.
//! Every pool that the gang may use is compared; bounds refuse what can never be before anybody is
//! looked at. Needs to know on which hosts work stands (`Snapshot::hosts`), and plans nothing where
//! nobody says so. Never carries anything out: the gang is placed by `decide` when the room is
//! there.
//!
//! ```text
//! who may be taken (rules) -> what it costs (cost) -> hosts to clear (search) -> does the whole
//! gang fit (fit) -> who need not go after all -> is there quota (ledger) -> the cheapest pool
//! ```

mod candidates;
mod cost;
mod ground;
pub mod holds;
mod room;
mod rounds;
mod rules;
mod search;
pub mod words;

use std::cmp::Reverse;

use meridian_api::units::{Millis, Resources, UnixMillis};

use crate::candidates::{Preference, allows_cluster, lacks, preference};
use crate::decide::Round;
use crate::fit::fit;
use crate::model::{
    GangShape, Held, HoldRoom, HostIx, Leaves, Pool, PoolIx, Preemption, RoleShape, Shape,
    Snapshot, Take, Victim, WaitingIx, Yield,
};
use crate::pick::Scope;
use crate::quota::{Ledger, Reach};
use crate::slots::Mask;

use candidates::Candidates;
use ground::Ground;
use room::{Assigned, assign};
pub(crate) use rounds::Preemptions;
use rules::Asker;
pub(crate) use rules::cooling;
use search::{Area, Search};

/// From the last victim's deadline to the end of a hold: the agent's kill after its grace (30 s at
/// most by default) and the reports of both sides.
const HOLD_MARGIN: Millis = Millis::seconds(60);
/// Areas of one pool that are searched in full, the cheapest by estimate first.
const AREAS: usize = 8;
/// Times that a search is widened when the whole gang does not fit on what one role needs.
const WIDENINGS: u32 = 6;
/// Placements of one tenant that are looked at to free quota, its cheapest: each costs a walk up
/// the tree, and more than a thousand that make way for one gang are no plan.
const QUOTA_STEPS: usize = 1024;

/// What a pool offers.
struct Bid {
    cost: u64,
    preference: Preference,
    pool: PoolIx,
    takes: Vec<Take>,
    room: Vec<HoldRoom>,
    victims: Vec<Victim>,
}

/// The cheapest way to make room for the gang; `None` when there is none.
pub(crate) fn plan(
    round: &mut Round<'_>,
    ix: WaitingIx,
    reach: Reach,
    mask: Mask,
) -> Option<Preemption> {
    let snapshot = round.snapshot;
    let gang = round.gang(ix);
    let pods = gang.shape.least();
    let need = gang.shape.demand(&pods);
    let main = main_role(round, ix)?;
    let once_gone = round.once_gone();
    let mut best: Option<Bid> = None;
    for (pool, preference) in open_to(round, ix) {
        let source = &snapshot.pools[pool.index()];
        let place = snapshot.place(source);
        let is_owner = once_gone.owed(gang.tenant, place).covers(need);
        if reach == Reach::Nominal && !is_owner {
            continue;
        }
        let asker = Asker::new(snapshot, gang, is_owner);
        if !could_hold(&source.shapes, &gang.shape.roles, &pods) {
            continue;
        }
        let candidates = round.preemptions.candidates(snapshot, &asker, pool);
        let spare = round.pools[pool.index()].free;
        let Some(bound) = candidates.bound(need.gpus, spare) else {
            continue;
        };
        if best.as_ref().is_some_and(|best| best.cost < bound) {
            continue;
        }
        let bid = bid(round, ix, pool, mask, &candidates, main, preference);
        let Some(mut bid) = bid else { continue };
        if !with_quota(round, &asker, reach, need, &once_gone, &mut bid) {
            continue;
        }
        if bid.victims.is_empty() {
            if !round.ledger.room(gang.tenant, place, reach).covers(need) {
                // It finds room there, and quota as soon as those have gone who are leaving.
                return None;
            }
            continue;
        }
        if best.as_ref().is_none_or(|best| bid.key() < best.key()) {
            best = Some(bid);
        }
    }
    let bid = best?;
    let last = bid.victims.iter().map(|victim| victim.deadline).max()?;
    Some(Preemption {
        waiting: ix,
        pool: bid.pool,
        gpus: need.gpus,
        pods,
        takes: bid.takes,
        room: bid.room,
        rows: Vec::new(),
        cost: bid.cost,
        victims: bid.victims,
        until: last.after(HOLD_MARGIN),
        after: round.placed,
    })
}

impl Bid {
    fn key(&self) -> (u64, usize, u32, u32, PoolIx) {
        (
            self.cost,
            self.victims.len(),
            self.preference.region_order,
            self.preference.flavor_order,
            self.pool,
        )
    }
}

/// The role that is hardest to find room for.
fn main_role(round: &Round<'_>, ix: WaitingIx) -> Option<usize> {
    let roles = &round.gang(ix).shape.roles;
    let all = roles.iter().enumerate();
    let sized = all.map(|(at, role)| {
        let gpus = role.per_pod.gpus.0.saturating_mul(role.min.into());
        (gpus, role.per_pod, at)
    });
    sized.max().map(|(_, _, at)| at)
}

/// Pools that the gang may use, by name.
fn open_to(round: &Round<'_>, ix: WaitingIx) -> Vec<(PoolIx, Preference)> {
    let (snapshot, gang) = (round.snapshot, round.gang(ix));
    let open = round.places.open.iter().filter_map(|pool| {
        let source = &snapshot.pools[pool.index()];
        let cluster = &snapshot.clusters[source.cluster.index()];
        // Hosts that a reservation keeps from it would not be its own when they are free.
        let least = gang.shape.least();
        let may = allows_cluster(gang, source.cluster, cluster)
            && lacks(gang, source.cluster).is_none()
            && round.copies.allows(gang.gang.job, source.cluster)
            && round.blocks.must_leave(ix, *pool, &gang.shape, &least) == 0;
        let preference = preference(snapshot, gang, source).ok().filter(|_| may)?;
        Some((*pool, preference))
    });
    open.collect()
}

/// False when the hosts could not hold the pods of some role even if they were empty: a bound that
/// costs one division per row.
fn could_hold(shapes: &[Shape], roles: &[RoleShape], pods: &[u32]) -> bool {
    roles.iter().zip(pods).all(|(role, pods)| {
        let mut left = u64::from(*pods);
        shapes.iter().any(|row| {
            let each = row.allocatable.times(role.per_pod);
            left = left.saturating_sub(each.saturating_mul(u64::from(row.hosts)));
            left == 0
        })
    })
}

/// What one pool offers: hosts cleared, the whole gang fitted, who need not go reprieved.
fn bid(
    round: &Round<'_>,
    ix: WaitingIx,
    pool: PoolIx,
    mask: Mask,
    candidates: &Candidates,
    main: usize,
    preference: Preference,
) -> Option<Bid> {
    let snapshot = round.snapshot;
    let source = &snapshot.pools[pool.index()];
    let gang = &round.gang(ix).shape;
    let least = gang.least();
    let seen = round.seen(pool, mask);
    let start = candidates.ground(snapshot, pool, &seen, &round.preemptions.moved);
    let (per_pod, wanted) = (gang.roles[main].per_pod, least[main]);
    let scope = Scope::of(&source.levels, gang.roles[main].required.as_deref())?;
    let areas = areas(&start, source.shapes.as_slice(), &seen, per_pod, scope);
    let mut first = start.clone();
    let mut search = Search::new(&mut first, per_pod);
    let estimates = areas.into_iter().filter_map(|area| {
        let cost = search.estimate(&area, u64::from(wanted))?;
        Some((cost, area))
    });
    let mut estimates: Vec<(u64, Area)> = estimates.collect();
    estimates.sort_by(|a, b| (a.0, &a.1.hosts).cmp(&(b.0, &b.1.hosts)));
    let mut best: Option<Bid> = None;
    for (_, area) in estimates.into_iter().take(AREAS) {
        let mut ground = start.clone();
        let Some((takes, rows)) = cleared(&mut ground, &area, &seen, source, gang, main) else {
            continue;
        };
        let assigned = assign(&ground, &source.shapes, &rows, gang, &takes)?;
        reprieve(&mut ground, &assigned);
        let victims = victims(&ground, &assigned);
        let cost = victims
            .iter()
            .fold(0_u64, |sum, it| sum.saturating_add(it.cost));
        let bid = Bid {
            cost,
            preference,
            pool,
            room: assigned.room(&ground, &source.shapes),
            takes,
            victims,
        };
        if best.as_ref().is_none_or(|best| bid.key() < best.key()) {
            best = Some(bid);
        }
    }
    best
}

/// Clears hosts of the area until the whole gang fits; the fit and the rows it was made for.
fn cleared(
    ground: &mut Ground<'_>,
    area: &Area,
    seen: &[Shape],
    source: &Pool,
    gang: &GangShape,
    main: usize,
) -> Option<(Vec<Take>, Vec<Shape>)> {
    let least = gang.least();
    let per_pod = gang.roles[main].per_pod;
    let most = Search::new(ground, per_pod).most(area);
    let mut wanted = u64::from(least[main]);
    for widening in 0..=WIDENINGS {
        if widening == WIDENINGS {
            wanted = most;
        }
        if !Search::new(ground, per_pod).clear(area, wanted) {
            return None;
        }
        let rows = ground.rows(seen, &source.shapes);
        if let Some(found) = fit(&source.levels, &rows, gang, &least) {
            return Some((found.takes, rows));
        }
        if wanted >= most {
            return None;
        }
        wanted = wanted.saturating_add(wanted.div_ceil(2)).min(most);
    }
    None
}

/// Hosts that must hold the pods together, and what the others there hold as they are.
fn areas(
    ground: &Ground<'_>,
    shapes: &[Shape],
    seen: &[Shape],
    per_pod: Resources,
    scope: Scope,
) -> Vec<Area> {
    use std::collections::BTreeMap;
    let depth = match scope {
        Scope::Pool => 0,
        Scope::Domain(depth) => depth,
        Scope::Host => {
            let hosts = 0..ground.hosts.len();
            return hosts
                .map(|host| Area {
                    hosts: vec![host],
                    natural: 0,
                })
                .collect();
        }
    };
    let mut areas: BTreeMap<&[String], Area> = BTreeMap::new();
    for row in seen {
        let Some(domain) = row.domains.get(..depth) else {
            continue;
        };
        let all = row.free.times(per_pod).saturating_mul(row.hosts.into());
        let area = areas.entry(domain).or_default();
        area.natural = area.natural.saturating_add(all);
    }
    for (at, host) in ground.hosts.iter().enumerate() {
        let row = &shapes[host.row as usize];
        let area = row
            .domains
            .get(..depth)
            .and_then(|domain| areas.get_mut(domain));
        if let Some(area) = area {
            area.natural = area.natural.saturating_sub(row.free.times(per_pod));
            area.hosts.push(at);
        }
    }
    areas.into_values().collect()
}

/// Reprieves everybody whom the hosts that the gang goes to do without, the dearest first.
fn reprieve(ground: &mut Ground<'_>, assigned: &Assigned) {
    let mut asked: Vec<usize> = (0..ground.candidates.len())
        .filter(|ix| ground.is_asked(*ix))
        .collect();
    asked.sort_by_key(|ix| (Reverse(ground.cost(*ix)), *ix));
    for candidate in asked {
        let does_without = ground.where_is[candidate].iter().all(|(host, seat)| {
            let given = ground.given(candidate, *host, *seat);
            let without = ground::minus(ground.hosts[*host].free, given);
            assigned
                .need_of(*host)
                .is_none_or(|need| without.covers(need))
        });
        if does_without {
            ground.reprieve(candidate);
        }
    }
}

/// Everybody who was asked something, by placement.
fn victims(ground: &Ground<'_>, assigned: &Assigned) -> Vec<Victim> {
    let asked = (0..ground.candidates.len()).filter(|ix| ground.is_asked(*ix));
    let mut victims: Vec<Victim> = asked.map(|ix| victim(ground, ix, assigned)).collect();
    victims.sort_by_key(|victim| victim.held);
    victims
}

fn victim(ground: &Ground<'_>, candidate: usize, assigned: &Assigned) -> Victim {
    let it = &ground.candidates[candidate];
    let held = ground.held(candidate);
    let class = &ground.snapshot.classes[held.class.index()];
    let deadline: UnixMillis = ground.snapshot.now.after(class.rule.notice);
    let base = Victim {
        held: it.held,
        rule: it.rule,
        does: Yield::Evict,
        lost: it.lost,
        cost: it.cost,
        deadline,
    };
    if it.goes {
        return base;
    }
    let roles = &held.standing.shape.roles;
    let pods = roles.iter().zip(&it.full_slack).zip(&it.slack);
    let pods = pods.map(|((role, full), slack)| {
        let step = role.step.max(1);
        let left = (full - slack).div_ceil(step).saturating_mul(step);
        role.max.saturating_sub(left)
    });
    Victim {
        does: Yield::Shrink {
            pods: pods.collect(),
            leaves: leaves(ground, candidate, assigned),
        },
        lost: 0,
        cost: ground.cost(candidate),
        ..base
    }
}

/// Where pods of a candidate must leave, because the gang goes there.
fn leaves(ground: &Ground<'_>, candidate: usize, assigned: &Assigned) -> Vec<Leaves> {
    let mut leaves = Vec::new();
    for (host, seat) in &ground.where_is[candidate] {
        if assigned.need_of(*host).is_none() {
            continue;
        }
        let gone = ground.pods_gone(candidate, *host, *seat);
        let gone = gone.into_iter().zip(0_u32..).filter(|(pods, _)| *pods > 0);
        leaves.extend(gone.map(|(pods, role)| Leaves {
            host: HostIx(ground.hosts[*host].ix),
            role,
            pods,
        }));
    }
    leaves
}

/// What a victim gives up.
#[must_use]
pub fn given_up(held: &Held, does: &Yield) -> Resources {
    match does {
        Yield::Evict | Yield::Move { .. } => held.resources,
        Yield::Shrink { pods, .. } => {
            let stays = held.standing.shape.demand(pods);
            ground::minus(held.resources, stays)
        }
    }
}

/// True when there is quota for the gang once the victims are gone, and those who leave already;
/// adds more of those that it may take where quota is short, the cheapest first.
fn with_quota(
    round: &mut Round<'_>,
    asker: &Asker<'_>,
    reach: Reach,
    need: Resources,
    once_gone: &Ledger<'_>,
    bid: &mut Bid,
) -> bool {
    let snapshot = round.snapshot;
    let place = snapshot.place(&snapshot.pools[bid.pool.index()]);
    let tenant = asker.gang.tenant;
    let mut ledger = once_gone.clone();
    for victim in &bid.victims {
        give_back(snapshot, &mut ledger, victim);
    }
    if ledger.room(tenant, place, reach).covers(need) {
        return true;
    }
    let more = round.preemptions.for_quota(snapshot, asker, place);
    let is_new = |it: &Victim| bid.victims.iter().all(|other| other.held != it.held);
    let more: Vec<Victim> = more.into_iter().filter(is_new).collect();
    let mut bound = ledger.clone();
    for victim in &more {
        give_back(snapshot, &mut bound, victim);
    }
    if !bound.room(tenant, place, reach).covers(need) {
        return false;
    }
    let mut added: Vec<Victim> = Vec::new();
    for victim in more {
        give_back(snapshot, &mut ledger, &victim);
        added.push(victim);
        if ledger.room(tenant, place, reach).covers(need) {
            break;
        }
    }
    // Whoever made no difference stays: the cheap ones were added first, so the dear ones are
    // asked last whether they must go.
    added.retain(|victim| {
        let held = &snapshot.held[victim.held.index()];
        let stood = snapshot.held[victim.held.index()].place(snapshot);
        ledger.keep(held.tenant, stood, given_up(held, &victim.does));
        let needed = !ledger.room(tenant, place, reach).covers(need);
        if needed {
            give_back(snapshot, &mut ledger, victim);
        }
        needed
    });
    bid.victims.extend(added);
    bid.victims.sort_by_key(|victim| victim.held);
    bid.cost = bid
        .victims
        .iter()
        .fold(0_u64, |sum, it| sum.saturating_add(it.cost));
    true
}

fn give_back(snapshot: &Snapshot, ledger: &mut Ledger<'_>, victim: &Victim) {
    let held = &snapshot.held[victim.held.index()];
    let stood = snapshot.held[victim.held.index()].place(snapshot);
    ledger.give_back(held.tenant, stood, given_up(held, &victim.does));
}
