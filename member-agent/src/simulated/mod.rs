//! The simulated cluster: the same interface over a described inventory and a clock.
//!
//! Owns the handle that tests, the playground and fault simulation turn, and the backend that an
//! agent gets. The cluster outlives its agents, as a real one does: it has no task and no clock of
//! its own, and is played forward by whoever looks, so nothing is lost while no agent lives.
//! Honest: nodes check their room again, start slowly, fail, and take their time to stop. Never
//! decides where a pod goes.

mod behaviour;
mod inventory;
mod keep;
mod logs;
mod offers;
mod profile;
mod state;
mod timeline;
mod trouble;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use meridian_api::units::{Millis, Resources, UnixMillis};
use meridian_runtime::Clock;
use tokio::sync::Notify;

pub use behaviour::{EXIT_CODE, IGNORES_SIGTERM, RUNTIME, SAVES_EVERY};
pub use inventory::{Inventory, InventoryError, InventoryNode, InventoryPool, NodeResources};
pub use keep::{KeepError, Keeper};
pub use profile::{Between, Profile};
pub use state::{Truth, TruthEvent};

use crate::backend::{
    BackendError, ClusterBackend, ClusterEvent, GangKey, GangOrder, GangSeen, LogQuery,
    Observation, OfferSeen, Stopped,
};
use behaviour::Behaviour;
use profile::For;
use state::{Changed, State};

/// Whether the cluster's API answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// It does.
    Up,
    /// It does not, and watches break; what runs goes on.
    Down,
}

/// A simulated cluster. Cheap to clone; all clones are the same cluster.
#[derive(Clone)]
pub struct SimulatedCluster(Arc<Shared>);

struct Shared {
    inside: Mutex<Inside>,
    changed: Notify,
}

struct Inside {
    state: State,
    api: Api,
    /// Raised when the API goes down: watches of an earlier one are broken.
    api_life: u64,
    calls: u64,
}

impl SimulatedCluster {
    /// An empty cluster. All its delays and faults follow from `seed`.
    pub fn new(
        inventory: &Inventory,
        profile: Profile,
        seed: u64,
        now: UnixMillis,
    ) -> Result<Self, InventoryError> {
        inventory.check()?;
        Ok(Self::from_state(State::new(inventory, profile, seed, now)))
    }

    fn from_state(state: State) -> Self {
        let inside = Inside {
            state,
            api: Api::Up,
            api_life: 0,
            calls: 0,
        };
        Self(Arc::new(Shared {
            inside: Mutex::new(inside),
            changed: Notify::new(),
        }))
    }

    /// The cluster's interface for one life of an agent, on that life's clock. Wall clocks of
    /// successive lives must agree.
    #[must_use]
    pub fn backend(&self, clock: Clock) -> SimulatedBackend {
        SimulatedBackend {
            cluster: self.clone(),
            clock,
            keeper: None,
        }
    }

    /// What really ran, up to `now`.
    #[must_use]
    pub fn history(&self, now: UnixMillis) -> Vec<TruthEvent> {
        self.turn(now, |inside| inside.state.truth.clone())
    }

    /// What really ran after number `sequence`, up to `now`.
    #[must_use]
    pub fn history_after(&self, now: UnixMillis, sequence: u64) -> Vec<TruthEvent> {
        let known = usize::try_from(sequence).unwrap_or(usize::MAX);
        self.turn(now, |inside| {
            inside.state.truth.get(known..).unwrap_or_default().to_vec()
        })
    }

    /// Kills a machine with everything on it.
    pub fn fail_node(&self, now: UnixMillis, node: &str) {
        self.turn(now, |inside| inside.state.fail_node(node));
    }

    /// Brings a machine back, empty.
    pub fn recover_node(&self, now: UnixMillis, node: &str) {
        self.turn(now, |inside| inside.state.recover_node(node));
    }

    /// Breaks one device of a node.
    pub fn fail_device(&self, now: UnixMillis, node: &str, device: u32) {
        self.turn(now, |inside| inside.state.fail_device(node, device));
    }

    /// Kills every process of a gang.
    pub fn kill_gang(&self, now: UnixMillis, key: GangKey) {
        self.turn(now, |inside| inside.state.kill(key));
    }

    /// Closes a node to new pods, or opens it.
    pub fn cordon_node(&self, now: UnixMillis, name: &str, cordoned: bool) {
        self.turn(now, |inside| {
            if let Some(node) = inside.state.nodes.get_mut(name) {
                node.cordoned = cordoned;
                inside.state.note(Changed::Node(name.to_owned()));
            }
        });
    }

    /// Pods of other schedulers hold this much of a node; what already runs there stays.
    pub fn set_foreign(&self, now: UnixMillis, name: &str, held: Resources) {
        self.turn(now, |inside| {
            if let Some(node) = inside.state.nodes.get_mut(name) {
                node.foreign = held;
                inside.state.note(Changed::Node(name.to_owned()));
            }
        });
    }

    /// As [`Self::set_foreign`], but the API does not show it: only the node knows.
    pub fn hide_foreign(&self, now: UnixMillis, name: &str, held: Resources) {
        self.turn(now, |inside| {
            if let Some(node) = inside.state.nodes.get_mut(name) {
                node.hidden = held;
            }
        });
    }

    /// Somebody makes pods in the cluster and leaves them to this scheduler. They run until they
    /// are stopped, and are made again then.
    pub fn offer(&self, now: UnixMillis, offer: OfferSeen) {
        self.turn(now, |inside| {
            inside.state.offer(offer, Behaviour::default());
        });
    }

    /// As [`Self::offer`], with pods that do what the annotations of `template` say. The error
    /// names the annotation that is wrong.
    pub fn offer_pods(
        &self,
        now: UnixMillis,
        offer: OfferSeen,
        template: &serde_json::Value,
    ) -> Result<(), String> {
        let behaviour = Behaviour::of(template)?;
        self.turn(now, |inside| inside.state.offer(offer, behaviour));
        Ok(())
    }

    /// What owned the offered pods is deleted, or over.
    pub fn withdraw(&self, now: UnixMillis, uid: &str) {
        self.turn(now, |inside| inside.state.withdraw(uid));
    }

    /// Takes the API away, or brings it back. The cluster goes on either way.
    pub fn set_api(&self, now: UnixMillis, api: Api) {
        self.turn(now, |inside| {
            inside.api = api;
            if api == Api::Down {
                inside.api_life += 1;
            }
        });
    }

    /// Changes delays and faults from here on.
    pub fn set_profile(&self, now: UnixMillis, profile: Profile) {
        self.turn(now, |inside| inside.state.profile = profile);
    }

    /// What is there, seen from outside the API.
    #[must_use]
    pub fn snapshot(&self, now: UnixMillis) -> crate::backend::Snapshot {
        self.turn(now, |inside| inside.state.snapshot())
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.0.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Plays the timeline up to `now`, then does `work`, then wakes whoever watches.
    fn turn<T>(&self, now: UnixMillis, work: impl FnOnce(&mut Inside) -> T) -> T {
        let mut inside = self.lock();
        inside.state.advance(now);
        // Whoever sleeps must hear of a change, and of something that is due earlier.
        let marks = |inside: &Inside| {
            (
                inside.state.changed,
                inside.state.scheduled,
                inside.api_life,
            )
        };
        let before = marks(&inside);
        let done = work(&mut inside);
        let woken = marks(&inside) != before;
        drop(inside);
        if woken {
            self.0.changed.notify_waiters();
        }
        done
    }
}

/// The interface of a [`SimulatedCluster`] for one agent.
#[derive(Clone)]
pub struct SimulatedBackend {
    cluster: SimulatedCluster,
    clock: Clock,
    keeper: Option<Arc<Keeper>>,
}

impl SimulatedBackend {
    /// Keeps the cluster's state and truth with `keeper`, so that it outlives this process.
    #[must_use]
    pub fn kept_by(mut self, keeper: Arc<Keeper>) -> Self {
        self.keeper = Some(keeper);
        self
    }

    /// One call of the API: it takes a while, may not be answered, and is kept.
    async fn call<T>(
        &self,
        work: impl FnOnce(&mut Inside) -> Result<T, BackendError> + Send,
    ) -> Result<T, BackendError> {
        let (delay, loses) = self.cluster.turn(self.clock.wall(), |inside| {
            inside.calls += 1;
            let (draw, about) = (inside.state.draw(), [inside.calls]);
            let profile = &inside.state.profile;
            let delay = draw.span(For::Call, &about, profile.call);
            (
                delay,
                draw.chance(For::LostAnswer, &about, profile.lost_answers_per_mille),
            )
        });
        self.clock.sleep(delay).await;
        let unavailable = |text: &str| BackendError::Unavailable(text.to_owned());
        let answer = self
            .cluster
            .turn(self.clock.wall(), |inside| match inside.api {
                Api::Up => work(inside),
                Api::Down => Err(unavailable("connection refused")),
            })?;
        self.keep().await?;
        if loses {
            Err(unavailable("the answer was lost"))
        } else {
            Ok(answer)
        }
    }

    async fn keep(&self) -> Result<(), BackendError> {
        let Some(keeper) = &self.keeper else {
            return Ok(());
        };
        let kept = keeper.keep(&self.cluster).await;
        kept.map_err(|error| BackendError::Unavailable(error.to_string()))
    }

    fn watch(&self, cursor: u64, api_life: u64) -> Watch {
        Watch {
            backend: self.clone(),
            cursor,
            api_life,
            ready: VecDeque::new(),
        }
    }
}

/// A watch of the cluster: sleeps until something is due or somebody turned it.
struct Watch {
    backend: SimulatedBackend,
    cursor: u64,
    api_life: u64,
    ready: VecDeque<ClusterEvent>,
}

enum Look {
    Changes(Vec<ClusterEvent>),
    Nothing(Option<UnixMillis>),
    Broken,
}

impl Watch {
    /// The next change, or `None` when the watch is broken or too far behind.
    async fn next(mut self) -> Option<(ClusterEvent, Self)> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some((event, self));
            }
            let cluster = self.backend.cluster.clone();
            let mut turned = std::pin::pin!(cluster.0.changed.notified());
            turned.as_mut().enable();
            let now = self.backend.clock.wall();
            match cluster.turn(now, |inside| self.look(inside)) {
                Look::Broken => return None,
                Look::Changes(events) => {
                    self.ready = events.into();
                    // The truth of what just happened is kept before anybody is told.
                    self.backend.keep().await.ok()?;
                }
                Look::Nothing(next) => {
                    let due = async {
                        match next {
                            Some(at) => self.backend.clock.sleep(at.since(now)).await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        biased;
                        () = turned => {}
                        () = due => {}
                    }
                }
            }
        }
    }

    fn look(&mut self, inside: &mut Inside) -> Look {
        if inside.api_life != self.api_life {
            return Look::Broken;
        }
        let changed = inside.state.changed;
        if changed == self.cursor {
            return Look::Nothing(inside.state.next_due());
        }
        let changes = inside.state.changes_since(self.cursor);
        self.cursor = changed;
        changes.map_or(Look::Broken, Look::Changes)
    }
}

#[async_trait]
impl ClusterBackend for SimulatedBackend {
    fn name(&self) -> &'static str {
        "simulated"
    }

    async fn adopt(&self) -> Result<Vec<GangSeen>, BackendError> {
        self.call(|inside| Ok(inside.state.snapshot().gangs)).await
    }

    async fn observe(&self) -> Result<Observation, BackendError> {
        let look = |inside: &mut Inside| {
            Ok((
                inside.state.snapshot(),
                inside.state.changed,
                inside.api_life,
            ))
        };
        let (snapshot, cursor, api_life) = self.call(look).await?;
        let changes = futures::stream::unfold(self.watch(cursor, api_life), Watch::next);
        Ok(Observation {
            snapshot,
            changes: changes.boxed(),
        })
    }

    async fn bind(&self, order: &GangOrder) -> Result<(), BackendError> {
        self.call(|inside| inside.state.bind(order)).await
    }

    async fn resize(&self, order: &GangOrder) -> Result<(), BackendError> {
        self.call(|inside| inside.state.resize(order)).await
    }

    async fn request_checkpoint(&self, key: GangKey, _limit: Millis) -> Result<(), BackendError> {
        self.call(|inside| inside.state.request_checkpoint(key))
            .await
    }

    async fn stop(&self, key: GangKey, grace: Millis) -> Result<Stopped, BackendError> {
        self.call(|inside| Ok(inside.state.stop(key, grace))).await
    }

    async fn logs(
        &self,
        key: GangKey,
        query: LogQuery,
    ) -> Result<BoxStream<'static, Result<Bytes, BackendError>>, BackendError> {
        self.read_logs(key, query).await
    }
}
