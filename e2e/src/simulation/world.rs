//! The world of one run: what outlives the lives of its hosts.
//!
//! Owns the shared store, each hub's switches of store faults, each cluster with its agent's disk,
//! the log, and the notes that hosts pass to the judge. Never judges.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use meridian_agent::simulated::{Between, NodeResources, Profile};
use meridian_agent::{Inventory, SimulatedCluster};
use meridian_api::units::{Millis, UnixMillis};
use meridian_hub::metrics::Metrics;
use meridian_policies::check::Violation;
use meridian_runtime::disk::MemoryDisk;
use meridian_runtime::{Clock, Random};
use meridian_store::{Faults, MemoryStore, Revision};
use serde_json::Value;

use super::BEGIN;
use super::log::{Echo, Log};
use super::witness::Write;

/// Hub replicas: one leads, two may follow.
pub(crate) const HUBS: usize = 3;
/// Clients that submit jobs.
pub(crate) const SUBMITTERS: usize = 2;
/// The host of the person who sets up, closes clusters and changes quotas.
pub(crate) const OPERATOR: &str = "operator";
/// Clusters, each its own region, and the hosts of each.
pub(crate) const CLUSTERS: [&str; 3] = ["ap", "eu", "us"];
/// The pool of every cluster.
pub(crate) const POOL: &str = "h100";
/// Its hardware.
pub(crate) const FLAVOR: &str = "h100-80gb-sxm";
/// Racks of a cluster, and hosts in each: small, so that jobs must wait for each other.
const RACKS: u32 = 2;
const HOSTS_PER_RACK: u32 = 2;
/// A host of eight cards.
const HOST: NodeResources = NodeResources {
    gpus: 8,
    cpu_milli: 96_000,
    memory_mib: 1 << 20,
};
/// Cards of one cluster.
pub(crate) const GPUS: u64 = 8 * (RACKS * HOSTS_PER_RACK) as u64;
/// Users' port of a hub.
pub(crate) const USERS_PORT: u16 = 7080;
/// Agents' port of a hub.
pub(crate) const AGENTS_PORT: u16 = 7443;

pub(crate) fn hub_name(index: usize) -> String {
    format!("hub-{index}")
}

pub(crate) fn agent_name(index: usize) -> String {
    format!("agent-{}", CLUSTERS[index])
}

pub(crate) fn submitter_name(index: usize) -> String {
    format!("client-{index}")
}

/// The clock of a host's present life: boot time starts anew, wall time goes on.
pub(crate) fn host_clock() -> Clock {
    let elapsed = turmoil::sim_elapsed().unwrap_or_default().as_millis();
    let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX);
    Clock::simulated(BEGIN.after(Millis(elapsed)))
}

/// Something that a host tells the judge.
#[derive(Clone, Debug)]
pub(crate) enum Note {
    /// A hub's write took effect.
    Wrote(Write),
    /// A client is about to ask for the deletion of this job.
    AskedToDelete {
        /// Its UID.
        uid: String,
    },
    /// A client was told that its job is stored.
    Acknowledged {
        /// Its idempotency key.
        key: String,
        /// The job's UID.
        uid: String,
    },
    /// A hub's list of jobs.
    Listed {
        /// The hub.
        hub: usize,
        /// As of this revision.
        revision: Revision,
        /// All of them.
        items: Vec<Value>,
    },
    /// An event of a hub's watch of jobs that goes on from the list before it.
    Watched {
        /// The hub.
        hub: usize,
        /// `ADDED`, `MODIFIED`, `DELETED` or `BOOKMARK`.
        kind: String,
        /// The object.
        object: Value,
    },
    /// What the leader said of a job that waits at the end.
    Explained {
        /// The job's UID.
        uid: String,
        /// Its phase.
        phase: String,
        /// Codes of its reasons.
        reasons: Vec<String>,
    },
    /// Somebody saw an invariant broken.
    Broken(Violation),
}

/// Notes on their way to the judge.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes(Arc<Mutex<Vec<Note>>>);

impl Notes {
    pub(crate) fn push(&self, note: Note) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        notes.push(note);
    }

    pub(crate) fn take(&self) -> Vec<Note> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One hub replica over its lives.
pub(crate) struct HubSlot {
    /// Switches of the store handle of its present life.
    faults: Mutex<Option<Faults>>,
    lives: AtomicU64,
    /// Counts of all its lives.
    pub(crate) metrics: Metrics,
}

impl HubSlot {
    /// Turns a switch of the present life's store handle.
    pub(crate) fn store_fault(&self, turn: impl FnOnce(&Faults)) {
        let faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(faults) = &*faults {
            turn(faults);
        }
    }

    pub(crate) fn begin_life(&self, faults: Faults) -> u64 {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = Some(faults);
        self.lives.fetch_add(1, Ordering::Relaxed)
    }
}

/// One member cluster and its agent over the agent's lives.
pub(crate) struct ClusterSlot {
    /// Its name, also its region's.
    pub(crate) name: &'static str,
    /// The cluster.
    pub(crate) cluster: SimulatedCluster,
    /// The agent's state folder.
    pub(crate) disk: MemoryDisk,
    pub(crate) lives: AtomicU64,
}

/// Everything that outlives a host.
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) length: Millis,
    /// Ground truth of the hubs. No hub uses this handle.
    pub(crate) store: MemoryStore,
    pub(crate) hubs: Vec<HubSlot>,
    pub(crate) clusters: Vec<ClusterSlot>,
    pub(crate) log: Log,
    pub(crate) notes: Notes,
    /// The fleet is declared: clients may begin.
    pub(crate) ready: AtomicBool,
    /// Jobs that were acknowledged and not asked to go: UID to name.
    jobs: Mutex<BTreeMap<String, String>>,
    now: AtomicI64,
}

impl World {
    pub(crate) fn new(seed: u64, length: Millis, echo: Echo) -> Self {
        let cluster = |(index, name): (usize, &&'static str)| ClusterSlot {
            name,
            cluster: SimulatedCluster::new(
                &inventory(),
                healthy(),
                seed ^ (index as u64 + 1),
                BEGIN,
            )
            .expect("the inventory names each pool and node once"),
            disk: MemoryDisk::default(),
            lives: AtomicU64::new(0),
        };
        let hub = |_| HubSlot {
            faults: Mutex::new(None),
            lives: AtomicU64::new(0),
            metrics: Metrics::default(),
        };
        Self {
            seed,
            length,
            store: MemoryStore::new(Clock::real()),
            hubs: (0..HUBS).map(hub).collect(),
            clusters: CLUSTERS.iter().enumerate().map(cluster).collect(),
            log: Log::new(echo),
            notes: Notes::default(),
            ready: AtomicBool::new(false),
            jobs: Mutex::default(),
            now: AtomicI64::new(BEGIN.0),
        }
    }

    /// Simulated wall time at the end of the newest step.
    pub(crate) fn now(&self) -> UnixMillis {
        UnixMillis(self.now.load(Ordering::Relaxed))
    }

    pub(crate) fn set_now(&self, now: UnixMillis) {
        self.now.store(now.0, Ordering::Relaxed);
    }

    /// When the run ends.
    pub(crate) fn end(&self) -> UnixMillis {
        BEGIN.after(self.length)
    }

    /// A stream of its own for each life of each host.
    pub(crate) fn random_for(&self, host: &str, life: u64) -> Random {
        let name = host.bytes().fold(self.seed, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Random::seeded(name ^ life.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Remembers a job for those who look for one to turn on.
    pub(crate) fn job_is_known(&self, uid: &str, name: &str) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.insert(uid.to_owned(), name.to_owned());
    }

    /// Takes a job off that list.
    pub(crate) fn job_goes(&self, uid: &str) {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.remove(uid);
    }

    /// Known jobs: UID and name.
    pub(crate) fn known_jobs(&self) -> Vec<(String, String)> {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let pair = |(uid, name): (&String, &String)| (uid.clone(), name.clone());
        jobs.iter().map(pair).collect()
    }
}

/// What each cluster is made of.
pub(crate) fn inventory() -> Inventory {
    let levels = [("rack", RACKS)];
    Inventory::uniform(POOL, FLAVOR, &levels, HOSTS_PER_RACK, HOST)
}

/// A cluster in good health whose delays fit a run of two minutes.
pub(crate) fn healthy() -> Profile {
    Profile {
        start: Between::millis(200, 2_500),
        stop: Between::millis(100, 3_000),
        node_notice: Between::millis(3_000, 8_000),
        ..Profile::default()
    }
}
