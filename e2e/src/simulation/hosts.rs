//! Lives of hubs and agents: the real ones, on the simulation's clock, network, disk and store.
//!
//! Owns the wiring of one life. A life ends by a crash of its host, or when one of its tasks dies,
//! which is a defect. Never decides when.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use meridian_agent::{Agent, AgentMetrics, AgentOptions};
use meridian_api::units::Millis;
use meridian_hub::config::HubConfig;
use meridian_hub::{Execution, HubOptions};
use meridian_policies::check::Violation;
use meridian_runtime::Tasks;

use super::mirror;
use super::network::Turmoil;
use super::witness::Witness;
use super::world::{self, AGENTS_PORT, Note, USERS_PORT, World};

/// Old revisions are kept this long: some compactions fall into each run, and slow watchers meet
/// them.
const HISTORY: Millis = Millis::seconds(15);

/// One life of a hub.
pub(crate) async fn hub(world: Arc<World>, index: usize) -> turmoil::Result {
    let (name, clock, tasks) = (world::hub_name(index), world::host_clock(), Tasks::new());
    let store = world.store.handle_for(clock.clone());
    let life = world.hubs[index].begin_life(store.faults().clone());
    world
        .log
        .line(clock.wall(), &format!("{name} life {life} begins"));
    let config = HubConfig {
        name: name.clone(),
        users_listen: format!("0.0.0.0:{USERS_PORT}"),
        agents_listen: format!("0.0.0.0:{AGENTS_PORT}"),
        users_advertise: Some(format!("{name}:{USERS_PORT}")),
        agents_advertise: Some(format!("{name}:{AGENTS_PORT}")),
        insecure_agents: true,
        history: HISTORY,
        ..HubConfig::default()
    };
    let started = meridian_hub::start(HubOptions {
        config,
        store: Witness::shared(&name, store, world.notes.clone()),
        clock: clock.clone(),
        random: world.random_for(&name, life),
        network: Arc::new(Turmoil),
        tasks: tasks.clone(),
        metrics: world.hubs[index].metrics.clone(),
        execution: Execution::Inline,
    });
    let hub = started.await?;
    let mirror = mirror::follow(hub.resources.clone(), clock, index, world.notes.clone());
    tasks.spawn_finite("mirror", mirror);
    tasks.cancelled().cancelled().await;
    died(&world, &name, tasks).await;
    Ok(())
}

/// One life of an agent.
pub(crate) async fn agent(world: Arc<World>, index: usize) -> turmoil::Result {
    let (name, clock, tasks) = (world::agent_name(index), world::host_clock(), Tasks::new());
    let slot = &world.clusters[index];
    let life = slot.lives.fetch_add(1, Ordering::Relaxed);
    world
        .log
        .line(clock.wall(), &format!("{name} life {life} begins"));
    let hubs = 0..world.hubs.len();
    let started = Agent::start(AgentOptions {
        cluster: slot.name.to_owned(),
        hubs: hubs
            .map(|hub| format!("{}:{AGENTS_PORT}", world::hub_name(hub)))
            .collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        network: Arc::new(Turmoil),
        clock: clock.clone(),
        random: world.random_for(&name, life),
        disk: Arc::new(slot.disk.clone()),
        backend: Arc::new(slot.cluster.backend(clock)),
        tasks: tasks.clone(),
        metrics: AgentMetrics::register(&mut prometheus_client::registry::Registry::default()),
        identity: None,
    });
    let _agent = started.await?;
    tasks.cancelled().cancelled().await;
    died(&world, &name, tasks).await;
    Ok(())
}

/// Nobody asks a host here to stop: its tasks end only because one of them died.
async fn died(world: &World, name: &str, tasks: Tasks) {
    let message = match tasks.finished().await {
        Err(death) => format!("{name}: {death}"),
        Ok(()) => format!("{name} stopped though nobody asked it to"),
    };
    world.notes.push(Note::Broken(Violation {
        invariant: "alive",
        message,
    }));
}
