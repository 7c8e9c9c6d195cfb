//! Requests to the cluster, and what their answers mean.
//!
//! Owns the calls under way: bounded in time, one at a time per gang. An answer that did not come
//! says nothing about what was done: the same request is made again. Never decides what to ask.

use std::borrow::Cow;
use std::collections::BTreeMap;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use meridian_api::ids::GangId;
use meridian_api::units::{Millis, Resources};

use crate::backend::{BackendError, GangKey, GangOrder, MemberOrder, Observation, Stopped};
use crate::digest::host_number;
use crate::executor::{Executor, RETRY};
use crate::gangs::{End, Failure, Gang, Phase, Verdict};
use crate::orders::RunOrder;

/// A request that takes longer counts as not answered. Binding a thousand pods through a busy API
/// server takes tens of seconds.
pub(crate) const CALL_LIMIT: Millis = Millis::seconds(60);

/// Times that the pause before a request is made again doubles: from a second to half a minute,
/// which a person who mends the cause does not notice.
const MAX_DOUBLINGS: u32 = 5;

/// What a request came to.
pub(crate) enum Answer {
    /// The cluster as it is, after taking over what runs there.
    Observed(Result<Observation, BackendError>),
    /// A bind.
    Bound(GangKey, Result<(), BackendError>),
    /// A gang that goes on without a lost node, and its size by role.
    Mended(GangKey, Vec<u32>, Result<(), BackendError>),
    /// A stop.
    Stopped(GangKey, Result<Stopped, BackendError>),
    /// A checkpoint request.
    Checkpoint(GangKey, Result<(), BackendError>),
}

pub(crate) type Call = BoxFuture<'static, Answer>;

/// No answer in time is no answer.
pub(crate) fn late<T>(
    answer: Result<Result<T, BackendError>, meridian_runtime::clock::TimedOut>,
) -> Result<T, BackendError> {
    answer.unwrap_or_else(|late| Err(BackendError::Unavailable(late.to_string())))
}

impl Executor {
    /// Looks at the whole cluster, after `pause`.
    pub(crate) fn observe(&mut self, pause: Millis) {
        let (clock, backend) = (self.clock.clone(), self.backend.clone());
        let call = async move {
            clock.sleep(pause).await;
            let look = async {
                backend.adopt().await?;
                backend.observe().await
            };
            Answer::Observed(late(clock.timeout(CALL_LIMIT, look).await))
        };
        self.calls.push(call.boxed());
    }

    /// Finds nodes for a gang that needs some, and binds it there.
    pub(crate) fn place(&mut self, id: GangId) {
        let Some(gang) = self.gangs.get(&id) else {
            return;
        };
        if gang.phase != Phase::Waiting || self.in_flight.contains_key(&id) {
            return;
        }
        let Some(order) = gang.order.clone() else {
            return;
        };
        let attempt = gang.attempt;
        let avoid = gang.avoid.clone();
        match self.find_nodes(&order, &avoid) {
            Ok(members) => {
                let order = gang_order(&order, attempt, members);
                let holds = order.members.iter().map(|member| {
                    let request = order.roles.get(member.role).map(|role| role.request);
                    (
                        member.node.clone(),
                        request.unwrap_or_else(Resources::default),
                    )
                });
                let touched = self.view.reserve(order.key, holds.collect());
                self.digests.touch(touched.pools, touched.gangs);
                self.no_room.remove(&id);
                if let Some(gang) = self.gangs.get_mut(&id) {
                    gang.phase = Phase::Binding;
                }
                self.binding.insert(id, order.clone());
                self.bind(order);
            }
            Err(why) if attempt > 0 && !avoid.is_empty() => {
                let away = avoid.iter();
                let away = away.map(|(node, word)| format!("node {node} ({word})"));
                let away = away.collect::<Vec<_>>().join(", ");
                let message = format!("turned away by {away}, and elsewhere {why}");
                self.give_up(order.key, Failure::PlacementRefused, message);
            }
            Err(why) => {
                tracing::debug!(key = %order.key, why, "no place yet");
                self.no_room.insert(id, why);
                self.waiting.insert(id);
            }
        }
    }

    fn find_nodes(
        &mut self,
        order: &RunOrder,
        avoid: &BTreeMap<String, String>,
    ) -> Result<Vec<MemberOrder>, String> {
        let (pool, shape) = (&order.terms.pool, &order.shape);
        let mut avoid = Cow::Borrowed(avoid);
        if !order.kept_hosts.is_empty() {
            let places = self.view.places(pool).into_iter();
            let kept = places.filter(|it| order.kept_hosts.contains(&host_number(&it.name)));
            let kept = kept.map(|it| (it.name, "kept for another gang".to_owned()));
            avoid.to_mut().extend(kept);
        }
        let found = self.view.find(pool, shape, &order.pods, &avoid);
        let found = found.ok_or_else(|| format!("there is no pool {pool:?}"))?;
        found.map_err(|failure| failure.to_string())
    }

    fn bind(&mut self, order: GangOrder) {
        let key = order.key;
        let attempt = order.attempt;
        tracing::info!(%key, attempt, pods = order.members.len(), "binding");
        self.gone.remove(&key);
        self.in_flight.insert(key.gang, key);
        let (clock, backend) = (self.clock.clone(), self.backend.clone());
        let span = tracing::info_span!("bind", gang = %key.gang, epoch = %key.epoch, attempt);
        meridian_runtime::telemetry::set_parent(&span, &order.traceparent);
        let call = async move {
            let answer = clock.timeout(CALL_LIMIT, backend.bind(&order)).await;
            Answer::Bound(key, late(answer))
        };
        self.calls
            .push(tracing::Instrument::instrument(call, span).boxed());
    }

    /// Sends a bind again of which nothing is known.
    pub(crate) fn rebind(&mut self, id: GangId) {
        let Some(gang) = self.gangs.get(&id) else {
            return;
        };
        let seen = self.view.gang(gang.record.key());
        let undone = seen.is_none_or(|own| !own.complete);
        let wanted = gang.phase == Phase::Binding && gang.record.verdict.is_none() && undone;
        if !wanted || self.in_flight.contains_key(&id) {
            return;
        }
        if let Some(order) = self.binding.get(&id).cloned() {
            self.bind(order);
        }
    }

    /// Asks for the end of a gang under one epoch.
    pub(crate) fn stop(&mut self, key: GangKey, grace: Millis) {
        if self.in_flight.contains_key(&key.gang) || self.asked.contains(&key) {
            return;
        }
        tracing::info!(%key, %grace, "stopping");
        self.in_flight.insert(key.gang, key);
        let (clock, backend) = (self.clock.clone(), self.backend.clone());
        let call = async move {
            let answer = clock.timeout(CALL_LIMIT, backend.stop(key, grace)).await;
            Answer::Stopped(key, late(answer))
        };
        self.calls.push(call.boxed());
    }

    /// Asks user code for a checkpoint.
    pub(crate) fn request_checkpoint(&mut self, key: GangKey, limit: Millis) {
        let (clock, backend) = (self.clock.clone(), self.backend.clone());
        let call = async move {
            let request = backend.request_checkpoint(key, limit);
            Answer::Checkpoint(key, late(clock.timeout(CALL_LIMIT, request).await))
        };
        self.calls.push(call.boxed());
    }

    pub(crate) fn answered(&mut self, answer: Answer) {
        if let Some(gang) = answer.gang() {
            self.in_flight.remove(&gang);
            self.dirty.insert(gang);
        }
        match answer {
            Answer::Observed(Ok(observation)) => self.observed(observation),
            Answer::Observed(Err(error)) => {
                tracing::warn!(%error, "the cluster cannot be observed, trying again");
                self.metrics.api_failures.inc();
                self.observe(RETRY);
            }
            Answer::Bound(key, Ok(())) => {
                self.failures.remove(&key.gang);
                tracing::debug!(%key, "bind taken");
            }
            Answer::Bound(key, Err(error)) => self.bind_failed(key, &error),
            Answer::Mended(key, pods, answer) => self.mended(key, pods, answer),
            Answer::Stopped(key, Ok(Stopped::Gone)) => {
                self.failures.remove(&key.gang);
                self.asked.remove(&key);
                if self.view.gang(key).is_none() {
                    self.proved_gone(key);
                } else {
                    // The watch will say so; until then the proof would be forgotten again.
                    self.retry(key.gang);
                }
            }
            Answer::Stopped(key, Ok(Stopped::Asked)) => {
                if self.view.gang(key).is_some() {
                    self.asked.insert(key);
                } else {
                    // The watch lags behind the cluster's own word: ask again later.
                    self.retry(key.gang);
                }
            }
            Answer::Stopped(key, Err(error)) | Answer::Checkpoint(key, Err(error)) => {
                tracing::warn!(%key, %error, "request failed");
                self.metrics.api_failures.inc();
                self.retry_later(key.gang);
            }
            Answer::Checkpoint(key, Ok(())) => tracing::debug!(%key, "checkpoint asked for"),
        }
    }

    /// The cluster itself says that nothing is left: the room of an unseen bind is free.
    fn proved_gone(&mut self, key: GangKey) {
        self.gone.insert(key);
        if self
            .binding
            .get(&key.gang)
            .is_some_and(|order| order.key == key)
        {
            self.clear_binding(key.gang);
        }
    }

    pub(crate) fn retry(&mut self, gang: GangId) {
        self.retries.insert(gang, self.clock.boot().after(RETRY));
        self.dirty.remove(&gang);
    }

    /// Asks again after a pause that doubles with each failure in a row: a cluster that is in
    /// trouble is not made busier by everybody who waits for it.
    pub(crate) fn retry_later(&mut self, gang: GangId) {
        let failed = self.failures.entry(gang).or_default();
        let pause = Millis(RETRY.0 << (*failed).min(MAX_DOUBLINGS));
        *failed = failed.saturating_add(1);
        self.retries.insert(gang, self.clock.boot().after(pause));
        self.dirty.remove(&gang);
    }

    /// The cluster answers again: nothing waits out a pause that was for its absence.
    pub(crate) fn retry_all(&mut self) {
        let now = self.clock.boot();
        self.failures.clear();
        self.retries.values_mut().for_each(|at| *at = now);
    }

    fn bind_failed(&mut self, key: GangKey, error: &BackendError) {
        self.metrics.api_failures.inc();
        tracing::warn!(%key, %error, "bind failed");
        match error {
            // Done or not: the same bind again finds out.
            BackendError::Unavailable(_) | BackendError::NotFound(_) => {
                self.no_room.insert(key.gang, error.to_string());
                self.retry_later(key.gang);
            }
            BackendError::Conflict { .. } => {
                self.with_gang(key, |gang| gang.phase = Phase::Waiting);
                self.clear_binding(key.gang);
                self.retry(key.gang);
            }
            BackendError::NoRoom(why) | BackendError::NotOffered(why) => {
                self.with_gang(key, |gang| gang.phase = Phase::Waiting);
                self.no_room.insert(key.gang, why.clone());
                self.clear_binding(key.gang);
                self.retry_later(key.gang);
            }
            BackendError::Denied(why) => {
                self.give_up(key, Failure::AdmissionDenied, why.clone());
            }
            BackendError::Missing(_) => {
                self.give_up(key, Failure::DependencyMissing, error.to_string());
            }
            BackendError::Invalid(why) => {
                self.give_up(key, Failure::Misconfigured, why.clone());
            }
            BackendError::Unsupported { .. } => {
                self.give_up(key, Failure::Misconfigured, error.to_string());
            }
        }
    }

    pub(crate) fn give_up(&mut self, key: GangKey, failure: Failure, message: String) {
        let verdict = Verdict {
            end: End::Failed(failure),
            exit_code: 0,
            message,
            started: None,
        };
        self.with_gang(key, |gang| {
            gang.record.verdict.get_or_insert(verdict);
        });
        self.dirty.insert(key.gang);
    }

    pub(crate) fn with_gang(&mut self, key: GangKey, change: impl FnOnce(&mut Gang)) {
        if let Some(gang) = self
            .gangs
            .get_mut(&key.gang)
            .filter(|gang| gang.record.key() == key)
        {
            change(gang);
        }
    }
}

pub(crate) fn gang_order(order: &RunOrder, attempt: u32, members: Vec<MemberOrder>) -> GangOrder {
    GangOrder {
        key: order.key,
        attempt,
        terms: order.terms.clone(),
        roles: order.roles.clone(),
        members,
        labels: order.labels.clone(),
        workload: order.workload.clone(),
        traceparent: order.traceparent.clone(),
    }
}
