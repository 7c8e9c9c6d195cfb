//! What the Kubernetes backend is made of, and the places where a test may cut it short.
//!
//! Owns the options and the names of the steps of a gang's life. Never reads a file.

use std::fmt;
use std::sync::Arc;

use meridian_api::units::Millis;
use meridian_runtime::Clock;

use super::answers::AnswersOptions;
use super::inventory::{FlavorTable, InventoryConfig};

/// No answer in this time is no answer. An API server ends requests of its own after 60 s; one
/// that needs more than 10 s for one object is in trouble.
pub const REQUEST_LIMIT: Millis = Millis::seconds(10);
/// A node that has not been heard for this long, beyond the 40 to 50 s after which the cluster
/// says so, has lost its pods. It is the toleration that Kubernetes gives every pod by default.
pub const NODE_LOST_AFTER: Millis = Millis::seconds(300);
/// A pod on a machine that was given up is removed without its kubelet's word after this: a
/// kubelet that is alive after all has registered its node again by then.
pub const MACHINE_GONE_AFTER: Millis = Millis::seconds(60);

/// What the backend is made of.
#[derive(Clone)]
pub struct KubernetesOptions {
    /// The API.
    pub client: kube::Client,
    /// Time.
    pub clock: Clock,
    /// What GPUs are called.
    pub flavors: FlavorTable,
    /// Pools, levels and taints.
    pub inventory: InventoryConfig,
    /// Whether the namespace of a job is made when it is not there.
    pub create_namespaces: bool,
    /// Where pods may call the agent; `None` = nowhere.
    pub answers: Option<AnswersOptions>,
    /// Limit of one request.
    pub request_limit: Millis,
    /// From "not ready" to "its pods are lost".
    pub node_lost_after: Millis,
    /// From "its machine is given up" to "its pod is removed".
    pub machine_gone_after: Millis,
    /// Asked after each step; a test cuts the work short there.
    pub hook: Hook,
}

impl KubernetesOptions {
    /// With the defaults of everything that has one.
    #[must_use]
    pub fn new(client: kube::Client, clock: Clock) -> Self {
        Self {
            client,
            clock,
            flavors: FlavorTable::shipped(),
            inventory: InventoryConfig::default(),
            create_namespaces: true,
            answers: None,
            request_limit: REQUEST_LIMIT,
            node_lost_after: NODE_LOST_AFTER,
            machine_gone_after: MACHINE_GONE_AFTER,
            hook: Hook::default(),
        }
    }
}

/// Steps of a gang's life after which the agent may die.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// The owner object is there: the gang is this agent's.
    Claimed,
    /// Service and carried ConfigMaps are there.
    Furnished,
    /// One more pod is there, unbound.
    PodMade,
    /// All pods are there, unbound.
    PodsMade,
    /// One more pod is bound.
    PodBound,
    /// All pods are bound.
    PodsBound,
    /// The gate is open: user code starts.
    GateOpened,
    /// The owner object says that a resize was done.
    Recorded,
    /// The owner object says that the gang stops.
    StopMarked,
    /// Every pod is asked to end.
    PodsAsked,
}

impl Step {
    /// Every step, in the order of a gang's life.
    pub const ALL: [Self; 10] = [
        Self::Claimed,
        Self::Furnished,
        Self::PodMade,
        Self::PodsMade,
        Self::PodBound,
        Self::PodsBound,
        Self::GateOpened,
        Self::Recorded,
        Self::StopMarked,
        Self::PodsAsked,
    ];
}

/// What is asked after each step whether to go on. By default nobody is.
#[derive(Clone, Default)]
pub struct Hook(Option<Arc<dyn Fn(Step) -> bool + Send + Sync>>);

impl Hook {
    /// Goes on after a step only when `goes_on` says so.
    #[must_use]
    pub fn new(goes_on: impl Fn(Step) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(goes_on)))
    }

    pub(super) fn passed(&self, step: Step) -> Result<(), super::client::Trouble> {
        match &self.0 {
            Some(goes_on) if !goes_on(step) => Err(super::client::Trouble::Away(format!(
                "cut short after {step:?}"
            ))),
            Some(_) | None => Ok(()),
        }
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hook").field(&self.0.is_some()).finish()
    }
}
