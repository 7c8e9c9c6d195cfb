//! A job with a `finishBy`: a miss is said before it happens, with numbers, wherever one looks.
//!
//! Owns that promise, in one process on simulated time. Never looks inside a hub.

use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::quantity::Time;
use meridian_api::units::{Millis, UnixMillis};
use meridian_e2e::fleet::person::{Person, job, with};
use meridian_e2e::fleet::{FleetOptions, FleetRegion, object};
use meridian_runtime::Clock;
use serde_json::{Value, json};

fn condition(job: &Value) -> Value {
    let conditions = job["status"]["conditions"].as_array().into_iter().flatten();
    let mut found = conditions.filter(|condition| condition["type"] == "FinishesInTime");
    found.next().cloned().unwrap_or_default()
}

/// How often the hub that runs has told of the miss.
async fn foreseen(person: &Person) -> usize {
    let told = person.told("nlp", "nightly").await;
    let foreseen = told.iter().filter(|(reason, _)| reason == "MissForeseen");
    foreseen.count()
}

/// The same in the answers of `why` and `queue`.
async fn said_by_why_and_queue(person: &mut Person, finish_by: Time) {
    let why = person
        .client
        .why("nlp", "nightly")
        .await
        .expect("an answer");
    let in_why = why.late.expect("why says it");
    assert_eq!(
        (in_why.finish_by_ms, in_why.is_certain),
        (finish_by.0.0, false)
    );
    let queue = person.client.queue(10, "").await.expect("an answer");
    let late_by = |late: &meridian_client::v1::Late| late.done_ms - late.finish_by_ms;
    let in_queue = queue.entries.iter().find_map(|entry| entry.late.as_ref());
    let in_queue = in_queue.map(late_by).expect("the queue says it");
    assert!(in_queue > 0, "{in_queue}");
}

#[tokio::test(start_paused = true)]
async fn a_miss_is_foreseen_told_and_taken_back_when_room_comes_early() {
    let clock = Clock::simulated(UnixMillis(1_700_000_000_000));
    let objects = vec![
        object("WorkloadClass", "batch", json!({"priority": 1})),
        object("Tenant", "nlp", json!({})),
    ];
    let regions = vec![FleetRegion::of_one("here-a", 1, 8)];
    let options = FleetOptions::small(&clock, regions, objects);
    let mut person = Person::at(options).await.expect("it starts");
    let long = job("nlp", "long", (1, 8), "2h");
    let long = with(long, &json!({"maxRuntime": "2h"}));
    person.make(&long).await.expect("let in");
    person.until_job("nlp", "long", "Running").await;

    // It takes an hour, there is room in two, and it should be done in two and a half.
    let finish_by = Time(clock.wall().after(Millis::seconds(9_000)));
    let nightly = job("nlp", "nightly", (1, 8), "40m");
    let nightly = with(nightly, &json!({"maxRuntime": "1h", "finishBy": finish_by}));
    person.make(&nightly).await.expect("let in");
    let is = |status: &'static str| move |job: &Value| condition(job)["status"] == status;
    let late = person
        .until_is::<FederatedJobSpec>(("nlp", "nightly"), is("False"))
        .await;
    assert_eq!(late["status"]["phase"], "Pending");
    let said = condition(&late);
    let message = said["message"].as_str().expect("words");
    assert_eq!(said["reason"], "MissForeseen", "{said}");
    let words = "at the earliest and take 1h: done ";
    assert!(
        message.starts_with("may start in ") && message.contains(words),
        "{message}"
    );
    assert!(clock.wall() < finish_by.0, "long before it is missed");
    said_by_why_and_queue(&mut person, finish_by).await;
    assert_eq!(foreseen(&person).await, 1);
    // The hub that comes next says the same, and does not tell it again.
    person.fleet.crash_hub(0).await.expect("it ran");
    person.fleet.start_hub(0).await.expect("it starts");
    person.fleet.led().await.expect("it leads");
    person.client = person.fleet.client(0).expect("a client");
    person
        .until_is::<FederatedJobSpec>(("nlp", "nightly"), is("False"))
        .await;
    clock.sleep(Millis::seconds(60)).await;
    assert_eq!(foreseen(&person).await, 0);

    // The other is taken away: there is time again, and in the end it was in time.
    person
        .delete::<FederatedJobSpec>("nlp", "long")
        .await
        .expect("deleted");
    person
        .until_is::<FederatedJobSpec>(("nlp", "nightly"), is("True"))
        .await;
    let done = person.until_job("nlp", "nightly", "Succeeded").await;
    assert_eq!(condition(&done)["reason"], "FinishedInTime");
    person.fleet.stop().await.expect("everybody stops");
}
