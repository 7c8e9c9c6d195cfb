//! Invariants of a plan, checked independently of the code that made it.
//!
//! Owns what must hold of any plan for its snapshot: the hub checks each round before it commits,
//! tests check every plan they make. Everything is computed anew, plainly, and from nothing but
//! snapshot and plan: no code of `decide`, `quota` or `fit` is used. Never repairs.

mod choice;
mod ledger;
mod preemption;
mod reserved;
pub mod truth;

use std::collections::{BTreeMap, BTreeSet};

use meridian_api::ids::GangId;

use crate::model::{Contact, GangShape, Placed, Plan, Pool, RoleShape, Snapshot, Waiting};

/// Something that must never be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// Number in the list of invariants.
    pub invariant: &'static str,
    /// What and where, with numbers.
    pub message: String,
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.invariant, self.message)
    }
}

type Found = Vec<Violation>;

fn report(found: &mut Found, invariant: &'static str, message: String) {
    found.push(Violation { invariant, message });
}

/// Everything that is wrong with `plan`; empty when it may be committed.
#[must_use]
pub fn check(snapshot: &Snapshot, plan: &Plan) -> Vec<Violation> {
    let mut found = Vec::new();
    coverage(snapshot, plan, &mut found);
    if found.is_empty() {
        // The rest reads tables by the ordinals that were just found to be good.
        for placed in &plan.placements {
            let gang = &snapshot.waiting[placed.waiting.index()];
            allowed(snapshot, gang, placed, &mut found);
            choice::kept(snapshot, gang, placed, &mut found);
            whole(gang, placed, &mut found);
            together(snapshot, gang, placed, &mut found);
            sliced(snapshot, gang, placed, &mut found);
        }
        choice::copies(snapshot, plan, &mut found);
        choice::returning(snapshot, plan, &mut found);
        choice::near_others(snapshot, plan, &mut found);
        identity(snapshot, plan, &mut found);
        preemption::just(snapshot, plan, &mut found);
        if snapshot.holds.is_empty() && plan.preemptions.is_empty() {
            rooms(snapshot, plan, &mut found);
        } else {
            preemption::rooms_with_holds(snapshot, plan, &mut found);
        }
        reserved::blocks_stay_whole(snapshot, plan, &mut found);
        reserved::vacating(snapshot, plan, &mut found);
        ledger::limits(snapshot, plan, &mut found);
        ledger::limits_of_jobs(snapshot, plan, &mut found);
        ledger::rows_add_up(snapshot, plan, &mut found);
    }
    found
}

/// Every waiting gang is placed once or explained once (L1), and nothing else is.
fn coverage(snapshot: &Snapshot, plan: &Plan, found: &mut Found) {
    let mut times = vec![0_u32; snapshot.waiting.len()];
    let placed = plan.placements.iter().map(|placed| placed.waiting);
    let unplaced = plan.unplaced.iter().map(|unplaced| unplaced.waiting);
    for ix in placed.chain(unplaced) {
        match times.get_mut(ix.index()) {
            Some(count) => *count += 1,
            None => report(
                found,
                "L1",
                format!("plan names gang {} of {}", ix.0, times.len()),
            ),
        }
    }
    for (gang, count) in snapshot.waiting.iter().zip(&times) {
        if *count != 1 {
            report(
                found,
                "L1",
                format!("gang {} is in the plan {count} times", gang.gang),
            );
        }
    }
    let pools = plan.placements.iter().map(|placed| placed.pool);
    for pool in pools.chain(plan.preemptions.iter().map(|made| made.pool)) {
        if pool.index() >= snapshot.pools.len() {
            report(found, "S5", format!("no pool {}", pool.0));
        }
    }
    for made in &plan.preemptions {
        let told = times.get(made.waiting.index()) == Some(&1);
        if !told {
            let ix = made.waiting.0;
            report(
                found,
                "L1",
                format!("room is made for gang {ix}, which does not wait"),
            );
        }
    }
    for lapsed in &plan.lapsed {
        if lapsed.hold.index() >= snapshot.holds.len() {
            report(found, "L1", format!("no hold {}", lapsed.hold.0));
        }
    }
    reasons(plan, found);
}

/// Whoever waits is told why, in order (L1, S27).
fn reasons(plan: &Plan, found: &mut Found) {
    // Gangs that look alike share one list, at one address: of a million lists a few differ.
    let mut in_order = BTreeSet::new();
    for unplaced in &plan.unplaced {
        let (ix, list) = (unplaced.waiting.0, unplaced.reasons.address());
        if in_order.contains(&list) {
            continue;
        }
        let (is_empty, is_sorted) = (unplaced.reasons.is_empty(), unplaced.reasons.is_sorted());
        if is_empty {
            report(found, "L1", format!("gang {ix} waits without a reason"));
        }
        if !is_sorted {
            let message = format!("reasons of gang {ix} are not in order");
            report(found, "S27", message);
        }
        if !is_empty && is_sorted {
            in_order.insert(list);
        }
    }
}

/// The job, the pool and the cluster all agree to the place.
fn allowed(snapshot: &Snapshot, gang: &Waiting, placed: &Placed, found: &mut Found) {
    let pool = &snapshot.pools[placed.pool.index()];
    let cluster = &snapshot.clusters[pool.cluster.index()];
    let mut refuse = |invariant, what: &str| {
        let place = format!("{}/{}", cluster.name, pool.name);
        report(
            found,
            invariant,
            format!("gang {} placed in {place}, {what}", gang.gang),
        );
    };
    if cluster.cordoned {
        refuse("S20", "which is cordoned");
    }
    if cluster.contact != Contact::Ready {
        refuse("S20", "whose agent is not heard");
    }
    if gang
        .lacking
        .iter()
        .any(|lacking| lacking.cluster == pool.cluster)
    {
        refuse("S20", "which lacks what it depends on");
    }
    if gang.suspended {
        refuse("S20", "though it is suspended");
    }
    if !pool.classes.is_empty() && !pool.classes.contains(&gang.class) {
        refuse("S20", "which does not admit its class");
    }
    if !gang.regions.is_empty() && !gang.regions.contains(&cluster.region) {
        refuse("S20", "outside its regions");
    }
    if !gang.clusters.is_empty() && !gang.clusters.contains(&pool.cluster) {
        refuse("S20", "outside its clusters");
    }
    let accepts = gang
        .flavors
        .iter()
        .any(|accepted| accepted.flavor == pool.flavor);
    if !gang.flavors.is_empty() && !accepts {
        refuse("S20", "whose flavor it does not accept");
    }
}

/// Every role has a size it may run with, all its pods have hosts, and the sum is right.
fn whole(gang: &Waiting, placed: &Placed, found: &mut Found) {
    let id = gang.gang;
    let roles = &gang.shape.roles;
    if placed.pods.len() != roles.len() {
        let message = format!(
            "gang {id} has {} roles, {} placed",
            roles.len(),
            placed.pods.len()
        );
        return report(found, "S9", message);
    }
    let mut seats = vec![0_u64; roles.len()];
    for take in &placed.takes {
        match seats.get_mut(take.role as usize) {
            Some(sum) => *sum += u64::from(take.hosts) * u64::from(take.pods_per_host),
            None => report(found, "S9", format!("gang {id} has no role {}", take.role)),
        }
    }
    let mut gpus = 0_u128;
    for ((role, &pods), seats) in roles.iter().zip(&placed.pods).zip(seats) {
        let name = &role.name;
        let off_step = pods
            .checked_sub(role.min)
            .is_none_or(|above| above % role.step.max(1) != 0);
        if off_step || pods > role.max.max(role.min) {
            let sizes = format!("{}..={} by {}", role.min, role.max, role.step);
            report(
                found,
                "S9",
                format!("gang {id} role {name}: {pods} pods, not of {sizes}"),
            );
        }
        if seats != u64::from(pods) {
            report(
                found,
                "S9",
                format!("gang {id} role {name}: {pods} pods on {seats} seats"),
            );
        }
        gpus += u128::from(role.per_pod.gpus.0) * u128::from(pods);
    }
    if gpus != u128::from(placed.gpus.0) {
        report(
            found,
            "S33",
            format!("gang {id} uses {gpus} milli-GPUs, says {}", placed.gpus.0),
        );
    }
}

/// Each slice of a role is in one domain of its level: all that a domain holds are whole slices.
fn sliced(snapshot: &Snapshot, gang: &Waiting, placed: &Placed, found: &mut Found) {
    let levels = &snapshot.pools[placed.pool.index()].levels;
    for (role, index) in gang.shape.roles.iter().zip(0_u32..) {
        let Some(slice) = &role.slice else {
            continue;
        };
        let at = levels.iter().position(|name| *name == slice.level);
        let depth = at.map_or(0, |at| at + 1);
        let own = placed.takes.iter().filter(|take| take.role == index);
        let mut parts: BTreeMap<_, u64> = BTreeMap::new();
        for take in own {
            let pods = u64::from(take.pods_per_host);
            if slice.level == "host" {
                let key = (take.domains.as_slice(), take.pods_per_host);
                *parts.entry(key).or_default() = pods;
            } else {
                let domain = take.domains.get(..depth).unwrap_or_default();
                let sum = parts.entry((domain, 0)).or_default();
                *sum = sum.saturating_add(pods.saturating_mul(u64::from(take.hosts)));
            }
        }
        let unit = u64::from(slice.pods);
        if parts.values().any(|pods| unit == 0 || pods % unit > 0) {
            let (id, name, level) = (gang.gang, &role.name, &slice.level);
            let message = format!("gang {id} role {name}: a slice is not in one {level}");
            report(found, "S9", message);
        }
    }
}

/// Each role that requires a level has all its pods in one domain of it.
fn together(snapshot: &Snapshot, gang: &Waiting, placed: &Placed, found: &mut Found) {
    let levels = &snapshot.pools[placed.pool.index()].levels;
    for (role, index) in gang.shape.roles.iter().zip(0_u32..) {
        let Some(level) = role.required.as_deref() else {
            continue;
        };
        let own: Vec<_> = placed
            .takes
            .iter()
            .filter(|take| take.role == index)
            .collect();
        let apart = if level == "host" {
            own.iter().map(|take| u64::from(take.hosts)).sum::<u64>() > 1
        } else {
            let depth = levels
                .iter()
                .position(|name| name == level)
                .map(|at| at + 1);
            let domains: BTreeSet<_> = own
                .iter()
                .map(|take| depth.and_then(|depth| take.domains.get(..depth)))
                .collect();
            domains.len() > 1 || domains.contains(&None)
        };
        if apart {
            let message = format!(
                "gang {} role {} is not in one {level}",
                gang.gang, role.name
            );
            report(found, "S9", message);
        }
    }
}

/// No gang gets a second place, and epochs grow.
fn identity(snapshot: &Snapshot, plan: &Plan, found: &mut Found) {
    let held: BTreeMap<GangId, _> = snapshot.held.iter().map(|row| (row.gang, row)).collect();
    let mut placed_gangs = BTreeSet::new();
    for placed in &plan.placements {
        let gang = &snapshot.waiting[placed.waiting.index()];
        if !placed_gangs.insert(gang.gang) {
            report(found, "S1", format!("gang {} is placed twice", gang.gang));
        }
        if let Some(row) = held.get(&gang.gang) {
            report(
                found,
                "S1",
                format!("gang {} still holds epoch {}", gang.gang, row.epoch),
            );
            if gang.next_epoch <= row.epoch {
                let message = format!(
                    "gang {}: epoch {} does not grow",
                    gang.gang, gang.next_epoch
                );
                report(found, "S2", message);
            }
        }
    }
}

/// Hosts of a pool, one entry per different host.
type Hosts<'a> = BTreeMap<(&'a [String], [u64; 3], [u64; 3]), u64>;

/// Takes use hosts that are there, and no host gives more than it has (S5).
fn rooms(snapshot: &Snapshot, plan: &Plan, found: &mut Found) {
    let mut rooms: Vec<Hosts<'_>> = snapshot.pools.iter().map(hosts).collect();
    for placed in &plan.placements {
        let gang = &snapshot.waiting[placed.waiting.index()];
        let room = &mut rooms[placed.pool.index()];
        if let Err(what) = take_from(room, &gang.shape, placed) {
            report(
                found,
                "S5",
                format!("gang {} in pool {}: {what}", gang.gang, placed.pool.0),
            );
        }
    }
}

fn hosts(pool: &Pool) -> Hosts<'_> {
    let mut hosts = Hosts::new();
    for shape in &pool.shapes {
        let key = (
            shape.domains.as_slice(),
            vector(shape.allocatable),
            vector(shape.free),
        );
        *hosts.entry(key).or_default() += u64::from(shape.hosts);
    }
    hosts
}

const fn vector(resources: meridian_api::units::Resources) -> [u64; 3] {
    [resources.gpus.0, resources.cpu.0, resources.memory.0]
}

fn take_from<'a>(room: &mut Hosts<'a>, gang: &GangShape, placed: &'a Placed) -> Result<(), String> {
    for take in &placed.takes {
        let role: &RoleShape = gang.roles.get(take.role as usize).ok_or("unknown role")?;
        let before = vector(take.free);
        let key = (take.domains.as_slice(), vector(take.allocatable), before);
        let there = room.get(&key).copied().unwrap_or(0);
        let rest = there.checked_sub(u64::from(take.hosts));
        let rest = rest.ok_or_else(|| format!("takes {} hosts of {there}", take.hosts))?;
        room.insert(key, rest);
        let request = vector(role.per_pod);
        let mut left = before;
        for (left, each) in left.iter_mut().zip(request) {
            let used = u128::from(each) * u128::from(take.pods_per_host);
            let after = u128::from(*left)
                .checked_sub(used)
                .ok_or("a host gives more than it has")?;
            *left = u64::try_from(after).map_err(|_| "a host has more than can be counted")?;
        }
        let key = (take.domains.as_slice(), vector(take.allocatable), left);
        *room.entry(key).or_default() += u64::from(take.hosts);
    }
    Ok(())
}
