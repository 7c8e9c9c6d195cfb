//! The simulated cluster as a state machine: what a request does to it.
//!
//! Owns nodes, pods, device assignment and the ground truth of what ran when. It has no clock:
//! each entry names the time, and what happens between two entries is played from the timeline
//! (see `timeline`), so it makes no difference when anybody looks. Never decides where a pod goes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use meridian_api::units::{MilliGpus, Millis, Resources, UnixMillis};
use serde::{Deserialize, Serialize};

use super::behaviour::Behaviour;
use super::inventory::Inventory;
use super::offers::Waiting;
use super::profile::{Draw, For, Profile, about};
use crate::backend::{
    BackendError, GangKey, GangOrder, GangTerms, MemberOrder, NodeHealth, OfferSeen, PodPhase,
    PoolSeen, Stopped,
};

/// Changes that an observer may be behind; one that is further must observe again, as a
/// Kubernetes watch that gets 410. A gang of 1000 pods changes about four times a pod.
const MAX_CHANGES: usize = 16_384;

/// What really happened: the judge of every safety claim.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TruthEvent {
    /// Counts from 1, without gaps.
    pub sequence: u64,
    /// When.
    pub at: UnixMillis,
    /// Whose user code.
    pub key: GangKey,
    /// In which pod.
    pub pod: String,
    /// On which node.
    pub node: String,
    /// On which devices of it.
    pub devices: Vec<u32>,
    /// Members of the gang that were bound at that moment, this one included.
    pub bound: u32,
    /// Members of the gang.
    pub members: u32,
    /// What happened.
    pub what: Truth,
}

/// What happened to a pod's user code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Truth {
    /// It started.
    Started,
    /// It ended, however that came.
    Ended,
}

/// One pod, for ever.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct PodId {
    pub(super) key: GangKey,
    pub(super) name: String,
}

/// Something that will happen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Due {
    /// The node looks at a pod that was assigned to it.
    Admit(PodId),
    /// User code starts.
    Start(PodId),
    /// User code ends.
    Exit {
        pod: PodId,
        exit_code: i32,
        reason: String,
    },
    /// A checkpoint is written.
    Checkpoint(GangKey),
    /// User code saves its work by itself, and will again.
    Save(PodId),
    /// The cluster notices that a node is dead.
    Notice(String),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Node {
    pub(super) pool: String,
    pub(super) domains: Vec<String>,
    pub(super) resources: Resources,
    pub(super) foreign: Resources,
    /// Held by others, and not shown by the API.
    pub(super) hidden: Resources,
    pub(super) cordoned: bool,
    /// The machine is dead, known or not.
    pub(super) dead: bool,
    /// The cluster knows.
    pub(super) noticed: bool,
    pub(super) unhealthy: BTreeSet<u32>,
    /// Held by admitted pods.
    pub(super) held: Resources,
    /// Who has which device.
    pub(super) devices: BTreeMap<u32, PodId>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Pod {
    pub(super) id: PodId,
    pub(super) role: String,
    pub(super) rank: u32,
    pub(super) node: String,
    pub(super) request: Resources,
    pub(super) behaviour: Behaviour,
    /// As the cluster shows it; behind the truth while a dead node is unnoticed.
    pub(super) phase: PodPhase,
    pub(super) started: Option<UnixMillis>,
    pub(super) ended: Option<UnixMillis>,
    /// User code runs: the truth.
    pub(super) runs: bool,
    /// Room and devices on the node are its own.
    pub(super) holds: bool,
    /// A resize left it out.
    #[serde(default)]
    pub(super) leaving: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Gang {
    pub(super) attempt: u32,
    pub(super) terms: GangTerms,
    pub(super) stopping: bool,
    /// Every member was bound once: user code may start.
    pub(super) gate_open: bool,
    pub(super) pods: Vec<Pod>,
    /// UID of what owns its pods, when others made them.
    #[serde(default)]
    pub(super) origin: Option<String>,
    pub(super) checkpoint: Option<UnixMillis>,
}

/// What an observer should look at again.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Changed {
    Node(String),
    Gang(GangKey),
    Offer(String),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct State {
    pub(super) seed: u64,
    pub(super) profile: Profile,
    pub(super) now: UnixMillis,
    pub(super) pools: Vec<PoolSeen>,
    pub(super) nodes: BTreeMap<String, Node>,
    #[serde(with = "pairs")]
    pub(super) gangs: BTreeMap<GangKey, Gang>,
    /// Gangs that others made, by the UID of what owns them.
    #[serde(default)]
    pub(super) offers: BTreeMap<String, OfferSeen>,
    /// Pods of theirs that nobody has bound.
    #[serde(default)]
    pub(super) waiting: BTreeMap<String, Waiting>,
    #[serde(with = "pairs")]
    pub(super) timeline: BTreeMap<(UnixMillis, u64), Due>,
    /// Entries ever put on the timeline; orders those of one millisecond.
    pub(super) scheduled: u64,
    /// Truth events ever.
    pub(super) truths: u64,
    pub(super) truth: Vec<TruthEvent>,
    #[serde(skip)]
    pub(super) changes: VecDeque<Changed>,
    /// Changes ever; the newest in `changes` has this number.
    #[serde(skip)]
    pub(super) changed: u64,
}

/// Maps with keys that are no texts, as lists of pairs.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<K: Serialize, V: Serialize, S: Serializer>(
        map: &BTreeMap<K, V>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(super) fn deserialize<
        'de,
        K: Deserialize<'de> + Ord,
        V: Deserialize<'de>,
        D: Deserializer<'de>,
    >(
        deserializer: D,
    ) -> Result<BTreeMap<K, V>, D::Error> {
        Vec::<(K, V)>::deserialize(deserializer).map(|pairs| pairs.into_iter().collect())
    }
}

impl State {
    pub(super) fn new(inventory: &Inventory, profile: Profile, seed: u64, now: UnixMillis) -> Self {
        let pools = inventory.pools.iter().map(|pool| PoolSeen {
            name: pool.name.clone(),
            flavor: pool.flavor.clone(),
            levels: pool.levels.clone(),
            findings: Vec::new(),
        });
        let node = |pool: &str, node: &super::inventory::InventoryNode| Node {
            pool: pool.to_owned(),
            domains: node.domains.clone(),
            resources: node.resources.into(),
            foreign: Resources::default(),
            hidden: Resources::default(),
            cordoned: false,
            dead: false,
            noticed: false,
            unhealthy: BTreeSet::new(),
            held: Resources::default(),
            devices: BTreeMap::new(),
        };
        let nodes = inventory.pools.iter().flat_map(|pool| {
            pool.nodes
                .iter()
                .map(move |entry| (entry.name.clone(), node(&pool.name, entry)))
        });
        Self {
            seed,
            profile,
            now,
            pools: pools.collect(),
            nodes: nodes.collect(),
            gangs: BTreeMap::new(),
            offers: BTreeMap::new(),
            waiting: BTreeMap::new(),
            timeline: BTreeMap::new(),
            scheduled: 0,
            truths: 0,
            truth: Vec::new(),
            changes: VecDeque::new(),
            changed: 0,
        }
    }

    pub(super) fn draw(&self) -> Draw {
        Draw(self.seed)
    }

    pub(super) fn note(&mut self, changed: Changed) {
        self.changed += 1;
        self.changes.push_back(changed);
        if self.changes.len() > MAX_CHANGES {
            self.changes.pop_front();
        }
    }

    pub(super) fn schedule(&mut self, after: Millis, due: Due) {
        self.scheduled += 1;
        self.timeline
            .insert((self.now.after(after), self.scheduled), due);
    }

    /// Takes a whole gang. Nodes look at their pods later.
    pub(super) fn bind(&mut self, order: &GangOrder) -> Result<(), BackendError> {
        if let Some(gang) = self.gangs.get(&order.key)
            && gang.attempt == order.attempt
            && !gang.stopping
        {
            return Ok(());
        }
        if let Some((held, attempt)) = self.in_the_way(order.key) {
            return Err(BackendError::Conflict { held, attempt });
        }
        let origin = order.workload.origin.as_ref();
        let pods = if let Some(origin) = origin {
            self.take_offered(order, origin)?
        } else {
            let members = order.members.iter();
            let members = members.map(|member| self.pod(order, member));
            members.collect::<Result<Vec<Pod>, BackendError>>()?
        };
        self.admit_later(&pods);
        let gang = Gang {
            attempt: order.attempt,
            terms: order.terms.clone(),
            stopping: false,
            gate_open: false,
            pods,
            origin: origin.map(|origin| origin.uid.clone()),
            checkpoint: None,
        };
        self.gangs.insert(order.key, gang);
        self.note(Changed::Gang(order.key));
        Ok(())
    }

    /// Anything of this gang, under whichever epoch.
    fn in_the_way(&self, key: GangKey) -> Option<(GangKey, u32)> {
        let from = GangKey {
            epoch: meridian_api::ids::Epoch(0),
            ..key
        };
        let to = GangKey {
            epoch: meridian_api::ids::Epoch(u64::MAX),
            ..key
        };
        self.gangs
            .range(from..=to)
            .next()
            .map(|(held, gang)| (*held, gang.attempt))
    }

    pub(super) fn pod(&self, order: &GangOrder, member: &MemberOrder) -> Result<Pod, BackendError> {
        let invalid = BackendError::Invalid;
        let role = order.roles.get(member.role);
        let role = role.ok_or_else(|| invalid(format!("there is no role {}", member.role)))?;
        if !self.nodes.contains_key(&member.node) {
            return Err(invalid(format!("there is no node {:?}", member.node)));
        }
        let GangKey { gang, epoch } = order.key;
        let name = format!(
            "{}-{}-{}-{}-{:x}-{}",
            order.terms.job, gang.index, role.name, member.rank, epoch.0, order.attempt
        );
        Ok(Pod {
            id: PodId {
                key: order.key,
                name,
            },
            role: role.name.clone(),
            rank: member.rank,
            node: member.node.clone(),
            request: role.request,
            behaviour: Behaviour::of(&role.template).map_err(invalid)?,
            phase: PodPhase::Pending,
            started: None,
            ended: None,
            runs: false,
            holds: false,
            leaving: false,
        })
    }

    fn admit_later(&mut self, pods: &[Pod]) {
        for pod in pods {
            let delay = self
                .draw()
                .span(For::Bind, &about(&pod.id), self.profile.bind);
            self.schedule(delay, Due::Admit(pod.id.clone()));
        }
    }

    /// Stops members that `order` leaves out, and takes those that are not there yet.
    pub(super) fn resize(&mut self, order: &GangOrder) -> Result<(), BackendError> {
        let gang = self
            .gangs
            .get(&order.key)
            .ok_or(BackendError::NotFound(order.key))?;
        if gang.attempt == order.attempt && !gang.stopping {
            return Ok(());
        }
        if gang.attempt > order.attempt || gang.stopping {
            let attempt = gang.attempt;
            return Err(BackendError::Conflict {
                held: order.key,
                attempt,
            });
        }
        let is = |pod: &Pod, member: &MemberOrder| {
            let role = order.roles.get(member.role);
            role.is_some_and(|role| role.name == pod.role)
                && pod.rank == member.rank
                && pod.node == member.node
        };
        let there = |member: &&MemberOrder| !gang.pods.iter().any(|pod| is(pod, member));
        let missing = order
            .members
            .iter()
            .filter(there)
            .map(|member| self.pod(order, member));
        let missing = missing.collect::<Result<Vec<Pod>, BackendError>>()?;
        let extra = gang
            .pods
            .iter()
            .filter(|pod| !order.members.iter().any(|m| is(pod, m)));
        let extra: Vec<PodId> = extra.map(|pod| pod.id.clone()).collect();
        let grace = gang.terms.grace;
        self.admit_later(&missing);
        if let Some(gang) = self.gangs.get_mut(&order.key) {
            gang.attempt = order.attempt;
            for pod in gang.pods.iter_mut().filter(|pod| extra.contains(&pod.id)) {
                pod.leaving = true;
            }
            gang.pods.extend(missing);
        }
        for pod in extra {
            self.terminate(&pod, grace);
        }
        self.note(Changed::Gang(order.key));
        Ok(())
    }

    /// SIGTERM to all of it; it vanishes when nothing runs.
    pub(super) fn stop(&mut self, key: GangKey, grace: Millis) -> Stopped {
        let Some(gang) = self.gangs.get_mut(&key) else {
            return Stopped::Gone;
        };
        gang.stopping = true;
        let pods: Vec<PodId> = gang.pods.iter().map(|pod| pod.id.clone()).collect();
        for pod in pods {
            self.terminate(&pod, grace);
        }
        self.note(Changed::Gang(key));
        self.remove_if_over(key);
        if self.gangs.contains_key(&key) {
            Stopped::Asked
        } else {
            Stopped::Gone
        }
    }

    /// Ends one pod: at once when its user code has not started, else by SIGTERM and SIGKILL.
    fn terminate(&mut self, id: &PodId, grace: Millis) {
        let heeds = self.draw().span(For::Stop, &about(id), self.profile.stop);
        let Some(pod) = self.pod_mut(id) else { return };
        match pod.phase {
            PodPhase::Pending | PodPhase::Bound => {
                self.end(
                    id,
                    PodPhase::Failed {
                        exit_code: 0,
                        reason: "Stopped".to_owned(),
                    },
                );
            }
            // Nobody on a dead node hears a signal; the notice of its death ends the pod.
            PodPhase::Running if !pod.runs => {}
            PodPhase::Running => {
                let (after, exit_code, reason) = if pod.behaviour.ignores_sigterm || heeds > grace {
                    (grace, 137, "Killed")
                } else {
                    (heeds, 143, "Terminated")
                };
                let reason = reason.to_owned();
                self.schedule(
                    after,
                    Due::Exit {
                        pod: id.clone(),
                        exit_code,
                        reason,
                    },
                );
            }
            PodPhase::Broken { .. }
            | PodPhase::Rejected { .. }
            | PodPhase::Succeeded
            | PodPhase::Failed { .. } => {}
        }
    }

    pub(super) fn request_checkpoint(&mut self, key: GangKey) -> Result<(), BackendError> {
        if !self.gangs.contains_key(&key) {
            return Err(BackendError::NotFound(key));
        }
        let about = [
            key.epoch.0,
            key.gang.index.into(),
            self.now.0.unsigned_abs(),
        ];
        let delay = self
            .draw()
            .span(For::Checkpoint, &about, self.profile.checkpoint);
        self.schedule(delay, Due::Checkpoint(key));
        Ok(())
    }

    pub(super) fn pod_mut(&mut self, id: &PodId) -> Option<&mut Pod> {
        self.gangs
            .get_mut(&id.key)?
            .pods
            .iter_mut()
            .find(|pod| pod.id.name == id.name)
    }

    /// Ends a pod in truth and in view.
    pub(super) fn end(&mut self, id: &PodId, phase: PodPhase) {
        self.stop_running(id);
        self.release(id);
        let now = self.now;
        if let Some(pod) = self.pod_mut(id) {
            pod.phase = phase;
            pod.ended = Some(now);
        }
        self.note(Changed::Gang(id.key));
        self.end_owner(id.key);
        self.remove_if_over(id.key);
    }

    pub(super) fn stop_running(&mut self, id: &PodId) {
        if self
            .pod_mut(id)
            .is_some_and(|pod| std::mem::replace(&mut pod.runs, false))
        {
            self.record(id, Truth::Ended);
        }
    }

    pub(super) fn release(&mut self, id: &PodId) {
        let Some(pod) = self.pod_mut(id).filter(|pod| pod.holds) else {
            return;
        };
        pod.holds = false;
        let (name, request) = (pod.node.clone(), pod.request);
        if let Some(node) = self.nodes.get_mut(&name) {
            node.held = node.held.checked_sub(request).unwrap_or_default();
            node.devices.retain(|_, holder| holder != id);
        }
    }

    fn remove_if_over(&mut self, key: GangKey) {
        let over = |gang: &Gang| gang.stopping && gang.pods.iter().all(|pod| pod.phase.ended());
        if self.gangs.get(&key).is_some_and(over) {
            if let Some(gang) = self.gangs.remove(&key) {
                self.make_again(&gang);
            }
            self.note(Changed::Gang(key));
        }
    }

    /// Writes down what happened to a pod's user code. Call before its devices are released.
    pub(super) fn record(&mut self, id: &PodId, what: Truth) {
        let Some(gang) = self.gangs.get(&id.key) else {
            return;
        };
        let Some(pod) = gang.pods.iter().find(|pod| pod.id == *id) else {
            return;
        };
        let devices = self.nodes.get(&pod.node).map(|node| {
            let own = node.devices.iter().filter(|(_, holder)| *holder == id);
            own.map(|(device, _)| *device).collect()
        });
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        self.truths += 1;
        self.truth.push(TruthEvent {
            sequence: self.truths,
            at: self.now,
            key: id.key,
            pod: id.name.clone(),
            node: pod.node.clone(),
            devices: devices.unwrap_or_default(),
            bound: count(gang.pods.iter().filter(|pod| pod.phase.admitted()).count()),
            members: count(gang.pods.len()),
            what,
        });
    }
}

impl Node {
    pub(super) fn health(&self) -> NodeHealth {
        if self.noticed {
            NodeHealth::Down
        } else if self.cordoned {
            NodeHealth::Cordoned
        } else {
            NodeHealth::Ready
        }
    }

    /// GPUs of broken devices.
    pub(super) fn unhealthy_gpus(&self) -> MilliGpus {
        MilliGpus::cards(self.unhealthy.len() as u64)
    }

    /// What pods may ask for in all.
    pub(super) fn allocatable(&self) -> Resources {
        let gpus = self.resources.gpus.saturating_sub(self.unhealthy_gpus());
        Resources {
            gpus,
            ..self.resources
        }
    }

    /// Room that the node itself sees, whatever anybody else believes.
    pub(super) fn room(&self) -> Resources {
        let left = self.allocatable();
        let left = left.checked_sub(self.held).unwrap_or_default();
        let left = left.checked_sub(self.foreign).unwrap_or_default();
        left.checked_sub(self.hidden).unwrap_or_default()
    }
}
