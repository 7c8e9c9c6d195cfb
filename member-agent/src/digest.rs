//! Digests: the cluster as the hub needs it, pools as shapes and gangs with their steps.
//!
//! Owns the sequence number and the last words sent, so that a delta names only what changed. A
//! gang is listed when its devices are taken out of the shapes, or when it has ended and the hub
//! has not let it go: an accepted gang without room is not, since the hub subtracts what a digest
//! does not list. Never decides what a gang does.

use std::collections::{BTreeMap, BTreeSet};

use meridian_api::ids::GangId;
use meridian_api::units::{Resources, UnixMillis};
use meridian_policies::model::RoleShape;
use meridian_proto::convert::MAX_OFFERS;
use meridian_proto::v1;

use crate::backend::{GangKey, GangSeen, NodeHealth, NodeSeen, OfferSeen, OfferedRole};
use crate::gangs::{End, Gang, started, wire_step};
use crate::view::{Touched, View, plus, pods_running};

/// Builds digests and remembers what was sent.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    sequence: u64,
    pools: BTreeMap<String, v1::Pool>,
    gangs: BTreeMap<GangId, v1::GangObservation>,
    offers: BTreeMap<String, v1::OfferedGang>,
    /// Ends that were told in a report since the last digest.
    told: BTreeSet<GangId>,
    touched_pools: BTreeSet<String>,
    touched_gangs: BTreeSet<GangId>,
    touched_offers: BTreeSet<String>,
    held_back: Vec<String>,
    touched_held_back: bool,
    /// Offers beyond what the hub takes: they are told when others have gone.
    offers_left: BTreeSet<String>,
}

impl Digests {
    /// Marks what the next delta must look at.
    pub(crate) fn touch(
        &mut self,
        pools: impl IntoIterator<Item = String>,
        gangs: impl IntoIterator<Item = GangId>,
    ) {
        self.touched_pools.extend(pools);
        self.touched_gangs.extend(gangs);
    }

    /// Marks everything that an update of the view touched.
    pub(crate) fn follow(&mut self, touched: &Touched) {
        self.touched_pools.extend(touched.pools.iter().cloned());
        self.touched_gangs.extend(&touched.gangs);
        self.touched_offers.extend(touched.offers.iter().cloned());
        self.touched_held_back |= touched.held_back;
    }

    /// A report told how this gang ended: a digest must say when it is let go, even if none
    /// came in between to list it.
    pub(crate) fn end_was_told(&mut self, gang: GangId) {
        self.told.insert(gang);
    }

    /// True when something may have changed since the last digest.
    #[must_use]
    pub(crate) fn stale(&self) -> bool {
        !self.touched_pools.is_empty()
            || !self.touched_gangs.is_empty()
            || !self.touched_offers.is_empty()
            || self.touched_held_back
    }

    /// Everything, in place of everything.
    pub(crate) fn full(&mut self, view: &View, gangs: &BTreeMap<GangId, Gang>) -> v1::Digest {
        self.told.clear();
        self.touched_pools.clear();
        self.touched_gangs.clear();
        self.touched_offers.clear();
        self.touched_held_back = false;
        self.held_back = view.held_back().to_vec();
        let pools = view
            .pools()
            .filter_map(|name| Some((name.to_owned(), pool(view, name)?)));
        self.pools = pools.collect();
        let listed = gangs
            .values()
            .filter_map(|gang| Some((gang.record.gang, listed(view, gang)?)));
        self.gangs = listed.collect();
        let offers = view.offers().map(|seen| (seen.uid.clone(), offer(seen)));
        self.offers = offers.take(MAX_OFFERS).collect();
        let left = view.offers().skip(MAX_OFFERS);
        self.offers_left = left.map(|seen| seen.uid.clone()).collect();
        self.sequence += 1;
        v1::Digest {
            sequence: self.sequence,
            full: true,
            pools: self.pools.values().cloned().collect(),
            gangs: self.gangs.values().cloned().collect(),
            offers: self.offers.values().cloned().collect(),
            held_back: Some(held_back(&self.held_back)),
            ..v1::Digest::default()
        }
    }

    /// What changed since the last digest; `None` when nothing did.
    pub(crate) fn delta(
        &mut self,
        view: &View,
        gangs: &BTreeMap<GangId, Gang>,
    ) -> Option<v1::Digest> {
        let mut digest = v1::Digest::default();
        for name in std::mem::take(&mut self.touched_pools) {
            match pool(view, &name) {
                Some(pool) if self.pools.get(&name) != Some(&pool) => {
                    self.pools.insert(name, pool.clone());
                    digest.pools.push(pool);
                }
                None if self.pools.remove(&name).is_some() => digest.removed_pools.push(name),
                Some(_) | None => {}
            }
        }
        for id in std::mem::take(&mut self.touched_gangs) {
            match gangs.get(&id).and_then(|gang| listed(view, gang)) {
                Some(gang) if self.gangs.get(&id) != Some(&gang) => {
                    self.gangs.insert(id, gang.clone());
                    digest.gangs.push(gang);
                }
                Some(_) => {}
                None => {
                    let told = self.told.remove(&id);
                    if self.gangs.remove(&id).is_some() || told {
                        digest.removed_gangs.push(id.into());
                    }
                }
            }
        }
        self.told.clear();
        self.offer_delta(view, &mut digest);
        if std::mem::take(&mut self.touched_held_back) && self.held_back != view.held_back() {
            self.held_back = view.held_back().to_vec();
            digest.held_back = Some(held_back(&self.held_back));
        }
        if digest == v1::Digest::default() {
            return None;
        }
        self.sequence += 1;
        digest.sequence = self.sequence;
        Some(digest)
    }

    fn offer_delta(&mut self, view: &View, digest: &mut v1::Digest) {
        for uid in std::mem::take(&mut self.touched_offers) {
            match view.offer(&uid).map(offer) {
                Some(offer) => self.tell_offer(offer, digest),
                None if self.offers.remove(&uid).is_some() => {
                    digest.removed_offers.push(uid);
                    // Room for one of those that were held back.
                    let next = self.offers_left.pop_first();
                    if let Some(next) = next.and_then(|uid| view.offer(&uid)) {
                        self.tell_offer(offer(next), digest);
                    }
                }
                None => {
                    self.offers_left.remove(&uid);
                }
            }
        }
    }

    fn tell_offer(&mut self, offer: v1::OfferedGang, digest: &mut v1::Digest) {
        let known = self.offers.get(&offer.uid);
        if known == Some(&offer) {
            return;
        }
        if known.is_none() && self.offers.len() >= MAX_OFFERS {
            self.offers_left.insert(offer.uid);
            return;
        }
        self.offers.insert(offer.uid.clone(), offer.clone());
        digest.offers.push(offer);
    }
}

fn held_back(gangs: &[String]) -> v1::HeldBack {
    v1::HeldBack {
        gangs: gangs.to_vec(),
    }
}

/// What the hub is told of an offer.
fn offer(seen: &OfferSeen) -> v1::OfferedGang {
    let role = |role: &OfferedRole| v1::RoleIntent {
        name: role.name.clone(),
        pods: role.pods,
        per_pod: Some(role.request.into()),
        ..v1::RoleIntent::default()
    };
    let ruled = |role: &&OfferedRole| role.required.is_some() || role.preferred.is_some();
    let rule = |role: &OfferedRole| v1::TopologyRule {
        role: role.name.clone(),
        required: role.required.clone().unwrap_or_default(),
        preferred: role.preferred.clone().unwrap_or_default(),
        ..v1::TopologyRule::default()
    };
    v1::OfferedGang {
        uid: seen.uid.clone(),
        namespace: seen.namespace.clone(),
        name: seen.name.clone(),
        workload_class: seen.class.clone(),
        roles: seen.roles.iter().map(role).collect(),
        topology: seen.roles.iter().filter(ruled).map(rule).collect(),
        flavors: seen.flavors.clone(),
        priority: seen.priority,
    }
}

/// A pool as shapes; nodes that take no pods are in no shape.
fn pool(view: &View, name: &str) -> Option<v1::Pool> {
    let pool = view.pool(name)?;
    let mut shapes: BTreeMap<(&[String], Resources, Resources), u32> = BTreeMap::new();
    let mut out = 0_u64;
    for node in view.nodes_of(name) {
        out = out.saturating_add(node.unhealthy.0);
        if node.health == NodeHealth::Ready {
            let free = view.free(node);
            *shapes
                .entry((&node.domains, node.allocatable, free))
                .or_default() += 1;
        } else {
            out = out.saturating_add(node.allocatable.gpus.0);
        }
    }
    let shape =
        |((domains, allocatable, free), hosts): ((&[String], Resources, Resources), u32)| {
            v1::Shape {
                domains: domains.to_vec(),
                allocatable: Some(allocatable.into()),
                free: Some(free.into()),
                hosts,
            }
        };
    Some(v1::Pool {
        name: pool.name.clone(),
        flavor: pool.flavor.clone(),
        levels: pool.levels.clone(),
        shapes: shapes.into_iter().map(shape).collect(),
        out_milli_gpus: out,
        findings: pool.findings.clone(),
    })
}

/// The entry of a gang; an older epoch that is still being stopped stands in for one that waits
/// for it.
fn listed(view: &View, gang: &Gang) -> Option<v1::GangObservation> {
    let key = gang.record.key();
    if gang.record.ended.is_some() || !view.holds(key).is_empty() || view.gang(key).is_some() {
        return Some(observation(view, gang));
    }
    let older = view.older(key).pop()?;
    Some(older_observation(view, older))
}

/// What the hub is told of a gang.
#[must_use]
pub(crate) fn observation(view: &View, gang: &Gang) -> v1::GangObservation {
    let key = gang.record.key();
    let own = view.gang(key);
    let verdict = gang.record.verdict.as_ref();
    let reason = match verdict.map(|verdict| verdict.end) {
        Some(End::Failed(failure)) => failure.to_string(),
        Some(End::Succeeded | End::Stopped) | None => String::new(),
    };
    let millis = |at: Option<UnixMillis>| at.map_or(0, |at| at.0);
    let first = own.and_then(started).or_else(|| verdict?.started);
    v1::GangObservation {
        gang: Some(key.gang.into()),
        epoch: key.epoch.0,
        step: wire_step(gang, own).into(),
        pool: gang.record.pool.clone(),
        holds: domain_holds(view, key),
        pods_running: own.map_or(0, pods_running),
        reason,
        exit_code: verdict.map_or(0, |verdict| verdict.exit_code),
        message: words(gang, own),
        started_ms: millis(first),
        ended_ms: millis(gang.record.ended),
        checkpoint_ms: millis(own.and_then(|own| own.checkpoint)),
        sizes: own.map_or_else(Vec::new, |own| sizes(gang, own)),
    }
}

/// Words for a person: why it ends, or what keeps it from starting.
fn words(gang: &Gang, own: Option<&GangSeen>) -> String {
    if let Some(verdict) = &gang.record.verdict {
        return verdict.message.clone();
    }
    let pods = own.into_iter().flat_map(|own| &own.pods);
    let waiting = pods
        .filter(|pod| !pod.waits_for.is_empty())
        .min_by_key(|pod| &pod.name);
    waiting.map_or_else(String::new, |pod| {
        format!("pod {} on node {}: {}", pod.name, pod.node, pod.waits_for)
    })
}

/// Pods by elastic role of a gang that is whole; nothing while its members come and go.
fn sizes(gang: &Gang, own: &GangSeen) -> Vec<v1::RoleSize> {
    let order = gang
        .order
        .as_deref()
        .filter(|_| own.complete && !own.stopping);
    let roles = order.into_iter().flat_map(|order| &order.shape.roles);
    let elastic = roles.filter(|role| role.min < role.max);
    let size = |role: &RoleShape| {
        let pods = own.members().filter(|pod| pod.role == role.name).count();
        v1::RoleSize {
            role: role.name.clone(),
            pods: u32::try_from(pods).unwrap_or(u32::MAX),
        }
    };
    elastic.map(size).collect()
}

fn older_observation(view: &View, older: &GangSeen) -> v1::GangObservation {
    v1::GangObservation {
        gang: Some(older.key.gang.into()),
        epoch: older.key.epoch.0,
        step: v1::GangStep::Stopping.into(),
        pool: older.terms.pool.clone(),
        holds: domain_holds(view, older.key),
        pods_running: pods_running(older),
        started_ms: started(older).map_or(0, |at| at.0),
        ..v1::GangObservation::default()
    }
}

/// What a gang takes, per innermost domain.
fn domain_holds(view: &View, key: GangKey) -> Vec<v1::DomainHold> {
    let mut domains: BTreeMap<&[String], (BTreeSet<&str>, Resources)> = BTreeMap::new();
    for (name, amount) in view.holds(key) {
        let path: &[String] = view.node(name).map_or(&[], |node: &NodeSeen| &node.domains);
        let (hosts, held) = domains.entry(path).or_default();
        hosts.insert(name);
        *held = plus(*held, *amount);
    }
    let hold = |(path, (hosts, held)): (&[String], (BTreeSet<&str>, Resources))| v1::DomainHold {
        domains: path.to_vec(),
        hosts: u32::try_from(hosts.len()).unwrap_or(u32::MAX),
        held: Some(held.into()),
        each: Vec::new(),
    };
    let mut holds: Vec<v1::DomainHold> = domains.into_iter().map(hold).collect();
    if let Some(first) = holds.first_mut() {
        first.each = host_holds(view, key);
    }
    holds
}

/// What a gang takes, host by host.
fn host_holds(view: &View, key: GangKey) -> Vec<v1::HostHold> {
    let mut hosts: BTreeMap<&str, Resources> = BTreeMap::new();
    for (name, amount) in view.holds(key) {
        let held = hosts.entry(name).or_default();
        *held = plus(*held, *amount);
    }
    let hold = |(name, held): (&str, Resources)| {
        let node = view.node(name)?;
        Some(v1::HostHold {
            host: host_number(name),
            domains: node.domains.clone(),
            held: Some(held.into()),
            allocatable: Some(node.allocatable.into()),
            foreign: Some(node.foreign.into()),
            roles: roles_on(view.gang(key), name),
        })
    };
    hosts.into_iter().filter_map(hold).collect()
}

/// Pods by role that hold something on a host.
fn roles_on(own: Option<&GangSeen>, node: &str) -> Vec<v1::RoleSize> {
    let mut roles: BTreeMap<&str, u32> = BTreeMap::new();
    let pods = own.into_iter().flat_map(|own| &own.pods);
    for pod in pods.filter(|pod| pod.node == node && !pod.phase.ended()) {
        *roles.entry(&pod.role).or_default() += 1;
    }
    let size = |(role, pods): (&str, u32)| v1::RoleSize {
        role: role.to_owned(),
        pods,
    };
    roles.into_iter().map(size).collect()
}

/// A number that stands for a host in what the hub is told: the same in each life of the agent, so
/// it is made of the name. Two hosts of a cluster with one number (one in 2^63 for each pair) would
/// look like one that is too full to be true, and nobody would be made to leave it.
#[must_use]
pub(crate) fn host_number(name: &str) -> u64 {
    use sha2::Digest as _;
    let hash: [u8; 32] = sha2::Sha256::digest(name).into();
    let first = hash.iter().take(8);
    first.fold(0_u64, |number, byte| (number << 8) | u64::from(*byte)) | 1
}
