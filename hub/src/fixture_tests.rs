//! A small model for unit tests: one tenant, one class, one cluster, and jobs to taste.
//!
//! Owns the builders that make given / when / then readable. Never touches a store.

use std::sync::Arc;

use bytes::Bytes;
use meridian_api::ids::{Epoch, GangId, Revision, StoreGeneration, Term, Uid};
use meridian_api::kinds::federated_job::FederatedJobStatus;
use meridian_api::units::{BootMillis, MilliGpus, Millis, Resources, UnixMillis};
use meridian_policies::lifecycle::State;
use meridian_proto::v1;
use meridian_store::{Compare, Event, KeyValue, Op, keys};
use serde_json::{Value, json};

use crate::model::{ContactTerms, Digest, Heard, Model, Situation, observations};
use crate::placement::{PlacedRole, PlacementRecord};
use crate::settle::Change;

/// UID of the fixture's job.
pub(crate) const JOB: Uid = Uid(0x0001_4000_8000_0000_0000_0000_0000_0001);
/// The first epoch of a gang in the fixture's store.
pub(crate) const FIRST: Epoch = Epoch::first(StoreGeneration(1));
/// When everything in the fixture happens.
pub(crate) const NOW: UnixMillis = UnixMillis(1_000_000);

/// Gang `index` of the fixture's job.
pub(crate) fn gang(index: u32) -> GangId {
    GangId { job: JOB, index }
}

/// A model, and the revision of its newest entry.
pub(crate) struct Fixture {
    pub(crate) model: Model,
    /// Status of the job that was written last.
    pub(crate) status: Option<FederatedJobStatus>,
    revision: u64,
}

impl Fixture {
    /// Tenant `nlp`, class `batch`, region `eu`, cluster `euw-a` with one pool of 8-GPU hosts.
    pub(crate) fn new(hosts: u32) -> Self {
        let mut fixture = Self {
            model: Model::default(),
            status: None,
            revision: 0,
        };
        fixture.put("hub/store-generation", b"1");
        fixture.object("tenants/-/nlp", "Tenant", &json!({}));
        fixture.object(
            "workloadclasses/-/batch",
            "WorkloadClass",
            &json!({"priority": 5}),
        );
        fixture.object(
            "regions/-/eu",
            "Region",
            &json!({"timeZone": "Europe/Dublin"}),
        );
        fixture.cluster(&json!({}));
        let size = Some(v1::Resources {
            milli_gpus: 8_000,
            milli_cpus: 96_000,
            memory_mib: 1 << 20,
        });
        let shape = v1::Shape {
            domains: vec!["b0".into()],
            allocatable: size,
            free: size,
            hosts,
        };
        let pool = v1::Pool {
            name: "h100".into(),
            flavor: "h100-80gb".into(),
            levels: vec!["block".into()],
            shapes: vec![shape],
            out_milli_gpus: 0,
            ..v1::Pool::default()
        };
        fixture.digest(&v1::Digest {
            full: true,
            pools: vec![pool],
            ..v1::Digest::default()
        });
        let heard = Heard::default();
        heard.at(BootMillis(1));
        let cluster = fixture
            .model
            .fleet
            .clusters
            .get_mut("euw-a")
            .expect("just made");
        cluster.heard = Some(heard);
        fixture
    }

    /// Declares `euw-a`, with `extra` in its spec.
    pub(crate) fn cluster(&mut self, extra: &Value) {
        let mut spec = json!({"region": "eu", "backend": "Simulated"});
        merge(&mut spec, extra);
        self.object("memberclusters/-/euw-a", "MemberCluster", &spec);
    }

    /// The circumstances of a decision in the fixture.
    pub(crate) fn situation() -> Situation {
        let terms = ContactTerms {
            suspect: Millis(8_000),
            unreachable: Millis(20_000),
            lost: Millis(190_000),
        };
        Situation {
            now: NOW,
            boot: BootMillis(1_000),
            seed: 7,
            terms,
        }
    }

    /// The next revision.
    fn next(&mut self) -> Revision {
        self.revision += 1;
        Revision(self.revision)
    }

    /// Stores a key.
    pub(crate) fn put(&mut self, key: &str, value: &[u8]) {
        let revision = self.next();
        let current = KeyValue {
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: Bytes::copy_from_slice(value),
            create_revision: revision,
            mod_revision: revision,
            version: 1,
            lease: None,
        };
        self.model.absorb(
            &[Event::Put {
                current,
                previous: None,
            }],
            revision,
        );
    }

    pub(crate) fn object(&mut self, path: &str, kind: &str, spec: &Value) {
        let name = path.rsplit('/').next().unwrap_or_default();
        let object = json!({
            "apiVersion": "meridian.dev/v1alpha1", "kind": kind,
            "metadata": {"name": name, "generation": 1}, "spec": spec,
        });
        self.put(
            &format!("objects/{path}/spec"),
            object.to_string().as_bytes(),
        );
    }

    /// Stores the job `nlp/train`: pods of 4 GPUs, two in a gang, with `extra` in its spec.
    pub(crate) fn job(&mut self, extra: &Value, metadata: &Value) {
        self.job_named("train", extra, metadata);
    }

    /// The same under another name; its UID has to be another, too.
    pub(crate) fn job_named(&mut self, name: &str, extra: &Value, metadata: &Value) {
        let mut spec = json!({
            "workloadClass": "batch", "tenant": "nlp",
            "roles": [{"name": "worker", "replicas": 2, "gpus": 4,
                       "resources": {"cpu": "4", "memory": "1Gi"}, "template": {"a": 1}}],
        });
        let mut meta = json!({
            "name": name, "namespace": "nlp", "uid": JOB.to_string(), "generation": 1,
            "creationTimestamp": "1970-01-01T00:00:10Z", "finalizers": ["meridian.dev/drain"],
        });
        merge(&mut spec, extra);
        merge(&mut meta, metadata);
        let object = json!({
            "apiVersion": "meridian.dev/v1alpha1", "kind": "FederatedJob",
            "metadata": meta, "spec": spec,
        });
        let key = format!("objects/federatedjobs/nlp/{name}/spec");
        self.put(&key, object.to_string().as_bytes());
    }

    /// Stores a placement of gang `index`.
    pub(crate) fn place(&mut self, index: u32, epoch: Epoch, state: State) {
        let record = record(index, epoch, state);
        self.put(&format!("placements/{JOB}/{index}"), &record.to_json());
    }

    /// The agent of `euw-a` says so.
    pub(crate) fn digest(&mut self, digest: &v1::Digest) {
        let cluster = self
            .model
            .fleet
            .clusters
            .entry("euw-a".to_owned())
            .or_default();
        let touched = cluster.absorb(Digest::read(digest).expect("well formed"));
        self.model.touch("euw-a", touched);
    }

    /// The agent of `euw-a` saw gang `index` take a step.
    pub(crate) fn saw(&mut self, index: u32, epoch: Epoch, step: v1::GangStep, reason: &str) {
        let seen = v1::GangObservation {
            gang: Some(gang(index).into()),
            epoch: epoch.0,
            step: step.into(),
            reason: reason.to_owned(),
            exit_code: 1,
            ..v1::GangObservation::default()
        };
        self.observed(&seen);
    }

    /// The agent of `euw-a` reports this.
    pub(crate) fn observed(&mut self, seen: &v1::GangObservation) {
        let cluster = self
            .model
            .fleet
            .clusters
            .entry("euw-a".to_owned())
            .or_default();
        let touched =
            cluster.observe(observations(std::slice::from_ref(seen)).expect("well formed"));
        self.model.touch("euw-a", touched);
    }

    /// Carries a change out as the store would, when its compares hold.
    pub(crate) fn carry_out(&mut self, change: &Change) {
        let revision = self.next();
        let status = change.ops.iter().find_map(|op| match op {
            Op::Put { key, value, .. } if key.ends_with(b"/status") => Some(value),
            Op::Put { .. } | Op::Delete { .. } | Op::Get { .. } => None,
        });
        if let Some(status) = status {
            self.status = Some(serde_json::from_slice(status).expect("a status"));
        }
        let events = crate::fence::events(change.ops.clone(), revision);
        self.model.absorb(&events, revision);
    }
}

/// The record of a placement of gang `index` in `euw-a`.
pub(crate) fn record(index: u32, epoch: Epoch, state: State) -> PlacementRecord {
    let per_pod = Resources {
        gpus: MilliGpus::cards(4),
        cpu: meridian_api::units::MilliCpus(4_000),
        memory: meridian_api::units::Mebibytes(1_024),
    };
    PlacementRecord {
        ledger: Arc::default(),
        gang: gang(index),
        namespace: "nlp".into(),
        job: "train".into(),
        tenant: "nlp".into(),
        class: "batch".into(),
        priority: 5,
        cluster: "euw-a".into(),
        pool: "h100".into(),
        flavor: "h100-80gb".into(),
        epoch,
        term: Term(1),
        state,
        roles: Arc::new(vec![PlacedRole {
            name: "worker".into(),
            pods: 2,
            per_pod,
            template: String::new(),
            required: None,
            preferred: None,
            slice: None,
            min: 0,
            step: 0,
            full: None,
        }]),
        gpus: MilliGpus::cards(8),
        grace: Millis::seconds(30),
        max_runtime: None,
        place_timeout: None,
        decided: NOW,
        preempted: None,
        started: None,
        traceparent: None,
        labels: Arc::default(),
        checkpoint: None,
        leader: None,
        dependencies: None,
        carried: None,
        origin: None,
        chosen: None,
    }
}

/// True when the change writes `key`.
pub(crate) fn puts(change: &Change, key: &Bytes) -> bool {
    change
        .ops
        .iter()
        .any(|op| matches!(op, Op::Put { key: put, .. } if put == key))
}

/// True when the change removes `key`.
pub(crate) fn deletes(change: &Change, key: &Bytes) -> bool {
    change
        .ops
        .iter()
        .any(|op| matches!(op, Op::Delete { key: deleted } if deleted == key))
}

/// True when the change compares the revision of `key`.
pub(crate) fn compares(change: &Change, key: &Bytes) -> bool {
    change.compares.iter().any(|compare| match compare {
        Compare::ModRevision(compared, _) | Compare::CreateRevision(compared, _) => compared == key,
    })
}

/// Key of the placement of gang `index`.
pub(crate) fn placement_key(index: u32) -> Bytes {
    keys::placement(gang(index))
}

fn merge(into: &mut Value, from: &Value) {
    if let (Some(into), Some(from)) = (into.as_object_mut(), from.as_object()) {
        into.extend(from.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
}
