//! One pod or one Job that others made, read: its gang, its role, and how many it should be.
//!
//! Owns the labels, annotations and variables by which tools say that. Sources: kubernetes.io,
//! "Jobs" (completion index, parallelism); kubernetes-sigs/jobset, api/jobset/v1alpha2 and its
//! documents ("sets the following labels on both the jobs and pods"); kubeflow/training-operator,
//! pkg/apis/kubeflow.org/v1 and pkg/controller.v1/pytorch/envvar.go.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use meridian_api::units::Resources;
use sha2::{Digest as _, Sha256};

use crate::kubernetes::inventory::{FlavorTable, Wanted, wanted};
use crate::kubernetes::names::{CLASS, GANG, ROLE, SCHEDULER};

/// Annotation: how many pods the gang of the label has.
const GANG_SIZE: &str = "meridian.dev/gang-size";
/// Annotation: level of the pool that must hold the whole role.
const REQUIRED: &str = "meridian.dev/required-level";
/// Annotation: level that should.
const PREFERRED: &str = "meridian.dev/preferred-level";

const JOBSET_NAME: &str = "jobset.sigs.k8s.io/jobset-name";
const JOBSET_UID: &str = "jobset.sigs.k8s.io/jobset-uid";
const JOBSET_ROLE: &str = "jobset.sigs.k8s.io/replicatedjob-name";
const JOBSET_REPLICAS: &str = "jobset.sigs.k8s.io/replicatedjob-replicas";
const JOBSET_ALL: &str = "jobset.sigs.k8s.io/global-replicas";
const JOBSET_INDEX: &str = "jobset.sigs.k8s.io/job-index";
const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";
const TRAINING_NAME: &str = "training.kubeflow.org/job-name";
const TRAINING_ROLE: &str = "training.kubeflow.org/replica-type";
const TRAINING_INDEX: &str = "training.kubeflow.org/replica-index";
/// Variables in which the training operator tells the number of pods; the second counts processes
/// where a pod has several, so the first goes before it.
const TRAINING_SIZES: [&str; 2] = ["PET_NNODES", "WORLD_SIZE"];

/// Role of pods that name none.
const ONLY_ROLE: &str = "worker";

/// How many pods a gang has, as one of its pods says it. All of one gang say it alike; where they
/// do not, the larger counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Size {
    /// Nothing says.
    Unknown,
    /// So many.
    Pods(u32),
    /// What its Job says.
    OfJob,
    /// What the Jobs of its JobSet say.
    OfJobSet {
        /// Jobs of this role.
        jobs: u32,
        /// Jobs of the JobSet; 0 = it does not say.
        all: u32,
    },
}

/// Where a pod is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It waits to be bound, or runs.
    Live,
    /// Something else still holds it back.
    Gated,
    /// It has ended, or is being removed.
    Over,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) namespace: String,
    pub(super) name: String,
    /// What its gang is called.
    pub(super) gang: String,
    pub(super) role: String,
    /// Its place in the role: that of its Job, then its own.
    pub(super) index: (u32, u32),
    pub(super) size: Size,
    pub(super) state: State,
    pub(super) node: Option<String>,
    pub(super) class: String,
    pub(super) priority: i32,
    pub(super) required: Option<String>,
    pub(super) preferred: Option<String>,
    pub(super) wanted: Wanted,
}

/// A Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobFacts {
    /// Its role in a JobSet.
    pub(super) role: String,
    /// Pods at a time.
    pub(super) pods: u32,
    /// Pods that must succeed in all; `None` = it does not say.
    pub(super) completions: Option<u32>,
    pub(super) over: bool,
}

/// Which gang something belongs to.
struct Kinship<'a> {
    /// UID of the group.
    group: String,
    gang: &'a str,
    role: &'a str,
    size: Size,
}

impl Member {
    /// Reads a pod; `None` for one of another scheduler.
    pub(super) fn read(pod: &Pod, table: &FlavorTable) -> Option<(String, Self)> {
        let (meta, spec) = (&pod.metadata, pod.spec.as_ref()?);
        if spec.scheduler_name.as_deref() != Some(SCHEDULER) {
            return None;
        }
        let kin = kinship(meta, spec, controller(meta))?;
        let number = |key: &str| label(meta, key).and_then(|index| index.parse().ok());
        let index = number(COMPLETION_INDEX).or_else(|| number(TRAINING_INDEX));
        let text = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
        let member = Self {
            namespace: meta.namespace.clone().unwrap_or_default(),
            name: meta.name.clone().unwrap_or_default(),
            gang: kin.gang.to_owned(),
            role: label(meta, ROLE).unwrap_or(kin.role).to_owned(),
            index: (number(JOBSET_INDEX).unwrap_or(0), index.unwrap_or(0)),
            size: kin.size,
            state: state(pod, spec),
            node: text(spec.node_name.as_deref()),
            class: label(meta, CLASS).unwrap_or_default().to_owned(),
            priority: spec.priority.unwrap_or(0),
            required: text(annotation(meta, REQUIRED)),
            preferred: text(annotation(meta, PREFERRED)),
            wanted: wanted(pod, table),
        };
        Some((kin.group, member))
    }
}

impl JobFacts {
    /// Reads a Job with its UID and its group; `None` for one of another scheduler.
    pub(super) fn read(job: &Job) -> Option<(String, String, Self)> {
        let (uid, spec) = (job.metadata.uid.as_ref()?, job.spec.as_ref()?);
        let pod = spec.template.spec.as_ref()?;
        if pod.scheduler_name.as_deref() != Some(SCHEDULER) {
            return None;
        }
        let mut meta = spec.template.metadata.clone().unwrap_or_default();
        meta.namespace.clone_from(&job.metadata.namespace);
        let owner = OwnerReference {
            kind: "Job".to_owned(),
            name: job.metadata.name.clone().unwrap_or_default(),
            uid: uid.clone(),
            controller: Some(true),
            ..OwnerReference::default()
        };
        let kin = kinship(&meta, pod, Some(&owner))?;
        let parallel = spec.parallelism.unwrap_or(1);
        let pods = parallel.min(spec.completions.unwrap_or(i32::MAX));
        let status = job.status.as_ref();
        let conditions = status.and_then(|status| status.conditions.as_ref());
        let ended = conditions.into_iter().flatten().any(|condition| {
            matches!(condition.type_.as_str(), "Complete" | "Failed") && condition.status == "True"
        });
        let facts = Self {
            role: kin.role.to_owned(),
            pods: u32::try_from(pods).unwrap_or(0),
            completions: spec
                .completions
                .and_then(|completions| u32::try_from(completions).ok()),
            over: ended || job.metadata.deletion_timestamp.is_some(),
        };
        Some((uid.clone(), kin.group, facts))
    }
}

/// Which gang a pod with this metadata and this controller belongs to. The label with a size goes
/// before everything: it is what somebody wrote for us.
fn kinship<'a>(
    meta: &'a ObjectMeta,
    spec: &PodSpec,
    owner: Option<&'a OwnerReference>,
) -> Option<Kinship<'a>> {
    let annotated = annotation(meta, GANG_SIZE).and_then(|size| size.parse().ok());
    if let (Some(gang), Some(size)) = (label(meta, GANG), annotated) {
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        return Some(Kinship {
            group: labelled_uid(namespace, gang),
            gang,
            role: label(meta, JOBSET_ROLE)
                .or(label(meta, TRAINING_ROLE))
                .unwrap_or(ONLY_ROLE),
            size: Size::Pods(size),
        });
    }
    let number = |key: &str| label(meta, key).and_then(|number| number.parse().ok());
    if let (Some(gang), Some(uid)) = (label(meta, JOBSET_NAME), label(meta, JOBSET_UID)) {
        return Some(Kinship {
            group: uid.to_owned(),
            gang,
            role: label(meta, JOBSET_ROLE).unwrap_or(ONLY_ROLE),
            size: Size::OfJobSet {
                jobs: number(JOBSET_REPLICAS).unwrap_or(0),
                all: number(JOBSET_ALL).unwrap_or(0),
            },
        });
    }
    let size = annotated.map(Size::Pods);
    let group = |owner: &OwnerReference| owner.uid.clone();
    if let (Some(gang), Some(owner)) = (label(meta, TRAINING_NAME), owner) {
        return Some(Kinship {
            group: group(owner),
            gang,
            role: label(meta, TRAINING_ROLE).unwrap_or(ONLY_ROLE),
            size: size.or(training_size(spec)).unwrap_or(Size::Unknown),
        });
    }
    if let Some(owner) = owner.filter(|owner| owner.kind == "Job") {
        return Some(Kinship {
            group: group(owner),
            gang: &owner.name,
            role: ONLY_ROLE,
            size: size.unwrap_or(Size::OfJob),
        });
    }
    Some(Kinship {
        group: meta.uid.clone()?,
        gang: meta.name.as_deref()?,
        role: ONLY_ROLE,
        size: Size::Pods(1),
    })
}

/// A UID for a gang that only a label holds together: the same label is the same gang.
fn labelled_uid(namespace: &str, gang: &str) -> String {
    let digest = Sha256::digest(format!("{namespace}\0{gang}"));
    let half = digest.iter().take(16);
    half.fold(String::new(), |uid, byte| uid + &format!("{byte:02x}"))
}

/// What the training operator wrote into the containers.
fn training_size(spec: &PodSpec) -> Option<Size> {
    let variables = || {
        spec.containers
            .iter()
            .flat_map(|one| one.env.iter().flatten())
    };
    let value = |name: &&str| {
        let found = variables().find(|variable| variable.name == **name)?;
        found.value.as_ref()?.parse().ok()
    };
    TRAINING_SIZES.iter().find_map(value).map(Size::Pods)
}

fn state(pod: &Pod, spec: &PodSpec) -> State {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) || pod.metadata.deletion_timestamp.is_some() {
        State::Over
    } else if spec
        .scheduling_gates
        .as_ref()
        .is_some_and(|gates| !gates.is_empty())
    {
        State::Gated
    } else {
        State::Live
    }
}

fn controller(meta: &ObjectMeta) -> Option<&OwnerReference> {
    let mut owners = meta.owner_references.iter().flatten();
    owners.find(|owner| owner.controller == Some(true))
}

fn label<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    text(meta.labels.as_ref(), key)
}

fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    text(meta.annotations.as_ref(), key)
}

fn text<'a>(pairs: Option<&'a BTreeMap<String, String>>, key: &str) -> Option<&'a str> {
    Some(pairs?.get(key)?.as_str()).filter(|text| !text.is_empty())
}

/// The larger of two requests, each part by itself: what is alike in name only is counted as the
/// largest of them.
pub(super) fn larger(a: Resources, b: Resources) -> Resources {
    Resources {
        gpus: a.gpus.max(b.gpus),
        cpu: a.cpu.max(b.cpu),
        memory: a.memory.max(b.memory),
    }
}
