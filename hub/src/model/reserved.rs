//! Reservations as rows of a snapshot, and their status.
//!
//! Owns the way from an object and its window to the spans that matter at present. Reads only.

use std::collections::BTreeMap;

use meridian_api::conditions;
use meridian_api::kinds::reservation::overlap::HORIZON;
use meridian_api::kinds::reservation::{
    FOREVER, ReservationPhase, ReservationStatus, ReservedHosts, WHOLE,
};
use meridian_api::kinds::time_window::{Opening, TimeWindowStatus};
use meridian_api::kinds::{Reservation, TimeWindow};
use meridian_api::meta::{Condition, ConditionStatus};
use meridian_api::quantity::{GpuQuantity, Time};
use meridian_api::units::UnixMillis;
use meridian_policies::model::{ClassRule, HeldIx, Lends, Pool, PoolIx, Reserved, Snapshot};
use meridian_policies::preempt::blocks::{lets_go, told_ahead};
use meridian_policies::reserved::{BlockState, block_states};

use super::snapshot::{Ordinals, Situation};
use super::{Model, Versioned};

/// Spans of one reservation that a decision sees: the one that holds and the next. What ends
/// before the next has ended before all later ones.
const SPANS: usize = 2;
/// Gangs that a condition names; the count is of all.
const NAMED: usize = 5;

impl Model {
    /// Spans of a reservation that are not over, the first ones.
    fn spans(&self, reservation: &Reservation, now: UnixMillis) -> Vec<Opening> {
        let name = reservation.spec.schedule.window.as_ref();
        let window = name.and_then(|name| self.catalog.windows.get(name));
        let window = window.map(|window| &window.value);
        let until = if window.is_some() {
            now.after(HORIZON)
        } else {
            FOREVER
        };
        let mut spans = reservation.spec.spans(window, now, until);
        spans.truncate(SPANS + 1);
        spans
    }

    pub(super) fn reserved_rows(
        &self,
        ordinals: &Ordinals,
        pools: &[Pool],
        now: UnixMillis,
    ) -> Vec<Reserved> {
        let mut rows = Vec::new();
        for (name, reservation) in &self.catalog.reservations {
            let spec = &reservation.value.spec;
            let capacity = &spec.capacity;
            let cluster = capacity.cluster.as_ref();
            let cluster = cluster.and_then(|name| ordinals.clusters.get(name));
            let pool = pools.iter().position(|pool| {
                Some(&pool.cluster) == cluster && Some(&pool.name) == capacity.pool.as_ref()
            });
            let pool = pool.and_then(|at| u32::try_from(at).ok()).map(PoolIx);
            // A pool that is not reported has no hosts to keep.
            let (Some(pool), Some(tenant)) = (pool, ordinals.tenants.get(&spec.tenant)) else {
                continue;
            };
            let classes = |names: &[String]| {
                let known = names.iter().filter_map(|name| ordinals.classes.get(name));
                known.copied().collect::<Vec<_>>()
            };
            let own = classes(&spec.classes);
            // Classes that are all gone must not look like all classes.
            if own.is_empty() && !spec.classes.is_empty() {
                continue;
            }
            let spans = self.spans(&reservation.value, now);
            let row = |span: Opening| Reserved {
                name: name.clone(),
                tenant: *tenant,
                classes: own.clone(),
                pool,
                hosts: capacity.hosts,
                from: span.from,
                until: span.until,
                lead: spec.lead_time.0,
                lends: spec.unused.as_ref().map(|unused| Lends {
                    classes: classes(&unused.lend_to),
                    within: unused.within.0,
                }),
            };
            rows.extend(spans.into_iter().take(SPANS).map(row));
        }
        rows
    }

    /// True when a block may have to be made whole though nobody waits.
    pub(crate) fn has_reservations(&self) -> bool {
        !self.catalog.reservations.is_empty()
    }

    /// When the next reservation begins or ends, or those in the way of one are told.
    pub(crate) fn next_reservation_edge(&self, now: UnixMillis) -> Option<UnixMillis> {
        let classes = self.catalog.classes.values();
        let rules = classes.map(|class| ClassRule::new(&class.value.spec, |_| false));
        let rules: Vec<ClassRule> = rules.collect();
        let ahead = told_ahead(rules.iter());
        let reservations = self.catalog.reservations.values();
        let edges = reservations.flat_map(|reservation| {
            let spans = self.spans(&reservation.value, now);
            let lead = reservation.value.spec.lead_time.0.saturating_add(ahead);
            let told =
                move |span: &Opening| UnixMillis(span.from.0.saturating_sub_unsigned(lead.0));
            let edges = move |span: Opening| [told(&span), span.from, span.until];
            spans.into_iter().flat_map(edges)
        });
        edges.filter(|at| *at > now && *at < FOREVER).min()
    }

    /// When the next window in which a class may be preempted opens or closes.
    pub(crate) fn next_window_edge(&self, now: UnixMillis) -> Option<UnixMillis> {
        let classes = self.catalog.classes.values();
        let names = classes.flat_map(|class| &class.value.spec.preemption_windows);
        let names: std::collections::BTreeSet<&String> = names.collect();
        let windows = names.into_iter();
        let windows = windows.filter_map(|name| self.catalog.windows.get(name));
        let edges = windows.filter_map(|it| it.value.spec.next_edge(now, now.after(HORIZON)));
        edges.min()
    }

    /// Status of every reservation.
    pub(crate) fn reservation_statuses(
        &self,
        situation: Situation,
    ) -> BTreeMap<String, ReservationStatus> {
        if self.catalog.reservations.is_empty() {
            return BTreeMap::new();
        }
        let snapshot = self.snapshot(situation).snapshot;
        let states = block_states(&snapshot);
        let rows: Vec<(&Reserved, &BlockState)> = snapshot.reserved.iter().zip(&states).collect();
        let reservations = self.catalog.reservations.iter();
        let status = reservations.map(|(name, reservation)| {
            let first = rows.iter().find(|(row, _)| row.name == *name);
            let state = first.map(|(_, state)| *state);
            let status = self.reservation_status(reservation, state, &snapshot);
            (name.clone(), status)
        });
        status.collect()
    }

    fn reservation_status(
        &self,
        reservation: &Versioned<Reservation>,
        state: Option<&BlockState>,
        snapshot: &Snapshot,
    ) -> ReservationStatus {
        let (object, now) = (&reservation.value, snapshot.now);
        let spans = self.spans(object, now);
        let shown = |at: UnixMillis| {
            let is_real = at > UnixMillis::ZERO && at < FOREVER;
            is_real.then_some(Time(at))
        };
        let first = spans.first();
        let phase = match first {
            None => ReservationPhase::Ended,
            Some(span) if span.from <= now => ReservationPhase::Active,
            Some(_) => ReservationPhase::Pending,
        };
        let hosts = ReservedHosts {
            reserved: object.spec.capacity.hosts,
            used: state.map_or(0, |state| state.used),
            ready: state.map_or(0, |state| state.ready),
        };
        let mut status = ReservationStatus {
            observed_generation: object.metadata.generation,
            phase,
            start: first.and_then(|span| shown(span.from)),
            end: first.and_then(|span| shown(span.until)),
            next_start: spans.get(1).and_then(|span| shown(span.from)),
            hosts,
            gpus_used: GpuQuantity(state.map(|state| state.gpus_used).unwrap_or_default()),
            conditions: Vec::new(),
        };
        if phase != ReservationPhase::Ended {
            let old = object.status.as_ref().map(|old| old.conditions.clone());
            status.conditions = old.unwrap_or_default();
            let whole = self.whole(object, hosts, state, snapshot);
            conditions::set(&mut status.conditions, whole, now);
        }
        status
    }

    fn whole(
        &self,
        object: &Reservation,
        hosts: ReservedHosts,
        state: Option<&BlockState>,
        snapshot: &Snapshot,
    ) -> Condition {
        let (status, reason, message) = match state {
            None => {
                let capacity = &object.spec.capacity;
                let message = format!(
                    "no agent reports pool {}/{}",
                    capacity.cluster.as_deref().unwrap_or("?"),
                    capacity.pool.as_deref().unwrap_or("?"),
                );
                (ConditionStatus::Unknown, "PoolNotReported", message)
            }
            Some(_) if hosts.ready >= hosts.reserved => {
                (ConditionStatus::True, "HostsReady", String::new())
            }
            Some(state) => {
                let stays = |ix: &&HeldIx| {
                    let held = snapshot.held.get(ix.index());
                    let class = held.and_then(|held| snapshot.classes.get(held.class.index()));
                    class.is_some_and(|class| !lets_go(&class.rule))
                };
                let stay: Vec<HeldIx> = state.in_the_way.iter().filter(stays).copied().collect();
                let stay = match stay.as_slice() {
                    [] => String::new(),
                    stay => format!("; not to be stopped: {}", self.names(stay, snapshot)),
                };
                let message = format!(
                    "{} of {} hosts are certain; in the way: {}{stay}",
                    hosts.ready,
                    hosts.reserved,
                    self.names(&state.in_the_way, snapshot),
                );
                (ConditionStatus::False, "HostsTaken", message)
            }
        };
        Condition {
            kind: WHOLE.to_owned(),
            status,
            reason: reason.to_owned(),
            message,
            observed_generation: object.metadata.generation,
            last_transition_time: None,
        }
    }

    /// Jobs of placements, the first few by name.
    fn names(&self, held: &[HeldIx], snapshot: &Snapshot) -> String {
        let jobs = held.iter().filter_map(|ix| {
            let job = self.job(snapshot.held.get(ix.index())?.gang.job)?;
            Some(job.full_name())
        });
        let jobs: std::collections::BTreeSet<String> = jobs.collect();
        let count = jobs.len();
        let named: Vec<String> = jobs.into_iter().take(NAMED).collect();
        match count.saturating_sub(NAMED) {
            _ if count == 0 => "what others than the hub have put there".to_owned(),
            0 => named.join(", "),
            more => format!("{} and {more} more", named.join(", ")),
        }
    }

    /// Status of every window.
    pub(crate) fn window_statuses(&self, now: UnixMillis) -> BTreeMap<String, TimeWindowStatus> {
        let status = |(name, window): (&String, &Versioned<TimeWindow>)| {
            let openings = window.value.spec.openings(now, now.after(HORIZON));
            let open = openings.first().filter(|opening| opening.from <= now);
            let next = openings.iter().find(|opening| opening.from > now);
            let status = TimeWindowStatus {
                observed_generation: window.value.metadata.generation,
                open: open.is_some(),
                closes_at: open.map(|opening| Time(opening.until)),
                next_open: next.map(|opening| Time(opening.from)),
                conditions: Vec::new(),
            };
            (name.clone(), status)
        };
        self.catalog.windows.iter().map(status).collect()
    }
}

#[cfg(test)]
#[path = "reserved_tests.rs"]
mod tests;
