//! Machines that pretend: they do to pods what kubelets do.
//!
//! Owns admission, the wait for a pod's volumes, the life of user code as annotations describe it,
//! SIGTERM and grace, and the truth of what ran. Never starts a pod whose volumes are not there,
//! and never ends one that was not asked to.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use kube::runtime::watcher::{self, Event};
use meridian_agent::kubernetes::names;
use meridian_agent::simulated::{EXIT_CODE, IGNORES_SIGTERM, RUNTIME};
use meridian_api::units::{Millis, UnixMillis};
use meridian_runtime::{Clock, Tasks};
use serde_json::{Value, json};

use crate::conformance::Run;

/// GPUs of a machine.
const GPUS: u32 = 8;
/// Runtimes in templates are written for simulated time; here one second of them takes 1/20.
const FASTER: u64 = 20;
/// Between two looks at what time alone changes.
const LOOK_EVERY: Millis = Millis(100);

/// Three machines.
pub struct Machines {
    client: kube::Client,
    clock: Clock,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    alive: BTreeSet<String>,
    /// Machines with devices that somebody else has.
    occupied: BTreeSet<String>,
    pods: BTreeMap<String, Pod>,
    /// Keys of each ConfigMap.
    configs: BTreeMap<String, BTreeSet<String>>,
    lives: BTreeMap<String, Life>,
    ran: BTreeMap<String, Run>,
    /// A node's user code does not answer when it is asked for a checkpoint.
    deaf: bool,
    /// No pod gets on beyond its admission.
    stuck: bool,
}

/// One pod on its machine.
#[derive(Clone, Debug, Default)]
struct Life {
    devices: Vec<u32>,
    node: String,
    refused: bool,
    started: Option<UnixMillis>,
    ended: bool,
    asked_to_end: Option<UnixMillis>,
    answered: bool,
}

/// What a machine does to a pod next.
enum Deed {
    Status(Value),
    Answer(Value),
    Remove,
}

impl Machines {
    pub fn new(client: kube::Client, clock: Clock, hosts: &[&str]) -> Self {
        let alive = hosts.iter().map(|host| (*host).to_owned()).collect();
        Self {
            client,
            clock,
            inside: Mutex::new(Inside {
                alive,
                ..Inside::default()
            }),
        }
    }

    /// Starts to watch and to do.
    pub fn start(self: &std::sync::Arc<Self>, tasks: &Tasks) {
        let this = self.clone();
        tasks.spawn("machines", async move { this.run().await });
    }

    /// A machine dies with everything on it.
    pub fn fail(&self, node: &str) {
        let now = self.clock.wall();
        let mut inside = self.lock();
        inside.alive.remove(node);
        let dead = inside.ran.values_mut();
        for run in dead.filter(|run| run.0 == node && run.3.is_none()) {
            run.3 = Some(now);
        }
    }

    /// A kubelet falls silent; what runs there goes on.
    pub fn silence(&self, node: &str) {
        self.lock().alive.remove(node);
    }

    /// Somebody else takes all devices of a machine.
    pub fn occupy(&self, node: &str) {
        self.lock().occupied.insert(node.to_owned());
    }

    /// Pods are admitted and get no further, or get on again.
    pub fn set_stuck(&self, stuck: bool) {
        self.lock().stuck = stuck;
    }

    /// What ran.
    pub fn ran(&self) -> Vec<Run> {
        self.lock().ran.values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(&self) -> Result<(), Infallible> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let configs: Api<ConfigMap> = Api::all(self.client.clone());
        let mut pods = watcher::watcher(pods, watcher::Config::default()).boxed();
        let mut configs = watcher::watcher(configs, watcher::Config::default()).boxed();
        loop {
            let heard = tokio::select! {
                Some(event) = pods.next() => self.take_pod(event),
                Some(event) = configs.next() => self.take_config(event),
                () = self.clock.sleep(LOOK_EVERY) => true,
            };
            if !heard {
                self.clock.sleep(LOOK_EVERY).await;
            }
            self.do_all().await;
        }
    }

    /// False when the server did not answer.
    fn take_pod(&self, event: Result<Event<Pod>, watcher::Error>) -> bool {
        let mut inside = self.lock();
        match event {
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => {
                inside.pods.insert(uid(&pod), pod);
            }
            Ok(Event::Delete(pod)) => {
                inside.pods.remove(&uid(&pod));
                inside.end(&uid(&pod), self.clock.wall());
            }
            Ok(Event::Init | Event::InitDone) => {}
            Err(_) => return false,
        }
        true
    }

    fn take_config(&self, event: Result<Event<ConfigMap>, watcher::Error>) -> bool {
        let name = |config: ConfigMap| config.metadata.name.unwrap_or_default();
        let mut inside = self.lock();
        match event {
            Ok(Event::Apply(config) | Event::InitApply(config)) => {
                let keys = config.data.iter().flat_map(BTreeMap::keys);
                let keys = keys.cloned().collect();
                inside.configs.insert(name(config), keys);
            }
            Ok(Event::Delete(config)) => {
                inside.configs.remove(&name(config));
            }
            Ok(Event::Init | Event::InitDone) => {}
            Err(_) => return false,
        }
        true
    }

    async fn do_all(&self) {
        let pods: Vec<Pod> = self.lock().pods.values().cloned().collect();
        for pod in pods {
            let deed = self.lock().next(&pod, self.clock.wall());
            if let Some(deed) = deed {
                self.perform(&pod, deed).await;
            }
        }
    }

    async fn perform(&self, pod: &Pod, deed: Deed) {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let params = PatchParams::default();
        let removed = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(Preconditions {
                uid: pod.metadata.uid.clone(),
                ..Preconditions::default()
            }),
            ..DeleteParams::default()
        };
        // A pod that went away meanwhile needs nothing more.
        match deed {
            Deed::Status(status) => {
                drop(
                    pods.patch_status(name, &params, &Patch::Merge(&status))
                        .await,
                );
            }
            Deed::Answer(answer) => {
                drop(pods.patch(name, &params, &Patch::Merge(&answer)).await);
            }
            Deed::Remove => drop(pods.delete(name, &removed).await),
        }
    }
}

impl Inside {
    /// What a machine does next to this pod. Each deed is done once.
    fn next(&mut self, pod: &Pod, now: UnixMillis) -> Option<Deed> {
        let node = pod.spec.as_ref()?.node_name.clone()?;
        if !self.alive.contains(&node) {
            return None;
        }
        let id = uid(pod);
        if pod.metadata.deletion_timestamp.is_some() {
            return self.end_of(pod, &id, now);
        }
        let Some(life) = self.lives.get(&id).cloned() else {
            return Some(self.admit(pod, &id, &node, now));
        };
        if life.refused || life.ended {
            return None;
        }
        let Some(started) = life.started else {
            return self.start(pod, &id, &life, now);
        };
        let runtime = annotation(pod, RUNTIME).and_then(|text| seconds(&text));
        if runtime.is_some_and(|runtime| now >= started.after(runtime)) {
            let code = annotation(pod, EXIT_CODE).and_then(|code| code.parse().ok());
            return Some(self.exit(&id, code.unwrap_or(0), started, now));
        }
        let asked = annotation(pod, names::CHECKPOINT_BY).is_some();
        if asked && !life.answered && !self.deaf {
            self.lives.get_mut(&id)?.answered = true;
            let annotations = json!({names::CHECKPOINT: time(now)});
            return Some(Deed::Answer(
                json!({"metadata": {"annotations": annotations}}),
            ));
        }
        None
    }

    fn admit(&mut self, pod: &Pod, id: &str, node: &str, now: UnixMillis) -> Deed {
        let gpus = gpus(pod);
        let taken: BTreeSet<u32> = if self.occupied.contains(node) {
            (0..GPUS).collect()
        } else {
            let here = self.lives.values();
            let here = here.filter(|life| life.node == node && !life.ended && !life.refused);
            here.flat_map(|life| life.devices.clone()).collect()
        };
        let free: Vec<u32> = (0..GPUS).filter(|device| !taken.contains(device)).collect();
        let refused = free.len() < gpus as usize;
        let devices = free
            .into_iter()
            .take(if refused { 0 } else { gpus as usize });
        let life = Life {
            devices: devices.collect(),
            node: node.to_owned(),
            refused,
            ..Life::default()
        };
        self.lives.insert(id.to_owned(), life);
        let status = if refused {
            json!({"phase": "Failed", "reason": "UnexpectedAdmissionError",
                   "message": format!("Allocate failed: requested {gpus}"),
                   "startTime": time(now)})
        } else {
            let waiting = json!({"waiting": {"reason": "ContainerCreating"}});
            json!({"phase": "Pending", "startTime": time(now),
                   "containerStatuses": [container(waiting)]})
        };
        Deed::Status(json!({"status": status}))
    }

    /// Starts user code when all volumes are there.
    fn start(&mut self, pod: &Pod, id: &str, life: &Life, now: UnixMillis) -> Option<Deed> {
        let has = |name: &str, key: &str| self.configs.get(name)?.get(key).map(drop);
        let here = volumes(pod)
            .into_iter()
            .all(|(name, key)| has(&name, &key).is_some());
        if !here || self.stuck {
            return None;
        }
        self.lives.get_mut(id)?.started = Some(now);
        let run = (life.node.clone(), life.devices.clone(), now, None);
        self.ran.insert(id.to_owned(), run);
        let running = json!({"running": {"startedAt": time(now)}});
        let status = json!({"phase": "Running", "containerStatuses": [container(running)]});
        Some(Deed::Status(json!({"status": status})))
    }

    fn exit(&mut self, id: &str, code: i32, started: UnixMillis, now: UnixMillis) -> Deed {
        self.end(id, now);
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        let ended = json!({"terminated": {
            "exitCode": code, "reason": if code == 0 { "Completed" } else { "Error" },
            "startedAt": time(started), "finishedAt": time(now),
        }});
        let status = json!({"phase": phase, "containerStatuses": [container(ended)]});
        Deed::Status(json!({"status": status}))
    }

    /// SIGTERM, then SIGKILL at the end of the grace, then removal.
    fn end_of(&mut self, pod: &Pod, id: &str, now: UnixMillis) -> Option<Deed> {
        let grace = pod.metadata.deletion_grace_period_seconds.unwrap_or(0);
        let grace = Millis::seconds(grace.unsigned_abs());
        let deaf = annotation(pod, IGNORES_SIGTERM).as_deref() == Some("true");
        let life = self.lives.entry(id.to_owned()).or_default();
        let asked = *life.asked_to_end.get_or_insert(now);
        let runs = life.started.is_some() && !life.ended;
        if runs && deaf && now < asked.after(grace) {
            return None;
        }
        self.end(id, now);
        Some(Deed::Remove)
    }

    fn end(&mut self, id: &str, now: UnixMillis) {
        if let Some(life) = self.lives.get_mut(id) {
            life.ended = true;
        }
        if let Some(run) = self.ran.get_mut(id) {
            run.3.get_or_insert(now);
        }
    }
}

fn uid(pod: &Pod) -> String {
    pod.metadata.uid.clone().unwrap_or_default()
}

fn annotation(pod: &Pod, name: &str) -> Option<String> {
    pod.metadata.annotations.as_ref()?.get(name).cloned()
}

/// A span of simulated time, as long as it takes here.
fn seconds(text: &str) -> Option<Millis> {
    let seconds: u64 = text.strip_suffix('s')?.parse().ok()?;
    Some(Millis(seconds * 1000 / FASTER))
}

fn gpus(pod: &Pod) -> u32 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let limits = containers.filter_map(|c| c.resources.as_ref()?.limits.as_ref());
    let counts = limits.filter_map(|limits| limits.get("nvidia.com/gpu")?.0.parse::<u32>().ok());
    counts.sum::<u32>()
}

/// The keys of ConfigMaps that the pod's volumes draw on.
fn volumes(pod: &Pod) -> Vec<(String, String)> {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    let sources = volumes.filter_map(|volume| volume.projected.as_ref()?.sources.as_ref());
    let configs = sources
        .flatten()
        .filter_map(|source| source.config_map.as_ref());
    let keys = configs.flat_map(|config| {
        let keys = config.items.iter().flatten();
        keys.map(|item| (config.name.clone(), item.key.clone()))
    });
    keys.collect()
}

fn container(state: Value) -> Value {
    let mut container = json!({"name": "main", "image": "train:1", "imageID": "", "ready": false,
                               "restartCount": 0});
    container["state"] = state;
    container
}

fn time(at: UnixMillis) -> String {
    let at = jiff::Timestamp::from_millisecond(at.0).expect("within history");
    at.to_string()
}
