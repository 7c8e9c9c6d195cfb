//! What really ran: starts and ends of user code, and what agents have on disk.
//!
//! Owns S1, S2, S6 and S9 as seen at the nodes. Knows of the hub only the row under which a gang
//! may start.

use std::collections::BTreeMap;

use futures::FutureExt as _;
use meridian_agent::simulated::{Truth, TruthEvent};
use meridian_api::ids::{Epoch, GangId};
use meridian_api::units::{Millis, UnixMillis};
use meridian_policies::check::Violation;
use meridian_policies::check::truth::{self, Accepted, DeviceHold, Run};
use meridian_runtime::Disk as _;
use meridian_runtime::disk::MemoryDisk;
use serde_json::Value;

use super::broken;
use crate::simulation::log::fingerprint;
use meridian_hub::placement::PlacementRecord;

/// Name of an agent's record, and the numbers in it that only grow.
const RECORD: &str = "agent.json";
const GROWING: [&str; 4] = ["storeGeneration", "term", "incarnation", "generation"];

/// A pod whose user code runs.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Running {
    gang: GangId,
    epoch: Epoch,
    node: String,
    devices: Vec<u32>,
}

/// The clusters' truth so far.
pub(crate) struct Clusters {
    /// Newest event seen, per cluster.
    seen: Vec<u64>,
    /// By cluster and pod.
    running: BTreeMap<(usize, String), Running>,
    /// Runs of each gang, one per cluster and epoch.
    runs: BTreeMap<GangId, BTreeMap<(Epoch, usize), Run>>,
    /// Newest numbers on each agent's disk.
    disks: BTreeMap<(usize, &'static str), u64>,
    records: BTreeMap<usize, String>,
    /// Newest start or end of each gang.
    moved: BTreeMap<GangId, UnixMillis>,
    starts: usize,
}

impl Clusters {
    pub(crate) fn new(count: usize) -> Self {
        Self {
            seen: vec![0; count],
            running: BTreeMap::new(),
            runs: BTreeMap::new(),
            disks: BTreeMap::new(),
            records: BTreeMap::new(),
            moved: BTreeMap::new(),
            starts: 0,
        }
    }

    pub(crate) fn seen(&self, cluster: usize) -> u64 {
        self.seen[cluster]
    }

    /// Pods whose user code began.
    pub(crate) fn starts(&self) -> usize {
        self.starts
    }

    /// Pods of a gang that run under this epoch, anywhere.
    pub(crate) fn running(&self, gang: GangId, epoch: Epoch) -> usize {
        let pods = self.running.values();
        pods.filter(|pod| pod.gang == gang && pod.epoch == epoch)
            .count()
    }

    /// How long ago anything of a gang started or ended; zero when nothing ever did.
    pub(crate) fn quiet_for(&self, gang: GangId, now: UnixMillis) -> Millis {
        let moved = self.moved.get(&gang);
        moved.map_or(Millis::ZERO, |at| now.since(*at))
    }

    /// One event, and the gang's row in the store as it was before this step.
    pub(crate) fn take_in(
        &mut self,
        cluster: usize,
        name: &str,
        event: &TruthEvent,
        row: Option<&PlacementRecord>,
    ) -> Vec<Violation> {
        self.seen[cluster] = event.sequence;
        self.moved.insert(event.key.gang, event.at);
        let id = (cluster, event.pod.clone());
        match event.what {
            Truth::Started => {
                self.starts += 1;
                let pod = Running {
                    gang: event.key.gang,
                    epoch: event.key.epoch,
                    node: event.node.clone(),
                    devices: event.devices.clone(),
                };
                self.running.insert(id, pod);
                let mut found = started(name, event, row);
                found.extend(self.follow_run(cluster, event));
                found.extend(truth::devices(&self.holds()));
                found
            }
            Truth::Ended => {
                self.running.remove(&id);
                self.follow_run(cluster, event)
            }
        }
    }

    /// Puts the event into the gang's runs; what overlaps or goes back is found.
    fn follow_run(&mut self, cluster: usize, event: &TruthEvent) -> Vec<Violation> {
        let (gang, epoch) = (event.key.gang, event.key.epoch);
        let still = self
            .running
            .iter()
            .any(|((at, _), pod)| *at == cluster && pod.gang == gang && pod.epoch == epoch);
        let runs = self.runs.entry(gang).or_default();
        let run = runs.entry((epoch, cluster)).or_insert(Run {
            gang,
            epoch,
            from: event.at,
            until: None,
        });
        run.until = (!still).then_some(event.at);
        if event.what == Truth::Ended {
            return Vec::new();
        }
        let runs: Vec<Run> = runs.values().copied().collect();
        let mut found = truth::exclusive_runs(&runs);
        let elsewhere = self
            .running
            .iter()
            .any(|((at, _), pod)| *at != cluster && pod.gang == gang);
        if elsewhere {
            found.push(broken("S1", format!("gang {gang} runs in two clusters")));
        }
        found
    }

    fn holds(&self) -> Vec<DeviceHold> {
        let pods = self.running.iter();
        pods.flat_map(|((cluster, _), pod)| {
            pod.devices.iter().map(move |device| DeviceHold {
                device: (cluster.to_string(), pod.node.clone(), device.to_string()),
                gang: pod.gang,
                epoch: pod.epoch,
            })
        })
        .collect()
    }

    /// Reads an agent's record: fence, incarnation and generation never go back.
    pub(crate) fn look_at_disk(&mut self, cluster: usize, disk: &MemoryDisk) -> Vec<Violation> {
        let Some(Ok(Some(bytes))) = disk.read(RECORD).now_or_never() else {
            return Vec::new();
        };
        let print = fingerprint(&bytes);
        if self.records.insert(cluster, print.clone()) == Some(print) {
            return Vec::new();
        }
        let Ok(record) = serde_json::from_slice::<Value>(&bytes) else {
            return vec![broken("S2", format!("agent {cluster}: no record on disk"))];
        };
        let mut found = Vec::new();
        for name in GROWING {
            let number = record[name].as_u64().unwrap_or(0);
            let last = self.disks.insert((cluster, name), number);
            found.extend(grows(&format!("agent {cluster} {name}"), last, number));
        }
        found
    }
}

/// S2 for one number: it may stay, and it may grow.
pub(super) fn grows(subject: &str, last: Option<u64>, number: u64) -> Vec<Violation> {
    let entry = |number| Accepted {
        subject: subject.to_owned(),
        number,
    };
    match last {
        Some(last) if last != number => truth::only_grows(&[entry(last), entry(number)]),
        _ => Vec::new(),
    }
}

/// A start is ordered, and every member is bound.
fn started(name: &str, event: &TruthEvent, row: Option<&PlacementRecord>) -> Vec<Violation> {
    let mut found = Vec::new();
    let key = event.key;
    let ordered = row.is_some_and(|row| *row.cluster == *name && row.epoch == key.epoch);
    if !ordered {
        let row = row.map(|row| format!("{} epoch {}", row.cluster, row.epoch));
        let row = row.unwrap_or_else(|| "no row".to_owned());
        found.push(broken(
            "S2",
            format!("{key} started in {name}, the store has {row}"),
        ));
    }
    if event.bound != event.members {
        let (bound, members) = (event.bound, event.members);
        found.push(broken(
            "S9",
            format!("{key} started with {bound} of {members} members bound"),
        ));
    }
    found
}

#[cfg(test)]
#[path = "clusters_tests.rs"]
mod tests;
