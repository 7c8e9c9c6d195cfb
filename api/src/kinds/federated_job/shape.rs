//! Gang arithmetic of a `FederatedJob`: how many gangs, which pods, how many GPUs.
//!
//! Owns the way from a spec to gangs. Pure; assumes nothing that validation has not checked, and
//! never panics on what it would refuse.

use std::borrow::Cow;

use serde_json::Value;

use super::overrides::set_env;
use super::{FederatedJob, FederatedJobSpec, Flavor, Gang, Role};
use crate::canonical;
use crate::ids::Uid;
use crate::meta::{API_VERSION, Spec as _};
use crate::units::{MilliGpus, Millis, Resources};

/// From SIGTERM to SIGKILL when the job does not say: Kubernetes' own default.
pub const DEFAULT_GRACE: Millis = Millis::seconds(30);
/// Name of the gang of a job that names none.
pub const DEFAULT_GANG: &str = "all";

/// Pods that start together or not at all, ready for placement.
#[derive(Clone, Debug, PartialEq)]
pub struct GangTemplate<'a> {
    /// Its name in the job.
    pub name: &'a str,
    /// Which copy of the job it belongs to, from 0.
    pub copy: u32,
    /// Its roles in the order of the job.
    pub roles: Vec<RoleTemplate<'a>>,
    /// From bound to running, else undone; absent = the agent's default.
    pub place_timeout: Option<Millis>,
    /// From SIGTERM to SIGKILL.
    pub grace: Millis,
}

/// Pods of one role in one gang.
#[derive(Clone, Debug, PartialEq)]
pub struct RoleTemplate<'a> {
    /// Name of the role.
    pub name: &'a str,
    /// Fewest pods it runs with.
    pub min: u32,
    /// Most pods it makes use of.
    pub max: u32,
    /// Sizes between differ by a multiple of this; at least 1.
    pub step: u32,
    /// What each pod asks of a host.
    pub per_pod: Resources,
    /// Level that must hold the whole role.
    pub required: Option<&'a str>,
    /// Level that should hold it.
    pub preferred: Option<&'a str>,
    /// Pods that stay together, and the level that must hold them.
    pub slice: Option<(u32, &'a str)>,
    /// Its pod template.
    pub template: &'a Value,
}

impl Role {
    /// What each pod asks of a host.
    #[must_use]
    pub fn per_pod(&self) -> Resources {
        let (cpu, memory) = (self.resources.cpu.0, self.resources.memory.0);
        Resources {
            gpus: self.gpus.0,
            cpu,
            memory,
        }
    }
}

impl FederatedJob {
    /// The job that this one belongs to, as its UID and name.
    #[must_use]
    pub fn owner(&self) -> Option<(Uid, &str)> {
        let own = self.metadata.owner_references.iter();
        let mut own = own.filter(|owner| {
            owner["apiVersion"] == API_VERSION && owner["kind"] == FederatedJobSpec::KIND
        });
        let owner = own.next()?;
        let uid = owner["uid"].as_str()?.parse().ok()?;
        Some((uid, owner["name"].as_str()?))
    }

    /// Gangs in one copy of the job; at least 1.
    #[must_use]
    pub fn gangs_per_copy(&self) -> u32 {
        u32::try_from(self.spec.gangs.len())
            .unwrap_or(u32::MAX)
            .max(1)
    }

    /// Gangs in all copies.
    #[must_use]
    pub fn gang_count(&self) -> u32 {
        self.gangs_per_copy().saturating_mul(self.spec.copies)
    }

    /// Gang number `index`, or `None` when there is none. Gang `j` of copy `i` has index
    /// `i * k + j`, where a copy has `k` gangs.
    #[must_use]
    pub fn gang(&self, index: u32) -> Option<GangTemplate<'_>> {
        if index >= self.gang_count() {
            return None;
        }
        let (copy, member) = (index / self.gangs_per_copy(), index % self.gangs_per_copy());
        let gang = self.spec.gangs.get(member as usize);
        let belongs = |role: &&Role| gang.is_none_or(|gang| gang.roles.contains(&role.name));
        let roles = self
            .spec
            .roles
            .iter()
            .filter(belongs)
            .map(|role| self.role_template(role));
        let mut roles: Vec<RoleTemplate<'_>> = roles.collect();
        raise_to_min_member(&mut roles, gang);
        let preempt = self
            .spec
            .checkpoint
            .as_ref()
            .and_then(|save| save.on_preempt.as_ref());
        Some(GangTemplate {
            name: gang.map_or(DEFAULT_GANG, |gang| gang.name.as_str()),
            copy,
            roles,
            place_timeout: gang.and_then(|gang| gang.place_timeout).map(|span| span.0),
            grace: preempt.map_or(DEFAULT_GRACE, |preempt| preempt.grace.0),
        })
    }

    fn role_template<'a>(&'a self, role: &'a Role) -> RoleTemplate<'a> {
        let elastic = self
            .spec
            .elasticity
            .as_ref()
            .filter(|elastic| elastic.role == role.name);
        let rule = self
            .spec
            .topology
            .iter()
            .find(|rule| rule.role == role.name);
        RoleTemplate {
            name: &role.name,
            min: elastic.map_or(role.replicas, |elastic| elastic.min),
            max: elastic.map_or(role.replicas, |elastic| elastic.max),
            step: elastic.map_or(1, |elastic| elastic.step.max(1)),
            per_pod: role.per_pod(),
            required: rule.and_then(|rule| rule.required.as_deref()),
            preferred: rule.and_then(|rule| rule.preferred.as_deref()),
            slice: rule.and_then(|rule| Some((rule.slice_size?, rule.slice_required.as_deref()?))),
            template: &role.template,
        }
    }

    /// GPUs of the whole job at its largest, or `None` when they do not fit the unit.
    #[must_use]
    pub fn total_gpus(&self) -> Option<MilliGpus> {
        let one_copy = self
            .spec
            .roles
            .iter()
            .try_fold(MilliGpus::ZERO, |sum, role| {
                let pods = u64::from(self.role_template(role).max);
                sum.checked_add(role.gpus.0.checked_mul(pods)?)
            })?;
        one_copy.checked_mul(u64::from(self.spec.copies))
    }

    /// The override that holds a cluster, by position.
    #[must_use]
    pub fn override_at(&self, cluster: &str, region: &str) -> Option<usize> {
        let mut overrides = self.spec.overrides.iter();
        overrides.position(|place| place.holds(cluster, region))
    }

    /// The pod template of a role as it runs on `flavor` where no override holds; `None` when there
    /// is no such role.
    #[must_use]
    pub fn template_on(&self, role: &str, flavor: &str) -> Option<Cow<'_, Value>> {
        self.template_at(role, flavor, None)
    }

    /// The pod template of a role as it runs on `flavor`: image, command and environment of its
    /// first container are those of the flavor, where it names any, and then what the override at
    /// `place` says is written over it. `None` when there is no such role or override.
    #[must_use]
    pub fn template_at(
        &self,
        role: &str,
        flavor: &str,
        place: Option<usize>,
    ) -> Option<Cow<'_, Value>> {
        let mut roles = self.spec.roles.iter();
        let role = roles.find(|candidate| candidate.name == role)?;
        let mut template = Cow::Borrowed(&role.template);
        let choices = &self.spec.placement.flavors;
        let choice = choices.iter().find(|choice| choice.name == flavor);
        if let Some(choice) = choice.filter(|choice| choice.has_overrides())
            && let Some(container) = template.to_mut().pointer_mut("/spec/containers/0")
        {
            override_container(container, choice);
        }
        if let Some(place) = place {
            let place = self.spec.overrides.get(place)?;
            place.apply(template.to_mut());
        }
        Some(template)
    }

    /// SHA-256 of the canonical JSON of [`Self::template_at`]. Equal templates have equal hashes,
    /// whatever the order of their keys.
    #[must_use]
    pub fn template_hash(
        &self,
        role: &str,
        flavor: &str,
        place: Option<usize>,
    ) -> Option<[u8; 32]> {
        Some(canonical::sha256(&*self.template_at(role, flavor, place)?))
    }

    /// What the job carries as one document, or `None` when it carries nothing.
    #[must_use]
    pub fn carried_document(&self) -> Option<Value> {
        let carried = self.spec.carried.as_ref()?;
        (!carried.is_empty())
            .then(|| serde_json::to_value(carried).expect("texts under texts are JSON"))
    }
}

/// Writes what a flavor says over a container.
fn override_container(container: &mut Value, choice: &Flavor) {
    if let Some(fields) = container.as_object_mut() {
        if let Some(image) = &choice.image {
            fields.insert("image".to_owned(), image.as_str().into());
        }
        if !choice.command.is_empty() {
            fields.insert("command".to_owned(), choice.command.clone().into());
        }
    }
    set_env(container, &choice.env);
}

/// Raises the minimum of the gang's elastic role, in whole steps, until the gang has at least
/// `minMember` pods.
fn raise_to_min_member(roles: &mut [RoleTemplate<'_>], gang: Option<&Gang>) {
    let Some(wanted) = gang.and_then(|gang| gang.min_member) else {
        return;
    };
    let least = roles
        .iter()
        .fold(0_u32, |sum, role| sum.saturating_add(role.min));
    let Some(elastic) = roles.iter_mut().find(|role| role.min < role.max) else {
        return;
    };
    let steps = wanted.saturating_sub(least).div_ceil(elastic.step);
    let raised = elastic
        .min
        .saturating_add(steps.saturating_mul(elastic.step));
    elastic.min = raised.min(elastic.max);
}
