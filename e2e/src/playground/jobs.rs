//! A row of the table as a job of ours, and the tenants that own them.
//!
//! Owns what the trace does not say: gang shapes, classes, CPU and memory, quotas. Each choice is
//! derived below. Never looks at what the fleet does with them.

use std::collections::BTreeMap;

use meridian_agent::simulated::RUNTIME;
use meridian_api::meta::API_VERSION;
use meridian_api::units::Millis;
use meridian_client::{DryRun, Submission};
use serde_json::{Value, json};

use super::data::TraceJob;

/// The root of the tenant tree.
pub(super) const ROOT: &str = "philly";
/// GPUs of the largest pod: a whole host of the inventory.
const MOST_GPUS_PER_POD: u64 = 8;
/// Half of what the leanest host has for each GPU (96 cores and 384 GiB for 8): a pod never fails
/// to fit because of them, and they are still counted.
const CPUS_PER_GPU: u64 = 6;
const GIB_PER_GPU: u64 = 24;
/// `batch-short` ends a run after 2 h. A job is of it when it leaves room for the slowest start
/// of its pods (8 s) many times over.
const SHORT_AT_MOST: Millis = Millis::seconds(2 * 3600 - 300);
/// Every virtual cluster owns at least one host.
const LEAST_NOMINAL: u64 = 8;

/// Class of a job: by its run time, as a user would choose who knows it.
pub(super) fn class(job: &TraceJob) -> &'static str {
    if job.duration <= SHORT_AT_MOST {
        "batch-short"
    } else {
        "batch-long"
    }
}

/// Tenant and namespace of a virtual cluster; its hash may begin with a digit.
pub(super) fn tenant(vc: &str) -> String {
    format!("vc-{vc}")
}

/// Pods of a job and GPUs of each: one pod up to a whole host, else the fewest equal pods of a
/// power of two, which is how hosts are divided: 12 = 3 x 4, 24 = 3 x 8.
pub(super) fn shape(gpus: u64) -> (u64, u64) {
    if gpus <= MOST_GPUS_PER_POD {
        return (1, gpus);
    }
    let sizes = [8, 4, 2, 1].into_iter();
    let size = sizes.clone().find(|size| gpus.is_multiple_of(*size));
    let size = size.unwrap_or(1);
    (gpus / size, size)
}

/// Name of a job in round `round` of the table, from 0.
pub(super) fn name(job: &TraceJob, round: u64) -> String {
    format!("philly-w{round}-{:05}", job.row)
}

/// The job as it is submitted.
pub(super) fn submission(job: &TraceJob, round: u64) -> Submission {
    let (pods, gpus) = shape(job.gpus);
    let (name, namespace) = (name(job, round), tenant(&job.vc));
    let seconds = job.duration.0 / 1000;
    let mut spec = json!({
        "workloadClass": class(job),
        "costAttribution": {"team": namespace, "project": "philly"},
        "expectedRuntime": format!("{seconds}s"),
        "roles": [{
            "name": "worker",
            "replicas": pods,
            "gpus": gpus,
            "resources": {
                "cpu": (gpus * CPUS_PER_GPU).to_string(),
                "memory": format!("{}Gi", gpus * GIB_PER_GPU),
            },
            "template": {
                "metadata": {"annotations": {RUNTIME: format!("{seconds}s")}},
                "spec": {"containers": [{
                    "name": "main", "image": "registry.example/philly/train:1.0",
                }]},
            },
        }],
        "retry": {"maxRestarts": 3},
    });
    if pods > 1 {
        spec["topology"] = json!([{"role": "worker", "preferred": "rack"}]);
    }
    let job = json!({
        "apiVersion": API_VERSION,
        "kind": "FederatedJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": spec,
    });
    Submission {
        job,
        idempotency_key: name,
        dry_run: DryRun::No,
    }
}

/// What each virtual cluster owns of `fleet` GPUs: at least a host, and the rest in proportion to
/// the GPU time that it asked for in the whole table, rounded down.
pub(super) fn nominal(week: &[TraceJob], fleet: u64) -> BTreeMap<String, u64> {
    let mut asked: BTreeMap<String, u128> = BTreeMap::new();
    for job in week {
        let time = u128::from(job.gpus) * u128::from(job.duration.0);
        *asked.entry(job.vc.clone()).or_default() += time;
    }
    let all: u128 = asked.values().sum();
    let rest = fleet.saturating_sub(LEAST_NOMINAL * asked.len() as u64);
    let share = |time: u128| {
        let share = u128::from(rest) * time / all.max(1);
        LEAST_NOMINAL + u64::try_from(share).unwrap_or(0)
    };
    asked
        .into_iter()
        .map(|(vc, time)| (vc, share(time)))
        .collect()
}

/// Classes as they ship, then the tenant tree with its quotas. Who has no work lends everything,
/// and a borrower may borrow everything: the week wants 90 % of the fleet on average.
pub(super) fn objects(week: &[TraceJob], fleet: u64) -> Vec<Value> {
    let shipped = include_bytes!("../../../policies/defaults/classes.yaml");
    let shipped = meridian_api::document::parse(shipped).expect("the defaults are tested");
    let mut objects: Vec<Value> = shipped.into_iter().map(|shipped| shipped.value).collect();
    let object = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec,
        })
    };
    let quota = |tenant: &str, nominal: u64| {
        let spec = json!({"tenant": tenant, "resources": [{"nominal": nominal}]});
        object("TenantQuota", tenant, spec)
    };
    objects.push(object("Tenant", ROOT, json!({})));
    objects.push(quota(ROOT, fleet));
    for (vc, nominal) in nominal(week, fleet) {
        let name = tenant(&vc);
        objects.push(object("Tenant", &name, json!({"parent": ROOT})));
        objects.push(quota(&name, nominal));
    }
    objects
}

#[cfg(test)]
mod tests {
    use super::super::data;
    use super::*;

    #[test]
    fn gangs_are_of_equal_pods_that_fit_a_host() {
        let cases = [1, 2, 4, 8, 12, 16, 24, 32].map(|gpus| (gpus, shape(gpus)));
        let expected = [
            (1, (1, 1)),
            (2, (1, 2)),
            (4, (1, 4)),
            (8, (1, 8)),
            (12, (3, 4)),
            (16, (2, 8)),
            (24, (3, 8)),
            (32, (4, 8)),
        ];
        assert_eq!(cases, expected);
    }

    #[test]
    fn quotas_fit_into_the_fleet() {
        let week = data::week().expect("the table is whole");
        let nominal = nominal(&week, 820);
        assert_eq!(nominal.len(), 11);
        let sum: u64 = nominal.values().sum();
        assert!((820 - 11..=820).contains(&sum), "{sum}");
    }
}
