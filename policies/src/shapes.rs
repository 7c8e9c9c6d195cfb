//! Shapes: hosts that look alike as one row, and what is taken out of them.
//!
//! Owns the canonical form, sums, and subtraction of a placement. Never chooses hosts (see
//! `fit`), except to stand in for a placement that no digest lists yet.

use std::borrow::Cow;

use meridian_api::units::{MilliGpus, Resources};

pub use crate::fit::{Fit, fit};
use crate::model::{GangShape, Shape, Take};

/// A take names hosts that are not in the shapes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("take {index} wants {wanted} hosts of a shape that has {there}")]
pub struct NotThere {
    /// Position of the take.
    pub index: usize,
    /// Hosts it names.
    pub wanted: u32,
    /// Hosts there are.
    pub there: u32,
}

/// Alike rows merged, empty rows dropped, sorted: equal fleets have equal canonical shapes.
#[must_use]
pub fn canonical(shapes: &[Shape]) -> Vec<Shape> {
    let mut sorted: Vec<Shape> = shapes.iter().filter(|row| row.hosts > 0).cloned().collect();
    sorted.sort();
    let mut merged: Vec<Shape> = Vec::with_capacity(sorted.len());
    for row in sorted {
        match merged.last_mut() {
            Some(last) if alike(last, &row) && last.hosts.checked_add(row.hosts).is_some() => {
                last.hosts += row.hosts;
            }
            _ => merged.push(row),
        }
    }
    merged
}

/// The same; rows that are canonical already are not copied.
#[must_use]
pub fn canonical_of(shapes: &[Shape]) -> Cow<'_, [Shape]> {
    let mut pairs = shapes.windows(2);
    let is_canonical = shapes.iter().all(|row| row.hosts > 0)
        && pairs.all(|pair| pair[0] < pair[1] && !alike(&pair[0], &pair[1]));
    if is_canonical {
        Cow::Borrowed(shapes)
    } else {
        Cow::Owned(canonical(shapes))
    }
}

fn alike(a: &Shape, b: &Shape) -> bool {
    a.domains == b.domains && a.allocatable == b.allocatable && a.free == b.free
}

/// The shapes with every host empty.
#[must_use]
pub fn emptied(shapes: &[Shape]) -> Vec<Shape> {
    let empty = |row: &Shape| Shape {
        free: row.allocatable,
        ..row.clone()
    };
    canonical(&shapes.iter().map(empty).collect::<Vec<_>>())
}

/// Free resources of all hosts; stops at the largest amount of each unit.
#[must_use]
pub fn free(shapes: &[Shape]) -> Resources {
    sum(shapes, |row| row.free)
}

/// Size of all hosts; stops at the largest amount of each unit.
#[must_use]
pub fn allocatable(shapes: &[Shape]) -> Resources {
    sum(shapes, |row| row.allocatable)
}

fn sum(shapes: &[Shape], of: impl Fn(&Shape) -> Resources) -> Resources {
    let mut total = Resources::default();
    for row in shapes {
        let (each, hosts) = (of(row), u64::from(row.hosts));
        total.gpus.0 = total
            .gpus
            .0
            .saturating_add(each.gpus.0.saturating_mul(hosts));
        total.cpu.0 = total.cpu.0.saturating_add(each.cpu.0.saturating_mul(hosts));
        total.memory.0 = total
            .memory
            .0
            .saturating_add(each.memory.0.saturating_mul(hosts));
    }
    total
}

/// The shapes without what `takes` use, in canonical form. Takes apply one after the other: a
/// later one may name hosts as an earlier one left them; `gang` tells what a pod of each role uses.
pub fn subtract(
    shapes: &[Shape],
    gang: &GangShape,
    takes: &[Take],
) -> Result<Vec<Shape>, NotThere> {
    let mut rows = shapes.to_vec();
    for (index, take) in takes.iter().enumerate() {
        let refuse = |there| NotThere {
            index,
            wanted: take.hosts,
            there,
        };
        let role = gang
            .roles
            .get(take.role as usize)
            .ok_or_else(|| refuse(0))?;
        let left = role
            .per_pod
            .checked_mul(u64::from(take.pods_per_host))
            .and_then(|used| take.free.checked_sub(used))
            .ok_or_else(|| refuse(0))?;
        let missing = remove_hosts(&mut rows, take);
        if missing > 0 {
            return Err(refuse(take.hosts - missing));
        }
        rows.push(Shape {
            domains: take.domains.clone(),
            allocatable: take.allocatable,
            free: left,
            hosts: take.hosts,
        });
    }
    Ok(canonical(&rows))
}

/// The same within rows that are in canonical form, and stay so: work is that of the takes. False,
/// with some of them taken, when they name hosts that are not there.
#[must_use]
pub(crate) fn take_out(rows: &mut Vec<Shape>, gang: &GangShape, takes: &[Take]) -> bool {
    takes.iter().all(|take| {
        let moved = RoomChange::of(gang, take);
        moved.is_some_and(|moved| shift(rows, &moved))
    })
}

/// Alike hosts of one domain whose room changes, that come, or that go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoomChange {
    /// Their domains.
    pub domains: Vec<String>,
    /// Size of each.
    pub allocatable: Resources,
    /// Free on each before; `None` for hosts that come.
    pub before: Option<Resources>,
    /// Free on each from here on; `None` for hosts that go.
    pub after: Option<Resources>,
    /// How many.
    pub hosts: u32,
}

impl RoomChange {
    /// What a take does to its hosts; `None` when it takes more than is there.
    #[must_use]
    pub fn of(gang: &GangShape, take: &Take) -> Option<Self> {
        let role = gang.roles.get(take.role as usize)?;
        let used = role.per_pod.checked_mul(u64::from(take.pods_per_host))?;
        Some(Self {
            domains: take.domains.clone(),
            allocatable: take.allocatable,
            before: Some(take.free),
            after: Some(take.free.checked_sub(used)?),
            hosts: take.hosts,
        })
    }

    /// The change that takes this one back.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            before: self.after,
            after: self.before,
            ..self
        }
    }

    /// True when somebody might find room there who found none before.
    pub(crate) fn frees(&self) -> bool {
        match (self.before, self.after) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(before), Some(after)) => !before.covers(after),
        }
    }
}

/// Changes rows in canonical form, which stay so; work is that of the change. False, with rows in
/// no order, when the hosts are not there.
#[must_use]
pub(crate) fn shift(rows: &mut Vec<Shape>, change: &RoomChange) -> bool {
    let find = |rows: &[Shape], free: Resources| {
        let key = (change.domains.as_slice(), change.allocatable, free);
        rows.partition_point(|row| (row.domains.as_slice(), row.allocatable, row.free) < key)
    };
    let is_near =
        |row: &Shape| row.allocatable == change.allocatable && row.domains == change.domains;
    let mut known = None;
    if let Some(before) = change.before {
        let at = find(rows, before);
        let row = rows.get_mut(at);
        let row = row.filter(|row| row.free == before && is_near(row));
        let rest = row.and_then(|row| {
            row.hosts = row.hosts.checked_sub(change.hosts)?;
            Some(row.hosts)
        });
        match rest {
            None => return false,
            Some(0) => {
                rows.remove(at);
            }
            Some(_) => {}
        }
        known = Some(at);
    }
    let Some(after) = change.after.filter(|_| change.hosts > 0) else {
        return true;
    };
    let at = match known {
        // Names are slow to compare, and hosts of one domain are next to each other.
        Some(mut at) => {
            while at > 0 && rows[at - 1].free >= after && is_near(&rows[at - 1]) {
                at -= 1;
            }
            while at < rows.len() && rows[at].free < after && is_near(&rows[at]) {
                at += 1;
            }
            at
        }
        None => find(rows, after),
    };
    let row = rows.get_mut(at);
    match row.filter(|row| row.free == after && is_near(row)) {
        Some(row) => match row.hosts.checked_add(change.hosts) {
            Some(sum) => row.hosts = sum,
            None => return false,
        },
        None => rows.insert(
            at,
            Shape {
                domains: change.domains.clone(),
                allocatable: change.allocatable,
                free: after,
                hosts: change.hosts,
            },
        ),
    }
    true
}

/// Takes the hosts of `take` out of `rows`; returns how many were not there.
fn remove_hosts(rows: &mut [Shape], take: &Take) -> u32 {
    let mut missing = take.hosts;
    for row in rows.iter_mut() {
        let same = row.free == take.free
            && row.allocatable == take.allocatable
            && row.domains == take.domains;
        if same {
            let used = row.hosts.min(missing);
            row.hosts -= used;
            missing -= used;
        }
        if missing == 0 {
            break;
        }
    }
    missing
}

/// Shapes after a placement that no digest lists yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subtracted {
    /// What is left, in canonical form.
    pub shapes: Vec<Shape>,
    /// GPUs of the placement that could be taken nowhere.
    pub short: MilliGpus,
}

/// The shapes without a gang of `pods` pods per role that holds room there which they do not show
/// yet. It is fitted as a placement would be; where it does not fit, whole pods are taken
/// wherever they fit and the rest in parts, so that its room is not given away twice.
#[must_use]
pub fn subtract_unlisted(
    levels: &[String],
    shapes: &[Shape],
    gang: &GangShape,
    pods: &[u32],
) -> Subtracted {
    if let Some(found) = fit(levels, shapes, gang, pods)
        && let Ok(left) = subtract(shapes, gang, &found.takes)
    {
        return Subtracted {
            shapes: left,
            short: MilliGpus::ZERO,
        };
    }
    let mut rows = canonical(shapes);
    let mut short = 0_u64;
    for (role, &count) in gang.roles.iter().zip(pods) {
        for _ in 0..count {
            let missing = take_part(&mut rows, role.per_pod);
            short = short.saturating_add(missing.0);
        }
    }
    Subtracted {
        shapes: canonical(&rows),
        short: MilliGpus(short),
    }
}

/// Takes one pod from the tightest host that covers it, else what the fullest host has; returns
/// the GPUs that were not found.
fn take_part(rows: &mut Vec<Shape>, request: Resources) -> MilliGpus {
    let usable = |row: &&Shape| row.hosts > 0;
    let whole = rows
        .iter()
        .filter(usable)
        .filter(|row| row.free.covers(request));
    let chosen = whole.min_by_key(|row| row.free).or_else(|| {
        let partial = rows
            .iter()
            .filter(usable)
            .filter(|row| row.free.gpus > MilliGpus::ZERO);
        partial.max_by_key(|row| row.free)
    });
    let Some(chosen) = chosen.cloned() else {
        return request.gpus;
    };
    let taken = Resources {
        gpus: request.gpus.min(chosen.free.gpus),
        cpu: request.cpu.min(chosen.free.cpu),
        memory: request.memory.min(chosen.free.memory),
    };
    let left = Resources {
        gpus: chosen.free.gpus.saturating_sub(taken.gpus),
        cpu: chosen.free.cpu.saturating_sub(taken.cpu),
        memory: chosen.free.memory.saturating_sub(taken.memory),
    };
    if let Some(row) = rows
        .iter_mut()
        .find(|row| row.hosts > 0 && alike(row, &chosen))
    {
        row.hosts -= 1;
    }
    rows.retain(|row| row.hosts > 0);
    let moved = Shape {
        free: left,
        hosts: 1,
        ..chosen
    };
    match rows.iter_mut().find(|row| alike(row, &moved)) {
        Some(row) => row.hosts = row.hosts.saturating_add(1),
        None => rows.push(moved),
    }
    request.gpus.saturating_sub(taken.gpus)
}

/// How many copies of the gang in its smallest size fit on the shapes one after the other, at most
/// `most`.
#[must_use]
pub fn copies(levels: &[String], shapes: &[Shape], gang: &GangShape, most: u32) -> u32 {
    let least = gang.least();
    let mut rows = canonical(shapes);
    for count in 0..most {
        let found = fit(levels, &rows, gang, &least);
        let left = found.and_then(|found| subtract(&rows, gang, &found.takes).ok());
        let Some(left) = left else { return count };
        rows = left;
    }
    most
}
