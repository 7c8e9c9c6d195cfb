//! Admission of reservations: the pool has the hosts at that time, and nobody else has them.
//!
//! Owns the choice of a pool where none is named, and the refusals. That no two of them are
//! accepted at once is the policy head's doing, which every such write compares.

use std::collections::BTreeMap;

use meridian_api::errors::{FieldError, FieldReason};
use meridian_api::kinds::reservation::overlap::{Claim, HORIZON, Peak, peak};
use meridian_api::kinds::reservation::{FOREVER, ReservationSpec};
use meridian_api::kinds::time_window::Opening;
use meridian_api::kinds::{MemberCluster, Reservation, Tenant, TimeWindow};
use meridian_api::quantity::Time;
use meridian_api::units::UnixMillis;
use meridian_api::validate;
use meridian_apiserver::{Admitted, Change, Denial};
use meridian_store::Operation as StoreCall;
use meridian_store::keys;
use serde_json::json;

use super::{HubAdmission, broken, in_use, invalid};
use crate::model::PoolState;

/// A pool that could hold a reservation.
struct Candidate {
    cluster: String,
    pool: String,
    hosts: u64,
}

/// All reservations and windows, as they would be after the change.
struct Calendar {
    reservations: BTreeMap<String, Reservation>,
    windows: BTreeMap<String, TimeWindow>,
    now: UnixMillis,
}

impl Calendar {
    fn spans(&self, spec: &ReservationSpec) -> Vec<Opening> {
        let window = spec.schedule.window.as_ref();
        let window = window.and_then(|name| self.windows.get(name));
        spec.spans(window, self.now, self.now.after(HORIZON))
    }

    /// What is reserved in a pool by others than `name`.
    fn claims(&self, candidate: &Candidate, name: &str) -> Vec<Claim> {
        let others = self.reservations.iter();
        let here = others.filter(|(other, reservation)| {
            let capacity = &reservation.spec.capacity;
            *other != name
                && capacity.cluster.as_ref() == Some(&candidate.cluster)
                && capacity.pool.as_ref() == Some(&candidate.pool)
        });
        let claim = |(name, reservation): (&String, &Reservation)| Claim {
            name: name.clone(),
            hosts: reservation.spec.capacity.hosts,
            spans: self.spans(&reservation.spec),
        };
        here.map(claim).collect()
    }
}

impl HubAdmission {
    /// A reservation names what is there, and gets hosts that are nobody else's at that time.
    pub(super) async fn reservation(&self, change: &Change<'_>) -> Result<Admitted, Denial> {
        let Some(after) = change.after else {
            return Ok(Admitted::default());
        };
        if change
            .before
            .is_some_and(|before| before.get("spec") == after.get("spec"))
        {
            return Ok(Admitted::default());
        }
        let reservation: Reservation =
            validate::from_value(after).map_err(|wrong| invalid(vec![wrong]))?;
        let spec = &reservation.spec;
        let calendar = self.calendar().await?;
        self.names_are_there(spec, &calendar).await?;
        let candidates = self.candidates(spec).await?;
        let spans = calendar.spans(spec);
        let offers = candidates.into_iter().map(|candidate| {
            let peak = peak(&spans, &calendar.claims(&candidate, &change.key.name));
            (candidate, peak)
        });
        let offers: Vec<(Candidate, Peak)> = offers.collect();
        let wanted = u64::from(spec.capacity.hosts);
        let left = |offer: &(Candidate, Peak)| offer.0.hosts.saturating_sub(offer.1.hosts);
        // Where most is left, then by name: candidates come in the order of their names.
        let best = offers.iter().rev().max_by_key(|offer| left(offer));
        let Some(best) = best.filter(|best| left(best) >= wanted) else {
            return Err(invalid(vec![over_reserved(spec, best)]));
        };
        let mut object = after.clone();
        object["spec"]["capacity"]["cluster"] = json!(best.0.cluster);
        object["spec"]["capacity"]["pool"] = json!(best.0.pool);
        Ok(Admitted {
            object: (object != *after).then_some(object),
            warnings: nothing_ahead(&spans),
            ..Admitted::default()
        })
    }

    /// A window goes when no reservation recurs with it, and changes as far as their pools allow.
    pub(super) async fn window_of_reservations(
        &self,
        change: &Change<'_>,
    ) -> Result<Admitted, Denial> {
        let mut calendar = self.calendar().await?;
        let name = change.key.name.as_str();
        let names_it = |spec: &ReservationSpec| spec.schedule.window.as_deref() == Some(name);
        let Some(after) = change.after else {
            self.not_reserved("window", names_it).await?;
            return Ok(Admitted::default());
        };
        let window: TimeWindow =
            validate::from_value(after).map_err(|wrong| invalid(vec![wrong]))?;
        calendar.windows.insert(name.to_owned(), window);
        for (own, reservation) in &calendar.reservations {
            let spec = &reservation.spec;
            if !names_it(spec) {
                continue;
            }
            let spans = calendar.spans(spec);
            for candidate in self.pools(spec).await? {
                let peak = peak(&spans, &calendar.claims(&candidate, own));
                if candidate.hosts < peak.hosts.saturating_add(spec.capacity.hosts.into()) {
                    let offer = (candidate, peak);
                    let wrong = over_reserved(spec, Some(&offer)).message;
                    let message =
                        format!("reservation {own} recurs with it, and its hosts: {wrong}");
                    let error = FieldError::new("spec.open", FieldReason::Invalid, message);
                    return Err(invalid(vec![error]));
                }
            }
        }
        Ok(Admitted::default())
    }

    /// Refuses to delete what reservations stand on.
    pub(super) async fn not_reserved(
        &self,
        what: &str,
        stands_on: impl Fn(&ReservationSpec) -> bool + Send,
    ) -> Result<(), Denial> {
        let reservations = self.table::<Reservation>("reservations").await?;
        let standing = reservations.iter().filter(|(_, it)| stands_on(&it.spec));
        let names: Vec<&str> = standing.map(|(name, _)| name.as_str()).collect();
        if names.is_empty() {
            return Ok(());
        }
        let names = names.join(", ");
        Err(in_use(format!(
            "reservations stand on this {what}: {names}; delete them first"
        )))
    }

    async fn calendar(&self) -> Result<Calendar, Denial> {
        Ok(Calendar {
            reservations: self.table("reservations").await?,
            windows: self.table("timewindows").await?,
            now: self.clock.wall(),
        })
    }

    async fn names_are_there(
        &self,
        spec: &ReservationSpec,
        calendar: &Calendar,
    ) -> Result<(), Denial> {
        let mut wrong = Vec::new();
        let mut missing = |path: &str, kind: &str, name: &str| {
            let message = format!("there is no {kind} {name:?}; create it first");
            wrong.push(FieldError::new(path, FieldReason::NotFound, message));
        };
        let tenants = self.table::<Tenant>("tenants").await?;
        if !tenants.contains_key(&spec.tenant) {
            missing("spec.tenant", "Tenant", &spec.tenant);
        }
        if let Some(window) = &spec.schedule.window
            && !calendar.windows.contains_key(window)
        {
            missing("spec.schedule.window", "TimeWindow", window);
        }
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(invalid(wrong))
        }
    }

    /// Pools that the reservation allows; a refusal when there are none.
    async fn candidates(&self, spec: &ReservationSpec) -> Result<Vec<Candidate>, Denial> {
        let pools = self.pools(spec).await?;
        if !pools.is_empty() {
            return Ok(pools);
        }
        let capacity = &spec.capacity;
        let (path, place) = match (&capacity.cluster, &capacity.pool, &capacity.region) {
            (Some(cluster), Some(pool), _) => ("pool", format!(" {pool:?} in cluster {cluster}")),
            (Some(cluster), None, _) => ("cluster", format!(" in cluster {cluster}")),
            (None, _, Some(region)) => ("region", format!(" in region {region}")),
            (None, _, None) => ("flavor", String::new()),
        };
        let message = format!(
            "no agent has reported a pool{place} with hosts of flavor {:?}: see kubectl get \
             gpupools, or meridian capacity",
            capacity.flavor
        );
        let path = format!("spec.capacity.{path}");
        Err(invalid(vec![FieldError::new(
            path,
            FieldReason::NotFound,
            message,
        )]))
    }

    /// Pools that have been reported and that the reservation allows, by cluster and name.
    async fn pools(&self, spec: &ReservationSpec) -> Result<Vec<Candidate>, Denial> {
        let capacity = &spec.capacity;
        let allows = |wanted: &Option<String>, name: &String| {
            wanted.as_ref().is_none_or(|wanted| wanted == name)
        };
        let mut candidates = Vec::new();
        for (name, cluster) in self.table::<MemberCluster>("memberclusters").await? {
            if !allows(&capacity.cluster, &name) || !allows(&capacity.region, &cluster.spec.region)
            {
                continue;
            }
            let key = keys::capacity(&name);
            let stored = self.store.get(StoreCall::WriteObject, key).await;
            let Some(stored) = stored.map_err(broken)? else {
                continue;
            };
            let pools: BTreeMap<String, PoolState> =
                serde_json::from_slice(&stored.value).unwrap_or_default();
            for (pool, state) in pools {
                if state.flavor != capacity.flavor || !allows(&capacity.pool, &pool) {
                    continue;
                }
                let with_gpus = state.shapes.iter().filter(|row| row.allocatable.gpus.0 > 0);
                let hosts = with_gpus.map(|row| u64::from(row.hosts)).sum();
                candidates.push(Candidate {
                    cluster: name.clone(),
                    pool,
                    hosts,
                });
            }
        }
        Ok(candidates)
    }
}

/// What is wrong with a reservation of which even the best offer has too little.
fn over_reserved(spec: &ReservationSpec, best: Option<&(Candidate, Peak)>) -> FieldError {
    let path = "spec.capacity.hosts";
    let wanted = spec.capacity.hosts;
    let Some((candidate, peak)) = best else {
        let message = format!("is {wanted}, and no pool has any");
        return FieldError::new(path, FieldReason::TooMany, message);
    };
    let place = format!("{}/{}", candidate.cluster, candidate.pool);
    let all = candidate.hosts;
    let message = if peak.names.is_empty() {
        format!("is {wanted}, and pool {place} has {all} hosts: ask for fewer or another pool")
    } else {
        let left = all.saturating_sub(peak.hosts);
        format!(
            "is {wanted}; of the {all} hosts of pool {place}, {} are reserved {} ({}): at most \
             {left} are left then; ask for fewer hosts, another time or another pool",
            peak.hosts,
            span(peak),
            peak.names.join(", "),
        )
    };
    FieldError::new(path, FieldReason::TooMany, message)
}

fn span(peak: &Peak) -> String {
    match (peak.from > UnixMillis::ZERO, peak.until < FOREVER) {
        (true, true) => format!("from {} until {}", Time(peak.from), Time(peak.until)),
        (true, false) => format!("from {}", Time(peak.from)),
        (false, true) => format!("until {}", Time(peak.until)),
        (false, false) => "at all times".to_owned(),
    }
}

fn nothing_ahead(spans: &[Opening]) -> Vec<String> {
    if spans.is_empty() {
        vec!["spec.schedule: it never holds in the year to come".to_owned()]
    } else {
        Vec::new()
    }
}
