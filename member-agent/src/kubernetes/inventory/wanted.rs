//! What a pod that waits asks for, in the fleet's words.
//!
//! Owns the way from extended resources and a node selector to flavors. Never knows which flavors
//! the cluster has.

use k8s_openapi::api::core::v1::Pod;
use meridian_api::units::{MilliCpus, MilliGpus, Resources};

use super::flavors::FlavorTable;
use super::pods;
use super::quantity::memory_ceil;

/// What a pod asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Of its host.
    pub(crate) request: Resources,
    /// Flavors that have its GPUs, by name; `None` when it asks for none, and empty when no flavor
    /// has those of several vendors together.
    pub(crate) flavors: Option<Vec<String>>,
}

/// Reads what a pod asks for.
pub(crate) fn wanted(pod: &Pod, table: &FlavorTable) -> Wanted {
    let held = pods::request(pod, table);
    let cards = held.cards.iter().map(|(_, cards)| *cards);
    let selector = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.node_selector.as_ref());
    let flavors = match &held.cards[..] {
        [] => None,
        [(vendor, _)] => Some(table.flavors_with(usize::from(*vendor), selector)),
        [_, _, ..] => Some(Vec::new()),
    };
    Wanted {
        request: Resources {
            gpus: MilliGpus::cards(cards.fold(0, u64::saturating_add)),
            cpu: MilliCpus(held.cpu),
            memory: memory_ceil(u128::from(held.memory)),
        },
        flavors,
    }
}
