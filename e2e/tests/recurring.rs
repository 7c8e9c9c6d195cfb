//! Nightly work: one run for each night whatever the clocks do, and none for a night that nobody
//! saw.
//!
//! Owns the promises of `schedule`. Nights are lives of a federation on one real etcd, each with a
//! clock that starts shortly before the night: what lies between them, nobody saw. Never looks
//! inside a hub.

use std::sync::Arc;

use meridian_agent::simulated::RUNTIME;
use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::quantity::Time;
use meridian_api::units::{Millis, UnixMillis};
use meridian_client::{Client, DryRun, Form, ListOptions, Resource};
use meridian_e2e::etcd::{Durability, Etcd, Members};
use meridian_e2e::fleet::{Fleet, FleetOptions, FleetRegion, object};
use meridian_e2e::process::Harness;
use meridian_e2e::tools::Tool;
use meridian_runtime::Clock;
use meridian_store::{EtcdOptions, EtcdStore, SharedStore};
use serde_json::{Value, json};

/// A run starts and ends within seconds of real time; the rest is for a busy machine.
const WITHIN: Millis = Millis::seconds(120);
/// More than anything in simulated time takes here.
const LONG: Millis = Millis::seconds(4 * 3600);
/// Between two looks.
const LOOK_EVERY: Millis = Millis(200);
/// A night begins so long before the instant of its run: the hub leads and the agent is attached
/// by then, and if they are not, the run starts a little later.
const EVENING: Millis = Millis::seconds(8);

/// Room for four gangs of one host each, in a cluster of this name.
fn options(clock: &Clock, cluster: &str) -> FleetOptions {
    let objects = vec![
        object("WorkloadClass", "batch", json!({"priority": 1})),
        object("Tenant", "nlp", json!({})),
    ];
    FleetOptions::small(clock, vec![FleetRegion::of_one(cluster, 4, 8)], objects)
}

/// A job that recurs, each run of which takes `runtime`.
fn recurring(schedule: &Value, runtime: &str) -> Value {
    let template = json!({
        "metadata": {"annotations": {RUNTIME: runtime}},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    });
    let mut job = object(
        "FederatedJob",
        "nightly",
        json!({
            "workloadClass": "batch", "maxRuntime": "30m", "schedule": schedule,
            "roles": [{"name": "worker", "replicas": 1, "gpus": 8, "template": template}],
        }),
    );
    job["metadata"]["namespace"] = json!("nlp");
    job
}

/// A federation, and what a person sees of it.
struct World {
    clock: Clock,
    fleet: Fleet,
    client: Client,
    within: Millis,
}

impl World {
    async fn start(options: FleetOptions, within: Millis) -> Self {
        let clock = options.clock.clone();
        let fleet = Fleet::start(options).await.expect("it starts");
        let client = fleet.client(0).expect("a client");
        Self {
            clock,
            fleet,
            client,
            within,
        }
    }

    /// The evening before the instant, on what is in etcd.
    async fn before(instant: &str, etcd: &Etcd) -> Self {
        let at = millis(instant);
        let clock = Clock::simulated(UnixMillis(at.0.saturating_sub_unsigned(EVENING.0)));
        let (endpoints, options_of) = (etcd.endpoints(), EtcdOptions::default());
        let store = EtcdStore::connect(&endpoints, clock.clone(), options_of).await;
        let store: SharedStore = Arc::new(store.expect("it answers"));
        // Another life draws other UIDs, and its agent is no heir of the last one: it has a cluster
        // of its own.
        let options = FleetOptions {
            seed: at.0.unsigned_abs(),
            store,
            ..options(&clock, &format!("night-{}-a", at.0 / 60_000))
        };
        Self::start(options, WITHIN).await
    }

    async fn create(&self, job: &Value) {
        let jobs = Resource::of::<FederatedJobSpec>();
        let created = self.client.create(&jobs, "nlp", job, DryRun::No).await;
        created.expect("let in");
    }

    /// The jobs that are there, the one that recurs first.
    async fn jobs(&self) -> Vec<Value> {
        let (jobs, options) = (Resource::of::<FederatedJobSpec>(), ListOptions::default());
        let listed = self.client.list(&jobs, Some("nlp"), &options);
        listed.await.expect("a hub answers").items
    }

    async fn nightly(&self) -> Value {
        let jobs = Resource::of::<FederatedJobSpec>();
        let found = self.client.get(&jobs, "nlp", "nightly", Form::Objects);
        found.await.expect("it is there")
    }

    /// Names of the runs that are there.
    async fn runs(&self) -> Vec<String> {
        let jobs = self.jobs().await.into_iter();
        let names = jobs.map(|job| job["metadata"]["name"].as_str().map(str::to_owned));
        names.flatten().filter(|name| name != "nightly").collect()
    }

    async fn until<T>(&self, what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
        let reached = async {
            loop {
                if let Some(seen) = look().await {
                    return seen;
                }
                self.clock.sleep(LOOK_EVERY).await;
            }
        };
        if let Ok(seen) = self.clock.timeout(self.within, reached).await {
            return seen;
        }
        panic!("never {what}: {:#?}", self.jobs().await)
    }

    /// The run for the instant when it has succeeded, and the job as it is then.
    async fn run_is_done(&self, instant: &str) -> (Value, Value) {
        let name = run_name(instant);
        self.until(&format!("done: {name}"), async || {
            let jobs = self.jobs().await;
            let run = jobs.iter().find(|job| job["metadata"]["name"] == name)?;
            let nightly = jobs
                .iter()
                .find(|job| job["metadata"]["name"] == "nightly")?;
            let is_seen =
                nightly["status"]["active"] == json!([]) || nightly["status"]["active"].is_null();
            let is_done = run["status"]["phase"] == "Succeeded" && is_seen;
            is_done.then(|| (run.clone(), nightly.clone()))
        })
        .await
    }

    /// What was told of the job that recurs: reason and message of each event.
    async fn told(&self) -> Vec<(String, String)> {
        let options = ListOptions::default();
        let events = self.client.list(&Resource::EVENTS, Some("nlp"), &options);
        let events = events.await.expect("a hub answers").items.into_iter();
        let about = events.filter(|event| event["involvedObject"]["name"] == "nightly");
        let word =
            |event: &Value, field: &str| event[field].as_str().unwrap_or_default().to_owned();
        about
            .map(|event| (word(&event, "reason"), word(&event, "message")))
            .collect()
    }

    async fn end(mut self) {
        self.fleet.stop().await.expect("everybody stops");
    }
}

fn millis(instant: &str) -> UnixMillis {
    let time: Time = serde_json::from_value(json!(instant)).expect("an instant");
    time.0
}

/// Runs are named after the minute.
fn run_name(instant: &str) -> String {
    format!("nightly-{}", millis(instant).0 / 60_000)
}

/// A night with a run: it belongs to the job, and ended before its `finishBy`.
async fn a_night(world: &World, instant: &str, next: &str) {
    let (run, nightly) = world.run_is_done(instant).await;
    let owner = &run["metadata"]["ownerReferences"][0];
    assert_eq!(owner["uid"], nightly["metadata"]["uid"]);
    let finish_by = millis(
        run["spec"]["finishBy"]
            .as_str()
            .expect("finishWithin makes it"),
    );
    assert_eq!(finish_by, millis(instant).after(Millis::seconds(3600)));
    let ended = millis(run["status"]["completionTime"].as_str().expect("it ended"));
    assert!(ended <= finish_by && ended > millis(instant), "{run:#}");
    let status = &nightly["status"];
    assert_eq!(status["phase"], "Scheduled");
    assert_eq!(status["lastScheduled"], instant);
    assert_eq!(status["nextScheduled"], next, "{nightly:#}");
}

#[tokio::test]
async fn nights_in_both_changes_of_clocks_run_once_and_a_missed_one_is_told() {
    let test = "nights_in_both_changes_of_clocks_run_once_and_a_missed_one_is_told";
    let Some(program) = Tool::Etcd.or_skip(test) else {
        return;
    };
    let harness = Harness::new();
    let etcd = Etcd::start(&harness, &program, Members::One, Durability::NoFsync).await;
    let etcd = etcd.expect("etcd starts");
    let nightly = json!({
        "cron": "30 2 * * *", "timeZone": "Europe/Berlin", "finishWithin": "1h",
        "successfulRunsKept": 3,
    });

    // A night like any other: 02:30 is 01:30 in UTC.
    let world = World::before("2026-03-28T01:30:00Z", &etcd).await;
    world.create(&recurring(&nightly, "2s")).await;
    a_night(&world, "2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z").await;
    world.end().await;

    // Clocks go from 02:00 to 03:00: there is no 02:30, and the run starts at 03:00.
    let world = World::before("2026-03-29T01:00:00Z", &etcd).await;
    a_night(&world, "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z").await;
    world.end().await;

    // Nobody sees the night of the 30th. It is told, and not made up for.
    let world = World::before("2026-03-31T00:30:00Z", &etcd).await;
    a_night(&world, "2026-03-31T00:30:00Z", "2026-04-01T00:30:00Z").await;
    let told = world.told().await;
    let left_out = told.iter().filter(|(reason, _)| reason == "RunLeftOut");
    let messages: Vec<&String> = left_out.map(|(_, message)| message).collect();
    let missed = "1 run left out, the last of 2026-03-30T00:30:00Z: its time passed while nobody \
                  could start it";
    assert_eq!(messages, [missed], "{told:?}");
    let nights = [
        "2026-03-28T01:30:00Z",
        "2026-03-29T01:00:00Z",
        "2026-03-31T00:30:00Z",
    ];
    assert_eq!(world.runs().await, nights.map(run_name));
    world.end().await;

    // The hour from 02:00 comes twice in October: the run starts in the first of them only.
    let world = World::before("2026-10-25T00:30:00Z", &etcd).await;
    a_night(&world, "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z").await;
    let kept = [
        "2026-03-29T01:00:00Z",
        "2026-03-31T00:30:00Z",
        "2026-10-25T00:30:00Z",
    ];
    let kept = kept.map(run_name);
    world
        .until("the oldest is forgotten", async || {
            (world.runs().await == kept).then_some(())
        })
        .await;
    world.end().await;
}

#[tokio::test(start_paused = true)]
async fn runs_do_not_overlap_stop_with_the_job_and_go_with_it() {
    // Ten minutes past midnight; a run takes a quarter of an hour.
    let clock = Clock::simulated(millis("2026-03-28T00:05:00Z"));
    let world = World::start(options(&clock, "here-a"), LONG).await;
    let often = json!({"cron": "*/10 * * * *", "timeZone": "UTC", "successfulRunsKept": 1});
    world.create(&recurring(&often, "15m")).await;
    let (first, third) = ("2026-03-28T00:10:00Z", "2026-03-28T00:30:00Z");
    world
        .until("the first runs", async || {
            let active = world.nightly().await["status"]["active"].clone();
            (active == json!([run_name(first)])).then_some(())
        })
        .await;
    // At 00:20 the first still runs: left out. At 00:30 it is over.
    let (_, nightly) = world.run_is_done(third).await;
    assert_eq!(nightly["status"]["lastScheduled"], third);
    let told = world.told().await;
    let overlap = "1 run left out, the last of 2026-03-28T00:20:00Z: the run before it is not over";
    assert!(
        told.contains(&("RunLeftOut".to_owned(), overlap.to_owned())),
        "{told:?}"
    );
    world
        .until("only the newest is kept", async || {
            (world.runs().await == [run_name(third)]).then_some(())
        })
        .await;

    // Suspended, it starts nothing more; what passes meanwhile is not made up for.
    let jobs = Resource::of::<FederatedJobSpec>();
    let suspend = async |suspend: bool| {
        let patch = json!({"spec": {"suspend": suspend}});
        let patched = world
            .client
            .merge_patch(&jobs, "nlp", "nightly", &patch, DryRun::No);
        patched.await.expect("let in");
    };
    suspend(true).await;
    world.clock.sleep(Millis::seconds(3600)).await;
    assert_eq!(world.runs().await, [run_name(third)]);
    suspend(false).await;
    let resumed = "2026-03-28T01:50:00Z";
    world
        .until("it runs again", async || {
            let active = world.nightly().await["status"]["active"].clone();
            (active == json!([run_name(resumed)])).then_some(())
        })
        .await;

    // With the job go its runs.
    let deleted = world
        .client
        .delete(&jobs, "nlp", "nightly", None, DryRun::No);
    deleted.await.expect("deleted");
    world
        .until("nothing is left", async || {
            world.jobs().await.is_empty().then_some(())
        })
        .await;
    let cluster = world.fleet.cluster("here-a").expect("it is there");
    assert_eq!(cluster.snapshot(world.clock.wall()).gangs.len(), 0);
    world.end().await;
}
