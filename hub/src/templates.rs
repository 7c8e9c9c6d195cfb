//! Pod templates by content: read from the job they belong to, kept while they are of use.
//!
//! Owns a bounded cache. A template is sent with the order that needs it; equal templates of
//! thousands of jobs are one entry. Never invents one: a hash that does not match is not sent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use meridian_api::canonical;
use meridian_api::ids::{Epoch, GangId};
use meridian_api::kinds::FederatedJob;
use meridian_proto::v1;
use meridian_store::keys::{ObjectKey, Part};
use meridian_store::{Operation, SharedStore};

use crate::placement::PlacementRecord;
use crate::sessions::Order;

/// Templates kept. At some 4 KiB each that is 16 MiB; the oldest hash goes first, which costs one
/// read when it is needed again.
const KEPT: usize = 4096;

/// Templates by their hash.
pub(crate) struct Templates {
    store: SharedStore,
    kept: Mutex<BTreeMap<String, Bytes>>,
}

impl Templates {
    /// An empty cache over the store's jobs.
    #[must_use]
    pub(crate) fn new(store: SharedStore) -> Self {
        Self {
            store,
            kept: Mutex::new(BTreeMap::new()),
        }
    }

    /// The templates that these orders name, each once. One that cannot be read is left out: the
    /// agent then refuses the order by name.
    pub(crate) async fn of(&self, orders: &[(GangId, Epoch, &Order)]) -> Vec<v1::Template> {
        let mut found = Vec::new();
        let mut named = BTreeSet::new();
        for (_, _, order) in orders {
            let Order::Run(record) = order else { continue };
            for role in &record.roles {
                if !named.insert(role.template.clone()) {
                    continue;
                }
                if let Some((sha256, json)) =
                    self.template(record, &role.name, &role.template).await
                {
                    found.push(v1::Template { sha256, json });
                } else {
                    let (job, role) = (&record.job, &role.name);
                    tracing::warn!(%job, %role, "the job's pod template is gone");
                }
            }
        }
        found
    }

    async fn template(
        &self,
        record: &PlacementRecord,
        role: &str,
        hash: &str,
    ) -> Option<(Bytes, Bytes)> {
        let known = self.lock().get(hash).cloned();
        let json = match known {
            Some(json) => json,
            None => self.read(record, role, hash).await?,
        };
        let sha256 = canonical::sha256(&serde_json::from_slice(&json).ok()?);
        Some((Bytes::copy_from_slice(&sha256), json))
    }

    async fn read(&self, record: &PlacementRecord, role: &str, hash: &str) -> Option<Bytes> {
        let key = ObjectKey {
            plural: "federatedjobs".to_owned(),
            namespace: Some(record.namespace.clone()),
            name: record.job.clone(),
        };
        let stored = self
            .store
            .get(Operation::GetObject, key.part(Part::Spec))
            .await
            .ok()??;
        let job: FederatedJob = serde_json::from_slice(&stored.value).ok()?;
        let role = job
            .spec
            .roles
            .iter()
            .find(|candidate| candidate.name == role)?;
        if canonical::hex(&canonical::sha256(&role.template)) != hash {
            return None;
        }
        // The agent checks the hash of what it gets: canonical bytes are what was hashed.
        let json = Bytes::from(canonical::to_string(&role.template));
        let mut kept = self.lock();
        if kept.len() >= KEPT {
            kept.pop_first();
        }
        kept.insert(hash.to_owned(), json.clone());
        Some(json)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Bytes>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
