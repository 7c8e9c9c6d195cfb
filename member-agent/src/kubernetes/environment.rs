//! What user code finds in its container: who it is, where its peers are, where it writes.
//!
//! Owns the environment variables and the volume of a gang's pods. Pure. Never asks the cluster.

use serde_json::{Map, Value, json};

use super::manifest::{array, object};
use super::names;
use super::record::Member;
use crate::backend::GangOrder;

/// One member's place in its gang.
pub(super) struct Seat<'a> {
    /// The gang.
    pub(super) order: &'a GangOrder,
    /// All members in the order of their global ranks.
    pub(super) world: &'a [Member],
    /// The global rank of this one.
    pub(super) at: usize,
    /// How it may call the agent.
    pub(super) call: Option<Call>,
}

/// How one pod calls the agent of its cluster.
pub(super) struct Call {
    /// Its own part of the agent's service.
    pub(super) url: String,
    /// By which it is believed.
    pub(super) token: String,
}

/// Adds environment and volume to every container of a pod.
///
/// The volume is why a gang starts whole: it draws on the gate, a key of the owner object that is
/// not there until every member is admitted, and a kubelet starts no container of a pod, init
/// containers included, before all its volumes are there. The kubelet tries again at doubling
/// distances from 0.5 s to about 2 min, so the gate costs at most as long again as the slowest
/// member took to be admitted.
pub(super) fn furnish(spec: &mut Map<String, Value>, seat: &Seat<'_>, gate: &str) {
    let variables = variables(seat);
    for kind in ["initContainers", "containers"] {
        if !spec.get(kind).is_some_and(Value::is_array) {
            continue;
        }
        for container in array(spec, kind) {
            if let Some(container) = container.as_object_mut() {
                set_environment(array(container, "env"), &variables);
                let mount = json!({
                    "name": names::VOLUME, "mountPath": names::MOUNT, "readOnly": true,
                });
                array(container, "volumeMounts").push(mount);
            }
        }
    }
    let field =
        |path: &str| json!({"path": path, "fieldRef": {"fieldPath": format!("metadata.{path}")}});
    let downward = json!({"items": [field("annotations"), field("labels")]});
    let gate = json!({
        "name": names::owner(seat.order.key.gang),
        "items": [{"key": gate, "path": names::PEERS}],
    });
    let sources = json!([{"downwardAPI": downward}, {"configMap": gate}]);
    let volume = json!({"name": names::VOLUME, "projected": {"sources": sources}});
    array(spec, "volumes").push(volume);
}

/// A variable, and whether the template may have another mind about it.
struct Variable {
    name: String,
    value: String,
    yields: bool,
}

fn set_environment(environment: &mut Vec<Value>, variables: &[Variable]) {
    for variable in variables {
        let named =
            |entry: &Value| entry.get("name").and_then(Value::as_str) == Some(&variable.name);
        if environment.iter().any(named) {
            if variable.yields {
                continue;
            }
            environment.retain(|entry| !named(entry));
        }
        environment.push(json!({"name": variable.name, "value": variable.value}));
    }
}

fn variables(seat: &Seat<'_>) -> Vec<Variable> {
    let (order, member) = (seat.order, &seat.world[seat.at]);
    let role = &order.roles[member.role].name;
    let leader = &seat.world[0];
    let first_host = names::host(&order.roles[leader.role].name, leader.rank);
    let service = names::service(&order.terms.job, order.key);
    let address = format!("{first_host}.{service}.{}.svc", order.terms.namespace);
    let (rank, size) = (seat.at.to_string(), seat.world.len().to_string());
    let port = names::MASTER_PORT.to_string();
    let peers = |same: &dyn Fn(&Member) -> bool| seat.world.iter().filter(|m| same(m)).count();
    let in_role = peers(&|other| other.role == member.role);
    let on_node = |other: &Member| other.node == member.node;
    let local = seat.world[..seat.at].iter().filter(|m| on_node(m)).count();
    let mut all = vec![
        ours("MERIDIAN_JOB", order.terms.job.clone()),
        ours("MERIDIAN_GANG", order.key.gang.index.to_string()),
        ours("MERIDIAN_EPOCH", order.key.epoch.0.to_string()),
        ours("MERIDIAN_ROLE", role.clone()),
        ours("MERIDIAN_ROLE_RANK", member.rank.to_string()),
        ours("MERIDIAN_ROLE_SIZE", in_role.to_string()),
        ours("MERIDIAN_RANK", rank.clone()),
        ours("MERIDIAN_WORLD_SIZE", size.clone()),
        ours("MERIDIAN_LOCAL_RANK", local.to_string()),
        ours("MERIDIAN_NODE", member.node.clone()),
        ours("MERIDIAN_MASTER_ADDR", address.clone()),
        ours("MERIDIAN_MASTER_PORT", port.clone()),
        // The names that torch's env:// looks for, and many others by its example.
        theirs("RANK", rank),
        theirs("WORLD_SIZE", size),
        theirs("MASTER_ADDR", address),
        theirs("MASTER_PORT", port),
    ];
    all.extend(checkpoint_variables(order));
    if let Some(call) = &seat.call {
        all.push(ours("MERIDIAN_AGENT_URL", call.url.clone()));
        all.push(ours("MERIDIAN_AGENT_TOKEN", call.token.clone()));
    }
    all
}

/// The signal that asks user code to save and go: for clusters that take it from the pod
/// (`ContainerStopSignals`, KEP-4960); others drop the field and send the signal of the image. A
/// template that names one itself keeps it.
pub(super) fn signal(spec: &mut Map<String, Value>, signal: &str) {
    for container in array(spec, "containers") {
        let lifecycle = object(container, "lifecycle");
        lifecycle
            .entry("stopSignal")
            .or_insert_with(|| json!(signal));
    }
    // A signal has its meaning only with an operating system.
    spec.entry("os").or_insert_with(|| json!({"name": "linux"}));
}

/// A gang writes under a folder of its epoch and goes on from what older epochs left beside it, so
/// a copy that was cut off cannot spoil what a newer one reads.
fn checkpoint_variables(order: &GangOrder) -> Vec<Variable> {
    let workload = &order.workload;
    if workload.checkpoint_uri.is_empty() {
        return Vec::new();
    }
    let uri = workload.checkpoint_uri.trim_end_matches('/');
    let gang = format!("{uri}/{}", order.key.gang.index);
    // With all its digits, so that names sort as epochs do.
    let path = format!("{gang}/{:020}", order.key.epoch.0);
    let mut all = vec![
        ours("MERIDIAN_CHECKPOINT_URI", gang.clone()),
        ours("MERIDIAN_CHECKPOINT_PATH", path),
    ];
    if !workload.resume_env.is_empty() {
        all.push(ours(&workload.resume_env, gang));
    }
    all
}

fn ours(name: &str, value: String) -> Variable {
    Variable {
        name: name.to_owned(),
        value,
        yields: false,
    }
}

fn theirs(name: &str, value: String) -> Variable {
    Variable {
        yields: true,
        ..ours(name, value)
    }
}
