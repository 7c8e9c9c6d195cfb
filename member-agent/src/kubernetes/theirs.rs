//! A gang of pods that others made: bound whole, or not at all.
//!
//! Owns the bind of pods that are there already, and how they are let go. Nothing of them is made:
//! who owns them makes them, and makes them again.
//!
//! - **The fence** is the gang's owner object, as for a gang of the agent's own; each pod is marked
//!   with gang, epoch and place before it is bound, and a binding names the version of the pod
//!   that was marked. Whoever lets a pod go takes the mark off, so a binding that arrives late is
//!   refused.
//! - **All or none** is a matter of bindings: every pod is bound or the gang is undone. These pods
//!   do not wait for a gate, so user code may start on one node before another has admitted its
//!   pod; one that a kubelet turns away undoes the gang.
//! - **Undone** pods that were bound and have not ended are removed, for their owner to make them
//!   again. A pod that is not bound, or has ended, is only let go.
//! - **Nothing but what was admitted:** a pod that asks for more than the job of its offer is not
//!   bound.

use std::collections::BTreeMap;

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::bind::{Made, resumes, slip};
use super::client::Trouble;
use super::inventory::Inventory;
use super::makers::MakerKind;
use super::manifest::{Devices, Manifests};
use super::names;
use super::options::Step;
use super::others::{OfferedPod, Others};
use super::record::Slip;
use super::{KubernetesBackend, Whose};
use crate::backend::{BackendError, GangKey, GangOrder, MemberOrder, Origin};

/// A pod that was offered, and the place that the order has for it.
struct Seat {
    pod: Pod,
    slip: Slip,
}

impl KubernetesBackend {
    /// Binds pods that others made. The same order again goes on where it was cut short.
    pub(super) async fn bind_theirs(
        &self,
        order: &GangOrder,
        origin: &Origin,
    ) -> Result<(), BackendError> {
        let (gang, namespace) = (order.key.gang, order.terms.namespace.as_str());
        if origin.namespace != namespace {
            return Err(BackendError::Invalid(format!(
                "its pods are in namespace {:?}, the job in {namespace:?}",
                origin.namespace
            )));
        }
        self.settle_in(gang, namespace, Whose::Theirs);
        let held = self.read_owner(namespace, gang).await?;
        if let Some(held) = &held
            && resumes(order, held)?.complete
        {
            return Ok(());
        }
        let (offered, pods) = self.offered(origin).await?;
        let seats = seats(order, &offered, pods);
        match (held, &seats) {
            (Some(_), Ok(_)) => {}
            // Some of them may be bound: the order is undone before it is tried again.
            (Some(_), Err(why)) => {
                tracing::info!(key = %order.key, why, "its pods changed while they were bound");
                return Err(BackendError::Conflict {
                    held: order.key,
                    attempt: order.attempt,
                });
            }
            (None, Ok(_)) => self.claim_theirs(order).await?,
            (None, Err(why)) => return Err(BackendError::NotOffered(why.clone())),
        }
        let marked = self.mark(order, seats.unwrap_or_default()).await?;
        // That it was done is written when every kubelet has admitted its pod, as for other gangs.
        self.bind_pods(order, marked).await
    }

    async fn claim_theirs(&self, order: &GangOrder) -> Result<(), BackendError> {
        let api: Api<Pod> = self.cluster.within(&order.terms.namespace);
        let bound = ListParams::default().labels(&names::bound_for_gang(order.key.gang));
        let (pods, _) = self.cluster.list(&api, &bound).await?;
        if let Some((held, attempt)) = pods.iter().find_map(mark_of) {
            return Err(BackendError::Conflict { held, attempt });
        }
        self.survey(order).await?.check_room(order, |_| false)?;
        let devices = Devices::default();
        let manifests = Manifests::of_theirs(order, &devices);
        self.claim(order, &manifests).await.map(drop)
    }

    /// The pods of an offer as the cluster has them at this moment.
    async fn offered(
        &self,
        origin: &Origin,
    ) -> Result<(Vec<OfferedPod>, BTreeMap<String, Pod>), BackendError> {
        let namespace = origin.namespace.as_str();
        let mut others = Others::new(self.options.flavors.clone());
        for kind in MakerKind::ALL {
            let listed = self.list_makers(kind, Some(namespace)).await?;
            for object in listed.map(|(objects, _)| objects).unwrap_or_default() {
                drop(kind.apply(object, &mut others));
            }
        }
        let api: Api<Pod> = self.cluster.within(namespace);
        let to_us = format!("spec.schedulerName={}", names::SCHEDULER);
        let to_us = ListParams::default().fields(&to_us);
        let (pods, _) = self.cluster.list(&api, &to_us).await?;
        let mut by_uid = BTreeMap::new();
        for pod in pods {
            let labels = pod.metadata.labels.as_ref();
            let is_ours = labels.and_then(names::key).is_some() && slip(&pod).is_some();
            drop(others.apply_pod(&pod, is_ours));
            by_uid.insert(pod.metadata.uid.clone().unwrap_or_default(), pod);
        }
        Ok((others.pods(&origin.uid), by_uid))
    }

    /// Writes on each pod what it is to be, if it is still as it was read.
    async fn mark(&self, order: &GangOrder, seats: Vec<Seat>) -> Result<Vec<Made>, BackendError> {
        for (held, attempt) in seats.iter().filter_map(|seat| mark_of(&seat.pod)) {
            if (held, attempt) != (order.key, order.attempt) {
                return Err(BackendError::Conflict { held, attempt });
            }
        }
        let api: Api<Pod> = self.cluster.within(&order.terms.namespace);
        let mark = |seat: Seat| {
            let api = api.clone();
            let mark = async move {
                let meta = &seat.pod.metadata;
                let name = meta.name.clone().unwrap_or_default();
                let mut version = meta.resource_version.clone();
                if slip(&seat.pod).as_ref() != Some(&seat.slip) {
                    let patch = marks(order, &seat, version.as_deref());
                    let patch = Patch::Merge(&patch);
                    let params = as_patcher();
                    let marked = self
                        .cluster
                        .call(api.patch_metadata(&name, &params, &patch));
                    version = marked.await?.metadata.resource_version;
                }
                self.options.hook.passed(Step::PodMade)?;
                Ok(Made {
                    name,
                    uid: meta.uid.clone().unwrap_or_default(),
                    version,
                    host: Inventory::host_of(&seat.slip.node).to_owned(),
                    bound: seat.pod.spec.and_then(|spec| spec.node_name),
                })
            };
            mark.boxed()
        };
        let marked = self.cluster.each(seats, mark).await?;
        self.options.hook.passed(Step::PodsMade)?;
        Ok(marked)
    }

    /// Takes the marks off a pod that is not bound, or has ended. [`Trouble::Changed`] when it is
    /// not as it was read: it may have been bound meanwhile.
    pub(super) async fn let_go_of_pod(&self, pod: &Pod) -> Result<(), Trouble> {
        let meta = &pod.metadata;
        let (namespace, name) = (meta.namespace.as_deref(), meta.name.as_deref());
        let api: Api<Pod> = self.cluster.within(namespace.unwrap_or_default());
        let labels = LABELS.map(|label| (label.to_owned(), Value::Null));
        let labels: serde_json::Map<String, Value> = labels.into_iter().collect();
        let patch = json!({"metadata": {
            "resourceVersion": meta.resource_version,
            "labels": labels,
            "annotations": {names::SLIP: null},
        }});
        let params = as_patcher();
        let name = name.unwrap_or_default();
        let patch = Patch::Merge(&patch);
        let change = api.patch_metadata(name, &params, &patch);
        match self.cluster.call(change).await {
            Ok(_) | Err(Trouble::NotFound) => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }
}

/// Labels of a mark. All are Meridian's own names: what an owner selects its pods by stays.
const LABELS: [&str; 5] = [
    names::BOUND_FOR,
    names::EPOCH,
    names::JOB,
    names::POOL,
    names::TENANT,
];

fn as_patcher() -> PatchParams {
    PatchParams {
        field_manager: Some(names::MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// The gang and attempt that a pod is marked for.
fn mark_of(pod: &Pod) -> Option<(GangKey, u32)> {
    let key = names::bound_key(pod.metadata.labels.as_ref()?)?;
    Some((key, slip(pod)?.attempt))
}

fn marks(order: &GangOrder, seat: &Seat, version: Option<&str>) -> Value {
    let values = [
        names::gang_label(order.key.gang),
        order.key.epoch.0.to_string(),
        names::label_value(&order.terms.job),
        names::label_value(&order.terms.pool),
        names::label_value(&order.workload.tenant),
    ];
    let labels: BTreeMap<&str, String> = LABELS.into_iter().zip(values).collect();
    let slip = serde_json::to_string(&seat.slip).expect("plain data without maps");
    json!({"metadata": {
        "resourceVersion": version,
        "labels": labels,
        "annotations": {names::SLIP: slip},
    }})
}

/// Gives each member of the order its pod, or says why the pods that are there are not the
/// order's.
fn seats(
    order: &GangOrder,
    offered: &[OfferedPod],
    mut pods: BTreeMap<String, Pod>,
) -> Result<Vec<Seat>, String> {
    if offered.len() != order.members.len() {
        let (there, wanted) = (offered.len(), order.members.len());
        return Err(format!("{there} of its {wanted} pods are offered"));
    }
    let seat = |member: &MemberOrder| {
        let role = order.roles.get(member.role);
        let role = role.ok_or_else(|| format!("there is no role {}", member.role))?;
        let mut alike = offered.iter();
        let found = alike.find(|pod| (&pod.role, pod.rank) == (&role.name, member.rank));
        let lacks = || format!("no pod is offered for {} {}", role.name, member.rank);
        let found = found.ok_or_else(lacks)?;
        let (asked, granted) = (found.request, role.request);
        if asked.gpus > granted.gpus || asked.cpu > granted.cpu || asked.memory > granted.memory {
            return Err(format!(
                "pod {} asks for {} GPUs, {} CPU, {} memory, its job for {}, {}, {}",
                found.name,
                asked.gpus,
                asked.cpu,
                asked.memory,
                granted.gpus,
                granted.cpu,
                granted.memory
            ));
        }
        let pod = pods.remove(&found.uid).ok_or_else(lacks)?;
        if let Some(node) = found.node.as_ref().filter(|_| mark_of(&pod).is_none()) {
            return Err(format!("pod {} was bound to {node} by others", found.name));
        }
        let slip = Slip {
            role: role.name.clone(),
            order: member.role,
            rank: member.rank,
            node: member.node.clone(),
            request: role.request,
            attempt: order.attempt,
            terms: order.terms.clone(),
        };
        Ok(Seat { pod, slip })
    };
    order.members.iter().map(seat).collect()
}
