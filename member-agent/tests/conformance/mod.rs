//! The conformance suite of cluster backends: what the agent relies on, whatever the cluster.
//!
//! Owns the promises of `ClusterBackend`. Each check takes a `Fixture`, which makes a cluster and
//! breaks it; another backend joins by being another fixture.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "shared by test files that each use a part"
)]

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt as _;
use indexmap::IndexMap;
use meridian_agent::backend::{
    BackendError, ClusterBackend, ClusterEvent, GangKey, GangOrder, GangSeen, GangTerms,
    MemberOrder, NODE_OFF, NodeHealth, Observation, PodPhase, RoleOrder, Stopped, Success,
    Workload,
};
use meridian_agent::simulated::{Api, IGNORES_SIGTERM, RUNTIME};
use meridian_api::ids::{Epoch, GangId, Uid};
use meridian_api::units::{Mebibytes, MilliCpus, MilliGpus, Millis, Resources, UnixMillis};
use meridian_runtime::Clock;
use serde_json::{Value, json};

/// A machine is at most this late with what it does.
const SLACK: Millis = Millis::seconds(5);
/// Longest that a check waits for one event.
pub const DEADLINE: Millis = Millis::seconds(300);

/// A cluster of three hosts `h100-0000..` with eight GPUs each, and the means to break it.
#[async_trait]
pub trait Fixture: Sync {
    /// The interface for one life of an agent.
    fn backend(&self) -> Arc<dyn ClusterBackend>;
    /// Time.
    fn clock(&self) -> Clock;
    /// A grace that is long for this cluster.
    fn grace(&self) -> Millis;
    /// Waits for so long that what has not happened by then does not happen by itself.
    async fn pause(&self);
    /// The API stops answering, or answers again.
    fn api(&self, api: Api);
    /// The next calls are carried out and not answered, or answered again.
    fn lose_answers(&self, lose: bool);
    /// A machine dies, and the cluster gives it up.
    async fn fail_node(&self, node: &str);
    /// Something takes all of a machine, which only the machine itself knows.
    fn occupy(&self, node: &str);
    /// Node, devices, when from and when to, of every pod that ever ran.
    fn ran(&self) -> Vec<Run>;
}

/// Node, devices, when from and when to, of a pod that ran.
pub type Run = (String, Vec<u32>, UnixMillis, Option<UnixMillis>);

pub fn key(index: u32, epoch: u64) -> GangKey {
    GangKey {
        gang: GangId {
            job: Uid(0xb0b),
            index,
        },
        epoch: Epoch(epoch),
    }
}

/// One pod of `gpus` on each of `nodes`.
pub fn order(key: GangKey, gpus: u64, nodes: &[&str], template: Value) -> GangOrder {
    let request = Resources {
        gpus: MilliGpus::cards(gpus),
        cpu: MilliCpus(1),
        memory: Mebibytes(1),
    };
    let role = RoleOrder {
        name: "worker".to_owned(),
        request,
        template: Arc::new(template),
    };
    let member = |(rank, node): (u32, &&str)| MemberOrder {
        role: 0,
        rank,
        node: (*node).to_owned(),
    };
    GangOrder {
        key,
        attempt: 0,
        terms: GangTerms {
            pool: "h100".to_owned(),
            namespace: "ml".to_owned(),
            job: "train".to_owned(),
            grace: Millis::seconds(30),
            max_runtime: None,
            success: Success::All,
        },
        roles: vec![role],
        members: (0..).zip(nodes).map(member).collect(),
        labels: IndexMap::new(),
        workload: Workload::default(),
        traceparent: String::new(),
    }
}

pub fn plain() -> Value {
    json!({"spec": {"containers": [{"name": "main", "image": "train:1"}]}})
}

pub fn annotated(name: &str, value: &str) -> Value {
    let mut template = plain();
    template["metadata"] = json!({"annotations": {name: value}});
    template
}

/// Follows the watch until the gang is as wanted; `None` in `wanted` is "gone".
pub async fn until(
    fixture: &dyn Fixture,
    watch: &mut Observation,
    key: GangKey,
    wanted: impl Fn(Option<&GangSeen>) -> bool,
) {
    let now = |gangs: &[GangSeen]| gangs.iter().find(|gang| gang.key == key).cloned();
    while !wanted(now(&watch.snapshot.gangs).as_ref()) {
        let next = fixture
            .clock()
            .timeout(DEADLINE, watch.changes.next())
            .await;
        let gangs = &mut watch.snapshot.gangs;
        match next.expect("in time").expect("the watch holds") {
            ClusterEvent::Gang(gang) => {
                gangs.retain(|known| known.key != gang.key);
                gangs.push(*gang);
            }
            ClusterEvent::GangGone(gone) => gangs.retain(|known| known.key != gone),
            ClusterEvent::Node(_)
            | ClusterEvent::NodeGone(_)
            | ClusterEvent::Pool(..)
            | ClusterEvent::PoolGone(_)
            | ClusterEvent::Offer(_)
            | ClusterEvent::OfferGone(_)
            | ClusterEvent::HeldBack(_) => {}
        }
    }
}

pub fn all(phase: impl Fn(&PodPhase) -> bool) -> impl Fn(Option<&GangSeen>) -> bool {
    move |gang| gang.is_some_and(|gang| gang.pods.iter().all(|pod| phase(&pod.phase)))
}

/// Stops a gang that heeds signals, to the proof.
pub async fn stopped(fixture: &dyn Fixture, watch: &mut Observation, key: GangKey) {
    let backend = fixture.backend();
    let answer = backend.stop(key, Millis::ZERO).await.expect("answers");
    if answer == Stopped::Asked {
        until(fixture, watch, key, |gang| gang.is_none()).await;
        assert_eq!(backend.stop(key, Millis::ZERO).await, Ok(Stopped::Gone));
    }
}

pub async fn watch(fixture: &dyn Fixture) -> Observation {
    fixture.backend().observe().await.expect("the API answers")
}

pub const TWO: [&str; 2] = ["h100-0000", "h100-0001"];

pub async fn shows_its_nodes(fixture: &dyn Fixture) {
    let seen = watch(fixture).await.snapshot;
    assert_eq!((seen.nodes.len(), seen.gangs.len()), (3, 0));
    assert!(seen.nodes.iter().all(|node| {
        node.health == NodeHealth::Ready && node.allocatable.gpus == MilliGpus::cards(8)
    }));
    assert_eq!(seen.pools[0].levels, ["rack"]);
}

pub async fn runs_a_whole_gang(fixture: &dyn Fixture) {
    let (backend, mut watch) = (fixture.backend(), watch(fixture).await);
    let order = order(key(0, 1), 8, &TWO, plain());
    backend.bind(&order).await.expect("room");
    until(
        fixture,
        &mut watch,
        order.key,
        all(|phase| *phase == PodPhase::Running),
    )
    .await;
    let ran = fixture.ran();
    assert_eq!(ran.len(), 2);
    assert!(ran.iter().all(|(_, devices, ..)| devices.len() == 8));
}

pub async fn binds_once(fixture: &dyn Fixture) {
    let (backend, mut watch) = (fixture.backend(), watch(fixture).await);
    let first = order(key(0, 1), 8, &TWO, plain());
    backend.bind(&first).await.expect("room");
    backend
        .bind(&first)
        .await
        .expect("the same again changes nothing");
    let again = GangOrder {
        attempt: 1,
        ..first.clone()
    };
    let newer = order(key(0, 2), 8, &TWO, plain());
    let older = order(key(0, 0), 8, &TWO, plain());
    for other in [again, newer, older] {
        let refused = backend.bind(&other).await.expect_err("in the way");
        assert_eq!(
            refused,
            BackendError::Conflict {
                held: first.key,
                attempt: 0
            }
        );
    }
    until(
        fixture,
        &mut watch,
        first.key,
        all(|phase| *phase == PodPhase::Running),
    )
    .await;
    backend.bind(&first).await.expect("nor later");
    assert_eq!(fixture.ran().len(), 2);
}

pub async fn binds_all_or_nothing(fixture: &dyn Fixture) {
    let backend = fixture.backend();
    let nowhere = order(key(0, 1), 8, &["h100-0000", "no-such-node"], plain());
    let refused = backend.bind(&nowhere).await.expect_err("no such node");
    assert!(matches!(refused, BackendError::Invalid(_)), "{refused}");
    assert_eq!(backend.adopt().await.expect("answers"), []);
    assert_eq!(
        backend.stop(nowhere.key, Millis::ZERO).await,
        Ok(Stopped::Gone)
    );
}

pub async fn a_full_node_turns_the_pod_away_and_nothing_starts(fixture: &dyn Fixture) {
    let (backend, mut watch) = (fixture.backend(), watch(fixture).await);
    fixture.occupy("h100-0000");
    let second = order(key(1, 1), 8, &TWO, plain());
    backend
        .bind(&second)
        .await
        .expect("taken; the node decides");
    let turned_away = |gang: Option<&GangSeen>| {
        let bound = |gang: &GangSeen| gang.pods[1].phase == PodPhase::Bound;
        let away = |gang: &GangSeen| matches!(gang.pods[0].phase, PodPhase::Rejected { .. });
        gang.is_some_and(|gang| away(gang) && bound(gang))
    };
    until(fixture, &mut watch, second.key, turned_away).await;
    fixture.pause().await;
    let ran = fixture.ran();
    assert_eq!(ran, [], "no user code of a gang that is not whole");
    stopped(fixture, &mut watch, second.key).await;
}

pub async fn stops_with_proof(fixture: &dyn Fixture) {
    let (backend, mut watch) = (fixture.backend(), watch(fixture).await);
    let deaf = order(key(0, 1), 8, &TWO, annotated(IGNORES_SIGTERM, "true"));
    backend.bind(&deaf).await.expect("room");
    until(
        fixture,
        &mut watch,
        deaf.key,
        all(|phase| *phase == PodPhase::Running),
    )
    .await;
    let grace = fixture.grace();
    let asked = fixture.clock().wall();
    assert_eq!(backend.stop(deaf.key, grace).await, Ok(Stopped::Asked));
    assert_eq!(backend.stop(deaf.key, grace).await, Ok(Stopped::Asked));
    until(fixture, &mut watch, deaf.key, |gang| gang.is_none()).await;
    assert_eq!(backend.stop(deaf.key, grace).await, Ok(Stopped::Gone));
    for (_, _, _, ended) in fixture.ran() {
        let lived = ended.expect("it ended").since(asked);
        let most = grace.saturating_add(SLACK);
        assert!(lived >= grace && lived < most, "lived on for {lived}");
    }
    let heeds = order(key(0, 2), 8, &TWO, plain());
    backend.bind(&heeds).await.expect("the older epoch is gone");
    until(
        fixture,
        &mut watch,
        heeds.key,
        all(|phase| *phase == PodPhase::Running),
    )
    .await;
    let asked = fixture.clock().wall();
    backend.stop(heeds.key, grace).await.expect("answers");
    until(fixture, &mut watch, heeds.key, |gang| gang.is_none()).await;
    assert!(
        fixture.clock().wall().since(asked) < grace,
        "SIGTERM was enough"
    );
}

pub async fn an_ended_gang_stays_until_it_is_stopped(fixture: &dyn Fixture) {
    let (backend, mut watch) = (fixture.backend(), watch(fixture).await);
    let short = order(key(0, 1), 8, &TWO, annotated(RUNTIME, "30s"));
    backend.bind(&short).await.expect("room");
    until(
        fixture,
        &mut watch,
        short.key,
        all(|phase| *phase == PodPhase::Succeeded),
    )
    .await;
    fixture.pause().await;
    assert_eq!(backend.adopt().await.expect("answers").len(), 1);
    stopped(fixture, &mut watch, short.key).await;
}

pub async fn another_life_finds_what_runs(fixture: &dyn Fixture) {
    let mut watch = watch(fixture).await;
    let order = order(key(0, 9), 8, &TWO, plain());
    fixture.backend().bind(&order).await.expect("room");
    until(
        fixture,
        &mut watch,
        order.key,
        all(|phase| *phase == PodPhase::Running),
    )
    .await;
    drop(watch);
    let found = fixture.backend().adopt().await.expect("answers");
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].key, &found[0].terms), (order.key, &order.terms));
}

pub async fn without_its_api_everything_goes_on(fixture: &dyn Fixture) {
    let (backend, mut seen) = (fixture.backend(), watch(fixture).await);
    let short = order(key(0, 1), 8, &TWO, annotated(RUNTIME, "60s"));
    backend.bind(&short).await.expect("room");
    fixture.api(Api::Down);
    let unavailable = |error| matches!(error, BackendError::Unavailable(_));
    assert!(backend.observe().await.err().is_some_and(unavailable));
    assert!(backend.adopt().await.is_err_and(unavailable));
    assert!(backend.bind(&short).await.is_err_and(unavailable));
    assert!(
        backend
            .stop(short.key, Millis::ZERO)
            .await
            .is_err_and(unavailable)
    );
    let broken = async { while seen.changes.next().await.is_some() {} };
    fixture
        .clock()
        .timeout(DEADLINE, broken)
        .await
        .expect("the watch breaks");
    fixture.pause().await;
    fixture.api(Api::Up);
    let mut again = watch(fixture).await;
    until(
        fixture,
        &mut again,
        short.key,
        all(|phase| *phase == PodPhase::Succeeded),
    )
    .await;
    assert_eq!(fixture.ran().len(), 2);
}

pub async fn a_lost_answer_is_found_out_by_asking_again(fixture: &dyn Fixture) {
    let (backend, mut watch) = (fixture.backend(), watch(fixture).await);
    let order = order(key(0, 1), 8, &TWO, plain());
    fixture.lose_answers(true);
    assert!(backend.bind(&order).await.is_err());
    fixture.lose_answers(false);
    backend.bind(&order).await.expect("it was done");
    until(
        fixture,
        &mut watch,
        order.key,
        all(|phase| *phase == PodPhase::Running),
    )
    .await;
    assert_eq!(fixture.ran().len(), 2);
}

pub async fn a_dead_node_takes_its_pods(fixture: &dyn Fixture) {
    let (backend, mut watch) = (fixture.backend(), watch(fixture).await);
    let order = order(key(0, 1), 8, &TWO, plain());
    backend.bind(&order).await.expect("room");
    until(
        fixture,
        &mut watch,
        order.key,
        all(|phase| *phase == PodPhase::Running),
    )
    .await;
    fixture.fail_node("h100-0001").await;
    let lost = |gang: Option<&GangSeen>| {
        gang.is_some_and(|gang| match &gang.pods[1].phase {
            PodPhase::Failed { reason, .. } => reason == "NodeLost",
            // Its end is not proved yet.
            PodPhase::Broken { reason } => reason == NODE_OFF || reason == "NodeLost",
            _ => false,
        })
    };
    until(fixture, &mut watch, order.key, lost).await;
    assert_eq!(
        backend.stop(order.key, Millis::ZERO).await,
        Ok(Stopped::Asked)
    );
    until(fixture, &mut watch, order.key, |gang| gang.is_none()).await;
}

pub async fn resizes_by_members(fixture: &dyn Fixture) {
    let (backend, mut watch) = (fixture.backend(), watch(fixture).await);
    let two = order(key(0, 1), 8, &TWO, plain());
    assert_eq!(
        backend.resize(&two).await,
        Err(BackendError::NotFound(two.key))
    );
    backend.bind(&two).await.expect("room");
    until(
        fixture,
        &mut watch,
        two.key,
        all(|phase| *phase == PodPhase::Running),
    )
    .await;
    let three = ["h100-0000", "h100-0001", "h100-0002"];
    let grown = GangOrder {
        attempt: 1,
        ..order(two.key, 8, &three, plain())
    };
    for _ in 0..2 {
        backend.resize(&grown).await.expect("room");
    }
    let running = |count: usize| {
        move |gang: Option<&GangSeen>| {
            let runs = |gang: &GangSeen| {
                gang.pods
                    .iter()
                    .filter(|pod| pod.phase == PodPhase::Running)
                    .count()
            };
            gang.is_some_and(|gang| runs(gang) == count)
        }
    };
    until(fixture, &mut watch, two.key, running(3)).await;
    let shrunk = GangOrder {
        attempt: 2,
        ..order(two.key, 8, &TWO, plain())
    };
    backend.resize(&shrunk).await.expect("fewer");
    until(fixture, &mut watch, two.key, running(2)).await;
    let late = backend.resize(&grown).await;
    assert_eq!(
        late,
        Err(BackendError::Conflict {
            held: two.key,
            attempt: 2
        })
    );
    assert_eq!(fixture.ran().len(), 3);
}

pub async fn shows_a_checkpoint(fixture: &dyn Fixture) {
    let (backend, mut watch) = (fixture.backend(), watch(fixture).await);
    let order = order(key(0, 1), 8, &TWO, plain());
    let limit = Millis::seconds(30);
    let unknown = backend.request_checkpoint(order.key, limit).await;
    assert_eq!(unknown, Err(BackendError::NotFound(order.key)));
    backend.bind(&order).await.expect("room");
    until(
        fixture,
        &mut watch,
        order.key,
        all(|phase| *phase == PodPhase::Running),
    )
    .await;
    backend
        .request_checkpoint(order.key, limit)
        .await
        .expect("it runs");
    let shown = |gang: Option<&GangSeen>| gang.is_some_and(|gang| gang.checkpoint.is_some());
    until(fixture, &mut watch, order.key, shown).await;
}
