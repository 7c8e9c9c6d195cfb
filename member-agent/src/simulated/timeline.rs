//! What happens in a simulated cluster between two looks at it.
//!
//! Owns the playing of the timeline in order of time: node admission, the gate that opens when
//! every member is bound, start, exit, notice. Never waits: whoever looks says what time it is.

use meridian_api::units::UnixMillis;

use super::profile::{For, about};
use super::state::{Changed, Due, Node, Pod, PodId, State, Truth};
use crate::backend::{ClusterEvent, GangKey, GangSeen, NodeSeen, PodPhase, PodSeen, Snapshot};

impl State {
    /// Plays everything that is due by `now`. Time never goes back.
    pub(super) fn advance(&mut self, now: UnixMillis) {
        while let Some(entry) = self.timeline.first_entry() {
            let (at, _) = *entry.key();
            if at > now {
                break;
            }
            let due = entry.remove();
            self.now = self.now.max(at);
            self.happen(due);
        }
        self.now = self.now.max(now);
    }

    /// When something happens next by itself.
    pub(super) fn next_due(&self) -> Option<UnixMillis> {
        self.timeline.first_key_value().map(|((at, _), _)| *at)
    }

    fn happen(&mut self, due: Due) {
        match due {
            Due::Admit(pod) => self.admit(&pod),
            Due::Start(pod) => self.start(&pod),
            Due::Exit {
                pod,
                exit_code,
                reason,
            } => {
                if self.pod_mut(&pod).is_some_and(|pod| pod.runs) {
                    let phase = match exit_code {
                        0 => PodPhase::Succeeded,
                        exit_code => PodPhase::Failed { exit_code, reason },
                    };
                    self.end(&pod, phase);
                }
            }
            Due::Checkpoint(key) => {
                let now = self.now;
                let running = |pod: &Pod| pod.phase == PodPhase::Running;
                if let Some(gang) = self.gangs.get_mut(&key)
                    && gang.pods.iter().any(running)
                {
                    gang.checkpoint = Some(now);
                    self.note(Changed::Gang(key));
                }
            }
            Due::Save(pod) => self.save(pod),
            Due::Notice(node) => self.notice(&node),
        }
    }

    /// What runs has saved its work, and goes on.
    fn save(&mut self, id: PodId) {
        let now = self.now;
        let Some(gang) = self.gangs.get_mut(&id.key) else {
            return;
        };
        let pod = gang.pods.iter().find(|pod| pod.id == id && pod.runs);
        let Some(every) = pod.and_then(|pod| pod.behaviour.saves_every) else {
            return;
        };
        gang.checkpoint = Some(now);
        self.note(Changed::Gang(id.key));
        self.schedule(every, Due::Save(id));
    }

    /// The kubelet's own look at its room, the last word on it.
    fn admit(&mut self, id: &PodId) {
        let refused = self
            .draw()
            .chance(For::Refusal, &about(id), self.profile.refusals_per_mille);
        let Some(pod) = self
            .pod_mut(id)
            .filter(|pod| pod.phase == PodPhase::Pending)
        else {
            return;
        };
        let (name, request) = (pod.node.clone(), pod.request);
        let Some(node) = self.nodes.get_mut(&name) else {
            return;
        };
        if node.dead && !node.noticed {
            return; // nobody there to answer; the notice of its death ends the pod
        }
        let verdict = if refused {
            Err("UnexpectedAdmissionError")
        } else {
            take(node, id, request)
        };
        match verdict {
            Ok(()) => {
                if let Some(pod) = self.pod_mut(id) {
                    (pod.phase, pod.holds) = (PodPhase::Bound, true);
                }
                self.note(Changed::Gang(id.key));
                self.open_gate(id);
            }
            Err(reason) => self.end(
                id,
                PodPhase::Rejected {
                    reason: reason.to_owned(),
                },
            ),
        }
    }

    /// Lets user code start when every member is bound; a member added later only needs itself.
    fn open_gate(&mut self, newest: &PodId) {
        let Some(gang) = self.gangs.get_mut(&newest.key) else {
            return;
        };
        let bound =
            |pod: &Pod| pod.phase.admitted() && !matches!(pod.phase, PodPhase::Failed { .. });
        let mut members = gang.pods.iter().filter(|pod| !pod.leaving);
        if !members.all(bound) || gang.stopping {
            return;
        }
        let first = !std::mem::replace(&mut gang.gate_open, true);
        let starts = gang.pods.iter().filter(|pod| first || pod.id == *newest);
        let starts: Vec<PodId> = starts.map(|pod| pod.id.clone()).collect();
        for pod in starts {
            let delay = self
                .draw()
                .span(For::Start, &about(&pod), self.profile.start);
            self.schedule(delay, Due::Start(pod));
        }
    }

    fn start(&mut self, id: &PodId) {
        let fails = self.draw().chance(
            For::StartFailure,
            &about(id),
            self.profile.start_failures_per_mille,
        );
        let now = self.now;
        let Some(gang) = self.gangs.get_mut(&id.key) else {
            return;
        };
        // Each start reads the gate again: a member that was lost since keeps the rest back.
        let lost = |pod: &Pod| {
            matches!(
                pod.phase,
                PodPhase::Failed { .. } | PodPhase::Rejected { .. }
            )
        };
        let mut members = gang.pods.iter().filter(|pod| !pod.leaving);
        if gang.stopping || members.any(lost) {
            return;
        }
        let Some(pod) = gang.pods.iter_mut().find(|pod| pod.id == *id) else {
            return;
        };
        // A pod on a dead node holds nothing any more.
        if pod.phase != PodPhase::Bound || !pod.holds {
            return;
        }
        if fails {
            self.end(
                id,
                PodPhase::Failed {
                    exit_code: 0,
                    reason: "StartError".to_owned(),
                },
            );
            return;
        }
        (pod.phase, pod.started, pod.runs) = (PodPhase::Running, Some(now), true);
        let behaviour = pod.behaviour;
        let saves = behaviour.saves_every.filter(|_| pod.rank == 0);
        self.record(id, Truth::Started);
        self.note(Changed::Gang(id.key));
        if let Some(every) = saves {
            self.schedule(every, Due::Save(id.clone()));
        }
        if let Some(runtime) = behaviour.runtime {
            let reason = "Error".to_owned();
            let exit_code = behaviour.exit_code;
            self.schedule(
                runtime,
                Due::Exit {
                    pod: id.clone(),
                    exit_code,
                    reason,
                },
            );
        }
    }

    /// Everything as the cluster shows it.
    pub(super) fn snapshot(&self) -> Snapshot {
        Snapshot {
            pools: self.pools.clone(),
            nodes: self
                .nodes
                .iter()
                .map(|(name, node)| node_seen(name, node))
                .collect(),
            gangs: self
                .gangs
                .keys()
                .filter_map(|key| self.gang_seen(*key))
                .collect(),
            offers: self.offers.values().cloned().collect(),
            held_back: Vec::new(),
        }
    }

    fn gang_seen(&self, key: GangKey) -> Option<GangSeen> {
        let gang = self.gangs.get(&key)?;
        let pod = |pod: &Pod| PodSeen {
            name: pod.id.name.clone(),
            role: pod.role.clone(),
            rank: pod.rank,
            node: pod.node.clone(),
            request: pod.request,
            phase: pod.phase.clone(),
            started: pod.started,
            ended: pod.ended,
            waits_for: String::new(),
            leaving: pod.leaving,
        };
        Some(GangSeen {
            key,
            attempt: gang.attempt,
            complete: true,
            terms: gang.terms.clone(),
            stopping: gang.stopping,
            pods: gang.pods.iter().map(pod).collect(),
            checkpoint: gang.checkpoint,
        })
    }

    /// Changes after number `cursor`, the newest state of each once; `None` when they are no
    /// longer kept.
    pub(super) fn changes_since(&self, cursor: u64) -> Option<Vec<ClusterEvent>> {
        let behind = usize::try_from(self.changed.checked_sub(cursor)?).ok()?;
        let skip = self.changes.len().checked_sub(behind)?;
        let mut seen = std::collections::BTreeSet::new();
        let distinct = self
            .changes
            .iter()
            .skip(skip)
            .filter(|changed| seen.insert(*changed));
        let event = |changed: &Changed| match changed {
            Changed::Node(name) => match self.nodes.get(name) {
                Some(node) => ClusterEvent::Node(node_seen(name, node)),
                None => ClusterEvent::NodeGone(name.clone()),
            },
            Changed::Gang(key) => match self.gang_seen(*key) {
                Some(gang) => ClusterEvent::Gang(Box::new(gang)),
                None => ClusterEvent::GangGone(*key),
            },
            Changed::Offer(uid) => match self.offers.get(uid) {
                Some(offer) => ClusterEvent::Offer(Box::new(offer.clone())),
                None => ClusterEvent::OfferGone(uid.clone()),
            },
        };
        Some(distinct.map(event).collect())
    }
}

/// Gives the pod its room and its devices, or the kubelet's word for what is missing.
fn take(
    node: &mut Node,
    id: &PodId,
    request: meridian_api::units::Resources,
) -> Result<(), &'static str> {
    let room = node.room();
    if node.noticed {
        return Err("NodeNotReady");
    }
    if node.cordoned {
        return Err("NodeUnschedulable");
    }
    if !request.gpus.is_whole() {
        return Err("UnexpectedAdmissionError");
    }
    if room.gpus < request.gpus {
        return Err("OutOfGpu");
    }
    if room.cpu < request.cpu {
        return Err("OutOfCpu");
    }
    if room.memory < request.memory {
        return Err("OutOfMemory");
    }
    let cards = u32::try_from(node.resources.gpus.whole()).unwrap_or(u32::MAX);
    let free = (0..cards)
        .filter(|card| !node.unhealthy.contains(card) && !node.devices.contains_key(card));
    let wanted = usize::try_from(request.gpus.whole()).unwrap_or(usize::MAX);
    let chosen: Vec<u32> = free.take(wanted).collect();
    if chosen.len() < wanted {
        return Err("OutOfGpu");
    }
    node.devices
        .extend(chosen.into_iter().map(|card| (card, id.clone())));
    node.held = node
        .held
        .checked_add(request)
        .ok_or("UnexpectedAdmissionError")?;
    Ok(())
}

fn node_seen(name: &str, node: &Node) -> NodeSeen {
    NodeSeen {
        name: name.to_owned(),
        pool: node.pool.clone(),
        domains: node.domains.clone(),
        allocatable: node.allocatable(),
        unhealthy: node.unhealthy_gpus(),
        foreign: node.foreign,
        health: node.health(),
    }
}
