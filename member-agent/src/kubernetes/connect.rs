//! From the configuration of an agent to a client of its cluster's API.
//!
//! Owns where the credentials come from. Never asks the API: a cluster that is away is the
//! executor's to wait for.

use std::path::PathBuf;

use kube::config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use meridian_api::units::Millis;
use meridian_runtime::{Clock, Random};

use super::inventory::{BadInventoryConfig, FlavorError, FlavorTable};
use super::{AnswersOptions, Hook, KubernetesOptions, REQUEST_LIMIT};
use crate::config::{ConfigError, KubernetesConfig, read};

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be used.
    #[error("kubeconfig {path} cannot be used")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// Why.
        source: KubeconfigError,
    },
    /// This process is not a pod with a service account.
    #[error("no kubeconfig was given (--kubeconfig FILE) and this is no pod of the cluster")]
    NotInCluster(#[source] InClusterError),
    /// The client cannot be made, as with a certificate that is none.
    #[error("no client can be made from these credentials")]
    Client(#[source] kube::Error),
    /// The inventory is described wrongly.
    #[error("kubernetes.inventory is wrong")]
    Inventory(#[from] BadInventoryConfig),
    /// The table of flavors cannot be read.
    #[error(transparent)]
    Unreadable(#[from] ConfigError),
    /// The table of flavors is wrong.
    #[error("{path} is wrong")]
    Flavors {
        /// The file.
        path: PathBuf,
        /// Why.
        source: FlavorError,
    },
}

/// Reads the credentials and the table of flavors.
pub async fn options(
    config: &KubernetesConfig,
    clock: Clock,
) -> Result<KubernetesOptions, ConnectError> {
    config.inventory.check()?;
    let connection = match &config.kubeconfig {
        Some(path) => by_file(path.clone(), config.context.clone()).await?,
        None => kube::Config::incluster().map_err(ConnectError::NotInCluster)?,
    };
    let url = connection.cluster_url.to_string();
    let client = kube::Client::try_from(connection).map_err(ConnectError::Client)?;
    tracing::info!(url, "the member cluster's API");
    let flavors = match &config.flavors {
        Some(path) => FlavorTable::shipped()
            .extended_by(&read(path)?)
            .map_err(|source| ConnectError::Flavors {
                path: path.clone(),
                source,
            })?,
        None => FlavorTable::shipped(),
    };
    Ok(KubernetesOptions {
        client,
        clock,
        flavors,
        inventory: config.inventory.clone(),
        create_namespaces: config.create_namespaces,
        answers: config.answers_url.clone().map(|url| AnswersOptions {
            url,
            random: Random::from_machine(),
        }),
        request_limit: REQUEST_LIMIT,
        node_lost_after: Millis::seconds(config.node_lost_after_seconds),
        machine_gone_after: Millis::seconds(config.machine_gone_after_seconds),
        hook: Hook::default(),
    })
}

async fn by_file(path: PathBuf, context: Option<String>) -> Result<kube::Config, ConnectError> {
    let wrong = |source| ConnectError::Kubeconfig {
        path: path.clone(),
        source,
    };
    let kubeconfig = Kubeconfig::read_from(&path).map_err(wrong)?;
    let options = KubeConfigOptions {
        context,
        ..KubeConfigOptions::default()
    };
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await;
    config.map_err(wrong)
}
