//! Changes that a person could make, and the snapshot in which one had been made.
//!
//! Owns what each change means to a decision. Never judges whether it helps.

use std::collections::BTreeMap;

use meridian_api::ids::Uid;
use meridian_api::units::MilliGpus;

use super::raises::{self, Raise};
use crate::model::{
    Accepted, ChoiceIx, ClusterIx, FlavorIx, RegionIx, RoleShape, Snapshot, Waiting, WaitingIx,
};

/// Speed of a flavor that the job has said nothing of: that of the reference, in thousandths.
const UNKNOWN_SPEED: u32 = 1000;

/// One change to a job, or to what limits it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Let the job go on.
    Resume,
    /// Run with so many pods of a role at least.
    Fewer {
        /// Role, by position in the gang.
        role: u32,
        /// Pods.
        pods: u32,
    },
    /// Keep a role within one domain of this level; `None` = anywhere in a pool.
    Level {
        /// Role, by position in the gang.
        role: u32,
        /// The level.
        level: Option<String>,
    },
    /// Accept this flavor, too.
    Flavor(FlavorIx),
    /// Allow this region, too.
    Region(RegionIx),
    /// Allow this cluster, too.
    Cluster(ClusterIx),
    /// Raise what tenants may hold or run.
    Raise(Vec<Raise>),
}

/// Makes the change to every waiting gang of the job of `ix`, or to its tenants.
pub fn apply(snapshot: &mut Snapshot, ix: WaitingIx, change: &Change) {
    if let Change::Raise(list) = change {
        for raise in list {
            raises::apply(&mut snapshot.tenants, raise);
        }
        return;
    }
    let Some(job) = snapshot.waiting.get(ix.index()).map(|gang| gang.gang.job) else {
        return;
    };
    let own = snapshot
        .waiting
        .iter_mut()
        .filter(|gang| gang.gang.job == job);
    let mut saved = MilliGpus::ZERO;
    for gang in own {
        let before = gang.shape.gpus(&gang.shape.most());
        change_gang(gang, change);
        let after = gang.shape.gpus(&gang.shape.most());
        saved = saved.saturating_add(before.saturating_sub(after));
    }
    let own = snapshot
        .waiting
        .iter_mut()
        .filter(|gang| gang.gang.job == job);
    for gang in own {
        gang.job_gpus = gang.job_gpus.saturating_sub(saved);
    }
    if let Change::Region(region) = change {
        allow(snapshot, job, *region);
    }
}

/// Regions between which a job does not care are one group without a name: the region joins them.
/// Others may share the wish, so the job gets one of its own.
fn allow(snapshot: &mut Snapshot, job: Uid, region: RegionIx) {
    let mut own: BTreeMap<ChoiceIx, ChoiceIx> = BTreeMap::new();
    let gangs = snapshot.waiting.iter_mut();
    for gang in gangs.filter(|gang| gang.gang.job == job) {
        if let Some(next) = own.get(&gang.choice) {
            gang.choice = *next;
            continue;
        }
        let Some(mut choice) = snapshot.choices.get(gang.choice.index()).cloned() else {
            continue;
        };
        let mut alike = choice.groups.iter_mut();
        let alike = alike.find(|group| group.name.is_empty() && !group.regions.is_empty());
        if let Some(alike) = alike.filter(|group| !group.regions.contains(&region)) {
            alike.regions.push(region);
            let next = ChoiceIx(u32::try_from(snapshot.choices.len()).unwrap_or(u32::MAX));
            snapshot.choices.push(choice);
            own.insert(gang.choice, next);
            gang.choice = next;
        }
    }
}

fn change_gang(gang: &mut Waiting, change: &Change) {
    match change {
        Change::Resume => gang.suspended = false,
        Change::Fewer { role, pods } => {
            if let Some(role) = gang.shape.roles.get_mut(*role as usize) {
                let rigid = role.min == role.max;
                role.min = *pods;
                if rigid {
                    role.max = *pods;
                }
            }
        }
        Change::Level { role, level } => {
            if let Some(role) = gang.shape.roles.get_mut(*role as usize) {
                role.required.clone_from(level);
            }
        }
        Change::Flavor(flavor) => gang.flavors.push(Accepted {
            flavor: *flavor,
            speed: UNKNOWN_SPEED,
        }),
        Change::Region(region) => gang.regions.push(*region),
        Change::Cluster(cluster) => gang.clusters.push(*cluster),
        Change::Raise(_) => {}
    }
}

/// By how many pods the least size of a role may be lowered at once.
pub(super) fn unit(role: &RoleShape) -> u32 {
    let whole = role.slice.as_ref().map_or(1, |slice| slice.pods);
    let step = if role.min == role.max { 1 } else { role.step };
    if step.is_multiple_of(whole.max(1)) {
        step.max(1)
    } else {
        whole.max(1)
    }
}
