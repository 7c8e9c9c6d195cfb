//! What one cluster is to hold, and how the difference is told.
//!
//! Owns the way from placement records to intents. A gang that is absent here is not spoken of:
//! only an explicit stop stops.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meridian_api::ids::{Epoch, GangId, Generation, Revision};
use meridian_api::kinds::federated_job::Dependencies;
use meridian_api::units::Millis;
use meridian_policies::lifecycle::{DrainReason, State};
use meridian_proto::v1;

use crate::holds::StoredShrink;
use crate::model::{ClusterState, Model, StoredPlacement};
use crate::placement::{PlacedCheckpoint, PlacedRole, PlacementRecord};

/// One thing a cluster is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Run it, as committed at this revision: what was decided earlier is placed earlier.
    Run(Arc<PlacementRecord>, Revision, Arc<[u64]>),
    /// Stop it, prove it, forget it.
    Stop(&'static str),
    /// Let it save its work, then stop it.
    Leave(Leave),
    /// Run it with fewer pods.
    Shrink(Arc<PlacementRecord>, Revision, Arc<StoredShrink>),
}

/// How a gang makes room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leave {
    /// Why, from the closed list.
    pub(crate) reason: &'static str,
    /// Until it is stopped, once it has been asked for a checkpoint; zero = at once.
    pub(crate) notice: Millis,
    /// From SIGTERM to SIGKILL.
    pub(crate) grace: Millis,
}

/// Everything a cluster is to do, as of one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Orders {
    /// The revision.
    pub(crate) generation: Generation,
    /// By gang and epoch: two epochs of one gang can be on a cluster at once.
    pub(crate) orders: BTreeMap<(GangId, Epoch), Order>,
}

/// Orders of all the given clusters in one walk over the placements.
#[must_use]
pub(crate) fn orders_of(model: &Model, clusters: &BTreeSet<String>) -> BTreeMap<String, Orders> {
    let generation = Generation(model.newest().0);
    let empty = Orders {
        generation,
        orders: BTreeMap::new(),
    };
    let mut all: BTreeMap<String, Orders> = clusters
        .iter()
        .map(|cluster| (cluster.clone(), empty.clone()))
        .collect();
    let kept = kept_hosts(model);
    for row in model.placements() {
        let record = &row.record;
        if let Some(orders) = all.get_mut(&*record.cluster) {
            let order = order(model, row, &kept);
            orders.orders.insert((record.gang, record.epoch), order);
        }
    }
    for (name, orders) in &mut all {
        if let Some(cluster) = model.fleet.clusters.get(name) {
            forget_ended(model, name, cluster, orders);
        }
    }
    all
}

/// Hosts that are kept for gangs which wait, by cluster and pool.
fn kept_hosts(model: &Model) -> BTreeMap<(&str, &str), Arc<[u64]>> {
    let mut kept: BTreeMap<(&str, &str), BTreeSet<u64>> = BTreeMap::new();
    for hold in model.holds() {
        let record = &hold.record;
        let hosts = kept.entry((&record.cluster, &record.pool)).or_default();
        hosts.extend(record.room.iter().flat_map(|room| &room.known));
    }
    let kept = kept.into_iter();
    kept.map(|(pool, hosts)| (pool, hosts.into_iter().collect()))
        .collect()
}

fn order(model: &Model, row: &StoredPlacement, kept: &BTreeMap<(&str, &str), Arc<[u64]>>) -> Order {
    match row.record.state {
        State::Starting | State::Running => {
            let room = model.makes_room(row.record.gang, row.record.epoch);
            let shrinks = room.and_then(|(_, victim)| victim.shrinks.clone());
            // It may have got smaller already, for this or another reason.
            let smaller = shrinks.filter(|it| {
                let pods = it.pods.iter().zip(row.record.roles.iter());
                pods.clone().count() == row.record.roles.len()
                    && pods.clone().all(|(pods, role)| *pods <= role.pods)
                    && pods.clone().any(|(pods, role)| *pods < role.pods)
            });
            if let Some(it) = smaller {
                return Order::Shrink(Arc::clone(&row.record), row.revision, Arc::new(it));
            }
            let record = &row.record;
            let pool = (&*record.cluster, &*record.pool);
            // Where it runs already, it stays.
            let kept = kept.get(&pool).filter(|_| record.state == State::Starting);
            let kept = kept.map_or_else(|| Arc::from([]), Arc::clone);
            Order::Run(Arc::clone(record), row.revision, kept)
        }
        State::Draining(DrainReason::Preempted) => Order::Leave(leave(&row.record, "Preempted")),
        State::Draining(DrainReason::Reclaimed) => Order::Leave(leave(&row.record, "Reclaimed")),
        State::Draining(DrainReason::Deleted) => Order::Stop("Deleted"),
        State::Draining(DrainReason::Suspended) => Order::Stop("Suspended"),
        State::Draining(DrainReason::Evacuated) => Order::Stop("Evacuated"),
    }
}

/// A gang that can save its work is asked to, and stopped early enough to be gone in time; any
/// other is told at once, and has the whole notice until it is killed.
fn leave(record: &PlacementRecord, reason: &'static str) -> Leave {
    let notice = record
        .preempted
        .as_ref()
        .map_or(Millis::ZERO, |it| it.notice);
    if record.checkpoint.is_none() {
        return Leave {
            reason,
            notice: Millis::ZERO,
            grace: notice.max(Millis::seconds(1)),
        };
    }
    let grace = record
        .grace
        .min(Millis(notice.0 / 2))
        .max(Millis::seconds(1));
    Leave {
        reason,
        notice: Millis(notice.0.saturating_sub(grace.0)),
        grace,
    }
}

/// What has ended and whose row is gone may be forgotten by the agent: nothing of it runs, and
/// what came of it is stored. An epoch below the gang's own may not run on: that one has a younger
/// placement, or waits for one. Whatever else runs without a row is left alone.
fn forget_ended(model: &Model, name: &str, cluster: &ClusterState, orders: &mut Orders) {
    for (gang, seen) in &cluster.seen {
        let row = model.placement(*gang).map(|row| row.record.as_ref());
        let stands = row.is_some_and(|row| row.epoch == seen.epoch && *row.cluster == *name);
        if stands {
            continue;
        }
        let tried = model
            .job(gang.job)
            .and_then(|job| job.progress().tried.get(&gang.index));
        let younger = row
            .map(|row| row.epoch)
            .is_some_and(|epoch| epoch > seen.epoch);
        let superseded = younger || tried.is_some_and(|tried| tried.epoch >= seen.epoch);
        if seen.is_over() {
            orders
                .orders
                .insert((*gang, seen.epoch), Order::Stop("Ended"));
        } else if superseded {
            orders
                .orders
                .insert((*gang, seen.epoch), Order::Stop("Superseded"));
        }
    }
}

impl Order {
    /// When it was decided; a stop comes before everything.
    fn decided(&self) -> Revision {
        match self {
            Self::Stop(_) | Self::Leave(_) => Revision::default(),
            Self::Run(_, decided, _) | Self::Shrink(_, decided, _) => *decided,
        }
    }
}

impl Orders {
    /// Orders that are new or different from `sent`: stops, then what is to run, in the order in
    /// which it was decided. The agent places gangs in that order, so that each finds the room
    /// that the decision saw.
    #[must_use]
    pub(crate) fn since<'a>(&'a self, sent: &Self) -> Vec<(GangId, Epoch, &'a Order)> {
        let news = self
            .orders
            .iter()
            .filter(|(key, order)| match (order, sent.orders.get(key)) {
                (Order::Run(.., kept), Some(Order::Run(.., told))) => kept != told,
                (order, Some(before)) => *order != before,
                (_, None) => true,
            });
        let mut news: Vec<_> = news
            .map(|((gang, epoch), order)| (*gang, *epoch, order))
            .collect();
        news.sort_by_key(|(gang, epoch, order)| (order.decided(), *gang, *epoch));
        news
    }
}

/// An order as a message.
#[must_use]
pub(crate) fn intent(gang: GangId, epoch: Epoch, order: &Order) -> v1::PlacementIntent {
    let bare = v1::PlacementIntent {
        gang: Some(gang.into()),
        epoch: epoch.0,
        ..v1::PlacementIntent::default()
    };
    match order {
        Order::Stop(reason) => v1::PlacementIntent {
            desired: v1::Desired::Stop.into(),
            stop_reason: (*reason).to_owned(),
            ..bare
        },
        Order::Leave(leave) => v1::PlacementIntent {
            desired: v1::Desired::Stop.into(),
            stop_reason: leave.reason.to_owned(),
            notice_ms: leave.notice.0,
            grace_ms: leave.grace.0,
            ..bare
        },
        Order::Run(record, _, kept) => v1::PlacementIntent {
            kept_hosts: kept.to_vec(),
            ..run_intent(bare, record)
        },
        Order::Shrink(record, _, shrink) => shrink_intent(run_intent(bare, record), shrink),
    }
}

/// The same with fewer pods, and where those leave that are too many.
fn shrink_intent(run: v1::PlacementIntent, shrink: &StoredShrink) -> v1::PlacementIntent {
    let mut intent = run;
    for ((role, pods), ix) in intent.roles.iter_mut().zip(&shrink.pods).zip(0_u32..) {
        role.pods = *pods;
        let leaves = shrink.leaves.iter().filter(|(role, ..)| *role == ix);
        let leaves = leaves.map(|(_, host, pods)| v1::HostPods {
            host: *host,
            pods: *pods,
        });
        role.leaves = leaves.collect();
    }
    intent
}

fn run_intent(bare: v1::PlacementIntent, record: &PlacementRecord) -> v1::PlacementIntent {
    let rule = |role: &PlacedRole| v1::TopologyRule {
        role: role.name.clone(),
        required: role.required.clone().unwrap_or_default(),
        preferred: role.preferred.clone().unwrap_or_default(),
        slice_size: role.slice.as_ref().map_or(0, |slice| slice.pods),
        slice_required: role
            .slice
            .as_ref()
            .map_or_else(String::new, |slice| slice.level.clone()),
    };
    let ruled = |role: &&PlacedRole| {
        role.required.is_some() || role.preferred.is_some() || role.slice.is_some()
    };
    let millis = |span: Option<Millis>| span.map_or(0, |span| span.0);
    v1::PlacementIntent {
        desired: v1::Desired::Run.into(),
        namespace: record.namespace.to_string(),
        job: record.job.to_string(),
        tenant: record.tenant.to_string(),
        workload_class: record.class.to_string(),
        priority: record.priority,
        pool: record.pool.to_string(),
        roles: record.roles.iter().map(role_intent).collect(),
        topology: record.roles.iter().filter(ruled).map(rule).collect(),
        grace_ms: record.grace.0,
        max_runtime_ms: millis(record.max_runtime),
        place_timeout_ms: millis(record.place_timeout),
        traceparent: record.traceparent.as_deref().unwrap_or_default().to_owned(),
        labels: record.labels.as_ref().clone(),
        checkpoint: record.checkpoint.as_deref().map(checkpoint),
        success: Some(v1::Success {
            leader_role: record.leader.as_deref().unwrap_or_default().to_owned(),
        }),
        dependencies: record
            .dependencies
            .as_deref()
            .map(dependencies)
            .unwrap_or_default(),
        carried_sha256: record
            .carried
            .as_deref()
            .map(unhex)
            .unwrap_or_default()
            .into(),
        origin: record.origin.as_ref().map(|origin| v1::Origin {
            uid: origin.uid.clone(),
            namespace: record.namespace.to_string(),
            name: origin.name.clone(),
        }),
        flavor: record.flavor.to_string(),
        ..bare
    }
}

fn checkpoint(save: &PlacedCheckpoint) -> v1::Checkpoint {
    v1::Checkpoint {
        uri: save.uri.clone(),
        resume_env: save.resume_env.clone().unwrap_or_default(),
        signal: save.signal.clone().unwrap_or_default(),
    }
}

fn dependencies(needs: &Dependencies) -> Vec<v1::Dependency> {
    use v1::DependencyKind as Kind;
    let account = needs.service_account.as_slice();
    let lists = [
        (Kind::ConfigMap, needs.config_maps.as_slice()),
        (Kind::Secret, needs.secrets.as_slice()),
        (Kind::ImagePullSecret, needs.image_pull_secrets.as_slice()),
        (Kind::ServiceAccount, account),
        (
            Kind::PersistentVolumeClaim,
            needs.persistent_volume_claims.as_slice(),
        ),
    ];
    let named = lists.into_iter().flat_map(|(kind, names)| {
        names.iter().map(move |name| v1::Dependency {
            kind: kind.into(),
            name: name.clone(),
        })
    });
    named.collect()
}

fn role_intent(role: &PlacedRole) -> v1::RoleIntent {
    v1::RoleIntent {
        name: role.name.clone(),
        pods: role.pods,
        per_pod: Some(role.per_pod.into()),
        template_sha256: unhex(&role.template).into(),
        min: role.min,
        step: role.step,
        leaves: Vec::new(),
    }
}

/// Bytes of a hexadecimal text that this hub wrote.
fn unhex(text: &str) -> Vec<u8> {
    let pairs = text.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        std::str::from_utf8(pair)
            .ok()
            .and_then(|hex| u8::from_str_radix(hex, 16).ok())
    };
    pairs.filter_map(byte).collect()
}

#[cfg(test)]
#[path = "orders_tests.rs"]
mod tests;
