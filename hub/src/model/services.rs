//! Services as the model keeps them, and which jobs are their replicas.
//!
//! Owns the rows and the index from a service to its replicas. Never decides how many there are.

use std::collections::BTreeSet;
use std::sync::Arc;

use meridian_api::ids::{Revision, Uid};
use meridian_api::kinds::FederatedService;
use meridian_api::kinds::federated_service::FederatedServiceStatus;
use meridian_api::meta::Spec;
use meridian_store::KeyValue;
use meridian_store::keys::ObjectKey;
use serde_json::Value;

use super::{Job, Model};

/// Plural under which services are stored.
pub(crate) const PLURAL: &str = "federatedservices";

/// One service.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    /// Its identity.
    pub(crate) uid: Uid,
    /// Where it is stored.
    pub(crate) key: ObjectKey,
    /// Metadata and spec.
    pub(crate) object: Arc<FederatedService>,
    /// Revision of the spec.
    pub(crate) spec_revision: Revision,
    /// Status as last written.
    pub(crate) status: Option<Arc<FederatedServiceStatus>>,
    /// Revision of the status.
    status_revision: Revision,
}

impl Service {
    /// Asked to go.
    #[must_use]
    pub(crate) fn is_deleting(&self) -> bool {
        self.object.metadata.deletion_timestamp.is_some()
    }
}

/// The service that the owner references of a job name as its controller.
pub(super) fn service_of(owners: &[Value]) -> Option<Uid> {
    let kind = meridian_api::kinds::federated_service::FederatedServiceSpec::KIND;
    let owner = owners
        .iter()
        .find(|owner| owner["kind"] == kind && owner["controller"] == true)?;
    owner["uid"].as_str()?.parse().ok()
}

fn name_of(key: &ObjectKey) -> (String, String) {
    (key.namespace.clone().unwrap_or_default(), key.name.clone())
}

impl Model {
    pub(super) fn put_service(&mut self, key: &ObjectKey, entry: &KeyValue) {
        let object: FederatedService = match serde_json::from_slice(&entry.value) {
            Ok(object) => object,
            Err(error) => {
                tracing::error!(key = ?key, %error, "a stored service cannot be read");
                return;
            }
        };
        let uid = object.metadata.uid.unwrap_or_default();
        let known = self.services.get(&uid);
        if known.is_some_and(|known| known.spec_revision >= entry.mod_revision) {
            return;
        }
        let status = known.and_then(|known| known.status.clone());
        let status_revision = known.map(|known| known.status_revision).unwrap_or_default();
        let service = Service {
            uid,
            key: key.clone(),
            object: Arc::new(object),
            spec_revision: entry.mod_revision,
            status,
            status_revision,
        };
        self.service_names.insert(name_of(key), uid);
        self.services.insert(uid, service);
        self.unsettled_services.insert(uid);
    }

    pub(super) fn put_service_status(&mut self, key: &ObjectKey, entry: &KeyValue) {
        let uid = self.service_names.get(&name_of(key)).copied();
        let service = uid.and_then(|uid| self.services.get_mut(&uid));
        let Some(service) = service.filter(|it| it.status_revision < entry.mod_revision) else {
            return;
        };
        service.status = serde_json::from_slice(&entry.value).ok().map(Arc::new);
        service.status_revision = entry.mod_revision;
    }

    pub(super) fn delete_service(&mut self, key: &ObjectKey, revision: Revision) {
        let name = name_of(key);
        let Some(uid) = self.service_names.get(&name).copied() else {
            return;
        };
        let is_older = |service: &Service| service.spec_revision < revision;
        if self.services.get(&uid).is_some_and(is_older) {
            self.service_names.remove(&name);
            self.services.remove(&uid);
            self.unsettled_services.insert(uid);
        }
    }

    /// A job came or changed: its service, if it has one, is looked at.
    pub(super) fn note_replica(&mut self, job: Uid, service: Option<Uid>) {
        if let Some(service) = service {
            self.replicas.entry(service).or_default().insert(job);
            self.unsettled_services.insert(service);
        }
    }

    /// A job is gone.
    pub(super) fn forget_replica(&mut self, job: &Job) {
        let Some(service) = job.marks.service else {
            return;
        };
        if let Some(replicas) = self.replicas.get_mut(&service) {
            replicas.remove(&job.uid);
            if replicas.is_empty() {
                self.replicas.remove(&service);
            }
        }
        self.unsettled_services.insert(service);
    }

    /// The service of that identity.
    #[must_use]
    pub(crate) fn service(&self, uid: Uid) -> Option<&Service> {
        self.services.get(&uid)
    }

    /// Jobs that are replicas of a service, by identity.
    pub(crate) fn replicas_of(&self, service: Uid) -> impl Iterator<Item = &Job> {
        let replicas = self.replicas.get(&service).into_iter().flatten();
        replicas.filter_map(|job| self.job(*job))
    }

    /// Services to look at, once.
    pub(crate) fn take_unsettled_services(&mut self) -> BTreeSet<Uid> {
        std::mem::take(&mut self.unsettled_services)
    }

    /// Looks at these again.
    pub(crate) fn unsettle_services(&mut self, services: impl IntoIterator<Item = Uid>) {
        self.unsettled_services.extend(services);
    }

    /// Looks at all of them, and at replicas whose service is gone.
    pub(crate) fn unsettle_every_service(&mut self) {
        self.unsettled_services.extend(self.services.keys());
        self.unsettled_services.extend(self.replicas.keys());
    }
}
