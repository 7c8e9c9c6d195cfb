//! The verbs that ask no hub: `simulate` and `replay`, on files of a folder.
//!
//! Owns the promises that scripts rely on.

use std::path::Path;
use std::process::Command;

use meridian_api::ids::Revision;
use meridian_policies::model::{Plan, Snapshot, Unplaced, WaitingIx};
use meridian_sim::record;
use serde_json::Value;

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Runs the command in `folder`, with no hub anywhere.
fn run(folder: &Path, args: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_meridian"))
        .current_dir(folder)
        .env("MERIDIAN_SERVER", "http://127.0.0.1:1")
        .args(args)
        .output()
        .expect("the command runs");
    Ran {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

const POLICIES: &str = "
apiVersion: meridian.dev/v1alpha1
kind: WorkloadClass
metadata: {name: batch}
spec: {priority: 1}
---
apiVersion: meridian.dev/v1alpha1
kind: Tenant
metadata: {name: nlp}
spec: {}
---
apiVersion: meridian.dev/v1alpha1
kind: TenantQuota
metadata: {name: nlp}
spec: {tenant: nlp, resources: [{nominal: 16}]}
";

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let put = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("written");
    };
    std::fs::create_dir(folder.path().join("policies")).expect("made");
    put("policies/all.yaml", POLICIES);
    put(
        "trace.csv",
        "submit,tenant,class,gpus,duration\n0,nlp,batch,8,100\n10,nlp,batch,8,100\n",
    );
    put(
        "fleet.csv",
        "cluster,pool,flavor,hosts,gpus\nc,p,h100,1,8\n",
    );
    folder
}

const SIMULATE: [&str; 5] = ["simulate", "--policies", "policies", "--trace", "trace.csv"];

#[test]
fn a_trace_is_simulated_without_a_hub() {
    let folder = folder();
    let with_fleet = [&SIMULATE[..], &["--fleet", "fleet.csv"]].concat();
    let text = run(folder.path(), &with_fleet);
    assert_eq!((text.code, text.err.as_str()), (Some(0), ""));
    let first = "2 jobs on 8 GPUs over 3m20s: 2 completed, 0 never started, 0 losses, \
                 0 preemptions\n";
    assert!(text.out.starts_with(first), "{}", text.out);
    let json = run(
        folder.path(),
        &[&with_fleet[..], &["-o", "json", "--alone"]].concat(),
    );
    let value: Value = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!(value["wait"]["maxMs"], 90_000);
    assert_eq!(value["utilisation"], 1.0);
    // Its quota is more than the fleet has: alone it has the same one host.
    assert_eq!(value["sharing"][0]["privateGpus"], 8);
}

#[test]
fn stored_pools_are_a_fleet() {
    let folder = folder();
    let pool = "apiVersion: meridian.dev/v1alpha1\nkind: GPUPool\nmetadata: {name: p}\n\
                spec: {cluster: c, flavor: h100, gpusPerNode: 4}\n\
                status: {gpus: {total: 16, allocated: 0, free: 16, unhealthy: 0}}\n";
    std::fs::write(folder.path().join("policies/pool.yaml"), pool).expect("written");
    let ran = run(folder.path(), &SIMULATE);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    // No host of 4 holds a pod of 8.
    assert!(ran.out.starts_with("2 jobs on 16 GPUs"), "{}", ran.out);
    assert!(ran.out.contains("NeverPlaceable"), "{}", ran.out);
}

#[test]
fn what_is_wrong_names_file_and_line() {
    let folder = folder();
    let no_fleet = run(folder.path(), &SIMULATE);
    assert_eq!(no_fleet.code, Some(2));
    assert!(no_fleet.err.contains("no GPUPool"), "{}", no_fleet.err);

    let with_fleet = [&SIMULATE[..], &["--fleet", "fleet.csv"]].concat();
    let trace = "submit,tenant,class,gpus,duration\n0,nlq,batch,8,100\n";
    std::fs::write(folder.path().join("trace.csv"), trace).expect("written");
    let stranger = run(folder.path(), &with_fleet);
    assert_eq!((stranger.code, stranger.out.as_str()), (Some(1), ""));
    let said =
        "trace.csv line 2, column tenant: there is no Tenant \"nlq\" (did you mean \"nlp\"?)";
    assert!(stranger.err.contains(said), "{}", stranger.err);

    let bad = POLICIES.replace("nominal", "nominl");
    std::fs::write(folder.path().join("policies/all.yaml"), bad).expect("written");
    let refused = run(folder.path(), &with_fleet);
    assert_eq!(refused.code, Some(1));
    for said in ["all.yaml:12", "nominl", "did you mean"] {
        assert!(refused.err.contains(said), "{}", refused.err);
    }
}

#[test]
fn a_round_replays_by_exit_code() {
    let folder = tempfile::tempdir().expect("a folder");
    let snapshot = Snapshot {
        revision: Revision(7),
        ..Snapshot::default()
    };
    let put = |name: &str, plan: &Plan| {
        let bytes = record::write(&snapshot, plan).expect("JSON");
        std::fs::write(folder.path().join(name), bytes).expect("written");
    };
    put("same.json", &Plan::default());
    let more = Unplaced {
        waiting: WaitingIx(0),
        reasons: Vec::new().into(),
        start: None,
    };
    let other = Plan {
        unplaced: vec![more],
        ..Plan::default()
    };
    put("other.json", &other);

    let same = run(folder.path(), &["replay", "same.json"]);
    assert_eq!(same.code, Some(0), "{}", same.err);
    let begin = "same.json: equal; revision 7 at 1970-01-01T00:00:00Z, 0 placed, 0 waiting;";
    assert!(same.out.starts_with(begin), "{}", same.out);

    let both = run(
        folder.path(),
        &["replay", "same.json", "other.json", "-o", "json"],
    );
    assert_eq!(both.code, Some(40), "{}", both.err);
    let value: Value = serde_json::from_str(&both.out).expect("JSON");
    assert_eq!(value["items"][0]["equal"], true);
    assert_eq!(value["items"][1]["differences"][0]["what"], "gang 0 of 0");

    let path = folder.path().join("same.json");
    let text = std::fs::read_to_string(&path).expect("readable");
    std::fs::write(&path, text.replace("\"revision\":7", "\"revision\":8")).expect("written");
    let changed = run(folder.path(), &["replay", "same.json"]);
    assert_eq!((changed.code, changed.out.as_str()), (Some(1), ""));
    assert!(
        changed.err.contains("the round was changed"),
        "{}",
        changed.err
    );
}
