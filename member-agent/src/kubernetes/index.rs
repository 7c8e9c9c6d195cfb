//! What the cluster shows, put together: pods and owner objects become gangs.
//!
//! Owns the newest state of every object that the agent made, the health of machines, and what
//! follows from them: gangs as they are seen, and chores. Everything else of the cluster is the
//! inventory's. Pure: never asks the cluster, and time is an argument.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use meridian_api::ids::GangId;
use meridian_api::units::{BootMillis, Millis};

use super::bind::slip;
use super::gate::Chore;
use super::inventory::Inventory;
use super::names::{self, Part};
use super::options::KubernetesOptions;
use super::phase::{self, Machine};
use super::record::{Member, Record, Slip};
use crate::backend::{ClusterEvent, GangKey, GangSeen, GangTerms, PodPhase, PodSeen, Snapshot};

/// The taint by which an operator says that a machine is powered off.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// The cluster as it was last shown.
pub(super) struct Index {
    inventory: Inventory,
    hosts: BTreeMap<String, Host>,
    /// Hosts that left the cluster, and when that was seen.
    gone: BTreeMap<String, BootMillis>,
    gangs: BTreeMap<GangKey, Entry>,
    /// Keys whose gang must be looked at again.
    touched: BTreeSet<GangKey>,
    /// What was last told.
    told: BTreeMap<GangKey, GangSeen>,
    lost_after: Millis,
    gone_after: Millis,
}

/// The health of one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Host {
    /// Since when it is not ready.
    unready: Option<BootMillis>,
    /// Since when its operator says that it is off.
    off: Option<BootMillis>,
    lost: bool,
}

#[derive(Default)]
struct Entry {
    owner: Option<Owner>,
    /// UIDs of the owner objects that have a gate.
    gates: BTreeSet<String>,
    pods: BTreeMap<String, Kept>,
    /// Members whose pod was there and was removed by somebody else.
    removed: BTreeSet<(usize, u32)>,
}

struct Owner {
    uid: String,
    namespace: String,
    record: Record,
}

/// What is kept of a pod.
struct Kept {
    slip: Slip,
    namespace: String,
    uid: String,
    host: Option<String>,
    deleting: bool,
    /// A resize left it out: its end is expected.
    leaving: bool,
    /// Without its spec's containers and the annotations that nobody reads.
    pod: Pod,
}

impl Index {
    pub(super) fn new(options: &KubernetesOptions) -> Self {
        Self {
            inventory: Inventory::new(options.flavors.clone(), options.inventory.clone()),
            hosts: BTreeMap::new(),
            gone: BTreeMap::new(),
            gangs: BTreeMap::new(),
            touched: BTreeSet::new(),
            told: BTreeMap::new(),
            lost_after: options.node_lost_after,
            gone_after: options.machine_gone_after,
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
        let flagged = pods.iter().map(|pod| (pod, is_member(pod)));
        self.inventory.load(nodes, flagged);
        for node in nodes {
            self.take_host(node, now);
        }
        for pod in pods {
            if let Some(key) = self.take_pod(pod) {
                self.note_absent_host(pod, now);
                self.touched.insert(key);
            }
        }
        for config in configs {
            self.take_config(config);
        }
        for entry in self.gangs.values_mut() {
            entry.mark_absent();
        }
        self.tick(now);
        for key in std::mem::take(&mut self.touched) {
            if let Some(gang) = self.gang(key) {
                self.told.insert(key, gang);
            }
        }
    }

    /// Everything as it was last told.
    pub(super) fn snapshot(&self) -> Snapshot {
        let (pools, nodes) = self.inventory.snapshot();
        Snapshot {
            pools,
            nodes,
            gangs: self.told.values().cloned().collect(),
            offers: Vec::new(),
        }
    }

    /// Namespaces of the gangs that are there.
    pub(super) fn homes(&self) -> Vec<(GangId, &str)> {
        self.gangs
            .iter()
            .filter_map(|(key, entry)| Some((key.gang, entry.namespace()?)))
            .collect()
    }

    pub(super) fn apply_node(&mut self, node: &Node, now: BootMillis) -> Vec<ClusterEvent> {
        self.take_host(node, now);
        let events = self.inventory.apply_node(node);
        self.tick(now);
        events
    }

    pub(super) fn remove_node(&mut self, node: &Node, now: BootMillis) -> Vec<ClusterEvent> {
        let name = node.metadata.name.clone().unwrap_or_default();
        self.hosts.remove(&name);
        self.touch_host(&name);
        let events = self.inventory.remove_node(&name);
        self.gone.insert(name, now);
        events
    }

    pub(super) fn apply_pod(&mut self, pod: &Pod) -> Vec<ClusterEvent> {
        if let Some(key) = self.take_pod(pod) {
            self.touched.insert(key);
        }
        self.inventory.apply_pod(pod, is_member(pod))
    }

    pub(super) fn remove_pod(&mut self, pod: &Pod) -> Vec<ClusterEvent> {
        if let Some(key) = member_key(pod)
            && let Some(entry) = self.gangs.get_mut(&key)
        {
            entry.remove(pod.metadata.name.as_deref().unwrap_or_default());
            self.touched.insert(key);
        }
        self.inventory.remove_pod(pod)
    }

    pub(super) fn apply_config(&mut self, config: &ConfigMap) {
        self.take_config(config);
    }

    pub(super) fn remove_config(&mut self, config: &ConfigMap) {
        let Some((key, part)) = config_key(config) else {
            return;
        };
        let Some(entry) = self.gangs.get_mut(&key) else {
            return;
        };
        let uid = config.metadata.uid.as_deref().unwrap_or_default();
        if part == Part::Gate.label() {
            entry.gates.remove(owner_uid(config));
        } else if entry.owner.as_ref().is_some_and(|owner| owner.uid == uid) {
            entry.owner = None;
            entry.removed.clear();
        }
        self.touched.insert(key);
    }

    /// What is to be told of the gangs that changed.
    pub(super) fn news(&mut self) -> Vec<ClusterEvent> {
        let mut news = Vec::new();
        for key in std::mem::take(&mut self.touched) {
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
        news
    }

    /// Looks at what time alone changes: machines that have not been heard for too long.
    ///
    /// When more than half of the machines are silent at once, and there are at least three, it is
    /// the cluster's own network or control plane that is in trouble: none of them is deemed lost.
    pub(super) fn tick(&mut self, now: BootMillis) {
        let silent = self
            .hosts
            .values()
            .filter(|host| host.unready.is_some())
            .count();
        let storm = self.hosts.len() > 2 && silent * 2 > self.hosts.len();
        let mut changed = Vec::new();
        for (name, host) in &mut self.hosts {
            let overdue = |since: BootMillis| now >= since.after(self.lost_after);
            let lost = host.off.is_some() || (!storm && host.unready.is_some_and(overdue));
            if std::mem::replace(&mut host.lost, lost) != lost {
                changed.push(name.clone());
            }
        }
        for name in changed {
            self.touch_host(&name);
        }
    }

    /// When time alone changes something next.
    pub(super) fn next_tick(&self, now: BootMillis) -> Option<BootMillis> {
        let lost = self.hosts.values().filter(|host| !host.lost);
        let lost = lost.filter_map(|host| Some(host.unready?.after(self.lost_after)));
        let off = self.hosts.values().filter_map(|host| host.off);
        let gone = self.gone.values().copied().chain(off);
        let gone = gone.map(|since| since.after(self.gone_after));
        lost.chain(gone).filter(|at| *at > now).min()
    }

    /// Chores that are due.
    pub(super) fn chores(&self, now: BootMillis) -> BTreeSet<Chore> {
        let mut chores = BTreeSet::new();
        for (key, entry) in &self.gangs {
            self.chores_of(*key, entry, now, &mut chores);
        }
        chores
    }

    fn chores_of(
        &self,
        key: GangKey,
        entry: &Entry,
        now: BootMillis,
        chores: &mut BTreeSet<Chore>,
    ) {
        if let Some(owner) = &entry.owner {
            let namespace = owner.namespace.clone();
            if owner.record.stopping && entry.pods.is_empty() {
                chores.insert(Chore::Collect { key });
            } else if !owner.record.stopping && self.is_whole(entry, owner) {
                chores.insert(Chore::Open { key, namespace });
            }
        }
        for (name, kept) in entry.pods.iter().filter(|(_, kept)| kept.deleting) {
            let host = kept.host.as_deref().unwrap_or_default();
            let off = self.hosts.get(host).and_then(|host| host.off);
            let since = self.gone.get(host).copied().or(off);
            if since.is_some_and(|since| now >= since.after(self.gone_after)) {
                chores.insert(Chore::Bury {
                    key,
                    namespace: kept.namespace.clone(),
                    pod: name.clone(),
                    uid: kept.uid.clone(),
                });
            }
        }
    }

    /// True when every member is admitted on its host, and the gate is not there yet.
    fn is_whole(&self, entry: &Entry, owner: &Owner) -> bool {
        if !owner.record.complete || entry.gates.contains(&owner.uid) {
            return false;
        }
        let admitted = |member: &Member| {
            let mut pods = entry.pods.values().filter(|kept| kept.is(member));
            pods.any(|kept| {
                let phase = self.shown(kept).phase;
                !kept.deleting && matches!(phase, PodPhase::Bound | PodPhase::Running)
            })
        };
        let members = owner.record.members();
        !members.is_empty() && members.iter().all(admitted)
    }

    fn take_host(&mut self, node: &Node, now: BootMillis) {
        let name = node.metadata.name.clone().unwrap_or_default();
        let status = node.status.as_ref();
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let ready = conditions.into_iter().flatten();
        let mut ready = ready.filter(|condition| condition.type_ == "Ready");
        let ready = ready.any(|condition| condition.status == "True");
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        let off = taints
            .into_iter()
            .flatten()
            .any(|taint| taint.key == OUT_OF_SERVICE);
        let before = self.hosts.get(&name).copied();
        let since = |is: bool, before: Option<BootMillis>| is.then(|| before.unwrap_or(now));
        let host = Host {
            unready: since(!ready, before.and_then(|host| host.unready)),
            off: since(off, before.and_then(|host| host.off)),
            lost: before.is_some_and(|host| host.lost),
        };
        self.hosts.insert(name.clone(), host);
        if self.gone.remove(&name).is_some() {
            self.touch_host(&name);
        }
    }

    /// In a whole listing, a pod on a host that is not there is on one that is gone.
    fn note_absent_host(&mut self, pod: &Pod, now: BootMillis) {
        let host = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        if let Some(host) = host.filter(|host| !self.hosts.contains_key(*host)) {
            self.gone.entry(host.clone()).or_insert(now);
        }
    }

    fn touch_host(&mut self, name: &str) {
        let on_it = |entry: &Entry| {
            let mut hosts = entry.pods.values().filter_map(|kept| kept.host.as_deref());
            hosts.any(|host| host == name)
        };
        let touched = self.gangs.iter().filter(|(_, entry)| on_it(entry));
        self.touched.extend(touched.map(|(key, _)| *key));
    }

    fn take_pod(&mut self, pod: &Pod) -> Option<GangKey> {
        let key = member_key(pod)?;
        let kept = Kept::of(pod)?;
        let name = pod.metadata.name.clone().unwrap_or_default();
        let entry = self.gangs.entry(key).or_default();
        entry.take(name, kept);
        Some(key)
    }

    fn take_config(&mut self, config: &ConfigMap) {
        let Some((key, part)) = config_key(config) else {
            return;
        };
        let entry = self.gangs.entry(key).or_default();
        if part == Part::Gate.label() {
            entry.gates.insert(owner_uid(config).to_owned());
        } else if let Some(record) = Record::read(config)
            && record.key == key
        {
            entry.own(Owner {
                uid: config.metadata.uid.clone().unwrap_or_default(),
                namespace: config.metadata.namespace.clone().unwrap_or_default(),
                record,
            });
        }
        self.touched.insert(key);
    }

    fn shown(&self, kept: &Kept) -> phase::Shown {
        let host = kept.host.as_deref().unwrap_or_default();
        let lost = self.hosts.get(host).is_some_and(|host| host.lost);
        let machine = if lost || self.gone.contains_key(host) {
            Machine::Lost
        } else {
            Machine::Heard
        };
        phase::shown(&kept.pod, machine)
    }

    /// A gang as it is; `None` when nothing of it is there.
    fn gang(&self, key: GangKey) -> Option<GangSeen> {
        let entry = self.gangs.get(&key)?;
        let mut pods: Vec<(usize, u32, PodSeen)> = Vec::new();
        for (name, kept) in &entry.pods {
            let seen = self.pod(name, kept);
            pods.push((kept.slip.order, kept.slip.rank, seen));
        }
        let owner = entry.owner.as_ref();
        if let Some(owner) = owner.filter(|owner| !owner.record.stopping) {
            pods.extend(entry.absent(&owner.record));
        } else if owner.is_none() && pods.is_empty() {
            return None;
        }
        pods.sort_by(|a, b| (a.0, a.1, &a.2.name).cmp(&(b.0, b.1, &b.2.name)));
        let checkpoints = entry.pods.values().map(|kept| phase::checkpoint(&kept.pod));
        let slips = || entry.pods.values().map(|kept| &kept.slip);
        let attempt = slips().map(|slip| slip.attempt).max().unwrap_or(0);
        let terms = slips().next().map(|slip| slip.terms.clone());
        Some(GangSeen {
            key,
            attempt: owner.map_or(attempt, |owner| owner.record.attempt),
            complete: owner.is_none_or(|owner| owner.record.complete),
            terms: owner
                .map(|owner| owner.record.terms.clone())
                .or(terms)
                .unwrap_or_else(GangTerms::default),
            stopping: owner.is_some_and(|owner| owner.record.stopping),
            pods: pods.into_iter().map(|(_, _, pod)| pod).collect(),
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
        }
    }
}

impl Entry {
    fn namespace(&self) -> Option<&str> {
        let pod = || {
            self.pods
                .values()
                .next()
                .map(|kept| kept.namespace.as_str())
        };
        let owner = self.owner.as_ref().map(|owner| owner.namespace.as_str());
        owner.or_else(pod)
    }

    fn own(&mut self, owner: Owner) {
        let moved = self.owner.as_ref().is_some_and(|before| {
            before.record.roles != owner.record.roles || before.uid != owner.uid
        });
        if moved {
            self.removed.clear();
        }
        let members = owner.record.members();
        for kept in self.pods.values_mut() {
            kept.leaving = !members.iter().any(|member| kept.is(member));
        }
        self.owner = Some(owner);
    }

    fn take(&mut self, name: String, mut kept: Kept) {
        let member = (kept.slip.order, kept.slip.rank);
        self.removed.remove(&member);
        let members = self.owner.as_ref().map(|owner| owner.record.members());
        kept.leaving = members.is_some_and(|members| !members.iter().any(|member| kept.is(member)));
        self.pods.insert(name, kept);
    }

    fn remove(&mut self, name: &str) {
        let Some(kept) = self.pods.remove(name) else {
            return;
        };
        let member = (kept.slip.order, kept.slip.rank);
        if !kept.leaving && !self.has(member) {
            self.removed.insert(member);
        }
    }

    fn has(&self, member: (usize, u32)) -> bool {
        let same = |kept: &Kept| (kept.slip.order, kept.slip.rank) == member;
        self.pods.values().any(same)
    }

    /// In a whole listing, a member of a gang that was bound and has no pod had one.
    fn mark_absent(&mut self) {
        let Some(owner) = self.owner.as_ref().filter(|owner| owner.record.complete) else {
            return;
        };
        let members = owner.record.members().into_iter();
        let members = members.map(|member| (member.role, member.rank));
        let absent: Vec<(usize, u32)> = members.filter(|member| !self.has(*member)).collect();
        self.removed.extend(absent);
    }

    /// Members without a pod: not made yet, or removed by somebody else.
    fn absent(&self, record: &Record) -> Vec<(usize, u32, PodSeen)> {
        let members = record.members().into_iter();
        let absent = members.filter(|member| !self.has((member.role, member.rank)));
        let seen = |member: Member| {
            let role = &record.roles[member.role];
            let removed = self.removed.contains(&(member.role, member.rank));
            let phase = if removed {
                PodPhase::Failed {
                    exit_code: 0,
                    reason: "Removed".to_owned(),
                }
            } else {
                PodPhase::Pending
            };
            let pod = PodSeen {
                name: names::pod(
                    &record.terms.job,
                    record.key,
                    &role.name,
                    member.rank,
                    record.attempt,
                ),
                role: role.name.clone(),
                rank: member.rank,
                node: member.node,
                request: role.request,
                phase,
                started: None,
                ended: None,
                waits_for: String::new(),
            };
            (member.role, member.rank, pod)
        };
        absent.map(seen).collect()
    }
}

impl Kept {
    fn of(pod: &Pod) -> Option<Self> {
        let slip = slip(pod)?;
        let meta = &pod.metadata;
        let host = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let mut slim = Pod {
            status: pod.status.clone(),
            ..Pod::default()
        };
        slim.metadata
            .creation_timestamp
            .clone_from(&meta.creation_timestamp);
        let annotations = meta.annotations.iter().flatten();
        let answer = annotations.filter(|(name, _)| *name == names::CHECKPOINT);
        let answer = answer.map(|(name, value)| (name.clone(), value.clone()));
        slim.metadata.annotations = Some(answer.collect());
        slim.spec
            .get_or_insert_default()
            .node_name
            .clone_from(&host);
        Some(Self {
            slip,
            namespace: meta.namespace.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            host,
            deleting: meta.deletion_timestamp.is_some(),
            leaving: false,
            pod: slim,
        })
    }

    fn is(&self, member: &Member) -> bool {
        let slip = &self.slip;
        (slip.order, slip.rank, &slip.node) == (member.role, member.rank, &member.node)
    }

    /// Its node in our words; a pod that somebody else bound is where it is.
    fn node(&self) -> String {
        let said = Inventory::host_of(&self.slip.node);
        match &self.host {
            Some(host) if host != said => host.clone(),
            Some(_) | None => self.slip.node.clone(),
        }
    }
}

/// The gang and epoch of a pod that the agent made.
fn member_key(pod: &Pod) -> Option<GangKey> {
    slip(pod)?;
    names::key(pod.metadata.labels.as_ref()?)
}

fn is_member(pod: &Pod) -> bool {
    member_key(pod).is_some()
}

fn config_key(config: &ConfigMap) -> Option<(GangKey, &str)> {
    let labels = config.metadata.labels.as_ref()?;
    Some((names::key(labels)?, labels.get(names::PART)?))
}

/// UID of the owner object that a gate belongs to.
fn owner_uid(gate: &ConfigMap) -> &str {
    let owners = gate
        .metadata
        .owner_references
        .as_deref()
        .unwrap_or_default();
    owners.first().map_or("", |owner| owner.uid.as_str())
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
