//! The end of a gang, with proof.
//!
//! Owns the order of the steps: mark, ask, wait for the kubelets, remove, look again. Idempotent.
//! `Gone` comes from a listing of the cluster's store that has neither a pod nor an owner object,
//! and a listing without pods is doubted while the owner object is there (see `doubt`). Never
//! removes a pod without its kubelet's word; giving up a dead machine is a chore of its own (see
//! `gate`). Pods that others made are removed only when they are bound and have not ended; the
//! others are let go (see `theirs`).

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use kube::api::{Api, ListParams};
use meridian_api::units::Millis;

use super::client::Trouble;
use super::doubt;
use super::manifest::grace_seconds;
use super::names::{self, Part};
use super::options::Step;
use super::record::Record;
use super::{KubernetesBackend, Whose};
use crate::backend::{GangKey, Stopped};

/// Times that the mark is tried against writers that come between: a gate writes the owner object
/// once, a resize twice.
const MAX_TRIES: usize = 8;

impl KubernetesBackend {
    pub(super) async fn stop_gang(&self, key: GangKey, grace: Millis) -> Result<Stopped, Trouble> {
        self.mark_stopping(key).await?;
        self.options.hook.passed(Step::StopMarked)?;
        let asked = self.ask_pods(key, grace_seconds(grace)).await?;
        self.options.hook.passed(Step::PodsAsked)?;
        if asked > 0 && !self.pods_of(key).await?.is_empty() {
            return Ok(Stopped::Asked);
        }
        self.collect(key).await?;
        let left = !self.pods_of(key).await?.is_empty() || !self.owners_of(key).await?.is_empty();
        if left {
            return Ok(Stopped::Asked);
        }
        self.move_out(key.gang);
        Ok(Stopped::Gone)
    }

    /// Writes the wish into the owner object before any pod is asked: a bind or a gate that is
    /// under way is refused its next write.
    async fn mark_stopping(&self, key: GangKey) -> Result<(), Trouble> {
        for _ in 0..MAX_TRIES {
            let Some(mut owner) = self.owners_of(key).await?.pop() else {
                return Ok(());
            };
            let Some(mut record) = Record::read(&owner) else {
                return Ok(());
            };
            if record.stopping {
                return Ok(());
            }
            record.stopping = true;
            record.write(&mut owner);
            let namespace = owner.metadata.namespace.clone().unwrap_or_default();
            let api: Api<ConfigMap> = self.cluster.within(&namespace);
            match self.cluster.replace(&api, &owner).await {
                Ok(_) | Err(Trouble::NotFound) => return Ok(()),
                Err(Trouble::Changed) => {}
                Err(trouble) => return Err(trouble),
            }
        }
        Err(Trouble::Away(format!(
            "{key} changes faster than it can be stopped"
        )))
    }

    /// SIGTERM to every pod that has not been asked to end within this grace. A pod that is not
    /// bound, or has ended, goes at once. The number of pods that were there.
    async fn ask_pods(&self, key: GangKey, grace: u32) -> Result<usize, Trouble> {
        for _ in 0..MAX_TRIES {
            let pods = self.pods_of(key).await?;
            let count = pods.len();
            let ask = |pod: Pod| async move { self.ask_pod(&pod, grace).await }.boxed();
            match self.cluster.each(pods, ask).await {
                Ok(_) => return Ok(count),
                // One was bound while it was let go: it is looked at again.
                Err(Trouble::Changed) => {}
                Err(trouble) => return Err(trouble),
            }
        }
        Err(Trouble::Away(format!(
            "pods of {key} change faster than they can be let go"
        )))
    }

    async fn ask_pod(&self, pod: &Pod, grace: u32) -> Result<(), Trouble> {
        let meta = &pod.metadata;
        let is_theirs = meta.labels.as_ref().and_then(names::bound_key).is_some();
        let is_bound = pod
            .spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.is_some());
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        let has_ended = matches!(phase, Some("Succeeded" | "Failed"));
        if is_theirs && (has_ended || !is_bound) {
            return self.let_go_of_pod(pod).await;
        }
        let within = meta.deletion_grace_period_seconds.unwrap_or(i64::MAX);
        if meta.deletion_timestamp.is_some() && within <= i64::from(grace) {
            return Ok(());
        }
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let api: Api<Pod> = self.cluster.within(namespace);
        self.cluster.delete(&api, pod, Some(grace)).await
    }

    /// Removes what is left of a gang of which a listing shows no pods, after asking for some of
    /// them by name; the owner object last, since it is the proof of what is not yet gone.
    pub(super) async fn collect(&self, key: GangKey) -> Result<(), Trouble> {
        let owners = self.owners_of(key).await?;
        for owner in &owners {
            let namespace = owner.metadata.namespace.as_deref().unwrap_or_default();
            if let Some(record) = Record::read(owner) {
                let pods = doubt::pods(&record, namespace, |_, _| false);
                self.doubt(pods).await?;
            }
        }
        let of_key = ListParams::default().labels(&names::of_key(key));
        let cluster = &self.cluster;
        let (services, _) = cluster
            .list(&self.around::<Service>(key.gang), &of_key)
            .await?;
        for service in &services {
            let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
            cluster
                .delete(&cluster.within::<Service>(namespace), service, None)
                .await?;
        }
        self.let_go_of_carried(key, &owners).await?;
        for owner in &owners {
            let namespace = owner.metadata.namespace.as_deref().unwrap_or_default();
            cluster
                .delete(&cluster.within::<ConfigMap>(namespace), owner, None)
                .await?;
        }
        Ok(())
    }

    /// ConfigMaps that the job brought along; gangs of one job share them.
    async fn let_go_of_carried(&self, key: GangKey, owners: &[ConfigMap]) -> Result<(), Trouble> {
        if owners.is_empty() {
            return Ok(());
        }
        let part = Part::Carried.label();
        let carried = format!(
            "{}={},{}={part}",
            names::MANAGED_BY,
            names::MANAGER,
            names::PART
        );
        let carried = ListParams::default().labels(&carried);
        let api = self.around::<ConfigMap>(key.gang);
        let (configs, _) = self.cluster.list(&api, &carried).await?;
        for config in &configs {
            self.let_go(config, owners).await?;
        }
        Ok(())
    }

    /// Removes a ConfigMap that has no other owner than these, or their names from it.
    async fn let_go(&self, config: &ConfigMap, owners: &[ConfigMap]) -> Result<(), Trouble> {
        let ours = |uid: &str| {
            owners
                .iter()
                .any(|o| o.metadata.uid.as_deref() == Some(uid))
        };
        let mut left = config.clone();
        let references = left.metadata.owner_references.get_or_insert_default();
        let before = references.len();
        references.retain(|reference| !ours(&reference.uid));
        let (others, named) = (references.len(), references.len() < before);
        let namespace = config.metadata.namespace.as_deref().unwrap_or_default();
        let api: Api<ConfigMap> = self.cluster.within(namespace);
        match (others, named) {
            (0, true) => self.cluster.delete(&api, config, None).await,
            (_, true) => match self.cluster.replace(&api, &left).await {
                Ok(_) | Err(Trouble::NotFound) => Ok(()),
                Err(trouble) => Err(trouble),
            },
            (_, false) => Ok(()),
        }
    }

    /// The pods of a gang, whoever made them.
    pub(super) async fn pods_of(&self, key: GangKey) -> Result<Vec<Pod>, Trouble> {
        let (made, bound) = (names::of_key(key), names::bound_for_key(key));
        let selectors = match self.home(key.gang).map(|home| home.whose) {
            Some(Whose::Ours) => vec![made],
            Some(Whose::Theirs) => vec![bound],
            None => vec![made, bound],
        };
        let mut all = Vec::new();
        for selector in selectors {
            let selected = ListParams::default().labels(&selector);
            let (pods, _) = self.cluster.list(&self.around(key.gang), &selected).await?;
            all.extend(pods);
        }
        Ok(all)
    }

    /// The owner object of a gang under this epoch: by its name when its namespace is known, which
    /// no listing can leave out.
    pub(super) async fn owners_of(&self, key: GangKey) -> Result<Vec<ConfigMap>, Trouble> {
        if let Some(home) = self.home(key.gang) {
            let owner = self.read_owner(&home.namespace, key.gang).await?;
            let of_key = |owner: &ConfigMap| {
                let labels = owner.metadata.labels.as_ref();
                labels.and_then(names::key) == Some(key)
            };
            return Ok(owner.filter(of_key).into_iter().collect());
        }
        let part = Part::Owner.label();
        let owner = format!("{},{}={part}", names::of_key(key), names::PART);
        let owner = ListParams::default().labels(&owner);
        let (owners, _) = self.cluster.list(&self.around(key.gang), &owner).await?;
        Ok(owners)
    }
}
