//! Checks of a `FederatedJob`: numbers, names, and gangs that could never start.
//!
//! Owns what one job demands of itself. Whether its tenant and class admit it is in `admission`;
//! what this release cannot do yet is in `unsupported`.

use super::overrides::check_overrides;
use super::{
    Checkpoint, Elasticity, FederatedJobSpec, Gang, Role, Schedule, TopologyRule, unsupported,
};
use crate::errors::FieldReason;
use crate::kinds::spread::DivisionRule;
use crate::kinds::workload_class::MAX_PRIORITY;
use crate::units::{MilliCpus, MilliGpus, Millis};
use crate::validate::{Checked, Findings, MAX_GPUS_PER_HOST, MAX_SPAN};

/// Most roles of one job: JobSets of the field have under ten.
pub const MAX_ROLES: usize = 32;
/// Most gangs of one job, in all copies. What the hub keeps of each that waits again is some 70
/// bytes at most, and together they must fit one value of the store (384 KiB).
pub const MAX_GANGS: u32 = 5_000;
/// Most pods of one gang: the largest clusters of the field have as many hosts.
pub const MAX_GANG_PODS: u64 = 16_384;
/// Most CPU of one pod: four times the largest host.
pub const MAX_POD_CPU: MilliCpus = MilliCpus(4_096_000);
/// Most memory of one pod, in MiB: four times the largest host's 32 TiB.
pub const MAX_POD_MEMORY_MIB: u64 = 128 << 20;
/// Most starts after failures: a job that fails so often will not heal.
pub const MAX_RESTARTS: u32 = 1000;
/// Longest time from the signal to the kill.
pub const MAX_GRACE: Millis = Millis::seconds(3600);
/// Run leases are from this long ...
pub const MIN_RUN_LEASE: Millis = Millis::seconds(30);
/// ... to this long (behaviour, section 7).
pub const MAX_RUN_LEASE: Millis = Millis::seconds(24 * 3600);

const SECOND: Millis = Millis::seconds(1);

impl Checked for FederatedJobSpec {
    const SHORT_NAMES: bool = true;

    fn check(&self, found: &mut Findings) {
        if let Some(tenant) = &self.tenant {
            found.label("spec.tenant", tenant);
        }
        found.label("spec.workloadClass", &self.workload_class);
        if !(-MAX_PRIORITY..=MAX_PRIORITY).contains(&self.priority) {
            let message = format!(
                "is {}, must be from -{MAX_PRIORITY} to {MAX_PRIORITY}",
                self.priority
            );
            found.invalid("spec.priority", message);
        }
        let cost = &self.cost_attribution;
        let texts = [
            ("team", &cost.team),
            ("project", &cost.project),
            ("model", &cost.model),
            ("costCenter", &cost.cost_center),
        ];
        for (name, text) in texts {
            found.text(&format!("spec.costAttribution.{name}"), text);
        }
        self.check_runtimes(found);
        self.placement.check(found);
        self.check_spread(found);
        check_overrides(&self.overrides, found);
        self.check_roles(found);
        self.check_gangs(found);
        self.check_topology(found);
        if let Some(elastic) = &self.elasticity {
            elastic.check(&self.roles, found);
        }
        if let Some(checkpoint) = &self.checkpoint {
            checkpoint.check(found);
        }
        if let Some(schedule) = &self.schedule {
            schedule.check(found);
            if self.finish_by.is_some() {
                let message = "is one instant, and the job recurs: use schedule.finishWithin";
                found.invalid("spec.finishBy", message);
            }
        }
        if let Some(policy) = &self.success_policy {
            policy.check(&self.roles, found);
        }
        if let Some(needs) = &self.dependencies {
            needs.check(found);
        }
        if let Some(carried) = &self.carried {
            carried.check(found);
        }
        if let Some(origin) = &self.origin {
            origin.check(found);
            if self.placement.clusters != [origin.cluster.clone()] {
                let message = format!("its pods are in cluster {}: name that one", origin.cluster);
                found.invalid("spec.placement.clusters", message);
            }
        }
        self.retry.check(found);
        unsupported::check(self, found);
    }

    fn check_update(&self, new: &Self, found: &mut Findings) {
        let again = "delete the job and submit it again";
        found.unchanged("spec.tenant", &self.tenant, &new.tenant, again);
        found.unchanged(
            "spec.workloadClass",
            &self.workload_class,
            &new.workload_class,
            again,
        );
        found.unchanged("spec.roles", &self.roles, &new.roles, again);
        found.unchanged("spec.gangs", &self.gangs, &new.gangs, again);
        found.unchanged("spec.overrides", &self.overrides, &new.overrides, again);
        found.unchanged("spec.copies", &self.copies, &new.copies, again);
        found.unchanged("spec.topology", &self.topology, &new.topology, again);
        found.unchanged("spec.elasticity", &self.elasticity, &new.elasticity, again);
        let (old_needs, new_needs) = (&self.dependencies, &new.dependencies);
        found.unchanged("spec.dependencies", old_needs, new_needs, again);
        found.unchanged("spec.carried", &self.carried, &new.carried, again);
        found.unchanged("spec.origin", &self.origin, &new.origin, again);
        let (old_rule, new_rule) = (&self.success_policy, &new.success_policy);
        found.unchanged("spec.successPolicy", old_rule, new_rule, again);
        found.unchanged(
            "spec.partitionRule",
            &self.partition_rule,
            &new.partition_rule,
            again,
        );
        found.unchanged("spec.runLease", &self.run_lease, &new.run_lease, again);
    }
}

impl FederatedJobSpec {
    fn check_runtimes(&self, found: &mut Findings) {
        found.span(
            "spec.expectedRuntime",
            self.expected_runtime,
            SECOND,
            MAX_SPAN,
        );
        found.span("spec.maxRuntime", self.max_runtime, SECOND, MAX_SPAN);
        if let (Some(expected), Some(most)) = (self.expected_runtime, self.max_runtime)
            && expected > most
        {
            let message =
                format!("is {expected}, longer than maxRuntime {most}: it would be ended");
            found.invalid("spec.expectedRuntime", message);
        }
        found.span(
            "spec.runLease",
            self.run_lease,
            MIN_RUN_LEASE,
            MAX_RUN_LEASE,
        );
    }

    /// Rules on where the gangs stand, which are impossible for too few of them.
    fn check_spread(&self, found: &mut Findings) {
        let gangs = u64::from(self.copies) * self.gangs.len().max(1) as u64;
        let unit = if self.gangs.len() > 1 {
            "gangs"
        } else {
            "copies"
        };
        for (index, rule) in self.placement.spread.iter().enumerate() {
            let path = format!("spec.placement.spread[{index}]");
            rule.check(&path, gangs, unit, found);
        }
        let duplicates = self.placement.division.as_ref();
        let duplicates = duplicates.is_some_and(|it| it.rule == DivisionRule::Duplicated);
        if duplicates && self.gangs.len() > 1 {
            let message = format!(
                "Duplicated puts one copy into each cluster whole, and a copy has {} gangs, which \
                 are placed one by one: put their roles into one gang",
                self.gangs.len()
            );
            found.invalid("spec.placement.division.rule", message);
        }
    }

    fn check_roles(&self, found: &mut Findings) {
        found.too_many("spec.roles", self.roles.len(), MAX_ROLES);
        if self.roles.is_empty() {
            let message = "is empty, so the job has no pods: give at least one role";
            found.impossible("spec.roles", message);
        }
        for (index, role) in self.roles.iter().enumerate() {
            let path = format!("spec.roles[{index}]");
            if self.roles[..index]
                .iter()
                .any(|other| other.name == role.name)
            {
                let message = format!("{:?} is there twice", role.name);
                found.add(&format!("{path}.name"), FieldReason::Duplicate, message);
            }
            role.check(&path, found);
        }
    }

    fn check_gangs(&self, found: &mut Findings) {
        let per_copy = u32::try_from(self.gangs.len()).unwrap_or(u32::MAX).max(1);
        let all = u64::from(per_copy) * u64::from(self.copies);
        if self.copies == 0 {
            found.impossible(
                "spec.copies",
                "is 0, so nothing would run: must be at least 1",
            );
        } else if all > u64::from(MAX_GANGS) {
            let message = format!(
                "{} copies of {per_copy} gangs are {all} gangs, at most {MAX_GANGS} fit in one job",
                self.copies
            );
            found.add("spec.copies", FieldReason::TooMany, message);
        }
        if self.gangs.is_empty() {
            let pods = self.roles.iter().map(|role| self.pods_of(role).1).sum();
            check_size("spec.roles", pods, found);
        }
        for (index, gang) in self.gangs.iter().enumerate() {
            let path = format!("spec.gangs[{index}]");
            if self.gangs[..index]
                .iter()
                .any(|other| other.name == gang.name)
            {
                let message = format!("{:?} is there twice", gang.name);
                found.add(&format!("{path}.name"), FieldReason::Duplicate, message);
            }
            self.check_gang(index, gang, found);
        }
        if !self.gangs.is_empty() {
            for (index, role) in self.roles.iter().enumerate() {
                if !self
                    .gangs
                    .iter()
                    .any(|gang| gang.roles.contains(&role.name))
                {
                    let message = format!("{:?} is in no gang: add it to one", role.name);
                    found.impossible(&format!("spec.roles[{index}].name"), message);
                }
            }
        }
    }

    fn check_gang(&self, index: usize, gang: &Gang, found: &mut Findings) {
        let path = format!("spec.gangs[{index}]");
        found.label(&format!("{path}.name"), &gang.name);
        found.span(
            &format!("{path}.placeTimeout"),
            gang.place_timeout,
            SECOND,
            MAX_SPAN,
        );
        if gang.roles.is_empty() {
            found.impossible(
                &format!("{path}.roles"),
                "is empty, so the gang has no pods",
            );
        }
        let (mut least, mut most) = (0, 0);
        for (position, name) in gang.roles.iter().enumerate() {
            let path = format!("{path}.roles[{position}]");
            let Some(role) = self.roles.iter().find(|role| role.name == *name) else {
                found.push(no_such_role(&path, name, &self.roles));
                continue;
            };
            let elsewhere = self.gangs[..index]
                .iter()
                .find(|other| other.roles.contains(name));
            if let Some(other) = elsewhere {
                let message = format!("{name:?} is in gang {:?} too: a role is in one", other.name);
                found.impossible(&path, message);
            }
            if gang.roles[..position].contains(name) {
                found.add(
                    &path,
                    FieldReason::Duplicate,
                    format!("{name:?} is there twice"),
                );
            }
            let (min, max) = self.pods_of(role);
            (least, most) = (least + min, most + max);
        }
        check_size(&format!("{path}.roles"), most, found);
        let Some(wanted) = gang.min_member.map(u64::from) else {
            return;
        };
        let path = format!("{path}.minMember");
        if wanted > most {
            let message = format!(
                "is {wanted}, more than the {most} pods of its roles: lower it, or raise replicas"
            );
            found.impossible(&path, message);
        } else if wanted < least {
            let message = format!(
                "is {wanted}, fewer than the {least} pods that its roles need at least: leave it \
                 out, or set elasticity"
            );
            found.invalid(&path, message);
        }
    }

    /// Fewest and most pods of a role in one gang.
    fn pods_of(&self, role: &Role) -> (u64, u64) {
        let elastic = self
            .elasticity
            .as_ref()
            .filter(|elastic| elastic.role == role.name);
        let (min, max) = elastic.map_or((role.replicas, role.replicas), |e| (e.min, e.max));
        (u64::from(min), u64::from(max))
    }

    fn check_topology(&self, found: &mut Findings) {
        for (index, rule) in self.topology.iter().enumerate() {
            let path = format!("spec.topology[{index}]");
            if !self.roles.iter().any(|role| role.name == rule.role) {
                found.push(no_such_role(
                    &format!("{path}.role"),
                    &rule.role,
                    &self.roles,
                ));
            }
            if self.topology[..index]
                .iter()
                .any(|other| other.role == rule.role)
            {
                let message = format!("{:?} has two rules: put them into one", rule.role);
                found.add(&format!("{path}.role"), FieldReason::Duplicate, message);
            }
            if rule.required.is_none() && rule.preferred.is_none() && rule.slice_size.is_none() {
                let message = "says nothing: give required, preferred or both, for example rack";
                found.add(&path, FieldReason::Required, message);
            }
            let levels = [
                ("required", &rule.required),
                ("preferred", &rule.preferred),
                ("sliceRequired", &rule.slice_required),
            ];
            for (name, level) in levels {
                if let Some(level) = level {
                    found.name(&format!("{path}.{name}"), level);
                }
            }
            self.check_slices(&path, rule, found);
        }
    }

    /// Slices share the pods of a role without a remainder, at each size it may have.
    fn check_slices(&self, path: &str, rule: &TopologyRule, found: &mut Findings) {
        if rule.slice_size.is_some() != rule.slice_required.is_some() {
            let message = "sliceSize and sliceRequired belong together: give both or none";
            return found.invalid(&format!("{path}.sliceSize"), message);
        }
        let Some(size) = rule.slice_size.map(u64::from) else {
            return;
        };
        let path = format!("{path}.sliceSize");
        if size == 0 {
            return found.impossible(&path, "is 0, must be at least 1 pod");
        }
        let Some(role) = self.roles.iter().find(|role| role.name == rule.role) else {
            return;
        };
        let (min, max) = self.pods_of(role);
        let elastic = self
            .elasticity
            .as_ref()
            .filter(|elastic| elastic.role == role.name);
        let step = elastic.map_or(size, |elastic| u64::from(elastic.step));
        if !min.is_multiple_of(size) || !max.is_multiple_of(size) || !step.is_multiple_of(size) {
            let message = format!(
                "is {size}, which does not divide the {min} to {max} pods of role {:?} in steps \
                 of {step}: some would be in no slice",
                role.name
            );
            found.impossible(&path, message);
        }
    }
}

fn check_size(path: &str, pods: u64, found: &mut Findings) {
    if pods > MAX_GANG_PODS {
        let message = format!(
            "make a gang of {pods} pods, at most {MAX_GANG_PODS} start together: use copies, or \
             several gangs"
        );
        found.impossible(path, message);
    }
}

pub(super) fn no_such_role(path: &str, name: &str, roles: &[Role]) -> crate::errors::FieldError {
    let names = || roles.iter().map(|role| role.name.as_str());
    let message = format!(
        "there is no role {name:?}: it has {}",
        names().collect::<Vec<_>>().join(", ")
    );
    let meant = crate::fields::nearest(name, names()).map(str::to_owned);
    crate::errors::FieldError::new(path, FieldReason::Impossible, message).suggest(meant)
}

impl Role {
    fn check(&self, path: &str, found: &mut Findings) {
        found.label(&format!("{path}.name"), &self.name);
        if self.replicas == 0 {
            let message = "is 0, so its gang could never be complete: must be at least 1";
            found.impossible(&format!("{path}.replicas"), message);
        }
        if self.gpus.0 > MilliGpus::cards(MAX_GPUS_PER_HOST) {
            let message = format!(
                "is {} in each pod, no host has more than {MAX_GPUS_PER_HOST}: use more replicas \
                 of smaller pods",
                self.gpus
            );
            found.impossible(&format!("{path}.gpus"), message);
        }
        let asked = self.resources;
        if asked.cpu.0 > MAX_POD_CPU {
            let message = format!(
                "is {}, no host has more than {}",
                asked.cpu,
                MAX_POD_CPU.0 / 1000
            );
            found.impossible(&format!("{path}.resources.cpu"), message);
        }
        if asked.memory.0.0 > MAX_POD_MEMORY_MIB {
            let message = format!(
                "is {}, no host has more than {}Gi",
                asked.memory,
                MAX_POD_MEMORY_MIB >> 10
            );
            found.impossible(&format!("{path}.resources.memory"), message);
        }
        if self.per_pod() == crate::units::Resources::default() {
            let message = "asks for nothing: give gpus, resources.cpu or resources.memory, for \
                           example resources: {cpu: 2, memory: 4Gi}";
            found.add(&format!("{path}.resources"), FieldReason::Required, message);
        }
        self.check_template(&format!("{path}.template"), found);
    }

    /// GPUs named in the template would be held and counted by nobody.
    fn check_template(&self, path: &str, found: &mut Findings) {
        if !self.template.is_object() {
            let message = "must be an object with metadata and spec, as in a Kubernetes Job";
            return found.add(path, FieldReason::TypeInvalid, message);
        }
        let containers = self
            .template
            .pointer("/spec/containers")
            .and_then(|list| list.as_array());
        for (index, container) in containers.into_iter().flatten().enumerate() {
            for list in ["limits", "requests"] {
                let asked = container.pointer(&format!("/resources/{list}"));
                let names = asked
                    .and_then(|asked| asked.as_object())
                    .into_iter()
                    .flatten();
                for (name, _) in names.filter(|(name, _)| name.ends_with("/gpu")) {
                    let path = format!("{path}.spec.containers[{index}].resources.{list}[{name}]");
                    let message = "ask for GPUs in the role's gpus: the agent writes the name that \
                                   the hardware has there";
                    found.add(&path, FieldReason::Forbidden, message);
                }
            }
        }
    }
}

pub(super) fn check_uri(path: &str, uri: &str, found: &mut Findings) {
    match uri.split_once("://") {
        Some((scheme, rest)) if !scheme.is_empty() && !rest.is_empty() => found.text(path, uri),
        Some(_) | None => {
            let short: String = uri.chars().take(64).collect();
            let message = format!("{short:?} is no place: use a URI such as s3://bucket/folder");
            found.invalid(path, message);
        }
    }
}

impl Elasticity {
    fn check(&self, roles: &[Role], found: &mut Findings) {
        let Self { min, max, step, .. } = *self;
        let Some(role) = roles.iter().find(|role| role.name == self.role) else {
            return found.push(no_such_role("spec.elasticity.role", &self.role, roles));
        };
        if min == 0 {
            found.impossible("spec.elasticity.min", "is 0: a gang keeps at least 1 pod");
        }
        if min > max {
            let message = format!("is {min}, more than max {max}: no size is allowed");
            return found.impossible("spec.elasticity.min", message);
        }
        if step == 0 {
            found.impossible("spec.elasticity.step", "is 0, must be at least 1");
        } else if !(max - min).is_multiple_of(step) {
            let message = format!(
                "is {step}, and {min} + {step} + ... never reaches max {max}: use a step that \
                 divides {}",
                max - min
            );
            found.invalid("spec.elasticity.step", message);
        }
        if !(min..=max).contains(&role.replicas) {
            let message = format!(
                "{}..{} does not contain the {} replicas of role {:?}",
                min, max, role.replicas, role.name
            );
            found.impossible("spec.elasticity", message);
        }
    }
}

impl Checkpoint {
    fn check(&self, found: &mut Findings) {
        check_uri("spec.checkpoint.uri", &self.uri, found);
        found.names("spec.checkpoint.location", &self.location);
        found.names("spec.checkpoint.replicateTo", &self.replicate_to);
        found.span("spec.checkpoint.every", self.every, SECOND, MAX_SPAN);
        found.span(
            "spec.checkpoint.maxLostWork",
            self.max_lost_work,
            SECOND,
            MAX_SPAN,
        );
        if let (Some(every), Some(lost)) = (self.every, self.max_lost_work)
            && every > lost
        {
            let message = format!("is {lost}, shorter than the {every} between two checkpoints");
            found.invalid("spec.checkpoint.maxLostWork", message);
        }
        if let Some(preempt) = &self.on_preempt {
            let grace = Some(preempt.grace);
            found.span(
                "spec.checkpoint.onPreempt.grace",
                grace,
                Millis::ZERO,
                MAX_GRACE,
            );
            if !preempt.signal.starts_with("SIG") || preempt.signal.len() > 12 {
                let message = format!("{:?} is no signal such as SIGTERM", preempt.signal);
                found.invalid("spec.checkpoint.onPreempt.signal", message);
            }
        }
        if let Some(name) = &self.resume_env {
            let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || !name.chars().all(fits) || name.starts_with(char::is_numeric) {
                let message = format!("{name:?} is no name of an environment variable");
                found.invalid("spec.checkpoint.resumeEnv", message);
            }
        }
    }
}

/// Most finished runs of one job that are kept, of each sort: a quarter of nights.
pub const MAX_RUNS_KEPT: usize = 100;

impl Schedule {
    fn check(&self, found: &mut Findings) {
        if self.cron.is_some() == self.window.is_some() {
            let message = "give either cron or window";
            found.invalid("spec.schedule", message);
        }
        if let Some(cron) = &self.cron
            && let Err(error) = cron.parse::<croner::Cron>()
        {
            let message = format!("{cron:?} is no cron line such as \"30 2 * * *\": {error}");
            found.invalid("spec.schedule.cron", message);
        }
        match &self.time_zone {
            Some(zone) => found.zone("spec.schedule.timeZone", zone),
            None if self.cron.is_some() => {
                let message = "must be given with cron, for example Europe/Dublin";
                found.add("spec.schedule.timeZone", FieldReason::Required, message);
            }
            None => {}
        }
        if let Some(window) = &self.window {
            found.name("spec.schedule.window", window);
        }
        for (path, span) in [
            ("spec.schedule.startDeadline", self.start_deadline),
            ("spec.schedule.finishWithin", self.finish_within),
        ] {
            found.span(path, span, Millis::seconds(60), MAX_SPAN);
        }
        for (path, kept) in [
            (
                "spec.schedule.successfulRunsKept",
                self.successful_runs_kept,
            ),
            ("spec.schedule.failedRunsKept", self.failed_runs_kept),
        ] {
            found.too_many(path, kept as usize, MAX_RUNS_KEPT);
        }
    }
}
