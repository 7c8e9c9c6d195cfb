//! A real member cluster behind the Kubernetes API.
//!
//! Owns the Kubernetes side of `ClusterBackend`: a gang becomes an owner object, a headless
//! Service and pods that the agent binds itself. Never touches an object that it did not
//! make, never believes anything gone that the API did not say is gone, and never decides what
//! runs.
//!
//! ```text
//! bind   claim (owner object, one per gang) → Service → pods, unbound → bindings
//! watch  every pod admitted by its kubelet → gate → containers start, all of them
//! theirs claim → others' pods, marked → bindings: nothing is made (see `theirs`)
//! stop   "stopping" in the owner object → pods end, with grace → Service, owner go
//! ```
//!
//! - **The fence** is the owner object. Its name is the gang's, so two epochs of a gang cannot both
//!   have one, and every write to it compares its version.
//! - **The gate** is a key of the owner object, named after its UID: whether a gang starts or stops
//!   is decided by one compared write. What an unanswered bind leaves behind mounts a key that
//!   never comes: it cannot start, whenever it arrives.
//! - **A step done again** meets what it made and goes on from there.

mod answers;
mod bind;
mod check;
mod client;
pub mod connect;
mod doubt;
mod entry;
mod environment;
mod gate;
mod hosts;
mod index;
pub mod inventory;
mod logs;
mod makers;
mod manifest;
pub mod names;
mod options;
pub mod others;
mod phase;
mod prepared;
mod record;
mod resize;
mod stop;
mod theirs;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt as _;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams};
use meridian_api::ids::GangId;
use meridian_api::units::{Millis, UnixMillis};
use serde_json::json;

pub use answers::{AnswerRefused, AnswersOptions, Caller};
pub use options::{
    Hook, KubernetesOptions, MACHINE_GONE_AFTER, NODE_LOST_AFTER, REQUEST_LIMIT, Step,
};

use crate::backend::{
    BackendError, ClusterBackend, GangKey, GangOrder, GangSeen, LogQuery, Observation, Stopped,
};
use client::{Cluster, Trouble};
use doubt::Missing;
use index::Index;
use makers::MakerKind;
use prepared::Prepared;

/// The member cluster behind one Kubernetes API. Cheap to clone.
#[derive(Clone)]
pub struct KubernetesBackend {
    cluster: Cluster,
    options: std::sync::Arc<KubernetesOptions>,
    /// Gangs that were seen or bound, and where: what is asked about them need not look through
    /// the whole cluster.
    homes: std::sync::Arc<Mutex<BTreeMap<GangId, Home>>>,
    prepared: std::sync::Arc<Prepared>,
}

/// Where a gang is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Home {
    namespace: String,
    whose: Whose,
    /// It was there: a listing without its owner object is doubted.
    seen: bool,
}

/// Who made the pods of a gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    /// The agent.
    Ours,
    /// Somebody else.
    Theirs,
}

/// A whole listing, and where watches of it begin.
struct Look {
    index: Index,
    configs: String,
    pods: String,
    nodes: String,
    /// `None` = the kind cannot be seen here.
    makers: Vec<(MakerKind, Option<String>)>,
}

impl KubernetesBackend {
    /// The backend. Nothing is asked of the API before the first call.
    #[must_use]
    pub fn new(options: KubernetesOptions) -> Self {
        let cluster = Cluster::new(
            options.client.clone(),
            options.clock.clone(),
            options.request_limit,
        );
        Self {
            cluster,
            options: std::sync::Arc::new(options),
            homes: std::sync::Arc::default(),
            prepared: std::sync::Arc::default(),
        }
    }

    fn home(&self, gang: GangId) -> Option<Home> {
        let homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
        homes.get(&gang).cloned()
    }

    fn settle_in(&self, gang: GangId, namespace: &str, whose: Whose) {
        let mut homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
        homes.entry(gang).or_insert_with(|| Home {
            namespace: namespace.to_owned(),
            whose,
            seen: false,
        });
    }

    /// It was there: from here on, a listing without its owner object is doubted.
    fn has_settled(&self, gang: GangId) {
        let mut homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(home) = homes.get_mut(&gang) {
            home.seen = true;
        }
    }

    /// What was there and is not in this listing.
    fn lacking(&self, index: &Index) -> BTreeSet<Missing> {
        let mut missing = index.missing();
        let homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
        let unseen = homes
            .iter()
            .filter(|(gang, home)| home.seen && !index.has_owner(**gang));
        missing.extend(unseen.map(|(gang, home)| Missing::Owner {
            namespace: home.namespace.clone(),
            gang: *gang,
        }));
        missing
    }

    fn move_out(&self, gang: GangId) {
        let mut homes = self.homes.lock().unwrap_or_else(PoisonError::into_inner);
        homes.remove(&gang);
    }

    /// Where the objects of a gang are looked for.
    fn around<K>(&self, gang: GangId) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        match self.home(gang) {
            Some(home) => self.cluster.within(&home.namespace),
            None => self.cluster.everywhere(),
        }
    }

    /// The owner object of a gang, as the cluster has it at this moment.
    async fn read_owner(
        &self,
        namespace: &str,
        gang: GangId,
    ) -> Result<Option<ConfigMap>, Trouble> {
        let api: Api<ConfigMap> = self.cluster.within(namespace);
        client::found(self.cluster.call(api.get(&names::owner(gang))).await)
    }

    /// Owner objects first: a pod that is missing from the later listing was there before. What
    /// is missing is asked for by name, and a listing that lacks what is there is no answer.
    async fn look(&self) -> Result<Look, Trouble> {
        let ours = ListParams::default().labels(&watch::ours());
        let all = ListParams::default();
        let cluster = &self.cluster;
        let (owners, configs) = cluster
            .list(&cluster.everywhere::<ConfigMap>(), &ours)
            .await?;
        let (listed, pods) = cluster.list(&cluster.everywhere::<Pod>(), &all).await?;
        cluster.pods_shown(&pods);
        let (hosts, nodes) = cluster.list(&cluster.global::<Node>(), &all).await?;
        let mut index = Index::new(&self.options);
        let mut makers = Vec::new();
        for kind in MakerKind::ALL {
            let (objects, version) = self.list_makers(kind, None).await?.unzip();
            for object in objects.unwrap_or_default() {
                index.apply_maker(kind, object);
            }
            makers.push((kind, version));
        }
        index.load(&hosts, &listed, &owners, cluster.clock().boot());
        self.doubt(self.lacking(&index)).await?;
        for (gang, namespace, whose) in index.homes() {
            self.settle_in(gang, namespace, whose);
            self.has_settled(gang);
        }
        Ok(Look {
            index,
            configs,
            pods,
            nodes,
            makers,
        })
    }

    async fn ask_for_checkpoint(&self, key: GangKey, limit: Millis) -> Result<(), BackendError> {
        let pods = self.pods_of(key).await?;
        if pods.is_empty() {
            return Err(BackendError::NotFound(key));
        }
        let UnixMillis(now) = self.cluster.clock().wall();
        let by = now.saturating_add(i64::try_from(limit.0).unwrap_or(i64::MAX));
        let by = jiff::Timestamp::from_millisecond(by).unwrap_or(jiff::Timestamp::MAX);
        let patch = json!({"metadata": {"annotations": {names::CHECKPOINT_BY: by.to_string()}}});
        self.annotate(pods, &patch).await?;
        Ok(())
    }

    /// Changes annotations of pods; one that went away meanwhile needs none.
    async fn annotate(&self, pods: Vec<Pod>, patch: &serde_json::Value) -> Result<(), Trouble> {
        let patch = Patch::Merge(patch);
        let patch = &patch;
        let change = |pod: Pod| {
            let change = async move {
                let namespace = pod.metadata.namespace.unwrap_or_default();
                let name = pod.metadata.name.unwrap_or_default();
                let api: Api<Pod> = self.cluster.within(&namespace);
                let params = PatchParams {
                    field_manager: Some(names::MANAGER.to_owned()),
                    ..PatchParams::default()
                };
                let change = api.patch_metadata(&name, &params, patch);
                client::found(self.cluster.call(change).await)
            };
            change.boxed()
        };
        self.cluster.each(pods, change).await?;
        Ok(())
    }
}

#[async_trait]
impl ClusterBackend for KubernetesBackend {
    fn name(&self) -> &'static str {
        "kubernetes"
    }

    async fn adopt(&self) -> Result<Vec<GangSeen>, BackendError> {
        Ok(self.look().await?.index.snapshot().gangs)
    }

    async fn observe(&self) -> Result<Observation, BackendError> {
        let look = self.look().await?;
        Ok(watch::observation(self.clone(), look))
    }

    async fn bind(&self, order: &GangOrder) -> Result<(), BackendError> {
        self.bind_gang(order).await
    }

    async fn resize(&self, order: &GangOrder) -> Result<(), BackendError> {
        self.resize_gang(order).await
    }

    async fn request_checkpoint(&self, key: GangKey, limit: Millis) -> Result<(), BackendError> {
        self.ask_for_checkpoint(key, limit).await
    }

    async fn stop(&self, key: GangKey, grace: Millis) -> Result<Stopped, BackendError> {
        Ok(self.stop_gang(key, grace).await?)
    }

    async fn logs(
        &self,
        key: GangKey,
        query: LogQuery,
    ) -> Result<BoxStream<'static, Result<Bytes, BackendError>>, BackendError> {
        self.read_logs(key, query).await
    }
}
