//! A gang's bind: all members, or none that could ever start.
//!
//! Owns the order of its steps. Each is idempotent, so the same bind again finishes what one that
//! was cut short began. Pods are made unbound and then bound by the agent; no kube-scheduler looks
//! at them, since they carry the agent's scheduler name. Never opens the gate: that follows from
//! what the kubelets say (see `gate`).

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::{Binding, ConfigMap, ObjectReference, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ListParams};

use super::client::{Trouble, as_manager, found};
use super::inventory::Inventory;
use super::manifest::{self, Manifests, PodManifest};
use super::names;
use super::options::Step;
use super::record::{Record, Slip};
use super::{KubernetesBackend, Whose};
use crate::backend::{BackendError, Carried, GangKey, GangOrder};

/// A pod that is there, and may be bound already.
pub(super) struct Made {
    pub(super) name: String,
    pub(super) uid: String,
    /// It is bound only while it has this version; `None` = whatever it has.
    pub(super) version: Option<String>,
    /// The host that it goes to.
    pub(super) host: String,
    /// The host that it is bound to.
    pub(super) bound: Option<String>,
}

impl KubernetesBackend {
    pub(super) async fn bind_gang(&self, order: &GangOrder) -> Result<(), BackendError> {
        if let Some(origin) = &order.workload.origin {
            return self.bind_theirs(order, origin).await;
        }
        let done = self.try_to_bind(order).await;
        match &done {
            Ok(()) => self.has_settled(order.key.gang),
            Err(_) => self.prepared.forget(),
        }
        done
    }

    async fn try_to_bind(&self, order: &GangOrder) -> Result<(), BackendError> {
        let gang = order.key.gang;
        let is_known = self.home(gang).is_some();
        self.settle_in(gang, &order.terms.namespace, Whose::Ours);
        let held = self.holder(order, is_known).await?;
        if let Some(held) = &held
            && resumes(order, held)?.complete
        {
            return Ok(());
        }
        let site = self.survey(order).await?;
        let devices = site.devices(order);
        let manifests = invalid(Manifests::new(order, &devices))?;
        let signal = self.stop_signal(order).await?;
        let manifests = manifests.with(self.options.answers.as_ref(), signal);
        let owner = if let Some(owner) = held {
            owner
        } else {
            site.check_room(order, |_| false)?;
            site.check_resources(order)?;
            self.prepare(order, &manifests, &devices).await?;
            let owner = self.claim(order, &manifests).await?;
            // A life that this one knows nothing of may have made it, and more.
            if resumes(order, &owner)?.complete {
                return Ok(());
            }
            owner
        };
        // What was begun and cannot be done is the caller's to stop, when it has noted why: pods
        // that end before it has heard would look like somebody else's doing.
        self.make_and_bind(order, &manifests, &owner).await
    }

    async fn make_and_bind(
        &self,
        order: &GangOrder,
        manifests: &Manifests<'_>,
        owner: &ConfigMap,
    ) -> Result<(), BackendError> {
        self.furnish(order, manifests, owner).await?;
        let everyone = (0..manifests.world().len()).collect();
        let made = self.make_pods(order, manifests, owner, everyone).await?;
        // That it was done is written when the gate opens: one write says both.
        self.bind_pods(order, made).await
    }

    /// The owner object of the gang, if there is one. It is not asked for when this life has never
    /// met the gang and it has no pods: should it be there all the same, the claim finds it. Pods
    /// without an owner object, which somebody removed, are a conflict. Of a gang that this life
    /// has met they are asked of the quorum, since an older epoch of it may have been there.
    async fn holder(
        &self,
        order: &GangOrder,
        is_known: bool,
    ) -> Result<Option<ConfigMap>, BackendError> {
        let (gang, namespace) = (order.key.gang, order.terms.namespace.as_str());
        if is_known && let Some(owner) = self.read_owner(namespace, gang).await? {
            return Ok(Some(owner));
        }
        let api: Api<Pod> = self.cluster.within(namespace);
        let of_gang = ListParams::default().labels(&names::of_gang(gang));
        let pods = if is_known {
            self.cluster.list(&api, &of_gang).await?.0
        } else {
            self.cluster.pods_since_shown(&api, &of_gang).await?
        };
        let left = pods.iter().find_map(|pod| {
            let key = names::key(pod.metadata.labels.as_ref()?)?;
            Some((key, slip(pod).map_or(0, |slip| slip.attempt)))
        });
        let Some((held, attempt)) = left else {
            return Ok(None);
        };
        let owner = self.read_owner(namespace, gang).await?;
        let owner = owner.ok_or(BackendError::Conflict { held, attempt })?;
        Ok(Some(owner))
    }

    /// Makes the owner object. Who makes it has the gang.
    pub(super) async fn claim(
        &self,
        order: &GangOrder,
        manifests: &Manifests<'_>,
    ) -> Result<ConfigMap, BackendError> {
        let namespace = order.terms.namespace.as_str();
        let api: Api<ConfigMap> = self.cluster.within(namespace);
        let owner = match self.cluster.create(&api, &manifests.owner()).await {
            Ok(owner) => owner,
            Err(Trouble::Exists) => {
                let held = self.read_owner(namespace, order.key.gang).await?;
                let held = held.ok_or_else(|| BackendError::from(Trouble::NotFound))?;
                resumes(order, &held)?;
                held
            }
            Err(trouble) => return Err(trouble.into()),
        };
        self.options.hook.passed(Step::Claimed)?;
        Ok(owner)
    }

    async fn furnish(
        &self,
        order: &GangOrder,
        manifests: &Manifests<'_>,
        owner: &ConfigMap,
    ) -> Result<(), BackendError> {
        let api: Api<Service> = self.cluster.within(&order.terms.namespace);
        self.cluster.ensure(&api, &manifests.service(owner)).await?;
        for carried in &order.workload.carried {
            self.carry(order, manifests, carried, owner).await?;
        }
        self.options.hook.passed(Step::Furnished)?;
        Ok(())
    }

    /// Makes a ConfigMap that the job brought along, or shares the one that another gang of the
    /// same job brought.
    async fn carry(
        &self,
        order: &GangOrder,
        manifests: &Manifests<'_>,
        carried: &Carried,
        owner: &ConfigMap,
    ) -> Result<(), BackendError> {
        let api: Api<ConfigMap> = self.cluster.within(&order.terms.namespace);
        let wanted = manifests.carried(carried, owner);
        match self.cluster.create(&api, &wanted).await {
            Ok(_) => return Ok(()),
            Err(Trouble::Exists) => {}
            Err(trouble) => return Err(trouble.into()),
        }
        let held = self.cluster.call(api.get(&carried.name)).await;
        let mut held = held.map_err(BackendError::from)?;
        let labels = held.metadata.labels.as_ref();
        let same_job = labels
            .and_then(names::key)
            .is_some_and(|key| key.gang.job == order.key.gang.job);
        if !same_job || held.data != wanted.data {
            return Err(BackendError::Invalid(format!(
                "the job carries ConfigMap {:?}, and namespace {} has another one of that name",
                carried.name, order.terms.namespace
            )));
        }
        let owners = held.metadata.owner_references.get_or_insert_default();
        let reference = manifest::reference(owner);
        if owners.contains(&reference) {
            return Ok(());
        }
        owners.push(reference);
        self.cluster.replace(&api, &held).await?;
        Ok(())
    }

    /// Makes the pods with these global ranks. One that is there already is taken if it belongs to
    /// this owner object.
    pub(super) async fn make_pods(
        &self,
        order: &GangOrder,
        manifests: &Manifests<'_>,
        owner: &ConfigMap,
        ranks: Vec<usize>,
    ) -> Result<Vec<Made>, BackendError> {
        let api = self.raw_pods(&order.terms.namespace);
        let make = |at: usize| {
            let api = api.clone();
            let make = async move {
                let PodManifest { name, node, body } = manifests.pod(at, owner);
                let host = Inventory::host_of(&node).to_owned();
                let pod = serde_json::from_value(body)
                    .map_err(|error| Trouble::Refused(error.to_string()))?;
                let (uid, bound) = match self.cluster.call(api.create(&as_manager(), &pod)).await {
                    Ok(pod) => (pod.metadata.uid.unwrap_or_default(), None),
                    Err(Trouble::Exists) => self.taken(order, owner, &name).await?,
                    Err(trouble) => return Err(trouble),
                };
                self.options.hook.passed(Step::PodMade)?;
                Ok(Made {
                    name,
                    uid,
                    version: None,
                    host,
                    bound,
                })
            };
            make.boxed()
        };
        let made = self.cluster.each(ranks, make).await?;
        self.options.hook.passed(Step::PodsMade)?;
        Ok(made)
    }

    /// UID and host of a pod that was there already.
    async fn taken(
        &self,
        order: &GangOrder,
        owner: &ConfigMap,
        name: &str,
    ) -> Result<(String, Option<String>), Trouble> {
        let api: Api<Pod> = self.cluster.within(&order.terms.namespace);
        let pod = self.cluster.call(api.get(name)).await?;
        let owners = pod.metadata.owner_references.unwrap_or_default();
        if !owners.contains(&manifest::reference(owner)) {
            return Err(Trouble::Away(format!("pod {name} is another owner's")));
        }
        let bound = pod.spec.and_then(|spec| spec.node_name);
        Ok((pod.metadata.uid.unwrap_or_default(), bound))
    }

    /// Binds pods to their hosts. The binding names the pod's UID, so one that arrives late cannot
    /// bind another pod of that name.
    pub(super) async fn bind_pods(
        &self,
        order: &GangOrder,
        made: Vec<Made>,
    ) -> Result<(), BackendError> {
        let api: Api<Pod> = self.cluster.within(&order.terms.namespace);
        let bind = |pod: Made| {
            let api = api.clone();
            let bind = async move {
                if pod.bound.as_ref() == Some(&pod.host) {
                    return Ok(());
                }
                let (name, writer, binding) = (&pod.name, as_manager(), binding(&pod));
                let bound = api
                    .create_subresource::<_, serde_json::Value>("binding", name, &writer, &binding);
                match self.cluster.call(bound).await {
                    Ok(_) => {}
                    Err(Trouble::Changed | Trouble::Exists) => self.bound_to(&api, &pod).await?,
                    Err(Trouble::NotFound) => {
                        let words = format!("pod {} was removed while it was bound", pod.name);
                        return Err(Trouble::Away(words));
                    }
                    Err(trouble) => return Err(trouble),
                }
                self.options.hook.passed(Step::PodBound)
            };
            bind.boxed()
        };
        self.cluster.each(made, bind).await?;
        self.options.hook.passed(Step::PodsBound)?;
        Ok(())
    }

    /// A binding was refused because there is one: is it the same?
    async fn bound_to(&self, api: &Api<Pod>, pod: &Made) -> Result<(), Trouble> {
        let held = found(self.cluster.call(api.get(&pod.name)).await)?;
        let host = held.and_then(|held| held.spec?.node_name);
        if host.as_ref() == Some(&pod.host) {
            return Ok(());
        }
        Err(Trouble::Away(format!(
            "pod {} could not be bound to {}: it is on {host:?}",
            pod.name, pod.host
        )))
    }
}

fn binding(pod: &Made) -> Binding {
    Binding {
        metadata: ObjectMeta {
            name: Some(pod.name.clone()),
            uid: Some(pod.uid.clone()),
            resource_version: pod.version.clone(),
            ..ObjectMeta::default()
        },
        target: ObjectReference {
            kind: Some("Node".to_owned()),
            name: Some(pod.host.clone()),
            ..ObjectReference::default()
        },
    }
}

/// The record of an owner object that this very order made.
pub(super) fn resumes(order: &GangOrder, held: &ConfigMap) -> Result<Record, BackendError> {
    let conflict = |held: GangKey, attempt| Err(BackendError::Conflict { held, attempt });
    let Some(record) = Record::read(held) else {
        return conflict(order.key, order.attempt);
    };
    let same = record.key == order.key && record.attempt == order.attempt && !record.stopping;
    // Once it is done the same attempt changes nothing, whatever it says.
    if same && (record.complete || record.has_members_of(order)) {
        Ok(record)
    } else {
        conflict(record.key, record.attempt)
    }
}

/// What a pod says of itself.
pub(super) fn slip(pod: &Pod) -> Option<Slip> {
    let text = pod.metadata.annotations.as_ref()?.get(names::SLIP)?;
    serde_json::from_str(text).ok()
}

pub(super) fn invalid<T>(checked: Result<T, String>) -> Result<T, BackendError> {
    checked.map_err(BackendError::Invalid)
}
