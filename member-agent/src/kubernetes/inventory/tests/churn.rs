//! Random churn: the inventory is what is there, whatever happened before.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::backend::{ClusterEvent, PoolSeen};

/// One thing that happens in a cluster.
#[derive(Clone, Debug)]
enum Step {
    Node(usize, NodeState),
    NodeGone(usize),
    Pod(u32, PodState),
    PodGone(u32),
}

#[derive(Clone, Debug)]
struct NodeState {
    hardware: usize,
    pool: usize,
    rack: usize,
    zone: usize,
    healthy: u64,
    closed: bool,
}

#[derive(Clone, Debug)]
struct PodState {
    node: usize,
    gpus: u64,
    vendor: usize,
    cpu: u64,
    phase: usize,
    is_ours: bool,
}

const NODES: usize = 6;
const PODS: u32 = 10;

fn name(node: usize) -> String {
    format!("n{node}")
}

fn build_node(index: usize, state: &NodeState) -> Node {
    type Pairs = &'static [(&'static str, &'static str)];
    const HARDWARE: [(Pairs, Pairs); 6] = [
        (
            &[("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3")],
            &[("nvidia.com/gpu", "8")],
        ),
        (
            &[("nvidia.com/gpu.product", "NVIDIA-L4")],
            &[("nvidia.com/gpu", "8")],
        ),
        (
            &[
                ("nvidia.com/gpu.product", "NVIDIA-L4"),
                ("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM"),
            ],
            &[("nvidia.com/gpu", "2"), ("amd.com/gpu", "8")],
        ),
        (
            &[
                ("nvidia.com/gpu.product", "NVIDIA-L4"),
                ("nvidia.com/gpu.sharing-strategy", "mps"),
            ],
            &[("nvidia.com/gpu", "99")],
        ),
        (&[], &[("nvidia.com/gpu", "-3"), ("cpu", "x")]),
        (&[], &[]),
    ];
    let (labels, gpus) = HARDWARE[state.hardware];
    let mut node = node(&name(index), labels, gpus);
    let mut label_if = |key: &str, value: usize| {
        if value > 0 {
            label(&mut node, key, &format!("v{value}"));
        }
    };
    label_if("meridian.dev/pool", state.pool);
    label_if("cloud.google.com/gce-topology-subblock", state.rack);
    label_if("topology.kubernetes.io/zone", state.zone);
    if !gpus.is_empty() {
        allocatable(&mut node, gpus[0].0, &state.healthy.to_string());
    }
    spec(&mut node).unschedulable = Some(state.closed);
    node
}

fn build_pod(uid: u32, state: &PodState) -> Pod {
    let vendor = ["nvidia.com/gpu", "amd.com/gpu"][state.vendor];
    let (gpus, cpu) = (state.gpus.to_string(), format!("{}m", state.cpu));
    let mut pod = pod(uid, &name(state.node), &[&[(vendor, &gpus), ("cpu", &cpu)]]);
    let phase = ["Pending", "Running", "Succeeded"][state.phase];
    pod.status.as_mut().expect("it has one").phase = Some(phase.to_owned());
    pod
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let state = (
        0..6_usize,
        0..3_usize,
        0..3_usize,
        0..3_usize,
        0..9_u64,
        any::<bool>(),
    );
    let state = state.prop_map(|(hardware, pool, rack, zone, healthy, closed)| NodeState {
        hardware,
        pool,
        rack,
        zone,
        healthy,
        closed,
    });
    let held = (
        0..NODES,
        0..9_u64,
        0..2_usize,
        0..4000_u64,
        0..3_usize,
        any::<bool>(),
    );
    let held = held.prop_map(|(node, gpus, vendor, cpu, phase, is_ours)| PodState {
        node,
        gpus,
        vendor,
        cpu,
        phase,
        is_ours,
    });
    let step = prop_oneof![
        4 => (0..NODES, state).prop_map(|(node, state)| Step::Node(node, state)),
        1 => (0..NODES).prop_map(Step::NodeGone),
        4 => (0..PODS, held).prop_map(|(pod, state)| Step::Pod(pod, state)),
        1 => (0..PODS).prop_map(Step::PodGone),
    ];
    prop::collection::vec(step, 1..60)
}

/// What is there after some steps.
#[derive(Clone, Debug, Default)]
struct Truth {
    nodes: BTreeMap<usize, NodeState>,
    pods: BTreeMap<u32, PodState>,
}

impl Truth {
    fn take(&mut self, step: &Step) {
        match step {
            Step::Node(node, state) => drop(self.nodes.insert(*node, state.clone())),
            Step::NodeGone(node) => drop(self.nodes.remove(node)),
            Step::Pod(pod, state) => drop(self.pods.insert(*pod, state.clone())),
            Step::PodGone(pod) => drop(self.pods.remove(pod)),
        }
    }

    /// An inventory that is told this and nothing else, in an order turned by `turn`.
    fn rebuilt(&self, turn: usize) -> Inventory {
        let nodes = self
            .nodes
            .iter()
            .map(|(node, state)| Step::Node(*node, state.clone()));
        let pods = self
            .pods
            .iter()
            .map(|(pod, state)| Step::Pod(*pod, state.clone()));
        let mut steps: Vec<Step> = nodes.chain(pods).collect();
        if !steps.is_empty() {
            let turn = turn % steps.len();
            steps.rotate_left(turn);
        }
        if turn % 2 == 1 {
            steps.reverse();
        }
        let mut inventory = inventory();
        for step in &steps {
            apply(&mut inventory, step);
        }
        inventory
    }

    fn loaded(&self) -> Inventory {
        let nodes: Vec<Node> = self
            .nodes
            .iter()
            .map(|(node, s)| build_node(*node, s))
            .collect();
        let pods = self.pods.iter();
        let pods: Vec<(Pod, bool)> = pods
            .map(|(pod, s)| (build_pod(*pod, s), s.is_ours))
            .collect();
        let mut inventory = inventory();
        inventory.load(&nodes, pods.iter().map(|(pod, is_ours)| (pod, *is_ours)));
        inventory
    }
}

fn apply(inventory: &mut Inventory, step: &Step) -> Vec<ClusterEvent> {
    match step {
        Step::Node(node, state) => inventory.apply_node(&build_node(*node, state)),
        Step::NodeGone(node) => inventory.remove_node(&name(*node)),
        Step::Pod(pod, state) => inventory.apply_pod(&build_pod(*pod, state), state.is_ours),
        Step::PodGone(pod) => {
            let gone = PodState {
                node: 0,
                gpus: 0,
                vendor: 0,
                cpu: 0,
                phase: 0,
                is_ours: false,
            };
            inventory.remove_pod(&build_pod(*pod, &gone))
        }
    }
}

/// Somebody who knows only what was told.
#[derive(Debug, Default, PartialEq)]
struct Listener {
    pools: BTreeMap<String, PoolSeen>,
    nodes: BTreeMap<String, NodeSeen>,
}

impl Listener {
    fn hear(&mut self, event: &ClusterEvent) -> Result<(), TestCaseError> {
        match event {
            ClusterEvent::Node(node) => {
                let told_again = self.nodes.insert(node.name.clone(), node.clone());
                prop_assert_ne!(told_again.as_ref(), Some(node), "nothing differs");
            }
            ClusterEvent::NodeGone(name) => {
                prop_assert!(self.nodes.remove(name).is_some(), "{name} was never there");
            }
            ClusterEvent::Pool(pool, nodes) => {
                self.pools.insert(pool.name.clone(), pool.clone());
                for node in nodes {
                    self.nodes.insert(node.name.clone(), node.clone());
                }
            }
            ClusterEvent::PoolGone(name) => {
                prop_assert!(self.pools.remove(name).is_some(), "{name} was never there");
            }
            ClusterEvent::Gang(_)
            | ClusterEvent::GangGone(_)
            | ClusterEvent::Offer(_)
            | ClusterEvent::OfferGone(_)
            | ClusterEvent::HeldBack(_) => prop_assert!(false, "no gangs"),
        }
        // Right after each event, not only after the last.
        for node in self.nodes.values() {
            let pool = self.pools.get(&node.pool);
            let levels = pool.map(|pool| pool.levels.len());
            prop_assert_eq!(levels, Some(node.domains.len()), "{:?} {:?}", node, event);
        }
        Ok(())
    }

    fn of(inventory: &Inventory) -> Self {
        let (pools, nodes) = inventory.snapshot();
        Self {
            pools: pools
                .into_iter()
                .map(|pool| (pool.name.clone(), pool))
                .collect(),
            nodes: nodes
                .into_iter()
                .map(|node| (node.name.clone(), node))
                .collect(),
        }
    }
}

proptest! {
    #[test]
    fn who_only_listens_knows_what_is_there(steps in steps()) {
        let (mut inventory, mut listener) = (inventory(), Listener::default());
        for step in &steps {
            for event in apply(&mut inventory, step) {
                listener.hear(&event)?;
            }
            prop_assert_eq!(&listener, &Listener::of(&inventory));
        }
    }

    #[test]
    fn what_is_there_does_not_depend_on_what_was(steps in steps(), turn in 0..64_usize) {
        let (mut inventory, mut truth) = (inventory(), Truth::default());
        for step in &steps {
            apply(&mut inventory, step);
            truth.take(step);
        }
        let rebuilt = truth.rebuilt(turn);
        prop_assert_eq!(Listener::of(&inventory), Listener::of(&rebuilt));
        prop_assert_eq!(Listener::of(&inventory), Listener::of(&truth.loaded()));
        prop_assert_eq!(inventory.findings(), rebuilt.findings());
        prop_assert_eq!(&inventory.hosts, &rebuilt.hosts);
        prop_assert_eq!(inventory.pods.len(), rebuilt.pods.len());
    }

    #[test]
    fn when_all_is_gone_nothing_is_kept(steps in steps()) {
        let mut inventory = inventory();
        for step in &steps {
            apply(&mut inventory, step);
        }
        for pod in 0..PODS {
            apply(&mut inventory, &Step::PodGone(pod));
        }
        for node in 0..NODES {
            apply(&mut inventory, &Step::NodeGone(node));
        }
        prop_assert_eq!(Listener::of(&inventory), Listener::default());
        prop_assert!(inventory.hosts.is_empty() && inventory.pods.is_empty());
        prop_assert_eq!(inventory.pools.claims().count(), 0);
        prop_assert!(inventory.findings().is_empty());
    }
}
