//! An elastic gang that a node took members from goes on smaller, under the same epoch.
//!
//! Owns the choice of who stays, which is `meridian_policies::nodes`', and its request to the
//! cluster. Never gives a lost member's rank to another pod: that needs another epoch.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::FutureExt as _;
use meridian_api::ids::GangId;
use meridian_api::units::Resources;
use meridian_policies::nodes::{self, Member, Node, Replacement};

use crate::backend::{BackendError, GangKey, GangOrder, GangSeen, MemberOrder, PodSeen};
use crate::calls::{Answer, CALL_LIMIT, gang_order, late};
use crate::executor::Executor;
use crate::gangs::{Failure, Phase, is_lost};
use crate::orders::RunOrder;

impl Executor {
    /// Asks for a gang of those that are left, or gives it up when they are too few.
    pub(crate) fn shrink(&mut self, id: GangId) {
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
        let lost = own.members().filter(|pod| is_lost(pod));
        let lost: BTreeSet<String> = lost.map(|pod| pod.node.clone()).collect();
        let left = left(
            levels,
            self.view.places(&order.terms.pool),
            &order,
            own,
            &lost,
        );
        let Some(members) = left else {
            let message = format!("lost {lost:?}, and what is left is below its least size");
            self.give_up(key, Failure::NodeLost, message);
            return;
        };
        self.ask_to_shrink(gang_order(&order, attempt, members));
    }

    fn ask_to_shrink(&mut self, order: GangOrder) {
        let key = order.key;
        let pods = sizes(&order);
        tracing::info!(%key, attempt = order.attempt, ?pods, "going on smaller");
        self.in_flight.insert(key.gang, key);
        let (clock, backend) = (self.clock.clone(), self.backend.clone());
        let call = async move {
            let answer = clock.timeout(CALL_LIMIT, backend.resize(&order)).await;
            Answer::Shrunk(key, pods, late(answer))
        };
        self.calls.push(call.boxed());
    }

    /// The cluster has taken it, or has not.
    pub(crate) fn shrunk(
        &mut self,
        key: GangKey,
        pods: Vec<u32>,
        answer: Result<(), BackendError>,
    ) {
        match answer {
            Ok(()) => self.with_gang(key, |gang| {
                let smaller = gang.order.as_deref().map(|order| RunOrder {
                    pods,
                    ..order.clone()
                });
                gang.order = smaller.map(Arc::new);
            }),
            // Done or not: asked again, from what is then seen.
            Err(BackendError::Unavailable(why)) => {
                tracing::warn!(%key, why, "the cluster did not answer, asking again");
                self.metrics.api_failures.inc();
                self.with_gang(key, |gang| {
                    gang.phase = Phase::Live;
                    gang.attempt = gang.attempt.saturating_sub(1);
                });
                self.retry(key.gang);
            }
            Err(error) => {
                tracing::warn!(%key, %error, "cannot go on smaller");
                self.give_up(key, Failure::NodeLost, error.to_string());
            }
        }
    }
}

/// Members of a gang that can go on without the `lost` nodes, or `None`.
fn left(
    levels: &[String],
    mut places: Vec<Node>,
    order: &RunOrder,
    own: &GangSeen,
    lost: &BTreeSet<String>,
) -> Option<Vec<MemberOrder>> {
    // No room anywhere: a lost member finds no other node, so that the gang gets smaller.
    for place in &mut places {
        place.ready = false;
    }
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
    let position = |name: &str| places.iter().position(|place| place.name == name);
    let member = |pod: &PodSeen| {
        let role = order
            .shape
            .roles
            .iter()
            .position(|role| role.name == pod.role)?;
        Some(Member {
            role: u32::try_from(role).ok()?,
            rank: pod.rank,
            node: position(&pod.node)?,
        })
    };
    let mut members = own.members().map(member).collect::<Option<Vec<Member>>>()?;
    for node in lost {
        let node = position(node)?;
        match nodes::replace(levels, &places, &order.shape, &members, node) {
            Replacement::Shrink { members: left, .. } => members = left,
            Replacement::Swap(_) | Replacement::Restart(_) => return None,
        }
    }
    let order = |member: Member| MemberOrder {
        role: member.role as usize,
        rank: member.rank,
        node: places[member.node].name.clone(),
    };
    Some(members.into_iter().map(order).collect())
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
