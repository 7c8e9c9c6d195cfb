//! The playground that stays: a scaled clock, a real socket, the week's jobs round after round.
//!
//! Owns what is printed, and the stop. The hub is reached as any hub is: `kubectl`, `meridian`,
//! gRPC. Nobody is identified, so it listens on loopback, or says loudly that it does not.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use meridian_api::units::Millis;
use meridian_client::{Client, FailureKind};
use meridian_hub::Execution;
use meridian_hub::config::HubConfig;
use meridian_runtime::network::Tcp;
use meridian_runtime::{Clock, Tasks, shutdown};

use super::data::{self, BEGIN, DAY, DAYS, TraceJob};
use super::faults;
use super::world::{self, Place};
use super::{PlaygroundError, jobs};
use crate::fleet::Fleet;

/// Fastest clock: the hub's and the agents' own deadlines of 2 to 10 simulated seconds must stay
/// longer than a busy machine's pauses, which are tens of milliseconds.
pub const MAX_SCALE: u32 = 120;
/// Pause before a job is offered again to a hub that could not take it.
const OFFER_AGAIN: Millis = Millis::seconds(60);

/// What to serve.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Everything that looks random follows from it.
    pub seed: u64,
    /// Simulated seconds for each real one.
    pub scale: NonZeroU32,
    /// Where users connect.
    pub listen: SocketAddr,
    /// Nodes that fail in a week, on average.
    pub failures_a_week: u32,
}

/// Runs until SIGTERM or SIGINT; a second one aborts.
///
/// # Errors
/// When the address is taken, the federation does not start, or a task of it dies.
pub async fn serve(options: ServeOptions) -> Result<(), PlaygroundError> {
    let system = |what| move |source| PlaygroundError::System { what, source };
    let folder = tempfile::tempdir().map_err(system("a temporary folder"))?;
    let (week, regions) = (data::week()?, data::regions()?);
    let clock = Clock::scaled(BEGIN, options.scale);
    let store_tasks = Tasks::new();
    let place = Place {
        seed: options.seed,
        clock: clock.clone(),
        network: Arc::new(Tcp),
        folder: folder.path(),
        tasks: &store_tasks,
        hub: HubConfig {
            name: "playground".to_owned(),
            users_listen: options.listen.to_string(),
            agents_listen: "127.0.0.1:0".to_owned(),
            insecure_agents: true,
            ..HubConfig::default()
        },
        execution: Execution::Thread,
    };
    let mut fleet = Fleet::start(world::fleet(place, regions.clone(), &week)?).await?;
    tell(&fleet.hub(0)?.users, &options, &week);
    let tasks = Tasks::new();
    let submitting = submit(fleet.client(0)?, clock.clone(), week, tasks.clone());
    tasks.spawn("submit", submitting);
    if options.failures_a_week > 0 {
        let failing = Failing {
            seed: options.seed,
            a_week: options.failures_a_week,
            clock,
            clusters: fleet
                .clusters()
                .map(|(name, _, cluster)| (name.to_owned(), cluster.clone()))
                .collect(),
            regions,
        };
        tasks.spawn("faults", failing.run(tasks.clone()));
    }
    let watching = fleet.died();
    tokio::select! {
        () = shutdown::until_asked(&tasks) => eprintln!("stopping; once more aborts"),
        () = watching => tasks.cancel(),
    }
    let ended = tasks.finished().await;
    ended.map_err(|died| crate::fleet::FleetError::Died {
        who: "the playground".to_owned(),
        died,
    })?;
    fleet.check().await?;
    fleet.stop().await?;
    store_tasks.cancel();
    Ok(())
}

fn tell(at: &str, options: &ServeOptions, week: &[TraceJob]) {
    let (scale, busiest) = (options.scale, "vc-6c71a0");
    let example = week.iter().find(|job| jobs::tenant(&job.vc) == busiest);
    let example = example.map(|job| jobs::name(job, 0)).unwrap_or_default();
    println!("Meridian playground at http://{at}, {scale} simulated seconds a second");
    println!();
    println!("  NO AUTHENTICATION: whoever reaches this address may do everything.");
    if !options.listen.ip().is_loopback() {
        println!("  IT IS NOT A LOOPBACK ADDRESS: other machines may reach it.");
    }
    println!();
    println!("Try from another terminal:");
    println!("  kubectl --server=http://{at} get federatedjobs -A");
    println!("  meridian --server http://{at} capacity");
    println!("  meridian --server http://{at} why job/{example} -n {busiest}");
    println!();
    println!("Ctrl-C stops it; nothing is kept.");
}

/// Submits the table at its instants, week after week.
async fn submit(
    client: Client,
    clock: Clock,
    week: Vec<TraceJob>,
    tasks: Tasks,
) -> Result<(), std::convert::Infallible> {
    let stop = tasks.cancelled();
    let work = async {
        for round in 0_u64.. {
            for job in &week {
                let begin = Millis(round * DAYS * DAY.0);
                let at = meridian_api::units::BootMillis(begin.saturating_add(job.submit).0);
                clock.sleep_until(at).await;
                offer(&client, &clock, job, round).await;
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = stop.cancelled() => {}
    }
    Ok(())
}

/// Submits one job, again while the hub cannot answer; the key makes that safe.
async fn offer(client: &Client, clock: &Clock, job: &TraceJob, round: u64) {
    loop {
        match client.submit(jobs::submission(job, round)).await {
            Ok(_) => return,
            Err(error) if error.is(FailureKind::Invalid) => {
                tracing::warn!(%error, row = job.row, "a job of the table is refused");
                return;
            }
            Err(error) => {
                tracing::warn!(%error, row = job.row, "not submitted, trying again");
                clock.sleep(OFFER_AGAIN).await;
            }
        }
    }
}

struct Failing {
    seed: u64,
    a_week: u32,
    clock: Clock,
    clusters: Vec<(String, meridian_agent::SimulatedCluster)>,
    regions: Vec<crate::fleet::FleetRegion>,
}

impl Failing {
    /// Kills nodes and brings them back, week after week.
    async fn run(self, tasks: Tasks) -> Result<(), std::convert::Infallible> {
        let stop = tasks.cancelled();
        tokio::select! {
            () = self.weeks() => {}
            () = stop.cancelled() => {}
        }
        Ok(())
    }

    async fn weeks(&self) {
        for round in 0_u64.. {
            let span = Millis(DAYS * DAY.0);
            let seed = self.seed.wrapping_add(round);
            let outages = faults::draw(seed, &self.regions, span, self.a_week);
            let ends = outages
                .iter()
                .flat_map(|outage| [(outage.from, true, outage), (outage.until, false, outage)]);
            let mut timeline: Vec<_> = ends.collect();
            timeline.sort_by_key(|(at, ..)| *at);
            for (at, dies, outage) in timeline {
                let at = Millis(round * span.0).saturating_add(at);
                self.clock
                    .sleep_until(meridian_api::units::BootMillis(at.0))
                    .await;
                let named = self
                    .clusters
                    .iter()
                    .find(|(name, _)| *name == outage.cluster);
                let Some((_, cluster)) = named else { continue };
                let now = self.clock.wall();
                if dies {
                    cluster.fail_node(now, &outage.node);
                } else {
                    cluster.recover_node(now, &outage.node);
                }
            }
        }
    }
}
