//! Jobs as the model keeps them: what tells one from another, and how far each is.
//!
//! Owns the rows, whose size is what a long queue costs: a hundred bytes and the name. What alike
//! jobs share is one `Form` and one set of `Marks`. Never decides.

use std::sync::Arc;

use meridian_api::ids::{GangId, Revision, Uid};
use meridian_api::kinds::FederatedJob;
use meridian_api::kinds::federated_job::{FederatedJobSpec, FederatedJobStatus};
use meridian_api::reasons::Reason;
use meridian_api::units::{MilliGpus, UnixMillis};
use meridian_store::KeyValue;
use meridian_store::keys::{ObjectKey, Part};

use super::Model;
use super::forms::{Draft, Form, GangRow, Marks, Parts};
use super::offers::OfferId;
use super::told::Told;
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
    name: Box<str>,
    /// What jobs of the same spec share.
    pub(crate) form: Arc<Form>,
    /// What jobs of alike metadata share.
    pub(crate) marks: Arc<Marks>,
    submitted: UnixMillis,
    /// Revision of the spec.
    pub(crate) spec_revision: Revision,
    /// The trace of its submit; boxed twice, since a text's own box is twice as wide.
    trace: Option<Box<Box<str>>>,
    /// Absent until something has come of it.
    past: Option<Box<Past>>,
}

/// What has come of a job.
#[derive(Clone, Debug, Default)]
struct Past {
    progress: JobProgress,
    progress_revision: Revision,
    status: Option<Told>,
    status_revision: Revision,
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
    /// A job that is not stored, as the model keeps those that are.
    pub(crate) fn new(object: FederatedJob, spec_revision: Revision) -> Self {
        let mut parts = Parts::of(object);
        let marks = Arc::new(std::mem::take(&mut parts.marks));
        Self::of(parts, marks, spec_revision)
    }

    fn of(parts: Parts, marks: Arc<Marks>, spec_revision: Revision) -> Self {
        Self {
            uid: parts.uid.unwrap_or_default(),
            name: parts.name,
            form: parts.form,
            marks,
            submitted: parts.created.map_or(UnixMillis::ZERO, |time| time.0),
            spec_revision,
            trace: parts.traceparent.map(Box::new),
            past: None,
        }
    }

    /// Key of one half of it.
    #[must_use]
    pub(crate) fn key(&self, part: Part) -> bytes::Bytes {
        let key = ObjectKey {
            plural: PLURAL.to_owned(),
            namespace: self.marks.namespace.clone(),
            name: self.name.to_string(),
        };
        key.part(part)
    }

    /// Its name.
    #[must_use]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its namespace.
    #[must_use]
    pub(crate) fn namespace(&self) -> &str {
        self.marks.namespace.as_deref().unwrap_or_default()
    }

    /// `namespace/name`.
    #[must_use]
    pub(crate) fn full_name(&self) -> String {
        [self.namespace(), "/", &self.name].concat()
    }

    /// What is wanted, without pod templates.
    #[must_use]
    pub(crate) fn spec(&self) -> &FederatedJobSpec {
        &self.form.object.spec
    }

    /// The spec as an object, without metadata.
    #[must_use]
    pub(crate) fn object(&self) -> &FederatedJob {
        &self.form.object
    }

    /// Who pays: the spec's tenant, else the one named like the namespace.
    #[must_use]
    pub(crate) fn tenant(&self) -> &str {
        let tenant = self.spec().tenant.as_deref();
        tenant.unwrap_or_else(|| self.namespace())
    }

    /// GPUs of all gangs at their largest; `None` when no number holds it.
    #[must_use]
    pub(crate) fn total_gpus(&self) -> Option<MilliGpus> {
        self.form.gpus
    }

    /// Gangs in all copies.
    #[must_use]
    pub(crate) fn gang_count(&self) -> u32 {
        self.form.object.gang_count()
    }

    /// What gang number `index` is like.
    #[must_use]
    pub(crate) fn gang(&self, index: u32) -> Option<&GangRow> {
        if index >= self.gang_count() {
            return None;
        }
        let gangs = &self.form.gangs;
        gangs.get(index as usize % gangs.len().max(1))
    }

    /// Asked to go.
    #[must_use]
    pub(crate) fn is_deleting(&self) -> bool {
        self.marks.deletion.is_some()
    }

    /// When it was submitted.
    #[must_use]
    pub(crate) fn submitted(&self) -> UnixMillis {
        self.submitted
    }

    /// The offer that it was made from, when others made its pods.
    #[must_use]
    pub(crate) fn origin(&self) -> Option<OfferId> {
        let origin = self.spec().origin.as_ref()?;
        Some((origin.cluster.clone(), origin.uid.clone()))
    }

    /// It recurs: nothing of it is placed, its runs are jobs of their own.
    #[must_use]
    pub(crate) fn is_recurring(&self) -> bool {
        self.spec().schedule.is_some()
    }

    /// The recurring job that this one is a run of.
    #[must_use]
    pub(crate) fn run_of(&self) -> Option<Uid> {
        let (uid, name) = self.marks.owner.as_ref()?;
        crate::runs::scheduled(name, &self.name).map(|_| *uid)
    }

    /// The trace of its submit.
    #[must_use]
    pub(crate) fn traceparent(&self) -> Option<&str> {
        Some(self.trace.as_ref()?.as_ref())
    }

    /// How far it is.
    #[must_use]
    pub(crate) fn progress(&self) -> &JobProgress {
        static NONE: JobProgress = JobProgress::none();
        self.past.as_ref().map_or(&NONE, |past| &past.progress)
    }

    /// How far it is, to be changed.
    #[must_use]
    pub(crate) fn progress_mut(&mut self) -> &mut JobProgress {
        &mut self.past.get_or_insert_default().progress
    }

    /// Revision of the progress.
    #[must_use]
    pub(crate) fn progress_revision(&self) -> Revision {
        let past = self.past.as_ref();
        past.map(|past| past.progress_revision).unwrap_or_default()
    }

    /// Notes how far it is; `false` when that was known.
    pub(super) fn note_progress(&mut self, progress: JobProgress, revision: Revision) -> bool {
        if self.progress_revision() >= revision {
            return false;
        }
        let past = self.past.get_or_insert_default();
        (past.progress, past.progress_revision) = (progress, revision);
        true
    }

    /// Status as last written.
    #[must_use]
    pub(crate) fn status(&self) -> Option<&Told> {
        self.past.as_ref()?.status.as_ref()
    }

    /// True when none of its gangs will be placed again.
    #[must_use]
    pub(crate) fn is_over(&self) -> bool {
        let progress = self.progress();
        !self.is_recurring() && (0..self.gang_count()).all(|index| progress.is_over(index))
    }

    /// True when the gang, had it no placement, is to get one (or stays suspended).
    #[must_use]
    pub(crate) fn wants_place(&self, index: u32) -> bool {
        !self.is_recurring()
            && !self.is_deleting()
            && index < self.gang_count()
            && !self.progress().is_over(index)
    }
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
    fn read_job(
        &mut self,
        key: &ObjectKey,
        entry: &KeyValue,
        draft: Option<Draft>,
    ) -> Result<Job, String> {
        let parts = self.forms.read(&entry.value, draft);
        let mut parts = parts.map_err(|error| error.to_string())?;
        parts.uid.ok_or("it has no uid")?;
        let namespace = key.namespace.clone();
        let marks = Marks {
            namespace,
            ..std::mem::take(&mut parts.marks)
        };
        parts.name = key.name.as_str().into();
        let marks = self.marks.of(marks);
        Ok(Job::of(parts, marks, entry.mod_revision))
    }

    pub(super) fn put_job(&mut self, key: &ObjectKey, entry: &KeyValue, draft: Option<Draft>) {
        let mut job = match self.read_job(key, entry, draft) {
            Ok(job) => job,
            Err(error) => {
                tracing::error!(key = ?key, %error, "a stored job cannot be read");
                if let Some(uid) = stored_uid(entry) {
                    self.unreadable.insert(full_name(key), uid);
                }
                return;
            }
        };
        self.forget_unreadable(key);
        let (uid, form) = (job.uid, Arc::clone(&job.form));
        let (origin, owner, service) = (job.origin(), job.run_of(), job.marks.service);
        let row = if let Some(row) = self.jobs.row(uid) {
            if let Some(known) = self.jobs.at_mut(row) {
                if known.spec_revision >= job.spec_revision {
                    return;
                }
                job.past = known.past.take();
            }
            self.jobs.replace(row, job);
            row
        } else {
            self.jobs.insert(job)
        };
        if let Some(origin) = origin {
            self.origins.insert(origin, uid);
        }
        self.left_out.remove(&uid);
        self.note_replica(uid, service);
        if let Some(owner) = owner {
            self.runs.entry(owner).or_default().insert(uid);
            self.recurring.insert(owner);
        }
        if form.object.spec.finish_by.is_some() {
            self.deadlines.insert(uid);
        }
        if form.object.spec.schedule.is_some() {
            self.schedules.insert(uid);
            self.recurring.insert(uid);
        }
        self.refresh_job(row);
    }

    fn forget_unreadable(&mut self, key: &ObjectKey) {
        if !self.unreadable.is_empty() {
            self.unreadable.remove(&full_name(key));
        }
    }

    pub(super) fn put_job_status(
        &mut self,
        key: &ObjectKey,
        entry: &KeyValue,
        draft: Option<Box<FederatedJobStatus>>,
    ) {
        let named = self.job_named(key.namespace.as_deref().unwrap_or_default(), &key.name);
        let row = named.and_then(|job| self.jobs.row(job.uid));
        let Some(job) = row.and_then(|row| self.jobs.at_mut(row)) else {
            return;
        };
        let past = job.past.get_or_insert_default();
        if past.status_revision < entry.mod_revision {
            let status = draft.or_else(|| serde_json::from_slice(&entry.value).ok());
            past.status = status.map(|status| Told::new(*status, &mut self.words));
            past.status_revision = entry.mod_revision;
        }
    }

    pub(super) fn delete_job(&mut self, key: &ObjectKey, revision: Revision) {
        self.forget_unreadable(key);
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let named = self.job_named(namespace, &key.name);
        let Some(uid) = named
            .filter(|job| job.spec_revision < revision)
            .map(|job| job.uid)
        else {
            return;
        };
        if let Some(row) = self.jobs.row(uid) {
            self.waiting.forget(row);
        }
        let job = self.jobs.remove(uid);
        self.left_out.remove(&uid);
        self.losses.forget(uid);
        self.resting.remove(&uid);
        if let Some(job) = &job {
            self.forget_replica(job);
        }
        if let Some(origin) = job.as_ref().and_then(|job| job.origin()) {
            // What is still offered is queued again, as another job.
            if self.origins.get(&origin) == Some(&uid) {
                self.origins.remove(&origin);
            }
            self.offered.insert(origin);
        }
        if let Some(owner) = job.as_ref().and_then(|job| job.run_of()) {
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
