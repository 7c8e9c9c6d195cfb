//! The fast run: a simulated week in seconds, and its summary.
//!
//! Owns the one timeline of submissions, failures and looks. Everything happens on one thread, on
//! a paused runtime whose time jumps to the next thing that is due, so one seed gives one summary.
//! Never does anything that a user or a machine could not do: it submits jobs and kills nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use meridian_api::ids::Uid;
use meridian_api::kinds::FederatedJob;
use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::units::{BootMillis, Millis, UnixMillis};
use meridian_client::{Client, ClientError, ListOptions, Resource};
use meridian_hub::Execution;
use meridian_runtime::network::Pipes;
use meridian_runtime::{Clock, Tasks};
use tokio::runtime::RngSeed;

use super::data::{self, BEGIN, DAY, DAYS, TraceJob};
use super::faults::{self, Outage};
use super::progress::{Moment, Progress, RegionMoment};
use super::summary::{Observed, Summary};
use super::truth::{self, Account};
use super::world::{self, Place};
use super::{PlaygroundError, jobs};
use crate::fleet::{Fleet, FleetRegion, piped_hub};

/// Simulated time between two looks at the fleet.
const LOOK_EVERY: Millis = Millis::seconds(900);
/// How long after the last day's end the queue may take to drain.
const HORIZON: Millis = DAY;

/// What to run.
#[derive(Clone, Debug)]
pub struct FastOptions {
    /// Everything that looks random follows from it.
    pub seed: u64,
    /// Days of submissions, 1 to 7.
    pub days: u64,
    /// At most this many jobs; submissions then end with the last of them.
    pub jobs: Option<usize>,
    /// Pace of the submissions in percent of the table's: 150 submits the week in 4.7 days.
    pub load_percent: u64,
    /// Nodes that fail in a week, on average.
    pub failures_a_week: u32,
}

/// Runs it, from an own runtime. Call outside of any.
///
/// # Errors
/// When the federation does not start, a task of it dies, or the hub refuses a job.
pub fn run(options: &FastOptions, progress: &mut Progress) -> Result<Summary, PlaygroundError> {
    let system = |what| move |source| PlaygroundError::System { what, source };
    let folder = tempfile::tempdir().map_err(system("a temporary folder"))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .rng_seed(RngSeed::from_bytes(&options.seed.to_le_bytes()))
        .build();
    let runtime = runtime.map_err(system("a runtime"))?;
    runtime.block_on(async {
        let mut week = Week::begin(options, folder.path()).await?;
        let played = week.play(progress).await;
        progress.finish();
        played?;
        let summary = week.sum_up().await?;
        week.fleet.stop().await?;
        week.tasks.cancel();
        Ok(summary)
    })
}

/// What happens next on the timeline.
#[derive(Clone, Debug)]
enum Due {
    Submit(usize),
    Fail(usize),
    Recover(usize),
}

struct Week {
    options: FastOptions,
    clock: Clock,
    tasks: Tasks,
    fleet: Fleet,
    client: Client,
    regions: Vec<FleetRegion>,
    nominal: BTreeMap<String, u64>,
    jobs: Vec<TraceJob>,
    outages: Vec<Outage>,
    /// The span of submissions, a multiple of [`LOOK_EVERY`].
    span: Millis,
    /// By time; those of one instant in the order in which they were put there.
    timeline: Vec<(Millis, Due)>,
    /// UID and instant of the acknowledgement of each submission so far, by row of `jobs`.
    accepted: Vec<(Uid, UnixMillis)>,
}

impl Week {
    async fn begin(
        options: &FastOptions,
        folder: &std::path::Path,
    ) -> Result<Self, PlaygroundError> {
        let (week, regions) = (data::week()?, data::regions()?);
        let clusters = regions.iter().flat_map(|region| &region.clusters);
        let gpus = clusters.map(|cluster| data::gpus(&cluster.inventory)).sum();
        let nominal = jobs::nominal(&week, gpus);
        let (clock, tasks) = (Clock::simulated(BEGIN), Tasks::new());
        let place = Place {
            seed: options.seed,
            clock: clock.clone(),
            network: Arc::new(Pipes::default()),
            folder,
            tasks: &tasks,
            hub: piped_hub(0),
            execution: Execution::Inline,
        };
        let fleet = Fleet::start(world::fleet(place, regions.clone(), &week)?).await?;
        let client = fleet.client(0)?;
        let (jobs, span) = submissions(options, week);
        let outages = faults::draw(options.seed, &regions, span, options.failures_a_week);
        let timeline = timeline(&jobs, &outages);
        Ok(Self {
            options: options.clone(),
            clock,
            tasks,
            fleet,
            client,
            regions,
            nominal,
            jobs,
            outages,
            span,
            timeline,
            accepted: Vec::new(),
        })
    }

    /// Plays the timeline, then waits until the queue is empty or the horizon is reached.
    async fn play(&mut self, progress: &mut Progress) -> Result<(), PlaygroundError> {
        let mut look = LOOK_EVERY;
        for (at, due) in std::mem::take(&mut self.timeline) {
            while look < at {
                self.look_at(look, progress).await?;
                look = look.saturating_add(LOOK_EVERY);
            }
            self.clock.sleep_until(BootMillis(at.0)).await;
            self.happen(due).await?;
        }
        let horizon = self.span.saturating_add(HORIZON);
        while look <= horizon {
            let waiting = self.look_at(look, progress).await?;
            if waiting == 0 && look >= self.span {
                break;
            }
            look = look.saturating_add(LOOK_EVERY);
        }
        Ok(())
    }

    async fn happen(&mut self, due: Due) -> Result<(), PlaygroundError> {
        let now = self.clock.wall();
        match due {
            Due::Submit(ix) => {
                let submission = jobs::submission(&self.jobs[ix], 0);
                let name = submission.idempotency_key.clone();
                let asked = || format!("job {name} was not accepted");
                let stored = self.client.submit(submission).await;
                let stored = stored.map_err(failed(asked))?;
                let uid = stored.uid.parse();
                let uid = uid.map_err(|_| PlaygroundError::Answer(stored.uid.clone()))?;
                self.accepted.push((uid, now));
            }
            Due::Fail(ix) => {
                let outage = &self.outages[ix];
                self.fleet
                    .cluster(&outage.cluster)?
                    .fail_node(now, &outage.node);
            }
            Due::Recover(ix) => {
                let outage = &self.outages[ix];
                self.fleet
                    .cluster(&outage.cluster)?
                    .recover_node(now, &outage.node);
            }
        }
        Ok(())
    }

    /// Waits for the instant, shows it, and says how many gangs wait.
    async fn look_at(
        &mut self,
        at: Millis,
        progress: &mut Progress,
    ) -> Result<usize, PlaygroundError> {
        self.clock.sleep_until(BootMillis(at.0)).await;
        self.fleet.check().await?;
        let asked = || "the queue cannot be read".to_owned();
        let queue = self.client.queue(1, "").await.map_err(failed(asked))?;
        let waiting = usize::try_from(queue.total).unwrap_or(usize::MAX);
        let now = self.clock.wall();
        let mut running = 0;
        let mut regions = Vec::new();
        for region in &self.regions {
            let mut moment = RegionMoment {
                name: region.name.clone(),
                time_zone: region.time_zone.clone(),
                gpus: 0,
                busy: 0,
            };
            for cluster in &region.clusters {
                let (gpus, gangs) = truth::busy(self.fleet.cluster(&cluster.name)?, now);
                moment.gpus += data::gpus(&cluster.inventory);
                moment.busy += gpus;
                running += gangs;
            }
            regions.push(moment);
        }
        progress.show(&Moment {
            at: now,
            regions,
            submitted: self.accepted.len(),
            waiting,
            running,
        });
        Ok(waiting)
    }

    async fn sum_up(&self) -> Result<Summary, PlaygroundError> {
        let asked = || "the jobs cannot be listed".to_owned();
        let kind = Resource::of::<FederatedJobSpec>();
        let listed = self.client.list(&kind, None, &ListOptions::default()).await;
        let listed = listed.map_err(failed(asked))?;
        let read = |value| serde_json::from_value::<FederatedJob>(value);
        let stored: Result<Vec<FederatedJob>, _> = listed.items.into_iter().map(read).collect();
        let stored = stored.map_err(|error| PlaygroundError::Answer(error.to_string()))?;
        let now = self.clock.wall();
        let span = (BEGIN, BEGIN.after(self.span));
        let mut account = Account::read(&self.fleet, now, span);
        let pods = self.accepted.iter().zip(&self.jobs).map(|((uid, _), job)| {
            let (pods, _) = jobs::shape(job.gpus);
            (*uid, u32::try_from(pods).unwrap_or(u32::MAX))
        });
        let pods = pods.collect();
        for (_, _, cluster) in self.fleet.clusters() {
            let found = truth::at_rest(cluster, now, &pods);
            account.violations.extend(found);
        }
        let metrics = self.fleet.hub(0)?.metrics.encode();
        let metrics = metrics.map_err(|error| PlaygroundError::Answer(error.to_string()))?;
        Ok(Summary::new(&Observed {
            options: &self.options,
            now,
            span,
            regions: &self.regions,
            nominal: &self.nominal,
            jobs: &self.jobs,
            outages: &self.outages,
            accepted: &self.accepted,
            stored: &stored,
            account: &account,
            metrics: &metrics,
        }))
    }
}

/// The jobs to submit, and the span in which they are.
fn submissions(options: &FastOptions, week: Vec<TraceJob>) -> (Vec<TraceJob>, Millis) {
    let days = Millis(options.days.clamp(1, DAYS) * DAY.0);
    let paced = |at: Millis| Millis(at.0 * 100 / options.load_percent.max(1));
    let within = week.into_iter().filter(|job| job.submit < days);
    let within = within.map(|job| TraceJob {
        submit: paced(job.submit),
        ..job
    });
    let jobs: Vec<TraceJob> = within.take(options.jobs.unwrap_or(usize::MAX)).collect();
    let end = match (options.jobs, jobs.last()) {
        (Some(_), Some(last)) => last.submit,
        (Some(_), None) | (None, _) => paced(days),
    };
    let looks = end.0.div_ceil(LOOK_EVERY.0).max(1);
    (jobs, Millis(looks * LOOK_EVERY.0))
}

fn timeline(jobs: &[TraceJob], outages: &[Outage]) -> Vec<(Millis, Due)> {
    let submits = jobs.iter().enumerate();
    let submits = submits.map(|(ix, job)| (job.submit, Due::Submit(ix)));
    let deaths = outages.iter().enumerate().flat_map(|(ix, outage)| {
        let (fail, recover) = (Due::Fail(ix), Due::Recover(ix));
        [(outage.from, fail), (outage.until, recover)]
    });
    let mut timeline: Vec<(Millis, Due)> = submits.chain(deaths).collect();
    timeline.sort_by_key(|(at, _)| *at);
    timeline
}

fn failed(what: impl Fn() -> String) -> impl FnOnce(ClientError) -> PlaygroundError {
    move |source| PlaygroundError::Client {
        what: what(),
        source,
    }
}
