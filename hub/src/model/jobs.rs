//! Jobs as the model keeps them: parsed once, without their pod templates.
//!
//! Owns what of a job its gangs need in order to be placed, and the job's progress. Never decides.

use std::collections::BTreeMap;
use std::sync::Arc;

use meridian_api::canonical::{self, hex};
use meridian_api::ids::{GangId, Revision, Uid};
use meridian_api::kinds::FederatedJob;
use meridian_api::kinds::federated_job::FederatedJobStatus;
use meridian_api::reasons::Reason;
use meridian_api::units::{Millis, UnixMillis};
use meridian_policies::model::{GangShape, RoleShape, Shared, SliceShape};
use meridian_store::KeyValue;
use meridian_store::keys::ObjectKey;

use super::Model;
use super::offers::OfferId;
use super::services::service_of;
use crate::progress::JobProgress;

/// Plural under which jobs are stored.
pub(crate) const PLURAL: &str = "federatedjobs";
/// Keeps a job until nothing of it runs.
pub(crate) const FINALIZER: &str = "meridian.dev/drain";
/// Carries the trace of a submit.
pub(crate) const TRACEPARENT_ANNOTATION: &str = "meridian.dev/traceparent";

/// One job.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// Its identity.
    pub(crate) uid: Uid,
    /// Where it is stored.
    pub(crate) key: ObjectKey,
    /// Metadata and spec, without pod templates.
    pub(crate) object: Arc<FederatedJob>,
    /// Revision of the spec.
    pub(crate) spec_revision: Revision,
    /// SHA-256 of the document of what it carries, in hexadecimal.
    pub(crate) carried: Option<String>,
    /// Its gangs in one copy; copy after copy they repeat.
    pub(crate) gangs: Arc<Vec<GangRow>>,
    /// How far it is.
    pub(crate) progress: JobProgress,
    /// Revision of the progress.
    pub(crate) progress_revision: Revision,
    /// Status as last written.
    pub(crate) status: Option<Arc<FederatedJobStatus>>,
    /// Revision of the status.
    pub(crate) status_revision: Revision,
    /// The service that it is a replica of.
    pub(crate) service: Option<Uid>,
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

/// Why a job cannot even be looked at by a decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// From the closed list.
    pub(crate) reason: Reason,
    /// What it names that is not there, for a person.
    pub(crate) message: String,
}

impl Job {
    /// Reads a stored job.
    fn read(key: &ObjectKey, entry: &KeyValue) -> Result<Self, String> {
        let object: FederatedJob =
            serde_json::from_slice(&entry.value).map_err(|error| error.to_string())?;
        object.metadata.uid.ok_or("it has no uid")?;
        Ok(Self {
            key: key.clone(),
            ..Self::new(object, entry.mod_revision)
        })
    }

    /// A job as the model keeps it.
    pub(crate) fn new(mut object: FederatedJob, spec_revision: Revision) -> Self {
        let gangs = (0..object.gangs_per_copy()).filter_map(|index| gang_row(&object, index));
        let gangs = Arc::new(gangs.collect());
        let carried = object
            .carried_document()
            .map(|document| hex(&canonical::sha256(&document)));
        object.spec.carried = None;
        for role in &mut object.spec.roles {
            role.template = serde_json::Value::Null;
        }
        Self {
            service: service_of(&object.metadata.owner_references),
            carried,
            uid: object.metadata.uid.unwrap_or_default(),
            key: ObjectKey {
                plural: PLURAL.to_owned(),
                namespace: object.metadata.namespace.clone(),
                name: object.metadata.name.clone(),
            },
            object: Arc::new(object),
            spec_revision,
            gangs,
            progress: JobProgress::default(),
            progress_revision: Revision::default(),
            status: None,
            status_revision: Revision::default(),
        }
    }

    /// `namespace/name`.
    #[must_use]
    pub(crate) fn full_name(&self) -> String {
        format!(
            "{}/{}",
            self.key.namespace.as_deref().unwrap_or_default(),
            self.key.name
        )
    }

    /// Who pays: the spec's tenant, else the one named like the namespace.
    #[must_use]
    pub(crate) fn tenant(&self) -> &str {
        let namespace = || self.key.namespace.as_deref().unwrap_or_default();
        self.object.spec.tenant.as_deref().unwrap_or_else(namespace)
    }

    /// Gangs in all copies.
    #[must_use]
    pub(crate) fn gang_count(&self) -> u32 {
        self.object.gang_count()
    }

    /// What gang number `index` is like.
    #[must_use]
    pub(crate) fn gang(&self, index: u32) -> Option<&GangRow> {
        if index >= self.gang_count() {
            return None;
        }
        self.gangs.get(index as usize % self.gangs.len().max(1))
    }

    /// Asked to go.
    #[must_use]
    pub(crate) fn is_deleting(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }

    /// When it was submitted.
    #[must_use]
    pub(crate) fn submitted(&self) -> UnixMillis {
        self.object
            .metadata
            .creation_timestamp
            .map_or(UnixMillis::ZERO, |time| time.0)
    }

    /// The offer that it was made from, when others made its pods.
    #[must_use]
    pub(crate) fn origin(&self) -> Option<OfferId> {
        let origin = self.object.spec.origin.as_ref()?;
        Some((origin.cluster.clone(), origin.uid.clone()))
    }

    /// It recurs: nothing of it is placed, its runs are jobs of their own.
    #[must_use]
    pub(crate) fn is_recurring(&self) -> bool {
        self.object.spec.schedule.is_some()
    }

    /// The recurring job that this one is a run of.
    #[must_use]
    pub(crate) fn run_of(&self) -> Option<Uid> {
        let (uid, name) = self.object.owner()?;
        crate::runs::scheduled(name, &self.key.name).map(|_| uid)
    }

    /// True when none of its gangs will be placed again.
    #[must_use]
    pub(crate) fn is_over(&self) -> bool {
        !self.is_recurring() && (0..self.gang_count()).all(|index| self.progress.is_over(index))
    }

    /// True when the gang, had it no placement, is to get one (or stays suspended).
    #[must_use]
    pub(crate) fn wants_place(&self, index: u32) -> bool {
        !self.is_recurring()
            && !self.is_deleting()
            && index < self.gang_count()
            && !self.progress.is_over(index)
    }
}

fn gang_row(job: &FederatedJob, index: u32) -> Option<GangRow> {
    let gang = job.gang(index)?;
    let shape = |role: &meridian_api::kinds::federated_job::RoleTemplate<'_>| RoleShape {
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
    let hash = |role: &meridian_api::kinds::federated_job::RoleTemplate<'_>| {
        TemplateHash::new(job, role.name)
    };
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

fn full_name(key: &ObjectKey) -> String {
    format!(
        "{}/{}",
        key.namespace.as_deref().unwrap_or_default(),
        key.name
    )
}

/// The UID of a stored object, whatever else it says.
fn stored_uid(entry: &KeyValue) -> Option<Uid> {
    let object: serde_json::Value = serde_json::from_slice(&entry.value).ok()?;
    object.pointer("/metadata/uid")?.as_str()?.parse().ok()
}

impl Model {
    pub(super) fn put_job(&mut self, key: &ObjectKey, entry: &KeyValue) {
        let mut job = match Job::read(key, entry) {
            Ok(job) => job,
            Err(error) => {
                tracing::error!(key = ?key, %error, "a stored job cannot be read");
                if let Some(uid) = stored_uid(entry) {
                    self.unreadable.insert(full_name(key), uid);
                }
                return;
            }
        };
        self.unreadable.remove(&full_name(key));
        let uid = job.uid;
        if let Some(known) = self.jobs.get(&uid) {
            if known.spec_revision >= job.spec_revision {
                return;
            }
            job.progress = known.progress.clone();
            job.progress_revision = known.progress_revision;
            job.status.clone_from(&known.status);
            job.status_revision = known.status_revision;
        }
        let name = (key.namespace.clone().unwrap_or_default(), key.name.clone());
        self.names.insert(name, uid);
        if let Some(origin) = job.origin() {
            self.origins.insert(origin, uid);
        }
        self.left_out.remove(&uid);
        self.note_replica(uid, job.service);
        if let Some(owner) = job.run_of() {
            self.runs.entry(owner).or_default().insert(uid);
            self.recurring.insert(owner);
        }
        if job.object.spec.finish_by.is_some() {
            self.deadlines.insert(uid);
        }
        if job.is_recurring() {
            self.schedules.insert(uid);
            self.recurring.insert(uid);
        }
        self.jobs.insert(uid, job);
        self.refresh_job(uid);
    }

    pub(super) fn put_job_status(&mut self, key: &ObjectKey, entry: &KeyValue) {
        let name = (key.namespace.clone().unwrap_or_default(), key.name.clone());
        let Some(job) = self.names.get(&name).and_then(|uid| self.jobs.get_mut(uid)) else {
            return;
        };
        if job.status_revision >= entry.mod_revision {
            return;
        }
        job.status = serde_json::from_slice(&entry.value).ok().map(Arc::new);
        job.status_revision = entry.mod_revision;
    }

    pub(super) fn delete_job(&mut self, key: &ObjectKey, revision: Revision) {
        self.unreadable.remove(&full_name(key));
        let name = (key.namespace.clone().unwrap_or_default(), key.name.clone());
        let Some(uid) = self.names.get(&name).copied() else {
            return;
        };
        if self
            .jobs
            .get(&uid)
            .is_none_or(|job| job.spec_revision >= revision)
        {
            return;
        }
        self.names.remove(&name);
        let job = self.jobs.remove(&uid);
        self.left_out.remove(&uid);
        self.losses.forget(uid);
        if let Some(job) = &job {
            self.forget_replica(job);
        }
        if let Some(origin) = job.as_ref().and_then(Job::origin) {
            // What is still offered is queued again, as another job.
            if self.origins.get(&origin) == Some(&uid) {
                self.origins.remove(&origin);
            }
            self.offered.insert(origin);
        }
        if let Some(owner) = job.as_ref().and_then(Job::run_of) {
            if let Some(runs) = self.runs.get_mut(&owner) {
                runs.remove(&uid);
                if runs.is_empty() {
                    self.runs.remove(&owner);
                }
            }
            self.recurring.insert(owner);
        }
        self.deadlines.remove(&uid);
        if self.schedules.remove(&uid) {
            self.recurring.insert(uid);
        }
        let count = job.map_or(0, |job| job.gang_count());
        for index in 0..count {
            self.refresh_gang(GangId { job: uid, index });
        }
    }
}
