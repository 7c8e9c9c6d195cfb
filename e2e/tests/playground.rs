//! The playground's promises: one seed, one summary; totals that add up; a server that stops.
//!
//! Owns what `make demo` is held to. Each run is a process of its own: two simulations in one
//! process would share what must not be shared.

use std::process::{Command, Output};

use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::units::Millis;
use meridian_client::{Change, Client, ClientOptions, ListOptions, Resource, WatchTarget};
use meridian_e2e::ports::free_address;
use meridian_e2e::process::{Harness, ProcessSpec};
use serde_json::Value;

/// A run that an unoptimized build does in seconds: some six simulated hours.
const JOBS: &str = "120";
/// So many failures a week that these hours see a few tens of them.
const FAULTS: &str = "900";
/// The server starts within seconds; a busy machine needs longer.
const START: Millis = Millis::seconds(60);

fn play(seed: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meridian-playground"));
    command.args(["--seed", seed, "--jobs", JOBS, "--faults", FAULTS]);
    command.args(["--no-progress", "-o", "json"]);
    let done = command.output().expect("it runs");
    let log = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "seed {seed}: {}\n{log}", done.status);
    assert!(
        !log.contains("ERROR"),
        "seed {seed} logged an error:\n{log}"
    );
    done
}

fn number(summary: &Value, path: &str) -> u64 {
    let number = summary.pointer(path).and_then(Value::as_u64);
    number.unwrap_or_else(|| panic!("{path} is no number in {summary:#}"))
}

#[test]
fn one_seed_gives_one_summary_and_its_totals_add_up() {
    let (first, again, other) = (play("7"), play("7"), play("8"));
    assert!(first.stdout == again.stdout, "two runs of one seed differ");
    assert!(first.stdout != other.stdout, "the seed changes nothing");
    let summary: Value = serde_json::from_slice(&first.stdout).expect("JSON");
    let jobs = |field: &str| number(&summary, &format!("/jobs/{field}"));
    assert_eq!(jobs("submitted").to_string(), JOBS);
    let ends = jobs("succeeded") + jobs("failed") + jobs("running") + jobs("waiting");
    assert_eq!(jobs("submitted"), ends);
    assert!(jobs("succeeded") > 0 && jobs("failed") == 0, "{summary:#}");
    // Nodes died under jobs, whose work was lost and which were placed again.
    assert!(
        number(&summary, "/lostWork/nodeFailures") > 0,
        "{summary:#}"
    );
    assert!(number(&summary, "/lostWork/attempts") > 0, "{summary:#}");
    assert!(
        number(&summary, "/hub/placements") > jobs("placed"),
        "{summary:#}"
    );
    let list = |path: &str| {
        summary
            .pointer(path)
            .and_then(Value::as_array)
            .expect("a list")
    };
    assert_eq!(list("/invariants/violations").len(), 0, "{summary:#}");
    assert!(number(&summary, "/invariants/placementsChecked") >= jobs("placed"));
    let reasons = list("/waitingReasons").iter();
    let explained: u64 = reasons.map(|reason| number(reason, "/jobs")).sum();
    assert_eq!(explained, jobs("waiting"));
    for groups in ["/classes", "/tenants"] {
        let sum: u64 = list(groups)
            .iter()
            .map(|group| number(group, "/jobs/submitted"))
            .sum();
        assert_eq!(sum, jobs("submitted"), "{groups}");
    }
}

#[tokio::test]
async fn a_served_playground_answers_and_stops_when_asked() {
    let (harness, at) = (Harness::new(), free_address());
    let spec = ProcessSpec::new("playground", env!("CARGO_BIN_EXE_meridian-playground"));
    let spec = spec.args(["--serve", "--scale", "30", "--listen", &at.to_string()]);
    let mut playground = harness.start(spec).expect("it starts");
    let told = playground
        .line("kubectl --server", START)
        .await
        .expect("it says what to try");
    assert!(told.contains(&at.to_string()), "{told}");
    let ready = playground
        .answers(&format!("http://{at}/readyz"), START)
        .await;
    ready.expect("it is ready");

    let client = Client::new(ClientOptions::new(format!("http://{at}"))).expect("a client");
    let kind = Resource::of::<FederatedJobSpec>();
    let target = WatchTarget {
        resource: kind,
        namespace: None,
        options: ListOptions::default(),
    };
    // The first job of the table comes after 100 simulated seconds.
    let first = async {
        let mut changes = client.watch(target).await.expect("a list");
        loop {
            match changes.next().await.expect("a change") {
                Change::Set(job) => return job,
                Change::Gone(_) | Change::Synced => {}
            }
        }
    };
    let job = harness.clock().timeout(START, first).await.expect("a job");
    assert_eq!(job["metadata"]["name"], "philly-w0-00000");

    let status = playground.terminate(START).await.expect("it stops");
    assert!(status.success(), "{status}");
}

#[tokio::test]
async fn a_taken_port_is_said_clearly() {
    let harness = Harness::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = taken.local_addr().expect("an address").to_string();
    let spec = ProcessSpec::new("playground", env!("CARGO_BIN_EXE_meridian-playground"));
    let spec = spec.args(["--serve", "--listen", at.as_str()]);
    let output = harness.output(&spec, START).await.expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains(&format!("cannot listen on {at}")), "{said}");
    assert!(said.contains("in use"), "{said}");
}
