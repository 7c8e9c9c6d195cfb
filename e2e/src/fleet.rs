//! A whole federation in one process: hubs, agents and simulated clusters.
//!
//! Owns their start, crash and restart over a network, a clock and a store that are handed in, and
//! the ground truth of the clusters. The playground, scenarios and benches stand on it. Never
//! decides what happens, and never knows a trace.

mod lifeline;
mod objects;
pub mod person;
mod small;

use std::collections::BTreeMap;
use std::sync::Arc;

use meridian_agent::simulated::{InventoryError, Profile, SimulatedCluster};
use meridian_agent::{
    Agent, AgentHandle, AgentMetrics, AgentOptions, Contact, Inventory, StateError,
};
use meridian_api::units::Millis;
use meridian_client::{Client, ClientError, ClientOptions};
use meridian_hub::config::HubConfig;
use meridian_hub::leadership::Role;
use meridian_hub::metrics::Metrics;
use meridian_hub::{Execution, HubHandle, HubOptions, StartError};
use meridian_runtime::disk::MemoryDisk;
use meridian_runtime::tasks::TaskDied;
use meridian_runtime::{Clock, Network, Random, Tasks};
use meridian_store::SharedStore;
use serde_json::Value;

use self::lifeline::Lifeline;
pub use self::objects::object;

/// A hub takes the lead within one lease of its predecessor, an agent attaches within its longest
/// pause between two dials; both are far below this in every configuration that is used here.
const READY_WITHIN: Millis = Millis::seconds(1_800);
/// Tasks that were told to stop end within their own timeouts, the longest of which is 10 s.
const STOP_WITHIN: Millis = Millis::seconds(60);

/// What a federation is made of.
pub struct FleetOptions {
    /// All randomness follows from it.
    pub seed: u64,
    /// Time of everybody.
    pub clock: Clock,
    /// Connections of everybody.
    pub network: Arc<dyn Network>,
    /// The truth; it outlives hubs, as etcd does.
    pub store: SharedStore,
    /// One per hub replica. With [`piped_hub`] addresses are in-memory pipes.
    pub hubs: Vec<HubConfig>,
    /// Where hubs decide.
    pub execution: Execution,
    /// Regions and their clusters.
    pub regions: Vec<FleetRegion>,
    /// Cluster-scoped objects to make after the regions, in order: tenants, quotas, classes.
    pub objects: Vec<Value>,
}

/// One region.
#[derive(Clone, Debug)]
pub struct FleetRegion {
    /// Its name.
    pub name: String,
    /// IANA time zone.
    pub time_zone: String,
    /// Its clusters.
    pub clusters: Vec<FleetCluster>,
}

/// One simulated cluster.
#[derive(Clone, Debug)]
pub struct FleetCluster {
    /// Its name, once in the fleet.
    pub name: String,
    /// Its hardware.
    pub inventory: Inventory,
    /// Its delays and faults.
    pub profile: Profile,
}

/// A federation that cannot be built, or broke.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// A hub does not start.
    #[error("a hub cannot start")]
    Hub(#[from] StartError),
    /// An agent does not start.
    #[error("an agent cannot start")]
    Agent(#[from] StateError),
    /// An inventory has a mistake.
    #[error("the inventory of a cluster is wrong")]
    Inventory(#[from] InventoryError),
    /// A client cannot be made.
    #[error("a client cannot be made")]
    Client(#[from] ClientError),
    /// An object was refused.
    #[error("{kind} {name} was refused: {message}")]
    Refused {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// Why.
        message: String,
    },
    /// Nobody leads, or an agent is not attached, after a long time.
    #[error("not ready within {READY_WITHIN}: {0}")]
    NotReady(String),
    /// A task of a hub or an agent ended by itself.
    #[error("{who}: {died}")]
    Died {
        /// Whose.
        who: String,
        /// Which, and how.
        died: TaskDied,
    },
    /// There is no hub or cluster of that name, or it does not run.
    #[error("{0} does not run")]
    Absent(String),
}

/// A running federation.
pub struct Fleet {
    clock: Clock,
    random: Random,
    network: Arc<dyn Network>,
    store: SharedStore,
    execution: Execution,
    hubs: Vec<HubSeat>,
    clusters: BTreeMap<String, ClusterSeat>,
}

/// Where a hub replica runs, life after life.
struct HubSeat {
    config: HubConfig,
    metrics: Metrics,
    life: Option<HubLife>,
}

struct HubLife {
    handle: HubHandle,
    tasks: Tasks,
    store: Lifeline,
}

/// A cluster, what its agent keeps on disk, and the agent while it lives.
struct ClusterSeat {
    region: String,
    cluster: SimulatedCluster,
    disk: MemoryDisk,
    life: Option<AgentLife>,
}

struct AgentLife {
    handle: AgentHandle,
    tasks: Tasks,
}

/// The configuration of hub number `index` on in-memory pipes.
#[must_use]
pub fn piped_hub(index: usize) -> HubConfig {
    HubConfig {
        name: format!("hub-{index}"),
        users_listen: format!("hub-{index}:7080"),
        agents_listen: format!("hub-{index}:7443"),
        insecure_agents: true,
        ..HubConfig::default()
    }
}

impl Fleet {
    /// Starts hubs, makes the objects, starts one agent per cluster, and waits until all of them
    /// are attached.
    pub async fn start(options: FleetOptions) -> Result<Self, FleetError> {
        let mut fleet = Self {
            clock: options.clock,
            random: Random::seeded(options.seed),
            network: options.network,
            store: options.store,
            execution: options.execution,
            hubs: Vec::new(),
            clusters: BTreeMap::new(),
        };
        for config in options.hubs {
            fleet.hubs.push(HubSeat {
                config,
                metrics: Metrics::default(),
                life: None,
            });
            fleet.start_hub(fleet.hubs.len() - 1).await?;
        }
        let first = fleet.hub(0)?;
        fleet.led().await?;
        for object in objects::of_regions(&options.regions) {
            objects::make(&first.resources, object).await?;
        }
        for object in options.objects {
            objects::make(&first.resources, object).await?;
        }
        for region in options.regions {
            for spec in region.clusters {
                fleet.join(&region.name, spec).await?;
            }
        }
        fleet.attached().await?;
        Ok(fleet)
    }

    /// Adds a region with its clusters, the way a person does, and waits for their agents.
    pub async fn add(&mut self, region: FleetRegion) -> Result<(), FleetError> {
        let hub = self.hub(0)?;
        for object in objects::of_regions(std::slice::from_ref(&region)) {
            objects::make(&hub.resources, object).await?;
        }
        for spec in region.clusters {
            self.join(&region.name, spec).await?;
        }
        self.attached().await
    }

    /// Adds a cluster whose objects are there, and starts its agent.
    async fn join(&mut self, region: &str, spec: FleetCluster) -> Result<(), FleetError> {
        let seed = self.random.next_u64();
        let now = self.clock.wall();
        let cluster = SimulatedCluster::new(&spec.inventory, spec.profile, seed, now)?;
        let seat = ClusterSeat {
            region: region.to_owned(),
            cluster,
            disk: MemoryDisk::default(),
            life: None,
        };
        self.clusters.insert(spec.name.clone(), seat);
        self.start_agent(&spec.name).await
    }

    /// Starts hub number `index`, or starts it again.
    pub async fn start_hub(&mut self, index: usize) -> Result<(), FleetError> {
        let absent = || FleetError::Absent(format!("hub number {index}"));
        let seat = self.hubs.get_mut(index).ok_or_else(absent)?;
        let tasks = Tasks::new();
        let store = Lifeline::new(Arc::clone(&self.store));
        let handle = meridian_hub::start(HubOptions {
            config: seat.config.clone(),
            store: Arc::new(store.clone()),
            clock: self.clock.clone(),
            random: Random::seeded(self.random.next_u64()),
            network: Arc::clone(&self.network),
            tasks: tasks.clone(),
            metrics: seat.metrics.clone(),
            execution: self.execution,
        });
        let handle = handle.await?;
        seat.life = Some(HubLife {
            handle,
            tasks,
            store,
        });
        Ok(())
    }

    /// Ends a hub as a crash does for everybody else: from this moment it writes nothing more, and
    /// its lead ends only with its lease.
    pub async fn crash_hub(&mut self, index: usize) -> Result<(), FleetError> {
        let life = self.hubs.get_mut(index).and_then(|seat| seat.life.take());
        let who = format!("hub number {index}");
        let life = life.ok_or_else(|| FleetError::Absent(who.clone()))?;
        life.store.cut();
        stop(&self.clock, who, &life.tasks).await
    }

    /// Starts a cluster's agent, or starts it again on the same disk.
    pub async fn start_agent(&mut self, name: &str) -> Result<(), FleetError> {
        let hubs = self.agents_addresses();
        let seat = self.seat(name)?;
        let (backend, disk) = (
            seat.cluster.backend(self.clock.clone()),
            Arc::new(seat.disk.clone()),
        );
        let tasks = Tasks::new();
        let handle = Agent::start(AgentOptions {
            cluster: name.to_owned(),
            hubs,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            network: Arc::clone(&self.network),
            clock: self.clock.clone(),
            random: Random::seeded(self.random.next_u64()),
            disk,
            backend: Arc::new(backend),
            tasks: tasks.clone(),
            metrics: AgentMetrics::default(),
            identity: None,
        });
        let handle = handle.await?;
        self.seat_mut(name)?.life = Some(AgentLife { handle, tasks });
        Ok(())
    }

    /// Ends an agent as a crash does; what runs in its cluster goes on.
    pub async fn crash_agent(&mut self, name: &str) -> Result<(), FleetError> {
        let life = self.seat_mut(name)?.life.take();
        let life = life.ok_or_else(|| FleetError::Absent(format!("the agent of {name}")))?;
        life.handle.kill().await;
        Ok(())
    }

    /// A hub that runs.
    pub fn hub(&self, index: usize) -> Result<HubHandle, FleetError> {
        let life = self.hubs.get(index).and_then(|seat| seat.life.as_ref());
        life.map(|life| life.handle.clone())
            .ok_or_else(|| FleetError::Absent(format!("hub number {index}")))
    }

    /// What a hub counts, through all its lives.
    pub fn metrics(&self, index: usize) -> Result<&Metrics, FleetError> {
        let seat = self.hubs.get(index);
        seat.map(|seat| &seat.metrics)
            .ok_or_else(|| FleetError::Absent(format!("hub number {index}")))
    }

    /// A client of a hub that runs.
    pub fn client(&self, index: usize) -> Result<Client, FleetError> {
        let options = ClientOptions {
            network: Arc::clone(&self.network),
            clock: self.clock.clone(),
            random: Random::seeded(self.random.next_u64()),
            ..ClientOptions::new(format!("http://{}", self.hub(index)?.users))
        };
        Ok(Client::new(options)?)
    }

    /// A cluster, whether its agent lives or not.
    pub fn cluster(&self, name: &str) -> Result<&SimulatedCluster, FleetError> {
        self.seat(name).map(|seat| &seat.cluster)
    }

    /// Name, region and truth of every cluster, by name.
    pub fn clusters(&self) -> impl Iterator<Item = (&str, &str, &SimulatedCluster)> {
        self.clusters
            .iter()
            .map(|(name, seat)| (name.as_str(), seat.region.as_str(), &seat.cluster))
    }

    /// Waits until a hub leads.
    pub async fn led(&self) -> Result<(), FleetError> {
        let handles = self.hubs.iter().filter_map(|seat| seat.life.as_ref());
        let leads = handles.map(|life| {
            let mut leadership = life.handle.leadership.clone();
            Box::pin(async move {
                while !matches!(leadership.role(), Role::Leader(_)) {
                    leadership.changed().await;
                }
            })
        });
        let leads: Vec<_> = leads.collect();
        if leads.is_empty() {
            return Err(FleetError::Absent("every hub".to_owned()));
        }
        let first = futures::future::select_all(leads);
        let led = self.clock.timeout(READY_WITHIN, first).await;
        led.map(drop)
            .map_err(|_| FleetError::NotReady("no hub leads".to_owned()))
    }

    /// Waits until every agent that runs is attached.
    pub async fn attached(&self) -> Result<(), FleetError> {
        for (name, seat) in &self.clusters {
            let Some(life) = &seat.life else { continue };
            let mut contact = life.handle.contact();
            let attached = contact.wait_for(|contact| matches!(contact, Contact::Attached { .. }));
            let seen = self.clock.timeout(READY_WITHIN, attached).await;
            if !matches!(seen, Ok(Ok(_))) {
                let contact = life.handle.contact().borrow().clone();
                let message = format!("the agent of {name} is {contact:?}");
                return Err(FleetError::NotReady(message));
            }
        }
        Ok(())
    }

    /// An error when a hub or an agent that nobody stopped has ended.
    pub async fn check(&self) -> Result<(), FleetError> {
        let hubs = self.hubs.iter().filter_map(|seat| {
            let life = seat.life.as_ref()?;
            Some((seat.config.name.clone(), &life.tasks))
        });
        let agents = self.clusters.iter().filter_map(|(name, seat)| {
            Some((format!("the agent of {name}"), &seat.life.as_ref()?.tasks))
        });
        for (who, tasks) in hubs.chain(agents) {
            if tasks.cancelled().is_cancelled() {
                stop(&self.clock, who, tasks).await?;
            }
        }
        Ok(())
    }

    /// Done when a task of a hub or an agent that runs has ended, whoever asked for it. Then
    /// [`Self::check`] says how.
    pub fn died(&self) -> impl Future<Output = ()> + use<> {
        let hubs = self.hubs.iter().filter_map(|seat| seat.life.as_ref());
        let agents = self.clusters.values().filter_map(|seat| seat.life.as_ref());
        let tasks = hubs
            .map(|life| &life.tasks)
            .chain(agents.map(|life| &life.tasks));
        let ends: Vec<_> = tasks
            .map(|tasks| Box::pin(tasks.cancelled().cancelled_owned()))
            .collect();
        async move {
            if ends.is_empty() {
                std::future::pending::<()>().await;
            }
            futures::future::select_all(ends).await;
        }
    }

    /// Asks everybody to stop, agents first, and waits for them. Clusters and store stay.
    pub async fn stop(&mut self) -> Result<(), FleetError> {
        for (name, seat) in &mut self.clusters {
            if let Some(life) = seat.life.take() {
                stop(&self.clock, format!("the agent of {name}"), &life.tasks).await?;
            }
        }
        for seat in &mut self.hubs {
            if let Some(life) = seat.life.take() {
                stop(&self.clock, seat.config.name.clone(), &life.tasks).await?;
            }
        }
        Ok(())
    }

    fn agents_addresses(&self) -> Vec<String> {
        let address = |seat: &HubSeat| match &seat.life {
            Some(life) => life.handle.agents.clone(),
            None => seat.config.agents_listen.clone(),
        };
        self.hubs.iter().map(address).collect()
    }

    fn seat(&self, name: &str) -> Result<&ClusterSeat, FleetError> {
        let absent = || FleetError::Absent(format!("cluster {name}"));
        self.clusters.get(name).ok_or_else(absent)
    }

    fn seat_mut(&mut self, name: &str) -> Result<&mut ClusterSeat, FleetError> {
        let absent = || FleetError::Absent(format!("cluster {name}"));
        self.clusters.get_mut(name).ok_or_else(absent)
    }
}

/// Asks a group of tasks to stop and waits for it; a connection that a peer holds open is not
/// waited for longer than everything else takes.
async fn stop(clock: &Clock, who: String, tasks: &Tasks) -> Result<(), FleetError> {
    tasks.cancel();
    match clock.timeout(STOP_WITHIN, tasks.finished()).await {
        Ok(Err(died)) => Err(FleetError::Died { who, died }),
        Ok(Ok(())) => Ok(()),
        Err(late) => {
            tracing::warn!(who, %late, "tasks are left behind");
            Ok(())
        }
    }
}

#[cfg(test)]
#[path = "fleet/fleet_tests.rs"]
mod tests;
