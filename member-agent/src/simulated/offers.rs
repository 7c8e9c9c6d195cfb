//! Pods that others make in the simulated cluster, and what their owner does about them.
//!
//! Owns which of them wait to be bound. Their owner makes again what was removed or failed, and is
//! over when all have succeeded. Never binds one without an order.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::behaviour::Behaviour;
use super::state::{Changed, Gang, Pod, State};
use crate::backend::{BackendError, GangOrder, MemberOrder, OfferSeen, Origin, PodPhase};

/// The pods of one offer that nobody has bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Waiting {
    /// What each pod does.
    behaviour: Behaviour,
    /// Pods ever made: no two share a name.
    made: u64,
    /// Names by role and rank.
    pods: BTreeMap<(String, u32), String>,
}

impl Waiting {
    fn make(&mut self, offer: &OfferSeen, role: &str, rank: u32) {
        self.made += 1;
        let name = format!("{}-{role}-{rank}-{}", offer.name, self.made);
        self.pods.insert((role.to_owned(), rank), name);
    }
}

impl State {
    /// Somebody makes an object, which makes its pods.
    pub(super) fn offer(&mut self, offer: OfferSeen, behaviour: Behaviour) {
        self.note(Changed::Offer(offer.uid.clone()));
        let before = self.offers.get(&offer.uid);
        if before.is_none_or(|before| before.roles != offer.roles) {
            let waiting = self.waiting.entry(offer.uid.clone()).or_default();
            waiting.behaviour = behaviour;
            waiting.pods.clear();
            for role in &offer.roles {
                for rank in 0..role.pods {
                    waiting.make(&offer, &role.name, rank);
                }
            }
        }
        self.offers.insert(offer.uid.clone(), offer);
    }

    /// The object is deleted, or over.
    pub(super) fn withdraw(&mut self, uid: &str) {
        self.waiting.remove(uid);
        if self.offers.remove(uid).is_some() {
            self.note(Changed::Offer(uid.to_owned()));
        }
    }

    /// The members of an order from the pods that wait, all of them or none.
    pub(super) fn take_offered(
        &mut self,
        order: &GangOrder,
        origin: &Origin,
    ) -> Result<Vec<Pod>, BackendError> {
        let lacks = |why: String| BackendError::NotOffered(why);
        let (Some(offer), Some(waiting)) =
            (self.offers.get(&origin.uid), self.waiting.get(&origin.uid))
        else {
            return Err(lacks(format!("nobody offers {}", origin.name)));
        };
        let (there, wanted) = (waiting.pods.len(), order.members.len());
        if there != wanted {
            return Err(lacks(format!("{there} of its {wanted} pods are offered")));
        }
        let of_offer = |member: &MemberOrder| {
            let mut pod = self.pod(order, member)?;
            let role = offer.roles.iter().find(|role| role.name == pod.role);
            if role.is_none_or(|role| !fits(role.request, pod.request)) {
                return Err(lacks(format!(
                    "its pods ask for more than {:?}",
                    pod.request
                )));
            }
            let name = waiting.pods.get(&(pod.role.clone(), pod.rank));
            let name = name.ok_or_else(|| lacks(format!("no pod is {} {}", pod.role, pod.rank)))?;
            pod.id.name.clone_from(name);
            pod.behaviour = waiting.behaviour;
            Ok(pod)
        };
        let pods = order.members.iter().map(of_offer);
        let pods = pods.collect::<Result<Vec<Pod>, BackendError>>()?;
        if let Some(waiting) = self.waiting.get_mut(&origin.uid) {
            waiting.pods.clear();
        }
        Ok(pods)
    }

    /// Nothing is left of a gang: who owns its pods makes them again.
    pub(super) fn make_again(&mut self, gang: &Gang) {
        let Some(uid) = &gang.origin else { return };
        let (Some(offer), Some(waiting)) = (self.offers.get(uid), self.waiting.get_mut(uid)) else {
            return;
        };
        for pod in &gang.pods {
            waiting.make(offer, &pod.role, pod.rank);
        }
    }

    /// An owner whose pods have all succeeded is over.
    pub(super) fn end_owner(&mut self, key: crate::backend::GangKey) {
        let Some(gang) = self.gangs.get(&key) else {
            return;
        };
        let done = gang.pods.iter().all(|pod| pod.phase == PodPhase::Succeeded);
        if let Some(uid) = gang.origin.clone().filter(|_| done) {
            self.withdraw(&uid);
        }
    }
}

fn fits(asked: meridian_api::units::Resources, granted: meridian_api::units::Resources) -> bool {
    asked.gpus <= granted.gpus && asked.cpu <= granted.cpu && asked.memory <= granted.memory
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use meridian_api::ids::{Epoch, GangId};
    use meridian_api::units::{MilliGpus, Millis, Resources, UnixMillis};
    use serde_json::json;

    use super::super::inventory::{Inventory, NodeResources};
    use super::super::profile::Profile;
    use super::*;
    use crate::backend::{GangKey, GangTerms, OfferedRole, RoleOrder, Stopped, Workload};

    const START: UnixMillis = UnixMillis(1_700_000_000_000);

    fn state() -> State {
        let host = NodeResources {
            gpus: 8,
            cpu_milli: 96_000,
            memory_mib: 1_048_576,
        };
        let inventory = Inventory::uniform("h100", "h100", &[], 2, host);
        State::new(&inventory, Profile::default(), 1, START)
    }

    fn cards(cards: u64) -> Resources {
        Resources {
            gpus: MilliGpus::cards(cards),
            ..Resources::default()
        }
    }

    fn offer() -> OfferSeen {
        OfferSeen {
            uid: "u".to_owned(),
            namespace: "ml".to_owned(),
            name: "notebook".to_owned(),
            class: String::new(),
            roles: vec![OfferedRole {
                name: "worker".to_owned(),
                pods: 2,
                request: cards(8),
                required: None,
                preferred: None,
            }],
            flavors: Vec::new(),
            priority: 0,
        }
    }

    fn order(state: &State, epoch: u64, gpus: u64) -> GangOrder {
        let nodes: Vec<String> = state.nodes.keys().cloned().collect();
        let member = |rank: u32| MemberOrder {
            role: 0,
            rank,
            node: nodes[rank as usize].clone(),
        };
        let origin = Origin {
            uid: "u".to_owned(),
            namespace: "ml".to_owned(),
            name: "notebook".to_owned(),
        };
        GangOrder {
            key: GangKey {
                gang: GangId::default(),
                epoch: Epoch(epoch),
            },
            attempt: 0,
            terms: GangTerms::default(),
            roles: vec![RoleOrder {
                name: "worker".to_owned(),
                request: cards(gpus),
                template: Arc::new(json!({})),
            }],
            members: vec![member(0), member(1)],
            labels: indexmap::IndexMap::new(),
            workload: Workload {
                origin: Some(origin),
                ..Workload::default()
            },
            traceparent: String::new(),
        }
    }

    fn names(state: &State, key: GangKey) -> Vec<String> {
        let pods = state.gangs.get(&key).map(|gang| &gang.pods);
        let names = pods.into_iter().flatten();
        names.map(|pod| pod.id.name.clone()).collect()
    }

    #[test]
    fn the_pods_that_were_offered_are_bound_and_their_owner_makes_them_again() {
        let mut state = state();
        let first = order(&state, 1, 8);
        let unknown = state.bind(&first).expect_err("nobody offers it");
        assert!(matches!(unknown, BackendError::NotOffered(_)), "{unknown}");
        state.offer(offer(), Behaviour::default());
        let less = order(&state, 1, 4);
        let less = state.bind(&less).expect_err("they ask for eight");
        assert!(matches!(less, BackendError::NotOffered(_)), "{less}");
        state.bind(&first).expect("room");
        assert_eq!(
            names(&state, first.key),
            ["notebook-worker-0-1", "notebook-worker-1-2"]
        );
        state.bind(&first).expect("the same again changes nothing");
        state.advance(START.after(Millis::seconds(600)));
        assert_eq!(state.truth.len(), 2);
        state.stop(first.key, Millis::ZERO);
        state.advance(START.after(Millis::seconds(1200)));
        assert_eq!(state.stop(first.key, Millis::ZERO), Stopped::Gone);
        let second = order(&state, 2, 8);
        state.bind(&second).expect("room");
        assert_eq!(
            names(&state, second.key),
            ["notebook-worker-0-3", "notebook-worker-1-4"]
        );
    }

    #[test]
    fn an_owner_whose_pods_have_succeeded_is_over() {
        let mut state = state();
        let behaviour = Behaviour {
            runtime: Some(Millis::seconds(10)),
            ..Behaviour::default()
        };
        state.offer(offer(), behaviour);
        let order = order(&state, 1, 8);
        state.bind(&order).expect("room");
        state.advance(START.after(Millis::seconds(600)));
        assert!(state.offers.is_empty() && state.waiting.is_empty());
        let last: Vec<&Changed> = state.changes.iter().rev().take(2).collect();
        assert_eq!(*last[0], Changed::Offer("u".to_owned()));
        assert_eq!(*last[1], Changed::Gang(order.key), "its end is told first");
    }
}
