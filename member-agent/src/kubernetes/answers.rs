//! What a pod tells the agent itself: believed for its own pod, by a token that only it has.
//!
//! Owns the token of each pod and its check. The token is drawn when the pod is made and stands in
//! its environment; what is kept is its hash, as an annotation of the pod, so any life of the agent
//! can check it and nobody can read it back. Never writes more than the answer's one annotation.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Patch, PatchParams};
use meridian_api::canonical::hex;
use meridian_api::units::UnixMillis;
use meridian_runtime::Random;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::client::{Trouble, found};
use super::index::member_key;
use super::{KubernetesBackend, names};
use crate::backend::BackendError;

/// Bytes of a token: nobody guesses 256 bits.
const TOKEN: usize = 32;

/// Where pods find the agent.
#[derive(Clone, Debug)]
pub struct AnswersOptions {
    /// What it is to pods: `http://host:port`.
    pub url: String,
    /// Draws tokens.
    pub random: Random,
}

/// A pod that has shown its token.
#[derive(Clone, Debug)]
pub struct Caller(Pod);

/// Why a call is not believed or not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerRefused {
    /// No pod of a gang has this name and this token.
    #[error("no pod of a gang has this name and this token")]
    Unknown,
    /// The cluster did not do it.
    #[error(transparent)]
    Failed(#[from] BackendError),
}

impl From<Trouble> for AnswerRefused {
    fn from(trouble: Trouble) -> Self {
        Self::Failed(trouble.into())
    }
}

impl AnswersOptions {
    /// A token, for one pod.
    pub(super) fn token(&self) -> String {
        let mut bytes = [0; TOKEN];
        self.random.fill(&mut bytes);
        hex(&bytes)
    }

    /// Where the pod of this name calls.
    pub(super) fn url_of(&self, namespace: &str, pod: &str) -> String {
        let url = self.url.trim_end_matches('/');
        format!("{url}/v1/pods/{namespace}/{pod}")
    }
}

/// What is kept of a token.
pub(super) fn hash(token: &str) -> String {
    hex(&Sha256::digest(token).into())
}

/// True when the pod is a gang's and was made with this token. Hashes are compared, so the time
/// that it takes tells nothing of the token.
fn believes(pod: &Pod, token: &str) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    let kept = annotations.and_then(|all| all.get(names::ANSWER_TOKEN));
    member_key(pod).is_some() && kept == Some(&hash(token))
}

impl KubernetesBackend {
    /// The pod of this name, when it is a gang's and was made with this token.
    pub async fn believed(
        &self,
        namespace: &str,
        pod: &str,
        token: &str,
    ) -> Result<Caller, AnswerRefused> {
        let api: Api<Pod> = self.cluster.within(namespace);
        let held = found(self.cluster.call(api.get(pod)).await)?;
        let held = held.filter(|held| believes(held, token));
        held.map(Caller).ok_or(AnswerRefused::Unknown)
    }

    /// A pod says when its newest checkpoint was written.
    pub async fn answered(&self, caller: &Caller, at: UnixMillis) -> Result<(), AnswerRefused> {
        let meta = &caller.0.metadata;
        let api: Api<Pod> = self
            .cluster
            .within(meta.namespace.as_deref().unwrap_or_default());
        let at = jiff::Timestamp::from_millisecond(at.0).unwrap_or(jiff::Timestamp::MIN);
        let patch = json!({"metadata": {
            "uid": meta.uid,
            "annotations": {names::CHECKPOINT: at.to_string()},
        }});
        let params = PatchParams {
            field_manager: Some(names::MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let patch = Patch::Merge(&patch);
        let pod = meta.name.as_deref().unwrap_or_default();
        let change = api.patch_metadata(pod, &params, &patch);
        match found(self.cluster.call(change).await)? {
            Some(_) => Ok(()),
            None => Err(AnswerRefused::Unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn a_token_is_good_for_its_own_pod_of_a_gang_alone() {
        let options = AnswersOptions {
            url: "http://agent:7790/".to_owned(),
            random: Random::seeded(1),
        };
        let (own, other) = (options.token(), options.token());
        assert_ne!(own, other);
        assert_eq!(options.url_of("ml", "p"), "http://agent:7790/v1/pods/ml/p");
        let slip = json!({
            "role": "worker", "order": 0, "rank": 0, "node": "n", "attempt": 0,
            "request": meridian_api::units::Resources::default(),
            "terms": crate::backend::GangTerms::default(),
        });
        let pod = |labels: Value, hash: &str| -> Pod {
            let annotations = json!({names::SLIP: slip.to_string(), names::ANSWER_TOKEN: hash});
            let meta = json!({"labels": labels, "annotations": annotations});
            serde_json::from_value(json!({"metadata": meta})).expect("a pod")
        };
        let gang = format!("{}-0", meridian_api::ids::Uid(5));
        let ours = json!({names::MANAGED_BY: names::MANAGER, names::GANG: gang, names::EPOCH: "1"});
        assert!(believes(&pod(ours.clone(), &hash(&own)), &own));
        assert!(!believes(&pod(ours.clone(), &hash(&own)), &other));
        assert!(
            !believes(&pod(ours, &hash(&own)), &hash(&own)),
            "what is kept opens nothing"
        );
        assert!(
            !believes(&pod(json!({}), &hash(&own)), &own),
            "no pod of a gang"
        );
    }
}
