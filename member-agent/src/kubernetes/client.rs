//! Calls to a Kubernetes API: bounded in time, bounded in number, and what their errors mean.
//!
//! Owns the one way in which the agent asks its cluster, and the mapping of the API's errors.
//! Never decides what to ask, and never repeats a call: the caller's next round does.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams, Preconditions, VersionMatch};
use kube::core::ClusterResourceScope;
use kube::{Client, Resource};
use meridian_api::units::Millis;
use meridian_runtime::Clock;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;

use super::names;
use crate::backend::BackendError;

/// Objects in one page of a listing: some megabytes for pods.
const PAGE: u32 = 500;
/// Most pages of one listing: a cluster has at most 150,000 pods by Kubernetes' own limits.
const MAX_PAGES: usize = 400;
/// Calls under way for one gang. An API server's default share for one client is some tens.
const WIDTH: usize = 32;
/// Calls under way for all gangs, so that the largest leaves as much for the others. An API server
/// that is asked for more at once answers none of them sooner, and its own cache falls behind.
const MAX_REQUESTS: usize = 2 * WIDTH;

/// Why a call did not do what it asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// There is no such object.
    NotFound,
    /// There is one already.
    Exists,
    /// The object is not as the call expects it.
    Changed,
    /// The request is none as it is written; the words are for the job's author.
    Refused(String),
    /// A rule of this cluster says no: an admission policy or webhook, a quota, a limit.
    Denied(String),
    /// No answer, or one that is about the cluster and not about the request.
    Away(String),
}

impl From<Trouble> for BackendError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Refused(words) => Self::Invalid(words),
            Trouble::Denied(words) => Self::Denied(words),
            Trouble::Away(words) => Self::Unavailable(words),
            Trouble::NotFound => Self::Unavailable("an object went away meanwhile".to_owned()),
            Trouble::Exists => Self::Unavailable("an object appeared meanwhile".to_owned()),
            Trouble::Changed => Self::Unavailable("an object changed meanwhile".to_owned()),
        }
    }
}

/// What the API's errors mean.
pub(super) fn trouble(error: &kube::Error) -> Trouble {
    let kube::Error::Api(status) = error else {
        return Trouble::Away(chain(error));
    };
    let message = status.message.clone();
    match (status.code, status.reason.as_str()) {
        (404, _) => Trouble::NotFound,
        (409, "AlreadyExists") => Trouble::Exists,
        (409, _) => Trouble::Changed,
        // Words about the agent's own rights, a namespace on its way out, an account that its
        // controller has not made yet, or a priority class of ours that somebody removed: nothing
        // that the job's author could mend.
        (403, _) if is_passing(&message) => Trouble::Away(message),
        (403, _) => Trouble::Denied(message),
        // A webhook may deny with any code, and one that cannot be asked admits nothing.
        (_, _) if is_admission(&message) => Trouble::Denied(message),
        (400 | 413 | 422, _) => Trouble::Refused(message),
        // How server-side apply tells of a field that there is not, or a list with a key twice.
        (500, _) if message.contains("failed to create typed patch object") => {
            Trouble::Refused(message)
        }
        _ => Trouble::Away(format!("{} {}: {message}", status.code, status.reason)),
    }
}

/// True when the agent itself lacks the right to ask.
pub(super) fn is_denied(trouble: &Trouble) -> bool {
    match trouble {
        Trouble::Away(words) => is_about_rights(words),
        Trouble::NotFound
        | Trouble::Exists
        | Trouble::Changed
        | Trouble::Refused(_)
        | Trouble::Denied(_) => false,
    }
}

fn is_about_rights(message: &str) -> bool {
    message.contains("User \"") && message.contains(" cannot ")
}

fn is_passing(message: &str) -> bool {
    let rights = is_about_rights(message);
    let leaving = message.contains("because it is being terminated");
    // Each namespace has one of this name, some moments after it was made.
    let account =
        message.contains("error looking up service account") && message.contains("/default: ");
    let class = message.contains("no PriorityClass with name meridian-");
    rights || leaving || account || class
}

/// True for the API server's words of an admission that said no or could not be asked.
fn is_admission(message: &str) -> bool {
    [
        "admission webhook ",
        "failed calling webhook ",
        "ValidatingAdmissionPolicy ",
    ]
    .iter()
    .any(|words| message.contains(words))
}

/// An error with all its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        source = cause.source();
    }
    text
}

/// One cluster's API.
#[derive(Clone)]
pub(super) struct Cluster {
    client: Client,
    clock: Clock,
    limit: Millis,
    requests: Arc<Semaphore>,
    /// The newest version of pods that was shown.
    pods: Arc<Mutex<String>>,
}

impl Cluster {
    pub(super) fn new(client: Client, clock: Clock, limit: Millis) -> Self {
        Self {
            client,
            clock,
            limit,
            requests: Arc::new(Semaphore::new(MAX_REQUESTS)),
            pods: Arc::default(),
        }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Objects of one namespace.
    pub(super) fn within<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Objects of all namespaces.
    pub(super) fn everywhere<K: Resource<DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Objects without a namespace.
    pub(super) fn global<K>(&self) -> Api<K>
    where
        K: Resource<Scope = ClusterResourceScope, DynamicType = ()>,
    {
        Api::all(self.client.clone())
    }

    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// One call, when there is room for it. No answer in time is no answer.
    pub(super) async fn call<T>(
        &self,
        work: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Trouble> {
        let room = self.requests.acquire().await;
        let _room = room.map_err(|closed| Trouble::Away(closed.to_string()))?;
        match self.clock.timeout(self.limit, work).await {
            Ok(answer) => answer.map_err(|error| trouble(&error)),
            Err(late) => Err(Trouble::Away(late.to_string())),
        }
    }

    /// Does the same for many at once, a few at a time. The first trouble ends it.
    pub(super) async fn each<'w, I, T>(
        &self,
        items: Vec<I>,
        work: impl Fn(I) -> BoxFuture<'w, Result<T, Trouble>>,
    ) -> Result<Vec<T>, Trouble> {
        let calls: Vec<_> = items.into_iter().map(work).collect();
        let calls = futures::stream::iter(calls);
        calls.buffered(WIDTH).try_collect().await
    }

    /// All objects that fit, as the cluster has them at this moment, and the version of the
    /// listing. It is read from the store's quorum, never from an API server's cache alone.
    pub(super) async fn list<K>(
        &self,
        api: &Api<K>,
        params: &ListParams,
    ) -> Result<(Vec<K>, String), Trouble>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        self.list_pages(api, params.clone()).await
    }

    /// Pods that fit, from the API server's cache, yet never older than what was shown of any pod.
    /// For what a compared write finds out in the end; room and proof are asked of the quorum, for
    /// which a busy server makes its own cache catch up first.
    pub(super) async fn pods_since_shown(
        &self,
        api: &Api<Pod>,
        params: &ListParams,
    ) -> Result<Vec<Pod>, Trouble> {
        let shown = self.pods().clone();
        let mut params = params.clone();
        if !shown.is_empty() {
            params = params.at(&shown).matching(VersionMatch::NotOlderThan);
        }
        Ok(self.list_pages(api, params).await?.0)
    }

    /// Pods of that version were shown.
    pub(super) fn pods_shown(&self, version: &str) {
        version.clone_into(&mut self.pods());
    }

    fn pods(&self) -> MutexGuard<'_, String> {
        self.pods.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn list_pages<K>(
        &self,
        api: &Api<K>,
        params: ListParams,
    ) -> Result<(Vec<K>, String), Trouble>
    where
        K: Clone + DeserializeOwned + Debug,
    {
        let mut params = params.limit(PAGE);
        let (mut all, mut version) = (Vec::new(), String::new());
        for _ in 0..MAX_PAGES {
            let page = self.call(api.list(&params)).await?;
            all.extend(page.items);
            version = page.metadata.resource_version.unwrap_or(version);
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() {
                return Ok((all, version));
            }
            // The token says of which version the other pages are.
            (params.resource_version, params.version_match) = (None, None);
        }
        Err(Trouble::Away(format!(
            "a listing has more than {MAX_PAGES} pages of {PAGE}"
        )))
    }

    /// Makes an object.
    pub(super) async fn create<K>(&self, api: &Api<K>, object: &K) -> Result<K, Trouble>
    where
        K: Clone + DeserializeOwned + Debug + Serialize,
    {
        self.call(api.create(&as_manager(), object)).await
    }

    /// Makes an object, or leaves the one that is there.
    pub(super) async fn ensure<K>(&self, api: &Api<K>, object: &K) -> Result<(), Trouble>
    where
        K: Clone + DeserializeOwned + Debug + Serialize,
    {
        match self.create(api, object).await {
            Ok(_) | Err(Trouble::Exists) => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }

    /// Writes an object if it is still of the version that it carries.
    pub(super) async fn replace<K>(&self, api: &Api<K>, object: &K) -> Result<K, Trouble>
    where
        K: Clone + DeserializeOwned + Debug + Serialize + Resource<DynamicType = ()>,
    {
        let name = object.meta().name.clone().unwrap_or_default();
        self.call(api.replace(&name, &as_manager(), object)).await
    }

    /// Removes this very object, of which another of the same name may have taken the place:
    /// that one is left alone. Not to find it is success.
    pub(super) async fn delete<K>(
        &self,
        api: &Api<K>,
        object: &K,
        grace: Option<u32>,
    ) -> Result<(), Trouble>
    where
        K: Clone + DeserializeOwned + Debug + Resource<DynamicType = ()>,
    {
        let meta = object.meta();
        let params = DeleteParams {
            grace_period_seconds: grace,
            preconditions: Some(Preconditions {
                uid: meta.uid.clone(),
                ..Preconditions::default()
            }),
            ..DeleteParams::background()
        };
        let name = meta.name.as_deref().unwrap_or_default();
        match self.call(api.delete(name, &params)).await {
            Ok(_) | Err(Trouble::NotFound | Trouble::Changed) => Ok(()),
            Err(trouble) => Err(trouble),
        }
    }
}

/// Writes are the agent's.
pub(super) fn as_manager() -> PostParams {
    PostParams {
        dry_run: false,
        field_manager: Some(names::MANAGER.to_owned()),
    }
}

/// Not to find something is an answer.
pub(super) fn found<T>(answer: Result<T, Trouble>) -> Result<Option<T>, Trouble> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(Trouble::NotFound) => Ok(None),
        Err(trouble) => Err(trouble),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn of(code: u16, reason: &str, message: &str) -> Trouble {
        let status = Status {
            code,
            reason: reason.to_owned(),
            message: message.to_owned(),
            ..Status::default()
        };
        trouble(&kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn errors_are_told_apart_by_who_can_mend_them() {
        assert_eq!(of(404, "NotFound", ""), Trouble::NotFound);
        assert_eq!(of(409, "AlreadyExists", ""), Trouble::Exists);
        assert_eq!(of(409, "Conflict", ""), Trouble::Changed);
        let refused = |code, message: &str| {
            let said = Trouble::Refused(message.to_owned());
            assert_eq!(of(code, "", message), said);
        };
        refused(
            422,
            "Pod \"x\" is invalid: spec.containers[0].image: Required value",
        );
        refused(
            500,
            "failed to create typed patch object (ml/x; /v1, Kind=Pod): \
             .spec.tolerationz: field not declared in schema",
        );
        refused(400, "unknown field \"spec.containrs\"");
        let away = |code, message: &str| {
            assert!(
                matches!(of(code, "", message), Trouble::Away(_)),
                "{code} {message}"
            );
        };
        away(
            403,
            "pods is forbidden: User \"agent\" cannot create resource \"pods\"",
        );
        away(
            403,
            "unable to create new content because it is being terminated",
        );
        away(
            403,
            "error looking up service account ml/default: not found",
        );
        away(
            403,
            "pods \"x\" is forbidden: no PriorityClass with name meridian-batch-300 was found",
        );
        away(401, "Unauthorized");
        away(429, "too many requests");
        away(410, "Expired");
    }

    #[test]
    fn what_a_rule_of_the_cluster_denies_is_not_the_fault_of_the_template() {
        let denied = |code, message: &str| {
            let said = Trouble::Denied(message.to_owned());
            assert_eq!(of(code, "", message), said);
        };
        denied(
            400,
            "admission webhook \"policy.example\" denied the request: no such team",
        );
        denied(
            422,
            "ValidatingAdmissionPolicy 'teams' with binding 'teams' denied request: no team",
        );
        denied(
            500,
            "failed calling webhook \"policy.example\": connection refused",
        );
        denied(403, "pods \"x\" is forbidden: exceeded quota: gpus");
        denied(
            403,
            "error looking up service account ml/trainer: not found",
        );
    }
}
