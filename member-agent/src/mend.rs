//! An elastic gang that a node took members from goes on, under the same epoch: with others in
//! their place, or smaller.
//!
//! Owns the choice of who stays and who comes, which is `meridian_policies::nodes`', and its
//! request to the cluster. Never gives a lost member's rank to another pod before the cluster has
//! said that the lost one has ended. While that is to be proved soon, as of a machine that was
//! taken away, a gang whose lost members all have room elsewhere waits for it; else it only gets
//! smaller.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::FutureExt as _;
use meridian_api::ids::GangId;
use meridian_api::units::Resources;
use meridian_policies::nodes::{self, Member, Node, Replacement};

use crate::backend::{
    BackendError, GangKey, GangOrder, GangSeen, MemberOrder, NODE_OFF, PodPhase, PodSeen,
};
use crate::calls::{Answer, CALL_LIMIT, gang_order, late};
use crate::digest::host_number;
use crate::executor::Executor;
use crate::gangs::{Failure, Gang, Phase, is_lost};
use crate::orders::RunOrder;

impl Executor {
    /// Asks for a gang without its lost members, with others in their place where the cluster has
    /// proved their end and has room near by; or gives it up when those that are left are too few.
    pub(crate) fn mend(&mut self, id: GangId) {
        let Some(gang) = self.gangs.get(&id) else {
            return;
        };
        let key = gang.record.key();
        let (attempt, order) = (gang.attempt, gang.order.clone());
        let (Some(order), Some(own)) = (order, self.view.gang(key)) else {
            return;
        };
        let levels = self.view.pool(&order.terms.pool);
        let levels = levels.map_or(&[][..], |pool| pool.levels.as_slice());
        let lost = || own.members().filter(|pod| is_lost(pod));
        let is_proved = lost().all(|pod| pod.phase.ended());
        let is_soon_proved = lost().all(|pod| pod.phase.ended() || is_off(pod));
        let lost: BTreeSet<String> = lost().map(|pod| pod.node.clone()).collect();
        let mut places = self.view.places(&order.terms.pool);
        for place in &mut places {
            let closed = lost.contains(&place.name) || gang.avoid.contains_key(&place.name);
            place.ready &= !closed;
        }
        if !is_proved {
            let whole = mended(levels, places.clone(), &order, own, &lost);
            let is_whole = whole.is_some_and(|whole| whole.len() == own.members().count());
            if is_soon_proved && is_whole {
                self.with_gang(key, await_proof);
                return;
            }
            // No room anywhere: a lost member finds no other node, and the gang gets smaller.
            for place in &mut places {
                place.ready = false;
            }
        }
        let Some(members) = mended(levels, places, &order, own, &lost) else {
            let message = format!("lost {lost:?}, and what is left is below its least size");
            self.give_up(key, Failure::NodeLost, message);
            return;
        };
        self.ask_to_mend(gang_order(&order, attempt, members), order.place_timeout);
    }

    /// Asks for a gang of as many members as the hub wants.
    pub(crate) fn get_smaller(&mut self, id: GangId) {
        let Some(gang) = self.gangs.get(&id) else {
            return;
        };
        let key = gang.record.key();
        let (attempt, order, smaller) = (gang.attempt, gang.order.clone(), gang.smaller.clone());
        let (Some(order), Some(smaller), Some(own)) = (order, smaller, self.view.gang(key)) else {
            return;
        };
        let members = staying(&order, &smaller, own);
        self.ask_to_mend(gang_order(&order, attempt, members), order.place_timeout);
    }

    fn ask_to_mend(&mut self, order: GangOrder, limit: meridian_api::units::Millis) {
        let key = order.key;
        let pods = sizes(&order);
        tracing::info!(%key, attempt = order.attempt, ?pods, "going on without the lost node");
        let by = self.clock.wall().after(limit);
        self.with_gang(key, |gang| gang.mended_by = Some(by));
        self.in_flight.insert(key.gang, key);
        let (clock, backend) = (self.clock.clone(), self.backend.clone());
        let call = async move {
            let answer = clock.timeout(CALL_LIMIT, backend.resize(&order)).await;
            Answer::Mended(key, pods, late(answer))
        };
        self.calls.push(call.boxed());
    }

    /// The cluster has taken it, or has not.
    pub(crate) fn mended(
        &mut self,
        key: GangKey,
        pods: Vec<u32>,
        answer: Result<(), BackendError>,
    ) {
        match answer {
            Ok(()) => self.with_gang(key, |gang| {
                let sized = gang.order.as_deref().map(|order| RunOrder {
                    pods,
                    ..order.clone()
                });
                gang.order = sized.map(Arc::new);
                gang.smaller = None;
            }),
            // Done or not, or beaten to the room: asked again, from what is then seen.
            Err(BackendError::Unavailable(why) | BackendError::NoRoom(why)) => {
                tracing::warn!(%key, why, "the cluster did not do it, asking again");
                self.metrics.api_failures.inc();
                self.with_gang(key, await_proof);
                self.retry(key.gang);
            }
            Err(error) => {
                tracing::warn!(%key, %error, "cannot go on without the lost node");
                self.give_up(key, Failure::NodeLost, error.to_string());
            }
        }
    }
}

/// Nothing is asked of the cluster: whatever the gang shows next is looked at anew.
fn await_proof(gang: &mut Gang) {
    gang.phase = Phase::Live;
    gang.attempt = gang.attempt.saturating_sub(1);
}

/// True for who is broken because its machine was taken away.
fn is_off(pod: &PodSeen) -> bool {
    matches!(&pod.phase, PodPhase::Broken { reason } if reason == NODE_OFF)
}

/// Members that stay: of each role those leave first that the order names by host, then those of
/// the highest rank.
fn staying(order: &RunOrder, smaller: &RunOrder, own: &GangSeen) -> Vec<MemberOrder> {
    let mut members = Vec::new();
    for (at, role) in order.shape.roles.iter().enumerate() {
        let wanted = smaller.pods.get(at).copied().unwrap_or(role.max);
        let mut pods: Vec<&PodSeen> = own.members().filter(|pod| pod.role == role.name).collect();
        let mut over = pods.len().saturating_sub(wanted as usize);
        for (_, host, count) in smaller.leaves.iter().filter(|(of, ..)| *of == at) {
            let mut leave = (*count as usize).min(over);
            over -= leave;
            pods.retain(|pod| {
                let leaves = leave > 0 && host_number(&pod.node) == *host;
                leave -= usize::from(leaves);
                !leaves
            });
            // Fewer were there than the hub thought: others make up for it.
            over += leave;
        }
        pods.sort_by_key(|pod| pod.rank);
        pods.truncate(pods.len().saturating_sub(over));
        members.extend(pods.into_iter().map(|pod| MemberOrder {
            role: at,
            rank: pod.rank,
            node: pod.node.clone(),
        }));
    }
    members
}

/// Members with which a gang goes on after it has lost the `lost` nodes, or `None`. Only nodes that
/// are ready take others in their place.
fn mended(
    levels: &[String],
    mut places: Vec<Node>,
    order: &RunOrder,
    own: &GangSeen,
    lost: &BTreeSet<String>,
) -> Option<Vec<MemberOrder>> {
    // A node that left the cluster still has a place among the members.
    for pod in own.members() {
        if !places.iter().any(|place| place.name == pod.node) {
            places.push(Node {
                name: pod.node.clone(),
                domains: vec![String::new(); levels.len()],
                allocatable: Resources::default(),
                free: Resources::default(),
                ready: false,
            });
        }
    }
    let mut members = members_seen(&places, order, own)?;
    for node in lost {
        let node = places.iter().position(|place| place.name == *node)?;
        let replaced = nodes::replace(levels, &places, &order.shape, &members, node);
        let after = match replaced {
            Replacement::Swap(moved) => {
                let same = |a: &Member, b: &Member| (a.role, a.rank) == (b.role, b.rank);
                let place = |member: &Member| {
                    let moved = moved.iter().find(|moved| same(moved, member));
                    *moved.unwrap_or(member)
                };
                members.iter().map(place).collect()
            }
            Replacement::Shrink { members: left, .. } => left,
            Replacement::Restart(_) => return None,
        };
        take_room(&mut places, order, &members, &after);
        members = after;
    }
    let order = |member: Member| MemberOrder {
        role: member.role as usize,
        rank: member.rank,
        node: places[member.node].name.clone(),
    };
    Some(members.into_iter().map(order).collect())
}

fn members_seen(places: &[Node], order: &RunOrder, own: &GangSeen) -> Option<Vec<Member>> {
    let position = |name: &str| places.iter().position(|place| place.name == name);
    let member = |pod: &PodSeen| {
        let mut roles = order.shape.roles.iter();
        let role = roles.position(|role| role.name == pod.role)?;
        Some(Member {
            role: u32::try_from(role).ok()?,
            rank: pod.rank,
            node: position(&pod.node)?,
        })
    };
    own.members().map(member).collect()
}

/// What those that come take counts before the next lost node is looked at.
fn take_room(places: &mut [Node], order: &RunOrder, before: &[Member], after: &[Member]) {
    for member in after.iter().filter(|member| !before.contains(member)) {
        let role = order.shape.roles.get(member.role as usize);
        let request = role.map_or_else(Resources::default, |role| role.per_pod);
        let place = &mut places[member.node];
        place.free = crate::view::minus(place.free, request);
    }
}

/// Pods per role.
fn sizes(order: &GangOrder) -> Vec<u32> {
    let of_role = |role: usize| {
        let pods = order
            .members
            .iter()
            .filter(|member| member.role == role)
            .count();
        u32::try_from(pods).unwrap_or(u32::MAX)
    };
    (0..order.roles.len()).map(of_role).collect()
}
