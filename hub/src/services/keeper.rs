//! The keeper of services: carries out what they ask for.
//!
//! Owns the writes: replicas are made and deleted through the API server, as everybody's jobs;
//! status, and the end of a service that is deleted, go to the store. Every write compares the
//! leader's fence. Never decides (see `services`).

use std::collections::BTreeMap;
use std::sync::Arc;

use meridian_api::ids::{Revision, Uid};
use meridian_api::kinds::FederatedJob;
use meridian_api::units::{BootMillis, Millis};
use meridian_apiserver::{
    ApiStatus, DeleteOptions, FieldValidation, Kind, Preconditions, Resources, StatusReason,
    WriteOptions,
};
use meridian_runtime::Clock;
use meridian_store::keys::Part;
use meridian_store::{Compare, Op, Operation, SharedStore, StoreError};

use super::{Dropped, Wishes, wishes};
use crate::admission::own_request;
use crate::fence::{Commit, Fence, put};
use crate::journal::{Gravity, Journal, JournalEntry};
use crate::model::{FINALIZER, JOBS, Model, Service, Situation};
use crate::offers::revision;
use crate::settle::to_json;

/// Replicas made or deleted in one round: the decision of everybody else's work waits for them.
const WRITES_A_ROUND: usize = 64;
/// Clusters come, go and fill without a word to any service: all are looked at this often.
const LOOK_EVERY: Millis = Millis::seconds(10);

/// Carries out what services ask for.
pub(crate) struct ServiceKeeper {
    store: SharedStore,
    resources: Resources,
    jobs: Arc<Kind>,
    clock: Clock,
    journal: Journal,
    /// Why a replica could not be made, told once.
    troubles: BTreeMap<Uid, String>,
    /// When all services were last looked at.
    looked: BootMillis,
}

impl ServiceKeeper {
    /// A keeper that writes through `resources` and to `store`.
    #[must_use]
    pub(crate) fn new(
        store: SharedStore,
        resources: Resources,
        clock: Clock,
        journal: Journal,
    ) -> Self {
        let jobs = resources.registry().plural(JOBS);
        let jobs = Arc::clone(jobs.expect("the list of kinds has jobs"));
        Self {
            store,
            resources,
            jobs,
            clock,
            journal,
            troubles: BTreeMap::new(),
            looked: BootMillis::default(),
        }
    }

    /// Looks at the services that changed. The model has what this wrote when it has taken in the
    /// returned revision.
    pub(crate) async fn settle(
        &mut self,
        model: &mut Model,
        fence: Fence,
        situation: Situation,
    ) -> Result<Revision, StoreError> {
        let mut newest = Revision::default();
        let mut left = WRITES_A_ROUND;
        if situation.boot.since(self.looked) >= LOOK_EVERY {
            self.looked = situation.boot;
            model.unsettle_every_service();
        }
        let services = model.take_unsettled_services();
        for uid in services {
            let Some(service) = model.service(uid).cloned() else {
                self.troubles.remove(&uid);
                newest = newest.max(self.end_orphans(model, uid, fence).await);
                continue;
            };
            if left == 0 {
                model.unsettle_services([uid]);
                continue;
            }
            let wishes = wishes(model, &service, situation);
            let asked = wishes.drop.len() + wishes.make.len();
            if asked > left {
                model.unsettle_services([uid]);
            }
            newest = newest.max(self.carry_out(&service, &wishes, left, fence).await);
            left = left.saturating_sub(asked);
            match self.write(model, &service, wishes, fence).await {
                Ok(()) => {}
                Err(error) => {
                    model.unsettle_services([uid]);
                    return Err(error);
                }
            }
        }
        Ok(newest)
    }

    /// Replicas of a service that went without them, which takes a hand in the store.
    async fn end_orphans(&self, model: &Model, service: Uid, fence: Fence) -> Revision {
        let mut newest = Revision::default();
        for job in model.replicas_of(service).filter(|job| !job.is_deleting()) {
            let dropped = Dropped {
                uid: job.uid,
                namespace: job.key.namespace.clone().unwrap_or_default(),
                name: job.key.name.clone(),
            };
            newest = newest.max(self.drop(&dropped, fence).await.unwrap_or_default());
        }
        newest
    }

    async fn carry_out(
        &mut self,
        service: &Service,
        wishes: &Wishes,
        most: usize,
        fence: Fence,
    ) -> Revision {
        let (mut newest, mut trouble) = (Revision::default(), None);
        let (drops, makes) = (wishes.drop.iter(), wishes.make.iter());
        for dropped in drops.take(most) {
            match self.drop(dropped, fence).await {
                Ok(at) => newest = newest.max(at),
                Err(status) => trouble = why(&status),
            }
        }
        for job in makes.take(most.saturating_sub(wishes.drop.len())) {
            match self.make(job, fence).await {
                Ok(at) => newest = newest.max(at),
                Err(status) => trouble = why(&status).or(trouble),
            }
        }
        self.note(service, trouble);
        newest
    }

    async fn make(&self, job: &FederatedJob, fence: Fence) -> Result<Revision, ApiStatus> {
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
            .await?;
        Ok(revision(&made.object))
    }

    async fn drop(&self, dropped: &Dropped, fence: Fence) -> Result<Revision, ApiStatus> {
        let options = DeleteOptions {
            preconditions: Preconditions {
                uid: Some(dropped.uid.to_string()),
                ..Preconditions::default()
            },
            compares: vec![fence.compare()],
            ..DeleteOptions::default()
        };
        let (namespace, name) = (Some(dropped.namespace.as_str()), dropped.name.as_str());
        let deleted = self
            .resources
            .delete(&own_request(), &self.jobs, namespace, name, &options)
            .await?;
        Ok(revision(deleted.object()))
    }

    /// Writes status, or lets a deleted service go.
    async fn write(
        &self,
        model: &mut Model,
        service: &Service,
        wishes: Wishes,
        fence: Fence,
    ) -> Result<(), StoreError> {
        let (spec, status) = (service.key.part(Part::Spec), service.key.part(Part::Status));
        let finalizers = &service.object.metadata.finalizers;
        let held_by_others = finalizers.iter().any(|name| name != FINALIZER);
        let ops = if wishes.is_gone && !held_by_others {
            vec![Op::Delete { key: spec.clone() }, Op::Delete { key: status }]
        } else if service.status.as_deref() == Some(&wishes.status) {
            return Ok(());
        } else {
            vec![put(status, to_json(&wishes.status))]
        };
        let compares = vec![Compare::ModRevision(spec, service.spec_revision)];
        let why = Operation::CommitReport;
        match fence.write(self.store.as_ref(), why, compares, ops).await? {
            Commit::Done(at, events) => model.absorb_committed(&events, at),
            // It has changed meanwhile: the watch brings it, and it is looked at again.
            Commit::Conflict(_) | Commit::Deposed => {}
        }
        Ok(())
    }

    /// Tells, once for each reason, why a replica is not made.
    fn note(&mut self, service: &Service, trouble: Option<String>) {
        let Some(why) = trouble else {
            self.troubles.remove(&service.uid);
            return;
        };
        if self.troubles.get(&service.uid) == Some(&why) {
            return;
        }
        self.troubles.insert(service.uid, why.clone());
        self.journal.record(JournalEntry {
            number: 0,
            at: self.clock.wall(),
            kind: "FederatedService",
            namespace: service.key.namespace.clone().unwrap_or_default(),
            name: service.key.name.clone(),
            uid: service.uid.to_string(),
            gravity: Gravity::Warning,
            reason: "ReplicaNotMade",
            message: why,
        });
    }
}

/// What a person should know of a refusal; `None` when the model is about to show what happened,
/// or the store is to be asked again.
fn why(status: &ApiStatus) -> Option<String> {
    match status.reason {
        StatusReason::NotFound
        | StatusReason::Conflict
        | StatusReason::ServiceUnavailable
        | StatusReason::Timeout
        | StatusReason::TooManyRequests
        | StatusReason::InternalError => None,
        StatusReason::AlreadyExists
        | StatusReason::BadRequest
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
            Some(format!("{}{}", status.message, causes.collect::<String>()))
        }
    }
}
