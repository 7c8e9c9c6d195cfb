//! How alike copies are divided over clusters: by groups, weights, free room, few clusters, all of
//! them, and evenly over whatever label says.
//!
//! Owns those promises with a real hub and agents, in one process on simulated time, judged by what
//! stood where; the arithmetic is proved where it is. Never looks inside a hub.

use std::collections::BTreeMap;

use meridian_agent::simulated::Truth;
use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::kinds::federated_service::FederatedServiceSpec;
use meridian_api::kinds::member_cluster::MemberClusterSpec;
use meridian_api::kinds::region::RegionSpec;
use meridian_api::units::{Millis, UnixMillis};
use meridian_client::{DryRun, Resource};
use meridian_e2e::fleet::person::{Person, job, service, with};
use meridian_e2e::fleet::{FleetOptions, FleetRegion, object};
use meridian_runtime::Clock;
use serde_json::{Value, json};

/// Clusters of so many hosts of four cards, each in a region of its own.
async fn start(clusters: &[(&str, u32)]) -> Person {
    let clock = Clock::simulated(UnixMillis(1_700_000_000_000));
    let objects = vec![
        object("WorkloadClass", "batch", json!({"priority": 1})),
        object("Tenant", "team", json!({})),
    ];
    let regions = clusters.iter();
    let regions = regions.map(|(cluster, hosts)| FleetRegion::of_one(cluster, *hosts, 4));
    let options = FleetOptions::small(&clock, regions.collect(), objects);
    Person::at(options).await.expect("it starts")
}

/// A job with `placement` that runs until it is deleted.
fn long(name: &str, shape: (u32, u64), placement: &Value) -> Value {
    let job = job("team", name, shape, "1000h");
    with(job, &json!({"placement": placement}))
}

/// Makes the job and waits until all of it runs.
async fn runs(person: &Person, job: &Value) -> Value {
    person.make(job).await.expect("let in");
    let name = job["metadata"]["name"].as_str().expect("a name");
    let copies = job["spec"]["copies"].as_u64().unwrap_or(1);
    let all_run = |job: &Value| job["status"]["counts"]["running"] == copies;
    let job = ("team", name);
    person.until_is::<FederatedJobSpec>(job, all_run).await
}

async fn ends(person: &Person, name: &str) {
    let ended = person.delete::<FederatedJobSpec>("team", name).await;
    ended.expect("let go");
    let gone = async || person.job("team", name).await.is_null().then_some(());
    person.until("it is gone", gone).await;
}

async fn resize(person: &Person, spec: Value) {
    let edited = person.edit::<FederatedServiceSpec>("team", "chat", spec);
    edited.await.expect("let in");
}

/// Waits until the replicas that serve stand like this.
async fn stands(person: &Person, by_cluster: &Value) {
    let is = |service: &Value| {
        let status = &service["status"];
        status["observedGeneration"] == service["metadata"]["generation"]
            && status["byCluster"] == *by_cluster
            && status["waiting"] == 0
    };
    let chat = ("team", "chat");
    person.until_is::<FederatedServiceSpec>(chat, is).await;
}

/// Waits until user code has started, and ended, as often as this.
async fn has_moved(person: &Person, starts: usize, ends: usize) {
    let ended = async || (person.truths(Truth::Ended) >= ends).then_some(());
    person.until("they have gone", ended).await;
    let truths = (person.truths(Truth::Started), person.truths(Truth::Ended));
    assert_eq!(truths, (starts, ends));
}

/// Gangs of the job that run, by what `of` says of their clusters.
fn count(job: &Value, of: impl Fn(&str) -> String) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    let gangs = job["status"]["gangs"].as_array().into_iter().flatten();
    for gang in gangs.filter(|gang| gang["state"] == "Running") {
        let cluster = gang["cluster"].as_str().unwrap_or_default();
        *counts.entry(of(cluster)).or_default() += 1;
    }
    counts
}

#[tokio::test(start_paused = true)]
async fn a_full_group_overflows_to_the_next_and_the_newest_goes_back_first() {
    let mut person = start(&[("home-a", 1), ("near-a", 2), ("far-a", 1)]).await;
    let groups = json!([
        {"name": "home", "clusters": ["home-a"]},
        {"name": "burst", "regions": ["near", "far"]},
    ]);
    let placement = json!({"groups": groups, "overflow": "Return"});
    let stays = json!({"groups": groups});
    let group = |job: &Value| job["status"]["gangs"][0]["group"].clone();
    assert_eq!(
        group(&runs(&person, &long("first", (1, 4), &placement)).await),
        "home"
    );
    for name in ["second", "third"] {
        // Which of them is older is told by seconds.
        person.clock.sleep(Millis::seconds(10)).await;
        assert_eq!(
            group(&runs(&person, &long(name, (1, 4), &placement)).await),
            "burst"
        );
    }
    // The newest of all would not go back.
    assert_eq!(
        group(&runs(&person, &long("stays", (1, 4), &stays)).await),
        "burst"
    );
    person.clock.sleep(Millis::seconds(1_200)).await;

    let home = async |name: &str| group(&person.job("team", name).await) == "home";
    for (ended, back) in [("first", "third"), ("third", "second")] {
        ends(&person, ended).await;
        let is_back = async || home(back).await.then_some(());
        person.until(back, is_back).await;
        person.until_job("team", back, "Running").await;
        if back == "third" {
            assert!(!home("second").await, "the older one stays where it is");
        }
    }
    ends(&person, "second").await;
    person.clock.sleep(Millis::seconds(1_200)).await;
    assert!(!home("stays").await);
    person.fleet.stop().await.expect("everybody stops");
}

#[tokio::test(start_paused = true)]
async fn weights_that_change_move_as_few_as_can_be() {
    let mut person = start(&[("a-a", 3), ("b-a", 3), ("c-a", 3)]).await;
    let weighted = |weights: [u32; 3]| {
        let clusters = ["a-a", "b-a", "c-a"].into_iter().zip(weights);
        let rows = clusters.filter(|(_, weight)| *weight > 0);
        let rows = rows.map(|(name, weight)| json!({"clusters": [name], "weight": weight}));
        let rows: Vec<Value> = rows.collect();
        json!({"placement": {"division": {"rule": "Weighted", "weights": rows}}})
    };
    let chat = with(service("team", "chat", (6, 1)), &weighted([1, 1, 1]));
    person.make(&chat).await.expect("let in");
    stands(&person, &json!({"a-a": 2, "b-a": 2, "c-a": 2})).await;
    assert_eq!(person.truths(Truth::Started), 6);
    // Two more, and a half of all for one: nobody moves.
    let mut more = weighted([2, 1, 1]);
    more["replicas"] = json!(8);
    resize(&person, more).await;
    stands(&person, &json!({"a-a": 4, "b-a": 2, "c-a": 2})).await;
    has_moved(&person, 8, 0).await;
    // Two of eight must move.
    resize(&person, weighted([1, 1, 2])).await;
    stands(&person, &json!({"a-a": 2, "b-a": 2, "c-a": 4})).await;
    has_moved(&person, 10, 2).await;
    // Who is in no row gets none.
    resize(&person, weighted([1, 0, 1])).await;
    stands(&person, &json!({"a-a": 4, "c-a": 4})).await;
    has_moved(&person, 12, 4).await;
    person.fleet.stop().await.expect("everybody stops");
}

#[tokio::test(start_paused = true)]
async fn dynamic_weights_follow_the_shapes_that_are_free() {
    let mut person = start(&[("east-a", 3), ("west-a", 3)]).await;
    // One card is free on each host of the west: three in all, and no room for a replica of two.
    let west = json!({"clusters": ["west-a"]});
    for name in ["one", "two", "three"] {
        runs(&person, &long(name, (1, 3), &west)).await;
    }
    let dynamic = json!({"placement": {"division": {"rule": "Dynamic"}}});
    let chat = with(service("team", "chat", (4, 2)), &dynamic);
    person.make(&chat).await.expect("let in");
    stands(&person, &json!({"east-a": 4})).await;
    // Room for two there and for four here, as many times as they need: one to two.
    for name in ["one", "two"] {
        ends(&person, name).await;
    }
    // Until their agent has said so.
    person.clock.sleep(Millis::seconds(30)).await;
    resize(&person, json!({"replicas": 7})).await;
    stands(&person, &json!({"east-a": 5, "west-a": 2})).await;
    assert_eq!(
        person.truths(Truth::Started),
        3 + 7,
        "what served has stayed"
    );
    person.fleet.stop().await.expect("everybody stops");
}

#[tokio::test(start_paused = true)]
async fn aggregated_copies_stand_in_as_few_clusters_as_can_be() {
    let mut person = start(&[("a-a", 2), ("b-a", 3), ("c-a", 1)]).await;
    let aggregated = json!({"placement": {"division": {"rule": "Aggregated"}}});
    // Ten of twelve cards: one cluster alone has them.
    let chat = with(service("team", "chat", (5, 2)), &aggregated);
    person.make(&chat).await.expect("let in");
    stands(&person, &json!({"b-a": 5})).await;
    // Fourteen: it is filled before another is used.
    resize(&person, json!({"replicas": 7})).await;
    stands(&person, &json!({"a-a": 1, "b-a": 6})).await;
    // Fewer: the smaller part goes, whole.
    resize(&person, json!({"replicas": 4})).await;
    stands(&person, &json!({"b-a": 4})).await;

    person.clock.sleep(Millis::seconds(30)).await;
    // Gangs of an array job the same: what is left of the three is 8, 4 and 4 cards.
    let array = long(
        "array",
        (1, 2),
        &json!({"division": {"rule": "Aggregated"}}),
    );
    let array = runs(&person, &with(array, &json!({"copies": 4}))).await;
    assert_eq!(
        count(&array, str::to_owned),
        BTreeMap::from([("a-a".to_owned(), 4)])
    );
    person.fleet.stop().await.expect("everybody stops");
}

#[tokio::test(start_paused = true)]
async fn duplicated_copies_reach_a_cluster_that_joins_later() {
    let mut person = start(&[("a-a", 1), ("b-a", 1)]).await;
    let duplicated = json!({"placement": {"division": {"rule": "Duplicated"}}});
    let chat = with(service("team", "chat", (3, 2)), &duplicated);
    person.make(&chat).await.expect("let in");
    stands(&person, &json!({"a-a": 1, "b-a": 1})).await;
    let joins = person.fleet.add(FleetRegion::of_one("c-a", 1, 4));
    joins.await.expect("it joins");
    stands(&person, &json!({"a-a": 1, "b-a": 1, "c-a": 1})).await;
    assert_eq!(person.truths(Truth::Started), 3);
    person.fleet.stop().await.expect("everybody stops");
}

/// Label, and which of its values each of four clusters has.
const LABELS: [(&str, [&str; 4]); 4] = [
    ("region", ["p", "q", "r", "s"]),
    ("zone", ["z1", "z1", "z1", "z2"]),
    ("provider", ["x", "x", "y", "y"]),
    ("meridian.dev/hall", ["h1", "h2", "h3", "h3"]),
];
const FOUR: [(&str, u32); 4] = [("p-a", 3), ("q-a", 3), ("r-a", 3), ("s-a", 3)];

/// Zones, providers and halls as [`LABELS`] has them; the cheapest region is the first.
async fn label(person: &Person) {
    for (at, (cluster, _)) in FOUR.into_iter().enumerate() {
        let of = |label: usize| LABELS[label].1[at];
        let spec = json!({"zone": of(1), "provider": of(2)});
        let edited = person.edit::<MemberClusterSpec>("", cluster, spec);
        edited.await.expect("let in");
        let hall = json!({"metadata": {"labels": {"meridian.dev/hall": of(3)}}});
        let kind = Resource::of::<MemberClusterSpec>();
        let patched = person
            .client
            .merge_patch(&kind, "", cluster, &hall, DryRun::No);
        patched.await.expect("let in");
        let price = json!({"gpuHourPrice": {"h100": format!("{}.00", at + 1)}});
        let edited = person.edit::<RegionSpec>("", of(0), price);
        edited.await.expect("let in");
    }
}

#[tokio::test(start_paused = true)]
async fn copies_are_even_over_region_zone_provider_and_any_label() {
    let mut person = start(&FOUR).await;
    label(&person).await;
    for (key, values) in LABELS {
        let value = |cluster: &str| {
            let at = FOUR.iter().position(|(name, _)| *name == cluster);
            values[at.expect("one of four")].to_owned()
        };
        let domains: std::collections::BTreeSet<&str> = values.into_iter().collect();
        let domains = u32::try_from(domains.len()).expect("small");
        let spread = json!([{"topologyKey": key, "minDomains": domains, "maxSkew": 1}]);
        let placement = json!({"objective": "Cheapest", "spread": spread});
        let array = long("array", (1, 2), &placement);
        let array = runs(&person, &with(array, &json!({"copies": 7}))).await;
        let counts = count(&array, value);
        let (most, least) = (counts.values().max(), counts.values().min());
        let is_even = most
            .zip(least)
            .is_some_and(|(most, least)| most - least <= 1);
        assert!(
            is_even && counts.len() == domains as usize,
            "{key}: {counts:?}"
        );
        ends(&person, "array").await;
    }
    // Without a rule all go where it is cheapest, as far as that has room: six.
    let array = long("array", (1, 2), &json!({"objective": "Cheapest"}));
    let array = runs(&person, &with(array, &json!({"copies": 6}))).await;
    assert_eq!(
        count(&array, str::to_owned),
        BTreeMap::from([("p-a".to_owned(), 6)])
    );
    ends(&person, "array").await;

    // A domain that has no room holds up what would be lopsided, and says so.
    let filler = long("filler", (3, 4), &json!({"clusters": ["s-a"]}));
    runs(&person, &filler).await;
    let spread = json!([{"topologyKey": "zone", "minDomains": 2, "maxSkew": 1}]);
    let array = long("array", (1, 2), &json!({"spread": spread}));
    let array = with(array, &json!({"copies": 4}));
    person.make(&array).await.expect("let in");
    let zone = |cluster: &str| if cluster == "s-a" { "z2" } else { "z1" }.to_owned();
    let one_runs = |job: &Value| count(job, zone) == BTreeMap::from([("z1".to_owned(), 1)]);
    let array = ("team", "array");
    person.until_is::<FederatedJobSpec>(array, one_runs).await;
    person.clock.sleep(Millis::seconds(60)).await;
    let why = person
        .client
        .why("team", "array")
        .await
        .expect("a hub answers");
    let said = format!("{:?}", why.reasons);
    assert!(said.contains("zone"), "{said}");
    assert!(one_runs(&person.job("team", "array").await));
    ends(&person, "filler").await;
    let even = |job: &Value| {
        count(job, zone) == BTreeMap::from([("z1".to_owned(), 2), ("z2".to_owned(), 2)])
    };
    person.until_is::<FederatedJobSpec>(array, even).await;
    person.fleet.stop().await.expect("everybody stops");
}
