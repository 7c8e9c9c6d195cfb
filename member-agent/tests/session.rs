//! The agent against a scripted hub, on simulated time.
//!
//! Owns the promises of the session: what is ordered runs and is told, what is refused has no
//! effect, what ended is proved, and a restart neither loses nor doubles.

mod common;

use common::{BEAT, Does, HOST, TestDisk, World, four_hosts, gang, run, stop};
use meridian_agent::Contact;
use meridian_agent::simulated::{Api, Profile, Truth};
use meridian_api::ids::Epoch;
use meridian_api::units::Millis;
use meridian_proto::v1::{self, GangStep, hub_message};

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

#[tokio::test(start_paused = true)]
async fn every_fence_refuses_by_its_own_name_and_without_effect() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    let fence = |store_generation, term| {
        Some(v1::Fence {
            store_generation,
            term,
        })
    };
    hub.order(vec![run(gang(0), 5, 1, Does::RunForever)]).await;
    hub.until_step(gang(0), 5, GangStep::Running).await;
    let wanted = vec![run(gang(1), 1, 1, Does::RunForever)];
    let old_history = v1::Intent {
        fence: fence(0, 99),
        ..hub.intent(wanted.clone())
    };
    let deposed = v1::Intent {
        fence: fence(1, 9),
        ..hub.intent(wanted.clone())
    };
    let other_life = v1::Intent {
        incarnation: 77,
        ..hub.intent(wanted.clone())
    };
    let overtaken = v1::Intent {
        generation: 3,
        ..hub.intent(wanted.clone())
    };
    let unfenced = v1::Intent {
        fence: None,
        ..hub.intent(wanted)
    };
    let old_epoch = hub.intent(vec![stop(gang(0), 4)]);
    let refused = [
        old_history,
        deposed,
        other_life,
        overtaken,
        unfenced,
        old_epoch,
    ];
    for intent in refused {
        hub.say(hub_message::Body::Intent(intent)).await;
    }
    hub.until("six refusals", |line| line.refusals.len() == 6)
        .await;
    let reasons = [
        "StaleStoreGeneration",
        "StaleTerm",
        "StaleIncarnation",
        "StaleGeneration",
        "Malformed",
        "StaleEpoch",
    ];
    assert_eq!(hub.refused(), reasons);
    assert_eq!(hub.refusals[5].highest_epoch, 5);
    hub.listen_for(Millis::seconds(60)).await;
    assert!(hub.is_at(gang(0), 5, GangStep::Running));
    assert_eq!(starts(&world), 1);
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn one_bad_placement_does_not_spoil_the_others_and_never_starts() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    let mut bad = run(gang(0), 1, 1, Does::RunForever);
    bad.roles[0].template_sha256 = vec![9; 32].into();
    hub.order(vec![bad, run(gang(1), 1, 1, Does::RunForever)])
        .await;
    hub.until_step(gang(1), 1, GangStep::Running).await;
    assert_eq!(hub.refused(), ["Malformed"]);
    assert!(hub.refusals[0].message.contains("not sent with it"));
    // The hub may have placed it elsewhere since: this epoch is over here.
    hub.order(vec![run(gang(0), 1, 1, Does::RunForever)]).await;
    hub.until("refused again", |line| line.refusals.len() == 2)
        .await;
    assert_eq!(hub.refused()[1], "EpochOver");
    hub.order(vec![run(gang(0), 2, 1, Does::RunForever)]).await;
    hub.until_step(gang(0), 2, GangStep::Running).await;
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_same_intent_twice_changes_nothing() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    let intent = hub.intent(vec![run(gang(0), 1, 2, Does::RunForever)]);
    for _ in 0..3 {
        hub.say(hub_message::Body::Intent(intent.clone())).await;
    }
    hub.until_step(gang(0), 1, GangStep::Running).await;
    hub.say(hub_message::Body::Intent(intent)).await;
    hub.listen_for(Millis::seconds(60)).await;
    assert_eq!((starts(&world), hub.refusals.len()), (2, 0));
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_older_epoch_is_dead_before_a_newer_one_starts() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![run(gang(0), 1, 2, Does::IgnoreSigterm)])
        .await;
    hub.until_step(gang(0), 1, GangStep::Running).await;
    hub.order(vec![run(gang(0), 2, 2, Does::RunForever)]).await;
    hub.until_step(gang(0), 2, GangStep::Running).await;
    let history = world.cluster.history(world.now());
    let dead = history
        .iter()
        .filter(|e| e.key.epoch == Epoch(1))
        .map(|e| e.at)
        .max();
    let started = history
        .iter()
        .filter(|e| e.key.epoch == Epoch(2))
        .map(|e| e.at)
        .min();
    assert!(
        dead < started,
        "epoch 1 ended {dead:?}, epoch 2 started {started:?}"
    );
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_neither_loses_nor_doubles() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    let placed = [
        run(gang(0), 1, 2, Does::RunForever),
        run(gang(1), 1, 1, Does::RunForever),
    ];
    hub.order(placed.to_vec()).await;
    hub.until_step(gang(0), 1, GangStep::Running).await;
    agent.kill().await;
    let agent = world.agent().await;
    let again = world.dialled().await;
    let first = (hub.hello.credential.clone(), hub.generation);
    assert_eq!(
        (
            again.hello.credential.clone(),
            again.hello.last_intent_generation
        ),
        first
    );
    assert_eq!(again.hello.last_incarnation, hub.incarnation);
    assert!(again.is_at(gang(0), 1, GangStep::Running));
    again.welcome().await;
    let mut hub = again;
    let full = v1::Intent {
        full: true,
        ..hub.intent(placed.to_vec())
    };
    hub.say(hub_message::Body::Intent(full)).await;
    hub.until_step(gang(1), 1, GangStep::Running).await;
    hub.listen_for(Millis::seconds(60)).await;
    assert_eq!(starts(&world), 3);
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_ended_while_no_agent_lived_is_told() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![run(gang(0), 1, 2, Does::RunAMinute)]).await;
    hub.until_step(gang(0), 1, GangStep::Running).await;
    agent.kill().await;
    world.clock.sleep(Millis::seconds(600)).await;
    let agent = world.agent().await;
    let hub = world.attached().await;
    assert!(hub.is_at(gang(0), 1, GangStep::Succeeded));
    let seen = &hub.gangs[&gang(0)];
    // From the first start to the last end: a minute and the spread of the two starts.
    assert!(
        (60_000..75_000).contains(&(seen.ended_ms - seen.started_ms)),
        "{seen:?}"
    );
    assert!(seen.ended_ms < world.now().0 - 500_000);
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_gang_that_ignores_sigterm_is_killed_at_the_end_of_its_grace() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![run(gang(0), 1, 2, Does::IgnoreSigterm)])
        .await;
    hub.until_step(gang(0), 1, GangStep::Running).await;
    let asked = world.now();
    hub.order(vec![stop(gang(0), 1)]).await;
    hub.until_step(gang(0), 1, GangStep::Stopping).await;
    hub.until_step(gang(0), 1, GangStep::Stopped).await;
    let took = world.now().since(asked);
    assert!(
        (Millis(10_000)..Millis(11_000)).contains(&took),
        "took {took}"
    );
    let runs = world.cluster.history(world.now()).len();
    assert_eq!(runs, 4, "two starts, two ends");
    hub.until("forgotten", |line| !line.gangs.contains_key(&gang(0)))
        .await;
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_of_what_is_not_here_is_proved_and_closes_the_epoch() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![stop(gang(0), 3)]).await;
    hub.until_step(gang(0), 3, GangStep::Stopped).await;
    hub.until("forgotten", |line| !line.gangs.contains_key(&gang(0)))
        .await;
    hub.order(vec![run(gang(0), 3, 1, Does::RunForever)]).await;
    hub.until("a refusal", |line| !line.refusals.is_empty())
        .await;
    assert_eq!(hub.refused(), ["EpochOver"]);
    assert_eq!(starts(&world), 0);
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_in_time_fails_with_what_was_in_the_way() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![
        run(gang(0), 1, 3, Does::RunForever),
        run(gang(1), 1, 2, Does::RunForever),
    ])
    .await;
    hub.until_step(gang(1), 1, GangStep::Failed).await;
    let seen = &hub.gangs[&gang(1)];
    assert_eq!(seen.reason, "PlaceTimeout");
    assert!(seen.message.contains("120000ms: "), "{}", seen.message);
    assert!(hub.is_at(gang(0), 1, GangStep::Running));
    assert_eq!(starts(&world), 3);
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_waiting_gang_starts_when_room_comes_free() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![
        run(gang(0), 1, 3, Does::RunAMinute),
        run(gang(1), 1, 2, Does::RunForever),
    ])
    .await;
    hub.until_step(gang(0), 1, GangStep::Succeeded).await;
    hub.until_step(gang(1), 1, GangStep::Running).await;
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn nodes_that_turn_everything_away_fail_the_gang_whole() {
    let profile = Profile {
        refusals_per_mille: 1000,
        ..Profile::default()
    };
    let mut world = World::new(&four_hosts(), profile).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![run(gang(0), 1, 2, Does::RunForever)]).await;
    hub.until_step(gang(0), 1, GangStep::Failed).await;
    assert_eq!(hub.gangs[&gang(0)].reason, "PlacementRefused");
    assert_eq!(starts(&world), 0);
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_race_lost_at_a_node_is_placed_again_elsewhere() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    // Held by somebody whom the API does not show yet: the node alone knows.
    world
        .cluster
        .hide_foreign(world.now(), "h100-0000", HOST.into());
    hub.order(vec![run(gang(0), 1, 2, Does::RunForever)]).await;
    hub.until_step(gang(0), 1, GangStep::Running).await;
    let gangs = world.cluster.snapshot(world.now()).gangs;
    assert_eq!(gangs[0].attempt, 1);
    assert!(gangs[0].pods.iter().all(|pod| pod.node != "h100-0000"));
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_node_fails_its_gang_and_leaves_the_shapes() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![run(gang(0), 1, 2, Does::RunForever)]).await;
    hub.until_step(gang(0), 1, GangStep::Running).await;
    let node = world.cluster.snapshot(world.now()).gangs[0].pods[0]
        .node
        .clone();
    world.cluster.fail_node(world.now(), &node);
    hub.until_step(gang(0), 1, GangStep::Failed).await;
    assert_eq!(hub.gangs[&gang(0)].reason, "NodeLost");
    hub.until("out of the shapes", |line| {
        let pools = line
            .digests
            .iter()
            .rev()
            .find_map(|digest| digest.pools.last());
        pools.is_some_and(|pool| pool.out_milli_gpus == 8_000)
    })
    .await;
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_exit_code_is_told() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![run(gang(0), 1, 2, Does::ExitWithThree)])
        .await;
    hub.until_step(gang(0), 1, GangStep::Failed).await;
    let seen = &hub.gangs[&gang(0)];
    assert_eq!((seen.reason.as_str(), seen.exit_code), ("ExitCode", 3));
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_runs_longer_than_it_may_is_ended() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    let limited = v1::PlacementIntent {
        max_runtime_ms: 60_000,
        ..run(gang(0), 1, 1, Does::RunForever)
    };
    hub.order(vec![limited]).await;
    hub.until_step(gang(0), 1, GangStep::Running).await;
    // Its own clock ends it, hub or no hub, and a new life of the agent counts from the start.
    agent.kill().await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.until_step(gang(0), 1, GangStep::Failed).await;
    let seen = &hub.gangs[&gang(0)];
    assert_eq!(seen.reason, "RuntimeExceeded");
    assert!((60_000..75_000).contains(&(seen.ended_ms - seen.started_ms)));
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_gang_that_nobody_ordered_is_listed_and_left_alone() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![run(gang(0), 7, 2, Does::RunForever)]).await;
    hub.until_step(gang(0), 7, GangStep::Running).await;
    agent.kill().await;
    // The state folder is lost: another agent, which knows nothing.
    world.disk = TestDisk::default();
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    assert!(hub.is_at(gang(0), 7, GangStep::Running));
    let empty = v1::Intent {
        full: true,
        ..hub.intent(Vec::new())
    };
    hub.say(hub_message::Body::Intent(empty)).await;
    hub.listen_for(Millis::seconds(3600)).await;
    assert!(hub.is_at(gang(0), 7, GangStep::Running));
    // Named by an order, it is what was ordered; and a stop stops it.
    hub.order(vec![run(gang(0), 7, 2, Does::RunForever)]).await;
    hub.order(vec![stop(gang(0), 7)]).await;
    hub.until_step(gang(0), 7, GangStep::Stopped).await;
    assert_eq!(starts(&world), 2);
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn everything_goes_on_while_no_hub_answers() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![
        run(gang(0), 1, 2, Does::RunForever),
        run(gang(1), 1, 1, Does::RunAMinute),
    ])
    .await;
    hub.until_step(gang(0), 1, GangStep::Running).await;
    hub.hang_up(tonic::Status::unavailable("going away")).await;
    // Dials, is never welcomed, and dials again.
    for _ in 0..20 {
        drop(world.dialled().await);
    }
    let hub = world.attached().await;
    assert!(hub.is_at(gang(0), 1, GangStep::Running));
    assert!(hub.is_at(gang(1), 1, GangStep::Succeeded));
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_hub_is_left_after_three_beats() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let hub = world.dialled_but_silent().await;
    hub.welcome().await;
    let since = world.now();
    let _again = world.dialled().await;
    let took = world.now().since(since);
    assert!(
        took > Millis(3 * BEAT.0) && took < Millis(3 * BEAT.0 + 13_000),
        "took {took}"
    );
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_missing_api_is_no_outage_and_nothing_is_believed_gone() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![run(gang(0), 1, 2, Does::RunForever)]).await;
    hub.until_step(gang(0), 1, GangStep::Running).await;
    world.cluster.set_api(world.now(), Api::Down);
    hub.order(vec![stop(gang(0), 1)]).await;
    hub.listen_for(Millis::seconds(120)).await;
    assert!(hub.is_at(gang(0), 1, GangStep::Stopping));
    world.cluster.set_api(world.now(), Api::Up);
    hub.until_step(gang(0), 1, GangStep::Stopped).await;
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_of_another_protocol_gets_a_clear_error() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut contact = agent.contact();
    let hub = world.dialled().await;
    let status = tonic::Status::failed_precondition("agent 0.1.0 speaks 1, this hub 7 to 9");
    hub.hang_up(status).await;
    let refused = contact
        .wait_for(|contact| matches!(contact, Contact::Refused { .. }))
        .await;
    let Contact::Refused { message, .. } = refused.expect("the agent lives").clone() else {
        panic!("refused")
    };
    assert!(message.contains("this hub 7 to 9"), "{message}");
    let hub = world.dialled().await;
    let odd = v1::Welcome {
        protocol: 9,
        ..hub.welcome_message()
    };
    hub.say(hub_message::Body::Welcome(odd)).await;
    let worded = |contact: &Contact| match contact {
        Contact::Refused { message, .. } => message.contains("picked session protocol 9"),
        Contact::Dialling | Contact::Attached { .. } => false,
    };
    contact.wait_for(worded).await.expect("the agent lives");
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_deposed_is_not_served() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut contact = agent.contact();
    let hub = world.attached().await;
    hub.hang_up(tonic::Status::unavailable("going away")).await;
    let hub = world.dialled().await;
    assert_eq!(hub.hello.highest_fence, Some(hub.fence));
    let old = v1::Fence {
        store_generation: 1,
        term: 9,
    };
    let welcome = v1::Welcome {
        fence: Some(old),
        ..hub.welcome_message()
    };
    hub.say(hub_message::Body::Welcome(welcome)).await;
    let worded = |contact: &Contact| match contact {
        Contact::Refused { message, .. } => message.contains("StaleTerm"),
        Contact::Dialling | Contact::Attached { .. } => false,
    };
    contact.wait_for(worded).await.expect("the agent lives");
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_follower_names_the_leader_and_the_agent_goes_there() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let leader = world.second_hub("leader:7700").await;
    let agent = world.agent().await;
    let hub = world.dialled().await;
    let mut status = tonic::Status::unavailable("this hub does not lead");
    status
        .metadata_mut()
        .insert("meridian-leader", "leader:7700".parse().expect("ascii"));
    hub.hang_up(status).await;
    let mut contact = agent.contact();
    let mut led = world.dialled_at(leader).await;
    led.welcome().await;
    led.order(vec![run(gang(0), 1, 1, Does::RunForever)]).await;
    led.until_step(gang(0), 1, GangStep::Running).await;
    let there = |contact: &Contact| match contact {
        Contact::Attached { hub, .. } => hub == "leader:7700",
        Contact::Dialling | Contact::Refused { .. } => false,
    };
    contact.wait_for(there).await.expect("the agent lives");
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_full_digest_is_sent_when_asked_for() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.say(hub_message::Body::DigestRequest(v1::DigestRequest {}))
        .await;
    hub.until("a second full digest", |line| {
        line.digests.iter().filter(|digest| digest.full).count() == 2
    })
    .await;
    let sequences: Vec<u64> = hub.digests.iter().map(|digest| digest.sequence).collect();
    assert!(
        sequences.windows(2).all(|pair| pair[0] < pair[1]),
        "{sequences:?}"
    );
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_this_agent_does_not_speak_is_refused_in_words() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    let reserve = v1::Reserve {
        fence: Some(hub.fence),
        placement: Some(run(gang(0), 1, 1, Does::RunForever)),
        hold_ms: 30_000,
    };
    hub.say(hub_message::Body::Reserve(reserve)).await;
    hub.until("a refusal", |line| !line.refusals.is_empty())
        .await;
    assert_eq!(hub.refused(), ["Unsupported"]);
    assert_eq!(hub.refusals[0].gang, Some(gang(0).into()));
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_checkpoint_is_asked_for_and_shown() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![run(gang(0), 1, 1, Does::RunForever)]).await;
    hub.until_step(gang(0), 1, GangStep::Running).await;
    let request = v1::CheckpointRequest {
        fence: Some(hub.fence),
        gang: Some(gang(0).into()),
        epoch: 1,
        deadline_ms: 30_000,
    };
    hub.say(hub_message::Body::CheckpointRequest(request)).await;
    hub.until("a checkpoint", |line| {
        line.gangs[&gang(0)].checkpoint_ms > 0
    })
    .await;
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_or_told_that_is_not_written() {
    let mut world = World::new(&four_hosts(), Profile::default()).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![run(gang(0), 1, 1, Does::RunAMinute)]).await;
    hub.until_step(gang(0), 1, GangStep::Running).await;
    world.disk.set_full(true);
    hub.order(vec![run(gang(1), 1, 1, Does::RunForever)]).await;
    hub.listen_for(Millis::seconds(90)).await;
    assert!(
        hub.is_at(gang(0), 1, GangStep::Running),
        "its end is not written, hence not told"
    );
    assert!(!hub.gangs.contains_key(&gang(1)));
    assert_eq!(starts(&world), 1);
    world.disk.set_full(false);
    hub.until_step(gang(0), 1, GangStep::Succeeded).await;
    hub.until_step(gang(1), 1, GangStep::Running).await;
    agent.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_end_that_was_told_holds_after_a_crash() {
    let profile = Profile {
        refusals_per_mille: 1000,
        ..Profile::default()
    };
    let mut world = World::new(&four_hosts(), profile).await;
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    hub.order(vec![run(gang(0), 1, 2, Does::RunForever)]).await;
    hub.until_step(gang(0), 1, GangStep::Failed).await;
    agent.kill().await;
    world.cluster.set_profile(world.now(), Profile::default());
    let agent = world.agent().await;
    let mut hub = world.attached().await;
    assert!(hub.is_at(gang(0), 1, GangStep::Failed));
    // A hub that has not stored the end yet repeats the order: the gang may run elsewhere by now.
    let repeated = vec![run(gang(0), 1, 2, Does::RunForever)];
    let full = v1::Intent {
        full: true,
        ..hub.intent(repeated)
    };
    hub.say(hub_message::Body::Intent(full)).await;
    hub.listen_for(Millis::seconds(120)).await;
    assert!(hub.is_at(gang(0), 1, GangStep::Failed));
    assert_eq!(starts(&world), 0);
    agent.shutdown().await;
}
