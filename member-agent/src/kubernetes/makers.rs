//! What makes the pods of gangs that others bring: Jobs, JobSets and PyTorchJobs.
//!
//! Owns which kinds are watched and how each says that it is over. A kind that the cluster does not
//! have, or that the agent may not see, is looked for again from time to time: its pods are offered
//! all the same, by what they say themselves. Never changes one.

use futures::StreamExt as _;
use k8s_openapi::api::batch::v1::Job;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, WatchParams};
use meridian_api::units::Millis;

use super::KubernetesBackend;
use super::client::{Trouble, is_denied};
use super::others::Others;
use super::watch::{Word, Words, follow};
use crate::backend::ClusterEvent;

/// A kind that is not there is looked for again after this: people who install one wait for its
/// controller as long.
const LOOK_AGAIN: Millis = Millis::seconds(60);

/// What the watch tells of an object.
type Told = fn(DynamicObject) -> Word;

/// A kind of object that makes pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MakerKind {
    /// Kubernetes' own.
    Job,
    /// kubernetes-sigs/jobset: several Jobs.
    JobSet,
    /// kubeflow/training-operator.
    PyTorchJob,
}

/// Objects of a kind, and the version of their listing; `None` = the kind cannot be seen here.
pub(super) type Listed = Option<(Vec<DynamicObject>, String)>;

impl MakerKind {
    /// Every kind.
    pub(super) const ALL: [Self; 3] = [Self::Job, Self::JobSet, Self::PyTorchJob];

    fn resource(self) -> ApiResource {
        let (group, version, kind, plural) = match self {
            Self::Job => ("batch", "v1", "Job", "jobs"),
            Self::JobSet => ("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets"),
            Self::PyTorchJob => ("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs"),
        };
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    }

    /// Conditions by which an object of the kind says that it is over.
    const fn ends(self) -> [&'static str; 2] {
        match self {
            Self::Job => ["Complete", "Failed"],
            Self::JobSet => ["Completed", "Failed"],
            Self::PyTorchJob => ["Succeeded", "Failed"],
        }
    }

    fn is_over(self, object: &DynamicObject) -> bool {
        let conditions = object.data.pointer("/status/conditions");
        let conditions = conditions.and_then(serde_json::Value::as_array);
        let ended = conditions.into_iter().flatten().any(|condition| {
            let end = condition["type"].as_str().unwrap_or_default();
            self.ends().contains(&end) && condition["status"] == "True"
        });
        ended || object.metadata.deletion_timestamp.is_some()
    }

    /// Takes an object of the kind as the API shows it.
    pub(super) fn apply(self, object: DynamicObject, others: &mut Others) -> Vec<ClusterEvent> {
        let uid = object.metadata.uid.clone().unwrap_or_default();
        let over = self.is_over(&object);
        match self {
            Self::Job => object
                .try_parse::<Job>()
                .map_or_else(|_| Vec::new(), |job| others.apply_job(&job)),
            Self::JobSet | Self::PyTorchJob => others.apply_owner(&uid, over),
        }
    }

    /// An object of the kind is gone.
    pub(super) fn remove(self, object: DynamicObject, others: &mut Others) -> Vec<ClusterEvent> {
        let uid = object.metadata.uid.clone().unwrap_or_default();
        match self {
            Self::Job => object
                .try_parse::<Job>()
                .map_or_else(|_| Vec::new(), |job| others.remove_job(&job)),
            Self::JobSet | Self::PyTorchJob => others.remove_owner(&uid),
        }
    }
}

impl KubernetesBackend {
    /// All objects of a kind, in one namespace or in all.
    pub(super) async fn list_makers(
        &self,
        kind: MakerKind,
        namespace: Option<&str>,
    ) -> Result<Listed, Trouble> {
        let (client, resource) = (self.cluster.client(), kind.resource());
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        };
        match self.cluster.list(&api, &ListParams::default()).await {
            Ok(listed) => Ok(Some(listed)),
            Err(Trouble::NotFound) => Ok(None),
            Err(trouble) if is_denied(&trouble) => {
                tracing::debug!(?kind, ?trouble, "not seen");
                Ok(None)
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// What changes of a kind from `version` on; where it was not there, from when it is.
    pub(super) fn follow_makers(&self, kind: MakerKind, version: Option<String>) -> Words {
        let backend = self.clone();
        let Some(version) = version else {
            let first = async move { backend.makers_that_come(kind).await };
            return futures::stream::once(first).flatten().boxed();
        };
        let api: Api<DynamicObject> = Api::all_with(backend.cluster.client(), &kind.resource());
        let (is, gone): (Told, Told) = match kind {
            MakerKind::Job => (
                |object| Word::Maker(MakerKind::Job, Box::new(object)),
                |object| Word::MakerGone(MakerKind::Job, Box::new(object)),
            ),
            MakerKind::JobSet => (
                |object| Word::Maker(MakerKind::JobSet, Box::new(object)),
                |object| Word::MakerGone(MakerKind::JobSet, Box::new(object)),
            ),
            MakerKind::PyTorchJob => (
                |object| Word::Maker(MakerKind::PyTorchJob, Box::new(object)),
                |object| Word::MakerGone(MakerKind::PyTorchJob, Box::new(object)),
            ),
        };
        follow(api, WatchParams::default(), version, is, gone)
    }

    /// Waits until a kind can be seen.
    async fn makers_that_come(&self, kind: MakerKind) -> Words {
        loop {
            self.cluster.clock().sleep(LOOK_AGAIN).await;
            match self.list_makers(kind, None).await {
                Ok(Some((objects, version))) => {
                    let word = move |object| Ok(Word::Maker(kind, Box::new(object)));
                    let first = futures::stream::iter(objects.into_iter().map(word));
                    let rest = self.follow_makers(kind, Some(version));
                    return first.chain(rest).boxed();
                }
                Ok(None) => {}
                Err(trouble) => {
                    tracing::debug!(?kind, ?trouble, "not seen, looking again");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_kind_says_in_its_own_words_that_it_is_over() {
        let object = |word: &str, status: &str| -> DynamicObject {
            let condition = json!({"type": word, "status": status});
            let object = json!({
                "metadata": {"name": "x", "uid": "u"},
                "status": {"conditions": [{"type": "Suspended", "status": "False"}, condition]},
            });
            serde_json::from_value(object).expect("an object")
        };
        for kind in MakerKind::ALL {
            for word in kind.ends() {
                assert!(kind.is_over(&object(word, "True")), "{kind:?} {word}");
                assert!(!kind.is_over(&object(word, "False")), "{kind:?} {word}");
            }
            assert!(!kind.is_over(&object("Running", "True")), "{kind:?}");
        }
        assert!(!MakerKind::JobSet.is_over(&object("Complete", "True")));
    }
}
