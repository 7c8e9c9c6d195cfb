//! Our side: a hub and the agent of the cluster, in this process.
//!
//! Owns their start, the jobs of a run and their removal.

use std::sync::Arc;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use meridian_agent::kubernetes::{KubernetesBackend, KubernetesOptions};
use meridian_agent::{Agent, AgentHandle, AgentMetrics, AgentOptions};
use meridian_api::kinds::federated_job::FederatedJobSpec;
use meridian_api::units::Millis;
use meridian_client::{Client, ClientOptions, DryRun, ListOptions, Resource};
use meridian_e2e::member::MemberCluster;
use meridian_e2e::process::Harness;
use meridian_proto::v1;
use meridian_proto::v1::federation_service_client::FederationServiceClient;
use meridian_runtime::disk::FolderDisk;
use meridian_runtime::network::Tcp;
use meridian_runtime::{Clock, Random, Tasks};
use meridian_store::{EmbeddedOptions, EmbeddedStore};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use crate::common::hub::Hub;
use crate::peer;
use crate::pods::NAMESPACE;
use crate::{GPUS, PODS};

const CLUSTER: &str = "eu-a";
/// The agent has counted a thousand nodes by then.
const COUNTED_WITHIN: Millis = Millis::seconds(120);
const LOOK_EVERY: Millis = Millis(100);
/// Submits in flight.
const IN_FLIGHT: usize = 32;

/// A hub with one agent.
pub(crate) struct Federation {
    hub: Hub,
    agent: AgentHandle,
    tasks: Tasks,
    clock: Clock,
    pods: Api<Pod>,
    _harness: Harness,
}

impl Federation {
    /// Starts both and declares the cluster, a tenant and a class.
    pub(crate) async fn start(cluster: &MemberCluster) -> anyhow::Result<Self> {
        let (harness, tasks, clock) = (Harness::new(), Tasks::new(), Clock::real());
        let file = harness.folder("hub").join("store.db");
        let store = EmbeddedStore::open(&file, clock.clone(), &tasks, EmbeddedOptions::default())?;
        let hub = Hub::start(Arc::new(store)).await?;
        hub.object("Region", "eu-west", json!({"timeZone": "Europe/Dublin"}))
            .await?;
        let spec = json!({"region": "eu-west", "backend": "Kubernetes"});
        hub.object("MemberCluster", CLUSTER, spec).await?;
        hub.object("Tenant", NAMESPACE, json!({})).await?;
        let options = KubernetesOptions::new(cluster.client(), clock.clone());
        let agent = Agent::start(AgentOptions {
            cluster: CLUSTER.to_owned(),
            hubs: vec![hub.agents().to_owned()],
            version: "bench".to_owned(),
            network: Arc::new(Tcp),
            clock: clock.clone(),
            random: Random::seeded(1),
            disk: Arc::new(FolderDisk::open(&harness.folder("agent"))?),
            backend: Arc::new(KubernetesBackend::new(options)),
            tasks: tasks.clone(),
            metrics: AgentMetrics::register(&mut Registry::default()),
            identity: None,
        })
        .await?;
        Ok(Self {
            hub,
            agent,
            tasks,
            clock,
            pods: Api::namespaced(cluster.client(), NAMESPACE),
            _harness: harness,
        })
    }

    /// Waits until that many GPUs are free.
    pub(crate) async fn counted(&self, gpus: u64) -> anyhow::Result<()> {
        let mut users = FederationServiceClient::new(self.hub.for_users());
        let counting = async {
            loop {
                let answer = users.capacity(v1::CapacityRequest::default()).await?;
                let pools = answer.into_inner().pools;
                let free: u64 = pools.iter().map(|pool| pool.free_milli_gpus).sum();
                if free == gpus * 1000 {
                    return anyhow::Ok(());
                }
                self.clock.sleep(LOOK_EVERY).await;
            }
        };
        self.clock.timeout(COUNTED_WITHIN, counting).await?
    }

    /// Submits the jobs of one run, a gang each.
    pub(crate) async fn submit(&self, turn: usize, gangs: usize) -> anyhow::Result<()> {
        let users = FederationServiceClient::new(self.hub.for_users());
        let submitted = stream::iter(0..gangs).map(|index| {
            let mut users = users.clone();
            async move {
                let request = v1::SubmitRequest {
                    job: job(turn, index).to_string().into(),
                    ..v1::SubmitRequest::default()
                };
                users.submit(request).await?;
                anyhow::Ok(())
            }
        });
        submitted
            .buffer_unordered(IN_FLIGHT)
            .try_collect::<()>()
            .await
    }

    /// Deletes all jobs and waits until their pods are gone and all GPUs are free.
    pub(crate) async fn clear(&self, gpus: u64) -> anyhow::Result<()> {
        let client = Client::new(ClientOptions::new(format!("http://{}", self.hub.users())))?;
        let kind = Resource::of::<FederatedJobSpec>();
        let all = ListOptions::default();
        let jobs = client.list(&kind, Some(NAMESPACE), &all).await?;
        let names = jobs.items.into_iter();
        let names = names.filter_map(|job| Some(job["metadata"]["name"].as_str()?.to_owned()));
        let deleted = stream::iter(names).map(|name| {
            let (client, kind) = (&client, &kind);
            async move {
                client
                    .delete(kind, NAMESPACE, &name, None, DryRun::No)
                    .await?;
                anyhow::Ok(())
            }
        });
        deleted
            .buffer_unordered(IN_FLIGHT)
            .try_collect::<()>()
            .await?;
        peer::gone(&self.pods, &self.clock).await?;
        self.counted(gpus).await
    }

    /// Ends both.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.agent.shutdown().await;
        self.hub.stop().await?;
        self.tasks.cancel();
        Ok(self.tasks.finished().await?)
    }
}

/// One gang of [`PODS`] pods.
fn job(turn: usize, index: usize) -> Value {
    json!({
        "apiVersion": "meridian.dev/v1alpha1", "kind": "FederatedJob",
        "metadata": {"name": format!("gang-{turn}-{index:05}"), "namespace": NAMESPACE},
        "spec": {
            "workloadClass": "batch-short",
            "roles": [{
                "name": "worker", "replicas": PODS, "gpus": GPUS,
                "resources": {"cpu": "4", "memory": "16Gi"},
                "template": {"spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{"name": "main", "image": "meridian.dev/trainer:1"}],
                }},
            }],
        },
    })
}
