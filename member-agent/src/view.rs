//! What the agent believes of its cluster: nodes, gangs, and the room that is left.
//!
//! Owns the last word of the cluster's watch, the room taken by binds that the watch has not shown
//! yet, and the index of each pool by which a place is found without a look at every node. Never
//! asks the cluster, and never decides.

use std::collections::{BTreeMap, BTreeSet};

use meridian_api::ids::{Epoch, GangId};
use meridian_api::units::Resources;
use meridian_policies::model::GangShape;
use meridian_policies::nodes::{Index, Node, PlaceFailure};

use crate::backend::{
    ClusterEvent, GangKey, GangSeen, MemberOrder, NodeHealth, NodeSeen, OfferSeen, PodSeen,
    PoolSeen, Snapshot,
};

/// What a gang takes: one entry per pod, node and request.
pub(crate) type Holds = Vec<(String, Resources)>;

/// What an update touched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Touched {
    /// Pools whose shapes may differ.
    pub(crate) pools: BTreeSet<String>,
    /// Gangs that may look different.
    pub(crate) gangs: BTreeSet<GangId>,
    /// UIDs of offers that may look different.
    pub(crate) offers: BTreeSet<String>,
    /// The gangs of others that lack something may be others.
    pub(crate) held_back: bool,
    /// Gang and epoch pairs of which nothing is left.
    pub(crate) gone: Vec<GangKey>,
    /// Room came free, or may have.
    pub(crate) freed: bool,
}

/// The cluster as last seen.
#[derive(Debug, Default)]
pub(crate) struct View {
    pools: BTreeMap<String, PoolSeen>,
    nodes: BTreeMap<String, NodeSeen>,
    nodes_of: BTreeMap<String, BTreeSet<String>>,
    gangs: BTreeMap<GangKey, GangSeen>,
    offers: BTreeMap<String, OfferSeen>,
    held_back: Vec<String>,
    holds: BTreeMap<GangKey, Holds>,
    held: BTreeMap<String, Resources>,
    /// The nodes of each pool that was asked for a place.
    indexes: BTreeMap<String, Index>,
    /// Nodes that look otherwise than in the index of their pool.
    unindexed: BTreeMap<String, BTreeSet<String>>,
}

impl View {
    /// Takes a whole snapshot: what it does not name is not there. Binds that were not shown yet
    /// keep their room.
    pub(crate) fn reset(&mut self, snapshot: Snapshot) -> Touched {
        let mut touched = Touched {
            freed: true,
            ..Touched::default()
        };
        touched.pools.extend(self.pools.keys().cloned());
        self.indexes.clear();
        self.unindexed.clear();
        self.pools = snapshot
            .pools
            .into_iter()
            .map(|pool| (pool.name.clone(), pool))
            .collect();
        touched.pools.extend(self.pools.keys().cloned());
        let nodes: BTreeSet<&String> = snapshot.nodes.iter().map(|node| &node.name).collect();
        let lost = self.nodes.keys().filter(|name| !nodes.contains(name));
        for name in lost.cloned().collect::<Vec<_>>() {
            self.drop_node(&name, &mut touched);
        }
        let gangs: BTreeSet<GangKey> = snapshot.gangs.iter().map(|gang| gang.key).collect();
        let ended = self.gangs.keys().filter(|key| !gangs.contains(key));
        for key in ended.copied().collect::<Vec<_>>() {
            self.drop_gang(key, &mut touched);
        }
        for node in snapshot.nodes {
            self.take_node(node, &mut touched);
        }
        for gang in snapshot.gangs {
            self.take_gang(gang, &mut touched);
        }
        touched.offers.extend(self.offers.keys().cloned());
        self.offers = snapshot
            .offers
            .into_iter()
            .map(|offer| (offer.uid.clone(), offer))
            .collect();
        touched.offers.extend(self.offers.keys().cloned());
        self.held_back = snapshot.held_back;
        touched.held_back = true;
        touched
    }

    /// Takes one change.
    pub(crate) fn apply(&mut self, event: ClusterEvent) -> Touched {
        let mut touched = Touched::default();
        match event {
            ClusterEvent::Node(node) => self.take_node(node, &mut touched),
            ClusterEvent::NodeGone(name) => self.drop_node(&name, &mut touched),
            ClusterEvent::Pool(pool, nodes) => {
                touched.pools.insert(pool.name.clone());
                self.indexes.remove(&pool.name);
                self.pools.insert(pool.name.clone(), pool);
                for node in nodes {
                    self.take_node(node, &mut touched);
                }
            }
            ClusterEvent::PoolGone(name) => {
                self.pools.remove(&name);
                self.indexes.remove(&name);
                self.unindexed.remove(&name);
                touched.pools.insert(name);
            }
            ClusterEvent::Gang(gang) => self.take_gang(*gang, &mut touched),
            ClusterEvent::GangGone(key) => self.drop_gang(key, &mut touched),
            ClusterEvent::Offer(offer) => {
                touched.offers.insert(offer.uid.clone());
                self.offers.insert(offer.uid.clone(), *offer);
            }
            ClusterEvent::OfferGone(uid) => {
                self.offers.remove(&uid);
                touched.offers.insert(uid);
            }
            ClusterEvent::HeldBack(gangs) => {
                self.held_back = gangs;
                touched.held_back = true;
            }
        }
        touched
    }

    /// Takes room for a bind that was sent.
    pub(crate) fn reserve(&mut self, key: GangKey, holds: Holds) -> Touched {
        let mut touched = Touched::default();
        if !self.gangs.contains_key(&key) {
            self.set_holds(key, holds, &mut touched);
        }
        touched
    }

    /// Gives back the room of a bind that did not happen.
    pub(crate) fn release(&mut self, key: GangKey) -> Touched {
        let mut touched = Touched::default();
        if !self.gangs.contains_key(&key) {
            self.set_holds(key, Vec::new(), &mut touched);
        }
        touched
    }

    fn take_node(&mut self, node: NodeSeen, touched: &mut Touched) {
        touched.freed = true;
        touched.pools.insert(node.pool.clone());
        if let Some(before) = self.nodes.get(&node.name)
            && before.pool != node.pool
        {
            touched.pools.insert(before.pool.clone());
            unindex(&mut self.unindexed, before);
            if let Some(names) = self.nodes_of.get_mut(&before.pool) {
                names.remove(&node.name);
            }
        }
        self.nodes_of
            .entry(node.pool.clone())
            .or_default()
            .insert(node.name.clone());
        unindex(&mut self.unindexed, &node);
        self.nodes.insert(node.name.clone(), node);
    }

    fn drop_node(&mut self, name: &str, touched: &mut Touched) {
        let Some(node) = self.nodes.remove(name) else {
            return;
        };
        if let Some(names) = self.nodes_of.get_mut(&node.pool) {
            names.remove(name);
        }
        unindex(&mut self.unindexed, &node);
        touched.pools.insert(node.pool);
    }

    fn take_gang(&mut self, gang: GangSeen, touched: &mut Touched) {
        touched.gangs.insert(gang.key.gang);
        let live = gang.pods.iter().filter(|pod| !pod.phase.ended());
        let holds = live.map(|pod| (pod.node.clone(), pod.request)).collect();
        self.set_holds(gang.key, holds, touched);
        self.gangs.insert(gang.key, gang);
    }

    fn drop_gang(&mut self, key: GangKey, touched: &mut Touched) {
        touched.gangs.insert(key.gang);
        touched.gone.push(key);
        // A bind that is newer than this word may hold room under the same key.
        if self.gangs.remove(&key).is_some() {
            self.set_holds(key, Vec::new(), touched);
        }
    }

    fn set_holds(&mut self, key: GangKey, holds: Holds, touched: &mut Touched) {
        let before = self.holds.remove(&key).unwrap_or_default();
        if before == holds {
            if !holds.is_empty() {
                self.holds.insert(key, holds);
            }
            return;
        }
        touched.gangs.insert(key.gang);
        for (node, amount) in &before {
            touch_pool_of(&self.nodes, &mut self.unindexed, node, touched);
            if let Some(held) = self.held.get_mut(node) {
                *held = minus(*held, *amount);
            }
        }
        touched.freed |= !before.is_empty();
        for (node, amount) in &holds {
            touch_pool_of(&self.nodes, &mut self.unindexed, node, touched);
            let held = self.held.entry(node.clone()).or_default();
            *held = plus(*held, *amount);
        }
        if !holds.is_empty() {
            self.holds.insert(key, holds);
        }
    }

    /// A gang under one epoch.
    #[must_use]
    pub(crate) fn gang(&self, key: GangKey) -> Option<&GangSeen> {
        self.gangs.get(&key)
    }

    /// Every gang and epoch that was seen.
    pub(crate) fn gangs(&self) -> impl Iterator<Item = &GangSeen> {
        self.gangs.values()
    }

    /// One offer.
    #[must_use]
    pub(crate) fn offer(&self, uid: &str) -> Option<&OfferSeen> {
        self.offers.get(uid)
    }

    /// Gangs of others that lack something, each with what it lacks.
    #[must_use]
    pub(crate) fn held_back(&self) -> &[String] {
        &self.held_back
    }

    /// Every offer, by UID.
    pub(crate) fn offers(&self) -> impl Iterator<Item = &OfferSeen> {
        self.offers.values()
    }

    /// The same gang under older epochs.
    #[must_use]
    pub(crate) fn older(&self, key: GangKey) -> Vec<&GangSeen> {
        let from = GangKey {
            epoch: Epoch(0),
            ..key
        };
        self.gangs.range(from..key).map(|(_, gang)| gang).collect()
    }

    /// What a gang takes.
    #[must_use]
    pub(crate) fn holds(&self, key: GangKey) -> &[(String, Resources)] {
        self.holds.get(&key).map_or(&[], Vec::as_slice)
    }

    /// A pool.
    #[must_use]
    pub(crate) fn pool(&self, name: &str) -> Option<&PoolSeen> {
        self.pools.get(name)
    }

    /// Names of all pools.
    pub(crate) fn pools(&self) -> impl Iterator<Item = &str> {
        self.pools.keys().map(String::as_str)
    }

    /// A node.
    #[must_use]
    pub(crate) fn node(&self, name: &str) -> Option<&NodeSeen> {
        self.nodes.get(name)
    }

    /// The nodes of a pool.
    pub(crate) fn nodes_of(&self, pool: &str) -> impl Iterator<Item = &NodeSeen> {
        let names = self.nodes_of.get(pool).into_iter().flatten();
        names.filter_map(|name| self.nodes.get(name))
    }

    /// The nodes of a pool with the room left on each.
    #[must_use]
    pub(crate) fn places(&self, pool: &str) -> Vec<Node> {
        self.nodes_of(pool).map(|node| self.place(node)).collect()
    }

    fn place(&self, node: &NodeSeen) -> Node {
        Node {
            name: node.name.clone(),
            domains: node.domains.clone(),
            allocatable: node.allocatable,
            free: self.free(node),
            ready: node.health == NodeHealth::Ready,
        }
    }

    /// Nodes of a pool for so many pods per role of `gang`, none of them of `avoid`; `None` when
    /// there is no such pool.
    pub(crate) fn find(
        &mut self,
        pool: &str,
        gang: &GangShape,
        pods: &[u32],
        avoid: &BTreeMap<String, String>,
    ) -> Option<Result<Vec<MemberOrder>, PlaceFailure>> {
        let mut index = self.take_index(pool)?;
        let nodes = avoid.keys().filter_map(|name| self.nodes.get(name));
        let nodes = nodes.filter(|node| node.pool == pool);
        let closed: Vec<Node> = nodes.map(|node| self.place(node)).collect();
        for node in &closed {
            index.set(&Node {
                ready: false,
                ..node.clone()
            });
        }
        let found = index.place(gang, pods).map(|members| {
            let order = |member: meridian_policies::nodes::Member| MemberOrder {
                role: member.role as usize,
                rank: member.rank,
                node: index.name(member.node).unwrap_or_default().to_owned(),
            };
            members.into_iter().map(order).collect()
        });
        for node in &closed {
            index.set(node);
        }
        self.indexes.insert(pool.to_owned(), index);
        Some(found)
    }

    /// The index of a pool, as its nodes are; it is put back after use.
    fn take_index(&mut self, pool: &str) -> Option<Index> {
        let levels = &self.pools.get(pool)?.levels;
        let changed = self.unindexed.remove(pool).unwrap_or_default();
        let Some(mut index) = self.indexes.remove(pool) else {
            return Some(Index::of(levels, &self.places(pool)));
        };
        for name in changed {
            match self.nodes.get(&name).filter(|node| node.pool == pool) {
                Some(node) => index.set(&self.place(node)),
                None => index.remove(&name),
            }
        }
        Some(index)
    }

    /// Room left on a node.
    #[must_use]
    pub(crate) fn free(&self, node: &NodeSeen) -> Resources {
        let held = self.held.get(&node.name).copied().unwrap_or_default();
        minus(node.allocatable, plus(held, node.foreign))
    }
}

/// Notes that a node looks otherwise than in the index of its pool.
fn unindex(unindexed: &mut BTreeMap<String, BTreeSet<String>>, node: &NodeSeen) {
    let names = unindexed.entry(node.pool.clone()).or_default();
    names.insert(node.name.clone());
}

fn touch_pool_of(
    nodes: &BTreeMap<String, NodeSeen>,
    unindexed: &mut BTreeMap<String, BTreeSet<String>>,
    node: &str,
    touched: &mut Touched,
) {
    if let Some(node) = nodes.get(node) {
        unindex(unindexed, node);
        touched.pools.insert(node.pool.clone());
    }
}

/// Pods of a gang whose user code runs.
#[must_use]
pub(crate) fn pods_running(gang: &GangSeen) -> u32 {
    let running = |pod: &&PodSeen| pod.phase == crate::backend::PodPhase::Running;
    u32::try_from(gang.pods.iter().filter(running).count()).unwrap_or(u32::MAX)
}

/// Sum that stops at the largest value.
#[must_use]
pub(crate) fn plus(a: Resources, b: Resources) -> Resources {
    Resources {
        gpus: a.gpus.saturating_add(b.gpus),
        cpu: a.cpu.saturating_add(b.cpu),
        memory: a.memory.saturating_add(b.memory),
    }
}

/// Difference that stops at zero.
#[must_use]
pub(crate) fn minus(a: Resources, b: Resources) -> Resources {
    Resources {
        gpus: a.gpus.saturating_sub(b.gpus),
        cpu: a.cpu.saturating_sub(b.cpu),
        memory: a.memory.saturating_sub(b.memory),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, pool: &str, domains: &[&str]) -> NodeSeen {
        NodeSeen {
            name: name.to_owned(),
            pool: pool.to_owned(),
            domains: domains.iter().map(|&domain| domain.to_owned()).collect(),
            allocatable: Resources::default(),
            unhealthy: meridian_api::units::MilliGpus::ZERO,
            foreign: Resources::default(),
            health: NodeHealth::Ready,
        }
    }

    fn pool(name: &str, levels: &[&str]) -> PoolSeen {
        PoolSeen {
            name: name.to_owned(),
            flavor: "h100".to_owned(),
            levels: levels.iter().map(|&level| level.to_owned()).collect(),
            findings: Vec::new(),
        }
    }

    #[test]
    fn a_pool_changes_with_its_nodes_and_takes_them_out_of_others() {
        let mut view = View::default();
        view.reset(Snapshot {
            pools: vec![pool("a", &[])],
            nodes: vec![node("n1", "a", &[]), node("n2", "a", &[])],
            ..Snapshot::default()
        });
        let nodes = vec![node("n2", "b", &["r"])];
        let touched = view.apply(ClusterEvent::Pool(pool("b", &["rack"]), nodes));
        assert_eq!(
            touched.pools,
            BTreeSet::from(["a".to_owned(), "b".to_owned()])
        );
        let names = |view: &View, pool: &str| -> Vec<String> {
            view.nodes_of(pool).map(|node| node.name.clone()).collect()
        };
        assert_eq!(
            (names(&view, "a"), names(&view, "b")),
            (vec!["n1".into()], vec!["n2".into()])
        );
        assert_eq!(view.pool("b"), Some(&pool("b", &["rack"])));
        view.apply(ClusterEvent::NodeGone("n2".to_owned()));
        let touched = view.apply(ClusterEvent::PoolGone("b".to_owned()));
        assert!(touched.pools.contains("b") && view.pool("b").is_none());
        assert_eq!(view.pools().collect::<Vec<_>>(), ["a"]);
    }

    /// Whether a gang finds a place; the same one as by a fresh look at all nodes.
    fn found_as_afresh(view: &mut View, pool: &str, gang: &GangShape, not: &str) -> bool {
        use meridian_policies::nodes::{Member, place};
        let pods = [gang.roles[0].max];
        let avoid = BTreeMap::from([(not.to_owned(), String::new())]);
        let mut places = view.places(pool);
        for place in &mut places {
            place.ready &= !avoid.contains_key(&place.name);
        }
        let fresh = place(&["rack".to_owned()], &places, gang, &pods);
        let kept = view.find(pool, gang, &pods, &avoid).expect("a pool");
        let names = |member: &MemberOrder| (member.rank, member.node.clone());
        let kept = kept.map(|members| members.iter().map(names).collect::<Vec<_>>());
        let name = |member: &Member| (member.rank, places[member.node].name.clone());
        let fresh = fresh.map(|members| members.iter().map(name).collect::<Vec<_>>());
        assert_eq!(kept, fresh);
        fresh.is_ok()
    }

    /// What is kept from change to change finds what a fresh look at all nodes finds.
    #[test]
    fn a_place_is_found_as_if_all_nodes_were_looked_at() {
        use meridian_api::units::MilliGpus;
        use meridian_policies::model::RoleShape;
        let cards = |cards: u64| Resources {
            gpus: MilliGpus::cards(cards),
            ..Resources::default()
        };
        let node = |at: u64, pool: &str| {
            let mut node = node(&format!("n{at:02}"), pool, &[&format!("r{}", at / 4)]);
            node.allocatable = cards(8);
            node
        };
        let gang = |pods: u32, gpus: u64| GangShape {
            roles: vec![RoleShape {
                name: "worker".to_owned(),
                per_pod: cards(gpus),
                min: pods,
                max: pods,
                step: 1,
                required: Some("rack".to_owned()),
                preferred: None,
                slice: None,
            }],
        };
        let random = meridian_runtime::Random::seeded(7);
        let mut view = View::default();
        for name in ["a", "b"] {
            view.apply(ClusterEvent::Pool(pool(name, &["rack"]), Vec::new()));
        }
        let (mut found, mut asked) = (0, 0);
        for round in 0..2000_u32 {
            let at = random.below(24);
            let name = if random.below(8) == 0 { "b" } else { "a" };
            match random.below(8) {
                0 => drop(view.apply(ClusterEvent::NodeGone(format!("n{at:02}")))),
                1..4 => {
                    let mut node = node(at, name);
                    node.foreign = cards(random.below(9));
                    if random.below(6) == 0 {
                        node.health = NodeHealth::Cordoned;
                    }
                    view.apply(ClusterEvent::Node(node));
                }
                4 => {
                    let key = GangKey {
                        gang: GangId::default(),
                        epoch: Epoch(random.below(6)),
                    };
                    let on = (format!("n{at:02}"), cards(random.below(9)));
                    view.reserve(key, vec![on]);
                }
                _ => {
                    let gang = gang(1 + round % 4, 4);
                    let is_found = found_as_afresh(&mut view, name, &gang, &format!("n{at:02}"));
                    (asked, found) = (asked + 1, found + u32::from(is_found));
                }
            }
        }
        assert!(found > asked / 10 && found < asked, "{found} of {asked}");
    }
}
