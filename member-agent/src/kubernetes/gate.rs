//! What follows from what the watch shows, without anybody's order.
//!
//! Owns the three chores of the cluster's state: open the gate of a gang that is whole, remove
//! what is left of one that has stopped, and give up pods of dead machines. They are done while
//! the cluster is observed, by whichever life of the agent observes it, so none of them is lost
//! with a process. Never starts or stops a gang.

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, Patch, PatchParams};
use serde_json::Value;

use super::client::{Trouble, found};
use super::options::Step;
use super::{KubernetesBackend, names};
use crate::backend::GangKey;

/// One chore.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Chore {
    /// Every member is admitted: user code may start.
    Open {
        /// Which gang.
        key: GangKey,
        /// Its namespace.
        namespace: String,
    },
    /// It was asked to stop and has no pod: the rest goes.
    Collect {
        /// Which gang.
        key: GangKey,
    },
    /// The machine of its pod is given up: no kubelet will say that it ended.
    Bury {
        /// Which gang.
        key: GangKey,
        /// Namespace of the pod.
        namespace: String,
        /// Its name.
        pod: String,
        /// Its UID.
        uid: String,
    },
}

impl Chore {
    /// The gang whose gate it opens.
    pub(super) fn opens(&self) -> Option<GangKey> {
        match self {
            Self::Open { key, .. } => Some(*key),
            Self::Collect { .. } | Self::Bury { .. } => None,
        }
    }
}

impl KubernetesBackend {
    /// Does a chore. `opening` is the patch that opens the gate of its gang.
    pub(super) async fn attend(
        &self,
        chore: &Chore,
        opening: Option<Value>,
    ) -> Result<(), Trouble> {
        match chore {
            Chore::Open { key, namespace } => match opening {
                Some(opening) => self.open_gate(*key, namespace, &opening).await,
                None => Ok(()),
            },
            Chore::Collect { key } => self.collect(*key).await,
            Chore::Bury {
                key,
                namespace,
                pod,
                uid,
            } => self.bury(*key, namespace, pod, uid).await,
        }
    }

    /// Lets user code start, in one write that compares the owner object's version with the one
    /// that was shown: it is refused when a stop was marked meanwhile, and a stop that is marked
    /// after it finds it done. Every member is admitted, hence bound, so it also says that the
    /// order was done.
    async fn open_gate(
        &self,
        key: GangKey,
        namespace: &str,
        opening: &Value,
    ) -> Result<(), Trouble> {
        let api: Api<ConfigMap> = self.cluster.within(namespace);
        let name = names::owner(key.gang);
        let params = PatchParams {
            field_manager: Some(names::MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(opening);
        let opened = api.patch_metadata(&name, &params, &patch);
        match self.cluster.call(opened).await {
            Ok(_) => {}
            // Whatever it was is seen in a moment, and judged again.
            Err(Trouble::Changed | Trouble::NotFound) => return Ok(()),
            Err(trouble) => return Err(trouble),
        }
        tracing::info!(%key, "every member is admitted, user code may start");
        self.options.hook.passed(Step::GateOpened)
    }

    /// Removes a pod whose kubelet will not do it.
    async fn bury(
        &self,
        key: GangKey,
        namespace: &str,
        name: &str,
        uid: &str,
    ) -> Result<(), Trouble> {
        let api: Api<Pod> = self.cluster.within(namespace);
        let Some(pod) = found(self.cluster.call(api.get(name)).await)? else {
            return Ok(());
        };
        if pod.metadata.uid.as_deref() != Some(uid) {
            return Ok(());
        }
        tracing::warn!(%key, pod = name, "its machine is given up, the pod is removed");
        self.cluster.delete(&api, &pod, Some(0)).await
    }
}
