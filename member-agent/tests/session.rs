//! The agent against a scripted hub, on simulated time.
//!
//! Owns the promises of the session: what is ordered runs and is told, what is refused has no
//! effect, what ended is proved, and a restart neither loses nor doubles.

mod common;

use common::{Does, World, four_hosts, gang, run, stop};
use meridian_agent::simulated::{Profile, Truth};
use meridian_proto::v1::GangStep;

fn starts(world: &World) -> usize {
    let history = world.cluster.history(world.now());
    history
        .iter()
        .filter(|event| event.what == Truth::Started)
        .count()
}

#[tokio::test(start_paused = true)]
async fn a_gang_runs_ends_and_is_forgotten() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    assert!(hub.hello.digest.as_ref().is_some_and(|digest| digest.full));
    hub.order(vec![run(gang(0), 1, 3, Does::RunAMinute)]).await;
    hub.until_step(gang(0), 1, GangStep::Running).await;
    hub.until("taken out of the shapes", |line| {
        let pool = line.digests.last().and_then(|digest| digest.pools.last());
        pool.is_some_and(|pool| pool.shapes.iter().any(|shape| shape.hosts == 1))
    })
    .await;
    hub.until_step(gang(0), 1, GangStep::Succeeded).await;
    hub.order(vec![stop(gang(0), 1)]).await;
    hub.until("forgotten", |line| !line.gangs.contains_key(&gang(0)))
        .await;
    assert_eq!(starts(&world), 3);
    assert!(world.cluster.snapshot(world.now()).gangs.is_empty());
    agent.shutdown().await;
}
