//! Why a job waits: every reason of the list as it comes about, with the smallest change that would
//! admit the job, made and seen to help; and the certain "no" that a submit is answered with.
//!
//! Owns that promise with a real hub and agents, in one process on simulated time. Never looks
//! inside a hub. How causes are told apart is proved where they are made.

use std::collections::BTreeSet;

use meridian_agent::simulated::{EXIT_CODE, IGNORES_SIGTERM};
use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::kinds::member_cluster::MemberClusterSpec;
use meridian_api::kinds::reservation::ReservationSpec;
use meridian_api::kinds::tenant::TenantSpec;
use meridian_api::kinds::tenant_quota::TenantQuotaSpec;
use meridian_api::kinds::workload_class::WorkloadClassSpec;
use meridian_api::quantity::Time;
use meridian_api::reasons::Reason;
use meridian_api::units::{Millis, UnixMillis};
use meridian_client::{DryRun, Submission};
use meridian_e2e::fleet::person::{Person, doing, job, with};
use meridian_e2e::fleet::{FleetOptions, FleetRegion, object};
use meridian_proto::v1;
use meridian_runtime::Clock;
use serde_json::{Value, json};

/// Reasons that do not come about here: dependencies are looked for in real clusters
/// (`kubernetes_refusals`), and start windows and copies of checkpoints are not of this release.
const ELSEWHERE: [Reason; 3] = [
    Reason::DependencyMissing,
    Reason::OutsideStartWindow,
    Reason::WaitingForCheckpoint,
];
const HERE: &str = "here-a";
const THERE: &str = "there-a";

/// Only `owner` lends.
fn quota(tenant: &str, nominal: u32, borrows: u32) -> Value {
    let lends = if tenant == "owner" { nominal } else { 0 };
    let rows = json!([{"nominal": nominal, "borrowingLimit": borrows, "lendingLimit": lends}]);
    let spec = json!({"tenant": tenant, "resources": rows});
    object("TenantQuota", tenant, spec)
}

/// Two hosts of eight `h100` here, and one of eight `l4` there.
async fn start() -> Scenes {
    let clock = Clock::simulated(UnixMillis(1_700_000_000_000));
    let slow = json!({"priority": 1, "preemption": "Requeue", "notice": "5m"});
    let prices = json!({"currency": "EUR", "flavors": [
        {"flavor": "h100", "gpuHour": "2.00"}, {"flavor": "l4", "gpuHour": "1.00"},
    ]});
    let mut objects = vec![
        object("WorkloadClass", "batch", slow),
        object("WorkloadClass", "top", json!({"priority": 9})),
        object(
            "WorkloadClass",
            "small",
            json!({"priority": 1, "gpusPerJob": 8}),
        ),
        object("PriceBook", "list", prices),
        quota("capped", 8, 0),
        quota("owner", 8, 8),
        quota("guest", 8, 8),
    ];
    for tenant in ["team", "capped", "owner", "guest", "poor"] {
        objects.insert(0, object("Tenant", tenant, json!({})));
    }
    let mut there = FleetRegion::of_one(THERE, 1, 8);
    "l4".clone_into(&mut there.clusters[0].inventory.pools[0].flavor);
    let regions = vec![FleetRegion::of_one(HERE, 2, 8), there];
    let person = Person::at(FleetOptions::small(&clock, regions, objects)).await;
    Scenes {
        person: person.expect("it starts"),
        seen: BTreeSet::new(),
    }
}

/// A job that runs until it is deleted.
fn long(tenant: &str, name: &str, shape: (u32, u64), placement: &Value) -> Value {
    let job = job(tenant, name, shape, "1000h");
    with(job, &json!({"placement": placement}))
}

fn only(clusters: &[&str]) -> Value {
    json!({"clusters": clusters})
}

/// The job with fewer or more pods.
fn of_pods(mut job: Value, pods: u32) -> Value {
    job["spec"]["roles"][0]["replicas"] = json!(pods);
    job
}

/// The job with pods that end only by force, four minutes after they are asked to.
fn stubborn(job: Value) -> Value {
    let job = doing(job, IGNORES_SIGTERM, "true");
    let save = json!({"uri": "s3://models/x", "onPreempt": {"grace": "4m"}});
    with(job, &json!({"checkpoint": save}))
}

fn name_of(job: &Value) -> (&str, &str) {
    let text = |path| job.pointer(path).and_then(Value::as_str).expect("a text");
    (text("/metadata/namespace"), text("/metadata/name"))
}

struct Scenes {
    person: Person,
    seen: BTreeSet<Reason>,
}

impl Scenes {
    /// Makes the job, waits until it is told this reason, and asks why.
    async fn waits(&mut self, job: &Value, reason: Reason) -> v1::WhyResponse {
        self.person.make(job).await.expect("let in");
        self.is_told(job, reason).await
    }

    async fn is_told(&mut self, job: &Value, reason: Reason) -> v1::WhyResponse {
        let (tenant, name) = name_of(job);
        let says = |job: &Value| {
            let mut blockers = job["status"]["blockers"].as_array().into_iter().flatten();
            blockers.any(|blocker| blocker["reason"] == reason.as_str())
        };
        let key = (tenant, name);
        self.person.until_is::<FederatedJobSpec>(key, says).await;
        let why = self.person.client.why(tenant, name).await;
        let why = why.expect("a hub answers");
        let codes: Vec<&str> = why.reasons.iter().map(|it| it.code.as_str()).collect();
        assert!(codes.contains(&reason.as_str()), "{why:#?}");
        assert!(
            why.reasons.iter().all(|it| !it.message.is_empty()),
            "{why:#?}"
        );
        // Most actionable first.
        let order = codes
            .iter()
            .map(|code| code.parse::<Reason>().expect("known"));
        assert!(order.is_sorted(), "{codes:?}");
        self.seen.insert(reason);
        why
    }

    async fn ends(&self, job: &Value) {
        let (tenant, name) = name_of(job);
        let ended = self.person.delete::<FederatedJobSpec>(tenant, name).await;
        ended.expect("let go");
        let gone = async || self.person.job(tenant, name).await.is_null().then_some(());
        self.person.until("it is gone", gone).await;
        // Its agent has said so.
        self.person.clock.sleep(Millis::seconds(10)).await;
    }

    /// The job as the remedy has it, in place of the one that waits: it runs where that was said.
    async fn helps(&self, remedy: &v1::Remedy, changed: &Value) {
        assert!(remedy.starts_now, "{remedy:?}");
        self.ends(changed).await;
        let runs = self.person.runs(changed).await;
        assert_eq!(runs["status"]["cluster"], remedy.cluster, "{remedy:?}");
        self.ends(changed).await;
    }
}

/// The remedy of that kind.
fn remedy<'a>(why: &'a v1::WhyResponse, change: &str) -> &'a v1::Remedy {
    let mut remedies = why.remedies.iter();
    let found = remedies.find(|remedy| remedy.change == change);
    found.unwrap_or_else(|| panic!("no {change} in {why:#?}"))
}

#[tokio::test(start_paused = true)]
async fn every_reason_comes_with_what_helps() {
    let mut scenes = start().await;
    Box::pin(of_the_job(&mut scenes)).await;
    Box::pin(of_its_places(&mut scenes)).await;
    Box::pin(of_closed_clusters(&mut scenes)).await;
    Box::pin(of_room(&mut scenes)).await;
    Box::pin(of_who_goes_first(&mut scenes)).await;
    Box::pin(of_quota_and_money(&mut scenes)).await;
    let missing = Reason::ALL
        .iter()
        .filter(|reason| !scenes.seen.contains(reason) && !ELSEWHERE.contains(reason));
    assert_eq!(missing.collect::<Vec<_>>(), [] as [&Reason; 0]);
    scenes.person.fleet.stop().await.expect("everybody stops");
}

/// What is wrong with the job itself, or with its past.
async fn of_the_job(scenes: &mut Scenes) {
    let asleep = long("team", "asleep", (1, 8), &only(&[HERE]));
    let asleep = with(asleep, &json!({"suspend": true}));
    let why = scenes.waits(&asleep, Reason::Suspended).await;
    assert_eq!(remedy(&why, "Resume").cluster, HERE);
    let woken = json!({"suspend": false});
    let woken = scenes
        .person
        .edit::<FederatedJobSpec>("team", "asleep", woken);
    woken.await.expect("let in");
    scenes.person.until_job("team", "asleep", "Running").await;
    scenes.ends(&asleep).await;

    // Its class comes later, and gets stricter once it is there.
    let late = with(
        long("team", "late", (1, 8), &only(&[HERE])),
        &json!({"workloadClass": "late"}),
    );
    let why = scenes.waits(&late, Reason::Misconfigured).await;
    assert!(why.reasons[0].message.contains("WorkloadClass"), "{why:#?}");
    let strict = object(
        "WorkloadClass",
        "late",
        json!({"priority": 1, "gpusPerJob": 4}),
    );
    scenes.person.make(&strict).await.expect("let in");
    let why = scenes.is_told(&late, Reason::Denied).await;
    assert!(
        why.reasons[0]
            .message
            .contains("class late allows 4 in one job"),
        "{why:#?}"
    );
    let milder = json!({"gpusPerJob": 8});
    let milder = scenes.person.edit::<WorkloadClassSpec>("", "late", milder);
    milder.await.expect("let in");
    scenes.person.until_job("team", "late", "Running").await;
    scenes.ends(&late).await;

    // One that fails rests before it is tried again.
    let fails = doing(job("team", "fails", (1, 8), "30s"), EXIT_CODE, "1");
    let fails = with(
        fails,
        &json!({"retry": {"maxRestarts": 3, "backOff": {"initial": "60s", "limit": "60s"}}}),
    );
    let why = scenes.waits(&fails, Reason::PendingEvaluation).await;
    let rests = why
        .reasons
        .iter()
        .any(|it| it.message.contains("tried again in"));
    assert!(rests, "{why:#?}");
    scenes.person.until_job("team", "fails", "Running").await;
    scenes.ends(&fails).await;
}

/// Nowhere that it may go can it be.
async fn of_its_places(scenes: &mut Scenes) {
    let never = long("team", "never", (3, 8), &only(&[HERE]));
    let why = scenes.waits(&never, Reason::NeverPlaceable).await;
    let fewer = remedy(&why, "FewerPods");
    assert_eq!(
        fewer.message,
        "run with 2 pods of worker instead of 3: starts now on here-a/pool"
    );
    scenes.helps(fewer, &of_pods(never, 2)).await;

    let other = |placement: Value| long("team", "other", (1, 8), &placement);
    let l4 = json!([{"name": "l4"}]);
    let picky = other(json!({"clusters": [HERE], "flavors": l4}));
    let why = scenes.waits(&picky, Reason::NoMatchingFlavor).await;
    let both = json!([{"name": "l4"}, {"name": "h100"}]);
    let picky = other(json!({"clusters": [HERE], "flavors": both}));
    scenes.helps(remedy(&why, "OtherFlavor"), &picky).await;

    let data = json!([{"uri": "s3://corpus", "regions": ["there"]}]);
    let near = |regions: &[&str]| json!({"data": data, "regions": {"anyOf": regions}});
    let why = scenes
        .waits(&other(near(&["here"])), Reason::DataNotInRegion)
        .await;
    scenes
        .helps(
            remedy(&why, "OtherRegion"),
            &other(near(&["here", "there"])),
        )
        .await;
}

/// Where it may go is closed to it.
async fn of_closed_clusters(scenes: &mut Scenes) {
    let other = |clusters: &[&str]| long("team", "other", (1, 8), &only(clusters));
    let both = other(&[HERE, THERE]);
    let cordon = async |person: &Person, closed: bool| {
        let spec = json!({"cordoned": closed});
        let edited = person.edit::<MemberClusterSpec>("", HERE, spec).await;
        edited.expect("let in");
    };
    cordon(&scenes.person, true).await;
    let why = scenes.waits(&other(&[HERE]), Reason::ClusterCordoned).await;
    scenes.helps(remedy(&why, "OtherCluster"), &both).await;
    cordon(&scenes.person, false).await;

    scenes.person.fleet.crash_agent(HERE).await.expect("it ran");
    // Until its silence is noticed.
    scenes.person.clock.sleep(Millis::seconds(60)).await;
    let why = scenes
        .waits(&other(&[HERE]), Reason::ClusterUnreachable)
        .await;
    scenes.helps(remedy(&why, "OtherCluster"), &both).await;
    scenes
        .person
        .fleet
        .start_agent(HERE)
        .await
        .expect("it starts");
    scenes.person.fleet.attached().await.expect("it attaches");
    scenes.person.clock.sleep(Millis::seconds(60)).await;

    let now = scenes.person.clock.wall();
    let (from, until) = (
        now.after(Millis::seconds(600)),
        now.after(Millis::seconds(7200)),
    );
    let block = json!({
        "tenant": "owner", "leadTime": "1m",
        "capacity": {"flavor": "h100", "hosts": 2, "region": "here"},
        "schedule": {"from": Time(from), "until": Time(until)},
    });
    let block = object("Reservation", "block", block);
    scenes.person.until_made(&block).await;
    // Until it begins.
    scenes.person.clock.sleep(Millis::seconds(700)).await;
    let why = scenes
        .waits(&other(&[HERE]), Reason::ReservedForOthers)
        .await;
    scenes.helps(remedy(&why, "OtherCluster"), &both).await;
    let gone = scenes.person.delete::<ReservationSpec>("", "block").await;
    gone.expect("let go");
}

/// Others are where it wants to go.
async fn of_room(scenes: &mut Scenes) {
    let one = long("team", "one", (1, 8), &only(&[HERE]));
    scenes.person.runs(&one).await;
    let two = long("team", "two", (2, 8), &only(&[HERE]));
    let why = scenes.waits(&two, Reason::WaitingForCapacity).await;
    scenes
        .helps(remedy(&why, "FewerPods"), &of_pods(two, 1))
        .await;
    scenes.ends(&one).await;

    // Three cards are free on each of two hosts.
    let apart = long("team", "apart", (2, 5), &only(&[HERE]));
    scenes.person.runs(&apart).await;
    let six = |clusters: &[&str]| long("team", "six", (1, 6), &only(clusters));
    let why = scenes.waits(&six(&[HERE]), Reason::Fragmented).await;
    scenes
        .helps(remedy(&why, "OtherCluster"), &six(&[HERE, THERE]))
        .await;
    scenes.ends(&apart).await;
}

/// Others go before it, or go for it.
async fn of_who_goes_first(scenes: &mut Scenes) {
    let quick = long("team", "quick", (1, 8), &only(&[HERE]));
    let slow = stubborn(long("team", "slow", (1, 8), &only(&[HERE])));
    for low in [&quick, &slow] {
        scenes.person.runs(low).await;
    }
    let top = with(
        long("team", "top", (2, 8), &only(&[HERE])),
        &json!({"workloadClass": "top"}),
    );
    let why = scenes.waits(&top, Reason::WaitingForPreemption).await;
    let said = &why.reasons[0].message;
    assert!(
        said.contains("team/quick, team/slow give up 16 GPUs"),
        "{said}"
    );
    // One host is free by now, and not for others.
    let has_gone = async || {
        let job = scenes.person.job("team", "quick").await;
        (job["status"]["phase"] == "Pending").then_some(())
    };
    scenes.person.until("one has gone", has_gone).await;
    let rival = |clusters: &[&str]| long("team", "rival", (1, 8), &only(clusters));
    let why = scenes
        .waits(&rival(&[HERE]), Reason::BehindHigherPriority)
        .await;
    scenes
        .helps(remedy(&why, "OtherCluster"), &rival(&[HERE, THERE]))
        .await;
    scenes.person.until_job("team", "top", "Running").await;
    for job in [&quick, &slow, &top] {
        scenes.ends(job).await;
    }

    // What was lent comes back.
    let guest = stubborn(long("guest", "guest", (2, 8), &only(&[HERE])));
    scenes.person.runs(&guest).await;
    let owner = long("owner", "owner", (1, 8), &only(&[HERE]));
    scenes.waits(&owner, Reason::WaitingForReclaim).await;
    scenes.person.until_job("owner", "owner", "Running").await;
    for job in [&guest, &owner] {
        scenes.ends(job).await;
    }
}

/// Its tenant may not.
async fn of_quota_and_money(scenes: &mut Scenes) {
    let first = long("capped", "first", (1, 8), &only(&[HERE]));
    scenes.person.runs(&first).await;
    let second = long("capped", "second", (1, 4), &only(&[HERE]));
    let why = scenes.waits(&second, Reason::WaitingForQuota).await;
    let raise = remedy(&why, "RaiseQuota");
    let words = "raise borrowingLimit of tenant capped for all GPUs from 0 to 4 GPUs";
    assert!(raise.message.starts_with(words), "{raise:?}");
    // One card less would not do.
    for (borrows, phase) in [(3, "Pending"), (4, "Running")] {
        let spec = quota("capped", 8, borrows)["spec"].clone();
        let edited = scenes.person.edit::<TenantQuotaSpec>("", "capped", spec);
        edited.await.expect("let in");
        scenes.person.clock.sleep(Millis::seconds(60)).await;
        scenes.person.until_job("capped", "second", phase).await;
    }
    scenes.ends(&first).await;
    scenes.ends(&second).await;

    let mut cores = long("capped", "cores", (1, 1), &only(&[HERE]));
    cores["spec"]["roles"][0]["resources"]["cpu"] = json!(16);
    let cpu = json!({"cpu": {"nominal": 8, "borrowingLimit": 0}});
    let edited = scenes.person.edit::<TenantQuotaSpec>("", "capped", cpu);
    edited.await.expect("let in");
    let why = scenes.waits(&cores, Reason::ExceedsQuota).await;
    let raise = remedy(&why, "RaiseQuota");
    let words = "raise nominal of tenant capped for CPU from 8 to 16";
    assert!(raise.message.starts_with(words), "{raise:?}");
    for (nominal, phase) in [(15, "Pending"), (16, "Running")] {
        let cpu = json!({"cpu": {"nominal": nominal, "borrowingLimit": 0}});
        let edited = scenes.person.edit::<TenantQuotaSpec>("", "capped", cpu);
        edited.await.expect("let in");
        scenes.person.clock.sleep(Millis::seconds(60)).await;
        scenes.person.until_job("capped", "cores", phase).await;
    }
    scenes.ends(&cores).await;

    // An hour of one card is more than it has.
    let spends = long("poor", "spends", (1, 1), &only(&[HERE]));
    scenes.person.runs(&spends).await;
    let budget = |monthly: &str| {
        let all = json!({"currency": "EUR", "monthly": monthly, "onExhausted": "BlockAll"});
        json!({"budget": all})
    };
    let edited = scenes.person.edit::<TenantSpec>("", "poor", budget("1.00"));
    edited.await.expect("let in");
    scenes.person.clock.sleep(Millis::seconds(3600)).await;
    let more = long("poor", "more", (1, 1), &only(&[HERE]));
    scenes.waits(&more, Reason::BudgetExhausted).await;
    let edited = scenes
        .person
        .edit::<TenantSpec>("", "poor", budget("1000.00"));
    edited.await.expect("let in");
    scenes.person.until_job("poor", "more", "Running").await;
    scenes.ends(&spends).await;
    scenes.ends(&more).await;
}

#[tokio::test(start_paused = true)]
async fn what_can_never_be_is_said_when_it_is_submitted() {
    let mut scenes = start().await;
    // The hub looks at the fleet now and then.
    scenes.person.clock.sleep(Millis::seconds(60)).await;
    // More than the tenant may ever hold is refused, with the numbers and a way out.
    let refused = scenes
        .person
        .make(&long("capped", "cap", (2, 8), &json!({})))
        .await;
    let refused = refused.expect_err("it may hold eight");
    let words = "the job needs 16 GPUs at one time; tenant capped may never hold more than 8";
    assert!(refused.contains(words), "{refused}");
    let small = with(
        long("team", "small", (2, 8), &json!({})),
        &json!({"workloadClass": "small"}),
    );
    let refused = scenes
        .person
        .make(&small)
        .await
        .expect_err("its class allows eight");
    assert!(
        refused.contains("class small allows 8 in one job"),
        "{refused}"
    );
    // Two copies of eight one after the other are no more than eight at a time.
    let copies = with(
        long("capped", "copies", (1, 8), &json!({})),
        &json!({"copies": 2}),
    );
    scenes.person.make(&copies).await.expect("let in");

    // More than the fleet could hold is let in, since a fleet grows; the answer says so.
    let submit = async |job: Value, dry_run: DryRun| {
        let submission = Submission {
            idempotency_key: name_of(&job).1.to_owned(),
            job,
            dry_run,
            plan_token: String::new(),
        };
        let answer = scenes.person.client.submit(submission).await;
        answer.expect("let in").warnings
    };
    let wide = long("team", "wide", (1, 16), &json!({}));
    for dry_run in [DryRun::Server, DryRun::No] {
        let warned = submit(wide.clone(), dry_run).await.join("; ");
        let words = "NeverPlaceable: no pool could hold it; here-a/pool: ";
        assert!(warned.contains(words), "{warned}");
    }
    let mut again = wide.clone();
    again["metadata"]["name"] = json!("again");
    let plan = scenes
        .person
        .client
        .plan(&again)
        .await
        .expect("it is planned");
    assert_eq!(plan.verdict(), v1::Verdict::Never);
    let fits = submit(long("team", "fits", (2, 8), &json!({})), DryRun::Server).await;
    assert_eq!(fits, [] as [String; 0]);
    scenes.is_told(&wide, Reason::NeverPlaceable).await;
    scenes.person.fleet.stop().await.expect("everybody stops");
}
