//! Offers: gangs that others made in a member cluster, as its agent last told.
//!
//! Owns what is known of them, and which are to be looked at again. An offer ends when a digest
//! says so, or when a whole digest of an agent that tells of offers lacks it. Never makes a job.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meridian_api::kinds::federated_job::validate::MAX_ROLES;
use meridian_api::units::Resources;
use meridian_proto::convert::MAX_OFFERS;
use meridian_proto::v1;

/// Longest name, as Kubernetes has it.
const MAX_NAME: usize = 253;
/// Longest UID: a UUID is half of it.
const MAX_UID: usize = 64;
/// Most flavors that one offer names: more than any fleet has.
const MAX_FLAVORS: usize = 64;

/// One offer in the fleet: its cluster, and the UID of what owns the pods there.
pub(crate) type OfferId = (String, String);

/// A gang that others made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// UID of the object that owns its pods.
    pub(crate) uid: String,
    /// Namespace of that object.
    pub(crate) namespace: String,
    /// Name of that object.
    pub(crate) name: String,
    /// The class that it asks for; empty = none.
    pub(crate) class: String,
    /// Its pods.
    pub(crate) roles: Vec<OfferedRole>,
    /// Flavors that it accepts; empty = all.
    pub(crate) flavors: Vec<String>,
    /// Among the jobs of its tenant and class.
    pub(crate) priority: i32,
}

/// Pods of an offer that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OfferedRole {
    /// Its name.
    pub(crate) name: String,
    /// How many pods.
    pub(crate) pods: u32,
    /// What each asks of its host.
    pub(crate) per_pod: Resources,
    /// Level that must hold all of them.
    pub(crate) required: Option<String>,
    /// Level that should.
    pub(crate) preferred: Option<String>,
}

impl Offer {
    /// Reads an offer; what somebody in a member cluster wrote is no reason to end a session, so
    /// one that makes no sense is passed over.
    pub(crate) fn read(offer: &v1::OfferedGang) -> Option<Self> {
        let named = |text: &String| !text.is_empty() && text.len() <= MAX_NAME;
        let sound = !offer.uid.is_empty()
            && offer.uid.len() <= MAX_UID
            && named(&offer.namespace)
            && named(&offer.name)
            && offer.workload_class.len() <= MAX_NAME
            && (1..=MAX_ROLES).contains(&offer.roles.len())
            && offer.flavors.len() <= MAX_FLAVORS
            && offer.flavors.iter().all(named);
        let roles = offer.roles.iter().map(|role| offered_role(offer, role));
        let roles = roles.collect::<Option<Vec<_>>>().filter(|_| sound);
        if roles.is_none() {
            let uid: String = offer.uid.chars().take(MAX_UID).collect();
            tracing::warn!(
                uid,
                "an offer of an agent makes no sense and is passed over"
            );
        }
        Some(Self {
            uid: offer.uid.clone(),
            namespace: offer.namespace.clone(),
            name: offer.name.clone(),
            class: offer.workload_class.clone(),
            roles: roles?,
            flavors: offer.flavors.clone(),
            priority: offer.priority,
        })
    }
}

fn offered_role(offer: &v1::OfferedGang, role: &v1::RoleIntent) -> Option<OfferedRole> {
    let rule = offer.topology.iter().find(|rule| rule.role == role.name);
    let level = |level: Option<&String>| level.filter(|level| !level.is_empty()).cloned();
    Some(OfferedRole {
        name: role.name.clone(),
        pods: role.pods,
        per_pod: role.per_pod?.into(),
        required: level(rule.map(|rule| &rule.required)),
        preferred: level(rule.map(|rule| &rule.preferred)),
    })
}

/// The offers of one cluster.
#[derive(Debug, Default)]
pub(crate) struct Offers {
    known: BTreeMap<String, Offered>,
    touched: BTreeSet<String>,
    /// Everything was told anew: what is not known is not offered any more.
    renewed: bool,
}

#[derive(Debug)]
struct Offered {
    offer: Arc<Offer>,
    /// Why it is not queued, as last told.
    trouble: Option<String>,
}

impl Offers {
    /// Takes in what a digest says.
    pub(super) fn absorb(&mut self, full: bool, offers: Vec<Offer>, removed: Vec<String>) {
        // What did not fit is not named, and is there all the same.
        let whole = full && offers.len() < MAX_OFFERS;
        let before = if whole {
            self.renewed = true;
            std::mem::take(&mut self.known)
        } else {
            BTreeMap::new()
        };
        self.touched.extend(before.keys().cloned());
        for uid in removed {
            self.known.remove(&uid);
            self.touched.insert(uid);
        }
        for offer in offers {
            let uid = offer.uid.clone();
            if self.known.len() >= MAX_OFFERS && !self.known.contains_key(&uid) {
                tracing::warn!(
                    uid,
                    "an offer beyond {MAX_OFFERS} of one cluster is passed over"
                );
                continue;
            }
            let known = self.known.remove(&uid);
            let trouble = known.and_then(|known| known.trouble);
            let trouble = trouble.or_else(|| before.get(&uid)?.trouble.clone());
            let offer = Arc::new(offer);
            self.known.insert(uid.clone(), Offered { offer, trouble });
            self.touched.insert(uid);
        }
    }

    /// One offer.
    #[must_use]
    pub(crate) fn get(&self, uid: &str) -> Option<&Arc<Offer>> {
        self.known.get(uid).map(|known| &known.offer)
    }

    /// Notes why an offer is not queued, or that it is; true when that is news.
    pub(crate) fn note(&mut self, uid: &str, trouble: Option<String>) -> bool {
        let Some(known) = self.known.get_mut(uid) else {
            return false;
        };
        let news = known.trouble != trouble;
        known.trouble = trouble;
        news
    }

    /// UIDs of offers that are not queued.
    pub(super) fn troubled(&self) -> impl Iterator<Item = &String> {
        let troubled = self
            .known
            .iter()
            .filter(|(_, known)| known.trouble.is_some());
        troubled.map(|(uid, _)| uid)
    }

    /// UIDs of all offers.
    pub(super) fn uids(&self) -> impl Iterator<Item = &String> {
        self.known.keys()
    }

    /// What digests touched since this was last asked, and whether one of them was full.
    pub(super) fn take_touched(&mut self) -> (BTreeSet<String>, bool) {
        (
            std::mem::take(&mut self.touched),
            std::mem::take(&mut self.renewed),
        )
    }

    /// The agent attaches anew: what it told before counts when it tells it again.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}
