//! What the agent keeps in the cluster about a gang, so that another life of it knows.
//!
//! Owns the record in a gang's owner object and the slip on each of its pods. Never asks the
//! cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ConfigMap;
use meridian_api::units::Resources;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::names;
use crate::backend::{GangKey, GangOrder, GangTerms, MemberOrder};

/// The record of one gang under one epoch. Writes to it compare the object's version: whoever
/// reads it and then writes it knows that nothing came between.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Record {
    /// Which gang, under which epoch.
    pub(super) key: GangKey,
    /// The step under the epoch.
    pub(super) attempt: u32,
    /// Every step of that attempt was done. A bind leaves it to the gate to say so.
    pub(super) complete: bool,
    /// Members come and go: nothing follows from those that are there.
    #[serde(default)]
    pub(super) resizing: bool,
    /// Asked to stop. Never taken back.
    pub(super) stopping: bool,
    /// Its pods are others': bound, never made, and let go where they need not be removed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) theirs: bool,
    /// Its terms.
    pub(super) terms: GangTerms,
    /// Roles in the job's order, with their members.
    pub(super) roles: Vec<RoleRecord>,
}

/// One role of the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RoleRecord {
    /// Its name.
    pub(super) name: String,
    /// What each pod asks of its host.
    pub(super) request: Resources,
    /// Its members: consecutive ranks on one node are one entry, so that 8 pods on each of the
    /// 5,000 nodes that a cluster may have stay well below the 1 MiB of a ConfigMap.
    pub(super) runs: Vec<Run>,
}

/// Consecutive ranks on one node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Run {
    /// The first of them.
    pub(super) from: u32,
    /// How many.
    pub(super) count: u32,
    /// The node, in the words of the inventory.
    pub(super) node: String,
}

/// What a pod says of itself: enough to know its gang when the owner object is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Slip {
    /// Its role.
    pub(super) role: String,
    /// Position of the role in the job.
    pub(super) order: usize,
    /// Its rank in the role.
    pub(super) rank: u32,
    /// Its node, in the words of the inventory.
    pub(super) node: String,
    /// What it asks of it.
    pub(super) request: Resources,
    /// The attempt that made it.
    pub(super) attempt: u32,
    /// Terms of its gang.
    pub(super) terms: GangTerms,
}

/// One member as the record has it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Member {
    /// Position of its role.
    pub(super) role: usize,
    /// Its rank.
    pub(super) rank: u32,
    /// Its node.
    pub(super) node: String,
}

impl Record {
    /// The record of a gang whose bind begins.
    pub(super) fn of(order: &GangOrder) -> Self {
        Self {
            key: order.key,
            attempt: order.attempt,
            complete: false,
            resizing: false,
            stopping: false,
            theirs: order.workload.origin.is_some(),
            terms: order.terms.clone(),
            roles: roles(order),
        }
    }

    /// Reads it from an owner object.
    pub(super) fn read(owner: &ConfigMap) -> Option<Self> {
        let text = owner.data.as_ref()?.get(names::RECORD)?;
        serde_json::from_str(text).ok()
    }

    /// The data of an owner object that is not made yet.
    pub(super) fn data(&self) -> BTreeMap<String, String> {
        let text = serde_json::to_string(self).expect("plain data without maps");
        BTreeMap::from([(names::RECORD.to_owned(), text)])
    }

    /// Changes an owner object to say this; a gate that is open stays open.
    pub(super) fn write(&self, owner: &mut ConfigMap) {
        let open = is_open(owner);
        owner.data.get_or_insert_default().extend(self.data());
        if open {
            self.open(owner);
        }
    }

    /// Opens the gate in an owner object: with it, the kubelets start the containers of the gang.
    /// It tells each of them who its peers are.
    pub(super) fn open(&self, owner: &mut ConfigMap) {
        let gate = names::gate(owner.metadata.uid.as_deref().unwrap_or_default());
        let data = owner.data.get_or_insert_default();
        data.insert(gate, self.peers());
    }

    /// The data by which an owner object with this UID says that every step was done, and opens
    /// its gate.
    pub(super) fn opened(&self, uid: &str) -> BTreeMap<String, String> {
        let done = Self {
            complete: true,
            ..self.clone()
        };
        let mut data = done.data();
        data.insert(names::gate(uid), self.peers());
        data
    }

    fn peers(&self) -> String {
        let peer = |member: Member| {
            let role = &self.roles[member.role].name;
            json!({"role": role, "rank": member.rank, "node": member.node,
                   "host": names::host(role, member.rank)})
        };
        let peers = self.members().into_iter().map(peer);
        Value::Array(peers.collect()).to_string()
    }

    /// True when it has exactly the members of `order`.
    pub(super) fn has_members_of(&self, order: &GangOrder) -> bool {
        self.roles == roles(order)
    }

    /// Every member, in the order of roles and ranks.
    pub(super) fn members(&self) -> Vec<Member> {
        let mut members = Vec::new();
        for (role, entry) in self.roles.iter().enumerate() {
            for run in &entry.runs {
                let ranks = run.from..run.from.saturating_add(run.count);
                members.extend(ranks.map(|rank| Member {
                    role,
                    rank,
                    node: run.node.clone(),
                }));
            }
        }
        members.sort_by_key(|member| (member.role, member.rank));
        members
    }
}

/// True when the gate in an owner object is open. It is never shut again.
pub(super) fn is_open(owner: &ConfigMap) -> bool {
    let gate = names::gate(owner.metadata.uid.as_deref().unwrap_or_default());
    let data = owner.data.as_ref();
    data.is_some_and(|data| data.contains_key(&gate))
}

/// The roles of an order with their members.
pub(super) fn roles(order: &GangOrder) -> Vec<RoleRecord> {
    let role = |(at, role): (usize, &crate::backend::RoleOrder)| {
        let members = order.members.iter().filter(|member| member.role == at);
        let mut members: Vec<&MemberOrder> = members.collect();
        members.sort_by_key(|member| member.rank);
        RoleRecord {
            name: role.name.clone(),
            request: role.request,
            runs: runs(&members),
        }
    };
    order.roles.iter().enumerate().map(role).collect()
}

fn runs(members: &[&MemberOrder]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for member in members {
        match runs.last_mut() {
            Some(run)
                if run.node == member.node && run.from.saturating_add(run.count) == member.rank =>
            {
                run.count += 1;
            }
            Some(_) | None => runs.push(Run {
                from: member.rank,
                count: 1,
                node: member.node.clone(),
            }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{RoleOrder, Workload};
    use std::sync::Arc;

    #[test]
    fn members_are_read_back_as_they_were_ordered() {
        let role = |name: &str| RoleOrder {
            name: name.to_owned(),
            request: Resources::default(),
            template: Arc::new(serde_json::json!({})),
        };
        let member = |role, rank, node: &str| MemberOrder {
            role,
            rank,
            node: node.to_owned(),
        };
        let order = GangOrder {
            key: GangKey {
                gang: meridian_api::ids::GangId::default(),
                epoch: meridian_api::ids::Epoch(3),
            },
            attempt: 1,
            terms: GangTerms::default(),
            roles: vec![role("chief"), role("worker")],
            members: vec![
                member(1, 0, "a"),
                member(1, 1, "a"),
                member(1, 3, "a"),
                member(1, 2, "b"),
                member(0, 0, "b"),
            ],
            labels: indexmap::IndexMap::new(),
            workload: Workload::default(),
            traceparent: String::new(),
        };
        let record = Record::of(&order);
        assert_eq!(record.roles[1].runs.len(), 3);
        let owner = ConfigMap {
            data: Some(record.data()),
            ..ConfigMap::default()
        };
        let back = Record::read(&owner).expect("just written");
        assert!(back.has_members_of(&order));
        let ordered: Vec<(usize, u32, String)> = back
            .members()
            .into_iter()
            .map(|member| (member.role, member.rank, member.node))
            .collect();
        let expected = [
            (0, 0, "b"),
            (1, 0, "a"),
            (1, 1, "a"),
            (1, 2, "b"),
            (1, 3, "a"),
        ];
        assert_eq!(ordered, expected.map(|(r, k, n)| (r, k, n.to_owned())));
    }

    #[test]
    fn a_record_that_is_not_ours_is_none() {
        assert_eq!(Record::read(&ConfigMap::default()), None);
        let foreign = BTreeMap::from([(names::RECORD.to_owned(), "{}".to_owned())]);
        let foreign = ConfigMap {
            data: Some(foreign),
            ..ConfigMap::default()
        };
        assert_eq!(Record::read(&foreign), None);
    }
}
