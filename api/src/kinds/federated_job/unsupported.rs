//! What a job may say and this release does not do.
//!
//! Owns the list of refusals: work that would be accepted and never run as asked is worse than an
//! error. An entry goes when the hub or the agent does what the field says.

use super::{ClusterSpan, FederatedJob, FederatedJobSpec, PartitionRule};
use crate::errors::FieldError;
use crate::kinds::workload_class::CapacityType;
use crate::validate::Findings;

/// Everything in a job that this release cannot do.
#[must_use]
pub fn unsupported(job: &FederatedJob) -> Vec<FieldError> {
    let mut found = Findings::default();
    check(&job.spec, &mut found);
    found.list
}

pub(super) fn check(spec: &FederatedJobSpec, found: &mut Findings) {
    if spec.run_lease.is_some() {
        let message = "run leases are not renewed by this release: leave it out";
        found.unsupported("spec.runLease", message);
    }
    if spec.partition_rule == PartitionRule::Duplicable {
        let message = "no replacement is started by this release: use Exclusive or Pinned";
        found.unsupported("spec.partitionRule", message);
    }
    if spec
        .checkpoint
        .as_ref()
        .is_some_and(|save| !save.replicate_to.is_empty())
    {
        let message = "checkpoints are not copied by this release: leave it out";
        found.unsupported("spec.checkpoint.replicateTo", message);
    }
    for (index, role) in spec.roles.iter().enumerate() {
        if !role.gpus.0.is_whole() {
            let message = format!("is {}: this release places whole cards only", role.gpus);
            found.unsupported(&format!("spec.roles[{index}].gpus"), message);
        }
    }
    check_placement(spec, found);
}

fn check_placement(spec: &FederatedJobSpec, found: &mut Findings) {
    let placement = &spec.placement;
    if placement.cluster_span == ClusterSpan::Split {
        let message = "gangs are not split over clusters by this release: use Single";
        found.unsupported("spec.placement.clusterSpan", message);
    }
    if placement.spread.len() > 1 {
        let message = format!(
            "has {} rules: this release keeps one; spread over the label that matters most",
            placement.spread.len()
        );
        found.unsupported("spec.placement.spread", message);
    }
    let others = [CapacityType::Borrowed, CapacityType::Loan];
    if !placement.capacity.is_empty() && placement.capacity.iter().all(|it| others.contains(it)) {
        let message = "nothing is placed on others' capacity alone by this release: add Nominal, \
                       Reserved or Spot";
        found.unsupported("spec.placement.capacity", message);
    }
}
