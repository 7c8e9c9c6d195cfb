//! Gangs at scale, on fake nodes behind a real API server: bound whole, and left alone whatever the
//! agent cannot see.
//!
//! Owns the promises that size may break: no card given twice, no gang in parts, nothing stopped
//! because a listing, the API or the hub was not there. A slice of the size runs with the other
//! tests; `make scale` runs all of it. A fake node obeys no gate and refuses no pod: what only a
//! kubelet can show is in `kubernetes_gangs`.

mod front;
mod world;

use front::Way;
use world::{Size, World};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gangs_are_bound_whole_and_left_alone() {
    let Some(mut world) = World::start("gangs_are_bound_whole_and_left_alone").await else {
        return;
    };
    let Size {
        gangs,
        members,
        without_hub,
        ..
    } = world.size;

    // Every gang is whole, and no card has two owners (S6, S9).
    world.submit_all().await;
    let took = world.all_run().await;
    println!("{gangs} gangs of 4 and one of {members} run after {took}");
    let before = world.judge().await;

    // The agent lists again, and is told of less than there is, or of nothing (S18).
    for way in [Way::Nothing, Way::Half, Way::Away] {
        world.front.set(way);
        world.untruths(10).await;
        world.front.set(Way::Truth);
        world.agent_sees_all().await;
        assert_eq!(world.judge().await, before, "{way:?}");
    }

    // So is an agent that has just been born and knows nothing but its records (S18).
    world.front.set(Way::Nothing);
    world.restart_agent().await;
    world.untruths(10).await;
    world.front.set(Way::Truth);
    world.agent_sees_all().await;
    assert_eq!(
        world.judge().await,
        before,
        "an agent that was born to lies"
    );

    // A hub that is gone stops nothing, and finds everything when it is back (S23, shortened).
    world.hub_is_gone_for(without_hub).await;
    assert_eq!(world.judge().await, before, "the hub was gone");
    world.all_run().await;
    assert_eq!(world.judge().await, before, "the hub is back");

    // What is deleted goes, and leaves nothing.
    world.delete_all().await;
    let expected = ["failed with status 503"];
    assert_eq!(world.fleet.errors(&expected), [] as [String; 0]);
    world.stop().await;
}
