//! Fitting a gang on shapes: all of it or nothing, tightest first.
//!
//! Owns the choice of hosts for the pods of one gang in one pool, for the hub (which sees shapes)
//! and the agent (which groups its nodes into shapes). Never looks at names, except to end a tie.
//!
//! A gang with one role is fitted whenever it can be. Several roles are packed one after the
//! other, the most bound and largest first, which may miss a packing that exists: that is bin
//! packing, and a round has no time for it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use meridian_api::units::{MilliGpus, Resources};

use crate::model::{GangShape, RoleShape, Shape, Take};

/// Name of the innermost level, which every pool has.
pub const HOST: &str = "host";

/// Where a gang would go, and how well it fits there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Hosts used, in the order in which they were taken.
    pub takes: Vec<Take>,
    /// Preferred levels that it does not keep.
    pub preferences_missed: u32,
    /// GPUs left free on the hosts that it touches.
    pub left_on_hosts: MilliGpus,
}

/// How close together the pods of a role must be, from the loosest inward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// Anywhere in the pool.
    Pool,
    /// In one domain, which is named by this many domain names from the widest inward.
    Domain(usize),
    /// On one host.
    Host,
}

impl Scope {
    /// Scope of a level by name; `None` when the pool has no such level.
    pub(crate) fn of(levels: &[String], level: Option<&str>) -> Option<Self> {
        match level {
            None => Some(Self::Pool),
            Some(HOST) => Some(Self::Host),
            Some(name) => {
                let position = levels.iter().position(|level| level == name)?;
                Some(Self::Domain(position + 1))
            }
        }
    }
}

/// Hosts that look alike while a gang is being fitted.
#[derive(Clone)]
struct Row<'a> {
    domains: &'a [String],
    allocatable: Resources,
    free: Resources,
    hosts: u32,
    touched: bool,
}

/// Hosts of one row, and how many pods go on each.
struct Pick {
    row: usize,
    hosts: u32,
    pods_per_host: u32,
}

/// The tightest place for `pods` pods per role of `gang` on `shapes`, or `None` when it does not
/// fit as a whole. Does not depend on the order of `shapes`. A preferred level is kept if the
/// whole gang fits that way.
///
/// Hosts that would be left with the fewest free GPUs are taken first, and each is filled before
/// the next is touched; a domain likewise.
#[must_use]
pub fn fit(levels: &[String], shapes: &[Shape], gang: &GangShape, pods: &[u32]) -> Option<Fit> {
    if pods.len() != gang.roles.len() {
        return None;
    }
    let rows = rows(shapes);
    let wishes = gang.roles.iter().any(|role| role.preferred.is_some());
    let kept = if wishes {
        attempt(levels, &rows, gang, pods, Wishes::Kept)
    } else {
        None
    };
    kept.or_else(|| attempt(levels, &rows, gang, pods, Wishes::Dropped))
}

/// Whether preferred levels are tried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wishes {
    Kept,
    Dropped,
}

fn rows(shapes: &[Shape]) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = shapes
        .iter()
        .filter(|shape| shape.hosts > 0)
        .map(|shape| Row {
            domains: &shape.domains,
            allocatable: shape.allocatable,
            free: shape.free,
            hosts: shape.hosts,
            touched: false,
        })
        .collect();
    rows.sort_by(|a, b| {
        (a.domains, a.allocatable, a.free, a.hosts).cmp(&(
            b.domains,
            b.allocatable,
            b.free,
            b.hosts,
        ))
    });
    rows
}

fn attempt(
    levels: &[String],
    rows: &[Row<'_>],
    gang: &GangShape,
    pods: &[u32],
    wishes: Wishes,
) -> Option<Fit> {
    let mut rows = rows.to_vec();
    let mut takes = Vec::new();
    for index in packing_order(levels, gang)? {
        let (role, count) = (&gang.roles[index], pods[index]);
        let required = Scope::of(levels, role.required.as_deref())?;
        let preferred = match wishes {
            Wishes::Kept => Scope::of(levels, role.preferred.as_deref()).unwrap_or(Scope::Pool),
            Wishes::Dropped => Scope::Pool,
        };
        let closer = (preferred > required).then_some(preferred);
        let picks = closer
            .and_then(|scope| choose(&rows, scope, role.per_pod, count))
            .or_else(|| choose(&rows, required, role.per_pod, count))?;
        let role_index = u32::try_from(index).ok()?;
        apply(&mut rows, &mut takes, role_index, role.per_pod, &picks)?;
    }
    let left = rows
        .iter()
        .filter(|row| row.touched)
        .fold(0_u64, |sum, row| {
            sum.saturating_add(row.free.gpus.0.saturating_mul(u64::from(row.hosts)))
        });
    let missed = gang.roles.iter().enumerate();
    let missed = missed.filter(|(index, role)| misses_preference(levels, role, *index, &takes));
    Some(Fit {
        preferences_missed: u32::try_from(missed.count()).unwrap_or(u32::MAX),
        left_on_hosts: MilliGpus(left),
        takes,
    })
}

/// Roles from the most bound and largest; `None` when one requires a level that is not there.
fn packing_order(levels: &[String], gang: &GangShape) -> Option<Vec<usize>> {
    let mut keyed = Vec::with_capacity(gang.roles.len());
    for (index, role) in gang.roles.iter().enumerate() {
        let scope = Scope::of(levels, role.required.as_deref())?;
        keyed.push((Reverse(scope), Reverse(role.per_pod), index));
    }
    keyed.sort();
    Some(keyed.into_iter().map(|(_, _, index)| index).collect())
}

fn choose(rows: &[Row<'_>], scope: Scope, per_pod: Resources, pods: u32) -> Option<Vec<Pick>> {
    if pods == 0 {
        return Some(Vec::new());
    }
    match scope {
        Scope::Pool => fill(rows, &all(rows), per_pod, pods),
        Scope::Domain(depth) => choose_domain(rows, depth, per_pod, pods),
        Scope::Host => {
            let holds = |row: &Row<'_>| capacity(row, per_pod, pods) >= pods;
            let fitting: Vec<usize> = all(rows)
                .into_iter()
                .filter(|&row| holds(&rows[row]))
                .collect();
            fill(rows, &fitting, per_pod, pods)
        }
    }
}

fn all(rows: &[Row<'_>]) -> Vec<usize> {
    (0..rows.len()).collect()
}

/// Pods that one host of the row can hold, at most `pods`.
fn capacity(row: &Row<'_>, per_pod: Resources, pods: u32) -> u32 {
    u32::try_from(row.free.times(per_pod))
        .unwrap_or(u32::MAX)
        .min(pods)
}

/// The domain that is left with the least: on the hosts used first, then in the domain.
fn choose_domain(
    rows: &[Row<'_>],
    depth: usize,
    per_pod: Resources,
    pods: u32,
) -> Option<Vec<Pick>> {
    let mut domains: BTreeMap<&[String], Vec<usize>> = BTreeMap::new();
    for (index, row) in rows.iter().enumerate() {
        if let Some(domain) = row.domains.get(..depth) {
            domains.entry(domain).or_default().push(index);
        }
    }
    let mut best = None;
    for (domain, members) in domains {
        let Some(picks) = fill(rows, &members, per_pod, pods) else {
            continue;
        };
        let left = picks.iter().fold(0_u64, |sum, pick| {
            let used = per_pod.gpus.0.saturating_mul(u64::from(pick.pods_per_host));
            let each = rows[pick.row].free.gpus.0.saturating_sub(used);
            sum.saturating_add(each.saturating_mul(u64::from(pick.hosts)))
        });
        let free = members.iter().fold(0_u64, |sum, &row| {
            let row = &rows[row];
            sum.saturating_add(row.free.gpus.0.saturating_mul(u64::from(row.hosts)))
        });
        // What the domain looks like comes before its name, so that a name decides only between
        // domains that look the same.
        let looks = |&row: &usize| (rows[row].allocatable, rows[row].free, rows[row].hosts);
        let mut looks: Vec<_> = members.iter().map(looks).collect();
        looks.sort_unstable();
        let cost = (left, free, looks, domain);
        if best.as_ref().is_none_or(|(least, _)| cost < *least) {
            best = Some((cost, picks));
        }
    }
    best.map(|(_, picks)| picks)
}

/// Fills hosts among `members`, those that are left with the fewest free GPUs first, then those
/// that hold the most pods; `None` when they do not hold all.
fn fill(rows: &[Row<'_>], members: &[usize], per_pod: Resources, pods: u32) -> Option<Vec<Pick>> {
    let room = members.iter().fold(0_u64, |sum, &row| {
        let each = u64::from(capacity(&rows[row], per_pod, pods));
        sum.saturating_add(each.saturating_mul(u64::from(rows[row].hosts)))
    });
    if room < u64::from(pods) {
        return None;
    }
    let mut picks = Vec::new();
    let mut spare: Vec<(usize, u32)> = members.iter().map(|&row| (row, rows[row].hosts)).collect();
    let mut missing = pods;
    // Each turn orders the hosts for what is still missing and uses them until a host would hold
    // more than that. After the first turn `missing` is below what one host holds, so turns are
    // few.
    while missing > 0 {
        spare.retain(|&(row, hosts)| hosts > 0 && capacity(&rows[row], per_pod, missing) > 0);
        spare.sort_by_cached_key(|&(row, _)| {
            let each = capacity(&rows[row], per_pod, missing);
            let used = per_pod.gpus.0.saturating_mul(u64::from(each));
            let row = &rows[row];
            let left = row.free.gpus.0.saturating_sub(used);
            (left, Reverse(each), row.allocatable, row.free, row.domains)
        });
        let turn = missing;
        let before = missing;
        for (row, hosts) in &mut spare {
            let each = capacity(&rows[*row], per_pod, turn);
            if each > missing {
                break;
            }
            let used = (missing / each).min(*hosts);
            picks.push(Pick {
                row: *row,
                hosts: used,
                pods_per_host: each,
            });
            *hosts -= used;
            missing -= used * each;
            if missing == 0 {
                break;
            }
        }
        if missing == before {
            return None;
        }
    }
    Some(picks)
}

/// Takes the picked hosts out of `rows` and puts them back with what is left on them.
fn apply(
    rows: &mut Vec<Row<'_>>,
    takes: &mut Vec<Take>,
    role: u32,
    per_pod: Resources,
    picks: &[Pick],
) -> Option<()> {
    for pick in picks {
        let used = per_pod.checked_mul(u64::from(pick.pods_per_host))?;
        let row = &mut rows[pick.row];
        let left = row.free.checked_sub(used)?;
        takes.push(Take {
            role,
            domains: row.domains.to_vec(),
            allocatable: row.allocatable,
            free: row.free,
            hosts: pick.hosts,
            pods_per_host: pick.pods_per_host,
        });
        row.hosts -= pick.hosts;
        let moved = Row {
            free: left,
            hosts: pick.hosts,
            touched: true,
            ..row.clone()
        };
        rows.push(moved);
    }
    rows.retain(|row| row.hosts > 0);
    Some(())
}

fn misses_preference(levels: &[String], role: &RoleShape, index: usize, takes: &[Take]) -> bool {
    let Some(level) = role.preferred.as_deref() else {
        return false;
    };
    let mut own = takes.iter().filter(|take| take.role as usize == index);
    let Some(first) = own.next() else {
        return false;
    };
    match Scope::of(levels, Some(level)) {
        None => true,
        Some(Scope::Pool) => false,
        Some(Scope::Domain(depth)) => {
            own.any(|take| take.domains.get(..depth) != first.domains.get(..depth))
        }
        Some(Scope::Host) => first.hosts > 1 || own.next().is_some(),
    }
}

/// Pods of `role` that fit on `shapes` alone, in the one place of its required level that holds
/// the most; at most `pods`. For explanations.
pub(crate) fn most_pods(levels: &[String], shapes: &[Shape], role: &RoleShape, pods: u32) -> u32 {
    let rows = rows(shapes);
    let room = |row: &Row<'_>| {
        u64::from(capacity(row, role.per_pod, pods)).saturating_mul(u64::from(row.hosts))
    };
    let most = match Scope::of(levels, role.required.as_deref()) {
        None => 0,
        Some(Scope::Pool) => rows.iter().map(room).fold(0_u64, u64::saturating_add),
        Some(Scope::Host) => {
            let each = rows
                .iter()
                .map(|row| u64::from(capacity(row, role.per_pod, pods)));
            each.max().unwrap_or(0)
        }
        Some(Scope::Domain(depth)) => {
            let mut domains: BTreeMap<Option<&[String]>, u64> = BTreeMap::new();
            for row in &rows {
                let sum = domains.entry(row.domains.get(..depth)).or_default();
                *sum = sum.saturating_add(room(row));
            }
            domains.into_values().max().unwrap_or(0)
        }
    };
    u32::try_from(most).unwrap_or(u32::MAX).min(pods)
}
