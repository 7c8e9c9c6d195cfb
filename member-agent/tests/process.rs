//! The agent as a process, without a hub.
//!
//! Owns the promises of the binary: clear words for a bad configuration, probes on loopback, a
//! clean end on a signal, one agent per state folder, and a simulated cluster that is kept.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Output, Stdio};

const INVENTORY: &str = "pools: [{name: l4, flavor: l4, nodes: [{name: n0, \
    resources: {gpus: 1, cpuMilli: 8000, memoryMib: 32768}}]}]";

fn command(folder: &Path) -> Command {
    let inventory = folder.join("inventory.yaml");
    std::fs::write(&inventory, INVENTORY).expect("writable");
    let mut command = Command::new(env!("CARGO_BIN_EXE_meridian-agent"));
    command
        .args([
            "--cluster",
            "eu-west",
            "--hub",
            "127.0.0.1:9",
            "--insecure-hub",
            "--log",
            "json",
        ])
        .arg("--state-dir")
        .arg(folder.join("state"))
        .arg("--inventory")
        .arg(inventory)
        .stderr(Stdio::piped());
    command
}

/// A started agent and where its probes are.
struct Running {
    child: Child,
    lines: BufReader<ChildStderr>,
    probes: String,
}

fn start(mut command: Command) -> Running {
    let mut child = command.spawn().expect("starts");
    let mut lines = BufReader::new(child.stderr.take().expect("piped"));
    match ready(&mut lines) {
        Ok(probes) => Running {
            child,
            lines,
            probes,
        },
        Err(seen) => {
            let status = child.wait();
            panic!("it ended before it was ready, {status:?}:\n{seen}");
        }
    }
}

/// The address of the probes from the line that says it is ready; else everything it said.
fn ready(lines: &mut BufReader<ChildStderr>) -> Result<String, String> {
    let mut seen = String::new();
    loop {
        let mut line = String::new();
        if !matches!(lines.read_line(&mut line), Ok(1..)) {
            return Err(seen);
        }
        seen += &line;
        let json: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
        if json["fields"]["message"] == "meridian-agent is ready" {
            return json["fields"]["metrics"]
                .as_str()
                .map(str::to_owned)
                .ok_or(seen);
        }
    }
}

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("listens");
    let request = format!("GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("writes");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answers");
    answer
}

fn terminate(child: &Child) {
    let pid = child.id().to_string();
    let status = Command::new("kill")
        .args(["-TERM", &pid])
        .status()
        .expect("there is a kill");
    assert!(status.success());
}

#[test]
fn it_serves_probes_and_ends_well_on_a_signal() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut agent = start(command(folder.path()));
    assert!(get(&agent.probes, "/healthz").starts_with("HTTP/1.1 200"));
    assert!(get(&agent.probes, "/readyz").starts_with("HTTP/1.1 503"));
    let metrics = get(&agent.probes, "/metrics");
    assert!(metrics.contains("meridian_agent_attached 0"), "{metrics}");
    assert!(metrics.contains("meridian_agent_orders_refused_total{reason=\"StaleTerm\"} 0"));
    terminate(&agent.child);
    let status = agent.child.wait().expect("ends");
    let mut rest = String::new();
    agent.lines.read_to_string(&mut rest).expect("readable");
    assert!(status.success(), "{status}: {rest}");
    assert!(!rest.contains("\"level\":\"ERROR\""), "{rest}");
}

#[test]
fn two_agents_do_not_share_a_state_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut first = start(command(folder.path()));
    let second = command(folder.path()).output().expect("runs");
    assert!(!second.status.success());
    assert!(
        words(&second).contains("is used by another agent"),
        "{}",
        words(&second)
    );
    terminate(&first.child);
    assert!(first.child.wait().expect("ends").success());
}

#[test]
fn a_damaged_cluster_is_not_silently_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let kept = || {
        let mut command = command(folder.path());
        command
            .arg("--simulated-state")
            .arg(folder.path().join("cluster.json"));
        command
    };
    for _ in 0..2 {
        let mut agent = start(kept());
        agent.child.kill().expect("it runs");
        agent.child.wait().expect("ends");
    }
    std::fs::write(folder.path().join("cluster.json"), "{").expect("writable");
    let damaged = kept().output().expect("runs");
    assert!(!damaged.status.success());
    assert!(
        words(&damaged).contains("holds no simulated cluster"),
        "{}",
        words(&damaged)
    );
}

#[test]
fn a_bad_configuration_is_told_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let told = |change: &dyn Fn(&mut Command)| {
        let mut command = command(folder.path());
        change(&mut command);
        let output = command.output().expect("runs");
        assert!(!output.status.success());
        words(&output)
    };
    let open = told(&|command| {
        command.args(["--metrics-listen", "0.0.0.0:0"]);
    });
    assert!(open.contains("loopback"), "{open}");
    let config = folder.path().join("agent.yaml");
    std::fs::write(&config, "clusterr: eu-west\n").expect("writable");
    let typo = told(&|command| {
        command.arg("--config").arg(&config);
    });
    assert!(typo.contains("clusterr"), "{typo}");
    let lone = told(&|command| {
        command.args(["--simulated-history", "history.jsonl"]);
    });
    assert!(lone.contains("--simulated-state FILE"), "{lone}");
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
