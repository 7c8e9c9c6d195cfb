//! Builders of snapshots, so that a test says only what it is about.
//!
//! Owns the defaults of each row. Never asserts.

use meridian_api::ids::{Epoch, GangId, Revision, StoreGeneration, Uid};
use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Resources, UnixMillis};
use meridian_policies::model::*;

/// `gpus` whole GPUs with 8 cores and 64 GiB for each.
pub(crate) fn cards(gpus: u64) -> Resources {
    Resources {
        gpus: MilliGpus::cards(gpus),
        cpu: MilliCpus(gpus * 8000),
        memory: Mebibytes(gpus * 65_536),
    }
}

/// A host of 8 GPUs.
pub(crate) fn hosts(count: u32, domains: &[&str], free: u64) -> Shape {
    Shape {
        domains: domains.iter().map(|name| (*name).to_owned()).collect(),
        allocatable: cards(8),
        free: cards(free),
        hosts: count,
    }
}

pub(crate) fn role(pods: u32, gpus: u64) -> RoleShape {
    RoleShape {
        name: "worker".into(),
        per_pod: cards(gpus),
        min: pods,
        max: pods,
        step: 1,
        required: None,
        preferred: None,
        slice: None,
    }
}

pub(crate) fn gang(role: RoleShape) -> GangShape {
    GangShape { roles: vec![role] }
}

pub(crate) fn gang_id(job: u128) -> GangId {
    GangId {
        job: Uid(job),
        index: 0,
    }
}

/// A fleet under construction. Rows must be added in the order of their names.
pub(crate) struct World(pub(crate) Snapshot);

impl World {
    /// One region, one flavor, the classes `batch` and `prod`, one tenant without limits.
    pub(crate) fn new() -> Self {
        let class = |name: &str, priority| Class {
            name: name.into(),
            priority,
            ignores_slots: false,
            rule: ClassRule::default(),
        };
        Self(Snapshot {
            revision: Revision(100),
            now: UnixMillis(100_000),
            store_generation: StoreGeneration(1),
            flavors: vec![Flavor {
                name: "h100".into(),
                worth: 1000,
            }],
            classes: vec![class("batch", 10), class("prod", 100)],
            tenants: vec![tenant("team", None)],
            regions: vec!["east".into()],
            ..Snapshot::default()
        })
    }

    pub(crate) fn cluster(mut self, name: &str) -> Self {
        self.0.clusters.push(Cluster {
            name: name.into(),
            region: RegionIx(0),
            contact: Contact::Ready,
            cordoned: false,
            facts: ClusterFacts::default(),
        });
        self
    }

    /// A pool of the newest cluster and the first flavor, with one level per domain name.
    pub(crate) fn pool(mut self, name: &str, shapes: Vec<Shape>) -> Self {
        let last = u32::try_from(self.0.clusters.len()).expect("a small table") - 1;
        let depth = shapes.first().map_or(0, |shape| shape.domains.len());
        let levels = ["block", "rack"][2 - depth..]
            .iter()
            .map(|it| (*it).to_owned())
            .collect();
        self.0.pools.push(Pool {
            cluster: ClusterIx(last),
            name: name.into(),
            flavor: FlavorIx(0),
            classes: Vec::new(),
            levels,
            shapes,
            facts: PoolFacts::default(),
        });
        self
    }

    pub(crate) fn job(self, name: &str, role: RoleShape) -> Self {
        self.job_with(name, role, |_| {})
    }

    /// A job of class `batch`, submitted after those before it.
    pub(crate) fn job_with(
        mut self,
        name: &str,
        role: RoleShape,
        change: impl FnOnce(&mut Waiting),
    ) -> Self {
        let number = self.0.waiting.len();
        let shape = gang(role);
        let mut waiting = Waiting {
            gang: gang_id(number as u128 + 1),
            job: format!("research/{name}"),
            tenant: TenantIx(0),
            class: ClassIx(0),
            priority: 0,
            submitted: UnixMillis(i64::try_from(number).expect("a small table")),
            finish_by: None,
            max_runtime: None,
            suspended: false,
            flavors: Shared::default(),
            regions: Shared::default(),
            clusters: Shared::default(),
            lacking: Shared::default(),
            job_gpus: shape.gpus(&shape.most()),
            shape: shape.into(),
            next_epoch: Epoch::first(StoreGeneration(1)),
            spec_revision: Revision(1),
            evicted_by: Vec::new(),
            choice: ChoiceIx(0),
            expected: Expected::default(),
        };
        change(&mut waiting);
        self.0.waiting.push(waiting);
        self
    }

    /// GPUs that a tenant holds already, for a job of its own.
    pub(crate) fn held(mut self, tenant: u32, gpus: u64) -> Self {
        let number = self.0.held.len() as u128;
        self.0.held.push(Held {
            gang: gang_id(1_000_000 + number),
            epoch: Epoch::first(StoreGeneration(1)),
            tenant: TenantIx(tenant),
            class: ClassIx(0),
            cluster: ClusterIx(0),
            flavor: FlavorIx(0),
            pool: (!self.0.pools.is_empty()).then_some(PoolIx(0)),
            ends: None,
            resources: cards(gpus),
            pods: 1,
            rows: vec![LedgerRow {
                role: Role::Own,
                lender: None,
                gpus: MilliGpus::cards(gpus),
            }],
            since: UnixMillis(0),
            standing: Standing::default(),
        });
        self
    }
}

pub(crate) fn tenant(name: &str, parent: Option<u32>) -> Tenant {
    Tenant {
        name: name.into(),
        parent: parent.map(TenantIx),
        quotas: Vec::new(),
        gpus_per_job: None,
        running_jobs: None,
        budget: None,
        weight: 1,
        history: Use::default(),
        lost: 0,
    }
}

/// GPUs of the first flavor in all regions.
pub(crate) fn quota(nominal: u64, borrowing: Option<u64>) -> Quota {
    Quota {
        measure: Measure::Gpus {
            flavor: Some(FlavorIx(0)),
            region: None,
        },
        nominal: nominal * 1000,
        borrowing_limit: borrowing.map(|gpus| gpus * 1000),
        lending_limit: None,
        hard_cap: None,
    }
}
