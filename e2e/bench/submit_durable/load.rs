//! The clients, and the judge of what they were told.
//!
//! Owns the load: each client has one job on its way and waits for its acknowledgement. What was
//! acknowledged must be in the store, once, with its spec. Never asks the hub whether it did well.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, ensure};
use meridian_proto::v1;
use meridian_proto::v1::federation_service_client::FederationServiceClient;
use meridian_proto::v1::submit_stream_response::Result as Outcome;
use meridian_store::keys::{self, ObjectKey, Part};
use meridian_store::{Operation, SharedStore};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::common::hub::Hub;
use crate::common::peer::{Concurrency, closed_loop};
use crate::jobs::{job, name};

/// Keys in one page of the judge's reading.
const PAGE: usize = 2_000;

/// How a client submits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// One call per job.
    Unary,
    /// One stream per client, its jobs one after the other.
    Stream,
    /// The same with an idempotency key for each job, as the command line does.
    KeyedStream,
}

type Service = FederationServiceClient<Channel>;
/// UID and revision that a client was told, by the job's index.
type Told = Arc<Mutex<BTreeMap<usize, v1::SubmitResponse>>>;

/// A client's open stream.
struct Lane {
    requests: mpsc::Sender<v1::SubmitRequest>,
    answers: Streaming<v1::SubmitStreamResponse>,
}

/// What came of a load.
pub(crate) struct Loaded {
    /// Milliseconds in all and of each job.
    pub(crate) times: (f64, Vec<f64>),
    told: Told,
}

/// Submits jobs `0..count`, each answer awaited.
pub(crate) async fn submit(
    hub: &Hub,
    count: usize,
    at_once: Concurrency,
    way: Way,
) -> anyhow::Result<Loaded> {
    let services: Vec<Service> = (0..at_once.connections)
        .map(|_| Service::new(hub.for_users()))
        .collect();
    let mut lanes = Vec::new();
    for client in 0..at_once.clients {
        let mut service = services[client % services.len()].clone();
        lanes.push(match way {
            Way::Unary => None,
            Way::Stream | Way::KeyedStream => {
                let (requests, sending) = mpsc::channel(1);
                let answers = service.submit_stream(ReceiverStream::new(sending)).await?;
                let answers = answers.into_inner();
                Some(Arc::new(tokio::sync::Mutex::new(Lane {
                    requests,
                    answers,
                })))
            }
        });
    }
    // Written out beforehand: making the input is no part of the work.
    let requests: Arc<Vec<v1::SubmitRequest>> =
        Arc::new((0..count).map(|index| request(index, way)).collect());
    let told = Told::default();
    let answered = Arc::clone(&told);
    let ask = move |client: usize, index: usize| {
        let (lane, request) = (lanes[client].clone(), requests[index].clone());
        let mut service = services[client % services.len()].clone();
        let answered = Arc::clone(&answered);
        async move {
            let response = match lane {
                None => service.submit(request).await?.into_inner(),
                Some(lane) => lane.lock().await.ask(request).await?,
            };
            let mut answered = answered.lock().unwrap_or_else(PoisonError::into_inner);
            answered.insert(index, response);
            Ok(())
        }
    };
    let times = closed_loop(count, at_once.clients, ask).await?;
    Ok(Loaded { times, told })
}

fn request(index: usize, way: Way) -> v1::SubmitRequest {
    v1::SubmitRequest {
        job: job(index).to_string().into(),
        idempotency_key: match way {
            Way::Unary | Way::Stream => String::new(),
            Way::KeyedStream => format!("bench-{index}"),
        },
        ..v1::SubmitRequest::default()
    }
}

impl Lane {
    async fn ask(&mut self, request: v1::SubmitRequest) -> anyhow::Result<v1::SubmitResponse> {
        self.requests.send(request).await?;
        let answer = self.answers.message().await?;
        let answer = answer.and_then(|answer| answer.result);
        match answer.context("the hub ended the stream")? {
            Outcome::Accepted(accepted) => Ok(accepted),
            Outcome::Refused(error) => anyhow::bail!("refused: {}", error.message),
        }
    }
}

impl Loaded {
    /// Holds what the clients were told against what the store has.
    pub(crate) async fn judge(&self, store: &SharedStore, count: usize) -> anyhow::Result<()> {
        let stored = stored_jobs(store).await?;
        let told = self
            .told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        ensure!(
            told.len() == count,
            "{} of {count} acknowledged",
            told.len()
        );
        ensure!(stored.len() == count, "{} of {count} stored", stored.len());
        let mut uids = BTreeSet::new();
        for (index, response) in &told {
            let (namespace, name) = name(*index);
            let found = stored.get(&(namespace.clone(), name.clone()));
            let (revision, object) = found.with_context(|| format!("{name} is not stored"))?;
            let mut spec = job(*index)["spec"].take();
            spec["tenant"] = Value::from(namespace);
            ensure!(object["spec"] == spec, "{name} is stored with another spec");
            let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
            ensure!(
                response.uid == uid && !response.replayed,
                "{name}: another was told"
            );
            ensure!(
                response.revision == *revision,
                "{name}: another revision was told"
            );
            uids.insert(uid);
        }
        ensure!(uids.len() == count, "{} of {count} identities", uids.len());
        Ok(())
    }
}

/// Every job of the store with the revision that wrote it, by namespace and name.
async fn stored_jobs(
    store: &SharedStore,
) -> anyhow::Result<BTreeMap<(String, String), (u64, Value)>> {
    let (mut range, mut found) = (keys::objects("federatedjobs", None), BTreeMap::new());
    loop {
        let page = store
            .range(Operation::Probe, range.clone(), PAGE, None)
            .await?;
        for entry in &page.entries {
            if let Some((key, Part::Spec)) = ObjectKey::parse(&entry.key) {
                let ObjectKey {
                    namespace, name, ..
                } = key;
                let object = serde_json::from_slice(&entry.value)?;
                let known = found.insert(
                    (namespace.unwrap_or_default(), name),
                    (entry.mod_revision.0, object),
                );
                ensure!(known.is_none(), "a job is stored twice");
            }
        }
        match page.entries.last() {
            Some(last) if page.more => range = range.after(&last.key),
            _ => return Ok(found),
        }
    }
}
