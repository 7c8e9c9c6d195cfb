//! From one gang's order to the objects of a member cluster.
//!
//! Owns what the agent writes: the owner object, the headless Service, carried ConfigMaps and the
//! pods. Pure: the same order gives the same objects. Never asks the cluster.
//!
//! ```text
//!   owner (ConfigMap) ─┬─ Service     names for the pods: MERIDIAN_MASTER_ADDR
//!     └ gate (a key)   ├─ ConfigMaps  that the job brought along
//!                      └─ pods        each mounts the gate, so no container starts without it
//! ```

use std::collections::BTreeMap;

use indexmap::IndexMap;
use k8s_openapi::api::core::v1::{ConfigMap, Service, ServiceSpec, Toleration};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use meridian_api::units::{MilliGpus, Millis, Resources};
use serde_json::{Map, Value, json};

use super::answers::{self, AnswersOptions};
use super::environment::{self, Call, Seat};
use super::names::{self, Part};
use super::record::{Member, Record, Slip};
use crate::backend::{Carried, GangOrder, GangTerms};

/// The device words of a pool's flavor.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Devices {
    /// Extended resource of its cards; `None` when no vendor of the table has the flavor.
    pub(super) resource: Option<String>,
    /// What its pods must tolerate.
    pub(super) tolerations: Vec<Toleration>,
}

/// What one order becomes.
pub(super) struct Manifests<'a> {
    order: &'a GangOrder,
    devices: &'a Devices,
    /// Where its pods may call the agent.
    answers: Option<&'a AnswersOptions>,
    /// The signal that asks user code to save and go, where it is another than the usual one.
    stop_signal: Option<&'a str>,
    /// Members in the order of their global ranks.
    world: Vec<Member>,
}

/// One pod to be made.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PodManifest {
    /// Its name.
    pub(super) name: String,
    /// The node it goes to, in the words of the inventory.
    pub(super) node: String,
    /// The object.
    pub(super) body: Value,
}

impl<'a> Manifests<'a> {
    /// Checks the order and sets about it. The error is for the job's author.
    pub(super) fn new(order: &'a GangOrder, devices: &'a Devices) -> Result<Self, String> {
        for member in &order.members {
            if order.roles.get(member.role).is_none() {
                return Err(format!("there is no role {}", member.role));
            }
        }
        for role in &order.roles {
            device_count(role.request.gpus, devices)
                .map_err(|why| format!("role {:?}: {why}", role.name))?;
            if role.template.pointer("/spec/resourceClaims").is_some() {
                return Err(format!(
                    "role {:?} has resourceClaims, which nobody allocates for pods that this agent \
                     binds: ask for gpus",
                    role.name
                ));
            }
            let containers = role.template.pointer("/spec/containers");
            let containers = containers.and_then(Value::as_array);
            if containers.is_none_or(Vec::is_empty) {
                return Err(format!("role {:?} has no container", role.name));
            }
        }
        Ok(Self {
            order,
            devices,
            answers: None,
            stop_signal: None,
            world: Record::of(order).members(),
        })
    }

    /// Of pods that others made: the owner object is all that is written of it.
    pub(super) fn of_theirs(order: &'a GangOrder, devices: &'a Devices) -> Self {
        Self {
            order,
            devices,
            answers: None,
            stop_signal: None,
            world: Record::of(order).members(),
        }
    }

    /// With pods that may call the agent, and are told to go by a signal of their own.
    pub(super) fn with(
        self,
        answers: Option<&'a AnswersOptions>,
        stop_signal: Option<&'a str>,
    ) -> Self {
        Self {
            answers,
            stop_signal,
            ..self
        }
    }

    /// Members in the order of their global ranks.
    pub(super) fn world(&self) -> &[Member] {
        &self.world
    }

    /// The owner object; it does not yet have a UID.
    pub(super) fn owner(&self) -> ConfigMap {
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(names::owner(self.order.key.gang)),
                namespace: Some(self.order.terms.namespace.clone()),
                labels: Some(self.labels(Part::Owner)),
                ..ObjectMeta::default()
            },
            data: Some(Record::of(self.order).data()),
            ..ConfigMap::default()
        }
    }

    /// Names for the pods, before they are ready: rank 0 is looked for while all start.
    pub(super) fn service(&self, owner: &ConfigMap) -> Service {
        let selector = [
            (names::GANG, names::gang_label(self.order.key.gang)),
            (names::EPOCH, self.order.key.epoch.0.to_string()),
        ];
        let selector = selector.map(|(name, value)| (name.to_owned(), value));
        let name = names::service(&self.order.terms.job, self.order.key);
        Service {
            metadata: self.metadata(name, Part::Service, owner),
            spec: Some(ServiceSpec {
                cluster_ip: Some("None".to_owned()),
                publish_not_ready_addresses: Some(true),
                selector: Some(selector.into()),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        }
    }

    /// A ConfigMap that the job brought along.
    pub(super) fn carried(&self, carried: &Carried, owner: &ConfigMap) -> ConfigMap {
        ConfigMap {
            metadata: self.metadata(carried.name.clone(), Part::Carried, owner),
            data: Some(carried.data.clone().into_iter().collect()),
            ..ConfigMap::default()
        }
    }

    /// The priority class of the job's workload class; `None` when it has none. Pods of gangs
    /// never preempt by themselves: who gives way is the hub's decision.
    pub(super) fn priority_class(&self) -> Option<PriorityClass> {
        let workload = &self.order.workload;
        (!workload.class.is_empty()).then(|| PriorityClass {
            metadata: ObjectMeta {
                name: Some(names::priority_class(&workload.class, workload.priority)),
                labels: Some(own(names::MANAGED_BY, names::MANAGER)),
                ..ObjectMeta::default()
            },
            value: workload.priority,
            preemption_policy: Some("Never".to_owned()),
            description: Some(format!("Workload class {} of Meridian", workload.class)),
            ..PriorityClass::default()
        })
    }

    /// The pod of the member with global rank `at`.
    pub(super) fn pod(&self, at: usize, owner: &ConfigMap) -> PodManifest {
        let (member, order) = (&self.world[at], self.order);
        let role = &order.roles[member.role];
        let name = names::pod(
            &order.terms.job,
            order.key,
            &role.name,
            member.rank,
            order.attempt,
        );
        let mut pod = Value::clone(&role.template);
        let mut metadata = self.pod_metadata(&name, member, &pod, owner);
        let call = self.answers.map(|answers| Call {
            url: answers.url_of(&order.terms.namespace, &name),
            token: answers.token(),
        });
        if let Some(call) = &call {
            metadata["annotations"][names::ANSWER_TOKEN] = json!(answers::hash(&call.token));
        }
        let seat = Seat {
            order,
            world: &self.world,
            at,
            call,
        };
        let owner_uid = owner.metadata.uid.as_deref().unwrap_or_default();
        let spec = object(&mut pod, "spec");
        self.place(spec, member);
        environment::furnish(spec, &seat, &names::gate(owner_uid));
        if let Some(signal) = self.stop_signal {
            environment::signal(spec, signal);
        }
        give_devices(spec, role.request, self.devices);
        pod["apiVersion"] = json!("v1");
        pod["kind"] = json!("Pod");
        pod["metadata"] = metadata;
        PodManifest {
            name,
            node: member.node.clone(),
            body: pod,
        }
    }

    fn pod_metadata(
        &self,
        name: &str,
        member: &Member,
        template: &Value,
        owner: &ConfigMap,
    ) -> Value {
        let role = &self.order.roles[member.role];
        let slip = Slip {
            role: role.name.clone(),
            order: member.role,
            rank: member.rank,
            node: member.node.clone(),
            request: role.request,
            attempt: self.order.attempt,
            terms: self.order.terms.clone(),
        };
        let mut labels = texts(template.pointer("/metadata/labels"));
        labels.extend(self.labels(Part::Member));
        labels.insert(names::ROLE.to_owned(), names::label_value(&role.name));
        labels.insert(names::RANK.to_owned(), member.rank.to_string());
        let mut annotations = texts(template.pointer("/metadata/annotations"));
        let slip = serde_json::to_string(&slip).expect("plain data without maps");
        annotations.insert(names::SLIP.to_owned(), slip);
        let world = self.world.len().to_string();
        annotations.insert(names::WORLD_SIZE.to_owned(), world);
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.order.terms.namespace.clone()),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![reference(owner)]),
            ..ObjectMeta::default()
        };
        serde_json::to_value(metadata).expect("plain data")
    }

    /// What says where the pod goes and how it ends. What a template says of that is not its to
    /// say.
    fn place(&self, spec: &mut Map<String, Value>, member: &Member) {
        let (order, role) = (self.order, &self.order.roles[member.role]);
        for theirs in [
            "nodeName",
            "schedulingGates",
            "priority",
            "preemptionPolicy",
        ] {
            spec.remove(theirs);
        }
        let service = names::service(&order.terms.job, order.key);
        spec.insert("schedulerName".to_owned(), json!(names::SCHEDULER));
        spec.insert(
            "hostname".to_owned(),
            json!(names::host(&role.name, member.rank)),
        );
        spec.insert("subdomain".to_owned(), json!(service));
        spec.insert(
            "terminationGracePeriodSeconds".to_owned(),
            json!(grace_seconds(order.terms.grace)),
        );
        spec.entry("restartPolicy")
            .or_insert_with(|| json!("Never"));
        let workload = &order.workload;
        if !workload.class.is_empty() {
            let class = names::priority_class(&workload.class, workload.priority);
            spec.insert("priorityClassName".to_owned(), json!(class));
        }
        if !self.devices.tolerations.is_empty() {
            let ours = serde_json::to_value(&self.devices.tolerations).expect("plain data");
            let theirs = array(spec, "tolerations");
            theirs.extend(ours.as_array().into_iter().flatten().cloned());
        }
    }

    fn metadata(&self, name: String, part: Part, owner: &ConfigMap) -> ObjectMeta {
        ObjectMeta {
            name: Some(name),
            namespace: Some(self.order.terms.namespace.clone()),
            labels: Some(self.labels(part)),
            owner_references: Some(vec![reference(owner)]),
            ..ObjectMeta::default()
        }
    }

    /// The labels of every object of the gang; those of the order come first, so that none of
    /// them can stand in for one that the agent reads.
    fn labels(&self, part: Part) -> BTreeMap<String, String> {
        let order = self.order;
        let mut labels: BTreeMap<String, String> = match part {
            Part::Member => order.labels.clone().into_iter().collect(),
            Part::Owner | Part::Carried | Part::Service => BTreeMap::new(),
        };
        labels.extend(key_labels(&order.terms, part, order.key));
        let workload = &order.workload;
        for (name, value) in [
            (names::TENANT, &workload.tenant),
            (names::CLASS, &workload.class),
        ] {
            if !value.is_empty() {
                labels.insert(name.to_owned(), names::label_value(value));
            }
        }
        labels
    }
}

/// Whole seconds of a grace period; never zero, which would remove a pod without its kubelet's
/// word that it ended.
pub(super) fn grace_seconds(grace: Millis) -> u32 {
    u32::try_from(grace.0.div_ceil(1000).max(1)).unwrap_or(u32::MAX)
}

/// A reference to the owner object: what carries it goes when the owner goes.
pub(super) fn reference(owner: &ConfigMap) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        name: owner.metadata.name.clone().unwrap_or_default(),
        uid: owner.metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    }
}

fn key_labels(
    terms: &GangTerms,
    part: Part,
    key: crate::backend::GangKey,
) -> BTreeMap<String, String> {
    let labels = [
        (names::MANAGED_BY, names::MANAGER.to_owned()),
        (names::PART, part.label().to_owned()),
        (names::GANG, names::gang_label(key.gang)),
        (names::EPOCH, key.epoch.0.to_string()),
        (names::JOB, names::label_value(&terms.job)),
        (names::POOL, names::label_value(&terms.pool)),
    ];
    labels.map(|(name, value)| (name.to_owned(), value)).into()
}

fn own(name: &str, value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(name.to_owned(), value.to_owned())])
}

fn texts(map: Option<&Value>) -> BTreeMap<String, String> {
    let pairs = map.and_then(Value::as_object).into_iter().flatten();
    let text = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
    pairs.filter_map(text).collect()
}

/// Whole cards of a request.
fn device_count(gpus: MilliGpus, devices: &Devices) -> Result<u64, String> {
    if gpus.0 == 0 {
        return Ok(0);
    }
    if !gpus.0.is_multiple_of(MilliGpus::PER_CARD) {
        return Err(format!("{gpus} GPUs are no whole cards"));
    }
    match devices.resource {
        Some(_) => Ok(gpus.0 / MilliGpus::PER_CARD),
        None => Err("no resource name is known for GPUs of this flavor".to_owned()),
    }
}

/// Writes what the role asks for: GPUs as the vendor's resource, request and limit, unless a
/// container names that resource itself; CPU and memory where no container asks for any.
fn give_devices(spec: &mut Map<String, Value>, request: Resources, devices: &Devices) {
    let cards = device_count(request.gpus, devices).unwrap_or(0);
    let containers = array(spec, "containers");
    if let Some(resource) = devices.resource.as_deref().filter(|_| cards > 0) {
        give(
            containers,
            &["limits", "requests"],
            resource,
            &cards.to_string(),
        );
    }
    if request.cpu.0 > 0 {
        give(containers, &["requests"], "cpu", &request.cpu.to_string());
    }
    if request.memory.0 > 0 {
        give(
            containers,
            &["requests"],
            "memory",
            &request.memory.to_string(),
        );
    }
}

/// Gives the first container an amount, unless one of them has a say of its own.
fn give(containers: &mut [Value], sides: &[&str], resource: &str, amount: &str) {
    let says = |container: &Value| {
        let of = |side: &&str| container.get("resources")?.get(side)?.get(resource);
        sides.iter().any(|side| of(side).is_some())
    };
    if containers.iter().any(says) {
        return;
    }
    if let Some(first) = containers.first_mut() {
        let resources = object(first, "resources");
        for side in sides {
            let side = resources.entry(*side).or_insert_with(|| json!({}));
            if let Some(side) = side.as_object_mut() {
                side.insert(resource.to_owned(), json!(amount));
            }
        }
    }
}

/// The object under `name`, made when it is not there.
pub(super) fn object<'v>(value: &'v mut Value, name: &str) -> &'v mut Map<String, Value> {
    if !value.get(name).is_some_and(Value::is_object) {
        value[name] = json!({});
    }
    value[name].as_object_mut().expect("made above")
}

/// The list under `name`, made when it is not there.
pub(super) fn array<'v>(map: &'v mut Map<String, Value>, name: &str) -> &'v mut Vec<Value> {
    if !map.get(name).is_some_and(Value::is_array) {
        map.insert(name.to_owned(), json!([]));
    }
    map[name].as_array_mut().expect("made above")
}

/// Labels of a namespace that the agent makes.
pub(super) fn namespace_labels() -> IndexMap<&'static str, &'static str> {
    IndexMap::from([(names::MANAGED_BY, names::MANAGER)])
}

#[cfg(test)]
#[path = "manifest_tests.rs"]
mod tests;
