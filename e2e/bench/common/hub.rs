//! One real hub in this process, over a store that is handed in.
//!
//! Owns its start, the objects that are made in it, and its end. Never submits or reports.

use std::sync::Arc;

use anyhow::Context as _;
use meridian_api::document;
use meridian_api::units::Millis;
use meridian_apiserver::{DryRun, Request, WriteOptions};
use meridian_hub::config::HubConfig;
use meridian_hub::leadership::Role;
use meridian_hub::metrics::Metrics;
use meridian_hub::{Execution, HubHandle, HubOptions};
use meridian_runtime::network::{Tcp, channel};
use meridian_runtime::{Clock, Random, Tasks};
use meridian_store::SharedStore;
use serde_json::{Value, json};
use tonic::transport::Channel;

/// A hub alone takes the lead at once; a machine under full load needs longer.
const LEAD_WITHIN: Millis = Millis::seconds(30);

/// A hub that leads.
pub(crate) struct Hub {
    /// Where it keeps what it is told.
    pub(crate) store: SharedStore,
    handle: HubHandle,
    tasks: Tasks,
}

impl Hub {
    /// Starts a hub in the calling runtime, with the classes that ship.
    pub(crate) async fn start(store: SharedStore) -> anyhow::Result<Self> {
        let hub = Self::over(store).await?;
        let shipped = include_bytes!("../../../policies/defaults/classes.yaml");
        for class in document::parse(shipped)? {
            hub.make(class.value).await?;
        }
        Ok(hub)
    }

    /// Starts a hub in the calling runtime, over whatever the store holds.
    pub(crate) async fn over(store: SharedStore) -> anyhow::Result<Self> {
        let (clock, tasks) = (Clock::real(), Tasks::new());
        let config = HubConfig {
            users_listen: "127.0.0.1:0".to_owned(),
            agents_listen: "127.0.0.1:0".to_owned(),
            insecure_agents: true,
            ..HubConfig::default()
        };
        let handle = meridian_hub::start(HubOptions {
            config,
            store: Arc::clone(&store),
            clock: clock.clone(),
            random: Random::seeded(1),
            network: Arc::new(Tcp),
            tasks: tasks.clone(),
            metrics: Metrics::default(),
            execution: Execution::Thread,
        });
        let handle = handle.await?;
        let mut leadership = handle.leadership.clone();
        let leads = async {
            while !matches!(leadership.role(), Role::Leader(_)) {
                leadership.changed().await;
            }
        };
        clock.timeout(LEAD_WITHIN, leads).await?;
        Ok(Self {
            store,
            handle,
            tasks,
        })
    }

    /// An object of a namespace as it would be stored.
    pub(crate) async fn would_store(
        &self,
        namespace: &str,
        object: Value,
    ) -> anyhow::Result<Value> {
        let options = WriteOptions {
            dry_run: DryRun::All,
            ..WriteOptions::default()
        };
        self.create(Some(namespace), object, &options).await
    }

    /// Makes a cluster-scoped object.
    pub(crate) async fn object(&self, kind: &str, name: &str, spec: Value) -> anyhow::Result<()> {
        let object = json!({
            "apiVersion": "meridian.dev/v1alpha1", "kind": kind,
            "metadata": {"name": name}, "spec": spec,
        });
        self.make(object).await
    }

    async fn make(&self, object: Value) -> anyhow::Result<()> {
        let options = WriteOptions::default();
        self.create(None, object, &options).await.map(drop)
    }

    async fn create(
        &self,
        namespace: Option<&str>,
        object: Value,
        options: &WriteOptions,
    ) -> anyhow::Result<Value> {
        let resources = &self.handle.resources;
        let kind = object["kind"].as_str().unwrap_or_default();
        let kind = resources.registry().kind(kind).context("a known kind")?;
        let request = Request::default();
        let made = resources.create(&request, kind, namespace, object.clone(), options);
        match made.await {
            Ok(written) => Ok(written.object),
            Err(status) => anyhow::bail!("{object} is refused: {}", status.message),
        }
    }

    /// Where users are served.
    pub(crate) fn users(&self) -> &str {
        &self.handle.users
    }

    /// Where agents are served.
    pub(crate) fn agents(&self) -> &str {
        &self.handle.agents
    }

    /// A connection of its own to where users are served.
    pub(crate) fn for_users(&self) -> Channel {
        channel(Arc::new(Tcp), &self.handle.users)
    }

    /// A connection of its own to where agents are served.
    pub(crate) fn for_agents(&self) -> Channel {
        channel(Arc::new(Tcp), &self.handle.agents)
    }

    /// Ends it.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        self.tasks.cancel();
        Ok(self.tasks.finished().await?)
    }
}
