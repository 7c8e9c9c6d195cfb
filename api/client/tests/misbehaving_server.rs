//! The client against a server that misbehaves on purpose: refuses, breaks off, forgets, is late.
//!
//! Owns a scripted HTTP server over in-memory pipes. Time is simulated, so nothing really waits.

use std::sync::{Arc, Mutex};

use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::units::{Millis, UnixMillis};
use meridian_client::{
    Change, Client, ClientError, ClientOptions, Deletion, DryRun, FailureKind, Form, ListOptions,
    Outcome, Resource, WatchTarget, Watcher,
};
use meridian_runtime::network::{Connection, Network, Pipes};
use meridian_runtime::{Clock, Random, Tasks};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const ADDRESS: &str = "hub:7080";

/// What the server does with one request.
enum Act {
    /// Answers with a status and a body, then closes.
    Answer(u16, String),
    /// Closes without a word.
    BreakOff,
    /// Answers half and closes.
    BreakHalfway,
    /// Never answers.
    Hang,
}

fn ok(body: &Value) -> Act {
    Act::Answer(200, body.to_string())
}

fn lines(events: &[Value]) -> Act {
    let lines: Vec<String> = events.iter().map(Value::to_string).collect();
    Act::Answer(200, lines.join("\n") + "\n")
}

fn status(code: u16, reason: &str) -> Act {
    let body = json!({
        "kind": "Status", "code": code, "reason": reason, "message": format!("it is {reason}")
    });
    Act::Answer(code, body.to_string())
}

type Seen = Arc<Mutex<Vec<String>>>;

/// A server that plays `script`, one act a request, and then refuses connections by breaking off.
async fn play(script: Vec<Act>) -> (Client, Seen, Tasks) {
    let network = Pipes::default();
    let seen = Seen::default();
    let tasks = Tasks::new();
    let mut listener = network.listen(ADDRESS).await.expect("a free name");
    let record = Arc::clone(&seen);
    tasks.spawn_finite("server", async move {
        let mut script = script.into_iter();
        let mut held = Vec::new();
        while let Ok(connection) = listener.accept().await {
            let act = script.next().unwrap_or(Act::BreakOff);
            held.extend(serve(connection, act, &record).await);
        }
    });
    (client(network), seen, tasks)
}

fn client(network: Pipes) -> Client {
    let mut options = ClientOptions::new(format!("http://{ADDRESS}"));
    options.network = Arc::new(network);
    options.clock = Clock::simulated(UnixMillis(1_000));
    options.random = Random::seeded(7);
    Client::new(options).expect("an address")
}

/// Plays one act; a connection that hangs is handed back so that it stays open.
async fn serve(mut connection: Connection, act: Act, seen: &Seen) -> Option<Connection> {
    let request = read_request(&mut connection).await?;
    seen.lock().expect("not poisoned").push(request);
    match act {
        Act::Hang => return Some(connection),
        Act::BreakOff => {}
        Act::BreakHalfway => {
            let half = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"half\":";
            connection.write_all(half).await.ok()?;
        }
        Act::Answer(code, body) => {
            let head = format!("HTTP/1.1 {code} X\r\nconnection: close\r\n\r\n");
            connection.write_all(head.as_bytes()).await.ok()?;
            connection.write_all(body.as_bytes()).await.ok()?;
        }
    }
    connection.shutdown().await.ok()?;
    None
}

/// `METHOD path` and the body of one request.
async fn read_request(connection: &mut Connection) -> Option<String> {
    let mut text = Vec::new();
    loop {
        let all = String::from_utf8_lossy(&text).into_owned();
        if let Some((head, body)) = all.split_once("\r\n\r\n") {
            let length = head
                .to_lowercase()
                .lines()
                .find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
            if body.len() >= length.unwrap_or(0) {
                let first = head.lines().next()?.trim_end_matches(" HTTP/1.1");
                return Some(format!("{first} {body}").trim_end().to_owned());
            }
        }
        let mut chunk = [0; 4096];
        match connection.read(&mut chunk).await.ok()? {
            0 => return None,
            read => text.extend_from_slice(&chunk[..read]),
        }
    }
}

fn seen(record: &Seen) -> Vec<String> {
    record.lock().expect("not poisoned").clone()
}

fn jobs() -> Resource {
    Resource::of::<FederatedJobSpec>()
}

fn job(name: &str, version: &str) -> Value {
    json!({
        "apiVersion": "meridian.dev/v1alpha1", "kind": "FederatedJob",
        "metadata": {
            "name": name, "namespace": "nlp", "uid": format!("uid-{name}"),
            "resourceVersion": version
        },
        "spec": {"workloadClass": "batch-short"}
    })
}

fn list(items: &[Value], version: &str, resume: &str) -> Value {
    json!({"kind": "FederatedJobList", "items": items,
        "metadata": {"resourceVersion": version, "continue": resume}})
}

#[tokio::test(start_paused = true)]
async fn no_hub_is_told_apart_from_a_lost_one() {
    let error = client(Pipes::default())
        .get(&jobs(), "nlp", "a", Form::Objects)
        .await
        .expect_err("nobody listens");
    let ClientError::Unreachable { server, .. } = error else {
        panic!("{error:?}");
    };
    assert_eq!(server, ADDRESS);
}

#[tokio::test(start_paused = true)]
async fn a_read_is_asked_twice_and_a_write_once() {
    let (client, record, _tasks) = play(vec![
        Act::BreakOff,
        ok(&job("a", "1")),
        Act::BreakHalfway,
        Act::BreakOff,
        Act::BreakOff,
    ])
    .await;
    let object = client.get(&jobs(), "nlp", "a", Form::Objects).await;
    assert_eq!(object.expect("the second answer")["metadata"]["name"], "a");
    let error = client.get(&jobs(), "nlp", "a", Form::Objects).await;
    assert!(matches!(error, Err(ClientError::Lost { .. })), "{error:?}");
    assert_eq!(seen(&record).len(), 4);
    let error = client
        .create(&jobs(), "nlp", &job("a", ""), DryRun::No)
        .await;
    assert!(matches!(error, Err(ClientError::Lost { .. })), "{error:?}");
    assert_eq!(seen(&record).len(), 5, "a write is never repeated");
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_is_given_up_on() {
    let (client, _, _tasks) = play(vec![Act::Hang]).await;
    let error = client.get(&jobs(), "nlp", "a", Form::Objects).await;
    let Err(ClientError::TimedOut { what, limit }) = error else {
        panic!("{error:?}");
    };
    assert_eq!(limit, Millis::seconds(30));
    assert!(what.starts_with("GET /apis/meridian.dev"), "{what}");
}

#[tokio::test(start_paused = true)]
async fn a_list_whose_pages_expire_is_begun_again() {
    let (client, record, _tasks) = play(vec![
        ok(&list(&[job("a", "1")], "5", "page 2")),
        status(410, "Expired"),
        ok(&list(&[job("a", "1")], "9", "p2")),
        ok(&list(&[job("b", "2")], "9", "")),
    ])
    .await;
    let listing = client
        .list(&jobs(), None, &ListOptions::default())
        .await
        .expect("the second attempt");
    assert_eq!(listing.items.len(), 2);
    assert_eq!(listing.resource_version, "9");
    let seen = seen(&record);
    assert!(seen[1].contains("continue=page%202"), "{}", seen[1]);
    assert!(!seen[2].contains("continue"), "{}", seen[2]);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_hub_is_said_so() {
    let (client, _, _tasks) = play(vec![
        Act::Answer(200, "<html>hello</html>".into()),
        Act::Answer(502, "<html>bad gateway</html>".into()),
        status(404, "NotFound"),
    ])
    .await;
    let mut errors = Vec::new();
    for _ in 0..3 {
        let got = client.get(&jobs(), "nlp", "a", Form::Objects).await;
        errors.push(got.expect_err("none of them is an object"));
    }
    assert!(matches!(errors[0], ClientError::Protocol(_)));
    assert!(errors[1].is(FailureKind::Unavailable));
    assert!(errors[2].is(FailureKind::NotFound));
}

fn event(kind: &str, object: &Value) -> Value {
    json!({"type": kind, "object": object})
}

async fn watch(client: &Client) -> Watcher {
    let target = WatchTarget {
        resource: jobs(),
        namespace: Some("nlp".into()),
        options: ListOptions::default(),
    };
    client.watch(target).await.expect("listed")
}

/// `+a` for set, `-a` for gone, `=` for synced.
async fn told(watcher: &mut Watcher, count: usize) -> String {
    let mut text = Vec::new();
    let name = |object: &Value| {
        object["metadata"]["name"]
            .as_str()
            .unwrap_or("?")
            .to_owned()
    };
    for _ in 0..count {
        text.push(match watcher.next().await.expect("a change") {
            Change::Set(object) => format!("+{}", name(&object)),
            Change::Gone(object) => format!("-{}", name(&object)),
            Change::Synced => "=".to_owned(),
        });
    }
    text.concat()
}

#[tokio::test(start_paused = true)]
async fn a_watch_resumes_where_it_was_and_relists_when_that_is_gone() {
    let bookmark = json!({"kind": "FederatedJob", "metadata": {"resourceVersion": "8"}});
    let gone = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
    let (client, record, _tasks) = play(vec![
        ok(&list(&[job("a", "3"), job("b", "4")], "5", "")),
        lines(&[event("MODIFIED", &job("a", "6"))]),
        Act::BreakOff,
        status(503, "ServiceUnavailable"),
        lines(&[event("ADDED", &job("c", "7")), event("BOOKMARK", &bookmark)]),
        lines(&[event("DELETED", &job("c", "9")), event("ERROR", &gone)]),
        ok(&list(&[job("b", "4"), job("d", "10")], "11", "")),
        status(410, "Expired"),
        ok(&list(&[job("d", "10")], "12", "")),
        lines(&[event("MODIFIED", &job("d", "13"))]),
    ])
    .await;
    let mut watcher = watch(&client).await;
    assert_eq!(told(&mut watcher, 3).await, "+a+b=");
    assert_eq!(told(&mut watcher, 3).await, "+a+c-c");
    assert_eq!(told(&mut watcher, 4).await, "-a+b+d=", "a vanished unseen");
    assert_eq!(told(&mut watcher, 4).await, "-b+d=+d");
    let from: Vec<String> = seen(&record)
        .iter()
        .filter_map(|line| Some(line.split("resourceVersion=").nth(1)?.to_owned()))
        .collect();
    assert_eq!(from, ["5", "6", "6", "6", "8", "11", "12"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_gives_up_when_the_hub_stays_away() {
    let (client, _, _tasks) = play(vec![ok(&list(&[], "5", ""))]).await;
    let mut watcher = watch(&client).await;
    assert_eq!(told(&mut watcher, 1).await, "=");
    let error = watcher.next().await.expect_err("a minute without a hub");
    assert!(matches!(error, ClientError::Lost { .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_opened_again() {
    let (client, record, _tasks) = play(vec![
        ok(&list(&[], "5", "")),
        Act::Hang,
        lines(&[event("ADDED", &job("a", "6"))]),
    ])
    .await;
    let mut watcher = watch(&client).await;
    assert_eq!(told(&mut watcher, 2).await, "=+a");
    assert_eq!(seen(&record).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_when_the_hub_refuses() {
    let (client, _, _tasks) = play(vec![ok(&list(&[], "5", "")), status(403, "Forbidden")]).await;
    let mut watcher = watch(&client).await;
    assert_eq!(told(&mut watcher, 1).await, "=");
    let error = watcher.next().await.expect_err("not allowed");
    assert!(error.is(FailureKind::NotAllowed), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn apply_goes_on_when_another_was_faster() {
    let mut stored = job("a", "4");
    stored["spec"]["workloadClass"] = json!("batch-long");
    let (client, record, _tasks) = play(vec![
        status(404, "NotFound"),
        status(409, "AlreadyExists"),
        ok(&stored),
        ok(&job("a", "5")),
    ])
    .await;
    let applied = client
        .apply(&jobs(), "nlp", &job("a", "4"), DryRun::No)
        .await
        .expect("patched");
    assert_eq!(applied.outcome, Outcome::Configured);
    let seen = seen(&record);
    let verbs: Vec<&str> = seen
        .iter()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(verbs, ["GET", "POST", "GET", "PATCH"]);
    assert!(
        seen[3].contains("\"workloadClass\":\"batch-short\""),
        "{}",
        seen[3]
    );
    assert!(seen[3].contains("fieldValidation=Strict"), "{}", seen[3]);
}

#[tokio::test(start_paused = true)]
async fn a_patch_that_changes_nothing_is_unchanged() {
    let (client, _, _tasks) = play(vec![ok(&job("a", "4")), ok(&job("a", "4"))]).await;
    let mut document = job("a", "4");
    document["spec"]["priority"] = json!(0);
    let applied = client.apply(&jobs(), "nlp", &document, DryRun::No).await;
    assert_eq!(applied.expect("sent").outcome, Outcome::Unchanged);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_is_done_or_begun() {
    let mut going = job("a", "6");
    going["metadata"]["deletionTimestamp"] = json!("2026-11-26T02:14:07Z");
    let (client, record, _tasks) = play(vec![
        ok(&json!({"kind": "Status", "status": "Success"})),
        ok(&going),
    ])
    .await;
    let first = client
        .delete(&jobs(), "nlp", "a", Some("u"), DryRun::No)
        .await;
    assert_eq!(first, Ok(Deletion::Gone));
    let second = client
        .delete(&jobs(), "nlp", "a", None, DryRun::Server)
        .await;
    assert_eq!(second, Ok(Deletion::Started(going)));
    let seen = seen(&record);
    assert!(
        seen[0].contains("\"preconditions\":{\"uid\":\"u\"}"),
        "{}",
        seen[0]
    );
    assert!(seen[1].contains("dryRun=All"), "{}", seen[1]);
}
