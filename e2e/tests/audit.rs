//! The books of the hub and the truth of the clusters, after each fault: what tenants are said to
//! hold is what runs for them, card by card.
//!
//! Owns that promise with a real hub and agents, in one process on simulated time. Never looks
//! inside a hub: it reads what people read, and the clusters themselves.

use std::collections::BTreeMap;

use meridian_agent::backend::PodPhase;
use meridian_api::ids::Uid;
use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::kinds::tenant_quota::TenantQuotaSpec;
use meridian_api::units::{Millis, UnixMillis};
use meridian_client::{ListOptions, Resource};
use meridian_e2e::fleet::person::{Person, job};
use meridian_e2e::fleet::{FleetOptions, FleetRegion, object};
use meridian_runtime::Clock;
use serde_json::{Value, json};

const TENANTS: [&str; 2] = ["left", "right"];
const CLUSTERS: [&str; 2] = ["east-a", "west-a"];
/// What is wished for is so within two minutes of the last fault.
const SETTLES_WITHIN: Millis = Millis::seconds(120);
const LOOK_EVERY: Millis = Millis::seconds(1);

/// Two regions of three hosts of eight cards, of which each tenant has a half.
async fn start() -> Person {
    let clock = Clock::simulated(UnixMillis(1_700_000_000_000));
    let mut objects = vec![object("WorkloadClass", "batch", json!({"priority": 1}))];
    for tenant in TENANTS {
        let rows = json!([{"nominal": 24, "borrowingLimit": 8}]);
        objects.push(object("Tenant", tenant, json!({})));
        let spec = json!({"tenant": tenant, "resources": rows});
        objects.push(object("TenantQuota", tenant, spec));
    }
    let regions = CLUSTERS.map(|cluster| FleetRegion::of_one(cluster, 3, 8));
    let options = FleetOptions::small(&clock, regions.to_vec(), objects);
    Person::at(options).await.expect("it starts")
}

/// Cards that each tenant holds, by the word of the hub.
async fn booked(person: &Person) -> BTreeMap<String, u64> {
    let mut books = BTreeMap::new();
    for tenant in TENANTS {
        let quota = person.get::<TenantQuotaSpec>("", tenant).await;
        let used = quota["status"]["used"].as_u64().unwrap_or(0);
        books.insert(tenant.to_owned(), used);
    }
    books
}

/// Cards that pods of each tenant hold, by the clusters' own word.
fn held(person: &Person, tenants: &BTreeMap<Uid, String>) -> BTreeMap<String, u64> {
    let mut held: BTreeMap<String, u64> = TENANTS.map(|it| (it.to_owned(), 0)).into();
    for (_, _, cluster) in person.fleet.clusters() {
        for gang in cluster.snapshot(person.clock.wall()).gangs {
            let tenant = &tenants[&gang.key.gang.job];
            let pods = gang.pods.iter().filter(|pod| match pod.phase {
                PodPhase::Pending | PodPhase::Bound | PodPhase::Running => true,
                PodPhase::Broken { .. }
                | PodPhase::Rejected { .. }
                | PodPhase::Succeeded
                | PodPhase::Failed { .. } => false,
            });
            let cards: u64 = pods.map(|pod| pod.request.gpus.whole()).sum();
            *held.entry(tenant.clone()).or_default() += cards;
        }
    }
    held
}

/// Whose each job is, of all that ever were.
async fn note(person: &Person, tenants: &mut BTreeMap<Uid, String>) {
    let (kind, all) = (Resource::of::<FederatedJobSpec>(), ListOptions::default());
    let listed = person.client.list(&kind, None, &all).await;
    for job in listed.expect("a hub answers").items {
        let text = |path| job.pointer(path).and_then(Value::as_str).expect("a text");
        let uid: Uid = text("/metadata/uid").parse().expect("a UID");
        tenants.insert(uid, text("/metadata/namespace").to_owned());
    }
}

/// Waits until books and truth are one, and both tenants hold as many as this.
async fn agree(person: &Person, tenants: &mut BTreeMap<Uid, String>, expected: [u64; 2]) {
    note(person, tenants).await;
    let expected: BTreeMap<String, u64> = TENANTS
        .map(str::to_owned)
        .into_iter()
        .zip(expected)
        .collect();
    let agreed = async {
        loop {
            let both = [booked(person).await, held(person, tenants)];
            if both.iter().all(|it| *it == expected) {
                return;
            }
            person.clock.sleep(LOOK_EVERY).await;
        }
    };
    if person.clock.timeout(SETTLES_WITHIN, agreed).await.is_err() {
        let (booked, held) = (booked(person).await, held(person, tenants));
        panic!("expected {expected:?}, the books say {booked:?}, the clusters {held:?}");
    }
    let unsound = person.counted("meridian_plan_violations_total");
    assert_eq!(unsound, 0, "plans were thrown away");
}

async fn submit(person: &Person, tenant: &str, name: &str, shape: (u32, u64), runtime: &str) {
    let job = job(tenant, name, shape, runtime);
    person.make(&job).await.expect("let in");
}

async fn drop_job(person: &Person, tenant: &str, name: &str) {
    let gone = person.delete::<FederatedJobSpec>(tenant, name).await;
    gone.expect("let go");
}

#[tokio::test(start_paused = true)]
async fn what_tenants_are_said_to_hold_is_what_runs_for_them_after_each_fault() {
    let mut person = start().await;
    let tenants = &mut BTreeMap::new();
    for cluster in 0..2 {
        submit(&person, "left", &format!("pair-{cluster}"), (2, 4), "100h").await;
        submit(&person, "right", &format!("host-{cluster}"), (1, 8), "100h").await;
    }
    submit(&person, "left", "short", (1, 8), "5m").await;
    agree(&person, tenants, [24, 16]).await;

    // While no agent speaks, one ends, one is taken away, and one comes.
    for cluster in CLUSTERS {
        person.fleet.crash_agent(cluster).await.expect("it ran");
    }
    person.clock.sleep(Millis::seconds(360)).await;
    drop_job(&person, "right", "host-0").await;
    submit(&person, "right", "late", (2, 8), "100h").await;
    for cluster in CLUSTERS {
        person.fleet.start_agent(cluster).await.expect("it starts");
    }
    person.fleet.attached().await.expect("they attach");
    agree(&person, tenants, [16, 24]).await;

    // The hub dies between what it decided and what came of it.
    submit(&person, "left", "cut-off", (1, 8), "100h").await;
    drop_job(&person, "left", "pair-0").await;
    person.next_hub().await.expect("the next one leads");
    person.fleet.attached().await.expect("they attach");
    agree(&person, tenants, [16, 24]).await;

    // A machine dies under a gang, which goes on elsewhere.
    note(&person, tenants).await;
    let now = person.clock.wall();
    let pods = person.fleet.clusters().flat_map(|(name, _, cluster)| {
        let gangs = cluster.snapshot(now).gangs.into_iter();
        let pods = gangs.flat_map(|gang| gang.pods.into_iter());
        pods.map(move |pod| (name.to_owned(), pod.node))
    });
    let (cluster, node) = pods.into_iter().next().expect("something runs");
    let dies = person.fleet.cluster(&cluster).expect("it is there");
    dies.fail_node(now, &node);
    // Until that is noticed and what stood there has gone.
    person.clock.sleep(Millis::seconds(300)).await;
    agree(&person, tenants, [16, 24]).await;

    // Both at once, and everything goes.
    person.fleet.crash_agent(CLUSTERS[0]).await.expect("it ran");
    person.next_hub().await.expect("the next one leads");
    for (tenant, name) in [
        ("left", "pair-1"),
        ("left", "cut-off"),
        ("left", "short"),
        ("right", "host-1"),
        ("right", "late"),
    ] {
        drop_job(&person, tenant, name).await;
    }
    person
        .fleet
        .start_agent(CLUSTERS[0])
        .await
        .expect("it starts");
    person.fleet.attached().await.expect("they attach");
    agree(&person, tenants, [0, 0]).await;
    person.fleet.stop().await.expect("everybody stops");
}
