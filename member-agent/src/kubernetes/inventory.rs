//! The inventory of a real cluster: nodes and pods in, pools and nodes of the fleet out.
//!
//! Owns what is kept of every node and pod, and which change of them is one that the hub must
//! hear of: a heartbeat of a kubelet is none. Pure: never asks the cluster, never reads a file or
//! a clock. What it shows depends on what is there, not on the order in which that was told.

mod audit;
mod cards;
mod config;
mod findings;
mod flavors;
mod foreign;
mod host;
mod pods;
mod pools;
mod quantity;
mod strings;
#[cfg(test)]
mod tests;
mod topology;
mod wanted;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::api::core::v1::{Node, Pod, Toleration};
use meridian_api::ids::Uid;
use meridian_api::units::Resources;

use crate::backend::{ClusterEvent, NodeSeen, PoolSeen};

pub use config::{
    BadInventoryConfig, InventoryConfig, LevelLabel, PoolLevels, PoolRule, TaintRule,
};
pub use findings::{Finding, Subject};
pub use flavors::{FlavorError, FlavorTable};
pub(crate) use wanted::{Wanted, wanted};

use flavors::Vendor;
use foreign::Foreign;
use host::{Host, Share};
use pods::Held;
use pools::Pools;
use strings::{Name, Strings};
use topology::Levels;

/// Between the host and the flavor in the name of a node that is one of several on its host. No
/// name of a Kubernetes node holds it.
const PART: char = '/';

/// What is kept of a cluster's nodes and pods.
#[derive(Debug)]
pub struct Inventory {
    table: FlavorTable,
    config: InventoryConfig,
    levels: Levels,
    strings: Strings,
    hosts: BTreeMap<Name, Kept>,
    pods: HashMap<Uid, (Name, Held)>,
    pools: Pools,
}

/// One node, and what foreign pods hold on it; either may come first.
#[derive(Debug, Default, PartialEq, Eq)]
struct Kept {
    host: Option<Host>,
    foreign: Foreign,
}

/// What a node looked like before a change, and the pools that it may change.
struct Before {
    claims: BTreeSet<Name>,
    pools: Vec<PoolSeen>,
    nodes: Vec<NodeSeen>,
}

impl Inventory {
    /// An empty cluster. The configuration is one that passed [`InventoryConfig::check`].
    #[must_use]
    pub fn new(table: FlavorTable, config: InventoryConfig) -> Self {
        Self {
            levels: Levels::new(&config),
            table,
            config,
            strings: Strings::default(),
            hosts: BTreeMap::new(),
            pods: HashMap::new(),
            pools: Pools::default(),
        }
    }

    /// Takes a node as the API shows it. What follows from it for the fleet, in the order to tell
    /// it; nothing when only what is not kept differs.
    pub fn apply_node(&mut self, node: &Node) -> Vec<ClusterEvent> {
        let Some((name, host)) = self.read(node) else {
            return Vec::new();
        };
        self.change(&name, Some(host))
    }

    /// A node is gone. What its pods hold is kept until they are gone, too.
    pub fn remove_node(&mut self, name: &str) -> Vec<ClusterEvent> {
        let name = self.strings.get(name);
        self.change(&name, None)
    }

    /// Takes a pod as the API shows it. What one of our gangs holds is told with its gang, so a
    /// pod that `is_ours` adds nothing here.
    pub fn apply_pod(&mut self, pod: &Pod, is_ours: bool) -> Vec<ClusterEvent> {
        let Some(uid) = pods::uid(pod) else {
            return Vec::new();
        };
        let held = pods::held(pod, &self.table).filter(|_| !is_ours);
        let held = held.map(|(node, held)| (self.strings.get(node), held));
        self.hold(uid, held)
    }

    /// A pod is gone.
    pub fn remove_pod(&mut self, pod: &Pod) -> Vec<ClusterEvent> {
        pods::uid(pod).map_or_else(Vec::new, |uid| self.hold(uid, None))
    }

    /// Takes a whole listing in place of all that was known, without the events. The flag of a
    /// pod says that it is ours.
    pub fn load<'a>(
        &mut self,
        nodes: impl IntoIterator<Item = &'a Node>,
        pods: impl IntoIterator<Item = (&'a Pod, bool)>,
    ) {
        self.hosts.clear();
        self.pods.clear();
        self.pools = Pools::default();
        for node in nodes {
            if let Some((name, host)) = self.read(node) {
                self.put(&name, Some(host));
            }
        }
        for (pod, _) in pods.into_iter().filter(|(_, is_ours)| !is_ours) {
            if let (Some(uid), Some((node, held))) = (pods::uid(pod), pods::held(pod, &self.table))
            {
                let node = self.strings.get(node);
                self.put_held(uid, Some((node, held)));
            }
        }
    }

    /// Pools and nodes as they are, by name.
    #[must_use]
    pub fn snapshot(&self) -> (Vec<PoolSeen>, Vec<NodeSeen>) {
        let pools = self.pools.claims();
        let pools = pools.flat_map(|claim| self.pools.of_claim(claim, &self.levels));
        let mut pools: Vec<PoolSeen> = pools.collect();
        pools.sort_by(|a, b| a.name.cmp(&b.name));
        let nodes = self.hosts.iter();
        let nodes = nodes.flat_map(|(name, kept)| self.seen(name, kept));
        (pools, nodes.collect())
    }

    /// The name in our words of the node that a pod of `pool` is on: the host, or
    /// `<host>/<flavor>` when its cards are of several flavors. A pool that the host is not in
    /// stands for its first one.
    #[must_use]
    pub fn node_of(&self, host: &str, pool: &str) -> String {
        let kept = self.hosts.get(host).and_then(|kept| kept.host.as_ref());
        let shares = kept.map_or(&[][..], |host| &host.shares);
        let [first, _, ..] = shares else {
            return host.to_owned();
        };
        let mut in_pool = shares.iter().filter(|share| self.pools.name(share) == pool);
        part_name(host, in_pool.next().unwrap_or(first))
    }

    /// The Kubernetes node behind a name of [`NodeSeen`].
    #[must_use]
    pub fn host_of(node: &str) -> &str {
        node.split_once(PART).map_or(node, |(host, _)| host)
    }

    /// The extended resource to write into pods that ask for GPUs of a flavor. `None`: no vendor
    /// of the table has it, and no node.
    #[must_use]
    pub fn resource_of(&self, flavor: &str) -> Option<&str> {
        let known = self.table.resource_of(flavor);
        known.or_else(|| self.pools.resource_of(flavor, &self.table))
    }

    /// What the pods of a gang on this flavor must tolerate, so that the taints which do not close
    /// a node here do not keep them from it.
    #[must_use]
    pub fn tolerations_of(&self, flavor: &str) -> Vec<Toleration> {
        let vendor = self.resource_of(flavor);
        let vendor = vendor.and_then(|resource| self.table.resource(resource));
        let vendor = vendor.map(|at| &self.table.vendors[usize::from(at)]);
        let of_vendor = vendor.into_iter().flat_map(Vendor::tolerated);
        let configured = self.config.tolerated_taints.iter().cloned();
        let rules = of_vendor.chain(configured);
        rules.map(|rule| rule.toleration()).collect()
    }

    /// Everything that a person should know of this cluster's nodes: of pools, then of nodes, by
    /// name. Its cost is that of a snapshot.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        audit::findings(self)
    }

    fn read(&mut self, node: &Node) -> Option<(Name, Host)> {
        let name = node.metadata.name.as_deref()?;
        let (table, config, levels) = (&self.table, &self.config, &self.levels);
        let host = host::read(node, table, config, levels, &mut self.strings);
        Some((self.strings.get(name), host))
    }

    /// Puts a node in the place of what was known of it, and tells what that changed.
    fn change(&mut self, name: &Name, host: Option<Host>) -> Vec<ClusterEvent> {
        let old = self.hosts.get(name).and_then(|kept| kept.host.as_ref());
        if old == host.as_ref() {
            return Vec::new();
        }
        let shares = |host: Option<&Host>| {
            let shares = host.map_or(&[][..], |host| &host.shares);
            shares
                .iter()
                .map(|share| share.claim.clone())
                .collect::<Vec<_>>()
        };
        let claims = shares(old).into_iter().chain(shares(host.as_ref()));
        let claims: BTreeSet<Name> = claims.collect();
        let before = Before {
            pools: self.pools_of(&claims),
            nodes: self.nodes_of(name),
            claims,
        };
        self.put(name, host);
        self.events(name, &before)
    }

    /// Puts what a pod holds in the place of what it held, and tells what that changed.
    fn hold(&mut self, uid: Uid, held: Option<(Name, Held)>) -> Vec<ClusterEvent> {
        if self.pods.get(&uid) == held.as_ref() {
            return Vec::new();
        }
        let old = self.pods.get(&uid).map(|(node, _)| node.clone());
        let nodes = old
            .into_iter()
            .chain(held.iter().map(|(node, _)| node.clone()));
        let nodes: BTreeSet<Name> = nodes.collect();
        let before: Vec<NodeSeen> = nodes.iter().flat_map(|name| self.nodes_of(name)).collect();
        self.put_held(uid, held);
        let after = nodes.iter().flat_map(|name| self.nodes_of(name));
        let changed = after.filter(|node| !before.contains(node));
        changed.map(ClusterEvent::Node).collect()
    }

    fn put(&mut self, name: &Name, host: Option<Host>) {
        let kept = self.hosts.entry(name.clone()).or_default();
        if let Some(old) = &kept.host {
            self.pools.remove(name, old);
        }
        if let Some(host) = &host {
            self.pools.add(name, host, &self.levels);
        }
        kept.host = host;
        self.forget_if_nothing(name);
    }

    fn put_held(&mut self, uid: Uid, held: Option<(Name, Held)>) {
        if let Some((node, held)) = self.pods.remove(&uid) {
            if let Some(kept) = self.hosts.get_mut(&node) {
                kept.foreign.take_off(&held);
            }
            self.forget_if_nothing(&node);
        }
        if let Some((node, held)) = held {
            let kept = self.hosts.entry(node.clone()).or_default();
            kept.foreign.add(&held);
            self.pods.insert(uid, (node, held));
        }
    }

    fn forget_if_nothing(&mut self, name: &Name) {
        if self
            .hosts
            .get(name)
            .is_some_and(|kept| *kept == Kept::default())
        {
            self.hosts.remove(name);
        }
    }

    /// Pools under these claims.
    fn pools_of(&self, claims: &BTreeSet<Name>) -> Vec<PoolSeen> {
        let of_claim = |claim: &Name| self.pools.of_claim(claim, &self.levels);
        claims.iter().flat_map(of_claim).collect()
    }

    /// A host as the nodes that it is.
    fn nodes_of(&self, name: &Name) -> Vec<NodeSeen> {
        let kept = self.hosts.get(name);
        kept.map_or_else(Vec::new, |kept| self.seen(name, kept).collect())
    }

    /// What differs from before, in an order that is right after each step: a node is never seen in
    /// a pool that has other levels. So nodes leave first; then come pools of another shape, each
    /// with all its nodes, and of those first the ones that take nodes out of others. A pool of
    /// which only the findings differ comes alone.
    fn events(&self, name: &Name, before: &Before) -> Vec<ClusterEvent> {
        let (pools, nodes) = (self.pools_of(&before.claims), self.nodes_of(name));
        let old = |pool: &PoolSeen| before.pools.iter().find(|old| old.name == pool.name);
        let differ = pools.iter().filter(|pool| old(pool) != Some(pool));
        let (worded, mut reshaped): (Vec<&PoolSeen>, Vec<&PoolSeen>) =
            differ.partition(|pool| old(pool).is_some_and(|old| same_shape(old, pool)));
        reshaped.sort_by_key(|pool| {
            let takes_none = nodes.iter().all(|node| node.pool != pool.name);
            (old(pool).is_some(), takes_none)
        });
        let mut events = Vec::new();
        let gone = before.nodes.iter();
        let gone = gone.filter(|old| nodes.iter().all(|node| node.name != old.name));
        events.extend(gone.map(|old| ClusterEvent::NodeGone(old.name.clone())));
        let told = |node: &NodeSeen| reshaped.iter().any(|pool| pool.name == node.pool);
        let differs = |node: &&NodeSeen| !told(node) && !before.nodes.contains(node);
        events.extend(
            nodes
                .iter()
                .filter(differs)
                .cloned()
                .map(ClusterEvent::Node),
        );
        for pool in &reshaped {
            let hosts = self.hosts.iter();
            let nodes = hosts.flat_map(|(name, kept)| self.seen_in(name, kept, &pool.name));
            events.push(ClusterEvent::Pool((*pool).clone(), nodes.collect()));
        }
        let worded = worded.into_iter().cloned();
        events.extend(worded.map(|pool| ClusterEvent::Pool(pool, Vec::new())));
        let gone = before.pools.iter();
        let gone = gone.filter(|old| pools.iter().all(|pool| pool.name != old.name));
        events.extend(gone.map(|old| ClusterEvent::PoolGone(old.name.clone())));
        events
    }

    /// The nodes of a host that are in one pool.
    fn seen_in<'a>(
        &'a self,
        name: &'a str,
        kept: &'a Kept,
        pool: &'a str,
    ) -> impl Iterator<Item = NodeSeen> + 'a {
        let shares = kept.host.as_ref().map_or(&[][..], |host| &host.shares);
        let may_be = shares.iter().any(|share| pool.starts_with(&*share.claim));
        let nodes = may_be.then(|| self.seen(name, kept)).into_iter().flatten();
        nodes.filter(move |node| node.pool == pool)
    }

    /// A host as the nodes that it is: one per flavor of its cards.
    fn seen<'a>(&'a self, name: &'a str, kept: &'a Kept) -> impl Iterator<Item = NodeSeen> + 'a {
        let shares = kept.host.as_ref().map_or(&[][..], |host| &host.shares);
        shares.iter().enumerate().map(move |(index, share)| {
            let alone = shares.len() == 1;
            NodeSeen {
                name: if alone {
                    name.to_owned()
                } else {
                    part_name(name, share)
                },
                pool: self.pools.name(share),
                domains: self
                    .pools
                    .domains(name, share, self.levels.of(&share.claim)),
                allocatable: Resources {
                    gpus: share.gpus,
                    cpu: share.cpu,
                    memory: share.memory,
                },
                unhealthy: share.unhealthy,
                foreign: kept.foreign.on(shares, index),
                health: share.health,
            }
        })
    }
}

/// True when two states of a pool place their nodes alike.
fn same_shape(a: &PoolSeen, b: &PoolSeen) -> bool {
    a.flavor == b.flavor && a.levels == b.levels
}

fn part_name(host: &str, share: &Share) -> String {
    format!("{host}{PART}{}", share.flavor)
}
