//! The cluster's pods as a watch shows them: when all are bound, and whether that was done right.
//!
//! Owns the judgement: no node over-committed, no gang in parts. Never binds anything.

use std::collections::BTreeMap;
use std::pin::Pin;

use anyhow::{bail, ensure};
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use meridian_api::units::Millis;
use meridian_runtime::Clock;

use crate::PODS;

/// Namespace of the pods of both sides.
pub(crate) const NAMESPACE: &str = "research";
/// The label by which the agent names the gang of a pod.
pub(crate) const GANG: &str = "meridian.dev/gang";
/// Everything is bound by then; the slowest run seen took a minute.
const BOUND_WITHIN: Millis = Millis::seconds(600);

type Events = Pin<Box<dyn Stream<Item = kube::Result<WatchEvent<Pod>>> + Send>>;

/// A watch of pods, and where each is bound.
pub(crate) struct Pods {
    api: Api<Pod>,
    events: Events,
    /// Version of the newest event.
    seen: String,
    nodes: BTreeMap<String, (String, Option<String>)>,
}

impl Pods {
    /// Watches from here on. There are no pods yet.
    pub(crate) async fn watch(client: kube::Client) -> anyhow::Result<Self> {
        let api: Api<Pod> = Api::namespaced(client, NAMESPACE);
        let present = api.list(&ListParams::default()).await?;
        ensure!(
            present.items.is_empty(),
            "{} pods are left",
            present.items.len()
        );
        let seen = present.metadata.resource_version.unwrap_or_default();
        Ok(Self {
            events: Box::pin(api.watch(&WatchParams::default(), &seen).await?),
            api,
            seen,
            nodes: BTreeMap::new(),
        })
    }

    /// Waits until that many pods are bound.
    pub(crate) async fn bound(&mut self, pods: usize) -> anyhow::Result<()> {
        let all = async {
            while self.nodes.len() < pods {
                if let Some(event) = self.events.next().await {
                    self.take(event?)?;
                } else {
                    // The API server ends a watch when it likes: it goes on from there.
                    let parameters = WatchParams::default();
                    let again = self.api.watch(&parameters, &self.seen).await?;
                    self.events = Box::pin(again);
                }
            }
            anyhow::Ok(())
        };
        Clock::real().timeout(BOUND_WITHIN, all).await?
    }

    fn take(&mut self, event: WatchEvent<Pod>) -> anyhow::Result<()> {
        match event {
            WatchEvent::Added(pod) | WatchEvent::Modified(pod) => {
                self.seen = pod.metadata.resource_version.unwrap_or_default();
                let name = pod.metadata.name.unwrap_or_default();
                let gang = pod
                    .metadata
                    .labels
                    .and_then(|mut labels| labels.remove(GANG));
                if let Some(node) = pod.spec.and_then(|spec| spec.node_name) {
                    self.nodes.insert(name, (node, gang));
                }
            }
            WatchEvent::Deleted(pod) => bail!("{:?} was deleted", pod.metadata.name),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => bail!("the watch failed: {}", status.message),
        }
        Ok(())
    }

    /// Errs when a node holds more than it has, or a gang is not whole.
    pub(crate) fn judge(&self, pods: usize, gpus_per_node: u64, gpus: u64) -> anyhow::Result<()> {
        ensure!(
            self.nodes.len() == pods,
            "{} pods, {pods} expected",
            self.nodes.len()
        );
        let (mut held, mut gangs) = (BTreeMap::new(), BTreeMap::new());
        for (node, gang) in self.nodes.values() {
            *held.entry(node).or_insert(0) += gpus;
            if let Some(gang) = gang {
                *gangs.entry(gang).or_insert(0_usize) += 1;
            }
        }
        if let Some((node, held)) = held.iter().find(|(_, held)| **held > gpus_per_node) {
            bail!("node {node} holds {held} of {gpus_per_node} GPUs");
        }
        if let Some((gang, size)) = gangs.iter().find(|(_, size)| **size != PODS) {
            bail!("gang {gang} has {size} of {PODS} pods");
        }
        Ok(())
    }
}
