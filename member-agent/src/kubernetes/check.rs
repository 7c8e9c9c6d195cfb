//! What must hold before anything of a gang is made: checked against the cluster as it is, so that
//! a gang that cannot start leaves nothing behind.
//!
//! Owns the room check, the dependencies, the namespace and the rehearsal of the pods. Never makes
//! anything but a namespace and a priority class, which no gang owns.

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt as _;
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, Node, NodeStatus, PersistentVolumeClaim, Pod, Secret, ServiceAccount,
};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{
    Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams, ValidationDirective,
};
use meridian_api::units::Resources;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::KubernetesBackend;
use super::client::{Trouble, found};
use super::inventory::Inventory;
use super::manifest::{self, Devices, Manifests};
use super::names;
use super::prepared::Fact;
use crate::backend::{
    BackendError, Dependency, DependencyKind, GangOrder, NodeHealth, NodeSeen, RoleOrder,
};

/// Up to this many hosts are read one by one; for more, one listing of everything is cheaper.
const HOSTS_ONE_BY_ONE: usize = 64;
/// Kubernetes 1.33 is the first in which a container has a field for its stop signal.
const FIRST_WITH_STOP_SIGNAL: u32 = 33;
/// The UID of an owner object that is only rehearsed.
const NO_UID: &str = "00000000-0000-0000-0000-000000000000";

/// The hosts of an order as the cluster has them at this moment.
pub(super) struct Site {
    inventory: Inventory,
    /// What each of them offers of extended resources.
    hosts: BTreeMap<String, BTreeMap<String, u64>>,
}

impl KubernetesBackend {
    /// Reads the hosts of an order with everything on them but the gang's own pods.
    pub(super) async fn survey(&self, order: &GangOrder) -> Result<Site, BackendError> {
        let members = order.members.iter();
        let hosts: BTreeSet<&str> = members.map(|m| Inventory::host_of(&m.node)).collect();
        let (nodes, pods) = if hosts.len() > HOSTS_ONE_BY_ONE {
            self.survey_all().await?
        } else {
            self.survey_each(&hosts).await?
        };
        let own = |pod: &Pod| {
            let labels = pod.metadata.labels.as_ref();
            labels
                .and_then(names::member_key)
                .is_some_and(|key| key.gang == order.key.gang)
        };
        let options = &self.options;
        let mut inventory = Inventory::new(options.flavors.clone(), options.inventory.clone());
        inventory.load(&nodes, pods.iter().map(|pod| (pod, own(pod))));
        let hosts = nodes.into_iter();
        let hosts = hosts.filter_map(|node| Some((node.metadata.name?, offers(node.status))));
        Ok(Site {
            inventory,
            hosts: hosts.collect(),
        })
    }

    async fn survey_all(&self) -> Result<(Vec<Node>, Vec<Pod>), Trouble> {
        let (cluster, all) = (&self.cluster, ListParams::default());
        let (nodes, _) = cluster.list(&cluster.global::<Node>(), &all).await?;
        let (pods, _) = cluster.list(&cluster.everywhere::<Pod>(), &all).await?;
        Ok((nodes, pods))
    }

    async fn survey_each(&self, hosts: &BTreeSet<&str>) -> Result<(Vec<Node>, Vec<Pod>), Trouble> {
        let cluster = &self.cluster;
        let nodes: Api<Node> = cluster.global();
        let pods: Api<Pod> = cluster.everywhere();
        let read = |host: String| {
            let (nodes, pods) = (nodes.clone(), pods.clone());
            let read = async move {
                let on_it = ListParams::default().fields(&format!("spec.nodeName={host}"));
                let node = found(cluster.call(nodes.get(&host)).await)?;
                let (pods, _) = cluster.list(&pods, &on_it).await?;
                Ok((node, pods))
            };
            read.boxed()
        };
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        let read = cluster.each(hosts, read).await?;
        let (nodes, pods): (Vec<_>, Vec<_>) = read.into_iter().unzip();
        Ok((
            nodes.into_iter().flatten().collect(),
            pods.into_iter().flatten().collect(),
        ))
    }

    /// Everything that can be known to stand in the way, before anything is held.
    pub(super) async fn prepare(
        &self,
        order: &GangOrder,
        manifests: &Manifests<'_>,
        devices: &Devices,
    ) -> Result<(), BackendError> {
        let namespace = &order.terms.namespace;
        let fact = Fact::Namespace(namespace.clone());
        self.unless_known(fact, self.namespace(namespace)).await?;
        let missing = self.missing(order).await?;
        if !missing.is_empty() {
            return Err(BackendError::Missing(missing));
        }
        if let Some(class) = manifests.priority_class() {
            let api: Api<PriorityClass> = self.cluster.global();
            let fact = Fact::PriorityClass(class.metadata.name.clone().unwrap_or_default());
            let made = async { Ok(self.cluster.ensure(&api, &class).await?) };
            self.unless_known(fact, made).await?;
        }
        let fact = Fact::Rehearsed(pods_like_these(order, devices));
        self.unless_known(fact, self.rehearse(order, manifests))
            .await
    }

    /// Does what makes sure of a fact, unless that was done a short time ago.
    async fn unless_known(
        &self,
        fact: Fact,
        work: impl Future<Output = Result<(), BackendError>>,
    ) -> Result<(), BackendError> {
        let now = self.cluster.clock().boot();
        if self.prepared.has(&fact, now) {
            return Ok(());
        }
        work.await?;
        self.prepared.note(fact, now);
        Ok(())
    }

    /// The order's stop signal, where it is another than the usual one and pods have a field for
    /// it: an older API server would refuse them for it.
    pub(super) async fn stop_signal<'o>(
        &self,
        order: &'o GangOrder,
    ) -> Result<Option<&'o str>, Trouble> {
        let signal = order.workload.stop_signal.as_str();
        if signal.is_empty() || signal == "SIGTERM" {
            return Ok(None);
        }
        let version = self.cluster.client();
        let version = self.cluster.call(version.apiserver_version()).await?;
        let minor = version
            .minor
            .trim_end_matches(|c: char| !c.is_ascii_digit());
        let has_field = minor
            .parse()
            .is_ok_and(|minor: u32| minor >= FIRST_WITH_STOP_SIGNAL);
        Ok(has_field.then_some(signal))
    }

    async fn namespace(&self, name: &str) -> Result<(), BackendError> {
        let api: Api<Namespace> = self.cluster.global();
        if found(self.cluster.call(api.get_metadata(name)).await)?.is_some() {
            return Ok(());
        }
        if !self.options.create_namespaces {
            return Err(BackendError::Invalid(format!(
                "there is no namespace {name:?} and this agent makes none \
                 (kubernetes.createNamespaces): create it in the member cluster"
            )));
        }
        let labels = manifest::namespace_labels().into_iter();
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let namespace = Namespace {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                labels: Some(labels.collect()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        tracing::info!(namespace = name, "making the namespace of a job");
        Ok(self.cluster.ensure(&api, &namespace).await?)
    }

    /// What the order names and the cluster lacks. Only metadata is read, never a Secret.
    async fn missing(&self, order: &GangOrder) -> Result<Vec<Dependency>, Trouble> {
        let namespace = order.terms.namespace.as_str();
        let mut needed = order.workload.dependencies.clone();
        needed.retain(|dependency| {
            let carried = order.workload.carried.iter();
            let mut same = carried.filter(|carried| carried.name == dependency.name);
            dependency.kind != DependencyKind::ConfigMap || same.next().is_none()
        });
        let look = |dependency: Dependency| {
            let look = async move {
                let name = dependency.name.as_str();
                let there = match dependency.kind {
                    DependencyKind::ConfigMap => self.has::<ConfigMap>(namespace, name).await,
                    DependencyKind::Secret => self.has::<Secret>(namespace, name).await,
                    DependencyKind::ServiceAccount => {
                        self.has::<ServiceAccount>(namespace, name).await
                    }
                    DependencyKind::PersistentVolumeClaim => {
                        self.has::<PersistentVolumeClaim>(namespace, name).await
                    }
                    // A node's to have, see `check_resources`.
                    DependencyKind::Resource => Ok(true),
                };
                Ok((!there?).then_some(dependency))
            };
            look.boxed()
        };
        let missing = self.cluster.each(needed, look).await?;
        Ok(missing.into_iter().flatten().collect())
    }

    async fn has<K>(&self, namespace: &str, name: &str) -> Result<bool, Trouble>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
        K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
    {
        let api: Api<K> = self.cluster.within(namespace);
        Ok(found(self.cluster.call(api.get_metadata(name)).await)?.is_some())
    }

    /// Shows the first pod of each role to the API server without making it: what it or a webhook
    /// refuses, and a field that it does not know, is refused before anything is there.
    async fn rehearse(
        &self,
        order: &GangOrder,
        manifests: &Manifests<'_>,
    ) -> Result<(), BackendError> {
        let mut owner = manifests.owner();
        owner.metadata.uid = Some(NO_UID.to_owned());
        let world = manifests.world();
        let first = |role| world.iter().position(|member| member.role == role);
        let firsts = (0..order.roles.len()).filter_map(first);
        let pods = firsts.map(|at| manifests.pod(at, &owner)).collect();
        let api = self.raw_pods(&order.terms.namespace);
        let params = PatchParams {
            dry_run: true,
            force: true,
            field_manager: Some(names::MANAGER.to_owned()),
            field_validation: Some(ValidationDirective::Strict),
        };
        let show = |pod: manifest::PodManifest| {
            let (api, params) = (api.clone(), params.clone());
            let show = async move {
                let body = Patch::Apply(&pod.body);
                let shown = api.patch(&pod.name, &params, &body);
                self.cluster.call(shown).await.map(drop)
            };
            show.boxed()
        };
        self.cluster.each(pods, show).await?;
        Ok(())
    }

    /// Pods as plain JSON: a field of a template that is younger than this build is passed on.
    pub(super) fn raw_pods(&self, namespace: &str) -> Api<DynamicObject> {
        let kind = ApiResource::erase::<Pod>(&());
        Api::namespaced_with(self.cluster.client(), namespace, &kind)
    }
}

impl Site {
    /// The device words of the pool that the order goes to.
    pub(super) fn devices(&self, order: &GangOrder) -> Devices {
        let (pools, _) = self.inventory.snapshot();
        let pool = pools.iter().find(|pool| pool.name == order.terms.pool);
        let flavor = match (order.workload.flavor.as_str(), pool) {
            ("", Some(pool)) => pool.flavor.as_str(),
            (named, _) => named,
        };
        Devices {
            resource: self.inventory.resource_of(flavor).map(str::to_owned),
            tolerations: self.inventory.tolerations_of(flavor),
        }
    }

    /// Whether each node offers the extended resources that the templates ask for by name. A
    /// kubelet admits a pod that asks for one it never heard of, and runs it without.
    pub(super) fn check_resources(&self, order: &GangOrder) -> Result<(), BackendError> {
        let asked: Vec<_> = order.roles.iter().map(|r| extended(&r.template)).collect();
        let mut missing = BTreeSet::new();
        for member in &order.members {
            let host = Inventory::host_of(&member.node);
            let (Some(offers), Some(asked)) = (self.hosts.get(host), asked.get(member.role)) else {
                continue;
            };
            for (resource, amount) in asked {
                let has = offers.get(*resource).copied().unwrap_or(0);
                if has < *amount {
                    missing.insert(format!("{resource}: {amount} (node {host} has {has})"));
                }
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let dependency = |name| Dependency {
            kind: DependencyKind::Resource,
            name,
        };
        Err(BackendError::Missing(
            missing.into_iter().map(dependency).collect(),
        ))
    }

    /// Whether each node still has the room that the order counts on. `skip` leaves out members
    /// that are there already.
    pub(super) fn check_room(
        &self,
        order: &GangOrder,
        skip: impl Fn(&crate::backend::MemberOrder) -> bool,
    ) -> Result<(), BackendError> {
        let (_, nodes) = self.inventory.snapshot();
        let nodes: BTreeMap<&str, &NodeSeen> = nodes
            .iter()
            .map(|node| (node.name.as_str(), node))
            .collect();
        let mut asked: BTreeMap<&str, Resources> = BTreeMap::new();
        for member in order.members.iter().filter(|member| !skip(member)) {
            let role = order.roles.get(member.role);
            let request = role.map_or_else(Resources::default, |role| role.request);
            let sum = asked.entry(&member.node).or_default();
            *sum = crate::view::plus(*sum, request);
        }
        for (name, sum) in asked {
            let host = Inventory::host_of(name);
            if !self.hosts.contains_key(host) {
                return Err(BackendError::Invalid(format!("there is no node {host:?}")));
            }
            let Some(node) = nodes.get(name) else {
                return Err(BackendError::NoRoom(format!("node {name} offers nothing")));
            };
            if node.health != NodeHealth::Ready {
                let words = format!("node {name} is {:?}", node.health);
                return Err(BackendError::NoRoom(words));
            }
            let free = crate::view::minus(node.allocatable, node.foreign);
            if sum.gpus > free.gpus || sum.cpu > free.cpu || sum.memory > free.memory {
                return Err(BackendError::NoRoom(format!(
                    "node {name} has {} GPUs, {} CPU, {} memory free, the gang asks for {}, {}, {}",
                    free.gpus, free.cpu, free.memory, sum.gpus, sum.cpu, sum.memory
                )));
            }
        }
        Ok(())
    }
}

/// A hash of all that an API server and its webhooks may judge the pods of an order by: what is
/// left out (names, ranks, nodes) has a form of ours and differs in each gang.
fn pods_like_these(order: &GangOrder, devices: &Devices) -> [u8; 32] {
    let (workload, terms) = (&order.workload, &order.terms);
    let role = |role: &RoleOrder| json!([role.name, role.request, role.template]);
    let roles: Vec<_> = order.roles.iter().map(role).collect();
    let pods = json!([
        terms.namespace,
        roles,
        order.labels,
        [workload.tenant, workload.class],
        workload.priority,
        devices.resource,
        devices.tolerations,
    ]);
    Sha256::digest(pods.to_string()).into()
}

/// True for the name of a resource that Kubernetes itself knows nothing of.
fn is_extended(resource: &str) -> bool {
    resource
        .split_once('/')
        .is_some_and(|(domain, _)| domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io"))
}

/// Extended resources that a node has to give, in whole units.
fn offers(status: Option<NodeStatus>) -> BTreeMap<String, u64> {
    let all = status.and_then(|status| status.allocatable);
    let extended = all.into_iter().flatten();
    let extended = extended.filter(|(resource, _)| is_extended(resource));
    let whole = |(resource, amount): (String, Quantity)| (resource, amount.0.parse().unwrap_or(0));
    extended.map(whole).collect()
}

/// Extended resources that one pod of a template asks for by name. What is no whole number is the
/// API server's to refuse.
fn extended(template: &Value) -> BTreeMap<&str, u64> {
    let containers = template
        .pointer("/spec/containers")
        .and_then(Value::as_array);
    let mut sums = BTreeMap::new();
    for container in containers.into_iter().flatten() {
        let asked = container
            .pointer("/resources/limits")
            .and_then(Value::as_object);
        for (resource, amount) in asked.into_iter().flatten().filter(|(r, _)| is_extended(r)) {
            let text = amount.as_str().and_then(|text| text.parse().ok());
            let amount: u64 = amount.as_u64().or(text).unwrap_or(1);
            let sum: &mut u64 = sums.entry(resource.as_str()).or_default();
            *sum = sum.saturating_add(amount);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_kubernetes_does_not_know_is_looked_for_on_nodes() {
        let container = |limits: Value| json!({"name": "c", "resources": {"limits": limits}});
        let template = json!({"spec": {"containers": [
            container(json!({"cpu": 1, "rdma/hca": 1, "hugepages-2Mi": "4Mi"})),
            container(json!({"rdma/hca": "2", "requests.kubernetes.io/x": 1})),
        ]}});
        assert_eq!(extended(&template), BTreeMap::from([("rdma/hca", 3)]));
        let status = json!({"allocatable": {"rdma/hca": "2", "cpu": "8", "x/y": "?"}});
        let status = serde_json::from_value(status).expect("a status");
        let offered = [("rdma/hca".to_owned(), 2), ("x/y".to_owned(), 0)];
        assert_eq!(offers(Some(status)), BTreeMap::from(offered));
    }
}
