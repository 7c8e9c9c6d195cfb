//! Gangs that others make: pods that name this scheduler and are in none of our gangs.
//!
//! Owns the way from such pods to offers: which pods are one gang, its roles, and whether all of
//! them are there. A gang is told when it is whole, and stays told until what owns it is gone or
//! over: a pod that ends or is made again on the way changes nothing. Pure: never asks the cluster,
//! never binds.
//!
//! | Pods | Are one gang | That is whole when |
//! |---|---|---|
//! | with label `meridian.dev/gang` and a size | by the label | `meridian.dev/gang-size` says so |
//! | of a JobSet | by its UID | each replicated job has its pods |
//! | of a PyTorchJob | by its UID | the operator's `PET_NNODES` or `WORLD_SIZE` says so |
//! | of a Job | by its UID | the Job's parallelism says so, and there are no more to come |
//! | any other | each alone | at once |

mod group;
mod member;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;

use super::inventory::FlavorTable;
use crate::backend::{ClusterEvent, OfferSeen};
use group::Group;
use member::{JobFacts, Member};

pub use group::OfferedPod;

/// Everything that others offer. Groups are known by the UID that the offer has.
#[derive(Debug)]
pub struct Others {
    table: FlavorTable,
    groups: BTreeMap<String, Group>,
    /// The group of each pod and each Job, by UID.
    group_of: BTreeMap<String, String>,
    /// Groups that are not told, with what they lack.
    held_back: BTreeMap<String, String>,
}

/// Gangs that are not told and of which a person reads: the pools of a cluster show as many words.
const SHOWN: usize = 16;

impl Others {
    /// Nothing is offered.
    #[must_use]
    pub fn new(table: FlavorTable) -> Self {
        Self {
            table,
            groups: BTreeMap::new(),
            group_of: BTreeMap::new(),
            held_back: BTreeMap::new(),
        }
    }

    /// Takes a pod as the API shows it. One of our gangs, or one of another scheduler, is none
    /// here.
    pub fn apply_pod(&mut self, pod: &Pod, is_ours: bool) -> Vec<ClusterEvent> {
        let Some(uid) = pod.metadata.uid.clone() else {
            return Vec::new();
        };
        let read = (!is_ours).then(|| Member::read(pod, &self.table)).flatten();
        let Some((group, member)) = read else {
            return self.drop_member(&uid);
        };
        let mut events = self.moved(&uid, &group);
        let members = &mut self.groups.entry(group.clone()).or_default().members;
        members.insert(uid, member);
        events.extend(self.look(&group));
        events
    }

    /// A pod is gone.
    pub fn remove_pod(&mut self, pod: &Pod) -> Vec<ClusterEvent> {
        let uid = pod.metadata.uid.as_deref();
        uid.map_or_else(Vec::new, |uid| self.drop_member(uid))
    }

    /// Takes a Job as the API shows it: how many pods it has, and whether it is over.
    pub fn apply_job(&mut self, job: &Job) -> Vec<ClusterEvent> {
        let Some((uid, group, facts)) = JobFacts::read(job) else {
            return Vec::new();
        };
        let mut events = self.moved(&uid, &group);
        let jobs = &mut self.groups.entry(group.clone()).or_default().jobs;
        jobs.insert(uid, facts);
        events.extend(self.look(&group));
        events
    }

    /// A Job is gone.
    pub fn remove_job(&mut self, job: &Job) -> Vec<ClusterEvent> {
        let uid = job.metadata.uid.as_deref();
        uid.map_or_else(Vec::new, |uid| self.drop_member(uid))
    }

    /// An owner of another kind (a JobSet, a PyTorchJob) is there, or is over. While it is there
    /// its gang is, too, even when no pod of it is for a moment.
    pub fn apply_owner(&mut self, uid: &str, over: bool) -> Vec<ClusterEvent> {
        self.groups.entry(uid.to_owned()).or_default().owner = Some(over);
        self.look(uid)
    }

    /// Such an owner is gone.
    pub fn remove_owner(&mut self, uid: &str) -> Vec<ClusterEvent> {
        if let Some(group) = self.groups.get_mut(uid) {
            group.owner = None;
        }
        self.look(uid)
    }

    /// Every offer, by its UID.
    #[must_use]
    pub fn snapshot(&self) -> Vec<OfferSeen> {
        self.groups
            .values()
            .filter_map(|group| group.told.clone())
            .collect()
    }

    /// The pods of an offer that are not over, by role and rank. Empty when it is not told.
    #[must_use]
    pub fn pods(&self, uid: &str) -> Vec<OfferedPod> {
        let told = self.groups.get(uid).filter(|group| group.told.is_some());
        told.map_or_else(Vec::new, Group::pods)
    }

    /// The first gangs that are not told, each with what it lacks.
    #[must_use]
    pub fn held_back(&self) -> Vec<String> {
        self.held_back.values().take(SHOWN).cloned().collect()
    }

    /// Notes the group of a pod or a Job, and takes it out of another one.
    fn moved(&mut self, uid: &str, group: &str) -> Vec<ClusterEvent> {
        let stays = self.group_of.get(uid).is_none_or(|old| old == group);
        let events = if stays {
            Vec::new()
        } else {
            self.drop_member(uid)
        };
        self.group_of.insert(uid.to_owned(), group.to_owned());
        events
    }

    fn drop_member(&mut self, uid: &str) -> Vec<ClusterEvent> {
        let Some(key) = self.group_of.remove(uid) else {
            return Vec::new();
        };
        if let Some(group) = self.groups.get_mut(&key) {
            group.members.remove(uid);
            group.jobs.remove(uid);
        }
        self.look(&key)
    }

    /// Looks at a group after a change, and tells what that changed.
    fn look(&mut self, uid: &str) -> Vec<ClusterEvent> {
        let Some(group) = self.groups.get_mut(uid) else {
            return Vec::new();
        };
        let (mut event, mut lacks) = (None, None);
        if group.is_alive() {
            match group.offer(uid) {
                Ok(offer) if group.told.as_ref() == Some(&offer) => {}
                Ok(offer) => {
                    group.told = Some(offer.clone());
                    event = Some(ClusterEvent::Offer(Box::new(offer)));
                }
                // What was told stays told: it lacks nothing that matters.
                Err(_) if group.told.is_some() => {}
                Err(why) => lacks = group.title().map(|title| format!("{title}: {why}")),
            }
        } else {
            let told = group.told.take();
            event = told.map(|told| ClusterEvent::OfferGone(told.uid));
        }
        if group.is_empty() {
            self.groups.remove(uid);
        }
        match lacks {
            Some(lacks) => self.held_back.insert(uid.to_owned(), lacks),
            None => self.held_back.remove(uid),
        };
        event.into_iter().collect()
    }
}
