//! The clients, and the judge of what they were told.
//!
//! Owns the load: clients that share the jobs and wait for each acknowledgement. What was
//! acknowledged must be in the store, once, with its spec. Never asks the hub whether it did well.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
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
use tonic::transport::Channel;

use crate::common::hub::Hub;
use crate::common::measure::Stopwatch;
use crate::common::peer::{Concurrency, Share, together};
use crate::jobs::{job, name};

/// Keys in one page of the judge's reading.
const PAGE: usize = 2_000;

/// How a client submits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// One call per job, one at a time.
    Unary,
    /// One stream per client, one job at a time.
    OneByOne,
    /// One stream per client, [`WINDOW`] jobs on their way.
    Stream,
    /// The same with an idempotency key for each job, as the command line does.
    KeyedStream,
}

/// Jobs of one stream that wait for their acknowledgement. A client that has a hundred jobs sends
/// them one after the other; this keeps the load of all clients bounded.
const WINDOW: usize = 16;

type Service = FederationServiceClient<Channel>;
/// What clients were told: the job's index and the answer.
type Told = Vec<(usize, v1::SubmitResponse)>;

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
    let services = (0..at_once.connections).map(|_| Service::new(hub.for_users()));
    let services: Vec<Service> = services.collect();
    // Written out beforehand: making the input is no part of the work.
    let requests: Arc<Vec<v1::SubmitRequest>> =
        Arc::new((0..count).map(|index| request(index, way)).collect());
    let all = Arc::new(Mutex::new(Told::new()));
    let work = |client: usize, share: Share| {
        let service = services[client % services.len()].clone();
        let (requests, all) = (Arc::clone(&requests), Arc::clone(&all));
        async move {
            let (mut told, latencies) = match way {
                Way::Unary => calls(service, share, &requests).await?,
                Way::OneByOne => stream(service, share, &requests, 1).await?,
                Way::Stream | Way::KeyedStream => stream(service, share, &requests, WINDOW).await?,
            };
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.append(&mut told);
            Ok(latencies)
        }
    };
    let times = together(count, at_once.clients, work).await?;
    let told = std::mem::take(&mut *all.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Loaded { times, told })
}

fn request(index: usize, way: Way) -> v1::SubmitRequest {
    v1::SubmitRequest {
        job: job(index).to_string().into(),
        idempotency_key: match way {
            Way::Unary | Way::OneByOne | Way::Stream => String::new(),
            Way::KeyedStream => format!("bench-{index}"),
        },
        ..v1::SubmitRequest::default()
    }
}

async fn calls(
    mut service: Service,
    share: Share,
    requests: &[v1::SubmitRequest],
) -> anyhow::Result<(Told, Vec<f64>)> {
    let (mut told, mut latencies) = (Told::new(), Vec::new());
    for index in share {
        let watch = Stopwatch::start();
        let answer = service.submit(requests[index].clone()).await?;
        latencies.push(watch.millis());
        told.push((index, answer.into_inner()));
    }
    Ok((told, latencies))
}

async fn stream(
    mut service: Service,
    mut share: Share,
    requests: &[v1::SubmitRequest],
    window: usize,
) -> anyhow::Result<(Told, Vec<f64>)> {
    let (outbox, sending) = mpsc::channel(window);
    let answers = service.submit_stream(ReceiverStream::new(sending)).await?;
    let mut answers = answers.into_inner();
    let (mut told, mut latencies) = (Told::new(), Vec::new());
    let mut on_their_way = VecDeque::with_capacity(window);
    loop {
        while on_their_way.len() < window
            && let Some(index) = share.next()
        {
            on_their_way.push_back((index, Stopwatch::start()));
            outbox.send(requests[index].clone()).await?;
        }
        // Answers come in the order of the requests.
        let Some((index, watch)) = on_their_way.pop_front() else {
            return Ok((told, latencies));
        };
        let answer = answers.message().await?.and_then(|answer| answer.result);
        match answer.context("the hub ended the stream")? {
            Outcome::Accepted(accepted) => told.push((index, accepted)),
            Outcome::Refused(error) => anyhow::bail!("refused: {}", error.message),
        }
        latencies.push(watch.millis());
    }
}

impl Loaded {
    /// Holds what the clients were told against what the store has.
    pub(crate) async fn judge(&self, store: &SharedStore, count: usize) -> anyhow::Result<()> {
        let stored = stored_jobs(store).await?;
        let told = &self.told;
        ensure!(
            told.len() == count,
            "{} of {count} acknowledged",
            told.len()
        );
        ensure!(stored.len() == count, "{} of {count} stored", stored.len());
        let mut uids = BTreeSet::new();
        for (index, response) in told {
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
