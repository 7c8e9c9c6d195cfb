//! Fake nodes for scale, played by KWOK: they say that they are Ready and that their pods run.
//!
//! Owns their shape and the behaviours that a pod may ask for. A fake node never refuses a pod, not
//! even one that does not fit: refusals are tested on real nodes.

use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use super::control_plane::{ControlPlane, MemoryUse};
use super::files::write;
use super::place::Place;
use super::{MemberError, MemberOptions};
use crate::process::{Harness, Process, ProcessSpec};
use crate::tools::Tool;

/// The annotation, with the value `fake`, that hands a node to KWOK.
pub const FAKE_NODE: &str = "kwok.x-k8s.io/node";
/// Annotation of a pod: it is Running only after that long: `2s`.
pub const START_AFTER: &str = "fake.meridian.dev/start-after";
/// Annotation of a pod: it ends after running so long; without it, it runs until it is deleted.
pub const RUN_FOR: &str = "fake.meridian.dev/run-for";
/// Annotation of a pod: the code with which it then ends.
pub const EXIT_CODE: &str = "fake.meridian.dev/exit-code";
/// Annotation of a pod, any value: when it is deleted it takes its whole grace.
pub const IGNORE_TERM: &str = "fake.meridian.dev/ignore-term";
/// Annotation of a pod that never runs: [`PULLING`] or [`CRASH_LOOP`].
pub const STAY: &str = "fake.meridian.dev/stay";
/// Value of [`STAY`]: its image cannot be pulled.
pub const PULLING: &str = "pulling";
/// Value of [`STAY`]: it crashes again and again.
pub const CRASH_LOOP: &str = "crash-loop";

/// Requests in flight while nodes are created; more only queue in the API server.
const IN_FLIGHT: usize = 32;

const STAGES: &str = include_str!("stages.yaml");

/// Nodes that only say so.
#[derive(Debug)]
pub(super) struct FakeNodes {
    kwok: Process,
}

impl FakeNodes {
    /// Creates the nodes and starts who plays them. They may not be Ready yet.
    pub(super) async fn start(
        harness: &Harness,
        place: &Place,
        control_plane: &ControlPlane,
        options: &MemberOptions,
    ) -> Result<Self, MemberError> {
        let config = place.folder().join("kwok/stages.yaml");
        write(&config, &stages(options))?;
        let flags = [
            (
                "kubeconfig",
                control_plane.kubeconfig().display().to_string(),
            ),
            ("config", config.display().to_string()),
            ("manage-all-nodes", "false".to_owned()),
            (
                "manage-nodes-with-annotation-selector",
                format!("{FAKE_NODE}=fake"),
            ),
            ("node-lease-duration-seconds", "0".to_owned()),
        ];
        let flags = flags.map(|(name, value)| format!("--{name}={value}"));
        let spec = ProcessSpec::new("kwok", Tool::Kwok.locate()?).args(flags);
        let kwok = harness.start(spec)?;
        let nodes = Api::<Node>::all(control_plane.client().clone());
        let created = stream::iter(0..options.fake_nodes).map(|index| {
            let nodes = &nodes;
            async move {
                let node = node(index, options);
                let created = nodes.create(&PostParams::default(), &node).await;
                created.map_err(MemberError::api(format!("create fake node {index}")))
            }
        });
        created
            .buffer_unordered(IN_FLIGHT)
            .try_collect::<Vec<_>>()
            .await?;
        Ok(Self { kwok })
    }

    pub(super) fn memory(&self) -> MemoryUse {
        MemoryUse::of(&self.kwok)
    }
}

/// The behaviours. A node beats after three to four tenths of its grace: often enough not to be
/// called lost, and as seldom as that allows, since each beat is a write and an event.
fn stages(options: &MemberOptions) -> String {
    let grace = options.node_grace.0;
    STAGES
        .replace("BEAT_AFTER", &(grace / 10 * 3).to_string())
        .replace("BEAT_BY", &(grace / 10 * 4).to_string())
}

/// A host of eight-GPU servers' usual size.
fn node(index: u16, options: &MemberOptions) -> Node {
    let position = usize::from(options.nodes) + usize::from(index);
    let resources = json!({
        "cpu": "192",
        "memory": "2048Gi",
        "pods": "110",
        &options.gpu_resource: options.gpus_per_node.to_string(),
    });
    let node = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": format!("fake-{index:04}"),
            "annotations": {FAKE_NODE: "fake"},
            "labels": options.labels_of(position),
        },
        "status": {"capacity": &resources, "allocatable": &resources},
    });
    serde_json::from_value(node).expect("it is written as a node above")
}
