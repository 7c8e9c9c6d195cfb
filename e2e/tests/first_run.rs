//! The first run: documents go in, a job runs, and both commands do what they do everywhere.
//!
//! Owns the promise made to a newcomer, with real processes from the command to the gang.

use meridian_e2e::deployment::{
    CLUSTER, Deployment, DeploymentPlan, JobBuilder, LONG, Row, SOON, fleet_document,
};
use meridian_e2e::tools::Tool;

/// While the example job of the defaults runs, and after.
const KUBECTL: &[Row<'static>] = &[
    (
        "wait --for=jsonpath={.status.phase}=Running fj/hello --timeout=60s",
        0,
        &[],
    ),
    (
        "wait --for=condition=Complete fj/train --timeout=60s",
        0,
        &["train condition met"],
    ),
    (
        "get federatedjobs",
        0,
        &[
            "NAME",
            "STATE",
            "CLUSTER",
            "train",
            "Succeeded",
            CLUSTER,
            "hello",
            "Running",
        ],
    ),
    (
        "describe fj train",
        0,
        &[
            "Name:         train",
            "EveryGangSucceeded",
            "Phase:                Succeeded",
        ],
    ),
    ("delete fj hello", 0, &["\"hello\" deleted"]),
    ("wait --for=delete fj/hello --timeout=60s", 0, &[]),
    ("get fj hello", 1, &["NotFound", "\"hello\" not found"]),
];

#[tokio::test]
async fn a_job_applied_with_kubectl_runs_to_its_end() {
    let Some(kubectl) = Tool::Kubectl.or_skip("a_job_applied_with_kubectl_runs_to_its_end") else {
        return;
    };
    let mut fleet = Deployment::of_hubs(&DeploymentPlan::default()).await;
    let regions = fleet.file("fleet.yaml", &fleet_document());
    let train = fleet.file("train.yaml", &JobBuilder::new("train").pods(2, 8).text());
    let defaults = Deployment::defaults();

    // The default policies with their example job, before there is anywhere to run.
    let applied = fleet.kubectl_apply(&kubectl, &defaults).await;
    applied.saying(&[
        "workloadclass.meridian.dev/batch-short created",
        "tenantquota.meridian.dev/nlp created",
        "federatedjob.meridian.dev/hello created",
    ]);
    fleet.kubectl_apply(&kubectl, &regions).await;
    fleet.start_agent(CLUSTER, 4);
    fleet.kubectl_apply(&kubectl, &train).await;
    fleet.kubectl_does(&kubectl, KUBECTL).await;

    let evidence = fleet.agents[0].evidence();
    assert_eq!(evidence.violations(), [] as [String; 0]);
    let runs = evidence.runs();
    let hello = runs.iter().filter(|run| run.pod.starts_with("hello"));
    assert_eq!((runs.len(), hello.count()), (4, 2), "{runs:?}");
    // What kubectl saw deleted had stopped before.
    assert!(runs.iter().all(|run| run.until.is_some()), "{runs:?}");
    assert_eq!(fleet.errors(&[]), [] as [String; 0]);
}

#[tokio::test]
async fn meridian_ends_with_the_codes_that_it_promises() {
    let fleet = Deployment::start(DeploymentPlan::default()).await;
    let file = |name, job: JobBuilder| fleet.file(name, &job.text()).display().to_string();
    let good = file("good.yaml", JobBuilder::new("good").pods(2, 4));
    let bad = file("bad.yaml", JobBuilder::new("bad").exits(3));
    let rows: &[Row<'_>] = &[
        (&format!("plan -f {good} --detailed-exitcode"), 0, &[]),
        (
            &format!("submit -f {good} --wait"),
            0,
            &["good submitted", "Succeeded"],
        ),
        (
            &format!("submit -f {good}"),
            6,
            &["error[E3002]", "already exists"],
        ),
        (
            &format!("submit -f {bad} --wait --no-progress"),
            30,
            &["Failed"],
        ),
        ("wait job/good", 0, &[]),
        ("wait job/bad", 30, &[]),
        ("wait job/absent", 5, &["error[E3001]", "fix:"]),
        ("get job nothere", 5, &["error[E3001]"]),
        ("frobnicate", 2, &["frobnicate"]),
    ];
    fleet.meridian_does(rows).await;
    assert_eq!(fleet.agents[0].evidence().violations(), [] as [String; 0]);
    assert_eq!(fleet.errors(&[]), [] as [String; 0]);
}

#[tokio::test]
async fn meridian_says_why_a_job_waits_and_it_starts_when_there_is_room() {
    let fleet = Deployment::start(DeploymentPlan::default()).await;
    let file = |name, job: JobBuilder| fleet.file(name, &job.text()).display().to_string();
    let run = async |line: &str| fleet.meridian(line.split(' ')).await;
    let first = file("first.yaml", JobBuilder::new("first").pods(2, 8).runs("1h"));
    run(&format!("submit -f {first}")).await.succeeded();
    run("wait job/first --for phase=Running --timeout 60s")
        .await
        .succeeded();
    let second = file("second.yaml", JobBuilder::new("second").pods(1, 8));
    run(&format!("plan -f {second} --detailed-exitcode"))
        .await
        .ended_with(20);
    run(&format!("submit -f {second}")).await.succeeded();
    let waits = async || run("queue").await.out.contains("nlp/second").then_some(());
    fleet
        .until("the second job is in the queue", SOON, waits)
        .await;
    let rows: &[Row<'_>] = &[
        (
            "why second",
            0,
            &["1 of 1 in the queue", "WaitingForCapacity"],
        ),
        ("why first", 0, &["Running", CLUSTER, "16"]),
        ("delete job/first --yes --wait", 0, &["first"]),
        ("wait job/second --timeout 60s", 0, &[]),
        ("queue", 0, &[]),
    ];
    fleet.meridian_does(rows).await;
    assert_eq!(fleet.agents[0].evidence().violations(), [] as [String; 0]);
    assert_eq!(fleet.errors(&[]), [] as [String; 0]);
}

/// What is shown of a job that has ended in the second cluster.
const SHOWN: &[Row<'static>] = &[
    ("capacity", 0, &["h100-80gb", "eu-a", "eu-b", "16", "8"]),
    ("get clusters", 0, &["eu-a", "eu-b"]),
    (
        "get clusters -o name",
        0,
        &["membercluster.meridian.dev/eu-b"],
    ),
    ("get job job -o json", 0, &["\"phase\": \"Succeeded\""]),
    (
        "get job job -o yaml",
        0,
        &["phase: Succeeded", "cluster: eu-b"],
    ),
    ("get jobs -o name", 0, &["federatedjob.meridian.dev/job\n"]),
    ("get jobs -o wide", 0, &["TENANT", "MODEL", "Succeeded"]),
    (
        "describe job/job",
        0,
        &["Name:", "Spec:", "workloadClass: batch-short"],
    ),
    ("events job/job", 0, &[]),
    ("completion bash", 0, &["complete", "meridian"]),
    ("version", 0, &["client  ", "hub  "]),
    (
        "version --client -o json",
        0,
        &["\"kind\": \"VersionInfo\""],
    ),
];

#[tokio::test]
async fn meridian_adds_closes_and_opens_clusters_and_shows_them() {
    let mut fleet = Deployment::start(DeploymentPlan::default()).await;
    let job = fleet.file("job.yaml", &JobBuilder::new("job").pods(1, 8).text());
    let pool = "--pool flavor=h100-80gb,hosts=1,gpus-per-host=8";
    let add = format!("cluster add eu-b --region eu-west {pool}");
    fleet
        .meridian_does(&[(&add, 0, &["membercluster.meridian.dev/eu-b created"])])
        .await;
    fleet.start_agent("eu-b", 1);
    fleet.gpus_counted(24).await;

    // Closed clusters take nothing; one that opens takes what waits.
    let close = "cluster cordon eu-a eu-b";
    fleet
        .meridian_does(&[(close, 0, &["eu-a cordoned", "eu-b cordoned"])])
        .await;
    let submit = format!("submit -f {}", job.display());
    fleet
        .meridian_does(&[(&submit, 0, &["job submitted"])])
        .await;
    let cordoned = async || {
        let why = fleet.meridian(["why", "job"]).await;
        why.out.contains("ClusterCordoned").then_some(())
    };
    fleet
        .until("the job waits for an open cluster", SOON, cordoned)
        .await;
    let starts: Vec<_> = fleet
        .agents
        .iter()
        .map(|agent| agent.evidence().starts())
        .collect();
    assert_eq!(starts, [0, 0]);
    fleet
        .meridian_does(&[("cluster uncordon eu-b", 0, &["eu-b uncordoned"])])
        .await;
    fleet
        .meridian_does(&[("wait job/job --timeout 60s", 0, &[])])
        .await;
    assert_eq!(fleet.agents[1].evidence().starts(), 1);
    fleet.meridian_does(SHOWN).await;
    assert_eq!(fleet.errors(&[]), [] as [String; 0]);
}

#[tokio::test]
async fn a_hub_stops_in_order_and_is_said_to_be_gone() {
    let mut fleet = Deployment::of_hubs(&DeploymentPlan::default()).await;
    let status = fleet.hubs[0]
        .process
        .terminate(LONG)
        .await
        .expect("it ends");
    assert!(status.success(), "{status}");
    let address = fleet.hubs[0].users.to_string();
    let row: Row<'_> = (
        "get jobs --request-timeout 1s",
        8,
        &["error[E6006]", &address],
    );
    fleet.meridian_does(&[row]).await;
    assert_eq!(fleet.errors(&[]), [] as [String; 0]);
}
