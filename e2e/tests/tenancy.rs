//! Tenants: what they may hold, lend and spend, in one process on simulated time.
//!
//! Owns the promises about quota and money that nobody sees in one decision alone: over time, over
//! a cut, over the end of a month, over a crash of the hub. Never looks inside a hub.

use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::kinds::federated_service::FederatedServiceSpec;
use meridian_api::kinds::tenant::TenantSpec;
use meridian_api::kinds::tenant_quota::TenantQuotaSpec;
use meridian_api::quantity::Time;
use meridian_api::units::{Millis, UnixMillis};
use meridian_e2e::fleet::person::{Person, job, with};
use meridian_e2e::fleet::{FleetOptions, FleetRegion, object};
use meridian_runtime::Clock;
use serde_json::{Value, json};

/// Four hosts of eight cards: `org` has all of them, and tenants below it.
fn options(clock: &Clock, tenants: &[(&str, &str, Value)], more: Vec<Value>) -> FleetOptions {
    let mut objects = vec![
        object("WorkloadClass", "batch", json!({"priority": 1})),
        object("Tenant", "org", json!({})),
        quota("org", &json!({"nominal": 32})),
    ];
    for (name, parent, row) in tenants {
        objects.push(object("Tenant", name, json!({"parent": parent})));
        objects.push(quota(name, row));
    }
    objects.extend(more);
    FleetOptions::small(clock, vec![FleetRegion::of_one("here-a", 4, 8)], objects)
}

fn quota(tenant: &str, row: &Value) -> Value {
    let resources = json!([row]);
    object(
        "TenantQuota",
        tenant,
        json!({"tenant": tenant, "resources": resources}),
    )
}

async fn start(instant: &str, tenants: &[(&str, &str, Value)], more: Vec<Value>) -> Person {
    let clock = Clock::simulated(millis(instant));
    let person = Person::at(options(&clock, tenants, more)).await;
    person.expect("it starts")
}

fn millis(instant: &str) -> UnixMillis {
    let time: Time = serde_json::from_value(json!(instant)).expect("an instant");
    time.0
}

/// Waits until the quota counts so many GPUs.
async fn uses(person: &Person, tenant: &str, gpus: u64) {
    let used = |quota: &Value| quota["status"]["used"] == gpus;
    person.until_is::<TenantQuotaSpec>(("", tenant), used).await;
}

fn reasons(job: &Value) -> Vec<&str> {
    let blockers = job["status"]["blockers"].as_array().into_iter().flatten();
    blockers
        .filter_map(|blocker| blocker["reason"].as_str())
        .collect()
}

fn message<'a>(job: &'a Value, reason: &str) -> &'a str {
    let mut blockers = job["status"]["blockers"].as_array().into_iter().flatten();
    let blocker = blockers.find(|blocker| blocker["reason"] == reason);
    blocker
        .and_then(|blocker| blocker["message"].as_str())
        .unwrap_or_default()
}

/// Euros that the tenant has spent this month.
async fn spent(person: &Person) -> f64 {
    let tenant = person.get::<TenantSpec>("", "nlp").await;
    let spent = tenant["status"]["budget"]["spent"].as_str().map(str::parse);
    spent.and_then(Result::ok).unwrap_or_default()
}

/// Of a budget of 100 that is overspent, which tells at 50 and 80 %.
async fn each_part_was_told_once(person: &Person) {
    let told = person.told("default", "nlp").await;
    let told = told
        .iter()
        .map(|(reason, words)| (reason.as_str(), &words[..4]));
    let told: Vec<_> = told.collect();
    let each_once = [
        ("BudgetAlert", "50 %"),
        ("BudgetAlert", "80 %"),
        ("BudgetExhausted", "100 "),
    ];
    assert_eq!(told, each_once);
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_is_used_up_blocks_borrowing_only_and_for_that_month() {
    let prices = json!({"currency": "EUR", "flavors": [{"flavor": "h100", "gpuHour": "10.00"}]});
    let tenants = [
        ("nlp", "org", json!({"nominal": 8})),
        ("cv", "org", json!({"nominal": 24})),
    ];
    let book = vec![object("PriceBook", "list", prices)];
    let mut person = start("2026-11-30T22:30:00Z", &tenants, book).await;
    let budget = |currency: &str| {
        json!({"budget": {"currency": currency, "monthly": "100.00",
                          "alertAtPercent": [50, 80], "onExhausted": "BlockBorrowing"}})
    };
    let refused = person.edit::<TenantSpec>("", "nlp", budget("USD")).await;
    let refused = refused.expect_err("prices are in EUR");
    assert!(refused.contains("spec.budget.currency"), "{refused}");
    let edited = person.edit::<TenantSpec>("", "nlp", budget("EUR")).await;
    edited.expect("let in");

    // Half an hour of 16 cards costs 80: the second starts within the budget, and is not stopped
    // when it passes it.
    for name in ["first", "second"] {
        person
            .make(&job("nlp", name, (2, 8), "30m"))
            .await
            .expect("let in");
        person.until_job("nlp", name, "Succeeded").await;
    }
    let used_up = |tenant: &Value| tenant["status"]["budget"]["exhausted"] == true;
    person.until_is::<TenantSpec>(("", "nlp"), used_up).await;
    each_part_was_told_once(&person).await;
    let after = spent(&person).await;
    assert!((160.0..165.0).contains(&after), "{after}");

    // What would borrow waits and says why; what is the tenant's own runs.
    let third = job("nlp", "third", (2, 8), "30m");
    person.make(&third).await.expect("let in");
    let waits = person.until_job("nlp", "third", "Pending").await;
    let why = message(&waits, "BudgetExhausted");
    assert!(
        why.contains("of 100.00: only its own quota is left to it"),
        "{waits:#}"
    );
    let own = job("nlp", "own", (1, 8), "10m");
    person.make(&own).await.expect("let in");
    person.until_job("nlp", "own", "Succeeded").await;

    // The hub that comes next knows it, too.
    person.next_hub().await.expect("it starts");
    person.until_is::<TenantSpec>(("", "nlp"), used_up).await;
    let waits = person.until_job("nlp", "third", "Pending").await;
    assert!(reasons(&waits).contains(&"BudgetExhausted"), "{waits:#}");

    // What was told is not told again by it.
    let nlp = person.get::<TenantSpec>("", "nlp").await;
    assert_eq!(nlp["status"]["budget"]["alertedAtPercent"], 100);
    assert_eq!(person.told("default", "nlp").await, []);

    // In December there is money again.
    person.until_job("nlp", "third", "Running").await;
    assert!(person.clock.wall() >= millis("2026-12-01T00:00:00Z"));
    let december = person.get::<TenantSpec>("", "nlp").await["status"]["budget"].clone();
    assert_eq!(december["month"], "2026-12-01T00:00:00Z", "{december:#}");
    assert_eq!(december["alertedAtPercent"], Value::Null);
    person.fleet.stop().await.expect("everybody stops");
}

#[tokio::test(start_paused = true)]
async fn a_cut_stops_nothing_and_what_ends_is_not_replaced() {
    let own = |nominal| json!({"nominal": nominal, "borrowingLimit": 0});
    let tenants = [("nlp", "org", own(16)), ("cv", "org", own(16))];
    let mut person = start("2026-11-30T08:00:00Z", &tenants, Vec::new()).await;
    person
        .make(&job("nlp", "short", (1, 8), "30m"))
        .await
        .expect("let in");
    person
        .make(&job("nlp", "long", (1, 8), "60m"))
        .await
        .expect("let in");
    uses(&person, "nlp", 16).await;

    // The tree is judged whole, and says what does not add up.
    let more = json!({"resources": [own(24)]});
    let refused = person.edit::<TenantQuotaSpec>("", "nlp", more).await;
    let refused = refused.expect_err("24 + 16 > 32");
    assert!(
        refused.contains("40") && refused.contains("32"),
        "{refused}"
    );
    let cut = json!({"resources": [own(8)]});
    person
        .edit::<TenantQuotaSpec>("", "nlp", cut)
        .await
        .expect("let in");
    person
        .make(&job("nlp", "next", (1, 8), "10m"))
        .await
        .expect("let in");
    let waits = person.until_job("nlp", "next", "Pending").await;
    assert!(reasons(&waits).contains(&"WaitingForQuota"), "{waits:#}");

    // Nobody is stopped for the cut; when the first has ended there is no room for another.
    person.until_job("nlp", "short", "Succeeded").await;
    uses(&person, "nlp", 8).await;
    person.clock.sleep(Millis::seconds(300)).await;
    let next = person.job("nlp", "next").await;
    assert_eq!(next["status"]["phase"], "Pending", "{next:#}");
    let long = person.until_job("nlp", "long", "Succeeded").await;
    assert_eq!(
        long["status"]["gangs"][0]["restarts"].as_u64().unwrap_or(0),
        0
    );
    person.until_job("nlp", "next", "Running").await;

    // What is deleted is counted no more.
    person
        .delete::<FederatedJobSpec>("nlp", "next")
        .await
        .expect("deleted");
    uses(&person, "nlp", 0).await;
    person.fleet.stop().await.expect("everybody stops");
}

#[tokio::test(start_paused = true)]
async fn quota_is_lent_up_and_down_the_tree_and_its_owner_goes_first_when_it_is_back() {
    let tenants = [
        ("research", "org", json!({"nominal": 16})),
        ("prod", "org", json!({"nominal": 16})),
        ("nlp", "research", json!({"nominal": 8})),
        ("cv", "research", json!({"nominal": 8})),
    ];
    let mut person = start("2026-11-30T08:00:00Z", &tenants, Vec::new()).await;
    // Its own 8, then 8 of its sibling's, then 16 of its parent's sibling's.
    for (name, runtime) in [("a", "60m"), ("b", "30m"), ("c", "60m"), ("d", "60m")] {
        person
            .make(&job("nlp", name, (1, 8), runtime))
            .await
            .expect("let in");
        person.until_job("nlp", name, "Running").await;
    }
    let tree = person
        .client
        .tenants("")
        .await
        .expect("a hub answers")
        .tenants;
    let row = |tenant: &str| {
        let node = tree
            .iter()
            .find(|node| node.name == tenant)
            .expect("it is there");
        (
            node.rows[0].used / 1000,
            node.rows[0].borrowed / 1000,
            node.rows[0].lent / 1000,
        )
    };
    assert_eq!(row("nlp"), (32, 24, 0));
    assert_eq!((row("research").0, row("research").1), (32, 16));
    assert_eq!((row("cv").2, row("prod").2), (8, 16));

    // The borrower's next was there first; the lender's own goes first when the room comes back.
    person
        .make(&job("nlp", "e", (1, 8), "10m"))
        .await
        .expect("let in");
    person.until_job("nlp", "e", "Pending").await;
    person
        .make(&job("cv", "own", (1, 8), "10m"))
        .await
        .expect("let in");
    person.until_job("cv", "own", "Running").await;
    let waits = person.job("nlp", "e").await;
    assert_eq!(waits["status"]["phase"], "Pending", "{waits:#}");
    person.until_job("nlp", "e", "Succeeded").await;
    person.fleet.stop().await.expect("everybody stops");
}

#[tokio::test(start_paused = true)]
async fn every_role_of_a_gang_counts() {
    let tenants = [("nlp", "org", json!({"nominal": 16}))];
    let mut person = start("2026-11-30T08:00:00Z", &tenants, Vec::new()).await;
    let limit = |gpus: u32| json!({"limits": {"gpusPerJob": gpus}});
    let limited = person.edit::<TenantQuotaSpec>("", "nlp", limit(6)).await;
    limited.expect("let in");
    let mut both = job("nlp", "both", (2, 3), "10m");
    let mut leader = both["spec"]["roles"][0].clone();
    leader["name"] = json!("leader");
    leader["replicas"] = json!(1);
    leader["gpus"] = json!(1);
    both = with(
        both.clone(),
        &json!({"roles": [leader, both["spec"]["roles"][0]]}),
    );
    let refused = person.until_refused(&both, "asks for 7 GPUs").await;
    assert!(refused.contains("allows 6"), "{refused}");
    let limited = person.edit::<TenantQuotaSpec>("", "nlp", limit(7)).await;
    limited.expect("let in");
    person.until_made(&both).await;
    let runs = person.until_job("nlp", "both", "Running").await;
    assert_eq!(runs["status"]["gpus"], 7);
    uses(&person, "nlp", 7).await;
    person.until_job("nlp", "both", "Succeeded").await;
    uses(&person, "nlp", 0).await;
    person.fleet.stop().await.expect("everybody stops");
}

#[tokio::test(start_paused = true)]
async fn quota_refuses_a_submit_a_scale_up_and_a_change_of_itself() {
    let tenants = [("nlp", "org", json!({"nominal": 16, "hardCap": 16}))];
    let mut person = start("2026-11-30T08:00:00Z", &tenants, Vec::new()).await;
    let limits = json!({"limits": {"queuedJobs": 2, "gpusPerJob": 16}});
    let limited = person.edit::<TenantQuotaSpec>("", "nlp", limits).await;
    limited.expect("let in");
    let whole = |name: &str| job("nlp", name, (2, 8), "40m");
    person.make(&whole("runs")).await.expect("let in");
    person.until_job("nlp", "runs", "Running").await;
    for name in ["one", "two"] {
        person.make(&whole(name)).await.expect("two may wait");
        person.until_job("nlp", name, "Pending").await;
    }
    let refused = person.make(&whole("three")).await.expect_err("two wait");
    for words in ["2 jobs of tenant nlp wait, and 2 may", "E4102"] {
        assert!(refused.contains(words), "{refused}");
    }
    // So is a service that could never run, and one that grows to that.
    let service = |replicas: u32| {
        let spec = job("nlp", "chat", (1, 8), "40m")["spec"].clone();
        let roles = &spec["roles"];
        let spec = json!({"workloadClass": "batch", "replicas": replicas, "roles": roles});
        let mut service = object("FederatedService", "chat", spec);
        service["metadata"]["namespace"] = json!("nlp");
        service
    };
    let refused = person.make(&service(3)).await.expect_err("24 of 16");
    assert!(refused.contains("24 GPUs in all"), "{refused}");
    person.make(&service(1)).await.expect("8 of 16");
    let grown = person
        .edit::<FederatedServiceSpec>("nlp", "chat", json!({"replicas": 3}))
        .await;
    let grown = grown.expect_err("24 of 16");
    assert!(grown.contains("may hold 16"), "{grown}");
    let deleted = person.delete::<FederatedServiceSpec>("nlp", "chat").await;
    deleted.expect("deleted");
    // The tenant above has 32.
    let more = json!({"resources": [{"nominal": 64}]});
    let more = person.edit::<TenantQuotaSpec>("", "nlp", more).await;
    let more = more.expect_err("more than org has");
    assert!(more.contains("64") && more.contains("32"), "{more}");
    // Who is gone counts no more.
    uses(&person, "nlp", 16).await;
    for gone in ["runs", "two"] {
        let deleted = person.delete::<FederatedJobSpec>("nlp", gone).await;
        deleted.expect("deleted");
    }
    person.until_job("nlp", "one", "Running").await;
    uses(&person, "nlp", 16).await;
    person.until_made(&whole("three")).await;
    person.until_made(&whole("four")).await;
    person
        .until_refused(&whole("five"), "2 jobs of tenant nlp wait")
        .await;
    person.fleet.stop().await.expect("everybody stops");
}
