//! Logs against a scripted hub, on simulated time.
//!
//! Owns the promises of a log stream: the lines of what was really done, in order, until the pod
//! ends or nobody reads; and that every request is answered. Never looks inside the agent.

mod common;

use common::{DEADLINE, Does, Line, LogCall, World, four_hosts, gang, run};
use meridian_agent::simulated::Profile;
use meridian_api::units::Millis;
use meridian_proto::v1::{self, GangStep, hub_message};

/// More than an agent sends at once.
const MANY: u8 = 80;

async fn ask(hub: &Line, ticket: u8, index: u32, query: v1::LogQuery) {
    let request = v1::LogRequest {
        ticket: vec![ticket; 16].into(),
        gang: Some(gang(index).into()),
        epoch: 1,
        query: Some(query),
    };
    hub.say(hub_message::Body::LogRequest(request)).await;
}

async fn next(world: &World, call: &mut LogCall) -> Option<v1::LogChunk> {
    let heard = world.clock.timeout(DEADLINE, call.incoming.message()).await;
    heard.expect("in time").expect("the connection holds")
}

/// Everything that the agent sends until it ends.
async fn all(world: &World, call: &mut LogCall, ticket: u8) -> (String, Option<v1::ErrorDetail>) {
    let first = next(world, call).await.expect("a first message");
    assert_eq!(first.ticket.as_ref(), [ticket; 16]);
    let (mut text, mut error) = (Vec::new(), None);
    while let Some(chunk) = next(world, call).await {
        assert!(error.is_none(), "an error is the last word");
        text.extend_from_slice(&chunk.text);
        error = chunk.error;
    }
    (
        String::from_utf8(text).expect("simulated pods write text"),
        error,
    )
}

fn query() -> v1::LogQuery {
    v1::LogQuery {
        role: "worker".to_owned(),
        ..v1::LogQuery::default()
    }
}

#[tokio::test(start_paused = true)]
async fn lines_come_as_they_are_written_until_the_pod_has_ended() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![run(gang(0), 1, 2, Does::RunAMinute)]).await;
    hub.until_step(gang(0), 1, GangStep::Running).await;
    let follow = v1::LogQuery {
        follow: true,
        rank: 1,
        ..query()
    };
    ask(&hub, 1, 0, follow).await;
    let mut call = world.log_call().await;
    let (text, error) = all(&world, &mut call, 1).await;
    assert_eq!(error, None);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("started on ") && lines[0].ends_with(" as worker 1"));
    let steps = ["step 1", "step 2", "step 3", "step 4", "step 5", "step 6"];
    assert_eq!(lines[1..7], steps);
    assert_eq!(lines[7..], ["done after 6 steps"]);
    // The pod has ended, its lines are there until the gang is forgotten.
    let last = v1::LogQuery {
        tail_lines: 2,
        has_tail: true,
        timestamps: true,
        ..query()
    };
    ask(&hub, 2, 0, last).await;
    let mut call = world.log_call().await;
    let (text, _) = all(&world, &mut call, 2).await;
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("2023-11-14T22:") && lines[0].ends_with("Z step 6"));
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_goes_ends_its_request_and_nothing_else() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![run(gang(0), 1, 1, Does::RunForever)]).await;
    hub.until_step(gang(0), 1, GangStep::Running).await;
    for ticket in 1..=MANY {
        let follow = v1::LogQuery {
            follow: true,
            ..query()
        };
        ask(&hub, ticket, 0, follow).await;
        let mut call = world.log_call().await;
        assert!(next(&world, &mut call).await.is_some(), "the ticket");
        let text = next(&world, &mut call).await.expect("text");
        assert_eq!(text.error, None, "request {ticket}");
        call.end();
        hub.listen_for(Millis::seconds(1)).await;
    }
    assert!(hub.is_at(gang(0), 1, GangStep::Running));
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_is_said() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![run(gang(0), 1, 1, Does::RunForever)]).await;
    hub.until_step(gang(0), 1, GangStep::Running).await;
    let previous = v1::LogQuery {
        previous: true,
        ..query()
    };
    let cases = [(7, query(), "E5030"), (0, previous, "E1102")];
    for (ticket, (index, query, code)) in (1..).zip(cases) {
        ask(&hub, ticket, index, query).await;
        let mut call = world.log_call().await;
        let (text, error) = all(&world, &mut call, ticket).await;
        assert_eq!(
            (text.as_str(), error.expect("said").code.as_str()),
            ("", code)
        );
    }
    agent.shutdown().await;
}
