//! Gangs that others made, on simulated time: how the hub hears of them.
//!
//! Owns the promise that an offer is told whole once, then as what changed, and that its end is
//! said and not left out. Never lets the agent start one by itself.

mod common;

use common::{World, four_hosts};
use meridian_agent::backend::{OfferSeen, OfferedRole};
use meridian_agent::simulated::Profile;
use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Millis, Resources};

fn offer(uid: &str, pods: u32) -> OfferSeen {
    OfferSeen {
        uid: uid.to_owned(),
        namespace: "nlp".to_owned(),
        name: "notebook".to_owned(),
        class: String::new(),
        roles: vec![OfferedRole {
            name: "worker".to_owned(),
            pods,
            request: Resources {
                gpus: MilliGpus::cards(8),
                cpu: MilliCpus(1_000),
                memory: Mebibytes(1_024),
            },
            required: Some("block".to_owned()),
            preferred: None,
        }],
        flavors: Vec::new(),
        priority: 3,
    }
}

#[tokio::test(start_paused = true)]
async fn an_offer_is_told_once_then_its_changes_then_its_end() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    world.cluster.offer(world.now(), offer("u-1", 2));
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    let hello = hub.hello.digest.clone().expect("a digest");
    assert_eq!(hello.offers.len(), 1, "the first digest holds everything");
    let told = &hello.offers[0];
    assert_eq!((told.uid.as_str(), told.priority), ("u-1", 3));
    assert_eq!(told.topology[0].required, "block");
    world.cluster.offer(world.now(), offer("u-2", 1));
    hub.until("the second offer", |line| {
        let last = line.digests.last();
        last.is_some_and(|digest| !digest.full && digest.offers.len() == 1)
    })
    .await;
    assert_eq!(hub.digests.last().expect("just seen").offers[0].uid, "u-2");
    world.cluster.withdraw(world.now(), "u-1");
    hub.until("the first one's end", |line| {
        let last = line.digests.last();
        last.is_some_and(|digest| digest.removed_offers == ["u-1"])
    })
    .await;
    hub.listen_for(Millis::seconds(60)).await;
    let truth = world.cluster.history(world.now());
    assert!(
        truth.is_empty(),
        "without an intent nothing runs: {truth:?}"
    );
    agent.shutdown().await;
}
