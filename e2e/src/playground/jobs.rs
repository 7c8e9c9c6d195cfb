//! A row of the table as a job of ours, and the tenants that own them.
//!
//! Owns what neither the trace nor the simulator says of it: CPU and memory, topology, restarts.
//! Gang shapes, classes and quotas are the simulator's. Never looks at what the fleet does with
//! them.

use meridian_agent::simulated::RUNTIME;
use meridian_api::meta::API_VERSION;
use meridian_client::{DryRun, Submission};
use meridian_sim::traces::philly::ROOT;
pub(super) use meridian_sim::traces::philly::{class, nominal, shape, tenant};
use serde_json::{Value, json};

use super::data::TraceJob;

/// Half of what the leanest host has for each GPU (96 cores and 384 GiB for 8): a pod never fails
/// to fit because of them, and they are still counted.
const CPUS_PER_GPU: u64 = 6;
const GIB_PER_GPU: u64 = 24;

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
        plan_token: String::new(),
    }
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
