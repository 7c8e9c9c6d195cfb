//! What the store holds before the hub under measure starts: a fleet that is full, and a queue.
//!
//! Owns the inputs, which follow from indexes alone. Policies are made by a real hub, jobs are as
//! one would store them; what a decision writes is written as decisions do.

use std::sync::Arc;

use bytes::Bytes;
use meridian_api::ids::{Epoch, GangId, StoreGeneration, Term, Uid};
use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Millis, Resources, UnixMillis};
use meridian_hub::placement::{PlacedRole, PlacementRecord, StoredRow};
use meridian_hub::progress::JobProgress;
use meridian_policies::lifecycle::State;
use meridian_policies::model::Role;
use meridian_store::keys::{ObjectKey, Part};
use meridian_store::{Op, Operation, SharedStore, Txn, keys};
use serde_json::{Value, json};

use crate::common::hub::Hub;

/// Jobs that differ in more than name and tenant.
pub(crate) const SHAPES: usize = 100;
/// Tenants below one root.
pub(crate) const TENANTS: usize = 100;
/// What tells two queued jobs apart: 16 bytes of identity, 8 of age, 4 each of tenant, class,
/// priority and shape.
pub(crate) const LEAST_BYTES: u32 = 40;
/// Gangs of one host that run in each cluster.
const PER_CLUSTER: usize = 1_000;
/// Writes in one transaction: four of each running job.
const JOBS_AT_ONCE: usize = 25;
/// First instant of everything.
const SINCE: UnixMillis = UnixMillis(1_700_000_000_000);
/// Hosts, cards and the rest are of one kind.
const HOST: Resources = Resources {
    gpus: MilliGpus(8_000),
    cpu: MilliCpus(192_000),
    memory: Mebibytes(2_097_152),
};

/// How much there is.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    /// Jobs that wait.
    pub(crate) queued: usize,
    /// Jobs that run, a host each.
    pub(crate) running: usize,
    /// Clusters, all full.
    pub(crate) clusters: usize,
}

impl Size {
    /// What the bench is about.
    pub(crate) const FULL: Self = Self::of(100);
    /// To see that it works.
    pub(crate) const QUICK: Self = Self::of(1);

    const fn of(clusters: usize) -> Self {
        Self {
            queued: 10 * PER_CLUSTER * clusters,
            running: PER_CLUSTER * clusters,
            clusters,
        }
    }

    /// All jobs.
    pub(crate) const fn jobs(self) -> usize {
        self.queued + self.running
    }

    /// The same, or the largest part of it that has at most so many jobs.
    pub(crate) fn within(self, jobs: u64) -> Self {
        let most = usize::try_from(jobs).unwrap_or(usize::MAX) / (11 * PER_CLUSTER);
        Self::of(self.clusters.min(most.max(1)))
    }
}

/// Fills an empty store, as a hub leaves it that has run until `now`.
pub(crate) async fn fill(store: &SharedStore, size: Size, now: UnixMillis) -> anyhow::Result<()> {
    let hub = Hub::start(Arc::clone(store)).await?;
    hub.object("Region", "eu", json!({"timeZone": "Europe/Dublin"}))
        .await?;
    hub.object("Tenant", "org", json!({})).await?;
    for tenant in 0..TENANTS {
        let name = team(tenant);
        let spec = json!({"parent": "org"});
        hub.object("Tenant", &name, spec).await?;
        let nominal = HOST.gpus.whole() * 10 * PER_CLUSTER as u64;
        let spec = json!({"tenant": name, "resources": [{"nominal": nominal}]});
        hub.object("TenantQuota", &name, spec).await?;
    }
    for cluster in 0..size.clusters {
        hub.object("MemberCluster", &named(cluster), json!({"region": "eu"}))
            .await?;
    }
    let mut shapes = Vec::with_capacity(SHAPES);
    for shape in 0..SHAPES {
        let mut shape = hub.would_store(&team(0), job(shape)).await?;
        // Added at reading; stored under a key of its own once there is one.
        shape.as_object_mut().map(|object| object.remove("status"));
        shapes.push(shape);
    }
    hub.stop().await?;
    let capacity = |cluster| Op::Put {
        key: keys::capacity(&named(cluster)),
        value: text(&capacity()),
        lease: None,
    };
    write(store, (0..size.clusters).map(capacity).collect()).await?;
    let history = |tenant| Op::Put {
        key: keys::history(&team(tenant)),
        value: text(&json!({"until": now})),
        lease: None,
    };
    write(store, (0..TENANTS).map(history).collect()).await?;
    let all: Vec<usize> = (0..size.jobs()).collect();
    for some in all.chunks(JOBS_AT_ONCE) {
        let ops = some.iter().flat_map(|index| {
            if *index < size.running {
                running(*index, &shapes[0])
            } else {
                vec![queued(*index, &shapes[index % SHAPES])]
            }
        });
        write(store, ops.collect()).await?;
    }
    Ok(())
}

async fn write(store: &SharedStore, ops: Vec<Op>) -> anyhow::Result<()> {
    let txn = Txn {
        success: ops,
        ..Txn::default()
    };
    store.txn(Operation::WriteObject, txn).await?;
    Ok(())
}

fn team(index: usize) -> String {
    format!("team-{:03}", index % TENANTS)
}

fn named(cluster: usize) -> String {
    format!("eu-{cluster:03}")
}

/// A form of job: pods of so many cards, over as many hosts; the first is of one whole host.
fn job(shape: usize) -> Value {
    let (pods, gpus) = (1 + shape % 16, 8 >> (shape / 16 % 4));
    json!({
        "apiVersion": "meridian.dev/v1alpha1",
        "kind": "FederatedJob",
        "metadata": {"name": "any", "namespace": team(0)},
        "spec": {
            "workloadClass": "batch-long",
            "costAttribution": {
                "team": "nlp", "project": "pretraining", "model": "llm-70b", "costCenter": "4711",
            },
            "expectedRuntime": format!("{}h", 1 + shape),
            "roles": [{
                "name": "worker", "replicas": pods, "gpus": gpus,
                "resources": {"cpu": 8, "memory": "64Gi"},
                "template": {"spec": {"containers": [{
                    "name": "main", "image": "registry.example/train:1",
                    "command": ["python", "-m", "train"],
                }]}},
            }],
            "checkpoint": {"uri": "s3://checkpoints/any", "every": "30m"},
        },
    })
}

/// Identity of job number `index`.
fn uid(index: usize) -> Uid {
    // As a random UUID is marked: version 4, variant 1.
    Uid(0x0000_4000_8000_0000_0000_0000_0000_0000 | (index as u128 + 1))
}

fn object(index: usize) -> ObjectKey {
    ObjectKey {
        plural: "federatedjobs".to_owned(),
        namespace: Some(team(index)),
        name: format!("job-{index:07}"),
    }
}

/// The write of a job that waits.
fn queued(index: usize, shape: &Value) -> Op {
    let mut job = shape.clone();
    let key = object(index);
    job["metadata"]["name"] = json!(key.name);
    job["metadata"]["namespace"] = json!(key.namespace);
    job["metadata"]["uid"] = json!(uid(index));
    Op::Put {
        key: key.part(Part::Spec),
        value: text(&job),
        lease: None,
    }
}

/// The writes of a job that runs on a host of its own.
fn running(index: usize, shape: &Value) -> Vec<Op> {
    let key = object(index);
    let record = record(index, &key);
    let progress = JobProgress {
        started: Some(SINCE),
        ..JobProgress::default()
    };
    let put = |key: Bytes, value: Bytes| Op::Put {
        key,
        value,
        lease: None,
    };
    vec![
        queued(index, shape),
        put(key.part(Part::Status), text(&status(&record))),
        put(keys::placement(record.gang), record.to_json().into()),
        put(keys::progress(uid(index)), text(&json!(progress))),
    ]
}

fn record(index: usize, key: &ObjectKey) -> PlacementRecord {
    let worker = PlacedRole {
        name: "worker".to_owned(),
        pods: 1,
        per_pod: HOST,
        template: "0".repeat(64),
        min: 0,
        step: 0,
        full: None,
        required: None,
        preferred: None,
        slice: None,
    };
    PlacementRecord {
        gang: GangId {
            job: uid(index),
            index: 0,
        },
        namespace: key.namespace.as_deref().unwrap_or_default().into(),
        job: key.name.as_str().into(),
        tenant: team(index).into(),
        class: "batch-long".into(),
        priority: 300,
        cluster: named(index / PER_CLUSTER).into(),
        pool: "h100".into(),
        flavor: "h100-80gb".into(),
        epoch: Epoch::first(StoreGeneration(1)),
        term: Term(1),
        state: State::Running,
        roles: Arc::new(vec![worker]),
        gpus: HOST.gpus,
        ledger: Arc::new(vec![StoredRow {
            role: Role::Own,
            lender: None,
            gpus: HOST.gpus,
        }]),
        grace: Millis::seconds(30),
        max_runtime: None,
        place_timeout: None,
        decided: SINCE,
        preempted: None,
        started: Some(SINCE),
        traceparent: None,
        labels: Arc::new([("meridian.dev/team".to_owned(), "nlp".to_owned())].into()),
        checkpoint: None,
        leader: None,
        dependencies: None,
        carried: None,
        origin: None,
        chosen: None,
    }
}

fn status(record: &PlacementRecord) -> Value {
    let condition = |kind: &str, status: &str| {
        json!({"type": kind, "status": status, "reason": "Decided", "message": "",
               "observedGeneration": 1, "lastTransitionTime": "2023-11-14T22:13:20Z"})
    };
    json!({
        "observedGeneration": 1, "phase": "Running", "cluster": record.cluster,
        "flavor": record.flavor, "gpus": 8, "startTime": "2023-11-14T22:13:20Z",
        "gangs": [{"index": 0, "state": "Running", "cluster": record.cluster, "pool": record.pool,
                   "epoch": record.epoch, "pods": 1, "gpus": 8, "since": "2023-11-14T22:13:20Z"}],
        "conditions": [
            condition("Admitted", "True"), condition("QuotaReserved", "True"),
            condition("Placed", "True"), condition("Complete", "False"),
            condition("Failed", "False"),
        ],
    })
}

/// What a cluster last said of itself: a pool of full hosts in racks of 40.
fn capacity() -> Value {
    let racks = PER_CLUSTER / 40;
    let rack = |rack: usize| {
        json!({
            "domains": [format!("r{rack:02}")], "allocatable": HOST,
            "free": {"gpus": 0, "cpu": HOST.cpu, "memory": HOST.memory}, "hosts": 40,
        })
    };
    let shapes: Vec<Value> = (0..racks).map(rack).collect();
    json!({"h100": {
        "flavor": "h100-80gb", "levels": ["rack"], "shapes": shapes, "out": 0,
    }})
}

fn text(value: &Value) -> Bytes {
    value.to_string().into()
}
