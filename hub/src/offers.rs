//! Gangs made by others: each becomes a job, so that no work goes round quota.
//!
//! Owns the way from an offer to its job and back: the job is made when the offer is told, pinned
//! to the offer's cluster, and deleted when the offer is gone. One offer has one job, whoever leads
//! and however often it is told: its name follows from the offer, and every write compares the
//! leader's fence. Objects are written through the API server, as everybody's. Never decides where
//! or when such a job runs.

use futures::StreamExt as _;
use meridian_api::canonical::hex;
use meridian_api::ids::Revision;
use meridian_api::kinds::FederatedJob;
use meridian_api::kinds::federated_job::validate::MAX_RESTARTS;
use meridian_api::kinds::federated_job::{
    FederatedJobSpec, Flavor, Origin, Placement, Retry, Role, RoleResources, TopologyRule,
};
use meridian_api::quantity::{CpuQuantity, GpuQuantity, MemoryQuantity, SPEED_UNIT, Speed};
use meridian_store::StoreError;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::fence::Fence;
use crate::model::{Model, Offer, OfferId, OfferedRole};
use crate::own_writes::{About, Doomed, Outcome, OwnWrites};

/// Jobs made or deleted in one round: they share few durable writes, and the decision of everybody
/// else's work waits for them.
const WRITES_A_ROUND: usize = 128;
/// Writes under way at once, as many as the batcher puts into a few transactions.
const TOGETHER: usize = 32;
/// Longest part of a job's name that is the offer's: with the rest it is a label.
const MAX_STEM: usize = 52;
/// Hexadecimal digits of the hash in a job's name: offers of one namespace are told apart by it.
const HASH_DIGITS: usize = 10;

/// What is to be done about one offer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wish {
    /// Nothing: it has its job, or neither is there.
    Nothing,
    /// Its job is made.
    Make(Box<FederatedJob>),
    /// Its job is deleted: the pods' owner is gone.
    Drop(Doomed),
    /// It cannot be queued, for this reason.
    Hold(String),
}

/// What is to be done about an offer, by what the model says.
#[must_use]
pub(crate) fn wish(model: &Model, id: &OfferId, default_class: Option<&str>) -> Wish {
    let (cluster, uid) = id;
    let known = model.fleet.clusters.get(cluster);
    let job = model.job_of(id);
    let offer = known.and_then(|known| known.offers.get(uid));
    match (offer, job) {
        (Some(_), Some(_)) | (None, None) => Wish::Nothing,
        (Some(offer), None) => make(model, cluster, offer, default_class),
        (None, Some(job)) => {
            // Only an agent that is attached and tells of offers can say that one is gone.
            let told = known.is_some_and(|known| known.tells_offers && known.heard.is_some());
            if !told || job.is_deleting() || job.is_over() {
                return Wish::Nothing;
            }
            Wish::Drop(Doomed::of(job))
        }
    }
}

fn make(model: &Model, cluster: &str, offer: &Offer, default_class: Option<&str>) -> Wish {
    let class = Some(offer.class.as_str()).filter(|class| !class.is_empty());
    let Some(class) = class.or(default_class) else {
        return Wish::Hold(
            "it names no workload class: label it, or set offeredClass of the hub".to_owned(),
        );
    };
    if !model.catalog.classes.contains_key(class) {
        return Wish::Hold(format!("there is no WorkloadClass {class:?}: create it"));
    }
    let tenant = &offer.namespace;
    if !model.catalog.tenants.contains_key(tenant) {
        return Wish::Hold(format!(
            "there is no Tenant {tenant:?}, named like its namespace: create it"
        ));
    }
    let name = job_name(cluster, offer);
    if model.job_named(&offer.namespace, &name).is_some() {
        // Its own job would have been found by its origin.
        return Wish::Hold(format!("another job is named {name}: delete that one"));
    }
    Wish::Make(Box::new(job(cluster, offer, class)))
}

/// The job of an offer.
fn job(cluster: &str, offer: &Offer, class: &str) -> FederatedJob {
    let role = |role: &OfferedRole| Role {
        name: role.name.clone(),
        replicas: role.pods,
        gpus: GpuQuantity(role.per_pod.gpus),
        resources: RoleResources {
            cpu: CpuQuantity(role.per_pod.cpu),
            memory: MemoryQuantity(role.per_pod.memory),
        },
        // The pods are there already: nothing is made from it.
        template: Value::Object(serde_json::Map::new()),
    };
    let rule = |role: &OfferedRole| TopologyRule {
        role: role.name.clone(),
        required: role.required.clone(),
        preferred: role.preferred.clone(),
        ..TopologyRule::default()
    };
    let ruled = |role: &&OfferedRole| role.required.is_some() || role.preferred.is_some();
    let flavor = |name: &String| Flavor {
        name: name.clone(),
        speed: Speed(SPEED_UNIT),
        image: None,
        command: Vec::new(),
        env: std::collections::BTreeMap::new(),
    };
    let spec = FederatedJobSpec {
        tenant: Some(offer.namespace.clone()),
        workload_class: class.to_owned(),
        priority: offer.priority,
        placement: Placement {
            clusters: vec![cluster.to_owned()],
            flavors: offer.flavors.iter().map(flavor).collect(),
            ..Placement::default()
        },
        roles: offer.roles.iter().map(role).collect(),
        topology: offer.roles.iter().filter(ruled).map(rule).collect(),
        origin: Some(Origin {
            cluster: cluster.to_owned(),
            uid: offer.uid.clone(),
            name: offer.name.clone(),
        }),
        copies: 1,
        // Whoever made the pods makes them again, or gives up and takes the offer away.
        retry: Retry {
            max_restarts: MAX_RESTARTS,
            ..Retry::default()
        },
        ..FederatedJobSpec::default()
    };
    let mut job = FederatedJob::new(&job_name(cluster, offer), spec);
    job.metadata.namespace = Some(offer.namespace.clone());
    job
}

/// Name of an offer's job: the offer's, as far as it fits, and what tells it from every other.
fn job_name(cluster: &str, offer: &Offer) -> String {
    let stem = offer.name.replace('.', "-").to_ascii_lowercase();
    let stem: String = stem.chars().take(MAX_STEM).collect();
    let hash = hex(&Sha256::digest(format!("{cluster}/{}", offer.uid)).into());
    format!("{}-{}", stem.trim_matches('-'), &hash[..HASH_DIGITS])
}

/// Carries out what offers ask for.
pub(crate) struct OfferKeeper {
    writes: OwnWrites,
    default_class: Option<String>,
}

impl OfferKeeper {
    /// A keeper that writes with `writes`.
    #[must_use]
    pub(crate) fn new(writes: OwnWrites, default_class: Option<String>) -> Self {
        Self {
            writes,
            default_class,
        }
    }

    /// Looks at the offers that changed. The model has what this wrote when it has taken in the
    /// returned revision.
    pub(crate) async fn settle(
        &self,
        model: &mut Model,
        fence: Fence,
    ) -> Result<Revision, StoreError> {
        let (mut writes, mut left) = (Vec::new(), Vec::new());
        for id in model.take_offered() {
            match wish(model, &id, self.default_class.as_deref()) {
                Wish::Nothing => self.note(model, &id, None),
                Wish::Hold(why) => self.note(model, &id, Some(why)),
                wish @ (Wish::Make(_) | Wish::Drop(_)) => {
                    if writes.len() < WRITES_A_ROUND {
                        writes.push((id, wish));
                    } else {
                        left.push(id);
                    }
                }
            }
        }
        model.look_again(left);
        // In their order, so that nothing depends on which answer comes first.
        let writing = writes.into_iter().map(|(id, wish)| async move {
            let outcome = self.carry_out(wish, fence).await;
            (id, outcome)
        });
        let outcomes: Vec<_> = futures::stream::iter(writing)
            .buffered(TOGETHER)
            .collect()
            .await;
        let (mut newest, mut failed) = (Revision::default(), None);
        for (id, outcome) in outcomes {
            match outcome {
                Outcome::Done(revision) => {
                    newest = newest.max(revision);
                    self.note(model, &id, None);
                }
                Outcome::Refused(why) => self.note(model, &id, Some(why)),
                Outcome::Soon | Outcome::Taken(_) => model.look_again([id]),
                Outcome::Failed(error) => {
                    model.look_again([id]);
                    failed = Some(error);
                }
            }
        }
        failed.map_or(Ok(newest), Err)
    }

    async fn carry_out(&self, wish: Wish, fence: Fence) -> Outcome {
        match wish {
            Wish::Nothing | Wish::Hold(_) => Outcome::Soon,
            Wish::Make(job) => self.writes.make(&job, fence).await,
            Wish::Drop(doomed) => self.writes.delete(&doomed, fence).await,
        }
    }

    /// Tells, once for each reason, why an offer is not queued.
    fn note(&self, model: &mut Model, id: &OfferId, trouble: Option<String>) {
        let (cluster, uid) = id;
        let Some(known) = model.fleet.clusters.get_mut(cluster) else {
            return;
        };
        let Some(offer) = known.offers.get(uid).cloned() else {
            return;
        };
        if !known.offers.note(uid, trouble.clone()) {
            return;
        }
        let Some(why) = trouble else { return };
        let about = About {
            kind: "MemberCluster",
            namespace: "",
            name: cluster,
            uid: None,
        };
        let (namespace, name) = (&offer.namespace, &offer.name);
        let message = format!("{namespace}/{name} was made there and is not queued: {why}");
        self.writes.tell(about, "OfferNotQueued", message);
    }
}

#[cfg(test)]
#[path = "offers_tests.rs"]
mod tests;
