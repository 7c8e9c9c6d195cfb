//! Gangs made by others in a member cluster, in one process on simulated time.
//!
//! Owns the promise that such work goes no way round quota: it is queued pinned to its cluster,
//! bound only under an intent, has one job whatever crashes, and ends with what owns it. Never
//! looks inside a hub.

use std::collections::BTreeSet;

use meridian_agent::backend::{OfferSeen, OfferedRole};
use meridian_agent::simulated::Truth;
use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Millis, Resources, UnixMillis};
use meridian_client::{Client, DryRun, ListOptions, Resource, Submission};
use meridian_e2e::fleet::{Fleet, FleetOptions, FleetRegion, object};
use meridian_runtime::Clock;
use serde_json::{Value, json};

/// Everything here happens within seconds of simulated time, but for a start and a lease.
const WITHIN: Millis = Millis::seconds(600);
/// Long enough for a decision that would be wrong to be made and carried out.
const A_WHILE: Millis = Millis::seconds(120);

/// Two hosts of eight cards, and a tenant that may hold one of them.
fn options(clock: &Clock) -> FleetOptions {
    let quota = json!({"tenant": "team", "resources": [{"nominal": 8, "hardCap": 8}]});
    let objects = vec![
        object("WorkloadClass", "batch", json!({"priority": 1})),
        object("Tenant", "team", json!({})),
        object("TenantQuota", "team", quota),
    ];
    FleetOptions::small(clock, vec![FleetRegion::of_one("here-a", 2, 8)], objects)
}

fn offer(uid: &str, name: &str) -> OfferSeen {
    OfferSeen {
        uid: uid.to_owned(),
        namespace: "team".to_owned(),
        name: name.to_owned(),
        class: "batch".to_owned(),
        roles: vec![OfferedRole {
            name: "worker".to_owned(),
            pods: 1,
            request: Resources {
                gpus: MilliGpus::cards(8),
                cpu: MilliCpus(8_000),
                memory: Mebibytes(65_536),
            },
            required: None,
            preferred: None,
        }],
        flavors: Vec::new(),
        priority: 0,
    }
}

/// Name and phase of each job of the tenant, by the name of what it was made from.
async fn jobs(client: &Client) -> BTreeSet<(String, String)> {
    let kind = Resource::of::<FederatedJobSpec>();
    let options = ListOptions::default();
    let listed = client.list(&kind, Some("team"), &options).await;
    let listed = listed.expect("a hub answers");
    let text = |job: &Value, path: &str| {
        let text = job.pointer(path).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let row = |job: &Value| (text(job, "/spec/origin/name"), text(job, "/status/phase"));
    listed.items.iter().map(row).collect()
}

async fn until(clock: &Clock, client: &Client, wanted: &[(&str, &str)]) {
    let wanted: BTreeSet<_> = wanted
        .iter()
        .map(|(name, phase)| ((*name).to_owned(), (*phase).to_owned()))
        .collect();
    let reached = async {
        while jobs(client).await != wanted {
            clock.sleep(Millis::seconds(1)).await;
        }
    };
    let in_time = clock.timeout(WITHIN, reached).await.is_ok();
    assert!(
        in_time,
        "{wanted:?} wanted, there is {:?}",
        jobs(client).await
    );
}

fn starts(fleet: &Fleet, clock: &Clock) -> usize {
    let cluster = fleet.cluster("here-a").expect("it is there");
    let history = cluster.history(clock.wall());
    let started = history.iter().filter(|event| event.what == Truth::Started);
    started.count()
}

#[tokio::test(start_paused = true)]
async fn work_made_by_others_waits_for_quota_as_everybodys_does() {
    let clock = Clock::simulated(UnixMillis(1_700_000_000_000));
    let mut fleet = Fleet::start(options(&clock)).await.expect("it starts");
    let client = fleet.client(0).expect("a client");
    let cluster = fleet.cluster("here-a").expect("it is there").clone();
    cluster.offer(clock.wall(), offer("u-1", "first"));
    until(&clock, &client, &[("first", "Running")]).await;

    let history = cluster.history(clock.wall());
    assert_eq!(
        history[0].pod, "first-worker-0-1",
        "the pod that was offered"
    );

    // A host is free, quota is not: the second one waits, and nothing of it starts.
    cluster.offer(clock.wall(), offer("u-2", "second"));
    let both = [("first", "Running"), ("second", "Pending")];
    until(&clock, &client, &both).await;
    clock.sleep(A_WHILE).await;
    assert_eq!(starts(&fleet, &clock), 1, "bound only under an intent");
    let queue = client.queue(0, "team").await.expect("the leader answers");
    let blocker = queue.entries[0].blocker.clone().unwrap_or_default();
    assert_eq!(blocker.code, "WaitingForQuota", "{blocker:?}");

    // Another life of hub and agent tells and hears the same offers: no second job.
    fleet.crash_hub(0).await.expect("it ran");
    fleet.crash_agent("here-a").await.expect("it ran");
    fleet.start_hub(0).await.expect("it starts again");
    fleet.start_agent("here-a").await.expect("it starts again");
    fleet.led().await.expect("the former lease ends");
    fleet.attached().await.expect("the agent finds it");
    let client = fleet.client(0).expect("a client");
    clock.sleep(A_WHILE).await;
    until(&clock, &client, &both).await;
    assert_eq!(starts(&fleet, &clock), 1, "nothing was started again");

    // What owned the first is deleted: its job goes, its room and its quota are the second's.
    cluster.withdraw(clock.wall(), "u-1");
    until(&clock, &client, &[("second", "Running")]).await;
    cluster.withdraw(clock.wall(), "u-2");
    until(&clock, &client, &[]).await;
    let left = cluster.snapshot(clock.wall()).gangs;
    assert!(left.iter().all(|gang| gang.stopping), "{left:?}");
    fleet.stop().await.expect("everybody stops");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_queued_says_so_and_only_the_hub_says_where_pods_come_from() {
    let clock = Clock::simulated(UnixMillis(1_700_000_000_000));
    let mut fleet = Fleet::start(options(&clock)).await.expect("it starts");
    let client = fleet.client(0).expect("a client");
    let cluster = fleet.cluster("here-a").expect("it is there").clone();
    let nobodys = OfferSeen {
        namespace: "nobody".to_owned(),
        ..offer("u-1", "notebook")
    };
    cluster.offer(clock.wall(), nobodys);
    let journal = fleet.hub(0).expect("it runs").journal;
    let told = async {
        loop {
            let entries = journal.read(None);
            let told = entries
                .into_iter()
                .find(|entry| entry.reason == "OfferNotQueued");
            if let Some(told) = told {
                return told;
            }
            clock.sleep(Millis::seconds(1)).await;
        }
    };
    let told = clock.timeout(WITHIN, told).await.expect("it is told");
    assert_eq!(told.name, "here-a");
    assert!(told.message.contains("nobody/notebook"), "{}", told.message);
    assert!(
        told.message.contains("Tenant \"nobody\""),
        "{}",
        told.message
    );

    let mut forged = object(
        "FederatedJob",
        "forged",
        json!({
            "workloadClass": "batch",
            "placement": {"clusters": ["here-a"]},
            "origin": {"cluster": "here-a", "uid": "u-1", "name": "notebook"},
            "roles": [{"name": "worker", "replicas": 1, "gpus": 8,
                       "resources": {"cpu": "8", "memory": "64Gi"}, "template": {}}],
        }),
    );
    forged["metadata"]["namespace"] = json!("team");
    let submission = Submission {
        job: forged,
        idempotency_key: "forged".to_owned(),
        dry_run: DryRun::No,
        plan_token: String::new(),
    };
    let refused = client.submit(submission).await.expect_err("refused");
    assert!(refused.to_string().contains("spec.origin"), "{refused}");
    fleet.stop().await.expect("everybody stops");
}
