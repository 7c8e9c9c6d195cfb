//! The world of the playground: hub, store, regions and tenants.
//!
//! Owns the settings that differ from the product's defaults, with their reasons.

use std::path::Path;
use std::sync::Arc;

use meridian_api::units::Millis;
use meridian_hub::Execution;
use meridian_hub::config::{ContactConfig, HubConfig, LeadershipConfig};
use meridian_runtime::{Clock, Network, Tasks};
use meridian_store::{Durability, EmbeddedOptions, EmbeddedStore};

use super::PlaygroundError;
use super::data::{self, TraceJob};
use super::jobs;
use crate::fleet::{FleetOptions, FleetRegion};

/// How much slower leader and agents beat than by default: 2 s become 60 s. A simulated week then
/// has ten thousand beats of each instead of three hundred thousand, which cost more than the jobs
/// themselves. All terms are slowed alike, so every margin between them stays what it is.
const SLOWER: u64 = 30;

/// Where everything runs.
pub(super) struct Place<'a> {
    pub(super) seed: u64,
    pub(super) clock: Clock,
    pub(super) network: Arc<dyn Network>,
    /// Folder of the store's file.
    pub(super) folder: &'a Path,
    /// Where the store's task runs.
    pub(super) tasks: &'a Tasks,
    pub(super) hub: HubConfig,
    pub(super) execution: Execution,
}

/// A federation of the three regions on the embedded store. Its file needs to outlive no power
/// loss: it goes with the playground.
pub(super) fn fleet(
    place: Place<'_>,
    regions: Vec<FleetRegion>,
    week: &[TraceJob],
) -> Result<FleetOptions, PlaygroundError> {
    let options = EmbeddedOptions {
        durability: Durability::None,
        execution: match place.execution {
            Execution::Inline => meridian_store::Execution::Inline,
            Execution::Thread => meridian_store::Execution::Thread,
        },
    };
    let file = place.folder.join("playground.db");
    let store = EmbeddedStore::open(&file, place.clock.clone(), place.tasks, options)?;
    let clusters = regions.iter().flat_map(|region| &region.clusters);
    let gpus = clusters.map(|cluster| data::gpus(&cluster.inventory)).sum();
    Ok(FleetOptions {
        seed: place.seed,
        clock: place.clock,
        network: place.network,
        store: Arc::new(store),
        hubs: vec![slowed(place.hub)],
        execution: place.execution,
        objects: jobs::objects(week, gpus),
        regions,
    })
}

fn slowed(hub: HubConfig) -> HubConfig {
    let slow = |span: Millis| Millis(span.0 * SLOWER);
    let (lead, contact) = (&hub.leadership, &hub.contact);
    HubConfig {
        leadership: LeadershipConfig {
            ttl: slow(lead.ttl),
            renew_every: slow(lead.renew_every),
            silent_after: slow(lead.silent_after),
            beat_every: slow(lead.beat_every),
        },
        contact: ContactConfig {
            beat: slow(contact.beat),
            suspect: slow(contact.suspect),
            unreachable: slow(contact.unreachable),
            lost: slow(contact.lost),
        },
        ..hub
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowed_terms_hold_together() {
        slowed(HubConfig::default())
            .check()
            .expect("no contradiction");
    }
}
