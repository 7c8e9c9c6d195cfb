//! The harness keeps its own promises: a killed etcd leader is replaced, and comes back.
//!
//! Owns what every test on real processes leans on. Never tests a hub.

use meridian_api::units::Millis;
use meridian_e2e::etcd::{Durability, Etcd, Members};
use meridian_e2e::process::Harness;
use meridian_e2e::tools::Tool;

/// Longer than two elections on a busy machine.
const ELECTION: Millis = Millis::seconds(30);

#[tokio::test]
async fn three_members_survive_the_loss_of_their_leader() {
    let Some(program) = Tool::Etcd.or_skip("three_members_survive_the_loss_of_their_leader") else {
        return;
    };
    let harness = Harness::new();
    let etcd = Etcd::start(&harness, &program, Members::Three, Durability::NoFsync).await;
    let mut etcd = etcd.expect("three members start");
    let first = etcd.leader(ELECTION).await.expect("a leader");
    let mut client = etcd_client::Client::connect(etcd.endpoints(), None)
        .await
        .expect("a client connects");
    client
        .put("key", "before", None)
        .await
        .expect("a majority writes");

    etcd.kill(first).await.expect("killed");
    let second = etcd.leader(ELECTION).await.expect("another leader");
    assert_ne!(first, second);

    etcd.start_again(first).await.expect("it comes back");
    let answer = client.get("key", None).await.expect("a majority reads");
    assert_eq!(answer.kvs()[0].value(), b"before");
}

#[tokio::test]
async fn one_member_keeps_what_it_has_through_a_kill() {
    let Some(program) = Tool::Etcd.or_skip("one_member_keeps_what_it_has_through_a_kill") else {
        return;
    };
    let harness = Harness::new();
    let etcd = Etcd::start(&harness, &program, Members::One, Durability::Fsync).await;
    let mut etcd = etcd.expect("it starts");
    let mut client = etcd_client::Client::connect(etcd.endpoints(), None)
        .await
        .expect("a client connects");
    client.put("key", "kept", None).await.expect("it writes");
    etcd.kill(0).await.expect("killed");
    etcd.start_again(0).await.expect("it comes back");
    let answer = client.get("key", None).await.expect("it reads");
    assert_eq!(answer.kvs()[0].value(), b"kept");
}
