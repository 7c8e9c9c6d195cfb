//! Trouble in a simulated cluster: machines, devices and processes that die.
//!
//! Owns what each does in truth at once, and in the cluster's view when it is noticed. Never
//! happens by itself: a test or a simulation calls for it.

use super::profile::{For, text};
use super::state::{Changed, Due, PodId, State};
use crate::backend::{GangKey, PodPhase};

impl State {
    /// A machine dies with everything on it; the cluster notices later.
    pub(super) fn fail_node(&mut self, name: &str) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        if std::mem::replace(&mut node.dead, true) {
            return;
        }
        for id in self.pods_on(name) {
            self.stop_running(&id);
            self.release(&id);
        }
        let about = [text(name), self.now.0.unsigned_abs()];
        let notice = self
            .draw()
            .span(For::Notice, &about, self.profile.node_notice);
        self.schedule(notice, Due::Notice(name.to_owned()));
    }

    /// It comes back, empty.
    pub(super) fn recover_node(&mut self, name: &str) {
        if !self.nodes.get(name).is_some_and(|node| node.dead) {
            return;
        }
        self.notice(name);
        if let Some(node) = self.nodes.get_mut(name) {
            (node.dead, node.noticed) = (false, false);
        }
        self.note(Changed::Node(name.to_owned()));
    }

    /// A device breaks, and the pod that has it.
    pub(super) fn fail_device(&mut self, name: &str, device: u32) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        if u64::from(device) >= node.resources.gpus.whole() || !node.unhealthy.insert(device) {
            return;
        }
        if let Some(pod) = node.devices.get(&device).cloned() {
            self.end(
                &pod,
                PodPhase::Failed {
                    exit_code: 1,
                    reason: "DeviceFailed".to_owned(),
                },
            );
        }
        self.note(Changed::Node(name.to_owned()));
    }

    /// Every process of a gang is killed from outside, as by a kernel short of memory.
    pub(super) fn kill(&mut self, key: GangKey) {
        let Some(gang) = self.gangs.get(&key) else {
            return;
        };
        let running = gang.pods.iter().filter(|pod| pod.runs);
        let running: Vec<PodId> = running.map(|pod| pod.id.clone()).collect();
        for pod in running {
            self.end(
                &pod,
                PodPhase::Failed {
                    exit_code: 137,
                    reason: "OOMKilled".to_owned(),
                },
            );
        }
    }

    fn pods_on(&self, node: &str) -> Vec<PodId> {
        let pods = self.gangs.values().flat_map(|gang| &gang.pods);
        let there = pods.filter(|pod| pod.node == node && !pod.phase.ended());
        there.map(|pod| pod.id.clone()).collect()
    }

    /// The cluster learns that a node is dead: what was on it is lost.
    pub(super) fn notice(&mut self, name: &str) {
        let Some(node) = self.nodes.get_mut(name) else {
            return;
        };
        if !node.dead || std::mem::replace(&mut node.noticed, true) {
            return;
        }
        for id in self.pods_on(name) {
            self.end(
                &id,
                PodPhase::Failed {
                    exit_code: 0,
                    reason: "NodeLost".to_owned(),
                },
            );
        }
        self.note(Changed::Node(name.to_owned()));
    }
}
