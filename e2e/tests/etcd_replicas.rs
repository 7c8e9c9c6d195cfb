//! Hubs on a real etcd: etcd restarted, the leader killed, the leader paused past its lease, each
//! while gangs start. Nothing is lost, nothing is doubled, and a deposed leader writes nothing.
//!
//! Owns those promises, judged by what ran and by etcd's own history.

use std::path::PathBuf;

use etcd_client::{EventType, GetOptions, WatchOptions};
use futures::join;
use meridian_api::ids::Uid;
use meridian_api::units::Millis;
use meridian_e2e::deployment::{Deployment, DeploymentPlan, HubStore, JobBuilder, LONG};
use meridian_e2e::etcd::{Durability, Etcd, Members};
use meridian_e2e::process::Harness;
use meridian_e2e::tools::Tool;
use serde_json::Value;

/// Jobs of one test: the room is full many times over.
const JOBS: usize = 24;
/// Pods of each job.
const PODS: u32 = 2;
/// How long each pod runs.
const RUNTIME: Millis = Millis::seconds(1);
/// L3: from the kill of a leader to the first commit of the next.
const TAKEOVER: Millis = Millis::seconds(15);
/// Where every hub keeps placements.
const PLACEMENTS: &str = "/meridian/placements/";

fn jobs(count: usize) -> Vec<Value> {
    let job = |index| {
        JobBuilder::new(&format!("job-{index}"))
            .pods(PODS, 4)
            .runs("1s")
            .build()
    };
    (0..count).map(job).collect()
}

async fn one_etcd(harness: &Harness, program: PathBuf) -> Etcd {
    let etcd = Etcd::start(harness, &program, Members::One, Durability::Fsync).await;
    etcd.expect("etcd starts")
}

async fn hubs(etcd: &Etcd, replicas: usize) -> Deployment {
    let plan = DeploymentPlan {
        store: HubStore::Etcd(etcd.endpoints()),
        replicas,
        hosts: 3,
        ..DeploymentPlan::default()
    };
    Deployment::start(plan).await
}

/// The hub that leads.
async fn leader(fleet: &Deployment) -> usize {
    let look = async || {
        for (index, hub) in fleet.hubs.iter().enumerate() {
            if hub.client().queue(1, "").await.is_ok() {
                return Some(index);
            }
        }
        None
    };
    fleet.until("a hub leads", LONG, look).await
}

async fn nothing_is_lost_or_doubled(fleet: &Deployment, jobs: &[Uid]) {
    fleet.jobs_succeeded(jobs.len()).await;
    fleet.gpus_counted(24).await;
    fleet.agents[0]
        .evidence()
        .each_ran_once(jobs, PODS, RUNTIME);
    assert_eq!(fleet.errors(&[]), [] as [String; 0]);
}

#[tokio::test]
async fn an_etcd_killed_while_gangs_start_loses_and_doubles_nothing() {
    let test = "an_etcd_killed_while_gangs_start_loses_and_doubles_nothing";
    let Some(program) = Tool::Etcd.or_skip(test) else {
        return;
    };
    let harness = Harness::new();
    let mut etcd = one_etcd(&harness, program).await;
    let fleet = hubs(&etcd, 1).await;
    let submitter = fleet.submitter();
    let kills = async {
        for _ in 0..3 {
            fleet.some_job_is("Starting").await;
            etcd.kill(0).await.expect("killed");
            etcd.start_again(0).await.expect("it comes back");
        }
    };
    let (acknowledged, ()) = join!(submitter.acknowledged(jobs(JOBS)), kills);
    nothing_is_lost_or_doubled(&fleet, &acknowledged).await;
}

#[tokio::test]
async fn a_second_hub_takes_over_from_a_killed_leader_in_time() {
    let test = "a_second_hub_takes_over_from_a_killed_leader_in_time";
    let Some(program) = Tool::Etcd.or_skip(test) else {
        return;
    };
    let harness = Harness::new();
    let etcd = one_etcd(&harness, program).await;
    let mut fleet = hubs(&etcd, 2).await;
    let submitter = fleet.submitter();
    let takeover = async {
        let first = leader(&fleet).await;
        fleet.some_job_is("Starting").await;
        fleet.hubs[first].process.kill().await.expect("killed");
        let clock = harness.clock();
        let killed = clock.boot();
        let second = &mut fleet.hubs[1 - first].process;
        second
            .line("goes to eu-a", LONG)
            .await
            .expect("the second hub decides");
        let took = clock.boot().since(killed);
        println!("the second hub committed its first decision {took} after the kill");
        assert!(took <= TAKEOVER, "takeover took {took}");
        // The first comes back and follows.
        fleet.hubs[first].start_again().await;
        assert_eq!(leader(&fleet).await, 1 - first);
    };
    let (acknowledged, ()) = join!(submitter.acknowledged(jobs(JOBS)), takeover);
    nothing_is_lost_or_doubled(&fleet, &acknowledged).await;
}

#[tokio::test]
async fn a_leader_paused_past_its_lease_writes_nothing_when_it_wakes() {
    let test = "a_leader_paused_past_its_lease_writes_nothing_when_it_wakes";
    let Some(program) = Tool::Etcd.or_skip(test) else {
        return;
    };
    let harness = Harness::new();
    let etcd = one_etcd(&harness, program).await;
    let mut fleet = hubs(&etcd, 2).await;
    let submitter = fleet.submitter();
    let first = leader(&fleet).await;
    let pause = async {
        fleet.some_job_is("Starting").await;
        fleet.hubs[first].process.pause().await.expect("it stops");
        let second = &mut fleet.hubs[1 - first].process;
        let leads = second
            .line("leading term=", LONG)
            .await
            .expect("the second hub leads");
        second.line("goes to eu-a", LONG).await.expect("it decides");
        fleet.hubs[first].process.resume().expect("it goes on");
        let woken = &mut fleet.hubs[first].process;
        woken
            .line("no longer leading", LONG)
            .await
            .expect("it knows that it was deposed");
        term(&leads)
    };
    let (acknowledged, new) = join!(submitter.acknowledged(jobs(JOBS)), pause);
    nothing_is_lost_or_doubled(&fleet, &acknowledged).await;
    assert_eq!(leader(&fleet).await, 1 - first);
    // A term is the revision at which it began: what was decided since was decided under it.
    let old = Box::pin(decided_since(&etcd, new));
    let old = harness.clock().timeout(LONG, old).await;
    let old = old.expect("etcd tells its history in time");
    let old: Vec<_> = old.into_iter().filter(|term| *term != new).collect();
    assert_eq!(
        old,
        [] as [u64; 0],
        "decisions of a deposed leader in term {new}"
    );
}

/// The term in a line that says who leads.
fn term(line: &str) -> u64 {
    let digits = line
        .split("term=")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    digits
        .and_then(|digits| digits.parse().ok())
        .expect("a term is a number")
}

/// The terms in which placements were decided that were made since that revision, from etcd's
/// history.
async fn decided_since(etcd: &Etcd, revision: u64) -> Vec<u64> {
    let endpoints = etcd.endpoints();
    let mut client = etcd_client::Client::connect(endpoints, None)
        .await
        .expect("etcd answers");
    let all = client.get(
        PLACEMENTS,
        Some(GetOptions::new().with_prefix().with_count_only()),
    );
    let now = all.await.expect("etcd answers");
    let now = now.header().expect("etcd says its revision").revision();
    let since = i64::try_from(revision).expect("revisions are far below 2^63");
    let options = WatchOptions::new()
        .with_prefix()
        .with_start_revision(since)
        .with_progress_notify();
    let mut watch = client
        .watch(PLACEMENTS, Some(options))
        .await
        .expect("etcd watches");
    let mut terms = Vec::new();
    loop {
        watch.request_progress().await.expect("etcd watches");
        let answer = watch
            .message()
            .await
            .expect("etcd watches")
            .expect("it goes on");
        for event in answer.events() {
            let made = event
                .kv()
                .filter(|kv| event.event_type() == EventType::Put && kv.version() == 1);
            if let Some(made) = made {
                let record: Value = serde_json::from_slice(made.value()).expect("a record is JSON");
                terms.push(record["term"].as_u64().expect("a record has its term"));
            }
        }
        if answer.created() {
            continue;
        }
        // Progress is told once everything before it was.
        if answer.events().is_empty()
            && answer
                .header()
                .is_some_and(|header| header.revision() >= now)
        {
            assert!(
                !terms.is_empty(),
                "nothing was decided since revision {revision}"
            );
            return terms;
        }
    }
}
