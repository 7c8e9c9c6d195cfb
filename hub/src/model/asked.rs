//! Rows of a snapshot for gangs that wait: what each asks for, in ordinals.
//!
//! Owns the way from a job to such a row. What follows from spec and metadata alone is worked out
//! once for all alike jobs of a snapshot. Reads only.

use std::collections::BTreeMap;
use std::sync::Arc;

use meridian_api::ids::GangId;
use meridian_api::kinds::federated_job::RegionChoice;
use meridian_api::kinds::federated_job::admission::{fits_class, fits_tenant};
use meridian_api::reasons::Reason;
use meridian_api::units::{MilliGpus, UnixMillis};
use meridian_api::validate::Findings;
use meridian_policies::model::{
    Accepted, ChoiceIx, ClassIx, ClusterIx, Lacking, RegionIx, Shared, TenantIx, Waiting,
};

use super::choices::{Choices, expected, missing};
use super::snapshot::Ordinals;
use super::{Job, Model, Trouble};

/// Stands for the form and the marks of a job while the model is borrowed: their addresses.
type Alike = (usize, usize);

/// What alike jobs of a snapshot ask for.
#[derive(Default)]
pub(super) struct Asked {
    named: BTreeMap<Alike, Result<(TenantIx, ClassIx), Trouble>>,
    places: BTreeMap<Alike, Result<Places, Trouble>>,
    /// What most gangs have, once.
    nothing_lacks: Shared<Vec<Lacking>>,
}

/// Places that a job accepts.
#[derive(Clone)]
struct Places {
    flavors: Shared<Vec<Accepted>>,
    regions: Shared<Vec<RegionIx>>,
    clusters: Shared<Vec<ClusterIx>>,
    choice: ChoiceIx,
}

fn alike(job: &Job) -> Alike {
    let (form, marks) = (Arc::as_ptr(&job.form), Arc::as_ptr(&job.marks));
    (form.addr(), marks.addr())
}

impl Model {
    pub(super) fn waiting_row(
        &self,
        ordinals: &Ordinals,
        choices: &mut Choices,
        job: &Job,
        gang: GangId,
        now: UnixMillis,
    ) -> Result<Waiting, Trouble> {
        let (spec, alike) = (job.spec(), alike(job));
        let named = choices.asked.named.entry(alike);
        let (tenant, class) = named.or_insert_with(|| self.named(ordinals, job)).clone()?;
        let never = |message: String| Trouble {
            reason: Reason::NeverPlaceable,
            message,
        };
        let epoch = job.progress().next_epoch(gang.index, self.store_generation);
        let epoch = epoch.ok_or_else(|| never("the gang has used up its epochs".to_owned()))?;
        let row = job.gang(gang.index);
        let row = row.ok_or_else(|| never(format!("the job has no gang {}", gang.index)))?;
        let known = choices.asked.places.get(&alike).cloned();
        let places = known.unwrap_or_else(|| {
            let found = self.places(ordinals, choices, job);
            choices.asked.places.insert(alike, found.clone());
            found
        })?;
        Ok(Waiting {
            gang,
            job: job.full_name(),
            tenant,
            class,
            priority: spec.priority,
            submitted: job.submitted(),
            finish_by: spec.finish_by.map(|time| time.0),
            max_runtime: self.max_runtime(job),
            suspended: spec.suspend,
            flavors: places.flavors,
            regions: places.regions,
            clusters: places.clusters,
            lacking: if job.progress().lacking.is_empty() {
                choices.asked.nothing_lacks.clone()
            } else {
                lacking(ordinals, job, now)
            },
            shape: row.shape.clone(),
            job_gpus: job.total_gpus().unwrap_or(MilliGpus(u64::MAX)),
            next_epoch: epoch,
            spec_revision: job.spec_revision,
            evicted_by: job.progress().evicted_by(gang.index),
            choice: places.choice,
            expected: expected(spec),
        })
    }

    /// Who pays for a job and of which class it is, if it may be.
    fn named(&self, ordinals: &Ordinals, job: &Job) -> Result<(TenantIx, ClassIx), Trouble> {
        self.check_fit(job)?;
        let name = &job.spec().workload_class;
        let class = ordinals.classes.get(name);
        let class = *class.ok_or_else(|| missing("WorkloadClass", name, "spec.workloadClass"))?;
        let tenant = ordinals.tenants.get(job.tenant());
        let tenant = *tenant.ok_or_else(|| missing("Tenant", job.tenant(), "spec.tenant"))?;
        Ok((tenant, class))
    }

    /// A job that was let in before its class or tenant was there, or before they changed, fits
    /// them or waits.
    fn check_fit(&self, job: &Job) -> Result<(), Trouble> {
        let mut found = Findings::default();
        if let Some(class) = self.catalog.classes.get(&job.spec().workload_class) {
            fits_class(job.object(), &class.value, &mut found);
        }
        if let Some(tenant) = self.catalog.tenants.get(job.tenant()) {
            fits_tenant(job.object(), &tenant.value, &mut found);
        }
        match found.list.first() {
            None => Ok(()),
            Some(wrong) => {
                let message = wrong.to_string();
                Err(Trouble {
                    reason: Reason::Denied,
                    message,
                })
            }
        }
    }

    fn places(
        &self,
        ordinals: &Ordinals,
        choices: &mut Choices,
        job: &Job,
    ) -> Result<Places, Trouble> {
        let placement = &job.spec().placement;
        let flavors = accepted_flavors(ordinals, job)?;
        let regions = placement.regions.iter().flat_map(RegionChoice::names);
        let regions = regions.map(|name| ordinals.region(name, "regions"));
        let clusters = placement.clusters.iter();
        let clusters = clusters.map(|name| ordinals.cluster(name, "clusters"));
        let rules = self.catalog.classes.get(&job.spec().workload_class);
        let may_use = rules.map_or(&[][..], |class| &class.value.spec.may_use);
        Ok(Places {
            flavors,
            regions: regions.collect::<Result<_, _>>()?,
            clusters: clusters.collect::<Result<_, _>>()?,
            choice: choices.of(ordinals, job, may_use)?,
        })
    }
}

/// Flavors that the job accepts and the fleet has. A job whose every flavor is missing must not
/// look like one that accepts all.
fn accepted_flavors(ordinals: &Ordinals, job: &Job) -> Result<Shared<Vec<Accepted>>, Trouble> {
    let wanted = &job.spec().placement.flavors;
    let there = wanted.iter().filter_map(|accepted| {
        let flavor = *ordinals.flavors.get(&accepted.name)?;
        Some(Accepted {
            flavor,
            speed: accepted.speed.0,
        })
    });
    let there: Shared<Vec<Accepted>> = there.collect();
    if there.is_empty() && !wanted.is_empty() {
        let names: Vec<&str> = wanted.iter().map(|flavor| flavor.name.as_str()).collect();
        let names = names.join(" or ");
        let message = format!("spec.placement.flavors: no pool of the fleet is of {names}");
        return Err(Trouble {
            reason: Reason::NoMatchingFlavor,
            message,
        });
    }
    Ok(there)
}

/// Clusters whose agents lately said that they lack what the job depends on, or deny it.
fn lacking(ordinals: &Ordinals, job: &Job, now: UnixMillis) -> Shared<Vec<Lacking>> {
    let known = job.progress().lacking.iter();
    let fresh = known.filter(|(_, lack)| lack.until > now);
    let row = fresh.filter_map(|(cluster, lack)| {
        Some(Lacking {
            cluster: *ordinals.clusters.get(cluster)?,
            reason: lack.reason,
            message: lack.message.clone(),
        })
    });
    row.collect()
}
