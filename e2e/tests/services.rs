//! A service over two clusters, in one process on simulated time: divided, healed, scaled, changed
//! and gone.
//!
//! Owns the promise that as many replicas serve as are asked for, in as many regions as must be,
//! judged by what ran in the clusters. Never looks inside a hub.

use std::collections::BTreeSet;

use meridian_agent::simulated::Truth;
use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::kinds::federated_service::FederatedServiceSpec;
use meridian_api::units::{Millis, UnixMillis};
use meridian_client::{Client, DryRun, Form, ListOptions, Resource};
use meridian_e2e::fleet::{Fleet, FleetOptions, FleetRegion, object};
use meridian_runtime::Clock;
use serde_json::{Value, json};

/// More than anything here takes in simulated time.
const WITHIN: Millis = Millis::seconds(1_800);
const CLUSTERS: [&str; 2] = ["east-a", "west-a"];

/// Two regions with a cluster of three hosts of four cards each.
fn options(clock: &Clock) -> FleetOptions {
    let online = json!({"priority": 1000, "preemption": "Never", "minRegions": 2});
    let objects = vec![
        object("WorkloadClass", "online", online),
        object(
            "WorkloadClass",
            "short",
            json!({"priority": 1, "maxRuntime": "2h"}),
        ),
        object("Tenant", "serving", json!({})),
    ];
    let regions = CLUSTERS.map(|cluster| FleetRegion::of_one(cluster, 3, 4));
    FleetOptions::small(clock, regions.to_vec(), objects)
}

/// Replicas of one pod with two cards.
fn service(replicas: u32, rest: &Value) -> Value {
    let mut service = object(
        "FederatedService",
        "chat",
        json!({
            "workloadClass": "online", "replicas": replicas,
            "roles": [{"name": "server", "replicas": 1, "gpus": 2,
                       "template": {"spec": {"containers": [{"name": "main", "image": "v1"}]}}}],
        }),
    );
    service["metadata"]["namespace"] = json!("serving");
    let spec = service["spec"].as_object_mut().expect("an object");
    spec.extend(rest.as_object().expect("fields").clone());
    service
}

struct World {
    clock: Clock,
    fleet: Fleet,
    client: Client,
    kind: Resource,
}

impl World {
    async fn start() -> Self {
        let clock = Clock::simulated(UnixMillis(1_700_000_000_000));
        let fleet = Fleet::start(options(&clock)).await.expect("it starts");
        let client = fleet.client(0).expect("a client");
        let kind = Resource::of::<FederatedServiceSpec>();
        Self {
            clock,
            fleet,
            client,
            kind,
        }
    }

    async fn create(&self, service: &Value) -> Result<(), String> {
        let created = self
            .client
            .create(&self.kind, "serving", service, DryRun::No)
            .await;
        created.map(|_| ()).map_err(|error| format!("{error:?}"))
    }

    /// Changes the spec as a person would who edits it.
    async fn edit(&self, spec: Value) {
        let patch = json!({"spec": spec});
        let (kind, options) = (&self.kind, DryRun::No);
        let patched = self
            .client
            .merge_patch(kind, "serving", "chat", &patch, options);
        patched.await.expect("let in");
    }

    async fn get(&self) -> Option<Value> {
        let found = self
            .client
            .get(&self.kind, "serving", "chat", Form::Objects)
            .await;
        found.ok()
    }

    async fn replicas(&self) -> Vec<Value> {
        let jobs = Resource::of::<FederatedJobSpec>();
        let listed = self
            .client
            .list(&jobs, Some("serving"), &ListOptions::default())
            .await;
        listed.expect("a hub answers").items
    }

    /// Waits until the status is as told.
    async fn until(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let reached = async {
            loop {
                if let Some(service) = self.get().await
                    && service["status"]["observedGeneration"] == service["metadata"]["generation"]
                    && is(&service["status"])
                {
                    return service;
                }
                self.clock.sleep(Millis::seconds(1)).await;
            }
        };
        if let Ok(service) = self.clock.timeout(WITHIN, reached).await {
            return service;
        }
        panic!("never {what}: {:#}", self.get().await.unwrap_or_default())
    }

    /// Gangs in a cluster, by the cluster's own word.
    fn gangs(&self, cluster: &str) -> usize {
        let cluster = self.fleet.cluster(cluster).expect("it is there");
        cluster.snapshot(self.clock.wall()).gangs.len()
    }

    fn starts(&self) -> usize {
        let starts = CLUSTERS.map(|cluster| {
            let cluster = self.fleet.cluster(cluster).expect("it is there");
            let history = cluster.history(self.clock.wall());
            history
                .iter()
                .filter(|event| event.what == Truth::Started)
                .count()
        });
        starts.iter().sum()
    }
}

#[tokio::test(start_paused = true)]
async fn replicas_are_divided_replaced_scaled_and_gone() {
    let mut world = World::start().await;
    world.create(&service(4, &json!({}))).await.expect("let in");
    let serves =
        |ready: u32| move |status: &Value| status["ready"] == ready && status["waiting"] == 0;
    let four = world.until("four serve", serves(4)).await;
    assert_eq!(four["status"]["byRegion"], json!({"east": 2, "west": 2}));
    assert_eq!(CLUSTERS.map(|cluster| world.gangs(cluster)), [2, 2]);
    assert_eq!(world.starts(), 4);

    // One is taken away by a person: another takes its place.
    let before: BTreeSet<String> = uids(&world.replicas().await);
    let jobs = Resource::of::<FederatedJobSpec>();
    let gone = world
        .client
        .delete(&jobs, "serving", "chat-0", None, DryRun::No)
        .await;
    gone.expect("deleted");
    world
        .until("one is missing", |status| status["ready"] != 4)
        .await;
    world.until("four serve again", serves(4)).await;
    assert_eq!(world.starts(), 5);
    let after = uids(&world.replicas().await);
    assert_eq!(
        after.intersection(&before).count(),
        3,
        "the others were left alone"
    );

    // More, and fewer: both regions serve at any size, and what is left was there before.
    world.edit(json!({"replicas": 7})).await;
    world.until("seven serve", serves(7)).await;
    assert_eq!(world.starts(), 8);
    world.edit(json!({"replicas": 2})).await;
    let two = world
        .until("two serve", |status| {
            status["ready"] == 2 && status["desired"] == 2
        })
        .await;
    assert_eq!(two["status"]["byRegion"], json!({"east": 1, "west": 1}));
    assert_eq!(world.starts(), 8);

    // With it goes everything.
    let deleted = world
        .client
        .delete(&world.kind, "serving", "chat", None, DryRun::No)
        .await;
    deleted.expect("deleted");
    let empty = async {
        while world.get().await.is_some() || !world.replicas().await.is_empty() {
            world.clock.sleep(Millis::seconds(1)).await;
        }
    };
    world
        .clock
        .timeout(WITHIN, empty)
        .await
        .expect("nothing is left");
    assert_eq!(CLUSTERS.map(|cluster| world.gangs(cluster)), [0, 0]);
    world.fleet.stop().await.expect("everybody stops");
}

fn uids(jobs: &[Value]) -> BTreeSet<String> {
    jobs.iter()
        .map(|job| job["metadata"]["uid"].to_string())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_new_image_replaces_one_replica_after_the_other() {
    let mut world = World::start().await;
    world.create(&service(4, &json!({}))).await.expect("let in");
    world
        .until("four serve", |status| status["ready"] == 4)
        .await;
    let mut spec = service(4, &json!({}))["spec"].take();
    spec["roles"][0]["template"]["spec"]["containers"][0]["image"] = json!("v2");
    world.edit(spec).await;
    let least = std::sync::atomic::AtomicU64::new(4);
    let done = |status: &Value| {
        let ready = status["ready"].as_u64().unwrap_or(0);
        least.fetch_min(ready, std::sync::atomic::Ordering::Relaxed);
        status["updated"] == 4 && ready == 4
    };
    world.until("all are new", done).await;
    let least = least.into_inner();
    assert_eq!(least, 3, "one is missing at a time");
    assert_eq!(world.starts(), 8);
    let new = |job: &Value| {
        let container = job.pointer("/spec/roles/0/template/spec/containers/0/image");
        container.is_some_and(|image| image == "v2")
    };
    let replicas = world.replicas().await;
    let stays = |job: &&Value| job["metadata"]["deletionTimestamp"].is_null();
    assert!(replicas.iter().filter(stays).all(new), "{replicas:#?}");
    world.fleet.stop().await.expect("everybody stops");
}

fn division(division: &Value) -> Value {
    json!({"placement": {"division": division}})
}

#[tokio::test(start_paused = true)]
async fn replicas_go_by_weight_and_to_every_cluster() {
    let mut world = World::start().await;
    let weighted = division(&json!({"rule": "Weighted", "weights": [
        {"clusters": ["east-a"], "weight": 3}, {"weight": 1},
    ]}));
    world.create(&service(4, &weighted)).await.expect("let in");
    let by = |east: u32, west: u32| {
        move |status: &Value| status["byCluster"] == json!({"east-a": east, "west-a": west})
    };
    world.until("three to one", by(3, 1)).await;
    world
        .edit(division(&json!({"weights": [{"weight": 1}]})))
        .await;
    world.until("two to two", by(2, 2)).await;
    assert_eq!(world.starts(), 5, "one has moved");
    world
        .edit(division(&json!({"rule": "Duplicated", "weights": null})))
        .await;
    world.until("one in each", by(1, 1)).await;
    world.fleet.stop().await.expect("everybody stops");
}

#[tokio::test(start_paused = true)]
async fn what_could_fall_at_once_or_would_be_ended_is_refused() {
    let mut world = World::start().await;
    let one = world
        .create(&service(1, &json!({})))
        .await
        .expect_err("one host may die");
    let says = "keeps at least 2 replicas, so that one host or region may fail: ask for 2";
    assert!(one.contains("spec.replicas") && one.contains(says), "{one}");
    let here = json!({"placement": {"regions": {"anyOf": ["east"]}}});
    let here = world
        .create(&service(2, &here))
        .await
        .expect_err("one region may die");
    assert!(
        here.contains("names 1, and its replicas must stand in 2 regions"),
        "{here}"
    );
    let ends = json!({"workloadClass": "short"});
    let ends = world
        .create(&service(2, &ends))
        .await
        .expect_err("it would be ended");
    assert!(ends.contains("which ends work after 2h"), "{ends}");
    world.fleet.stop().await.expect("everybody stops");
}
