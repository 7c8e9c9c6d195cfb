//! A gang of a higher class gets its room: the victim saves its work, moves to another region and
//! goes on there, once.
//!
//! Owns that promise over a whole federation on simulated time, judged by what really ran.

use std::sync::Arc;

use meridian_agent::Inventory;
use meridian_agent::simulated::{NodeResources, Profile, SimulatedCluster, Truth};
use meridian_api::ids::Epoch;
use meridian_api::kinds::federated_job::status::{GangStatus, Phase};
use meridian_api::kinds::federated_job::{FederatedJobSpec, FederatedJobStatus};
use meridian_api::units::{Millis, UnixMillis};
use meridian_client::{Client, DryRun, Submission};
use meridian_e2e::fleet::{Fleet, FleetCluster, FleetOptions, FleetRegion, piped_hub};
use meridian_hub::Execution;
use meridian_policies::check::truth::{Run, exclusive_runs};
use meridian_runtime::Clock;
use meridian_runtime::network::Pipes;
use meridian_store::MemoryStore;
use serde_json::{Value, json};

/// Longest wait for anything here: a notice, a checkpoint and two starts, several times over.
const WITHIN: Millis = Millis::seconds(1_200);
/// Clusters of the fleet, one in each region.
const CLUSTERS: [&str; 2] = ["east-a", "west-a"];

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "meridian.dev/v1alpha1", "kind": kind,
        "metadata": {"name": name}, "spec": spec,
    })
}

/// Two regions of two hosts of eight GPUs.
fn options(clock: &Clock) -> FleetOptions {
    let hosts = NodeResources {
        gpus: 8,
        cpu_milli: 96_000,
        memory_mib: 393_216,
    };
    let region = |name: &str| FleetRegion {
        name: name.to_owned(),
        time_zone: "Europe/Berlin".to_owned(),
        clusters: vec![FleetCluster {
            name: format!("{name}-a"),
            inventory: Inventory::uniform("pool", "h100", &[("rack", 1)], 2, hosts),
            profile: Profile::default(),
        }],
    };
    let train = json!({
        "priority": 1, "preemption": "CheckpointThenRequeue", "notice": "60s",
        "mayUse": ["Nominal"],
    });
    let serve = json!({"priority": 100, "preemption": "Never", "mayUse": ["Nominal"]});
    FleetOptions {
        seed: 1,
        clock: clock.clone(),
        network: Arc::new(Pipes::default()),
        store: Arc::new(MemoryStore::new(clock.clone())),
        hubs: vec![piped_hub(0)],
        execution: Execution::Inline,
        regions: vec![region("east"), region("west")],
        objects: vec![
            object("WorkloadClass", "train", &train),
            object("WorkloadClass", "serve", &serve),
            object("Tenant", "team", &json!({})),
        ],
    }
}

fn submission(name: &str, class: &str, pods: u32, change: &Value) -> Submission {
    let mut spec = json!({
        "workloadClass": class,
        "roles": [{
            "name": "worker", "replicas": pods, "gpus": 8,
            "resources": {"cpu": "8", "memory": "64Gi"},
            "template": {"metadata": {"annotations": {
                "meridian.dev/simulated-runtime": "7200s",
            }}},
        }],
    });
    for (field, value) in change.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    Submission {
        job: json!({
            "apiVersion": "meridian.dev/v1alpha1", "kind": "FederatedJob",
            "metadata": {"name": name, "namespace": "team"}, "spec": spec,
        }),
        idempotency_key: name.to_owned(),
        dry_run: DryRun::No,
        plan_token: String::new(),
    }
}

async fn status(client: &Client, name: &str) -> FederatedJobStatus {
    let job = client.get_as::<FederatedJobSpec>("team", name).await;
    job.expect("it is there").status.unwrap_or_default()
}

/// The gang of a job once it runs in that cluster.
async fn running(clock: &Clock, client: &Client, name: &str, cluster: &str) -> GangStatus {
    let there = async {
        loop {
            let status = status(client, name).await;
            let gang = status.gangs.into_iter().next();
            if let Some(gang) = gang.filter(|gang| {
                gang.state == Phase::Running && gang.cluster.as_deref() == Some(cluster)
            }) {
                return gang;
            }
            clock.sleep(Millis::seconds(1)).await;
        }
    };
    let there = clock.timeout(WITHIN, there).await;
    there.unwrap_or_else(|late| panic!("{late}: {name} in {cluster}"))
}

/// What the job says while it makes room for another.
async fn preempted(clock: &Clock, client: &Client, name: &str) -> String {
    let told = async {
        loop {
            let status = status(client, name).await;
            if status.reason == "Preempted" {
                return status.message;
            }
            clock.sleep(Millis(100)).await;
        }
    };
    let told = clock.timeout(WITHIN, told).await;
    told.unwrap_or_else(|late| panic!("{late}: {name} does not make room"))
}

/// When user code of each epoch of each gang ran, whatever was reported.
fn runs(clusters: [&SimulatedCluster; 2], now: UnixMillis) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for cluster in clusters {
        for event in cluster.history(now) {
            match event.what {
                Truth::Started => runs.push(Run {
                    gang: event.key.gang,
                    epoch: event.key.epoch,
                    from: event.at,
                    until: None,
                }),
                Truth::Ended => {
                    let open = runs.iter_mut().find(|run| {
                        run.gang == event.key.gang
                            && run.epoch == event.key.epoch
                            && run.until.is_none()
                    });
                    if let Some(run) = open {
                        run.until = Some(event.at);
                    }
                }
            }
        }
    }
    runs
}

#[tokio::test(start_paused = true)]
async fn a_victim_saves_its_work_moves_to_another_region_and_goes_on_there() {
    let clock = Clock::simulated(UnixMillis(1_700_000_000_000));
    let mut fleet = Fleet::start(options(&clock)).await.expect("it starts");
    let client = fleet.client(0).expect("a client");
    let saves = json!({
        "checkpoint": {"uri": "s3://models/train"},
        "placement": {"regions": {"ordered": ["east", "west"]}},
    });
    let train = client.submit(submission("train", "train", 2, &saves)).await;
    train.expect("it is stored");
    let before = running(&clock, &client, "train", CLUSTERS[0]).await;
    // Long enough that there is work to lose.
    clock.sleep(Millis::seconds(600)).await;

    let only_east = json!({"placement": {"regions": {"ordered": ["east"]}}});
    let serve = submission("serve", "serve", 1, &only_east);
    // Whoever asks first hears who would go, and that is who goes.
    let plan = client.plan(&serve.job).await.expect("it is planned");
    let said = plan.reasons.iter().map(|it| it.message.as_str());
    let said: Vec<&str> = said.collect();
    assert!(
        said[0].contains("team/train gang 0 give up 16 GPUs"),
        "{said:?}"
    );
    assert_eq!(
        status(&client, "train").await.phase,
        Phase::Running,
        "asking is free"
    );
    client.submit(serve).await.expect("it is stored");
    let told = preempted(&clock, &client, "train").await;
    assert!(
        told.contains("makes room for team/serve, because its class is lower"),
        "{told}"
    );
    running(&clock, &client, "serve", CLUSTERS[0]).await;
    let after = running(&clock, &client, "train", CLUSTERS[1]).await;
    assert!(after.epoch > before.epoch, "{after:?}");

    let cluster = |name: &str| fleet.cluster(name).expect("it is there");
    let clusters = CLUSTERS.map(cluster);
    assert_eq!(exclusive_runs(&runs(clusters, clock.wall())), []);
    let ran_on: Vec<Epoch> = clusters[1]
        .history(clock.wall())
        .iter()
        .map(|event| event.key.epoch)
        .collect();
    assert!(!ran_on.is_empty() && ran_on.iter().all(|epoch| Some(*epoch) == after.epoch));
    fleet.stop().await.expect("everybody stops");
}

#[tokio::test(start_paused = true)]
async fn one_that_will_not_go_is_ended_in_time_and_nobody_else_takes_its_room() {
    let clock = Clock::simulated(UnixMillis(1_700_000_000_000));
    let mut fleet = Fleet::start(options(&clock)).await.expect("it starts");
    let client = fleet.client(0).expect("a client");
    let east = json!({"placement": {"regions": {"ordered": ["east"]}}});
    let mut stubborn = submission("stubborn", "train", 2, &east);
    let annotations = &mut stubborn.job["spec"]["roles"][0]["template"]["metadata"]["annotations"];
    annotations["meridian.dev/simulated-ignores-sigterm"] = json!("true");
    client.submit(stubborn).await.expect("it is stored");
    running(&clock, &client, "stubborn", CLUSTERS[0]).await;
    // It waits for the same hosts, and is there first.
    let small = submission("small", "train", 1, &east);
    client.submit(small).await.expect("it is stored");
    clock.sleep(Millis::seconds(60)).await;

    let asked = clock.wall();
    let serve = submission("serve", "serve", 2, &east);
    client.submit(serve).await.expect("it is stored");
    running(&clock, &client, "serve", CLUSTERS[0]).await;
    let history = fleet
        .cluster(CLUSTERS[0])
        .expect("there")
        .history(clock.wall());
    let ended = history.iter().filter(|it| it.what == Truth::Ended);
    let ended: Vec<UnixMillis> = ended.map(|it| it.at).collect();
    // The notice of its class, the way there and back, and one round.
    let most = Millis::seconds(60 + 10);
    assert!(
        !ended.is_empty() && ended.iter().all(|at| at.since(asked) <= most),
        "asked at {asked:?}: {ended:?}"
    );
    let small = status(&client, "small").await;
    assert!(
        small.gangs.iter().all(|gang| gang.cluster.is_none()),
        "{small:?}"
    );
    fleet.stop().await.expect("everybody stops");
}

#[tokio::test(start_paused = true)]
async fn an_elastic_gang_goes_on_smaller_and_nobody_dies() {
    let clock = Clock::simulated(UnixMillis(1_700_000_000_000));
    let mut fleet = Fleet::start(options(&clock)).await.expect("it starts");
    let client = fleet.client(0).expect("a client");
    let elastic = json!({
        "elasticity": {"role": "worker", "min": 1, "max": 2},
        "placement": {"regions": {"ordered": ["east"]}},
    });
    let elastic = submission("train", "train", 2, &elastic);
    client.submit(elastic).await.expect("it is stored");
    let before = running(&clock, &client, "train", CLUSTERS[0]).await;
    assert_eq!(before.pods, 2);

    let only_east = json!({"placement": {"regions": {"ordered": ["east"]}}});
    let serve = client
        .submit(submission("serve", "serve", 1, &only_east))
        .await;
    serve.expect("it is stored");
    running(&clock, &client, "serve", CLUSTERS[0]).await;
    let after = running(&clock, &client, "train", CLUSTERS[0]).await;
    assert_eq!(
        (after.pods, after.epoch),
        (1, before.epoch),
        "it got smaller"
    );
    fleet.stop().await.expect("everybody stops");
}
