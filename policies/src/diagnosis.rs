//! Diagnosis: why a gang does not fit on some shapes, in numbers.
//!
//! Owns the choice between "never", "fragmented" and "full", and the words. Never places.

use std::fmt;
use std::sync::Arc;

use meridian_api::reasons::Reason;
use meridian_api::units::{MilliGpus, Resources};

use crate::fit::{Ground, HOST, fits_on, most_pods_of, most_pods_on};
use crate::model::{Amounts, GangShape, PoolIx, RoleShape, Shape};
use crate::names::Names;
use crate::pick::Scope;
use crate::rules::{Impossible, Wishes, want};
use crate::shapes;
use crate::tree::Tree;

/// Why a gang does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// `NeverPlaceable`, `Fragmented` or `WaitingForCapacity`.
    pub reason: Reason,
    /// GPUs needed, free, and in all.
    pub amounts: Amounts,
    /// Words for a person.
    pub message: String,
}

/// True when `pods` pods per role fit on the shapes once every host is empty.
#[must_use]
pub fn fits_when_empty(
    levels: &[String],
    shapes: &[Shape],
    gang: &GangShape,
    pods: &[u32],
) -> bool {
    let mut emptied = Ground::with(levels, shapes, |row| row.allocatable);
    fits_on(&mut emptied, levels, gang, pods)
}

/// Why `pods` pods per role of `gang`, which do not fit on `shapes`, do not.
#[must_use]
pub fn diagnose(levels: &[String], shapes: &[Shape], gang: &GangShape, pods: &[u32]) -> Diagnosis {
    let ground = Ground::new(levels, shapes);
    let (free, total) = (shapes::free(shapes), shapes::allocatable(shapes));
    let need = gang.demand(pods);
    let amounts = Amounts {
        need: need.gpus,
        free: free.gpus,
        limit: total.gpus,
    };
    if fits_when_empty(levels, shapes, gang, pods) {
        let lack = Lack::of(levels, &ground.tree, gang, pods);
        return Diagnosis {
            reason: short_of(free, need),
            amounts,
            message: format!("{lack}, {} free in all", cards(free.gpus)),
        };
    }
    let emptied = Ground::with(levels, shapes, |row| row.allocatable);
    let lack = Lack::of(levels, &emptied.tree, gang, pods);
    Diagnosis {
        reason: Reason::NeverPlaceable,
        amounts,
        message: format!("{lack}, even when empty"),
    }
}

/// Why a gang that would fit on empty hosts does not fit on these: `Fragmented` where enough is
/// free of what it needs, else `WaitingForCapacity`.
pub(crate) fn short_of(free: Resources, need: Resources) -> Reason {
    let enough = if need.gpus > MilliGpus::ZERO {
        free.gpus >= need.gpus
    } else {
        free.covers(need)
    };
    if enough {
        Reason::Fragmented
    } else {
        Reason::WaitingForCapacity
    }
}

/// Why a pool that could hold a gang does not; the words come of nothing else.
#[derive(Clone)]
pub(crate) struct NoRoom {
    pub(crate) names: Arc<Names>,
    pub(crate) pool: PoolIx,
    pub(crate) lack: Lack,
    /// Free in the pool.
    pub(crate) free: MilliGpus,
    /// Free there at the start of the round, when it had room.
    pub(crate) at_start: Option<MilliGpus>,
}

impl NoRoom {
    fn name(&self) -> &str {
        self.names.pool(self.pool)
    }
}

impl PartialEq for NoRoom {
    /// True only if the words are the same.
    fn eq(&self, other: &Self) -> bool {
        (self.free, self.at_start) == (other.free, other.at_start)
            && self.lack == other.lack
            && self.name() == other.name()
    }
}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, lack, free) = (self.name(), &self.lack, cards(self.free));
        write!(f, "pool {name}: {lack}, {free} free in all")?;
        if let Some(start) = self.at_start.map(amount) {
            write!(
                f,
                "; it had room with {start} free, which gangs before it took"
            )?;
        }
        Ok(())
    }
}

/// What is missing, from the first role that does not fit by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// Its rule cannot be kept, however empty the pool is.
    Rule(Box<Impossible>),
    /// Hosts for its pods.
    Hosts(HostsLack),
    /// Each of so many roles fits alone; together they ask for so much.
    Together(usize, MilliGpus),
}

/// Hosts that one role lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostsLack {
    /// Pods, and how many of them fit.
    count: u32,
    most: u32,
    /// What each asks for, as far as it is told.
    each: Resources,
    /// Where all must be together, and slices of them.
    required: Scope,
    within: Option<Box<str>>,
    /// No host holds two of them.
    own_host: bool,
    /// By GPUs alone more would fit.
    gpus_alone: bool,
}

impl Lack {
    /// What hosts of the tree lack for `pods` pods per role, which do not fit there.
    pub(crate) fn of(levels: &[String], tree: &Tree, gang: &GangShape, pods: &[u32]) -> Self {
        for (role, &count) in gang.roles.iter().zip(pods) {
            let want = match want(levels, role, count, Wishes::Dropped) {
                Ok(want) => want,
                Err(impossible) => return Self::Rule(Box::new(impossible)),
            };
            let most = most_pods_on(tree, levels, role, count);
            if most < count {
                let kinds = tree.kinds().iter().filter(|kind| kind.hosts > 0);
                let sizes = kinds.map(|kind| kind.allocatable);
                return Self::Hosts(HostsLack {
                    required: want.required,
                    within: within(role),
                    ..HostsLack::new(role.per_pod, (count, most), sizes, |by_gpus| {
                        most_pods_of(tree, levels, (role, by_gpus), count)
                    })
                });
            }
        }
        Self::Together(gang.roles.len(), gang.gpus(pods))
    }
}

impl HostsLack {
    /// Of `count` pods that may stand anywhere `most` fit; `fitting` tells how many would that ask
    /// for other amounts, and `sizes` how large hosts are.
    pub(crate) fn new(
        each: Resources,
        (count, most): (u32, u32),
        mut sizes: impl Iterator<Item = Resources>,
        fitting: impl FnOnce(Resources) -> u32,
    ) -> Self {
        let two = each.checked_mul(2);
        let by_gpus = Resources {
            gpus: each.gpus,
            ..Resources::default()
        };
        let has_gpus = each.gpus > MilliGpus::ZERO;
        let gpus_alone = has_gpus && fitting(by_gpus) > most;
        Self {
            count,
            most,
            each: if has_gpus && !gpus_alone {
                by_gpus
            } else {
                each
            },
            required: Scope::Pool,
            within: None,
            own_host: sizes.all(|size| two.is_none_or(|two| !size.covers(two))),
            gpus_alone,
        }
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(impossible) => impossible.fmt(f),
            Self::Hosts(hosts) => hosts.fmt(f),
            Self::Together(roles, gpus) => {
                let gpus = cards(*gpus);
                write!(
                    f,
                    "needs {gpus} for {roles} roles, which fit alone but not together"
                )
            }
        }
    }
}

impl fmt::Display for HostsLack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, each) = (self.count, self.each);
        let within = self.within.as_deref().unwrap_or_default();
        if self.own_host && self.required != Scope::Host {
            let hosts = if count == 1 { "host" } else { "hosts" };
            write!(f, "needs {count} {hosts} with {}{within}", free_words(each))?;
        } else {
            let pods = if count == 1 { "pod" } else { "pods" };
            write!(f, "needs {count} {pods} of {}{within}", size_words(each))?;
        }
        let is_bound = self.required != Scope::Pool;
        match (self.most, is_bound, self.own_host) {
            (0, _, true) => write!(f, "; none has them")?,
            (0, _, false) => write!(f, "; none fits")?,
            (1, true, _) => write!(f, "; at most 1 fits in one")?,
            (most, true, _) => write!(f, "; at most {most} fit in one")?,
            (1, false, true) => write!(f, "; 1 has them")?,
            (most, false, true) => write!(f, "; {most} have them")?,
            (1, false, false) => write!(f, "; 1 fits")?,
            (most, false, false) => write!(f, "; {most} fit")?,
        }
        if self.gpus_alone {
            let too = host_words(each);
            write!(f, " (GPUs alone would do for more; each needs {too} too)")?;
        }
        Ok(())
    }
}

/// Where pods of a role must be together, in words.
fn within(role: &RoleShape) -> Option<Box<str>> {
    let mut within = match role.required.as_deref() {
        None => String::new(),
        Some(HOST) => " on one host".to_owned(),
        Some(level) => format!(" in one {level}"),
    };
    if let Some(slice) = &role.slice {
        let (pods, level) = (slice.pods, slice.level.as_str());
        let preposition = if level == HOST { "on" } else { "in" };
        within = format!("{within}, each {pods} {preposition} one {level}");
    }
    (!within.is_empty()).then(|| within.into())
}

fn free_words(each: Resources) -> String {
    if each.gpus > MilliGpus::ZERO {
        let noun = if each.gpus == MilliGpus::cards(1) {
            "GPU"
        } else {
            "GPUs"
        };
        format!("{} free {noun}", amount(each.gpus))
    } else {
        format!("{} free", host_words(each))
    }
}

fn size_words(each: Resources) -> String {
    if each.gpus > MilliGpus::ZERO {
        cards(each.gpus)
    } else {
        host_words(each)
    }
}

fn host_words(each: Resources) -> String {
    format!("{} CPU and {} MiB", thousandths(each.cpu.0), each.memory.0)
}

/// GPUs for a person: `1 GPU`, `8 GPUs`, `0.5 GPUs`.
#[must_use]
pub fn cards(gpus: MilliGpus) -> String {
    let noun = if gpus == MilliGpus::cards(1) {
        "GPU"
    } else {
        "GPUs"
    };
    format!("{} {noun}", amount(gpus))
}

/// GPUs as a number of cards.
#[must_use]
pub fn amount(gpus: MilliGpus) -> String {
    thousandths(gpus.0)
}

fn thousandths(value: u64) -> String {
    if value.is_multiple_of(1000) {
        return (value / 1000).to_string();
    }
    let fraction = format!("{:03}", value % 1000);
    format!("{}.{}", value / 1000, fraction.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_read_as_a_person_writes_them() {
        let words: Vec<String> = [0, 500, 1000, 1250, 8000]
            .map(MilliGpus)
            .map(cards)
            .to_vec();
        assert_eq!(
            words,
            ["0 GPUs", "0.5 GPUs", "1 GPU", "1.25 GPUs", "8 GPUs"]
        );
    }
}
