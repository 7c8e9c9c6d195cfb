//! The pods of one gang that others made, and what they offer together.
//!
//! Owns the check that a gang is whole. What it comes to depends on the pods that are there, not
//! on the order in which they were seen.

use std::collections::{BTreeMap, BTreeSet};

use meridian_api::kinds::federated_job::validate::MAX_ROLES;

use super::member::{JobFacts, Member, Size, State, larger};
use crate::backend::{OfferSeen, OfferedRole};
use meridian_api::units::Resources;

/// A pod of an offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedPod {
    /// Its role.
    pub role: String,
    /// Its rank in the role: its place by its own index, then by name.
    pub rank: u32,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The node that it is bound to.
    pub node: Option<String>,
    /// What it asks of its host.
    pub request: Resources,
}

/// Pods and Jobs of one gang, by UID.
#[derive(Debug, Default)]
pub(super) struct Group {
    pub(super) members: BTreeMap<String, Member>,
    pub(super) jobs: BTreeMap<String, JobFacts>,
    /// Whether an owner of another kind is over; `None` = nobody watches it.
    pub(super) owner: Option<bool>,
    /// What was told of it.
    pub(super) told: Option<OfferSeen>,
}

/// Why a gang is not offered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Lack {
    /// It has no pod that waits or runs.
    #[error("no pod of it waits or runs")]
    NoPods,
    /// Nothing says how many pods it has.
    #[error(
        "nothing says how many pods it has: label them meridian.dev/gang and annotate them \
         meridian.dev/gang-size"
    )]
    NoSize,
    /// The Job that says how many pods it has was not seen.
    #[error("its Job was not seen")]
    NoJob,
    /// More pods follow when those that are there have ended: that is a queue, not a gang.
    #[error(
        "its Job wants {completions} completions, {pods} at a time: a gang has all its pods at once"
    )]
    Waves { pods: u32, completions: u32 },
    /// Pods are not there, or are there twice.
    #[error("{there} of {wanted} pods are there")]
    Pods { there: usize, wanted: usize },
    /// Something else holds pods back.
    #[error("scheduling gates hold {0} of its pods back")]
    Gated(usize),
    /// No flavor has what its pods ask for together.
    #[error("no flavor has the GPUs that its pods ask for together")]
    NoFlavor,
    /// More roles than a job can have.
    #[error("it has {0} roles, at most {MAX_ROLES} fit")]
    Roles(usize),
}

impl Group {
    /// True while what owns it is there and not over, or a pod of it is: that one holds its place
    /// also when its owner wants no more.
    pub(super) fn is_alive(&self) -> bool {
        let has_owner = match self.owner {
            Some(over) => !over,
            None => self.jobs.values().any(|job| !job.over),
        };
        let mut members = self.members.values();
        has_owner || members.any(|member| member.state != State::Over)
    }

    /// True when nothing is known of it any more.
    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.jobs.is_empty() && self.owner.is_none()
    }

    /// What a person calls it.
    pub(super) fn title(&self) -> Option<String> {
        let first = self.members.values().next()?;
        Some(format!("{}/{}", first.namespace, first.gang))
    }

    /// What it offers.
    pub(super) fn offer(&self, uid: &str) -> Result<OfferSeen, Lack> {
        let gated = self.members.values();
        let gated = gated.filter(|member| member.state == State::Gated).count();
        if gated > 0 {
            return Err(Lack::Gated(gated));
        }
        let live = self.live();
        let Some((first, _)) = live.split_first() else {
            return Err(Lack::NoPods);
        };
        self.check_whole(&live)?;
        let roles = roles(&live);
        if roles.len() > MAX_ROLES {
            return Err(Lack::Roles(roles.len()));
        }
        let named = |class: &&str| !class.is_empty();
        let classes = live.iter().map(|member| member.class.as_str());
        Ok(OfferSeen {
            uid: uid.to_owned(),
            namespace: first.namespace.clone(),
            name: first.gang.clone(),
            class: classes.filter(named).min().unwrap_or_default().to_owned(),
            roles,
            flavors: flavors(&live)?,
            priority: live.iter().map(|member| member.priority).max().unwrap_or(0),
        })
    }

    /// Pods that wait to be bound or run, by role and rank.
    pub(super) fn pods(&self) -> Vec<OfferedPod> {
        let is_live = |(_, member): &(&String, &Member)| member.state == State::Live;
        let mut live: Vec<(&String, &Member)> = self.members.iter().filter(is_live).collect();
        live.sort_by_key(|(_, member)| (&member.role, member.index, &member.name));
        let mut next: BTreeMap<&str, u32> = BTreeMap::new();
        let mut pods = Vec::with_capacity(live.len());
        for (uid, member) in live {
            let rank = next.entry(&member.role).or_default();
            pods.push(OfferedPod {
                role: member.role.clone(),
                rank: *rank,
                namespace: member.namespace.clone(),
                name: member.name.clone(),
                uid: uid.clone(),
                node: member.node.clone(),
                request: member.wanted.request,
            });
            *rank += 1;
        }
        pods
    }

    fn live(&self) -> Vec<&Member> {
        let members = self.members.values();
        members
            .filter(|member| member.state == State::Live)
            .collect()
    }

    fn check_whole(&self, live: &[&Member]) -> Result<(), Lack> {
        let members = self.members.values();
        let gated = members
            .filter(|member| member.state == State::Gated)
            .count();
        if gated > 0 {
            return Err(Lack::Gated(gated));
        }
        let size = live.iter().map(|member| member.size).max();
        let wanted = match size.unwrap_or(Size::Unknown) {
            Size::Unknown => return Err(Lack::NoSize),
            Size::Pods(pods) => pods as usize,
            Size::OfJob => {
                let job = self.jobs.values().max_by_key(|job| job.pods);
                job.ok_or(Lack::NoJob)?.gang()? as usize
            }
            Size::OfJobSet { all, .. } => self.wanted_of_jobset(live, all)?,
        };
        let there = live.len();
        if there != wanted {
            return Err(Lack::Pods { there, wanted });
        }
        Ok(())
    }

    /// Pods of a JobSet: of each role its Jobs times the pods of one.
    fn wanted_of_jobset(&self, live: &[&Member], all: u32) -> Result<usize, Lack> {
        let mut jobs: BTreeMap<&str, u32> = BTreeMap::new();
        for member in live {
            if let Size::OfJobSet { jobs: number, .. } = member.size {
                jobs.insert(&member.role, number);
            }
        }
        let seen: u32 = jobs
            .values()
            .fold(0, |sum, number| sum.saturating_add(*number));
        if all > seen {
            // A role of which no pod is there: its size is not known either.
            let (there, wanted) = (live.len(), live.len() + (all - seen) as usize);
            return Err(Lack::Pods { there, wanted });
        }
        let mut wanted = 0_usize;
        for (role, number) in jobs {
            let of_role = self.jobs.values().filter(|job| job.role == role);
            let job = of_role.max_by_key(|job| job.pods).ok_or(Lack::NoJob)?;
            let pods = job.gang()?;
            wanted = wanted.saturating_add((pods as usize).saturating_mul(number as usize));
        }
        Ok(wanted)
    }
}

impl JobFacts {
    /// Pods of its gang.
    fn gang(&self) -> Result<u32, Lack> {
        match self.completions {
            Some(completions) if completions > self.pods => Err(Lack::Waves {
                pods: self.pods,
                completions,
            }),
            Some(_) | None => Ok(self.pods),
        }
    }
}

/// Roles by name, each with its pods and the largest request of them.
fn roles(live: &[&Member]) -> Vec<OfferedRole> {
    let mut roles: BTreeMap<&str, OfferedRole> = BTreeMap::new();
    for member in live {
        let role = roles.entry(&member.role).or_insert_with(|| OfferedRole {
            name: member.role.clone(),
            pods: 0,
            request: member.wanted.request,
            required: None,
            preferred: None,
        });
        role.pods += 1;
        role.request = larger(role.request, member.wanted.request);
        // Pods of one template say it alike; where they do not, the last by name does.
        let text = |own: &Option<String>, known: Option<String>| own.clone().max(known);
        role.required = text(&member.required, role.required.take());
        role.preferred = text(&member.preferred, role.preferred.take());
    }
    roles.into_values().collect()
}

/// Flavors that every pod with GPUs can stand on; empty = any, since none has GPUs.
fn flavors(live: &[&Member]) -> Result<Vec<String>, Lack> {
    let mut common: Option<BTreeSet<&String>> = None;
    for wanted in live
        .iter()
        .filter_map(|member| member.wanted.flavors.as_ref())
    {
        let own: BTreeSet<&String> = wanted.iter().collect();
        common = Some(match common {
            Some(common) => common.intersection(&own).copied().collect(),
            None => own,
        });
    }
    match common {
        None => Ok(Vec::new()),
        Some(common) if common.is_empty() => Err(Lack::NoFlavor),
        Some(common) => Ok(common.into_iter().cloned().collect()),
    }
}
