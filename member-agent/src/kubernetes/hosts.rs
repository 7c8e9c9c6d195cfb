//! The machines of a cluster: which are heard, which are lost, which are given up.
//!
//! Owns what is kept of a node beside its size, which is the inventory's. Pure: time is an
//! argument. Never says that a pod ended: a machine that is not heard may still run it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use meridian_api::units::{BootMillis, Millis};

use super::phase::Machine;

/// The taint by which an operator says that a machine is powered off.
pub(super) const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// All machines that are known.
pub(super) struct Hosts {
    known: BTreeMap<String, Host>,
    /// Machines that left the cluster, and when that was seen.
    gone: BTreeMap<String, BootMillis>,
    lost_after: Millis,
    gone_after: Millis,
}

/// The health of one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Host {
    /// Since when it is not ready.
    unready: Option<BootMillis>,
    /// Since when its operator says that it is off.
    off: Option<BootMillis>,
    lost: bool,
}

impl Hosts {
    pub(super) fn new(lost_after: Millis, gone_after: Millis) -> Self {
        Self {
            known: BTreeMap::new(),
            gone: BTreeMap::new(),
            lost_after,
            gone_after,
        }
    }

    /// Takes a node as the API shows it.
    pub(super) fn apply(&mut self, name: &str, node: &Node, now: BootMillis) {
        let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
        let mut ready = conditions.into_iter().flatten();
        let ready = ready.any(|condition| condition.type_ == "Ready" && condition.status == "True");
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        let mut taints = taints.into_iter().flatten();
        let off = taints.any(|taint| taint.key == OUT_OF_SERVICE);
        let since = |is: bool, before: Option<BootMillis>| is.then(|| before.unwrap_or(now));
        let host = self.known.entry(name.to_owned()).or_default();
        host.unready = since(!ready, host.unready);
        host.off = since(off, host.off);
        self.gone.remove(name);
    }

    /// A node left the cluster.
    pub(super) fn remove(&mut self, name: &str, now: BootMillis) {
        self.known.remove(name);
        self.gone.insert(name.to_owned(), now);
    }

    /// A pod of a whole listing is on this machine; one that is not listed is gone.
    pub(super) fn expect(&mut self, name: &str, now: BootMillis) {
        if !self.known.contains_key(name) {
            self.gone.entry(name.to_owned()).or_insert(now);
        }
    }

    /// Looks at what time alone changes. The machines of which the pods look different.
    ///
    /// When more than half of the machines are silent at once, and there are at least three, it is
    /// the cluster's own network or control plane that is in trouble: none of them is deemed lost.
    pub(super) fn tick(&mut self, now: BootMillis) -> Vec<String> {
        let silent = self
            .known
            .values()
            .filter(|host| host.unready.is_some())
            .count();
        let storm = self.known.len() > 2 && silent * 2 > self.known.len();
        let mut changed = Vec::new();
        for (name, host) in &mut self.known {
            let overdue = |since: BootMillis| now >= since.after(self.lost_after);
            let lost = host.off.is_some() || (!storm && host.unready.is_some_and(overdue));
            if std::mem::replace(&mut host.lost, lost) != lost {
                changed.push(name.clone());
            }
        }
        changed
    }

    /// When time alone changes something next.
    pub(super) fn next_tick(&self, now: BootMillis) -> Option<BootMillis> {
        let lost = self.known.values().filter(|host| !host.lost);
        let lost = lost.filter_map(|host| Some(host.unready?.after(self.lost_after)));
        let off = self.known.values().filter_map(|host| host.off);
        let gone = self.gone.values().copied().chain(off);
        let gone = gone.map(|since| since.after(self.gone_after));
        lost.chain(gone).filter(|at| *at > now).min()
    }

    /// True for a node that is in the cluster.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    /// What is known of the machine of a pod.
    pub(super) fn machine(&self, name: &str) -> Machine {
        let host = self.known.get(name);
        if self.gone.contains_key(name) || host.is_some_and(|host| host.off.is_some()) {
            Machine::Off
        } else if host.is_some_and(|host| host.lost) {
            Machine::Lost
        } else {
            Machine::Heard
        }
    }

    /// True when it is given up: its operator or its cloud took it away, some time ago.
    pub(super) fn given_up(&self, name: &str, now: BootMillis) -> bool {
        let off = self.known.get(name).and_then(|host| host.off);
        let since = self.gone.get(name).copied().or(off);
        since.is_some_and(|since| now >= since.after(self.gone_after))
    }
}
