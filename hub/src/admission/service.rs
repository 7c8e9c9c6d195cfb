//! Admission of services: what their class and their tenant ask of them.
//!
//! Owns the rules that a service has beyond those of a job. What is compared of class and tenant
//! is the same as for jobs.

use meridian_api::errors::{FieldError, FieldReason};
use meridian_api::kinds::federated_job::RegionChoice;
use meridian_api::kinds::federated_service::{FederatedServiceSpec, MAX_NAME_CHARS};
use meridian_api::kinds::workload_class::Preemption;
use meridian_api::kinds::{FederatedService, WorkloadClass};
use meridian_api::validate;
use meridian_apiserver::{Admitted, Change, Denial};

use super::{HubAdmission, finalizer_stays, invalid};

/// Fewest replicas of a class that is never stopped for others: one host may die.
const LEAST_PROTECTED: u32 = 2;

impl HubAdmission {
    /// A new or changed service fits its class and tenant, and keeps what holds it until nothing
    /// of it runs.
    pub(super) async fn service(&self, change: &Change<'_>) -> Result<Admitted, Denial> {
        let Some(after) = change.after else {
            return Ok(Admitted::default());
        };
        if let Some(before) = change.before {
            finalizer_stays(before, after, "service")?;
            if before.get("spec") == after.get("spec") {
                return Ok(Admitted::default());
            }
        }
        let service: FederatedService =
            validate::from_value(after).map_err(|wrong| invalid(vec![wrong]))?;
        let name = &service.metadata.name;
        if name.len() > MAX_NAME_CHARS {
            let message = format!(
                "has {} characters, at most {MAX_NAME_CHARS} fit: its replicas add their number",
                name.len()
            );
            let wrong = FieldError::new("metadata.name", FieldReason::TooMany, message);
            return Err(invalid(vec![wrong]));
        }
        let before: Option<FederatedService> = change
            .before
            .map(validate::from_value)
            .transpose()
            .map_err(|wrong| invalid(vec![wrong]))?;
        self.service_within_limits(before.as_ref(), &service)?;
        let replica = service.replica(0, None);
        let fits = |class: &WorkloadClass| fits_class(&service.spec, class);
        let (warnings, unchanged) = self.fits_also(&replica, change, fits).await?;
        Ok(Admitted {
            warnings,
            compares: vec![unchanged],
            ..Admitted::default()
        })
    }
}

/// What of a service does not fit its class.
fn fits_class(spec: &FederatedServiceSpec, class: &WorkloadClass) -> Vec<FieldError> {
    let (name, rules) = (&class.metadata.name, &class.spec);
    let mut wrong = Vec::new();
    if let Some(most) = rules.max_runtime {
        let message = format!(
            "is {name:?}, which ends work after {most}; a service runs for ever: use a class \
             without maxRuntime"
        );
        wrong.push(FieldError::new(
            "spec.workloadClass",
            FieldReason::Invalid,
            message,
        ));
    }
    let regions = rules.min_regions.unwrap_or(1);
    if rules.preemption == Preemption::Never {
        let least = LEAST_PROTECTED.max(regions);
        if spec.replicas < least {
            let message = format!(
                "is {}; class {name} is never stopped for others and keeps at least {least} \
                 replicas, so that one host or region may fail: ask for {least}, or use another \
                 class",
                spec.replicas
            );
            wrong.push(FieldError::new(
                "spec.replicas",
                FieldReason::Invalid,
                message,
            ));
        }
    }
    let rule = spec.placement.spread.first();
    let by_region = rule.filter(|rule| rule.topology_key == "region");
    if rule.is_some() && by_region.is_none() && regions > 1 {
        let message = format!(
            "class {name} asks for {regions} regions: spread by region, or leave the rule out"
        );
        let path = "spec.placement.spread[0].topologyKey";
        wrong.push(FieldError::new(path, FieldReason::Invalid, message));
    }
    let regions = by_region.map_or(regions, |rule| rule.least().0.max(regions));
    let named = spec.placement.regions.as_ref();
    let count = named.map(|choice| RegionChoice::names(choice).count());
    if let Some(count) = count.filter(|count| *count < regions as usize) {
        let message = format!(
            "names {count}, and its replicas must stand in {regions} regions: name more, or leave \
             it out"
        );
        let path = "spec.placement.regions";
        wrong.push(FieldError::new(path, FieldReason::Invalid, message));
    }
    wrong
}
