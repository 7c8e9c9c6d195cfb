//! The keeper of services: carries out what they ask for.
//!
//! Owns the writes: replicas are made and deleted through the API server, as everybody's jobs;
//! status, and the end of a service that is deleted, go to the store. Every write compares the
//! leader's fence. Never decides (see `services`).

use meridian_api::ids::{Revision, Uid};
use meridian_api::units::{BootMillis, Millis};
use meridian_store::keys::Part;
use meridian_store::{Compare, Op, Operation, SharedStore, StoreError};

use super::{Wishes, wishes};
use crate::fence::{Commit, Fence, put};
use crate::model::{FINALIZER, Model, Service, Situation};
use crate::own_writes::{About, Doomed, Outcome, OwnWrites, Troubles};
use crate::settle::to_json;

/// Replicas made or deleted in one round: the decision of everybody else's work waits for them.
const WRITES_A_ROUND: usize = 64;
/// Clusters come, go and fill without a word to any service: all are looked at this often.
const LOOK_EVERY: Millis = Millis::seconds(10);

/// Carries out what services ask for.
pub(crate) struct ServiceKeeper {
    store: SharedStore,
    writes: OwnWrites,
    troubles: Troubles,
    /// When all services were last looked at.
    looked: BootMillis,
}

impl ServiceKeeper {
    /// A keeper that makes replicas with `writes`, and writes what is so with services to `store`.
    #[must_use]
    pub(crate) fn new(store: SharedStore, writes: OwnWrites) -> Self {
        Self {
            store,
            writes,
            troubles: Troubles::default(),
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
                self.troubles.note(uid, None);
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
            if let Outcome::Done(at) = self.writes.delete(&Doomed::of(job), fence).await {
                newest = newest.max(at);
            }
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
        for doomed in drops.take(most) {
            let outcome = self.writes.delete(doomed, fence).await;
            take_in(outcome, &mut newest, &mut trouble);
        }
        for job in makes.take(most.saturating_sub(wishes.drop.len())) {
            let outcome = self.writes.make(job, fence).await;
            take_in(outcome, &mut newest, &mut trouble);
        }
        self.note(service, trouble);
        newest
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
        let Some(why) = self.troubles.note(service.uid, trouble) else {
            return;
        };
        let about = About {
            kind: "FederatedService",
            namespace: service.key.namespace.as_deref().unwrap_or_default(),
            name: &service.key.name,
            uid: Some(service.uid),
        };
        self.writes.tell(about, "ReplicaNotMade", why);
    }
}

/// What a write came to, and of a refusal what a person should know: of the rest the model is about
/// to show what happened, or the store is asked again.
fn take_in(outcome: Outcome, newest: &mut Revision, trouble: &mut Option<String>) {
    match outcome {
        Outcome::Done(at) => *newest = (*newest).max(at),
        Outcome::Taken(why) | Outcome::Refused(why) => *trouble = Some(why),
        Outcome::Soon | Outcome::Failed(_) => {}
    }
}
