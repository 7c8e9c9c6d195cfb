//! Bad input, on every way in: each gets a clear answer, the hub goes on, and nothing that was
//! accepted is lost.
//!
//! Owns that promise for documents, calls, agents and bytes of any kind.

use std::collections::BTreeSet;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use meridian_api::units::Millis;
use meridian_client::v1;
use meridian_client::v1::agent_service_client::AgentServiceClient;
use meridian_client::v1::federation_service_client::FederationServiceClient;
use meridian_e2e::deployment::{Deployment, DeploymentPlan, JobBuilder, LONG, NAMESPACE};
use meridian_runtime::Random;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Code;

/// Past every limit on the size of a request.
const HUGE: usize = 5 * 1024 * 1024;
/// Past every limit on nesting.
const DEPTH: usize = 500;
/// A listener hangs up on what is not its protocol within this.
const HANG_UP: Millis = Millis::seconds(30);

/// The hub is ready, takes a job and runs it.
async fn the_hub_goes_on(fleet: &mut Deployment) {
    let url = fleet.hubs[0].url();
    let ready = fleet.hubs[0]
        .process
        .answers(&format!("{url}/readyz"), LONG)
        .await;
    ready.expect("the hub is ready");
    fleet
        .submitter()
        .acknowledged(vec![JobBuilder::new("after-all").build()])
        .await;
    let waited = fleet
        .meridian(["wait", "job/after-all", "--timeout", "60s"])
        .await;
    waited.succeeded();
    assert_eq!(fleet.errors(&[]), [] as [String; 0]);
}

fn deep() -> String {
    format!("{}1{}", "{\"a\":".repeat(DEPTH), "}".repeat(DEPTH))
}

/// Aliases that would grow to millions of values.
const BOMB: &str = "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\n\
    c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n\
    e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\n\
    g: [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n";

/// A field of a job, a wrong value as JSON, and what is said of it.
type WrongField = (&'static str, &'static str, &'static [&'static str]);

const WRONG_FIELDS: &[WrongField] = &[
    (
        "/kind",
        r#""FederatedJobb""#,
        &["error[E1004]", "FederatedJobb"],
    ),
    (
        "/spec/maxRuntime",
        r#""3 parsecs""#,
        &["error[E1102]", "spec.maxRuntime", "\"3 parsecs\"", "1h30m"],
    ),
    (
        "/spec/roles/0/resources",
        r#"{"memory": "16Gx"}"#,
        &["error[E1102]", "spec.roles[0].resources.memory", "16Gx"],
    ),
    (
        "/spec/roles/0/gpus",
        "0.5",
        &["error[E1102]", "spec.roles[0].gpus", "0.5"],
    ),
    (
        "/spec/roles/0/replicas",
        "-1",
        &["error[E1102]", "spec.roles[0].replicas", "-1"],
    ),
    (
        "/spec/gangs",
        r#"[{"name": "a", "roles": ["nothere"]}]"#,
        &["error[E", "spec.gangs[0]", "nothere"],
    ),
    (
        "/metadata/name",
        r#""No Good!""#,
        &["error[E1102]", "metadata.name"],
    ),
    (
        "/spec/workloadClas",
        r#""batch-short""#,
        &[
            "error[E1101]",
            "spec.workloadClas",
            "did you mean \"workloadClass\"?",
        ],
    ),
];

/// `meridian submit` and `meridian apply` of a text fail with these words.
async fn both_commands_say(fleet: &Deployment, name: &str, text: &str, says: &[&str]) {
    let path = fleet
        .file(&format!("{name}.yaml"), text)
        .display()
        .to_string();
    for verb in ["submit", "apply"] {
        let ran = fleet.meridian([verb, "-f", &path]).await;
        assert!(matches!(ran.code, Some(1 | 2)), "{ran}");
        ran.saying(says);
    }
}

#[tokio::test]
async fn the_command_says_what_is_wrong_where_and_what_to_do() {
    let mut fleet = Deployment::start(DeploymentPlan::default()).await;
    for (index, (pointer, value, says)) in WRONG_FIELDS.iter().enumerate() {
        let value = serde_json::from_str(value).expect("the table has JSON");
        let text = JobBuilder::new("wrong").with(pointer, value).text();
        both_commands_say(&fleet, &format!("field-{index}"), &text, says).await;
    }
    let note = json!({"x": "y".repeat(HUGE)});
    let huge = JobBuilder::new("huge")
        .with("/metadata/annotations", note)
        .text();
    let deep = JobBuilder::new("deep")
        .text()
        .replace("\"batch-short\"", &deep());
    let texts: [(&str, &str, &[&str]); 5] = [
        (
            "malformed",
            "a: [1\nb: 2",
            &["error[E1001]", "malformed.yaml", "line 2", "fix:"],
        ),
        ("empty", "", &["error: no documents found", "fix:"]),
        ("huge", &huge, &["error[E1002]", "huge.yaml", "fix:"]),
        ("deep", &deep, &["error[E1003]", "deep.yaml", "64 levels"]),
        ("bomb", BOMB, &["error[E1001]", "bomb.yaml", "budget"]),
    ];
    for (name, text, says) in texts {
        both_commands_say(&fleet, name, text, says).await;
    }
    the_hub_goes_on(&mut fleet).await;
}

#[tokio::test]
async fn a_gang_that_can_never_start_is_told_so() {
    let mut fleet = Deployment::start(DeploymentPlan::default()).await;
    let cases = [
        ("wide", JobBuilder::new("wide").pods(1, 64)),
        ("many", JobBuilder::new("many").pods(30, 8)),
    ];
    for (name, job) in cases {
        let path = fleet
            .file(&format!("{name}.yaml"), &job.text())
            .display()
            .to_string();
        let planned = fleet
            .meridian(["plan", "-f", &path, "--detailed-exitcode"])
            .await;
        planned.ended_with(22).saying(&["NeverPlaceable"]);
        let submitted = fleet.meridian(["submit", "-f", &path]).await;
        if submitted.code == Some(0) {
            let told = async || {
                let ran = fleet.meridian(["why", name]).await;
                ran.out.contains("NeverPlaceable").then_some(ran)
            };
            let told = fleet.until("the reason is told", LONG, told).await;
            told.succeeded().saying(&["h100", "even when empty"]);
        } else {
            submitted.ended_with(1).saying(&["error[E22"]);
        }
    }
    the_hub_goes_on(&mut fleet).await;
}

type Http = HttpClient<HttpConnector, Full<Bytes>>;

/// Status code and body.
async fn send(
    http: &Http,
    request: http::request::Builder,
    body: impl Into<Bytes>,
) -> (u16, String) {
    let request = request.body(Full::new(body.into())).expect("a request");
    let answer = http.request(request).await.expect("an answer");
    let code = answer.status().as_u16();
    let body = answer
        .into_body()
        .collect()
        .await
        .expect("a whole answer")
        .to_bytes();
    (code, String::from_utf8_lossy(&body).into_owned())
}

/// Method, path below the version's, content type, body, then status code and what is said.
type HttpRow = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    u16,
    &'static str,
);

const JOBS: &str = "/namespaces/nlp/federatedjobs";
const JSON: &str = "application/json";
const YAML: &str = "application/yaml";

const HTTP: &[HttpRow] = &[
    ("POST", "{jobs}", JSON, "{\"a\":", 400, "line 1 column 5"),
    ("POST", "{jobs}", YAML, "a: [1\nb: 2", 400, "line 2"),
    ("POST", "{jobs}", JSON, "{deep}", 400, "64 levels"),
    ("POST", "{jobs}", JSON, "{huge}", 413, "1048576 bytes"),
    ("POST", "{jobs}", JSON, "[]", 400, "must be an object"),
    (
        "POST",
        "{jobs}",
        JSON,
        "\u{0}\u{1}\u{2}",
        400,
        "not valid JSON",
    ),
    (
        "POST",
        "{jobs}",
        "text/plain",
        "hi",
        415,
        "application/json",
    ),
    ("POST", "/nosuch", JSON, "{}", 404, "could not find"),
    ("DELETE", "", JSON, "", 405, "DELETE"),
    ("GET", "{jobs}?limit=banana", JSON, "", 400, "limit"),
    (
        "GET",
        "{jobs}?labelSelector=%28",
        JSON,
        "",
        400,
        "label selector",
    ),
    ("GET", "{jobs}?continue=garbage", JSON, "", 400, "continue"),
    (
        "GET",
        "{jobs}?watch=1&resourceVersion=x",
        JSON,
        "",
        400,
        "resourceVersion",
    ),
    ("GET", "{jobs}/No%20Good", JSON, "", 404, "could not find"),
    ("PATCH", "{jobs}/x", JSON, "{}", 415, "merge-patch"),
];

#[tokio::test]
async fn http_requests_that_make_no_sense_get_a_status_with_what_and_where() {
    let mut fleet = Deployment::start(DeploymentPlan::default()).await;
    let base = format!("{}/apis/meridian.dev/v1alpha1", fleet.hubs[0].url());
    let http: Http = HttpClient::builder(TokioExecutor::new()).build_http();
    for (method, path, content, body, code, says) in HTTP {
        let url = format!("{base}{}", path.replace("{jobs}", JOBS));
        let body = match *body {
            "{deep}" => deep(),
            "{huge}" => format!("{{\"a\": \"{}\"}}", "x".repeat(HUGE)),
            body => body.to_owned(),
        };
        let request = http::Request::builder().method(*method).uri(&url);
        let request = request.header("content-type", *content);
        let (answered, text) = send(&http, request, body).await;
        assert_eq!(answered, *code, "{method} {url}: {text}");
        assert!(text.contains(says), "{method} {url}: {text}");
    }
    the_hub_goes_on(&mut fleet).await;
}

fn submission(job: &str, key: &str) -> v1::SubmitRequest {
    v1::SubmitRequest {
        job: job.to_owned().into(),
        idempotency_key: key.to_owned(),
        dry_run: false,
        traceparent: "nonsense".to_owned(),
        plan_token: String::new(),
    }
}

#[tokio::test]
async fn grpc_calls_that_make_no_sense_get_a_status() {
    let mut fleet = Deployment::start(DeploymentPlan::default()).await;
    let calls = FederationServiceClient::connect(fleet.hubs[0].url()).await;
    let mut calls = calls.expect("connected");
    let deep = JobBuilder::new("deep")
        .text()
        .replace("\"batch-short\"", &deep());
    let valid = JobBuilder::new("valid").text();
    let cases = [
        (submission("{", "a"), Code::InvalidArgument, "line 1"),
        (submission("", "b"), Code::InvalidArgument, ""),
        (submission(&deep, "c"), Code::InvalidArgument, "64 levels"),
        (
            submission(&valid, &"k".repeat(129)),
            Code::InvalidArgument,
            "128",
        ),
        (
            submission("{\"kind\": \"Region\"}", "d"),
            Code::InvalidArgument,
            "FederatedJob",
        ),
    ];
    for (request, code, says) in cases {
        let refused = calls.submit(request).await.expect_err("refused");
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(says), "{refused}");
    }
    let huge = calls.submit(submission(&"x".repeat(HUGE), "e")).await;
    let huge = huge.expect_err("too large");
    let refusals = [
        Code::OutOfRange,
        Code::ResourceExhausted,
        Code::InvalidArgument,
    ];
    assert!(refusals.contains(&huge.code()), "{huge}");
    let (namespace, name) = (String::new(), "x/y/z".to_owned());
    let nothing = calls.why(v1::WhyRequest { namespace, name }).await;
    assert_eq!(nothing.expect_err("no such job").code(), Code::NotFound);
    the_hub_goes_on(&mut fleet).await;
}

#[tokio::test]
async fn one_key_is_one_job_however_often_it_comes() {
    let mut fleet = Deployment::start(DeploymentPlan::default()).await;
    let calls = FederationServiceClient::connect(fleet.hubs[0].url()).await;
    let mut calls = calls.expect("connected");
    let valid = JobBuilder::new("valid").text();
    let first = calls
        .submit(submission(&valid, "key"))
        .await
        .expect("accepted")
        .into_inner();
    let again = calls
        .submit(submission(&valid, "key"))
        .await
        .expect("accepted")
        .into_inner();
    assert_eq!((first.uid, true), (again.uid, again.replayed));
    let other = submission(&JobBuilder::new("another").text(), "key");
    let reused = calls.submit(other).await.expect_err("another job");
    let refusals = [Code::Aborted, Code::FailedPrecondition];
    assert!(refusals.contains(&reused.code()), "{reused}");
    assert!(reused.message().contains("key"), "{reused}");
    the_hub_goes_on(&mut fleet).await;
    assert_eq!(fleet.jobs().await.expect("the hub lists").len(), 2);
}

/// A Hello that is right but for what a test changes.
fn hello(cluster: &str) -> v1::Hello {
    v1::Hello {
        cluster: cluster.to_owned(),
        version: "9.9.9".to_owned(),
        protocol_min: 1,
        protocol_max: 1,
        credential: vec![7; 32].into(),
        digest: Some(v1::Digest {
            sequence: 1,
            full: true,
            ..v1::Digest::default()
        }),
        ..v1::Hello::default()
    }
}

async fn attach(fleet: &Deployment, first: Option<v1::agent_message::Body>) -> tonic::Status {
    let url = format!("http://{}", fleet.hubs[0].agents);
    let mut agents = AgentServiceClient::connect(url).await.expect("connected");
    let message = v1::AgentMessage { body: first };
    let attached = agents.attach(futures::stream::iter([message])).await;
    attached.expect_err("the hub refuses")
}

#[tokio::test]
async fn agents_that_do_not_belong_are_told_why() {
    use v1::agent_message::Body;
    let mut fleet = Deployment::start(DeploymentPlan::default()).await;
    let future = v1::Hello {
        protocol_min: 98,
        protocol_max: 99,
        ..hello("eu-a")
    };
    let short = v1::Hello {
        credential: vec![7; 3].into(),
        ..hello("eu-a")
    };
    let beat = Body::Heartbeat(v1::Heartbeat::default());
    let cases = [
        (
            Some(Body::Hello(future)),
            Code::FailedPrecondition,
            "98 to 99, this hub 1 to 2",
        ),
        (
            Some(Body::Hello(hello("nowhere"))),
            Code::NotFound,
            "no MemberCluster \"nowhere\"",
        ),
        (
            Some(Body::Hello(hello("../x"))),
            Code::NotFound,
            "no MemberCluster",
        ),
        (
            Some(Body::Hello(hello("eu-a"))),
            Code::PermissionDenied,
            "bound to another agent",
        ),
        (
            Some(Body::Hello(short)),
            Code::InvalidArgument,
            "3 bytes, expected 32",
        ),
        (Some(beat), Code::InvalidArgument, "Hello"),
        (None, Code::InvalidArgument, "Hello"),
    ];
    for (first, code, says) in cases {
        let refused = attach(&fleet, first).await;
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(says), "{refused}");
    }

    // Real agents: one that claims the name of another, one whose cluster nobody declared.
    let mut thief = fleet.agent("thief", "eu-a", 1);
    let said = thief.process.line("E5001", LONG).await.expect("it is told");
    assert!(
        said.contains("bound to another agent") && said.contains("state folder"),
        "{said}"
    );
    let mut stranger = fleet.agent("stranger", "nowhere", 1);
    let said = stranger
        .process
        .line("E3001", LONG)
        .await
        .expect("it is told");
    assert!(said.contains("meridian cluster add nowhere"), "{said}");
    assert_eq!(thief.evidence().starts() + stranger.evidence().starts(), 0);
    the_hub_goes_on(&mut fleet).await;
    // The job ran at the agent that was first.
    assert_eq!(fleet.agents[0].evidence().starts(), 1);
    assert_eq!(thief.evidence().starts(), 0);
}

#[tokio::test]
async fn bytes_of_no_protocol_are_hung_up_on() {
    let mut fleet = Deployment::start(DeploymentPlan::default()).await;
    let random = Random::seeded(69);
    for address in [fleet.hubs[0].users, fleet.hubs[0].agents] {
        for beginning in [
            "",
            "GET / HTTP/9.9\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "\u{16}\u{3}\u{1}",
        ] {
            let mut garbage = beginning.as_bytes().to_vec();
            let mut noise = vec![0; 4096];
            random.fill(&mut noise);
            garbage.extend(noise);
            let mut stream = TcpStream::connect(address).await.expect("connected");
            // The hub may hang up before it has read everything.
            let _ = stream.write_all(&garbage).await;
            let _ = stream.shutdown().await;
            let mut answer = Vec::new();
            let read = stream.read_to_end(&mut answer);
            let read = fleet.harness().clock().timeout(HANG_UP, read).await;
            assert!(read.is_ok(), "{address} goes on listening to noise");
        }
    }
    the_hub_goes_on(&mut fleet).await;
}

/// The text with one to four random faults.
fn broken(text: &str, random: &Random) -> Vec<u8> {
    const TOKENS: [&str; 12] = [
        "{", "}", "[", "]", ":", "\"", "null", "-1e999", "\\u0000", "&a *a", "\n---\n", "\u{FEFF}",
    ];
    let mut bytes = text.as_bytes().to_vec();
    let below = |bound: usize| usize::try_from(random.below(bound as u64)).expect("small");
    for _ in 0..=below(3) {
        let at = below(bytes.len());
        match below(5) {
            0 => bytes[at] ^= 1 << below(8),
            1 => drop(bytes.drain(at..(at + below(40)).min(bytes.len()))),
            2 => drop(bytes.splice(at..at, TOKENS[below(TOKENS.len())].bytes())),
            3 => bytes.truncate(at.max(1)),
            _ => {
                let copy = bytes[at..(at + below(60)).min(bytes.len())].to_vec();
                drop(bytes.splice(at..at, copy));
            }
        }
    }
    bytes
}

#[tokio::test]
async fn a_thousand_malformed_documents_get_an_answer_each_and_lose_nothing() {
    let mut fleet = Deployment::start(DeploymentPlan::default()).await;
    let url = format!(
        "{}/apis/meridian.dev/v1alpha1/namespaces/{NAMESPACE}/federatedjobs?fieldValidation=Strict",
        fleet.hubs[0].url()
    );
    let http: Http = HttpClient::builder(TokioExecutor::new()).build_http();
    let random = Random::seeded(69);
    let (mut accepted, mut refused) = (BTreeSet::new(), 0);
    for index in 0..1000 {
        let text = JobBuilder::new(&format!("job-{index}")).runs("10ms").text();
        let body = broken(&text, &random);
        let content = if index % 2 == 0 {
            "application/json"
        } else {
            "application/yaml"
        };
        let request = http::Request::builder()
            .method("POST")
            .uri(&url)
            .header("content-type", content);
        let shown = String::from_utf8_lossy(&body).into_owned();
        let (code, answer) = send(&http, request, body).await;
        let answer: Value = serde_json::from_str(&answer).expect("an answer is JSON");
        if code == 201 {
            accepted.insert(answer["metadata"]["name"].to_string());
            continue;
        }
        refused += 1;
        assert!((400..500).contains(&code), "{code} {answer} for:\n{shown}");
        let told = answer["kind"] == "Status"
            && answer["message"]
                .as_str()
                .is_some_and(|words| words.len() > 10);
        assert!(told, "{answer} for:\n{shown}");
    }
    println!("{refused} refused, {} accepted", accepted.len());
    assert!(refused > 500, "too few are broken: {refused}");
    let stored = fleet.jobs().await.expect("the hub lists");
    let stored: BTreeSet<_> = stored
        .iter()
        .map(|job| job["metadata"]["name"].to_string())
        .collect();
    assert_eq!(stored, accepted, "stored and accepted differ");
    the_hub_goes_on(&mut fleet).await;
}
