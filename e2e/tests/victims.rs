//! Who makes room for others and who does not: the one that has saved its work before the one that
//! has not, none that is protected, and nobody again and again.
//!
//! Owns those promises with a real hub and agents, in one process on simulated time, judged by what
//! ran in the clusters and by what was told. Never looks inside a hub.

use std::collections::BTreeMap;

use meridian_agent::simulated::{IGNORES_SIGTERM, SAVES_EVERY, Truth};
use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::quantity::Time;
use meridian_api::units::{Millis, UnixMillis};
use meridian_client::{ListOptions, Resource};
use meridian_e2e::fleet::person::{Person, doing, job, with};
use meridian_e2e::fleet::{FleetOptions, FleetRegion, object};
use meridian_runtime::{Clock, Random};
use serde_json::{Value, json};

/// A Tuesday, half an hour before `nights` opens.
const EVENING: UnixMillis = UnixMillis(1_699_997_400_000);
const MINUTE: Millis = Millis::seconds(60);

/// One cluster of so many hosts of eight cards.
async fn start(hosts: u32, objects: Vec<Value>) -> Person {
    let clock = Clock::simulated(EVENING);
    let region = FleetRegion::of_one("here-a", hosts, 8);
    let options = FleetOptions::small(&clock, vec![region], objects);
    Person::at(options).await.expect("it starts")
}

fn class(name: &str, priority: i32, fields: &Value) -> Value {
    let class = object("WorkloadClass", name, json!({"priority": priority}));
    with(class, fields)
}

fn of_class(class: &str, job: Value) -> Value {
    with(job, &json!({"workloadClass": class}))
}

async fn pods_of(person: &Person, name: &str) -> (Value, Value) {
    let job = person.job("team", name).await;
    let gang = &job["status"]["gangs"][0];
    (gang["epoch"].clone(), gang["pods"].clone())
}

/// An event that somebody made room: when, who, and for whom.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Hit {
    at: UnixMillis,
    victim: String,
    by: String,
}

async fn hits(person: &Person) -> Vec<Hit> {
    let options = ListOptions::default();
    let events = person.client.list(&Resource::EVENTS, None, &options).await;
    let events = events.expect("a hub answers").items;
    let made_room = events.iter().filter(|event| event["reason"] == "Preempted");
    let hit = |event: &Value| {
        let about = &event["involvedObject"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let words = text(&event["message"]);
        let (_, by) = words.split_once("makes room for ").expect("says for whom");
        let (by, _) = by.split_once(", because").expect("says why");
        let at: Time = serde_json::from_value(event["firstTimestamp"].clone()).expect("says when");
        Hit {
            at: at.0,
            victim: format!("{}/{}", text(&about["namespace"]), text(&about["name"])),
            by: by.to_owned(),
        }
    };
    let mut hits: Vec<Hit> = made_room.map(hit).collect();
    hits.sort();
    hits
}

/// Two jobs that are alike but for when they saved: `fresh` a moment ago, the other long ago.
async fn the_fresh_one_goes(fresh: &str) {
    let objects = vec![
        class("top", 9, &json!({})),
        class(
            "train",
            1,
            &json!({"preemption": "CheckpointThenRequeue", "notice": "60s"}),
        ),
        object("Tenant", "team", json!({})),
    ];
    let mut person = start(2, objects).await;
    for name in ["one", "two"] {
        let every = if name == fresh { "5m" } else { "50m" };
        let train = of_class("train", job("team", name, (1, 8), "100h"));
        let saved_at = json!({"checkpoint": {"uri": "s3://models/train", "every": every}});
        person
            .runs(&with(doing(train, SAVES_EVERY, every), &saved_at))
            .await;
    }
    person.clock.sleep(Millis::seconds(98 * 60)).await;
    let saved = async |name: &str| {
        let job = person.job("team", name).await;
        let at = job["status"]["checkpoint"]["lastTime"].clone();
        let at: Time = serde_json::from_value(at).expect("it has saved, and its job says so");
        person.clock.wall().since(at.0)
    };
    let stale = if fresh == "one" { "two" } else { "one" };
    assert!(saved(fresh).await < Millis::seconds(6 * 60));
    assert!(saved(stale).await > Millis::seconds(40 * 60));

    // Who asks first hears who would go.
    let top = of_class("top", job("team", "top", (1, 8), "1h"));
    let plan = person.client.plan(&top).await.expect("it is planned");
    let said = &plan.reasons.first().expect("it has no place yet").message;
    assert!(said.contains(&format!("team/{fresh} gang 0")), "{said}");
    let before = pods_of(&person, stale).await;
    person.runs(&top).await;
    let victims = hits(&person).await;
    let victims: Vec<&str> = victims.iter().map(|hit| hit.victim.as_str()).collect();
    assert_eq!(victims, [format!("team/{fresh}")]);
    assert_eq!(pods_of(&person, stale).await, before, "the other goes on");
    person.fleet.stop().await.expect("everybody stops");
}

#[tokio::test(start_paused = true)]
async fn who_has_just_saved_its_work_goes_before_who_has_not() {
    // Whichever came first.
    the_fresh_one_goes("one").await;
    the_fresh_one_goes("two").await;
}

/// One host of what never goes, one of what keeps its floor and never goes, two of what goes only
/// at night: nothing is free.
async fn a_full_evening() -> Person {
    let nights = json!({
        "timeZone": "Europe/Dublin", "open": [{"days": ["Tue"], "start": "22:00", "end": "06:00"}],
    });
    let floor = json!({"preemption": "ShrinkToFloor", "floorPercent": 60, "notice": "30s"});
    let long = json!({
        "preemption": "CheckpointThenRequeue", "notice": "60s", "preemptionWindows": ["nights"],
    });
    let objects = vec![
        object("TimeWindow", "nights", nights),
        class("top", 100, &json!({})),
        class("online", 10, &json!({"preemption": "Never"})),
        class("degradable", 9, &floor),
        class("long", 3, &long),
        object("Tenant", "team", json!({})),
    ];
    let person = start(4, objects).await;
    let for_ever = |class, name, shape| of_class(class, job("team", name, shape, "100h"));
    person.runs(&for_ever("online", "online", (1, 8))).await;
    // Five pods: three are sixty percent.
    let elastic = json!({"elasticity": {"role": "worker", "min": 1, "max": 5}});
    let degradable = for_ever("degradable", "degradable", (5, 1));
    person.runs(&with(degradable, &elastic)).await;
    person.runs(&for_ever("online", "rest", (1, 3))).await;
    person.runs(&for_ever("long", "long", (2, 8))).await;
    person
}

#[tokio::test(start_paused = true)]
async fn some_never_go_some_keep_their_floor_and_some_go_at_night_only() {
    let mut person = a_full_evening().await;
    let top = |name, shape| of_class("top", job("team", name, shape, "100h"));
    let protected = async |person: &Person| {
        [
            pods_of(person, "online").await,
            pods_of(person, "rest").await,
        ]
    };
    let untouched = protected(&person).await;
    let long = pods_of(&person, "long").await;

    // Two of five make room, and not one more.
    person.runs(&top("two", (1, 2))).await;
    let floor = pods_of(&person, "degradable").await;
    assert_eq!(floor.1, 3);
    person.make(&top("one", (1, 1))).await.expect("let in");
    person.until_job("team", "one", "Pending").await;
    person.clock.sleep(MINUTE).await;
    assert_eq!(pods_of(&person, "degradable").await, floor);
    let gone = person.delete::<FederatedJobSpec>("team", "one").await;
    gone.expect("let go");
    person.make(&top("large", (2, 8))).await.expect("let in");
    person.until_job("team", "large", "Pending").await;
    let opens = EVENING.after(Millis::seconds(30 * 60));
    let left = opens.since(person.clock.wall());
    assert!(left > MINUTE, "the window is closed so far: {left}");
    person.clock.sleep(Millis(left.0 - MINUTE.0)).await;
    assert_eq!(pods_of(&person, "long").await, long, "not by day");
    let large = person.job("team", "large").await;
    assert_eq!(large["status"]["phase"], "Pending");

    // At night it goes, and the others still do not.
    person.until_job("team", "large", "Running").await;
    let (now, after) = (person.clock.wall(), person.clock.wall().since(opens));
    assert!(now > opens && after < Millis::seconds(180), "{after}");
    assert_eq!(pods_of(&person, "degradable").await, floor);
    assert_eq!(protected(&person).await, untouched);
    let mut victims = hits(&person).await;
    victims.retain(|hit| hit.victim != "team/degradable");
    let victims = victims
        .iter()
        .map(|hit| (hit.victim.as_str(), hit.at >= opens));
    assert_eq!(victims.collect::<Vec<_>>(), [("team/long", true)]);
    person.fleet.stop().await.expect("everybody stops");
}

#[tokio::test(start_paused = true)]
async fn what_came_free_goes_to_the_one_it_was_freed_for() {
    let notice = json!({"notice": "5m", "preemption": "Requeue"});
    let objects = vec![
        class("top", 9, &json!({})),
        class("low", 1, &notice),
        object("Tenant", "team", json!({})),
    ];
    let mut person = start(2, objects).await;
    // One goes at once, the other not before it is killed.
    let grace = json!({"checkpoint": {
        "uri": "s3://models/low", "onPreempt": {"grace": "4m"},
    }});
    person
        .runs(&of_class("low", job("team", "quick", (1, 8), "100h")))
        .await;
    let slow = of_class("low", job("team", "slow", (1, 8), "100h"));
    person
        .runs(&with(doing(slow, IGNORES_SIGTERM, "true"), &grace))
        .await;
    let top = of_class("top", job("team", "top", (2, 8), "20m"));
    person.make(&top).await.expect("let in");
    let cluster = person.fleet.cluster("here-a").expect("it is there").clone();
    let ended = || {
        let history = cluster.history(person.clock.wall()).into_iter();
        history.filter(|event| event.what == Truth::Ended).count()
    };
    person
        .until("one has gone", async || (ended() == 1).then_some(()))
        .await;

    // Hosts are free one after the other, and everybody else would take one: as high, and lower.
    let rivals = [("rival", "top"), ("small", "low"), ("smaller", "low")];
    for (at, (name, class)) in rivals.into_iter().enumerate() {
        let gpus = [8, 8, 1][at];
        let rival = of_class(class, job("team", name, (1, gpus), "10m"));
        person.make(&rival).await.expect("let in");
        person.until_job("team", name, "Pending").await;
    }
    let waits = person.job("team", "rival").await;
    assert_eq!(ended(), 1, "the other has not gone yet");
    let told = &waits["status"]["blockers"][0];
    assert_eq!(told["reason"], "BehindHigherPriority", "{told:#}");
    person.until_job("team", "top", "Running").await;
    let history = cluster.history(person.clock.wall()).into_iter();
    let starts = history.filter(|event| event.what == Truth::Started);
    let names: Vec<String> = starts.map(|event| event.pod).collect();
    assert!(
        names[2..].iter().all(|pod| pod.starts_with("top-")),
        "{names:?}"
    );
    // Who went waits again, and would be first.
    for name in ["quick", "slow"] {
        let gone = person.delete::<FederatedJobSpec>("team", name).await;
        gone.expect("let go");
    }
    for (name, _) in rivals {
        person.until_job("team", name, "Succeeded").await;
    }
    person.fleet.stop().await.expect("everybody stops");
}

/// Steps in which somebody comes or goes.
const STEPS: u64 = 160;
/// Rounds that a hub has decided at the end, at least.
const ROUNDS: u64 = 1_000;
/// As long as who was made to go may not take that back.
const COOL_DOWN: Millis = Millis::seconds(30 * 60);

/// Two tenants with half of the fleet each, who want more than all of it.
struct Crowd {
    person: Person,
    random: Random,
    living: BTreeMap<String, String>,
    made: u64,
}

impl Crowd {
    async fn start() -> Self {
        let quota = |tenant: &str| {
            let rows = json!([{"nominal": 16, "borrowingLimit": 16}]);
            object(
                "TenantQuota",
                tenant,
                json!({"tenant": tenant, "resources": rows}),
            )
        };
        let objects = vec![
            class("low", 1, &json!({"notice": "30s"})),
            class(
                "elastic",
                3,
                &json!({"preemption": "ShrinkThenRequeue", "notice": "30s"}),
            ),
            class("high", 5, &json!({"notice": "30s"})),
            object("Tenant", "left", json!({})),
            object("Tenant", "right", json!({})),
            quota("left"),
            quota("right"),
        ];
        Self {
            person: start(4, objects).await,
            random: Random::seeded(7),
            living: BTreeMap::new(),
            made: 0,
        }
    }

    fn below(&self, most: usize) -> usize {
        let most = u64::try_from(most).expect("small");
        usize::try_from(self.random.below(most)).expect("small")
    }

    async fn comes(&mut self) {
        self.made += 1;
        let tenant = ["left", "right"][self.below(2)];
        let class = ["low", "elastic", "high"][self.below(3)];
        let shape = [(1, 4), (1, 8), (2, 8), (4, 2)][self.below(4)];
        let name = format!("job-{}", self.made);
        let mut job = of_class(class, job(tenant, &name, shape, "1000h"));
        if class == "elastic" && shape.0 > 1 {
            let elastic = json!({"role": "worker", "min": 1, "max": shape.0});
            job = with(job, &json!({"elasticity": elastic}));
        }
        self.person.make(&job).await.expect("let in");
        self.living.insert(name, tenant.to_owned());
    }

    async fn goes(&mut self) {
        let nth = self.below(self.living.len());
        let (name, tenant) = self.living.iter().nth(nth).expect("below their number");
        let (name, tenant) = (name.clone(), tenant.clone());
        let gone = self.person.delete::<FederatedJobSpec>(&tenant, &name).await;
        gone.expect("let go");
        self.living.remove(&name);
    }
}

/// How many rounds were decided.
fn rounds(person: &Person) -> u64 {
    person.counted("meridian_decide_seconds_count")
}

#[tokio::test(start_paused = true)]
async fn nobody_takes_turns_in_a_thousand_rounds() {
    let mut crowd = Crowd::start().await;
    for _ in 0..STEPS {
        // About twice as many as there is room for.
        if crowd.living.len() < 12 || crowd.below(2) == 0 && crowd.living.len() < 18 {
            crowd.comes().await;
        } else {
            crowd.goes().await;
        }
        let seconds = 5 + crowd.below(90);
        let pause = Millis::seconds(u64::try_from(seconds).expect("small"));
        crowd.person.clock.sleep(pause).await;
    }
    let Crowd { mut person, .. } = crowd;
    // Once nobody comes or goes, whoever is to go has gone when nobody cools down any more.
    person.clock.sleep(Millis(2 * COOL_DOWN.0)).await;
    let gone = (hits(&person).await.len(), person.truths(Truth::Ended));
    let churned = rounds(&person);
    while rounds(&person) < ROUNDS.max(churned + ROUNDS / 4) {
        person.clock.sleep(MINUTE).await;
    }
    let hits = hits(&person).await;
    assert_eq!((hits.len(), person.truths(Truth::Ended)), gone);

    let unsound = person.counted("meridian_plan_violations_total");
    assert_eq!(unsound, 0, "plans were thrown away");
    assert!(hits.len() > 20, "they do contend: {hits:#?}");
    for (at, hit) in hits.iter().enumerate() {
        let before = &hits[..at];
        let since = |other: &&Hit| hit.at.since(other.at);
        let turns = before
            .iter()
            .filter(|other| other.victim == hit.by && other.by == hit.victim);
        let back = turns.filter(|other| since(other) < COOL_DOWN).count();
        assert_eq!(back, 0, "{hit:?} takes back what was taken: {before:#?}");
        let same = before.iter().filter(|other| other.victim == hit.victim);
        let hour = same
            .clone()
            .filter(|other| since(other) < Millis::seconds(3600));
        assert!(hour.count() < 3, "{hit:?} once too often: {before:#?}");
        let again = same.filter(|other| other.by == hit.by).count();
        assert_eq!(again, 0, "{hit:?} twice for the same: {before:#?}");
    }
    person.fleet.stop().await.expect("everybody stops");
}
