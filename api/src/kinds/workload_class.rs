//! `WorkloadClass`: priority, preemption rule and notice in one named object.
//!
//! Owns its shape and its checks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::errors::FieldReason;
use crate::meta::{Condition, Object, Spec};
use crate::quantity::{GpuQuantity, Span};
use crate::units::Millis;
use crate::validate::{Checked, Findings, MAX_SPAN};

/// A workload class.
pub type WorkloadClass = Object<WorkloadClassSpec, WorkloadClassStatus>;

impl Spec for WorkloadClassSpec {
    const KIND: &'static str = "WorkloadClass";
    const ABOUT: &'static str = "Priority, preemption rule and notice in one named object.";
    const PLURAL: &'static str = "workloadclasses";
    const NAMESPACED: bool = false;
    type Status = WorkloadClassStatus;
}

/// What a class means for the work in it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadClassSpec {
    /// Higher goes first.
    pub priority: i32,
    /// Whether and how its work may be preempted.
    #[serde(default)]
    pub preemption: Preemption,
    /// With `ShrinkToFloor`: the least share of its replicas that it keeps, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor_percent: Option<u32>,
    /// Warning before it must be gone or smaller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<Span>,
    /// Work that does nothing for this long is stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<Span>,
    /// Longest run of a job that does not say its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_runtime: Option<Span>,
    /// A run is not preempted before it is this old.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_runtime: Option<Span>,
    /// Most GPUs one job may ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus_per_job: Option<GpuQuantity>,
    /// Fewest regions its services spread over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_regions: Option<u32>,
    /// Jobs must say how they shrink.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub require_elasticity: bool,
    /// Jobs must say how they checkpoint.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub require_checkpoint: bool,
    /// `TimeWindow`s in which its work may start; empty = at any time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub start_windows: Vec<String>,
    /// `TimeWindow`s in which it may be preempted on its own quota; empty = at any time. What it
    /// holds borrowed or on loan can be taken back at any time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preemption_windows: Vec<String>,
    /// In a declared region outage it may take work that its own windows protect.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overrides_windows_in_outage: bool,
    /// Capacity it may stand on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub may_use: Vec<CapacityType>,
}

/// Whether and how work of a class may be preempted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Preemption {
    /// Never.
    Never,
    /// Shrunk to `floorPercent`, never to zero.
    ShrinkToFloor,
    /// Stopped after the notice and not started again.
    Reclaim,
    /// Stopped after the notice and queued again.
    #[default]
    Requeue,
    /// Shrunk if elastic, else stopped and queued again.
    ShrinkThenRequeue,
    /// Asked for a checkpoint, then stopped and queued again.
    CheckpointThenRequeue,
}

impl Preemption {
    /// True for work that is never stopped for others: it does not wait for lower classes either.
    #[must_use]
    pub const fn is_protected(self) -> bool {
        match self {
            Self::Never | Self::ShrinkToFloor => true,
            Self::Reclaim
            | Self::Requeue
            | Self::ShrinkThenRequeue
            | Self::CheckpointThenRequeue => false,
        }
    }
}

/// What a GPU is to the work that stands on it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum CapacityType {
    /// The tenant's own quota.
    Nominal,
    /// Another tenant's unused quota.
    Borrowed,
    /// Machines that the provider may take back.
    Spot,
    /// A reservation.
    Reserved,
    /// A service's idle GPUs, to be given back by a deadline.
    Loan,
}

/// What is so with a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkloadClassStatus {
    /// Generation of the spec it speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// `Ready`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Priorities are from minus this to this, so that sums with a job's own never wrap.
pub const MAX_PRIORITY: i32 = 1_000_000_000;
/// Longest warning before a preemption: an hour is more than any checkpoint takes.
pub const MAX_NOTICE: Millis = Millis::seconds(3600);

impl Checked for WorkloadClassSpec {
    const SHORT_NAMES: bool = true;

    fn check(&self, found: &mut Findings) {
        if !(-MAX_PRIORITY..=MAX_PRIORITY).contains(&self.priority) {
            let message = format!(
                "is {}, must be from -{MAX_PRIORITY} to {MAX_PRIORITY}",
                self.priority
            );
            found.invalid("spec.priority", message);
        }
        self.check_preemption(found);
        let second = Millis::seconds(1);
        found.span("spec.notice", self.notice, Millis::ZERO, MAX_NOTICE);
        found.span("spec.idleTimeout", self.idle_timeout, second, MAX_SPAN);
        found.span("spec.maxRuntime", self.max_runtime, second, MAX_SPAN);
        found.span("spec.minRuntime", self.min_runtime, Millis::ZERO, MAX_SPAN);
        if let (Some(min), Some(max)) = (self.min_runtime, self.max_runtime)
            && min > max
        {
            found.invalid(
                "spec.minRuntime",
                format!("is {min}, longer than maxRuntime {max}"),
            );
        }
        found.some_gpus("spec.gpusPerJob", self.gpus_per_job);
        if self.min_regions == Some(0) {
            found.invalid("spec.minRegions", "is 0, must be at least 1");
        }
        found.names("spec.preemptionWindows", &self.preemption_windows);
        if !self.start_windows.is_empty() {
            let message = "start windows are not held by this release: leave them out";
            found.unsupported("spec.startWindows", message);
        }
        for (index, capacity) in self.may_use.iter().enumerate() {
            if self.may_use[..index].contains(capacity) {
                let path = format!("spec.mayUse[{index}]");
                found.add(
                    &path,
                    FieldReason::Duplicate,
                    format!("{capacity:?} is there twice"),
                );
            }
        }
    }

    fn check_update(&self, _new: &Self, _found: &mut Findings) {}
}

impl WorkloadClassSpec {
    fn check_preemption(&self, found: &mut Findings) {
        let path = "spec.floorPercent";
        match (self.preemption, self.floor_percent) {
            (Preemption::ShrinkToFloor, None) => {
                let message = "must be given with preemption ShrinkToFloor, for example 60";
                found.add(path, FieldReason::Required, message);
            }
            (Preemption::ShrinkToFloor, Some(percent)) if !(1..=100).contains(&percent) => {
                found.invalid(path, format!("is {percent}, must be from 1 to 100"));
            }
            (Preemption::ShrinkToFloor, Some(_)) | (_, None) => {}
            (other, Some(_)) => {
                let message = format!("means nothing with preemption {other:?}: leave it out");
                found.add(path, FieldReason::Forbidden, message);
            }
        }
        if self.preemption == Preemption::Never && self.notice.is_some() {
            let message = "means nothing with preemption Never: leave it out";
            found.add("spec.notice", FieldReason::Forbidden, message);
        }
    }
}
