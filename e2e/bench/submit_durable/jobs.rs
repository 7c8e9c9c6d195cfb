//! The jobs that are sent, and the hub that takes them.
//!
//! Owns the inputs: tenants and jobs follow from an index alone. No cluster is attached, so every
//! job is stored, taken into the model, decided on, and waits.

use meridian_store::SharedStore;
use serde_json::{Value, json};

use crate::common::hub::Hub;

/// Tenants that jobs are of, in turn; each has a namespace of its name.
const TENANTS: usize = 20;

/// A hub that knows the tenants of the jobs.
pub(crate) async fn hub(store: SharedStore) -> anyhow::Result<Hub> {
    let hub = Hub::start(store).await?;
    for tenant in 0..TENANTS {
        hub.object("Tenant", &namespace(tenant), json!({})).await?;
    }
    Ok(hub)
}

fn namespace(index: usize) -> String {
    format!("team-{:02}", index % TENANTS)
}

/// Namespace and name of job number `index`.
pub(crate) fn name(index: usize) -> (String, String) {
    (namespace(index), format!("job-{index:07}"))
}

/// Job number `index`, some 300 bytes of JSON.
pub(crate) fn job(index: usize) -> Value {
    let (namespace, name) = name(index);
    json!({
        "apiVersion": "meridian.dev/v1alpha1",
        "kind": "FederatedJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "workloadClass": "batch-short",
            "maxRuntime": "30m",
            "roles": [{
                "name": "worker",
                "replicas": 1 + index % 8,
                "gpus": 1,
                "template": {"spec": {"containers": [{"name": "main", "image": "train:1"}]}},
            }],
        },
    })
}
