//! From a plan to writes: each placement whole, under everything that it read.
//!
//! Owns the record that a decision makes and the compares that it stands on. Pure. A conflict
//! drops the decision; nothing is patched.

use std::collections::BTreeMap;

use meridian_api::ids::{GangId, Revision, Term};
use meridian_api::kinds::federated_job::CostAttribution;
use meridian_policies::lifecycle::State;
use meridian_policies::model::{Placed, Snapshot};
use meridian_runtime::telemetry;
use meridian_store::keys::{self, Part};
use meridian_store::{Compare, Operation};

use crate::fence::put;
use crate::model::{Job, Model, TRACEPARENT_ANNOTATION};
use crate::placement::{PlacedRole, PlacementRecord};
use crate::settle::{Change, Subject, to_json};
use crate::status::job_status;

/// The write of one placement; `None` when its job is gone meanwhile.
#[must_use]
pub(crate) fn placement_change(
    model: &Model,
    snapshot: &Snapshot,
    placed: &Placed,
    term: Term,
) -> Option<Change> {
    let gang = snapshot.waiting[placed.waiting.index()].gang;
    let job = model.job(gang.job)?;
    let record = record(job, snapshot, placed, term)?;
    let (placement, progress) = (keys::placement(gang), keys::progress(job.uid));
    let spec = job.key.part(Part::Spec);
    let compares = vec![
        Compare::ModRevision(keys::policy_head(), snapshot.policy_head),
        Compare::ModRevision(keys::ledger_head(), model.ledger_head()),
        Compare::ModRevision(spec, snapshot.waiting[placed.waiting.index()].spec_revision),
        Compare::ModRevision(progress, job.progress_revision),
        Compare::ModRevision(placement.clone(), Revision(0)),
    ];
    let mut rows: Vec<&PlacementRecord> = model
        .placements_of(gang.job)
        .map(|row| row.record.as_ref())
        .collect();
    rows.push(&record);
    rows.sort_by_key(|row| row.gang);
    let status = job_status(job, &rows, snapshot.now);
    let ops = vec![
        put(placement, record.to_json()),
        put(job.key.part(Part::Status), to_json(&status)),
        put(keys::ledger_head(), gang.to_string()),
    ];
    let place = format!("{}/{}", record.cluster, record.pool);
    let gpus = record.gpus.whole();
    let told = format!(
        "gang {} goes to {place} with {gpus} GPUs, epoch {}",
        gang.index, record.epoch.0
    );
    Some(Change {
        subject: Subject::Gang(gang),
        why: Operation::CommitDecision,
        compares,
        ops,
        told: Some(("Placed", told)),
    })
}

fn record(job: &Job, snapshot: &Snapshot, placed: &Placed, term: Term) -> Option<PlacementRecord> {
    let waiting = &snapshot.waiting[placed.waiting.index()];
    let pool = &snapshot.pools[placed.pool.index()];
    let gang: GangId = waiting.gang;
    let row = job.gang(gang.index)?;
    let roles = row.shape.roles.iter().zip(&row.templates).zip(&placed.pods);
    let role =
        |((role, template), pods): ((&meridian_policies::model::RoleShape, &String), &u32)| {
            PlacedRole {
                name: role.name.clone(),
                pods: *pods,
                per_pod: role.per_pod,
                template: template.clone(),
                required: role.required.clone(),
                preferred: role.preferred.clone(),
            }
        };
    let class = &snapshot.classes[waiting.class.index()];
    Some(PlacementRecord {
        gang,
        namespace: job.key.namespace.clone().unwrap_or_default(),
        job: job.key.name.clone(),
        tenant: snapshot.tenants[waiting.tenant.index()].name.clone(),
        class: class.name.clone(),
        priority: class.priority,
        cluster: snapshot.clusters[pool.cluster.index()].name.clone(),
        pool: pool.name.clone(),
        flavor: snapshot.flavors[pool.flavor.index()].name.clone(),
        epoch: waiting.next_epoch,
        term,
        state: State::Starting,
        roles: roles.map(role).collect(),
        gpus: placed.gpus,
        grace: row.grace,
        max_runtime: waiting.max_runtime,
        place_timeout: row.place_timeout,
        decided: snapshot.now,
        started: None,
        traceparent: trace(job),
        labels: cost_labels(&job.object.spec.cost_attribution),
    })
}

/// The decision as a span of the job's own trace; what is carried on is its context.
fn trace(job: &Job) -> Option<String> {
    let submitted = job
        .object
        .metadata
        .annotations
        .get(TRACEPARENT_ANNOTATION)?;
    let span = tracing::info_span!(parent: None, "place gang", job = %job.full_name());
    telemetry::set_parent(&span, submitted);
    Some(telemetry::traceparent(&span).unwrap_or_else(|| submitted.clone()))
}

fn cost_labels(cost: &CostAttribution) -> BTreeMap<String, String> {
    let all = [
        ("meridian.dev/team", &cost.team),
        ("meridian.dev/project", &cost.project),
        ("meridian.dev/model", &cost.model),
        ("meridian.dev/cost-center", &cost.cost_center),
    ];
    let given = all.into_iter().filter(|(_, value)| !value.is_empty());
    given
        .map(|(label, value)| (label.to_owned(), value.clone()))
        .collect()
}
