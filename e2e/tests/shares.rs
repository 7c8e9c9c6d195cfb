//! Tenants that ask for different things of the same hosts: cards here, CPU there.
//!
//! Owns the promises that they share by what each holds most of, and that CPU has a quota like
//! cards, with a real hub and an agent in one process on simulated time; how shares are computed is
//! proved where they are. Never looks inside a hub.

use meridian_api::kinds::member_cluster::MemberClusterSpec;
use meridian_api::units::{Millis, UnixMillis};
use meridian_e2e::fleet::person::{Person, job, with};
use meridian_e2e::fleet::{FleetOptions, FleetRegion, object};
use meridian_runtime::Clock;
use serde_json::{Value, json};

/// Jobs of each tenant: more than the fleet has room for.
const JOBS: usize = 16;

/// Four hosts of 8 cards and 96 cores: 32 cards and 384 cores in all.
async fn start(quotas: Vec<Value>) -> Person {
    let clock = Clock::simulated(UnixMillis(1_700_000_000_000));
    let mut objects = vec![object("WorkloadClass", "batch", json!({"priority": 1}))];
    for tenant in ["cards", "cores"] {
        objects.push(object("Tenant", tenant, json!({})));
    }
    objects.extend(quotas);
    let region = FleetRegion::of_one("here-a", 4, 8);
    let options = FleetOptions::small(&clock, vec![region], objects);
    Person::at(options).await.expect("it starts")
}

/// A role of one pod.
fn role(name: &str, template: &Value, gpus: u64, cores: u64) -> Value {
    json!({
        "name": name, "replicas": 1, "gpus": gpus, "resources": {"cpu": cores},
        "template": template,
    })
}

/// A gang of two roles that differ: one in sixteen parts of what the tenant holds most of. Of
/// `cards` that is cards (2 of 32; 12 of 384 cores are one in 32), of `cores` it is CPU (24 cores).
fn gang(tenant: &str, number: usize) -> Value {
    let plain = job(tenant, &format!("{tenant}-{number}"), (1, 1), "10h");
    let template = &plain["spec"]["roles"][0]["template"];
    let roles = match tenant {
        "cards" => json!([
            role("trainer", template, 2, 6),
            role("loader", template, 0, 6)
        ]),
        _ => json!([
            role("solver", template, 0, 16),
            role("writer", template, 0, 8)
        ]),
    };
    with(plain.clone(), &json!({"roles": roles}))
}

/// How many jobs of the tenant run.
async fn running(person: &Person, tenant: &str) -> usize {
    let mut count = 0;
    for number in 0..JOBS {
        let job = person.job(tenant, &format!("{tenant}-{number}")).await;
        count += usize::from(job["status"]["phase"] == "Running");
    }
    count
}

#[tokio::test(start_paused = true)]
async fn who_holds_cards_and_who_holds_cpu_come_to_the_same_share() {
    let mut person = start(Vec::new()).await;
    let cordon = async |closed: bool| {
        let spec = json!({"cordoned": closed});
        let edited = person.edit::<MemberClusterSpec>("", "here-a", spec).await;
        edited.expect("let in");
    };
    // All of one come before all of the other: by age alone these would take every core.
    cordon(true).await;
    for tenant in ["cores", "cards"] {
        for number in 0..JOBS {
            person.make(&gang(tenant, number)).await.expect("let in");
        }
    }
    let last = format!("cards-{}", JOBS - 1);
    person.until_job("cards", &last, "Pending").await;
    cordon(false).await;

    // Ten of each are 360 of 384 cores. What is left takes one more of `cores` or two of `cards`.
    person.clock.sleep(Millis::seconds(120)).await;
    let (cards, cores) = (
        running(&person, "cards").await,
        running(&person, "cores").await,
    );
    // Where the last hosts have cores and cards together is their packing's matter.
    assert!((10..=12).contains(&cards), "{cards} and {cores}");
    assert!((10..=11).contains(&cores), "{cards} and {cores}");
    let tree = person.client.tenants("").await.expect("a hub answers");
    for node in &tree.tenants {
        // Of what it holds most of: 10 to 12 of 16.
        assert!((620..=750).contains(&node.share_thousandths), "{node:?}");
    }
    person.fleet.stop().await.expect("everybody stops");
}

#[tokio::test(start_paused = true)]
async fn cpu_has_a_quota_like_cards() {
    let quota = json!({"tenant": "cores", "cpu": {"nominal": 48, "borrowingLimit": 0}});
    let mut person = start(vec![object("TenantQuota", "cores", quota)]).await;
    for number in 0..3 {
        person.make(&gang("cores", number)).await.expect("let in");
    }
    // 72 cores are more than 48, and there is room for 384.
    person.clock.sleep(Millis::seconds(60)).await;
    let mut waiting = Vec::new();
    for number in 0..3 {
        let job = person.job("cores", &format!("cores-{number}")).await;
        let blocker = job["status"]["blockers"][0].clone();
        waiting.extend(blocker.is_object().then_some(blocker));
    }
    assert_eq!(waiting.len(), 1, "{waiting:#?}");
    assert_eq!(waiting[0]["reason"], "WaitingForQuota");
    let words = "needs 24 CPUs; tenant cores may hold 48 CPUs, 48 CPUs are held";
    assert_eq!(waiting[0]["message"], words);
    // Who needs no more CPU than there is goes on.
    person.make(&gang("cards", 0)).await.expect("let in");
    person.until_job("cards", "cards-0", "Running").await;
    assert_eq!(running(&person, "cores").await, 2);
    // What could never run is told so.
    let mut large = gang("cores", 9);
    large["spec"]["roles"][0]["resources"]["cpu"] = json!(90);
    person.make(&large).await.expect("let in");
    let never = person.until_job("cores", "cores-9", "Pending").await;
    let reason = &never["status"]["blockers"][0]["reason"];
    assert_eq!(reason, "ExceedsQuota", "{never:#}");
    person.fleet.stop().await.expect("everybody stops");
}
