//! `Reservation`: whole hosts that are a tenant's at set times.
//!
//! Owns its shape, its checks, and when it holds. Whether a pool has the hosts is asked in
//! `overlap`; who may run there in the meantime is the decision's.

pub mod overlap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::TimeWindow;
use super::time_window::Opening;
use crate::errors::FieldReason;
use crate::meta::{Condition, Object, Spec};
use crate::quantity::{GpuQuantity, Span, Time};
use crate::units::{Millis, UnixMillis};
use crate::validate::{Checked, Findings, MAX_SPAN};

/// A reservation.
pub type Reservation = Object<ReservationSpec, ReservationStatus>;

impl Spec for ReservationSpec {
    const KIND: &'static str = "Reservation";
    const ABOUT: &'static str = "Whole hosts that are a tenant's at set times.";
    const PLURAL: &'static str = "reservations";
    const NAMESPACED: bool = false;
    type Status = ReservationStatus;
}

/// Condition: the block is, or will be at its start, whole.
pub const WHOLE: &str = "Whole";

/// Whose, what and when.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReservationSpec {
    /// Whose work may use it, with that of everyone below: the hosts, not the quota, are reserved.
    pub tenant: String,
    /// Classes of that work; empty = all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
    /// What is reserved.
    pub capacity: ReservedCapacity,
    /// When; absent = always.
    #[serde(default)]
    pub schedule: ReservationSchedule,
    /// Others' work is gone this long before the start: what is told to end takes a while, and what
    /// starts late ends late. Absent = 10 min.
    #[serde(default = "ten_minutes")]
    pub lead_time: Span,
    /// Who may use what stands unused while it holds; absent = nobody. Before it begins whoever
    /// ends in time may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unused: Option<Unused>,
}

const fn ten_minutes() -> Span {
    Span(Millis::seconds(600))
}

/// Whole hosts of one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReservedCapacity {
    /// Their hardware.
    pub flavor: String,
    /// How many hosts.
    pub hosts: u32,
    /// Region of the pool; absent = any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// Cluster of the pool. What is left out is chosen when the reservation is made, and written
    /// down here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// The pool, as its agent names it; chosen and written down as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
}

/// When a reservation holds: from `from` until `until`, and of that only while `window` is open,
/// where they are given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReservationSchedule {
    /// Begins; absent = at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<Time>,
    /// Ends; absent = never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// Name of a `TimeWindow`: it recurs with each opening.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
}

/// Who may use what stands unused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Unused {
    /// Classes of that work.
    pub lend_to: Vec<String>,
    /// Longest `maxRuntime` of it: the owner never waits longer for its hosts.
    pub within: Span,
}

/// Where a reservation stands.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum ReservationPhase {
    /// It begins later.
    #[default]
    Pending,
    /// It holds.
    Active,
    /// It will not hold any more.
    Ended,
}

/// What is so with a reservation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReservationStatus {
    /// Generation of the spec it speaks of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Where it stands.
    pub phase: ReservationPhase,
    /// When it began, or begins next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Time>,
    /// When that ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<Time>,
    /// When it begins after that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_start: Option<Time>,
    /// Its hosts.
    pub hosts: ReservedHosts,
    /// GPUs that its own work holds in the pool.
    pub gpus_used: GpuQuantity,
    /// `Whole`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Hosts of a reservation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReservedHosts {
    /// Reserved.
    pub reserved: u32,
    /// Of these, as many as its own work fills at least.
    pub used: u32,
    /// Of these, as many as are its own by the start for certain: used, empty, or left by then.
    pub ready: u32,
}

/// Most hosts of one reservation: the largest clusters of the field have as many.
pub const MAX_HOSTS: u32 = 16_384;
/// Longest time before a start in which others' work has to be gone.
const MAX_LEAD: Millis = Millis::seconds(24 * 3600);
/// Longest time that an owner may have to wait for what it lends.
const MAX_WITHIN: Millis = Millis::seconds(24 * 3600);

impl Checked for ReservationSpec {
    const SHORT_NAMES: bool = false;

    fn check(&self, found: &mut Findings) {
        found.label("spec.tenant", &self.tenant);
        found.names("spec.classes", &self.classes);
        self.capacity.check(found);
        found.span(
            "spec.leadTime",
            Some(self.lead_time),
            Millis::ZERO,
            MAX_LEAD,
        );
        if let Some(window) = &self.schedule.window {
            found.name("spec.schedule.window", window);
        }
        if let (Some(from), Some(until)) = (self.schedule.from, self.schedule.until) {
            if until <= from {
                let message = format!("is {until}, not after from {from}: it would never hold");
                found.invalid("spec.schedule.until", message);
            } else if until.0.since(from.0) > MAX_SPAN {
                let message = format!(
                    "is more than {} after from: leave until out for one without an end",
                    Span(MAX_SPAN)
                );
                found.invalid("spec.schedule.until", message);
            }
        }
        if let Some(unused) = &self.unused {
            found.names("spec.unused.lendTo", &unused.lend_to);
            if unused.lend_to.is_empty() {
                let message = "is empty: name classes, or leave unused out and nothing is lent";
                found.add("spec.unused.lendTo", FieldReason::Required, message);
            }
            let least = Millis::seconds(1);
            found.span("spec.unused.within", Some(unused.within), least, MAX_WITHIN);
        }
    }

    fn check_update(&self, _new: &Self, _found: &mut Findings) {}
}

impl ReservedCapacity {
    fn check(&self, found: &mut Findings) {
        found.name("spec.capacity.flavor", &self.flavor);
        if self.hosts == 0 {
            let message = "is 0, so nothing would be reserved: give at least 1 host";
            found.invalid("spec.capacity.hosts", message);
        } else if self.hosts > MAX_HOSTS {
            let message = format!("is {}, at most {MAX_HOSTS} fit in one pool", self.hosts);
            found.add("spec.capacity.hosts", FieldReason::TooMany, message);
        }
        let names = [
            ("region", &self.region),
            ("cluster", &self.cluster),
            ("pool", &self.pool),
        ];
        for (field, name) in names {
            if let Some(name) = name {
                found.name(&format!("spec.capacity.{field}"), name);
            }
        }
        if self.pool.is_some() && self.cluster.is_none() {
            let message = "must be given with pool: clusters may have pools of the same name";
            found.add("spec.capacity.cluster", FieldReason::Required, message);
        }
    }
}

/// End of what never ends.
pub const FOREVER: UnixMillis = UnixMillis(i64::MAX);

impl ReservationSpec {
    /// When it holds, as far as that touches `from..until`, in order. `window` is the one that its
    /// schedule names; with a name and no window it never holds.
    #[must_use]
    pub fn spans(
        &self,
        window: Option<&TimeWindow>,
        from: UnixMillis,
        until: UnixMillis,
    ) -> Vec<Opening> {
        let begins = self
            .schedule
            .from
            .map_or(UnixMillis(i64::MIN), |time| time.0);
        let ends = self.schedule.until.map_or(FOREVER, |time| time.0);
        let (first, last) = (from.max(begins), until.min(ends));
        if self.schedule.window.is_none() {
            let all = Opening {
                from: begins,
                until: ends,
            };
            let touches = all.from < until && all.until > from;
            return touches.then_some(all).into_iter().collect();
        }
        let openings = window.map(|window| window.spec.openings(first, last));
        let cut = |opening: Opening| Opening {
            from: opening.from.max(begins),
            until: opening.until.min(ends),
        };
        let mut spans: Vec<Opening> = openings.into_iter().flatten().map(cut).collect();
        spans.retain(|span| span.from < span.until);
        spans
    }
}
