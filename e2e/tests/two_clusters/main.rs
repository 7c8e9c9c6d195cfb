//! Two member clusters under one hub, each a real API server with fake nodes and the agent that has
//! joined for it: what is one cluster's never reaches the other.
//!
//! Owns the promises that nobody gets another's name (S31), that an agent touches only what is its
//! own cluster's (S30), and that what a job carries is only where its placement is (S36). What is
//! claimed is read from the API servers. Every lie that there is, is told in `own_cluster`.

#[path = "../own_cluster/raw.rs"]
#[allow(dead_code, reason = "the other test uses all of it")]
mod raw;
mod world;

use meridian_e2e::deployment::LONG;
use meridian_proto::v1;
use meridian_proto::v1::agent_message::Body as Says;
use raw::observation;
use serde_json::json;
use world::{CLUSTERS, LATECOMER, STRANGER, World, carried, job, other_than};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_one_clusters_never_reaches_another() {
    let test = "what_is_one_clusters_never_reaches_another";
    let Some(mut world) = World::start(test).await else {
        return;
    };
    Box::pin(what_a_job_carries_goes_where_it_goes(&world)).await;

    let [here, there] = CLUSTERS;
    for cluster in CLUSTERS {
        world.submit(job(cluster, 2, &[cluster])).await;
        world.runs(cluster, 2, cluster).await;
    }
    let before = [world.everything(here).await, world.everything(there).await];
    for (cluster, objects) in CLUSTERS.iter().zip(&before) {
        let own = |object: &String| object.starts_with(cluster);
        assert!(objects.len() >= 2 && objects.iter().all(own), "{objects:?}");
    }
    Box::pin(nobody_gets_anothers_name(&world)).await;
    Box::pin(a_stranger_changes_nothing(&mut world)).await;
    let after = [world.everything(here).await, world.everything(there).await];
    assert_eq!(after, before, "nothing was made, changed or asked to end");
    Box::pin(world.end()).await;
}

/// Its ConfigMap comes with it, moves with it, and goes with it.
async fn what_a_job_carries_goes_where_it_goes(world: &World) {
    let map = json!({"configMaps": [{"name": "settings", "data": {"lr": "0.1"}}]});
    let carrier = job("carrier", 2, &CLUSTERS).with("/spec/carried", map);
    world.submit(carrier).await;
    let first = world.placed("carrier").await;
    let second = other_than(first);
    assert_eq!(carried(world, first).await, ["nlp/settings lr=0.1"]);
    assert_eq!(carried(world, second).await, [] as [String; 0]);

    let drain = ["cluster", "drain", first, "--yes", "--wait"];
    world.fleet.meridian(drain).await.succeeded();
    world.runs("carrier", 2, second).await;
    let moved = async || {
        let there = carried(world, second).await;
        let left = carried(world, first).await;
        (there.len() == 1 && left.is_empty()).then_some(())
    };
    world
        .fleet
        .until("it has moved with its job", LONG, moved)
        .await;
    let uncordon = ["cluster", "uncordon", first];
    world.fleet.meridian(uncordon).await.succeeded();

    world.delete("carrier").await;
    let gone = async || {
        let [here, there] = [
            world.everything(first).await,
            world.everything(second).await,
        ];
        (here.is_empty() && there.is_empty()).then_some(())
    };
    world
        .fleet
        .until("it has gone with its job", LONG, gone)
        .await;
}

/// Whatever a request for a certificate says of itself, under the certificate or the token of one
/// cluster nobody comes to speak for another, while the agents of both are attached.
async fn nobody_gets_anothers_name(world: &World) {
    let [here, there] = CLUSTERS;
    // As the agent of one of them. It is not used: the agent's own would end with that.
    let agent = world.identity_of(here);
    let renewed = world.renews_asking_for(&agent, there).await;
    assert_eq!(renewed.cluster, here);
    // By a token of another cluster, and under what that gave.
    let invitation = world.fleet.invite(LATECOMER).await;
    let joined = world.joins_asking_for(&invitation, there).await;
    let joined = joined.expect("the token is good");
    let renewed = world.renews_asking_for(&joined.identity(), there).await;
    for certified in [joined, renewed] {
        assert_eq!(certified.cluster, LATECOMER);
        world.speaks_only_for(&certified, there).await;
    }
    // By the same token once more, with another key.
    let again = world.joins_asking_for(&invitation, there).await.map(drop);
    let again = again.expect_err("it is used");
    assert!(again.message().contains("used by another agent"), "{again}");
}

/// An agent that has joined for a third cluster says that the gang of another has ended, never ran
/// or was refused.
async fn a_stranger_changes_nothing(world: &mut World) {
    let [_, there] = CLUSTERS;
    let (gang, epoch) = world.gang_in(there).await;
    let before = world.status(there).await;
    for epoch in [epoch, epoch + 1] {
        let ended = v1::GangObservation {
            reason: "NodeLost".to_owned(),
            ..observation(Some(gang.clone()), epoch, v1::GangStep::Failed)
        };
        let refusal = v1::Refusal {
            gang: Some(gang.clone()),
            epoch,
            reason: "Fenced".to_owned(),
            highest_epoch: u64::MAX,
            ..v1::Refusal::default()
        };
        let gone = v1::Digest {
            removed_gangs: vec![gang.clone()],
            ..v1::Digest::default()
        };
        let report = v1::PlacementReport { gangs: vec![ended] };
        for lie in [
            Says::Report(report),
            Says::Refusal(refusal),
            Says::Digest(gone),
        ] {
            world.stranger.says(lie).await;
        }
    }
    world.stranger_is_heard().await;
    assert_eq!(world.status(there).await, before, "said by {STRANGER}");
}
