//! What is kept of one gang: its owner object and its pods, as last shown.
//!
//! Owns which members are there, which are still to come and which somebody took away. Pure. Never
//! asks the cluster.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use serde_json::{Value, json};

use super::bind::slip;
use super::doubt::{self, Missing};
use super::inventory::Inventory;
use super::names;
use super::record::{Member, Record, Slip, is_open};
use crate::backend::{PodPhase, PodSeen};

/// A member by role and rank.
type Place = (usize, u32);

/// One gang under one epoch.
#[derive(Default)]
pub(super) struct Entry {
    pub(super) owner: Option<Owner>,
    pub(super) pods: BTreeMap<String, Kept>,
    /// Members whose pod was there and was removed by somebody else.
    removed: BTreeSet<Place>,
}

/// Its owner object.
pub(super) struct Owner {
    pub(super) uid: String,
    /// Its version when it was shown.
    version: String,
    pub(super) namespace: String,
    pub(super) record: Record,
    /// User code may start.
    open: bool,
    /// Members of the record.
    pub(super) members: BTreeSet<Member>,
}

/// What is kept of a pod.
pub(super) struct Kept {
    pub(super) slip: Slip,
    pub(super) namespace: String,
    pub(super) uid: String,
    host: Option<String>,
    pub(super) deleting: bool,
    /// Others made it.
    pub(super) theirs: bool,
    /// A resize left it out: its end is expected.
    pub(super) leaving: bool,
    /// Without its spec's containers and the annotations that nobody reads.
    pub(super) pod: Pod,
}

impl Owner {
    pub(super) fn of(config: &ConfigMap, record: Record) -> Self {
        Self {
            uid: config.metadata.uid.clone().unwrap_or_default(),
            version: config.metadata.resource_version.clone().unwrap_or_default(),
            namespace: config.metadata.namespace.clone().unwrap_or_default(),
            open: is_open(config),
            members: record.members().into_iter().collect(),
            record,
        }
    }

    /// The patch that opens its gate and says that the order was done, if it is still as it was
    /// shown.
    pub(super) fn opening(&self) -> Value {
        json!({
            "metadata": {"uid": self.uid, "resourceVersion": self.version},
            "data": self.record.opened(&self.uid),
        })
    }
}

impl Entry {
    pub(super) fn namespace(&self) -> Option<&str> {
        let pod = || {
            self.pods
                .values()
                .next()
                .map(|kept| kept.namespace.as_str())
        };
        let owner = self.owner.as_ref().map(|owner| owner.namespace.as_str());
        owner.or_else(pod)
    }

    pub(super) fn own(&mut self, owner: Owner) {
        let moved = self
            .owner
            .as_ref()
            .is_some_and(|before| before.members != owner.members || before.uid != owner.uid);
        if moved {
            self.removed.clear();
        }
        for kept in self.pods.values_mut() {
            kept.leaving = !owner.members.contains(&kept.member());
        }
        self.owner = Some(owner);
    }

    pub(super) fn disown(&mut self) {
        self.owner = None;
        self.removed.clear();
    }

    pub(super) fn take(&mut self, name: String, mut kept: Kept) {
        self.removed.remove(&kept.place());
        let owner = self.owner.as_ref();
        kept.leaving = owner.is_some_and(|owner| !owner.members.contains(&kept.member()));
        self.pods.insert(name, kept);
    }

    pub(super) fn remove(&mut self, name: &str) {
        let Some(kept) = self.pods.remove(name) else {
            return;
        };
        if !kept.leaving && !self.places().contains(&kept.place()) {
            self.removed.insert(kept.place());
        }
    }

    /// In a whole listing, a member of a gang that was bound and has no pod had one.
    pub(super) fn mark_absent(&mut self) {
        let Some(owner) = self.owner.as_ref().filter(|owner| owner.record.complete) else {
            return;
        };
        let there = self.places();
        let members = owner
            .members
            .iter()
            .map(|member| (member.role, member.rank));
        self.removed = members.filter(|place| !there.contains(place)).collect();
    }

    /// Pods of a gang that was bound, and is not asked to stop, that are not there.
    pub(super) fn missing(&self) -> BTreeSet<Missing> {
        let owner = self.owner.as_ref();
        let owner = owner.filter(|owner| owner.record.complete && !owner.record.stopping);
        let there = self.places();
        owner.map_or_else(BTreeSet::new, |owner| {
            let known = |role, rank| there.contains(&(role, rank));
            doubt::pods(&owner.record, &owner.namespace, known)
        })
    }

    fn places(&self) -> BTreeSet<Place> {
        self.pods.values().map(Kept::place).collect()
    }

    /// True when its pods are others'.
    pub(super) fn is_theirs(&self) -> bool {
        let owner = self.owner.as_ref();
        owner.is_some_and(|owner| owner.record.theirs) || self.pods.values().any(|pod| pod.theirs)
    }

    /// True when the gate is shut and each member has a pod of which `admitted` holds.
    pub(super) fn may_open(&self, owner: &Owner, admitted: impl Fn(&Kept) -> bool) -> bool {
        let shut = !owner.open && !owner.record.resizing;
        shut && self.are_all(owner, |kept| !kept.deleting && admitted(kept))
    }

    /// True when every step of the record's order was done: it says so, or each member is bound,
    /// which is the last step of a bind.
    pub(super) fn is_complete(&self, owner: &Owner) -> bool {
        let bound = || self.are_all(owner, |kept| kept.host.is_some());
        owner.record.complete || (!owner.record.resizing && bound())
    }

    /// True when there are members and each has a pod of which `fits` holds.
    fn are_all(&self, owner: &Owner, fits: impl Fn(&Kept) -> bool) -> bool {
        let pods = self.pods.values().filter(|kept| fits(kept));
        let there: BTreeSet<Member> = pods.map(Kept::member).collect();
        !owner.members.is_empty() && owner.members.is_subset(&there)
    }

    /// Members without a pod: not made yet, removed with a machine that `is_off`, or by somebody
    /// else.
    pub(super) fn absent(
        &self,
        owner: &Owner,
        is_off: impl Fn(&str) -> bool,
    ) -> Vec<(Place, PodSeen)> {
        let there = self.places();
        let seen = |member: &Member| {
            let place = (member.role, member.rank);
            let failed = |reason: &str| PodPhase::Failed {
                exit_code: 0,
                reason: reason.to_owned(),
            };
            let phase = if !self.removed.contains(&place) {
                PodPhase::Pending
            } else if is_off(Inventory::host_of(&member.node)) {
                failed("NodeLost")
            } else {
                failed("Removed")
            };
            (place, unmade(&owner.record, member, phase))
        };
        let absent = owner.members.iter();
        let absent = absent.filter(|member| !there.contains(&(member.role, member.rank)));
        absent.map(seen).collect()
    }
}

/// A member that has no pod.
fn unmade(record: &Record, member: &Member, phase: PodPhase) -> PodSeen {
    let role = &record.roles[member.role];
    let (job, key) = (&record.terms.job, record.key);
    PodSeen {
        name: names::pod(job, key, &role.name, member.rank, record.attempt),
        role: role.name.clone(),
        rank: member.rank,
        node: member.node.clone(),
        request: role.request,
        phase,
        started: None,
        ended: None,
        waits_for: String::new(),
        leaving: false,
    }
}

impl Kept {
    pub(super) fn of(pod: &Pod) -> Option<Self> {
        let slip = slip(pod)?;
        let meta = &pod.metadata;
        let host = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        let mut slim = Pod {
            status: pod.status.clone(),
            ..Pod::default()
        };
        slim.metadata
            .creation_timestamp
            .clone_from(&meta.creation_timestamp);
        slim.metadata
            .deletion_timestamp
            .clone_from(&meta.deletion_timestamp);
        slim.metadata.deletion_grace_period_seconds = meta.deletion_grace_period_seconds;
        let annotations = meta.annotations.iter().flatten();
        let answer = annotations.filter(|(name, _)| *name == names::CHECKPOINT);
        let answer = answer.map(|(name, value)| (name.clone(), value.clone()));
        slim.metadata.annotations = Some(answer.collect());
        slim.spec
            .get_or_insert_default()
            .node_name
            .clone_from(&host);
        Some(Self {
            slip,
            namespace: meta.namespace.clone().unwrap_or_default(),
            uid: meta.uid.clone().unwrap_or_default(),
            host,
            deleting: meta.deletion_timestamp.is_some(),
            theirs: meta.labels.as_ref().and_then(names::bound_key).is_some(),
            leaving: false,
            pod: slim,
        })
    }

    pub(super) fn place(&self) -> Place {
        (self.slip.order, self.slip.rank)
    }

    /// The host that it is bound to; empty = none.
    pub(super) fn host(&self) -> &str {
        self.host.as_deref().unwrap_or_default()
    }

    fn member(&self) -> Member {
        Member {
            role: self.slip.order,
            rank: self.slip.rank,
            node: self.slip.node.clone(),
        }
    }

    /// Its node in our words; a pod that somebody else bound is where it is.
    pub(super) fn node(&self) -> String {
        let said = Inventory::host_of(&self.slip.node);
        match &self.host {
            Some(host) if host != said => host.clone(),
            Some(_) | None => self.slip.node.clone(),
        }
    }
}
