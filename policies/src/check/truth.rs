//! Invariants of what really happened, checked on plain logs and lists.
//!
//! Owns the checks that simulation and end-to-end tests make from ground truth: what ran at the
//! node, not what was reported. Inputs are lists that any test can write down. Never asks hub or
//! agent what they believe.

use std::collections::BTreeMap;

use meridian_api::ids::{Epoch, GangId, Uid};
use meridian_api::units::{MilliGpus, UnixMillis};

use super::{Violation, report};
use crate::model::GangShape;

/// One device, or slice of one, in the hands of a live gang.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceHold {
    /// Cluster, node and device: the device's name in the world.
    pub device: (String, String, String),
    /// Who has it.
    pub gang: GangId,
    /// Under which epoch.
    pub epoch: Epoch,
}

/// S6: one device belongs to at most one live gang, and to one epoch of it.
#[must_use]
pub fn devices(holds: &[DeviceHold]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut owners: BTreeMap<_, (GangId, Epoch)> = BTreeMap::new();
    for hold in holds {
        let owner = (hold.gang, hold.epoch);
        let first = *owners.entry(&hold.device).or_insert(owner);
        if first != owner {
            let (cluster, node, device) = &hold.device;
            let message = format!(
                "{cluster}/{node}/{device} belongs to {} epoch {} and to {} epoch {}",
                first.0, first.1, hold.gang, hold.epoch,
            );
            report(&mut found, "S6", message);
        }
    }
    found
}

/// Pods of one gang that run, once things are at rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangAtRest<'a> {
    /// Which.
    pub gang: GangId,
    /// What it asked for.
    pub shape: &'a GangShape,
    /// Pods that run, per role.
    pub running: Vec<u32>,
}

/// S9 at rest: no pod of a gang runs, or every role has a size that it may run with.
#[must_use]
pub fn gangs_at_rest(gangs: &[GangAtRest<'_>]) -> Vec<Violation> {
    let mut found = Vec::new();
    for GangAtRest {
        gang,
        shape,
        running,
    } in gangs
    {
        let nothing = running.iter().all(|pods| *pods == 0);
        let sizes = || shape.roles.iter().zip(running);
        let whole = running.len() == shape.roles.len()
            && sizes().all(|(role, pods)| (role.min..=role.max.max(role.min)).contains(pods));
        if !nothing && !whole {
            let wanted: Vec<String> = shape
                .roles
                .iter()
                .map(|role| format!("{}..={}", role.min, role.max))
                .collect();
            let message = format!(
                "gang {gang} runs {running:?} pods, not {}",
                wanted.join(", ")
            );
            report(&mut found, "S9", message);
        }
    }
    found
}

/// A stretch of time in which user code of one epoch ran, on the one clock of the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Whose code.
    pub gang: GangId,
    /// Under which epoch.
    pub epoch: Epoch,
    /// Since when.
    pub from: UnixMillis,
    /// Until when; `None` = still running.
    pub until: Option<UnixMillis>,
}

/// S1: runs of two epochs of an exclusive gang never overlap, and the later run has the higher
/// epoch (S2).
#[must_use]
pub fn exclusive_runs(runs: &[Run]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut by_gang: BTreeMap<GangId, Vec<Run>> = BTreeMap::new();
    for run in runs {
        by_gang.entry(run.gang).or_default().push(*run);
    }
    for (gang, mut runs) in by_gang {
        runs.sort_by_key(|run| (run.from, run.epoch, run.until.is_none(), run.until));
        let mut last: Option<Run> = None;
        for run in runs {
            if let Some(before) = last.filter(|before| before.epoch != run.epoch) {
                if before.until.is_none_or(|until| until > run.from) {
                    let (old, new) = (before.epoch, run.epoch);
                    let message = format!("gang {gang}: epochs {old} and {new} ran at once");
                    report(&mut found, "S1", message);
                }
                if before.epoch > run.epoch {
                    let message =
                        format!("gang {gang}: epoch {} after {}", run.epoch, before.epoch);
                    report(&mut found, "S2", message);
                }
            }
            let ends_later = last.is_none_or(|before| {
                let ends = |run: Run| (run.until.is_none(), run.until);
                run.epoch != before.epoch || ends(run) >= ends(before)
            });
            if ends_later {
                last = Some(run);
            }
        }
    }
    found
}

/// A number that was accepted for a subject: an epoch of a gang, a sequence of a session, an
/// intent generation of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Whose number.
    pub subject: String,
    /// The number.
    pub number: u64,
}

/// S2: what is accepted for a subject only grows, in the order of the log.
#[must_use]
pub fn only_grows(log: &[Accepted]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut highest: BTreeMap<&str, u64> = BTreeMap::new();
    for Accepted { subject, number } in log {
        let last = highest.insert(subject, *number);
        if let Some(last) = last.filter(|last| last >= number) {
            report(
                &mut found,
                "S2",
                format!("{subject}: {number} accepted after {last}"),
            );
        }
    }
    found
}

/// S7: everything that was acknowledged is stored. Both lists in any order.
#[must_use]
pub fn acknowledged(acknowledged: &[Uid], stored: &[Uid]) -> Vec<Violation> {
    let mut found = Vec::new();
    let stored: std::collections::BTreeSet<&Uid> = stored.iter().collect();
    for uid in acknowledged.iter().filter(|uid| !stored.contains(uid)) {
        report(
            &mut found,
            "S7",
            format!("job {uid} was acknowledged and is not stored"),
        );
    }
    found
}

/// S8: one idempotency key, one job. Pairs of key and the job that was made or answered for it.
#[must_use]
pub fn one_job_per_key(answers: &[(String, Uid)]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut jobs: BTreeMap<&str, Uid> = BTreeMap::new();
    for (key, uid) in answers {
        let first = *jobs.entry(key).or_insert(*uid);
        if first != *uid {
            report(
                &mut found,
                "S8",
                format!("key {key:?} made jobs {first} and {uid}"),
            );
        }
    }
    found
}

/// What a pool should add up to, in one report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSum {
    /// GPUs free.
    pub free: MilliGpus,
    /// GPUs that gangs hold.
    pub held: MilliGpus,
    /// GPUs lent to others or kept back.
    pub lent: MilliGpus,
    /// GPUs that are out.
    pub quarantined: MilliGpus,
    /// GPUs in all.
    pub total: MilliGpus,
}

/// S5: free + held + lent + quarantined = total.
#[must_use]
pub fn pool_sums(pools: &[(String, PoolSum)]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (name, sum) in pools {
        let parts = [sum.free, sum.held, sum.lent, sum.quarantined];
        let all: u128 = parts.iter().map(|part| u128::from(part.0)).sum();
        if all != u128::from(sum.total.0) {
            let total = sum.total;
            report(
                &mut found,
                "S5",
                format!("pool {name}: parts add up to {all}m of {total}"),
            );
        }
    }
    found
}
