//! All agents together: at the pace of life, and as fast as the hub takes it.
//!
//! Owns the load, and the comparison of what the hub knows with what its agents said. Never reads
//! the hub's memory: it asks as a user does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use meridian_api::units::Millis;
use meridian_proto::v1;
use meridian_proto::v1::federation_service_client::FederationServiceClient;
use meridian_runtime::{Clock, Tasks};
use serde_json::json;
use tokio::sync::mpsc;
use tonic::transport::Channel;

use crate::agent::Agent;
use crate::common::hub::Hub;
use crate::common::measure::Stopwatch;

/// Between two beats, as agents do.
const BEAT: Millis = Millis::seconds(2);
/// Between two digests.
const DIGEST: Millis = Millis::seconds(5);
/// Between two measures of how soon a digest is seen: far enough apart to disturb nothing.
const MEASURE_EVERY: Millis = Millis(100);
/// Sessions that are opened at once: as many attaches wait for the store together.
const OPENING: usize = 64;
/// Flavor of the cluster that measures.
const MEASURED: &str = "measured";

/// The agents of a fleet.
pub(crate) struct Fleet {
    agents: Vec<Agent>,
    /// The one that measures.
    measuring: Agent,
    users: FederationServiceClient<Channel>,
}

/// How hard the agents work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// A beat every two seconds, a digest every five.
    Life,
    /// The next digest and beat as soon as the last beat is acknowledged.
    Saturation,
}

/// What agents have sent, and how soon it was seen.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    /// Seconds it took.
    pub(crate) seconds: f64,
    /// Digests.
    pub(crate) digests: usize,
    /// Beats.
    pub(crate) beats: usize,
    /// Milliseconds from a digest's sending to an answer of the hub that rests on it.
    pub(crate) seen_ms: Vec<f64>,
}

impl Fleet {
    /// Declares clusters and attaches an agent to each, and one more that measures.
    pub(crate) async fn attach(hub: &Hub, clusters: usize) -> anyhow::Result<Self> {
        hub.object("Region", "eu", json!({"timeZone": "Europe/Dublin"}))
            .await?;
        let spec = json!({"region": "eu", "backend": "Simulated"});
        let name = |index: usize| format!("cluster-{index:04}");
        for index in 0..=clusters {
            hub.object("MemberCluster", &name(index), spec.clone())
                .await?;
        }
        let attaches = (0..=clusters).map(|index| {
            let flavor = if index == clusters { MEASURED } else { "h100" };
            Agent::attach(hub.for_agents(), name(index), flavor, index as u64)
        });
        let agents = futures::stream::iter(attaches).buffered(OPENING);
        let agents: Vec<anyhow::Result<Agent>> = agents.collect().await;
        let mut agents = agents.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self {
            measuring: agents.pop().context("one more than clusters")?,
            agents,
            users: FederationServiceClient::new(hub.for_users()),
        })
    }

    /// Lets all agents work for `span`.
    pub(crate) async fn work(&mut self, pace: Pace, span: Millis) -> anyhow::Result<Sent> {
        let (clock, tasks) = (Clock::real(), Tasks::new());
        let over = Arc::new(AtomicBool::new(false));
        let (done, mut ends) = mpsc::channel(self.agents.len() + 1);
        let (until, watch) = (clock.boot().after(span), Stopwatch::start());
        let count = self.agents.len();
        for (index, agent) in self.agents.drain(..).enumerate() {
            let (done, clock, over) = (done.clone(), clock.clone(), Arc::clone(&over));
            // Agents do not beat in step.
            let offset = (index as u64) * BEAT.0 / count as u64;
            tasks.spawn_finite(format!("agent-{index}"), async move {
                let end = match pace {
                    Pace::Life => life(agent, &clock, offset, until).await,
                    Pace::Saturation => saturation(agent, &over).await,
                };
                // The receiver outlives every agent.
                let _ = done.send((index, end)).await;
            });
        }
        drop(done);
        let mut sent = Sent::default();
        while clock.boot() < until {
            sent.seen_ms.push(self.measure().await?);
            clock.sleep(MEASURE_EVERY).await;
        }
        over.store(true, Ordering::Relaxed);
        sent.seconds = watch.seconds();
        let mut agents = BTreeMap::new();
        while let Some((index, end)) = ends.recv().await {
            let (agent, digests, beats) = end?;
            (sent.digests, sent.beats) = (sent.digests + digests, sent.beats + beats);
            agents.insert(index, agent);
        }
        self.agents = agents.into_values().collect();
        Ok(sent)
    }

    /// Milliseconds from sending a digest until the scheduler's model has it.
    async fn measure(&mut self) -> anyhow::Result<f64> {
        let mark = self.measuring.truth().2 / 1000 + 1;
        let watch = Stopwatch::start();
        self.measuring.mark(mark).await?;
        self.measuring.beat().await?;
        while !self.measuring.hear().await? {}
        loop {
            let pools = self.capacity(MEASURED).await?;
            if pools
                .first()
                .is_some_and(|pool| pool.out_milli_gpus == mark * 1000)
            {
                return Ok(watch.millis());
            }
        }
    }

    async fn capacity(&mut self, flavor: &str) -> anyhow::Result<Vec<v1::PoolCapacity>> {
        let request = v1::CapacityRequest {
            flavor: flavor.to_owned(),
            gangs: false,
        };
        Ok(self.users.capacity(request).await?.into_inner().pools)
    }

    /// The hub knows exactly what each agent said last, and hears all of them.
    pub(crate) async fn judge(&mut self) -> anyhow::Result<()> {
        let pools = self.capacity("").await?;
        let known: BTreeMap<&str, &v1::PoolCapacity> = pools
            .iter()
            .map(|pool| (pool.cluster.as_str(), pool))
            .collect();
        ensure!(
            known.len() == self.agents.len() + 1,
            "{} clusters",
            known.len()
        );
        for agent in self.agents.iter().chain([&self.measuring]) {
            let (cluster, free, out) = agent.truth();
            let pool = known.get(cluster.as_str());
            let pool = pool.with_context(|| format!("{cluster} is not known"))?;
            let seen = (pool.free_milli_gpus, pool.out_milli_gpus);
            ensure!(
                seen == (free, out),
                "{cluster}: known {seen:?}, told {free} and {out}"
            );
            ensure!(pool.contact == "Ready", "{cluster} is {}", pool.contact);
        }
        Ok(())
    }
}

type End = anyhow::Result<(Agent, usize, usize)>;

/// Beats and digests at their times until `until`; ends with an acknowledged beat, so that all it
/// said has been heard.
async fn life(
    mut agent: Agent,
    clock: &Clock,
    offset: u64,
    until: meridian_api::units::BootMillis,
) -> End {
    let (mut digests, mut beats) = (0, 0);
    let start = clock.boot().after(Millis(offset));
    let (mut next_beat, mut next_digest) = (start, start.after(BEAT));
    while next_beat.min(next_digest) < until {
        tokio::select! {
            heard = agent.hear() => drop(heard?),
            () = clock.sleep_until(next_beat.min(next_digest)) => {
                if next_beat <= next_digest {
                    agent.beat().await?;
                    (beats, next_beat) = (beats + 1, next_beat.after(BEAT));
                } else {
                    agent.digest().await?;
                    (digests, next_digest) = (digests + 1, next_digest.after(DIGEST));
                }
            }
        }
    }
    agent.beat().await?;
    while !agent.hear().await? {}
    Ok((agent, digests, beats + 1))
}

async fn saturation(mut agent: Agent, over: &AtomicBool) -> End {
    let mut rounds = 0;
    while !over.load(Ordering::Relaxed) {
        agent.digest().await?;
        agent.beat().await?;
        while !agent.hear().await? {}
        rounds += 1;
    }
    Ok((agent, rounds, rounds))
}
