//! The hub's own writes: jobs that it makes and deletes because something asks for them.
//!
//! Owns how such a job is written: through the API server, as everybody's, and under the leader's
//! fence; and what a person hears when that fails. Offers, services and schedules share it. Never
//! decides which jobs there are.

use std::collections::BTreeMap;
use std::sync::Arc;

use meridian_api::ids::{Revision, Uid};
use meridian_api::kinds::FederatedJob;
use meridian_apiserver::{
    ApiStatus, DeleteOptions, FieldValidation, Kind, Preconditions, Resources, StatusReason,
    WriteOptions,
};
use meridian_runtime::Clock;
use meridian_store::StoreError;
use serde_json::Value;

use crate::admission::own_request;
use crate::fence::Fence;
use crate::journal::{Gravity, Journal, JournalEntry};
use crate::model::{JOBS, Job};

/// A job to delete, and no other of that name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Doomed {
    /// Which.
    pub(crate) uid: Uid,
    /// Where it is.
    pub(crate) namespace: String,
    /// Its name.
    pub(crate) name: String,
}

impl Doomed {
    /// This job.
    #[must_use]
    pub(crate) fn of(job: &Job) -> Self {
        Self {
            uid: job.uid,
            namespace: job.namespace().to_owned(),
            name: job.name().to_owned(),
        }
    }
}

/// What came of a write.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Done, at this revision.
    Done(Revision),
    /// It was so already, or something changed meanwhile: the model is about to show it.
    Soon,
    /// A job of that name is there.
    Taken(String),
    /// It cannot be done, for this reason.
    Refused(String),
    /// The store did not take it.
    Failed(StoreError),
}

/// What a person hears of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    /// Kind of the object.
    pub(crate) kind: &'static str,
    /// Its namespace; empty for a cluster-scoped one.
    pub(crate) namespace: &'a str,
    /// Its name.
    pub(crate) name: &'a str,
    /// Which, if it is told from others of that name.
    pub(crate) uid: Option<Uid>,
}

/// The hand that makes and deletes jobs. Clones are the same.
#[derive(Clone)]
pub(crate) struct OwnWrites {
    resources: Resources,
    jobs: Arc<Kind>,
    clock: Clock,
    journal: Journal,
}

impl OwnWrites {
    /// Writes through `resources`.
    #[must_use]
    pub(crate) fn new(resources: Resources, clock: Clock, journal: Journal) -> Self {
        let jobs = resources.registry().plural(JOBS);
        let jobs = Arc::clone(jobs.expect("the list of kinds has jobs"));
        Self {
            resources,
            jobs,
            clock,
            journal,
        }
    }

    /// The time of what is written.
    #[must_use]
    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Makes a job.
    pub(crate) async fn make(&self, job: &FederatedJob, fence: Fence) -> Outcome {
        let object = serde_json::to_value(job).expect("a job holds only text, numbers and lists");
        let options = WriteOptions {
            field_validation: FieldValidation::Strict,
            field_manager: "meridian-hub".to_owned(),
            compares: vec![fence.compare()],
            ..WriteOptions::default()
        };
        let namespace = job.metadata.namespace.as_deref();
        let made = self
            .resources
            .create(&own_request(), &self.jobs, namespace, object, &options)
            .await;
        made.map_or_else(failure, |made| Outcome::Done(revision(&made.object)))
    }

    /// Deletes a job.
    pub(crate) async fn delete(&self, job: &Doomed, fence: Fence) -> Outcome {
        let options = DeleteOptions {
            preconditions: Preconditions {
                uid: Some(job.uid.to_string()),
                ..Preconditions::default()
            },
            compares: vec![fence.compare()],
            ..DeleteOptions::default()
        };
        let deleted = self
            .resources
            .delete(
                &own_request(),
                &self.jobs,
                Some(job.namespace.as_str()),
                &job.name,
                &options,
            )
            .await;
        deleted.map_or_else(failure, |deleted| Outcome::Done(revision(deleted.object())))
    }

    /// A job as it is stored, its templates with it.
    pub(crate) async fn stored(
        &self,
        namespace: Option<&str>,
        name: &str,
    ) -> Result<Value, Outcome> {
        let found = self.resources.get(&self.jobs, namespace, name);
        found.await.map_err(failure)
    }

    /// Tells a person that something is not as it should be.
    pub(crate) fn tell(&self, about: About<'_>, reason: &'static str, message: String) {
        self.journal.record(JournalEntry {
            number: 0,
            at: self.clock.wall(),
            kind: about.kind,
            namespace: about.namespace.to_owned(),
            name: about.name.to_owned(),
            uid: about.uid.map(|uid| uid.to_string()).unwrap_or_default(),
            gravity: Gravity::Warning,
            reason,
            message,
        });
    }
}

/// Why what is asked for is not done: each reason is news once.
#[derive(Debug, Default)]
pub(crate) struct Troubles(BTreeMap<Uid, String>);

impl Troubles {
    /// Notes why it is not so, or that nothing is in its way; returns what is news.
    pub(crate) fn note(&mut self, uid: Uid, trouble: Option<String>) -> Option<String> {
        let Some(why) = trouble else {
            self.0.remove(&uid);
            return None;
        };
        let before = self.0.insert(uid, why.clone());
        (before.as_ref() != Some(&why)).then_some(why)
    }
}

fn failure(status: ApiStatus) -> Outcome {
    match status.reason {
        // Gone, or changed meanwhile: the model is about to show which.
        StatusReason::NotFound | StatusReason::Conflict => Outcome::Soon,
        StatusReason::AlreadyExists => Outcome::Taken(status.message),
        StatusReason::ServiceUnavailable
        | StatusReason::Timeout
        | StatusReason::TooManyRequests
        | StatusReason::InternalError => Outcome::Failed(StoreError::Unavailable(status.message)),
        StatusReason::BadRequest
        | StatusReason::Unauthorized
        | StatusReason::Forbidden
        | StatusReason::MethodNotAllowed
        | StatusReason::NotAcceptable
        | StatusReason::Expired
        | StatusReason::RequestEntityTooLarge
        | StatusReason::UnsupportedMediaType
        | StatusReason::Invalid => {
            let causes = status.causes.iter();
            let causes = causes.map(|cause| format!("; {} {}", cause.path, cause.message));
            let causes: String = causes.collect();
            Outcome::Refused(format!("{}{causes}", status.message))
        }
    }
}

/// Revision of an object that was written.
fn revision(object: &Value) -> Revision {
    let text = object.pointer("/metadata/resourceVersion");
    let number = text
        .and_then(Value::as_str)
        .and_then(|text| text.parse().ok());
    Revision(number.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trouble_is_news_once_until_it_is_over() {
        let (mut troubles, uid) = (Troubles::default(), Uid(7));
        let mut note = |why: Option<&str>| troubles.note(uid, why.map(str::to_owned));
        assert_eq!(note(Some("no room")).as_deref(), Some("no room"));
        assert_eq!(note(Some("no room")), None);
        assert_eq!(note(Some("no class")).as_deref(), Some("no class"));
        assert_eq!(note(None), None);
        assert_eq!(note(Some("no class")).as_deref(), Some("no class"));
    }
}
