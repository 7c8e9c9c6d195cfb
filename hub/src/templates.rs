//! Pod templates by content: read from the job they belong to, kept while they are of use.
//!
//! Owns a bounded cache, and how orders and the templates that they name are cut into pages. Equal
//! templates of thousands of jobs are one entry. Never invents one: an order whose template cannot
//! be read is withheld, not sent without it.

use std::borrow::Cow;
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

/// Templates kept. At some 4 KiB each that is 16 MiB; the lowest hash goes first, which is as good
/// as any and costs one read when it is needed again.
const KEPT: usize = 4096;
/// Placements in one message, at some 2 KiB each.
const PAGE_ORDERS: usize = 256;
/// Bytes of templates in one message, the last one's apart: with the placements it stays below
/// tonic's 4 MiB.
const PAGE_BYTES: usize = 2 * 1024 * 1024;

/// Templates by their hash.
pub(crate) struct Templates {
    store: SharedStore,
    kept: Mutex<BTreeMap<String, Bytes>>,
}

/// Where in a job a document is, and its hash in hexadecimal.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// Template of the role of this name.
    Role(&'a str, &'a str),
    /// What the job carries.
    Carried(&'a str),
}

impl<'a> Source<'a> {
    const fn hash(self) -> &'a str {
        match self {
            Self::Role(_, hash) | Self::Carried(hash) => hash,
        }
    }
}

/// One message's worth of orders.
#[derive(Debug, Default)]
pub(crate) struct Page<'a> {
    /// Orders to send.
    pub(crate) orders: Vec<(GangId, Epoch, &'a Order)>,
    /// The templates that they name, each once.
    pub(crate) templates: Vec<v1::Template>,
    /// Orders that must not be sent yet.
    pub(crate) withheld: Vec<(GangId, Epoch)>,
    /// How many orders were looked at, both kinds together.
    pub(crate) taken: usize,
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

    /// As many of `orders`, from the first on, as fit one message.
    pub(crate) async fn page<'a>(&self, orders: &[(GangId, Epoch, &'a Order)]) -> Page<'a> {
        let mut page = Page::default();
        let (mut named, mut bytes) = (BTreeSet::new(), 0);
        for (gang, epoch, order) in orders {
            if page.taken >= PAGE_ORDERS || bytes >= PAGE_BYTES {
                break;
            }
            page.taken += 1;
            let Some(templates) = self.of(order, &named).await else {
                tracing::warn!(%gang, "a pod template cannot be read, its order is withheld");
                page.withheld.push((*gang, *epoch));
                continue;
            };
            for (hash, template) in templates {
                bytes += template.json.len();
                named.insert(hash);
                page.templates.push(template);
            }
            page.orders.push((*gang, *epoch, order));
        }
        page
    }

    /// Templates that the order names and `named` lacks; `None` when one cannot be read.
    async fn of(
        &self,
        order: &Order,
        named: &BTreeSet<String>,
    ) -> Option<BTreeMap<String, v1::Template>> {
        let mut found = BTreeMap::new();
        let (Order::Run(record, ..) | Order::Shrink(record, ..)) = order else {
            return Some(found);
        };
        let roles = record
            .roles
            .iter()
            .map(|role| Source::Role(&role.name, &role.template));
        let carried = record.carried.iter().map(|hash| Source::Carried(hash));
        for source in roles.chain(carried) {
            let hash = source.hash();
            if named.contains(hash) || found.contains_key(hash) {
                continue;
            }
            let document = self.document(record, source).await?;
            found.insert(hash.to_owned(), document);
        }
        Some(found)
    }

    async fn document(&self, record: &PlacementRecord, source: Source<'_>) -> Option<v1::Template> {
        let known = self.lock().get(source.hash()).cloned();
        let json = match known {
            Some(json) => json,
            None => self.read(record, source).await?,
        };
        let sha256 = canonical::sha256(&serde_json::from_slice(&json).ok()?);
        Some(v1::Template {
            sha256: Bytes::copy_from_slice(&sha256),
            json,
        })
    }

    async fn read(&self, record: &PlacementRecord, source: Source<'_>) -> Option<Bytes> {
        let key = ObjectKey {
            plural: "federatedjobs".to_owned(),
            namespace: Some(record.namespace.to_string()),
            name: record.job.to_string(),
        };
        let stored = self
            .store
            .get(Operation::GetObject, key.part(Part::Spec))
            .await
            .ok()??;
        let job: FederatedJob = serde_json::from_slice(&stored.value).ok()?;
        let document = match source {
            Source::Role(role, hash) => template(&job, role, &record.flavor, hash)?,
            Source::Carried(_) => Cow::Owned(job.carried_document()?),
        };
        let hash = source.hash();
        if canonical::hex(&canonical::sha256(&document)) != hash {
            return None;
        }
        // The agent checks the hash of what it gets: canonical bytes are what was hashed.
        let json = Bytes::from(canonical::to_string(&document));
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

/// The form of a role's template that has this hash, whichever override made it.
fn template<'a>(
    job: &'a FederatedJob,
    role: &str,
    flavor: &str,
    hash: &str,
) -> Option<Cow<'a, serde_json::Value>> {
    let places = (0..job.spec.overrides.len()).map(Some);
    let mut forms = std::iter::once(None)
        .chain(places)
        .filter_map(|place| job.template_at(role, flavor, place));
    forms.find(|form| canonical::hex(&canonical::sha256(form.as_ref())) == hash)
}
