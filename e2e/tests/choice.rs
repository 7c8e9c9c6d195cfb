//! Where work goes: data, law and price, taints, hardware and speeds, pools for some classes only.
//!
//! Owns those promises with a real hub and agents, in one process on simulated time; how scores
//! are made is proved where they are made. Never looks inside a hub.

use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::kinds::gpu_pool::GPUPoolSpec;
use meridian_api::kinds::member_cluster::MemberClusterSpec;
use meridian_api::kinds::region::RegionSpec;
use meridian_api::units::{Millis, UnixMillis};
use meridian_e2e::fleet::person::{Person, job, with};
use meridian_e2e::fleet::{FleetOptions, FleetRegion, object};
use meridian_runtime::Clock;
use serde_json::{Value, json};

/// Clusters of two hosts of eight cards, each in a region of its own.
async fn start(clusters: &[(&str, &str)]) -> Person {
    let clock = Clock::simulated(UnixMillis(1_700_000_000_000));
    let objects = vec![
        object("WorkloadClass", "batch", json!({"priority": 1})),
        object("WorkloadClass", "online", json!({"priority": 9})),
        object("Tenant", "nlp", json!({})),
    ];
    let region = |(cluster, flavor): &(&str, &str)| {
        let mut region = FleetRegion::of_one(cluster, 2, 8);
        (*flavor).clone_into(&mut region.clusters[0].inventory.pools[0].flavor);
        region
    };
    let regions = clusters.iter().map(region).collect();
    let options = FleetOptions::small(&clock, regions, objects);
    Person::at(options).await.expect("it starts")
}

/// A job of one host for an hour.
fn hour(name: &str, placement: &Value) -> Value {
    let job = job("nlp", name, (1, 8), "50m");
    let times = json!({"expectedRuntime": "1h", "maxRuntime": "1h", "placement": placement});
    with(job, &times)
}

/// Where the job runs, and what that was expected to cost.
async fn goes(person: &Person, name: &str, placement: &Value) -> (String, String) {
    person.make(&hour(name, placement)).await.expect("let in");
    let runs = person.until_job("nlp", name, "Running").await;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let cost = text(&runs["status"]["gangs"][0]["expectedCost"]);
    (text(&runs["status"]["cluster"]), cost)
}

fn says(job: &Value, reason: &str, words: &str) -> bool {
    let mut blockers = job["status"]["blockers"].as_array().into_iter().flatten();
    blockers.any(|blocker| {
        let message = blocker["message"].as_str().unwrap_or_default();
        blocker["reason"] == reason && message.contains(words)
    })
}

#[tokio::test(start_paused = true)]
async fn data_law_and_price_decide_and_the_cost_is_shown() {
    let mut person = start(&[("us-a", "h100"), ("eu-a", "h100"), ("ie-a", "h100")]).await;
    for (region, law, price) in [
        ("us", "US", "1.00"),
        ("eu", "EU", "3.00"),
        ("ie", "EU", "2.00"),
    ] {
        let spec = json!({
            "jurisdiction": law, "gpuHourPrice": {"h100": price}, "egressPricePerGB": "0.05",
        });
        person
            .edit::<RegionSpec>("", region, spec)
            .await
            .expect("let in");
    }
    let cheapest = |rest: &Value| {
        let mut placement = rest.clone();
        placement["objective"] = json!("Cheapest");
        placement
    };
    // The cheapest is under another law; of the others the cheaper one; with data, which costs 50
    // on its way, the one that has them.
    let anywhere = goes(&person, "anywhere", &cheapest(&json!({}))).await;
    assert_eq!(anywhere, ("us-a".to_owned(), "8.00".to_owned()));
    let lawful = goes(&person, "lawful", &cheapest(&json!({"jurisdiction": "EU"}))).await;
    assert_eq!(lawful, ("ie-a".to_owned(), "16.00".to_owned()));
    let data = json!([{"uri": "s3://corpus", "regions": ["eu"], "sizeGB": 1000}]);
    let near = cheapest(&json!({"jurisdiction": "EU", "data": data}));
    let near = goes(&person, "near", &near).await;
    assert_eq!(near, ("eu-a".to_owned(), "24.00".to_owned()));
    person.fleet.stop().await.expect("everybody stops");
}

#[tokio::test(start_paused = true)]
async fn a_taint_is_borne_never_for_a_while_or_for_good() {
    let mut person = start(&[("one-a", "h100")]).await;
    let bears = |seconds: Value| {
        let mut toleration = json!({"key": "repair", "operator": "Exists"});
        if seconds.is_number() {
            toleration["tolerationSeconds"] = seconds;
            toleration["effect"] = json!("NoExecute");
        }
        json!({"tolerations": [toleration]})
    };
    let for_good = hour("for-good", &bears(json!(null)));
    let for_a_while = hour("for-a-while", &bears(json!(600)));
    for job in [&for_good, &for_a_while] {
        person.make(job).await.expect("let in");
    }
    for name in ["for-good", "for-a-while"] {
        person.until_job("nlp", name, "Running").await;
    }
    let taints = json!({"taints": [{"key": "repair", "value": "", "effect": "NoExecute"}]});
    let tainted = person.clock.wall();
    person
        .edit::<MemberClusterSpec>("", "one-a", taints)
        .await
        .expect("let in");
    person.until_job("nlp", "for-a-while", "Pending").await;
    let after = person.clock.wall().since(tainted);
    assert!((590..700).contains(&(after.0 / 1000)), "{after}");
    let stays = person.job("nlp", "for-good").await;
    assert_eq!(stays["status"]["phase"], "Running");

    // Who does not bear it does not come.
    person
        .make(&hour("never", &json!({})))
        .await
        .expect("let in");
    let never = person.until_job("nlp", "never", "Pending").await;
    assert!(
        never["status"]["blockers"].to_string().contains("repair"),
        "{never:#}"
    );
    let clean = json!({"taints": []});
    person
        .edit::<MemberClusterSpec>("", "one-a", clean)
        .await
        .expect("let in");
    person.until_job("nlp", "never", "Running").await;
    person.fleet.stop().await.expect("everybody stops");
}

#[tokio::test(start_paused = true)]
async fn a_slower_card_wins_when_it_is_cheaper_to_finish_on() {
    let mut person = start(&[("amd-a", "mi300x"), ("nvidia-a", "h100")]).await;
    let flavors = json!([
        {"flavor": "h100", "gpuHour": "2.50"}, {"flavor": "mi300x", "gpuHour": "1.00"},
    ]);
    let book = object(
        "PriceBook",
        "list",
        json!({"currency": "EUR", "flavors": flavors}),
    );
    person.make(&book).await.expect("let in");
    let accepts = |objective: &str| {
        let flavors = json!([
            {"name": "h100", "speed": "1"}, {"name": "mi300x", "speed": "0.6"},
        ]);
        json!({"objective": objective, "flavors": flavors})
    };
    assert_eq!(
        goes(&person, "cheap", &accepts("Cheapest")).await.0,
        "amd-a"
    );
    assert_eq!(
        goes(&person, "soon", &accepts("Soonest")).await.0,
        "nvidia-a"
    );
    person.fleet.stop().await.expect("everybody stops");
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_is_closed_to_a_class_says_so_and_opens() {
    let mut person = start(&[("one-a", "h100")]).await;
    let pool = |classes: &[&str]| {
        let mut pool = json!({"cluster": "one-a", "pool": "pool", "flavor": "h100"});
        pool["classes"] = json!(classes);
        pool
    };
    let online = object("GPUPool", "serving", pool(&["online"]));
    person.make(&online).await.expect("let in");
    person
        .make(&hour("train", &json!({})))
        .await
        .expect("let in");
    let waits = person.until_job("nlp", "train", "Pending").await;
    let words = "pool pool does not admit class batch";
    assert!(says(&waits, "ReservedForOthers", words), "{waits:#}");
    person.clock.sleep(Millis::seconds(60)).await;
    let open = pool(&["online", "batch"]);
    let opened = person.edit::<GPUPoolSpec>("", "serving", open);
    opened.await.expect("let in");
    person.until_job("nlp", "train", "Running").await;
    person
        .delete::<FederatedJobSpec>("nlp", "train")
        .await
        .expect("deleted");
    person.fleet.stop().await.expect("everybody stops");
}
