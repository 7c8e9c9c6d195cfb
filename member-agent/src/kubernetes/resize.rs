//! Other members for a gang that runs.
//!
//! Owns the order of a resize: write who the members are, bind those that come, ask those that go,
//! write that it was done. Each step may be done again. Never opens or closes the gate: who is
//! bound to a gang whose user code runs starts at once.

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::Api;
use serde_json::json;

use super::KubernetesBackend;
use super::bind::{invalid, slip};
use super::client::Trouble;
use super::manifest::{Manifests, grace_seconds};
use super::names;
use super::options::Step;
use super::record::{Member, Record, roles};
use crate::backend::{BackendError, GangOrder, MemberOrder};

impl KubernetesBackend {
    pub(super) async fn resize_gang(&self, order: &GangOrder) -> Result<(), BackendError> {
        let (key, namespace) = (order.key, order.terms.namespace.as_str());
        let held = self.read_owner(namespace, key.gang).await?;
        let held = held.ok_or(BackendError::NotFound(key))?;
        let record = Record::read(&held).ok_or(BackendError::NotFound(key))?;
        let conflict = BackendError::Conflict {
            held: record.key,
            attempt: record.attempt,
        };
        if record.key.epoch < key.epoch {
            return Err(BackendError::NotFound(key));
        }
        if record.key != key || record.stopping || record.attempt > order.attempt {
            return Err(conflict);
        }
        if record.attempt == order.attempt && record.complete {
            return Ok(());
        }
        if record.theirs {
            return Err(BackendError::Unsupported {
                backend: "kubernetes",
                what: "resize pods that others made",
            });
        }
        let pods = self.pods_of(key).await?;
        let site = self.survey(order).await?;
        let devices = site.devices(order);
        let manifests = invalid(Manifests::new(order, &devices))?;
        let signal = self.stop_signal(order).await?;
        let manifests = manifests.with(self.options.answers.as_ref(), signal);
        if record.attempt < order.attempt {
            site.check_room(order, |member| pods.iter().any(|pod| is(pod, member)))?;
        }
        let owner = match self.write_members(order, &held, record).await {
            Ok(owner) => owner,
            Err(Trouble::Changed | Trouble::NotFound) => return Err(conflict),
            Err(trouble) => return Err(trouble.into()),
        };
        let world = manifests.world().iter().enumerate();
        let missing = world.filter(|(_, member)| !pods.iter().any(|pod| is_member(pod, member)));
        let missing: Vec<usize> = missing.map(|(at, _)| at).collect();
        let made = self.make_pods(order, &manifests, &owner, missing).await?;
        self.bind_pods(order, made).await?;
        self.leave_out(order, pods, manifests.world()).await?;
        self.record_done(owner).await
    }

    /// Writes that the order was done, unless a stop came between.
    async fn record_done(&self, mut owner: ConfigMap) -> Result<(), BackendError> {
        let namespace = owner.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<ConfigMap> = self.cluster.within(namespace);
        let Some(mut record) = Record::read(&owner) else {
            return Err(Trouble::Changed.into());
        };
        record.complete = true;
        record.resizing = false;
        record.write(&mut owner);
        match self.cluster.replace(&api, &owner).await {
            Ok(_) => self
                .options
                .hook
                .passed(Step::Recorded)
                .map_err(BackendError::from),
            Err(Trouble::Changed | Trouble::NotFound) => {
                let (held, attempt) = (record.key, record.attempt);
                Err(BackendError::Conflict { held, attempt })
            }
            Err(trouble) => Err(trouble.into()),
        }
    }

    async fn write_members(
        &self,
        order: &GangOrder,
        held: &ConfigMap,
        mut record: Record,
    ) -> Result<ConfigMap, Trouble> {
        record.attempt = order.attempt;
        record.complete = false;
        record.resizing = true;
        record.roles = roles(order);
        let mut owner = held.clone();
        record.write(&mut owner);
        let api: Api<ConfigMap> = self.cluster.within(&order.terms.namespace);
        self.cluster.replace(&api, &owner).await
    }

    /// Asks the pods of members that are no longer to end, and tells the others how many they are.
    async fn leave_out(
        &self,
        order: &GangOrder,
        pods: Vec<Pod>,
        world: &[Member],
    ) -> Result<(), BackendError> {
        let stays = |pod: &Pod| world.iter().any(|member| is_member(pod, member));
        let (staying, leaving): (Vec<Pod>, Vec<Pod>) = pods.into_iter().partition(stays);
        let api: Api<Pod> = self.cluster.within(&order.terms.namespace);
        let grace = grace_seconds(order.terms.grace);
        let ask = |pod: Pod| {
            let api = api.clone();
            async move { self.cluster.delete(&api, &pod, Some(grace)).await }.boxed()
        };
        self.cluster.each(leaving, ask).await?;
        let size = world.len().to_string();
        let patch = json!({"metadata": {"annotations": {names::WORLD_SIZE: size}}});
        self.annotate(staying, &patch).await?;
        Ok(())
    }
}

fn is(pod: &Pod, member: &MemberOrder) -> bool {
    let slip = slip(pod).filter(|_| pod.metadata.deletion_timestamp.is_none());
    slip.is_some_and(|slip| {
        (slip.order, slip.rank, &slip.node) == (member.role, member.rank, &member.node)
    })
}

fn is_member(pod: &Pod, member: &Member) -> bool {
    let order = MemberOrder {
        role: member.role,
        rank: member.rank,
        node: member.node.clone(),
    };
    is(pod, &order)
}
