//! Fleets full of running work, and gangs that want room in them.
//!
//! Owns the snapshots of the bench. Never measures.

use meridian_api::ids::{Epoch, GangId, Revision, StoreGeneration, Uid};
use meridian_api::kinds::workload_class::Preemption as Manner;
use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Millis, Resources, UnixMillis};
use meridian_policies::model::{
    ChoiceIx, Class, ClassIx, ClassRule, Cluster, ClusterFacts, ClusterIx, Contact, Expected,
    Flavor, FlavorIx, GangShape, Held, HostIx, HostRow, LedgerRow, Measure, Pool, PoolFacts,
    PoolIx, Quota, RegionIx, Role, RoleShape, Seat, Shape, Snapshot, Stage, Standing, Tenant,
    TenantIx, Use, Waiting,
};

/// GPUs of one host.
const CARDS: u32 = 8;
/// Now, for all of them.
const NOW: UnixMillis = UnixMillis(1_000_000_000);
/// The oldest checkpoint, in seconds.
const OLDEST: u64 = 36_000;

/// What may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// The class of what runs is lower.
    LowerClass,
    /// What runs is borrowed from the tenant that asks, and of a higher class.
    Lender,
}

/// One fleet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fleet {
    pub(crate) regions: u32,
    /// Hosts of each region, all in one pool.
    pub(crate) hosts: u32,
    /// Jobs of equal size that fill each host.
    pub(crate) jobs: u32,
    pub(crate) right: Right,
}

fn cards(count: u32) -> Resources {
    let count = u64::from(count);
    Resources {
        gpus: MilliGpus::cards(count),
        cpu: MilliCpus(count * 8_000),
        memory: Mebibytes(count * 65_536),
    }
}

fn class(name: &str, priority: i32, how: Manner) -> Class {
    Class {
        name: name.to_owned(),
        priority,
        ignores_slots: how.is_protected(),
        rule: ClassRule {
            how,
            floor_percent: 0,
            notice: Millis::seconds(60),
            min_runtime: Millis::ZERO,
            is_shielded: false,
        },
    }
}

fn tenant(name: &str, nominal: u64) -> Tenant {
    Tenant {
        name: name.to_owned(),
        parent: None,
        quotas: vec![Quota {
            measure: Measure::Gpus {
                flavor: None,
                region: None,
            },
            nominal: nominal * 1000,
            borrowing_limit: None,
            lending_limit: None,
            hard_cap: None,
        }],
        gpus_per_job: None,
        running_jobs: None,
        budget: None,
        weight: 1,
        history: Use::default(),
        lost: 0,
    }
}

impl Fleet {
    fn gpus(self) -> u64 {
        u64::from(self.regions) * u64::from(self.hosts) * u64::from(CARDS)
    }

    /// The fleet, full, with `gangs` gangs of `pods` pods of eight GPUs waiting.
    pub(crate) fn snapshot(self, gangs: u32, pods: u32) -> Snapshot {
        let lender = self.right == Right::Lender;
        let (own, its) = if lender { (10, 20) } else { (20, 10) };
        let nominal = if lender {
            [self.gpus(), 0]
        } else {
            [self.gpus(); 2]
        };
        let mut snapshot = Snapshot {
            revision: Revision(1),
            now: NOW,
            store_generation: StoreGeneration(1),
            flavors: vec![Flavor {
                name: "h100".to_owned(),
                worth: 1000,
            }],
            classes: vec![
                class("asks", own, Manner::Never),
                class("runs", its, Manner::Requeue),
            ],
            tenants: vec![tenant("asks", nominal[0]), tenant("runs", nominal[1])],
            ..Snapshot::default()
        };
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for region in 0..self.regions {
            self.add_region(&mut snapshot, region, &mut random);
        }
        for gang in 0..gangs {
            snapshot.waiting.push(waiting(gang, pods));
        }
        snapshot
    }

    fn add_region(self, snapshot: &mut Snapshot, region: u32, random: &mut u64) {
        let size = CARDS / self.jobs;
        snapshot.regions.push(format!("r{region:02}"));
        snapshot.clusters.push(Cluster {
            name: format!("c{region:02}"),
            region: RegionIx(region),
            contact: Contact::Ready,
            cordoned: false,
            facts: ClusterFacts::default(),
        });
        snapshot.pools.push(Pool {
            cluster: ClusterIx(region),
            name: "main".to_owned(),
            flavor: FlavorIx(0),
            classes: Vec::new(),
            levels: Vec::new(),
            facts: PoolFacts::default(),
            shapes: vec![Shape {
                domains: Vec::new(),
                allocatable: cards(CARDS),
                free: Resources::default(),
                hosts: self.hosts,
            }],
        });
        for _ in 0..self.hosts {
            let host = HostIx(u32::try_from(snapshot.hosts.len()).unwrap_or(u32::MAX));
            snapshot.hosts.push(HostRow {
                pool: PoolIx(region),
                shape: 0,
            });
            for _ in 0..self.jobs {
                // A multiplicative generator: any spread of ages will do.
                *random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let age = Millis::seconds((*random >> 33) % OLDEST);
                let number = snapshot.held.len() as u128;
                snapshot
                    .held
                    .push(self.held(number, region, host, size, age));
            }
        }
    }

    fn held(self, number: u128, region: u32, host: HostIx, size: u32, age: Millis) -> Held {
        let gpus = cards(size).gpus;
        let lender = self.right == Right::Lender;
        let started = UnixMillis(NOW.0.saturating_sub_unsigned(age.0));
        Held {
            gang: GangId {
                job: Uid(1_000_000 + number),
                index: 0,
            },
            epoch: Epoch::first(StoreGeneration(1)),
            tenant: TenantIx(1),
            class: ClassIx(1),
            cluster: ClusterIx(region),
            flavor: FlavorIx(0),
            pool: Some(PoolIx(region)),
            ends: None,
            resources: cards(size),
            pods: 1,
            rows: vec![LedgerRow {
                role: if lender { Role::Borrowed } else { Role::Own },
                lender: lender.then_some(TenantIx(0)),
                gpus,
            }],
            since: started,
            standing: Standing {
                job: "runs/job".to_owned(),
                stage: Stage::Running,
                started: Some(started),
                saved: None,
                shape: GangShape {
                    roles: vec![role(1, size)],
                },
                full: vec![1],
                seats: vec![Seat {
                    host,
                    held: cards(size),
                    pods: vec![1],
                }],
                evictions: Vec::new(),
            },
        }
    }
}

fn role(pods: u32, gpus: u32) -> RoleShape {
    RoleShape {
        name: "worker".to_owned(),
        per_pod: cards(gpus),
        min: pods,
        max: pods,
        step: 1,
        required: None,
        preferred: None,
        slice: None,
    }
}

fn waiting(number: u32, pods: u32) -> Waiting {
    let shape = GangShape {
        roles: vec![role(pods, CARDS)],
    };
    Waiting {
        gang: GangId {
            job: Uid(1 + u128::from(number)),
            index: 0,
        },
        job: format!("asks/job-{number}"),
        tenant: TenantIx(0),
        class: ClassIx(0),
        priority: 0,
        submitted: NOW,
        finish_by: None,
        max_runtime: None,
        suspended: false,
        flavors: Vec::new().into(),
        regions: Vec::new().into(),
        clusters: Vec::new().into(),
        lacking: Vec::new().into(),
        job_gpus: shape.gpus(&shape.most()),
        shape: shape.into(),
        next_epoch: Epoch::first(StoreGeneration(1)),
        spec_revision: Revision(1),
        evicted_by: Vec::new(),
        choice: ChoiceIx(0),
        expected: Expected::default(),
    }
}

/// Work that is lost when the newest placements go until as many hosts are empty: what a scheduler
/// loses that takes who came last, host by host. Thousandths of seconds of a card.
pub(crate) fn newest_first(snapshot: &Snapshot, hosts: usize) -> u64 {
    let mut newest: Vec<(UnixMillis, u64)> = Vec::new();
    let mut on_host: std::collections::BTreeMap<HostIx, (UnixMillis, u64)> =
        std::collections::BTreeMap::new();
    for held in &snapshot.held {
        let lost = snapshot.now.since(held.since).0 / 1000 * held.resources.gpus.0;
        for seat in &held.standing.seats {
            let host = on_host.entry(seat.host).or_insert((held.since, 0));
            host.0 = host.0.max(held.since);
            host.1 += lost;
        }
    }
    newest.extend(on_host.into_values());
    newest.sort_unstable_by(|a, b| b.cmp(a));
    newest.iter().take(hosts).map(|(_, lost)| lost).sum()
}
