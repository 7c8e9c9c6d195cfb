//! An elastic gang that loses a node, against a scripted hub on simulated time.
//!
//! Owns the promise that it goes on under the same epoch, with another member in the place of the
//! lost one where there is room, else smaller, and that nothing else does.

mod common;

use std::collections::BTreeSet;

use common::{Does, World, four_hosts, gang, run, stop};
use meridian_agent::backend::GangSeen;
use meridian_agent::simulated::{Profile, Truth};
use meridian_api::units::Millis;
use meridian_proto::v1::{self, GangStep};

/// Three pods of which it may lose `may_lose`.
fn elastic(may_lose: u32) -> v1::PlacementIntent {
    let mut order = run(gang(0), 1, 3, Does::RunForever);
    (order.roles[0].min, order.roles[0].step) = (3 - may_lose, 1);
    order
}

/// Nodes of the gang's running pods, by rank.
fn nodes(world: &World) -> Vec<(u32, String)> {
    let snapshot = world.cluster.snapshot(world.now());
    let members = snapshot.gangs.iter().flat_map(GangSeen::members);
    members.map(|pod| (pod.rank, pod.node.clone())).collect()
}

/// Nothing comes to the hosts that the gang is not on.
fn close_spare(world: &World, taken: &[(u32, String)]) {
    let snapshot = world.cluster.snapshot(world.now());
    let names = snapshot.nodes.iter().map(|node| &node.name);
    for name in names.filter(|name| !taken.iter().any(|(_, taken)| taken == *name)) {
        world.cluster.cordon_node(world.now(), name, true);
    }
}

fn starts(world: &World) -> usize {
    let history = world.cluster.history(world.now());
    let started = |event: &&meridian_agent::simulated::TruthEvent| event.what == Truth::Started;
    history.iter().filter(started).count()
}

#[tokio::test(start_paused = true)]
async fn another_takes_the_place_of_the_lost_member() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![elastic(1)]).await;
    hub.until_step(gang(0), 1, GangStep::Running).await;
    let before = nodes(&world);
    // Long after it was accepted: the time to place is counted anew for who comes.
    hub.listen_for(Millis::seconds(3600)).await;
    world.cluster.fail_node(world.now(), &before[1].1);
    // Another pod starts, under the rank of the lost one and the same epoch.
    let mended = async |world: &World| {
        while starts(world) < 4 {
            world.clock.sleep(Millis::seconds(1)).await;
        }
    };
    mended(&world).await;
    hub.until_step(gang(0), 1, GangStep::Running).await;
    let after = nodes(&world);
    let ranks: Vec<u32> = after.iter().map(|(rank, _)| *rank).collect();
    assert_eq!((ranks, after.len()), (vec![0, 2, 1], 3));
    let hosts: BTreeSet<&String> = before.iter().chain(&after).map(|(_, host)| host).collect();
    assert_eq!(hosts.len(), 4, "the spare host was taken: {after:?}");
    let sizes = hub.gangs[&gang(0)].sizes.first().map(|size| size.pods);
    assert_ne!(sizes, Some(2), "it did not get smaller");
    hub.listen_for(Millis::seconds(3600)).await;
    assert!(hub.is_at(gang(0), 1, GangStep::Running));
    assert_eq!(starts(&world), 4, "nobody else was started again");
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn it_goes_on_without_the_lost_member() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![elastic(1)]).await;
    hub.until_step(gang(0), 1, GangStep::Running).await;
    let before = nodes(&world);
    close_spare(&world, &before);
    world.cluster.fail_node(world.now(), &before[1].1);
    let size = |line: &common::Line| line.gangs[&gang(0)].sizes.first().map(|size| size.pods);
    hub.until("it is smaller", |line| size(line) == Some(2))
        .await;
    assert!(hub.is_at(gang(0), 1, GangStep::Running));
    let left = [before[0].clone(), before[2].clone()];
    assert_eq!(nodes(&world), left, "who is left stays, under its rank");
    assert_eq!(starts(&world), 3, "nobody was started again");
    // A stop ends what is left, and a new life of the agent knows it.
    agent.kill().await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    assert!(hub.is_at(gang(0), 1, GangStep::Running));
    hub.order(vec![stop(gang(0), 1)]).await;
    hub.until_step(gang(0), 1, GangStep::Stopped).await;
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn below_its_least_it_ends_with_the_node() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![elastic(1)]).await;
    hub.until_step(gang(0), 1, GangStep::Running).await;
    let before = nodes(&world);
    close_spare(&world, &before);
    for (_, node) in &before[..2] {
        world.cluster.fail_node(world.now(), node);
    }
    hub.until_step(gang(0), 1, GangStep::Failed).await;
    assert_eq!(hub.gangs[&gang(0)].reason, "NodeLost");
    agent.shutdown().await;
}
