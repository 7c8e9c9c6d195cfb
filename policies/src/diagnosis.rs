//! Diagnosis: why a gang does not fit on some shapes, in numbers.
//!
//! Owns the choice between "never", "fragmented" and "full", and the words. Never places.

use meridian_api::reasons::Reason;
use meridian_api::units::{MilliGpus, Resources};

use crate::fit::{Ground, HOST, fits_on, most_pods_of, most_pods_on};
use crate::model::{Amounts, GangShape, RoleShape, Shape};
use crate::rules::{Wishes, want};
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
    let site = Site {
        tree: &ground.tree,
        free: shapes::free(shapes),
        total: shapes::allocatable(shapes),
    };
    if fits_when_empty(levels, shapes, gang, pods) {
        return site.lacks_room(levels, gang, pods);
    }
    let emptied = Ground::with(levels, shapes, |row| row.allocatable);
    let message = format!(
        "{}, even when empty",
        shortage(levels, &emptied.tree, gang, pods)
    );
    Diagnosis {
        reason: Reason::NeverPlaceable,
        amounts: site.amounts(gang.demand(pods)),
        message,
    }
}

/// Hosts on which a gang does not fit.
pub(crate) struct Site<'a> {
    /// Their tree.
    pub(crate) tree: &'a Tree,
    /// Free on all of them.
    pub(crate) free: Resources,
    /// Size of all of them.
    pub(crate) total: Resources,
}

impl Site<'_> {
    fn amounts(&self, need: Resources) -> Amounts {
        Amounts {
            need: need.gpus,
            free: self.free.gpus,
            limit: self.total.gpus,
        }
    }

    /// Why a gang that would fit if they were empty does not.
    pub(crate) fn lacks_room(
        &self,
        levels: &[String],
        gang: &GangShape,
        pods: &[u32],
    ) -> Diagnosis {
        let need = gang.demand(pods);
        let enough = if need.gpus > MilliGpus::ZERO {
            self.free.gpus >= need.gpus
        } else {
            self.free.covers(need)
        };
        let reason = if enough {
            Reason::Fragmented
        } else {
            Reason::WaitingForCapacity
        };
        let words = shortage(levels, self.tree, gang, pods);
        Diagnosis {
            reason,
            amounts: self.amounts(need),
            message: format!("{words}, {} free in all", cards(self.free.gpus)),
        }
    }
}

/// What is missing, from the first role that does not fit by itself.
fn shortage(levels: &[String], tree: &Tree, gang: &GangShape, pods: &[u32]) -> String {
    for (role, &count) in gang.roles.iter().zip(pods) {
        if let Err(impossible) = want(levels, role, count, Wishes::Dropped) {
            return impossible.to_string();
        }
        let most = most_pods_on(tree, levels, role, count);
        if most < count {
            return role_shortage(levels, tree, role, count, most);
        }
    }
    let gpus = cards(gang.gpus(pods));
    format!(
        "needs {gpus} for {} roles, which fit alone but not together",
        gang.roles.len()
    )
}

fn role_shortage(
    levels: &[String],
    tree: &Tree,
    role: &RoleShape,
    count: u32,
    most: u32,
) -> String {
    let each = role.per_pod;
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
    let mut kinds = tree.kinds().iter().filter(|kind| kind.hosts > 0);
    let own_host = kinds.all(|kind| kind.allocatable.times(each) <= 1);
    let wish = if own_host && role.required.as_deref() != Some(HOST) {
        let hosts = if count == 1 { "host" } else { "hosts" };
        format!("needs {count} {hosts} with {}{within}", free_words(each))
    } else {
        let pods = if count == 1 { "pod" } else { "pods" };
        format!("needs {count} {pods} of {}{within}", size_words(each))
    };
    let has = match (most, role.required.is_some(), own_host) {
        (0, _, true) => "none has them".to_owned(),
        (0, _, false) => "none fits".to_owned(),
        (most, true, _) => format!(
            "at most {most} {} in one",
            if most == 1 { "fits" } else { "fit" }
        ),
        (1, false, true) => "1 has them".to_owned(),
        (most, false, true) => format!("{most} have them"),
        (1, false, false) => "1 fits".to_owned(),
        (most, false, false) => format!("{most} fit"),
    };
    let by_gpus = Resources {
        gpus: each.gpus,
        ..Resources::default()
    };
    let gpus_alone =
        each.gpus > MilliGpus::ZERO && most_pods_of(tree, levels, (role, by_gpus), count) > most;
    let other = if gpus_alone {
        format!(
            " (GPUs alone would do for more; each needs {} too)",
            host_words(each)
        )
    } else {
        String::new()
    };
    format!("{wish}; {has}{other}")
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
