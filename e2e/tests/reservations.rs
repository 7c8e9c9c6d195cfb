//! A reservation from the document to the gang that runs on it, in one process on simulated time.
//!
//! Owns the promise that a block is whole at its start with a real hub and agent, and that nobody
//! is promised hosts that are promised already. Never looks inside a hub.

use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::kinds::member_cluster::MemberClusterSpec;
use meridian_api::kinds::reservation::ReservationSpec;
use meridian_api::quantity::Time;
use meridian_api::units::{Millis, UnixMillis};
use meridian_client::{Client, DryRun, Form, Resource};
use meridian_e2e::fleet::{Fleet, FleetOptions, FleetRegion, object};
use meridian_runtime::Clock;
use serde_json::{Value, json};

/// More than anything here takes in simulated time.
const WITHIN: Millis = Millis::seconds(4 * 3600);
const MINUTE: u64 = 60_000;

/// One cluster of four hosts of eight cards, two tenants.
fn options(clock: &Clock) -> FleetOptions {
    let objects = vec![
        object("WorkloadClass", "batch", json!({"priority": 1})),
        object("Tenant", "owner", json!({})),
        object("Tenant", "guest", json!({})),
    ];
    FleetOptions::small(clock, vec![FleetRegion::of_one("here-a", 4, 8)], objects)
}

/// A gang of so many pods that fill a host each.
fn job(tenant: &str, name: &str, hosts: u32, minutes: u64) -> Value {
    let mut job = object(
        "FederatedJob",
        name,
        json!({
            "workloadClass": "batch", "maxRuntime": format!("{minutes}m"),
            "roles": [{"name": "worker", "replicas": hosts, "gpus": 8,
                       "template": {"spec": {"containers": [{"name": "main", "image": "x"}]}}}],
        }),
    );
    job["metadata"]["namespace"] = json!(tenant);
    job
}

async fn create(client: &Client, kind: &Resource, object: &Value) -> Result<Value, String> {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    let created = client.create(kind, namespace, object, DryRun::No).await;
    created
        .map(|written| written.object)
        .map_err(|error| format!("{error:?}"))
}

/// Waits until the job says `phase` and returns it.
async fn reaches(
    clock: &Clock,
    client: &Client,
    (tenant, name): (&str, &str),
    phase: &str,
) -> Value {
    let kind = Resource::of::<FederatedJobSpec>();
    let reached = async {
        loop {
            let job = client
                .get(&kind, tenant, name, Form::Objects)
                .await
                .expect("it is there");
            let (status, reason) = (&job["status"], &job["status"]["blockers"][0]["reason"]);
            let is_told = reason.is_string() && reason != "PendingEvaluation";
            if status["phase"] == phase && (phase != "Pending" || is_told) {
                return job;
            }
            clock.sleep(Millis::seconds(1)).await;
        }
    };
    clock
        .timeout(WITHIN, reached)
        .await
        .unwrap_or_else(|_| panic!("{name} is never {phase}"))
}

/// Waits until the hub has written down what the agent reports.
async fn hosts_are_known(clock: &Clock, client: &Client) {
    let kind = Resource::of::<MemberClusterSpec>();
    let known = async {
        loop {
            let cluster = client.get(&kind, "", "here-a", Form::Objects).await;
            let cluster = cluster.expect("it is there");
            if cluster["status"]["gpus"]["total"] == 32 {
                return;
            }
            clock.sleep(Millis::seconds(1)).await;
        }
    };
    let in_time = clock.timeout(WITHIN, known).await;
    in_time.expect("its agent reports");
}

async fn promised_once(client: &Client, block: impl Fn(&str, u32) -> Value) {
    let kind = Resource::of::<ReservationSpec>();
    // The pool is chosen and written down; what it does not have twice is not promised twice.
    let made = create(client, &kind, &block("eval", 3))
        .await
        .expect("it fits");
    assert_eq!(made["spec"]["capacity"]["cluster"], "here-a");
    assert_eq!(made["spec"]["capacity"]["pool"], "pool");
    let refused = create(client, &kind, &block("more", 2))
        .await
        .expect_err("3 + 2 > 4");
    let says = "of the 4 hosts of pool here-a/pool, 3 are reserved from";
    assert!(
        refused.contains(says) && refused.contains("at most 1 are left then"),
        "{refused}"
    );
}

async fn only_who_has_gone_by_then_runs(clock: &Clock, client: &Client) {
    let jobs = Resource::of::<FederatedJobSpec>();
    // Who would stand in its way waits and is told so; who has gone by then runs.
    create(client, &jobs, &job("guest", "long", 2, 90))
        .await
        .expect("let in");
    let waits = reaches(clock, client, ("guest", "long"), "Pending").await;
    let blocker = &waits["status"]["blockers"][0];
    assert_eq!(blocker["reason"], "ReservedForOthers", "{waits:#}");
    let message = blocker["message"].as_str().expect("words");
    assert!(
        message.contains("3 hosts are reserved (eval) for tenant owner"),
        "{message}"
    );
    create(client, &jobs, &job("guest", "short", 4, 50))
        .await
        .expect("let in");
    reaches(clock, client, ("guest", "short"), "Running").await;
}

#[tokio::test(start_paused = true)]
async fn a_block_is_whole_when_it_begins_and_promised_once() {
    let clock = Clock::simulated(UnixMillis(1_700_000_000_000));
    let mut fleet = Fleet::start(options(&clock)).await.expect("it starts");
    let client = fleet.client(0).expect("a client");
    let (jobs, kind) = (
        Resource::of::<FederatedJobSpec>(),
        Resource::of::<ReservationSpec>(),
    );
    let start = clock.wall().after(Millis(60 * MINUTE));
    let block = |name: &str, hosts: u32| {
        let schedule = json!({
            "from": Time(start), "until": Time(start.after(Millis(120 * MINUTE))),
        });
        let capacity = json!({"flavor": "h100", "hosts": hosts, "region": "here"});
        let spec = json!({
            "tenant": "owner", "capacity": capacity, "schedule": schedule, "leadTime": "5m",
        });
        object("Reservation", name, spec)
    };

    hosts_are_known(&clock, &client).await;
    promised_once(&client, &block).await;
    only_who_has_gone_by_then_runs(&clock, &client).await;

    // The owner's gang starts when the block begins: its hosts are there.
    clock
        .sleep_until(clock.boot().after(start.since(clock.wall())))
        .await;
    create(&client, &jobs, &job("owner", "eval", 3, 30))
        .await
        .expect("let in");
    reaches(&clock, &client, ("owner", "eval"), "Running").await;
    assert!(
        clock.wall().since(start) < Millis(5 * MINUTE),
        "at once, not when others end"
    );
    let used = async {
        loop {
            let block = client
                .get(&kind, "", "eval", Form::Objects)
                .await
                .expect("it is there");
            if block["status"]["hosts"]["used"] == 3 {
                return block;
            }
            clock.sleep(Millis::seconds(1)).await;
        }
    };
    let block = clock.timeout(WITHIN, used).await.expect("it says so");
    assert_eq!(block["status"]["phase"], "Active");
    let waits = reaches(&clock, &client, ("guest", "long"), "Pending").await;
    assert_eq!(waits["status"]["phase"], "Pending");

    // What stands on it does not go under it, and when it is over all is free again.
    let tenants = Resource::of::<meridian_api::kinds::tenant::TenantSpec>();
    let refused = client.delete(&tenants, "", "owner", None, DryRun::No);
    let refused = format!("{:?}", refused.await.expect_err("it has a reservation"));
    assert!(
        refused.contains("reservations stand on this tenant: eval"),
        "{refused}"
    );
    reaches(&clock, &client, ("guest", "long"), "Running").await;
    assert!(
        clock.wall() >= start.after(Millis(120 * MINUTE)),
        "not before its end"
    );
    fleet.stop().await.expect("everybody stops");
}
