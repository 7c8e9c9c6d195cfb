//! Admission of jobs and services against the limits of their tenants.
//!
//! Owns when a limit is asked: at submission, and when a service grows; a job never does. What the
//! hub makes itself was asked of it before. Never counts (see `limits`).

use meridian_api::errors::ErrorCode;
use meridian_api::kinds::{FederatedJob, FederatedService};
use meridian_api::units::MilliGpus;
use meridian_api::validate;
use meridian_apiserver::{Change, Denial, DryRun, FieldError, FieldReason};
use serde_json::Value;

use super::{HubAdmission, OWN_NAME, invalid};
use crate::limits::Beyond;

impl HubAdmission {
    /// A new job goes beyond no limit of its tenant. One that the fleet could not hold even when
    /// empty is let in with a warning that says so.
    pub(super) fn within_limits(
        &self,
        job: &Value,
        change: &Change<'_>,
    ) -> Result<Option<String>, Denial> {
        if change.actor.name == OWN_NAME {
            return Ok(None);
        }
        let job = read(job)?;
        let tenant = job.spec.tenant.as_deref().unwrap_or_default();
        self.limits.gpus(tenant, gpus(&job)).map_err(beyond)?;
        self.limits.at_once(tenant, at_once(&job)).map_err(beyond)?;
        // A retry of the same submission was counted the first time.
        if change.attempt == 0 {
            let is_rehearsal = change.dry_run != DryRun::No;
            self.limits.one_more(tenant, is_rehearsal).map_err(beyond)?;
        }
        Ok(self.bounds.never(job))
    }

    /// A service that is new or grows asks for no more than its tenant may ever hold; one that is
    /// beyond a limit already may stay and shrink.
    pub(super) fn service_within_limits(
        &self,
        before: Option<&FederatedService>,
        after: &FederatedService,
    ) -> Result<(), Denial> {
        let replica = after.replica(0, None);
        let each = gpus(&replica);
        let all = |service: &FederatedService, each: MilliGpus| {
            let all = each.checked_mul(service.spec.replicas.into());
            all.unwrap_or(MilliGpus(u64::MAX))
        };
        let had = before.map(|before| all(before, gpus(&before.replica(0, None))));
        let asks = all(after, each);
        if had.is_some_and(|had| asks <= had) {
            return Ok(());
        }
        let tenant = replica.spec.tenant.as_deref().unwrap_or_default();
        self.limits.gpus(tenant, each).map_err(beyond)?;
        self.limits.all_gpus(tenant, asks).map_err(beyond)
    }
}

fn read(job: &Value) -> Result<FederatedJob, Denial> {
    validate::from_value(job).map_err(|wrong| invalid(vec![wrong]))
}

fn gpus(job: &FederatedJob) -> MilliGpus {
    job.total_gpus().unwrap_or(MilliGpus(u64::MAX))
}

/// GPUs of the largest gang at its smallest: what must be held at one time.
fn at_once(job: &FederatedJob) -> MilliGpus {
    let gangs = (0..job.gangs_per_copy()).filter_map(|index| job.gang(index));
    let least = gangs.map(|gang| {
        let roles = gang.roles.iter();
        let gpus = roles.map(|role| role.per_pod.gpus.0.saturating_mul(role.min.into()));
        gpus.fold(0, u64::saturating_add)
    });
    MilliGpus(least.max().unwrap_or(0))
}

#[expect(clippy::needless_pass_by_value, reason = "used as a mapping of errors")]
fn beyond(beyond: Beyond) -> Denial {
    let code = ErrorCode::LimitExceeded.as_str();
    let mut denial = Denial::forbidden(beyond.to_string());
    denial.causes = vec![FieldError::new("", FieldReason::ErrorCode, code)];
    denial
}
