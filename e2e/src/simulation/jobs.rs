//! What clients ask for: jobs drawn from a seed, and the fleet that is declared first.
//!
//! Owns their JSON. Never sends anything.

use meridian_runtime::Random;
use serde_json::{Value, json};

use super::world::CLUSTERS;

/// Namespace of every job.
pub(crate) const NAMESPACE: &str = "lab";
/// Label that carries a job's idempotency key, so that the store shows two jobs of one key.
pub(crate) const KEY_LABEL: &str = "simulation.meridian.dev/key";
/// Quotas of the tenant `vision` that the operator turns between, the usual one first.
pub(crate) const QUOTAS: [u32; 3] = [48, 16, 32];

/// A gang that has lost the race for its nodes goes back to the queue after this: so that it does
/// within a run.
const PLACE_TIMEOUT: &str = "12s";
/// What ignores SIGTERM is killed after this.
const GRACE: &str = "5s";

/// Objects of the fleet, in the order in which they must be made: plural, then object.
pub(crate) fn fleet() -> Vec<(&'static str, Value)> {
    let object = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "meridian.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        })
    };
    let class = |name: &str, priority: i32| {
        let spec = json!({
            "priority": priority, "preemption": "Requeue", "notice": "5s",
            "mayUse": ["Nominal", "Borrowed"],
        });
        ("workloadclasses", object("WorkloadClass", name, spec))
    };
    let mut all = vec![class("urgent", 600), class("plain", 400)];
    for (tenant, parent, nominal) in [("org", None, 96), ("vision", Some("org"), 48)] {
        let spec = parent.map_or(json!({}), |parent| json!({"parent": parent}));
        all.push(("tenants", object("Tenant", tenant, spec)));
        let spec = json!({"tenant": tenant, "resources": [{"nominal": nominal}]});
        all.push(("tenantquotas", object("TenantQuota", tenant, spec)));
    }
    for name in CLUSTERS {
        all.push((
            "regions",
            object("Region", name, json!({"timeZone": "Etc/UTC"})),
        ));
        let spec = json!({"region": name});
        all.push(("memberclusters", object("MemberCluster", name, spec)));
    }
    all
}

/// One job.
pub(crate) fn draw(random: &Random, key: &str) -> Value {
    let one_of = |values: &[u64]| {
        let at = usize::try_from(random.below(values.len() as u64)).unwrap_or(0);
        values[at]
    };
    let mut annotations = json!({});
    // One in sixteen runs until it is stopped.
    if random.below(16) > 0 {
        let runtime = format!("{}ms", 1_000 + random.below(14_000));
        annotations["meridian.dev/simulated-runtime"] = json!(runtime);
    }
    if random.below(8) == 0 {
        annotations["meridian.dev/simulated-exit-code"] = json!("1");
    }
    if random.below(10) == 0 {
        annotations["meridian.dev/simulated-ignores-sigterm"] = json!("true");
    }
    let template = json!({
        "metadata": {"annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "registry.example/work:1"}]},
    });
    let role = |name: &str, replicas: u64, gpus: u64| {
        json!({
            "name": name, "replicas": replicas, "gpus": gpus,
            "resources": {"cpu": 2, "memory": "4Gi"}, "template": template,
        })
    };
    let mut roles = vec![role(
        "worker",
        one_of(&[1, 1, 2, 3, 4]),
        one_of(&[1, 2, 4, 8]),
    )];
    if random.below(5) == 0 {
        roles.push(role("helper", 1, one_of(&[1, 2])));
    }
    let gang: Vec<&Value> = roles.iter().map(|role| &role["name"]).collect();
    let gangs = json!([{"name": "all", "roles": gang, "placeTimeout": PLACE_TIMEOUT}]);
    let mut spec = json!({
        "tenant": if random.below(2) == 0 { "org" } else { "vision" },
        "workloadClass": if random.below(3) == 0 { "urgent" } else { "plain" },
        "priority": random.below(3),
        "roles": roles,
        "gangs": gangs,
        "checkpoint": {"uri": "s3://checkpoints/lab", "every": "5m", "onPreempt": {"grace": GRACE}},
        "copies": one_of(&[1, 1, 1, 1, 3]),
        "retry": {"maxRestarts": random.below(3)},
    });
    if random.below(6) == 0 {
        let only = CLUSTERS[usize::try_from(random.below(3)).unwrap_or(0)];
        spec["placement"] = json!({"clusters": [only]});
    }
    let mut metadata = json!({"namespace": NAMESPACE, "labels": {KEY_LABEL: key}});
    // A generated name: nothing but the key keeps a repeated submit from making a second job.
    let (field, name) = match random.below(2) {
        0 => ("name", key.to_owned()),
        _ => ("generateName", format!("{key}-")),
    };
    metadata[field] = json!(name);
    json!({
        "apiVersion": "meridian.dev/v1alpha1",
        "kind": "FederatedJob",
        "metadata": metadata,
        "spec": spec,
    })
}

/// The same job but for its priority.
pub(crate) fn another(job: &Value) -> Value {
    let mut other = job.clone();
    other["spec"]["priority"] = json!(77);
    other
}
