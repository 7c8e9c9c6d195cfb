//! What a pod holds of its node.
//!
//! Owns the effective request, as the scheduler counts it: the larger of the sum of the containers
//! and of the largest step of the init containers, native sidecars in both, plus the overhead of
//! the runtime class. Sources: kubernetes.io, "Init Containers" and "Sidecar Containers", resource
//! sharing within containers; KEP-2837 (resources of the pod); KEP-1287 (resize in place).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use meridian_api::ids::Uid;
use sha2::{Digest as _, Sha256};

use super::flavors::FlavorTable;
use super::quantity::Amount;

type Amounts = BTreeMap<String, Quantity>;

/// The UID of a pod: one that is made again under the same name is another one. `None` for what
/// has never been in an API server.
pub(super) fn uid(pod: &Pod) -> Option<Uid> {
    let uid = pod.metadata.uid.as_deref()?;
    // API servers make UUIDs; anything else is told apart by its hash.
    Some(uid.parse().unwrap_or_else(|_| hashed(uid)))
}

fn hashed(text: &str) -> Uid {
    let digest = Sha256::digest(text.as_bytes());
    let (half, _) = digest.split_at(size_of::<u128>());
    Uid(u128::from_be_bytes(
        half.try_into().expect("it was split off at that length"),
    ))
}

/// What a pod holds, in the units of the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// Thousandths of a core.
    pub(super) cpu: u64,
    /// Bytes.
    pub(super) memory: u64,
    /// Vendor, by position in the table, and cards; without zeros, by vendor.
    pub(super) cards: Box<[(u8, u64)]>,
    /// It has resource claims: which devices they take is not in the pod.
    pub(super) claims: bool,
}

impl Held {
    pub(super) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// The node that a pod holds something on, and what. `None` for one that is not bound or has
/// ended.
pub(super) fn held<'a>(pod: &'a Pod, table: &FlavorTable) -> Option<(&'a str, Held)> {
    let node = pod.spec.as_ref()?.node_name.as_deref();
    let node = node.filter(|name| !name.is_empty())?;
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return None;
    }
    let held = request(pod, table);
    (!held.is_nothing()).then_some((node, held))
}

/// What a pod asks of a node, wherever it is: for pods that wait to be bound.
pub(super) fn request(pod: &Pod, table: &FlavorTable) -> Held {
    let amount = |resource: &str| effective(pod, resource);
    let cards = table
        .vendors
        .iter()
        .enumerate()
        .filter_map(|(index, vendor)| {
            let cards = amount(&vendor.resource).ceil();
            let index = u8::try_from(index).expect("the table is checked to have less than 256");
            (cards > 0).then_some((index, cards))
        });
    Held {
        cards: cards.collect(),
        cpu: amount("cpu").milli_ceil(),
        memory: amount("memory").ceil(),
        claims: claims(pod),
    }
}

/// True for a pod with resource claims (KEP-4381, dynamic resource allocation).
fn claims(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    let claims = spec.and_then(|spec| spec.resource_claims.as_ref());
    claims.is_some_and(|claims| !claims.is_empty())
}

/// The effective request of one resource.
fn effective(pod: &Pod, resource: &str) -> Amount {
    let Some(spec) = &pod.spec else {
        return Amount::ZERO;
    };
    let status = pod.status.as_ref();
    let statuses = status.and_then(|status| status.container_statuses.as_deref());
    let init_statuses = status.and_then(|status| status.init_container_statuses.as_deref());
    let mut sidecars = Amount::ZERO;
    let mut step = Amount::ZERO;
    for container in spec.init_containers.iter().flatten() {
        let own = of_container(container, init_statuses, resource);
        if container.restart_policy.as_deref() == Some("Always") {
            sidecars = sidecars.plus(own);
            step = step.max(sidecars);
        } else {
            step = step.max(sidecars.plus(own));
        }
    }
    let containers = spec.containers.iter();
    let running = containers.fold(sidecars, |sum, container| {
        sum.plus(of_container(container, statuses, resource))
    });
    // The resources of the pod, where they are given, stand for all its containers.
    let of_pod = spec
        .resources
        .as_ref()
        .and_then(|own| of_requirements(own, resource));
    let containers = of_pod.unwrap_or_else(|| running.max(step));
    containers.plus(in_amounts(spec.overhead.as_ref(), resource).unwrap_or_default())
}

/// What a container holds. While a resize is under way, that is the larger of what it asks and
/// what its node has given.
fn of_container(
    container: &Container,
    statuses: Option<&[ContainerStatus]>,
    resource: &str,
) -> Amount {
    let asked = container.resources.as_ref();
    let asked = asked.and_then(|asked| of_requirements(asked, resource));
    let mut statuses = statuses.unwrap_or_default().iter();
    let status = statuses.find(|status| status.name == container.name);
    let given = status.map(|status| {
        let allocated = in_amounts(status.allocated_resources.as_ref(), resource);
        let actual = status.resources.as_ref();
        let actual = actual.and_then(|actual| in_amounts(actual.requests.as_ref(), resource));
        allocated
            .unwrap_or_default()
            .max(actual.unwrap_or_default())
    });
    asked.unwrap_or_default().max(given.unwrap_or_default())
}

/// A request; where only a limit is given, that is the request.
fn of_requirements(requirements: &ResourceRequirements, resource: &str) -> Option<Amount> {
    let request = in_amounts(requirements.requests.as_ref(), resource);
    request.or_else(|| in_amounts(requirements.limits.as_ref(), resource))
}

/// An amount; one that is no amount holds nothing, and the API server lets none in.
fn in_amounts(amounts: Option<&Amounts>, resource: &str) -> Option<Amount> {
    Amount::read(amounts?.get(resource)?).ok()
}
