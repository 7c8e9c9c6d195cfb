//! What the cluster shows, put together: pods and owner objects become gangs.
//!
//! Owns the newest state of every object that the agent made, and what follows from it: gangs as
//! they are seen, and chores. Everything else of the cluster is the inventory's. Pure: never asks
//! the cluster, and time is an argument.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::DynamicObject;
use meridian_api::ids::{Epoch, GangId};
use meridian_api::units::BootMillis;

use super::Whose;
use super::bind::slip;
use super::doubt::Missing;
use super::entry::{Entry, Kept, Owner};
use super::gate::Chore;
use super::hosts::Hosts;
use super::inventory::Inventory;
use super::makers::MakerKind;
use super::names::{self, Part};
use super::options::KubernetesOptions;
use super::others::Others;
use super::phase;
use super::record::Record;
use crate::backend::{ClusterEvent, GangKey, GangSeen, PodPhase, PodSeen, Snapshot};

/// The cluster as it was last shown.
pub(super) struct Index {
    inventory: Inventory,
    hosts: Hosts,
    gangs: BTreeMap<GangKey, Entry>,
    /// The gang that each pod of others is bound for, by the pod's UID.
    bound: BTreeMap<String, GangKey>,
    others: Others,
    /// What is to be told of what others offer, after the gangs: that one has succeeded is heard
    /// before its owner is over.
    offer_news: Vec<ClusterEvent>,
    /// The gangs of others that lack something, as last told.
    told_held_back: Vec<String>,
    /// Gangs that must be looked at again.
    touched: BTreeSet<GangKey>,
    /// What was last told.
    told: BTreeMap<GangKey, GangSeen>,
    /// Gangs with chores to do.
    chores: BTreeMap<GangKey, BTreeSet<Chore>>,
}

impl Index {
    pub(super) fn new(options: &KubernetesOptions) -> Self {
        Self {
            inventory: Inventory::new(options.flavors.clone(), options.inventory.clone()),
            hosts: Hosts::new(options.node_lost_after, options.machine_gone_after),
            gangs: BTreeMap::new(),
            bound: BTreeMap::new(),
            others: Others::new(options.flavors.clone()),
            offer_news: Vec::new(),
            told_held_back: Vec::new(),
            touched: BTreeSet::new(),
            told: BTreeMap::new(),
            chores: BTreeMap::new(),
        }
    }

    /// Takes a whole listing; owner objects were listed before pods, pods before nodes.
    pub(super) fn load(
        &mut self,
        nodes: &[Node],
        pods: &[Pod],
        configs: &[ConfigMap],
        now: BootMillis,
    ) {
        let flagged = pods.iter().map(|pod| (pod, member_key(pod).is_some()));
        self.inventory.load(nodes, flagged);
        for node in nodes {
            let name = node.metadata.name.as_deref().unwrap_or_default();
            self.hosts.apply(name, node, now);
        }
        for pod in pods {
            let host = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
            if self.take_pod(pod)
                && let Some(host) = host
            {
                self.hosts.expect(host, now);
            }
            self.offer_pod(pod);
        }
        for config in configs {
            self.apply_config(config);
        }
        for entry in self.gangs.values_mut() {
            entry.mark_absent();
        }
        self.tick(now);
        // What is there is the snapshot's to tell.
        drop(self.news(now));
    }

    /// Everything as it was last told.
    pub(super) fn snapshot(&self) -> Snapshot {
        let (pools, nodes) = self.inventory.snapshot();
        Snapshot {
            pools,
            nodes,
            gangs: self.told.values().cloned().collect(),
            offers: self.others.snapshot(),
            held_back: self.others.held_back(),
        }
    }

    /// Namespaces of the gangs that are there, and who made their pods.
    pub(super) fn homes(&self) -> Vec<(GangId, &str, Whose)> {
        let mut homes = Vec::new();
        for (key, entry) in &self.gangs {
            let Some(namespace) = entry.namespace() else {
                continue;
            };
            let whose = if entry.is_theirs() {
                Whose::Theirs
            } else {
                Whose::Ours
            };
            homes.push((key.gang, namespace, whose));
        }
        homes
    }

    /// True when the owner object of a gang is there, under whichever epoch.
    pub(super) fn has_owner(&self, gang: GangId) -> bool {
        let first = GangKey {
            gang,
            epoch: Epoch(0),
        };
        let epochs = self.gangs.range(first..);
        let mut own = epochs.take_while(|(key, _)| key.gang == gang);
        own.any(|(_, entry)| entry.owner.is_some())
    }

    /// What a whole listing lacks of what was there: pods of gangs that were bound, and nodes of
    /// pods.
    pub(super) fn missing(&self) -> BTreeSet<Missing> {
        let mut missing = BTreeSet::new();
        for entry in self.gangs.values() {
            missing.extend(entry.missing());
            let hosts = entry.pods.values().map(Kept::host);
            let unknown = hosts.filter(|host| !host.is_empty() && !self.hosts.knows(host));
            missing.extend(unknown.map(|host| Missing::Node(host.to_owned())));
        }
        missing
    }

    pub(super) fn apply_node(&mut self, node: &Node, now: BootMillis) -> Vec<ClusterEvent> {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let before = self.hosts.machine(name);
        self.hosts.apply(name, node, now);
        if self.hosts.machine(name) != before {
            self.touch_host(name);
        }
        self.tick(now);
        self.inventory.apply_node(node)
    }

    pub(super) fn remove_node(&mut self, node: &Node, now: BootMillis) -> Vec<ClusterEvent> {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        self.hosts.remove(name, now);
        self.touch_host(name);
        self.inventory.remove_node(name)
    }

    pub(super) fn apply_pod(&mut self, pod: &Pod) -> Vec<ClusterEvent> {
        let is_member = self.take_pod(pod);
        self.offer_pod(pod);
        self.inventory.apply_pod(pod, is_member)
    }

    pub(super) fn remove_pod(&mut self, pod: &Pod) -> Vec<ClusterEvent> {
        if let Some(key) = member_key(pod)
            && let Some(entry) = self.gangs.get_mut(&key)
        {
            entry.remove(pod.metadata.name.as_deref().unwrap_or_default());
            self.touched.insert(key);
        }
        if let Some(uid) = &pod.metadata.uid {
            self.bound.remove(uid);
        }
        let events = self.others.remove_pod(pod);
        self.offer_news.extend(events);
        self.inventory.remove_pod(pod)
    }

    pub(super) fn apply_maker(&mut self, kind: MakerKind, object: DynamicObject) {
        let events = kind.apply(object, &mut self.others);
        self.offer_news.extend(events);
    }

    pub(super) fn remove_maker(&mut self, kind: MakerKind, object: DynamicObject) {
        let events = kind.remove(object, &mut self.others);
        self.offer_news.extend(events);
    }

    pub(super) fn apply_config(&mut self, config: &ConfigMap) {
        let Some(key) = owner_key(config) else {
            return;
        };
        if let Some(record) = Record::read(config).filter(|record| record.key == key) {
            let entry = self.gangs.entry(key).or_default();
            entry.own(Owner::of(config, record));
        }
        self.touched.insert(key);
    }

    pub(super) fn remove_config(&mut self, config: &ConfigMap) {
        let Some(key) = owner_key(config) else {
            return;
        };
        let Some(entry) = self.gangs.get_mut(&key) else {
            return;
        };
        let uid = config.metadata.uid.as_deref().unwrap_or_default();
        if entry.owner.as_ref().is_some_and(|owner| owner.uid == uid) {
            entry.disown();
        }
        self.touched.insert(key);
    }

    /// What is to be told of the gangs that changed, whose chores are looked at too.
    pub(super) fn news(&mut self, now: BootMillis) -> Vec<ClusterEvent> {
        let mut news = Vec::new();
        for key in std::mem::take(&mut self.touched) {
            let chores = self.chores_of(key, now);
            if chores.is_empty() {
                self.chores.remove(&key);
            } else {
                self.chores.insert(key, chores);
            }
            match self.gang(key) {
                Some(gang) if self.told.get(&key) != Some(&gang) => {
                    self.told.insert(key, gang.clone());
                    news.push(ClusterEvent::Gang(Box::new(gang)));
                }
                Some(_) => {}
                None => {
                    self.gangs.remove(&key);
                    if self.told.remove(&key).is_some() {
                        news.push(ClusterEvent::GangGone(key));
                    }
                }
            }
        }
        news.append(&mut self.offer_news);
        let held_back = self.others.held_back();
        if held_back != self.told_held_back {
            self.told_held_back.clone_from(&held_back);
            news.push(ClusterEvent::HeldBack(held_back));
        }
        news
    }

    /// Looks at what time alone changes.
    pub(super) fn tick(&mut self, now: BootMillis) {
        for host in self.hosts.tick(now) {
            self.touch_host(&host);
        }
        let waits = |entry: &Entry| {
            let mut pods = entry.pods.values();
            pods.any(|kept| self.is_to_bury(kept, now))
        };
        let waiting = self.gangs.iter().filter(|(_, entry)| waits(entry));
        let waiting: Vec<GangKey> = waiting.map(|(key, _)| *key).collect();
        self.touched.extend(waiting);
    }

    /// When time alone changes something next.
    pub(super) fn next_tick(&self, now: BootMillis) -> Option<BootMillis> {
        self.hosts.next_tick(now)
    }

    /// Chores of the gangs as they were last told.
    pub(super) fn chores(&self) -> impl Iterator<Item = &Chore> {
        self.chores.values().flatten()
    }

    /// The patch that opens the gate of a gang.
    pub(super) fn opening(&self, key: GangKey) -> Option<serde_json::Value> {
        let owner = self.gangs.get(&key)?.owner.as_ref()?;
        Some(owner.opening())
    }

    fn chores_of(&self, key: GangKey, now: BootMillis) -> BTreeSet<Chore> {
        let mut chores = BTreeSet::new();
        let Some(entry) = self.gangs.get(&key) else {
            return chores;
        };
        if let Some(owner) = &entry.owner {
            let namespace = owner.namespace.clone();
            let admitted = |kept: &Kept| {
                let phase = self.shown(kept).phase;
                matches!(phase, PodPhase::Bound | PodPhase::Running)
            };
            if owner.record.stopping && entry.pods.is_empty() {
                chores.insert(Chore::Collect { key });
            } else if !owner.record.stopping && entry.may_open(owner, admitted) {
                chores.insert(Chore::Open { key, namespace });
            }
        }
        let pods = entry.pods.iter();
        for (name, kept) in pods.filter(|(_, kept)| self.is_to_bury(kept, now)) {
            chores.insert(Chore::Bury {
                key,
                namespace: kept.namespace.clone(),
                pod: name.clone(),
                uid: kept.uid.clone(),
            });
        }
        chores
    }

    /// True when no kubelet will ever say that a pod of ours, or one that was asked to end, has
    /// ended.
    fn is_to_bury(&self, kept: &Kept, now: BootMillis) -> bool {
        let waits = || kept.deleting || (!kept.theirs && !self.shown(kept).phase.ended());
        self.hosts.given_up(kept.host(), now) && waits()
    }

    fn touch_host(&mut self, name: &str) {
        let on_it = |entry: &Entry| entry.pods.values().any(|kept| kept.host() == name);
        let touched = self.gangs.iter().filter(|(_, entry)| on_it(entry));
        self.touched.extend(touched.map(|(key, _)| *key));
    }

    /// Takes a pod if it is a member of a gang.
    fn take_pod(&mut self, pod: &Pod) -> bool {
        let key = member_key(pod);
        self.note_bound(pod, key);
        let (Some(key), Some(kept)) = (key, Kept::of(pod)) else {
            return false;
        };
        let name = pod.metadata.name.clone().unwrap_or_default();
        self.gangs.entry(key).or_default().take(name, kept);
        self.touched.insert(key);
        true
    }

    /// Notes which gang a pod of others is bound for; one that was let go leaves its gang.
    fn note_bound(&mut self, pod: &Pod, key: Option<GangKey>) {
        let Some(uid) = pod.metadata.uid.as_ref() else {
            return;
        };
        let is_bound = pod.metadata.labels.as_ref().and_then(names::bound_key);
        let before = match key.filter(|_| is_bound.is_some()) {
            Some(key) => self.bound.insert(uid.clone(), key),
            None => self.bound.remove(uid),
        };
        let left = before.filter(|before| Some(*before) != key);
        if let Some(left) = left
            && let Some(entry) = self.gangs.get_mut(&left)
        {
            entry.remove(pod.metadata.name.as_deref().unwrap_or_default());
            self.touched.insert(left);
        }
    }

    /// Takes a pod that may be of a gang that others make.
    fn offer_pod(&mut self, pod: &Pod) {
        let labels = pod.metadata.labels.as_ref();
        let is_ours = labels.and_then(names::key).is_some() && slip(pod).is_some();
        let events = self.others.apply_pod(pod, is_ours);
        self.offer_news.extend(events);
    }

    fn shown(&self, kept: &Kept) -> phase::Shown {
        phase::shown(&kept.pod, self.hosts.machine(kept.host()))
    }

    /// A gang as it is; `None` when nothing of it is there.
    fn gang(&self, key: GangKey) -> Option<GangSeen> {
        let entry = self.gangs.get(&key)?;
        let owner = entry.owner.as_ref();
        if owner.is_none() && entry.pods.is_empty() {
            return None;
        }
        let seen = entry.pods.iter();
        let seen = seen.map(|(name, kept)| (kept.place(), self.pod(name, kept)));
        let mut pods: Vec<_> = seen.collect();
        if let Some(owner) = owner.filter(|owner| !owner.record.stopping) {
            let is_off = |host: &str| self.hosts.machine(host) == phase::Machine::Off;
            pods.extend(entry.absent(owner, is_off));
        }
        pods.sort_by(|a, b| (a.0, &a.1.name).cmp(&(b.0, &b.1.name)));
        let checkpoints = entry.pods.values().map(|kept| phase::checkpoint(&kept.pod));
        let slips = || entry.pods.values().map(|kept| &kept.slip);
        let attempt = || slips().map(|slip| slip.attempt).max().unwrap_or(0);
        let terms = || slips().next().map(|slip| slip.terms.clone());
        let record = owner.map(|owner| &owner.record);
        let own_terms = record.map(|record| record.terms.clone());
        Some(GangSeen {
            key,
            attempt: record.map_or_else(attempt, |record| record.attempt),
            complete: owner.is_none_or(|owner| entry.is_complete(owner)),
            terms: own_terms.or_else(terms).unwrap_or_default(),
            stopping: record.is_some_and(|record| record.stopping),
            pods: pods.into_iter().map(|(_, pod)| pod).collect(),
            checkpoint: checkpoints.max().flatten(),
        })
    }

    fn pod(&self, name: &str, kept: &Kept) -> PodSeen {
        let shown = self.shown(kept);
        PodSeen {
            name: name.to_owned(),
            role: kept.slip.role.clone(),
            rank: kept.slip.rank,
            node: kept.node(),
            request: kept.slip.request,
            phase: shown.phase,
            started: shown.started,
            ended: shown.ended,
            waits_for: shown.waits_for,
            leaving: kept.leaving,
        }
    }
}

/// The gang and epoch of a pod that the agent made or bound.
pub(super) fn member_key(pod: &Pod) -> Option<GangKey> {
    slip(pod)?;
    names::member_key(pod.metadata.labels.as_ref()?)
}

/// The gang and epoch of an owner object.
fn owner_key(config: &ConfigMap) -> Option<GangKey> {
    let labels = config.metadata.labels.as_ref()?;
    let part = labels.get(names::PART)?;
    names::key(labels).filter(|_| part == Part::Owner.label())
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
