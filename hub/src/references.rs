//! References: the tenants and classes that jobs name, read once per change of any policy.
//!
//! Owns the parsed objects and the policy head at which they were read. What is kept is never
//! trusted by itself: whoever uses it compares that head in the write's transaction, so that a
//! job admitted on an old class is not stored. Never holds a job.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use meridian_api::ids::Revision;
use meridian_api::kinds::{Tenant, WorkloadClass};
use meridian_store::keys::{self, ObjectKey, Part};
use meridian_store::{Compare, Operation, SharedStore, StoreError};
use serde::de::DeserializeOwned;

/// Objects of one kind that are kept. A platform has some thousands of tenants; names of tenants
/// that are not there are kept too, and a caller can invent those, hence the bound.
const MAX_KEPT: usize = 10_000;

/// How fresh what is read must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freshness {
    /// Whatever is known: the transaction finds out whether it still holds.
    Known,
    /// The transaction has found that it does not hold any more, or there will be none.
    Read,
}

/// Tenants and classes by name.
pub(crate) struct References {
    store: SharedStore,
    known: Mutex<Option<Arc<Known>>>,
}

/// Everything read at one policy head.
struct Known {
    head: Revision,
    tenants: Mutex<Table<Tenant>>,
    classes: Mutex<Table<WorkloadClass>>,
}

type Table<T> = BTreeMap<String, Option<Arc<T>>>;

/// What a job named, as of one policy head.
pub(crate) struct Named {
    /// Its tenant, if there is one of that name.
    pub(crate) tenant: Option<Arc<Tenant>>,
    /// Its class, if there is one of that name.
    pub(crate) class: Option<Arc<WorkloadClass>>,
    /// Holds as long as both are as they were read.
    pub(crate) unchanged: Compare,
}

impl References {
    /// References into `store`.
    #[must_use]
    pub(crate) fn new(store: SharedStore) -> Self {
        Self {
            store,
            known: Mutex::new(None),
        }
    }

    /// The tenant and the class of those names.
    pub(crate) async fn named(
        &self,
        tenant: &str,
        class: &str,
        freshness: Freshness,
    ) -> Result<Named, StoreError> {
        let known = self.known(freshness).await?;
        let unchanged = Compare::ModRevision(keys::policy_head(), known.head);
        Ok(Named {
            tenant: self.object(&known.tenants, "tenants", tenant).await?,
            class: self
                .object(&known.classes, "workloadclasses", class)
                .await?,
            unchanged,
        })
    }

    /// The table of the present policy head, as far as that must be known. The head is read
    /// before the objects: one that changes between the two reads has changed the head as well.
    async fn known(&self, freshness: Freshness) -> Result<Arc<Known>, StoreError> {
        let kept = lock(&self.known).clone();
        if let (Some(kept), Freshness::Known) = (&kept, freshness) {
            return Ok(Arc::clone(kept));
        }
        let head = self.store.get(Operation::WriteObject, keys::policy_head());
        let head = head.await?.map_or(Revision(0), |head| head.mod_revision);
        let mut kept = lock(&self.known);
        match &*kept {
            Some(kept) if kept.head == head => Ok(Arc::clone(kept)),
            // Another one, lower too: a store may have been restored.
            Some(_) | None => {
                let known = Known {
                    head,
                    tenants: Mutex::default(),
                    classes: Mutex::default(),
                };
                Ok(Arc::clone(kept.insert(Arc::new(known))))
            }
        }
    }

    async fn object<T: DeserializeOwned>(
        &self,
        table: &Mutex<Table<T>>,
        plural: &str,
        name: &str,
    ) -> Result<Option<Arc<T>>, StoreError> {
        if let Some(kept) = lock(table).get(name) {
            return Ok(kept.clone());
        }
        let key = ObjectKey {
            plural: plural.to_owned(),
            namespace: None,
            name: name.to_owned(),
        };
        let stored = self.store.get(Operation::WriteObject, key.part(Part::Spec));
        let object = stored
            .await?
            .and_then(|stored| serde_json::from_slice(&stored.value).ok())
            .map(Arc::new);
        let mut table = lock(table);
        if table.len() >= MAX_KEPT {
            table.clear();
        }
        table.insert(name.to_owned(), object.clone());
        Ok(object)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use meridian_api::units::UnixMillis;
    use meridian_runtime::Clock;
    use meridian_store::{MemoryStore, Op, Store as _, Txn};
    use serde_json::json;

    use super::*;

    async fn write(store: &MemoryStore, priority: i32) {
        let key = ObjectKey {
            plural: "workloadclasses".to_owned(),
            namespace: None,
            name: "batch".to_owned(),
        };
        let class = json!({
            "apiVersion": "meridian.dev/v1alpha1", "kind": "WorkloadClass",
            "metadata": {"name": "batch"},
            "spec": {"priority": priority, "preemption": "Never"},
        });
        let put = |key, value: String| Op::Put {
            key,
            value: value.into(),
            lease: None,
        };
        let txn = Txn {
            success: vec![
                put(key.part(Part::Spec), class.to_string()),
                put(keys::policy_head(), String::new()),
            ],
            ..Txn::default()
        };
        store.txn(Operation::Probe, txn).await.expect("written");
    }

    async fn holds(store: &MemoryStore, named: &Named) -> bool {
        let txn = Txn {
            compares: vec![named.unchanged.clone()],
            ..Txn::default()
        };
        let answer = store.txn(Operation::Probe, txn).await.expect("compared");
        answer.succeeded
    }

    #[tokio::test]
    async fn what_is_kept_fails_its_compare_once_a_policy_changes() {
        let store = MemoryStore::new(Clock::simulated(UnixMillis(0)));
        let references = References::new(Arc::new(store.clone()));
        let named = |freshness| references.named("nlp", "batch", freshness);
        let priority = |named: &Named| named.class.as_ref().map(|class| class.spec.priority);

        let before = named(Freshness::Known).await.expect("readable");
        assert!(priority(&before).is_none() && before.tenant.is_none());
        assert!(holds(&store, &before).await, "nothing has been written yet");

        write(&store, 1).await;
        let kept = named(Freshness::Known).await.expect("readable");
        assert!(priority(&kept).is_none(), "nobody has said that it changed");
        assert!(!holds(&store, &kept).await, "the transaction says so");

        let read = named(Freshness::Read).await.expect("readable");
        assert_eq!(priority(&read), Some(1));
        assert!(holds(&store, &read).await);
        let kept = named(Freshness::Known).await.expect("readable");
        assert_eq!(priority(&kept), Some(1), "what was read is kept");
    }
}
