//! The real command against a small hub: exit codes, what goes where, and the form of errors.
//!
//! Owns the promises that scripts rely on.

mod fake_hub;

use std::process::Stdio;

use fake_hub::{CLUSTERS, FakeHub, JOBS, run};
use meridian_runtime::network::{Network as _, Tcp};
use serde_json::{Value, json};

fn document(name: &str, priority: i64) -> String {
    json!({
        "apiVersion": "meridian.dev/v1alpha1", "kind": "FederatedJob",
        "metadata": {"name": name, "namespace": "nlp"},
        "spec": {
            "workloadClass": "batch-short", "priority": priority,
            "roles": [{"name": "worker", "replicas": 1, "gpus": 1}]
        }
    })
    .to_string()
}

fn job(name: &str, phase: &str, reason: &str) -> Value {
    json!({
        "apiVersion": "meridian.dev/v1alpha1", "kind": "FederatedJob",
        "metadata": {"name": name, "namespace": "nlp", "uid": name, "resourceVersion": "1"},
        "spec": {"workloadClass": "batch-short"},
        "status": {"phase": phase, "reason": reason}
    })
}

fn stored(hub: &FakeHub, name: &str, phase: &str) {
    hub.put(&format!("{JOBS}/{name}"), job(name, phase, ""));
}

#[tokio::test]
async fn apply_says_created_configured_unchanged() {
    let hub = FakeHub::start().await;
    let apply = ["apply", "-f", "-"];
    let first = hub.run_with(&apply, &document("a", 1)).await;
    assert_eq!(
        first.out, "federatedjob.meridian.dev/a created\n",
        "{}",
        first.err
    );
    let second = hub.run_with(&apply, &document("a", 2)).await;
    assert_eq!(second.out, "federatedjob.meridian.dev/a configured\n");
    let strict = ["apply", "-f", "-", "--error-unchanged"];
    let third = hub.run_with(&strict, &document("a", 2)).await;
    assert_eq!(third.out, "federatedjob.meridian.dev/a unchanged\n");
    assert_eq!(
        (first.code, second.code, third.code),
        (Some(0), Some(0), Some(3))
    );
    let object = hub.object(&format!("{JOBS}/a")).expect("stored");
    assert_eq!(object["spec"]["priority"], 2);
    assert_eq!(third.err, "");
}

#[tokio::test]
async fn a_dry_run_stores_nothing() {
    let hub = FakeHub::start().await;
    for dry_run in ["client", "server"] {
        let args = ["apply", "-f", "-", "--dry-run", dry_run];
        let ran = hub.run_with(&args, &document("a", 1)).await;
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        assert!(
            ran.out.contains("/a created (") && ran.out.contains("dry run)"),
            "{}",
            ran.out
        );
    }
    assert_eq!(hub.object(&format!("{JOBS}/a")), None);
}

#[tokio::test]
async fn one_bad_document_does_not_stop_the_others() {
    let hub = FakeHub::start().await;
    let documents = format!("{}\n---\n{}", document("forbidden", 1), document("a", 1));
    let ran = hub.run_with(&["apply", "-f", "-"], &documents).await;
    assert_eq!(ran.out, "federatedjob.meridian.dev/a created\n");
    assert!(
        ran.err
            .starts_with("error[E4001] -:1: FederatedJob forbidden: "),
        "{}",
        ran.err
    );
    assert_eq!(ran.code, Some(9));
}

#[tokio::test]
async fn a_client_side_check_names_the_field_and_what_was_meant() {
    let hub = FakeHub::start().await;
    let wrong = document("a", 1).replace("\"priority\"", "\"priorty\"");
    let ran = hub
        .run_with(&["apply", "-f", "-", "--dry-run", "client"], &wrong)
        .await;
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.starts_with("error[E1101] "), "{}", ran.err);
    assert!(
        ran.err.contains("spec.priorty") && ran.err.contains("priority"),
        "{}",
        ran.err
    );
}

#[tokio::test]
async fn get_prints_tables_names_and_objects() {
    let hub = FakeHub::start().await;
    stored(&hub, "a", "Running");
    stored(&hub, "b", "Pending");
    let table = hub.run(&["get", "jobs", "-n", "nlp"]).await;
    assert_eq!(
        table.out, "NAME   STATE\na      Running\nb      Pending\n",
        "{}",
        table.err
    );
    let bare = hub
        .run(&["get", "job/b", "-n", "nlp", "--no-headers"])
        .await;
    assert_eq!(bare.out, "b   Pending\n");
    let names = hub.run(&["get", "fj", "-n", "nlp", "-o", "name"]).await;
    assert_eq!(
        names.out,
        "federatedjob.meridian.dev/a\nfederatedjob.meridian.dev/b\n"
    );
    let one = hub
        .run(&["get", "job", "a", "-n", "nlp", "-o", "json"])
        .await;
    let value: Value = serde_json::from_str(&one.out).expect("JSON");
    assert_eq!(value, job("a", "Running", ""));
    let yaml = hub.run(&["get", "jobs", "-n", "nlp", "-o", "yaml"]).await;
    assert!(yaml.out.contains("kind: List"), "{}", yaml.out);
    let none = hub.run(&["get", "clusters"]).await;
    assert_eq!((none.out.as_str(), none.code), ("", Some(0)));
    assert_eq!(none.err, "no memberclusters\n");
}

#[tokio::test]
async fn what_is_not_there_ends_with_5_and_what_is_there_is_shown() {
    let hub = FakeHub::start().await;
    stored(&hub, "a", "Running");
    let ran = hub.run(&["get", "job", "x", "a", "-n", "nlp"]).await;
    assert_eq!(ran.code, Some(5));
    assert!(ran.out.contains("a      Running"), "{}", ran.out);
    assert!(ran.err.starts_with("error[E3001] "), "{}", ran.err);
}

#[tokio::test]
async fn no_hub_ends_with_8_and_says_how_to_start_one() {
    let listener = Tcp.listen("127.0.0.1:0").await.expect("a free port");
    let address = listener.address().to_owned();
    drop(listener);
    for args in [&["get", "jobs"][..], &["queue"], &["why", "job/a"]] {
        let ran = run(&address, args, "").await;
        assert_eq!(ran.code, Some(8), "{args:?}: {}", ran.err);
        let said = [
            "error[E6006] no hub answers at 127.0.0.1:",
            "tried  http://127.0.0.1:",
            "(from MERIDIAN_SERVER)",
            "meridian playground --serve",
            "docs: errors#e6006-hub-unreachable",
        ];
        for part in said {
            assert!(ran.err.contains(part), "{args:?}: {}", ran.err);
        }
        assert_eq!(ran.out, "");
    }
}

#[tokio::test]
async fn usage_ends_with_2() {
    let hub = FakeHub::start().await;
    let wrong: [&[&str]; 7] = [
        &["frobnicate"],
        &["get", "frobs"],
        &["get", "jobs,clusters", "a"],
        &["delete", "jobs"],
        &["wait", "cluster/a"],
        &["wait", "job/a", "--for", "sunrise"],
        &["get", "jobs", "--server", "https://127.0.0.1:1"],
    ];
    for args in wrong {
        let ran = hub.run(args).await;
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.err);
        assert!(
            ran.out.is_empty() && ran.err.starts_with("error"),
            "{args:?}: {}",
            ran.err
        );
    }
}

#[tokio::test]
async fn a_refused_job_says_which_fields_and_does_not_stop_the_others() {
    let hub = FakeHub::start().await;
    let documents = format!("{}\n---\n{}", document("denied", 1), document("a", 1));
    let ran = hub
        .run_with(&["submit", "-f", "-", "--no-progress"], &documents)
        .await;
    assert_eq!(ran.code, Some(4));
    assert_eq!(ran.out, "federatedjob.meridian.dev/a submitted\n");
    let want = "\
error[E4012] job denied: job nlp/denied denied by house-rules (2 of 8 rules)
  spec.checkpoint       missing: class batch-long can be preempted
  spec.costAttribution  model is empty
  fix: add both fields, or use class batch-short    docs: errors#e4012-denied-by-policy
";
    assert!(ran.err.starts_with(want), "{}", ran.err);
}

#[tokio::test]
async fn the_same_key_submits_once_and_no_key_submits_anew() {
    let hub = FakeHub::start().await;
    let keyed = [
        "submit",
        "-f",
        "-",
        "--idempotency-key",
        "k",
        "--count",
        "2",
        "--no-progress",
    ];
    let first = hub.run_with(&keyed, &document("a", 1)).await;
    assert!(first.out.contains("/a-0 submitted\n") && first.out.contains("/a-1 submitted\n"));
    let again = hub.run_with(&keyed, &document("a", 1)).await;
    assert!(
        again.out.contains("/a-1 submitted (known already)\n"),
        "{}",
        again.out
    );
    let keys = hub.keys();
    assert_eq!(keys[..2], keys[2..]);
    assert_ne!(keys[0], keys[1]);
    for _ in 0..2 {
        let ran = hub
            .run_with(&["submit", "-f", "-"], &document("a", 1))
            .await;
        assert_eq!(ran.out, "federatedjob.meridian.dev/a submitted\n");
    }
}

#[tokio::test]
async fn wait_ends_with_the_code_of_the_job() {
    let hub = FakeHub::start().await;
    let cases = [
        ("Succeeded", "", 0),
        ("Failed", "PodFailed", 30),
        ("Failed", "Cancelled", 31),
        ("Failed", "Preempted", 32),
    ];
    for (phase, reason, code) in cases {
        hub.put(
            &format!("{JOBS}/a"),
            job("a", "Pending", "WaitingForCapacity"),
        );
        let mut ended = job("a", phase, reason);
        ended["metadata"]["resourceVersion"] = json!("2");
        hub.will_tell(JOBS, &[json!({"type": "MODIFIED", "object": ended})]);
        let ran = hub.run(&["wait", "job/a", "-n", "nlp"]).await;
        assert_eq!(ran.code, Some(code), "{phase} {reason}: {}", ran.err);
        assert!(
            ran.out.starts_with(&format!("job nlp/a: {phase}")),
            "{}",
            ran.out
        );
        assert!(
            ran.err.contains("job nlp/a: Pending, WaitingForCapacity"),
            "{}",
            ran.err
        );
    }
    hub.will_tell(
        JOBS,
        &[json!({"type": "DELETED", "object": job("a", "Pending", "")})],
    );
    let deleted = hub.run(&["wait", "a", "-n", "nlp"]).await;
    assert_eq!(
        (deleted.code, deleted.out.as_str()),
        (Some(31), "job nlp/a: deleted\n")
    );
}

#[tokio::test]
async fn wait_ends_with_7_when_it_takes_too_long_and_5_when_there_is_none() {
    let hub = FakeHub::start().await;
    let none = hub.run(&["wait", "job/a", "-n", "nlp"]).await;
    assert_eq!(none.code, Some(5), "{}", none.err);
    stored(&hub, "a", "Pending");
    let late = hub
        .run(&["wait", "job/a", "-n", "nlp", "--timeout", "300ms"])
        .await;
    assert_eq!(late.code, Some(7), "{}", late.err);
    assert!(
        late.err.contains("see `meridian why job/a -n nlp`"),
        "{}",
        late.err
    );
}

#[tokio::test]
async fn ctrl_c_detaches_and_says_how_to_come_back() {
    let hub = FakeHub::start().await;
    stored(&hub, "a", "Running");
    let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_meridian"))
        .args(["wait", "job/a", "-n", "nlp", "--server", &hub.server()])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the command");
    // The first line of progress shows that the command waits.
    let mut err = tokio::io::BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    tokio::io::AsyncBufReadExt::read_line(&mut err, &mut line)
        .await
        .expect("a line");
    assert!(line.contains("job nlp/a: Running"), "{line}");
    let id = child.id().expect("running").to_string();
    let killed = tokio::process::Command::new("kill")
        .args(["-INT", &id])
        .status()
        .await;
    assert!(killed.expect("sent").success());
    let mut rest = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut err, &mut rest)
        .await
        .expect("text");
    assert_eq!(child.wait().await.expect("ended").code(), Some(130));
    assert!(
        rest.contains("reattach: meridian wait job/a -n nlp"),
        "{rest}"
    );
    assert!(
        rest.contains("cancel:   meridian delete job/a -n nlp"),
        "{rest}"
    );
}

#[tokio::test]
async fn a_watched_kind_shows_each_change_as_a_row() {
    let hub = FakeHub::start().await;
    stored(&hub, "a", "Pending");
    let metadata = json!({"name": "a", "namespace": "nlp", "resourceVersion": "2"});
    let row = json!({"cells": ["a", "Running"], "object": {"metadata": metadata}});
    let table = json!({"kind": "Table", "columnDefinitions": [], "rows": [row]});
    hub.will_tell(JOBS, &[json!({"type": "MODIFIED", "object": table})]);
    let mut child = tokio::process::Command::new(env!("CARGO_BIN_EXE_meridian"))
        .args(["get", "jobs", "-w", "-n", "nlp", "--server", &hub.server()])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("the command");
    let out = tokio::io::BufReader::new(child.stdout.take().expect("piped"));
    let mut lines = tokio::io::AsyncBufReadExt::lines(out);
    for want in ["NAME   STATE", "a      Pending", "a      Running"] {
        let line = lines.next_line().await.expect("text");
        assert_eq!(line.as_deref(), Some(want));
    }
}

#[tokio::test]
async fn plan_tells_its_verdict_by_exit_code_when_asked() {
    let hub = FakeHub::start().await;
    for (name, code) in [("now", 0), ("later", 20), ("never", 22)] {
        let plain = hub.run_with(&["plan", "-f", "-"], &document(name, 1)).await;
        assert_eq!(plain.code, Some(0), "{}", plain.err);
        let args = ["plan", "-f", "-", "--detailed-exitcode", "-o", "json"];
        let detailed = hub.run_with(&args, &document(name, 1)).await;
        assert_eq!(detailed.code, Some(code), "{}", detailed.err);
        let value: Value = serde_json::from_str(&detailed.out).expect("JSON");
        assert_eq!(value["kind"], "JobPlan");
    }
}

#[tokio::test]
async fn a_submit_with_a_broken_plan_ends_with_6_and_a_token_is_of_one_job() {
    let hub = FakeHub::start().await;
    let args = ["submit", "-f", "-", "--plan-token", "broken"];
    let moved = hub.run_with(&args, &document("a", 1)).await;
    assert_eq!(moved.code, Some(6), "{}", moved.err);
    assert!(
        moved.err.contains("has moved since the plan"),
        "{}",
        moved.err
    );
    let kept = ["submit", "-f", "-", "--plan-token", "p1"];
    assert_eq!(hub.run_with(&kept, &document("a", 1)).await.code, Some(0));
    let two = format!("{}\n---\n{}", document("a", 1), document("b", 1));
    let several = hub.run_with(&kept, &two).await;
    assert_eq!(several.code, Some(2), "{}", several.err);
}

#[tokio::test]
async fn the_tenant_tree_and_the_fit_of_quotas_are_asked_for() {
    let hub = FakeHub::start().await;
    let tree = hub.run(&["tenant", "tree"]).await;
    let rows: Vec<&str> = tree.out.lines().collect();
    assert!(
        rows[1].starts_with("research ") && rows[2].starts_with("  nlp "),
        "{}",
        tree.out
    );
    let one = hub.run(&["tenant", "tree", "nlp", "-o", "json"]).await;
    let value: Value = serde_json::from_str(&one.out).expect("JSON");
    assert_eq!(value["tenants"].as_array().map(Vec::len), Some(1));
    let quota = |name: &str| {
        json!({
            "apiVersion": "meridian.dev/v1alpha1", "kind": "TenantQuota",
            "metadata": {"name": name}, "spec": {"tenant": "nlp"}
        })
        .to_string()
    };
    for (name, code) in [("fine", 0), ("contradictory", 4)] {
        let fit = hub.run_with(&["quota", "fit", "-"], &quota(name)).await;
        assert_eq!(fit.code, Some(code), "{} {}", fit.out, fit.err);
    }
    let job = hub
        .run_with(&["quota", "fit", "-"], &document("a", 1))
        .await;
    assert_eq!(job.code, Some(2), "{}", job.err);
}

#[tokio::test]
async fn why_answers_for_people_and_programs_and_5_for_what_is_not_there() {
    let hub = FakeHub::start().await;
    let text = hub.run(&["why", "job/a", "-n", "nlp"]).await;
    assert!(
        text.out
            .starts_with("job nlp/a: Pending, 1 of 2 in the queue\n"),
        "{}",
        text.out
    );
    assert!(
        text.out.contains("256    34     504     222 short"),
        "{}",
        text.out
    );
    let json = hub.run(&["why", "a", "-o", "json"]).await;
    let value: Value = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!(value["reasons"][0]["need"], 256);
    let missing = hub.run(&["why", "missing"]).await;
    assert_eq!(missing.code, Some(5));
    assert!(
        missing
            .err
            .starts_with("error[E3001] there is no job default/missing\n")
    );
}

#[tokio::test]
async fn many_are_deleted_only_when_that_is_said_twice() {
    let hub = FakeHub::start().await;
    stored(&hub, "a", "Running");
    stored(&hub, "b", "Running");
    let all = ["delete", "jobs", "--all", "-n", "nlp"];
    let unsure = hub.run(&all).await;
    assert_eq!(unsure.code, Some(2));
    assert!(
        unsure.err.contains("this would delete 2 objects: "),
        "{}",
        unsure.err
    );
    assert!(hub.object(&format!("{JOBS}/a")).is_some());
    let sure = hub.run(&[&all[..], &["-y"]].concat()).await;
    assert_eq!(
        sure.out,
        "federatedjob.meridian.dev/a deleted\nfederatedjob.meridian.dev/b deleted\n"
    );
    let none = hub.run(&["delete", "job/a", "-n", "nlp"]).await;
    assert_eq!(none.code, Some(5));
    let fine = hub
        .run(&["delete", "job/a", "-n", "nlp", "--ignore-not-found"])
        .await;
    assert_eq!(fine.code, Some(0));
}

#[tokio::test]
async fn clusters_are_added_cordoned_and_opened_again() {
    let hub = FakeHub::start().await;
    let pool = "flavor=h100-80gb,hosts=4,gpus-per-host=8";
    let add = [
        "cluster", "add", "euw-a", "--region", "eu-west", "--pool", pool,
    ];
    let added = hub.run(&add).await;
    assert_eq!(
        added.out, "membercluster.meridian.dev/euw-a created\n",
        "{}",
        added.err
    );
    assert_eq!(hub.run(&add).await.code, Some(6));
    let path = format!("{CLUSTERS}/euw-a");
    for (verb, cordoned) in [("cordon", true), ("uncordon", false)] {
        let ran = hub.run(&["cluster", verb, "euw-a"]).await;
        assert_eq!(
            ran.out,
            format!("membercluster.meridian.dev/euw-a {verb}ed\n")
        );
        let again = hub.run(&["cluster", verb, "euw-a"]).await;
        assert_eq!(
            again.out,
            format!("membercluster.meridian.dev/euw-a already {verb}ed\n")
        );
        let spec = &hub.object(&path).expect("stored")["spec"];
        assert_eq!(spec["cordoned"].as_bool().unwrap_or(false), cordoned);
    }
    assert_eq!(
        hub.run(&["cluster", "cordon", "nowhere"]).await.code,
        Some(5)
    );
}

#[tokio::test]
async fn a_closed_pipe_ends_in_silence() {
    let hub = FakeHub::start().await;
    for index in 0..2_000 {
        stored(&hub, &format!("job-{index}"), "Running");
    }
    let script = format!(
        "{} get jobs -n nlp -o yaml --server {} | head -1",
        env!("CARGO_BIN_EXE_meridian"),
        hub.server()
    );
    let ran = tokio::process::Command::new("bash")
        .args(["-c", &format!("set -o pipefail; {script}")])
        .output()
        .await
        .expect("a shell");
    assert_eq!(String::from_utf8_lossy(&ran.stderr), "");
    assert_eq!(ran.status.code(), Some(0));
}

#[tokio::test]
async fn a_shell_is_offered_verbs_kinds_and_live_names() {
    let hub = FakeHub::start().await;
    stored(&hub, "llm-70b", "Running");
    let complete = async |words: &[&str]| {
        let index = (words.len() - 1).to_string();
        let ran = tokio::process::Command::new(env!("CARGO_BIN_EXE_meridian"))
            .arg("--")
            .args(words)
            .env("COMPLETE", "bash")
            .env("_CLAP_COMPLETE_INDEX", index)
            .env("_CLAP_COMPLETE_COMP_TYPE", "9")
            .env("_CLAP_COMPLETE_SPACE", "false")
            .env("_CLAP_IFS", "\n")
            .env("MERIDIAN_SERVER", hub.server())
            .output()
            .await
            .expect("the command");
        String::from_utf8(ran.stdout).expect("text")
    };
    assert!(complete(&["meridian", "cap"]).await.contains("capacity"));
    assert!(
        complete(&["meridian", "get", "clu"])
            .await
            .contains("clusters")
    );
    let names = complete(&["meridian", "get", "jobs", "-n", "nlp", "ll"]).await;
    assert!(names.contains("llm-70b"), "{names}");
    let slashed = complete(&["meridian", "why", "-n", "nlp", "job/l"]).await;
    assert!(slashed.contains("job/llm-70b"), "{slashed}");
}

#[tokio::test]
async fn versions_and_scripts() {
    let hub = FakeHub::start().await;
    let both = hub.run(&["version"]).await;
    assert!(
        both.out.contains("hub     v9.9.9 at 127.0.0.1:"),
        "{}",
        both.out
    );
    assert!(both.err.starts_with("warning: "), "{}", both.err);
    let own = run("127.0.0.1:1", &["version", "--client"], "").await;
    assert_eq!((own.code, own.err.as_str()), (Some(0), ""));
    for shell in ["bash", "zsh", "fish"] {
        let script = hub.run(&["completion", shell]).await;
        assert!(script.out.contains("COMPLETE"), "{}", script.out);
    }
}
