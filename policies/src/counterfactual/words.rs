//! Words of a remedy: what to change and what that would do, for a person.
//!
//! Owns the sentences. Never says more than what was tried.

use meridian_api::quantity::{CpuQuantity, MemoryQuantity};
use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus};

use super::{Change, Effect, Raise, RaiseOf, Remedy};
use crate::diagnosis::{amount, cards};
use crate::model::{Measure, Snapshot, WaitingIx};

/// The kind of a change in one word, for programs; the words never change their meaning.
#[must_use]
pub const fn kind(change: &Change) -> &'static str {
    match change {
        Change::Resume => "Resume",
        Change::Fewer { .. } => "FewerPods",
        Change::Level { .. } => "WiderLevel",
        Change::Flavor(_) => "OtherFlavor",
        Change::Region(_) => "OtherRegion",
        Change::Cluster(_) => "OtherCluster",
        Change::Raise(_) => "RaiseQuota",
    }
}

/// A remedy for gang `ix` in one sentence: `accept flavor a100-80gb: starts now on euw-a/train`.
#[must_use]
pub fn describe(snapshot: &Snapshot, ix: WaitingIx, remedy: &Remedy) -> String {
    let what = change(snapshot, ix, remedy);
    let source = &snapshot.pools[remedy.effect.pool().index()];
    let cluster = &snapshot.clusters[source.cluster.index()].name;
    match remedy.effect {
        Effect::StartsNow(_) => format!("{what}: starts now on {cluster}/{}", source.name),
        Effect::CanStart(_) => {
            format!("{what}: can start once {cluster}/{} has room", source.name)
        }
    }
}

fn change(snapshot: &Snapshot, ix: WaitingIx, remedy: &Remedy) -> String {
    let role = |number: u32| {
        let roles = &snapshot.waiting[ix.index()].shape.roles;
        roles.get(number as usize)
    };
    match &remedy.change {
        Change::Resume => "resume it".to_owned(),
        Change::Fewer { role: number, pods } => {
            let (name, from) = role(*number).map_or(("?", 0), |role| (&role.name, role.min));
            let noun = if *pods == 1 { "pod" } else { "pods" };
            format!("run with {pods} {noun} of {name} instead of {from}")
        }
        Change::Level {
            role: number,
            level,
        } => {
            let from = role(*number).and_then(|role| role.required.as_deref());
            let (name, from) = (
                role(*number).map_or("?", |role| &role.name),
                from.unwrap_or("pool"),
            );
            let to = level.as_ref().map_or_else(
                || "anywhere in a pool".to_owned(),
                |level| format!("in one {level}"),
            );
            format!("let {name} be {to} instead of one {from}")
        }
        Change::Flavor(flavor) => {
            let name = &snapshot.flavors[flavor.index()].name;
            format!("accept flavor {name}")
        }
        Change::Region(region) => format!("allow region {}", snapshot.regions[region.index()]),
        Change::Cluster(cluster) => {
            let name = &snapshot.clusters[cluster.index()].name;
            format!("allow cluster {name}")
        }
        Change::Raise(raises) => {
            let raises = raises.iter().map(|raise| of_raise(snapshot, raise));
            raises.collect::<Vec<_>>().join(" and ")
        }
    }
}

fn of_raise(snapshot: &Snapshot, raise: &Raise) -> String {
    let tenant = &snapshot.tenants[raise.tenant.index()].name;
    let (name, measure) = match raise.of {
        RaiseOf::Nominal(measure) => ("nominal", measure),
        RaiseOf::BorrowingLimit(measure) => ("borrowingLimit", measure),
        RaiseOf::HardCap(measure) => ("hardCap", measure),
        RaiseOf::GpusPerJob => {
            let (from, to) = (MilliGpus(raise.from), cards(MilliGpus(raise.to)));
            let from = amount(from);
            return format!("raise limits.gpusPerJob of tenant {tenant} from {from} to {to}");
        }
        RaiseOf::RunningJobs => {
            let Raise { from, to, .. } = raise;
            return format!("raise limits.runningJobs of tenant {tenant} from {from} to {to}");
        }
    };
    let (what, from, to) = match measure {
        Measure::Gpus { flavor, region } => {
            let flavor = flavor.map_or("all GPUs", |ix| &snapshot.flavors[ix.index()].name);
            let region = region.map(|ix| format!(" in {}", snapshot.regions[ix.index()]));
            (
                format!("{flavor}{}", region.unwrap_or_default()),
                amount(MilliGpus(raise.from)),
                cards(MilliGpus(raise.to)),
            )
        }
        Measure::Cpu => (
            "CPU".to_owned(),
            CpuQuantity(MilliCpus(raise.from)).to_string(),
            CpuQuantity(MilliCpus(raise.to)).to_string(),
        ),
        Measure::Memory => (
            "memory".to_owned(),
            MemoryQuantity(Mebibytes(raise.from)).to_string(),
            MemoryQuantity(Mebibytes(raise.to)).to_string(),
        ),
    };
    format!("raise {name} of tenant {tenant} for {what} from {from} to {to}")
}
