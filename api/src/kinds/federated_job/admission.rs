//! Whether a job fits its class and its tenant.
//!
//! Owns the comparison of a job with the two objects that it names. Pure: the caller has found
//! them. Quota is the decision's, not admission's.

use super::FederatedJob;
use crate::errors::FieldReason;
use crate::kinds::{Tenant, WorkloadClass};
use crate::quantity::GpuQuantity;
use crate::validate::Findings;

/// Notes everything in which a job goes beyond its class.
pub fn fits_class(job: &FederatedJob, class: &WorkloadClass, found: &mut Findings) {
    let (name, rules) = (&class.metadata.name, &class.spec);
    let total = job.total_gpus().map(GpuQuantity);
    if let (Some(total), Some(most)) = (total, rules.gpus_per_job)
        && total > most
    {
        let message = format!("asks for {total} GPUs, class {name} allows {most} in one job");
        found.add("spec.roles", FieldReason::TooMany, message);
    }
    if let (Some(asked), Some(most)) = (job.spec.max_runtime, rules.max_runtime)
        && asked > most
    {
        let message =
            format!("is {asked}, class {name} allows {most}: use a class for longer work");
        found.invalid("spec.maxRuntime", message);
    }
    if rules.require_elasticity && job.spec.elasticity.is_none() {
        let message = format!("class {name} needs it: say how far the job may shrink");
        found.add("spec.elasticity", FieldReason::Required, message);
    }
    if rules.require_checkpoint && job.spec.checkpoint.is_none() {
        let message = format!("class {name} needs it: its work can be asked to go at any time");
        found.add("spec.checkpoint", FieldReason::Required, message);
    }
    for (index, capacity) in job.spec.placement.capacity.iter().enumerate() {
        if !rules.may_use.is_empty() && !rules.may_use.contains(capacity) {
            let message = format!("is {capacity:?}, class {name} may use {:?}", rules.may_use);
            let path = format!("spec.placement.capacity[{index}]");
            found.add(&path, FieldReason::Forbidden, message);
        }
    }
}

/// Notes everything that a job names and its tenant may not.
pub fn fits_tenant(job: &FederatedJob, tenant: &Tenant, found: &mut Findings) {
    let name = &tenant.metadata.name;
    let Some(allowed) = &tenant.spec.allowed else {
        return;
    };
    let class = &job.spec.workload_class;
    if !allowed.workload_classes.is_empty() && !allowed.workload_classes.contains(class) {
        let list = allowed.workload_classes.join(", ");
        let message = format!("is {class:?}, tenant {name} may use {list}");
        found.add("spec.workloadClass", FieldReason::Forbidden, message);
    }
    let regions = job
        .spec
        .placement
        .regions
        .iter()
        .flat_map(super::RegionChoice::names);
    for region in regions {
        if !allowed.regions.is_empty() && !allowed.regions.iter().any(|known| known == region) {
            let list = allowed.regions.join(", ");
            let message = format!("names {region:?}, tenant {name} may use {list}");
            found.add("spec.placement.regions", FieldReason::Forbidden, message);
        }
    }
}
