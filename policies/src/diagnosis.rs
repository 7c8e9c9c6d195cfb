//! Diagnosis: why a gang does not fit on some shapes, in numbers.
//!
//! Owns the choice between "never", "fragmented" and "full", and the words. Never places.

use meridian_api::reasons::Reason;
use meridian_api::units::{MilliGpus, Resources};

use crate::fit::{HOST, fit, most_pods};
use crate::model::{Amounts, GangShape, RoleShape, Shape};
use crate::rules::{Wishes, want};
use crate::shapes;

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
    fit(levels, &shapes::emptied(shapes), gang, pods).is_some()
}

/// Why `pods` pods per role of `gang`, which do not fit on `shapes`, do not.
#[must_use]
pub fn diagnose(levels: &[String], shapes: &[Shape], gang: &GangShape, pods: &[u32]) -> Diagnosis {
    let need = gang.demand(pods);
    let free = shapes::free(shapes);
    let total = shapes::allocatable(shapes);
    let amounts = Amounts {
        need: need.gpus,
        free: free.gpus,
        limit: total.gpus,
    };
    if !fits_when_empty(levels, shapes, gang, pods) {
        let emptied = shapes::emptied(shapes);
        let message = format!(
            "{}, even when empty",
            shortage(levels, &emptied, gang, pods)
        );
        return Diagnosis {
            reason: Reason::NeverPlaceable,
            amounts,
            message,
        };
    }
    let enough = if need.gpus > MilliGpus::ZERO {
        free.gpus >= need.gpus
    } else {
        free.covers(need)
    };
    let reason = if enough {
        Reason::Fragmented
    } else {
        Reason::WaitingForCapacity
    };
    let words = shortage(levels, shapes, gang, pods);
    let message = format!("{words}, {} free in all", cards(free.gpus));
    Diagnosis {
        reason,
        amounts,
        message,
    }
}

/// What is missing, from the first role that does not fit by itself.
fn shortage(levels: &[String], shapes: &[Shape], gang: &GangShape, pods: &[u32]) -> String {
    for (role, &count) in gang.roles.iter().zip(pods) {
        if let Err(impossible) = want(levels, role, count, Wishes::Dropped) {
            return impossible.to_string();
        }
        let most = most_pods(levels, shapes, role, count);
        if most < count {
            return role_shortage(levels, shapes, role, count, most);
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
    shapes: &[Shape],
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
    let own_host = shapes
        .iter()
        .all(|shape| shape.allocatable.times(each) <= 1);
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
    let by_gpus = RoleShape {
        per_pod: Resources {
            gpus: each.gpus,
            ..Resources::default()
        },
        ..role.clone()
    };
    let gpus_alone =
        each.gpus > MilliGpus::ZERO && most_pods(levels, shapes, &by_gpus, count) > most;
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
