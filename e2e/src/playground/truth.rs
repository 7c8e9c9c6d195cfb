//! What really ran, from the clusters' own records, and whether it was as promised.
//!
//! Owns the accounts of GPU time and the checks on ground truth. Reads no report of an agent and
//! no status of the hub, except to know what was promised.

use std::collections::{BTreeMap, BTreeSet};

use meridian_agent::backend::{GangKey, PodPhase};
use meridian_agent::simulated::{SimulatedCluster, Truth, TruthEvent};
use meridian_api::ids::{GangId, Uid};
use meridian_api::units::{Millis, UnixMillis};
use meridian_policies::check::Violation;
use meridian_policies::check::truth::{self as invariants, DeviceHold, GangAtRest, Run};
use meridian_policies::model::{GangShape, RoleShape};

use crate::fleet::Fleet;

/// GPU time: cards times milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GpuTime(pub(super) u128);

impl GpuTime {
    pub(super) fn add(&mut self, gpus: usize, span: Millis) {
        self.0 += gpus as u128 * u128::from(span.0);
    }

    /// Tenths of a GPU-hour.
    pub(super) fn tenths(self) -> u64 {
        u64::try_from(self.0 / 360_000).unwrap_or(u64::MAX)
    }
}

/// One start of a gang under one epoch.
#[derive(Clone, Debug, Default)]
pub(super) struct Attempt {
    /// When its first pod started.
    pub(super) first: UnixMillis,
    pub(super) used: GpuTime,
    /// Pods that run still.
    pub(super) open: usize,
}

/// Everything that ran.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    pub(super) attempts: BTreeMap<GangKey, Attempt>,
    /// By region, within the span that utilisation is measured over.
    pub(super) by_region: BTreeMap<String, GpuTime>,
    pub(super) violations: Vec<Violation>,
}

/// A pod that runs, while the record is read.
struct Open {
    from: UnixMillis,
    node: String,
    devices: Vec<u32>,
}

type Pod = (GangKey, String);

impl Account {
    /// Reads every cluster's record up to `now`; utilisation counts what lies within `span`.
    pub(super) fn read(fleet: &Fleet, now: UnixMillis, span: (UnixMillis, UnixMillis)) -> Self {
        let mut account = Self::default();
        let mut runs = Vec::new();
        for (name, region, cluster) in fleet.clusters() {
            let mut open: BTreeMap<Pod, Open> = BTreeMap::new();
            let busy = account.by_region.entry(region.to_owned()).or_default();
            let mut used = Vec::new();
            let history = cluster.history(now);
            let mut found = Vec::new();
            for event in &history {
                let pod = (event.key, event.pod.clone());
                match event.what {
                    Truth::Started => {
                        found.extend(started(name, event, &open));
                        open.insert(
                            pod,
                            Open {
                                from: event.at,
                                node: event.node.clone(),
                                devices: event.devices.clone(),
                            },
                        );
                    }
                    Truth::Ended => {
                        let Some(begun) = open.remove(&pod) else {
                            continue;
                        };
                        used.push((event.key, begun, Some(event.at)));
                    }
                }
            }
            used.extend(open.into_iter().map(|((key, _), begun)| (key, begun, None)));
            for (key, begun, until) in used {
                let end = until.unwrap_or(now);
                let within = begun.from.max(span.0)..end.min(span.1).max(begun.from.max(span.0));
                busy.add(begun.devices.len(), within.end.since(within.start));
                let attempt = account.attempts.entry(key).or_insert_with(|| Attempt {
                    first: begun.from,
                    ..Attempt::default()
                });
                attempt.first = attempt.first.min(begun.from);
                attempt.used.add(begun.devices.len(), end.since(begun.from));
                attempt.open += usize::from(until.is_none());
                runs.push(Run {
                    gang: key.gang,
                    epoch: key.epoch,
                    from: begun.from,
                    until,
                });
            }
            account.violations.append(&mut found);
        }
        account.violations.extend(invariants::exclusive_runs(&runs));
        account
    }

    /// When the job's user code first ran anywhere.
    pub(super) fn first_start(&self, job: Uid) -> Option<UnixMillis> {
        self.of_job(job).map(|(_, attempt)| attempt.first).min()
    }

    /// All starts of a job's gangs, by gang and epoch.
    pub(super) fn of_job(&self, job: Uid) -> impl Iterator<Item = (&GangKey, &Attempt)> {
        let first = GangId { job, index: 0 };
        let from = GangKey {
            gang: first,
            epoch: meridian_api::ids::Epoch(0),
        };
        let of_job = move |key: &GangKey| key.gang.job == job;
        self.attempts
            .range(from..)
            .take_while(move |(key, _)| of_job(key))
    }
}

/// What must hold when user code starts: its devices are nobody else's, its gang is whole.
fn started(cluster: &str, event: &TruthEvent, open: &BTreeMap<Pod, Open>) -> Vec<Violation> {
    let hold = |key: &GangKey, node: &str, device: u32| DeviceHold {
        device: (cluster.to_owned(), node.to_owned(), device.to_string()),
        gang: key.gang,
        epoch: key.epoch,
    };
    let beside = open.iter().filter(|(_, other)| other.node == event.node);
    let beside = beside.flat_map(|((key, _), other)| {
        let devices = other.devices.iter();
        devices.map(move |device| hold(key, &other.node, *device))
    });
    let own = event.devices.iter();
    let own = own.map(|device| hold(&event.key, &event.node, *device));
    let mut found = invariants::devices(&beside.chain(own).collect::<Vec<_>>());
    if event.bound != event.members {
        let (key, bound, members) = (event.key, event.bound, event.members);
        found.push(Violation {
            invariant: "S9",
            message: format!("gang {key} started with {bound} of {members} members bound"),
        });
    }
    found
}

/// Gangs that are neither starting nor stopping run whole (S9). `pods` is what each job asked for.
pub(super) fn at_rest(
    cluster: &SimulatedCluster,
    now: UnixMillis,
    pods: &BTreeMap<Uid, u32>,
) -> Vec<Violation> {
    let snapshot = cluster.snapshot(now);
    let moving = |phase: &PodPhase| !matches!(phase, PodPhase::Running | PodPhase::Succeeded);
    let resting = snapshot.gangs.iter().filter(|gang| {
        let is_ending = gang.pods.iter().any(|pod| pod.phase == PodPhase::Succeeded);
        !gang.stopping && !is_ending && !gang.pods.iter().any(|pod| moving(&pod.phase))
    });
    let shaped: Vec<_> = resting
        .map(|gang| {
            let wanted = pods.get(&gang.key.gang.job).copied().unwrap_or_default();
            let running = u32::try_from(gang.pods.len()).unwrap_or(u32::MAX);
            let role = RoleShape {
                name: "worker".to_owned(),
                per_pod: meridian_api::units::Resources::default(),
                min: wanted,
                max: wanted,
                step: 1,
                required: None,
                preferred: None,
                slice: None,
            };
            (gang.key.gang, GangShape { roles: vec![role] }, running)
        })
        .collect();
    let resting: Vec<_> = shaped
        .iter()
        .map(|(gang, shape, running)| GangAtRest {
            gang: *gang,
            shape,
            running: vec![*running],
        })
        .collect();
    invariants::gangs_at_rest(&resting)
}

/// GPUs that pods hold in a cluster, and gangs that hold any.
pub(super) fn busy(cluster: &SimulatedCluster, now: UnixMillis) -> (u64, usize) {
    let snapshot = cluster.snapshot(now);
    let mut gangs = BTreeSet::new();
    let mut gpus = 0;
    for gang in &snapshot.gangs {
        for pod in &gang.pods {
            if matches!(pod.phase, PodPhase::Bound | PodPhase::Running) {
                gpus += pod.request.gpus.whole();
                gangs.insert(gang.key);
            }
        }
    }
    (gpus, gangs.len())
}
