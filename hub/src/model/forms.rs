//! What alike jobs share: one form for each different spec, and marks for alike metadata.
//!
//! Owns the table in which a form is found again, so that a million jobs of a hundred forms
//! cost a hundred of them, and a spec that is known is not read again. What no job has any more is
//! forgotten. Never holds what tells two jobs apart.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use meridian_api::canonical::{self, hex};
use meridian_api::ids::Uid;
use meridian_api::kinds::FederatedJob;
use meridian_api::kinds::federated_job::{FederatedJobSpec, RoleTemplate};
use meridian_api::quantity::Time;
use meridian_api::units::{MilliGpus, Millis};
use meridian_policies::model::{GangShape, RoleShape, Shared, SliceShape};
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::alike::next_sweep;
use super::members::Members;
use super::services::service_of;

/// A spec as decisions need it, without pod templates.
#[derive(Debug)]
pub(crate) struct Form {
    /// The spec; its metadata are empty.
    pub(super) object: FederatedJob,
    /// SHA-256 of the document of what it carries, in hexadecimal.
    pub(crate) carried: Option<Arc<str>>,
    /// Its gangs in one copy; copy after copy they repeat.
    pub(crate) gangs: Vec<GangRow>,
    /// GPUs of all gangs at their largest; `None` when no number holds it.
    pub(crate) gpus: Option<MilliGpus>,
}

/// What one gang of a copy is like.
#[derive(Clone, Debug)]
pub(crate) struct GangRow {
    /// Its pods.
    pub(crate) shape: Shared<GangShape>,
    /// The template of each role.
    pub(crate) templates: Vec<TemplateHash>,
    /// From SIGTERM to SIGKILL.
    pub(crate) grace: Millis,
    /// From accepted to running, else undone.
    pub(crate) place_timeout: Option<Millis>,
}

/// Names of a role's template: SHA-256 of its canonical JSON, in hexadecimal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TemplateHash {
    /// Where no override holds, then under each override.
    at: Vec<TemplateForms>,
}

/// Forms of a template in one kind of place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TemplateForms {
    /// As written.
    plain: String,
    /// On flavors with an image, a command or variables of their own.
    on: BTreeMap<String, String>,
}

/// What the metadata of a job say that others' may say, too.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Marks {
    /// Its namespace.
    pub(crate) namespace: Option<String>,
    /// Its labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// Who must agree before it vanishes.
    pub(crate) finalizers: Vec<String>,
    /// Counts changes of the spec.
    pub(crate) generation: Option<i64>,
    /// When its deletion was asked for.
    pub(crate) deletion: Option<Time>,
    /// The job that owns it, and that one's name.
    pub(crate) owner: Option<(Uid, String)>,
    /// The service that it is a replica of.
    pub(crate) service: Option<Uid>,
}

/// What is read of the metadata of a job.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    uid: Option<Uid>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    finalizers: Vec<String>,
    owner_references: Vec<Value>,
    generation: Option<i64>,
}

/// A stored job, read as far as that needs no other: its metadata, and which spec it has.
#[derive(Debug)]
pub(crate) struct Draft {
    metadata: Metadata,
    /// SHA-256 of the spec as stored.
    hash: [u8; 32],
    /// Where the spec is in what is stored.
    spec: Range<usize>,
}

impl Draft {
    /// Reads a stored job so far; `None` for one that has to be read whole.
    pub(super) fn of(stored: &[u8], met: &mut Met) -> Result<Option<Self>, serde_json::Error> {
        let mut hash = None;
        let is_known = |spec: &[u8]| {
            hash = met.0.get(spec).copied();
            hash.is_some()
        };
        let Some(members) = Members::find(stored, is_known) else {
            return Ok(None);
        };
        let start = members.spec.as_ptr().addr() - stored.as_ptr().addr();
        Ok(Some(Self {
            metadata: serde_json::from_slice(members.metadata)?,
            hash: hash.unwrap_or_else(|| met.meet(members.spec)),
            spec: start..start + members.spec.len(),
        }))
    }
}

/// Specs that whoever reads many jobs has met, and the SHA-256 of each: most are met again, and are
/// then neither looked through nor hashed like that.
#[derive(Debug, Default)]
pub(crate) struct Met(HashMap<Box<[u8]>, [u8; 32]>);

impl Met {
    /// Specs that are remembered: some megabytes. Where there are more, hardly any is met again.
    const MOST: usize = 4_096;

    fn meet(&mut self, spec: &[u8]) -> [u8; 32] {
        let hash = Sha256::digest(spec).into();
        if self.0.len() >= Self::MOST {
            self.0.clear();
        }
        self.0.insert(spec.into(), hash);
        hash
    }
}

/// A job that has been read, in the parts that are kept.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) uid: Option<Uid>,
    pub(super) name: Box<str>,
    pub(super) created: Option<Time>,
    pub(super) traceparent: Option<Box<str>>,
    pub(super) marks: Marks,
    pub(super) form: Arc<Form>,
}

/// The forms of all jobs.
#[derive(Debug, Default)]
pub(super) struct Forms {
    /// By the SHA-256 of the spec as stored.
    by_spec: BTreeMap<[u8; 32], Arc<Form>>,
    sweep_at: usize,
}

impl Forms {
    /// Reads a stored job, or what a draft of it leaves; its spec only if none like it is known.
    pub(super) fn read(
        &mut self,
        stored: &[u8],
        draft: Option<Draft>,
    ) -> Result<Parts, serde_json::Error> {
        let draft = match draft {
            Some(draft) => Some(draft),
            None => Draft::of(stored, &mut Met::default())?,
        };
        let Some((spec, draft)) = draft.and_then(|it| Some((stored.get(it.spec.clone())?, it)))
        else {
            return serde_json::from_slice(stored).map(Parts::of);
        };
        let form = self.form(draft.hash, spec)?;
        Ok(Parts::new(draft.metadata, form))
    }

    fn form(&mut self, hash: [u8; 32], spec: &[u8]) -> Result<Arc<Form>, serde_json::Error> {
        if let Some(known) = self.by_spec.get(&hash) {
            return Ok(Arc::clone(known));
        }
        let spec: FederatedJobSpec = serde_json::from_slice(spec)?;
        let form = Arc::new(Form::new(FederatedJob::new("", spec)));
        if self.by_spec.len() >= self.sweep_at {
            self.by_spec.retain(|_, form| Arc::strong_count(form) > 1);
            self.sweep_at = next_sweep(self.by_spec.len());
        }
        self.by_spec.insert(hash, Arc::clone(&form));
        Ok(form)
    }
}

impl Parts {
    /// Of a whole job.
    pub(super) fn of(mut object: FederatedJob) -> Self {
        let owner = object.owner().map(|(uid, name)| (uid, name.to_owned()));
        let metadata = std::mem::take(&mut object.metadata);
        Self {
            uid: metadata.uid,
            created: metadata.creation_timestamp,
            traceparent: trace(&metadata.annotations),
            marks: Marks {
                namespace: metadata.namespace,
                labels: metadata.labels,
                finalizers: metadata.finalizers,
                generation: metadata.generation,
                deletion: metadata.deletion_timestamp,
                service: service_of(&metadata.owner_references),
                owner,
            },
            name: metadata.name.into(),
            form: Arc::new(Form::new(object)),
        }
    }

    fn new(metadata: Metadata, form: Arc<Form>) -> Self {
        Self {
            traceparent: trace(&metadata.annotations),
            uid: metadata.uid,
            name: metadata.name.into(),
            created: metadata.creation_timestamp,
            marks: Marks {
                namespace: None,
                labels: metadata.labels,
                finalizers: metadata.finalizers,
                generation: metadata.generation,
                deletion: metadata.deletion_timestamp,
                service: service_of(&metadata.owner_references),
                owner: owner_of(metadata.owner_references),
            },
            form,
        }
    }
}

/// The trace of a submit.
fn trace(annotations: &BTreeMap<String, String>) -> Option<Box<str>> {
    let trace = annotations.get(super::TRACEPARENT_ANNOTATION)?;
    Some(trace.as_str().into())
}

/// The job that these owner references name.
fn owner_of(references: Vec<Value>) -> Option<(Uid, String)> {
    if references.is_empty() {
        return None;
    }
    let mut owned = FederatedJob::new("", FederatedJobSpec::default());
    owned.metadata.owner_references = references;
    owned.owner().map(|(uid, name)| (uid, name.to_owned()))
}

impl Form {
    fn new(mut object: FederatedJob) -> Self {
        let gangs = (0..object.gangs_per_copy()).filter_map(|index| gang_row(&object, index));
        let gangs = gangs.collect();
        let carried = object
            .carried_document()
            .map(|document| hex(&canonical::sha256(&document)).into());
        object.status = None;
        object.spec.carried = None;
        for role in &mut object.spec.roles {
            role.template = Value::Null;
        }
        Self {
            carried,
            gangs,
            gpus: object.total_gpus(),
            object,
        }
    }
}

impl TemplateHash {
    fn new(job: &FederatedJob, role: &str) -> Self {
        let hash = |flavor: &str, place: Option<usize>| {
            let hash = job.template_hash(role, flavor, place);
            hash.map_or_else(String::new, |hash| hex(&hash))
        };
        let forms = |place: Option<usize>| {
            let choices = job.spec.placement.flavors.iter();
            let differing = choices.filter(|choice| choice.has_overrides());
            let form = |name: &String| (name.clone(), hash(name, place));
            TemplateForms {
                plain: hash("", place),
                on: differing.map(|choice| form(&choice.name)).collect(),
            }
        };
        let places = (0..job.spec.overrides.len()).map(Some);
        Self {
            at: std::iter::once(None).chain(places).map(forms).collect(),
        }
    }

    /// The template that pods on `flavor` are made from, where this override holds.
    #[must_use]
    pub(crate) fn on(&self, flavor: &str, place: Option<usize>) -> &str {
        let forms = self.at.get(place.map_or(0, |place| place + 1));
        forms.map_or("", |forms| forms.on.get(flavor).unwrap_or(&forms.plain))
    }
}

fn gang_row(job: &FederatedJob, index: u32) -> Option<GangRow> {
    let gang = job.gang(index)?;
    let shape = |role: &RoleTemplate<'_>| RoleShape {
        name: role.name.to_owned(),
        per_pod: role.per_pod,
        min: role.min,
        max: role.max,
        step: role.step,
        required: role.required.map(str::to_owned),
        preferred: role.preferred.map(str::to_owned),
        slice: role.slice.map(|(pods, level)| SliceShape {
            pods,
            level: level.to_owned(),
        }),
    };
    let hash = |role: &RoleTemplate<'_>| TemplateHash::new(job, role.name);
    Some(GangRow {
        shape: GangShape {
            roles: gang.roles.iter().map(shape).collect(),
        }
        .into(),
        templates: gang.roles.iter().map(hash).collect(),
        grace: gang.grace,
        place_timeout: gang.place_timeout,
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::*;

    fn stored(name: &str, runtime: &str, extra: &Value) -> Bytes {
        let mut job = json!({
            "apiVersion": "meridian.dev/v1alpha1", "kind": "FederatedJob",
            "metadata": {
                "name": name, "namespace": "nlp", "uid": Uid(7).to_string(), "generation": 2,
                "labels": {"a": "b"}, "finalizers": ["x"],
                "creationTimestamp": "1970-01-01T00:00:10Z",
                "deletionTimestamp": "1970-01-01T00:00:20Z",
                "annotations": {crate::model::TRACEPARENT_ANNOTATION: "00-1"},
                "managedFields": [{"manager": "kubectl"}],
                "ownerReferences": [{
                    "apiVersion": "meridian.dev/v1alpha1", "kind": "FederatedJob",
                    "name": "nightly", "uid": Uid(8).to_string(),
                }],
            },
            "spec": {"workloadClass": "batch", "expectedRuntime": runtime, "roles": [
                {"name": "worker", "replicas": 2, "gpus": 4, "template": {"a": 1}},
            ]},
        });
        let (job_fields, extra) = (job.as_object_mut(), extra.as_object());
        let (fields, extra) = (job_fields.expect("an object"), extra.expect("an object"));
        fields.extend(
            extra
                .iter()
                .map(|(key, value)| (key.clone(), value.clone())),
        );
        job.to_string().into()
    }

    #[test]
    fn a_spec_is_read_once_for_all_jobs_that_have_it() {
        let mut forms = Forms::default();
        let mut read = |name: &str, runtime: &str, extra: &Value| {
            let parts = forms.read(&stored(name, runtime, extra), None);
            parts.expect("a job").form
        };
        let first = read("a", "1h", &json!({}));
        assert!(Arc::ptr_eq(&first, &read("b", "1h", &json!({}))));
        let decorated = json!({"status": {"phase": "Pending"}});
        assert!(Arc::ptr_eq(&first, &read("c", "1h", &decorated)));
        assert!(!Arc::ptr_eq(&first, &read("d", "2h", &json!({}))));
    }

    #[test]
    fn a_draft_is_the_same_whether_its_spec_was_met_before() {
        let mut met = Met::default();
        let mut draft = |stored: &Bytes| {
            let draft = Draft::of(stored, &mut met).expect("a job").expect("plain");
            let alone = Draft::of(stored, &mut Met::default()).expect("a job");
            let alone = alone.expect("plain");
            assert_eq!((draft.hash, &draft.spec), (alone.hash, &alone.spec));
            draft.hash
        };
        let one = draft(&stored("a", "1h", &json!({})));
        assert_eq!(draft(&stored("b", "1h", &json!({}))), one);
        let decorated = json!({"status": {"phase": "Pending"}});
        assert_eq!(draft(&stored("c", "1h", &decorated)), one);
        let other = draft(&stored("d", "2h", &json!({})));
        assert_ne!(other, one);
        for runtime in 0..Met::MOST {
            draft(&stored("e", &format!("{runtime}s"), &json!({})));
        }
        assert_eq!(draft(&stored("f", "2h", &json!({}))), other);
        assert!(met.0.len() <= Met::MOST);
    }

    #[test]
    fn a_job_read_in_parts_is_as_one_that_is_read_whole() {
        // A member that nobody knows has it read whole.
        let whole = Forms::default().read(&stored("a", "1h", &json!({"other": 1})), None);
        let (whole, parts) = (
            whole.expect("a job"),
            Forms::default()
                .read(&stored("a", "1h", &json!({})), None)
                .expect("a job"),
        );
        let namespace = whole.marks.namespace.clone();
        let marks = Marks {
            namespace,
            ..parts.marks
        };
        assert_eq!(marks, whole.marks);
        assert_eq!(marks.owner, Some((Uid(8), "nightly".to_owned())));
        assert!(marks.deletion.is_some() && marks.generation == Some(2));
        let told = |it: &Parts| (it.uid, it.name.clone(), it.created, it.traceparent.clone());
        let own = (parts.uid, parts.name, parts.created, parts.traceparent);
        assert_eq!(own, told(&whole));
        assert_eq!(parts.form.object.spec, whole.form.object.spec);
        assert_eq!(parts.form.gpus, whole.form.gpus);
    }

    #[test]
    fn nonsense_in_either_half_is_told() {
        let good = String::from_utf8(stored("a", "1h", &json!({})).into()).expect("text");
        for (from, to) in [
            (r#""generation":2"#, r#""generation":"2""#),
            (r#""replicas":2"#, r#""replicas":"two""#),
        ] {
            let bad = good.replace(from, to);
            assert_ne!(bad, good);
            let bad = Bytes::from(bad);
            assert!(Forms::default().read(&bad, None).is_err(), "{bad:?}");
        }
    }
}
