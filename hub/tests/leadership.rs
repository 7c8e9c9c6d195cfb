//! Two replicas over one store: one leads, the other follows at once or in time, and a leader
//! that cannot reach the store falls silent before another can lead.

use std::sync::Arc;

use meridian_api::units::{Millis, UnixMillis};
use meridian_hub::config::HubConfig;
use meridian_hub::fence::{Commit, Fence};
use meridian_hub::leadership::Role;
use meridian_hub::metrics::Metrics;
use meridian_hub::{Execution, HubHandle, HubOptions};
use meridian_runtime::network::Pipes;
use meridian_runtime::{Clock, Random, Tasks};
use meridian_store::{MemoryStore, Operation, keys};

/// Longest lease, plus the pause of a candidate, plus room.
const SOON: Millis = Millis::seconds(15);

struct Pair {
    clock: Clock,
    store: MemoryStore,
    network: Arc<Pipes>,
}

struct Replica {
    hub: HubHandle,
    tasks: Tasks,
    store: MemoryStore,
}

impl Pair {
    fn new() -> Self {
        let clock = Clock::simulated(UnixMillis(1_700_000_000_000));
        let store = MemoryStore::new(clock.clone());
        Self {
            clock,
            store,
            network: Arc::new(Pipes::default()),
        }
    }

    async fn start(&self, name: &str, seed: u64) -> Replica {
        let config = HubConfig {
            name: name.to_owned(),
            users_listen: format!("{name}:1"),
            agents_listen: format!("{name}:2"),
            insecure_agents: true,
            ..HubConfig::default()
        };
        let (tasks, store) = (Tasks::new(), self.store.handle_for(self.clock.clone()));
        let hub = meridian_hub::start(HubOptions {
            config,
            store: Arc::new(store.clone()),
            clock: self.clock.clone(),
            random: Random::seeded(seed),
            network: Arc::clone(&self.network) as Arc<dyn meridian_runtime::Network>,
            tasks: tasks.clone(),
            metrics: Metrics::default(),
            execution: Execution::Inline,
        })
        .await
        .expect("pipes and kinds are in order");
        Replica { hub, tasks, store }
    }

    /// Waits until the replica leads.
    async fn leads(&self, replica: &Replica) -> Fence {
        let mut leadership = replica.hub.leadership.clone();
        let leads = async {
            loop {
                if let Some(fence) = leadership.fence() {
                    return fence;
                }
                leadership.changed().await;
            }
        };
        self.clock
            .timeout(SOON, leads)
            .await
            .expect("leads in time")
    }

    async fn write(&self, fence: Fence) -> Commit {
        let ops = vec![meridian_store::Op::Put {
            key: keys::ledger_head(),
            value: "test".into(),
            lease: None,
        }];
        let store = self.store.handle_for(self.clock.clone());
        let write = fence.write(&store, Operation::CommitDecision, Vec::new(), ops);
        write.await.expect("the store answers")
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_stops_gives_the_lead_away_at_once() {
    let pair = Pair::new();
    let first = pair.start("hub-a", 1).await;
    let old = pair.leads(&first).await;
    let second = pair.start("hub-b", 2).await;
    let stopped = pair.clock.wall();
    first.hub.stop();
    first.tasks.finished().await.expect("ends well");
    let new = pair.leads(&second).await;
    assert!(new.term > old.term);
    assert!(
        pair.clock.wall().since(stopped) < Millis::seconds(2),
        "nobody waits for a lease"
    );
    second.hub.stop();
    second.tasks.finished().await.expect("ends well");
}

#[tokio::test(start_paused = true)]
async fn a_follower_names_the_leader() {
    let pair = Pair::new();
    let first = pair.start("hub-a", 1).await;
    pair.leads(&first).await;
    let second = pair.start("hub-b", 2).await;
    let mut leadership = second.hub.leadership.clone();
    while leadership.role() == Role::Follower(None) {
        leadership.changed().await;
    }
    let Role::Follower(Some(leader)) = leadership.role() else {
        panic!("two lead: {:?}", leadership.role());
    };
    assert_eq!(
        (leader.name.as_str(), leader.agents.as_str()),
        ("hub-a", "hub-a:2")
    );
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_its_store_is_silent_before_another_leads() {
    let pair = Pair::new();
    let first = pair.start("hub-a", 1).await;
    let old = pair.leads(&first).await;
    let second = pair.start("hub-b", 2).await;
    first.store.faults().refuse();
    let began = pair.clock.wall();
    while first.hub.leadership.fence().is_some() {
        pair.clock.sleep(Millis(100)).await;
    }
    let silent = pair.clock.wall();
    assert!(
        second.hub.leadership.fence().is_none(),
        "the first fell silent too late"
    );
    let new = pair.leads(&second).await;
    assert!(silent < pair.clock.wall() && new.term > old.term);
    assert!(pair.clock.wall().since(began) <= SOON);
}

#[tokio::test(start_paused = true)]
async fn a_deposed_leaders_write_fails_in_the_store() {
    let pair = Pair::new();
    let first = pair.start("hub-a", 1).await;
    let old = pair.leads(&first).await;
    assert!(matches!(pair.write(old).await, Commit::Done(..)));
    first.hub.stop();
    first.tasks.finished().await.expect("ends well");
    assert_eq!(pair.write(old).await, Commit::Deposed, "nobody leads");
    let second = pair.start("hub-b", 2).await;
    let new = pair.leads(&second).await;
    assert_eq!(pair.write(old).await, Commit::Deposed, "another leads");
    assert!(matches!(pair.write(new).await, Commit::Done(..)));
}
